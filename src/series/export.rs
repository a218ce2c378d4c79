//! Exports measurements as text: line protocol, for other databases, or CSV, for people.
//!
//! It writes a day of one series at a time, and waits until the reader has taken it: memory is bounded, whatever the range.

use std::fmt::Write as _;

use muster_promql::text;
use muster_topics::{
    Millis,
    ack::Numbered,
    metric::{self, Point},
};
use sqlx::SqlitePool;
use tokio::sync::mpsc;

use super::{
    blobs::UnreadableBlobs,
    error::SeriesError,
    reader::{self, ChosenSeries, DAY_MS},
    selector::SeriesSelector,
    view::StoreView,
};

/// Largest number of series in one export: those of a thousand hosts and their units.
const SERIES_MAX: usize = 200_000;
/// Number of pieces that may wait to be read.
const WAITING: usize = 2;

/// The format of exported measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineFormat {
    /// InfluxDB's line protocol, with times in milliseconds. A name is split into measurement and field at its last
    /// `_`; importers that join both with `_`, such as VictoriaMetrics and this store, get the same name again.
    Lines,
    /// `series,time_ms,value`, with a header line.
    Csv,
}

/// Starts an export; returns the stream of its text, and of what could not be read.
pub(crate) async fn export(
    readers: SqlitePool,
    selector: SeriesSelector,
    (start_ms, end_ms): (Millis, Millis),
    format: LineFormat,
    damaged: impl Fn(UnreadableBlobs) + Send + 'static,
) -> Result<mpsc::Receiver<Result<String, SeriesError>>, SeriesError> {
    if start_ms > end_ms {
        return Err(SeriesError::Range { start_ms, end_ms });
    }
    let chosen = reader::within_deadline(reader::choose(&readers, selector, SERIES_MAX)).await?;
    let (sender, receiver) = mpsc::channel(WAITING);
    tokio::spawn(async move {
        if format == LineFormat::Csv && sender.send(Ok("series,time_ms,value\n".to_owned())).await.is_err() {
            return;
        }
        for series in chosen {
            match one(&readers, &series, (start_ms, end_ms), format, &sender).await {
                Ok(Some(faults)) if faults.is_empty() => {}
                Ok(Some(faults)) => damaged(faults),
                // The reader is gone.
                Ok(None) => return,
                Err(error) => {
                    let _ = sender.send(Err(error)).await;
                    return;
                }
            }
        }
    });
    Ok(receiver)
}

/// Writes one series; returns `None` if the reader is gone.
async fn one(
    readers: &SqlitePool,
    series: &ChosenSeries,
    (start_ms, end_ms): (Millis, Millis),
    format: LineFormat,
    sender: &mpsc::Sender<Result<String, SeriesError>>,
) -> Result<Option<UnreadableBlobs>, SeriesError> {
    let mut faults = UnreadableBlobs::new();
    // Each view is short-lived: a long one would keep SQLite from truncating its log.
    let Some(extent) = StoreView::new(readers).await?.extent() else { return Ok(Some(faults)) };
    let prefix = prefix(series, format);
    for (from_ms, to_ms) in reader::windows(start_ms.max(*extent.start()), end_ms.min(*extent.end()), DAY_MS) {
        let mut view = StoreView::new(readers).await?;
        let points = view.points(series.id, from_ms..=to_ms).await?;
        faults.append(&mut view.faults);
        drop(view);
        if points.is_empty() {
            continue;
        }
        let mut text = String::with_capacity(points.len() * (prefix.len() + 24));
        for (at_ms, value) in points {
            // Writing to a String cannot fail.
            let _ = match format {
                LineFormat::Lines => writeln!(text, "{prefix}{value} {at_ms}"),
                LineFormat::Csv => writeln!(text, "{prefix},{at_ms},{value}"),
            };
        }
        if sender.send(Ok(text)).await.is_err() {
            return Ok(None);
        }
    }
    Ok(Some(faults))
}

/// The part of a line before each value of a series.
fn prefix(series: &ChosenSeries, format: LineFormat) -> String {
    match format {
        LineFormat::Lines => {
            let (measurement, field) = match series.name.rsplit_once('_') {
                Some((measurement, field)) if !measurement.is_empty() && !field.is_empty() => (measurement, field),
                _ => (series.name.as_str(), "value"),
            };
            let labels: Vec<_> = series.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let point = Point::new(measurement, &labels, 0).field(field, 0.0);
            let text = metric::encode(Numbered { epoch: 0, seq: 0 }, &[point]);
            let line = text.lines().nth(1).unwrap_or_default();
            line.strip_suffix("0 0").unwrap_or(line).to_owned()
        }
        LineFormat::Csv => {
            let labels: Vec<String> =
                series.labels.iter().map(|(name, value)| format!("{name}={}", text::quote(value))).collect();
            let series = format!("{}{{{}}}", series.name, labels.join(","));
            format!("\"{}\"", series.replace('"', "\"\""))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::SeriesId;

    #[test]
    fn a_series_is_written_so_that_it_is_read_back() {
        let labels = [("host", "a b"), ("mount", "/x,\"y\"")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let series = |name: &str| ChosenSeries {
            id: SeriesId::new(1).unwrap(),
            name: name.to_owned(),
            labels: labels.clone().into(),
        };
        let lines = |name| prefix(&series(name), LineFormat::Lines);
        assert_eq!(lines("muster_cpu_busy_ratio"), "muster_cpu_busy,host=a\\ b,mount=/x\\,\"y\" ratio=");
        assert_eq!(lines("up"), "up,host=a\\ b,mount=/x\\,\"y\" value=");
        assert_eq!(lines("up_"), "up_,host=a\\ b,mount=/x\\,\"y\" value=");
        let line = format!("# v=1 epoch=0 seq=0\n{}0.5 7\n", lines("a_b"));
        let (_, points) = metric::decode(line.as_bytes()).unwrap();
        assert_eq!(
            points,
            [Point { measurement: "a".into(), tags: labels.to_vec(), fields: vec![("b".into(), 0.5)], at_ms: 7 }]
        );
        assert_eq!(prefix(&series("up"), LineFormat::Csv), r#""up{host=""a b"",mount=""/x,\""y\""""}""#);
    }
}

//! Answers queries, on connections of their own, beside the writer.
//!
//! **Invariant: a query costs a bounded amount**, of series, of points in memory, and of time.

use std::{collections::BTreeMap, ops::RangeInclusive, time::Duration};

use futures_util::TryStreamExt;
use muster_topics::Millis;
use sqlx::SqlitePool;

use super::{
    batch::NAME_LABEL,
    blobs::UnreadableBlobs,
    downsample::{THIN_MIN, Thinner},
    error::SeriesError,
    key::{SeriesId, TIME_FIRST_MS, TIME_LAST_MS},
    maintenance,
    points::SeriesPoints,
    rollup_blob::Resolution,
    selector::SeriesSelector,
    view::{StoreView, ViewBucket},
};

/// Largest number of series in one result: more than a page or a person reads.
const SERIES_MAX: usize = 1_000;
/// Largest number of points of one series, as in Prometheus: more than a screen has columns.
const POINTS_MAX: usize = 11_000;
/// Largest number of points in one result, 8 MB: many series are reduced further.
const ANSWER_POINTS_MAX: usize = 500_000;
/// Longest time for one query; a client that waits longer is gone or has asked for too much.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);
/// Greatest age of a last value, as in Prometheus.
const LAST_MAX_AGE_MS: Millis = 300_000;
/// Number of series with a label that are counted to find the rarest one.
const RARITY_MAX: i64 = 1_000;
/// Ranges up to this length are answered from points: those of a series fit into memory, and peaks keep their times.
const POINTS_RANGE_MS: Millis = 2 * DAY_MS;
/// Points are read day by day, so that memory is bounded.
pub(crate) const DAY_MS: Millis = 24 * 3600 * 1000;
/// Summaries are read in pieces of this many days.
const BUCKETS_RANGE_MS: Millis = 64 * DAY_MS;
/// Largest number of names or values of labels in one result.
const LABELS_MAX: i64 = 100_000;

/// A series that matches.
#[derive(Clone, Debug, PartialEq)]
pub struct ChosenSeries {
    /// Its id, for reading its points.
    pub id: SeriesId,
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// Measurements that match a selector, sorted by name and labels; see [`super::SeriesStore::query`].
pub(crate) async fn query(
    readers: &SqlitePool,
    selector: &str,
    range: Option<(Millis, Millis)>,
    points_max: usize,
    now_ms: Millis,
) -> Result<(Vec<SeriesPoints>, UnreadableBlobs), SeriesError> {
    let selector = SeriesSelector::parse(selector)?;
    if let Some((start_ms, end_ms)) = range
        && start_ms > end_ms
    {
        return Err(SeriesError::Range { start_ms, end_ms });
    }
    within_deadline(async {
        let chosen = choose(readers, selector, SERIES_MAX).await?;
        let points_max = points_max.min(POINTS_MAX).min(ANSWER_POINTS_MAX / chosen.len().max(1));
        let mut answer = Vec::with_capacity(chosen.len());
        let mut view = StoreView::new(readers).await?;
        let ids: Vec<SeriesId> = chosen.iter().map(|series| series.id).collect();
        let mut last = match range {
            Some(_) => Vec::new(),
            // Hosts' clocks may be ahead, so the range has no upper end.
            None => view.points_of(&ids, now_ms - LAST_MAX_AGE_MS..=TIME_LAST_MS).await?,
        }
        .into_iter();
        for ChosenSeries { id, name, labels } in chosen {
            let points = match range {
                Some((start_ms, end_ms)) => thinned(&mut view, id, start_ms..=end_ms, points_max).await?,
                None => last.next().and_then(|mut points| points.pop()).into_iter().collect(),
            };
            if !points.is_empty() {
                answer.push(SeriesPoints { name, labels, points });
            }
        }
        Ok((answer, view.faults))
    })
    .await
}

/// The result, or an error if it takes too long.
pub(crate) async fn within_deadline<T>(answer: impl Future<Output = Result<T, SeriesError>>) -> Result<T, SeriesError> {
    tokio::time::timeout(DEADLINE, answer).await.map_err(|_| SeriesError::Deadline(DEADLINE))?
}

/// The series that match a selector.
pub(crate) async fn choose(
    readers: &SqlitePool,
    selector: SeriesSelector,
    series_max: usize,
) -> Result<Vec<ChosenSeries>, SeriesError> {
    let mut candidates = match rarest(readers, &selector).await? {
        Some((name, value)) => sqlx::query_as(
            "SELECT series.id, series.name, series.labels FROM label CROSS JOIN series ON series.id = label.series
             WHERE label.name = $1 AND label.value = $2",
        )
        .bind(name)
        .bind(value)
        .fetch(readers),
        None => sqlx::query_as("SELECT id, name, labels FROM series").fetch(readers),
    };
    let mut chosen = Vec::new();
    while let Some((id, name, labels)) = candidates.try_next().await? {
        let (id, name, labels): (i64, String, String) = (id, name, labels);
        let labels =
            serde_json::from_str(&labels).map_err(|_| SeriesError::Damaged(format!("labels of series {id}")))?;
        let Some(id) = SeriesId::new(id) else { continue };
        if selector.accepts(&name, &labels) {
            if chosen.len() == series_max {
                return Err(SeriesError::TooMany { series_max });
            }
            chosen.push(ChosenSeries { id, name, labels });
        }
    }
    chosen.sort_by(|a, b| (&a.name, &a.labels).cmp(&(&b.name, &b.labels)));
    Ok(chosen)
}

/// Of the labels that must have a given value, the one that the fewest series have.
async fn rarest(readers: &SqlitePool, selector: &SeriesSelector) -> Result<Option<(String, String)>, SeriesError> {
    let mut rarest = None;
    for (name, value) in selector.equalities() {
        let count: i64 = sqlx::query_scalar(
            "SELECT COUNT(*) FROM (SELECT 1 FROM label WHERE name = $1 AND value = $2 LIMIT $3) AS counted",
        )
        .bind(name)
        .bind(value)
        .bind(RARITY_MAX)
        .fetch_one(readers)
        .await?;
        if rarest.as_ref().is_none_or(|(least, _)| count < *least) {
            rarest = Some((count, (name.to_owned(), value.to_owned())));
        }
    }
    Ok(rarest.map(|(_, label)| label))
}

/// The time from which there are points, if any were deleted.
pub(crate) async fn points_from(readers: &SqlitePool) -> Result<Option<Millis>, SeriesError> {
    let mut connection = readers.acquire().await?;
    let kept = maintenance::kept(&mut connection).await?;
    Ok(Some(kept.raw_ms).filter(|raw_ms| *raw_ms > TIME_FIRST_MS))
}

/// The names of all labels.
pub(crate) async fn label_names(readers: &SqlitePool) -> Result<Vec<String>, SeriesError> {
    // One search for each name: there are few names and many series.
    let names = sqlx::query_scalar(
        "WITH RECURSIVE one(name) AS (
             SELECT (SELECT name FROM label ORDER BY name LIMIT 1)
             UNION ALL
             SELECT (SELECT label.name FROM label WHERE label.name > one.name ORDER BY label.name LIMIT 1)
             FROM one WHERE one.name IS NOT NULL LIMIT $1
         ) SELECT name FROM one WHERE name IS NOT NULL",
    )
    .bind(LABELS_MAX);
    Ok(names.fetch_all(readers).await?)
}

/// The values of a label.
pub(crate) async fn label_values(readers: &SqlitePool, name: &str) -> Result<Vec<String>, SeriesError> {
    let values = sqlx::query_scalar(
        "WITH RECURSIVE one(value) AS (
             SELECT (SELECT value FROM label WHERE name = $1 ORDER BY value LIMIT 1)
             UNION ALL
             SELECT (SELECT label.value FROM label WHERE label.name = $1 AND label.value > one.value
                     ORDER BY label.value LIMIT 1)
             FROM one WHERE one.value IS NOT NULL LIMIT $2
         ) SELECT value FROM one WHERE value IS NOT NULL",
    )
    .bind(if name.is_empty() { NAME_LABEL } else { name })
    .bind(LABELS_MAX);
    Ok(values.fetch_all(readers).await?)
}

/// The points of a series in a time range, reduced while they are read: raw points if they are kept and the range is
/// short, otherwise summaries that are finer than the result.
async fn thinned(
    view: &mut StoreView,
    series: SeriesId,
    times: RangeInclusive<Millis>,
    points_max: usize,
) -> Result<Vec<(Millis, f64)>, SeriesError> {
    let mut thinner = Thinner::new(points_max.max(THIN_MIN));
    let Some(extent) = view.extent() else { return Ok(Vec::new()) };
    let end_ms = (*times.end()).min(*extent.end());
    let start_ms = (*times.start()).max(view.oldest_ms(*extent.start()));
    if start_ms > end_ms {
        return Ok(Vec::new());
    }
    let step_ms = (end_ms - start_ms) / Millis::try_from(points_max.max(1)).unwrap_or(Millis::MAX);
    let short = end_ms - start_ms <= POINTS_RANGE_MS;
    let resolution = if short { Resolution::Raw } else { Resolution::for_step(step_ms) };
    let points_from_ms = if resolution == Resolution::Raw { start_ms.max(*extent.start()) } else { Millis::MAX };
    for (from_ms, to_ms) in windows(start_ms, end_ms.min(points_from_ms.saturating_sub(1)), BUCKETS_RANGE_MS) {
        for bucket in view.buckets(series, from_ms..=to_ms, resolution).await? {
            // Widths of buckets divide those of windows, which may begin anywhere: a bucket may overlap two.
            if bucket.start_ms >= from_ms || from_ms == start_ms {
                outline(&bucket).for_each(|sample| thinner.push(sample));
            }
        }
    }
    for (from_ms, to_ms) in windows(points_from_ms, end_ms, DAY_MS) {
        for sample in view.points(series, from_ms..=to_ms).await? {
            thinner.push(sample);
        }
    }
    Ok(thinner.finish())
}

/// Splits a range into windows.
pub(crate) fn windows(start_ms: Millis, end_ms: Millis, width_ms: Millis) -> impl Iterator<Item = (Millis, Millis)> {
    let mut next = Some(start_ms).filter(|start_ms| *start_ms <= end_ms);
    std::iter::from_fn(move || {
        let from_ms = next?;
        let to_ms = from_ms.saturating_add(width_ms - 1).min(end_ms);
        next = to_ms.checked_add(1).filter(|next| *next <= end_ms);
        Some((from_ms, to_ms))
    })
}

/// A summary as a chart shows it: its first and last value, and between them the smallest and largest if they differ. A
/// counter stays a counter.
fn outline(bucket: &ViewBucket) -> impl Iterator<Item = (Millis, f64)> {
    let ViewBucket { start_ms, width_ms, summary } = *bucket;
    let ends = [summary.first, summary.last];
    let inner = |value: f64| (!ends.contains(&value)).then_some(value);
    [
        Some((start_ms, summary.first)),
        inner(summary.min).map(|value| (start_ms + width_ms / 3, value)),
        inner(summary.max).map(|value| (start_ms + width_ms / 3 * 2, value)),
        (summary.count > 1).then_some((start_ms + width_ms - 1, summary.last)),
    ]
    .into_iter()
    .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_promql::StretchSummary;

    #[test]
    fn windows_cover_a_range() {
        let of = |start, end, width| windows(start, end, width).collect::<Vec<_>>();
        assert_eq!(of(5, 4, 10), []);
        assert_eq!(of(5, 5, 10), [(5, 5)]);
        assert_eq!(of(0, 25, 10), [(0, 9), (10, 19), (20, 25)]);
        assert_eq!(
            of(Millis::MAX - 1, Millis::MAX, 1),
            [(Millis::MAX - 1, Millis::MAX - 1), (Millis::MAX, Millis::MAX)]
        );
    }

    /// Counts rows instead of measuring time, which would depend on the machine.
    #[tokio::test]
    async fn a_year_costs_few_rows() {
        const BASE_MS: Millis = 1_704_067_200_000;
        let folder = tempfile::tempdir().unwrap();
        let store = crate::SeriesStore::open(&folder.path().join("series.db")).await.unwrap();
        let end_ms = BASE_MS + 400 * DAY_MS;
        let samples = (BASE_MS..end_ms).step_by(300_000).map(|at_ms| (at_ms, (at_ms / 300_000 % 97) as f64)).collect();
        let column = crate::SeriesColumn { name: "m".to_owned(), labels: Vec::new(), samples };
        store.append_columns(vec![column]).await.unwrap();
        store.settle().await;
        let series = store.select(SeriesSelector::parse("m").unwrap(), 1).await.unwrap()[0].id;
        for days in [365, 90, 30, 7, 1] {
            let mut view = StoreView::new(&store.readers).await.unwrap();
            let points = thinned(&mut view, series, end_ms - days * DAY_MS..=end_ms, 360).await.unwrap();
            assert!(points.len() > 150, "{days} days: {}", points.len());
            // Instead of 105,120 points: blobs of 16 days, and the hours of a day that is not rolled up yet.
            assert!(view.rows <= 100, "{days} days: {} rows", view.rows);
        }
    }

    #[test]
    fn a_summary_keeps_its_outline() {
        let of = |values: &[f64]| {
            let summary = StretchSummary::over(values.iter().copied()).unwrap();
            outline(&ViewBucket { start_ms: 0, width_ms: 300, summary }).collect::<Vec<_>>()
        };
        assert_eq!(of(&[1.0]), [(0, 1.0)]);
        assert_eq!(of(&[1.0, 2.0, 3.0]), [(0, 1.0), (299, 3.0)], "a counter stays one");
        assert_eq!(of(&[2.0, 9.0, 1.0, 3.0]), [(0, 2.0), (100, 1.0), (200, 9.0), (299, 3.0)]);
    }
}

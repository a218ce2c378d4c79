//! The store as a source of the query language. A query runs on a blocking thread.
//!
//! The store has points for some weeks, and summaries of five minutes and of an hour for longer.
//! [`resolution`] chooses which of them answers: points where steps and windows are short and there are points, else summaries, coarse
//! enough that a year costs no more than a day. `muster_promql`'s module `over_time_summaries` states the error bounds.

use std::{
    cell::{OnceCell, RefCell},
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    time::Instant,
};

use muster_promql::{Error, Hints, Labels, Matchers, Millis, NAME, SampleStretch, Source, SourceError, TimedValue};
use muster_series::{
    ReadAhead, Resolution, SelectorError, SeriesError, SeriesId, SeriesSelector, SeriesStore, ViewBucket,
};
use muster_topics::diagnostic::Diagnostic;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::{runtime::Handle, time::timeout_at};

/// A summary covers at most this fraction of a step and of a window, so a result differs by a quarter of either at
/// most.
const OF_STEP: Millis = 4;
/// The same for a window of an instant query. That costs little however long it is, so it is more exact.
const OF_WINDOW: Millis = 100;

/// Returns the resolution for a selector, if both points and summaries exist.
fn resolution(hints: &Hints) -> Resolution {
    let scale_ms = match (hints.step_ms, hints.window_ms) {
        _ if !hints.summaries => 0,
        (Some(step_ms), Some(window_ms)) => step_ms.min(window_ms) / OF_STEP,
        (Some(step_ms), None) => step_ms / OF_STEP,
        (None, Some(window_ms)) => window_ms / OF_WINDOW,
        (None, None) => 0,
    };
    Resolution::for_step(scale_ms)
}

/// The store, for a query with a deadline.
pub(crate) struct StoreSource {
    store: SeriesStore,
    runtime: Handle,
    deadline: Instant,
    /// The series that were selected: the query refers to each by its index.
    chosen: RefCell<Vec<SeriesId>>,
    /// What was read of the next of these.
    ahead: RefCell<ReadAhead>,
    /// Since when there are points, once read.
    points_from: OnceCell<Option<Millis>>,
    warnings: RefCell<BTreeSet<String>>,
}

impl StoreSource {
    pub(crate) fn new(store: SeriesStore, deadline: Instant) -> Self {
        Self {
            store,
            runtime: Handle::current(),
            deadline,
            chosen: RefCell::default(),
            ahead: RefCell::default(),
            points_from: OnceCell::new(),
            warnings: RefCell::default(),
        }
    }

    /// Returns the warnings of a result.
    pub(super) fn warnings(self) -> Vec<String> {
        self.warnings.into_inner().into_iter().collect()
    }

    fn wait<T>(&self, work: impl Future<Output = Result<T, SeriesError>>) -> Result<T, SourceError> {
        match self.runtime.block_on(async { timeout_at(self.deadline.into(), work).await }) {
            Ok(Err(error @ SeriesError::TooMany { .. })) => {
                let Diagnostic { cause, hint, .. } = Diagnostic::of(&error);
                Err(Error::Limit { problem: cause, hint }.into())
            }
            Ok(Err(SeriesError::Deadline(_))) | Err(_) => Err(Error::Enough.into()),
            Ok(done) => Ok(done?),
        }
    }

    fn points_from(&self) -> Result<Option<Millis>, SourceError> {
        if let Some(known) = self.points_from.get() {
            return Ok(*known);
        }
        let found = self.wait(self.store.points_from())?;
        Ok(*self.points_from.get_or_init(|| found))
    }

    fn id(&self, series: u64) -> Option<SeriesId> {
        self.chosen.borrow().get(usize::try_from(series).ok()?).copied()
    }
}

/// Converts matchers to the store's selector.
///
/// # Errors
/// If they exceed the store's limits.
pub(super) fn selector(matchers: &Matchers) -> Result<SeriesSelector, SelectorError> {
    SeriesSelector::of(matchers.iter())
}

impl Source for StoreSource {
    fn select(
        &self,
        matchers: &Matchers,
        _: RangeInclusive<Millis>,
        series_max: usize,
    ) -> Result<Vec<(Labels, u64)>, SourceError> {
        let selector = selector(matchers).map_err(|error| Error::limit(error.to_string()))?;
        let found = self.wait(self.store.select(selector, series_max))?;
        let labels = |name: &str, labels: &BTreeMap<String, String>| {
            labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).chain([(NAME, name)]).collect()
        };
        let mut chosen = self.chosen.borrow_mut();
        let first = chosen.len();
        chosen.extend(found.iter().map(|one| one.id));
        Ok(found.iter().zip(first as u64..).map(|(one, place)| (labels(&one.name, &one.labels), place)).collect())
    }

    fn announce(&self, series: &[u64]) {
        let order = series.iter().filter_map(|series| self.id(*series)).collect();
        self.ahead.replace(ReadAhead::new(order));
    }

    fn read(
        &self,
        series: u64,
        times: RangeInclusive<Millis>,
        samples_max: usize,
        into: &mut Vec<TimedValue>,
    ) -> Result<(), SourceError> {
        let Some(series) = self.id(series) else { return Ok(()) };
        let mut ahead = self.ahead.borrow_mut();
        let points = self.wait(ahead.points(&self.store, series, (*times.start(), *times.end())))?;
        into.extend(points.into_iter().take(samples_max.saturating_add(1)));
        Ok(())
    }

    fn samples_from(&self, hints: &Hints, times: &RangeInclusive<Millis>) -> Result<Millis, SourceError> {
        if resolution(hints) != Resolution::Raw {
            return Ok(Millis::MAX);
        }
        let Some(from_ms) = self.points_from()?.filter(|from_ms| times.start() < from_ms) else {
            return Ok(Millis::MIN);
        };
        if hints.summaries {
            return Ok(from_ms);
        }
        let Hints { function, .. } = hints;
        let since = format!("{function} needs single samples, which are kept since {}", date(from_ms));
        let hint = "rate, increase, delta and avg|min|max|sum|count|last_over_time work for earlier times too";
        if *times.end() < from_ms {
            let problem = format!("{since}; the whole range is older");
            return Err(Error::execution(problem).with_hint(hint).into());
        }
        let warning = Diagnostic::new(format!("{since}; older values are left out")).with_hint(hint);
        self.warnings.borrow_mut().insert(format!("{warning:#}"));
        Ok(Millis::MIN)
    }

    fn stretches(
        &self,
        series: u64,
        times: RangeInclusive<Millis>,
        hints: &Hints,
        stretches_max: usize,
        into: &mut Vec<SampleStretch>,
    ) -> Result<(), SourceError> {
        let Some(series) = self.id(series) else { return Ok(()) };
        let mut ahead = self.ahead.borrow_mut();
        let buckets = ahead.buckets(&self.store, series, (*times.start(), *times.end()), resolution(hints));
        let buckets = self.wait(buckets)?.into_iter();
        into.extend(buckets.map(stretch).take(stretches_max.saturating_add(1)));
        Ok(())
    }
}

/// Formats a time as a date.
fn date(at_ms: Millis) -> String {
    let date = OffsetDateTime::from_unix_timestamp(at_ms.div_euclid(1000)).ok();
    date.and_then(|date| date.format(&Rfc3339).ok()).unwrap_or_else(|| format!("{at_ms} ms"))
}

fn stretch(ViewBucket { start_ms, width_ms, summary }: ViewBucket) -> SampleStretch {
    SampleStretch { start_ms, width_ms, summary }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use muster_promql::{ParsedQuery, QueryLimits, QueryRange};
    use muster_series::SeriesColumn;

    use super::*;

    const HOUR_MS: Millis = 3_600_000;
    const DAY_MS: Millis = 24 * HOUR_MS;
    /// 2024-01-01.
    const BASE_MS: Millis = 1_704_067_200_000;
    const END_MS: Millis = BASE_MS + 400 * DAY_MS;

    #[test]
    fn long_steps_and_windows_are_answered_by_summaries() {
        use Resolution::{FiveMinutes, Hour, Raw};
        let minutes = |minutes: Millis| minutes * 60_000;
        for (step, window, wanted) in [
            (None, None, Raw),
            (Some(1), None, Raw),
            (Some(19), None, Raw),
            (Some(20), None, FiveMinutes),
            (Some(240), None, Hour),
            (Some(600), Some(5), Raw),
            (Some(600), Some(20), FiveMinutes),
            (Some(10), Some(600), Raw),
            (Some(240), Some(240), Hour),
            (None, Some(60), Raw),
            (None, Some(24 * 60), FiveMinutes),
            (None, Some(30 * 24 * 60), Hour),
        ] {
            let hints = Hints {
                step_ms: step.map(minutes),
                window_ms: window.map(minutes),
                function: "avg_over_time",
                summaries: true,
            };
            assert_eq!(resolution(&hints), wanted, "{step:?} {window:?}");
            assert_eq!(resolution(&Hints { summaries: false, ..hints }), Raw);
        }
    }

    /// A store with points every five minutes for more than a year: a value with a daily cycle, and a counter that
    /// grows by 300 each time.
    async fn year() -> (tempfile::TempDir, SeriesStore) {
        let folder = tempfile::tempdir().unwrap();
        let store = SeriesStore::open(&folder.path().join("series.db")).await.unwrap();
        let column = |name: &str, value: &dyn Fn(Millis) -> f64| SeriesColumn {
            name: name.to_owned(),
            labels: vec![("host".to_owned(), "a".to_owned())],
            samples: (BASE_MS..END_MS).step_by(300_000).map(|at_ms| (at_ms, value(at_ms - BASE_MS))).collect(),
        };
        let columns = vec![
            column("gauge", &|at_ms| (at_ms / 300_000 % 288) as f64),
            column("counter_total", &|at_ms| at_ms as f64 / 1000.0),
        ];
        store.append_columns(columns).await.unwrap();
        store.settle().await;
        (folder, store)
    }

    type FetchedSeries = Result<(Vec<(Labels, Vec<TimedValue>)>, Vec<String>), Error>;

    async fn ask(store: &SeriesStore, query: &str, range: QueryRange, samples_max: usize) -> FetchedSeries {
        let source = StoreSource::new(store.clone(), Instant::now() + Duration::from_secs(60));
        let query = query.to_owned();
        tokio::task::spawn_blocking(move || {
            let limits = QueryLimits { samples_max, ..QueryLimits::default() };
            let answer = ParsedQuery::parse(&query)?.range(&source, range, &limits)?;
            Ok((answer, source.warnings()))
        })
        .await
        .unwrap()
    }

    #[tokio::test]
    async fn a_year_is_answered_from_few_summaries() {
        let (_folder, store) = year().await;
        let range = QueryRange { start_ms: END_MS - 365 * DAY_MS, end_ms: END_MS, step_ms: 8 * HOUR_MS };
        // Hourly summaries for a year, and the first window; there were 105,120 points.
        let most = 367 * 24;
        for (query, wanted) in [
            ("avg_over_time(gauge[1d])", 143.5),
            ("max_over_time(gauge[1d])", 287.0),
            ("min_over_time(gauge[1d])", 0.0),
            ("count_over_time(gauge[1d])", 288.0),
            ("sum_over_time(gauge[1d])", 287.0 * 144.0),
            ("rate(counter_total[1d])", 1.0),
            ("increase(counter_total[8h])", 8.0 * 3600.0),
            ("sum by (host) (rate(counter_total[8h]))", 1.0),
        ] {
            let (answer, warnings) = ask(&store, query, range, most).await.unwrap();
            let [(_, samples)] = answer.as_slice() else { panic!("{query}: {answer:?}") };
            assert_eq!(samples.len(), 365 * 3 + 1, "{query}: no gaps");
            for (at_ms, value) in samples {
                assert!((value - wanted).abs() <= 1e-9 * wanted, "{query} at {at_ms}: {value} instead of {wanted}");
            }
            assert!(warnings.is_empty(), "{warnings:?}");
        }
        let (answer, _) = ask(&store, "gauge", range, most).await.unwrap();
        assert_eq!(answer[0].1.len(), 365 * 3 + 1);
        assert!(answer[0].1.iter().all(|(_, value)| [287.0, 95.0, 191.0].contains(value)), "the last before each step");
    }

    #[tokio::test]
    async fn each_of_many_series_gets_its_own_values() {
        let folder = tempfile::tempdir().unwrap();
        let store = SeriesStore::open(&folder.path().join("series.db")).await.unwrap();
        // Different lengths, so that some have no values where others have.
        let column = |number: i64| SeriesColumn {
            name: "m".to_owned(),
            labels: vec![("host".to_owned(), format!("h{number}"))],
            samples: (0..100 + number).map(|i| (BASE_MS + i * 60_000, (1_000 * number + i) as f64)).collect(),
        };
        store.append_columns((0..40).map(column).collect()).await.unwrap();
        let range = QueryRange { start_ms: BASE_MS, end_ms: BASE_MS + 2 * HOUR_MS, step_ms: 60_000 };
        // The same series twice, in different ranges.
        for (query, added) in [("m", 0), ("m + m offset 1m", -1)] {
            let (answer, _) = ask(&store, query, range, 100_000).await.unwrap();
            assert_eq!(answer.len(), 40, "{query}");
            for (labels, samples) in answer {
                let number: i64 = labels.get("host")[1..].parse().unwrap();
                let (at_ms, value) = samples[50];
                let step = (at_ms - BASE_MS) / 60_000;
                let wanted = if added == 0 { 1_000 * number + step } else { 2 * (1_000 * number + step) + added };
                assert_eq!(value, wanted as f64, "{query} of {labels}");
                assert_eq!(samples.len() as i64, (100 + number + 5).min(121) + added, "{query} of {labels}");
            }
        }
    }

    #[tokio::test]
    async fn old_ranges_use_summaries_or_are_refused() {
        let (_folder, store) = year().await;
        let range = |days: i64, length_ms: Millis, step_ms: Millis| QueryRange {
            start_ms: END_MS - days * DAY_MS,
            end_ms: END_MS - days * DAY_MS + length_ms,
            step_ms,
        };
        // A short step, as for an hour of last month, and of last year.
        for days in [30, 300] {
            let (answer, _) =
                ask(&store, "avg_over_time(gauge[1h])", range(days, HOUR_MS, 60_000), 10_000).await.unwrap();
            assert_eq!(answer[0].1.len(), 61, "{days} days ago");
            let (answer, _) =
                ask(&store, "rate(counter_total[1h])", range(days, HOUR_MS, 60_000), 10_000).await.unwrap();
            assert!(answer[0].1.iter().all(|(_, rate)| (rate - 1.0).abs() < 0.1), "{days}: {answer:?}");
        }
        // Across the time since which there are points.
        let (answer, _) =
            ask(&store, "max_over_time(gauge[1d])", range(20, 20 * DAY_MS, HOUR_MS), 100_000).await.unwrap();
        assert_eq!(answer[0].1.len(), 20 * 24 + 1);
        assert!(answer[0].1.iter().all(|(_, most)| *most == 287.0), "{answer:?}");
        let quantile = "quantile_over_time(0.5, gauge[1d])";
        let error = ask(&store, quantile, range(300, DAY_MS, HOUR_MS), 10_000).await.unwrap_err().to_string();
        assert!(
            error.starts_with("quantile_over_time needs single samples, which are kept since 2025-01-2"),
            "{error}"
        );
        let (answer, warnings) = ask(&store, quantile, range(20, 20 * DAY_MS, HOUR_MS), 100_000).await.unwrap();
        assert!(answer[0].1.len() > 13 * 24 && answer[0].1.len() < 16 * 24, "{}", answer[0].1.len());
        assert!(warnings.len() == 1 && warnings[0].contains("older values are left out"), "{warnings:?}");
    }
}

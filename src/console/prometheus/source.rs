//! The store as the query language sees it. A query runs on a thread that may wait for the store.

use std::{cell::RefCell, collections::BTreeMap, ops::RangeInclusive, time::Instant};

use muster_promql::{Error, Labels, Matchers, Millis, NAME, Sample, Source, SourceError, matcher::Test};
use muster_series::{Operator, Selector, SelectorError, SeriesError, SeriesId, SeriesStore};
use tokio::{runtime::Handle, time::timeout_at};

/// The store, for a query that must be done by a time.
pub(super) struct Stored {
    store: SeriesStore,
    runtime: Handle,
    deadline: Instant,
    /// The series that were chosen: the query knows each by its place in here.
    chosen: RefCell<Vec<SeriesId>>,
}

impl Stored {
    pub(super) fn new(store: SeriesStore, deadline: Instant) -> Self {
        Self { store, runtime: Handle::current(), deadline, chosen: RefCell::default() }
    }

    fn wait<T>(&self, work: impl Future<Output = Result<T, SeriesError>>) -> Result<T, SourceError> {
        match self.runtime.block_on(async { timeout_at(self.deadline.into(), work).await }) {
            Ok(Err(error @ SeriesError::TooMany { .. })) => Err(Error::Limit(error.to_string()).into()),
            Ok(Err(SeriesError::Deadline(_))) | Err(_) => Err(Error::Enough.into()),
            Ok(done) => Ok(done?),
        }
    }
}

/// Matchers as the store has them.
///
/// # Errors
/// If there are more, or longer ones, than the store takes.
pub(super) fn selector(matchers: &Matchers) -> Result<Selector, SelectorError> {
    Selector::of(matchers.iter().map(|matcher| {
        let (operator, value) = match &matcher.test {
            Test::Equal(value) => (Operator::Equal, value.as_str()),
            Test::NotEqual(value) => (Operator::NotEqual, value.as_str()),
            Test::Match(pattern) => (Operator::Match, pattern.text()),
            Test::NotMatch(pattern) => (Operator::NotMatch, pattern.text()),
        };
        (matcher.label.as_str(), operator, value)
    }))
}

impl Source for Stored {
    fn select(
        &self,
        matchers: &Matchers,
        _: RangeInclusive<Millis>,
        series_max: usize,
    ) -> Result<Vec<(Labels, u64)>, SourceError> {
        let selector = selector(matchers).map_err(|error| Error::Limit(error.to_string()))?;
        let found = self.wait(self.store.select(selector, series_max))?;
        let labels = |name: &str, labels: &BTreeMap<String, String>| {
            labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).chain([(NAME, name)]).collect()
        };
        let mut chosen = self.chosen.borrow_mut();
        let first = chosen.len();
        chosen.extend(found.iter().map(|one| one.id));
        Ok(found.iter().zip(first as u64..).map(|(one, place)| (labels(&one.name, &one.labels), place)).collect())
    }

    fn read(
        &self,
        series: u64,
        times: RangeInclusive<Millis>,
        samples_max: usize,
        into: &mut Vec<Sample>,
    ) -> Result<(), SourceError> {
        let place = usize::try_from(series).unwrap_or(usize::MAX);
        let Some(series) = self.chosen.borrow().get(place).copied() else { return Ok(()) };
        let points = self.wait(self.store.points(&[series], (*times.start(), *times.end())))?;
        into.extend(points.into_iter().flatten().take(samples_max.saturating_add(1)));
        Ok(())
    }
}

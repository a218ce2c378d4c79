//! The store as the query language sees it. A query runs on a thread that may wait for the store.

use std::{ops::RangeInclusive, time::Instant};

use muster_promql::{Error, Labels, Matchers, Millis, NAME, Sample, Source, SourceError};
use tokio::{runtime::Handle, time::timeout_at};

use crate::console::series::{SeriesError, SeriesStore};

/// The store, for a query that must be done by a time.
pub(super) struct Stored {
    store: SeriesStore,
    runtime: Handle,
    deadline: Instant,
}

impl Stored {
    pub(super) fn new(store: SeriesStore, deadline: Instant) -> Self {
        Self { store, runtime: Handle::current(), deadline }
    }

    fn wait<T>(&self, work: impl Future<Output = Result<T, SeriesError>>) -> Result<T, SourceError> {
        match self.runtime.block_on(async { timeout_at(self.deadline.into(), work).await }) {
            Ok(done) => Ok(done?),
            Err(_) => Err(Error::Enough.into()),
        }
    }
}

impl Source for Stored {
    fn select(
        &self,
        matchers: &Matchers,
        _: RangeInclusive<Millis>,
        series_max: usize,
    ) -> Result<Vec<(Labels, u64)>, SourceError> {
        let chosen = self.wait(self.store.select(matchers, series_max))?;
        let labels = |name: &str, labels: &std::collections::BTreeMap<String, String>| {
            labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).chain([(NAME, name)]).collect()
        };
        Ok(chosen.into_iter().map(|one| (labels(&one.name, &one.labels), one.id)).collect())
    }

    fn read(
        &self,
        series: u64,
        times: RangeInclusive<Millis>,
        samples_max: usize,
        into: &mut Vec<Sample>,
    ) -> Result<(), SourceError> {
        self.wait(self.store.points(series, times, samples_max, into))
    }
}

//! Figures of the agent itself, for its own metrics.

use std::sync::Arc;

use tokio::sync::watch;

use super::own::QueueLengths;
use crate::{
    link::TrafficMeter,
    store::{Store, metric, outbox},
    unit::{Units, state::UnitStates},
};

/// Where measurements come from, beside the kernel.
#[derive(Clone, Debug)]
pub struct MetricSources {
    /// The host's units.
    pub units: watch::Receiver<UnitStates>,
    /// What keeps them, if that tells of itself.
    pub keeper: Option<Units>,
    /// What went over the link.
    pub meter: Arc<TrafficMeter>,
    /// What waits in the loop.
    pub queues: Arc<QueueLengths>,
}

impl MetricSources {
    /// Those of an agent.
    #[must_use]
    pub fn new(keeper: Units, meter: Arc<TrafficMeter>, queues: Arc<QueueLengths>) -> Self {
        Self { units: keeper.states(), keeper: Some(keeper), meter, queues }
    }
}

/// What the store says of itself; what it does not say is left out, for that it fails is told where it matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StoreFigures {
    pub(super) outbox: Option<u64>,
    pub(super) metrics: Option<u64>,
    pub(super) size_bytes: Option<u64>,
}

impl StoreFigures {
    /// Counts it.
    pub(super) async fn count(store: &Store) -> Self {
        Self {
            outbox: outbox::count(store).await.ok(),
            metrics: metric::count(store).await.ok(),
            size_bytes: metric::store_size_bytes(store).await.ok(),
        }
    }
}

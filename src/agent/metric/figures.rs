//! Figures of the agent itself, for its own metrics.

use muster_session::unit_state::UnitStates;
use std::sync::Arc;

use tokio::sync::watch;

use super::agent_metrics::QueueLengths;
use crate::{link::TrafficMeter, unit::Units};

/// The sources of measurements, beside the kernel.
#[derive(Clone, Debug)]
pub struct MetricSources {
    /// The host's units.
    pub units: watch::Receiver<UnitStates>,
    /// The units' task, for its own metrics.
    pub keeper: Option<Units>,
    /// The link's traffic.
    pub meter: Arc<TrafficMeter>,
    /// The lengths of the loop's queues.
    pub queues: Arc<QueueLengths>,
    /// The host's name, which may change; closed if it does not.
    pub hostname: watch::Receiver<String>,
}

impl MetricSources {
    /// Creates the sources of an agent.
    #[must_use]
    pub fn new(keeper: Units, meter: Arc<TrafficMeter>, queues: Arc<QueueLengths>) -> Self {
        let hostname = watch::channel(String::new()).1;
        Self { units: keeper.states(), keeper: Some(keeper), meter, queues, hostname }
    }
}

//! (being written)

use muster_topics::name::HostId;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{store::Store, unit::UnitStates};

/// Stub.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Stub.
    pub sample: std::time::Duration,
    /// Stub.
    pub publish: std::time::Duration,
    /// Stub.
    pub pack: bool,
    /// Stub.
    pub buffer_max_bytes: u64,
    /// Stub.
    pub buffer_max_age: std::time::Duration,
}

/// Stub.
#[derive(Clone, Debug)]
pub struct Labels {
    /// Stub.
    pub host: HostId,
    /// Stub.
    pub hostname: String,
}

/// Stub.
#[derive(Clone, Debug)]
pub struct MetricsTask {}

impl MetricsTask {
    /// Stub.
    #[must_use]
    pub fn start(
        _store: Store,
        _settings: Settings,
        _labels: Labels,
        _epoch: u64,
        _units: watch::Receiver<UnitStates>,
        _shutdown: CancellationToken,
    ) -> Self {
        Self {}
    }
    /// Stub.
    #[must_use]
    pub fn stored(&self) -> watch::Receiver<u64> {
        watch::channel(0).1
    }
}

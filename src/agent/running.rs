//! The handle of a running agent, which stops it.

use muster_session::unit_state::UnitStates;
use std::{fs::File, time::Duration};

use muster_topics::name::HostId;
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::{
    local::{LoopHandle, LoopQuestion},
    metric::MetricsTask,
    store::Store,
    unit::Units,
};

/// How long the loop may take to end.
pub(super) const STOP: Duration = Duration::from_secs(5);

/// A running agent. Dropping this ends it without an orderly exit.
#[derive(Debug)]
pub struct RunningAgent {
    pub(super) host: HostId,
    pub(super) ready: watch::Receiver<bool>,
    pub(super) must_restart: watch::Receiver<bool>,
    pub(super) stop: CancellationToken,
    pub(super) tasks: CancellationToken,
    pub(super) store: Store,
    pub(super) metrics: MetricsTask,
    pub(super) units: Units,
    pub(super) asker: LoopHandle,
    pub(super) core: JoinHandle<()>,
    pub(super) lock: Option<File>,
}

impl RunningAgent {
    /// The host's id.
    #[must_use]
    pub fn host(&self) -> HostId {
        self.host
    }

    /// Whether it is connected as the only agent of its host, and takes commands: now, and on each change.
    #[must_use]
    pub fn connected(&self) -> watch::Receiver<bool> {
        self.ready.clone()
    }

    /// A counter that grows with each stored batch of measurements.
    #[cfg(test)]
    pub(crate) fn measured(&self) -> watch::Receiver<u64> {
        self.metrics.stored()
    }

    /// The units' states: now, and on each change.
    #[must_use]
    pub fn units(&self) -> watch::Receiver<UnitStates> {
        self.units.states()
    }

    /// Waits until units of earlier runs of the agent have been looked up.
    pub async fn looked_up(&self) {
        self.units.looked_up().await;
    }

    /// Waits until it has to be stopped and started again, because whether its folder can be written has changed.
    pub async fn must_restart(&self) {
        let mut wanted = self.must_restart.clone();
        if wanted.wait_for(|wanted| *wanted).await.is_err() {
            // It is being stopped.
            std::future::pending::<()>().await;
        }
    }

    /// Waits until its loop answers; returns false if that has ended.
    pub async fn answers(&self) -> bool {
        self.asker.ask(LoopQuestion::Standing).await.is_some()
    }

    /// Stops it: publishes a last heartbeat and the presence `stopped`, and ends the connection. Processes of units and
    /// commands continue.
    pub async fn stop(mut self) {
        self.end().await;
    }

    /// As [`Self::stop`], for a handle that is replaced afterwards.
    pub async fn end(&mut self) {
        self.stop.cancel();
        if tokio::time::timeout(STOP, &mut self.core).await.is_err() {
            tracing::warn!(host.id = %self.host, "the agent did not stop in time");
        }
        self.tasks.cancel();
        // Its last samples are stored, for the next run to send.
        self.metrics.stopped().await;
        self.store.close().await;
        // The next agent may have the folder.
        if let Some(lock) = self.lock.take() {
            drop(lock);
        }
    }
}

impl Drop for RunningAgent {
    fn drop(&mut self) {
        self.stop.cancel();
        self.tasks.cancel();
        self.core.abort();
    }
}

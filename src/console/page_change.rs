//! A change that pages show.

use std::time::Duration;

use muster_topics::{
    desired::DeploymentName,
    name::{CommandId, HostId, UnitName},
};
use tokio::{
    sync::broadcast::{Receiver, error::RecvError},
    time::{Instant, timeout_at},
};

use crate::state::Console;

/// How long to wait for more changes: thousands of hosts report at once, and a look reads all of them.
const SETTLE: Duration = Duration::from_millis(500);

/// A change that a page may show.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PageChange {
    /// Of a host: membership, presence, state.
    Host(HostId),
    /// Of a unit of a host.
    Unit(HostId, UnitName),
    /// Of a command: a new one, a new status, or more output.
    Command(CommandId),
    /// Of a deployment: a new version, or its removal.
    Deployment(DeploymentName),
    /// Of a rollout: its phase, its waves, or its hosts.
    Rollout(DeploymentName),
    /// New measurements of a host.
    Metrics(HostId),
    /// Tasks of a host have ended.
    Tasks(HostId),
    /// Of alerts of a host, or of silences.
    Alert(Option<HostId>),
}

/// Waits until there is a change that `concerns` the one who follows, and a moment for others of the same, or until it is time
/// to look without one. `None` once the console stops.
pub(crate) async fn change_or_time(
    console: &Console,
    news: &mut Receiver<PageChange>,
    look: Duration,
    concerns: impl Fn(&PageChange) -> bool,
) -> Option<()> {
    let mut until = Instant::now() + look;
    let mut is_settling = false;
    loop {
        let heard = tokio::select! {
            () = console.stopping() => return None,
            heard = timeout_at(until, news.recv()) => heard,
        };
        let is_news = match heard {
            Ok(Ok(change)) => concerns(&change),
            Ok(Err(RecvError::Lagged(_))) => true,
            Ok(Err(RecvError::Closed)) => return None,
            Err(_) => return Some(()),
        };
        if is_news && !is_settling {
            is_settling = true;
            until = until.min(Instant::now() + SETTLE);
        }
    }
}

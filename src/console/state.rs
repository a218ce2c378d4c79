//! State that all parts of the console share: configuration, stores, queues, and what is kept in memory.

use muster_topics::diagnostic::Diagnostic;
use std::{
    collections::HashSet,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, atomic::AtomicU64},
};
use tokio::sync::watch;

use axum::http::StatusCode;
use muster_series::SeriesStore;
use muster_topics::name::{CommandId, HostId, Name};
use tokio::sync::{Notify, broadcast, mpsc};
use tokio_util::sync::CancellationToken;

use super::{
    authority::{Authority, AuthorityKeys},
    config::Config,
    error::Error,
    link_handle::LinkHandle,
    page_change::PageChange,
    store::{Store, host},
};

/// A PEM document that may change.
pub type SharedPem = watch::Receiver<Arc<str>>;

/// The running console. Clones share it.
#[derive(Clone, Debug)]
pub struct Console {
    pub(super) shared: Arc<ConsoleState>,
}

/// The state that all parts of the console share. A function that needs one of its parts takes that part.
#[derive(Debug)]
pub(super) struct ConsoleState {
    pub(super) settings: Settings,
    pub(super) authority: Authority,
    pub(super) store: Store,
    pub(super) measurements: Measurements,
    pub(super) content: ContentFolder,
    /// The keys that secrets are encrypted with.
    pub(super) secret_keys: RwLock<super::secret::Keyring>,
    pub(super) hosts: HostMessages,
    pub(super) commands: CommandQueue,
    /// The time by which something ends, or is removed, for good.
    pub(super) time: muster_base::certain_clock::CertainClock,
    pub(super) revocation: Revocation,
    /// With which certificates and roots the console serves and connects.
    pub(super) tls: super::start::TlsConfigs,
    pub(super) backups: super::backup::BackupState,
    pub(super) notices: super::notice::Notices,
    pub(super) pages: PageState,
    pub(super) shutdown: CancellationToken,
}

/// How the console is configured and reached.
#[derive(Debug)]
pub(super) struct Settings {
    /// The configuration at the start.
    pub(super) started_with: Config,
    /// The configuration as last read, for settings that can change while the console runs.
    pub(super) current: RwLock<Arc<Config>>,
    pub(super) started_by: StartedBy,
    pub(super) urls: Urls,
}

/// What hosts have measured, and where it goes.
#[derive(Debug)]
pub(super) struct Measurements {
    /// The console's own store.
    pub(super) series: SeriesStore,
    /// Stores of others, which get a copy.
    pub(super) external: super::external::ExternalStores,
    /// The number of values that hosts have sent since the start.
    pub(super) received: AtomicU64,
    /// The newest values of each host.
    pub(super) latest: super::latest_measurements::LatestMeasurements,
}

/// Where artifacts lie, and which content is damaged.
#[derive(Debug)]
pub(super) struct ContentFolder {
    pub(super) folder: PathBuf,
    /// Held while content is labelled or removed, secrets are set or removed, and both are ordered.
    pub(super) lock: tokio::sync::Mutex<()>,
    /// What was found to be missing, or not what was stored.
    pub(super) damaged: super::content::DamagedContent,
}

/// What hosts are told, and how.
#[derive(Debug)]
pub(super) struct HostMessages {
    pub(super) link: LinkHandle,
    pub(super) owed_acks: super::ingest::owed_acks::OwedAcks,
    /// The alert rules that hosts should have.
    pub(super) rules: super::owed_documents::DocumentSync,
    pub(super) labels: super::confirmed_labels::Labels,
    /// The keys that hosts should verify signatures with.
    pub(super) keys: super::owed_documents::DocumentSync,
    /// Held while keys for signatures are replaced.
    pub(super) rotating: tokio::sync::Mutex<()>,
    /// What is desired of them.
    pub(super) desired: super::desired::DesiredState,
    /// How it reaches them.
    pub(super) rollouts: super::rollout::Rollouts,
    /// What documents would change of them.
    pub(super) plans: super::host_plan::Plans,
    /// Where hosts find the fleet.
    pub(super) addresses: super::address::FleetAddresses,
    /// Held while labels of hosts are changed.
    pub(super) labelling: tokio::sync::Mutex<()>,
    pub(super) signing_time: super::signing_time::SigningTime,
    pub(super) clocks: super::host_clocks::HostClocks,
    /// What was said of what they have of their shares.
    pub(super) shares: super::host_share::HostShares,
}

/// Commands on their way.
#[derive(Debug)]
pub(super) struct CommandQueue {
    pub(super) dispatch: mpsc::Sender<super::dispatch::event::DispatchEvent>,
    /// Open commands that were not sent to any host, according to the store.
    pub(super) held_back: Mutex<HashSet<CommandId>>,
}

/// Who is not a member any more, and who has been told.
#[derive(Debug)]
pub(super) struct Revocation {
    /// Notified after a revocation: a new list is to be made.
    pub(super) requested: Notify,
    pub(super) list: SharedPem,
    /// The serial numbers that `revocation_command` has succeeded with.
    pub(super) told_broker: Mutex<HashSet<String>>,
}

/// What open pages follow.
#[derive(Debug)]
pub(super) struct PageState {
    pub(super) changes: broadcast::Sender<PageChange>,
    pub(super) tallies: super::web::tallies::Tallies,
}

impl ConsoleState {
    /// Locks the open commands that were not sent to any host.
    pub(super) fn held_back(&self) -> MutexGuard<'_, HashSet<CommandId>> {
        // No panic leaves it inconsistent.
        self.commands.held_back.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The configuration as last read.
    pub(super) fn current(&self) -> Arc<Config> {
        Arc::clone(&self.settings.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What started the console: it decides which hints people get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartedBy {
    /// `muster up`.
    Up,
    /// `muster console`.
    Console,
}

impl StartedBy {
    /// Returns a hint on how other machines can reach the listener for hosts.
    pub(super) fn listen_hint(self) -> &'static str {
        match self {
            Self::Up => {
                "stop `muster up` and start it with `--listen ADDRESS`, an address of this machine that the other one reaches; \
                 then make a new token"
            }
            Self::Console => {
                "set `hosts_listen` and, if the broker's address is this machine's alone, `broker_public_urls` in the console's \
                 configuration, start the console again, and make a new token"
            }
        }
    }
}

/// The URLs of the installation's parts.
#[derive(Clone, Debug)]
pub(super) struct Urls {
    pub(super) web: String,
    pub(super) hosts: String,
    pub(super) broker: String,
}

impl Console {
    /// Subscribes to changes.
    #[must_use]
    pub fn changes(&self) -> broadcast::Receiver<PageChange> {
        self.shared.pages.changes.subscribe()
    }

    /// The URL of the pages.
    #[must_use]
    pub fn web_url(&self) -> &str {
        &self.shared.settings.urls.web
    }

    /// Follows the authority's keys, with its root certificates: a broker in the same process uses those.
    #[must_use]
    pub fn follow_roots(&self) -> watch::Receiver<Arc<AuthorityKeys>> {
        self.shared.authority.follow()
    }

    /// Waits until the console stops: endless streams should end with it.
    pub async fn stopping(&self) {
        self.shared.shutdown.cancelled().await;
    }
}

/// Whether a URL is of loopback.
pub(super) fn is_loopback(url: &str) -> bool {
    let url = reqwest::Url::parse(url).ok();
    let host = url.as_ref().and_then(reqwest::Url::host_str).map(|host| host.trim_matches(['[', ']']));
    host.is_some_and(|host| host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback()))
}

impl ConsoleState {
    /// Returns why a host on another machine could not join now.
    pub(super) fn join_warning(&self) -> Option<Diagnostic> {
        let Urls { hosts, broker, .. } = &self.settings.urls;
        let (what, url) = match (is_loopback(hosts), is_loopback(broker)) {
            (true, _) => ("the console", hosts),
            (false, true) => ("the broker", broker),
            (false, false) => return None,
        };
        let hint = self.settings.started_by.listen_hint();
        let cause = format!("this token has the address {url} of {what}, which no other machine can reach");
        Some(Diagnostic::new(cause).with_hint(hint))
    }

    /// Notifies all parts that a host is not a member any more, and that these commands are over for it.
    pub(super) async fn left(&self, host: HostId, commands: &[CommandId]) {
        self.revocation.requested.notify_one();
        self.measurements.latest.remove(host);
        let _ = self.commands.dispatch.send(super::dispatch::event::DispatchEvent::Left(host)).await;
        commands.iter().for_each(|command| self.changed(PageChange::Command(*command)));
        self.changed(PageChange::Host(host));
        self.changed(PageChange::Alert(Some(host)));
    }

    /// Whether the broker is known to reject revoked certificates, if there are any.
    pub(super) async fn revocations_are_in_force(&self) -> Result<bool, super::store::StoreError> {
        // The broker of `muster up` is in this process, and follows the list at once.
        if self.settings.started_by == StartedBy::Up || !host::may_listen(self.store.read()).await? {
            return Ok(true);
        }
        let revoked = super::store::issued::revoked(self.store.read(), self.time.now()).await?;
        let told = self.revocation.told_broker.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(revoked.iter().all(|one| told.contains(&one.serial)))
    }

    /// Notifies pages of a change. There may be no subscriber, which is fine.
    pub(super) fn changed(&self, change: PageChange) {
        self.pages.tallies.changed(&change);
        let _ = self.pages.changes.send(change);
    }

    /// Checks that an operator exists. There is one role so far: every operator may do everything.
    pub(super) async fn check_operator(&self, operator: &Name) -> Result<(), Error> {
        if super::store::operator::exists(self.store.read(), operator).await? {
            return Ok(());
        }
        Err(Error::new(StatusCode::FORBIDDEN, "unknown_operator", format!("there is no operator {operator}")))
    }
}

#[cfg(test)]
mod tests {
    use super::is_loopback;

    #[test]
    fn loopback_urls_are_recognised() {
        for own in ["https://127.0.0.1:7443", "mqtts://127.1.2.3:8883", "https://[::1]:7443", "mqtts://localhost:8883"]
        {
            assert!(is_loopback(own), "{own}");
        }
        for other in ["https://192.0.2.5:7443", "mqtts://[2001:db8::7]:8883", "https://fleet.example", "nonsense"] {
            assert!(!is_loopback(other), "{other}");
        }
    }
}

//! Runs simulated hosts: connects them one after another, has them leave and return if configured, and say goodbye
//! at the end.

use std::{
    sync::{Arc, PoisonError, atomic::Ordering},
    time::Duration,
};

use muster_agent::{config::Config, join::MemberIdentity, link::LinkTask, store::journal::KEPT_AFTER_EXPIRY_MS};
use muster_base::chance;
use muster_rules::{desired::head::KnownDocument, heartbeat::HeartbeatSchedule, presence, time::KnownTime};
use muster_session::{identity::ClientIdentity, interface::SessionParts, machine::Session};
use muster_topics::{
    Millis, desired::DesiredReport, heartbeat::HostState, join::Membership, numbered::NumberedKind,
    presence::Capability,
};
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    fleet_keys::FleetKeys,
    host::{Behaviour, HostParts, KeptDocument, LifeEnd, SimulatedHost},
    hostname::hostname,
    measure::HostMetrics,
    store::{HostLife, InterruptedCommand, LeftMessages, Outbox, SimulatedHostRow},
    tally::FleetCounters,
    writer::JournalWriter,
};

/// Longest time that a host that has left stays away.
const AWAY_MAX: Duration = Duration::from_secs(30);

/// Longest time for the goodbyes of all hosts together.
const FAREWELL: Duration = Duration::from_secs(20);

/// What simulated hosts can do: they pretend units of all kinds.
const CAPABILITIES: [Capability; 8] = [
    Capability::Exec,
    Capability::Yuno,
    Capability::Container,
    Capability::Packages,
    Capability::Files,
    Capability::Podman,
    Capability::Lxc,
    Capability::FreshTime,
];

/// When hosts connect and leave.
#[derive(Clone, Copy, Debug)]
pub(super) struct FleetPlan {
    /// The time over which the first connections are spread.
    pub(super) ramp: Duration,
    /// The share of hosts that leave each minute, in `0..=1`.
    pub(super) churn: f64,
}

/// What all hosts share.
pub(super) struct FleetContext {
    pub(super) membership: Membership,
    pub(super) keys: Arc<FleetKeys>,
    pub(super) journal: JournalWriter,
    pub(super) manner: Arc<Behaviour>,
    pub(super) tally: Arc<FleetCounters>,
    pub(super) course: FleetPlan,
}

/// A running fleet.
pub(super) struct SimulatedFleet {
    stop: CancellationToken,
    hosts: JoinSet<()>,
}

impl SimulatedFleet {
    /// Starts all hosts, one after another. `left` is what an earlier run has left.
    pub(super) fn start(common: FleetContext, rows: Vec<SimulatedHostRow>, mut left: LeftMessages) -> Self {
        let (common, stop) = (Arc::new(common), CancellationToken::new());
        let mut hosts = JoinSet::new();
        let count = u32::try_from(rows.len()).unwrap_or(u32::MAX).max(1);
        for (index, row) in (0u32..).zip(rows) {
            let begin = common.course.ramp * index / count;
            let unfinished = left.unfinished.remove(&row.n).unwrap_or_default();
            let outbox = left.outboxes.remove(&row.n).unwrap_or_default();
            let keeper = HostRunner {
                identity: Arc::new(row.identity(&common.membership)),
                common: Arc::clone(&common),
                row,
                outbox,
                document: KeptDocument::default(),
                signed_ms: left.signed_ms,
                stop: stop.clone(),
            };
            hosts.spawn(keeper.keep(begin, unfinished));
        }
        Self { stop, hosts }
    }

    /// Ends it: every host says goodbye.
    pub(super) async fn stop(mut self) {
        self.stop.cancel();
        let all = async { while self.hosts.join_next().await.is_some() {} };
        if tokio::time::timeout(FAREWELL, all).await.is_err() {
            tracing::warn!("some hosts could not say goodbye in time; their last wills will");
        }
    }
}

/// One host through all its lives.
struct HostRunner {
    common: Arc<FleetContext>,
    row: SimulatedHostRow,
    identity: Arc<MemberIdentity>,
    outbox: Outbox,
    document: KeptDocument,
    signed_ms: Millis,
    stop: CancellationToken,
}

impl HostRunner {
    async fn keep(self, begin: Duration, mut unfinished: Vec<InterruptedCommand>) {
        let mut life = self.row.life.clone();
        if self.sleep(begin).await {
            return;
        }
        loop {
            unfinished = self.live(&life, unfinished).await;
            if self.stop.is_cancelled() {
                return;
            }
            self.common.tally.left.fetch_add(1, Ordering::Relaxed);
            if self.sleep(AWAY_MAX.mul_f64(chance::random())).await {
                return;
            }
            life = life.next();
            if self.common.journal.live(self.row.n, life.clone()).await.is_none() {
                return;
            }
        }
    }

    /// Sleeps. Returns `true` on shutdown.
    async fn sleep(&self, time: Duration) -> bool {
        tokio::select! {
            () = self.stop.cancelled() => true,
            () = tokio::time::sleep(time) => false,
        }
    }

    async fn live(&self, life: &HostLife, unfinished: Vec<InterruptedCommand>) -> Vec<InterruptedCommand> {
        // The defaults of agents.
        let config = Config::default();
        let mut instances = life.instances.iter().copied();
        let me = ClientIdentity {
            capabilities: CAPABILITIES.to_vec(),
            host: self.row.id,
            instance: instances.next().unwrap_or_default(),
            epoch: life.epoch,
            keep_alive_s: config.keep_alive_s(),
        };
        let shutdown = CancellationToken::new();
        // However this function ends, the connection ends.
        let _guard = shutdown.clone().drop_guard();
        let (_identity, identity) = watch::channel(Arc::clone(&self.identity));
        let meter = Arc::clone(&self.common.tally.meter);
        let (groups, groups_watch) = watch::channel(self.common.manner.state.labels.keys().cloned().collect());
        let link = LinkTask::start_metered(me.clone(), groups_watch, identity, meter, Arc::default(), shutdown);
        let (series, name) = (self.common.manner.series, hostname(self.row.n));
        let measures = (series > 0).then(|| HostMetrics::new(series, self.row.id, &name, life.epoch));
        let state = self.state();
        let said = self.document.lock().unwrap_or_else(PoisonError::into_inner).said.clone();
        let session = Session::new(
            SessionParts {
                me,
                former: instances.map(|instance| presence::StoreLife { instance, is_newcomer: false }).collect(),
                time: KnownTime::new(self.signed_ms).with_way_back(),
                created_ms: self.row.created_ms,
                lost_ms: None,
                // Former instances are known without it.
                last_epoch: life.epoch,
                lives: vec![life.epoch],
                console_epoch: 0,
                kept_ms: KEPT_AFTER_EXPIRY_MS,
                policy: self.common.manner.policy.clone(),
                user: self.common.manner.user.clone(),
                realms: self.common.manner.realms.clone(),
                beats: HeartbeatSchedule::new(life.epoch, config.heartbeat_periods(), state.clone()),
                backlog_gap_ms: config.metrics.backlog_gap_ms(),
                numbers: state.numbers.clone(),
                document: known(&state.desired),
                admissions: said,
            },
            chance::random,
        );
        let host = SimulatedHost::new(HostParts {
            n: self.row.n,
            session,
            identity: Arc::clone(&self.identity),
            keys: Arc::clone(&self.common.keys),
            outbox: self.outbox.clone(),
            journal: self.common.journal.clone(),
            manner: Arc::clone(&self.common.manner),
            tally: Arc::clone(&self.common.tally),
            measures,
            state,
            document: Arc::clone(&self.document),
            groups,
        });
        host.run(link, unfinished, self.leave()).await
    }

    /// When and how this life ends.
    async fn leave(&self) -> LifeEnd {
        let time = time_of_life(self.common.course.churn, chance::random());
        tokio::select! {
            () = self.stop.cancelled() => LifeEnd::InOrder,
            () = tokio::time::sleep(time) => if chance::random() < 0.5 { LifeEnd::InOrder } else { LifeEnd::Broken },
        }
    }

    /// The state that it reports: the common one with its own name.
    fn state(&self) -> HostState {
        let command_keys = self.common.keys.known_by(&self.identity);
        let desired = self.document.lock().unwrap_or_else(PoisonError::into_inner).report.clone();
        // As after a renewal: the keys of all have one number.
        let number = self.common.keys.membership().numbers.get(&NumberedKind::CommandKeys).copied();
        let numbers = number.map(|number| (NumberedKind::CommandKeys, number)).into_iter().collect();
        HostState { hostname: hostname(self.row.n), command_keys, numbers, desired, ..self.common.manner.state.clone() }
    }
}

/// What a session knows of a document that was reported.
fn known(report: &DesiredReport) -> KnownDocument {
    // A document that was refused is judged again in the next life.
    KnownDocument { mark: report.mark, digest: report.digest.clone(), refused: None }
}

/// How long a host stays if a share of all hosts leaves each minute: times are distributed as between independent
/// events.
fn time_of_life(churn: f64, random: f64) -> Duration {
    /// Longer than any simulation.
    const EVER: Duration = Duration::from_secs(366 * 86_400);
    let minutes = -(1.0 - random.clamp(0.0, 1.0)).max(f64::MIN_POSITIVE).ln() / churn;
    Duration::try_from_secs_f64(minutes * 60.0).map_or(EVER, |time| time.min(EVER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_that_leaves_in_a_minute_is_as_wanted() {
        let count = 10_000;
        let left = (0..count)
            .filter(|index| time_of_life(0.1, (f64::from(*index) + 0.5) / f64::from(count)) < Duration::from_secs(60))
            .count();
        // 1 - 1/e^0.1 of them, because each can leave only once.
        assert!((900..1_000).contains(&left), "{left}");
    }

    #[test]
    fn without_churn_nobody_leaves() {
        for random in [0.0, 0.5, 1.0] {
            assert!(time_of_life(0.0, random) >= Duration::from_secs(86_400), "{random}");
        }
        assert!(time_of_life(1.0, 1.0) > Duration::ZERO);
    }
}

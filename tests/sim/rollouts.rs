//! Rollouts: hosts that ask before they change, and a console that answers.
//!
//! The console's half is the product's rules ([`muster_rules::rollout`]) with a store that keeps what they say is kept; a round is one
//! transaction, and answers are said after it. The host's half is the product's session with the tables of a store; its
//! changes take a while, go on while its agent is away, and end well or not. What is true of hosts is known to the watch.

use std::collections::{BTreeMap, BTreeSet};

use jiff::tz::TimeZoneDatabase;
use muster_base::clock;
use muster_rules::rollout::{
    decide::{RolloutStep, decide},
    policy::{Budget, OnFailure, Retries, RolloutPolicy, Share},
    state::{AuthorityWord, HostOutcome, RolloutPhase, RolloutState},
    transition::{HostEnd, Reception, Reply, TargetHost},
};
use muster_session::{
    interface::{AdmissionStatement, AdmissionStatements},
    store::{AdmissionChange, AdmissionStep},
};
use muster_topics::{
    Millis, V1,
    ack::Numbered,
    admission::{AdmissionAnswer, AdmissionReport, AdmissionStage, AdmissionVerdict, ChangeOutcome},
    asker::Asker,
    desired::{Admission, DeploymentName, DeploymentTarget, DeploymentVersion, DesiredBody, DesiredDeployment},
    name::{HostId, Name},
    topic::{HostTopic, Topic},
};

use super::{
    console::Console,
    disk::Tables,
    machine::Machine,
    random::{below, between, permille, pick},
    watch::{Promise, Watch},
    wire::Order,
    world::{Around, Event, World},
};

/// The deployment that is rolled out. It has no units: what a change does to a host is pretended.
const ROLLED_OUT: &str = "default/r";
/// How often the console looks at its rollout, beside what it hears.
const TICK_MS: Millis = 5_000;
/// How long a host may take to begin; long, so that it is not the age of a late grant that has it refused.
const BEGIN_WITHIN_MS: u64 = 300_000;
/// After how long a host that waits asks again.
const AGAIN_MS: u64 = 20_000;
/// The most decisions of a round.
const STEPS_MAX: usize = 16;

fn rolled_out() -> DeploymentName {
    ROLLED_OUT.parse().unwrap()
}

/// What limits the hosts: each of them alone, for one would hide that another does not hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Limit {
    /// One host of all may be in the middle of a change.
    #[default]
    InFlight,
    /// One host of all may be unavailable.
    Unavailable,
}

fn policy(limit: Limit) -> RolloutPolicy {
    let one = Share::Count(1);
    RolloutPolicy {
        waves: Some(vec![one]),
        max_in_flight: if limit == Limit::InFlight { one } else { Share::Count(10) },
        budget: (limit == Limit::Unavailable)
            .then(|| Budget { group_by: "site".parse().unwrap(), max_unavailable: one }),
        max_failures: Share::Count(0),
        on_failure: OnFailure::Rollback,
        soak_ms: 5_000,
        deadline_ms: 240_000,
        lost_after_ms: 120_000,
        retries: Retries { attempts: 1, after_ms: 10_000 },
        ..RolloutPolicy::default()
    }
}

/// The version of the deployment that a document names.
pub(super) fn version(number: u32) -> DesiredDeployment {
    let version = DeploymentVersion {
        deployment: rolled_out(),
        number,
        parent: None,
        target: DeploymentTarget { select: "label.n=0".parse().unwrap() },
        units: Vec::new(),
        rollout: muster_rules::rollout::policy::write(&policy(Limit::default())),
    };
    DesiredDeployment {
        version,
        asked_by: Asker::admin(Name::admin()),
        asked_by_others: BTreeMap::new(),
        admission: Admission::Ask,
        secrets: BTreeMap::new(),
        adopt: Vec::new(),
        detached: Vec::new(),
        instances: BTreeMap::new(),
        plan: None,
    }
}

/// The console's rollout, as it is committed, but for what it knows of connections and questions.
#[derive(Debug, Default)]
pub(super) struct Rollouts {
    pub(super) state: Option<RolloutState>,
    limit: Limit,
    /// The last version whose rollout completed.
    completed: Option<u32>,
}

impl Rollouts {
    /// What a console finds that starts.
    pub(super) fn restored(self, now_ms: Millis) -> Self {
        let mut restored = self;
        if let Some(state) = &mut restored.state {
            state.watched_since_ms = now_ms;
            for progress in state.hosts.values_mut() {
                (progress.is_online, progress.asks, progress.authority) = (false, None, AuthorityWord::None);
            }
        }
        restored
    }
}

impl Console {
    /// An operator wants something of the rollout.
    pub(super) fn steer(&mut self, hosts: &[HostId], around: &mut Around<'_>) {
        let now_ms = clock::now_ms();
        match (self.rollouts.state.as_mut(), pick(&[0, 0, 0, 1, 2])) {
            (Some(state), 1) => {
                around.note(|| "the rollout is cancelled".to_owned());
                state.cancel();
            }
            (Some(state), 2) => {
                around.note(|| "the rollout is paused".to_owned());
                state.pause("an operator".to_owned(), now_ms);
            }
            _ => self.roll_out(hosts, false, around),
        }
        self.round(Vec::new(), around);
    }

    /// Begins the rollout of a new version.
    fn roll_out(&mut self, hosts: &[HostId], is_rollback: bool, around: &mut Around<'_>) {
        if self.rollouts.state.is_none() {
            self.rollouts.limit = pick(&[Limit::InFlight, Limit::Unavailable]);
            around.watch.rollout.limit = self.rollouts.limit;
        }
        let (policy, now_ms, online) = (policy(self.rollouts.limit), clock::now_ms(), self.ledger.online());
        let target =
            |host: &HostId| TargetHost { host: *host, group: None, is_online: online.contains(host), can_take: true };
        let completed = self.rollouts.completed;
        let targets: Vec<TargetHost> = hosts.iter().map(target).collect();
        let next = match &mut self.rollouts.state {
            None => RolloutState::begin(&policy, 1, completed, is_rollback, targets, now_ms),
            Some(state) => {
                let version = state.version + 1;
                state.supersede(version, is_rollback);
                state.succeed(&policy, version, completed, is_rollback, targets, now_ms)
            }
        };
        around.note(|| format!("version {} is rolled out", next.version));
        self.rollouts.state = Some(next);
        for host in hosts {
            self.deploy(*host, around);
        }
    }

    /// A look at the rollout, now and then; an operator approves, and resumes after a while.
    pub(super) fn look_at_rollout(&mut self, around: &mut Around<'_>) {
        if let Some(state) = &mut self.rollouts.state {
            state.promote();
            if matches!(state.phase, RolloutPhase::Paused { .. }) && permille(200) {
                state.resume(clock::now_ms());
            }
        }
        self.round(Vec::new(), around);
        around.after(TICK_MS, Event::Rollout(self.life));
    }

    /// What was heard is taken, what follows is decided and committed, and then it is said.
    pub(super) fn round(&mut self, reports: Vec<(HostId, AdmissionReport)>, around: &mut Around<'_>) {
        let (policy, now_ms) = (policy(self.rollouts.limit), clock::now_ms());
        let online = self.ledger.online();
        let Some(state) = &mut self.rollouts.state else { return };
        for host in state.hosts.keys().copied().collect::<Vec<_>>() {
            match online.contains(&host) {
                true => state.online(host),
                false => state.offline(host),
            }
        }
        let mut due = Vec::new();
        for (host, report) in reports {
            let reception = hear(state, host, &report, &policy, now_ms);
            around.note(|| format!("{host} says {:?} of version {}", report.stage, report.version));
            let verdict = match reception.reply {
                Some(Reply::Noted) => AdmissionVerdict::Noted,
                Some(Reply::Retry) => AdmissionVerdict::Retry,
                None if report.stage == AdmissionStage::Asks => continue,
                None => AdmissionVerdict::Noted,
            };
            due.push((host, report.version, report.number, verdict));
        }
        let mut rolls_back = false;
        for _ in 0..STEPS_MAX {
            let decision = decide(&policy, state, &TimeZoneDatabase::none(), now_ms);
            for timed in decision.outcomes.iter().filter(|timed| timed.outcome == HostOutcome::Lost) {
                around
                    .watch
                    .rollout
                    .lost
                    .extend(state.hosts[&timed.host].permit.map(|permit| (timed.host, permit.number)));
            }
            around.watch.decides(state, &decision.step);
            state.carry_out(&decision, now_ms);
            for grant in &decision.grants {
                around.note(|| format!("{} is granted permit {}", grant.host, grant.permit));
                around.watch.grants(grant.host, grant.permit, grant.to);
                let verdict = AdmissionVerdict::Granted { permit: grant.permit, begin_within_ms: BEGIN_WITHIN_MS };
                due.push((grant.host, grant.version, grant.to, verdict));
            }
            for (host, reason) in &decision.waits {
                let Some(asks) = state.hosts[host].asks else { continue };
                let verdict = AdmissionVerdict::Wait { reason: reason.to_string(), again_ms: AGAIN_MS };
                due.push((*host, asks.version, asks.number, verdict));
            }
            match decision.step {
                Some(RolloutStep::RollBack { .. }) if self.rollouts.completed.is_some() => {
                    rolls_back = true;
                    break;
                }
                Some(RolloutStep::RollBack { reason }) => {
                    state.pause(reason, now_ms);
                }
                Some(RolloutStep::Complete) => self.rollouts.completed = Some(state.version),
                Some(_) => {}
                None if decision.outcomes.is_empty() => break,
                None => {}
            }
        }
        around.watch.ends_once(state);
        let hosts: Vec<HostId> = state.hosts.keys().copied().collect();
        for (host, version, to, verdict) in due {
            let answer =
                AdmissionAnswer { v: V1, host, issued_ms: now_ms, deployment: rolled_out(), version, to, verdict };
            let body = around.seal.sign(Order::Answer(answer), false);
            self.publish_as(Topic::Host(host, HostTopic::AdmissionAnswer), body, false, around);
        }
        if rolls_back {
            self.roll_out(&hosts, true, around);
        }
    }
}

/// Gives the rules what a host has said.
fn hear(
    state: &mut RolloutState,
    host: HostId,
    report: &AdmissionReport,
    policy: &RolloutPolicy,
    now_ms: Millis,
) -> Reception {
    let AdmissionReport { number, version, .. } = *report;
    match report.stage {
        AdmissionStage::Asks => state.asked(host, number, version, now_ms),
        AdmissionStage::Begun { permit } => state.begun(host, number, version, permit, now_ms),
        AdmissionStage::Ended { permit, outcome, .. } => {
            state.ended(host, number, HostEnd { version, permit, outcome }, policy, now_ms)
        }
    }
}

/// A change that a host is in the middle of.
#[derive(Clone, Copy, Debug)]
struct Change {
    version: u32,
    permit: u64,
}

/// What an agent's store says of the deployment that is rolled out.
#[derive(Clone, Debug, Default)]
pub(super) struct StoredAdmission {
    statement: Option<AdmissionStatement>,
    change: Option<Change>,
    /// The last version that has ended.
    done: Option<u32>,
    /// Whether it has failed, and is not verified since.
    is_broken: bool,
    was_broken: bool,
}

impl StoredAdmission {
    pub(super) fn statements(&self) -> AdmissionStatements {
        self.statement.iter().map(|statement| (rolled_out(), statement.clone())).collect()
    }

    /// The permit of the change that it is in the middle of.
    pub(super) fn changing(&self) -> Option<u64> {
        self.change.map(|change| change.permit)
    }
}

impl Tables {
    /// A document names a version: the host asks for it, unless it has ended or begun that.
    pub(super) fn follow_rollout(&mut self, body: &DesiredBody) {
        let name = rolled_out();
        let named = body.deployments.iter().find(|deployment| deployment.version.deployment == name);
        let admission = &mut self.admission;
        let Some(version) = named.map(|named| &named.version) else { return };
        let is_known = admission.done == Some(version.number)
            || admission.change.is_some_and(|change| change.version == version.number)
            || admission.statement.as_ref().is_some_and(|statement| statement.version == version.number);
        if !is_known {
            let (number, digest) = (version.number, version.digest().unwrap());
            let stage = AdmissionStage::Asks;
            admission.statement = Some(AdmissionStatement { version: number, digest, stage, noted: None });
        }
    }

    /// What follows from an answer.
    pub(super) fn answer_admission(&mut self, change: &AdmissionChange) -> Option<AdmissionStatement> {
        let admission = &mut self.admission;
        let statement = admission.statement.as_mut().filter(|statement| statement.version == change.version)?;
        match change.step {
            AdmissionStep::Begin { permit } => {
                statement.stage = AdmissionStage::Begun { permit };
                admission.was_broken = admission.is_broken || admission.change.is_some();
                admission.change = Some(Change { version: change.version, permit });
            }
            AdmissionStep::Noted(number) => statement.noted = Some(number),
            AdmissionStep::Retry(_) => {
                statement.stage = AdmissionStage::Asks;
                admission.done = None;
            }
        }
        admission.statement.clone()
    }

    /// A change ends.
    fn end_change(&mut self, outcome: ChangeOutcome) {
        let admission = &mut self.admission;
        let Some(change) = admission.change.take() else { return };
        admission.is_broken = match outcome {
            ChangeOutcome::Verified => false,
            ChangeOutcome::Failed => true,
            ChangeOutcome::RolledBack | ChangeOutcome::Refused => admission.was_broken,
        };
        admission.done = Some(change.version);
        // One that asks for a later version meanwhile says no more of this one.
        if let Some(statement) = admission.statement.as_mut().filter(|one| one.version == change.version) {
            let permit = Some(change.permit);
            statement.stage = AdmissionStage::Ended { permit, outcome, changed: true, diagnostic: None };
        }
    }
}

impl Machine {
    /// A change goes on after its agent has started again.
    pub(super) fn go_on(&self, around: &mut Around<'_>) {
        if let Some(permit) = self.disk.read(|tables| tables.admission.changing()) {
            let lasts_ms = if permille(100) { between(60_000, 400_000) } else { between(100, 20_000) };
            around.after(lasts_ms, Event::ChangeEnds(self.index, permit));
        }
    }

    /// A change has ended, if it is still that one.
    pub(super) fn end_change(&self, permit: u64, around: &mut Around<'_>) -> Result<(), super::disk::Crash> {
        if self.disk.read(|tables| tables.admission.changing()) != Some(permit) {
            return Ok(());
        }
        let outcome = match below(10) {
            0..7 => ChangeOutcome::Verified,
            7 | 8 => ChangeOutcome::RolledBack,
            _ => ChangeOutcome::Failed,
        };
        around.note(|| format!("machine {} ends its change with permit {permit}: {outcome:?}", self.index));
        let done = self.disk.write(|tx| tx.tables.end_change(outcome));
        self.tell_truth(around);
        done
    }

    /// Tells the watch what is so, whether or not the agent lived to see it.
    pub(super) fn tell_truth(&self, around: &mut Around<'_>) {
        let (permit, is_broken) = self.disk.read(|tables| (tables.admission.changing(), tables.admission.is_broken));
        around.watch.is_so(self.host, permit, is_broken, around.twins);
    }
}

/// What is true of hosts, and was said to them.
#[derive(Debug, Default)]
pub(super) struct RolloutTruth {
    limit: Limit,
    /// The permit with which a host changes, and whether it is broken.
    hosts: BTreeMap<HostId, (Option<u64>, bool)>,
    /// Permits that the console has given up.
    lost: BTreeSet<(HostId, u64)>,
    granted: BTreeSet<(HostId, Numbered)>,
    /// Permits with which hosts have begun.
    begun: BTreeSet<(HostId, u64)>,
    /// The last permit of each host.
    permits: BTreeMap<HostId, u64>,
    terminals: BTreeMap<HostId, (u32, HostOutcome)>,
}

impl RolloutTruth {
    /// A host's disk is lost, and with it what it was in the middle of.
    pub(super) fn forget(&mut self, host: HostId) {
        self.hosts.remove(&host);
    }
}

impl Watch {
    /// A host begins, or ends.
    fn is_so(&mut self, host: HostId, permit: Option<u64>, is_broken: bool, twins: bool) {
        let before = self.rollout.hosts.insert(host, (permit, is_broken)).and_then(|(permit, _)| permit);
        if permit.is_none() || permit == before || twins {
            return;
        }
        // A host that asks again has given the permit of its earlier question up.
        let last = self.rollout.permits.get(&host).copied();
        self.check(Promise::OnePermit, permit == last, || {
            format!("{host} begins with {permit:?}, and was granted {last:?}")
        });
        let is_new = permit.is_none_or(|permit| self.rollout.begun.insert((host, permit)));
        self.check(Promise::OnePermit, is_new, || format!("{host} begins a second time with {permit:?}"));
        let hosts = &self.rollout.hosts;
        let is_lost = |host: &HostId, permit: u64| self.rollout.lost.contains(&(*host, permit));
        let changing = hosts.iter().filter(|(host, (permit, _))| permit.is_some_and(|permit| !is_lost(host, permit)));
        let changing = changing.count();
        let unavailable = hosts.values().filter(|(permit, is_broken)| permit.is_some() || *is_broken).count();
        match self.rollout.limit {
            Limit::InFlight => {
                self.check(Promise::InFlight, changing <= 1, || {
                    format!("{changing} hosts are in the middle of a change")
                });
            }
            Limit::Unavailable => {
                self.check(Promise::Budget, unavailable <= 1, || format!("{unavailable} hosts are unavailable"));
            }
        }
    }

    fn grants(&mut self, host: HostId, permit: u64, to: Numbered) {
        self.rollout.permits.insert(host, permit);
        let is_new = self.rollout.granted.insert((host, to));
        self.check(Promise::OnePermit, is_new, || format!("{host} is granted a second permit for one question"));
    }

    fn decides(&mut self, state: &RolloutState, step: &Option<RolloutStep>) {
        let verdicts = |wave: Option<u32>| {
            let hosts = state.hosts.values().filter(move |one| wave.is_none() || one.wave == wave);
            hosts.map(|one| one.terminal()).collect::<Vec<_>>()
        };
        match step {
            Some(RolloutStep::BeginWave) => {
                let verdicts = verdicts(Some(state.wave));
                let is_well = verdicts.contains(&Some(HostOutcome::Verified));
                self.check(Promise::WaveOfSuccess, is_well, || format!("after {verdicts:?} the next wave begins"));
            }
            Some(RolloutStep::Complete | RolloutStep::Fail { .. }) => {
                let verdicts = verdicts(None);
                let are_all = verdicts.iter().all(Option::is_some);
                self.check(Promise::RolloutEnds, are_all, || format!("the rollout ends with {verdicts:?}"));
            }
            _ => {}
        }
    }

    /// No last word on a version is followed by another.
    fn ends_once(&mut self, state: &RolloutState) {
        for (host, progress) in &state.hosts {
            let Some(now) = progress.terminal() else {
                self.rollout.terminals.remove(host);
                continue;
            };
            let before = self.rollout.terminals.insert(*host, (state.version, now));
            let is_same = before.is_none_or(|(version, before)| {
                version != state.version || before == now || before.is_replaced_by(now)
            });
            self.check(Promise::OneHostOutcome, is_same, || format!("{before:?} of {host} becomes {now:?}"));
        }
    }
}

impl World {
    /// The rollout has ended, and every host has an outcome, or changes.
    pub(super) fn judge_rollout(&mut self) {
        let Self { console, watch, console_ahead_ms, back, twins, .. } = self;
        let Some(state) = &console.rollouts.state else { return };
        // Hosts take no grant that is older than what a clock that was ahead has told them, and clones take turns.
        if *console_ahead_ms > 0 || back.is_some() || *twins {
            return;
        }
        watch.check(Promise::RolloutEnds, state.phase.is_end(), || format!("the rollout is {:?}", state.phase));
        for (host, progress) in &state.hosts {
            let is_over = progress.terminal().is_some() || progress.permit.is_some();
            watch.check(Promise::RolloutEnds, is_over, || format!("{host} has no outcome: {progress:?}"));
        }
    }
}

//! What is told of rollouts: lists, waves, hosts by outcome, and why each waits.

use std::collections::{BTreeMap, HashMap};

use muster_api::{
    HostOutcome, NamedHost, ROLLOUT_HOSTS_MAX, ROLLOUT_WAIT_HOSTS_MAX, Rollout, RolloutDetail, RolloutHost,
    RolloutHostQuery, RolloutHosts, RolloutVerb, RolloutWait, RolloutWaitKind, RolloutWave, RolloutWaveState,
};
use muster_base::clock::now_ms;
use muster_rules::rollout::{
    decide,
    policy::{self, RolloutPolicy},
    state::{HostProgress, HostVerdict, RolloutPhase, RolloutState},
    wait::WaitReason,
};
use muster_topics::{
    Millis,
    admission::{AdmissionWait, AdmissionWaitKind},
    desired::DeploymentName,
    diagnostic::Diagnostic,
    name::HostId,
};

use super::{
    Rollouts,
    stored::{HostNote, StoredHostRow, StoredRollout},
    table::RolloutEntry,
    verbs::{goes_back_to, unknown},
};
use crate::{
    error::Error,
    state::Console,
    store::{
        self, StoreError,
        rollout::{OutcomeCount, RolloutHostRow, RolloutRow},
    },
};

/// A rollout as it is shown, whether it is the present one or was read from the store.
pub(super) struct ShownRollout {
    policy: RolloutPolicy,
    begun_ms: Millis,
    ended_ms: Option<Millis>,
    state: RolloutState,
    notes: HashMap<HostId, HostNote>,
    hostnames: HashMap<HostId, String>,
    waits: BTreeMap<HostId, (RolloutWaitKind, Diagnostic)>,
    goes_back_to: Option<u32>,
}

impl Console {
    /// Returns the last rollout of each deployment.
    pub async fn rollouts(&self) -> Result<Vec<Rollout>, Error> {
        let mut last: Option<DeploymentName> = None;
        let mut rollouts = Vec::new();
        self.rollouts_are_stored().await;
        for row in store::rollout::all(self.shared.store.read(), None).await? {
            // The newest comes first.
            if last.as_ref() != Some(&row.deployment) {
                last = Some(row.deployment.clone());
                rollouts.push(self.rollout_of(row).await?);
            }
        }
        Ok(rollouts)
    }

    /// Returns all rollouts of a deployment, the newest first.
    pub async fn rollout_history(&self, name: &DeploymentName) -> Result<Vec<Rollout>, Error> {
        let mut rollouts = Vec::new();
        self.rollouts_are_stored().await;
        for row in store::rollout::all(self.shared.store.read(), Some(name)).await? {
            rollouts.push(self.rollout_of(row).await?);
        }
        if rollouts.is_empty() { Err(unknown(name)) } else { Ok(rollouts) }
    }

    /// Returns a rollout in short. Of one that is not the present one the store counts the hosts: there may be many of both.
    async fn rollout_of(&self, row: RolloutRow) -> Result<Rollout, Error> {
        let name = row.deployment.clone();
        if let Some(rollout) = self.shared.hosts.rollouts.summary(&name, row.version) {
            return Ok(rollout);
        }
        let state = stored_state(&row)?;
        let mut rollout = summary(&name, &state, (row.begun_ms, row.ended_ms));
        for OutcomeCount { outcome, hosts, unavailable } in
            store::rollout::counts(self.shared.store.read(), &name, row.version).await?
        {
            rollout.hosts += hosts;
            rollout.unavailable += unavailable;
            match outcome {
                Some(outcome) => drop(rollout.outcomes.insert(outcome, hosts)),
                // They were in the middle of the change when a later version took its place.
                None => rollout.in_flight += hosts,
            }
        }
        Ok(rollout)
    }

    /// Waits until the store has what the table has now: whoever was told of a rollout that has just begun is not told
    /// afterwards that an earlier one still runs.
    async fn rollouts_are_stored(&self) {
        drop(self.shared.hosts.desired.lock_changes().await);
    }

    /// Returns the present rollout of a deployment, if it has one.
    pub(crate) fn present_rollout(&self, name: &DeploymentName) -> Option<Rollout> {
        self.rollout_summary(name).ok()
    }

    /// Returns the present rollouts that have a host.
    pub(crate) fn rollouts_of_host(&self, host: HostId) -> Vec<Rollout> {
        let table = self.shared.hosts.rollouts.table();
        let of_host = table.rollouts.iter().filter(|(_, entry)| entry.state.hosts.contains_key(&host));
        of_host.map(|(name, entry)| summary(name, &entry.state, (entry.begun_ms, entry.ended_ms))).collect()
    }

    /// Returns the rollout of the present version in short.
    pub(super) fn rollout_summary(&self, name: &DeploymentName) -> Result<Rollout, Error> {
        let version = self.shared.hosts.rollouts.version_of(name).ok_or_else(|| unknown(name))?;
        self.shared.hosts.rollouts.summary(name, version).ok_or_else(|| unknown(name))
    }

    /// Returns one rollout: of a version, or the last one.
    pub async fn rollout(&self, name: &DeploymentName, version: Option<u32>) -> Result<RolloutDetail, Error> {
        let shown = self.shown_rollout(name, version).await?;
        let steps = store::rollout::steps(self.shared.store.read(), name, shown.state.version).await?;
        Ok(RolloutDetail { steps, ..shown.detail(name) })
    }

    /// Returns a page of the hosts of a rollout.
    pub async fn rollout_hosts(&self, name: &DeploymentName, query: &RolloutHostQuery) -> Result<RolloutHosts, Error> {
        let limit = query.limit.unwrap_or(ROLLOUT_HOSTS_MAX);
        if limit == 0 || limit > ROLLOUT_HOSTS_MAX {
            let message = format!("`limit` is from 1 to {ROLLOUT_HOSTS_MAX}");
            return Err(Error::invalid("bad_query", message));
        }
        let shown = self.shown_rollout(name, query.version).await?;
        let mut hosts: Vec<RolloutHost> = shown
            .state
            .hosts
            .keys()
            .map(|host| shown.host(*host))
            .filter(|host| query.outcome.is_none_or(|outcome| host.outcome == Some(outcome)))
            .filter(|host| query.waits.is_none_or(|kind| host.waits == Some(kind)))
            .filter(|host| query.wave.is_none_or(|wave| host.wave == Some(wave)))
            .collect();
        hosts.sort_by(|one, other| (&one.hostname, one.host).cmp(&(&other.hostname, other.host)));
        let total = hosts.len() as u64;
        let after = usize::try_from(query.after.unwrap_or(0)).unwrap_or(usize::MAX);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let hosts = hosts.into_iter().skip(after).take(limit).collect();
        Ok(RolloutHosts { version: shown.state.version, total, hosts })
    }

    /// Returns a host of the present rollout.
    pub(crate) async fn rollout_host(&self, name: &DeploymentName, host: HostId) -> Result<RolloutHost, Error> {
        let shown = self.shown_rollout(name, None).await?;
        if !shown.state.hosts.contains_key(&host) {
            let message = format!("host {host} is not in the rollout of {name}");
            return Err(Error::not_found("not_carried", message));
        }
        Ok(shown.host(host))
    }

    async fn shown_rollout(&self, name: &DeploymentName, version: Option<u32>) -> Result<ShownRollout, Error> {
        let present = self.shared.hosts.rollouts.version_of(name);
        if let Some(present) = present.filter(|present| version.is_none_or(|version| version == *present)) {
            let waiting = self.shared.hosts.desired.admission_waits(name, present);
            if let Some(shown) = self.shared.hosts.rollouts.shown(name, present, &waiting) {
                return Ok(shown);
            }
        }
        self.rollouts_are_stored().await;
        let rows = store::rollout::all(self.shared.store.read(), Some(name)).await?;
        let row = rows.into_iter().find(|row| version.is_none_or(|version| version == row.version));
        let row = row.ok_or_else(|| match version {
            None => unknown(name),
            Some(version) => {
                let message = format!("version {version} of deployment {name} has no rollout");
                Error::not_found("unknown_rollout", message).hint(format!("`muster rollout ls {name}` lists them"))
            }
        })?;
        self.stored_rollout(row).await
    }

    /// Reads a rollout that is not the present one any more.
    async fn stored_rollout(&self, row: RolloutRow) -> Result<ShownRollout, Error> {
        let db = self.shared.store.read();
        let wrong = |error: serde_json::Error| StoreError::Row { what: "rollout", problem: error.to_string() };
        let mut state = stored_state(&row)?;
        let (mut notes, mut hostnames) = (HashMap::new(), HashMap::new());
        for RolloutHostRow { host, hostname, outcome, progress } in
            store::rollout::hosts(db, &row.deployment, row.version).await?
        {
            let read: StoredHostRow = serde_json::from_str(&progress).map_err(wrong)?;
            // The column also has what came later.
            let verdict = outcome.map(HostVerdict::Final);
            state.hosts.insert(host, HostProgress { verdict, ..read.host.restore() });
            notes.insert(host, read.note);
            hostnames.insert(host, hostname);
        }
        let version = store::deployment::version(db, &row.deployment, row.version).await?;
        let policy = version.and_then(|row| policy::of(&row.content.rollout).ok().flatten()).unwrap_or_default();
        let (begun_ms, ended_ms) = (row.begun_ms, row.ended_ms);
        let mut shown = ShownRollout {
            policy,
            begun_ms,
            ended_ms,
            state,
            notes,
            hostnames,
            waits: BTreeMap::new(),
            goes_back_to: None,
        };
        // Those in mid-change when a later version took its place have not ended yet.
        let open = shown.state.hosts.iter().filter(|(_, progress)| progress.terminal().is_none());
        let why = (RolloutWaitKind::Changing, Diagnostic::new("the host is in the middle of the change"));
        shown.waits = open.map(|(host, _)| (*host, why.clone())).collect();
        Ok(shown)
    }
}

/// The state of a stored rollout, without its hosts.
fn stored_state(row: &RolloutRow) -> Result<RolloutState, StoreError> {
    let wrong = |error: serde_json::Error| StoreError::Row { what: "rollout", problem: error.to_string() };
    let stored: StoredRollout = serde_json::from_str(&row.state).map_err(wrong)?;
    stored.restore(row.version, row.begun_ms)
}

impl Rollouts {
    /// The version of the present rollout of a deployment.
    pub(super) fn version_of(&self, name: &DeploymentName) -> Option<u32> {
        self.table().rollouts.get(name).map(|entry| entry.state.version)
    }

    /// The present rollout in short.
    fn summary(&self, name: &DeploymentName, version: u32) -> Option<Rollout> {
        let table = self.table();
        let entry = table.rollouts.get(name).filter(|entry| entry.state.version == version)?;
        Some(summary(name, &entry.state, (entry.begun_ms, entry.ended_ms)))
    }

    /// The present rollout. `waiting` is what hosts say of why they have not begun.
    fn shown(
        &self,
        name: &DeploymentName,
        version: u32,
        waiting: &HashMap<HostId, Option<AdmissionWait>>,
    ) -> Option<ShownRollout> {
        let table = self.table();
        let entry = table.rollouts.get(name).filter(|entry| entry.state.version == version)?;
        let hostname = |host: &HostId| Some((*host, table.hostnames.get(host)?.clone()));
        Some(ShownRollout {
            policy: (*entry.policy).clone(),
            begun_ms: entry.begun_ms,
            ended_ms: entry.ended_ms,
            state: entry.state.clone(),
            notes: entry.notes.clone(),
            hostnames: entry.state.hosts.keys().filter_map(hostname).collect(),
            waits: self.waits(entry, waiting),
            goes_back_to: goes_back_to(entry),
        })
    }

    /// Why each host of a rollout waits that has not ended.
    fn waits(
        &self,
        entry: &RolloutEntry,
        waiting: &HashMap<HostId, Option<AdmissionWait>>,
    ) -> BTreeMap<HostId, (RolloutWaitKind, Diagnostic)> {
        let found = decide::waits(&entry.policy, &entry.state, &self.zones, now_ms());
        let of = |(host, reason): (HostId, WaitReason)| {
            let is_open = entry.state.hosts.get(&host).is_some_and(|progress| progress.terminal().is_none());
            is_open.then(|| (host, refined(&reason, waiting.get(&host))))
        };
        found.into_iter().filter_map(of).collect()
    }

    /// Returns how far hosts are with a version of a deployment, as they have said in its rollout: that is newer than their
    /// reports.
    pub(crate) fn admissions(&self, name: &DeploymentName) -> BTreeMap<HostId, HostAdmission> {
        let table = self.table();
        let Some(entry) = table.rollouts.get(name) else { return BTreeMap::new() };
        let waits = self.waits(entry, &HashMap::new());
        let of = |(host, progress): (&HostId, &HostProgress)| {
            let admission = match (progress.terminal(), waits.get(host)) {
                (Some(outcome), _) => HostAdmission::Ended(outcome),
                (None, Some((RolloutWaitKind::Changing, _))) => HostAdmission::Changing,
                // What a host waits for that has not asked, it knows itself.
                (None, Some((_, reason))) if progress.asks.is_some() => HostAdmission::Waits(reason.clone()),
                (None, _) => return None,
            };
            Some((*host, admission))
        };
        entry.state.hosts.iter().filter_map(of).collect()
    }

    /// Whether hosts of a deployment that wait to begin may still be admitted.
    pub(crate) fn goes_on(&self, name: &DeploymentName) -> bool {
        self.table().rollouts.get(name).is_some_and(|entry| !entry.state.phase.is_end())
    }
}

/// How far a host is with the present version, as far as its rollout knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HostAdmission {
    /// It has asked, and waits.
    Waits(Diagnostic),
    /// It is in the middle of the change.
    Changing,
    /// It has ended.
    Ended(HostOutcome),
}

/// Why a host waits, with what it says itself if it has not asked. `Some(None)`: it has its document, and says nothing.
fn refined(reason: &WaitReason, host: Option<&Option<AdmissionWait>>) -> (RolloutWaitKind, Diagnostic) {
    let kind = kind(reason);
    match (kind, host) {
        (RolloutWaitKind::Preparing, None) => {
            (RolloutWaitKind::Pending, "the host has not stored its document yet".into())
        }
        (RolloutWaitKind::Preparing, Some(Some(AdmissionWait { kind, diagnostic, .. }))) => {
            let said = |words: &str| diagnostic.clone().unwrap_or_else(|| words.into());
            match kind {
                AdmissionWaitKind::Preparing => (RolloutWaitKind::Preparing, said("the host prepares the version")),
                AdmissionWaitKind::Policy => (RolloutWaitKind::Policy, said("the host's own policy delays it")),
                AdmissionWaitKind::PlanChanged => {
                    (RolloutWaitKind::PlanChanged, said("what the host would change is not what the plan showed"))
                }
                AdmissionWaitKind::Admission => (RolloutWaitKind::Answer, "the host has asked".into()),
            }
        }
        _ => (kind, Diagnostic::new(reason)),
    }
}

fn kind(reason: &WaitReason) -> RolloutWaitKind {
    match reason {
        WaitReason::Changing => RolloutWaitKind::Changing,
        WaitReason::Granted => RolloutWaitKind::Answer,
        WaitReason::Away => RolloutWaitKind::Away,
        WaitReason::Cannot | WaitReason::Preparing => RolloutWaitKind::Preparing,
        WaitReason::Failed | WaitReason::Retry { .. } => RolloutWaitKind::Retry,
        WaitReason::Paused { .. } | WaitReason::Failures => RolloutWaitKind::Paused,
        WaitReason::Cancelled | WaitReason::Superseded { .. } => RolloutWaitKind::Ended,
        WaitReason::Soak { .. } => RolloutWaitKind::Soak,
        WaitReason::Check { .. } => RolloutWaitKind::Check,
        WaitReason::Approval { .. } => RolloutWaitKind::Approval,
        WaitReason::Window { .. } => RolloutWaitKind::Window,
        WaitReason::WaveFull { .. } => RolloutWaitKind::Wave,
        WaitReason::Repairs => RolloutWaitKind::Repairs,
        WaitReason::InFlight { .. } => RolloutWaitKind::InFlight,
        WaitReason::Budget { .. } => RolloutWaitKind::Budget,
        WaitReason::Authority { .. } => RolloutWaitKind::Authority,
    }
}

/// Whether a host is in the middle of a change.
fn is_changing(progress: &HostProgress) -> bool {
    progress.terminal().is_none() && progress.is_in_flight()
}

fn summary(name: &DeploymentName, state: &RolloutState, (begun_ms, ended_ms): (Millis, Option<Millis>)) -> Rollout {
    let mut outcomes: BTreeMap<HostOutcome, u64> = BTreeMap::new();
    let (mut in_flight, mut unavailable) = (0, 0);
    for progress in state.hosts.values() {
        if let Some(outcome) = progress.terminal() {
            *outcomes.entry(outcome).or_default() += 1;
        }
        in_flight += u64::from(is_changing(progress));
        unavailable += u64::from(progress.is_unavailable);
    }
    Rollout {
        deployment: name.clone(),
        version: state.version,
        is_rollback: state.is_rollback,
        phase: state.phase.clone(),
        wave: state.wave,
        waves: waves(state),
        hosts: state.hosts.len() as u64,
        outcomes,
        in_flight,
        unavailable,
        begun_ms,
        ended_ms,
    }
}

/// The number of waves; the last one has no size.
fn waves(state: &RolloutState) -> u32 {
    u32::try_from(state.waves.len() + 1).unwrap_or(u32::MAX).max(state.wave)
}

impl ShownRollout {
    fn summary(&self, name: &DeploymentName) -> Rollout {
        summary(name, &self.state, (self.begun_ms, self.ended_ms))
    }

    /// The rollout without its steps.
    fn detail(&self, name: &DeploymentName) -> RolloutDetail {
        let state = &self.state;
        let is_waiting = matches!(state.phase, RolloutPhase::Running) && state.is_last_wave();
        RolloutDetail {
            rollout: self.summary(name),
            policy: policy::write(&self.policy),
            on_waves: self.on_waves(),
            waits: self.grouped_waits(),
            deadline_ms: is_waiting.then(|| state.wave_began_ms + self.policy.deadline_ms),
            goes_back_to: self.goes_back_to.filter(|_| !state.phase.is_end()),
            verbs: self.verbs(),
            steps: Vec::new(),
        }
    }

    fn on_waves(&self) -> Vec<RolloutWave> {
        let state = &self.state;
        let able =
            |progress: &&HostProgress| !matches!(progress.outcome(), Some(HostOutcome::Cannot | HostOutcome::Removed));
        let able = state.hosts.values().filter(able).count();
        let mut waves: Vec<RolloutWave> = (1..=waves(state))
            .map(|number| RolloutWave {
                number,
                state: match number.cmp(&state.wave) {
                    std::cmp::Ordering::Less => RolloutWaveState::Ended,
                    std::cmp::Ordering::Equal if state.phase.is_end() => RolloutWaveState::Ended,
                    std::cmp::Ordering::Equal => RolloutWaveState::Present,
                    std::cmp::Ordering::Greater => RolloutWaveState::Waiting,
                },
                size: state.waves.get(number as usize - 1).map(|size| size.at_least_one_of(able) as u64),
                admitted: 0,
                in_flight: 0,
                outcomes: BTreeMap::new(),
            })
            .collect();
        for progress in state.hosts.values() {
            let place = progress.wave.and_then(|wave| waves.get_mut((wave as usize).checked_sub(1)?));
            let Some(wave) = place else { continue };
            wave.admitted += 1;
            wave.in_flight += u64::from(is_changing(progress));
            if let Some(outcome) = progress.terminal() {
                *wave.outcomes.entry(outcome).or_default() += 1;
            }
        }
        waves
    }

    /// Groups of hosts that wait for the same, the largest first.
    fn grouped_waits(&self) -> Vec<RolloutWait> {
        let mut groups: BTreeMap<(RolloutWaitKind, &Diagnostic), Vec<HostId>> = BTreeMap::new();
        for (host, (kind, reason)) in &self.waits {
            groups.entry((*kind, reason)).or_default().push(*host);
        }
        // Hosts may give as many reasons as there are hosts.
        let mut waits: Vec<RolloutWait> =
            groups.into_iter().map(|((kind, reason), hosts)| self.wait(kind, reason, &hosts)).collect();
        waits.sort_by(|one, other| (other.hosts, one.kind, &one.reason).cmp(&(one.hosts, other.kind, &other.reason)));
        if waits.len() > WAITS_MAX {
            let rest = waits.split_off(WAITS_MAX - 1);
            let hosts = rest.iter().map(|wait| wait.hosts).sum();
            let first = rest.into_iter().flat_map(|wait| wait.first).take(ROLLOUT_WAIT_HOSTS_MAX).collect();
            let reason = "other reasons; `muster rollout hosts` lists them".into();
            waits.push(RolloutWait { kind: RolloutWaitKind::Preparing, reason, hosts, first });
        }
        waits
    }

    fn wait(&self, kind: RolloutWaitKind, reason: &Diagnostic, hosts: &[HostId]) -> RolloutWait {
        let mut named: Vec<NamedHost> =
            hosts.iter().map(|host| NamedHost { host: *host, hostname: self.hostname(*host) }).collect();
        named.sort_by(|one, other| (&one.hostname, one.host).cmp(&(&other.hostname, other.host)));
        named.truncate(ROLLOUT_WAIT_HOSTS_MAX);
        RolloutWait { kind, reason: reason.clone(), hosts: hosts.len() as u64, first: named }
    }

    fn hostname(&self, host: HostId) -> String {
        self.hostnames.get(&host).cloned().unwrap_or_else(|| host.to_string())
    }

    fn host(&self, host: HostId) -> RolloutHost {
        let progress = self.state.hosts.get(&host).cloned().unwrap_or_default();
        let note = self.notes.get(&host).cloned().unwrap_or_default();
        let waits = self.waits.get(&host);
        let outcome = progress.terminal();
        RolloutHost {
            host,
            hostname: self.hostname(host),
            wave: progress.wave,
            group: progress.group.as_deref().map(str::to_owned),
            outcome,
            waits: waits.map(|(kind, _)| *kind),
            reason: waits.map(|(_, reason)| reason.clone()).or(note.message.filter(|_| outcome.is_some())),
            changed: note.changed.filter(|_| outcome.is_some()),
            is_unavailable: progress.is_unavailable,
            failures: progress.failures,
            admitted_ms: note.admitted_ms,
            ended_ms: note.ended_ms.filter(|_| outcome.is_some()),
        }
    }

    fn verbs(&self) -> Vec<RolloutVerb> {
        let state = &self.state;
        let is_old = matches!(
            state.phase,
            RolloutPhase::Cancelled | RolloutPhase::RolledBack { .. } | RolloutPhase::Superseded { .. }
        );
        if is_old {
            return Vec::new();
        }
        let is_open = !state.phase.is_end();
        let is_paused = matches!(state.phase, RolloutPhase::Paused { .. });
        let next = state.wave + 1;
        let may_promote = is_open && state.approved < next && !state.is_last_wave() && self.policy.approve.wants(next);
        let has_failed = |progress: &HostProgress| {
            let failed = [HostOutcome::Failed, HostOutcome::RolledBack, HostOutcome::Refused];
            progress.permit.is_none() && progress.terminal().is_some_and(|outcome| failed.contains(&outcome))
        };
        [
            (RolloutVerb::Pause, is_open && !is_paused),
            (RolloutVerb::Resume, is_paused),
            (RolloutVerb::Promote, may_promote),
            (RolloutVerb::Retry, state.hosts.values().any(has_failed)),
            (RolloutVerb::Cancel, is_open),
            (RolloutVerb::CancelWithRollback, is_open && self.goes_back_to.is_some()),
        ]
        .into_iter()
        .filter_map(|(verb, may)| may.then_some(verb))
        .collect()
    }
}

/// The most groups of hosts that wait.
const WAITS_MAX: usize = 50;

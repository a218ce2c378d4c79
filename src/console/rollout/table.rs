//! Rollouts in memory: a copy of the store, which is changed first and stored then, under the lock for changes.
//!
//! **Invariant: what could not be stored is taken back** before anything else is changed, and what is refused changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use muster_api::{HostOutcome, RolloutStep};
use muster_rules::rollout::{
    policy::RolloutPolicy,
    state::{HostProgress, RolloutState},
    transition::TargetHost,
};
use muster_topics::count::counted;
use muster_topics::{
    Millis,
    ack::Numbered,
    desired::DeploymentName,
    name::{Digest, HostId, Name},
};

use super::stored::{HostNote, StoredHost, StoredHostRow, StoredRollout};
use crate::{
    desired::VersionGate,
    store::{
        StoreError,
        rollout::{RolloutHostRow, RolloutRow},
    },
};

/// The rollout of the present version of a deployment.
#[derive(Clone, Debug)]
pub(super) struct RolloutEntry {
    pub(super) digest: Digest,
    pub(super) policy: Arc<RolloutPolicy>,
    pub(super) begun_ms: Millis,
    pub(super) ended_ms: Option<Millis>,
    pub(super) state: RolloutState,
    pub(super) notes: HashMap<HostId, HostNote>,
    /// Questions that were answered with a reason to wait.
    pub(super) answered: HashMap<HostId, Numbered>,
    /// When hosts were told last to try again.
    pub(super) retried: HashMap<HostId, Millis>,
    /// When to decide again, if nothing happens before; `None`: at once.
    pub(super) again_ms: Option<Millis>,
    /// Why it goes back by itself, once that is decided.
    pub(super) failure: Option<String>,
    stored: Option<(StoredRollout, Option<Millis>)>,
    stored_hosts: HashMap<HostId, StoredHost>,
    /// Hosts whose notes are to be stored.
    noted: BTreeSet<HostId>,
}

impl RolloutEntry {
    /// A rollout that begins.
    pub(super) fn begin(digest: Digest, policy: Arc<RolloutPolicy>, state: RolloutState, now: Millis) -> Self {
        Self {
            digest,
            policy,
            begun_ms: now,
            ended_ms: None,
            state,
            notes: HashMap::new(),
            answered: HashMap::new(),
            retried: HashMap::new(),
            again_ms: None,
            failure: None,
            stored: None,
            stored_hosts: HashMap::new(),
            noted: BTreeSet::new(),
        }
    }

    /// A rollout as it was stored.
    pub(super) fn read(
        digest: Digest,
        policy: Arc<RolloutPolicy>,
        row: &RolloutRow,
        hosts: &[RolloutHostRow],
        now: Millis,
    ) -> Result<Self, StoreError> {
        let wrong = |error: serde_json::Error| StoreError::Row { what: "rollout", problem: error.to_string() };
        let stored: StoredRollout = serde_json::from_str(&row.state).map_err(wrong)?;
        let state = stored.restore(row.version, now)?;
        let mut entry = Self::begin(digest, policy, state, row.begun_ms);
        entry.ended_ms = row.ended_ms;
        entry.stored = Some((stored, row.ended_ms));
        for host in hosts {
            let read: StoredHostRow = serde_json::from_str(&host.progress).map_err(wrong)?;
            entry.stored_hosts.insert(host.host, read.host);
            entry.state.hosts.insert(host.host, read.host.restore());
            entry.notes.insert(host.host, read.note);
        }
        Ok(entry)
    }

    /// Changes what there is to say of a host.
    pub(super) fn note(&mut self, host: HostId, change: impl FnOnce(&mut HostNote)) {
        change(self.notes.entry(host).or_default());
        self.noted.insert(host);
    }

    /// How far the version is, for newcomers.
    pub(super) fn gate(&self) -> VersionGate {
        use muster_rules::rollout::state::RolloutPhase;
        let is_open = match self.state.phase {
            RolloutPhase::Completed | RolloutPhase::Failed { .. } => true,
            RolloutPhase::Cancelled | RolloutPhase::RolledBack { .. } | RolloutPhase::Superseded { .. } => false,
            _ => self.state.is_last_wave(),
        };
        VersionGate { version: self.state.version, is_open, settled: self.state.fallback }
    }

    /// Takes back what was not stored.
    fn revert(&mut self, online: &dyn Fn(HostId) -> bool) {
        let Some((stored, ended_ms)) = &self.stored else { return };
        let Ok(mut state) = stored.restore(self.state.version, self.state.watched_since_ms) else { return };
        for (host, stored) in &self.stored_hosts {
            let group = self.state.hosts.get(host).and_then(|progress| progress.group.clone());
            let progress = HostProgress { group, is_online: online(*host), ..stored.restore() };
            state.hosts.insert(*host, progress);
        }
        (self.state, self.ended_ms, self.again_ms) = (state, *ended_ms, None);
        self.answered.clear();
    }

    /// The rows that differ from what is stored.
    fn changes(
        &self,
        name: &DeploymentName,
        hostname: &dyn Fn(HostId) -> String,
    ) -> Result<(Option<RolloutRow>, Vec<RolloutHostRow>), StoreError> {
        let text = |value: Result<String, serde_json::Error>| {
            value.map_err(|error| StoreError::Row { what: "rollout", problem: error.to_string() })
        };
        let now = (StoredRollout::of(&self.state), self.ended_ms);
        let row = (self.stored.as_ref() != Some(&now)).then(|| {
            Ok::<_, StoreError>(RolloutRow {
                deployment: name.clone(),
                version: self.state.version,
                begun_ms: self.begun_ms,
                ended_ms: self.ended_ms,
                state: text(serde_json::to_string(&now.0))?,
            })
        });
        let mut hosts = Vec::new();
        for (host, progress) in &self.state.hosts {
            let now = StoredHost::of(progress);
            if self.stored_hosts.get(host) == Some(&now) && !self.noted.contains(host) {
                continue;
            }
            let note = self.notes.get(host).cloned().unwrap_or_default();
            hosts.push(RolloutHostRow {
                host: *host,
                hostname: hostname(*host),
                outcome: progress.terminal(),
                progress: text(serde_json::to_string(&StoredHostRow { host: now, note }))?,
            });
        }
        Ok((row.transpose()?, hosts))
    }

    fn commit(&mut self, hosts: &[RolloutHostRow]) {
        self.stored = Some((StoredRollout::of(&self.state), self.ended_ms));
        for row in hosts {
            if let Some(progress) = self.state.hosts.get(&row.host) {
                self.stored_hosts.insert(row.host, StoredHost::of(progress));
            }
        }
        self.noted.clear();
    }
}

/// Outcomes of an earlier version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EarlierOutcome {
    pub(super) deployment: DeploymentName,
    pub(super) version: u32,
    pub(super) host: HostId,
    pub(super) outcome: HostOutcome,
}

/// What is to be stored.
#[derive(Debug, Default)]
pub(crate) struct RolloutChanges {
    pub(super) rollouts: Vec<RolloutRow>,
    pub(super) hosts: Vec<(DeploymentName, u32, Vec<RolloutHostRow>)>,
    pub(super) earlier: Vec<EarlierOutcome>,
    pub(super) steps: Vec<(DeploymentName, u32, RolloutStep)>,
}

impl RolloutChanges {
    pub(super) fn is_empty(&self) -> bool {
        self.rollouts.is_empty() && self.hosts.is_empty() && self.earlier.is_empty() && self.steps.is_empty()
    }

    /// The deployments that are concerned.
    pub(super) fn deployments(&self) -> BTreeSet<&DeploymentName> {
        let rollouts = self.rollouts.iter().map(|row| &row.deployment);
        let hosts = self.hosts.iter().map(|(name, ..)| name);
        rollouts.chain(hosts).chain(self.steps.iter().map(|(name, ..)| name)).collect()
    }
}

/// All rollouts.
#[derive(Debug, Default)]
pub(super) struct RolloutTable {
    pub(super) rollouts: BTreeMap<DeploymentName, RolloutEntry>,
    pub(super) online: BTreeSet<HostId>,
    pub(super) hostnames: HashMap<HostId, String>,
    /// Whether it is known which hosts rollouts have, and of which groups: before that nobody is admitted.
    pub(super) is_ready: bool,
    /// Rollouts that a later one has taken the place of, or whose deployment was removed, until that is stored.
    replaced: Vec<(DeploymentName, RolloutEntry)>,
    earlier: Vec<EarlierOutcome>,
    steps: Vec<(DeploymentName, u32, RolloutStep)>,
    /// Whether something may have been changed that is not stored.
    is_dirty: bool,
}

impl RolloutTable {
    /// Takes back what was not stored. To be called before anything is changed.
    pub(super) fn revert(&mut self) {
        if !std::mem::replace(&mut self.is_dirty, true) {
            return;
        }
        self.earlier.clear();
        self.steps.clear();
        // Which hosts have come and gone may be taken back, too.
        self.is_ready = false;
        // Those that have begun without being stored are gone, and those that they replaced are back.
        self.rollouts.retain(|_, entry| entry.stored.is_some());
        for (name, entry) in std::mem::take(&mut self.replaced) {
            self.rollouts.insert(name, entry);
        }
        let online = &self.online;
        self.rollouts.values_mut().for_each(|entry| entry.revert(&|host| online.contains(&host)));
    }

    /// Changes one rollout, unless that is refused: a refusal changes nothing, of this rollout or another.
    pub(super) fn try_change<T, E>(
        &mut self,
        name: &DeploymentName,
        change: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        self.revert();
        let before = self.rollouts.get(name).cloned();
        change(self).inspect_err(|_| {
            if let Some(before) = before {
                self.rollouts.insert(name.clone(), before);
            }
            self.is_dirty = false;
        })
    }

    /// Begins the rollout of a version; the one before is superseded.
    pub(super) fn begin(
        &mut self,
        name: &DeploymentName,
        mut begun: BegunRollout,
        operator: Option<&Name>,
        now: Millis,
    ) {
        let BegunRollout { version, fallback, is_rollback, .. } = begun;
        let hosts = std::mem::take(&mut begun.hosts);
        let before = self.rollouts.remove(name);
        let (policy, hosts) = (Arc::clone(&begun.policy), hosts.into_iter());
        let state = match &before {
            Some(before) => before.state.succeed(&policy, version, fallback, is_rollback, hosts, now),
            None => RolloutState::begin(&policy, version, fallback, is_rollback, hosts, now),
        };
        let is_of_it = |progress: &&HostProgress| progress.outcome() != Some(HostOutcome::Removed);
        let count = state.hosts.values().filter(is_of_it).count();
        self.supersede(name, before, version, is_rollback, now);
        self.rollouts.insert(name.clone(), RolloutEntry::begin(begun.digest, policy, state, now));
        let what = if is_rollback { "it is rolled back" } else { "it begins" };
        let hosts = counted(count, "host");
        self.step(name, version, operator, format!("{what}, with {hosts}"), now);
    }

    /// Ends the rollout of a deployment because of a version that goes to all hosts at once.
    pub(super) fn replace(&mut self, name: &DeploymentName, by: u32, is_rollback: bool, now: Millis) {
        let before = self.rollouts.remove(name);
        self.supersede(name, before, by, is_rollback, now);
    }

    fn supersede(
        &mut self,
        name: &DeploymentName,
        before: Option<RolloutEntry>,
        by: u32,
        is_rollback: bool,
        now: Millis,
    ) {
        let Some(mut before) = before else { return };
        let version = before.state.version;
        if !before.state.phase.is_end() {
            before.ended_ms = Some(now);
            let text = match before.failure.take().filter(|_| is_rollback) {
                Some(failure) => format!("it is rolled back by version {by}: {failure}"),
                None if is_rollback => format!("it is rolled back by version {by}"),
                None => format!("it is superseded by version {by}"),
            };
            self.step(name, version, None, text, now);
        }
        before.state.supersede(by, is_rollback);
        self.replaced.push((name.clone(), before));
    }

    /// Ends the rollout of a deployment that is removed.
    pub(super) fn remove(&mut self, name: &DeploymentName, operator: &Name, now: Millis) {
        let Some(mut before) = self.rollouts.remove(name) else { return };
        before.state.cancel();
        before.ended_ms.get_or_insert(now);
        let hosts: Vec<HostId> = before.state.hosts.keys().copied().collect();
        for host in hosts {
            // What has ended keeps its outcome.
            if before.state.hosts.get(&host).is_some_and(|progress| progress.terminal().is_none()) {
                before.state.remove(host);
            }
        }
        let version = before.state.version;
        self.step(name, version, Some(operator), "the deployment is removed".to_owned(), now);
        self.replaced.push((name.clone(), before));
    }

    /// Records what has happened to a rollout.
    pub(super) fn step(
        &mut self,
        name: &DeploymentName,
        version: u32,
        operator: Option<&Name>,
        text: String,
        now: Millis,
    ) {
        self.steps.push((name.clone(), version, RolloutStep { at_ms: now, operator: operator.cloned(), text }));
    }

    /// Records the outcome of an earlier version.
    pub(super) fn earlier(&mut self, name: &DeploymentName, version: u32, host: HostId, outcome: HostOutcome) {
        self.earlier.push(EarlierOutcome { deployment: name.clone(), version, host, outcome });
    }

    /// Handles that a deployment has a host, as it is now.
    pub(super) fn join(&mut self, name: &DeploymentName, host: TargetHost) {
        if let Some(entry) = self.rollouts.get_mut(name) {
            entry.state.join(host);
            entry.again_ms = None;
        }
    }

    /// Handles that a deployment does not have a host any more.
    pub(super) fn leave(&mut self, name: &DeploymentName, host: HostId) {
        let Some(entry) = self.rollouts.get_mut(name) else { return };
        let current = entry.state.version;
        let outcomes = entry.state.remove(host);
        entry.again_ms = None;
        for (version, outcome) in outcomes.into_iter().filter(|(version, _)| *version != current) {
            self.earlier(name, version, host, outcome);
        }
    }

    /// Returns what is to be stored.
    pub(super) fn changes(&mut self) -> Result<RolloutChanges, StoreError> {
        let mut changes = RolloutChanges {
            earlier: std::mem::take(&mut self.earlier),
            steps: std::mem::take(&mut self.steps),
            ..RolloutChanges::default()
        };
        let hostname = |host: HostId| self.hostnames.get(&host).cloned().unwrap_or_else(|| host.to_string());
        for (name, entry) in self.replaced.iter().map(|(name, entry)| (name, entry)).chain(&self.rollouts) {
            let (row, hosts) = entry.changes(name, &hostname)?;
            changes.rollouts.extend(row);
            if !hosts.is_empty() {
                changes.hosts.push((name.clone(), entry.state.version, hosts));
            }
        }
        Ok(changes)
    }

    /// Takes note that these changes are stored.
    pub(super) fn commit(&mut self, changes: &RolloutChanges) {
        for (name, entry) in &mut self.rollouts {
            let hosts = changes.hosts.iter().find(|(of, version, _)| of == name && *version == entry.state.version);
            entry.commit(hosts.map_or(&[][..], |(_, _, hosts)| hosts));
        }
        self.replaced.clear();
        self.is_dirty = false;
    }
}

/// The rollout of a version that begins.
#[derive(Debug)]
pub(crate) struct BegunRollout {
    pub(crate) version: u32,
    pub(crate) digest: Digest,
    pub(crate) policy: Arc<RolloutPolicy>,
    pub(crate) fallback: Option<u32>,
    pub(crate) is_rollback: bool,
    pub(crate) hosts: Vec<TargetHost>,
}

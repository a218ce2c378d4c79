//! Rollouts: versions of deployments that reach their hosts a few at a time, because hosts ask before they change.
//!
//! What is decided is a plain function, [`muster_rules::rollout`]; here it is given what happens, stored, and told.
//!
//! Modules, in reading order: [`stored`] (how rollouts are stored), [`table`] (the present ones, in memory), [`inbox`] (what hosts
//! say), [`round`] (one decision: the table, the store, and then the answers), [`engine`] (when), [`authority`] and [`check`] (who
//! is asked beside the rules), [`verbs`] (of operators), [`show`] and [`follow`] (what is told of it all), [`totals`] (what is
//! measured of it, and which wait for an operator).
//!
//! Tasks: [`engine::run`] decides, at most every 50 ms while there is news, and when a decision says to look again.
//!
//! **Invariant: a rollout begins in the transaction that stores its version.**
//!
//! **Invariant: what is told a host is stored before**: a grant that was not stored was not given, and one that was stored and
//! not told is void when the host asks again.
//!
//! **Invariant: one rollout of a deployment is open**, that of its present version. It knows which hosts an earlier one has
//! left in the middle of a change.

mod answer;
mod authority;
mod check;
pub(crate) mod engine;
pub(crate) mod follow;
mod inbox;
mod round;
mod show;
mod stored;
mod table;
#[cfg(test)]
mod tests;
mod totals;
mod verbs;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use jiff::tz::TimeZoneDatabase;
use muster_rules::rollout::{policy::RolloutPolicy, state::RolloutPhase, transition::TargetHost};
use muster_topics::{
    Millis,
    admission::AdmissionReport,
    desired::DeploymentName,
    name::{Digest, HostId, Name},
};
use serde_json::{Map, Value};
use sqlx::SqliteConnection;
use tokio::sync::Notify;

use self::{
    inbox::Inbox,
    table::{RolloutEntry, RolloutTable},
};
pub(crate) use self::{
    show::HostAdmission,
    table::{BegunRollout, RolloutChanges},
    totals::{HeldRollout, HeldWhy, RolloutTotals},
};
use crate::{
    config::RolloutConfig,
    desired::VersionGate,
    store::{
        self, StoreError,
        rollout::{RolloutHostRow, RolloutRow},
    },
};

/// Rollouts, and what hosts have said of them since the last decision.
#[derive(Debug)]
pub(crate) struct Rollouts {
    table: Mutex<RolloutTable>,
    inbox: Mutex<Inbox>,
    /// Notified when there is something to decide.
    news: Notify,
    /// The time zones of windows.
    zones: TimeZoneDatabase,
    /// How many hosts were admitted since the console started.
    admitted: AtomicU64,
}

impl Default for Rollouts {
    fn default() -> Self {
        Self {
            table: Mutex::default(),
            inbox: Mutex::default(),
            news: Notify::new(),
            zones: TimeZoneDatabase::bundled(),
            admitted: AtomicU64::default(),
        }
    }
}

impl Rollouts {
    /// The present rollouts. The lock for changes of deployments is held while they are changed.
    fn table(&self) -> MutexGuard<'_, RolloutTable> {
        // No panic leaves it inconsistent: what was not stored is taken back.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // Each change of it is one step.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles what a host says. Returns whether there was room for it; a host repeats what is not answered.
    pub(crate) fn heard(&self, host: HostId, report: AdmissionReport) -> bool {
        let has_room = self.inbox().report(host, report);
        self.news.notify_one();
        has_room
    }

    /// Handles that a host came online, or went offline.
    pub(crate) fn presence(&self, host: HostId, is_online: bool) {
        self.inbox().presences.insert(host, is_online);
        self.news.notify_one();
    }

    /// Handles the removal of a host.
    pub(crate) fn forget(&self, host: HostId) {
        self.inbox().left.insert(host);
        self.news.notify_one();
    }

    /// How many hosts were admitted since the console started.
    pub(crate) fn admitted(&self) -> u64 {
        self.admitted.load(Ordering::Relaxed)
    }

    /// Has a round made soon.
    fn look(&self) {
        self.news.notify_one();
    }

    /// Takes the stored rollouts, with the hosts that are connected.
    pub(crate) fn open(
        &self,
        read: Vec<(Digest, Arc<RolloutPolicy>, RolloutRow, Vec<RolloutHostRow>)>,
        online: Vec<HostId>,
        hostnames: HashMap<HostId, String>,
        now: Millis,
    ) -> Result<(), StoreError> {
        let mut table = self.table();
        table.online = online.into_iter().collect();
        table.hostnames = hostnames;
        for (digest, policy, row, hosts) in read {
            let mut entry = RolloutEntry::read(digest, policy, &row, &hosts, now)?;
            for (host, progress) in &mut entry.state.hosts {
                progress.is_online = table.online.contains(host);
            }
            table.rollouts.insert(row.deployment, entry);
        }
        Ok(())
    }

    /// Has decisions made from now on: the groups of hosts are known.
    pub(crate) fn set_ready(&self) {
        self.table().is_ready = true;
        self.news.notify_one();
    }

    /// Whether it is known which hosts rollouts have.
    fn is_ready(&self) -> bool {
        self.table().is_ready
    }

    /// Handles which hosts deployments have, and which not.
    pub(crate) fn set_members(
        &self,
        joins: Vec<(DeploymentName, TargetHost)>,
        leaves: Vec<(DeploymentName, HostId)>,
        hostnames: impl Iterator<Item = (HostId, String)>,
    ) {
        let mut table = self.table();
        if table.rollouts.is_empty() {
            return;
        }
        table.hostnames.extend(hostnames);
        for (name, host) in joins {
            let is_online = table.online.contains(&host.host);
            table.join(&name, TargetHost { is_online, ..host });
        }
        for (name, host) in leaves {
            table.leave(&name, host);
        }
        drop(table);
        self.news.notify_one();
    }

    /// Handles that only these hosts are members.
    pub(crate) fn keep_hosts(&self, is_member: impl Fn(&HostId) -> bool) {
        let mut table = self.table();
        let of = |(name, entry): (&DeploymentName, &RolloutEntry)| {
            let gone = entry.state.hosts.keys().filter(|host| !is_member(host));
            gone.map(|host| (name.clone(), *host)).collect::<Vec<_>>()
        };
        let gone: Vec<(DeploymentName, HostId)> = table.rollouts.iter().flat_map(of).collect();
        for (name, host) in gone {
            table.leave(&name, host);
        }
    }

    /// Begins the rollout of a version, or ends the one before, if the version goes to all hosts at once. Returns what is to be
    /// stored with the version.
    pub(crate) fn begin(
        &self,
        begun: Vec<(DeploymentName, u32, bool, Option<BegunRollout>)>,
        operator: &Name,
        now: Millis,
    ) -> Result<RolloutChanges, StoreError> {
        let mut table = self.table();
        table.revert();
        for (name, version, is_rollback, begun) in begun {
            match begun {
                Some(mut begun) => {
                    for host in &mut begun.hosts {
                        host.is_online = table.online.contains(&host.host);
                    }
                    table.begin(&name, begun, Some(operator), now);
                }
                None => table.replace(&name, version, is_rollback, now),
            }
        }
        table.changes()
    }

    /// Ends the rollout of a deployment that is removed. Returns what is to be stored with that.
    pub(crate) fn remove(
        &self,
        name: &DeploymentName,
        operator: &Name,
        now: Millis,
    ) -> Result<RolloutChanges, StoreError> {
        let mut table = self.table();
        table.revert();
        table.remove(name, operator, now);
        table.changes()
    }

    /// Takes note that changes are stored.
    pub(crate) fn commit(&self, changes: &RolloutChanges) {
        self.table().commit(changes);
        self.news.notify_one();
    }

    /// Returns how far the versions are that are rolled out.
    pub(crate) fn gates(&self) -> HashMap<DeploymentName, VersionGate> {
        self.table().rollouts.iter().map(|(name, entry)| (name.clone(), entry.gate())).collect()
    }

    /// Returns how the rollout of a version goes, and the last version before it that all hosts were to have.
    pub(crate) fn phase_of(&self, name: &DeploymentName, version: u32) -> Option<(RolloutPhase, Option<u32>)> {
        let table = self.table();
        let entry = table.rollouts.get(name).filter(|entry| entry.state.version == version)?;
        Some((entry.state.phase.clone(), entry.state.fallback))
    }
}

/// Finds what of a policy this console cannot do, with the places.
pub(crate) fn faults(config: &RolloutConfig, rollout: &Map<String, Value>) -> Vec<(&'static str, String)> {
    let Ok(Some(policy)) = muster_rules::rollout::policy::of(rollout) else { return Vec::new() };
    let authority = policy.authority.as_ref().and_then(|_| authority::fault(config));
    let authority = authority.map(|why| ("rollout.authority", why.to_owned()));
    let check = policy.check.as_ref().and_then(check::fault).map(|why| ("rollout.check.query", format!("{why:#}")));
    authority.into_iter().chain(check).collect()
}

/// Writes changes to the store. Their versions are there already.
pub(crate) async fn write(db: &mut SqliteConnection, changes: &RolloutChanges) -> Result<(), StoreError> {
    use store::rollout;
    rollout::put(db, &changes.rollouts).await?;
    for (deployment, version, hosts) in &changes.hosts {
        rollout::put_hosts(db, (deployment, *version), hosts).await?;
    }
    for one in &changes.earlier {
        rollout::set_outcome(db, (&one.deployment, one.version), one.host, one.outcome).await?;
    }
    for (deployment, version, step) in &changes.steps {
        rollout::add_step(db, (deployment, *version), step).await?;
    }
    for row in &changes.rollouts {
        rollout::trim_hosts(db, &row.deployment).await?;
    }
    Ok(())
}

//! Rollouts of the deployments: which begin with a new version, which hosts they have, and what newcomers get meanwhile.

use std::{collections::HashMap, sync::Arc};

use muster_rules::rollout::{policy::RolloutPolicy, state::RolloutPhase, transition::TargetHost};
use muster_topics::{
    admission::AdmissionWait,
    desired::DeploymentName,
    name::{HostId, Name},
};

use super::{
    DesiredState,
    plan::{HostLook, Plan},
    table::{DeploymentEntry, DesiredTable, HostEntry, assignment, lacked},
};
use crate::{error::Error, rollout::BegunRollout, state::Console, store};

impl HostEntry {
    /// Whether it has what a version needs, as far as is known, and a document of this console.
    fn can_take(&self, version: &DeploymentEntry) -> bool {
        !self.is_unconfirmed() && self.lacks(&version.plain_capabilities).is_none()
    }

    /// Whether it has, or should have, a deployment.
    fn is_of(&self, name: &DeploymentName) -> bool {
        assignment(&self.assigned, name).is_some() || lacked(&self.lacking, name).is_some()
    }
}

impl DesiredState {
    /// Returns what hosts say of why they have not begun with a version, of those that have stored their document.
    pub(crate) fn admission_waits(
        &self,
        name: &DeploymentName,
        version: u32,
    ) -> HashMap<HostId, Option<AdmissionWait>> {
        let table = self.table();
        let of = |(host, entry): (&HostId, &HostEntry)| {
            if !entry.is_current() || !entry.is_of(name) {
                return None;
            }
            let report = entry.report.as_ref()?.deployments.get(name);
            let waits = report.and_then(|report| report.waits.clone()).filter(|waits| waits.version == version);
            Some((*host, waits))
        };
        table.hosts.iter().filter_map(of).collect()
    }
}

impl Console {
    /// Reads the rollouts of the present versions, when the console starts.
    pub(super) async fn open_rollouts(&self, deployments: &[Arc<DeploymentEntry>]) -> Result<(), Error> {
        let db = self.shared.store.read();
        let online = store::host::online(db).await?;
        let hostnames: HashMap<HostId, String> = store::host::names(db).await?.into_iter().collect();
        let mut read = Vec::new();
        for row in store::rollout::all(db, None).await? {
            let is_present =
                |entry: &&Arc<DeploymentEntry>| *entry.name() == row.deployment && entry.number() == row.version;
            let Some(entry) = deployments.iter().find(is_present) else { continue };
            let Some(policy) = entry.policy.clone() else { continue };
            let hosts = store::rollout::hosts(db, &row.deployment, row.version).await?;
            read.push((entry.row.info.digest.clone(), policy, row, hosts));
        }
        self.shared.hosts.rollouts.open(read, online, hostnames, self.shared.time.now())?;
        self.set_gates().await
    }

    /// Finds the groups of all hosts of rollouts: before that nobody is admitted.
    pub(crate) async fn open_rollout_hosts(&self) -> Result<(), Error> {
        let _changing = self.shared.hosts.desired.changing.lock().await;
        let deployments = self.shared.hosts.desired.table().deployments.clone();
        let (looks, errors) = self.look(None, &deployments).await?;
        self.note_members(&looks);
        // Hosts may have been removed without a round since.
        self.shared.hosts.rollouts.keep_hosts(|host| looks.contains_key(host) || errors.contains_key(host));
        self.shared.hosts.rollouts.set_ready();
        Ok(())
    }

    /// Tells rollouts which of these hosts are theirs, and of which groups. `looks` are of the present deployments.
    pub(super) fn note_members(&self, looks: &HashMap<HostId, HostLook>) {
        let (joins, leaves) = {
            let table = self.shared.hosts.desired.table();
            let (mut joins, mut leaves) = (Vec::new(), Vec::new());
            let none = HostEntry::default();
            let rolled_out = || table.deployments.iter().enumerate().filter(|(_, one)| one.is_rolled_out());
            for (host, look) in looks {
                let entry = table.hosts.get(host).unwrap_or(&none);
                for (index, one) in rolled_out() {
                    match entry.is_of(one.name()) {
                        true => joins.push((one.name().clone(), target_host(*host, (entry, one), look, index))),
                        false => leaves.push((one.name().clone(), *host)),
                    }
                }
            }
            (joins, leaves)
        };
        let hostnames = looks.iter().map(|(host, look)| (*host, look.hostname.clone()));
        self.shared.hosts.rollouts.set_members(joins, leaves, hostnames);
    }

    /// Returns the rollout that begins with a version; `None` if it goes to all its hosts at once.
    pub(super) fn begun_rollout(
        &self,
        entry: &DeploymentEntry,
        before: Option<&DeploymentEntry>,
        (plan, looks): (&Plan, &HashMap<HostId, HostLook>),
        index: usize,
    ) -> Option<BegunRollout> {
        let policy = entry.policy.clone()?;
        let name = entry.name();
        let table = self.shared.hosts.desired.table();
        let none = HostEntry::default();
        let hosts = looks.iter().filter_map(|(host, look)| {
            let known = table.hosts.get(host).unwrap_or(&none);
            let is_of = match plan.hosts.get(host) {
                Some(planned) => {
                    assignment(&planned.assigned, name).is_some() || lacked(&planned.lacking, name).is_some()
                }
                None => known.is_of(name),
            };
            is_of.then(|| target_host(*host, (known, entry), look, index))
        });
        Some(BegunRollout {
            version: entry.number(),
            digest: entry.row.info.digest.clone(),
            policy,
            fallback: before.and_then(|before| self.settled_version(before)),
            is_rollback: entry.row.info.repeats.is_some(),
            hosts: hosts.collect(),
        })
    }

    /// Returns who has applied the present version, in whose name it goes back by itself; `None` if another one is present.
    pub(crate) fn applied_by(&self, name: &DeploymentName, version: u32) -> Option<Name> {
        let table = self.shared.hosts.desired.table();
        let entry = table.deployment(name).filter(|entry| entry.number() == version)?;
        Some(entry.row.info.operator.clone())
    }

    /// Returns the last version that all hosts were to have, as of a present one.
    pub(super) fn settled_version(&self, present: &DeploymentEntry) -> Option<u32> {
        if !present.is_rolled_out() {
            return Some(present.number());
        }
        let (phase, fallback) = self.shared.hosts.rollouts.phase_of(present.name(), present.number())?;
        if phase == RolloutPhase::Completed { Some(present.number()) } else { fallback }
    }

    /// Brings what newcomers get up to date with the rollouts, and has hosts evaluated that may have a later version now.
    pub(crate) async fn set_gates(&self) -> Result<(), Error> {
        let gates = self.shared.hosts.rollouts.gates();
        let changed: Vec<(DeploymentName, u32, Option<u32>)> = {
            let mut table = self.shared.hosts.desired.table();
            if table.gates == gates {
                return Ok(());
            }
            let changed = gates.iter().filter(|(name, gate)| table.gates.get(*name) != Some(gate));
            let changed = changed.map(|(name, gate)| (name.clone(), gate.version, gate.settled)).collect();
            table.gates = gates;
            changed
        };
        for (name, version, settled) in &changed {
            if let Some(settled) = settled {
                self.open_version(name, *settled).await?;
            }
            let hosts = hosts_of_other_versions(&self.shared.hosts.desired.table(), name, *version);
            self.shared.hosts.desired.evaluate(hosts);
        }
        Ok(())
    }
}

fn target_host(
    host: HostId,
    (entry, version): (&HostEntry, &DeploymentEntry),
    look: &HostLook,
    index: usize,
) -> TargetHost {
    TargetHost {
        host,
        group: look.groups.get(index).cloned().flatten(),
        // The rollouts know better.
        is_online: false,
        can_take: entry.can_take(version),
    }
}

fn hosts_of_other_versions(table: &DesiredTable, name: &DeploymentName, version: u32) -> Vec<HostId> {
    let is_other = |entry: &HostEntry| assignment(&entry.assigned, name).is_some_and(|row| row.version != version);
    table.hosts.iter().filter(|(_, entry)| is_other(entry)).map(|(host, _)| *host).collect()
}

/// Returns the policy of a version; the default one for a policy that this program does not understand.
pub(super) fn policy_of(row: &store::deployment::VersionRow) -> Option<Arc<RolloutPolicy>> {
    match muster_rules::rollout::policy::of(&row.content.rollout) {
        Ok(policy) => policy.map(Arc::new),
        Err(error) => {
            let (deployment, version) = (&row.content.deployment, row.info.number);
            tracing::error!(%deployment, version, error = error.cause, hint = error.hint, "the policy of a rollout is not valid; the default one applies");
            Some(Arc::default())
        }
    }
}

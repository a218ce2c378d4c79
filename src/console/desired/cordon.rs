//! Hosts that get no new deployments, or none at all.

use muster_api::{ChangeKind, Cordon, CordonHosts, CordonInfo, Host, HostCordon};
use muster_base::clock::now_ms;
use muster_topics::{
    desired::DeploymentName,
    name::{HostId, Name, UnitName},
};

use super::{apply::hosts_words, plan::PlanWish};
use crate::{
    dispatch,
    error::Error,
    list::first_names,
    page_change::PageChange,
    state::Console,
    store::{
        StoreError,
        change::{self, NewChange},
        deployment::{self, AssignmentRow, CordonRow},
        host,
    },
};

/// The most hosts that a change names.
const NAMED_MAX: usize = 5;

impl Console {
    /// Cordons hosts, drains them, or opens them again.
    pub async fn cordon_hosts(&self, operator: &Name, wanted: CordonHosts) -> Result<Vec<HostCordon>, Error> {
        let shared = &self.shared;
        shared.check_operator(operator).await?;
        let hosts = dispatch::target_hosts(shared, &wanted.target).await?;
        let names: Vec<&str> = hosts.iter().map(|(_, hostname)| hostname.as_str()).collect();
        let kind = match wanted.cordon {
            Cordon::Open => ChangeKind::HostsOpened,
            Cordon::Cordoned => ChangeKind::HostsCordoned,
            Cordon::Drained => ChangeKind::HostsDrained,
        };
        let (subject, detail) = (first_names(&names, NAMED_MAX), hosts_words(hosts.len()));
        let change = NewChange { operator, kind, subject, detail };
        let hosts: Vec<HostId> = hosts.iter().map(|(host, _)| *host).collect();
        let now = now_ms();
        let row = CordonRow { is_drained: wanted.cordon == Cordon::Drained, operator: operator.clone(), set_ms: now };
        let row = (wanted.cordon != Cordon::Open).then_some(row);
        let _changing = shared.hosts.desired.changing.lock().await;
        let mut transaction = shared.store.begin().await?;
        deployment::set_cordon(&mut transaction, &hosts, row.as_ref()).await?;
        change::note(&mut transaction, &change, now).await?;
        transaction.commit().await.map_err(StoreError::from)?;
        {
            let mut table = shared.hosts.desired.table();
            table.is_to_place = true;
            for host in &hosts {
                let entry = table.hosts.entry(*host).or_default();
                entry.cordon.clone_from(&row);
                // If the rest fails, the next run does it.
                entry.looked_at = None;
            }
        }
        tracing::info!(%operator, cordon = wanted.cordon.word(), hosts = hosts.len(), "hosts are cordoned or opened");
        self.reconcile(Some(&hosts), PlanWish { may_remove: true, now, ..PlanWish::default() }).await?;
        hosts.iter().for_each(|host| shared.changed(PageChange::Host(*host)));
        self.shown_cordons(&hosts).await
    }

    /// Returns all hosts that are cordoned or drained.
    pub async fn host_cordons(&self) -> Result<Vec<HostCordon>, Error> {
        let hosts: Vec<HostId> = {
            let table = self.shared.hosts.desired.table();
            table.hosts.iter().filter(|(_, entry)| entry.cordon.is_some()).map(|(host, _)| *host).collect()
        };
        self.shown_cordons(&hosts).await
    }

    /// Returns the deployments that a host carries, each with its units.
    pub(crate) fn carried(&self, host: HostId) -> Vec<(DeploymentName, Vec<UnitName>)> {
        let table = self.shared.hosts.desired.table();
        let Some(entry) = table.hosts.get(&host) else { return Vec::new() };
        let is_detached = |of: &DeploymentName, unit: &UnitName| {
            entry.detached.iter().any(|(deployment, one)| deployment == of && one == unit)
        };
        let units = |row: &AssignmentRow| {
            let version = table.versions.get(&(row.deployment.clone(), row.version));
            let units = version.map(|version| version.units_with(&row.instances)).unwrap_or_default();
            units.iter().filter(|unit| !is_detached(&row.deployment, unit)).cloned().collect()
        };
        entry.assigned.iter().map(|row| (row.deployment.clone(), units(row))).collect()
    }

    /// Says of hosts whether they are cordoned.
    pub(crate) fn with_cordons(&self, hosts: &mut [Host]) {
        let table = self.shared.hosts.desired.table();
        for host in hosts {
            let Some(entry) = table.hosts.get(&host.id) else { continue };
            host.cordon = entry.cordon.as_ref().map(|row| CordonInfo {
                cordon: if row.is_drained { Cordon::Drained } else { Cordon::Cordoned },
                operator: row.operator.clone(),
                set_ms: row.set_ms,
                to_remove: entry.removals.len() as u64,
            });
        }
    }

    async fn shown_cordons(&self, hosts: &[HostId]) -> Result<Vec<HostCordon>, Error> {
        let standing = host::standing(self.shared.store.read(), Some(hosts)).await?;
        let table = self.shared.hosts.desired.table();
        let shown = |host: &HostId| {
            let (entry, (hostname, is_online)) = (table.hosts.get(host)?, standing.get(host)?.clone());
            let cordon = entry.cordon.as_ref();
            Some(HostCordon {
                host: *host,
                hostname,
                cordon: match cordon {
                    None => Cordon::Open,
                    Some(cordon) if cordon.is_drained => Cordon::Drained,
                    Some(_) => Cordon::Cordoned,
                },
                deployments: entry.assigned.len() as u64,
                is_online,
                leaving: entry.leaving(),
                operator: cordon.map(|cordon| cordon.operator.clone()),
                set_ms: cordon.map(|cordon| cordon.set_ms),
            })
        };
        let mut shown: Vec<HostCordon> = hosts.iter().filter_map(shown).collect();
        shown.sort_by(|one, other| (&one.hostname, one.host).cmp(&(&other.hostname, other.host)));
        Ok(shown)
    }
}

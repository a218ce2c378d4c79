//! Desired state: deployments of operators, which host carries which of them, and the signed document that each host is sent.
//!
//! Modules, in reading order: [`table`] (all of it in memory), [`places`] (where instances are), [`plan`] (decides what is to change, as a plain function), [`change`]
//! (performs it: the store, then the table), [`apply`] (operators' documents), [`publish`] (sends what is due), [`sync`] (compares
//! with what hosts report, regularly), [`confirm`] (hosts with documents that this console did not make; [`unconfirmed`]: what must not be
//! done before), [`hand_in`] (the
//! interface for hosts), [`rollouts`] (which begin, and their hosts), [`cordon`], [`vars`], [`alerts`] (what waits for an operator),
//! [`show`] (what is told of it all).
//!
//! Tasks: [`sync::run`] evaluates targets, at once where operators change something, and every 30 seconds for what hosts report;
//! [`publish::run`] sends documents; [`alerts::run`] compares alerts with rollouts and instances after changes.
//!
//! **Invariant: a version, its targets and the documents that are due because of it are one transaction.** What was not sent when
//! the console ended is sent when it starts.
//!
//! **Invariant: a host's mark only grows**, and a body of another digest has another mark.
//!
//! **Invariant: a host is sent nothing while it has a document that this console did not make, or newer labels**, until an
//! operator has confirmed it.
//!
//! **Invariant: absence removes nothing.** What is to go is named in the document until the host reports it gone; and a look at
//! hosts that could not read everything names nothing.

pub(crate) mod alerts;
mod apply;
mod change;
mod confirm;
mod cordon;
pub(super) mod follow;
mod hand_in;
mod places;
mod plan;
pub(super) mod publish;
mod rollouts;
mod show;
pub(super) mod sync;
mod table;
#[cfg(test)]
mod tests;
mod unconfirmed;
mod vars;

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use muster_api::SyncRun;
use muster_rules::{capability::MissingCapability, realm::Realms};
use muster_topics::{
    Millis,
    desired::{DeploymentName, DeploymentUnit, DesiredReport},
    name::{HostId, Name, UnitName},
    presence::Capability,
    secret::SecretRef,
    unit::Spec,
};
use tokio::sync::Notify;

pub(crate) use self::apply::PlanRequests;
pub(super) use self::show::{UnitClaim, no_earlier_version};
pub(crate) use self::table::VersionGate;
use self::table::{DeploymentEntry, DesiredTable, HostEntry};
use super::store::{Store, StoreError};

/// A unit of a deployment, with what it needs.
#[derive(Debug)]
pub(super) struct DeployedUnit {
    pub(super) deployment: DeploymentName,
    pub(super) unit: UnitName,
    pub(super) spec: Spec,
    pub(super) secrets: Vec<SecretRef>,
}

/// What is desired of hosts.
#[derive(Debug)]
pub(super) struct DesiredState {
    /// Held while deployments, targets or documents are changed.
    changing: tokio::sync::Mutex<()>,
    table: Mutex<DesiredTable>,
    /// Notified when there are targets to evaluate at once.
    more: Notify,
    /// Notified when there are documents to send.
    due: Notify,
    /// Since when this console hears of hosts, as of when instances were placed last.
    heard_since_ms: Mutex<Option<Millis>>,
    last_run: Mutex<Option<SyncRun>>,
}

impl DesiredState {
    /// Reads what is desired from the store.
    pub(super) async fn open(store: &Store) -> Result<Self, StoreError> {
        Ok(Self {
            changing: tokio::sync::Mutex::default(),
            table: Mutex::new(DesiredTable::load(store).await?),
            more: Notify::new(),
            due: Notify::new(),
            heard_since_ms: Mutex::default(),
            last_run: Mutex::default(),
        })
    }

    /// Locks deployments, targets, documents and rollouts for changes.
    pub(super) async fn lock_changes(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.changing.lock().await
    }

    fn table(&self) -> MutexGuard<'_, DesiredTable> {
        // No panic leaves it inconsistent.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles what a host reports of its document; and the generation of its labels, if these are newer than the console's.
    pub(super) fn heard(&self, host: HostId, report: DesiredReport, newer_labels: Option<u64>, now: Millis) {
        let mut table = self.table();
        let entry = table.hosts.entry(host).or_default();
        let are_labels_same = entry.newer_number() == newer_labels;
        if entry.report.as_ref() == Some(&report) && are_labels_same && !entry.is_due(now) && !entry.is_to_hand_in(now)
        {
            return;
        }
        let (was_heard, was_open) = (entry.report.is_some(), entry.newer_labels.is_some());
        let has_removals = !entry.removals.is_empty();
        entry.report = Some(report);
        entry.set_newer_number(newer_labels);
        let is_open = newer_labels.is_some();
        let is_to_hand_in = entry.is_to_hand_in(now);
        let is_urgent = table.compare(host, now) || is_to_hand_in;
        if !was_heard || has_removals || (was_open && !is_open) {
            table.dirty.insert(host);
            table.is_to_place |= !was_heard;
        }
        let (is_dirty, is_due) = (!table.dirty.is_empty() || is_urgent, !table.to_send.is_empty());
        drop(table);
        if is_dirty {
            self.more.notify_one();
        }
        if is_due {
            self.due.notify_one();
        }
    }

    /// Handles that a host came online: it may not have received what it was sent, and may have room for instances.
    pub(super) fn host_connected(&self, host: HostId) {
        let mut table = self.table();
        if let Some(entry) = table.hosts.get_mut(&host) {
            (entry.sent, entry.asked_ms) = (None, None);
        }
        if table.waiting.as_ref().is_some_and(|waiting| !waiting.is_empty()) {
            table.is_to_place = true;
            drop(table);
            self.more.notify_one();
        }
    }

    /// Has instances placed anew at once.
    pub(super) fn place_again(&self) {
        self.table().is_to_place = true;
        self.more.notify_one();
    }

    /// Returns since when this console hears of hosts.
    fn heard_since(&self, is_connected: bool, now: Millis) -> Option<Millis> {
        let mut since_ms = self.heard_since_ms.lock().unwrap_or_else(PoisonError::into_inner);
        *since_ms = is_connected.then(|| since_ms.unwrap_or(now));
        *since_ms
    }

    /// Handles that labels of hosts have changed.
    pub(super) fn labels_changed(&self, hosts: impl IntoIterator<Item = HostId>) {
        let mut table = self.table();
        table.dirty.extend(hosts);
        table.is_to_place = true;
        drop(table);
        self.more.notify_one();
    }

    /// Has hosts evaluated at once.
    pub(super) fn evaluate(&self, hosts: impl IntoIterator<Item = HostId>) {
        self.table().dirty.extend(hosts);
        self.more.notify_one();
    }

    /// Handles that units of hosts have changed, or are gone: a removal may be done.
    pub(super) fn units_changed(&self, hosts: impl IntoIterator<Item = HostId>) {
        let mut table = self.table();
        let leaving: Vec<HostId> = hosts
            .into_iter()
            .filter(|host| table.hosts.get(host).is_some_and(|entry| !entry.removals.is_empty()))
            .collect();
        if !leaving.is_empty() {
            table.dirty.extend(leaving);
            drop(table);
            self.more.notify_one();
        }
    }

    /// Handles that a realm has changed: documents have the realms of their units, and the parents of those.
    pub(super) fn realm_changed(&self, realms: &Realms, changed: &Name) {
        let is_in = |unit: &UnitName| realms.chain(&unit.realm()).iter().any(|realm| realm.name == *changed);
        let mut table = self.table();
        let concerned: Vec<&DeploymentName> =
            table.deployments.iter().filter(|entry| entry.units.iter().any(is_in)).map(|entry| entry.name()).collect();
        let carries = |entry: &HostEntry| entry.assigned.iter().any(|row| concerned.contains(&&row.deployment));
        let hosts: Vec<HostId> =
            table.hosts.iter().filter(|(_, entry)| carries(entry)).map(|(host, _)| *host).collect();
        if !hosts.is_empty() {
            table.dirty.extend(hosts);
            drop(table);
            self.more.notify_one();
        }
    }

    /// Returns a deployment that has units in a realm.
    pub(super) fn deployment_in(&self, realm: &Name) -> Option<DeploymentName> {
        let table = self.table();
        let is_in = |entry: &&std::sync::Arc<DeploymentEntry>| entry.units.iter().any(|unit| unit.realm() == *realm);
        table.deployments.iter().find(is_in).map(|entry| entry.name().clone())
    }

    /// Handles that secrets were set, or configs added, which name some.
    pub(super) fn content_changed(&self) {
        self.table().has_new_content = true;
        self.more.notify_one();
    }

    /// Returns the units of all versions of deployments that are in use, with what they need.
    pub(super) fn needs(&self) -> Vec<DeployedUnit> {
        let table = self.table();
        let of = |entry: &std::sync::Arc<DeploymentEntry>| {
            let secrets = |unit: &UnitName| entry.secrets.as_ref().ok()?.get(unit).cloned();
            let unit = |unit: &DeploymentUnit| DeployedUnit {
                deployment: entry.name().clone(),
                secrets: secrets(&unit.unit).unwrap_or_default(),
                unit: unit.unit.clone(),
                spec: (*unit.spec).clone(),
            };
            entry.row.content.units.iter().map(unit).collect::<Vec<_>>()
        };
        // Earlier versions, too, which hosts have, or may go back to.
        table.versions.values().flat_map(of).collect()
    }

    /// Returns the number of deployments, and of hosts in each state of their documents.
    pub(super) fn counts(&self) -> (usize, [(&'static str, usize); 4]) {
        let table = self.table();
        let hosts = table.hosts.values().filter(|entry| entry.document.is_some() || entry.is_open());
        let (mut stored, mut behind, mut refused, mut unconfirmed) = (0, 0, 0, 0);
        for entry in hosts {
            *match entry {
                entry if entry.is_open() => &mut unconfirmed,
                entry if entry.is_current() => &mut stored,
                entry if entry.has_refused() => &mut refused,
                _ => &mut behind,
            } += 1;
        }
        let documents = [("stored", stored), ("behind", behind), ("refused", refused), ("unconfirmed", unconfirmed)];
        (table.deployments.len(), documents)
    }

    /// Handles what a host says that it can do: what it is given depends on that.
    pub(super) fn set_capabilities(&self, host: HostId, capabilities: Vec<Capability>) {
        let mut table = self.table();
        let entry = table.hosts.entry(host).or_default();
        if entry.capabilities.as_ref() == Some(&capabilities) {
            return;
        }
        entry.capabilities = Some(capabilities);
        table.dirty.insert(host);
        table.is_to_place = true;
        drop(table);
        self.more.notify_one();
    }

    /// Returns what a host is known to lack of these.
    pub(super) fn lacks(&self, host: HostId, needs: &BTreeSet<Capability>) -> Option<MissingCapability> {
        self.table().hosts.get(&host)?.lacks(needs)
    }

    /// Handles the removal of a host.
    pub(super) fn forget(&self, host: HostId) {
        let mut table = self.table();
        table.hosts.remove(&host);
        table.dirty.remove(&host);
        table.doubtful.remove(&host);
        table.to_send.remove(&host);
        table.is_to_place = true;
        drop(table);
        self.more.notify_one();
    }
}

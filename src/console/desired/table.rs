//! What is desired of hosts, and what they report of it, in memory: a copy of the store, changed after each commit.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use muster_api::{LeavingUnit, Var};
use muster_base::clock::now_ms;
use muster_rules::{
    assignment::{AssignmentConflict, HostGate},
    capability::MissingCapability,
    placement::Resources,
    realm::Realms,
    rollout::policy::RolloutPolicy,
};
use muster_topics::{
    Millis,
    desired::{DeploymentName, DesiredMark, DesiredReport, UnitRemoval},
    name::{HostId, LabelValue, Name, UnitName},
    presence::Capability,
    secret::SecretRef,
};
use serde_json::Value;

use super::places::WaitingInstances;
use crate::store::{
    Store, StoreError,
    deployment::{self, AssignmentRow, CordonRow, VersionRow},
    desired::{self, DocumentRow, HandedInRow},
    host, label, register, var,
};

/// The least time between two heads of the same document, and between two requests for a host's own one.
pub(super) const SEND_EVERY_MS: Millis = 60_000;

/// A deployment, with what its present version comes to.
#[derive(Clone, Debug)]
pub(crate) struct DeploymentEntry {
    /// When it was made.
    pub(super) created_ms: Millis,
    pub(super) row: VersionRow,
    pub(super) units: Vec<UnitName>,
    /// Those of them that each host of the target has, and what they may use.
    pub(super) plain: Vec<UnitName>,
    pub(super) plain_needs: Resources,
    /// What they need that not every host can do.
    pub(super) plain_capabilities: BTreeSet<Capability>,
    /// Whether it has others, whose instances the console places.
    pub(super) has_placed: bool,
    /// How it reaches its hosts; `None`: all at once.
    pub(super) policy: Option<Arc<RolloutPolicy>>,
    /// The secrets of its units, those that have any; or why they cannot be found.
    pub(super) secrets: Result<BTreeMap<UnitName, Vec<SecretRef>>, String>,
    /// Whether configs of its units have secret values in them.
    pub(super) has_secret_values: bool,
    /// Whether it has values that only its hosts may read.
    pub(super) has_values: bool,
}

impl DeploymentEntry {
    pub(super) fn name(&self) -> &DeploymentName {
        &self.row.content.deployment
    }

    pub(super) fn number(&self) -> u32 {
        self.row.info.number
    }

    /// Whether hosts ask before they change to it.
    pub(super) fn is_rolled_out(&self) -> bool {
        self.policy.is_some()
    }

    /// Whether its units have secrets, by name or in configs, so that its hosts have to be chosen by the console's labels.
    pub(super) fn has_secrets(&self) -> bool {
        // Without them nobody knows.
        self.has_secret_values || self.secrets.as_ref().map_or(true, |secrets| !secrets.is_empty())
    }
}

/// How far the present version of a deployment is that is rolled out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VersionGate {
    /// The version.
    pub(crate) version: u32,
    /// Whether newcomers get it: its rollout has completed, or its last wave has begun.
    pub(crate) is_open: bool,
    /// The last version before it that all hosts were to have.
    pub(crate) settled: Option<u32>,
}

/// How the document that a host has compares with what this console has made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DocumentStanding {
    /// It has its present document, or none is made for it, or it was not heard yet.
    #[default]
    Settled,
    /// It does not have its present document yet.
    Behind {
        /// Since when.
        since_ms: Millis,
    },
    /// It has a document that this console did not make.
    Unconfirmed,
}

/// Labels of a host that are newer than the console's.
#[derive(Clone, Debug)]
pub(super) struct NewerLabels {
    /// Their number.
    pub(super) number: u64,
    /// The labels, once it has handed them in.
    pub(super) handed_in: Option<BTreeMap<Name, LabelValue>>,
}

impl NewerLabels {
    pub(super) fn new(number: u64) -> Self {
        Self { number, handed_in: None }
    }
}

/// What is desired of a host.
#[derive(Clone, Debug, Default)]
pub(super) struct HostEntry {
    pub(super) assigned: Vec<AssignmentRow>,
    pub(super) removals: Vec<UnitRemoval>,
    pub(super) detached: Vec<(DeploymentName, UnitName)>,
    /// Deployments that select it, and that it does not carry.
    pub(super) conflicts: Vec<(DeploymentName, AssignmentConflict)>,
    /// Deployments whose present version it is not given, with what it lacks for that.
    pub(super) lacking: Vec<(DeploymentName, MissingCapability)>,
    pub(super) vars: Arc<BTreeMap<Name, Value>>,
    pub(super) document: Option<DocumentRow>,
    /// What it last reported of its document; nothing if it was not heard yet, or not since the console was restored from a
    /// backup.
    pub(super) report: Option<DesiredReport>,
    /// What it can do, as it says; nothing as long as it has not said so.
    pub(super) capabilities: Option<Vec<Capability>>,
    /// How the document that it has compares with what this console has made.
    pub(super) standing: DocumentStanding,
    pub(super) handed_in: Option<HandedInRow>,
    /// Its labels, if these are newer than the console's.
    pub(super) newer_labels: Option<NewerLabels>,
    pub(super) cordon: Option<CordonRow>,
    /// Which document was sent last, and when.
    pub(super) sent: Option<(DesiredMark, Millis)>,
    /// When it was asked for its document last.
    pub(super) asked_ms: Option<Millis>,
    /// The last earlier document that was found to be of this console.
    pub(super) own_mark: Option<DesiredMark>,
    /// The heartbeat with which its targets were evaluated last.
    pub(super) looked_at: Option<(u64, u64)>,
    /// The document above which its next one is, and that it gets one in any case: after a confirmation.
    pub(super) above: Option<DesiredMark>,
    /// Why its document cannot be made.
    pub(super) error: Option<String>,
}

impl HostEntry {
    pub(super) fn gate(&self) -> HostGate {
        match &self.cordon {
            None => HostGate::Open,
            Some(cordon) if cordon.is_drained => HostGate::Drained,
            Some(_) => HostGate::Cordoned,
        }
    }

    /// The units that it has yet to remove.
    pub(super) fn leaving(&self) -> Vec<LeavingUnit> {
        let turns = self.report.as_ref().map(|report| &report.removals);
        let is_kept =
            |unit: &UnitName| turns.and_then(|turns| turns.get(unit)).is_some_and(|time| time.from_ms.is_none());
        let leaving =
            |removal: &UnitRemoval| LeavingUnit { unit: removal.unit.clone(), is_kept: is_kept(&removal.unit) };
        self.removals.iter().map(leaving).collect()
    }

    /// The mark of its present document.
    pub(super) fn mark(&self) -> Option<DesiredMark> {
        self.document.as_ref().map(|document| document.mark)
    }

    /// Whether it has stored its present document.
    pub(super) fn is_current(&self) -> bool {
        match (&self.document, self.report.as_ref()) {
            (Some(document), Some(report)) => {
                report.mark == document.mark && report.digest.as_ref() == Some(&document.digest)
            }
            _ => false,
        }
    }

    /// Whether it has refused its present document.
    pub(super) fn has_refused(&self) -> bool {
        let refused = self.report.as_ref().and_then(|report| report.refused.as_ref());
        refused.is_some_and(|refused| Some(refused.mark) == self.mark())
    }

    /// Whether an operator has to confirm it: it has a document that this console did not make, or newer labels than the
    /// console, which decide what it should have.
    pub(super) fn is_open(&self) -> bool {
        self.is_unconfirmed() || self.newer_labels.is_some()
    }

    /// Whether it has a document that this console did not make.
    pub(super) fn is_unconfirmed(&self) -> bool {
        self.standing == DocumentStanding::Unconfirmed
    }

    /// Since when it does not have its present document.
    pub(super) fn behind_since_ms(&self) -> Option<Millis> {
        if let DocumentStanding::Behind { since_ms } = self.standing { Some(since_ms) } else { None }
    }

    /// The number of its labels, if these are newer than the console's.
    pub(super) fn newer_number(&self) -> Option<u64> {
        self.newer_labels.as_ref().map(|labels| labels.number)
    }

    /// Takes that the number of its labels is this, which is newer than the console's; `None` if none is.
    pub(super) fn set_newer_number(&mut self, number: Option<u64>) {
        if self.newer_number() != number {
            self.newer_labels = number.map(NewerLabels::new);
        }
    }

    /// Returns what it is known to lack of these.
    pub(super) fn lacks(&self, needs: &BTreeSet<Capability>) -> Option<MissingCapability> {
        MissingCapability::first(self.capabilities.as_ref()?, needs)
    }

    /// The version of a deployment that it has made its desired state, as it reports.
    pub(super) fn reported_version(&self, name: &DeploymentName) -> Option<u32> {
        self.report.as_ref()?.deployments.get(name).map(|report| report.version)
    }

    /// Whether it may be sent documents.
    pub(super) fn may_have_document(&self) -> bool {
        !self.is_open() && self.report.as_ref().is_some()
    }

    /// Whether its present document is to be sent, which was not a moment ago.
    pub(super) fn is_due(&self, now: Millis) -> bool {
        let Some(mark) = self.mark() else { return false };
        let was_sent = self.sent.is_some_and(|(sent, at_ms)| sent == mark && is_recent(at_ms, now));
        self.may_have_document() && !self.is_current() && !self.has_refused() && !was_sent
    }

    /// The document that it has handed in, if it still has it.
    pub(super) fn shown_document(&self) -> Option<&HandedInRow> {
        let report = self.report.as_ref()?;
        self.handed_in.as_ref().filter(|has| has.mark == report.mark && Some(&has.digest) == report.digest.as_ref())
    }

    /// The labels that it has handed in, if it still has them.
    pub(super) fn shown_labels(&self) -> Option<&BTreeMap<Name, LabelValue>> {
        self.newer_labels.as_ref()?.handed_in.as_ref()
    }

    /// Whether it is to be asked for what it has of the console.
    pub(super) fn is_to_hand_in(&self, now: Millis) -> bool {
        let lacks_document = self.is_unconfirmed() && self.shown_document().is_none();
        let lacks_labels = self.newer_labels.is_some() && self.shown_labels().is_none();
        let is_able = self.report.is_some();
        is_able && (lacks_document || lacks_labels) && !self.asked_ms.is_some_and(|at_ms| is_recent(at_ms, now))
    }
}

/// Returns what a host lacks for a deployment.
pub(super) fn lacked(
    lacking: &[(DeploymentName, MissingCapability)],
    name: &DeploymentName,
) -> Option<MissingCapability> {
    lacking.iter().find(|(of, _)| of == name).map(|(_, missing)| *missing)
}

/// Whether this was less than [`SEND_EVERY_MS`] ago. After a clock was set back nothing counts as recent.
fn is_recent(at_ms: Millis, now: Millis) -> bool {
    (0..SEND_EVERY_MS).contains(&now.saturating_sub(at_ms))
}

/// All of it.
#[derive(Debug, Default)]
pub(super) struct DesiredTable {
    /// In the order in which they were made.
    pub(super) deployments: Vec<Arc<DeploymentEntry>>,
    pub(super) hosts: HashMap<HostId, HostEntry>,
    /// The versions that hosts carry, or may be given.
    pub(super) versions: HashMap<(DeploymentName, u32), Arc<DeploymentEntry>>,
    /// How far the versions of deployments are that are rolled out.
    pub(super) gates: HashMap<DeploymentName, VersionGate>,
    pub(super) vars: Arc<Vec<Var>>,
    /// Realms, as of the last look at hosts.
    pub(super) realms: Realms,
    /// Hosts whose targets are to be evaluated at once.
    pub(super) dirty: BTreeSet<HostId>,
    /// Whether instances are to be placed anew at once, for which all hosts are looked at.
    pub(super) is_to_place: bool,
    /// Instances without a place, as of when they were placed last; `None` before the first time.
    pub(super) waiting: Option<BTreeMap<DeploymentName, BTreeMap<UnitName, WaitingInstances>>>,
    /// Hosts with an earlier document, of which it is not known yet whether this console made it.
    pub(super) doubtful: BTreeSet<HostId>,
    /// Hosts whose document is to be sent.
    pub(super) to_send: BTreeSet<HostId>,
    /// Whether secrets or configs were added since the secrets of deployments were found.
    pub(super) has_new_content: bool,
}

impl DesiredTable {
    /// Reads it from the store; deployments and their secrets are added later.
    pub(super) async fn load(store: &Store) -> Result<Self, StoreError> {
        let db = store.read();
        let mut hosts: HashMap<HostId, HostEntry> = HashMap::new();
        for (host, assigned) in deployment::assignments(db).await? {
            hosts.entry(host).or_default().assigned = assigned;
        }
        for (host, removals) in deployment::removals(db).await? {
            hosts.entry(host).or_default().removals = removals;
        }
        for (host, detached) in deployment::detached(db).await? {
            hosts.entry(host).or_default().detached = detached;
        }
        for (host, cordon) in deployment::cordons(db).await? {
            hosts.entry(host).or_default().cordon = Some(cordon);
        }
        for (host, document) in desired::documents(db).await? {
            hosts.entry(host).or_default().document = Some(document);
        }
        for (host, handed_in) in desired::handed_in(db).await? {
            hosts.entry(host).or_default().handed_in = Some(handed_in);
        }
        // What hosts reported before a restored backup was made says nothing of what they have now.
        let restored_ms = register::restored(db).await?.map_or(Millis::MIN, |(_, restored_ms)| restored_ms);
        for (host, (report, at_ms)) in desired::reports(db).await? {
            if at_ms >= restored_ms {
                hosts.entry(host).or_default().report = Some(report);
            }
        }
        for (host, capabilities) in host::capabilities(db).await? {
            hosts.entry(host).or_default().capabilities = Some(capabilities);
        }
        let generations = label::generations(db).await?;
        for (host, has) in label::heard(db).await? {
            if has > generations.of(host) {
                hosts.entry(host).or_default().newer_labels = Some(NewerLabels::new(has));
            }
        }
        let mut table = Self { hosts, vars: Arc::new(var::vars(db).await?.vars), ..Self::default() };
        let hosts: Vec<HostId> = table.hosts.keys().copied().collect();
        for host in hosts {
            table.compare(host, now_ms());
            let is_unsent =
                table.hosts.get(&host).is_some_and(|entry| entry.document.as_ref().is_some_and(|one| !one.is_sent));
            if is_unsent {
                table.to_send.insert(host);
            }
        }
        Ok(table)
    }

    /// Compares what a host reports with its document. Returns whether there is something to do for it at once.
    pub(super) fn compare(&mut self, host: HostId, now: Millis) -> bool {
        let Some(entry) = self.hosts.get_mut(&host) else { return false };
        let Some(report) = entry.report.as_ref() else { return false };
        let (has, mark) = (report.mark, entry.mark());
        let is_unconfirmed = if has == DesiredMark::default() {
            false
        } else if entry.is_current() {
            (entry.standing, entry.above) = (DocumentStanding::Settled, None);
            return false;
        } else if mark.is_none_or(|mark| has >= mark) {
            // Later than the last one, or another one of its number.
            entry.above.is_none_or(|above| has > above)
        } else if entry.own_mark != Some(has) && entry.above.is_none() {
            self.doubtful.insert(host);
            return true;
        } else {
            entry.is_unconfirmed()
        };
        entry.standing = match mark {
            _ if is_unconfirmed => DocumentStanding::Unconfirmed,
            Some(_) => DocumentStanding::Behind { since_ms: entry.behind_since_ms().unwrap_or(now) },
            None => DocumentStanding::Settled,
        };
        if entry.is_due(now) {
            self.to_send.insert(host);
        }
        entry.is_due(now) || entry.is_to_hand_in(now)
    }

    /// Returns a deployment.
    pub(super) fn deployment(&self, name: &DeploymentName) -> Option<&Arc<DeploymentEntry>> {
        self.deployments.iter().find(|entry| entry.name() == name)
    }

    /// Replaces the deployments. Versions that nobody carries any more are left out.
    pub(super) fn set_deployments(&mut self, deployments: Vec<Arc<DeploymentEntry>>) {
        let used = self.used_versions();
        let Self { versions, gates, .. } = self;
        versions.retain(|key, _| used.contains(key));
        gates.retain(|name, _| deployments.iter().any(|entry| entry.name() == name));
        for entry in &deployments {
            versions.insert((entry.name().clone(), entry.number()), Arc::clone(entry));
        }
        self.deployments = deployments;
    }

    /// Returns the versions that hosts carry, or that newcomers get.
    pub(super) fn used_versions(&self) -> BTreeSet<(DeploymentName, u32)> {
        let assigned = self.hosts.values().flat_map(|entry| &entry.assigned);
        let assigned = assigned.map(|row| (row.deployment.clone(), row.version));
        let settled = self.gates.iter().filter_map(|(name, gate)| Some((name.clone(), gate.settled?)));
        assigned.chain(settled).collect()
    }

    /// Returns the version that newcomers get while the present one is rolled out, if that is an earlier one.
    pub(super) fn for_newcomers(&self, present: &DeploymentEntry) -> Option<&Arc<DeploymentEntry>> {
        let gate = self.gates.get(present.name()).filter(|gate| gate.version == present.number() && !gate.is_open)?;
        self.versions.get(&(present.name().clone(), gate.settled?))
    }
}

/// Returns the assignment of a deployment, if it is among these.
pub(super) fn assignment<'a>(rows: &'a [AssignmentRow], of: &DeploymentName) -> Option<&'a AssignmentRow> {
    rows.iter().find(|row| row.deployment == *of)
}

/// Returns the names of a version's units.
pub(super) fn units_of(row: &VersionRow) -> Vec<UnitName> {
    row.content.units.iter().map(|unit| unit.unit.clone()).collect()
}

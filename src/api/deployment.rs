//! Deployments: what the console desires of hosts.
//!
//! | Route | Takes | Gives |
//! |---|---|---|
//! | `GET /api/v1/deployments` | | list of [`Deployment`] |
//! | `POST /api/v1/deployments` | [`ApplyDeployments`] | [`AppliedDeployments`] |
//! | `POST /api/v1/deployments/confirm` | [`ConfirmDocuments`] | [`ConfirmedDocuments`] |
//! | `GET /api/v1/deployments/sync` | | [`SyncReport`] |
//! | `GET /api/v1/deployments/{realm}/{name}` | | [`DeploymentDetail`] |
//! | `DELETE /api/v1/deployments/{realm}/{name}?purge=&keep=&dry_run=` | [`RemoveDeployment`] as the query | [`RemovedDeployment`] |
//! | `GET /api/v1/deployments/{realm}/{name}/history` | | list of [`DeploymentVersionInfo`], newest first |
//! | `GET /api/v1/deployments/{realm}/{name}/versions/{number}` | | [`DeploymentVersionDetail`] |
//! | `GET /api/v1/deployments/{realm}/{name}/differences?from=&to=` | | [`DeploymentDifferences`] |
//! | `POST /api/v1/deployments/{realm}/{name}/rollback` | [`RollBack`] | [`AppliedDeployment`] |
//! | `POST /api/v1/deployments/{realm}/{name}/adopt` | [`UnitOnHosts`] | list of [`NamedHost`]: those that changed |
//! | `POST /api/v1/deployments/{realm}/{name}/detach` | [`UnitOnHosts`] | list of [`NamedHost`]: those that changed |
//! | `GET /api/v1/deployments/{realm}/{name}/events` | | server-sent [`DeploymentEvent`]s, until `end` |
//! | `GET /api/v1/host-cordons` | | list of [`HostCordon`]: those that are cordoned |
//! | `POST /api/v1/host-cordons` | [`CordonHosts`] | list of [`HostCordon`] |
//! | `GET /api/v1/vars` | | list of [`Var`] |
//! | `POST /api/v1/vars` | [`NewVar`] | [`Var`] |
//! | `DELETE /api/v1/vars?layer=&name=` | [`VarName`] as the query | |

use std::{collections::BTreeMap, fmt, str::FromStr};

use muster_rules::{cost::ChangeCost, deployment_state::DeploymentState, spec_comparison::FieldDifference};
use muster_topics::count::counted;
use muster_topics::{
    Millis,
    desired::{DeploymentName, DeploymentUnit, DesiredMark},
    diagnostic::Diagnostic,
    name::{Digest, HostId, LabelValue, Name, UnitName},
    select::HostSelect,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ApplyAction, ApplyDocument, NewTarget};

/// `POST /api/v1/deployments`: makes deployments as described in documents. If any document has a fault, nothing is
/// changed, and all faults are reported.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplyDeployments {
    /// The documents, one deployment in each.
    pub documents: Vec<ApplyDocument>,
    /// Only report what would change.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// Take over units of the same names that were made by a verb on hosts of the target; without this, such a
    /// deployment is refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopt: bool,
    /// The digest of a [`Plan`](crate::Plan) of these documents: a host that would change something else than its plan showed
    /// waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Digest>,
}

/// The result of [`ApplyDeployments`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AppliedDeployments {
    /// The result for each document, in their order.
    pub deployments: Vec<AppliedDeployment>,
}

/// The result for one deployment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AppliedDeployment {
    /// The deployment.
    pub deployment: DeploymentName,
    /// The change. An unchanged deployment gets no new version.
    pub action: ApplyAction,
    /// Its version; in a dry run the one that it would have.
    pub version: u32,
    /// The selector, if it changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select: Option<FieldDifference>,
    /// Its units, those that would go, too.
    pub units: Vec<DeploymentUnitChange>,
    /// The number of hosts that carry it.
    pub hosts: u64,
    /// Whether its hosts change a few at a time: it has a [rollout](crate::Rollout).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_rolled_out: bool,
    /// Hosts that did not carry it before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gains: Vec<NamedHost>,
    /// Hosts that carry it no more: its units are removed there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loses: Vec<NamedHost>,
    /// Its units with a number of instances, and where these are placed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placement: Vec<UnitPlacement>,
    /// What is allowed and yet worth knowing, such as a selector that no host matches, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// How the instances of a unit are placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnitPlacement {
    /// The unit.
    pub unit: UnitName,
    /// How many instances there are to be.
    pub count: u32,
    /// How many have a place.
    pub placed: u32,
    /// Those that have none; the first ones of many.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<UnitName>,
    /// Why no host takes these; hosts that the target does not select are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub obstacles: Vec<PlacementObstacleCount>,
    /// Instances that are new or move; only where a change is planned or made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub new: Vec<InstancePlace>,
}

impl UnitPlacement {
    /// Whether instances have no place.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        self.placed < self.count
    }

    /// Says why instances wait, for people: `3 hosts: cordoned; 40 hosts: away`.
    #[must_use]
    pub fn why(&self) -> String {
        let words = |one: &PlacementObstacleCount| format!("{}: {}", counted(one.hosts, "host"), one.why);
        match self.obstacles.is_empty() {
            true => "the target selects no host".to_owned(),
            false => self.obstacles.iter().map(words).collect::<Vec<_>>().join("; "),
        }
    }

    /// Says how many are placed, for people: `2 of 3 placed; shop/web-3 waits (1 host: cordoned)`.
    #[must_use]
    pub fn words(&self) -> String {
        let placed = format!("{} of {} placed", self.placed, self.count);
        let left = u64::from(self.count.saturating_sub(self.placed));
        let names: Vec<&str> = self.waiting.iter().take(3).map(UnitName::as_str).collect();
        let more = left.saturating_sub(names.len() as u64);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let verb = if left == 1 { "waits" } else { "wait" };
        match left {
            0 => placed,
            _ => format!("{placed}; {}{more} {verb} ({})", names.join(", "), self.why()),
        }
    }
}

/// Why hosts take no (further) instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlacementObstacleCount {
    /// How many hosts.
    pub hosts: u64,
    /// Why, for people.
    pub why: String,
}

/// Where an instance is placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InstancePlace {
    /// The instance.
    pub instance: UnitName,
    /// Its host.
    pub to: NamedHost,
    /// The host that it leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<NamedHost>,
}

impl InstancePlace {
    /// Says where it comes to, for people: `shop/web-3: till-7 → till-8`.
    #[must_use]
    pub fn words(&self) -> String {
        let from = self.from.as_ref().map(|from| format!("{} → ", from.hostname)).unwrap_or_default();
        format!("{}: {from}{}", self.instance, self.to.hostname)
    }
}

/// What becomes of a unit of a deployment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeploymentUnitChange {
    /// The unit.
    pub unit: UnitName,
    /// The change.
    pub change: UnitChange,
    /// The effect on its processes, where they run as the version before said; left out for units that go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<ChangeCost>,
    /// The changed fields, with secrets masked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<FieldDifference>,
}

/// The change of a unit from one version of a deployment to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnitChange {
    /// It is new.
    Create,
    /// It changes.
    Change,
    /// It stays unchanged.
    Unchanged,
    /// It is removed from all hosts.
    Remove,
}

impl UnitChange {
    /// The word that is shown to people.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Change => "change",
            Self::Unchanged => "unchanged",
            Self::Remove => "remove",
        }
    }
}

/// A host with its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct NamedHost {
    /// The host.
    pub host: HostId,
    /// Its name.
    pub hostname: String,
}

/// An item of `GET /api/v1/deployments`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Deployment {
    /// Its name.
    pub deployment: DeploymentName,
    /// Its present version.
    pub version: DeploymentVersionInfo,
    /// Which hosts carry it.
    pub select: HostSelect,
    /// The number of its units.
    pub units: u64,
    /// The number of hosts in each state; states without hosts are left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hosts: BTreeMap<DeploymentState, u64>,
}

impl Deployment {
    /// Returns the number of hosts that carry it, or have to remove it.
    #[must_use]
    pub fn hosts_total(&self) -> u64 {
        self.hosts.values().sum()
    }
}

/// What there is to say of a version beside its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeploymentVersionInfo {
    /// Its number.
    pub number: u32,
    /// Its digest.
    pub digest: Digest,
    /// The digest of the version before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Digest>,
    /// Who applied it, or who confirmed that it is taken from hosts.
    pub operator: Name,
    /// When it was applied.
    pub applied_ms: Millis,
    /// The version whose content it repeats, if it is a rollback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<u32>,
}

/// `GET /api/v1/deployments/{realm}/{name}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeploymentDetail {
    /// The deployment.
    #[serde(flatten)]
    pub deployment: Deployment,
    /// The document of its present version, as it was written; values of environments are masked.
    pub document: Value,
    /// The units of its present version; values of environments are masked.
    pub content: Vec<DeploymentUnit>,
    /// Its units with a number of instances, and how many of these have a place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placement: Vec<UnitPlacement>,
    /// Its hosts, by name.
    pub on_hosts: Vec<DeploymentHost>,
}

/// A deployment on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeploymentHost {
    /// The host.
    pub host: HostId,
    /// Its name.
    pub hostname: String,
    /// How far it is.
    pub state: DeploymentState,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Diagnostic>,
    /// The version that the host is to have; `null` if its units are to go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<u32>,
    /// The version that the host has made its desired state, as it reports; 0 if none.
    pub version: u32,
    /// The instances that it is to have of units that the console places.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<UnitName>,
    /// Since when the host has been offline; `null` if it is online.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub away_since_ms: Option<Millis>,
}

/// `GET /api/v1/deployments/{realm}/{name}/versions/{number}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeploymentVersionDetail {
    /// The version.
    pub version: DeploymentVersionInfo,
    /// Which hosts it is for.
    pub select: HostSelect,
    /// The document, as it was written; values of environments are masked.
    pub document: Value,
    /// Its units; values of environments are masked.
    pub content: Vec<DeploymentUnit>,
}

/// `GET /api/v1/deployments/{realm}/{name}/differences?from=…&to=…`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompareVersions {
    /// The number of one version; the one before `to` if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<u32>,
    /// The number of the other version; the present one if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u32>,
}

/// The result of [`CompareVersions`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeploymentDifferences {
    /// The number of one version; 0 stands for no version, which has no units.
    pub from: u32,
    /// The number of the other version.
    pub to: u32,
    /// The selector, if it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select: Option<FieldDifference>,
    /// All units of both.
    pub units: Vec<DeploymentUnitChange>,
}

/// `POST /api/v1/deployments/{realm}/{name}/rollback`: makes a new version with the content of an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RollBack {
    /// The number of the earlier version; the one before the present one if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u32>,
    /// Only report what would change.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// `DELETE /api/v1/deployments/{realm}/{name}?purge=…&keep=…&dry_run=…`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveDeployment {
    /// Remove the data of its units, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub purge: bool,
    /// Leave its units on their hosts, where they keep running without an owner that could change them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep: bool,
    /// Only report what would be removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// The result of [`RemoveDeployment`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemovedDeployment {
    /// The deployment.
    pub deployment: DeploymentName,
    /// Its units.
    pub units: Vec<UnitName>,
    /// The hosts that remove them, or keep them.
    pub hosts: Vec<NamedHost>,
}

/// `POST /api/v1/deployments/{realm}/{name}/adopt` and `…/detach`: has the deployment take over a unit that was made by
/// a verb, or leaves a unit of the deployment to verbs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnitOnHosts {
    /// A unit of the deployment.
    pub unit: UnitName,
    /// The hosts, all of which carry the deployment.
    pub target: NewTarget,
}

/// `POST /api/v1/deployments/confirm`: confirms hosts that have a document or labels which this console never made,
/// because its store was lost or restored from a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfirmDocuments {
    /// The hosts; of these only the unconfirmed ones are concerned.
    pub target: NewTarget,
    /// Only report what would change.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// Whose versions and labels hold: without this, deployments, versions and labels that the console does not know are
    /// taken from hosts, and a version that both have with different content is a conflict, which is refused. With this,
    /// hosts get whatever the console has.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replace: bool,
}

/// The result of [`ConfirmDocuments`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfirmedDocuments {
    /// Hosts that are confirmed, or would be.
    pub hosts: Vec<UnconfirmedHost>,
    /// Hosts that have not sent their documents or labels yet, and stay unconfirmed: they are away, or just asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<NamedHost>,
}

/// A host with a document that the console did not make, or with newer labels of a console.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnconfirmedHost {
    /// The host.
    pub host: HostId,
    /// Its name.
    pub hostname: String,
    /// Which document it has.
    pub mark: DesiredMark,
    /// The deployments that it has or should have, and what becomes of them.
    pub deployments: Vec<UnconfirmedDeployment>,
    /// The labels that a console has given it and this one does not know, and what becomes of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<UnconfirmedLabels>,
}

/// The labels of a host that has newer ones of a console than this console.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnconfirmedLabels {
    /// Those that the host has, as a console has signed them; `null` if it has not handed them in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<BTreeMap<Name, LabelValue>>,
    /// Those that this console has given it.
    pub console: BTreeMap<Name, LabelValue>,
    /// What becomes of them: `rebuild` or `replace`, or `same` if they differ in nothing.
    pub action: ConfirmAction,
}

/// A deployment of an unconfirmed host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnconfirmedDeployment {
    /// The deployment.
    pub deployment: DeploymentName,
    /// The version that the host's document has; `null` if it is not in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_version: Option<u32>,
    /// The version that the console has, before it takes the host's, or that the host gets; `null` if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub console_version: Option<u32>,
    /// What becomes of it.
    pub action: ConfirmAction,
}

/// What a confirmation does with a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConfirmAction {
    /// Both have the same.
    Same,
    /// The console takes the host's version, or labels.
    Rebuild,
    /// The host gets the console's version, or labels.
    Replace,
    /// The host does not have it, and gets it.
    Add,
    /// The console does not have it for this host: its units keep running there as orphans.
    Orphan,
    /// Both have this version, with different content.
    Conflict,
    /// By the labels that hold then, the host no longer carries it, and removes its units.
    Remove,
}

impl ConfirmAction {
    /// The word that is shown to people.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Rebuild => "rebuild",
            Self::Replace => "replace",
            Self::Add => "add",
            Self::Orphan => "orphan",
            Self::Conflict => "conflict",
            Self::Remove => "remove",
        }
    }
}

/// `GET /api/v1/deployments/sync`: what the last comparison of hosts with what is desired of them has found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SyncReport {
    /// The last run; `null` before the first has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<SyncRun>,
    /// How often it runs.
    pub interval_ms: u64,
}

/// A comparison of hosts with what is desired of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SyncRun {
    /// When it began.
    pub begun_ms: Millis,
    /// How long it took.
    pub took_ms: u64,
    /// The number of hosts that were compared.
    pub hosts: u64,
    /// How many of them have the document that they should have.
    pub alike: u64,
    /// Why it did not read everything, for people: such a run has hosts remove nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
    /// The number of findings of each kind.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<SyncFindingKind, u64>,
    /// The first findings, at most [`SYNC_FINDINGS_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<SyncFinding>,
}

/// The most findings of a comparison that are listed one by one.
pub const SYNC_FINDINGS_MAX: usize = 200;

/// What a comparison has found on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SyncFinding {
    /// The host.
    pub host: HostId,
    /// Its name.
    pub hostname: String,
    /// What it is.
    pub kind: SyncFindingKind,
    /// More of it, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// What a comparison may find on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SyncFindingKind {
    /// Its deployments were not those that it should carry, and were assigned again.
    Assigned,
    /// It has an earlier document than the present one, which was sent again.
    Behind,
    /// It has refused the present document.
    Refused,
    /// It has a document that this console did not make.
    Unconfirmed,
    /// It lacks what a unit of a deployment needs, and does not get that.
    Cannot,
    /// It has units of a deployment that it neither carries nor removes.
    Orphans,
    /// It could not be compared.
    Error,
}

impl SyncFindingKind {
    /// The word that is shown to people.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Assigned => "assigned",
            Self::Behind => "behind",
            Self::Refused => "refused",
            Self::Unconfirmed => "unconfirmed",
            Self::Cannot => "cannot",
            Self::Orphans => "orphans",
            Self::Error => "error",
        }
    }
}

/// An event of `GET /api/v1/deployments/{realm}/{name}/events`: the present state of each host first, then each change.
/// The last one is `end`, when no host is left to wait for, or the deployment is removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum DeploymentEvent {
    /// The state on a host.
    Host(DeploymentHost),
    /// A host no longer has any of the deployment.
    Gone(NamedHost),
    /// No host is pending, changing, removing or away.
    End,
}

/// `POST /api/v1/host-cordons`: keeps new deployments from hosts, or allows them again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CordonHosts {
    /// The hosts.
    pub target: NewTarget,
    /// What they are to be.
    pub cordon: Cordon,
}

/// Whether a host carries deployments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Cordon {
    /// It carries those that select it.
    Open,
    /// It keeps those that it has, and gets no new ones.
    Cordoned,
    /// It gets none, and removes those that it has.
    Drained,
}

impl Cordon {
    /// The word that is shown to people.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Cordoned => "cordoned",
            Self::Drained => "drained",
        }
    }

    /// Returns what a host is that has yet to remove `leaving` units, for people.
    #[must_use]
    pub fn words(self, leaving: u64) -> String {
        match (self, leaving) {
            (Self::Drained, many @ 1..) => format!("draining, {} to go", counted(many, "unit")),
            (cordon, _) => cordon.word().to_owned(),
        }
    }
}

/// That a host gets no new deployments, or none at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CordonInfo {
    /// Whether it carries deployments.
    pub cordon: Cordon,
    /// Who set it.
    pub operator: Name,
    /// When it was set.
    pub set_ms: Millis,
    /// The number of units that the host has yet to remove.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub to_remove: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl CordonInfo {
    /// Returns what it is, for people.
    #[must_use]
    pub fn words(&self) -> String {
        self.cordon.words(self.to_remove)
    }
}

/// A unit that a host is to remove, and that is there yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeavingUnit {
    /// The unit.
    pub unit: UnitName,
    /// Whether that waits for an operator: a hold or a snapshot keeps it, or the host's policy lets nothing go.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_kept: bool,
}

/// Whether a host carries deployments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostCordon {
    /// The host.
    pub host: HostId,
    /// Its name.
    pub hostname: String,
    /// Whether it carries deployments.
    pub cordon: Cordon,
    /// The number of deployments that it carries.
    pub deployments: u64,
    /// Whether it is online.
    pub is_online: bool,
    /// The units that it has yet to remove.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leaving: Vec<LeavingUnit>,
    /// Who set it; `null` for a host that is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<Name>,
    /// When it was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_ms: Option<Millis>,
}

/// A layer of variables: `fleet`, `realm:NAME`, `label:NAME=VALUE` or `host:HOST`. A variable of a later layer takes the
/// place of one of the same name in an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub enum VarLayer {
    /// All hosts.
    Fleet,
    /// Hosts that have this realm.
    Realm(Name),
    /// Hosts with this label.
    Label(Name, LabelValue),
    /// One host, by id; requests may give a unique hostname.
    Host(String),
}

impl fmt::Display for VarLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fleet => f.write_str("fleet"),
            Self::Realm(realm) => write!(f, "realm:{realm}"),
            Self::Label(name, value) => write!(f, "label:{name}={value}"),
            Self::Host(host) => write!(f, "host:{host}"),
        }
    }
}

impl FromStr for VarLayer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |error: muster_topics::name::NameError| error.to_string();
        match text.split_once(':') {
            None if text == "fleet" => Ok(Self::Fleet),
            Some(("realm", name)) => name.parse().map(Self::Realm).map_err(wrong),
            Some(("label", label)) => {
                let (name, value) = label.split_once('=').ok_or("expected label:NAME=VALUE")?;
                Ok(Self::Label(name.parse().map_err(wrong)?, value.parse().map_err(wrong)?))
            }
            Some(("host", host)) if !host.is_empty() => Ok(Self::Host(host.to_owned())),
            _ => Err(format!(
                "{text:?} is not a layer of variables: use fleet, realm:NAME, label:NAME=VALUE or host:HOST"
            )),
        }
    }
}

impl TryFrom<String> for VarLayer {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<VarLayer> for String {
    fn from(layer: VarLayer) -> Self {
        layer.to_string()
    }
}

/// `POST /api/v1/vars`: sets a variable in a layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewVar {
    /// The layer.
    pub layer: VarLayer,
    /// Its name.
    pub name: Name,
    /// Its value, at most 4 KiB of JSON.
    pub value: Value,
}

/// `DELETE /api/v1/vars?layer=…&name=…`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VarName {
    /// The layer.
    pub layer: VarLayer,
    /// Its name.
    pub name: Name,
}

/// A variable: an item of `GET /api/v1/vars`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Var {
    /// The layer.
    pub layer: VarLayer,
    /// The hostname of a host's layer, if the host is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Its name.
    pub name: Name,
    /// Its value.
    pub value: Value,
    /// Who set it.
    pub operator: Name,
    /// When it was set.
    pub set_ms: Millis,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_print_as_they_are_parsed() {
        for text in ["fleet", "realm:shop", "label:site=north", "host:anna"] {
            assert_eq!(text.parse::<VarLayer>().unwrap().to_string(), text);
        }
        for text in ["", "realm", "realm:", "label:site", "host:", "flee"] {
            assert!(text.parse::<VarLayer>().is_err(), "{text}");
        }
    }
}

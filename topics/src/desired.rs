//! Desired state: all that the console wants of one host, as one document.
//!
//! A document is a *head*, which is small, signed and retained on `s/<slot>/h/<host>/desired`, and a *body*, whose digest the head
//! has. A body is the same for all hosts that carry the same deployments, and is not signed itself: bytes with the digest
//! that a verified head names are that body, wherever they come from. It follows the head on the same topic, unretained,
//! while it is short ([`BODY_ON_TOPIC_MAX_BYTES`]); a host that has missed it, or that gets a longer one, fetches it with
//! `GET /v1/desired/DIGEST`.
//!
//! **Absence removes nothing**: what is to go is named in [`DesiredBody::remove`] until the host reports it gone.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    Millis, V1,
    admission::AdmissionWait,
    asker::Asker,
    canonical::{self, CanonicalError},
    diagnostic::Diagnostic,
    envelope::{Body, Envelope, Kind},
    name::{Digest, HostId, Name, NameError, UnitName},
    realm::Realm,
    secret::SecretRef,
    select::HostSelect,
    unit::{Run, Spec},
};

/// The longest body that is sent on the topic: a message has at most 64 KiB on every supported broker.
pub const BODY_ON_TOPIC_MAX_BYTES: usize = 48 * 1024;

/// The longest body: that of a host with as many units as one may have, with specs of 2 KiB each.
pub const BODY_MAX_BYTES: usize = 512 * 1024;

/// The most deployments on one host: as many as units.
pub const DEPLOYMENTS_MAX: usize = crate::unit::UNITS_MAX;

/// The most instances of a unit that the console places: as many as hosts.
pub const INSTANCES_MAX: u32 = 10_000;

/// The numbers of the instances that a host carries of units that the console places, by the units.
pub type Instances = BTreeMap<UnitName, BTreeSet<u32>>;

/// The most variables of one host.
pub const VARS_MAX: usize = 256;

/// A deployment's name, `realm/name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct DeploymentName(UnitName);

impl DeploymentName {
    /// Returns the realm's name.
    #[must_use]
    pub fn realm(&self) -> Name {
        self.0.realm()
    }

    /// Returns `realm/name`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl FromStr for DeploymentName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        text.parse().map(Self).map_err(|error: NameError| error.of("deployment"))
    }
}

impl fmt::Display for DeploymentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Orders the documents of one host. The epoch grows when an operator confirms that a console which has lost documents
/// goes on; the generation grows with each document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DesiredMark {
    /// The epoch, from 1; 0 before the first document.
    pub epoch: u64,
    /// The generation, from 1; 0 before the first document.
    pub generation: u64,
}

impl fmt::Display for DesiredMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.generation)
    }
}

/// The head of a host's document: a signed body, retained on `s/<slot>/h/<host>/desired`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DesiredHead {
    /// Version of this payload.
    pub v: V1,
    /// The host; under the signature, so that the document cannot be replayed to another one.
    pub host: HostId,
    /// Which document it is.
    pub mark: DesiredMark,
    /// When the console made it.
    pub issued_ms: Millis,
    /// The digest of the body's bytes.
    pub digest: Digest,
    /// The body's length.
    pub size_bytes: u64,
}

impl Body for DesiredHead {
    const KIND: Kind = Kind::DesiredHead;
}

/// The body of a host's document. An agent that does not know one of its fields refuses the whole, and one that cannot
/// read a deployment refuses that.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DesiredBody {
    /// Version of this payload.
    pub v: V1,
    /// The deployments that the host carries, by name; at most [`DEPLOYMENTS_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deployments: Vec<DesiredDeployment>,
    /// What is to go. The host chooses when, by its own policy, unless it [goes at once](UnitRemoval::at_once).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<UnitRemoval>,
    /// The variables of the host, in all their layers; at most [`VARS_MAX`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub vars: BTreeMap<Name, Value>,
    /// The realms of its units, parents first, as commands have them. A host that has a newer definition keeps that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub realms: Vec<Realm>,
}

/// A deployment on a host. Its units are applied together, or none of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DesiredDeployment {
    /// Its version, whole: from these a console that has lost its store rebuilds its deployments.
    pub version: DeploymentVersion,
    /// Who asked for its units.
    pub asked_by: Asker,
    /// Who asked for units that somebody else asked for, by their names in the version. Reserved: a version has one asker as
    /// yet, and hosts do not read it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub asked_by_others: BTreeMap<UnitName, Asker>,
    /// Whether the host asks before it changes.
    #[serde(default, skip_serializing_if = "Admission::is_free")]
    pub admission: Admission,
    /// The secrets of its units, each with the version that it gets: the versions of a secret are not in those of a
    /// deployment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<UnitName, Vec<SecretRef>>,
    /// Units that a verb has made on this host, and that the deployment takes over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adopt: Vec<UnitName>,
    /// Units of the version that this host does not take from it: an operator has left them to verbs. One that belongs to
    /// the deployment yet goes on as an orphan, until a command makes it local.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub detached: Vec<UnitName>,
    /// The instances that the host carries of units with a [`DeploymentUnit::placement`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub instances: Instances,
    /// The digest of the plan that this host has made of the version, as an operator has seen it: if the host finds another
    /// one when it has prepared the version, it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Digest>,
}

impl DesiredDeployment {
    /// Returns who asked for a unit, by its name in the version.
    #[must_use]
    pub fn asked_by(&self, unit: &UnitName) -> &Asker {
        self.asked_by_others.get(unit).unwrap_or(&self.asked_by)
    }

    /// Returns the units of this host, those that it has detached, too: each with its name and what describes it.
    pub fn units(&self) -> impl Iterator<Item = (UnitName, &DeploymentUnit)> {
        self.version.units.iter().flat_map(|unit| {
            let plain = unit.placement.is_none().then(|| unit.unit.clone());
            let numbers = self.instances.get(&unit.unit).filter(|_| unit.placement.is_some());
            let instances = numbers.into_iter().flatten().map(|number| unit.unit.instance(*number));
            plain.into_iter().chain(instances).map(move |name| (name, unit))
        })
    }
}

/// What a host is asked to plan: the part of its document that would change. What the document has besides stays.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanRequest {
    /// The deployments that change, or that the host would carry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deployments: Vec<DesiredDeployment>,
    /// Deployments that the host would carry no more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<DeploymentName>,
    /// All units that would be named to go.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<UnitRemoval>,
    /// The variables of the host.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub vars: BTreeMap<Name, Value>,
    /// The realms of the units, parents first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub realms: Vec<Realm>,
    /// Only return digests and how many units change in which way.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub brief: bool,
}

/// A request for a plan: itself, or where it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PlanQuestion {
    /// It has room in a command.
    Request(Box<PlanRequest>),
    /// It is larger: the host fetches it with `GET /v1/plans/DIGEST`.
    Stored {
        /// The digest of the request as JSON.
        digest: Digest,
    },
}

impl PlanQuestion {
    /// Returns the deployments that the host would carry, as far as it is known here.
    #[must_use]
    pub fn deployments(&self) -> &[DesiredDeployment] {
        match self {
            Self::Request(request) => &request.deployments,
            Self::Stored { .. } => &[],
        }
    }

    /// The same, mutable.
    pub fn deployments_mut(&mut self) -> &mut [DesiredDeployment] {
        match self {
            Self::Request(request) => &mut request.deployments,
            Self::Stored { .. } => &mut [],
        }
    }
}

impl PlanRequest {
    /// Returns the deployments that it is about.
    pub fn names(&self) -> impl Iterator<Item = &DeploymentName> {
        self.deployments.iter().map(|one| &one.version.deployment).chain(&self.without)
    }

    /// Returns the body of the document that it would lead to, with the present one.
    #[must_use]
    pub fn body(&self, present: DesiredBody) -> DesiredBody {
        let is_other = |one: &DesiredDeployment| self.names().all(|name| *name != one.version.deployment);
        let others: Vec<DesiredDeployment> = present.deployments.into_iter().filter(is_other).collect();
        let mut deployments = [others, self.deployments.clone()].concat();
        deployments.sort_by(|one, other| one.version.deployment.cmp(&other.version.deployment));
        let (remove, vars) = (self.remove.clone(), self.vars.clone());
        let mut realms = self.realms.clone();
        realms.extend(present.realms.into_iter().filter(|known| self.realms.iter().all(|new| new.name != known.name)));
        DesiredBody { v: V1, deployments, remove, vars, realms }
    }
}

/// Whether a host asks the console before it changes anything for a deployment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Admission {
    /// It changes at once.
    #[default]
    Free,
    /// It asks.
    Ask,
}

impl Admission {
    fn is_free(&self) -> bool {
        *self == Self::Free
    }
}

/// An immutable version of a deployment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeploymentVersion {
    /// The deployment.
    pub deployment: DeploymentName,
    /// The version's number, from 1.
    pub number: u32,
    /// The digest of the version before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Digest>,
    /// The hosts.
    pub target: DeploymentTarget,
    /// The units, each once. Their specs have no secrets.
    pub units: Vec<DeploymentUnit>,
    /// How it reaches its hosts; empty: all at once.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub rollout: Map<String, Value>,
}

impl DeploymentVersion {
    /// Returns the digest of the version: SHA-256 over its canonical JSON.
    ///
    /// # Errors
    /// If a number in it has no canonical form.
    pub fn digest(&self) -> Result<Digest, CanonicalError> {
        canonical::digest(self)
    }
}

/// The hosts of a deployment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeploymentTarget {
    /// Each host that this selects carries the deployment.
    pub select: HostSelect,
}

/// A unit of a deployment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeploymentUnit {
    /// Its name.
    pub unit: UnitName,
    /// Its spec.
    pub spec: Box<Spec>,
    /// Whether it should run.
    pub run: Run,
    /// How many instances the console places, and where; without it each host of the target has the unit itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
}

/// How instances of a unit are placed on the hosts of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    /// How many there are, numbered from 1.
    pub count: u32,
    /// Which of the target's hosts may have them; all, if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select: Option<HostSelect>,
    /// The label over whose values they are spread evenly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<Name>,
    /// The most on one host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_per_host: Option<u32>,
    /// How long a host may be away before its instances move; for ever, if it is left out. It gives them up with its next
    /// document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reschedule_ms: Option<Millis>,
}

/// A unit that is to go from a host, if the host still has it of that deployment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnitRemoval {
    /// The unit.
    pub unit: UnitName,
    /// The deployment that it belonged to.
    pub deployment: DeploymentName,
    /// The last version of it that the host was told.
    pub version: u32,
    /// Whether its data goes, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub purge: bool,
    /// Whether it goes at once: an operator has lowered its count or drained the host, or the console has moved it to
    /// another host. Otherwise the host's policy says when.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_once: bool,
}

/// The deployment that a unit belongs to; a unit without one was made by a verb.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnitOwner {
    /// The deployment.
    pub deployment: DeploymentName,
    /// The version that made the unit what it is.
    pub version: u32,
    /// Whether the host's document neither lists nor removes it: it goes on as it is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub orphan: bool,
}

/// What a host reports of its document, within its [state](crate::heartbeat::HostState).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DesiredReport {
    /// The stored document, zeros if there is none yet.
    pub mark: DesiredMark,
    /// The digest of its body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// A later document that was refused: the one before it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<DocumentRefusal>,
    /// What became of each deployment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub deployments: BTreeMap<DeploymentName, DeploymentReport>,
    /// Units that are to go and are there yet.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub removals: BTreeMap<UnitName, RemovalTime>,
}

/// When a unit may go that is to go. An object, because a null would remove the unit from a state of which only changes are
/// sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemovalTime {
    /// The time from which it may go; left out if that waits for an operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_ms: Option<Millis>,
}

/// A document that a host has refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DocumentRefusal {
    /// Which document.
    pub mark: DesiredMark,
    /// Why.
    #[serde(flatten)]
    pub diagnostic: Diagnostic,
}

/// What became of a deployment on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeploymentReport {
    /// The version that the host has made its desired state, 0 if none; its units' reports say how far they are.
    pub version: u32,
    /// The version that it has refused instead of that, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<DeploymentRefusal>,
    /// The version that it is to have instead of that, and why it has not begun with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<AdmissionWait>,
}

/// A version of a deployment that a host has refused: none of its units was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeploymentRefusal {
    /// The version.
    pub version: u32,
    /// Why, for people.
    #[serde(flatten)]
    pub diagnostic: Diagnostic,
}

/// A signed body on `s/<slot>/h/<host>/cmd`: asks the host to hand in what it has of the console, with `PUT /v1/desired`, because
/// the console does not know it: its document, and its labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DocumentRequest {
    /// Version of this payload.
    pub v: V1,
    /// The host; under the signature.
    pub host: HostId,
    /// When the console made this.
    pub issued_ms: Millis,
}

impl Body for DocumentRequest {
    const KIND: Kind = Kind::DocumentRequest;
}

/// What a host hands in with `PUT /v1/desired`: what it has of the console, with the console's signatures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HandedIn {
    /// Version of this payload.
    pub v: V1,
    /// Its document, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<StoredDocument>,
    /// Its labels, if the console has given it any: the signed [`crate::numbered::NumberedDocument`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<Envelope>,
}

/// A document, as a host has stored it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StoredDocument {
    /// The signed head.
    pub head: Envelope,
    /// The body, as text; its digest is the head's.
    pub body: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_ordered_by_epoch_first() {
        let of = |epoch, generation| DesiredMark { epoch, generation };
        assert!(of(2, 1) > of(1, 99) && of(1, 2) > of(1, 1) && of(1, 1) > DesiredMark::default());
        assert_eq!(of(3, 7).to_string(), "3.7");
    }

    #[test]
    fn version_keeps_its_digest_through_a_document() {
        let version: DeploymentVersion = serde_json::from_value(serde_json::json!({
            "deployment": "shop/till", "number": 2, "target": {"select": "label.role=till"}, "units": [{
                "unit": "shop/till", "run": "running",
                "spec": {"kind": "yuno", "artifact": {
                    "sha256": Digest::of(b"a"), "size_bytes": 1, "role": "till", "version": "2"}}}]
        }))
        .unwrap();
        let of = DesiredDeployment {
            version: version.clone(),
            asked_by: Asker::admin("anna".parse().unwrap()),
            asked_by_others: BTreeMap::new(),
            admission: Admission::Free,
            secrets: [("shop/till".parse().unwrap(), vec![])].into(),
            adopt: vec![],
            detached: vec![],
            instances: Instances::new(),
            plan: None,
        };
        let body = DesiredBody { deployments: vec![of], ..DesiredBody::default() };
        let read: DesiredBody = serde_json::from_slice(&serde_json::to_vec(&body).unwrap()).unwrap();
        assert_eq!(read, body);
        assert_eq!(read.deployments[0].version.digest().unwrap(), version.digest().unwrap());
        let other = DeploymentVersion { number: 3, ..version.clone() };
        assert_ne!(other.digest().unwrap(), version.digest().unwrap());
    }

    #[test]
    fn host_has_plain_units_and_its_instances() {
        let spec = serde_json::json!({"kind": "yuno", "artifact": {
            "sha256": Digest::of(b"a"), "size_bytes": 1, "role": "till", "version": "2"}});
        let of: DesiredDeployment = serde_json::from_value(serde_json::json!({
            "version": {"deployment": "shop/till", "number": 2, "target": {"select": "host=*"}, "units": [
                {"unit": "shop/log", "run": "running", "spec": spec},
                {"unit": "shop/web", "run": "running", "spec": spec, "placement": {"count": 12}},
                {"unit": "shop/job", "run": "running", "spec": spec, "placement": {"count": 2}}]},
            "instances": {"shop/web": [2, 11], "shop/log": [1]},
            "asked_by": {"operator": "anna", "role": "admin"},
            "asked_by_others": {"shop/job": {"operator": "bob", "role": "admin"}},
        }))
        .unwrap();
        let asked_by = |unit: &str| of.asked_by(&unit.parse().unwrap()).operator.to_string();
        assert_eq!((asked_by("shop/web"), asked_by("shop/job")), ("anna".to_owned(), "bob".to_owned()));
        let names: Vec<String> = of.units().map(|(name, unit)| format!("{name} {}", unit.unit)).collect();
        assert_eq!(names, ["shop/log shop/log", "shop/web-2 shop/web", "shop/web-11 shop/web"]);
    }

    #[test]
    fn body_with_an_unknown_field_is_not_read() {
        assert!(serde_json::from_str::<DesiredBody>(r#"{"v":1}"#).is_ok());
        assert!(serde_json::from_str::<DesiredBody>(r#"{"v":1,"surprise":true}"#).is_err());
        let error = "till".parse::<DeploymentName>().unwrap_err().to_string();
        assert!(error.contains("deployment"), "{error}");
    }
}

//! Decides what is to change of hosts: which deployments each carries, what it removes, and its document. A plain function of the
//! table, the deployments as they are to be, and what is known of the hosts.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use muster_rules::{
    assignment::{self, AssignmentCandidate, AssignmentConflict},
    realm::Realms,
};
use muster_topics::{
    Millis, V1,
    desired::{Admission, BODY_MAX_BYTES, DeploymentName, DesiredBody, DesiredDeployment, DesiredMark, UnitRemoval},
    name::{Digest, HostId, Name, UnitName},
    realm::Realm,
};
use serde_json::Value;

use super::table::{DeploymentEntry, DesiredTable, HostEntry, assignment};
use crate::store::{deployment::AssignmentRow, desired::DocumentRow};

/// What is known of a host when its targets are evaluated.
#[derive(Clone, Debug, Default)]
pub(super) struct HostLook {
    pub(super) hostname: String,
    /// Which of the deployments select it, in their order.
    pub(super) selected: Vec<bool>,
    pub(super) heard: Option<(u64, u64)>,
    pub(super) vars: Arc<BTreeMap<Name, Value>>,
}

/// What an operator has asked for beyond the deployments themselves.
#[derive(Clone, Debug, Default)]
pub(super) struct PlanWish {
    /// Whether hosts may lose deployments: not after a look that could not read everything.
    pub(super) may_remove: bool,
    /// Deployments whose units go with their data.
    pub(super) purge: HashSet<DeploymentName>,
    /// Deployments whose units are left on their hosts.
    pub(super) keep: HashSet<DeploymentName>,
    /// Units made by verbs that deployments take over.
    pub(super) adopt: HashMap<(HostId, DeploymentName), Vec<UnitName>>,
    /// Removals that are done.
    pub(super) gone: HashMap<HostId, Vec<UnitRemoval>>,
    /// Units that are detached now, or no more, by host.
    pub(super) detached: HashMap<HostId, Vec<(DeploymentName, UnitName)>>,
    pub(super) now: Millis,
}

/// The new state of a host.
#[derive(Clone, Debug)]
pub(super) struct HostPlan {
    pub(super) assigned: Vec<AssignmentRow>,
    pub(super) removals: Vec<UnitRemoval>,
    pub(super) conflicts: Vec<(DeploymentName, AssignmentConflict)>,
    pub(super) vars: Arc<BTreeMap<Name, Value>>,
    pub(super) heard: Option<(u64, u64)>,
    pub(super) document: Option<DocumentRow>,
    pub(super) error: Option<String>,
}

/// A body.
#[derive(Clone, Debug)]
pub(super) struct PlannedBody {
    pub(super) digest: Digest,
    pub(super) content: String,
    pub(super) is_secret: bool,
}

/// What is to change.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) hosts: HashMap<HostId, HostPlan>,
    /// The bodies of new documents.
    pub(super) bodies: Vec<PlannedBody>,
    pub(super) gains: BTreeMap<DeploymentName, Vec<HostId>>,
    pub(super) loses: BTreeMap<DeploymentName, Vec<HostId>>,
}

impl Plan {
    /// The hosts that carry a deployment, of those that are planned for.
    pub(super) fn carriers(&self, name: &DeploymentName) -> impl Iterator<Item = HostId> {
        self.hosts.iter().filter(|(_, host)| assignment(&host.assigned, name).is_some()).map(|(host, _)| *host)
    }
}

/// Plans for these hosts. A host with a document that the console did not make is left as it is.
pub(super) fn plan(
    table: &DesiredTable,
    deployments: &[Arc<DeploymentEntry>],
    looks: &HashMap<HostId, HostLook>,
    wish: &PlanWish,
) -> Plan {
    let mut plan = Plan::default();
    let mut bodies = BodyMaker { deployments, realms: &table.realms, made: HashMap::new() };
    let none = HostEntry::default();
    for (host, look) in looks {
        let entry = table.hosts.get(host).unwrap_or(&none);
        if entry.is_unconfirmed {
            continue;
        }
        let detached = wish.detached.get(host).unwrap_or(&entry.detached);
        let mut one = assigned(*host, entry, deployments, look, wish);
        one.removals = removals(*host, entry, (&one.assigned, deployments), table, wish);
        for row in &one.assigned {
            if assignment(&entry.assigned, &row.deployment).is_none() {
                plan.gains.entry(row.deployment.clone()).or_default().push(*host);
            }
        }
        for row in &entry.assigned {
            if assignment(&one.assigned, &row.deployment).is_none() {
                plan.loses.entry(row.deployment.clone()).or_default().push(*host);
            }
        }
        if entry.may_have_document() {
            match bodies.body(&one, detached) {
                Ok(body) => one.document = document(entry, &body, wish.now),
                Err(error) => one.error = Some(error),
            }
        }
        plan.hosts.insert(*host, one);
    }
    let used: HashSet<&Digest> =
        plan.hosts.values().filter_map(|host| host.document.as_ref()).map(|document| &document.digest).collect();
    let made = bodies.made.into_values().filter_map(Result::ok);
    plan.bodies = made.filter(|body| used.contains(&body.digest)).map(Arc::unwrap_or_clone).collect();
    plan
}

fn assigned(
    host: HostId,
    entry: &HostEntry,
    deployments: &[Arc<DeploymentEntry>],
    look: &HostLook,
    wish: &PlanWish,
) -> HostPlan {
    let has = |name: &DeploymentName| assignment(&entry.assigned, name);
    let candidate = |(index, one): (usize, &'_ Arc<DeploymentEntry>)| {
        let has = has(one.name()).is_some();
        let selects = look.selected.get(index).copied().unwrap_or(false) || has && !wish.may_remove;
        (has, selects)
    };
    let candidates: Vec<AssignmentCandidate<'_>> = deployments
        .iter()
        .enumerate()
        .map(|(index, one)| {
            let (has, selects) = candidate((index, one));
            AssignmentCandidate { deployment: one.name(), units: &one.units, selects, has }
        })
        .collect();
    let found = assignment::assign(&candidates, entry.gate());
    let row = |one: &Arc<DeploymentEntry>| {
        let before = has(one.name());
        let mut adopt = before.map(|row| row.adopt.clone()).unwrap_or_default();
        adopt.extend(wish.adopt.get(&(host, one.name().clone())).into_iter().flatten().cloned());
        adopt.retain(|unit| one.units.contains(unit));
        adopt.sort();
        adopt.dedup();
        AssignmentRow { deployment: one.name().clone(), version: one.number(), adopt }
    };
    let mut assigned: Vec<AssignmentRow> =
        found.carries.iter().filter_map(|place| deployments.get(*place)).map(row).collect();
    assigned.sort_by(|one, other| one.deployment.cmp(&other.deployment));
    let name =
        |(place, conflict): (usize, AssignmentConflict)| Some((deployments.get(place)?.name().clone(), conflict));
    HostPlan {
        assigned,
        removals: Vec::new(),
        conflicts: found.conflicts.into_iter().filter_map(name).collect(),
        vars: Arc::clone(&look.vars),
        heard: look.heard,
        document: None,
        error: None,
    }
}

/// Returns the units that a host is to remove: those of deployments that it loses, those that a new version has no more, and
/// those of before that it has not reported gone.
fn removals(
    host: HostId,
    entry: &HostEntry,
    (assigned, deployments): (&[AssignmentRow], &[Arc<DeploymentEntry>]),
    table: &DesiredTable,
    wish: &PlanWish,
) -> Vec<UnitRemoval> {
    let units = |deployment: &DeploymentName, version| table.units.get(&(deployment.clone(), version));
    let is_wanted = |removal: &UnitRemoval| {
        let entry = deployments.iter().find(|entry| *entry.name() == removal.deployment);
        assignment(assigned, &removal.deployment).is_some()
            && entry.is_some_and(|entry| entry.units.contains(&removal.unit))
    };
    let mut removals: Vec<UnitRemoval> = entry.removals.clone();
    // A host that was never sent a document has nothing to remove.
    for before in entry.assigned.iter().filter(|_| entry.document.is_some()) {
        if wish.keep.contains(&before.deployment) {
            continue;
        }
        let purge = wish.purge.contains(&before.deployment);
        for unit in units(&before.deployment, before.version).into_iter().flatten() {
            let is_detached = entry.detached.iter().any(|(of, one)| *of == before.deployment && one == unit);
            let (unit, deployment, version) = (unit.clone(), before.deployment.clone(), before.version);
            if !is_detached {
                removals.push(UnitRemoval { unit, deployment, version, purge });
            }
        }
    }
    let gone = wish.gone.get(&host);
    removals.retain(|one| !is_wanted(one) && !gone.is_some_and(|gone| gone.contains(one)));
    removals.sort();
    // One at a time of those that claim a unit: a host that has it from another one reports it gone.
    removals.dedup_by(|later, first| later.unit == first.unit);
    removals
}

/// Returns the next document of a host, if it is to have another.
fn document(entry: &HostEntry, body: &PlannedBody, now: Millis) -> Option<DocumentRow> {
    let before = entry.document.as_ref();
    let is_same = before.is_some_and(|before| before.digest == body.digest);
    let is_nothing = before.is_none() && body.content == EMPTY;
    if entry.above.is_none() && (is_same || is_nothing) {
        return None;
    }
    let last = before.map_or(DesiredMark { epoch: 1, generation: 0 }, |before| before.mark);
    let mark = match entry.above {
        Some(above) => DesiredMark {
            epoch: above.epoch.max(last.epoch).saturating_add(1),
            generation: above.generation.max(last.generation).saturating_add(1),
        },
        None => DesiredMark { epoch: last.epoch, generation: last.generation.saturating_add(1) },
    };
    Some(DocumentRow {
        mark,
        digest: body.digest.clone(),
        size_bytes: body.content.len() as u64,
        is_secret: body.is_secret,
        made_ms: now,
        is_sent: false,
    })
}

/// The body of a host of which nothing is desired.
const EMPTY: &str = r#"{"v":1}"#;

/// Makes bodies, each once, however many hosts have it.
struct BodyMaker<'a> {
    deployments: &'a [Arc<DeploymentEntry>],
    realms: &'a Realms,
    made: HashMap<String, Result<Arc<PlannedBody>, String>>,
}

impl BodyMaker<'_> {
    /// Returns the realms of a body's units, parents first.
    fn realms(&self, body: &DesiredBody) -> Vec<Realm> {
        let units = body.deployments.iter().flat_map(|one| &one.version.units);
        let names: BTreeSet<Name> = units.map(|unit| unit.unit.realm()).collect();
        let mut chain: Vec<Realm> = Vec::new();
        for realm in names.iter().flat_map(|name| self.realms.chain(name)) {
            if chain.iter().all(|told| told.name != realm.name) {
                chain.push(realm);
            }
        }
        chain
    }

    fn body(&mut self, host: &HostPlan, detached: &[(DeploymentName, UnitName)]) -> Result<Arc<PlannedBody>, String> {
        let rows = host.assigned.iter().map(|row| (&row.deployment, row.version, &row.adopt));
        let rows: Vec<_> = rows.collect();
        // The text of all that bodies are made of.
        let key = format!("{rows:?} {detached:?} {:?} {:?}", host.removals, host.vars);
        if let Some(made) = self.made.get(&key) {
            return made.clone();
        }
        let made = self.make(host, detached).map(Arc::new);
        self.made.insert(key, made.clone());
        made
    }

    fn make(&self, host: &HostPlan, detached: &[(DeploymentName, UnitName)]) -> Result<PlannedBody, String> {
        let mut body =
            DesiredBody { v: V1, remove: host.removals.clone(), vars: (*host.vars).clone(), ..DesiredBody::default() };
        let mut is_secret = false;
        for row in &host.assigned {
            let entry = self.deployments.iter().find(|entry| *entry.name() == row.deployment);
            let Some(entry) = entry else { continue };
            is_secret |= entry.has_values;
            let of = detached.iter().filter(|(of, unit)| *of == row.deployment && entry.units.contains(unit));
            body.deployments.push(DesiredDeployment {
                version: (*entry.row.content).clone(),
                admission: Admission::Free,
                secrets: entry.secrets.clone()?,
                adopt: row.adopt.clone(),
                detached: of.map(|(_, unit)| unit.clone()).collect(),
            });
        }
        body.realms = self.realms(&body);
        let content = serde_json::to_string(&body).map_err(|error| error.to_string())?;
        if content.len() > BODY_MAX_BYTES {
            return Err(format!("its document would have {} bytes, and {BODY_MAX_BYTES} are allowed", content.len()));
        }
        Ok(PlannedBody { digest: Digest::of(content.as_bytes()), content, is_secret })
    }
}

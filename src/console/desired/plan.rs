//! Decides what is to change of hosts: which deployments each carries, what it removes, and its document. A plain function of the
//! table, the deployments as they are to be, and what is known of the hosts.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use muster_rules::{
    assignment::{self, AssignmentCandidate, AssignmentConflict},
    capability::MissingCapability,
    desired::host_body,
    placement::Resources,
};
use muster_topics::{
    Millis, V1,
    asker::Asker,
    canonical::signable,
    desired::{
        Admission, BODY_MAX_BYTES, DeploymentName, DesiredBody, DesiredDeployment, DesiredMark, Instances, PlanRequest,
        UnitRemoval,
    },
    name::{Digest, HostId, Name, UnitName},
    realm::Realm,
};
use serde_json::Value;

use super::places::{Places, UnitFit, kept};
use super::table::{DeploymentEntry, DesiredTable, HostEntry, assignment};
use crate::store::{deployment::AssignmentRow, desired::DocumentRow};

/// What is known of a host when its targets are evaluated.
#[derive(Clone, Debug, Default)]
pub(super) struct HostLook {
    pub(super) hostname: String,
    /// Which of the deployments select it, in their order.
    pub(super) selected: Vec<bool>,
    /// Which of the versions for newcomers select it, in the order of their deployments.
    pub(super) selected_before: Vec<bool>,
    /// The group in the budget of each deployment's rollout, in their order.
    pub(super) groups: Vec<Option<Arc<str>>>,
    /// Whether it may have instances of the placed units of each deployment, in their order.
    pub(super) fits: Vec<Vec<UnitFit>>,
    /// What it has for them.
    pub(super) total: Resources,
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
    /// Of deployments that are applied now, the digests of plans that an operator has seen, by host.
    pub(super) seen: HashMap<DeploymentName, Arc<BTreeMap<HostId, Digest>>>,
    /// Removals that are done.
    pub(super) gone: HashMap<HostId, Vec<UnitRemoval>>,
    /// Units that are detached now, or no more, by host.
    pub(super) detached: HashMap<HostId, Vec<(DeploymentName, UnitName)>>,
    /// Where instances are; without it each host keeps those that it has.
    pub(super) places: Option<Arc<Places>>,
    pub(super) now: Millis,
}

/// The new state of a host.
#[derive(Clone, Debug)]
pub(super) struct HostPlan {
    pub(super) assigned: Vec<AssignmentRow>,
    pub(super) removals: Vec<UnitRemoval>,
    pub(super) conflicts: Vec<(DeploymentName, AssignmentConflict)>,
    pub(super) lacking: Vec<(DeploymentName, MissingCapability)>,
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

/// Plans for these hosts. A host that an operator has to confirm is left as it is.
pub(super) fn plan(
    table: &DesiredTable,
    deployments: &[Arc<DeploymentEntry>],
    looks: &HashMap<HostId, HostLook>,
    wish: &PlanWish,
) -> Plan {
    let mut plan = Plan::default();
    let mut bodies = BodyMaker { table, deployments, made: HashMap::new() };
    let none = HostEntry::default();
    for (host, look) in looks {
        let entry = table.hosts.get(host).unwrap_or(&none);
        if entry.is_open() {
            continue;
        }
        let detached = wish.detached.get(host).unwrap_or(&entry.detached);
        let mut one = assigned(*host, entry, (table, deployments), look, wish);
        one.removals = removals(*host, entry, &one.assigned, (table, deployments), wish);
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
            match bodies.body(&one, entry, detached) {
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

/// Returns the version of a deployment that a host is to have. A host that carries an earlier one gets the present one, except
/// while that is rolled out and the host was not there when that began; `None` if it lacks what that needs, and has none.
fn version_for<'a>(
    table: &'a DesiredTable,
    present: &'a Arc<DeploymentEntry>,
    entry: &HostEntry,
    (selected_before, instances): (bool, &Instances),
) -> Option<&'a Arc<DeploymentEntry>> {
    let name = present.name();
    let has = assignment(&entry.assigned, name);
    let held = || table.versions.get(&(name.clone(), has?.version));
    if entry.lacks(&present.plain_capabilities).is_some() {
        return held();
    }
    let Some(before) = table.for_newcomers(present) else { return Some(present) };
    let found = match has {
        Some(row) if row.version == present.number() => present,
        Some(_) => held().unwrap_or(present),
        None if selected_before => before,
        None => present,
    };
    // Instances that an earlier version has not need the present one.
    Some(if found.covers(instances) { found } else { present })
}

fn assigned(
    host: HostId,
    entry: &HostEntry,
    (table, deployments): (&DesiredTable, &[Arc<DeploymentEntry>]),
    look: &HostLook,
    wish: &PlanWish,
) -> HostPlan {
    let has = |name: &DeploymentName| assignment(&entry.assigned, name);
    let instances: Vec<Instances> =
        deployments.iter().map(|one| instances(host, has(one.name()), one, wish.places.as_deref())).collect();
    let is_selected = |index: usize, one: &DeploymentEntry| {
        let has = has(one.name()).is_some();
        // Which hosts it selects is not known.
        if one.row.is_damaged {
            return has;
        }
        let has_any = !one.plain.is_empty() || instances.get(index).is_some_and(|instances| !instances.is_empty());
        // Nor which hosts it does not select, as long as its secrets are not.
        let is_kept = has && (!wish.may_remove || one.secrets.is_err());
        has_any && look.selected.get(index).copied().unwrap_or(false) || is_kept
    };
    let no_instances = Instances::new();
    let instances_of = |index: usize| instances.get(index).unwrap_or(&no_instances);
    let selected_before = |index: usize| look.selected_before.get(index).copied().unwrap_or(false);
    let wanted: Vec<Option<&Arc<DeploymentEntry>>> = deployments
        .iter()
        .enumerate()
        .map(|(index, one)| version_for(table, one, entry, (selected_before(index), instances_of(index))))
        .collect();
    let units: Vec<Cow<'_, [UnitName]>> = wanted
        .iter()
        .enumerate()
        .map(|(index, wanted)| wanted.map(|wanted| wanted.units_with(instances_of(index))).unwrap_or_default())
        .collect();
    let lacks = |(index, one): (usize, &Arc<DeploymentEntry>)| {
        let missing = entry.lacks(&one.plain_capabilities)?;
        is_selected(index, one).then(|| (one.name().clone(), missing))
    };
    let lacking = deployments.iter().enumerate().filter_map(lacks).collect();
    let candidates: Vec<AssignmentCandidate<'_>> = deployments
        .iter()
        .zip(&wanted)
        .enumerate()
        .map(|(index, (one, wanted))| AssignmentCandidate {
            deployment: one.name(),
            units: units.get(index).map_or(&[][..], |units| units),
            selects: wanted.is_some() && is_selected(index, one),
            has: has(one.name()).is_some(),
        })
        .collect();
    let found = assignment::assign(&candidates, entry.gate());
    let row = |place: usize| {
        let one = (*wanted.get(place)?)?;
        let before = has(one.name());
        let mut adopt = before.map(|row| row.adopt.clone()).unwrap_or_default();
        adopt.extend(wish.adopt.get(&(host, one.name().clone())).into_iter().flatten().cloned());
        adopt.retain(|unit| units.get(place).is_some_and(|units| units.contains(unit)));
        adopt.sort();
        adopt.dedup();
        let version = one.number();
        let plan = match wish.seen.get(one.name()) {
            Some(seen) => seen.get(&host).cloned(),
            None => before.filter(|row| row.version == version).and_then(|row| row.plan.clone()),
        };
        let instances = instances_of(place).clone();
        Some(AssignmentRow { deployment: one.name().clone(), version, adopt, plan, instances })
    };
    let mut assigned: Vec<AssignmentRow> = found.carries.iter().filter_map(|place| row(*place)).collect();
    assigned.sort_by(|one, other| one.deployment.cmp(&other.deployment));
    let name =
        |(place, conflict): (usize, AssignmentConflict)| Some((deployments.get(place)?.name().clone(), conflict));
    HostPlan {
        assigned,
        removals: Vec::new(),
        conflicts: found.conflicts.into_iter().filter_map(name).collect(),
        lacking,
        vars: Arc::clone(&look.vars),
        heard: look.heard,
        document: None,
        error: None,
    }
}

/// Returns the instances that a host is to have of a deployment.
fn instances(
    host: HostId,
    before: Option<&AssignmentRow>,
    present: &DeploymentEntry,
    places: Option<&Places>,
) -> Instances {
    match places {
        _ if !present.has_placed => Instances::new(),
        Some(places) => places.on(host, present.name()).cloned().unwrap_or_default(),
        None => kept(before, present),
    }
}

/// Returns the units that a host is to remove: those of deployments that it loses, those that a new version has no more, and
/// those of before that it has not reported gone. An instance that another host has now, or none any more, goes at once, and
/// so does all that a drained host has to lose.
fn removals(
    host: HostId,
    entry: &HostEntry,
    assigned: &[AssignmentRow],
    (table, deployments): (&DesiredTable, &[Arc<DeploymentEntry>]),
    wish: &PlanWish,
) -> Vec<UnitRemoval> {
    let units = |row: &AssignmentRow| {
        let version = table.versions.get(&(row.deployment.clone(), row.version));
        version.map(|version| version.units_with(&row.instances)).unwrap_or_default()
    };
    let is_wanted = |removal: &UnitRemoval| {
        let row = assignment(assigned, &removal.deployment);
        let version = row.and_then(|row| Some((row, version(table, deployments, row)?)));
        version.is_some_and(|(row, version)| version.units_with(&row.instances).contains(&removal.unit))
    };
    // An instance of a unit that the console still places.
    let is_given_up = |row: &AssignmentRow, unit: &UnitName| {
        let is_instance = |of: &UnitName, numbers: &BTreeSet<u32>| numbers.iter().any(|n| of.instance(*n) == *unit);
        let of = row.instances.iter().find(|(of, numbers)| is_instance(of, numbers));
        let present = deployments.iter().find(|one| *one.name() == row.deployment);
        of.zip(present).is_some_and(|((of, _), present)| present.placed().any(|(placed, _)| placed.unit == *of))
    };
    let mut removals: Vec<UnitRemoval> = entry.removals.clone();
    // A host that has no document has nothing to remove. It may have one of before the console's store was lost.
    let has_document = entry.document.is_some() || entry.above.is_some();
    for before in entry.assigned.iter().filter(|_| has_document) {
        if wish.keep.contains(&before.deployment) {
            continue;
        }
        let purge = wish.purge.contains(&before.deployment);
        for unit in units(before).into_owned() {
            let is_detached = entry.detached.iter().any(|(of, one)| *of == before.deployment && *one == unit);
            let (deployment, version) = (before.deployment.clone(), before.version);
            if !is_detached {
                let at_once = is_given_up(before, &unit);
                removals.push(UnitRemoval { unit, deployment, version, purge, at_once });
            }
        }
    }
    let gone = wish.gone.get(&host);
    removals.retain(|one| !is_wanted(one) && !gone.is_some_and(|gone| gone.contains(one)));
    removals.sort();
    // One at a time of those that claim a unit: a host that has it from another one reports it gone.
    removals.dedup_by(|later, first| later.unit == first.unit);
    if entry.cordon.as_ref().is_some_and(|cordon| cordon.is_drained) {
        removals.iter_mut().for_each(|removal| removal.at_once = true);
    }
    removals
}

/// Returns the version that a host is assigned.
pub(super) fn version<'a>(
    table: &'a DesiredTable,
    deployments: &'a [Arc<DeploymentEntry>],
    row: &AssignmentRow,
) -> Option<&'a Arc<DeploymentEntry>> {
    let present = deployments.iter().find(|entry| *entry.name() == row.deployment && entry.number() == row.version);
    present.or_else(|| table.versions.get(&(row.deployment.clone(), row.version)))
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
            epoch: signable(above.epoch.max(last.epoch).saturating_add(1)),
            generation: signable(above.generation.max(last.generation).saturating_add(1)),
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
    table: &'a DesiredTable,
    deployments: &'a [Arc<DeploymentEntry>],
    made: HashMap<String, Result<Arc<PlannedBody>, String>>,
}

/// Returns a deployment as the document of a host has it.
pub(super) fn desired_deployment(
    entry: &DeploymentEntry,
    row: &AssignmentRow,
    detached: &[(DeploymentName, UnitName)],
) -> Result<DesiredDeployment, String> {
    let of = detached.iter().filter(|(of, unit)| *of == row.deployment && entry.units.contains(unit));
    Ok(DesiredDeployment {
        version: (*entry.row.content).clone(),
        asked_by: Asker::admin(entry.row.info.operator.clone()),
        asked_by_others: BTreeMap::new(),
        admission: if entry.is_rolled_out() { Admission::Ask } else { Admission::Free },
        secrets: entry.secrets.clone()?,
        adopt: row.adopt.clone(),
        detached: of.map(|(_, unit)| unit.clone()).collect(),
        instances: row.instances.clone(),
        plan: row.plan.clone(),
    })
}

/// Returns the realms of the units of deployments, parents first.
fn realms(table: &DesiredTable, deployments: &[DesiredDeployment]) -> Vec<Realm> {
    let names: BTreeSet<Name> =
        deployments.iter().flat_map(|one| &one.version.units).map(|unit| unit.unit.realm()).collect();
    let mut chain: Vec<Realm> = Vec::new();
    for realm in names.iter().flat_map(|name| table.realms.chain(name)) {
        if chain.iter().all(|told| told.name != realm.name) {
            chain.push(realm);
        }
    }
    chain
}

/// Returns what hosts are to be asked about deployments that are not applied yet, each once, with its hosts.
///
/// # Errors
/// If it is not known what a host would be sent.
pub(super) fn requests(
    table: &DesiredTable,
    deployments: &[Arc<DeploymentEntry>],
    plan: &Plan,
    names: &BTreeSet<DeploymentName>,
) -> Result<Vec<(PlanRequest, Vec<HostId>)>, String> {
    let mut found: HashMap<String, (PlanRequest, Vec<HostId>)> = HashMap::new();
    let none = HostEntry::default();
    for (host, planned) in &plan.hosts {
        let entry = table.hosts.get(host).unwrap_or(&none);
        let rows: Vec<&AssignmentRow> = planned.assigned.iter().filter(|row| names.contains(&row.deployment)).collect();
        let is_lost = |name: &&DeploymentName| {
            assignment(&entry.assigned, name).is_some() && assignment(&planned.assigned, name).is_none()
        };
        let without: Vec<&DeploymentName> = names.iter().filter(is_lost).collect();
        if rows.is_empty() && without.is_empty() {
            continue;
        }
        let keys =
            rows.iter().map(|row| (&row.deployment, row.version, &row.adopt, &row.instances)).collect::<Vec<_>>();
        let key = format!("{keys:?} {without:?} {:?} {:?} {:?}", planned.removals, planned.vars, entry.detached);
        if let Some((_, hosts)) = found.get_mut(&key) {
            hosts.push(*host);
            continue;
        }
        let mut carried = Vec::new();
        for row in rows {
            let Some(version) = version(table, deployments, row) else { continue };
            carried.push(DesiredDeployment { plan: None, ..desired_deployment(version, row, &entry.detached)? });
        }
        let request = PlanRequest {
            realms: realms(table, &carried),
            deployments: carried,
            without: without.into_iter().cloned().collect(),
            remove: planned.removals.clone(),
            vars: (*planned.vars).clone(),
            brief: true,
        };
        found.insert(key, (request, vec![*host]));
    }
    let mut found: Vec<(PlanRequest, Vec<HostId>)> = found.into_values().collect();
    found.iter_mut().for_each(|(_, hosts)| hosts.sort_unstable());
    found.sort_by(|(_, one), (_, other)| one.cmp(other));
    Ok(found)
}

impl BodyMaker<'_> {
    /// Returns the removals that a host's document has. While the host has not begun with a version that it asks for, it
    /// keeps the units that this version has no more.
    fn due_removals(&self, host: &HostPlan, entry: &HostEntry) -> Vec<UnitRemoval> {
        let has_begun = |removal: &&UnitRemoval| {
            let Some(row) = assignment(&host.assigned, &removal.deployment) else { return true };
            let is_free = version(self.table, self.deployments, row).is_none_or(|version| !version.is_rolled_out());
            is_free || entry.reported_version(&row.deployment) == Some(row.version)
        };
        host.removals.iter().filter(has_begun).cloned().collect()
    }

    fn body(
        &mut self,
        host: &HostPlan,
        entry: &HostEntry,
        detached: &[(DeploymentName, UnitName)],
    ) -> Result<Arc<PlannedBody>, String> {
        let rows =
            host.assigned.iter().map(|row| (&row.deployment, row.version, &row.adopt, &row.plan, &row.instances));
        let rows: Vec<_> = rows.collect();
        // The text of all that bodies are made of.
        let removals = self.due_removals(host, entry);
        let key = format!("{rows:?} {detached:?} {removals:?} {:?}", host.vars);
        if let Some(made) = self.made.get(&key) {
            return made.clone();
        }
        let made = self.make(host, removals, detached).map(Arc::new);
        self.made.insert(key, made.clone());
        made
    }

    fn make(
        &self,
        host: &HostPlan,
        remove: Vec<UnitRemoval>,
        detached: &[(DeploymentName, UnitName)],
    ) -> Result<PlannedBody, String> {
        let mut body = DesiredBody { v: V1, remove, vars: (*host.vars).clone(), ..DesiredBody::default() };
        let mut is_secret = false;
        for row in &host.assigned {
            let Some(entry) = version(self.table, self.deployments, row) else { continue };
            is_secret |= entry.has_values;
            body.deployments.push(desired_deployment(entry, row, detached)?);
        }
        body.realms = realms(self.table, &body.deployments);
        let content = serde_json::to_string(&body).map_err(|error| error.to_string())?;
        if content.len() > BODY_MAX_BYTES {
            return Err(format!(
                "its document would have {} bytes; at most {BODY_MAX_BYTES} are allowed",
                content.len()
            ));
        }
        // What a host would refuse, it is not sent; it keeps what it has.
        if let Some(fault) = host_body::read(content.as_bytes()).map_or_else(Some, |read| read.fault()) {
            return Err(format!("hosts would refuse its document: {fault}"));
        }
        Ok(PlannedBody { digest: Digest::of(content.as_bytes()), content, is_secret })
    }
}

//! Applies documents of deployments, goes back to earlier versions, and removes deployments.
//!
//! **Invariant: if any document has a fault, nothing is changed**, and all faults are reported.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use axum::http::StatusCode;
use jiff::tz::TimeZoneDatabase;
use muster_api::{
    AppliedDeployment, AppliedDeployments, ApplyAction, ApplyDeployments, ApplyDocument, ChangeKind,
    DeploymentVersionInfo, NamedHost, NewCommand, NewPlan, NewTarget, RemoveDeployment, RemovedDeployment, RollBack,
    UnitOnHosts,
};
use muster_base::{clock::now_ms, crash};
use muster_rules::{
    assignment::AssignmentConflict,
    capability::MissingCapability,
    deployment,
    document::{DocumentFault, WantedUnit},
    edit, start_order,
};
use muster_topics::count::counted;
use muster_topics::{
    command::Verb,
    desired::{DeploymentName, DeploymentTarget, DeploymentUnit, DeploymentVersion, Placement, PlanRequest},
    endpoint::Protocol,
    name::{HostId, Name, UnitName},
    select::HostSelect,
    unit::{Run, Spec},
};
use serde_json::{Map, Value};

use super::{
    change::write,
    places::{self, Places},
    plan::{HostLook, Plan, PlanWish, plan, requests},
    show::{no_earlier_version, select_difference, unit_changes, unknown},
    table::{DeploymentEntry, DesiredTable, HostEntry, assignment, lacked},
};
use crate::{
    apply::{Catalogue, DocumentFaults},
    dispatch,
    error::Error,
    host_plan::SeenPlan,
    list::first_names,
    page_change::PageChange,
    rollout,
    state::Console,
    store::{self, StoreError, change::NewChange, deployment::VersionRow},
};

/// The most deployments in one request.
const DOCUMENTS_MAX: usize = 100;
/// The most deployments: each is evaluated for every host.
const DEPLOYMENTS_ALL_MAX: usize = 1_000;
/// The versions of a deployment that are kept, beside those that hosts have: weeks of daily changes, in some hundred
/// kilobytes.
pub(super) const VERSIONS_KEPT: u32 = 50;
/// From how many hosts on it is said that all change at once: as many as a rollout has waves for.
const WITHOUT_ROLLOUT_NOTED: usize = 10;
/// The most hosts that a fault names.
const NAMED_MAX: usize = 5;

/// A version that is to be.
struct VersionDraft {
    source: String,
    deployment: DeploymentName,
    select: HostSelect,
    units: Vec<DeploymentUnit>,
    rollout: Map<String, Value>,
    document: Value,
    repeats: Option<u32>,
    before: Option<Arc<DeploymentEntry>>,
}

impl VersionDraft {
    /// Whether the deployment is so already.
    fn is_unchanged(&self) -> bool {
        self.before.as_ref().is_some_and(|before| {
            let content = &before.row.content;
            !before.row.is_damaged
                && content.target.select == self.select
                && content.units == self.units
                && content.rollout == self.rollout
        })
    }
}

/// How a change is made.
#[derive(Clone, Copy)]
struct ApplyMode<'a> {
    dry_run: bool,
    adopt: bool,
    /// The plan that an operator has seen.
    seen: Option<&'a SeenPlan>,
}

/// What drafts would lead to.
struct Decided {
    deployments: Vec<Arc<DeploymentEntry>>,
    /// The versions of the drafts, in their order.
    made: Vec<Arc<DeploymentEntry>>,
    looks: HashMap<HostId, HostLook>,
    planned: Plan,
    places: Option<Arc<Places>>,
    applied: Vec<AppliedDeployment>,
}

impl Console {
    /// Applies documents of deployments: all, or none.
    pub async fn apply_deployments(
        &self,
        operator: &Name,
        apply: ApplyDeployments,
    ) -> Result<AppliedDeployments, Error> {
        let shared = &self.shared;
        shared.check_operator(operator).await?;
        check_documents(&apply.documents)?;
        let _content = shared.content.lock.lock().await;
        let _changing = shared.hosts.desired.changing.lock().await;
        let seen = apply.plan.as_ref().map(|digest| shared.hosts.plans.seen(digest)).transpose()?;
        let (drafts, faults) = self.draft(&apply.documents).await?;
        let mode = ApplyMode { dry_run: apply.dry_run, adopt: apply.adopt, seen: seen.as_deref() };
        Ok(AppliedDeployments { deployments: self.settle(operator, drafts, mode, faults).await? })
    }

    /// Returns what hosts have to be asked to find out what documents would change.
    pub(crate) async fn plan_requests(&self, operator: &Name, wanted: &NewPlan) -> Result<PlanRequests, Error> {
        let shared = &self.shared;
        shared.check_operator(operator).await?;
        check_documents(&wanted.documents)?;
        let _content = shared.content.lock.lock().await;
        let _changing = shared.hosts.desired.changing.lock().await;
        let (drafts, faults) = self.draft(&wanted.documents).await?;
        let mode = ApplyMode { dry_run: true, adopt: wanted.adopt, seen: None };
        let decided = self.decide(operator, &drafts, mode, faults, now_ms()).await?;
        let names: BTreeSet<DeploymentName> = drafts.iter().map(|draft| draft.deployment.clone()).collect();
        let table = shared.hosts.desired.table();
        let requests = requests(&table, &decided.deployments, &decided.planned, &names)
            .map_err(|error| Error::new(StatusCode::INTERNAL_SERVER_ERROR, "secret_unreadable", error))?;
        let is_heard = |host: &HostId| table.hosts.get(host).is_some_and(|entry| entry.report.is_some());
        let heard = requests.iter().flat_map(|(_, hosts)| hosts).copied().filter(is_heard).collect();
        let hostnames = decided.looks.iter().map(|(host, look)| (*host, look.hostname.clone())).collect();
        let contents = decided.made.iter().map(|entry| Arc::clone(&entry.row.content)).collect();
        Ok(PlanRequests { requests, heard, hostnames, contents, applied: decided.applied })
    }

    /// Reads documents.
    async fn draft(&self, documents: &[ApplyDocument]) -> Result<(Vec<VersionDraft>, DocumentFaults), Error> {
        let shared = &self.shared;
        let catalogue = self.catalogue().await?;
        let zones = TimeZoneDatabase::bundled();
        let mut faults = DocumentFaults::default();
        let (mut drafts, mut names) = (Vec::new(), BTreeSet::new());
        for given in documents {
            let (wanted, wrong) = deployment::read(&given.content, &zones);
            wrong.into_iter().for_each(|DocumentFault { at, diagnostic }| faults.add(&given.source, &at, diagnostic));
            let Some(wanted) = wanted else { continue };
            if !names.insert(wanted.deployment.clone()) {
                faults.add(&given.source, wanted.deployment.as_str(), "it is listed twice");
            }
            for (at, message) in rollout::faults(&shared.current().rollouts, &wanted.rollout) {
                faults.add(&given.source, at, &message);
            }
            if let Some(units) = self.draft_units(&catalogue, &given.source, &wanted, &mut faults).await? {
                drafts.push(VersionDraft {
                    source: given.source.clone(),
                    before: self.shared.hosts.desired.table().deployment(&wanted.deployment).cloned(),
                    deployment: wanted.deployment,
                    select: wanted.select,
                    units,
                    rollout: wanted.rollout,
                    document: given.content.clone(),
                    repeats: None,
                });
            }
        }
        Ok((drafts, faults))
    }

    /// Resolves the units of a deployment; `None` if something is wrong.
    async fn draft_units(
        &self,
        catalogue: &Catalogue,
        source: &str,
        wanted: &deployment::WantedDeployment,
        faults: &mut DocumentFaults,
    ) -> Result<Option<Vec<DeploymentUnit>>, Error> {
        let before = self.shared.hosts.desired.table().deployment(&wanted.deployment).cloned();
        let spec_before = |unit: &UnitName| {
            let units = before.iter().flat_map(|before| &before.row.content.units);
            units.into_iter().find(|one| one.unit == *unit).map(|one| &*one.spec)
        };
        let (mut units, mut has_secrets) = (Vec::new(), false);
        let realms: BTreeSet<Name> = wanted.units.iter().map(|unit| unit.unit.realm()).collect();
        for realm in realms.into_iter().chain([wanted.deployment.realm()]).collect::<BTreeSet<_>>() {
            if let Err(message) = catalogue.realm(&realm) {
                faults.add(source, wanted.deployment.as_str(), &message);
            }
        }
        for unit in &wanted.units {
            let Some(mut spec) = self.resolve(catalogue, (source, unit), faults).await? else { continue };
            has_secrets |= !spec.common().secrets.is_empty() || self.have_secret_values(spec.configs()).await?;
            // Which versions of secrets a host gets is no part of the deployment's version.
            spec.common_mut().secrets = Vec::new();
            let unit_before = spec_before(&unit.unit);
            if let Err(refusal) = edit::keep_secrets(unit_before, &mut spec) {
                faults.add(source, unit.unit.as_str(), refusal.diagnostic);
            }
            if let Some(before) = unit_before
                && let Err(message) = catalogue.goes_forward(unit, &spec, before)
            {
                faults.add(source, unit.unit.as_str(), &message);
            }
            units.push(drafted(unit, spec, wanted.placements.get(&unit.unit)));
        }
        circles(source, &units, faults);
        ports(source, &units, faults);
        instances(source, &units, faults);
        self.rival_instances(source, &wanted.deployment, &units, faults);
        if has_secrets && !wanted.select.requires_label() {
            let message = "its units have secrets, so it must require a label that the console gives its \
                           hosts, such as label.role=till; facts and the host's own labels do not count";
            faults.add(source, &format!("{}: target.select", wanted.deployment), message);
        }
        Ok((units.len() == wanted.units.len()).then_some(units))
    }

    /// Finds placed units of the same name in other deployments: their instances would have the same names.
    fn rival_instances(
        &self,
        source: &str,
        name: &DeploymentName,
        units: &[DeploymentUnit],
        faults: &mut DocumentFaults,
    ) {
        let table = self.shared.hosts.desired.table();
        let others = || table.deployments.iter().filter(|entry| entry.has_placed && entry.name() != name);
        for unit in units.iter().filter(|unit| unit.placement.is_some()) {
            if let Some(other) = others().find(|entry| entry.placed().any(|(one, _)| one.unit == unit.unit)) {
                let message = format!("deployment {} has instances of a unit of this name", other.name());
                faults.add(source, unit.unit.as_str(), &message);
            }
        }
    }

    /// Makes a version with the content of an earlier one.
    pub async fn roll_back_deployment(
        &self,
        operator: &Name,
        name: &DeploymentName,
        wanted: RollBack,
    ) -> Result<AppliedDeployment, Error> {
        let shared = &self.shared;
        shared.check_operator(operator).await?;
        let _content = shared.content.lock.lock().await;
        let _changing = shared.hosts.desired.changing.lock().await;
        self.roll_back_locked(operator, name, wanted).await
    }

    /// Does the same if this version is the present one. `operator` was checked, or is the one that has applied it.
    pub(crate) async fn roll_back_from(
        &self,
        operator: &Name,
        name: &DeploymentName,
        version: u32,
        wanted: RollBack,
    ) -> Result<AppliedDeployment, Error> {
        let shared = &self.shared;
        let _content = shared.content.lock.lock().await;
        let _changing = shared.hosts.desired.changing.lock().await;
        let present = shared.hosts.desired.table().deployment(name).map(|entry| entry.number());
        if present != Some(version) {
            let message = format!("version {version} of {name} is no longer the present one");
            return Err(Error::conflict("not_present", message).consequence("nothing was changed"));
        }
        self.roll_back_locked(operator, name, wanted).await
    }

    /// Makes a version with the content of an earlier one; the caller holds the locks.
    async fn roll_back_locked(
        &self,
        operator: &Name,
        name: &DeploymentName,
        wanted: RollBack,
    ) -> Result<AppliedDeployment, Error> {
        let before = self.shared.hosts.desired.table().deployment(name).cloned().ok_or_else(|| unknown(name))?;
        let number = match wanted.to {
            Some(number) => number,
            None => match self.version_before(name, before.number()).await? {
                0 => return Err(no_earlier_version(name, before.number())),
                number => number,
            },
        };
        let earlier = self.repaired(self.version_row(name, number).await?).await?;
        if earlier.is_damaged {
            let problem = "it is damaged".to_owned();
            return Err(StoreError::Row { what: "version", problem }.into());
        }
        let mut faults = DocumentFaults::default();
        for unit in &earlier.content.units {
            for error in crate::content::unit_faults(self, &unit.spec).await? {
                faults.add_error("", unit.unit.as_str(), error)?;
            }
        }
        let draft = VersionDraft {
            source: String::new(),
            deployment: name.clone(),
            select: earlier.content.target.select.clone(),
            units: earlier.content.units.clone(),
            rollout: rollout_back(&before.row.content, &earlier.content),
            document: earlier.document,
            repeats: Some(number),
            before: Some(before),
        };
        let mode = ApplyMode { dry_run: wanted.dry_run, adopt: false, seen: None };
        let applied = self.settle(operator, vec![draft], mode, faults).await?.pop();
        applied.ok_or_else(|| unknown(name))
    }

    /// Makes versions of drafts, with what follows for hosts, or tells what that would be. The caller holds the locks.
    async fn settle(
        &self,
        operator: &Name,
        drafts: Vec<VersionDraft>,
        mode: ApplyMode<'_>,
        faults: DocumentFaults,
    ) -> Result<Vec<AppliedDeployment>, Error> {
        let (shared, now) = (&self.shared, now_ms());
        let Decided { deployments, made, looks, mut planned, places, applied } =
            self.decide(operator, &drafts, mode, faults, now).await?;
        if mode.dry_run {
            return Ok(applied);
        }
        let new = || made.iter().zip(&drafts).filter(|(_, draft)| !draft.is_unchanged());
        let begun = new().map(|(entry, draft)| {
            let index = deployments.iter().position(|one| one.name() == entry.name()).unwrap_or(usize::MAX);
            let begun = self.begun_rollout(entry, draft.before.as_deref(), (&planned, &looks), index);
            (entry.name().clone(), entry.number(), entry.row.info.repeats.is_some(), begun)
        });
        let rollouts = shared.hosts.rollouts.begin(begun.collect(), operator, shared.time.at(now))?;
        self.keep_changed(&mut planned);
        let mut transaction = shared.store.begin().await?;
        for (entry, _) in new() {
            store::deployment::set_present(&mut transaction, entry.name(), entry.number(), now).await?;
            store::deployment::add_version(&mut transaction, &entry.row).await?;
        }
        rollout::write(&mut transaction, &rollouts).await?;
        write(&mut transaction, shared, &planned, &deployments).await?;
        for (one, draft) in applied.iter().zip(&drafts).filter(|(_, draft)| !draft.is_unchanged()) {
            store::deployment::trim_versions(&mut transaction, &one.deployment, VERSIONS_KEPT).await?;
            let change = applied_change(operator, one, draft.repeats);
            store::change::note(&mut transaction, &change, now).await?;
        }
        crash::point("apply deployments", "before commit");
        transaction.commit().await.map_err(StoreError::from)?;
        crash::point("apply deployments", "after commit");
        shared.hosts.rollouts.commit(&rollouts);
        self.set_gates().await?;
        shared.hosts.desired.table().set_deployments(deployments);
        self.take(&planned, &looks);
        self.take_waiting(places.as_ref());
        for one in &applied {
            tracing::info!(
                %operator, deployment = %one.deployment, version = one.version, action = one.action.word(),
                hosts = one.hosts, gains = one.gains.len(), loses = one.loses.len(), "a deployment is applied"
            );
            shared.changed(PageChange::Deployment(one.deployment.clone()));
        }
        Ok(applied)
    }

    /// Finds out what drafts would lead to. The caller holds the locks.
    async fn decide(
        &self,
        operator: &Name,
        drafts: &[VersionDraft],
        mode: ApplyMode<'_>,
        mut faults: DocumentFaults,
        now: i64,
    ) -> Result<Decided, Error> {
        let shared = &self.shared;
        let mut deployments = shared.hosts.desired.table().deployments.clone();
        let mut made = Vec::new();
        for draft in drafts {
            if let Some(seen) = mode.seen {
                check_seen(draft, seen, &mut faults);
            }
            let entry = match draft.before.as_ref().filter(|_| draft.is_unchanged()) {
                Some(before) => Arc::clone(before),
                None => Arc::new(self.version(operator, draft, now).await?),
            };
            match deployments.iter_mut().find(|one| one.name() == entry.name()) {
                Some(place) => *place = Arc::clone(&entry),
                None => deployments.push(Arc::clone(&entry)),
            }
            made.push(entry);
        }
        if deployments.len() > DEPLOYMENTS_ALL_MAX {
            faults.add(
                "",
                "",
                format!("there would be {} deployments; at most {DEPLOYMENTS_ALL_MAX} are allowed", deployments.len()),
            );
        }
        let (looks, errors) = self.look(None, &deployments).await?;
        let mut wish = PlanWish { may_remove: errors.is_empty(), now, ..PlanWish::default() };
        let digests = |draft: &VersionDraft| mode.seen.map(|seen| seen.digests(&draft.deployment)).unwrap_or_default();
        wish.seen = drafts.iter().map(|draft| (draft.deployment.clone(), digests(draft))).collect();
        if deployments.iter().any(|entry| entry.has_placed) {
            wish.places = Some(self.places(&deployments, &looks).await?);
        }
        self.check_local_units(drafts, (&deployments, &looks), mode.adopt, &mut wish, &mut faults).await?;
        let planned = plan(&shared.hosts.desired.table(), &deployments, &looks, &wish);
        check_plan(&shared.hosts.desired.table(), drafts, (&planned, &looks), &mut faults);
        faults.into_result()?;
        let applied = drafts
            .iter()
            .zip(&made)
            .map(|(draft, entry)| self.applied(draft, entry, (&planned, wish.places.as_deref()), &looks));
        let applied: Vec<AppliedDeployment> = applied.collect();
        Ok(Decided { deployments, made, looks, planned, places: wish.places, applied })
    }

    /// Makes the version of a draft.
    async fn version(&self, operator: &Name, draft: &VersionDraft, now: i64) -> Result<DeploymentEntry, Error> {
        let last = store::deployment::last(self.shared.store.read(), &draft.deployment).await?;
        let (number, parent) = last.map_or((1, None), |(number, digest)| (number.saturating_add(1), Some(digest)));
        let content = DeploymentVersion {
            deployment: draft.deployment.clone(),
            number,
            parent: parent.clone(),
            target: DeploymentTarget { select: draft.select.clone() },
            units: draft.units.clone(),
            rollout: draft.rollout.clone(),
        };
        let digest = content.digest().map_err(|error| Error::invalid("bad_documents", error.to_string()))?;
        let info = DeploymentVersionInfo {
            number,
            digest,
            parent,
            operator: operator.clone(),
            applied_ms: now,
            repeats: draft.repeats,
        };
        let document = draft.document.clone();
        let row = VersionRow { info, content: Arc::new(content), document, is_damaged: false };
        self.entry(draft.before.as_ref().map_or(now, |before| before.created_ms), row).await
    }

    /// Finds units of the same names that verbs have made on the hosts of drafts: to be adopted, or faults.
    async fn check_local_units(
        &self,
        drafts: &[VersionDraft],
        (deployments, looks): (&[Arc<DeploymentEntry>], &HashMap<HostId, HostLook>),
        adopt: bool,
        wish: &mut PlanWish,
        faults: &mut DocumentFaults,
    ) -> Result<(), Error> {
        let on = |host: HostId, draft: &VersionDraft| wish.places.as_ref()?.on(host, &draft.deployment);
        let all = looks.keys().flat_map(|host| drafts.iter().filter_map(|draft| on(*host, draft)));
        let placed: Vec<UnitName> = all.flat_map(places::names_of).collect();
        let plain = drafts.iter().flat_map(|draft| &draft.units).filter(|unit| unit.placement.is_none());
        let units: Vec<&UnitName> = plain.map(|unit| &unit.unit).chain(&placed).collect();
        let owners = store::deployment::owners(self.shared.store.read(), &units).await?;
        let mut found: BTreeMap<(usize, UnitName), Vec<String>> = BTreeMap::new();
        let table = self.shared.hosts.desired.table();
        for (host, unit, _) in owners.into_iter().filter(|(_, _, owner)| owner.is_none()) {
            let has = |draft: &VersionDraft| {
                let is_plain = |one: &DeploymentUnit| one.placement.is_none() && one.unit == unit;
                draft.units.iter().any(is_plain)
                    || on(host, draft).is_some_and(|instances| places::names_of(instances).any(|name| name == unit))
            };
            let place = drafts.iter().position(has);
            let Some((place, draft)) = place.and_then(|place| Some((place, drafts.get(place)?))) else { continue };
            let index = deployments.iter().position(|entry| *entry.name() == draft.deployment);
            let Some(look) = looks.get(&host) else { continue };
            let is_selected = index.and_then(|index| look.selected.get(index)).copied().unwrap_or(false);
            let entry = table.hosts.get(&host);
            let is_settled = entry.is_some_and(|entry| {
                entry.detached.iter().any(|(of, one)| *of == draft.deployment && *one == unit)
                    || assignment(&entry.assigned, &draft.deployment).is_some_and(|row| row.adopt.contains(&unit))
            });
            if !is_selected || is_settled {
                continue;
            }
            match adopt {
                true => wish.adopt.entry((host, draft.deployment.clone())).or_default().push(unit),
                false => found.entry((place, unit)).or_default().push(look.hostname.clone()),
            }
        }
        drop(table);
        for ((place, unit), mut hosts) in found {
            hosts.sort();
            let source = drafts.get(place).map_or("", |draft| draft.source.as_str());
            let message = format!(
                "a unit of this name was created by a verb on {}; --adopt takes it over (`adopt` in the API)",
                first_names(&hosts, NAMED_MAX)
            );
            faults.add(source, unit.as_str(), &message);
        }
        Ok(())
    }

    fn applied(
        &self,
        draft: &VersionDraft,
        entry: &DeploymentEntry,
        (plan, places): (&Plan, Option<&Places>),
        looks: &HashMap<HostId, HostLook>,
    ) -> AppliedDeployment {
        let name = &draft.deployment;
        let named = |hosts: Option<&Vec<HostId>>| named(hosts.into_iter().flatten(), looks);
        let hosts = plan.carriers(name).count() as u64;
        let before = draft.before.as_ref().map(|before| &*before.row.content);
        let action = match before {
            None => ApplyAction::Create,
            Some(_) if draft.is_unchanged() => ApplyAction::Unchanged,
            Some(_) => ApplyAction::Change,
        };
        // In a statement of its own: the notes lock the table as well.
        let placement = places::planned(&self.shared.hosts.desired.table(), entry, places, looks);
        AppliedDeployment {
            deployment: name.clone(),
            action,
            version: entry.number(),
            select: select_difference(before, &entry.row.content),
            units: unit_changes(before, &entry.row.content),
            hosts,
            gains: named(plan.gains.get(name)),
            loses: named(plan.loses.get(name)),
            is_rolled_out: entry.is_rolled_out(),
            placement,
            notes: self.notes(entry, plan),
        }
    }

    /// What is allowed and yet worth knowing.
    fn notes(&self, entry: &DeploymentEntry, plan: &Plan) -> Vec<String> {
        let name = entry.name();
        let carriers: Vec<HostId> = plan.carriers(name).collect();
        let mut notes = Vec::new();
        if carriers.len() >= WITHOUT_ROLLOUT_NOTED && !entry.is_rolled_out() {
            notes.push(format!(
                "all {} hosts change at once; with `rollout: {{}}` in the document they change a few at a time",
                carriers.len()
            ));
        }
        if carriers.is_empty() && !entry.plain.is_empty() {
            let why = match entry.has_secrets() {
                true => " (its units have secrets: only labels of the console and hosts' ids count)",
                false => "",
            };
            notes.push(format!("{} selects no host so far{why}", entry.row.content.target.select));
        }
        let mut lacking: BTreeMap<MissingCapability, usize> = BTreeMap::new();
        for missing in plan.hosts.values().filter_map(|host| lacked(&host.lacking, name)) {
            *lacking.entry(missing).or_default() += 1;
        }
        for (missing, count) in lacking {
            notes.push(format!("{count} of the hosts that it selects do not get it: {missing}; {}", missing.hint()));
        }
        let is_cordoned = |(of, conflict): &(DeploymentName, AssignmentConflict)| {
            of == name && *conflict == AssignmentConflict::Cordoned
        };
        let cordoned = plan.hosts.values().filter(|host| host.conflicts.iter().any(is_cordoned)).count();
        if cordoned > 0 {
            notes.push(format!("cordoned, so that they do not get it: {cordoned} of the hosts that it selects"));
        }
        notes
    }

    /// Removes a deployment: its hosts remove its units, or keep them.
    pub async fn remove_deployment(
        &self,
        operator: &Name,
        name: &DeploymentName,
        wanted: RemoveDeployment,
    ) -> Result<RemovedDeployment, Error> {
        let shared = &self.shared;
        shared.check_operator(operator).await?;
        if wanted.keep && wanted.purge {
            return Err(Error::invalid("bad_query", "units that are kept keep their data, too: `keep` or `purge`"));
        }
        let _changing = shared.hosts.desired.changing.lock().await;
        let (entry, hosts, deployments) = {
            let table = shared.hosts.desired.table();
            let entry = table.deployment(name).cloned().ok_or_else(|| unknown(name))?;
            let deployments: Vec<_> = table.deployments.iter().filter(|one| one.name() != name).cloned().collect();
            (entry, carriers(&table, name), deployments)
        };
        let (looks, _) = self.look(Some(&hosts), &deployments).await?;
        if !wanted.keep {
            self.check_confirmed(name).await?;
        }
        let removed =
            RemovedDeployment { deployment: name.clone(), units: entry.units.clone(), hosts: named(&hosts, &looks) };
        if wanted.dry_run {
            return Ok(removed);
        }
        let now = now_ms();
        let only = HashSet::from([name.clone()]);
        let wish = PlanWish {
            may_remove: true,
            purge: if wanted.purge { only.clone() } else { HashSet::new() },
            keep: if wanted.keep { only } else { HashSet::new() },
            now,
            ..PlanWish::default()
        };
        let mut planned = plan(&shared.hosts.desired.table(), &deployments, &looks, &wish);
        self.keep_changed(&mut planned);
        let rollouts = shared.hosts.rollouts.remove(name, operator, shared.time.at(now))?;
        let mut transaction = shared.store.begin().await?;
        store::deployment::remove(&mut transaction, name, now).await?;
        let units = match (wanted.keep, wanted.purge) {
            (true, _) => "its units stay",
            (_, true) => "its units go with their data",
            _ => "its units go",
        };
        let change = NewChange {
            operator,
            kind: ChangeKind::DeploymentRemoved,
            subject: name.to_string(),
            detail: format!("{units}; {}", hosts_words(removed.hosts.len())),
        };
        store::change::note(&mut transaction, &change, now).await?;
        rollout::write(&mut transaction, &rollouts).await?;
        write(&mut transaction, shared, &planned, &deployments).await?;
        transaction.commit().await.map_err(StoreError::from)?;
        shared.hosts.rollouts.commit(&rollouts);
        self.set_gates().await?;
        {
            let mut table = shared.hosts.desired.table();
            table.set_deployments(deployments);
            // Unconfirmed hosts are not planned for; and no conflict is left with what is gone.
            table.hosts.values_mut().for_each(|entry| entry.conflicts.retain(|(of, _)| of != name));
        }
        self.take(&planned, &looks);
        // Hosts where another deployment had to give way.
        let waiting: Vec<HostId> = {
            let table = shared.hosts.desired.table();
            let waits = |conflict: &AssignmentConflict| matches!(conflict, AssignmentConflict::Unit { with, .. } if with == name);
            let waiting = table.hosts.iter().filter(|(_, entry)| entry.conflicts.iter().any(|(_, one)| waits(one)));
            waiting.map(|(host, _)| *host).collect()
        };
        shared.hosts.desired.evaluate(waiting);
        shared.hosts.desired.place_again();
        tracing::info!(
            %operator, deployment = %name, hosts = removed.hosts.len(), keep = wanted.keep, purge = wanted.purge,
            "a deployment is removed"
        );
        shared.changed(PageChange::Deployment(name.clone()));
        Ok(removed)
    }

    /// Has a deployment take over a unit that was made by a verb, or leaves a unit of it to verbs. An orphan can be left to
    /// them as well, also one of a deployment that is gone.
    pub async fn set_unit_attached(
        &self,
        operator: &Name,
        name: &DeploymentName,
        wanted: UnitOnHosts,
        attach: bool,
    ) -> Result<Vec<NamedHost>, Error> {
        let shared = &self.shared;
        shared.check_operator(operator).await?;
        let meant = dispatch::target_hosts(shared, &wanted.target).await?;
        let hosts: Vec<HostId> = meant.iter().map(|(host, _)| *host).collect();
        let changing = shared.hosts.desired.changing.lock().await;
        let unit = &wanted.unit;
        let key = (unit.clone(), name.clone());
        let owned = match attach {
            true => HashMap::new(),
            false => store::deployment::hosts_with_units_of(shared.store.read(), &hosts).await?,
        };
        let orphaned = |host: &HostId| owned.get(host).is_some_and(|units| units.contains(&key));
        let mut wish = PlanWish { may_remove: true, now: now_ms(), ..PlanWish::default() };
        {
            let table = shared.hosts.desired.table();
            let deployment = table.deployment(name);
            let lists = deployment.is_some_and(|entry| entry.plain.contains(unit));
            if deployment.is_some_and(|entry| entry.has_instance(unit) || entry.units.contains(unit)) && !lists {
                let message =
                    format!("instances of {name} are placed by the console, and cannot be adopted or detached");
                return Err(Error::conflict("not_carried", message).consequence("nothing was changed"));
            }
            if !lists && !hosts.iter().any(orphaned) {
                return Err(match deployment {
                    None => unknown(name),
                    Some(_) => Error::not_found("unknown_unit", format!("deployment {name} has no unit {unit}")),
                });
            }
            let mut others = Vec::new();
            for (host, hostname) in &meant {
                let carries = |entry: &&HostEntry| lists && assignment(&entry.assigned, name).is_some();
                let Some(entry) = table.hosts.get(host).filter(carries) else {
                    if !orphaned(host) {
                        others.push(hostname.clone());
                    }
                    continue;
                };
                let key = (name.clone(), unit.clone());
                let is_detached = entry.detached.contains(&key);
                let mut detached = entry.detached.clone();
                match attach {
                    true => {
                        detached.retain(|one| *one != key);
                        wish.adopt.insert((*host, name.clone()), vec![unit.clone()]);
                    }
                    false if !is_detached => detached.push(key),
                    false => {}
                }
                wish.detached.insert(*host, detached);
            }
            if !others.is_empty() {
                let message = format!("deployment {name} is not on {}", first_names(&others, NAMED_MAX));
                return Err(Error::conflict("not_carried", message).consequence("nothing was changed"));
            }
        }
        let carriers: Vec<HostId> = wish.detached.keys().copied().collect();
        let deployments = shared.hosts.desired.table().deployments.clone();
        let (looks, _) = self.look(Some(&carriers), &deployments).await?;
        let mut planned = plan(&shared.hosts.desired.table(), &deployments, &looks, &wish);
        self.keep_changed(&mut planned);
        let mut transaction = shared.store.begin().await?;
        store::deployment::set_detached(&mut transaction, &carriers, (name, unit), !attach).await?;
        let names: Vec<&str> = meant.iter().map(|(_, hostname)| hostname.as_str()).collect();
        let change = NewChange {
            operator,
            kind: if attach { ChangeKind::UnitAdopted } else { ChangeKind::UnitDetached },
            subject: name.to_string(),
            detail: format!("{unit} on {}", first_names(&names, NAMED_MAX)),
        };
        store::change::note(&mut transaction, &change, wish.now).await?;
        write(&mut transaction, shared, &planned, &deployments).await?;
        transaction.commit().await.map_err(StoreError::from)?;
        {
            let mut table = shared.hosts.desired.table();
            for (host, detached) in wish.detached {
                table.hosts.entry(host).or_default().detached = detached;
            }
        }
        self.take(&planned, &looks);
        drop(changing);
        if !attach {
            // The document alone would make it an orphan.
            let target = NewTarget::Hosts(hosts.iter().map(HostId::to_string).collect());
            let verb = Verb::UnitDetach { unit: unit.clone() };
            dispatch::announce(self, operator, NewCommand { target, expires_in_ms: None, verb, copied_from: None })
                .await?;
        }
        let word = if attach { "adopted" } else { "detached" };
        tracing::info!(%operator, deployment = %name, %unit, hosts = hosts.len(), "a unit is {word}");
        shared.changed(PageChange::Deployment(name.clone()));
        let changed = meant.into_iter().filter(|(host, _)| planned.hosts.contains_key(host) || orphaned(host));
        Ok(changed.map(|(host, hostname)| NamedHost { host, hostname }).collect())
    }
}

/// What hosts have to be asked to find out what documents would change.
pub(crate) struct PlanRequests {
    /// The requests, each with the hosts that it is for.
    pub(crate) requests: Vec<(PlanRequest, Vec<HostId>)>,
    /// The hosts that have reported their state.
    pub(crate) heard: HashSet<HostId>,
    pub(crate) hostnames: HashMap<HostId, String>,
    /// The versions that documents would be, in their order.
    pub(crate) contents: Vec<Arc<DeploymentVersion>>,
    /// What an apply would make of each, in the same order.
    pub(crate) applied: Vec<AppliedDeployment>,
}

fn check_documents(documents: &[ApplyDocument]) -> Result<(), Error> {
    if documents.is_empty() || documents.len() > DOCUMENTS_MAX {
        let message = format!("from 1 to {DOCUMENTS_MAX} deployments are applied at once");
        return Err(Error::invalid("bad_documents", message));
    }
    Ok(())
}

/// Checks that a draft is what a plan was made of, and that its hosts can be kept to it.
fn check_seen(draft: &VersionDraft, seen: &SeenPlan, faults: &mut DocumentFaults) {
    let name = draft.deployment.as_str();
    let is_same = |content: &DeploymentVersion| {
        content.target.select == draft.select && content.units == draft.units && content.rollout == draft.rollout
    };
    match seen.content(&draft.deployment) {
        None => faults.add(&draft.source, name, "the plan is of other deployments"),
        Some(content) if !is_same(content) => {
            let message = "the plan was made of another document (`muster plan` makes a new plan)";
            faults.add(&draft.source, name, message);
        }
        Some(_) if draft.rollout.is_empty() => {
            let message = "it has no `rollout`, so its hosts change at once without \
                           comparing the plan (`rollout: {}` has them compare first)";
            faults.add(&draft.source, name, message);
        }
        Some(_) => {}
    }
}

/// Returns what is noted of a version.
fn applied_change<'a>(operator: &'a Name, applied: &AppliedDeployment, repeats: Option<u32>) -> NewChange<'a> {
    let mut detail = format!("version {}", applied.version);
    if let Some(number) = repeats {
        detail.push_str(&format!(", as version {number}"));
    }
    detail.push_str(&format!("; {}", hosts_words(usize::try_from(applied.hosts).unwrap_or(usize::MAX))));
    for (what, hosts) in [("new", applied.gains.len()), ("lost", applied.loses.len())] {
        if hosts > 0 {
            detail.push_str(&format!(", {hosts} {what}"));
        }
    }
    let kind = if repeats.is_some() { ChangeKind::DeploymentRolledBack } else { ChangeKind::DeploymentApplied };
    NewChange { operator, kind, subject: applied.deployment.to_string(), detail }
}

pub(super) fn hosts_words(hosts: usize) -> String {
    counted(hosts, "host")
}

/// Returns the policy of a version that goes back: it keeps the budget and the pace of the version that it replaces, and hosts
/// do not wait for windows.
fn rollout_back(present: &DeploymentVersion, earlier: &DeploymentVersion) -> Map<String, Value> {
    let mut rollout = if present.rollout.is_empty() { earlier.rollout.clone() } else { present.rollout.clone() };
    rollout.remove("windows");
    rollout
}

fn drafted(wanted: &WantedUnit, spec: Spec, placement: Option<&Placement>) -> DeploymentUnit {
    let run = wanted.run.unwrap_or(Run::Running);
    DeploymentUnit { unit: wanted.unit.clone(), spec: Box::new(spec), run, placement: placement.cloned() }
}

/// Returns hosts with their names, by name.
fn named<'a>(hosts: impl IntoIterator<Item = &'a HostId>, looks: &HashMap<HostId, HostLook>) -> Vec<NamedHost> {
    let hostname = |host: &HostId| looks.get(host).map_or_else(|| host.to_string(), |look| look.hostname.clone());
    let mut named: Vec<NamedHost> =
        hosts.into_iter().map(|host| NamedHost { host: *host, hostname: hostname(host) }).collect();
    named.sort_by(|one, other| (&one.hostname, one.host).cmp(&(&other.hostname, other.host)));
    named
}

/// Returns the hosts that carry a deployment.
pub(super) fn carriers(table: &DesiredTable, name: &DeploymentName) -> Vec<HostId> {
    let carries = table.hosts.iter().filter(|(_, entry)| assignment(&entry.assigned, name).is_some());
    carries.map(|(host, _)| *host).collect()
}

/// Finds units that would wait for each other.
fn circles(source: &str, units: &[DeploymentUnit], faults: &mut DocumentFaults) {
    let all: BTreeMap<&UnitName, &Spec> = units.iter().map(|unit| (&unit.unit, &*unit.spec)).collect();
    for unit in units {
        if let Some(circle) = start_order::cycle(&unit.unit, &unit.spec, &all) {
            let circle = circle.iter().map(UnitName::as_str).collect::<Vec<_>>().join(" → ");
            let message = format!("after, requires: units would wait for each other in a cycle: {circle}");
            faults.add(source, unit.unit.as_str(), &message);
        }
    }
}

/// Finds what units with several instances cannot have: others that name them, and a port of their own on a host that they share.
fn instances(source: &str, units: &[DeploymentUnit], faults: &mut DocumentFaults) {
    let placed = || units.iter().filter_map(|unit| Some((unit, unit.placement.as_ref()?)));
    for unit in units {
        let named = unit.spec.common().after.iter().chain(&unit.spec.common().requires);
        for name in named.filter(|name| placed().any(|(one, _)| one.unit == **name)) {
            let message = format!("after, requires: {name} has instances, which may be on other hosts");
            faults.add(source, unit.unit.as_str(), &message);
        }
    }
    for (unit, _) in placed().filter(|(_, placement)| placement.count > 1 && placement.max_per_host != Some(1)) {
        if let Some(port) = unit.spec.provides().iter().find_map(|provided| provided.port) {
            let message = format!(
                "provides: a host leases port {port} once: write `placement: {{max_per_host: 1}}`, or leave the port out"
            );
            faults.add(source, unit.unit.as_str(), &message);
        }
    }
}

/// Finds units that would have one port: a host leases each port of a protocol once.
fn ports(source: &str, units: &[DeploymentUnit], faults: &mut DocumentFaults) {
    let mut leased: BTreeMap<(Protocol, u16), &UnitName> = BTreeMap::new();
    for unit in units {
        for provided in unit.spec.provides() {
            let Some(port) = provided.port else { continue };
            if let Some(other) =
                leased.insert((provided.protocol, port), &unit.unit).filter(|other| **other != unit.unit)
            {
                let message = format!(
                    "provides: {} port {port} is that of {other} (leave the port out, to be leased a free one)",
                    provided.protocol
                );
                faults.add(source, unit.unit.as_str(), &message);
            }
        }
    }
}

/// Finds hosts that could not carry what is to be: because of conflicts that are new, or of a document that is too long.
fn check_plan(
    table: &DesiredTable,
    drafts: &[VersionDraft],
    (plan, looks): (&Plan, &HashMap<HostId, HostLook>),
    faults: &mut DocumentFaults,
) {
    let concerns = |name: &DeploymentName, conflict: &AssignmentConflict| {
        let with = match conflict {
            AssignmentConflict::Unit { with, .. } => Some(with),
            AssignmentConflict::Full => None,
            AssignmentConflict::Cordoned => return None,
        };
        drafts.iter().position(|draft| draft.deployment == *name || Some(&draft.deployment) == with)
    };
    let mut found: BTreeMap<(usize, String, String), Vec<String>> = BTreeMap::new();
    for (host, planned) in &plan.hosts {
        let entry = table.hosts.get(host);
        let hostname = || looks.get(host).map(|look| look.hostname.clone()).unwrap_or_default();
        for (name, conflict) in &planned.conflicts {
            let is_known =
                entry.is_some_and(|entry| entry.conflicts.iter().any(|(of, known)| of == name && known == conflict));
            if let Some(place) = concerns(name, conflict).filter(|_| !is_known) {
                found.entry((place, name.to_string(), conflict.to_string())).or_default().push(hostname());
            }
        }
        let carries = |draft: &VersionDraft| assignment(&planned.assigned, &draft.deployment).is_some();
        if let Some((place, error)) = drafts.iter().position(carries).zip(planned.error.as_ref()) {
            let name = drafts.get(place).map(|draft| draft.deployment.to_string()).unwrap_or_default();
            found.entry((place, name, error.clone())).or_default().push(hostname());
        }
    }
    for ((place, name, message), mut hosts) in found {
        hosts.sort();
        let source = drafts.get(place).map_or("", |draft| draft.source.as_str());
        faults.add(source, &name, format!("{message} (on {})", first_names(&hosts, NAMED_MAX)));
    }
}

//! Performs a plan: in the store, in one transaction with whatever causes it, and then in the table.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use muster_base::clock::now_ms;
use muster_rules::{capability, placement::Resources};
use muster_topics::{
    desired::{DeploymentName, Instances, UnitRemoval},
    diagnostic::Diagnostic,
    name::{HostId, UnitName},
    secret::SecretRef,
};
use sqlx::SqliteConnection;

use super::{
    DesiredState,
    places::{self, AwayHosts, Places},
    plan::{HostLook, Plan, PlanWish, desired_deployment, plan, version},
    rollouts::policy_of,
    table::{DeploymentEntry, DocumentStanding, assignment, units_of},
    vars,
};
use crate::{
    error::Error,
    given,
    list::first_names,
    notice::NoticeKind,
    page_change::PageChange,
    secret,
    state::{Console, ConsoleState},
    store::{
        self, StoreError,
        deployment::{self, AssignmentRow, VersionRow},
        desired,
        given::GivenUnit,
        label::OperatorLabels,
    },
};

/// The most damaged things that an alert names.
const DAMAGED_NAMED_MAX: usize = 5;

impl Console {
    /// Reads the deployments into the table, with their secrets, when the console starts.
    pub(crate) async fn open_deployments(&self) -> Result<(), Error> {
        let mut deployments = Vec::new();
        for (created_ms, row) in deployment::all(self.shared.store.read()).await? {
            let row = self.repaired(row).await?;
            deployments.push(Arc::new(self.entry(created_ms, row).await?));
        }
        self.tell_damaged_vars().await?;
        let desired = &self.shared.hosts.desired;
        desired.table().set_deployments(deployments.clone());
        self.open_rollouts(&deployments).await?;
        let used = desired.table().used_versions();
        for (name, number) in used {
            self.open_version(&name, number).await?;
        }
        desired.more.notify_one();
        desired.due.notify_one();
        Ok(())
    }

    /// Reads an earlier version into the table, unless it is there.
    pub(crate) async fn open_version(&self, name: &DeploymentName, number: u32) -> Result<(), Error> {
        let key = (name.clone(), number);
        let created_ms = {
            let table = self.shared.hosts.desired.table();
            if table.versions.contains_key(&key) {
                return Ok(());
            }
            table.deployment(name).map_or(0, |entry| entry.created_ms)
        };
        if let Some(row) = deployment::version(self.shared.store.read(), name, number).await? {
            let row = self.repaired(row).await?;
            let entry = Arc::new(self.entry(created_ms, row).await?);
            self.shared.hosts.desired.table().versions.insert(key, entry);
        }
        Ok(())
    }

    /// Tells an operator of variables that are damaged.
    async fn tell_damaged_vars(&self) -> Result<(), Error> {
        let damaged = store::var::vars(self.shared.store.read()).await?.damaged;
        if !damaged.is_empty() {
            let names = damaged.iter().map(String::as_str).collect::<Vec<_>>();
            let named = first_names(&names, DAMAGED_NAMED_MAX);
            let message = Diagnostic::new(format!("variables are damaged and are not sent to hosts: {named}"))
                .with_hint("set them again, and check the disk of the console");
            self.shared.notices.raise(NoticeKind::StoreDamaged, message, now_ms());
        }
        Ok(())
    }

    /// Takes a version that is damaged from a document that has it whole. Without one it stays damaged, and an operator is told.
    pub(super) async fn repaired(&self, row: VersionRow) -> Result<VersionRow, Error> {
        if !row.is_damaged {
            return Ok(row);
        }
        let (name, db) = (row.content.deployment.clone(), &self.shared.store);
        let Some(whole) = deployment::version_of_documents(db.read(), &row.info, &name).await? else {
            let cause = format!(
                "version {} of the deployment {name} is damaged: its hosts keep what they have, and it is \
                 not sent to other hosts",
                row.info.number
            );
            let message =
                Diagnostic::new(cause).with_hint("apply its document again, and check the disk of the console");
            self.shared.notices.raise(NoticeKind::StoreDamaged, message, now_ms());
            return Ok(row);
        };
        tracing::error!(
            deployment = %name, version = row.info.number,
            consequence = "it is restored from a document that has it",
            hint = "check the disk of the console",
            "a stored version is damaged"
        );
        // On a full disk it is found again at the next start.
        if let Err(error) = deployment::repair_version(db.write(), &whole).await {
            tracing::error!(%error, hint = error.hint(), "a repaired version cannot be stored");
        }
        Ok(VersionRow { content: Arc::new(whole), is_damaged: false, ..row })
    }

    /// Finds out what a version comes to.
    pub(super) async fn entry(&self, created_ms: i64, row: VersionRow) -> Result<DeploymentEntry, Error> {
        let secrets = match self.secrets_of_version(&row).await {
            _ if row.is_damaged => {
                Err(format!("version {} of {} is damaged and is not sent", row.info.number, row.content.deployment))
            }
            Ok(secrets) => Ok(secrets),
            Err(error) if error.status < 500 || error.problem.code == "secret_unreadable" => {
                Err(error.problem.diagnostic.cause)
            }
            Err(error) => return Err(error),
        };
        let mut has_secret_values = false;
        for unit in row.content.units.iter().filter(|_| secrets.is_ok()) {
            has_secret_values |= self.have_secret_values(unit.spec.configs()).await?;
        }
        let specs = row.content.units.iter().map(|unit| &*unit.spec);
        let has_values = specs.into_iter().any(|spec| spec.masked() != *spec);
        let policy = policy_of(&row);
        let listed = || row.content.units.iter();
        let plain = || listed().filter(|unit| unit.placement.is_none());
        let plain_needs = plain().map(|unit| places::needs(&unit.spec)).fold(Resources::default(), Resources::plus);
        let plain_capabilities = plain().map(|unit| capability::needed_by(&unit.spec)).collect();
        Ok(DeploymentEntry {
            created_ms,
            units: units_of(&row),
            plain: plain().map(|unit| unit.unit.clone()).collect(),
            plain_needs,
            plain_capabilities,
            has_placed: listed().any(|unit| unit.placement.is_some()),
            policy,
            secrets,
            has_secret_values,
            has_values,
            row,
        })
    }

    async fn secrets_of_version(&self, row: &VersionRow) -> Result<BTreeMap<UnitName, Vec<SecretRef>>, Error> {
        let mut secrets = BTreeMap::new();
        for unit in &row.content.units {
            let found = secret::secrets_of(self, &unit.unit.realm(), &unit.spec).await?;
            if !found.is_empty() {
                secrets.insert(unit.unit.clone(), found);
            }
        }
        Ok(secrets)
    }

    /// Finds the secrets of all deployments anew. Returns the deployments whose secrets have changed, and whether any of them may select
    /// other hosts now.
    pub(super) async fn refresh_entries(&self) -> Result<(Vec<DeploymentName>, bool), Error> {
        let before: Vec<Arc<DeploymentEntry>> = {
            let mut table = self.shared.hosts.desired.table();
            table.has_new_content = false;
            table.versions.values().cloned().collect()
        };
        let (mut changed, mut selects_others) = (Vec::new(), false);
        for entry in before {
            let new = self.entry(entry.created_ms, entry.row.clone()).await.inspect_err(|_| {
                self.shared.hosts.desired.table().has_new_content = true;
            })?;
            if new.secrets != entry.secrets {
                selects_others |= new.has_secrets() != entry.has_secrets();
                changed.push(Arc::new(new));
            }
        }
        let mut table = self.shared.hosts.desired.table();
        for entry in &changed {
            let is_this =
                |one: &&mut Arc<DeploymentEntry>| one.name() == entry.name() && one.number() == entry.number();
            if let Some(place) = table.deployments.iter_mut().find(is_this) {
                *place = Arc::clone(entry);
            }
            table.versions.insert((entry.name().clone(), entry.number()), Arc::clone(entry));
        }
        Ok((changed.iter().map(|entry| entry.name().clone()).collect(), selects_others))
    }

    /// Evaluates the targets of deployments on hosts: on all members, or on some of them. A host that cannot be read is
    /// left out, with its error.
    pub(super) async fn look(
        &self,
        only: Option<&[HostId]>,
        deployments: &[Arc<DeploymentEntry>],
    ) -> Result<(HashMap<HostId, HostLook>, HashMap<HostId, String>), Error> {
        self.look_labelled(only, deployments, &HashMap::new()).await
    }

    /// The same, where some hosts have other labels of the console than in the store.
    pub(super) async fn look_labelled(
        &self,
        only: Option<&[HostId]>,
        deployments: &[Arc<DeploymentEntry>],
        labelled: &HashMap<HostId, OperatorLabels>,
    ) -> Result<(HashMap<HostId, HostLook>, HashMap<HostId, String>), Error> {
        let realms = store::realm::all(self.shared.store.read()).await?;
        let (layers, before) = {
            let mut table = self.shared.hosts.desired.table();
            table.realms = realms;
            let before = deployments.iter().map(|one| table.for_newcomers(one).cloned());
            (Arc::clone(&table.vars), before.collect::<Vec<Option<Arc<DeploymentEntry>>>>())
        };
        let (mut looks, mut errors, mut sets) = (HashMap::new(), HashMap::new(), vars::VarSets::new(&layers));
        let mut each = |host: HostId, hostname: &str, read: Result<&deployment::TargetHost<'_>, StoreError>| {
            let seen = match read {
                Ok(seen) => seen,
                Err(error) => {
                    errors.insert(host, format!("{:#}", Diagnostic::of(&error)));
                    return;
                }
            };
            let is_selected = |entry: &Arc<DeploymentEntry>| {
                let select = &entry.row.content.target.select;
                match entry.has_secrets() {
                    true => select.requires_label() && select.picks(&seen.earned),
                    false => select.picks(&seen.whole),
                }
            };
            let look = HostLook {
                hostname: hostname.to_owned(),
                selected: deployments.iter().map(is_selected).collect(),
                groups: deployments.iter().map(|entry| group(entry, seen)).collect(),
                fits: deployments.iter().map(|entry| entry.fits(seen)).collect(),
                total: places::total(seen),
                selected_before: before.iter().map(|one| one.as_ref().is_some_and(is_selected)).collect(),
                heard: seen.heard,
                vars: sets.of(&seen.whole),
            };
            looks.insert(host, look);
        };
        deployment::each_target_host(self.shared.store.read(), only, labelled, &mut each).await?;
        Ok((looks, errors))
    }

    /// Brings hosts to what is desired of them now: all, or some. The caller holds the lock for changes. Returns what has
    /// changed, and the hosts that could not be read.
    pub(super) async fn reconcile(
        &self,
        only: Option<&[HostId]>,
        wish: PlanWish,
    ) -> Result<(Plan, HashMap<HostId, String>), Error> {
        let (deployments, is_to_place) = {
            let mut table = self.shared.hosts.desired.table();
            let is_to_place = std::mem::take(&mut table.is_to_place) || only.is_none();
            (table.deployments.clone(), is_to_place && table.has_placed())
        };
        // What one host has depends on all.
        let only = only.filter(|_| !is_to_place);
        let (looks, errors) = self.look(only, &deployments).await?;
        let mut wish = wish;
        if is_to_place {
            wish.places = Some(self.places(&deployments, &looks).await?);
        }
        let mut plan = plan(&self.shared.hosts.desired.table(), &deployments, &looks, &wish);
        self.keep_changed(&mut plan);
        if !plan.hosts.is_empty() {
            let mut transaction = self.shared.store.begin().await?;
            write(&mut transaction, &self.shared, &plan, &deployments).await?;
            transaction.commit().await.map_err(StoreError::from)?;
        }
        self.take(&plan, &looks);
        self.take_waiting(wish.places.as_ref());
        Ok((plan, errors))
    }

    /// Decides where instances are. `looks` are of all hosts.
    pub(super) async fn places(
        &self,
        deployments: &[Arc<DeploymentEntry>],
        looks: &HashMap<HostId, HostLook>,
    ) -> Result<Arc<Places>, StoreError> {
        let since_ms = store::host::away(self.shared.store.read(), None).await?;
        // No clock that is set moves instances.
        let now = self.shared.time.now();
        let desired = &self.shared.hosts.desired;
        let heard_since_ms = desired.heard_since(self.shared.hosts.link.is_connected(), now);
        let away = AwayHosts { since_ms, heard_since_ms, now };
        Ok(Arc::new(places::places(&desired.table(), deployments, looks, &away)))
    }

    /// Keeps which instances have no place.
    pub(super) fn take_waiting(&self, places: Option<&Arc<Places>>) {
        let Some(places) = places else { return };
        let changed: Vec<DeploymentName> = {
            let mut table = self.shared.hosts.desired.table();
            let before = table.waiting.replace(places.waiting.clone()).unwrap_or_default();
            let names = before.keys().chain(places.waiting.keys());
            names.filter(|name| before.get(*name) != places.waiting.get(*name)).cloned().collect()
        };
        for name in changed {
            self.shared.changed(PageChange::Deployment(name));
        }
    }

    /// Leaves out hosts of which nothing changes that is stored; what the table alone has of them is updated.
    pub(super) fn keep_changed(&self, plan: &mut Plan) {
        let mut table = self.shared.hosts.desired.table();
        plan.hosts.retain(|host, new| {
            let entry = table.hosts.entry(*host).or_default();
            let is_same = entry.assigned == new.assigned
                && entry.removals == new.removals
                && entry.lacking == new.lacking
                && new.document.is_none();
            if is_same {
                entry.looked_at = new.heard;
                entry.conflicts.clone_from(&new.conflicts);
                entry.error.clone_from(&new.error);
            }
            !is_same
        });
    }

    /// Takes a stored plan into the table, and has new documents sent.
    pub(super) fn take(&self, plan: &Plan, looks: &HashMap<HostId, HostLook>) {
        let desired = &self.shared.hosts.desired;
        let now = now_ms();
        {
            let mut table = desired.table();
            for (host, new) in &plan.hosts {
                let entry = table.hosts.entry(*host).or_default();
                entry.assigned.clone_from(&new.assigned);
                entry.removals.clone_from(&new.removals);
                entry.conflicts.clone_from(&new.conflicts);
                entry.lacking.clone_from(&new.lacking);
                entry.error.clone_from(&new.error);
                entry.vars = Arc::clone(&new.vars);
                entry.looked_at = looks.get(host).and_then(|look| look.heard);
                if let Some(document) = &new.document {
                    entry.document = Some(document.clone());
                    (entry.above, entry.sent) = (None, None);
                    if entry.standing == DocumentStanding::Settled {
                        entry.standing = DocumentStanding::Behind { since_ms: now };
                    }
                    table.to_send.insert(*host);
                }
            }
        }
        desired.due.notify_one();
        self.note_members(looks);
        for host in plan.hosts.keys() {
            self.shared.changed(PageChange::Host(*host));
        }
    }
}

/// Writes a plan to the store. Versions of `deployments` are there already.
pub(super) async fn write(
    db: &mut SqliteConnection,
    shared: &ConsoleState,
    plan: &Plan,
    deployments: &[Arc<DeploymentEntry>],
) -> Result<(), StoreError> {
    let mut assign: BTreeMap<&AssignmentRow, Vec<HostId>> = BTreeMap::new();
    let mut unassign: BTreeMap<DeploymentName, Vec<HostId>> = BTreeMap::new();
    let mut removals: BTreeMap<&[UnitRemoval], Vec<HostId>> = BTreeMap::new();
    let mut given: BTreeMap<(&DeploymentName, u32, &Instances, Vec<UnitName>), Vec<HostId>> = BTreeMap::new();
    let mut documents = Vec::new();
    let gifts: Vec<(Vec<GivenUnit>, Vec<HostId>)>;
    {
        let table = shared.hosts.desired.table();
        for (host, new) in &plan.hosts {
            let entry = table.hosts.get(host);
            let before = entry.map_or(&[][..], |entry| &entry.assigned[..]);
            for row in new.assigned.iter().filter(|row| !before.contains(row)) {
                assign.entry(row).or_default().push(*host);
            }
            let is_lost = |row: &&AssignmentRow| assignment(&new.assigned, &row.deployment).is_none();
            for row in before.iter().filter(is_lost) {
                unassign.entry(row.deployment.clone()).or_default().push(*host);
            }
            if entry.map_or(&[][..], |entry| &entry.removals[..]) != new.removals {
                removals.entry(&new.removals).or_default().push(*host);
            }
            if let Some(document) = &new.document {
                documents.push((*host, document.clone()));
                let detached = entry.map_or(&[][..], |entry| &entry.detached[..]);
                for row in &new.assigned {
                    let of = detached.iter().filter(|(of, _)| *of == row.deployment).map(|(_, unit)| unit.clone());
                    let key = (&row.deployment, row.version, &row.instances, of.collect::<Vec<_>>());
                    given.entry(key).or_default().push(*host);
                }
            }
        }
        let of = |(key, hosts): ((&DeploymentName, u32, &Instances, Vec<UnitName>), Vec<HostId>)| {
            let (name, number, instances, detached) = key;
            let (adopt, instances) = (Vec::new(), instances.clone());
            let row = AssignmentRow { deployment: name.clone(), version: number, adopt, plan: None, instances };
            let detached: Vec<_> = detached.into_iter().map(|unit| (name.clone(), unit)).collect();
            let deployment = desired_deployment(version(&table, deployments, &row)?, &row, &detached).ok()?;
            Some((given::of_deployment(&deployment), hosts))
        };
        gifts = given.into_iter().filter_map(of).collect();
    }
    for (row, hosts) in assign {
        deployment::assign(db, &hosts, row).await?;
    }
    for (deployment, hosts) in unassign {
        deployment::unassign(db, &hosts, &deployment).await?;
    }
    for (removals, hosts) in removals {
        deployment::set_removals(db, &hosts, removals).await?;
        for removal in removals {
            store::given::take_back(db, &hosts, &removal.unit, None).await?;
        }
    }
    // A host gets what its document names, and nothing else.
    for (units, hosts) in gifts {
        for unit in units {
            store::given::give(db, &hosts, &unit, None).await?;
        }
    }
    for body in &plan.bodies {
        desired::put_body(db, &body.digest, &body.content, body.is_secret).await?;
    }
    desired::set_documents(db, &documents).await
}

/// Returns the value of the label that a rollout's budget groups by.
fn group(entry: &DeploymentEntry, seen: &deployment::TargetHost<'_>) -> Option<Arc<str>> {
    let budget = entry.policy.as_ref()?.budget.as_ref()?;
    seen.whole.labels.get(&budget.group_by).map(|value| value.as_str().into())
}

impl DesiredState {
    /// Takes the hosts whose targets are to be evaluated at once.
    pub(super) fn take_dirty(&self) -> Vec<HostId> {
        std::mem::take(&mut self.table().dirty).into_iter().collect()
    }
}

//! Goes on with hosts whose document or labels this console did not make: its store was lost, or restored from a backup.
//!
//! What the console lacks it takes from the documents that hosts have handed in: whole versions of deployments, each with its number and
//! the digest of its parent; and from the messages with labels that it had signed for them. Then each host gets a document above its
//! own, in a new epoch, and labels above its own.
//!
//! **Invariant: labels are taken from what the console has signed**, never from what a host says of itself: they earn secrets.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use muster_api::{
    ChangeKind, ConfirmAction, ConfirmDocuments, ConfirmedDocuments, DeploymentVersionInfo, NamedHost,
    UnconfirmedDeployment, UnconfirmedHost, UnconfirmedLabels,
};
use muster_base::clock::now_ms;
use muster_rules::deployment as documents;
use muster_topics::count::counted;
use muster_topics::{
    desired::{DeploymentName, DeploymentVersion, DesiredBody, DesiredMark},
    name::{Digest, HostId, LabelValue, Name},
};

use super::{
    apply::VERSIONS_KEPT,
    plan::{HostLook, PlanWish},
    table::{DeploymentEntry, DocumentStanding, assignment},
};
use crate::{
    dispatch,
    error::Error,
    list::first_names,
    page_change::PageChange,
    state::Console,
    store::{
        StoreError,
        change::{self, NewChange},
        deployment::{self, AssignmentRow, VersionRow},
        desired,
        label::{self, HostLabelRow, OperatorLabels},
    },
};

/// The most conflicts that a refusal names.
const NAMED_MAX: usize = 5;

/// A host to confirm.
struct OpenHost {
    host: HostId,
    hostname: String,
    /// The document that it has.
    mark: DesiredMark,
    digest: Option<Digest>,
    /// Whether this console did not make that.
    is_unconfirmed: bool,
    /// The document that it has handed in; `None` if that does not matter.
    body: Option<Arc<DesiredBody>>,
    /// What this console has assigned to it.
    assigned: Vec<AssignmentRow>,
    /// What it carries of deployments of which it is not known whether they select it.
    kept: Vec<AssignmentRow>,
    labels: Option<OpenLabels>,
}

/// Labels of a host that are newer than the console's.
struct OpenLabels {
    generation: u64,
    /// The labels that it has handed in.
    host: Option<BTreeMap<Name, LabelValue>>,
    /// Those that the console has.
    console: OperatorLabels,
    /// Those that the console will have.
    after: OperatorLabels,
}

impl OpenLabels {
    fn new(
        generation: u64,
        host: Option<BTreeMap<Name, LabelValue>>,
        console: OperatorLabels,
        (operator, now, replace): (&Name, i64, bool),
    ) -> Self {
        let after = match host.as_ref().filter(|_| !replace) {
            None => console.clone(),
            Some(host) => host
                .iter()
                .map(|(name, value)| {
                    // Who has set it holds, where it is the same.
                    let known = console.get(name).filter(|known| known.value == *value).cloned();
                    let row = || HostLabelRow { value: value.clone(), operator: operator.clone(), set_ms: now };
                    (name.clone(), known.unwrap_or_else(row))
                })
                .collect(),
        };
        Self { generation, host, console, after }
    }

    fn shown(&self) -> UnconfirmedLabels {
        let (console, after) = (label::values(&self.console), label::values(&self.after));
        let action = match &self.host {
            Some(host) if *host == console => ConfirmAction::Same,
            Some(host) if *host == after => ConfirmAction::Rebuild,
            _ => ConfirmAction::Replace,
        };
        UnconfirmedLabels { host: self.host.clone(), console, action }
    }
}

/// What hosts have of deployments, compared with what the console has.
#[derive(Default)]
struct HeldVersions {
    /// Versions that the console lacks.
    rebuilt: BTreeMap<DeploymentName, BTreeMap<u32, DeploymentVersion>>,
    /// Versions of which there are two.
    conflicts: Vec<(DeploymentName, u32)>,
}

impl Console {
    /// Confirms unconfirmed hosts, or tells what that would change.
    pub async fn confirm_documents(
        &self,
        operator: &Name,
        wanted: ConfirmDocuments,
    ) -> Result<ConfirmedDocuments, Error> {
        let shared = &self.shared;
        shared.check_operator(operator).await?;
        let meant = dispatch::target_hosts(shared, &wanted.target).await?;
        let _changing = shared.hosts.desired.changing.lock().await;
        let _labelling = shared.hosts.labelling.lock().await;
        let now = now_ms();
        let (mut open, waiting) = self.open_hosts(&meant, (operator, now, wanted.replace)).await?;
        let held = match wanted.replace {
            true => HeldVersions::default(),
            false => self.held_versions(&open).await?,
        };
        let mut deployments = shared.hosts.desired.table().deployments.clone();
        let present: BTreeMap<DeploymentName, u32> =
            deployments.iter().map(|entry| (entry.name().clone(), entry.number())).collect();
        let now = now_ms();
        let mut rows = Vec::new();
        for versions in held.rebuilt.values() {
            for version in versions.values() {
                rows.push(version_row(version, operator, now)?);
            }
            // The last one is the present one.
            if let Some(row) = rows.last() {
                let entry = Arc::new(self.entry(now, row.clone()).await?);
                deployments.retain(|one| one.name() != entry.name());
                deployments.push(entry);
            }
        }
        let hosts: Vec<HostId> = open.iter().map(|host| host.host).collect();
        let labelled = open.iter().filter_map(|host| Some((host.host, host.labels.as_ref()?.after.clone())));
        let (looks, _) = self.look_labelled(Some(&hosts), &deployments, &labelled.collect()).await?;
        let shown = open.iter().map(|host| shown(host, &held, (&deployments, &present), looks.get(&host.host)));
        let confirmed = ConfirmedDocuments { hosts: shown.collect(), waiting };
        if wanted.dry_run || open.is_empty() {
            return Ok(confirmed);
        }
        if !held.conflicts.is_empty() {
            let named: Vec<String> =
                held.conflicts.iter().map(|(name, number)| format!("version {number} of {name}")).collect();
            let message =
                format!("hosts have other content than the console or each other: {}", first_names(&named, NAMED_MAX));
            return Err(Error::conflict("document_conflict", message)
                .consequence("nothing was confirmed")
                .hint("`--dry-run` shows which hosts; `--replace` gives them what the console has"));
        }
        for host in &mut open {
            host.kept = self.kept(host, &held, &deployments).await?;
        }
        let mut transaction = shared.store.begin().await?;
        for row in &rows {
            deployment::set_present(&mut transaction, &row.content.deployment, row.info.number, now).await?;
            deployment::add_version(&mut transaction, row).await?;
        }
        let mut labelled = Vec::new();
        for host in &open {
            if let Some(labels) = &host.labels {
                label::replace(&mut transaction, host.host, &labels.after).await?;
                let least = labels.generation.saturating_add(1);
                let generation = label::next_generation(&mut transaction, host.host, least, now).await?;
                labelled.push((host.host, generation));
            }
            if let Some(digest) = host.digest.as_ref().filter(|_| host.is_unconfirmed) {
                desired::note_issued(&mut transaction, host.host, host.mark, digest).await?;
            }
            for one in host.body.iter().flat_map(|body| &body.deployments) {
                for unit in &one.detached {
                    let unit = (&one.version.deployment, unit);
                    deployment::set_detached(&mut transaction, &[host.host], unit, true).await?;
                }
            }
            for row in &host.kept {
                deployment::assign(&mut transaction, &[host.host], row).await?;
            }
            if let Some(body) = &host.body {
                deployment::set_removals(&mut transaction, &[host.host], &body.remove).await?;
            }
        }
        desired::forget_handed_in(&mut transaction, &hosts).await?;
        for name in held.rebuilt.keys() {
            deployment::trim_versions(&mut transaction, name, VERSIONS_KEPT).await?;
        }
        let names: Vec<&str> = open.iter().map(|host| host.hostname.as_str()).collect();
        let detail = match (wanted.replace, rows.len()) {
            (true, _) => "hosts take what the console has".to_owned(),
            (false, versions) => format!("the console takes {}", counted(versions, "version")),
        };
        let (kind, subject) = (ChangeKind::DocumentsConfirmed, first_names(&names, NAMED_MAX));
        change::note(&mut transaction, &NewChange { operator, kind, subject, detail }, now).await?;
        transaction.commit().await.map_err(StoreError::from)?;
        self.admit(&open, deployments);
        for (host, generation) in &labelled {
            shared.hosts.labels.tellings.set_generation(Some(*host), *generation);
            shared.changed(PageChange::Host(*host));
        }
        tracing::warn!(
            %operator, hosts = hosts.len(), versions = rows.len(), labelled = labelled.len(), replace = wanted.replace,
            "hosts with documents or labels that this console did not make are confirmed"
        );
        shared.hosts.labels.tellings.mark_owed(labelled.into_iter().map(|(host, _)| host).collect());
        for row in &rows {
            shared.changed(PageChange::Deployment(row.content.deployment.clone()));
        }
        // New deployments concern all hosts, confirmed before or not.
        let only = rows.is_empty().then_some(&hosts[..]);
        shared.hosts.desired.table().is_to_place = true;
        self.reconcile(only, PlanWish { may_remove: true, now, ..PlanWish::default() }).await?;
        Ok(confirmed)
    }

    /// Returns the unconfirmed ones of these hosts: those that can be confirmed, and those whose documents or labels are
    /// missing.
    async fn open_hosts(
        &self,
        meant: &[(HostId, String)],
        (operator, now, replace): (&Name, i64, bool),
    ) -> Result<(Vec<OpenHost>, Vec<NamedHost>), Error> {
        let ids: Vec<HostId> = meant.iter().map(|(host, _)| *host).collect();
        let mut given = label::given(self.shared.store.read(), Some(&ids)).await?;
        let (mut open, mut waiting, mut bodies) = (Vec::new(), Vec::new(), HashMap::new());
        for (host, hostname) in meant {
            let entry = self.shared.hosts.desired.table().hosts.get(host).filter(|entry| entry.is_open()).cloned();
            let Some(entry) = entry else { continue };
            let body = match entry.shown_document().filter(|_| entry.is_unconfirmed()) {
                Some(handed_in) => self.handed_in_body(&handed_in.digest, &mut bodies).await?,
                None => None,
            };
            let labels = entry.shown_labels();
            let lacks_any =
                entry.is_unconfirmed() && body.is_none() || entry.newer_labels.is_some() && labels.is_none();
            if lacks_any && !replace {
                waiting.push(NamedHost { host: *host, hostname: hostname.clone() });
                continue;
            }
            let of_console = given.remove(host).unwrap_or_default();
            let labels = entry.newer_number().map(|generation| {
                let of_host = labels.cloned();
                OpenLabels::new(generation, of_host, of_console, (operator, now, replace))
            });
            let report = entry.report.clone().unwrap_or_default();
            open.push(OpenHost {
                host: *host,
                hostname: hostname.clone(),
                mark: report.mark,
                digest: report.digest,
                is_unconfirmed: entry.is_unconfirmed(),
                body,
                assigned: entry.assigned,
                kept: Vec::new(),
                labels,
            });
        }
        open.sort_by(|one, other| (&one.hostname, one.host).cmp(&(&other.hostname, other.host)));
        waiting.sort_by(|one, other| (&one.hostname, one.host).cmp(&(&other.hostname, other.host)));
        Ok((open, waiting))
    }

    pub(super) async fn handed_in_body(
        &self,
        digest: &Digest,
        known: &mut HashMap<Digest, Option<Arc<DesiredBody>>>,
    ) -> Result<Option<Arc<DesiredBody>>, Error> {
        if let Some(body) = known.get(digest) {
            return Ok(body.clone());
        }
        let text = desired::handed_in_body(self.shared.store.read(), digest).await?;
        let body = text.and_then(|text| serde_json::from_str(&text).ok()).map(Arc::new);
        known.insert(digest.clone(), body.clone());
        Ok(body)
    }

    /// Compares the versions that hosts have with those of the console.
    async fn held_versions(&self, open: &[OpenHost]) -> Result<HeldVersions, Error> {
        let mut all: BTreeMap<(DeploymentName, u32), BTreeMap<Digest, &DeploymentVersion>> = BTreeMap::new();
        let held = open.iter().filter_map(|host| host.body.as_ref()).flat_map(|body| &body.deployments);
        for version in held.map(|one| &one.version) {
            let digest = version.digest().map_err(|error| Error::internal("the digest of a version", &error))?;
            all.entry((version.deployment.clone(), version.number)).or_default().insert(digest, version);
        }
        let db = self.shared.store.read();
        let mut found = HeldVersions::default();
        for ((name, number), versions) in all {
            let last = deployment::last(db, &name).await?;
            let known = deployment::version(db, &name, number).await?;
            let is_known = |digest: &Digest| known.as_ref().is_some_and(|known| known.info.digest == *digest);
            let mut others = versions.iter().filter(|(digest, _)| !is_known(digest));
            match (known.is_some(), others.next(), others.next()) {
                (_, None, _) => {}
                (true, Some(_), _) | (false, Some(_), Some(_)) => found.conflicts.push((name, number)),
                // A version from before those that the console has is no news.
                (false, Some((_, version)), None) if last.as_ref().is_none_or(|(last, _)| *last < number) => {
                    let version = DeploymentVersion::clone(version);
                    found.rebuilt.entry(name).or_default().insert(number, version);
                }
                (false, Some(_), None) => {}
            }
        }
        Ok(found)
    }

    /// Returns what a host carries, by its document, of deployments whose secrets are not known. Nor is it known then which hosts these
    /// select: each keeps what it has.
    async fn kept(
        &self,
        host: &OpenHost,
        held: &HeldVersions,
        deployments: &[Arc<DeploymentEntry>],
    ) -> Result<Vec<AssignmentRow>, Error> {
        let mut kept = Vec::new();
        for one in host.body.iter().flat_map(|body| &body.deployments) {
            let (name, number) = (&one.version.deployment, one.version.number);
            let present = deployments.iter().find(|entry| entry.name() == name && entry.secrets.is_err());
            let Some(present) = present else { continue };
            let is_known = held.rebuilt.get(name).is_some_and(|versions| versions.contains_key(&number))
                || deployment::version(self.shared.store.read(), name, number).await?.is_some();
            kept.push(AssignmentRow {
                deployment: name.clone(),
                version: if is_known { number } else { present.number() },
                adopt: one.adopt.clone(),
                plan: one.plan.clone(),
                instances: one.instances.clone(),
            });
        }
        Ok(kept)
    }

    /// Takes confirmed hosts into the table.
    fn admit(&self, open: &[OpenHost], deployments: Vec<Arc<DeploymentEntry>>) {
        let mut table = self.shared.hosts.desired.table();
        table.set_deployments(deployments);
        for host in open {
            let entry = table.hosts.entry(host.host).or_default();
            (entry.newer_labels, entry.looked_at) = (None, None);
            if !host.is_unconfirmed {
                continue;
            }
            entry.standing = DocumentStanding::Settled;
            (entry.above, entry.own_mark) = (Some(host.mark), Some(host.mark));
            entry.handed_in = None;
            entry.assigned.retain(|row| assignment(&host.kept, &row.deployment).is_none());
            entry.assigned.extend(host.kept.iter().cloned());
            if let Some(body) = &host.body {
                entry.removals.clone_from(&body.remove);
                for one in &body.deployments {
                    for unit in &one.detached {
                        let key = (one.version.deployment.clone(), unit.clone());
                        if !entry.detached.contains(&key) {
                            entry.detached.push(key);
                        }
                    }
                }
            }
        }
    }
}

/// Returns the row of a version that hosts have.
fn version_row(version: &DeploymentVersion, operator: &Name, now: i64) -> Result<VersionRow, Error> {
    let digest = version.digest().map_err(|error| Error::internal("the digest of a version", &error))?;
    let info = DeploymentVersionInfo {
        number: version.number,
        digest,
        parent: version.parent.clone(),
        operator: operator.clone(),
        applied_ms: now,
        repeats: None,
    };
    let content = Arc::new(version.clone());
    Ok(VersionRow { info, content, document: documents::write(version), is_damaged: false })
}

/// Returns what becomes of a host's deployments: of those that there are then, and of the versions that are present now.
fn shown(
    host: &OpenHost,
    held: &HeldVersions,
    (deployments, present): (&[Arc<DeploymentEntry>], &BTreeMap<DeploymentName, u32>),
    look: Option<&HostLook>,
) -> UnconfirmedHost {
    let is_selected = |index: usize| look.is_some_and(|look| look.selected.get(index).copied().unwrap_or(false));
    let has: BTreeMap<&DeploymentName, &DeploymentVersion> = host
        .body
        .iter()
        .flat_map(|body| &body.deployments)
        .map(|one| (&one.version.deployment, &one.version))
        .collect();
    let mut all: BTreeMap<DeploymentName, UnconfirmedDeployment> = BTreeMap::new();
    for (name, version) in &has {
        let at = deployments.iter().position(|entry| entry.name() == *name);
        let entry = at.filter(|index| is_selected(*index)).and_then(|index| deployments.get(index));
        let is_same = entry.is_some_and(|entry| version.digest().is_ok_and(|digest| digest == entry.row.info.digest));
        let action = if held.conflicts.contains(&((*name).clone(), version.number)) {
            ConfirmAction::Conflict
        } else if held.rebuilt.get(*name).is_some_and(|versions| versions.contains_key(&version.number)) {
            ConfirmAction::Rebuild
        } else {
            match entry {
                None => ConfirmAction::Orphan,
                Some(_) if is_same => ConfirmAction::Same,
                Some(_) => ConfirmAction::Replace,
            }
        };
        let one = UnconfirmedDeployment {
            deployment: (*name).clone(),
            host_version: Some(version.number),
            console_version: match action {
                ConfirmAction::Rebuild => present.get(*name).copied(),
                _ => entry.map(|entry| entry.number()),
            },
            action,
        };
        all.insert((*name).clone(), one);
    }
    // A host whose document is known changes only with its labels.
    for row in host.assigned.iter().filter(|_| !host.is_unconfirmed) {
        let index = deployments.iter().position(|entry| *entry.name() == row.deployment);
        let is_kept = index.is_some_and(is_selected);
        let one = UnconfirmedDeployment {
            deployment: row.deployment.clone(),
            host_version: Some(row.version),
            console_version: is_kept.then_some(row.version),
            action: if is_kept { ConfirmAction::Same } else { ConfirmAction::Remove },
        };
        all.insert(row.deployment.clone(), one);
    }
    for (index, entry) in deployments.iter().enumerate().filter(|(index, _)| is_selected(*index)) {
        all.entry(entry.name().clone()).or_insert_with(|| UnconfirmedDeployment {
            deployment: entry.name().clone(),
            host_version: None,
            console_version: deployments.get(index).map(|entry| entry.number()),
            action: ConfirmAction::Add,
        });
    }
    let deployments = all.into_values().collect();
    let labels = host.labels.as_ref().map(OpenLabels::shown);
    UnconfirmedHost { host: host.host, hostname: host.hostname.clone(), mark: host.mark, deployments, labels }
}

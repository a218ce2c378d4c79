//! Goes on with hosts whose document this console did not make: its store was lost, or restored from a backup.
//!
//! What the console lacks it takes from the documents that hosts have handed in: whole versions of deployments, each with its number and
//! the digest of its parent. Then each host gets a document above its own, in a new epoch.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use muster_api::{
    ConfirmAction, ConfirmDocuments, ConfirmedDocuments, DeploymentVersionInfo, NamedHost, UnconfirmedDeployment,
    UnconfirmedHost,
};
use muster_base::clock::now_ms;
use muster_rules::deployment as documents;
use muster_topics::{
    desired::{DeploymentName, DeploymentVersion, DesiredBody, DesiredMark},
    name::{Digest, HostId, Name},
};

use super::{
    plan::{HostLook, PlanWish},
    table::DeploymentEntry,
};
use crate::{
    dispatch,
    error::Error,
    list::first_names,
    page_change::PageChange,
    state::Console,
    store::{
        StoreError,
        deployment::{self, VersionRow},
        desired,
    },
};

/// The most conflicts that a refusal names.
const NAMED_MAX: usize = 5;

/// A host to confirm.
struct OpenHost {
    host: HostId,
    hostname: String,
    mark: DesiredMark,
    digest: Option<Digest>,
    /// What it has handed in; `None` if that does not matter.
    body: Option<Arc<DesiredBody>>,
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
        let (open, waiting) = self.open_hosts(&meant, wanted.replace).await?;
        let held = match wanted.replace {
            true => HeldVersions::default(),
            false => self.held_versions(&open).await?,
        };
        let mut deployments = shared.hosts.desired.table().deployments.clone();
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
        let (looks, _) = self.look(Some(&hosts), &deployments).await?;
        let shown = open.iter().map(|host| shown(host, &held, &deployments, looks.get(&host.host)));
        let confirmed = ConfirmedDocuments { hosts: shown.collect(), waiting };
        if wanted.dry_run || open.is_empty() {
            return Ok(confirmed);
        }
        if !held.conflicts.is_empty() {
            let named: Vec<String> =
                held.conflicts.iter().map(|(name, number)| format!("version {number} of {name}")).collect();
            let message = format!(
                "hosts have other content than the console, or than each other: {}",
                first_names(&named, NAMED_MAX)
            );
            return Err(Error::conflict("document_conflict", message)
                .consequence("nothing was confirmed")
                .hint("`--dry-run` shows which hosts; `--replace` gives them what the console has"));
        }
        let mut transaction = shared.store.begin().await?;
        for row in &rows {
            deployment::set_present(&mut transaction, &row.content.deployment, row.info.number, now).await?;
            deployment::add_version(&mut transaction, row).await?;
        }
        for host in &open {
            if let Some(digest) = &host.digest {
                desired::note_issued(&mut transaction, host.host, host.mark, digest).await?;
            }
            for one in host.body.iter().flat_map(|body| &body.deployments) {
                for unit in &one.detached {
                    let unit = (&one.version.deployment, unit);
                    deployment::set_detached(&mut transaction, &[host.host], unit, true).await?;
                }
            }
            if let Some(body) = &host.body {
                deployment::set_removals(&mut transaction, &[host.host], &body.remove).await?;
            }
        }
        desired::forget_handed_in(&mut transaction, &hosts).await?;
        transaction.commit().await.map_err(StoreError::from)?;
        self.admit(&open, deployments);
        tracing::warn!(
            %operator, hosts = hosts.len(), versions = rows.len(), replace = wanted.replace,
            "hosts with documents that this console did not make are confirmed"
        );
        for row in &rows {
            shared.changed(PageChange::Deployment(row.content.deployment.clone()));
        }
        // New deployments concern all hosts, confirmed before or not.
        let only = rows.is_empty().then_some(&hosts[..]);
        self.reconcile(only, PlanWish { may_remove: true, now, ..PlanWish::default() }).await?;
        Ok(confirmed)
    }

    /// Returns the unconfirmed ones of these hosts: those that can be confirmed, and those whose documents are missing.
    async fn open_hosts(
        &self,
        meant: &[(HostId, String)],
        replace: bool,
    ) -> Result<(Vec<OpenHost>, Vec<NamedHost>), Error> {
        let (mut open, mut waiting, mut bodies) = (Vec::new(), Vec::new(), HashMap::new());
        for (host, hostname) in meant {
            let (report, handed_in) = {
                let table = self.shared.hosts.desired.table();
                let Some(entry) = table.hosts.get(host).filter(|entry| entry.is_unconfirmed) else { continue };
                let Some(report) = entry.report.known().cloned() else { continue };
                let has = entry.handed_in.clone();
                let has = has.filter(|has| has.mark == report.mark && report.digest.as_ref() == Some(&has.digest));
                (report, has)
            };
            let body = match handed_in {
                Some(handed_in) => self.handed_in_body(&handed_in.digest, &mut bodies).await?,
                None => None,
            };
            if body.is_none() && !replace {
                waiting.push(NamedHost { host: *host, hostname: hostname.clone() });
                continue;
            }
            let (mark, digest) = (report.mark, report.digest);
            open.push(OpenHost { host: *host, hostname: hostname.clone(), mark, digest, body });
        }
        open.sort_by(|one, other| (&one.hostname, one.host).cmp(&(&other.hostname, other.host)));
        waiting.sort_by(|one, other| (&one.hostname, one.host).cmp(&(&other.hostname, other.host)));
        Ok((open, waiting))
    }

    async fn handed_in_body(
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

    /// Takes confirmed hosts into the table.
    fn admit(&self, open: &[OpenHost], deployments: Vec<Arc<DeploymentEntry>>) {
        let mut table = self.shared.hosts.desired.table();
        table.set_deployments(deployments);
        for host in open {
            let entry = table.hosts.entry(host.host).or_default();
            entry.is_unconfirmed = false;
            (entry.above, entry.own_mark) = (Some(host.mark), Some(host.mark));
            (entry.handed_in, entry.looked_at) = (None, None);
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
    Ok(VersionRow { info, content: Arc::new(version.clone()), document: documents::write(version) })
}

/// Returns what becomes of a host's deployments.
fn shown(
    host: &OpenHost,
    held: &HeldVersions,
    deployments: &[Arc<DeploymentEntry>],
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
            console_version: entry.map(|entry| entry.number()),
            action,
        };
        all.insert((*name).clone(), one);
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
    UnconfirmedHost { host: host.host, hostname: host.hostname.clone(), mark: host.mark, deployments }
}

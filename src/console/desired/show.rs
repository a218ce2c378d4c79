//! What is told of deployments: lists, versions, differences, and how far each is on its hosts.

use std::collections::{BTreeMap, BTreeSet};

use muster_api::{
    Change, ChangeCost, ChangeListing, CompareVersions, Deployment, DeploymentDetail, DeploymentDifferences,
    DeploymentHost, DeploymentState, DeploymentUnitChange, DeploymentVersionDetail, DeploymentVersionInfo,
    FieldDifference, HostOutcome, UnitChange,
};
use muster_base::clock::now_ms;
use muster_rules::{
    assignment::AssignmentConflict,
    cost,
    deployment_state::{self, DeploymentOnHost, HostUnit},
    spec_comparison,
};
use muster_topics::{
    Millis,
    desired::{DeploymentName, DeploymentUnit, DeploymentVersion},
    diagnostic::Diagnostic,
    name::{HostId, UnitName},
    unit::{MASK, Run, Spec, UnitReport},
};
use serde_json::{Map, Value};

use super::{
    places::names_of,
    table::{DesiredTable, HostEntry, assignment, lacked},
};
use crate::{
    error::Error,
    rollout::HostAdmission,
    state::Console,
    store::{
        change,
        deployment::{self, AssignmentRow, VersionRow},
        host,
    },
};

/// How many changes are listed, and at most.
const CHANGES_DEFAULT: u32 = 100;
const CHANGES_MAX: u32 = 1_000;

pub(super) fn unknown(name: &DeploymentName) -> Error {
    Error::not_found("unknown_deployment", format!("there is no deployment {name}"))
        .hint("`muster deployment ls` lists them")
}

/// The problem that a deployment has nothing to go back to.
pub(crate) fn no_earlier_version(name: &DeploymentName, present: u32) -> Error {
    let message = format!("{name} has no version before {present}");
    Error::conflict("no_earlier_version", message).hint(format!("`muster deployment history {name}` lists them"))
}

/// What deployments have to do with a unit of a host, beside its owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnitClaim {
    /// Whether it is to go.
    pub(crate) is_leaving: bool,
    /// A deployment of the host that has a unit of this name.
    pub(crate) deployment: Option<DeploymentName>,
    /// Whether the unit was detached from that one.
    pub(crate) is_detached: bool,
}

impl Console {
    /// Returns what deployments have to do with a unit of a host.
    pub(crate) fn unit_claim(&self, host: HostId, unit: &UnitName) -> UnitClaim {
        let table = self.shared.hosts.desired.table();
        let Some(entry) = table.hosts.get(&host) else { return UnitClaim::default() };
        let has = |row: &&AssignmentRow| {
            let version = table.versions.get(&(row.deployment.clone(), row.version));
            version.is_some_and(|version| version.units_with(&row.instances).contains(unit))
        };
        let deployment = entry.assigned.iter().find(has).map(|row| row.deployment.clone());
        let is_of = |(of, one): &(DeploymentName, UnitName)| Some(of) == deployment.as_ref() && one == unit;
        UnitClaim {
            is_leaving: entry.removals.iter().any(|removal| removal.unit == *unit),
            is_detached: entry.detached.iter().any(is_of),
            deployment,
        }
    }

    /// Returns what operators have changed last.
    pub async fn recent_changes(&self, wanted: &ChangeListing) -> Result<Vec<Change>, Error> {
        let limit = wanted.limit.unwrap_or(CHANGES_DEFAULT).min(CHANGES_MAX);
        Ok(change::newest(self.shared.store.read(), wanted.subject.as_deref(), limit).await?)
    }

    /// Returns the number of hosts with a document that this console did not make.
    pub(crate) fn unconfirmed_hosts(&self) -> u64 {
        self.shared.hosts.desired.table().hosts.values().filter(|entry| entry.is_unconfirmed()).count() as u64
    }

    /// Returns all deployments, by name: also removed ones that hosts have yet to remove.
    pub async fn deployments(&self) -> Result<Vec<Deployment>, Error> {
        let mut on_hosts = self.on_hosts(None).await?;
        let rows = self.shown_versions(None).await?;
        let shown = |(name, row): (DeploymentName, VersionRow)| {
            let hosts = on_hosts.remove(&name).unwrap_or_default();
            summary(&row, &hosts)
        };
        Ok(rows.into_iter().map(shown).collect())
    }

    /// Returns one deployment.
    pub async fn deployment(&self, name: &DeploymentName) -> Result<DeploymentDetail, Error> {
        let row = self.shown_versions(Some(name)).await?.remove(name).ok_or_else(|| unknown(name))?;
        let on_hosts = self.on_hosts(Some(name)).await?.remove(name).unwrap_or_default();
        let placement = {
            let table = self.shared.hosts.desired.table();
            table.deployment(name).map(|entry| table.placements(entry)).unwrap_or_default()
        };
        Ok(DeploymentDetail {
            placement,
            deployment: summary(&row, &on_hosts),
            document: masked_document(&row.document),
            content: masked(&row.content),
            on_hosts,
        })
    }

    /// Returns how far a deployment is on its hosts, by hostname; an error if there is none.
    pub(crate) async fn deployment_hosts(&self, name: &DeploymentName) -> Result<Vec<DeploymentHost>, Error> {
        if self.shown_versions(Some(name)).await?.is_empty() {
            return Err(unknown(name));
        }
        Ok(self.on_hosts(Some(name)).await?.remove(name).unwrap_or_default())
    }

    /// Returns all versions of a deployment, the newest first.
    pub async fn deployment_history(&self, name: &DeploymentName) -> Result<Vec<DeploymentVersionInfo>, Error> {
        let rows = deployment::versions(self.shared.store.read(), name).await?;
        if rows.is_empty() {
            return Err(unknown(name));
        }
        Ok(rows.into_iter().map(|row| row.info).collect())
    }

    /// Returns one version of a deployment.
    pub async fn deployment_version(
        &self,
        name: &DeploymentName,
        number: u32,
    ) -> Result<DeploymentVersionDetail, Error> {
        let row = self.version_row(name, number).await?;
        Ok(DeploymentVersionDetail {
            select: row.content.target.select.clone(),
            document: masked_document(&row.document),
            content: masked(&row.content),
            version: row.info,
        })
    }

    /// Returns the number of the version before one, of those that are kept; 0 if there is none.
    pub(super) async fn version_before(&self, name: &DeploymentName, number: u32) -> Result<u32, Error> {
        Ok(deployment::version_before(self.shared.store.read(), name, number).await?.unwrap_or(0))
    }

    pub(super) async fn version_row(&self, name: &DeploymentName, number: u32) -> Result<VersionRow, Error> {
        let row = deployment::version(self.shared.store.read(), name, number).await?;
        row.ok_or_else(|| {
            Error::not_found("unknown_version", format!("deployment {name} has no version {number}"))
                .hint(format!("`muster deployment history {name}` lists them"))
        })
    }

    /// Returns how two versions of a deployment differ.
    pub async fn deployment_differences(
        &self,
        name: &DeploymentName,
        wanted: &CompareVersions,
    ) -> Result<DeploymentDifferences, Error> {
        let present = self.shared.hosts.desired.table().deployment(name).map(|entry| entry.number());
        let to = wanted.to.or(present).ok_or_else(|| unknown(name))?;
        let from = match wanted.from {
            Some(from) => from,
            None => self.version_before(name, to).await?,
        };
        let after = self.version_row(name, to).await?;
        let before = match from {
            0 => None,
            from => Some(self.version_row(name, from).await?),
        };
        let before = before.as_ref().map(|row| &*row.content);
        let (select, units) = (select_difference(before, &after.content), unit_changes(before, &after.content));
        Ok(DeploymentDifferences { from, to, select, units })
    }

    /// Returns the present versions of deployments, and the last ones of those that hosts have yet to remove.
    async fn shown_versions(
        &self,
        only: Option<&DeploymentName>,
    ) -> Result<BTreeMap<DeploymentName, VersionRow>, Error> {
        let is_meant = |name: &DeploymentName| only.is_none_or(|only| only == name);
        let (mut rows, going): (BTreeMap<DeploymentName, VersionRow>, BTreeSet<DeploymentName>) = {
            let table = self.shared.hosts.desired.table();
            let entries = table.deployments.iter().filter(|entry| is_meant(entry.name()));
            let removals = table.hosts.values().flat_map(|entry| &entry.removals);
            (
                entries.map(|entry| (entry.name().clone(), entry.row.clone())).collect(),
                removals.map(|removal| removal.deployment.clone()).filter(is_meant).collect(),
            )
        };
        for name in going {
            if !rows.contains_key(&name)
                && let Some(row) = deployment::versions(self.shared.store.read(), &name).await?.into_iter().next()
            {
                rows.insert(name, row);
            }
        }
        Ok(rows)
    }

    /// Returns how far deployments are on their hosts: all, or one.
    async fn on_hosts(
        &self,
        only: Option<&DeploymentName>,
    ) -> Result<BTreeMap<DeploymentName, Vec<DeploymentHost>>, Error> {
        let db = self.shared.store.read();
        let owned = deployment::owned_units(db, only).await?;
        let names = host::names(db).await?;
        let away = host::away(db, None).await?;
        let rollouts = &self.shared.hosts.rollouts;
        let mut admissions: BTreeMap<DeploymentName, BTreeMap<HostId, HostAdmission>> = BTreeMap::new();
        let table = self.shared.hosts.desired.table();
        let mut found: BTreeMap<DeploymentName, Vec<DeploymentHost>> = BTreeMap::new();
        let none = HostEntry::default();
        for (host, hostname) in names {
            let entry = table.hosts.get(&host).unwrap_or(&none);
            let reports = owned.get(&host).map_or(&[][..], Vec::as_slice);
            for name in concerned(entry, reports, only) {
                let away_since_ms = away.get(&host).copied();
                let admission = admissions.entry(name.clone()).or_insert_with(|| rollouts.admissions(&name)).get(&host);
                if let Some(reported) = state(&table, (entry, admission), &name, reports, away_since_ms) {
                    let (state, reason) = told(reported, admission);
                    let reported = entry.report.as_ref().and_then(|report| report.deployments.get(&name));
                    let shown = DeploymentHost {
                        host,
                        hostname: hostname.clone(),
                        state,
                        reason: reason.or_else(|| rival(entry, &name).map(Diagnostic::from)),
                        wanted: assignment(&entry.assigned, &name).map(|row| row.version),
                        version: reported.map_or(0, |reported| reported.version),
                        instances: assignment(&entry.assigned, &name)
                            .map(|row| names_of(&row.instances).collect())
                            .unwrap_or_default(),
                        away_since_ms,
                    };
                    found.entry(name).or_default().push(shown);
                }
            }
        }
        drop(table);
        for hosts in found.values_mut() {
            hosts.sort_by(|one, other| (&one.hostname, one.host).cmp(&(&other.hostname, other.host)));
        }
        Ok(found)
    }
}

/// Returns the deployments that a host has to do with.
fn concerned(entry: &HostEntry, reports: &[UnitReport], only: Option<&DeploymentName>) -> BTreeSet<DeploymentName> {
    let assigned = entry.assigned.iter().map(|row| &row.deployment);
    let removed = entry.removals.iter().map(|removal| &removal.deployment);
    let conflicts = entry.conflicts.iter().map(|(name, _)| name);
    let owned = reports.iter().filter_map(|report| report.owner.as_ref()).map(|owner| &owner.deployment);
    let all = assigned.chain(removed).chain(conflicts).chain(entry.lacking.iter().map(|(name, _)| name)).chain(owned);
    all.filter(|name| only.is_none_or(|only| only == *name)).cloned().collect()
}

fn state(
    table: &DesiredTable,
    (entry, admission): (&HostEntry, Option<&HostAdmission>),
    name: &DeploymentName,
    reports: &[UnitReport],
    away_since_ms: Option<Millis>,
) -> Option<(DeploymentState, Option<Diagnostic>)> {
    let row = assignment(&entry.assigned, name);
    let is_detached = |unit: &UnitName| entry.detached.iter().any(|(of, one)| of == name && one == unit);
    let units: Vec<UnitName> = row
        .and_then(|row| Some(table.versions.get(&(name.clone(), row.version))?.units_with(&row.instances).into_owned()))
        .into_iter()
        .flatten()
        .filter(|unit| !is_detached(unit))
        .collect();
    let on_host: Vec<HostUnit<'_>> = reports
        .iter()
        .map(|report| HostUnit {
            unit: &report.unit,
            desired: &report.desired,
            observed: &report.observed,
            hold: report.hold.as_ref(),
            owner: report.owner.as_ref(),
        })
        .collect();
    if let (Some(error), Some(_)) = (&entry.error, row) {
        return Some((DeploymentState::Refused, Some(error.as_str().into())));
    }
    deployment_state::state(&DeploymentOnHost {
        deployment: name,
        wanted: row.map(|row| (row.version, &units[..])),
        conflict: entry.conflicts.iter().find(|(of, _)| of == name).map(|(_, conflict)| conflict),
        lacks: lacked(&entry.lacking, name),
        admission: match admission {
            Some(HostAdmission::Waits(reason)) => Some(reason),
            _ => None,
        },
        removes: entry.removals.iter().any(|removal| removal.deployment == *name),
        mark: entry.mark(),
        is_unconfirmed: entry.is_open(),
        report: entry.report.as_ref(),
        is_away: away_since_ms.is_some(),
        now_ms: now_ms(),
        units: &on_host,
    })
}

/// Corrects the state of a host whose report is older than what it has said in the rollout.
fn told(
    (state, reason): (DeploymentState, Option<Diagnostic>),
    admission: Option<&HostAdmission>,
) -> (DeploymentState, Option<Diagnostic>) {
    let because = |words: &str| Some(Diagnostic::new(words));
    match (state, admission) {
        (DeploymentState::Waiting, Some(HostAdmission::Changing)) => {
            (DeploymentState::Changing, because("it has begun"))
        }
        (DeploymentState::Waiting, Some(HostAdmission::Ended(outcome))) => match outcome {
            HostOutcome::Verified => {
                (DeploymentState::Changing, because("it has verified the version and has not reported yet"))
            }
            HostOutcome::Failed | HostOutcome::RolledBack => {
                (DeploymentState::Failed, because("its units have failed"))
            }
            HostOutcome::Skipped => (DeploymentState::Waiting, because("the rollout has ended before it was admitted")),
            _ => (state, reason),
        },
        _ => (state, reason),
    }
}

/// Says of a deployment that keeps a unit which other ones claim, too.
fn rival(entry: &HostEntry, name: &DeploymentName) -> Option<String> {
    entry.conflicts.iter().find_map(|(of, conflict)| match conflict {
        AssignmentConflict::Unit { unit, with } if with == name => Some(format!("deployment {of} claims {unit}, too")),
        _ => None,
    })
}

fn summary(row: &VersionRow, on_hosts: &[DeploymentHost]) -> Deployment {
    let mut hosts: BTreeMap<DeploymentState, u64> = BTreeMap::new();
    on_hosts.iter().for_each(|one| *hosts.entry(one.state).or_default() += 1);
    Deployment {
        deployment: row.content.deployment.clone(),
        version: row.info.clone(),
        select: row.content.target.select.clone(),
        units: row.content.units.len() as u64,
        hosts,
    }
}

fn masked(version: &DeploymentVersion) -> Vec<DeploymentUnit> {
    let masked = |unit: &DeploymentUnit| DeploymentUnit { spec: Box::new(unit.spec.masked()), ..unit.clone() };
    version.units.iter().map(masked).collect()
}

/// Returns a document with the values of environments masked.
fn masked_document(document: &Value) -> Value {
    fn mask(unit: &mut Value) {
        if let Some(Value::Object(env)) = unit.get_mut("env") {
            env.values_mut().for_each(|value| *value = MASK.into());
        }
    }
    let mut document = document.clone();
    if let Some(unit) = document.get_mut("unit") {
        mask(unit);
    }
    if let Some(Value::Array(units)) = document.get_mut("units") {
        units.iter_mut().for_each(mask);
    }
    document
}

/// Returns how the target changes, if it does.
pub(super) fn select_difference(
    before: Option<&DeploymentVersion>,
    after: &DeploymentVersion,
) -> Option<FieldDifference> {
    let from = before.map(|before| &before.target.select);
    (from != Some(&after.target.select)).then(|| FieldDifference {
        field: "target.select".to_owned(),
        from: from.map(|from| from.to_string().into()),
        to: Some(after.target.select.to_string().into()),
    })
}

/// Returns what becomes of each unit from one version to another, by name.
pub(super) fn unit_changes(before: Option<&DeploymentVersion>, after: &DeploymentVersion) -> Vec<DeploymentUnitChange> {
    let units = |version: &DeploymentVersion| -> BTreeMap<UnitName, (Spec, Run)> {
        version.units.iter().map(|unit| (unit.unit.clone(), ((*unit.spec).clone(), unit.run))).collect()
    };
    let placed = |version: &DeploymentVersion| -> BTreeMap<UnitName, Map<String, Value>> {
        let fields = |unit: &DeploymentUnit| {
            Some((unit.unit.clone(), muster_rules::deployment::placement_fields(unit.placement.as_ref()?)))
        };
        version.units.iter().filter_map(fields).collect()
    };
    let (placed_before, placed_after) = (before.map(placed).unwrap_or_default(), placed(after));
    let (before, after) = (before.map(units).unwrap_or_default(), units(after));
    let names: BTreeSet<&UnitName> = before.keys().chain(after.keys()).collect();
    let made = |unit: &UnitName, change, cost, differences| DeploymentUnitChange {
        unit: unit.clone(),
        change,
        cost,
        differences,
    };
    let change = |name: &UnitName| match (before.get(name), after.get(name)) {
        (_, None) => made(name, UnitChange::Remove, None, Vec::new()),
        (None, Some((spec, run))) => {
            let cost = if run.is_running() { ChangeCost::Start } else { ChangeCost::InPlace };
            made(name, UnitChange::Create, Some(cost), spec_comparison::fields(None, Some((spec, *run))))
        }
        (Some(old), Some(new)) if old == new => made(name, UnitChange::Unchanged, None, Vec::new()),
        (Some((old, was)), Some((new, is))) => {
            let mut differences = spec_comparison::fields(Some((old, *was)), Some((new, *is)));
            let other = new.env().iter().filter(|(name, value)| old.env().get(*name).is_some_and(|old| old != *value));
            differences.extend(other.map(|(name, _)| spec_comparison::masked(format!("env.{name}"))));
            made(name, UnitChange::Change, Some(cost::cost((old, *was), (new, *is))), differences)
        }
    };
    let with_placement = |name: &UnitName| {
        let mut change = change(name);
        let (from, to) = (placed_before.get(name), placed_after.get(name));
        let keys: &[&str] = if change.change == UnitChange::Remove { &[] } else { &["count", "placement"] };
        for key in keys {
            let of = |fields: Option<&Map<String, Value>>| fields.and_then(|fields| fields.get(*key).cloned());
            let (from, to) = (of(from), of(to));
            if from != to {
                change.differences.push(FieldDifference { field: (*key).to_owned(), from, to });
                if change.change == UnitChange::Unchanged {
                    change.change = UnitChange::Change;
                }
            }
        }
        change
    };
    names.into_iter().map(with_placement).collect()
}

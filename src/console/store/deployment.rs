//! Deployments, their versions, and which host carries which of them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use futures_util::TryStreamExt;
use muster_api::DeploymentVersionInfo;
use muster_topics::{
    Millis,
    desired::{DeploymentName, DeploymentVersion, DesiredBody, Instances, UnitRemoval},
    heartbeat::{Facts, HostState},
    label::merge,
    name::{Digest, HostId, Name, UnitName},
    select,
};
use serde_json::Value;
use sqlx::{SqliteConnection, SqlitePool};

use super::{
    columns::{json, parsed, to_json, unsigned},
    error::{StoreError, StoreResult},
    host::with_is_member,
    label::{self, OperatorLabels},
};

/// A version of a deployment.
#[derive(Clone, Debug, PartialEq)]
pub struct VersionRow {
    /// Its number, digest, and who applied it.
    pub info: DeploymentVersionInfo,
    /// Its content, as hosts get it.
    pub content: Arc<DeploymentVersion>,
    /// The document as it was written.
    pub document: Value,
    /// Whether the content is not what was stored: it has not the digest. No host is sent it.
    pub is_damaged: bool,
}

struct VersionColumns {
    deployment: String,
    number: i64,
    digest: String,
    content: String,
    document: String,
    operator: String,
    applied_ms: Millis,
    repeats: Option<i64>,
}

fn number(what: &'static str, value: i64) -> StoreResult<u32> {
    u32::try_from(unsigned(what, value)?).map_err(|error| StoreError::Row { what, problem: error.to_string() })
}

impl VersionColumns {
    fn row(self) -> StoreResult<VersionRow> {
        let mut content: DeploymentVersion = json("version", &self.content)?;
        let digest: Digest = parsed("digest", &self.digest)?;
        let is_damaged = content.digest().ok().as_ref() != Some(&digest);
        // Damaged or not, it is a version of this deployment.
        content.deployment = parsed("deployment", &self.deployment)?;
        content.number = number("version", self.number)?;
        Ok(VersionRow {
            is_damaged,
            info: DeploymentVersionInfo {
                number: number("version", self.number)?,
                digest,
                parent: content.parent.clone(),
                operator: parsed("operator", &self.operator)?,
                applied_ms: self.applied_ms,
                repeats: self.repeats.map(|repeats| number("version", repeats)).transpose()?,
            },
            content: Arc::new(content),
            document: json("document", &self.document)?,
        })
    }
}

/// Returns the deployments that there are, in the order in which they were made, each with its present version.
pub async fn all(db: &SqlitePool) -> StoreResult<Vec<(Millis, VersionRow)>> {
    let rows = sqlx::query!(
        "SELECT created_ms, name, number, digest, content, document, operator, applied_ms, repeats
         FROM deployment JOIN deployment_version
           ON deployment_version.deployment = deployment.name AND deployment_version.number = deployment.version
         WHERE removed_ms IS NULL ORDER BY created_ms, name"
    )
    .fetch_all(db)
    .await?;
    rows.into_iter()
        .map(|row| {
            let columns = VersionColumns {
                deployment: row.name,
                number: row.number,
                digest: row.digest,
                content: row.content,
                document: row.document,
                operator: row.operator,
                applied_ms: row.applied_ms,
                repeats: row.repeats,
            };
            Ok((row.created_ms, columns.row()?))
        })
        .collect()
}

/// Returns all versions of a deployment, the newest first; also those of one that was removed.
pub async fn versions(db: &SqlitePool, deployment: &DeploymentName) -> StoreResult<Vec<VersionRow>> {
    let rows = sqlx::query_as!(
        VersionColumns,
        "SELECT deployment, number, digest, content, document, operator, applied_ms, repeats FROM deployment_version
         WHERE deployment = $1 ORDER BY number DESC",
        deployment.as_str()
    )
    .fetch_all(db)
    .await?;
    rows.into_iter().map(VersionColumns::row).collect()
}

/// Returns one version of a deployment.
pub async fn version(db: &SqlitePool, deployment: &DeploymentName, number: u32) -> StoreResult<Option<VersionRow>> {
    let row = sqlx::query_as!(
        VersionColumns,
        "SELECT deployment, number, digest, content, document, operator, applied_ms, repeats FROM deployment_version
         WHERE deployment = $1 AND number = $2",
        deployment.as_str(),
        i64::from(number)
    )
    .fetch_optional(db)
    .await?;
    row.map(VersionColumns::row).transpose()
}

/// Returns the content of a version from a document of a host that has it whole.
pub async fn version_of_documents(
    db: &SqlitePool,
    info: &DeploymentVersionInfo,
    deployment: &DeploymentName,
) -> StoreResult<Option<DeploymentVersion>> {
    let mut bodies =
        sqlx::query!("SELECT digest, content FROM desired_body UNION ALL SELECT digest, content FROM handed_in_body")
            .fetch(db);
    while let Some(row) = bodies.try_next().await? {
        if Digest::of(row.content.as_bytes()).as_str() != row.digest {
            continue;
        }
        let Ok(body) = serde_json::from_str::<DesiredBody>(&row.content) else { continue };
        let is_it = |version: &DeploymentVersion| {
            version.deployment == *deployment
                && version.number == info.number
                && version.digest().ok().as_ref() == Some(&info.digest)
        };
        if let Some(found) = body.deployments.into_iter().map(|one| one.version).find(is_it) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Stores the content of a version anew that was damaged.
pub async fn repair_version(db: &SqlitePool, version: &DeploymentVersion) -> StoreResult<()> {
    sqlx::query!(
        "UPDATE deployment_version SET content = $3 WHERE deployment = $1 AND number = $2",
        version.deployment.as_str(),
        i64::from(version.number),
        to_json("version", version)?
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Returns number and digest of the last version of a deployment, removed or not.
pub async fn last(db: &SqlitePool, deployment: &DeploymentName) -> StoreResult<Option<(u32, Digest)>> {
    let row = sqlx::query!(
        "SELECT number, digest FROM deployment_version WHERE deployment = $1 ORDER BY number DESC LIMIT 1",
        deployment.as_str()
    )
    .fetch_optional(db)
    .await?;
    row.map(|row| Ok((number("version", row.number)?, parsed("digest", &row.digest)?))).transpose()
}

/// Returns the number of the last version before one.
pub async fn version_before(db: &SqlitePool, deployment: &DeploymentName, before: u32) -> StoreResult<Option<u32>> {
    let found = sqlx::query_scalar!(
        r#"SELECT max(number) AS "number: i64" FROM deployment_version WHERE deployment = $1 AND number < $2"#,
        deployment.as_str(),
        i64::from(before)
    )
    .fetch_one(db)
    .await?;
    found.map(|found| number("version", found)).transpose()
}

/// Removes versions of a deployment beyond the newest `keep`, except those that a host has or is to have, or of which it
/// is to remove units. Returns how many.
pub async fn trim_versions(db: &mut SqliteConnection, deployment: &DeploymentName, keep: u32) -> StoreResult<u64> {
    let trimmed = sqlx::query!(
        "DELETE FROM deployment_version
         WHERE deployment = $1
           AND number NOT IN (SELECT number FROM deployment_version WHERE deployment = $1
                              ORDER BY number DESC LIMIT $2)
           AND number NOT IN (SELECT version FROM deployment WHERE name = $1)
           AND number NOT IN (SELECT version FROM assignment WHERE deployment = $1)
           AND number NOT IN (SELECT version FROM unit_removal WHERE deployment = $1)
           AND number NOT IN (SELECT json_extract(state, '$.fallback') FROM rollout
                              WHERE rollout.deployment = $1 AND ended_ms IS NULL
                                AND json_extract(state, '$.fallback') IS NOT NULL)
           AND number NOT IN (SELECT deployment_version FROM unit
                              WHERE unit.deployment = $1 AND deployment_version IS NOT NULL)",
        deployment.as_str(),
        i64::from(keep)
    )
    .execute(&mut *db)
    .await?;
    sqlx::query!(
        "DELETE FROM rollout_step
         WHERE deployment = $1 AND version NOT IN (SELECT version FROM rollout WHERE rollout.deployment = $1)",
        deployment.as_str()
    )
    .execute(db)
    .await?;
    Ok(trimmed.rows_affected())
}

/// Stores a version, unless there is one of its number.
pub async fn add_version(db: &mut SqliteConnection, row: &VersionRow) -> StoreResult<()> {
    sqlx::query!(
        "INSERT INTO deployment_version
           (deployment, number, digest, content, document, operator, applied_ms, repeats)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
         ON CONFLICT (deployment, number) DO NOTHING",
        row.content.deployment.as_str(),
        i64::from(row.info.number),
        row.info.digest.as_str(),
        to_json("version", &*row.content)?,
        to_json("document", &row.document)?,
        row.info.operator.as_str(),
        row.info.applied_ms,
        row.info.repeats.map(i64::from)
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Makes a version the present one of its deployment.
pub async fn set_present(
    db: &mut SqliteConnection,
    deployment: &DeploymentName,
    number: u32,
    now: Millis,
) -> StoreResult<()> {
    sqlx::query!(
        "INSERT INTO deployment (name, created_ms, version) VALUES ($1, $2, $3)
         ON CONFLICT (name) DO UPDATE SET version = excluded.version, removed_ms = NULL,
           created_ms = CASE WHEN removed_ms IS NULL THEN created_ms ELSE excluded.created_ms END",
        deployment.as_str(),
        now,
        i64::from(number)
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Removes a deployment. Its versions stay.
pub async fn remove(db: &mut SqliteConnection, deployment: &DeploymentName, now: Millis) -> StoreResult<()> {
    sqlx::query!("UPDATE deployment SET removed_ms = $2 WHERE name = $1", deployment.as_str(), now).execute(db).await?;
    Ok(())
}

/// A deployment that a host carries.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AssignmentRow {
    /// The deployment.
    pub deployment: DeploymentName,
    /// Its version.
    pub version: u32,
    /// Units made by verbs that it takes over.
    pub adopt: Vec<UnitName>,
    /// The digest of the host's plan of it, if it is to be what an operator has seen.
    pub plan: Option<Digest>,
    /// The instances of units that the console places.
    pub instances: Instances,
}

/// Returns what each host carries.
pub async fn assignments(db: &SqlitePool) -> StoreResult<HashMap<HostId, Vec<AssignmentRow>>> {
    let mut rows = sqlx::query!(
        "SELECT host, deployment, version, adopt, plan, instances FROM assignment ORDER BY host, deployment"
    )
    .map(|row| (row.host, row.deployment, row.version, row.adopt, row.plan, row.instances))
    .fetch(db);
    let mut found: HashMap<HostId, Vec<AssignmentRow>> = HashMap::new();
    while let Some((host, deployment, version, adopt, plan, instances)) = rows.try_next().await? {
        let row = AssignmentRow {
            deployment: parsed("deployment", &deployment)?,
            version: number("version", version)?,
            adopt: json("units", &adopt)?,
            plan: plan.map(|digest| parsed("digest", &digest)).transpose()?,
            instances: json("instances", &instances)?,
        };
        found.entry(parsed("host id", &host)?).or_default().push(row);
    }
    Ok(found)
}

/// Has hosts carry a deployment in this version.
pub async fn assign(db: &mut SqliteConnection, hosts: &[HostId], row: &AssignmentRow) -> StoreResult<()> {
    sqlx::query!(
        "INSERT INTO assignment (host, deployment, version, adopt, plan, instances)
         SELECT value, $1, $2, $3, $4, $5 FROM json_each($6) WHERE TRUE
         ON CONFLICT (host, deployment) DO UPDATE SET version = excluded.version, adopt = excluded.adopt,
             plan = excluded.plan, instances = excluded.instances",
        row.deployment.as_str(),
        i64::from(row.version),
        to_json("units", &row.adopt)?,
        row.plan.as_ref().map(Digest::as_str),
        to_json("instances", &row.instances)?,
        to_json("hosts", &hosts)?
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Has hosts carry a deployment no more.
pub async fn unassign(db: &mut SqliteConnection, hosts: &[HostId], deployment: &DeploymentName) -> StoreResult<()> {
    sqlx::query!(
        "DELETE FROM assignment WHERE deployment = $1 AND host IN (SELECT value FROM json_each($2))",
        deployment.as_str(),
        to_json("hosts", &hosts)?
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Returns the units that hosts are to remove.
pub async fn removals(db: &SqlitePool) -> StoreResult<HashMap<HostId, Vec<UnitRemoval>>> {
    let rows = sqlx::query!(
        r#"SELECT host, unit, deployment, version, purge AS "purge: bool", at_once AS "at_once: bool"
           FROM unit_removal ORDER BY host, unit, deployment"#
    )
    .fetch_all(db)
    .await?;
    let mut found: HashMap<HostId, Vec<UnitRemoval>> = HashMap::new();
    for row in rows {
        let removal = UnitRemoval {
            unit: parsed("unit", &row.unit)?,
            deployment: parsed("deployment", &row.deployment)?,
            version: number("version", row.version)?,
            purge: row.purge,
            at_once: row.at_once,
        };
        found.entry(parsed("host id", &row.host)?).or_default().push(removal);
    }
    Ok(found)
}

/// Replaces what hosts are to remove, all of them the same.
pub async fn set_removals(db: &mut SqliteConnection, hosts: &[HostId], removals: &[UnitRemoval]) -> StoreResult<()> {
    let hosts = to_json("hosts", &hosts)?;
    sqlx::query!("DELETE FROM unit_removal WHERE host IN (SELECT value FROM json_each($1))", &hosts)
        .execute(&mut *db)
        .await?;
    for removal in removals {
        sqlx::query!(
            "INSERT INTO unit_removal (host, unit, deployment, version, purge, at_once)
             SELECT value, $1, $2, $3, $4, $5 FROM json_each($6)",
            removal.unit.as_str(),
            removal.deployment.as_str(),
            i64::from(removal.version),
            i64::from(removal.purge),
            i64::from(removal.at_once),
            &hosts
        )
        .execute(&mut *db)
        .await?;
    }
    Ok(())
}

/// Returns the units that were detached from their deployments, by host.
pub async fn detached(db: &SqlitePool) -> StoreResult<HashMap<HostId, Vec<(DeploymentName, UnitName)>>> {
    let rows = sqlx::query!("SELECT host, deployment, unit FROM detached_unit ORDER BY host, deployment, unit")
        .fetch_all(db)
        .await?;
    let mut found: HashMap<HostId, Vec<(DeploymentName, UnitName)>> = HashMap::new();
    for row in rows {
        let unit = (parsed("deployment", &row.deployment)?, parsed("unit", &row.unit)?);
        found.entry(parsed("host id", &row.host)?).or_default().push(unit);
    }
    Ok(found)
}

/// Detaches a unit of a deployment on hosts, or takes that back.
pub async fn set_detached(
    db: &mut SqliteConnection,
    hosts: &[HostId],
    (deployment, unit): (&DeploymentName, &UnitName),
    is_detached: bool,
) -> StoreResult<()> {
    let hosts = to_json("hosts", &hosts)?;
    match is_detached {
        true => {
            sqlx::query!(
                "INSERT INTO detached_unit (host, deployment, unit) SELECT value, $1, $2 FROM json_each($3) WHERE TRUE
                 ON CONFLICT (host, deployment, unit) DO NOTHING",
                deployment.as_str(),
                unit.as_str(),
                hosts
            )
            .execute(db)
            .await?
        }
        false => {
            sqlx::query!(
                "DELETE FROM detached_unit
                 WHERE deployment = $1 AND unit = $2 AND host IN (SELECT value FROM json_each($3))",
                deployment.as_str(),
                unit.as_str(),
                hosts
            )
            .execute(db)
            .await?
        }
    };
    Ok(())
}

/// A host, as targets see it.
#[derive(Debug)]
pub struct TargetHost<'a> {
    /// The host, with all its labels.
    pub whole: select::Host<'a>,
    /// The same with nothing that it says of its name and labels: for targets that carry secrets.
    pub earned: select::Host<'a>,
    /// Epoch and number of the heartbeat that this is of.
    pub heard: Option<(u64, u64)>,
}

/// Takes each host with its name, or why it cannot be read.
pub type EachHost<'a> = dyn FnMut(HostId, &str, Result<&TargetHost<'_>, StoreError>) + Send + 'a;

/// Calls `each` for all members, or for those of `only`, with what targets see of them. A host whose row cannot be read is
/// passed to it as an error of that host. Hosts in `labelled` have those labels of the console.
pub async fn each_target_host(
    db: &SqlitePool,
    only: Option<&[HostId]>,
    labelled: &HashMap<HostId, OperatorLabels>,
    each: &mut EachHost<'_>,
) -> StoreResult<()> {
    let mut given = label::given(db, only).await?;
    given.extend(labelled.iter().map(|(host, labels)| (*host, labels.clone())));
    let ids = only.map(|hosts| to_json("hosts", &hosts)).transpose()?;
    let mut rows = with_is_member!(
        query,
        r#"SELECT host.id, host.hostname, host.facts, heartbeat.state AS "state?", heartbeat.epoch AS "epoch?",
                  heartbeat.seq AS "seq?"
           FROM host LEFT JOIN heartbeat ON heartbeat.host = host.id
           WHERE ($1 IS NULL OR host.id IN (SELECT value FROM json_each($1))) AND "#,
        "",
        ids
    )
    .fetch(db);
    // Row by row: the states of ten thousand hosts are some 20 MB of text.
    while let Some(row) = rows.try_next().await? {
        let id: HostId = parsed("host id", &row.id)?;
        let none = OperatorLabels::new();
        let labels = given.get(&id).unwrap_or(&none);
        let heard = row.epoch.zip(row.seq).map(|(epoch, seq)| (epoch.unsigned_abs(), seq.unsigned_abs()));
        match TargetHostRow::read(&row.facts, row.state.as_deref()) {
            Ok(read) => read.show(id, &row.hostname, labels, heard, &mut |host| each(id, &row.hostname, Ok(host))),
            Err(error) => each(id, &row.hostname, Err(error)),
        }
    }
    Ok(())
}

struct TargetHostRow {
    facts: Facts,
    agent_version: String,
    own: BTreeMap<Name, String>,
    realms: Vec<Name>,
}

impl TargetHostRow {
    fn read(facts: &str, state: Option<&str>) -> StoreResult<Self> {
        Ok(match state.map(|state| json::<HostState>("state", state)).transpose()? {
            Some(state) => Self {
                own: state.own_labels().clone(),
                facts: state.facts,
                agent_version: state.agent_version,
                realms: state.realms,
            },
            None => Self {
                facts: json("facts", facts)?,
                agent_version: String::new(),
                own: BTreeMap::new(),
                realms: Vec::new(),
            },
        })
    }

    fn show(
        &self,
        host: HostId,
        hostname: &str,
        given: &OperatorLabels,
        heard: Option<(u64, u64)>,
        each: &mut dyn FnMut(&TargetHost<'_>),
    ) {
        let given = label::values(given);
        let (all, alone) = (merge(&self.own, &given), merge(&BTreeMap::new(), &given));
        let id = host.to_string();
        let seen = |hostname, labels| select::Host {
            host,
            hostname,
            agent_version: &self.agent_version,
            facts: Some(&self.facts),
            labels,
            realms: &self.realms,
            units: &[],
        };
        each(&TargetHost { whole: seen(hostname, &all), earned: seen(&id, &alone), heard });
    }
}

/// Returns epoch and number of the last heartbeat of each member, after a host in their order: a batch.
pub async fn heard(
    db: &SqlitePool,
    after: Option<HostId>,
    limit: u32,
) -> StoreResult<Vec<(HostId, Option<(u64, u64)>)>> {
    let rows = with_is_member!(
        query,
        r#"SELECT host.id, heartbeat.epoch AS "epoch?", heartbeat.seq AS "seq?"
           FROM host LEFT JOIN heartbeat ON heartbeat.host = host.id WHERE host.id > $1 AND "#,
        " ORDER BY host.id LIMIT $2",
        after.map(|host| host.to_string()).unwrap_or_default(),
        i64::from(limit)
    )
    .fetch_all(db)
    .await?;
    rows.into_iter()
        .map(|row| {
            let heard = row.epoch.zip(row.seq).map(|(epoch, seq)| (epoch.unsigned_abs(), seq.unsigned_abs()));
            Ok((parsed("host id", &row.id)?, heard))
        })
        .collect()
}

/// Returns which of these units hosts have, each with the deployment that owns it; `None` for one that a verb has made.
pub async fn owners(
    db: &SqlitePool,
    units: &[&UnitName],
) -> StoreResult<Vec<(HostId, UnitName, Option<DeploymentName>)>> {
    let units: Vec<&str> = units.iter().map(|unit| unit.as_str()).collect();
    let rows = sqlx::query!(
        r#"SELECT host, unit, deployment AS "owner?: String" FROM unit
           WHERE unit IN (SELECT value FROM json_each($1))"#,
        to_json("units", &units)?
    )
    .map(|row| (row.host, row.unit, row.owner))
    .fetch_all(db)
    .await?;
    rows.into_iter()
        .map(|(host, unit, owner)| {
            let owner = owner.map(|owner| parsed("deployment", &owner)).transpose()?;
            Ok((parsed("host id", &host)?, parsed("unit", &unit)?, owner))
        })
        .collect()
}

/// Returns the reports of units that belong to deployments: of all, or of one.
pub async fn owned_units(
    db: &SqlitePool,
    only: Option<&DeploymentName>,
) -> StoreResult<HashMap<HostId, Vec<muster_topics::unit::UnitReport>>> {
    let rows = sqlx::query!(
        "SELECT host, report FROM unit WHERE deployment IS NOT NULL AND ($1 IS NULL OR deployment = $1)",
        only.map(DeploymentName::as_str)
    )
    .fetch_all(db)
    .await?;
    let mut found: HashMap<HostId, Vec<_>> = HashMap::new();
    for row in rows {
        found.entry(parsed("host id", &row.host)?).or_default().push(json("unit", &row.report)?);
    }
    Ok(found)
}

/// Whether hosts still have units of this deployment.
pub async fn hosts_with_units_of(
    db: &SqlitePool,
    hosts: &[HostId],
) -> StoreResult<HashMap<HostId, Vec<(UnitName, DeploymentName)>>> {
    let rows = sqlx::query!(
        r#"SELECT host, unit, deployment AS "owner!: String" FROM unit
           WHERE host IN (SELECT value FROM json_each($1)) AND deployment IS NOT NULL"#,
        to_json("hosts", &hosts)?
    )
    .map(|row| (row.host, row.unit, row.owner))
    .fetch_all(db)
    .await?;
    let mut found: HashMap<HostId, Vec<(UnitName, DeploymentName)>> = HashMap::new();
    for (host, unit, owner) in rows {
        let one = (parsed("unit", &unit)?, parsed("deployment", &owner)?);
        found.entry(parsed("host id", &host)?).or_default().push(one);
    }
    Ok(found)
}

/// Returns the units of deployments that go on without being desired, as their hosts say.
pub async fn orphans(db: &SqlitePool) -> StoreResult<HashMap<HostId, Vec<UnitName>>> {
    let rows = sqlx::query!(
        "SELECT host, unit FROM unit WHERE json_extract(report, '$.owner.orphan') = 1 ORDER BY host, unit"
    )
    .map(|row| (row.host, row.unit))
    .fetch_all(db)
    .await?;
    let mut found: HashMap<HostId, Vec<UnitName>> = HashMap::new();
    for (host, unit) in rows {
        found.entry(parsed("host id", &host)?).or_default().push(parsed("unit", &unit)?);
    }
    Ok(found)
}

/// A host that gets no new deployments, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CordonRow {
    /// `true` if it gets none at all.
    pub is_drained: bool,
    /// Who said so.
    pub operator: Name,
    /// When.
    pub set_ms: Millis,
}

/// Returns all cordoned hosts.
pub async fn cordons(db: &SqlitePool) -> StoreResult<HashMap<HostId, CordonRow>> {
    let rows = sqlx::query!("SELECT host, cordon, operator, set_ms FROM host_cordon").fetch_all(db).await?;
    rows.into_iter()
        .map(|row| {
            let cordon = CordonRow {
                is_drained: row.cordon == "drained",
                operator: parsed("operator", &row.operator)?,
                set_ms: row.set_ms,
            };
            Ok((parsed("host id", &row.host)?, cordon))
        })
        .collect()
}

/// Cordons hosts, or opens them.
pub async fn set_cordon(db: &mut SqliteConnection, hosts: &[HostId], cordon: Option<&CordonRow>) -> StoreResult<()> {
    let hosts = to_json("hosts", &hosts)?;
    match cordon {
        Some(cordon) => {
            sqlx::query!(
                "INSERT INTO host_cordon (host, cordon, operator, set_ms)
                 SELECT value, $1, $2, $3 FROM json_each($4) WHERE TRUE
                 ON CONFLICT (host) DO UPDATE SET cordon = excluded.cordon, operator = excluded.operator,
                   set_ms = excluded.set_ms",
                if cordon.is_drained { "drained" } else { "cordoned" },
                cordon.operator.as_str(),
                cordon.set_ms,
                hosts
            )
            .execute(db)
            .await?
        }
        None => {
            sqlx::query!("DELETE FROM host_cordon WHERE host IN (SELECT value FROM json_each($1))", hosts)
                .execute(db)
                .await?
        }
    };
    Ok(())
}

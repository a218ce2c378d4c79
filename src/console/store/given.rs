//! What the console has given to hosts: units, with what they name.
//!
//! **Invariant: [`units`] alone says what a host may fetch or be sent**, and only [`give`], [`take_back`] and [`bring_back`] change
//! what it says: the console's own commands and documents. No report of a host is an argument of any of them.

use std::collections::BTreeSet;

use muster_rules::render;
use muster_topics::{
    canonical,
    name::{CommandId, Digest, HostId, Name, UnitName},
    outcome::Status,
    secret::SecretRef,
    unit::{ArtifactRef, ConfigRef, Spec},
};
use serde::{Deserialize, Serialize};
use sqlx::{SqliteConnection, SqlitePool};

use super::{
    columns::{json, to_json},
    error::{StoreError, StoreResult},
};

/// A unit as the console gave it to a host: what it names that a host fetches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenUnit {
    /// The unit.
    pub unit: UnitName,
    /// Its artifacts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<ArtifactRef>,
    /// Its configs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub configs: Vec<ConfigRef>,
    /// Its secrets, of its realm.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretRef>,
    /// Secrets that templates of the unit itself name, rather than its configs. The templates may be values that only hosts read.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub named: BTreeSet<Name>,
}

impl GivenUnit {
    /// Returns what a unit of this spec names.
    pub fn of(unit: &UnitName, spec: &Spec) -> Self {
        let artifacts = spec.artifacts().into_iter().cloned().collect();
        let (configs, secrets) = (spec.configs().to_vec(), spec.common().secrets.to_vec());
        Self { unit: unit.clone(), artifacts, configs, secrets, named: named(spec) }
    }

    /// Returns a unit that names nothing.
    pub fn nothing(unit: &UnitName) -> Self {
        let (artifacts, configs, secrets) = Default::default();
        Self { unit: unit.clone(), artifacts, configs, secrets, named: BTreeSet::new() }
    }

    /// Whether it has a config of this id.
    pub fn has_config(&self, config: &ConfigRef) -> bool {
        self.configs.iter().any(|has| has.id == config.id)
    }

    /// Whether it names all configs of a spec, and the secrets with these names.
    pub fn covers(&self, configs: &[ConfigRef], secrets: &[SecretRef]) -> bool {
        let has_secret = |secret: &SecretRef| self.secrets.iter().any(|has| has.name == secret.name);
        configs.iter().all(|config| self.configs.contains(config)) && secrets.iter().all(has_secret)
    }

    /// Returns what lets its host fetch what it names.
    fn parts(&self) -> BTreeSet<String> {
        let artifacts = self.artifacts.iter().flat_map(|one| [Some(&one.sha256), one.manifest.as_ref()]).flatten();
        let content = artifacts.chain(self.configs.iter().map(|config| &config.sha256)).map(GivenPart::Content);
        let realm = self.unit.realm();
        let secrets = self.secrets.iter().map(|secret| GivenPart::Secret(&realm, secret).text());
        content.map(GivenPart::text).chain(secrets).collect()
    }
}

/// Returns the secrets that templates of a unit name outside of its configs.
fn named(spec: &Spec) -> BTreeSet<Name> {
    let mut bare = spec.clone();
    bare.set_config_templates(Vec::new());
    // Templates that are none were refused before.
    let names = render::unit::names_of(&bare).unwrap_or_default();
    names.secrets.iter().filter_map(|name| name.parse().ok()).collect()
}

/// What a host may ask for.
#[derive(Clone, Copy, Debug)]
pub enum GivenPart<'a> {
    /// An artifact, a manifest or a config, by its hash.
    Content(&'a Digest),
    /// A version of a secret of a realm.
    Secret(&'a Name, &'a SecretRef),
}

impl GivenPart<'_> {
    fn text(self) -> String {
        match self {
            Self::Content(sha256) => sha256.to_string(),
            Self::Secret(realm, secret) => format!("{realm}/{secret}"),
        }
    }
}

/// Which units are asked for.
#[derive(Clone, Copy, Debug)]
pub enum GivenFilter<'a> {
    /// Those by which the host may fetch this: all that were ever given, because it may go back to an earlier one.
    With(GivenPart<'a>),
    /// This unit as it may be now: as it was given last, and before that, as long as the host has not done what came later.
    Present(&'a UnitName),
}

/// Returns units as the console gave them to a host, the last one first.
///
/// # Errors
/// If the store cannot be read.
pub async fn units(db: &SqlitePool, host: HostId, filter: GivenFilter<'_>) -> StoreResult<Vec<GivenUnit>> {
    match filter {
        GivenFilter::With(part) => {
            let rows = sqlx::query_scalar!(
                "SELECT given_content.content FROM given_part
                 JOIN given ON given.content = given_part.content AND given.host = $1
                 JOIN given_content ON given_content.digest = given.content
                 WHERE given_part.part = $2 ORDER BY given.n DESC",
                host.to_string(),
                part.text()
            )
            .fetch_all(db)
            .await?;
            rows.iter().map(|text| json("given unit", text)).collect()
        }
        GivenFilter::Present(unit) => present(db, host, unit).await,
    }
}

async fn present(db: &SqlitePool, host: HostId, unit: &UnitName) -> StoreResult<Vec<GivenUnit>> {
    let rows = sqlx::query!(
        r#"SELECT given_content.content, given.n, given.command, command_host.state AS "state?: String",
                  json_remove(command_host.outcome, '$.started_ms', '$.finished_ms', '$.stdout', '$.stderr')
                      AS "ended?: String"
           FROM given JOIN given_content ON given_content.digest = given.content
           LEFT JOIN command_host ON command_host.command = given.command AND command_host.host = given.host
           WHERE given.host = $1 AND given.unit = $2 ORDER BY given.n DESC"#,
        host.to_string(),
        unit.as_str()
    )
    .fetch_all(db)
    .await?;
    let (mut found, mut settled) = (Vec::new(), None);
    for row in rows {
        if settled.is_some_and(|n| n != row.n) {
            break;
        }
        let is_done = match (row.command, row.state, row.ended) {
            // What the ledger has forgotten is long over.
            (None, ..) | (Some(_), None, _) => true,
            (.., Some(text)) => json::<Status>("outcome", &text)?.is_success(),
            (.., None) => false,
        };
        settled = is_done.then_some(row.n);
        found.push(json("given unit", &row.content)?);
    }
    Ok(found)
}

/// Returns the number of the next gift.
async fn next(db: &mut SqliteConnection) -> StoreResult<i64> {
    let n = sqlx::query_scalar!(
        "INSERT INTO meta (key, value) VALUES ('given', 1) ON CONFLICT (key) DO UPDATE SET value = meta.value + 1
         RETURNING value"
    );
    Ok(n.fetch_one(db).await?)
}

async fn put_content(db: &mut SqliteConnection, unit: &GivenUnit) -> StoreResult<Digest> {
    let text = canonical::to_bytes(unit).map_err(|error| unreadable(&error))?;
    let digest = Digest::of(&text);
    let stored = sqlx::query!(
        "INSERT INTO given_content (digest, content) VALUES ($1, $2) ON CONFLICT (digest) DO NOTHING",
        digest.as_str(),
        String::from_utf8_lossy(&text)
    )
    .execute(&mut *db)
    .await?;
    if stored.rows_affected() > 0 {
        sqlx::query!(
            "INSERT INTO given_part (part, content) SELECT value, $1 FROM json_each($2)",
            digest.as_str(),
            to_json("parts", &unit.parts())?
        )
        .execute(db)
        .await?;
    }
    Ok(digest)
}

fn unreadable(error: &canonical::CanonicalError) -> StoreError {
    StoreError::Row { what: "given unit", problem: error.to_string() }
}

/// Records that the console gives a unit to hosts, by a command or by their documents.
///
/// # Errors
/// If the store cannot be written.
pub async fn give(
    db: &mut SqliteConnection,
    hosts: &[HostId],
    unit: &GivenUnit,
    command: Option<CommandId>,
) -> StoreResult<()> {
    let (n, content) = (next(db).await?, put_content(db, unit).await?);
    sqlx::query!(
        "INSERT INTO given (host, unit, content, n, command) SELECT value, $1, $2, $3, $4 FROM json_each($5) WHERE TRUE
         ON CONFLICT (host, unit, content) DO UPDATE SET n = excluded.n, command = excluded.command",
        unit.unit.as_str(),
        content.as_str(),
        n,
        command.map(|id| id.to_string()),
        to_json("hosts", &hosts)?
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Records that the console takes units from hosts. They may fetch what these named, because a snapshot may bring them back.
///
/// # Errors
/// If the store cannot be written.
pub async fn take_back(
    db: &mut SqliteConnection,
    hosts: &[HostId],
    unit: &UnitName,
    command: Option<CommandId>,
) -> StoreResult<()> {
    let has = sqlx::query_scalar!(
        "SELECT DISTINCT host FROM given WHERE host IN (SELECT value FROM json_each($1)) AND unit = $2",
        to_json("hosts", &hosts)?,
        unit.as_str()
    )
    .fetch_all(&mut *db)
    .await?;
    let has: Vec<HostId> = hosts.iter().filter(|host| has.contains(&host.to_string())).copied().collect();
    if has.is_empty() {
        return Ok(());
    }
    give(db, &has, &GivenUnit::nothing(unit), command).await
}

/// Records that the console has hosts go back to an earlier state of all their units: which one each of these had, only the host
/// knows.
///
/// # Errors
/// If the store cannot be written.
pub async fn bring_back(db: &mut SqliteConnection, hosts: &[HostId], command: CommandId) -> StoreResult<()> {
    let n = next(db).await?;
    sqlx::query!(
        "UPDATE given SET n = $1, command = $2 WHERE host IN (SELECT value FROM json_each($3))",
        n,
        command.to_string(),
        to_json("hosts", &hosts)?
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Removes earlier states of units of which no content exists any more, and units that name nothing.
///
/// # Errors
/// If the store cannot be written.
pub async fn sweep(db: &SqlitePool) -> StoreResult<u64> {
    let earlier = sqlx::query!(
        "DELETE FROM given
         WHERE n < (SELECT max(n) FROM given AS other WHERE other.host = given.host AND other.unit = given.unit)
           AND content NOT IN (SELECT content FROM given_part WHERE part IN (
               SELECT sha256 FROM artifact UNION ALL SELECT sha256 FROM config UNION ALL SELECT sha256 FROM manifest
               UNION ALL SELECT realm || '/' || name || '@' || version FROM secret WHERE value IS NOT NULL))"
    )
    .execute(db)
    .await?;
    let empty = sqlx::query!(
        "DELETE FROM given WHERE content NOT IN (SELECT content FROM given_part)
           AND 1 = (SELECT count(*) FROM given AS other WHERE other.host = given.host AND other.unit = given.unit)"
    )
    .execute(db)
    .await?;
    sqlx::query!("DELETE FROM given_content WHERE digest NOT IN (SELECT content FROM given)").execute(db).await?;
    Ok(earlier.rows_affected() + empty.rows_affected())
}

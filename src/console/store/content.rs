//! Labels of artifacts, manifests, and configs.

use futures_util::TryStreamExt;
use muster_topics::{
    Millis,
    name::{ConfigId, Digest, Name, Version},
};
use sqlx::{SqliteConnection, SqlitePool};

use super::{
    columns::{json, parsed, signed, unsigned},
    error::{StoreError, StoreResult},
};

struct ArtifactRow {
    sha256: String,
    size_bytes: i64,
    role: String,
    version: String,
    manifest: Option<String>,
    added_ms: i64,
}

impl ArtifactRow {
    fn artifact(self) -> StoreResult<muster_api::Artifact> {
        Ok(muster_api::Artifact {
            sha256: parsed("digest", &self.sha256)?,
            size_bytes: unsigned("size", self.size_bytes)?,
            role: parsed("role", &self.role)?,
            version: parsed("version", &self.version)?,
            manifest: self.manifest.as_deref().map(|manifest| parsed("digest", manifest)).transpose()?,
            created_ms: self.added_ms,
        })
    }
}

/// A filter of artifacts; `None` matches all.
#[derive(Clone, Debug, Default)]
pub struct ArtifactFilter {
    /// This blob.
    pub sha256: Option<Digest>,
    /// This role.
    pub role: Option<Name>,
    /// This version.
    pub version: Option<Version>,
}

/// Returns artifacts, by role, newest first.
pub async fn artifacts(db: &SqlitePool, filter: &ArtifactFilter) -> StoreResult<Vec<muster_api::Artifact>> {
    let rows = sqlx::query_as!(
        ArtifactRow,
        "SELECT sha256, size_bytes, role, version, manifest, added_ms FROM artifact
         WHERE ($1 IS NULL OR sha256 = $1) AND ($2 IS NULL OR role = $2) AND ($3 IS NULL OR version = $3)
         ORDER BY role, added_ms DESC, version",
        filter.sha256.as_ref().map(Digest::as_str),
        filter.role.as_ref().map(Name::as_str),
        filter.version.as_ref().map(Version::as_str)
    )
    .fetch_all(db)
    .await?;
    rows.into_iter().map(ArtifactRow::artifact).collect()
}

/// Adds an artifact unless its role and version are taken; returns the stored one. What was stored of the same artifact is set right.
pub async fn add_artifact(
    db: &SqlitePool,
    artifact: &muster_api::Artifact,
    operator: &Name,
) -> StoreResult<muster_api::Artifact> {
    sqlx::query!(
        "INSERT INTO artifact (role, version, sha256, size_bytes, manifest, operator, added_ms)
         VALUES ($1, $2, $3, $4, $5, $6, $7)
         ON CONFLICT (role, version) DO UPDATE SET size_bytes = excluded.size_bytes
         WHERE artifact.sha256 = excluded.sha256",
        artifact.role.as_str(),
        artifact.version.as_str(),
        artifact.sha256.as_str(),
        signed(artifact.size_bytes),
        artifact.manifest.as_ref().map(Digest::as_str),
        operator.as_str(),
        artifact.created_ms
    )
    .execute(db)
    .await?;
    let row = sqlx::query_as!(
        ArtifactRow,
        "SELECT sha256, size_bytes, role, version, manifest, added_ms FROM artifact WHERE role = $1 AND version = $2",
        artifact.role.as_str(),
        artifact.version.as_str()
    )
    .fetch_one(db)
    .await?;
    row.artifact()
}

struct ConfigRow {
    id: String,
    version: String,
    sha256: String,
    content: String,
    added_ms: i64,
}

impl ConfigRow {
    fn config(self, with_content: bool) -> StoreResult<muster_api::Config> {
        let sha256 = parsed("digest", &self.sha256)?;
        let name = || format!("config {}@{}", self.id, self.version);
        let content = whole(name, with_content.then_some(self.content), &sha256)?;
        Ok(muster_api::Config {
            id: parsed("config id", &self.id)?,
            version: parsed("version", &self.version)?,
            sha256,
            created_ms: self.added_ms,
            content: content.map(|content| json("config", &content)).transpose()?,
        })
    }
}

/// Returns all configs, by id, newest first, without their content.
pub async fn configs(db: &SqlitePool) -> StoreResult<Vec<muster_api::Config>> {
    let rows = sqlx::query_as!(
        ConfigRow,
        r#"SELECT id, version, sha256, '' AS "content!: String", added_ms FROM config
           ORDER BY id, added_ms DESC, version"#
    )
    .fetch_all(db)
    .await?;
    rows.into_iter().map(|row| row.config(false)).collect()
}

/// Returns one config, with its content.
pub async fn config(db: &SqlitePool, id: &ConfigId, version: &Version) -> StoreResult<Option<muster_api::Config>> {
    let row = sqlx::query_as!(
        ConfigRow,
        "SELECT id, version, sha256, content, added_ms FROM config WHERE id = $1 AND version = $2",
        id.as_str(),
        version.as_str()
    )
    .fetch_optional(db)
    .await?;
    row.map(|row| row.config(true)).transpose()
}

/// What a label belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelKind {
    /// An artifact: role and version.
    Artifact,
    /// A config: id and version.
    Config,
}

impl LabelKind {
    fn word(self) -> &'static str {
        match self {
            Self::Artifact => "artifact",
            Self::Config => "config",
        }
    }
}

/// Returns versions that are or were taken, to suggest the next.
pub async fn versions(db: &SqlitePool, kind: LabelKind, name: &str) -> StoreResult<Vec<String>> {
    let rows = sqlx::query_scalar!(
        "SELECT version FROM config WHERE $1 = 'config' AND id = $2
         UNION SELECT version FROM artifact WHERE $1 = 'artifact' AND role = $2
         UNION SELECT version FROM removed_label WHERE kind = $1 AND name = $2",
        kind.word(),
        name
    )
    .fetch_all(db)
    .await?;
    Ok(rows)
}

/// Returns what a removed label belonged to.
pub async fn removed_label(
    db: &SqlitePool,
    kind: LabelKind,
    name: &str,
    version: &Version,
) -> StoreResult<Option<Digest>> {
    let row = sqlx::query_scalar!(
        "SELECT sha256 FROM removed_label WHERE kind = $1 AND name = $2 AND version = $3",
        kind.word(),
        name,
        version.as_str()
    )
    .fetch_optional(db)
    .await?;
    row.map(|sha256| parsed("digest", &sha256)).transpose()
}

/// A label to remove.
#[derive(Clone, Copy, Debug)]
pub struct RemovedLabel<'a> {
    /// What it belongs to.
    pub kind: LabelKind,
    /// Role or id.
    pub name: &'a str,
    /// Version.
    pub version: &'a Version,
    /// The content.
    pub sha256: &'a Digest,
    /// The operator.
    pub operator: &'a Name,
}

/// Removes a label, and records that.
pub async fn remove_label(db: &mut SqliteConnection, label: &RemovedLabel<'_>, now: Millis) -> StoreResult<()> {
    let (name, version) = (label.name, label.version.as_str());
    let delete = match label.kind {
        LabelKind::Artifact => sqlx::query!("DELETE FROM artifact WHERE role = $1 AND version = $2", name, version),
        LabelKind::Config => sqlx::query!("DELETE FROM config WHERE id = $1 AND version = $2", name, version),
    };
    delete.execute(&mut *db).await?;
    sqlx::query!(
        "INSERT INTO removed_label (kind, name, version, sha256, operator, removed_ms)
         VALUES ($1, $2, $3, $4, $5, $6)
         ON CONFLICT (kind, name, version) DO NOTHING",
        label.kind.word(),
        label.name,
        label.version.as_str(),
        label.sha256.as_str(),
        label.operator.as_str(),
        now
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Adds a manifest. What was stored of it is set right.
pub async fn add_manifest(
    db: &SqlitePool,
    sha256: &Digest,
    content: &str,
    operator: &Name,
    now: Millis,
) -> StoreResult<()> {
    sqlx::query!(
        "INSERT INTO manifest (sha256, content, operator, added_ms) VALUES ($1, $2, $3, $4)
         ON CONFLICT (sha256) DO UPDATE SET content = excluded.content",
        sha256.as_str(),
        content,
        operator.as_str(),
        now
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Returns the canonical JSON of a manifest.
pub async fn manifest(db: &SqlitePool, sha256: &Digest) -> StoreResult<Option<String>> {
    let row = sqlx::query_scalar!("SELECT content FROM manifest WHERE sha256 = $1", sha256.as_str())
        .fetch_optional(db)
        .await?;
    whole(|| format!("manifest {}", sha256.short()), row, sha256)
}

/// Removes manifests that no artifact has.
pub async fn forget_manifests(db: &SqlitePool) -> StoreResult<()> {
    sqlx::query!("DELETE FROM manifest WHERE sha256 NOT IN (SELECT manifest FROM artifact WHERE manifest IS NOT NULL)")
        .execute(db)
        .await?;
    Ok(())
}

/// Returns the canonical JSON with this hash.
pub async fn config_content(db: &SqlitePool, sha256: &Digest) -> StoreResult<Option<String>> {
    let row = sqlx::query!("SELECT id, version, content FROM config WHERE sha256 = $1 LIMIT 1", sha256.as_str())
        .fetch_optional(db)
        .await?;
    let Some(row) = row else { return Ok(None) };
    whole(|| format!("config {}@{}", row.id, row.version), Some(row.content), sha256)
}

/// Refuses content that is not what was stored.
fn whole(what: impl FnOnce() -> String, content: Option<String>, sha256: &Digest) -> StoreResult<Option<String>> {
    match content {
        Some(content) if Digest::of(content.as_bytes()) != *sha256 => {
            Err(StoreError::Altered { what: what(), sha256: sha256.clone() })
        }
        other => Ok(other),
    }
}

/// Verifies the hashes of configs and manifests.
pub(super) async fn check_hashes(db: &SqlitePool) -> StoreResult<()> {
    let mut rows = sqlx::query!(
        r#"SELECT 'config ' || id || '@' || version AS "what!: String", sha256, content FROM config
           UNION ALL SELECT 'manifest ' || sha256, sha256, content FROM manifest"#
    )
    .map(|row| (row.what, row.sha256, row.content))
    .fetch(db);
    while let Some((what, sha256, content)) = rows.try_next().await? {
        if Digest::of(content.as_bytes()).as_str() != sha256 {
            return Err(StoreError::Damaged(format!("the content of {what} does not match its hash")));
        }
    }
    Ok(())
}

/// A config to add.
#[derive(Clone, Debug)]
pub struct NewConfig {
    /// Its id.
    pub id: ConfigId,
    /// Its version.
    pub version: Version,
    /// SHA-256 of `content`.
    pub sha256: Digest,
    /// Canonical JSON.
    pub content: String,
}

/// Adds a config unless its id and version are taken. What was stored of the same config is set right, whether its content or its hash
/// is damaged.
pub async fn add_config(db: &SqlitePool, config: &NewConfig, operator: &Name, now: Millis) -> StoreResult<()> {
    sqlx::query!(
        "INSERT INTO config (id, version, sha256, content, operator, added_ms) VALUES ($1, $2, $3, $4, $5, $6)
         ON CONFLICT (id, version) DO UPDATE SET sha256 = excluded.sha256, content = excluded.content
         WHERE config.sha256 = excluded.sha256 OR config.content = excluded.content",
        config.id.as_str(),
        config.version.as_str(),
        config.sha256.as_str(),
        &config.content,
        operator.as_str(),
        now
    )
    .execute(db)
    .await?;
    Ok(())
}

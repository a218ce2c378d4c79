//! Variables of hosts.

use std::collections::BTreeMap;

use futures_util::TryStreamExt;
use muster_api::{Var, VarLayer};
use muster_topics::{
    canonical::{self, CanonicalError},
    desired::DesiredBody,
    name::{Digest, Name},
};
use serde_json::Value;
use sqlx::{SqliteConnection, SqlitePool};

use super::{
    columns::{parsed, to_json},
    error::{StoreError, StoreResult},
};

/// The variables that are stored.
#[derive(Debug, Default)]
pub struct StoredVars {
    /// Those that are what was stored, or that a document has whole.
    pub vars: Vec<Var>,
    /// The names, with their layers, of those that are not: no host is sent them.
    pub damaged: Vec<String>,
}

/// The digest of a variable.
fn digest(layer: &str, name: &str, value: &Value) -> Result<Digest, CanonicalError> {
    canonical::digest(&(layer, name, value))
}

/// Returns all variables, by layer and name.
pub async fn vars(db: &SqlitePool) -> StoreResult<StoredVars> {
    let rows = sqlx::query!(
        r#"SELECT var.layer, var.name, var.value, var.digest, var.operator, var.set_ms, host.hostname AS "hostname?"
           FROM var LEFT JOIN host ON host.id = substr(var.layer, 6) AND var.layer LIKE 'host:%' ORDER BY var.layer, var.name"#
    )
    .fetch_all(db)
    .await?;
    let mut stored = StoredVars::default();
    for row in rows {
        let is_it = |value: &Value| digest(&row.layer, &row.name, value).is_ok_and(|it| it.as_str() == row.digest);
        let mut value = canonical::parse_value(row.value.as_bytes()).ok().filter(is_it);
        if value.is_none() {
            value = of_documents(db, &row.name, is_it).await?;
            let hint = "check the disk of the console";
            let is_found = value.is_some();
            tracing::error!(layer = row.layer, var = row.name, is_found, hint, "a stored variable is damaged");
        }
        let Some(value) = value else {
            stored.damaged.push(format!("{} ({})", row.name, row.layer));
            continue;
        };
        stored.vars.push(Var {
            layer: parsed("layer", &row.layer)?,
            hostname: row.hostname,
            name: parsed("variable", &row.name)?,
            value,
            operator: parsed("operator", &row.operator)?,
            set_ms: row.set_ms,
        });
    }
    Ok(stored)
}

/// Returns the value of a damaged variable from a document of a host that has it.
async fn of_documents(db: &SqlitePool, name: &str, is_it: impl Fn(&Value) -> bool) -> StoreResult<Option<Value>> {
    let mut bodies = sqlx::query!("SELECT digest, content FROM desired_body").fetch(db);
    while let Some(row) = bodies.try_next().await? {
        if Digest::of(row.content.as_bytes()).as_str() != row.digest {
            continue;
        }
        let body = serde_json::from_str::<DesiredBody>(&row.content);
        let vars: BTreeMap<Name, Value> = body.map(|body| body.vars).unwrap_or_default();
        let found = vars.into_iter().find(|(one, value)| one.as_str() == name && is_it(value));
        if let Some((_, value)) = found {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

/// Sets a variable.
pub async fn set_var(db: &mut SqliteConnection, var: &Var) -> StoreResult<()> {
    let layer = var.layer.to_string();
    let digest = digest(&layer, var.name.as_str(), &var.value)
        .map_err(|error| StoreError::Row { what: "variable", problem: error.to_string() })?;
    sqlx::query!(
        "INSERT INTO var (layer, name, value, digest, operator, set_ms) VALUES ($1, $2, $3, $4, $5, $6)
         ON CONFLICT (layer, name) DO UPDATE SET value = excluded.value, digest = excluded.digest,
           operator = excluded.operator, set_ms = excluded.set_ms",
        layer,
        var.name.as_str(),
        to_json("variable", &var.value)?,
        digest.as_str(),
        var.operator.as_str(),
        var.set_ms
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Removes a variable; returns whether there was one.
pub async fn remove_var(db: &mut SqliteConnection, layer: &VarLayer, name: &Name) -> StoreResult<bool> {
    let gone = sqlx::query!("DELETE FROM var WHERE layer = $1 AND name = $2", layer.to_string(), name.as_str())
        .execute(db)
        .await?;
    Ok(gone.rows_affected() > 0)
}

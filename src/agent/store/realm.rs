//! Realms, as the console defines them.
//!
//! **Invariant: a realm only gets newer.** An older version changes nothing, whenever it arrives.

use std::collections::BTreeSet;

use muster_rules::{CommandRefusal, realm::Realms};
use muster_topics::{
    diagnostic::Diagnostic,
    name::{Name, UnitName},
    outcome::RefusalCode,
    realm::Realm,
};
use sqlx::SqliteConnection;

use super::{
    Store,
    columns::{to_json, to_sql},
    error::StoreError,
};

impl Store {
    /// Returns all defined realms.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn realms(&self) -> Result<Realms, StoreError> {
        let mut tx = self.begin().await?;
        all(&mut tx).await
    }
}

/// Returns all defined realms. Unreadable ones are skipped.
///
/// # Errors
/// If the database fails.
pub async fn all(connection: &mut SqliteConnection) -> Result<Realms, StoreError> {
    let rows = sqlx::query!(r#"SELECT name AS "name!", definition FROM realm"#).fetch_all(connection).await?;
    let read = |name: &str, definition: &str| {
        serde_json::from_str::<Realm>(definition)
            .inspect_err(|error| tracing::error!(realm = name, %error, "a realm cannot be read; its defaults apply"))
            .ok()
    };
    Ok(rows.iter().filter_map(|row| read(&row.name, &row.definition)).collect())
}

/// Stores definitions of realms, parents first.
///
/// # Errors
/// If the database fails; an invalid realm is the inner error, and the caller has to roll back then.
pub async fn take_in(
    connection: &mut SqliteConnection,
    realms: &[Realm],
) -> Result<Result<(), CommandRefusal>, StoreError> {
    let mut known = all(connection).await?;
    for realm in realms {
        if known.get(&realm.name).is_some_and(|there| there.generation >= realm.generation) {
            continue;
        }
        if let Some(wrong) = Diagnostic::all(known.check(realm)) {
            let message = wrong.within(format_args!("realm {}", realm.name));
            return Ok(Err(CommandRefusal::new(RefusalCode::Invalid, message)));
        }
        let (name, generation, definition) = (realm.name.as_str(), to_sql(realm.generation), to_json("realm", realm)?);
        sqlx::query!(
            "INSERT INTO realm (name, generation, definition) VALUES (?, ?, ?)
             ON CONFLICT (name) DO UPDATE SET generation = excluded.generation, definition = excluded.definition",
            name,
            generation,
            definition
        )
        .execute(&mut *connection)
        .await?;
        known.insert(realm.clone());
    }
    Ok(Ok(()))
}

/// Removes a realm; an unknown one is no error.
///
/// # Errors
/// If the database fails; a refusal is the inner error.
pub async fn remove(connection: &mut SqliteConnection, realm: &Name) -> Result<Result<(), CommandRefusal>, StoreError> {
    let conflict = |message: Diagnostic| Ok(Err(CommandRefusal::new(RefusalCode::Conflict, message)));
    if *realm == Name::default_realm() {
        return conflict("the realm default cannot be removed".into());
    }
    let mut holders: BTreeSet<String> = BTreeSet::new();
    let units = sqlx::query_scalar!(
        r#"SELECT name AS "name!" FROM unit UNION SELECT unit AS "name!" FROM snapshot_unit ORDER BY 1"#
    );
    for name in units.fetch_all(&mut *connection).await? {
        if name.parse::<UnitName>().is_ok_and(|unit| unit.realm() == *realm) {
            holders.insert(name);
        }
    }
    if !holders.is_empty() {
        let names: Vec<String> = holders.into_iter().collect();
        return conflict(
            Diagnostic::new(format_args!("realm {realm} has units here, or in snapshots: {}", names.join(", ")))
                .with_hint("remove them first"),
        );
    }
    let known = all(connection).await?;
    let children: Vec<&str> = known.children(realm).into_iter().map(Name::as_str).collect();
    if !children.is_empty() {
        return conflict(
            Diagnostic::new(format_args!("realm {realm} is the parent of {}", children.join(", ")))
                .with_hint("remove these realms first"),
        );
    }
    let name = realm.as_str();
    sqlx::query!("DELETE FROM realm WHERE name = ?", name).execute(connection).await?;
    Ok(Ok(()))
}

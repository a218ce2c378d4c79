//! The labels that the console gives this host.

use std::collections::BTreeMap;

use muster_topics::name::{LabelValue, Name};
use sqlx::SqliteConnection;

use super::{
    Store,
    columns::{from_sql, to_json, to_sql},
    error::StoreError,
};

/// The console's labels for this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsoleLabels {
    /// Their generation; 0 if there are none.
    pub generation: u64,
    /// The labels.
    pub labels: BTreeMap<Name, LabelValue>,
}

/// Returns the console's labels. If they are unreadable, none: the console sends them again.
///
/// # Errors
/// If the database fails.
pub async fn given(store: &Store) -> Result<ConsoleLabels, StoreError> {
    let row =
        sqlx::query!("SELECT generation, labels FROM host_labels WHERE one = 1").fetch_optional(&store.pool).await?;
    let Some(row) = row else { return Ok(ConsoleLabels::default()) };
    match serde_json::from_str(&row.labels) {
        Ok(labels) => Ok(ConsoleLabels { generation: from_sql(row.generation), labels }),
        Err(error) => {
            tracing::error!(%error, "the console's labels of this host cannot be read; they are requested again");
            Ok(ConsoleLabels::default())
        }
    }
}

/// Returns the message that had the console's labels, as it was signed.
///
/// # Errors
/// If the database fails.
pub async fn signed(connection: &mut SqliteConnection) -> Result<Option<String>, StoreError> {
    let query = sqlx::query_scalar!("SELECT signed FROM host_labels WHERE one = 1");
    Ok(query.fetch_optional(connection).await?)
}

/// Stores the console's labels, in place of earlier ones, with the message that had them.
///
/// # Errors
/// If the database fails.
pub async fn set_given(store: &Store, given: &ConsoleLabels, signed: &str) -> Result<(), StoreError> {
    let (generation, labels) = (to_sql(given.generation), to_json("labels", &given.labels)?);
    let mut tx = store.begin().await?;
    sqlx::query!(
        "INSERT INTO host_labels (one, generation, labels, signed) VALUES (1, ?, ?, ?)
         ON CONFLICT (one) DO UPDATE SET generation = excluded.generation, labels = excluded.labels,
             signed = excluded.signed",
        generation,
        labels,
        signed
    )
    .execute(&mut *tx)
    .await?;
    super::commit(tx, "keep labels").await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn console_labels_survive_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.db");
        let store = Store::open(&path).await.unwrap();
        assert_eq!(given(&store).await.unwrap(), ConsoleLabels::default());
        for (generation, value) in [(7, "yes"), (8, "no")] {
            let labels = [("canary".parse().unwrap(), value.parse().unwrap())].into();
            set_given(&store, &ConsoleLabels { generation, labels }, &format!("signed {generation}")).await.unwrap();
        }
        drop(store);
        let store = Store::open(&path).await.unwrap();
        let canary: Name = "canary".parse().unwrap();
        let kept = given(&store).await.unwrap();
        assert_eq!((kept.generation, kept.labels[&canary].as_str()), (8, "no"));
        let mut tx = store.begin().await.unwrap();
        assert_eq!(signed(&mut tx).await.unwrap().as_deref(), Some("signed 8"));
    }
}

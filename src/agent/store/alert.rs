//! Active alerts, ended alerts that the console has not acknowledged, and the console's alert rules.
//!
//! **Invariant: an ended alert is deleted only when a signed `ack` names it**, or when there are too many; then the
//! oldest are deleted first.

use std::collections::BTreeMap;

use muster_rules::alert::AlertChange;
use muster_topics::{
    alert::{Alert, AlertAck, AlertState, Rule},
    name::Name,
};

use super::{
    Store,
    columns::{from_sql, to_json, to_sql},
    error::StoreError,
};

/// The most cleared alerts that wait to be acknowledged: 600 KB, and far more than anybody would read of one host.
pub const ENDED_MAX: u32 = 1_000;

/// The console's alert rules.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConsoleRules {
    /// Their generation; 0 if there are none.
    pub generation: u64,
    /// The rules.
    pub rules: BTreeMap<Name, Rule>,
}

/// Returns all active and all cleared alerts. Unreadable ones are skipped.
///
/// # Errors
/// If the database fails.
pub async fn all(store: &Store) -> Result<(Vec<Alert>, Vec<Alert>), StoreError> {
    let rows = sqlx::query!("SELECT id, body FROM alert ORDER BY id, since_ms").fetch_all(&store.pool).await?;
    let read = |id: &str, body: &str| {
        serde_json::from_str::<Alert>(body)
            .inspect_err(|error| tracing::error!(alert = id, %error, "an alert cannot be read and is dropped"))
            .ok()
    };
    let alerts = rows.iter().filter_map(|row| read(&row.id, &row.body));
    Ok(alerts.partition(|alert| alert.state == AlertState::Raised))
}

/// Stores changes of alerts.
///
/// # Errors
/// If the database fails.
pub async fn record(store: &Store, changes: &[AlertChange]) -> Result<(), StoreError> {
    let mut tx = store.begin().await?;
    for change in changes {
        let alert = change.alert();
        let (id, body) = (alert.id.as_str(), to_json("alert", alert)?);
        let state = match alert.state {
            AlertState::Raised => "raised",
            AlertState::Cleared => "cleared",
        };
        sqlx::query!(
            "INSERT INTO alert (id, since_ms, state, at_ms, body) VALUES (?, ?, ?, ?, ?)
             ON CONFLICT (id, since_ms) DO UPDATE SET state = excluded.state, at_ms = excluded.at_ms, body = excluded.body",
            id,
            alert.since_ms,
            state,
            alert.at_ms,
            body
        )
        .execute(&mut *tx)
        .await?;
    }
    sqlx::query!(
        "DELETE FROM alert WHERE state = 'cleared' AND rowid IN (
             SELECT rowid FROM alert WHERE state = 'cleared' ORDER BY at_ms DESC LIMIT -1 OFFSET ?
         )",
        ENDED_MAX
    )
    .execute(&mut *tx)
    .await?;
    super::commit(tx, "record alerts").await
}

/// Removes cleared alerts that the console has stored.
///
/// # Errors
/// If the database fails.
pub async fn acknowledge(store: &Store, keys: &[AlertAck]) -> Result<(), StoreError> {
    let over: Vec<&AlertAck> = keys.iter().filter(|key| key.state == AlertState::Cleared).collect();
    if over.is_empty() {
        return Ok(());
    }
    let mut tx = store.begin().await?;
    for AlertAck { id, since_ms, .. } in over {
        let id = id.as_str();
        sqlx::query!("DELETE FROM alert WHERE id = ? AND since_ms = ? AND state = 'cleared'", id, since_ms)
            .execute(&mut *tx)
            .await?;
    }
    super::commit(tx, "forget alerts").await
}

/// Returns the console's rules. If they are unreadable, none: the console sends them again.
///
/// # Errors
/// If the database fails.
pub async fn central(store: &Store) -> Result<ConsoleRules, StoreError> {
    let row =
        sqlx::query!("SELECT generation, rules FROM alert_rules WHERE one = 1").fetch_optional(&store.pool).await?;
    let Some(row) = row else { return Ok(ConsoleRules::default()) };
    match serde_json::from_str(&row.rules) {
        Ok(rules) => Ok(ConsoleRules { generation: from_sql(row.generation), rules }),
        Err(error) => {
            tracing::error!(%error, "the console's alert rules cannot be read; they are requested again");
            Ok(ConsoleRules::default())
        }
    }
}

/// Stores the console's rules, in place of earlier ones.
///
/// # Errors
/// If the database fails.
pub async fn set_central(store: &Store, central: &ConsoleRules) -> Result<(), StoreError> {
    let (generation, rules) = (to_sql(central.generation), to_json("rules", &central.rules)?);
    let mut tx = store.begin().await?;
    sqlx::query!(
        "INSERT INTO alert_rules (one, generation, rules) VALUES (1, ?, ?)
         ON CONFLICT (one) DO UPDATE SET generation = excluded.generation, rules = excluded.rules",
        generation,
        rules
    )
    .execute(&mut *tx)
    .await?;
    super::commit(tx, "keep alert rules").await
}

#[cfg(test)]
mod tests {
    use muster_topics::{
        Millis, V1,
        alert::{Metric, Severity},
    };

    use super::*;

    fn alert(id: &str, since_ms: Millis, state: AlertState) -> Alert {
        Alert {
            v: V1,
            epoch: 1,
            seq: 1,
            id: id.parse().unwrap(),
            rule: id.parse().unwrap(),
            severity: Severity::Warning,
            unit: None,
            mount: None,
            metric: Metric::CpuBusy,
            value: 0.95,
            threshold: 0.9,
            clear: 0.8,
            since_ms,
            at_ms: since_ms + 5,
            state,
            diagnostic: "busy".into(),
        }
    }

    fn ids(alerts: &[Alert]) -> Vec<(&str, Millis)> {
        alerts.iter().map(|alert| (alert.id.as_str(), alert.since_ms)).collect()
    }

    #[tokio::test]
    async fn alerts_are_kept_until_ended_and_acknowledged() {
        use AlertState::{Cleared, Raised};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.db");
        let store = Store::open(&path).await.unwrap();
        let changes = [
            AlertChange::Raised(alert("a", 1, Raised)),
            AlertChange::Raised(alert("b", 2, Raised)),
            AlertChange::Cleared(alert("a", 1, Cleared)),
            AlertChange::Raised(alert("a", 9, Raised)),
        ];
        record(&store, &changes).await.unwrap();
        drop(store);
        let store = Store::open(&path).await.unwrap();
        let (held, ended) = all(&store).await.unwrap();
        assert_eq!((ids(&held), ids(&ended)), (vec![("a", 9), ("b", 2)], vec![("a", 1)]));
        assert_eq!(held[0], alert("a", 9, Raised));
        // An acknowledgement of an active alert removes nothing; that of a cleared one removes only that.
        let key = |since_ms, state| AlertAck { id: "a".parse().unwrap(), since_ms, state };
        acknowledge(&store, &[key(1, Raised), key(9, Cleared), key(7, Cleared)]).await.unwrap();
        assert_eq!(ids(&all(&store).await.unwrap().1), [("a", 1)]);
        acknowledge(&store, &[key(1, Cleared)]).await.unwrap();
        let (held, ended) = all(&store).await.unwrap();
        assert_eq!((ids(&held), ids(&ended)), (vec![("a", 9), ("b", 2)], vec![]));
    }

    #[tokio::test]
    async fn too_many_ended_alerts_drop_the_oldest() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("agent.db")).await.unwrap();
        let max = Millis::from(ENDED_MAX);
        let over = (1..=max + 3).map(|since_ms| AlertChange::Cleared(alert("a", since_ms, AlertState::Cleared)));
        let changes: Vec<_> = over.chain([AlertChange::Raised(alert("old", 0, AlertState::Raised))]).collect();
        record(&store, &changes).await.unwrap();
        let (held, ended) = all(&store).await.unwrap();
        assert_eq!((held.len(), ended.len()), (1, 1_000));
        assert_eq!(ended[0].since_ms, 4);
    }

    #[tokio::test]
    async fn console_rules_are_stored() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("agent.db")).await.unwrap();
        assert_eq!(central(&store).await.unwrap(), ConsoleRules::default());
        for generation in [7, 8] {
            let kept = ConsoleRules { generation, rules: muster_rules::alert::defaults::rules() };
            set_central(&store, &kept).await.unwrap();
            assert_eq!(central(&store).await.unwrap(), kept);
        }
    }
}

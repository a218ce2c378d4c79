//! Ends of tasks that hosts report, and up to which of them each outlet was told.

use muster_topics::{name::HostId, task::TaskRecord};
use sqlx::{SqliteConnection, SqlitePool};

use super::{
    columns::{json, parsed, signed, to_json, unsigned},
    error::StoreResult,
};

/// The most ends that are kept, of all hosts: those of a few days. What an outlet has not been told by then is counted.
const ENDS_MAX: i64 = 20_000;

/// Stores ends of tasks; those that are known stay. Returns whether one is new.
pub async fn put(db: &mut SqliteConnection, host: HostId, tasks: &[TaskRecord]) -> StoreResult<bool> {
    let id = host.to_string();
    let mut last = None;
    for task in tasks {
        let stored = sqlx::query!(
            "INSERT INTO task_end (host, number, began_ms, body) SELECT $1, $2, $3, $4
             WHERE NOT EXISTS (SELECT 1 FROM task_end WHERE host = $1 AND number = $2 AND began_ms = $3)",
            &id,
            signed(task.number),
            task.began_ms,
            to_json("task", task)?
        )
        .execute(&mut *db)
        .await?;
        if stored.rows_affected() > 0 {
            last = Some(stored.last_insert_rowid());
        }
    }
    let Some(last) = last else { return Ok(false) };
    sqlx::query!("DELETE FROM task_end WHERE n <= $1", last.saturating_sub(ENDS_MAX)).execute(db).await?;
    Ok(true)
}

/// The end of a task of a host.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskEnd {
    /// Its number here.
    pub n: i64,
    /// The host.
    pub host: HostId,
    /// Its name.
    pub hostname: String,
    /// The task.
    pub task: TaskRecord,
}

/// Ends that an outlet has not been told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UntoldTaskEnds {
    /// The oldest of them.
    pub ends: Vec<TaskEnd>,
    /// How many before them are not kept any more.
    pub missed: u64,
}

/// Returns ends that an outlet was not told, the oldest first. An outlet that is new is told what comes from now on.
pub async fn untold(db: &SqlitePool, outlet: &str, limit: u32) -> StoreResult<UntoldTaskEnds> {
    sqlx::query!(
        "INSERT INTO task_end_told (outlet, n)
         SELECT $1, COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'task_end'), 0) WHERE TRUE
         ON CONFLICT (outlet) DO NOTHING",
        outlet
    )
    .execute(db)
    .await?;
    let told = sqlx::query_scalar!("SELECT n FROM task_end_told WHERE outlet = $1", outlet).fetch_one(db).await?;
    let rows = sqlx::query!(
        "SELECT task_end.n, task_end.host, host.hostname, task_end.body
         FROM task_end JOIN host ON host.id = task_end.host
         WHERE task_end.n > $1 ORDER BY task_end.n LIMIT $2",
        told,
        i64::from(limit)
    )
    .fetch_all(db)
    .await?;
    let mut untold = UntoldTaskEnds::default();
    for row in rows {
        untold.ends.push(TaskEnd {
            n: row.n,
            host: parsed("host id", &row.host)?,
            hostname: row.hostname,
            task: json("task", &row.body)?,
        });
    }
    let newest = sqlx::query_scalar!(r#"SELECT max(seq) AS "seq: i64" FROM sqlite_sequence WHERE name = 'task_end'"#)
        .fetch_one(db)
        .await?;
    if !untold.ends.is_empty() {
        untold.missed = unsigned("count", (newest.unwrap_or_default() - ENDS_MAX - told).max(0))?;
    }
    Ok(untold)
}

/// Records up to which end an outlet was told.
pub async fn note_told(db: &SqlitePool, outlet: &str, n: i64) -> StoreResult<()> {
    sqlx::query!("UPDATE task_end_told SET n = $2 WHERE outlet = $1", outlet, n).execute(db).await?;
    Ok(())
}

/// Removes what is known of outlets that are not asked for any more, so that one that comes back is told what is new.
pub async fn retain_outlets(db: &SqlitePool, outlets: &[String]) -> StoreResult<()> {
    let outlets = to_json("outlets", &outlets)?;
    sqlx::query!("DELETE FROM task_end_told WHERE outlet NOT IN (SELECT value FROM json_each($1))", outlets)
        .execute(db)
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use muster_topics::{
        name::Digest,
        task::{TaskAction, TaskState},
    };

    use super::*;
    use crate::testing::Fixture;

    fn task(number: u64) -> TaskRecord {
        TaskRecord {
            number,
            unit: "default/files".parse().unwrap(),
            revision: Digest::of(b"a"),
            action: TaskAction::Write,
            about: "1 file".to_owned(),
            state: TaskState::Changed,
            began_ms: 1,
            ended_ms: Some(2),
            diagnostic: None,
        }
    }

    #[tokio::test]
    async fn outlet_is_told_each_end_once_and_what_it_missed_is_counted() {
        let fixture = Fixture::new().await;
        let host = fixture.member("till-7").await.id;
        let store = &fixture.shared().store;
        let put = async |numbers: std::ops::RangeInclusive<u64>| {
            let tasks: Vec<TaskRecord> = numbers.map(task).collect();
            let mut transaction = store.begin().await.unwrap();
            let is_new = super::put(&mut transaction, host, &tasks).await.unwrap();
            transaction.commit().await.unwrap();
            is_new
        };
        let numbers = async |outlet: &str| {
            let UntoldTaskEnds { ends, missed } = untold(store.write(), outlet, 2).await.unwrap();
            if let Some(last) = ends.last() {
                note_told(store.write(), outlet, last.n).await.unwrap();
            }
            (ends.iter().map(|end| end.task.number).collect::<Vec<_>>(), missed)
        };
        assert!(put(1..=1).await);
        // What was before is not told.
        assert_eq!(numbers("a").await, (vec![], 0));
        assert!(put(1..=4).await && !put(2..=3).await);
        assert_eq!(numbers("a").await, (vec![2, 3], 0));
        assert_eq!(numbers("a").await, (vec![4], 0));
        assert_eq!(numbers("a").await, (vec![], 0));
        let most = ENDS_MAX.unsigned_abs();
        put(5..=most + 7).await;
        assert_eq!(numbers("a").await, (vec![8, 9], 3));
        assert_eq!(numbers("a").await, (vec![10, 11], 0));
        retain_outlets(store.write(), &[]).await.unwrap();
        assert_eq!(numbers("a").await, (vec![], 0));
        fixture.running.stop().await;
    }
}

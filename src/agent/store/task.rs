//! Tasks of units, with the last part of what each has said.

use muster_topics::{
    Millis,
    diagnostic::Diagnostic,
    event::TaskAck,
    name::{Digest, UnitName},
    task::{TaskAction, TaskRecord, TaskState},
};
use serde_json::Value;
use sqlx::SqliteConnection;

use super::{
    Store,
    columns::{from_sql, to_json, to_sql},
    error::StoreError,
};

/// The most tasks of a unit that are kept, its last ones: a few changes of its revision, for diagnosis.
pub const UNIT_TASKS_MAX: i64 = 32;

/// The most tasks of a host that are kept: with [`TASK_LOGS_MAX`] a few megabytes at the very most.
pub const HOST_TASKS_MAX: i64 = 512;

/// The most tasks of a host whose log is kept. Each has up to 64 KiB.
pub const TASK_LOGS_MAX: i64 = 96;

/// The log of a task: the last part, and how many bytes went before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredTaskLog {
    /// The text.
    pub text: String,
    /// The bytes that were dropped before.
    pub begin: u64,
}

impl Store {
    /// Stores that a task begins; returns its number. The oldest tasks beyond the limits go.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn begin_task(
        &self,
        unit: &UnitName,
        revision: &Digest,
        action: TaskAction,
        about: &str,
        now_ms: Millis,
    ) -> Result<u64, StoreError> {
        let (unit, revision, action) = (unit.as_str(), revision.as_str(), action.as_str());
        let mut tx = self.begin().await?;
        let number = sqlx::query!(
            "INSERT INTO task (unit, revision, action, about, state, began_ms) VALUES (?, ?, ?, ?, 'running', ?)",
            unit,
            revision,
            action,
            about,
            now_ms
        )
        .execute(&mut *tx)
        .await?
        .last_insert_rowid();
        sweep(&mut tx, unit).await?;
        super::commit(tx, "begin task").await?;
        Ok(from_sql(number))
    }

    /// Stores what a running task has said so far.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn keep_task_log(&self, number: u64, log: &StoredTaskLog) -> Result<(), StoreError> {
        let (number, begin) = (to_sql(number), to_sql(log.begin));
        let mut tx = self.begin().await?;
        sqlx::query!("UPDATE task SET log = ?, log_begin = ? WHERE number = ?", log.text, begin, number)
            .execute(&mut *tx)
            .await?;
        super::commit(tx, "keep task log").await
    }

    /// Stores that a task has ended.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn end_task(
        &self,
        number: u64,
        state: TaskState,
        told: Option<&Diagnostic>,
        log: &StoredTaskLog,
        now_ms: Millis,
    ) -> Result<(), StoreError> {
        let (number, state, begin) = (to_sql(number), state.as_str(), to_sql(log.begin));
        let message = told.map(|told| to_json("message", told)).transpose()?;
        let mut tx = self.begin().await?;
        sqlx::query!(
            "UPDATE task SET state = ?, ended_ms = ?, message = ?, log = ?, log_begin = ?
             WHERE number = ? AND state = 'running'",
            state,
            now_ms,
            message,
            log.text,
            begin,
            number
        )
        .execute(&mut *tx)
        .await?;
        // The end and that the console is to be told of it are one transaction.
        sqlx::query!(
            "INSERT OR IGNORE INTO task_end (number) SELECT number FROM task
             WHERE number = ? AND state IN ('changed', 'failed', 'interrupted')",
            number
        )
        .execute(&mut *tx)
        .await?;
        super::commit(tx, "end task").await
    }

    /// Returns the first ends of tasks that the console has not acknowledged.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn task_ends(&self, limit: usize) -> Result<Vec<TaskRecord>, StoreError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut tx = self.begin().await?;
        let rows = sqlx::query_as!(
            TaskRow,
            r#"SELECT task.number AS "number!", unit, revision, action, about, state, began_ms, ended_ms, message
               FROM task_end JOIN task ON task.number = task_end.number ORDER BY task.ended_ms, task.number LIMIT ?"#,
            limit
        )
        .fetch_all(&mut *tx)
        .await?;
        Ok(rows.into_iter().filter_map(TaskRow::readable).collect())
    }

    /// Removes ends of tasks that the console has stored.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn acknowledge_task_ends(&self, acks: &[TaskAck]) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        for TaskAck { number, began_ms } in acks {
            let number = to_sql(*number);
            sqlx::query!(
                "DELETE FROM task_end WHERE number = ?1
                     AND EXISTS (SELECT 1 FROM task WHERE number = ?1 AND began_ms = ?2)",
                number,
                began_ms
            )
            .execute(&mut *tx)
            .await?;
        }
        super::commit(tx, "task ends").await
    }

    /// Marks tasks of an earlier run of the agent that have not ended.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn interrupt_tasks(&self, now_ms: Millis) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        // It may have changed something.
        sqlx::query!("INSERT OR IGNORE INTO task_end (number) SELECT number FROM task WHERE state = 'running'")
            .execute(&mut *tx)
            .await?;
        let marked =
            sqlx::query!("UPDATE task SET state = 'interrupted', ended_ms = ? WHERE state = 'running'", now_ms)
                .execute(&mut *tx)
                .await?;
        match marked.rows_affected() {
            0 => tx.rollback().await,
            _ => super::commit(tx, "interrupt tasks").await,
        }
    }

    /// Returns the tasks of a unit, or of all, the newest first.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn tasks(&self, unit: Option<&UnitName>) -> Result<Vec<TaskRecord>, StoreError> {
        let unit = unit.map(UnitName::as_str);
        let mut tx = self.begin().await?;
        let rows = sqlx::query_as!(
            TaskRow,
            r#"SELECT number AS "number!", unit, revision, action, about, state, began_ms, ended_ms, message
               FROM task WHERE ?1 IS NULL OR unit = ?1 ORDER BY number DESC"#,
            unit
        )
        .fetch_all(&mut *tx)
        .await?;
        Ok(rows.into_iter().filter_map(TaskRow::readable).collect())
    }

    /// Returns the stored log of a unit's task; `None` if there is no such task.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn task_log(&self, unit: &UnitName, number: u64) -> Result<Option<StoredTaskLog>, StoreError> {
        let (unit, number) = (unit.as_str(), to_sql(number));
        let mut tx = self.begin().await?;
        let row = sqlx::query!("SELECT log, log_begin FROM task WHERE number = ? AND unit = ?", number, unit)
            .fetch_optional(&mut *tx)
            .await?;
        Ok(row.map(|row| StoredTaskLog { text: row.log, begin: from_sql(row.log_begin) }))
    }
}

/// Removes the oldest tasks beyond the limits, and the logs of old ones.
async fn sweep(tx: &mut SqliteConnection, unit: &str) -> Result<(), StoreError> {
    // What the console was not told of stays as long as there is room on the host.
    sqlx::query!(
        "DELETE FROM task WHERE state <> 'running' AND number NOT IN (SELECT number FROM task_end) AND number IN
             (SELECT number FROM task WHERE unit = ? ORDER BY number DESC LIMIT -1 OFFSET ?)",
        unit,
        UNIT_TASKS_MAX
    )
    .execute(&mut *tx)
    .await?;
    let ends_before = sqlx::query_scalar!("SELECT count(*) FROM task_end").fetch_one(&mut *tx).await?;
    sqlx::query!(
        "DELETE FROM task WHERE state <> 'running' AND number IN
             (SELECT number FROM task ORDER BY number DESC LIMIT -1 OFFSET ?)",
        HOST_TASKS_MAX
    )
    .execute(&mut *tx)
    .await?;
    let ends = sqlx::query_scalar!("SELECT count(*) FROM task_end").fetch_one(&mut *tx).await?;
    if ends < ends_before {
        tracing::warn!(
            tasks = ends_before - ends,
            consequence = "their outcomes are not reported",
            "finished tasks were dropped for newer ones before the console had them"
        );
    }
    sqlx::query!(
        "UPDATE task SET log = '', log_begin = log_begin + octet_length(log)
         WHERE state <> 'running' AND log <> '' AND number IN
             (SELECT number FROM task WHERE log <> '' ORDER BY number DESC LIMIT -1 OFFSET ?)",
        TASK_LOGS_MAX
    )
    .execute(&mut *tx)
    .await?;
    Ok(())
}

/// A row of the table.
struct TaskRow {
    number: i64,
    unit: String,
    revision: String,
    action: String,
    about: String,
    state: String,
    began_ms: i64,
    ended_ms: Option<i64>,
    message: Option<String>,
}

impl TaskRow {
    fn readable(self) -> Option<TaskRecord> {
        match self.read() {
            Ok(record) => Some(record),
            Err(error) => {
                tracing::error!(%error, "a task cannot be read");
                None
            }
        }
    }

    fn read(self) -> Result<TaskRecord, serde_json::Error> {
        Ok(TaskRecord {
            number: from_sql(self.number),
            unit: serde_json::from_value(Value::String(self.unit))?,
            revision: serde_json::from_value(Value::String(self.revision))?,
            action: serde_json::from_value(Value::String(self.action))?,
            about: self.about,
            state: serde_json::from_value(Value::String(self.state))?,
            began_ms: self.began_ms,
            ended_ms: self.ended_ms,
            diagnostic: self.message.as_deref().map(serde_json::from_str).transpose()?,
        })
    }
}

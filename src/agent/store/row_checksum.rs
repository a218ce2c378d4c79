//! Checksums of rows: computed at the end of each transaction, verified when the store is opened.
//!
//! SQLite checks the structure of its pages, but not their content. Without checksums a row with a flipped bit
//! would be used: a command's outcome, a unit's spec. So each row has a checksum of all its columns.
//!
//! **Invariant: a row with a wrong checksum is never used.** It is moved to the table `damaged`, and reported.

use std::sync::LazyLock;

use muster_rules::mark::checksum;
use muster_topics::Millis;
use sqlx::{AssertSqlSafe, SqliteConnection};

use super::error::StoreError;

/// The number of damaged rows that are kept for diagnosis.
const DAMAGED_MAX: i64 = 256;

/// A table whose rows have checksums.
struct SealedTable {
    name: &'static str,
    /// Its key columns, one or two.
    keys: &'static [&'static str],
    columns: &'static [&'static str],
}

const TABLES: [SealedTable; 27] = [
    SealedTable { name: "meta", keys: &["key"], columns: &["value"] },
    SealedTable {
        name: "journal",
        keys: &["id"],
        columns: &[
            "body",
            "received_ms",
            "expires_ms",
            "next_seq",
            "stdout_bytes",
            "stderr_bytes",
            "finished_ms",
            "answer_seq",
            "answer",
            "queued",
        ],
    },
    SealedTable { name: "outbox", keys: &["command", "seq"], columns: &["payload"] },
    SealedTable {
        name: "unit",
        keys: &["name"],
        columns: &[
            "generation",
            "revision",
            "spec",
            "run",
            "hold_reason",
            "hold_since_ms",
            "observed",
            "held_by",
            "held_since_ms",
            "held_note",
            "frozen",
            "playing",
        ],
    },
    SealedTable { name: "verified", keys: &["unit"], columns: &["revision", "spec", "since_ms"] },
    SealedTable { name: "realm", keys: &["name"], columns: &["generation", "definition"] },
    SealedTable { name: "lease", keys: &["unit", "name"], columns: &["protocol", "port"] },
    SealedTable { name: "snapshot", keys: &["name"], columns: &["taken_by", "taken_ms", "active_ms"] },
    SealedTable {
        name: "snapshot_unit",
        keys: &["snapshot", "unit"],
        columns: &["spec", "run", "before_spec", "before_run", "generation"],
    },
    SealedTable { name: "alert", keys: &["id", "since_ms"], columns: &["state", "at_ms", "body"] },
    SealedTable { name: "alert_rules", keys: &["one"], columns: &["generation", "rules"] },
    SealedTable { name: "host_labels", keys: &["one"], columns: &["generation", "labels", "signed"] },
    SealedTable { name: "document", keys: &["one"], columns: &["head", "signed", "body"] },
    SealedTable { name: "document_refusal", keys: &["one"], columns: &["refusal", "digest"] },
    SealedTable {
        name: "deployment",
        keys: &["name"],
        columns: &["version", "refused_version", "refused_message", "may_pass"],
    },
    SealedTable { name: "unit_owner", keys: &["unit"], columns: &["deployment", "version", "orphan"] },
    SealedTable {
        name: "removal",
        keys: &["unit"],
        columns: &["purge", "asked_ms", "approved", "at_once", "begun_ms"],
    },
    SealedTable { name: "life", keys: &["epoch"], columns: &[] },
    SealedTable { name: "past_removal", keys: &["unit", "at_ms"], columns: &[] },
    SealedTable {
        name: "admission",
        keys: &["deployment", "version"],
        columns: &["digest", "stage", "permit", "units", "outcome", "changed", "message", "noted"],
    },
    SealedTable {
        name: "task",
        keys: &["number"],
        columns: &[
            "unit",
            "revision",
            "action",
            "about",
            "state",
            "began_ms",
            "ended_ms",
            "message",
            "log",
            "log_begin",
        ],
    },
    SealedTable { name: "task_end", keys: &["number"], columns: &[] },
    SealedTable {
        name: "owed",
        keys: &["number"],
        columns: &["unit", "revision", "action", "since_ms", "attempts", "due_ms", "error", "failed_ms"],
    },
    SealedTable { name: "files_unit", keys: &["unit"], columns: &["revision", "is_kept"] },
    SealedTable {
        name: "files_path",
        keys: &["unit", "path"],
        columns: &["original", "made", "next", "is_purged", "is_secret"],
    },
    SealedTable { name: "package_run", keys: &["number"], columns: &["unit", "revision", "spec", "changes", "state"] },
    SealedTable { name: "package_trace", keys: &["unit", "name"], columns: &["digest"] },
];

impl SealedTable {
    /// Selects number, keys as text, checksum, and the sealed content.
    fn select(&self, number: usize, condition: &str) -> String {
        let second = self.keys.get(1).map_or("''".to_owned(), |key| format!("CAST({key} AS TEXT)"));
        let quoted: Vec<_> = self.keys.iter().chain(self.columns).map(|column| format!("quote({column})")).collect();
        format!(
            "SELECT {number} AS of, CAST({} AS TEXT) AS first, {second} AS second, sum, {} AS content FROM {} WHERE {condition}",
            self.keys[0],
            quoted.join(" || ' ' || "),
            self.name
        )
    }

    /// The condition that selects a row by its keys.
    fn condition(&self) -> String {
        self.keys.iter().map(|key| format!("{key} = ?")).collect::<Vec<_>>().join(" AND ")
    }
}

/// A row with what its checksum covers.
#[derive(sqlx::FromRow)]
struct SealedRow {
    of: i64,
    first: String,
    second: String,
    sum: Option<i64>,
    content: String,
}

impl SealedRow {
    fn table(&self) -> &'static SealedTable {
        &TABLES[usize::try_from(self.of).unwrap_or_default().min(TABLES.len() - 1)]
    }

    fn checksum(&self) -> i64 {
        checksum(self.content.as_bytes())
    }
}

/// Selects rows that the transaction has changed.
static UNSEALED: LazyLock<String> = LazyLock::new(|| {
    let each = TABLES.iter().enumerate().map(|(number, table)| table.select(number, "sum IS NULL"));
    each.collect::<Vec<_>>().join(" UNION ALL ")
});

/// Adds checksums to rows without one.
///
/// # Errors
/// If the database fails.
pub(super) async fn seal(connection: &mut SqliteConnection) -> Result<(), StoreError> {
    let rows: Vec<SealedRow> = sqlx::query_as(UNSEALED.as_str()).fetch_all(&mut *connection).await?;
    for row in rows {
        let table = row.table();
        let update = format!("UPDATE {} SET sum = ? WHERE {}", table.name, table.condition());
        let mut query = sqlx::query(AssertSqlSafe(update)).bind(row.checksum()).bind(&row.first);
        if table.keys.len() > 1 {
            query = query.bind(&row.second);
        }
        query.execute(&mut *connection).await?;
    }
    Ok(())
}

/// The damage that was found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Damage {
    /// The number of rows that were set aside.
    pub(super) rows: usize,
    /// Whether a damaged row may have been a command's, so that one may be missing.
    pub(super) is_of_commands: bool,
}

/// Verifies the checksums of all rows, and sets those aside that do not match.
///
/// # Errors
/// If the database fails, or a damaged row cannot be set aside: then no row of the store can be trusted.
pub(super) async fn verify(connection: &mut SqliteConnection, now_ms: Millis) -> Result<Damage, StoreError> {
    let mut damage = Damage::default();
    // Rows that others refer to come after those.
    for (number, table) in TABLES.iter().enumerate().rev() {
        let wrong = wrong_rows(connection, number, table).await?;
        for row in wrong {
            damage.rows += 1;
            damage.is_of_commands |= matches!(table.name, "meta" | "journal");
            tracing::error!(table = table.name, row = %format!("{} {}", row.first, row.second).trim_end(),
                "a row of the agent's store is damaged, and is set aside");
            set_aside(connection, table, &row, now_ms).await?;
        }
    }
    Ok(damage)
}

async fn wrong_rows(
    connection: &mut SqliteConnection,
    number: usize,
    table: &'static SealedTable,
) -> Result<Vec<SealedRow>, StoreError> {
    use futures_util::TryStreamExt;
    let select = table.select(number, "sum IS NOT NULL");
    let mut rows = sqlx::query_as::<_, SealedRow>(AssertSqlSafe(select)).fetch(&mut *connection);
    let mut wrong = Vec::new();
    loop {
        match rows.try_next().await {
            Ok(Some(row)) if row.sum != Some(row.checksum()) => wrong.push(row),
            Ok(Some(_)) => {}
            Ok(None) => return Ok(wrong),
            // A text that is not valid any more.
            Err(sqlx::Error::ColumnDecode { source, .. }) => return Err(StoreError::Damaged(source.to_string())),
            Err(error) => return Err(error.into()),
        }
    }
}

async fn set_aside(
    connection: &mut SqliteConnection,
    table: &SealedTable,
    row: &SealedRow,
    now_ms: Millis,
) -> Result<(), StoreError> {
    sqlx::query!("INSERT INTO damaged (at_ms, of, content) VALUES (?, ?, ?)", now_ms, table.name, row.content)
        .execute(&mut *connection)
        .await?;
    sqlx::query!(
        "DELETE FROM damaged WHERE rowid IN (SELECT rowid FROM damaged ORDER BY rowid DESC LIMIT -1 OFFSET ?)",
        DAMAGED_MAX
    )
    .execute(&mut *connection)
    .await?;
    let statement = match table.name {
        // Its messages and ports are intact. The row stays, but its content is not used.
        "journal" => journal_statement(connection, &row.first).await?,
        // A unit that is unreadable is left alone, and so is its instance.
        "unit" => "UPDATE unit SET spec = '', sum = NULL WHERE name = ?".to_owned(),
        name => format!("DELETE FROM {name} WHERE {}", table.condition()),
    };
    let mut query = sqlx::query(AssertSqlSafe(statement)).bind(&row.first);
    if table.keys.len() > 1 {
        query = query.bind(&row.second);
    }
    match query.execute(&mut *connection).await?.rows_affected() {
        1 => Ok(()),
        _ => Err(StoreError::Damaged(format!("a row of {} cannot be found by its key", table.name))),
    }
}

/// Returns the statement for a damaged row of the journal. If a message of its command still waits, the row stays
/// without content; an outcome among the messages is its outcome.
async fn journal_statement(connection: &mut SqliteConnection, id: &str) -> Result<String, StoreError> {
    let last = sqlx::query!("SELECT seq, payload FROM outbox WHERE command = ? ORDER BY seq DESC LIMIT 1", id)
        .fetch_optional(connection)
        .await?;
    let Some(last) = last else { return Ok("DELETE FROM journal WHERE id = ?".to_owned()) };
    let seq = last.seq;
    let is_answer = serde_json::from_slice::<muster_topics::outcome::Report>(&last.payload)
        .is_ok_and(|report| matches!(report.content, muster_topics::outcome::Content::Done { .. }));
    let answer = match is_answer {
        true => format!(
            "finished_ms = received_ms, answer_seq = {seq}, answer = (SELECT payload FROM outbox WHERE command = id AND seq = {seq})"
        ),
        false => "finished_ms = NULL, answer_seq = NULL, answer = NULL".to_owned(),
    };
    Ok(format!(
        "UPDATE journal SET body = '{{}}', expires_ms = max(expires_ms, received_ms), next_seq = {seq} + 1, queued = 0, {answer}, sum = NULL WHERE id = ?"
    ))
}

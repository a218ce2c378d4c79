//! Finds ids by their beginning.

use muster_rules::id;
use sqlx::{AssertSqlSafe, SqlitePool};

use super::error::StoreResult;

/// The most ids that are listed for an ambiguous beginning.
const TOLD_MAX: u32 = 10;

/// Things with ids that people type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdKind {
    /// Commands.
    Commands,
    /// Join tokens.
    Tokens,
    /// Silences of alerts.
    Silences,
    /// Sign-ins.
    SignIns,
    /// Artifacts, by their SHA-256.
    Artifacts,
}

impl IdKind {
    /// Returns the code of the problem that there is none, the noun, and the command that lists them.
    #[must_use]
    pub fn words(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Commands => ("unknown_command", "command", "`muster command ls`, or GET /api/v1/commands,"),
            Self::Tokens => ("unknown_token", "token", "`muster token ls`, or GET /api/v1/tokens,"),
            Self::Silences => ("unknown_silence", "silence", "`muster alert silences`, or GET /api/v1/alert-silences,"),
            Self::SignIns => ("unknown_sign_in", "sign-in", "`muster login ls`, or GET /api/v1/sign-ins,"),
            Self::Artifacts => ("unknown_artifact", "artifact", "`muster artifact ls`, or GET /api/v1/artifacts,"),
        }
    }

    /// Returns the column, and the condition for listed rows.
    fn column(self) -> (&'static str, &'static str) {
        match self {
            Self::Commands => ("id", "command WHERE TRUE"),
            Self::Tokens => ("id", "token WHERE revoked_ms IS NULL"),
            Self::Silences => ("id", "alert_silence WHERE TRUE"),
            Self::SignIns => ("id", "credential WHERE id IS NOT NULL AND revoked_ms IS NULL"),
            Self::Artifacts => ("sha256", "artifact WHERE TRUE"),
        }
    }
}

/// Returns ids with this beginning, some of them if there are many; an exact match is the only one.
pub async fn beginning(db: &SqlitePool, of: IdKind, text: &str) -> StoreResult<Vec<String>> {
    let text = text.to_ascii_lowercase();
    // The characters of an id are all before `~`.
    let beginning = id::may_begin(&text).then(|| text.clone());
    let (id, table) = of.column();
    let sql = format!(
        "SELECT DISTINCT {id} FROM {table} AND ({id} = $1 OR ({id} >= $2 AND {id} < $2 || '~')) ORDER BY {id} LIMIT {TOLD_MAX}"
    );
    let rows: Vec<(String,)> = sqlx::query_as(AssertSqlSafe(sql)).bind(&text).bind(beginning).fetch_all(db).await?;
    let mut ids: Vec<String> = rows.into_iter().map(|(id,)| id).collect();
    if ids.contains(&text) {
        ids = vec![text];
    }
    Ok(ids)
}

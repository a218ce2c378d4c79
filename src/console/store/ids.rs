//! Finds ids by their beginning.

use muster_rules::id;
use sqlx::SqlitePool;

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
            Self::Silences => ("unknown_silence", "silence", "`muster silence ls`, or GET /api/v1/alert-silences,"),
            Self::SignIns => ("unknown_sign_in", "sign-in", "`muster login ls`, or GET /api/v1/sign-ins,"),
            Self::Artifacts => ("unknown_artifact", "artifact", "`muster artifact ls`, or GET /api/v1/artifacts,"),
        }
    }
}

/// Returns ids of a table's listed rows with this beginning.
macro_rules! ids {
    ($db:expr, $id:literal, $listed:literal, ($text:expr, $beginning:expr)) => {
        sqlx::query_scalar!(
            "SELECT DISTINCT "
                + $id
                + r#" AS "id!" FROM "#
                + $listed
                + " AND ("
                + $id
                + " = $1 OR ("
                + $id
                + " >= $2 AND "
                + $id
                + " < $2 || '~')) ORDER BY 1 LIMIT $3",
            $text,
            $beginning,
            TOLD_MAX
        )
        .fetch_all($db)
        .await?
    };
}

/// Returns ids with this beginning, some of them if there are many; an exact match is the only one.
pub async fn beginning(db: &SqlitePool, of: IdKind, text: &str) -> StoreResult<Vec<String>> {
    let text = text.to_ascii_lowercase();
    // The characters of an id are all before `~`.
    let beginning = id::may_begin(&text).then(|| text.clone());
    let mut ids: Vec<String> = match of {
        IdKind::Commands => ids!(db, "id", "command WHERE TRUE", (text, beginning)),
        IdKind::Tokens => ids!(db, "id", "token WHERE revoked_ms IS NULL", (text, beginning)),
        IdKind::Silences => ids!(db, "id", "alert_silence WHERE TRUE", (text, beginning)),
        IdKind::SignIns => ids!(db, "id", "credential WHERE id IS NOT NULL AND revoked_ms IS NULL", (text, beginning)),
        IdKind::Artifacts => ids!(db, "sha256", "artifact WHERE TRUE", (text, beginning)),
    };
    if ids.contains(&text) {
        ids = vec![text];
    }
    Ok(ids)
}

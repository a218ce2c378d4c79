//! Backups of the console.

use muster_topics::count::counted;
use muster_topics::{Millis, diagnostic::Diagnostic, name::Name};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The response header of `GET /api/v1/backups/new` with the bytes of all that is in the backup, to show how far it is.
pub const BACKUP_BYTES_HEADER: &str = "x-muster-backup-bytes";

/// `GET /api/v1/backups`: how backups are made, and the last ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Backups {
    /// The public keys that they are encrypted to. Without one there are none.
    pub recipients: Vec<String>,
    /// How often one is written to the folder, in hours; 0 is never.
    pub every_hours: u32,
    /// How many are kept in the folder.
    pub keep: u32,
    /// The folder on the console's machine.
    pub dir: String,
    /// When the last one was taken, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_ms: Option<Millis>,
    /// Why the last attempt failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<BackupFailure>,
    /// The last ones, newest first.
    pub backups: Vec<Backup>,
}

/// A failed attempt to make a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackupFailure {
    /// When.
    pub at_ms: Millis,
    /// Why.
    #[serde(flatten)]
    pub diagnostic: Diagnostic,
}

/// A backup that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Backup {
    /// Its id.
    pub id: Name,
    /// Why it was made.
    pub kind: BackupKind,
    /// The name of its file.
    pub name: String,
    /// Where it is on the console's machine; left out if it does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Who asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<Name>,
    /// When the ledger was copied.
    pub taken_ms: Millis,
    /// When it was complete.
    pub finished_ms: Millis,
    /// The size of the file.
    pub bytes: u64,
    /// The number of hosts in it.
    pub hosts: u64,
    /// What is in it.
    pub parts: Vec<BackupPart>,
}

/// Why a backup was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BackupKind {
    /// By the console's schedule.
    Scheduled,
    /// By an operator, who has the file.
    Requested,
}

/// A part of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackupPart {
    /// Its name: `authority`, `store`, `configuration`, `artifacts` or `series`.
    pub name: String,
    /// The number of its files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Backup {
    /// What is in it, in words: "3 hosts, authority, store (1.2 MiB), 4 artifacts (80 MiB)".
    #[must_use]
    pub fn contents(&self) -> String {
        let hosts = counted(self.hosts, "host");
        let part = |part: &BackupPart| {
            let bytes = muster_topics::size::print(part.bytes);
            match part.name.as_str() {
                "authority" | "configuration" => part.name.clone(),
                "artifacts" => format!("{} ({bytes})", counted(part.files, "artifact")),
                name => format!("{name} ({bytes})"),
            }
        };
        let parts = self.parts.iter().map(part);
        std::iter::once(hosts).chain(parts).collect::<Vec<_>>().join(", ")
    }
}

//! Backups.

use muster_api::{Backup, BackupFailure, BackupKind, BackupPart, Backups};
use muster_topics::diagnostic::Diagnostic;

use super::NOW;

/// The backups of a console, with this text wherever somebody may have written it.
pub(super) fn backups(text: &str) -> Backups {
    let part = |name: &str| BackupPart { name: name.to_owned(), files: 3, bytes: 70_000 };
    let one = Backup {
        id: "a1".parse().unwrap(),
        kind: BackupKind::Scheduled,
        name: "muster-35349269acc2-20261127T102022Z.tar.age".to_owned(),
        path: Some(format!("/mnt/{text}")),
        operator: None,
        taken_ms: NOW - 3_600_000,
        finished_ms: NOW - 3_599_000,
        bytes: 349_184,
        hosts: 12,
        parts: ["authority", "store", "configuration", "artifacts"].map(part).to_vec(),
    };
    let given =
        Backup { kind: BackupKind::Requested, path: None, operator: Some("anna".parse().unwrap()), ..one.clone() };
    Backups {
        recipients: vec!["age1jhxlczdy6d87c8f5rvr0p79avw3uv2pj56f5937h26gv87jz4agq7gq9rk".to_owned(); 2],
        every_hours: 24,
        keep: 14,
        dir: "/mnt/backups".to_owned(),
        last_ms: Some(one.taken_ms),
        failed: Some(BackupFailure { at_ms: NOW - 60_000, diagnostic: Diagnostic::new(text) }),
        backups: vec![one, given],
    }
}

/// A console that makes none.
pub(super) fn none() -> Backups {
    Backups { recipients: vec![], every_hours: 24, failed: None, last_ms: None, backups: vec![], ..backups("x") }
}

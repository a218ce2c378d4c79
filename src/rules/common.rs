//! Validates what the specs of all kinds have in common.

use muster_topics::{
    common::{CommonSpec, LABELS_MAX, NEEDS_MAX, PRIORITY_MAX},
    diagnostic::Diagnostic,
    secret::SECRETS_MAX,
};

use crate::process::{RESTART_EPOCH_MAX, VERIFY_AFTER_MAX_MS, between, most};

/// Checks these fields, each by itself.
pub(crate) fn checks(common: &CommonSpec) -> impl Iterator<Item = Result<(), Diagnostic>> {
    let verify_after_ms = common.verify_after_ms.unwrap_or(0);
    [
        most("secrets", "", common.secrets.len(), SECRETS_MAX),
        between("verify_after_ms", verify_after_ms, 0, VERIFY_AFTER_MAX_MS),
        most("labels", "", common.labels.len(), LABELS_MAX),
        most("after", " units", common.after.len(), NEEDS_MAX),
        most("requires", " units", common.requires.len(), NEEDS_MAX),
        between("priority", common.priority.into(), 0, PRIORITY_MAX.into()),
        between("restart_epoch", common.restart_epoch, 0, RESTART_EPOCH_MAX),
    ]
    .into_iter()
}

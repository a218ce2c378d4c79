//! Backups by the clock: one every so many hours, written to a folder, of which the newest are kept. The alert
//! `console-backup-old` says that the last good one is too old.

use std::{
    fs::{self, OpenOptions},
    io::{self, BufWriter},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::Arc,
    time::Duration,
};

use muster_api::{BackupFailure, BackupKind};
use muster_backup::archive::SUFFIX;
use muster_base::{clock::now_ms, failure::with_causes, files};
use muster_sqlite::room;
use muster_topics::Millis;
use tokio_util::sync::CancellationToken;

use super::{BackupChoice, CopyFacts, FolderCopy, remember};
use crate::{notice::NoticeKind, page_change::PageChange, state::ConsoleState, store};

/// The time between two looks at the clock. The first is so long after the start, when hosts have reported.
const PERIOD: Duration = Duration::from_secs(5);
/// The time after which a failed backup is tried again.
const RETRY_MS: Millis = 15 * 60_000;
const HOUR_MS: Millis = 3_600_000;
/// The suffix of a backup that is being written.
const PART: &str = ".part";

/// Makes backups until the console stops.
pub(crate) async fn run(shared: Arc<ConsoleState>, shutdown: CancellationToken) {
    let started = now_ms();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(PERIOD) => (),
        }
        if let Err(error) = look(&shared, started).await {
            tracing::error!(%error, "whether a backup is due cannot be read");
        }
    }
}

async fn look(shared: &Arc<ConsoleState>, started: Millis) -> Result<(), store::StoreError> {
    let config = shared.current();
    let interval_ms = Millis::from(config.backup.every_hours).saturating_mul(HOUR_MS);
    let is_on = interval_ms > 0 && !config.backup.recipients.is_empty();
    let (mut any, scheduled) = store::backup::last_taken_ms(shared.store.read(), BackupKind::Scheduled).await?;
    let failed_ms = shared.backups.failed().map(|failure| failure.at_ms);
    if is_on && is_due(scheduled, failed_ms, interval_ms, now_ms()) {
        make(shared).await;
        any = store::backup::last_taken_ms(shared.store.read(), BackupKind::Scheduled).await?.0;
    }
    let failed = shared.backups.failed();
    let is_old = is_on && is_old(any, started, failed.is_some(), interval_ms, now_ms());
    let changed = match is_old {
        true => {
            shared.notices.raise(NoticeKind::BackupOld, old_message(any, failed, &config.backup_folder()), now_ms())
        }
        false => shared.notices.clear(NoticeKind::BackupOld),
    };
    if changed {
        shared.changed(PageChange::Alert(None));
    }
    Ok(())
}

/// Whether a backup is due. A clock that was set back does not put off the next one by more than its interval.
fn is_due(last: Option<Millis>, failed: Option<Millis>, interval_ms: Millis, now: Millis) -> bool {
    let has_passed = |since: Millis, ms: Millis| now < since || now - since >= ms;
    failed.is_none_or(|at| has_passed(at, RETRY_MS)) && last.is_none_or(|at| has_passed(at, interval_ms))
}

/// Whether the last good backup is too old: older than twice the interval. Without one, that is so at the first failure.
fn is_old(last: Option<Millis>, started: Millis, has_failed: bool, interval_ms: Millis, now: Millis) -> bool {
    match last {
        Some(last) => now - last > interval_ms.saturating_mul(2),
        None => has_failed || now - started > interval_ms.saturating_mul(2),
    }
}

fn old_message(last: Option<Millis>, failed: Option<BackupFailure>, folder: &Path) -> String {
    let age = match last {
        Some(last) => format!("the last good backup is {} hours old", (now_ms() - last) / HOUR_MS),
        None => "there is no good backup of the console".to_owned(),
    };
    match failed {
        Some(BackupFailure { reason, .. }) => format!("{age}; the last attempt failed: {reason}"),
        None => format!(
            "{age}. hint: see that {} can be written, and what the console's log says of backups",
            folder.display()
        ),
    }
}

/// Makes a backup in the folder, and removes the oldest.
async fn make(shared: &Arc<ConsoleState>) {
    let config = shared.current();
    let folder = config.backup_folder();
    let choice = BackupChoice { artifacts: config.backup.with_artifacts, series: config.backup.with_series };
    let copy = match FolderCopy::make(shared, choice).await {
        Ok(copy) => copy,
        Err(error) if error.problem.code == "backup_running" => return,
        Err(error) => return fail(shared, format!("{:#}", error.problem.diagnostic)),
    };
    let keep = config.backup.keep.max(1) as usize;
    let to = folder.clone();
    let made = tokio::task::spawn_blocking(move || write_into(&to, copy, keep)).await;
    match made {
        Ok(Ok((bytes, facts))) => remember(shared, facts, bytes, BackupKind::Scheduled, None).await,
        Ok(Err(error)) => {
            let hint = if room::is_missing_for(&error) {
                room::HINT
            } else {
                "make the folder writable for the console's user"
            };
            fail(shared, format!("the folder {}: {}. hint: {hint}", folder.display(), with_causes(&error)));
        }
        Err(error) => fail(shared, error.to_string()),
    }
}

fn fail(shared: &ConsoleState, reason: String) {
    tracing::error!(reason, "no backup was made");
    shared.backups.note(Some(BackupFailure { at_ms: now_ms(), reason }));
}

/// Writes a backup into a folder under its final name, once it is complete, and keeps the newest.
fn write_into(folder: &Path, copy: FolderCopy, keep: usize) -> io::Result<(u64, CopyFacts)> {
    files::make_folder(folder, files::PRIVATE_FOLDER)?;
    let name = copy.name();
    let (path, part) = (folder.join(&name), folder.join(format!("{name}{PART}")));
    let prefix = prefix_of(&name).to_owned();
    remove_parts(folder, &prefix)?;
    let write = || -> io::Result<CopyFacts> {
        let file = OpenOptions::new().write(true).create_new(true).mode(files::SECRET_MODE).open(&part)?;
        let (out, facts) = copy.write(BufWriter::new(file)).map_err(into_io)?;
        out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::rename(&part, &path)?;
        files::sync_folder(folder)?;
        Ok(facts)
    };
    let written = write();
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    let facts = written?;
    let bytes = fs::metadata(&path)?.len();
    for old in surplus(names(folder)?, &prefix, keep) {
        fs::remove_file(folder.join(&old))?;
        tracing::info!(backup = old, "an old backup is removed");
    }
    Ok((bytes, facts))
}

fn into_io(error: muster_backup::BackupError) -> io::Error {
    match error {
        muster_backup::BackupError::Write(error) => error,
        error => error.into(),
    }
}

/// What the names of all backups of a fleet begin with.
fn prefix_of(name: &str) -> &str {
    name.rsplit_once('-').map_or(name, |(prefix, _)| prefix)
}

fn names(folder: &Path) -> io::Result<Vec<String>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Removes what a backup that was interrupted has left.
fn remove_parts(folder: &Path, prefix: &str) -> io::Result<()> {
    let mut parts = names(folder)?.into_iter().filter(|name| name.starts_with(prefix) && name.ends_with(PART));
    parts.try_for_each(|name| fs::remove_file(folder.join(name)))
}

/// The backups of a fleet that are not among the newest. Their names have the time; other files are nobody's business.
fn surplus(names: Vec<String>, prefix: &str, keep: usize) -> Vec<String> {
    let mut ours: Vec<String> =
        names.into_iter().filter(|name| prefix_of(name) == prefix && name.ends_with(SUFFIX)).collect();
    ours.sort();
    ours.truncate(ours.len().saturating_sub(keep));
    ours
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backup_is_due_after_its_interval() {
        let day = 24 * HOUR_MS;
        for (last, failed, now, wanted) in [
            (None, None, day, true),
            (Some(day), None, day + 1, false),
            (Some(day), None, 2 * day, true),
            (Some(day), Some(2 * day), 2 * day + RETRY_MS - 1, false),
            (Some(day), Some(2 * day), 2 * day + RETRY_MS, true),
            // The clock was set back.
            (Some(5 * day), None, day, true),
            (None, Some(5 * day), day, true),
        ] {
            assert_eq!(is_due(last, failed, day, now), wanted, "{last:?} {failed:?} {now}");
        }
    }

    #[test]
    fn backup_is_old_after_two_intervals() {
        for (last, has_failed, now, wanted) in [
            (Some(0), false, 20, false),
            (Some(0), true, 20, false),
            (Some(0), false, 21, true),
            (None, false, 5, false),
            (None, true, 5, true),
            (None, false, 24, true),
        ] {
            assert_eq!(is_old(last, 3, has_failed, 10, now), wanted, "{last:?} {has_failed} {now}");
        }
    }

    #[test]
    fn only_old_backups_of_the_fleet_are_surplus() {
        let names = ["a-2.tar.age", "a-1.tar.age", "a-3.tar.age", "b-0.tar.age", "a-0.tar.age.part", "holiday.jpg"];
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(surplus(names.clone(), "a", 2), ["a-1.tar.age"]);
        assert_eq!(surplus(names.clone(), "a", 9), [""; 0]);
        assert_eq!(surplus(names, "a", 1), ["a-1.tar.age", "a-2.tar.age"]);
    }
}

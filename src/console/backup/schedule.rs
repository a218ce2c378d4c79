//! Backups by the clock: one every so many hours, written to a folder, of which the newest are kept. The alert
//! `console-backup-old` says that the last good one is too old.

use std::{
    fs::{self, OpenOptions},
    io::{self, BufWriter},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use muster_api::{BackupFailure, BackupKind};
use muster_backup::{BackupError, archive::SUFFIX};
use muster_base::{clock::now_ms, files};
use muster_sqlite::room;
use muster_topics::{Millis, diagnostic::Diagnostic};
use tokio_util::sync::CancellationToken;

use super::{BackupChoice, CopyFacts, FolderCopy, remember};
use crate::{config::BackupPart, notice::NoticeKind, page_change::PageChange, state::ConsoleState, store};

/// The time between two looks at the clock. The first is so long after the start, when hosts have reported.
const PERIOD: Duration = Duration::from_secs(5);
/// The time after which a failed backup is tried again.
const RETRY: Duration = Duration::from_secs(15 * 60);
const HOUR_MS: Millis = 3_600_000;
/// The suffix of a backup that is being written.
const PART: &str = ".part";

/// Makes backups until the console stops.
pub(crate) async fn run(shared: Arc<ConsoleState>, shutdown: CancellationToken) {
    let (started, mut attempts) = (now_ms(), Attempts::default());
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(PERIOD) => (),
        }
        if let Err(error) = look(&shared, started, &mut attempts).await {
            tracing::error!(%error, hint = error.hint(), "the time of the last backup cannot be read");
        }
    }
}

/// The attempts of this process. Its own time does not jump, and it knows of backups that could not be recorded.
#[derive(Clone, Copy, Debug, Default)]
struct Attempts {
    /// When one last failed.
    failed: Option<Instant>,
    /// When one was last written.
    made: Option<Instant>,
}

impl Attempts {
    /// Whether they allow another one.
    fn allow(self, interval_ms: Millis, now: Instant) -> bool {
        let has_passed = |since: Option<Instant>, time: Duration| {
            since.is_none_or(|since| now.saturating_duration_since(since) >= time)
        };
        let half = Duration::from_millis(interval_ms.unsigned_abs() / 2);
        has_passed(self.failed, RETRY) && has_passed(self.made, half)
    }
}

async fn look(shared: &Arc<ConsoleState>, started: Millis, attempts: &mut Attempts) -> Result<(), store::StoreError> {
    let config = shared.current();
    let interval_ms = Millis::from(config.backup.every_hours).saturating_mul(HOUR_MS);
    let is_on = interval_ms > 0 && !config.backup.recipients.is_empty();
    let last = async || store::backup::last_taken_ms(shared.store.read(), BackupKind::Scheduled, now_ms()).await;
    let (mut any, scheduled) = last().await?;
    if is_on && is_due(scheduled, interval_ms, now_ms()) && attempts.allow(interval_ms, Instant::now()) {
        match make(shared, interval_ms).await {
            BackupAttempt::Made => *attempts = Attempts { failed: None, made: Some(Instant::now()) },
            BackupAttempt::Failed => attempts.failed = Some(Instant::now()),
            BackupAttempt::Busy => {}
        }
        any = last().await?.0;
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

/// Whether a backup is due, given when the last one was taken that was not taken in the future.
fn is_due(last: Option<Millis>, interval_ms: Millis, now: Millis) -> bool {
    last.is_none_or(|at| now.saturating_sub(at) >= interval_ms)
}

/// Whether the last good backup is too old: older than twice the interval. Without one, that is so at the first failure.
fn is_old(last: Option<Millis>, started: Millis, has_failed: bool, interval_ms: Millis, now: Millis) -> bool {
    match last {
        Some(last) => now.saturating_sub(last) > interval_ms.saturating_mul(2),
        None => has_failed || now.saturating_sub(started) > interval_ms.saturating_mul(2),
    }
}

fn old_message(last: Option<Millis>, failed: Option<BackupFailure>, folder: &Path) -> Diagnostic {
    let age = match last {
        Some(last) => format!("the last good backup is {} hours old", (now_ms() - last) / HOUR_MS),
        None => "there is no good backup of the console".to_owned(),
    };
    match failed {
        Some(BackupFailure { diagnostic, .. }) => diagnostic.within(format!("{age}; the last attempt failed")),
        None => Diagnostic::new(age)
            .with_hint(format!("check that {} is writable, and read the console's log on backups", folder.display())),
    }
}

/// What became of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BackupAttempt {
    Made,
    Failed,
    /// Another backup is being made.
    Busy,
}

/// Makes a backup in the folder, and removes the oldest.
async fn make(shared: &Arc<ConsoleState>, interval_ms: Millis) -> BackupAttempt {
    let config = shared.current();
    let folder = config.backup_folder();
    let choice = BackupChoice {
        artifacts: config.backup.with.contains(&BackupPart::Artifacts),
        series: config.backup.with.contains(&BackupPart::Measurements),
    };
    let copy = match FolderCopy::make(shared, choice).await {
        Ok(copy) => copy,
        Err(error) if error.problem.code == "backup_running" => return BackupAttempt::Busy,
        Err(error) => return fail(shared, error.problem.diagnostic),
    };
    let order = match store::backup::names(shared.store.read(), BackupKind::Scheduled).await {
        Ok(names) => names,
        Err(error) => return fail(shared, Diagnostic::of(&error).within("the list of backups cannot be read")),
    };
    let history = BackupHistory { order, keep: config.backup.keep.max(1) as usize, interval_ms };
    let to = folder.clone();
    let made = tokio::task::spawn_blocking(move || write_into(&to, copy, &history)).await;
    match made {
        Ok(Ok((bytes, facts))) => {
            remember(shared, facts, bytes, BackupKind::Scheduled, None).await;
            BackupAttempt::Made
        }
        Ok(Err(error)) => {
            let hint = if room::is_missing_for(&error) {
                room::HINT
            } else {
                "make the folder writable for the console's user"
            };
            let told = match error.downcast::<BackupError>() {
                Ok(error) => error.diagnostic(),
                Err(error) => Diagnostic::of_error(&error),
            };
            let told = if told.hint.is_some() { told } else { told.with_hint(hint) };
            fail(shared, told.within(format!("the folder {}", folder.display())))
        }
        Err(error) => fail(shared, Diagnostic::new(error)),
    }
}

fn fail(shared: &ConsoleState, diagnostic: Diagnostic) -> BackupAttempt {
    tracing::error!(reason = diagnostic.cause, hint = diagnostic.hint, "no backup was made");
    shared.backups.note(Some(BackupFailure { at_ms: now_ms(), diagnostic }));
    BackupAttempt::Failed
}

/// What is known of the backups in the folder.
#[derive(Debug)]
struct BackupHistory {
    /// Their names, in the order in which they were made.
    order: Vec<String>,
    /// How many are kept.
    keep: usize,
    interval_ms: Millis,
}

/// Writes a backup into a folder under its final name, once it is complete, and keeps the newest.
fn write_into(folder: &Path, copy: FolderCopy, history: &BackupHistory) -> io::Result<(u64, CopyFacts)> {
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
    for old in surplus(names(folder)?, &prefix, &name, history) {
        fs::remove_file(folder.join(&old))?;
        tracing::info!(backup = old, "an old backup is removed");
    }
    Ok((bytes, facts))
}

fn into_io(error: BackupError) -> io::Error {
    match error {
        BackupError::Write(error) => error,
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

/// The backups of a fleet that are not kept; the one that was just made always is. Other files are nobody's business. Those go first
/// that another one followed within half an interval: a clock that jumps, or a console that is restarted over
/// and over, does not push out the history. Then the oldest go, by the order in which they were made and not by the times
/// in their names; those that are in no record are from before.
fn surplus(names: Vec<String>, prefix: &str, made: &str, history: &BackupHistory) -> Vec<String> {
    let number = |name: &String| match name == made {
        true => Some(usize::MAX),
        false => history.order.iter().rposition(|one| one == name),
    };
    let mut ours: Vec<String> =
        names.into_iter().filter(|name| prefix_of(name) == prefix && name.ends_with(SUFFIX)).collect();
    ours.sort_by_cached_key(|name| (number(name), name.clone()));
    let follows_closely = |pair: &[String]| match pair {
        [before, name] => time_of(before)
            .zip(time_of(name))
            .is_some_and(|(before, at)| (0..history.interval_ms / 2).contains(&at.saturating_sub(before))),
        _ => false,
    };
    let mut surplus = Vec::new();
    while ours.len() > history.keep {
        let close = ours.windows(2).rposition(follows_closely);
        surplus.push(ours.remove(close.unwrap_or(0)));
    }
    surplus
}

/// The time in a backup's name: `…-20261127T101500Z.tar.age`.
fn time_of(name: &str) -> Option<Millis> {
    let (_, time) = name.strip_suffix(SUFFIX)?.rsplit_once('-')?;
    Some(time.parse::<jiff::Timestamp>().ok()?.as_millisecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backup_is_due_after_its_interval() {
        let day = 24 * HOUR_MS;
        for (last, now, wanted) in
            [(None, day, true), (Some(day), day + 1, false), (Some(day), 2 * day, true), (Some(2 * day), day, false)]
        {
            assert_eq!(is_due(last, day, now), wanted, "{last:?} {now}");
        }
        let (start, retry) = (Instant::now(), RETRY.as_secs());
        let half = Duration::from_millis(day.unsigned_abs() / 2).as_secs();
        for (failed_s, made_s, after_s, wanted) in [
            (None, None, 0, true),
            (Some(0), None, retry - 1, false),
            (Some(0), None, retry, true),
            (None, Some(0), half - 1, false),
            (None, Some(0), half, true),
            (Some(half), Some(0), half, false),
        ] {
            let at = |s: u64| start + Duration::from_secs(s);
            let attempts = Attempts { failed: failed_s.map(at), made: made_s.map(at) };
            assert_eq!(attempts.allow(day, at(after_s)), wanted, "{failed_s:?} {made_s:?} {after_s}");
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

    /// A scheduled backup, taken at this time.
    fn taken(name: &str, taken_ms: Millis) -> muster_api::Backup {
        muster_api::Backup {
            id: crate::operator::new_id().unwrap(),
            kind: BackupKind::Scheduled,
            name: name.to_owned(),
            path: None,
            operator: None,
            taken_ms,
            finished_ms: taken_ms,
            bytes: 1,
            hosts: 1,
            parts: Vec::new(),
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn backup_taken_while_the_clock_was_ahead_starts_no_burst() {
        let fixture = crate::testing::Fixture::new().await;
        let shared = fixture.shared();
        let mut config = crate::config::Config::clone(&shared.current());
        config.backup.recipients = vec![muster_backup::key::PrivateKey::generate().unwrap().public()];
        (config.backup.every_hours, config.backup.keep) = (24, 14);
        fixture.running.reload(config).unwrap();
        let (now, db) = (now_ms(), shared.store.write());
        // Each look as of a console that was just started.
        let look_thrice = async || {
            for _ in 0..3 {
                look(shared, now, &mut Attempts::default()).await.unwrap();
            }
            store::backup::names(db, BackupKind::Scheduled).await.unwrap().len()
        };
        store::backup::add(db, &taken("before", now - HOUR_MS)).await.unwrap();
        store::backup::add(db, &taken("ahead", now + 400 * 24 * HOUR_MS)).await.unwrap();
        assert_eq!(look_thrice().await, 2, "the one of an hour ago is younger than its interval");
        sqlx::query("UPDATE backup SET taken_ms = $1 WHERE name = 'before'")
            .bind(now - 25 * HOUR_MS)
            .execute(db)
            .await
            .unwrap();
        assert_eq!(look_thrice().await, 3, "one is due, and no second one");
        fixture.running.stop().await;
    }

    /// What goes of backups that were made in this order, the last of them just now.
    fn goes(days: &[&str], keep: usize) -> Vec<String> {
        let name = |time: &&str| format!("a-{time}.tar.age");
        let order: Vec<String> = days.iter().map(name).collect();
        let (made, history) = order.split_last().unwrap();
        let history = BackupHistory { order: history.to_vec(), keep, interval_ms: 24 * HOUR_MS };
        let mut names = order.clone();
        names.sort();
        names.extend(
            ["b-20260101T000000Z.tar.age", "a-20250101T000000Z.tar.age.part", "holiday.jpg"].map(str::to_owned),
        );
        let gone = surplus(names, "a", made, &history);
        gone.iter().map(|name| name["a-".len().."a-20260101".len()].to_owned()).collect()
    }

    #[test]
    fn oldest_backups_of_the_fleet_are_surplus() {
        let days = ["20260101T000000Z", "20260102T000000Z", "20260103T000000Z"];
        assert_eq!(goes(&days, 2), ["20260101"]);
        assert_eq!(goes(&days, 9), [""; 0]);
        assert_eq!(goes(&days, 1), ["20260101", "20260102"]);
    }

    #[test]
    fn backup_of_a_clock_that_was_ahead_goes_when_its_turn_comes() {
        let days = ["20260101T000000Z", "20270101T000000Z", "20260102T000000Z", "20260103T000000Z"];
        assert_eq!(goes(&days, 3), ["20260101"]);
        assert_eq!(goes(&days, 2), ["20260101", "20270101"]);
    }

    #[test]
    fn burst_of_backups_leaves_the_history() {
        let days = ["20260101T000000Z", "20260102T000000Z", "20260103T000000Z", "20260103T000005Z", "20260103T000010Z"];
        let name = |day: &str| format!("a-{day}.tar.age");
        let mut folder: Vec<String> = Vec::new();
        for day in days {
            folder.push(name(day));
            let history = BackupHistory { order: folder.clone(), keep: 3, interval_ms: 24 * HOUR_MS };
            let gone = surplus(folder.clone(), "a", &name(day), &history);
            folder.retain(|one| !gone.contains(one));
        }
        assert_eq!(folder, [days[0], days[1], days[4]].map(name));
        // Those that no record has are from before all others.
        let history = BackupHistory { order: folder[1..].to_vec(), keep: 2, interval_ms: 24 * HOUR_MS };
        assert_eq!(surplus(folder.clone(), "a", &folder[2], &history), folder[..1]);
    }
}

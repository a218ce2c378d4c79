//! The authority's register: all members and their certificates, in a file beside the authority's keys.
//!
//! The rest of the store is the ledger of commands, and what hosts report again when they are asked. So a console that has
//! lost its store, and still has its authority, recovers with the same members and the same revocations.
//!
//! The store may also be older than the register, if somebody has restored a copy. A mark beside the register holds numbers that never go
//! back (starts of the console, versions of the register, the latest signed date). A store that is behind it is noticed, updated
//! from the register, and raises an alert.
//!
//! Register and store may also both be older, if a whole backup was restored. A mark that the restore has left says so, and the
//! register of the folder that was replaced, if there was one, is merged in the same way.
//!
//! **Invariant: a revocation is permanent.** The register is written within seconds of each change, and merged into the store at each
//! start, before anything else is done with it: it revokes, and never reinstates.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use muster_backup::restored_mark::{self, RestoredMark};
use muster_base::{
    clock::rfc3339_ms,
    files::{self, RoleFile},
};
use muster_rules::checked;
use muster_sqlite::room;
use muster_topics::{Millis, diagnostic::Diagnostic};
use sqlx::SqliteConnection;

use super::{
    alert,
    store::{
        self, Store, StoreError,
        register::{self, Marks, MergeResult, Register, StoreMark},
    },
};

/// The file in the console's folder.
pub(super) const FILE: &str = "authority/register.json";
/// The mark's file in the console's folder.
const MARK: &str = "authority/mark.json";
/// The size for ten thousand hosts, which is taken from the disk's reserve if needed.
const FILE_MAX_BYTES: u64 = 4 << 20;
/// The least time between two writes, for each host in it: while ten thousand hosts join it is written every five
/// seconds, with 3 MB each time. Revocations are written at once.
const PAUSE_FOR_EACH: Duration = Duration::from_micros(500);

/// The register cannot be used.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum RegisterError {
    /// The store failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Store(#[from] StoreError),
    /// The file cannot be read or written.
    #[error("the register {path} cannot be used: {source}")]
    File {
        /// Its path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
        /// What to do about it.
        #[help]
        hint: Option<String>,
    },
    /// The file is invalid.
    #[error("the store is new, and the register of its members, {path}, is damaged: {problem}")]
    #[diagnostic(help(
        "restore either from a backup; without the register, all hosts must join again, and revoked \
         certificates are valid again"
    ))]
    Damaged {
        /// Its path.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

impl RegisterError {
    fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, hint: room::hint(&source), source }
    }

    /// Whether the disk is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        match self {
            Self::Store(error) => error.is_full(),
            Self::File { source, .. } => room::is_missing_for(source),
            Self::Damaged { .. } => false,
        }
    }
}

/// Updates a store that is new or older than the register, and makes any store revoke what the register says is
/// revoked. Sets the store's mark, from which it continues.
///
/// # Errors
/// If the register or the store cannot be used.
pub async fn restore(folder: &Path, store: &Store, now: Millis) -> Result<(), RegisterError> {
    merge_own(folder, store, now).await?;
    merge_replaced(folder, store, now).await
}

/// Merges what is known of a folder that was replaced by a backup, at the first start after that.
async fn merge_replaced(folder: &Path, store: &Store, now: Millis) -> Result<(), RegisterError> {
    let Some(mark) = RestoredMark::read(folder, now).map_err(RegisterError::file(folder))? else { return Ok(()) };
    let path = restored_mark::replaced_register(folder);
    let replaced: Option<Result<Register, String>> = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(RegisterError::file(path)(error)),
        Ok(bytes) => Some(checked::from_bytes(&bytes)),
    };
    let left = match fs::read(restored_mark::replaced_mark(folder)) {
        // One that is damaged says no less than one that is missing.
        Ok(bytes) => checked::from_bytes(&bytes).unwrap_or_default(),
        Err(_) => StoreMark::default(),
    };
    let mut transaction = store.begin().await?;
    let since = rfc3339_ms(mark.taken_ms);
    let what_is_missing =
        "Commands, additions and settings since then are not in it; hosts report themselves and their units again";
    let (cause, hint) = match &replaced {
        Some(Ok(register)) => {
            let MergeResult { revoked, joined, removed, ended } =
                register::merge(&mut transaction, register, true, now).await?;
            let left = StoreMark { seq: left.seq.max(register.seq), ..left };
            register::set_mark(&mut transaction, left).await?;
            let cause = format!(
                "the console was restored from a backup of {since}. From the register of the folder that was replaced it has again: \
                 {revoked} revoked certificates, {joined} hosts that had joined, {removed} that were removed, {ended} ended tokens and \
                 sign-ins. {what_is_missing}"
            );
            (cause, None)
        }
        lost => {
            let why = match lost {
                Some(Err(problem)) => format!("the register of the folder that was replaced is damaged ({problem})"),
                _ => "there was no folder to replace".to_owned(),
            };
            let cause = format!(
                "the console was restored from a backup of {since}, and {why}: revocations and removals since then are unknown. \
                 {what_is_missing}. Hosts that joined since then come back by their certificates, with an alert of each"
            );
            let hint =
                "revoke again the hosts that were revoked since then, and sign-ins that were ended (`muster login ls`)";
            (cause, Some(hint.to_owned()))
        }
    };
    store::command::forget_what_went_out(&mut transaction).await?;
    register::set_restored(&mut transaction, mark.taken_ms, mark.restored_ms).await?;
    tracing::error!(?mark, hint, "{cause}");
    let message = Diagnostic { cause, consequence: None, hint };
    put_alert(&mut transaction, alert::RESTORED, &message, now).await?;
    transaction.commit().await.map_err(StoreError::from)?;
    // From here on the console's own register has all of it.
    RegisterWriter::new(folder).refresh(store).await?;
    write_mark(folder, store).await?;
    RestoredMark::remove(folder).map_err(RegisterError::file(folder))
}

/// Merges the register that lies beside the store.
async fn merge_own(folder: &Path, store: &Store, now: Millis) -> Result<(), RegisterError> {
    files::clear_places(folder, RoleFile::RenewedFile, &[MARK]).map_err(RegisterError::file(folder.join(MARK)))?;
    let is_new = register::marks(store.read()).await?.is_empty();
    let Some(register) = read(folder, is_new)? else { return Ok(()) };
    let left = read_mark(folder)?;
    let left = StoreMark { seq: left.seq.max(register.seq), ..left };
    let held = register::mark(store.read()).await?;
    let path = folder.join(FILE);
    let damaged = |problem: &dyn std::fmt::Display| RegisterError::Damaged { path, problem: problem.to_string() };
    let mut transaction = store.begin().await?;
    if is_new {
        register::fill(&mut transaction, &register).await.map_err(|error| damaged(&error))?;
        register::set_mark(&mut transaction, left).await?;
        if register.knows_somebody() {
            let (hosts, certificates) = (register.hosts.len(), register.certificates.len() + register.issued.len());
            let cause = format!(
                "console.db is lost, and the store is new: its members ({hosts} hosts, {certificates} certificates) come from the authority's \
                 register, and their state from themselves. The ledger of commands, artifacts' labels, configs and API tokens are gone"
            );
            let hint = "if there is a backup of console.db, stop the console and restore it";
            tracing::error!(hint, "{cause}");
            put_alert(&mut transaction, alert::WENT_BACK, &Diagnostic::new(cause).with_hint(hint), now).await?;
        }
        transaction.commit().await.map_err(StoreError::from)?;
        return Ok(());
    }
    let is_older = held.is_before(left);
    let merged = register::merge(&mut transaction, &register, is_older, now).await?;
    register::set_mark(&mut transaction, left).await?;
    if is_older {
        store::command::forget_what_went_out(&mut transaction).await?;
        let MergeResult { revoked, joined, removed, ended } = merged;
        let message = format!(
            "console.db was set back to an older copy. From the authority's register it has again: {revoked} revoked certificates, \
             {joined} hosts that had joined, {removed} that were removed, {ended} ended tokens and sign-ins. Commands, \
             additions and settings since the copy was made are not in it"
        );
        tracing::error!(?held, ?left, "{message}");
        put_alert(&mut transaction, alert::WENT_BACK, &Diagnostic::new(message), now).await?;
    }
    transaction.commit().await.map_err(StoreError::from)?;
    Ok(())
}

/// Raises an alert about the store.
async fn put_alert(db: &mut SqliteConnection, rule: &str, message: &Diagnostic, now: Millis) -> Result<(), StoreError> {
    if let Ok(alert) = alert::own(rule, message, now) {
        store::alert::put_own(db, store::alert::CONSOLE, alert, now).await?;
    }
    Ok(())
}

/// Reads the register, if it exists. A damaged one is an error for a new store; otherwise it is set aside.
fn read(folder: &Path, is_new: bool) -> Result<Option<Register>, RegisterError> {
    let path = folder.join(FILE);
    let found = match files::read_own(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::IsADirectory || files::is_unreadable(&error) => {
            Err(error.to_string())
        }
        Err(error) => return Err(RegisterError::file(path)(error)),
        Ok(bytes) => checked::from_bytes(&bytes),
    };
    match found {
        Ok(register) => Ok(Some(register)),
        Err(problem) if is_new => Err(RegisterError::Damaged { path, problem }),
        Err(error) => {
            let aside = files::set_aside(&path).map_err(RegisterError::file(&path))?;
            tracing::error!(%error, path = %aside.display(), "the register is damaged: it is set aside and written again from the store");
            Ok(None)
        }
    }
}

/// Reads the mark. An unreadable one counts as missing, and is written again.
fn read_mark(folder: &Path) -> Result<StoreMark, RegisterError> {
    let path = folder.join(MARK);
    match fs::read(&path) {
        Ok(bytes) => Ok(checked::from_bytes(&bytes).unwrap_or_else(|error| {
            tracing::error!(%error, path = %path.display(), "the mark is damaged: whether the store was set back is unknown");
            StoreMark::default()
        })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(StoreMark::default()),
        Err(error) => Err(RegisterError::file(path)(error)),
    }
}

/// Writes the mark beside the register: how far the store is.
///
/// # Errors
/// If the store cannot be read, or the file cannot be written.
pub async fn write_mark(folder: &Path, store: &Store) -> Result<(), RegisterError> {
    let (path, mark) = (folder.join(MARK), register::mark(store.read()).await?);
    let text = checked::to_text(&mark).unwrap_or_default();
    files::write_atomically(&path, text.as_bytes(), files::SECRET_MODE).map_err(RegisterError::file(path))
}

/// Writes the register once, without a console.
///
/// # Errors
/// If the register or the store cannot be used.
pub async fn keep(folder: &Path, store: &Store) -> Result<(), RegisterError> {
    RegisterWriter::new(folder).refresh(store).await
}

/// Writes the register whenever it has changed.
#[derive(Debug)]
pub(super) struct RegisterWriter {
    path: PathBuf,
    written: Option<(Marks, Instant)>,
}

impl RegisterWriter {
    /// Creates the writer of the console in this folder.
    pub(super) fn new(folder: &Path) -> Self {
        Self { path: folder.join(FILE), written: None }
    }

    /// Writes the register if it may have changed, unless it was just written; a later call does so then.
    pub(super) async fn refresh(&mut self, store: &Store) -> Result<(), RegisterError> {
        let marks = register::marks(store.read()).await?;
        let is_early =
            |of: &Marks, at: &Instant| !marks.revokes_more_than(of) && at.elapsed() < marks.pause(PAUSE_FOR_EACH);
        if self.written.as_ref().is_some_and(|(of, at)| *of == marks || is_early(of, at)) {
            return Ok(());
        }
        register::next_seq(store.write()).await?;
        let register = register::read(store.read()).await?;
        store.make_room_for(FILE_MAX_BYTES);
        let text = checked::to_text(&register).map_err(|error| RegisterError::file(&self.path)(error.into()))?;
        files::write_atomically(&self.path, text.as_bytes(), files::SECRET_MODE)
            .map_err(RegisterError::file(&self.path))?;
        self.written = Some((marks, Instant::now()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use muster_base::clock::now_ms;
    use muster_topics::name::HostId;

    use super::*;
    use crate::{
        store::{host, tests::temporary},
        testing::{Fixture, admin, join_request},
    };

    #[tokio::test]
    async fn lost_store_recovers_members_and_revocations() {
        let fixture = Fixture::new().await;
        let (one, two) = (fixture.member("one").await.id, fixture.member("two").await.id);
        let store = &fixture.shared().store;
        revoke(store, two, 77).await;
        let (folder, lost) = temporary().await;
        fs::create_dir(folder.path().join("authority")).unwrap();
        restore(folder.path(), &lost, 99).await.unwrap();
        assert!(register::marks(lost.read()).await.unwrap().is_empty(), "there is no register yet");

        RegisterWriter::new(folder.path()).refresh(store).await.unwrap();
        restore(folder.path(), &lost, 99).await.unwrap();
        let (back, was) = (register::read(lost.read()).await.unwrap(), register::read(store.read()).await.unwrap());
        // Tokens are not restored, so none is marked as ended.
        assert_eq!(Register { ended: was.ended.clone(), ..back }, was);
        let listed = host::list(lost.read(), None).await.unwrap();
        let ends = |id: HostId| listed.iter().find(|host| host.id == id).unwrap().certificate_expires_ms;
        assert!(ends(one) > 0);
        assert_eq!(ends(two), 0);
        // It has members now, and its revocations stay.
        revoke(&lost, one, 78).await;
        restore(folder.path(), &lost, 99).await.unwrap();
        assert_eq!(host::list(lost.read(), Some(one)).await.unwrap()[0].certificate_expires_ms, 0);
    }

    async fn revoke(store: &Store, host: HostId, now: Millis) {
        let mut db = store.begin().await.unwrap();
        assert!(host::revoke(&mut db, host, now).await.unwrap().is_some());
        db.commit().await.unwrap();
    }

    /// Copies a store as a backup does.
    async fn copy(store: &Store, name: &str, folder: &Path) -> PathBuf {
        let path = folder.join(name);
        sqlx::query("VACUUM INTO $1").bind(path.to_str().unwrap()).execute(store.write()).await.unwrap();
        path
    }

    #[tokio::test]
    async fn restored_older_store_keeps_revocations_and_alerts() {
        let fixture = Fixture::new().await;
        let (stolen, gone) = (fixture.member("stolen").await.id, fixture.member("gone").await.id);
        let unused = fixture.token().await.secret;
        let store = &fixture.shared().store;
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("authority")).unwrap();
        let mut keeper = RegisterWriter::new(folder.path());
        keeper.refresh(store).await.unwrap();
        write_mark(folder.path(), store).await.unwrap();
        let backup = copy(store, "backup.db", folder.path()).await;

        // A copy from which nothing is missing is not older.
        let same = Store::open(&copy(store, "same.db", folder.path()).await).await.unwrap();
        restore(folder.path(), &same, now_ms()).await.unwrap();
        let alerts = async |store: &Store| {
            let which = store::alert::Which { limit: 9, ..Default::default() };
            store::alert::list(store.read(), which, now_ms()).await.unwrap()
        };
        assert_eq!(alerts(&same).await.len(), 0);

        fixture.console.revoke_host(&admin(), "stolen").await.unwrap();
        fixture.console.remove_host(&admin(), "gone").await.unwrap();
        let request = join_request(&unused, HostId::random(), "new", &rcgen::KeyPair::generate().unwrap());
        let joined = fixture.client(None).post(fixture.hosts_url("/v1/join")).json(&request).send().await.unwrap();
        assert!(joined.status().is_success());
        keeper.written = None;
        keeper.refresh(store).await.unwrap();

        let old = Store::open(&backup).await.unwrap();
        assert_eq!(host::revoked(old.read()).await.unwrap().len(), 0);
        restore(folder.path(), &old, now_ms()).await.unwrap();
        let revoked = host::revoked(old.read()).await.unwrap();
        assert_eq!(revoked.into_iter().collect::<Vec<_>>(), [stolen]);
        let hosts = host::list(old.read(), None).await.unwrap();
        assert!(hosts.iter().any(|host| host.hostname == "new") && hosts.iter().all(|host| host.id != gone));
        let mut db = old.begin().await.unwrap();
        let secret = muster_topics::name::Digest::of(unused.as_bytes());
        assert!(!store::token::consume(&mut db, &secret, HostId::random(), now_ms()).await.unwrap(), "it was used up");
        drop(db);
        let shown = alerts(&old).await;
        assert_eq!((shown[0].host, shown[0].hostname.as_str()), (store::alert::CONSOLE, "console"));
        assert!(
            shown[0]
                .alert
                .diagnostic
                .cause
                .contains("1 revoked certificates, 1 hosts that had joined, 1 that were removed")
        );
        // From here on it is not older any more.
        let mark = register::mark(old.read()).await.unwrap();
        assert!(!mark.is_before(read_mark(folder.path()).unwrap()));
    }

    #[tokio::test]
    async fn restored_console_merges_the_replaced_register() {
        let fixture = Fixture::new().await;
        let (stolen, late) = (fixture.member("stolen").await.id, "late");
        let store = &fixture.shared().store;
        let (old, replaced) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for folder in [&old, &replaced] {
            fs::create_dir(folder.path().join("authority")).unwrap();
        }
        // The backup: register and store together.
        RegisterWriter::new(old.path()).refresh(store).await.unwrap();
        write_mark(old.path(), store).await.unwrap();
        let backup = copy(store, "backup.db", old.path()).await;
        // What came after it.
        fixture.console.revoke_host(&admin(), "stolen").await.unwrap();
        let late = fixture.member(late).await.id;
        store.set_signed_ms(now_ms() + 1_000).await.unwrap();
        RegisterWriter::new(replaced.path()).refresh(store).await.unwrap();
        write_mark(replaced.path(), store).await.unwrap();

        let alerts = async |store: &Store| {
            let which = store::alert::Which { limit: 9, ..Default::default() };
            store::alert::list(store.read(), which, now_ms()).await.unwrap()
        };
        let mark = RestoredMark { fleet: muster_topics::name::Digest::of(b"root"), taken_ms: 5, restored_ms: 9 };
        for register in ["whole", "damaged", "missing"] {
            let restored = Store::open(&copy(&Store::open(&backup).await.unwrap(), register, old.path()).await).await;
            let restored = restored.unwrap();
            restore(old.path(), &restored, now_ms()).await.unwrap();
            assert_eq!(alerts(&restored).await.len(), 0, "nothing tells that both are older");
            mark.write(old.path()).unwrap();
            let from = replaced.path().join(FILE);
            match register {
                "whole" => {
                    fs::copy(from, restored_mark::replaced_register(old.path())).unwrap();
                    fs::copy(replaced.path().join(MARK), restored_mark::replaced_mark(old.path())).unwrap();
                }
                "damaged" => fs::write(restored_mark::replaced_register(old.path()), "{").unwrap(),
                _ => {}
            }
            restore(old.path(), &restored, now_ms()).await.unwrap();
            let shown = alerts(&restored).await;
            assert_eq!((shown.len(), shown[0].alert.rule.as_str()), (1, alert::RESTORED));
            let words = match register {
                "whole" => "1 revoked certificates, 1 hosts that had joined",
                "damaged" => "is damaged",
                _ => "there was no folder to replace",
            };
            assert!(shown[0].alert.diagnostic.cause.contains(words), "{register}: {}", shown[0].alert.diagnostic);
            let revoked = host::revoked(restored.read()).await.unwrap();
            let hosts = host::list(restored.read(), None).await.unwrap();
            assert_eq!(revoked.contains(&stolen), register == "whole");
            assert_eq!(hosts.iter().any(|host| host.id == late), register == "whole");
            assert_eq!(restored.signed_ms().await.unwrap() == store.signed_ms().await.unwrap(), register == "whole");
            assert_eq!(register::restored(restored.read()).await.unwrap(), Some((5, 9)));
            // It is done once.
            assert_eq!(RestoredMark::read(old.path(), 0).unwrap(), None);
            // The register of the next case is that of the backup again.
            let again = Store::open(&backup).await.unwrap();
            fs::remove_file(old.path().join(FILE)).unwrap();
            fs::remove_file(old.path().join(MARK)).unwrap();
            RegisterWriter::new(old.path()).refresh(&again).await.unwrap();
            write_mark(old.path(), &again).await.unwrap();
        }
    }

    #[tokio::test]
    async fn store_missing_commands_counts_as_older() {
        let (folder, store) = temporary().await;
        fs::create_dir(folder.path().join("authority")).unwrap();
        RegisterWriter::new(folder.path()).refresh(&store).await.unwrap();
        let fixture = Fixture::new().await;
        fixture.member("h").await;
        let store = &fixture.shared().store;
        RegisterWriter::new(folder.path()).refresh(store).await.unwrap();
        let backup = copy(store, "backup.db", folder.path()).await;
        store.set_signed_ms(now_ms() + 1_000).await.unwrap();
        write_mark(folder.path(), store).await.unwrap();
        let old = Store::open(&backup).await.unwrap();
        restore(folder.path(), &old, now_ms()).await.unwrap();
        let which = store::alert::Which { limit: 9, ..Default::default() };
        assert_eq!(store::alert::list(old.read(), which, now_ms()).await.unwrap().len(), 1);
        // Signed times are not earlier than before.
        assert_eq!(old.signed_ms().await.unwrap(), store.signed_ms().await.unwrap());
    }

    #[tokio::test]
    async fn damaged_register_is_set_aside_if_the_store_has_members() {
        let fixture = Fixture::new().await;
        fixture.member("h").await;
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("authority")).unwrap();
        let store = &fixture.shared().store;
        let is_set_aside = || {
            let entries = fs::read_dir(folder.path().join("authority")).unwrap();
            let mut names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let aside = names.find(|name| name.starts_with("register.json.damaged-"));
            aside.is_some_and(|name| {
                fs::rename(folder.path().join("authority").join(name), folder.path().join("aside")).is_ok()
            })
        };
        let path = folder.path().join(FILE);
        // A changed digit: it would revoke another certificate, or make a host's key unknown.
        RegisterWriter::new(folder.path()).refresh(store).await.unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let at = text.find("serial").unwrap() + 12;
        let digit = if &text[at..=at] == "1" { "2" } else { "1" };
        for damage in [format!("{}{digit}{}", &text[..at], &text[at + 1..]), "{".to_owned(), String::new()] {
            fs::write(&path, damage).unwrap();
            restore(folder.path(), store, now_ms()).await.unwrap();
            assert!(is_set_aside() && !path.exists());
        }
        fs::remove_file(folder.path().join("aside")).unwrap();
        fs::create_dir(&path).unwrap();
        restore(folder.path(), store, now_ms()).await.unwrap();
        assert!(is_set_aside() && !path.exists());
    }

    #[tokio::test]
    async fn damaged_mark_changes_no_date() {
        let (folder, store) = temporary().await;
        let fixture = Fixture::new().await;
        fixture.member("h").await;
        fs::create_dir(folder.path().join("authority")).unwrap();
        let known = &fixture.shared().store;
        RegisterWriter::new(folder.path()).refresh(known).await.unwrap();
        known.set_signed_ms(1_700_000_000_000).await.unwrap();
        write_mark(folder.path(), known).await.unwrap();
        let path = folder.path().join(MARK);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("1700000000000", "9700000000000")).unwrap();
        restore(folder.path(), &store, now_ms()).await.unwrap();
        assert_eq!(store.signed_ms().await.unwrap(), 0);
        fs::write(&path, text).unwrap();
        restore(folder.path(), &store, now_ms()).await.unwrap();
        assert_eq!(store.signed_ms().await.unwrap(), 1_700_000_000_000);
    }

    #[tokio::test]
    async fn lost_store_with_members_raises_an_alert() {
        let fixture = Fixture::new().await;
        let (folder, empty) = temporary().await;
        fs::create_dir(folder.path().join("authority")).unwrap();
        let alerts = async |store: &Store| {
            let which = store::alert::Which { limit: 9, ..Default::default() };
            store::alert::list(store.read(), which, now_ms()).await.unwrap()
        };
        RegisterWriter::new(folder.path()).refresh(&empty).await.unwrap();
        restore(folder.path(), &empty, now_ms()).await.unwrap();
        assert_eq!(alerts(&empty).await.len(), 0, "nobody was ever in it");
        fixture.member("h").await;
        RegisterWriter::new(folder.path()).refresh(&fixture.shared().store).await.unwrap();
        restore(folder.path(), &empty, now_ms()).await.unwrap();
        let shown = alerts(&empty).await;
        assert!(shown[0].alert.diagnostic.cause.contains("console.db is lost"), "{}", shown[0].alert.diagnostic);
    }

    #[tokio::test]
    async fn damaged_register_stops_a_new_store() {
        let (folder, store) = temporary().await;
        fs::create_dir(folder.path().join("authority")).unwrap();
        for text in [
            "",
            "{}",
            r#"{"hosts": [{"id": "x", "hostname": "h", "facts": "{}", "joined_ms": 1}], "certificates": [], "issued": []}"#,
        ] {
            fs::write(folder.path().join(FILE), text).unwrap();
            let error = restore(folder.path(), &store, 99).await.unwrap_err();
            let hint = Diagnostic::of(&error).hint;
            assert!(matches!(error, RegisterError::Damaged { .. }) && hint.is_some(), "{error}");
            assert!(register::marks(store.read()).await.unwrap().is_empty());
        }
    }
}

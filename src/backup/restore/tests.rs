use std::mem::MaybeUninit;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

use super::*;
use crate::archive::{FORMAT, tests};

const PEM: &str = "-----BEGIN CERTIFICATE-----\ncm9vdA==\n-----END CERTIFICATE-----\n";
const NOW: Millis = 1_800_000_000_000;

struct Case {
    home: tempfile::TempDir,
    key: PrivateKey,
}

impl Case {
    fn new() -> Self {
        let case = Self { home: tempfile::tempdir().unwrap(), key: PrivateKey::generate().unwrap() };
        case.write_backup(&[("authority/authority.pem", PEM), ("authority/signing.key", "s"), ("console.db", "new")]);
        case
    }

    fn write_backup(&self, files: &[(&str, &str)]) {
        let files: Vec<_> =
            files.iter().map(|(path, content)| ((*path).to_owned(), content.as_bytes().to_vec())).collect();
        let file = tests::backup(&self.key, &tests::sample(FORMAT), &files);
        fs::write(self.home.path().join("backup"), file).unwrap();
    }

    fn at(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn restore(&self, replace: bool) -> Result<Restored, BackupError> {
        let (file, folder) = (self.at("backup"), self.at("console"));
        let keys = [self.key.clone()];
        restore(&RestoreRequest { file: &file, keys: &keys, folder: &folder, replace, now: NOW }, &mut |_, _| ())
    }

    /// A console's folder with some data.
    fn with_folder(self, pem: &str) -> Self {
        fs::create_dir_all(self.at("console/authority")).unwrap();
        fs::write(self.at("console/authority/authority.pem"), pem).unwrap();
        fs::write(self.at("console/authority/register.json"), "register").unwrap();
        fs::write(self.at("console/console.db"), "old").unwrap();
        fs::write(self.at("console/lock"), "").unwrap();
        fs::create_dir(self.at("console/artifacts")).unwrap();
        fs::write(self.at("console/artifacts/abc"), "artifact").unwrap();
        self
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.home.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn store(&self, folder: &str) -> String {
        fs::read_to_string(self.at(folder).join("console.db")).unwrap()
    }
}

#[test]
fn new_and_empty_folders_are_filled() {
    for make in [false, true] {
        let case = Case::new();
        if make {
            fs::create_dir(case.at("console")).unwrap();
        }
        let restored = case.restore(false).unwrap();
        assert_eq!((restored.aside, restored.merges_register), (None, false));
        assert_eq!(
            (case.store("console").as_str(), case.names()),
            ("new", vec!["backup".to_owned(), "console".to_owned()])
        );
        let mark = RestoredMark::read(&case.at("console"), 0).unwrap().unwrap();
        assert_eq!((mark.taken_ms, mark.restored_ms), (1_700_000_000_000, NOW));
        assert!(!restored_mark::is_unfinished(&case.at("console")));
        RestoredMark::remove(&case.at("console")).unwrap();
        assert_eq!(RestoredMark::read(&case.at("console"), 0).unwrap(), None);
    }
}

#[test]
fn replaced_folder_is_kept_with_its_register() {
    let case = Case::new().with_folder(PEM);
    assert!(matches!(case.restore(false), Err(BackupError::NotEmpty { .. })));
    assert_eq!(case.store("console"), "old");
    let restored = case.restore(true).unwrap();
    let aside = case.at(&format!("console.replaced-{NOW}"));
    assert_eq!((restored.aside.as_ref(), restored.merges_register), (Some(&aside), true));
    assert_eq!(
        (case.store("console"), fs::read_to_string(aside.join("console.db")).unwrap()),
        ("new".into(), "old".into())
    );
    assert_eq!(fs::read(restored_mark::replaced_register(&case.at("console"))).unwrap(), b"register");
    assert_eq!(fs::read(case.at("console/artifacts/abc")).unwrap(), b"artifact");
    // Once more, before a console was started: the register of the first folder counts.
    case.restore(true).unwrap();
    assert_eq!(fs::read(restored_mark::replaced_register(&case.at("console"))).unwrap(), b"register");
}

#[test]
fn folder_of_another_fleet_is_not_replaced() {
    let other = PEM.replace("cm9vdA==", "b3RoZXI=");
    let case = Case::new().with_folder(&other);
    let error = case.restore(true).unwrap_err();
    assert!(matches!(error, BackupError::OtherFleet { .. }), "{error}");
    assert_eq!(
        (case.store("console").as_str(), case.names()),
        ("old", vec!["backup".to_owned(), "console".to_owned()])
    );
    // While one root replaces the other, both belong to the fleet.
    let case = Case::new().with_folder(&format!("{other}{PEM}"));
    case.restore(true).unwrap();
}

#[test]
fn folder_in_use_is_refused() {
    let case = Case::new().with_folder(PEM);
    let lock = File::open(case.at("console/lock")).unwrap();
    lock.lock().unwrap();
    for replace in [false, true] {
        assert!(matches!(case.restore(replace), Err(BackupError::InUse { .. })));
    }
    drop(lock);
    fs::create_dir(case.at("console.restoring")).unwrap();
    fs::write(restored_mark::unfinished(&case.at("console.restoring")), "").unwrap();
    let lock = File::create(case.at("console.restoring/lock")).unwrap();
    lock.lock().unwrap();
    assert!(matches!(case.restore(true), Err(BackupError::Busy { .. })));
    drop(lock);
    case.restore(true).unwrap();
}

#[test]
fn failed_restore_changes_nothing() {
    let case = Case::new().with_folder(PEM);
    let whole = fs::read(case.at("backup")).unwrap();
    let mut changed = whole.clone();
    let middle = whole.len() / 2;
    changed[middle] ^= 1;
    for bad in [&whole[..whole.len() - 1], &changed, b"nonsense", b""] {
        fs::write(case.at("backup"), bad).unwrap();
        assert!(case.restore(true).is_err());
        assert_eq!((case.store("console").as_str(), case.names().len()), ("old", 2));
    }
    case.write_backup(&[("authority/authority.pem", PEM)]);
    assert!(matches!(case.restore(true), Err(BackupError::Damaged(_))));
    case.write_backup(&[("authority/authority.pem", "another"), ("console.db", "x")]);
    assert!(matches!(case.restore(true), Err(BackupError::Damaged(_))));
    fs::create_dir(case.at("console.restoring")).unwrap();
    fs::write(case.at("console.restoring/precious"), "x").unwrap();
    assert!(matches!(case.restore(true), Err(BackupError::Target { .. })));
    assert!(case.at("console.restoring/precious").exists());
}

#[test]
fn folder_that_is_a_file_is_refused() {
    let case = Case::new();
    fs::write(case.at("console"), "x").unwrap();
    assert!(matches!(case.restore(true), Err(BackupError::Target { .. })));
}

#[test]
fn full_disk_is_noticed_before_anything_is_written() {
    let case = Case::new();
    let mut manifest = tests::sample(FORMAT);
    manifest.parts[0].bytes = u64::MAX;
    fs::write(case.at("backup"), tests::backup(&case.key, &manifest, &[])).unwrap();
    let told = case.restore(false).unwrap_err().diagnostic();
    assert!(told.hint.as_ref().is_some_and(|hint| hint.starts_with("free space")), "{told}");
    assert_eq!(case.names(), ["backup"]);
}

/// What appears in the folder beside and goes from it, in this order, while something is done.
fn changes(case: &Case, work: impl FnOnce()) -> Vec<(String, bool)> {
    fs::create_dir(case.at("console.restoring")).unwrap();
    let events = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
    let flags = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::MOVED_FROM | WatchFlags::DELETE;
    inotify::add_watch(&events, case.at("console.restoring"), flags).unwrap();
    work();
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(&events, &mut buffer);
    let mut found = Vec::new();
    while let Ok(event) = reader.next() {
        if let Some(name) = event.file_name() {
            let is_there = event.events().intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
            found.push((name.to_str().unwrap().to_owned(), is_there));
        }
    }
    found
}

#[test]
fn folder_beside_is_marked_before_anything_else_and_after_all() {
    let case = Case::new().with_folder(PEM);
    let made = changes(&case, || drop(case.restore(true).unwrap()));
    assert_eq!(made[0], ("restore.unfinished".to_owned(), true), "{made:?}");
    // A failed one is removed, and may be interrupted by that, too.
    let case = Case::new().with_folder(PEM);
    case.write_backup(&[("authority/authority.pem", "another"), ("console.db", "x")]);
    let made = changes(&case, || drop(case.restore(true).unwrap_err()));
    assert_eq!(made[0], ("restore.unfinished".to_owned(), true), "{made:?}");
    assert_eq!(made.last().unwrap(), &("restore.unfinished".to_owned(), false), "{made:?}");
    assert!(made.len() > 4, "{made:?}");
    // What lies in it, as of a power cut, is replaced.
    for text in ["", "a restore"] {
        let case = Case::new().with_folder(PEM);
        fs::create_dir(case.at("console.restoring")).unwrap();
        fs::write(restored_mark::unfinished(&case.at("console.restoring")), text).unwrap();
        fs::write(case.at("console.restoring/console.db"), "half").unwrap();
        case.restore(true).unwrap();
        assert_eq!(case.store("console"), "new");
    }
}

#[test]
fn restore_that_had_only_its_answer_left_is_answered_by_the_next() {
    let case = Case::new();
    case.restore(false).unwrap();
    let again = case.restore(false).unwrap();
    assert!(again.sums.is_none() && again.aside.is_none());
    assert_eq!(case.names(), ["backup", "console"]);
    // Once a console was started, it has data of its own.
    RestoredMark::remove(&case.at("console")).unwrap();
    assert!(matches!(case.restore(false), Err(BackupError::NotEmpty { .. })));
}

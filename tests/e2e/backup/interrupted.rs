//! A restore that is killed at each of its steps leaves the folder as it was, or as it is wanted, and is finished by the
//! same command.

use std::{collections::BTreeSet, fs, os::unix::process::ExitStatusExt, path::Path, process::Output};

use super::{make_key, restore, roles};
use crate::fleet::Home;

/// What tells the backed up folder from the one that it replaces.
fn is_old(folder: &Path) -> bool {
    folder.join("old").exists()
}

fn names(home: &Home) -> BTreeSet<String> {
    let entries = fs::read_dir(home.path()).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("console"))
        .collect()
}

/// Runs the restore, which is killed at a place.
fn run(home: &Home, crash: Option<&str>, name: &str) -> Output {
    let mut command = home.command();
    command.args(["backup", "restore", "one.tar.age", "--identity", "key.txt", "--replace"]);
    command.args(["--data-dir", name]).env("MUSTER_TEST_PLACES", home.path().join("places"));
    if let Some(crash) = crash {
        command.env("MUSTER_TEST_CRASH", format!("{crash}:1"));
    }
    command.output().unwrap()
}

#[test]
fn killed_restore_is_finished_by_the_next() {
    let mut roles = roles("every_hours = 0");
    roles.ok(&["backup", "create", "--out", "one.tar.age"]);
    roles.stop_console();
    let home = roles.home.path().to_owned();
    let (folder, places) = (home.join("console"), home.join("places"));
    assert!(run(&roles.home, None, "elsewhere").status.success());
    let text = fs::read_to_string(&places).unwrap();
    let places: BTreeSet<&str> = text.lines().collect();
    assert!(places.len() >= 6 && places.contains("restore/after it is put in place"), "{places:?}");

    for place in places {
        for is_new in [false, true] {
            for name in names(&roles.home) {
                if name != "console" && name != "console.toml" {
                    fs::remove_dir_all(home.join(name)).unwrap();
                }
            }
            match is_new {
                true => fs::remove_dir_all(&folder).unwrap(),
                false => fs::write(folder.join("old"), "").unwrap(),
            }
            let killed = run(&roles.home, Some(place), "console");
            assert_eq!(killed.status.signal(), Some(9), "{place}");
            let is_there = folder.join("console.db").exists();
            assert!(is_there || is_new, "{place}: nothing is there");
            let is_in_place = is_there && (is_new || !is_old(&folder));
            let config = home.join("console.toml");
            if is_in_place && folder.join("restore.unfinished").exists() {
                // It is whole, but the command has not said so.
                let refused = roles.try_console().unwrap_err();
                assert!(refused.contains("was interrupted") && refused.contains("hint: "), "{place}: {refused}");
            }
            let again = run(&roles.home, None, "console");
            let said = String::from_utf8_lossy(&again.stderr);
            assert!(again.status.success(), "{place}: {said}");
            assert!(!is_old(&folder) && folder.join("restored.json").exists(), "{place}");
            assert!(!folder.join("restore.unfinished").exists() && !home.join("console.restoring").exists(), "{place}");
            let aside: Vec<_> = names(&roles.home).into_iter().filter(|name| name.contains(".replaced-")).collect();
            assert!(is_new || aside.iter().any(|name| is_old(&home.join(name))), "{place}: {aside:?}");
            assert!(config.exists());
        }
    }
    roles.start_console();
    roles.ok(&["host", "ls"]);
    // Keys are made once for each name.
    make_key(&roles.home, "other.txt");
    roles.home.muster(&["backup", "create-key", "--out", "other.txt"]).expect_code(2).expect_stderr("other.txt");
    restore(&roles, &[]).expect_code(1).expect_stderr("a console uses");
}

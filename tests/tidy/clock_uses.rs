//! The table of all readings of the wall clock, `clock_uses.txt`: a reading without a row fails.

use std::{collections::BTreeMap, fs, path::Path};

use super::{counted, differences, sources};

/// What a reading of the clock may be for. None of them ends or removes anything for good: that goes by the time that has
/// certainly come.
const KINDS: [&str; 5] = ["stamp", "wait", "refuse", "cache", "mend"];

/// The kinds that decide what is done. A wrong clock may delay it, and takes nothing away.
const DECIDES: [&str; 3] = ["wait", "refuse", "cache"];

/// Short-lived programs of people, which show ages and dates.
const SHOWN: [&str; 2] = ["src/cli", "src/doctor"];

const READINGS: [&str; 6] =
    ["SystemTime::now", "OffsetDateTime::now_utc", "Timestamp::now", "Zoned::now", "UnixTime::now", "clock::now_ms"];

/// Counts the readings of a line of code.
fn readings(line: &str) -> usize {
    let line = line.trim_start();
    let is_import = line.starts_with("use ") || line.starts_with("pub use ") || line == "clock::now_ms,";
    if line.starts_with("//") || is_import {
        return 0;
    }
    let named: usize = READINGS.iter().map(|reading| line.matches(reading).count()).sum();
    let bare = line.match_indices("now_ms()").filter(|(at, _)| {
        let before = line[..*at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | ':')) && !line[..*at].ends_with("fn ")
    });
    named + bare.count()
}

/// The files that read the clock, with the number of readings.
fn found() -> BTreeMap<String, usize> {
    let mut found = counted(readings);
    found.retain(|path, _| !SHOWN.iter().any(|shown| Path::new(path).starts_with(shown)));
    found
}

/// All code, tests included.
fn all_code() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut folders, mut all) = (vec![root.join("src"), root.join("broker"), root.join("tests")], String::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                all.push_str(&fs::read_to_string(&path).unwrap());
            }
        }
    }
    all
}

#[test]
fn every_reading_of_the_clock_has_a_row() {
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tidy/clock_uses.txt");
    let text = fs::read_to_string(table).unwrap();
    let tests = all_code();
    let mut rows = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let (path, count, kinds, what, held) = match cells[..] {
            [path, count, kinds, what] => (path, count, kinds, what, None),
            [path, count, kinds, what, held] => (path, count, kinds, what, Some(held)),
            _ => panic!("a row has four cells, or five: {line}"),
        };
        let decides = kinds.split(' ').any(|kind| DECIDES.contains(&kind));
        assert_eq!(decides, held.is_some(), "{path}: only what decides something has a test that sets the clock");
        if let Some(test) = held.filter(|held| !held.starts_with("- ")) {
            assert!(tests.contains(&format!("fn {test}(")), "{path}: there is no test {test}");
        }
        assert!(kinds.split(' ').all(|kind| KINDS.contains(&kind)), "{path}: {kinds:?} is not of {KINDS:?}");
        assert!(!what.is_empty(), "{path}: what for?");
        rows.insert(path.to_owned(), count.parse::<usize>().unwrap());
    }
    let found = found();
    let (wrong, stale) = differences(&found, &rows, "readings of the clock");
    assert!(
        wrong.is_empty() && stale.is_empty(),
        "say in tests/tidy/clock_uses.txt what each reading of the clock is for; what ends or removes something for good asks \
         for the time that has certainly come instead (src/rules/certain_time.rs):\n{}\nrows without a file: {stale:?}",
        wrong.join("\n")
    );
}

#[test]
fn what_removes_for_good_is_not_given_the_clock() {
    const REMOVES: [&str; 7] = ["sweep", "trim", "prune", "forget", "revoked", "end_own", "due"];
    // What no unit needs is fetched again.
    const AGAIN: [&str; 2] = ["src/agent/unit/yuno.rs", "src/agent/unit/owed.rs"];
    let mut wrong = Vec::new();
    for (path, code) in ["src", "broker/src"].into_iter().flat_map(sources) {
        if AGAIN.iter().chain(&SHOWN).any(|allowed| path.starts_with(allowed)) {
            continue;
        }
        let calls = |line: &str| {
            let is_call =
                |before: &str| !before.ends_with(|c: char| c.is_alphanumeric() || c == '_') && !before.ends_with("fn ");
            REMOVES.iter().any(|name| line.match_indices(&format!("{name}(")).any(|(at, _)| is_call(&line[..at])))
        };
        let lines = code.lines().filter(|line| calls(line) && readings(line) > 0);
        wrong.extend(lines.map(|line| format!("{}: {}", path.display(), line.trim())));
    }
    assert!(wrong.is_empty(), "these ask for the time that has certainly come:\n{}", wrong.join("\n"));
}

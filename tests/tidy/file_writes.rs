//! The table of everything that writes files, `file_writes.txt`: a writer without a row fails.

use std::{collections::BTreeMap, fs, path::Path};

use super::{counted, differences};

/// How a file is written.
const KINDS: [&str; 8] = ["whole", "log", "store", "lock", "aside", "kernel", "host", "person"];

/// What creates a file, opens one for writing, or gives one its name.
const WRITES: [&str; 17] = [
    "write_atomically(",
    "files::replace(",
    "fs::write(",
    "File::create(",
    "File::create_new(",
    "OpenOptions::new()",
    "OFlags::CREATE",
    "OFlags::WRONLY",
    "OFlags::RDWR",
    "SqliteConnectOptions::new",
    "fs::rename(",
    "renameat(",
    "renameat_with(",
    "fs::copy(",
    "symlink(",
    "symlinkat(",
    "hard_link(",
];

/// Counts the writes in a line of code.
fn writes(line: &str) -> usize {
    let line = line.trim_start();
    if line.starts_with("//") || line.starts_with("use ") || line.contains("pub fn ") {
        return 0;
    }
    let calls = |word: &&str| {
        let is_whole = |(at, _): &(usize, &str)| !line[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        line.match_indices(*word).filter(is_whole).count()
    };
    WRITES.iter().map(calls).sum()
}

#[test]
fn every_writer_of_files_has_a_row() {
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tidy/file_writes.txt");
    let text = fs::read_to_string(table).unwrap();
    let mut rows = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [path, count, kinds, what] = cells[..] else { panic!("a row has four cells: {line}") };
        assert!(kinds.split(' ').all(|kind| KINDS.contains(&kind)), "{path}: {kinds:?} is not of {KINDS:?}");
        assert!(!what.is_empty(), "{path}: what for?");
        assert_eq!(rows.insert(path.to_owned(), count.parse::<usize>().unwrap()), None, "{path} has two rows");
    }
    let found = counted(writes);
    let (wrong, stale) = differences(&found, &rows, "places that write files");
    assert!(
        wrong.is_empty() && stale.is_empty(),
        "say in tests/tidy/file_writes.txt how each place writes; a role's own file is written whole by \
         src/base/files.rs, and has a row in tests/e2e/stores.rs:\n{}\nrows without a file: {stale:?}",
        wrong.join("\n")
    );
}

//! All that a user reads of the command line, held by files: the exit code, standard output and standard error of every
//! verb, used as usual and wrongly. A change of what the program says shows as a difference of these files.
//!
//! - `table.rs`: the rows of `table/*.txt`, in the order in which they are run
//! - `files.rs`: the files that the rows name
//! - `stage.rs`: a fleet for the rows: `muster up`, and hosts that are simulated
//! - `filter.rs`: what varies from run to run, and the words that stand in its place
//!
//! The help of verbs and options is not held here: `docs/reference/cli.md` has all of it, compared with the grammar by a
//! test. Only what that page does not have is: how `muster --help` is laid out, and what a noun answers that has no verb. What
//! the console's pages say is held by `src/console/web/tests/reading.rs`.
//!
//! Rows run one after the other. What a row needs is waited for, by the verbs themselves or by a row that says so.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[path = "../fleet/mod.rs"]
mod fleet;

mod files;
mod filter;
mod stage;
mod table;

use std::{collections::BTreeSet, fs, path::Path};

use muster_test_support::snapshots::Snapshots;

use crate::{
    stage::Stage,
    table::{Row, Step, Use},
};

/// What writes the files anew.
const COMMAND: &str = "cargo test -p muster --test snapshots";

/// Verbs without a row, with the reason.
const WITHOUT: &[(&str, Use, &str)] = &[
    ("doctor", Use::Usual, "it says what this machine is like"),
    ("rollout retry", Use::Usual, CHANCE),
    ("rollout release", Use::Usual, CHANCE),
    ("unit create container", Use::Usual, RUNTIME),
    ("unit create files", Use::Usual, DOCUMENT),
    ("unit create packages", Use::Usual, DOCUMENT),
    ("unit exec", Use::Usual, RUNTIME),
    ("container clone", Use::Usual, RUNTIME),
    ("container adopt", Use::Usual, RUNTIME),
];

/// Why a verb of containers is not used as usual.
const RUNTIME: &str = "it takes a container runtime; tests/e2e/containers has some";

/// Why what creates some units is not used as usual.
const DOCUMENT: &str = "it only says that a document is wanted";

/// Why a verb for hosts that failed is not used as usual.
const CHANCE: &str = "it takes a host that has failed; tests/e2e/rollouts.rs has some";

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn every_verb_says_what_its_snapshots_hold() {
    let mut snapshots = Snapshots::of(&top().join("tests/snapshots/verbs"), COMMAND);
    let mut stage = Stage::new();
    let mut surprises = Vec::new();
    for step in table::steps() {
        let Some(row) = stage.perform(&step) else { continue };
        snapshots.check(&row.name, &row.text);
        surprises.extend(row.surprise);
    }
    drop(stage);
    assert!(surprises.is_empty(), "exit codes that no row of this kind has:\n{}", surprises.join("\n"));
    snapshots.finish();
}

/// The verbs that there are, as the reference page has them, which a test compares with the grammar; and whether each does
/// something by itself.
fn verbs() -> Vec<(String, bool)> {
    let page = fs::read_to_string(top().join("docs/reference/cli.md")).unwrap();
    let sections = page.split("\n## `muster ").skip(1);
    let verbs = sections.map(|section| {
        let (name, text) = section.split_once('`').unwrap();
        let usage = text.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
        (name.to_owned(), usage.trim() != format!("muster {name} <COMMAND>"))
    });
    verbs.collect()
}

#[test]
fn every_verb_has_a_usual_and_a_wrong_row() {
    let verbs = verbs();
    assert!(verbs.len() > 100, "verbs of the reference page: {verbs:?}");
    let (mut found, mut faults) = (BTreeSet::new(), Vec::new());
    for row in table::steps().iter().filter_map(Step::row) {
        match verb_of(row, &verbs) {
            Some(verb) => drop(found.insert((verb, row.of))),
            None => faults.push(format!("{}: its name begins with no verb's", row.name)),
        }
    }
    let is_excepted = |verb: &str, of: Use| WITHOUT.iter().any(|(name, kind, _)| *name == verb && *kind == of);
    for (verb, acts) in &verbs {
        for of in [Use::Usual, Use::Wrong].into_iter().filter(|of| *acts || *of == Use::Wrong) {
            if found.contains(&(verb.as_str(), of)) == is_excepted(verb, of) {
                faults.push(format!("{verb}: {of:?}: a row, or an exception with its reason"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The verb whose use a row is: the one that its line has, with which its name begins.
fn verb_of<'a>(row: &Row, verbs: &'a [(String, bool)]) -> Option<&'a str> {
    // Options of all verbs may stand before the verb.
    let words = row.words.iter().position(|word| verbs.iter().any(|(verb, _)| verb == word)).unwrap_or_default();
    let words = row.words[words..].join(" ") + " ";
    let of_line = |verb: &&str| words.starts_with(&format!("{verb} "));
    let verb = verbs.iter().map(|(verb, _)| verb.as_str()).filter(of_line).max_by_key(|verb| verb.len());
    if row.name == "muster" || row.name.starts_with("muster.") {
        return Some("");
    }
    let verb = verb?;
    let rest = row.name.strip_prefix(&verb.replace(' ', "-"))?;
    (rest.is_empty() || rest.starts_with('.')).then_some(verb)
}

/// The verbs that a text names in backquotes, each up to its first argument.
fn named_verbs(text: &str) -> Vec<Vec<&str>> {
    let is_word =
        |word: &&str| word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-') && !word.starts_with('-');
    let lines = text.split("`muster ").skip(1).filter_map(|rest| rest.split('`').next());
    lines.map(|line| line.split(' ').take_while(is_word).collect()).collect()
}

#[test]
fn named_verbs_exist() {
    let verbs = verbs();
    let find = |name: &str| verbs.iter().find(|(verb, _)| verb == name);
    let exists = |words: &[&str]| match words {
        // `muster --help`, `muster VERB`.
        [] => true,
        [first, rest @ ..] => find(first).is_some_and(|(_, acts)| match rest {
            [second, ..] => *acts || find(&format!("{first} {second}")).is_some(),
            [] => true,
        }),
    };
    let (mut named, mut faults) = (0, Vec::new());
    for folder in ["verbs", "pages"] {
        for entry in fs::read_dir(top().join("tests/snapshots").join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            let all = named_verbs(&text);
            named += all.len();
            faults.extend(
                all.iter().filter(|words| !exists(words)).map(|words| format!("{}: {words:?}", path.display())),
            );
        }
    }
    assert!(named > 100, "{named} verbs are named");
    assert!(faults.is_empty(), "there is no such verb:\n{}", faults.join("\n"));
}

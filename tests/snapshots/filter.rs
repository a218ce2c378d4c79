//! What varies from run to run, and the words that stand in its place. All of it is here.
//!
//! - Values that the stage knows, such as folders and addresses: [`Filter::put`].
//! - Values that are told by their form: [`FORMS`], some of them in rows of some verbs alone.
//! - Hexadecimal digits, except digests of the files of this test.
//! - Lines that come or not, as something is quick or slow: [`LINES`].
//! - What is long, is held elsewhere, and would be changed here by each change there: [`LONG`].
//!
//! Where something was replaced, columns are no longer where they were: there, runs of blanks are as wide as the gap of a
//! table.

use std::sync::LazyLock;

use regex::{Captures, NoExpand, Regex};

use crate::files;

/// What a verb said.
#[derive(Debug)]
pub(crate) struct VerbOutput {
    /// Its exit code; nothing if a signal ended it.
    pub(crate) code: Option<i32>,
    /// What it wrote to standard output.
    pub(crate) stdout: String,
    /// What it wrote to standard error.
    pub(crate) stderr: String,
}

/// Rows, by the beginnings of their names; the form of what varies in them; and what stands in its place.
const FORMS: &[(&str, &str, &str)] = &[
    ("", r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "ID"),
    // The machine's, not the program's.
    ("host-show", r"(?m)^(can do|system|processor|memory|booted) .*$", "$1  THIS"),
    ("host-show", r"(?m)^interface .*\n", ""),
    ("host-ls", r#"(?s)"facts": \{.*?\n {6}\}"#, r#""facts": {}"#),
    ("host-ls host-show", r#"(?s)"capabilities": \[.*?\]"#, r#""capabilities": []"#),
    ("top", r"(?m)^shop-7 .*$", "shop-7  …"),
    ("up", r"(?m)^ +[0-9.]+ m?s  ", "N ms  "),
    ("up login simulate muster context status", r"127\.0\.0\.1:[3-6][0-9]{4}\b", "127.0.0.1:PORT"),
    // What runs so soon, and whether something of this machine is wrong.
    ("status", r"(?m)^(units|alerts|clock) .*$", "$1  THIS"),
    ("ps", r"(?m) +[0-9.]+%( +[0-9.]+ ([KMG]i)?B)?", ""),
    ("ps", r"(?m) +[0-9.]+ ([KMG]i)?B$", ""),
    ("yuno.ls unit-ls", r"\b[0-9]{3,}\b", "PID"),
    ("unit-show", r"(?m)^(pid +)[0-9]+", "${1}PID"),
    // Whether it has been up for long enough yet.
    ("unit-show", r"(?m)^verified .*\n", ""),
    // How often it was told before the last host.
    ("plan", r"(?m)^0 of .* answered\n", ""),
    ("unit-tasks", r"\b[0-9]+\.[0-9] s\b", "N s"),
    ("simulate", r"[0-9.]+ ([KMG]iB|B)\b", "SIZE"),
    ("simulate", r"after [0-9.]+ s", "after N s"),
    ("backup-create backup-ls backup-verify backup-restore", r"[0-9.]+ [KM]iB", "SIZE"),
    ("deployment-sync", r"took [0-9.]+ m?s", "took N ms"),
    // A deployment that was removed may not have left its host yet.
    ("agent-detach", r"(?m)^[0-9]+ units", "N units"),
    // Whichever host asked first, and whether the rollout has looked already.
    ("rollout-show", r"sim-0000[0-9]", "sim-N"),
    ("rollout-resume rollout-promote", r"(running|waits for approval)\n", "STATE\n"),
    // Made by chance.
    ("token-create", r"muster1\.[A-Za-z0-9_-]+", "TOKEN"),
    ("backup-create-key", r"age1[a-z0-9]+", "PUBLIC"),
    ("backup-create-key", r"AGE-SECRET-KEY-1[A-Z0-9]+", "PRIVATE"),
    ("broker-password", r"\$[A-Za-z0-9+/=$.]{20,}", "HASH"),
    // Times.
    ("", r"[0-9]{8}T[0-9]{6}Z", "TIME"),
    ("", r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?Z?", "TIME"),
    ("", r"\b([0-9]+ (s|min|h|d) )+ago\b", "AGE ago"),
    ("", r"\bin [0-9]+ (s|min|h|d)( [0-9]+ (s|min|h))?\b", "in AGE"),
];

/// Lines that are left out: in rows of which verbs, and their form.
const LINES: &[(&str, &str)] = &[
    // What a unit is doing, as often as it was seen to change.
    ("", r"^\S+/\S+: .* …$"),
    // How far a version is on its hosts, as often as it was asked for.
    ("deployment", r"^\S+/\S+ on \S+: changing|^\S+/\S+, version [0-9]+: running|^  [0-9]+ waits?: "),
    // Reports of a time.
    ("simulate", r"^ +[0-9.]+ s  online "),
    // Mounts of this machine that hang.
    ("up", r"^\S+ +WARN .* does not answer "),
];

/// Rows of which the first lines are enough: so many of them, and what holds the rest.
const LONG: &[(&str, usize, &str)] = &[
    ("agent", 4, "docs/reference/configuration.md"),
    ("broker", 4, "docs/reference/configuration.md"),
    ("console", 4, "docs/reference/configuration.md"),
    ("broker-render", 4, "broker/configs"),
    ("deployment-schema", 1, "topics/schema"),
    ("metric-ls", 1, "docs/reference/metrics.md; which series there are so soon varies"),
];

type Form = (&'static str, Regex, &'static str);

static COMPILED: LazyLock<Vec<Form>> =
    LazyLock::new(|| FORMS.iter().map(|(rows, form, word)| (*rows, Regex::new(form).unwrap(), *word)).collect());

static LEFT_OUT: LazyLock<Vec<(&str, Regex)>> =
    LazyLock::new(|| LINES.iter().map(|(rows, form)| (*rows, Regex::new(form).unwrap())).collect());

/// Keys, digests, and ids that are like them.
static HEX: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\b[0-9a-f]{8,}\b").unwrap());

/// The most blanks at the beginning of a line whose columns vary.
const INDENT: usize = 8;

/// Whether a row is one of those that are named by the beginnings of their names; of all, if none is.
fn is_of(rows: &str, row: &str) -> bool {
    rows.is_empty() || rows.split(' ').any(|begin| row.starts_with(begin))
}

/// Replaces what varies.
#[derive(Default)]
pub(crate) struct Filter {
    /// Values that the stage knows, and their words.
    known: Vec<(Regex, String)>,
}

impl Filter {
    /// Has a word stand in the place of a text.
    pub(crate) fn put(&mut self, value: &str, word: &str) {
        self.known.push((Regex::new(&regex::escape(value)).unwrap(), word.to_owned()));
    }

    /// The snapshot of a row: its line, exit code, and what it said.
    pub(crate) fn snapshot(&self, row: &str, line: &str, said: &VerbOutput) -> String {
        let code = said.code.map_or_else(|| "none".to_owned(), |code| code.to_string());
        let mut text = format!("$ {line}\nexit code: {code}\n");
        for (name, printed) in [("stdout", &said.stdout), ("stderr", &said.stderr)] {
            let settled = self.settle(row, printed);
            if !settled.trim().is_empty() {
                text.push_str(&format!("----- {name} -----\n{settled}"));
            }
        }
        text
    }

    /// What was printed, without what varies.
    fn settle(&self, row: &str, printed: &str) -> String {
        let is_kept = |line: &&str| !LEFT_OUT.iter().any(|(rows, form)| is_of(rows, row) && form.is_match(line));
        let mut text: String = printed.lines().filter(is_kept).map(|line| format!("{}\n", line.trim_end())).collect();
        let whole = text.clone();
        for (value, word) in &self.known {
            text = value.replace_all(&text, NoExpand(word)).into_owned();
        }
        for (_, form, word) in COMPILED.iter().filter(|(rows, _, _)| is_of(rows, row)) {
            text = form.replace_all(&text, *word).into_owned();
        }
        let digest = |found: &Captures<'_>| match files::has_digest(&found[0]) {
            true => found[0].to_owned(),
            false => "HEX".to_owned(),
        };
        text = HEX.replace_all(&text, digest).into_owned();
        if text != whole {
            text = text.lines().map(without_columns).collect();
        }
        match LONG.iter().filter(|(_, first, _)| text.lines().count() > *first).find(|(name, _, _)| *name == row) {
            Some((_, first, _)) => text.lines().take(*first).chain(["…"]).map(|line| format!("{line}\n")).collect(),
            None => text,
        }
    }
}

/// A line whose columns are as wide as what stands in them.
fn without_columns(line: &str) -> String {
    let words = line.trim_start_matches(' ');
    let mut text = " ".repeat((line.len() - words.len()).min(INDENT));
    for part in words.split("  ").map(|part| part.trim_matches(' ')).filter(|part| !part.is_empty()) {
        if !text.trim_start().is_empty() {
            text.push_str("  ");
        }
        text.push_str(part);
    }
    text.push('\n');
    text
}

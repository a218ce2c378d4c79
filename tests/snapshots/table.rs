//! The table of what is run: `table/*.txt`, whose lines are of these forms.
//!
//! - `NAME: muster …`: a usual use, which ends with exit code 0. NAME is the verb, with dashes; what follows a dot tells it from
//!   others of the same verb.
//! - `NAME: ! muster …`: a wrong one, which ends with another.
//! - `NAME: stop at 'WORDS': muster …`: a usual one that goes on; once its standard output has the words it is ended as by
//!   Ctrl-C.
//! - `- muster …`: something that has to be done for the next rows, and is not held.
//! - `until WORDS: muster …`: the verb is run until its standard output has these words.
//! - `begin PART`: see [`Part`].
//! - `# …`: a comment.
//!
//! Words are taken as a shell would with single quotes; what is in braces is put in by the stage. `< FILE` at the end is what
//! standard input is read from.

use std::fs;

use crate::top;

/// The files of the table, in their order.
const FILES: [&str; 7] = ["alone", "host", "content", "unit", "deployment", "fleet", "gone"];

/// What kind of use a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Use {
    /// It is done.
    Usual,
    /// It is refused, or fails.
    Wrong,
}

/// Where the rows that follow are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Where there is no console.
    Alone,
    /// Beside a `muster up` with its one host.
    Up,
    /// The same with hosts that are simulated.
    Many,
    /// After that console has ended.
    Gone,
}

/// A verb as it is used.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// What its snapshot is named.
    pub(crate) name: String,
    /// The kind of use.
    pub(crate) of: Use,
    /// The line as the table has it.
    pub(crate) line: String,
    /// The words after the program's name, with what is to be put in.
    pub(crate) words: Vec<String>,
    /// The name of the file for standard input.
    pub(crate) stdin: Option<String>,
    /// What it has said when it is to be ended, if it goes on.
    pub(crate) stop_at: Option<String>,
}

/// A line of the table.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A part begins.
    Begin(Part),
    /// It is run, and held.
    Hold(Row),
    /// It is run, and must be done.
    Prepare(Row),
    /// It is run until it prints these words.
    Until(String, Row),
}

impl Step {
    /// The row that is held.
    pub(crate) fn row(&self) -> Option<&Row> {
        match self {
            Self::Hold(row) => Some(row),
            Self::Begin(_) | Self::Prepare(_) | Self::Until(..) => None,
        }
    }
}

/// All steps, in their order.
pub(crate) fn steps() -> Vec<Step> {
    let mut steps = Vec::new();
    for name in FILES {
        let path = top().join("tests/snapshots/table").join(name).with_extension("txt");
        let text = fs::read_to_string(&path).unwrap();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            let step = step(line).unwrap_or_else(|| panic!("{}:{}: {line}", path.display(), index + 1));
            steps.push(step);
        }
    }
    steps
}

fn step(line: &str) -> Option<Step> {
    if let Some(part) = line.strip_prefix("begin ") {
        let parts = [("alone", Part::Alone), ("up", Part::Up), ("many", Part::Many), ("gone", Part::Gone)];
        return parts.iter().find(|(name, _)| *name == part).map(|(_, part)| Step::Begin(*part));
    }
    if let Some(line) = line.strip_prefix("- ") {
        return row("", Use::Usual, line).map(Step::Prepare);
    }
    if let Some(rest) = line.strip_prefix("until ") {
        let (wanted, line) = rest.split_once(": ")?;
        return Some(Step::Until(wanted.to_owned(), row("", Use::Usual, line)?));
    }
    let (name, rest) = line.split_once(": ")?;
    if let Some((words, line)) = rest.strip_prefix("stop at '").and_then(|rest| rest.split_once("': ")) {
        let row = row(name, Use::Usual, line)?;
        return Some(Step::Hold(Row { stop_at: Some(words.to_owned()), ..row }));
    }
    let (of, line) = rest.strip_prefix("! ").map_or((Use::Usual, rest), |line| (Use::Wrong, line));
    row(name, of, line).map(Step::Hold)
}

fn row(name: &str, of: Use, line: &str) -> Option<Row> {
    let line = line.trim();
    let (command, stdin) = match line.rsplit_once(" < ") {
        Some((command, file)) => (command, Some(file.to_owned())),
        None => (line, None),
    };
    let mut words = words(command);
    if words.first()? != "muster" {
        return None;
    }
    words.remove(0);
    Some(Row { name: name.to_owned(), of, line: line.to_owned(), words, stdin, stop_at: None })
}

/// The words of a line as a shell would take them.
fn words(line: &str) -> Vec<String> {
    let mut all = Vec::new();
    for (index, part) in line.split('\'').enumerate() {
        match index % 2 {
            0 => all.extend(part.split_whitespace().map(str::to_owned)),
            _ => all.push(part.to_owned()),
        }
    }
    all
}

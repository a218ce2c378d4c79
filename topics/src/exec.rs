//! A program to run once.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    name::UnitName,
    outcome::{Data, Stream},
    process::Limits,
};

/// The longest standard input of a command, before encoding. In base64 that is 43 KiB, which leaves a third of the 64
/// KiB of a message for the rest of the command.
pub const STDIN_MAX_BYTES: usize = 32 * 1024;

/// The shell of a host, for [`Exec::shell`].
pub const SHELL: &str = "/bin/sh";

/// A program to run once: either [`argv`](Self::argv), or a line of [`shell`](Self::shell). A shell is used only on
/// request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Exec {
    /// The program, by path or by name on the agent's search path, and its arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub argv: Vec<String>,
    /// The script for `/bin/sh -c`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
    /// The container, a running unit of the host, that it runs in. Program, working directory and user are then those
    /// inside, and its limits are below the container's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<UnitName>,
    /// The working directory; `/` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The environment, in addition to the few variables that the agent sets. Not allowed in a broadcast, which every
    /// host reads.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The user, with all groups of that user; by default the agent's own, and in a container that of its first
    /// process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The standard input, at most [`STDIN_MAX_BYTES`]; empty by default. Not allowed in a broadcast.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<Data>,
    /// Whether it is a daemon: it becomes a transient unit, `default/exec-<command>`, without a timeout, and the
    /// command ends once that is desired. Its timeout is 0, and it has no input; its output goes to the unit's log.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub daemon: bool,
    /// The timeout: then it is asked to end (SIGTERM), and soon killed, with all its processes.
    pub timeout_ms: u64,
    /// The limits of all its processes together. A host may allow less.
    #[serde(default, skip_serializing_if = "Limits::is_none")]
    pub limits: Limits,
    /// What happens with standard output.
    #[serde(default, skip_serializing_if = "Keep::is_stream")]
    pub stdout: Keep,
    /// What happens with standard error.
    #[serde(default, skip_serializing_if = "Keep::is_stream")]
    pub stderr: Keep,
    /// How much of stdout, and as much again of stderr, is kept; the rest is dropped and counted.
    #[serde(default = "output_max_bytes")]
    pub output_max_bytes: u64,
    /// How much of stderr is kept, if not as much as of stdout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_max_bytes: Option<u64>,
}

/// The default of [`Exec::output_max_bytes`]: 1 MiB.
#[must_use]
pub fn output_max_bytes() -> u64 {
    1024 * 1024
}

/// The most steps of a batch: the results of all have to fit into one message, with the end of their output.
pub const BATCH_MAX: usize = 32;

/// Programs to run one after the other. Their output is joined in the order of the steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ExecBatch")]
pub struct Batch {
    /// The programs, from 1 to [`BATCH_MAX`], each with its own timeout.
    pub steps: Vec<Exec>,
    /// Whether to continue after a step that failed. Otherwise the first failure is the last step.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_going: bool,
}

/// What happens with an output stream of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// It is sent as it is written, in ordered pieces.
    #[default]
    Stream,
    /// It is sent when the program has ended: fewer messages, for output that nobody watches.
    Capture,
    /// It is discarded.
    Drop,
}

impl Keep {
    /// Whether it is the default.
    #[must_use]
    pub fn is_stream(&self) -> bool {
        *self == Self::Stream
    }
}

/// Neither a program nor a shell line is given, or both are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotOneProgram;

impl std::fmt::Display for NotOneProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an exec has either `argv`, whose first word is the program, or `shell`")
    }
}

impl std::error::Error for NotOneProgram {}

impl Exec {
    /// Creates one with a program and its timeout.
    #[must_use]
    pub fn new(argv: Vec<String>, timeout_ms: u64) -> Self {
        Self {
            argv,
            shell: None,
            container: None,
            cwd: None,
            env: BTreeMap::new(),
            user: None,
            stdin: None,
            daemon: false,
            timeout_ms,
            limits: Limits::default(),
            stdout: Keep::default(),
            stderr: Keep::default(),
            output_max_bytes: output_max_bytes(),
            stderr_max_bytes: None,
        }
    }

    /// Returns the program and its arguments.
    ///
    /// # Errors
    /// If neither or both are given.
    pub fn words(&self) -> Result<Vec<String>, NotOneProgram> {
        match (&self.shell, self.argv.first()) {
            (Some(line), None) if !line.trim().is_empty() => Ok(vec![SHELL.to_owned(), "-c".to_owned(), line.clone()]),
            (None, Some(program)) if !program.is_empty() => Ok(self.argv.clone()),
            _ => Err(NotOneProgram),
        }
    }

    /// Returns the same for people, valid or not.
    #[must_use]
    pub fn shown(&self) -> Vec<String> {
        self.words().unwrap_or_else(|NotOneProgram| self.argv.iter().chain(&self.shell).cloned().collect())
    }

    /// Returns what happens with a stream.
    #[must_use]
    pub fn keep(&self, stream: Stream) -> Keep {
        match stream {
            Stream::Stdout => self.stdout,
            Stream::Stderr => self.stderr,
        }
    }

    /// Returns how much of a stream is kept.
    #[must_use]
    pub fn max_bytes(&self, stream: Stream) -> u64 {
        match stream {
            Stream::Stdout => self.output_max_bytes,
            Stream::Stderr => self.stderr_max_bytes.unwrap_or(self.output_max_bytes),
        }
    }

    /// Returns which of its parts only its hosts may read, if any.
    #[must_use]
    pub fn secret(&self) -> Option<&'static str> {
        match (self.env.is_empty(), &self.stdin) {
            (false, _) => Some("environment"),
            (true, Some(_)) => Some("standard input"),
            (true, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exec_needs_exactly_one_program() {
        let exec = |json: &str| serde_json::from_str::<Exec>(json).unwrap().words();
        let words = |words: &[&str]| Ok(words.iter().map(|word| (*word).to_owned()).collect());
        for (json, found) in [
            (r#"{"argv":["a","b"],"timeout_ms":1}"#, words(&["a", "b"])),
            (r#"{"shell":"a | b","timeout_ms":1}"#, words(&["/bin/sh", "-c", "a | b"])),
            (r#"{"timeout_ms":1}"#, Err(NotOneProgram)),
            (r#"{"argv":[""],"timeout_ms":1}"#, Err(NotOneProgram)),
            (r#"{"shell":" ","timeout_ms":1}"#, Err(NotOneProgram)),
            (r#"{"argv":["a"],"shell":"b","timeout_ms":1}"#, Err(NotOneProgram)),
        ] {
            assert_eq!(exec(json), found, "{json}");
        }
    }

    #[test]
    fn unused_fields_are_not_written() {
        let plain = Exec::new(vec!["true".to_owned()], 5);
        let json = serde_json::to_string(&plain).unwrap();
        assert_eq!(json, r#"{"argv":["true"],"timeout_ms":5,"output_max_bytes":1048576}"#);
        for (json, known) in [
            (r#"{"argv":["a"],"timeout_ms":1,"stdout":"drop","stderr":"capture","stderr_max_bytes":7}"#, true),
            (r#"{"argv":["a"],"timeout_ms":1,"stdin":{"base64":"AAE="}}"#, true),
            (r#"{"argv":["a"],"timeout_ms":1,"stdout":"return"}"#, false),
            (r#"{"argv":["a"],"timeout_ms":1,"runAs":"root"}"#, false),
            (r#"{"argv":["a"]}"#, false),
        ] {
            assert_eq!(serde_json::from_str::<Exec>(json).is_ok(), known, "{json}");
        }
    }

    #[test]
    fn output_limits_apply_to_each_stream() {
        let exec = Exec { output_max_bytes: 5, stderr: Keep::Drop, ..Exec::new(vec!["true".to_owned()], 5) };
        assert_eq!((exec.max_bytes(Stream::Stdout), exec.max_bytes(Stream::Stderr)), (5, 5));
        let exec = Exec { stderr_max_bytes: Some(9), ..exec };
        assert_eq!((exec.max_bytes(Stream::Stdout), exec.max_bytes(Stream::Stderr)), (5, 9));
        assert_eq!((exec.keep(Stream::Stdout), exec.keep(Stream::Stderr)), (Keep::Stream, Keep::Drop));
    }

    #[test]
    fn listings_show_no_secret() {
        let exec = Exec {
            env: [("TOKEN".to_owned(), "s3cret".to_owned())].into(),
            stdin: Some(Data::Text("s3cret".to_owned())),
            ..Exec::new(vec!["true".to_owned()], 5)
        };
        let shown = serde_json::to_string(&crate::command::Verb::Exec(exec.clone()).masked()).unwrap();
        assert!(shown.contains("TOKEN") && !shown.contains("s3cret"), "{shown}");
        assert_eq!(
            (exec.secret(), Exec { env: BTreeMap::new(), ..exec }.secret()),
            (Some("environment"), Some("standard input"))
        );
    }
}

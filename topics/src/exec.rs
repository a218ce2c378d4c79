//! A program to run once.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    name::UnitName,
    outcome::{Data, Stream},
    process::Limits,
};

/// The most that a command may bring as standard input, before it is encoded. In base64 that is 43 KiB, so it
/// leaves a third of the 64 KiB of a message to the rest of the command.
pub const STDIN_MAX_BYTES: usize = 32 * 1024;

/// The shell of a host, for [`Exec::shell`].
pub const SHELL: &str = "/bin/sh";

/// A program to run once: [`argv`](Self::argv), or a line of [`shell`](Self::shell). One of the two is given. No shell
/// is involved unless it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Exec {
    /// The program, by path or by a name on the agent's search path, and its arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub argv: Vec<String>,
    /// What `/bin/sh -c` is given to run, as one text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
    /// The container, a unit of its host, that it runs in. Program, working directory and user are then those inside,
    /// and its limits lie below the container's. It has to run already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<UnitName>,
    /// Working directory; `/` if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Environment, beside the few variables that the agent sets. Never in a broadcast: every host reads those.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The user that it runs as, with all groups of that user; if there is none, the agent's own, and in a container
    /// that of its first process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// What it reads as standard input, at most [`STDIN_MAX_BYTES`]; nothing if it is left out. Never in a broadcast.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<Data>,
    /// It is to stay: it becomes a transient unit, `default/exec-<command>`, that is never timed out, and the command
    /// is over once that is desired. Its time limit is 0, and it reads nothing; its output goes into the unit's log.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub daemon: bool,
    /// After this it is asked to end (SIGTERM), and soon after killed, with everything that it forked.
    pub timeout_ms: u64,
    /// What it may use, with everything that it forks. A host may allow less.
    #[serde(default, skip_serializing_if = "Limits::is_none")]
    pub limits: Limits,
    /// What becomes of standard output.
    #[serde(default, skip_serializing_if = "Keep::is_stream")]
    pub stdout: Keep,
    /// What becomes of standard error.
    #[serde(default, skip_serializing_if = "Keep::is_stream")]
    pub stderr: Keep,
    /// How much of stdout, and as much again of stderr, is kept; the rest is dropped and counted.
    #[serde(default = "output_max_bytes")]
    pub output_max_bytes: u64,
    /// How much of stderr is kept, if that is not as much as of stdout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_max_bytes: Option<u64>,
}

/// Default of [`Exec::output_max_bytes`]: 1 MiB.
#[must_use]
pub fn output_max_bytes() -> u64 {
    1024 * 1024
}

/// The most steps of a batch: what became of each has to fit into one message, beside the last of their output.
pub const BATCH_MAX: usize = 32;

/// Programs to run one after the other. Their output is one output, each step's after that of those before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ExecBatch")]
pub struct Batch {
    /// The programs, from 1 to [`BATCH_MAX`], each with its own time limit.
    pub steps: Vec<Exec>,
    /// Go on after a step that did not succeed. Without this the first that does not is the last.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_going: bool,
}

/// What becomes of an output stream of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// It is told as it comes, in ordered pieces.
    #[default]
    Stream,
    /// It is told when the program has ended: fewer messages, for output that nobody watches.
    Capture,
    /// Nobody wants it: the program writes to nowhere.
    Drop,
}

impl Keep {
    /// Whether it is the default.
    #[must_use]
    pub fn is_stream(&self) -> bool {
        *self == Self::Stream
    }
}

/// Neither program nor shell line, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotOneProgram;

impl std::fmt::Display for NotOneProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an exec has either `argv`, whose first word is the program, or `shell`")
    }
}

impl std::error::Error for NotOneProgram {}

impl Exec {
    /// One that only says what runs, and for how long.
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

    /// What is executed, program and arguments.
    ///
    /// # Errors
    /// If it says nothing, or two things.
    pub fn words(&self) -> Result<Vec<String>, NotOneProgram> {
        match (&self.shell, self.argv.first()) {
            (Some(line), None) if !line.trim().is_empty() => Ok(vec![SHELL.to_owned(), "-c".to_owned(), line.clone()]),
            (None, Some(program)) if !program.is_empty() => Ok(self.argv.clone()),
            _ => Err(NotOneProgram),
        }
    }

    /// The same for people, whether it makes sense or not.
    #[must_use]
    pub fn shown(&self) -> Vec<String> {
        self.words().unwrap_or_else(|NotOneProgram| self.argv.iter().chain(&self.shell).cloned().collect())
    }

    /// What becomes of a stream.
    #[must_use]
    pub fn keep(&self, stream: Stream) -> Keep {
        match stream {
            Stream::Stdout => self.stdout,
            Stream::Stderr => self.stderr,
        }
    }

    /// How much of a stream is kept.
    #[must_use]
    pub fn max_bytes(&self, stream: Stream) -> u64 {
        match stream {
            Stream::Stdout => self.output_max_bytes,
            Stream::Stderr => self.stderr_max_bytes.unwrap_or(self.output_max_bytes),
        }
    }

    /// What it carries that only its host may read, if it does.
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
    fn old_agent_refuses_exec_inside_container() {
        /// What an agent knew before.
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        #[expect(dead_code, reason = "it is only read into")]
        struct Before {
            argv: Vec<String>,
            timeout_ms: u64,
            output_max_bytes: u64,
        }
        let before = |exec: &Exec| serde_json::from_value::<Before>(serde_json::to_value(exec).unwrap());
        let outside = Exec::new(vec!["true".to_owned()], 5);
        assert!(before(&outside).is_ok());
        let inside = Exec { container: Some("default/shop".parse().unwrap()), ..outside };
        let error = before(&inside).err().unwrap().to_string();
        assert!(error.contains("unknown field `container`"), "{error}");
        let json = serde_json::to_string(&inside).unwrap();
        assert_eq!(serde_json::from_str::<Exec>(&json).unwrap(), inside);
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

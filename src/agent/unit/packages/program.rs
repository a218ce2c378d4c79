//! Runs a program that changes no packages to its end, with a deadline. Those that do run in a [`super::transaction`].

use std::{
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use muster_rules::plan::Failure;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader},
    process::Command,
    time::timeout,
};

use super::manager::{PackageAdapter, Program};
use crate::unit::failure::may_heal;

/// The most output that is kept: a list of ten thousand packages is a tenth.
const OUTPUT_MAX_BYTES: usize = 16 * 1024 * 1024;

/// The longest line; more is a line of its own.
const LINE_MAX_BYTES: u64 = 64 * 1024;

/// The folder in which programs see their files as the root, and the programs of its package manager run.
#[derive(Clone, Debug)]
pub(super) struct Root(PathBuf);

impl Root {
    pub(super) fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Returns the host's path of a file in the root.
    pub(super) fn path(&self, inside: &str) -> PathBuf {
        self.0.join(inside.trim_start_matches('/'))
    }

    /// Whether it is not the host's own.
    pub(super) fn is_other(&self) -> bool {
        self.0 != Path::new("/")
    }

    /// Returns the words that run a program in the root.
    pub(super) fn argv(&self, program: &Program) -> Vec<String> {
        if !self.is_other() {
            return program.0.clone();
        }
        let enter = ["chroot".to_owned(), self.0.to_string_lossy().into_owned()];
        enter.into_iter().chain(program.0.iter().cloned()).collect()
    }
}

/// How a program has ended, and its output.
#[derive(Debug, Default)]
pub(super) struct ProgramOutput {
    pub(super) is_ok: bool,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl ProgramOutput {
    /// Everything, for people and for an explanation.
    pub(super) fn all(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

/// Runs a program of a package manager for at most `limit`, in `folder` of the host; each line is told at once.
pub(super) async fn run(
    root: &Root,
    adapter: &dyn PackageAdapter,
    program: &Program,
    folder: Option<&str>,
    limit: Duration,
    tell: &(dyn Fn(&str) + Send + Sync),
) -> Result<ProgramOutput, Failure> {
    let name = program.0.first().cloned().unwrap_or_default();
    let failed = |error: io::Error| may_heal(format!("{name} cannot be run: {error}"));
    let argv = match folder {
        // The working directory of a program in another root is in that root.
        Some(folder) => {
            let words = ["sh", "-c", "cd \"$0\" && exec \"$@\"", folder].map(ToOwned::to_owned);
            root.argv(&Program::new(words.into_iter().chain(program.0.iter().cloned())))
        }
        None => root.argv(program),
    };
    let (first, args) = argv.split_first().ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
    let mut child = Command::new(first)
        .args(args)
        .env_clear()
        .envs(adapter.environment())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let ended = async {
        let (stdout, stderr) = tokio::try_join!(read(stdout, tell), read(stderr, tell))?;
        Ok::<_, io::Error>(ProgramOutput { is_ok: child.wait().await?.success(), stdout, stderr })
    };
    match timeout(limit, ended).await {
        Ok(said) => said.map_err(failed),
        Err(_) => Err(may_heal(format!("{name} did not end within {} s and was ended", limit.as_secs()))),
    }
}

/// Reads lines up to the limit; what is longer is dropped.
async fn read(from: Option<impl AsyncRead + Unpin>, tell: &(dyn Fn(&str) + Send + Sync)) -> io::Result<String> {
    let Some(from) = from else { return Ok(String::new()) };
    let (mut from, mut said, mut line) = (BufReader::new(from), String::new(), Vec::new());
    loop {
        line.clear();
        if (&mut from).take(LINE_MAX_BYTES).read_until(b'\n', &mut line).await? == 0 {
            return Ok(said);
        }
        let text = String::from_utf8_lossy(&line);
        tell(text.trim_end());
        if said.len() + text.len() <= OUTPUT_MAX_BYTES {
            said.push_str(&text);
        }
    }
}

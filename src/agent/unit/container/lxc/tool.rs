//! Runs one of LXC's programs (or `tar`, `cp`) to its end, with a deadline. No shell is involved, so arguments arrive
//! unchanged.

use muster_topics::diagnostic::Diagnostic;
use std::{
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use muster_rules::plan::Failure;
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::Command,
    time::timeout,
};

use crate::{execute::program_path::SEARCH_PATH, unit::failure::may_heal};

/// The timeout for programs that create mounts and cgroups; below a start's own deadline.
pub(super) const WORK_MAX: Duration = Duration::from_secs(25);

/// The most output that is read: a list of ten thousand containers.
const SAID_MAX_BYTES: u64 = 1024 * 1024;

/// The longest message that is reported.
const WHY_MAX_CHARS: usize = 300;

/// A program that has ended.
#[derive(Debug)]
pub(super) struct ToolOutput {
    pub(super) ok: bool,
    pub(super) stdout: String,
    stderr: String,
}

impl ToolOutput {
    /// Why it failed: the first line of its standard error.
    pub(super) fn why(&self) -> String {
        self.why_but("")
    }

    /// The same, without lines that contain these words, which accompany normal work.
    pub(super) fn why_but(&self, words: &str) -> String {
        let counts = |line: &&str| !line.trim().is_empty() && (words.is_empty() || !line.contains(words));
        let line = self.stderr.lines().find(counts).unwrap_or("it gave no reason");
        line.trim().chars().take(WHY_MAX_CHARS).collect()
    }

    /// Whether its standard error contains any of these words.
    pub(super) fn says(&self, words: &[&str]) -> bool {
        words.iter().any(|words| self.stderr.contains(words))
    }
}

/// Finds a program, if it is installed.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    SEARCH_PATH.split(':').map(|folder| Path::new(folder).join(program)).find(|path| path.is_file())
}

/// The failure for a program that is not installed.
pub(super) fn missing(program: &str) -> Failure {
    let package = match program {
        "tar" => "tar",
        "cp" => "coreutils",
        "mount" => "mount",
        "mkfs.ext4" => "e2fsprogs",
        _ => "lxc",
    };
    may_heal(
        Diagnostic::new(format_args!("{program} is not installed on this host"))
            .with_hint(format_args!("install it (in Debian the package {package})")),
    )
}

/// Runs a program for at most `limit`; a slower one is killed.
pub(super) async fn run(program: &str, args: &[&OsStr], limit: Duration) -> Result<ToolOutput, Failure> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => missing(program),
        _ => may_heal(format!("cannot run {program}: {error}")),
    };
    let mut child = Command::new(program)
        .args(args)
        .env_clear()
        .env("PATH", SEARCH_PATH)
        .env("LC_ALL", "C")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let ended = async {
        let (stdout, stderr) = tokio::try_join!(read(stdout), read(stderr))?;
        Ok::<_, io::Error>(ToolOutput { ok: child.wait().await?.success(), stdout, stderr })
    };
    match timeout(limit, ended).await {
        Ok(ran) => ran.map_err(failed),
        Err(_) => Err(may_heal(format!("{program} did not end within {} s and was killed", limit.as_secs()))),
    }
}

/// Reads the output up to the limit; a longer one meets a closed pipe.
async fn read(from: Option<impl AsyncRead + Unpin>) -> io::Result<String> {
    let mut said = Vec::new();
    if let Some(from) = from {
        from.take(SAID_MAX_BYTES).read_to_end(&mut said).await?;
    }
    Ok(String::from_utf8_lossy(&said).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn a_program_ends_in_time_or_is_killed() {
        let args = ["-c", "echo \"$0\"; echo \"it is $1\" >&2; exit 3", "a 'b'\n$(c)", "so"].map(OsStr::new);
        let ran = run("sh", &args, LIMIT).await.unwrap();
        assert_eq!((ran.ok, ran.stdout.as_str(), ran.why().as_str()), (false, "a 'b'\n$(c)\n", "it is so"));
        let failure = run("sleep", &["1000".as_ref()], Duration::from_millis(20)).await.unwrap_err();
        assert!(failure.error.cause.contains("did not end within"), "{}", failure.error);
        let failure = run("lxc-no-such", &[], LIMIT).await.unwrap_err();
        assert_eq!(failure.error.cause, "lxc-no-such is not installed on this host");
        assert_eq!(failure.error.hint.as_deref(), Some("install it (in Debian the package lxc)"));
        assert!(missing("tar").error.hint.unwrap().contains("the package tar)"));
    }

    #[tokio::test]
    async fn long_output_is_truncated() {
        let ran = run("yes", &[], LIMIT).await.unwrap();
        assert_eq!((ran.ok, ran.stdout.len() as u64), (false, SAID_MAX_BYTES));
    }
}

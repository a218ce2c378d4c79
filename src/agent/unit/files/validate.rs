//! Runs the program that checks a new file before it replaces the old one.

use std::{
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use muster_base::files::{PRIVATE_FOLDER, make_folder};
use muster_rules::{
    mask::{Cut, SecretMask},
    plan::Failure,
};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::{Child, Command},
    time::timeout,
};

use crate::{
    execute::program_path::SEARCH_PATH,
    unit::failure::{may_heal, never},
};

/// How long a validator may take.
const VALIDATE_MAX: Duration = Duration::from_secs(60);

/// What is read of its output.
const SAID_MAX_BYTES: u64 = 64 * 1024;

/// What is reported of it.
const WHY_MAX_CHARS: usize = 500;

/// Kills the whole group when it is dropped.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(pid) = self.0.id().and_then(|pid| i32::try_from(pid).ok()) {
            // Its first process was not reaped yet, so the number is its own.
            let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// Copies a content to a file of the right name in a folder of its own, because programs go by names.
pub(super) fn lay_out(content: &Path, folder: &Path, path: &str) -> io::Result<(tempfile::TempDir, PathBuf)> {
    make_folder(folder, PRIVATE_FOLDER)?;
    let own = tempfile::Builder::new().prefix("check-").tempdir_in(folder)?;
    let name = Path::new(path).file_name().unwrap_or_default();
    let copy = own.path().join(name);
    std::fs::copy(content, &copy)?;
    Ok((own, copy))
}

/// Runs a validator; `{}` in its arguments stands for the file. What it says is masked: it may quote the file.
///
/// # Errors
/// If it does not end with code 0 in time.
pub(super) async fn validate(argv: &[String], file: &Path, mask: &SecretMask) -> Result<(), Failure> {
    validate_within(argv, file, mask, VALIDATE_MAX).await
}

async fn validate_within(argv: &[String], file: &Path, mask: &SecretMask, limit: Duration) -> Result<(), Failure> {
    let file = file.to_string_lossy();
    let argv: Vec<String> = argv.iter().map(|word| word.replace("{}", &file)).collect();
    let Some((program, args)) = argv.split_first() else { return Ok(()) };
    let child = Command::new(program)
        .args(args)
        .env_clear()
        .env("PATH", SEARCH_PATH)
        .env("LC_ALL", "C.UTF-8")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|error| may_heal(format!("cannot run its validator {program}: {error}")))?;
    let mut group = Group(child);
    let (stdout, stderr) = (group.0.stdout.take(), group.0.stderr.take());
    let ended = async {
        let (stdout, stderr) = tokio::try_join!(read(stdout), read(stderr))?;
        Ok::<_, io::Error>((group.0.wait().await?, stdout, stderr))
    };
    let (status, stdout, stderr) = match timeout(limit, ended).await {
        Ok(ended) => ended.map_err(|error| may_heal(format!("cannot run its validator {program}: {error}")))?,
        Err(_) => {
            return Err(never(format!(
                "its validator {program} did not end within {} s and was killed",
                limit.as_secs()
            )));
        }
    };
    if status.success() {
        return Ok(());
    }
    let said = [stderr, stdout].into_iter().find(|said| !said.trim().is_empty());
    let said = said.map_or_else(|| "it gave no reason".to_owned(), |said| mask.text(said.trim(), Cut::END));
    let said: String = said.chars().take(WHY_MAX_CHARS).collect();
    Err(never(format!("its validator {program} refuses it ({status}): {said}")))
}

/// Reads the output up to the limit, and passes the rest over.
async fn read(from: Option<impl AsyncRead + Unpin>) -> io::Result<String> {
    let mut said = Vec::new();
    if let Some(mut from) = from {
        (&mut from).take(SAID_MAX_BYTES).read_to_end(&mut said).await?;
        tokio::io::copy(&mut from, &mut tokio::io::sink()).await?;
    }
    Ok(String::from_utf8_lossy(&said).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn said(argv: &[&str], limit: Duration) -> Result<(), String> {
        let argv: Vec<String> = argv.iter().map(|word| (*word).to_owned()).collect();
        validate_within(&argv, Path::new("/dev/null"), &SecretMask::default(), limit)
            .await
            .map_err(|failure| failure.error.cause)
    }

    #[tokio::test]
    async fn value_that_is_cut_from_what_a_validator_says_is_masked() {
        let mask = SecretMask::of(["hunter2-hunter2"]);
        let says = async |script: String| {
            let argv = ["sh".to_owned(), "-c".to_owned(), script];
            let limit = Duration::from_secs(20);
            validate_within(&argv, Path::new("/dev/null"), &mask, limit).await.unwrap_err().error
        };
        let error = says("echo 'line 1: pw=hunter2-hunter2' >&2; exit 1".to_owned()).await;
        assert!(error.cause.ends_with("line 1: pw=***"), "{error}");
        // It begins before the end of what is reported, and of what is read.
        for before in [WHY_MAX_CHARS - 5, usize::try_from(SAID_MAX_BYTES).unwrap() - 5] {
            let error = says(format!("head -c {before} /dev/zero | tr '\\0' x; echo hunter2-hunter2; exit 1")).await;
            assert!(error.cause.contains("xxx") && !error.cause.contains("hunt"), "{error}");
        }
    }

    #[tokio::test]
    async fn validator_says_yes_no_or_hangs() {
        let long = Duration::from_secs(20);
        said(&["sh", "-c", "test -e \"$0\"", "{}"], long).await.unwrap();
        let error = said(&["sh", "-c", "echo \"line 3: what?\" >&2; exit 4", "{}"], long).await.unwrap_err();
        assert!(error.contains("line 3: what?") && error.contains("exit status: 4"), "{error}");
        assert!(said(&["/no/such/program"], long).await.unwrap_err().contains("cannot run"));
        let error = said(&["yes"], Duration::from_millis(300)).await.unwrap_err();
        assert!(error.contains("was killed"), "{error}");
        // Its children end with it.
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("pid");
        let script = format!("sleep 1000 & echo $! > {}; wait", mark.display());
        let error = said(&["sh", "-c", &script], Duration::from_secs(2)).await.unwrap_err();
        assert!(error.contains("was killed"), "{error}");
        let pid: i32 = std::fs::read_to_string(&mark).unwrap().trim().parse().unwrap();
        let is_gone = || muster_shim::process_identity::stat(pid).is_none_or(|stat| stat.is_dead());
        for _ in 0..100 {
            if is_gone() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the validator's child goes on");
    }
}

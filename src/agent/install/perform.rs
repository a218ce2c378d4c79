//! Executes the steps of an installation.

use std::{
    fs::{self, File, Permissions},
    io,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::Command,
};

use muster_base::{
    failure::{Failure, FailureContext as _, FailureKind},
    files::{make_folder, sync_folder, write_atomically},
};

use super::plan::{InstallStep, PROGRAM_MODE};

pub(super) fn perform(step: &InstallStep) -> Result<(), Failure> {
    match step {
        InstallStep::Copy { from, to } => copy(from, to).trying(step),
        InstallStep::Write { path, text, is_secret } => in_folder(path)
            .and_then(|()| write_atomically(path, text.as_bytes(), InstallStep::mode(*is_secret)))
            .trying(step),
        InstallStep::Link { path, to } => in_folder(path).and_then(|()| symlink(to, path)).trying(step),
        InstallStep::Remove { path } => remove(path).trying(step),
        InstallStep::Systemctl(arguments) => systemctl(arguments),
    }
}

fn in_folder(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |folder| make_folder(folder, PROGRAM_MODE))
}

/// Copies to a temporary file first: a running program cannot be overwritten, and an incomplete one must not be run.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    in_folder(to)?;
    let beside = to.with_extension("new");
    let copied = fs::copy(from, &beside).and_then(|_| {
        fs::set_permissions(&beside, Permissions::from_mode(PROGRAM_MODE))?;
        File::open(&beside)?.sync_all()?;
        fs::rename(&beside, to)
    });
    if copied.is_err() {
        let _ = fs::remove_file(&beside);
    }
    copied?;
    to.parent().map_or(Ok(()), sync_folder)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn systemctl(arguments: &[&str]) -> Result<(), Failure> {
    let line = format!("systemctl {}", arguments.join(" "));
    let output = Command::new("systemctl").args(arguments).output().trying(&line)?;
    if output.status.success() {
        return Ok(());
    }
    let told = String::from_utf8_lossy(&output.stderr);
    Err(Failure::new(FailureKind::Failed, format!("{line}: {}", told.trim()))
        .hint("`journalctl -u muster-agent -n 20` shows the agent's log; repeat this command once the cause is fixed"))
}

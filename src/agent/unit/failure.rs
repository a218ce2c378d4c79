//! Failures of units: a message for the operator, and whether the failure may heal by itself.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use muster_rules::plan::Failure;
use muster_shim::StartStep;
use muster_topics::diagnostic::Diagnostic;
use nix::{errno::Errno, unistd};

use crate::{artifact::ArtifactError, shim::ShimError};

pub(super) fn may_heal(error: impl Into<Diagnostic>) -> Failure {
    Failure { error: error.into(), may_heal: true }
}

pub(super) fn never(error: impl Into<Diagnostic>) -> Failure {
    Failure { error: error.into(), may_heal: false }
}

/// Converts an error of a download. What is missing on the console, or damaged there, can be created again.
pub(super) fn from_artifact(error: ArtifactError) -> Failure {
    may_heal(Diagnostic::of(&error))
}

/// Converts an error of a shim. What a host lacks may appear, with a late mount, a directory service or an operator, so
/// such refusals may heal. Only a refusal because of the program itself, or of what this agent may not give, is final.
pub(super) fn from_shim(error: ShimError) -> Failure {
    let ShimError::Start { source, step, path, .. } = &error else { return may_heal(Diagnostic::of(&error)) };
    let barred;
    let refused = source.kind() == io::ErrorKind::PermissionDenied;
    let (hint, may_heal) = match (step, source.raw_os_error().map(Errno::from_raw)) {
        (_, Some(Errno::ENOEXEC)) => {
            (Some("it is not a program for this machine; a script needs a first line such as #!/bin/sh"), false)
        }
        (_, Some(Errno::E2BIG | Errno::EINVAL | Errno::ENAMETOOLONG)) => (None, false),
        (StartStep::Exec, Some(Errno::ENOENT)) => {
            (Some("the interpreter in its first line, or its loader, is missing on this host"), true)
        }
        (StartStep::Cwd, _) if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            (Some("check whether its disk is mounted"), true)
        }
        (StartStep::Cwd | StartStep::Exec, _) if refused && unistd::geteuid().is_root() => {
            barred = way_hint(first_closed(path).as_deref());
            (Some(barred.as_str()), true)
        }
        (StartStep::User, _) if refused => (Some("to run units as other users, the agent must run as root"), false),
        (StartStep::Nice | StartStep::Rlimit | StartStep::Capabilities, _) if refused => {
            (Some("a unit can only have permissions that the agent has"), false)
        }
        _ => (None, true),
    };
    let told = Diagnostic::of(&error);
    let error = match hint {
        Some(hint) => told.with_hint(hint),
        None => told,
    };
    Failure { error, may_heal }
}

/// The hint about a user who has no access to a file of its unit.
fn way_hint(closed: Option<&Path>) -> String {
    match closed {
        Some(folder) => format!(
            "the unit's user cannot enter {0}: `chmod o+x {0}`, or use another agent folder (`data_dir`, `muster up --data-dir`)",
            folder.display()
        ),
        None => "check that the unit's user may execute it and enter every folder above it".to_owned(),
    }
}

/// The first folder on a path, the path itself included, that other users may not pass through.
fn first_closed(path: &Path) -> Option<PathBuf> {
    let mut folders: Vec<&Path> = path.ancestors().collect();
    folders.reverse();
    let is_closed = |folder: &&Path| {
        fs::metadata(folder).is_ok_and(|about| about.is_dir() && about.permissions().mode() & 0o001 == 0)
    };
    folders.into_iter().find(is_closed).map(Path::to_owned)
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(may_heal(Diagnostic::new(error))))
}

#[cfg(test)]
mod tests {
    use muster_topics::name::Digest;
    use reqwest::StatusCode;

    use super::*;

    #[test]
    fn what_the_console_lacks_or_has_damaged_is_asked_for_again() {
        let what = || "artifact hello@1".to_owned();
        let errors = [
            ArtifactError::Status { what: what(), status: StatusCode::NOT_FOUND, said: None },
            ArtifactError::Status { what: what(), status: StatusCode::FORBIDDEN, said: None },
            ArtifactError::WrongHash { what: what(), found: Digest::of(b"other") },
            ArtifactError::TooLong { what: what(), size_bytes: 3 },
        ];
        for error in errors {
            let failure = from_artifact(error);
            assert!(failure.may_heal && failure.error.cause.contains("artifact hello@1"), "{failure:?}");
        }
    }

    #[test]
    fn first_inaccessible_folder_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("a/b/program");
        fs::create_dir_all(below.parent().unwrap()).unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        set(folder.path(), 0o711);
        set(&folder.path().join("a"), 0o755);
        set(&folder.path().join("a/b"), 0o750);
        assert_eq!(first_closed(&below), Some(folder.path().join("a/b")));
        set(folder.path(), 0o700);
        assert_eq!(first_closed(&below).as_deref(), Some(folder.path()));
        assert!(way_hint(Some(folder.path())).contains(&format!("chmod o+x {}`", folder.path().display())));
        assert_eq!(first_closed(Path::new("/")), None);
    }
}

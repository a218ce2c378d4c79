//! What has failed, in words for whoever has to mend it, and whether it may mend itself.

use std::io;

use muster_shim::Step;
use nix::{errno::Errno, unistd};

use crate::{
    agent::{artifact::ArtifactError, shim::ShimError},
    rules::plan::Failure,
};

pub(super) fn may_heal(error: impl Into<String>) -> Failure {
    Failure { error: error.into(), may_heal: true }
}

pub(super) fn never(error: impl Into<String>) -> Failure {
    Failure { error: error.into(), may_heal: false }
}

pub(super) fn from_artifact(error: ArtifactError) -> Failure {
    Failure { may_heal: error.may_heal(), error: error.to_string() }
}

/// What a host lacks may come, with a late mount, a directory service or an operator: so each of its refusals may heal.
/// Only what is refused for what it is (the program itself, or what this agent may not give) stays refused.
pub(super) fn from_shim(error: ShimError) -> Failure {
    let ShimError::Start { source, step, .. } = &error else { return may_heal(error.to_string()) };
    let refused = source.kind() == io::ErrorKind::PermissionDenied;
    let (hint, may_heal) = match (step, source.raw_os_error().map(Errno::from_raw)) {
        (_, Some(Errno::ENOEXEC)) => {
            (". hint: it is no program for this machine; a script needs a first line such as #!/bin/sh", false)
        }
        (_, Some(Errno::E2BIG | Errno::EINVAL | Errno::ENAMETOOLONG)) => ("", false),
        (Step::Exec, Some(Errno::ENOENT)) => {
            (". hint: what its first line names, or its loader, is not on this host", true)
        }
        (Step::Cwd, _) if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            (". hint: is it on a disk that is not mounted yet?", true)
        }
        (Step::Cwd | Step::Exec, _) if refused && unistd::geteuid().is_root() => {
            (". hint: can the unit's user pass through every folder above the agent's (`data_dir`)?", true)
        }
        (Step::User, _) if refused => (". hint: to run units as other users, the agent must run as root", false),
        (Step::Nice | Step::Rlimit | Step::Capabilities, _) if refused => {
            (". hint: only what the agent itself has can be given to a unit", false)
        }
        _ => ("", true),
    };
    Failure { error: format!("{error}{hint}"), may_heal }
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(may_heal(error.to_string())))
}

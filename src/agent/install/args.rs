//! Arguments of `muster agent install` and `uninstall`.

use std::path::PathBuf;

use clap::Args;
use muster_base::failure::{Failure, FailureKind};
use muster_topics::join::JoinToken;

use crate::join_args::JoinArgs;

/// The paths of an installation.
#[derive(Args, Clone, Debug)]
pub struct InstallPaths {
    /// Install the program into DIR/bin
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    pub(super) prefix: PathBuf,
    /// Work below this folder, to make an image of a system
    #[arg(long, value_name = "DIR", default_value = "/", hide_default_value = true)]
    pub(super) root: PathBuf,
    /// Show what would be done, and do nothing
    #[arg(long)]
    pub(super) dry_run: bool,
}

/// Arguments of `muster agent install`.
#[derive(Args, Clone, Debug)]
pub struct InstallArgs {
    #[command(flatten)]
    pub(super) place: InstallPaths,
    #[command(flatten)]
    pub(super) given: JoinArgs,
    /// The token, which is written to the configuration.
    #[arg(skip)]
    pub(super) join: Option<JoinToken>,
    /// Start or restart the agent now
    ///
    /// Without it the agent starts at the next boot.
    #[arg(long)]
    pub(super) now: bool,
}

/// Arguments of `muster agent uninstall`.
#[derive(Args, Clone, Debug)]
pub struct UninstallArgs {
    #[command(flatten)]
    pub(super) place: InstallPaths,
}

/// The error for a folder that the unit file cannot name.
pub(super) fn usage(message: String, hint: &str) -> Failure {
    Failure::new(FailureKind::Usage, message).hint(hint)
}

//! Arguments of `muster agent install` and `uninstall`.

use std::path::PathBuf;

use clap::Args;
use muster_base::failure::{Failure, FailureKind};
use muster_topics::join::JoinToken;

use crate::join_args::JoinArgs;

/// The paths of an installation.
#[derive(Args, Clone, Debug)]
pub struct InstallPaths {
    /// The program goes into DIR/bin
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    pub(super) prefix: PathBuf,
    /// Below this folder rather than in the running system: for making images
    #[arg(long, value_name = "DIR", default_value = "/", hide_default_value = true)]
    pub(super) root: PathBuf,
    /// Say what would be done, and do nothing
    #[arg(long)]
    pub(super) dry_run: bool,
}

/// Arguments of `muster agent install`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  muster agent install --now --join TOKEN    join with a token of `muster token create`, and stay\n  \
                        muster agent install --now                 bring program and service up to date; yunos go on\n  \
                        muster agent install --dry-run             say what would be done"
)]
pub struct InstallArgs {
    #[command(flatten)]
    pub(super) place: InstallPaths,
    #[command(flatten)]
    pub(super) given: JoinArgs,
    /// The token, which is written to the configuration.
    #[arg(skip)]
    pub(super) join: Option<JoinToken>,
    /// Start the agent now, or restart one that runs, rather than at the next boot
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

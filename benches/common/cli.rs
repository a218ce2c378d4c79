//! The arguments of a bench, and how it ends: with exit code 0, or 1 if it failed, or missed a budget and `--check` was
//! given; 2 is for arguments that are none.

use std::{fmt::Display, process::ExitCode};

use clap::{Args, Error, Parser, builder::RangedU64ValueParser, error::ErrorKind};

/// The command that starts the bench.
const COMMAND: &str = concat!("cargo bench -p ", env!("CARGO_PKG_NAME"), " --bench ", env!("CARGO_CRATE_NAME"), " --");

// The `--help` text of a bench is the comment of its options.
#[derive(Parser)]
#[command(bin_name = COMMAND)]
struct Line<O: Args> {
    #[command(flatten)]
    options: O,
    // Cargo passes this to every bench.
    #[arg(long = "bench", hide = true)]
    _bench: bool,
}

#[derive(Args)]
struct Checked<O: Args> {
    #[command(flatten)]
    options: O,
    /// End with exit code 1 if a budget is missed
    #[arg(long)]
    check: bool,
}

/// The `main` function of a bench with budgets; `run` returns whether one was missed.
pub(crate) fn main<O: Args, E: Display>(run: impl FnOnce(&O) -> Result<bool, E>) -> ExitCode {
    let Checked { options, check } = arguments();
    exit(run(&options).map(|missed| missed && check))
}

/// The `main` function of a bench without budgets.
pub(crate) fn main_without_budgets<O: Args, E: Display>(run: impl FnOnce(&O) -> Result<(), E>) -> ExitCode {
    exit(run(&arguments()).map(|()| false))
}

fn arguments<O: Args>() -> O {
    Line::parse().options
}

fn exit<E: Display>(ended: Result<bool, E>) -> ExitCode {
    match ended {
        Ok(false) => ExitCode::SUCCESS,
        Ok(true) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A number of at least this value.
pub(crate) fn at_least<N: TryFrom<u64>>(least: u64) -> RangedU64ValueParser<N> {
    RangedU64ValueParser::new().range(least..)
}

/// Ends the bench because its arguments conflict.
pub(crate) fn refuse(problem: &str) -> ! {
    Error::raw(ErrorKind::ValueValidation, format!("{problem}\n")).exit()
}

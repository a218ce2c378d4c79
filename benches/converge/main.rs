//! A host that is kept as described: 200 files, 20 processes and 50 packages under muster, beside Ansible and Puppet on the same content, in the same
//! run, on this machine.
//!
//!     cargo bench --bench converge -- [--check] [--files N] [--processes N] [--packages N] [--runs N] [--drifts N] [--subject NAME]… [--program FILE]
//!
//! Measured of each: the first run, on a host that has nothing of it; and a run in which nothing has changed, by the clock and in
//! processor time. Of muster also: what it costs to look at all files, its memory, and how long somebody else's change lasts.
//!
//! What is compared:
//!
//! - the content: files of one KiB in folders of 25, with owner and mode; a folder for each; processes of one shell script that writes its
//!   process id into a file
//! - muster: an agent of its own with its store and TLS to a `muster up` on loopback; a deployment with a unit for each folder and for
//!   each process. A run in which nothing has changed is `muster deployment apply` of the same document until it says so, which asks
//!   console and host. Its processor time is that of the verb, of the agent, and of the `muster up`
//! - Ansible: `ansible-playbook` over the local connection, with pipelining, without facts; a task for all files, and one for all processes
//! - Puppet: `puppet apply` of one manifest
//!
//! Neither supervises processes, and systemd, which they would tell, does not run everywhere: a process is a command of theirs, which
//! starts it unless the process of its pid file is alive. Neither has a process of its own between runs here; their memory is the most
//! that all processes of a run have together (PSS). Peers that are not installed (Debian packages `ansible-core` and `puppet-agent`) are
//! named and left out.
//!
//! Packages come last, in a run of their own: made by `dpkg-deb`, from a signed repository on loopback, with real apt and dpkg. The agent has a
//! root of its own for them. Peers know none, so that each has an overlay over this machine's root, in a mount namespace, with an empty
//! database of packages; what they are told is a list of packages alone, and to read the repository's lists the first time. As root;
//! otherwise without packages.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::allow_attributes,
    reason = "a program to be run by hand"
)]

#[path = "../common/mod.rs"]
mod common;
mod content;
#[path = "../../tests/fleet/mod.rs"]
mod fleet;
mod ours;
mod packages;
mod peers;
#[path = "../../tests/e2e/packages/root.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod root;
mod table;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Result, ensure};

use common::{cli, spread::Spread, usage};
use content::Content;
use table::{Row, Table};

/// A host that is kept as described, under muster, beside Ansible and Puppet, in the same run
#[derive(clap::Args)]
pub(crate) struct Options {
    /// How many files there are
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = cli::at_least::<usize>(1).range(..=2_000))]
    files: usize,
    /// How many processes there are
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = cli::at_least::<usize>(1).range(..=100))]
    processes: usize,
    /// How many packages there are; 0 for none
    #[arg(long, value_name = "N", default_value_t = 50)]
    packages: usize,
    /// How often a run in which nothing has changed is repeated
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = cli::at_least::<usize>(1))]
    runs: usize,
    /// How many files are changed by somebody else
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = cli::at_least::<usize>(1))]
    drifts: usize,
    /// How long the agent is watched at rest
    #[arg(long = "rest", value_name = "SECONDS", default_value_t = 60, value_parser = cli::at_least::<u64>(1))]
    rest_s: u64,
    /// Measure this one; may be given more than once
    #[arg(long = "subject", value_name = "NAME", default_values = SUBJECTS, value_parser = SUBJECTS)]
    subjects: Vec<String>,
    /// An agent that was built before [default: as packages ship it]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

const SUBJECTS: [&str; 3] = ["muster", "ansible", "puppet"];

/// What a run has cost.
#[derive(Clone, Copy)]
pub(crate) struct Cost {
    pub(crate) took: Duration,
    pub(crate) busy: Duration,
}

fn main() -> ExitCode {
    cli::main(run)
}

/// Measures all and prints the figures; returns whether a budget was missed.
fn run(options: &Options) -> Result<bool> {
    let (mut table, mut failures) = (Table::default(), 0);
    for subject in &options.subjects {
        let folder = tempfile::Builder::new().prefix("muster-bench-").tempdir()?;
        let content = Content::new(&folder.path().canonicalize()?, options)?;
        let measured = match subject.as_str() {
            "muster" => ours::measure(&content, options).map(Some),
            "ansible" => peers::measure(&peers::Ansible, &content, options),
            _ => peers::measure(&peers::Puppet, &content, options),
        };
        content.end_processes();
        match measured {
            Ok(rows) => rows.into_iter().flatten().for_each(|(row, value)| table.put(row, subject, value)),
            // The others are still measured.
            Err(error) => {
                eprintln!("error: {subject}: {error:#}");
                failures += 1;
            }
        }
    }
    let Options { files, processes, packages, runs, drifts, .. } = options;
    println!(
        "\n{files} files, {processes} processes, {packages} packages; {runs} runs, {drifts} drifts; {} cores\n",
        usage::cores()
    );
    let missed = table.print();
    ensure!(failures == 0, "{failures} of {} could not be measured", options.subjects.len());
    Ok(missed)
}

/// The rows of runs in which nothing has changed.
pub(crate) fn rest_rows(costs: &[Cost]) -> Vec<(Row, f64)> {
    let (mean, most) = mean_and_most(costs.iter().map(|cost| cost.took));
    let (busy, _) = mean_and_most(costs.iter().map(|cost| cost.busy));
    vec![(Row::Rest, mean), (Row::RestMost, most), (Row::RestBusy, busy)]
}

/// The rows of packages: of the first run, and of those in which nothing has changed.
pub(crate) fn packages_rows(first: Duration, costs: &[Cost]) -> Vec<(Row, f64)> {
    let (mean, most) = mean_and_most(costs.iter().map(|cost| cost.took));
    let (busy, _) = mean_and_most(costs.iter().map(|cost| cost.busy));
    vec![
        (Row::Packages, first.as_secs_f64()),
        (Row::PackagesRest, mean),
        (Row::PackagesRestMost, most),
        (Row::PackagesRestBusy, busy),
    ]
}

/// Mean and maximum, in milliseconds.
pub(crate) fn mean_and_most(times: impl Iterator<Item = Duration>) -> (f64, f64) {
    let times: Vec<f64> = times.map(|time| time.as_secs_f64() * 1e3).collect();
    (times.iter().sum::<f64>() / times.len() as f64, Spread::of(times).most())
}

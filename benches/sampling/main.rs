//! What measuring costs a host: an agent beside collectd and netdata, in the same run, on this machine.
//!
//!     cargo bench --bench sampling -- [--check] [--seconds N] [--agent PROGRAM]
//!
//! `--seconds` says for how long (120); `--agent` takes an agent that is built already; `--check` ends with exit code 1 if the
//! budget is missed. Peers that are not installed (Debian packages `collectd-core` and
//! `netdata`) are left out.
//!
//! How it measures: all run at the same time, so that they see the same host. Each has begun half a minute before, and has its
//! files in a folder of this run.
//!
//! - muster: the agent that packages ship (`--no-default-features --features agent`, profile `dist`), without units, with a store and
//!   TLS to a `muster up` on loopback that takes what it sends: a sample every ten seconds, a batch every thirty
//! - no metrics: the same with every group of measurements switched off, to tell measuring from being an agent
//! - collectd: cpu, memory, swap, load, df, disk, interface, uptime and processes every ten seconds, into CSV files
//! - netdata: what it reads of `/proc` and of file systems every ten seconds, kept in memory for an hour; without web, cloud, health, machine learning
//!   and the collectors that are programs of their own
//!
//! **Processor** is user and system time of a subject's processes, with children. **Series** are those that it keeps of this host: they
//! are not of the same things, and muster takes some of them (disks, temperature) once a minute.

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
#[path = "../../tests/fleet/mod.rs"]
mod fleet;
mod subject;

use std::{
    path::PathBuf,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use common::{agent, cli, usage};
use fleet::Fleet;
use subject::{Subject, Usage};

/// Largest share of a processor of an agent at rest, with a sample every ten seconds.
const CPU_MAX_PERCENT: f64 = 0.1;
/// Long enough for all of them to start, and for muster's first batch.
const SETTLE: Duration = Duration::from_secs(30);

/// What measuring costs a host: an agent beside collectd and netdata, in the same run
#[derive(clap::Args)]
struct Options {
    /// For how long
    #[arg(long, value_name = "N", default_value_t = 120, value_parser = cli::at_least::<u64>(1))]
    seconds: u64,
    /// An agent that was built before [default: as packages ship it]
    #[arg(long, value_name = "PROGRAM")]
    agent: Option<PathBuf>,
}

fn main() -> ExitCode {
    cli::main(run)
}

/// Measures and prints everything; returns whether the budget was missed.
fn run(options: &Options) -> Result<bool> {
    let program = match &options.agent {
        Some(program) => program.canonicalize()?,
        None => agent::build()?,
    };
    // Named, so that it is dropped after those that use it.
    let fleet = Fleet::start();
    let mut subjects = vec![Subject::agent(&fleet, &program, true)?, Subject::agent(&fleet, &program, false)?];
    subjects.extend(Subject::collectd()?);
    subjects.extend(Subject::netdata()?);
    thread::sleep(SETTLE);

    let (before, since) = (subjects.iter().map(Subject::usage).collect::<Result<Vec<Usage>>>()?, Instant::now());
    thread::sleep(Duration::from_secs(options.seconds));
    let mut columns = Vec::new();
    for (subject, before) in subjects.iter().zip(before) {
        let after = subject.usage()?;
        let percent = (after.busy - before.busy).as_secs_f64() / since.elapsed().as_secs_f64() * 100.0;
        columns.push((subject.name, percent, after));
    }
    subjects.iter_mut().for_each(Subject::end);
    let series = subjects.iter().map(|subject| subject.series(&fleet)).collect::<Result<Vec<usize>>>()?;
    drop(subjects);

    let cores = usage::cores();
    println!("\na sample every ten seconds, {} s, {cores} cores\n", options.seconds);
    let heads: String = columns.iter().map(|column| format!("{:>12}", column.0)).collect();
    println!("{:<28}{heads}  budget", "");
    let missed = columns[0].1 > CPU_MAX_PERCENT;
    let verdict = format!("<= {CPU_MAX_PERCENT}{}", if missed { "  MISSED" } else { "" });
    let row = |what: &str, cells: &dyn Fn(usize) -> String, verdict: &str| {
        let cells: String = (0..columns.len()).map(|index| format!("{:>12}", cells(index))).collect();
        println!("{what:<28}{cells}  {verdict}");
    };
    row("processor, % of a core", &|index| format!("{:.3}", columns[index].1), &verdict);
    row("memory (PSS), MB", &|index| format!("{:.1}", usage::mb(columns[index].2.pss_bytes)), "");
    row("memory (RSS), MB", &|index| format!("{:.1}", usage::mb(columns[index].2.rss_bytes)), "");
    row("processes", &|index| columns[index].2.processes.to_string(), "");
    row("series", &|index| series[index].to_string(), "");
    Ok(missed)
}

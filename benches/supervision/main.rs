//! Yunos under muster, beside the same program under runit, s6 and supervisord, in the same run, on this machine.
//!
//!     cargo bench --bench supervision -- [--check] [--yunos N] [--kills N] [--rest SECONDS] [--subject NAME]… [--program FILE]
//!
//! Measured of each: how long it takes to start all of them (from the supervisor's own start to the last `main`); how
//! long from SIGKILL of one to the `main` of its next process; what all processes of the supervisor together cost at rest:
//! memory (PSS), processor, how often they are woken; and how many copies of a program there are after its direct
//! supervisor was killed and is there again. `--check` ends with exit code 1 if a budget is missed.
//!
//! How: the program is a few lines of C, whose `main` writes the time into a FIFO (`program.c`). Each peer does what it
//! does as Debian packages it, with its own logger (svlogd, s6-log; supervisord and muster log by themselves). They are
//! unpacked below `target/tools`, so that no service of this host is touched (`apt-get download` has to
//! work for that once, and s6 needs root for a `/usr/bin` of its own). muster is the agent as packages ship it, and its shims, with TLS and its
//! store (`--program` takes another one that was built before); broker and console are processes of their own, and not
//! counted. Each program is killed once, when it has been up for more than a second. One that cannot be measured is
//! named, does not keep the others from it, and makes the exit code 1.

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
mod measure;
mod ours;
mod peers;
mod program;
mod table;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Result, ensure};

use common::{cli, usage};
use program::Mains;
use table::{Row, Table};

/// A supervisor.
pub(crate) trait Subject {
    /// Its name.
    fn name(&self) -> &'static str;
    /// Starts the supervisor, which starts all programs.
    fn start(&mut self) -> Result<()>;
    /// All processes of the supervisor.
    fn processes(&self) -> Vec<i32>;
    /// Those of them that belong to one program each, if there are such processes.
    fn direct(&self) -> Vec<i32> {
        Vec::new()
    }
    /// The process that restarts the program `name`.
    fn supervisor_of(&self, name: &str) -> Result<i32>;
    /// Makes sure that a killed supervisor runs again, if nothing else restarts it.
    fn start_again(&mut self) -> Result<()> {
        Ok(())
    }
    /// Ends the supervisor.
    fn stop(&mut self);
}

/// Yunos under muster, beside the same program under runit, s6 and supervisord, in the same run
#[derive(clap::Args)]
pub(crate) struct Options {
    /// How many programs there are; 256 are the most units that a host may have
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = cli::at_least::<usize>(1).range(..=256))]
    yunos: usize,
    /// How many of them are killed; fewer than there are
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = cli::at_least::<usize>(1))]
    kills: usize,
    /// How long everything is watched at rest
    #[arg(long = "rest", value_name = "SECONDS", default_value_t = 30, value_parser = cli::at_least::<u64>(1))]
    rest_s: u64,
    /// Measure this one; may be given more than once
    #[arg(long = "subject", value_name = "NAME", default_values = SUBJECTS, value_parser = SUBJECTS)]
    subjects: Vec<String>,
    /// An agent that was built before [default: as packages ship it]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

const SUBJECTS: [&str; 4] = ["muster", "runit", "s6", "supervisord"];

fn main() -> ExitCode {
    cli::main(run)
}

/// Measures all and prints the figures; returns whether a budget was missed.
fn run(options: &Options) -> Result<bool> {
    if options.kills >= options.yunos {
        cli::refuse("--kills has to be less than --yunos");
    }
    let (mut table, mut failures) = (Table::default(), 0);
    for subject in &options.subjects {
        match measure_one(subject, options) {
            Ok(rows) => rows.into_iter().for_each(|(row, name, value)| table.put(row, name, value)),
            // The others are still measured.
            Err(error) => {
                eprintln!("error: {subject}: {error:#}");
                failures += 1;
            }
        }
    }
    println!("\n{} programs that do nothing, {} cores\n", options.yunos, usage::cores());
    let missed = table.print();
    ensure!(failures == 0, "{failures} of {} could not be measured", options.subjects.len());
    Ok(missed)
}

/// Measures one of them.
fn measure_one(which: &str, options: &Options) -> Result<Vec<(Row, &'static str, f64)>> {
    let names: Vec<String> = (0..options.yunos).map(|number| format!("y{number}")).collect();
    let folder = tempfile::Builder::new().prefix("muster-bench-").tempdir()?;
    let mut mains = Mains::listen(folder.path())?;
    let mut subject: Box<dyn Subject> = match which {
        "muster" => Box::new(ours::Muster::new(options.program.as_deref(), mains.program(), &names)?),
        "runit" => Box::new(peers::runit(folder.path(), mains.program(), &names)?),
        "s6" => Box::new(peers::s6(folder.path(), mains.program(), &names)?),
        _ => Box::new(peers::supervisord(folder.path(), mains.program(), &names)?),
    };
    eprintln!("{which}: {} programs", names.len());
    let measured = measure::measure(&mut *subject, &mut mains, &names, options);
    subject.stop();
    mains.end_all();
    Ok(measured?.into_iter().map(|(row, value)| (row, subject.name(), value)).collect())
}

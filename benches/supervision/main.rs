//! Yunos under muster, beside the same program under runit, s6 and supervisord, in the same run, on this machine.
//!
//!     cargo bench --bench supervision -- [--check] [--yunos N] [--kills N] [--rest SECONDS] [--subject NAME]… [--program FILE]
//!
//! Measured of each: how long it takes to start all of them (from the supervisor's own start to the last `main`); how
//! long from SIGKILL of one to the `main` of its next process; what all processes of the supervisor together cost at rest:
//! memory (PSS), processor, how often they are woken; and how many copies of a program there are after its direct
//! supervisor was killed and is there again. `--check` ends with exit code 1 if a budget of DESIGN.md section 10 is missed.
//!
//! How: the program is a few lines of C, whose `main` writes the time into a FIFO (`program.c`). Each peer does what it
//! does as Debian packages it, with its own logger (svlogd, s6-log; supervisord and muster log by themselves). runit and
//! supervisord are unpacked below `target/tools`, so that no service of this host is touched (`apt-get download` has to
//! work for that once); s6 has to be installed. muster is the agent as packages ship it, and its shims, with TLS and its
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

#[path = "../common/agent.rs"]
mod agent;
#[path = "../../tests/fleet/mod.rs"]
mod fleet;
mod measure;
mod ours;
mod peers;
mod program;
mod table;

use std::{process::ExitCode, time::Duration};

use anyhow::Result;

use program::Mains;
use table::{Row, Table};

/// One that supervises.
pub(crate) trait Subject {
    /// Its name.
    fn name(&self) -> &'static str;
    /// Starts the supervisor, which starts all programs.
    fn start(&mut self) -> Result<()>;
    /// All processes of the supervisor.
    fn processes(&self) -> Vec<i32>;
    /// Those of them that there are for each program, if there are such.
    fn direct(&self) -> Vec<i32> {
        Vec::new()
    }
    /// The process that would start the program `name` again.
    fn supervisor_of(&self, name: &str) -> Result<i32>;
    /// Sees to it that a supervisor that was killed is there again, if nobody else does.
    fn start_again(&mut self) -> Result<()> {
        Ok(())
    }
    /// Ends the supervisor.
    fn stop(&mut self);
}

#[derive(Clone, Debug)]
pub(crate) struct Options {
    check: bool,
    yunos: usize,
    kills: usize,
    rest: Duration,
    subjects: Vec<String>,
    program: Option<std::path::PathBuf>,
}

const SUBJECTS: [&str; 4] = ["muster", "runit", "s6", "supervisord"];

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("error: {problem}");
            return ExitCode::from(2);
        }
    };
    let (mut table, mut failed) = (Table::default(), false);
    for subject in &options.subjects {
        match measure_one(subject, &options) {
            Ok(rows) => rows.into_iter().for_each(|(row, name, value)| table.put(row, name, value)),
            Err(error) => {
                eprintln!("error: {subject}: {error:#}");
                failed = true;
            }
        }
    }
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!("\n{} programs that do nothing, {cores} cores\n", options.yunos);
    let missed = table.print();
    if failed || (options.check && missed) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        check: false,
        yunos: 200,
        kills: 60,
        rest: Duration::from_secs(30),
        subjects: Vec::new(),
        program: None,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || {
            let number = args.next().and_then(|text| text.parse().ok()).filter(|number| *number > 0);
            number.ok_or_else(|| format!("{arg} wants a number, at least 1"))
        };
        match arg.as_str() {
            "--check" => options.check = true,
            "--yunos" => options.yunos = number()?,
            "--kills" => options.kills = number()?,
            "--rest" => options.rest = Duration::from_secs(number()? as u64),
            "--subject" => {
                let name = args.next().unwrap_or_default();
                if !SUBJECTS.contains(&name.as_str()) {
                    return Err(format!("{name:?} is no subject; there are {}", SUBJECTS.join(", ")));
                }
                options.subjects.push(name);
            }
            "--program" => options.program = Some(args.next().ok_or("--program wants a file")?.into()),
            // Cargo's own.
            "--bench" => {}
            other => return Err(format!("unknown argument {other}")),
        }
    }
    // The most units that a host may have.
    if options.yunos > 256 || options.kills >= options.yunos {
        return Err("at most 256 yunos, and fewer kills than those".to_owned());
    }
    if options.subjects.is_empty() {
        options.subjects = SUBJECTS.map(str::to_owned).to_vec();
    }
    Ok(options)
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

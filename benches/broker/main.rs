//! The embedded broker against Mosquitto, in the same run, on this machine.
//!
//!     cargo bench --bench broker -- [--check] [--quick] [--patient] [--rounds N] [--only ROW]… [--server NAME]…
//!
//! `--quick` leaves out 9,500 clients and takes fewer and shorter rounds; `--patient` waits, before each measurement, until
//! other programs leave the processor alone; `--only` takes a row (connect, memory, fan-out, pair, many, latency, tls,
//! storm), `--server` a server (muster, mosquitto, handshakes); `--check` ends with exit code 1 if a budget of DESIGN.md section 10 is missed.
//!
//! How it measures: each broker is a process of its own (the embedded one is `muster broker`, built with this bench's
//! profile), fresh for each row and round; rounds alternate between the two, and the medians are compared. The clients
//! are the same for both: raw MQTT 3.1.1 over non-blocking sockets in one thread (two where they speak TLS). Both may
//! queue without limit, and log what goes wrong only; Mosquitto may send without limit, too. Mosquitto has no password file and no permissions; the
//! embedded broker checks passwords and permissions as it always does. Memory is the PSS of the broker's process, so
//! kernel buffers are not in it. "handshakes" is a server that shakes hands (rustls, certificates on both sides),
//! answers CONNECT, and does nothing else.
//!
//! What it does not measure: a network. Clients and broker share this machine's processors, so that figures with as much work
//! on the clients' side (TLS above all) are lower than what a broker could do alone; all take part in that alike. MQTT 5,
//! WebSocket, persistent sessions and a store on disk are not in it.

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

mod bare;
mod load;
mod rows;
mod subject;
mod swarm;
mod table;
mod wire;

use std::{
    fs,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use rows::{Bench, ROWS, Row};
use subject::{Kind, Pki};
use table::Table;

/// Files that 9,500 clients and their program have open.
const FILES: u64 = 10_000;

struct Options {
    check: bool,
    quick: bool,
    patient: bool,
    rounds: usize,
    rows: Vec<&'static Row>,
    servers: Vec<Kind>,
}

fn main() -> ExitCode {
    if let Some(code) = bare::run_if_asked() {
        return code;
    }
    let options = match options() {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("error: {problem}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(missed) if options.check && missed => ExitCode::FAILURE,
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn options() -> Result<Options, String> {
    let mut options =
        Options { check: false, quick: false, patient: false, rounds: 0, rows: Vec::new(), servers: Vec::new() };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--check" => options.check = true,
            "--quick" => options.quick = true,
            "--patient" => options.patient = true,
            "--rounds" => {
                let number = args.next().and_then(|text| text.parse().ok()).filter(|number| *number > 0);
                options.rounds = number.ok_or("--rounds wants a number, at least 1")?;
            }
            "--only" => {
                let name = args.next().unwrap_or_default();
                let known = || ROWS.iter().map(|row| row.name).collect::<Vec<_>>().join(", ");
                let row = ROWS.iter().find(|row| row.name == name);
                options.rows.push(row.ok_or_else(|| format!("{name:?} is no row; there are {}", known()))?);
            }
            "--server" => {
                let name = args.next().unwrap_or_default();
                let server = Kind::ALL.into_iter().find(|kind| kind.name() == name);
                options.servers.push(server.ok_or_else(|| format!("{name:?} is no server of this bench"))?);
            }
            // Cargo's own.
            "--bench" => {}
            other => return Err(format!("unknown argument {other}")),
        }
    }
    if options.rows.is_empty() {
        options.rows = ROWS.iter().collect();
    }
    if options.servers.is_empty() {
        options.servers = Kind::ALL.to_vec();
    }
    if options.rounds == 0 {
        options.rounds = if options.quick { 3 } else { 5 };
    }
    Ok(options)
}

/// Measures everything and prints it; whether a budget was missed.
fn run(options: &Options) -> Result<bool> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    if hard < FILES {
        eprintln!("only {hard} files may be open: some rows will fail; `ulimit -Hn` should be at least {FILES}");
    }
    let mut bench = Bench { pki: Pki::new()?, quick: options.quick };
    let (mut table, mut failures) = (Table::default(), 0);
    let started = Instant::now();
    for row in &options.rows {
        for round in 0..options.rounds {
            for index in 0..row.kinds.len() {
                // Nobody is always the first.
                let kind = row.kinds[(index + round) % row.kinds.len()];
                if !options.servers.contains(&kind) {
                    continue;
                }
                if options.patient {
                    wait_for_quiet()?;
                }
                match (row.measure)(&mut bench, kind) {
                    Ok(samples) => samples.into_iter().for_each(|sample| table.put(kind, sample)),
                    // What else was asked for is worth knowing all the same.
                    Err(error) => {
                        eprintln!("error: {} with {}, round {}: {error:#}", row.name, kind.name(), round + 1);
                        failures += 1;
                    }
                }
            }
        }
        eprintln!("{} done after {:.0} s", row.name, started.elapsed().as_secs_f64());
    }
    let cores = thread::available_parallelism().map_or(0, usize::from);
    println!("\nembedded broker and Mosquitto, loopback, {cores} cores, {} rounds\n", options.rounds);
    let missed = table.print();
    ensure!(failures == 0, "{failures} measurements failed");
    Ok(missed)
}

/// Waits until the processors were idle nine tenths of a second, or for five minutes.
fn wait_for_quiet() -> Result<()> {
    const PATIENCE: Duration = Duration::from_secs(300);
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        let (idle, all) = processors()?;
        thread::sleep(Duration::from_secs(1));
        let (idle_then, all_then) = processors()?;
        if (idle_then - idle) * 10 >= (all_then - all) * 9 {
            return Ok(());
        }
    }
    eprintln!("the machine was busy for {PATIENCE:?}: measuring anyway");
    Ok(())
}

/// Ticks of all processors so far: idle ones, and all.
fn processors() -> Result<(u64, u64)> {
    let stat = fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().context("/proc/stat is empty")?;
    let ticks: Vec<u64> = line.split_whitespace().skip(1).map(str::parse).collect::<Result<_, _>>()?;
    // user, nice, system, idle, iowait, …
    let idle = ticks.iter().skip(3).take(2).sum();
    Ok((idle, ticks.iter().sum()))
}

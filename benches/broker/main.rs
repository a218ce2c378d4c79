//! The embedded broker against Mosquitto, in the same run, on this machine.
//!
//!     cargo bench --bench broker -- [--check] [--quick] [--patient] [--rounds N] [--only ROW]… [--server NAME]…
//!
//! `--quick` leaves out 9,500 clients and takes fewer and shorter rounds; `--patient` waits, before each measurement, until
//! other programs leave the processor alone; `--only` takes a row (connect, memory, fan-out, pair, many, latency, tls,
//! storm), `--server` a server (muster, mosquitto, handshakes); `--check` ends with exit code 1 if a budget is missed.
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
#[path = "../common/mod.rs"]
mod common;
mod load;
mod rows;
mod subject;
mod swarm;
mod table;
mod wire;

use std::{process::ExitCode, time::Instant};

use anyhow::{Result, ensure};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use common::{cli, usage};
use rows::{Bench, ROWS, Row};
use subject::{Kind, Pki};
use table::Table;

/// Number of files that 9,500 clients and their program have open.
const FILES: u64 = 10_000;

/// The embedded broker beside Mosquitto, in the same run
#[derive(clap::Args)]
struct Options {
    /// Leave out 9,500 clients, and take fewer and shorter rounds
    #[arg(long)]
    quick: bool,
    /// Wait, before each measurement, until other programs leave the processor alone
    #[arg(long)]
    patient: bool,
    /// How often each row is measured [default: 5, with --quick 3]
    #[arg(long, value_name = "N", value_parser = cli::at_least::<usize>(1))]
    rounds: Option<usize>,
    /// Measure this row; may be given more than once [default: all of them]
    #[arg(long = "only", value_name = "ROW", value_parser = row())]
    rows: Vec<Row>,
    /// Measure this server; may be given more than once
    #[arg(long = "server", value_name = "NAME", value_enum, default_values_t = Kind::ALL)]
    servers: Vec<Kind>,
}

fn row() -> impl TypedValueParser<Value = Row> {
    let find = |name: String| ROWS.iter().copied().find(|row| row.name == name).expect("one of these");
    PossibleValuesParser::new(ROWS.iter().map(|row| row.name)).map(find)
}

fn main() -> ExitCode {
    bare::run_if_asked().unwrap_or_else(|| cli::main(run))
}

/// Measures and prints everything; returns whether a budget was missed.
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
    let rounds = options.rounds.unwrap_or(if options.quick { 3 } else { 5 });
    let started = Instant::now();
    let rows = if options.rows.is_empty() { ROWS } else { &options.rows };
    for row in rows {
        for round in 0..rounds {
            for index in 0..row.kinds.len() {
                // The order alternates.
                let kind = row.kinds[(index + round) % row.kinds.len()];
                if !options.servers.contains(&kind) {
                    continue;
                }
                if options.patient {
                    usage::wait_for_quiet()?;
                }
                match (row.measure)(&mut bench, kind) {
                    Ok(samples) => samples.into_iter().for_each(|sample| table.put(kind, sample)),
                    // Other rows are still measured.
                    Err(error) => {
                        eprintln!("error: {} with {}, round {}: {error:#}", row.name, kind.name(), round + 1);
                        failures += 1;
                    }
                }
            }
        }
        eprintln!("{} done after {:.0} s", row.name, started.elapsed().as_secs_f64());
    }
    println!("\nembedded broker and Mosquitto, loopback, {} cores, {rounds} rounds\n", usage::cores());
    let missed = table.print();
    ensure!(failures == 0, "{failures} measurements failed");
    Ok(missed)
}

//! A simulated fleet against bare MQTT clients, in the same run, on this machine.
//!
//!     cargo bench --bench fleet -- [--check] [--quick] [--rounds N] [--hosts N]… [--only ROW]… [--broker NAME]…
//!
//! `--hosts` takes a number of hosts (1,000, 3,000 and 10,000 if none is given), `--only` a row (storm, command, rest, restart, bare), `--broker`
//! a broker (mosquitto, muster); `--quick` rests for ten seconds rather than a minute; `--check` ends with exit code 1 if a budget of DESIGN.md
//! section 10 is missed.
//!
//! How it measures: broker, console and hosts (`muster simulate`) are each a process of their own, fresh for each broker and number of hosts.
//! Mosquitto is as Debian installs it, over plain TCP, with its listener on a free port and its files in a folder of this run; the embedded broker speaks
//! TLS, with a certificate for each host, as `muster up` has it. Hosts join once, before anything is measured, and a larger number of hosts holds the smaller one.
//!
//! - storm: all hosts begin to connect at once, until the console's store has each of them online
//! - command: `exec true` to all hosts: from the request to the console's API until its store has every outcome. None may be missing; how many
//!   commands came to a host again is told, for that is what a lost answer leads to
//! - rest: bytes of MQTT for each host and hour while nothing happens (keep-alive alone: simulated hosts measure nothing), and what the console takes
//! - restart: the broker is killed and started again, until the console's store has a whole heartbeat of every host that was made after that
//! - bare: as many MQTT clients as hosts, with the same library, which answer a request of QoS 1 with one: no signature, no journal, no store; until whoever asked has
//!   every answer
//!
//! What it does not measure: a network, and hosts that are machines. All processes share this machine's processors.

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
mod ledger;
mod place;
mod process;

use std::{
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use place::{Broker, Kind, Place};

/// A command to all of them, every result stored, on stock Mosquitto over plain TCP.
const COMMAND_BUDGET: Duration = Duration::from_secs(1);
const BUDGET_HOSTS: u32 = 10_000;
/// The least share of the bare clients' rate.
const BARE_SHARE: f64 = 0.5;

const ROWS: [&str; 5] = ["storm", "command", "rest", "restart", "bare"];

struct Options {
    check: bool,
    quick: bool,
    rounds: usize,
    hosts: Vec<u32>,
    rows: Vec<&'static str>,
    brokers: Vec<Kind>,
}

impl Options {
    fn wants(&self, row: &str) -> bool {
        self.rows.contains(&row)
    }
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
        Options { check: false, quick: false, rounds: 5, hosts: Vec::new(), rows: Vec::new(), brokers: Vec::new() };
    let mut args = std::env::args().skip(1);
    let number = |text: Option<String>| text.and_then(|text| text.parse().ok()).filter(|number| *number > 0);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--check" => options.check = true,
            "--quick" => options.quick = true,
            "--rounds" => options.rounds = number(args.next()).ok_or("--rounds wants a number, at least 1")? as usize,
            "--hosts" => options.hosts.push(number(args.next()).ok_or("--hosts wants a number, at least 1")?),
            "--only" => {
                let name = args.next().unwrap_or_default();
                let row = ROWS.into_iter().find(|row| *row == name);
                options.rows.push(row.ok_or_else(|| format!("{name:?} is no row; there are {}", ROWS.join(", ")))?);
            }
            "--broker" => {
                let name = args.next().unwrap_or_default();
                let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
                options.brokers.push(kind.ok_or_else(|| format!("{name:?} is no broker of this bench"))?);
            }
            // Cargo's own.
            "--bench" => {}
            other => return Err(format!("unknown argument {other}")),
        }
    }
    if options.hosts.is_empty() {
        options.hosts = vec![1_000, 3_000, 10_000];
    }
    options.hosts.sort_unstable();
    if options.rows.is_empty() {
        options.rows = ROWS.to_vec();
    }
    if options.brokers.is_empty() {
        options.brokers = Kind::ALL.to_vec();
    }
    Ok(options)
}

/// Measures everything and prints it; whether a budget was missed.
fn run(options: &Options) -> Result<bool> {
    let most = u64::from(options.hosts.iter().copied().max().unwrap_or_default()) + 500;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    ensure!(hard >= most, "{most} files have to be open, and only {hard} may be; `ulimit -Hn`");
    // Mosquitto makes room for as many as it might have.
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(most), hard)?;
    let place = Place::new()?;
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let mut missed = false;
    println!("a simulated fleet, loopback, {cores} cores\n");
    println!("{:<10} {:>7}  {:<9} {:>12}  ", "broker", "hosts", "row", "measured");
    for hosts in &options.hosts {
        let begun = Instant::now();
        place.enrol(*hosts)?;
        eprintln!("{hosts} hosts are members after {:.0} s", begun.elapsed().as_secs_f64());
        for kind in &options.brokers {
            missed |= measure(options, &place, *kind, *hosts)?;
        }
    }
    Ok(missed)
}

/// All rows of one broker and number of hosts.
fn measure(options: &Options, place: &Place, kind: Kind, hosts: u32) -> Result<bool> {
    let print = |row: &str, measured: String, more: String| {
        println!("{:<10} {hosts:>7}  {row:<9} {measured:>12}  {more}", kind.name());
    };
    let broker = place.broker(kind)?;
    let bare = match options.wants("bare") && kind == Kind::Mosquitto {
        true => Some(bare::measure(&broker, hosts, options.rounds)?),
        false => None,
    };
    if let Some(bare) = &bare {
        let lost = if bare.lost == 0 { String::new() } else { format!("{} answers never came", bare.lost) };
        print("bare", seconds(bare.time), format!("{:.0}/s  {lost}", rate(hosts - bare.lost, bare.time)));
    }
    let console = place.console(&broker)?;
    let mut fleet = place.fleet(hosts)?;
    let storm = console.until_online(hosts, fleet.started)?;
    if options.wants("storm") {
        print(
            "storm",
            seconds(storm),
            format!(
                "{:.0}/s; memory of a simulated host {} KiB",
                rate(hosts, storm),
                fleet.pss_bytes()? / u64::from(hosts) / 1024
            ),
        );
    }
    let mut missed = false;
    if options.wants("command") {
        // What the storm led to is over.
        thread::sleep(Duration::from_secs(2));
        let mut times = Vec::new();
        let cpu = (console.cpu()?, fleet.cpu()?, broker.cpu()?);
        for round in 1..=options.rounds {
            let time = console.command_to_all(hosts)?;
            eprintln!("{} {hosts} command {round} of {}: {}", kind.name(), options.rounds, seconds(time));
            times.push(time);
            // The acknowledgements are no part of it, and must not be in the way of the next.
            fleet.until_acknowledged(u64::from(hosts) * round as u64)?;
        }
        let each = |now: Duration, then: Duration| (now - then).as_secs_f64() / options.rounds as f64;
        let cpu = format!(
            "processor: console {:.2} s, hosts {:.2} s, broker {:.2} s",
            each(console.cpu()?, cpu.0),
            each(fleet.cpu()?, cpu.1),
            each(broker.cpu()?, cpu.2)
        );
        times.sort_unstable();
        let time = times[times.len() / 2];
        let share = bare.as_ref().map(|bare| rate(hosts, time) / rate(hosts - bare.lost, bare.time));
        let of_bare = share.map_or(String::new(), |share| format!(", {:.2} of bare", share));
        let span = format!("{} to {}", seconds(times[0]), seconds(*times.last().expect("a round")));
        print("command", seconds(time), format!("{:.0}/s{of_bare}; {span}; {cpu}", rate(hosts, time)));
        if kind == Kind::Mosquitto && hosts == BUDGET_HOSTS {
            missed = time > COMMAND_BUDGET || share.is_some_and(|share| share < BARE_SHARE);
        }
    }
    if options.wants("rest") {
        rest(options, &console, &fleet, hosts, &print)?;
    }
    if options.wants("restart") {
        let broker = broker.restart(place)?;
        let time = console.until_in_sync(hosts, broker.started_ms)?;
        print("restart", seconds(time), format!("{:.0}/s", rate(hosts, time)));
        fleet.check()?;
        let summary = fleet.stop()?;
        print("", String::new(), summary);
        return Ok(missed);
    }
    let summary = fleet.stop()?;
    print("", String::new(), summary);
    drop::<Broker>(broker);
    Ok(missed)
}

fn rest(
    options: &Options,
    console: &place::Console,
    fleet: &place::Fleet,
    hosts: u32,
    print: &impl Fn(&str, String, String),
) -> Result<()> {
    let time = Duration::from_secs(if options.quick { 10 } else { 60 });
    // What the last command led to is over.
    thread::sleep(Duration::from_secs(5));
    let (cpu, bytes) = (console.cpu()?, fleet.bytes()?);
    thread::sleep(time);
    let (cpu, bytes) = (console.cpu()? - cpu, fleet.bytes()? - bytes);
    let hourly = bytes as f64 / f64::from(hosts) * 3600.0 / time.as_secs_f64();
    let busy = cpu.as_secs_f64() / time.as_secs_f64() * 100.0;
    let more = format!("a host and hour; console: {busy:.1} % of a core, memory {}", mib(console.pss_bytes()?));
    print("rest", format!("{hourly:.0} B"), more);
    Ok(())
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

fn rate(hosts: u32, time: Duration) -> f64 {
    f64::from(hosts) / time.as_secs_f64()
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / 1_048_576.0)
}

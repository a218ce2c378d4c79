//! A simulated fleet against bare MQTT clients, in the same run, on this machine.
//!
//!     cargo bench --bench fleet -- [--check] [--quick] [--rounds N] [--hosts N]… [--only ROW]… [--broker NAME]…
//!
//! `--hosts` takes a number of hosts (1,000, 3,000 and 10,000 if none is given), `--only` a row (storm, command, change, plan, rollout, rest, restart, bare), `--broker`
//! a broker (mosquitto, muster); `--quick` rests for ten seconds rather than a minute; `--check` ends with exit code 1 if a budget is missed.
//!
//! How it measures: broker, console and hosts (`muster simulate`) are each a process of their own, fresh for each broker and number of hosts.
//! Mosquitto is as Debian installs it, over plain TCP, with its listener on a free port and its files in a folder of this run; the embedded broker speaks
//! TLS, with a certificate for each host, as `muster up` has it. Hosts join once, before anything is measured, and a larger number of hosts holds the smaller one.
//!
//! - storm: all hosts begin to connect at once, until the console's store has each of them online
//! - command: `exec true` to all hosts: from the request to the console's API until its store has every outcome. None may be missing; how many
//!   commands came to a host again is told, for that is what a lost answer leads to
//! - change: another version of a deployment of all hosts, with a body of 2 KiB: from the request to the console's API until its store says of every
//!   host that it has stored and applied it (simulated hosts report documents, and run no units)
//! - plan: what another version of that deployment would change, asked of every host: from the request to the console's API until the whole plan was fetched.
//!   Simulated hosts have nothing to look at, so it is the console's part and the way there and back
//! - rollout: another version of a deployment of all hosts, which each of them asks for before it takes 2 s for the change: waves of one host, a tenth, and the
//!   rest, a tenth at most at the same time, no soak. From the request to the console's API until its store says that the rollout has ended, beside the sum of
//!   its waits: the least number of batches, 2 s each. Every host has to be verified
//! - rest: bytes of MQTT for each host and hour while nothing happens (keep-alive alone: simulated hosts measure nothing), and what the console takes
//! - restart: the broker is killed and started again, until the console's store has a whole heartbeat of every host that was made after that
//! - bare: as many MQTT clients as hosts, with the same library, which answer a request: no signature, no journal, no store; until whoever asked has
//!   every answer. Once at QoS 0, as muster's broadcasts and answers are, and once at QoS 1: the budget is a share of the latter's rate
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
#[path = "../common/mod.rs"]
mod common;
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
use rumqttc::QoS;

use bare::Bare;
use common::{cli, spread::Spread, usage};
use place::{Broker, Kind, Place};

/// A command to all hosts with every outcome stored, on an unmodified Mosquitto over plain TCP.
const COMMAND_BUDGET: Duration = Duration::from_secs(1);
const BUDGET_HOSTS: u32 = 10_000;
/// A change of the desired state of all hosts, observed on all of them.
const CHANGE_BUDGET: Duration = Duration::from_secs(3);
/// A plan of all hosts.
const PLAN_BUDGET: Duration = Duration::from_secs(5);
/// A rollout, relative to the sum of its waits.
const ROLLOUT_BUDGET: f64 = 1.3;
/// How long a simulated host takes for a change.
pub(crate) const CHANGE_TAKES: Duration = Duration::from_secs(2);
/// Smallest rate relative to the bare clients.
const BARE_SHARE: f64 = 0.5;

const ROWS: [&str; 8] = ["storm", "command", "change", "plan", "rollout", "rest", "restart", "bare"];

/// A simulated fleet beside bare MQTT clients, in the same run
#[derive(clap::Args)]
struct Options {
    /// Rest for ten seconds rather than a minute
    #[arg(long)]
    quick: bool,
    /// How often a command is given
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = cli::at_least::<usize>(1))]
    rounds: usize,
    /// Measure with so many hosts; may be given more than once
    #[arg(long, value_name = "N", default_values_t = [1_000, 3_000, 10_000], value_parser = cli::at_least::<u32>(1))]
    hosts: Vec<u32>,
    /// Measure this row; may be given more than once
    #[arg(long = "only", value_name = "ROW", default_values = ROWS, value_parser = ROWS)]
    rows: Vec<String>,
    /// Measure with this broker; may be given more than once
    #[arg(long = "broker", value_name = "NAME", value_enum, default_values_t = Kind::ALL)]
    brokers: Vec<Kind>,
}

impl Options {
    fn wants(&self, row: &str) -> bool {
        self.rows.iter().any(|wanted| wanted == row)
    }
}

fn main() -> ExitCode {
    bare::run_if_asked().unwrap_or_else(|| cli::main(run))
}

/// Measures and prints everything; returns whether a budget was missed.
fn run(options: &Options) -> Result<bool> {
    let most = u64::from(options.hosts.iter().copied().max().unwrap_or_default()) + 500;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    ensure!(hard >= most, "{most} files have to be open, and only {hard} may be; `ulimit -Hn`");
    // Mosquitto allocates memory for as many files as it may open.
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(most), hard)?;
    let place = Place::new()?;
    let mut missed = false;
    println!("a simulated fleet, loopback, {} cores\n", usage::cores());
    println!("{:<10} {:>7}  {:<9} {:>12}  ", "broker", "hosts", "row", "measured");
    let mut numbers = options.hosts.clone();
    numbers.sort_unstable();
    for hosts in numbers {
        let begun = Instant::now();
        place.enrol(hosts)?;
        eprintln!("{hosts} hosts are members after {:.0} s", begun.elapsed().as_secs_f64());
        for kind in &options.brokers {
            missed |= measure(options, &place, *kind, hosts)?;
        }
    }
    Ok(missed)
}

/// All rows of one broker and one number of hosts.
fn measure(options: &Options, place: &Place, kind: Kind, hosts: u32) -> Result<bool> {
    let print = |row: &str, measured: String, more: String| {
        println!("{:<10} {hosts:>7}  {row:<9} {measured:>12}  {more}", kind.name());
    };
    let broker = place.broker(kind)?;
    let mut bare = None;
    if options.wants("bare") && kind == Kind::Mosquitto {
        for (qos, what) in [(QoS::AtMostOnce, "QoS 0"), (QoS::AtLeastOnce, "QoS 1, of which the share is")] {
            let Bare { time, lost } = bare::measure(&broker, hosts, options.rounds, qos)?;
            let rate = rate(hosts - lost, time);
            let lost = if lost == 0 { String::new() } else { format!("; {lost} answers never came") };
            print("bare", seconds(time), format!("{rate:.0}/s  {what}{lost}"));
            bare = Some(rate);
        }
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
        // The work that follows the storm is finished.
        fleet.until_at_work(hosts)?;
        thread::sleep(Duration::from_secs(2));
        let mut times = Vec::new();
        let cpu = (console.cpu()?, fleet.cpu()?, broker.cpu()?);
        for round in 1..=options.rounds {
            let time = console.command_to_all(hosts)?;
            eprintln!("{} {hosts} command {round} of {}: {}", kind.name(), options.rounds, seconds(time));
            times.push(time);
            // Acknowledgements are not part of the measurement, and must not disturb the next one.
            fleet.until_acknowledged(u64::from(hosts) * round as u64)?;
        }
        let each = |now: Duration, then: Duration| (now - then).as_secs_f64() / options.rounds as f64;
        let cpu = format!(
            "processor: console {:.2} s, hosts {:.2} s, broker {:.2} s",
            each(console.cpu()?, cpu.0),
            each(fleet.cpu()?, cpu.1),
            each(broker.cpu()?, cpu.2)
        );
        let times = Spread::of(times);
        let time = times.median();
        let share = bare.map(|bare| rate(hosts, time) / bare);
        let of_bare = share.map_or(String::new(), |share| format!(", {:.2} of bare", share));
        let span = format!("{} to {}", seconds(times.least()), seconds(times.most()));
        print("command", seconds(time), format!("{:.0}/s{of_bare}; {span}; {cpu}", rate(hosts, time)));
        if kind == Kind::Mosquitto && hosts == BUDGET_HOSTS {
            missed |= time > COMMAND_BUDGET || share.is_some_and(|share| share < BARE_SHARE);
        }
    }
    if options.wants("change") {
        place.add_artifact()?;
        fleet.until_at_work(hosts)?;
        // The first version makes the units.
        let first = console.change_all(hosts)?;
        thread::sleep(Duration::from_secs(6));
        let (cpu, bytes) = ((console.cpu()?, fleet.cpu()?, broker.cpu()?), fleet.bytes()?);
        let mut times = Vec::new();
        for round in 1..=options.rounds {
            let time = console.change_all(hosts)?;
            eprintln!("{} {hosts} change {round} of {}: {}", kind.name(), options.rounds, seconds(time));
            times.push(time);
            // A host sends a heartbeat every five seconds at most; one that was quiet sends it at once.
            thread::sleep(Duration::from_secs(6));
        }
        let each = |now: Duration, then: Duration| (now - then).as_secs_f64() / options.rounds as f64;
        let times = Spread::of(times);
        let time = times.median();
        let more = format!(
            "{:.0}/s; {} to {}; the first {}; {:.0} B a host; processor: console {:.2} s, hosts {:.2} s, broker {:.2} s; console {}",
            rate(hosts, time),
            seconds(times.least()),
            seconds(times.most()),
            seconds(first),
            (fleet.bytes()? - bytes) as f64 / f64::from(hosts) / options.rounds as f64,
            each(console.cpu()?, cpu.0),
            each(fleet.cpu()?, cpu.1),
            each(broker.cpu()?, cpu.2),
            mib(console.pss_bytes()?),
        );
        print("change", seconds(time), more);
        missed |= kind == Kind::Mosquitto && hosts == BUDGET_HOSTS && time > CHANGE_BUDGET;
    }
    let parties = Parties { place, console: &console, fleet: &fleet, broker: &broker };
    if options.wants("plan") {
        let time = plan(options, &parties, hosts, &print)?;
        missed |= kind == Kind::Mosquitto && hosts == BUDGET_HOSTS && time > PLAN_BUDGET;
    }
    if options.wants("rollout") {
        missed |= rollout(options, &parties, hosts, &print)? > ROLLOUT_BUDGET && hosts == BUDGET_HOSTS;
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

/// What takes part.
struct Parties<'a> {
    place: &'a Place,
    console: &'a place::Console,
    fleet: &'a place::Fleet,
    broker: &'a Broker,
}

impl Parties<'_> {
    fn cpu(&self) -> Result<[Duration; 3]> {
        Ok([self.console.cpu()?, self.fleet.cpu()?, self.broker.cpu()?])
    }
}

/// Makes plans, and applies none of them; returns the median time.
fn plan(
    options: &Options,
    parties: &Parties<'_>,
    hosts: u32,
    print: &impl Fn(&str, String, String),
) -> Result<Duration> {
    let Parties { place, console, fleet, .. } = parties;
    place.add_artifact()?;
    fleet.until_at_work(hosts)?;
    // It is planned against a version that the hosts have.
    console.change_all(hosts)?;
    thread::sleep(Duration::from_secs(6));
    let (cpu, bytes) = (parties.cpu()?, fleet.bytes()?);
    let mut times = Vec::new();
    for round in 1..=options.rounds {
        let time = console.plan_all(hosts)?;
        eprintln!("{hosts} plan {round} of {}: {}", options.rounds, seconds(time));
        times.push(time);
    }
    let rounds = options.rounds as f64;
    let now = parties.cpu()?;
    let cpu = [0, 1, 2].map(|party: usize| (now[party] - cpu[party]).as_secs_f64() / rounds);
    let times = Spread::of(times);
    let time = times.median();
    let more = format!(
        "{:.0}/s; {} to {}; {:.0} B a host; processor: console {:.2} s, hosts {:.2} s, broker {:.2} s; console {}",
        rate(hosts, time),
        seconds(times.least()),
        seconds(times.most()),
        (fleet.bytes()? - bytes) as f64 / f64::from(hosts) / rounds,
        cpu[0],
        cpu[1],
        cpu[2],
        mib(console.pss_bytes()?),
    );
    print("plan", seconds(time), more);
    Ok(time)
}

/// The least number of batches, one after the other, in which all hosts can change: waves of one host, a tenth, and the rest, a tenth at the
/// same time.
fn batches(hosts: u32) -> u32 {
    let tenth = (hosts / 10).max(1);
    let rest = hosts.saturating_sub(1 + tenth);
    u32::from(hosts > 0) + u32::from(hosts > 1) + rest.div_ceil(tenth)
}

/// Rolls out versions; returns how long that took, relative to the sum of its waits.
fn rollout(options: &Options, parties: &Parties<'_>, hosts: u32, print: &impl Fn(&str, String, String)) -> Result<f64> {
    let Parties { place, console, fleet, .. } = parties;
    place.add_artifact()?;
    fleet.until_at_work(hosts)?;
    // The first version makes the units.
    let first = console.roll_out(hosts)?;
    let (cpu, bytes) = (parties.cpu()?, fleet.bytes()?);
    let mut times = Vec::new();
    for round in 1..=options.rounds {
        let time = console.roll_out(hosts)?;
        eprintln!("{hosts} rollout {round} of {}: {}", options.rounds, seconds(time));
        times.push(time);
    }
    let rounds = options.rounds as f64;
    let now = parties.cpu()?;
    let cpu = [0, 1, 2].map(|party: usize| (now[party] - cpu[party]).as_secs_f64() / rounds);
    let (times, waits) = (Spread::of(times), CHANGE_TAKES * batches(hosts));
    let time = times.median();
    let factor = time.as_secs_f64() / waits.as_secs_f64();
    let more = format!(
        "{factor:.2} of {} ({} batches); {:.0} admissions/s; {} to {}; the first {}; {:.0} B a host; \
         processor: console {:.2} s, hosts {:.2} s, broker {:.2} s; console {}",
        seconds(waits),
        batches(hosts),
        rate(hosts, time),
        seconds(times.least()),
        seconds(times.most()),
        seconds(first),
        (fleet.bytes()? - bytes) as f64 / f64::from(hosts) / rounds,
        cpu[0],
        cpu[1],
        cpu[2],
        mib(console.pss_bytes()?),
    );
    print("rollout", seconds(time), more);
    Ok(factor)
}

fn rest(
    options: &Options,
    console: &place::Console,
    fleet: &place::Fleet,
    hosts: u32,
    print: &impl Fn(&str, String, String),
) -> Result<()> {
    let time = Duration::from_secs(if options.quick { 10 } else { 60 });
    // The work that follows the last command is finished.
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

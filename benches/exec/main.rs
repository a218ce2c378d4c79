//! A command to many real agents, and a change of a file on all of them, beside Salt on the same machine in the same run.
//!
//!     cargo bench --bench exec -- [--check] [--hosts N] [--rounds N] [--only muster|salt] [--agent FILE]
//!
//! Both with their own command line, from its start to its end with every result: `muster exec --all -- true` beside `salt '*' cmd.run true`, and beside
//! `salt '*' test.ping`, which starts no program. Memory (PSS) is that of all processes of all hosts, and of what is central.
//!
//! The change: a config of 2 KiB gets another content everywhere. With muster it is another version of a deployment of one yuno, `muster deployment apply`
//! until each host reports it as verified: its process was told to read it again (HUP), and is up. With Salt it is a file that all minions manage,
//! `salt '*' state.apply`, until each minion has said that it wrote it; nothing is told to any process.
//!
//! muster is a `muster up` with its own agent, and agents of the package's build (profile `dist`), each a process with its own data folder, certificate and TLS
//! connection. Salt comes from PyPI into `target/salt`, once; its master and minions are as they are without a configuration, but for ports, folders and names, and the
//! master accepts every key.

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
mod salt;

use std::{
    path::PathBuf,
    process::{Command, ExitCode},
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use common::{agent, cli, spread::Spread, usage};
use fleet::{Fleet, Home, Running, eventually, file};

/// Budgets: the speed relative to Salt, and the share of its memory.
const FASTER: f64 = 10.0;
const MEMORY_SHARE: f64 = 0.2;

/// A command to many real agents, beside Salt
#[derive(clap::Args)]
struct Options {
    /// How many hosts there are
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = cli::at_least::<usize>(2))]
    hosts: usize,
    /// How often each command is given
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = cli::at_least::<usize>(1))]
    rounds: usize,
    /// Measure this one alone
    #[arg(long, value_name = "NAME", value_parser = ["muster", "salt"])]
    only: Option<String>,
    /// The program of the agents [default: one that is built as packages ship it]
    #[arg(long, value_name = "FILE")]
    agent: Option<PathBuf>,
}

/// The figures of one of the two.
pub(crate) struct Measured {
    /// Median time of a command that starts a program, and of one that does not, if there is one.
    pub(crate) run: Duration,
    pub(crate) ping: Option<Duration>,
    /// Median time of a change of a file on all hosts.
    pub(crate) change: Duration,
    /// Memory of all hosts together, and of the central processes.
    pub(crate) hosts_bytes: u64,
    pub(crate) central_bytes: u64,
}

fn main() -> ExitCode {
    cli::main(run)
}

/// Measures both and prints the figures; returns whether a budget was missed.
fn run(options: &Options) -> Result<bool> {
    let wants = |name: &str| options.only.as_deref().is_none_or(|only| only == name);
    println!("{} hosts on this machine, {} rounds\n", options.hosts, options.rounds);
    println!(
        "{:<8} {:>14} {:>14} {:>14} {:>16} {:>16}",
        "", "run true, s", "ping, s", "change, s", "a host, MB", "central, MB"
    );
    let print = |name: &str, measured: &Measured| {
        let mb = |bytes: u64| bytes as f64 / 1e6;
        println!(
            "{name:<8} {:>14.3} {:>14} {:>14.3} {:>16.2} {:>16.1}",
            measured.run.as_secs_f64(),
            measured.ping.map_or(String::new(), |ping| format!("{:.3}", ping.as_secs_f64())),
            measured.change.as_secs_f64(),
            mb(measured.hosts_bytes) / options.hosts as f64,
            mb(measured.central_bytes)
        );
    };
    let muster = wants("muster").then(|| muster(options)).transpose()?;
    muster.iter().for_each(|measured| print("muster", measured));
    let salt = wants("salt").then(|| salt::measure(options.hosts, options.rounds));
    salt.iter().for_each(|measured| print("salt", measured));
    let (Some(muster), Some(salt)) = (muster, salt) else { return Ok(false) };
    let faster = salt.run.as_secs_f64() / muster.run.as_secs_f64();
    let memory = |measured: &Measured| (measured.hosts_bytes + measured.central_bytes) as f64;
    let share = memory(&muster) / memory(&salt);
    let sooner = salt.change.as_secs_f64() / muster.change.as_secs_f64();
    println!(
        "\nrun true: {faster:.1} times faster (at least {FASTER}); change: {sooner:.1} times faster; memory of all: {share:.3} of it (at most {MEMORY_SHARE})"
    );
    Ok(faster < FASTER || share > MEMORY_SHARE)
}

fn muster(options: &Options) -> Result<Measured> {
    let program = options.agent.clone().map_or_else(agent::build, Ok)?;
    let mut fleet = Fleet::start();
    let more = (options.hosts - 1).to_string();
    let tokens = fleet.json(&["token", "create", "--count", &more]);
    let tokens: Vec<String> =
        tokens.as_array().unwrap().iter().map(|made| made["token"].as_str().unwrap().to_owned()).collect();
    let homes: Vec<Home> = tokens.iter().map(|_| Home::new()).collect();
    let agents: Vec<Running> = homes
        .iter()
        .zip(&tokens)
        .map(|(home, token)| {
            let mut command = Command::new(&program);
            home.dress(&mut command);
            command.args(["agent", "--data-dir"]).arg(home.path().join("agent")).args(["--join", token]);
            Running::start(&mut command)
        })
        .collect();
    eventually("every host to be online", || {
        let hosts = fleet.json(&["host", "ls"]);
        let online = hosts.as_array().unwrap().iter().filter(|host| host["presence"]["state"] == "online").count();
        if online == options.hosts { Ok(()) } else { Err(format!("{online} are online")) }
    });
    // The work that follows a start is finished.
    thread::sleep(Duration::from_secs(10));
    let hosts = options.hosts.to_string();
    let run = median(options.rounds, || {
        let ran = fleet.muster(&["exec", "--all", "--", "true"]).expect_code(0);
        assert!(ran.stderr.contains(&hosts), "{}", ran.stderr);
    });
    let hosts_bytes = agents.iter().map(|agent| pss_bytes(agent.pid().as_raw())).sum();
    // The agent of `muster up` belongs to the central processes.
    let central_bytes = pss_bytes(fleet.up().pid().as_raw());
    let change = change(&fleet, options);
    Ok(Measured { run, ping: None, change, hosts_bytes, central_bytes })
}

/// What both write on every host: as long for every number.
pub(crate) fn content(number: usize) -> String {
    format!("{{\"number\": \"{number:08}\", \"text\": \"{}\"}}\n", "x".repeat(2_000))
}

/// The time of a change of the config of one yuno on all hosts, which reads it again.
fn change(fleet: &Fleet, options: &Options) -> Duration {
    let script = "#!/bin/sh\ntrap 'kill $!' HUP\nwhile :; do sleep 1000 & wait $!; done\n";
    let script = file(&fleet.home, "till", script);
    fleet.ok(&["artifact", "create", &script, "--role", "till", "--version", "1"]);
    let (mut number, hosts) = (0, options.hosts.to_string());
    let mut apply = || {
        number += 1;
        let config = file(&fleet.home, "till.json", &content(number));
        fleet.ok(&["config", "create", "till.main", &number.to_string(), &config]);
        let document = format!(
            "deployment: default/till\ntarget: {{select: 'host=*'}}\nunits:\n- {{name: till, artifact: till@1, \
             configs: [till.main@{number}], reload: signal, verify_after_ms: 1}}\n"
        );
        let document = file(&fleet.home, "till.yaml", &document);
        let began = Instant::now();
        let ran = fleet.muster(&["deployment", "apply", &document, "--yes"]).expect_code(0);
        let took = began.elapsed();
        assert!(ran.stderr.contains(&hosts), "{}", ran.stderr);
        took
    };
    // The first version starts the yuno.
    apply();
    thread::sleep(Duration::from_secs(10));
    let times = (0..options.rounds).map(|_| {
        let took = apply();
        thread::sleep(Duration::from_secs(6));
        took
    });
    Spread::of(times).median()
}

/// The median time of some runs, after one that is not counted.
pub(crate) fn median(rounds: usize, mut run: impl FnMut()) -> Duration {
    run();
    let times = (0..rounds).map(|_| {
        let began = Instant::now();
        run();
        began.elapsed()
    });
    Spread::of(times).median()
}

/// The memory of a process; 0 if it has ended.
pub(crate) fn pss_bytes(pid: i32) -> u64 {
    usage::pss_bytes(pid).unwrap_or_default()
}

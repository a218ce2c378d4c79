//! What an agent costs its host: memory, processor, and the time from its start to its first heartbeat.
//!
//!     cargo bench --bench footprint -- [--check] [--seconds N] [--busy N] [--starts N] [--program FILE]
//!
//! Measured on the agent that packages ship (`--no-default-features --features agent`, profile
//! `dist`; `--program` takes another one that was built before), without units, with TLS and its store, against a `muster up` on
//! loopback. Memory is looked at every quarter of a second: at rest, and then while it runs a hundred commands, one after the other, and
//! broker and console answer nobody for a while in the middle. `--check` ends with exit code 1 if a budget is exceeded.

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

#[path = "common/mod.rs"]
mod common;
#[path = "../tests/fleet/mod.rs"]
mod fleet;

use std::{
    fs,
    path::PathBuf,
    process::{Command, ExitCode},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use common::{agent, cli, spread::Spread, usage};
use fleet::{Fleet, Home, Running};
use muster_net::pki;
use nix::sys::signal::Signal;
use rumqttc::{Client, Event, Incoming, MqttOptions, QoS, TlsConfiguration, Transport};

/// Budgets of an agent, on two cores: the mean at rest, and the most while it works.
const PSS_MEAN_MB: f64 = 5.0;
const PSS_MAX_MB: f64 = 6.5;
const CPU_MAX_PERCENT: f64 = 0.1;
const HEARTBEAT_MAX_MS: f64 = 70.0;
const PROGRAM_MAX_MB: f64 = 9.0;

/// What an agent costs its host: memory, processor, and the time from its start to its first heartbeat
#[derive(clap::Args)]
struct Options {
    /// How long it is watched at rest
    #[arg(long, value_name = "N", default_value_t = 120, value_parser = cli::at_least::<u64>(1))]
    seconds: u64,
    /// How long it is watched while it works; an hour shows what stays
    #[arg(long = "busy", value_name = "N", default_value_t = 300, value_parser = cli::at_least::<u64>(120))]
    busy_s: u64,
    /// How often it is started
    #[arg(long, value_name = "N", default_value_t = 11, value_parser = cli::at_least::<usize>(1))]
    starts: usize,
    /// An agent that was built before [default: as packages ship it]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

/// Number of commands while it works.
const COMMANDS: u32 = 100;
/// How long broker and console answer nobody: longer than an agent waits for its broker.
const AWAY: Duration = Duration::from_secs(90);
const LOOK: Duration = Duration::from_millis(250);

fn main() -> ExitCode {
    cli::main(run)
}

/// Measures and prints everything; returns whether a budget was missed.
fn run(options: &Options) -> Result<bool> {
    let program = options.program.as_ref().map_or_else(agent::build, |program| Ok(program.canonicalize()?))?;
    let mut fleet = Fleet::start();
    let home = Home::new();
    let heartbeats = watch_heartbeats(&fleet);

    let token = fleet.json(&["token", "create"])["token"].as_str().unwrap().to_owned();
    let start = |more: &[&str]| {
        let mut command = Command::new(&program);
        home.dress(&mut command);
        command.args(["agent", "--data-dir"]).arg(home.path().join("agent")).args(more);
        (Instant::now(), Running::start(&mut command))
    };
    let (_, joining) = start(&["--join", &token]);
    let host = first_heartbeat(&heartbeats, |_| true).1;
    joining.stop();

    let delays_ms = Spread::of((0..options.starts).map(|_| {
        while heartbeats.try_recv().is_ok() {}
        let (started, agent) = start(&[]);
        let (arrived, _) = first_heartbeat(&heartbeats, |from| from == host);
        agent.stop();
        (arrived - started).as_secs_f64() * 1000.0
    }));

    let (_, agent) = start(&[]);
    first_heartbeat(&heartbeats, |from| from == host);
    // Long enough for the first sample and batch, and for the start's memory to be released.
    thread::sleep(Duration::from_secs(20));
    let pid = agent.pid().as_raw();
    let (before, since) = (usage::threads(pid)?, Instant::now());
    let rest = Memory::watch(pid, || thread::sleep(Duration::from_secs(options.seconds)))?;
    let (taken, seconds) = (usage::threads(pid)?.since(&before), since.elapsed().as_secs_f64());
    let (cpu_percent, wakes) = (taken.busy.as_secs_f64() / seconds * 100.0, taken.wakes as f64 / seconds);
    let busy = Memory::watch(pid, || work(&mut fleet, &host, Duration::from_secs(options.busy_s)))?;
    agent.stop();

    let binary_mb = fs::metadata(&program)?.len() as f64 / 1e6;
    println!(
        "agent without units; {} starts, {} s of rest, {} s of work\n",
        options.starts, options.seconds, options.busy_s
    );
    println!("{:<34} {:>10} {:>10}", "", "measured", "budget");
    let rows = [
        ("memory at rest (PSS), mean, MB", rest.pss.mean(), Some(PSS_MEAN_MB)),
        ("  the most", rest.pss.most(), None),
        ("  RSS, mean", rest.rss.mean(), None),
        ("memory at work (PSS), mean, MB", busy.pss.mean(), None),
        ("  99 % of the time at most", busy.pss.percentile(99), None),
        ("  the most", busy.pss.most(), Some(PSS_MAX_MB)),
        ("processor at rest, % of a core", cpu_percent, Some(CPU_MAX_PERCENT)),
        ("wake-ups at rest, /s", wakes, None),
        ("start to first heartbeat, ms", delays_ms.median(), Some(HEARTBEAT_MAX_MS)),
        ("  the slowest", delays_ms.most(), None),
        ("program, MB", binary_mb, Some(PROGRAM_MAX_MB)),
    ];
    let mut exceeded = false;
    for (what, measured, budget) in rows {
        let over = budget.is_some_and(|budget| measured > budget);
        exceeded |= over;
        let budget = budget.map(|budget| format!("{budget:.2}")).unwrap_or_default();
        println!("{what:<34} {measured:>10.3} {budget:>10}{}", if over { "  over" } else { "" });
    }
    Ok(exceeded)
}

/// What a process has held over a time, in MB.
struct Memory {
    pss: Spread<f64>,
    rss: Spread<f64>,
}

impl Memory {
    /// Looks at a process for as long as `meanwhile` takes.
    fn watch(pid: i32, meanwhile: impl FnOnce()) -> Result<Self> {
        let (stop, stopped) = mpsc::channel::<()>();
        let watcher = thread::spawn(move || -> Result<_> {
            let mut seen = Vec::new();
            while stopped.recv_timeout(LOOK) == Err(mpsc::RecvTimeoutError::Timeout) {
                seen.push((usage::mb(usage::pss_bytes(pid)?), usage::mb(usage::rss_bytes(pid)?)));
            }
            Ok(seen)
        });
        meanwhile();
        drop(stop);
        let seen = watcher.join().expect("the watcher does not panic")?;
        let column = |of: fn(&(f64, f64)) -> f64| Spread::of(seen.iter().map(of));
        Ok(Self { pss: column(|seen| seen.0), rss: column(|seen| seen.1) })
    }
}

/// Has the agent run commands, and lose and find its broker in the middle.
fn work(fleet: &mut Fleet, host: &str, time: Duration) {
    for number in 0..COMMANDS {
        if number == COMMANDS / 2 {
            fleet.up().signal(Signal::SIGSTOP);
            thread::sleep(AWAY);
            fleet.up().signal(Signal::SIGCONT);
        }
        // After a loss it has to come back first.
        fleet::eventually("an answer", || {
            let run = fleet.muster(&["exec", "--host", host, "--", "uname", "-a"]);
            if run.code == 0 { Ok(()) } else { Err(run.stderr) }
        });
        thread::sleep(time.saturating_sub(AWAY) / COMMANDS);
    }
}

/// Subscribes to heartbeats as an independent client: the arrival time and host of each.
fn watch_heartbeats(fleet: &Fleet) -> mpsc::Receiver<(Instant, String)> {
    let folder = fleet.issue("observer", "bench");
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let tls = pki::client(&read("authority.pem"), &read("certificate.pem"), &read("key.pem")).unwrap();
    let url = fleet.address("mqtts://");
    let (address, port) = url.trim_start_matches("mqtts://").rsplit_once(':').unwrap();
    let mut options = MqttOptions::new("observer-bench", address, port.parse().unwrap());
    options.set_transport(Transport::Tls(TlsConfiguration::Rustls(std::sync::Arc::new(tls))));
    let (client, mut connection) = Client::new(options, 10);
    client.subscribe("muster/s/+/h/+/heartbeat", QoS::AtLeastOnce).unwrap();
    let (sender, receiver) = mpsc::channel();
    let (ready_sender, ready) = mpsc::channel();
    thread::spawn(move || {
        let _client = client;
        for event in connection.iter() {
            match event {
                Ok(Event::Incoming(Incoming::SubAck(_))) => drop(ready_sender.send(())),
                Ok(Event::Incoming(Incoming::Publish(publish))) => {
                    let host = publish.topic.split('/').nth(2).unwrap_or_default().to_owned();
                    if sender.send((Instant::now(), host)).is_err() {
                        return;
                    }
                }
                Ok(_) => {}
                Err(_) => return,
            }
        }
    });
    ready.recv_timeout(Duration::from_secs(30)).expect("the broker lets an observer subscribe");
    receiver
}

fn first_heartbeat(heartbeats: &mpsc::Receiver<(Instant, String)>, wanted: impl Fn(&str) -> bool) -> (Instant, String) {
    loop {
        let beat = heartbeats.recv_timeout(Duration::from_secs(60)).expect("a heartbeat");
        if wanted(&beat.1) {
            return beat;
        }
    }
}

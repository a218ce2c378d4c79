//! An artifact of 1 GB on its way: from a console to verified and installed on an agent, over loopback TLS, beside
//! `sha256sum` and `cp` of the same file in the same run.
//!
//!     cargo bench --bench artifact -- [--check] [--patient] [--rounds N] [--megabytes N]
//!
//! `--patient` waits, before each measurement, until other programs leave the processor alone; `--check` ends with exit
//! code 1 if a budget is missed.
//!
//! How it measures: `muster up` is the console (with a broker and an agent of its own, which has nothing to do); a
//! second agent, a process of its own, is asked to make a unit of the artifact. The time is from that command to the
//! moment at which the file has its final name, so that command line, signature, broker and store are in it, and so is
//! `fsync`, which `cp` leaves out; the last row adds it there. All files are in the page cache before the clock starts, on
//! both sides. Rounds alternate, and the medians are compared. Memory is the highest resident size (VmHWM, set back
//! before each round) and the highest PSS of samples every 10 ms, each of the whole process.
//!
//! What it does not measure: a network, or a disk that has to be read. Both ends share this machine's processors.

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
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use common::{cli, spread::Spread, usage};
use fleet::{Fleet, Home, Running, eventually};

/// Smallest speed relative to `sha256sum` followed by `cp`.
const SPEED_MIN: f64 = 0.8;
/// Largest memory of either end, in MB: much less than an artifact, so that its size does not matter.
const MEMORY_MAX_MB: f64 = 100.0;

/// An artifact on its way from a console to installed on an agent, beside `sha256sum` and `cp`
#[derive(clap::Args)]
struct Options {
    /// Wait, before each measurement, until other programs leave the processor alone
    #[arg(long)]
    patient: bool,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = cli::at_least::<usize>(1))]
    rounds: usize,
    /// The size of the artifact
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = cli::at_least::<u64>(1))]
    megabytes: u64,
}

fn main() -> ExitCode {
    cli::main(run)
}

/// Measures and prints everything; returns whether a budget was missed.
fn run(options: &Options) -> Result<bool> {
    let mut fleet = Fleet::start();
    let up = fleet.up().pid().as_raw();
    let (home, agent, host) = second_agent(&fleet);
    let file = fleet.home.path().join("artifact");
    write_random(&file, options.megabytes * 1_000_000);
    let began = Instant::now();
    fleet.ok(&["artifact", "create", file.to_str().unwrap(), "--role", "large", "--version", "1"]);
    let upload_s = began.elapsed().as_secs_f64();
    let sha256 = fleet.json(&["artifact", "show", "large"])["sha256"].as_str().unwrap().to_owned();
    let installed = home.path().join("agent/artifacts").join(&sha256);

    let mut rows: [Vec<f64>; 7] = Default::default();
    for round in 0..options.rounds {
        for row in 0..2 {
            if options.patient {
                usage::wait_for_quiet()?;
            }
            // The order alternates.
            if (row + round) % 2 == 0 {
                let watched = Watched::new([up, agent.pid().as_raw()]);
                rows[0].push(install(&fleet, &host, &installed, round));
                let [console, agent] = watched.finish()?;
                for (row, bytes) in rows[3..].iter_mut().zip([console.0, console.1, agent.0, agent.1]) {
                    row.push(usage::mb(bytes));
                }
            } else {
                let (plain_s, sync_s) = copy(&file);
                rows[1].push(plain_s);
                rows[2].push(plain_s + sync_s);
            }
        }
    }
    agent.stop();
    let [ours, plain, synced, console_rss, console_pss, agent_rss, agent_pss] =
        rows.map(|row| Spread::of(row).median());
    println!("an artifact of {} MB, {} rounds, {} cores\n", options.megabytes, options.rounds, usage::cores());
    println!("{:<54} {:>9} {:>9}", "", "measured", "budget");
    let speed = plain / ours;
    let rows = [
        ("upload by the command line, s", upload_s, None),
        ("from the console to verified and installed, s", ours, Some((plain / SPEED_MIN, false))),
        ("  sha256sum, then cp, s", plain, None),
        ("  sha256sum, then cp, then sync of the copy, s", synced, None),
        ("  speed against sha256sum and cp", speed, Some((SPEED_MIN, true))),
        ("  speed against these with sync", synced / ours, None),
        ("console (with broker and an agent), peak RSS, MB", console_rss, Some((MEMORY_MAX_MB, false))),
        ("  peak PSS, MB", console_pss, None),
        ("agent, peak RSS, MB", agent_rss, Some((MEMORY_MAX_MB, false))),
        ("  peak PSS, MB", agent_pss, None),
    ];
    let mut missed = false;
    for (what, measured, budget) in rows {
        let met = budget.is_none_or(|(bound, at_least)| if at_least { measured >= bound } else { measured <= bound });
        missed |= !met;
        let budget = budget.map(|(bound, at_least)| format!("{} {bound:.2}", if at_least { "≥" } else { "≤" }));
        println!("{what:<54} {measured:>9.3} {:>9}{}", budget.unwrap_or_default(), if met { "" } else { "  MISSED" });
    }
    Ok(missed)
}

/// Another host of the fleet, whose agent is a separate process.
fn second_agent(fleet: &Fleet) -> (Home, Running, String) {
    let home = Home::new();
    let first = fleet.host();
    let token = fleet.json(&["token", "create"])["token"].as_str().unwrap().to_owned();
    let mut command = home.command();
    command.args(["agent", "--data-dir"]).arg(home.path().join("agent")).args(["--join", &token]);
    let agent = Running::start(&mut command);
    let host = eventually("the second agent", || {
        let hosts = fleet.json(&["host", "ls"]);
        let is_second = |host: &&serde_json::Value| host["id"] != *first && host["presence"]["state"] == "online";
        let second = hosts.as_array().unwrap().iter().find(is_second);
        second.map(|host| host["id"].as_str().unwrap().to_owned()).ok_or_else(|| hosts.to_string())
    });
    (home, agent, host)
}

/// Bytes that cannot be compressed (xorshift64).
fn write_random(path: &Path, bytes: u64) {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path).unwrap());
    // It could be executed.
    file.write_all(b"#!/bin/sh\nexit 0\n").unwrap();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..bytes / 8 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        file.write_all(&state.to_le_bytes()).unwrap();
    }
    file.into_inner().unwrap().sync_all().unwrap();
}

/// The time from the command until the artifact is installed.
fn install(fleet: &Fleet, host: &str, installed: &Path, round: usize) -> f64 {
    let _ = fs::remove_file(installed);
    let unit = format!("{host}:default/large-{round}");
    let began = Instant::now();
    fleet.ok(&["yuno", "create", &unit, "--artifact", "large@1", "--no-wait"]);
    while !installed.exists() {
        assert!(began.elapsed() < fleet::PATIENCE, "it was not installed in time");
        thread::sleep(Duration::from_millis(1));
    }
    began.elapsed().as_secs_f64()
}

/// The times of `sha256sum` and `cp`, with a `sync` of the copy.
fn copy(file: &Path) -> (f64, f64) {
    let copy = PathBuf::from(format!("{}.copy", file.display()));
    let run = |program: &str, args: &[&Path]| {
        let began = Instant::now();
        let status = Command::new(program).args(args).stdout(Stdio::null()).status().unwrap();
        assert!(status.success(), "{program} failed");
        began.elapsed().as_secs_f64()
    };
    let plain_s = run("sha256sum", &[file]) + run("cp", &[file, &copy]);
    let sync_s = run("sync", &[&copy]);
    fs::remove_file(copy).unwrap();
    (plain_s, sync_s)
}

/// Two processes whose memory is measured.
struct Watched {
    pids: [i32; 2],
    over: Arc<AtomicBool>,
    sampler: thread::JoinHandle<io::Result<[u64; 2]>>,
}

impl Watched {
    fn new(pids: [i32; 2]) -> Self {
        for pid in pids {
            let _ = usage::forget_peak(pid);
        }
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let sampler = thread::spawn(move || {
            let mut highest = [0; 2];
            while !is_over.load(Ordering::Relaxed) {
                for (highest, pid) in highest.iter_mut().zip(pids) {
                    *highest = usage::pss_bytes(pid)?.max(*highest);
                }
                thread::sleep(Duration::from_millis(10));
            }
            Ok(highest)
        });
        Self { pids, over, sampler }
    }

    /// The highest RSS and PSS of each.
    fn finish(self) -> io::Result<[(u64, u64); 2]> {
        self.over.store(true, Ordering::Relaxed);
        let pss = self.sampler.join().unwrap()?;
        let [console, agent] = self.pids;
        Ok([(usage::peak_rss_bytes(console)?, pss[0]), (usage::peak_rss_bytes(agent)?, pss[1])])
    }
}

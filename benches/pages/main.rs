//! How long the console takes for its pages when ten thousand hosts are members.
//!
//!     cargo bench --bench pages -- [--check] [--hosts N] [--rounds N]
//!
//! `--hosts` says how many (10,000), `--rounds` how often each page is asked for (20); `--check` ends with exit code 1 if a page misses its budget.
//!
//! How it measures: a `muster up` is set up and stopped; its store is filled, with the functions that the console itself stores by, with hosts
//! (certificate, presence, heartbeat of 30 properties and 12 labels, three units, one of a deployment), alerts, and commands for all of them with every outcome; its
//! time-series store with what hosts measure. Then it is started again, and asked over HTTP on loopback, one request at a time, each on a connection
//! of its own, with the session of a browser: from connecting to the last byte. **First** is the first time that a page is asked for after the start, when
//! nothing is in memory; median and 95th percentile are of the rounds after that. Scripts and styles, which browsers keep, are not asked for. Hosts are not connected: what
//! a page costs while they talk is what it costs alone, and its turn on the processors.

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

mod browser;
#[path = "../common/mod.rs"]
mod common;
mod fill;
#[path = "../../tests/fleet/mod.rs"]
mod fleet;

use std::{
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use browser::Browser;
use common::{cli, spread::Spread, usage};
use fleet::Fleet;

/// Longest time for any page.
const BUDGET_MS: f64 = 50.0;
/// The console's work after its start is finished after this time.
const SETTLE: Duration = Duration::from_secs(10);

/// How long the console takes for its pages when many hosts are members
#[derive(clap::Args)]
struct Options {
    /// How many there are
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = cli::at_least::<usize>(1))]
    hosts: usize,
    /// How often each page is asked for
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = cli::at_least::<usize>(1))]
    rounds: usize,
}

fn main() -> ExitCode {
    cli::main(run)
}

/// Measures and prints every page; returns whether a budget was missed.
fn run(options: &Options) -> Result<bool> {
    let mut fleet = Fleet::start();
    fleet.stop();
    let began = Instant::now();
    let filled = fill::fill(&fleet.data().join("console"), options.hosts)?;
    eprintln!("{} hosts are in the store after {:.0} s", options.hosts, began.elapsed().as_secs_f64());
    fleet.again();
    thread::sleep(SETTLE);
    let browser = Browser::sign_in(&fleet.sign_in_link())?;

    let (host, unit) = (&filled.host, &filled.unit);
    let (last, last_units) = (options.hosts.div_ceil(100), (options.hosts * 3).div_ceil(100));
    let pages = [
        ("fleet", "/".to_owned(), "online"),
        ("  its numbers alone", "/?part=glance".to_owned(), "online"),
        ("  its last page", format!("/?page={last}"), "previous"),
        ("hosts found by a part of their names", "/?q=op-012".to_owned(), "shop-012"),
        ("hosts that are away", "/?show=away".to_owned(), "shop-"),
        ("a host", format!("/host/{host}"), "shop-00000"),
        ("a unit", format!("/host/{host}/unit/{unit}"), "till-0"),
        ("commands", "/commands".to_owned(), "sh -c true"),
        ("a command to all, done", format!("/command/{}", filled.done), "ok"),
        ("  its last page", format!("/command/{}?page={last}", filled.done), "previous"),
        ("  one host of it", format!("/command/{}?host={host}", filled.done), "shop-00000"),
        ("a command to all, under way", format!("/command/{}", filled.open), "waiting"),
        ("units", "/units".to_owned(), "1–"),
        ("  their list alone", "/units?part=units".to_owned(), "1–"),
        ("  the last page", format!("/units?page={last_units}"), "previous"),
        ("  those that have failed", "/units?phase=failed".to_owned(), "till-1"),
        ("  of a deployment", format!("/units?deployment={}", fill::DEPLOYMENT), "1–"),
        ("  in its earlier version", format!("/units?deployment={}&version=1", fill::DEPLOYMENT), "1–"),
        ("  by a selector", "/units?select=name%3Dtill-2%20and%20phase%3Drunning".to_owned(), "1–"),
        ("deployments", "/deployments".to_owned(), fill::DEPLOYMENT),
        ("a deployment of all", format!("/deployment/{}", fill::DEPLOYMENT), fill::DEPLOYMENT),
        ("variables", "/vars".to_owned(), "There are no variables"),
        ("alerts", "/alerts".to_owned(), "93 %"),
        ("running a command", "/run".to_owned(), "csrf"),
        ("charts of the fleet, a day", "/charts?range=24h".to_owned(), "charts"),
        ("charts of a host, an hour", format!("/host/{host}/charts?range=1h"), "charts"),
        ("charts of a host, a day", format!("/host/{host}/charts?range=24h"), "charts"),
    ];
    let cores = usage::cores();
    println!("\npages of a console with {} hosts, {} rounds, {cores} cores\n", options.hosts, options.rounds);
    println!("{:<38} {:>9} {:>10} {:>9} {:>9}", "ms", "first", "median", "p95", "KB");
    let mut missed = false;
    for (what, path, word) in pages {
        let ask = || -> Result<(f64, usize)> {
            let asked = Instant::now();
            let page = browser.get(&path)?;
            let took_ms = asked.elapsed().as_secs_f64() * 1e3;
            ensure!(page.contains(word), "{path} does not say {word:?}: {page}");
            Ok((took_ms, page.len()))
        };
        let (first, bytes) = ask()?;
        let times = Spread::of((0..options.rounds).map(|_| Ok(ask()?.0)).collect::<Result<Vec<f64>>>()?);
        let (median, p95) = (times.median(), times.percentile(95));
        let over = p95 > BUDGET_MS;
        missed |= over;
        let verdict = if over { format!("  over {BUDGET_MS:.0}") } else { String::new() };
        println!("{what:<38} {first:>9.1} {median:>10.1} {p95:>9.1} {:>9.0}{verdict}", bytes as f64 / 1e3);
    }
    fleet.stop();
    Ok(missed)
}

//! What one decision about a rollout costs: who may begin, of many hosts that all ask.
//!
//!     cargo bench -p muster-rules --bench rollout -- [--hosts N] [--rounds N] [--check]
//!
//! The console decides again whenever a host has said something. Here all hosts ask at once, which is the most that there is to
//! decide; one in twenty is in the middle of its change. First without a budget, then with one over a hundred groups.

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

#[path = "common/cli.rs"]
#[allow(dead_code, reason = "each bench uses a part of it")]
mod cli;
#[path = "common/spread.rs"]
#[allow(dead_code, reason = "each bench uses a part of it")]
mod spread;

use std::{
    convert::Infallible,
    hint::black_box,
    process::ExitCode,
    time::{Duration, Instant},
};

use jiff::tz::TimeZoneDatabase;
use muster_rules::rollout::{
    decide::decide,
    policy::{Budget, RolloutPolicy, Share},
    state::RolloutState,
    transition::TargetHost,
};
use muster_topics::{ack::Numbered, name::HostId};
use spread::Spread;
use uuid::Uuid;

const GROUPS: usize = 100;
/// One in so many hosts is in the middle of its change.
const CHANGING: usize = 20;
/// Longest time in the median, for 10,000 hosts.
const GOAL: Duration = Duration::from_millis(2);

/// One decision about a rollout in which all hosts ask
#[derive(clap::Args)]
struct Options {
    /// Hosts
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = cli::at_least::<usize>(1))]
    hosts: usize,
    /// Decisions of each kind
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = cli::at_least::<usize>(1))]
    rounds: usize,
}

/// A rollout whose hosts have all asked; some have begun.
fn rollout(policy: &RolloutPolicy, hosts: usize) -> RolloutState {
    let target = |index: usize| TargetHost {
        host: HostId(Uuid::from_u128(index as u128 + 1)),
        group: Some(format!("g{}", index % GROUPS).into()),
        is_online: true,
        can_take: true,
    };
    let targets: Vec<TargetHost> = (0..hosts).map(target).collect();
    let mut state = RolloutState::begin(policy, 1, None, false, targets.clone(), 0);
    for (index, target) in targets.iter().enumerate() {
        let number = |seq| Numbered { epoch: 1, seq };
        state.asked(target.host, number(1), 1, index as i64);
        if index % CHANGING == 0 {
            state.begun(target.host, number(2), 1, 1, index as i64);
        }
    }
    state
}

fn measure(policy: &RolloutPolicy, options: &Options) -> Spread<Duration> {
    let zones = TimeZoneDatabase::bundled();
    let state = rollout(policy, options.hosts);
    let now_ms = options.hosts as i64;
    Spread::of((0..options.rounds).map(|_| {
        let began = Instant::now();
        let decision = decide(black_box(policy), black_box(&state), &zones, now_ms);
        let took = began.elapsed();
        assert!(!decision.grants.is_empty() && !decision.waits.is_empty(), "some may begin, and some wait");
        took
    }))
}

fn run(options: &Options) -> Result<bool, Infallible> {
    let free =
        RolloutPolicy { waves: Some(Vec::new()), max_in_flight: Share::Percent(20.0), ..RolloutPolicy::default() };
    let budget = Budget { group_by: "site".parse().expect("a name"), max_unavailable: Share::Percent(20.0) };
    let kept = RolloutPolicy { budget: Some(budget), ..free.clone() };
    println!("one decision, {} hosts that ask, {} rounds", options.hosts, options.rounds);
    println!("{:<14} {:>10} {:>10} {:>10} {:>10}", "", "least", "median", "95 %", "most");
    let mut is_missed = false;
    for (name, policy) in [("no budget", &free), ("a budget", &kept)] {
        let took = measure(policy, options);
        let [least, median, usual, most] = [took.least(), took.median(), took.percentile(95), took.most()];
        println!("{name:<14} {least:>10.2?} {median:>10.2?} {usual:>10.2?} {most:>10.2?}");
        is_missed |= median > GOAL;
    }
    println!("goal: {GOAL:?} in the median{}", if is_missed { ": missed" } else { "" });
    Ok(is_missed)
}

fn main() -> ExitCode {
    cli::main(run)
}

//! What the console does with the plans of many hosts: it reads their brief answers, groups them, and names what each has to find again.
//!
//!     cargo bench -p muster-rules --bench host_plan -- [--hosts N] [--rounds N] [--check]
//!
//! First all hosts are alike but for one in a hundred; then each differs from all others, which is the most that there is to keep.

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

use muster_rules::host_plan::{DeploymentPlan, HostPlan, UnitAction, UnitPlan, group::PlanGroups};
use muster_topics::name::HostId;
use spread::Spread;
use uuid::Uuid;

/// One in so many hosts differs.
const DIFFERS: usize = 100;
/// Longest time in the median, for 10,000 hosts: a small part of the five seconds that a plan of them may take.
const GOAL: Duration = Duration::from_millis(500);

/// The plans of many hosts, read and grouped
#[derive(clap::Args)]
struct Options {
    /// Hosts
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = cli::at_least::<usize>(1))]
    hosts: usize,
    /// Rounds of each kind
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = cli::at_least::<usize>(1))]
    rounds: usize,
}

/// The answer of a host, as it comes.
fn answer(variant: usize) -> Vec<u8> {
    let unit = |number: usize| {
        let mut unit = UnitPlan::new(format!("shop/u{number}").parse().expect("a name"), UnitAction::Restart);
        unit.reason = Some(format!("variant {variant}").into());
        unit
    };
    let plan = DeploymentPlan::of("shop/till".parse().expect("a name"), (0..5).map(unit).collect());
    serde_json::to_vec(&HostPlan { deployments: vec![plan.brief()] }).expect("JSON")
}

fn measure(options: &Options, variant: impl Fn(usize) -> usize, groups: usize) -> Spread<Duration> {
    let answers: Vec<Vec<u8>> = (0..options.hosts).map(|host| answer(variant(host))).collect();
    Spread::of((0..options.rounds).map(|_| {
        let began = Instant::now();
        let mut found = PlanGroups::default();
        for (host, answer) in answers.iter().enumerate() {
            let plan: HostPlan = serde_json::from_slice(black_box(answer)).expect("a plan");
            for one in plan.deployments {
                found.add(HostId(Uuid::from_u128(host as u128)), one);
            }
        }
        let (digests, sorted) = (found.digests(), found.sorted());
        let took = began.elapsed();
        assert_eq!((digests.len(), sorted.len()), (options.hosts, groups), "each host is in one group");
        took
    }))
}

fn run(options: &Options) -> Result<bool, Infallible> {
    println!("plans of {} hosts, read and grouped, {} rounds", options.hosts, options.rounds);
    println!("{:<14} {:>10} {:>10} {:>10} {:>10}", "", "least", "median", "95 %", "most");
    let mut is_missed = false;
    let differing = options.hosts.div_ceil(DIFFERS);
    let alike = measure(
        options,
        |host| if host % DIFFERS == 0 { host + 1 } else { 0 },
        differing + usize::from(options.hosts > 1),
    );
    let each = measure(options, |host| host, options.hosts);
    for (name, took) in [("nearly alike", alike), ("all differ", each)] {
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

//! How long the console takes to place instances on many hosts, and how many move when a host leaves.
//!
//!     cargo bench -p muster-rules --bench placement -- [--hosts N] [--instances N] [--rounds N] [--check]
//!
//! The hosts are at 200 sites, over which instances are spread. First all instances are new; then one host with instances has left.

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

use muster_rules::placement::{
    HostFit, PlacedInstances, PlacementHost, PlacementObstacle, Resources, WantedInstances, place,
};
use muster_topics::name::UnitName;
use spread::Spread;

/// The sites of the hosts.
const SITES: usize = 200;
/// Longest time in the median, for 1,000 new instances on 10,000 hosts: each apply of a deployment takes it.
const GOAL: Duration = Duration::from_millis(200);

/// Instances, placed on hosts
#[derive(clap::Args)]
struct Options {
    /// Hosts
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = cli::at_least::<usize>(2))]
    hosts: usize,
    /// Instances
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = cli::at_least::<u32>(1))]
    instances: u32,
    /// Rounds of each kind
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = cli::at_least::<usize>(1))]
    rounds: usize,
}

struct Case {
    hosts: Vec<PlacementHost>,
    fits: Vec<HostFit>,
    instances: u32,
    unit: UnitName,
}

impl Case {
    fn new(options: &Options) -> Self {
        let host = |number: usize| PlacementHost {
            id: (number as u128 + 1) * 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c834,
            total: Resources { memory_bytes: 8 << 30, cpu_millis: 4_000 },
            ..PlacementHost::default()
        };
        Self {
            hosts: (0..options.hosts).map(host).collect(),
            fits: (0..options.hosts).map(|number| HostFit::Takes((number % SITES) as u32)).collect(),
            instances: options.instances,
            unit: "shop/web".parse().expect("a name"),
        }
    }

    fn place(&self, present: &[(u32, usize)]) -> PlacedInstances {
        let wanted = WantedInstances {
            unit: &self.unit,
            count: self.instances,
            needs: Resources { memory_bytes: 512 << 20, cpu_millis: 500 },
            max_per_host: Some(8),
            fits: self.fits.clone(),
            present: present.to_vec(),
        };
        place(&self.hosts, &[wanted]).remove(0)
    }

    fn measure(&self, rounds: usize, present: &[(u32, usize)]) -> (Spread<Duration>, PlacedInstances) {
        let mut placed = PlacedInstances::default();
        let took = Spread::of((0..rounds).map(|_| {
            let began = Instant::now();
            placed = black_box(self.place(black_box(present)));
            began.elapsed()
        }));
        (took, placed)
    }
}

fn run(options: &Options) -> Result<bool, Infallible> {
    println!("{} instances on {} hosts, {} rounds", options.instances, options.hosts, options.rounds);
    println!("{:<14} {:>10} {:>10} {:>10} {:>10}", "", "least", "median", "95 %", "most");
    let mut case = Case::new(options);
    let (new, placed) = case.measure(options.rounds, &[]);
    let present: Vec<(u32, usize)> = placed.places.iter().map(|(number, host)| (*number, *host)).collect();
    let gone = placed.places.get(&1).copied().expect("the first instance is placed");
    if let Some(fit) = case.fits.get_mut(gone) {
        *fit = HostFit::Refuses(PlacementObstacle::Drained);
    }
    let (left, after) = case.measure(options.rounds, &present);
    let had = present.iter().filter(|(_, host)| *host == gone).count();
    let moved = present.iter().filter(|(number, host)| after.places.get(number) != Some(host)).count();
    let mut is_missed = moved != had;
    for (name, took) in [("all new", new), ("one host left", left)] {
        let [least, median, usual, most] = [took.least(), took.median(), took.percentile(95), took.most()];
        println!("{name:<14} {least:>10.2?} {median:>10.2?} {usual:>10.2?} {most:>10.2?}");
        is_missed |= median > GOAL;
    }
    println!("the host that left had {had}, and {moved} moved");
    println!("goal: {GOAL:?} in the median{}", if is_missed { ": missed" } else { "" });
    Ok(is_missed)
}

fn main() -> ExitCode {
    cli::main(run)
}

//! The embedded time-series store against VictoriaMetrics, Prometheus and InfluxDB, in the same run, on this machine.
//!
//!     cargo bench -p muster-series --bench timeseries -- [--check] [--quick] [--only SUBJECT]…
//!
//! `--quick` takes a tenth of the data and a shorter load; `--only` takes a subject (muster, victoria-metrics, prometheus, influxdb);
//! `--check` ends with exit code 1 if a budget is missed. Peers that are not installed (Debian
//! packages `victoria-metrics`, `prometheus` and `influxdb`) are left out.
//!
//! How it measures: all take the same series, 50 of each host, every ten seconds for a day: a quarter each of counters,
//! percents with two decimals that walk, memory in pages, and what stands still (`data.rs`). **Bulk** is an hour of all series at a
//! time, from two senders; what makes the data is not in the time. The embedded store is called as the console calls it, in this process,
//! and each call ends with a commit that is synced; VictoriaMetrics takes `/api/v1/import` over
//! loopback, and syncs later; Prometheus has its blocks made by `promtool tsdb create-blocks-from openmetrics`, the only way in
//! for what is older. **Bytes** are those of all files once everything is sealed, rolled up or merged: for the embedded store
//! with its summaries of five minutes and hours. **Memory** is what is resident after the bulk, for the embedded store of this whole process.
//! **Slow** is the load of 1,000 hosts with 20 series each: every ten seconds a sample, every thirty a batch of three of them, so 33 batches of 60
//! values a second, evenly. Half an hour of it is there before, so that series are known and their points lie apart as they do in the mean. The embedded store
//! gets batches packed as agents send them, and what comes within a quarter of a second is unpacked and committed together, as the console's recorder
//! does it; time is that of this whole process, and with it is the share of a second in sealing the hour once it is over. Its peers get the same batches as line protocol
//! over one connection that stays (`/write`, as both VictoriaMetrics and InfluxDB 1 have it); time is that of their processes, while they take it in. VictoriaMetrics
//! does not sync what it acknowledges, the other two do. **Questions** are asked of a second set, 200 series with a point a minute for a day, but for half an hour of the slow load before it is sealed: medians; the embedded store
//! gives numbers to its caller, its peers JSON over loopback, so figures of the two kinds are not of the same work.
//! `avg by (host)` is here computed by this program, from what the embedded store gives.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_precision_loss,
    clippy::allow_attributes,
    reason = "a program to be run by hand"
)]

#[allow(dead_code, reason = "each bench uses a part of it")]
#[path = "../common/cli.rs"]
mod cli;
mod data;
mod ours;
mod peers;
#[allow(dead_code, reason = "each bench uses a part of it")]
#[path = "../common/spread.rs"]
mod spread;
mod table;
#[allow(dead_code, reason = "each bench uses a part of it")]
#[path = "../common/usage.rs"]
mod usage;

use std::{process::ExitCode, time::Duration};

use data::Plan;
use table::{Subject, Table};

/// The embedded time-series store beside VictoriaMetrics, Prometheus and InfluxDB, in the same run
#[derive(clap::Args)]
struct Options {
    /// Take a tenth of the data, and a shorter load
    #[arg(long)]
    quick: bool,
    /// Measure this one; may be given more than once
    #[arg(long = "only", value_name = "SUBJECT", value_enum, default_values_t = Subject::ALL)]
    subjects: Vec<Subject>,
}

fn main() -> ExitCode {
    cli::main(run)
}

/// Measures and prints everything; returns whether a budget was missed.
fn run(options: &Options) -> Result<bool, Box<dyn std::error::Error>> {
    let plan = if options.quick {
        Plan { series: 100, hours: 24, slow: Duration::from_secs(10) }
    } else {
        Plan { series: 1_000, hours: 24, slow: Duration::from_secs(60) }
    };
    let mut table = Table::default();
    // The embedded store comes first: its memory is that of this process.
    for subject in &options.subjects {
        match subject {
            Subject::Muster => ours::measure(&plan, &mut table)?,
            Subject::VictoriaMetrics => peers::victoria_metrics(&plan, &mut table)?,
            Subject::Prometheus => peers::prometheus(&plan, &mut table)?,
            Subject::InfluxDb => peers::influxdb(&plan, &mut table)?,
        }
    }
    let cores = usage::cores();
    println!(
        "\n{} series every 10 s for {} hours, {} points; {cores} cores{}\n",
        plan.series,
        plan.hours,
        plan.points(),
        if cfg!(debug_assertions) { "; NOT AN OPTIMISED BUILD" } else { "" },
    );
    Ok(table.print())
}

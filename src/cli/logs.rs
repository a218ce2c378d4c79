//! `muster unit logs`: prints the last lines of logs, and follows them.

use std::time::Duration;

use clap::Args;
use futures_util::future::join_all;
use muster_api::Unit;
use muster_base::{
    clock,
    failure::{Failure, FailureKind},
};
use muster_topics::command::{LOG_LINES_MAX, LogView, Verb as Asked};

use super::{
    change::submit,
    command_cancel, command_follower,
    command_report::report,
    moment::{self, Moment},
    print,
    session::CliSession,
    target::{self, Noun},
    unit_targets::{UnitTargets, candidates, pick},
};
use muster_api::host_names::HostNames;

/// Largest number of logs that are read at once, each over its own connection.
const LOGS_MAX: usize = 64;

/// Default number of lines: more than a terminal shows.
const LINES: u32 = 100;

/// Print the last lines of a unit's log, or of several.
#[derive(Args, Clone, Debug)]
#[command(
    after_long_help = "Of several logs, each line has its unit before it. With -o json each line is an object, with \
                    its time. Times are those at which the host took a line from the program; without a zone \
                    they are UTC."
)]
pub struct Logs {
    /// Which units
    #[command(flatten)]
    pub which: UnitTargets,
    /// Show so many at most [default: 100]
    ///
    /// With --since the default is as many as a host sends at once.
    #[arg(short = 'n', long, value_name = "N")]
    pub limit: Option<u32>,
    /// Print lines since this time, or since so long ago, as 10m
    #[arg(long, value_name = "TIME", value_parser = moment::parse, allow_hyphen_values = true)]
    pub since: Option<Moment>,
    /// Print lines up to this time
    #[arg(long, value_name = "TIME", value_parser = moment::parse, allow_hyphen_values = true, conflicts_with = "follow")]
    pub until: Option<Moment>,
    /// Print the time before each line, or `-` if it is unknown
    #[arg(short, long)]
    pub timestamps: bool,
    /// Follow the log until Ctrl-C
    #[arg(short, long)]
    pub follow: bool,
    /// Follow for so long, an hour at most
    #[arg(long = "for", default_value = "1h", value_name = "TIME", requires = "follow")]
    pub follow_for: humantime::Duration,
}

impl Logs {
    /// The number of lines, and the part of the log. Output for programs always includes times.
    fn part(&self, for_programs: bool, now_ms: muster_topics::Millis) -> (u32, LogView) {
        let lines = self.limit.unwrap_or(if self.since.is_some() { LOG_LINES_MAX } else { LINES });
        let view = LogView {
            since_ms: self.since.map(|since| since.ms(now_ms)),
            until_ms: self.until.map(|until| until.ms(now_ms)),
            times: self.timestamps || for_programs,
        };
        (lines, view)
    }
}

/// Runs the verb.
///
/// # Errors
/// If the selection is ambiguous, or if a log cannot be read.
pub async fn run(wanted: Logs, noun: Noun, session: &CliSession) -> Result<(), Failure> {
    let all = candidates(session, &wanted.which).await?;
    let picked = pick(&all, &wanted.which, noun.verb("logs"))?;
    if picked.len() > LOGS_MAX {
        let message = format!("these are {} {}s, and {LOGS_MAX} logs can be read at once", picked.len(), noun.word());
        return Err(Failure::new(FailureKind::Usage, message).hint("name fewer, or select fewer with --select"));
    }
    if let ([named], [unit]) = (&wanted.which.units[..], &picked[..]) {
        target::say_host(named, &wanted.which.hosts, unit);
    }
    let hosts = HostNames::new(picked.iter().map(|unit| (unit.host, unit.hostname.as_str())));
    let names = (picked.len() > 1).then_some(hosts);
    let (lines, view) = wanted.part(session.printer.is_for_programs(), clock::now_ms());
    // Followed lines are printed as they arrive; otherwise one log follows the other.
    let results = if wanted.follow {
        let time: Duration = wanted.follow_for.into();
        join_all(picked.iter().map(|unit| follow(session, unit, name(unit, names.as_ref()), (lines, view), time))).await
    } else {
        let mut results = Vec::new();
        for unit in picked {
            results.push(last(session, unit, name(unit, names.as_ref()), (lines, view)).await);
        }
        results
    };
    let mut failures: Vec<Failure> = results.into_iter().filter_map(Result::err).collect();
    if failures.len() < 2 {
        return failures.pop().map_or(Ok(()), Err);
    }
    failures.iter().for_each(print::say_failure);
    Err(Failure::silent(FailureKind::Failed))
}

/// The text before each line, if there are several logs.
fn name(unit: &Unit, names: Option<&HostNames<'_>>) -> Option<String> {
    names.map(|names| format!("{}:{}", names.show(unit.host, &unit.hostname), unit.unit))
}

async fn last(
    session: &CliSession,
    unit: &Unit,
    name: Option<String>,
    (lines, view): (u32, LogView),
) -> Result<(), Failure> {
    let asked = Asked::UnitLogs { unit: unit.unit.clone(), lines, view };
    let command = submit(session, vec![unit.host.to_string()], asked, None).await?;
    let hosts = command_follower::follow_log(session, &command, unit, name.as_deref()).await?;
    report(&command, &hosts)
}

/// Prints a log as it grows, until its time is over or the user interrupts it.
async fn follow(
    session: &CliSession,
    unit: &Unit,
    name: Option<String>,
    (lines, view): (u32, LogView),
    time: Duration,
) -> Result<(), Failure> {
    let for_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let asked = Asked::UnitFollow { unit: unit.unit.clone(), lines, view, for_ms };
    let command = submit(session, vec![unit.host.to_string()], asked, None).await?;
    let hosts = tokio::select! {
        hosts = command_follower::follow_log(session, &command, unit, name.as_deref()) => hosts,
        // Otherwise the host would continue to send output that nobody reads.
        () = session.interrupt.cancelled() => return command_cancel::cancel(session, &command).await.map(drop),
    };
    match hosts {
        Ok(hosts) => report(&command, &hosts),
        Err(failure) => {
            // The output is closed, or the console cannot be reached; the cancellation is only an attempt.
            let _ = command_cancel::cancel(session, &command).await;
            Err(failure)
        }
    }
}

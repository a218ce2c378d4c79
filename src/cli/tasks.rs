//! `muster unit tasks`: what a host does, and has done, to change a unit.

use std::time::Duration;

use clap::Args;
use muster_api::Unit;
use muster_base::failure::{Failure, FailureKind};
use muster_topics::{
    Millis,
    command::Verb,
    task::{TaskRecord, TaskState, UnitTasks},
};

use super::{
    change::submit, command_follower, command_report::report, print, session::CliSession, target::Noun, unit::OneUnit,
    unit_lookup,
};

/// How often a followed log is asked for.
const FOLLOW: Duration = Duration::from_secs(1);

/// Show the tasks by which a unit's host changes it
#[derive(Args, Clone, Debug)]
#[command(
    after_long_help = "The host keeps the last tasks of each unit, and the last part of what each has said, also of a unit \
                    that is gone. What a change still owes, such as a restart, is shown with its reason."
)]
pub struct TaskArgs {
    #[command(flatten)]
    which: OneUnit,
    /// Show the log of this task, by its number
    #[arg(long, value_name = "NUMBER")]
    task: Option<u64>,
    /// Follow the log until the task has ended
    ///
    /// Without --task it is that of the newest task.
    #[arg(long, short)]
    follow: bool,
}

/// Runs the verb.
///
/// # Errors
/// If it fails.
pub async fn run(wanted: TaskArgs, noun: Noun, session: &CliSession) -> Result<(), Failure> {
    let unit = unit_lookup::one_of(session, wanted.which, noun.verb("tasks")).await?;
    let mut number = wanted.task;
    if number.is_none() {
        let found = ask(session, &unit, None, 0).await?;
        if !wanted.follow {
            return list(session, &found);
        }
        number = found.tasks.first().map(|task| task.number);
    }
    let Some(number) = number else {
        return Err(Failure::not_found(format_args!("{} has no tasks yet", unit.unit)));
    };
    let mut from = 0;
    loop {
        let found = ask(session, &unit, Some(number), from).await?;
        let Some(log) = &found.log else { return Ok(()) };
        match session.printer.is_for_programs() {
            true => session.printer.in_lines().item(log)?,
            false => print::write_out(&log.text)?,
        }
        from = log.end;
        if !wanted.follow || log.is_over {
            return ended(found.tasks.iter().find(|task| task.number == number));
        }
        tokio::time::sleep(FOLLOW).await;
    }
}

async fn ask(session: &CliSession, unit: &Unit, log: Option<u64>, from: u64) -> Result<UnitTasks, Failure> {
    let asked = Verb::UnitTasks { unit: unit.unit.clone(), log, from };
    let command = submit(session, vec![unit.host.to_string()], asked, None).await?;
    let (hosts, output) = command_follower::collect(session, &command).await?;
    report(&command, &hosts)?;
    serde_json::from_slice(&output).map_err(|error| {
        Failure::new(FailureKind::Failed, format!("the answer of {} is not valid: {error}", unit.hostname))
    })
}

/// Says how a task has ended, for people.
fn ended(task: Option<&TaskRecord>) -> Result<(), Failure> {
    let Some(task) = task else { return Ok(()) };
    let message = task.diagnostic.as_ref().map(|told| format!(": {told:#}")).unwrap_or_default();
    print::say(format_args!("task {} {}{message}", task.number, task.state.as_str()));
    Ok(())
}

fn list(session: &CliSession, found: &UnitTasks) -> Result<(), Failure> {
    for owed in &found.owed {
        print::say(format_args!("{owed}"));
    }
    if found.tasks.is_empty() && !session.printer.is_for_programs() {
        print::say("no tasks; a host has one for each change of files or packages");
        return Ok(());
    }
    let row = |task: &TaskRecord| {
        vec![
            task.number.to_string(),
            task.action.as_str().to_owned(),
            task.state.as_str().to_owned(),
            took(task),
            task.revision.short().to_owned(),
            task.about.clone(),
            task.diagnostic.as_ref().map(|told| format!("{told:#}")).unwrap_or_default(),
        ]
    };
    let header = ["TASK", "WHAT", "STATE", "TOOK", "REVISION", "ABOUT", "MESSAGE"];
    session.printer.table(found, &header, found.tasks.iter().map(row))
}

/// How long a task has taken.
fn took(task: &TaskRecord) -> String {
    let took_ms = |ended_ms: Millis| ended_ms.saturating_sub(task.began_ms).max(0);
    match (task.ended_ms, task.state) {
        (Some(ended_ms), _) => format!("{}.{} s", took_ms(ended_ms) / 1_000, took_ms(ended_ms) % 1_000 / 100),
        (None, TaskState::Running) => "…".to_owned(),
        (None, _) => String::new(),
    }
}

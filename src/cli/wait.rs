//! Waits until a unit has reached its desired state.

use std::time::{Duration, Instant};

use muster_api::Unit;
use muster_base::{
    clock,
    failure::{Failure, FailureKind},
};
use muster_topics::{
    diagnostic::Diagnostic,
    name::{HostId, UnitName},
    unit::{self, Exit, HoldReason, Phase, Restart, Run, Spec},
};

use super::{print, rollback, session::CliSession};

/// Interval of queries. The console answers from memory, and a person is waiting.
const POLL: Duration = Duration::from_millis(150);

/// What to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitGoal {
    /// The unit is as the generation describes.
    Reached,
    /// As `Reached`, and the revision is no longer on trial: it has run long enough, or was rolled back.
    Proven,
    /// The agent has received the generation.
    Seen,
}

/// The progress of a unit towards a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitProgress {
    /// It is as desired.
    Reached,
    /// It is in progress.
    Going,
    /// It is not expected to succeed soon without help.
    Stuck {
        /// The reason.
        why: Diagnostic,
        /// The verb that helps or tells more; it precedes the unit's name.
        verb: &'static str,
    },
}

/// The verb that explains what happened to a unit without a process.
const SHOW: &str = "unit show";

/// The verb that shows what a unit has said, or, if it has no output, what was done for it.
#[must_use]
pub const fn log_verb(spec: &Spec) -> &'static str {
    match spec {
        Spec::Yuno(_) | Spec::Container(_) => "unit logs",
        Spec::Files(_) | Spec::Packages(_) => "unit tasks",
    }
}

/// The progress of a unit towards a generation.
#[must_use]
pub fn progress(unit: &Unit, generation: u64, goal: WaitGoal) -> WaitProgress {
    let observed = &unit.observed;
    if observed.generation < generation {
        // It is tried again; but the running process continues unchanged, and whoever waits is told why.
        let goes_on = matches!(observed.phase(), Phase::Running | Phase::Playing | Phase::Stopping);
        let why = observed
            .error
            .as_ref()
            .filter(|_| goes_on && goal != WaitGoal::Seen && unit.desired.generation >= generation);
        return why.map_or(WaitProgress::Going, |why| WaitProgress::Stuck {
            why: why.clone().within("it does not exist yet"),
            verb: SHOW,
        });
    }
    if goal == WaitGoal::Seen {
        return WaitProgress::Reached;
    }
    if let Some(back) = observed.rolled_back() {
        let why = back.diagnostic("it ");
        let why = match observed.error.clone() {
            Some(also) => why.and(also.within("and that one")),
            None => why,
        };
        return WaitProgress::Stuck { why, verb: SHOW };
    }
    // Something newer has been requested meanwhile, which is now the goal.
    let runs = |phase| {
        let is_right = observed.revision.as_ref() == Some(&unit.desired.revision);
        observed.phase() == phase && is_right && observed.instance().frozen == unit.desired.frozen
    };
    let reached = match unit.desired.run {
        Run::Running => runs(Phase::Running),
        Run::Playing => runs(Phase::Playing),
        Run::Stopped => matches!(observed.phase(), Phase::Stopped | Phase::Absent),
    };
    if reached {
        // A suspended process proves nothing.
        let waits = goal == WaitGoal::Proven && observed.trial.is_on() && !observed.instance().frozen;
        return if waits { WaitProgress::Going } else { WaitProgress::Reached };
    }
    if let Some(hold) = &unit.hold {
        let verb = if hold.reason == HoldReason::Operator { "unit unhold" } else { log_verb(&unit.desired.spec) };
        return WaitProgress::Stuck { why: because(unit, format_args!("it is held: {hold}")), verb };
    }
    if has_finished(unit) {
        return WaitProgress::Reached;
    }
    let verb = log_verb(&unit.desired.spec);
    match observed.phase() {
        // Its generation is reached, but it does not play as requested.
        Phase::Running if unit.desired.run == Run::Playing => {
            WaitProgress::Stuck { why: because(unit, format_args!("it runs, and does not play")), verb }
        }
        Phase::Playing if unit.desired.run == Run::Running => {
            WaitProgress::Stuck { why: because(unit, format_args!("it still plays")), verb }
        }
        Phase::Failed => WaitProgress::Stuck { why: because(unit, format_args!("it failed")), verb },
        Phase::Backoff => {
            WaitProgress::Stuck { why: because(unit, format_args!("it ended and waits to be started again")), verb }
        }
        _ => WaitProgress::Going,
    }
}

/// Whether a unit that should run has finished its work: it ended successfully, and is not restarted after that.
fn has_finished(unit: &Unit) -> bool {
    let ended_well = unit.observed.phase() == Phase::Stopped && unit.observed.exit().is_some_and(Exit::is_success);
    ended_well
        && unit.desired.run.is_running()
        && unit.desired.spec.program().is_some_and(|program| program.restart != Restart::Always)
}

fn hint(verb: &str, host: HostId, unit: &UnitName) -> String {
    let use_ = match verb {
        "unit unhold" => "resumes it",
        SHOW => "shows more, with the last lines of the failed process",
        _ => "may show more",
    };
    format!("`muster {verb} {host}:{unit}` {use_}")
}

/// Says in which state a unit is stuck, and why.
fn because(unit: &Unit, state: std::fmt::Arguments<'_>) -> Diagnostic {
    match (&unit.observed.error, unit.observed.last_end) {
        (Some(error), _) => error.clone().within(state),
        (None, Some(end)) => format!("{state}: its last process ended with {end}").into(),
        (None, None) => Diagnostic::new(state),
    }
}

/// Waits until a unit reaches a generation as far as `goal` says, and reports each phase.
///
/// # Errors
/// If it is stuck, or takes longer than `limit`.
pub async fn until_reached(
    session: &CliSession,
    host: HostId,
    unit: &UnitName,
    (generation, goal): (u64, WaitGoal),
    limit: Duration,
) -> Result<(), Failure> {
    let path = format!("hosts/{host}/units/{unit}");
    let (started, mut told, mut far) = (Instant::now(), None, 0);
    loop {
        let shown: Result<Unit, Failure> = session.client.get(&path, &[]).await;
        let going = match shown {
            Ok(shown) => match progress(&shown, generation, goal) {
                WaitProgress::Reached => {
                    let since = print::age(shown.observed.since_ms, clock::now_ms());
                    let frozen = if shown.observed.instance().frozen { ", frozen" } else { "" };
                    let held = shown.hold.as_ref().map(|hold| format!(", held: {hold}")).unwrap_or_default();
                    let doing = if has_finished(&shown) { "finished" } else { phase(shown.observed.phase()) };
                    print::say(format_args!("{unit} on {}: {doing}{frozen}{held} ({since})", shown.hostname));
                    return Ok(());
                }
                WaitProgress::Stuck { why, verb } => {
                    let told = why.within(format_args!("{unit} on {}", shown.hostname));
                    let failure = Failure::told(FailureKind::Failed, told);
                    // The host's own message is more specific.
                    return Err(if failure.given_hint().is_some() {
                        failure
                    } else {
                        failure.hint(hint(verb, host, unit))
                    });
                }
                WaitProgress::Going => {
                    tell_far(unit, shown.observed.progress, &mut far);
                    Some((shown.observed.phase(), rollback::mark(&shown)))
                }
            },
            // Its first report may not have arrived yet.
            Err(failure) if failure.kind == FailureKind::NotFound => None,
            Err(failure) => return Err(failure),
        };
        if going.is_some() && going != told {
            told = going;
            let (phase, mark) = going.map(|(now, mark)| (phase(now), mark)).unwrap_or_default();
            print::say(format_args!("{unit}: {phase}{mark} …"));
        }
        if started.elapsed() > limit {
            return Err(Failure::new(
                FailureKind::Failed,
                format!("{unit} is not there yet after {}", humantime::format_duration(limit)),
            )
            .hint(format!("it continues; `muster unit show {host}:{unit}` shows its state")));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Reports the progress of a download, once for each ten per cent.
fn tell_far(unit: &UnitName, progress: Option<unit::Progress>, told_tenths: &mut u64) {
    let Some(progress) = progress else { return };
    let tenths = progress.percent() / 10;
    if tenths > *told_tenths {
        *told_tenths = tenths;
        print::say(format_args!("{unit}: {}", print::progress(progress)));
    }
}

/// Waits until a unit is removed.
///
/// # Errors
/// If it takes longer than `limit`.
pub async fn until_gone(session: &CliSession, host: HostId, unit: &UnitName, limit: Duration) -> Result<(), Failure> {
    let started = Instant::now();
    loop {
        let units: Vec<Unit> = session.client.get("units", &[("host", host.to_string())]).await?;
        let Some(there) = units.into_iter().find(|there| there.unit == *unit) else { return Ok(()) };
        if started.elapsed() > limit {
            let (limit, why) = (humantime::format_duration(limit), there.observed.error);
            let late = format!("{unit} on {} is not removed yet after {limit}", there.hostname);
            let late = match why {
                Some(why) => Diagnostic::new(why.within(late).cause),
                None => Diagnostic::new(late),
            };
            return Err(Failure::told(FailureKind::Failed, late)
                .hint("its host keeps trying to remove it; it is listed until it is gone"));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// A phase for people.
#[must_use]
pub fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Absent => "absent",
        Phase::Installing => "installing",
        Phase::Stopped => "stopped",
        Phase::Starting => "starting",
        Phase::Running => "running",
        Phase::Playing => "playing",
        Phase::Stopping => "stopping",
        Phase::Backoff => "backoff",
        Phase::Failed => "failed",
    }
}

#[cfg(test)]
mod tests {
    use muster_topics::container::{ContainerSpec, Image};

    use super::*;
    use crate::upgrade::tests::unit;

    #[test]
    fn hint_of_a_failed_unit_names_the_verb_of_its_kind() {
        let mut failed = unit("1.0.0");
        (failed.observed.state, failed.observed.generation) = (Phase::Failed.into(), 1);
        let verb = |unit: &Unit| match progress(unit, 1, WaitGoal::Reached) {
            WaitProgress::Stuck { verb, .. } => verb,
            other => panic!("{other:?}"),
        };
        assert_eq!(verb(&failed), "unit logs");
        let image = Image::Name("docker.io/library/nginx:1".to_owned());
        failed.desired.spec = Spec::Container(ContainerSpec::new(image)).into();
        assert_eq!(verb(&failed), "unit logs");
    }

    #[test]
    fn finished_task_ends_the_wait() {
        let mut job = unit("1.0.0");
        (job.observed.state, job.observed.last_end) = (Phase::Stopped.into(), Some(Exit::Code(0).into()));
        let again = |job: &mut Unit, restart| {
            let Spec::Yuno(spec) = std::sync::Arc::make_mut(&mut job.desired.spec) else { panic!("it is a yuno") };
            spec.program.restart = restart;
        };
        for restart in [Restart::Never, Restart::OnFailure] {
            again(&mut job, restart);
            assert_eq!(progress(&job, 1, WaitGoal::Reached), WaitProgress::Going, "this was the last generation's");
            job.observed.generation = 1;
            for goal in [WaitGoal::Reached, WaitGoal::Proven] {
                assert_eq!(progress(&job, 1, goal), WaitProgress::Reached);
            }
            job.observed.generation = 0;
        }
        job.observed.generation = 1;
        again(&mut job, Restart::Always);
        assert_eq!(progress(&job, 1, WaitGoal::Reached), WaitProgress::Going, "it is about to be started again");
        again(&mut job, Restart::Never);
        job.observed.last_end = Some(Exit::Code(1).into());
        assert_eq!(progress(&job, 1, WaitGoal::Reached), WaitProgress::Going, "it is yet to be told as failed");
    }
}

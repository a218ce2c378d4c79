//! Follows a rollout, and says how far it is: its wave, its hosts by outcome, and why hosts wait.

use std::time::Duration;

use muster_api::{Rollout, RolloutDetail, RolloutEvent, RolloutPhase, RolloutVerb, RolloutWaitKind};
use muster_base::{
    clock,
    failure::{Failure, FailureKind},
};
use muster_topics::{Millis, desired::DeploymentName};
use tokio::time::Instant;

use super::{
    first_hosts, path,
    words::{outcomes, phase},
};
use crate::{client::EventStream, print, session::CliSession};

/// The most reasons that are told with each line of progress.
const WAITS_TOLD: usize = 4;

/// Until when a rollout is followed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RolloutGoal {
    /// Of this version; another one ends it. `None`: of whatever version is the present one.
    pub(crate) version: Option<u32>,
    /// Whether hosts that are away are waited for.
    pub(crate) waits_for_away: bool,
}

/// A rollout, as followed.
#[derive(Debug)]
pub(crate) struct FollowedRollout {
    deployment: DeploymentName,
    goal: RolloutGoal,
    last: Option<RolloutDetail>,
    timed_out: bool,
}

impl FollowedRollout {
    /// Whether nothing is left that is waited for: it has ended, an operator is needed, or all that are left are away.
    fn is_done(&self) -> bool {
        let Some(last) = &self.last else { return false };
        let is_other = self.goal.version.is_some_and(|version| version != last.rollout.version);
        is_other || is_over(&last.rollout) || !self.goal.waits_for_away && is_left_to_away(last)
    }

    /// The number of hosts that are away, if nothing else is waited for.
    fn away(&self) -> u64 {
        let last = self.last.as_ref().filter(|last| is_left_to_away(last) && !is_over(&last.rollout));
        last.map_or(0, |last| last.rollout.open())
    }

    /// The rollout as it was last.
    pub(crate) fn last(&self) -> Option<&Rollout> {
        self.last.as_ref().map(|last| &last.rollout)
    }

    /// Says which hosts do it later.
    pub(crate) fn tell(&self) {
        let Some(last) = &self.last else { return };
        if self.away() > 0 {
            let until =
                last.deadline_ms.map(|at_ms| format!(", until the deadline {}", print::age(at_ms, clock::now_ms())));
            let which = last.waits.iter().map(first_hosts).collect::<Vec<_>>().join(", ");
            print::say(format_args!("away: {which}; the rollout waits for them{}", until.unwrap_or_default()));
        }
    }

    /// The result of a verb that has followed it.
    ///
    /// # Errors
    /// If it has not gone well, or not far enough.
    pub(crate) fn verdict(&self) -> Result<(), Failure> {
        let name = &self.deployment;
        let Some(last) = &self.last else {
            let message = format!("the rollout of {name} has not begun");
            return Err(Failure::new(FailureKind::Failed, message));
        };
        let failed = |message: String| Failure::new(FailureKind::Failed, message);
        let Rollout { version, phase, .. } = &last.rollout;
        if let Some(wanted) = self.goal.version.filter(|wanted| wanted != version) {
            let message = match last.rollout.is_rollback {
                true => format!("version {wanted} of {name} failed: version {version} rolls it back"),
                false => format!("version {version} of {name} has replaced version {wanted}"),
            };
            return Err(failed(message).hint(format!("`muster rollout show {name} --version {wanted}` shows why")));
        }
        let why = format!("`muster rollout hosts {name}` shows more");
        Err(match phase {
            RolloutPhase::Completed => return Ok(()),
            RolloutPhase::Running if self.away() > 0 && !self.timed_out => return Ok(()),
            RolloutPhase::Paused { reason, .. } => {
                failed(format!("the rollout of version {version} of {name} is paused: {reason}"))
                    .hint(paused_hint(last))
            }
            RolloutPhase::Failed { reason } => {
                failed(format!("the rollout of version {version} of {name} has failed: {reason}")).hint(why)
            }
            RolloutPhase::Cancelled => {
                failed(format!("the rollout of version {version} of {name} was cancelled")).hint(why)
            }
            RolloutPhase::RolledBack { by } => {
                failed(format!("version {version} of {name} was rolled back by version {by}")).hint(why)
            }
            RolloutPhase::Superseded { by } => {
                failed(format!("version {by} has taken the place of version {version} of {name}")).hint(why)
            }
            RolloutPhase::Approval => failed(format!("version {version} of {name} waits for approval"))
                .hint(format!("`muster rollout promote {name}` has the next wave begin")),
            RolloutPhase::Running | RolloutPhase::Soaking { .. } => {
                failed(format!("version {version} of {name} has not reached all its hosts yet"))
                    .hint(format!("it continues; `muster rollout watch {name}` follows it"))
            }
        })
    }
}

/// What an operator may do with a paused rollout.
fn paused_hint(detail: &RolloutDetail) -> String {
    let name = &detail.rollout.deployment;
    let mut hint = format!("`muster rollout hosts {name}` shows more; `muster rollout resume {name}` resumes it");
    if detail.verbs.contains(&RolloutVerb::Retry) {
        hint.push_str(", `retry` retries failed hosts");
    }
    hint.push_str(if detail.goes_back_to.is_some() {
        ", `cancel --rollback` rolls back, and `cancel` leaves hosts unchanged"
    } else {
        ", and `cancel` leaves hosts unchanged"
    });
    hint
}

/// Whether nothing more happens by itself.
fn is_over(rollout: &Rollout) -> bool {
    rollout.phase.is_end() || matches!(rollout.phase, RolloutPhase::Paused { .. })
}

/// Whether all hosts that have not ended are away.
fn is_left_to_away(detail: &RolloutDetail) -> bool {
    detail.rollout.phase == RolloutPhase::Running
        && detail.rollout.open() > 0
        && !detail.waits.is_empty()
        && detail.waits.iter().all(|wait| wait.kind == RolloutWaitKind::Away)
}

/// `12 verified, 1 failed, 3 changing, 84 to go`.
pub(super) fn counts(rollout: &Rollout) -> String {
    let mut words = Vec::from_iter(Some(outcomes(&rollout.outcomes)).filter(|words| !words.is_empty()));
    let to_go = rollout.open().saturating_sub(rollout.in_flight);
    words.extend((rollout.in_flight > 0).then(|| format!("{} changing", rollout.in_flight)));
    words.extend((to_go > 0).then(|| format!("{to_go} to go")));
    if words.is_empty() { "no hosts".to_owned() } else { words.join(", ") }
}

/// `shop/till, version 4, wave 2 of 3: running: 12 verified, 84 to go`.
fn line(detail: &RolloutDetail, now_ms: Millis) -> String {
    let of = &detail.rollout;
    let wave = if of.waves > 1 { format!(", wave {} of {}", of.wave, of.waves) } else { String::new() };
    format!("{}, version {}{wave}: {}: {}", of.deployment, of.version, phase(&of.phase, now_ms), counts(of))
}

/// Says what has changed.
#[derive(Debug, Default)]
struct ProgressTeller {
    told: Option<(String, Vec<String>)>,
    /// When the last step that was told happened.
    step_ms: Millis,
}

impl ProgressTeller {
    fn tell(&mut self, detail: &RolloutDetail) {
        let now_ms = clock::now_ms();
        // What happened before is told by `rollout show`.
        let since_ms = if self.told.is_none() { Millis::MAX } else { self.step_ms };
        let new: Vec<_> = detail.steps.iter().take_while(|step| step.at_ms > since_ms).collect();
        self.step_ms = detail.steps.first().map_or(self.step_ms, |step| step.at_ms.max(self.step_ms));
        for step in new.into_iter().rev() {
            let by = step.operator.as_ref().map(|operator| format!(" ({operator})")).unwrap_or_default();
            print::say(format_args!("{}: {}{by}", detail.rollout.deployment, step.text));
        }
        let line = line(detail, now_ms);
        let waits: Vec<String> = detail
            .waits
            .iter()
            .filter(|wait| wait.kind != RolloutWaitKind::Changing)
            .take(WAITS_TOLD)
            .map(|wait| {
                let waits = if wait.hosts == 1 { "waits" } else { "wait" };
                format!("  {} {waits}: {} ({})", wait.hosts, format_args!("{:#}", wait.reason), first_hosts(wait))
            })
            .collect();
        let now = (line, waits);
        if self.told.as_ref() != Some(&now) {
            print::say(&now.0);
            let before = self.told.as_ref().map(|(_, waits)| waits.as_slice()).unwrap_or_default();
            if now.1 != before {
                now.1.iter().for_each(print::say);
            }
            self.told = Some(now);
        }
    }
}

/// Least time between two lines of progress.
const PACE: Duration = Duration::from_secs(1);

/// Follows a rollout until nothing is left that is waited for, or until `limit`.
///
/// # Errors
/// If the console cannot be reached, or has no such rollout.
pub(crate) async fn follow(
    session: &CliSession,
    deployment: &DeploymentName,
    goal: RolloutGoal,
    limit: Option<Duration>,
    each: impl Fn(&RolloutEvent) -> Result<(), Failure>,
) -> Result<FollowedRollout, Failure> {
    let goes_on = |failure: Failure| match failure.kind {
        FailureKind::Unreachable => {
            failure.hint(format!("it continues; `muster rollout watch {deployment}` follows it"))
        }
        _ => failure,
    };
    let until = limit.map(|limit| Instant::now() + limit);
    let mut events: EventStream<RolloutEvent> =
        session.client.events(&format!("{}/events", path(deployment))).await.map_err(goes_on)?;
    let mut followed = FollowedRollout { deployment: deployment.clone(), goal, last: None, timed_out: false };
    let (mut teller, mut told): (ProgressTeller, Option<Instant>) = (ProgressTeller::default(), None);
    while !followed.is_done() {
        // What was not told, for there was just a line, is told when its time has come.
        let is_untold = told.is_some_and(|at| at.elapsed() < PACE);
        let pace = is_untold.then(|| told.map(|at| at + PACE)).flatten();
        let next = match until.into_iter().chain(pace).min() {
            None => Ok(events.next().await),
            // Safe to cancel: unread events stay in the stream.
            Some(end) => tokio::time::timeout_at(end, events.next()).await,
        };
        let Ok(event) = next else {
            if until.is_some_and(|until| Instant::now() >= until) {
                followed.timed_out = true;
                break;
            }
            followed.last.iter().for_each(|last| teller.tell(last));
            told = None;
            continue;
        };
        let Some(event) = event.map_err(goes_on)? else {
            return Err(goes_on(Failure::new(FailureKind::Unreachable, "the console ended the connection")));
        };
        each(&event)?;
        match event {
            RolloutEvent::Rollout(detail) => followed.last = Some(*detail),
            RolloutEvent::End => break,
        }
        if told.is_none_or(|at| at.elapsed() >= PACE) {
            followed.last.iter().for_each(|last| teller.tell(last));
            told = Some(Instant::now());
        }
    }
    followed.last.iter().for_each(|last| teller.tell(last));
    Ok(followed)
}

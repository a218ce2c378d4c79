//! Updates a unit from an observation.

use muster_topics::{
    Millis,
    diagnostic::Diagnostic,
    name::Digest,
    probe::Probes,
    unit::{Desired, Hold, InstanceReport, Phase, Restart},
};

use super::{
    EffectiveInstance, FREEZE_AGAIN_MS, Failure, FoundInstance, Health, LiveInstance, LookUp, NextStart, PlanStep,
    PlannedUnit, STOP_SLACK_MS, ShimReport, UnitEvent, UnitPolicy, to_millis,
};
use crate::content_check::ContentReport;

/// The longest error or note that is stored and sent: it is for people, and part of a message of limited size.
const TEXT_MAX_CHARS: usize = 1_000;

impl PlannedUnit {
    /// Handles an event; updates the unit's state and its report.
    pub fn observe(&mut self, seen: UnitEvent, now_ms: Millis) {
        match seen {
            UnitEvent::Desired(desired, hold) => self.desire(desired.map(|desired| *desired), hold),
            UnitEvent::Wired(wiring, lack) => self.needs.wire(wiring, lack, now_ms),
            UnitEvent::Began(step) => self.begin(step, now_ms),
            UnitEvent::Found(found) => self.found(found, now_ms),
            UnitEvent::NotLookedUp { error } => {
                if let EffectiveInstance::Unknown(lookup) = &mut self.instance {
                    lookup.failed(now_ms);
                }
                self.fail(error);
            }
            UnitEvent::Progress(revision, progress) => {
                if self.installation.installs(&revision) {
                    self.observed.progress = Some(progress);
                }
            }
            UnitEvent::Installed(revision) => {
                self.installation.finish(&revision);
                if self.desires(&revision) {
                    self.installation.installed(revision);
                    // It never ran in this revision, so there is no restart to wait for.
                    self.next_start.forget_wait();
                    self.observed.error = None;
                }
            }
            UnitEvent::NotInstalled { revision, failure, random } => {
                self.installation.finish(&revision);
                if self.desires(&revision) {
                    self.not_installed(&failure, random, now_ms);
                }
            }
            UnitEvent::Reloaded(revision) => {
                if let Some(alive) = self.finish_reload(&revision) {
                    alive.revision = revision;
                }
            }
            UnitEvent::NotReloaded(revision) => {
                if let Some(alive) = self.finish_reload(&revision) {
                    alive.not_reloaded = Some(revision);
                }
            }
            UnitEvent::Outdated => {
                if let EffectiveInstance::Alive(alive) = &mut self.instance {
                    alive.outdated = true;
                }
            }
            UnitEvent::ContentChecked(found) => self.content_checked(found),
            UnitEvent::Started => self.started(),
            UnitEvent::NotStarted(failure) => self.not_started(&failure, now_ms),
            UnitEvent::StartUnknown => self.instance = EffectiveInstance::Unknown(LookUp::default()),
            UnitEvent::Told(told) => self.handle_report(told, now_ms),
            // The step is tried again later; until then the report has the reason.
            UnitEvent::Unheard { error } if matches!(self.instance, EffectiveInstance::Alive(_)) => self.fail(error),
            UnitEvent::Unheard { .. } => {}
            UnitEvent::Probed { process, which, verdict } => self.probed_by(process, which, verdict),
            UnitEvent::Second(seen) => self.handle_second_event(*seen, now_ms),
            UnitEvent::Ended(over) => self.ended(over, now_ms),
            UnitEvent::Played { ask, answer } => {
                let error = self.play.answered(ask, answer, now_ms);
                // What a unit answers that is to stop no longer matters.
                if let Some(error) =
                    error.filter(|_| self.desired.as_ref().is_some_and(|desired| desired.run.is_running()))
                {
                    self.fail(error);
                }
            }
            UnitEvent::Removed => self.installation.removed(),
            UnitEvent::NotRemoved { error } => {
                self.installation.removal_failed(now_ms);
                self.fail(error);
            }
            UnitEvent::Gate(gate) => self.needs.set_gate(gate),
            UnitEvent::Conflict(verdict) => self.take_verdict(verdict, now_ms),
            UnitEvent::GroupFailed(why) => _ = self.go_back(why, now_ms),
            UnitEvent::GroupWaits(waits) => self.set_group_waits(waits),
            UnitEvent::GroupStays(why) => self.set_group_stays(why),
            UnitEvent::ClockSet(by_ms) => self.shift(by_ms),
            UnitEvent::Tick => {}
        }
        self.update_report(now_ms);
    }

    fn desire(&mut self, desired: Option<Desired>, hold: Option<Hold>) {
        let generation = |desired: Option<&Desired>| desired.map(|desired| desired.generation);
        let before = self.asked().cloned();
        if generation(before.as_ref()) == generation(desired.as_ref()) {
            return;
        }
        self.hold = hold;
        self.set_group_stays(None);
        let has_finished = self.next_start == NextStart::Finished;
        let was_back = self.is_back();
        let probes = self.probes();
        self.record_frame();
        self.set_desired(before.as_ref(), desired);
        self.take_policy();
        let changed = self.probes();
        if let EffectiveInstance::Alive(alive) = &mut self.instance {
            alive.health.change(&probes, &changed);
        }
        // The revision that finished is not the desired one.
        if was_back && has_finished {
            self.forget_verified();
        }
        let has_finished = has_finished && !was_back;
        let is_restored = before.is_none() && generation(self.desired.as_ref()) == Some(self.observed.generation);
        self.next_start = match self.observed.phase() {
            Phase::Failed if is_restored && !self.is_broken() => NextStart::Failed,
            // A finished task is not run again because something else about it changed.
            _ if has_finished && (is_restored || self.is_unchanged_since(before.as_ref())) => NextStart::Finished,
            _ => self.next_start.of_another_generation(),
        };
        if !is_restored {
            // A new generation is a new attempt: earlier failures do not count.
            self.forget_failures();
        }
    }

    /// Keeps the frame of the running revision while its spec is known: it decides whether the process can be changed
    /// in place.
    fn record_frame(&mut self) {
        if let EffectiveInstance::Alive(alive) = &self.instance
            && alive.frame.is_none()
        {
            let known = self.spec_of(&alive.revision).and_then(|spec| spec.frame().ok());
            if let EffectiveInstance::Alive(alive) = &mut self.instance {
                alive.frame = known;
            }
        }
    }

    /// Forgets earlier failures.
    pub(super) fn forget_failures(&mut self) {
        self.play.try_again();
        self.next_start.forget_wait();
        self.installation.forget_failures();
        self.observed.attempts = 0;
        self.observed.error = None;
        self.observed.last_lines = None;
    }

    pub(super) fn take_policy(&mut self) {
        if let Some(desired) = &self.desired {
            self.policy = UnitPolicy::of(&desired.spec);
        }
    }

    fn probes(&self) -> Probes {
        self.desired.as_ref().map(|desired| desired.spec.probes().clone()).unwrap_or_default()
    }

    /// Whether the desired state is still the same for a task that has finished.
    fn is_unchanged_since(&self, before: Option<&Desired>) -> bool {
        let same = |(before, after): (&Desired, &Desired)| before.revision == after.revision && before.run == after.run;
        self.policy.restart != Restart::Always && before.zip(self.desired.as_ref()).is_some_and(same)
    }

    fn begin(&mut self, step: PlanStep, now_ms: Millis) {
        match step {
            PlanStep::Adopt => {
                self.installation.forget_step();
                if let EffectiveInstance::Unknown(lookup) = &mut self.instance {
                    lookup.begin();
                }
            }
            PlanStep::Install => {
                self.observed.progress = None;
                if let Some(desired) = &self.desired {
                    self.installation.begin_install(desired.revision.clone());
                }
            }
            PlanStep::Start { .. } => {
                if let Some(desired) = &self.desired {
                    self.instance = EffectiveInstance::Launching(desired.revision.clone());
                }
                let is_retry = self.next_start.forget_wait();
                self.begin_trial(is_retry, now_ms);
                if is_retry {
                    self.observed.attempts = self.observed.attempts.saturating_add(1);
                }
            }
            PlanStep::Stop { grace_ms, .. } => {
                if let EffectiveInstance::Alive(alive) = &mut self.instance {
                    alive.ends_by_ms = Some(now_ms.saturating_add(to_millis(grace_ms)).saturating_add(STOP_SLACK_MS));
                }
            }
            PlanStep::Reload => {
                self.begin_trial(false, now_ms);
                // Another revision than the desired one would be installed.
                self.installation.forget_step();
                if let (EffectiveInstance::Alive(alive), Some(desired)) = (&mut self.instance, &self.desired) {
                    alive.reloading = Some(desired.revision.clone());
                }
            }
            PlanStep::Freeze | PlanStep::Thaw => {
                if let EffectiveInstance::Alive(alive) = &mut self.instance {
                    alive.freezes_by_ms = Some((step == PlanStep::Freeze, now_ms.saturating_add(FREEZE_AGAIN_MS)));
                }
            }
            PlanStep::Play { playing, ask } => self.play.began(playing, ask),
            PlanStep::StartSecond | PlanStep::StopSecond { .. } => self.begin_second(step, now_ms),
            PlanStep::Remove => self.installation.begin_removal(),
            PlanStep::WaitUntil(_) => {}
        }
    }

    /// Handles the result of a lookup. If the instance is known, the result is older than that and is ignored.
    fn found(&mut self, found: FoundInstance, now_ms: Millis) {
        let EffectiveInstance::Unknown(_) = &self.instance else { return };
        let kept = self.instance.kept();
        let phase = self.observed.phase();
        let before = self.observed.instance().clone();
        let was_alive = matches!(phase, Phase::Starting | Phase::Running | Phase::Playing | Phase::Stopping)
            || before.pid.is_some();
        match found {
            FoundInstance::Nothing => self.instance = EffectiveInstance::None,
            FoundInstance::Alive(revision, told) => {
                self.play.begin(true);
                let was_up = before.pid.filter(|_| kept.up && told.restarts == kept.restarts);
                let mut alive = LiveInstance::new(revision, kept.restarts);
                alive.health = Health::restore(was_up, before.unready.clone(), kept.condemned);
                alive.report = before;
                self.instance = EffectiveInstance::Alive(alive);
                self.handle_report(told, now_ms);
            }
            // Its end is news only if it was alive when the agent last looked.
            FoundInstance::Ended(over) if was_alive => {
                self.count(over.restarts.saturating_sub(kept.restarts), &over.last);
                let revision = self.observed.revision.clone();
                self.take_end(&over.last, phase == Phase::Stopping, revision.as_ref(), now_ms);
            }
            FoundInstance::Ended(_) => self.instance = EffectiveInstance::None,
        }
    }

    /// Ends the change of the instance to this revision; returns the instance if that was under way.
    fn finish_reload(&mut self, revision: &Digest) -> Option<&mut LiveInstance> {
        match &mut self.instance {
            EffectiveInstance::Alive(alive) if alive.reloading.as_ref() == Some(revision) => {
                alive.reloading = None;
                Some(alive)
            }
            _ => None,
        }
    }

    fn not_installed(&mut self, failure: &Failure, random: f64, now_ms: Millis) {
        if failure.may_heal {
            self.installation.failed(random, now_ms);
        } else if self.go_back(failure.error.clone(), now_ms) {
            return;
        } else {
            self.next_start = NextStart::Failed;
        }
        self.fail_beside_instance(failure.error.clone());
    }

    fn started(&mut self) {
        if let EffectiveInstance::Launching(revision) = &self.instance {
            self.play.begin(false);
            self.instance = EffectiveInstance::Alive(LiveInstance::new(revision.clone(), 0));
        }
    }

    /// Handles what was found of the content of the running instance. A process that may run from what was changed is
    /// restarted once that is put right.
    fn content_checked(&mut self, found: ContentReport) {
        let EffectiveInstance::Alive(alive) = &mut self.instance else { return };
        if found.revision.as_ref() != Some(&alive.revision) {
            return;
        }
        let start_ticks = alive.process.map(|process| process.start_ticks);
        if found.is_corrected && start_ticks.is_some_and(|ticks| found.may_be_run(ticks, alive.restarts)) {
            alive.outdated = true;
        }
        alive.report.drift = if found.is_corrected { Vec::new() } else { found.changed };
    }

    pub(super) fn handle_report(&mut self, told: ShimReport, now_ms: Millis) {
        let EffectiveInstance::Alive(alive) = &mut self.instance else { return };
        let revision = alive.revision.clone();
        alive.process = told.process;
        alive.ready = told.ready;
        self.play.observe(told.process, told.connection.as_ref());
        alive.health.observe(told.process, now_ms);
        alive.report = InstanceReport {
            pid: None,
            unready: None,
            frozen: told.frozen,
            status: told.status,
            can: told.connection.map(|connection| connection.can).unwrap_or_default(),
            unsupported: told.unsupported,
            drift: told.drift.unwrap_or_else(|| std::mem::take(&mut alive.report.drift)),
        };
        let more = told.restarts.saturating_sub(alive.restarts);
        alive.restarts = told.restarts;
        alive.runs_with = Some(told.wiring);
        if let Some(last) = &told.last {
            self.note_end(last);
            self.count(more, last);
            if more > 0 && last.silent && self.desires(&revision) {
                self.observed.last_lines.clone_from(&last.last_lines);
                self.go_back(last.by_itself(), now_ms);
            }
        }
    }

    pub(super) fn fail(&mut self, error: impl Into<Diagnostic>) {
        self.observed.error = Some(shortened(error.into()));
    }

    /// Reports a failure that an instance that runs has no part in.
    pub(super) fn fail_beside_instance(&mut self, mut error: Diagnostic) {
        if let EffectiveInstance::Alive(alive) = &self.instance {
            error.cause = format!("{}; revision {} keeps running", error.cause, alive.revision.short());
        }
        self.fail(error);
    }

    pub(super) fn desires(&self, revision: &Digest) -> bool {
        self.desired.as_ref().is_some_and(|desired| desired.revision == *revision)
    }

    pub(super) fn wants_running(&self) -> bool {
        self.desired.as_ref().is_some_and(|desired| desired.run.is_running())
    }
}

pub(super) fn shortened(error: Diagnostic) -> Diagnostic {
    error.map(|text| text.chars().take(TEXT_MAX_CHARS).collect())
}

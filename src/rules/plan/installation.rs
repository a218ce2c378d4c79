//! What of a unit is installed on its host, and the step that changes this.

use muster_topics::{Millis, name::Digest};

use super::{ADOPT_AGAIN_MS, PlanStep, clock_shift::shift, step::due};
use crate::backoff::ExponentialGrowth;

/// Delays before an installation is tried again: from a second, so that a restart of the console costs little time, to
/// five minutes, so that a console that is down is not flooded.
const INSTALL: ExponentialGrowth = ExponentialGrowth { first_ms: 1_000, max_ms: 300_000 };

/// What is installed, and what is being done about it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Installation {
    /// The revision that is completely installed on this host.
    pub(super) revision: Option<Digest>,
    /// The step that is under way.
    step: Option<InstallStep>,
    /// When a failed step is tried again.
    retry: Option<Retry>,
}

/// A step that changes what is installed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum InstallStep {
    /// Installing everything for this revision.
    Installing(Digest),
    /// Removing everything.
    Removing,
}

/// When a failed step is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Retry {
    at_ms: Millis,
    /// How often in a row the installation failed.
    failures: u32,
}

impl Installation {
    /// Restores it for a unit of which this revision is installed.
    pub(super) fn restore(revision: Option<Digest>) -> Self {
        Self { revision, ..Self::default() }
    }

    /// Whether this revision is completely installed.
    pub(super) fn has(&self, revision: &Digest) -> bool {
        self.revision.as_ref() == Some(revision)
    }

    /// Whether a revision is being installed.
    pub(super) fn is_installing(&self) -> bool {
        matches!(self.step, Some(InstallStep::Installing(_)))
    }

    /// Whether this revision is being installed.
    pub(super) fn installs(&self, revision: &Digest) -> bool {
        matches!(&self.step, Some(InstallStep::Installing(installing)) if installing == revision)
    }

    /// Whether everything is being removed.
    pub(super) fn is_removing(&self) -> bool {
        self.step == Some(InstallStep::Removing)
    }

    /// Whether no step is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.step.is_none()
    }

    /// When the step that failed is tried again.
    pub(super) fn retry_ms(&self) -> Option<Millis> {
        self.retry.map(|retry| retry.at_ms)
    }

    /// Returns this step, or the wait before it may be tried again.
    pub(super) fn plan(&self, step: PlanStep, now_ms: Millis) -> PlanStep {
        due(self.retry_ms(), now_ms).unwrap_or(step)
    }

    /// Handles that the installation of a revision has begun, instead of any other step.
    pub(super) fn begin_install(&mut self, revision: Digest) {
        self.step = Some(InstallStep::Installing(revision));
    }

    /// Handles that the removal has begun.
    pub(super) fn begin_removal(&mut self) {
        self.step = Some(InstallStep::Removing);
    }

    /// Forgets the step that is under way, because its result does not matter any more.
    pub(super) fn forget_step(&mut self) {
        self.step = None;
    }

    /// Ends the step that installs this revision, if it is the one under way.
    pub(super) fn finish(&mut self, revision: &Digest) {
        if self.installs(revision) {
            self.step = None;
        }
    }

    /// Handles that the desired revision is completely installed.
    pub(super) fn installed(&mut self, revision: Digest) {
        (self.revision, self.retry) = (Some(revision), None);
    }

    /// Handles that the desired revision could not be installed yet. `random` is from 0 to 1, to spread the attempts
    /// of many hosts.
    pub(super) fn failed(&mut self, random: f64, now_ms: Millis) {
        let failures = self.failures();
        let delay_ms = INSTALL.full_jitter_ms(failures, random);
        // A random delay of zero would make a busy loop; a tenth of the base does not.
        let at_ms = now_ms.saturating_add(delay_ms.max(INSTALL.first_ms / 10));
        self.retry = Some(Retry { at_ms, failures: failures.saturating_add(1) });
    }

    /// Handles that everything has been removed.
    pub(super) fn removed(&mut self) {
        (self.revision, self.step) = (None, None);
    }

    /// Handles that the removal failed.
    pub(super) fn removal_failed(&mut self, now_ms: Millis) {
        self.step = None;
        self.retry = Some(Retry { at_ms: now_ms.saturating_add(ADOPT_AGAIN_MS), failures: self.failures() });
    }

    /// Forgets earlier failures, so that the next step is tried at once.
    pub(super) fn forget_failures(&mut self) {
        self.retry = None;
    }

    /// Shifts its times by as much as the clock was set.
    pub(super) fn shift(&mut self, by_ms: Millis) {
        self.retry.iter_mut().for_each(|retry| shift(&mut retry.at_ms, by_ms));
    }

    fn failures(&self) -> u32 {
        self.retry.map_or(0, |retry| retry.failures)
    }
}

//! The task that compares what running units were started from with the disk, at a tick of its own: reading it all may take
//! longer than a tick of the units' task.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt, stream};
use muster_base::chance::random;
use muster_rules::{
    content_check::{CORRECTIONS_MAX, CORRECTIONS_WITHIN_MS, ContentReport},
    corrections::Corrections,
    plan::UnitEvent,
};
use muster_session::unit_state::{UnitState, UnitStates};
use muster_topics::{
    diagnostic::Diagnostic,
    name::UnitName,
    unit::{Desired, Phase},
};
use tokio::sync::{Notify, mpsc, watch};

use super::{kind::ContentOrder, kinds::Kinds, step::StepReport};
use crate::artifact::uptime_ms;

/// How often all are looked at. A tenth of it is random, as for units.
const TICK: Duration = Duration::from_secs(30);

/// Units that are compared at once: one with large files, which are read slowly, does not keep the others waiting.
const CHECKS_MAX: usize = 8;

/// The task's state.
pub(super) struct ContentWatch {
    pub(super) kinds: Kinds,
    pub(super) states: watch::Receiver<UnitStates>,
    pub(super) reports: mpsc::Sender<StepReport>,
    /// Notified when all units are to be looked at now.
    pub(super) look: Arc<Notify>,
}

impl ContentWatch {
    /// Looks at all running units as long as it is polled. Dropping it is safe: a correction that was cut short is done by the
    /// next.
    pub(super) async fn run(self) {
        let (mut corrections, mut reported) = (BTreeMap::new(), BTreeSet::new());
        loop {
            let wait = TICK.mul_f64(0.95 + 0.1 * random());
            tokio::select! {
                // A permit is kept until it is taken: cancel-safe.
                () = self.look.notified() => {}
                // Cancel-safe.
                () = tokio::time::sleep(wait) => {}
            }
            let running = self.running();
            corrections.retain(|unit, _| running.iter().any(|(name, _)| name == unit));
            reported.retain(|unit| running.iter().any(|(name, _)| name == unit));
            let now_ms = uptime_ms();
            let mut ordered = Vec::new();
            for (unit, state) in running {
                let latest: &mut Corrections = corrections
                    .entry(unit.clone())
                    .or_insert_with(|| Corrections::new(CORRECTIONS_MAX, CORRECTIONS_WITHIN_MS));
                // A held unit is left as it is.
                let wanted = state.hold.is_none() && state.spec().yuno().is_some_and(|spec| spec.drift.is_correct());
                ordered.push((unit, state, wanted, wanted && !latest.is_spent(now_ms)));
            }
            let checks = ordered.into_iter().map(|(unit, state, wanted, corrects)| {
                let this = &self;
                async move { (this.check(&unit, &state, corrects).await, unit, state, wanted && !corrects) }
            });
            let mut checks = std::pin::pin!(stream::iter(checks).buffer_unordered(CHECKS_MAX));
            while let Some((found, unit, state, is_fight)) = checks.next().await {
                let Some(mut found) = found else { continue };
                if found.is_corrected
                    && let Some(latest) = corrections.get_mut(&unit)
                {
                    latest.may_correct(now_ms);
                }
                if is_fight && !found.changed.is_empty() {
                    found.changed.push(
                        Diagnostic::new(format_args!("it was corrected {CORRECTIONS_MAX} times within an hour"))
                            .with_hint("find the other program that writes it"),
                    );
                }
                let is_changed = !found.changed.is_empty() && !found.is_corrected;
                // What is as it should be is news only after it was not.
                if found.changed.is_empty() && !reported.remove(&unit) {
                    continue;
                }
                if is_changed {
                    reported.insert(unit.clone());
                }
                tell(&unit, &found);
                let report = StepReport { unit, slot: state.slot, seen: UnitEvent::ContentChecked(found) };
                // The receiver ends only with the agent.
                let _ = self.reports.send(report).await;
            }
        }
    }

    /// Returns the units that run as they are desired. One that is being changed is looked at once that is done.
    fn running(&self) -> Vec<(UnitName, Arc<UnitState>)> {
        let is_up = |state: &UnitState| {
            let is_reached = state.observed.generation == state.desired.generation;
            matches!(state.observed.phase(), Phase::Running | Phase::Playing) && state.process.is_some() && is_reached
        };
        let states = self.states.borrow();
        states.iter().filter(|(_, state)| is_up(state)).map(|(name, state)| (name.clone(), state.clone())).collect()
    }

    async fn check(&self, unit: &UnitName, state: &UnitState, corrects: bool) -> Option<ContentReport> {
        let spec = state.spec.clone().unwrap_or_else(|| state.desired.spec.clone());
        let kind = self.kinds.of(&spec)?;
        let revision = state.observed.revision.clone()?;
        let running = Desired { revision, spec, ..state.desired.clone() };
        let order = ContentOrder { running, corrects };
        match kind.check_content(unit, state.slot, &order).await {
            Ok(found) => found,
            Err(failure) => {
                tracing::warn!(%unit, error = failure.error.cause, hint = failure.error.hint, "the files of a unit cannot be compared with the disk");
                None
            }
        }
    }
}

fn tell(unit: &UnitName, found: &ContentReport) {
    let Diagnostic { cause: what, hint, .. } = Diagnostic::all(found.changed.iter().cloned()).unwrap_or_default();
    match (found.changed.is_empty(), found.is_corrected) {
        (true, _) => tracing::info!(%unit, "the files of a unit are correct again"),
        (false, true) => tracing::warn!(
            %unit,
            what,
            hint = "find the program that changes files below the agent's folder, and check this host's disk",
            "the files of a unit had changed and were corrected",
        ),
        (false, false) => {
            tracing::warn!(%unit, what, hint, "the files of a unit have changed and are left unchanged");
        }
    }
}

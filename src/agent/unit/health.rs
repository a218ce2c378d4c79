//! Runs the probes of units: one task for each probe that the planner wants.
//!
//! [`muster_rules::plan::PlannedUnit::probing`] says which those are, and is asked after
//! each change of a unit. A task repeats its probe and reports each change of the result.
//!
//! **Invariant: a probe runs at most once at a time**: its task waits for the result.

use std::{collections::BTreeMap, time::Duration};

use muster_base::chance::random;
use muster_rules::{
    plan::{ProbeRequest, UnitEvent},
    probe::ProbeCounter,
};
use muster_topics::probe::Which;
use tokio::task::{AbortHandle, JoinSet};

use super::step::Worker;

/// The probes of one unit that are running.
#[derive(Default)]
pub(super) struct ProbeTasks(BTreeMap<Which, (ProbeRequest, AbortHandle)>);

impl ProbeTasks {
    /// Runs exactly these probes from now on. Those already running continue.
    pub(super) fn keep(&mut self, wanted: Vec<ProbeRequest>, worker: impl Fn() -> Worker, work: &mut JoinSet<()>) {
        self.0.retain(|_, (probing, task)| {
            let goes_on = !task.is_finished() && wanted.iter().any(|wanted| wanted.is_same(probing));
            if !goes_on {
                // An attempt under way does not count; its command ends when its time is over.
                task.abort();
            }
            goes_on
        });
        for probing in wanted {
            let which = probing.which;
            self.0.entry(which).or_insert_with(|| (probing.clone(), work.spawn(watch(worker(), probing))));
        }
    }
}

async fn watch(worker: Worker, probing: ProbeRequest) {
    let mut watch = ProbeCounter::new(&probing.probe, probing.coming, random());
    let ProbeRequest { process, which, .. } = probing;
    loop {
        tokio::time::sleep(Duration::from_millis(watch.wait_ms())).await;
        let answer = worker.kind.probe(&worker.unit, &probing).await;
        if let Some(verdict) = watch.answered(answer) {
            worker.report(UnitEvent::Probed { process, which, verdict }).await;
        }
    }
}

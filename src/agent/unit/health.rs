//! Finding out whether a unit is well: a task for each probe that the planner wants tried.
//!
//! Which those are follows from what is known of the unit ([`crate::rules::plan::Unit::probing`]), and is looked at after
//! each change of that. A task tries its probe again and again, and reports what comes of it if that is news.
//!
//! **Invariant: a probe is tried once at a time**: whoever tries it waits for the answer.

use std::{collections::BTreeMap, time::Duration};

use muster_topics::probe::Which;
use tokio::task::{AbortHandle, JoinSet};

use super::step::Worker;
use crate::{
    chance::random,
    rules::{
        plan::{Probing, Seen},
        probe::Watch,
    },
};

/// The probes of one unit that are being tried.
#[derive(Default)]
pub(super) struct Watchers(BTreeMap<Which, (Probing, AbortHandle)>);

impl Watchers {
    /// Has just these tried from now on. What is tried already goes on.
    pub(super) fn keep(&mut self, wanted: Vec<Probing>, worker: impl Fn() -> Worker, work: &mut JoinSet<()>) {
        self.0.retain(|_, (probing, task)| {
            let goes_on = !task.is_finished() && wanted.iter().any(|wanted| wanted.is_same(probing));
            if !goes_on {
                // Whatever is being tried just now counts for nothing; a command ends when its time is over.
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

async fn watch(worker: Worker, probing: Probing) {
    let mut watch = Watch::new(&probing.probe, probing.coming, random());
    let Probing { process, which, .. } = probing;
    loop {
        tokio::time::sleep(Duration::from_millis(watch.wait_ms())).await;
        let answer = worker.kind.probe(&worker.unit, &probing).await;
        if let Some(verdict) = watch.answered(answer) {
            worker.report(Seen::Probed { process, which, verdict }).await;
        }
    }
}

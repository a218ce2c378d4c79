//! The border of every kind of unit: what it says passes here, and goes on without the secrets that the unit was given.
//!
//! **Invariant: no text of a kind or of an instance leaves unmasked**: failures, what probes say, the last lines of a process, its
//! status, its log, its answers and differences of files. Logs of tasks pass [`super::task_log`], which masks in the same way.

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use muster_rules::{
    content_check::ContentReport,
    mask::{Cut, SecretMask},
    plan::{Failure, InstanceEnd, InstanceExit, ProbeRequest, ShimReport, Slot},
};
use muster_topics::{
    channel::{Complaint, ToldStats},
    command::LogView,
    diagnostic::Diagnostic,
    effective::Effective,
    name::{Digest, UnitName},
    signal::Signal,
    unit::Desired,
};
use serde_json::Value;

use super::{
    given_secrets::GivenSecrets,
    kind::{
        AdoptedUnit, ContentOrder, FollowFrom, HostChanges, Instance, InstanceEvent, InstanceRequest, ProgressReporter,
        Signaller, StartError, StartOrder, StepDeadlines, UnitKind, UnitTrace,
    },
    log::LogPart,
};

/// A kind of unit behind the border.
pub(super) struct MaskedKind {
    kind: Arc<dyn UnitKind>,
    given: GivenSecrets,
}

impl MaskedKind {
    pub(super) fn new(kind: Arc<dyn UnitKind>, given: GivenSecrets) -> Self {
        Self { kind, given }
    }

    fn failure(&self, unit: &UnitName, mut failure: Failure) -> Failure {
        self.given.mask(unit).mask_diagnostic(&mut failure.error, Cut::NONE);
        failure
    }

    /// Learns what the kind has kept: of inline secrets, and after a restart of the agent.
    fn learn(&self, unit: &UnitName) {
        self.given.add(unit, self.kind.kept_secrets(unit));
    }

    /// Finishes a step: learns, and masks why it failed.
    fn done<T>(&self, unit: &UnitName, done: Result<T, Failure>) -> Result<T, Failure> {
        self.learn(unit);
        done.map_err(|failure| self.failure(unit, failure))
    }

    fn instance(&self, unit: &UnitName, instance: Box<dyn Instance>) -> Box<dyn Instance> {
        Box::new(MaskedInstance { instance, unit: unit.clone(), given: self.given.clone() })
    }
}

fn mask_report(mask: &SecretMask, report: &mut ShimReport) {
    report.last.iter_mut().for_each(|last| mask_exit(mask, last));
    report.status.iter_mut().for_each(|status| mask.mask(status, Cut::BOTH));
    report.unsupported.iter_mut().for_each(|reason| mask.mask_diagnostic(reason, Cut::NONE));
    report.drift.iter_mut().flatten().for_each(|changed| mask.mask_diagnostic(changed, Cut::NONE));
}

fn mask_exit(mask: &SecretMask, exit: &mut InstanceExit) {
    exit.last_lines.iter_mut().for_each(|lines| mask.mask(lines, Cut::BOTH));
    exit.why.iter_mut().for_each(|why| mask.mask_diagnostic(why, Cut::NONE));
}

fn mask_end(mask: &SecretMask, mut end: InstanceEnd) -> InstanceEnd {
    mask_exit(mask, &mut end.last);
    end
}

impl UnitKind for MaskedKind {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn deadlines(&self) -> StepDeadlines {
        self.kind.deadlines()
    }

    fn traces(&self) -> io::Result<Vec<UnitTrace>> {
        let traces = self.kind.traces()?;
        traces.iter().for_each(|trace| self.learn(&trace.unit));
        Ok(traces)
    }

    fn kept_secrets(&self, unit: &UnitName) -> Vec<String> {
        self.kind.kept_secrets(unit)
    }

    fn adopt<'a>(&'a self, unit: &'a UnitName, slot: Slot) -> BoxFuture<'a, Result<AdoptedUnit, Failure>> {
        async move {
            let found = self.done(unit, self.kind.adopt(unit, slot).await)?;
            let mask = self.given.mask(unit);
            Ok(match found {
                AdoptedUnit::Alive { revision, mut told, instance } => {
                    mask_report(&mask, &mut told);
                    AdoptedUnit::Alive { revision, told, instance: self.instance(unit, instance) }
                }
                AdoptedUnit::Ended(end) => AdoptedUnit::Ended(mask_end(&mask, end)),
                AdoptedUnit::Nothing => AdoptedUnit::Nothing,
            })
        }
        .boxed()
    }

    fn install<'a>(
        &'a self,
        unit: &'a UnitName,
        desired: &'a Desired,
        keep: Option<&'a Digest>,
        tell: &'a ProgressReporter<'a>,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        async move { self.done(unit, self.kind.install(unit, desired, keep, tell).await) }.boxed()
    }

    fn prepare<'a>(
        &'a self,
        unit: &'a UnitName,
        desired: &'a Desired,
        keep: Option<&'a Digest>,
        is_there: bool,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        async move { self.done(unit, self.kind.prepare(unit, desired, keep, is_there).await) }.boxed()
    }

    fn changes<'a>(
        &'a self,
        unit: &'a UnitName,
        desired: Option<&'a Desired>,
        keep: Option<&'a Digest>,
    ) -> BoxFuture<'a, Result<HostChanges, Failure>> {
        async move {
            let mut changes = self.done(unit, self.kind.changes(unit, desired, keep).await)?;
            let mask = self.given.mask(unit);
            changes.files.iter_mut().flat_map(|file| &mut file.diff).for_each(|diff| mask.mask(diff, Cut::BOTH));
            Ok(changes)
        }
        .boxed()
    }

    fn start<'a>(
        &'a self,
        unit: &'a UnitName,
        start: &'a StartOrder,
    ) -> BoxFuture<'a, Result<Box<dyn Instance>, StartError>> {
        async move {
            let started = self.kind.start(unit, start).await;
            self.learn(unit);
            match started {
                Ok(instance) => Ok(self.instance(unit, instance)),
                Err(StartError::Failed(failure)) => Err(StartError::Failed(self.failure(unit, failure))),
                Err(StartError::Unknown) => Err(StartError::Unknown),
            }
        }
        .boxed()
    }

    fn reload<'a>(
        &'a self,
        unit: &'a UnitName,
        slot: Slot,
        desired: &'a Desired,
        keep: Option<&'a Digest>,
        signal: &'a Signaller<'a>,
    ) -> BoxFuture<'a, Result<bool, Failure>> {
        async move { self.done(unit, self.kind.reload(unit, slot, desired, keep, signal).await) }.boxed()
    }

    fn has_watched_files(&self, desired: &Desired) -> bool {
        self.kind.has_watched_files(desired)
    }

    fn check_watched_files<'a>(
        &'a self,
        unit: &'a UnitName,
        slot: Slot,
        desired: &'a Desired,
        signal: &'a Signaller<'a>,
    ) -> BoxFuture<'a, Result<bool, Failure>> {
        async move {
            let checked = self.kind.check_watched_files(unit, slot, desired, signal).await;
            checked.map_err(|failure| self.failure(unit, failure))
        }
        .boxed()
    }

    fn check_content<'a>(
        &'a self,
        unit: &'a UnitName,
        slot: Slot,
        order: &'a ContentOrder,
    ) -> BoxFuture<'a, Result<Option<ContentReport>, Failure>> {
        async move {
            let found = self.kind.check_content(unit, slot, order).await;
            // Its secrets may have been fetched again. (To read those that are kept costs more than the comparison.)
            if !matches!(&found, Ok(found) if found.as_ref().is_none_or(|found| found.changed.is_empty())) {
                self.learn(unit);
            }
            let mut found = found.map_err(|failure| self.failure(unit, failure))?;
            let mask = self.given.mask(unit);
            found.iter_mut().flat_map(|found| &mut found.changed).for_each(|one| mask.mask_diagnostic(one, Cut::NONE));
            Ok(found)
        }
        .boxed()
    }

    fn remove<'a>(&'a self, unit: &'a UnitName) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            let removed = self.kind.remove(unit).await.map_err(|failure| self.failure(unit, failure));
            if removed.is_ok() {
                self.given.forget(unit);
            }
            removed
        }
        .boxed()
    }

    fn ask<'a>(
        &'a self,
        unit: &'a UnitName,
        slot: Slot,
        ask: InstanceRequest,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Value, Complaint>> {
        async move {
            let answer = self.kind.ask(unit, slot, ask, limit).await;
            let mask = self.given.mask(unit);
            match answer {
                Ok(mut answer) => {
                    mask.mask_document(&mut answer);
                    Ok(answer)
                }
                Err(mut complaint) => {
                    mask.mask(&mut complaint.code, Cut::NONE);
                    mask.mask_diagnostic(&mut complaint.diagnostic, Cut::BOTH);
                    Err(complaint)
                }
            }
        }
        .boxed()
    }

    fn probe<'a>(&'a self, unit: &'a UnitName, probing: &'a ProbeRequest) -> BoxFuture<'a, Result<(), Diagnostic>> {
        async move {
            let probed = self.kind.probe(unit, probing).await;
            probed.map_err(|mut why| {
                self.given.mask(unit).mask_diagnostic(&mut why, Cut::END);
                why
            })
        }
        .boxed()
    }

    fn log<'a>(&'a self, unit: &'a UnitName, from: FollowFrom, view: LogView) -> BoxFuture<'a, io::Result<LogPart>> {
        async move {
            let mut part = self.kind.log(unit, from, view).await?;
            // It may begin within a line that was cut, and end within one that is not yet whole.
            let cut = Cut { start: true, end: !part.text.ends_with(b"\n") };
            part.text = self.given.mask(unit).bytes(&part.text, cut);
            Ok(part)
        }
        .boxed()
    }

    fn effective<'a>(
        &'a self,
        unit: &'a UnitName,
        slot: Slot,
        revision: &'a Digest,
    ) -> BoxFuture<'a, io::Result<Effective>> {
        async move {
            let mut effective = self.kind.effective(unit, slot, revision).await?;
            let mask = self.given.mask(unit);
            effective.config.iter_mut().for_each(|config| mask.mask_document(config));
            Ok(effective)
        }
        .boxed()
    }

    fn stats(&self) -> BTreeMap<(UnitName, Slot), ToldStats> {
        let mut stats = self.kind.stats();
        for ((unit, _), told) in &mut stats {
            let mask = self.given.mask(unit);
            told.values.values_mut().for_each(|value| mask.mask_document(value));
        }
        stats
    }

    fn sweep(&self, desired: Vec<Desired>) -> BoxFuture<'_, io::Result<()>> {
        self.kind.sweep(desired)
    }
}

/// An instance behind the border.
struct MaskedInstance {
    instance: Box<dyn Instance>,
    unit: UnitName,
    given: GivenSecrets,
}

impl MaskedInstance {
    fn failure(&self, mut failure: Failure) -> Failure {
        self.given.mask(&self.unit).mask_diagnostic(&mut failure.error, Cut::NONE);
        failure
    }
}

impl Instance for MaskedInstance {
    fn next(&mut self) -> BoxFuture<'_, Option<InstanceEvent>> {
        async {
            let event = self.instance.next().await?;
            let mask = self.given.mask(&self.unit);
            Some(match event {
                InstanceEvent::Told(mut report) => {
                    mask_report(&mask, &mut report);
                    InstanceEvent::Told(report)
                }
                InstanceEvent::Ended(end) => InstanceEvent::Ended(mask_end(&mask, end)),
            })
        }
        .boxed()
    }

    fn stop(&mut self, signal: Option<Signal>, grace_ms: u64) -> BoxFuture<'_, Result<(), Failure>> {
        async move {
            let stopped = self.instance.stop(signal, grace_ms).await;
            stopped.map_err(|failure| self.failure(failure))
        }
        .boxed()
    }

    fn freeze(&mut self, frozen: bool) -> BoxFuture<'_, Result<(), Failure>> {
        async move {
            let done = self.instance.freeze(frozen).await;
            done.map_err(|failure| self.failure(failure))
        }
        .boxed()
    }

    fn signal(&mut self, signal: Signal) -> BoxFuture<'_, Result<bool, Failure>> {
        async move {
            let done = self.instance.signal(signal).await;
            done.map_err(|failure| self.failure(failure))
        }
        .boxed()
    }
}

//! Packages that are as their unit's spec says. They are looked at when the package manager's status changes: it is there for
//! everybody who changes packages.

use std::{fs, sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use muster_base::clock::now_ms;
use muster_rules::plan::{Failure, InstanceEnd, InstanceExit, ShimReport};
use muster_topics::{
    Millis,
    diagnostic::Diagnostic,
    name::{Digest, UnitName},
    packages::PackagesSpec,
    signal::Signal,
    unit::Exit,
};

use super::Host;
use crate::unit::{
    drift::shortened,
    kind::{Instance, InstanceEvent},
    turns::ResourceClass,
};

/// How often to see whether the status has changed, which costs one call of the system.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The packages of a unit.
pub(super) struct PackagesInstance {
    host: Arc<Host>,
    unit: UnitName,
    revision: Digest,
    spec: PackagesSpec,
    started_ms: Millis,
    told: Option<ShimReport>,
    /// The status that was looked at.
    seen: Option<StatusMark>,
    is_stopped: bool,
}

/// By what a change of the status is noticed.
type StatusMark = (std::time::SystemTime, u64);

impl PackagesInstance {
    pub(super) fn new(host: Arc<Host>, unit: &UnitName, revision: &Digest, spec: PackagesSpec) -> Self {
        Self {
            host,
            unit: unit.clone(),
            revision: revision.clone(),
            spec,
            started_ms: now_ms(),
            told: None,
            seen: None,
            is_stopped: false,
        }
    }

    fn ended(&self, why: Option<Diagnostic>, exit: Exit) -> InstanceEvent {
        let last = InstanceExit { why, ..InstanceExit::new(exit, Some(self.started_ms), now_ms()) };
        InstanceEvent::Ended(InstanceEnd { restarts: 0, last })
    }

    fn mark(&self) -> Option<StatusMark> {
        let about = fs::metadata(self.host.root.path(self.host.adapter.status_file())).ok()?;
        Some((about.modified().ok()?, about.len()))
    }

    /// Looks at the packages, if their status has changed and nobody is changing them.
    async fn look(&mut self) -> Option<InstanceEvent> {
        let mark = self.mark()?;
        if self.seen == Some(mark) || self.host.lock_holder().is_some() {
            return None;
        }
        // Another unit's turn is waited for with the next look.
        let host = self.host.clone();
        let _turn = host.turns.try_take(ResourceClass::Packages)?;
        // What is done about drift may have been changed since.
        if let Some(spec) = self.host.desired(&self.unit, &self.revision).await {
            self.spec = spec;
        }
        let found = self.host.found(&self.spec).await;
        let found = match found {
            Ok(found) => found,
            Err(failure) => {
                tracing::warn!(
                    error = failure.error.cause,
                    hint = failure.error.hint,
                    "the packages of this host cannot be listed"
                );
                return None;
            }
        };
        self.seen = Some(mark);
        if !found.drift.is_empty() && self.spec.drift.is_correct() {
            return Some(self.ended(
                Some(format!("it was changed outside of muster: {}", found.drift.join(", ")).into()),
                Exit::Unknown,
            ));
        }
        let left = found
            .leftovers
            .iter()
            .map(|path| format!("the package manager wrote {path} instead of replacing the existing file"));
        let drift = shortened(found.drift.iter().cloned().chain(left).collect());
        let drift = drift.into_iter().map(Diagnostic::from).collect();
        self.tell(ShimReport { ready: true, drift: Some(drift), ..ShimReport::default() })
    }

    fn tell(&mut self, report: ShimReport) -> Option<InstanceEvent> {
        if self.told.as_ref() == Some(&report) {
            return None;
        }
        self.told = Some(report.clone());
        Some(InstanceEvent::Told(report))
    }

    /// Waits for the next event. Cancel-safe: a look that was not finished is repeated.
    async fn next_event(&mut self) -> Option<InstanceEvent> {
        loop {
            if self.is_stopped {
                return Some(self.ended(None, Exit::Code(0)));
            }
            if self.told.is_none()
                && let Some(event) = self.tell(ShimReport { ready: true, ..ShimReport::default() })
            {
                return Some(event);
            }
            if let Some(event) = self.look().await {
                return Some(event);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

impl Instance for PackagesInstance {
    fn next(&mut self) -> BoxFuture<'_, Option<InstanceEvent>> {
        self.next_event().boxed()
    }

    /// Leaves everything as it is.
    fn stop(&mut self, _: Option<Signal>, _: u64) -> BoxFuture<'_, Result<(), Failure>> {
        self.is_stopped = true;
        async { Ok(()) }.boxed()
    }

    fn freeze(&mut self, _: bool) -> BoxFuture<'_, Result<(), Failure>> {
        async { Err(crate::unit::failure::never("packages cannot be frozen: there is no process")) }.boxed()
    }

    fn signal(&mut self, _: Signal) -> BoxFuture<'_, Result<bool, Failure>> {
        async { Ok(false) }.boxed()
    }
}

//! The trait that a kind of unit implements. Its methods are the planner's steps ([`muster_rules::plan::PlanStep`]);
//! the units' task ([`super`]) calls each on a task of its own, with a deadline.

use std::{collections::BTreeMap, io, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use muster_rules::{
    content_check::ContentReport,
    host_plan::FilePlan,
    packages::change::PackageChange,
    plan::{Failure, InstanceEnd, ProbeRequest, ShimReport, Slot},
    port_lease::EndpointWiring,
};
use muster_topics::{
    Millis,
    channel::{Ability, Complaint, ToldStats},
    command::LogView,
    diagnostic::Diagnostic,
    effective::Effective,
    name::{Digest, UnitName},
    signal::Signal,
    unit::{Desired, Progress},
};
use serde_json::{Map, Value};

use super::log::{LogPart, LogPosition};

/// The position from which a log is followed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FollowFrom {
    /// This many lines before its end, or before that of the view.
    Last(u32),
    /// This position.
    Place(LogPosition),
}

/// A kind of unit: how it is installed, started, adopted and removed.
///
/// There may be two instances of a unit, each in a [`Slot`] of its own: an operation on one does not affect the other.
///
/// Any of the futures may be dropped, when its deadline has passed or the agent ends. Whatever was done by then, the
/// same call, now or in the agent's next run, must do the rest.
pub(super) trait UnitKind: Send + Sync {
    /// Its name, as in [`muster_topics::unit::Spec::kind`].
    fn name(&self) -> &'static str;

    /// How long its steps may take.
    fn deadlines(&self) -> StepDeadlines {
        StepDeadlines::default()
    }

    /// Returns all units of which something exists on this host, so that units that were removed while the agent was
    /// down are found and cleaned up. Called once, before any other method.
    fn traces(&self) -> io::Result<Vec<UnitTrace>>;

    /// Returns the values of secrets that it keeps on this host for a unit, of every revision: what its processes may say.
    fn kept_secrets(&self, unit: &UnitName) -> Vec<String>;

    /// Looks up the instance in a slot, and takes it over. It is cheap if nothing was ever started there.
    fn adopt<'a>(&'a self, unit: &'a UnitName, slot: Slot) -> BoxFuture<'a, Result<AdoptedUnit, Failure>>;

    /// Installs everything that the revision needs, without touching any instance, nor the revision to `keep` for a
    /// rollback. It is cheap if everything is there. Progress is reported to `tell`.
    fn install<'a>(
        &'a self,
        unit: &'a UnitName,
        desired: &'a Desired,
        keep: Option<&'a Digest>,
        tell: &'a ProgressReporter<'a>,
    ) -> BoxFuture<'a, Result<(), Failure>>;

    /// Downloads and checks what the revision needs before it is desired. What is in effect, and what it would go back to
    /// (`keep`), stays; of a unit that is not there nothing is made but what units share. It is cheap if everything is there.
    fn prepare<'a>(
        &'a self,
        unit: &'a UnitName,
        desired: &'a Desired,
        keep: Option<&'a Digest>,
        is_there: bool,
    ) -> BoxFuture<'a, Result<(), Failure>>;

    /// Returns what starting the revision would change of the host, compared with what is there, beside a process of the
    /// unit's own; without a revision, what removing the unit would. Nothing outside of the agent's own folder is changed.
    fn changes<'a>(
        &'a self,
        unit: &'a UnitName,
        desired: Option<&'a Desired>,
        keep: Option<&'a Digest>,
    ) -> BoxFuture<'a, Result<HostChanges, Failure>> {
        let _ = (unit, desired, keep);
        async { Ok(HostChanges::default()) }.boxed()
    }

    /// Starts the revision, which was installed, in an empty slot. For `keep`, see [`UnitKind::install`].
    fn start<'a>(
        &'a self,
        unit: &'a UnitName,
        start: &'a StartOrder,
    ) -> BoxFuture<'a, Result<Box<dyn Instance>, StartError>>;

    /// Changes the instance to this revision, which was installed, without restarting it. Returns false if that is
    /// impossible, as it is for a kind that does not implement this. For `keep`, see [`UnitKind::install`].
    fn reload<'a>(
        &'a self,
        unit: &'a UnitName,
        slot: Slot,
        desired: &'a Desired,
        keep: Option<&'a Digest>,
        signal: &'a Signaller<'a>,
    ) -> BoxFuture<'a, Result<bool, Failure>> {
        let _ = (unit, slot, desired, keep, signal);
        async { Ok(false) }.boxed()
    }

    /// Whether there are files whose change its instance has to be told of.
    fn has_watched_files(&self, desired: &Desired) -> bool {
        let _ = desired;
        false
    }

    /// Checks whether watched files have changed since the instance read them, and has it read them again. Returns
    /// false if it must be restarted for that.
    fn check_watched_files<'a>(
        &'a self,
        unit: &'a UnitName,
        slot: Slot,
        desired: &'a Desired,
        signal: &'a Signaller<'a>,
    ) -> BoxFuture<'a, Result<bool, Failure>> {
        let _ = (unit, slot, desired, signal);
        async { Ok(true) }.boxed()
    }

    /// Compares everything that the instance in a slot was started from with what was installed, and puts right what differs if
    /// it is to. `None` if there is nothing to compare now, as for a kind that does not implement this.
    fn check_content<'a>(
        &'a self,
        unit: &'a UnitName,
        slot: Slot,
        order: &'a ContentOrder,
    ) -> BoxFuture<'a, Result<Option<ContentReport>, Failure>> {
        let _ = (unit, slot, order);
        async { Ok(None) }.boxed()
    }

    /// Removes everything. There is no instance.
    fn remove<'a>(&'a self, unit: &'a UnitName) -> BoxFuture<'a, Result<(), Failure>>;

    /// Sends a request to the instance in a slot, and waits for its answer for at most `limit`.
    fn ask<'a>(
        &'a self,
        unit: &'a UnitName,
        slot: Slot,
        ask: InstanceRequest,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Value, Complaint>> {
        let _ = (unit, slot, ask, limit);
        let answer = complaint("unsupported", format!("a {} cannot be asked anything", self.name()));
        async { Err(answer) }.boxed()
    }

    /// Runs one of its probes once, within the probe's timeout; the error is why it failed.
    fn probe<'a>(&'a self, unit: &'a UnitName, probing: &'a ProbeRequest) -> BoxFuture<'a, Result<(), Diagnostic>> {
        let _ = (unit, probing);
        let answer = format!("a {} cannot be probed", self.name()).into();
        async { Err(answer) }.boxed()
    }

    /// Returns its output, of whichever instance: a view of its last lines, or what was written after a position. A unit
    /// without a process has none: what is done for it is in the logs of its tasks.
    fn log<'a>(&'a self, unit: &'a UnitName, from: FollowFrom, view: LogView) -> BoxFuture<'a, io::Result<LogPart>> {
        let _ = (unit, from, view);
        async { Ok(LogPart::default()) }.boxed()
    }

    /// Returns the configuration that it reads in a slot, as stored on this host, with secrets masked; `revision` is
    /// the desired one, for a unit that was never started there. A kind without configurations has none.
    fn effective<'a>(
        &'a self,
        unit: &'a UnitName,
        slot: Slot,
        revision: &'a Digest,
    ) -> BoxFuture<'a, io::Result<Effective>> {
        let _ = (unit, slot, revision);
        async { Err(io::ErrorKind::NotFound.into()) }.boxed()
    }

    /// Returns the statistics that each instance has reported last, by slot.
    fn stats(&self) -> BTreeMap<(UnitName, Slot), ToldStats> {
        BTreeMap::new()
    }

    /// Removes what no unit needs any more; called now and then.
    fn sweep(&self, desired: Vec<Desired>) -> BoxFuture<'_, io::Result<()>>;
}

/// What a unit would change of the host, beside a process of its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct HostChanges {
    /// Paths.
    pub(super) files: Vec<FilePlan>,
    /// Packages.
    pub(super) packages: Vec<PackageChange>,
}

/// The deadlines of steps. What takes longer is cancelled and tried again.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepDeadlines {
    pub(super) install: Duration,
    pub(super) start: Duration,
    pub(super) remove: Duration,
}

impl Default for StepDeadlines {
    fn default() -> Self {
        Self {
            // A gigabyte at 300 KB/s; what was downloaded by then is kept.
            install: Duration::from_secs(3600),
            // A start checks files and forks; a slow disk takes longer.
            start: Duration::from_secs(30),
            remove: Duration::from_secs(60),
        }
    }
}

/// What is to be started, and how.
pub(super) struct StartOrder {
    pub(super) slot: Slot,
    pub(super) desired: Desired,
    /// The revision to keep for a rollback.
    pub(super) keep: Option<Digest>,
    pub(super) wiring: EndpointWiring,
    /// How often it has been restarted already.
    pub(super) attempts: u32,
    /// Whether another instance of it is in effect.
    pub(super) beside: bool,
}

/// How the content of a running instance is compared.
pub(super) struct ContentOrder {
    /// What it runs as.
    pub(super) running: Desired,
    /// Whether what differs is put right.
    pub(super) corrects: bool,
}

/// A callback for progress.
pub(super) type ProgressReporter<'a> = dyn Fn(Progress) + Send + Sync + 'a;

/// A callback that sends a signal to the process of the instance.
pub(super) type Signaller<'a> = dyn Fn(Signal) -> BoxFuture<'static, Result<(), Failure>> + Send + Sync + 'a;

/// A unit of which something exists on this host.
#[derive(Clone, Debug)]
pub(super) struct UnitTrace {
    /// The unit.
    pub(super) unit: UnitName,
    /// When it was last installed or started.
    pub(super) at_ms: Millis,
}

/// An instance that is in effect. Dropping this does not end it.
pub(super) trait Instance: Send {
    /// Waits for the next event; `None` if the connection to it is lost. Cancel-safe.
    fn next(&mut self) -> BoxFuture<'_, Option<InstanceEvent>>;

    /// Asks it to end, by `signal` or its own stop signal, and has it killed after the grace period. Its end is an
    /// event.
    fn stop(&mut self, signal: Option<Signal>, grace_ms: u64) -> BoxFuture<'_, Result<(), Failure>>;

    /// Asks to freeze or thaw it. The result is an event.
    fn freeze(&mut self, frozen: bool) -> BoxFuture<'_, Result<(), Failure>>;

    /// Sends a signal to its process; returns false if there is none at present. Its effect is an event. Cancel-safe,
    /// in that no event is lost.
    fn signal(&mut self, signal: Signal) -> BoxFuture<'_, Result<bool, Failure>>;
}

/// A request to an instance.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum InstanceRequest {
    /// To play.
    Play,
    /// To stop playing.
    Pause,
    /// A command of its own.
    Command {
        /// Its name.
        name: String,
        /// Its arguments.
        args: Map<String, Value>,
    },
    /// For its statistics.
    Stats,
    /// To read its files again.
    Reload,
}

impl InstanceRequest {
    /// The ability that it needs for that.
    pub(super) fn ability(&self) -> Ability {
        match self {
            Self::Play | Self::Pause => Ability::Play,
            Self::Command { .. } => Ability::Command,
            Self::Stats => Ability::Stats,
            Self::Reload => Ability::Reload,
        }
    }
}

/// The error in place of an answer.
pub(super) fn complaint(code: &str, diagnostic: impl Into<Diagnostic>) -> Complaint {
    Complaint { code: code.to_owned(), diagnostic: diagnostic.into() }
}

/// An event of an instance.
#[derive(Clone, Debug)]
pub(super) enum InstanceEvent {
    /// Its state changed.
    Told(ShimReport),
    /// It has ended for good.
    Ended(InstanceEnd),
}

/// The result of looking up an instance.
#[expect(clippy::large_enum_variant, reason = "it is examined once and taken apart")]
pub(super) enum AdoptedUnit {
    /// Nothing was ever started.
    Nothing,
    /// It is in effect.
    Alive {
        /// The revision that it was started as.
        revision: Digest,
        /// Its state.
        told: ShimReport,
        /// The instance.
        instance: Box<dyn Instance>,
    },
    /// It has ended.
    Ended(InstanceEnd),
}

/// Why a start did not lead to an instance.
#[derive(Debug)]
pub(super) enum StartError {
    /// It failed; there is no instance.
    Failed(Failure),
    /// Unknown: it has to be looked up.
    Unknown,
}

impl From<Failure> for StartError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

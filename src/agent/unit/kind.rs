//! The trait that a kind of unit implements. Its methods are the planner's steps ([`muster_rules::plan::PlanStep`]);
//! the units' task ([`super`]) calls each on a task of its own, with a deadline.

use std::{collections::BTreeMap, io, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use muster_rules::{
    plan::{Failure, InstanceEnd, ProbeRequest, ShimReport, Slot},
    port_lease::EndpointWiring,
};
use muster_topics::{
    Millis,
    channel::{Ability, Complaint, ToldStats},
    command::LogView,
    effective::Effective,
    name::{Digest, UnitName},
    signal::Signal,
    unit::{Desired, Progress},
};
use serde_json::{Map, Value};

use super::log::{LogPart, LogPosition};

/// From where on a log is followed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FollowFrom {
    /// From so many lines before its end, or before that of the view.
    Last(u32),
    /// From here.
    Place(LogPosition),
}

/// A kind of unit: how it is installed, started, found again and removed.
///
/// There may be two instances of a unit, each in a [`Slot`] of its own: what is asked for in one leaves the other alone.
///
/// Any of the futures may be dropped in the middle, when its deadline has passed or the agent ends. What
/// was done by then must be such that the same call, now or in the agent's next life, does the rest.
pub(super) trait UnitKind: Send + Sync {
    /// Its name, as [`muster_topics::unit::Spec::kind`] has it.
    fn name(&self) -> &'static str;

    /// All units of which there is something on this host, so that what was forgotten while the agent was
    /// away is found and removed. Called once, before any other.
    fn traces(&self) -> io::Result<Vec<UnitTrace>>;

    /// Looks up what is in effect in a slot, and takes it over. Cheap if nothing was ever started there.
    fn adopt<'a>(&'a self, unit: &'a UnitName, slot: Slot) -> BoxFuture<'a, Result<AdoptedUnit, Failure>>;

    /// Gets everything that the revision needs, without touching what is in effect, in any slot, nor the revision to
    /// `keep`, which it may have to go back to. Cheap if it is all there. How far it is goes to `tell`, now and then.
    fn install<'a>(
        &'a self,
        unit: &'a UnitName,
        desired: &'a Desired,
        keep: Option<&'a Digest>,
        tell: &'a ProgressReporter<'a>,
    ) -> BoxFuture<'a, Result<(), Failure>>;

    /// Puts the revision into effect as it `start`s. It was installed, and nothing is in effect in its slot. As for what it
    /// keeps, see [`UnitKind::install`].
    fn start<'a>(
        &'a self,
        unit: &'a UnitName,
        start: &'a StartOrder,
    ) -> BoxFuture<'a, Result<Box<dyn Instance>, StartError>>;

    /// Brings what is in effect to this revision, which was installed, without starting it anew. False if that cannot
    /// be done. As for `keep`, see [`UnitKind::install`].
    fn reload<'a>(
        &'a self,
        unit: &'a UnitName,
        slot: Slot,
        desired: &'a Desired,
        keep: Option<&'a Digest>,
        signal: &'a Signaller<'a>,
    ) -> BoxFuture<'a, Result<bool, Failure>>;

    /// Whether there are files outside to look at.
    fn looks_outside(&self, desired: &Desired) -> bool;

    /// Looks whether files outside that what is in effect has read are others now, and has it read them again. False
    /// if it has to be started anew for that.
    fn look_outside<'a>(
        &'a self,
        unit: &'a UnitName,
        slot: Slot,
        desired: &'a Desired,
        signal: &'a Signaller<'a>,
    ) -> BoxFuture<'a, Result<bool, Failure>>;

    /// Removes everything. Nothing is in effect.
    fn remove<'a>(&'a self, unit: &'a UnitName) -> BoxFuture<'a, Result<(), Failure>>;

    /// Asks what is in effect in a slot for something, and waits for its answer for at most `limit`.
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

    /// Tries one of its probes, once and within the probe's time; why it has not succeeded.
    fn probe<'a>(&'a self, unit: &'a UnitName, probing: &'a ProbeRequest) -> BoxFuture<'a, Result<(), String>> {
        let _ = (unit, probing);
        let answer = format!("a {} cannot be probed", self.name());
        async { Err(answer) }.boxed()
    }

    /// What it has to say, whichever of its instances said it: a view of its last lines, or what came after they were read.
    fn log<'a>(&'a self, unit: &'a UnitName, from: FollowFrom, view: LogView) -> BoxFuture<'a, io::Result<LogPart>>;

    /// What it reads in a slot as its configuration, as it lies on this host, with secrets masked; `revision` is the one
    /// that is desired, for a unit that was never started there.
    fn effective<'a>(
        &'a self,
        unit: &'a UnitName,
        slot: Slot,
        revision: &'a Digest,
    ) -> BoxFuture<'a, io::Result<Effective>>;

    /// The numbers that each has told last of its own accord, in each slot.
    fn stats(&self) -> BTreeMap<(UnitName, Slot), ToldStats> {
        BTreeMap::new()
    }

    /// Gives back what no unit needs any more, now and then.
    fn sweep(&self, desired: Vec<Desired>) -> BoxFuture<'_, io::Result<()>>;
}

/// What is started, and how.
pub(super) struct StartOrder {
    pub(super) slot: Slot,
    pub(super) desired: Desired,
    /// The revision that it may have to go back to.
    pub(super) keep: Option<Digest>,
    pub(super) wiring: EndpointWiring,
    /// How often it has been started again by itself already.
    pub(super) attempts: u32,
    /// Another instance of it is in effect.
    pub(super) beside: bool,
}

/// Takes how far something is.
pub(super) type ProgressReporter<'a> = dyn Fn(Progress) + Send + Sync + 'a;

/// Sends a signal to the process of what is in effect.
pub(super) type Signaller<'a> = dyn Fn(Signal) -> BoxFuture<'static, Result<(), Failure>> + Send + Sync + 'a;

/// A unit of which there is something on this host.
#[derive(Clone, Debug)]
pub(super) struct UnitTrace {
    /// The unit.
    pub(super) unit: UnitName,
    /// When it was last installed or started.
    pub(super) at_ms: Millis,
}

/// Something of a unit that is in effect. To drop it leaves it alone.
pub(super) trait Instance: Send {
    /// The next thing that becomes of it; nothing if it cannot be heard any more. Cancel-safe.
    fn next(&mut self) -> BoxFuture<'_, Option<InstanceEvent>>;

    /// Asks it to end, by a signal or else as it says itself, and has it ended once its grace is over. Its end is news.
    fn stop(&mut self, signal: Option<Signal>, grace_ms: u64) -> BoxFuture<'_, Result<(), Failure>>;

    /// Asks for it to be suspended, or to go on. That it is is news.
    fn freeze(&mut self, frozen: bool) -> BoxFuture<'_, Result<(), Failure>>;

    /// Sends a signal to its process; false if there is none just now. What it becomes of that is news.
    /// Cancel-safe, in that no news is lost.
    fn signal(&mut self, signal: Signal) -> BoxFuture<'_, Result<bool, Failure>>;
}

/// Something that an instance can be asked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum InstanceRequest {
    /// To play.
    Play,
    /// To play no more.
    Pause,
    /// A command of its own.
    Command {
        /// Which.
        name: String,
        /// With what.
        args: Map<String, Value>,
    },
    /// For numbers about itself.
    Stats,
    /// To read its files again.
    Reload,
}

impl InstanceRequest {
    /// What it has to be able to do for that.
    pub(super) fn ability(&self) -> Ability {
        match self {
            Self::Play | Self::Pause => Ability::Play,
            Self::Command { .. } => Ability::Command,
            Self::Stats => Ability::Stats,
            Self::Reload => Ability::Reload,
        }
    }
}

/// Why there is no answer.
pub(super) fn complaint(code: &str, message: impl Into<String>) -> Complaint {
    Complaint { code: code.to_owned(), message: message.into() }
}

/// What has become of an instance.
#[derive(Clone, Debug)]
pub(super) enum InstanceEvent {
    /// It goes on, like this.
    Told(ShimReport),
    /// It has ended, for good.
    Ended(InstanceEnd),
}

/// What was found of a unit.
#[expect(clippy::large_enum_variant, reason = "it is looked at once, and taken apart")]
pub(super) enum AdoptedUnit {
    /// Nothing was ever started.
    Nothing,
    /// It is in effect.
    Alive {
        /// What it was started as.
        revision: Digest,
        /// What has become of it so far.
        told: ShimReport,
        /// Itself.
        instance: Box<dyn Instance>,
    },
    /// It was, and has ended.
    Ended(InstanceEnd),
}

/// Why a unit is not in effect after it was started.
#[derive(Debug)]
pub(super) enum StartError {
    /// It could not be started; nothing is in effect.
    Failed(Failure),
    /// Perhaps it is: look it up.
    Unknown,
}

impl From<Failure> for StartError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

//! What a kind of unit has to be able to do. The planner's steps ([`crate::rules::plan::Step`]) are these,
//! and the task that keeps units ([`super`]) calls them, each on a task of its own and with a deadline.

use std::io;

use futures_util::future::BoxFuture;
use muster_topics::{
    Millis,
    name::{Digest, UnitName},
    signal::Signal,
    unit::{Desired, StopSignal},
};

use super::log::Place;
use crate::rules::{
    lease::Wiring,
    plan::{Failure, Over, Told},
};

/// From where on a log is followed.
#[derive(Clone, Copy, Debug)]
pub(in crate::agent) enum LogFrom {
    /// From so many lines before its end.
    Last(u32),
    /// From here.
    Place(Place),
}

/// A kind of unit: how it is installed, started, found again and removed.
///
/// Any of the futures may be dropped in the middle, when its deadline has passed or the agent ends. What
/// was done by then must be such that the same call, now or in the agent's next life, does the rest.
pub(super) trait Kind: Send + Sync {
    /// Its name, as [`muster_topics::unit::Spec::kind`] has it.
    fn name(&self) -> &'static str;

    /// All units of which there is something on this host, so that what was forgotten while the agent was
    /// away is found and removed. Called once, before any other.
    fn traces(&self) -> io::Result<Vec<Trace>>;

    /// Looks up what is in effect, and takes it over.
    fn adopt<'a>(&'a self, unit: &'a UnitName) -> BoxFuture<'a, Result<Adopted, Failure>>;

    /// Gets everything that the revision needs, without touching what is in effect. Cheap if it is all there.
    fn install<'a>(&'a self, unit: &'a UnitName, desired: &'a Desired) -> BoxFuture<'a, Result<(), Failure>>;

    /// Puts the revision into effect, wired like this. It was installed, and nothing is in effect.
    fn start<'a>(
        &'a self,
        unit: &'a UnitName,
        desired: &'a Desired,
        wiring: &'a Wiring,
        attempts: u32,
    ) -> BoxFuture<'a, Result<Box<dyn Instance>, NotStarted>>;

    /// Removes everything. Nothing is in effect.
    fn remove<'a>(&'a self, unit: &'a UnitName) -> BoxFuture<'a, Result<(), Failure>>;

    /// The last `lines` lines of what it has to say.
    fn logs<'a>(&'a self, unit: &'a UnitName, lines: u32) -> BoxFuture<'a, io::Result<Vec<u8>>>;

    /// Follows that: from its last lines on, or from where it was read to.
    fn follow<'a>(&'a self, unit: &'a UnitName, from: LogFrom) -> BoxFuture<'a, io::Result<(Vec<u8>, Place)>>;

    /// Gives back what no unit needs any more, now and then.
    fn sweep(&self, desired: Vec<Desired>) -> BoxFuture<'_, io::Result<()>>;
}

/// A unit of which there is something on this host.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    /// The unit.
    pub(super) unit: UnitName,
    /// When it was last installed or started.
    pub(super) at_ms: Millis,
}

/// Something of a unit that is in effect. To drop it leaves it alone.
pub(super) trait Instance: Send {
    /// The next thing that becomes of it; nothing if it cannot be heard any more. Cancel-safe.
    fn next(&mut self) -> BoxFuture<'_, Option<News>>;

    /// Asks it to end, and has it ended once its grace is over. Its end is news.
    fn stop(&mut self, signal: StopSignal, grace_ms: u64) -> BoxFuture<'_, Result<(), Failure>>;

    /// Asks for it to be suspended, or to go on. That it is is news.
    fn freeze(&mut self, frozen: bool) -> BoxFuture<'_, Result<(), Failure>>;

    /// Sends a signal to its process; false if there is none just now. What it becomes of that is news.
    /// Cancel-safe, in that no news is lost.
    fn signal(&mut self, signal: Signal) -> BoxFuture<'_, Result<bool, Failure>>;
}

/// What has become of an instance.
#[derive(Clone, Debug)]
pub(super) enum News {
    /// It goes on, like this.
    Told(Told),
    /// It has ended, for good.
    Ended(Over),
}

/// What was found of a unit.
pub(super) enum Adopted {
    /// Nothing was ever started.
    Nothing,
    /// It is in effect.
    Alive {
        /// What it was started as.
        revision: Digest,
        /// What has become of it so far.
        told: Told,
        /// Itself.
        instance: Box<dyn Instance>,
    },
    /// It was, and has ended.
    Ended(Over),
}

/// Why a unit is not in effect after it was started.
#[derive(Debug)]
pub(super) enum NotStarted {
    /// It could not be started; nothing is in effect.
    Failed(Failure),
    /// Perhaps it is: look it up.
    Unknown,
}

impl From<Failure> for NotStarted {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

//! The trait that a container runtime implements. [`super::Containers`] implements the unit kind once, on top of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use futures_util::future::BoxFuture;
use muster_rules::plan::Failure;
use muster_topics::{
    Millis,
    command::LogView,
    container::{self, ContainerSpec, ContainerState, Image, Network},
    endpoint::Endpoint,
    name::Digest,
    process::{Limits, Resource, Rlimit},
    signal::Signal,
    unit::Exit,
};

use crate::unit::log::{LogPart, LogPosition};

/// Answers of a runtime.
pub(super) type RuntimeFuture<'a, T> = BoxFuture<'a, Result<T, Failure>>;

/// A container runtime. Each call has a deadline of its own, within which it fails; none runs a shell, nor takes what came
/// from outside for anything but data.
pub(super) trait ContainerRuntime: Send + Sync {
    /// Which it is.
    fn which(&self) -> container::Runtime;

    /// What a spec asks for and this runtime cannot do, if anything: in words, by the field's name.
    fn cannot(&self, spec: &ContainerSpec) -> Option<String>;

    /// Whether it has an image.
    fn has_image<'a>(&'a self, image: &'a Image) -> RuntimeFuture<'a, bool>;

    /// Brings it an image: from `file` for one that is an artifact, from wherever it pulls from otherwise. It has no
    /// deadline but that of its caller.
    fn bring_image<'a>(&'a self, image: &'a Image, file: Option<&'a Path>) -> RuntimeFuture<'a, ()>;

    /// Removes images that were brought as artifacts and that nobody has needed for long. `needed` are those that somebody
    /// does. What a container was made of stays.
    fn sweep<'a>(&'a self, needed: &'a BTreeSet<Digest>) -> RuntimeFuture<'a, ()>;

    /// Looks at a container; nothing if there is none of this name, or id.
    fn look<'a>(&'a self, name: &'a str) -> RuntimeFuture<'a, Option<RuntimeState>>;

    /// Makes a container. There is none of this name.
    fn create<'a>(&'a self, name: &'a str, recipe: &'a Recipe) -> RuntimeFuture<'a, ()>;

    /// Starts one that does not run.
    fn start<'a>(&'a self, name: &'a str) -> RuntimeFuture<'a, ()>;

    /// Sends a signal to its first process; false if it does not run.
    fn signal<'a>(&'a self, name: &'a str, signal: Signal) -> RuntimeFuture<'a, bool>;

    /// Suspends it, or lets it go on.
    fn freeze<'a>(&'a self, name: &'a str, frozen: bool) -> RuntimeFuture<'a, ()>;

    /// Changes its limits while it runs, each of which it has already; false if that cannot be done.
    fn limit<'a>(&'a self, name: &'a str, limits: Limits) -> RuntimeFuture<'a, bool>;

    /// Removes one, running or not.
    fn remove<'a>(&'a self, name: &'a str) -> RuntimeFuture<'a, ()>;

    /// Whether there is anything that could be asked on this host, as far as that can be told without asking.
    fn is_there(&self) -> bool;

    /// All containers, units or not. Of those that are in `known`, by id and state, no more is asked.
    fn list<'a>(&'a self, known: &'a ContainersById) -> RuntimeFuture<'a, ContainersById>;

    /// A view of what it said, oldest first, and where that ends.
    fn log<'a>(&'a self, name: &'a str, from: RuntimeLogFrom, view: LogView) -> RuntimeFuture<'a, LogPart>;
}

/// Containers by id.
pub(super) type ContainersById = BTreeMap<String, ListedContainer>;

/// A container in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListedContainer {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) state: ContainerState,
    pub(super) image: String,
    pub(super) limits: Limits,
    /// Its first process, by its number and when it was started, of one that runs and that somebody else keeps.
    pub(super) process: Option<(i32, u64)>,
}

/// A container, as its runtime tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RuntimeState {
    /// The only one of this id that there ever is.
    pub(super) id: String,
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) phase: ContainerPhase,
    /// The signal that it says asks it to end, which it has from its image.
    pub(super) stop_signal: Option<Signal>,
    /// Why nobody but who has made it can keep it, if that is so.
    pub(super) obstacle: Option<String>,
}

/// What a container does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContainerPhase {
    /// It was made, and never started.
    Made,
    /// It runs, or is suspended.
    Runs { pid: i32, started_ms: Option<Millis>, frozen: bool },
    /// It has ended.
    Ended { exit: Exit, oom_killed: bool, started_ms: Option<Millis>, at_ms: Option<Millis> },
    /// The runtime is about to do something with it.
    Busy,
}

/// Everything that a container is made from: a spec, with what stands for something in it put in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Recipe {
    pub(super) image: Image,
    pub(super) entry: Option<Vec<String>>,
    pub(super) args: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) user: Option<String>,
    pub(super) cwd: Option<String>,
    pub(super) mounts: Vec<container::Mount>,
    pub(super) network: Network,
    pub(super) limits: Limits,
    /// The most that it may write beside its image.
    pub(super) disk_bytes: Option<u64>,
    pub(super) rlimits: BTreeMap<Resource, Rlimit>,
    /// Each with the port inside.
    pub(super) published: Vec<(Endpoint, u16)>,
    pub(super) labels: BTreeMap<String, String>,
}

/// From where on a log is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuntimeLogFrom {
    /// So many lines from the end.
    Last(u32),
    /// What comes after this; all if that is nowhere.
    After(LogPosition),
}

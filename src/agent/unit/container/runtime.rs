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
    diagnostic::Diagnostic,
    endpoint::Endpoint,
    name::Digest,
    process::{Limits, Resource, Rlimit},
    signal::Signal,
    unit::Exit,
};

use crate::unit::log::{LogPart, LogPosition};

/// An answer of a runtime.
pub(super) type RuntimeFuture<'a, T> = BoxFuture<'a, Result<T, Failure>>;

/// A container runtime. Each call has a deadline of its own, after which it fails; none runs a shell, or treats input
/// from outside as anything but data.
pub(super) trait ContainerRuntime: Send + Sync {
    /// Which runtime it is.
    fn which(&self) -> container::Runtime;

    /// Returns which feature of a spec this runtime cannot provide, by the field's name, if any.
    fn cannot(&self, spec: &ContainerSpec) -> Option<Diagnostic>;

    /// Whether it has an image.
    fn has_image<'a>(&'a self, image: &'a Image) -> RuntimeFuture<'a, bool>;

    /// Fetches an image: from `file` for an artifact, or from a registry. Its only deadline is the caller's.
    fn bring_image<'a>(&'a self, image: &'a Image, file: Option<&'a Path>) -> RuntimeFuture<'a, ()>;

    /// Removes images of artifacts that were not needed for long. `needed` are in use. Images with containers are kept.
    fn sweep<'a>(&'a self, needed: &'a BTreeSet<Digest>) -> RuntimeFuture<'a, ()>;

    /// Examines a container; `None` if there is none of this name or id.
    fn inspect<'a>(&'a self, name: &'a str) -> RuntimeFuture<'a, Option<RuntimeState>>;

    /// Creates a container. None of this name exists.
    fn create<'a>(&'a self, name: &'a str, recipe: &'a Recipe) -> RuntimeFuture<'a, ()>;

    /// Starts a container that does not run.
    fn start<'a>(&'a self, name: &'a str) -> RuntimeFuture<'a, ()>;

    /// Sends a signal to its first process; returns false if it does not run.
    fn signal<'a>(&'a self, name: &'a str, signal: Signal) -> RuntimeFuture<'a, bool>;

    /// Freezes or thaws it.
    fn freeze<'a>(&'a self, name: &'a str, frozen: bool) -> RuntimeFuture<'a, ()>;

    /// Changes the values of existing limits while it runs; returns false if that is impossible.
    fn limit<'a>(&'a self, name: &'a str, limits: Limits) -> RuntimeFuture<'a, bool>;

    /// Removes a container, running or not.
    fn remove<'a>(&'a self, name: &'a str) -> RuntimeFuture<'a, ()>;

    /// Whether the runtime seems to be installed on this host.
    fn is_there(&self) -> bool;

    /// Lists all containers. Details of those in `known`, by id and state, are not read again.
    fn list<'a>(&'a self, known: &'a ContainersById) -> RuntimeFuture<'a, ContainersById>;

    /// Returns a view of its output, oldest first, and where that ends.
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
    /// Its first process, with when it was started, if it runs and has another owner.
    pub(super) process: Option<(i32, u64)>,
}

/// A container, as its runtime reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RuntimeState {
    /// Its unique id.
    pub(super) id: String,
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) phase: ContainerPhase,
    /// Its own stop signal, from its image.
    pub(super) stop_signal: Option<Signal>,
    /// Why it cannot be adopted, if so.
    pub(super) obstacle: Option<Diagnostic>,
}

/// What a container does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContainerPhase {
    /// It was created, and never started.
    Made,
    /// It runs, or is frozen.
    Runs { pid: i32, started_ms: Option<Millis>, frozen: bool },
    /// It has ended.
    Ended { exit: Exit, oom_killed: bool, started_ms: Option<Millis>, at_ms: Option<Millis> },
    /// The runtime is changing it.
    Busy,
}

/// What a container is created from: a spec with its placeholders filled in.
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
    /// The limit of what it writes beside its image.
    pub(super) disk_bytes: Option<u64>,
    pub(super) rlimits: BTreeMap<Resource, Rlimit>,
    /// Published endpoints, each with its port inside.
    pub(super) published: Vec<(Endpoint, u16)>,
    pub(super) labels: BTreeMap<String, String>,
}

/// The part of a log to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuntimeLogFrom {
    /// This many lines from the end.
    Last(u32),
    /// What comes after this position.
    After(LogPosition),
}

//! A container in which a program shall run.
//!
//! The shim enters through the container's first process: by a handle that can never come to mean another process, it joins
//! the namespaces that are not the shim's own, and takes that process's root folder as its own. Its children are then
//! inside, and still children of the shim. The container's limits apply because the program is in the container's
//! cgroups, in a child cgroup of its own ([`crate::cgroup`]), by which all its processes are found and killed.
//!
//! **Invariant: a process inside has nothing of the host's**: no descriptor of a folder, no file except immutable copies,
//! and not the shim's own program, which a container could write to through its process's
//! `/proc/self/exe`. So the agent starts such a shim from a [sealed](crate::sealed) copy in memory.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A container that the agent has found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerNamespaces {
    /// Its first process.
    pub pid: i32,
    /// Its start time, in clock ticks since boot; if it differs, nothing is started.
    pub start_ticks: u64,
    /// Folders of the container's cgroups, which the program enters in addition to its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cgroups: Vec<PathBuf>,
    /// The bounding set of capabilities in the container, as bits.
    pub bounding: u64,
    /// The program's user as seen from the host, so that the program can reopen its own output.
    pub owner: u32,
}

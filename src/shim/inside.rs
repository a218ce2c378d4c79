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

/// The container, as the agent has found it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerNamespaces {
    /// Its first process.
    pub pid: i32,
    /// When that started, in clock ticks since boot: with another one nothing is started.
    pub start_ticks: u64,
    /// Folders of cgroups that it is in and the program shall be in too, beside those of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cgroups: Vec<PathBuf>,
    /// The capabilities, as bits, that nothing in there can exceed.
    pub bounding: u64,
    /// Who the program's user is outside, so that it can open its own output again.
    pub owner: u32,
}

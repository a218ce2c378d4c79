//! A container that a program shall run in.
//!
//! The shim goes in by the container's first process: by a handle of it, which never comes to mean another one, it joins
//! the namespaces that are not the shim's own, and takes that process's root folder for its own. What is forked then is
//! inside, and a child of the shim all the same. The container's limits hold because the program is in the container's
//! cgroups, in one of its own below them ([`crate::cgroup`]), by which everything of it is found and killed.
//!
//! **Invariant: what runs inside has nothing of the host's**: no descriptor of a folder, no file but copies that nobody
//! can change, and not the shim's own program, which a container could write to once it is its process's
//! `/proc/self/exe`. So the agent starts such a shim from a [sealed](crate::sealed) copy in memory.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The container, as the agent has found it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inside {
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

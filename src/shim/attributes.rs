//! Attributes of a program's process beside its arguments, environment, user and working directory.

use serde::{Deserialize, Serialize};

/// The mask of a program for which no other was asked: what it makes others may read, and not write.
pub const UMASK: u32 = 0o022;

/// Attributes of a process. The default is what most programs expect; where nothing is named, the
/// process has what the shim has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessAttributes {
    /// The mask of the files that it makes; [`UMASK`] if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub umask: Option<u32>,
    /// Its nice value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nice: Option<i32>,
    /// Limits that the kernel keeps for each of its processes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rlimits: Vec<ResourceLimit>,
    /// The only capabilities, by number, that it has and can ever get, as root and as any other user.
    /// If there is no list, those that its user has anyway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Vec<u8>>,
    /// It can gain nothing by executing a file, such as one with the setuid bit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_new_privs: bool,
}

/// One limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceLimit {
    /// Of what.
    pub resource: LimitResource,
    /// What holds; no limit if there is none.
    pub soft: Option<u64>,
    /// How far the process itself may raise it; without limit if there is none.
    pub hard: Option<u64>,
}

/// What may be limited, by the names of `setrlimit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitResource {
    /// Address space, in bytes.
    As,
    /// A core file, in bytes.
    Core,
    /// Time of the processor, in seconds.
    Cpu,
    /// The heap, in bytes.
    Data,
    /// A file that is written, in bytes.
    Fsize,
    /// Memory that is locked, in bytes.
    Memlock,
    /// Message queues, in bytes.
    Msgqueue,
    /// How far nice may be lowered: 20 minus the value.
    Nice,
    /// Open files.
    Nofile,
    /// Processes of the user.
    Nproc,
    /// Priority in real time.
    Rtprio,
    /// Microseconds in real time without a pause.
    Rttime,
    /// Signals that are queued.
    Sigpending,
    /// The stack, in bytes.
    Stack,
}

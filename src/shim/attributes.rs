//! Attributes of a program's process beside its arguments, environment, user and working directory.

use serde::{Deserialize, Serialize};

/// The umask of programs for which none is set: others may read new files, but not write them.
pub const UMASK: u32 = 0o022;

/// Attributes of a process. The default suits most programs; attributes that are not set are inherited from the shim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessAttributes {
    /// Its umask; default: [`UMASK`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub umask: Option<u32>,
    /// Its nice value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nice: Option<i32>,
    /// Its resource limits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rlimits: Vec<ResourceLimit>,
    /// The only capabilities, by number, that it has and can ever gain, for root as for other users. `None`: those that
    /// its user normally has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Vec<u8>>,
    /// Whether it cannot gain privileges by executing a file, such as one with the setuid bit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_new_privs: bool,
}

/// A resource limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceLimit {
    /// The limited resource.
    pub resource: LimitResource,
    /// The current limit; `None`: unlimited.
    pub soft: Option<u64>,
    /// The limit up to which the process may raise the current one; `None`: unlimited.
    pub hard: Option<u64>,
}

/// Resources that can be limited, by their names in `setrlimit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitResource {
    /// Address space, in bytes.
    As,
    /// A core file, in bytes.
    Core,
    /// Processor time, in seconds.
    Cpu,
    /// The heap, in bytes.
    Data,
    /// The size of a written file, in bytes.
    Fsize,
    /// Locked memory, in bytes.
    Memlock,
    /// Message queues, in bytes.
    Msgqueue,
    /// How far the nice value may be lowered: 20 minus that value.
    Nice,
    /// Open files.
    Nofile,
    /// Processes of the user.
    Nproc,
    /// Real-time priority.
    Rtprio,
    /// Real-time scheduling without a pause, in microseconds.
    Rttime,
    /// Queued signals.
    Sigpending,
    /// The stack, in bytes.
    Stack,
}

//! The pure core: decisions as plain functions of state and time. The shell (agent, console)
//! performs what they return.
//!
//! - [`time`]: the time of a host whose clock may be wrong; [`clock`]: the same for the console;
//!   [`certain_time`]: the time by which something ends for good
//! - [`authorise`]: whether a command is allowed on this host; [`receive`]: the checks of a signed message
//! - [`intent`]: how long a command waits for an offline host, and which earlier one it supersedes
//! - [`presence`]: whether this agent is the only one of its host
//! - [`heartbeat`]: which heartbeat to send, and when
//! - [`alert`]: evaluates alert rules
//! - [`outbox_retry`]: when to repeat an unacknowledged message
//! - [`backlog`]: the order of measurements after a time offline
//! - [`config`]: merges configs and masks secrets; [`mask`]: masks them in what programs say; [`schema`]: validates configs
//! - [`start_order`]: the order in which units start
//! - [`edit`], [`plan`], [`backoff`]: desired state, the steps that reach it, and retries
//! - [`desired`]: documents of desired state: which is taken, what it changes, and when units go
//! - [`placeholder`]: placeholders in arguments; [`probe`]: how results of probes count
//! - [`document`]: units as people write them, [`deployment`]: the same for deployments, [`unknown_keys`]: mistyped keys; [`spec_comparison`], [`cost`]: differences, and what they cost
//!   a running process
//! - [`assignment`]: which deployments a host carries; [`deployment_state`]: how far one is on a host
//! - [`host_plan`]: what a document would change of a host, and which hosts are alike in that
//! - [`render`]: templates, bounded in steps, memory and size
//! - [`rollout`]: which hosts of a deployment may change now
//! - [`id`]: resolves typed ids
//! - [`content_check`]: when installed files are compared with their digests; [`corrections`]: when drift is a fight
//! - [`checked`]: documents with a checksum; [`merge_patch`]: JSON merge patches
//! - [`mark`]: notices a store that went back, and decides what is restored
//! - [`rotation`]: how the console's signing key is replaced, and when hosts keep that from ending
//! - [`realm`], [`port_lease`], [`snapshot`]: realms, ports and connections, and earlier desired state
//!
//! **Invariant: no function here does IO, reads a clock or draws randomness**; times and random
//! numbers are parameters.

pub mod alert;
pub mod assignment;
pub mod authorise;
pub mod backlog;
pub mod backoff;
pub mod capability;
pub mod certain_time;
pub mod checked;
pub mod clock;
mod common;
pub mod config;
pub mod conflict;
pub mod container;
pub mod content_check;
pub mod corrections;
pub mod cost;
pub mod deployment;
pub mod deployment_state;
pub mod desired;
pub mod document;
pub mod edit;
pub mod files;
pub mod heartbeat;
pub mod host_plan;
pub mod hostname;
pub mod id;
pub mod intent;
pub mod invisible;
pub mod mark;
pub mod mask;
pub mod merge_patch;
pub mod outbox_retry;
pub mod packages;
pub mod placeholder;
pub mod placement;
pub mod plan;
pub mod port_lease;
pub mod presence;
pub mod probe;
pub mod process;
pub mod realm;
pub mod receive;
mod refusal;
pub mod render;
pub mod rollout;
pub mod rotation;
pub mod schema;
pub mod snapshot;
pub mod spec_comparison;
pub mod start_order;
pub mod time;
pub mod unknown_keys;

pub use refusal::CommandRefusal;

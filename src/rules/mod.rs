//! The pure core: decisions as plain functions of state and time. The shell (agent, console)
//! performs what they return.
//!
//! - [`time`]: what time it is, for a host whose clock may be wrong
//! - [`authorise`]: whether a command may be done on this host; [`receive`]: what any signed message comes to there
//! - [`intent`]: how long a command waits for a host that is away, and which earlier one it makes void
//! - [`presence`]: whether this agent is the only one of its host
//! - [`heartbeat`]: what to say of the host's state, and when
//! - [`alert`]: which alerts hold
//! - [`resend`]: when to say something again that nobody has acknowledged
//! - [`backlog`]: which measurements go first after a time apart
//! - [`config`]: how configs become one, and what of them is secret; [`schema`]: whether that is what is wanted
//! - [`order`]: whose turn it is among the units of a host
//! - [`edit`], [`plan`], [`backoff`]: what a unit should be, how it gets there, and what if it fails
//! - [`placeholder`]: what is put into arguments; [`probe`]: how the answers to a unit's probes count
//! - [`document`]: units as people write them down, [`keys`]: what they mistype; [`compare`], [`cost`]: what changes, and what that costs
//!   what runs
//! - [`id`]: which host is meant by what was typed
//! - [`upgrade`]: what newer content a unit would get
//! - [`mark`]: whether the agent's store is as far as it was, and what is put back into one that is not
//! - [`realm`], [`lease`], [`snapshot`]: where units listen and what they connect to, and what they were before
//!
//! **Invariant: nothing in here does IO, reads a clock or draws randomness**; times and random
//! numbers come in as parameters.

pub mod alert;
pub mod authorise;
pub mod backlog;
pub mod backoff;
pub mod clock;
pub mod compare;
pub mod config;
pub mod container;
pub mod cost;
pub mod document;
pub mod edit;
pub mod heartbeat;
pub mod hostname;
pub mod id;
pub mod intent;
pub mod keys;
pub mod lease;
pub mod mark;
pub mod order;
pub mod placeholder;
pub mod plan;
pub mod presence;
pub mod probe;
pub mod process;
pub mod realm;
pub mod receive;
mod refusal;
pub mod resend;
pub mod schema;
pub mod snapshot;
pub mod time;
pub mod upgrade;

pub use refusal::Refusal;

//! The pure core: decisions as plain functions of state and time. The shell (agent, console)
//! performs what they return.
//!
//! **Invariant: nothing in here does IO, reads a clock or draws randomness**; times and random
//! numbers come in as parameters.

pub mod authorise;
pub mod backoff;
pub mod edit;
pub mod heartbeat;
pub mod plan;
mod refusal;

pub use refusal::Refusal;

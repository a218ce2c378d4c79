//! Desired state on a host: which document is taken, what its deployments change, who may change their units, and when units
//! go.
//!
//! - [`head`]: whether a signed head is wanted
//! - [`host_body`]: reads a body whose digest was verified
//! - [`body`]: what a body changes
//! - [`change`]: how a version ends that was begun
//! - [`ownership`]: which verbs units of deployments take
//! - [`removal`]: when a unit that is to go may go, by the host's own policy
//!
//! **Invariant: absence removes nothing.** A unit goes only if a document names it under `remove`, or an operator does.

pub mod body;
pub mod change;
pub mod head;
pub mod host_body;
pub mod ownership;
pub mod removal;
pub mod together;

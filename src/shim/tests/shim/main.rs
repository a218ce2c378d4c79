//! The shim with real processes.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "this is all test")]

mod agents;
mod attributes;
mod ends;
mod outputs;
mod rig;
mod starts;

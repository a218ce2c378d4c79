//! Tests of the shim with real processes.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "this is all test")]

mod agents;
mod attributes;
mod cgroups;
mod channels;
mod ends;
mod forks;
mod freezes;
mod insides;
mod leaf;
mod nexts;
mod notifies;
mod outputs;
mod rig;
mod starts;

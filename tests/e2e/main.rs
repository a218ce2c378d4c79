//! End to end: the real program as an operator uses it, with real processes, sockets and files.
//! Each module is one part of the promise; the harness is in `tests/fleet/`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../fleet/mod.rs"]
mod fleet;

mod bad_input;
mod brokers;
mod doors;
mod exec;
mod first_run;
mod follow;
mod holds;
mod limits;
mod metric;
mod order;
mod realms;
mod revoke;
mod roles;
mod wire;
mod yuno;

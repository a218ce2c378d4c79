//! End to end: the real program as an operator uses it, with real processes, sockets and files.
//! Each module is one part of the promise; the harness is in `tests/fleet/`.

#[path = "../fleet/mod.rs"]
mod fleet;

mod bad_input;
mod exec;
mod first_run;
mod metric;
mod roles;
mod wire;
mod yuno;

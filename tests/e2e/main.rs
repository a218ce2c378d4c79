//! End to end: the real program as an operator uses it, with real processes, sockets and files.
//! Each module is one part of the promise; the harness is in `tests/fleet/`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that cannot go on has failed; one that is skipped says so"
)]

#[path = "../fleet/mod.rs"]
mod fleet;

mod addressing;
mod agent_store;
mod alerts;
mod apply;
mod away;
mod backup;
mod bad_input;
mod batch;
mod boot;
mod changes;
mod channel;
mod clock;
mod containers;
mod content;
mod crashes;
mod daemon;
mod dashboards;
mod delivery;
mod deployments;
mod digest;
mod doctor;
mod documents;
mod doors;
mod everyday;
mod exec;
mod exec_options;
mod external;
mod files;
mod first_process;
mod first_run;
mod follow;
mod forged;
mod forking;
mod forms;
mod full_disk;
mod guard;
mod holds;
mod install_script;
mod limits;
mod links;
mod local;
mod masked;
mod metric;
mod on_change;
mod order;
mod other_form;
mod outlets;
mod package;
mod packages;

mod placement;
mod plan;
mod probe;
mod programs;
mod promql;
mod proxies;
mod queue;
mod realms;
mod render;
mod replace;
mod revoke;
mod roles;
mod rollback;
mod rollouts;
mod root_rotation;
mod rotation;
mod screen;
mod sealed;
mod secrets;
mod servers;
mod service;
mod simulate;
mod soak;
mod stores;
mod survival;
mod tasks;
mod terminal;
mod top;
mod wire;
mod ycommand;
mod yuno;

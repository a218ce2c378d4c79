//! What the benches have in common.

#![allow(
    dead_code,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::allow_attributes,
    reason = "each bench uses a part of it"
)]

pub(crate) mod agent;
pub(crate) mod cli;
pub(crate) mod family;
pub(crate) mod spread;
pub(crate) mod usage;

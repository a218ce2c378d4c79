//! The agent: one per host.

pub mod artifact;
pub mod config;
pub mod execute;
pub mod join;
pub mod link;
pub mod metric;
pub mod shim;
pub mod store;
pub mod unit;

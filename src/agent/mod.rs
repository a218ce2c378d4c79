//! The agent: one per host.

pub mod artifact;
mod chance;
pub mod config;
pub mod execute;
mod facts;
pub mod join;
pub mod link;
pub mod metric;
mod pin;
mod renew;
pub mod shim;
pub mod store;
pub mod unit;

//! Handlers, one module for each page: each reads through [`Console`](crate::Console), fills
//! a view, and renders it.

pub(super) mod alerts;
pub(super) mod backups;
pub(super) mod command;
pub(super) mod commands;
pub(super) mod confirm;
pub(super) mod content;
pub(super) mod deployment;
pub(super) mod host;
pub(super) mod hosts;
pub(super) mod join;
pub(super) mod rollout;
pub(super) mod rule;
pub(super) mod run;
pub(super) mod secret;
pub(super) mod sign_in;
pub(super) mod unit;
pub(super) mod units;
pub(super) mod vars;

use serde::Deserialize;

/// The query of a page that has nothing but regions.
#[derive(Debug, Deserialize)]
pub(super) struct RegionQuery {
    part: Option<String>,
}

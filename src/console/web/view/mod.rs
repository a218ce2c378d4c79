//! Views: the content of pages, and their markup.
//!
//! A page is a struct with everything it shows, and a function from it to markup. A
//! [`PageFrame`] is around it: menu, operator, time. Regions that change are named parts ([`region`]): the page
//! contains them, and returns one alone for `?part=`.
//!
//! Modules: [`frame`] and [`elements`] (what all pages share), then one for each page; `samples`
//! has values of each view, which a test renders and checks.
//!
//! **Invariant: forms lie outside of regions**, so that an update never replaces what somebody types.

pub(super) mod alerts;
mod authority;
pub(super) mod backups;
pub(super) mod changes;
pub(super) mod command;
pub(super) mod commands;
pub(super) mod confirm;
pub(super) mod content;
pub(super) mod deployment;
pub(super) mod deployments;
pub(super) mod elements;
mod frame;
pub(super) mod glance;
pub(super) mod host;
pub(super) mod hosts;
pub(super) mod join;
pub(super) mod manage;
pub(super) mod measurements;
mod plan;
pub(super) mod problem;
mod region;
pub(super) mod rollout;
pub(super) mod rollouts;
pub(super) mod rule;
pub(super) mod run;
#[cfg(test)]
pub(super) mod samples;
pub(super) mod secret;
pub(super) mod sign_in;
pub(super) mod unit;
pub(super) mod unit_tasks;
pub(super) mod units;
pub(super) mod vars;

pub(super) use frame::{PageFrame, PageView, PageWatch};

//! muster: a message-bus agent over MQTT, and the fleet that forms around it.
//!
//! Modules, in reading order:
//!
//! - [`rules`]: the pure core, decisions as plain functions of state and time
//! - [`agent`]: one per host; takes signed commands, keeps units as they should be, and tells
//! - [`console`]: one per fleet; authority, dispatch, ledger, time series, API and web pages
//! - [`api`]: the types of the console's REST API, shared by its two ends
//! - [`cli`]: the operator's verbs, each a client of that API
//! - [`up`]: broker, console and agent in one process
//! - [`config`], [`pki`], [`files`], [`clock`]: what the long-lived roles have in common
//!
//! **Invariant: [`rules`] does no IO, reads no clock and draws no randomness.**
//!
//! **Invariant: the agent and the console know each other only through `muster-topics`.**

#[cfg(feature = "agent")]
pub mod agent;
pub mod api;
#[cfg(feature = "cli")]
pub mod cli;
pub mod clock;
pub mod config;
#[cfg(feature = "console")]
pub mod console;
pub mod files;
pub mod pki;
pub mod rules;
#[cfg(all(feature = "agent", feature = "broker", feature = "console"))]
pub mod up;

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
//! - [`role`]: each of the long-lived roles as a process of its own; [`reload`]: what SIGHUP does to them; [`broker`]: from its configuration to a broker;
//!   [`revoked`]: what follows its revocation list; [`password`]: lines of its users file; [`render`]: other brokers'
//!   configurations
//! - [`install`]: the agent as a service of this host; `init`: as the first process of a container
//! - [`issue`]: certificates made, listed and revoked by hand
//! - [`simulate`]: many hosts in one process
//! - `fault`: what tests break on purpose, and see found (`tests/sim`)
//! - [`sealing`]: what of a command only its host may read
//! - [`terminal`]: printing for people
//! - [`http`]: HTTP clients of every role, and through which proxy they go
//! - [`config`], [`bus`], [`rows`], [`lean`], [`one_writer`], [`room`], [`pki`], [`files`], [`folders`], [`clock`], [`chance`], [`failure`], [`argv`], [`size`], `host_names`: what they have in common
//!
//! **Invariant: [`rules`] does no IO, reads no clock and draws no randomness.**
//!
//! **Invariant: the agent and the console know each other only through `muster-topics`.**

#[cfg(feature = "agent")]
pub mod agent;
pub mod api;
#[cfg(any(feature = "cli", feature = "console"))]
pub mod argv;
#[cfg(feature = "broker")]
pub mod broker;
#[cfg(any(feature = "agent", feature = "console"))]
pub mod bus;
#[cfg(any(feature = "agent", feature = "console"))]
pub mod chance;
#[cfg(any(feature = "agent", feature = "console"))]
pub mod checked;
#[cfg(feature = "cli")]
pub mod cli;
pub mod clock;
pub mod config;
#[cfg(feature = "console")]
pub mod console;
pub mod failure;
mod fault;
pub mod files;
pub mod folders;
#[cfg(any(feature = "cli", feature = "console"))]
mod host_names;
#[cfg(any(feature = "agent", feature = "cli", feature = "console"))]
pub mod http;
#[cfg(feature = "agent")]
pub mod init;
#[cfg(feature = "agent")]
pub mod install;
#[cfg(feature = "console")]
pub mod issue;
#[cfg(feature = "agent")]
pub mod join_args;
#[cfg(any(feature = "agent", feature = "console"))]
pub mod lean;
#[cfg(any(feature = "agent", feature = "console"))]
pub mod one_writer;
#[cfg(feature = "broker")]
pub mod password;
pub mod pki;
#[cfg(any(feature = "agent", feature = "broker", feature = "console"))]
pub mod reload;
#[cfg(feature = "broker")]
pub mod render;
#[cfg(feature = "broker")]
pub mod revoked;
pub mod role;
#[cfg(any(feature = "agent", feature = "console"))]
pub mod room;
#[cfg(feature = "console")]
pub mod rows;
pub mod rules;
#[cfg(any(feature = "agent", feature = "console"))]
pub mod sealing;
#[cfg(test)]
#[cfg(all(feature = "agent", feature = "console"))]
#[path = "../tests/sim/mod.rs"]
mod sim;
#[cfg(all(feature = "agent", feature = "broker", feature = "cli", feature = "console"))]
pub mod simulate;
pub mod size;
#[cfg(any(feature = "cli", feature = "console"))]
pub mod summary;
pub mod terminal;
#[cfg(all(feature = "agent", feature = "broker", feature = "cli", feature = "console"))]
pub mod up;

//! `muster doctor`: checks an installation, and collects what somebody needs who helps with it.
//!
//! Modules, in reading order:
//!
//! - [`setup`]: what is installed: files, folders, addresses; the program says it, from the configurations of its roles
//! - [`facts`]: what was found there; [`collect`] finds it, with [`probe`] (servers), [`broker`] (its rules) and [`files`]
//! - [`check`]: decides about the facts, pure: findings, each with its verdict and its remedy
//! - [`config_files`]: the files that a configuration names, for `--check-config` of the roles
//! - [`report`]: the findings as text
//! - [`redact`]: takes secrets out of texts, pure; [`bundle`]: an archive of findings, configurations and logs
//!
//! **Invariant: a doctor changes nothing**: stores are opened for reading alone, no lock is taken, and what is published is a
//! presence that the broker retains already, of a host whose agent does not run.

pub mod broker;
pub mod bundle;
pub mod check;
pub mod collect;
pub mod config_files;
pub mod facts;
pub mod files;
pub mod probe;
pub mod redact;
pub mod report;
pub mod setup;

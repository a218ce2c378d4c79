//! Common parts of all roles, without any of muster's own work.
//!
//! - [`failure`]: failures of verbs, and exit codes
//! - [`config`]: configuration of the long-lived roles; [`reload`]: SIGHUP; [`role_args`]: arguments of each
//! - [`clock`], [`chance`]: the wall clock and randomness, each read in one place; [`certain_clock`]: the time by which
//!   something ends for good
//! - [`files`]: atomic writes; [`mount`]: mount points, and removal that stops at them; [`folders`]: folders from the environment
//! - [`form`]: which build has written what is stored
//! - [`unwritable`]: errors of a file system that is full, or read-only
//! - [`terminal`]: printing for people; [`argv`]: parses a typed command line
//! - [`service_manager`]: notices to the service manager; [`memory_release`]: gives memory back; [`crash`]: points at which
//!   tests kill a process

pub mod argv;
pub mod certain_clock;
pub mod chance;
pub mod clock;
pub mod clock_steps;
pub mod config;
pub mod crash;
pub mod failure;
pub mod files;
pub mod folders;
pub mod form;
pub mod memory_release;
pub mod mount;
pub mod reload;
pub mod role_args;
pub mod service_manager;
pub mod terminal;
pub mod unwritable;

//! Parts that agent and console share on the bus, beyond the contract in `muster-topics`.
//!
//! - [`address`]: addresses of brokers, and the quality of service of messages
//! - [`sealing`]: encrypts secrets of a command to its hosts

pub mod address;
pub mod sealing;

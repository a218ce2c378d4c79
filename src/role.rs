//! The long-lived roles as processes of their own, each with a configuration of its own; and what the broker needs besides:
//! [`embedded_broker`] (starts it), [`revoked`] (its revocation list), [`render`] (other brokers'
//! configurations), [`password`] (lines of its users file). [`check_config`] says what is wrong with a configuration, [`doctor`]
//! what of all this is installed here.

#[cfg(feature = "agent")]
pub(crate) mod agent;
#[cfg(feature = "broker")]
pub(crate) mod broker;
pub(crate) mod check_config;
#[cfg(feature = "console")]
pub(crate) mod console;
pub(crate) mod doctor;
#[cfg(feature = "broker")]
pub(crate) mod embedded_broker;
#[cfg(feature = "broker")]
pub(crate) mod password;
#[cfg(feature = "broker")]
pub(crate) mod render;
#[cfg(feature = "broker")]
pub(crate) mod revoked;

#[cfg(test)]
#[cfg(all(feature = "agent", feature = "broker", feature = "console"))]
mod print_config_tests;

#[cfg(test)]
#[cfg(all(feature = "agent", feature = "broker", feature = "console"))]
mod removed_keys_tests;

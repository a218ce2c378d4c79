//! Outgoing connections of muster's roles.
//!
//! - [`pki`]: TLS: one provider, one way to read PEM, one trust model
//! - [`http`]: HTTP clients, and their proxies

pub mod http;
pub mod pki;

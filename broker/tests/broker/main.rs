//! The broker against real clients over real TLS: rumqttc, sockets that say what they should not, `mosquitto_sub`.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod five;
mod fixture;
mod hostile;
mod identity;
mod mqtt5;
mod retained;
mod sessions;
mod store;
mod traffic;

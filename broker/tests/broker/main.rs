//! Tests of the broker against real clients over real TLS: rumqttc, sockets with invalid bytes, `mosquitto_sub`.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod five;
#[expect(dead_code, reason = "some of it is for the tests inside")]
mod fixture;
mod hostile;
mod identity;
mod mqtt5;
mod plain;
mod retained;
mod revoked;
mod sessions;
mod store;
mod traffic;
mod websocket;

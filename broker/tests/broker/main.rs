//! The broker against real clients over real TLS: rumqttc, sockets that say what they should not, `mosquitto_sub`.

mod fixture;
mod hostile;
mod identity;
mod retained;
mod sessions;
mod traffic;

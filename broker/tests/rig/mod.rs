//! What the tests of rows, load and clients stand on: brokers in processes of their own, and a client of raw MQTT (3.1.1
//! and 5) over TCP or TLS, which sees every byte and does also what no library would.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::allow_attributes,
    unreachable_pub,
    reason = "each test program uses a part of it; a test that cannot go on has failed"
)]

pub(crate) mod child;
pub(crate) mod client;
pub(crate) mod place;
pub(crate) mod wire;

use std::time::Duration;

/// Two hosts, as certificates name them.
pub(crate) const HOST: &str = "0e2c1a4e-6a61-4a1c-9d0f-0d6d5a8f1f52";
pub(crate) const OTHER: &str = "11111111-6a61-4a1c-9d0f-0d6d5a8f1f52";

/// Far more than anything takes, on two cores that have other things to do as well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// Waits for something that must come.
#[track_caller]
pub(crate) fn patiently<T>(what: &str, future: impl Future<Output = T>) -> impl Future<Output = T> {
    let place = std::panic::Location::caller();
    async move {
        let waited = tokio::time::timeout(PATIENCE, future).await;
        waited.unwrap_or_else(|_| panic!("{place}: waited in vain for {what}"))
    }
}

/// Asks again and again, until it is so.
#[track_caller]
pub(crate) fn until(what: &str, mut probe: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let place = std::panic::Location::caller();
    async move {
        let started = tokio::time::Instant::now();
        while !probe() {
            assert!(started.elapsed() < PATIENCE, "{place}: waited in vain for {what}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

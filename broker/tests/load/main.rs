//! The embedded broker under load: many clients, clients that come and go, clients that mean harm, and what is left in its
//! memory afterwards. It runs in a process of its own, with the threads that it has in earnest.
//!
//! These tests use what there is of the machine: `.config/nextest.toml` runs each alone.
//!
//! `tests/run --long` (`TESTS_LONG=1`) asks for all of it: 9,500 clients rather than 1,000, a minute rather than seconds.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[path = "../rig/mod.rs"]
mod rig;

mod churn;
mod crowd;
mod flood;
mod growth;
mod shares;
mod slow;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use rig::{
    HOST,
    child::OursApart,
    client::Mqtt,
    place::Place,
    wire::{Connect, Publish, Version},
};
use tokio::task::JoinHandle;

/// Not a test of its own: what the others start in a process of its own.
#[test]
fn child() {
    rig::child::play(&[("muster", OursApart::run)]);
}

/// Which of two sizes this run has.
fn size<T>(normal: T, long: T) -> T {
    if std::env::var_os("TESTS_LONG").is_some_and(|value| value == "1") { long } else { normal }
}

/// Something that each host may say.
fn event() -> String {
    format!("muster/s/00/h/{HOST}/event")
}

/// A host that speaks and a console that listens, while something else goes on around them.
struct Witnesses {
    stop: std::sync::Arc<AtomicBool>,
    pair: JoinHandle<usize>,
}

impl Witnesses {
    /// Has one number after the other sent; none may be lost, come twice, or come out of order.
    async fn start(place: &Place) -> Self {
        let mut reader = Mqtt::connect(place, Version::V5, "console-main", &Connect::new("console-main")).await;
        reader.subscribe(&event(), 1).await;
        let mut writer = Mqtt::connect(place, Version::V4, HOST, &Connect::new(&format!("{HOST}-1"))).await;
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let stopped = std::sync::Arc::clone(&stop);
        let pair = tokio::spawn(async move {
            let mut count = 0;
            while !stopped.load(Ordering::Relaxed) {
                writer.publish(Publish::new(&event(), 1, count.to_string())).await;
                assert_eq!(reader.message().await.text(), count.to_string());
                count += 1;
            }
            count
        });
        Self { stop, pair }
    }

    /// Ends them; gives how many messages they passed.
    async fn end(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        rig::patiently("the witnesses", self.pair).await.unwrap()
    }
}

/// Waits until nobody is connected any more but `count`.
async fn until_connected(ours: &mut OursApart, count: u64) {
    let started = tokio::time::Instant::now();
    loop {
        let now = ours.stat("connections");
        if now == count {
            return;
        }
        assert!(started.elapsed() < rig::PATIENCE, "{now} are connected rather than {count}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

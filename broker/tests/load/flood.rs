//! A publisher that floods a reader that is slow.

use std::time::Duration;

use muster_broker::BrokerLimits;
use tokio::time::Instant;

use crate::{
    Witnesses,
    rig::{
        OTHER,
        child::{OursApart, rss_bytes},
        client::{Failed, Mqtt},
        place::Place,
        wire::{Connect, Publish, Version},
    },
    size,
};

const QUEUE_BYTES: usize = 4 << 20;

/// Sends numbered messages of 1 KB with QoS 0, as fast as the broker takes them; gives how many.
async fn flood(place: Place, lasts: Duration) -> usize {
    let topic = format!("muster/s/00/h/{OTHER}/unit/default/flood");
    let mut sender = Mqtt::connect(&place, Version::V4, OTHER, &Connect::new(&format!("{OTHER}-1"))).await;
    let started = Instant::now();
    let mut count = 0;
    while started.elapsed() < lasts {
        let publish = |number: usize| Publish::new(&topic, 0, format!("{number:<1000}")).encode(Version::V4);
        let packets: Vec<u8> = (count..count + 50).flat_map(publish).collect();
        sender.send(&packets).await;
        count += 50;
    }
    // All of it has been taken when this is answered.
    sender.ping().await.unwrap();
    count
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_past_a_slow_reader_stays_within_bounds() {
    let lasts = Duration::from_secs(size(5, 30));
    // The pace of an identity is no part of this.
    let limits =
        BrokerLimits { queue_max_bytes: QUEUE_BYTES, bytes_per_second_per_identity: 0, ..BrokerLimits::default() };
    let mut ours = OursApart::start(&limits);
    let witnesses = Witnesses::start(&ours.place).await;
    let mut reader = Mqtt::connect(&ours.place, Version::V5, "operator-slow", &Connect::new("operator-slow")).await;
    reader.subscribe(&format!("muster/s/00/h/{OTHER}/unit/#"), 0).await;
    let before = rss_bytes(ours.child.pid());
    let flooding = tokio::spawn(flood(ours.place.clone(), lasts));
    let (mut got, mut most) = (Vec::new(), 0);
    while !flooding.is_finished() {
        most = most.max(rss_bytes(ours.child.pid()));
        match reader.message_within(Duration::from_millis(10)).await {
            Ok(message) => got.push(message.text().trim().parse::<usize>().unwrap()),
            Err(Failed::Silence) => {}
            Err(failed) => panic!("the reader was sent away: {failed:?}"),
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let sent = flooding.await.unwrap();
    // The queue, and what is under way: the router's log, buffers of sockets' ends.
    assert!(most - before < 2 * QUEUE_BYTES as u64 + (24 << 20), "{} bytes more", most - before);
    for message in reader.messages_until_quiet(Duration::from_secs(2)).await {
        got.push(message.text().trim().parse().unwrap());
    }
    assert!(got.is_sorted_by(|one, next| one < next), "out of order, or twice");
    // What it missed was dropped on purpose, and counted.
    let dropped = usize::try_from(ours.stat("dropped_total")).unwrap();
    assert_eq!(got.len() + dropped, sent, "{} came, {dropped} dropped", got.len());
    assert!(dropped > 0 && got.len() > 100, "{} came, {dropped} dropped", got.len());
    assert!(witnesses.end().await > 50);
    assert_eq!(ours.stat("slow_total"), 0);
}

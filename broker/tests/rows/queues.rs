//! Part 2: slow consumers, memory, and what a restart leaves.

use std::time::Duration;

use muster_broker::BrokerLimits;

use crate::{
    DEAD, console, event, host,
    rig::{
        child::{OursApart, Rumqttd, Settings},
        client::{Failed, Mqtt},
        place::{Ours, Place},
        until,
        wire::{self, BOTH, Connect, Packet, Publish, Version},
    },
    unit,
};

const COUNT: usize = 20_000;

/// Sends many messages, all of which are acknowledged, past a reader that takes none until then. Gives what it gets
/// then, and whether it still is connected at the end.
async fn behind(place: &Place, version: Version) -> (Vec<usize>, bool) {
    let mut slow = Mqtt::connect(place, version, "operator-slow", &Connect::new("operator-slow")).await;
    slow.subscribe(&event(), 1).await;
    let mut sender = host(place, version).await;
    for chunk in 0..COUNT / 100 {
        let publish = |number: usize| {
            let payload = format!("{:<1000}", chunk * 100 + number);
            Publish::new(&event(), 1, payload).id(u16::try_from(number + 1).unwrap())
        };
        let packets: Vec<u8> = (0..100).flat_map(|number| publish(number).encode(version)).collect();
        sender.send(&packets).await;
        for _ in 0..100 {
            let answer = sender.packet_within(DEAD).await;
            assert!(matches!(answer, Ok(Packet::PubAck { .. })), "{answer:?}");
        }
    }
    let mut got = Vec::new();
    loop {
        match slow.packet_within(Duration::from_secs(2)).await {
            Ok(Packet::Publish(publish)) => {
                got.push(publish.text().trim().parse().unwrap());
                slow.try_send(&wire::puback(publish.packet_id)).await.ok();
            }
            Ok(_) => {}
            Err(Failed::Silence) => return (got, true),
            Err(_) => return (got, false),
        }
    }
}

fn unbroken(numbers: &[usize]) -> bool {
    numbers.iter().enumerate().all(|(index, number)| index == *number)
}

#[tokio::test]
async fn slow_consumer_is_not_skipped_silently() {
    // The log of the row: ten segments of 1 MB, which hold half of what is sent.
    let rumqttd = Rumqttd::start(Settings { segment_bytes: 1_000_000, ..Settings::default() });
    let (got, connected) = behind(&rumqttd.place, Version::V4).await;
    assert!(connected && got.len() < COUNT && !unbroken(&got), "{} came, connected: {connected}", got.len());

    let ours = Ours::start(BrokerLimits { queue_max_bytes: 4_000_000, ..BrokerLimits::default() }).await;
    for version in BOTH {
        let (got, connected) = behind(&ours.place, version).await;
        // All that came came in order and without a gap; it is told that there is more, by the end of the connection.
        assert!(unbroken(&got) && !connected, "{} came, connected: {connected}", got.len());
        assert_eq!(ours.broker.stats().router_deaths_total, 0);
    }
    // With room for everything it gets everything.
    let roomy = BrokerLimits { queue_max_bytes: 64_000_000, ..BrokerLimits::default() };
    let ours = Ours::start(roomy).await;
    let (got, connected) = behind(&ours.place, Version::V5).await;
    assert!(unbroken(&got) && connected && got.len() == COUNT, "{} came, connected: {connected}", got.len());
}

/// Sends 48 MB to a reader that takes them, in steps; gives the memory of the process before and after, in bytes.
async fn grown(place: &Place, pid: u32) -> (u64, u64) {
    let mut reader = console(place, Version::V4).await;
    reader.subscribe(&event(), 0).await;
    let mut sender = host(place, Version::V4).await;
    let packets = Publish::new(&event(), 0, [b'x'; 8_000]).encode(Version::V4).repeat(100);
    let mut before = 0;
    for step in 0..70 {
        sender.send(&packets).await;
        for _ in 0..100 {
            reader.message().await;
        }
        if step == 9 {
            // What it needs at all.
            before = crate::rig::child::rss_bytes(pid);
        }
    }
    drop((reader, sender));
    tokio::time::sleep(Duration::from_secs(1)).await;
    (before, crate::rig::child::rss_bytes(pid))
}

#[tokio::test]
async fn read_messages_free_memory() {
    let rumqttd = Rumqttd::start(Settings::default());
    let (before, after) = grown(&rumqttd.place, rumqttd.child.pid()).await;
    assert!(after > before + 40_000_000, "{before} {after}");

    let ours = OursApart::start(&BrokerLimits::default());
    let (before, after) = grown(&ours.place, ours.child.pid()).await;
    assert!(after < before + 16_000_000, "{before} {after}");
}

#[tokio::test]
async fn retained_messages_survive_restart() {
    let mut rumqttd = Rumqttd::start(Settings::default());
    host(&rumqttd.place, Version::V4).await.publish(Publish::new(&unit("a"), 1, "here").retained()).await;
    rumqttd.child.kill();
    let rumqttd = Rumqttd::start(Settings::default());
    let mut client = console(&rumqttd.place, Version::V4).await;
    client.subscribe(&unit("a"), 1).await;
    assert_eq!(client.message_within(Duration::from_secs(1)).await, Err(Failed::Silence));

    let mut ours = OursApart::start(&BrokerLimits::default());
    for round in 0..3 {
        let mut sender = host(&ours.place, Version::V5).await;
        sender.publish(Publish::new(&unit(&format!("u{round}")), 1, round.to_string()).retained()).await;
        until("it on the disk", || ours.has_stored(&unit(&format!("u{round}")))).await;
        // Not asked to end, but killed.
        ours = ours.again();
        let mut client = console(&ours.place, Version::V5).await;
        client.subscribe("muster/s/+/h/+/unit/#", 1).await;
        let mut found: Vec<String> = Vec::new();
        for _ in 0..=round {
            found.push(client.message().await.text().to_owned());
        }
        found.sort();
        assert_eq!(found, (0..=round).map(|number| number.to_string()).collect::<Vec<_>>());
    }
}

//! Part 2, retained messages.

use std::time::Duration;

use muster_broker::BrokerLimits;

use crate::{
    console, event, host,
    rig::{
        child::{Rumqttd, Settings},
        client::Mqtt,
        place::{Ours, Place},
        wire::{BOTH, Publish, Version},
    },
    unit,
};

const COUNT: usize = 10_000;

/// Leaves a retained message on each of [`COUNT`] topics.
async fn leave_many(place: &Place, version: Version) {
    let mut client = host(place, version).await;
    for chunk in 0..COUNT / 500 {
        let publish = |number: usize| Publish::new(&unit(&format!("u{number}")), 0, number.to_string()).retained();
        let packets = (0..500).flat_map(|number| publish(chunk * 500 + number).encode(version));
        client.send(&packets.collect::<Vec<_>>()).await;
        // Acknowledged once all before it have been dealt out: whoever subscribes from then on finds them retained.
        client.publish(Publish::new(&event(), 1, "so far")).await;
    }
}

#[tokio::test]
async fn wildcard_brings_many_retained_messages() {
    let rumqttd = Rumqttd::start(Settings::default());
    leave_many(&rumqttd.place, Version::V4).await;
    for (qos, some) in [(0, 200), (1, 100)] {
        let mut client = console(&rumqttd.place, Version::V4).await;
        client.subscribe("muster/s/+/h/+/unit/#", qos).await;
        assert_eq!(client.messages_until_quiet(Duration::from_secs(2)).await.len(), some);
    }

    let ours = Ours::start(BrokerLimits {
        retained_host_max: COUNT,
        retained_host_max_bytes: 4 << 20,
        ..BrokerLimits::default()
    })
    .await;
    leave_many(&ours.place, Version::V5).await;
    for version in BOTH {
        for (qos, filter) in [(0, "muster/s/+/h/+/unit/#"), (1, "muster/#"), (1, "muster/+/+/+/+/unit/default/+")] {
            let mut client = console(&ours.place, version).await;
            client.subscribe(filter, qos).await;
            let mut found = vec![false; COUNT];
            for _ in 0..COUNT {
                let message = client.message().await;
                let number: usize = message.text().parse().unwrap();
                assert!(message.retain && message.topic == unit(&format!("u{number}")), "{message:?}");
                assert!(!std::mem::replace(&mut found[number], true), "{number} came twice");
            }
        }
    }
}

/// What a newcomer finds retained after an empty message of either kind.
async fn left_after_empty(place: &Place, version: Version, retain: bool) -> usize {
    let mut client = host(place, version).await;
    client.publish(Publish::new(&unit("a"), 1, "here").retained()).await;
    client.publish(Publish { retain, ..Publish::new(&unit("a"), 1, "") }).await;
    let mut client = console(place, version).await;
    client.subscribe(&unit("a"), 1).await;
    client.messages_until_quiet(Duration::from_secs(1)).await.len()
}

#[tokio::test]
async fn only_a_retained_empty_message_clears() {
    let rumqttd = Rumqttd::start(Settings::default());
    assert_eq!(left_after_empty(&rumqttd.place, Version::V4, true).await, 0);
    assert_eq!(left_after_empty(&rumqttd.place, Version::V4, false).await, 0);

    let ours = Ours::start(BrokerLimits::default()).await;
    for version in BOTH {
        assert_eq!(left_after_empty(&ours.place, version, true).await, 0);
        assert_eq!(left_after_empty(&ours.place, version, false).await, 1);
    }
}

/// What comes at a subscribe, and what at the same one again.
async fn twice(client: &mut Mqtt, options: u8) -> [usize; 2] {
    let mut counts = [0; 2];
    for count in &mut counts {
        client.subscribe(&unit("a"), options).await;
        *count = client.messages_until_quiet(Duration::from_secs(1)).await.len();
    }
    counts
}

#[tokio::test]
async fn each_subscribe_brings_retained_again() {
    let rumqttd = Rumqttd::start(Settings::default());
    let message = || Publish::new(&unit("a"), 1, "here").retained();
    host(&rumqttd.place, Version::V4).await.publish(message()).await;
    assert_eq!(twice(&mut console(&rumqttd.place, Version::V4).await, 1).await, [1, 0]);

    let ours = Ours::start(BrokerLimits::default()).await;
    host(&ours.place, Version::V4).await.publish(message()).await;
    assert_eq!(twice(&mut console(&ours.place, Version::V4).await, 1).await, [1, 1]);
    // MQTT 5 lets the subscriber say: always, only if it is new, never.
    for (handling, counts) in [(0, [1, 1]), (1, [1, 0]), (2, [0, 0])] {
        let mut client = console(&ours.place, Version::V5).await;
        assert_eq!(twice(&mut client, 1 | handling << 4).await, counts, "handling {handling}");
    }
}

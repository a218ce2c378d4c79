//! Retained messages.

use std::collections::BTreeSet;

use muster_broker::{BrokerLimits, Refused};
use rumqttc::QoS;

use crate::{
    five::{Connect, Five, Properties, QOS_1, property},
    fixture::{Fixture, HOST, OTHER, packet, subscribe},
};

fn unit(index: usize) -> String {
    format!("muster/s/00/h/{HOST}/unit/default/u{index}")
}

#[tokio::test]
async fn wildcard_brings_all_retained_messages() {
    const COUNT: usize = 2000;
    let fixture = Fixture::with(BrokerLimits { retained_host_max: COUNT, ..BrokerLimits::default() }).await;
    let mut host = fixture.client(HOST, &format!("{HOST}-1")).await;
    for index in 0..COUNT {
        host.mqtt.publish(unit(index), QoS::AtLeastOnce, true, index.to_string()).await.unwrap();
        if index % 100 == 99 {
            host.acknowledged(100).await;
        }
    }
    assert_eq!(fixture.broker.stats().retained, COUNT as u64);
    for (filter, qos) in [("muster/s/+/h/+/unit/+/+", QoS::AtLeastOnce), ("muster/#", QoS::AtMostOnce)] {
        let mut console = fixture.client("console-main", &format!("console-main-{}", qos as u8)).await;
        console.subscribe(filter, qos).await;
        let mut found = BTreeSet::new();
        for _ in 0..COUNT {
            let message = console.message().await;
            assert!(message.retain && message.qos == qos);
            found.insert(message.topic);
        }
        assert_eq!(found, (0..COUNT).map(unit).collect());
        // And again, for whoever subscribes again.
        console.subscribe(filter, qos).await;
        for _ in 0..COUNT {
            assert!(console.message().await.retain);
        }
        // What follows is live.
        host.publish(&unit(0), true, "live").await;
        assert_eq!(console.text().await, (unit(0), "live".to_owned(), false));
    }
}

#[tokio::test]
async fn only_an_empty_retained_message_clears() {
    let fixture = Fixture::new().await;
    let mut host = fixture.client(HOST, &format!("{HOST}-1")).await;
    let mut console = fixture.console().await;
    host.publish(&unit(1), true, "kept").await;
    host.publish(&unit(1), false, "").await;
    host.publish(&unit(1), false, "passing").await;
    console.subscribe(&unit(1), QoS::AtLeastOnce).await;
    assert_eq!(console.text().await, (unit(1), "kept".to_owned(), true));
    host.publish(&unit(1), true, "").await;
    assert_eq!(console.text().await, (unit(1), String::new(), false));
    console.subscribe(&unit(1), QoS::AtLeastOnce).await;
    host.publish(&unit(1), false, "fence").await;
    assert_eq!(console.text().await, (unit(1), "fence".to_owned(), false));
    assert_eq!(fixture.broker.stats().retained, 0);
}

/// A subscriber that comes while values change ends with the last one, whatever the order of events.
#[tokio::test]
async fn last_value_wins_a_race() {
    let fixture = Fixture::new().await;
    let mut host = fixture.client(HOST, &format!("{HOST}-1")).await;
    for round in 0..30 {
        let publishing = async {
            for value in 0..20 {
                host.publish(&unit(round), true, &value.to_string()).await;
            }
        };
        let mut console = fixture.client("console-main", "console-main").await;
        let subscribing = async {
            console.subscribe(&unit(round), QoS::AtLeastOnce).await;
            let mut last = String::new();
            while last != "19" {
                last = console.text().await.1;
            }
        };
        tokio::join!(publishing, subscribing);
        // Nothing older comes after it.
        host.publish(&unit(round), false, "fence").await;
        let mut text = console.text().await.1;
        while text == "19" {
            text = console.text().await.1;
        }
        assert_eq!(text, "fence");
        console.disconnect().await;
    }
}

/// A real client of another make, which reads a host's whole tree.
#[tokio::test]
async fn mosquitto_sub_reads_a_hosts_tree() {
    const PROGRAM: &str = "/usr/bin/mosquitto_sub";
    if !std::path::Path::new(PROGRAM).exists() {
        eprintln!("{PROGRAM} is not installed: left out");
        return;
    }
    let fixture = Fixture::new().await;
    let folder = tempfile::tempdir().unwrap();
    let pair = fixture.authority.issue("operator-anna");
    for (name, content) in [("ca", &fixture.authority.certificate), ("cert", &pair.certificate), ("key", &pair.key)] {
        std::fs::write(folder.path().join(name), content).unwrap();
    }
    let mut host = fixture.client(HOST, &format!("{HOST}-1")).await;
    host.publish(&unit(1), true, "one").await;
    host.publish(&format!("muster/s/00/h/{HOST}/presence"), true, "here").await;
    let port = fixture.address().port().to_string();
    let filter = format!("muster/s/00/h/{HOST}/#");
    let output = tokio::process::Command::new(PROGRAM)
        .current_dir(folder.path())
        .args(["-V", "311", "-h", "localhost", "-p", &port, "--cafile", "ca", "--cert", "cert", "--key", "key"])
        .args(["-t", &filter, "-C", "2", "-W", "30", "-v"])
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let lines: BTreeSet<_> = stdout.lines().collect();
    let expected = [format!("{} one", unit(1)), format!("muster/s/00/h/{HOST}/presence here")];
    assert_eq!(lines, expected.iter().map(String::as_str).collect(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A host that has as much as it may keeps what it has, and is told; others are not concerned.
#[tokio::test]
async fn retain_beyond_share_is_refused_and_keeps_old_value() {
    let fixture =
        Fixture::with(BrokerLimits { retained_host_max: 3, retained_max: 3, ..BrokerLimits::default() }).await;
    let mut console = fixture.console().await;
    console.subscribe("muster/s/+/h/+/unit/#", QoS::AtLeastOnce).await;
    let none = Properties::default();
    let mut host = Five::connect(&fixture, HOST, &Connect::new(&format!("{HOST}-1"))).await.0;
    for index in 0..3 {
        assert_eq!(host.publish(&unit(index), true, &none, "old").await, 0);
        assert_eq!(console.text().await, (unit(index), "old".to_owned(), false));
    }
    assert_eq!(host.publish(&unit(3), true, &none, "one too many").await, 0x97);
    assert_eq!(host.publish(&unit(3), false, &none, "passing").await, 0);
    assert_eq!(host.publish(&unit(1), true, &none, "new").await, 0);
    // What is not kept is not dealt out either.
    assert_eq!(console.text().await, (unit(3), "passing".to_owned(), false));
    assert_eq!(console.text().await, (unit(1), "new".to_owned(), false));
    let stats = fixture.broker.stats();
    assert_eq!((stats.retained, stats.retained_refused_total, stats.refusals.get(Refused::Retained)), (3, 1, 1));

    // All there is room for is taken; another host has its own.
    let mut other = fixture.client(OTHER, &format!("{OTHER}-1")).await;
    let presence = format!("muster/s/00/h/{OTHER}/presence");
    other.publish(&presence, true, "here").await;
    let mut late = fixture.console_named("console-late").await;
    late.subscribe("muster/s/#", QoS::AtLeastOnce).await;
    let mut found = BTreeSet::new();
    for _ in 0..4 {
        found.insert(late.text().await);
    }
    let expected = [(unit(0), "old"), (unit(1), "new"), (unit(2), "old"), (presence, "here")];
    assert_eq!(found, expected.into_iter().map(|(topic, text)| (topic, text.to_owned(), true)).collect());

    // Who cannot be told by an acknowledgement is told by the end of the connection, as with every refusal.
    host.tell(&unit(3), true, &none, "one too many").await;
    host.refused(0x97).await;
    let mut raw = fixture.raw(HOST).await;
    raw.connect(&format!("{HOST}-1"), 30).await;
    let publish = |topic: &str, packet_id: u8, text: &str| {
        let length = u8::try_from(topic.len()).unwrap();
        packet(0x33, &[&[0, length], topic.as_bytes(), &[0, packet_id], text.as_bytes()].concat())
    };
    let publishes = [publish(&unit(2), 1, "newer"), publish(&unit(3), 2, "too many"), publish(&unit(1), 3, "newest")];
    raw.send(&publishes.concat()).await;
    // Those that were taken are acknowledged; the last one may have come too late.
    let acknowledged = raw.rest().await;
    let (first, third) = ([0x40, 2, 0, 1], [0x40, 2, 0, 3]);
    assert!(acknowledged == first || acknowledged == [first, third].concat(), "{acknowledged:?}");
    assert_eq!(console.text().await, (unit(2), "newer".to_owned(), false));
}

/// A last will for which there is no room reaches who listens all the same.
#[tokio::test]
async fn a_will_that_cannot_be_kept_is_delivered() {
    let fixture = Fixture::with(BrokerLimits { retained_host_max: 1, ..BrokerLimits::default() }).await;
    let mut console = fixture.console().await;
    console.subscribe("muster/s/+/h/+/presence", QoS::AtLeastOnce).await;
    let presence = format!("muster/s/00/h/{HOST}/presence");
    let will = rumqttc::LastWill::new(&presence, "gone", QoS::AtLeastOnce, true);
    let mut host = fixture.mortal(HOST, &format!("{HOST}-1"), will).await;
    host.publish(&unit(1), true, "takes the only place").await;
    host.cut();
    assert_eq!(console.text().await, (presence, "gone".to_owned(), false));
    fixture.until("the end of the host", |stats| stats.retained == 1 && stats.connections == 1).await;
}

#[tokio::test]
async fn duplicate_filter_brings_retained_messages_once() {
    let fixture = Fixture::new().await;
    let mut host = fixture.client(HOST, &format!("{HOST}-1")).await;
    host.publish(&unit(1), true, "kept").await;
    let mut raw = fixture.raw("console-main").await;
    raw.connect("console-main", 30).await;
    let filter = [&[0, 8][..], b"muster/#", &[0]].concat();
    raw.send(&packet(0x82, &[&[0, 1][..], &filter, &filter, &filter].concat())).await;
    raw.expect(&[0x90, 5, 0, 1, 0, 0, 0]).await;
    let topic = unit(1);
    let length = u8::try_from(2 + topic.len() + 4).unwrap();
    raw.expect(&[&[0x31, length, 0, u8::try_from(topic.len()).unwrap()][..], topic.as_bytes(), b"kept"].concat()).await;
    raw.send(&[0xc0, 0]).await;
    raw.expect(&[0xd0, 0]).await;
}

#[tokio::test]
async fn filters_are_limited_by_packet_session_and_identity() {
    let limits = BrokerLimits { subscriptions_max: 3, subscriptions_per_identity_max: 5, ..BrokerLimits::default() };
    let fixture = Fixture::with(limits).await;
    let mut raw = fixture.raw("operator-anna").await;
    raw.connect("operator-anna-1", 30).await;
    let filter = |index: u8| [&[0, 8][..], b"muster/", &[b'a' + index], &[1]].concat();
    let all: Vec<_> = (0..5).flat_map(filter).collect();
    raw.send(&packet(0x82, &[&[0, 1], &all[..]].concat())).await;
    // MQTT 3.1.1 has one code for every refusal.
    raw.expect(&[0x90, 7, 0, 1, 1, 1, 1, 0x80, 0x80]).await;

    let mut five = Five::connect(&fixture, "operator-anna", &Connect::new("operator-anna-2")).await.0;
    assert_eq!(five.subscribe("muster/a", QOS_1).await, 1);
    assert_eq!(five.subscribe("muster/b", QOS_1).await, 1);
    assert_eq!(five.subscribe("muster/c", QOS_1).await, 0x97, "of the identity");
    assert_eq!(five.subscribe("muster/b", 0).await, 0, "the same one again");
    // Another identity has its own, and a place that is given back can be had.
    let mut other = Five::connect(&fixture, "operator-berta", &Connect::new("operator-berta")).await.0;
    assert_eq!(other.subscribe("muster/c", QOS_1).await, 1);
    raw.send(&[0xe0, 0]).await;
    raw.rest().await;
    fixture.until("the first one gone", |stats| stats.connections == 2 && stats.subscriptions == 3).await;
    assert_eq!(five.subscribe("muster/c", QOS_1).await, 1);
    assert_eq!(five.subscribe("muster/d", QOS_1).await, 0x97, "of the session");
    assert_eq!(fixture.broker.stats().refusals.get(Refused::Subscriptions), 4);
}

/// What is under way when a client goes is brought to the end when it comes back to its session.
#[tokio::test]
async fn resumed_session_gets_remaining_retained_messages() {
    const COUNT: usize = 400;
    let fixture = Fixture::new().await;
    let mut host = fixture.client(HOST, &format!("{HOST}-1")).await;
    let padding = "x".repeat(1000);
    for index in 0..COUNT {
        host.publish(&unit(index), true, &format!("{index} {padding}")).await;
    }
    let few = Properties::default().short(property::RECEIVE_MAX, 10);
    let connect = Connect::staying("console-main", 600).with(few);
    let (mut five, present) = Five::connect(&fixture, "console-main", &connect).await;
    assert!(!present);
    assert_eq!(five.subscribe("muster/s/+/h/+/unit/#", QOS_1).await, 1);
    let mut found = BTreeSet::new();
    let number = |text: &str| text.split(' ').next().unwrap().parse::<usize>().unwrap();
    for _ in 0..COUNT / 4 {
        found.insert(number(&five.take().await));
    }
    five.disconnect().await;
    let (mut five, present) = Five::connect(&fixture, "console-main", &connect).await;
    assert!(present);
    while found.len() < COUNT {
        found.insert(number(&five.take().await));
    }
    host.publish(&unit(0), false, "live").await;
    assert_eq!(five.take().await, "live");
}

/// Who asks and answers in one breath hears what there was before the own answer took its place.
#[tokio::test]
async fn retained_message_comes_before_the_one_that_replaces_it() {
    let fixture = Fixture::new().await;
    let topic = format!("muster/s/00/h/{HOST}/presence");
    let name = [&u16::try_from(topic.len()).unwrap().to_be_bytes()[..], topic.as_bytes()].concat();
    let retain = |payload: &str| packet(0x31, &[&name[..], payload.as_bytes()].concat());
    for round in 0..20 {
        let (old, new) = (format!("old {round:02}"), format!("new {round:02}"));
        let mut raw = fixture.raw(HOST).await;
        raw.connect(&format!("{HOST}-{round}"), 30).await;
        raw.send(&[retain(&old), subscribe(1, topic.as_bytes(), 0), retain(&new)].concat()).await;
        raw.expect(&[0x90, 3, 0, 1, 0]).await;
        raw.expect(&retain(&old)).await;
        raw.expect(&packet(0x30, &[&name[..], new.as_bytes()].concat())).await;
    }
}

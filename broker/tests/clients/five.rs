//! What MQTT 5 adds.

use std::time::Duration;

use crate::{
    peer::{Connect, Kind, Message, Properties, Stage, Subscribe},
    rig::{
        HOST, OTHER,
        wire::{ALIAS, Publish, Version},
    },
    scenarios::{QUIET, event, raw_console, raw_host, unit},
};

/// One of everything that is passed on.
fn everything() -> Properties {
    Properties {
        content_type: Some("application/json; charset=utf-8".to_owned()),
        response_topic: Some(format!("muster/s/00/h/{HOST}/outcome")),
        correlation: Some("a1-b2".to_owned()),
        user: vec![("name".to_owned(), "value".to_owned()), ("größe".to_owned(), String::new())],
        ..Properties::default()
    }
}

pub(crate) async fn properties(kind: Kind) {
    let stage = Stage::new().await;
    let mut reader = stage.console(kind).await;
    reader.subscribe(Subscribe::new("muster/s/+/h/+/unit/#", 1)).await;
    let mut writer = stage.host(kind).await;
    for qos in [0, 1] {
        let message = Message { properties: everything(), ..Message::new(&unit("a"), qos, "x") };
        writer.publish(message.clone().retained()).await;
        assert_eq!(reader.message().await, message);
        let mut late = stage.connect(kind, "operator-late", Connect::new("operator-late")).await;
        late.subscribe(Subscribe::new(&unit("a"), 1)).await;
        assert_eq!(late.message().await, message.retained());
    }
}

pub(crate) async fn properties_of_a_will(kind: Kind) {
    let stage = Stage::new().await;
    let presence = format!("muster/s/00/h/{HOST}/presence");
    let mut reader = stage.console(kind).await;
    reader.subscribe(Subscribe::new(&presence, 1)).await;
    let will = Message { properties: everything(), ..Message::new(&presence, 1, "cut off") };
    let connect = Connect { will: Some(will.clone()), ..Connect::new(&format!("{HOST}-1")) };
    stage.connect(kind, HOST, connect).await.cut();
    assert_eq!(reader.message().await, will);
}

pub(crate) async fn expiry(kind: Kind) {
    let stage = Stage::new().await;
    let mut writer = stage.host(kind).await;
    let expiring = |name: &str, expiry_s| Message {
        properties: Properties { expiry_s: Some(expiry_s), ..Properties::default() },
        ..Message::new(&unit(name), 1, name).retained()
    };
    writer.publish(expiring("brief", 1)).await;
    writer.publish(expiring("long", 1_000)).await;
    // The first is to be over, and the second to have less left than it had.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let mut reader = stage.console(kind).await;
    reader.subscribe(Subscribe::new("muster/s/+/h/+/unit/#", 1)).await;
    let message = reader.message().await;
    let left_s = message.properties.expiry_s.unwrap();
    assert!(message.payload == "long" && (900..1_000).contains(&left_s), "{message:?}");
    assert_eq!(reader.message_within(QUIET).await, None);
}

pub(crate) async fn refused_publish(kind: Kind) {
    let stage = Stage::new().await;
    let mut reader = raw_console(&stage).await;
    reader.subscribe("muster/s/+/h/+/event", 1).await;
    let mut host = stage.host(kind).await;
    assert_eq!(host.publish(Message::new(&format!("muster/s/00/h/{OTHER}/event"), 1, "lies")).await, 0x87);
    // It lost nothing else.
    assert_eq!(host.publish(Message::new(&event(), 1, "truth")).await, 0);
    assert_eq!(reader.message().await.text(), "truth");
}

/// The reason for which the broker ended a connection, as far as its client tells: paho reads one only if something
/// follows it, which nothing has to.
fn as_told_by(kind: Kind, reason: u8) -> Option<u8> {
    Some(if matches!(kind, Kind::Paho(_)) { 0 } else { reason })
}

pub(crate) async fn told_why(kind: Kind) {
    let stage = Stage::new().await;
    let mut first = stage.console(kind).await;
    let _second = stage.console(kind).await;
    assert_eq!(first.end().await, as_told_by(kind, 0x8e));
    let mut third = stage.host(kind).await;
    let ended = tokio::spawn(async move { third.end().await });
    stage.ours.broker.stop().await;
    assert_eq!(ended.await.unwrap(), as_told_by(kind, 0x8b));
}

pub(crate) async fn own_messages(kind: Kind) {
    let stage = Stage::new().await;
    let mut console = stage.console(kind).await;
    let cmd = |host| format!("muster/s/00/h/{host}/cmd");
    console.subscribe(Subscribe { no_local: true, ..Subscribe::new(&cmd(HOST), 1) }).await;
    console.subscribe(Subscribe::new(&cmd(OTHER), 1)).await;
    console.publish(Message::new(&cmd(HOST), 1, "not for me")).await;
    console.publish(Message::new(&cmd(OTHER), 1, "for me too")).await;
    raw_console(&stage).await.publish(Publish::new(&cmd(HOST), 1, "from another")).await;
    assert_eq!(console.message().await.payload, "for me too");
    assert_eq!(console.message().await.payload, "from another");
}

pub(crate) async fn retain_handling(kind: Kind) {
    let stage = Stage::new().await;
    raw_host(&stage).await.publish(Publish::new(&unit("a"), 1, "kept").retained()).await;
    for (handling, times) in [(0, [true, true]), (1, [true, false]), (2, [false, false])] {
        let mut client = stage.console(kind).await;
        for comes in times {
            client.subscribe(Subscribe { handling, ..Subscribe::new(&unit("a"), 1) }).await;
            let message = client.message_within(if comes { crate::rig::PATIENCE } else { QUIET }).await;
            assert_eq!(message.is_some(), comes, "handling {handling}");
        }
        client.disconnect().await;
    }
}

pub(crate) async fn as_published(kind: Kind) {
    let stage = Stage::new().await;
    let mut client = stage.console(kind).await;
    for (name, as_published) in [("a", true), ("b", false)] {
        client.subscribe(Subscribe { as_published, ..Subscribe::new(&unit(name), 1) }).await;
    }
    let mut writer = raw_host(&stage).await;
    for (name, retain, shown) in [("a", true, true), ("a", false, false), ("b", true, false), ("b", false, false)] {
        let publish = Publish::new(&unit(name), 1, "x");
        writer.publish(Publish { retain, ..publish }).await;
        assert_eq!(client.message().await.retain, shown, "{name}, published with {retain}");
    }
}

pub(crate) async fn subscription_ids(kind: Kind) {
    let stage = Stage::new().await;
    let mut client = stage.console(kind).await;
    client.subscribe(Subscribe { id: Some(7), ..Subscribe::new(&unit("a"), 1) }).await;
    client.subscribe(Subscribe { id: Some(200_000), ..Subscribe::new(&unit("b"), 1) }).await;
    client.subscribe(Subscribe::new(&unit("c"), 1)).await;
    let mut writer = raw_host(&stage).await;
    for (name, ids) in [("a", &[7][..]), ("b", &[200_000]), ("c", &[])] {
        writer.publish(Publish::new(&unit(name), 1, "x")).await;
        assert_eq!(client.message().await.properties.subscription_ids, ids);
    }
    // Subscribed to again, it has another one.
    client.subscribe(Subscribe { id: Some(8), ..Subscribe::new(&unit("a"), 1) }).await;
    writer.publish(Publish::new(&unit("a"), 1, "x")).await;
    assert_eq!(client.message().await.properties.subscription_ids, [8]);
}

pub(crate) async fn alias(kind: Kind) {
    let stage = Stage::new().await;
    let mut reader = raw_console(&stage).await;
    reader.subscribe("muster/s/+/h/+/unit/#", 1).await;
    let mut writer = stage.host(kind).await;
    let aliased = |topic: &str, alias| Message {
        properties: Properties { alias: Some(alias), ..Properties::default() },
        ..Message::new(topic, 1, "x")
    };
    let (a, b) = (unit("a"), unit("b"));
    for (topic, alias, expected) in [
        (a.as_str(), 1, &a),
        ("", 1, &a),
        (b.as_str(), 2, &b),
        ("", 1, &a),
        ("", 2, &b),
        (b.as_str(), 1, &b),
        ("", 1, &b),
    ] {
        assert_eq!(writer.publish(aliased(topic, alias)).await, 0);
        let message = reader.message().await;
        assert_eq!((&message.topic, message.properties.get(ALIAS)), (expected, None));
    }
}

/// A client that knows aliases, of a broker that may use them.
pub(crate) async fn alias_of_the_broker(kind: Kind) {
    assert_eq!(kind.version(), Version::V5);
    let stage = Stage::new().await;
    let connect = Connect { alias_max: 10, ..Connect::new("console-main") };
    let mut reader = stage.connect(kind, "console-main", connect).await;
    reader.subscribe(Subscribe::new("muster/s/+/h/+/unit/#", 1)).await;
    let mut writer = raw_host(&stage).await;
    for name in ["a", "b", "a", "c", "b", "a"] {
        writer.publish(Publish::new(&unit(name), 1, name)).await;
        let message = reader.message().await;
        assert_eq!((message.topic, message.payload), (unit(name), name.to_owned()));
    }
}

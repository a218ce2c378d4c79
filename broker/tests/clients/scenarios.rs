//! What holds for every client, with MQTT 3.1.1 and 5.

use std::time::Duration;

use crate::{
    peer::{Connect, Kind, Message, Stage, Subscribe},
    rig::{
        HOST, OTHER,
        client::Mqtt,
        wire::{self, Publish, Version},
    },
};

/// How long nothing comes where nothing should.
pub(crate) const QUIET: Duration = Duration::from_millis(500);

pub(crate) fn event() -> String {
    format!("muster/s/00/h/{HOST}/event")
}

pub(crate) fn unit(name: &str) -> String {
    format!("muster/s/00/h/{HOST}/unit/default/{name}")
}

/// The other side, in raw MQTT 5.
pub(crate) async fn raw_console(stage: &Stage) -> Mqtt {
    let connect = wire::Connect::new("console-raw");
    Mqtt::connect(stage.place(), Version::V5, "console-raw", &connect).await
}

pub(crate) async fn raw_host(stage: &Stage) -> Mqtt {
    let connect = wire::Connect::new(&format!("{HOST}-raw"));
    Mqtt::connect(stage.place(), Version::V5, HOST, &connect).await
}

pub(crate) async fn every_quality(kind: Kind) {
    let stage = Stage::new().await;
    let mut reader = stage.console(kind).await;
    let mut other_reader = raw_console(&stage).await;
    let mut writer = stage.host(kind).await;
    let mut other_writer = raw_host(&stage).await;
    for granted in [0, 1] {
        assert_eq!(reader.subscribe(Subscribe::new("muster/s/+/h/+/event", granted)).await, [granted]);
        other_reader.subscribe(&event(), granted).await;
        for (qos, payload) in [(0, "ä nought"), (1, "one"), (1, "")] {
            writer.publish(Message::new(&event(), qos, payload)).await;
            let message = Message::new(&event(), qos.min(granted), payload);
            assert_eq!(reader.message().await, message);
            assert_eq!(other_reader.message().await.text(), payload);
            other_writer.publish(Publish::new(&event(), qos, payload)).await;
            assert_eq!(reader.message().await, message);
            assert_eq!(other_reader.message().await.qos, qos.min(granted));
        }
    }
    // As large as the contract's largest.
    let large = "x".repeat(65_536);
    writer.publish(Message::new(&event(), 1, &large)).await;
    assert_eq!(reader.message().await.payload, large);
    reader.disconnect().await;
    writer.disconnect().await;
}

pub(crate) async fn retained(kind: Kind) {
    let stage = Stage::new().await;
    let mut writer = stage.host(kind).await;
    for name in ["a", "b", "c"] {
        writer.publish(Message::new(&unit(name), 1, name).retained()).await;
    }
    writer.publish(Message::new(&unit("b"), 1, "").retained()).await;
    let mut reader = stage.console(kind).await;
    reader.subscribe(Subscribe::new("muster/s/+/h/+/unit/#", 1)).await;
    let mut found = [reader.message().await, reader.message().await];
    found.sort_by(|one, other| one.topic.cmp(&other.topic));
    assert_eq!(found, ["a", "c"].map(|name| Message::new(&unit(name), 1, name).retained()));
    // What comes now is not retained any more.
    writer.publish(Message::new(&unit("a"), 0, "new").retained()).await;
    assert_eq!(reader.message().await, Message::new(&unit("a"), 0, "new"));
}

pub(crate) async fn last_will(kind: Kind) {
    let stage = Stage::new().await;
    let presence = format!("muster/s/00/h/{HOST}/presence");
    let mut reader = raw_console(&stage).await;
    reader.subscribe(&presence, 1).await;
    let will = |payload| Some(Message::new(&presence, 1, payload).retained());
    let connect = |payload| Connect { will: will(payload), ..Connect::new(&format!("{HOST}-1")) };
    stage.connect(kind, HOST, connect("not this one")).await.disconnect().await;
    stage.connect(kind, HOST, connect("cut off")).await.cut();
    assert_eq!(reader.message().await.text(), "cut off");
    // The client that reads it late is the one under test.
    let mut late = stage.console(kind).await;
    late.subscribe(Subscribe::new("muster/s/+/h/+/presence", 1)).await;
    assert_eq!(late.message().await, Message::new(&presence, 1, "cut off").retained());
}

pub(crate) async fn resumed(kind: Kind) {
    let stage = Stage::new().await;
    let connect = || Connect::persistent("operator-anna");
    let (mut client, accepted) = stage.try_connect(kind, "operator-anna", connect()).await;
    assert_eq!((accepted.code, accepted.session_present), (0, false));
    client.subscribe(Subscribe::new(&event(), 1)).await;
    client.cut();
    let mut writer = raw_host(&stage).await;
    for number in 0..100 {
        writer.publish(Publish::new(&event(), 1, number.to_string())).await;
    }
    let (mut client, accepted) = stage.try_connect(kind, "operator-anna", connect()).await;
    assert_eq!((accepted.code, accepted.session_present), (0, true));
    for number in 0..100 {
        assert_eq!(client.message().await.payload, number.to_string());
    }
    client.disconnect().await;
    // Who wants none gets none, and ends the one that there was.
    let (client, accepted) = stage.try_connect(kind, "operator-anna", Connect::new("operator-anna")).await;
    assert_eq!((accepted.code, accepted.session_present), (0, false));
    client.disconnect().await;
    let (_client, accepted) = stage.try_connect(kind, "operator-anna", connect()).await;
    assert!(!accepted.session_present);
}

pub(crate) async fn refused_client_id(kind: Kind) {
    let stage = Stage::new().await;
    let (_client, accepted) = stage.try_connect(kind, HOST, Connect::new(&format!("{OTHER}-1"))).await;
    assert_eq!(accepted.code, if kind.version() == Version::V5 { 0x85 } else { 2 });
}

pub(crate) async fn refused_filter(kind: Kind) {
    let stage = Stage::new().await;
    let mut host = stage.host(kind).await;
    let five = kind.version() == Version::V5;
    for (filter, reason) in [(format!("muster/s/00/h/{OTHER}/cmd"), 0x87), ("muster/#".to_owned(), 0x87)] {
        let reasons = host.subscribe(Subscribe::new(&filter, 1)).await;
        assert_eq!(reasons, [if five { reason } else { 0x80 }], "{filter}");
    }
    // It lost nothing else.
    assert_eq!(host.subscribe(Subscribe::new("muster/s/00/cmd/all", 1)).await, [1]);
    raw_console(&stage).await.publish(Publish::new("muster/s/00/cmd/all", 1, "go")).await;
    assert_eq!(host.message().await.payload, "go");
}

pub(crate) async fn unsubscribed(kind: Kind) {
    let stage = Stage::new().await;
    let mut client = stage.console(kind).await;
    client.subscribe(Subscribe::new(&event(), 1)).await;
    client.subscribe(Subscribe::new(&unit("a"), 1)).await;
    let five = kind.version() == Version::V5;
    assert_eq!(client.unsubscribe(&event()).await, if five { &[0][..] } else { &[] });
    assert_eq!(client.unsubscribe(&event()).await, if five { &[0x11][..] } else { &[] });
    let mut writer = raw_host(&stage).await;
    writer.publish(Publish::new(&event(), 1, "unwanted")).await;
    writer.publish(Publish::new(&unit("a"), 1, "wanted")).await;
    assert_eq!(client.message().await.payload, "wanted");
    assert_eq!(client.message_within(QUIET).await, None);
}

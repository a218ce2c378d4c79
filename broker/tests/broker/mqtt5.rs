//! Tests of MQTT 5's additions with a client that speaks it byte by byte.

use std::time::Duration;

use muster_broker::BrokerLimits;

use crate::{
    five::{
        AS_PUBLISHED, Answer, Connect, Five, Message, NO_LOCAL, Properties, QOS_1, RETAINED_IF_NEW, RETAINED_NEVER,
        property::*,
    },
    fixture::{Fixture, HOST, patiently},
};

const CMD: &str = "muster/s/00/h/0e2c1a4e-6a61-4a1c-9d0f-0d6d5a8f1f52/cmd";
const EVENT: &str = "muster/s/00/h/0e2c1a4e-6a61-4a1c-9d0f-0d6d5a8f1f52/event";
const PRESENCE: &str = "muster/s/00/h/0e2c1a4e-6a61-4a1c-9d0f-0d6d5a8f1f52/presence";

fn none() -> Properties {
    Properties::default()
}

fn host() -> String {
    format!("{HOST}-1")
}

async fn publisher(fixture: &Fixture) -> Five {
    Five::connect(fixture, HOST, &Connect::new(&host())).await.0
}

/// Waits until a connection is gone, so that what follows finds its session asleep.
async fn gone(fixture: &Fixture, connections: u64) {
    fixture.until("the end of a connection", |stats| stats.connections == connections).await;
}

/// The value of a property of four bytes.
fn long(properties: &[u8], id: u8) -> Option<u32> {
    let place = properties.iter().position(|byte| *byte == id)?;
    Some(u32::from_be_bytes(properties[place + 1..place + 5].try_into().unwrap()))
}

#[tokio::test]
async fn connack_lists_capabilities() {
    let limits =
        BrokerLimits { keep_alive_max_s: 500, inflight_max: 7, session_expiry_max_s: 9, ..BrokerLimits::default() };
    let fixture = Fixture::with(limits).await;
    let connect = Connect::staying("", 100).keep_alive(0);
    let (_five, answer) = Five::try_connect(&fixture, "operator-anna", &connect).await;
    let Answer::ConnAck { present: false, reason: 0, properties } = answer else { panic!("{answer:?}") };
    let expected = [
        &[SESSION_EXPIRY, 0, 0, 0, 9][..],
        &[RECEIVE_MAX, 0, 7],
        &[MAX_QOS, 1],
        &[PACKET_MAX, 0, 4, 0, 0],
        &[ALIAS_MAX, 0, 16],
        &[SHARED_AVAILABLE, 0],
        &[SERVER_KEEP_ALIVE, 1, 0xf4],
    ];
    for property in expected {
        assert!(properties.windows(property.len()).any(|window| window == property), "{property:?} in {properties:?}");
    }
    let place = properties.iter().position(|byte| *byte == ASSIGNED_CLIENT_ID).unwrap();
    assert!(properties[place + 3..].starts_with(b"operator-anna-"));
    // Who asks for what it gets is told nothing of it.
    let connect = Connect::staying("operator-anna", 5).keep_alive(60);
    let (_five, answer) = Five::try_connect(&fixture, "operator-anna", &connect).await;
    let Answer::ConnAck { properties, .. } = answer else { panic!("{answer:?}") };
    assert_eq!(properties, [33, 0, 7, 39, 0, 4, 0, 0, 34, 0, 16, 36, 1, 37, 1, 40, 1, 41, 1, 42, 0]);
}

#[tokio::test]
async fn refused_connect_has_a_reason() {
    let fixture = Fixture::with(BrokerLimits { connections_per_identity_max: 1, ..BrokerLimits::default() }).await;
    let _first = Five::console(&fixture, "console-main").await;
    let elsewhere = Connect::new(&host()).will(none(), "muster/s/00/h/other/presence", "x");
    for (common_name, connect, reason) in [
        ("console-main", Connect::new("console-main-2"), 0x97),
        ("console-main", Connect::new("console-other"), 0x85),
        (HOST, Connect::new(""), 0x85),
        (HOST, elsewhere, 0x87),
        (HOST, Connect::new(&host()).will(none(), "muster/#", "x"), 0x90),
        (HOST, Connect::new(&host()).with(none().text(AUTH_METHOD, "x")), 0x8c),
        ("root", Connect::new("root"), 0x87),
    ] {
        let (_, answer) = Five::try_connect(&fixture, common_name, &connect).await;
        assert!(
            matches!(answer, Answer::ConnAck { reason: found, .. } if found == reason),
            "{answer:?} not {reason:#x}"
        );
    }
}

#[tokio::test]
async fn session_is_resumed() {
    let fixture = Fixture::new().await;
    let console = Connect::staying("console-main", 100);
    let (mut five, present) = Five::connect(&fixture, "console-main", &console).await;
    assert!(!present);
    assert_eq!(five.subscribe(EVENT, QOS_1).await, 1);
    assert_eq!(five.subscribe(PRESENCE, QOS_1).await, 1);
    five.disconnect().await;
    gone(&fixture, 0).await;
    let mut host = publisher(&fixture).await;
    for text in ["1", "2"] {
        assert_eq!(host.publish(EVENT, false, &none(), text).await, 0);
    }
    host.tell(EVENT, false, &none(), "of QoS 0: nobody is there").await;
    assert_eq!(host.publish(EVENT, false, &none(), "3").await, 0);
    assert_eq!(fixture.broker.stats().sessions_asleep, 1);

    let (mut five, present) = Five::connect(&fixture, "console-main", &console).await;
    assert!(present);
    // Two of three are acknowledged; the third is not.
    assert_eq!([five.take().await, five.take().await], ["1", "2"]);
    let third = five.message().await;
    assert!(!third.dup && third.payload == "3");
    // An unsubscribe counts on a session that was resumed.
    assert_eq!((five.unsubscribe(PRESENCE).await, five.unsubscribe(PRESENCE).await), (0, 0x11));
    assert_eq!(host.publish(PRESENCE, false, &none(), "unheard").await, 0);
    drop(five);
    gone(&fixture, 1).await;
    assert_eq!(host.publish(EVENT, false, &none(), "4").await, 0);

    let (mut five, present) = Five::connect(&fixture, "console-main", &console).await;
    assert!(present);
    assert_eq!(five.message().await, Message { dup: true, ..third });
    assert_eq!(five.take().await, "4");
    five.disconnect().await;
    // Clean start: as if there had been nothing.
    let (five, present) = Five::connect(&fixture, "console-main", &console.clone().clean()).await;
    assert!(!present);
    assert_eq!(fixture.broker.stats().subscriptions, 0);
    // It can still say at its end that it does not come back.
    five.disconnect_with(0, &none().long(SESSION_EXPIRY, 0)).await;
    gone(&fixture, 1).await;
    assert_eq!(fixture.broker.stats().sessions_asleep, 0);
}

#[tokio::test]
async fn session_expires() {
    let fixture = Fixture::new().await;
    let connect = Connect::staying("console-main", 1);
    let (mut five, _) = Five::connect(&fixture, "console-main", &connect).await;
    five.subscribe("muster/#", QOS_1).await;
    five.disconnect().await;
    fixture.until("the session asleep", |stats| stats.sessions_asleep == 1).await;
    fixture.until("its end", |stats| (stats.sessions_asleep, stats.subscriptions) == (0, 0)).await;
    assert!(!Five::connect(&fixture, "console-main", &connect).await.1);
}

#[tokio::test]
async fn overfull_session_is_dropped() {
    let fixture = Fixture::with(BrokerLimits { queue_max_bytes: 1000, ..BrokerLimits::default() }).await;
    let connect = Connect::staying("console-main", 100);
    let (mut five, _) = Five::connect(&fixture, "console-main", &connect).await;
    five.subscribe(EVENT, QOS_1).await;
    five.disconnect().await;
    gone(&fixture, 0).await;
    let mut host = publisher(&fixture).await;
    for _ in 0..20 {
        assert_eq!(host.publish(EVENT, false, &none(), "x").await, 0);
    }
    let (_five, present) = Five::connect(&fixture, "console-main", &connect).await;
    assert!(!present, "its client would not know that it missed something");
    assert_eq!(fixture.broker.stats().subscriptions, 0);
}

#[tokio::test]
async fn a_will_waits_for_its_delay_or_the_end_of_the_session() {
    let fixture = Fixture::new().await;
    let mut console = Five::console(&fixture, "console-main").await;
    console.subscribe(PRESENCE, QOS_1).await;
    let delayed = |expiry_s, delay_s, text: &str| {
        Connect::staying(&host(), expiry_s).will(none().long(WILL_DELAY, delay_s), PRESENCE, text)
    };
    // It comes back in time: no will.
    drop(Five::connect(&fixture, HOST, &delayed(100, 100, "early")).await);
    gone(&fixture, 1).await;
    // It does not: the will comes after its delay.
    drop(Five::connect(&fixture, HOST, &delayed(100, 1, "in time")).await);
    assert_eq!(console.take().await, "in time");
    // The session ends before the delay does.
    drop(Five::connect(&fixture, HOST, &delayed(1, 100, "with its session")).await);
    assert_eq!(console.take().await, "with its session");
    // Or has ended with the connection.
    drop(Five::connect(&fixture, HOST, &delayed(0, 100, "at once")).await);
    assert_eq!(console.take().await, "at once");
    // Or is thrown away by a clean start.
    drop(Five::connect(&fixture, HOST, &delayed(100, 100, "forgotten")).await);
    gone(&fixture, 1).await;
    let (five, _) = Five::connect(&fixture, HOST, &Connect::new(&host())).await;
    assert_eq!(console.take().await, "forgotten");
    five.disconnect().await;
    // A DISCONNECT that asks for the will gets it; another does not.
    let will = Connect::new(&host()).will(none(), PRESENCE, "asked for");
    Five::connect(&fixture, HOST, &will).await.0.disconnect().await;
    Five::connect(&fixture, HOST, &will).await.0.disconnect_with(4, &none()).await;
    assert_eq!(console.take().await, "asked for");
}

#[tokio::test]
async fn queued_message_expires() {
    let fixture = Fixture::new().await;
    let connect = Connect::staying("console-main", 100);
    let (mut five, _) = Five::connect(&fixture, "console-main", &connect).await;
    five.subscribe(EVENT, QOS_1).await;
    five.disconnect().await;
    gone(&fixture, 0).await;
    let mut host = publisher(&fixture).await;
    for (expiry_s, text) in [(1, "short"), (1000, "long")] {
        assert_eq!(host.publish(EVENT, false, &none().long(EXPIRY, expiry_s), text).await, 0);
    }
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let (mut five, _) = Five::connect(&fixture, "console-main", &connect).await;
    let message = five.message().await;
    assert_eq!(message.payload, "long");
    // It is passed on with the time that is left.
    let left = long(&message.properties, EXPIRY).unwrap();
    assert!((900..1000).contains(&left), "{left}");
    assert_eq!(fixture.broker.stats().expired_total, 1);
}

#[tokio::test]
async fn a_retained_message_expires() {
    let fixture = Fixture::new().await;
    let mut host = publisher(&fixture).await;
    let unit = format!("muster/s/00/h/{HOST}/unit/default/a");
    host.publish(&unit, true, &none().long(EXPIRY, 1), "short").await;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let mut console = Five::console(&fixture, "console-main").await;
    console.subscribe("muster/#", QOS_1).await;
    host.publish(EVENT, false, &none(), "fence").await;
    assert_eq!(console.take().await, "fence");
}

#[tokio::test]
async fn receive_maximum_and_packet_size_are_kept() {
    let fixture = Fixture::new().await;
    let connect = Connect::new("console-main").with(none().short(RECEIVE_MAX, 2).long(PACKET_MAX, 200));
    let (mut five, _) = Five::connect(&fixture, "console-main", &connect).await;
    five.subscribe(EVENT, QOS_1).await;
    let mut host = publisher(&fixture).await;
    host.publish(EVENT, false, &none(), &"x".repeat(200)).await;
    for text in ["1", "2", "3"] {
        host.publish(EVENT, false, &none(), text).await;
    }
    let (first, second) = (five.message().await, five.message().await);
    assert_eq!((&*first.payload, &*second.payload), ("1", "2"));
    // QoS 1 waits for its turn, a ping does not wait for it.
    five.send(0xc0, &[]).await;
    assert_eq!(five.answer().await, Answer::Pong);
    five.acknowledge(second.packet_id.unwrap()).await;
    assert_eq!(five.take().await, "3");
    assert_eq!(fixture.broker.stats().too_large_total, 1);
}

#[tokio::test]
async fn topic_alias_is_resolved_and_not_forwarded() {
    let fixture = Fixture::new().await;
    let mut console = Five::console(&fixture, "console-main").await;
    console.subscribe("muster/s/+/h/+/#", QOS_1).await;
    let mut host = publisher(&fixture).await;
    host.publish(EVENT, false, &none().short(ALIAS, 1), "1").await;
    host.publish(PRESENCE, false, &none().short(ALIAS, 2), "2").await;
    host.publish("", false, &none().short(ALIAS, 1), "3").await;
    host.publish("", false, &none().short(ALIAS, 2), "4").await;
    for (topic, payload) in [(EVENT, "1"), (PRESENCE, "2"), (EVENT, "3"), (PRESENCE, "4")] {
        let message = console.message().await;
        assert_eq!((&*message.topic, &*message.payload, message.properties.len()), (topic, payload, 0));
    }
    for alias in [3, 17] {
        let mut host = publisher(&fixture).await;
        host.tell("", false, &none().short(ALIAS, alias), "x").await;
        host.refused(0x94).await;
    }
    let mut host = publisher(&fixture).await;
    host.tell("", false, &none(), "neither topic nor alias").await;
    host.refused(0x82).await;
}

#[tokio::test]
async fn subscription_options_are_applied() {
    let fixture = Fixture::new().await;
    let mut host = publisher(&fixture).await;
    let mut console = Five::console(&fixture, "console-main").await;
    // No local.
    console.subscribe(CMD, QOS_1 | NO_LOCAL).await;
    assert_eq!(console.publish(CMD, false, &none(), "its own").await, 0);
    let mut other = Five::console(&fixture, "console-other").await;
    other.publish(CMD, false, &none(), "another's").await;
    assert_eq!(console.take().await, "another's");
    // Retain as published.
    for (options, retain) in [(QOS_1, false), (QOS_1 | AS_PUBLISHED, true)] {
        console.subscribe(PRESENCE, options | RETAINED_NEVER).await;
        host.publish(PRESENCE, true, &none(), "kept").await;
        let message = console.message().await;
        assert_eq!((&*message.payload, message.retain), ("kept", retain));
    }
    // Retain handling: always, if it is new, never.
    console.unsubscribe(PRESENCE).await;
    let fence = async |console: &mut Five, host: &mut Five| {
        host.publish(PRESENCE, false, &none(), "fence").await;
        let mut found = 0;
        while console.take().await == "kept" {
            found += 1;
        }
        found
    };
    for (options, expected) in [(RETAINED_NEVER, 0), (RETAINED_IF_NEW, 0), (0, 1), (0, 1)] {
        console.subscribe(PRESENCE, QOS_1 | options).await;
        assert_eq!(fence(&mut console, &mut host).await, expected, "{options:#x}");
    }
    console.unsubscribe(PRESENCE).await;
    console.subscribe(PRESENCE, QOS_1 | RETAINED_IF_NEW).await;
    assert_eq!(fence(&mut console, &mut host).await, 1);
}

#[tokio::test]
async fn message_has_subscription_identifier() {
    let fixture = Fixture::new().await;
    let mut console = Five::console(&fixture, "console-main").await;
    for (filter, id) in [("muster/s/+/h/+/event", 5), (EVENT, 200_000)] {
        // A variable byte integer of one byte, or three.
        let properties =
            if id < 128 { none().byte(SUBSCRIPTION_ID, 5) } else { none().three(SUBSCRIPTION_ID, [0xc0, 0x9a, 0x0c]) };
        assert_eq!(console.subscribe_with(filter, QOS_1, &properties).await, 1);
    }
    let mut host = publisher(&fixture).await;
    host.publish(EVENT, false, &none(), "x").await;
    // One copy for each, with its own number.
    let mut found = [console.message().await.properties, console.message().await.properties];
    found.sort();
    assert_eq!(found, [vec![SUBSCRIPTION_ID, 5], vec![SUBSCRIPTION_ID, 0xc0, 0x9a, 0x0c]]);
}

#[tokio::test]
async fn properties_are_forwarded_to_mqtt_5_clients_only() {
    let fixture = Fixture::new().await;
    let mut console = Five::console(&fixture, "console-main").await;
    console.subscribe("muster/#", QOS_1).await;
    let mut old = fixture.console_named("console-old").await;
    old.subscribe("muster/#", rumqttc::QoS::AtLeastOnce).await;
    let mut host = publisher(&fixture).await;
    let properties = none().text(CONTENT_TYPE, "text/plain").user("a", "1").user("a", "2");
    for retain in [false, true] {
        host.publish(EVENT, retain, &properties, "x").await;
        assert_eq!(console.message().await.properties, properties.bytes());
        assert_eq!(old.text().await.1, "x");
    }
    let mut late = Five::console(&fixture, "console-late").await;
    late.subscribe("muster/#", QOS_1).await;
    assert_eq!(late.message().await.properties, properties.bytes());
    let mut old = fixture.console_named("console-old-too").await;
    old.subscribe("muster/#", rumqttc::QoS::AtLeastOnce).await;
    assert_eq!(old.text().await.1, "x");
}

#[tokio::test]
async fn refusals_have_reason_codes() {
    let fixture = Fixture::with(BrokerLimits { subscriptions_max: 2, ..BrokerLimits::default() }).await;
    let mut host = publisher(&fixture).await;
    for (filter, reason) in [
        ("muster/#", 0x87),
        ("$SYS/#", 0x87),
        ("$share/group/muster/s/00/cmd/all", 0x9e),
        ("muster/a#b", 0x8f),
        ("muster/s/00/cmd/all", 1),
        ("muster/s/00/cmd/group/+", 1),
        (CMD, 0x97),
        ("muster/s/00/cmd/all", 1),
    ] {
        assert_eq!(host.subscribe(filter, QOS_1).await, reason, "{filter}");
    }
    // QoS 2 is granted as 1.
    assert_eq!(host.subscribe("muster/s/00/cmd/all", 2).await, 1);
    // A refusal of QoS 1 leaves the connection as it is.
    assert_eq!(host.publish(CMD, false, &none(), "x").await, 0x87);
    assert_eq!(host.publish("muster/s/+/h/+/event", false, &none(), "x").await, 0x90);
    assert_eq!(host.publish(EVENT, false, &none(), "x").await, 0);
    // Of QoS 0 nobody would be told otherwise.
    host.tell(CMD, false, &none(), "x").await;
    host.refused(0x87).await;
    for (first, body, reason) in [
        (0x34, &b"\0\x01a\0\x01\0"[..], 0x9b),
        (0x36, b"\0\x01a\0\x01\0", 0x81),
        (0xf0, b"\x18\0", 0x82),
        (0x10, b"\0\x04MQTT\x05\x02\0\x1e\0\0\0", 0x82),
        (0xe0, b"\0\x05\x11\0\0\0\x09", 0x82),
    ] {
        let mut host = publisher(&fixture).await;
        host.send(first, body).await;
        host.refused(reason).await;
    }
    assert_eq!(fixture.broker.stats().router_deaths_total, 0);
}

#[tokio::test]
async fn disconnect_has_reason_code() {
    let fixture = Fixture::new().await;
    let first = publisher(&fixture).await;
    let second = Five::connect(&fixture, HOST, &Connect::new(&host()).keep_alive(1)).await.0;
    first.refused(0x8e).await;
    second.refused(0x8d).await;
    let third = publisher(&fixture).await;
    let Fixture { broker, authority: _authority } = fixture;
    let (_, ()) = tokio::join!(patiently("the stop", broker.stop()), third.refused(0x8b));
}

#[tokio::test]
async fn slow_client_gets_a_reason() {
    let fixture =
        Fixture::with(BrokerLimits { queue_max_bytes: 2000, inflight_max: 2, ..BrokerLimits::default() }).await;
    let mut slow = Five::console(&fixture, "console-slow").await;
    slow.subscribe(EVENT, QOS_1).await;
    let mut host = publisher(&fixture).await;
    for _ in 0..100 {
        host.publish(EVENT, false, &none(), "x").await;
    }
    slow.message().await;
    slow.message().await;
    slow.refused(0x97).await;
    fixture.until("it counted as slow", |stats| stats.slow_total == 1).await;
}

#[tokio::test]
async fn operators_read_system_topics() {
    let fixture = Fixture::new().await;
    let (mut operator, _) = Five::connect(&fixture, "operator-anna", &Connect::new("operator-anna")).await;
    assert_eq!(operator.subscribe("$SYS/broker/clients/connected", QOS_1).await, 1);
    let message = operator.message().await;
    assert_eq!((&*message.payload, message.retain), ("1", true));
    let _another = Five::console(&fixture, "console-main").await;
    // And again, while somebody reads it.
    let message = operator.message().await;
    assert!(!message.retain);
    assert_eq!(operator.subscribe("muster/#", QOS_1).await, 1);
}

/// MQTT 3.1.1 knows only sessions that end with their connection and those that do not.
#[tokio::test]
async fn session_of_3_1_1_is_resumed() {
    let fixture = Fixture::new().await;
    let mut raw = fixture.raw("console-main").await;
    raw.send(&crate::fixture::connect_staying("console-main")).await;
    raw.expect(&[0x20, 2, 0, 0]).await;
    raw.send(&crate::fixture::subscribe(1, EVENT.as_bytes(), 1)).await;
    raw.expect(&[0x90, 3, 0, 1, 1]).await;
    drop(raw);
    gone(&fixture, 0).await;
    let mut host = publisher(&fixture).await;
    host.publish(EVENT, false, &none().user("a", "b"), "waited").await;
    let mut raw = fixture.raw("console-main").await;
    raw.send(&crate::fixture::connect_staying("console-main")).await;
    raw.expect(&[0x20, 2, 1, 0]).await;
    let topic = EVENT.as_bytes();
    raw.expect(
        &[&[0x32, u8::try_from(topic.len() + 10).unwrap(), 0, topic.len() as u8], topic, &[0, 1], b"waited"].concat(),
    )
    .await;
}

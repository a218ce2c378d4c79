//! Last wills, takeover, keep-alive, subscriptions that end.

use muster_broker::BrokerLimits;
use rumqttc::{LastWill, QoS};

use crate::fixture::{Client, Fixture, HOST, OTHER, connect_will, packet, publish, subscribe};

fn presence() -> String {
    format!("muster/s/00/h/{HOST}/presence")
}

fn will(payload: &str) -> LastWill {
    LastWill::new(presence(), payload, QoS::AtLeastOnce, true)
}

async fn watcher(fixture: &Fixture) -> Client {
    let mut console = fixture.console().await;
    console.subscribe("muster/s/+/h/+/presence", QoS::AtLeastOnce).await;
    console
}

#[tokio::test]
async fn broken_connection_publishes_will_and_disconnect_does_not() {
    let fixture = Fixture::new().await;
    let mut console = watcher(&fixture).await;
    let id = format!("{HOST}-1");
    fixture.mortal(HOST, &id, will("first")).await.cut();
    assert_eq!(console.text().await.1, "first");
    fixture.mortal(HOST, &id, will("second")).await.disconnect().await;
    // A connection that ends by a protocol error breaks too. So nothing came of the second.
    let mut raw = fixture.raw(HOST).await;
    raw.send(&connect_will(&id, 30, &presence(), "third")).await;
    raw.expect(&[0x20, 2, 0, 0]).await;
    raw.send(&packet(0xf0, &[])).await;
    assert_eq!(console.text().await.1, "third");
    // The first was to be retained, and is; the third was not.
    let mut late = fixture.client("console-late", "console-late").await;
    late.subscribe(&presence(), QoS::AtLeastOnce).await;
    assert_eq!(late.text().await, (presence(), "first".to_owned(), true));
}

#[tokio::test]
async fn takeover_publishes_old_will_and_keeps_new_one() {
    let fixture = Fixture::new().await;
    let mut console = watcher(&fixture).await;
    let id = format!("{HOST}-1");
    let mut old = fixture.mortal(HOST, &id, will("old is dead")).await;
    let mut new = fixture.mortal(HOST, &id, will("new is dead")).await;
    old.ended().await;
    new.publish(&presence(), true, "new is here").await;
    // The old one's will came before the new one could say anything.
    assert_eq!(console.text().await.1, "old is dead");
    assert_eq!(console.text().await.1, "new is here");
    new.cut();
    assert_eq!(console.text().await.1, "new is dead");
    assert_eq!(fixture.broker.stats().takeovers_total, 1);
}

#[tokio::test]
async fn session_of_another_identity_is_not_taken_over() {
    let fixture = Fixture::new().await;
    // `console-a` may call itself `console-a-b`, which is also the whole name of another console.
    let mut owner = fixture.client("console-a-b", "console-a-b").await;
    let _namesake = fixture.client("console-a", "console-a-b").await;
    owner.subscribe("muster/#", QoS::AtLeastOnce).await;
    assert_eq!(fixture.broker.stats().takeovers_total, 0);
    assert_eq!(fixture.broker.stats().connections, 2);
}

#[tokio::test]
async fn many_takeovers_at_once_leave_one_session() {
    let fixture = Fixture::with(BrokerLimits { connections_per_identity_max: 20, ..BrokerLimits::default() }).await;
    let mut clients = Vec::new();
    for _ in 0..10 {
        let mut options = fixture.options(HOST, &format!("{HOST}-1"));
        options.set_last_will(will("dead"));
        clients.push(tokio::spawn(Client::start(options)));
    }
    for client in clients {
        // Some are taken over before they are accepted. Nobody is stuck.
        drop(client.await.unwrap());
    }
    fixture.until("one or no session", |stats| stats.connections <= 1).await;
    let mut last = fixture.client(HOST, &format!("{HOST}-1")).await;
    last.publish(&presence(), false, "alive").await;
}

#[tokio::test]
async fn keep_alive_timeout_ends_a_receiving_session() {
    let fixture = Fixture::new().await;
    let mut console = watcher(&fixture).await;
    let mut quiet = fixture.raw(HOST).await;
    quiet.send(&connect_will(&format!("{HOST}-1"), 1, &presence(), "silent")).await;
    quiet.expect(&[0x20, 2, 0, 0]).await;
    let started = std::time::Instant::now();
    quiet.send(&subscribe(1, format!("muster/s/00/h/{HOST}/cmd").as_bytes(), 0)).await;
    quiet.expect(&[0x90, 3, 0, 1, 0]).await;
    // Another one pings and stays.
    let mut lively = fixture.raw(OTHER).await;
    lively.connect(&format!("{OTHER}-1"), 1).await;
    let mut sender = fixture.client("console-other", "console-other").await;
    loop {
        sender.publish(&format!("muster/s/00/h/{HOST}/cmd"), false, "traffic").await;
        lively.send(&packet(0xc0, &[])).await;
        lively.expect(&[0xd0, 0]).await;
        let next = tokio::time::timeout(std::time::Duration::from_millis(100), console.text()).await;
        if let Ok((_, payload, _)) = next {
            assert_eq!(payload, "silent");
            break;
        }
        assert!(started.elapsed().as_secs() < 30, "it was never noticed");
    }
    assert!(started.elapsed().as_millis() >= 1_400, "after {:?}", started.elapsed());
    lively.send(&packet(0xc0, &[])).await;
    lively.expect(&[0xd0, 0]).await;
}

#[tokio::test]
async fn unsubscribed_filter_brings_nothing() {
    let fixture = Fixture::new().await;
    let mut host = fixture.client(HOST, &format!("{HOST}-1")).await;
    let mut console = fixture.console().await;
    let (cmd, ack) = (format!("muster/s/00/h/{HOST}/cmd"), format!("muster/s/00/h/{HOST}/ack"));
    host.subscribe(&cmd, QoS::AtLeastOnce).await;
    host.subscribe(&ack, QoS::AtLeastOnce).await;
    console.publish(&cmd, false, "one").await;
    assert_eq!(host.text().await.1, "one");
    host.mqtt.unsubscribe(&cmd).await.unwrap();
    // The next answer shows that the unsubscribe was seen.
    host.subscribe("muster/s/00/cmd/all", QoS::AtLeastOnce).await;
    console.publish(&cmd, false, "unheard").await;
    console.publish(&ack, false, "two").await;
    assert_eq!(host.text().await.1, "two");
    host.subscribe(&cmd, QoS::AtMostOnce).await;
    console.publish(&cmd, false, "three").await;
    let message = host.message().await;
    assert_eq!((&message.payload[..], message.qos), (&b"three"[..], QoS::AtMostOnce));
}

#[tokio::test]
async fn publish_right_before_disconnect_is_delivered() {
    let fixture = Fixture::new().await;
    let mut console = watcher(&fixture).await;
    let mut raw = fixture.raw(HOST).await;
    raw.connect(&format!("{HOST}-1"), 30).await;
    raw.send(&[publish(&presence(), b"stopped"), packet(0xe0, &[])].concat()).await;
    assert_eq!(console.text().await.1, "stopped");
    assert_eq!(raw.rest().await, b"");
}

//! Tests of hostile clients: others do not notice them.

use muster_broker::BrokerLimits;
use rumqttc::QoS;
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::fixture::{Fixture, HOST, connect, packet, publish, subscribe};

fn event() -> String {
    format!("muster/s/00/h/{HOST}/event")
}

#[tokio::test]
async fn bad_bytes_end_a_connection_and_no_other() {
    let fixture = Fixture::new().await;
    let mut console = fixture.console().await;
    console.subscribe("muster/#", QoS::AtLeastOnce).await;
    let first_packets = [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: a browser that was given the wrong port\r\n\r\n".to_vec(),
        publish(&event(), b"before CONNECT"),
        packet(0x10, b"\0\x04MQ"),
        packet(0x11, b"\0\x04MQTT\x04\x02\0\x1e\0\x01a"),
        vec![0x10, 0xff, 0xff, 0xff, 0xff, 0x01],
        vec![0x10, 0xff, 0xff, 0xff, 0x7f],
    ];
    for bytes in first_packets {
        let mut raw = fixture.raw(HOST).await;
        raw.send(&bytes).await;
        assert_eq!(raw.rest().await, b"", "{bytes:?}");
    }
    let later_packets = [
        connect(&format!("{HOST}-1"), 30),
        vec![0, 0],
        vec![0xf0, 0],
        packet(0x20, &[0, 0]),
        packet(0x34, &[&[0, 1][..], b"t", &[0, 1]].concat()),
        packet(0x36, b"\0\x01t\0\x01"),
        packet(0x32, b"\0\x01t\0\0"),
        packet(0x30, b"\0\x09t"),
        packet(0x30, b"\0\x01\xff"),
        packet(0x82, &[0, 1]),
        subscribe(1, b"a\xff", 0),
        subscribe(1, b"a", 3),
        subscribe(0, b"a", 0),
        packet(0xc1, &[]),
        vec![0x30, 0xff, 0xff, 0x7f],
    ];
    for bytes in later_packets {
        let mut raw = fixture.raw(HOST).await;
        raw.connect(&format!("{HOST}-1"), 30).await;
        raw.send(&bytes).await;
        assert_eq!(raw.rest().await, b"", "{bytes:?}");
    }
    let mut host = fixture.client(HOST, &format!("{HOST}-1")).await;
    host.publish(&event(), false, "all is well").await;
    assert_eq!(console.text().await.1, "all is well");
    assert_eq!(fixture.broker.stats().router_deaths_total, 0);
}

#[tokio::test]
async fn bad_filters_are_refused() {
    let fixture = Fixture::new().await;
    let mut raw = fixture.raw("operator-anna").await;
    raw.connect("operator-anna", 30).await;
    for filter in ["muster/a#b", "muster/#/b", "muster/+a", "", "$share/g/muster/#", "$SYSTEM/#", "muster/\u{1}"] {
        raw.send(&subscribe(1, filter.as_bytes(), 0)).await;
        raw.expect(&[0x90, 3, 0, 1, 0x80]).await;
    }
    raw.send(&subscribe(2, b"muster/#", 0)).await;
    raw.expect(&[0x90, 3, 0, 2, 0]).await;
}

#[tokio::test]
async fn silent_clients_are_disconnected_and_block_nobody() {
    let limits = BrokerLimits { handshake_timeout_ms: 300, connect_timeout_ms: 300, ..BrokerLimits::default() };
    let fixture = Fixture::with(limits).await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(TcpStream::connect(fixture.address()).await.unwrap());
    }
    let mut dribbling = TcpStream::connect(fixture.address()).await.unwrap();
    dribbling.write_all(&[0x16]).await.unwrap();
    let mut wordless = fixture.raw("console-main").await;
    fixture.console().await.disconnect().await;
    assert_eq!(wordless.rest().await, b"");
    fixture.until("all of them sent away", |stats| stats.refused_total == 22).await;
}

#[tokio::test]
async fn strangers_beyond_the_limit_wait() {
    let limits = BrokerLimits { handshakes_max: 2, handshake_timeout_ms: 300, ..BrokerLimits::default() };
    let fixture = Fixture::with(limits).await;
    let mut silent = Vec::new();
    for _ in 0..6 {
        silent.push(TcpStream::connect(fixture.address()).await.unwrap());
    }
    fixture.console().await.disconnect().await;
}

#[tokio::test]
async fn client_that_reads_nothing_is_disconnected() {
    const COUNT: usize = 600;
    let limits = BrokerLimits { write_timeout_ms: 300, ..BrokerLimits::default() };
    let fixture = Fixture::with(limits).await;
    let mut console = fixture.console().await;
    console.subscribe("muster/#", QoS::AtLeastOnce).await;
    let mut stuck = fixture.raw("operator-anna").await;
    stuck.connect("operator-anna", 30).await;
    stuck.send(&subscribe(1, b"muster/#", 0)).await;
    stuck.expect(&[0x90, 3, 0, 1, 0]).await;
    let mut host = fixture.client(HOST, &format!("{HOST}-1")).await;
    let reading = async {
        for index in 0..COUNT {
            assert!(console.text().await.1.starts_with(&format!("{index} ")));
        }
    };
    let sending = async {
        for index in 0..COUNT {
            host.publish(&event(), false, &format!("{index} {}", "x".repeat(60_000))).await;
        }
    };
    tokio::join!(reading, sending);
    fixture.until("the slow one gone", |stats| stats.slow_total == 1 && stats.connections == 2).await;
}

#[tokio::test]
async fn a_client_that_acknowledges_nothing_is_disconnected() {
    let fixture = Fixture::with(BrokerLimits { ack_timeout_ms: 300, inflight_max: 2, ..BrokerLimits::default() }).await;
    let mut raw = fixture.raw(HOST).await;
    raw.connect(&format!("{HOST}-1"), 30).await;
    let cmd = format!("muster/s/00/h/{HOST}/cmd");
    raw.send(&subscribe(1, cmd.as_bytes(), 1)).await;
    raw.expect(&[0x90, 3, 0, 1, 1]).await;
    let mut console = fixture.console().await;
    for _ in 0..3 {
        console.publish(&cmd, false, "x").await;
    }
    // It gets two, for that is its window, and then the end.
    let sent = raw.rest().await;
    assert_eq!(sent.len(), 2 * (2 + 2 + cmd.len() + 2 + 1));
    assert_eq!(fixture.broker.stats().slow_total, 1);
}

#[tokio::test]
async fn slow_client_is_disconnected_rather_than_skipped() {
    let limits = BrokerLimits { inflight_max: 1, queue_max_bytes: 4096, ..BrokerLimits::default() };
    let fixture = Fixture::with(limits).await;
    let mut slow = fixture.raw("operator-anna").await;
    slow.connect("operator-anna", 30).await;
    slow.send(&subscribe(1, b"muster/#", 1)).await;
    slow.expect(&[0x90, 3, 0, 1, 1]).await;
    let mut host = fixture.client(HOST, &format!("{HOST}-1")).await;
    host.publish(&event(), false, &format!("{:0>100}", 0)).await;
    // It has the first, so that all the others wait.
    fixture.until("the first on its way", |stats| stats.sent_total == 1).await;
    for index in 1..2000 {
        host.mqtt.publish(event(), QoS::AtLeastOnce, false, format!("{index:0>100}")).await.unwrap();
        if index % 50 == 0 {
            host.acknowledged(50).await;
        }
    }
    // It acknowledges nothing, and is not made to: what it got before its queue was full is all there is.
    let sent = slow.rest().await;
    let mut rest = &sent[..];
    let mut count = 0;
    while let [0x32, low, high, body @ ..] = rest {
        let (body, behind) = body.split_at(usize::from(low & 0x7f) + 128 * usize::from(*high));
        let payload = std::str::from_utf8(&body[body.len() - 100..]).unwrap();
        assert_eq!(payload.parse(), Ok(count));
        count += 1;
        rest = behind;
    }
    assert!(rest.is_empty() && count == 1, "{count} messages, then {rest:?}");
    fixture.until("it counted as slow", |stats| stats.slow_total == 1).await;
}

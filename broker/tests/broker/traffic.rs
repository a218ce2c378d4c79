//! Tests of messages in flight while clients connect and disconnect.

use muster_broker::BrokerLimits;
use rumqttc::QoS;

use crate::fixture::{Fixture, HOST, packet, subscribe};

#[tokio::test]
async fn traffic_survives_connection_churn() {
    const CYCLES: usize = 200;
    let fixture = Fixture::with(BrokerLimits { connections_per_identity_max: 50, ..BrokerLimits::default() }).await;
    let topic = format!("muster/s/00/h/{HOST}/event");
    let mut console = fixture.console().await;
    console.subscribe("muster/s/+/h/+/event", QoS::AtLeastOnce).await;
    let mut host = fixture.client(HOST, &format!("{HOST}-1")).await;
    let config = fixture.authority.client(Some(&fixture.authority.issue("operator-anna")));

    // A message goes out during each coming and going at the least, however the machine shares its time out.
    let (sent_so_far, mut progress) = tokio::sync::watch::channel(0);
    let comings = async {
        for cycle in 0..CYCLES {
            let mut raw = fixture.raw_with(config.clone()).await.unwrap();
            raw.connect(&format!("operator-anna-{}", cycle % 5), 30).await;
            raw.send(&subscribe(1, b"muster/#", u8::from(cycle % 2 == 0))).await;
            raw.expect(&[0x90, 3, 0, 1, u8::from(cycle % 2 == 0)]).await;
            if cycle % 3 == 0 {
                raw.send(&packet(0xe0, &[])).await;
            }
            progress.wait_for(|sent| *sent > cycle).await.unwrap();
        }
    };
    let (stop, mut stopped) = tokio::sync::oneshot::channel();
    let sending = async {
        let mut sent = 0;
        while stopped.try_recv().is_err() {
            host.publish(&topic, false, &sent.to_string()).await;
            sent += 1;
            sent_so_far.send_replace(sent);
        }
        host.publish(&topic, false, "end").await;
        sent
    };
    let receiving = async {
        let mut received = 0;
        loop {
            let text = console.text().await.1;
            if text == "end" {
                return received;
            }
            assert_eq!(text, received.to_string());
            received += 1;
        }
    };
    let ((), sent, received) = tokio::join!(
        async {
            comings.await;
            stop.send(()).unwrap();
        },
        sending,
        receiving
    );
    assert_eq!(sent, received);
    assert!(sent >= CYCLES);
    let stats = fixture.broker.stats();
    assert_eq!((stats.router_deaths_total, stats.slow_total, stats.denied_total), (0, 0, 0));
    fixture.until("everybody else gone", |stats| stats.connections == 2).await;
}

#[tokio::test]
async fn acknowledgements_keep_the_order_of_publishing() {
    let fixture = Fixture::new().await;
    let topic = format!("muster/s/00/h/{HOST}/event");
    let mut raw = fixture.raw(HOST).await;
    raw.connect(&format!("{HOST}-1"), 30).await;
    let mut all = Vec::new();
    let mut expected = Vec::new();
    for packet_id in 1..=1000_u16 {
        let length = u16::try_from(topic.len()).unwrap().to_be_bytes();
        all.extend(packet(0x32, &[&length[..], topic.as_bytes(), &packet_id.to_be_bytes(), b"x"].concat()));
        expected.extend([&[0x40, 2][..], &packet_id.to_be_bytes()].concat());
    }
    raw.send(&all).await;
    raw.expect(&expected).await;
}

#[tokio::test]
async fn the_lower_quality_of_the_two_sides_counts() {
    let fixture = Fixture::new().await;
    let topic = format!("muster/s/00/h/{HOST}/event");
    let host = fixture.client(HOST, &format!("{HOST}-1")).await;
    for granted in [QoS::AtMostOnce, QoS::AtLeastOnce] {
        let mut console = fixture.client("console-main", &format!("console-main-{}", granted as u8)).await;
        console.subscribe(&topic, granted).await;
        for published in [QoS::AtMostOnce, QoS::AtLeastOnce] {
            host.mqtt.publish(&topic, published, false, "x").await.unwrap();
            let lower = if published as u8 <= granted as u8 { published } else { granted };
            assert_eq!(console.message().await.qos, lower);
        }
    }
}

#[tokio::test]
async fn large_messages_pass_and_too_large_ones_do_not() {
    let fixture = Fixture::new().await;
    let topic = format!("muster/s/00/h/{HOST}/event");
    let mut console = fixture.console().await;
    console.subscribe(&topic, QoS::AtLeastOnce).await;
    let mut host = fixture.client(HOST, &format!("{HOST}-1")).await;
    for size in [0, 1, 127, 128, 16_383, 16_384, 65_536, 260_000] {
        host.publish(&topic, false, &"x".repeat(size)).await;
        assert_eq!(console.message().await.payload.len(), size);
    }
    host.mqtt.publish(&topic, QoS::AtLeastOnce, false, "x".repeat(300_000)).await.unwrap();
    host.ended().await;
}

#[tokio::test]
async fn every_subscriber_gets_every_message() {
    let fixture = Fixture::with(BrokerLimits { connections_per_identity_max: 50, ..BrokerLimits::default() }).await;
    let topic = format!("muster/s/00/h/{HOST}/event");
    let mut subscribers = Vec::new();
    for index in 0..20 {
        let mut subscriber = fixture.client("operator-anna", &format!("operator-anna-{index}")).await;
        subscriber.subscribe("muster/#", QoS::AtLeastOnce).await;
        subscribers.push(subscriber);
    }
    let mut host = fixture.client(HOST, &format!("{HOST}-1")).await;
    for index in 0..100 {
        host.publish(&topic, false, &index.to_string()).await;
    }
    for subscriber in &mut subscribers {
        for index in 0..100 {
            assert_eq!(subscriber.text().await.1, index.to_string());
        }
    }
    assert_eq!(fixture.broker.stats().sent_total, 2000);
}

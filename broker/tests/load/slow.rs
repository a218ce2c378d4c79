//! Clients that take their time: to shake hands, to say CONNECT, to read.

use std::time::Duration;

use futures_util::future::join_all;
use muster_broker::BrokerLimits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    Witnesses, event,
    rig::{
        HOST, OTHER,
        child::{OursApart, rss_bytes},
        client::{Failed, Mqtt},
        patiently,
        place::Place,
        wire::{Connect, Publish, Version},
    },
    size, until_connected,
};

/// Between two bytes: the whole would take minutes.
const PAUSE: Duration = Duration::from_millis(200);

/// Sends a ClientHello byte by byte; gives how many bytes it took until the broker ended it.
async fn slow_to_shake_hands(place: Place) -> usize {
    let mut hello = vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    hello.resize(517, 0);
    let mut stream = place.touch(Version::V4).await.unwrap();
    for (sent, byte) in hello.iter().enumerate() {
        let mut answer = [0];
        if stream.write_all(&[*byte]).await.is_err() {
            return sent;
        }
        if let Ok(ended) = tokio::time::timeout(PAUSE, stream.read(&mut answer)).await {
            assert!(matches!(ended, Ok(0 | 1) | Err(_)));
            return sent;
        }
    }
    panic!("nobody minded");
}

/// Shakes hands, and sends a CONNECT byte by byte; the same.
async fn slow_to_connect(place: Place) -> usize {
    let mut stream = place.dial(Version::V4, OTHER).await.unwrap();
    let connect = Connect::new(&format!("{OTHER}-{:0>200}", 1)).encode(Version::V4);
    for (sent, byte) in connect.iter().enumerate() {
        let mut answer = [0];
        let write = async {
            stream.write_all(&[*byte]).await?;
            stream.flush().await
        };
        if write.await.is_err() {
            return sent;
        }
        if let Ok(ended) = tokio::time::timeout(PAUSE, stream.read(&mut answer)).await {
            assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
            return sent;
        }
    }
    panic!("nobody minded");
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_handshakes_do_not_delay_others() {
    let count = size(150, 1_000);
    let limits = BrokerLimits {
        handshake_timeout_ms: 3_000,
        connect_timeout_ms: 3_000,
        // Fewer than come, so that they get in each other's way as well.
        handshakes_max: count,
        connections_per_identity_max: 2 * count,
        ..BrokerLimits::default()
    };
    let mut ours = OursApart::start(&limits);
    let witnesses = Witnesses::start(&ours.place).await;
    let refused_before = ours.stat("refused_total");
    let hands: Vec<_> = (0..count).map(|_| tokio::spawn(slow_to_shake_hands(ours.place.clone()))).collect();
    let connects: Vec<_> = (0..count).map(|_| tokio::spawn(slow_to_connect(ours.place.clone()))).collect();
    // Meanwhile others come in, in their turn.
    for number in 0..20 {
        let name = format!("operator-{number}");
        Mqtt::connect(&ours.place, Version::V5, &name, &Connect::new(&name)).await.disconnect().await;
    }
    for slow in join_all(hands.into_iter().chain(connects)).await {
        assert!(slow.unwrap() > 0);
    }
    let refused = ours.stat("refused_total") - refused_before;
    assert!(refused >= 2 * count as u64, "{refused} of {}", 2 * count);
    let passed = witnesses.end().await;
    assert!(passed > 50, "only {passed} messages");
}

/// A client that subscribes and never reads a byte again.
async fn deaf(place: &Place, number: usize) -> Mqtt {
    let (name, version) =
        (format!("operator-{number}"), if number.is_multiple_of(2) { Version::V4 } else { Version::V5 });
    let mut client = Mqtt::connect(place, version, &name, &Connect::new(&name)).await;
    client.subscribe("muster/s/+/h/+/unit/#", (number % 2) as u8).await;
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_never_read_do_not_affect_others() {
    const DEAF: usize = 10;
    let limits = BrokerLimits { write_timeout_ms: 5_000, queue_max_bytes: 1 << 20, ..BrokerLimits::default() };
    let mut ours = OursApart::start(&limits);
    let witnesses = Witnesses::start(&ours.place).await;
    let before = rss_bytes(ours.child.pid());
    let mut clients = Vec::new();
    for number in 0..DEAF {
        clients.push(deaf(&ours.place, number).await);
    }
    let topic = format!("muster/s/00/h/{OTHER}/unit/default/a");
    let mut sender = Mqtt::connect(&ours.place, Version::V4, OTHER, &Connect::new(&format!("{OTHER}-1"))).await;
    let mut most = 0;
    for _ in 0..size(600, 6_000) {
        sender.publish(Publish::new(&topic, 1, [b'x'; 30_000])).await;
        most = most.max(rss_bytes(ours.child.pid()));
    }
    // What waits for them is bounded, and TLS, the router and their writers hold a piece of it.
    let bound = DEAF as u64 * (1 << 20) + (32 << 20);
    assert!(most - before < bound, "{} bytes more", most - before);
    // Those of QoS 1 miss something, so they have to go; the others take nothing, so they go as well.
    until_connected(&mut ours, 3).await;
    for mut client in clients {
        patiently("the end", client.end()).await;
    }
    let passed = witnesses.end().await;
    assert!(passed > 50, "only {passed} messages");
    let still = sender.ping().await;
    assert_eq!((still, ours.stat("router_deaths_total")), (Ok(()), 0));
    let mut reader = Mqtt::connect(&ours.place, Version::V4, "console-main", &Connect::new("console-main")).await;
    reader.subscribe(&event(), 0).await;
    let mut host = Mqtt::connect(&ours.place, Version::V4, HOST, &Connect::new(&format!("{HOST}-1"))).await;
    host.publish(Publish::new(&event(), 1, "still here")).await;
    assert_eq!(
        reader.message_within(crate::rig::PATIENCE).await.map(|message| message.text().to_owned()),
        Ok("still here".to_owned())
    );
    assert_eq!(reader.message_within(Duration::from_millis(100)).await, Err(Failed::Silence));
}

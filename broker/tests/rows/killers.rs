//! Part 1: ordinary clients that stop rumqttd's own listener, or its router.

use std::time::Duration;

use muster_broker::BrokerLimits;
use tokio::time::{Instant, timeout};

use crate::{
    DEAD, console, event, host,
    rig::{
        HOST, PATIENCE,
        child::{Rumqttd, Settings},
        client::{Failed, Mqtt},
        place::{Ours, Place},
        until,
        wire::{self, BOTH, CONTENT_TYPE, Connect, DISCONNECT, Properties, Publish, Version},
    },
    serves, unit,
};

/// Where its router panics, and its listeners.
const ROUTER: &str = "routing.rs";
const MATCHING: &str = "protocol/mod.rs";
const SCHEDULER: &str = "scheduler.rs";
const LISTENER: &str = "broker.rs";

/// Nobody is served by a router that has panicked.
async fn assert_router_dead(rumqttd: &Rumqttd, file: &str) {
    until("a panic", || rumqttd.child.panicked_in(file)).await;
    for version in BOTH {
        assert!(serves(&rumqttd.place, version).await.is_err(), "it serves after: {}", rumqttd.child.printed());
    }
}

async fn assert_ours_lives(ours: &Ours) {
    for version in BOTH {
        assert_eq!(serves(&ours.place, version).await, Ok(()));
    }
    assert_eq!(ours.broker.stats().router_deaths_total, 0);
}

#[tokio::test]
async fn a_topic_that_does_not_begin_with_ascii() {
    let rumqttd = Rumqttd::start(Settings::default());
    // Somebody must have subscribed to something.
    console(&rumqttd.place, Version::V4).await.subscribe("muster/s/+/h/+/unit/#", 1).await;
    let mut client = host(&rumqttd.place, Version::V4).await;
    client.send(&Publish::new("é/x", 0, "x").encode(Version::V4)).await;
    assert_router_dead(&rumqttd, MATCHING).await;

    let ours = Ours::start(BrokerLimits::default()).await;
    for version in BOTH {
        let mut client = host(&ours.place, version).await;
        client.send(&Publish::new("é/x", 0, "x").encode(version)).await;
        let mut console = console(&ours.place, version).await;
        console.subscribe("muster/s/+/h/+/unit/#", 1).await;
        let mut client = host(&ours.place, version).await;
        let topic = format!("muster/s/00/h/{HOST}/unit/é/日本");
        client.publish(Publish::new(&topic, 1, "x")).await;
        assert_eq!(console.message().await.topic, topic);
    }
    assert_ours_lives(&ours).await;
}

/// Subscribers of a busy topic come, read a little, and go, some with a DISCONNECT and some without, until `enough`.
async fn come_and_go(place: &Place, version: Version, cycles: usize, enough: impl Fn() -> bool) {
    let busy = async {
        let mut client = host(place, version).await;
        let packets = Publish::new(&event(), 0, [b'x'; 100]).encode(version).repeat(50);
        // Until the broker ends it, or the others are done.
        while client.try_send(&packets).await.is_ok() {
            tokio::task::yield_now().await;
        }
        std::future::pending::<()>().await;
    };
    let goings = async {
        for cycle in 0..cycles {
            if enough() {
                return;
            }
            let name = format!("operator-{}", cycle % 7);
            let connected = Mqtt::try_connect(place, version, &name, &Connect::new(&name), DEAD).await;
            let Ok((mut client, _)) = connected else { continue };
            client.try_subscribe(&Properties::new(), &[(&event(), 0)]).await.ok();
            for _ in 0..50 {
                client.message_within(Duration::from_secs(1)).await.ok();
            }
            if cycle % 3 != 0 {
                // What is on its way to it still has to be got rid of.
                client.disconnect().await;
            }
        }
    };
    tokio::select! {
        () = busy => {}
        () = goings => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn subscribers_of_a_busy_topic_that_disconnect() {
    let rumqttd = Rumqttd::start(Settings::default());
    let dead = || rumqttd.child.panicked_in(SCHEDULER);
    come_and_go(&rumqttd.place, Version::V4, 2_000, dead).await;
    assert_router_dead(&rumqttd, SCHEDULER).await;

    let ours = Ours::start(BrokerLimits::default()).await;
    for version in BOTH {
        come_and_go(&ours.place, version, 150, || false).await;
    }
    assert_ours_lives(&ours).await;
}

#[tokio::test]
async fn the_last_member_of_a_shared_subscription_that_drops() {
    let rumqttd = Rumqttd::start(Settings::default());
    let mut member = Mqtt::connect(&rumqttd.place, Version::V4, "operator-a", &Connect::persistent("operator-a")).await;
    let shared = format!("$share/group/{}", event());
    member.subscribe(&shared, 1).await;
    let mut client = host(&rumqttd.place, Version::V4).await;
    client.publish(Publish::new(&event(), 1, "x")).await;
    // It comes, and is not acknowledged.
    assert!(matches!(member.packet_within(DEAD).await, Ok(wire::Packet::Publish(_))));
    drop(member);
    assert_router_dead(&rumqttd, ROUTER).await;

    // Shared subscriptions are refused, in the words that each version has, rather than half right.
    let ours = Ours::start(BrokerLimits::default()).await;
    for (version, refused) in [(Version::V4, 0x80), (Version::V5, 0x9e)] {
        let mut member = console(&ours.place, version).await;
        assert_eq!(member.try_subscribe(&Properties::new(), &[(&shared, 1)]).await, Ok(vec![refused]));
    }
    assert_ours_lives(&ours).await;
}

#[tokio::test]
async fn a_strange_client_id_that_connects_twice() {
    for version in BOTH {
        let rumqttd = Rumqttd::start(Settings::default());
        for _ in 0..2 {
            let connect = Connect::new("a+b");
            let mut client = Mqtt::open(&rumqttd.place, version, "").await.unwrap();
            client.try_send(&connect.encode(version)).await.ok();
            // Neither answered nor refused.
            assert_eq!(client.packet_within(DEAD).await, Err(Failed::Ended));
        }
        until("a panic", || rumqttd.child.panicked_in(LISTENER)).await;
        assert!(serves(&rumqttd.place, version).await.is_err());
        until("a poisoned lock", || rumqttd.child.printed().contains("PoisonError")).await;
    }

    let ours = Ours::start(BrokerLimits::default()).await;
    for (version, refused) in [(Version::V4, 2), (Version::V5, 0x85)] {
        for id in ["a+b", "$a", "a#", "a/b", "+", "#", "$", "/"] {
            for _ in 0..2 {
                let connect = Connect::new(&format!("{HOST}-{id}"));
                let connected = Mqtt::try_connect(&ours.place, version, HOST, &connect, PATIENCE).await;
                assert_eq!(connected.err(), Some(Failed::Refused(refused)), "{id}");
            }
        }
    }
    assert_ours_lives(&ours).await;
}

#[tokio::test]
async fn one_client_too_many_that_tries_again() {
    let rumqttd = Rumqttd::start(Settings { max_connections: 1, ..Settings::default() });
    let first = host(&rumqttd.place, Version::V4).await;
    for _ in 0..2 {
        let mut client = Mqtt::open(&rumqttd.place, Version::V4, "").await.unwrap();
        client.try_send(&Connect::new("late").encode(Version::V4)).await.ok();
        assert_eq!(client.packet_within(DEAD).await, Err(Failed::Ended));
    }
    drop(first);
    until("a panic", || rumqttd.child.panicked_in(LISTENER)).await;
    assert!(serves(&rumqttd.place, Version::V4).await.is_err(), "{}", rumqttd.child.printed());

    for (version, refused) in [(Version::V4, 3), (Version::V5, 0x89)] {
        let ours = Ours::start(BrokerLimits { connections_max: 2, ..BrokerLimits::default() }).await;
        let first = host(&ours.place, version).await;
        let second = console(&ours.place, version).await;
        let connect = Connect::new("operator-late");
        for _ in 0..3 {
            let connected = Mqtt::try_connect(&ours.place, version, "operator-late", &connect, PATIENCE).await;
            assert_eq!(connected.err(), Some(Failed::Refused(refused)));
        }
        first.disconnect().await;
        second.disconnect().await;
        until("both gone", || ours.broker.stats().connections == 0).await;
        assert_ours_lives(&ours).await;
    }
}

#[tokio::test]
async fn a_message_with_properties_for_a_client_that_knows_none() {
    let with_properties =
        || Publish::new(&unit("a"), 1, "x").properties(Properties::new().text(CONTENT_TYPE, "text/plain")).retained();
    let rumqttd = Rumqttd::start(Settings::default());
    let mut console_v4 = console(&rumqttd.place, Version::V4).await;
    console_v4.subscribe(&unit("a"), 1).await;
    let mut client = host(&rumqttd.place, Version::V5).await;
    client.publish(with_properties()).await;
    assert_eq!(console_v4.message_within(DEAD).await, Err(Failed::Ended));
    until("a panic", || rumqttd.child.panicked_in("protocol/v4/mod.rs")).await;
    // It is retained: whoever subscribes to it falls.
    for number in 0..3 {
        let name = format!("operator-{number}");
        let mut late = Mqtt::connect(&rumqttd.place, Version::V4, &name, &Connect::new(&name)).await;
        late.try_subscribe(&Properties::new(), &[(&unit("a"), 1)]).await.ok();
        assert_eq!(late.message_within(DEAD).await, Err(Failed::Ended));
    }
    // And one of the fallen that comes back takes the whole listener along.
    let connect = Connect::new("operator-0");
    assert!(Mqtt::try_connect(&rumqttd.place, Version::V4, "operator-0", &connect, DEAD).await.is_err());
    until("a panic", || rumqttd.child.panicked_in(LISTENER)).await;
    assert!(serves(&rumqttd.place, Version::V4).await.is_err(), "{}", rumqttd.child.printed());

    let ours = Ours::start(BrokerLimits::default()).await;
    let mut live = console(&ours.place, Version::V4).await;
    live.subscribe(&unit("a"), 1).await;
    let mut client = host(&ours.place, Version::V5).await;
    client.publish(with_properties()).await;
    let message = live.message().await;
    assert_eq!((message.text(), message.retain), ("x", false));
    let mut late = console(&ours.place, Version::V4).await;
    late.subscribe(&unit("a"), 1).await;
    let message = late.message().await;
    assert_eq!((message.text(), message.retain), ("x", true));
    // Who knows them gets them.
    let mut late = console(&ours.place, Version::V5).await;
    late.subscribe(&unit("a"), 1).await;
    assert_eq!(late.message().await.properties, Properties::new().text(CONTENT_TYPE, "text/plain"));
    assert_ours_lives(&ours).await;
}

/// Not shown on rumqttd here: its TLS is a feature that is left out of this build, for it brings a rustls-webpki with open
/// advisories. Without it the row cannot happen; with it, `Server::start` (`src/server/broker.rs` of 0.20.0) awaits each
/// handshake in the loop that accepts, so that one connection that says nothing is one too many.
#[tokio::test]
async fn silent_connections_on_a_tls_port() {
    let ours = Ours::start(BrokerLimits::default()).await;
    let mut silent = Vec::new();
    for number in 0..100 {
        let mut stream = ours.place.touch(Version::V4).await.unwrap();
        if number % 2 == 0 {
            // The beginning of a ClientHello.
            tokio::io::AsyncWriteExt::write_all(&mut stream, &[0x16, 3, 1, 2, 0, 1]).await.unwrap();
        }
        silent.push(stream);
    }
    assert_ours_lives(&ours).await;
}

/// A client says DISCONNECT, another one comes, and a third looks whether the second is still there. Gives how many
/// newcomers were dropped although nothing was wrong with them.
async fn drops_of_newcomers(place: &Place, rounds: usize, first_is_enough: bool) -> usize {
    let mut dropped = 0;
    for round in 0..rounds {
        let names = [format!("operator-a{}", round % 50), format!("operator-b{}", round % 50)];
        let mut leaving = Mqtt::connect(place, Version::V4, &names[0], &Connect::new(&names[0])).await;
        leaving.send(&DISCONNECT).await;
        drop(leaving);
        let mut newcomer = Mqtt::connect(place, Version::V4, &names[1], &Connect::new(&names[1])).await;
        dropped += usize::from(newcomer.ping().await.is_err() || newcomer.ping().await.is_err());
        if first_is_enough && dropped > 0 {
            break;
        }
    }
    dropped
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disconnect_that_meets_the_next_client() {
    let rumqttd = Rumqttd::start(Settings::default());
    let started = Instant::now();
    let mut dropped = 0;
    while dropped == 0 && started.elapsed() < Duration::from_secs(60) {
        let several = (0..4).map(|_| drops_of_newcomers(&rumqttd.place, 100, true));
        dropped = futures_util::future::join_all(several).await.iter().sum();
    }
    assert!(dropped > 0, "{}", rumqttd.child.printed());

    let ours = Ours::start(BrokerLimits::default()).await;
    let several = timeout(Duration::from_secs(300), drops_of_newcomers(&ours.place, 400, false));
    assert_eq!(several.await, Ok(0));
    assert_ours_lives(&ours).await;
}

//! Part 2: `$SYS`, what is valid, who is who, and how to start and stop.

use std::time::Duration;

use muster_broker::{Broker, BrokerError, BrokerLimits};

use crate::{
    console, event, host,
    rig::{
        HOST, OTHER, PATIENCE,
        child::{Child, Rumqttd, Settings},
        client::{Failed, Mqtt},
        patiently,
        place::{self, Authority, Ours, Place, free_address},
        wire::{BOTH, Connect, Properties, Publish, Version},
    },
    serves,
};

#[tokio::test]
async fn subscribing_to_sys() {
    let rumqttd = Rumqttd::start(Settings::default());
    let mut client = console(&rumqttd.place, Version::V4).await;
    let answer = client.try_subscribe(&Properties::new(), &[("$SYS/#", 0)]).await;
    assert!(answer.is_err() || client.ping().await.is_err(), "{answer:?}");

    let ours = Ours::start(BrokerLimits::default()).await;
    for (version, denied) in [(Version::V4, 0x80), (Version::V5, 0x87)] {
        let mut operator = Mqtt::connect(&ours.place, version, "operator-anna", &Connect::new("operator-anna")).await;
        operator.subscribe("$SYS/#", 0).await;
        let message = operator.message().await;
        assert!(message.topic.starts_with("$SYS/") && !message.payload.is_empty(), "{message:?}");
        // Others may not, and lose nothing but that.
        let mut host = host(&ours.place, version).await;
        assert_eq!(host.try_subscribe(&Properties::new(), &[("$SYS/#", 0)]).await, Ok(vec![denied]));
        assert_eq!(host.ping().await, Ok(()));
    }
}

const BAD_FILTERS: [&str; 4] = ["muster/a#b", "muster/#/b", "muster/+a", "muster/s/00/h/a+/x"];

#[tokio::test]
async fn wildcards_in_wrong_places() {
    let rumqttd = Rumqttd::start(Settings::default());
    let mut client = console(&rumqttd.place, Version::V4).await;
    for filter in ["muster/a#b", "muster/#/b"] {
        assert_eq!(client.try_subscribe(&Properties::new(), &[(filter, 0)]).await, Ok(vec![0]));
    }
    assert_eq!(client.try_publish(Publish::new("muster/a/#", 1, "x")).await, Ok(0));

    let ours = Ours::start(BrokerLimits::default()).await;
    for (version, invalid) in [(Version::V4, 0x80), (Version::V5, 0x8f)] {
        let mut client = console(&ours.place, version).await;
        for filter in BAD_FILTERS {
            let answer = client.try_subscribe(&Properties::new(), &[(filter, 0)]).await;
            assert_eq!(answer, Ok(vec![invalid]), "{filter}");
        }
        for topic in ["muster/s/+/h/+/cmd", "muster/#", "muster/s/00/cmd/group/a#"] {
            let mut client = console(&ours.place, version).await;
            client.send(&Publish::new(topic, 0, "x").encode(version)).await;
            let reason = client.end().await;
            assert_eq!(reason.is_some(), version == Version::V5, "{topic}: {reason:?}");
        }
    }
}

/// Whether a host can speak for another one.
async fn speaks_for_another(place: &Place, version: Version) -> bool {
    let topic = format!("muster/s/00/h/{OTHER}/event");
    let mut reader = console(place, version).await;
    reader.subscribe("muster/s/+/h/+/event", 1).await;
    let mut client = host(place, version).await;
    client.try_publish(Publish::new(&topic, 1, "lies")).await.ok();
    let mut honest = host(place, version).await;
    honest.publish(Publish::new(&event(), 1, "truth")).await;
    reader.message().await.text() == "lies"
}

/// That its TLS would take the subject's organisation for an identity cannot be shown without its TLS (see
/// `silent_connections_on_a_tls_port`); that it permits everybody everything can.
#[tokio::test]
async fn clients_are_identified_and_publish_their_topics() {
    let rumqttd = Rumqttd::start(Settings::default());
    assert!(speaks_for_another(&rumqttd.place, Version::V4).await);

    let ours = Ours::start(BrokerLimits::default()).await;
    for (version, refused) in [(Version::V4, 2), (Version::V5, 0x85)] {
        assert!(!speaks_for_another(&ours.place, version).await);
        // Nobody takes another's client id, whatever certificate shows.
        let connect = Connect::new(&format!("{OTHER}-1"));
        let connected = Mqtt::try_connect(&ours.place, version, HOST, &connect, PATIENCE).await;
        assert_eq!(connected.err(), Some(Failed::Refused(refused)));
        // A common name that is none of the fleet's is nobody.
        let connected = Mqtt::try_connect(&ours.place, version, "anybody", &Connect::new("anybody"), PATIENCE).await;
        assert!(connected.is_err());
    }
}

#[tokio::test]
async fn taken_address_fails_and_stop_is_clean() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let mut child = Child::start(&format!("rumqttd {address} {address} 10 1048576 4"));
    // Nothing could be bound, and all is well.
    assert_eq!(child.wait_for("start ended:"), "Ok(())");
    // Of port 0 nobody hears what became of it, and nothing but the end of the process ends `start`.
    let mut child = Child::start("rumqttd 127.0.0.1:0 127.0.0.1:0 10 1048576 4");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!child.printed().contains("start ended"));
    child.kill();

    let authority = std::sync::Arc::new(Authority::new());
    let (mut config, _) = place::config(&authority, BrokerLimits::default());
    config.listen = address;
    let refused = Broker::start(config).await;
    assert!(matches!(refused, Err(BrokerError::Bind { address: at, .. }) if at == address));

    let ours = Ours::start(BrokerLimits::default()).await;
    assert_ne!(ours.broker.local_addr().port(), 0);
    let mut clients = Vec::new();
    for version in BOTH {
        assert_eq!(serves(&ours.place, version).await, Ok(()));
        clients.push(console(&ours.place, version).await);
    }
    let place = ours.place.clone();
    patiently("the end", ours.broker.stop()).await;
    for mut client in clients {
        client.end().await;
    }
    assert!(place.touch(Version::V4).await.is_err());
}

#[tokio::test]
async fn no_unexpected_port_is_open() {
    // The harness itself: a broker that is not there is noticed as such.
    let nowhere = free_address();
    let place = Place { v4: nowhere, v5: nowhere, authority: None };
    assert_eq!(serves(&place, Version::V4).await, Err(Failed::Ended));
}

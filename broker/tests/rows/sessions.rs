//! Part 2: last wills, sessions, and what is left after a restart.

use std::time::Duration;

use muster_broker::BrokerLimits;

use crate::{
    DEAD, console, event, host,
    rig::{
        HOST,
        child::{Rumqttd, Settings},
        client::{Failed, Mqtt},
        place::{Ours, Place},
        wire::{BOTH, Connect, Properties, Publish, SESSION_EXPIRY, Version},
    },
    unit,
};

fn presence() -> String {
    format!("muster/s/00/h/{HOST}/presence")
}

async fn mortal(place: &Place, version: Version, payload: &str) -> Mqtt {
    let connect = Connect::new(&format!("{HOST}-1")).will(&presence(), payload);
    Mqtt::connect(place, version, HOST, &connect).await
}

async fn watcher(place: &Place, version: Version) -> Mqtt {
    let mut watcher = console(place, version).await;
    watcher.subscribe(&presence(), 1).await;
    watcher
}

#[tokio::test]
async fn takeover_publishes_old_will_and_keeps_new_one() {
    let rumqttd = Rumqttd::start(Settings::default());
    let mut watcher_there = watcher(&rumqttd.place, Version::V4).await;
    let _old = mortal(&rumqttd.place, Version::V4, "the old one is dead").await;
    let new = mortal(&rumqttd.place, Version::V4, "the new one is dead").await;
    // It lives, and is said to be dead.
    assert_eq!(watcher_there.message().await.text(), "the new one is dead");
    drop(new);
    // Now it is dead, and nothing is said.
    assert_eq!(watcher_there.message_within(Duration::from_secs(2)).await, Err(Failed::Silence));

    let ours = Ours::start(BrokerLimits::default()).await;
    for version in BOTH {
        let mut watcher = watcher(&ours.place, version).await;
        let mut old = mortal(&ours.place, version, "the old one is dead").await;
        let new = mortal(&ours.place, version, "the new one is dead").await;
        old.end().await;
        assert_eq!(watcher.message().await.text(), "the old one is dead");
        drop(new);
        assert_eq!(watcher.message().await.text(), "the new one is dead");
    }
}

/// Leaves a session with messages for it behind, and comes back; gives whether it is still there and what waited.
async fn away_and_back(place: &Place, version: Version, connect: &Connect, away: Duration) -> (bool, Vec<String>) {
    let mut client = Mqtt::connect(place, version, "console-main", connect).await;
    client.subscribe(&event(), 1).await;
    client.disconnect().await;
    let mut sender = host(place, version).await;
    for number in 0..50 {
        sender.publish(Publish::new(&event(), 1, number.to_string())).await;
    }
    tokio::time::sleep(away).await;
    let (mut client, accepted) = Mqtt::connect_to(place, version, "console-main", connect).await;
    let waiting = client.messages_until_quiet(Duration::from_secs(1)).await;
    (accepted.session_present, waiting.iter().map(|message| message.text().to_owned()).collect())
}

/// This one holds on both: it is here so that the next can rely on it.
#[tokio::test]
async fn messages_for_offline_session_keep_their_order() {
    let all: Vec<_> = (0..50).map(|number| number.to_string()).collect();
    let rumqttd = Rumqttd::start(Settings::default());
    let ours = Ours::start(BrokerLimits::default()).await;
    for (place, versions) in [(&rumqttd.place, &BOTH[..1]), (&ours.place, &BOTH[..])] {
        for version in versions {
            let connect = Connect::persistent("console-main");
            let back = away_and_back(place, *version, &connect, Duration::ZERO).await;
            assert_eq!(back, (true, all.clone()), "{version:?}");
        }
    }
}

#[tokio::test]
async fn a_session_ends_when_it_expires() {
    let briefly = Properties::new().four(SESSION_EXPIRY, 1);
    let connect = Connect::persistent("console-main").properties(briefly);
    let away = Duration::from_secs(3);
    let rumqttd = Rumqttd::start(Settings::default());
    assert!(away_and_back(&rumqttd.place, Version::V5, &connect, away).await.0);

    let ours = Ours::start(BrokerLimits::default()).await;
    let gone = (false, Vec::new());
    assert_eq!(away_and_back(&ours.place, Version::V5, &connect, away).await, gone);
    // Without an expiry it ends with its connection.
    let connect = Connect { clean: false, ..Connect::new("console-main") };
    assert_eq!(away_and_back(&ours.place, Version::V5, &connect, Duration::ZERO).await, gone);
}

#[tokio::test]
async fn an_unsubscribe_counts_in_a_resumed_session_too() {
    let rumqttd = Rumqttd::start(Settings::default());
    let mut client = resumed(&rumqttd.place, Version::V4).await;
    // It is not even answered.
    let unsubscribed = tokio::time::timeout(Duration::from_secs(2), client.unsubscribe(&event())).await;
    assert!(unsubscribed.is_err(), "{unsubscribed:?}");
    host(&rumqttd.place, Version::V4).await.publish(Publish::new(&event(), 1, "unwanted")).await;
    assert_eq!(client.message().await.text(), "unwanted");

    let ours = Ours::start(BrokerLimits::default()).await;
    for (version, reasons) in [(Version::V4, vec![]), (Version::V5, vec![0])] {
        let mut client = resumed(&ours.place, version).await;
        assert_eq!(client.unsubscribe(&event()).await, Ok(reasons));
        client.subscribe(&unit("a"), 1).await;
        let mut sender = host(&ours.place, version).await;
        sender.publish(Publish::new(&event(), 1, "unwanted")).await;
        sender.publish(Publish::new(&unit("a"), 1, "wanted")).await;
        assert_eq!(client.message().await.text(), "wanted");
    }
}

/// A client that has subscribed, gone, and come back.
async fn resumed(place: &Place, version: Version) -> Mqtt {
    let connect = Connect::persistent("operator-anna");
    let mut client = Mqtt::connect(place, version, "operator-anna", &connect).await;
    client.subscribe(&event(), 1).await;
    client.disconnect().await;
    let (client, accepted) = Mqtt::connect_to(place, version, "operator-anna", &connect).await;
    assert!(accepted.session_present);
    client
}

/// A client that says nothing more than its keep-alive allows, while messages flow to it; gives whether it is still
/// connected after a time in which it should have been missed.
async fn kept_while_silent(place: &Place, version: Version) -> bool {
    let connect = Connect::new("operator-anna").keep_alive(1);
    let mut silent = Mqtt::connect(place, version, "operator-anna", &connect).await;
    silent.subscribe(&event(), 0).await;
    let mut sender = host(place, version).await;
    for _ in 0..50 {
        sender.publish(Publish::new(&event(), 1, "x")).await;
        match silent.message_within(DEAD).await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            Err(_) => return false,
        }
    }
    true
}

#[tokio::test]
async fn silence_is_noticed_while_messages_flow() {
    let rumqttd = Rumqttd::start(Settings::default());
    assert!(kept_while_silent(&rumqttd.place, Version::V4).await);

    let ours = Ours::start(BrokerLimits::default()).await;
    for version in BOTH {
        assert!(!kept_while_silent(&ours.place, version).await);
    }
}

/// A client stops reading while a flood is meant for it; whether its last will comes.
async fn missed_when_it_stops_reading(place: &Place, version: Version) -> bool {
    let mut watcher = watcher(place, version).await;
    let connect = Connect::new(&format!("{HOST}-1")).keep_alive(1).will(&presence(), "dead");
    let mut stuck = Mqtt::connect(place, version, HOST, &connect).await;
    stuck.subscribe(&format!("muster/s/00/h/{HOST}/cmd"), 0).await;
    let mut console = Mqtt::connect(place, version, "console-b", &Connect::new("console-b")).await;
    // More than the kernel's buffers take on both sides.
    for _ in 0..300 {
        console.publish(Publish::new(&format!("muster/s/00/h/{HOST}/cmd"), 1, [b'x'; 60_000])).await;
    }
    let missed = watcher.message_within(DEAD).await;
    drop(stuck);
    missed.is_ok()
}

#[tokio::test]
async fn a_client_that_stops_reading_is_noticed() {
    let rumqttd = Rumqttd::start(Settings::default());
    assert!(!missed_when_it_stops_reading(&rumqttd.place, Version::V4).await);

    let ours = Ours::start(BrokerLimits::default()).await;
    for version in BOTH {
        assert!(missed_when_it_stops_reading(&ours.place, version).await);
    }
}

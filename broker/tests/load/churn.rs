//! Clients that come and go as fast as they can, in every way in which one can go.

use std::time::Duration;

use muster_broker::BrokerLimits;
use tokio::time::Instant;

use crate::{
    Witnesses, event,
    rig::{
        OTHER,
        child::OursApart,
        client::Mqtt,
        place::Place,
        wire::{Connect, DISCONNECT, Publish, Version},
    },
    size, until_connected,
};

/// One life of a client: how it comes, what it does, and how it goes all depend on its number.
async fn live(place: &Place, worker: usize, number: usize) {
    let version = if number.is_multiple_of(2) { Version::V4 } else { Version::V5 };
    // Few names for each worker, so that some take their own earlier sessions over.
    let client_id = format!("{OTHER}-{worker}-{}", number % 3);
    let presence = format!("muster/s/00/h/{OTHER}/presence");
    let connect = match number % 4 {
        0 => Connect::persistent(&client_id),
        1 => Connect::new(&client_id).will(&presence, "gone"),
        _ => Connect::new(&client_id),
    };
    let name = if number.is_multiple_of(5) { format!("operator-{worker}") } else { OTHER.to_owned() };
    let connect =
        if name == OTHER { connect } else { Connect { client_id: format!("{name}-{}", number % 3), ..connect } };
    let connect = if name == OTHER { connect } else { Connect { will: None, ..connect } };
    let mut client = Mqtt::connect(place, version, &name, &connect).await;
    if name == OTHER {
        client.subscribe(&format!("muster/s/00/h/{OTHER}/cmd"), 1).await;
        client.publish(Publish::new(&presence, (number % 2) as u8, number.to_string()).retained()).await;
    } else {
        // In the middle of what the witnesses say, with every quality of service.
        client.subscribe("muster/#", (number % 2) as u8).await;
        client.subscribe(&event(), 1).await;
    }
    match number % 3 {
        0 => client.disconnect().await,
        1 => client.send(&DISCONNECT).await,
        _ => drop(client),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn traffic_survives_connection_churn() {
    let lasts = Duration::from_secs(size(5, 60));
    let limits = BrokerLimits { connections_per_identity_max: 100, ..BrokerLimits::default() };
    let mut ours = OursApart::start(&limits);
    let witnesses = Witnesses::start(&ours.place).await;
    let started = Instant::now();
    let workers: Vec<_> = (0..8)
        .map(|worker| {
            let place = ours.place.clone();
            tokio::spawn(async move {
                let mut lives = 0;
                while started.elapsed() < lasts {
                    live(&place, worker, lives).await;
                    lives += 1;
                }
                lives
            })
        })
        .collect();
    let mut lives = 0;
    for worker in workers {
        lives += worker.await.unwrap();
    }
    assert!(lives > 100, "only {lives} lives");
    // Those of the pair, and nobody else.
    until_connected(&mut ours, 2).await;
    let passed = witnesses.end().await;
    assert!(passed > 100, "only {passed} messages");
    assert_eq!(ours.stat("router_deaths_total"), 0);
}

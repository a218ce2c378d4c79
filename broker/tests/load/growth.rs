//! Ever new names: of topics, clients, filters, sessions. What is over leaves nothing behind.

use std::time::Duration;

use muster_broker::BrokerLimits;

use crate::{
    rig::{
        OTHER,
        child::{OursApart, rss_bytes},
        client::Mqtt,
        place::Place,
        until,
        wire::{Connect, Properties, Publish, SESSION_EXPIRY, Version},
    },
    size, until_connected,
};

/// New topics of one cycle, and new clients.
const TOPICS: usize = 2_000;
const CLIENTS: usize = 40;

/// One cycle of names that nobody has used and nobody will.
async fn cycle(place: &Place, number: usize) {
    let mut reader = Mqtt::connect(place, Version::V5, "operator-a", &Connect::new("operator-a")).await;
    reader.subscribe("muster/s/+/h/+/unit/#", 0).await;
    let mut sender = Mqtt::connect(place, Version::V4, OTHER, &Connect::new(&format!("{OTHER}-sender"))).await;
    for part in 0..TOPICS / 100 {
        let topic = |index: usize| format!("muster/s/00/h/{OTHER}/unit/r{number}/a_unit_of_its_own_{part}_{index}");
        let mut packets = Vec::new();
        for index in 0..100 {
            packets.extend(Publish::new(&topic(index), 0, "x").encode(Version::V4));
            // Some stay, until they are cleared.
            if index % 10 == 0 {
                packets.extend(Publish::new(&topic(index), 0, "x").retained().encode(Version::V4));
                packets.extend(Publish::new(&topic(index), 0, "").retained().encode(Version::V4));
            }
        }
        sender.send(&packets).await;
        for _ in 0..120 {
            reader.message().await;
        }
    }
    for index in 0..CLIENTS {
        let id = format!("operator-b-{number}-{index}");
        // Half of them leave a session, for a second.
        let briefly = Properties::new().four(SESSION_EXPIRY, 1);
        let connect = if index % 2 == 0 { Connect::persistent(&id).properties(briefly) } else { Connect::new(&id) };
        let mut client = Mqtt::connect(place, Version::V5, "operator-b", &connect).await;
        for filter in 0..20 {
            client.subscribe(&format!("muster/s/+/h/+/unit/a_filter_{number}_{index}_{filter}/+"), 1).await;
        }
        client.disconnect().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unused_names_are_freed() {
    // The router's log reaches its full size, which has a bound, soon.
    let mut ours = OursApart::start(&BrokerLimits { intake_max_bytes: 65_536, ..BrokerLimits::default() });
    let (warm, cycles) = (8, size(8, 100));
    let mut before = 0;
    for number in 0..warm + cycles {
        if number == warm {
            before = rss_bytes(ours.child.pid());
        }
        cycle(&ours.place, number).await;
    }
    until_connected(&mut ours, 0).await;
    until("all sessions over", || ours.stat("sessions_asleep") == 0).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let after = rss_bytes(ours.child.pid());
    // A name costs some hundred bytes wherever it is kept: all of them would be several times this.
    let names = (cycles * (TOPICS + CLIENTS * 20)) as u64;
    let bound = (1 << 20) + names * 16;
    assert!(after < before + bound, "{} bytes for {names} names", after.saturating_sub(before));
    assert_eq!((ours.stat("retained"), ours.stat("router_deaths_total")), (0, 0));
}

//! Many clients at once.

use futures_util::{StreamExt, stream};
use muster_broker::BrokerLimits;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::{
    rig::{
        child::{OursApart, rss_bytes},
        client::Mqtt,
        wire::{Connect, Publish, Version},
    },
    size, until_connected,
};

/// Handshakes under way at once: as many as keep two cores busy.
const AT_ONCE: usize = 16;

/// What a connection may cost in a build without optimisation, whose futures are larger; `benches/broker` has the budget.
const EACH_MAX_BYTES: u64 = 24 * 1024;

fn host(number: usize) -> String {
    format!("{number:08x}-6a61-4a1c-9d0f-0d6d5a8f1f52")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_client_gets_a_broadcast() {
    let count = size(1_000, 9_500);
    // The broker's process inherits it.
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(hard.min(20_000)), hard).unwrap();
    let mut ours = OursApart::start(&BrokerLimits::default());
    let place = ours.place.clone();
    let before = rss_bytes(ours.child.pid());
    let mut clients: Vec<Mqtt> = stream::iter(0..count)
        .map(|number| {
            let place = place.clone();
            let version = if number % 2 == 0 { Version::V4 } else { Version::V5 };
            let connecting = async move {
                let connect = Connect::new(&format!("{}-1", host(number)));
                let mut client = Mqtt::connect(&place, version, &host(number), &connect).await;
                for filter in [format!("muster/s/00/h/{}/cmd", host(number)), "muster/s/00/cmd/all".to_owned()] {
                    client.subscribe(&filter, 1).await;
                }
                client
            };
            async { tokio::spawn(connecting).await.unwrap() }
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    assert_eq!(ours.stat("connections"), count as u64);
    let mut console = Mqtt::connect(&place, Version::V5, "console-main", &Connect::new("console-main")).await;
    for round in 0..3 {
        console.publish(Publish::new("muster/s/00/cmd/all", 1, round.to_string())).await;
        for client in &mut clients {
            assert_eq!(client.message().await.text(), round.to_string());
        }
    }
    let each = (rss_bytes(ours.child.pid()) - before) / count as u64;
    println!("{each} bytes for each of {count} connections");
    assert!(each < EACH_MAX_BYTES, "{each} bytes for each of {count} connections");
    drop(clients);
    until_connected(&mut ours, 1).await;
    assert_eq!(ours.stat("slow_total") + ours.stat("router_deaths_total"), 0);
}

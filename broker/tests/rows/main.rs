//! Each row of `BROKER.md`, parts 1 and 2: what ordinary clients do to rumqttd's own listener, shown on that listener in a
//! process of its own, and that the embedded broker, which stands on the same router, is beyond its reach.
//!
//! A test does the same to both. What the embedded broker lets nobody do in the first place (topics outside the fleet's,
//! strange client ids) is tried on it as well, and then the nearest thing that it permits.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[path = "../rig/mod.rs"]
mod rig;

mod delivery;
mod killers;
mod manners;
mod queues;
mod retained;
mod sessions;

use std::time::Duration;

use rig::{
    HOST,
    child::{OursApart, Rumqttd},
    client::{Failed, Mqtt},
    place::Place,
    wire::{Connect, Publish, Version},
};

/// Not a test of its own: what the others start in a process of its own.
#[test]
fn child() {
    rig::child::play(&[("rumqttd", Rumqttd::run), ("muster", OursApart::run)]);
}

/// A broker that answers nobody for this long is dead: one that lives does so in milliseconds.
const DEAD: Duration = Duration::from_secs(10);

/// Something that each host may say.
fn event() -> String {
    format!("muster/s/00/h/{HOST}/event")
}

/// A unit's topic of the host.
fn unit(name: &str) -> String {
    format!("muster/s/00/h/{HOST}/unit/default/{name}")
}

async fn console(place: &Place, version: Version) -> Mqtt {
    Mqtt::connect(place, version, "console-main", &Connect::new("console-main")).await
}

async fn host(place: &Place, version: Version) -> Mqtt {
    Mqtt::connect(place, version, HOST, &Connect::new(&format!("{HOST}-1"))).await
}

/// Whether two newcomers can have a message from one to the other.
async fn serves(place: &Place, version: Version) -> Result<(), Failed> {
    let topic = unit("probe");
    // That rumqttd is dead is to be seen, that the embedded broker lives is to be waited for.
    let patience = if place.authority.is_some() { rig::PATIENCE } else { DEAD };
    let reader = Connect::new("operator-probe");
    let (mut reader, _) = Mqtt::try_connect(place, version, "operator-probe", &reader, patience).await?;
    let writer = Connect::new(&format!("{HOST}-probe"));
    let (mut writer, _) = Mqtt::try_connect(place, version, HOST, &writer, patience).await?;
    let serving = async {
        reader.try_subscribe(&Default::default(), &[(&topic, 1)]).await?;
        writer.try_publish(Publish::new(&topic, 1, "are you there")).await?;
        reader.message_within(patience).await
    };
    let message = tokio::time::timeout(patience, serving).await.map_err(|_| Failed::Silence)??;
    assert_eq!(message.text(), "are you there");
    Ok(())
}

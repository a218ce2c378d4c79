//! What only the inside can bring about: the death of the router under connected clients.

use rumqttc::{LastWill, QoS};

use crate::{
    Broker, Config,
    fixture::{Fixture, HOST},
};

#[tokio::test]
async fn clients_come_back_when_the_router_has_died() {
    let fixture = Fixture::new().await;
    let presence = format!("muster/h/{HOST}/presence");
    let mut console = fixture.console().await;
    console.subscribe("muster/#", QoS::AtLeastOnce).await;
    let will = LastWill::new(&presence, "offline", QoS::AtLeastOnce, true);
    let mut host = fixture.mortal(HOST, &format!("{HOST}-1"), will).await;
    host.subscribe(&format!("muster/h/{HOST}/cmd"), QoS::AtLeastOnce).await;
    host.publish(&format!("muster/h/{HOST}/unit/default/a"), true, "kept").await;

    fixture.broker.shared.hub.link().await.unwrap().kill_router().await;
    console.ended().await;
    host.ended().await;
    fixture.until("a new router", |stats| stats.router_deaths_total == 1).await;

    // The host's connection ended after its will was out, so the new router is there.
    let mut console = fixture.console().await;
    console.subscribe("muster/h/+/unit/+/+", QoS::AtLeastOnce).await;
    assert_eq!(console.text().await.1, "kept");
    console.subscribe(&presence, QoS::AtLeastOnce).await;
    assert_eq!(console.text().await.1, "offline");
    let mut host = fixture.client(HOST, &format!("{HOST}-1")).await;
    host.publish(&presence, true, "online").await;
    assert_eq!(console.text().await.1, "online");
}

#[test]
fn a_broker_can_be_moved_between_threads() {
    fn check<T: Send + Sync>() {}
    fn check_future<F: Future + Send>(_: fn(Config) -> F) {}
    check::<Broker>();
    check_future(Broker::start);
}

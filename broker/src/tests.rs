//! Tests that need the inside: the death of the router under connected clients.

use rumqttc::{LastWill, QoS};

use crate::{
    Broker, Config,
    fixture::{Fixture, HOST},
};

#[tokio::test]
async fn clients_survive_the_death_of_the_router() {
    let fixture = Fixture::new().await;
    let presence = format!("muster/s/00/h/{HOST}/presence");
    let event = format!("muster/s/00/h/{HOST}/event");
    let mut console = fixture.console().await;
    console.subscribe("muster/#", QoS::AtLeastOnce).await;
    let will = LastWill::new(&presence, "offline", QoS::AtLeastOnce, true);
    let mut host = fixture.mortal(HOST, &format!("{HOST}-1"), will).await;
    host.publish(&format!("muster/s/00/h/{HOST}/unit/default/a"), true, "kept").await;
    assert_eq!(console.text().await.1, "kept");
    for deaths in 1..=3 {
        fixture.broker.shared.hub.kill_router().await;
        for index in 0..100 {
            host.publish(&event, false, &index.to_string()).await;
        }
        for index in 0..100 {
            assert_eq!(console.text().await.1, index.to_string());
        }
        fixture.until("a new router", |stats| stats.router_deaths_total == deaths).await;
    }
    host.cut();
    assert_eq!(console.text().await.1, "offline");
    let mut late = fixture.client("console-late", "console-late").await;
    late.subscribe("muster/s/+/h/+/unit/+/+", QoS::AtLeastOnce).await;
    assert_eq!(late.text().await.1, "kept");
    assert_eq!(fixture.broker.stats().connected_total, 3);
}

#[test]
fn a_broker_can_be_moved_between_threads() {
    fn check<T: Send + Sync>() {}
    fn check_future<F: Future + Send>(_: fn(Config) -> F) {}
    check::<Broker>();
    check_future(Broker::start);
}

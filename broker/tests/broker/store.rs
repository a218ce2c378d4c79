//! Tests of what survives the broker, and of what it reports.

use std::path::Path;

use muster_broker::{Beginning, Broker, BrokerError, Config, Refused};
use rumqttc::QoS;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::fixture::{Authority, Fixture, HOST, patiently};

fn config(authority: &Authority, folder: &Path) -> Config {
    Config {
        store: Some(folder.to_owned()),
        monitor: Some("127.0.0.1:0".parse().unwrap()),
        ..Config::new("127.0.0.1:0".parse().unwrap(), authority.tls())
    }
}

async fn start(authority: Authority, folder: &Path) -> Fixture {
    Fixture { broker: Broker::start(config(&authority, folder)).await.unwrap(), authority }
}

#[tokio::test]
async fn retained_messages_survive_restart() {
    let folder = TempDir::new().unwrap();
    let fixture = start(Authority::new(), folder.path()).await;
    let unit = |name: &str| format!("muster/s/00/h/{HOST}/unit/default/{name}");
    let mut host = fixture.client(HOST, &format!("{HOST}-1")).await;
    for (name, payload) in [("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("b", "")] {
        host.publish(&unit(name), true, payload).await;
    }
    let Fixture { authority, broker } = fixture;
    broker.stop().await;

    let fixture = start(authority, folder.path()).await;
    assert_eq!(fixture.broker.stats().retained, 2);
    let mut console = fixture.console().await;
    console.subscribe("muster/s/+/h/+/unit/#", QoS::AtLeastOnce).await;
    let mut found = vec![console.text().await, console.text().await];
    found.sort_unstable();
    assert_eq!(found, [(unit("a"), "2".to_owned(), true), (unit("c"), "1".to_owned(), true)]);
    assert!(fixture.broker.stats().journal.unwrap().is_whole);
}

#[tokio::test]
async fn second_broker_on_a_folder_is_refused() {
    let folder = TempDir::new().unwrap();
    let fixture = start(Authority::new(), folder.path()).await;
    let second = Broker::start(config(&fixture.authority, folder.path())).await;
    assert!(matches!(second, Err(BrokerError::StoreHeld { .. })), "{second:?}");
    let Fixture { authority, broker } = fixture;
    broker.stop().await;
    start(authority, folder.path()).await.broker.stop().await;
}

#[tokio::test]
async fn metrics_count_events() {
    let folder = TempDir::new().unwrap();
    let fixture = start(Authority::new(), folder.path()).await;
    let mut host = fixture.client(HOST, &format!("{HOST}-1")).await;
    host.publish(&format!("muster/s/00/h/{HOST}/presence"), true, "online").await;
    // In TLS 1.3 a client is told only after its side of the handshake.
    let _stranger = fixture.raw_with(fixture.authority.client(None)).await;
    fixture.until("the stranger to be turned away", |stats| stats.refused_total == 1).await;
    let stats = fixture.broker.stats();
    assert_eq!((stats.begun.get(Beginning::Accepted), stats.begun.get(Beginning::Tls)), (1, 1));
    assert_eq!(stats.refusals.get(Refused::Publish), 0);

    let page = patiently("the metrics", async {
        let mut stream = TcpStream::connect(fixture.broker.monitor_addr().unwrap()).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").await.unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).await.unwrap();
        page
    })
    .await;
    for line in [
        "muster_broker_connections{version=\"3.1.1\"} 1",
        "muster_broker_connections_begun_total{outcome=\"tls\"} 1",
        "muster_broker_messages_received_total 1",
        "muster_broker_retained_messages 1",
        "muster_broker_journal_whole 1",
    ] {
        assert!(page.lines().any(|given| given == line), "{line} in {page}");
    }
}

#[tokio::test]
async fn taken_metrics_address_is_reported() {
    let folder = TempDir::new().unwrap();
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let monitor = taken.local_addr().unwrap();
    let config = Config { monitor: Some(monitor), ..config(&Authority::new(), folder.path()) };
    let refused = Broker::start(config).await;
    assert!(matches!(refused, Err(BrokerError::BindMonitor { address, .. }) if address == monitor), "{refused:?}");
}

#[tokio::test]
async fn system_topics_are_read_only() {
    let folder = TempDir::new().unwrap();
    let fixture = start(Authority::new(), folder.path()).await;
    let mut operator = fixture.client("operator-anna", "operator-anna").await;
    operator.subscribe("$SYS/#", QoS::AtLeastOnce).await;
    let mut told = std::collections::BTreeMap::new();
    // The last of them.
    while !told.contains_key("$SYS/broker/journal/whole") {
        let (topic, payload, retained) = operator.text().await;
        assert!(retained && told.insert(topic, payload).is_none());
    }
    assert_eq!(told["$SYS/broker/clients/connected"], "1");
    assert_eq!(told["$SYS/broker/journal/whole"], "1");
    assert!(told["$SYS/broker/version"].starts_with("muster version "));
    // They come again by themselves, and no other wildcard brings them.
    operator.subscribe("muster/#", QoS::AtLeastOnce).await;
    assert_eq!(operator.text().await, ("$SYS/broker/version".to_owned(), told["$SYS/broker/version"].clone(), false));
    assert_eq!(fixture.broker.stats().subscriptions, 2);

    let mut host = fixture.client(HOST, &format!("{HOST}-1")).await;
    host.mqtt.publish("$SYS/broker/version", QoS::AtLeastOnce, true, "forged").await.unwrap();
    host.ended().await;
    fixture.until("the refusal", |stats| stats.refusals.get(Refused::Publish) == 1).await;
}

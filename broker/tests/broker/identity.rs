//! Tests of authentication and permissions.

use muster_broker::{Broker, BrokerError, BrokerLimits, Config, Tls};
use rumqttc::{LastWill, QoS, SubscribeReasonCode};

use crate::fixture::{Authority, Client, Fixture, HOST, OTHER, connect, connect_level, patiently, publish};

const REFUSED: SubscribeReasonCode = SubscribeReasonCode::Failure;
const GRANTED: SubscribeReasonCode = SubscribeReasonCode::Success(QoS::AtLeastOnce);

#[tokio::test]
async fn only_certificates_of_the_authority_are_admitted() {
    let fixture = Fixture::new().await;
    let foreign = Authority::new().issue("console-main");
    let expired = fixture.authority.issue_for("console-main", 2024, 2025);
    let early = fixture.authority.issue_for("console-main", 4000, 4001);
    for pair in [None, Some(&foreign), Some(&expired), Some(&early)] {
        let config = fixture.authority.client(pair);
        // TLS 1.3 tells a client of its refusal only after the client thinks it is done.
        if let Ok(mut raw) = fixture.raw_with(config).await {
            raw.try_send(&connect("console-main", 30)).await.ok();
            assert_eq!(raw.rest().await, b"");
        }
    }
    fixture.until("four refusals", |stats| stats.refused_total == 4 && stats.connected_total == 0).await;
    fixture.console().await.disconnect().await;
}

#[tokio::test]
async fn certificate_must_match_identity_and_client_id() {
    let fixture = Fixture::new().await;
    for (common_name, client_id, code) in [
        ("root", "root", 5),
        (HOST, HOST, 2),
        (HOST, "", 2),
        (HOST, &format!("{OTHER}-1"), 2),
        ("console-main", "console-other", 2),
        ("operator-anna", "operator-anna/x", 2),
    ] {
        let mut raw = fixture.raw(common_name).await;
        raw.send(&connect(client_id, 30)).await;
        assert_eq!(raw.rest().await, [0x20, 2, 0, code], "{common_name} as {client_id:?}");
    }
    for (common_name, client_id) in
        [(HOST, &*format!("{HOST}-1")), ("operator-anna", ""), ("console-main", "console-main")]
    {
        fixture.raw(common_name).await.connect(client_id, 30).await;
    }
}

#[tokio::test]
async fn unsupported_version_is_refused_in_its_format() {
    let fixture = Fixture::new().await;
    for (level, answer) in [(6, &[0x20, 3, 0, 0x84, 0][..]), (3, &[0x20, 2, 0, 1])] {
        let mut raw = fixture.raw("console-main").await;
        raw.send(&connect_level(level, "console-main", 30)).await;
        assert_eq!(raw.rest().await, answer, "level {level}");
    }
}

#[tokio::test]
async fn host_publishes_only_as_itself() {
    let fixture = Fixture::new().await;
    let mut console = fixture.console().await;
    assert_eq!(console.subscribe("muster/#", QoS::AtLeastOnce).await, [GRANTED]);
    for topic in [
        format!("muster/s/00/h/{OTHER}/presence"),
        format!("muster/s/00/h/{HOST}/cmd"),
        "muster/s/00/cmd/all".to_owned(),
        format!("s/00/h/{HOST}/presence"),
        "é/x".to_owned(),
        "$SYS/x".to_owned(),
        format!("muster/s/00/h/{HOST}/unit/+/x"),
    ] {
        let mut raw = fixture.raw(HOST).await;
        raw.connect(&format!("{HOST}-1"), 30).await;
        raw.send(&publish(&topic, b"denied")).await;
        assert_eq!(raw.rest().await, b"", "{topic}");
    }
    let mut host = fixture.client(HOST, &format!("{HOST}-1")).await;
    host.publish(&format!("muster/s/00/h/{HOST}/presence"), false, "mine").await;
    assert_eq!(console.text().await.1, "mine");
    assert_eq!(fixture.broker.stats().denied_total, 7);
    assert_eq!(fixture.broker.stats().router_deaths_total, 0);
}

#[tokio::test]
async fn will_on_foreign_topic_is_refused() {
    let fixture = Fixture::new().await;
    for topic in [format!("muster/s/00/h/{OTHER}/presence"), "muster/#".to_owned(), "elsewhere".to_owned()] {
        let mut options = fixture.options(HOST, &format!("{HOST}-1"));
        options.set_last_will(LastWill::new(&topic, "dead", QoS::AtLeastOnce, true));
        let error = Client::start(options).await.err().expect("refused");
        assert!(error.to_string().contains("NotAuthorized"), "{topic}: {error}");
    }
}

#[tokio::test]
async fn subscriptions_are_granted_or_refused_one_by_one() {
    let fixture = Fixture::new().await;
    let mut host = fixture.client(HOST, &format!("{HOST}-1")).await;
    for (filter, expected) in [
        (format!("muster/s/00/h/{HOST}/cmd"), GRANTED),
        ("muster/s/00/cmd/group/+".to_owned(), GRANTED),
        (format!("muster/s/00/h/{OTHER}/cmd"), REFUSED),
        (format!("muster/s/00/h/{HOST}/#"), REFUSED),
        ("muster/#".to_owned(), REFUSED),
        ("#".to_owned(), REFUSED),
        ("$SYS/#".to_owned(), REFUSED),
        (format!("$share/g/muster/s/00/h/{HOST}/cmd"), REFUSED),
    ] {
        assert_eq!(host.subscribe(&filter, QoS::AtLeastOnce).await, [expected], "{filter}");
    }
    // And what is not permitted is not delivered.
    let mut console = fixture.console().await;
    console.publish(&format!("muster/s/00/h/{OTHER}/cmd"), false, "for another").await;
    console.publish(&format!("muster/s/00/h/{HOST}/cmd"), false, "for this one").await;
    assert_eq!(host.text().await.1, "for this one");
}

#[tokio::test]
async fn quality_2_is_granted_as_1() {
    let fixture = Fixture::new().await;
    let mut console = fixture.console().await;
    assert_eq!(console.subscribe("muster/#", QoS::ExactlyOnce).await, [GRANTED]);
}

#[tokio::test]
async fn an_identity_has_a_few_connections() {
    let fixture =
        Fixture::with(BrokerLimits { connections_per_identity_max: 2, connections_max: 3, ..BrokerLimits::default() })
            .await;
    let mut raws = Vec::new();
    for (common_name, client_id, code) in [
        ("operator-anna", "operator-anna-1", 0),
        ("operator-anna", "operator-anna-2", 0),
        ("operator-anna", "operator-anna-3", 3),
        ("console-main", "console-main", 0),
        ("console-other", "console-other", 3),
        // Who takes over needs no further place.
        ("operator-anna", "operator-anna-1", 0),
    ] {
        let mut raw = fixture.raw(common_name).await;
        raw.send(&connect(client_id, 30)).await;
        raw.expect(&[0x20, 2, 0, code]).await;
        raws.push(raw);
    }
}

#[tokio::test]
async fn failed_start_has_a_reason() {
    let authority = Authority::new();
    let config = |tls: Tls| Config::new("127.0.0.1:0".parse().unwrap(), tls);
    let running = Broker::start(config(authority.tls())).await.unwrap();
    let taken = Config { listen: running.local_addr(), ..config(authority.tls()) };
    match Broker::start(taken).await {
        Err(BrokerError::Bind { address, .. }) => assert_eq!(address, running.local_addr()),
        other => panic!("{other:?}"),
    }
    running.stop().await;
    for (tls, what) in [
        (Tls { key: authority.issue("other").key, ..authority.tls() }, "the broker's certificate with its key"),
        (Tls { key: "nonsense".to_owned(), ..authority.tls() }, "the broker's key"),
        (Tls { certificate: String::new(), ..authority.tls() }, "the broker's certificate"),
        (Tls { authority: "nonsense".to_owned(), ..authority.tls() }, "the authority's certificate"),
    ] {
        match Broker::start(config(tls)).await {
            Err(BrokerError::Tls { what: found, .. }) => assert_eq!(found, what),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_stop_ends_every_connection_and_frees_the_address() {
    let fixture = Fixture::new().await;
    let address = fixture.address();
    let mut console = fixture.console().await;
    console.subscribe("muster/#", QoS::AtLeastOnce).await;
    let mut raw = fixture.raw(HOST).await;
    raw.connect(&format!("{HOST}-1"), 30).await;
    let silent = tokio::net::TcpStream::connect(address).await.unwrap();
    let Fixture { broker, authority } = fixture;
    patiently("the stop", broker.stop()).await;
    console.ended().await;
    assert_eq!(raw.rest().await, b"");
    drop(silent);
    let again = Config::new(address, authority.tls());
    Broker::start(again).await.unwrap().stop().await;
}

//! Tests of programs on the same host, without TLS, with a name and a password.

use std::time::Duration;

use muster_broker::{Broker, BrokerError, BrokerLimits, Config, PlainListener, Users};
use rumqttc::{MqttOptions, QoS};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::fixture::{Authority, Client, Fixture, HOST, OTHER, connect, packet, patiently};

/// Hashes with few rounds, by Python's hashlib: what a check costs is not what is tested here.
const HASHES: [&str; 2] = [
    // a host's
    "$pbkdf2-sha256$i=2000$c2FsdHNhbHRzYWx0c2FsdA$2dBPzvJNJIv4W6n/BadgdtdcYQMjTGYVu4FRRtpDXT0",
    // anna's
    "$pbkdf2-sha256$i=2000$c2FsdHNhbHRzYWx0c2FsdA$lt05e5w4thDcoMFAfAChRHsXOIHn1GBidmDWA4/22Tg",
];

/// A broker with two users.
async fn with_users(limits: BrokerLimits) -> Fixture {
    let [host, anna] = HASHES;
    let file = format!("# who may\n{HOST}:{host}\noperator-anna:{anna}\n");
    let users = Users::parse(&file).unwrap();
    let plain = PlainListener { listen: "127.0.0.1:0".parse().unwrap(), users };
    Fixture::configured(|config| Config { plain: Some(plain), limits, ..config }).await
}

fn options(fixture: &Fixture, client_id: &str, credentials: Option<(&str, &str)>) -> MqttOptions {
    let mut options = MqttOptions::new(client_id, "127.0.0.1", fixture.broker.plain_addr().unwrap().port());
    options.set_keep_alive(Duration::from_secs(30));
    if let Some((name, password)) = credentials {
        options.set_credentials(name, password);
    }
    options
}

#[tokio::test]
async fn user_has_the_identity_of_its_name() {
    let fixture = with_users(BrokerLimits::default()).await;
    let mut console = fixture.console().await;
    console.subscribe("muster/#", QoS::AtLeastOnce).await;
    let mut host = Client::start(options(&fixture, &format!("{HOST}-1"), Some((HOST, "a host's")))).await.unwrap();
    host.publish(&format!("muster/s/00/h/{HOST}/presence"), false, "from without TLS").await;
    assert_eq!(console.text().await.1, "from without TLS");
    assert_eq!(
        host.subscribe(&format!("muster/s/00/h/{OTHER}/cmd"), QoS::AtLeastOnce).await,
        [rumqttc::SubscribeReasonCode::Failure]
    );
    host.disconnect().await;
}

#[tokio::test]
async fn wrong_password_is_refused() {
    let fixture = with_users(BrokerLimits::default()).await;
    let host = format!("{HOST}-1");
    for (client_id, credentials, part) in [
        (&*host, Some((HOST, "anna's")), "BadUserNamePassword"),
        ("console-main", Some(("console-main", "anna's")), "BadUserNamePassword"),
        ("operator-anna", Some(("operator-anna", "")), "BadUserNamePassword"),
        ("operator-anna", None, "NotAuthorized"),
        (&host, Some(("operator-anna", "anna's")), "BadClientId"),
    ] {
        let error = Client::start(options(&fixture, client_id, credentials)).await.err().expect("refused");
        assert!(error.to_string().contains(part), "{client_id} {credentials:?}: {error}");
    }
    fixture.until("five refusals", |stats| stats.refused_total == 5 && stats.connected_total == 0).await;
}

#[tokio::test]
async fn password_guesses_do_not_block_others() {
    let fixture = with_users(BrokerLimits { connect_timeout_ms: 300, ..BrokerLimits::default() }).await;
    let address = fixture.broker.plain_addr().unwrap();
    let mut guessing = Vec::new();
    let guess = {
        let fields = [&b"\0\x0doperator-anna"[..], b"\0\x0doperator-anna", b"\0\x05wrong"].concat();
        packet(0x10, &[&b"\0\x04MQTT\x04\xc2\0\x1e"[..], &fields].concat())
    };
    for _ in 0..30 {
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(&guess).await.unwrap();
        guessing.push(socket);
    }
    // Those with a certificate do not wait for them.
    fixture.console().await.disconnect().await;
    for mut socket in guessing {
        let mut answer = Vec::new();
        patiently("an answer", socket.read_to_end(&mut answer)).await.unwrap();
        assert!(matches!(answer[..], [0x20, 2, 0, 3 | 4]), "{answer:?}");
    }
}

#[tokio::test]
async fn client_certificate_does_not_replace_password() {
    let fixture = with_users(BrokerLimits::default()).await;
    let mut socket = TcpStream::connect(fixture.broker.plain_addr().unwrap()).await.unwrap();
    socket.write_all(&connect("operator-anna", 30)).await.unwrap();
    let mut answer = Vec::new();
    patiently("an answer", socket.read_to_end(&mut answer)).await.unwrap();
    assert_eq!(answer, [0x20, 2, 0, 5]);
}

#[tokio::test]
async fn plain_listener_is_loopback_only() {
    let authority = Authority::new();
    for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "[::ffff:192.0.2.1]:0"] {
        let plain = PlainListener { listen: listen.parse().unwrap(), users: Users::parse("").unwrap() };
        let config = Config::new("127.0.0.1:0".parse().unwrap(), authority.tls());
        match Broker::start(Config { plain: Some(plain), ..config }).await {
            Err(BrokerError::NotLoopback(address)) => assert_eq!(address.to_string(), listen),
            other => panic!("{other:?}"),
        }
    }
}

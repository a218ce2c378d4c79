//! Tests of revoked certificates.

use std::sync::Arc;

use muster_broker::{Broker, Config, RevocationError};
use rumqttc::QoS;
use rustls::ClientConfig;

use crate::fixture::{Authority, Client, Day, Fixture, HOST, OTHER, Raw, connect, connect_will, packet, patiently};

#[tokio::test]
async fn revoked_client_is_disconnected_and_refused() {
    let fixture = Fixture::new().await;
    let (revoked, other) = (fixture.authority.issue(HOST), fixture.authority.issue(OTHER));
    let mut raw = fixture.raw_with(fixture.authority.client(Some(&revoked))).await.unwrap();
    raw.connect(&format!("{HOST}-1"), 30).await;
    let mut stays = fixture.raw_with(fixture.authority.client(Some(&other))).await.unwrap();
    stays.connect(&format!("{OTHER}-1"), 30).await;

    let list = fixture.authority.revocation_list(&[revoked.serial, 1 << 40], Day::Tomorrow);
    let revocations = fixture.broker.revocations();
    assert_eq!(revocations.replace(&list).unwrap().count, 2);
    assert_eq!(raw.rest().await, b"");
    fixture.until("the revoked one gone", |stats| stats.connections == 1).await;

    // TLS 1.3 tells a client of its refusal only after the client thinks it is done.
    let refused = match fixture.raw_with(fixture.authority.client(Some(&revoked))).await {
        Err(error) => error,
        Ok(mut raw) => {
            raw.try_send(&connect(&format!("{HOST}-1"), 30)).await.ok();
            raw.error().await
        }
    };
    assert!(refused.to_string().contains("CertificateRevoked"), "{refused}");
    fixture.until("the refusal", |stats| stats.refused_total == 1).await;
    stays.send(&[0xc0, 0]).await;
    stays.expect(&[0xd0, 0]).await;

    // A new certificate of the same host is another one.
    let mut renewed = fixture.raw(HOST).await;
    renewed.connect(&format!("{HOST}-1"), 30).await;

    // And what is on no list any more is good again.
    assert_eq!(revocations.replace(&fixture.authority.revocation_list(&[], Day::Tomorrow)).unwrap().count, 0);
    let mut raw = fixture.raw_with(fixture.authority.client(Some(&revoked))).await.unwrap();
    raw.connect(&format!("{HOST}-2"), 30).await;
}

#[tokio::test]
async fn invalid_list_changes_nothing() {
    let fixture = Fixture::new().await;
    let revoked = fixture.authority.issue(HOST);
    let client = fixture.authority.client(Some(&revoked));
    let revocations = fixture.broker.revocations();
    revocations.replace(&fixture.authority.revocation_list(&[revoked.serial], Day::Tomorrow)).unwrap();
    let foreign = Authority::named("somebody else").revocation_list(&[], Day::Tomorrow);
    let expired = fixture.authority.revocation_list(&[], Day::Yesterday);
    assert!(matches!(revocations.replace(&foreign), Err(RevocationError::Foreign { .. })));
    assert!(matches!(revocations.replace(&expired), Err(RevocationError::Expired { .. })));
    assert!(matches!(revocations.replace("nonsense"), Err(RevocationError::Pem(_))));
    if let Ok(mut raw) = fixture.raw_with(client).await {
        raw.try_send(&connect(&format!("{HOST}-1"), 30)).await.ok();
        assert_eq!(raw.rest().await, b"");
    }
    fixture.until("the refusal", |stats| stats.refused_total == 1 && stats.connected_total == 0).await;
}

#[tokio::test]
async fn clients_connecting_during_a_change_are_checked() {
    let fixture = Fixture::new().await;
    let mut console = fixture.console().await;
    console.subscribe("muster/#", QoS::AtLeastOnce).await;
    let pair = fixture.authority.issue(HOST);
    let client = fixture.authority.client(Some(&pair));
    let list = fixture.authority.revocation_list(&[pair.serial], Day::Tomorrow);
    let none = fixture.authority.revocation_list(&[], Day::Tomorrow);
    let revocations = fixture.broker.revocations();
    for round in 0..20_u64 {
        revocations.replace(&none).unwrap();
        let coming = async {
            let Ok(mut raw) = fixture.raw_with(client.clone()).await else { return };
            raw.try_send(&connect(&format!("{HOST}-1"), 30)).await.ok();
            // Whether or not it was let in for a moment, it ends.
            raw.rest().await;
        };
        let changing = async {
            tokio::time::sleep(std::time::Duration::from_micros(round * 500)).await;
            revocations.replace(&list).unwrap();
        };
        patiently("the end", async { tokio::join!(coming, changing) }).await;
    }
    fixture.until("only the console", |stats| stats.connections == 1).await;
}

#[tokio::test]
async fn clients_of_a_dropped_authority_end_and_others_come_back() {
    let fixture = Fixture::new().await;
    let (old, new) = (&fixture.authority, Authority::named("the next authority"));
    let tls = |trusted: &[&Authority], of: &Authority| {
        let certificates = trusted.iter().map(|authority| authority.certificate.as_str()).collect();
        muster_broker::Tls { authority: certificates, ..of.tls() }
    };
    let credentials = fixture.broker.credentials();
    let first = old.client(Some(&old.issue(HOST)));
    // It trusts the server's certificate, which stays under the old authority for now.
    let moved = new.issue(OTHER);
    let moved_client = |server: &Authority| {
        let mut config = ClientConfig::clone(&server.client(None));
        config.client_auth_cert_resolver = new.client(Some(&moved)).client_auth_cert_resolver.clone();
        Arc::new(config)
    };
    let connected = async |client: Arc<ClientConfig>, host: &str| -> Option<Raw> {
        let mut raw = fixture.raw_with(client).await.ok()?;
        raw.try_send(&connect(&format!("{host}-1"), 30)).await.ok()?;
        Some(raw)
    };
    let mut one = connected(first.clone(), HOST).await.unwrap();
    one.expect(&[0x20, 2, 0, 0]).await;
    if let Some(mut refused) = connected(moved_client(old), OTHER).await {
        assert_eq!(refused.rest().await, b"");
    }
    credentials.replace_tls(&tls(&[&new, old], old)).unwrap();
    let mut two = connected(moved_client(old), OTHER).await.unwrap();
    two.expect(&[0x20, 2, 0, 0]).await;
    assert_eq!(fixture.broker.stats().connections, 2, "nobody is disturbed by more authorities");

    credentials.replace_tls(&tls(&[&new], &new)).unwrap();
    one.rest().await;
    two.rest().await;
    let mut two = connected(moved_client(&new), OTHER).await.unwrap();
    two.expect(&[0x20, 2, 0, 0]).await;
    let mut under_old = ClientConfig::clone(&new.client(None));
    under_old.client_auth_cert_resolver = first.client_auth_cert_resolver.clone();
    if let Some(mut refused) = connected(Arc::new(under_old), HOST).await {
        assert_eq!(refused.rest().await, b"");
    }
    fixture.until("the moved host alone", |stats| stats.connections == 1).await;
}

/// A publish of QoS 0 that is retained.
fn retained(topic: &str, payload: &str) -> Vec<u8> {
    let length = u16::try_from(topic.len()).unwrap().to_be_bytes();
    packet(0x31, &[&length[..], topic.as_bytes(), payload.as_bytes()].concat())
}

async fn texts(client: &mut Client, count: usize) -> Vec<(String, String)> {
    let mut texts = Vec::new();
    for _ in 0..count {
        let (topic, text, _) = client.text().await;
        texts.push((topic.strip_prefix("muster/s/00/h/").unwrap().to_owned(), text));
    }
    texts
}

fn named(texts: &[(&str, &str, &str)]) -> Vec<(String, String)> {
    texts.iter().map(|(host, below, text)| (format!("{host}/{below}"), (*text).to_owned())).collect()
}

#[tokio::test]
async fn retained_messages_of_revoked_client_are_cleared() {
    let fixture = Fixture::new().await;
    let mut console = fixture.console().await;
    console.subscribe("muster/s/#", QoS::AtLeastOnce).await;
    let revoked = fixture.authority.issue(HOST);
    let mut raw = fixture.raw_with(fixture.authority.client(Some(&revoked))).await.unwrap();
    let topic = |below: &str| format!("muster/s/00/h/{HOST}/{below}");
    raw.send(&connect_will(&format!("{HOST}-1"), 30, &topic("presence"), "gone")).await;
    raw.expect(&[0x20, 2, 0, 0]).await;
    raw.send(&[retained(&topic("presence"), "here"), retained(&topic("unit/default/a"), "runs")].concat()).await;
    let mut other = fixture.client(OTHER, &format!("{OTHER}-1")).await;
    other.publish(&format!("muster/s/00/h/{OTHER}/presence"), true, "here").await;
    // What a console says of a host is the console's to take back.
    let mut sender = fixture.console_named("console-other").await;
    sender.publish(&topic("desired"), true, "all of it").await;
    texts(&mut console, 4).await;

    let list = fixture.authority.revocation_list(&[revoked.serial], Day::Tomorrow);
    fixture.broker.revocations().replace(&list).unwrap();
    // The last will first, so that nothing comes back behind what takes it away.
    let found = texts(&mut console, 3).await;
    assert_eq!(found, named(&[(HOST, "presence", "gone"), (HOST, "presence", ""), (HOST, "unit/default/a", "")]));
    let mut late = fixture.console_named("console-late").await;
    late.subscribe("muster/s/#", QoS::AtLeastOnce).await;
    assert_eq!(texts(&mut late, 2).await, named(&[(HOST, "desired", "all of it"), (OTHER, "presence", "here")]));
    assert_eq!(fixture.broker.stats().retained_revoked_total, 2);

    // A host that is there with another certificate keeps what it has.
    let mut renewed = fixture.client(HOST, &format!("{HOST}-1")).await;
    renewed.publish(&topic("presence"), true, "again").await;
    let list = fixture.authority.revocation_list(&[revoked.serial, 1 << 40], Day::Tomorrow);
    fixture.broker.revocations().replace(&list).unwrap();
    other.publish(&format!("muster/s/00/h/{OTHER}/event"), false, "fence").await;
    assert_eq!(texts(&mut late, 2).await, named(&[(HOST, "presence", "again"), (OTHER, "event", "fence")]));
    assert_eq!(fixture.broker.stats().retained, 3);
}

/// Who is revoked while it is away, and while the broker is.
#[tokio::test]
async fn retained_messages_of_offline_revoked_client_are_cleared() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let config = || Config {
        store: Some(folder.path().to_owned()),
        ..Config::new("127.0.0.1:0".parse().unwrap(), authority.tls())
    };
    let revoked = [authority.issue(HOST), authority.issue(OTHER)];
    let broker = Broker::start(config()).await.unwrap();
    let fixture = Fixture { broker, authority: Authority::new() };
    for (host, pair) in [HOST, OTHER].into_iter().zip(&revoked) {
        let mut raw = fixture.raw_with(authority.client(Some(pair))).await.unwrap();
        raw.connect(&format!("{host}-1"), 30).await;
        raw.send(&[retained(&format!("muster/s/00/h/{host}/presence"), "here"), packet(0xe0, &[])].concat()).await;
        raw.rest().await;
    }
    fixture.until("both retained", |stats| stats.retained == 2 && stats.connections == 0).await;
    let list = authority.revocation_list(&[revoked[0].serial], Day::Tomorrow);
    fixture.broker.revocations().replace(&list).unwrap();
    fixture.until("one taken away", |stats| stats.retained == 1).await;
    fixture.broker.stop().await;

    let fixture = Fixture { broker: Broker::start(config()).await.unwrap(), authority: fixture.authority };
    assert_eq!(fixture.broker.stats().retained, 1);
    let list = authority.revocation_list(&[revoked[0].serial, revoked[1].serial], Day::Tomorrow);
    fixture.broker.revocations().replace(&list).unwrap();
    fixture.until("the other taken away", |stats| stats.retained == 0).await;
}

//! Certificates that are good no more.

use muster_broker::RevocationError;
use rumqttc::QoS;

use crate::fixture::{Authority, Day, Fixture, HOST, OTHER, connect, patiently};

#[tokio::test]
async fn who_is_revoked_is_sent_away_and_not_let_in_again() {
    let fixture = Fixture::new().await;
    let (revoked, other) = (fixture.authority.issue(HOST), fixture.authority.issue(OTHER));
    let mut raw = fixture.raw_with(fixture.authority.client(Some(&revoked))).await.unwrap();
    raw.connect(&format!("{HOST}-1"), 30).await;
    let mut stays = fixture.raw_with(fixture.authority.client(Some(&other))).await.unwrap();
    stays.connect(&format!("{OTHER}-1"), 30).await;

    let list = fixture.authority.revocation_list(&[revoked.serial, 1 << 40], Day::Tomorrow);
    let revocations = fixture.broker.revocations();
    assert_eq!(revocations.replace(&list).unwrap(), 2);
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
    assert_eq!(revocations.replace(&fixture.authority.revocation_list(&[], Day::Tomorrow)).unwrap(), 0);
    let mut raw = fixture.raw_with(fixture.authority.client(Some(&revoked))).await.unwrap();
    raw.connect(&format!("{HOST}-2"), 30).await;
}

#[tokio::test]
async fn a_list_that_is_not_taken_changes_nothing() {
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
async fn those_who_come_in_while_the_list_changes_are_not_forgotten() {
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

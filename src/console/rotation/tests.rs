use std::sync::Arc;

use muster_api::authority::{LackingReason, RootStage};
use muster_topics::{
    command::Command, envelope, heartbeat::HostState, join::RenewRequest, name::CommandId, numbered::NumberedKind,
};

use super::*;
use crate::{
    numbered, store,
    testing::{Fixture, admin, exec},
};

fn signing() -> BeginRotation {
    BeginRotation { what: RotatedKey::Signing }
}

/// Stores a heartbeat of a host with these keys.
async fn report(fixture: &Fixture, host: HostId, keys: KnownKeys) {
    let state = serde_json::json!({
        "hostname": "h", "agent_version": "1", "facts": crate::testing::facts(), "interfaces": {}, "labels": {}, "realms": [],
        "units": {}, "command_keys": keys, "desired": {"mark": {"epoch": 0, "generation": 0}},
    });
    let state: HostState = serde_json::from_value(state).unwrap();
    sqlx::query("INSERT OR REPLACE INTO heartbeat (host, epoch, seq, state, at_ms) VALUES ($1, 1, 1, $2, 1)")
        .bind(host.to_string())
        .bind(serde_json::to_string(&state).unwrap())
        .execute(fixture.shared().store.write())
        .await
        .unwrap();
}

fn root() -> BeginRotation {
    BeginRotation { what: RotatedKey::Root }
}

/// The same console, started by `muster up`: its broker follows it.
async fn console_of_up() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let prepared = crate::prepare(crate::testing::config(dir.path())).await.unwrap();
    let running = prepared.started_by(crate::StartedBy::Up).start().await.unwrap();
    Fixture { console: running.console(), dir, running }
}

/// What a host reports that trusts all roots, with a certificate under the one with this place among them.
fn under(fixture: &Fixture, place: usize) -> KnownKeys {
    let authorities = fixture.shared().authority.roots().ids();
    KnownKeys { issuer: authorities.get(place).cloned(), authorities, ..present(fixture) }
}

/// Waits for a revocation list of so many roots.
async fn lists(fixture: &Fixture, count: usize) {
    let mut list = fixture.running.revocations();
    let has = |list: &Arc<str>| list.matches("BEGIN X509 CRL").count() == count;
    tokio::time::timeout(std::time::Duration::from_secs(60), list.wait_for(has)).await.unwrap().unwrap();
}

fn present(fixture: &Fixture) -> KnownKeys {
    let state = fixture.shared().authority.keys().state.clone();
    let ids = state.of_hosts().iter().map(|key| key.id().to_owned()).collect();
    KnownKeys { ids, ..KnownKeys::default() }
}

async fn refused(finished: Result<AuthorityStatus, Error>) -> (String, String) {
    let problem = finished.unwrap_err().problem;
    (problem.code, problem.diagnostic.to_string())
}

async fn stored(fixture: &Fixture, command: CommandId) -> Vec<u8> {
    store::command::signed_bytes(fixture.shared().store.read(), command).await.unwrap().unwrap().0
}

#[tokio::test]
async fn rotation_is_finished_once_all_members_have_the_key() {
    let fixture = Fixture::new().await;
    let console = &fixture.console;
    let (one, two) = (fixture.member("one").await.id, fixture.member("two").await.id);
    let old = present(&fixture);
    for host in [one, two] {
        report(&fixture, host, old.clone()).await;
    }
    assert_eq!(refused(console.finish_rotation(&admin(), FinishRotation::default()).await).await.0, "no_rotation");
    assert_eq!(refused(console.cancel_rotation(&admin()).await).await.0, "no_rotation");

    let begun = console.begin_rotation(&admin(), signing()).await.unwrap();
    let rotation = begun.rotation.clone().unwrap();
    assert_eq!((rotation.having, rotation.lacking.len(), rotation.ready), (0, 2, false));
    assert_eq!(begun.signing_key, old.ids[0]);
    assert_eq!(console.begin_rotation(&admin(), signing()).await.unwrap(), begun, "it goes on");
    let both = present(&fixture);
    assert_eq!(both.ids, [old.ids[0].clone(), rotation.new_key.clone()]);

    report(&fixture, one, both.clone()).await;
    let (code, text) = refused(console.finish_rotation(&admin(), FinishRotation::default()).await).await;
    assert_eq!(code, "hosts_lack_key");
    assert!(text.contains("1 of 2 hosts lack the new key: two") && text.contains("--without"), "{text}");
    assert_eq!(present(&fixture), both, "nothing has changed");
    let lacking = console.authority_status().await.unwrap().rotation.unwrap().lacking;
    assert_eq!((lacking.len(), lacking[0].why), (1, LackingReason::Unconfirmed));

    report(&fixture, two, both.clone()).await;
    assert!(console.authority_status().await.unwrap().rotation.unwrap().ready);
    let finished = console.finish_rotation(&admin(), FinishRotation::default()).await.unwrap();
    assert_eq!((&finished.signing_key, &finished.rotation), (&rotation.new_key, &None));
    let last = finished.last_rotation.unwrap();
    assert_eq!((&last.old_key, last.having), (&old.ids[0], 0));
    assert!(last.lacking.iter().all(|host| host.why == LackingReason::HasOldKey));
    report(&fixture, two, present(&fixture)).await;
    assert_eq!(console.authority_status().await.unwrap().last_rotation.unwrap().having, 1);
}

#[tokio::test]
async fn named_and_expired_members_do_not_keep_it_from_being_finished() {
    let fixture = Fixture::new().await;
    let console = &fixture.console;
    let (away, expired) = (fixture.member("away").await.id, fixture.member("expired").await.id);
    sqlx::query("UPDATE certificate SET expires_ms = 1 WHERE host = $1")
        .bind(expired.to_string())
        .execute(fixture.shared().store.write())
        .await
        .unwrap();
    console.begin_rotation(&admin(), signing()).await.unwrap();
    let (_, text) = refused(console.finish_rotation(&admin(), FinishRotation::default()).await).await;
    assert!(text.contains("1 of 2 hosts lack the new key: away"), "{text}");
    let unknown = FinishRotation { without: vec!["nobody".to_owned()] };
    assert_eq!(refused(console.finish_rotation(&admin(), unknown).await).await.0, "unknown_host");
    let named = FinishRotation { without: vec!["away".to_owned()] };
    console.finish_rotation(&admin(), named).await.unwrap();
    let last = fixture.shared().authority.keys().state.last.clone().unwrap();
    assert_eq!(last.without, [away].into());
}

#[tokio::test]
async fn open_commands_are_signed_with_the_new_key() {
    let fixture = Fixture::new().await;
    let member = fixture.member("h").await;
    let target = muster_api::NewTarget::Hosts(vec!["h".to_owned()]);
    let command = muster_api::NewCommand { target, expires_in_ms: None, verb: exec(&["true"]), copied_from: None };
    let command = fixture.console.submit(&admin(), command).await.unwrap().id;
    let (before, old) = (stored(&fixture, command).await, fixture.shared().authority.keys().state.of_hosts());
    fixture.console.begin_rotation(&admin(), signing()).await.unwrap();
    report(&fixture, member.id, present(&fixture)).await;
    assert_eq!(stored(&fixture, command).await, before);
    fixture.console.finish_rotation(&admin(), FinishRotation::default()).await.unwrap();
    let (after, new) = (stored(&fixture, command).await, fixture.shared().authority.keys().state.of_hosts());
    let body =
        |bytes: &[u8], keys: &[envelope::PublicKey]| envelope::open(bytes, keys).unwrap().body::<Command>().unwrap();
    assert_eq!(body(&after, &new), body(&before, &old), "the same command");
    assert!(envelope::open(&before, &new).is_err() && envelope::open(&after, &old).is_err());
}

#[tokio::test]
async fn joining_and_renewing_hosts_get_the_present_keys() {
    let fixture = Fixture::new().await;
    let member = fixture.member("h").await;
    let renew = async || {
        let key = rcgen::KeyPair::generate().unwrap();
        let csr = rcgen::CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap();
        let request = fixture.client(member.identity()).post(fixture.hosts_url("/v1/renew"));
        let answer = request.json(&RenewRequest { v: V1, csr }).send().await.unwrap();
        answer.json::<muster_topics::join::Membership>().await.unwrap().known_keys()
    };
    assert_eq!((renew().await, fixture.shared().authority.keys().state.generation), (present(&fixture), 0));
    fixture.console.begin_rotation(&admin(), signing()).await.unwrap();
    assert_eq!((renew().await, present(&fixture).ids.len()), (present(&fixture), 2));
    let named = FinishRotation { without: vec!["h".to_owned()] };
    fixture.console.finish_rotation(&admin(), named).await.unwrap();
    assert_eq!((renew().await, present(&fixture).ids.len()), (present(&fixture), 1));
}

#[tokio::test]
async fn hosts_with_other_keys_are_told() {
    let fixture = Fixture::new().await;
    let shared = fixture.shared();
    let [right, other, ahead] = [(); 3].map(|()| HostId::random());
    fixture.console.begin_rotation(&admin(), signing()).await.unwrap();
    let both = present(&fixture);
    let others = KnownKeys { ids: vec!["x".to_owned()], ..KnownKeys::default() };
    confirm(shared, right, &both, 0, 0);
    confirm(shared, other, &others, 0, 0);
    assert_eq!(shared.hosts.keys.take(0).0, [(other, 0)].into());
    // A console that was put back has an older generation than its hosts: it gets a newer one.
    let number = || shared.authority.keys().state.generation;
    let reported = number() + 1;
    confirm(shared, ahead, &others, reported, 0);
    assert_eq!(shared.hosts.keys.take(0).0, [(ahead, reported)].into());
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    numbered::tell(shared, NumberedKind::CommandKeys, ahead, reported).await.unwrap();
    assert!(number() > reported);
    assert_eq!(present(&fixture).ids, both.ids);
}

#[tokio::test]
async fn store_of_members_knows_who_has_reported() {
    let fixture = Fixture::new().await;
    let (silent, told) = (fixture.member("silent").await.id, fixture.member("told").await.id);
    let revoked = fixture.member("revoked").await.id;
    fixture.console.revoke_host(&admin(), "revoked").await.unwrap();
    report(&fixture, told, present(&fixture)).await;
    let members = command_key::members(fixture.shared().store.read()).await.unwrap();
    let found: Vec<(HostId, bool)> = members.iter().map(|(_, member)| (member.host, member.keys.is_some())).collect();
    assert_eq!(found, [(silent, false), (told, true)]);
    assert!(members.iter().all(|(_, member)| member.host != revoked));
}

#[tokio::test]
async fn root_is_replaced_once_all_members_are_under_the_new_one() {
    let fixture = console_of_up().await;
    let console = &fixture.console;
    let (one, two) = (fixture.member("one").await, fixture.member("two").await);
    let alone = under(&fixture, 0);
    for host in [one.id, two.id] {
        report(&fixture, host, alone.clone()).await;
    }
    let old = console.authority_status().await.unwrap();
    let begun = console.begin_rotation(&admin(), root()).await.unwrap();
    let rotation = begun.rotation.clone().unwrap();
    assert_eq!((rotation.what, rotation.stage, rotation.broker), (RotatedKey::Root, Some(RootStage::Trust), None));
    assert_eq!((rotation.having, rotation.lacking.len(), rotation.ready), (0, 2, false));
    assert_eq!(begun.fingerprint, old.fingerprint, "tokens go on naming the old one");
    lists(&fixture, 2).await;
    assert_eq!(console.begin_rotation(&admin(), root()).await.unwrap(), begun, "it goes on");
    let other = refused(console.begin_rotation(&admin(), signing()).await).await;
    assert!(other.0 == "other_rotation" && other.1.contains("root certificate"), "{other:?}");

    report(&fixture, one.id, under(&fixture, 0)).await;
    let (code, text) = refused(console.finish_rotation(&admin(), FinishRotation::default()).await).await;
    assert!(
        code == "hosts_lack_root" && text.contains("1 of 2 hosts do not trust the new root") && text.contains("two"),
        "{text}"
    );
    let named = || FinishRotation { without: vec!["two".to_owned()] };
    let issuing = console.finish_rotation(&admin(), named()).await.unwrap().rotation.unwrap();
    assert_eq!((issuing.stage, issuing.having), (Some(RootStage::Certificates), 0));
    let why =
        |status: &muster_api::authority::RotationStatus| status.lacking.iter().map(|host| host.why).collect::<Vec<_>>();
    assert_eq!(why(&issuing), [LackingReason::OldCertificate; 2]);
    assert_eq!(refused(console.cancel_rotation(&admin()).await).await.0, "root_in_use");

    // Joining hosts and renewals are under the new root. One that was away finds the console under the old root.
    let three = fixture.member("three").await;
    let new = fixture.shared().authority.roots().issuing().pem().to_owned();
    let renew = async |member: &crate::testing::Member| {
        let csr = crate::testing::csr(&rcgen::KeyPair::generate().unwrap());
        let tls = muster_net::pki::client(&old.certificates, &member.certificate, &member.key).unwrap();
        let client = muster_net::http::direct(tls).build().unwrap();
        client.post(fixture.hosts_url("/v1/renew")).json(&RenewRequest { v: V1, csr }).send().await
    };
    let renewed: muster_topics::join::Membership = renew(&two).await.unwrap().json().await.unwrap();
    assert_eq!(renewed.authority, format!("{new}{}", old.certificates));
    let (code, text) = refused(console.finish_rotation(&admin(), FinishRotation::default()).await).await;
    assert!(
        code == "hosts_lack_root" && text.contains("3 of 3 hosts have no certificate under the new root"),
        "{text}"
    );
    for host in [one.id, three.id] {
        report(&fixture, host, under(&fixture, 0)).await;
    }
    let finished = console.finish_rotation(&admin(), named()).await.unwrap();
    assert_eq!((finished.rotation, &finished.certificates), (None, &new));
    let last = finished.last_rotation.unwrap();
    assert_eq!((last.what, last.old_key.as_str()), (RotatedKey::Root, &old.fingerprint.as_str()[..16]));
    let whys: Vec<LackingReason> = last.lacking.iter().map(|host| host.why).collect();
    assert_eq!(whys, [LackingReason::HasOldRoot, LackingReason::HasOldRoot, LackingReason::OldCertificate]);
    report(&fixture, three.id, under(&fixture, 0)).await;
    assert_eq!(console.authority_status().await.unwrap().last_rotation.unwrap().having, 1);

    // The old root is of no use any more.
    assert_eq!(fixture.token().await.authority, finished.fingerprint);
    assert!(renew(&three).await.is_err(), "the console is under the new root");
    let ask = async |member: &crate::testing::Member| {
        fixture.client(member.identity()).get(fixture.hosts_url("/v1/configs/x")).send().await
    };
    assert!(ask(&one).await.is_err(), "its certificate is under the old root");
    assert_eq!(ask(&three).await.unwrap().status(), StatusCode::BAD_REQUEST);
    lists(&fixture, 1).await;
}

#[tokio::test]
async fn root_is_taken_back_and_keeps_other_rotations_from_beginning() {
    let fixture = console_of_up().await;
    let console = &fixture.console;
    let old = fixture.shared().authority.certificate_pem();
    console.begin_rotation(&admin(), signing()).await.unwrap();
    let (code, text) = refused(console.begin_rotation(&admin(), root()).await).await;
    assert!(code == "other_rotation" && text.contains("signing key"), "{text}");
    console.cancel_rotation(&admin()).await.unwrap();
    console.begin_rotation(&admin(), root()).await.unwrap();
    let document = |fixture: &Fixture| {
        let current = fixture.shared().authority.current();
        super::content(&current.signing.state, &current.roots).authorities
    };
    assert_eq!(document(&fixture).len(), 2);
    console.cancel_rotation(&admin()).await.unwrap();
    assert_eq!((fixture.shared().authority.certificate_pem(), document(&fixture)), (old.clone(), vec![old]));
    assert_eq!(console.authority_status().await.unwrap().rotation, None);
}

#[tokio::test]
async fn no_certificate_is_under_a_root_that_the_broker_does_not_accept() {
    // No broker listens.
    let fixture = Fixture::new().await;
    let old = fixture.shared().authority.certificate_pem();
    let begun = fixture.console.begin_rotation(&admin(), root()).await.unwrap();
    assert_eq!(begun.rotation.unwrap().broker.as_deref(), Some("mqtts://127.0.0.1:1"));
    let (code, text) = refused(fixture.console.finish_rotation(&admin(), FinishRotation::default()).await).await;
    assert!(
        code == "broker_lacks_root" && text.contains("mqtts://127.0.0.1:1") && text.contains("--role broker"),
        "{text}"
    );
    assert_eq!(fixture.shared().authority.roots().issuing().pem(), old);
}

use std::time::Duration;

use muster_bus::sealing::HostKey;
use muster_topics::join::JoinToken;
use rcgen::KeyPair;
use reqwest::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::{
    store::alert::Which,
    testing::{Fixture, Member as Joined, admin, csr, join_request, problem},
};

async fn join_with(fixture: &Fixture, request: &JoinRequest) -> reqwest::Response {
    fixture.client(None).post(fixture.hosts_url("/v1/join")).json(request).send().await.unwrap()
}

#[tokio::test]
async fn token_admits_one_host() {
    let fixture = Fixture::new().await;
    let JoinToken { url, authority, secret } = fixture.token().await;
    assert_eq!(url, fixture.hosts_url(""));
    assert_eq!(authority, fixture.shared().authority.fingerprint());
    let (host, key) = (HostId::random(), KeyPair::generate().unwrap());
    let request = join_request(&secret, host, "first", &key);
    let answer = join_with(&fixture, &request).await;
    assert_eq!(answer.status(), StatusCode::OK);
    let membership: Membership = answer.json().await.unwrap();
    assert_eq!((membership.host, membership.broker_url.as_str()), (host, "mqtts://127.0.0.1:1"));
    assert_eq!(membership.command_keys, fixture.shared().authority.keys().state.of_hosts());
    let listed = fixture.console.host("first").await.unwrap();
    assert_eq!((listed.id, listed.presence), (host, None));
    assert!(listed.certificate_expires_ms > now_ms() + 29 * 86_400_000);
    // The answer got lost, so it asks again; another host may not, nor this one with another key.
    assert_eq!(join_with(&fixture, &request).await.status(), StatusCode::OK);
    let other = join_request(&secret, HostId::random(), "second", &key);
    assert_eq!(problem(join_with(&fixture, &other).await).await, (403, "token_used".to_owned()));
    let stolen = join_request(&secret, host, "first", &KeyPair::generate().unwrap());
    assert_eq!(problem(join_with(&fixture, &stolen).await).await, (403, "token_used".to_owned()));
    let tokens = fixture.console.tokens().await.unwrap();
    assert_eq!(tokens[0].used.map(|(_, host)| host), Some(host));
    assert_eq!(fixture.console.hosts().await.unwrap().len(), 1);
}

#[tokio::test]
async fn invalid_tokens_are_refused() {
    let fixture = Fixture::new().await;
    let key = KeyPair::generate().unwrap();
    let wrong = join_request(&"00".repeat(32), HostId::random(), "h", &key);
    assert_eq!(problem(join_with(&fixture, &wrong).await).await, (403, "token_wrong".to_owned()));
    let revoked =
        fixture.console.create_token(&admin(), muster_api::NewToken { for_s: Some(60), replace: None }).await.unwrap();
    fixture.console.revoke_token(revoked.id.as_str()).await.unwrap();
    let secret = revoked.token.parse::<JoinToken>().unwrap().secret;
    let request = join_request(&secret, HostId::random(), "h", &key);
    assert_eq!(problem(join_with(&fixture, &request).await).await, (403, "token_revoked".to_owned()));
    let expired = "expired".parse().unwrap();
    let hash = Digest::of(b"expired");
    let mut db = fixture.shared().store.begin().await.unwrap();
    store::token::add(&mut db, &expired, &hash, &admin(), (0, now_ms()), None).await.unwrap();
    db.commit().await.unwrap();
    let request = join_request("expired", HostId::random(), "h", &key);
    assert_eq!(problem(join_with(&fixture, &request).await).await, (403, "token_expired".to_owned()));
    assert_eq!(fixture.console.hosts().await.unwrap().len(), 0);
}

#[tokio::test]
async fn bad_request_does_not_use_up_the_token() {
    let fixture = Fixture::new().await;
    let secret = fixture.token().await.secret;
    let key = KeyPair::generate().unwrap();
    let mut request = join_request(&secret, HostId::random(), "h", &key);
    for bad in ["", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"] {
        request.csr = bad.to_owned();
        assert_eq!(problem(join_with(&fixture, &request).await).await, (400, "bad_csr".to_owned()));
    }
    request.csr = csr(&key);
    request.hostname = "a\nb".to_owned();
    assert_eq!(problem(join_with(&fixture, &request).await).await, (400, "bad_hostname".to_owned()));
    let client = fixture.client(None);
    let join = || client.post(fixture.hosts_url("/v1/join"));
    assert_eq!(problem(join().body("{\"v\":1").send().await.unwrap()).await, (400, "bad_json".to_owned()));
    let long = " ".repeat(3 * 1024 * 1024);
    assert_eq!(problem(join().body(long).send().await.unwrap()).await, (413, "too_large".to_owned()));
    let get = client.get(fixture.hosts_url("/v1/join")).send().await.unwrap();
    assert_eq!(problem(get).await, (405, "wrong_method".to_owned()));
    let other = client.get(fixture.hosts_url("/other")).send().await.unwrap();
    assert_eq!(problem(other).await, (404, "unknown_path".to_owned()));
    request.hostname = "h".to_owned();
    assert_eq!(join_with(&fixture, &request).await.status(), StatusCode::OK);
}

async fn renew_as(
    fixture: &Fixture,
    identity: Option<(&str, &str)>,
    key: &KeyPair,
) -> reqwest::Result<reqwest::Response> {
    let request = RenewRequest { v: V1, csr: csr(key) };
    fixture.client(identity).post(fixture.hosts_url("/v1/renew")).json(&request).send().await
}

#[tokio::test]
async fn certificate_of_a_clock_that_was_ahead_is_good_at_once() {
    let fixture = Fixture::new().await;
    let member = fixture.member("one").await;
    let key = KeyPair::generate().unwrap();
    muster_base::clock::pretended::set_ahead(31 * 86_400_000);
    let renewed = renew_as(&fixture, member.identity(), &key).await.unwrap();
    muster_base::clock::pretended::set_ahead(0);
    let renewed: Membership = renewed.json().await.unwrap();
    let new_key = key.serialize_pem();
    let new = Some((renewed.certificate.as_str(), new_key.as_str()));
    assert_eq!(renew_as(&fixture, new, &key).await.unwrap().status(), StatusCode::OK);
    fixture.running.stop().await;
}

#[tokio::test]
async fn renewal_requires_the_hosts_certificate() {
    let fixture = Fixture::new().await;
    let key = KeyPair::generate().unwrap();
    let nobody = renew_as(&fixture, None, &key).await.unwrap();
    assert_eq!(problem(nobody).await, (401, "no_certificate".to_owned()));
    let member = fixture.member("h").await;
    let renewed = renew_as(&fixture, member.identity(), &key).await.unwrap();
    assert_eq!(renewed.status(), StatusCode::OK);
    let renewed: Membership = renewed.json().await.unwrap();
    assert_eq!(renewed.host, member.id);
    // Should the answer have been lost, the old one is still good; and so is the new one.
    assert_eq!(renew_as(&fixture, member.identity(), &key).await.unwrap().status(), StatusCode::OK);
    let new_key = key.serialize_pem();
    let new = Some((renewed.certificate.as_str(), new_key.as_str()));
    assert_eq!(renew_as(&fixture, new, &key).await.unwrap().status(), StatusCode::OK);
    // The console's own certificate is of the same authority, and no host's.
    let console = Identity::Console("main".parse().unwrap());
    let (certificate, console_key) =
        fixture.shared().authority.issue_client(&console, Duration::from_secs(60)).unwrap();
    let refused = renew_as(&fixture, Some((&certificate, &console_key)), &key).await.unwrap();
    assert_eq!(problem(refused).await, (403, "not_a_host".to_owned()));
}

#[tokio::test]
async fn certificates_of_a_host_are_few_however_often_it_asks() {
    let fixture = Fixture::new().await;
    let (key, host) = (KeyPair::generate().unwrap(), HostId::random());
    let token = fixture.token().await.secret;
    let join = async || {
        let answer = join_with(&fixture, &join_request(&token, host, "h", &key)).await;
        answer.json::<Membership>().await.unwrap().certificate
    };
    let (first, key_pem) = (join().await, key.serialize_pem());
    let member = Some((first.as_str(), key_pem.as_str()));
    let renew =
        async || renew_as(&fixture, member, &key).await.unwrap().json::<Membership>().await.unwrap().certificate;
    let stored = async || {
        let count = sqlx::query_as("SELECT count(*) FROM certificate WHERE host = $1").bind(host.to_string());
        let (count,): (i64,) = count.fetch_one(fixture.shared().store.read()).await.unwrap();
        count
    };
    let pass = async |ms: i64| {
        let earlier = "UPDATE certificate SET issued_ms = issued_ms - $1, expires_ms = expires_ms - $1";
        sqlx::query(earlier).bind(ms).execute(fixture.shared().store.write()).await.unwrap();
    };
    // It joins again, or renews: it has a certificate for this key.
    for _ in 0..3 {
        assert_eq!([join().await, renew().await], [first.clone(), first.clone()]);
    }
    assert_eq!(stored().await, 1);
    // After a while it may have lost what it was given.
    for count in 2..=16 {
        pass(SAME_FOR_MS).await;
        let own = crate::store::alert::raised_own(fixture.shared().store.read(), host).await.unwrap();
        assert_eq!(own.len(), usize::from(count > 13), "it is said from four fifths on");
        let newer = renew().await;
        assert!(newer != first && newer == renew().await);
        assert_eq!(stored().await, count);
    }
    // It has enough now, until the newest has half of its life behind it.
    pass(SAME_FOR_MS).await;
    renew().await;
    assert_eq!(stored().await, 16);
    let refused = renew_as(&fixture, member, &KeyPair::generate().unwrap()).await.unwrap();
    assert_eq!(problem(refused).await, (429, "too_many_certificates".to_owned()));
    let shared = fixture.shared();
    let own = crate::store::alert::raised_own(shared.store.read(), host).await.unwrap();
    let alert = own.iter().find(|alert| alert.rule.as_str() == ShareKind::Certificates.rule()).unwrap();
    assert!(alert.diagnostic.cause.contains("exceeds the limit of 16 certificates"), "{}", alert.diagnostic);
    assert_eq!(shared.hosts.shares.exceeded(ShareKind::Certificates), 1);
    let lifetime = fixture.shared().current().host_certificate_lifetime();
    pass(i64::try_from(lifetime.as_millis()).unwrap() / 2).await;
    assert_ne!(renew().await, first);
    assert_eq!(stored().await, 17);
}

#[tokio::test]
async fn sealing_key_is_pinned_by_the_certificate_that_hands_it_over() {
    let fixture = Fixture::new().await;
    let (one, other) = (fixture.member("one").await, fixture.member("other").await);
    let pinned = async || {
        let keys = host::sealing_keys(fixture.shared().store.read(), &[one.id, other.id]).await.unwrap();
        [one.id, other.id].map(|id| keys.get(&id).cloned())
    };
    let derived = |member: &Joined| Some(HostKey::derived_from(member.key.as_bytes()).public());
    assert_eq!(pinned().await, [derived(&one), derived(&other)], "they came with joining");
    let notice = SealingKeyNotice { v: V1, key: HostKey::derived_from(b"new").public() };
    let hand = async |identity| {
        fixture.client(identity).post(fixture.hosts_url("/v1/sealing-key")).json(&notice).send().await.unwrap()
    };
    assert_eq!(problem(hand(None).await).await, (401, "no_certificate".to_owned()));
    for _ in 0..2 {
        let answer = hand(one.identity()).await;
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.json::<SealingKeyNotice>().await.unwrap(), notice);
        assert_eq!(pinned().await, [Some(notice.key.clone()), derived(&other)]);
    }
    // Who joins with another key has that one: what is sealed is for the machine that was there.
    let JoinToken { secret, .. } = fixture.token_for(Some(one.id)).await;
    let anew = join_request(&secret, one.id, "one", &KeyPair::generate().unwrap());
    assert_eq!(join_with(&fixture, &anew).await.status(), StatusCode::OK);
    assert_eq!(pinned().await, [Some(anew.sealing_key), derived(&other)]);
}

#[tokio::test]
async fn host_gets_its_revision_key_and_keeps_it() {
    let fixture = Fixture::new().await;
    let join = async |host: HostId, key: &KeyPair| {
        let secret = fixture.token_for(None).await.secret;
        let answer = join_with(&fixture, &join_request(&secret, host, "h", key)).await;
        assert_eq!(answer.status(), StatusCode::OK);
        answer.json::<Membership>().await.unwrap()
    };
    let key = KeyPair::generate().unwrap();
    let one = join(HostId::random(), &key).await;
    let other = join(HostId::random(), &KeyPair::generate().unwrap()).await;
    assert_ne!(one.revision_key, other.revision_key);
    assert_eq!(one.revision_key, fixture.shared().authority.revision_key(one.host));
    let key_pem = key.serialize_pem();
    let renewed = renew_as(&fixture, Some((&one.certificate, &key_pem)), &KeyPair::generate().unwrap()).await.unwrap();
    assert_eq!(renewed.json::<Membership>().await.unwrap().revision_key, one.revision_key);
    // A reader ignores fields that it does not know.
    let mut json = serde_json::to_value(&one).unwrap();
    json["unheard_of"] = 1.into();
    assert_eq!(serde_json::from_value::<Membership>(json).unwrap(), one);
}

#[tokio::test]
async fn expired_and_foreign_certificates_are_refused_by_tls() {
    let fixture = Fixture::new().await;
    let member = fixture.member("h").await;
    let key = KeyPair::generate().unwrap();
    let identity = Identity::Host(member.id);
    let request = CheckedCsr::parse(&csr(&key)).unwrap();
    let lifetime = Duration::from_secs(3600);
    let past = now_ms() - 2 * 3_600_000;
    let expired = fixture.shared().authority.grant(&request, &identity, lifetime, past).unwrap();
    let key_pem = key.serialize_pem();
    assert!(renew_as(&fixture, Some((&expired.pem, &key_pem)), &key).await.is_err());
    let elsewhere = tempfile::tempdir().unwrap();
    let foreign =
        crate::authority::Authority::open_or_create(elsewhere.path(), crate::key_ring::KeySources::default()).unwrap();
    let (certificate, foreign_key) = foreign.issue_client(&identity, lifetime).unwrap();
    assert!(renew_as(&fixture, Some((&certificate, &foreign_key)), &key).await.is_err());
    assert_eq!(renew_as(&fixture, member.identity(), &key).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn joining_again_revokes_the_old_certificate() {
    let fixture = Fixture::new().await;
    let Joined { id, certificate, key } = fixture.member("h").await;
    let new_key = KeyPair::generate().unwrap();
    let secret = fixture.token_for(Some(id)).await.secret;
    // It is for that host alone.
    let other = join_with(&fixture, &join_request(&secret, HostId::random(), "other", &new_key)).await;
    assert_eq!(problem(other).await, (403, "token_for_another".to_owned()));
    let answer = join_with(&fixture, &join_request(&secret, id, "renamed", &new_key)).await;
    assert_eq!(answer.status(), StatusCode::OK);
    let refused = renew_as(&fixture, Some((&certificate, &key)), &new_key).await.unwrap();
    assert_eq!(problem(refused).await, (403, "revoked".to_owned()));
    let hosts = fixture.console.hosts().await.unwrap();
    assert_eq!(hosts.iter().map(|host| host.hostname.as_str()).collect::<Vec<_>>(), ["renamed"]);
}

#[tokio::test]
async fn token_does_not_take_over_existing_host() {
    let fixture = Fixture::new().await;
    let member = fixture.member("h").await;
    let secret = fixture.token().await.secret;
    // Whether it is online or away.
    let theft = join_request(&secret, member.id, "thief", &KeyPair::generate().unwrap());
    for _ in 0..2 {
        assert_eq!(problem(join_with(&fixture, &theft).await).await, (409, "host_exists".to_owned()));
    }
    assert_eq!(fixture.console.host("h").await.unwrap().id, member.id, "nothing of it has changed");
    let alerts = fixture.console.alerts(Which { limit: 9, ..Which::default() }).await.unwrap();
    let shown: Vec<_> = alerts.iter().map(|one| (one.host, one.alert.rule.as_str())).collect();
    assert_eq!(shown, [(member.id, alert::JOIN_REFUSED)], "one for both attempts");
    assert!(alerts[0].alert.diagnostic.cause.contains("thief"));
    // It holds whatever the host lists, and ends by itself.
    let store = &fixture.shared().store;
    let mut db = store.begin().await.unwrap();
    let listed = std::collections::BTreeMap::new();
    assert!(!store::alert::reconcile(&mut db, member.id, (9, now_ms() + 9), &listed).await.unwrap());
    db.commit().await.unwrap();
    assert_eq!(store::alert::end_own(store.write(), alerts[0].alert.at_ms, now_ms()).await.unwrap(), 0);
    assert_eq!(store::alert::end_own(store.write(), alerts[0].alert.at_ms + 1, now_ms()).await.unwrap(), 1);
    // With its own key it joins anew, and the token is as good as before.
    let own = KeyPair::from_pem(&member.key).unwrap();
    let answer = join_with(&fixture, &join_request(&secret, member.id, "h", &own)).await;
    assert_eq!(answer.status(), StatusCode::OK);
}

#[tokio::test]
async fn revoked_host_returns_only_with_its_token() {
    let fixture = Fixture::new().await;
    let member = fixture.member("h").await;
    fixture.console.revoke_host(&admin(), "h").await.unwrap();
    let (own, new) = (KeyPair::from_pem(&member.key).unwrap(), KeyPair::generate().unwrap());
    let secret = fixture.token().await.secret;
    let with =
        async |secret: &str, key: &KeyPair| join_with(&fixture, &join_request(secret, member.id, "h", key)).await;
    assert_eq!(problem(with(&secret, &own).await).await, (403, "key_revoked".to_owned()));
    assert_eq!(problem(with(&secret, &new).await).await, (409, "host_exists".to_owned()));
    let secret = fixture.token_for(Some(member.id)).await.secret;
    assert_eq!(problem(with(&secret, &own).await).await, (403, "key_revoked".to_owned()));
    assert_eq!(with(&secret, &new).await.status(), StatusCode::OK);
    assert!(fixture.console.host("h").await.unwrap().certificate_expires_ms > 0);
}

#[tokio::test]
async fn host_downloads_only_assigned_content() {
    let fixture = Fixture::new().await;
    let (member, other) = (fixture.member("h").await, fixture.member("other").await);
    let labels = muster_api::Labels { role: "role".parse().unwrap(), version: "1".parse().unwrap(), manifest: None };
    let body = futures_util::stream::iter([Ok::<_, std::io::Error>(&b"program"[..])]);
    let artifact = fixture.console.add_artifact(&admin(), labels, body).await.unwrap();
    let content = r#"{"pin": {"$secret": "1234"}}"#.to_owned();
    let new = muster_api::NewConfig { id: "a.b".parse().unwrap(), version: "1".parse().unwrap(), content };
    let config = fixture.console.add_config(&admin(), new).await.unwrap();
    let paths = [format!("/v1/artifacts/{}", artifact.sha256), format!("/v1/configs/{}", config.sha256)];
    let get = async |who: &Joined, path: &str| {
        fixture.client(who.identity()).get(fixture.hosts_url(path)).send().await.unwrap()
    };
    for path in &paths {
        assert_eq!(problem(get(&member, path).await).await, (403, "not_assigned".to_owned()), "{path}");
    }
    let artifact = muster_topics::unit::ArtifactRef::from(artifact);
    let configs =
        vec![muster_topics::unit::ConfigRef { id: config.id, version: config.version, sha256: config.sha256 }];
    let spec = muster_topics::unit::YunoSpec { configs, ..muster_topics::unit::YunoSpec::new(artifact) };
    let verb = muster_topics::command::Verb::UnitApply {
        unit: "default/a".parse().unwrap(),
        spec: Box::new(muster_topics::unit::Spec::Yuno(spec)),
        run: None,
    };
    let target = muster_api::NewTarget::Hosts(vec!["h".to_owned()]);
    fixture
        .console
        .submit(&admin(), muster_api::NewCommand { target, expires_in_ms: None, verb, copied_from: None })
        .await
        .unwrap();
    for path in &paths {
        assert_eq!(get(&member, path).await.status(), StatusCode::OK, "{path}");
        assert_eq!(problem(get(&other, path).await).await, (403, "not_assigned".to_owned()), "{path}");
    }
    // Whether there is such content is told to nobody who may not have it.
    let guess = format!("/v1/configs/{}", Digest::of(br#"{"pin":{"$secret":"1234"}}"#));
    assert_eq!(problem(get(&member, &guess).await).await, (403, "not_assigned".to_owned()));
}

#[tokio::test]
async fn members_download_content_whole_or_in_ranges() {
    let fixture = Fixture::new().await;
    let member = fixture.member("h").await;
    let blob: Vec<u8> = (0..300_000u32).map(|index| (index % 251) as u8).collect();
    let body = futures_util::stream::iter(blob.chunks(7_000).map(Ok::<_, std::io::Error>));
    let labels = muster_api::Labels { role: "r".parse().unwrap(), version: "1".parse().unwrap(), manifest: None };
    let artifact = fixture.console.add_artifact(&admin(), labels, body).await.unwrap();
    assert_eq!(artifact.sha256, Digest::of(&blob));
    fixture.give(member.id, &[&artifact.sha256, &Digest::of(b"other"), &Digest::of(b"{\"a\":2,\"b\":1}")]).await;
    let client = fixture.client(member.identity());
    let get = |path: String, range: Option<&str>| {
        let request = client.get(fixture.hosts_url(&path));
        range.map_or(request.try_clone().unwrap(), |range| request.header("range", range)).send()
    };
    let path = format!("/v1/artifacts/{}", artifact.sha256);
    assert_eq!(get(path.clone(), None).await.unwrap().bytes().await.unwrap(), blob);
    let part = get(path.clone(), Some("bytes=299990-")).await.unwrap();
    assert_eq!(part.status(), StatusCode::PARTIAL_CONTENT);
    assert_eq!(part.headers()["content-range"], "bytes 299990-299999/300000");
    assert_eq!(part.bytes().await.unwrap(), blob[299_990..]);
    for (etag, status) in [(&*artifact.sha256.to_string(), 206), ("other", 200)] {
        let request =
            client.get(fixture.hosts_url(&path)).header("range", "bytes=1-").header("if-range", format!("\"{etag}\""));
        assert_eq!(request.send().await.unwrap().status(), status, "{etag}");
    }
    let beyond = get(path.clone(), Some("bytes=300000-")).await.unwrap();
    assert_eq!(beyond.headers()["content-range"], "bytes */300000");
    assert_eq!(problem(beyond).await, (416, "bad_range".to_owned()));
    let unknown = get(format!("/v1/artifacts/{}", Digest::of(b"other")), None).await.unwrap();
    assert_eq!(problem(unknown).await, (404, "unknown_artifact".to_owned()));
    let evil = get("/v1/artifacts/..%2Fconsole.db".to_owned(), None).await.unwrap();
    assert_eq!(problem(evil).await, (400, "bad_hash".to_owned()));
    let new = muster_api::NewConfig {
        id: "a.b".parse().unwrap(),
        version: "1".parse().unwrap(),
        content: "{\"b\": 1, \"a\": 2}".to_owned(),
    };
    let config = fixture.console.add_config(&admin(), new).await.unwrap();
    let content = get(format!("/v1/configs/{}", config.sha256), None).await.unwrap().text().await.unwrap();
    assert_eq!(content, "{\"a\":2,\"b\":1}");
    let nobody = fixture.client(None).get(fixture.hosts_url(&path)).send().await.unwrap();
    assert_eq!(problem(nobody).await, (401, "no_certificate".to_owned()));
}

#[tokio::test]
async fn silent_connection_delays_nobody() {
    let fixture = Fixture::new().await;
    let (mut silent, mut dribbling) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        for (address, beginning) in [(fixture.running.hosts_addr(), 22), (fixture.running.web_addr(), b'G')] {
            silent.push(tokio::net::TcpStream::connect(address).await.unwrap());
            let mut connection = tokio::net::TcpStream::connect(address).await.unwrap();
            connection.write_all(&[beginning]).await.unwrap();
            dribbling.push(connection);
        }
    }
    fixture.member("h").await;
    // Stopping does not wait for them either: they are cut off, not left to their time limits.
    fixture.running.stop().await;
    for mut connection in dribbling {
        assert!(matches!(connection.read(&mut [0]).await, Ok(0) | Err(_)));
    }
    for mut connection in silent {
        // The kernel keeps one that says nothing to itself for a second, and tells it of the end when it says something.
        let _ = connection.write_all(b"x").await;
        assert!(matches!(connection.read(&mut [0]).await, Ok(0) | Err(_)));
    }
}

/// Shows a member's certificate, with its sealing key.
async fn show(fixture: &Fixture, member: &crate::testing::Member) -> (u16, String) {
    let key = muster_bus::sealing::HostKey::derived_from(member.key.as_bytes()).public();
    let notice = muster_topics::sealed::SealingKeyNotice { v: V1, key };
    let client = fixture.client(member.identity());
    let answer = client.post(fixture.hosts_url("/v1/sealing-key")).json(&notice).send().await.unwrap();
    match answer.status().is_success() {
        true => (answer.status().as_u16(), String::new()),
        false => problem(answer).await,
    }
}

#[tokio::test]
async fn host_of_after_a_backup_comes_back_by_its_certificate() {
    let fixture = Fixture::new().await;
    let (late, renewed, revoked) =
        (fixture.member("late").await, fixture.member("renewed").await, fixture.member("revoked").await);
    let store = &fixture.shared().store;
    fixture.console.revoke_host(&admin(), "revoked").await.unwrap();
    // As in a backup of before.
    let forget =
        |statement: &'static str, id: HostId| sqlx::query(statement).bind(id.to_string()).execute(store.write());
    forget("DELETE FROM host WHERE id = $1", late.id).await.unwrap();
    let other = "UPDATE certificate SET serial = serial || '00' WHERE host = $1";
    forget(other, renewed.id).await.unwrap();
    forget(other, revoked.id).await.unwrap();
    for member in [&late, &renewed, &revoked] {
        assert_eq!(show(&fixture, member).await, (403, "revoked".to_owned()), "nothing was restored");
    }
    let restored = async |taken_ms, restored_ms| {
        let mut db = store.begin().await.unwrap();
        store::register::set_restored(&mut db, taken_ms, restored_ms).await.unwrap();
        db.commit().await.unwrap();
    };
    let (now, day) = (now_ms(), 24 * 3_600_000);
    for (taken_ms, restored_ms) in [(now - 3 * day, now - 2 * day), (now + 2 * day, now + 3 * day)] {
        restored(taken_ms, restored_ms).await;
        assert_eq!(show(&fixture, &late).await.0, 403, "it was not issued meanwhile");
    }
    restored(now - day, now).await;
    assert_eq!(show(&fixture, &late).await.0, 200);
    assert_eq!(show(&fixture, &late).await.0, 200);
    assert_eq!(show(&fixture, &renewed).await.0, 200);
    assert_eq!(show(&fixture, &revoked).await, (403, "revoked".to_owned()));
    let alerts = fixture.console.alerts(store::alert::Which { limit: 9, ..Default::default() }).await.unwrap();
    let back: Vec<_> = alerts.iter().filter(|alert| alert.alert.rule.as_str() == alert::CAME_BACK).collect();
    assert_eq!(back.iter().map(|alert| alert.host).collect::<Vec<_>>(), [late.id]);
    // From here on it can be revoked, and the certificate of the revoked one is on the list.
    fixture.console.revoke_host(&admin(), &late.id.to_string()).await.unwrap();
    assert_eq!(show(&fixture, &late).await.0, 403);
    let listed = store::issued::revoked(store.read(), now_ms()).await.unwrap();
    assert_eq!(listed.len(), 3, "two of the revoked host, one of the late one");
}

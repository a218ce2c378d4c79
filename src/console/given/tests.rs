//! Tests of what a stolen certificate gets that claims everything, by every route for hosts; and of who gets what of a unit.

use muster_api::{Artifact, Labels, NewCommand, NewConfig, NewSecret, NewTarget};
use muster_topics::{
    V1,
    desired::{DesiredReport, PlanQuestion, PlanRequest},
    join::RenewRequest,
    presence::Capability,
    sealed::SealingKeyNotice,
    secret::SecretRef,
    snapshot::Pins,
    unit::{ArtifactRef, UnitReport, YunoSpec},
};
use reqwest::Method;
use serde_json::{Value, json};

use super::*;
use crate::{
    enrol,
    testing::{Fixture, Member, admin, csr},
    web::sample_unit,
};

fn relay() -> UnitName {
    "default/relay".parse().unwrap()
}

fn secret_name() -> Name {
    "bank-key".parse().unwrap()
}

async fn set_secret(fixture: &Fixture, value: &str) -> SecretRef {
    let new = NewSecret { realm: Name::default_realm(), name: secret_name(), value: value.to_owned() };
    let set = fixture.console.set_secret(&admin(), new).await.unwrap();
    SecretRef { name: secret_name(), version: set.secret.version }
}

async fn config(fixture: &Fixture, id: &str, version: &str, content: Value) -> ConfigRef {
    let (id, version) = (id.parse().unwrap(), version.parse().unwrap());
    let new = NewConfig { id, version, content: content.to_string() };
    let config = fixture.console.add_config(&admin(), new).await.unwrap();
    ConfigRef { id: config.id, version: config.version, sha256: config.sha256 }
}

/// The config of the relay, with a secret by name and another one in it.
async fn bank(fixture: &Fixture, version: &str) -> ConfigRef {
    let content = json!({"key": {"$secret": {"name": "bank-key"}}, "pin": {"$secret": format!("4711-{version}")}});
    config(fixture, "bank", version, content).await
}

async fn artifact(fixture: &Fixture, version: &str) -> ArtifactRef {
    let manifest = serde_json::from_value(json!({"args": [version]})).unwrap();
    let manifest = Some(fixture.console.add_manifest(&admin(), &manifest).await.unwrap().sha256);
    let labels = Labels { role: "relay".parse().unwrap(), version: version.parse().unwrap(), manifest };
    let body = futures_util::stream::iter([Ok::<_, std::io::Error>(format!("relay {version}").into_bytes())]);
    let artifact: Artifact = fixture.console.add_artifact(&admin(), labels, body).await.unwrap();
    artifact.into()
}

async fn submit(fixture: &Fixture, host: HostId, verb: Verb) -> Result<muster_api::Command, Error> {
    submit_to(fixture, NewTarget::Hosts(vec![host.to_string()]), verb, None).await
}

async fn submit_to(
    fixture: &Fixture,
    target: NewTarget,
    verb: Verb,
    copied_from: Option<HostUnit>,
) -> Result<muster_api::Command, Error> {
    fixture.console.submit(&admin(), NewCommand { target, expires_in_ms: None, verb, copied_from }).await
}

fn apply(spec: YunoSpec) -> Verb {
    Verb::UnitApply { unit: relay(), spec: Box::new(Spec::Yuno(spec)), run: None }
}

fn upgrade(from: &Digest, artifact: Option<ArtifactRef>, configs: &[ConfigRef]) -> Verb {
    let (from, configs) = (from.clone(), configs.to_vec());
    Verb::UnitUpgrade { unit: relay(), from, artifact, configs, secrets: None, config_templates: None }
}

/// A host says that it has the relay, and what its snapshots need.
async fn report(fixture: &Fixture, host: HostId, seq: u64, spec: &YunoSpec, pins: Pins) -> Digest {
    let mut sample = sample_unit();
    sample.desired.spec = Spec::Yuno(spec.clone()).into();
    sample.desired.revision = sample.desired.spec.revision().unwrap();
    let muster_api::Unit { desired, observed, hold, .. } = sample;
    let revision = desired.revision.clone();
    let unit = relay();
    let report =
        UnitReport { v: V1, epoch: 1, seq, at_ms: 1, unit, desired, observed, hold, owner: None, pins, stats: None };
    let mut transaction = fixture.shared().store.begin().await.unwrap();
    host::set_unit(&mut transaction, host, &report, 1).await.unwrap();
    transaction.commit().await.unwrap();
    revision
}

/// Records how a command ended on a host.
async fn end(fixture: &Fixture, command: &muster_api::Command, host: HostId, outcome: Value) {
    let mut outcome = outcome;
    outcome["finished_ms"] = 1.into();
    sqlx::query(
        "UPDATE command_host SET state = 'done', outcome = $1, outcome_ms = 1 WHERE command = $2 AND host = $3",
    )
    .bind(outcome.to_string())
    .bind(command.id.to_string())
    .bind(host.to_string())
    .execute(fixture.shared().store.write())
    .await
    .unwrap();
}

/// What there is to be had, in two versions.
struct Goods {
    artifacts: [ArtifactRef; 2],
    configs: [ConfigRef; 2],
    secrets: [SecretRef; 2],
    /// The body of the document of another host.
    document: Digest,
}

/// Asks a route for something, as a host; `None` if the route has no such method.
async fn ask(
    fixture: &Fixture,
    member: &Member,
    method: &Method,
    path: &str,
    body: Option<Value>,
) -> Option<(u16, String)> {
    let mut request = fixture.client(member.identity()).request(method.clone(), fixture.hosts_url(path));
    if let Some(body) = body {
        request = request.json(&body);
    }
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    let text = answer.text().await.unwrap();
    let code = serde_json::from_str::<Value>(&text).ok().and_then(|body| Some(body["code"].as_str()?.to_owned()));
    assert!(!["4711", "hunter", "relay 1"].iter().any(|secret| text.contains(secret)) || status == 200, "{text}");
    (status != 405).then(|| (status, code.unwrap_or(text)))
}

/// The requests to a route by which a host may try to get the goods: each path with a body. A new route needs a row.
fn requests(method: &Method, path: &str, goods: &Goods) -> Vec<(String, Option<Value>)> {
    let by_hash = |hashes: [&Digest; 2]| {
        hashes.map(|hash| (path.replace("{sha256}", hash.as_str()).replace("{digest}", hash.as_str()), None)).to_vec()
    };
    let key = rcgen::KeyPair::generate().unwrap();
    let one = |body: Value| vec![(path.to_owned(), Some(body))];
    match (method.as_str(), path) {
        ("GET" | "HEAD", "/v1/artifacts/{sha256}") => by_hash([&goods.artifacts[0].sha256, &goods.artifacts[0].sha256]),
        ("GET" | "HEAD", "/v1/manifests/{sha256}") => by_hash([goods.artifacts[0].manifest.as_ref().unwrap(); 2]),
        ("GET" | "HEAD", "/v1/configs/{sha256}") => by_hash([&goods.configs[0].sha256, &goods.configs[1].sha256]),
        ("GET" | "HEAD", "/v1/secrets/{realm}/{name}/{version}") => {
            let path = |secret: &SecretRef| (format!("/v1/secrets/default/{}/{}", secret.name, secret.version), None);
            goods.secrets.iter().map(path).collect()
        }
        ("GET" | "HEAD", "/v1/desired/{digest}" | "/v1/plans/{digest}") => by_hash([&goods.document, &goods.document]),
        ("PUT", "/v1/desired") => one(json!({"v": 1})),
        // These give no content of anybody.
        ("GET" | "HEAD", "/v1/revoked.pem") => vec![(path.to_owned(), None)],
        ("POST", "/v1/join") => one(json!({})),
        ("POST", "/v1/renew") => one(serde_json::to_value(RenewRequest { v: V1, csr: csr(&key) }).unwrap()),
        ("POST", "/v1/sealing-key") => {
            let key = muster_bus::sealing::HostKey::generate().unwrap().public();
            one(serde_json::to_value(SealingKeyNotice { v: V1, key }).unwrap())
        }
        _ => panic!("{method} {path} is a route for hosts without a row in this test"),
    }
}

#[tokio::test]
async fn stolen_certificate_that_claims_everything_gets_nothing() {
    let fixture = Fixture::new().await;
    let (honest, thief) = (fixture.member("honest").await, fixture.member("thief").await);
    let first = (artifact(&fixture, "1").await, set_secret(&fixture, "hunter-1").await, bank(&fixture, "1").await);
    let spec = YunoSpec { configs: vec![first.2.clone()], ..YunoSpec::new(first.0.clone()) };
    let given = submit(&fixture, honest.id, apply(spec)).await.unwrap();
    let (_, given) = given.verb.specs().next().unwrap();
    let spec = given.yuno().unwrap().clone();
    assert_eq!(spec.common.secrets, std::slice::from_ref(&first.1));
    let second = (artifact(&fixture, "2").await, set_secret(&fixture, "hunter-2").await, bank(&fixture, "2").await);
    // The thief claims the unit, what it was and will be, and every ability.
    let pins = Pins {
        artifacts: vec![first.0.clone(), second.0.clone()],
        configs: vec![first.2.clone(), second.2.clone()],
        secrets: vec![first.1.clone(), second.1.clone()],
        and_more: true,
    };
    let from = report(&fixture, thief.id, 1, &spec, pins).await;
    assert_eq!(report(&fixture, honest.id, 1, &spec, Pins::default()).await, from);
    let able = vec![Capability::Exec, Capability::Yuno, Capability::Podman, Capability::Packages, Capability::Files];
    fixture.shared().hosts.desired.set_capabilities(thief.id, able);
    fixture.shared().hosts.desired.heard(thief.id, DesiredReport::default(), None, 1);
    // All that an operator may do to the units that there seem to be.
    let newer = || (Some(second.0.clone()), [second.2.clone()]);
    let upgraded = submit(&fixture, honest.id, upgrade(&from, newer().0, &newer().1)).await.unwrap();
    assert_eq!(upgraded.withheld, []);
    assert!(
        matches!(&upgraded.verb, Verb::UnitUpgrade { secrets: Some(secrets), .. } if *secrets == [second.1.clone()])
    );
    let claimed = HostUnit { host: thief.id, unit: relay() };
    let upgraded = submit(&fixture, thief.id, upgrade(&from, newer().0, &newer().1)).await.unwrap();
    assert_eq!(upgraded.withheld, std::slice::from_ref(&claimed));
    assert_eq!(upgraded.verb, upgrade(&from, newer().0, &[]), "its artifact alone");
    for (configs, what) in [(&newer().1[..], "configs"), (&[], "secrets")] {
        let refused = submit(&fixture, thief.id, upgrade(&from, None, configs)).await.unwrap_err();
        assert_eq!((refused.status, &*refused.problem.code), (409, "not_given"), "{what}");
        assert!(
            refused.problem.diagnostic.cause.contains("default/relay on thief was not created through this console"),
            "{refused}"
        );
    }
    let to_thief = || NewTarget::Hosts(vec![thief.id.to_string()]);
    let copy = submit_to(&fixture, to_thief(), apply(spec.clone()), Some(claimed.clone())).await.unwrap_err();
    assert_eq!(copy.problem.code, "not_given", "a changed copy of what it reports");
    let to_honest = NewTarget::Hosts(vec![honest.id.to_string()]);
    let copy = submit_to(&fixture, to_honest.clone(), apply(spec.clone()), Some(claimed)).await.unwrap_err();
    assert_eq!(copy.problem.code, "not_given", "nor elsewhere");
    let own = HostUnit { host: honest.id, unit: relay() };
    submit_to(&fixture, to_honest, apply(spec.clone()), Some(own)).await.unwrap();
    for verb in [
        json!({"units_apply": {"units": [{"unit": "default/relay", "spec": Spec::Yuno(spec.clone())}], "check": true}}),
        json!({"snapshot_create": {"snapshot": "a"}}),
        json!({"snapshot_activate": {"snapshot": "a"}}),
        json!({"snapshot_deactivate": {"snapshot": "a"}}),
        json!({"render": {"unit": "default/relay", "templates": {"a": "{{ secret('bank-key') }}"}}}),
        json!({"unit_config": {"unit": "default/relay"}}),
        json!({"unit_restart": {"unit": "default/relay"}}),
    ] {
        submit(&fixture, thief.id, serde_json::from_value(verb).unwrap()).await.unwrap();
    }
    let plan = Verb::Plan(PlanQuestion::Request(Box::new(plan_of(&spec))));
    submit(&fixture, thief.id, plan).await.unwrap();
    let select = NewTarget::Select("fact.arch=x86_64".parse().unwrap());
    let chosen = submit_to(&fixture, select, apply(spec.clone()), None).await.unwrap_err();
    assert_eq!(chosen.problem.code, "secrets_in_broadcast", "a host says itself what architecture it has");
    let goods = Goods {
        artifacts: [first.0, second.0],
        configs: [first.2, second.2],
        secrets: [first.1, second.1],
        document: document_of(&fixture, honest.id).await,
    };
    let mut asked = 0;
    for route in enrol::routes() {
        for method in [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            let bare = route.path.replace(['{', '}'], "");
            if ask(&fixture, &thief, &method, &bare, None).await.is_none() {
                continue;
            }
            for (path, body) in requests(&method, route.path, &goods) {
                let answer = ask(&fixture, &thief, &method, &path, body.clone()).await.unwrap();
                let is_own = ["/v1/revoked.pem", "/v1/renew", "/v1/sealing-key"].contains(&route.path);
                assert_eq!(answer.0 < 400, is_own, "{method} {path}: {answer:?}");
                // Who was given it gets it there.
                let is_content = route.path.contains("sha256") || route.path.contains("secrets");
                if is_content || path.contains("desired/") {
                    let answer = ask(&fixture, &honest, &method, &path, body).await.unwrap();
                    assert_eq!(answer.0, 200, "{method} {path}: {answer:?}");
                    asked += 1;
                }
            }
        }
    }
    assert_eq!(asked, 2 * 2 * 5, "artifacts, manifests, configs, secrets and documents, to get and to look at");
}

/// A request to plan a deployment of the relay.
fn plan_of(spec: &YunoSpec) -> PlanRequest {
    let version = json!({
        "deployment": "default/relays", "number": 1,
        "target": {"select": "label.role=relay"},
        "units": [{"unit": "default/relay", "spec": Spec::Yuno(spec.clone()), "run": "running"}],
    });
    serde_json::from_value(
        json!({"deployments": [{"version": version, "asked_by": {"operator": "admin", "role": "admin"}}]}),
    )
    .unwrap()
}

/// Deploys something to a host, and returns the digest of its document's body.
async fn document_of(fixture: &Fixture, host: HostId) -> Digest {
    fixture.shared().hosts.desired.heard(host, DesiredReport::default(), None, 1);
    fixture.console.catch_up().await.unwrap();
    fixture.deploy_container("default/till", "host=honest").await;
    let row: (String,) = sqlx::query_as("SELECT digest FROM host_document WHERE host = $1")
        .bind(host.to_string())
        .fetch_one(fixture.shared().store.read())
        .await
        .unwrap();
    row.0.parse().unwrap()
}

#[tokio::test]
async fn earlier_state_counts_until_its_host_has_done_the_later_one() {
    let fixture = Fixture::new().await;
    let host = fixture.member("h").await.id;
    let (program, _) = (artifact(&fixture, "1").await, set_secret(&fixture, "hunter-1").await);
    let plain = |version: &'static str| config(&fixture, "web", version, json!({"a": version}));
    let bank = [bank(&fixture, "1").await, bank(&fixture, "2").await];
    let web = [plain("1").await, plain("2").await];
    let with = |config: &ConfigRef| YunoSpec { configs: vec![config.clone()], ..YunoSpec::new(program.clone()) };
    submit(&fixture, host, apply(with(&bank[0]))).await.unwrap();
    let replaced = submit(&fixture, host, apply(with(&web[0]))).await.unwrap();
    // Its host has not done that yet.
    let first = report(&fixture, host, 1, &with(&bank[0]), Pins::default()).await;
    let newer = async || submit(&fixture, host, upgrade(&first, None, &[bank[1].clone()])).await.map(|_| ());
    end(&fixture, &replaced, host, json!({"status": "refused", "code": "conflict", "message": "no"})).await;
    newer().await.unwrap();
    let replaced = submit(&fixture, host, apply(with(&web[0]))).await.unwrap();
    end(&fixture, &replaced, host, json!({"status": "completed"})).await;
    // What it had before and reports still is not what it was given last.
    assert_eq!(newer().await.unwrap_err().problem.code, "not_given");
    let from = report(&fixture, host, 2, &with(&web[0]), Pins::default()).await;
    submit(&fixture, host, upgrade(&from, None, &[web[1].clone()])).await.unwrap();
    // A snapshot brings back what there was, and a removal takes everything.
    let snapshot = json!({"snapshot_activate": {"snapshot": "a"}});
    submit(&fixture, host, serde_json::from_value(snapshot).unwrap()).await.unwrap();
    assert_eq!(report(&fixture, host, 3, &with(&bank[0]), Pins::default()).await, first);
    newer().await.unwrap();
    let removed = submit(&fixture, host, Verb::UnitRm { unit: relay() }).await.unwrap();
    newer().await.unwrap();
    end(&fixture, &removed, host, json!({"status": "completed"})).await;
    assert!(newer().await.is_err());
}

#[tokio::test]
async fn unit_with_secrets_is_not_applied_to_hosts_by_what_they_say() {
    let fixture = Fixture::new().await;
    let hosts = [fixture.member("one").await.id, fixture.member("two").await.id].map(|host| host.to_string()).to_vec();
    artifact(&fixture, "1").await;
    set_secret(&fixture, "hunter-1").await;
    config(&fixture, "by-name", "1", json!({"key": {"$secret": {"name": "bank-key"}}})).await;
    config(&fixture, "by-value", "1", json!({"pin": {"$secret": "4711"}})).await;
    config(&fixture, "plain", "1", json!({"a": 1})).await;
    let set = [("role".parse().unwrap(), "relay".parse().unwrap())].into();
    let wanted = muster_api::LabelHosts { target: NewTarget::All, set, remove: Default::default(), replace: false };
    fixture.console.label_hosts(&admin(), wanted).await.unwrap();
    for (select, is_earned) in [("fact.arch=x86_64", false), ("label.role=relay", true), ("label.role", true)] {
        for (config, is_secret) in [("by-name", true), ("by-value", true), ("plain", false)] {
            let content = json!({"unit": "default/relay", "artifact": "relay@1", "configs": [format!("{config}@1")]});
            let apply = muster_api::Apply {
                documents: vec![muster_api::ApplyDocument { source: String::new(), content }],
                hosts: hosts.clone(),
                picked_by: Some(select.parse().unwrap()),
                dry_run: true,
                expires_in_ms: None,
            };
            let refused = fixture.console.apply(&admin(), apply.clone()).await.err().map(|error| error.to_string());
            assert_eq!(refused.is_some(), is_secret && !is_earned, "{select} {config}: {refused:?}");
            assert!(refused.is_none_or(|error| error.contains("do not count")));
            // Who is named is meant.
            fixture.console.apply(&admin(), muster_api::Apply { picked_by: None, ..apply }).await.unwrap();
        }
    }
}

#[tokio::test]
async fn rows_that_give_nothing_are_swept() {
    let fixture = Fixture::new().await;
    let (host, store) = (fixture.member("h").await.id, &fixture.shared().store);
    let rows = async || {
        let (rows,): (i64,) = sqlx::query_as("SELECT count(*) FROM given").fetch_one(store.read()).await.unwrap();
        rows
    };
    let programs = [artifact(&fixture, "1").await, artifact(&fixture, "2").await];
    for program in &programs {
        submit(&fixture, host, apply(YunoSpec::new(program.clone()))).await.unwrap();
    }
    assert_eq!((store::given::sweep(store.write()).await.unwrap(), rows().await), (0, 2));
    let statement = "DELETE FROM artifact WHERE version = '1'";
    sqlx::query(statement).execute(store.write()).await.unwrap();
    sqlx::query("DELETE FROM manifest WHERE sha256 = $1")
        .bind(programs[0].manifest.as_ref().unwrap().as_str())
        .execute(store.write())
        .await
        .unwrap();
    assert_eq!((store::given::sweep(store.write()).await.unwrap(), rows().await), (1, 1));
    let (unused,): (i64,) =
        sqlx::query_as("SELECT count(*) FROM given_part WHERE content NOT IN (SELECT content FROM given)")
            .fetch_one(store.read())
            .await
            .unwrap();
    assert_eq!(unused, 0);
}

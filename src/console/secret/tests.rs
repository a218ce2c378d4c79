//! Tests of secrets through the API of a real console, and as a host gets them.

use muster_api::{Artifact, Labels, NewCommand, NewConfig, NewTarget};
use muster_bus::sealing::HostKey;
use muster_topics::{
    V1,
    command::Verb,
    common::CommonSpec,
    name::UnitName,
    sealed::SealingKeyNotice,
    snapshot::Pins,
    unit::{ConfigRef, Spec, UnitReport, YunoSpec},
};
use serde_json::json;

use super::*;
use crate::{
    store,
    testing::{Fixture, Member, admin, problem},
    web::sample_unit,
};

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn unit() -> UnitName {
    "default/till".parse().unwrap()
}

fn db(version: u32) -> SecretRef {
    SecretRef { name: name("db"), version }
}

async fn set(fixture: &Fixture, value: &str) -> Result<SecretSet, Error> {
    let new = NewSecret { realm: Name::default_realm(), name: name("db"), value: value.to_owned() };
    fixture.console.set_secret(&admin(), new).await
}

#[tokio::test]
async fn render_names_a_secret_that_is_not_there() {
    let fixture = Fixture::new().await;
    let member = fixture.member("till-7").await;
    let render = async |unit: Option<&str>, template: &str| {
        let templates = [("template".to_owned(), template.to_owned())].into();
        let unit = unit.map(|unit| unit.parse().unwrap());
        let rendered = submit(&fixture, member.id, Verb::Render { unit, deployment: None, templates }).await;
        rendered.map(drop).map_err(|error| (error.problem.code, error.problem.diagnostic.cause))
    };
    let (code, message) = render(None, "{{ secret('db') }}").await.unwrap_err();
    assert!(code == "unknown_secret" && message.contains("db in realm default"), "{code}: {message}");
    set(&fixture, "hunter2").await.unwrap();
    render(None, "{{ secret('db') }}").await.unwrap();
    render(Some("default/till"), "{{ secret('db') }}").await.unwrap();
    let (code, message) = render(Some("shop/till"), "{{ secret('db') }}").await.unwrap_err();
    assert!(code == "unknown_secret" && message.contains("db in realm shop"), "{code}: {message}");
    render(Some("shop/till"), "{{ vars.x }}{{ no template").await.unwrap();
    fixture.running.stop().await;
}

/// The spec of a unit whose config names the secret.
async fn spec(fixture: &Fixture) -> YunoSpec {
    let labels = Labels { role: name("till"), version: "1".parse().unwrap(), manifest: None };
    let body = futures_util::stream::iter([Ok::<_, std::io::Error>(&b"program"[..])]);
    let artifact: Artifact = fixture.console.add_artifact(&admin(), labels, body).await.unwrap();
    let content = json!({"password": {"$secret": {"name": "db"}}}).to_string();
    let new = NewConfig { id: "till".parse().unwrap(), version: "1".parse().unwrap(), content };
    let config = fixture.console.add_config(&admin(), new).await.unwrap();
    let configs = vec![ConfigRef { id: config.id, version: config.version, sha256: config.sha256 }];
    YunoSpec { configs, ..YunoSpec::new(artifact.into()) }
}

async fn submit(fixture: &Fixture, host: HostId, verb: Verb) -> Result<Verb, Error> {
    let target = NewTarget::Hosts(vec![host.to_string()]);
    let command = NewCommand { target, expires_in_ms: None, verb, copied_from: None };
    Ok(fixture.console.submit(&admin(), command).await?.verb)
}

async fn apply(fixture: &Fixture, host: HostId, spec: YunoSpec) -> Result<YunoSpec, Error> {
    let verb = Verb::UnitApply { unit: unit(), spec: Box::new(Spec::Yuno(spec)), run: None };
    let Verb::UnitApply { spec, .. } = submit(fixture, host, verb).await? else { panic!("another verb") };
    Ok(spec.yuno().unwrap().clone())
}

/// A host says that it has the unit.
async fn report(fixture: &Fixture, host: HostId, seq: u64, spec: &YunoSpec) -> muster_topics::name::Digest {
    let mut sample = sample_unit();
    sample.desired.spec = Spec::Yuno(spec.clone()).into();
    sample.desired.revision = sample.desired.spec.revision().unwrap();
    let revision = sample.desired.revision.clone();
    let muster_api::Unit { desired, observed, hold, .. } = sample;
    let (unit, pins) = (unit(), Pins::default());
    let report =
        UnitReport { v: V1, epoch: 1, seq, at_ms: 1, unit, desired, observed, hold, owner: None, pins, stats: None };
    let mut transaction = fixture.shared().store.begin().await.unwrap();
    store::host::set_unit(&mut transaction, host, &report, 1).await.unwrap();
    transaction.commit().await.unwrap();
    revision
}

async fn hand_over(fixture: &Fixture, member: &Member) -> HostKey {
    let key = HostKey::generate().unwrap();
    let notice = SealingKeyNotice { v: V1, key: key.public() };
    let url = fixture.hosts_url("/v1/sealing-key");
    fixture.client(member.identity()).post(url).json(&notice).send().await.unwrap().error_for_status().unwrap();
    key
}

async fn fetch(fixture: &Fixture, member: &Member, version: u32) -> reqwest::Response {
    let url = fixture.hosts_url(&format!("/v1/secrets/default/db/{version}"));
    fixture.client(member.identity()).get(url).send().await.unwrap()
}

#[tokio::test]
async fn only_an_assigned_host_gets_a_value_and_only_sealed() {
    let fixture = Fixture::new().await;
    let (member, other) = (fixture.member("h").await, fixture.member("other").await);
    let spec = spec(&fixture).await;
    assert_eq!(apply(&fixture, member.id, spec.clone()).await.unwrap_err().problem.code, "unknown_secret");
    assert_eq!(set(&fixture, "hunter2").await.unwrap().secret.version, 1);
    sqlx::query("UPDATE host SET sealing_key = NULL").execute(fixture.shared().store.write()).await.unwrap();
    assert_eq!(apply(&fixture, member.id, spec.clone()).await.unwrap_err().problem.code, "no_sealing_key");
    let (key, others_key) = (hand_over(&fixture, &member).await, hand_over(&fixture, &other).await);
    // What a request says of secrets counts for nothing.
    let wish = YunoSpec {
        common: CommonSpec { secrets: vec![SecretRef { name: name("another"), version: 7 }], ..spec.clone().common },
        ..spec.clone()
    };
    assert_eq!(apply(&fixture, member.id, wish).await.unwrap().common.secrets, [db(1)]);
    assert_eq!(problem(fetch(&fixture, &other, 1).await).await, (403, "not_assigned".to_owned()));
    assert_eq!(problem(fetch(&fixture, &member, 2).await).await, (403, "not_assigned".to_owned()));
    let answer = fetch(&fixture, &member, 1).await.text().await.unwrap();
    assert!(!answer.contains("hunter2"));
    let sealed: SealedSecret = serde_json::from_str(&answer).unwrap();
    let realm = Name::default_realm();
    assert_eq!(&**key.open_secret(&sealed, (&realm, &db(1)), member.id).unwrap(), "hunter2");
    assert!(others_key.open_secret(&sealed, (&realm, &db(1)), member.id).is_err());
    // A report of a host earns it nothing.
    report(&fixture, other.id, 1, &YunoSpec { common: CommonSpec { secrets: vec![db(1)], ..spec.common }, ..spec })
        .await;
    assert_eq!(problem(fetch(&fixture, &other, 1).await).await, (403, "not_assigned".to_owned()));
}

#[tokio::test]
async fn new_value_is_a_version_which_an_upgrade_brings() {
    let fixture = Fixture::new().await;
    let member = fixture.member("h").await;
    let spec = spec(&fixture).await;
    hand_over(&fixture, &member).await;
    assert!(set(&fixture, "one").await.unwrap().changed);
    let again = set(&fixture, "one").await.unwrap();
    assert_eq!((again.secret.version, again.changed), (1, false));
    let first = apply(&fixture, member.id, spec.clone()).await.unwrap();
    let from = report(&fixture, member.id, 1, &first).await;
    let newer = set(&fixture, "two").await.unwrap().secret;
    assert_eq!((newer.version, newer.units, newer.behind), (2, 1, 1));
    let (artifact, configs, secrets) = (None, Vec::new(), None);
    let upgrade = Verb::UnitUpgrade { unit: unit(), from, artifact, configs, secrets, config_templates: None };
    let Verb::UnitUpgrade { secrets, .. } = submit(&fixture, member.id, upgrade).await.unwrap() else { panic!() };
    assert_eq!(secrets, Some(vec![db(2)]));
    let second = YunoSpec { common: CommonSpec { secrets: vec![db(2)], ..first.clone().common }, ..first.clone() };
    let revisions = [&first, &second].map(|spec| Spec::Yuno(spec.clone()).revision().unwrap());
    assert_ne!(revisions[0], revisions[1], "a changed secret is a change");
    report(&fixture, member.id, 2, &second).await;
    let shown = fixture.console.secret(&Name::default_realm(), &name("db")).await.unwrap();
    assert_eq!(shown.secret.unwrap().behind, 0);
    assert_eq!((shown.users.len(), shown.configs.len()), (1, 1));
    // Both are to be had: the unit may go back.
    for version in [1, 2] {
        assert_eq!(fetch(&fixture, &member, version).await.status(), StatusCode::OK, "{version}");
    }
}

#[tokio::test]
async fn templates_of_configs_are_put_into_the_spec() {
    let fixture = Fixture::new().await;
    let member = fixture.member("h").await;
    let spec = spec(&fixture).await;
    hand_over(&fixture, &member).await;
    set(&fixture, "one").await.unwrap();
    let config = async |id: &str, version: &str, content: serde_json::Value| {
        let new =
            NewConfig { id: id.parse().unwrap(), version: version.parse().unwrap(), content: content.to_string() };
        let config = fixture.console.add_config(&admin(), new).await?;
        Ok::<_, Error>(ConfigRef { id: config.id, version: config.version, sha256: config.sha256 })
    };
    let template = |text: &str| json!({ "$template": text });
    let base = json!({"a": template("{{ vars.a }}"), "b": [template("{{ secret('db') }}")]});
    let base = config("base", "1", base).await.unwrap();
    let configs = vec![base.clone(), config("shop", "1", json!({"a": "x"})).await.unwrap()];
    let plain = YunoSpec { configs: vec![configs[1].clone()], ..spec };
    let with = YunoSpec { configs, ..plain.clone() };
    // The console knows better than a command.
    let mut wrong = with.clone();
    wrong.config_templates.values.insert("vars.a".to_owned(), json!(1));
    let first = apply(&fixture, member.id, wrong).await.unwrap();
    let found: Vec<_> =
        first.config_templates.templates.iter().map(|one| (one.at.as_str(), one.text.as_str())).collect();
    assert_eq!((found, first.common.secrets), (vec![("/b/0", "{{ secret('db') }}")], vec![db(1)]));
    assert!(first.config_templates.values.is_empty());
    let shown = fixture.console.secret(&Name::default_realm(), &name("db")).await.unwrap();
    assert_eq!(shown.configs.len(), 2, "its own and the template's");
    // An upgrade brings those of the new config, and says so of a unit that had some.
    let before = apply(&fixture, member.id, with.clone()).await.unwrap();
    let from = report(&fixture, member.id, 1, &before).await;
    for (version, content, wanted) in
        [("2", json!({"a": template("{{ vars.b }}"), "c": template("{{ vars.c }}")}), 1), ("3", json!({}), 0)]
    {
        let (artifact, secrets, config_templates) = (None, None, None);
        let configs = vec![config("base", version, content).await.unwrap()];
        let upgrade =
            Verb::UnitUpgrade { unit: unit(), from: from.clone(), artifact, configs, secrets, config_templates };
        let Verb::UnitUpgrade { config_templates, .. } = submit(&fixture, member.id, upgrade).await.unwrap() else {
            panic!()
        };
        assert_eq!(config_templates.unwrap().templates.len(), wanted);
    }
    apply(&fixture, member.id, plain).await.unwrap();
    // What is no template is not stored.
    let bad = json!({"a": template("{{ hots.id }}"), "b": {"$template": 7}});
    let error = config("bad", "1", bad).await.unwrap_err();
    assert_eq!(error.problem.code, "bad_config");
    for words in ["/b: a template must be a text", "config bad@1 /a, line 1: unknown name hots (did you mean `host`?)"]
    {
        assert!(error.problem.diagnostic.cause.contains(words), "{error}");
    }
}

#[tokio::test]
async fn secret_in_use_is_not_removed_and_a_removed_one_is_erased() {
    let fixture = Fixture::new().await;
    let (member, realm) = (fixture.member("h").await, Name::default_realm());
    let spec = spec(&fixture).await;
    hand_over(&fixture, &member).await;
    let remove = async || fixture.console.remove_secret(&admin(), &realm, &name("db")).await;
    assert_eq!(remove().await.unwrap_err().problem.code, "unknown_secret");
    set(&fixture, "one").await.unwrap();
    let using = YunoSpec { common: CommonSpec { secrets: vec![db(1)], ..spec.clone().common }, ..spec.clone() };
    report(&fixture, member.id, 1, &using).await;
    assert_eq!(remove().await.unwrap_err().problem.code, "in_use", "a unit has it");
    report(&fixture, member.id, 2, &spec).await;
    remove().await.unwrap();
    assert!(fixture.console.secrets().await.unwrap().is_empty());
    let shown = fixture.console.secret(&realm, &name("db")).await.unwrap();
    assert_eq!((shown.secret, shown.versions[0].state), (None, SecretVersionState::Erased));
    assert_eq!(set(&fixture, "one").await.unwrap().secret.version, 2, "its number is not used again");
    apply(&fixture, member.id, spec).await.unwrap();
    assert_eq!(remove().await.unwrap_err().problem.code, "in_use", "a command carries it");
}

#[tokio::test]
async fn values_lie_encrypted_and_survive_a_rotation_at_any_step() {
    let fixture = Fixture::new().await;
    let (shared, realm) = (fixture.shared(), Name::default_realm());
    for number in 0..30 {
        set(&fixture, &format!("hunter-of-all-{number}")).await.unwrap();
    }
    let folder = shared.settings.started_with.data_dir.clone();
    for entry in std::fs::read_dir(&folder).unwrap().flatten().filter(|entry| entry.path().is_file()) {
        let content = std::fs::read(entry.path()).unwrap();
        assert!(!content.windows(13).any(|part| part == b"hunter-of-all"), "{}", entry.path().display());
    }
    let versions = secret::versions(shared.store.read(), &realm, &name("db")).await.unwrap();
    let stored = versions.iter().filter(|row| row.value.is_some()).count();
    assert_eq!((versions.len(), stored), (30, VERSIONS_KEPT));
    let value = async || {
        let row = secret::version(shared.store.read(), &realm, &db(30)).await.unwrap().unwrap();
        shared.value(&row).map(|value| value.to_string())
    };
    let is_there = Some("hunter-of-all-29".to_owned());
    let rotation = fixture.console.rotate_secret_key(&admin()).await.unwrap();
    assert_eq!((rotation.key, rotation.encrypted, rotation.unreadable), (2, VERSIONS_KEPT as u64, 0));
    assert_eq!(value().await, is_there);
    // It ended right after the new key was made.
    shared.keys_mut().add(0).unwrap();
    let keys = Keyring::open(&folder, Some(2)).unwrap();
    *shared.keys_mut() = keys;
    assert_eq!(value().await, is_there);
    fixture.console.finish_secret_key_rotation().await;
    assert_eq!((value().await, shared.keys().current(), shared.keys().is_rotating()), (is_there, 3, false));
    // The key is lost: it is said, nothing else suffers, and setting the value again heals it.
    std::fs::remove_file(folder.join(keyring::FILE)).unwrap();
    *shared.keys_mut() = Keyring::open(&folder, secret::last_key(shared.store.read()).await.unwrap()).unwrap();
    assert_eq!(value().await, None);
    assert!(!fixture.console.secrets().await.unwrap()[0].readable);
    let again = set(&fixture, "hunter-of-all-29").await.unwrap();
    assert_eq!((again.secret.version, again.secret.readable), (31, true));
    let rotation = fixture.console.rotate_secret_key(&admin()).await.unwrap();
    assert_eq!(rotation.encrypted, 1);
    assert!(rotation.unreadable > 0);
}

#[tokio::test]
async fn bad_values_change_nothing() {
    let fixture = Fixture::new().await;
    let code = |result: Result<SecretSet, Error>| result.unwrap_err().problem.code;
    assert_eq!(code(set(&fixture, "").await), "bad_secret");
    assert_eq!(code(set(&fixture, &"x".repeat(1024 * 1024)).await), "too_large");
    let new = NewSecret { realm: name("nowhere"), name: name("db"), value: "x".to_owned() };
    assert!(!format!("{new:?}").contains("\"x\""));
    assert_eq!(code(fixture.console.set_secret(&admin(), new).await), "unknown_realm");
    assert!(fixture.console.secrets().await.unwrap().is_empty());
    let gone = fixture.console.secret(&Name::default_realm(), &name("db")).await.unwrap_err();
    assert_eq!((gone.status, gone.problem.code.as_str()), (404, "unknown_secret"));
}

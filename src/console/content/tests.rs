//! Tests of artifacts, manifests and configs through the API of a real console.

use std::sync::atomic::{AtomicU64, Ordering};

use muster_api::{Artifact, Config, Labels, NewCommand, NewConfig, NewTarget};
use muster_topics::{
    V1,
    command::Verb,
    name::{HostId, Version},
    snapshot::Pins,
    unit::{ArtifactRef, ConfigRef, Spec, UnitReport, YunoSpec},
};
use serde_json::{Value, json};

use super::*;
use crate::{
    store,
    testing::{Fixture, admin},
    web::sample_unit,
};

async fn config(fixture: &Fixture, id: &str, version: &str, document: Value) -> Result<Config, Error> {
    let new = NewConfig { id: id.parse().unwrap(), version: version.parse().unwrap(), content: document.to_string() };
    fixture.console.add_config(&admin(), new).await
}

async fn artifact(fixture: &Fixture, label: &str, content: &'static str, manifest: Option<Value>) -> Artifact {
    try_artifact(fixture, label, content, manifest).await.unwrap()
}

async fn try_artifact(
    fixture: &Fixture,
    label: &str,
    content: &'static str,
    manifest: Option<Value>,
) -> Result<Artifact, Error> {
    let (role, version) = label.split_once('@').unwrap();
    let manifest = match manifest {
        Some(manifest) => {
            let manifest = serde_json::from_value(manifest).unwrap();
            Some(fixture.console.add_manifest(&admin(), &manifest).await?.sha256)
        }
        None => None,
    };
    let labels = Labels { role: role.parse().unwrap(), version: version.parse().unwrap(), manifest };
    let body = futures_util::stream::iter([Ok::<_, std::io::Error>(content)]);
    fixture.console.add_artifact(&admin(), labels, body).await
}

fn spec(artifact: &Artifact, configs: &[&Config]) -> YunoSpec {
    let Artifact { sha256, size_bytes, role, version, manifest, .. } = artifact.clone();
    let reference = |config: &&Config| {
        let Config { id, version, sha256, .. } = (*config).clone();
        ConfigRef { id, version, sha256 }
    };
    let configs = configs.iter().map(reference).collect();
    YunoSpec { configs, ..YunoSpec::new(ArtifactRef { sha256, size_bytes, role, version, manifest }) }
}

async fn apply(fixture: &Fixture, host: HostId, spec: YunoSpec) -> Result<muster_api::Command, Error> {
    let verb = Verb::UnitApply { unit: "default/till".parse().unwrap(), spec: Box::new(Spec::Yuno(spec)), run: None };
    let target = NewTarget::Hosts(vec![host.to_string()]);
    fixture.console.submit(&admin(), NewCommand { target, expires_in_ms: None, verb, copied_from: None }).await
}

/// A host says that it has a unit.
async fn report(fixture: &Fixture, host: HostId, spec: YunoSpec) {
    report_with(fixture, host, spec, Pins::default()).await;
}

/// And that snapshots need something of it.
async fn report_with(fixture: &Fixture, host: HostId, spec: YunoSpec, pins: Pins) {
    let mut sample = sample_unit();
    sample.desired.spec = Spec::Yuno(spec).into();
    let muster_api::Unit { desired, observed, hold, .. } = sample;
    let unit = "default/till".parse().unwrap();
    // Each supersedes the one before.
    static SEQ: AtomicU64 = AtomicU64::new(1);
    let seq = SEQ.fetch_add(1, Ordering::Relaxed);
    let report =
        UnitReport { v: V1, epoch: 1, seq, at_ms: 1, unit, desired, observed, hold, owner: None, pins, stats: None };
    let mut transaction = fixture.shared().store.begin().await.unwrap();
    store::host::set_unit(&mut transaction, host, &report, 1).await.unwrap();
    transaction.commit().await.unwrap();
}

fn secret() -> Value {
    json!({"db": {"user": "till", "password": {"$secret": "hunter2"}}})
}

#[tokio::test]
async fn secret_is_sent_only_to_its_host() {
    let fixture = Fixture::new().await;
    let added = config(&fixture, "till", "1", secret()).await.unwrap();
    let mut changed = secret();
    changed["db"]["password"]["$secret"] = json!("hunter3");
    let other = config(&fixture, "till", "2", changed).await.unwrap();
    let console = &fixture.console;
    let shown = console.config(&added.id, &added.version).await.unwrap();
    assert_eq!(shown.content.as_ref().unwrap()["db"], json!({"user": "till", "password": {"$secret": "***"}}));
    let differences =
        console.config_differences((&added.id, &added.version), (&other.id, &other.version)).await.unwrap();
    assert_eq!((differences.len(), differences[0].pointer.as_str()), (1, "/db/password"));
    let page = console.config(&other.id, &other.version).await.unwrap();
    for text in [format!("{added:?}{other:?}{shown:?}{differences:?}{page:?}"), serde_json::to_string(&shown).unwrap()]
    {
        assert!(!text.contains("hunter"), "{text}");
    }
    let member = fixture.member("h").await;
    fixture.give(member.id, &[&added.sha256]).await;
    let url = fixture.hosts_url(&format!("/v1/configs/{}", added.sha256));
    let fetched = fixture.client(member.identity()).get(url).send().await.unwrap().bytes().await.unwrap();
    assert_eq!(Digest::of(&fetched), added.sha256);
    let fetched: Value = serde_json::from_slice(&fetched).unwrap();
    assert_eq!(muster_rules::config::revealed(&fetched), json!({"db": {"user": "till", "password": "hunter2"}}));
    // What is shown is not taken for the secret.
    let error = config(&fixture, "till", "3", shown.content.unwrap()).await.unwrap_err();
    assert_eq!(error.problem.code, "bad_config");
    assert!(error.problem.diagnostic.cause.contains("/db/password"), "{error}");
}

#[tokio::test]
async fn short_secret_is_not_confirmed_by_its_hash() {
    let fixture = Fixture::new().await;
    let document = json!({"pin": {"$secret": 7}});
    let added = config(&fixture, "till", "1", document.clone()).await.unwrap();
    assert_ne!(added.sha256, Digest::of(br#"{"pin":{"$secret":7}}"#));
    // The same again is the same, also after it was removed; under another label it has another hash, and no difference.
    assert_eq!(config(&fixture, "till", "1", document.clone()).await.unwrap(), added);
    let other = config(&fixture, "till", "2", document.clone()).await.unwrap();
    assert_ne!(other.sha256, added.sha256);
    let console = &fixture.console;
    let differences =
        console.config_differences((&added.id, &added.version), (&other.id, &other.version)).await.unwrap();
    assert_eq!(differences.len(), 0, "{differences:?}");
    console.remove_config(&admin(), &added.id, &added.version).await.unwrap();
    assert_eq!(config(&fixture, "till", "1", document).await.unwrap().sha256, added.sha256);
    let taken = config(&fixture, "till", "1", json!({"pin": {"$secret": 8}})).await.unwrap_err();
    assert_eq!(taken.problem.code, "version_taken");
    // One without secrets is known by its canonical JSON.
    let plain = config(&fixture, "plain", "1", json!({"b": 1, "a": 2})).await.unwrap();
    assert_eq!(plain.sha256, Digest::of(br#"{"a":2,"b":1}"#));
}

#[tokio::test]
async fn merged_config_is_checked_against_the_manifest() {
    let fixture = Fixture::new().await;
    let host = fixture.member("h").await.id;
    let schema = json!({
        "type": "object",
        "required": ["shop"],
        "properties": {
            "shop": {"type": "string"},
            "port": {"type": "integer", "maximum": 65535},
            "password": {"type": "string", "minLength": 20},
        },
        "additionalProperties": false,
    });
    let till = artifact(&fixture, "till@1", "till", Some(json!({"config_schema": schema}))).await;
    let base =
        config(&fixture, "base", "1", json!({"port": 99999, "password": {"$secret": "hunter2"}, "colour": 1})).await;
    let base = base.unwrap();
    let error = apply(&fixture, host, spec(&till, &[&base])).await.unwrap_err();
    assert_eq!(error.problem.code, "config_not_wanted");
    for words in ["/port", "/password", "colour", "shop"] {
        assert!(error.problem.diagnostic.cause.contains(words), "{words}: {error}");
    }
    assert!(!error.to_string().contains("hunter2"), "{error}");
    let over = config(&fixture, "over", "1", json!({"port": 80, "password": null, "colour": null, "shop": "7"})).await;
    apply(&fixture, host, spec(&till, &[&base, &over.unwrap()])).await.unwrap();
    // The schema counts also where the spec knows of no manifest.
    let unaware =
        YunoSpec { artifact: ArtifactRef { manifest: None, ..spec(&till, &[]).artifact }, ..spec(&till, &[]) };
    assert_eq!(apply(&fixture, host, unaware).await.unwrap_err().problem.code, "config_not_wanted");
}

#[tokio::test]
async fn all_faults_are_reported_at_once() {
    let fixture = Fixture::new().await;
    let host = fixture.member("h").await.id;
    let till = artifact(&fixture, "till@1", "till", None).await;
    let base = config(&fixture, "base", "1", json!({})).await.unwrap();
    let nowhere = Config { id: "nowhere".parse().unwrap(), ..base.clone() };
    let other = Config { sha256: Digest::of(b"other"), ..base };
    let moved = Artifact { size_bytes: 5, ..till };
    let error = apply(&fixture, host, spec(&moved, &[&nowhere, &other])).await.unwrap_err();
    assert_eq!(error.problem.code, "several_faults");
    for words in
        ["3 errors", "artifact till 1", "the console does not have config nowhere@1", "config base@1 exists with other"]
    {
        assert!(error.problem.diagnostic.cause.contains(words), "{words}: {error}");
    }
}

#[tokio::test]
async fn a_manifest_belongs_to_its_label() {
    let fixture = Fixture::new().await;
    let first = artifact(&fixture, "till@1", "till", Some(json!({"args": ["-v"]}))).await;
    let again = artifact(&fixture, "till@1", "till", Some(json!({"args": ["-v"]}))).await;
    assert_eq!(first, again);
    for (content, manifest) in [("till", None), ("till", Some(json!({}))), ("other", Some(json!({"args": ["-v"]})))] {
        let error = try_artifact(&fixture, "till@1", content, manifest).await.unwrap_err();
        assert_eq!(error.problem.code, "version_taken");
        assert!(error.problem.diagnostic.hint.as_ref().unwrap().ends_with("such as 2"), "{error}");
    }
    let manifest = fixture.console.manifest(first.manifest.as_ref().unwrap()).await.unwrap();
    assert_eq!(manifest.args, ["-v"]);
    let error = try_artifact(&fixture, "till@2", "till", Some(json!({"config_schema": {"type": "colour"}}))).await;
    assert_eq!(error.unwrap_err().problem.code, "bad_manifest");
    let member = fixture.member("h").await;
    fixture.give(member.id, &[first.manifest.as_ref().unwrap()]).await;
    let url = fixture.hosts_url(&format!("/v1/manifests/{}", first.manifest.as_ref().unwrap()));
    let fetched = fixture.client(member.identity()).get(&url).send().await.unwrap().bytes().await.unwrap();
    assert_eq!(Some(Digest::of(&fetched)), first.manifest);
    assert_eq!(fixture.client(None).get(&url).send().await.unwrap().status(), 401);
}

#[tokio::test]
async fn content_of_a_snapshot_is_not_removed() {
    let fixture = Fixture::new().await;
    let console = &fixture.console;
    let host = fixture.member("shop-7").await.id;
    let till = artifact(&fixture, "till@1", "till", None).await;
    let other = artifact(&fixture, "till@2", "other till", None).await;
    let base = config(&fixture, "base", "1", json!({})).await.unwrap();
    let YunoSpec { artifact: pinned, configs, .. } = spec(&till, &[&base]);
    let pins = Pins { artifacts: vec![pinned], configs, ..Pins::default() };
    report_with(&fixture, host, spec(&other, &[]), pins.clone()).await;
    let remove_artifact = async || console.remove_artifact(&admin(), &till.role, &till.version).await;
    let remove_config = async || console.remove_config(&admin(), &base.id, &base.version).await;
    for error in [remove_artifact().await.unwrap_err(), remove_config().await.unwrap_err()] {
        assert!(error.problem.diagnostic.cause.contains("a snapshot of default/till on shop-7"), "{error}");
    }
    assert_eq!(console.collect_artifacts(&admin(), false).await.unwrap().artifacts, []);
    assert!(console.remove_artifact(&admin(), &other.role, &other.version).await.is_err());
    // More than was told may be anything.
    let unused = artifact(&fixture, "till@3", "unused till", None).await;
    report_with(&fixture, host, spec(&other, &[]), Pins { and_more: true, ..Pins::default() }).await;
    assert!(console.remove_artifact(&admin(), &unused.role, &unused.version).await.is_err());
    assert_eq!(console.collect_artifacts(&admin(), false).await.unwrap_err().problem.code, "in_use");
    report(&fixture, host, spec(&other, &[])).await;
    remove_artifact().await.unwrap();
    remove_config().await.unwrap();
}

#[tokio::test]
async fn content_of_a_unit_is_not_removed_and_the_unit_named() {
    let fixture = Fixture::new().await;
    let console = &fixture.console;
    let host = fixture.member("shop-7").await.id;
    let till = artifact(&fixture, "till@1", "till", None).await;
    let base = config(&fixture, "base", "1", json!({})).await.unwrap();
    // On its way to the host, and then there.
    apply(&fixture, host, spec(&till, &[&base])).await.unwrap();
    let remove_artifact = async || console.remove_artifact(&admin(), &till.role, &till.version).await;
    let remove_config = async || console.remove_config(&admin(), &base.id, &base.version).await;
    for error in [remove_artifact().await.unwrap_err(), remove_config().await.unwrap_err()] {
        assert_eq!(error.problem.code, "in_use");
        assert!(error.problem.diagnostic.cause.contains("default/till, which command"), "{error}");
    }
    report(&fixture, host, spec(&till, &[&base])).await;
    for error in [remove_artifact().await.unwrap_err(), remove_config().await.unwrap_err()] {
        assert!(error.problem.diagnostic.cause.contains("default/till on shop-7"), "{error}");
    }
    let other = artifact(&fixture, "other@1", "other", Some(json!({}))).await;
    let dry = console.collect_artifacts(&admin(), true).await.unwrap();
    assert_eq!((dry.artifacts, dry.freed_bytes), (vec![other.clone()], 5));
    assert_eq!(console.artifacts(None, None).await.unwrap().len(), 2);
    let done = console.collect_artifacts(&admin(), false).await.unwrap();
    assert_eq!(done.artifacts, std::slice::from_ref(&other));
    assert_eq!(console.artifacts(None, None).await.unwrap(), std::slice::from_ref(&till));
    assert!(
        !artifact_path(&fixture.shared().content, &other.sha256).exists()
            && artifact_path(&fixture.shared().content, &till.sha256).exists()
    );
    assert!(console.manifest(other.manifest.as_ref().unwrap()).await.is_err());
}

#[tokio::test]
async fn removed_labels_are_not_reused() {
    let fixture = Fixture::new().await;
    let console = &fixture.console;
    let till = artifact(&fixture, "till@1", "till", None).await;
    // Another name for the same blob, which stays.
    let alias = artifact(&fixture, "alias@1", "till", None).await;
    let base = config(&fixture, "base", "1", json!({"a": 1})).await.unwrap();
    console.remove_artifact(&admin(), &till.role, &till.version).await.unwrap();
    assert!(artifact_path(&fixture.shared().content, &till.sha256).exists());
    console.remove_artifact(&admin(), &alias.role, &alias.version).await.unwrap();
    assert!(!artifact_path(&fixture.shared().content, &till.sha256).exists());
    console.remove_config(&admin(), &base.id, &base.version).await.unwrap();
    let gone = console.remove_config(&admin(), &base.id, &base.version).await.unwrap_err();
    assert_eq!(gone.problem.code, "unknown_config");

    let told = try_artifact(&fixture, "till@1", "other", None).await.unwrap_err().problem.diagnostic;
    assert!(told.cause.contains("was removed") && told.hint.as_ref().unwrap().ends_with("such as 2"), "{told}");
    let told = config(&fixture, "base", "1", json!({"a": 2})).await.unwrap_err().problem.diagnostic;
    assert!(told.cause.contains("was removed") && told.hint.as_ref().unwrap().ends_with("base@2"), "{told}");
    // The same may come back.
    artifact(&fixture, "till@1", "till", None).await;
    config(&fixture, "base", "1", json!({"a": 1})).await.unwrap();
}

#[test]
fn next_version_is_a_free_one() {
    for (version, taken, wanted) in [
        ("1", &["1"][..], "2"),
        ("1.2.9", &["1.2.9"], "1.2.10"),
        ("1", &["1", "2", "3"], "4"),
        ("2024-01-01", &["2024-01-01"], "2024-01-2"),
        ("beta", &["beta"], "beta-2"),
        ("beta", &["beta", "beta-2"], "beta-3"),
        ("99999999999999999999", &["99999999999999999999"], "99999999999999999999-2"),
    ] {
        let taken: Vec<_> = taken.iter().map(|one| (*one).to_owned()).collect();
        assert_eq!(next_version(version, &taken), wanted);
        assert!(wanted.parse::<Version>().is_ok());
    }
}

#[test]
fn leftovers_of_interrupted_uploads_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().join(Digest::of(b"x").as_str());
    fs::write(&kept, b"x").unwrap();
    fs::write(dir.path().join(".upload-abc"), b"half").unwrap();
    prepare_folder(dir.path()).unwrap();
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, [kept]);
}

#[tokio::test]
async fn damaged_or_missing_content_raises_an_alert_until_it_is_created_again() {
    let fixture = Fixture::new().await;
    let member = fixture.member("h").await;
    let manifest = json!({"config_schema": {"type": "object"}});
    let added = artifact(&fixture, "till@1", "program", Some(manifest.clone())).await;
    let content = config(&fixture, "till", "1", json!({"port": 80})).await.unwrap();
    let stored_manifest = added.manifest.clone().unwrap();
    fixture.give(member.id, &[&added.sha256, &content.sha256, &stored_manifest]).await;
    let client = fixture.client(member.identity());
    let get = async |path: String| {
        let answer = client.get(fixture.hosts_url(&path)).send().await.unwrap();
        let status = answer.status().as_u16();
        (status, answer.bytes().await.unwrap())
    };
    let is_told = |what: &str| fixture.console.notices().iter().any(|notice| notice.contains(what));
    let at = artifact_path(&fixture.shared().content, &added.sha256);
    let path = format!("/v1/artifacts/{}", added.sha256);
    let whole = (200, bytes::Bytes::from_static(b"program"));
    assert_eq!(get(path.clone()).await, whole);
    let damages: [&dyn Fn(); 4] = [
        &|| fs::write(&at, "prograM").unwrap(),
        &|| fs::write(&at, "").unwrap(),
        &|| fs::write(&at, "program, and more").unwrap(),
        &|| fs::remove_file(&at).unwrap(),
    ];
    for (number, damage) in damages.iter().enumerate() {
        damage();
        get(path.clone()).await;
        assert!(is_told("artifact till@1"), "{number}");
        assert_eq!(get(path.clone()).await.0, 404, "{number}: it is sent to no other");
        artifact(&fixture, "till@1", "program", Some(manifest.clone())).await;
        assert!(!is_told("till@1"), "{number}");
        assert_eq!(get(path.clone()).await, whole, "{number}");
    }
    // A file that somebody puts back counts, too.
    fs::remove_file(&at).unwrap();
    fixture.console.look_for_artifacts().await.unwrap();
    assert!(is_told("artifact till@1"), "at the start");
    fs::write(&at, "program").unwrap();
    assert_eq!(get(path.clone()).await, whole);
    assert!(!is_told("till@1"));
    let statements = [
        "UPDATE config SET content = replace(content, '80', '81')",
        "UPDATE config SET sha256 = replace(sha256, substr(sha256, 1, 8), '00000000')",
        "UPDATE manifest SET content = replace(content, 'object', 'string')",
        "UPDATE artifact SET size_bytes = 3",
    ];
    let paths = [
        format!("/v1/configs/{}", content.sha256),
        format!("/v1/configs/{}", content.sha256),
        format!("/v1/manifests/{stored_manifest}"),
        path,
    ];
    for (statement, path) in statements.into_iter().zip(paths) {
        let before = get(path.clone()).await;
        assert_eq!(before.0, 200, "{statement}");
        let done = sqlx::query(statement).execute(fixture.shared().store.write()).await.unwrap();
        assert_eq!(done.rows_affected(), 1, "{statement}");
        assert_eq!(get(path.clone()).await.0, 404, "{statement}");
        artifact(&fixture, "till@1", "program", Some(manifest.clone())).await;
        config(&fixture, "till", "1", json!({"port": 80})).await.unwrap();
        assert_eq!(fixture.console.notices(), [""; 0], "{statement}");
        assert_eq!(get(path).await, before, "{statement}");
    }
    fixture.running.stop().await;
}

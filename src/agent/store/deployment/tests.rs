//! Documents on a store, applied as the agent does.

use muster_rules::desired::{head::KnownDocument, host_body, removal::LeavingUnit};
use muster_topics::{
    V1,
    command::Verb,
    desired::{DeploymentReport, DesiredHead, DesiredMark, DocumentRefusal},
    name::{Digest, HostId, UnitName},
    outcome::RefusalCode,
    unit::Run,
};
use serde_json::{Value, json};

use super::*;
use crate::store::{
    Store, desired_copies::IntentCopy, document, document::DocumentText, port_lease, snapshot, unit::AppliedChange,
};

struct Bench {
    folder: tempfile::TempDir,
    store: Store,
    generation: u64,
}

fn unit(name: &str) -> UnitName {
    name.parse().unwrap()
}

/// A unit that provides an endpoint at this port, if given.
fn listed(name: &str, artifact: &str, port: Option<u16>) -> Value {
    let artifact = json!({"sha256": Digest::of(artifact.as_bytes()), "size_bytes": 1, "role": "a", "version": "1"});
    let provides: Vec<Value> = port.iter().map(|port| json!({"name": "web", "port": port})).collect();
    json!({"unit": name, "spec": {"kind": "yuno", "artifact": artifact, "provides": provides}, "run": "running"})
}

fn deployment(name: &str, number: u32, units: Vec<Value>) -> Value {
    json!({"version": {"deployment": name, "number": number, "target": {"select": "label.a=b"}, "units": units}, "asked_by": {"operator": "admin", "role": "admin"}})
}

fn body(deployments: Vec<Value>, remove: &[(&str, &str)]) -> Value {
    let remove: Vec<Value> =
        remove.iter().map(|(unit, of)| json!({"unit": unit, "deployment": of, "version": 1})).collect();
    json!({"v": 1, "deployments": deployments, "remove": remove})
}

impl Bench {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_or_replace(&folder.path().join("agent.db"), false, 1_000).await.unwrap();
        store.begin_life(1_000).await.unwrap();
        Self { folder, store, generation: 0 }
    }

    /// Stores a document, or is killed before it is committed.
    async fn document_or_crash(&mut self, text: String, is_killed: bool) {
        self.generation += 1;
        let body = host_body::read(text.as_bytes()).unwrap();
        let head = DesiredHead {
            v: V1,
            host: HostId::random(),
            mark: DesiredMark { epoch: 1, generation: self.generation },
            issued_ms: 0,
            digest: Digest::of(text.as_bytes()),
            size_bytes: text.len() as u64,
        };
        let mut tx = self.store.begin().await.unwrap();
        document::set(&mut tx, &head, &DocumentText { signed: "{}".to_owned(), body: text }).await.unwrap();
        self.apply(&mut tx, &body, ApplyScope::All).await;
        if !is_killed {
            crate::store::commit(tx, "store document").await.unwrap();
        }
    }

    async fn document(&mut self, value: &Value) {
        self.document_or_crash(value.to_string(), false).await;
    }

    async fn apply(&self, tx: &mut SqliteConnection, body: &HostBody, scope: ApplyScope<'_>) {
        let (policy, realms) = (LocalPolicy::default(), ["d".parse().unwrap()].into());
        let host = DocumentHost {
            policy: &policy,
            realms: &realms,
            user: "root",
            key: &RevisionKey::from_bytes([1; 32]),
            now_ms: 1_000,
            values: &RenderValues::default(),
        };
        super::apply(tx, body, scope, host).await.unwrap();
    }

    /// Tries again what may pass.
    async fn retry(&self) {
        let mut tx = self.store.begin().await.unwrap();
        let only = passing(&mut tx).await.unwrap();
        let text = document::text(&mut tx).await.unwrap().unwrap();
        self.apply(&mut tx, &host_body::read(text.body.as_bytes()).unwrap(), ApplyScope::Passing(&only)).await;
        crate::store::commit(tx, "apply deployments").await.unwrap();
    }

    async fn verb(&self, verb: &Verb) -> Result<Option<AppliedChange>, RefusalCode> {
        let operator: Name = "anna".parse().unwrap();
        let asker = ChangeContext { operator: &operator, now_ms: 2_000, key: None, is_document: false, values: None };
        let mut tx = self.store.begin().await.unwrap();
        let done = unit::edit(&mut tx, verb.units()[0], verb, asker).await.unwrap();
        crate::store::commit(tx, "edit unit").await.unwrap();
        done.map_err(|refusal| {
            assert!(refusal.diagnostic.hint.is_some(), "{refusal:?}");
            refusal.code
        })
    }

    async fn named(&self, verb: &str, name: &str) -> Result<Option<AppliedChange>, RefusalCode> {
        self.verb(&serde_json::from_value(json!({ verb: {"unit": name} })).unwrap()).await
    }

    async fn units(&self) -> Vec<StoredUnit> {
        self.store.units().await.unwrap().units
    }

    async fn find(&self, name: &str) -> StoredUnit {
        self.units().await.into_iter().find(|row| row.name.as_str() == name).unwrap()
    }

    /// Owner, version and whether it is an orphan, in short.
    async fn owner(&self, name: &str) -> Option<String> {
        let owner = self.find(name).await.owner?;
        Some(format!("{}@{}{}", owner.deployment, owner.version, if owner.orphan { " orphan" } else { "" }))
    }

    async fn reported(&self, name: &str) -> DeploymentReport {
        document::report(&self.store).await.unwrap().deployments[&name.parse().unwrap()].clone()
    }

    async fn leaving(&self) -> Vec<LeavingUnit> {
        let mut tx = self.store.begin().await.unwrap();
        removal::leaving(&mut tx).await.unwrap()
    }

    async fn reopen(&mut self) {
        self.store = Store::open_or_replace(&self.folder.path().join("agent.db"), true, 9_000).await.unwrap();
    }
}

#[tokio::test]
async fn identical_units_keep_their_generation_and_get_the_version() {
    let mut bench = Bench::new().await;
    let of = |number| body(vec![deployment("d/x", number, vec![listed("d/a", "1", Some(8080))])], &[]);
    bench.document(&of(1)).await;
    let first = bench.find("d/a").await;
    assert_eq!((first.desired.run, bench.owner("d/a").await.unwrap()), (Run::Running, "d/x@1".to_owned()));
    bench.document(&of(1)).await;
    bench.document(&of(2)).await;
    let later = bench.find("d/a").await;
    assert_eq!((later.desired, bench.owner("d/a").await.unwrap()), (first.desired.clone(), "d/x@2".to_owned()));
    // What an operator did for a while stays, and a restart is no other spec.
    bench.named("unit_restart", "d/a").await.unwrap();
    bench.named("unit_hold", "d/a").await.unwrap();
    let held = bench.find("d/a").await;
    bench.document(&of(3)).await;
    let after = bench.find("d/a").await;
    assert_eq!((after.desired, after.hold), (held.desired, held.hold));
    assert!(after.kept.observed.since_ms > 0);
    bench.document(&body(vec![deployment("d/x", 4, vec![listed("d/a", "2", Some(8080))])], &[])).await;
    assert!(bench.find("d/a").await.desired.generation > first.desired.generation);
    assert_eq!(bench.reported("d/x").await, DeploymentReport { version: 4, refused: None, waits: None });
}

#[tokio::test]
async fn deployment_is_applied_whole_or_not_and_leaves_others() {
    let mut bench = Bench::new().await;
    let taken = listed("d/local", "1", Some(8080));
    let verb = json!({"unit_apply": {"unit": "d/local", "spec": taken["spec"], "run": "running"}});
    bench.verb(&serde_json::from_value(verb).unwrap()).await.unwrap();
    let value = body(
        vec![
            deployment("d/x", 1, vec![listed("d/a", "1", None), listed("d/b", "1", Some(8080))]),
            deployment("d/y", 1, vec![listed("d/c", "1", None)]),
        ],
        &[],
    );
    bench.document(&value).await;
    let names: Vec<UnitName> = bench.units().await.into_iter().map(|row| row.name).collect();
    assert_eq!(names, [unit("d/c"), unit("d/local")]);
    let refused = bench.reported("d/x").await;
    assert!(refused.version == 0 && refused.refused.unwrap().diagnostic.cause.contains("8080"));
    assert_eq!(bench.reported("d/y").await.version, 1);
    // The port is free later.
    let before = bench.find("d/c").await.desired;
    for verb in ["unit_retire", "unit_rm"] {
        bench.named(verb, "d/local").await.unwrap();
    }
    bench.retry().await;
    assert_eq!(bench.reported("d/x").await, DeploymentReport { version: 1, refused: None, waits: None });
    assert_eq!((bench.owner("d/b").await.unwrap(), bench.find("d/c").await.desired), ("d/x@1".to_owned(), before));
    // A later version that is refused leaves the units of the one before.
    let first = bench.find("d/a").await.desired;
    let value = body(vec![deployment("d/x", 2, vec![listed("d/a", "2", None), listed("other/b", "1", None)])], &[]);
    bench.document(&value).await;
    let report = bench.reported("d/x").await;
    assert_eq!((report.version, report.refused.unwrap().version), (1, 2));
    assert_eq!((bench.find("d/a").await.desired, bench.owner("d/a").await.unwrap()), (first, "d/x@1".to_owned()));
}

#[tokio::test]
async fn unreadable_deployment_stays_as_it_is_and_stops_no_other() {
    let mut bench = Bench::new().await;
    let of = |number, unit: &str| {
        let x = deployment("d/x", number, vec![listed("d/a", &number.to_string(), None)]);
        let mut value = body(vec![x, deployment("d/y", number, vec![listed(unit, "1", None)])], &[("d/gone", "d/x")]);
        value["vars"] = json!({"limit": number});
        value
    };
    bench.document(&of(1, "d/b")).await;
    let before = bench.find("d/a").await.desired;
    for bad in ["18446744073709551616", &["[".repeat(100), "]".repeat(100)].concat(), r#"{"k":1,"k":2}"#] {
        let mut value = of(2, "d/c");
        value["deployments"][0]["version"]["rollout"] = json!({"x": "BAD"});
        value["vars"]["bad"] = json!("BAD");
        bench.document_or_crash(value.to_string().replace("\"BAD\"", bad), false).await;
        let report = bench.reported("d/x").await;
        assert_eq!((report.version, report.refused.unwrap().version), (1, 2), "{bad}");
        assert_eq!(
            (bench.find("d/a").await.desired, bench.owner("d/a").await.unwrap()),
            (before.clone(), "d/x@1".to_owned())
        );
        assert_eq!(bench.owner("d/c").await.unwrap(), "d/y@2");
        let mut tx = bench.store.begin().await.unwrap();
        assert_eq!(document::vars(&mut tx).await.unwrap(), [("limit".to_owned(), json!(2))]);
    }
    // A good version of it goes on.
    bench.document(&of(3, "d/c")).await;
    assert_eq!(bench.reported("d/x").await, DeploymentReport { version: 3, refused: None, waits: None });
    assert_ne!(bench.find("d/a").await.desired, before);
}

#[tokio::test]
async fn ports_pass_between_the_units_of_a_deployment() {
    let mut bench = Bench::new().await;
    let of = |a, b| body(vec![deployment("d/x", 1, vec![listed("d/a", "1", a), listed("d/b", "1", b)])], &[]);
    bench.document(&of(Some(8081), Some(8082))).await;
    bench.document(&of(Some(8082), Some(8081))).await;
    assert_eq!(bench.reported("d/x").await, DeploymentReport { version: 1, refused: None, waits: None });
    let mut tx = bench.store.begin().await.unwrap();
    let ports: Vec<u16> = port_lease::all(&mut tx).await.unwrap().into_iter().map(|lease| lease.port).collect();
    assert_eq!(ports, [8082, 8081]);
}

#[tokio::test]
async fn local_unit_is_adopted_without_a_restart() {
    let mut bench = Bench::new().await;
    let spec = listed("d/a", "1", None)["spec"].clone();
    let verb = json!({"unit_apply": {"unit": "d/a", "spec": spec, "run": "running"}});
    bench.verb(&serde_json::from_value(verb).unwrap()).await.unwrap();
    let before = bench.find("d/a").await;
    let mut adopting = deployment("d/x", 1, vec![listed("d/a", "1", None)]);
    bench.document(&body(vec![adopting.clone()], &[])).await;
    assert!(bench.reported("d/x").await.refused.unwrap().diagnostic.hint.unwrap().contains("adopt"));
    assert_eq!(bench.owner("d/a").await, None);
    adopting["adopt"] = json!(["d/a"]);
    bench.document(&body(vec![adopting], &[])).await;
    let after = bench.find("d/a").await;
    assert_eq!((after.desired, bench.owner("d/a").await.unwrap()), (before.desired, "d/x@1".to_owned()));
    // It passes over to another deployment that lists it.
    bench.document(&body(vec![deployment("d/y", 7, vec![listed("d/a", "1", None)])], &[])).await;
    assert_eq!(bench.owner("d/a").await.unwrap(), "d/y@7");
}

#[tokio::test]
async fn absence_makes_orphans_and_removal_waits() {
    let mut bench = Bench::new().await;
    let units = || vec![listed("d/a", "1", None), listed("d/b", "1", None)];
    bench.document(&body(vec![deployment("d/x", 1, units())], &[])).await;
    let before = bench.units().await;
    bench.document(&body(vec![], &[])).await;
    assert_eq!(bench.owner("d/a").await.unwrap(), "d/x@1 orphan");
    let after = bench.units().await;
    assert!(before.iter().zip(&after).all(|(one, other)| one.desired == other.desired));
    // One is named, and waits; the other is listed again.
    let value = body(vec![deployment("d/x", 2, vec![listed("d/b", "1", None)])], &[("d/a", "d/x"), ("d/b", "d/y")]);
    bench.document(&value).await;
    let leaving = bench.leaving().await;
    assert_eq!((leaving.len(), &leaving[0].unit, leaving[0].is_approved), (1, &unit("d/a"), false));
    assert_eq!(
        (bench.owner("d/a").await.unwrap(), bench.owner("d/b").await.unwrap()),
        ("d/x@1".to_owned(), "d/x@2".to_owned())
    );
    // A hold keeps it until an operator says so.
    bench.named("unit_hold", "d/a").await.unwrap();
    assert!(bench.leaving().await[0].is_kept);
    // It stays asked for since then, also after a restart; one that is listed again stays.
    bench.document(&value).await;
    bench.reopen().await;
    assert_eq!(bench.leaving().await[0].asked_ms, 1_000);
    bench.document(&body(vec![deployment("d/x", 3, units())], &[("d/a", "d/x")])).await;
    assert_eq!(bench.leaving().await, []);
    assert_eq!(bench.owner("d/a").await.unwrap(), "d/x@3");
}

#[tokio::test]
async fn removal_that_began_counts_for_a_day() {
    let mut bench = Bench::new().await;
    bench.document(&body(vec![deployment("d/x", 1, vec![listed("d/a", "1", None)])], &[])).await;
    bench.document(&body(vec![], &[("d/a", "d/x")])).await;
    let leaving = bench.leaving().await.remove(0);
    let mut tx = bench.store.begin().await.unwrap();
    removal::begin(&mut tx, &leaving, 5_000).await.unwrap();
    crate::store::commit(tx, "remove units").await.unwrap();
    bench.reopen().await;
    assert_eq!(bench.leaving().await[0].begun_ms, Some(5_000));
    let mut tx = bench.store.begin().await.unwrap();
    let past = removal::past(&mut tx, 6_000).await.unwrap();
    assert!(past.len() == 1 && past[0].is_there, "{past:?}");
    unit::remove(&mut tx, &leaving.unit).await.unwrap().unwrap();
    assert!(!removal::past(&mut tx, 6_000).await.unwrap()[0].is_there);
    assert_eq!(removal::past(&mut tx, 5_000 + 24 * 3_600_000).await.unwrap(), []);
    assert_eq!(removal::leaving(&mut tx).await.unwrap(), []);
}

#[tokio::test]
async fn what_goes_at_once_is_not_counted() {
    let mut bench = Bench::new().await;
    bench.document(&body(vec![deployment("d/x", 1, vec![listed("d/a", "1", None)])], &[])).await;
    let mut removes = body(vec![], &[("d/a", "d/x")]);
    bench.document(&removes).await;
    assert!(bench.leaving().await[0].is_counted());
    // It becomes urgent only later, when its host is drained.
    removes["remove"][0]["at_once"] = json!(true);
    bench.document(&removes).await;
    bench.reopen().await;
    let leaving = bench.leaving().await.remove(0);
    assert!(leaving.is_at_once && leaving.asked_ms == 1_000, "{leaving:?}");
    let mut tx = bench.store.begin().await.unwrap();
    removal::begin(&mut tx, &leaving, 5_000).await.unwrap();
    assert_eq!(removal::past(&mut tx, 6_000).await.unwrap(), []);
}

#[tokio::test]
async fn verbs_change_no_unit_of_a_deployment() {
    let mut bench = Bench::new().await;
    bench.document(&body(vec![deployment("d/x", 1, vec![listed("d/a", "1", None)])], &[])).await;
    let before = bench.find("d/a").await.desired;
    for verb in ["unit_run", "unit_stop", "unit_retire", "unit_rm", "unit_pause"] {
        assert_eq!(bench.named(verb, "d/a").await, Err(RefusalCode::Conflict), "{verb}");
    }
    let spec = listed("d/a", "2", None)["spec"].clone();
    let apply = json!({"unit_apply": {"unit": "d/a", "spec": spec}});
    let label = json!({"unit_label": {"unit": "d/a", "labels": {"a": "b"}}});
    let upgrade = json!({"unit_upgrade": {"unit": "d/a", "from": before.revision, "artifact": spec["artifact"]}});
    for verb in [apply, label, upgrade] {
        let verb: Verb = serde_json::from_value(verb).unwrap();
        assert_eq!(bench.verb(&verb).await, Err(RefusalCode::Conflict), "{}", verb.name());
    }
    assert_eq!(bench.find("d/a").await.desired, before);
    // A snapshot of before does not come back either.
    let operator: Name = "anna".parse().unwrap();
    let asker = ChangeContext { operator: &operator, now_ms: 2_000, key: None, is_document: false, values: None };
    let mut tx = bench.store.begin().await.unwrap();
    let name: Name = "s".parse().unwrap();
    snapshot::create(&mut tx, &name, |_| false, asker).await.unwrap().unwrap();
    crate::store::commit(tx, "edit unit").await.unwrap();
    bench.document(&body(vec![deployment("d/x", 2, vec![listed("d/a", "2", None)])], &[])).await;
    let mut tx = bench.store.begin().await.unwrap();
    let refused = snapshot::activate(&mut tx, &name, |_, _| Ok(()), asker).await.unwrap().unwrap_err();
    assert!(refused.diagnostic.cause.contains("d/x"), "{refused:?}");
}

#[tokio::test]
async fn operator_removes_orphans_and_detaches() {
    let mut bench = Bench::new().await;
    let all = vec![listed("d/a", "1", None), listed("d/b", "1", None), listed("d/c", "1", None)];
    bench.document(&body(vec![deployment("d/x", 1, all)], &[])).await;
    let left = || deployment("d/x", 1, vec![listed("d/c", "1", None)]);
    bench.document(&body(vec![left()], &[("d/b", "d/x")])).await;
    for name in ["d/a", "d/b"] {
        assert_eq!(bench.named("unit_rm", name).await, Ok(None));
    }
    assert!(bench.leaving().await.iter().all(|leaving| leaving.is_approved));
    // That holds with the next document, too.
    bench.document(&body(vec![left()], &[])).await;
    let leaving: Vec<UnitName> = bench.leaving().await.into_iter().map(|leaving| leaving.unit).collect();
    assert_eq!(leaving, [unit("d/a"), unit("d/b")]);

    let before = bench.find("d/c").await.desired;
    bench.named("unit_detach", "d/c").await.unwrap().unwrap();
    assert_eq!((bench.owner("d/c").await, bench.find("d/c").await.desired), (None, before));
    let refused = bench.reported("d/x").await.refused.unwrap();
    assert!(refused.version == 1 && refused.diagnostic.cause.contains("detached"), "{refused:?}");
    bench.retry().await;
    assert!(bench.reported("d/x").await.refused.is_some(), "as long as the document lists it");
    bench.document(&body(vec![deployment("d/x", 1, vec![])], &[])).await;
    assert_eq!(bench.reported("d/x").await.refused, None);
    bench.named("unit_stop", "d/c").await.unwrap();
    // A unit without an owner is detached already.
    bench.named("unit_detach", "d/c").await.unwrap();
}

#[tokio::test]
async fn lost_console_is_left_with_all_units() {
    let mut bench = Bench::new().await;
    let units = vec![listed("d/a", "1", None), listed("d/b", "1", None)];
    bench.document(&body(vec![deployment("d/x", 1, units)], &[])).await;
    let before = bench.units().await;
    assert_eq!(document::detach_all(&bench.store).await.unwrap(), 2);
    let after = bench.units().await;
    assert!(before.iter().zip(&after).all(|(one, other)| one.desired == other.desired && other.owner.is_none()));
    let report = document::report(&bench.store).await.unwrap();
    assert_eq!((report.mark.generation, report.deployments.len()), (1, 0), "an older document is still refused");
}

#[tokio::test]
async fn killed_agent_has_all_of_a_document_or_nothing() {
    let mut bench = Bench::new().await;
    let of = |number, artifact| body(vec![deployment("d/x", number, vec![listed("d/a", artifact, None)])], &[]);
    bench.document(&of(1, "1")).await;
    let before = bench.find("d/a").await;
    bench.document_or_crash(of(2, "2").to_string(), true).await;
    bench.reopen().await;
    let known = document::known(&bench.store).await.unwrap();
    assert_eq!((known.mark.generation, bench.find("d/a").await), (1, before));
    bench.document(&of(2, "2")).await;
    bench.reopen().await;
    let known = document::known(&bench.store).await.unwrap();
    assert_eq!((known.mark.generation, bench.owner("d/a").await.unwrap()), (3, "d/x@2".to_owned()));
}

#[tokio::test]
async fn refusal_survives_a_restart_and_ends_with_the_next_document() {
    let mut bench = Bench::new().await;
    let mark = DesiredMark { epoch: 1, generation: 9 };
    let refusal = DocumentRefusal { mark, diagnostic: "no".into() };
    document::refuse(&bench.store, &refusal, &Digest::of(b"r")).await.unwrap();
    bench.reopen().await;
    let known = KnownDocument { refused: Some((mark, Digest::of(b"r"))), ..KnownDocument::default() };
    assert_eq!(document::known(&bench.store).await.unwrap(), known);
    assert_eq!(document::report(&bench.store).await.unwrap().refused, Some(refusal));
    bench.document(&body(vec![], &[])).await;
    assert_eq!(document::report(&bench.store).await.unwrap().refused, None);
}

#[tokio::test]
async fn lost_store_gets_owners_back_and_the_same_document_restarts_nothing() {
    let mut bench = Bench::new().await;
    let value = body(vec![deployment("d/x", 1, vec![listed("d/a", "1", Some(8080))])], &[]);
    bench.document(&value).await;
    let stored = bench.store.units().await.unwrap();
    let row = &stored.units[0];
    let copy = IntentCopy::new(&row.name, &row.desired, (None, row.owner.as_ref()), &row.kept, &stored.leases);
    bench.store.intent().keep(&copy).await.unwrap();
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(bench.folder.path().join(format!("agent.db{suffix}")));
    }
    bench.reopen().await;
    bench.store.begin_life(9_000).await.unwrap();
    assert_eq!(document::known(&bench.store).await.unwrap(), KnownDocument::default());
    assert_eq!(bench.owner("d/a").await.unwrap(), "d/x@1");
    bench.document(&value).await;
    assert_eq!(bench.find("d/a").await.desired, row.desired);
}

/// A deployment that the host asks for.
fn asking(number: u32, units: Vec<Value>) -> Value {
    let mut asking = deployment("d/x", number, units);
    asking["admission"] = json!("ask");
    asking
}

impl Bench {
    /// Begins the version of the stored document; `Err` if it is refused.
    async fn begin(&self, permit: u64) {
        let mut tx = self.store.begin().await.unwrap();
        let text = document::text(&mut tx).await.unwrap().unwrap();
        let body = host_body::read(text.body.as_bytes()).unwrap();
        self.apply(&mut tx, &body, ApplyScope::Begin(&"d/x".parse().unwrap(), permit)).await;
        crate::store::commit(tx, "begin deployment").await.unwrap();
    }

    async fn rows(&self) -> Vec<AdmissionRow> {
        let mut tx = self.store.begin().await.unwrap();
        admission::all(&mut tx).await.unwrap()
    }

    /// The unit, as if it were verified.
    async fn verify(&self, name: &str) {
        let StoredUnit { name, desired, mut kept, .. } = self.find(name).await;
        kept.observed.state = muster_topics::unit::Phase::Running.into();
        (kept.observed.generation, kept.observed.revision) = (desired.generation, Some(desired.revision));
        self.store.keep_unit(&name, desired.generation, &kept, None).await.unwrap();
    }
}

fn begun(permit: u64) -> AdmissionRowStage {
    AdmissionRowStage::Begun { permit }
}

fn ended(permit: Option<u64>, outcome: ChangeOutcome, message: Option<&str>) -> AdmissionRowStage {
    let reason = message.map(<_>::from);
    AdmissionRowStage::Ended { permit, outcome, changed: false, reason, noted: None }
}

#[tokio::test]
async fn version_that_is_asked_for_changes_nothing_until_it_begins() {
    let mut bench = Bench::new().await;
    let units = || vec![listed("d/a", "1", None), listed("d/b", "1", None)];
    bench.document(&body(vec![asking(1, units())], &[])).await;
    assert_eq!((bench.units().await.len(), bench.rows().await.len()), (0, 0));
    bench.begin(7).await;
    assert_eq!(bench.reported("d/x").await, DeploymentReport { version: 1, refused: None, waits: None });
    let changed = [(unit("d/a"), true), (unit("d/b"), true)].into();
    assert_eq!((bench.rows().await[0].units.clone(), bench.rows().await[0].stage.clone()), (changed, begun(7)));
    // The next one gives a unit up, and another deployment waits for it.
    let before = bench.units().await;
    let next = || vec![listed("d/a", "2", None)];
    let other = deployment("d/y", 1, vec![listed("d/b", "1", None)]);
    let remove = [("d/b", "d/x")];
    bench.document(&body(vec![asking(2, next())], &remove)).await;
    assert_eq!((bench.units().await, bench.leaving().await), (before.clone(), vec![]));
    bench.document(&body(vec![asking(2, next()), other], &[])).await;
    assert_eq!(bench.units().await, before);
    assert!(bench.reported("d/y").await.refused.unwrap().diagnostic.cause.contains("d/x"));
    bench.begin(8).await;
    bench.retry().await;
    assert_eq!(
        (bench.owner("d/a").await.unwrap(), bench.owner("d/b").await.unwrap()),
        ("d/x@2".into(), "d/y@1".into())
    );
    let row = bench.rows().await.remove(0);
    assert_eq!((row.version, row.stage, row.units), (2, begun(8), [(unit("d/a"), true)].into()));
    // One that is killed before it is committed begins nothing.
    bench.reopen().await;
    assert_eq!(bench.rows().await.len(), 1);
    // The deployment goes, and all that is known of it.
    bench.document(&body(vec![], &[("d/a", "d/x")])).await;
    assert_eq!((bench.rows().await, bench.leaving().await.len()), (vec![], 1));
}

#[tokio::test]
async fn version_without_a_change_is_applied_without_a_permit_if_all_is_well() {
    let mut bench = Bench::new().await;
    bench.document(&body(vec![asking(1, vec![listed("d/a", "1", None)])], &[])).await;
    bench.begin(1).await;
    bench.document(&body(vec![asking(2, vec![listed("d/a", "1", None)])], &[])).await;
    assert_eq!(bench.reported("d/x").await.version, 1, "its unit is not verified");
    bench.verify("d/a").await;
    let before = bench.find("d/a").await.desired;
    bench.document(&body(vec![asking(2, vec![listed("d/a", "1", None)])], &[])).await;
    assert_eq!((bench.reported("d/x").await.version, bench.find("d/a").await.desired), (2, before));
    let stages: Vec<_> = bench.rows().await.into_iter().map(|row| (row.version, row.stage)).collect();
    assert_eq!(stages, [(1, begun(1)), (2, ended(None, ChangeOutcome::Verified, None))]);
    // It gives nothing up.
    bench.document(&body(vec![asking(3, vec![])], &[("d/a", "d/x")])).await;
    assert_eq!((bench.reported("d/x").await.version, bench.leaving().await), (2, vec![]));
}

#[tokio::test]
async fn refusal_of_a_version_that_is_asked_for_ends_it_and_may_pass() {
    let mut bench = Bench::new().await;
    let local = listed("d/a", "1", None)["spec"].clone();
    let verb = json!({"unit_apply": {"unit": "d/a", "spec": local, "run": "stopped"}});
    bench.verb(&serde_json::from_value(verb).unwrap()).await.unwrap();
    bench.document(&body(vec![asking(1, vec![listed("d/a", "2", None)])], &[])).await;
    let rows = bench.rows().await;
    let AdmissionRowStage::Ended { permit: None, outcome: ChangeOutcome::Refused, reason: Some(why), .. } =
        &rows[0].stage
    else {
        panic!("{rows:?}")
    };
    assert!(why.cause.contains("d/a"), "{why}");
    bench.retry().await;
    assert_eq!(bench.rows().await, rows, "the same refusal is no other end");
    for verb in ["unit_retire", "unit_rm"] {
        bench.named(verb, "d/a").await.unwrap();
    }
    bench.retry().await;
    assert_eq!((bench.rows().await, bench.reported("d/x").await.refused), (vec![], None));
    // What it cannot have when it begins ends it with its permit.
    let verb = json!({"unit_apply": {"unit": "d/a", "spec": listed("d/a", "1", None)["spec"], "run": "stopped"}});
    bench.verb(&serde_json::from_value(verb).unwrap()).await.unwrap();
    bench.begin(5).await;
    let stage = bench.rows().await.remove(0).stage;
    assert!(matches!(stage, AdmissionRowStage::Ended { permit: Some(5), outcome: ChangeOutcome::Refused, .. }));
    assert_eq!(bench.owner("d/a").await, None);
}

#[tokio::test]
async fn unit_that_has_failed_is_tried_anew_with_each_permit() {
    let mut bench = Bench::new().await;
    let of = |number| body(vec![asking(number, vec![listed("d/a", "1", None)])], &[]);
    bench.document(&of(1)).await;
    bench.begin(1).await;
    let StoredUnit { name, desired, mut kept, .. } = bench.find("d/a").await;
    kept.observed.state = muster_topics::unit::Phase::Failed.into();
    bench.store.keep_unit(&name, desired.generation, &kept, None).await.unwrap();
    let row = bench.rows().await.remove(0);
    let mut tx = bench.store.begin().await.unwrap();
    try_again(&mut tx, row).await.unwrap();
    crate::store::commit(tx, "retry deployment").await.unwrap();
    assert_eq!(bench.rows().await[0].stage, AdmissionRowStage::Again);
    assert_eq!(bench.find("d/a").await.desired, desired, "not before it is admitted");
    bench.begin(2).await;
    assert!(bench.find("d/a").await.desired.generation > desired.generation);
    assert_eq!(bench.rows().await[0].stage, begun(2));
}

#[tokio::test]
async fn rehearsal_says_what_would_be_and_changes_nothing() {
    let mut bench = Bench::new().await;
    let value = body(vec![asking(1, vec![listed("d/a", "1", Some(8080))])], &[]);
    bench.document(&value).await;
    let (policy, realms) = (LocalPolicy::default(), ["d".parse().unwrap()].into());
    let host = DocumentHost {
        policy: &policy,
        realms: &realms,
        user: "root",
        key: &RevisionKey::from_bytes([1; 32]),
        now_ms: 1_000,
        values: &RenderValues::default(),
    };
    let body = host_body::read(value.to_string().as_bytes()).unwrap();
    let rehearsed = async |bench: &Bench| {
        let mut tx = bench.store.begin().await.unwrap();
        rehearse(&mut tx, &body, &"d/x".parse().unwrap(), host).await.unwrap()
    };
    let units = rehearsed(&bench).await.unwrap();
    assert_eq!((units.len(), units[0].is_there, units[0].desired.run), (1, false, Run::Running));
    assert_eq!((bench.units().await.len(), bench.rows().await.len()), (0, 0));
    let taken = listed("d/local", "1", Some(8080))["spec"].clone();
    let verb = json!({"unit_apply": {"unit": "d/local", "spec": taken, "run": "stopped"}});
    bench.verb(&serde_json::from_value(verb).unwrap()).await.unwrap();
    assert!(rehearsed(&bench).await.unwrap_err().refusal.diagnostic.cause.contains("8080"));
}

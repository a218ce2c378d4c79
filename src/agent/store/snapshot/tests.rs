use serde_json::{Value, json};

use super::*;
use crate::store::{port_lease, realm};

struct Bench {
    _folder: tempfile::TempDir,
    store: Store,
    operator: Name,
}

fn unit(name: &str) -> UnitName {
    name.parse().unwrap()
}

fn spec(fields: &Value) -> Spec {
    let mut spec = json!({
        "kind": "yuno",
        "artifact": { "sha256": muster_topics::name::Digest::of(b"a"), "size_bytes": 1, "role": "a", "version": "1" }
    });
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    serde_json::from_value(spec).unwrap()
}

impl Bench {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("agent.db")).await.unwrap();
        Self { _folder: folder, store, operator: "anna".parse().unwrap() }
    }

    fn asker(&self) -> ChangeContext<'_> {
        ChangeContext { operator: &self.operator, now_ms: 1_000, key: None, is_document: false, values: None }
    }

    async fn edit(&self, verb: &Verb) -> Result<u64, CommandRefusal> {
        let mut tx = self.store.begin().await.unwrap();
        let unit = verb.units()[0];
        let edited = unit::edit(&mut tx, unit, verb, self.asker()).await.unwrap();
        // As in the journal's transaction: what was refused must have left nothing of its own accord.
        tx.commit().await.unwrap();
        edited.map(|applied| applied.map_or(0, |applied| applied.generation))
    }

    async fn apply(&self, name: &str, fields: Value) -> Result<u64, CommandRefusal> {
        let spec = Box::new(spec(&fields));
        self.edit(&Verb::UnitApply { unit: unit(name), spec, run: Some(Run::Stopped) }).await
    }

    async fn forget(&self, name: &str) -> Result<u64, CommandRefusal> {
        self.edit(&Verb::UnitRetire { unit: unit(name), note: None }).await.unwrap();
        self.edit(&Verb::UnitRm { unit: unit(name) }).await
    }

    async fn take(&self, name: &str) -> Result<(), CommandRefusal> {
        let mut tx = self.store.begin().await.unwrap();
        let taken = create(&mut tx, &name.parse().unwrap(), |_| false, self.asker()).await.unwrap();
        tx.commit().await.unwrap();
        taken
    }

    /// As the agent does it: what is refused is rolled back.
    async fn switch(&self, name: &str, on: bool) -> Result<Vec<String>, CommandRefusal> {
        let mut tx = self.store.begin().await.unwrap();
        let name: Name = name.parse().unwrap();
        let may_be = |_: &UnitName, _: &Spec| Ok(());
        let told = match on {
            true => activate(&mut tx, &name, may_be, self.asker()).await.unwrap(),
            false => deactivate(&mut tx, &name, may_be, self.asker()).await.unwrap(),
        };
        if told.is_ok() {
            tx.commit().await.unwrap();
        }
        Ok(words(&told?))
    }

    async fn diff(&self, name: &str) -> Result<Vec<String>, CommandRefusal> {
        let mut tx = self.store.begin().await.unwrap();
        Ok(words(&compare(&mut tx, &name.parse().unwrap()).await.unwrap()?))
    }

    async fn remove(&self, name: &str) -> Result<(), CommandRefusal> {
        let mut tx = self.store.begin().await.unwrap();
        let removed = remove(&mut tx, &name.parse().unwrap()).await.unwrap();
        tx.commit().await.unwrap();
        removed
    }

    async fn args(&self, name: &str) -> Vec<String> {
        let units = self.store.units().await.unwrap().units;
        let Spec::Yuno(spec) = &*units.into_iter().find(|row| row.name == unit(name)).unwrap().desired.spec else {
            panic!("a yuno")
        };
        spec.program.args.clone()
    }

    async fn ports(&self) -> Vec<String> {
        let leases = self.store.units().await.unwrap().leases;
        leases.iter().map(|lease| format!("{}.{}", lease.unit, lease.name)).collect()
    }
}

fn words(told: &SnapshotDiff) -> Vec<String> {
    let word = |diff: &UnitDiff| {
        let how = match &diff.difference {
            Difference::Same => "same".to_owned(),
            Difference::Changed { fields, .. } => fields.join(","),
            Difference::Missing => "missing".to_owned(),
            Difference::Extra => "extra".to_owned(),
            Difference::Later => "later".to_owned(),
        };
        format!("{} {how}", diff.unit)
    };
    told.units.iter().map(word).collect()
}

fn args(arg: &str) -> Value {
    json!({ "args": [arg] })
}

#[tokio::test]
async fn activated_snapshot_can_be_deactivated() {
    let bench = Bench::new().await;
    for name in ["a/one", "a/two", "a/three"] {
        bench.apply(name, args("old")).await.unwrap();
    }
    bench.take("good").await.unwrap();
    bench.take("good").await.unwrap();
    bench.apply("a/one", args("new")).await.unwrap();
    bench.apply("a/two", args("new")).await.unwrap();
    bench.apply("a/other", args("new")).await.unwrap();
    assert_eq!(bench.take("good").await.unwrap_err().code, RefusalCode::Conflict);
    let different = ["a/one args", "a/other extra", "a/three same", "a/two args"];
    assert_eq!(bench.diff("good").await.unwrap(), different);

    let untouched = bench.apply("a/three", args("old")).await.unwrap();
    assert_eq!(bench.switch("good", true).await.unwrap(), different);
    assert_eq!(
        (bench.args("a/one").await, bench.args("a/other").await),
        (vec!["old".to_owned()], vec!["new".to_owned()])
    );
    assert_eq!(bench.apply("a/three", args("old")).await.unwrap(), untouched, "the same generation as before");
    assert_eq!(bench.switch("good", true).await.unwrap()[0], "a/one same");
    assert_eq!(bench.remove("good").await.unwrap_err().code, RefusalCode::Conflict);
    bench.take("other").await.unwrap();
    assert_eq!(bench.switch("other", true).await.unwrap_err().code, RefusalCode::Conflict);

    // What somebody wants meanwhile stays.
    bench.apply("a/two", args("newer")).await.unwrap();
    assert_eq!(bench.switch("good", false).await.unwrap(), ["a/one args", "a/two later"]);
    assert_eq!(
        (bench.args("a/one").await, bench.args("a/two").await),
        (vec!["new".to_owned()], vec!["newer".to_owned()])
    );
    assert_eq!(bench.switch("good", false).await.unwrap(), Vec::<String>::new());
    bench.remove("good").await.unwrap();
    assert_eq!(bench.remove("good").await.unwrap_err().code, RefusalCode::NotFound);
    assert_eq!(bench.switch("good", true).await.unwrap_err().code, RefusalCode::NotFound);
}

#[tokio::test]
async fn content_of_a_snapshot_is_kept() {
    let bench = Bench::new().await;
    assert_eq!(bench.take("empty").await.unwrap_err().code, RefusalCode::Conflict);
    bench.apply("a/one", args("old")).await.unwrap();
    bench.take("good").await.unwrap();
    bench.apply("a/one", args("new")).await.unwrap();
    let refusal = bench.forget("a/one").await.unwrap_err();
    assert!(refusal.diagnostic.cause.contains("the snapshot good needs a/one"), "{refusal:?}");
    let specs = bench.store.snapshot_specs().await.unwrap();
    assert_eq!(specs, [spec(&args("old"))]);
    bench.switch("good", true).await.unwrap();
    assert_eq!(bench.store.snapshot_specs().await.unwrap().len(), 2, "and what it was before");
    bench.switch("good", false).await.unwrap();
    bench.remove("good").await.unwrap();
    bench.forget("a/one").await.unwrap();
}

async fn with_ports(bench: &Bench, bind: &str, ports: &str) {
    let mut tx = bench.store.begin().await.unwrap();
    let ports = serde_json::to_value(range(ports)).unwrap();
    let realm = json!({ "name": "a", "generation": 7, "bind": bind, "ports": ports });
    realm::take_in(&mut tx, &[serde_json::from_value(realm).unwrap()]).await.unwrap().unwrap();
    tx.commit().await.unwrap();
}

fn range(ports: &str) -> muster_topics::realm::PortRange {
    ports.parse().unwrap()
}

fn provides(names: &[&str]) -> Value {
    json!({ "provides": names.iter().map(|name| json!({ "name": name, "global": true })).collect::<Vec<_>>() })
}

/// Two ports in a row that nobody has now. Tests run beside each other: an address that is one's own stays free.
fn two_free_ports(bind: &str) -> (u16, u16) {
    let free = |port| std::net::TcpListener::bind((bind, port)).is_ok();
    let first = (20_000..30_000).find(|port| free(*port) && free(*port + 1)).unwrap();
    (first, first + 1)
}

#[tokio::test]
async fn ports_follow_their_units() {
    let bench = Bench::new().await;
    let bind = "127.77.0.1";
    let (first, last) = two_free_ports(bind);
    with_ports(&bench, bind, &format!("{first}-{last}")).await;
    bench.apply("a/one", provides(&["p"])).await.unwrap();
    let refusal = bench.apply("a/two", provides(&["p", "q"])).await.unwrap_err();
    assert_eq!(refusal.code, RefusalCode::PortsExhausted);
    assert_eq!(bench.store.units().await.unwrap().units.len(), 1);
    let generation = bench.apply("a/two", provides(&["p"])).await.unwrap();
    assert_eq!(bench.ports().await, ["a/one.p", "a/two.p"]);
    // The one that is refused is as it was.
    assert_eq!(bench.apply("a/two", provides(&["p", "q"])).await.unwrap_err().code, RefusalCode::PortsExhausted);
    assert_eq!(bench.apply("a/two", provides(&["p"])).await.unwrap(), generation);
    // A stop needs no port, whatever became of the range.
    bench.edit(&Verb::UnitStop { unit: unit("a/two") }).await.unwrap();
    bench.forget("a/one").await.unwrap();
    bench.apply("a/two", provides(&["p", "q"])).await.unwrap();
    assert_eq!(bench.ports().await, ["a/two.p", "a/two.q"]);
}

#[tokio::test]
async fn impossible_activation_changes_nothing() {
    let bench = Bench::new().await;
    let bind = "127.77.0.2";
    let (first, last) = two_free_ports(bind);
    with_ports(&bench, bind, &format!("{first}-{last}")).await;
    bench.apply("a/one", provides(&["p", "q"])).await.unwrap();
    bench.take("two-ports").await.unwrap();
    bench.apply("a/one", provides(&["p"])).await.unwrap();
    bench.apply("a/two", provides(&["p"])).await.unwrap();
    let refusal = bench.switch("two-ports", true).await.unwrap_err();
    assert_eq!(refusal.code, RefusalCode::PortsExhausted);
    assert_eq!(bench.ports().await, ["a/one.p", "a/two.p"]);
    bench.remove("two-ports").await.unwrap();
}

#[tokio::test]
async fn port_in_use_is_skipped() {
    let bench = Bench::new().await;
    let bind = "127.77.0.3";
    let (first, last) = two_free_ports(bind);
    let other = std::net::TcpListener::bind((bind, first)).unwrap();
    with_ports(&bench, bind, &format!("{first}-{last}")).await;
    bench.apply("a/one", provides(&["p"])).await.unwrap();
    let mut tx = bench.store.begin().await.unwrap();
    let leases = port_lease::all(&mut tx).await.unwrap();
    assert_eq!(leases.iter().map(|lease| lease.port).collect::<Vec<_>>(), [last]);
    drop(other);
}

#[tokio::test]
async fn older_realm_is_ignored_and_empty_one_removed() {
    let bench = Bench::new().await;
    with_ports(&bench, "0.0.0.0", "500-509").await;
    let mut tx = bench.store.begin().await.unwrap();
    let older = json!({ "name": "a", "generation": 6, "disabled": true });
    realm::take_in(&mut tx, &[serde_json::from_value(older).unwrap()]).await.unwrap().unwrap();
    let below = json!({ "name": "b", "generation": 1, "parent": "a" });
    realm::take_in(&mut tx, &[serde_json::from_value(below).unwrap()]).await.unwrap().unwrap();
    let ring = json!({ "name": "a", "generation": 9, "parent": "b" });
    let refused = realm::take_in(&mut tx, &[serde_json::from_value(ring).unwrap()]).await.unwrap();
    assert!(refused.unwrap_err().diagnostic.cause.contains("its own parent"));
    tx.commit().await.unwrap();
    let resolved = bench.store.realms().await.unwrap().resolve(&"b".parse().unwrap());
    assert_eq!((resolved.ports, resolved.disabled), (range("500-509"), None));

    bench.apply("b/one", args("x")).await.unwrap();
    for (realm, word) in [("b", "has units here"), ("a", "the parent of b"), ("default", "cannot be removed")] {
        let mut tx = bench.store.begin().await.unwrap();
        let refusal = realm::remove(&mut tx, &realm.parse().unwrap()).await.unwrap().unwrap_err();
        assert!(refusal.diagnostic.cause.contains(word), "{refusal:?}");
    }
    bench.forget("b/one").await.unwrap();
    let mut tx = bench.store.begin().await.unwrap();
    for realm in ["b", "a", "a"] {
        realm::remove(&mut tx, &realm.parse().unwrap()).await.unwrap().unwrap();
    }
    tx.commit().await.unwrap();
    assert_eq!(bench.store.realms().await.unwrap().iter().count(), 0);
}

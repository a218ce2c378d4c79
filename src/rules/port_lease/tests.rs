use muster_topics::{name::Digest, realm::Realm};
use serde_json::{Value, json};

use super::*;

fn name(name: &str) -> Name {
    name.parse().unwrap()
}

fn unit(unit: &str) -> UnitName {
    unit.parse().unwrap()
}

fn spec(fields: Value) -> YunoSpec {
    let mut spec = json!({ "artifact": { "sha256": Digest::of(b""), "size_bytes": 1, "role": "a", "version": "1" } });
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    serde_json::from_value(spec).unwrap()
}

/// Leases as `UNIT.NAME=PORT`, with `/udp` behind if they are of that.
fn leases(texts: &[&str]) -> Vec<PortLease> {
    let lease = |text: &&str| {
        let (text, protocol) = text.strip_suffix("/udp").map_or((*text, Protocol::Tcp), |text| (text, Protocol::Udp));
        let (left, port) = text.split_once('=').unwrap();
        let (of, endpoint) = left.split_once('.').unwrap();
        PortLease { unit: unit(of), name: name(endpoint), protocol, port: port.parse().unwrap() }
    };
    texts.iter().map(lease).collect()
}

fn written(leases: &[PortLease]) -> Vec<String> {
    leases.iter().map(|lease| format!("{}={}", lease.name, lease.port)).collect()
}

/// What `a/x` is leased of the ports 10 to 13, of which something else has 11.
fn assigned(provides: Value, before: &[&str]) -> Result<Vec<String>, RefusalCode> {
    let range = "10-13".parse().unwrap();
    let provides = spec(json!({ "provides": provides })).program.provides;
    assign(&unit("a/x"), &provides, &leases(before), range, |_, port| port != 11)
        .map(|leases| written(&leases))
        .map_err(|refusal| refusal.code)
}

#[track_caller]
fn check_leases(provides: Value, before: &[&str], wanted: Result<&[&str], RefusalCode>) {
    let given = assigned(provides.clone(), before);
    assert_eq!(given, wanted.map(|leases| leases.iter().map(|lease| (*lease).to_owned()).collect()), "{provides}");
}

#[test]
fn lowest_free_port_is_leased() {
    let two = || json!([{"name": "p"}, {"name": "q"}]);
    check_leases(json!([]), &["a/x.p=10"], Ok(&[]));
    check_leases(two(), &[], Ok(&["p=10", "q=12"]));
    check_leases(two(), &["b/y.p=10"], Ok(&["p=12", "q=13"]));
    check_leases(two(), &["b/y.p=10", "b/y.q=12"], Err(RefusalCode::PortsExhausted));
    // Each protocol has ports of its own.
    check_leases(json!([{"name": "p"}, {"name": "q", "protocol": "udp"}]), &[], Ok(&["p=10", "q=10"]));
    check_leases(json!([{"name": "p"}]), &["b/y.p=10/udp"], Ok(&["p=10"]));
}

#[test]
fn leased_port_is_kept() {
    let two = || json!([{"name": "p"}, {"name": "q"}]);
    // Also one that its own process has bound, which is in use as anybody can see.
    check_leases(two(), &["a/x.q=11", "a/x.p=13"], Ok(&["p=13", "q=11"]));
    check_leases(two(), &["a/x.q=10"], Ok(&["q=10", "p=12"]));
    // And one that the realm has no more. But not one of another protocol.
    check_leases(json!([{"name": "p"}]), &["a/x.p=99"], Ok(&["p=99"]));
    check_leases(json!([{"name": "p", "protocol": "udp"}]), &["a/x.p=12"], Ok(&["p=10"]));
}

#[test]
fn chosen_port_is_leased_or_refused() {
    check_leases(json!([{"name": "p", "port": 8080}]), &["a/x.p=12"], Ok(&["p=8080"]));
    check_leases(json!([{"name": "p", "port": 11}]), &[], Ok(&["p=11"]));
    check_leases(json!([{"name": "p", "port": 8080}]), &["b/y.p=8080"], Err(RefusalCode::Conflict));
    check_leases(json!([{"name": "p", "port": 8080}]), &["b/y.p=8080/udp"], Ok(&["p=8080"]));
    // It is not given away to another endpoint of the same unit.
    check_leases(json!([{"name": "q"}, {"name": "p", "port": 10}]), &["a/x.q=10"], Ok(&["p=10", "q=12"]));
}

#[track_caller]
fn check_spec(fields: Value, words: &[&str]) {
    let wrong = check(&spec(fields));
    assert_eq!(wrong.len(), words.len(), "{wrong:?}");
    for (wrong, word) in wrong.iter().zip(words) {
        assert!(wrong.cause.contains(word), "{wrong:?} has no {word:?}");
    }
}

#[test]
fn all_faults_are_reported_at_once() {
    check_spec(
        json!({
            "provides": [{"name": "http"}, {"name": "ws", "port": 90}, {"name": "dns", "port": 90, "protocol": "udp"}],
            "needs": [{"name": "http"}, {"name": "db", "from": "b/db", "optional": true}],
            "args": ["-p{port:http}", "{address:ws}:{port:ws}", "{endpoint:db}", "{config}", "{", "{}", "{{port:http}}", "{{port:x}}"]
        }),
        &[],
    );
    check_spec(
        json!({
            "provides": [{"name": "a-b"}, {"name": "a_b"}, {"name": "c", "port": 0}, {"name": "d", "port": 9},
                         {"name": "e", "port": 9}],
            "needs": [{"name": "n"}, {"name": "n"}],
            "args": ["{port:n}", "x", "{endpoint:a-b}{port:?}", "{port} {hostname}", "{fact:cpus} {{fact:cpus}}"],
            "env": {"A": "{hostname} {level}", "B": "at {port:e}", "C": "{config}"}
        }),
        &[
            "one variable",
            "n twice",
            "port 0",
            "tcp port 9",
            "argument 1 has {port:n}, and provides",
            "argument 3 has {endpoint:a-b}, and needs",
            "{port:?}",
            "argument 4 has {port}, which is an unknown placeholder",
            "argument 4 has {hostname}",
            "argument 5 has {fact:cpus}, which is an unknown placeholder",
            "env.B has {port:e}, and only arguments may have placeholders",
            "env.C has {config}, and only arguments may have placeholders",
        ],
    );
}

#[test]
fn wrong_placeholder_has_a_hint() {
    let fields = json!({"provides": [{"name": "e"}], "args": ["{port}"], "env": {"B": "{port:e}", "C": "{config}"}});
    let hints: Vec<_> = check(&spec(fields)).into_iter().filter_map(|wrong| wrong.hint).collect();
    let begins =
        ["there are {config}, {port:NAME}", "its process finds MUSTER_PORT_E", "its process finds MUSTER_CONFIG"];
    assert_eq!(hints.len(), begins.len(), "{hints:?}");
    for (hint, begin) in hints.iter().zip(begins) {
        assert!(hint.starts_with(begin), "{hint}");
    }
}

fn realms() -> Realms {
    let parent = |own: &str, parent: &str| Realm { parent: Some(name(parent)), ..Realm::new(name(own)) };
    let bound = Realm { bind: Some("10.0.0.1".parse().unwrap()), ..Realm::new(name("top")) };
    let closed = Realm { disabled: true, ..Realm::new(name("closed")) };
    [bound, parent("low", "top"), closed].into_iter().collect()
}

/// What `low/app` with these needs is wired to, where there are these units and leases.
fn wired(needs: Value, there: &[(&str, Value)], given: &[&str]) -> (Vec<String>, Option<String>) {
    let app = spec(json!({ "needs": needs }));
    let specs: Vec<(UnitName, YunoSpec)> =
        there.iter().map(|(of, provides)| (unit(of), spec(json!({ "provides": provides })))).collect();
    let given = leases(given);
    let provision = PortProvision::new(specs.iter().map(|(unit, spec)| (unit, spec)), &given);
    let (wiring, lacks) = wire(&unit("low/app"), &app, &provision, &realms());
    let written = wiring.connectors.iter().map(|end| format!("{}={}:{} {}", end.name, end.address, end.port, end.unit));
    (written.collect(), lacks)
}

#[track_caller]
fn check_wired(needs: Value, there: &[(&str, Value)], given: &[&str], wanted: &[&str], lacks: Option<&str>) {
    let (written, lack) = wired(needs, there, given);
    assert_eq!(written, wanted);
    assert_eq!(lack.is_some(), lacks.is_some(), "{lack:?}");
    let (lack, word) = (lack.unwrap_or_default(), lacks.unwrap_or_default());
    assert!(lack.contains(word), "{lack:?} has no {word:?}");
}

#[test]
fn connector_is_searched_in_realm_then_parents() {
    let db = || json!([{"name": "db"}]);
    let (low, top, far) = (("low/db", db()), ("top/db", json!([{"name": "db", "global": true}])), ("far/db", db()));
    let given = ["low/db.db=1", "top/db.db=2", "far/db.db=3"];
    check_wired(db(), &[low.clone(), top.clone(), far.clone()], &given, &["db=127.0.0.1:1 low/db"], None);
    check_wired(db(), &[top.clone(), far.clone()], &given, &["db=10.0.0.1:2 top/db"], None);
    check_wired(db(), std::slice::from_ref(&far), &given, &[], Some("no unit of realm low or top provides db"));
    let from = json!([{"name": "db", "from": "far/db"}]);
    check_wired(from.clone(), &[low.clone(), far], &given, &["db=127.0.0.1:3 far/db"], None);
    check_wired(from, std::slice::from_ref(&low), &given, &[], Some("far/db does not provide db"));
    check_wired(json!([{"name": "db", "optional": true}]), &[], &given, &[], None);
    let other = ("low/other", db());
    check_wired(db(), &[low, other], &given, &[], Some("low/db, low/other all provide db"));
    check_wired(
        json!([{"name": "x"}, {"name": "y"}]),
        &[],
        &[],
        &[],
        Some("provides x; no unit of realm low or top provides y"),
    );
}

#[test]
fn disabled_realm_holds_its_units() {
    let none = spec(json!({}));
    let (wiring, lacks) = wire(&unit("closed/app"), &none, &PortProvision::default(), &realms());
    assert!(wiring.is_empty());
    assert_eq!(lacks.as_deref(), Some("the realm closed is disabled"));
}

fn wiring() -> EndpointWiring {
    let app = spec(json!({
        "provides": [{"name": "http"}, {"name": "in-6", "protocol": "udp", "global": true}], "needs": [{"name": "db"}]
    }));
    let db = spec(json!({ "provides": [{"name": "db"}] }));
    let (app_name, db_name) = (unit("top/app"), unit("top/db"));
    let given = leases(&["top/app.http=80", "top/app.in-6=53/udp", "top/db.db=5432"]);
    let provision = PortProvision::new([(&app_name, &app), (&db_name, &db)], &given);
    wire(&app_name, &app, &provision, &realms()).0
}

#[test]
fn wiring_sets_variables_and_arguments() {
    let variables: Vec<String> = wiring().variables().iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(
        variables,
        [
            "MUSTER_PORT_HTTP=80",
            "MUSTER_ADDRESS_HTTP=127.0.0.1",
            "MUSTER_PORT_IN_6=53",
            "MUSTER_ADDRESS_IN_6=10.0.0.1",
            "MUSTER_ENDPOINT_DB=127.0.0.1:5432"
        ]
    );
    for (arg, filled) in [
        ("", ""),
        ("plain {config} {", "plain /c {"),
        ("-p{port:http}", "-p80"),
        ("{address:in-6}:{port:in-6}", "10.0.0.1:53"),
        ("{{endpoint:db}}", "{endpoint:db}"),
        ("{endpoint:none}", ""),
        ("{port}", "{port}"),
    ] {
        assert_eq!(wiring().fill(arg, Some("/c")), filled, "{arg}");
    }
}

#[test]
fn wiring_is_added_to_config() {
    let mut config = json!({"colour": "blue", "endpoints": {"other": 1}});
    wiring().put_into(&mut config).unwrap();
    assert_eq!(
        config,
        json!({
            "colour": "blue",
            "endpoints": {
                "other": 1,
                "http": {"name": "http", "address": "127.0.0.1", "port": 80},
                "in-6": {"name": "in-6", "address": "10.0.0.1", "port": 53, "protocol": "udp"}
            },
            "connectors": {"db": {"name": "db", "address": "127.0.0.1", "port": 5432, "unit": "top/db"}}
        })
    );
    assert!(wiring().put_into(&mut json!([1])).is_err());
}

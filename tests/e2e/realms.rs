//! Realms, endpoints and snapshots: units that find each other, and earlier desired state.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use serde_json::Value;

use crate::fleet::{Fleet, eventually, file, free_ports};

/// A provider: it serves its working folder at the port that it was leased.
const SERVER: &str = "#!/bin/sh\nexec python3 -m http.server --bind \"$MUSTER_ADDRESS_HTTP\" \"$1\"\n";

/// What needs it: it tells what it was told.
const CLIENT: &str = "#!/bin/sh\necho \"env $MUSTER_ENDPOINT_HTTP arg $1 config $(cat \"$MUSTER_CONFIG\")\"\nwhile :; do sleep 1; done\n";

fn fleet() -> Fleet {
    let fleet = Fleet::start();
    for (role, program) in [("server", SERVER), ("client", CLIENT)] {
        let path = file(&fleet.home, role, program);
        fleet.ok(&["artifact", "create", &path, "--role", role, "--version", "1"]);
    }
    fleet
}

fn port(unit: &Value) -> u16 {
    u16::try_from(unit["observed"]["endpoints"][0]["port"].as_u64().unwrap()).unwrap()
}

fn pid(unit: &Value) -> i64 {
    unit["observed"]["pid"].as_i64().unwrap()
}

/// The first line of an answer at a port of this host.
fn asked(port: u16) -> Result<String, String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).map_err(|error| error.to_string())?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").map_err(|error| error.to_string())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(|error| error.to_string())?;
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}

fn remove(fleet: &Fleet, unit: &str) {
    fleet.ok(&["unit", "retire", unit]);
    fleet.ok(&["unit", "rm", unit]);
}

#[test]
fn units_find_each_other() {
    let fleet = fleet();
    let ports = free_ports(3);
    fleet.ok(&["realm", "set", "default", "--ports", &format!("{ports}-{}", ports + 2)]);

    // It has to wait for what it needs, and says so.
    let client =
        ["yuno", "create", "default/client", "--artifact", "client", "--need", "http", "--arg", "{endpoint:http}"];
    fleet.muster(&[&client[..], &["--run"]].concat()).expect_code(1).expect_stderr("provides http");
    // Its artifact is installed meanwhile.
    fleet.unit("default/client", |unit| {
        unit["hold"]["reason"] == "dependency" && unit["observed"]["phase"] == "stopped"
    });

    // It ends its waiting by itself once that is there.
    let server =
        ["yuno", "create", "default/server", "--artifact", "server", "--provide", "http", "--arg", "{port:http}"];
    fleet.ok(&[&server[..], &["--run"]].concat());
    let first = fleet.unit("default/server", |unit| unit["observed"]["phase"] == "running");
    assert_eq!(port(&first), ports);
    let answer = eventually("an answer of the server", || asked(ports));
    assert!(answer.contains("200"), "{answer}");
    let client_first = fleet.unit_in_phase("default/client", "running");
    assert!(client_first["hold"].is_null(), "{client_first}");
    let told = format!("env 127.0.0.1:{ports} arg 127.0.0.1:{ports} config ");
    let log = eventually("what the client was told", || {
        let log = fleet.ok(&["yuno", "logs", "default/client"]);
        if log.contains(&told) { Ok(log) } else { Err(log) }
    });
    let config: Value = serde_json::from_str(log.split("config ").nth(1).unwrap().lines().next().unwrap()).unwrap();
    assert_eq!(config["connectors"]["http"]["port"], ports, "{config}");
    assert_eq!(config["connectors"]["http"]["unit"], "default/server", "{config}");

    // A restart keeps the port; another port has the client started anew, once.
    fleet.ok(&["yuno", "restart", "default/server"]);
    let again = fleet.unit("default/server", |unit| unit["observed"]["phase"] == "running" && pid(unit) != pid(&first));
    assert_eq!(port(&again), ports);
    assert_eq!(pid(&fleet.unit_in_phase("default/client", "running")), pid(&client_first));
    let other = ports + 2;
    let chosen = format!("http={other}");
    fleet.ok(&[
        "yuno",
        "create",
        "default/server",
        "--artifact",
        "server",
        "--provide",
        &chosen,
        "--arg",
        "{port:http}",
        "--replace",
    ]);
    let client_second = fleet.unit("default/client", |unit| {
        unit["observed"]["phase"] == "running"
            && unit["observed"]["connectors"][0]["port"] == other
            && pid(unit) != pid(&client_first)
    });
    eventually("an answer at the other port", || asked(other));

    // It goes on when what it needs is gone, and says what it lacks.
    remove(&fleet, "default/server");
    let lonely = fleet.unit("default/client", |unit| unit["hold"]["reason"] == "dependency");
    assert_eq!((pid(&lonely), &lonely["observed"]["phase"]), (pid(&client_second), &"running".into()));
    let shown = fleet.ok(&["unit", "show", "default/client"]);
    assert!(shown.contains("dependency: no unit of realm default provides http"), "{shown}");
}

#[test]
fn exhausted_ports_refuse_and_leave_nothing() {
    let fleet = fleet();
    let ports = free_ports(1);
    fleet.ok(&["realm", "create", "shop", "--ports", &format!("{ports}-{ports}")]);
    let create = |unit: &str| {
        fleet.muster(&["yuno", "create", unit, "--artifact", "server", "--provide", "http", "--arg", "{port:http}"])
    };
    create("shop/one").expect_code(0);
    create("shop/two").expect_code(3).expect_stderr("no tcp port");
    fleet.muster(&["unit", "show", "shop/two"]).expect_code(3);
    // What is wrong with it is told at once, and all of it.
    let bad =
        ["yuno", "create", "shop/two", "--artifact", "server", "--provide", "a", "--provide", "a", "--arg", "{port:b}"];
    fleet.muster(&bad).expect_code(2).expect_stderr("a twice").expect_stderr("{port:b}");
    remove(&fleet, "shop/one");
    create("shop/two").expect_code(0);
}

#[test]
fn disabled_realm_holds_its_units() {
    let fleet = fleet();
    fleet.muster(&["yuno", "create", "shop/a", "--artifact", "client"]).expect_code(3).expect_stderr("realm shop");
    fleet.ok(&["realm", "create", "land"]);
    fleet.ok(&["realm", "create", "shop", "--parent", "land", "--ports", "12000-12009"]);
    fleet.ok(&["realm", "create", "shop", "--parent", "land", "--ports", "12000-12009"]);
    fleet.muster(&["realm", "set", "land", "--parent", "shop"]).expect_code(2).expect_stderr("its own parent");

    // What runs when its realm is disabled goes on, and what is stopped then stays so.
    fleet.ok(&["yuno", "create", "shop/a", "--artifact", "server", "--arg", "0", "--provide", "http", "--run"]);
    fleet.ok(&["realm", "set", "land", "--enabled", "no"]);
    let held = fleet.unit("shop/a", |unit| unit["hold"]["reason"] == "dependency");
    assert_eq!(held["hold"]["note"], "the realm land is disabled");
    assert_eq!(held["observed"]["phase"], "running");
    fleet.ok(&["yuno", "stop", "shop/a"]);
    fleet.muster(&["yuno", "run", "shop/a"]).expect_code(1).expect_stderr("the realm land is disabled");
    assert_eq!(fleet.unit("shop/a", |unit| unit["desired"]["run"] == "running")["observed"]["phase"], "stopped");
    let shop = fleet.json(&["realm", "show", "shop"]);
    assert_eq!((&shop["comes_to"]["disabled_by"], &shop["units"]), (&"land".into(), &1.into()));
    fleet.ok(&["realm", "set", "land", "--enabled", "yes"]);
    fleet.unit_in_phase("shop/a", "running");

    // A realm with units stays.
    fleet.muster(&["realm", "rm", "shop"]).expect_code(3).expect_stderr("has 1 unit");
    fleet.muster(&["realm", "rm", "land"]).expect_code(3).expect_stderr("the parent of shop");
    remove(&fleet, "shop/a");
    eventually("the console hears that the unit is gone", || {
        let run = fleet.muster(&["realm", "rm", "shop"]);
        if run.code == 0 { Ok(()) } else { Err(run.stderr) }
    });
    fleet.ok(&["realm", "rm", "land"]);
    fleet.muster(&["yuno", "create", "shop/a", "--artifact", "client"]).expect_code(3).expect_stderr("realm shop");
}

#[test]
fn snapshot_is_activated_and_deactivated() {
    let fleet = fleet();
    let create = |unit: &str, arg: &str| {
        fleet.ok(&[
            "yuno",
            "create",
            unit,
            "--artifact",
            "client",
            "--need",
            "http?",
            "--arg",
            arg,
            "--run",
            "--replace",
        ]);
        fleet.unit("default/a", |unit| unit["observed"]["phase"] == "running");
    };
    create("default/a", "old");
    create("default/b", "old");
    fleet.ok(&["snapshot", "create", "good"]);
    fleet.ok(&["snapshot", "create", "good"]);
    let (a, b) = (fleet.unit_in_phase("default/a", "running"), fleet.unit_in_phase("default/b", "running"));
    create("default/a", "new");
    create("default/c", "new");
    let new = fleet.unit("default/a", |unit| unit["observed"]["phase"] == "running" && pid(unit) != pid(&a));
    // What the snapshot needs beyond what is desired now is known where it must not be removed.
    let other = file(&fleet.home, "other", "#!/bin/sh\nsleep 1000\n");
    fleet.ok(&["artifact", "create", &other, "--role", "other", "--version", "1"]);
    fleet.ok(&["yuno", "create", "default/d", "--artifact", "other"]);
    fleet.ok(&["snapshot", "create", "four"]);
    fleet.ok(&["yuno", "create", "default/d", "--artifact", "client", "--replace"]);
    fleet.muster(&["artifact", "rm", "other@1"]).expect_code(3).expect_stderr("a snapshot of default/d on ");
    let gone = fleet.json(&["artifact", "gc", "--dry-run"]);
    assert!(!gone.to_string().contains("\"other\""), "{gone}");
    fleet.ok(&["snapshot", "rm", "four"]);
    eventually("nothing needs it", || match fleet.muster(&["artifact", "rm", "other@1"]) {
        run if run.code == 0 => Ok(()),
        run => Err(run.stderr),
    });
    fleet.ok(&["unit", "retire", "default/d"]);
    fleet.ok(&["unit", "rm", "default/d"]);
    let diff = fleet.json(&["snapshot", "diff", "good"]);
    let words: Vec<&str> = diff.as_array().unwrap().iter().map(|unit| unit["difference"].as_str().unwrap()).collect();
    assert_eq!((words, &diff[0]["fields"]), (vec!["changed", "same", "extra"], &serde_json::json!(["args"])));

    // A dry run does nothing.
    fleet.muster(&["snapshot", "activate", "good", "--dry-run"]).expect_code(0).expect_stderr("1 unit would change");
    assert_eq!(pid(&fleet.unit_in_phase("default/a", "running")), pid(&new));

    // Only what differs is started anew.
    fleet.ok(&["snapshot", "activate", "good"]);
    let back = fleet.unit_in_phase("default/a", "running");
    assert_eq!(back["observed"]["revision"], a["observed"]["revision"]);
    assert_eq!(pid(&fleet.unit_in_phase("default/b", "running")), pid(&b));
    fleet.ok(&["snapshot", "activate", "good"]);
    assert_eq!(pid(&fleet.unit_in_phase("default/a", "running")), pid(&back));
    fleet.muster(&["snapshot", "rm", "good"]).expect_code(3).expect_stderr("is active");

    // And forth again, and then nothing needs the snapshot any more.
    fleet.ok(&["snapshot", "deactivate", "good"]);
    let forth = fleet.unit_in_phase("default/a", "running");
    assert_eq!(forth["observed"]["revision"], new["observed"]["revision"]);
    fleet.ok(&["unit", "retire", "default/b"]);
    fleet.muster(&["unit", "rm", "default/b"]).expect_code(3).expect_stderr("the snapshot good needs default/b");
    let listed = fleet.json(&["snapshot", "ls"]);
    assert_eq!((listed[0]["name"].as_str(), listed[0]["units"].as_array().unwrap().len()), (Some("good"), 2));
    fleet.ok(&["snapshot", "rm", "good"]);
    fleet.ok(&["unit", "rm", "default/b"]);
}

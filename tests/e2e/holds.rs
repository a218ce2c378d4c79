//! Holds, freezing and signals, as an operator uses them.

use serde_json::{Value, json};

use crate::fleet::{Fleet, eventually, file};

/// Tells of the signals that it gets, and of each second that it lives.
const TELLER: &str = "#!/bin/sh\ntrap 'echo got usr1' USR1\necho up\nwhile :; do echo tick; sleep 0.1; done\n";

fn teller() -> Fleet {
    let fleet = Fleet::start();
    let path = file(&fleet.home, "teller", TELLER);
    fleet.ok(&["artifact", "create", &path, "--role", "teller", "--version", "1"]);
    fleet.ok(&["yuno", "create", "default/a", "--artifact", "teller", "--run"]);
    fleet
}

fn log_bytes(fleet: &Fleet) -> u64 {
    let log = fleet.data().join("agent/units/default/a/run/log");
    std::fs::metadata(log).map_or(0, |metadata| metadata.len())
}

#[test]
fn hold_keeps_unit_and_survives_restarts() {
    let mut fleet = teller();
    let pid = fleet.unit_in_phase("default/a", "running")["observed"]["pid"].clone();
    fleet.ok(&["unit", "hold", "default/a", "--reason", "the auditors are here"]);
    // What is so already is a success.
    fleet.ok(&["unit", "hold", "default/a"]);
    let unit = fleet.unit("default/a", |unit| unit["hold"]["reason"] == "operator");
    assert_eq!((&unit["hold"]["note"], &unit["observed"]["pid"]), (&json!("the auditors are here"), &pid));
    assert!(unit["hold"]["by"].is_string());

    // A restart is desired from now on, and is not done; who asked hears why.
    let run = fleet.muster(&["yuno", "restart", "default/a"]).expect_code(1);
    run.expect_stderr("the auditors are here").expect_stderr("muster unit unhold");
    fleet.kill();
    fleet.again();
    let unit = fleet.unit_in_phase("default/a", "running");
    assert_eq!((&unit["hold"]["reason"], &unit["observed"]["pid"]), (&json!("operator"), &pid));
    fleet.ok(&["unit", "unhold", "default/a"]);
    let unit = fleet.unit("default/a", |unit| unit["observed"]["phase"] == "running" && unit["observed"]["pid"] != pid);
    assert_eq!(unit["hold"], Value::Null);
}

#[test]
fn retired_unit_stays_down_until_unhold() {
    let fleet = teller();
    fleet.muster(&["unit", "rm", "default/a"]).expect_code(3).expect_stderr("muster unit retire default/a");
    fleet.ok(&["unit", "retire", "default/a"]);
    let unit = fleet.unit_in_phase("default/a", "stopped");
    assert_eq!((&unit["desired"]["run"], &unit["hold"]["reason"]), (&json!("stopped"), &json!("operator")));
    fleet.muster(&["yuno", "run", "default/a"]).expect_code(1).expect_stderr("it is held: operator");
    let unit = fleet.unit("default/a", |unit| unit["desired"]["run"] == "running");
    assert_eq!(unit["observed"]["phase"], "stopped");
    fleet.ok(&["unit", "unhold", "default/a"]);
    fleet.unit_in_phase("default/a", "running");
    // Two at once ask first, and each has its result.
    fleet.ok(&["yuno", "create", "default/b", "--artifact", "teller", "--run"]);
    fleet.muster(&["unit", "retire", "default/a", "default/b"]).expect_code(2).expect_stderr("needs confirmation");
    let done = fleet.json(&["unit", "retire", "default/a", "default/b", "--yes"]);
    assert!(done.as_array().unwrap().iter().all(|result| result["done"] == true), "{done}");
    fleet.muster(&["unit", "rm", "--all", "--yes"]).expect_code(0).expect_stderr("2 units: 2 done, 0 failed");
    assert_eq!(fleet.json(&["unit", "ls"]), json!([]));
}

#[test]
fn frozen_unit_pauses_until_thaw_or_stop() {
    let fleet = teller();
    let pid = fleet.unit_in_phase("default/a", "running")["observed"]["pid"].clone();
    fleet.ok(&["yuno", "freeze", "default/a"]);
    fleet.ok(&["yuno", "freeze", "default/a"]);
    let unit = fleet.unit("default/a", |unit| unit["observed"]["frozen"] == true);
    assert_eq!((&unit["desired"]["frozen"], &unit["observed"]["pid"]), (&json!(true), &pid));
    // What was in the pipe when it was frozen may still come.
    let frozen_bytes = eventually("a log that stands still", || {
        let before = log_bytes(&fleet);
        std::thread::sleep(std::time::Duration::from_millis(500));
        if log_bytes(&fleet) == before { Ok(before) } else { Err(format!("it had {before} bytes")) }
    });
    fleet.ok(&["yuno", "thaw", "default/a"]);
    eventually("a log that grows again", || {
        let now = log_bytes(&fleet);
        if now > frozen_bytes { Ok(()) } else { Err(format!("{now} bytes")) }
    });
    fleet.ok(&["yuno", "freeze", "default/a"]);
    fleet.ok(&["yuno", "stop", "default/a"]);
    fleet.unit_in_phase("default/a", "stopped");
    fleet.muster(&["yuno", "freeze", "default/a"]).expect_code(3).expect_stderr("cannot be frozen");
}

#[test]
fn signal_keeps_desired_state() {
    let fleet = teller();
    let before = fleet.unit_in_phase("default/a", "running");
    fleet.muster(&["yuno", "signal", "SIGUSR1", "default/a"]).expect_code(0).expect_stderr("it got SIGUSR1");
    eventually("the signal in its log", || {
        let log = fleet.muster(&["yuno", "logs", "default/a"]).stdout;
        if log.contains("got usr1") { Ok(()) } else { Err(log) }
    });
    let after = fleet.unit_in_phase("default/a", "running");
    assert_eq!((&after["desired"], &after["observed"]["pid"]), (&before["desired"], &before["observed"]["pid"]));
    // One that ends it is no wish that it should be down.
    fleet.ok(&["yuno", "signal", "kill", "default/a"]);
    fleet.unit("default/a", |unit| {
        unit["observed"]["phase"] == "running" && unit["observed"]["pid"] != before["observed"]["pid"]
    });
    fleet.ok(&["yuno", "stop", "default/a"]);
    fleet.muster(&["yuno", "signal", "HUP", "default/a"]).expect_code(3).expect_stderr("has no process");
    fleet.muster(&["yuno", "signal", "NONSENSE", "default/a"]).expect_code(2).expect_stderr("use a signal's name");
}

#[test]
fn selectors_choose_the_units_of_verbs() {
    let fleet = teller();
    fleet.ok(&["yuno", "create", "default/b", "--artifact", "teller", "--label", "tier=gold", "--run"]);
    let names = |select: &str| {
        let units = fleet.json(&["unit", "ls", "--select", select]);
        units.as_array().unwrap().iter().map(|unit| unit["unit"].clone()).collect::<Vec<_>>()
    };
    let pid = fleet.unit_in_phase("default/a", "running")["observed"]["pid"].clone();
    assert_eq!(names("role=teller and not label.tier"), [json!("default/a")]);
    assert_eq!(names("label.tier=g* and version!=2"), [json!("default/b")]);
    fleet.ok(&["unit", "label", "default/a", "--set", "tier=tin", "--set", "site=north"]);
    fleet.ok(&["unit", "label", "--select", "label.tier=tin", "--unset", "site"]);
    let unit = fleet.unit("default/a", |unit| unit["desired"]["spec"]["labels"] == json!({"tier": "tin"}));
    assert_eq!(unit["observed"]["pid"], pid, "a label is no reason to restart");

    fleet.ok(&["yuno", "stop", "--select", "label.tier=gold"]);
    fleet.unit_in_phase("default/b", "stopped");
    assert_eq!(names("phase=running"), [json!("default/a")]);
    fleet.muster(&["yuno", "stop", "--select", "role=teller"]).expect_code(2).expect_stderr("needs confirmation");
    fleet
        .muster(&["yuno", "stop", "--select", "role=nothing"])
        .expect_code(3)
        .expect_stderr("no yuno matches role=nothing");
    let run = fleet.muster(&["unit", "ls", "--select", "realm=default adn role=x"]).expect_code(2);
    run.expect_stderr("expected `and`, `or` or the end").expect_stderr("             ^");
}

#[test]
fn upgrade_is_planned_shown_and_never_downgrades() {
    let fleet = teller();
    let config = file(&fleet.home, "c.json", "{}");
    fleet.ok(&["config", "create", "teller.main", "9", &config]);
    fleet.ok(&[
        "yuno",
        "create",
        "default/a",
        "--artifact",
        "teller@1",
        "--config",
        "teller.main@9",
        "--env",
        "SECRET=kept",
        "--run",
        "--replace",
    ]);
    fleet.ok(&["yuno", "upgrade", "--dry-run"]);
    let path = file(&fleet.home, "teller", &TELLER.replace("echo up", "echo up $SECRET"));
    fleet.ok(&["artifact", "create", &path, "--role", "teller", "--version", "1.10"]);
    let config = file(&fleet.home, "c.json", "{\"a\": 1}");
    fleet.ok(&["config", "create", "teller.main", "10", &config]);
    let plan = fleet.json(&["yuno", "upgrade", "--dry-run"]);
    assert_eq!((&plan[0]["artifact"]["from"], &plan[0]["artifact"]["to"]), (&json!("1"), &json!("1.10")), "{plan}");
    assert_eq!((&plan[0]["configs"][0]["from"], &plan[0]["configs"][0]["to"]), (&json!("9"), &json!("10")));
    let before = fleet.unit_in_phase("default/a", "running");
    assert_eq!(before["desired"]["spec"]["artifact"]["version"], "1", "a plan changes nothing");

    fleet.muster(&["yuno", "upgrade", "default/a"]).expect_code(0).expect_stderr("teller 1 → 1.10");
    let after = fleet.unit_in_phase("default/a", "running");
    assert_eq!(after["desired"]["spec"]["artifact"]["version"], "1.10");
    assert_eq!(after["desired"]["spec"]["configs"][0]["version"], "10");
    eventually("its secret, which no report showed", || {
        let log = fleet.muster(&["yuno", "logs", "default/a"]).stdout;
        if log.contains("up kept") { Ok(()) } else { Err(log) }
    });
    fleet.muster(&["yuno", "upgrade"]).expect_code(0).expect_stderr("nothing newer");
    fleet.muster(&["yuno", "upgrade", "--artifact", "teller@1"]).expect_code(0).expect_stderr("nothing newer");
    fleet.ok(&["yuno", "upgrade", "default/a", "--artifact", "teller@1", "--force"]);
    let back = fleet.unit_in_phase("default/a", "running");
    assert_eq!(back["desired"]["spec"]["artifact"]["version"], "1");
}

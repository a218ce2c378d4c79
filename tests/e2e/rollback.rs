//! Changes of revision that fail, and are rolled back.

use std::fs;

use serde_json::{Value, json};

use crate::fleet::{Fleet, eventually, file};

/// What works: it notes each of its starts.
const GOOD: &str = "#!/bin/sh\necho good >> starts\necho open\nwhile :; do sleep 0.1; done\n";

/// What ends at once.
const BAD: &str = "#!/bin/sh\necho bad >> starts\necho no such table: till\nexit 2\n";

/// What says that it is up, on the notify socket.
const SPEAKER: &str = r#"#!/usr/bin/env python3
import os, socket, time
name = os.environ["NOTIFY_SOCKET"]
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"READY=1", "\0" + name[1:] if name[0] == "@" else name)
while True: time.sleep(1)
"#;

/// What never does.
const MUTE: &str = "#!/bin/sh\necho bad >> starts\nwhile :; do sleep 0.1; done\n";

/// It reads its config when it starts and when it is told, and cannot live with one that it does not like.
const READER: &str = "#!/bin/sh
read_it() {
    if grep -q wrong \"$MUSTER_CONFIG\"; then echo no such colour; exit 3; fi
    echo $$ \"$(cat \"$MUSTER_CONFIG\")\"
}
trap read_it HUP
read_it
while :; do sleep 0.05; done
";

/// A fleet with these as versions of one artifact, the first of which runs as `default/till` and is verified.
fn fleet(programs: &[&str], more: &[&str]) -> Fleet {
    let fleet = Fleet::start();
    for (index, program) in programs.iter().enumerate() {
        let version = (index + 1).to_string();
        let path = file(&fleet.home, &format!("till{version}"), program);
        fleet.ok(&["artifact", "create", &path, "--role", "till", "--version", &version]);
    }
    create(&fleet, "till@1", more);
    verified(&fleet);
    fleet
}

fn create(fleet: &Fleet, artifact: &str, more: &[&str]) {
    let create = ["yuno", "create", "default/till", "--artifact", artifact, "--verify-after", "2s", "--run"];
    fleet.ok(&[&create, more].concat());
}

/// The unit, once it runs in a revision that is verified.
fn verified(fleet: &Fleet) -> Value {
    fleet.unit("default/till", |unit| {
        let observed = &unit["observed"];
        observed["phase"] == "running"
            && observed["verified"].is_string()
            && observed["verified"] == observed["revision"]
    })
}

/// Brings the unit to another version, with what comes of that.
fn upgrade(fleet: &Fleet, version: &str, code: i32) -> String {
    let artifact = format!("till@{version}");
    let run = fleet.muster(&["yuno", "upgrade", "default/till", "--artifact", &artifact]).expect_code(code);
    run.stderr
}

/// The unit went back to what it was `before`, and runs as that.
#[track_caller]
fn check_back(fleet: &Fleet, before: &Value, why: &str) -> Value {
    let unit = verified(fleet);
    let (observed, back) = (&unit["observed"], &unit["observed"]["rolled_back"]);
    assert_eq!((&observed["revision"], &observed["phase"]), (&before["observed"]["revision"], &json!("running")));
    assert_eq!((&back["to"], &back["revision"]), (&observed["revision"], &unit["desired"]["revision"]));
    assert_eq!(
        (&observed["generation"], &back["generation"]),
        (&unit["desired"]["generation"], &unit["desired"]["generation"])
    );
    assert!(back["error"]["message"].as_str().unwrap().contains(why), "{back}");
    assert_ne!(observed["revision"], unit["desired"]["revision"]);
    unit
}

fn starts(fleet: &Fleet, word: &str) -> usize {
    let path = fleet.data().join("agent/units/default/till/work/starts");
    fs::read_to_string(path).unwrap_or_default().lines().filter(|line| *line == word).count()
}

#[test]
fn crashing_revision_rolls_back_and_working_one_stays() {
    let fleet = fleet(&[GOOD, BAD, "#!/bin/sh\nwhile :; do sleep 0.2; done\n"], &[]);
    let before = verified(&fleet);
    let said = upgrade(&fleet, "2", 1);
    assert!(said.contains("it rolled back to revision") && said.contains("exit code 2"), "{said}");
    let unit = check_back(&fleet, &before, "ended unexpectedly: exit code 2");
    assert_eq!(
        unit["observed"]["rolled_back"]["last_lines"].as_str().unwrap().lines().last(),
        Some("no such table: till")
    );
    // It had its immediate restarts, and no more.
    assert_eq!(starts(&fleet, "bad"), 4);
    // Everybody shows what runs beside what is wanted; what is exported is what is wanted, and says so.
    let list = fleet.ok(&["unit", "ls"]);
    assert!(list.contains("running, rolled back") && list.contains("1, wanted 2"), "{list}");
    assert_eq!(unit["observed"]["content"]["artifact"], "till@1");
    let export = fleet.muster(&["unit", "export", "default/till"]).expect_code(0);
    let document = &export.stdout;
    assert!(
        document.starts_with("# default/till on") && document.contains("it runs till@1, wanted till@2"),
        "{document}"
    );
    assert!(document.contains("\nartifact: till@2\n"), "{document}");
    export.expect_stderr("it runs till@1, wanted till@2; the document has the desired state");
    let shown = fleet.ok(&["unit", "show", "default/till"]);
    assert!(shown.contains("runs till@1, wanted till@2"), "{shown}");
    assert!(shown.contains("muster unit run") && shown.contains("no such table: till"), "{shown}");
    // To say the same again is no new try; to run it is one.
    let pid = unit["observed"]["pid"].clone();
    upgrade(&fleet, "2", 0);
    assert_eq!((starts(&fleet, "bad"), &verified(&fleet)["observed"]["pid"]), (4, &pid));
    let run = fleet.muster(&["yuno", "run", "default/till"]).expect_code(1);
    run.expect_stderr("it rolled back to revision");
    assert_eq!(starts(&fleet, "bad"), 8);
    check_back(&fleet, &before, "exit code 2");

    upgrade(&fleet, "3", 0);
    let unit = verified(&fleet);
    assert_eq!(
        (&unit["observed"]["revision"], &unit["observed"]["rolled_back"]),
        (&unit["desired"]["revision"], &Value::Null)
    );
}

#[test]
fn revision_without_readiness_rolls_back() {
    // Ended by its shim for that, and when its time is over before.
    for more in [["--start-timeout", "400ms"], ["--healthy-within", "1s"]] {
        let fleet = fleet(&[SPEAKER, MUTE], &[&["--notify"][..], &more].concat());
        let before = verified(&fleet);
        let said = upgrade(&fleet, "2", 1);
        assert!(said.contains("it rolled back to revision"), "{said}");
        let why = if more[0] == "--start-timeout" {
            "was not up within its start timeout"
        } else {
            "it did not come up within 1 s"
        };
        check_back(&fleet, &before, why);
        // Its shim may start it once more before the agent ends that.
        assert!(starts(&fleet, "bad") <= 2, "it had all its time at once");
    }
}

#[test]
fn bad_reloaded_config_rolls_back() {
    for more in [&["--reload", "signal"][..], &[]] {
        let fleet = Fleet::start();
        for (version, colour) in [("1", "red"), ("2", "wrong"), ("3", "blue")] {
            let path = file(&fleet.home, &format!("look{version}.json"), &format!("{{\"colour\":\"{colour}\"}}"));
            fleet.ok(&["config", "create", "look", version, &path]);
        }
        let path = file(&fleet.home, "till", READER);
        fleet.ok(&["artifact", "create", &path, "--role", "till", "--version", "1"]);
        create(&fleet, "till@1", &[&["--config", "look@1"], more].concat());
        let before = verified(&fleet);
        let to = |version: &str, code| {
            let config = format!("look@{version}");
            fleet.muster(&["yuno", "upgrade", "default/till", "--config", &config]).expect_code(code)
        };
        to("2", 1).expect_stderr("exit code 3");
        check_back(&fleet, &before, "exit code 3");
        let effective = fleet.json(&["yuno", "config", "--effective", "default/till"]);
        assert_eq!((&effective["config"], &effective["changed"]), (&json!({"colour": "red"}), &Value::Null));
        let pid = verified(&fleet)["observed"]["pid"].clone();
        eventually("that it has read the old one", || {
            let log = fleet.muster(&["yuno", "logs", "default/till"]).stdout;
            if log.contains(&format!("{pid} {{\"colour\":\"red\"}}")) { Ok(()) } else { Err(log) }
        });
        to("3", 0);
        let unit = verified(&fleet);
        assert_eq!(unit["observed"]["revision"], unit["desired"]["revision"]);
    }
}

#[test]
fn killed_agent_completes_rollback() {
    let mut fleet = fleet(&[SPEAKER, MUTE], &["--notify", "--healthy-within", "3s"]);
    let before = verified(&fleet);
    fleet.ok(&["yuno", "upgrade", "default/till", "--artifact", "till@2", "--no-wait"]);
    let unit = fleet.unit("default/till", |unit| unit["observed"]["on_trial"] == true);
    assert_eq!(unit["observed"]["verified"], before["observed"]["revision"]);
    fleet.kill();
    fleet.again();
    fleet.unit("default/till", |unit| unit["observed"]["rolled_back"].is_object());
    // Perhaps before the good one runs again.
    fleet.kill();
    fleet.again();
    let unit = check_back(&fleet, &before, "it did not come up within 3 s");
    // What runs is known again, and nothing is tried again.
    fleet.kill();
    fleet.again();
    let after = check_back(&fleet, &before, "it did not come up within 3 s");
    assert_eq!(after["observed"]["pid"], unit["observed"]["pid"]);
    assert_eq!(starts(&fleet, "bad"), 1);
}

#[test]
fn without_rollback_the_revision_stays() {
    let fleet = fleet(&[GOOD, BAD], &["--no-rollback"]);
    let said = upgrade(&fleet, "2", 1);
    assert!(said.contains("exit code 2") && !said.contains("rolled back to"), "{said}");
    let unit = fleet.unit_in_phase("default/till", "backoff");
    assert_eq!(unit["observed"]["rolled_back"], Value::Null);
    assert_eq!(starts(&fleet, "good"), 1);
}

#[test]
fn failing_snapshot_is_reported() {
    let fleet = Fleet::start();
    for (version, program) in [("1", GOOD), ("2", BAD)] {
        let path = file(&fleet.home, &format!("till{version}"), program);
        fleet.ok(&["artifact", "create", &path, "--role", "till", "--version", version]);
    }
    // With nothing to go back to it stays.
    let create_bad = ["yuno", "create", "default/till", "--artifact", "till@2", "--run", "--verify-after", "2s"];
    fleet.muster(&create_bad).expect_code(1);
    fleet.unit_in_phase("default/till", "backoff");
    fleet.ok(&["snapshot", "create", "bad"]);
    create(&fleet, "till@1", &["--replace"]);
    let before = verified(&fleet);
    fleet.muster(&["snapshot", "activate", "bad"]).expect_code(1).expect_stderr("it rolled back to revision");
    check_back(&fleet, &before, "exit code 2");
    fleet.ok(&["snapshot", "deactivate", "bad"]);
    assert_eq!(verified(&fleet)["observed"]["rolled_back"], Value::Null);
}

#[test]
fn endpoints_follow_the_running_revision() {
    let fleet = fleet(&[GOOD, BAD], &["--provide", "http"]);
    let path = file(&fleet.home, "client", GOOD);
    fleet.ok(&["artifact", "create", &path, "--role", "client", "--version", "1"]);
    fleet.ok(&["yuno", "create", "default/client", "--artifact", "client", "--need", "http", "--run"]);
    let client = fleet.unit_in_phase("default/client", "running");
    let before = verified(&fleet);
    // The bad one would listen elsewhere, and offer nothing to the other.
    let create = ["yuno", "create", "default/till", "--artifact", "till@2", "--provide", "other", "--replace"];
    fleet.muster(&create).expect_code(1).expect_stderr("it rolled back to revision");
    let unit = check_back(&fleet, &before, "exit code 2");
    assert_eq!(unit["observed"]["endpoints"], before["observed"]["endpoints"]);
    let after = fleet.unit("default/client", |unit| unit["hold"].is_null());
    assert_eq!(after["observed"]["connectors"], client["observed"]["connectors"]);
    assert_eq!(after["observed"]["pid"], client["observed"]["pid"], "it is wired as it was");
}

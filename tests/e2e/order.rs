//! The order in which units start and stop, and their dependencies.

use serde_json::json;

use crate::fleet::{Fleet, file};

const SLEEPER: &str = "#!/bin/sh\nexec sleep 1000\n";

fn create(fleet: &Fleet, unit: &str, further: &[&str]) {
    fleet.ok(&[&["yuno", "create", unit, "--artifact", "sleeper", "--no-wait"], further].concat());
}

#[test]
fn dependency_waits_visibly_and_cycle_is_refused() {
    let fleet = Fleet::start();
    let path = file(&fleet.home, "sleeper", SLEEPER);
    fleet.ok(&["artifact", "create", &path, "--role", "sleeper", "--version", "1"]);
    create(&fleet, "default/web", &["--requires", "default/db", "--run"]);
    let unit = fleet.unit("default/web", |unit| unit["hold"]["reason"] == "dependency");
    assert_eq!(unit["hold"]["note"], "there is no unit default/db");
    let run = fleet.muster(&["yuno", "run", "default/web"]).expect_code(1);
    run.expect_stderr("it is held: dependency: there is no unit default/db");

    create(&fleet, "default/db", &["--priority", "1", "--run"]);
    fleet.unit_in_phase("default/web", "running");
    let refused =
        fleet.muster(&["yuno", "create", "default/db", "--artifact", "sleeper", "--after", "default/web", "--replace"]);
    refused.expect_code(3).expect_stderr("default/db → default/web → default/db");
    let unit = fleet.unit_in_phase("default/db", "running");
    assert_eq!(unit["desired"]["spec"]["priority"], 1);

    // What needs the other stops first.
    let stopped = fleet.json(&["yuno", "stop", "--all", "--yes"]);
    let names: Vec<_> = stopped.as_array().unwrap().iter().map(|result| result["unit"].clone()).collect();
    assert_eq!(names, [json!("default/web"), json!("default/db")]);
    fleet.muster(&["yuno", "create", "default/x", "--artifact", "sleeper", "--priority", "10"]).expect_code(2);
}

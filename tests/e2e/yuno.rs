//! A first yuno: artifact, config, create, run, crash, stop, remove.

use std::fs;

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::fleet::{Fleet, eventually, file};

const SERVER: &str = "#!/bin/sh\necho started with $(cat $MUSTER_CONFIG) and $1\nwhile :; do sleep 1; done\n";

fn add(fleet: &Fleet, name: &str, content: &str, version: &str) {
    let path = file(&fleet.home, name, content);
    fleet.ok(&["artifact", "create", &path, "--role", name, "--version", version]);
}

fn pid(unit: &Value) -> Pid {
    Pid::from_raw(i32::try_from(unit["observed"]["pid"].as_i64().unwrap()).unwrap())
}

fn is_alive(pid: Pid) -> bool {
    kill(pid, None).is_ok()
}

#[test]
fn yuno_is_created_run_and_removed() {
    let fleet = Fleet::start();
    add(&fleet, "server", SERVER, "1.0.0");
    let config = file(&fleet.home, "server.json", r#"{"colour": "blue"}"#);
    fleet.ok(&["config", "create", "server.main", "1", &config]);
    fleet.ok(&[
        "yuno",
        "create",
        "default/till",
        "--artifact",
        "server@1.0.0",
        "--config",
        "server.main@1",
        "--arg",
        "now",
    ]);
    assert_eq!(fleet.unit_in_phase("default/till", "stopped")["desired"]["run"], "stopped");
    fleet.ok(&["yuno", "run", "default/till"]);
    let unit = fleet.unit_in_phase("default/till", "running");
    let first = pid(&unit);
    assert!(is_alive(first));
    assert_eq!(unit["observed"]["revision"], unit["desired"]["revision"]);
    eventually("the first line of the log", || {
        let log = fleet.muster(&["yuno", "logs", "default/till"]).stdout;
        if log.contains(r#"started with {"colour":"blue"} and now"#) { Ok(()) } else { Err(log) }
    });
    // What is already so is a success.
    fleet.ok(&["yuno", "run", "default/till"]);
    assert_eq!(pid(&fleet.unit_in_phase("default/till", "running")), first);

    fleet.muster(&["yuno", "rm", "default/till"]).expect_code(3).expect_stderr("hint:");
    fleet.ok(&["yuno", "stop", "default/till"]);
    let unit = fleet.unit_in_phase("default/till", "stopped");
    assert!(unit["observed"]["exit"].is_object(), "{unit}");
    assert!(!is_alive(first));
    fleet
        .muster(&["yuno", "rm", "default/till"])
        .expect_code(3)
        .expect_stderr("hint: `muster unit retire default/till`");
    fleet.ok(&["unit", "retire", "default/till"]);
    fleet.ok(&["yuno", "rm", "default/till"]);
    assert_eq!(fleet.json(&["unit", "ls"]), serde_json::json!([]));
}

#[test]
fn crashed_yuno_is_restarted() {
    let fleet = Fleet::start();
    add(&fleet, "server", SERVER, "1");
    fleet.ok(&["yuno", "create", "default/till", "--artifact", "server", "--run"]);
    let first = pid(&fleet.unit_in_phase("default/till", "running"));
    kill(first, Signal::SIGSEGV).unwrap();
    let unit = fleet.unit("default/till", |unit| {
        unit["observed"]["phase"] == "running" && unit["observed"]["pid"] != first.as_raw()
    });
    assert_eq!(unit["observed"]["exit"]["signal"], 11);
    assert_eq!(unit["observed"]["attempts"], 1);
}

#[test]
fn crash_loop_backs_off_with_reason() {
    let fleet = Fleet::start();
    add(&fleet, "broken", "#!/bin/sh\nexit 3\n", "1");
    fleet.ok(&["yuno", "create", "default/broken", "--artifact", "broken", "--run", "--no-wait"]);
    let unit = fleet.unit_in_phase("default/broken", "backoff");
    assert_eq!(unit["observed"]["exit"]["code"], 3);
    assert!(unit["observed"]["retry_ms"].is_i64(), "{unit}");
    fleet.ok(&["yuno", "stop", "default/broken"]);
    fleet.unit_in_phase("default/broken", "stopped");
}

#[test]
fn failed_start_heals_with_the_right_artifact() {
    let fleet = Fleet::start();
    add(&fleet, "text", "this is no program", "1");
    fleet.muster(&["yuno", "create", "default/a", "--artifact", "text@1", "--run"]).expect_code(1);
    let unit = fleet.unit("default/a", |unit| unit["observed"]["error"].is_object());
    assert!(["failed", "backoff"].contains(&unit["observed"]["phase"].as_str().unwrap()), "{unit}");
    add(&fleet, "text", SERVER, "2");
    fleet.ok(&["yuno", "create", "default/a", "--artifact", "text@2", "--run", "--replace"]);
    let unit = fleet.unit_in_phase("default/a", "running");
    assert!(unit["observed"]["error"].is_null(), "{unit}");
}

#[test]
fn a_new_version_replaces_the_running_one() {
    let fleet = Fleet::start();
    add(&fleet, "server", SERVER, "1");
    fleet.ok(&["yuno", "create", "default/till", "--artifact", "server@1", "--run"]);
    let first = fleet.unit_in_phase("default/till", "running");
    add(&fleet, "server", &SERVER.replace("started", "version two started"), "2");
    fleet.ok(&["yuno", "create", "default/till", "--artifact", "server@2", "--replace"]);
    let second = fleet.unit("default/till", |unit| {
        unit["observed"]["phase"] == "running" && unit["observed"]["revision"] != first["observed"]["revision"]
    });
    assert!(!is_alive(pid(&first)) && is_alive(pid(&second)));
    assert!(second["desired"]["generation"].as_u64() > first["desired"]["generation"].as_u64());
}

#[test]
fn altered_artifact_is_not_run() {
    let fleet = Fleet::start();
    add(&fleet, "server", SERVER, "1");
    let sha256 = fleet.json(&["artifact", "ls"])[0]["sha256"].as_str().unwrap().to_owned();
    let stored = fleet.data().join("console/artifacts").join(&sha256);
    let right = fs::read(&stored).unwrap();
    replace(&stored, &vec![b'#'; right.len()]);
    fleet.muster(&["yuno", "create", "default/till", "--artifact", "server", "--run"]).expect_code(1);
    let unit = fleet.unit("default/till", |unit| unit["observed"]["error"].is_object());
    // The host finds it first; then the console knows it, and does not send it again.
    let message = unit["observed"]["error"]["message"].as_str().unwrap();
    assert!(message.contains("SHA-256") || message.contains("is damaged"), "{unit}");

    replace(&stored, &right);
    fleet.ok(&["yuno", "run", "default/till"]);
    fleet.unit_in_phase("default/till", "running");
}

fn replace(path: &std::path::Path, content: &[u8]) {
    fs::remove_file(path).unwrap();
    fs::write(path, content).unwrap();
}

#[test]
fn installed_artifacts_are_read_only() {
    use std::os::unix::fs::PermissionsExt;
    let fleet = Fleet::start();
    add(&fleet, "server", SERVER, "1");
    fleet.ok(&["yuno", "create", "default/till", "--artifact", "server", "--run"]);
    let sha256 = fleet.json(&["artifact", "ls"])[0]["sha256"].as_str().unwrap().to_owned();
    let installed = fleet.data().join("agent/artifacts").join(sha256);
    assert_eq!(fs::metadata(installed).unwrap().permissions().mode() & 0o222, 0);
}

//! Programs that daemonise: recognised, and kept.

use std::fs;

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::fleet::{Fleet, file};

/// Forks twice, as daemons do. What it leaves writes its number where it is told to, if it is, and ends with code 7 when it
/// is asked to.
const DAEMON: &str = r#"#!/bin/sh
(setsid sh -c 'trap "exit 7" TERM; sleep "$1"; [ -z "$0" ] || echo $$ > "$0"; while :; do sleep 0.05; done' "$1" "${2:-0}" > /dev/null 2>&1 &) &
wait
exit 0
"#;

fn pid(unit: &Value) -> Pid {
    Pid::from_raw(i32::try_from(unit["observed"]["pid"].as_i64().unwrap()).unwrap())
}

fn is_alive(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

/// The unit, running as another process than one.
fn running_as_another(fleet: &Fleet, before: Pid) -> Value {
    let is_other = |unit: &Value| !unit["observed"]["pid"].is_null() && pid(unit) != before;
    fleet.unit("default/daemon", |unit| unit["observed"]["phase"] == "running" && is_other(unit))
}

#[test]
fn daemonised_program_is_recognised_and_kept() {
    let mut fleet = Fleet::start();
    let path = file(&fleet.home, "daemon", DAEMON);
    fleet.ok(&["artifact", "create", &path, "--role", "daemon", "--version", "1"]);
    let create = ["yuno", "create", "default/daemon", "--artifact", "daemon", "--replace"];
    fleet.muster(&[&create[..], &["--run", "--no-wait"]].concat()).expect_code(0);
    let unit = fleet.unit("default/daemon", |unit| !unit["observed"]["error"].is_null());
    let error = &unit["observed"]["error"];
    let has = |part: &str, words: &str| error[part].as_str().unwrap().contains(words);
    assert!(
        has("message", "exit code 0, while processes that it had started were still running")
            && has("hint", "--forking"),
        "{error}"
    );
    fleet.muster(&[&create[..], &["--forking", "--notify"]].concat()).expect_code(2);

    // Its agent finds it again, whatever the agent ends by.
    fleet.ok(&[&create[..], &["--forking", "--run", "--verify-after", "0s"]].concat());
    let unit = fleet.unit_in_phase("default/daemon", "running");
    assert_eq!(unit["desired"]["spec"]["process"]["forking"], json!({}));
    let first = pid(&unit);
    let parent = fs::read_to_string(format!("/proc/{first}/cmdline")).unwrap();
    assert!(parent.contains("trap \"exit 7\" TERM"), "{parent}");
    fleet.kill();
    fleet.again();
    assert_eq!(pid(&fleet.unit_in_phase("default/daemon", "running")), first);
    assert!(is_alive(first));
    // One that is killed is started again, as is one that is to be.
    kill(first, Signal::SIGKILL).unwrap();
    let second = pid(&running_as_another(&fleet, first));
    fleet.ok(&["yuno", "restart", "default/daemon"]);
    let third = pid(&running_as_another(&fleet, second));
    assert!(!is_alive(second) && is_alive(third));
    fleet.ok(&["yuno", "stop", "default/daemon"]);
    assert_eq!(fleet.unit_in_phase("default/daemon", "stopped")["observed"]["exit"], json!({"code": 7}));
    assert!(!is_alive(third));

    // It is up once its file names it, and not by what lies there of before.
    let named = fleet.home.path().join("daemon.pid").to_str().unwrap().to_owned();
    fs::write(&named, std::process::id().to_string()).unwrap();
    let options = ["--pid-file", &named, "--arg", &named, "--arg", "0.5", "--run"];
    fleet.ok(&[&create[..], &options].concat());
    let unit = fleet.unit_in_phase("default/daemon", "running");
    assert_eq!(pid(&unit).to_string(), fs::read_to_string(&named).unwrap().trim());
    // One that never says so has failed.
    let nowhere = format!("{named}.other");
    let options = ["--pid-file", &nowhere, "--start-timeout", "1s", "--restart", "never", "--no-rollback", "--run"];
    fleet.muster(&[&create[..], &options].concat()).expect_code(1).expect_stderr("within its start timeout");
    assert!(!is_alive(pid(&unit)));
    fleet.unit_in_phase("default/daemon", "failed");
}

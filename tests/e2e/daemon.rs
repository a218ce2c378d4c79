//! `muster exec --daemon`: a program that stays, as a unit.

use std::fs;

use serde_json::json;

use crate::fleet::{Fleet, eventually};

#[test]
fn daemon_is_listed_read_stopped_and_removed() {
    let mut fleet = Fleet::start();
    let script = "echo \"hello $COLOUR\"; trap 'exit 0' TERM; while :; do sleep 0.05; done";
    let args = ["exec", "--daemon", "--env", "COLOUR=blue", "--cwd", "/usr", "--shell", "--", script];
    let name = fleet.ok(&args).trim().to_owned();
    assert!(name.starts_with("default/exec-"), "{name}");
    let unit = fleet.unit_in_phase(&name, "running");
    let pid = unit["observed"]["pid"].as_i64().unwrap();
    assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), std::path::Path::new("/usr"));
    assert!(fleet.ok(&["unit", "ls"]).contains(&name));
    eventually("its log", || {
        let log = fleet.muster(&["yuno", "logs", &name]).stdout;
        if log.contains("hello blue") { Ok(()) } else { Err(log) }
    });
    fleet.muster(&["unit", "rm", &name]).expect_stderr("retire");

    fleet.kill();
    fleet.again();
    let unit = fleet.unit_in_phase(&name, "running");
    assert_eq!(unit["observed"]["pid"].as_i64(), Some(pid), "it did not notice");

    fleet.ok(&["yuno", "stop", &name]);
    fleet.unit_in_phase(&name, "stopped");
    fleet.ok(&["unit", "rm", &name]);
    eventually("its end", || {
        let units = fleet.json(&["unit", "ls"]);
        if units.as_array().unwrap().is_empty() { Ok(()) } else { Err(units.to_string()) }
    });
}

#[test]
fn daemon_runs_once_and_reports_its_end() {
    let mut fleet = Fleet::start();
    let mark = fleet.home.path().join("mark");
    let script = format!("echo once >> {}; exit 3", mark.display());
    let name = fleet.ok(&["exec", "--daemon", "--shell", "--", &script]).trim().to_owned();
    let unit = fleet.unit_in_phase(&name, "failed");
    assert_eq!(unit["observed"]["exit"], json!({"code": 3}));
    fleet.kill();
    fleet.again();
    fleet.unit_in_phase(&name, "failed");
    assert_eq!(fs::read_to_string(&mark).unwrap(), "once\n");
    fleet.ok(&["unit", "rm", &name]);
    let good = fleet.ok(&["exec", "--daemon", "--", "true"]).trim().to_owned();
    assert_eq!(fleet.unit_in_phase(&good, "stopped")["observed"]["exit"], json!({"code": 0}));
}

#[test]
fn invalid_daemon_makes_no_unit() {
    let fleet = Fleet::start();
    for (args, words) in [
        (vec!["--", "/no/such/program"], "/no/such/program"),
        (vec!["--user", "no-such-user", "--", "true"], "no-such-user"),
        (vec!["--cwd", "/no/such", "--", "true"], "/no/such"),
        (vec!["--env", "LD_PRELOAD=x", "--", "true"], "LD_PRELOAD"),
        (vec!["--stdout", "drop", "--", "true"], "log"),
        (vec!["--stdin", "/dev/null", "--", "true"], "--stdin"),
    ] {
        let run = fleet.muster(&[&["exec", "--daemon"], args.as_slice()].concat());
        assert!(run.code != 0, "{args:?}");
        run.expect_stderr(words);
    }
    assert!(fleet.json(&["unit", "ls"]).as_array().unwrap().is_empty());
}

//! Yuneta's recipes, as they are written there.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use serde_json::Value;

use crate::fleet::{Fleet, Run, eventually, file, muster};

const PROGRAM: &str =
    "#!/bin/sh\necho version 1 reads $(cat $MUSTER_CONFIG)\ntrap 'exit 0' TERM\nwhile :; do sleep 0.1; done\n";

/// `ycommand -c LINE`, by a link of that name, where the files lie.
fn ycommand(fleet: &Fleet, line: &str) -> Run {
    let link = fleet.home.path().join("ycommand");
    if !link.exists() {
        symlink(muster(), &link).unwrap();
    }
    let mut command = Command::new(link);
    fleet.home.dress(&mut command);
    Run::of(&["-c", line], command.args(["-c", line]))
}

#[track_caller]
fn done(fleet: &Fleet, line: &str) -> String {
    ycommand(fleet, line).expect_code(0).stdout
}

fn log_has(fleet: &Fleet, words: &str) {
    eventually(words, || {
        let log = fleet.muster(&["yuno", "logs", "default/my_role-my_name"]).stdout;
        if log.contains(words) { Ok(()) } else { Err(log) }
    });
}

#[test]
fn recipes_run_as_written() {
    let fleet = Fleet::start();
    let unit = "default/my_role-my_name";
    let phase = |wanted: &str| fleet.unit(unit, |unit: &Value| unit["observed"]["phase"] == wanted);

    // Onboard a brand-new yuno.
    file(&fleet.home, "my_role", PROGRAM);
    file(&fleet.home, "my_role_my_name.json", r#"{"colour":"blue"}"#);
    done(&fleet, "install-binary content64=$$(my_role)");
    done(&fleet, "update-config id=my_role.my_name version=1 zcontent=$$(my_role_my_name.json)");
    done(&fleet, "create-yuno realm_id=default yuno_role=my_role yuno_name=my_name");
    done(&fleet, &format!("enable-yuno id={unit}"));
    done(&fleet, &format!("run-yuno id={unit}"));
    assert!(done(&fleet, "list-yunos").contains(unit));
    phase("running");
    log_has(&fleet, r#"version 1 reads {"colour":"blue"}"#);

    // Update the binary of a running yuno.
    done(&fleet, "kill-yuno yuno_role=my_role");
    phase("stopped");
    file(&fleet.home, "my_role", &PROGRAM.replace("version 1", "version 2"));
    done(&fleet, "update-binary id=my_role content64=$$(my_role)");
    assert_eq!(done(&fleet, "list-binaries").matches("my_role").count(), 2);
    done(&fleet, "run-yuno");
    phase("running");
    log_has(&fleet, r#"version 2 reads {"colour":"blue"}"#);

    // Change a yuno's configuration.
    file(&fleet.home, "my_role_my_name.json", r#"{"colour":"red"}"#);
    done(&fleet, "update-config id=my_role.my_name version=2 zcontent=$$(my_role_my_name.json)");
    done(&fleet, &format!("kill-yuno id={unit}"));
    done(&fleet, &format!("run-yuno  id={unit}"));
    log_has(&fleet, r#"version 2 reads {"colour":"red"}"#);
    let effective = done(&fleet, &format!("command-yuno id={unit} service=__yuno__ command=view-config"));
    assert!(effective.contains("red"), "{effective}");

    // Retire a yuno.
    ycommand(&fleet, &format!("delete-yuno  id={unit}")).expect_code(3).expect_stderr("hint:");
    done(&fleet, &format!("kill-yuno    id={unit}"));
    assert!(done(&fleet, "list-yunos").contains("stopped"));
    done(&fleet, &format!("disable-yuno id={unit}"));
    done(&fleet, &format!("delete-yuno  id={unit}"));
    assert_eq!(fleet.json(&["unit", "ls"]), serde_json::json!([]));

    // What is not understood says so, and what it comes to can be seen before.
    ycommand(&fleet, "kill-yunos").expect_code(2).expect_stderr("kill-yuno");
    let shown = fleet.muster(&["ycommand", "--dry-run", "-c", "list-yunos yuno_role=my_role"]).expect_code(0);
    assert_eq!(shown.stderr, "= muster unit ls --kind yuno --select 'role=\"my_role\"'\n");
}

/// The sample in shell, with a command of its own that says its name.
fn talking() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/yuno.sh");
    let sample = fs::read_to_string(path).unwrap();
    let can = sample.replace(r#"\"stats\"]"#, r#"\"stats\",\"command\"]"#);
    let knows = can.replace(
        "            '{\"refused\":'*)",
        "            '{\"command\":'*) echo \"told $line\"; ok \"$id\" null ;;\n            '{\"refused\":'*)",
    );
    assert!(can != sample && knows != can, "the sample is another now");
    knows
}

#[test]
fn snapshot_realm_trace_and_tag_verbs_work() {
    let fleet = Fleet::start();
    file(&fleet.home, "bell", &talking());
    file(&fleet.home, "bell.manifest.json", r#"{"role":"bell","version":"1","channel":"lines"}"#);
    file(&fleet.home, "bell.json", r#"{"tone":"a"}"#);
    // Everything that is missing is named, and nothing is made.
    let create = "create-yuno realm_id=shop.prod yuno_role=bell yuno_name=main yuno_tag=util";
    let missing = ycommand(&fleet, create).expect_code(1);
    for words in ["no realm shop-prod", "no binary bell", "no config bell.main"] {
        assert!(missing.stderr.contains(words), "{missing:?}");
    }
    done(&fleet, "create-realm realm_name=shop realm_env=prod");
    done(&fleet, "install-binary content64=$$(bell)");
    ycommand(&fleet, create).expect_code(1).expect_stderr("there is no config bell.main");
    done(&fleet, "create-config id=bell.main version=1 zcontent=$$(bell.json)");
    done(&fleet, create);
    let unit = "shop-prod/bell-main";
    let phase = |wanted: &str| fleet.unit(unit, |unit: &Value| unit["observed"]["phase"] == wanted);
    done(&fleet, &format!("run-yuno id={unit}"));
    phase("running");
    assert!(done(&fleet, "list-realms").contains("shop-prod"));
    assert!(done(&fleet, "view-yuno-config yuno_role=bell").contains("tone"));
    assert!(done(&fleet, "running-bin").contains("bell@1"));
    done(&fleet, "trace-on-yuno yuno_role=bell level=3");
    eventually("trace-on", || {
        let log = fleet.muster(&["yuno", "logs", unit]).stdout;
        if log.contains("trace-on") && log.contains("level") { Ok(()) } else { Err(log) }
    });

    // A snapshot, what differs from it, and back.
    done(&fleet, "shoot-snap name=rings");
    ycommand(&fleet, "kill-yuno app=1").expect_code(3).expect_stderr("there is no yuno with app=1");
    done(&fleet, "kill-yuno");
    phase("stopped");
    done(&fleet, "activate-snap name=rings");
    phase("running");
    assert!(done(&fleet, "list-snaps").contains("active"));
    done(&fleet, "deactivate-snap");
    phase("stopped");

    // What listens, and what ends by no other signal.
    file(&fleet.home, "deaf", "#!/bin/sh\ntrap '' TERM QUIT\necho deaf\nwhile :; do sleep 0.1; done\n");
    done(&fleet, "install-binary id=deaf version=1 content64=$$(deaf)");
    fleet.ok(&["yuno", "create", "default/deaf", "--artifact", "deaf", "--provide", "http", "--grace", "1h", "--run"]);
    assert!(done(&fleet, "list-public-services realm_id=default").contains("default/deaf  http"));
    eventually("deaf", || {
        let log = fleet.muster(&["yuno", "logs", "default/deaf"]).stdout;
        if log.contains("deaf") { Ok(()) } else { Err(log) }
    });
    done(&fleet, "kill-yuno id=deaf signal2kill=9");
    assert_eq!(fleet.unit_in_phase("default/deaf", "stopped")["observed"]["exit"]["signal"], 9);

    // A tag keeps what has it, and so does a snapshot.
    fleet.ok(&["snapshot", "rm", "rings"]);
    done(&fleet, &format!("disable-yuno id={unit}"));
    ycommand(&fleet, &format!("delete-yuno id={unit}")).expect_code(3).expect_stderr("tagged yunos are not deleted");
    done(&fleet, &format!("delete-yuno id={unit} force=1"));
    done(&fleet, "delete-realm id=shop-prod");

    // The table, and what is not in it.
    let table = fleet.json(&["ycommand", "--command", "help"]);
    let table = table.as_array().unwrap();
    assert!(table.len() > 70, "{table:?}");
    let others: Vec<&str> =
        table.iter().filter(|verb| verb["is_done"] == false).map(|verb| verb["verb"].as_str().unwrap()).collect();
    assert!(others.contains(&"cert-sync-now"), "{others:?}");
    for verb in ["cert-sync-now", "authzs", "open-console x=1"] {
        let told = ycommand(&fleet, verb).expect_code(2).stderr;
        assert!(told.lines().count() == 1 && told.contains(": not here: "), "{told}");
    }
    for verb in ["ping", "node-uuid", "stats-agent", "list-configs", "command-agent command=ping"] {
        done(&fleet, verb);
    }
}

//! The recipes of those who come from Yuneta, as they are written there.

use std::{os::unix::fs::symlink, process::Command};

use serde_json::Value;

use crate::fleet::{Fleet, MUSTER, Run, eventually, file};

const PROGRAM: &str =
    "#!/bin/sh\necho version 1 reads $(cat $MUSTER_CONFIG)\ntrap 'exit 0' TERM\nwhile :; do sleep 0.1; done\n";

/// `ycommand -c LINE`, by a link of that name, where the files lie.
fn ycommand(fleet: &Fleet, line: &str) -> Run {
    let link = fleet.home.path().join("ycommand");
    if !link.exists() {
        symlink(MUSTER, &link).unwrap();
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
fn the_recipes_run_as_they_are_written() {
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
    ycommand(&fleet, &format!("delete-yuno  id={unit}")).expect_code(1).expect_stderr("hint:");
    done(&fleet, &format!("kill-yuno    id={unit}"));
    assert!(done(&fleet, "list-yunos").contains("stopped"));
    done(&fleet, &format!("disable-yuno id={unit}"));
    done(&fleet, &format!("delete-yuno  id={unit}"));
    assert_eq!(fleet.json(&["unit", "ls"]), serde_json::json!([]));

    // What is not understood says so, and what it comes to can be seen before.
    ycommand(&fleet, "kill-yunos").expect_code(2).expect_stderr("kill-yuno");
    let shown = fleet.muster(&["ycommand", "--dry-run", "-c", "list-yunos yuno_role=my_role"]).expect_code(0);
    assert_eq!(shown.stderr, "= muster yuno ls --select 'role=\"my_role\"'\n");
}

//! Desired state of containers survives the host's reboots, and what cannot be restored is held.

use std::{fs, process::Command};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use super::{
    ENDS_BEFORE_MS, pid, shop, stage,
    stage::{Lxc, apply, write},
};
use crate::fleet::{Fleet, eventually};

/// The parent of a process.
fn parent(pid: Pid) -> Pid {
    Pid::from_raw(muster_shim::process_identity::stat(pid.as_raw()).unwrap().ppid)
}

/// Has a host come up after a reboot as far as its agent can tell, of which every process has ended.
fn in_another_boot(fleet: &Fleet, unit: &str) {
    let file = fleet.data().join(format!("agent/containers/{}/started.json", unit));
    let mut content: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert!(content["boot_id"].is_string(), "{content}");
    content["boot_id"] = json!("another");
    fs::write(&file, content.to_string()).unwrap();
}

#[test]
fn reboot_restores_containers() {
    let (mut podman, mut fleet) = stage();
    apply(&fleet, &shop(json!({})));
    apply(&fleet, &shop(json!({"unit": "default/rests"})));
    let first = pid(&fleet.unit_in_phase("default/shop", "running"));
    fleet.unit_in_phase("default/rests", "running");
    fleet.ok(&["container", "stop", "default/rests"]);
    podman.run(&["exec", "muster.default.shop", "touch", "/srv/kept"]);
    // Everything ends at once, and what Podman keeps in memory alone is gone.
    let monitor = parent(first);
    let id = podman.inspect("muster.default.shop")["Id"].as_str().unwrap().to_owned();
    fleet.kill();
    podman.end_service();
    kill(monitor, Signal::SIGKILL).unwrap();
    kill(first, Signal::SIGKILL).unwrap();
    eventually("its end", || if kill(first, None).is_err() { Ok(()) } else { Err("it runs".to_owned()) });
    podman.forget_this_boot(&id);
    in_another_boot(&fleet, "default/shop");
    in_another_boot(&fleet, "default/rests");
    podman.serve();
    fleet.again();
    let unit = fleet.unit("default/shop", |unit| {
        unit["observed"]["phase"] == "running" && unit["observed"]["pid"] != json!(first.as_raw())
    });
    // What a host that went down has ended has not failed.
    assert_eq!(unit["observed"]["attempts"], 0, "{unit}");
    podman.run(&["exec", "muster.default.shop", "ls", "/srv/kept"]);
    assert_eq!(fleet.unit_in_phase("default/rests", "stopped")["desired"]["run"], "stopped");
    assert_eq!(podman.inspect("muster.default.rests")["State"]["Running"], false);
}

#[test]
fn fifth_failure_holds_the_container() {
    let (_podman, mut fleet) = stage();
    let lxc = Lxc::of(&fleet);
    let runtimes = ["podman", "lxc"];
    let unit = |runtime: &str| format!("default/{runtime}");
    for runtime in runtimes {
        let fields = json!({
            "unit": unit(runtime), "runtime": runtime, "args": ["/bin/sh", "-c", "exit 3"], "rollback": "never",
            "started_after_ms": ENDS_BEFORE_MS,
        });
        fleet.muster(&["unit", "apply", &write(&fleet, &shop(fields))]).expect_code(1).expect_stderr("exit code 3");
        fleet.unit_in_phase(&unit(runtime), "backoff");
    }
    // An agent goes on counting where the one before it was: this is the last try.
    fleet.kill();
    let later = "UPDATE unit SET observed = json_set(observed, '$.attempts', 4, '$.retry_ms', 1)";
    let store = fleet.data().join("agent/agent.db");
    assert!(Command::new("sqlite3").arg(store).arg(later).status().unwrap().success());
    fleet.again();
    for runtime in runtimes {
        let held = fleet.unit(&unit(runtime), |unit| unit["hold"]["reason"] == "broken");
        assert_eq!(
            (&held["desired"]["run"], &held["observed"]["phase"]),
            (&json!("running"), &json!("failed")),
            "{held}"
        );
        assert!(held["observed"]["error"]["message"].as_str().unwrap().contains("restarted 5 times"), "{held}");
        fleet.muster(&["unit", "unhold", &unit(runtime)]);
        let again = fleet.unit(&unit(runtime), |unit| unit["hold"].is_null() && unit["observed"]["phase"] == "backoff");
        assert!(again["observed"]["attempts"].as_u64().unwrap() < 3, "{again}");
    }
    drop(lxc);
}

//! Containers that somebody else has made, and that a unit adopts.

use nix::sys::signal::kill;
use serde_json::{Value, json};

use super::{
    LOOP, memory_limit, pid, shop,
    stage::{Podman, add_rootfs, apply, write},
};
use crate::fleet::{Fleet, eventually};

/// A Podman with an image, and the name of that.
fn stage() -> (Podman, Fleet, String) {
    let podman = Podman::start();
    let fleet = podman.fleet();
    add_rootfs(&fleet);
    apply(&fleet, &shop(json!({"unit": "default/first", "run": "stopped"})));
    fleet.unit_in_phase("default/first", "stopped");
    let image = eventually("an image", || {
        let images = podman.run(&["images", "--format", "{{.Repository}}:{{.Tag}}"]);
        images.lines().next().map(str::to_owned).ok_or_else(|| "none".to_owned())
    });
    (podman, fleet, image)
}

/// Has somebody make a container.
fn make(podman: &Podman, image: &str, name: &str, options: &[&str]) -> Value {
    let made = ["run", "--detach", "--name", name, "--network", "none", "--env", "COLOUR=green"];
    podman.run(&[&made[..], options, &[image, "/bin/sh", "-c", LOOP]].concat());
    podman.inspect(name)
}

#[test]
fn adopted_container_is_kept_and_released() {
    let (podman, mut fleet, image) = stage();
    let made = make(&podman, &image, "old-web", &[]);
    fleet.ok(&["container", "adopt", "old-web", "--as", "default/old", "--ready", "exec:true", "--label", "tier=gold"]);
    let unit = fleet.unit_in_phase("default/old", "running");
    let first = pid(&unit);
    assert_eq!(made["State"]["Pid"], unit["observed"]["pid"]);
    assert!(fleet.ok(&["container", "logs", "default/old"]).contains("up as 0 with green"));
    assert_eq!(fleet.ok(&["unit", "exec", "default/old", "--", "busybox", "hostname"]).trim().len(), 12);
    let shown = fleet.ok(&["container", "show", "default/old"]);
    assert!(shown.contains("the container old-web of podman was adopted"), "{shown}");
    eventually("its unit in a heartbeat", || {
        let host = fleet.json(&["host", "show", &fleet.host()]);
        let listed = &host["state"]["value"]["containers"]["old-web"];
        if listed["unit"] == "default/old" { Ok(()) } else { Err(listed.to_string()) }
    });
    // An agent that is started again finds it; it is told what to do; and its limits change while it runs.
    fleet.kill();
    fleet.again();
    assert_eq!(pid(&fleet.unit_in_phase("default/old", "running")), first);
    fleet.ok(&["container", "freeze", "default/old"]);
    assert_eq!(podman.inspect("old-web")["State"]["Status"], "paused");
    fleet.ok(&["container", "thaw", "default/old"]);
    fleet.ok(&["container", "quota", "default/old", "--memory", "64M"]);
    let unit = fleet.unit("default/old", |unit| unit["observed"]["revision"] == unit["desired"]["revision"]);
    assert_eq!((pid(&unit), memory_limit(first), &unit["observed"]["unsupported"]), (first, 64 << 20, &Value::Null));
    let quota = fleet.muster(&["container", "quota", "default/old", "--memory", "none"]);
    quota.expect_code(3).expect_stderr("limits.memory_bytes: removing a limit needs a new container, and old-web is");

    // It is the same one that comes back, whatever it is called by then.
    podman.run(&["rename", "old-web", "older-web"]);
    podman.run(&["kill", "older-web"]);
    let unit =
        fleet.unit("default/old", |unit| unit["observed"]["phase"] == "running" && unit["observed"]["attempts"] == 1);
    let second = pid(&unit);
    assert_ne!(second, first);
    fleet.ok(&["container", "restart", "default/old"]);
    let unit = fleet.unit("default/old", |unit| {
        unit["observed"]["phase"] == "running" && unit["observed"]["pid"] != json!(second.as_raw())
    });
    assert_eq!(memory_limit(pid(&unit)), 64 << 20);
    // No second unit keeps it, and it becomes nothing else.
    let other = fleet.muster(&["container", "adopt", "older-web", "--as", "default/other"]);
    other.expect_code(1).expect_stderr("older-web was adopted already, as default/old");
    let becomes = fleet.muster(&["unit", "apply", &write(&fleet, &shop(json!({"unit": "default/old"})))]);
    becomes.expect_stderr("image: it is the existing container old-web, and cannot become a created one");
    fleet.muster(&["container", "clone", "default/old", "default/new"]).expect_code(2).expect_stderr("was adopted");

    fleet.ok(&["container", "stop", "default/old"]);
    assert_eq!(podman.inspect("older-web")["State"]["Running"], false);
    fleet.ok(&["container", "run", "default/old"]);
    let last = pid(&fleet.unit_in_phase("default/old", "running"));
    fleet.ok(&["unit", "retire", "default/old"]);
    fleet.ok(&["container", "rm", "default/old"]);
    assert!(kill(last, None).is_err());
    assert_eq!(podman.inspect("older-web")["Id"], made["Id"], "it is let go, and stays");
    // Who lets it go may have it again.
    fleet.ok(&["container", "adopt", "older-web", "--as", "default/again", "--stopped"]);
    fleet.unit_in_phase("default/again", "stopped");
    assert_eq!(podman.inspect("older-web")["State"]["Running"], false);
}

#[test]
fn missing_adopted_container_is_not_recreated() {
    let (podman, fleet, image) = stage();
    make(&podman, &image, "old-web", &[]);
    fleet.ok(&["container", "adopt", "old-web", "--as", "default/old"]);
    fleet.unit_in_phase("default/old", "running");
    podman.run(&["rm", "--force", "--time", "0", "old-web"]);
    let other = make(&podman, &image, "old-web", &[]);
    let unit = fleet.unit_in_phase("default/old", "failed");
    let error = unit["observed"]["error"]["message"].as_str().unwrap();
    assert!(error.contains("podman no longer has the container old-web that was adopted"), "{error}");
    fleet
        .muster(&["container", "run", "default/old"])
        .expect_code(1)
        .expect_stderr("no longer has the container old-web");
    // What has its name now is another.
    fleet.ok(&["unit", "retire", "default/old"]);
    fleet.ok(&["container", "rm", "default/old"]);
    let now = podman.inspect("old-web");
    assert_eq!((&now["State"]["Pid"], &now["Id"]), (&other["State"]["Pid"], &other["Id"]));
    fleet.ok(&["container", "adopt", "old-web", "--as", "default/old"]);
    assert_eq!(fleet.unit_in_phase("default/old", "running")["observed"]["pid"], other["State"]["Pid"]);
}

#[test]
fn impossible_adoption_is_refused_with_reason() {
    let (podman, fleet, image) = stage();
    let refused = |name: &str, options: &[&str], words: &str| {
        let unit = format!("default/{name}");
        let line = [&["container", "adopt", name, "--as", &unit], options].concat();
        fleet.muster(&line).expect_code(1).expect_stderr(words);
        fleet.ok(&["unit", "retire", &unit]);
        fleet.ok(&["container", "rm", &unit]);
    };
    refused("nobody", &[], "podman has no container nobody to adopt");
    refused("nobody", &["--runtime", "lxc"], "unsupported by lxc: image.existing");
    let runs = make(&podman, &image, "runs", &[]);
    refused("runs", &["--stopped"], "runs is running, and `run` is stopped");
    // The beginning of an id is no name.
    let id = runs["Id"].as_str().unwrap();
    refused(&id[..12], &[], "podman has no container");
    make(&podman, &image, "stubborn", &["--restart", "always"]);
    refused("stubborn", &[], "its own restart policy (always)");
    make(&podman, &image, "fleeting", &["--rm"]);
    refused("fleeting", &[], "it is removed as soon as it ends");
    apply(&fleet, &shop(json!({})));
    fleet.unit_in_phase("default/shop", "running");
    let made = fleet.muster(&["container", "adopt", "muster.default.shop", "--as", "default/mine"]);
    made.expect_code(1).expect_stderr("was created by an agent");
    let fields = json!({"image": {"existing": "runs"}, "args": ["/bin/sh"]});
    let path = write(&fleet, &shop(fields));
    fleet.muster(&["unit", "apply", &path]).expect_code(2).expect_stderr("runs is adopted with its present settings");
    // Nothing has become of any of them.
    assert_eq!(podman.inspect("runs")["State"]["Pid"], runs["State"]["Pid"]);
}

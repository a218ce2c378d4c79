//! Containers, kept by a real LXC.

use std::{fs, path::Path};

use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

use super::{
    assert_logs_have_times, memory_limit, pid, shop,
    stage::{Lxc, add_packed, add_rootfs, apply, write},
    wait_for_log,
};
use crate::fleet::{Fleet, eventually};

const NAME: &str = "muster.default.shop";

// The containers go before the fleet, as variables do in the opposite order.
fn stage() -> (Fleet, Lxc) {
    let fleet = Fleet::start();
    add_rootfs(&fleet);
    let lxc = Lxc::of(&fleet);
    (fleet, lxc)
}

/// A document of a container of LXC's.
fn stall(fields: Value) -> Value {
    let mut document = shop(json!({"runtime": "lxc"}));
    document.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    document
}

/// The parent of a process: what LXC starts a container with, or a shim.
fn parent(pid: nix::unistd::Pid) -> nix::unistd::Pid {
    nix::unistd::Pid::from_raw(muster_shim::process_identity::stat(pid.as_raw()).unwrap().ppid)
}

#[test]
fn container_from_tarball_runs_and_is_removed() {
    let (mut fleet, lxc) = stage();
    let mount = json!([{"host": "/etc/hostname", "inside": "/srv/a name", "read_only": true}]);
    let document = stall(json!({"user": "shop", "cwd": "/srv", "mounts": mount}));
    apply(&fleet, &document);
    let unit = fleet.unit_in_phase("default/shop", "running");
    let first = pid(&unit);
    assert_eq!(unit["desired"]["spec"]["runtime"], "lxc");
    wait_for_log(&fleet, "up as 700 with blue");
    assert_eq!(lxc.inside(NAME, &["cat", "/srv/a name"]), fs::read_to_string("/etc/hostname").unwrap().trim());
    assert_eq!(lxc.run("lxc-info", &["-n", NAME, "-p", "-H"]), first.to_string());
    assert_eq!(fs::read_link(format!("/proc/{first}/cwd")).unwrap(), Path::new("/srv"));

    // What is applied again as it is changes nothing; nor does an agent that is started again.
    apply(&fleet, &document);
    assert_eq!(pid(&fleet.unit_in_phase("default/shop", "running")), first);
    fleet.kill();
    fleet.again();
    assert_eq!(pid(&fleet.unit_in_phase("default/shop", "running")), first);
    assert_eq!(lxc.names(), [NAME]);

    fleet.ok(&["container", "freeze", "default/shop"]);
    assert_eq!(lxc.state(NAME), "FROZEN");
    fleet.unit("default/shop", |unit| unit["observed"]["frozen"] == true);
    fleet.ok(&["container", "thaw", "default/shop"]);
    assert_eq!(lxc.state(NAME), "RUNNING");
    assert_eq!(pid(&fleet.unit_in_phase("default/shop", "running")), first);

    fleet.ok(&["container", "restart", "default/shop"]);
    let second = pid(&fleet.unit("default/shop", |unit| {
        unit["observed"]["phase"] == "running" && unit["observed"]["pid"] != json!(first.as_raw())
    }));
    assert!(kill(first, None).is_err() && kill(second, None).is_ok());

    fleet.ok(&["container", "stop", "default/shop"]);
    let unit = fleet.unit_in_phase("default/shop", "stopped");
    assert_eq!(unit["observed"]["exit"], json!({"code": 0}));
    assert_logs_have_times(&fleet);
    fleet.ok(&["unit", "retire", "default/shop"]);
    fleet.ok(&["container", "rm", "default/shop"]);
    assert_eq!(lxc.names(), Vec::<String>::new());
}

#[test]
fn container_ended_outside_restarts_and_stopped_one_stays() {
    let (fleet, lxc) = stage();
    apply(&fleet, &stall(json!({})));
    let first = pid(&fleet.unit_in_phase("default/shop", "running"));
    lxc.inside(NAME, &["touch", "/srv/kept"]);
    // Somebody stops it by hand: it comes back after five seconds, as it was.
    lxc.run("lxc-stop", &["-k", "-n", NAME]);
    let unit = fleet.unit_in_phase("default/shop", "backoff");
    assert_eq!(unit["observed"]["exit"], json!({"signal": 9}), "{unit}");
    let unit = fleet.unit_in_phase("default/shop", "running");
    assert_eq!(unit["observed"]["attempts"], 1);
    let second = pid(&unit);
    assert_ne!(second, first);
    lxc.inside(NAME, &["ls", "/srv/kept"]);
    // What starts it is killed, and it with that: nobody knows how it would have ended.
    kill(parent(second), Signal::SIGKILL).unwrap();
    let unit = fleet.unit_in_phase("default/shop", "backoff");
    assert_eq!(unit["observed"]["exit"], json!("unknown"), "{unit}");
    let unit =
        fleet.unit("default/shop", |unit| unit["observed"]["phase"] == "running" && unit["observed"]["attempts"] == 2);
    assert!(kill(second, None).is_err());
    // The shim is killed: another takes its place, and nothing becomes of the container.
    let third = pid(&unit);
    let shim = parent(parent(third));
    kill(shim, Signal::SIGKILL).unwrap();
    fleet.ok(&["container", "freeze", "default/shop"]);
    fleet.ok(&["container", "thaw", "default/shop"]);
    assert_eq!(pid(&fleet.unit_in_phase("default/shop", "running")), third);
    fleet.ok(&["container", "stop", "default/shop"]);
    let unit = fleet.unit_in_phase("default/shop", "stopped");
    // It has ended with 0, of which LXC's log says nothing, and what would have seen that was killed.
    assert_eq!((&unit["desired"]["run"], &unit["observed"]["exit"]), (&json!("stopped"), &json!("unknown")));
    assert_eq!(lxc.state(NAME), "STOPPED");
    // It is the same container that goes on.
    fleet.ok(&["container", "run", "default/shop"]);
    lxc.inside(NAME, &["ls", "/srv/kept"]);
}

#[test]
fn reboot_restores_containers() {
    let (mut fleet, lxc) = stage();
    apply(&fleet, &stall(json!({})));
    apply(&fleet, &stall(json!({"unit": "default/rests", "run": "stopped"})));
    let first = pid(&fleet.unit_in_phase("default/shop", "running"));
    lxc.inside(NAME, &["touch", "/srv/kept"]);
    // Everything ends at once, and who looks then finds another boot.
    let (monitor, shim) = (parent(first), parent(parent(first)));
    fleet.kill();
    kill(shim, Signal::SIGKILL).unwrap();
    kill(monitor, Signal::SIGKILL).unwrap();
    eventually("its end", || if kill(first, None).is_err() { Ok(()) } else { Err("it runs".to_owned()) });
    let started = fleet.data().join("agent/containers/default/shop/started.json");
    for file in [started, lxc.path().join(NAME).join("run/state.json")] {
        let mut content: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert!(content["boot_id"].is_string(), "{content}");
        content["boot_id"] = json!("another");
        fs::write(&file, content.to_string()).unwrap();
    }
    fleet.again();
    let unit = fleet.unit("default/shop", |unit| {
        unit["observed"]["phase"] == "running" && unit["observed"]["pid"] != json!(first.as_raw())
    });
    // What a host that went down has ended has not failed.
    assert_eq!(unit["observed"]["attempts"], 0, "{unit}");
    lxc.inside(NAME, &["ls", "/srv/kept"]);
    assert_eq!(fleet.unit_in_phase("default/rests", "stopped")["desired"]["run"], "stopped");
}

#[test]
fn unresponsive_and_frozen_containers_are_stopped() {
    let (fleet, _lxc) = stage();
    let deaf = "trap '' TERM; echo deaf; while :; do sleep 0.1; done";
    apply(&fleet, &stall(json!({"args": ["/bin/sh", "-c", deaf], "grace_ms": 300})));
    wait_for_log(&fleet, "deaf");
    fleet.ok(&["container", "stop", "default/shop"]);
    assert_eq!(fleet.unit_in_phase("default/shop", "stopped")["observed"]["exit"], json!({"signal": 9}));
    apply(&fleet, &stall(json!({})));
    fleet.ok(&["container", "freeze", "default/shop"]);
    fleet.ok(&["container", "stop", "default/shop"]);
    assert_eq!(fleet.unit_in_phase("default/shop", "stopped")["observed"]["exit"], json!({"code": 0}));
}

#[test]
fn arguments_arrive_unchanged() {
    let (fleet, lxc) = stage();
    let odd = ["a 'b' \"c\"", "x\ny", "$(id) ; # no", "", "-n", "\\"];
    let said = "[a 'b' \"c\"]\n[x\ny]\n[$(id) ; # no]\n[]\n[-n]\n[\\]\n[ in \"it\" ]\n";
    for (option, version) in [("--gzip", "2"), ("--xz", "3"), ("--zstd", "4")] {
        add_packed(&fleet, option, version);
        let script = "for word; do echo \"[$word]\"; done; echo \"[$ODD]\"; exec sleep 1000";
        let args: Vec<&str> = ["/bin/sh", "-c", script, "sh"].into_iter().chain(odd).collect();
        let image = json!({"rootfs": format!("shop@{version}")});
        apply(&fleet, &stall(json!({"args": args, "image": image, "env": {"ODD": " in \"it\" "}, "grace_ms": 0})));
        wait_for_log(&fleet, said);
        fleet.ok(&["container", "stop", "default/shop"]);
        fleet.ok(&["unit", "retire", "default/shop"]);
        fleet.ok(&["container", "rm", "default/shop"]);
    }
    assert_eq!(lxc.names(), Vec::<String>::new());
}

#[test]
fn container_network_is_loopback_or_the_hosts() {
    let (fleet, lxc) = stage();
    let interfaces = || {
        let names =
            fs::read_dir("/sys/class/net").unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names.join(" ")
    };
    let routes = || fs::read_to_string("/proc/net/route").unwrap();
    let before = (interfaces(), routes());
    let script = "cd /sys/class/net; echo has $(ls); echo lo $(cat lo/flags); exec sleep 1000";
    let args = json!(["/bin/sh", "-c", script]);
    apply(&fleet, &stall(json!({"args": args, "grace_ms": 0})));
    // Up, and loopback.
    wait_for_log(&fleet, "has lo\nlo 0x9\n");
    let inside =
        |what: &str| fs::read_link(format!("/proc/{}/ns/{what}", lxc.run("lxc-info", &["-n", NAME, "-p", "-H"])));
    let ours = |what: &str| fs::read_link(format!("/proc/self/ns/{what}")).unwrap();
    assert_ne!(inside("net").unwrap(), ours("net"));
    apply(&fleet, &stall(json!({"args": args, "grace_ms": 0, "network": "host"})));
    wait_for_log(&fleet, &format!("has {}\n", before.0));
    assert_eq!(inside("net").unwrap(), ours("net"));
    assert_ne!(inside("mnt").unwrap(), ours("mnt"));
    fleet.ok(&["container", "stop", "default/shop"]);
    assert_eq!((interfaces(), routes()), before);
}

#[test]
fn commands_run_inside_with_user_and_exit_code() {
    let (fleet, lxc) = stage();
    apply(&fleet, &stall(json!({"user": "shop"})));
    let first = pid(&fleet.unit_in_phase("default/shop", "running"));
    let inside = |options: &[&str], script: &str| {
        fleet.muster(&[&["unit", "exec", "default/shop"], options, &["--shell", "--", script]].concat())
    };
    let run = inside(&[], "id -u; cat /proc/sys/kernel/hostname; ls /; exit 7").expect_code(1);
    assert!(
        run.stdout.contains("700\n") && run.stdout.contains("shop\n") && !run.stdout.contains("boot"),
        "{}",
        run.stdout
    );
    assert_eq!(inside(&["--user", "root"], "id -u").expect_code(0).stdout.trim(), "0");
    // What is out of time leaves nothing behind inside.
    inside(&["--timeout", "1s"], "sleep 4321 & sleep 4321").expect_code(1);
    let left = || lxc.run("lxc-attach", &["-n", NAME, "--", "/bin/busybox", "ps"]);
    eventually("the end of what was out of time", || if left().contains("4321") { Err(left()) } else { Ok(()) });
    assert_eq!(pid(&fleet.unit_in_phase("default/shop", "running")), first);
}

#[test]
fn foreign_containers_are_not_touched() {
    let (fleet, lxc) = stage();
    apply(&fleet, &stall(json!({"unit": "default/first"})));
    fleet.unit_in_phase("default/first", "running");
    let others = lxc.path().join(NAME);
    fs::create_dir(&others).unwrap();
    fs::write(others.join("config"), "lxc.uts.name = other\n").unwrap();
    let path = write(&fleet, &stall(json!({})));
    fleet.muster(&["unit", "apply", &path]).expect_code(1).expect_stderr("did not create");
    let unit = fleet.unit_in_phase("default/shop", "failed");
    assert!(unit["observed"]["error"]["hint"].as_str().unwrap().starts_with("rename or remove it"), "{unit}");
    fleet.ok(&["unit", "retire", "default/shop"]);
    fleet.ok(&["container", "rm", "default/shop"]);
    assert_eq!(fs::read_to_string(others.join("config")).unwrap(), "lxc.uts.name = other\n");
    // Those in LXC's own folder are seen, and told apart from the unit's.
    let name = format!("muster-test-{}", std::process::id());
    let folder = Path::new("/var/lib/lxc").join(&name);
    fs::create_dir(&folder).unwrap();
    let remove = Removed(&folder);
    fs::write(folder.join("config"), "lxc.uts.name = other\n").unwrap();
    fleet.ok(&["container", "restart", "default/first"]);
    let listed = eventually("both containers in a heartbeat", || {
        let host = fleet.json(&["host", "show", &fleet.host()]);
        let listed = host["state"]["value"]["containers"].clone();
        let both = listed[&name]["state"] == "ended" && listed["muster.default.first"]["state"] == "running";
        if both { Ok(listed) } else { Err(listed.to_string()) }
    });
    drop(remove);
    assert_eq!((&listed[&name]["unit"], &listed[&name]["runtime"]), (&Value::Null, &json!("lxc")));
    assert_eq!(listed["muster.default.first"]["unit"], "default/first");
    assert!(listed["muster.default.first"]["image"].as_str().unwrap().starts_with("rootfs:"), "{listed}");
}

/// A folder that is removed in the end.
struct Removed<'a>(&'a Path);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0);
    }
}

#[test]
fn limits_hold_and_change_while_it_runs() {
    let (fleet, lxc) = stage();
    let limits = |memory_mb: u64, cpu: f64| {
        stall(json!({"limits": {"memory_bytes": memory_mb * 1_048_576, "cpu": cpu, "pids": 50}}))
    };
    apply(&fleet, &limits(64, 0.5));
    let first = pid(&fleet.unit_in_phase("default/shop", "running"));
    assert_eq!(memory_limit(first), 64 * 1_048_576);
    for (memory_mb, cpu) in [(96, 0.25), (48, 1.0)] {
        apply(&fleet, &limits(memory_mb, cpu));
        let unit = fleet.unit("default/shop", |unit| unit["observed"]["revision"] == unit["desired"]["revision"]);
        assert_eq!((pid(&unit), memory_limit(first)), (first, memory_mb * 1_048_576));
    }
    // They hold from its next start on, too.
    lxc.run("lxc-stop", &["-k", "-n", NAME]);
    let unit =
        fleet.unit("default/shop", |unit| unit["observed"]["phase"] == "running" && unit["observed"]["attempts"] == 1);
    assert_eq!(memory_limit(pid(&unit)), 48 * 1_048_576);
    // To take a limit away takes a new container.
    apply(&fleet, &stall(json!({})));
    let unit = fleet.unit("default/shop", |unit| unit["observed"]["revision"] == unit["desired"]["revision"]);
    assert_ne!(pid(&unit), first);
}

#[test]
fn impossible_container_is_refused_with_reason() {
    let (fleet, lxc) = stage();
    let refused = |fields: Value, code: i32, words: &str| {
        let run = fleet.muster(&["unit", "apply", &write(&fleet, &stall(fields))]);
        run.expect_stderr(words).expect_code(code);
    };
    refused(json!({"image": {"name": "localhost/no-such:1"}}), 1, "unsupported by lxc: image.name");
    refused(json!({"image": {"archive": "shop@1"}}), 1, "unsupported by lxc: image.archive");
    refused(json!({"network": "bridge"}), 1, "unsupported by lxc: network bridge");
    refused(json!({"env": {"A": "b\nlxc.hook.pre-start = /bin/sh"}}), 1, "unsupported by lxc: env.A");
    refused(json!({"user": "nobody"}), 1, "user \"nobody\" is not in the image's /etc/passwd");
    refused(json!({"mounts": [{"host": "/no/such", "inside": "/x"}]}), 1, "/no/such cannot be mounted as /x");
    refused(json!({"args": ["/bin/nothing"]}), 1, "Failed to exec \"/bin/nothing\"");
    // Of what was refused nothing runs, and nothing is left half made.
    for name in lxc.names() {
        assert_eq!(lxc.state(&name), "STOPPED");
    }
    let names = fs::read_dir(lxc.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.filter(|name| name.starts_with(".new-")).count(), 0);
    // An image that is none says so, and others go on.
    let file = crate::fleet::file(&fleet.home, "no.tar", "no tarball");
    fleet.ok(&["artifact", "create", &file, "--role", "shop", "--version", "9"]);
    refused(json!({"image": {"rootfs": "shop@9"}}), 1, "is not a valid root file system");
    apply(&fleet, &stall(json!({"unit": "default/other"})));
    fleet.unit_in_phase("default/other", "running");
}

#[test]
fn oom_of_container_is_reported() {
    let (fleet, _lxc) = stage();
    let eat = |script: &str| {
        let limits = json!({"memory_bytes": 16 * 1_048_576});
        stall(json!({"args": ["/bin/sh", "-c", script], "limits": limits, "restart": "never"}))
    };
    let run = |script: &str| {
        let path = write(&fleet, &eat(script));
        fleet.muster(&["unit", "apply", "--no-wait", &path]).expect_code(0);
        fleet.unit("default/shop", |unit| {
            let (desired, observed) = (&unit["desired"], &unit["observed"]);
            let is_it = desired["spec"]["args"][2] == script && observed["generation"] == desired["generation"];
            is_it && observed["phase"] == "failed"
        })
    };
    let eaten = run("busybox dd if=/dev/zero of=/dev/null bs=100M count=1; exit 5");
    assert_eq!(
        (&eaten["observed"]["exit"], &eaten["observed"]["oom_killed"]),
        (&json!({"code": 5}), &json!(true)),
        "{eaten}"
    );
    assert!(eaten["observed"]["error"]["message"].as_str().unwrap().contains("exit code 5, out of memory"), "{eaten}");
    // Another run is judged by itself.
    let other = run("exit 6");
    assert_eq!(
        (&other["observed"]["exit"], &other["observed"]["oom_killed"]),
        (&json!({"code": 6}), &Value::Null),
        "{other}"
    );
}

//! Probes of containers: the same as a yuno's, whoever keeps them.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::{
    inside::marked,
    pid, shop,
    stage::{Lxc, Podman, add_rootfs, apply, write},
};
use crate::fleet::{Fleet, eventually, file};

/// Files by which a test says how something is, for whoever looks for them at the same place inside.
struct Flags(PathBuf);

impl Flags {
    fn of(fleet: &Fleet, name: &str) -> Self {
        let folder = fleet.home.path().join(format!("flags-{name}"));
        fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    fn set(&self, name: &str) {
        fs::write(self.0.join(name), "").unwrap();
    }

    fn unset(&self, name: &str) {
        fs::remove_file(self.0.join(name)).unwrap();
    }

    fn mount(&self) -> Value {
        json!([{"host": self.0, "inside": self.0}])
    }

    /// A probe that finds out whether one of them is there.
    fn probe(&self, name: &str) -> Value {
        let script =
            format!("test -e {}/{name} || {{ echo \"$MUSTER_UNIT is not {name}\"; exit 3; }}", self.0.display());
        json!({"exec": ["/bin/sh", "-c", script], "interval_ms": 200, "timeout_ms": 20_000})
    }
}

const SCRIPT: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

fn says(unit: &Value, field: &str, words: &str) -> bool {
    unit["observed"][field]["message"].as_str().is_some_and(|text| text.contains(words))
}

/// Has a unit be well and not, in several ways, and tells what became of it each time. `apply` applies it with the fields.
fn scenario(fleet: &Fleet, unit: &str, flags: &Flags, apply: &dyn Fn(Value)) -> Vec<[String; 3]> {
    let mut outcomes = Vec::new();
    let mut note = |shown: &Value| {
        let observed = &shown["observed"];
        outcomes.push(["phase", "unready", "error"].map(|field| observed[field].to_string().replace(unit, "UNIT")));
    };
    let probes =
        json!({"start": flags.probe("up"), "ready": flags.probe("ready-$COLOUR"), "live": flags.probe("well")});
    let fields = |colour: &str| json!({"env": {"COLOUR": colour}, "probes": probes, "start_timeout_ms": 60_000});
    apply(fields("blue"));
    note(&fleet.unit(unit, |unit| says(unit, "unready", "not up")));
    flags.set("up");
    note(&fleet.unit(unit, |unit| says(unit, "unready", "not ready-")));
    flags.set("well");
    flags.set("ready-blue");
    let running = |unit: &Value| unit["observed"]["phase"] == "running" && unit["observed"]["unready"].is_null();
    let first = fleet.unit(unit, running);
    note(&first);

    // Not to be ready ends nothing.
    flags.unset("ready-blue");
    let unready = fleet.unit(unit, |unit| says(unit, "unready", "not ready-"));
    note(&unready);
    flags.set("ready-blue");
    assert_eq!(pid(&fleet.unit(unit, running)), pid(&unready));

    // To hang does, and it comes back.
    flags.unset("well");
    let hung = fleet.unit(unit, |unit| says(unit, "error", "ended for that"));
    let wanted = format!("hangs: live probe: exit code 3: {unit} is not well; ended for that: exit code 0");
    assert!(says(&hung, "error", &wanted), "{hung}");
    flags.set("well");
    let again = fleet.unit(unit, |unit| running(unit) && pid(unit) != pid(&first));
    assert!(again["observed"]["attempts"].as_u64().unwrap() > 0, "{again}");

    // Verified is what was ready for a while; another revision that never is goes back to that.
    let blue = fleet.unit(unit, |unit| unit["observed"]["verified"].is_string());
    let mut red = fields("red");
    // Time enough for a probe to answer on a busy machine.
    red["start_timeout_ms"] = json!(6_000);
    apply(red);
    let back = fleet.unit(unit, |unit| unit["observed"]["rolled_back"].is_object() && running(unit));
    assert_eq!(back["observed"]["revision"], blue["observed"]["revision"], "{back}");
    assert!(back["observed"]["rolled_back"].to_string().contains("did not come up within 6 s: ready probe"), "{back}");
    note(&back);
    let noun = if back["desired"]["spec"]["kind"] == "container" { "container" } else { "yuno" };
    fleet.ok(&[noun, "stop", unit]);
    outcomes
}

#[test]
fn probes_of_yuno_and_container_behave_alike() {
    let podman = Podman::start();
    let fleet = podman.fleet();
    add_rootfs(&fleet);
    let lxc = Lxc::of(&fleet);
    let with = |mut document: Value, fields: Value| {
        document.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        fleet.ok(&["unit", "apply", &write(&fleet, &document), "--no-wait"]);
    };
    let usual = json!({"verify_after_ms": 500, "started_after_ms": 200, "run": "running"});
    let path = file(&fleet.home, "script", &format!("#!/bin/sh\n{SCRIPT}\n"));
    fleet.ok(&["artifact", "create", &path, "--role", "script", "--version", "1"]);
    let flags = Flags::of(&fleet, "till");
    let yuno = scenario(&fleet, "default/till", &flags, &|fields| {
        let mut document = usual.clone();
        document["unit"] = json!("default/till");
        document["artifact"] = json!("script@1");
        with(document, fields);
    });
    for runtime in ["podman", "lxc"] {
        let (unit, flags) = (format!("default/{runtime}"), Flags::of(&fleet, runtime));
        let found = scenario(&fleet, &unit, &flags, &|fields| {
            let document = shop(json!({
                "unit": unit, "runtime": runtime, "args": ["/bin/sh", "-c", SCRIPT], "mounts": flags.mount(), "verify_after_ms": 500,
            }));
            with(document, fields);
        });
        assert_eq!(found, yuno, "{runtime}");
    }
    assert_eq!(yuno.len(), 5, "{yuno:?}");
    drop(lxc);
}

/// A command that is not done in time, and one whose agent is killed, leave nothing behind inside; whatever runs is the
/// container's, with its user and within its cgroups.
fn what_is_left(fleet: &mut Fleet, runtime: &str) {
    let flags = Flags::of(fleet, runtime);
    let mark = format!("4321{}", std::process::id());
    let script = format!(
        "id -u >{0}/who.new; busybox cat /proc/self/cgroup >>{0}/who.new; busybox mv {0}/who.new {0}/who; sleep {mark} & sleep {mark}",
        flags.0.display()
    );
    fs::set_permissions(&flags.0, fs::Permissions::from_mode(0o777)).unwrap();
    let ready = json!({"exec": ["sh", "-c", script], "timeout_ms": 700, "interval_ms": 100});
    apply_unready(
        fleet,
        &shop(json!({"runtime": runtime, "user": "shop", "mounts": flags.mount(), "probes": {"ready": ready}})),
    );
    let unit = fleet.unit("default/shop", |unit| says(unit, "unready", "it did not end within 700 ms"));
    let first = pid(&unit);
    let who =
        eventually("what it wrote", || fs::read_to_string(flags.0.join("who")).map_err(|error| error.to_string()));
    let mut lines = who.lines();
    assert_eq!(lines.next(), Some("700"));
    assert!(who.contains("/muster-probe.ready"), "{who}");
    // The agent goes in the middle of one, and what was begun ends without it.
    eventually("one under way", || if marked(&mark).is_empty() { Err("none".to_owned()) } else { Ok(()) });
    fleet.kill();
    eventually("its end", || {
        let left = marked(&mark);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    fleet.again();
    // Without a probe it is up, and it is the same container.
    apply(fleet, &shop(json!({"runtime": runtime, "user": "shop", "mounts": flags.mount()})));
    assert_eq!(pid(&fleet.unit_in_phase("default/shop", "running")), first);
    eventually("the end of all", || {
        let left = marked(&mark);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    let groups = fs::read_to_string(format!("/proc/{first}/cgroup")).unwrap();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next().unwrap(), parts.next().unwrap());
        let left =
            Path::new("/sys/fs/cgroup").join(controllers).join(path.trim_start_matches('/')).join("muster-probe.ready");
        assert!(!left.exists(), "{}", left.display());
    }
    fleet.ok(&["container", "stop", "default/shop"]);
    fleet.ok(&["unit", "retire", "default/shop"]);
    fleet.ok(&["container", "rm", "default/shop"]);
    let folder = fleet.data().join("agent/containers/default/shop");
    eventually("the end of its folder", || if folder.exists() { Err("it is there".to_owned()) } else { Ok(()) });
}

#[track_caller]
fn apply_unready(fleet: &Fleet, document: &Value) {
    fleet.ok(&["unit", "apply", &write(fleet, document), "--no-wait"]);
}

#[test]
fn probe_command_leaves_nothing_inside() {
    let podman = Podman::start();
    let mut fleet = podman.fleet();
    add_rootfs(&fleet);
    let lxc = Lxc::of(&fleet);
    what_is_left(&mut fleet, "podman");
    what_is_left(&mut fleet, "lxc");
    drop(lxc);
}

#[test]
fn probe_connects_to_the_published_port() {
    let podman = Podman::start();
    let fleet = podman.fleet();
    add_rootfs(&fleet);
    let served = |probes: Value| {
        shop(json!({
            "args": ["/bin/httpd", "-f", "-p", "80", "-h", "/etc"], "network": "bridge", "provides": [{"name": "http"}],
            "ports": {"http": 80}, "probes": probes,
        }))
    };
    apply(
        &fleet,
        &served(json!({"start": {"tcp": {"port": 80}}, "ready": {"http": {"port": "http", "path": "/passwd"}}})),
    );
    let first = fleet.unit_in_phase("default/shop", "running");
    let port = first["observed"]["endpoints"][0]["port"].as_u64().unwrap();
    // Another probe takes no other container.
    let none = json!({"http": {"port": 80, "path": "/none"}, "interval_ms": 200, "failures": 1});
    apply_unready(&fleet, &served(json!({"ready": none})));
    let unit = fleet.unit("default/shop", |unit| says(unit, "unready", &format!(":{port}/none: status 404")));
    assert_eq!((pid(&unit), &unit["observed"]["phase"]), (pid(&first), &json!("running")));
    let shown = fleet.ok(&["container", "show", "default/shop"]);
    assert!(shown.contains("http:80/none every 200ms"), "{shown}");

    // What nobody can connect to is said when it is applied.
    let refused = |fields: Value, words: &str| {
        fleet.muster(&["unit", "apply", &write(&fleet, &shop(fields))]).expect_code(2).expect_stderr(words);
    };
    refused(json!({"probes": {"live": {"tcp": {"port": 80}}}}), "probes.live.tcp: its network is none");
    refused(
        json!({"network": "bridge", "probes": {"live": {"http": {"port": 80}}}}),
        "probes.live.http.port is 80, a port inside to which no endpoint leads from the host",
    );
    refused(json!({"probes": {"live": {"exec": []}}, "start_timeout_ms": 0}), "start_timeout_ms is 0");
    drop(podman);
}

#[test]
fn lxc_probe_on_host_network_uses_its_port() {
    let fleet = Fleet::start();
    fleet.lease_own_ports();
    add_rootfs(&fleet);
    let lxc = Lxc::of(&fleet);
    fleet.ok(&[
        "container",
        "create",
        "default/shop",
        "--runtime",
        "lxc",
        "--rootfs",
        "shop",
        "--network",
        "host",
        "--provide",
        "http",
        "--start",
        "tcp:http",
        "--live",
        "every=200ms,failures=2,http:http/passwd",
        "--ready",
        "exec:sh -c 'busybox wget -q -O - \"http://$MUSTER_ADDRESS_HTTP:$MUSTER_PORT_HTTP/passwd\"'",
        "--grace",
        "0s",
        "--run",
        "--",
        "/bin/httpd",
        "-f",
        "-p",
        "{address:http}:{port:http}",
        "-h",
        "/etc",
    ]);
    let unit = fleet.unit_in_phase("default/shop", "running");
    // It answers no more, though it runs.
    lxc.inside("muster.default.shop", &["/bin/busybox", "mv", "/etc/passwd", "/etc/gone"]);
    let ended = fleet.unit("default/shop", |unit| says(unit, "error", "ended for that: signal 9"));
    assert!(
        says(&ended, "error", "hangs: live probe: http://") && says(&ended, "error", "/passwd: status 404"),
        "{ended}"
    );
    assert_ne!(ended["observed"]["pid"], unit["observed"]["pid"]);
}

#[test]
fn healthy_container_is_kept_without_its_runtime() {
    let mut podman = Podman::start();
    let fleet = podman.fleet();
    add_rootfs(&fleet);
    let flags = Flags::of(&fleet, "shop");
    let live = json!({
        "exec": ["/bin/sh", "-c", format!("echo x >>{}/asked", flags.0.display())], "interval_ms": 100, "failures": 1,
    });
    apply(&fleet, &shop(json!({"mounts": flags.mount(), "probes": {"live": live}})));
    let first = pid(&fleet.unit_in_phase("default/shop", "running"));
    podman.end_service();
    let asked = || fs::read(flags.0.join("asked")).unwrap_or_default().len();
    let before = asked();
    eventually("more questions", || if asked() > before + 10 { Ok(()) } else { Err(asked().to_string()) });
    assert_eq!(pid(&fleet.unit_in_phase("default/shop", "running")), first);
    podman.serve();
    fleet.ok(&["container", "stop", "default/shop"]);
}

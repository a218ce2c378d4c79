//! Containers, kept by a real Podman, by a real LXC, and by a real Docker.

mod adopted;
mod docker;
mod faults;
mod images;
mod inside;
mod lxc;
mod measured;
mod probed;
mod restored;
pub(crate) mod stage;

use std::io::{Read, Write};

use nix::{sys::signal::kill, unistd::Pid};
use serde_json::{Value, json};

use self::stage::{Lxc, Podman, add_rootfs, apply, write};
use crate::fleet::{Fleet, eventually, file};

const LOOP: &str = "echo up as $(id -u) with $COLOUR; trap 'echo asked; exit 0' TERM; while :; do sleep 0.1; done";

/// Writes two megabytes, and waits.
const WRITES: &str = "busybox head -c 2000000 /dev/zero > /written; exec sleep 1000";

/// After how long what is to end by itself counts as up: it has ended long before, however slow its host is.
const ENDS_BEFORE_MS: u64 = 60_000;

fn shop(fields: Value) -> Value {
    let mut document = json!({
        "unit": "default/shop", "kind": "container", "image": {"rootfs": "shop@1"}, "args": ["/bin/sh", "-c", LOOP],
        "env": {"COLOUR": "blue"}, "network": "none",
        // What its caller may not raise, where a test runs.
        "rlimits": {"nofile": {"soft": 1024, "hard": 4096}, "nproc": {"soft": 1000, "hard": 1000}}, "started_after_ms": 200, "run": "running"
    });
    document.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    document
}

fn pid(unit: &Value) -> Pid {
    Pid::from_raw(i32::try_from(unit["observed"]["pid"].as_i64().unwrap()).unwrap())
}

fn stage() -> (Podman, Fleet) {
    let podman = Podman::start();
    let fleet = podman.fleet();
    add_rootfs(&fleet);
    (podman, fleet)
}

#[track_caller]
fn wait_for_log(fleet: &Fleet, words: &str) -> String {
    eventually(words, || {
        let log = fleet.muster(&["container", "logs", "default/shop"]).stdout;
        if log.contains(words) { Ok(log) } else { Err(log) }
    })
}

/// The log of a container that was asked to end has times, and can be had by them.
#[track_caller]
fn assert_logs_have_times(fleet: &Fleet) {
    let logs = |args: &[&str]| fleet.ok(&[&["container", "logs", "default/shop"], args].concat());
    let all = logs(&[]);
    assert!(all.contains("asked"), "{all}");
    let timed = logs(&["-t"]);
    let lines: Vec<(&str, &str)> = timed.lines().map(|line| line.split_once(' ').unwrap()).collect();
    assert_eq!(lines.iter().map(|(_, text)| format!("{text}\n")).collect::<String>(), all);
    assert!(lines.iter().all(|(time, _)| humantime::parse_rfc3339(time).is_ok()), "{timed}");
    assert_eq!(logs(&["--since", "1h"]), all);
    assert_eq!(logs(&["--since", lines[0].0, "--until", "now"]), all);
    assert_eq!(logs(&["--until", "2020-01-01"]), "");
    assert_eq!(logs(&["--since", "1h", "-n", "1"]), format!("{}\n", lines.last().unwrap().1));
}

#[test]
fn container_from_tarball_runs_and_is_removed() {
    let (podman, mut fleet) = stage();
    let mount = json!([{"host": "/etc/hostname", "inside": "/srv/name", "read_only": true}]);
    apply(&fleet, &shop(json!({"user": "shop", "mounts": mount})));
    let unit = fleet.unit_in_phase("default/shop", "running");
    let first = pid(&unit);
    assert_eq!(unit["desired"]["spec"]["kind"], "container");
    wait_for_log(&fleet, "up as 700 with blue");
    let inside = podman.run(&["exec", "muster.default.shop", "cat", "/srv/name"]);
    assert_eq!(inside, std::fs::read_to_string("/etc/hostname").unwrap().trim());

    // What is applied again as it is changes nothing; nor does an agent that is started again.
    apply(&fleet, &shop(json!({"user": "shop", "mounts": mount})));
    assert_eq!(pid(&fleet.unit_in_phase("default/shop", "running")), first);
    fleet.kill();
    fleet.again();
    assert_eq!(pid(&fleet.unit_in_phase("default/shop", "running")), first);
    assert_eq!(podman.names(), ["muster.default.shop"]);

    fleet.ok(&["container", "freeze", "default/shop"]);
    assert_eq!(podman.inspect("muster.default.shop")["State"]["Status"], "paused");
    fleet.ok(&["container", "thaw", "default/shop"]);
    assert_eq!(podman.inspect("muster.default.shop")["State"]["Status"], "running");
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
    assert_eq!(podman.names(), Vec::<String>::new());
}

#[test]
fn container_ended_outside_restarts_and_stopped_one_stays() {
    let (podman, fleet) = stage();
    apply(&fleet, &shop(json!({})));
    let first = pid(&fleet.unit_in_phase("default/shop", "running"));
    podman.run(&["exec", "muster.default.shop", "touch", "/srv/kept"]);
    // Somebody stops it by hand: it comes back after five seconds, as it was.
    podman.run(&["kill", "muster.default.shop"]);
    let unit = fleet.unit_in_phase("default/shop", "backoff");
    assert_eq!(unit["observed"]["exit"], json!({"signal": 9}), "{unit}");
    let wait_ms = unit["observed"]["retry_ms"].as_i64().unwrap() - unit["observed"]["since_ms"].as_i64().unwrap();
    assert!((2_000..=5_000).contains(&wait_ms), "{wait_ms} ms: {unit}");
    let unit = fleet.unit_in_phase("default/shop", "running");
    assert_eq!(unit["observed"]["attempts"], 1);
    assert_ne!(pid(&unit), first);
    podman.run(&["exec", "muster.default.shop", "ls", "/srv/kept"]);
    // Somebody removes it: it is made anew.
    podman.run(&["rm", "--force", "--time", "0", "muster.default.shop"]);
    let unit =
        fleet.unit("default/shop", |unit| unit["observed"]["phase"] == "running" && unit["observed"]["attempts"] == 2);
    assert_eq!(podman.inspect("muster.default.shop")["State"]["Pid"], unit["observed"]["pid"]);
    fleet.ok(&["container", "stop", "default/shop"]);
    let id = podman.inspect("muster.default.shop")["Id"].clone();
    assert_eq!(fleet.unit_in_phase("default/shop", "stopped")["desired"]["run"], "stopped");
    assert_eq!(podman.inspect("muster.default.shop")["State"]["Running"], false);
    // It is the same container that goes on.
    fleet.ok(&["container", "run", "default/shop"]);
    assert_eq!(podman.inspect("muster.default.shop")["Id"], id);
}

#[test]
fn unresponsive_and_frozen_containers_are_stopped() {
    let (_podman, fleet) = stage();
    let deaf = "trap '' TERM; echo deaf; while :; do sleep 0.1; done";
    apply(&fleet, &shop(json!({"args": ["/bin/sh", "-c", deaf], "grace_ms": 300})));
    wait_for_log(&fleet, "deaf");
    fleet.ok(&["container", "stop", "default/shop"]);
    assert_eq!(fleet.unit_in_phase("default/shop", "stopped")["observed"]["exit"], json!({"signal": 9}));
    apply(&fleet, &shop(json!({})));
    fleet.ok(&["container", "freeze", "default/shop"]);
    fleet.ok(&["container", "stop", "default/shop"]);
    assert_eq!(fleet.unit_in_phase("default/shop", "stopped")["observed"]["exit"], json!({"code": 0}));
}

#[test]
fn foreign_containers_are_not_touched() {
    let (podman, fleet) = stage();
    apply(&fleet, &shop(json!({"unit": "default/first"})));
    fleet.unit_in_phase("default/first", "running");
    let image = podman.inspect("muster.default.first")["ImageName"].as_str().unwrap().to_owned();
    podman.run(&["create", "--name", "muster.default.shop", "--network", "none", &image, "/bin/sh", "-c", WRITES]);
    let id = podman.inspect("muster.default.shop")["Id"].clone();
    let path = write(&fleet, &shop(json!({})));
    fleet.muster(&["unit", "apply", &path]).expect_code(1).expect_stderr("did not create");
    let unit = fleet.unit_in_phase("default/shop", "failed");
    assert!(unit["observed"]["error"]["hint"].as_str().unwrap().starts_with("rename or remove it"), "{unit}");
    fleet.ok(&["unit", "retire", "default/shop"]);
    fleet.ok(&["container", "rm", "default/shop"]);
    assert_eq!(podman.inspect("muster.default.shop")["Id"], id);
    // It is seen, and told apart from the unit's.
    let listed = eventually("both containers in a heartbeat", || {
        let host = fleet.json(&["host", "show", &fleet.host()]);
        let listed = host["state"]["value"]["containers"].clone();
        let both = listed["muster.default.shop"]["state"] == "made" && listed["muster.default.first"].is_object();
        if both { Ok(listed) } else { Err(listed.to_string()) }
    });
    assert_eq!(listed["muster.default.shop"]["unit"], Value::Null);
    assert_eq!(listed["muster.default.first"]["unit"], "default/first");
    assert_eq!(listed["muster.default.first"]["state"], "running");
    // What others have made is measured, once it runs, and by its own name.
    podman.run(&["start", "muster.default.shop"]);
    fleet.ok(&["container", "restart", "default/first"]);
    eventually("its memory", || {
        let query = "muster_container_processes_count{container=\"muster.default.shop\",runtime=\"podman\"}";
        let answer = fleet.json(&["metric", "query", query]);
        let count = answer["series"][0]["points"][0][1].as_f64();
        if count == Some(1.0) { Ok(()) } else { Err(answer.to_string()) }
    });
    eventually("what it has written", || {
        let answer =
            fleet.json(&["metric", "query", "muster_container_disk_used_bytes{container=\"muster.default.shop\"}"]);
        let bytes = answer["series"][0]["points"][0][1].as_f64();
        if bytes.is_some_and(|bytes| (2e6..5e6).contains(&bytes)) { Ok(()) } else { Err(answer.to_string()) }
    });
    let of_units =
        fleet.json(&["metric", "query", "muster_container_processes_count{container=\"muster.default.first\"}"]);
    assert_eq!(of_units["series"], json!([]));
    // The other is as it was.
    assert_eq!(fleet.unit_in_phase("default/first", "running")["observed"]["attempts"], 0);
}

#[test]
fn missing_runtime_leaves_containers_alone() {
    let (mut podman, mut fleet) = stage();
    apply(&fleet, &shop(json!({})));
    let first = pid(&fleet.unit_in_phase("default/shop", "running"));
    podman.end_service();
    // An agent that starts now finds it again when its runtime is back; what is new says what is missing.
    fleet.kill();
    fleet.again();
    fleet.ok(&["unit", "apply", &write(&fleet, &shop(json!({"unit": "default/new"}))), "--no-wait"]);
    let script = crate::fleet::file(&fleet.home, "server", "#!/bin/sh\nwhile :; do sleep 1; done\n");
    fleet.ok(&["artifact", "create", &script, "--role", "server", "--version", "1"]);
    fleet.ok(&["yuno", "create", "default/till", "--artifact", "server", "--run"]);
    fleet.unit_in_phase("default/till", "running");
    let unit = fleet.unit("default/new", |unit| unit["observed"]["error"].is_object());
    let error = &unit["observed"]["error"];
    let has = |part: &str, words: &str| error[part].as_str().unwrap().contains(words);
    assert!(has("message", "cannot reach the container runtime at") && has("hint", "podman system service"), "{error}");
    assert!(kill(first, None).is_ok());
    podman.serve();
    fleet.unit_in_phase("default/new", "running");
    let unit = fleet.unit("default/shop", |unit| unit["observed"]["error"].is_null());
    assert_eq!((pid(&unit), &unit["observed"]["phase"]), (first, &json!("running")));
    fleet.ok(&["container", "stop", "default/shop"]);
}

#[test]
fn limits_hold_and_change_while_it_runs() {
    let (podman, fleet) = stage();
    let limits = |memory_mb: u64, cpu: f64| {
        shop(json!({"limits": {"memory_bytes": memory_mb * 1_048_576, "cpu": cpu, "pids": 50}}))
    };
    apply(&fleet, &limits(64, 0.5));
    let first = pid(&fleet.unit_in_phase("default/shop", "running"));
    assert_eq!(memory_limit(first), 64 * 1_048_576);
    apply(&fleet, &limits(96, 0.25));
    let unit = fleet.unit("default/shop", |unit| unit["observed"]["revision"] == unit["desired"]["revision"]);
    assert_eq!((pid(&unit), memory_limit(first)), (first, 96 * 1_048_576));
    fleet.ok(&["container", "quota", "default/shop", "--memory", "80M", "--pids", "60"]);
    let unit = fleet.unit("default/shop", |unit| unit["observed"]["revision"] == unit["desired"]["revision"]);
    assert_eq!((pid(&unit), memory_limit(first)), (first, 80 * 1_048_576));
    let wanted = json!({"memory_bytes": 80 * 1_048_576, "cpu": 0.25, "pids": 60});
    assert_eq!(unit["desired"]["spec"]["limits"], wanted);
    fleet.muster(&["container", "quota", "default/shop"]).expect_code(2).expect_stderr("--memory");
    fleet.muster(&["container", "quota", "default/shop", "--cpu", "many"]).expect_code(2).expect_stderr("processors");
    // To take a limit away takes a new container.
    apply(&fleet, &shop(json!({})));
    let unit = fleet.unit("default/shop", |unit| unit["observed"]["revision"] == unit["desired"]["revision"]);
    assert_ne!(pid(&unit), first);
    drop(podman);
}

/// The limit of the memory cgroup that a process is in.
pub(crate) fn memory_limit(pid: Pid) -> u64 {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let of = |controller: &str| {
        let line = groups.lines().find(|line| line.split(':').nth(1) == Some(controller))?;
        line.splitn(3, ':').nth(2).map(str::to_owned)
    };
    let path = match (of("memory"), of("")) {
        (Some(path), _) => format!("/sys/fs/cgroup/memory{path}/memory.limit_in_bytes"),
        (None, Some(path)) => format!("/sys/fs/cgroup{path}/memory.max"),
        (None, None) => panic!("{groups}"),
    };
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}")).trim().parse().unwrap()
}

#[test]
fn impossible_container_is_refused_with_reason() {
    let (podman, fleet) = stage();
    let refused = |fields: Value, code: i32, words: &str| {
        let run = fleet.muster(&["unit", "apply", &write(&fleet, &shop(fields))]);
        run.expect_stderr(words).expect_code(code);
    };
    // What its document says already.
    refused(json!({"network": "bridge", "needs": [{"name": "db"}]}), 2, "needs are endpoints of the host");
    refused(json!({"args": []}), 2, "a root file system has no default program");
    refused(json!({"runtime": "docker"}), 2, "unknown variant `docker`");
    // What its host finds.
    refused(json!({"image": {"name": "localhost/no-such:1"}}), 1, "localhost/no-such:1");
    refused(json!({"mounts": [{"host": "/no/such", "inside": "/x"}]}), 1, "/no/such cannot be mounted as /x");
    assert_eq!(podman.names(), Vec::<String>::new());
}

#[test]
fn endpoint_is_published_on_its_leased_port() {
    let (_podman, fleet) = stage();
    let fields = json!({
        "args": ["/bin/httpd", "-f", "-p", "80", "-h", "/etc"], "network": "bridge",
        "provides": [{"name": "http"}], "ports": {"http": 80},
    });
    apply(&fleet, &shop(fields));
    let unit = fleet.unit_in_phase("default/shop", "running");
    let endpoint = &unit["observed"]["endpoints"][0];
    let address = format!("{}:{}", endpoint["address"].as_str().unwrap(), endpoint["port"]);
    let answer = eventually("an answer from inside", || {
        let asked = std::net::TcpStream::connect(&address).and_then(|mut stream| {
            stream.write_all(b"GET /passwd HTTP/1.0\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).map(|_| answer)
        });
        asked.map_err(|error| error.to_string())
    });
    assert!(answer.contains("shop:x:700"), "{answer}");
}

#[test]
fn container_is_rendered_by_its_host() {
    let (podman, fleet) = stage();
    let host = fleet.host();
    let secret = file(&fleet.home, "secret", "xk9-the-value-of-a-secret");
    fleet.ok(&["secret", "set", "db", "--file", &secret]);
    fleet.ok(&["var", "set", "colour", "blue"]);
    fleet.ok(&["var", "set", "other", "1"]);
    let fields = json!({
        "render": true, "args": ["/bin/sh", "-c", format!("echo {{{{ instance.unit }}}}; {LOOP}")],
        "env": {"COLOUR": "{{ vars.colour }}", "DSN": "till:{{ secret('db') }}"},
    });
    apply(&fleet, &shop(fields.clone()));
    wait_for_log(&fleet, "default/shop\nup as 0 with blue");
    let env = |podman: &Podman| podman.inspect("muster.default.shop")["Config"]["Env"].to_string();
    assert!(env(&podman).contains("DSN=till:xk9-the-value-of-a-secret"), "{}", env(&podman));
    let shown = fleet.json(&["render", "--unit", "default/shop", "--host", &host]).to_string();
    assert!(shown.contains("till:***") && shown.contains("echo default/shop;"), "{shown}");
    assert!(!fleet.json(&["unit", "show", "default/shop"]).to_string().contains("xk9"));
    // A variable that it does not name makes no other container; one that it names does.
    let id = podman.inspect("muster.default.shop")["Id"].clone();
    fleet.ok(&["var", "set", "other", "2"]);
    fleet.ok(&["var", "set", "colour", "green"]);
    wait_for_log(&fleet, "with green");
    assert_ne!(podman.inspect("muster.default.shop")["Id"], id);
    // A later start needs no console for the secret.
    let kept = fleet.data().join("agent/containers/default/shop/secrets.json");
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&kept.metadata().unwrap().permissions()) & 0o777, 0o600);
    for (key, value, words) in [
        ("args", json!(["/bin/sh", "-c", "{{ secret('db') }}"]), "argument 3: it names the secret db"),
        ("args", json!(["/bin/sh", "{{ fact.cpu }}"]), "argument 2, line 1: unknown name fact.cpu"),
        ("env", json!({"A": "{{ vars.x"}), "env.A, line 1"),
    ] {
        let mut wrong = fields.clone();
        wrong[key] = value;
        let path = write(&fleet, &shop(wrong));
        let run = fleet.muster(&["unit", "apply", &path]);
        assert!(run.code != 0 && run.stderr.contains(words), "{}", run.stderr);
    }
    assert!(env(&podman).contains("COLOUR=green"));
}

/// What became of a unit after something was done to it.
type Outcome = (String, i32, Value, Value, Value);

/// Does the same to a unit of the kind that `noun` names, and tells what became of it each time.
fn scenario(fleet: &Fleet, noun: &str, unit: &str, apply: &dyn Fn(&str)) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    let mut note = |what: &str, code: i32| {
        let shown = fleet.json(&["unit", "show", unit]);
        let observed = &shown["observed"];
        let frozen = observed["frozen"].clone();
        outcomes.push((what.to_owned(), code, observed["phase"].clone(), observed["exit"].clone(), frozen));
    };
    let mut verb = |words: &[&str]| {
        let named: Vec<&str> =
            words.iter().map(|word| if *word == "KIND" { noun } else { word }).chain([unit]).collect();
        let code = fleet.muster(&named).code;
        note(&words.join(" "), code);
    };
    apply("trap 'exit 0' TERM; while :; do sleep 0.1; done");
    for words in [
        &["unit", "show"][..],
        &["KIND", "run"],
        &["KIND", "freeze"],
        &["KIND", "thaw"],
        &["unit", "hold"],
        &["KIND", "restart"],
        &["unit", "unhold"],
        &["KIND", "restart"],
        &["KIND", "rm"],
        &["KIND", "stop"],
        &["KIND", "signal", "TERM"],
        &["KIND", "rm"],
    ] {
        verb(words);
    }
    // One that fails, and is not to be started again, has failed; one that does what it has to is over.
    for end in ["exit 3", "exit 0"] {
        apply(end);
        verb(&["KIND", "run"]);
    }
    verb(&["unit", "retire"]);
    assert_eq!(fleet.muster(&[noun, "rm", unit]).code, 0);
    outcomes
}

/// What to do with a script when it ends, and after how long it counts as up.
fn lasts(script: &str) -> (&'static str, u64) {
    if script.contains("trap") { ("always", 200) } else { ("never", ENDS_BEFORE_MS) }
}

fn as_container(fleet: &Fleet, unit: &str, runtime: &str, script: &str) {
    let (restart, started_after_ms) = lasts(script);
    let fields = json!({
        "unit": unit, "runtime": runtime, "args": ["/bin/sh", "-c", script], "restart": restart, "run": "stopped",
        "started_after_ms": started_after_ms, "rollback": "never",
    });
    apply(fleet, &shop(fields));
}

fn as_yuno(fleet: &Fleet, script: &str) {
    let version = script.replace(|letter: char| !letter.is_ascii_alphanumeric(), "");
    let path = crate::fleet::file(&fleet.home, "script", &format!("#!/bin/sh\n{script}\n"));
    fleet.ok(&["artifact", "create", &path, "--role", "script", "--version", &version]);
    let (restart, started_after_ms) = lasts(script);
    let document = json!({
        "unit": "default/till", "artifact": format!("script@{version}"), "restart": restart, "run": "stopped",
        "started_after_ms": started_after_ms, "rollback": "never",
    });
    apply(fleet, &document);
}

#[test]
fn yuno_and_container_behave_alike() {
    let (_podman, fleet) = stage();
    let lxc = Lxc::of(&fleet);
    let yuno = scenario(&fleet, "yuno", "default/till", &|script| as_yuno(&fleet, script));
    let podman =
        scenario(&fleet, "container", "default/shop", &|script| as_container(&fleet, "default/shop", "podman", script));
    assert_eq!(podman, yuno);
    let in_lxc =
        scenario(&fleet, "container", "default/stall", &|script| as_container(&fleet, "default/stall", "lxc", script));
    assert_eq!(in_lxc, yuno);
    assert!(yuno.len() >= 15, "{yuno:?}");
    assert_eq!(lxc.names(), Vec::<String>::new());
}

#[test]
fn container_is_created_by_options_and_cloned() {
    let (podman, fleet) = stage();
    let limits = ["--memory", "32M", "--rlimit", "nofile=1024:4096", "--rlimit", "nproc=1000:1000"];
    let made_of =
        ["container", "create", "default/shop", "--rootfs", "shop", "--network", "none", "--env", "COLOUR=blue"];
    fleet.ok(&[&made_of[..], &limits, &["--run", "--", "/bin/sh", "-c", LOOP]].concat());
    wait_for_log(&fleet, "with blue");
    assert_eq!(podman.inspect("muster.default.shop")["HostConfig"]["Memory"], 32 << 20);

    // What is secret is not taken along in silence, and what is there is not overwritten.
    let refused = fleet.muster(&["container", "clone", "default/shop", "default/shop-2"]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("is never shown: COLOUR"), "{}", refused.stderr);
    let refused = fleet.muster(&["container", "clone", "default/shop", "default/shop", "--env", "COLOUR=red"]);
    assert_eq!(refused.code, 3);
    assert!(refused.stderr.contains("there is a unit default/shop on"), "{}", refused.stderr);

    fleet.ok(&["container", "clone", "default/shop", "default/shop-2", "--env", "COLOUR=red", "--run"]);
    eventually("the other's log", || {
        let log = fleet.muster(&["container", "logs", "default/shop-2"]).stdout;
        if log.contains("with red") { Ok(()) } else { Err(log) }
    });
    assert_eq!(podman.inspect("muster.default.shop-2")["HostConfig"]["Memory"], 32 << 20);
    let mut names = podman.names();
    names.sort();
    assert_eq!(names, ["muster.default.shop", "muster.default.shop-2"]);
}

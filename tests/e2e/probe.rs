//! Probes of a real server: one that comes up late, one that never does, one that hangs, one that is unready for a while.

use std::{fs, net::TcpListener, path::PathBuf};

use serde_json::{Value, json};

use crate::fleet::{Fleet, file};

/// Listens once there is a file `up` where it works, and answers well to the path of each file that is there.
const SERVER: &str = r#"#!/usr/bin/env python3
import http.server, os, sys, time

while not os.path.exists("up"):
    time.sleep(0.05)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if os.path.exists(self.path[1:]) else 503)
        self.end_headers()

    def log_message(self, *args):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"#;

fn fleet() -> Fleet {
    let fleet = Fleet::start();
    let path = file(&fleet.home, "server", SERVER);
    fleet.ok(&["artifact", "create", &path, "--role", "server", "--version", "1"]);
    fleet
}

/// An endpoint with a port that is free: another test's server may listen on what its own host would lease.
fn web() -> String {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    format!("web={}", free.port())
}

/// Makes the server a unit, or changes it, and does not wait.
#[track_caller]
fn create(fleet: &Fleet, web: &str, more: &[&str]) {
    let base =
        ["yuno", "create", "default/a", "--artifact", "server", "--provide", web, "--arg", "{port:web}", "--replace"];
    fleet.ok(&[&base[..], &["--run", "--no-wait"], more].concat());
}

fn flag(fleet: &Fleet, name: &str) -> PathBuf {
    fleet.data().join("agent/units/default/a/work").join(name)
}

fn set(fleet: &Fleet, name: &str) {
    fs::write(flag(fleet, name), "").unwrap();
}

fn unset(fleet: &Fleet, name: &str) {
    fs::remove_file(flag(fleet, name)).unwrap();
}

#[track_caller]
fn unready(fleet: &Fleet, words: &str) -> Value {
    fleet.unit("default/a", |unit| {
        unit["observed"]["unready"]["message"].as_str().is_some_and(|why| why.contains(words))
    })
}

#[track_caller]
fn ready(fleet: &Fleet) -> Value {
    fleet.unit("default/a", |unit| unit["observed"]["phase"] == "running" && unit["observed"]["unready"].is_null())
}

#[test]
fn slow_start_and_unready_period_are_handled() {
    let mut fleet = fleet();
    create(&fleet, &web(), &["--start", "tcp:web", "--ready", "every=200ms,failures=1,http:web/ready"]);
    fleet.ok(&[
        "yuno",
        "create",
        "default/b",
        "--artifact",
        "server",
        "--arg",
        "0",
        "--requires",
        "default/a",
        "--run",
        "--no-wait",
    ]);
    // Its port is refused, then its readiness.
    let unit = unready(&fleet, "start probe: 127.0.0.1:");
    assert_eq!(unit["observed"]["phase"], "starting");
    set(&fleet, "up");
    let unit = unready(&fleet, "ready probe: http://127.0.0.1:");
    assert_eq!(unit["observed"]["phase"], "starting");
    let b = fleet.unit("default/b", |unit| unit["hold"]["reason"] == "dependency");
    assert_eq!((&b["hold"]["note"], &b["observed"]["pid"]), (&json!("default/a is starting"), &Value::Null));
    set(&fleet, "ready");
    let running = ready(&fleet);
    let pid = running["observed"]["pid"].clone();
    assert_eq!(pid, unit["observed"]["pid"]);
    fleet.unit("default/b", |unit| unit["observed"]["pid"].is_number());
    fleet.ok(&["yuno", "stop", "default/b"]);

    // It goes on, and is shown as what it is; who needs it waits.
    unset(&fleet, "ready");
    let unit = unready(&fleet, "/ready: status 503");
    assert_eq!((&unit["observed"]["phase"], &unit["observed"]["pid"]), (&json!("running"), &pid));
    let listed = fleet.ok(&["unit", "ls"]);
    assert!(listed.contains("running, unready") && listed.contains("status 503"), "{listed}");
    let shown = fleet.ok(&["unit", "show", "default/a"]);
    assert!(shown.contains("http:web/ready every 200ms") && shown.contains("status 503"), "{shown}");
    fleet.ok(&["yuno", "run", "default/b", "--no-wait"]);
    let wanted = json!("default/a is running and not ready");
    fleet.unit("default/b", |unit| unit["hold"]["note"] == wanted && unit["observed"]["pid"].is_null());

    // No agent that comes back takes it for another.
    fleet.kill();
    fleet.again();
    let unit = unready(&fleet, "/ready: status 503");
    assert_eq!((&unit["observed"]["phase"], &unit["observed"]["pid"]), (&json!("running"), &pid));
    assert_eq!(unit["observed"]["since_ms"], running["observed"]["since_ms"]);
    set(&fleet, "ready");
    assert_eq!(ready(&fleet)["observed"]["pid"], pid);
    fleet.unit("default/b", |unit| unit["observed"]["pid"].is_number());
}

#[test]
fn server_that_never_starts_is_retried_later() {
    let fleet = fleet();
    // A port on which nobody listens.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    create(&fleet, &web(), &["--ready", &format!("tcp:{}", nobody.port()), "--start-timeout", "1s"]);
    let unit = fleet.unit_in_phase("default/a", "backoff");
    let error = unit["observed"]["error"]["message"].as_str().unwrap();
    let wanted = format!("did not come up within 1 s: ready probe: {nobody}: Connection refused");
    assert!(error.starts_with(&wanted), "{error}");
    assert!(unit["observed"]["retry_ms"].is_number() && unit["observed"]["attempts"].as_u64().unwrap() >= 3, "{unit}");
    // Whoever waits for it hears why.
    fleet.muster(&["yuno", "run", "default/a"]).expect_code(1).expect_stderr("did not come up within 1 s");
}

#[test]
fn hanging_server_restarts_and_probes_change_in_place() {
    let fleet = fleet();
    let web = web();
    create(&fleet, &web, &["--ready", "tcp:web"]);
    fleet.unit_in_phase("default/a", "starting");
    set(&fleet, "up");
    let pid = ready(&fleet)["observed"]["pid"].clone();
    // What is changed of probes takes no new process.
    set(&fleet, "well");
    create(
        &fleet,
        &web,
        &["--live", "every=200ms,failures=2,exec:sh -c 'test -e well || { echo \"$MUSTER_UNIT is not\"; exit 9; }'"],
    );
    let unit = fleet.unit("default/a", |unit| {
        unit["desired"]["spec"]["probes"]["live"].is_object()
            && unit["desired"]["generation"] == unit["observed"]["generation"]
    });
    assert_eq!((&unit["observed"]["pid"], &unit["desired"]["spec"]["probes"]["ready"]), (&pid, &Value::Null), "{unit}");
    unset(&fleet, "well");
    let unit = fleet.unit("default/a", |unit| {
        unit["observed"]["error"]["message"].as_str().is_some_and(|error| error.contains("ended for that: signal 15"))
    });
    let error = unit["observed"]["error"]["message"].as_str().unwrap();
    assert!(error.starts_with("hangs: live probe: exit code 9: default/a is not; "), "{error}");
    set(&fleet, "well");
    let unit = fleet.unit("default/a", |unit| unit["observed"]["phase"] == "running" && unit["observed"]["pid"] != pid);
    assert!(unit["observed"]["attempts"].as_u64().unwrap() > 0, "{unit}");
}

#[test]
fn invalid_probe_is_refused_with_its_field() {
    let fleet = fleet();
    let base = ["yuno", "create", "default/a", "--artifact", "server"];
    let tried = |more: &[&str]| fleet.muster(&[&base[..], more].concat());
    tried(&["--ready", "udp:80"]).expect_code(2).expect_stderr("use tcp:PORT, http:PORT/PATH or exec:");
    tried(&["--ready", "often=1,tcp:80"]).expect_code(2).expect_stderr("there is every, within");
    let run = tried(&["--start", "tcp:web", "--live", "every=1ms,successes=2,tcp:80"]);
    assert_ne!(run.code, 0);
    run.expect_stderr("probes.start.tcp.port is web, and `provides` has no endpoint")
        .expect_stderr("probes.live.interval_ms is 1; it must be from 100")
        .expect_stderr("probes.live.successes is 2");
}

//! A yuno with limits and attributes of its own, from the command line to the kernel and back.

use nix::unistd::{Pid, geteuid};
use serde_json::{Value, json};

use crate::{
    containers::memory_limit,
    fleet::{Fleet, eventually, file},
};

const TELLS: &str = "#!/bin/sh
id -u; umask; nice; ulimit -n; pwd
cat /proc/self/cgroup
echo told
exec sleep 1000
";

fn add(fleet: &Fleet, name: &str, content: &str) {
    let path = file(&fleet.home, name, content);
    fleet.ok(&["artifact", "create", &path, "--role", name, "--version", "1"]);
}

fn log(fleet: &Fleet, unit: &str, end: &str) -> String {
    eventually("its log", || {
        let log = fleet.muster(&["yuno", "logs", unit]).stdout;
        if log.ends_with(end) { Ok(log) } else { Err(log) }
    })
}

#[test]
fn user_memory_limit_and_attributes_are_applied() {
    let fleet = if geteuid().is_root() { Fleet::start_as_root() } else { Fleet::start() };
    add(&fleet, "tells", TELLS);
    let mut create = vec!["yuno", "create", "default/tells", "--artifact", "tells", "--run"];
    create.extend(["--memory", "32M", "--cpu", "0.5", "--pids", "30", "--cwd", "/usr"]);
    create.extend(["--umask", "027", "--nice", "19", "--rlimit", "nofile=77:88", "--no-new-privs"]);
    create.extend(["--log-size", "64K", "--log-keep", "1", "--log-age", "1d"]);
    if geteuid().is_root() {
        create.extend(["--user", "nobody", "--group", "nogroup", "--capability", "net_bind_service"]);
    }
    fleet.ok(&create);
    let unit = fleet.unit_in_phase("default/tells", "running");
    let spec = &unit["desired"]["spec"];
    assert_eq!(spec["limits"], serde_json::json!({"memory_bytes": 33_554_432, "cpu": 0.5, "pids": 30}));
    assert_eq!(spec["log"], serde_json::json!({"max_bytes": 65_536, "keep": 1, "max_age_ms": 86_400_000}));
    let log = log(&fleet, "default/tells", "told\n");
    let uid =
        if geteuid().is_root() { nix::unistd::User::from_name("nobody").unwrap().unwrap().uid } else { geteuid() };
    assert!(log.starts_with(&format!("{uid}\n0027\n19\n77\n/usr\n")), "{log}");
    let has_cgroup = log.lines().any(|line| line.contains("/muster-") && line.ends_with("/default/tells"));
    let missing = unit["observed"]["unsupported"].as_array().cloned().unwrap_or_default();
    assert!(has_cgroup || missing.len() == 3, "it has its limits, or says that it has not: {log} {missing:?}");
    fleet.ok(&["unit", "retire", "default/tells"]);
    fleet.ok(&["yuno", "rm", "default/tells"]);
}

#[test]
fn oom_of_yuno_is_reported() {
    let fleet = Fleet::start();
    // Without a limit that holds it ends by itself, and not the machine.
    add(&fleet, "eater", "#!/bin/sh\necho eating\nhead -c 200000000 /dev/zero | tail | wc -c\nexit 3\n");
    let create = ["yuno", "create", "default/eater", "--artifact", "eater", "--memory", "16M", "--restart", "never"];
    fleet.muster(&[&create[..], &["--run", "--no-wait"]].concat());
    let unit = fleet.unit("default/eater", |unit| unit["observed"]["phase"] == "failed");
    let observed = &unit["observed"];
    assert_eq!(observed["exit"]["code"], 3);
    if observed["unsupported"].is_null() && observed["oom_killed"].is_null() {
        panic!("{observed}");
    }
    let shown = fleet.ok(&["yuno", "show", "default/eater"]);
    assert!(shown.contains("eating"), "its last lines: {shown}");
    if observed["oom_killed"] == true {
        assert!(shown.contains("exit code 3, out of memory"), "{shown}");
    }
}

#[test]
fn oom_of_command_is_reported() {
    let fleet = Fleet::start();
    let eat = "head -c 200000000 /dev/zero | tail | wc -c; exit 3";
    let eaten = fleet.muster(&["exec", "--memory", "16M", "--shell", "--", eat]);
    if eaten.code == 3 && eaten.stderr.contains("cannot be limited here") {
        eprintln!("skipped: no command can be limited on this machine");
        return;
    }
    eaten.expect_code(1).expect_stderr("ended with exit code 3, out of memory");
    let alone = fleet.muster(&["exec", "--memory", "16M", "--", "tail", "/dev/zero"]);
    alone.expect_code(1).expect_stderr("ended with signal 9 (SIGKILL), out of memory");
    // As for a step of several.
    let steps =
        file(&fleet.home, "steps.json", &json!([{"argv": ["true"]}, {"argv": ["tail", "/dev/zero"]}]).to_string());
    let step = fleet.muster(&["exec", "--memory", "16M", "--batch", &steps]);
    step.expect_code(1).expect_stderr("step 2: ended with signal 9 (SIGKILL), out of memory");
    // What is killed by somebody else has not used up anything.
    let killed = fleet.muster(&["exec", "--memory", "16M", "--shell", "--", "kill -9 $$"]).expect_code(1);
    assert!(killed.stderr.contains("signal 9 (SIGKILL)") && !killed.stderr.contains("memory"), "{killed:?}");
}

#[test]
fn impossible_limits_are_refused() {
    let fleet = Fleet::start();
    add(&fleet, "tells", TELLS);
    for (option, words) in [
        (["--memory", "5"], "limits.memory_bytes"),
        (["--memory", "lots"], "64M"),
        (["--cpu", "0"], "number of processors"),
        (["--umask", "27"], "octal"),
        (["--rlimit", "nofile=9:8"], "process.rlimits.nofile"),
        (["--capability", "everything"], "net_bind_service"),
        (["--cwd", "relative"], "absolute"),
        (["--log-keep", "1000"], "log.keep"),
    ] {
        let create = ["yuno", "create", "default/tells", "--artifact", "tells"];
        let run = fleet.muster(&[&create[..], &option].concat());
        assert!(run.code != 0 && run.stderr.contains(words), "{option:?}: {run:?}");
    }
    assert_eq!(fleet.json(&["unit", "ls"]), serde_json::json!([]));
}

#[test]
fn notify_unit_is_waited_for() {
    let fleet = Fleet::start();
    let speaker = "#!/usr/bin/perl
use strict; use Socket;
sleep 2;
my $name = $ENV{NOTIFY_SOCKET}; $name =~ s/^@/\\0/;
socket(my $socket, AF_UNIX, SOCK_DGRAM, 0) or die;
send($socket, qq(STATUS=serving\\nREADY=1), 0, pack_sockaddr_un($name)) // die;
sleep 1000;
";
    add(&fleet, "speaker", speaker);
    let create =
        ["yuno", "create", "default/speaker", "--artifact", "speaker", "--notify", "--watchdog", "1h", "--run"];
    let began = std::time::Instant::now();
    fleet.ok(&create);
    // Without its word it would have been running after a second.
    assert!(began.elapsed() >= std::time::Duration::from_secs(2));
    fleet.unit_in_phase("default/speaker", "running");
    let unit = fleet.unit("default/speaker", |unit| unit["observed"]["status"] == "serving");
    assert_eq!(unit["desired"]["spec"]["channel"], "notify");
    assert!(fleet.ok(&["yuno", "show", "default/speaker"]).contains("serving"));
    fleet.ok(&["yuno", "stop", "default/speaker"]);
}

#[test]
fn changed_limits_reach_running_yuno_despite_kill() {
    let mut fleet = Fleet::start_with(&["--no-sample"]);
    let reads = "#!/bin/sh\ntrap 'echo reads $(cat \"$MUSTER_CONFIG\")' USR1\necho up\nwhile :; do sleep 0.1; done\n";
    add(&fleet, "reads", reads);
    let config = file(&fleet.home, "reads.json", r#"{"colour":"blue"}"#);
    fleet.ok(&["config", "create", "reads.main", "1", &config]);
    let create = ["yuno", "create", "default/reads", "--artifact", "reads", "--config", "reads.main", "--run"];
    fleet.ok(&[&create[..], &["--memory", "64M", "--cpu", "0.5", "--pids", "40"]].concat());
    log(&fleet, "default/reads", "up\n");
    let pid = |unit: &Value| Pid::from_raw(i32::try_from(unit["observed"]["pid"].as_i64().unwrap()).unwrap());
    let unit = fleet.unit_in_phase("default/reads", "running");
    let first = pid(&unit);
    let quota = ["yuno", "quota", "default/reads", "--memory", "96M", "--pids", "60"];
    if unit["observed"]["unsupported"].is_array() {
        // There is nothing here that could be changed: it is started anew, and that is said.
        fleet.muster(&quota).expect_code(0).expect_stderr("it was restarted for that");
        return;
    }
    assert_eq!(memory_limit(first), 64 << 20);
    fleet.muster(&quota).expect_code(0).expect_stderr("changed in place");
    let document = |memory_bytes: u64| {
        json!({
            "unit": "default/reads", "artifact": "reads@1", "configs": ["reads.main@1"],
            "limits": {"memory_bytes": memory_bytes, "cpu": 0.7},
        })
    };
    let apply = |fleet: &Fleet, memory_bytes: u64, options: &[&str]| {
        let path = file(&fleet.home, "reads.yaml", &document(memory_bytes).to_string());
        fleet.muster(&[&["unit", "apply", &path], options].concat()).expect_code(0).stdout
    };
    let unit = fleet.unit_in_phase("default/reads", "running");
    assert_eq!((pid(&unit), memory_limit(first)), (first, 96 << 20));
    assert_eq!(unit["desired"]["spec"]["limits"], json!({"memory_bytes": 96 << 20, "cpu": 0.5, "pids": 60}));
    // Two are changed, and one goes.
    assert!(apply(&fleet, 80 << 20, &["--dry-run"]).contains("in place"));
    apply(&fleet, 80 << 20, &[]);
    let unit = fleet.unit_in_phase("default/reads", "running");
    assert_eq!((pid(&unit), memory_limit(first)), (first, 80 << 20));

    // Nobody waits for it: whenever the agent is killed, it is done in the end, and once.
    apply(&fleet, 72 << 20, &["--no-wait"]);
    fleet.kill();
    fleet.again();
    eventually("the limit", || match memory_limit(first) {
        bytes if bytes == 72 << 20 => Ok(()),
        bytes => Err(bytes.to_string()),
    });
    let unit = fleet.unit("default/reads", |unit| {
        unit["observed"]["revision"] == unit["desired"]["revision"] && unit["observed"]["phase"] == "running"
    });
    assert_eq!((pid(&unit), &unit["observed"]["attempts"]), (first, &json!(0)));
    // It reads its config where it did.
    fleet.ok(&["yuno", "signal", "USR1", "default/reads"]);
    log(&fleet, "default/reads", "reads {\"colour\":\"blue\"}\n");
    // Anything else is another process.
    fleet.ok(&["yuno", "restart", "default/reads"]);
    let unit = fleet.unit("default/reads", |unit| {
        unit["observed"]["phase"] == "running" && unit["observed"]["pid"] != json!(first.as_raw())
    });
    assert_eq!(memory_limit(pid(&unit)), 72 << 20);
    fleet.ok(&["unit", "retire", "default/reads"]);
    fleet.ok(&["yuno", "rm", "default/reads"]);
}

//! A yuno with limits and attributes of its own, from the command line to the kernel and back.

use std::{fs, os::unix::fs::PermissionsExt};

use nix::unistd::geteuid;
use serde_json::json;

use crate::fleet::{Fleet, eventually, file};

const TELLS: &str = "#!/bin/sh
id -u; umask; nice; ulimit -n; pwd
cat /proc/self/cgroup
echo told
exec sleep 1000
";

fn add(fleet: &Fleet, name: &str, content: &str) {
    let path = file(&fleet.home, name, content);
    fleet.ok(&["artifact", "add", &path, "--role", name, "--version", "1"]);
}

fn log(fleet: &Fleet, unit: &str, end: &str) -> String {
    eventually("its log", || {
        let log = fleet.muster(&["yuno", "logs", unit]).stdout;
        if log.ends_with(end) { Ok(log) } else { Err(log) }
    })
}

#[test]
fn another_user_a_memory_limit_and_the_rest() {
    let fleet = Fleet::start();
    add(&fleet, "tells", TELLS);
    let mut create = vec!["yuno", "create", "default/tells", "--artifact", "tells", "--run"];
    create.extend(["--memory", "32M", "--cpu", "0.5", "--pids", "30", "--cwd", "/usr"]);
    create.extend(["--umask", "027", "--nice", "2", "--rlimit", "nofile=77:88", "--no-new-privs"]);
    create.extend(["--log-size", "64K", "--log-keep", "1", "--log-age", "1d"]);
    if geteuid().is_root() {
        // The way to what another user runs.
        for folder in [fleet.home.path(), &fleet.home.path().join("share"), &fleet.data()] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o711)).unwrap();
        }
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
    assert!(log.starts_with(&format!("{uid}\n0027\n2\n77\n/usr\n")), "{log}");
    let has_cgroup = log.lines().any(|line| line.contains("/muster-") && line.ends_with("/default/tells"));
    let missing = unit["observed"]["missing"].as_array().cloned().unwrap_or_default();
    assert!(has_cgroup || missing.len() == 3, "it has its limits, or says that it has not: {log} {missing:?}");
    fleet.ok(&["unit", "retire", "default/tells"]);
    fleet.ok(&["yuno", "rm", "default/tells"]);
}

#[test]
fn one_that_eats_memory_is_killed_and_says_so() {
    let fleet = Fleet::start();
    // Without a limit that holds it ends by itself, and not the machine.
    add(&fleet, "eater", "#!/bin/sh\necho eating\nhead -c 200000000 /dev/zero | tail | wc -c\nexit 3\n");
    let create = ["yuno", "create", "default/eater", "--artifact", "eater", "--memory", "16M", "--restart", "never"];
    fleet.muster(&[&create[..], &["--run", "--no-wait"]].concat());
    let unit = fleet.unit("default/eater", |unit| unit["observed"]["phase"] == "failed");
    let observed = &unit["observed"];
    assert_eq!(observed["exit"]["code"], 3);
    if observed["missing"].is_null() && observed["oom_killed"].is_null() {
        panic!("{observed}");
    }
    let shown = fleet.ok(&["yuno", "show", "default/eater"]);
    assert!(shown.contains("eating"), "its last lines: {shown}");
    if observed["oom_killed"] == true {
        assert!(shown.contains("exit code 3, out of memory"), "{shown}");
    }
}

#[test]
fn command_that_eats_memory_is_killed_and_says_so() {
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
fn what_cannot_be_is_refused_before_anything_is_done() {
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
fn one_that_says_when_it_is_up_is_waited_for() {
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

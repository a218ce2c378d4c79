//! Commands inside a container: with the guarantees and options that they have on the host.

use std::fs;

use nix::unistd::Pid;
use serde_json::{Value, json};

use super::{
    pid, shop,
    stage::{Podman, add_rootfs, apply},
};
use crate::fleet::{Fleet, Running, eventually, file};

/// A container that runs as its user `shop`, with a group more.
fn stage(fields: Value) -> (Podman, Fleet, Pid) {
    let podman = Podman::start();
    let fleet = podman.fleet();
    add_rootfs(&fleet);
    apply(&fleet, &shop(fields));
    let first = pid(&fleet.unit_in_phase("default/shop", "running"));
    (podman, fleet, first)
}

fn inside<'a>(options: &[&'a str], argv: &[&'a str]) -> Vec<&'a str> {
    [&["unit", "exec", "default/shop"], options, &["--"], argv].concat()
}

/// Processes of this machine whose arguments have a mark.
pub(super) fn marked(mark: &str) -> Vec<i32> {
    let has_it = |pid: &i32| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| String::from_utf8_lossy(&line).contains(mark))
    };
    let all = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    all.filter(has_it).collect()
}

/// The cgroups of a process.
fn cgroups(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default()
}

/// Something of its own for each test, to know its processes by.
fn mark(what: &str) -> String {
    format!("mark-{what}-{}", std::process::id())
}

#[test]
fn command_inside_sees_users_files_and_programs() {
    let (_podman, fleet, first) = stage(json!({"user": "shop", "env": {"COLOUR": "blue", "SHADE": "dark"}}));
    let run = |options: &[&str], script: &str| {
        fleet.ok(&inside(&[options, &["--shell"]].concat(), &[script])).trim().to_owned()
    };
    // Nobody of that name is on the host.
    assert_eq!(run(&[], "id -u; id -g; echo $USER $HOME; pwd"), "700\n700\nshop /\n/");
    assert_eq!(run(&["--user", "root"], "id -u; echo $USER"), "0\nroot");
    assert_eq!(run(&["--user", "700", "--cwd", "/srv"], "id -u; pwd"), "700\n/srv");
    assert_eq!(
        run(&["--env", "COLOUR=a b"], "echo \"$COLOUR $LANG $PATH\" | busybox cut -d: -f1"),
        "a b C.UTF-8 /usr/local/sbin"
    );
    // It has the container's own variables, unless it is given others.
    assert_eq!(run(&["--env", "SHADE=light"], "echo $COLOUR $SHADE"), "blue light");
    let lines = file(&fleet.home, "lines", "b\na\n");
    assert_eq!(fleet.ok(&inside(&["--stdin", &lines], &["busybox", "sort"])), "a\nb\n");
    assert_eq!(fleet.ok(&inside(&[], &["cat"])), "", "without one there is nothing to read");
    assert_eq!(fleet.ok(&inside(&[], &["echo", "a | b", "$HOME", "*"])), "a | b $HOME *\n");
    fleet.muster(&inside(&["--passthrough"], &["sh", "-c", "exit 7"])).expect_code(7);
    let both = fleet.muster(&inside(&[], &["sh", "-c", "echo out; echo err >&2"])).expect_code(0);
    assert!(both.stdout.contains("out") && both.stderr.contains("err"), "{both:?}");

    // It is where its container is, in everything.
    for namespace in ["mnt", "pid", "net", "ipc", "uts"] {
        let link = format!("/proc/self/ns/{namespace}");
        let theirs = fs::read_link(format!("/proc/{first}/ns/{namespace}")).unwrap();
        assert_eq!(run(&[], &format!("busybox readlink {link}")), theirs.to_str().unwrap());
        assert_ne!(theirs, fs::read_link(&link).unwrap());
    }
    assert!(run(&["--user", "root"], "cat /proc/1/cmdline").contains("up as"));
    // Root of a container has no more of the host than the container has, and nothing is left open.
    let bounding = |text: &str| text.lines().find(|line| line.starts_with("CapBnd")).unwrap().to_owned();
    let theirs = bounding(&fs::read_to_string(format!("/proc/{first}/status")).unwrap());
    let ours = run(&["--user", "root"], "cat /proc/self/status");
    assert_eq!(bounding(&ours), theirs);
    let capabilities = |name: &str| ours.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    assert_eq!(capabilities("CapPrm:"), theirs.trim_start_matches("CapBnd:").trim());
    assert_eq!((capabilities("CapInh:"), capabilities("CapAmb:")), ("0".repeat(16), "0".repeat(16)));
    let open = fleet.ok(&inside(&["--user", "root", "--stdin", &lines], &["ls", "/proc/self/fd"]));
    assert_eq!(open.split_whitespace().collect::<Vec<_>>(), ["0", "1", "2", "3"], "the last is the folder itself");
    let written =
        fleet.muster(&inside(&["--user", "root", "--stdin", &lines], &["sh", "-c", "echo c > /proc/self/fd/0"]));
    written.expect_code(1);
    // Its limits, as the kernel keeps them for each process.
    assert_eq!(run(&[], "ulimit -n; ulimit -Hn"), "1024\n4096");
}

#[test]
fn time_limit_kills_everything_inside() {
    let (podman, fleet, first) = stage(json!({}));
    let mark = mark("time");
    // One that ignores SIGTERM in a session of its own, whose parent is gone.
    let script = format!(
        "trap '' TERM; (busybox setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' {mark} &); while :; do sleep 1; done"
    );
    let args = inside(&["--timeout", "2s"], &["sh", "-c", &script, &mark]);
    let mut exec = Running::start(fleet.home.command().args(&args));
    let found = eventually("both to run", || match marked(&mark) {
        // The command line that asked for it has the mark as well.
        pids if pids.iter().filter(|pid| cgroups(**pid).contains("/muster-exec-")).count() >= 2 => Ok(pids),
        pids => Err(format!("{pids:?}")),
    });
    let theirs = cgroups(first.as_raw());
    for pid in found.into_iter().filter(|pid| cgroups(*pid).contains("/muster-exec-")) {
        // Below the container's own, or where that is itself.
        for line in cgroups(pid).lines() {
            let of =
                |line: &str| line.rsplit_once(':').map(|(which, path)| (which.to_owned(), path.to_owned())).unwrap();
            let (which, path) = of(line);
            let above = theirs.lines().map(of).find(|(other, _)| *other == which).unwrap().1;
            let own = path.rsplit_once("/muster-exec-").map(|(before, _)| before.to_owned());
            assert_eq!(own.unwrap_or(path), above, "{line}");
        }
    }
    exec.wait_for("its end", |printed| printed.contains("timed out").then_some(()));
    eventually("the end of all", || match marked(&mark) {
        pids if pids.is_empty() => Ok(()),
        pids => Err(format!("{pids:?}")),
    });
    assert_eq!(pid(&fleet.unit_in_phase("default/shop", "running")), first, "its container goes on");
    let all = podman.run(&["exec", "muster.default.shop", "sh", "-c", "cat /proc/[0-9]*/cmdline"]);
    assert!(!all.contains(&mark), "{all}");
}

#[test]
fn the_limits_of_its_container_hold_and_its_own_lie_below() {
    let limits = json!({"memory_bytes": 64 * 1_048_576, "pids": 30});
    let (_podman, fleet, _) = stage(json!({"limits": limits}));
    let take = |options: &[&str], size: &str| {
        let size = format!("bs={size}");
        let argv = ["busybox", "dd", "if=/dev/zero", "of=/dev/null", size.as_str(), "count=1"];
        fleet.muster(&inside(&[options, &["--passthrough"]].concat(), &argv)).code
    };
    assert_eq!(take(&[], "8M"), 0);
    assert_eq!(take(&[], "300M"), 128 + 9, "what takes more than its container may is killed");
    let unified = fs::metadata("/sys/fs/cgroup/cgroup.controllers").is_ok();
    let own = fleet
        .muster(&inside(&["--memory", "16M"], &["busybox", "dd", "if=/dev/zero", "of=/dev/null", "bs=40M", "count=1"]));
    if unified {
        own.expect_code(3).expect_stderr("does not delegate it");
    } else {
        own.expect_code(1).expect_stderr("ended with signal 9 (SIGKILL), out of memory");
        assert_eq!(take(&[], "40M"), 0, "its container has room for it");
    }
    let forks = "i=0; while [ $i -lt 60 ]; do sleep 5 & i=$((i + 1)); done; wait";
    fleet.muster(&inside(&["--timeout", "20s"], &["sh", "-c", forks])).expect_stderr("fork");
    fleet.unit_in_phase("default/shop", "running");
}

#[test]
fn command_inside_survives_agent_and_ends_with_container() {
    let (_podman, mut fleet, _) = stage(json!({}));
    let begin = |fleet: &Fleet, mark: &str, script: &str| {
        let id = fleet.ok(&inside(&["--no-wait"], &["sh", "-c", script, mark])).trim().to_owned();
        eventually("it to run", || if marked(mark).is_empty() { Err("not yet".to_owned()) } else { Ok(()) });
        id
    };
    let outcome = |fleet: &Fleet, id: &str| {
        eventually("its outcome", || {
            let shown = fleet.json(&["command", "show", id]);
            let host = shown["hosts"][0].clone();
            if host["state"] == "done" { Ok(host["outcome"]["value"].clone()) } else { Err(shown.to_string()) }
        })
    };
    let gone = |mark: &str| {
        eventually("the end of all", || match marked(mark) {
            pids if pids.is_empty() => Ok(()),
            pids => Err(format!("{pids:?}")),
        });
    };
    let cancelled = mark("cancel");
    let script = format!("(busybox setsid sh -c 'sleep 1000; true' {cancelled} &); sleep 1000; true");
    let id = begin(&fleet, &cancelled, &script);
    fleet.ok(&["command", "cancel", &id]);
    assert_eq!(outcome(&fleet, &id)["status"], "cancelled");
    gone(&cancelled);

    let survivor = mark("survive");
    let id = begin(&fleet, &survivor, "sleep 4; echo survived; exit 5");
    fleet.kill();
    fleet.again();
    let ended = outcome(&fleet, &id);
    assert_eq!(ended["exit"]["code"], 5, "{ended}");

    let left = mark("stop");
    let id = begin(&fleet, &left, "sleep 1000; true");
    fleet.ok(&["container", "stop", "default/shop"]);
    assert_eq!(outcome(&fleet, &id)["exit"], json!({"signal": 9}));
    gone(&left);
    fleet.unit_in_phase("default/shop", "stopped");
    fleet.ok(&["container", "run", "default/shop"]);
    fleet.unit_in_phase("default/shop", "running");
    assert_eq!(fleet.ok(&inside(&[], &["echo", "again"])), "again\n");
}

#[test]
fn a_daemon_stays_inside_and_ends_with_its_container() {
    let (_podman, mut fleet, first) = stage(json!({}));
    let mark = mark("daemon");
    let script = format!(
        "echo \"hello $COLOUR as $(id -u)\"; (busybox setsid sh -c 'while :; do sleep 1; done' {mark} &); \
         trap 'exit 0' TERM; while :; do sleep 0.05; done"
    );
    let args = ["--daemon", "--env", "COLOUR=blue", "--user", "shop", "--cwd", "/srv", "--shell"];
    let name = fleet.ok(&inside(&args, &[&script])).trim().to_owned();
    assert!(name.starts_with("default/exec-"), "{name}");
    let unit = fleet.unit_in_phase(&name, "running");
    assert_eq!(unit["desired"]["spec"]["container"], "default/shop", "{unit}");
    let main = pid(&unit);
    let namespace = |pid: Pid| fs::read_link(format!("/proc/{pid}/ns/pid")).unwrap();
    assert_eq!(namespace(main), namespace(first));
    eventually("its log", || {
        let log = fleet.muster(&["yuno", "logs", &name]).stdout;
        if log.contains("hello blue as 700") { Ok(()) } else { Err(log) }
    });
    fleet.kill();
    fleet.again();
    assert_eq!(pid(&fleet.unit_in_phase(&name, "running")), main, "it did not notice");
    eventually("what it forked", || if marked(&mark).len() >= 2 { Ok(()) } else { Err("not yet".to_owned()) });
    fleet.ok(&["yuno", "stop", &name]);
    assert_eq!(fleet.unit_in_phase(&name, "stopped")["observed"]["exit"], json!({"code": 0}));
    eventually("the end of all", || match marked(&mark) {
        pids if pids.is_empty() => Ok(()),
        pids => Err(format!("{pids:?}")),
    });
    fleet.ok(&["unit", "rm", &name]);

    let other = fleet.ok(&inside(&["--daemon"], &["sleep", "1000"])).trim().to_owned();
    fleet.unit_in_phase(&other, "running");
    fleet.ok(&["container", "restart", "default/shop"]);
    let unit = fleet.unit_in_phase(&other, "failed");
    assert_eq!(unit["observed"]["exit"], json!({"signal": 9}), "{unit}");
    fleet.unit_in_phase("default/shop", "running");
    fleet.ok(&["unit", "rm", &other]);
}

#[test]
fn a_batch_runs_inside_and_outside() {
    let (_podman, fleet, _) = stage(json!({}));
    let steps = json!([
        {"shell": "echo $(id -u) > /dev/shm/mark", "user": "shop"},
        {"argv": ["cat", "/dev/shm/mark"]},
        {"argv": ["cat", "/etc/passwd"]},
        {"argv": ["false-name"]},
    ]);
    let steps = file(&fleet.home, "steps.json", &steps.to_string());
    let run = fleet.muster(&["unit", "exec", "default/shop", "--batch", &steps]).expect_code(1);
    assert_eq!(run.stdout, "700\nroot:x:0:0::/:/bin/sh\nshop:x:700:700::/:/bin/sh\n");
    assert!(run.stderr.contains("false-name") && run.stderr.contains("default/shop"), "{run:?}");
    let mixed = json!([{"shell": "test ! -e /bin/busybox.none && hostname"}, {"argv": ["id", "-u", "shop"], "container": "default/shop"}]);
    let mixed = file(&fleet.home, "mixed.json", &mixed.to_string());
    assert!(fleet.ok(&["exec", "--batch", &mixed]).ends_with("700\n"));
}

#[test]
fn invalid_command_inside_is_refused() {
    let (_podman, fleet, _) = stage(json!({}));
    let script = file(&fleet.home, "server", "#!/bin/sh\nwhile :; do sleep 1; done\n");
    fleet.ok(&["artifact", "create", &script, "--role", "server", "--version", "1"]);
    fleet.ok(&["yuno", "create", "default/till", "--artifact", "server", "--run"]);
    fleet.unit_in_phase("default/till", "running");
    let refused = |options: &[&str], argv: &[&str], code: &str, words: &str| {
        fleet.muster(&[&["unit", "exec"], options, &["--"], argv].concat()).expect_code(3).expect_stderr(words);
        let id = fleet.json(&["command", "ls"])[0]["id"].as_str().unwrap().to_owned();
        let shown = fleet.json(&["command", "show", &id]);
        assert_eq!(shown["hosts"][0]["outcome"]["value"]["code"], code, "{shown}");
    };
    let shop = ["default/shop"];
    let other = |unit: &str| fleet.muster(&["unit", "exec", unit, "--", "true"]);
    other("default/none").expect_code(3).expect_stderr("there is no unit default/none");
    other("default/till").expect_code(2).expect_stderr("default/till is a yuno, which has no `exec`");
    refused(
        &[&shop[..], &["--user", "daemon"]].concat(),
        &["true"],
        "unknown_user",
        "no user \"daemon\" in default/shop",
    );
    refused(&[&shop[..], &["--cwd", "/none"]].concat(), &["true"], "no_such_folder", "/none");
    refused(&shop, &["/none"], "no_such_file", "/none");
    refused(&shop, &["dpkg"], "no_such_file", "no program \"dpkg\"");
    refused(&shop, &["/etc/passwd"], "not_executable", "/etc/passwd");
    fleet.muster(&["unit", "exec", "shop", "--", "true"]).expect_code(2);
    refused(&[&shop[..], &["--daemon"]].concat(), &["/none"], "no_such_file", "/none in default/shop");
    refused(&[&shop[..], &["--daemon"]].concat(), &["/etc/passwd"], "not_executable", "/etc/passwd in default/shop");
    refused(
        &[&shop[..], &["--daemon", "--cwd", "/none"]].concat(),
        &["true"],
        "no_such_folder",
        "/none in default/shop",
    );
    fleet.ok(&["container", "freeze", "default/shop"]);
    refused(&shop, &["true"], "conflict", "default/shop is frozen");
    fleet.ok(&["container", "thaw", "default/shop"]);
    fleet.ok(&["container", "stop", "default/shop"]);
    fleet.unit_in_phase("default/shop", "stopped");
    refused(&shop, &["true"], "conflict", "default/shop is not running: its phase is stopped");
}

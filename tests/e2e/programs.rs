//! Real programs as yunos, unchanged; and programs that misbehave.

use std::{
    cell::RefCell,
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::Command,
    time::Duration,
};

use muster_shim::process_identity;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::{
    fleet::{Fleet, eventually, file},
    servers::free_port,
};

fn add(fleet: &Fleet, name: &str, content: &str) {
    let path = file(&fleet.home, name, content);
    fleet.ok(&["artifact", "create", &path, "--role", name, "--version", "1"]);
}

/// Makes a program of this host an artifact, as it is.
fn add_program(fleet: &Fleet, name: &str, path: &str) {
    let real = fs::canonicalize(path).unwrap_or_else(|error| panic!("{path}: {error} (tests/run installs it)"));
    fleet.ok(&["artifact", "create", real.to_str().unwrap(), "--role", name, "--version", "1"]);
}

fn create(fleet: &Fleet, name: &str, more: &[&str]) -> Value {
    let unit = format!("default/{name}");
    fleet.ok(&[&["yuno", "create", &unit, "--artifact", name, "--run"], more].concat());
    fleet.unit_in_phase(&unit, "running")
}

/// Stops it, and gives what is observed then.
fn stop(fleet: &Fleet, name: &str) -> Value {
    let unit = format!("default/{name}");
    fleet.ok(&["yuno", "stop", &unit]);
    fleet.unit_in_phase(&unit, "stopped")["observed"].clone()
}

fn pid(unit: &Value) -> i32 {
    unit["observed"]["pid"].as_i64().unwrap() as i32
}

fn is_alive(pid: i32) -> bool {
    process_identity::stat(pid).is_some_and(|stat| !stat.is_dead())
}

/// Kills the main process and waits for the next.
fn kill_and_wait(fleet: &Fleet, name: &str, pid: i32) -> i32 {
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    let unit = fleet.unit(&format!("default/{name}"), |unit| {
        unit["observed"]["phase"] == "running" && unit["observed"]["pid"] != pid
    });
    self::pid(&unit)
}

/// Says something on a connection, again and again until the answer holds `wanted`.
#[track_caller]
fn says(port: u16, question: &str, wanted: &str) -> String {
    eventually(wanted, || {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(("127.0.0.1", port))?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            stream.write_all(question.as_bytes())?;
            let mut answer = Vec::new();
            let mut piece = [0; 4096];
            while !String::from_utf8_lossy(&answer).contains(wanted) {
                match stream.read(&mut piece)? {
                    0 => break,
                    length => answer.extend_from_slice(&piece[..length]),
                }
            }
            Ok(String::from_utf8_lossy(&answer).into_owned())
        };
        let answer = ask().map_err(|error| error.to_string())?;
        if answer.contains(wanted) { Ok(answer) } else { Err(answer) }
    })
}

const GET: &str = "GET /hello.txt HTTP/1.0\r\nHost: till\r\n\r\n";

/// The folder of a unit.
fn folder(fleet: &Fleet, name: &str) -> PathBuf {
    fleet.data().join("agent/units/default").join(name)
}

fn written(fleet: &Fleet, name: &str, file: &str) -> String {
    fs::read_to_string(folder(fleet, name).join("work").join(file)).unwrap_or_default()
}

/// The process ids that a program has written, once there are so many.
fn pids(fleet: &Fleet, name: &str, count: usize) -> Vec<i32> {
    eventually("process ids", || {
        let text = written(fleet, name, "pids");
        let pids: Vec<i32> = text.lines().filter_map(|line| line.parse().ok()).collect();
        if pids.len() >= count && text.ends_with('\n') { Ok(pids) } else { Err(text) }
    })
}

#[track_caller]
fn all_end(pids: &[i32]) {
    eventually("an end of all that it started", || {
        let left: Vec<_> = pids.iter().filter(|pid| is_alive(**pid)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
}

#[test]
fn redis_notifies_readiness_and_keeps_data() {
    let fleet = Fleet::start();
    add_program(&fleet, "redis", "/usr/bin/redis-server");
    let port = free_port().to_string();
    let mut more = vec!["--notify", "--start-timeout", "60s"];
    for arg in ["--port", &port, "--bind", "127.0.0.1", "--supervised", "systemd", "--appendonly", "yes"] {
        more.extend(["--arg", arg]);
    }
    let unit = create(&fleet, "redis", &more);
    let port = port.parse().unwrap();
    says(port, "SET till 7\r\n", "+OK");
    kill_and_wait(&fleet, "redis", pid(&unit));
    says(port, "GET till\r\n", "7");
    // In order: it says goodbye, and writes what it has.
    assert_eq!(stop(&fleet, "redis")["exit"]["code"], 0);
    fleet.ok(&["yuno", "run", "default/redis"]);
    says(port, "GET till\r\n", "7");
    stop(&fleet, "redis");
}

#[test]
fn nginx_with_its_workers() {
    let fleet = Fleet::start();
    add_program(&fleet, "nginx", "/usr/sbin/nginx");
    let port = free_port();
    let root = fleet.home.path().join("www");
    fs::create_dir(&root).unwrap();
    fs::write(root.join("hello.txt"), "welcome to the till").unwrap();
    let conf = format!(
        "daemon off; worker_processes 2; pid nginx.pid; error_log stderr;
         events {{ worker_connections 32; }}
         http {{ access_log /dev/stdout; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
                 uwsgi_temp_path uwsgi; scgi_temp_path scgi;
                 server {{ listen 127.0.0.1:{port}; root {}; }} }}\n",
        root.display()
    );
    if nix::unistd::geteuid().is_root() {
        // Its workers are somebody else, who must find the way.
        use std::os::unix::fs::PermissionsExt;
        for folder in [fleet.home.path(), &root] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
    let conf = file(&fleet.home, "nginx.conf", &conf);
    let work = folder(&fleet, "nginx").join("work");
    let prefix = format!("{}/", work.display());
    let more = ["--arg=-p", "--arg", &prefix, "--arg=-c", "--arg", &conf, "--stop-signal", "quit"];
    let unit = create(&fleet, "nginx", &more);
    says(port, GET, "welcome to the till");
    let workers = |master: i32| -> Vec<i32> {
        let all = process_identity::pids().unwrap();
        all.into_iter().filter(|pid| process_identity::stat(*pid).is_some_and(|stat| stat.ppid == master)).collect()
    };
    let first = workers(pid(&unit));
    assert_eq!(first.len(), 2);
    // The next master finds its port free, for nothing is left of the one before.
    let second = kill_and_wait(&fleet, "nginx", pid(&unit));
    all_end(&first);
    says(port, GET, "welcome to the till");
    let all = [workers(second), vec![second]].concat();
    assert_eq!(stop(&fleet, "nginx")["exit"]["code"], 0);
    all_end(&all);
    let log = fleet.ok(&["yuno", "logs", "default/nginx"]);
    assert!(log.contains("GET /hello.txt"), "{log}");
}

#[test]
fn mosquitto_carries_messages() {
    let fleet = Fleet::start();
    add_program(&fleet, "mosquitto", "/usr/sbin/mosquitto");
    let port = free_port().to_string();
    let conf = format!("listener {port} 127.0.0.1\nallow_anonymous true\nlog_dest stdout\n");
    let conf = file(&fleet.home, "mosquitto.conf", &conf);
    create(&fleet, "mosquitto", &["--arg=-c", "--arg", &conf]);
    let publish = || {
        let retained = ["-h", "127.0.0.1", "-p", &port, "-t", "till", "-r", "-m", "7"];
        Command::new("mosquitto_pub").args(retained).output().unwrap().status.success()
    };
    eventually("a publish", || if publish() { Ok(()) } else { Err("refused".to_owned()) });
    let heard = Command::new("mosquitto_sub")
        .args(["-h", "127.0.0.1", "-p", &port, "-t", "till", "-C", "1", "-W", "30"])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&heard.stdout), "7\n");
    assert_eq!(stop(&fleet, "mosquitto")["exit"]["code"], 0);
}

#[test]
fn python_server_is_restarted_after_any_crash() {
    let fleet = Fleet::start();
    let port = free_port();
    let script =
        format!("#!/bin/sh\necho welcome > hello.txt\nexec python3 -u -m http.server --bind 127.0.0.1 {port}\n");
    add(&fleet, "python", &script);
    let unit = create(&fleet, "python", &[]);
    says(port, GET, "welcome");
    let next = kill_and_wait(&fleet, "python", pid(&unit));
    says(port, GET, "welcome");
    let observed = stop(&fleet, "python");
    assert_eq!(observed["exit"]["signal"], 15, "it does not catch SIGTERM: {observed}");
    assert!(!is_alive(next));
    assert!(fleet.ok(&["yuno", "logs", "default/python"]).contains("GET /hello.txt"));
}

#[test]
fn one_that_ignores_sigterm_is_killed_after_its_grace() {
    let fleet = Fleet::start();
    add(&fleet, "stubborn", "#!/bin/sh\ntrap '' TERM INT HUP QUIT\necho on\nwhile :; do sleep 1; done\n");
    let unit = create(&fleet, "stubborn", &["--grace", "1s"]);
    eventually("its log", || {
        let log = fleet.ok(&["yuno", "logs", "default/stubborn"]);
        if log == "on\n" { Ok(()) } else { Err(log) }
    });
    assert_eq!(stop(&fleet, "stubborn")["exit"]["signal"], 9);
    assert!(!is_alive(pid(&unit)));
}

#[test]
fn forked_children_are_killed() {
    let fleet = Fleet::start();
    // Children, and children of children, of which nobody hears again; one of them will not end when it is asked.
    let forgets = "#!/bin/sh
for n in 1 2 3; do
    (sh -c 'echo $$ >> pids; trap \"\" TERM; while :; do sleep 1; done' &)
done
echo $$ >> pids
exec sleep 1000
";
    add(&fleet, "forgets", forgets);
    let unit = create(&fleet, "forgets", &["--grace", "1s"]);
    let first = pids(&fleet, "forgets", 4);
    // The main process alone dies: what it left does not meet the next.
    kill_and_wait(&fleet, "forgets", pid(&unit));
    all_end(&first);
    let all = pids(&fleet, "forgets", 8);
    stop(&fleet, "forgets");
    all_end(&all);
}

#[test]
fn double_forking_daemon_is_found() {
    let fleet = Fleet::start();
    let daemon = "#!/bin/sh
setsid sh -c '(setsid sh -c \"echo \\$\\$ >> pids; trap : TERM HUP; while :; do sleep 1; done\" &)' &
echo $$ >> pids
exec sleep 1000
";
    add(&fleet, "daemon", daemon);
    create(&fleet, "daemon", &["--grace", "1s"]);
    let all = pids(&fleet, "daemon", 2);
    stop(&fleet, "daemon");
    all_end(&all);

    // One that does nothing else has ended when its parent has: it backs off, and no daemon is left over.
    let double = "#!/bin/sh
setsid sh -c '(setsid sh -c \"echo \\$\\$ >> pids; exec sleep 1000\" &)'
while ! [ -s pids ]; do :; done
exit 0
";
    add(&fleet, "double", double);
    fleet.muster(&["yuno", "create", "default/double", "--artifact", "double", "--run", "--no-wait"]);
    let observed = fleet.unit_in_phase("default/double", "backoff")["observed"].clone();
    assert_eq!(observed["exit"]["code"], 0);
    all_end(&pids(&fleet, "double", 1));
    stop(&fleet, "double");
}

#[test]
fn oom_affects_only_its_unit() {
    let fleet = Fleet::start();
    // Without a limit that holds it ends by itself, and not the machine.
    let eater = "#!/usr/bin/python3
eaten = []
for n in range(256):
    eaten.append(bytearray(b'x' * 1048576))
raise SystemExit(3)
";
    add(&fleet, "eater", eater);
    let create = ["yuno", "create", "default/eater", "--artifact", "eater", "--memory", "48M", "--restart", "never"];
    fleet.muster(&[&create[..], &["--run", "--no-wait"]].concat());
    let observed = fleet.unit_in_phase("default/eater", "failed")["observed"].clone();
    if !observed["unsupported"].is_null() {
        eprintln!("skipped: no limit of memory can be had here: {}", observed["unsupported"]);
        assert_eq!(observed["exit"]["code"], 3);
        return;
    }
    assert_eq!((observed["exit"]["signal"].as_i64(), observed["oom_killed"].as_bool()), (Some(9), Some(true)));
    // Everybody else goes on.
    fleet.ok(&["exec", "--", "true"]);
}

#[test]
fn endless_log_is_bounded() {
    let fleet = Fleet::start();
    add(&fleet, "prints", "#!/bin/sh\nexec yes 'a line that is printed without end and without need'\n");
    create(&fleet, "prints", &["--log-size", "64K", "--log-keep", "2"]);
    let run = folder(&fleet, "prints").join("run");
    let size = || -> u64 {
        let entries = fs::read_dir(&run).unwrap().flatten();
        let logs = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("log"));
        logs.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum()
    };
    eventually("a third file", || if run.join("log.2").exists() { Ok(()) } else { Err(size().to_string()) });
    for _ in 0..20 {
        let now = size();
        assert!(now <= 4 * 65_536, "three files of 64 KiB, and one that is being rotated: {now} bytes");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!run.join("log.3").exists());
    // It can still be read, and ended.
    let log = fleet.ok(&["yuno", "logs", "default/prints", "-n", "3"]);
    assert_eq!(log.lines().count(), 3);
    stop(&fleet, "prints");
}

#[test]
fn unready_program_never_runs() {
    let fleet = Fleet::start();
    add(&fleet, "silent", "#!/bin/sh\necho $$ >> pids\nexec sleep 1000\n");
    let create = ["yuno", "create", "default/silent", "--artifact", "silent", "--run", "--no-wait"];
    fleet.muster(&[&create[..], &["--notify", "--start-timeout", "1s", "--restart", "never"]].concat());
    let seen = RefCell::new(Vec::new());
    let unit = fleet.unit("default/silent", |unit| {
        seen.borrow_mut().push(unit["observed"]["phase"].as_str().unwrap_or_default().to_owned());
        unit["observed"]["phase"] == "failed"
    });
    let seen = seen.into_inner();
    assert!(!seen.contains(&"running".to_owned()), "{seen:?}");
    let error = unit["observed"]["error"]["message"].as_str().unwrap_or_default();
    assert!(error.contains("was not up within its start timeout"), "it shows why: {unit}");
    all_end(&pids(&fleet, "silent", 1));
}

#[test]
fn crash_loop_backs_off_and_is_held() {
    let mut fleet = Fleet::start();
    add(&fleet, "crashes", "#!/bin/sh\necho $$ >> starts\necho it went wrong >&2\nexit 3\n");
    fleet.muster(&["yuno", "create", "default/crashes", "--artifact", "crashes", "--run", "--no-wait"]);
    let unit = fleet.unit_in_phase("default/crashes", "backoff");
    assert_eq!((unit["observed"]["attempts"].as_i64(), unit["observed"]["exit"]["code"].as_i64()), (Some(3), Some(3)));
    let starts = || written(&fleet, "crashes", "starts").lines().count();
    assert_eq!(starts(), 4, "one, and three at once after it");
    assert!(fleet.ok(&["yuno", "show", "default/crashes"]).contains("it went wrong"), "its last lines");

    // Two days later.
    let database = fleet.data().join("agent/agent.db");
    fleet.stop();
    let later = "UPDATE unit SET observed = json_set(observed, '$.attempts', 199, '$.retry_ms', 1)";
    let edited = Command::new("sqlite3").arg(&database).arg(later).output().unwrap();
    assert!(edited.status.success(), "{edited:?}");
    fleet.again();
    let unit = fleet.unit("default/crashes", |unit| unit["hold"]["reason"] == "broken");
    assert_eq!(unit["observed"]["phase"], "failed", "{unit}");
    let starts = written(&fleet, "crashes", "starts").lines().count();
    // It stays so, whoever comes and goes.
    fleet.stop();
    fleet.again();
    fleet.unit("default/crashes", |unit| unit["hold"]["reason"] == "broken");
    assert_eq!(written(&fleet, "crashes", "starts").lines().count(), starts);
    // To run it is a new try.
    fleet.muster(&["yuno", "run", "default/crashes", "--no-wait"]).expect_code(0);
    eventually("a new attempt", || match written(&fleet, "crashes", "starts").lines().count() {
        now if now > starts => Ok(()),
        now => Err(now.to_string()),
    });
}

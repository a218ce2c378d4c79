//! Replacing a revision without a break: `--replace start-first`.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use muster_shim::process_identity;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::fleet::{Fleet, eventually, file};

/// A web server that shares its port, and says which version it is. It is up when it listens, ends when it has answered
/// whoever is connected, and takes a while for both.
const SERVER: &str = r#"#!/usr/bin/env python3
import http.server, os, signal, socket, sys, threading, time

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"VERSION %d" % os.getpid()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass

class Server(http.server.ThreadingHTTPServer):
    daemon_threads = False
    def server_bind(self):
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super().server_bind()

time.sleep(0.3)
server = Server(("127.0.0.1", int(sys.argv[1])), Handler)
signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
name = os.environ["NOTIFY_SOCKET"]
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"READY=1", "\0" + name[1:] if name[0] == "@" else name)
print("VERSION listens", flush=True)
server.serve_forever()
server.socket.setblocking(False)
while True:
    try: server.process_request(*server.socket.accept())
    except BlockingIOError: break
server.server_close()
"#;

/// It notes each of its starts, marks that it runs four times a second, and ends when it is asked.
const MARKER: &str = "#!/bin/sh
echo VERSION >> starts
trap 'echo VERSION ends; exit 0' TERM
echo VERSION began
while :; do echo VERSION $$ >> marks; sleep 0.1 & wait $!; done
";

/// It never ends by itself, and takes its time when it is asked.
const SLOW: &str = "#!/bin/sh
echo VERSION >> starts
trap 'sleep 2; exit 0' TERM
while :; do sleep 0.1 & wait $!; done
";

/// It says that it is up once it is told to by a file.
const WAITS: &str = r#"#!/usr/bin/env python3
import os, socket, time
open("starts", "a").write("VERSION\n")
while not os.path.exists("go"): time.sleep(0.05)
name = os.environ["NOTIFY_SOCKET"]
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"READY=1", "\0" + name[1:] if name[0] == "@" else name)
while True: time.sleep(1)
"#;

/// A fleet with versions of one artifact, the first of which runs as `default/till` and is verified. In a program VERSION
/// is its version.
fn fleet(programs: &[&str], more: &[&str]) -> Fleet {
    let fleet = Fleet::start();
    fleet.lease_own_ports();
    for (index, program) in programs.iter().enumerate() {
        let version = (index + 1).to_string();
        let path = file(&fleet.home, &format!("till{version}"), &program.replace("VERSION", &version));
        fleet.ok(&["artifact", "create", &path, "--role", "till", "--version", &version]);
    }
    let create = ["yuno", "create", "default/till", "--artifact", "till@1", "--update-order", "start-first"];
    fleet.ok(&[&create[..], &["--verify-after", "500ms", "--run"], more].concat());
    settled(&fleet);
    fleet
}

/// The unit, once it runs as it was verified, with nothing beside it.
fn settled(fleet: &Fleet) -> Value {
    fleet.unit("default/till", |unit| {
        let observed = &unit["observed"];
        observed["phase"] == "running"
            && observed["generation"] == unit["desired"]["generation"]
            && observed["verified"] == observed["revision"]
            && observed["beside"].is_null()
    })
}

fn upgrade(fleet: &Fleet, version: &str, more: &[&str]) -> crate::fleet::Run {
    let artifact = format!("till@{version}");
    fleet.muster(&[&["yuno", "upgrade", "default/till", "--artifact", &artifact], more].concat())
}

fn pid(unit: &Value) -> i32 {
    i32::try_from(unit["observed"]["pid"].as_i64().unwrap()).unwrap()
}

fn second_pid(unit: &Value) -> i32 {
    i32::try_from(unit["observed"]["beside"]["pid"].as_i64().unwrap()).unwrap()
}

fn is_alive(pid: i32) -> bool {
    process_identity::stat(pid).is_some_and(|stat| !stat.is_dead())
}

fn until_dead(pid: i32) {
    eventually("the end of a process", || if is_alive(pid) { Err(format!("{pid} lives")) } else { Ok(()) });
}

fn work(fleet: &Fleet) -> PathBuf {
    fleet.data().join("agent/units/default/till/work")
}

fn starts(fleet: &Fleet) -> String {
    fs::read_to_string(work(fleet).join("starts")).unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The unit, once another of it comes up beside what runs.
fn beside(fleet: &Fleet) -> Value {
    fleet.unit("default/till", |unit| unit["observed"]["beside"]["pid"].is_i64())
}

/// Somebody who asks a server again and again, and notes who answered, and each failure.
struct Client {
    stop: Arc<AtomicBool>,
    heard: Arc<Mutex<(Vec<String>, Vec<String>)>>,
    thread: Option<JoinHandle<()>>,
}

impl Client {
    fn start(port: u16) -> Self {
        let (stop, heard) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new((Vec::new(), Vec::new()))));
        let (at, notes) = (stop.clone(), heard.clone());
        let thread = thread::spawn(move || {
            while !at.load(Ordering::Relaxed) {
                match ask(port) {
                    Ok(answer) => notes.lock().unwrap().0.push(answer),
                    Err(error) => notes.lock().unwrap().1.push(error.to_string()),
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
        Self { stop, heard, thread: Some(thread) }
    }

    /// Who has answered, each once, in the order of their first answers; how many answers there were; and the failures.
    fn end(mut self) -> (Vec<String>, usize, Vec<String>) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        let (answers, failures) = self.heard.lock().unwrap().clone();
        let mut versions: Vec<String> = Vec::new();
        for answer in &answers {
            let version = answer.split(' ').next().unwrap_or_default().to_owned();
            if !versions.contains(&version) {
                versions.push(version);
            }
        }
        (versions, answers.len(), failures)
    }
}

fn ask(port: u16) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.contains(" 200 ") => Ok(body.to_owned()),
        _ => Err(std::io::Error::other(format!("answered {answer:?}"))),
    }
}

#[test]
fn replacement_answers_at_every_moment() {
    let fleet = fleet(&[SERVER, SERVER, SERVER], &["--notify", "--provide", "http", "--arg", "{port:http}"]);
    let before = settled(&fleet);
    let port = u16::try_from(before["observed"]["endpoints"][0]["port"].as_u64().unwrap()).unwrap();
    let client = Client::start(port);
    upgrade(&fleet, "2", &[]).expect_code(0);
    let after = settled(&fleet);
    assert_ne!(pid(&after), pid(&before));
    assert!(!is_alive(pid(&before)));
    assert_eq!(after["observed"]["endpoints"], before["observed"]["endpoints"]);
    // And once more, back into the first slot; a restart goes the same way.
    upgrade(&fleet, "3", &[]).expect_code(0);
    let third = settled(&fleet);
    fleet.ok(&["yuno", "restart", "default/till"]);
    let fourth = settled(&fleet);
    assert_ne!(pid(&fourth), pid(&third));
    let (versions, answers, failures) = client.end();
    assert_eq!(versions, ["1", "2", "3"]);
    eprintln!("{answers} answers in four lives, {} failures", failures.len());
    assert!(answers > 100 && failures.is_empty(), "{answers} answers, and {failures:?}");
    // The log tells of all, in order.
    let log = fleet.ok(&["yuno", "logs", "default/till"]);
    let told: Vec<&str> = log.lines().filter(|line| line.ends_with("listens")).collect();
    assert_eq!(told, ["1 listens", "2 listens", "3 listens", "3 listens"]);
}

#[test]
fn unshared_port_stays_with_old_process() {
    let selfish = SERVER.replace("SO_REUSEPORT, 1", "SO_REUSEPORT, 0");
    let fleet = fleet(&[&selfish, &selfish], &["--notify", "--provide", "http", "--arg", "{port:http}"]);
    let before = settled(&fleet);
    let port = u16::try_from(before["observed"]["endpoints"][0]["port"].as_u64().unwrap()).unwrap();
    let client = Client::start(port);
    upgrade(&fleet, "2", &[]).expect_code(1).expect_stderr("it rolled back to revision");
    let after = settled(&fleet);
    assert_eq!(pid(&after), pid(&before));
    let (versions, _, failures) = client.end();
    assert_eq!((versions, failures), (vec!["1".to_owned()], vec![]));
    let lines = after["observed"]["rolled_back"]["last_lines"].as_str().unwrap();
    assert!(lines.contains("in use"), "{lines}");
}

#[test]
fn failed_candidate_leaves_old_process() {
    // One that ends at once, one that never says that it is up, and one that cannot even be started.
    let ends = "#!/bin/sh\necho VERSION >> starts\necho no such table: till\nexit 2\n";
    let speaks = WAITS.replace("while not", "if False and not");
    let fleet = fleet(&[&speaks, ends, WAITS, "no program\n", &speaks], &["--notify", "--healthy-within", "3s"]);
    let before = settled(&fleet);
    for (version, why) in
        [("2", "exit code 2"), ("3", "it did not come up within 3 s"), ("4", "not a program for this machine")]
    {
        upgrade(&fleet, version, &[]).expect_code(1).expect_stderr("it rolled back to revision");
        let unit = settled(&fleet);
        assert_eq!(pid(&unit), pid(&before), "version {version}");
        assert_eq!(unit["observed"]["revision"], before["observed"]["revision"]);
        let back = &unit["observed"]["rolled_back"];
        assert!(back["error"].to_string().contains(why), "{back}");
    }
    // Version 2 had its immediate restarts.
    assert_eq!(starts(&fleet), "1 2 2 2 2 3");
    // What works after all takes over.
    upgrade(&fleet, "5", &[]).expect_code(0);
    assert_ne!(pid(&settled(&fleet)), pid(&before));
    assert!(!is_alive(pid(&before)));
}

/// A fleet with a unit that runs, of which the next version comes up when a file is there.
fn patient() -> (Fleet, PathBuf, Value) {
    let fleet = Fleet::start();
    for version in ["1", "2", "3"] {
        let path = file(&fleet.home, &format!("till{version}"), &WAITS.replace("VERSION", version));
        fleet.ok(&["artifact", "create", &path, "--role", "till", "--version", version]);
    }
    let create =
        ["yuno", "create", "default/till", "--artifact", "till@1", "--update-order", "start-first", "--notify"];
    fleet.ok(&[&create[..], &["--verify-after", "500ms", "--healthy-within", "10m", "--run", "--no-wait"]].concat());
    fleet.unit("default/till", |unit| unit["observed"]["pid"].is_i64());
    let pass = work(&fleet).join("go");
    fs::write(&pass, "").unwrap();
    let unit = settled(&fleet);
    fs::remove_file(&pass).unwrap();
    (fleet, pass, unit)
}

#[test]
fn killed_agent_finds_both_instances() {
    let (mut fleet, pass, before) = patient();
    upgrade(&fleet, "2", &["--no-wait"]).expect_code(0);
    let both = beside(&fleet);
    let candidate = second_pid(&both);
    assert_eq!((pid(&both), both["observed"]["beside"]["leaving"].is_null()), (pid(&before), true));
    assert!(fleet.ok(&["unit", "ls"]).contains("being replaced"));
    let shown = fleet.ok(&["unit", "show", "default/till"]);
    assert!(shown.contains("starts, and takes over when it is up") && shown.contains("start first"), "{shown}");
    for _ in 0..2 {
        fleet.kill();
        fleet.again();
        let both = beside(&fleet);
        assert_eq!((pid(&both), second_pid(&both)), (pid(&before), candidate));
    }
    // It comes up while the agent is away.
    fleet.kill();
    fs::write(&pass, "").unwrap();
    fleet.again();
    let after = settled(&fleet);
    assert_eq!(pid(&after), candidate);
    until_dead(pid(&before));
    // What runs in the second slot is found again, too.
    fleet.kill();
    fleet.again();
    assert_eq!(pid(&settled(&fleet)), candidate);
    assert_eq!(starts(&fleet), "1 2");
}

#[test]
fn killed_agent_continues_ending_the_old_instance() {
    let mut fleet = fleet(&[SLOW, MARKER], &[]);
    let before = settled(&fleet);
    upgrade(&fleet, "2", &["--no-wait"]).expect_code(0);
    let both = fleet.unit("default/till", |unit| unit["observed"]["beside"]["leaving"] == true);
    assert_eq!(second_pid(&both), pid(&before));
    fleet.kill();
    fleet.again();
    let after = settled(&fleet);
    assert_eq!(pid(&after), pid(&both));
    until_dead(pid(&before));
    assert_eq!(starts(&fleet), "1 2");
}

#[test]
fn stop_ends_both_instances_and_hold_the_new_one() {
    let (fleet, pass, before) = patient();
    upgrade(&fleet, "2", &["--no-wait"]).expect_code(0);
    let candidate = second_pid(&beside(&fleet));
    fleet.ok(&["unit", "hold", "default/till"]);
    until_dead(candidate);
    let held = fleet.unit("default/till", |unit| unit["observed"]["beside"].is_null());
    assert_eq!(pid(&held), pid(&before));
    fleet.ok(&["unit", "unhold", "default/till", "--no-wait"]);
    let candidate = second_pid(&beside(&fleet));
    // A signal goes to what the unit is known by.
    fleet.ok(&["yuno", "signal", "CONT", "default/till"]);
    fleet.ok(&["yuno", "stop", "default/till"]);
    assert!(!is_alive(pid(&before)) && !is_alive(candidate));
    let stopped = fleet.unit("default/till", |unit| unit["observed"]["phase"] == "stopped");
    assert_eq!(stopped["observed"]["beside"], Value::Null);
    fs::write(&pass, "").unwrap();
    fleet.ok(&["yuno", "run", "default/till"]);
    settled(&fleet);
    fleet.ok(&["unit", "retire", "default/till"]);
    fleet.ok(&["yuno", "rm", "default/till"]);
    eventually("no folder", || if work(&fleet).exists() { Err("it is there".to_owned()) } else { Ok(()) });
}

#[test]
fn killed_instance_is_not_missed() {
    let (fleet, pass, before) = patient();
    upgrade(&fleet, "2", &["--no-wait"]).expect_code(0);
    let first = second_pid(&beside(&fleet));
    // The new one: its shim starts it again, and what runs goes on.
    kill(Pid::from_raw(first), Signal::SIGKILL).unwrap();
    let both = fleet.unit("default/till", |unit| {
        unit["observed"]["beside"]["pid"].as_i64().is_some_and(|pid| pid != i64::from(first))
    });
    assert_eq!(pid(&both), pid(&before));
    // The old one with its shim's budget: four times it is there again, and then the new one takes over as it is.
    eventually("the new one takes over", || {
        let unit: Value = fleet.json(&["unit", "show", "default/till"]);
        if unit["observed"]["revision"] == unit["desired"]["revision"] {
            return Ok(());
        }
        if let Some(pid) = unit["observed"]["pid"].as_i64() {
            let _ = kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGKILL);
        }
        Err(unit.to_string())
    });
    fs::write(&pass, "").unwrap();
    let after = settled(&fleet);
    assert_eq!(pid(&after), second_pid(&both));
}

#[test]
fn program_without_notify_is_up_after_staying_up() {
    let fleet = fleet(&[MARKER, MARKER], &[]);
    let before = settled(&fleet);
    upgrade(&fleet, "2", &[]).expect_code(0);
    let after = settled(&fleet);
    // Both have marked the same time: no moment was without one.
    let marks = fs::read_to_string(work(&fleet).join("marks")).unwrap();
    let of = |wanted: i32| {
        let lines = marks.lines().enumerate();
        lines.filter(move |(_, line)| line.ends_with(&format!(" {wanted}"))).map(|(at, _)| at).collect::<Vec<_>>()
    };
    let (old, new) = (of(pid(&before)), of(pid(&after)));
    assert!(new.first().unwrap() < old.last().unwrap(), "{marks}");
    let log = fleet.ok(&["yuno", "logs", "default/till"]);
    for line in ["1 began", "2 began", "1 ends"] {
        assert!(log.lines().any(|found| found == line), "{line}: {log}");
    }
}

#[test]
fn new_instance_plays_after_old_one_ended() {
    let fleet = Fleet::start();
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/yuno.py");
    // It notes whenever it is told to play, and takes its time to end.
    let note = |what: &str| format!("open('trail', 'a').write(f'{what} {{os.getpid()}}\\n')");
    let program = fs::read_to_string(sample).unwrap();
    let program = program.replace("print(name, flush=True)", &note("{name}"));
    let program =
        program.replace("lambda *_: sys.exit(0)", &format!("lambda *_: (time.sleep(1), {}, sys.exit(0))", note("end")));
    let path = file(&fleet.home, "sample", &program);
    fleet.ok(&["artifact", "create", &path, "--role", "sample", "--version", "1"]);
    let create =
        ["yuno", "create", "default/till", "--artifact", "sample", "--lines", "--update-order", "start-first", "--run"];
    fleet.ok(&create);
    fleet.ok(&["yuno", "play", "default/till"]);
    let before = fleet.unit_in_phase("default/till", "playing");
    fleet.ok(&["yuno", "restart", "default/till"]);
    let after = fleet.unit_in_phase("default/till", "playing");
    let (old, new) = (pid(&before), pid(&after));
    assert_ne!(old, new);
    let trail = fs::read_to_string(work(&fleet).join("trail")).unwrap();
    assert_eq!(trail, format!("play {old}\nend {old}\nplay {new}\n"));
    assert_eq!(fleet.json(&["yuno", "stats", "default/till"])["default/till"]["ok"]["playing"], true);
}

#[test]
fn impossible_replacement_is_refused() {
    let fleet = Fleet::start();
    let path = file(&fleet.home, "till", MARKER);
    fleet.ok(&["artifact", "create", &path, "--role", "till", "--version", "1"]);
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let probe = format!("tcp:{free}");
    let create = ["yuno", "create", "default/till", "--artifact", "till@1", "--update-order", "start-first"];
    let run = fleet.muster(&[&create[..], &["--ready", &probe]].concat()).expect_code(3);
    run.expect_stderr("the old one may answer probes.ready");
    fleet
        .muster(&["yuno", "create", "default/till", "--artifact", "till@1", "--update-order", "at-once"])
        .expect_code(2);
    // It is no part of the revision, and changed in place.
    fleet.ok(&["yuno", "create", "default/till", "--artifact", "till@1", "--run"]);
    let before = fleet.unit_in_phase("default/till", "running");
    fleet.ok(&[&create[..], &["--run", "--replace"]].concat());
    let after = fleet.unit("default/till", |unit| unit["observed"]["generation"] == unit["desired"]["generation"]);
    assert_eq!((pid(&after), &after["desired"]["revision"]), (pid(&before), &before["desired"]["revision"]));
    assert_eq!(after["desired"]["spec"]["replace"], "start_first");
}

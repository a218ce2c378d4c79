//! Yunos that speak JSON lines: the three samples, asked through the command line.

use std::{
    fs,
    io::{Read, Write},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixStream},
    },
    path::Path,
    process::Command,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::fleet::{Fleet, eventually, file, waits};

/// The sample in Rust, which cargo builds when a test wants it.
pub(crate) fn rust_sample() -> String {
    let root = env!("CARGO_MANIFEST_DIR");
    let build =
        ["build", "--package", "muster-yuno", "--example", "yuno", "--locked", "--offline", "--message-format=json"];
    let output = Command::new(env!("CARGO")).args(build).current_dir(root).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let messages = String::from_utf8(output.stdout).unwrap();
    let mut built = messages.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let example = built.find(|message| message["target"]["name"] == "yuno" && message["executable"].is_string());
    example.unwrap()["executable"].as_str().unwrap().to_owned()
}

fn sample(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name).to_str().unwrap().to_owned()
}

fn add(fleet: &Fleet, role: &str, path: &str) {
    fleet.ok(&["artifact", "create", path, "--role", role, "--version", "1"]);
}

/// A fleet with the sample in Python as `default/sample`, which runs.
fn with_sample(more: &[&str]) -> Fleet {
    let fleet = Fleet::start();
    add(&fleet, "sample", &sample("yuno.py"));
    fleet.ok(&[&["yuno", "create", "default/sample", "--artifact", "sample", "--lines", "--run"], more].concat());
    fleet
}

fn pid(unit: &Value) -> Pid {
    Pid::from_raw(i32::try_from(unit["observed"]["pid"].as_i64().unwrap()).unwrap())
}

/// Waits until the log of a unit has a line so many times.
#[track_caller]
fn said(fleet: &Fleet, unit: &str, word: &str, times: usize) {
    eventually(word, || {
        let log = fleet.muster(&["yuno", "logs", unit]).stdout;
        if log.lines().filter(|line| *line == word).count() >= times { Ok(()) } else { Err(log) }
    });
}

/// The shim of a unit: only its command line names the unit's folder.
fn shim(fleet: &Fleet, unit: &str) -> Pid {
    let folder = fleet.data().canonicalize().unwrap().join("agent/units").join(unit).join("run");
    let names_it = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        let is_shim = words.first().is_some_and(|word| String::from_utf8_lossy(word).contains("/shim-"));
        is_shim && !waits(*pid) && words.get(1) == Some(&folder.as_os_str().as_encoded_bytes())
    };
    let entries = fs::read_dir("/proc").unwrap();
    let mut pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    Pid::from_raw(pids.find(names_it).unwrap())
}

fn variable(pid: Pid, name: &str) -> String {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
    let environment = String::from_utf8(environment).unwrap();
    let prefix = format!("{name}=");
    environment.split('\0').find_map(|variable| variable.strip_prefix(&prefix)).unwrap().to_owned()
}

#[test]
fn samples_play_and_answer() {
    let fleet = Fleet::start();
    add(&fleet, "rust", &rust_sample());
    add(&fleet, "python", &sample("yuno.py"));
    add(&fleet, "shell", &sample("yuno.sh"));
    for role in ["rust", "python", "shell"] {
        let unit = format!("default/{role}");
        fleet.ok(&["yuno", "create", &unit, "--artifact", role, "--lines", "--run"]);
        let shown = fleet.unit_in_phase(&unit, "running");
        assert!(shown["observed"]["can"].as_array().unwrap().contains(&json!("play")), "{shown}");
        fleet.ok(&["yuno", "play", &unit]);
        assert_eq!(fleet.unit_in_phase(&unit, "playing")["desired"]["run"], "playing");
        assert_eq!(fleet.json(&["yuno", "stats", &unit])[&unit]["ok"]["playing"], true);
        // What is so already is a success.
        fleet.ok(&["yuno", "play", &unit]);
        fleet.ok(&["yuno", "pause", &unit]);
        fleet.unit_in_phase(&unit, "running");
        assert_eq!(fleet.json(&["yuno", "stats", &unit])[&unit]["ok"]["playing"], false);
    }
    // What one has told unasked is shown as last known.
    let told = fleet.unit("default/rust", |unit| unit["stats"]["values"]["beats"].is_u64());
    assert!(told["stats"]["at_ms"].is_i64(), "{told}");
    let units = ["default/rust", "default/python", "default/shell"];
    let answers = fleet.muster(&[&["-o", "json", "yuno", "command"], &units[..], &["tempo", "bpm=90"]].concat());
    let answers: Value = serde_json::from_str(&answers.expect_code(1).stdout).unwrap();
    assert_eq!(answers["default/rust"], json!({"ok": {"bpm": 90}}));
    assert_eq!(answers["default/python"]["error"]["code"], "unknown");
    assert_eq!(answers["default/shell"]["error"]["code"], "unsupported");
    fleet.ok(&["yuno", "command", "default/rust", "tempo", "--json", r#"{"bpm": 91}"#]);
    let stats = fleet.json(&["yuno", "stats", "default/rust"]);
    assert_eq!(stats["default/rust"]["ok"]["bpm"], 91);
    for unit in units {
        fleet.ok(&["yuno", "stop", unit]);
    }
    // Nobody named a signal: with a channel it is SIGQUIT, which the one in Rust does not catch.
    let exit = |unit: &str| fleet.json(&["unit", "show", unit])["observed"]["exit"].clone();
    assert_eq!(units.map(exit), [json!({"signal": 3}), json!({"code": 0}), json!({"code": 0})]);
    fleet.muster(&["yuno", "play", "default/rust"]).expect_code(3).expect_stderr("run --play");
    fleet.ok(&["yuno", "run", "--play", "default/rust"]);
    fleet.unit_in_phase("default/rust", "playing");
}

#[test]
fn play_survives_agent_shim_and_yuno() {
    let mut fleet = with_sample(&[]);
    fleet.ok(&["yuno", "play", "default/sample"]);
    let first = pid(&fleet.unit_in_phase("default/sample", "playing"));
    said(&fleet, "default/sample", "play", 1);

    fleet.kill();
    fleet.again();
    said(&fleet, "default/sample", "play", 2);
    assert_eq!(pid(&fleet.unit_in_phase("default/sample", "playing")), first);

    kill(shim(&fleet, "default/sample"), Signal::SIGKILL).unwrap();
    said(&fleet, "default/sample", "play", 3);
    assert_eq!(pid(&fleet.unit_in_phase("default/sample", "playing")), first);
    assert_eq!(fleet.json(&["yuno", "stats", "default/sample"])["default/sample"]["ok"]["playing"], true);

    kill(first, Signal::SIGKILL).unwrap();
    said(&fleet, "default/sample", "play", 4);
    let unit = fleet.unit("default/sample", |unit| {
        unit["observed"]["phase"] == "playing" && unit["observed"]["pid"] != first.as_raw()
    });
    assert_eq!(unit["observed"]["attempts"], 1);
    fleet.ok(&["yuno", "pause", "default/sample"]);
    said(&fleet, "default/sample", "pause", 1);
}

#[test]
fn refused_play_is_reported() {
    let fleet = with_sample(&[]);
    fleet.ok(&["yuno", "command", "default/sample", "refuse"]);
    fleet.muster(&["yuno", "play", "default/sample"]).expect_code(1).expect_stderr("not_now: it was told to refuse");
    assert_eq!(fleet.unit_in_phase("default/sample", "running")["desired"]["run"], "playing");
    fleet.ok(&["yuno", "pause", "default/sample"]);
    assert!(fleet.unit_in_phase("default/sample", "running")["observed"]["error"].is_null());

    let plain = file(&fleet.home, "plain", "#!/bin/sh\nexec sleep 1000\n");
    add(&fleet, "plain", &plain);
    fleet.ok(&["yuno", "create", "default/plain", "--artifact", "plain", "--run"]);
    fleet.muster(&["yuno", "play", "default/plain"]).expect_code(3).expect_stderr("its channel is not `lines`");
    let mute = fs::read_to_string(sample("yuno.py")).unwrap().replace(r#"["play", "command", "stats"]"#, "[]");
    add(&fleet, "mute", &file(&fleet.home, "mute", &mute));
    fleet.ok(&["yuno", "create", "default/mute", "--artifact", "mute", "--lines", "--run"]);
    fleet.muster(&["yuno", "run", "--play", "default/mute"]).expect_code(1).expect_stderr("unsupported");
    fleet.unit_in_phase("default/mute", "running");
}

#[test]
fn question_to_many_has_a_deadline() {
    let fleet = with_sample(&[]);
    fleet.ok(&["yuno", "create", "default/deaf", "--artifact", "sample", "--lines", "--run"]);
    let deaf = fleet.unit_in_phase("default/deaf", "running");
    kill(pid(&deaf), Signal::SIGSTOP).unwrap();
    let both = ["default/sample", "default/deaf"];
    let words = [&["-o", "json", "yuno", "command", "--timeout", "3s"], &both[..], &["echo", "words=hello"]].concat();
    let answers: Value = serde_json::from_str(&fleet.muster(&words).expect_code(1).stdout).unwrap();
    assert_eq!(answers["default/sample"], json!({"ok": {"words": "hello"}}));
    assert_eq!(answers["default/deaf"]["error"]["code"], "deadline");
    let table = fleet.muster(&["yuno", "stats", "default/sample"]).expect_code(0).stdout;
    assert!(table.contains("default/sample") && table.contains("\"playing\":false"), "{table}");
    // The ledger has it, like any other command.
    let ledger = fleet.ok(&["command", "ls"]);
    assert!(
        ["\"echo\" to default/", "default/sample", "default/deaf"].iter().all(|part| ledger.contains(part)),
        "{ledger}"
    );
}

#[test]
fn restarted_agent_repeats_no_question() {
    let mut fleet = with_sample(&[]);
    fleet.unit_in_phase("default/sample", "running");
    let mut command = fleet.home.command();
    command.args(["yuno", "command", "--timeout", "20m", "default/sample", "hang"]);
    let mut asking = crate::fleet::Running::start(&mut command);
    let open = |fleet: &Fleet| fleet.json(&["command", "ls"])[0].clone();
    eventually("a command under way", || {
        let command = open(&fleet);
        if command["hosts"][0]["state"] == "running" { Ok(()) } else { Err(command.to_string()) }
    });
    fleet.kill();
    asking.wait_for_end(4, "");
    fleet.again();
    let lost = eventually("its end", || {
        let command = open(&fleet);
        if command["hosts"][0]["state"] == "done" { Ok(command) } else { Err(command.to_string()) }
    });
    assert_eq!(lost["hosts"][0]["outcome"]["value"]["status"], "lost", "{lost}");
    // It was asked once.
    let stats = fleet.json(&["yuno", "stats", "default/sample"]);
    assert!(stats["default/sample"]["ok"]["requests"].as_u64().unwrap() <= 4, "{stats}");
}

#[test]
fn strangers_are_refused_on_the_channel() {
    let fleet = with_sample(&[]);
    let unit = fleet.unit_in_phase("default/sample", "running");
    let (socket, token) = (variable(pid(&unit), "MUSTER_SOCKET"), variable(pid(&unit), "MUSTER_TOKEN"));
    let address = SocketAddr::from_abstract_name(socket.strip_prefix('@').unwrap()).unwrap();
    let mut stream = UnixStream::connect_addr(&address).unwrap();
    // It may have been closed before this is written.
    let _ = stream.write_all(format!("{}\n", json!({"hello": {"token": token, "protocol": 1}})).as_bytes());
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.contains("refused") && answer.contains("not belong to the unit"), "{answer}");
    fleet.ok(&["yuno", "stats", "default/sample"]);

    // One that is part of a unit, with a token of its own making.
    let guess = fs::read_to_string(sample("yuno.py")).unwrap().replace(r#"os.environ["MUSTER_TOKEN"]"#, r#""0" * 32"#);
    add(&fleet, "guess", &file(&fleet.home, "guess", &guess));
    let create = ["yuno", "create", "default/guess", "--artifact", "guess", "--lines", "--run", "--restart", "never"];
    fleet.muster(&create).expect_code(1);
    let unit = fleet.unit_in_phase("default/guess", "failed");
    assert!(unit["observed"]["last_lines"].as_str().unwrap().contains("refused: the token"), "{unit}");
}

/// What a process has in memory, in KiB.
fn resident_kib(pid: Pid) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn flood_of_lines_is_bounded() {
    let mut fleet = Fleet::start();
    let ready = "channel.ready = True\n    channel.say(ready={})\n";
    let flood = "    for number in range(300):\n        channel.say(stats={\"text\": \"x\" * 60000})\n        \
                 for again in range(50):\n            channel.say(answer={\"id\": str(again), \"ok\": number})\n    \
                 print(\"flooded\", flush=True)\n";
    let source = fs::read_to_string(sample("yuno.py")).unwrap();
    assert!(source.contains(ready));
    let source = source.replace(ready, &format!("{ready}{flood}"));
    add(&fleet, "flood", &file(&fleet.home, "flood", &source));
    let up = fleet.up().pid();
    let before = resident_kib(up);
    fleet.ok(&["yuno", "create", "default/flood", "--artifact", "flood", "--lines", "--run"]);
    said(&fleet, "default/flood", "flooded", 1);
    assert_eq!(fleet.json(&["yuno", "stats", "default/flood"])["default/flood"]["ok"]["requests"], 1);
    // 18 MB were said. What a test build grows by when it starts its first unit is part of this.
    let (after, shim) = (resident_kib(up), resident_kib(shim(&fleet, "default/flood")));
    assert!(after < before + 16 * 1024 && shim < 4 * 1024, "from {before} to {after} KiB; the shim {shim} KiB");
}

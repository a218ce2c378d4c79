//! Artifacts with their manifests, configs in layers, secrets, and what is removed.

use std::fs;

use serde_json::{Value, json};

use crate::fleet::{Fleet, eventually, file};

/// Prints its config whenever it is started or asked to reload it.
const TILL: &str = "#!/bin/sh\n\
    trap 'echo reloaded $(cat $MUSTER_CONFIG)' HUP\n\
    echo started $* with $(cat $MUSTER_CONFIG)\n\
    while :; do sleep 0.1; done\n";

fn manifest() -> Value {
    json!({
        "role": "till", "version": "1.0.0", "description": "The till", "args": ["--config", "{config}"],
        "provides": {"web": {"port": 8080, "protocol": "http"}},
        "config_schema": {"type": "object", "required": ["colour"], "properties": {"colour": {"type": "string"}}},
    })
}

fn config(fleet: &Fleet, id: &str, version: &str, document: &Value) {
    let path = file(&fleet.home, &format!("{id}-{version}.json"), &document.to_string());
    fleet.ok(&["config", "create", id, version, &path]);
}

fn log_until(fleet: &Fleet, words: &str) -> String {
    eventually(words, || {
        let log = fleet.muster(&["yuno", "logs", "default/till"]).stdout;
        if log.contains(words) { Ok(log) } else { Err(log) }
    })
}

/// Everything that any verb or file of the fleet shows, but for the unit's own files and the console's store.
fn shown(fleet: &Fleet) -> String {
    let verbs: [&[&str]; 9] = [
        &["config", "ls"],
        &["config", "show", "base@1"],
        &["config", "diff", "base@1", "base@2"],
        &["yuno", "config", "default/till"],
        &["yuno", "config", "--effective", "default/till"],
        &["unit", "show", "default/till"],
        &["command", "ls"],
        &["artifact", "show", "till"],
        &["unit", "ls"],
    ];
    let outputs = verbs.iter().flat_map(|verb| [fleet.ok(verb), fleet.ok(&[&["-o", "json"], *verb].concat())]);
    outputs.collect()
}

#[test]
fn layered_configs_merge_and_secrets_stay_hidden() {
    let fleet = Fleet::start();
    let till = file(&fleet.home, "till", TILL);
    file(&fleet.home, "till.manifest.json", &manifest().to_string());
    fleet.ok(&["artifact", "create", &till]);
    let artifact = fleet.json(&["artifact", "show", "till@1.0.0"]);
    assert_eq!(artifact["says"]["provides"]["web"]["port"], 8080);

    let secret = |text: &str| json!({"port": 80, "db": {"password": {"$secret": text}, "user": "u"}});
    config(&fleet, "base", "1", &secret("hunter2-hunter2"));
    config(&fleet, "base", "2", &secret("hunter3-hunter3"));
    config(&fleet, "shop", "1", &json!({"colour": "blue", "db": {"user": null}}));
    let create = |configs: &[&str]| {
        let configs = configs.iter().flat_map(|config| ["--config", *config]);
        let args: Vec<&str> =
            ["yuno", "create", "default/till", "--artifact", "till", "--run", "--replace", "--drift", "report"]
                .into_iter()
                .chain(configs)
                .collect();
        fleet.muster(&args)
    };
    create(&["base@1"]).expect_code(2).expect_stderr("colour");
    create(&["base@1", "shop"]).expect_code(0);
    let unit = fleet.unit_in_phase("default/till", "running");
    assert_eq!(unit["desired"]["spec"]["configs"].as_array().unwrap().len(), 2);
    let merged = r#"{"colour":"blue","db":{"password":"hunter2-hunter2"},"port":80}"#;
    let effective = fleet.json(&["yuno", "config", "--effective", "default/till"]);
    assert_eq!(effective["config"], json!({"colour": "blue", "db": {"password": "***"}, "port": 80}));
    assert_eq!(effective["revision"], unit["observed"]["revision"]);
    let path = effective["path"].as_str().unwrap();
    assert_eq!(fs::read_to_string(path).unwrap(), merged);
    assert!(fs::read_to_string(path.replace("config.json", "shop.json")).unwrap().contains("blue"));
    let difference = fleet.json(&["config", "diff", "base@1", "base@2"]);
    assert_eq!(difference[0]["pointer"], "/db/password");
    let shown = shown(&fleet);
    assert!(shown.contains("***") && !shown.contains("hunter"), "{shown}");
    // The program was given the value, and says it: what the host hands on of that has none.
    let log = log_until(&fleet, &format!("config.json with {}", merged.replace("hunter2-hunter2", "***")));
    assert!(!log.contains("hunter"), "{log}");
    // By hand, on the host: it is told, and still nothing is shown.
    fs::write(path, r#"{"url": "//u:hunter2-hunter2@db"}"#).unwrap();
    let run = fleet.muster(&["-o", "json", "yuno", "config", "--effective", "default/till"]).expect_code(0);
    assert!(run.stderr.contains("config.json was changed after the agent wrote it"), "{}", run.stderr);
    assert!(!run.stdout.contains("hunter"), "{}", run.stdout);
}

#[test]
fn used_content_is_kept_and_unused_removed() {
    let fleet = Fleet::start();
    for version in ["1", "2", "3"] {
        let path = file(&fleet.home, "till", &format!("{TILL}# {version}\n"));
        fleet.ok(&["artifact", "create", &path, "--role", "till", "--version", version]);
    }
    config(&fleet, "base", "1", &json!({}));
    fleet.ok(&["yuno", "create", "default/till", "--artifact", "till@2", "--config", "base@1"]);
    fleet.unit_in_phase("default/till", "stopped");
    fleet.muster(&["artifact", "rm", "till@2"]).expect_code(3).expect_stderr("default/till on ");
    fleet.muster(&["config", "rm", "base@1"]).expect_code(3).expect_stderr("default/till on ");
    // The sample of the fleet's own may be there as well.
    let versions = || -> Vec<Value> {
        let all = fleet.json(&["artifact", "ls"]);
        let till = all.as_array().unwrap().iter().filter(|one| one["role"] == "till");
        till.map(|one| one["version"].clone()).collect()
    };
    fleet.ok(&["artifact", "gc", "--dry-run"]);
    assert_eq!(versions().len(), 3);
    fleet.muster(&["artifact", "gc"]).expect_code(2).expect_stderr("--yes");
    fleet.ok(&["artifact", "gc", "--yes"]);
    assert_eq!(versions(), ["2"]);
    fleet.ok(&["unit", "retire", "default/till"]);
    fleet.ok(&["yuno", "rm", "default/till"]);
    fleet.ok(&["artifact", "rm", "till@2"]);
    fleet.ok(&["config", "rm", "base@1"]);
    let path = file(&fleet.home, "till", "#!/bin/sh\n");
    fleet
        .muster(&["artifact", "create", &path, "--role", "till", "--version", "2"])
        .expect_code(3)
        .expect_stderr("such as 4");
}

#[test]
fn changed_config_reaches_running_yuno() {
    let fleet = Fleet::start();
    let till = file(&fleet.home, "till", TILL);
    fleet.ok(&["artifact", "create", &till, "--role", "till", "--version", "1"]);
    config(&fleet, "base", "1", &json!({"n": 1}));
    config(&fleet, "base", "2", &json!({"n": 2}));
    let create = |more: &[&str]| {
        let args = ["yuno", "create", "default/till", "--artifact", "till", "--run", "--reload", "signal", "--replace"];
        fleet.ok(&[&args, more].concat());
        fleet.unit_in_phase("default/till", "running")
    };
    let first = create(&["--config", "base@1"]);
    log_until(&fleet, r#"with {"n":1}"#);
    let second = create(&["--config", "base@2"]);
    log_until(&fleet, r#"reloaded {"n":2}"#);
    assert_eq!(first["observed"]["pid"], second["observed"]["pid"]);
    assert_ne!(first["observed"]["revision"], second["observed"]["revision"]);
    let effective = fleet.json(&["yuno", "config", "--effective", "default/till"]);
    assert_eq!((&effective["config"], &effective["revision"]), (&json!({"n": 2}), &second["observed"]["revision"]));
    // More than that is a new process.
    let third = create(&["--config", "base@1", "--arg", "x"]);
    assert_ne!(second["observed"]["pid"], third["observed"]["pid"]);
    log_until(&fleet, r#"started x with {"n":1}"#);
}

#[test]
fn watched_file_reloads_on_changed_content() {
    let fleet = Fleet::start();
    let till = file(&fleet.home, "till", TILL);
    fleet.ok(&["artifact", "create", &till, "--role", "till", "--version", "1"]);
    config(&fleet, "base", "1", &json!({}));
    let certificate = file(&fleet.home, "a.pem", "old");
    let watch = format!("{certificate}=signal");
    let create = ["yuno", "create", "default/till", "--artifact", "till", "--config", "base@1", "--run", "--on-change"];
    fleet.ok(&[&create[..], &[&watch]].concat());
    let before = fleet.unit_in_phase("default/till", "running");
    log_until(&fleet, "started");
    fs::write(&certificate, "new").unwrap();
    // Within a tick of 30 s.
    log_until(&fleet, "reloaded");
    assert_eq!(fleet.unit_in_phase("default/till", "running")["observed"]["pid"], before["observed"]["pid"]);
}

/// Speaks JSON lines, and prints its config whenever it is asked to read it again; the third time it cannot.
const SPEAKER: &str = r#"#!/usr/bin/env python3
import json, os, socket, time
def config(): return open(os.environ["MUSTER_CONFIG"]).read()
line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
address = os.environ["MUSTER_SOCKET"]
line.connect("\0" + address[1:] if address.startswith("@") else address)
def say(what): line.sendall((json.dumps(what) + "\n").encode())
print("started with", config(), flush=True)
say({"hello": {"token": os.environ["MUSTER_TOKEN"], "protocol": 1, "can": ["reload"], "ready": True}})
count = 0
for text in line.makefile():
    asked = json.loads(text).get("reload")
    if asked:
        count += 1
        if count == 2:
            say({"answer": {"id": asked["id"], "error": {"code": "broken", "message": "not again"}}})
        else:
            print("reloaded", config(), flush=True)
            say({"answer": {"id": asked["id"], "ok": None}})
"#;

#[test]
fn reload_by_channel_may_be_refused() {
    let fleet = Fleet::start();
    let till = file(&fleet.home, "till", SPEAKER);
    fleet.ok(&["artifact", "create", &till, "--role", "till", "--version", "1"]);
    for n in [1, 2, 3] {
        config(&fleet, "base", &n.to_string(), &json!({"n": n}));
    }
    let create = |config: &str| {
        let args = [
            "yuno",
            "create",
            "default/till",
            "--artifact",
            "till",
            "--run",
            "--lines",
            "--reload",
            "channel",
            "--replace",
        ];
        fleet.ok(&[&args[..], &["--config", config]].concat());
        fleet.unit_in_phase("default/till", "running")
    };
    let first = create("base@1");
    log_until(&fleet, r#"started with {"n":1}"#);
    let second = create("base@2");
    log_until(&fleet, r#"reloaded {"n":2}"#);
    assert_eq!(first["observed"]["pid"], second["observed"]["pid"]);
    let third = create("base@3");
    log_until(&fleet, r#"started with {"n":3}"#);
    assert_ne!(second["observed"]["pid"], third["observed"]["pid"]);
}

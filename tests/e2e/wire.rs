//! The bus as a third party sees it with a stock client, and what it cannot do there.

use std::{fs, path::Path, process::Command};

use muster_topics::name::HostId;
use serde_json::Value;

use crate::fleet::{Fleet, Run, Running, eventually};

/// A stock MQTT client with the certificate in `folder`.
pub(crate) fn mosquitto(program: &str, fleet: &Fleet, folder: &Path) -> Command {
    let address = fleet.address("mqtts://");
    let (host, port) = address.trim_start_matches("mqtts://").rsplit_once(':').unwrap();
    let mut command = Command::new(program);
    command.args(["-h", host, "-p", port, "-q", "1", "-i", folder.file_name().unwrap().to_str().unwrap()]);
    for (flag, file) in [("--cafile", "authority.pem"), ("--cert", "certificate.pem"), ("--key", "key.pem")] {
        command.arg(flag).arg(folder.join(file));
    }
    command
}

pub(crate) fn publish(fleet: &Fleet, folder: &Path, topic: &str, payload: &str) -> Run {
    Run::of(&["mosquitto_pub", topic], mosquitto("mosquitto_pub", fleet, folder).args(["-t", topic, "-m", payload]))
}

/// The payloads that a subscriber printed (`-v`) for a topic.
pub(crate) fn payloads(printed: &str, topic: &str) -> Vec<Value> {
    let of_topic = |line: &str| serde_json::from_str(line.strip_prefix(topic)?.strip_prefix(' ')?).ok();
    printed.lines().filter_map(of_topic).collect()
}

/// A topic of a host.
pub(crate) fn of_host(host: &str, name: &str) -> String {
    below_slot(host, &format!("h/{host}/{name}"))
}

/// A topic below the slot of a host, such as `cmd/all`.
pub(crate) fn below_slot(host: &str, name: &str) -> String {
    format!("muster/s/{}/{name}", host.parse::<HostId>().unwrap().slot())
}

#[test]
fn stock_client_reads_the_whole_tree() {
    let fleet = Fleet::start_with(&[]);
    let host = fleet.host();
    fleet.unit_in_phase("default/hello", "running");
    let observer = fleet.issue("observer", "reader");
    let mut reader = Running::start(mosquitto("mosquitto_sub", &fleet, &observer).args(["-v", "-t", "muster/#"]));
    let at = |topic: &str| of_host(&host, topic);
    reader.wait_for("retained presence", |printed| {
        payloads(printed, &at("presence")).iter().any(|presence| presence["state"] == "online").then_some(())
    });
    reader.wait_for("the retained unit", |printed| {
        payloads(printed, &at("unit/default/hello"))
            .iter()
            .any(|unit| unit["observed"]["phase"] == "running")
            .then_some(())
    });
    fleet.ok(&["exec", "--", "true"]);
    reader.wait_for("a command and its outcome", |printed| {
        let outcomes = payloads(printed, &at("outcome"));
        let commands = payloads(printed, &at("cmd"));
        (!commands.is_empty() && outcomes.iter().any(|report| report["kind"] == "done")).then_some(())
    });
    fleet.ok(&["host", "refresh"]);
    let beat = reader.wait_for("a full heartbeat", |printed| {
        payloads(printed, &at("heartbeat")).into_iter().rev().find(|beat| beat["kind"] == "full")
    });
    assert_eq!(beat["state"]["units"]["default/hello"]["phase"], "running");
    reader.stop();
}

#[test]
fn client_without_certificate_is_refused() {
    let fleet = Fleet::start();
    let stranger = Fleet::start();
    let folder = stranger.issue("console", "stranger");
    assert_ne!(publish(&fleet, &folder, "muster/s/00/cmd/all", "x").code, 0, "another fleet's console got in");
    let address = fleet.address("mqtts://");
    let (host, port) = address.trim_start_matches("mqtts://").rsplit_once(':').unwrap();
    let mut bare = Command::new("mosquitto_pub");
    bare.args(["-h", host, "-p", port, "-t", "muster/s/00/cmd/all", "-m", "x"]);
    bare.arg("--cafile").arg(fleet.issue("observer", "x").join("authority.pem"));
    assert_ne!(Run::of(&[], &mut bare).code, 0, "somebody without a certificate got in");
}

#[test]
fn repeated_command_is_answered_from_the_journal() {
    let fleet = Fleet::start();
    let host = fleet.host();
    let mark = fleet.home.path().join("runs");
    let observer = fleet.issue("observer", "reader");
    let mut reader = Running::start(mosquitto("mosquitto_sub", &fleet, &observer).args(["-v", "-t", "muster/#"]));
    reader.wait_for("the subscription", |printed| printed.contains("presence").then_some(()));
    fleet.ok(&["exec", "--", "sh", "-c", &format!("echo run >> {}", mark.display())]);
    let topic = of_host(&host, "cmd");
    let line = reader.wait_for("the command", |printed| {
        printed.lines().find_map(|line| line.strip_prefix(&topic)?.strip_prefix(' ').map(str::to_owned))
    });
    let outcome_topic = of_host(&host, "outcome");
    let done =
        |printed: &str| payloads(printed, &outcome_topic).iter().filter(|report| report["kind"] == "done").count();
    reader.wait_for("the outcome", |printed| (done(printed) >= 1).then_some(()));

    // Whoever holds a console's certificate can repeat what was signed, but that is all.
    let forger = fleet.issue("console", "forger");
    for repetition in 2..4 {
        assert_eq!(publish(&fleet, &forger, &topic, &line).code, 0);
        reader.wait_for("the same outcome again", |printed| (done(printed) >= repetition).then_some(()));
    }
    let outcomes = payloads(&reader.printed(), &outcome_topic);
    let done: Vec<_> =
        outcomes.iter().filter(|report| report["kind"] == "done").map(|report| &report["outcome"]).collect();
    assert!(done.windows(2).all(|pair| pair[0] == pair[1]), "{done:?}");
    assert_eq!(fs::read_to_string(&mark).unwrap(), "run\n");

    // What was touched is not even answered.
    let mut envelope: Value = serde_json::from_str(&line).unwrap();
    envelope["body"] = envelope["body"].as_str().unwrap().replace("run", "fun").into();
    assert_eq!(publish(&fleet, &forger, &topic, &envelope.to_string()).code, 0);
    fleet.ok(&["exec", "--", "true"]);
    assert_eq!(fs::read_to_string(&mark).unwrap(), "run\n");
    reader.stop();
}

#[test]
fn host_without_goodbye_shows_as_offline() {
    let mut fleet = Fleet::start();
    let host = fleet.host();
    let observer = fleet.issue("observer", "reader");
    fleet.kill();
    fleet.again();
    let mut reader = Running::start(mosquitto("mosquitto_sub", &fleet, &observer).args(["-v", "-t", "muster/#"]));
    let presence = of_host(&host, "presence");
    reader.wait_for("online again", |printed| {
        payloads(printed, &presence).iter().any(|presence| presence["state"] == "online").then_some(())
    });
    let epoch = |presence: &Value| presence["epoch"].as_u64().unwrap();
    let last = payloads(&reader.printed(), &presence).pop().unwrap();
    assert!(epoch(&last) >= 2, "{last}");
    eventually("online in the console", || {
        let hosts = fleet.json(&["host", "ls"]);
        if hosts[0]["presence"]["state"] == "online" { Ok(()) } else { Err(hosts.to_string()) }
    });
    reader.stop();
}

#[test]
fn secrets_are_in_no_report_or_listing() {
    let fleet = Fleet::start();
    let program = crate::fleet::file(&fleet.home, "server", "#!/bin/sh\nexec sleep 1000\n");
    fleet.ok(&["artifact", "create", &program, "--role", "server", "--version", "1"]);
    fleet.ok(&["yuno", "create", "default/a", "--artifact", "server", "--env", "PASSWORD=hunter2", "--run"]);
    fleet.ok(&["exec", "--env", "PASSWORD=hunter2", "--", "sh", "-c", "test -n \"$PASSWORD\""]);
    let pid = fleet.unit_in_phase("default/a", "running")["observed"]["pid"].to_string();
    let environment = fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
    assert!(environment.contains("PASSWORD=hunter2"), "the program has it");

    let listings = [fleet.json(&["unit", "ls"]), fleet.json(&["command", "ls"]), fleet.json(&["host", "show"])];
    let observer = fleet.issue("observer", "reader");
    let host = fleet.host();
    let topic = of_host(&host, "unit/default/a");
    let mut reader = Running::start(mosquitto("mosquitto_sub", &fleet, &observer).args(["-v", "-t", &topic]));
    let report = reader.wait_for("the retained unit", |printed| payloads(printed, &topic).pop());
    for told in listings.iter().chain([&report]) {
        assert!(!told.to_string().contains("hunter2"), "{told}");
    }
    assert_eq!(report["desired"]["spec"]["env"]["PASSWORD"], "***");
    reader.stop();
}

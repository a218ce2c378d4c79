//! Forged and faulty messages on the bus: the real bytes, sent to a
//! real fleet, which goes on. (The table of all bad input is in `bad_input`.)

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Stdio,
    thread,
};

use muster_topics::{
    Millis, PAYLOAD_MAX_BYTES,
    envelope::{Envelope, Kind, Signer},
    metric,
    name::{CommandId, HostId},
    slot::Slot,
};
use serde_json::{Value, json};

use crate::{
    fleet::{Fleet, Home, Running, eventually},
    wire::{below_slot, mosquitto, of_host, payloads, publish},
};

const DAY_MS: Millis = 24 * 3_600_000;

/// A fleet, and somebody with a console's certificate and, for once, its signing key.
struct Forge {
    fleet: Fleet,
    host: String,
    forger: PathBuf,
    signer: Signer,
    /// Hears what the host answers.
    reader: Running,
}

impl Forge {
    fn start() -> Self {
        let fleet = Fleet::start();
        let host = fleet.host();
        let forger = fleet.issue("console", "forger");
        let observer = fleet.issue("observer", "reader");
        let reader = Self::listen(&fleet, &observer);
        Self { signer: signer(&fleet), fleet, host, forger, reader }
    }

    fn listen(fleet: &Fleet, observer: &Path) -> Running {
        let mut client = mosquitto("mosquitto_sub", fleet, observer);
        let mut reader =
            Running::start(client.args(["-v", "-t", "muster/s/+/h/+/outcome", "-t", "muster/s/+/h/+/presence"]));
        reader.wait_for("the subscription", |printed| printed.contains("presence").then_some(()));
        reader
    }

    fn topic(&self, name: &str) -> String {
        of_host(&self.host, name)
    }

    /// The topic of what is for all hosts of its slot.
    fn broadcast(&self) -> String {
        below_slot(&self.host, "cmd/all")
    }

    fn slot(&self) -> Slot {
        self.host.parse::<HostId>().unwrap().slot()
    }

    /// The file that forged commands would write to.
    fn mark(&self) -> PathBuf {
        self.fleet.home.path().join("mark")
    }

    /// A good command that would leave its mark.
    fn command(&self) -> Value {
        let now_ms = muster_base::clock::now_ms();
        json!({
            "v": 1, "id": CommandId::new(), "target": {"hosts": [self.host]}, "asked_by": {"operator": "admin", "role": "admin"},
            "issued_ms": now_ms, "expires_ms": now_ms + 60_000,
            "verb": {"exec": {"shell": format!("echo run >> {}", self.mark().display()), "timeout_ms": 10_000}}
        })
    }

    /// The same with something else in it.
    fn command_with(&self, changes: &Value) -> Value {
        let mut command = self.command();
        for (key, value) in changes.as_object().unwrap() {
            command[key] = value.clone();
        }
        command
    }

    fn signed(&self, body: &str) -> Envelope {
        self.signer.sign_text(self.slot(), Kind::Command, body.to_owned())
    }

    fn send(&self, topic: &str, payload: &str) {
        assert_eq!(publish(&self.fleet, &self.forger, topic, payload).code, 0, "{topic} {payload}");
    }

    /// What the host has answered to a command, in a word: the code of a refusal, or how it ended.
    fn answer(&self, id: &str) -> Option<String> {
        let reports = payloads(&self.reader.printed(), &self.topic("outcome"));
        let outcome = reports.into_iter().rfind(|report| report["command"] == id && report["kind"] == "done")?;
        let outcome = &outcome["outcome"];
        Some(outcome["code"].as_str().or(outcome["status"].as_str()).unwrap().to_owned())
    }

    #[track_caller]
    fn wait_for_answer(&self, id: &str, word: &str) {
        eventually(word, || match self.answer(id) {
            Some(answer) if answer == word => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }

    /// A command of the console is done, so whatever was sent before it was dealt with.
    #[track_caller]
    fn goes_on(&self) {
        self.fleet.ok(&["exec", "--timeout", "30s", "--", "true"]);
    }

    fn marks(&self) -> usize {
        fs::read_to_string(self.mark()).unwrap_or_default().lines().count()
    }
}

/// The key of a fleet's console.
fn signer(fleet: &Fleet) -> Signer {
    Signer::from_pkcs8(&fs::read(fleet.data().join("console/authority/signing.key")).unwrap()).unwrap()
}

fn text(envelope: &Envelope) -> String {
    serde_json::to_string(envelope).unwrap()
}

#[test]
fn unsigned_or_altered_command_is_ignored() {
    let forge = Forge::start();
    let stranger = Signer::from_pkcs8(&Signer::generate().unwrap()).unwrap();
    let body = || forge.command().to_string();
    let good = forge.signed(&body());
    let with = |change: &dyn Fn(&mut Envelope)| {
        let mut envelope = good.clone();
        change(&mut envelope);
        text(&envelope)
    };
    let foreign = stranger.sign_text(forge.slot(), Kind::Command, body());
    let mut posing = foreign.clone();
    posing.kid = good.kid.clone();
    let twice = body().replacen("{", &format!("{{\"id\":\"{}\",", CommandId::new()), 1);
    let elsewhere = forge.command_with(&json!({"verb": {"unit_run": {"unit": "default/../../x"}}})).to_string();
    let deep = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    for (what, payload) in [
        ("nothing", String::new()),
        ("no JSON", "{".to_owned()),
        ("unsigned", body()),
        ("an empty signature", with(&|envelope| envelope.sig = String::new())),
        ("another's key", text(&foreign)),
        ("another's key under this one's name", text(&posing)),
        ("altered after it was signed", with(&|envelope| envelope.body = envelope.body.replace("run", "fun"))),
        (
            "a longer life",
            with(&|envelope| envelope.body = envelope.body.replace("\"expires_ms\":1", "\"expires_ms\":2")),
        ),
        ("signed as something else", with(&|envelope| envelope.kind = Kind::Ack)),
        ("in another epoch than it was signed in", with(&|envelope| envelope.epoch += 1)),
        ("for other hosts", text(&forge.signer.sign_text(Slot(forge.slot().0 ^ 1), Kind::Command, body()))),
        ("a key that stands twice", text(&forge.signed(&twice))),
        ("a body that is none", text(&forge.signed("7"))),
        ("deep nesting", deep(PAYLOAD_MAX_BYTES / 2)),
        ("deep nesting that is signed", text(&forge.signed(&deep(30_000)))),
    ] {
        forge.send(&forge.topic("cmd"), &payload);
        forge.send(&forge.broadcast(), &payload);
        assert_eq!(forge.marks(), 0, "{what}");
    }
    let id = forge.command()["id"].as_str().unwrap().to_owned();
    forge.send(&forge.topic("cmd"), &text(&forge.signed(&forge.command_with(&json!({"id": id})).to_string())));
    // The good one among them shows that it is none of the others' fault that they were not done.
    forge.wait_for_answer(&id, "exited");
    assert_eq!(forge.marks(), 1);
    // A name that leads elsewhere is none, and whoever signed it hears that.
    let id = serde_json::from_str::<Value>(&elsewhere).unwrap()["id"].as_str().unwrap().to_owned();
    forge.send(&forge.topic("cmd"), &text(&forge.signed(&elsewhere)));
    forge.wait_for_answer(&id, "invalid");
}

#[test]
fn signed_invalid_command_is_refused_with_reason() {
    let forge = Forge::start();
    let now_ms = muster_base::clock::now_ms();
    let times = |issued_ms: Millis, expires_ms: Millis| json!({"issued_ms": issued_ms, "expires_ms": expires_ms});
    let another = json!({"target": {"hosts": [HostId::random()]}});
    for (what, changes, code) in [
        ("another host's", another.clone(), "wrong_host"),
        ("expired", times(now_ms - 1, now_ms), "expired"),
        ("over before it begins", times(now_ms, now_ms - 1), "invalid"),
        ("longer than a week", times(now_ms, now_ms + 8 * DAY_MS), "invalid"),
        ("not yet valid", times(now_ms + 2 * DAY_MS, now_ms + 3 * DAY_MS), "invalid"),
        ("from before this agent was", times(now_ms - DAY_MS, now_ms + DAY_MS), "replayed"),
        ("of a verb to come", json!({"verb": {"dance": {}}}), "invalid"),
        ("with more than this agent knows", json!({"more": 1}), "invalid"),
    ] {
        // So that what is to be expired is.
        thread::sleep(std::time::Duration::from_millis(2));
        let command = forge.command_with(&changes);
        forge.send(&forge.topic("cmd"), &text(&forge.signed(&command.to_string())));
        forge.wait_for_answer(command["id"].as_str().unwrap(), code);
        assert_eq!(forge.marks(), 0, "{what}");
    }
    // What is for others and comes to all is passed over in silence.
    let command = forge.command_with(&another);
    forge.send(&forge.broadcast(), &text(&forge.signed(&command.to_string())));
    forge.goes_on();
    assert_eq!((forge.answer(command["id"].as_str().unwrap()), forge.marks()), (None, 0));
}

#[test]
fn command_of_another_fleet_is_ignored() {
    let (forge, other) = (Forge::start(), Fleet::start());
    let foreign = signer(&other).sign_text(forge.slot(), Kind::Command, forge.command().to_string());
    forge.send(&forge.topic("cmd"), &text(&foreign));
    forge.goes_on();
    assert_eq!(forge.marks(), 0);
}

#[test]
fn replayed_command_is_not_repeated_after_restart_or_loss() {
    let mut forge = Forge::start();
    let command = forge.command();
    let id = command["id"].as_str().unwrap().to_owned();
    let signed = text(&forge.signed(&command.to_string()));
    let topic = forge.topic("cmd");
    forge.send(&topic, &signed);
    forge.wait_for_answer(&id, "exited");
    let observer = forge.fleet.home.path().join("observer-reader");
    for lost in [false, true] {
        forge.fleet.kill();
        if lost {
            for name in ["agent.db", "agent.db-wal", "agent.db-shm"] {
                let _ = fs::remove_file(forge.fleet.data().join("agent").join(name));
            }
        }
        forge.fleet.again();
        forge.reader = Forge::listen(&forge.fleet, &observer);
        forge.goes_on();
        forge.send(&topic, &signed);
        // From the journal; or, where there is none any more, because it is not younger than what the mark knows of.
        forge.wait_for_answer(&id, if lost { "set_back" } else { "exited" });
        assert_eq!(forge.marks(), 1);
    }
}

/// A stock client with the certificate of the one host.
fn as_host(forge: &Forge) -> PathBuf {
    let identity = fs::read(forge.fleet.data().join("agent/identity.json")).unwrap();
    let identity: Value = serde_json::from_slice(&identity).unwrap();
    // Its own client id: `<host>-<instance>`.
    let folder = forge.fleet.home.path().join(format!("{}-{}", forge.host, HostId::random()));
    fs::create_dir(&folder).unwrap();
    for (name, value) in [
        ("authority.pem", &identity["membership"]["authority"]),
        ("certificate.pem", &identity["membership"]["certificate"]),
        ("key.pem", &identity["key"]),
    ] {
        fs::write(folder.join(name), value.as_str().unwrap()).unwrap();
    }
    folder
}

/// Publishes bytes as they are.
fn publish_bytes(forge: &Forge, who: &Path, topic: &str, bytes: &[u8]) -> bool {
    let mut client = mosquitto("mosquitto_pub", &forge.fleet, who);
    let mut client = client.args(["-t", topic, "-s"]).stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    // The broker may have hung up before the end.
    let _ = client.stdin.take().unwrap().write_all(bytes);
    client.wait().unwrap().success()
}

#[test]
fn host_cannot_publish_for_others_or_answer_twice() {
    let forge = Forge::start();
    let host = as_host(&forge);
    let id = forge.fleet.ok(&["exec", "--no-wait", "--", "true"]).trim().to_owned();
    forge.wait_for_answer(&id, "exited");
    let shown = || forge.fleet.json(&["command", "show", &id])["hosts"].clone();
    eventually("the outcome", || if shown()[0]["state"] == "done" { Ok(()) } else { Err(shown().to_string()) });
    let before = shown();
    let forged = json!({
        "v": 1, "command": id, "seq": 99, "at_ms": 1, "kind": "done",
        "outcome": {"status": "exited", "exit": {"code": 7}, "finished_ms": 1}
    });
    assert!(publish_bytes(&forge, &host, &forge.topic("outcome"), forged.to_string().as_bytes()));
    // What another's topic carries the broker does not take from it.
    let elsewhere = of_host(&HostId::random().to_string(), "");
    for topic in ["presence", "heartbeat", "outcome", "metric", "unit/default/a", "cmd", "ack"] {
        publish_bytes(&forge, &host, &format!("{elsewhere}{topic}"), b"{}");
    }
    publish_bytes(&forge, &host, &forge.broadcast(), text(&forge.signed(&forge.command().to_string())).as_bytes());
    forge.goes_on();
    assert_eq!((shown(), forge.marks()), (before, 0));
    assert!(!forge.reader.printed().contains(&elsewhere), "{}", forge.reader.printed());

    // A last will that is not this session's says nothing of it, and is contradicted.
    let presence = payloads(&forge.reader.printed(), &forge.topic("presence")).pop().unwrap();
    for epoch in [1, presence["epoch"].as_u64().unwrap()] {
        let mut will = presence.clone();
        (will["state"], will["epoch"], will["session"]) = ("offline".into(), epoch.into(), 0.into());
        let mut client = mosquitto("mosquitto_pub", &forge.fleet, &host);
        client.args(["-r", "-t", &forge.topic("presence"), "-m", &will.to_string()]);
        assert!(client.status().unwrap().success());
    }
    eventually("a host that is online", || {
        let last = payloads(&forge.reader.printed(), &forge.topic("presence")).pop().unwrap();
        let hosts = forge.fleet.json(&["host", "ls"]);
        let both = last["state"] == "online" && hosts[0]["presence"]["state"] == "online";
        if both { Ok(()) } else { Err(format!("{last} {hosts}")) }
    });
}

#[test]
fn oversized_messages_stop_nobody() {
    let forge = Forge::start();
    let host = as_host(&forge);
    let million = [vec![b'['; 1_000_000], vec![b']'; 1_000_000]].concat();
    let deep = [vec![b'['; PAYLOAD_MAX_BYTES / 2], vec![b']'; PAYLOAD_MAX_BYTES / 2]].concat();
    // A batch that is within what a message may have, and unpacks to a thousand times as much.
    let bomb = metric::pack(&"x".repeat(60_000_000));
    assert!(bomb.len() <= PAYLOAD_MAX_BYTES, "{}", bomb.len());
    // As much as MQTT can say that there is.
    let longest = vec![b' '; 256 * 1024 * 1024 - 1 - 200];
    for payload in [&million, &deep, &bomb, &longest] {
        for topic in ["metric", "heartbeat", "outcome", "unit/default/a"] {
            publish_bytes(&forge, &host, &forge.topic(topic), payload);
        }
        for topic in [&forge.topic("cmd"), &forge.broadcast(), &forge.topic("ack")] {
            publish_bytes(&forge, &forge.forger, topic, payload);
        }
        forge.goes_on();
    }
    let printed = forge.fleet.muster(&["host", "ls"]).expect_code(0).stdout;
    assert!(printed.contains("online"), "{printed}");
}

#[test]
fn flood_of_invalid_messages_delays_no_command() {
    let forge = Forge::start();
    let mut client = mosquitto("mosquitto_pub", &forge.fleet, &forge.forger);
    let mut flood = client.args(["-t", &forge.topic("cmd"), "-l"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut into = flood.stdin.take().unwrap();
    let stranger = Signer::from_pkcs8(&Signer::generate().unwrap()).unwrap();
    let bad = text(&stranger.sign_text(forge.slot(), Kind::Command, "{}".to_owned()));
    let count = if std::env::var_os("TESTS_LONG").is_some() { 200_000 } else { 10_000 };
    let writer = thread::spawn(move || (0..count).all(|_| writeln!(into, "{bad}").is_ok()));
    for _ in 0..3 {
        forge.goes_on();
    }
    assert!(writer.join().unwrap());
    assert!(flood.wait().unwrap().success());
    forge.goes_on();
}

#[test]
fn path_traversal_is_refused() {
    let fleet = Fleet::start();
    let secret = fs::read_to_string(fleet.data().join("agent/identity.json")).unwrap();
    let (web, hosts) = (fleet.address("http://"), fleet.summary.clone());
    let address = web.trim_start_matches("http://").split('/').next().unwrap().to_owned();
    for path in [
        "/../../../../../../../../etc/passwd",
        "/assets/../../../../../../../../etc/passwd",
        "/assets/..%2f..%2f..%2f..%2f..%2fetc%2fpasswd",
        "/assets/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/api/v1/hosts/..%2f..%2fagent%2fidentity.json",
        "//etc/passwd",
    ] {
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\nhost: {address}\r\n\r\n").unwrap();
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
        assert!(!answer.contains(" 200 ") && !answer.contains("root:"), "{path}: {answer} ({hosts})");
    }
    let plain = crate::fleet::file(&fleet.home, "plain", "#!/bin/sh\nexec sleep 1000\n");
    for args in [
        ["artifact", "create", &plain, "--role", "../x", "--version", "1"],
        ["artifact", "create", &plain, "--role", "x", "--version", "../1"],
    ] {
        fleet.muster(&args).expect_code(2);
    }
    for args in [
        vec!["config", "create", "../x", "1", &plain],
        vec!["yuno", "create", "../x", "--artifact", "x"],
        vec!["yuno", "create", "default/..", "--artifact", "x"],
        vec!["unit", "show", "default/../../agent"],
        vec!["realm", "create", ".."],
        vec!["snapshot", "create", "../x"],
    ] {
        fleet.muster(&args).expect_code(2);
    }

    // A program plants links where the agent works with files of its.
    let precious = Home::new();
    fs::write(precious.path().join("kept"), &secret).unwrap();
    let script = format!(
        "#!/bin/sh\nln -s {0} link; ln -s {0}/kept file; mkdir -p a/b; ln -s {0} a/b/c; echo planted; exec sleep 1000\n",
        precious.path().display()
    );
    let planter = crate::fleet::file(&fleet.home, "planter", &script);
    fleet.ok(&["artifact", "create", &planter, "--role", "planter", "--version", "1"]);
    fleet.ok(&["yuno", "create", "default/planter", "--artifact", "planter", "--run"]);
    eventually("its links", || {
        let log = fleet.muster(&["yuno", "logs", "default/planter"]).stdout;
        if log.contains("planted") { Ok(()) } else { Err(log) }
    });
    fleet.ok(&["unit", "retire", "default/planter"]);
    fleet.ok(&["yuno", "rm", "default/planter"]);
    eventually("an end of its folder", || {
        let folder = fleet.data().join("agent/units/default/planter");
        if folder.exists() { Err("it is there".to_owned()) } else { Ok(()) }
    });
    assert_eq!(fs::read_to_string(precious.path().join("kept")).unwrap(), secret);
}

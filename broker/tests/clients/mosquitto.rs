//! `mosquitto_pub` and `mosquitto_sub`, with MQTT 3.1.1 and 5.

use std::process::Stdio;

use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

use crate::{
    peer::Stage,
    rig::{
        HOST, OTHER, patiently,
        wire::{BOTH, Publish, Version},
    },
    scenarios::{event, raw_console, raw_host, unit},
};

/// One of the two, as `common_name`, with TLS.
fn command(stage: &Stage, program: &str, version: Version, common_name: &str, client_id: &str) -> Command {
    let files = stage.files(common_name);
    let mut command = Command::new(program);
    command
        .args(["-V", if version == Version::V5 { "mqttv5" } else { "mqttv311" }])
        .args(["-h", "localhost", "-p", &stage.port().to_string(), "-i", client_id])
        .arg("--cafile")
        .arg(files.authority)
        .arg("--cert")
        .arg(files.certificate)
        .arg("--key")
        .arg(files.key)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Publishes as a host; gives the exit code and what was said.
async fn publish(stage: &Stage, version: Version, more: &[&str]) -> (i32, String) {
    let mut command = command(stage, "mosquitto_pub", version, HOST, &format!("{HOST}-pub"));
    let output = patiently("mosquitto_pub", command.args(more).output()).await.unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// A `mosquitto_sub` that goes on.
struct Sub {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Sub {
    /// Starts it, and waits until it has subscribed.
    async fn start(stage: &Stage, version: Version, name: &str, more: &[&str]) -> Self {
        let mut command = command(stage, "mosquitto_sub", version, name, name);
        let before = stage.ours.broker.stats().subscriptions;
        let mut process = command.args(more).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        crate::rig::until("its subscription", || stage.ours.broker.stats().subscriptions > before).await;
        Self { process, lines }
    }

    async fn line(&mut self) -> String {
        patiently("a line of mosquitto_sub", self.lines.next_line()).await.unwrap().expect("a line")
    }
}

#[tokio::test]
async fn every_quality() {
    for version in BOTH {
        let stage = Stage::new().await;
        let format = ["-F", "%t %q %r %p"];
        let filters = ["-q", "1", "-t", "muster/s/+/h/+/event", "-t", "muster/s/+/h/+/unit/#"];
        let mut sub = Sub::start(
            &stage,
            version,
            "console-main",
            &[format, filters[..2].try_into().unwrap()]
                .concat()
                .iter()
                .chain(&filters[2..])
                .copied()
                .collect::<Vec<_>>(),
        )
        .await;
        for qos in ["0", "1"] {
            let sent = publish(&stage, version, &["-t", &event(), "-q", qos, "-m", "a message"]).await;
            assert_eq!(sent.0, 0, "{sent:?}");
            assert_eq!(sub.line().await, format!("{} {qos} 0 a message", event()));
        }
        let sent = publish(&stage, version, &["-t", &unit("a"), "-q", "1", "-r", "-m", "kept"]).await;
        assert_eq!(sent.0, 0, "{sent:?}");
        assert_eq!(sub.line().await, format!("{} 1 0 kept", unit("a")));
        let late = ["-C", "1", "-F", "%r %p", "-q", "1", "-t", "muster/#"];
        let output = command(&stage, "mosquitto_sub", version, "operator-late", "operator-late").args(late).output();
        let output = patiently("mosquitto_sub", output).await.unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "1 kept\n");
    }
}

#[tokio::test]
async fn last_will() {
    let presence = format!("muster/s/00/h/{HOST}/presence");
    for version in BOTH {
        let stage = Stage::new().await;
        let mut console = raw_console(&stage).await;
        console.subscribe(&presence, 1).await;
        let cmd = format!("muster/s/00/h/{HOST}/cmd");
        let will = ["--will-topic", &presence, "--will-payload", "cut off", "--will-qos", "1", "-t", &cmd];
        let mut command = command(&stage, "mosquitto_sub", version, HOST, &format!("{HOST}-1"));
        let mut process = command.args(will).spawn().unwrap();
        crate::rig::until("its subscription", || stage.ours.broker.stats().subscriptions == 2).await;
        process.kill().await.unwrap();
        assert_eq!(console.message().await.text(), "cut off");
    }
}

#[tokio::test]
async fn resumed() {
    for version in BOTH {
        let stage = Stage::new().await;
        let topic = event();
        let mut stays = vec!["-c", "-q", "1", "-t", &topic];
        if version == Version::V5 {
            stays.extend(["-x", "3600"]);
        }
        let mut sub = Sub::start(&stage, version, "operator-anna", &stays).await;
        sub.process.kill().await.unwrap();
        crate::rig::until("it gone", || stage.ours.broker.stats().connections == 0).await;
        let mut host = raw_host(&stage).await;
        for number in 0..50 {
            host.publish(Publish::new(&topic, 1, number.to_string())).await;
        }
        stays.extend(["-C", "50"]);
        let output = command(&stage, "mosquitto_sub", version, "operator-anna", "operator-anna").args(stays).output();
        let output = patiently("mosquitto_sub", output).await.unwrap();
        let all: Vec<_> = (0..50).map(|number| number.to_string()).collect();
        assert_eq!(String::from_utf8(output.stdout).unwrap().lines().collect::<Vec<_>>(), all);
    }
}

#[tokio::test]
async fn properties() {
    let stage = Stage::new().await;
    let topic = unit("a");
    let format =
        ["-F", "%C|%R|%D|%P|%E|%S|%p", "-q", "1", "-t", &topic, "-D", "subscribe", "subscription-identifier", "9"];
    let mut sub = Sub::start(&stage, Version::V5, "console-main", &format).await;
    let response = format!("muster/s/00/h/{HOST}/outcome");
    let sent = [
        &["-t", &topic, "-q", "1", "-m", "x"][..],
        &["-D", "publish", "content-type", "text/plain"],
        &["-D", "publish", "response-topic", &response],
        &["-D", "publish", "correlation-data", "a1"],
        &["-D", "publish", "user-property", "name", "value"],
        &["-D", "publish", "message-expiry-interval", "1000"],
    ];
    let sent = publish(&stage, Version::V5, &sent.concat()).await;
    assert_eq!(sent.0, 0, "{sent:?}");
    let line = sub.line().await;
    let fields: Vec<_> = line.split('|').collect();
    assert_eq!(fields[..4], ["text/plain", &response, "a1", "name:value"], "{line}");
    assert!((900..=1_000).contains(&fields[4].parse::<u32>().unwrap()), "{line}");
    assert_eq!(fields[5..], ["9", "x"], "{line}");
}

#[tokio::test]
async fn options_of_a_subscription() {
    let stage = Stage::new().await;
    let topic = unit("a");
    let mut host = raw_host(&stage).await;
    host.publish(Publish::new(&topic, 1, "old").retained()).await;
    let shown = ["-F", "%r %p", "-q", "1", "-t", &topic];
    let published = [&shown[..], &["--retain-as-published"]].concat();
    let mut published = Sub::start(&stage, Version::V5, "operator-a", &published).await;
    let mut plain = Sub::start(&stage, Version::V5, "operator-b", &shown).await;
    host.publish(Publish::new(&topic, 1, "new").retained()).await;
    for (sub, lines) in [(&mut published, ["1 old", "1 new"]), (&mut plain, ["1 old", "0 new"])] {
        assert_eq!([sub.line().await, sub.line().await], lines);
    }
}

#[tokio::test]
async fn refused() {
    for version in BOTH {
        let stage = Stage::new().await;
        let (code, said) = publish(&stage, version, &["-t", &event(), "-m", "x", "-i", &format!("{OTHER}-1")]).await;
        assert!(code != 0 && said.to_lowercase().contains("identifier"), "{code}: {said}");
        let elsewhere = format!("muster/s/00/h/{OTHER}/event");
        let (code, said) = publish(&stage, version, &["-t", &elsewhere, "-q", "1", "-m", "x"]).await;
        match version {
            Version::V5 => assert!(said.contains("Not authorized"), "{code}: {said}"),
            // MQTT 3.1.1 has no words for it: the connection ends, and with it, once it has tried again, this program.
            Version::V4 => assert!(code != 0 || said.contains("lost"), "{code}: {said}"),
        }
        let mut command = command(&stage, "mosquitto_sub", version, HOST, &format!("{HOST}-1"));
        let output = command.args(["-t", "muster/#", "-W", "5"]).output();
        let output = patiently("mosquitto_sub", output).await.unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("denied") || !output.status.success(), "{said}");
    }
}

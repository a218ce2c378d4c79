//! Clients in processes of their own.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use crate::{
    peer::{Accepted, Connect, Message, Stage, Subscribe},
    rig::{patiently, wire::Version},
};

/// A program that drives a client. It is killed when this goes away.
pub(crate) struct Script {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

/// Where `tests/run` installs what these clients need.
fn installed(what: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/clients").join(what);
    assert!(path.exists(), "{} is not there; `tests/tools clients` provides it, as tests/run does", path.display());
    path
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/scripts").join(name)
}

impl Script {
    pub(crate) fn paho() -> Self {
        Self::start(Command::new(installed("venv/bin/python")).arg(script("drive_paho.py")))
    }

    pub(crate) fn mqttjs() -> Self {
        let modules = installed("node_modules");
        Self::start(Command::new("node").env("NODE_PATH", modules).arg(script("drive_mqttjs.js")))
    }

    fn start(command: &mut Command) -> Self {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, input, output }
    }

    /// Asks for something that may fail in the client's own words.
    async fn try_ask(&mut self, verb: &str, mut asked: Value) -> Result<Value, String> {
        asked["do"] = verb.into();
        self.input.write_all(format!("{asked}\n").as_bytes()).await.unwrap();
        let line = patiently(verb, self.output.next_line()).await.unwrap();
        let line = line.unwrap_or_else(|| panic!("{verb}: the client's process has ended"));
        let answer: Value = serde_json::from_str(&line).unwrap();
        match answer.get("error") {
            Some(error) => Err(error.to_string()),
            None => Ok(answer),
        }
    }

    async fn ask(&mut self, verb: &str, asked: Value) -> Value {
        self.try_ask(verb, asked).await.unwrap_or_else(|error| panic!("{verb}: {error}"))
    }

    pub(crate) async fn connect(
        &mut self,
        stage: &Stage,
        version: Version,
        common_name: &str,
        connect: &Connect,
    ) -> Accepted {
        let files = stage.files(common_name);
        let mut asked = serde_json::to_value(connect).unwrap();
        asked["version"] = if version == Version::V5 { 5 } else { 4 }.into();
        asked["port"] = stage.port().into();
        asked["authority"] = files.authority.to_str().into();
        asked["certificate"] = files.certificate.to_str().into();
        asked["key"] = files.key.to_str().into();
        serde_json::from_value(self.ask("connect", asked).await).unwrap()
    }

    pub(crate) async fn subscribe(&mut self, subscribe: &Subscribe) -> Vec<u8> {
        let answer = self.ask("subscribe", serde_json::to_value(subscribe).unwrap()).await;
        serde_json::from_value(answer["reasons"].clone()).unwrap()
    }

    pub(crate) async fn unsubscribe(&mut self, filter: &str) -> Vec<u8> {
        let answer = self.ask("unsubscribe", json!({ "filter": filter })).await;
        serde_json::from_value(answer["reasons"].clone()).unwrap()
    }

    pub(crate) async fn publish(&mut self, message: &Message) -> u8 {
        let answer = self.ask("publish", serde_json::to_value(message).unwrap()).await;
        serde_json::from_value(answer["reason"].clone()).unwrap()
    }

    pub(crate) async fn message(&mut self, patience: Duration) -> Option<Message> {
        let answer = self.ask("message", json!({ "within_s": patience.as_secs_f64() })).await;
        answer.get("none").is_none().then(|| serde_json::from_value(answer).unwrap())
    }

    pub(crate) async fn end(&mut self) -> Option<u8> {
        let answer = self.ask("end", json!({})).await;
        serde_json::from_value(answer["reason"].clone()).unwrap()
    }

    pub(crate) async fn disconnect(mut self) {
        self.ask("disconnect", json!({})).await;
        drop(self.input);
        patiently("the end of the client's process", self.process.wait()).await.unwrap();
    }
}

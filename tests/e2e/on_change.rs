//! What changes of files want: a unit reads them again, another is restarted, and a program is run.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};

use crate::fleet::{Fleet, Running, eventually, file};

/// It writes down that it was started, and that it was told to read its files again.
const PROGRAM: &str = "#!/bin/sh
out=$1; name=$2
while [ \"$name\" = bad ]; do [ -e \"$out.end\" ] && exit 3; sleep 0.05; done
echo \"$name starts\" >> \"$out\"
trap 'echo \"$name reads\" >> \"$out\"' HUP
trap 'exit 0' TERM
while :; do sleep 0.05 & wait $!; done
";

struct Bench {
    fleet: Fleet,
    folder: PathBuf,
}

impl Bench {
    fn start() -> Self {
        let fleet = Fleet::start();
        let program = file(&fleet.home, "program", PROGRAM);
        fleet.ok(&["artifact", "create", &program, "--role", "program", "--version", "1"]);
        let folder = fleet.home.path().canonicalize().unwrap();
        Self { fleet, folder }
    }

    fn at(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// A yuno that calls itself so.
    fn yuno(&self, name: &str, word: &str) -> Value {
        json!({"name": name, "artifact": "program@1", "args": [self.at("out"), word], "verify_after_ms": 300})
    }

    /// A unit of files with one of this content.
    fn files(&self, text: &str, on_change: &Value) -> Value {
        json!({"name": "config", "kind": "files", "files": {self.at("conf"): {"text": text}}, "on_change": on_change})
    }

    fn document(&self, units: &Value) -> String {
        let document = json!({"deployment": "default/shop", "target": {"select": "host=*"}, "units": units});
        file(&self.fleet.home, "shop.json", &document.to_string())
    }

    /// How often each of these was written down.
    fn counts(&self) -> [usize; 3] {
        let text = fs::read_to_string(self.at("out")).unwrap_or_default();
        ["reader reads", "other starts", "ran"].map(|line| text.lines().filter(|there| *there == line).count())
    }

    #[track_caller]
    fn become_counts(&self, wanted: [usize; 3]) {
        eventually("what the change wants", || match self.counts() {
            counts if counts == wanted => Ok(()),
            counts => Err(format!("{counts:?} {}", self.fleet.json(&["unit", "tasks", "default/config"]))),
        });
    }
}

#[test]
fn change_reloads_restarts_and_runs_also_if_the_agent_is_killed_in_between() {
    let mut bench = Bench::start();
    let on_change = json!([
        {"do": {"reload": "default/reader"}},
        {"do": {"restart": "default/other"}},
        {"do": {"run": ["sh", "-c", format!("echo ran >> {}", bench.at("out"))]}},
    ]);
    let units = |bench: &Bench, text: &str| {
        let mut reader = bench.yuno("reader", "reader");
        reader["reload"] = "signal".into();
        json!([reader, bench.yuno("other", "other"), bench.files(text, &on_change)])
    };
    // At first they come up beside each other, and are told or not.
    let path = bench.document(&units(&bench, "1"));
    bench.fleet.ok(&["deployment", "apply", &path, "--yes"]);
    eventually("nothing that is owed", || {
        let tasks = bench.fleet.json(&["unit", "tasks", "default/config"]);
        if tasks["owed"].is_null() && bench.counts()[2] == 1 { Ok(()) } else { Err(tasks.to_string()) }
    });
    bench.fleet.unit_in_phase("default/other", "running");
    let [reads, starts, ran] = bench.counts();

    let path = bench.document(&units(&bench, "2"));
    bench.fleet.ok(&["deployment", "apply", &path, "--yes"]);
    bench.become_counts([reads + 1, starts + 1, ran + 1]);
    bench.fleet.unit_in_phase("default/other", "running");

    // It is killed once the change is stored, and before anything that it wants.
    bench.fleet.stop();
    bench.fleet.home.env.push(("MUSTER_TEST_CRASH".into(), "note files/after commit:1".into()));
    bench.fleet.again();
    let path = bench.document(&units(&bench, "3"));
    bench.fleet.muster(&["deployment", "apply", &path, "--yes", "--no-wait"]);
    eventually("the end of the agent", || if bench.fleet.up().ended() { Ok(()) } else { Err("it goes on".to_owned()) });
    assert_eq!(fs::read_to_string(bench.at("conf")).unwrap(), "3");
    assert_eq!(bench.counts(), [reads + 1, starts + 1, ran + 1]);
    bench.fleet.home.env.pop();
    bench.fleet.again();
    bench.become_counts([reads + 2, starts + 2, ran + 2]);
    let tasks = bench.fleet.json(&["unit", "tasks", "default/config"]);
    assert!(tasks["owed"].is_null(), "{tasks}");
}

#[test]
fn what_a_change_wants_falls_away_when_it_is_rolled_back() {
    let bench = Bench::start();
    let units = |text: &str, on_change: Value, word: &str| {
        let mut till = bench.yuno("till", word);
        till["requires"] = json!(["default/config"]);
        if word == "bad" {
            // It never is up, and fails when it is told to.
            till["probes"] = json!({"start": {"exec": ["/bin/false"]}});
            till["start_timeout_ms"] = json!(60_000);
        }
        json!([bench.files(text, &on_change), till])
    };
    bench.fleet.ok(&["deployment", "apply", &bench.document(&units("1", json!([]), "till")), "--yes"]);
    // What it wants cannot be done, so that it still is owed when the other unit fails.
    let wants = json!([{"do": {"restart": "default/nobody"}}]);
    let document = bench.document(&units("2", wants, "bad"));
    let mut apply = Running::start(bench.fleet.home.command().args(["deployment", "apply", &document, "--yes"]));
    let tasks = || bench.fleet.json(&["unit", "tasks", "default/config"]);
    eventually("what the change wants is tried", || {
        let tasks = tasks();
        let tried = tasks["tasks"].as_array().unwrap().iter().find(|task| task["about"] == "restart default/nobody");
        if tried.is_some_and(|tried| tried["state"] == "failed") { Ok(()) } else { Err(tasks.to_string()) }
    });
    fs::write(bench.at("out.end"), "").unwrap();
    apply.wait_for_end(1, "default/till");
    let unit = bench.fleet.unit("default/config", |unit| unit["observed"]["rolled_back"].is_object());
    let why = unit["observed"]["rolled_back"]["error"]["message"].as_str().unwrap();
    assert!(why.starts_with("it belongs together with default/till, which has failed: "), "{why}");
    eventually("the file as it was", || match fs::read_to_string(bench.at("conf")) {
        Ok(text) if text == "1" => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let tasks = tasks();
    assert!(tasks["owed"].is_null(), "{tasks}");
}

//! Units of files, and what their changes want: the agent is killed around each commit of what is made, of the tasks that make it,
//! and of what is owed afterwards. Whenever that is, the files are as described, each restart is done once, and each program is run.

use std::{fs, path::PathBuf, sync::Arc};

use serde_json::{Value, json};

use super::{SERVER, agent::Agent, agent::Point, in_source};
use crate::{
    fleet::{eventually, file},
    roles::Roles,
};

/// What the names of these places begin with. The agent comes to all of them in each round.
const ABOUT: [&str; 9] = [
    "intend files",
    "files/",
    "note files",
    "stop files",
    "forget files",
    "begin task",
    "keep task log",
    "end task",
    "owed",
];

/// What is done about tasks of an agent that was killed: it needs one that ran then.
const INTERRUPTED: [&str; 3] =
    ["owed action/before it is done", "interrupt tasks/before commit", "interrupt tasks/after commit"];

const UNIT: &str = "default/config";

struct Trial {
    roles: Arc<Roles>,
    rounds: usize,
}

impl Trial {
    fn at(&self, name: &str) -> PathBuf {
        self.roles.home.path().canonicalize().unwrap().join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.at(name)).unwrap_or_default()
    }

    /// How often the yuno was started.
    fn starts(&self) -> usize {
        self.text("agent/units/default/till/work/starts").lines().count()
    }

    /// Writes the document of files that hold this, and of what their change wants.
    fn document(&self, text: &str) -> String {
        // It fails at first. Then it runs for longer than what it says is kept in memory alone.
        let script = format!(
            "[ -e failed-{text} ] || {{ touch failed-{text}; exit 1; }}; echo begins; sleep 5.5; echo {text} >> ran"
        );
        let script = format!("cd {} && {script}", self.at("").display());
        let on_change = json!([
            {"do": {"restart": "default/till"}},
            {"do": {"run": ["sh", "-c", script]}},
        ]);
        let files = json!({
            self.at("made").to_str().unwrap(): {"text": text},
            self.at("taken").to_str().unwrap(): {"text": text},
        });
        let document = json!({"unit": UNIT, "kind": "files", "run": "running", "files": files, "on_change": on_change});
        file(&self.roles.home, "config.json", &document.to_string())
    }

    /// Has files made, and what their change wants done; then they are given back.
    fn round(&mut self) {
        self.rounds += 1;
        let (text, starts) = (self.rounds.to_string(), self.starts());
        fs::write(self.at("taken"), "before").unwrap();
        self.roles.ok(&["unit", "apply", &self.document(&text), "--wait-offline"]);
        eventually("files as they are described", || {
            let all = [self.text("made"), self.text("taken")];
            if all.iter().all(|there| *there == text) { Ok(()) } else { Err(format!("{all:?}")) }
        });
        eventually("what the change wants", || {
            let run = self.roles.home.muster(&["-o", "json", "unit", "tasks", UNIT]);
            let tasks: Value = serde_json::from_str(&run.stdout).map_err(|_| run.stderr.clone())?;
            // At least once: a program whose end was not noted is run again.
            let is_run = self.text("ran").lines().last() == Some(text.as_str());
            if is_run && tasks["owed"].is_null() { Ok(()) } else { Err(tasks.to_string()) }
        });
        assert_eq!(self.starts(), starts + 1, "it was restarted once");
        self.roles.ok(&["unit", "retire", UNIT, "--wait-offline"]);
        self.roles.ok(&["unit", "rm", UNIT, "--wait-offline"]);
        eventually("the files before the change", || {
            let all = [self.text("made"), self.text("taken")];
            if all == ["", "before"] { Ok(()) } else { Err(format!("{all:?}")) }
        });
        eventually("no folder", || {
            let folder = self.at("agent/files/units/default/config");
            if folder.exists() { Err("it is there".to_owned()) } else { Ok(()) }
        });
    }
}

#[test]
fn agent_makes_files_and_does_what_they_want_after_kill_at_any_place() {
    let roles = Arc::new(Roles::start());
    let path = file(&roles.home, "server", SERVER);
    roles.ok(&["artifact", "create", &path, "--role", "server", "--version", "1"]);
    let agent = Agent::start(&roles, "");
    roles.wait_for_host("online");
    roles.ok(&["yuno", "create", "default/till", "--artifact", "server", "--run"]);
    let mut trial = Trial { roles, rounds: 0 };
    trial.round();
    let names: Vec<String> =
        in_source().into_iter().filter(|name| ABOUT.iter().any(|about| name.starts_with(about))).collect();
    let passed = agent.passed(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let missing: Vec<_> = names.iter().zip(passed).filter(|(_, count)| *count == 0).collect();
    assert!(missing.is_empty(), "the round does not come to {missing:?}");
    for name in names {
        let point: Point = (name, 1);
        agent.kill_at([point.clone()]);
        agent.restart();
        trial.round();
        assert_eq!(agent.killed().last(), Some(&point));
    }
    let points = INTERRUPTED.map(|name| (name.to_owned(), 1));
    agent.kill_at(points.clone());
    agent.restart();
    trial.round();
    assert!(agent.killed().ends_with(&points), "{:?}", agent.killed());
}

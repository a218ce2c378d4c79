//! More commands than may run at once: they wait in order, also when the agent is killed, and one beyond the limit
//! is sent again.

use std::fs;

use serde_json::Value;

use crate::{
    fleet::{Running, eventually},
    roles::Roles,
};

struct Bench {
    roles: Roles,
    agent: Option<Running>,
    config: String,
}

impl Bench {
    /// An agent that runs one command at once, and has so many wait.
    fn start(queue_max: usize) -> Self {
        let roles = Roles::start();
        let config = roles.agent_config_with(&format!("[exec]\nparallel_max = 1\nqueue_max = {queue_max}"));
        let agent = Running::start(roles.home.command().args(["agent", "--config", &config, "--join", &roles.token()]));
        roles.wait_for_host("online");
        Self { roles, agent: Some(agent), config }
    }

    fn exec(&self, more: &[&str], script: &str) -> String {
        let args = [&["exec", "--no-wait"], more, &["--shell", "--", script]].concat();
        self.roles.ok(&args).trim().to_owned()
    }

    /// One that runs until the gate is opened, and has begun.
    fn gated(&self) -> String {
        let script = format!("while ! test -e {}; do sleep 0.05; done", self.gate());
        let id = self.exec(&[], &script);
        self.state(&id, "running");
        id
    }

    fn gate(&self) -> String {
        self.roles.home.path().join("gate").display().to_string()
    }

    fn open(&self) {
        fs::write(self.gate(), "").unwrap();
    }

    fn host(&self, id: &str) -> Value {
        self.roles.json(&["command", "show", id])["hosts"][0].clone()
    }

    fn state(&self, id: &str, wanted: &str) {
        eventually(wanted, || {
            let host = self.host(id);
            if host["state"] == wanted { Ok(()) } else { Err(host.to_string()) }
        });
    }

    fn outcome(&self, id: &str) -> Value {
        self.state(id, "done");
        self.host(id)["outcome"]["value"].clone()
    }

    fn effects(&self) -> String {
        fs::read_to_string(self.roles.home.path().join("effects")).unwrap_or_default()
    }

    /// A line that notes that it ran.
    fn note(&self, word: &str) -> String {
        format!("echo {word} >> {}", self.roles.home.path().join("effects").display())
    }
}

#[test]
fn queued_commands_run_in_order_and_excess_is_resent() {
    let bench = Bench::start(2);
    let first = bench.gated();
    let second = bench.exec(&["--timeout", "2s"], &bench.note("second"));
    let third = bench.exec(&[], &bench.note("third"));
    bench.state(&third, "accepted");
    assert!(bench.roles.ok(&["command", "ls"]).contains("queued on the host"));
    // There is no time left to come again; with more of it, it does.
    bench
        .roles
        .home
        .muster(&["exec", "--expires", "5s", "--", "true"])
        .expect_code(3)
        .expect_stderr("2 are waiting, the maximum");
    let fourth = bench.exec(&[], &bench.note("fourth"));
    // Longer than its time limit: that begins with the program.
    std::thread::sleep(std::time::Duration::from_millis(2_500));
    bench.open();
    for id in [first, second, third, fourth] {
        assert_eq!(bench.outcome(&id)["exit"]["code"], 0);
    }
    assert_eq!(bench.effects(), "second\nthird\nfourth\n");
}

#[test]
fn queued_command_is_cancelled_or_expires() {
    let bench = Bench::start(4);
    let first = bench.gated();
    let cancelled = bench.exec(&[], &bench.note("cancelled"));
    let expiring = bench.exec(&["--expires", "2s"], &bench.note("expired"));
    let last = bench.exec(&[], &bench.note("last"));
    bench.state(&cancelled, "accepted");
    bench.roles.ok(&["command", "cancel", &cancelled]);
    let outcome = bench.outcome(&cancelled);
    assert_eq!((outcome["status"].as_str(), outcome.get("started_ms")), (Some("cancelled"), None));
    let outcome = eventually("the refusal", || {
        let host = bench.host(&expiring);
        let outcome = host["outcome"]["value"].clone();
        if outcome.is_object() { Ok(outcome) } else { Err(host.to_string()) }
    });
    assert_eq!((outcome["status"].as_str(), outcome["code"].as_str()), (Some("refused"), Some("expired")));
    bench.open();
    assert_eq!(bench.outcome(&first)["exit"]["code"], 0);
    assert_eq!(bench.outcome(&last)["exit"]["code"], 0);
    assert_eq!(bench.effects(), "last\n");
}

#[test]
fn queued_command_survives_agent_and_runs_once() {
    let mut bench = Bench::start(4);
    let first = bench.gated();
    let waiting: Vec<String> = ["second", "third"].iter().map(|word| bench.exec(&[], &bench.note(word))).collect();
    bench.state(&waiting[1], "accepted");
    bench.agent.take().unwrap().kill();
    bench.agent = Some(Running::start(bench.roles.home.command().args(["agent", "--config", &bench.config])));
    bench.roles.wait_for_host("online");
    assert_eq!(bench.effects(), "", "the first one still has the only place");
    bench.open();
    assert_eq!(bench.outcome(&first)["exit"]["code"], 0);
    for id in waiting {
        assert_eq!(bench.outcome(&id)["exit"]["code"], 0);
    }
    assert_eq!(bench.effects(), "second\nthird\n");
}

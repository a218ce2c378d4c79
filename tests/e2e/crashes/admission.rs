//! Versions that are rolled out: the agent is killed around each commit between its question and the end of a version. Whenever
//! that is, a version begins once and ends once, and neither its permit nor its outcome is lost.

use std::{collections::BTreeSet, fs, sync::Arc};

use serde_json::Value;

use super::{SERVER, agent::Agent, agent::Point};
use crate::{
    fleet::{eventually, file},
    roles::Roles,
};

/// The commits of a version that succeeds.
const PLACES: [&str; 3] = ["begin deployment", "end deployment", "note end of deployment"];

const DEPLOYMENT: &str = "default/shop";

struct Trial {
    roles: Arc<Roles>,
    versions: usize,
}

impl Trial {
    fn apply(&self, artifact: &str) {
        let text = format!(
            "deployment: {DEPLOYMENT}\ntarget: {{select: 'host=*'}}\nrollout: {{}}\nunits:\n- name: shop\n  \
             artifact: server@{artifact}\n  verify_after_ms: 300\n  started_after_ms: 100\n  args: ['{}']\n",
            self.versions
        );
        let path = file(&self.roles.home, "shop.yaml", &text);
        self.roles.ok(&["deployment", "apply", &path, "--yes", "--no-wait"]);
    }

    /// Waits until the host has ended the present version in this way.
    fn host(&self, what: &str, wanted: impl Fn(&Value) -> bool) {
        eventually(what, || {
            let hosts = self.roles.json(&["rollout", "hosts", DEPLOYMENT]);
            if wanted(&hosts[0]) { Ok(()) } else { Err(hosts.to_string()) }
        });
    }

    fn rollout(&self, what: &str, wanted: impl Fn(&Value) -> bool) {
        eventually(what, || {
            let shown = self.roles.json(&["rollout", "show", DEPLOYMENT]);
            if wanted(&shown) { Ok(()) } else { Err(shown.to_string()) }
        });
    }

    fn starts(&self) -> usize {
        let noted = self.roles.home.path().join("agent/units/default/shop/work/starts");
        fs::read_to_string(noted).unwrap_or_default().lines().count()
    }

    /// Rolls another version out.
    fn round(&mut self) {
        self.versions += 1;
        self.apply("1");
        self.rollout("the end of the rollout", |shown| {
            shown["version"] == self.versions && shown["phase"]["kind"] == "completed" && shown["in_flight"] == 0
        });
        self.host("a verified host", |host| host["outcome"] == "verified" && host["failures"] == 0);
        assert_eq!(self.starts(), self.versions, "each was started once");
    }

    /// Rolls out one that fails, and has it tried again.
    fn failing_round(&mut self) {
        self.versions += 1;
        self.apply("bad");
        self.host("a host that went back", |host| host["outcome"] == "rolled_back");
        let hosts = self.roles.json(&["rollout", "hosts", DEPLOYMENT]);
        let admitted_ms = hosts[0]["admitted_ms"].as_i64().unwrap();
        for verb in ["retry", "resume"] {
            self.roles.ok(&["rollout", verb, DEPLOYMENT]);
        }
        self.host("another failure", |host| {
            host["outcome"] == "rolled_back"
                && host["admitted_ms"].as_i64().is_some_and(|again_ms| again_ms > admitted_ms)
        });
    }
}

fn fleet() -> (Agent, Trial) {
    let roles = Arc::new(Roles::start());
    for (version, content) in [("1", SERVER), ("bad", "#!/bin/sh\nexit 3\n")] {
        let path = file(&roles.home, "server", content);
        roles.ok(&["artifact", "create", &path, "--role", "server", "--version", version]);
    }
    let agent = Agent::start(&roles, "");
    roles.wait_for_host("online");
    let mut trial = Trial { roles, versions: 0 };
    trial.round();
    (agent, trial)
}

/// Kills the agent around a commit of a round.
fn kill_at(agent: &Agent, place: &str, mut round: impl FnMut()) {
    for when in ["before commit", "after commit"] {
        let point: Point = (format!("{place}/{when}"), 1);
        agent.kill_at([point.clone()]);
        agent.restart();
        round();
        // What the agent notes afterwards nobody else sees.
        eventually("the agent's end", || match agent.killed() {
            killed if killed.last() == Some(&point) => Ok(()),
            killed => Err(format!("{killed:?}")),
        });
    }
}

#[test]
fn version_begins_and_ends_once_after_kill_at_any_place() {
    let (agent, mut trial) = fleet();
    let names = PLACES.map(|place| format!("{place}/after commit"));
    let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    // What the agent notes afterwards nobody else sees.
    eventually("the agent's end of the version", || {
        let passed = agent.passed(&names.iter().copied().collect::<Vec<_>>());
        if passed == [1; PLACES.len()] { Ok(()) } else { Err(format!("{passed:?}: {names:?}")) }
    });
    for place in PLACES {
        kill_at(&agent, place, || trial.round());
    }
}

#[test]
fn version_that_failed_is_tried_again_after_kill_at_any_place() {
    let (agent, mut trial) = fleet();
    kill_at(&agent, "retry deployment", || trial.failing_round());
}

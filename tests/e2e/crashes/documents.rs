//! The host's document: the agent is killed around each commit of what a document changes, and of the removals that it asks
//! for. Whenever that is, each version is started once, and what is to go goes once.

use std::{collections::BTreeSet, fs, sync::Arc};

use serde_json::Value;

use super::{SERVER, agent::Agent, agent::Point};
use crate::{
    fleet::{eventually, file},
    roles::Roles,
};

/// A removal is two commits of one name: the unit is stopped, and then removed.
const PLACES: [(&str, usize); 6] = [
    ("store document/before commit", 1),
    ("store document/after commit", 1),
    ("remove units/before commit", 1),
    ("remove units/after commit", 1),
    ("remove units/before commit", 2),
    ("remove units/after commit", 2),
];

const DEPLOYMENT: &str = "default/shop";

struct Trial {
    roles: Arc<Roles>,
    versions: usize,
}

impl Trial {
    /// Deploys another version, and removes it once it runs.
    fn round(&mut self) {
        self.versions += 1;
        let text = format!(
            "deployment: {DEPLOYMENT}\ntarget: {{select: 'host=*'}}\nunits:\n- name: shop\n  artifact: server@1\n  \
             args: ['{}']\n",
            self.versions
        );
        let path = file(&self.roles.home, "shop.yaml", &text);
        self.roles.ok(&["deployment", "apply", &path, "--yes", "--no-wait"]);
        eventually("a unit that runs", || {
            let run = self.roles.home.muster(&["-o", "json", "unit", "show", DEPLOYMENT]);
            let shown: Value = serde_json::from_str(&run.stdout).map_err(|_| run.stderr.clone())?;
            if shown["observed"]["phase"] == "running" { Ok(()) } else { Err(shown.to_string()) }
        });
        self.roles.ok(&["deployment", "rm", DEPLOYMENT, "--yes", "--no-wait"]);
        eventually("the end of the unit", || {
            let units = self.roles.json(&["unit", "ls"]);
            if units.as_array().unwrap().is_empty() {
                return Ok(());
            }
            // By itself a host removes one in a day. It refuses this until it has the document that removes the unit.
            self.roles.home.muster(&["unit", "rm", DEPLOYMENT, "--no-wait"]);
            Err(units.to_string())
        });
        let folder = self.roles.home.path().join("agent/units/default/shop");
        eventually("no folder", || if folder.exists() { Err("it is there".to_owned()) } else { Ok(()) });
        // What the versions have written was kept.
        let noted = self.roles.home.path().join("agent/kept/default/shop/starts");
        assert_eq!(fs::read_to_string(noted).unwrap().lines().count(), self.versions, "each was started once");
    }
}

#[test]
fn agent_follows_documents_after_kill_at_any_place() {
    let roles = Arc::new(Roles::start());
    let path = file(&roles.home, "server", SERVER);
    roles.ok(&["artifact", "create", &path, "--role", "server", "--version", "1"]);
    let agent = Agent::start(&roles, "");
    roles.wait_for_host("online");
    let mut trial = Trial { roles, versions: 0 };
    trial.round();
    let names: BTreeSet<&str> = PLACES.iter().map(|(name, _)| *name).collect();
    let passed = agent.passed(&names.iter().copied().collect::<Vec<_>>());
    assert!(passed.iter().all(|count| *count >= 2), "{names:?}: {passed:?}");
    for (name, count) in PLACES {
        let point: Point = (name.to_owned(), count);
        agent.kill_at([point.clone()]);
        agent.restart();
        trial.round();
        assert_eq!(agent.killed().last(), Some(&point));
    }
}

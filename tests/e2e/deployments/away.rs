//! A host that is away for a day: by a clock that everybody has, and that is moved.

use std::fs;

use serde_json::json;

use super::Bench;
use crate::{clock::Clock, fleet::Home, roles::Roles};

const SHOP: &str = "default/shop";

struct Trial {
    bench: Bench,
    clock: Clock,
}

impl Trial {
    /// Two hosts in version 1.
    fn start() -> Self {
        let mut home = Home::new();
        let clock = Clock::new(home.path(), "everybody");
        clock.give_to_all(&mut home);
        let bench = Bench::start_with(Roles::start_in(home, String::new()), &["one", "two"]);
        bench.add_noting_program();
        let trial = Self { bench, clock };
        trial.apply(1);
        trial.bench.verified(SHOP, 1);
        trial
    }

    fn apply(&self, version: usize) {
        let path = self.bench.write_units(SHOP, &[("till", version.to_string())]);
        self.bench.roles.ok(&["deployment", "apply", &path, "--yes", "--no-wait"]);
    }

    /// The second host goes away.
    fn leave(&mut self) {
        self.bench.agents[1].take().unwrap().kill();
        self.bench.online(1);
    }
}

#[test]
fn host_that_was_away_for_a_day_gets_the_last_version_at_once() {
    let mut trial = Trial::start();
    trial.leave();
    trial.apply(2);
    trial.bench.states(&json!({"away": 1, "verified": 1}));
    trial.clock.set("+12h");
    trial.apply(3);
    trial.bench.states(&json!({"away": 1, "verified": 1}));
    trial.clock.set("+24h");
    trial.bench.run_agent(1, &[]);
    trial.bench.verified(SHOP, 3);
    assert_eq!(trial.bench.noted("one", "till"), ["1", "2", "3"]);
    assert_eq!(trial.bench.noted("two", "till"), ["1", "3"]);
}

#[test]
fn host_that_was_away_when_the_console_was_lost_gets_what_others_have_handed_in() {
    let mut trial = Trial::start();
    trial.leave();
    trial.apply(2);
    trial.bench.states(&json!({"away": 1, "verified": 1}));
    trial.clock.set("+12h");
    trial.bench.roles.kill_console();
    for name in ["console.db", "console.db-wal", "console.db-shm"] {
        let _ = fs::remove_file(trial.bench.roles.home.path().join("console").join(name));
    }
    trial.bench.roles.start_console();
    // What the one that is there has is confirmed before the other one comes back.
    let alone = vec![trial.bench.names[0].clone()];
    super::restored::wait_for_unconfirmed(&trial.bench, 1);
    super::restored::dry_run(&trial.bench, &alone, &[]);
    trial.bench.roles.ok(&["deployment", "confirm", "--all", "--yes"]);
    trial.clock.set("+24h");
    trial.bench.run_agent(1, &[]);
    super::restored::wait_for_unconfirmed(&trial.bench, 1);
    assert_eq!(trial.bench.noted("two", "till"), ["1"], "it is sent nothing");
    let late = vec![trial.bench.names[1].clone()];
    let (_, shown) = super::restored::dry_run(&trial.bench, &late, &[]).remove(0);
    let replaced = json!([{"deployment": SHOP, "host_version": 1, "console_version": 2, "action": "replace"}]);
    assert_eq!(shown["deployments"], replaced, "{shown}");
    trial.bench.roles.ok(&["deployment", "confirm", "--all", "--yes"]);
    trial.bench.verified(SHOP, 2);
    for host in ["one", "two"] {
        assert_eq!(trial.bench.noted(host, "till"), ["1", "2"], "{host}");
    }
}

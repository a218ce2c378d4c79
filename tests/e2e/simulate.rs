//! `muster simulate`: many hosts in one process, which keep an agent's promises.

use std::path::PathBuf;

use serde_json::Value;

use crate::{
    fleet::{Running, eventually},
    roles::Roles,
};

const HOSTS: usize = 50;

/// A simulation into the fleet of these roles, in a folder of its own.
struct Simulation<'a> {
    roles: &'a Roles,
    data: PathBuf,
}

impl<'a> Simulation<'a> {
    fn new(roles: &'a Roles, name: &str) -> Self {
        Self { roles, data: roles.home.path().join(name) }
    }

    /// Starts it, and waits until all its hosts are online.
    fn start(&self, hosts: usize, more: &[&str]) -> Running {
        let mut running = self.begin(hosts, more);
        running.wait_for("all hosts to be online", |printed| {
            printed.contains(&format!("{hosts} hosts online")).then_some(())
        });
        running
    }

    /// The same, and until the console has heard that of each.
    fn start_and_be_heard(&self, hosts: usize) -> Running {
        let running = self.start(hosts, &[]);
        eventually("all hosts to be online in the console", || {
            let shown = self.roles.json(&["host", "ls"]);
            let is_online = |host: &&Value| host["presence"]["state"] == "online";
            let online = shown.as_array().unwrap().iter().filter(is_online).count();
            if online == hosts { Ok(()) } else { Err(format!("{online} of {hosts}")) }
        });
        running
    }

    fn begin(&self, hosts: usize, more: &[&str]) -> Running {
        let (data, hosts) = (self.data.to_str().unwrap(), hosts.to_string());
        let args = ["-o", "json", "simulate", "--hosts", &hosts, "--data-dir", data, "--ramp", "0s", "--every", "1s"];
        Running::start(self.roles.home.command().args(args).args(more))
    }
}

/// What a simulation printed at its end.
#[track_caller]
fn summary(running: Running) -> Value {
    let (code, printed) = running.stop();
    assert_eq!(code, 0, "{printed}");
    let last = printed.lines().rfind(|line| line.starts_with('{')).unwrap_or_else(|| panic!("no summary in {printed}"));
    serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {printed}"))
}

/// Waits until every host is done with a command; gives how many it was, and how many of them succeeded.
fn all_done(roles: &Roles, id: &str) -> (usize, usize) {
    eventually("every outcome", || {
        let shown = roles.json(&["command", "show", id]);
        let hosts = shown["hosts"].as_array().unwrap();
        let done: Vec<_> = hosts.iter().filter(|host| host["state"] == "done").collect();
        if done.len() < hosts.len() {
            return Err(format!("{} of {}", done.len(), hosts.len()));
        }
        let succeeded = done.iter().filter(|host| host["outcome"]["value"]["exit"]["code"] == 0).count();
        Ok((done.len(), succeeded))
    })
}

fn order(roles: &Roles) -> String {
    roles.ok(&["exec", "--all", "--no-wait", "--", "true"]).trim().to_owned()
}

#[test]
fn fifty_simulated_hosts_lose_and_repeat_nothing() {
    let mut roles = Roles::start();
    let data = Simulation::new(&roles, "simulation").data;
    let running = Simulation { roles: &roles, data: data.clone() }.start_and_be_heard(HOSTS);
    roles.ok(&["exec", "--all", "--", "true"]);
    let hosts = roles.json(&["host", "ls"]);
    let hosts = hosts.as_array().unwrap();
    assert_eq!(hosts.len(), HOSTS);
    assert!(hosts.iter().all(|host| host["state"]["value"]["labels"]["simulated"] == "true"), "{hosts:?}");
    // Each decides for itself whether it is meant, as an agent does.
    for (target, count) in [
        (["--select", "host=sim-0001?"], 10),
        (["--select", "fact.cpus>=1 and not host=sim-0000*"], HOSTS - 10),
        (["--select", "label.simulated"], HOSTS),
    ] {
        let args = [&["exec", "--no-wait"], &target[..], &["--", "true"]].concat();
        let id = roles.ok(&args).trim().to_owned();
        assert_eq!(all_done(&roles, &id), (count, count), "{target:?}");
    }

    // Killed, ordered while it is away, and back: with the same certificates, and the same journal.
    running.kill();
    let id = order(&roles);
    let simulation = Simulation { roles: &roles, data };
    let running = simulation.start(HOSTS, &["--takes", "3s"]);
    assert!(!running.printed().contains("join"), "{}", running.printed());
    assert_eq!(all_done(&roles, &id), (HOSTS, HOSTS));

    // Killed in the middle of it.
    let id = order(&roles);
    eventually("a command is restored everywhere", || {
        let shown = roles.json(&["command", "show", &id]);
        let running = shown["hosts"].as_array().unwrap().iter().filter(|host| host["state"] == "running").count();
        if running == HOSTS { Ok(()) } else { Err(running.to_string()) }
    });
    running.kill();
    let running = simulation.start(HOSTS, &[]);
    assert_eq!(all_done(&roles, &id), (HOSTS, HOSTS));

    // The broker comes back empty.
    roles.restart_broker();
    let id = order(&roles);
    assert_eq!(all_done(&roles, &id), (HOSTS, HOSTS));

    eventually("every acknowledgement", || {
        let printed = running.printed();
        let known = |line: &str| serde_json::from_str::<Value>(line).is_ok_and(|told| told["waiting"] == 0);
        if printed.lines().rfind(|line| line.starts_with('{')).is_some_and(known) { Ok(()) } else { Err(printed) }
    });
    let told = summary(running);
    assert_eq!((&told["twice"], &told["hosts"], &told["rejected"]), (&0.into(), &HOSTS.into(), &0.into()), "{told}");
    assert!(told["connects"].as_u64().unwrap() >= 2 * HOSTS as u64, "{told}");
    assert!(told["in_bytes"].as_u64().unwrap() > 0 && told["out_bytes"].as_u64().unwrap() > 0, "{told}");
    eventually("every goodbye", || {
        let hosts = roles.json(&["host", "ls"]);
        let stopped = hosts.as_array().unwrap().iter().filter(|host| host["presence"]["state"] == "stopped").count();
        if stopped == HOSTS { Ok(()) } else { Err(stopped.to_string()) }
    });
}

#[test]
fn simulated_hosts_fail_leave_and_come_back() {
    let roles = Roles::start();
    let tokens = roles.ok(&["token", "create", "--count", "8"]);
    assert_eq!(tokens.lines().count(), 8);
    let path = crate::fleet::file(&roles.home, "tokens", &tokens);
    let simulation = Simulation::new(&roles, "simulation");
    let running =
        simulation.start(8, &["--tokens", &path, "--fail", "100%", "--churn", "100%/min", "--takes", "500ms"]);
    let id = order(&roles);
    assert_eq!(all_done(&roles, &id), (8, 0));
    eventually("a host that has left", || {
        let printed = running.printed();
        let left = |line: &str| serde_json::from_str::<Value>(line).is_ok_and(|told| told["left"].as_u64() > Some(0));
        if printed.lines().any(left) { Ok(()) } else { Err(printed) }
    });
    let id = order(&roles);
    assert_eq!(all_done(&roles, &id), (8, 0));
    let told = summary(running);
    assert!(told["left"].as_u64().unwrap() > 0, "{told}");
    assert_eq!(told["twice"], 0, "{told}");

    // The fleet has hosts now that another simulation knows nothing of.
    let other = Simulation::new(&roles, "other");
    other.begin(2, &[]).wait_for_end(3, "--yes");
    let running = other.start(2, &["--yes"]);
    other.begin(2, &[]).wait_for_end(1, "another simulation");
    summary(running);
    // Nor do hosts of one fleet go into another.
    let elsewhere = Roles::start();
    let tokens = elsewhere.ok(&["token", "create", "--count", "3"]);
    let path = crate::fleet::file(&roles.home, "elsewhere", &tokens);
    other.begin(5, &["--tokens", &path]).wait_for_end(3, "another fleet");
}

#[test]
fn simulated_hosts_take_part_in_a_rotation_and_have_the_key_after_a_restart() {
    let roles = Roles::start();
    let simulation = Simulation::new(&roles, "simulation");
    let running = simulation.start_and_be_heard(HOSTS);
    roles.ok(&["authority", "rotate", "signing"]);
    let having = |of: &str, count: usize| {
        eventually("hosts with the key", || {
            let status = roles.json(&["authority", "show"]);
            if status[of]["having"] == count { Ok(()) } else { Err(status.to_string()) }
        });
    };
    having("rotation", HOSTS);
    roles.ok(&["authority", "finish"]);
    roles.ok(&["exec", "--all", "--", "true"]);
    having("last_rotation", HOSTS);
    // Killed, it has stored the key.
    running.kill();
    let running = simulation.start_and_be_heard(HOSTS);
    roles.ok(&["exec", "--all", "--", "true"]);
    assert_eq!(summary(running)["rejected"], 0);
}

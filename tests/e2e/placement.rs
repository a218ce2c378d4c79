//! Instances that the console places on several real hosts: placed, scaled in place, waiting with reasons, moved by a cordon, a drain and
//! an absence.

use std::{collections::BTreeMap, time::Duration};

use muster_shim::process_identity;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::{
    fleet::{Running, eventually, file, free_ports},
    roles::Roles,
};

/// Hosts `h0`, `h1`, … on this machine, the even ones at one site.
struct Bench {
    // Ended before the home goes away.
    agents: Vec<Option<Running>>,
    roles: Roles,
}

impl Bench {
    fn start(hosts: usize) -> Self {
        let mut roles = Roles::start();
        roles.hosts_port = free_ports(1);
        roles.restart_console();
        let mut bench = Self { agents: Vec::new(), roles };
        for place in 0..hosts {
            let data = bench.roles.home.path().join(format!("h{place}"));
            let site = if place.is_multiple_of(2) { "north" } else { "south" };
            let text = format!("data_dir = \"{}\"\n[labels]\nhost = \"h{place}\"\nsite = \"{site}\"\n", data.display());
            file(&bench.roles.home, &format!("h{place}.toml"), &text);
            bench.agents.push(None);
            bench.run_agent(place, &["--join", &bench.roles.token()]);
        }
        eventually("hosts online", || {
            let hosts = bench.roles.json(&["host", "ls"]);
            let is_online = |host: &&Value| host["presence"]["state"] == "online" && host["state"].is_object();
            let found = hosts.as_array().unwrap().iter().filter(is_online).count();
            if found == bench.agents.len() { Ok(()) } else { Err(hosts.to_string()) }
        });
        let starts = bench.roles.home.path().join("starts");
        let program =
            file(&bench.roles.home, "web", &format!("#!/bin/sh\necho $$ >> {}\nexec sleep 1000\n", starts.display()));
        bench.roles.ok(&["artifact", "create", &program, "--role", "web", "--version", "1"]);
        bench.roles.ok(&["host", "label", "--all", "role=web", "--yes"]);
        bench
    }

    fn run_agent(&mut self, place: usize, more: &[&str]) {
        let config = self.roles.home.path().join(format!("h{place}.toml")).display().to_string();
        let args = [&["agent", "--config", &config], more].concat();
        self.agents[place] = Some(Running::start(self.roles.home.command().args(args)));
    }

    /// The processes that instances have had so far.
    fn starts(&self) -> Vec<i32> {
        let written = std::fs::read_to_string(self.roles.home.path().join("starts")).unwrap_or_default();
        written.lines().map(|pid| pid.parse().unwrap()).collect()
    }

    fn write(&self, count: usize, placement: &Value) -> String {
        let unit = json!({
            "name": "web", "artifact": "web@1", "count": count, "placement": placement, "verify_after_ms": 100,
            "limits": {"memory_bytes": 33_554_432},
        });
        let document = json!({"deployment": "default/web", "target": {"select": "label.role=web"}, "unit": unit});
        file(&self.roles.home, "web.json", &document.to_string())
    }

    fn apply(&self, count: usize, placement: &Value) -> Value {
        self.roles.json(&["deployment", "apply", &self.write(count, placement), "--yes"])
    }

    /// The hosts' ids by their labels.
    fn ids(&self) -> BTreeMap<String, String> {
        let of = |place: usize| {
            let label = format!("h{place}");
            let found = self.roles.json(&["host", "ls", "--select", &format!("label.host={label}")]);
            (label, found[0]["id"].as_str().unwrap().to_owned())
        };
        (0..self.agents.len()).map(of).collect()
    }

    fn shown(&self) -> Value {
        self.roles.json(&["deployment", "show", "default/web"])
    }

    /// The label of the host that has each instance, as the console wants it.
    fn places(&self) -> BTreeMap<String, String> {
        let ids: BTreeMap<String, String> = self.ids().into_iter().map(|(label, id)| (id, label)).collect();
        let shown = self.shown();
        let mut places = BTreeMap::new();
        for host in shown["on_hosts"].as_array().unwrap() {
            let label = &ids[host["host"].as_str().unwrap()];
            for instance in host["instances"].as_array().into_iter().flatten() {
                places.insert(instance.as_str().unwrap().to_owned(), label.clone());
            }
        }
        places
    }

    /// The process of each instance that runs, by instance and host.
    fn running(&self) -> BTreeMap<(String, String), u64> {
        let ids: BTreeMap<String, String> = self.ids().into_iter().map(|(label, id)| (id, label)).collect();
        let units = self.roles.json(&["unit", "ls"]);
        let mut found = BTreeMap::new();
        for unit in units.as_array().unwrap() {
            if let (true, Some(pid)) = (unit["observed"]["phase"] == "running", unit["observed"]["pid"].as_u64()) {
                let host = ids[unit["host"].as_str().unwrap()].clone();
                found.insert((unit["unit"].as_str().unwrap().to_owned(), host), pid);
            }
        }
        found
    }

    /// Waits until there is an alert of instances that wait, or none.
    #[track_caller]
    fn alerted(&self, is_raised: bool) {
        eventually("an alert of instances, or its end", || {
            let alerts = self.roles.json(&["alert", "ls"]);
            let is_of_instances = |one: &Value| one["alert"]["rule"] == "console-instances-wait";
            let found = alerts.as_array().unwrap().iter().any(is_of_instances);
            if found == is_raised { Ok(()) } else { Err(alerts.to_string()) }
        });
    }

    /// Waits until what runs is what is placed.
    #[track_caller]
    fn settled(&self) -> BTreeMap<String, String> {
        eventually("instances run where they are placed", || {
            let (places, running) = (self.places(), self.running());
            let runs: Vec<(String, String)> = running.into_keys().collect();
            let placed: Vec<(String, String)> = places.into_iter().collect();
            if runs == placed { Ok(()) } else { Err(format!("{runs:?} instead of {placed:?}")) }
        });
        self.places()
    }
}

fn on<'a>(places: &'a BTreeMap<String, String>, host: &str) -> Vec<&'a str> {
    places.iter().filter(|(_, at)| *at == host).map(|(instance, _)| instance.as_str()).collect()
}

#[test]
fn instances_are_placed_and_scaled_without_moving_others() {
    let bench = Bench::start(4);
    let rules = json!({"spread": "site", "max_per_host": 1});
    let file = bench.write(2, &rules);
    let dry: Value = bench.roles.json(&["deployment", "apply", &file, "--dry-run"]);
    let new = dry[0]["placement"][0]["new"].as_array().unwrap();
    assert_eq!(new.len(), 2, "{dry}");
    let plan = bench.roles.json(&["plan", &file]);
    assert_eq!(plan["deployments"][0]["change"]["placement"][0]["new"], dry[0]["placement"][0]["new"], "{plan}");
    bench.apply(2, &rules);
    let two = bench.settled();
    let sites: Vec<bool> = two.values().map(|host| host == "h0" || host == "h2").collect();
    assert!(sites.contains(&true) && sites.contains(&false), "{two:?}");
    let dry_hosts: Vec<&Value> = new.iter().map(|place| &place["to"]["host"]).collect();
    let ids = bench.ids();
    assert!(two.values().all(|host| dry_hosts.contains(&&json!(ids[host]))), "{two:?} instead of {new:?}");

    let before = bench.running();
    bench.apply(4, &rules);
    let four = bench.settled();
    assert_eq!(four.len(), 4);
    let after = bench.running();
    assert!(before.iter().all(|(key, pid)| after.get(key) == Some(pid)), "{before:?} and then {after:?}");

    // The fifth has no place; the others go on.
    let said =
        bench.roles.home.muster(&["deployment", "apply", &bench.write(5, &rules), "--yes"]).expect_code(1).stderr;
    assert!(said.contains("default/web-5 waits (4 hosts: full by `max_per_host: 1`)"), "{said}");
    assert_eq!(bench.settled(), four);
    let placement = &bench.shown()["placement"][0];
    assert_eq!((&placement["placed"], &placement["waiting"]), (&json!(4), &json!(["default/web-5"])));
    bench.alerted(true);

    bench.apply(1, &rules);
    let one = bench.settled();
    assert_eq!(one, four.iter().take(1).map(|(name, host)| (name.clone(), host.clone())).collect());
    assert!(bench.running().iter().all(|(key, pid)| after.get(key) == Some(pid)), "{after:?}");
    bench.alerted(false);
}

#[test]
fn cordon_keeps_a_drain_moves_and_an_absence_reschedules() {
    let mut bench = Bench::start(3);
    let rules = json!({"reschedule": "10s"});
    bench.apply(3, &rules);
    let first = bench.settled();
    assert_eq!(first.values().collect::<std::collections::BTreeSet<_>>().len(), 3, "{first:?}");
    let ids = bench.ids();

    // A cordoned host keeps its own, and gets no new ones.
    bench.roles.ok(&["host", "cordon", &ids["h0"]]);
    bench.apply(6, &rules);
    let six = bench.settled();
    assert_eq!((six.len(), on(&six, "h0"), on(&six, "h0").len()), (6, on(&first, "h0"), 1), "{six:?}");

    // A drained one has none as soon as the verb ends, and the others keep theirs.
    bench.roles.ok(&["host", "drain", &ids["h0"], "--yes"]);
    let left = bench.running();
    assert!(left.keys().all(|(_, host)| host != "h0"), "{left:?}");
    let drained = bench.settled();
    assert_eq!((drained.len(), on(&drained, "h0").len()), (6, 0), "{drained:?}");
    assert!(six.iter().filter(|(_, host)| *host != "h0").all(|(name, host)| drained[name] == *host), "{drained:?}");

    // Back, it takes what is new.
    bench.roles.ok(&["host", "uncordon", &ids["h0"]]);
    bench.apply(7, &rules);
    let seven = bench.settled();
    assert_eq!(on(&seven, "h0"), ["default/web-7"]);

    // A host that is lost for longer loses its instances; a shorter absence moves nobody.
    let lost = on(&seven, "h1").into_iter().map(str::to_owned).collect::<Vec<_>>();
    assert!(!lost.is_empty());
    bench.agents[1].take();
    eventually("instances move", || {
        let places = bench.places();
        if places.len() == 7 && on(&places, "h1").is_empty() { Ok(()) } else { Err(format!("{places:?}")) }
    });
    let moved = bench.places();
    assert!(seven.iter().filter(|(name, _)| !lost.contains(name)).all(|(name, host)| moved[name] == *host));
    bench.run_agent(1, &[]);
    bench.settled();
    assert_eq!(bench.places(), moved, "it gives up what has moved, and nothing moves back");

    // What is asked for does not wait for the hosts' policies, by which one unit of each may go in a day.
    bench.apply(2, &rules);
    assert_eq!(bench.settled().len(), 2);
    bench.apply(7, &rules);
    let kept = bench.settled();
    let (held, host) = kept.iter().next().unwrap();
    bench.roles.ok(&["unit", "hold", &format!("{}:{held}", ids[host])]);
    let said = bench.roles.home.muster(&["host", "drain", "--all", "--yes"]).expect_code(1).stderr;
    assert!(said.contains(&format!("{held} (kept until an operator removes it)")), "{said}");
    let left = bench.running();
    assert!(left.keys().all(|(unit, _)| unit == held), "{left:?}");
    let all = bench.roles.json(&["host", "cordon"]);
    let leaving: Vec<&Value> = all.as_array().unwrap().iter().filter_map(|host| host["leaving"].get(0)).collect();
    assert_eq!(leaving, [&json!({"unit": held, "is_kept": true})], "{all}");
}

#[test]
fn instance_that_may_have_moved_does_not_start_before_the_console_says_so() {
    let mut bench = Bench::start(1);
    bench.apply(1, &json!({"reschedule": "1h"}));
    bench.settled();
    let [pid] = bench.starts()[..] else { panic!("{:?}", bench.starts()) };
    // Agent, shim and instance end, as in a boot, while there is no console.
    bench.roles.stop_console();
    bench.agents[0].take().unwrap().kill();
    for ended in [process_identity::stat(pid).unwrap().ppid, pid] {
        kill(Pid::from_raw(ended), Signal::SIGKILL).unwrap();
    }
    bench.run_agent(0, &[]);
    let agent = bench.agents[0].as_mut().unwrap();
    agent.wait_for("a question", |printed| {
        printed.contains("the console has not confirmed yet which instances").then_some(())
    });
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(bench.starts(), [pid]);
    bench.roles.start_console();
    eventually("its second start", || match bench.starts()[..] {
        [_, _] => Ok(()),
        ref starts => Err(format!("{starts:?}")),
    });
}

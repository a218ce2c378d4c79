//! Deployments on real hosts: applied, changed, removed; hosts that were away, and a console that was killed.
//!
//! Modules: hosts that are [`away`] for a day; random [`kills`] of everybody while versions are applied; a console that was [`restored`], or whose store was
//! lost.

mod away;
mod kills;
mod restored;

use std::{fs, path::PathBuf};

use serde_json::{Value, json};

use crate::{
    fleet::{Running, eventually, file, free_ports},
    roles::Roles,
};

/// It notes each of its starts, and ends when it is asked.
const PROGRAM: &str = "#!/bin/sh\necho \"$1\" >> \"$2/started.$1\"\nexec sleep 1000\n";

/// It notes each of its starts in its own folder.
const NOTING: &str = "#!/bin/sh\necho $1 >> starts\nexec sleep 100000\n";

/// Hosts with the label `role=till`, which remove at once what is to go.
struct Bench {
    // Ended before the home goes away.
    agents: Vec<Option<Running>>,
    names: Vec<String>,
    roles: Roles,
}

impl Bench {
    fn start() -> Self {
        Self::start_with(Roles::start(), &["one", "two"])
    }

    /// Hosts of these names.
    fn start_with(mut roles: Roles, names: &[&str]) -> Self {
        // Hosts find a console that was started again.
        roles.hosts_port = free_ports(1);
        roles.restart_console();
        let agents = names.iter().map(|_| None).collect();
        let mut bench = Self { agents, names: names.iter().map(|name| (*name).to_owned()).collect(), roles };
        for (place, name) in names.iter().enumerate() {
            let data = bench.folder(name);
            let text =
                format!("data_dir = \"{}\"\nremoval_day_share = 1.0\n[labels]\nhost = \"{name}\"\n", data.display());
            file(&bench.roles.home, &format!("{name}.toml"), &text);
            bench.run_agent(place, &["--join", &bench.roles.token()]);
        }
        bench.online(names.len());
        for version in ["1", "2"] {
            let path = file(&bench.roles.home, "till", &format!("{PROGRAM}# {version}\n"));
            bench.roles.ok(&["artifact", "create", &path, "--role", "till", "--version", version]);
        }
        bench.roles.ok(&["host", "label", "--all", "role=till", "--yes"]);
        bench
    }

    fn folder(&self, host: &str) -> PathBuf {
        self.roles.home.path().join(host)
    }

    fn run_agent(&mut self, place: usize, more: &[&str]) {
        let config = self.roles.home.path().join(format!("{}.toml", self.names[place])).display().to_string();
        let agent = Running::start(self.roles.home.command().args(["agent", "--config", &config]).args(more));
        self.agents[place] = Some(agent);
    }

    fn online(&self, count: usize) {
        eventually("hosts online", || {
            let hosts = self.roles.json(&["host", "ls"]);
            let is_online = |host: &&Value| host["presence"]["state"] == "online" && host["state"].is_object();
            let found = hosts.as_array().unwrap().iter().filter(is_online).count();
            if found == count { Ok(()) } else { Err(hosts.to_string()) }
        });
    }

    /// The id of a host, which all have the same name here.
    fn id(&self, host: &str) -> String {
        let found = self.roles.json(&["host", "ls", "--select", &format!("label.host={host}")]);
        found[0]["id"].as_str().unwrap().to_owned()
    }

    fn write(&self, units: &[(&str, &str)]) -> String {
        let home = self.roles.home.path().display().to_string();
        let unit = |(name, version): &(&str, &str)| json!({"name": name, "artifact": format!("till@{version}"), "args": [name, home], "verify_after_ms": 0});
        let units: Vec<Value> = units.iter().map(unit).collect();
        let document = json!({"deployment": "default/shop", "target": {"select": "label.role=till"}, "units": units});
        file(&self.roles.home, "shop.yaml", &document.to_string())
    }

    /// Applies units, each with the version of its artifact, without waiting for hosts.
    fn apply(&self, units: &[(&str, &str)]) -> Value {
        self.roles.json(&["deployment", "apply", &self.write(units), "--yes", "--no-wait"])
    }

    /// Waits until the deployment has these numbers of hosts in each state.
    #[track_caller]
    fn states(&self, wanted: &Value) {
        eventually("the states of hosts", || {
            let shown = self.roles.json(&["deployment", "ls"]);
            let found = shown.as_array().unwrap().iter().find(|one| one["deployment"] == "default/shop");
            let states = found.map_or(Value::Null, |one| one["hosts"].clone());
            if states == *wanted { Ok(()) } else { Err(shown.to_string()) }
        });
    }

    fn units(&self) -> Vec<Value> {
        self.roles.json(&["unit", "ls"]).as_array().unwrap().clone()
    }

    /// The process ids of a unit, on all hosts.
    fn pids(&self, unit: &str) -> Vec<u64> {
        let of = |one: &&Value| one["unit"] == unit;
        let mut pids: Vec<u64> =
            self.units().iter().filter(of).map(|one| one["observed"]["pid"].as_u64().unwrap()).collect();
        pids.sort_unstable();
        pids
    }

    /// Adds the program of [`Self::write_units`].
    fn add_noting_program(&self) {
        let program = file(&self.roles.home, "shop", NOTING);
        self.roles.ok(&["artifact", "create", &program, "--role", "shop", "--version", "1"]);
    }

    /// Writes a document of units that note their argument with each start.
    fn write_units(&self, deployment: &str, units: &[(&str, String)]) -> String {
        let unit = |(name, argument): &(&str, String)| json!({"name": name, "artifact": "shop@1", "args": [argument], "verify_after_ms": 0});
        let units: Vec<Value> = units.iter().map(unit).collect();
        let document = json!({"deployment": deployment, "target": {"select": "label.role=till"}, "units": units});
        file(&self.roles.home, "shop.yaml", &document.to_string())
    }

    /// Waits until all hosts have verified a version of a deployment.
    #[track_caller]
    fn verified(&self, deployment: &str, version: usize) {
        eventually("every host to have a version", || {
            let run = self.roles.home.muster(&["-o", "json", "deployment", "show", deployment]);
            let shown: Value = serde_json::from_str(&run.stdout).map_err(|_| run.stderr)?;
            let hosts = shown["on_hosts"].as_array().unwrap();
            let is_there = |host: &&Value| host["state"] == "verified" && host["version"] == version;
            let found = hosts.iter().filter(is_there).count();
            let is_done = found == self.agents.len() && found == hosts.len();
            if is_done { Ok(()) } else { Err(shown["on_hosts"].to_string()) }
        });
    }

    /// What a unit has noted on a host.
    fn noted(&self, host: &str, unit: &str) -> Vec<String> {
        let noted = self.folder(host).join("units/default").join(unit).join("work/starts");
        fs::read_to_string(noted).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    fn starts(&self, unit: &str) -> usize {
        fs::read_to_string(self.roles.home.path().join(format!("started.{unit}"))).unwrap_or_default().lines().count()
    }
}

#[test]
fn deployment_runs_on_its_hosts_and_only_what_differs_is_restarted() {
    let bench = Bench::start();
    bench.apply(&[("till", "1"), ("web", "1")]);
    bench.states(&json!({"verified": 2}));
    assert!(bench.units().iter().all(|unit| unit["owner"]["deployment"] == "default/shop"));
    let (till, web) = (bench.pids("default/till"), bench.pids("default/web"));
    assert_eq!((till.len(), web.len()), (2, 2));
    // A verb changes none of them.
    let refused = bench.roles.home.muster(&["yuno", "stop", "default/till", "--host", &bench.id("one"), "--yes"]);
    assert!(refused.code != 0 && refused.stderr.contains("default/shop"), "{}", refused.stderr);

    // The same again is nothing new.
    bench.apply(&[("till", "1"), ("web", "1")]);
    bench.apply(&[("till", "2"), ("web", "1")]);
    bench.states(&json!({"verified": 2}));
    let history = bench.roles.json(&["deployment", "history", "default/shop"]);
    assert_eq!(history.as_array().unwrap().len(), 2, "{history}");
    assert_eq!(bench.pids("default/web"), web, "it is the same");
    assert!(bench.pids("default/till").iter().all(|pid| !till.contains(pid)));
    assert_eq!((bench.starts("till"), bench.starts("web")), (4, 2));

    // A unit less, and a host less.
    bench.apply(&[("till", "2")]);
    eventually("the unit is gone", || {
        let left = bench.units().iter().filter(|unit| unit["unit"] == "default/web").count();
        if left == 0 { Ok(()) } else { Err(format!("{left} left")) }
    });
    bench.roles.ok(&["host", "label", &bench.id("two"), "role-"]);
    eventually("one host is left", || {
        let found = bench.units();
        if found.len() == 1 { Ok(()) } else { Err(format!("{found:?}")) }
    });
    bench.states(&json!({"verified": 1}));

    // All of it.
    bench.roles.ok(&["deployment", "rm", "default/shop", "--yes", "--no-wait"]);
    eventually("nothing is left", || match bench.units()[..] {
        [] => Ok(()),
        _ => Err(bench.roles.json(&["unit", "ls"]).to_string()),
    });
    bench.states(&Value::Null);
    assert_eq!((bench.starts("till"), bench.starts("web")), (4, 2));
}

#[test]
fn host_that_was_away_gets_the_last_version_alone() {
    let mut bench = Bench::start();
    bench.apply(&[("till", "1")]);
    bench.states(&json!({"verified": 2}));
    bench.agents[1].take().unwrap().kill();
    bench.online(1);
    bench.apply(&[("till", "2")]);
    bench.apply(&[("till", "2"), ("web", "1")]);
    // Whether it is away shows when it has been for a while.
    bench.states(&json!({"away": 1, "verified": 1}));
    assert_eq!(bench.starts("web"), 1);
    bench.run_agent(1, &[]);
    bench.states(&json!({"verified": 2}));
    assert_eq!((bench.starts("till"), bench.starts("web")), (4, 2));
}

#[test]
fn version_that_was_stored_reaches_hosts_though_console_and_broker_were_killed() {
    let mut bench = Bench::start();
    bench.apply(&[("till", "1")]);
    bench.states(&json!({"verified": 2}));
    // Nothing can be sent between the commit and the end.
    bench.roles.kill_broker();
    bench.apply(&[("till", "2")]);
    bench.roles.kill_console();
    let before = bench.starts("till");
    bench.roles.revive_broker();
    bench.roles.start_console();
    bench.states(&json!({"verified": 2}));
    assert_eq!((before, bench.starts("till")), (2, 4));
    let shown = bench.roles.json(&["deployment", "show", "default/shop"]);
    assert!(shown["on_hosts"].as_array().unwrap().iter().all(|host| host["version"] == 2), "{shown}");
    // A broker that has lost all heads changes nothing.
    let pids = bench.pids("default/till");
    bench.roles.restart_broker();
    bench.online(2);
    bench.apply(&[("till", "2"), ("web", "1")]);
    bench.states(&json!({"verified": 2}));
    assert_eq!(bench.pids("default/till"), pids);
}

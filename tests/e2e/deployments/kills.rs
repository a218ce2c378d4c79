//! Console, broker and agents are killed at random while versions follow each other. In the end every host has the last
//! version, has started each version at most once, and has removed nothing but what a version has removed; and a
//! deployment that was never changed was never touched.
//!
//! `TESTS_LONG=1` has 50 versions on 20 hosts. `TESTS_SEED` repeats a run: who is killed, and when after what.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use super::Bench;
use crate::{fleet::eventually, roles::Roles, stores::Random};

const SEED: u64 = 30;
const REMOVED: &str = "a removed unit is deleted";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    Console,
    Broker,
    Agent(usize),
}

struct Trial {
    bench: Bench,
    random: Random,
    /// Agents that were killed and not started again so far.
    dead: BTreeSet<usize>,
    kills: BTreeMap<&'static str, usize>,
    /// How many versions had to be applied again, because the console was killed.
    repeated: usize,
    /// What agents have printed before they were killed.
    printed: String,
}

impl Trial {
    fn start(hosts: usize, seed: u64) -> Self {
        let names: Vec<String> = (0..hosts).map(|host| format!("host{host}")).collect();
        let bench = Bench::start_with(Roles::start(), &names.iter().map(String::as_str).collect::<Vec<_>>());
        bench.add_noting_program();
        Self {
            bench,
            random: Random(seed),
            dead: BTreeSet::new(),
            kills: BTreeMap::new(),
            repeated: 0,
            printed: String::new(),
        }
    }

    fn write_version(&self, version: usize) -> String {
        let mut units = vec![("till", version.to_string()), ("steady", "same".to_owned())];
        if has_web(version) {
            units.push(("web", "same".to_owned()));
        }
        self.bench.write_units("default/shop", &units)
    }

    fn pause(&mut self, most_ms: usize) {
        thread::sleep(Duration::from_millis(self.random.below(most_ms) as u64));
    }

    fn victims(&mut self) -> BTreeSet<Victim> {
        let alive: Vec<usize> = (0..self.bench.agents.len()).filter(|host| !self.dead.contains(host)).collect();
        let count = [1, 1, 2, 3][self.random.below(4)];
        let one = |random: &mut Random| match random.below(8) {
            0..=2 => Victim::Console,
            3 | 4 => Victim::Broker,
            _ => alive.get(random.below(alive.len())).map_or(Victim::Console, |host| Victim::Agent(*host)),
        };
        (0..count).map(|_| one(&mut self.random)).collect()
    }

    fn kill(&mut self, victim: Victim) {
        let word = match victim {
            Victim::Console => {
                assert!(!self.bench.roles.console_printed().contains("panicked"));
                self.bench.roles.kill_console();
                "console"
            }
            Victim::Broker => {
                assert!(!self.bench.roles.broker_printed().contains("panicked"));
                self.bench.roles.kill_broker();
                "broker"
            }
            Victim::Agent(host) => {
                let agent = self.bench.agents[host].take().unwrap();
                self.printed.push_str(&agent.printed());
                agent.kill();
                self.dead.insert(host);
                "agent"
            }
        };
        *self.kills.entry(word).or_default() += 1;
    }

    fn start_again(&mut self, victim: Victim) {
        match victim {
            Victim::Console => self.bench.roles.start_console(),
            Victim::Broker if self.random.below(2) == 0 => {
                // It has lost all heads as well.
                fs::remove_dir_all(self.bench.roles.home.path().join("broker/data")).unwrap();
                self.bench.roles.revive_broker();
            }
            Victim::Broker => self.bench.roles.revive_broker(),
            // Some stay away while further versions go by.
            Victim::Agent(_) if self.random.below(4) == 0 => {}
            Victim::Agent(host) => self.start_agent(host),
        }
    }

    fn start_agent(&mut self, host: usize) {
        self.dead.remove(&host);
        self.bench.run_agent(host, &[]);
    }

    /// Applies a version, and kills somebody in the midst of it.
    fn apply(&mut self, version: usize) {
        let path = self.write_version(version);
        let args = ["deployment", "apply", &path, "--yes", "--no-wait"];
        let mut apply = self.bench.roles.home.command();
        let mut apply: Child = apply.args(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        self.pause(600);
        let victims = self.victims();
        victims.iter().for_each(|victim| self.kill(*victim));
        let is_applied = apply.wait().unwrap().success();
        self.pause(400);
        victims.iter().for_each(|victim| self.start_again(*victim));
        if !is_applied {
            assert!(victims.contains(&Victim::Console), "version {version}: nobody was killed that it takes");
            self.repeated += 1;
            // Whether the console had stored it nobody knows; it is one version in any case.
            self.bench.roles.ok(&args);
        }
    }

    /// Somebody dies while nothing is applied.
    fn kill_between(&mut self) {
        self.pause(1_500);
        let victims = self.victims();
        victims.iter().for_each(|victim| self.kill(*victim));
        self.pause(400);
        victims.iter().for_each(|victim| self.start_again(*victim));
    }

    fn revive_all(&mut self) {
        for host in std::mem::take(&mut self.dead) {
            self.start_agent(host);
        }
    }

    /// What each host reports: its units, with their processes.
    fn reported(&self) -> BTreeMap<String, BTreeMap<String, i32>> {
        let mut found: BTreeMap<String, BTreeMap<String, i32>> = BTreeMap::new();
        for unit in self.bench.units() {
            let pid = unit["observed"]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
            let name = unit["unit"].as_str().unwrap().to_owned();
            found.entry(unit["host"].as_str().unwrap().to_owned()).or_default().insert(name, pid);
        }
        found
    }

    /// What really runs on each host.
    fn running(&self) -> BTreeMap<String, BTreeMap<String, i32>> {
        let each = |name: &String| {
            let data = self.bench.folder(name);
            let id = fs::read_to_string(data.join("host")).unwrap().trim().to_owned();
            (id, processes(&data.join("units")))
        };
        self.bench.names.iter().map(each).collect()
    }
}

/// Whether a version has the unit `web`, which comes and goes: three times in fifty versions, for a host with four units
/// removes no more than four in a day.
fn has_web(version: usize) -> bool {
    let every = if is_long() { 10 } else { 2 };
    (version / every).is_multiple_of(2)
}

fn is_long() -> bool {
    std::env::var_os("TESTS_LONG").is_some()
}

/// The processes of units below a folder, each by the work folder that it runs in.
fn processes(units: &Path) -> BTreeMap<String, i32> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(folder) = fs::read_link(entry.path().join("cwd")) else { continue };
        let Ok(place) = folder.strip_prefix(units) else { continue };
        if let Some(unit) = place.to_str().and_then(|place| place.strip_suffix("/work")) {
            assert_eq!(found.insert(unit.to_owned(), pid), None, "{unit} runs twice in {}", units.display());
        }
    }
    found
}

#[test]
fn random_kills_leave_every_host_in_the_last_version() {
    let (versions, hosts) = if is_long() { (50, 20) } else { (8, 6) };
    let given = std::env::var("TESTS_SEED").ok().and_then(|seed| seed.parse().ok());
    let by_clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let seed = given.unwrap_or_else(|| if is_long() { by_clock() } else { SEED });
    eprintln!("TESTS_SEED={seed}");
    let mut trial = Trial::start(hosts, seed);
    let quiet = trial.bench.write_units("default/quiet", &[("quiet", "same".to_owned())]);
    trial.bench.roles.ok(&["deployment", "apply", &quiet, "--yes", "--no-wait"]);
    trial.bench.verified("default/quiet", 1);
    let quiet_at_first: Vec<i32> = trial.reported().values().map(|units| units["default/quiet"]).collect();

    let began = Instant::now();
    for version in 1..=versions {
        trial.apply(version);
        match trial.random.below(6) {
            0 => {
                trial.revive_all();
                trial.bench.verified("default/shop", version);
            }
            1 | 2 => trial.kill_between(),
            3 => trial.revive_all(),
            _ => {}
        }
    }
    trial.revive_all();
    let applied = began.elapsed();
    let settling = Instant::now();
    trial.bench.verified("default/shop", versions);
    trial.bench.verified("default/quiet", 1);
    let settled = settling.elapsed();

    let history = trial.bench.roles.json(&["deployment", "history", "default/shop"]);
    assert_eq!(history.as_array().unwrap().len(), versions, "each was made once: {history}");
    // Removals end a moment after the last unit is up.
    let wanted: BTreeSet<String> = ["quiet", "steady", "till", "web"]
        .into_iter()
        .filter(|unit| *unit != "web" || has_web(versions))
        .map(|unit| format!("default/{unit}"))
        .collect();
    eventually("reports of what really runs", || {
        let (reported, running) = (trial.reported(), trial.running());
        let is_whole = |units: &BTreeMap<String, i32>| units.keys().eq(&wanted);
        let is_same = reported == running && running.len() == hosts && running.values().all(is_whole);
        if is_same { Ok(()) } else { Err(format!("reported: {reported:?}\nrunning: {running:?}")) }
    });
    let quiet_at_last: Vec<i32> = trial.reported().values().map(|units| units["default/quiet"]).collect();
    assert_eq!(quiet_at_last, quiet_at_first, "nobody has changed it");
    let mut started = 0;
    for host in &trial.bench.names {
        let starts: Vec<usize> = trial.bench.noted(host, "till").iter().map(|line| line.parse().unwrap()).collect();
        assert!(starts.is_sorted_by(|one, next| one < next), "{host} started {starts:?}");
        assert_eq!(starts.last(), Some(&versions), "{host}");
        started += starts.len();
        for unit in ["steady", "quiet"] {
            assert_eq!(trial.bench.noted(host, unit), ["same"], "{unit} on {host}");
        }
    }
    for agent in trial.bench.agents.iter().flatten() {
        trial.printed.push_str(&agent.printed());
    }
    let removed: Vec<&str> = trial.printed.lines().filter(|line| line.contains(REMOVED)).collect();
    assert!(!removed.is_empty() && removed.iter().all(|line| line.contains("default/web")), "{removed:?}");
    assert!(!trial.printed.contains("panicked"));
    eventually("a sync that finds nothing", || {
        let last = trial.bench.roles.json(&["deployment", "sync"])["last"].clone();
        if last["alike"] == hosts && last["counts"].is_null() { Ok(()) } else { Err(last.to_string()) }
    });
    eprintln!(
        "{versions} versions on {hosts} hosts: killed {:?}, applied again {}, {started} starts of the unit that changes, \
         {} removals; {:.0} s, and {:.1} s until all had the last one",
        trial.kills,
        trial.repeated,
        removed.len(),
        applied.as_secs_f32(),
        settled.as_secs_f32(),
    );
}

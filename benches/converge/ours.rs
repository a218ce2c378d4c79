//! muster: an agent of its own, and a `muster up` that has its console and broker.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use muster_shim::process_identity;
use serde_json::{Value, json};

use crate::{
    Cost, Options,
    common::{agent, usage},
    content::{Content, MODE},
    fleet::{Fleet, Home, Running, eventually, file},
    mean_and_most, packages, packages_rows,
    peers::children_busy,
    rest_rows,
    root::{Repository, Root},
    table::Row,
};

/// What an agent does after its start is over by then.
const SETTLE: Duration = Duration::from_secs(5);

/// One look follows a change within a fraction of this.
const LOOKED: Duration = Duration::from_secs(1);

/// Each unit is changed once in this time: more than five corrections in a minute are taken for a fight.
const DRIFT_EVERY: Duration = Duration::from_secs(15);

/// The longest that a change may last before the bench gives up.
const DRIFT_PATIENCE: Duration = Duration::from_secs(60);

/// How the agent says how long a look at files has taken.
const LOG: &str = "warn,muster_agent::unit::files=debug";

/// An agent that has joined.
struct Muster {
    agent: Running,
    /// Has the agent's folder, below which its shims are.
    home: Home,
    // Broker and console.
    fleet: Fleet,
    packages: Option<(Root, Repository)>,
}

pub(crate) fn measure(content: &Content, options: &Options) -> Result<Vec<(Row, f64)>> {
    let program = options.program.as_ref().map_or_else(agent::build, |agent| Ok(agent.canonicalize()?))?;
    let mut muster = Muster::start(&program, options)?;
    let sleeper = content.script.to_str().context("a path")?;
    muster.fleet.ok(&["artifact", "create", sleeper, "--role", "sleeper", "--version", "1"]);
    let document = file(&muster.home, "bench.json", &document(content).to_string());
    thread::sleep(SETTLE);

    let began = Instant::now();
    let (there, said) = thread::scope(|scope| {
        let there = scope.spawn(|| content.wait().map(|()| began.elapsed()));
        muster.apply(&document);
        let said = began.elapsed();
        (there.join().expect("a thread"), said)
    });
    let mut rows = vec![(Row::First, there?.as_secs_f64()), (Row::FirstSaid, said.as_secs_f64())];
    thread::sleep(SETTLE);
    rows.extend(rest_rows(&muster.again(&document, options.runs)?));
    let (mean, most) = mean_and_most(muster.looks(content, options.runs)?.into_iter());
    rows.extend([(Row::Look, mean), (Row::LookMost, most)]);
    rows.push((Row::Processor, muster.rest_percent(options)?));
    rows.push((Row::Memory, usage::mb(usage::pss_bytes(muster.agent.pid().as_raw())?)));
    let shims = muster.shims();
    ensure!(shims.len() >= options.processes, "there are {} shims", shims.len());
    rows.push((Row::Shims, usage::mb(shims.into_iter().map(|pid| usage::pss_bytes(pid).unwrap_or_default()).sum())));
    let (mean, most) = mean_and_most(drifts(content, options.drifts)?.into_iter());
    rows.extend([(Row::Drift, mean), (Row::DriftMost, most)]);
    if muster.packages.is_some() {
        rows.extend(muster.measure_packages(options)?);
    }
    Ok(rows)
}

/// The deployment: a unit for each folder, and one for each process.
fn document(content: &Content) -> Value {
    let (owner, group) = (nix::unistd::geteuid().to_string(), nix::unistd::getegid().to_string());
    let parts = content.folders.iter().enumerate().map(|(number, (folder, files))| {
        let folder =
            (folder.display().to_string(), json!({"directory": {}, "mode": "0755", "owner": owner, "group": group}));
        let files = files.iter().map(|file| {
            let entry = json!({"text": file.text, "mode": MODE, "owner": owner, "group": group});
            (file.path.display().to_string(), entry)
        });
        let files: BTreeMap<String, Value> = [folder].into_iter().chain(files).collect();
        json!({"name": format!("part{number}"), "kind": "files", "verify_after_ms": 1, "files": files})
    });
    let processes = content.pid_files.iter().enumerate().map(|(number, pid_file)| {
        json!({"name": format!("process{number}"), "artifact": "sleeper@1", "args": [pid_file], "verify_after_ms": 1})
    });
    let units: Vec<Value> = parts.chain(processes).collect();
    json!({"deployment": "default/bench", "target": {"select": "label.role=bench"}, "units": units})
}

impl Muster {
    fn start(program: &Path, options: &Options) -> Result<Self> {
        let fleet = Fleet::start();
        let own = fleet.host();
        let home = Home::new();
        let data = home.path().join("agent");
        let mut config = format!("data_dir = {data:?}\n");
        let packages = (options.packages > 0 && nix::unistd::geteuid().is_root()).then(|| {
            let root = Root::make(&home.path().join("root"));
            config += &format!("[packages]\nroot_dir = {:?}\n", root.path);
            (root, packages::repository(&home.path().join("repository"), &packages::names(options.packages)))
        });
        let config = file(&home, "agent.toml", &config);
        let token = fleet.json(&["token", "create"])["token"].as_str().context("a token")?.to_owned();
        let mut command = Command::new(program);
        home.dress(&mut command);
        command.args(["--log", LOG, "agent", "--config", &config, "--join", &token]);
        let muster = Self { agent: Running::start(&mut command), home, fleet, packages };
        let host = eventually("the agent", || {
            let hosts = muster.fleet.json(&["host", "ls"]);
            let found = hosts.as_array().into_iter().flatten().find(|host| host["id"] != own.as_str());
            let online = found.filter(|host| host["presence"]["state"] == "online");
            online.and_then(|host| host["id"].as_str().map(str::to_owned)).ok_or_else(|| muster.agent.printed())
        });
        muster.fleet.ok(&["host", "label", &host, "role=bench"]);
        Ok(muster)
    }

    fn apply(&self, document: &str) {
        self.fleet.ok(&["deployment", "apply", document]);
    }

    /// Applies the same again. The processor time is the mean of all.
    fn again(&mut self, document: &str, runs: usize) -> Result<Vec<Cost>> {
        let (mut took, pids) = (Vec::new(), [self.fleet.up().pid().as_raw(), self.agent.pid().as_raw()]);
        let busy = || -> Result<Duration> {
            let of_pids = pids.iter().map(|pid| Ok(usage::ticks(*pid)?.own)).sum::<Result<Duration>>()?;
            Ok(of_pids + children_busy()?)
        };
        let before = busy()?;
        for _ in 0..runs {
            let began = Instant::now();
            self.apply(document);
            took.push(began.elapsed());
        }
        let busy = (busy()? - before) / u32::try_from(runs)?;
        Ok(took.into_iter().map(|took| Cost { took, busy }).collect())
    }

    /// Has the agent look at all files, by a file of each unit that is touched; returns how long it took each time, all units together.
    fn looks(&self, content: &Content, runs: usize) -> Result<Vec<Duration>> {
        let mut looks = Vec::new();
        for _ in 0..runs {
            let before = self.agent.printed().len();
            for (_, files) in &content.folders {
                fs::File::options().write(true).open(&files[0].path)?.set_modified(std::time::SystemTime::now())?;
            }
            thread::sleep(LOOKED);
            let printed = self.agent.printed();
            let looked: BTreeMap<String, u64> = printed[before..].lines().filter_map(look).collect();
            ensure!(looked.len() == content.folders.len(), "{} units were looked at: {printed}", looked.len());
            looks.push(Duration::from_micros(looked.into_values().sum()));
        }
        Ok(looks)
    }

    /// What agent and shims take of a processor.
    fn rest_percent(&self, options: &Options) -> Result<f64> {
        let pids: Vec<i32> = [self.agent.pid().as_raw()].into_iter().chain(self.shims()).collect();
        // With threads that end meanwhile.
        let busy = || pids.iter().filter_map(|pid| Some(usage::ticks(*pid).ok()?.own)).sum::<Duration>();
        let (before, since) = (busy(), Instant::now());
        thread::sleep(Duration::from_secs(options.rest_s));
        Ok(busy().saturating_sub(before).as_secs_f64() / since.elapsed().as_secs_f64() * 100.0)
    }

    fn shims(&self) -> Vec<i32> {
        let folder = self.home.path().join("agent");
        let is_shim = |pid: &i32| {
            let exe: Option<PathBuf> = fs::read_link(format!("/proc/{pid}/exe")).ok();
            exe.is_some_and(|exe| {
                let name = exe.file_name().and_then(|name| name.to_str());
                exe.starts_with(&folder) && name.is_some_and(|name| name.starts_with("shim-"))
            })
        };
        process_identity::pids().unwrap_or_default().into_iter().filter(is_shim).collect()
    }

    /// Packages, after everything else.
    fn measure_packages(&mut self, options: &Options) -> Result<Vec<(Row, f64)>> {
        let Some((root, repository)) = &self.packages else { return Ok(Vec::new()) };
        let names = packages::names(options.packages);
        let repositories = json!({"bench": {"url": repository.url(), "suite": "./", "key": repository.key()}});
        let unit = json!({
            "name": "packages", "kind": "packages", "verify_after_ms": 1, "present": names, "repositories": repositories,
        });
        let document =
            json!({"deployment": "default/packages", "target": {"select": "label.role=bench"}, "units": [unit]});
        let document = file(&self.home, "packages.json", &document.to_string());
        let began = Instant::now();
        self.apply(&document);
        let took = began.elapsed();
        ensure!(root.packages().len() == names.len(), "{:?}", root.packages());
        thread::sleep(SETTLE);
        let mut rows = packages_rows(took, &self.again(&document, options.runs)?);
        rows.push((Row::PackagesProcessor, self.rest_percent(options)?));
        Ok(rows)
    }
}

/// Parses a line of the agent's log about a look: the unit, and how long it took in microseconds.
fn look(line: &str) -> Option<(String, u64)> {
    let field = |name: &str| line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    line.contains("files were checked")
        .then(|| Some((field("unit")?.to_owned(), field("duration_us")?.parse().ok()?)))?
}

/// Changes one file after the other as somebody else would; returns how long each change lasted.
fn drifts(content: &Content, count: usize) -> Result<Vec<Duration>> {
    let mut lasted = Vec::new();
    for number in 0..count {
        let folders = content.folders.len();
        let (_, files) = &content.folders[number % folders];
        let file = &files[number / folders % files.len()];
        let moved = file.path.with_extension("moved");
        match number % 4 {
            0 => fs::write(&file.path, "somebody else's\n")?,
            1 => fs::File::options().write(true).open(&file.path)?.set_len(10)?,
            2 => fs::rename(&file.path, &moved)?,
            _ => fs::remove_file(&file.path)?,
        }
        let began = Instant::now();
        while fs::read_to_string(&file.path).ok().as_ref() != Some(&file.text) {
            ensure!(began.elapsed() < DRIFT_PATIENCE, "{} stays changed", file.path.display());
            thread::sleep(Duration::from_millis(1));
        }
        lasted.push(began.elapsed());
        let _ = fs::remove_file(moved);
        thread::sleep(DRIFT_EVERY / u32::try_from(folders)?);
    }
    Ok(lasted)
}

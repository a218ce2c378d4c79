//! muster: the agent as packages ship it, and its shims.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use muster_shim::process_identity;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::{
    Subject,
    common::agent,
    fleet::{Fleet, Home, Running, waits},
};

/// Longest time until everything runs.
const PATIENCE: Duration = Duration::from_secs(300);

/// An agent that has joined a fleet, with units that should run.
pub(crate) struct Muster {
    agent: Option<Running>,
    program: PathBuf,
    home: Home,
    // Broker and console.
    _fleet: Fleet,
}

impl Muster {
    /// Creates the fleet and the units, and then kills everything, as in a power failure.
    pub(crate) fn new(agent: Option<&Path>, program: &Path, names: &[String]) -> Result<Self> {
        let agent = agent.map_or_else(agent::build, |agent| Ok(agent.canonicalize()?))?;
        let fleet = Fleet::start();
        let own = fleet.host();
        let token = fleet.json(&["token", "create"])["token"].as_str().context("a token")?.to_owned();
        let mut muster = Self { agent: None, program: agent, home: Home::new(), _fleet: fleet };
        muster.run(&["--join", &token]);
        let fleet = &muster._fleet;
        let host = wait("the agent", || {
            let hosts = fleet.json(&["host", "ls"]);
            let found = hosts.as_array()?.iter().find(|host| host["id"] != own.as_str())?;
            (found["presence"]["state"] == "online").then(|| found["id"].as_str().map(str::to_owned))?
        })?;
        fleet.ok(&["artifact", "create", program.to_str().context("a path")?, "--role", "program", "--version", "1"]);
        for name in names {
            let unit = format!("default/{name}");
            fleet.ok(&["yuno", "create", &unit, "--host", &host, "--artifact", "program", "--run", "--no-wait"]);
        }
        wait("all yunos", || {
            let units = fleet.json(&["unit", "ls", "--host", &host]);
            let runs = |unit: &&Value| unit["observed"]["phase"] == "running";
            (units.as_array()?.iter().filter(runs).count() == names.len()).then_some(())
        })?;
        muster.stop();
        Ok(muster)
    }

    fn run(&mut self, more: &[&str]) {
        let mut command = Command::new(&self.program);
        self.home.dress(&mut command);
        command.args(["agent", "--data-dir"]).arg(self.folder()).args(more);
        self.agent = Some(Running::start(&mut command));
    }

    fn folder(&self) -> PathBuf {
        self.home.path().join("agent")
    }

    /// Shims, and the processes that wait to become the next main processes, with the names of their units.
    fn shims(&self) -> Vec<(String, i32)> {
        let folder = self.folder();
        let shim = |pid: i32| {
            let exe = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
            let cwd = fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
            let is_shim = exe.starts_with(&folder) && exe.file_name()?.to_str()?.starts_with("shim-");
            is_shim.then(|| Some((cwd.parent()?.file_name()?.to_str()?.to_owned(), pid)))?
        };
        process_identity::pids().unwrap_or_default().into_iter().filter_map(shim).collect()
    }
}

fn wait<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> Result<T> {
    let started = Instant::now();
    loop {
        if let Some(found) = probe() {
            return Ok(found);
        }
        ensure!(started.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(200));
    }
}

impl Subject for Muster {
    fn name(&self) -> &'static str {
        "muster"
    }

    fn start(&mut self) -> Result<()> {
        self.run(&[]);
        Ok(())
    }

    fn processes(&self) -> Vec<i32> {
        let agent = self.agent.as_ref().map(|agent| agent.pid().as_raw());
        agent.into_iter().chain(self.direct()).collect()
    }

    fn direct(&self) -> Vec<i32> {
        self.shims().into_iter().map(|(_, pid)| pid).collect()
    }

    fn supervisor_of(&self, name: &str) -> Result<i32> {
        let found = self.shims().into_iter().find(|(unit, pid)| unit == name && !waits(*pid));
        found.map(|(_, pid)| pid).with_context(|| format!("the shim of {name}"))
    }

    fn stop(&mut self) {
        if let Some(agent) = self.agent.take() {
            agent.kill();
        }
        // A killed shim leaves its program, which has the same folder.
        let below =
            |pid: &i32| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(self.folder()));
        for _ in 0..50 {
            let shims = self.direct().into_iter();
            let left: Vec<i32> =
                shims.chain(process_identity::pids().unwrap_or_default().into_iter().filter(below)).collect();
            if left.is_empty() {
                return;
            }
            for pid in left {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

//! What containers cost their agent, and how soon one runs, or a command inside, beside the runtime's own command.
//!
//!     cargo bench --bench containers -- [--containers N] [--rounds N] [--seconds N] [--only podman|lxc] [--program FILE]
//!
//! For each runtime, on this machine, with the agent as packages ship it (`--program` takes another one that was built
//! before), a process of its own beside a `muster up` on loopback:
//!
//! - what the agent costs at rest, without containers and with N of them: memory (PSS), and processor with all programs that
//!   it has run meanwhile; and what else there is for containers: shims, `lxc-start`, `conmon`, Podman's service;
//! - how long it takes from the start of `muster unit run` to the first act of the program inside, and the same for
//!   `podman start` and `lxc-start -d` of the very same container. `muster` goes through command line, console, broker and
//!   agent, and has it on the disk by then;
//! - how long a command inside takes that does nothing, beside `podman exec` and `lxc-attach`.
//!
//! Containers have an image of a static busybox, no network, and sleep. It has to be root, with `podman`, `runc` and `lxc`
//! installed.

#![allow(
    dead_code,
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::allow_attributes,
    reason = "a program to be run by hand"
)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../../tests/fleet/mod.rs"]
mod fleet;
#[path = "../../tests/e2e/containers/stage.rs"]
mod stage;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use common::{agent, cli, spread::Spread, usage};
use fleet::{Fleet, Home, Running, eventually};
use muster_shim::process_identity;
use serde_json::{Value, json};
use stage::{Lxc, Podman, add_rootfs};

/// The work that follows a start is finished after this time.
const SETTLED: Duration = Duration::from_secs(20);

/// The measured container, as a unit and in its runtime.
const UNIT: &str = "default/c0";
const NAME: &str = "muster.default.c0";

/// The program of each container: if there is a folder for that, it leaves a mark when it runs.
const SCRIPT: &str = "[ ! -d /marks ] || : > /marks/up; exec sleep 1000000";

/// What containers cost their agent, and how soon one runs, or a command inside, beside the runtime's own command
#[derive(clap::Args)]
struct Options {
    /// How many there are of them
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = cli::at_least::<usize>(1))]
    containers: usize,
    /// How often one is started, and a command runs inside
    #[arg(long, value_name = "N", default_value_t = 11, value_parser = cli::at_least::<usize>(1))]
    rounds: usize,
    /// How long the agent is watched at rest
    #[arg(long, value_name = "N", default_value_t = 120, value_parser = cli::at_least::<u64>(1))]
    seconds: u64,
    /// Measure this runtime alone
    #[arg(long, value_name = "RUNTIME", value_parser = RUNTIMES)]
    only: Option<String>,
    /// An agent that was built before [default: as packages ship it]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

const RUNTIMES: [&str; 2] = ["podman", "lxc"];

fn main() -> ExitCode {
    cli::main_without_budgets(run)
}

/// Measures and prints everything.
fn run(options: &Options) -> Result<()> {
    let program = match &options.program {
        Some(program) => program.canonicalize().with_context(|| format!("{}", program.display()))?,
        None => agent::build()?,
    };
    println!("{} containers, {} rounds, {} s of rest\n", options.containers, options.rounds, options.seconds);
    for runtime in RUNTIMES {
        if options.only.as_deref().is_none_or(|only| only == runtime) {
            measure(runtime, &program, options);
        }
    }
    Ok(())
}

/// An agent with containers of one runtime. Fields are dropped in this order: what uses a folder before the folder.
struct Subject {
    agent: Running,
    lxc: Option<Lxc>,
    podman: Option<Podman>,
    home: Home,
    fleet: Fleet,
    host: String,
    runtime: &'static str,
}

fn measure(runtime: &'static str, program: &Path, options: &Options) {
    let subject = Subject::start(runtime, program);
    add_rootfs(&subject.fleet);
    thread::sleep(SETTLED);
    let without = subject.rest(options);
    let began = Instant::now();
    subject.apply(options.containers);
    println!("{runtime}: {} made and started in {:.1} s", options.containers, began.elapsed().as_secs_f64());
    thread::sleep(SETTLED);
    let with = subject.rest(options);
    println!("{:<44} {:>10} {:>10}", "", "without", "with");
    for (what, without, with) in [
        ("the agent: memory (PSS), MB", without.agent_mb, with.agent_mb),
        ("the agent: processor, % of a core", without.agent_percent, with.agent_percent),
        ("what is beside it: memory (PSS), MB", without.added_mb, with.added_mb),
        ("what is beside it: processor, % of a core", without.added_percent, with.added_percent),
    ] {
        println!("{what:<44} {without:>10.3} {with:>10.3}");
    }
    let each_kb = (with.agent_mb - without.agent_mb) * 1_000.0 / options.containers as f64;
    println!("{:<44} {:>10} {each_kb:>10.1}", "the agent, for each container: memory, KB", "");
    let (mut ours, mut own) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        ours.push(subject.up(|| subject.verb("run")));
        subject.verb("stop");
        own.push(subject.up(|| subject.start_by_hand()));
        subject.stop_by_hand();
    }
    let (start, enter) =
        if runtime == "lxc" { ("lxc-start -d", "lxc-attach") } else { ("podman start", "podman exec") };
    print_times("until the program runs, ms", [("muster unit run", ours), (start, own)]);
    subject.verb("run");
    let (mut ours, mut own) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        ours.push(timed(|| subject.enter()));
        own.push(timed(|| subject.enter_by_hand()));
    }
    print_times("a command inside, until it is over, ms", [("muster unit exec", ours), (enter, own)]);
    println!();
}

fn timed(work: impl FnOnce()) -> Duration {
    let began = Instant::now();
    work();
    began.elapsed()
}

fn print_times(title: &str, rows: [(&str, Vec<Duration>); 2]) {
    println!("{title:<44} {:>10} {:>10} {:>10}", "median", "least", "most");
    for (what, times) in rows {
        let times = Spread::of(times);
        let ms = |time: Duration| time.as_secs_f64() * 1_000.0;
        let [median, least, most] = [times.median(), times.least(), times.most()].map(ms);
        println!("{what:<44} {median:>10.1} {least:>10.1} {most:>10.1}");
    }
}

/// Resource usage at rest.
struct Rest {
    agent_mb: f64,
    agent_percent: f64,
    added_mb: f64,
    added_percent: f64,
}

impl Subject {
    fn start(runtime: &'static str, program: &Path) -> Self {
        let (fleet, home) = (Fleet::start(), Home::new());
        let podman = (runtime == "podman").then(Podman::start);
        let here = fleet.host();
        let token = fleet.json(&["token", "create"])["token"].as_str().unwrap().to_owned();
        let mut command = Command::new(program);
        home.dress(&mut command);
        if let Some(podman) = &podman {
            command.env("MUSTER_AGENT_CONTAINERS_PODMAN_SOCKET", podman.socket());
        }
        let data = home.path().join("agent");
        command.args(["agent", "--data-dir"]).arg(&data).args(["--join", &token]);
        let agent = Running::start(&mut command);
        let host = eventually("the agent to be online", || {
            let hosts = fleet.json(&["host", "ls"]);
            let other = hosts.as_array().unwrap().iter().find(|host| host["id"] != here.as_str());
            let online = other.filter(|host| host["presence"]["state"] == "online");
            online.and_then(|host| host["id"].as_str()).map(str::to_owned).ok_or_else(|| hosts.to_string())
        });
        let lxc = (runtime == "lxc").then(|| Lxc::at(data.join("lxc")));
        Self { agent, lxc, podman, home, fleet, host, runtime }
    }

    /// Creates this many, of which the first leaves a mark when it runs, and waits until all run.
    fn apply(&self, containers: usize) {
        fs::create_dir(self.marks()).unwrap();
        let documents: Vec<String> = (0..containers).map(|number| self.document(number).to_string()).collect();
        let path = fleet::file(&self.home, "units.yaml", &documents.join("\n---\n"));
        self.fleet.ok(&["unit", "apply", &path, "--host", &self.host, "--no-wait"]);
        eventually("all containers to run", || {
            let units = self.fleet.json(&["unit", "ls", "--host", &self.host]);
            let runs = |unit: &&Value| unit["observed"]["phase"] == "running";
            let running = units.as_array().unwrap().iter().filter(runs).count();
            if running == containers { Ok(()) } else { Err(format!("{running} run")) }
        });
    }

    fn document(&self, number: usize) -> Value {
        let mounts = json!([{"host": self.marks(), "inside": "/marks"}]);
        json!({
            "unit": format!("default/c{number}"), "kind": "container", "runtime": self.runtime,
            "image": {"rootfs": "shop@1"}, "args": ["/bin/sh", "-c", SCRIPT], "network": "none",
            "mounts": if number == 0 { mounts } else { json!([]) }, "started_after_ms": 0, "grace_ms": 0,
            "rlimits": {"nofile": {"soft": 1024, "hard": 4096}, "nproc": {"soft": 1000, "hard": 1000}}, "run": "running",
        })
    }

    fn marks(&self) -> PathBuf {
        self.home.path().join("marks")
    }

    fn verb(&self, verb: &str) {
        self.fleet.ok(&["container", verb, UNIT, "--host", &self.host]);
    }

    /// The time until the program inside runs.
    fn up(&self, start: impl FnOnce() + Send) -> Duration {
        let mark = self.marks().join("up");
        // At first it runs already.
        if mark.exists() && is_up(self) {
            self.verb("stop");
        }
        let _ = fs::remove_file(&mark);
        let began = Instant::now();
        thread::scope(|scope| {
            let starting = scope.spawn(start);
            while !mark.exists() {
                assert!(began.elapsed() < fleet::PATIENCE, "it is not running");
                thread::sleep(Duration::from_micros(200));
            }
            let took = began.elapsed();
            starting.join().unwrap();
            took
        })
    }

    fn start_by_hand(&self) {
        if let Some(podman) = &self.podman {
            podman.run(&["start", NAME]);
        }
        if let Some(lxc) = &self.lxc {
            lxc.run("lxc-start", &["-d", "-n", NAME, "--", "/bin/sh", "-c", SCRIPT]);
        }
    }

    /// Runs an empty program inside.
    fn enter(&self) {
        self.fleet.ok(&["unit", "exec", UNIT, "--host", &self.host, "--", "/bin/true"]);
    }

    fn enter_by_hand(&self) {
        if let Some(podman) = &self.podman {
            podman.run(&["exec", NAME, "/bin/true"]);
        }
        if let Some(lxc) = &self.lxc {
            lxc.inside(NAME, &["/bin/true"]);
        }
    }

    fn stop_by_hand(&self) {
        if let Some(podman) = &self.podman {
            podman.run(&["stop", "--time", "0", NAME]);
        }
        if let Some(lxc) = &self.lxc {
            lxc.run("lxc-stop", &["-k", "-n", NAME]);
        }
    }

    /// Processes for containers beside the agent, found by name below its folders.
    fn beside(&self) -> Vec<i32> {
        let podman = self.podman.as_ref().and_then(|podman| podman.socket().parent().map(Path::to_owned));
        let folders: Vec<PathBuf> = [Some(self.home.path().to_owned()), podman].into_iter().flatten().collect();
        let is_it = |pid: &i32| {
            let Some(name) = process_identity::name(*pid) else { return false };
            let known = ["muster-shim", "lxc-start", "conmon", "podman"].iter().any(|known| name.starts_with(known));
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            known && folders.iter().any(|folder| line.contains(&*folder.to_string_lossy()))
        };
        process_identity::pids().unwrap().into_iter().filter(is_it).collect()
    }

    fn rest(&self, options: &Options) -> Rest {
        let agent = self.agent.pid().as_raw();
        let beside = self.beside();
        let all = |pids: &[i32]| pids.iter().map(|pid| busy(*pid)).sum::<Duration>();
        let (before, began) = ((busy(agent), all(&beside)), Instant::now());
        thread::sleep(Duration::from_secs(options.seconds));
        let percent = |busy: Duration| busy.as_secs_f64() / began.elapsed().as_secs_f64() * 100.0;
        Rest {
            agent_mb: pss_mb(agent),
            agent_percent: percent(busy(agent).saturating_sub(before.0)),
            added_mb: beside.iter().map(|pid| pss_mb(*pid)).sum(),
            added_percent: percent(all(&beside).saturating_sub(before.1)),
        }
    }
}

fn is_up(subject: &Subject) -> bool {
    let unit = subject.fleet.json(&["unit", "show", UNIT, "--host", &subject.host]);
    unit["observed"]["phase"] == "running"
}

/// Processor time of a process so far, and of its children that have ended; zero if it has ended.
fn busy(pid: i32) -> Duration {
    let children = usage::ticks(pid).map_or(Duration::ZERO, |ticks| ticks.children);
    usage::threads(pid).unwrap_or_default().since(&usage::Threads::default()).busy + children
}

/// The memory of a process; 0 if it has ended.
fn pss_mb(pid: i32) -> f64 {
    usage::mb(usage::pss_bytes(pid).unwrap_or_default())
}

//! A crash sweep: the agent is killed before and after each commit of its store, and around the start of a program,
//! while an operator goes on working as if nothing were.
//!
//! A first life, in which nothing is killed, tells which places there are; the source tells whether one is missing
//! there. Then the operator does the same again and again. Each time the agent was killed at one place it is started
//! again at once, to be killed at the next.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use muster_shim::proc;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::{
    fleet::{Home, eventually, file, waits},
    roles::Roles,
};

/// Places that no operator can bring about in a short time, each with the reason.
const NOT_HERE: [(&str, &str); 6] = [
    ("prune", "about commands that expired a day ago"),
    ("trim metrics", "about measurements that are a week old"),
    ("forget transient", "about units that ended a day ago"),
    ("record alerts", "about alerts, which take minutes to come and to go: `alerts` has them over restarts"),
    ("forget alerts", "the same"),
    ("keep alert rules", "the same"),
];

/// A yuno that notes each of its starts, ends with 3 when it is told to, and with 0 when it is asked.
const SERVER: &str = "#!/bin/sh
echo $$ >> starts
trap 'exit 0' TERM
while :; do
    if [ -e crash ]; then rm crash; exit 3; fi
    sleep 0.05 & wait $!
done
";

/// A place, and the how manyeth passage of it.
type Point = (String, usize);

/// An agent that is started again whenever it is killed at a place.
struct Agent {
    stop: Arc<AtomicBool>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    roles_home: PathBuf,
    config: String,
    places: PathBuf,
    /// Where to kill it, the next first.
    points: Mutex<VecDeque<Point>>,
    child: Mutex<Option<Child>>,
    killed: Mutex<Vec<Point>>,
}

impl Shared {
    fn spawn(&self, home: &Home, join: Option<&str>) {
        let mut command = home.command();
        command.args(["agent", "--config", &self.config]).args(join.map(|token| format!("--join={token}")));
        command.env("MUSTER_TEST_PLACES", &self.places);
        if let Some((name, count)) = self.points.lock().unwrap().front() {
            command.env("MUSTER_TEST_CRASH", format!("{name}:{count}"));
        }
        let log = fs::OpenOptions::new().create(true).append(true).open(self.roles_home.join("agent.log")).unwrap();
        command.stdout(Stdio::null()).stderr(log);
        *self.child.lock().unwrap() = Some(command.spawn().unwrap());
    }
}

impl Agent {
    fn start(roles: &Arc<Roles>) -> Self {
        let config = roles.agent_config();
        // So that there is something to be refused by the agent itself.
        let policy = fs::read_to_string(&config).unwrap() + "[policy]\ndeny_users = [\"daemon\"]\n";
        fs::write(&config, policy).unwrap();
        let shared = Arc::new(Shared {
            roles_home: roles.home.path().to_owned(),
            config,
            places: roles.home.path().join("places"),
            points: Mutex::default(),
            child: Mutex::default(),
            killed: Mutex::default(),
        });
        shared.spawn(&roles.home, Some(&roles.token()));
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, at, kept) = (shared.clone(), stop.clone(), roles.clone());
        let thread = thread::spawn(move || {
            while !at.load(Ordering::Relaxed) {
                let ended = seen.child.lock().unwrap().as_mut().and_then(|child| child.try_wait().unwrap());
                if let Some(status) = ended {
                    let mut points = seen.points.lock().unwrap();
                    if status.signal() == Some(9)
                        && let Some(point) = points.pop_front()
                    {
                        seen.killed.lock().unwrap().push(point);
                    }
                    drop(points);
                    seen.spawn(&kept.home, None);
                }
                thread::sleep(Duration::from_millis(10));
            }
        });
        Self { stop, shared, thread: Some(thread) }
    }

    /// The places that were passed, each with how often, in the order of their first passage.
    fn places(&self) -> Vec<Point> {
        let text = fs::read_to_string(&self.shared.places).unwrap();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let mut order = Vec::new();
        for name in text.lines() {
            let count = counts.entry(name).or_default();
            if *count == 0 {
                order.push(name);
            }
            *count += 1;
        }
        order.into_iter().map(|name| (name.to_owned(), counts[name])).collect()
    }

    /// How often each of these places was passed so far.
    fn passed(&self, names: &[&str]) -> Vec<usize> {
        let places: BTreeMap<String, usize> = self.places().into_iter().collect();
        names.iter().map(|name| places.get(*name).copied().unwrap_or(0)).collect()
    }

    /// Ends the agent in order; it is started again, to be killed at the next place.
    fn restart(&self) {
        let pid = self.shared.child.lock().unwrap().as_ref().unwrap().id();
        kill(Pid::from_raw(pid.cast_signed()), Signal::SIGTERM).unwrap();
        eventually("the next agent", || match self.shared.child.lock().unwrap().as_ref().map(Child::id) {
            Some(next) if next != pid => Ok(()),
            _ => Err("not yet".to_owned()),
        });
    }

    fn next_point(&self) -> Option<Point> {
        self.shared.points.lock().unwrap().front().cloned()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
        if let Some(mut child) = self.shared.child.lock().unwrap().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if thread::panicking() {
            let log = fs::read_to_string(self.shared.roles_home.join("agent.log")).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(60).collect();
            eprintln!("next: {:?}; killed: {:?}", self.next_point(), self.shared.killed.lock().unwrap());
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}

/// What the operator does, and what must be so whatever becomes of the agent meanwhile.
struct Operator {
    roles: Arc<Roles>,
    rounds: usize,
}

impl Operator {
    fn work(&self) -> PathBuf {
        self.roles.home.path().join("agent/units/default/till/work")
    }

    fn starts(&self) -> usize {
        fs::read_to_string(self.work().join("starts")).unwrap_or_default().lines().count()
    }

    fn unit(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        self.shown("default/till", what, wanted)
    }

    fn in_phase(&self, name: &str, phase: &str) {
        self.shown(name, phase, |unit| unit["observed"]["phase"] == phase);
    }

    /// Waits until a unit is shown as it is wanted.
    fn shown(&self, name: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        eventually(what, || {
            let run = self.roles.home.muster(&["-o", "json", "unit", "show", name]);
            let shown: Value = serde_json::from_str(&run.stdout).map_err(|_| run.stderr.clone())?;
            if wanted(&shown) { Ok(shown) } else { Err(shown.to_string()) }
        })
    }

    /// Waits until it runs, and checks that it does so once.
    #[track_caller]
    fn runs_once(&self, what: &str) -> i32 {
        let pid = self.unit(what, |unit| {
            let pid = unit["observed"]["pid"].as_i64();
            unit["observed"]["phase"] == "running"
                && pid.is_some_and(|pid| proc::stat(pid as i32).is_some_and(|stat| !stat.is_dead()))
        })["observed"]["pid"]
            .as_i64()
            .unwrap();
        assert_eq!(copies(&self.work()), [pid as i32], "{what}");
        pid as i32
    }

    /// Has another revision take the place of the one that runs; who runs then.
    fn replaced(&self) -> i32 {
        self.roles.ok(&["yuno", "restart", "default/till"]);
        let unit = self.unit("the replacement", |unit| {
            let (desired, observed) = (&unit["desired"], &unit["observed"]);
            desired["generation"] == observed["generation"] && desired["revision"] == observed["revision"]
        });
        assert_eq!(unit["observed"]["beside"], Value::Null);
        self.runs_once("the life after a replacement")
    }

    /// A command of several steps: each is run once, in order, or it is known that nobody knows.
    fn batch(&self) {
        let effects = self.roles.home.path().join(format!("steps-{}", self.rounds));
        let step = |n: u8| format!("- shell: echo {n} >> {}\n", effects.display());
        let steps = file(&self.roles.home, "steps.yaml", &(1..=3).map(step).collect::<String>());
        let run = self.roles.home.muster(&["exec", "--batch", &steps]);
        let effect = fs::read_to_string(&effects).unwrap_or_default();
        match run.code {
            0 => assert_eq!(effect, "1\n2\n3\n"),
            _ => assert!(run.stderr.contains("lost") && "1\n2\n3\n".starts_with(&effect), "{effect:?} {run:?}"),
        }
    }

    /// A program that stays: there is one of it, under the name that was told.
    fn daemon(&self) {
        let effects = self.roles.home.path().join(format!("daemon-{}", self.rounds));
        let script = format!("echo once >> {}; trap 'exit 0' TERM; while :; do sleep 0.05; done", effects.display());
        let name = self.roles.ok(&["exec", "--daemon", "--shell", "--", &script]).trim().to_owned();
        let effect = eventually("the daemon", || match fs::read_to_string(&effects) {
            Ok(effect) if !effect.is_empty() => Ok(effect),
            _ => Err("it has not begun".to_owned()),
        });
        assert_eq!(effect, "once\n");
        // The console hears of it from the agent, which may have been killed before it said so.
        self.in_phase(&name, "running");
        self.roles.ok(&["yuno", "stop", &name]);
        self.in_phase(&name, "stopped");
        self.roles.ok(&["unit", "rm", &name]);
        assert_eq!(fs::read_to_string(&effects).unwrap(), "once\n");
    }

    /// The whole round; `wait_s` is how long a command of it takes.
    fn round(&mut self, wait_s: u32) {
        self.rounds += 1;
        let home = &self.roles.home;
        let effects = home.path().join(format!("effects-{}", self.rounds));
        let script = format!("echo once >> {}; echo told; sleep {wait_s}", effects.display());
        let run = home.muster(&["exec", "--timeout", "60s", "--", "sh", "-c", &script]);
        let effect = fs::read_to_string(&effects).unwrap_or_default();
        match run.code {
            0 => assert_eq!((effect.as_str(), run.stdout.contains("told")), ("once\n", true), "{run:?}"),
            // It is not known whether it was begun, and so it is not begun again.
            _ => assert!(run.stderr.contains("lost") && ["", "once\n"].contains(&effect.as_str()), "{run:?}"),
        }
        home.muster(&["exec", "--user", "daemon", "--", "true"]).expect_code(3).expect_stderr("daemon");

        let long = self.roles.ok(&["exec", "--no-wait", "--", "sleep", "1000"]);
        self.roles.ok(&["command", "cancel", long.trim()]);
        self.batch();
        self.daemon();

        self.roles.ok(&["yuno", "create", "default/till", "--artifact", "server", "--run"]);
        self.runs_once("the first start");
        let (starts, work) = (self.starts(), self.work());
        assert_eq!(starts, 1, "it was started once");
        fs::write(work.join("crash"), "").unwrap();
        self.unit("the exit code of a crash", |unit| unit["observed"]["exit"]["code"] == 3);
        self.runs_once("the start after a crash");
        assert_eq!(self.starts(), 2, "it was started again once");

        let shim = shims(home.path());
        assert_eq!(shim.len(), 1, "one unit, one shim");
        kill(Pid::from_raw(shim[0]), Signal::SIGKILL).unwrap();
        eventually("a new shim", || {
            let now = shims(home.path());
            if now.len() == 1 && now != shim { Ok(()) } else { Err(format!("{now:?}")) }
        });
        self.runs_once("the life after its shim");
        assert_eq!(self.starts(), 2, "it lives on");

        self.roles.ok(&["snapshot", "take", "shop"]);
        self.roles.ok(&["snapshot", "rm", "shop"]);
        let before = self.starts();
        self.roles.ok(&["yuno", "restart", "default/till"]);
        eventually("the restart", || if self.starts() == before + 1 { Ok(()) } else { Err(self.starts().to_string()) });
        self.runs_once("the restart");
        assert_eq!(self.starts(), before + 1);

        // And once more without a break: there are two for a while, and then one.
        let first = ["yuno", "create", "default/till", "--artifact", "server", "--run", "--replace", "start-first"];
        self.roles.ok(&first);
        let old = self.runs_once("a change in place");
        assert_ne!(self.replaced(), old);
        assert_eq!(self.starts(), before + 2);
        self.roles.ok(&["yuno", "stop", "default/till"]);
        self.unit("the stop", |unit| unit["observed"]["phase"] == "stopped" && unit["observed"]["exit"].is_object());
        assert_eq!(copies(&self.work()), [0_i32; 0]);
        self.roles.ok(&["unit", "retire", "default/till"]);
        self.roles.ok(&["yuno", "rm", "default/till"]);
        eventually("no shim without a program", || match shims(home.path()).as_slice() {
            [] => Ok(()),
            left => Err(format!("{left:?}")),
        });
        eventually("no folder", || if work.exists() { Err("it is there".to_owned()) } else { Ok(()) });
    }
}

/// Processes of the yuno with this working folder. What one of them has just forked, and is not yet what it will be,
/// is none.
fn copies(work: &Path) -> Vec<i32> {
    let is_one = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == work)
            && String::from_utf8_lossy(&line).contains("/artifacts/")
    };
    let all: Vec<i32> = proc::pids().unwrap().into_iter().filter(is_one).collect();
    let has_parent = |pid: &i32| proc::stat(*pid).is_some_and(|stat| all.contains(&stat.ppid));
    let is_alive = |pid: &i32| proc::stat(*pid).is_some_and(|stat| !stat.is_dead());
    all.iter().copied().filter(|pid| is_alive(pid) && !has_parent(pid)).collect()
}

/// Shims of units of the agent below a home, without what waits to be a program's next process.
fn shims(home: &Path) -> Vec<i32> {
    let units = home.join("agent/units");
    let is_one = |pid: &i32| {
        fs::read_link(format!("/proc/{pid}/cwd"))
            .is_ok_and(|cwd| cwd.starts_with(&units) && (cwd.ends_with("run") || cwd.ends_with("run.2")))
            && fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.to_string_lossy().contains("/shim-"))
            && !waits(*pid)
    };
    proc::pids().unwrap().into_iter().filter(is_one).collect()
}

/// All places that the source of the agent has.
fn in_source() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src/agent")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            for part in text.split("crash::point(\"").skip(1) {
                let mut words = part.split('"');
                found.insert(format!("{}/{}", words.next().unwrap(), words.nth(1).unwrap()));
            }
            for part in text.split("commit(tx, \"").skip(1) {
                let what = part.split('"').next().unwrap();
                found.extend([format!("{what}/before commit"), format!("{what}/after commit")]);
            }
        }
    }
    found
}

#[test]
fn killed_at_any_place_the_agent_comes_back_whole() {
    let roles = Arc::new(Roles::start());
    let path = file(&roles.home, "server", SERVER);
    roles.ok(&["artifact", "add", &path, "--role", "server", "--version", "1"]);
    let agent = Agent::start(&roles);
    roles.wait_for_host("online");
    let mut operator = Operator { roles, rounds: 0 };
    // Longer than a console waits before it sends a command again.
    const RESEND_S: u32 = 7;
    operator.round(RESEND_S);

    let places = agent.places();
    let passed: BTreeSet<String> = places.iter().map(|(name, _)| name.clone()).collect();
    let missing: Vec<String> =
        in_source().into_iter().filter(|name| !NOT_HERE.iter().any(|(what, _)| name.starts_with(what))).collect();
    let missing: Vec<&String> = missing.iter().filter(|name| !passed.contains(*name)).collect();
    assert!(missing.is_empty(), "the round does not come to {missing:?}");

    // Each place at its first passage; in a long run also at its later ones.
    let most = if std::env::var_os("TESTS_LONG").is_some() { 20 } else { 1 };
    let points: VecDeque<Point> = (1..=most)
        .flat_map(|count| {
            let often = places.iter().filter(move |(_, counted)| *counted >= count);
            often.map(move |(name, _)| (name.clone(), count))
        })
        .collect();
    let all = points.len();
    *agent.shared.points.lock().unwrap() = points;
    let mut out_of_reach = 0;
    while let Some(next) = agent.next_point() {
        agent.restart();
        operator.round(if next.0.starts_with("answer again") { RESEND_S } else { 1 });
        if agent.next_point().as_ref() == Some(&next) {
            // How often a place is passed varies; that it is, does not.
            assert!(next.1 > 1, "the agent did not come to {next:?} again");
            agent.shared.points.lock().unwrap().pop_front();
            out_of_reach += 1;
        }
    }
    let killed = agent.shared.killed.lock().unwrap().len();
    eprintln!(
        "killed at {killed} of {all} places in {} rounds; {out_of_reach} were not reached again",
        operator.rounds
    );
    assert_eq!(killed + out_of_reach, all);
}

/// Where a replacement can be interrupted: at each commit of what is kept of the unit, and around the start.
const OF_REPLACEMENT: [&str; 5] = [
    "keep unit/before commit",
    "keep unit/after commit",
    "steps/before they begin",
    "start/before its revision is noted",
    "start beside/before it is seen",
];

#[test]
fn killed_at_any_place_of_a_replacement_the_agent_goes_on_with_it() {
    let roles = Arc::new(Roles::start());
    let path = file(&roles.home, "server", SERVER);
    roles.ok(&["artifact", "add", &path, "--role", "server", "--version", "1"]);
    let agent = Agent::start(&roles);
    roles.wait_for_host("online");
    let operator = Operator { roles, rounds: 0 };
    let create = ["yuno", "create", "default/till", "--artifact", "server", "--run", "--replace", "start-first"];
    operator.roles.ok(&create);
    let mut pid = operator.runs_once("the first start");
    let mut starts = operator.starts();

    // A first life tells how often each place is passed before the replacement, and in it.
    let at_first = agent.passed(&OF_REPLACEMENT);
    agent.restart();
    operator.runs_once("the life with another agent");
    let before = agent.passed(&OF_REPLACEMENT);
    pid = watched(&operator, pid, || operator.replaced());
    starts += 1;
    let after = agent.passed(&OF_REPLACEMENT);
    let counts = |index: usize| before[index] - at_first[index] + 1..=after[index] - at_first[index];
    let names = OF_REPLACEMENT.iter().enumerate();
    let points: Vec<Point> =
        names.flat_map(|(index, name)| counts(index).map(|count| ((*name).to_owned(), count))).collect();
    assert!(points.len() >= 6, "{points:?}");
    for point in &points {
        *agent.shared.points.lock().unwrap() = [point.clone()].into();
        agent.restart();
        pid = watched(&operator, pid, || operator.replaced());
        starts += 1;
        assert_eq!(operator.starts(), starts, "started once, killed at {point:?}");
        agent.shared.points.lock().unwrap().clear();
    }
    let killed = agent.shared.killed.lock().unwrap().len();
    eprintln!("killed at {killed} of {} places of a replacement", points.len());
    // How often a place is passed varies a little with time.
    assert!(killed * 10 >= points.len() * 7, "killed at {killed} of {points:?}");
}

/// Watches, while something is done, that there is always a copy of the yuno, and never a third one; who runs then, which
/// is another one than `before`.
fn watched(operator: &Operator, before: i32, work: impl FnOnce() -> i32) -> i32 {
    let (folder, stop) = (operator.work(), AtomicBool::new(false));
    let after = thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut seen = BTreeSet::new();
            while !stop.load(Ordering::Relaxed) {
                seen.insert(copies(&folder).len());
                thread::sleep(Duration::from_millis(5));
            }
            seen
        });
        let after = work();
        stop.store(true, Ordering::Relaxed);
        let seen = watch.join().unwrap();
        assert!(seen.iter().all(|count| (1..=2).contains(count)), "so many copies: {seen:?}");
        after
    });
    assert_ne!(after, before);
    after
}

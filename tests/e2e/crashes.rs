//! A crash sweep: the agent is killed before and after each commit of its store, and around the start of a program,
//! while an operator goes on working as if nothing were.
//!
//! A first life, in which nothing is killed, tells which places there are; the source tells whether one is missing
//! there. Then the operator does the same again and again. Each time the agent was killed at one place it is started
//! again at once, to be killed at the next.
//!
//! Modules: [`agent`] (the one that is killed), [`admission`] (versions that are rolled out), [`documents`] (the host's document and what it removes), [`files`] (units of files, their tasks, and what their changes want), [`queue`] (the same while programs wait for their turn), [`time`] (the same
//! while the console's clock is ahead).

mod admission;
mod agent;
mod documents;
mod files;
mod queue;
mod time;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use muster_shim::process_identity;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use self::agent::{Agent, Point};
use crate::{
    fleet::{eventually, file, waits},
    roles::Roles,
};

/// Places that the round does not come to: those that no operator can bring about in a short time, each with the reason, and
/// those that a test of their own is about.
const NOT_HERE: [(&str, &str); 36] = [
    ("keep time", "about what is stored each hour, at first a minute after a start"),
    ("prune", "about commands that expired a day ago"),
    ("trim metrics", "about measurements that are a week old"),
    ("forget transient", "about units that ended a day ago"),
    ("note older disk", "about a whole disk that was put back"),
    ("put command back", "about a store that has lost a command whose program was begun"),
    ("put time back", "about a console whose clock is ahead: see `time`"),
    ("store document", "about desired state: see `documents`"),
    ("remove units", "about desired state: see `documents`"),
    ("apply deployments", "about a deployment that could not be applied a minute before"),
    ("begin deployment", "about desired state: see `admission`"),
    ("end deployment", "about desired state: see `admission`"),
    ("note end of deployment", "about desired state: see `admission`"),
    ("retry deployment", "about desired state: see `admission`"),
    ("refuse deployment", "about a version that cannot be prepared"),
    ("refuse document", "about a document that no console makes"),
    ("intend files", "about units of files: see `files`"),
    ("files", "about units of files: see `files`"),
    ("note files", "about units of files: see `files`"),
    ("stop files", "about units of files: see `files`"),
    ("forget files", "about units of files: see `files`"),
    ("begin task", "about units of files: see `files`"),
    ("keep task log", "about units of files: see `files`"),
    ("end task", "about units of files: see `files`"),
    ("interrupt tasks", "about units of files: see `files`"),
    ("task ends", "about what is told of tasks: see `tasks`"),
    ("owed", "about what changes of files want: see `files`"),
    ("detach units", "about a host without a console: it is no agent that does it"),
    ("follow values", "about templates: see `render`"),
    ("packages", "about packages: see `tests/e2e/packages`"),
    ("begin package run", "about packages: see `tests/e2e/packages`"),
    ("end package run", "about packages: see `tests/e2e/packages`"),
    ("add package trace", "about packages: see `tests/e2e/packages`"),
    ("remove package trace", "about packages: see `tests/e2e/packages`"),
    ("forget packages", "about packages: see `tests/e2e/packages`"),
    ("fold package runs", "about packages: see `tests/e2e/packages`"),
];

/// A store comes to this once, with the first message of its console: see [`new_member_killed_at_its_first_message_takes_commands`].
const ONCE: &str = "set console epoch/";

/// So that there is something to be refused by the agent itself.
const POLICY: &str = "[policy]\ndeny_users = [\"daemon\"]";

/// A yuno that notes each of its starts, ends with 3 when it is told to, and with 0 when it is asked.
const SERVER: &str = "#!/bin/sh
echo $$ >> starts
trap 'exit 0' TERM
while :; do
    if [ -e crash ]; then rm crash; exit 3; fi
    sleep 0.05 & wait $!
done
";

/// The rule that makes alerts of restarts.
const RULE: &str = "restarted";

/// What the operator does, and what must be so whatever becomes of the agent meanwhile.
struct Operator {
    roles: Arc<Roles>,
    rounds: usize,
}

impl Operator {
    fn work(&self) -> PathBuf {
        self.roles.home.path().join("agent/units/default/till/work")
    }

    /// How often the agent has forgotten alerts that are over.
    fn alerts_forgotten(&self) -> usize {
        let places = fs::read_to_string(self.roles.home.path().join("places")).unwrap_or_default();
        places.lines().filter(|place| *place == "forget alerts/after commit").count()
    }

    /// How bad it is in this round that a unit was started again.
    fn severity(&self) -> &'static str {
        ["info", "warning", "critical"][self.rounds % 3]
    }

    /// A rule that is another one each round, and under which a unit that was started again is an alert.
    fn watch_restarts(&self) {
        let rule = ["rule", "set", RULE, "--metric", "unit_restarts", "--level", "0", "--severity", self.severity()];
        self.roles.ok(&rule);
    }

    /// Waits until so many alerts hold under the rule of this round.
    fn alerts(&self, count: usize) {
        eventually("alerts", || {
            let alerts = self.roles.json(&["alert", "ls", "--rule", RULE]);
            let list = alerts.as_array().unwrap();
            let is_this = |alert: &Value| alert["alert"]["severity"] == self.severity();
            if list.len() == count && list.iter().all(is_this) { Ok(()) } else { Err(alerts.to_string()) }
        });
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
                && pid.is_some_and(|pid| process_identity::stat(pid as i32).is_some_and(|stat| !stat.is_dead()))
        })["observed"]["pid"]
            .as_i64()
            .unwrap();
        assert_eq!(copies(&self.work()), [pid as i32], "{what}");
        pid as i32
    }

    /// Has something done about a unit, however often its agent is killed meanwhile: a host that is just away is waited for.
    fn order(&self, words: &[&str]) {
        self.roles.ok(&[words, &["--wait-offline"]].concat());
    }

    /// Has another revision take the place of the one that runs; who runs then.
    fn replaced(&self) -> i32 {
        self.order(&["yuno", "restart", "default/till"]);
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
        self.order(&["yuno", "stop", &name]);
        self.in_phase(&name, "stopped");
        self.order(&["unit", "rm", &name]);
        assert_eq!(fs::read_to_string(&effects).unwrap(), "once\n");
    }

    /// A label in place of that of the round before: the host says that it carries it, and is in its group from then on.
    fn label(&self) {
        let (before, now) = (format!("round-{}", self.rounds - 1), format!("round-{}", self.rounds));
        self.roles.ok(&["host", "label", &format!("{before}-"), &format!("{now}=yes")]);
        let labelled = eventually("labels that the host has confirmed", || {
            let hosts = self.roles.json(&["host", "label"]);
            if hosts[0]["confirmed"] == true { Ok(hosts[0]["labels"].clone()) } else { Err(hosts.to_string()) }
        });
        let names: Vec<&Value> = labelled.as_array().unwrap().iter().map(|label| &label["name"]).collect();
        assert_eq!(names, [&now]);
        let run = self.roles.home.muster(&["exec", "--select", &format!("label.{now}"), "--", "echo", "carries", "it"]);
        match run.code {
            0 => assert!(run.stdout.contains("carries it"), "{run:?}"),
            _ => assert!(run.stderr.contains("lost"), "{run:?}"),
        }
        self.roles
            .home
            .muster(&["exec", "--select", &format!("label.{before}"), "--", "true"])
            .expect_code(3)
            .expect_stderr("no host");
    }

    /// Replaces the key that commands are signed with.
    fn rotate(&self) {
        self.roles.ok(&["authority", "rotate", "signing", "--timeout", "0s"]);
        eventually("a host with the new key", || {
            let run = self.roles.home.muster(&["authority", "finish", "--timeout", "0s"]);
            if run.code == 0 { Ok(()) } else { Err(run.stderr) }
        });
    }

    /// The whole round; `wait_s` is how long a command of it takes.
    fn round(&mut self, wait_s: u32) {
        self.rounds += 1;
        let forgotten = self.alerts_forgotten();
        self.watch_restarts();
        self.label();
        self.rotate();
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
        // If the agent is killed meanwhile, the cancellation waits for it to be back.
        home.muster(&["command", "cancel", long.trim()]);
        eventually("the end of what was cancelled", || {
            let shown = self.roles.json(&["command", "show", long.trim()]);
            if shown["hosts"][0]["state"] == "done" { Ok(()) } else { Err(shown.to_string()) }
        });
        self.batch();
        self.daemon();

        self.order(&["yuno", "create", "default/till", "--artifact", "server", "--run"]);
        self.runs_once("the first start");
        let (starts, work) = (self.starts(), self.work());
        assert_eq!(starts, 1, "it was started once");
        fs::write(work.join("crash"), "").unwrap();
        self.unit("the exit code of a crash", |unit| unit["observed"]["exit"]["code"] == 3);
        self.runs_once("the start after a crash");
        assert_eq!(self.starts(), 2, "it was started again once");
        self.alerts(1);

        let shim = shims(home.path());
        assert_eq!(shim.len(), 1, "one unit, one shim");
        kill(Pid::from_raw(shim[0]), Signal::SIGKILL).unwrap();
        eventually("a new shim", || {
            let now = shims(home.path());
            if now.len() == 1 && now != shim { Ok(()) } else { Err(format!("{now:?}")) }
        });
        self.runs_once("the life after its shim");
        assert_eq!(self.starts(), 2, "it lives on");

        self.order(&["snapshot", "create", "shop"]);
        self.order(&["snapshot", "rm", "shop"]);
        let before = self.starts();
        self.order(&["yuno", "restart", "default/till"]);
        eventually("the restart", || if self.starts() == before + 1 { Ok(()) } else { Err(self.starts().to_string()) });
        self.runs_once("the restart");
        assert_eq!(self.starts(), before + 1);

        // And once more without a break: there are two for a while, and then one.
        let first = [
            "yuno",
            "create",
            "default/till",
            "--artifact",
            "server",
            "--run",
            "--update-order",
            "start-first",
            "--replace",
        ];
        self.order(&first);
        let old = self.runs_once("a change in place");
        assert_ne!(self.replaced(), old);
        assert_eq!(self.starts(), before + 2);
        self.order(&["yuno", "stop", "default/till"]);
        self.unit("the stop", |unit| unit["observed"]["phase"] == "stopped" && unit["observed"]["exit"].is_object());
        assert_eq!(copies(&self.work()), [0_i32; 0]);
        self.order(&["unit", "retire", "default/till"]);
        self.order(&["yuno", "rm", "default/till"]);
        eventually("no shim without a program", || match shims(home.path()).as_slice() {
            [] => Ok(()),
            left => Err(format!("{left:?}")),
        });
        eventually("no folder", || if work.exists() { Err("it is there".to_owned()) } else { Ok(()) });
        self.alerts(0);
        eventually("the alert's end here", || match self.alerts_forgotten() {
            count if count > forgotten => Ok(()),
            _ => Err("the agent still knows it".to_owned()),
        });
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
    let all: Vec<i32> = process_identity::pids().unwrap().into_iter().filter(is_one).collect();
    let has_parent = |pid: &i32| process_identity::stat(*pid).is_some_and(|stat| all.contains(&stat.ppid));
    let is_alive = |pid: &i32| process_identity::stat(*pid).is_some_and(|stat| !stat.is_dead());
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
    process_identity::pids().unwrap().into_iter().filter(is_one).collect()
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
fn agent_recovers_from_kill_at_any_place() {
    let roles = Arc::new(Roles::start());
    let path = file(&roles.home, "server", SERVER);
    roles.ok(&["artifact", "create", &path, "--role", "server", "--version", "1"]);
    let agent = Agent::start(&roles, POLICY);
    roles.wait_for_host("online");
    let mut operator = Operator { roles, rounds: 0 };
    // Longer than a console waits before it sends a command again.
    const RESEND_S: u32 = 7;
    operator.round(RESEND_S);

    let mut places = agent.places();
    let passed: BTreeSet<String> = places.iter().map(|(name, _)| name.clone()).collect();
    let missing: Vec<String> =
        in_source().into_iter().filter(|name| !NOT_HERE.iter().any(|(what, _)| name.starts_with(what))).collect();
    let missing: Vec<&String> = missing.iter().filter(|name| !passed.contains(*name)).collect();
    assert!(missing.is_empty(), "the round does not come to {missing:?}");
    places.retain(|(name, _)| !name.starts_with(ONCE));

    // Each place at its first passage; in a long run also at its later ones.
    let most = if std::env::var_os("TESTS_LONG").is_some() { 20 } else { 1 };
    let points: Vec<Point> = (1..=most)
        .flat_map(|count| {
            let often = places.iter().filter(move |(_, counted)| *counted >= count);
            often.map(move |(name, _)| (name.clone(), count))
        })
        .collect();
    let all = points.len();
    agent.kill_at(points);
    let mut out_of_reach = 0;
    while let Some(next) = agent.next_point() {
        agent.restart();
        operator.round(if next.0.starts_with("answer again") { RESEND_S } else { 1 });
        if agent.next_point().as_ref() == Some(&next) {
            // How often a place is passed varies; that it is, does not.
            assert!(next.1 > 1, "the agent did not come to {next:?} again");
            agent.pass_over();
            out_of_reach += 1;
        }
    }
    let killed = agent.killed().len();
    eprintln!(
        "killed at {killed} of {all} places in {} rounds; {out_of_reach} were not reached again",
        operator.rounds
    );
    assert_eq!(killed + out_of_reach, all);
}

#[test]
fn new_member_killed_at_its_first_message_takes_commands() {
    let places: Vec<String> = in_source().into_iter().filter(|name| name.starts_with(ONCE)).collect();
    assert_eq!(places.len(), 2, "{places:?}");
    for place in places {
        let roles = Arc::new(Roles::start());
        let agent = Agent::start_to_be_killed(&roles, "", [(place.clone(), 1)]);
        eventually("its end there", || match agent.next_point() {
            None => Ok(()),
            Some(next) => Err(format!("{next:?}")),
        });
        roles.wait_for_host("online");
        let effects = roles.home.path().join("effects");
        let script = format!("echo once >> {}", effects.display());
        roles.ok(&["exec", "--wait-offline", "--shell", "--", &script]);
        assert_eq!(fs::read_to_string(&effects).unwrap(), "once\n", "{place}");
        // It is stored once, and what comes later is not held against it.
        agent.restart();
        roles.ok(&["exec", "--wait-offline", "--", "true"]);
        let killed: Vec<String> = agent.killed().into_iter().map(|(name, _)| name).collect();
        assert_eq!(killed, [place]);
    }
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
fn agent_resumes_replacement_after_kill_at_any_place() {
    let roles = Arc::new(Roles::start());
    let path = file(&roles.home, "server", SERVER);
    roles.ok(&["artifact", "create", &path, "--role", "server", "--version", "1"]);
    let agent = Agent::start(&roles, "");
    roles.wait_for_host("online");
    let operator = Operator { roles, rounds: 0 };
    let create = ["yuno", "create", "default/till", "--artifact", "server", "--run", "--update-order", "start-first"];
    operator.order(&create);
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
        agent.kill_at([point.clone()]);
        agent.restart();
        pid = watched(&operator, pid, || operator.replaced());
        starts += 1;
        assert_eq!(operator.starts(), starts, "started once, killed at {point:?}");
        agent.kill_at([]);
    }
    let killed = agent.killed().len();
    eprintln!("killed at {killed} of {} places of a replacement", points.len());
    // How often a place is passed varies a little with time.
    assert!(killed * 10 >= points.len() * 7, "killed at {killed} of {points:?}");
}

/// Sets a flag once it goes out of scope, however that comes.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
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
        // Also if the work fails, or the test would never end.
        let stopped = StopOnDrop(&stop);
        let after = work();
        drop(stopped);
        let seen = watch.join().unwrap();
        assert!(seen.iter().all(|count| (1..=2).contains(count)), "so many copies: {seen:?}");
        after
    });
    assert_ne!(after, before);
    after
}

//! An agent that is killed at places that a test names, and started again.

use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{Child, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    fleet::{Home, eventually},
    roles::Roles,
};

/// A place, and the how manyeth passage of it.
pub(super) type Point = (String, usize);

/// An agent that is started again whenever it is killed at a place.
pub(super) struct Agent {
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
    /// Starts one, with more lines in its configuration, that joins.
    pub(super) fn start(roles: &Arc<Roles>, more: &str) -> Self {
        Self::start_to_be_killed(roles, more, [])
    }

    /// The same, with places where it is to be killed from its first start on.
    pub(super) fn start_to_be_killed(roles: &Arc<Roles>, more: &str, points: impl IntoIterator<Item = Point>) -> Self {
        let config = roles.agent_config_with(more);
        let shared = Arc::new(Shared {
            roles_home: roles.home.path().to_owned(),
            config,
            places: roles.home.path().join("places"),
            points: Mutex::new(points.into_iter().collect()),
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
    pub(super) fn places(&self) -> Vec<Point> {
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
    pub(super) fn passed(&self, names: &[&str]) -> Vec<usize> {
        let places: BTreeMap<String, usize> = self.places().into_iter().collect();
        names.iter().map(|name| places.get(*name).copied().unwrap_or(0)).collect()
    }

    /// Ends the agent in order; it is started again, to be killed at the next place.
    pub(super) fn restart(&self) {
        let pid = self.shared.child.lock().unwrap().as_ref().unwrap().id();
        kill(Pid::from_raw(pid.cast_signed()), Signal::SIGTERM).unwrap();
        eventually("the next agent", || match self.shared.child.lock().unwrap().as_ref().map(Child::id) {
            Some(next) if next != pid => Ok(()),
            _ => Err("not yet".to_owned()),
        });
    }

    /// Where it is to be killed next.
    pub(super) fn next_point(&self) -> Option<Point> {
        self.shared.points.lock().unwrap().front().cloned()
    }

    /// Where it is to be killed, from its next start on.
    pub(super) fn kill_at(&self, points: impl IntoIterator<Item = Point>) {
        *self.shared.points.lock().unwrap() = points.into_iter().collect();
    }

    /// The next place is out of reach.
    pub(super) fn pass_over(&self) {
        self.shared.points.lock().unwrap().pop_front();
    }

    /// Where it was killed so far.
    pub(super) fn killed(&self) -> Vec<Point> {
        self.shared.killed.lock().unwrap().clone()
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

//! Properties of the planner, held against a small model of a host: any sequence of verbs, ends,
//! failures, ticks and restarts of the agent keeps the invariants, and converges once the faults stop.

use muster_topics::{
    channel::Ability,
    command::Verb,
    endpoint::{Endpoint, Protocol},
    name::UnitName,
    unit::{HoldReason, Phase},
};
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::rules::edit::{Current, Edit, Holding, edit};

/// What may happen at any time.
#[derive(Clone, Debug)]
enum Event {
    Apply {
        artifact: u8,
        grace_ms: u64,
        /// Which probes it has, as [`probes`] takes it.
        probes: u8,
        run: Option<Run>,
    },
    Run,
    Stop,
    Restart,
    Hold,
    Unhold,
    Retire,
    Freeze,
    Thaw,
    Rm,
    /// Others keep it from being started, or not any more.
    Gate(Gate),
    InstallEnds(Fate),
    LaunchEnds(Fate),
    /// The process ends, and nothing but the agent starts it again.
    Exit(i32),
    /// The process ends, and its shim starts it again.
    Again(i32),
    Wait(Millis),
    /// It is wired to another port, and may lack something.
    Wire(u16, bool),
    /// The agent is killed, and started again.
    AgentRestart,
    Play {
        run: bool,
    },
    Pause,
    /// One that speaks connects (again), and so is up.
    Connect,
    Disconnect,
    /// It answers to whether it plays; with `Unknown` it does as it was asked, and its answer is lost.
    PlayEnds(Fate),
    /// One of the probes that are tried comes to something.
    Probed(u8, bool),
    /// One that was tried for a process that has gone.
    ProbedBefore(u8),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Good,
    Heals,
    Fatal,
    Unknown,
}

/// One host with one unit: what really runs, and what is under way.
struct World {
    now_ms: Millis,
    generation: u64,
    row: Option<(Desired, Option<Hold>)>,
    unit: Unit,
    process: Option<(Digest, Process)>,
    /// What it is wired to, and whether it lacks something.
    wired: (u16, bool),
    /// What its process was started with.
    with: u16,
    restarts: u32,
    last: Option<Ended>,
    pids: i32,
    adopting: bool,
    installing: Option<Digest>,
    reloading: Option<Digest>,
    launching: Option<Digest>,
    stopping: bool,
    removing: bool,
    /// What runs is suspended, and what it was asked last.
    frozen: bool,
    freezing: Option<bool>,
    /// What the process does, whatever the agent knows of it.
    plays: bool,
    /// Which connection of the process there is, and how many there were.
    connection: Option<Connection>,
    connections: u64,
    /// What the next welcome says.
    wish: bool,
    ready: bool,
    /// The question that is under way.
    asked: Option<(u32, bool)>,
    /// What the process has passed of start and ready probe, and whether the agent has ever seen it up.
    passed: [bool; 2],
    was_up: bool,
    /// The unit was removed, and the shell knows it no more.
    gone: bool,
    /// Whether what runs as a revision speaks.
    speaking: BTreeMap<Digest, bool>,
    /// A revision that does not work, and how.
    bad: Option<(Digest, Bad)>,
}

/// What is wrong with a revision.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bad {
    /// It cannot be installed.
    Install,
    /// It cannot be started.
    Start,
    /// It ends at once, for good.
    Ends,
    /// It ends at once, and its shim starts it again as often as it may.
    EndsAgain,
    /// It never says that it is up.
    Silent,
    /// Its probes never find that it is up.
    NotReady,
    /// It comes up, and hangs.
    Hangs,
}

fn name() -> UnitName {
    "default/hello".parse().unwrap()
}

/// Some of the three probes, by the bits of a number.
fn probes(which: u8) -> String {
    let names = ["start", "ready", "live"].iter().enumerate().filter(|(bit, _)| which & (1 << bit) != 0);
    let probes: Vec<String> = names.map(|(_, name)| format!(r#""{name}":{{"tcp":{{"port":1}}}}"#)).collect();
    format!("{{{}}}", probes.join(","))
}

fn apply(artifact: u8, grace_ms: u64, which: u8, run: Option<Run>) -> Verb {
    let probes = probes(which);
    let sha256 = Digest::of(&[artifact]);
    // Every third artifact is a task rather than a service.
    let restart = if artifact % 3 == 2 { "on_failure" } else { "always" };
    let channel = if speaks(&sha256) { "lines" } else { "none" };
    let rollback = if artifact == 3 { "never" } else { "auto" };
    let spec = format!(
        r#"{{"kind":"yuno","artifact":{{"sha256":"{sha256}","size_bytes":1,"role":"a","version":"1"}},"grace_ms":{grace_ms},"restart":"{restart}","reload":"signal","channel":"{channel}","rollback":"{rollback}","probes":{probes},"start_timeout_ms":60000}}"#
    );
    Verb::UnitApply { unit: name(), spec: Box::new(serde_json::from_str(&spec).unwrap()), run }
}

/// Whether an artifact is of a program that speaks on a channel; the one that is in the middle.
fn speaks(artifact: &Digest) -> bool {
    *artifact == Digest::of(&[1])
}

/// Wired to nothing but a port.
fn wiring(port: u16) -> Wiring {
    let (name, address) = ("http".parse().unwrap(), "127.0.0.1".parse().unwrap());
    Wiring { endpoints: vec![Endpoint { name, address, port, protocol: Protocol::Tcp }], connectors: Vec::new() }
}

impl World {
    fn new() -> Self {
        let now_ms = 1_000_000;
        Self {
            now_ms,
            generation: 0,
            row: None,
            unit: Unit::new(None, now_ms),
            process: None,
            wired: (1, false),
            with: 0,
            restarts: 0,
            last: None,
            pids: 100,
            adopting: false,
            installing: None,
            reloading: None,
            launching: None,
            stopping: false,
            removing: false,
            frozen: false,
            freezing: None,
            plays: false,
            connection: None,
            connections: 0,
            wish: false,
            ready: false,
            asked: None,
            passed: [false; 2],
            was_up: false,
            gone: false,
            speaking: BTreeMap::new(),
            bad: None,
        }
    }

    fn see(&mut self, seen: Seen) {
        self.gone &= !matches!(seen, Seen::Desired(Some(_), _));
        if self.gone {
            return;
        }
        let before = self.unit.observed.generation;
        self.unit.observe(seen, self.now_ms);
        assert!(self.unit.observed.generation >= before, "a generation was unreached");
        if let Some((desired, _)) = &self.row {
            assert!(self.unit.observed.generation <= desired.generation, "reached before it was desired");
        }
        self.check_probes();
        self.drive();
        // The shell works it out anew.
        if self.unit.needs_wiring() {
            self.wire();
        }
    }

    /// As the shell does it: steps are begun until there are none.
    fn drive(&mut self) {
        for _ in 0..5 {
            match self.unit.plan(self.now_ms) {
                None => return,
                Some(Step::WaitUntil(at_ms)) => return assert!(at_ms > self.now_ms, "waits for what is over"),
                Some(step) => {
                    self.perform(step);
                    self.unit.observe(Seen::Began(step), self.now_ms);
                }
            }
        }
        panic!("the planner finds no rest: {:?}", self.unit);
    }

    fn perform(&mut self, step: Step) {
        match step {
            Step::Adopt => self.adopting = true,
            Step::Install => self.installing = self.unit.desired.as_ref().map(|desired| desired.revision.clone()),
            Step::Start { .. } => {
                assert_eq!(*self.unit.gate(), Gate::Open, "started before its turn");
                assert!(self.process.is_none() && self.launching.is_none(), "a second process");
                assert!(!self.removing && !self.stopping, "started while it goes");
                assert!(!self.wired.1, "started while it lacks something");
                self.launching = self.unit.desired.as_ref().map(|desired| desired.revision.clone());
                self.with = self.wired.0;
            }
            Step::Stop { .. } => {
                assert!(self.process.is_some(), "nothing to stop");
                self.stopping = true;
            }
            Step::Reload => {
                // It may be about to end, if an earlier life of the agent has asked for that.
                assert!(self.process.is_some(), "nothing to reload");
                self.reloading = self.unit.desired.as_ref().map(|desired| desired.revision.clone());
            }
            Step::Freeze | Step::Thaw => {
                assert!(self.process.is_some(), "nothing to freeze");
                self.freezing = Some(step == Step::Freeze);
            }
            Step::Play { playing, ask } => {
                assert!(self.connection.is_some() && self.asked.is_none(), "nobody to ask, or one who is being asked");
                (self.asked, self.wish) = (Some((ask, playing)), playing);
            }
            Step::Remove => {
                assert!(self.process.is_none() && self.launching.is_none(), "removed while it runs");
                (self.removing, self.installing) = (true, None);
            }
            Step::WaitUntil(_) => unreachable!("driven, not performed"),
        }
    }

    fn verb(&mut self, verb: &Verb) {
        let current = self.row.as_ref().map(|(desired, _)| Current {
            desired,
            hold: self.unit.hold.as_ref(),
            observed: &self.unit.observed,
        });
        match edit(&name(), current, verb) {
            Err(_) | Ok(Edit::Keep) => return,
            Ok(Edit::Forget) => self.row = None,
            Ok(Edit::Set { spec, revision, run, frozen, holding }) => {
                self.generation += 1;
                let before = self.row.take().and_then(|(_, hold)| hold);
                let hold = match holding {
                    Holding::Keep => before.filter(|hold| hold.reason == HoldReason::Operator),
                    Holding::End => None,
                    Holding::Begin { .. } => Some(Hold::new(HoldReason::Operator, self.now_ms)),
                };
                let Spec::Yuno(yuno) = &*spec;
                self.speaking.insert(revision.clone(), speaks(&yuno.artifact.sha256));
                let desired = Desired { generation: self.generation, revision, spec: *spec, run, frozen };
                self.row = Some((desired, hold));
            }
        }
        self.desire();
    }

    fn desire(&mut self) {
        let (desired, hold) = self.row.clone().unzip();
        self.see(Seen::Desired(desired.map(Box::new), hold.flatten()));
        self.wire();
    }

    fn wire(&mut self) {
        let (port, lacks) = self.wired;
        self.see(Seen::Wired(wiring(port), lacks.then(|| "something".to_owned())));
    }

    fn spawn(&mut self, revision: Digest) {
        assert!(self.process.is_none(), "a second process");
        self.pids += 1;
        (self.frozen, self.freezing) = (false, None);
        (self.plays, self.connection, self.connections, self.ready, self.asked) = (false, None, 0, false, None);
        (self.passed, self.was_up) = ([false; 2], false);
        self.process = Some((revision, Process { pid: self.pids, start_ticks: 1, started_ms: self.now_ms }));
    }

    fn tell(&self) -> Told {
        let process = self.process.as_ref().map(|(_, process)| *process);
        let (restarts, last, connection) = (self.restarts, self.last.clone(), self.connection.clone());
        let (ready, frozen, wiring) = (self.ready, self.frozen, wiring(self.with));
        Told { process, restarts, last, ready, frozen, connection, wiring, ..Told::default() }
    }

    fn end(&mut self, exit: Exit) -> Option<(Digest, Ended)> {
        let (revision, process) = self.process.take()?;
        (self.connection, self.asked, self.ready) = (None, None, false);
        let ended = Ended::new(exit, Some(process.started_ms), self.now_ms);
        self.last = Some(ended.clone());
        Some((revision, ended))
    }

    fn launch_ends(&mut self, fate: Fate) {
        let Some(revision) = self.launching.take() else { return };
        let failure = Failure { error: "no".to_owned(), may_heal: fate == Fate::Heals };
        match fate {
            Fate::Good => {
                (self.restarts, self.last) = (0, None);
                self.wish = self.wants_play();
                self.spawn(revision);
                self.see(Seen::Started);
                self.see(Seen::Told(self.tell()));
            }
            Fate::Heals | Fate::Fatal => self.see(Seen::NotStarted(failure)),
            Fate::Unknown => {
                // Whether it came to run is the pid's parity; the agent cannot know.
                (self.restarts, self.last) = (0, None);
                if self.pids % 2 == 0 {
                    self.spawn(revision);
                }
                self.pids += 1;
                self.see(Seen::StartUnknown);
            }
        }
    }

    fn install_ends(&mut self, fate: Fate) {
        let Some(revision) = self.installing.take() else { return };
        let failure = Failure { error: "no".to_owned(), may_heal: fate == Fate::Heals };
        match fate {
            Fate::Good | Fate::Unknown => self.see(Seen::Installed(revision)),
            Fate::Heals | Fate::Fatal => self.see(Seen::NotInstalled { revision, failure, random: 0.5 }),
        }
    }

    fn agent_restarts(&mut self) {
        let hold = self.unit.hold.clone();
        if let Some(row) = &mut self.row {
            row.1 = hold;
        }
        // A shim that was being started comes up (or not) without the agent; a stop that was asked goes on.
        if let Some(revision) = self.launching.take()
            && self.pids % 2 == 0
        {
            (self.restarts, self.last) = (0, None);
            self.spawn(revision);
        }
        (self.installing, self.adopting, self.removing, self.reloading) = (None, false, false, None);
        self.asked = None;
        self.unit = Unit::new(Some(self.unit.kept()), self.now_ms);
        self.desire();
    }

    fn exit(&mut self, code: i32) {
        let known = matches!(self.unit.instance, Instance::Alive(_));
        if let Some((_, last)) = self.end(Exit::Code(code)) {
            self.stopping = false;
            if known {
                self.see(Seen::Ended(Over { restarts: self.restarts, last }));
            }
        }
    }

    fn wants_play(&self) -> bool {
        self.row.as_ref().is_some_and(|(desired, _)| desired.run == Run::Playing)
    }

    /// Whether the process is one that speaks: that is part of what it was started as.
    fn can_connect(&self) -> bool {
        self.process.as_ref().is_some_and(|(revision, _)| self.speaking[revision])
    }

    fn connect(&mut self) {
        if !self.can_connect() || self.stopping {
            return;
        }
        self.connections += 1;
        self.connection = Some(Connection { number: self.connections, playing: self.wish, can: vec![Ability::Play] });
        (self.plays, self.ready, self.asked) = (self.wish, true, None);
        self.tell_if_known();
    }

    fn disconnect(&mut self) {
        if self.connection.take().is_some() {
            self.asked = None;
            self.tell_if_known();
        }
    }

    fn tell_if_known(&mut self) {
        if matches!(self.unit.instance, Instance::Alive(_)) {
            self.see(Seen::Told(self.tell()));
        }
    }

    fn play_ends(&mut self, fate: Fate) {
        let Some((ask, playing)) = self.asked.take() else { return };
        if matches!(fate, Fate::Good | Fate::Unknown) {
            self.plays = playing;
        }
        let answer = match fate {
            Fate::Good => Ok(()),
            Fate::Fatal => Err(NotPlayed::Refused("no".to_owned())),
            Fate::Heals | Fate::Unknown => Err(NotPlayed::Unanswered("late".to_owned())),
        };
        self.see(Seen::Played { ask, answer });
    }

    /// What answers by itself, without being asked to.
    fn answers(&mut self) {
        if std::mem::take(&mut self.adopting) {
            let found = match (&self.process, self.last.clone()) {
                (Some((revision, _)), _) => Found::Alive(revision.clone(), self.tell()),
                (None, Some(last)) => Found::Ended(Over { restarts: self.restarts, last }),
                (None, None) => Found::Nothing,
            };
            self.see(Seen::Found(found));
        }
        if let Some(revision) = self.reloading.take() {
            let speaks = self.speaking[&revision];
            match &mut self.process {
                // Some differ in more than their configs, such as in their channel.
                Some((runs, _)) if self.pids % 3 != 0 && self.connection.is_some() == speaks => {
                    *runs = revision.clone();
                    self.see(Seen::Reloaded(revision));
                }
                _ => self.see(Seen::NotReloaded(revision)),
            }
        }
        if let Some(frozen) = self.freezing.take()
            && self.process.is_some()
        {
            self.frozen = frozen;
            if matches!(self.unit.instance, Instance::Alive(_)) {
                self.see(Seen::Told(self.tell()));
            }
        }
        if std::mem::take(&mut self.removing) {
            self.see(Seen::Removed);
            if self.row.is_none() {
                self.unit = Unit::new(None, self.now_ms);
                (self.gone, self.last) = (true, None);
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Apply { artifact, grace_ms, probes, run } => self.verb(&apply(artifact, grace_ms, probes, run)),
            Event::Run => self.verb(&Verb::UnitRun { unit: name() }),
            Event::Stop => self.verb(&Verb::UnitStop { unit: name() }),
            Event::Restart => self.verb(&Verb::UnitRestart { unit: name() }),
            Event::Hold => self.verb(&Verb::UnitHold { unit: name(), note: None }),
            Event::Unhold => self.verb(&Verb::UnitUnhold { unit: name() }),
            Event::Retire => self.verb(&Verb::UnitRetire { unit: name(), note: None }),
            Event::Freeze => self.verb(&Verb::UnitFreeze { unit: name() }),
            Event::Thaw => self.verb(&Verb::UnitThaw { unit: name() }),
            Event::Rm => self.verb(&Verb::UnitRm { unit: name() }),
            Event::Gate(gate) => self.see(Seen::Gate(gate)),
            Event::InstallEnds(fate) => self.install_ends(fate),
            Event::LaunchEnds(fate) => self.launch_ends(fate),
            Event::Exit(code) => self.exit(code),
            Event::Again(code) => {
                let known = matches!(self.unit.instance, Instance::Alive(_));
                if !self.stopping
                    && let Some((revision, _)) = self.end(Exit::Code(code))
                {
                    self.restarts += 1;
                    self.spawn(revision);
                    if known {
                        self.see(Seen::Told(self.tell()));
                    }
                }
            }
            Event::Wait(ms) => {
                self.now_ms += ms;
                self.see(Seen::Tick);
            }
            Event::Wire(port, lacks) => {
                self.wired = (port, lacks);
                self.wire();
            }
            Event::AgentRestart => self.agent_restarts(),
            Event::Play { run } => self.verb(&Verb::UnitPlay { unit: name(), run }),
            Event::Pause => self.verb(&Verb::UnitPause { unit: name() }),
            Event::Connect => self.connect(),
            Event::Disconnect => self.disconnect(),
            Event::PlayEnds(fate) => self.play_ends(fate),
            Event::Probed(place, good) => {
                let tried = self.unit.probing();
                if let Some(probing) = tried.get(usize::from(place) % tried.len().max(1)) {
                    self.probed(probing, good);
                }
            }
            Event::ProbedBefore(place) => {
                let process = Process { pid: self.pids - 1, start_ticks: 1, started_ms: self.now_ms };
                let which = Which::ALL[usize::from(place) % 3];
                self.see(Seen::Probed { process, which, verdict: Verdict::Passed });
                self.see(Seen::Probed { process, which, verdict: Verdict::Failed("old".to_owned()) });
            }
        }
        self.answers();
        self.check();
    }

    fn probed(&mut self, probing: &Probing, good: bool) {
        let Probing { process, which, coming, .. } = *probing;
        assert_eq!(self.process.as_ref().map(|(_, process)| *process), Some(process), "another process is probed");
        assert!(!self.frozen || self.freezing.is_some(), "what is suspended is probed");
        let verdict = match (good, coming) {
            (true, _) => Verdict::Passed,
            (false, true) => Verdict::Pending("no".to_owned()),
            (false, false) => Verdict::Failed("no".to_owned()),
        };
        match which {
            Which::Start => {
                assert!(coming, "it is up already");
                self.passed[0] |= good;
            }
            Which::Ready => self.passed[1] |= good,
            Which::Live => assert!(self.was_up, "it is not up yet"),
        }
        self.see(Seen::Probed { process, which, verdict });
    }

    /// What is up has passed what it has to pass, and is thrown back by nothing.
    fn check_probes(&mut self) {
        let (Instance::Alive(alive), Some((_, process)), Some((desired, _))) =
            (&self.unit.instance, &self.process, &self.row)
        else {
            return;
        };
        if alive.process != Some(*process) || alive.ends_by_ms.is_some() {
            return;
        }
        let is_up = matches!(self.unit.observed.phase, Phase::Running | Phase::Playing);
        if is_up && !self.was_up && alive.revision == desired.revision {
            let Spec::Yuno(spec) = &desired.spec;
            let [started, ready] = self.passed;
            assert!(started || spec.probes.start.is_none(), "up without its start probe");
            assert!(ready || spec.probes.ready.is_none(), "up without its ready probe");
        }
        // It may have to say more than before, as what it is now.
        let waits = self.unit.awaits_word(alive) || self.unit.observed.phase == Phase::Failed;
        assert!(is_up || waits || !self.was_up, "thrown back: {:?}", self.unit);
        self.was_up |= is_up;
    }

    fn check(&self) {
        if matches!(self.unit.observed.phase, Phase::Running | Phase::Playing)
            && let Instance::Alive(alive) = &self.unit.instance
        {
            let (revision, process) = self.process.as_ref().expect("running without a process");
            assert_eq!((&alive.revision, alive.process), (revision, Some(*process)));
            assert_eq!(self.unit.observed.pid, Some(process.pid));
        }
        if let Some(rolled_back) = &self.unit.observed.rolled_back {
            let asked = self.unit.asked().expect("it went back from something that is desired");
            assert_eq!((rolled_back.generation, &rolled_back.revision), (asked.generation, &asked.revision));
            let verified = self.unit.verified().expect("it went back to something");
            assert_eq!(rolled_back.to, verified.revision);
            assert_eq!(self.unit.desired.as_ref().map(|desired| &desired.revision), Some(&verified.revision));
            assert!(!self.unit.observed.on_trial);
        }
        if self.unit.observed.phase != Phase::Backoff {
            assert_eq!(self.unit.observed.retry_ms, None);
        }
    }

    fn is_idle(&self) -> bool {
        let asked = self.freezing.is_some() || self.reloading.is_some() || self.asked.is_some();
        let busy = self.adopting || self.removing || self.stopping || asked;
        !busy && self.installing.is_none() && self.launching.is_none()
    }

    /// From here on everything works, and time passes as the planner asks for it.
    fn settle(&mut self) {
        self.wired.1 = false;
        self.wire();
        self.see(Seen::Gate(Gate::Open));
        for _ in 0..100 {
            self.answers();
            if self.gone {
                return;
            }
            self.install_ends(self.fate(self.installing.as_ref(), Bad::Install));
            self.launch_ends(self.fate(self.launching.as_ref(), Bad::Start));
            if self.stopping {
                self.exit(0);
            }
            self.behave();
            if self.is_bad(Bad::EndsAgain) {
                // No time passes before it ends once more.
                continue;
            }
            if self.connection.is_none() && !self.is_bad(Bad::Silent) {
                self.connect();
            }
            self.play_ends(Fate::Good);
            // First the one of its start, then all others.
            for _ in 0..2 {
                for probing in self.unit.probing() {
                    let bad = if probing.which == Which::Live { Bad::Hangs } else { Bad::NotReady };
                    // What was found of one of them may be the end of what the others are about.
                    if self.unit.probing().iter().any(|still| still.is_same(&probing)) {
                        self.probed(&probing, !self.is_bad(bad));
                    }
                }
            }
            match self.unit.plan(self.now_ms) {
                Some(Step::WaitUntil(at_ms)) => {
                    self.now_ms = at_ms;
                    self.see(Seen::Tick);
                }
                None if self.is_idle() => return,
                _ => {}
            }
        }
        panic!("does not settle: {:?}", self.unit);
    }

    /// Whether what runs is bad in this way.
    fn is_bad(&self, how: Bad) -> bool {
        self.process.as_ref().is_some_and(|(revision, _)| self.bad.as_ref() == Some(&(revision.clone(), how)))
    }

    /// How something ends that is done for a revision.
    fn fate(&self, revision: Option<&Digest>, how: Bad) -> Fate {
        let is_bad = revision.is_some_and(|revision| self.bad.as_ref() == Some(&(revision.clone(), how)));
        if is_bad { Fate::Fatal } else { Fate::Good }
    }

    /// What is bad does what it does.
    fn behave(&mut self) {
        if self.is_bad(Bad::Ends) {
            self.exit(1);
        } else if self.is_bad(Bad::EndsAgain) && self.restarts < 3 {
            self.happen(Event::Again(1));
        } else if self.is_bad(Bad::EndsAgain) {
            self.exit(1);
        }
    }

    fn check_converged(&self) {
        let Some((asked, _)) = &self.row else {
            assert!(self.process.is_none() && self.gone, "forgotten, and still there");
            return;
        };
        assert_eq!(self.unit.asked(), Some(asked));
        // What it went back to counts.
        let desired = self.unit.desired.as_ref().unwrap_or(asked);
        assert_eq!(self.unit.plan(self.now_ms), None, "a unit at rest wants nothing");
        let observed = &self.unit.observed;
        assert_eq!(observed.generation, desired.generation, "{:?}", self.unit);
        let running = self.process.as_ref().map(|(revision, _)| revision);
        let held = self.unit.hold.as_ref().is_some_and(|hold| hold.reason == HoldReason::Operator);
        if observed.phase == Phase::Running {
            assert_eq!((observed.frozen, self.frozen), (desired.frozen, desired.frozen));
        }
        match (observed.phase, desired.run) {
            // As it was when it was held; but what shall stop has stopped.
            (Phase::Stopped | Phase::Absent, _) if held => assert!(running.is_none()),
            (Phase::Running | Phase::Playing, Run::Running | Run::Playing) if held || desired.frozen => {
                assert!(running.is_some());
            }
            (Phase::Failed, _) => assert!(observed.error.is_some()),
            (Phase::Stopped, Run::Stopped) => assert!(running.is_none() && observed.error.is_none()),
            // A task that has done its work.
            (Phase::Stopped, Run::Running | Run::Playing) => {
                assert_eq!((running, observed.exit), (None, Some(Exit::Code(0))));
            }
            (Phase::Running, Run::Running) => {
                assert_eq!(observed.unready, None);
                assert_eq!((running, self.with), (Some(&desired.revision), self.wired.0));
                assert_eq!((observed.attempts, &observed.error, self.plays), (0, &None, false));
            }
            (Phase::Playing, Run::Playing) => {
                assert_eq!(running, Some(&desired.revision));
                assert_eq!((observed.attempts, &observed.error, self.plays), (0, &None, true));
            }
            // It has refused, or there is nobody to ask.
            (Phase::Running, Run::Playing) => assert!(observed.error.is_some() && !self.plays),
            (Phase::Playing, Run::Running) => assert!(observed.error.is_some() && self.plays),
            other => panic!("converged to {other:?}"),
        }
    }
}

fn event() -> impl Strategy<Value = Event> {
    let run = prop_oneof![Just(None), Just(Some(Run::Running)), Just(Some(Run::Playing)), Just(Some(Run::Stopped))];
    let fate =
        || prop_oneof![6 => Just(Fate::Good), 2 => Just(Fate::Heals), 1 => Just(Fate::Fatal), 1 => Just(Fate::Unknown)];
    prop_oneof![
        2 => (0u8..4, 1u64..3, 0u8..8, run)
            .prop_map(|(artifact, grace_ms, probes, run)| Event::Apply { artifact, grace_ms, probes, run }),
        2 => Just(Event::Run),
        1 => Just(Event::Stop),
        1 => Just(Event::Restart),
        1 => prop_oneof![Just(Event::Hold), Just(Event::Unhold)],
        1 => prop_oneof![Just(Event::Retire), Just(Event::Unhold)],
        1 => prop_oneof![Just(Event::Freeze), Just(Event::Thaw)],
        1 => Just(Event::Rm),
        1 => prop_oneof![
            Just(Gate::Open),
            Just(Gate::Open),
            Just(Gate::Turn),
            Just(Gate::Wait("w".to_owned())),
            Just(Gate::Blocked("b".to_owned())),
        ]
        .prop_map(Event::Gate),
        4 => fate().prop_map(Event::InstallEnds),
        4 => fate().prop_map(Event::LaunchEnds),
        2 => (0..3).prop_map(Event::Exit),
        2 => (0..3).prop_map(Event::Again),
        4 => prop_oneof![0i64..2_000, 0i64..1_000_000].prop_map(Event::Wait),
        2 => (1u16..3, prop::bool::ANY).prop_map(|(port, lacks)| Event::Wire(port, lacks)),
        1 => Just(Event::AgentRestart),
        2 => any::<bool>().prop_map(|run| Event::Play { run }),
        1 => Just(Event::Pause),
        4 => Just(Event::Connect),
        1 => Just(Event::Disconnect),
        4 => fate().prop_map(Event::PlayEnds),
        6 => (0u8..2, prop::bool::weighted(0.7)).prop_map(|(place, good)| Event::Probed(place, good)),
        1 => (0u8..3).prop_map(Event::ProbedBefore),
    ]
}

fn bad() -> impl Strategy<Value = Bad> {
    prop_oneof![
        Just(Bad::Install),
        Just(Bad::Start),
        Just(Bad::Ends),
        Just(Bad::EndsAgain),
        Just(Bad::Silent),
        Just(Bad::NotReady),
        Just(Bad::Hangs)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn what_does_not_work_goes_back_to_what_does(
        bad in bad(),
        events in prop::collection::vec(event(), 0..20),
        meanwhile in prop::collection::vec(prop_oneof![Just(Event::AgentRestart), Just(Event::Wait(900))], 0..10),
    ) {
        let mut world = World::new();
        world.desire();
        for event in events {
            world.happen(event);
        }
        world.settle();
        // One that speaks can be silent; and to run as something that was never tried is no new try of another.
        let (good, other) = (apply(0, 7, 7, Some(Run::Running)), apply(1, 7, 7, Some(Run::Running)));
        world.verb(&Verb::UnitUnhold { unit: name() });
        world.verb(&Verb::UnitThaw { unit: name() });
        world.verb(&Verb::UnitPause { unit: name() });
        world.verb(&good);
        world.settle();
        let running = |world: &World| world.process.as_ref().map(|(revision, _)| revision.clone());
        let verified = running(&world);
        prop_assert_eq!(&world.unit.verified().map(|verified| verified.revision.clone()), &verified);
        let Verb::UnitApply { spec, .. } = &other else { unreachable!() };
        let Spec::Yuno(mut yuno) = (**spec).clone();
        let Spec::Yuno(now) = &world.row.as_ref().unwrap().0.spec;
        yuno.restart_epoch = now.restart_epoch;
        world.bad = Some((Spec::Yuno(yuno).revision().unwrap(), bad));
        world.verb(&other);
        for event in meanwhile {
            world.behave();
            world.happen(event);
        }
        world.settle();
        world.check_converged();
        prop_assert_eq!(running(&world), verified);
        prop_assert!(world.unit.observed.rolled_back.is_some());
        prop_assert_eq!(world.unit.observed.phase, Phase::Running);
        // What works after all is what it is then.
        world.bad = None;
        world.verb(&Verb::UnitRun { unit: name() });
        world.settle();
        world.check_converged();
        prop_assert_eq!(running(&world), world.row.as_ref().map(|(desired, _)| desired.revision.clone()));
        prop_assert_eq!(&world.unit.observed.rolled_back, &None);
    }

    #[test]
    fn whatever_happens_there_is_one_process_at_most_and_it_converges(events in prop::collection::vec(event(), 0..60)) {
        let mut world = World::new();
        world.desire();
        for event in events {
            world.happen(event);
        }
        world.settle();
        world.check_converged();
    }

    #[test]
    fn to_run_heals_whatever_has_failed(events in prop::collection::vec(event(), 0..40)) {
        let mut world = World::new();
        world.verb(&apply(0, 1, 7, None));
        for event in events {
            world.happen(event);
        }
        world.settle();
        world.verb(&Verb::UnitUnhold { unit: name() });
        world.verb(&apply(0, 1, 7, Some(Run::Running)));
        world.settle();
        world.check_converged();
        prop_assert_eq!(world.unit.observed.phase, Phase::Running);
        prop_assert_eq!(&world.unit.hold, &None);
    }
}

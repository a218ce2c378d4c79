//! The host of the model: what really runs, and what the shell does there.

use muster_topics::unit::HoldReason;

use super::*;
use crate::rules::edit::{Current, Edit, Holding, edit};

impl World {
    pub(super) fn new() -> Self {
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

    pub(super) fn see(&mut self, seen: Seen) {
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
    pub(super) fn drive(&mut self) {
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

    pub(super) fn perform(&mut self, step: Step) {
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

    pub(super) fn verb(&mut self, verb: &Verb) {
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

    pub(super) fn desire(&mut self) {
        let (desired, hold) = self.row.clone().unzip();
        self.see(Seen::Desired(desired.map(Box::new), hold.flatten()));
        self.wire();
    }

    pub(super) fn wire(&mut self) {
        let (port, lacks) = self.wired;
        self.see(Seen::Wired(wiring(port), lacks.then(|| "something".to_owned())));
    }

    pub(super) fn spawn(&mut self, revision: Digest) {
        assert!(self.process.is_none(), "a second process");
        self.pids += 1;
        (self.frozen, self.freezing) = (false, None);
        (self.plays, self.connection, self.connections, self.ready, self.asked) = (false, None, 0, false, None);
        (self.passed, self.was_up) = ([false; 2], false);
        self.process = Some((revision, Process { pid: self.pids, start_ticks: 1, started_ms: self.now_ms }));
    }

    pub(super) fn tell(&self) -> Told {
        let process = self.process.as_ref().map(|(_, process)| *process);
        let (restarts, last, connection) = (self.restarts, self.last.clone(), self.connection.clone());
        let (ready, frozen, wiring) = (self.ready, self.frozen, wiring(self.with));
        Told { process, restarts, last, ready, frozen, connection, wiring, ..Told::default() }
    }

    pub(super) fn end(&mut self, exit: Exit) -> Option<(Digest, Ended)> {
        let (revision, process) = self.process.take()?;
        (self.connection, self.asked, self.ready) = (None, None, false);
        let ended = Ended::new(exit, Some(process.started_ms), self.now_ms);
        self.last = Some(ended.clone());
        Some((revision, ended))
    }

    pub(super) fn launch_ends(&mut self, fate: Fate) {
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

    pub(super) fn install_ends(&mut self, fate: Fate) {
        let Some(revision) = self.installing.take() else { return };
        let failure = Failure { error: "no".to_owned(), may_heal: fate == Fate::Heals };
        match fate {
            Fate::Good | Fate::Unknown => self.see(Seen::Installed(revision)),
            Fate::Heals | Fate::Fatal => self.see(Seen::NotInstalled { revision, failure, random: 0.5 }),
        }
    }

    pub(super) fn agent_restarts(&mut self) {
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

    pub(super) fn exit(&mut self, code: i32) {
        let known = matches!(self.unit.instance, Instance::Alive(_));
        if let Some((_, last)) = self.end(Exit::Code(code)) {
            self.stopping = false;
            if known {
                self.see(Seen::Ended(Over { restarts: self.restarts, last }));
            }
        }
    }

    pub(super) fn wants_play(&self) -> bool {
        self.row.as_ref().is_some_and(|(desired, _)| desired.run == Run::Playing)
    }

    /// Whether the process is one that speaks: that is part of what it was started as.
    pub(super) fn can_connect(&self) -> bool {
        self.process.as_ref().is_some_and(|(revision, _)| self.speaking[revision])
    }

    pub(super) fn connect(&mut self) {
        if !self.can_connect() || self.stopping {
            return;
        }
        self.connections += 1;
        self.connection = Some(Connection { number: self.connections, playing: self.wish, can: vec![Ability::Play] });
        (self.plays, self.ready, self.asked) = (self.wish, true, None);
        self.tell_if_known();
    }

    pub(super) fn disconnect(&mut self) {
        if self.connection.take().is_some() {
            self.asked = None;
            self.tell_if_known();
        }
    }

    pub(super) fn tell_if_known(&mut self) {
        if matches!(self.unit.instance, Instance::Alive(_)) {
            self.see(Seen::Told(self.tell()));
        }
    }

    pub(super) fn play_ends(&mut self, fate: Fate) {
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
    pub(super) fn answers(&mut self) {
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
}

//! The model's host: its real processes, and the shell's actions.

use muster_topics::unit::HoldReason;

use super::*;
use crate::edit::{CurrentUnit, HoldChange, UnitEdit, edit};

impl World {
    pub(super) fn new() -> Self {
        let now_ms = 1_000_000;
        Self {
            now_ms,
            generation: 0,
            row: None,
            unit: PlannedUnit::new(None, now_ms),
            sides: Slot::ALL.map(|slot| (slot, Side::default())).into(),
            wired: (1, false),
            pids: 100,
            adopting: false,
            installing: None,
            reloading: None,
            removing: false,
            asked: None,
            gone: false,
            speaking: BTreeMap::new(),
            bad: None,
        }
    }

    pub(super) fn side(&mut self, slot: Slot) -> &mut Side {
        self.sides.get_mut(&slot).unwrap()
    }

    /// What the unit is known by.
    pub(super) fn own(&self) -> &Side {
        &self.sides[&self.unit.slot()]
    }

    /// Something is seen of what is in a slot.
    pub(super) fn see_in(&mut self, slot: Slot, seen: UnitEvent) {
        let seen = self.unit.seen_in(slot, seen);
        self.see(seen);
    }

    pub(super) fn see(&mut self, seen: UnitEvent) {
        self.gone &= !matches!(seen, UnitEvent::Desired(Some(_), _));
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
                Some(PlanStep::WaitUntil(at_ms)) => return assert!(at_ms > self.now_ms, "waits for what is over"),
                Some(step) => {
                    self.perform(self.unit.slot(), step);
                    self.unit.observe(UnitEvent::Began(step), self.now_ms);
                }
            }
        }
        panic!("the planner finds no rest: {:?}", self.unit);
    }

    pub(super) fn perform(&mut self, slot: Slot, step: PlanStep) {
        let desired = self.unit.desired.as_ref().map(|desired| desired.revision.clone());
        match step {
            PlanStep::Adopt => self.adopting = true,
            PlanStep::Install => self.installing = desired,
            PlanStep::Start { .. } => {
                assert_eq!(*self.unit.gate(), StartGate::Open, "started before its turn");
                assert!(!self.wired.1, "started while it lacks something");
                // What it has replaced may play still.
                let wish = self.wants_play() && self.sides[&slot.other()].process.is_none();
                self.launch(slot, desired, wish);
            }
            PlanStep::StartSecond => {
                let own = &self.sides[&slot].process;
                assert!(own.as_ref().is_some_and(|(revision, _)| Some(revision) != desired.as_ref()), "beside itself");
                self.launch(slot.other(), desired, false);
            }
            PlanStep::Stop { .. } => self.ask_to_stop(slot),
            PlanStep::StopSecond { .. } => self.ask_to_stop(slot.other()),
            PlanStep::Reload => {
                // It may be about to end, if an earlier life of the agent has asked for that.
                assert!(self.side(slot).process.is_some(), "nothing to reload");
                self.reloading = desired;
            }
            PlanStep::Freeze | PlanStep::Thaw => {
                assert!(self.side(slot).process.is_some(), "nothing to freeze");
                self.side(slot).freezing = Some(step == PlanStep::Freeze);
            }
            PlanStep::Play { playing, ask } => {
                let is_there = self.side(slot).connection.is_some();
                assert!(is_there && self.asked.is_none(), "nobody to ask, or one who is being asked");
                let other_plays = self.side(slot.other()).plays;
                assert!(!playing || !other_plays, "two that play");
                (self.asked, self.side(slot).wish) = (Some((slot, ask, playing)), playing);
            }
            PlanStep::Remove => {
                for side in self.sides.values() {
                    assert!(side.process.is_none() && side.launching.is_none(), "removed while it runs");
                }
                (self.removing, self.installing) = (true, None);
            }
            PlanStep::WaitUntil(_) => unreachable!("driven, not performed"),
        }
    }

    fn launch(&mut self, slot: Slot, revision: Option<Digest>, wish: bool) {
        let (removing, port) = (self.removing, self.wired.0);
        let side = self.side(slot);
        assert!(side.process.is_none() && side.launching.is_none(), "a second process");
        assert!(!removing && !side.stopping, "started while it goes");
        (side.launching, side.with, side.wish) = (revision, port, wish);
    }

    fn ask_to_stop(&mut self, slot: Slot) {
        assert!(self.side(slot).process.is_some(), "nothing to stop");
        self.side(slot).stopping = true;
    }

    pub(super) fn verb(&mut self, verb: &Verb) {
        let current = self.row.as_ref().map(|(desired, _)| CurrentUnit {
            desired,
            hold: self.unit.hold.as_ref(),
            observed: &self.unit.observed,
        });
        match edit(&name(), current, verb) {
            Err(_) | Ok(UnitEdit::Keep) => return,
            Ok(UnitEdit::Forget) => self.row = None,
            Ok(UnitEdit::Set { spec, revision, run, frozen, holding }) => {
                self.generation += 1;
                let before = self.row.take().and_then(|(_, hold)| hold);
                let hold = match holding {
                    HoldChange::Keep => before.filter(|hold| hold.reason == HoldReason::Operator),
                    HoldChange::End => None,
                    HoldChange::Begin { .. } => Some(Hold::new(HoldReason::Operator, self.now_ms)),
                };
                let Spec::Yuno(yuno) = &*spec else { panic!("a yuno") };
                self.speaking.insert(revision.clone(), speaks(&yuno.artifact.sha256));
                let desired = Desired { generation: self.generation, revision, spec, run, frozen };
                self.row = Some((desired, hold));
            }
        }
        self.desire();
    }

    pub(super) fn desire(&mut self) {
        let (desired, hold) = self.row.clone().unzip();
        self.see(UnitEvent::Desired(desired.map(Box::new), hold.flatten()));
        self.wire();
    }

    pub(super) fn wire(&mut self) {
        let (port, lacks) = self.wired;
        self.see(UnitEvent::Wired(wiring(port), lacks.then(|| "something".to_owned())));
    }

    pub(super) fn spawn(&mut self, slot: Slot, revision: Digest) {
        self.pids += 1;
        let process = ProcessId { pid: self.pids, start_ticks: 1, started_ms: self.now_ms };
        self.asked.take_if(|(of, ..)| *of == slot);
        let side = self.side(slot);
        assert!(side.process.is_none(), "a second process");
        (side.frozen, side.freezing) = (false, None);
        (side.plays, side.connection, side.connections, side.ready) = (false, None, 0, false);
        (side.passed, side.was_up) = ([false; 2], false);
        side.process = Some((revision, process));
    }

    pub(super) fn tell(&self, slot: Slot) -> ShimReport {
        let side = &self.sides[&slot];
        let process = side.process.as_ref().map(|(_, process)| *process);
        let (restarts, last, connection) = (side.restarts, side.last.clone(), side.connection.clone());
        let (ready, frozen, wiring) = (side.ready, side.frozen, wiring(side.with));
        ShimReport { process, restarts, last, ready, frozen, connection, wiring, ..ShimReport::default() }
    }

    pub(super) fn end(&mut self, slot: Slot, exit: Exit) -> Option<(Digest, InstanceExit)> {
        let now_ms = self.now_ms;
        self.asked.take_if(|(of, ..)| *of == slot);
        let side = self.side(slot);
        let (revision, process) = side.process.take()?;
        (side.connection, side.ready, side.plays) = (None, false, false);
        let ended = InstanceExit::new(exit, Some(process.started_ms), now_ms);
        side.last = Some(ended.clone());
        Some((revision, ended))
    }

    pub(super) fn launch_ends(&mut self, slot: Slot, fate: Fate) {
        let Some(revision) = self.side(slot).launching.take() else { return };
        let failure = Failure { error: "no".into(), may_heal: fate != Fate::Fatal };
        let is_own = slot == self.unit.slot();
        match fate {
            Fate::Good => {
                let side = self.side(slot);
                (side.restarts, side.last, side.attended) = (0, None, true);
                self.spawn(slot, revision);
                self.see_in(slot, UnitEvent::Started);
                self.see_in(slot, UnitEvent::Told(self.tell(slot)));
            }
            Fate::Heals | Fate::Fatal => self.see_in(slot, UnitEvent::NotStarted(failure)),
            Fate::Unknown => {
                // Whether it came to run is the pid's parity; the agent cannot know.
                let side = self.side(slot);
                (side.restarts, side.last, side.attended) = (0, None, false);
                let runs = self.pids % 2 == 0;
                if runs {
                    self.spawn(slot, revision);
                }
                self.pids += 1;
                match (is_own, self.sides[&slot].process.clone()) {
                    (true, _) => self.see(UnitEvent::StartUnknown),
                    // What is started beside is looked up at once.
                    (false, Some((revision, _))) => {
                        self.side(slot).attended = true;
                        self.see_in(slot, UnitEvent::Found(FoundInstance::Alive(revision, self.tell(slot))));
                    }
                    (false, None) => self.see_in(slot, UnitEvent::NotStarted(failure)),
                }
            }
        }
    }

    pub(super) fn install_ends(&mut self, fate: Fate) {
        let Some(revision) = self.installing.take() else { return };
        let failure = Failure { error: "no".into(), may_heal: fate == Fate::Heals };
        match fate {
            Fate::Good | Fate::Unknown => self.see(UnitEvent::Installed(revision)),
            Fate::Heals | Fate::Fatal => self.see(UnitEvent::NotInstalled { revision, failure, random: 0.5 }),
        }
    }

    pub(super) fn agent_restarts(&mut self) {
        let hold = self.unit.hold.clone();
        if let Some(row) = &mut self.row {
            row.1 = hold;
        }
        for slot in Slot::ALL {
            self.side(slot).attended = false;
            // A shim that was being started comes up (or not) without the agent; a stop that was asked goes on.
            if let Some(revision) = self.side(slot).launching.take()
                && self.pids % 2 == 0
            {
                let side = self.side(slot);
                (side.restarts, side.last) = (0, None);
                self.spawn(slot, revision);
            }
        }
        (self.installing, self.adopting, self.removing, self.reloading) = (None, false, false, None);
        self.asked = None;
        self.unit = PlannedUnit::new(Some(self.unit.kept()), self.now_ms);
        self.desire();
    }

    pub(super) fn exit(&mut self, slot: Slot, code: i32) {
        if let Some((_, last)) = self.end(slot, Exit::Code(code)) {
            let side = self.side(slot);
            side.stopping = false;
            if std::mem::take(&mut side.attended) {
                let restarts = side.restarts;
                self.see_in(slot, UnitEvent::Ended(InstanceEnd { restarts, last }));
            }
        }
    }

    pub(super) fn wants_play(&self) -> bool {
        self.row.as_ref().is_some_and(|(desired, _)| desired.run == Run::Playing)
    }

    /// Whether a process is one that speaks: that is part of what it was started as.
    pub(super) fn can_connect(&self, slot: Slot) -> bool {
        self.sides[&slot].process.as_ref().is_some_and(|(revision, _)| self.speaking[revision])
    }

    pub(super) fn connect(&mut self, slot: Slot) {
        if !self.can_connect(slot) || self.side(slot).stopping {
            return;
        }
        self.asked.take_if(|(of, ..)| *of == slot);
        let side = self.side(slot);
        side.connections += 1;
        side.connection =
            Some(PlayConnection { number: side.connections, playing: side.wish, can: vec![Ability::Play] });
        (side.plays, side.ready) = (side.wish, true);
        self.tell_if_attended(slot);
    }

    pub(super) fn disconnect(&mut self, slot: Slot) {
        if self.side(slot).connection.take().is_some() {
            self.asked.take_if(|(of, ..)| *of == slot);
            self.tell_if_attended(slot);
        }
    }

    pub(super) fn tell_if_attended(&mut self, slot: Slot) {
        if self.side(slot).attended {
            self.see_in(slot, UnitEvent::Told(self.tell(slot)));
        }
    }

    pub(super) fn play_ends(&mut self, fate: Fate) {
        let Some((slot, ask, playing)) = self.asked.take() else { return };
        if matches!(fate, Fate::Good | Fate::Unknown) {
            self.side(slot).plays = playing;
        }
        let answer = match fate {
            Fate::Good => Ok(()),
            Fate::Fatal => Err(PlayFailure::Refused("no".into())),
            Fate::Heals | Fate::Unknown => Err(PlayFailure::Unanswered("late".into())),
        };
        self.see(UnitEvent::Played { ask, answer });
    }

    /// What is in a slot is looked up.
    fn look_up(&mut self, slot: Slot) {
        let side = self.side(slot);
        side.attended = side.process.is_some();
        let found = match (&side.process, side.last.clone()) {
            (Some((revision, _)), _) => FoundInstance::Alive(revision.clone(), self.tell(slot)),
            (None, Some(last)) => FoundInstance::Ended(InstanceEnd { restarts: side.restarts, last }),
            (None, None) => FoundInstance::Nothing,
        };
        self.see_in(slot, UnitEvent::Found(found));
    }

    /// What answers by itself, without being asked to.
    pub(super) fn answers(&mut self) {
        let slot = self.unit.slot();
        if std::mem::take(&mut self.adopting) {
            if !self.unit.knows_second() {
                self.look_up(slot.other());
            }
            self.look_up(slot);
        }
        if let Some(revision) = self.reloading.take() {
            let (speaks, reloads) = (self.speaking[&revision], self.pids % 3 != 0);
            let side = self.side(slot);
            match &mut side.process {
                // Some differ in more than their configs, such as in their channel.
                Some((runs, _)) if reloads && side.connection.is_some() == speaks => {
                    *runs = revision.clone();
                    self.see(UnitEvent::Reloaded(revision));
                }
                _ => self.see(UnitEvent::NotReloaded(revision)),
            }
        }
        for slot in Slot::ALL {
            if let Some(frozen) = self.side(slot).freezing.take()
                && self.side(slot).process.is_some()
            {
                self.side(slot).frozen = frozen;
                self.tell_if_attended(slot);
            }
        }
        if std::mem::take(&mut self.removing) {
            self.see(UnitEvent::Removed);
            if self.row.is_none() {
                self.unit = PlannedUnit::new(None, self.now_ms);
                self.gone = true;
                self.sides.values_mut().for_each(|side| side.last = None);
            }
        }
    }
}

//! Random events on the model's host, until it comes to rest.

use super::*;

impl World {
    pub(super) fn happen(&mut self, event: Event) {
        self.happen_in(self.unit.slot(), event);
        self.answers();
        self.check();
    }

    /// What happens to an instance happens to the one in this slot.
    fn happen_in(&mut self, slot: Slot, event: Event) {
        match event {
            Event::Second(event) => self.happen_in(slot.other(), *event),
            Event::Apply { artifact, grace_ms, probes, run, first } => {
                self.verb(&apply(artifact, grace_ms, probes, run, first));
            }
            Event::Run => self.verb(&Verb::UnitRun { unit: name() }),
            Event::Stop => self.verb(&Verb::UnitStop { unit: name() }),
            Event::Restart => self.verb(&Verb::UnitRestart { unit: name() }),
            Event::Hold => self.verb(&Verb::UnitHold { unit: name(), note: None }),
            Event::Unhold => self.verb(&Verb::UnitUnhold { unit: name() }),
            Event::Retire => self.verb(&Verb::UnitRetire { unit: name(), note: None }),
            Event::Freeze => self.verb(&Verb::UnitFreeze { unit: name() }),
            Event::Thaw => self.verb(&Verb::UnitThaw { unit: name() }),
            Event::Rm => self.verb(&Verb::UnitRm { unit: name() }),
            Event::Gate(gate) => self.see(UnitEvent::Gate(gate)),
            Event::InstallEnds(fate) => self.install_ends(fate),
            Event::LaunchEnds(fate) => self.launch_ends(slot, fate),
            Event::Exit(code) => self.exit(slot, code),
            Event::Again(code) => {
                if !self.side(slot).stopping
                    && let Some((revision, _)) = self.end(slot, Exit::Code(code))
                {
                    self.side(slot).restarts += 1;
                    self.spawn(slot, revision);
                    self.tell_if_attended(slot);
                }
            }
            Event::Wait(ms) => {
                self.now_ms += ms;
                self.see(UnitEvent::Tick);
            }
            Event::Wire(port, lacks) => {
                self.wired = (port, lacks);
                self.wire();
            }
            Event::AgentRestart => self.agent_restarts(),
            Event::Play { run } => self.verb(&Verb::UnitPlay { unit: name(), run }),
            Event::Pause => self.verb(&Verb::UnitPause { unit: name() }),
            Event::Connect => self.connect(slot),
            Event::Disconnect => self.disconnect(slot),
            Event::PlayEnds(fate) => self.play_ends(fate),
            Event::Probed(place, good) => {
                let tried = self.unit.probing();
                if let Some(probing) = tried.get(usize::from(place) % tried.len().max(1)) {
                    self.probed(probing, good);
                }
            }
            Event::ProbedBefore(place) => {
                // No process of the model has this number.
                let process = ProcessId { pid: 1, start_ticks: 1, started_ms: self.now_ms };
                let which = Which::ALL[usize::from(place) % 3];
                self.see(UnitEvent::Probed { process, which, verdict: ProbeVerdict::Passed });
                self.see(UnitEvent::Probed { process, which, verdict: ProbeVerdict::Failed("old".into()) });
            }
        }
    }

    pub(super) fn probed(&mut self, probing: &ProbeRequest, good: bool) {
        let ProbeRequest { process, which, coming, slot, .. } = *probing;
        let side = self.side(slot);
        assert_eq!(side.process.as_ref().map(|(_, process)| *process), Some(process), "another process is probed");
        assert!(!side.frozen || side.freezing.is_some(), "what is suspended is probed");
        let verdict = match (good, coming) {
            (true, _) => ProbeVerdict::Passed,
            (false, true) => ProbeVerdict::Pending("no".into()),
            (false, false) => ProbeVerdict::Failed("no".into()),
        };
        match which {
            Which::Start => {
                assert!(coming, "it is up already");
                side.passed[0] |= good;
            }
            Which::Ready => side.passed[1] |= good,
            Which::Live => assert!(side.was_up, "it is not up yet"),
        }
        self.see(UnitEvent::Probed { process, which, verdict });
    }

    pub(super) fn is_idle(&self) -> bool {
        let is_busy = |side: &Side| side.freezing.is_some() || side.stopping || side.launching.is_some();
        let asked = self.reloading.is_some() || self.asked.is_some();
        let busy = self.adopting || self.removing || asked || self.sides.values().any(is_busy);
        !busy && self.installing.is_none()
    }

    /// From here on everything works, and time passes as the planner asks for it.
    pub(super) fn settle(&mut self) {
        self.wired.1 = false;
        self.wire();
        self.see(UnitEvent::Gate(StartGate::Open));
        for _ in 0..100 {
            self.answers();
            if self.gone {
                return;
            }
            self.install_ends(self.fate(self.installing.as_ref(), Bad::Install));
            for slot in Slot::ALL {
                self.launch_ends(slot, self.fate(self.sides[&slot].launching.as_ref(), Bad::Start));
                if self.side(slot).stopping {
                    self.exit(slot, 0);
                }
            }
            self.behave();
            if Slot::ALL.into_iter().any(|slot| self.is_bad(slot, Bad::EndsAgain)) {
                // No time passes before it ends once more.
                continue;
            }
            for slot in Slot::ALL {
                if self.side(slot).connection.is_none() && !self.is_bad(slot, Bad::Silent) {
                    self.connect(slot);
                }
            }
            self.play_ends(Fate::Good);
            // First the one of its start, then the one that says that it is up, and then the one that finds that it hangs:
            // all before a revision could be verified.
            for _ in 0..3 {
                for probing in self.unit.probing() {
                    let bad = if probing.which == Which::Live { Bad::Hangs } else { Bad::NotReady };
                    // What was found of one of them may be the end of what the others are about.
                    if self.unit.probing().iter().any(|still| still.is_same(&probing)) {
                        self.probed(&probing, !self.is_bad(probing.slot, bad));
                    }
                }
            }
            match self.unit.plan(self.now_ms) {
                Some(PlanStep::WaitUntil(at_ms)) => {
                    self.now_ms = at_ms;
                    self.see(UnitEvent::Tick);
                }
                None if self.is_idle() => return,
                _ => {}
            }
        }
        panic!("does not settle: {:?}", self.unit);
    }

    /// Whether what runs in a slot is bad in this way.
    pub(super) fn is_bad(&self, slot: Slot, how: Bad) -> bool {
        self.sides[&slot]
            .process
            .as_ref()
            .is_some_and(|(revision, _)| self.bad.as_ref() == Some(&(revision.clone(), how)))
    }

    /// How something ends that is done for a revision.
    pub(super) fn fate(&self, revision: Option<&Digest>, how: Bad) -> Fate {
        let is_bad = revision.is_some_and(|revision| self.bad.as_ref() == Some(&(revision.clone(), how)));
        if is_bad { Fate::Fatal } else { Fate::Good }
    }

    /// What is bad does what it does.
    pub(super) fn behave(&mut self) {
        for slot in Slot::ALL {
            if self.is_bad(slot, Bad::Ends) {
                self.exit(slot, 1);
            } else if self.is_bad(slot, Bad::EndsAgain) && self.side(slot).restarts < 3 {
                self.happen_in(slot, Event::Again(1));
            } else if self.is_bad(slot, Bad::EndsAgain) {
                self.exit(slot, 1);
            }
        }
        self.answers();
        self.check();
    }
}

//! What happens on the host of the model, and how it comes to rest.

use super::*;

impl World {
    pub(super) fn happen(&mut self, event: Event) {
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
                // No process of the model has this number.
                let process = Process { pid: 1, start_ticks: 1, started_ms: self.now_ms };
                let which = Which::ALL[usize::from(place) % 3];
                self.see(Seen::Probed { process, which, verdict: Verdict::Passed });
                self.see(Seen::Probed { process, which, verdict: Verdict::Failed("old".to_owned()) });
            }
        }
        self.answers();
        self.check();
    }

    pub(super) fn probed(&mut self, probing: &Probing, good: bool) {
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

    pub(super) fn is_idle(&self) -> bool {
        let asked = self.freezing.is_some() || self.reloading.is_some() || self.asked.is_some();
        let busy = self.adopting || self.removing || self.stopping || asked;
        !busy && self.installing.is_none() && self.launching.is_none()
    }

    /// From here on everything works, and time passes as the planner asks for it.
    pub(super) fn settle(&mut self) {
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
            // First the one of its start, then the one that says that it is up, and then the one that finds that it hangs:
            // all before a revision could be verified.
            for _ in 0..3 {
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
    pub(super) fn is_bad(&self, how: Bad) -> bool {
        self.process.as_ref().is_some_and(|(revision, _)| self.bad.as_ref() == Some(&(revision.clone(), how)))
    }

    /// How something ends that is done for a revision.
    pub(super) fn fate(&self, revision: Option<&Digest>, how: Bad) -> Fate {
        let is_bad = revision.is_some_and(|revision| self.bad.as_ref() == Some(&(revision.clone(), how)));
        if is_bad { Fate::Fatal } else { Fate::Good }
    }

    /// What is bad does what it does.
    pub(super) fn behave(&mut self) {
        if self.is_bad(Bad::Ends) {
            self.exit(1);
        } else if self.is_bad(Bad::EndsAgain) && self.restarts < 3 {
            self.happen(Event::Again(1));
        } else if self.is_bad(Bad::EndsAgain) {
            self.exit(1);
        }
    }
}

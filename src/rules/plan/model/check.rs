//! The invariants of the model's host, at any time and at the end.

use muster_topics::unit::HoldReason;

use super::*;

impl World {
    /// What is up has passed what it has to pass, and is thrown back by nothing.
    pub(super) fn check_probes(&mut self) {
        let side = &self.sides[&self.unit.slot()];
        let (EffectiveInstance::Alive(alive), Some((_, process)), Some((desired, _))) =
            (&self.unit.instance, &side.process, &self.row)
        else {
            return;
        };
        if alive.process != Some(*process) || alive.ends_by_ms.is_some() {
            return;
        }
        let is_up = matches!(self.unit.observed.phase(), Phase::Running | Phase::Playing);
        if is_up && !side.was_up && alive.revision == desired.revision {
            let Spec::Yuno(spec) = &*desired.spec else { panic!("a yuno") };
            let [started, ready] = side.passed;
            assert!(started || spec.program.probes.start.is_none(), "up without its start probe");
            assert!(ready || spec.program.probes.ready.is_none(), "up without its ready probe");
        }
        // It may have to say more than before, as what it is now; or it was asked to end by an earlier life of the agent,
        // or its revision has failed and it runs on until there is what replaces it.
        let waits = self.unit.awaits_readiness(alive) || self.unit.observed.phase() == Phase::Failed;
        let ends = matches!(self.unit.plan(self.now_ms), Some(PlanStep::Stop { .. }));
        let ends = ends || self.unit.is_leaving(alive);
        assert!(is_up || waits || ends || !side.was_up, "thrown back: {:?}", self.unit);
        self.side(self.unit.slot()).was_up |= is_up;
    }

    /// What is there, or comes: never two of one revision.
    fn check_two(&self) {
        let there = self.sides.values().filter_map(|side| {
            assert!(side.process.is_none() || side.launching.is_none(), "a second process in one slot");
            side.launching.as_ref().or(side.process.as_ref().map(|(revision, _)| revision))
        });
        let there: Vec<&Digest> = there.collect();
        assert!(!self.sides.values().all(|side| side.plays), "two that play: {:?}", self.unit);
        if let [one, other] = there[..] {
            assert_ne!(one, other, "two of one revision: {:?}", self.unit);
        }
    }

    pub(super) fn check(&self) {
        self.check_two();
        if matches!(self.unit.observed.phase(), Phase::Running | Phase::Playing)
            && let EffectiveInstance::Alive(alive) = &self.unit.instance
        {
            let (revision, process) = self.own().process.as_ref().expect("running without a process");
            assert_eq!((&alive.revision, alive.process), (revision, Some(*process)));
            assert_eq!(self.unit.observed.instance().pid, Some(process.pid));
        }
        if let Some(rolled_back) = self.unit.observed.rolled_back() {
            let asked = self.unit.asked().expect("it was rolled back from something that is desired");
            assert_eq!((rolled_back.generation, &rolled_back.revision), (asked.generation, &asked.revision));
            let verified = self.unit.verified().expect("it was rolled back to something");
            assert_eq!(rolled_back.to, verified.revision);
            assert_eq!(self.unit.desired.as_ref().map(|desired| &desired.revision), Some(&verified.revision));
            assert!(!self.unit.observed.trial.is_on());
        }
        if self.unit.observed.phase() != Phase::Backoff {
            assert_eq!(self.unit.observed.retry_ms(), None);
        }
    }

    pub(super) fn check_converged(&self) {
        let Some((asked, _)) = &self.row else {
            let is_there = self.sides.values().any(|side| side.process.is_some());
            assert!(!is_there && self.gone, "forgotten, and still there");
            return;
        };
        let (own, other) = (self.own(), &self.sides[&self.unit.slot().other()]);
        assert!(other.process.is_none() && other.launching.is_none(), "two at rest: {:?}", self.unit);
        assert_eq!(self.unit.observed.beside, None);
        assert_eq!(self.unit.asked(), Some(asked));
        // What it went back to counts.
        let desired = self.unit.desired.as_ref().unwrap_or(asked);
        assert_eq!(self.unit.plan(self.now_ms), None, "a unit at rest wants nothing");
        let observed = &self.unit.observed;
        assert_eq!(observed.generation, desired.generation, "{:?}", self.unit);
        let running = own.process.as_ref().map(|(revision, _)| revision);
        let held = self.unit.hold.as_ref().is_some_and(|hold| hold.reason == HoldReason::Operator);
        if observed.phase() == Phase::Running {
            assert_eq!((observed.instance().frozen, own.frozen), (desired.frozen, desired.frozen));
        }
        match (observed.phase(), desired.run) {
            // As it was when it was held; but what shall stop has stopped.
            (Phase::Stopped | Phase::Absent, _) if held => assert!(running.is_none()),
            (Phase::Running | Phase::Playing, Run::Running | Run::Playing) if held || desired.frozen => {
                assert!(running.is_some());
            }
            (Phase::Failed, _) => assert!(observed.error.is_some()),
            (Phase::Stopped, Run::Stopped) => assert!(running.is_none() && observed.error.is_none()),
            // A task that has done its work.
            (Phase::Stopped, Run::Running | Run::Playing) => {
                assert_eq!((running, observed.exit()), (None, Some(Exit::Code(0))));
            }
            (Phase::Running, Run::Running) => {
                assert_eq!(observed.instance().unready, None);
                assert_eq!((running, own.with), (Some(&desired.revision), self.wired.0));
                assert_eq!((observed.attempts, &observed.error, own.plays), (0, &None, false));
            }
            (Phase::Playing, Run::Playing) => {
                assert_eq!(running, Some(&desired.revision));
                assert_eq!((observed.attempts, &observed.error, own.plays), (0, &None, true));
            }
            // It has refused, or there is nobody to ask.
            (Phase::Running, Run::Playing) => assert!(observed.error.is_some() && !own.plays),
            (Phase::Playing, Run::Running) => assert!(observed.error.is_some() && own.plays),
            other => panic!("converged to {other:?}"),
        }
    }
}

//! What a lifecycle verb does to the desired state of a unit.
//!
//! A verb changes nothing but desired state; the planner ([`super::plan`]) does the rest. So a verb
//! is done as soon as it is stored, and complete when observed state has reached the new generation.
//!
//! **Invariant: saying what is already so changes nothing**, and succeeds with the generation that is
//! there. The one exception is `restart`, which asks for an event rather than for a state.
//!
//! **Invariant: every change makes a new generation, and a new generation is a new try**: it has no
//! hold, no failure and no attempts behind it. So `run` of a unit that is held as broken, has failed or
//! waits for its next start *is* a change, though its spec stays what it was.

use muster_topics::{
    command::Verb,
    name::{Digest, UnitName},
    outcome::RefusalCode,
    unit::{Desired, Observed, Phase, Run, Spec, YunoSpec},
};

use super::{Refusal, lease, process};

/// A unit that exists, as far as a verb has to know it.
#[derive(Clone, Copy, Debug)]
pub struct Current<'a> {
    /// What it should be.
    pub desired: &'a Desired,
    /// Whether it is held.
    pub held: bool,
    /// What it was last seen to be.
    pub observed: &'a Observed,
}

/// What a verb does to desired state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Nothing: it is so already.
    Keep,
    /// This is desired from now on, under the next generation and without a hold.
    Set {
        /// What the unit should be.
        spec: Box<Spec>,
        /// The revision of `spec`.
        revision: Digest,
        /// Whether it should run.
        run: Run,
    },
    /// There shall be no such unit.
    Forget,
}

/// What `verb` does to a unit.
///
/// # Errors
/// If there is no such unit, the verb contradicts what is, or it is none that changes desired state.
pub fn edit(unit: &UnitName, current: Option<Current<'_>>, verb: &Verb) -> Result<Edit, Refusal> {
    if let Verb::UnitApply { spec, run, .. } = verb {
        return apply(unit, current, spec, *run);
    }
    let Some(current) = current else { return Err(unknown(unit)) };
    match verb {
        Verb::UnitRun { .. } => {
            let needs_a_new_try = current.held || matches!(current.observed.phase, Phase::Failed | Phase::Backoff);
            if current.desired.run == Run::Running && !needs_a_new_try {
                return Ok(Edit::Keep);
            }
            Ok(set(current.desired, Run::Running))
        }
        Verb::UnitStop { .. } if current.desired.run == Run::Stopped => Ok(Edit::Keep),
        Verb::UnitStop { .. } => Ok(set(current.desired, Run::Stopped)),
        Verb::UnitRestart { .. } => restart(current.desired),
        Verb::UnitRm { .. } => remove(unit, current),
        _ => Err(Refusal::new(RefusalCode::Invalid, format!("{} does not change what a unit should be", verb.name()))),
    }
}

/// The refusal of a verb for a unit that does not exist.
#[must_use]
pub fn unknown(unit: &UnitName) -> Refusal {
    Refusal::new(
        RefusalCode::NotFound,
        format!("there is no unit {unit} on this host. hint: `muster unit ls` lists those that there are"),
    )
}

/// The same unit, with another wish whether it should run.
fn set(desired: &Desired, run: Run) -> Edit {
    Edit::Set { spec: Box::new(desired.spec.clone()), revision: desired.revision.clone(), run }
}

fn apply(unit: &UnitName, current: Option<Current<'_>>, spec: &Spec, run: Option<Run>) -> Result<Edit, Refusal> {
    match spec {
        Spec::Yuno(spec) => check(spec)?,
    }
    let mut spec = spec.clone();
    if let Some(current) = current {
        if current.desired.spec.kind() != spec.kind() {
            return Err(Refusal::new(
                RefusalCode::Conflict,
                format!(
                    "{unit} is a {} and cannot become a {}. hint: remove it first, or choose another name",
                    current.desired.spec.kind(),
                    spec.kind()
                ),
            ));
        }
        keep_restarts(&current.desired.spec, &mut spec);
    }
    let revision = revision(&spec)?;
    let kept = current.map_or(Run::Stopped, |current| current.desired.run);
    let run_wanted = run.unwrap_or(kept);
    if let Some(current) = current.filter(|current| current.desired.spec == spec && current.desired.run == run_wanted) {
        // Nothing new is said; but to ask expressly for a running unit is to ask for a try, as `run` does.
        let verb =
            if run == Some(Run::Running) { Verb::UnitRun { unit: unit.clone() } } else { return Ok(Edit::Keep) };
        return edit(unit, Some(current), &verb);
    }
    Ok(Edit::Set { spec: Box::new(spec), revision, run: run_wanted })
}

/// Everything that is wrong with a spec, at once.
fn check(spec: &YunoSpec) -> Result<(), Refusal> {
    let wrong: Vec<String> = process::check(spec).err().into_iter().chain(lease::check(spec)).collect();
    if wrong.is_empty() { Ok(()) } else { Err(Refusal::new(RefusalCode::Invalid, wrong.join("; "))) }
}

/// Whoever applies a spec from a file knows nothing of the restarts on demand since; without this,
/// applying the same file again would restart the unit.
fn keep_restarts(before: &Spec, after: &mut Spec) {
    match (before, after) {
        (Spec::Yuno(before), Spec::Yuno(after)) => {
            after.restart_epoch = after.restart_epoch.max(before.restart_epoch);
        }
    }
}

fn restart(desired: &Desired) -> Result<Edit, Refusal> {
    let mut spec = desired.spec.clone();
    match &mut spec {
        Spec::Yuno(spec) => spec.restart_epoch = spec.restart_epoch.saturating_add(1),
    }
    let revision = revision(&spec)?;
    Ok(Edit::Set { spec: Box::new(spec), revision, run: Run::Running })
}

fn remove(unit: &UnitName, current: Current<'_>) -> Result<Edit, Refusal> {
    let conflict = |message| Err(Refusal::new(RefusalCode::Conflict, message));
    if current.desired.run != Run::Stopped {
        return conflict(format!("{unit} should run. hint: stop it first, `muster yuno stop {unit}`"));
    }
    let ends = matches!(current.observed.phase, Phase::Starting | Phase::Running | Phase::Stopping);
    if ends || current.observed.pid.is_some() {
        return conflict(format!("{unit} has not stopped yet. hint: wait until its phase is stopped"));
    }
    Ok(Edit::Forget)
}

fn revision(spec: &Spec) -> Result<Digest, Refusal> {
    spec.revision()
        .map_err(|error| Refusal::new(RefusalCode::Invalid, format!("the unit's spec has no revision: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_topics::unit::Restart;

    fn unit() -> UnitName {
        "default/hello".parse().unwrap()
    }

    fn yuno(change: impl FnOnce(&mut YunoSpec)) -> Box<Spec> {
        let text = format!(
            r#"{{"artifact":{{"sha256":"{}","size_bytes":5,"role":"hello","version":"1"}}}}"#,
            Digest::of(b"hello")
        );
        let mut spec = serde_json::from_str(&text).unwrap();
        change(&mut spec);
        Box::new(Spec::Yuno(spec))
    }

    fn desired(run: Run, change: impl FnOnce(&mut YunoSpec)) -> Desired {
        let spec = *yuno(change);
        Desired { generation: 7, revision: spec.revision().unwrap(), spec, run }
    }

    fn seen(phase: Phase) -> Observed {
        Observed { phase, ..Observed::absent(0) }
    }

    fn run() -> Verb {
        Verb::UnitRun { unit: unit() }
    }

    fn stop() -> Verb {
        Verb::UnitStop { unit: unit() }
    }

    fn restarted() -> Verb {
        Verb::UnitRestart { unit: unit() }
    }

    fn rm() -> Verb {
        Verb::UnitRm { unit: unit() }
    }

    fn applied(spec: Box<Spec>, run: Option<Run>) -> Verb {
        Verb::UnitApply { unit: unit(), spec, run }
    }

    /// What a verb comes to, in one word.
    fn word(result: &Result<Edit, Refusal>) -> String {
        match result {
            Ok(Edit::Keep) => "keep".to_owned(),
            Ok(Edit::Forget) => "forget".to_owned(),
            Ok(Edit::Set { run, spec, .. }) => {
                let Spec::Yuno(spec) = &**spec;
                format!("{run:?} {}", spec.restart_epoch).to_lowercase()
            }
            Err(refusal) => format!("{:?}", refusal.code),
        }
    }

    #[track_caller]
    fn check(now: (Run, Phase, bool), verb: &Verb, outcome: &str) {
        let (run, phase, held) = now;
        let (desired, observed) = (desired(run, |_| ()), seen(phase));
        let result = edit(&unit(), Some(Current { desired: &desired, held, observed: &observed }), verb);
        assert_eq!(word(&result), outcome, "{verb:?} when {now:?}");
    }

    #[test]
    fn what_is_so_already_is_kept() {
        use Phase::{Backoff, Failed, Installing, Running, Starting, Stopped, Stopping};
        check((Run::Running, Running, false), &run(), "keep");
        check((Run::Running, Starting, false), &run(), "keep");
        check((Run::Running, Installing, false), &run(), "keep");
        check((Run::Stopped, Stopped, false), &stop(), "keep");
        check((Run::Stopped, Stopping, false), &stop(), "keep");
        check((Run::Stopped, Failed, false), &stop(), "keep");
        for phase in [Running, Backoff, Failed] {
            check((Run::Running, phase, false), &applied(yuno(|_| ()), None), "keep");
        }
        check((Run::Running, Running, false), &applied(yuno(|_| ()), Some(Run::Running)), "keep");
    }

    #[test]
    fn a_wish_is_a_change() {
        check((Run::Stopped, Phase::Stopped, false), &run(), "running 0");
        check((Run::Running, Phase::Running, false), &stop(), "stopped 0");
        check((Run::Running, Phase::Running, false), &applied(yuno(|_| ()), Some(Run::Stopped)), "stopped 0");
        check((Run::Running, Phase::Running, false), &applied(yuno(|spec| spec.grace_ms = 1), None), "running 0");
        check((Run::Running, Phase::Failed, true), &stop(), "stopped 0");
    }

    #[test]
    fn asking_to_run_is_a_new_try_where_one_is_needed() {
        for verb in [run(), applied(yuno(|_| ()), Some(Run::Running))] {
            check((Run::Running, Phase::Failed, false), &verb, "running 0");
            check((Run::Running, Phase::Backoff, false), &verb, "running 0");
            check((Run::Running, Phase::Failed, true), &verb, "running 0");
        }
    }

    #[test]
    fn a_restart_is_a_new_revision_that_runs() {
        for run in [Run::Running, Run::Stopped] {
            check((run, Phase::Stopped, false), &restarted(), "running 1");
        }
        let before = desired(Run::Running, |spec| spec.restart_epoch = 4);
        let observed = seen(Phase::Running);
        let current = Some(Current { desired: &before, held: false, observed: &observed });
        let Ok(Edit::Set { revision, .. }) = edit(&unit(), current, &restarted()) else { panic!("should be a change") };
        assert_ne!(revision, before.revision);
        // The file that the unit was made from knows nothing of restarts, and applying it again is none.
        assert_eq!(word(&edit(&unit(), current, &applied(yuno(|_| ()), None))), "keep");
        let other = applied(yuno(|spec| spec.args.push("x".to_owned())), None);
        assert_eq!(word(&edit(&unit(), current, &other)), "running 4");
    }

    #[test]
    fn only_what_is_stopped_is_removed() {
        for phase in [Phase::Absent, Phase::Installing, Phase::Stopped, Phase::Backoff, Phase::Failed] {
            check((Run::Stopped, phase, false), &rm(), "forget");
        }
        for phase in [Phase::Starting, Phase::Running, Phase::Stopping] {
            check((Run::Stopped, phase, false), &rm(), "Conflict");
        }
        check((Run::Running, Phase::Backoff, false), &rm(), "Conflict");
        let desired = desired(Run::Stopped, |_| ());
        let observed = Observed { pid: Some(1), ..seen(Phase::Failed) };
        let refusal = edit(&unit(), Some(Current { desired: &desired, held: false, observed: &observed }), &rm());
        assert!(refusal.unwrap_err().message.contains("hint:"));
    }

    #[test]
    fn a_unit_that_does_not_exist() {
        for verb in [run(), stop(), restarted(), rm()] {
            assert_eq!(word(&edit(&unit(), None, &verb)), "NotFound", "{verb:?}");
        }
        assert_eq!(word(&edit(&unit(), None, &applied(yuno(|_| ()), None))), "stopped 0");
        assert_eq!(word(&edit(&unit(), None, &applied(yuno(|_| ()), Some(Run::Running)))), "running 0");
    }

    #[test]
    fn what_no_process_can_be_made_of() {
        // What else is wrong `rules::process` knows.
        let bad = yuno(|spec| spec.args.push("a\0b".to_owned()));
        assert_eq!(word(&edit(&unit(), None, &applied(bad, None))), "Invalid");
        let good = applied(yuno(|spec| spec.restart = Restart::Never), None);
        assert!(edit(&unit(), None, &good).is_ok());
        let logs = Verb::UnitLogs { unit: unit(), lines: 1 };
        check((Run::Running, Phase::Running, false), &logs, "Invalid");
    }
}

//! Edits: what a lifecycle verb changes in the desired state of a unit.
//!
//! A verb changes only desired state; the planner ([`super::plan`]) does the rest. So a verb
//! is done as soon as it is stored, and complete when observed state has reached the new generation.
//!
//! **Invariant: a verb that changes nothing succeeds** with the present generation.
//! The one exception is `restart`, which asks for an event rather than for a state.
//!
//! **Invariant: every change makes a new generation, and a new generation is a new attempt**: it is not
//! broken, and has no failure and no attempts behind it. So `run` of a unit that is held as broken, has failed, was
//! rolled back or waits for its next start *is* a change, although its spec stays the same.
//!
//! **Invariant: an operator's hold ends by `unhold` alone**, or with the unit. `stop` never holds, `hold` never
//! stops, `retire` does both, and `rm` needs both.

use std::{collections::BTreeMap, sync::Arc};

use muster_topics::{
    canonical::CanonicalError,
    channel::Ability,
    command::Verb,
    diagnostic::Diagnostic,
    name::{Digest, LabelValue, Name, UnitName},
    outcome::RefusalCode,
    revision::RevisionKey,
    unit::{Channel, Desired, Hold, HoldReason, MASK, NOTE_MAX_CHARS, Observed, Phase, Run, Spec},
    verb_table::KindName,
};

use super::{CommandRefusal, container, files, packages, port_lease, probe, process, render};

/// The parts of an existing unit that a verb needs to know.
#[derive(Clone, Copy, Debug)]
pub struct CurrentUnit<'a> {
    /// Its desired state.
    pub desired: &'a Desired,
    /// Why it is held, if it is.
    pub hold: Option<&'a Hold>,
    /// Its observed state.
    pub observed: &'a Observed,
}

/// The change of desired state that a verb makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnitEdit {
    /// None: the unit is already as requested.
    Keep,
    /// A new desired state, under the next generation.
    Set {
        /// The new spec.
        spec: Arc<Spec>,
        /// The revision of `spec`.
        revision: Digest,
        /// Whether the unit should run.
        run: Run,
        /// Whether the unit should be suspended.
        frozen: bool,
        /// The change of an operator's hold.
        holding: HoldChange,
    },
    /// The unit is removed.
    Forget,
}

/// A change of an operator's hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HoldChange {
    /// Leave it as it is.
    Keep,
    /// End it.
    End,
    /// Begin one.
    Begin {
        /// The operator's reason.
        note: Option<String>,
    },
}

impl UnitEdit {
    /// Replaces the revision by the one that this host reports, with its `key`; a change that brings no spec needs none.
    /// While the bare revision stays the same, the existing one is kept, so that a new key alone restarts nothing.
    ///
    /// # Errors
    /// If the spec has no revision.
    pub fn told_by(
        mut self,
        unit: &UnitName,
        current: Option<&Desired>,
        key: Option<&RevisionKey>,
    ) -> Result<Self, CommandRefusal> {
        if let Self::Set { spec, revision, .. } = &mut self {
            let bare = self::revision(spec)?;
            let kept = current.filter(|current| current.spec.revision().is_ok_and(|before| before == bare));
            *revision = match (kept, key) {
                (Some(current), _) => current.revision.clone(),
                (None, Some(key)) => key.revision(unit, spec).map_err(|error| no_revision(&error))?,
                (None, None) => bare,
            };
        }
        Ok(self)
    }
}

/// Returns what `verb` does to a unit. A new revision is a bare one ([`UnitEdit::told_by`] keys it).
///
/// # Errors
/// If there is no such unit, the verb contradicts the unit's state, or does not change desired state.
pub fn edit(unit: &UnitName, current: Option<CurrentUnit<'_>>, verb: &Verb) -> Result<UnitEdit, CommandRefusal> {
    if let Verb::UnitApply { spec, run, .. } = verb {
        return apply(unit, current, spec, *run);
    }
    let Some(current) = current else { return Err(unknown(unit)) };
    check_kind(unit, &current.desired.spec, verb)?;
    match verb {
        Verb::UnitRun { .. } => {
            let has_failed = matches!(current.observed.phase(), Phase::Failed | Phase::Backoff);
            let needs_a_new_try = current.is_held(HoldReason::Broken) || has_failed || current.has_gone_back();
            if current.desired.run.is_running() && !needs_a_new_try {
                return Ok(UnitEdit::Keep);
            }
            // A unit that plays continues to play; only `pause` ends that.
            Ok(set(current.desired, running(current.desired.run), HoldChange::Keep))
        }
        Verb::UnitStop { .. } if current.desired.run == Run::Stopped => Ok(UnitEdit::Keep),
        Verb::UnitStop { .. } => Ok(set(current.desired, Run::Stopped, HoldChange::Keep)),
        Verb::UnitPlay { run, .. } => play(unit, current, *run),
        Verb::UnitPause { .. } if current.desired.run == Run::Playing => {
            Ok(set(current.desired, Run::Running, HoldChange::Keep))
        }
        Verb::UnitPause { .. } => Ok(UnitEdit::Keep),
        Verb::UnitRestart { .. } => restart(current.desired),
        Verb::UnitHold { note, .. } => hold(current, current.desired.run, note.as_deref()),
        Verb::UnitRetire { note, .. } => hold(current, Run::Stopped, note.as_deref()),
        Verb::UnitUnhold { .. } if current.hold.is_none() => Ok(UnitEdit::Keep),
        Verb::UnitUnhold { .. } => Ok(set(current.desired, current.desired.run, HoldChange::End)),
        Verb::UnitLabel { labels, .. } => label(current.desired, labels),
        Verb::UnitUpgrade { from, .. } => upgrade(unit, current.desired, from, verb),
        Verb::UnitFreeze { .. } => freeze(unit, current.desired, true),
        Verb::UnitThaw { .. } => freeze(unit, current.desired, false),
        Verb::UnitRm { .. } => remove(unit, current),
        // It changes the unit's owner alone.
        Verb::UnitDetach { .. } => Ok(UnitEdit::Keep),
        _ => Err(CommandRefusal::new(
            RefusalCode::Invalid,
            format!("{} does not change a unit's desired state", verb.name()),
        )),
    }
}

/// Refuses a verb that units of the unit's kind do not have.
///
/// # Errors
/// If it is one.
pub fn check_kind(unit: &UnitName, spec: &Spec, verb: &Verb) -> Result<(), CommandRefusal> {
    let (kind, row) = (KindName::from(spec), verb.of_units());
    match row.filter(|row| !kind.has(row.word)) {
        Some(row) => Err(CommandRefusal::new(RefusalCode::Unsupported, kind.without(unit, row.word))),
        None => Ok(()),
    }
}

/// The refusal of a verb for a unit that does not exist.
#[must_use]
pub fn unknown(unit: &UnitName) -> CommandRefusal {
    CommandRefusal::new(
        RefusalCode::NotFound,
        Diagnostic::new(format_args!("there is no unit {unit} on this host")).with_hint("`muster unit ls` lists them"),
    )
}

impl CurrentUnit<'_> {
    fn is_held(&self, reason: HoldReason) -> bool {
        self.hold.is_some_and(|hold| hold.reason == reason)
    }

    /// Whether the unit was rolled back from the present generation, rather than from an earlier one.
    fn has_gone_back(&self) -> bool {
        let rolled_back = self.observed.rolled_back();
        rolled_back.is_some_and(|rolled_back| rolled_back.generation == self.desired.generation)
    }
}

/// Changes whether the unit should run. A stopped unit is not frozen any more.
fn set(desired: &Desired, run: Run, holding: HoldChange) -> UnitEdit {
    let (spec, revision) = (desired.spec.clone(), desired.revision.clone());
    UnitEdit::Set { spec, revision, run, frozen: desired.frozen && run == Run::Running, holding }
}

/// Holds a unit with this `run`. Holding it again without a note keeps the existing note.
fn hold(current: CurrentUnit<'_>, run: Run, note: Option<&str>) -> Result<UnitEdit, CommandRefusal> {
    if let Some(note) = note
        && (note.chars().count() > NOTE_MAX_CHARS || note.chars().any(char::is_control))
    {
        let message = format!("the note of a hold is one line of at most {NOTE_MAX_CHARS} characters");
        return Err(CommandRefusal::new(RefusalCode::Invalid, message));
    }
    let before = current.hold.filter(|hold| hold.reason == HoldReason::Operator);
    let holding = match before {
        Some(hold) if note.is_none() || note == hold.note.as_deref() => HoldChange::Keep,
        _ => HoldChange::Begin { note: note.map(str::to_owned) },
    };
    if holding == HoldChange::Keep && run == current.desired.run {
        return Ok(UnitEdit::Keep);
    }
    Ok(set(current.desired, run, holding))
}

fn label(desired: &Desired, labels: &BTreeMap<Name, Option<LabelValue>>) -> Result<UnitEdit, CommandRefusal> {
    let mut spec = Spec::clone(&desired.spec);
    for (name, value) in labels {
        match value {
            Some(value) => spec.common_mut().labels.insert(name.clone(), value.clone()),
            None => spec.common_mut().labels.remove(name),
        };
    }
    check(&spec).map_err(|message| CommandRefusal::new(RefusalCode::Invalid, message))?;
    if spec == *desired.spec {
        return Ok(UnitEdit::Keep);
    }
    let revision = desired.revision.clone();
    Ok(UnitEdit::Set {
        spec: spec.into(),
        revision,
        run: desired.run,
        frozen: desired.frozen,
        holding: HoldChange::Keep,
    })
}

/// Changes the content of a unit. `from` is the revision that the requester has seen.
fn upgrade(unit: &UnitName, desired: &Desired, from: &Digest, verb: &Verb) -> Result<UnitEdit, CommandRefusal> {
    let spec = upgraded(unit, &desired.spec, verb)?;
    if spec == *desired.spec {
        return Ok(UnitEdit::Keep);
    }
    if *from != desired.revision {
        let message = Diagnostic::new(format_args!(
            "{unit} has changed since this was planned: it has revision {} now",
            desired.revision.short()
        ))
        .with_hint("plan it again");
        return Err(CommandRefusal::new(RefusalCode::Conflict, message));
    }
    let revision = revision(&spec)?;
    Ok(UnitEdit::Set {
        spec: spec.into(),
        revision,
        run: desired.run,
        frozen: desired.frozen,
        holding: HoldChange::Keep,
    })
}

/// Returns a spec with what an upgrade puts into it; with any other verb, the same.
///
/// # Errors
/// If the unit has not what the upgrade replaces.
pub fn upgraded(unit: &UnitName, spec: &Spec, verb: &Verb) -> Result<Spec, CommandRefusal> {
    let mut spec = spec.clone();
    let Verb::UnitUpgrade { artifact, configs, secrets, config_templates, .. } = verb else { return Ok(spec) };
    let conflict = |message| Err(CommandRefusal::new(RefusalCode::Conflict, message));
    if let Some(artifact) = artifact {
        let Some(place) = spec.artifact_mut() else {
            return conflict(format!("{unit} has no artifact"));
        };
        *place = artifact.clone();
    }
    for config in configs {
        let Some(place) = spec.configs_mut().iter_mut().find(|place| place.id == config.id) else {
            return conflict(format!("{unit} has no config {}", config.id));
        };
        *place = config.clone();
    }
    if let Some(secrets) = secrets {
        spec.common_mut().secrets.clone_from(secrets);
    }
    if let (Some(templates), Spec::Yuno(spec)) = (config_templates, &mut spec) {
        spec.config_templates = templates.clone();
    }
    Ok(spec)
}

fn freeze(unit: &UnitName, desired: &Desired, frozen: bool) -> Result<UnitEdit, CommandRefusal> {
    if desired.frozen == frozen {
        return Ok(UnitEdit::Keep);
    }
    if desired.run == Run::Stopped {
        let message = Diagnostic::new(format_args!("{unit} should not run, so it cannot be frozen"))
            .with_hint(format_args!("`muster unit run {unit}`"));
        return Err(CommandRefusal::new(RefusalCode::Conflict, message));
    }
    let (spec, revision) = (desired.spec.clone(), desired.revision.clone());
    Ok(UnitEdit::Set { spec, revision, run: desired.run, frozen, holding: HoldChange::Keep })
}

/// Returns the `run` of a unit that should run and may be playing.
fn running(run: Run) -> Run {
    if run == Run::Playing { Run::Playing } else { Run::Running }
}

fn play(unit: &UnitName, current: CurrentUnit<'_>, run: bool) -> Result<UnitEdit, CommandRefusal> {
    let unsupported = |why: Diagnostic| {
        Err(CommandRefusal::new(RefusalCode::Unsupported, why.within(format_args!("{unit} cannot play"))))
    };
    if current.desired.spec.channel() != Channel::Lines {
        return unsupported(
            Diagnostic::new("its channel is not `lines`")
                .with_hint("`channel` in its spec sets how it communicates with its agent"),
        );
    }
    let observed = current.observed;
    // Whether a unit that is not connected can play is known once it connects.
    if !observed.instance().can.is_empty() && !observed.instance().can.contains(&Ability::Play) {
        return unsupported("its hello does not list it".into());
    }
    if !current.desired.run.is_running() && !run {
        return Err(CommandRefusal::new(
            RefusalCode::Conflict,
            Diagnostic::new(format_args!("{unit} should not run"))
                .with_hint(format_args!("`muster unit run --play {unit}` starts it, and has it play")),
        ));
    }
    let needs_a_new_try = current.is_held(HoldReason::Broken)
        || matches!(observed.phase(), Phase::Failed | Phase::Backoff)
        // It has refused to play, and may be asked again.
        || observed.phase() == Phase::Running && observed.error.is_some();
    if current.desired.run == Run::Playing && !needs_a_new_try {
        return Ok(UnitEdit::Keep);
    }
    Ok(set(current.desired, Run::Playing, HoldChange::Keep))
}

fn apply(
    unit: &UnitName,
    current: Option<CurrentUnit<'_>>,
    spec: &Spec,
    run: Option<Run>,
) -> Result<UnitEdit, CommandRefusal> {
    if let Some(wrong) = Diagnostic::all(faults(spec)) {
        return Err(CommandRefusal::new(RefusalCode::Invalid, wrong));
    }
    let mut spec = spec.clone();
    keep_secrets(current.map(|current| &*current.desired.spec), &mut spec)?;
    if let Some(current) = current {
        if current.desired.spec.kind() != spec.kind() {
            return Err(CommandRefusal::new(
                RefusalCode::Conflict,
                Diagnostic::new(format_args!(
                    "{unit} is a {} and cannot become a {}",
                    current.desired.spec.kind(),
                    spec.kind()
                ))
                .with_hint("remove it first, or choose another name"),
            ));
        }
        if let (Spec::Container(before), Spec::Container(after)) = (&*current.desired.spec, &spec) {
            container::check_change(before, after)
                .map_err(|why| CommandRefusal::new(RefusalCode::Conflict, why.within(unit)))?;
        }
        keep_restarts(&current.desired.spec, &mut spec);
    }
    if run == Some(Run::Playing) && spec.channel() != Channel::Lines {
        return Err(CommandRefusal::new(
            RefusalCode::Unsupported,
            Diagnostic::new(format_args!("{unit} cannot play: its channel is not `lines`"))
                .with_hint("add \"channel\": \"lines\""),
        ));
    }
    let revision = revision(&spec)?;
    let kept = current.map_or(Run::Stopped, |current| current.desired.run);
    // A request to run does not end playing.
    let run_wanted = match run {
        Some(Run::Running) => running(kept),
        run => run.unwrap_or(kept),
    };
    if let Some(current) = current.filter(|current| *current.desired.spec == spec && current.desired.run == run_wanted)
    {
        // Nothing changes, but an explicit request for a running unit is a request to try again, as `run` is.
        let verb = if run.is_some_and(Run::is_running) {
            Verb::UnitRun { unit: unit.clone() }
        } else {
            return Ok(UnitEdit::Keep);
        };
        return edit(unit, Some(current), &verb);
    }
    let frozen = run_wanted.is_running() && current.is_some_and(|current| current.desired.frozen);
    Ok(UnitEdit::Set { spec: spec.into(), revision, run: run_wanted, frozen, holding: HoldChange::Keep })
}

fn check(spec: &Spec) -> Result<(), Diagnostic> {
    match spec {
        Spec::Yuno(spec) => process::check(spec),
        Spec::Container(spec) => container::check(spec),
        Spec::Files(_) | Spec::Packages(_) => faults(spec).into_iter().next().map_or(Ok(()), Err),
    }
}

/// Returns everything that is wrong with a spec.
#[must_use]
pub fn faults(spec: &Spec) -> Vec<Diagnostic> {
    let of_kind = match spec {
        Spec::Yuno(spec) => process::faults(spec),
        Spec::Container(spec) => container::faults(spec),
        Spec::Files(spec) => files::faults(spec),
        Spec::Packages(spec) => packages::faults(spec),
    };
    of_kind
        .into_iter()
        .chain(port_lease::check(spec))
        .chain(probe::check(spec))
        .chain(render::unit::faults(spec))
        .collect()
}

/// Replaces masks in the environment by the existing values: a spec that was shown has masks in place of values.
///
/// # Errors
/// If there is no value for a mask.
pub fn keep_secrets(before: Option<&Spec>, after: &mut Spec) -> Result<(), CommandRefusal> {
    let before = before.map(Spec::env);
    let env = after.program_mut().into_iter().flat_map(|program| &mut program.env);
    for (name, value) in env.filter(|(_, value)| *value == MASK) {
        let Some(kept) = before.and_then(|env| env.get(name)) else {
            let message =
                Diagnostic::new(format_args!("env.{name}: {MASK} stands for the present value, and there is none"))
                    .with_hint("write the value");
            return Err(CommandRefusal::new(RefusalCode::Invalid, message));
        };
        value.clone_from(kept);
    }
    Ok(())
}

/// Keeps the restart epoch: a spec from a file does not know of later restarts on demand, and applying it again must
/// not restart the unit.
fn keep_restarts(before: &Spec, after: &mut Spec) {
    let epoch = &mut after.common_mut().restart_epoch;
    *epoch = (*epoch).max(before.common().restart_epoch);
}

fn restart(desired: &Desired) -> Result<UnitEdit, CommandRefusal> {
    let mut spec = Spec::clone(&desired.spec);
    let epoch = &mut spec.common_mut().restart_epoch;
    *epoch = epoch.saturating_add(1);
    let revision = revision(&spec)?;
    Ok(UnitEdit::Set {
        spec: spec.into(),
        revision,
        run: running(desired.run),
        frozen: false,
        holding: HoldChange::Keep,
    })
}

fn remove(unit: &UnitName, current: CurrentUnit<'_>) -> Result<UnitEdit, CommandRefusal> {
    let conflict = |message| Err(CommandRefusal::new(RefusalCode::Conflict, message));
    let is_transient = current.desired.spec.is_transient();
    let has_ended = is_transient && matches!(current.observed.phase(), Phase::Stopped | Phase::Failed);
    if current.desired.run != Run::Stopped && !has_ended {
        return conflict(
            Diagnostic::new(format_args!("{unit} should run"))
                .with_hint(format_args!("`muster unit retire {unit}` stops and holds it")),
        );
    }
    let ends = matches!(current.observed.phase(), Phase::Starting | Phase::Running | Phase::Playing | Phase::Stopping);
    if ends || current.observed.instance().pid.is_some() {
        return conflict(
            Diagnostic::new(format_args!("{unit} has not stopped yet")).with_hint("wait until its phase is stopped"),
        );
    }
    // A unit that runs once is not restarted by a change.
    if !is_transient && !current.is_held(HoldReason::Operator) {
        return conflict(
            Diagnostic::new(format_args!("{unit} is stopped but not held, so it could start at any moment"))
                .with_hint(format_args!("`muster unit retire {unit}`")),
        );
    }
    Ok(UnitEdit::Forget)
}

fn revision(spec: &Spec) -> Result<Digest, CommandRefusal> {
    spec.revision().map_err(|error| no_revision(&error))
}

fn no_revision(error: &CanonicalError) -> CommandRefusal {
    CommandRefusal::new(RefusalCode::Invalid, format!("the unit's spec has no revision: {error}"))
}

#[cfg(test)]
mod tests {
    mod held;
    mod masked;
    mod played;

    use super::*;
    use muster_topics::unit::{ArtifactRef, ConfigRef, InstanceReport, ObservedState, Restart, YunoSpec};

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
        Desired { generation: 7, revision: spec.revision().unwrap(), spec: spec.into(), run, frozen: false }
    }

    fn seen(phase: Phase) -> Observed {
        Observed { state: phase.into(), ..Observed::absent(0) }
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

    fn held(note: Option<&str>) -> Verb {
        Verb::UnitHold { unit: unit(), note: note.map(str::to_owned) }
    }

    fn retired() -> Verb {
        Verb::UnitRetire { unit: unit(), note: None }
    }

    fn unheld() -> Verb {
        Verb::UnitUnhold { unit: unit() }
    }

    /// The result of a verb in one word.
    fn word(result: &Result<UnitEdit, CommandRefusal>) -> String {
        match result {
            Ok(UnitEdit::Keep) => "keep".to_owned(),
            Ok(UnitEdit::Forget) => "forget".to_owned(),
            Ok(UnitEdit::Set { run, spec, frozen, holding, .. }) => {
                let Spec::Yuno(spec) = &**spec else { panic!("a yuno") };
                let frozen = if *frozen { " frozen" } else { "" };
                let holding = match holding {
                    HoldChange::Keep => "",
                    HoldChange::End => " unheld",
                    HoldChange::Begin { .. } => " held",
                };
                format!("{run:?} {}{frozen}{holding}", spec.common.restart_epoch).to_lowercase()
            }
            Err(refusal) => format!("{:?}", refusal.code),
        }
    }

    /// Checks a verb on a unit in this state.
    #[track_caller]
    fn check(now: (Run, Phase, bool), verb: &Verb, outcome: &str) {
        let (run, phase, broken) = now;
        check_held((run, phase, broken.then_some(HoldReason::Broken)), verb, outcome);
    }

    #[track_caller]
    fn check_held(now: (Run, Phase, Option<HoldReason>), verb: &Verb, outcome: &str) {
        let (run, phase, reason) = now;
        let (desired, observed) = (desired(run, |_| ()), seen(phase));
        let hold = reason.map(|reason| Hold::new(reason, 1));
        let result =
            edit(&unit(), Some(CurrentUnit { desired: &desired, hold: hold.as_ref(), observed: &observed }), verb);
        assert_eq!(word(&result), outcome, "{verb:?} when {now:?}");
    }

    #[test]
    fn unchanged_verb_keeps_generation() {
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
    fn changed_run_makes_a_generation() {
        check((Run::Stopped, Phase::Stopped, false), &run(), "running 0");
        check((Run::Running, Phase::Running, false), &stop(), "stopped 0");
        check((Run::Running, Phase::Running, false), &applied(yuno(|_| ()), Some(Run::Stopped)), "stopped 0");
        check(
            (Run::Running, Phase::Running, false),
            &applied(yuno(|spec| spec.program.grace_ms = 1), None),
            "running 0",
        );
        check((Run::Running, Phase::Failed, true), &stop(), "stopped 0");
    }

    #[test]
    fn run_of_failed_unit_makes_a_generation() {
        for verb in [run(), applied(yuno(|_| ()), Some(Run::Running))] {
            check((Run::Running, Phase::Failed, false), &verb, "running 0");
            check((Run::Running, Phase::Backoff, false), &verb, "running 0");
            check((Run::Running, Phase::Failed, true), &verb, "running 0");
        }
    }

    #[test]
    fn restart_makes_a_new_revision() {
        for run in [Run::Running, Run::Stopped] {
            check((run, Phase::Stopped, false), &restarted(), "running 1");
        }
        let before = desired(Run::Running, |spec| spec.common.restart_epoch = 4);
        let observed = seen(Phase::Running);
        let current = Some(CurrentUnit { desired: &before, hold: None, observed: &observed });
        let Ok(UnitEdit::Set { revision, .. }) = edit(&unit(), current, &restarted()) else {
            panic!("should be a change")
        };
        assert_ne!(revision, before.revision);
        // The unit's file has no restart epoch; applying it again restarts nothing.
        assert_eq!(word(&edit(&unit(), current, &applied(yuno(|_| ()), None))), "keep");
        let other = applied(yuno(|spec| spec.program.args.push("x".to_owned())), None);
        assert_eq!(word(&edit(&unit(), current, &other)), "running 4");
    }

    #[test]
    fn verb_on_unknown_unit_is_refused() {
        let (play, pause) = (Verb::UnitPlay { unit: unit(), run: true }, Verb::UnitPause { unit: unit() });
        for verb in [run(), stop(), restarted(), held(None), unheld(), retired(), rm(), play, pause] {
            assert_eq!(word(&edit(&unit(), None, &verb)), "NotFound", "{verb:?}");
        }
        assert_eq!(word(&edit(&unit(), None, &applied(yuno(|_| ()), None))), "stopped 0");
        assert_eq!(word(&edit(&unit(), None, &applied(yuno(|_| ()), Some(Run::Running)))), "running 0");
    }

    #[test]
    fn invalid_spec_is_refused() {
        // `rules::process` covers the other faults.
        let bad = yuno(|spec| spec.program.args.push("a\0b".to_owned()));
        assert_eq!(word(&edit(&unit(), None, &applied(bad, None))), "Invalid");
        let good = applied(yuno(|spec| spec.program.restart = Restart::Never), None);
        assert!(edit(&unit(), None, &good).is_ok());
        let logs = Verb::UnitLogs { unit: unit(), lines: 1, view: Default::default() };
        check((Run::Running, Phase::Running, false), &logs, "Invalid");
        let signal = Verb::UnitSignal { unit: unit(), signal: muster_topics::signal::Signal::Hup };
        check((Run::Running, Phase::Running, false), &signal, "Invalid");
    }
}

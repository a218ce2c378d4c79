//! Properties of a command for dispatch: how long it waits for an offline host, the room it takes there, and which
//! earlier command it supersedes.

use std::collections::BTreeSet;

use muster_topics::{
    Millis,
    command::{LIFETIME_MAX_MS, UnitWish, Verb},
    name::{CommandId, Name, UnitName},
    unit::{MASK, Spec},
    verb_table::{UnitVerbRow, VerbClass},
};

/// How long a program or a question waits for offline hosts by default: its sender waits for the answer, and an hour
/// later would ask something else.
pub const QUESTION_LIFETIME_MS: Millis = 10 * 60_000;

/// Returns how long a command waits for offline hosts by default. Intents (units, realms, snapshots) do not expire
/// early, and a cancellation waits as long as its command may.
#[must_use]
pub fn lifetime_ms(verb: &Verb) -> Millis {
    match verb.class() {
        VerbClass::Program | VerbClass::Question | VerbClass::Action | VerbClass::HostQuestion => QUESTION_LIFETIME_MS,
        VerbClass::UnitSet if matches!(verb, Verb::UnitsApply(set) if set.check) => QUESTION_LIFETIME_MS,
        VerbClass::Unit | VerbClass::UnitSet | VerbClass::Host | VerbClass::Cancel => LIFETIME_MAX_MS,
    }
}

/// The class of a command for the scheduler. It is small, whatever the command carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandClass {
    /// It runs programs, of which a host runs a limited number at once.
    Program,
    /// It changes the desired state of a unit.
    Intent(UnitIntent),
    /// It changes the desired state of several units of a host, all or none.
    Set(Vec<UnitIntent>),
    /// It saves or changes the desired state of several units of a host together.
    Together,
    /// It cancels another command.
    Cancel(CommandId),
    /// Any other command.
    Other,
}

impl CommandClass {
    /// Returns the class of a command.
    #[must_use]
    pub fn of(verb: &Verb) -> Self {
        match verb {
            // A daemon is a unit, and takes no place of a program.
            Verb::Exec(exec) if exec.daemon => Self::Other,
            Verb::Exec(_) | Verb::Batch(_) => Self::Program,
            Verb::Cancel { command } => Self::Cancel(*command),
            // One part of a set is useless without the others.
            Verb::UnitsApply(set) if !set.check && set.part.is_some() => Self::Together,
            Verb::UnitsApply(set) if !set.check => Self::Set(set.units.iter().map(UnitIntent::of_wish).collect()),
            Verb::SnapshotCreate { .. } | Verb::SnapshotActivate { .. } | Verb::SnapshotDeactivate { .. } => {
                Self::Together
            }
            verb => UnitIntent::of(verb).map_or(Self::Other, Self::Intent),
        }
    }

    /// Returns what it changes of which units.
    #[must_use]
    pub fn intents(&self) -> &[UnitIntent] {
        match self {
            Self::Intent(intent) => std::slice::from_ref(intent),
            Self::Set(intents) => intents,
            Self::Program | Self::Together | Self::Cancel(_) | Self::Other => &[],
        }
    }

    /// Whether it makes an `earlier` one void: see [`UnitIntent::covers`]. It must cover each of that one's units.
    #[must_use]
    pub fn covers(&self, earlier: &Self) -> bool {
        let before = earlier.intents();
        !before.is_empty() && before.iter().all(|old| self.intents().iter().any(|new| new.covers(old)))
    }
}

/// A change of a unit's desired state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitIntent {
    unit: UnitName,
    change: IntentChange,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum IntentChange {
    /// `whole`: it does not depend on what the host has. `new`: the unit must not exist yet, so an earlier intent
    /// changes its result.
    Apply {
        whole: bool,
        run: bool,
        new: bool,
    },
    Upgrade,
    Run,
    Stop,
    Play {
        run: bool,
    },
    Pause,
    Retire,
    Label(BTreeSet<Name>),
    /// A verb whose row says which earlier ones it makes void.
    Plain(&'static UnitVerbRow),
}

impl UnitIntent {
    fn of(verb: &Verb) -> Option<Self> {
        let (unit, change) = match verb {
            Verb::UnitApply { unit, spec, run } => {
                (unit, IntentChange::Apply { whole: is_whole(spec), run: run.is_some(), new: false })
            }
            Verb::UnitUpgrade { unit, .. } => (unit, IntentChange::Upgrade),
            Verb::UnitRun { unit } => (unit, IntentChange::Run),
            Verb::UnitStop { unit } => (unit, IntentChange::Stop),
            Verb::UnitPlay { unit, run } => (unit, IntentChange::Play { run: *run }),
            Verb::UnitPause { unit } => (unit, IntentChange::Pause),
            Verb::UnitRetire { unit, .. } => (unit, IntentChange::Retire),
            Verb::UnitLabel { unit, labels } => (unit, IntentChange::Label(labels.keys().cloned().collect())),
            other => {
                let row = other.of_units().filter(|row| !row.voids.is_empty())?;
                (other.units().first().copied()?, IntentChange::Plain(row))
            }
        };
        Some(Self { unit: unit.clone(), change })
    }

    fn of_wish(UnitWish { unit, spec, run, new }: &UnitWish) -> Self {
        let change = IntentChange::Apply { whole: is_whole(spec), run: run.is_some(), new: *new };
        Self { unit: unit.clone(), change }
    }

    /// The unit.
    #[must_use]
    pub fn unit(&self) -> &UnitName {
        &self.unit
    }

    /// Whether the result is the same with or without `earlier` before it. This holds only if no other intent for the
    /// unit comes between the two.
    #[must_use]
    pub fn covers(&self, earlier: &Self) -> bool {
        self.unit == earlier.unit && self.change.covers(&earlier.change)
    }
}

/// Whether a spec does not depend on what the host has: a masked value stands for the existing one.
fn is_whole(spec: &Spec) -> bool {
    spec.env().values().all(|value| value != MASK)
}

impl IntentChange {
    fn covers(&self, earlier: &Self) -> bool {
        let is_plain = |word: &str| matches!(earlier, Self::Plain(row) if row.word == word);
        let sets_run =
            matches!(earlier, Self::Run | Self::Stop | Self::Play { .. } | Self::Pause) || is_plain("restart");
        match self {
            Self::Apply { whole: false, .. } | Self::Apply { new: true, .. } | Self::Upgrade => false,
            Self::Apply { run: true, .. } => sets_run || matches!(earlier, Self::Apply { .. } | Self::Upgrade),
            Self::Apply { run: false, .. } => matches!(earlier, Self::Apply { run: false, .. } | Self::Upgrade),
            Self::Stop | Self::Play { run: true } => sets_run,
            Self::Retire => sets_run || *earlier == Self::Retire || is_plain("hold"),
            // A unit that plays continues to play; ending that or a restart is not part of `run`.
            Self::Run => matches!(earlier, Self::Run | Self::Stop),
            Self::Play { run: false } | Self::Pause => matches!(earlier, Self::Play { run: false } | Self::Pause),
            Self::Label(names) => matches!(earlier, Self::Label(before) if before.is_subset(names)),
            Self::Plain(row) => row.voids.iter().any(|word| is_plain(word)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn verb(name: &str, mut fields: Value) -> Verb {
        fields["unit"] = json!("a/b");
        serde_json::from_value(json!({ name: fields })).unwrap()
    }

    fn apply(value: &str, run: Option<&str>) -> Verb {
        let artifact = json!({"sha256": "0".repeat(64), "size_bytes": 1, "role": "a", "version": "1"});
        let spec = json!({"kind": "yuno", "artifact": artifact, "env": {"A": value}});
        verb("unit_apply", json!({"spec": spec, "run": run}))
    }

    #[track_caller]
    fn check(later: Verb, earlier: &Verb, covers: bool) {
        let (CommandClass::Intent(one), CommandClass::Intent(other)) =
            (CommandClass::of(&later), CommandClass::of(earlier))
        else {
            panic!()
        };
        assert_eq!(one.covers(&other), covers, "{later:?} {earlier:?}");
    }

    #[test]
    fn later_intent_supersedes_earlier_one() {
        let plain = |name: &str| verb(name, json!({}));
        check(plain("unit_stop"), &plain("unit_run"), true);
        check(plain("unit_run"), &plain("unit_stop"), true);
        check(plain("unit_retire"), &plain("unit_run"), true);
        check(plain("unit_thaw"), &plain("unit_freeze"), true);
        check(plain("unit_stop"), &plain("unit_hold"), false);
        check(plain("unit_run"), &plain("unit_pause"), false);
        check(plain("unit_rm"), &plain("unit_retire"), false);
        check(plain("unit_restart"), &plain("unit_run"), false);
        check(apply("x", None), &apply("y", None), true);
        check(apply("x", None), &apply("y", Some("running")), false);
        check(apply("x", Some("stopped")), &apply("y", Some("running")), true);
        check(apply("x", Some("stopped")), &plain("unit_run"), true);
        check(apply("x", None), &plain("unit_run"), false);
        // It would take over the value of the earlier one.
        check(apply(MASK, None), &apply("y", None), false);
        check(apply("x", None), &apply(MASK, None), true);
        let labels = |labels: Value| verb("unit_label", json!({ "labels": labels }));
        check(labels(json!({"a": "1", "b": null})), &labels(json!({"a": "2"})), true);
        check(labels(json!({"a": "1"})), &labels(json!({"a": "2", "b": "2"})), false);
    }

    #[test]
    fn set_is_superseded_by_intents_for_all_its_units() {
        let set = |units: &[(&str, bool)], part: Option<Value>| {
            let artifact = json!({"sha256": "0".repeat(64), "size_bytes": 1, "role": "a", "version": "1"});
            let wish = |(unit, new): &(&str, bool)| json!({"unit": unit, "spec": {"kind": "yuno", "artifact": artifact}, "run": "running", "new": new});
            let mut set = json!({ "units": units.iter().map(wish).collect::<Vec<_>>() });
            if let Some(part) = part {
                set["part"] = part;
            }
            CommandClass::of(&serde_json::from_value(json!({ "units_apply": set })).unwrap())
        };
        let both = || set(&[("a/b", false), ("a/c", false)], None);
        let run = |unit: &str| CommandClass::of(&serde_json::from_value(json!({"unit_run": {"unit": unit}})).unwrap());
        for (later, earlier, covers) in [
            (both(), both(), true),
            (both(), set(&[("a/b", false)], None), true),
            (both(), set(&[("a/b", true)], None), true),
            (both(), run("a/c"), true),
            (set(&[("a/b", false)], None), both(), false),
            (run("a/b"), both(), false),
            (both(), run("a/d"), false),
            // After the earlier one it would be refused.
            (set(&[("a/b", true), ("a/c", false)], None), both(), false),
            (both(), CommandClass::Other, false),
            (both(), CommandClass::Together, false),
        ] {
            assert_eq!(later.covers(&earlier), covers, "{later:?} {earlier:?}");
        }
        let part = json!({"set": CommandId::new(), "number": 1, "of": 2});
        assert_eq!(set(&[("a/b", false)], Some(part)), CommandClass::Together);
    }

    #[test]
    fn intent_of_other_unit_is_kept() {
        let other: Verb = serde_json::from_value(json!({"unit_run": {"unit": "a/c"}})).unwrap();
        check(verb("unit_stop", json!({})), &other, false);
    }

    #[test]
    fn programs_expire_in_minutes_and_intents_in_a_week() {
        for (verb, wanted) in [
            (json!({"exec": {"argv": ["true"], "timeout_ms": 1}}), QUESTION_LIFETIME_MS),
            (json!({"unit_logs": {"unit": "a/b", "lines": 1}}), QUESTION_LIFETIME_MS),
            (json!({"unit_signal": {"unit": "a/b", "signal": "hup"}}), QUESTION_LIFETIME_MS),
            (json!({"unit_stop": {"unit": "a/b"}}), LIFETIME_MAX_MS),
            (json!({"snapshot_activate": {"snapshot": "a"}}), LIFETIME_MAX_MS),
            (json!({"cancel": {"command": CommandId::new()}}), LIFETIME_MAX_MS),
        ] {
            assert_eq!(lifetime_ms(&serde_json::from_value(verb.clone()).unwrap()), wanted, "{verb}");
        }
    }
}

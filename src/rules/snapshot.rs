//! Compares units with a snapshot, and computes the edits that go back to it.
//!
//! **Invariant: a unit that matches is not touched.** A restart on demand since the snapshot is no difference.

use std::collections::{BTreeMap, BTreeSet};

use muster_topics::{
    name::UnitName,
    snapshot::{Difference, UnitDiff},
    unit::{Run, Spec},
};

/// A unit's desired state in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotUnit {
    /// Its spec.
    pub spec: Spec,
    /// Whether it should run.
    pub run: Run,
}

impl SnapshotUnit {
    /// Returns the desired state that restores it, given the present spec.
    #[must_use]
    pub fn after(&self, now: Option<&Spec>) -> Self {
        let mut pinned = self.clone();
        if let Some(now) = now {
            let epoch = &mut pinned.spec.common_mut().restart_epoch;
            *epoch = (*epoch).max(now.common().restart_epoch);
        }
        pinned
    }
}

/// Returns how each unit differs between `then` and `now`.
#[must_use]
pub fn diff(then: &BTreeMap<UnitName, SnapshotUnit>, now: &BTreeMap<UnitName, SnapshotUnit>) -> Vec<UnitDiff> {
    let names: BTreeSet<&UnitName> = then.keys().chain(now.keys()).collect();
    let differences = names.into_iter().filter_map(|unit| {
        let difference = match (then.get(unit), now.get(unit)) {
            (Some(then), Some(now)) => difference(then, now),
            (Some(_), None) => Difference::Missing,
            (None, Some(_)) => Difference::Extra,
            (None, None) => return None,
        };
        Some(UnitDiff { unit: unit.clone(), difference, generation: None })
    });
    differences.collect()
}

/// Returns how one unit differs.
#[must_use]
pub fn difference(then: &SnapshotUnit, now: &SnapshotUnit) -> Difference {
    let goal = then.after(Some(&now.spec));
    if goal == *now {
        return Difference::Same;
    }
    let restarts = goal.spec.revision().ok() != now.spec.revision().ok();
    let run = (goal.run != now.run).then_some(goal.run);
    Difference::Changed { fields: fields(&goal.spec, &now.spec), run, restarts }
}

/// Returns the fields in which two specs differ, without their values, which may be secret.
fn fields(one: &Spec, other: &Spec) -> Vec<String> {
    let object = |spec: &Spec| match serde_json::to_value(spec) {
        Ok(serde_json::Value::Object(object)) => object,
        _ => serde_json::Map::new(),
    };
    let (one, other) = (object(one), object(other));
    let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    names.into_iter().filter(|name| one.get(*name) != other.get(*name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use muster_topics::{name::Digest, unit::YunoSpec};
    use serde_json::json;

    use super::*;

    fn pinned(run: Run, change: impl FnOnce(&mut YunoSpec)) -> SnapshotUnit {
        let artifact = json!({ "sha256": Digest::of(b"a"), "size_bytes": 1, "role": "a", "version": "1" });
        let mut spec = YunoSpec::new(serde_json::from_value(artifact).unwrap());
        change(&mut spec);
        SnapshotUnit { spec: Spec::Yuno(spec), run }
    }

    fn same(_: &mut YunoSpec) {}

    /// Checks how a running unit differs from one that ran, with a restart between.
    #[track_caller]
    fn check(then: SnapshotUnit, now: SnapshotUnit, wanted: Option<(&[&str], Option<Run>, bool)>) {
        let wanted = wanted.map_or(Difference::Same, |(fields, run, restarts)| Difference::Changed {
            fields: fields.iter().map(|field| (*field).to_owned()).collect(),
            run,
            restarts,
        });
        assert_eq!(difference(&then, &now), wanted);
    }

    #[test]
    fn changed_fields_are_listed() {
        let then = || pinned(Run::Running, |spec| spec.common.restart_epoch = 3);
        check(then(), then(), None);
        check(then(), pinned(Run::Running, |spec| spec.common.restart_epoch = 9), None);
        check(then(), pinned(Run::Running, same), Some((&["restart_epoch"], None, true)));
        check(pinned(Run::Stopped, same), pinned(Run::Running, same), Some((&[], Some(Run::Stopped), false)));
        let graceful = |spec: &mut YunoSpec| spec.program.grace_ms = 1;
        check(pinned(Run::Running, same), pinned(Run::Running, graceful), Some((&["grace_ms"], None, false)));
        let other = |spec: &mut YunoSpec| {
            spec.program.grace_ms = 1;
            spec.program.args.push("x".to_owned());
        };
        check(pinned(Run::Running, same), pinned(Run::Running, other), Some((&["args", "grace_ms"], None, true)));
        // Without values, which may be secret.
        let secret = |spec: &mut YunoSpec| drop(spec.program.env.insert("PASSWORD".to_owned(), "hunter2".to_owned()));
        check(pinned(Run::Running, same), pinned(Run::Running, secret), Some((&["env"], None, true)));
    }

    #[test]
    fn units_in_only_one_side_are_listed() {
        let map =
            |names: &[&str]| names.iter().map(|name| (name.parse().unwrap(), pinned(Run::Running, same))).collect();
        let seen: Vec<_> = diff(&map(&["a/a", "a/b"]), &map(&["a/b", "a/c"]))
            .into_iter()
            .map(|diff| (diff.unit.to_string(), diff.difference))
            .collect();
        let wanted = [("a/a", Difference::Missing), ("a/b", Difference::Same), ("a/c", Difference::Extra)];
        assert_eq!(seen, wanted.map(|(unit, difference)| (unit.to_owned(), difference)));
    }

    #[test]
    fn snapshot_restores_the_spec() {
        let now = pinned(Run::Running, |spec| spec.common.restart_epoch = 9);
        let goal = pinned(Run::Stopped, |spec| spec.program.args.push("x".to_owned())).after(Some(&now.spec));
        let Spec::Yuno(spec) = &goal.spec else { panic!("a yuno") };
        assert_eq!((goal.run, spec.common.restart_epoch, spec.program.args.len()), (Run::Stopped, 9, 1));
        assert_eq!(now.after(None), now);
    }
}

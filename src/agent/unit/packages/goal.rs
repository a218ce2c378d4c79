//! What a unit wants changed: for its revision, for one that it goes back to, or because it goes.

use std::collections::{BTreeMap, BTreeSet};

use muster_rules::packages::{
    change::{PackageChange, Permission},
    installed::InstalledPackages,
    split,
    target::{self, PackageTarget},
};
use muster_topics::{name::Digest, packages::PackagesSpec};

use crate::store::packages::PackageRun;

/// What a unit wants changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Goal {
    pub(super) targets: Vec<PackageTarget>,
    /// Packages that may be removed in addition to those that its spec names.
    pub(super) removable: Vec<String>,
    /// The runs that are undone by it.
    pub(super) undone: Vec<u64>,
    /// Whether it goes back to an earlier revision, whose versions may be older.
    pub(super) is_back: bool,
}

impl Goal {
    /// Returns what has to be changed for a revision. `keep` is the verified one.
    pub(super) fn of(
        (revision, spec): (&Digest, &PackagesSpec),
        keep: Option<&Digest>,
        runs: &[PackageRun],
        installed: &InstalledPackages,
        owned_by_others: &BTreeSet<String>,
    ) -> Self {
        let was_last = runs.last().is_some_and(|run| run.revision == *revision);
        let before = runs.iter().rposition(|run| run.is_done && run.revision == *revision);
        match before.filter(|_| !was_last && keep == Some(revision)) {
            Some(before) => Self::back(spec, &runs[before + 1..], installed, owned_by_others),
            None => Self::forward(spec, runs, installed, owned_by_others),
        }
    }

    /// Returns what has to be changed to undo later runs.
    fn back(
        spec: &PackagesSpec,
        later: &[PackageRun],
        installed: &InstalledPackages,
        owned_by_others: &BTreeSet<String>,
    ) -> Self {
        let changes: Vec<PackageChange> = later.iter().flat_map(|run| run.changes.iter().cloned()).collect();
        let mut targets = target::undoing(&changes, installed);
        targets.retain(|target| !matches!(target, PackageTarget::Absent(name) if owned_by_others.contains(name)));
        let removable = absent(&targets);
        let missing = target::targets(spec, installed, false);
        let is_new = |target: &PackageTarget| !targets.iter().any(|known| known.name() == target.name());
        let missing: Vec<PackageTarget> = missing.into_iter().filter(is_new).collect();
        targets.extend(missing);
        Self { targets, removable, undone: later.iter().map(|run| run.number).collect(), is_back: true }
    }

    fn forward(
        spec: &PackagesSpec,
        runs: &[PackageRun],
        installed: &InstalledPackages,
        owned_by_others: &BTreeSet<String>,
    ) -> Self {
        let epoch = runs.iter().map(|run| run.spec.common.restart_epoch).max();
        let upgrade = epoch.is_some_and(|epoch| spec.common.restart_epoch > epoch);
        let mut targets = target::targets(spec, installed, upgrade);
        // What an earlier revision has named and brought, and this one does not name.
        let named: BTreeSet<&str> = spec.present.iter().map(|package| split(package).0).collect();
        let pruned = ours(runs, true).into_iter().filter(|name| {
            !named.contains(name.as_str())
                && !spec.absent.contains(name)
                && !owned_by_others.contains(name)
                && installed.version(name).is_some()
        });
        let pruned: Vec<PackageTarget> = pruned.map(PackageTarget::Absent).collect();
        let removable = absent(&pruned);
        targets.extend(pruned);
        Self { targets, removable, ..Self::default() }
    }

    /// Returns what a unit that goes has brought, and nobody else wants: what it has named first, then what came along.
    pub(super) fn leaving(
        runs: &[PackageRun],
        installed: &InstalledPackages,
        owned_by_others: &BTreeSet<String>,
    ) -> Vec<String> {
        let named = ours(runs, true);
        let others = ours(runs, false).into_iter().filter(|name| !named.contains(name));
        let is_left = |name: &String| installed.version(name).is_some() && !owned_by_others.contains(name);
        named.iter().cloned().chain(others).filter(is_left).collect()
    }

    /// What may be done for it.
    pub(super) fn permission<'a>(&self, spec: &'a PackagesSpec, removable: &'a [String]) -> Permission<'a> {
        let of_spec = Permission::of(spec);
        Permission { downgrade: of_spec.downgrade || self.is_back, removable, ..of_spec }
    }
}

fn absent(targets: &[PackageTarget]) -> Vec<String> {
    let absent = targets.iter().filter(|target| matches!(target, PackageTarget::Absent(_)));
    absent.map(|target| target.name().to_owned()).collect()
}

/// The packages that runs have brought, which were not there before; with `named` only those that their spec names.
fn ours(runs: &[PackageRun], named: bool) -> Vec<String> {
    let mut first: BTreeMap<&str, bool> = BTreeMap::new();
    for change in runs.iter().flat_map(|run| &run.changes) {
        first.entry(&change.name).or_insert(change.before.is_none());
    }
    let names: BTreeSet<&str> =
        runs.iter().flat_map(|run| run.spec.present.iter()).map(|package| split(package).0).collect();
    let ours = first.into_iter().filter(|(name, is_new)| *is_new && (!named || names.contains(name)));
    ours.map(|(name, _)| name.to_owned()).collect()
}

/// Returns the changes of runs as those of one: each package's first version and its last.
pub(super) fn folded(runs: &[PackageRun]) -> Vec<PackageChange> {
    let mut changes: BTreeMap<&str, PackageChange> = BTreeMap::new();
    for change in runs.iter().flat_map(|run| &run.changes) {
        match changes.get_mut(change.name.as_str()) {
            Some(known) => known.after.clone_from(&change.after),
            None => drop(changes.insert(&change.name, change.clone())),
        }
    }
    changes.into_values().filter(|change| change.before != change.after).collect()
}

#[cfg(test)]
mod tests {
    use muster_rules::packages::installed;

    use super::*;

    fn spec(json: serde_json::Value) -> PackagesSpec {
        serde_json::from_value(json).unwrap()
    }

    fn change(name: &str, before: Option<&str>, after: Option<&str>) -> PackageChange {
        PackageChange { name: name.into(), before: before.map(Into::into), after: after.map(Into::into) }
    }

    fn run(number: u64, revision: &str, present: &[&str], changes: Vec<PackageChange>, is_done: bool) -> PackageRun {
        let spec = spec(serde_json::json!({ "present": present }));
        PackageRun { number, revision: Digest::of(revision.as_bytes()), spec, changes, is_done }
    }

    #[test]
    fn goal_goes_back_to_verified_revision_only() {
        let there = installed::parse("a\tall\t2.0\tii \nb\tall\t2.0\tii \nlib\tall\t1.0\tii \nused\tall\t1.0\tii \n");
        let runs = [
            run(1, "one", &["a", "b"], vec![change("a", None, Some("1.0")), change("b", None, Some("1.0"))], true),
            run(
                2,
                "two",
                &["a=2.0", "b"],
                vec![
                    change("a", Some("1.0"), Some("2.0")),
                    change("lib", None, Some("1.0")),
                    change("used", None, Some("1.0")),
                ],
                false,
            ),
        ];
        let (one, wanted) = (Digest::of(b"one"), spec(serde_json::json!({"present": ["a", "b"]})));
        let others: BTreeSet<String> = ["used".to_owned()].into();
        let back = Goal::of((&one, &wanted), Some(&one), &runs, &there, &others);
        assert_eq!(
            (back.targets, back.removable, back.undone, back.is_back),
            (
                vec![PackageTarget::Version("a".into(), "1.0".into()), PackageTarget::Absent("lib".into())],
                vec!["lib".to_owned()],
                vec![2],
                true
            )
        );
        // The same spec after another that was verified is no way back: any version will do.
        let two = Digest::of(b"two");
        let again = Goal::of((&one, &wanted), Some(&two), &runs, &there, &others);
        assert_eq!((again.targets, again.is_back), (vec![], false));
        // Nor is its own drift.
        let again = Goal::of((&one, &wanted), Some(&one), &runs[..1], &there, &others);
        assert_eq!((again.targets, again.is_back), (vec![], false));
    }

    #[test]
    fn what_is_named_no_more_goes_if_the_unit_brought_it() {
        let there = installed::parse("a\tall\t1.0\tii \nb\tall\t1.0\tii \nc\tall\t1.0\tii \nd\tall\t1.0\tii \n");
        let brought =
            vec![change("a", None, Some("1.0")), change("b", None, Some("1.0")), change("d", None, Some("1.0"))];
        let runs = [run(1, "one", &["a", "b", "c"], brought, true)];
        let (two, wanted) = (Digest::of(b"two"), spec(serde_json::json!({"present": ["a"]})));
        let goal = Goal::of((&two, &wanted), None, &runs, &there, &BTreeSet::new());
        assert_eq!((goal.targets, goal.removable), (vec![PackageTarget::Absent("b".into())], vec!["b".to_owned()]));
        let others = ["b".to_owned()].into();
        assert_eq!(Goal::of((&two, &wanted), None, &runs, &there, &others).targets, []);
        assert_eq!(Goal::leaving(&runs, &there, &others), ["a", "d"]);
    }

    #[test]
    fn requested_restart_looks_for_upgrades_once() {
        let there = installed::parse("a\tall\t1.0\tii \n");
        let mut runs = [run(1, "one", &["a"], vec![], true)];
        let (two, mut wanted) = (Digest::of(b"two"), spec(serde_json::json!({"present": ["a"]})));
        wanted.common.restart_epoch = 1;
        let goal = Goal::of((&two, &wanted), None, &runs, &there, &BTreeSet::new());
        assert_eq!(goal.targets, [PackageTarget::Newest("a".into())]);
        runs[0].spec.common.restart_epoch = 1;
        assert_eq!(Goal::of((&two, &wanted), None, &runs, &there, &BTreeSet::new()).targets, []);
    }

    #[test]
    fn folded_runs_keep_first_and_last_versions() {
        let runs = [
            run(1, "one", &[], vec![change("a", None, Some("1")), change("b", Some("1"), Some("2"))], true),
            run(2, "two", &[], vec![change("a", Some("1"), Some("2")), change("b", Some("2"), Some("1"))], true),
        ];
        assert_eq!(folded(&runs), [change("a", None, Some("2"))]);
    }
}

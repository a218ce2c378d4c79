//! What differs from a spec, and what has to be undone of a revision that failed.

use muster_topics::packages::PackagesSpec;

use super::{
    change::PackageChange,
    installed::{InstalledPackages, PackageState},
    split, version,
};

/// What a package shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PackageTarget {
    /// It is there, in its newest version.
    Newest(String),
    /// It is there in this version.
    Version(String, String),
    /// It is not there.
    Absent(String),
}

impl PackageTarget {
    /// The package.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Newest(name) | Self::Version(name, _) | Self::Absent(name) => name,
        }
    }
}

/// Returns what has to be changed. With `upgrade`, packages without a version are brought to their newest.
#[must_use]
pub fn targets(spec: &PackagesSpec, installed: &InstalledPackages, upgrade: bool) -> Vec<PackageTarget> {
    let mut targets = Vec::new();
    for package in &spec.present {
        let (name, version) = split(package);
        let there = installed.get(name).filter(|there| there.state == PackageState::Installed);
        match (version, there) {
            (Some(version), Some(there)) if is_same(&there.version, version) => {}
            (Some(version), _) => targets.push(PackageTarget::Version(name.to_owned(), version.to_owned())),
            (None, Some(_)) if !upgrade => {}
            (None, _) => targets.push(PackageTarget::Newest(name.to_owned())),
        }
    }
    for name in &spec.absent {
        let is_there = match installed.get(name).map(|there| there.state) {
            None => false,
            Some(PackageState::Configs) => spec.purge,
            Some(PackageState::Installed | PackageState::Broken) => true,
        };
        if is_there {
            targets.push(PackageTarget::Absent(name.clone()));
        }
    }
    targets
}

fn is_same(one: &str, other: &str) -> bool {
    version::compare(one, other).is_eq()
}

/// Returns what of a unit's packages is not as its spec says, for people.
#[must_use]
pub fn drift(spec: &PackagesSpec, installed: &InstalledPackages) -> Vec<String> {
    let of_targets = targets(spec, installed, false).into_iter().map(|target| {
        let there = installed.get(target.name());
        match (&target, there) {
            (PackageTarget::Absent(name), Some(there)) if there.state == PackageState::Configs => {
                format!("{name}: its configuration files are installed")
            }
            (PackageTarget::Absent(name), _) => format!("{name} is installed"),
            (_, Some(there)) if there.state == PackageState::Broken => format!("{} is not configured", target.name()),
            (PackageTarget::Version(name, version), Some(there)) if there.state == PackageState::Installed => {
                format!("{name} is {} instead of {version}", there.version)
            }
            (target, _) => format!("{} is not installed", target.name()),
        }
    });
    let holds = spec.hold.iter().filter(|name| installed.version(name).is_some() && !installed.is_held(name));
    of_targets.chain(holds.map(|name| format!("{name} is not held"))).collect()
}

/// Returns what has to be changed to undo changes, the oldest of which comes first.
#[must_use]
pub fn undoing(changes: &[PackageChange], installed: &InstalledPackages) -> Vec<PackageTarget> {
    let mut targets: Vec<PackageTarget> = Vec::new();
    for change in changes {
        // What it was before the first of several changes counts.
        if targets.iter().any(|target| target.name() == change.name) {
            continue;
        }
        targets.push(match &change.before {
            Some(version) => PackageTarget::Version(change.name.clone(), version.clone()),
            None => PackageTarget::Absent(change.name.clone()),
        });
    }
    targets.retain(|target| match target {
        PackageTarget::Version(name, version) => {
            let there = installed.get(name);
            !there.is_some_and(|there| there.state == PackageState::Installed && is_same(&there.version, version))
        }
        PackageTarget::Absent(name) => installed.version(name).is_some(),
        PackageTarget::Newest(_) => true,
    });
    targets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packages::installed;

    const THERE: &str = "a\tall\t1.0\tii \nb\tall\t2.0\tii \nc\tall\t1.0\trc \nd\tall\t1.0\tiF \ne\tall\t1.0\thi \n";

    fn spec(json: serde_json::Value) -> PackagesSpec {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn only_differences_are_targets() {
        let there = installed::parse(THERE);
        let version = |name: &str, version: &str| PackageTarget::Version(name.into(), version.into());
        let (newest, absent) =
            (|name: &str| PackageTarget::Newest(name.into()), |name: &str| PackageTarget::Absent(name.into()));
        for (json, upgrade, expected) in [
            (serde_json::json!({"present": ["a", "b=2.0", "e=0:1.0"]}), false, vec![]),
            (serde_json::json!({"present": ["a", "b=2.0"]}), true, vec![newest("a")]),
            (
                serde_json::json!({"present": ["a=1.1", "c", "d", "n"]}),
                false,
                vec![version("a", "1.1"), newest("c"), newest("d"), newest("n")],
            ),
            (serde_json::json!({"absent": ["a", "c", "d", "n"]}), false, vec![absent("a"), absent("d")]),
            (serde_json::json!({"absent": ["c", "n"], "purge": true}), false, vec![absent("c")]),
        ] {
            assert_eq!(targets(&spec(json.clone()), &there, upgrade), expected, "{json}");
        }
    }

    #[test]
    fn drift_is_described() {
        let there = installed::parse(THERE);
        let wanted = serde_json::json!({"present": ["a=2.0", "c", "d"], "absent": ["b"], "hold": ["a", "e", "n"]});
        assert_eq!(
            drift(&spec(wanted), &there),
            ["a is 1.0 instead of 2.0", "c is not installed", "d is not configured", "b is installed", "a is not held"]
        );
        let wanted = serde_json::json!({"absent": ["c"], "purge": true});
        assert_eq!(drift(&spec(wanted), &there), ["c: its configuration files are installed"]);
    }

    #[test]
    fn undoing_leads_to_the_first_versions() {
        let there = installed::parse(THERE);
        let change = |name: &str, before: Option<&str>, after: Option<&str>| PackageChange {
            name: name.into(),
            before: before.map(Into::into),
            after: after.map(Into::into),
        };
        let changes = [
            change("a", Some("0.9"), Some("1.0")),
            change("b", None, Some("1.0")),
            change("b", Some("1.0"), Some("2.0")),
            change("e", Some("1.0"), Some("1.0")),
            change("gone", Some("3.0"), None),
            change("never", None, Some("1.0")),
        ];
        assert_eq!(
            undoing(&changes, &there),
            [
                PackageTarget::Version("a".into(), "0.9".into()),
                PackageTarget::Absent("b".into()),
                PackageTarget::Version("gone".into(), "3.0".into()),
            ]
        );
    }
}

//! What a package manager would do, and what of that is refused.

use muster_topics::diagnostic::Diagnostic;

use std::cmp::Ordering;

use muster_topics::packages::{PackageAllowance, PackagesSpec};

use super::{installed::InstalledPackages, split, version};

/// The most packages that a refusal names: it is part of a message.
const NAMED_MAX: usize = 20;

/// A change of one package.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct PackageChange {
    /// The package.
    pub name: String,
    /// Its version before; `None` if it was not there.
    pub before: Option<String>,
    /// Its version after; `None` if it is removed.
    pub after: Option<String>,
}

impl PackageChange {
    /// Whether an older version replaces it.
    #[must_use]
    pub fn is_downgrade(&self) -> bool {
        match (&self.before, &self.after) {
            (Some(before), Some(after)) => version::compare(before, after) == Ordering::Greater,
            _ => false,
        }
    }

    /// Whether it is removed.
    #[must_use]
    pub fn is_removal(&self) -> bool {
        self.after.is_none()
    }
}

impl std::fmt::Display for PackageChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, before, after } = self;
        match (before, after) {
            (None, Some(after)) => write!(f, "install {name} {after}"),
            (Some(before), Some(after)) if before == after => write!(f, "install {name} {after} again"),
            (Some(before), Some(after)) if self.is_downgrade() => write!(f, "downgrade {name} {before} to {after}"),
            (Some(before), Some(after)) => write!(f, "upgrade {name} {before} to {after}"),
            (Some(before), None) => write!(f, "remove {name} {before}"),
            (None, None) => write!(f, "purge {name}"),
        }
    }
}

/// Reads the output of `apt-get --simulate`: each line that begins with `Inst`, `Remv` or `Purg` is a change.
#[must_use]
pub fn parse_simulation(output: &str) -> Vec<PackageChange> {
    let mut changes: Vec<PackageChange> = Vec::new();
    for line in output.lines() {
        let Some((action, rest)) = line.split_once(' ') else { continue };
        let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        let before =
            rest.strip_prefix('[').and_then(|rest| rest.split_once(']')).map(|(version, _)| version.to_owned());
        let after = match action {
            "Inst" => {
                let version = rest.split_once('(').and_then(|(_, rest)| rest.split([' ', ')']).next());
                let Some(version) = version.filter(|version| !version.is_empty()) else { continue };
                Some(version.to_owned())
            }
            "Remv" | "Purg" => None,
            _ => continue,
        };
        // One that is removed and installed in the same run is replaced.
        let change = PackageChange { name: name.to_owned(), before, after };
        match changes.iter_mut().find(|known| known.name == change.name) {
            Some(known) => known.after = change.after,
            None => changes.push(change),
        }
    }
    changes
}

/// What may be done beyond what every change may.
#[derive(Clone, Copy, Debug)]
pub struct Permission<'a> {
    /// Whether packages may be replaced by older versions.
    pub downgrade: bool,
    /// Whether packages may be removed that are not named.
    pub remove_others: bool,
    /// The packages that may be removed.
    pub removable: &'a [String],
    /// The packages whose hold is the unit's own.
    pub held: &'a [String],
}

impl<'a> Permission<'a> {
    /// The permission of a spec.
    #[must_use]
    pub fn of(spec: &'a PackagesSpec) -> Self {
        let may = |what| spec.allow.contains(&what);
        Self {
            downgrade: may(PackageAllowance::Downgrade),
            remove_others: may(PackageAllowance::RemoveOthers),
            removable: &spec.absent,
            held: &spec.hold,
        }
    }

    /// Returns why changes are refused, with everything that they would do.
    ///
    /// # Errors
    /// If any is refused.
    pub fn check(&self, changes: &[PackageChange], installed: &InstalledPackages) -> Result<(), Diagnostic> {
        let is_named = |name: &str, names: &[String]| names.iter().any(|named| split(named).0 == name);
        let downgrades: Vec<_> = changes.iter().filter(|change| change.is_downgrade() && !self.downgrade).collect();
        let removals: Vec<_> = changes
            .iter()
            .filter(|change| change.is_removal() && !self.remove_others && !is_named(&change.name, self.removable))
            .collect();
        let held: Vec<_> = changes
            .iter()
            .filter(|change| installed.is_held(&change.name) && !is_named(&change.name, self.held))
            .collect();
        let mut refused = Vec::new();
        let mut refuse = |what: &[&PackageChange], why: &str, hint: &str| {
            if !what.is_empty() {
                let what = listed(what.iter().copied());
                refused.push(Diagnostic::new(format_args!("it would {what}, {why}")).with_hint(hint));
            }
        };
        refuse(&downgrades, "which is not allowed", "`allow: [downgrade]`");
        refuse(&removals, "which its spec does not name", "`allow: [remove_others]`");
        refuse(
            &held,
            "which is held outside of muster",
            "run `apt-mark unhold` on the host, or add it to `hold`, which makes the hold the unit's",
        );
        refused.dedup();
        let whole = |refused: Diagnostic| {
            let all = format!("all changes: {}", listed(changes));
            Err(refused.within("nothing was changed").and(all))
        };
        Diagnostic::all(refused).map_or(Ok(()), whole)
    }
}

/// Lists changes for people.
pub fn listed<'a>(changes: impl IntoIterator<Item = &'a PackageChange>) -> String {
    let all: Vec<String> = changes.into_iter().map(ToString::to_string).collect();
    let more = all.len().saturating_sub(NAMED_MAX);
    let named = all[..all.len() - more].join(", ");
    if more == 0 { named } else { format!("{named}, and {more} more") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packages::installed;

    /// As apt 2.6.1 has said.
    const SIMULATED: &str = "Reading package lists...\nBuilding dependency tree...\nThe following packages will be REMOVED:\n  \
        old-x*\nRemv conflicts-x [1.0] [libx:amd64 ]\nPurg old-x [0.9-1]\nInst libx [1:1.0-1] (1:2.0-1 Debian:12.5/stable [amd64]) []\n\
        Inst hello-x (2.0 localhost [all])\nInst down-x [2.0] (1.0 localhost [all])\nConf libx (1:2.0-1 Debian:12.5/stable [amd64])\n\
        Conf hello-x (2.0 localhost [all])\nInst\nInst broken-x (\n";

    fn change(name: &str, before: Option<&str>, after: Option<&str>) -> PackageChange {
        PackageChange { name: name.into(), before: before.map(Into::into), after: after.map(Into::into) }
    }

    #[test]
    fn simulation_is_read() {
        assert_eq!(
            parse_simulation(SIMULATED),
            [
                change("conflicts-x", Some("1.0"), None),
                change("old-x", Some("0.9-1"), None),
                change("libx", Some("1:1.0-1"), Some("1:2.0-1")),
                change("hello-x", None, Some("2.0")),
                change("down-x", Some("2.0"), Some("1.0")),
            ]
        );
    }

    #[test]
    fn what_is_not_allowed_is_refused_and_listed() {
        let changes = parse_simulation(SIMULATED);
        let none = installed::parse("");
        let spec = |json| serde_json::from_value::<PackagesSpec>(json).unwrap();
        let strict = spec(serde_json::json!({"present": ["hello-x"], "absent": ["old-x"]}));
        let why = Permission::of(&strict).check(&changes, &none).unwrap_err();
        for part in [
            "it would downgrade down-x 2.0 to 1.0",
            "allow: [downgrade]",
            "it would remove conflicts-x 1.0, which its spec does not name",
            "all changes: remove conflicts-x 1.0, remove old-x 0.9-1, upgrade libx 1:1.0-1 to 1:2.0-1, install hello-x 2.0",
        ] {
            assert!(format!("{why:#}").contains(part), "{part}: {why}");
        }
        assert!(!why.cause.contains("it would remove old-x"), "{why}");
        let free = spec(serde_json::json!({"present": ["hello-x"], "allow": ["downgrade", "remove_others"]}));
        Permission::of(&free).check(&changes, &none).unwrap();
        let held = installed::parse("libx\tamd64\t1:1.0-1\thi \n");
        let why = Permission::of(&free).check(&changes, &held).unwrap_err();
        assert!(
            why.cause.contains("it would upgrade libx 1:1.0-1 to 1:2.0-1, which is held outside of muster"),
            "{why}"
        );
        let own = spec(
            serde_json::json!({"present": ["hello-x"], "hold": ["libx"], "allow": ["downgrade", "remove_others"]}),
        );
        Permission::of(&own).check(&changes, &held).unwrap();
    }

    #[test]
    fn long_lists_are_cut() {
        let many: Vec<PackageChange> = (0..30).map(|index| change(&format!("p{index}"), None, Some("1"))).collect();
        assert!(listed(&many).ends_with("install p19 1, and 10 more"));
    }
}

//! What hosts can do, by what they say of themselves, and what units and commands need of them.

use std::{collections::BTreeSet, fmt};

use muster_topics::{container::Runtime, presence::Capability, unit::Spec, verb::Verb};

/// Something that a unit or a command needs, and a host does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MissingCapability(pub Capability);

impl MissingCapability {
    /// Returns the first that a host lacks of these, by what it says of itself.
    #[must_use]
    pub fn first(has: &[Capability], needs: &BTreeSet<Capability>) -> Option<Self> {
        needs.iter().find(|needed| !has.contains(needed)).copied().map(Self)
    }

    /// What would give it, for an operator.
    #[must_use]
    pub fn hint(self) -> &'static str {
        match self.0 {
            Capability::Podman => "install Podman or Docker there and start its socket, then restart the agent",
            Capability::Lxc => "install LXC there, then restart the agent",
            Capability::Packages => "units of packages need a host with dpkg and apt: Debian, or one like it",
            Capability::Container => "install Podman, Docker or LXC there, then restart the agent",
            Capability::Exec | Capability::Yuno | Capability::Files | Capability::FreshTime | Capability::Other => {
                "install an agent there whose build has it"
            }
        }
    }
}

impl fmt::Display for MissingCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Capability::Exec => "its agent runs no programs on command",
            Capability::Yuno => "its agent runs no yunos",
            Capability::Container => "it has no container runtime",
            Capability::Packages => "it has no dpkg",
            Capability::Files => "its agent manages no files",
            Capability::Podman => "it has no Podman",
            Capability::Lxc => "it has no LXC",
            Capability::FreshTime => "its agent does not set its time back",
            Capability::Other => "it lacks an unknown capability",
        })
    }
}

/// Returns what a unit needs of its host.
#[must_use]
pub fn needed_by(spec: &Spec) -> Capability {
    match spec {
        Spec::Yuno(_) => Capability::Yuno,
        Spec::Container(spec) => match spec.runtime {
            Runtime::Podman => Capability::Podman,
            Runtime::Lxc => Capability::Lxc,
        },
        Spec::Packages(_) => Capability::Packages,
        Spec::Files(_) => Capability::Files,
    }
}

/// Returns what a command needs of its hosts, as far as it says so itself: what it does to a unit that is there needs
/// nothing beyond that.
#[must_use]
pub fn needed_by_command(verb: &Verb) -> BTreeSet<Capability> {
    // A host that is asked for a plan says itself what stands in its way.
    if matches!(verb, Verb::Plan(_)) {
        return BTreeSet::new();
    }
    let exec = matches!(verb, Verb::Exec(_)).then_some(Capability::Exec);
    verb.specs().map(|(_, spec)| needed_by(spec)).chain(exec).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn apply(spec: &serde_json::Value) -> Verb {
        serde_json::from_value(json!({"unit_apply": {"unit": "a/b", "spec": spec}})).unwrap()
    }

    #[test]
    fn command_needs_what_its_units_are() {
        let container =
            |runtime: &str| json!({"kind": "container", "image": {"name": "docker.io/a/b:1"}, "runtime": runtime});
        for (verb, wanted) in [
            (apply(&container("podman")), Some(Capability::Podman)),
            (apply(&container("lxc")), Some(Capability::Lxc)),
            (apply(&json!({"kind": "packages", "present": ["curl"]})), Some(Capability::Packages)),
            (apply(&json!({"kind": "files", "files": {}})), Some(Capability::Files)),
            (
                serde_json::from_value(json!({"exec": {"argv": ["a"], "timeout_ms": 1}})).unwrap(),
                Some(Capability::Exec),
            ),
            (serde_json::from_value(json!({"unit_stop": {"unit": "a/b"}})).unwrap(), None),
        ] {
            assert_eq!(needed_by_command(&verb), wanted.into_iter().collect(), "{verb:?}");
        }
    }

    #[test]
    fn first_that_is_missing_is_named_with_what_would_give_it() {
        let needs = BTreeSet::from([Capability::Yuno, Capability::Podman, Capability::Packages]);
        let all = [Capability::Packages, Capability::Podman, Capability::Yuno];
        assert_eq!(MissingCapability::first(&all, &needs), None);
        let missing = MissingCapability::first(&all[..1], &BTreeSet::from([Capability::Podman])).unwrap();
        assert_eq!(missing.to_string(), "it has no Podman");
        assert!(missing.hint().contains("restart the agent"));
        assert_eq!(MissingCapability::first(&[], &needs), Some(MissingCapability(Capability::Yuno)));
        assert_eq!(MissingCapability::first(&[], &BTreeSet::new()), None);
        assert!(MissingCapability(Capability::FreshTime).hint().contains("install an agent"));
    }
}

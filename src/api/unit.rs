//! What there is of a unit beside what is wanted of it, in the words that the command line and the pages share.

use muster_topics::{
    select,
    unit::{Content, Hold, HoldReason, Phase},
};

use super::Unit;

impl Unit {
    /// The properties that selectors use.
    #[must_use]
    pub fn selectable(&self) -> select::Unit<'_> {
        select::Unit {
            host: self.host,
            hostname: &self.hostname,
            name: &self.unit,
            spec: &self.desired.spec,
            phase: self.observed.phase(),
            content: self.observed.content.as_ref(),
        }
    }

    /// What runs or is installed; `None` if nothing is, or if the host has not reported the contents of an earlier
    /// revision.
    #[must_use]
    pub fn content(&self) -> Option<Content> {
        self.observed.content.clone().or_else(|| {
            let is_wanted = self.observed.revision.as_ref() == Some(&self.desired.revision);
            is_wanted.then(|| self.wanted())
        })
    }

    /// The desired contents.
    #[must_use]
    pub fn wanted(&self) -> Content {
        Content::of(&self.desired.spec)
    }

    /// Whether what runs or is installed is another revision than the desired one.
    #[must_use]
    pub fn is_other(&self) -> bool {
        self.observed.revision.as_ref().is_some_and(|revision| *revision != self.desired.revision)
    }

    /// The version that runs or is installed, and the desired one if it differs: for a list.
    #[must_use]
    pub fn version(&self) -> String {
        let wanted = self.wanted();
        let wanted_version = wanted.version();
        match (self.content(), &self.observed.revision) {
            (Some(there), _) if there.artifact == wanted.artifact => wanted_version.to_owned(),
            (Some(there), _) if there.version() == wanted_version => {
                format!("{}, wanted {}", there.artifact, wanted.artifact)
            }
            (Some(there), _) => format!("{}, wanted {wanted_version}", there.version()),
            (None, Some(_)) => format!("unknown, wanted {wanted_version}"),
            (None, None) => format!("none, wanted {wanted_version}"),
        }
    }

    /// The hold of a retired unit: stopped and held, which is required before it can be removed. This is not a problem,
    /// whatever its last exit was.
    #[must_use]
    pub fn retired(&self) -> Option<&Hold> {
        let is_over = matches!(self.observed.phase(), Phase::Absent | Phase::Stopped | Phase::Failed | Phase::Backoff);
        let is_held = |hold: &&Hold| hold.reason == HoldReason::Operator;
        self.hold.as_ref().filter(is_held).filter(|_| is_over && !self.desired.run.is_running())
    }

    /// How the actual contents differ from the desired ones; `None` if they do not.
    #[must_use]
    pub fn deviation(&self) -> Option<String> {
        let revision = self.observed.revision.as_ref().filter(|_| self.is_other())?;
        let wanted = self.wanted();
        let runs = match self.observed.phase() {
            Phase::Starting | Phase::Running | Phase::Playing | Phase::Stopping => "runs",
            _ => "has",
        };
        let revisions = format!("revision {}, wanted {}", revision.short(), self.desired.revision.short());
        let Some(there) = self.content() else { return Some(format!("{runs} {revisions}")) };
        let mut words = Vec::new();
        if there.artifact != wanted.artifact {
            words.push(format!("{runs} {}, wanted {}", there.artifact, wanted.artifact));
        }
        if there.configs != wanted.configs {
            let list = |configs: &[String]| match configs {
                [] => "none".to_owned(),
                configs => configs.join(", "),
            };
            words.push(format!("configs {}, wanted {}", list(&there.configs), list(&wanted.configs)));
        }
        if words.is_empty() {
            words.push(format!("{runs} {revisions}, of the same artifact and configs"));
        }
        Some(words.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use muster_topics::{
        name::{Digest, HostId},
        snapshot::Pins,
        unit::{ArtifactRef, Desired, Observed, ObservedState, Run, Spec, YunoSpec},
    };

    use super::*;

    /// A unit with desired version 1.2.0 that is not installed.
    fn absent() -> Unit {
        let spec = Spec::Yuno(YunoSpec::new(ArtifactRef {
            sha256: Digest::of(b"web"),
            size_bytes: 1,
            role: "web".parse().unwrap(),
            version: "1.2.0".parse().unwrap(),
            manifest: None,
        }));
        Unit {
            host: HostId(uuid::Uuid::nil()),
            hostname: "anna".to_owned(),
            unit: "default/web".parse().unwrap(),
            desired: Desired {
                generation: 1,
                revision: Digest::of(b"r"),
                spec: spec.into(),
                run: Run::Running,
                frozen: false,
            },
            observed: Observed::absent(0),
            hold: None,
            owner: None,
            pins: Pins::default(),
            stats: None,
            at_ms: 0,
        }
    }

    fn runs(content: Option<Content>, revision: &[u8]) -> Unit {
        let mut unit = absent();
        unit.observed.state = Phase::Running.into();
        unit.observed.revision = Some(Digest::of(revision));
        unit.observed.content = content;
        unit
    }

    fn content(artifact: &str, configs: &[&str]) -> Option<Content> {
        Some(Content {
            artifact: artifact.to_owned(),
            configs: configs.iter().map(|config| (*config).to_owned()).collect(),
        })
    }

    #[test]
    fn stopped_and_held_unit_is_retired_however_it_ended() {
        let hold = |reason| Some(Hold { reason, since_ms: 0, by: None, note: None });
        let check = |run, phase: Phase, reason: Option<HoldReason>, wanted| {
            let mut unit = absent();
            (unit.desired.run, unit.observed.state, unit.hold) = (run, phase.into(), reason.and_then(hold));
            unit.observed.error = Some("exit code 3".into());
            assert_eq!(unit.retired().is_some(), wanted, "{run:?} {phase:?} {reason:?}");
        };
        use HoldReason::{Broken, Operator};
        check(Run::Stopped, Phase::Stopped, Some(Operator), true);
        check(Run::Stopped, Phase::Failed, Some(Operator), true);
        check(Run::Stopped, Phase::Stopping, Some(Operator), false);
        check(Run::Running, Phase::Stopped, Some(Operator), false);
        check(Run::Stopped, Phase::Failed, Some(Broken), false);
        check(Run::Stopped, Phase::Failed, None, false);
    }

    #[test]
    fn other_revision_is_shown_beside_the_wanted_one() {
        for (unit, version, deviation) in [
            (runs(content("web@1.2.0", &[]), b"r"), "1.2.0", None),
            (runs(None, b"r"), "1.2.0", None),
            (runs(content("web@1.1.0", &[]), b"old"), "1.1.0, wanted 1.2.0", Some("runs web@1.1.0, wanted web@1.2.0")),
            (
                runs(content("web@1.1.0", &["a@1", "b@2"]), b"old"),
                "1.1.0, wanted 1.2.0",
                Some("runs web@1.1.0, wanted web@1.2.0; configs a@1, b@2, wanted none"),
            ),
            (
                runs(content("till@1.2.0", &[]), b"old"),
                "till@1.2.0, wanted web@1.2.0",
                Some("runs till@1.2.0, wanted web@1.2.0"),
            ),
            (runs(content("web@1.2.0", &[]), b"old"), "1.2.0", Some("of the same artifact and configs")),
            (runs(None, b"old"), "unknown, wanted 1.2.0", Some("runs revision ")),
            (absent(), "none, wanted 1.2.0", None),
        ] {
            assert_eq!(unit.version(), version);
            let found = unit.deviation();
            assert_eq!(found.is_some(), deviation.is_some(), "{found:?}");
            assert!(found.unwrap_or_default().contains(deviation.unwrap_or_default()));
        }
        let mut stopped = runs(content("web@1.1.0", &[]), b"old");
        (stopped.observed.state, stopped.desired.run) = (ObservedState::Stopped, Run::Stopped);
        assert_eq!(stopped.deviation().unwrap(), "has web@1.1.0, wanted web@1.2.0");
    }
}

//! Units of one version of a deployment: they are verified together, and go back together.
//!
//! A unit that goes back makes the others go back that the version has changed; in reverse order, because what depends on another
//! ends before that is started as it was. A revision counts as verified once those of the other units are up for long enough,
//! too: until then each can go back.

use std::collections::BTreeMap;

use muster_topics::{Millis, desired::DeploymentName, diagnostic::Diagnostic, name::UnitName};

/// A unit of a version of a deployment.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// The unit.
    pub unit: &'a UnitName,
    /// The deployment, and the version.
    pub version: (&'a DeploymentName, u32),
    /// Whether it is rolled back with the others, and holds them up.
    pub is_bound: bool,
    /// When and why it has failed, in its desired revision.
    pub failed: Option<(Millis, &'a Diagnostic)>,
    /// Whether it can go back from its desired revision, and since when that is on trial, if it was started.
    pub trial: Option<Option<Millis>>,
    /// Whether it has gone back from its desired revision.
    pub has_gone_back: bool,
    /// Whether it had no verified revision before this version, so that it can only stay.
    pub is_new: bool,
    /// Whether it is on its way to its desired revision, and has not been up in that for long enough.
    pub is_coming: bool,
}

/// What follows for a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberStep {
    /// It goes back, for this reason.
    pub back: Option<Diagnostic>,
    /// Its revision is not verified before others are up.
    pub waits: bool,
    /// It is new in a version that has gone back, and stays, as this says.
    pub stays: Option<Diagnostic>,
}

/// Returns what follows for the units of versions. A failure counts for units whose trial had begun by then; for those that had
/// not begun, if it `is_new`.
#[must_use]
pub fn steps<'a>(members: &[Member<'a>], is_new: impl Fn(&UnitName) -> bool) -> BTreeMap<&'a UnitName, MemberStep> {
    let others = |one: &Member<'a>| {
        let (unit, version) = (one.unit, one.version);
        members.iter().filter(move |other| other.is_bound && other.version == version && other.unit != unit)
    };
    let stays = |one: &Member<'a>| {
        let is_left = one.is_bound && one.is_new && others(one).any(|other| other.has_gone_back);
        let (deployment, version) = one.version;
        is_left.then(|| {
            Diagnostic::new(format_args!(
                "it is new in version {version} of {deployment}, which was rolled back here, so it stays"
            ))
            .with_hint("apply a version that repairs or removes it")
        })
    };
    let step = |one: &Member<'a>| {
        let stays = stays(one);
        let Some(since_ms) = one.trial.filter(|_| one.is_bound) else {
            return MemberStep { stays, ..MemberStep::default() };
        };
        let counts = |other: &Member<'_>| {
            let (at_ms, why) = other.failed?;
            let is_later = since_ms.map_or(is_new(other.unit), |since_ms| at_ms >= since_ms);
            is_later
                .then(|| why.clone().within(format_args!("it belongs together with {}, which has failed", other.unit)))
        };
        let waits = others(one).any(|other| other.failed.is_none() && other.is_coming);
        MemberStep { back: others(one).find_map(counts), waits, stays }
    };
    members.iter().map(|one| (one.unit, step(one))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug)]
    struct One {
        unit: &'static str,
        version: u32,
        is_bound: bool,
        failed: Option<Millis>,
        trial: Option<Option<Millis>>,
        has_gone_back: bool,
        is_new: bool,
        is_coming: bool,
    }

    const TRIES: One = One {
        unit: "d/a",
        version: 1,
        is_bound: true,
        failed: None,
        trial: Some(Some(10)),
        has_gone_back: false,
        is_new: false,
        is_coming: false,
    };

    /// Returns whether the first of these goes back, and whether it waits.
    fn first(all: &[One], new: &[&str]) -> (bool, bool) {
        let step = first_step(all, new);
        if let Some(why) = &step.back {
            assert_eq!(why.cause, "it belongs together with d/b, which has failed: exit code 1");
        }
        (step.back.is_some(), step.waits)
    }

    fn first_step(all: &[One], new: &[&str]) -> MemberStep {
        let names: Vec<UnitName> = all.iter().map(|one| one.unit.parse().unwrap()).collect();
        let deployment = "d/x".parse().unwrap();
        let end = Diagnostic::new("exit code 1");
        let members: Vec<Member<'_>> = all
            .iter()
            .zip(&names)
            .map(|(one, unit)| Member {
                unit,
                version: (&deployment, one.version),
                is_bound: one.is_bound,
                failed: one.failed.map(|at_ms| (at_ms, &end)),
                trial: one.trial,
                has_gone_back: one.has_gone_back,
                is_new: one.is_new,
                is_coming: one.is_coming,
            })
            .collect();
        steps(&members, |unit| new.contains(&unit.as_str()))[&names[0]].clone()
    }

    #[test]
    fn unit_goes_back_with_another_that_has_failed() {
        let fails = One { unit: "d/b", failed: Some(12), trial: None, ..TRIES };
        assert_eq!(first(&[TRIES, fails], &[]), (true, false));
        assert_eq!(first(&[TRIES, One { version: 2, ..fails }], &[]), (false, false));
        assert_eq!(first(&[TRIES, One { is_bound: false, ..fails }], &[]), (false, false));
        assert_eq!(first(&[One { is_bound: false, ..TRIES }, fails], &[]), (false, false));
        // It was verified before, or has nothing to go back to.
        assert_eq!(first(&[One { trial: None, ..TRIES }, fails], &[]), (false, false));
        // That was before its own change.
        assert_eq!(first(&[TRIES, One { failed: Some(9), ..fails }], &[]), (false, false));
        // It has not begun.
        let waits = One { trial: Some(None), ..TRIES };
        assert_eq!(first(&[waits, fails], &["d/b"]), (true, false));
        assert_eq!(first(&[waits, fails], &[]), (false, false));
    }

    #[test]
    fn revision_is_verified_once_the_others_are_up() {
        let comes = One { unit: "d/b", is_coming: true, ..TRIES };
        assert_eq!(first(&[TRIES, comes], &[]), (false, true));
        assert_eq!(first(&[TRIES, One { is_coming: false, ..comes }], &[]), (false, false));
        assert_eq!(first(&[TRIES, One { is_bound: false, ..comes }], &[]), (false, false));
        assert_eq!(first(&[TRIES, One { version: 2, ..comes }], &[]), (false, false));
    }

    #[test]
    fn new_unit_says_that_it_stays_when_its_version_goes_back() {
        let new = One { trial: None, is_new: true, ..TRIES };
        let back = One { unit: "d/b", has_gone_back: true, failed: Some(12), trial: None, ..TRIES };
        let why = first_step(&[new, back], &[]).stays.unwrap();
        assert_eq!(why.cause, "it is new in version 1 of d/x, which was rolled back here, so it stays");
        assert!(why.hint.is_some(), "{why}");
        for (one, other) in [
            (new, One { has_gone_back: false, ..back }),
            (new, One { version: 2, ..back }),
            (new, One { is_bound: false, ..back }),
            (One { is_bound: false, ..new }, back),
            (One { is_new: false, ..new }, back),
        ] {
            assert_eq!(first_step(&[one, other], &[]).stays, None, "{one:?} {other:?}");
        }
    }
}

//! How a version of a deployment ends on a host that has begun with it.
//!
//! **Invariant: each change ends**: when all its units have come to rest, or when its time is over.

use std::collections::BTreeMap;

use muster_topics::{
    Millis,
    admission::ChangeOutcome,
    desired::DeploymentName,
    diagnostic::Diagnostic,
    name::UnitName,
    unit::{Observed, Phase, Spec},
};

use super::body::shortened;
use crate::deployment_state::{DeploymentState, HostUnit, unit_state};

/// What a change may take beside the times that its units' specs name: ten minutes, for a slow disk, an image that is
/// unpacked, or a broken download.
const SLACK_MS: Millis = 10 * 60_000;

/// The longest time of a change, whatever its units' specs name.
const CHANGE_MAX_MS: Millis = 24 * 3_600_000;

/// Returns how long a change may take until it counts as failed: twice the times that the specs of its units name for
/// stopping, starting and being verified, because a unit may be rolled back, and ten minutes; a day at the most.
#[must_use]
pub fn limit_ms<'a>(specs: impl Iterator<Item = &'a Spec>) -> Millis {
    let of = |spec: &Spec| match spec.program() {
        Some(program) => program.grace_ms.saturating_add(spec.healthy_within()),
        // It has the ten minutes.
        None => spec.verify_after_ms(),
    };
    let once_ms = specs.map(of).fold(0, u64::saturating_add);
    let twice_ms = Millis::try_from(once_ms.saturating_mul(2)).unwrap_or(Millis::MAX);
    SLACK_MS.saturating_add(twice_ms).min(CHANGE_MAX_MS)
}

/// How far a version is that a host has begun with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeProgress {
    /// It is under way.
    UnderWay {
        /// When a unit will have been up for long enough, by the wall clock, if nothing happens to it before.
        next_ms: Option<Millis>,
    },
    /// It has ended: how, and why.
    Ended(ChangeOutcome, Option<Diagnostic>),
}

/// The units of a version, each with whether the version has changed it.
pub type ChangedUnits = BTreeMap<UnitName, bool>;

/// Returns how far a version is whose units are `changed`. `find` returns what is known of a unit; `None` if it is not there,
/// or what is known is of before the change. `is_late` is whether its time is over.
///
/// A unit that was changed is verified once it has been up for as long as its spec says, also a new one, which has no
/// revision to go back to.
#[must_use]
pub fn progress<'a>(
    deployment: &DeploymentName,
    changed: &ChangedUnits,
    find: impl Fn(&UnitName) -> Option<HostUnit<'a>>,
    is_late: bool,
    now_ms: Millis,
) -> ChangeProgress {
    let mut failed = None;
    let mut waits = None;
    let mut next_ms: Option<Millis> = None;
    let mut is_back = true;
    for (name, is_changed) in changed {
        let unit = find(name).filter(|unit| unit.owner.is_some_and(|owner| owner.deployment == *deployment));
        let Some(unit) = unit else {
            waits = waits.or_else(|| Some(format!("{name} does not exist, or does not belong to it").into()));
            continue;
        };
        let has_gone_back = unit.observed.rolled_back().is_some();
        match unit_state(&unit) {
            (DeploymentState::Verified, _) => {
                let up_ms = verified_ms(&unit, now_ms).filter(|up_ms| *is_changed && *up_ms > now_ms);
                if let Some(up_ms) = up_ms {
                    next_ms = Some(next_ms.map_or(up_ms, |next_ms| next_ms.min(up_ms)));
                    waits = waits.or_else(|| Some(format!("{name} has not been up for long enough").into()));
                }
            }
            (DeploymentState::Failed, why) if has_gone_back && !rests(unit.observed) => waits = waits.or(why),
            (DeploymentState::Failed, why) => {
                failed = failed.or(why).or_else(|| Some(format!("{name} has failed").into()));
            }
            (_, why) => waits = waits.or(why).or_else(|| Some(format!("{name} is not verified").into())),
        }
        is_back &= has_gone_back || !is_changed;
    }
    let (outcome, why) = match (failed, waits) {
        (failed, Some(why)) if is_late => {
            (ChangeOutcome::Failed, failed.unwrap_or_else(|| why.within("it took too long")))
        }
        (_, Some(_)) => return ChangeProgress::UnderWay { next_ms },
        (Some(why), None) if is_back => (ChangeOutcome::RolledBack, why),
        (Some(why), None) => (ChangeOutcome::Failed, why),
        (None, None) => return ChangeProgress::Ended(ChangeOutcome::Verified, None),
    };
    ChangeProgress::Ended(outcome, Some(shortened(why)))
}

/// When a unit that runs has been up for as long as its spec wants. If the clock was set back since it came up, its time
/// begins now.
fn verified_ms(unit: &HostUnit<'_>, now_ms: Millis) -> Option<Millis> {
    let after_ms = Millis::try_from(unit.desired.spec.verify_after_ms()).unwrap_or(Millis::MAX);
    let is_up = matches!(unit.observed.phase(), Phase::Running | Phase::Playing);
    is_up.then(|| unit.observed.since_ms.min(now_ms).saturating_add(after_ms))
}

/// Whether a unit that was rolled back is up in the revision that it has gone back to, or has failed in that, too.
fn rests(observed: &Observed) -> bool {
    match observed.phase() {
        Phase::Running | Phase::Playing => observed.instance().unready.is_none() && observed.beside.is_none(),
        Phase::Stopped | Phase::Failed => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use muster_topics::{
        desired::UnitOwner,
        name::Digest,
        unit::{ArtifactRef, Desired, Hold, HoldReason, RolledBack, Run, TrialReport, YunoSpec},
    };

    use super::*;

    fn spec() -> YunoSpec {
        YunoSpec::new(ArtifactRef {
            sha256: Digest::of(b"a"),
            size_bytes: 1,
            role: "a".parse().unwrap(),
            version: "1".parse().unwrap(),
            manifest: None,
        })
    }

    /// Long after the units of the tests came up.
    const NOW_MS: Millis = 1_000_000;

    /// A unit that runs as it should.
    struct Unit {
        desired: Desired,
        observed: Observed,
        hold: Option<Hold>,
        owner: Option<UnitOwner>,
    }

    impl Unit {
        fn new() -> Self {
            let spec = Spec::Yuno(spec());
            let revision = Digest::of(b"new");
            let observed = Observed {
                state: Phase::Running.into(),
                generation: 2,
                revision: Some(revision.clone()),
                ..Observed::absent(0)
            };
            let owner = UnitOwner { deployment: "d/x".parse().unwrap(), version: 2, orphan: false };
            let desired = Desired { generation: 2, revision, spec: spec.into(), run: Run::Running, frozen: false };
            Self { desired, observed, hold: None, owner: Some(owner) }
        }

        fn with(change: impl FnOnce(&mut Self)) -> Self {
            let mut unit = Self::new();
            change(&mut unit);
            unit
        }

        fn on_trial() -> Self {
            Self::with(|unit| unit.observed.trial = TrialReport::OnTrial { verified: Digest::of(b"old") })
        }

        fn back() -> Self {
            Self::with(|unit| {
                let (revision, to) = (Digest::of(b"new"), Digest::of(b"old"));
                let error = "it does not come up".into();
                let back = RolledBack { generation: 2, revision, to, error, at_ms: 0, last_lines: None };
                unit.observed.trial = TrialReport::RolledBack(back);
                unit.observed.revision = Some(Digest::of(b"old"));
            })
        }
    }

    fn check(units: &[(Option<Unit>, bool)], is_late: bool) -> Option<(ChangeOutcome, bool)> {
        let names: Vec<UnitName> = (0..units.len()).map(|n| format!("d/u{n}").parse().unwrap()).collect();
        let changed = names.iter().cloned().zip(units.iter().map(|(_, is_changed)| *is_changed)).collect();
        let find = |name: &UnitName| {
            let at = names.iter().position(|other| other == name).unwrap();
            units[at].0.as_ref().map(|unit| HostUnit {
                unit: &names[at],
                desired: &unit.desired,
                observed: &unit.observed,
                hold: unit.hold.as_ref(),
                owner: unit.owner.as_ref(),
            })
        };
        match progress(&"d/x".parse().unwrap(), &changed, find, is_late, NOW_MS) {
            ChangeProgress::Ended(outcome, why) => Some((outcome, why.is_some())),
            ChangeProgress::UnderWay { .. } => None,
        }
    }

    #[test]
    fn changed_unit_has_to_stay_up_as_long_as_its_spec_says() {
        let after_ms = Millis::try_from(Spec::Yuno(spec()).verify_after_ms()).unwrap();
        let up_since = |since_ms| Unit::with(|unit| unit.observed.since_ms = since_ms);
        let name: UnitName = "d/u0".parse().unwrap();
        let progress = |unit: &Unit, is_changed| {
            let changed = [(name.clone(), is_changed)].into();
            let find = |_: &UnitName| {
                let owner = unit.owner.as_ref();
                Some(HostUnit { unit: &name, desired: &unit.desired, observed: &unit.observed, hold: None, owner })
            };
            progress(&"d/x".parse().unwrap(), &changed, find, false, NOW_MS)
        };
        let verified = ChangeProgress::Ended(ChangeOutcome::Verified, None);
        assert_eq!(progress(&up_since(NOW_MS - after_ms), true), verified);
        let just = up_since(NOW_MS - after_ms + 1);
        assert_eq!(progress(&just, true), ChangeProgress::UnderWay { next_ms: Some(NOW_MS + 1) });
        assert_eq!(progress(&just, false), verified, "it was up before");
        let ahead = up_since(NOW_MS + 3_600_000);
        assert_eq!(progress(&ahead, true), ChangeProgress::UnderWay { next_ms: Some(NOW_MS + after_ms) });
    }

    #[test]
    fn change_is_verified_when_all_its_units_are() {
        assert_eq!(check(&[], false), Some((ChangeOutcome::Verified, false)));
        assert_eq!(
            check(&[(Some(Unit::new()), true), (Some(Unit::new()), false)], false),
            Some((ChangeOutcome::Verified, false))
        );
        let waits: [fn() -> Option<Unit>; 5] = [
            || None,
            || Some(Unit::on_trial()),
            || Some(Unit::with(|unit| unit.observed.generation = 1)),
            || Some(Unit::with(|unit| unit.owner = None)),
            || Some(Unit::with(|unit| unit.hold = Some(Hold::new(HoldReason::Operator, 0)))),
        ];
        for waits in waits {
            assert_eq!(check(&[(Some(Unit::new()), true), (waits(), true)], false), None);
            assert_eq!(check(&[(Some(Unit::new()), true), (waits(), true)], true), Some((ChangeOutcome::Failed, true)));
        }
    }

    #[test]
    fn change_is_rolled_back_only_if_all_that_it_has_changed_is() {
        let back = || (Some(Unit::back()), true);
        assert_eq!(check(&[back()], false), Some((ChangeOutcome::RolledBack, true)));
        assert_eq!(check(&[back(), (Some(Unit::new()), false)], false), Some((ChangeOutcome::RolledBack, true)));
        assert_eq!(check(&[back(), (Some(Unit::new()), true)], false), Some((ChangeOutcome::Failed, true)));
        let broken = || Some(Unit::with(|unit| unit.hold = Some(Hold::new(HoldReason::Broken, 0))));
        assert_eq!(check(&[back(), (broken(), true)], false), Some((ChangeOutcome::Failed, true)));
        // Not before it is up in what it has gone back to, nor before the others are at rest.
        let mut starting = Unit::back();
        starting.observed.state = Phase::Starting.into();
        assert_eq!(check(&[(Some(starting), true)], false), None);
        let trial = || Some(Unit::on_trial());
        assert_eq!(check(&[back(), (trial(), true)], false), None);
        assert_eq!(check(&[back(), (trial(), true)], true), Some((ChangeOutcome::Failed, true)));
    }

    #[test]
    fn limit_is_that_of_the_specs_and_bounded() {
        let of = |specs: &[Spec]| limit_ms(specs.iter());
        assert_eq!(of(&[]), SLACK_MS);
        let usual = Spec::Yuno(spec());
        assert!(of(std::slice::from_ref(&usual)) > SLACK_MS && of(&[usual.clone(), usual.clone()]) > of(&[usual]));
        let mut endless = spec();
        endless.program.healthy_within_ms = Some(u64::MAX);
        assert_eq!(of(&[Spec::Yuno(endless)]), CHANGE_MAX_MS);
    }
}

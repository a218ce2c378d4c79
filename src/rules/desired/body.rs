//! Returns what the body of a document changes on a host.

use std::collections::{BTreeMap, BTreeSet};

use muster_fault::planted;
use muster_topics::{
    command::UnitWish,
    desired::{DeploymentName, DeploymentUnit, DesiredDeployment, UnitRemoval},
    diagnostic::Diagnostic,
    name::{Name, UnitName},
    outcome::RefusalCode,
    unit::{Run, Spec},
};

use super::host_body::HostBody;
use crate::{
    CommandRefusal,
    authorise::{LocalPolicy, forbids_units},
};

/// The longest reason that a host reports.
const REASON_MAX_BYTES: usize = 512;

/// Returns a reason for a report: the beginning of a text, parts of which may come from outside.
#[must_use]
pub fn shortened(reason: impl Into<Diagnostic>) -> Diagnostic {
    reason.into().map(|mut text| {
        if text.len() > REASON_MAX_BYTES {
            text.truncate(text.floor_char_boundary(REASON_MAX_BYTES));
            text.push('…');
        }
        text
    })
}

/// A unit that a host has.
#[derive(Clone, Debug, PartialEq)]
pub struct PresentUnit {
    /// The deployment that it belongs to, if any.
    pub deployment: Option<DeploymentName>,
    /// Whether it should run.
    pub run: Run,
    /// Whether it is an orphan.
    pub is_orphan: bool,
    /// Whether it is to go already.
    pub is_leaving: bool,
}

/// The units that a host has.
pub type PresentUnits = BTreeMap<UnitName, PresentUnit>;

/// What a document changes on a host.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredPlan<'a> {
    /// Its deployments, each with the units to apply together, or the reason why none of them is.
    pub deployments: Vec<(&'a DesiredDeployment, Result<Vec<UnitWish>, DeploymentObstacle>)>,
    /// Units that are there, and are to go.
    pub removals: Vec<UnitRemoval>,
    /// Units of deployments that the document neither lists nor removes.
    pub orphans: BTreeSet<UnitName>,
}

/// Why a deployment is not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeploymentObstacle {
    /// The reason.
    pub refusal: CommandRefusal,
    /// Whether it may pass without another document.
    pub may_pass: bool,
}

impl From<CommandRefusal> for DeploymentObstacle {
    fn from(refusal: CommandRefusal) -> Self {
        let may_pass = matches!(refusal.code, RefusalCode::Conflict | RefusalCode::Busy);
        Self { refusal, may_pass }
    }
}

/// The deployments of a body with a version that the host has not begun with, because it asks first.
pub type HeldBack = BTreeSet<DeploymentName>;

/// What may be on a host.
#[derive(Clone, Copy, Debug)]
pub struct HostRules<'a> {
    /// The host's local policy.
    pub policy: &'a LocalPolicy,
    /// The realms that the host has, with those of the document.
    pub realms: &'a BTreeSet<Name>,
    /// The user that the agent runs as.
    pub user: &'a str,
}

/// Returns what a document changes on a host that has these units. What belongs to a deployment that is held back stays
/// exactly as it is; its units are those that it would have.
#[must_use]
pub fn plan<'a>(
    host: &'a HostBody,
    present: &PresentUnits,
    held_back: &HeldBack,
    rules: HostRules<'_>,
) -> DesiredPlan<'a> {
    let (body, held_back) = (&host.body, &host.unchanged(held_back));
    let wishes = |deployment| wishes(deployment, present, held_back, rules);
    let deployments = body.deployments.iter().map(|deployment| (deployment, wishes(deployment)));
    let listed: BTreeSet<UnitName> = body.deployments.iter().flat_map(units).map(|(unit, _)| unit).collect();
    let owner = |unit: &UnitName| present.get(unit).and_then(|present| present.deployment.as_ref());
    let is_held_back = |unit: &UnitName| owner(unit).is_some_and(|owner| held_back.contains(owner));
    let goes = |removal: &&UnitRemoval| {
        let is_leaving = present.get(&removal.unit).is_some_and(|present| present.is_leaving);
        let may_go = is_leaving || !is_held_back(&removal.unit);
        !listed.contains(&removal.unit) && owner(&removal.unit) == Some(&removal.deployment) && may_go
    };
    let mut removals: Vec<UnitRemoval> = body.remove.iter().filter(goes).cloned().collect();
    if planted!(RemoveByAbsence) {
        let absent = present.iter().filter(|(unit, _)| !listed.contains(unit));
        removals.extend(absent.filter_map(|(unit, there)| {
            let deployment = there.deployment.clone()?;
            Some(UnitRemoval { unit: unit.clone(), deployment, version: 0, purge: false, at_once: false })
        }));
    }
    let goes_on = |unit: &UnitName| !listed.contains(unit) && removals.iter().all(|removal| removal.unit != *unit);
    let is_orphan = |unit: &UnitName, there: &PresentUnit| match is_held_back(unit) {
        true => there.is_orphan,
        false => owner(unit).is_some() && goes_on(unit),
    };
    let orphans = present.iter().filter(|(unit, there)| is_orphan(unit, there)).map(|(unit, _)| unit.clone()).collect();
    DesiredPlan { deployments: deployments.collect(), removals, orphans }
}

/// Returns the units of a deployment as the host should have them.
fn wishes(
    deployment: &DesiredDeployment,
    present: &PresentUnits,
    held_back: &HeldBack,
    rules: HostRules<'_>,
) -> Result<Vec<UnitWish>, DeploymentObstacle> {
    let is_foreign = |unit: &UnitName| {
        let is_local = present.get(unit).is_some_and(|present| present.deployment.is_none());
        is_local && !deployment.adopt.contains(unit)
    };
    if let Some((unit, _)) = units(deployment).find(|(unit, _)| is_foreign(unit)) {
        let message = Diagnostic::new(format_args!("{unit} exists on this host and does not belong to a deployment"))
            .with_hint("`adopt` takes it over; otherwise remove it, or choose another name");
        return Err(CommandRefusal::new(RefusalCode::Conflict, message).into());
    }
    let name = &deployment.version.deployment;
    let keeper = |unit: &UnitName| {
        let owner = present.get(unit).and_then(|present| present.deployment.as_ref());
        owner.filter(|owner| *owner != name && held_back.contains(*owner))
    };
    if let Some((unit, keeper)) = units(deployment).find_map(|(unit, _)| keeper(&unit).cloned().map(|of| (unit, of))) {
        let message = format!("{unit} belongs to the deployment {keeper}, which releases it once it may change");
        return Err(CommandRefusal::new(RefusalCode::Conflict, message).into());
    }
    let listed: Vec<(UnitName, &DeploymentUnit)> = units(deployment).collect();
    let specs = listed.iter().map(|(unit, listed)| (unit, &*listed.spec));
    if let Some(refusal) = forbids_units(rules.policy, specs, |realm| rules.realms.contains(realm), rules.user) {
        return Err(refusal.into());
    }
    Ok(listed.into_iter().map(|(unit, listed)| wish(unit, listed, deployment, present)).collect())
}

/// The units that this host takes from a deployment.
fn units(deployment: &DesiredDeployment) -> impl Iterator<Item = (UnitName, &DeploymentUnit)> {
    deployment.units().filter(|(unit, _)| !deployment.detached.contains(unit))
}

fn wish(unit: UnitName, listed: &DeploymentUnit, deployment: &DesiredDeployment, present: &PresentUnits) -> UnitWish {
    let mut spec: Box<Spec> = listed.spec.clone();
    if let Some(secrets) = deployment.secrets.get(&listed.unit) {
        spec.common_mut().secrets.clone_from(secrets);
    }
    // To ask for what is so already would be another try of a unit that has failed.
    let is_so = present.get(&unit).is_some_and(|present| present.run == listed.run);
    UnitWish { unit, spec, run: (!is_so).then_some(listed.run), new: false }
}

#[cfg(test)]
mod tests {
    use muster_topics::name::Digest;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::desired::host_body::read;

    fn unit(name: &str) -> UnitName {
        name.parse().unwrap()
    }

    fn listed(name: &str) -> Value {
        let artifact = json!({"sha256": Digest::of(b"a"), "size_bytes": 1, "role": "a", "version": "1"});
        json!({"unit": name, "spec": {"kind": "yuno", "artifact": artifact}, "run": "running"})
    }

    fn deployment(name: &str, units: &[&str]) -> Value {
        let units: Vec<Value> = units.iter().map(|unit| listed(unit)).collect();
        json!({"version": {
            "deployment": name, "number": 1, "target": {"select": "label.a=b"}, "units": units
        }, "asked_by": {"operator": "admin", "role": "admin"}})
    }

    fn body(deployments: &[Value], remove: &[(&str, &str)]) -> Value {
        let remove: Vec<Value> =
            remove.iter().map(|(unit, of)| json!({"unit": unit, "deployment": of, "version": 1})).collect();
        json!({"v": 1, "deployments": deployments, "remove": remove})
    }

    fn of(value: &Value) -> HostBody {
        read(&serde_json::to_vec(value).unwrap()).unwrap()
    }

    fn present(units: &[(&str, Option<&str>)]) -> PresentUnits {
        let present = |of: &Option<&str>| PresentUnit {
            deployment: of.map(|of| of.parse().unwrap()),
            run: Run::Running,
            is_orphan: false,
            is_leaving: false,
        };
        units.iter().map(|(name, of)| (unit(name), present(of))).collect()
    }

    fn plan<'a>(body: &'a HostBody, present: &PresentUnits, rules: HostRules<'_>) -> DesiredPlan<'a> {
        super::plan(body, present, &HeldBack::new(), rules)
    }

    fn rules(then: impl FnOnce(HostRules<'_>)) {
        let (policy, realms) = (LocalPolicy::default(), ["d".parse().unwrap()].into());
        then(HostRules { policy: &policy, realms: &realms, user: "root" });
    }

    #[test]
    fn detached_unit_is_left_alone() {
        rules(|rules| {
            let mut detaching = deployment("d/x", &["d/a", "d/b"]);
            detaching["detached"] = json!(["d/a"]);
            let body = of(&body(&[detaching], &[]));
            for owner in [None, Some("d/x")] {
                let plan = plan(&body, &present(&[("d/a", owner), ("d/b", Some("d/x"))]), rules);
                let wishes = plan.deployments[0].1.as_ref().unwrap();
                assert_eq!(wishes.iter().map(|wish| &wish.unit).collect::<Vec<_>>(), [&unit("d/b")]);
                assert_eq!(plan.orphans.contains(&unit("d/a")), owner.is_some());
            }
        });
    }

    #[test]
    fn local_unit_is_a_conflict_unless_it_is_adopted() {
        rules(|rules| {
            let mut adopting = deployment("d/x", &["d/a", "d/b"]);
            let here = present(&[("d/a", None), ("d/b", Some("d/y"))]);
            let value = of(&body(&[adopting.clone()], &[]));
            let (_, refused) = &plan(&value, &here, rules).deployments[0];
            let obstacle = refused.as_ref().unwrap_err();
            assert!(obstacle.may_pass && obstacle.refusal.diagnostic.cause.contains("d/a"), "{obstacle:?}");
            adopting["adopt"] = json!(["d/a"]);
            let value = of(&body(&[adopting], &[]));
            // A unit of another deployment passes over.
            let (_, wishes) = &plan(&value, &here, rules).deployments[0];
            let wishes = wishes.as_ref().unwrap();
            assert_eq!((wishes.len(), wishes[0].run, &wishes[1].unit), (2, None, &unit("d/b")));
        });
    }

    #[test]
    fn deployment_gets_its_secrets_and_new_units_run() {
        rules(|rules| {
            let mut with = deployment("d/x", &["d/a", "d/b"]);
            with["secrets"] = json!({"d/a": [{"name": "password", "version": 3}]});
            let value = of(&body(&[with], &[]));
            let plan = plan(&value, &PresentUnits::new(), rules);
            let wishes = plan.deployments[0].1.as_ref().unwrap();
            let secrets = |wish: &UnitWish| wish.spec.yuno().unwrap().common.secrets.len();
            assert_eq!((secrets(&wishes[0]), secrets(&wishes[1]), wishes[0].run), (1, 0, Some(Run::Running)));
        });
    }

    #[test]
    fn deployment_that_is_forbidden_is_refused_for_good() {
        rules(|rules| {
            let value = of(&body(&[deployment("d/y", &["other/b"])], &[]));
            let plan = plan(&value, &PresentUnits::new(), rules);
            let obstacle = plan.deployments[0].1.as_ref().unwrap_err();
            assert!(!obstacle.may_pass && obstacle.refusal.diagnostic.cause.contains("realm other"), "{obstacle:?}");
        });
    }

    #[test]
    fn units_of_a_deployment_that_is_held_back_stay_as_they_are() {
        rules(|rules| {
            // d/b is to go, d/c goes already, d/d is listed no more, d/e is an orphan; d/y wants d/d.
            let units = ["d/a", "d/b", "d/c", "d/d", "d/e"].map(|name| (name, Some("d/x")));
            let mut here = present(&units);
            here.get_mut(&unit("d/c")).unwrap().is_leaving = true;
            here.get_mut(&unit("d/e")).unwrap().is_orphan = true;
            let deployments = [deployment("d/x", &["d/a", "d/new"]), deployment("d/y", &["d/d"])];
            let value = of(&body(&deployments, &[("d/b", "d/x"), ("d/c", "d/x")]));
            let held_back = ["d/x".parse().unwrap()].into();
            let plan = super::plan(&value, &here, &held_back, rules);
            let removals: Vec<&str> = plan.removals.iter().map(|removal| removal.unit.as_str()).collect();
            assert_eq!((removals, plan.orphans), (vec!["d/c"], [unit("d/e")].into()));
            assert_eq!(plan.deployments[0].1.as_ref().unwrap().len(), 2, "what it would have");
            let obstacle = plan.deployments[1].1.as_ref().unwrap_err();
            assert!(obstacle.may_pass && obstacle.refusal.diagnostic.cause.contains("d/x"), "{obstacle:?}");
            // Once it is not, what its document says holds.
            let plan = super::tests::plan(&value, &here, rules);
            assert_eq!((plan.removals.len(), plan.orphans), (2, [unit("d/e")].into()));
        });
    }

    #[test]
    fn only_units_of_the_named_deployment_go_and_others_are_orphans() {
        rules(|rules| {
            let here = present(&[
                ("d/a", Some("d/x")),
                ("d/b", Some("d/x")),
                ("d/c", Some("d/y")),
                ("d/d", None),
                ("d/e", Some("d/x")),
            ]);
            let remove = [("d/a", "d/x"), ("d/c", "d/x"), ("d/d", "d/x"), ("d/e", "d/x"), ("d/gone", "d/x")];
            let value = of(&body(&[deployment("d/x", &["d/e"])], &remove));
            let plan = plan(&value, &here, rules);
            let removals: Vec<&str> = plan.removals.iter().map(|removal| removal.unit.as_str()).collect();
            assert_eq!(removals, ["d/a"]);
            assert_eq!(plan.orphans, [unit("d/b"), unit("d/c")].into());
        });
    }

    proptest! {
        /// Whatever a document leaves out, no unit goes that it does not name.
        #[test]
        fn absence_removes_nothing(
            here in prop::collection::btree_map(0..12u8, prop::option::of(0..3u8), 0..12),
            lists in prop::collection::btree_map(0..12u8, 0..3u8, 0..12),
            removes in prop::collection::btree_map(0..12u8, 0..3u8, 0..6),
        ) {
            let name = |n: &u8| format!("d/u{n}");
            let of_deployment = |n: &u8| format!("d/x{n}");
            let here: Vec<(String, Option<String>)> =
                here.iter().map(|(n, of)| (name(n), of.as_ref().map(of_deployment))).collect();
            let present_units = present(&here.iter().map(|(n, of)| (n.as_str(), of.as_deref())).collect::<Vec<_>>());
            let deployments: Vec<Value> = (0..3u8).map(|of| {
                let units: Vec<String> = lists.iter().filter(|(_, by)| **by == of).map(|(n, _)| name(n)).collect();
                deployment(&of_deployment(&of), &units.iter().map(String::as_str).collect::<Vec<_>>())
            }).collect();
            let removes: Vec<(String, String)> =
                removes.iter().map(|(n, of)| (name(n), of_deployment(of))).collect();
            let pairs: Vec<(&str, &str)> = removes.iter().map(|(n, of)| (n.as_str(), of.as_str())).collect();
            let value = of(&body(&deployments, &pairs));
            rules(|rules| {
                let plan = plan(&value, &present_units, rules);
                for removal in &plan.removals {
                    let owner = present_units[&removal.unit].deployment.as_ref();
                    assert!(owner == Some(&removal.deployment) && value.body.remove.contains(removal));
                    assert!(!plan.orphans.contains(&removal.unit));
                }
                let listed = |unit: &UnitName| lists.keys().any(|n| name(n) == unit.as_str());
                for (unit, there) in &present_units {
                    let goes = plan.removals.iter().any(|removal| removal.unit == *unit);
                    let is_orphan = plan.orphans.contains(unit);
                    assert_eq!(there.deployment.is_some(), goes || is_orphan || (there.deployment.is_some() && listed(unit)));
                }
                // It says the same again.
                assert_eq!(super::tests::plan(&value, &present_units, rules), plan);
            });
        }
    }
}

//! What the console believes that documents change on hosts that are away, by what they have reported last. It knows no files and
//! no packages of a host.

use std::collections::HashMap;

use muster_api::Unit;
use muster_rules::{
    cost::cost_there,
    host_plan::{DeploymentPlan, UnitAction, UnitPlan, group::PlanGroups},
    spec_comparison::compare,
};
use muster_topics::{
    desired::{DeploymentName, PlanRequest},
    name::{HostId, UnitName},
    revision::RevisionKey,
    unit::Spec,
};

use crate::{error::Error, state::Console, store::host};

/// Adds guesses for these hosts.
pub(super) async fn add(
    console: &Console,
    request: &PlanRequest,
    hosts: &[HostId],
    groups: &mut HashMap<DeploymentName, PlanGroups>,
) -> Result<(), Error> {
    let listed = request.deployments.iter().flat_map(|one| one.units()).map(|(unit, _)| unit);
    let leaving = request.remove.iter().map(|removal| removal.unit.clone());
    let mut reported: HashMap<HostId, Vec<Unit>> = HashMap::new();
    for unit in listed.chain(leaving) {
        for one in host::units(console.shared.store.read(), None, Some(&unit)).await? {
            if hosts.binary_search(&one.host).is_ok() {
                reported.entry(one.host).or_default().push(one);
            }
        }
    }
    for host in hosts {
        let key = console.shared.authority.revision_key(*host);
        let units = reported.get(host).map_or(&[][..], Vec::as_slice);
        for name in request.names() {
            let plan = guess(request, name, units, &key);
            groups.entry(name.clone()).or_default().add(*host, plan);
        }
    }
    Ok(())
}

/// Returns what a deployment would change on a host with these units.
pub(super) fn guess(request: &PlanRequest, name: &DeploymentName, units: &[Unit], key: &RevisionKey) -> DeploymentPlan {
    let find = |unit: &UnitName| units.iter().find(|one| one.unit == *unit);
    let mut plans = Vec::new();
    for deployment in request.deployments.iter().filter(|one| one.version.deployment == *name) {
        for (unit, listed) in deployment.units() {
            let Some(there) = find(&unit) else {
                plans.push(UnitPlan::new(unit, UnitAction::Create));
                continue;
            };
            let mut after = (*listed.spec).clone();
            if let Some(secrets) = deployment.secrets.get(&listed.unit) {
                after.common_mut().secrets.clone_from(secrets);
            }
            let fields = compare((&unit, &there.desired), &after, Some(listed.run), key);
            let before = (&*there.desired.spec, there.desired.run);
            let action = match fields.is_empty() {
                true => UnitAction::Unchanged,
                false if matches!(after, Spec::Files(_) | Spec::Packages(_)) => UnitAction::Change,
                false => cost_there(&there.observed, before, (&after, listed.run)).into(),
            };
            plans.push(UnitPlan { fields, ..UnitPlan::new(unit, action) });
        }
    }
    let leaving = request.remove.iter().filter(|removal| removal.deployment == *name && find(&removal.unit).is_some());
    plans.extend(leaving.map(|removal| UnitPlan::new(removal.unit.clone(), UnitAction::Remove)));
    DeploymentPlan::of(name.clone(), plans)
}

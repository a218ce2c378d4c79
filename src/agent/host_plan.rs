//! Plans: what a document would change of this host, compared with what is really there. Nothing is changed.
//!
//! **Invariant: a plan is made by what applies a document.** The document is rehearsed in a transaction that is undone
//! ([`deployment::rehearse_document`]), what becomes of a process is [`muster_rules::cost`]'s word as everywhere, and each kind of unit
//! looks at the host as it does before it starts ([`Units::changes`]).

use std::{collections::BTreeSet, sync::Arc};

use muster_base::clock;
use muster_rules::{
    CommandRefusal,
    authorise::LocalPolicy,
    conflict::{self, Claimant, ConflictVerdict},
    cost::{ChangeCost, cost_there},
    desired::host_body::{self, HostBody},
    host_plan::{DeploymentPlan, HostPlan, UnitAction, UnitPlan},
    plan::Failure,
    render::RenderValues,
    spec_comparison::known_fields,
};
use muster_session::unit_state::UnitStates;
use muster_topics::{
    V1,
    desired::{DeploymentName, DesiredHead, DesiredMark, PlanQuestion},
    diagnostic::Diagnostic,
    name::{Digest, HostId, Name, UnitName},
    outcome::RefusalCode,
    revision::RevisionKey,
    unit::{Observed, Run, Spec},
};
use tokio::sync::Mutex;

use super::{
    join::MemberIdentity,
    main_loop::AgentLoop,
    store::{
        Store, StoreError,
        deployment::{self, DocumentHost, DocumentRehearsal, RehearsedUnit},
        document,
        unit::StoredUnit,
    },
    unit::Units,
};

/// Makes plans.
#[derive(Clone)]
pub(super) struct Planner {
    store: Store,
    units: Units,
    host: HostId,
    policy: LocalPolicy,
    realms: BTreeSet<Name>,
    user: String,
    key: RevisionKey,
    values: RenderValues,
    /// Held while a plan is made: each looks at all files of its units.
    turn: Arc<Mutex<()>>,
}

impl AgentLoop {
    /// Returns what makes plans of this host as it is now.
    pub(super) fn planner(&self) -> Planner {
        Planner {
            store: self.store.clone(),
            units: self.units.clone(),
            host: self.host,
            policy: self.session.policy().clone(),
            realms: self.own_realms.clone(),
            user: self.session.user().to_owned(),
            key: self.identity.present().membership.revision_key.clone(),
            values: self.render_values(),
            turn: self.planning.clone(),
        }
    }
}

impl Planner {
    /// Answers a request for a plan, with a [`HostPlan`] as output.
    pub(super) async fn answer(
        self,
        question: PlanQuestion,
        identity: &MemberIdentity,
    ) -> Result<(Vec<u8>, Vec<u8>), CommandRefusal> {
        let invalid = |message: Diagnostic| CommandRefusal::new(RefusalCode::Invalid, message);
        let request = match question {
            PlanQuestion::Request(request) => *request,
            PlanQuestion::Stored { digest } => super::document::fetch_plan_request(identity, &digest)
                .await
                .map_err(|error| invalid(Diagnostic::of(&error).within("the documents to plan cannot be fetched")))?,
        };
        let names: Vec<DeploymentName> = request.names().cloned().collect();
        let present = self.stored_body().await.map_err(|error| invalid(Diagnostic::new(&error)))?;
        let HostBody { body, mut unreadable, unreadable_vars: _ } = present;
        unreadable.retain(|one| !names.contains(&one.deployment));
        let body = HostBody { unreadable, ..request.body(body).into() };
        let mut plan = self.plan(&body, &names).await.map_err(|error| invalid(Diagnostic::new(&error)))?;
        if request.brief {
            plan.deployments = plan.deployments.into_iter().map(DeploymentPlan::brief).collect();
        }
        let bytes = serde_json::to_vec(&plan).map_err(|error| invalid(Diagnostic::new(&error)))?;
        match bytes.len() > super::unit::ANSWER_MAX_BYTES {
            true => Err(invalid(
                Diagnostic::new(format_args!(
                    "the plans of {} deployments have {} bytes, too many for an answer",
                    names.len(),
                    bytes.len()
                ))
                .with_hint("plan fewer at once"),
            )),
            false => Ok((bytes, Vec::new())),
        }
    }

    /// Returns the digest of the plan of one deployment of the present document.
    pub(super) async fn digest_of(&self, name: &DeploymentName) -> Result<Option<Digest>, StoreError> {
        let body = self.stored_body().await?;
        let plan = self.plan(&body, std::slice::from_ref(name)).await?;
        Ok(plan.deployments.into_iter().next().map(|plan| plan.digest))
    }

    async fn stored_body(&self) -> Result<HostBody, StoreError> {
        let mut tx = self.store.begin().await?;
        let text = document::text(&mut tx).await?;
        let body = text.and_then(|text| host_body::read(text.body.as_bytes()).ok());
        Ok(body.unwrap_or_default())
    }

    async fn plan(&self, body: &HostBody, names: &[DeploymentName]) -> Result<HostPlan, StoreError> {
        let _turn = self.turn.lock().await;
        let rehearsal = self.rehearse(body, names).await?;
        let states = self.units.states().borrow().clone();
        let conflicts = conflicts(&rehearsal);
        let mut deployments = Vec::new();
        for name in names {
            let rehearsed = rehearsal.deployments.iter().find(|(of, _)| of == name);
            let mut units = Vec::new();
            match rehearsed {
                Some((_, Err(obstacle))) => {
                    let why = obstacle.refusal.diagnostic.clone();
                    deployments.push(DeploymentPlan::refused(name.clone(), why));
                    continue;
                }
                Some((_, Ok(rehearsed))) => {
                    for one in rehearsed {
                        units.push(self.unit(one, &rehearsal, &states, &conflicts).await);
                    }
                }
                None => {}
            }
            for (_, unit) in rehearsal.removals.iter().filter(|(of, _)| of == name) {
                units.extend(self.removal(unit, &rehearsal).await);
            }
            deployments.push(DeploymentPlan::of(name.clone(), units));
        }
        Ok(HostPlan { deployments })
    }

    async fn rehearse(&self, body: &HostBody, names: &[DeploymentName]) -> Result<DocumentRehearsal, StoreError> {
        let now_ms = clock::now_ms();
        let head = DesiredHead {
            v: V1,
            host: self.host,
            mark: DesiredMark::default(),
            issued_ms: now_ms,
            digest: Digest::of(b""),
            size_bytes: 0,
        };
        let host = DocumentHost {
            policy: &self.policy,
            realms: &self.realms,
            user: &self.user,
            key: &self.key,
            now_ms,
            values: &self.values,
        };
        let mut tx = self.store.begin().await?;
        deployment::rehearse_document(&mut tx, (body, &head), names, host).await
    }

    async fn unit(
        &self,
        one: &RehearsedUnit,
        rehearsal: &DocumentRehearsal,
        states: &UnitStates,
        conflicts: &[(UnitName, String)],
    ) -> UnitPlan {
        let stored = rehearsal.stored.units.iter().find(|row| row.name == one.unit);
        let state = states.get(&one.unit);
        let after = (&*one.desired.spec, one.desired.run);
        // A unit that was rolled back runs as something else than was desired of it.
        let before = stored.map(|row| (state.map_or(&*row.desired.spec, |state| state.spec()), row.desired.run));
        let observed = state.map(|state| &state.observed);
        let is_so = is_so(stored, one, observed);
        let fields = before.map(|before| known_fields(before, after)).unwrap_or_default();
        let mut plan = UnitPlan { fields, ..UnitPlan::new(one.unit.clone(), UnitAction::Unchanged) };
        if let Some((_, why)) = conflicts.iter().find(|(unit, _)| *unit == one.unit) {
            (plan.action, plan.reason) = (UnitAction::Conflict, Some(why.as_str().into()));
            return plan;
        }
        if is_so && plan.fields.is_empty() {
            return plan;
        }
        let applies = one.desired.run.is_running();
        if applies {
            match self.units.changes(&one.unit, after.0, Some(&one.desired), one.verified.as_ref()).await {
                Ok((files, packages)) => (plan.files, plan.packages) = (files, packages),
                Err(Failure { error, .. }) => {
                    (plan.action, plan.reason) = (UnitAction::Refuse, Some(error));
                    return plan;
                }
            }
        }
        plan.action = action(before, after, observed, is_so);
        let is_of_host = matches!(after.0, Spec::Files(_) | Spec::Packages(_));
        if is_of_host && matches!(plan.action, UnitAction::Restart | UnitAction::Replace | UnitAction::Reload) {
            // It has no process.
            let is_idle = plan.files.is_empty() && plan.packages.is_empty();
            plan.action = if is_idle { UnitAction::InPlace } else { UnitAction::Change };
        }
        plan
    }

    async fn removal(&self, unit: &UnitName, rehearsal: &DocumentRehearsal) -> Option<UnitPlan> {
        let row = rehearsal.stored.units.iter().find(|row| row.name == *unit)?;
        let mut plan = UnitPlan::new(unit.clone(), UnitAction::Remove);
        match self.units.changes(unit, &row.desired.spec, None, None).await {
            Ok((files, packages)) => (plan.files, plan.packages) = (files, packages),
            Err(Failure { error, .. }) => plan.reason = Some(error),
        }
        Some(plan)
    }
}

/// Whether a unit is already as it would be.
fn is_so(stored: Option<&StoredUnit>, one: &RehearsedUnit, observed: Option<&Observed>) -> bool {
    let Some(row) = stored else { return false };
    let is_same = row.desired.revision == one.desired.revision && row.desired.run == one.desired.run;
    let is_in_effect = !one.desired.run.is_running()
        || observed.is_some_and(|observed| observed.revision.as_ref() == Some(&one.desired.revision));
    is_same && is_in_effect && observed.is_none_or(|observed| observed.rolled_back().is_none())
}

/// What becomes of a unit by its specs.
fn action(before: Option<(&Spec, Run)>, after: (&Spec, Run), observed: Option<&Observed>, is_so: bool) -> UnitAction {
    let Some(before) = before else { return UnitAction::Create };
    let cost = match observed {
        Some(observed) => cost_there(observed, before, after),
        None => muster_rules::cost::cost(before, after),
    };
    match cost {
        // The same revision is tried again.
        ChangeCost::InPlace if !is_so && before.0.revision().ok() == after.0.revision().ok() && before.1 == after.1 => {
            if after.1.is_running() && observed.is_none_or(|observed| observed.revision.is_none()) {
                UnitAction::Start
            } else {
                UnitAction::InPlace
            }
        }
        cost => cost.into(),
    }
}

/// Returns the units that would conflict with others, with the reason of each.
fn conflicts(rehearsal: &DocumentRehearsal) -> Vec<(UnitName, String)> {
    let rehearsed: Vec<&RehearsedUnit> =
        rehearsal.deployments.iter().filter_map(|(_, units)| units.as_ref().ok()).flatten().collect();
    let is_rehearsed = |unit: &UnitName| rehearsed.iter().any(|one| one.unit == *unit);
    let stays = |row: &&StoredUnit| {
        let goes = rehearsal.removals.iter().any(|(_, unit)| *unit == row.name);
        row.desired.run.is_running() && !is_rehearsed(&row.name) && !goes
    };
    let others = rehearsal.stored.units.iter().filter(stays).map(|row| Claimant {
        unit: &row.name,
        spec: &row.desired.spec,
        generation: row.desired.generation,
        earlier: None,
        changes: false,
    });
    let new = rehearsed.iter().filter(|one| one.desired.run.is_running()).map(|one| {
        let row = rehearsal.stored.units.iter().find(|row| row.name == one.unit);
        let verified = row.and_then(|row| row.kept.verified.as_ref());
        let earlier = verified.filter(|verified| verified.revision != one.desired.revision);
        Claimant {
            unit: &one.unit,
            spec: &one.desired.spec,
            generation: one.desired.generation,
            earlier: earlier.map(|verified| &*verified.spec),
            changes: row.is_none_or(|row| row.desired.revision != one.desired.revision),
        }
    });
    let claimants: Vec<Claimant<'_>> = others.chain(new).collect();
    let told = |(unit, verdict): (&UnitName, ConflictVerdict)| match verdict {
        ConflictVerdict::GoBack(why) | ConflictVerdict::Hold(why) => (unit.clone(), why),
    };
    conflict::resolve(&claimants).into_iter().map(told).filter(|(unit, _)| is_rehearsed(unit)).collect()
}

//! Units of this host that depend on each other's content: those that want the same ([`muster_rules::conflict`]), and those of one
//! version of a deployment ([`muster_rules::desired::together`]). Applies these rules to the task's entries.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    sync::LazyLock,
};

use muster_rules::{
    conflict::{self, Claimant, ConflictVerdict},
    desired::together::{self, Member, MemberStep},
};
use muster_topics::{
    Millis,
    diagnostic::Diagnostic,
    name::UnitName,
    unit::{HoldReason, Phase, Spec},
};

use super::entry::{Entries, UnitEntry};

/// Returns what becomes of units that want the same.
pub(super) fn conflicts(entries: &Entries) -> BTreeMap<UnitName, ConflictVerdict> {
    let claimants: Vec<Claimant<'_>> = entries.iter().filter_map(|(name, entry)| claimant(name, entry)).collect();
    conflict::resolve(&claimants).into_iter().map(|(unit, verdict)| (unit.clone(), verdict)).collect()
}

fn claimant<'a>(name: &'a UnitName, entry: &'a UnitEntry) -> Option<Claimant<'a>> {
    let unit = &entry.unit;
    let desired = unit.desired.as_ref().filter(|_| unit.is_claiming())?;
    Some(Claimant {
        unit: name,
        spec: &desired.spec,
        generation: desired.generation,
        earlier: unit.earlier().map(Arc::as_ref),
        changes: unit.is_changing(),
    })
}

/// Returns the specs of the units that have their resources, for [`super::owners::Owners`]: a unit that is held has them only if
/// it is in effect.
pub(super) fn owners(entries: &Entries) -> BTreeMap<UnitName, Vec<Arc<Spec>>> {
    let specs = |entry: &UnitEntry| -> Vec<Arc<Spec>> {
        let unit = &entry.unit;
        let desired = unit.desired.as_ref().filter(|_| unit.is_claiming() && unit.conflict().is_none());
        desired.map(|desired| &desired.spec).into_iter().chain(unit.earlier()).cloned().collect()
    };
    entries.iter().map(|(name, entry)| (name.clone(), specs(entry))).filter(|(_, specs)| !specs.is_empty()).collect()
}

/// Returns what follows for units of versions of deployments, as far as it is not so yet. `known` are the units whose failure was
/// seen before; it is brought up to date.
pub(super) fn steps(entries: &Entries, known: &mut BTreeSet<UnitName>, now_ms: Millis) -> Vec<(UnitName, MemberStep)> {
    let members: Vec<Member<'_>> = entries.iter().filter_map(|(name, entry)| member(name, entry, now_ms)).collect();
    let failed: BTreeSet<UnitName> =
        members.iter().filter(|member| member.failed.is_some()).map(|member| member.unit.clone()).collect();
    let steps = together::steps(&members, |unit| !known.contains(unit));
    let is_news = |(unit, step): &(&UnitName, MemberStep)| {
        let differs = |entry: &UnitEntry| {
            entry.unit.group_waits() != step.waits || entry.unit.group_stays() != step.stays.as_ref()
        };
        step.back.is_some() || entries.get(*unit).is_some_and(|entry| differs(entry))
    };
    let news = steps.into_iter().filter(is_news).map(|(unit, step)| (unit.clone(), step)).collect();
    *known = failed;
    news
}

/// Why a unit has failed that says no more.
static NOT_RUNNING: LazyLock<Diagnostic> = LazyLock::new(|| Diagnostic::new("it is not running"));

fn member<'a>(name: &'a UnitName, entry: &'a UnitEntry, now_ms: Millis) -> Option<Member<'a>> {
    let owner = entry.owner.as_ref().filter(|owner| !owner.orphan)?;
    let unit = &entry.unit;
    let desired = unit.desired.as_ref()?;
    let back = unit.observed.rolled_back().filter(|back| back.generation == desired.generation);
    let is_broken = unit.hold.as_ref().is_some_and(|hold| hold.reason == HoldReason::Broken);
    // One that has another revision would go back now. What was not started yet may only lack something.
    let is_new = unit.verified().is_none();
    let waits_after_end = is_new && unit.observed.phase() == Phase::Backoff && unit.observed.exit().is_some();
    let failed = match back {
        Some(back) => Some((back.at_ms, &back.error)),
        None if unit.observed.phase() == Phase::Failed || is_broken || waits_after_end => {
            Some((unit.observed.since_ms, unit.observed.error.as_ref().unwrap_or(&NOT_RUNNING)))
        }
        None => None,
    };
    let is_held = unit.hold.is_some();
    let is_verified = unit.verified().is_some_and(|verified| verified.revision == desired.revision);
    let is_coming = desired.run.is_running() && !is_held && !is_verified && !unit.is_proven(now_ms);
    Some(Member {
        unit: name,
        version: (&owner.deployment, owner.version),
        is_bound: unit.goes_back_together(),
        failed,
        trial: unit.can_go_back().then(|| unit.trial_since_ms()),
        has_gone_back: back.is_some(),
        // It stays new when it is verified: there is still nothing that it could go back to.
        is_new: is_new || unit.group_stays().is_some(),
        is_coming,
    })
}

//! How far a deployment is on a host.

use muster_topics::{
    Millis,
    admission::{AdmissionWait, AdmissionWaitKind},
    desired::{DeploymentName, DesiredMark, DesiredReport, UnitOwner},
    diagnostic::Diagnostic,
    name::UnitName,
    unit::{Desired, Hold, HoldReason, Observed, Phase},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::{assignment::AssignmentConflict, capability::MissingCapability};

/// A removal that is allowed within this time is under way. Times are shown to the minute, so it would be said to wait
/// for the present one.
const SOON_MS: Millis = 60_000;

/// How far a deployment is on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeploymentState {
    /// The host has failed: a unit does not start, or was rolled back.
    Failed,
    /// The host has refused the document or the deployment, and changed nothing.
    Refused,
    /// Another deployment claims a unit of the same name on this host, and keeps it.
    Conflict,
    /// The host has a document that this console did not make, or newer labels: an operator has to confirm it.
    Unconfirmed,
    /// The host is not given the version: it lacks what a unit of it needs.
    Cannot,
    /// An operator's hold keeps a unit from changing.
    Held,
    /// The host is away, and is not where it should be.
    Away,
    /// The host has not stored the document yet.
    Pending,
    /// The version is rolled out, and the host has not begun with it: it prepares, or it may not yet.
    Waiting,
    /// The host changes its units.
    Changing,
    /// The host removes its units.
    Removing,
    /// The host has units of it that are neither desired nor to go; they go on.
    Orphan,
    /// All its units are as desired.
    Verified,
}

impl DeploymentState {
    /// All states, in the order in which they are shown.
    pub const ALL: [Self; 13] = [
        Self::Failed,
        Self::Refused,
        Self::Conflict,
        Self::Unconfirmed,
        Self::Cannot,
        Self::Held,
        Self::Away,
        Self::Pending,
        Self::Waiting,
        Self::Changing,
        Self::Removing,
        Self::Orphan,
        Self::Verified,
    ];

    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::Conflict => "conflict",
            Self::Unconfirmed => "unconfirmed",
            Self::Cannot => "cannot",
            Self::Held => "held",
            Self::Away => "away",
            Self::Pending => "pending",
            Self::Waiting => "waiting",
            Self::Changing => "changing",
            Self::Removing => "removing",
            Self::Orphan => "orphan",
            Self::Verified => "verified",
        }
    }

    /// Whether something is still expected to happen by itself.
    #[must_use]
    pub fn is_under_way(self) -> bool {
        matches!(self, Self::Away | Self::Pending | Self::Waiting | Self::Changing | Self::Removing)
    }
}

/// A unit of a deployment, as its host reports it.
#[derive(Clone, Copy, Debug)]
pub struct HostUnit<'a> {
    /// Its name.
    pub unit: &'a UnitName,
    /// Its desired state there.
    pub desired: &'a Desired,
    /// Its observed state.
    pub observed: &'a Observed,
    /// Its hold.
    pub hold: Option<&'a Hold>,
    /// Its owner.
    pub owner: Option<&'a UnitOwner>,
}

/// What is known of a deployment on a host.
#[derive(Clone, Copy, Debug)]
pub struct DeploymentOnHost<'a> {
    /// The deployment.
    pub deployment: &'a DeploymentName,
    /// The version that the host is to have, with the names of its units; `None` if it is to have none.
    pub wanted: Option<(u32, &'a [UnitName])>,
    /// Why the host does not carry the deployment, though it is selected.
    pub conflict: Option<&'a AssignmentConflict>,
    /// What the host lacks for the present version, which it is not given.
    pub lacks: Option<MissingCapability>,
    /// Why the console does not admit the host to the version, if the host has asked.
    pub admission: Option<&'a Diagnostic>,
    /// Whether the host still has units to remove.
    pub removes: bool,
    /// The host's present document; `None` if there is none yet.
    pub mark: Option<DesiredMark>,
    /// Whether the host has a document that the console did not make, or newer labels than the console.
    pub is_unconfirmed: bool,
    /// What the host reports of its document; nothing before it has reported its state.
    pub report: Option<&'a DesiredReport>,
    /// Whether the host is away.
    pub is_away: bool,
    /// The present time.
    pub now_ms: Millis,
    /// The units of the host.
    pub units: &'a [HostUnit<'a>],
}

/// Returns how far a deployment is on a host, and why; `None` if the host has nothing of it.
#[must_use]
pub fn state(one: &DeploymentOnHost<'_>) -> Option<(DeploymentState, Option<Diagnostic>)> {
    use DeploymentState::{Away, Cannot, Conflict, Orphan, Unconfirmed};
    let orphan = || one.units.iter().find(|unit| unit.owner.is_some_and(|owner| owner.deployment == *one.deployment));
    if let Some(lacks) = one.lacks.filter(|_| !one.is_unconfirmed) {
        let cannot = Diagnostic::new(format_args!("{lacks}; it keeps what it has")).with_hint(lacks.hint());
        return Some((Cannot, Some(cannot)));
    }
    let found = match (one.wanted, one.conflict) {
        (None, None) if !one.removes && one.lacks.is_none() => {
            let unit = orphan()?;
            return Some((Orphan, Some(format!("unit {} keeps running without being desired", unit.unit).into())));
        }
        _ if one.is_unconfirmed => {
            let why =
                "the host has a document, or labels, that this console did not make (`muster deployment confirm`)";
            return Some((Unconfirmed, Some(why.into())));
        }
        (None, Some(conflict)) if !one.removes => return Some((Conflict, Some(Diagnostic::new(conflict)))),
        (None, _) => removing(one),
        (Some((version, units)), _) => carried(one, version, units),
    };
    Some(match found {
        (state, _) if one.is_away && state.is_under_way() => (Away, Some("the host is offline".into())),
        found => found,
    })
}

/// Whether the host has not stored the present document yet, or has refused it.
fn not_stored(one: &DeploymentOnHost<'_>) -> Option<(DeploymentState, Option<Diagnostic>)> {
    let Some((mark, report)) = one.mark.zip(one.report) else { return Some((DeploymentState::Pending, None)) };
    if let Some(refused) = report.refused.as_ref().filter(|refused| refused.mark == mark) {
        return Some((DeploymentState::Refused, Some(refused.diagnostic.clone())));
    }
    (report.mark < mark).then_some((DeploymentState::Pending, None))
}

fn removing(one: &DeploymentOnHost<'_>) -> (DeploymentState, Option<Diagnostic>) {
    if let Some(found) = not_stored(one) {
        return found;
    }
    let is_of = |unit: &UnitName| {
        let there = one.units.iter().find(|there| there.unit == unit);
        there.is_none_or(|there| there.owner.is_some_and(|owner| owner.deployment == *one.deployment))
    };
    let is_later = |from_ms: Option<Millis>| from_ms.is_none_or(|from_ms| from_ms > one.now_ms.saturating_add(SOON_MS));
    let removals = one.report.iter().flat_map(|report| &report.removals);
    let waits = removals.filter(|(unit, time)| is_of(unit) && is_later(time.from_ms));
    let mut why = waits.map(|(unit, time)| match time.from_ms {
        None => format!("{unit} waits for an operator (`muster unit rm`)"),
        Some(from_ms) => {
            format!("{unit} waits for the host's policy, which allows its removal from {}", minute(from_ms))
        }
    });
    (DeploymentState::Removing, why.next().map(Diagnostic::from))
}

/// Formats a time to the minute: `2026-11-28 09:12 UTC`.
fn minute(at_ms: Millis) -> String {
    let Ok(at) = OffsetDateTime::from_unix_timestamp(at_ms.div_euclid(1_000)) else { return format!("{at_ms} ms") };
    format!("{} {:02}:{:02} UTC", at.date(), at.hour(), at.minute())
}

fn carried(one: &DeploymentOnHost<'_>, version: u32, units: &[UnitName]) -> (DeploymentState, Option<Diagnostic>) {
    if let Some(found) = not_stored(one) {
        return found;
    }
    let report = one.report.and_then(|report| report.deployments.get(one.deployment));
    if let Some(refused) =
        report.and_then(|report| report.refused.as_ref()).filter(|refused| refused.version == version)
    {
        return (DeploymentState::Refused, Some(refused.diagnostic.clone()));
    }
    if let Some(waits) = report.and_then(|report| report.waits.as_ref()).filter(|waits| waits.version == version) {
        return (DeploymentState::Waiting, Some(waiting(waits, one.admission)));
    }
    if report.is_none_or(|report| report.version != version) {
        return (DeploymentState::Changing, None);
    }
    let of = |name: &UnitName| match one.units.iter().find(|unit| unit.unit == name) {
        Some(unit) if unit.owner.is_some_and(|owner| owner.deployment == *one.deployment) => unit_state(unit),
        _ => (DeploymentState::Changing, Some(format!("{name} does not exist yet").into())),
    };
    // The worst is the first.
    let worst = units.iter().map(of).min_by_key(|(state, _)| *state);
    match worst {
        Some((DeploymentState::Verified, _)) | None if one.removes => removing(one),
        Some(worst) => worst,
        None => (DeploymentState::Verified, None),
    }
}

/// Says why a host has not begun. The console's word is newer than what the host repeats of it.
fn waiting(waits: &AdmissionWait, console: Option<&Diagnostic>) -> Diagnostic {
    let otherwise = match waits.kind {
        AdmissionWaitKind::Preparing => "it prepares",
        AdmissionWaitKind::Policy => "its own policy",
        AdmissionWaitKind::Admission => "it has asked whether it may begin",
        AdmissionWaitKind::PlanChanged => "its plan has changed",
    };
    console.cloned().or_else(|| waits.diagnostic.clone()).unwrap_or_else(|| otherwise.into())
}

/// Returns how far a unit of a deployment is, and why.
#[must_use]
pub fn unit_state(unit: &HostUnit<'_>) -> (DeploymentState, Option<Diagnostic>) {
    use DeploymentState::{Changing, Failed, Held, Verified};
    let HostUnit { unit: name, desired, observed, hold, .. } = *unit;
    if let Some(back) = observed.rolled_back() {
        return (Failed, Some(back.diagnostic(format_args!("{name} "))));
    }
    match hold.map(|hold| (hold, hold.reason)) {
        Some((hold, HoldReason::Operator)) => return (Held, Some(format!("{name} is held: {hold}").into())),
        Some((hold, HoldReason::Broken)) => return (Failed, Some(format!("{name} is held: {hold}").into())),
        Some((hold, HoldReason::Dependency | HoldReason::Conflict)) => {
            return (Changing, Some(format!("{name} waits: {hold}").into()));
        }
        None => {}
    }
    let error = || observed.error.clone().map(|error| error.within(name));
    if observed.phase() == Phase::Failed {
        return (Failed, error());
    }
    let is_current = observed.generation == desired.generation && observed.beside.is_none();
    let is_there = match (desired.run.is_running(), observed.phase()) {
        (true, Phase::Running | Phase::Playing) => {
            observed.revision.as_ref() == Some(&desired.revision)
                && !observed.trial.is_on()
                && observed.instance().unready.is_none()
        }
        (false, Phase::Stopped) => true,
        _ => false,
    };
    match is_current && is_there {
        true => (Verified, None),
        false => (Changing, observed.instance().unready.clone().map(|why| why.within(name)).or_else(error)),
    }
}

#[cfg(test)]
mod tests;

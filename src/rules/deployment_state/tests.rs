//! Tests of the state of a deployment on a host.

use muster_topics::{
    desired::{DeploymentRefusal, DeploymentReport, DocumentRefusal, RemovalTime},
    diagnostic::Diagnostic,
    name::Digest,
    unit::{ArtifactRef, InstanceReport, ObservedState, Run, Spec, TrialReport, YunoSpec},
};

use super::*;

/// A time before the removals that wait.
const NOW_MS: Millis = 1_764_321_000_000;

fn mark(generation: u64) -> DesiredMark {
    DesiredMark { epoch: 1, generation }
}

fn desired() -> Desired {
    let spec = Spec::Yuno(YunoSpec::new(ArtifactRef {
        sha256: Digest::of(b"a"),
        size_bytes: 1,
        role: "a".parse().unwrap(),
        version: "1".parse().unwrap(),
        manifest: None,
    }));
    Desired { generation: 3, revision: Digest::of(b"new"), spec: spec.into(), run: Run::Running, frozen: false }
}

fn running() -> Observed {
    Observed { generation: 3, revision: Some(Digest::of(b"new")), state: Phase::Running.into(), ..Observed::absent(0) }
}

fn stored(version: u32) -> DesiredReport {
    DesiredReport {
        mark: mark(5),
        deployments: [(name(), DeploymentReport { version, refused: None, waits: None })].into(),
        ..DesiredReport::default()
    }
}

fn name() -> DeploymentName {
    "shop/till".parse().unwrap()
}

/// Checks the state of a deployment of one unit, after changes of what is known of it.
#[track_caller]
fn check(
    change: impl FnOnce(&mut DeploymentOnHost<'_>),
    report: Option<&DesiredReport>,
    unit: (&Desired, &Observed, Option<&Hold>),
    wanted: Option<DeploymentState>,
) {
    assert_eq!(found(change, report, unit).map(|(state, _)| state), wanted, "{report:?}");
}

/// Returns the state with its reason.
fn found(
    change: impl FnOnce(&mut DeploymentOnHost<'_>),
    report: Option<&DesiredReport>,
    (desired, observed, hold): (&Desired, &Observed, Option<&Hold>),
) -> Option<(DeploymentState, Option<Diagnostic>)> {
    let (deployment, unit): (_, UnitName) = (name(), "shop/till".parse().unwrap());
    let owner = UnitOwner { deployment: deployment.clone(), version: 2, orphan: false };
    let units = [HostUnit { unit: &unit, desired, observed, hold, owner: Some(&owner) }];
    let names = [unit.clone()];
    let mut one = DeploymentOnHost {
        deployment: &deployment,
        wanted: Some((2, &names)),
        conflict: None,
        lacks: None,
        admission: None,
        removes: false,
        mark: Some(mark(5)),
        is_unconfirmed: false,
        report,
        is_away: false,
        now_ms: NOW_MS,
        units: &units,
    };
    change(&mut one);
    state(&one)
}

#[test]
fn way_to_the_document_comes_before_its_content() {
    use DeploymentState::{Away, Changing, Conflict, Pending, Refused, Unconfirmed, Verified};
    let (desired, observed) = (desired(), running());
    let unit = (&desired, &observed, None);
    let there = stored(2);
    check(|_| (), Some(&there), unit, Some(Verified));
    check(|one| one.is_away = true, Some(&there), unit, Some(Verified));
    check(|one| one.mark = Some(mark(6)), Some(&there), unit, Some(Pending));
    check(|one| (one.mark, one.is_away) = (Some(mark(6)), true), Some(&there), unit, Some(Away));
    check(|one| one.mark = None, Some(&there), unit, Some(Pending));
    check(|_| (), Some(&stored(1)), unit, Some(Changing));
    check(|_| (), None, unit, Some(Pending));
    check(|one| one.is_unconfirmed = true, Some(&there), unit, Some(Unconfirmed));
    let refusal = DocumentRefusal { mark: mark(6), diagnostic: "an unknown field".into() };
    let refused = DesiredReport { refused: Some(refusal), ..stored(2) };
    check(|one| one.mark = Some(mark(6)), Some(&refused), unit, Some(Refused));
    check(|one| one.mark = Some(mark(7)), Some(&refused), unit, Some(Pending));
    let mut refused = stored(1);
    let why = DeploymentRefusal { version: 2, diagnostic: "no such realm".into() };
    refused.deployments.get_mut(&name()).unwrap().refused = Some(why);
    check(|_| (), Some(&refused), unit, Some(Refused));
    const CONFLICT: AssignmentConflict = AssignmentConflict::Cordoned;
    check(|one| (one.wanted, one.conflict) = (None, Some(&CONFLICT)), Some(&there), unit, Some(Conflict));
}

#[test]
fn units_decide_once_the_document_is_stored() {
    use DeploymentState::{Changing, Failed, Held, Verified};
    let desired = desired();
    let there = stored(2);
    let unit = |change: &dyn Fn(&mut Observed), wanted| {
        let mut observed = running();
        change(&mut observed);
        check(|_| (), Some(&there), (&desired, &observed, None), Some(wanted));
    };
    unit(&|_| (), Verified);
    unit(&|observed| observed.trial = TrialReport::OnTrial { verified: Digest::of(b"old") }, Changing);
    unit(&|observed| observed.generation = 2, Changing);
    unit(&|observed| observed.revision = Some(Digest::of(b"old")), Changing);
    unit(&|observed| observed.state = Phase::Backoff.into(), Changing);
    let unready = InstanceReport { unready: Some("it does not answer".into()), ..InstanceReport::default() };
    unit(&|observed| observed.state = ObservedState::Running(unready.clone()), Changing);
    unit(&|observed| observed.state = Phase::Failed.into(), Failed);
    let back = muster_topics::unit::RolledBack {
        generation: 3,
        revision: Digest::of(b"new"),
        to: Digest::of(b"old"),
        error: "exit code 1".into(),
        at_ms: 0,
        last_lines: None,
    };
    unit(&|observed| observed.trial = TrialReport::RolledBack(back.clone()), Failed);
    let hold = |reason| Hold { reason, since_ms: 0, by: None, note: None };
    for (reason, wanted) in
        [(HoldReason::Operator, Held), (HoldReason::Broken, Failed), (HoldReason::Dependency, Changing)]
    {
        check(|_| (), Some(&there), (&desired, &running(), Some(&hold(reason))), Some(wanted));
    }
    let stopped = Desired { run: Run::Stopped, ..desired.clone() };
    let observed = Observed { state: Phase::Stopped.into(), revision: None, ..running() };
    check(|_| (), Some(&there), (&stopped, &observed, None), Some(Verified));
    check(|one| one.units = &[], Some(&there), (&stopped, &observed, None), Some(Changing));
}

#[test]
fn removal_says_what_it_waits_for() {
    let (desired, observed) = (desired(), running());
    let why = |removals: &[(&str, Option<Millis>)]| {
        let removals =
            removals.iter().map(|(unit, from_ms)| (unit.parse().unwrap(), RemovalTime { from_ms: *from_ms })).collect();
        let report = DesiredReport { removals, ..stored(0) };
        let gone = |one: &mut DeploymentOnHost<'_>| (one.wanted, one.removes) = (None, true);
        found(gone, Some(&report), (&desired, &observed, None)).unwrap().1.unwrap()
    };
    let until = why(&[("shop/till", Some(1_764_321_120_000))]);
    assert_eq!(
        until.cause,
        "shop/till waits for the host's policy, which allows its removal from 2025-11-28 09:12 UTC"
    );
    // One that is due is under way, and waits for nothing.
    for due_ms in [NOW_MS - 1, NOW_MS, NOW_MS + SOON_MS] {
        let report = DesiredReport {
            removals: [("shop/till".parse().unwrap(), RemovalTime { from_ms: Some(due_ms) })].into(),
            ..stored(0)
        };
        let gone = |one: &mut DeploymentOnHost<'_>| (one.wanted, one.removes) = (None, true);
        let found = found(gone, Some(&report), (&desired, &observed, None));
        assert_eq!(found, Some((DeploymentState::Removing, None)), "{due_ms}");
    }
    assert!(why(&[("shop/till", None)]).cause.contains("`muster unit rm`"));
    assert!(why(&[("shop/till", Some(Millis::MAX))]).cause.contains(&Millis::MAX.to_string()));
    // Units of other deployments wait, too.
    let other = UnitOwner { deployment: "shop/other".parse().unwrap(), version: 1, orphan: false };
    let report =
        DesiredReport { removals: [("shop/till".parse().unwrap(), RemovalTime::default())].into(), ..stored(0) };
    let (unit, deployment) = ("shop/till".parse().unwrap(), name());
    let units = [HostUnit { unit: &unit, desired: &desired, observed: &observed, hold: None, owner: Some(&other) }];
    let one = DeploymentOnHost {
        admission: None,
        lacks: None,
        deployment: &deployment,
        wanted: None,
        conflict: None,
        removes: true,
        mark: Some(mark(5)),
        is_unconfirmed: false,
        report: Some(&report),
        is_away: false,
        now_ms: NOW_MS,
        units: &units,
    };
    assert_eq!(state(&one), Some((DeploymentState::Removing, None)));
}

#[test]
fn what_is_to_go_is_removed_and_what_is_forgotten_is_an_orphan() {
    use DeploymentState::{Away, Orphan, Pending, Removing};
    let (desired, observed) = (desired(), running());
    let unit = (&desired, &observed, None);
    let waits =
        DesiredReport { removals: [("shop/till".parse().unwrap(), RemovalTime::default())].into(), ..stored(0) };
    let gone = |one: &mut DeploymentOnHost<'_>| (one.wanted, one.removes) = (None, true);
    check(gone, Some(&waits), unit, Some(Removing));
    check(|one| (one.wanted, one.removes, one.is_away) = (None, true, true), Some(&waits), unit, Some(Away));
    check(|one| (one.wanted, one.removes, one.mark) = (None, true, Some(mark(9))), Some(&waits), unit, Some(Pending));
    // A unit that the new version has no more.
    check(|one| one.removes = true, Some(&stored(2)), unit, Some(Removing));
    check(|one| one.wanted = None, Some(&stored(0)), unit, Some(Orphan));
    check(|one| (one.wanted, one.units) = (None, &[]), Some(&stored(0)), unit, None);
}

#[test]
fn host_that_may_not_begin_waits_for_what_the_console_said_last() {
    use DeploymentState::{Away, Cannot, Changing, Waiting};
    use muster_topics::{
        admission::{AdmissionWait, AdmissionWaitKind},
        presence::Capability,
    };
    const LACKS: Option<MissingCapability> = Some(MissingCapability(Capability::Podman));
    let (desired, observed) = (desired(), running());
    let unit = (&desired, &observed, None);
    let waits = |version, kind| {
        let waits = AdmissionWait { version, kind, since_ms: 1, diagnostic: Some("its word".into()) };
        let of = DeploymentReport { version: 1, refused: None, waits: Some(waits) };
        DesiredReport { deployments: [(name(), of)].into(), ..stored(1) }
    };
    let asks = waits(2, AdmissionWaitKind::Admission);
    check(|_| (), Some(&asks), unit, Some(Waiting));
    check(|one| one.is_away = true, Some(&asks), unit, Some(Away));
    check(|_| (), Some(&waits(1, AdmissionWaitKind::Admission)), unit, Some(Changing));
    check(|one| one.lacks = LACKS, Some(&stored(1)), unit, Some(Cannot));
    check(|one| (one.wanted, one.lacks) = (None, LACKS), Some(&stored(1)), unit, Some(Cannot));
    let unconfirmed = |one: &mut DeploymentOnHost<'_>| (one.lacks, one.is_unconfirmed) = (LACKS, true);
    check(unconfirmed, Some(&stored(1)), unit, Some(DeploymentState::Unconfirmed));
    let wait = |kind| AdmissionWait { version: 2, kind, since_ms: 1, diagnostic: Some("its word".into()) };
    assert_eq!(waiting(&wait(AdmissionWaitKind::Admission), Some(&"its wave".into())), "its wave".into());
    assert_eq!(waiting(&wait(AdmissionWaitKind::Admission), None), "its word".into());
    // It has asked since.
    assert_eq!(waiting(&wait(AdmissionWaitKind::Preparing), Some(&"its wave".into())), "its wave".into());
    assert_eq!(
        waiting(&AdmissionWait { diagnostic: None, ..wait(AdmissionWaitKind::Policy) }, None),
        "its own policy".into()
    );
}

//! Rollouts.

use super::*;

fn words(text: &str) -> String {
    if text == HOSTILE { HOSTILE.to_owned() } else { "unit shop/till: exit code 3".to_owned() }
}

/// A rollout of so many hosts, of which a third has ended.
pub(super) fn rollout(phase: RolloutPhase, hosts: u64) -> Rollout {
    let ended = hosts / 3;
    let mut outcomes = BTreeMap::new();
    for (outcome, number) in [
        (HostOutcome::Failed, ended.min(2)),
        (HostOutcome::RolledBack, ended.saturating_sub(2).min(1)),
        (HostOutcome::Cannot, ended.saturating_sub(3).min(4)),
        (HostOutcome::Verified, ended.saturating_sub(7)),
    ] {
        if number > 0 {
            outcomes.insert(outcome, number);
        }
    }
    let ended_ms = phase.is_end().then(|| ago(20));
    Rollout {
        deployment: deployment_name(),
        version: 4,
        is_rollback: false,
        phase,
        wave: 2,
        waves: 3,
        hosts,
        outcomes,
        in_flight: hosts / 10,
        unavailable: hosts / 8,
        begun_ms: ago(7_500),
        ended_ms,
    }
}

fn paused(reason: &str) -> RolloutPhase {
    RolloutPhase::Paused { since_ms: ago(95), reason: reason.to_owned() }
}

/// One in each phase.
pub(super) fn rollouts(text: &str) -> RolloutsView {
    let phases = [
        RolloutPhase::Running,
        RolloutPhase::Soaking { until_ms: ago(-100) },
        RolloutPhase::Approval,
        paused(&words(text)),
        RolloutPhase::Completed,
        RolloutPhase::Cancelled,
        RolloutPhase::RolledBack { by: 5 },
        RolloutPhase::Superseded { by: 5 },
        RolloutPhase::Failed { reason: words(text) },
    ];
    let one = |(index, phase): (u64, RolloutPhase)| {
        let deployment = format!("shop/{}", phase.word()).parse().unwrap();
        Rollout { deployment, ..rollout(phase, index * 1_234) }
    };
    RolloutsView { rollouts: (1..).zip(phases).map(one).collect() }
}

fn wave(number: u32, state: RolloutWaveState, size: Option<u64>) -> RolloutWave {
    let admitted = if state == RolloutWaveState::Waiting { 0 } else { size.unwrap_or(30) };
    let ended = if state == RolloutWaveState::Ended { admitted } else { admitted / 2 };
    let failed = ended.min(1);
    let outcomes = [(HostOutcome::Failed, failed), (HostOutcome::Verified, ended - failed)];
    RolloutWave {
        number,
        state,
        size,
        admitted,
        in_flight: admitted - ended,
        outcomes: outcomes.into_iter().filter(|(_, number)| *number > 0).collect(),
    }
}

fn waits(hostname: &str, hosts: u64) -> Vec<RolloutWait> {
    let wait = |kind, number: u64, reason: &str| RolloutWait {
        kind,
        reason: Diagnostic::new(if hostname == HOSTILE { HOSTILE } else { reason }),
        hosts: number,
        first: named(hostname, u128::from(number.min(3))),
    };
    vec![
        wait(RolloutWaitKind::Wave, hosts / 2, "wave 2 has all its hosts; it is a later wave's turn"),
        wait(RolloutWaitKind::InFlight, hosts / 5, "10 hosts are in the middle of a change, and no more may be"),
        wait(RolloutWaitKind::Changing, hosts / 10, ""),
        wait(RolloutWaitKind::Budget, 2, "1 host of north is unavailable, and no more may be"),
        wait(RolloutWaitKind::Budget, 1, "1 host of south is unavailable, and no more may be"),
        wait(RolloutWaitKind::Away, 1, "the host is offline"),
        wait(RolloutWaitKind::Paused, 1, "the rollout is paused"),
    ]
}

pub(super) fn detail(hostname: &str, phase: RolloutPhase, hosts: u64) -> RolloutDetail {
    let step = |seconds, operator: Option<&str>, text: &str| RolloutStep {
        at_ms: ago(seconds),
        operator: operator.map(|name| name.parse().unwrap()),
        text: if hostname == HOSTILE { HOSTILE.to_owned() } else { text.to_owned() },
    };
    RolloutDetail {
        policy:
            serde_json::json!({"waves": ["1", "10%"], "max_in_flight": "10%", "on_failure": "pause", "soak": hostname})
                .as_object()
                .cloned()
                .unwrap(),
        on_waves: vec![
            wave(1, RolloutWaveState::Ended, Some(1)),
            wave(2, RolloutWaveState::Present, Some(hosts / 10)),
            wave(3, RolloutWaveState::Waiting, None),
        ],
        waits: if phase.is_end() || hosts == 0 { vec![] } else { waits(hostname, hosts) },
        deadline_ms: (!phase.is_end()).then(|| ago(-80_000)),
        goes_back_to: Some(3),
        verbs: if phase.is_end() { vec![] } else { VERBS.to_vec() },
        steps: if hosts == 0 {
            vec![]
        } else {
            vec![
                step(95, None, "it is paused: 3 of 30 hosts of wave 2 have failed"),
                step(300, Some("anna"), "wave 2 is approved"),
                step(7_400, None, "wave 1 has ended"),
                step(7_500, Some("anna"), "it begins, with 300 hosts"),
            ]
        },
        rollout: rollout(phase, hosts),
    }
}

pub(super) fn rollout_host(hostname: &str, index: usize) -> RolloutHost {
    let outcome = (!index.is_multiple_of(3)).then(|| HostOutcome::ALL[index % HostOutcome::ALL.len()]);
    let kinds = [RolloutWaitKind::Changing, RolloutWaitKind::Wave, RolloutWaitKind::Budget, RolloutWaitKind::Away];
    let has_begun = !index.is_multiple_of(3) || index.is_multiple_of(2);
    RolloutHost {
        host: HostId(uuid::Uuid::from_u128(index as u128)),
        hostname: if hostname == HOSTILE { HOSTILE.to_owned() } else { format!("{hostname}-{index}") },
        wave: has_begun.then_some(1 + index as u32 % 2),
        group: index.is_multiple_of(2).then(|| if hostname == HOSTILE { HOSTILE } else { "north" }.to_owned()),
        outcome,
        waits: outcome.is_none().then(|| kinds[index % kinds.len()]),
        reason: (outcome != Some(HostOutcome::Verified)).then(|| Diagnostic::new(words(hostname))),
        changed: outcome.map(|_| !index.is_multiple_of(4)),
        is_unavailable: matches!(outcome, Some(HostOutcome::Failed | HostOutcome::Lost)),
        failures: (index % 3) as u32,
        admitted_ms: has_begun.then(|| ago(400)),
        ended_ms: outcome.map(|_| ago(90)),
    }
}

pub(super) fn rollout_view(hostname: &str, phase: RolloutPhase, hosts: u64) -> RolloutView {
    let shown = usize::try_from(hosts.min(100)).unwrap();
    let before = |version| Rollout { version, is_rollback: version == 2, ..rollout(RolloutPhase::Completed, hosts) };
    let detail = detail(hostname, phase, hosts);
    RolloutView {
        history: [detail.rollout.clone()].into_iter().chain((1..=3).rev().map(before)).collect(),
        hosts: RolloutHosts {
            version: 4,
            total: hosts,
            hosts: (0..shown).map(|index| rollout_host(hostname, index)).collect(),
        },
        detail,
        newest: 4,
        shown: ShownRollout::default(),
    }
}

/// One that an operator looks at while it is paused.
pub(super) fn paused_view(hostname: &str, hosts: u64) -> RolloutView {
    rollout_view(hostname, paused(&words(hostname)), hosts)
}

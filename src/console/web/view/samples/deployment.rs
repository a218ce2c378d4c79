//! Deployments.

use muster_topics::desired::{DeploymentName, DeploymentRefusal, RemovalTime};

use muster_api::{
    DeploymentPlan, FilePlan, PlacementObstacleCount, Plan, PlanFailure, PlanGroup, PlannedDeployment, UnitAction,
    UnitPlacement, UnitPlan,
};

use super::*;

pub(super) fn deployment_name() -> DeploymentName {
    "shop/till".parse().unwrap()
}

pub(super) fn owner(orphan: bool) -> UnitOwner {
    UnitOwner { deployment: deployment_name(), version: 4, orphan }
}

/// What a host says of a document: one deployment that it has refused, and units that are to go.
pub(super) fn desired_report(text: &str) -> DesiredReport {
    let mark = |generation| DesiredMark { epoch: 1, generation };
    let refused = DeploymentRefusal { version: 5, diagnostic: Diagnostic::new(text) };
    let diagnostic = Some(Diagnostic::new(text));
    let waits = AdmissionWait { version: 6, kind: AdmissionWaitKind::Admission, since_ms: ago(40), diagnostic };
    DesiredReport {
        mark: mark(8),
        digest: Some(Digest::of(b"body")),
        refused: Some(DocumentRefusal { mark: mark(9), diagnostic: Diagnostic::new(text) }),
        deployments: [
            (deployment_name(), DeploymentReport { version: 4, refused: Some(refused), waits: Some(waits) }),
            ("shop/scanner".parse().unwrap(), DeploymentReport { version: 2, refused: None, waits: None }),
        ]
        .into(),
        removals: [(name(0), None), (name(1), Some(ago(-3_600))), (name(2), Some(ago(5)))]
            .map(|(unit, from_ms)| (unit, RemovalTime { from_ms }))
            .into(),
    }
}

fn info(number: u32) -> DeploymentVersionInfo {
    DeploymentVersionInfo {
        number,
        digest: Digest::of(&number.to_be_bytes()),
        parent: (number > 1).then(|| Digest::of(b"before")),
        operator: "anna".parse().unwrap(),
        applied_ms: ago(i64::from(10 - number) * 4_000),
        repeats: (number == 4).then_some(2),
    }
}

fn deployment(hosts: &[DeploymentHost]) -> Deployment {
    let mut counts = BTreeMap::new();
    for host in hosts {
        *counts.entry(host.state).or_default() += 1;
    }
    Deployment {
        deployment: deployment_name(),
        version: info(4),
        select: "label.role=till and not label.frozen=yes".parse().unwrap(),
        units: 2,
        hosts: counts,
    }
}

pub(super) fn deployments() -> DeploymentsView {
    let other = Deployment { deployment: "shop/scanner".parse().unwrap(), ..deployment(&[]) };
    let cordoned = HostCordon {
        host: HostId(uuid::Uuid::from_u128(7)),
        hostname: HOSTILE.to_owned(),
        cordon: Cordon::Cordoned,
        deployments: 2,
        is_online: true,
        leaving: Vec::new(),
        operator: Some("anna".parse().unwrap()),
        set_ms: Some(ago(90)),
    };
    DeploymentsView {
        deployments: vec![deployment(&hosts("shop-7", 40)), other],
        unconfirmed: 3,
        cordoned: vec![cordoned; 60],
    }
}

fn hosts(hostname: &str, count: usize) -> Vec<DeploymentHost> {
    let host = |index: usize| {
        let state = DeploymentState::ALL[index % DeploymentState::ALL.len()];
        let reason = if hostname == HOSTILE { HOSTILE } else { "unit shop/till: exit code 3" };
        let is_away = state == DeploymentState::Away;
        DeploymentHost {
            host: HostId(uuid::Uuid::from_u128(index as u128)),
            hostname: if hostname == HOSTILE { HOSTILE.to_owned() } else { format!("{hostname}-{index}") },
            state,
            reason: (state != DeploymentState::Verified).then(|| Diagnostic::new(reason)),
            wanted: (state != DeploymentState::Removing).then_some(4),
            version: if state == DeploymentState::Verified { 4 } else { (index % 4) as u32 },
            instances: if index % 5 == 3 { vec![name(1).instance(1), name(1).instance(12)] } else { Vec::new() },
            away_since_ms: is_away.then(|| ago(7_000)),
        }
    };
    (0..count).map(host).collect()
}

fn units(text: &str) -> Vec<DeploymentUnit> {
    let artifact = unit("shop-7", 0).desired.spec.artifact().unwrap().clone();
    let configs = vec![config_ref("till.main")];
    let yuno = YunoSpec {
        configs,
        program: ProgramSpec { args: vec![text.to_owned()], ..ProgramSpec::default() },
        ..YunoSpec::new(artifact)
    };
    let container = ContainerSpec::new(Image::Name(text.to_owned()));
    vec![
        DeploymentUnit { unit: name(1), spec: Box::new(Spec::Yuno(yuno)), run: Run::Running, placement: None },
        DeploymentUnit {
            unit: name(2),
            spec: Box::new(Spec::Container(container)),
            run: Run::Stopped,
            placement: None,
        },
    ]
}

fn placement(text: &str) -> UnitPlacement {
    UnitPlacement {
        unit: name(1),
        count: 40,
        placed: 39,
        waiting: vec![name(1).instance(40)],
        obstacles: vec![PlacementObstacleCount { hosts: 3, why: text.to_owned() }],
        new: Vec::new(),
    }
}

fn document(text: &str) -> serde_json::Value {
    serde_json::json!({
        "deployment": "shop/till", "target": {"select": "label.role=till"},
        "units": [{"unit": "shop/till", "artifact": "till@2.4.1", "args": [text]}],
    })
}

pub(super) fn deployment_view(hostname: &str, count: usize) -> DeploymentView {
    let on_hosts = hosts(hostname, count);
    let detail = DeploymentDetail {
        deployment: deployment(&on_hosts),
        document: document(hostname),
        content: units(hostname),
        placement: vec![placement(hostname)],
        on_hosts,
    };
    let versions = (1..=4).rev().map(info).collect();
    DeploymentView { detail, versions, rollout: None, plan: None, shown: ShownDeploymentHosts::default() }
}

fn changes(text: &str) -> Vec<DeploymentUnitChange> {
    let field = |field: &str, from: Option<&str>, to: Option<&str>| FieldDifference {
        field: field.to_owned(),
        from: from.map(Into::into),
        to: to.map(Into::into),
    };
    let change =
        |index, change, cost, differences| DeploymentUnitChange { unit: name(index), change, cost, differences };
    let fields = vec![
        field("artifact", Some("till@2.4.0"), Some("till@2.4.1")),
        field(text, None, Some(text)),
        field("cwd", Some(text), None),
    ];
    vec![
        change(0, UnitChange::Change, Some(ChangeCost::Restart), fields),
        change(1, UnitChange::Remove, None, vec![]),
        change(2, UnitChange::Unchanged, None, vec![]),
    ]
}

fn select() -> FieldDifference {
    let (from, to) = (Some("host=*".into()), Some("label.role=till".into()));
    FieldDifference { field: "target.select".to_owned(), from, to }
}

pub(super) fn version_view(text: &str) -> VersionView {
    VersionView {
        deployment: deployment_name(),
        version: DeploymentVersionDetail {
            version: info(4),
            select: "label.role=till".parse().unwrap(),
            document: document(text),
            content: units(text),
        },
        differences: DeploymentDifferences { from: 3, to: 4, select: Some(select()), units: changes(text) },
        present: 5,
    }
}

pub(super) fn named(hostname: &str, count: u128) -> Vec<NamedHost> {
    let host = |index| NamedHost { host: HostId(uuid::Uuid::from_u128(index)), hostname: hostname.to_owned() };
    (0..count).map(host).collect()
}

pub(super) fn rollback_view(hostname: &str) -> RollbackView {
    RollbackView {
        deployment: deployment_name(),
        versions: (1..=4).rev().map(info).collect(),
        to: 3,
        planned: AppliedDeployment {
            deployment: deployment_name(),
            action: ApplyAction::Change,
            version: 5,
            select: Some(select()),
            units: changes(hostname),
            hosts: 17,
            gains: named(hostname, 2),
            loses: named(hostname, 70),
            is_rolled_out: false,
            placement: Vec::new(),
            notes: vec![hostname.to_owned()],
        },
    }
}

pub(super) fn removed(hostname: &str) -> RemovedDeployment {
    RemovedDeployment { deployment: deployment_name(), units: vec![name(1), name(2)], hosts: named(hostname, 3) }
}

pub(super) fn vars_view(hostname: &str) -> VarsView {
    let var = |layer: VarLayer, value: serde_json::Value| Var {
        hostname: matches!(layer, VarLayer::Host(_)).then(|| hostname.to_owned()),
        layer,
        name: "upstream".parse().unwrap(),
        value,
        operator: "anna".parse().unwrap(),
        set_ms: ago(70),
    };
    let host = HostId(uuid::Uuid::from_u128(7)).to_string();
    let layers = ["fleet", "realm:shop", "label:site=north"].map(|layer| layer.parse().unwrap());
    let vars = layers.into_iter().chain([VarLayer::Host(host)]);
    VarsView {
        shown: ShownVars { text: String::new(), page: 1 },
        vars: vars.map(|layer| var(layer, serde_json::json!({ "url": hostname }))).collect(),
        found: 240,
        form: VarForm::default(),
        problem: None,
    }
}

/// Hosts of a console that was restored; with a conflict, or without one.
pub(super) fn confirm_view(hostname: &str, conflict: bool) -> ConfirmView {
    let one = |name: &str, host_version, console_version, action| UnconfirmedDeployment {
        deployment: name.parse().unwrap(),
        host_version,
        console_version,
        action,
    };
    let last = if conflict { ConfirmAction::Conflict } else { ConfirmAction::Orphan };
    let host = |index: u128| UnconfirmedHost {
        host: HostId(uuid::Uuid::from_u128(index)),
        hostname: hostname.to_owned(),
        mark: DesiredMark { epoch: 1, generation: 8 },
        labels: (index < 3).then(|| UnconfirmedLabels {
            host: Some([("role".parse().unwrap(), "till".parse().unwrap())].into()),
            console: [].into(),
            action: ConfirmAction::Rebuild,
        }),
        deployments: match index {
            9 => vec![],
            _ => vec![
                one("shop/till", Some(8), Some(7), ConfirmAction::Rebuild),
                one("shop/scanner", None, Some(2), ConfirmAction::Add),
                one("shop/x", Some(1), None, last),
            ],
        },
    };
    ConfirmView {
        planned: ConfirmedDocuments { hosts: (0..70).map(host).collect(), waiting: named(hostname, 3) },
        replace: conflict,
        digest: Digest::of(b"shown"),
    }
}

pub(super) fn changed(text: &str) -> Vec<Change> {
    [ChangeKind::DeploymentApplied, ChangeKind::HostsDrained, ChangeKind::VarRemoved]
        .map(|kind| Change {
            at_ms: ago(40),
            operator: "anna".parse().unwrap(),
            kind,
            subject: text.to_owned(),
            detail: if kind == ChangeKind::VarRemoved { String::new() } else { text.to_owned() },
        })
        .into()
}

/// A plan: hosts that are alike, one that refuses, one that is away, one that cannot, and one that has failed.
pub(super) fn plan(text: &str, count: u128) -> Plan {
    let file = FilePlan {
        path: format!("/etc/{text}"),
        before: None,
        after: None,
        left: Some(Diagnostic::new(text)),
        diff: Some(format!("@@ -1,1 +1,1 @@\n-{text}\n+new\n")),
        is_masked: false,
    };
    let field = FieldDifference { field: "args".to_owned(), from: Some(text.into()), to: Some("new".into()) };
    let unit = |number, action| UnitPlan::new(name(number), action);
    let changed = vec![
        UnitPlan { fields: vec![field], ..unit(1, UnitAction::Restart) },
        UnitPlan { files: vec![file], ..unit(2, UnitAction::Change) },
    ];
    let refused = UnitPlan { reason: Some(Diagnostic::new(text)), ..unit(1, UnitAction::Refuse) };
    let group =
        |units, count| PlanGroup { plan: DeploymentPlan::of(deployment_name(), units), hosts: named(text, count) };
    let failure = |host| PlanFailure { host, diagnostic: Diagnostic::new(text) };
    Plan {
        id: "plan".to_owned(),
        operator: "anna".parse().unwrap(),
        made_ms: ago(90),
        done: true,
        digest: Some(Digest::of(b"plan")),
        error: None,
        asked: 30,
        answered: 30,
        deployments: vec![PlannedDeployment {
            change: rollback_view(text).planned,
            groups: vec![
                group(changed, count),
                group(vec![refused], 1),
                PlanGroup {
                    plan: DeploymentPlan::refused(deployment_name(), Diagnostic::new(text)),
                    hosts: named(text, 1),
                },
                PlanGroup {
                    plan: DeploymentPlan::of(deployment_name(), vec![unit(1, UnitAction::Create)]).brief(),
                    hosts: named(text, 1),
                },
            ],
            away: vec![group(vec![unit(1, UnitAction::Unchanged)], 1)],
            unheard: named(text, 1),
            failed: named(text, 1).into_iter().map(failure).collect(),
        }],
    }
}

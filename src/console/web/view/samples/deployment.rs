//! Deployments.

use muster_topics::desired::{DeploymentName, DeploymentRefusal};

use super::*;

fn deployment_name() -> DeploymentName {
    "shop/till".parse().unwrap()
}

pub(super) fn owner(orphan: bool) -> UnitOwner {
    UnitOwner { deployment: deployment_name(), version: 4, orphan }
}

/// What a host says of a document: one deployment that it has refused, and units that are to go.
pub(super) fn desired_report(text: &str) -> DesiredReport {
    let mark = |generation| DesiredMark { epoch: 1, generation };
    let refused = DeploymentRefusal { version: 5, message: text.to_owned() };
    DesiredReport {
        mark: mark(8),
        digest: Some(Digest::of(b"body")),
        refused: Some(DocumentRefusal { mark: mark(9), message: text.to_owned() }),
        deployments: [
            (deployment_name(), DeploymentReport { version: 4, refused: Some(refused) }),
            ("shop/scanner".parse().unwrap(), DeploymentReport { version: 2, refused: None }),
        ]
        .into(),
        removals: [(name(0), None), (name(1), Some(ago(-3_600))), (name(2), Some(ago(5)))].into(),
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
    DeploymentsView { deployments: vec![deployment(&hosts("shop-7", 40)), other] }
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
            reason: (state != DeploymentState::Verified).then(|| reason.to_owned()),
            wanted: (state != DeploymentState::Removing).then_some(4),
            version: if state == DeploymentState::Verified { 4 } else { (index % 4) as u32 },
            away_since_ms: is_away.then(|| ago(7_000)),
        }
    };
    (0..count).map(host).collect()
}

fn units(text: &str) -> Vec<DeploymentUnit> {
    let artifact = unit("shop-7", 0).desired.spec.artifact().unwrap().clone();
    let configs = vec![config_ref("till.main")];
    let yuno = YunoSpec { args: vec![text.to_owned()], configs, ..YunoSpec::new(artifact) };
    let container = ContainerSpec::new(Image::Name(text.to_owned()));
    vec![
        DeploymentUnit { unit: name(1), spec: Box::new(Spec::Yuno(yuno)), run: Run::Running },
        DeploymentUnit { unit: name(2), spec: Box::new(Spec::Container(container)), run: Run::Stopped },
    ]
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
        on_hosts,
    };
    DeploymentView { detail, versions: (1..=4).rev().map(info).collect(), shown: ShownDeploymentHosts::default() }
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

fn named(hostname: &str, count: u128) -> Vec<NamedHost> {
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
            notes: vec![hostname.to_owned()],
        },
    }
}

pub(super) fn removed(hostname: &str) -> RemovedDeployment {
    RemovedDeployment { deployment: deployment_name(), units: vec![name(1), name(2)], hosts: named(hostname, 3) }
}

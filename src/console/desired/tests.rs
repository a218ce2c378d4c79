//! Tests of deployments, with hosts that are played here.

mod damaged;
mod lost;
mod removed;
mod watched;

use muster_api::{
    AppliedDeployment, ApplyAction, ApplyDeployments, ApplyDocument, ConfirmAction, ConfirmDocuments,
    ConfirmedDocuments, Cordon, CordonHosts, DeploymentState, LabelHosts, Labels, NewConfig, NewSecret, NewTarget,
    NewVar, RemoveDeployment, RollBack, SyncFindingKind, UnitChange, UnitOnHosts, VarLayer,
};
use muster_base::clock::now_ms;
use muster_topics::{
    V1,
    desired::{
        DeploymentName, DeploymentReport, DesiredBody, DesiredHead, DesiredMark, DesiredReport, HandedIn, RemovalTime,
        StoredDocument, UnitOwner,
    },
    envelope::Envelope,
    name::{Digest, HostId, Name, UnitName},
    numbered::{NumberedContent, NumberedDocument},
    presence::Capability,
    unit::{Desired, Observed, Phase, Run, Spec, UnitReport, YunoSpec},
};
use serde_json::{Value, json};

use crate::{
    error::Error,
    store::{self, desired::DocumentRow, given::GivenPart},
    testing::{Fixture, Member, admin, problem},
};

fn name(text: &str) -> DeploymentName {
    text.parse().unwrap()
}

fn unit(text: &str) -> UnitName {
    text.parse().unwrap()
}

/// Adds the artifact `till@1`, whose bytes are `version`.
async fn artifact(fixture: &Fixture, version: &str) {
    let labels = Labels { role: "till".parse().unwrap(), version: version.parse().unwrap(), manifest: None };
    let body = futures_util::stream::iter([Ok::<_, std::io::Error>(version.to_owned().into_bytes())]);
    fixture.console.add_artifact(&admin(), labels, body).await.unwrap();
}

async fn fixture() -> Fixture {
    let fixture = Fixture::new().await;
    let realm = json!({"name": "shop"});
    fixture.console.create_realm(&admin(), serde_json::from_value(realm).unwrap()).await.unwrap();
    artifact(&fixture, "1").await;
    artifact(&fixture, "2").await;
    fixture
}

fn document(deployment: &str, select: &str, units: Value) -> Value {
    json!({"deployment": deployment, "target": {"select": select}, "units": units})
}

fn till(version: &str) -> Value {
    json!([{"name": "till", "artifact": format!("till@{version}")}])
}

async fn try_apply(
    fixture: &Fixture,
    documents: &[Value],
    dry_run: bool,
    adopt: bool,
) -> Result<Vec<AppliedDeployment>, Error> {
    let documents = documents
        .iter()
        .map(|content| ApplyDocument { source: "shop.yaml".to_owned(), content: content.clone() })
        .collect();
    let apply = ApplyDeployments { documents, dry_run, adopt, plan: None };
    Ok(fixture.console.apply_deployments(&admin(), apply).await?.deployments)
}

async fn apply(fixture: &Fixture, document: Value) -> AppliedDeployment {
    try_apply(fixture, &[document], false, false).await.unwrap().pop().unwrap()
}

async fn label(fixture: &Fixture, host: HostId, set: &[(&str, &str)], remove: &[&str]) {
    let wanted = LabelHosts {
        target: NewTarget::Hosts(vec![host.to_string()]),
        set: set.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect(),
        remove: remove.iter().map(|name| name.parse().unwrap()).collect(),
        replace: true,
    };
    fixture.console.label_hosts(&admin(), wanted).await.unwrap();
    fixture.console.catch_up().await.unwrap();
}

/// A host that carries the label `role=till`, and has reported its state.
async fn able(fixture: &Fixture, hostname: &str) -> Member {
    let member = fixture.member(hostname).await;
    heard(fixture, member.id, DesiredReport::default()).await;
    label(fixture, member.id, &[("role", "till")], &[]).await;
    member
}

/// A host says what it can do.
async fn can(fixture: &Fixture, host: HostId, capabilities: &[Capability]) {
    fixture.shared().hosts.desired.set_capabilities(host, capabilities.to_vec());
    fixture.console.catch_up().await.unwrap();
}

async fn heard(fixture: &Fixture, host: HostId, report: DesiredReport) {
    fixture.shared().hosts.desired.heard(host, report, fixture.shared().hosts.labels.newer(host), now_ms());
    fixture.console.catch_up().await.unwrap();
}

fn row(fixture: &Fixture, host: HostId) -> Option<DocumentRow> {
    fixture.shared().hosts.desired.table().hosts.get(&host)?.document.clone()
}

async fn body(fixture: &Fixture, host: HostId) -> DesiredBody {
    let row = row(fixture, host).unwrap();
    let text = store::desired::body(fixture.shared().store.read(), &row.digest).await.unwrap().unwrap();
    assert_eq!((Digest::of(text.as_bytes()), text.len() as u64), (row.digest, row.size_bytes));
    serde_json::from_str(&text).unwrap()
}

fn generation_of_document(fixture: &Fixture, host: HostId) -> u64 {
    row(fixture, host).map_or(0, |row| row.mark.generation)
}

fn numbers(body: &DesiredBody) -> Vec<(String, u32)> {
    body.deployments.iter().map(|one| (one.version.deployment.to_string(), one.version.number)).collect()
}

/// A host stores its present document, with what becomes of its deployments.
async fn store_document(fixture: &Fixture, host: HostId) {
    let (row, body) = (row(fixture, host).unwrap(), body(fixture, host).await);
    let version = |number| DeploymentReport { version: number, refused: None, waits: None };
    let deployments =
        body.deployments.iter().map(|one| (one.version.deployment.clone(), version(one.version.number))).collect();
    let removals = body.remove.iter().map(|removal| (removal.unit.clone(), RemovalTime::default())).collect();
    let report =
        DesiredReport { mark: row.mark, digest: Some(row.digest), deployments, removals, ..DesiredReport::default() };
    heard(fixture, host, report).await;
}

/// A host reports a running unit.
async fn report_unit(fixture: &Fixture, host: HostId, name: &str, owner: Option<(&str, u32)>) {
    let artifact = fixture.console.artifacts(None, None).await.unwrap().remove(0);
    let spec = Spec::Yuno(YunoSpec::new(artifact.into()));
    let revision = spec.revision().unwrap();
    let observed = Observed {
        generation: 1,
        revision: Some(revision.clone()),
        state: Phase::Running.into(),
        ..Observed::absent(1)
    };
    let owner = owner.map(|(deployment, version)| UnitOwner {
        deployment: deployment.parse().unwrap(),
        version,
        orphan: false,
    });
    let report = UnitReport {
        v: V1,
        epoch: 1,
        seq: u64::try_from(now_ms()).unwrap(),
        at_ms: 1,
        unit: unit(name),
        desired: Desired { generation: 1, revision, spec: spec.into(), run: Run::Running, frozen: false },
        observed,
        hold: None,
        owner,
        pins: Default::default(),
        stats: None,
    };
    let mut transaction = fixture.shared().store.begin().await.unwrap();
    store::host::set_unit(&mut transaction, host, &report, 1).await.unwrap();
    transaction.commit().await.unwrap();
}

async fn set_online(fixture: &Fixture, host: HostId, is_online: bool) {
    sqlx::query(
        "INSERT INTO presence (host, state, epoch, session, agent_version, since_ms, capabilities)
         VALUES ($1, $2, 1, 1, '1', 1, json_array('fresh_time')) ON CONFLICT (host) DO UPDATE SET state = excluded.state",
    )
    .bind(host.to_string())
    .bind(if is_online { "online" } else { "offline" })
    .execute(fixture.shared().store.write())
    .await
    .unwrap();
}

async fn states(fixture: &Fixture, deployment: &str) -> Vec<(String, DeploymentState)> {
    let hosts = fixture.console.deployment_hosts(&name(deployment)).await.unwrap();
    hosts.into_iter().map(|host| (host.hostname, host.state)).collect()
}

#[tokio::test]
async fn version_targets_and_documents_follow_each_other() {
    use DeploymentState::{Cannot, Changing, Pending, Verified};
    let fixture = fixture().await;
    let (one, two) = (able(&fixture, "one").await, able(&fixture, "two").await);
    let bare = able(&fixture, "bare").await;
    can(&fixture, bare.id, &[Capability::Podman]).await;
    let applied = apply(&fixture, document("shop/till", "label.role=till", till("1"))).await;
    assert_eq!((applied.action, applied.version, applied.hosts), (ApplyAction::Create, 1, 2));
    let names = |hosts: &[muster_api::NamedHost]| hosts.iter().map(|host| host.hostname.clone()).collect::<Vec<_>>();
    assert_eq!(names(&applied.gains), ["one", "two"]);
    let noted = "1 of the hosts that it selects do not get it: its agent runs no yunos";
    assert!(applied.notes.iter().any(|note| note.contains(noted)), "{:?}", applied.notes);
    // Both share one body; the host that lacks what the unit needs gets none.
    let (first, second) = (row(&fixture, one.id).unwrap(), row(&fixture, two.id).unwrap());
    assert_eq!((first.mark, &first.digest), (DesiredMark { epoch: 1, generation: 1 }, &second.digest));
    assert_eq!(row(&fixture, bare.id), None);
    assert_eq!(numbers(&body(&fixture, one.id).await), [("shop/till".to_owned(), 1)]);
    let word = |host: &str, state| (host.to_owned(), state);
    // None of them is online.
    let away = DeploymentState::Away;
    assert_eq!(states(&fixture, "shop/till").await, [word("bare", Cannot), word("one", away), word("two", away)]);
    for host in [one.id, two.id] {
        set_online(&fixture, host, true).await;
    }
    store_document(&fixture, one.id).await;
    assert_eq!(
        states(&fixture, "shop/till").await,
        [word("bare", Cannot), word("one", Changing), word("two", Pending)]
    );
    report_unit(&fixture, one.id, "shop/till", Some(("shop/till", 1))).await;
    assert_eq!(states(&fixture, "shop/till").await[1], word("one", Verified));
    // The same again is no version.
    let again = apply(&fixture, document("shop/till", "label.role=till", till("1"))).await;
    assert_eq!((again.action, again.version), (ApplyAction::Unchanged, 1));
    assert_eq!(generation_of_document(&fixture, one.id), 1);
    // Another one is shown before, and made.
    let other = document("shop/till", "label.role=till", till("2"));
    let shown = try_apply(&fixture, std::slice::from_ref(&other), true, false).await.unwrap().pop().unwrap();
    assert_eq!((shown.action, shown.version, generation_of_document(&fixture, one.id)), (ApplyAction::Change, 2, 1));
    let fields: Vec<&str> = shown.units[0].differences.iter().map(|one| one.field.as_str()).collect();
    assert_eq!((shown.units[0].change, fields), (UnitChange::Change, vec!["artifact"]));
    apply(&fixture, other).await;
    assert_eq!((generation_of_document(&fixture, one.id), generation_of_document(&fixture, two.id)), (2, 2));
    // Back to the first content, as a third version.
    let back = fixture.console.roll_back_deployment(&admin(), &name("shop/till"), RollBack::default()).await.unwrap();
    assert_eq!((back.version, back.units[0].change), (3, UnitChange::Change));
    let history = fixture.console.deployment_history(&name("shop/till")).await.unwrap();
    let parents: Vec<_> = history.iter().map(|one| (one.number, one.parent.clone(), one.repeats)).collect();
    let digest = |number: usize| Some(history[number].digest.clone());
    assert_eq!(parents, [(3, digest(1), Some(1)), (2, digest(2), None), (1, None, None)]);
    fixture.running.stop().await;
}

#[tokio::test]
async fn faults_are_told_at_once_and_change_nothing() {
    let fixture = fixture().await;
    let host = able(&fixture, "one").await;
    let good = document("shop/till", "label.role=till", till("1"));
    let bad = document(
        "shop/web",
        "label.role=till",
        json!([{"name": "web", "artifact": "nothing@9"}, {"name": "x", "artifact": "till@7"}]),
    );
    let error = try_apply(&fixture, &[good.clone(), bad], false, false).await.unwrap_err();
    let message = error.problem.diagnostic.cause.clone();
    assert!(message.contains("nothing") && message.contains("till@7"), "{message}");
    assert_eq!((fixture.console.deployments().await.unwrap().len(), row(&fixture, host.id)), (0, None));
    // Realms have to be there.
    let error = try_apply(&fixture, &[document("elsewhere/till", "host=*", till("1"))], false, false).await;
    assert!(error.unwrap_err().problem.diagnostic.cause.contains("realm elsewhere"));
    // Two that claim a unit.
    apply(&fixture, good).await;
    let rival = document("shop/other", "label.role=till", json!([{"unit": "shop/till", "artifact": "till@1"}]));
    let error = try_apply(&fixture, std::slice::from_ref(&rival), false, false).await.unwrap_err();
    assert!(error.problem.diagnostic.cause.contains("belongs to deployment shop/till"), "{error:?}");
    // One that claims it by labels only later is told, and the first keeps it.
    let rival = document("shop/other", "label.rival", json!([{"unit": "shop/till", "artifact": "till@1"}]));
    let applied = apply(&fixture, rival).await;
    assert!(applied.notes[0].contains("selects no host"), "{:?}", applied.notes);
    label(&fixture, host.id, &[("rival", "yes")], &[]).await;
    assert_eq!(numbers(&body(&fixture, host.id).await), [("shop/till".to_owned(), 1)]);
    assert_eq!(states(&fixture, "shop/other").await, [("one".to_owned(), DeploymentState::Conflict)]);
    let first = fixture.console.deployment_hosts(&name("shop/till")).await.unwrap();
    assert!(first[0].reason.as_ref().is_some(), "{first:?}");
    // A unit that a verb has made.
    report_unit(&fixture, host.id, "shop/web", None).await;
    let web = document("shop/web", "label.role=till", json!([{"name": "web", "artifact": "till@1"}]));
    let error = try_apply(&fixture, std::slice::from_ref(&web), false, false).await.unwrap_err();
    assert!(error.problem.diagnostic.cause.contains("--adopt"), "{error:?}");
    try_apply(&fixture, &[web], false, true).await.unwrap();
    let adopted: Vec<_> = body(&fixture, host.id).await.deployments.into_iter().map(|one| one.adopt).collect();
    assert_eq!(adopted, [vec![], vec![unit("shop/web")]]);
    fixture.running.stop().await;
}

#[tokio::test]
async fn what_a_host_loses_is_removed_until_it_says_so() {
    let fixture = fixture().await;
    let host = able(&fixture, "one").await;
    let two = json!([{"name": "till", "artifact": "till@1"}, {"name": "web", "artifact": "till@1"}]);
    apply(&fixture, document("shop/till", "label.role=till", two)).await;
    store_document(&fixture, host.id).await;
    report_unit(&fixture, host.id, "shop/till", Some(("shop/till", 1))).await;
    report_unit(&fixture, host.id, "shop/web", Some(("shop/till", 1))).await;
    // A version without one of them.
    apply(&fixture, document("shop/till", "label.role=till", till("1"))).await;
    let removed: Vec<_> = body(&fixture, host.id).await.remove.into_iter().map(|one| one.unit).collect();
    assert_eq!(removed, [unit("shop/web")]);
    // The label goes: all of it.
    label(&fixture, host.id, &[], &["role"]).await;
    let now = body(&fixture, host.id).await;
    assert_eq!((now.deployments.len(), now.remove.len()), (0, 2));
    // It comes back before the host could do anything.
    label(&fixture, host.id, &[("role", "till")], &[]).await;
    let now = body(&fixture, host.id).await;
    assert_eq!((numbers(&now), now.remove.len()), (vec![("shop/till".to_owned(), 2)], 1));
    // The host has stored that, and waits.
    store_document(&fixture, host.id).await;
    assert_eq!(body(&fixture, host.id).await.remove.len(), 1);
    // It does not wait any more, and the unit is there yet.
    let row = row(&fixture, host.id).unwrap();
    let done = DesiredReport { mark: row.mark, digest: Some(row.digest), ..DesiredReport::default() };
    heard(
        &fixture,
        host.id,
        DesiredReport {
            deployments: [(name("shop/till"), DeploymentReport { version: 2, refused: None, waits: None })].into(),
            ..done.clone()
        },
    )
    .await;
    assert_eq!(body(&fixture, host.id).await.remove.len(), 1);
    let mut transaction = fixture.shared().store.begin().await.unwrap();
    store::host::remove_unit(&mut transaction, host.id, &unit("shop/web")).await.unwrap();
    transaction.commit().await.unwrap();
    heard(&fixture, host.id, done).await;
    let now = body(&fixture, host.id).await;
    assert_eq!((now.remove.len(), now.deployments.len()), (0, 1));
    // The whole deployment goes, with its data; and is listed until it is gone.
    let wanted = RemoveDeployment { purge: true, ..RemoveDeployment::default() };
    let removed = fixture.console.remove_deployment(&admin(), &name("shop/till"), wanted).await.unwrap();
    assert_eq!(removed.hosts.len(), 1);
    assert!(body(&fixture, host.id).await.remove.iter().all(|one| one.purge && one.unit == unit("shop/till")));
    assert_eq!(fixture.console.deployments().await.unwrap().len(), 1);
    // Its name is free, and its numbers are not.
    assert_eq!(apply(&fixture, document("shop/till", "label.none", till("1"))).await.version, 3);
    // One that is kept is an orphan.
    apply(&fixture, document("shop/keep", "label.role=till", json!([{"name": "keep", "artifact": "till@1"}]))).await;
    report_unit(&fixture, host.id, "shop/keep", Some(("shop/keep", 1))).await;
    let keep = RemoveDeployment { keep: true, ..RemoveDeployment::default() };
    fixture.console.remove_deployment(&admin(), &name("shop/keep"), keep).await.unwrap();
    assert!(body(&fixture, host.id).await.remove.iter().all(|one| one.unit != unit("shop/keep")));
    fixture.running.stop().await;
}

#[tokio::test]
async fn host_gets_a_version_once_it_has_what_that_needs() {
    let fixture = fixture().await;
    let (one, late) = (able(&fixture, "one").await, able(&fixture, "late").await);
    can(&fixture, late.id, &[Capability::Yuno]).await;
    let wanted = |image: &str| {
        let units = json!([
            {"name": "till", "artifact": "till@1"},
            {"name": "web", "kind": "container", "image": {"name": image}},
        ]);
        document("shop/till", "label.role=till", units)
    };
    let applied = apply(&fixture, wanted("docker.io/library/busybox:1")).await;
    assert_eq!((applied.hosts, row(&fixture, late.id)), (1, None));
    assert!(row(&fixture, one.id).is_some(), "it has not said what it can do: it judges itself");
    let shown = async || {
        let hosts = fixture.console.deployment_hosts(&name("shop/till")).await.unwrap();
        hosts.into_iter().find(|host| host.hostname == "late").unwrap()
    };
    let host = shown().await;
    assert_eq!(host.state, DeploymentState::Cannot);
    let reason = host.reason.unwrap();
    assert!(reason.cause.starts_with("it has no Podman"), "{reason}");
    assert!(reason.hint.as_ref().unwrap().starts_with("install Podman"), "{reason}");
    can(&fixture, late.id, &[Capability::Yuno, Capability::Podman]).await;
    assert_eq!(numbers(&body(&fixture, late.id).await), [("shop/till".to_owned(), 1)]);
    assert_eq!(shown().await.state, DeploymentState::Away);
    // What it has stays when it loses that; it gets no other version meanwhile.
    can(&fixture, late.id, &[Capability::Yuno]).await;
    apply(&fixture, wanted("docker.io/library/busybox:2")).await;
    assert_eq!(numbers(&body(&fixture, late.id).await), [("shop/till".to_owned(), 1)]);
    assert_eq!(numbers(&body(&fixture, one.id).await), [("shop/till".to_owned(), 2)]);
    // It is stored, for a console that starts anew.
    let presence = "INSERT INTO presence (host, state, epoch, session, agent_version, since_ms, capabilities)
                    VALUES ($1, 'online', 1, 1, '1', 1, '[\"yuno\",\"levitate\"]')";
    sqlx::query(presence).bind(late.id.to_string()).execute(fixture.shared().store.write()).await.unwrap();
    let table = super::table::DesiredTable::load(&fixture.shared().store).await.unwrap();
    assert_eq!(table.hosts[&late.id].capabilities, Some(vec![Capability::Yuno, Capability::Other]));
    fixture.running.stop().await;
}

#[tokio::test]
async fn secrets_follow_labels_of_the_console_alone() {
    let fixture = fixture().await;
    let host = able(&fixture, "one").await;
    let secret = async |value: &str| {
        let new = NewSecret { realm: "shop".parse().unwrap(), name: "db".parse().unwrap(), value: value.to_owned() };
        fixture.console.set_secret(&admin(), new).await.unwrap();
        fixture.console.catch_up().await.unwrap();
    };
    secret("hunter2").await;
    let content = json!({"password": {"$secret": {"name": "db"}}}).to_string();
    let config = NewConfig { id: "till".parse().unwrap(), version: "1".parse().unwrap(), content };
    fixture.console.add_config(&admin(), config).await.unwrap();
    let units = json!([{"name": "till", "artifact": "till@1", "configs": ["till@1"]}]);
    for select in ["host=*", "fact.cpus=2", "not label.frozen", "label.role=till or realm=shop"] {
        let error = try_apply(&fixture, &[document("shop/till", select, units.clone())], false, false).await;
        assert!(error.unwrap_err().problem.diagnostic.cause.contains("require a label"), "{select}");
    }
    apply(&fixture, document("shop/till", "label.role=till and fact.cpus=2", units)).await;
    let versions = async || body(&fixture, host.id).await.deployments[0].secrets[&unit("shop/till")][0].version;
    assert_eq!((versions().await, generation_of_document(&fixture, host.id)), (1, 1));
    assert!(body(&fixture, host.id).await.deployments[0].version.units[0].spec.common().secrets.is_empty());
    let get = async |version: u32| {
        let url = fixture.hosts_url(&format!("/v1/secrets/shop/db/{version}"));
        fixture.client(host.identity()).get(url).send().await.unwrap().status().as_u16()
    };
    assert_eq!((get(1).await, get(2).await), (200, 403));
    // A changed secret is another document, and no other version.
    secret("hunter3").await;
    assert_eq!((versions().await, generation_of_document(&fixture, host.id), get(2).await), (2, 2, 200));
    assert_eq!(fixture.console.deployment_history(&name("shop/till")).await.unwrap().len(), 1);
    // What a deployment needs is not removed.
    let realm: Name = "shop".parse().unwrap();
    let error = fixture.console.remove_secret(&admin(), &realm, &"db".parse().unwrap()).await.unwrap_err();
    assert_eq!(error.problem.code, "in_use");
    fixture.running.stop().await;
}

#[tokio::test]
async fn body_is_given_to_its_host_alone() {
    let fixture = fixture().await;
    let (one, other) = (able(&fixture, "one").await, fixture.member("other").await);
    let units = json!([{"name": "till", "artifact": "till@1", "env": {"PIN": "4711"}}]);
    apply(&fixture, document("shop/till", "label.role=till", units)).await;
    let row = row(&fixture, one.id).unwrap();
    assert!(row.is_secret, "values of environments do not go over the broker");
    let get = async |member: &Member, digest: &Digest| {
        let url = fixture.hosts_url(&format!("/v1/desired/{digest}"));
        fixture.client(member.identity()).get(url).send().await.unwrap()
    };
    let text = get(&one, &row.digest).await.text().await.unwrap();
    assert_eq!(Digest::of(text.as_bytes()), row.digest);
    assert_eq!(problem(get(&other, &row.digest).await).await, (403, "not_assigned".to_owned()));
    assert_eq!(problem(get(&one, &Digest::of(b"x")).await).await, (403, "not_assigned".to_owned()));
    // Nobody else reads the value.
    let detail = fixture.console.deployment(&name("shop/till")).await.unwrap();
    let applied = fixture.console.deployment_version(&name("shop/till"), 1).await.unwrap();
    assert!(!serde_json::to_string(&detail).unwrap().contains("4711"));
    assert!(!serde_json::to_string(&applied).unwrap().contains("4711"));
    // A mask keeps it.
    let units = json!([{"name": "till", "artifact": "till@2", "env": {"PIN": "***"}}]);
    apply(&fixture, document("shop/till", "label.role=till", units)).await;
    let spec = body(&fixture, one.id).await.deployments.remove(0).version.units.remove(0).spec;
    assert_eq!(spec.env().get("PIN").unwrap(), "4711");
    fixture.running.stop().await;
}

/// A document of a console whose store was lost: the same keys, and nothing known of it.
async fn foreign(fixture: &Fixture, host: HostId, mark: DesiredMark, body: &DesiredBody) -> HandedIn {
    let text = serde_json::to_string(body).unwrap();
    let digest = Digest::of(text.as_bytes());
    let size_bytes = text.len() as u64;
    let head = DesiredHead { v: V1, host, mark, issued_ms: 1, digest, size_bytes };
    let signed = fixture.shared().authority.keys().signer.sign(host.slot(), &head).await.unwrap();
    let head: Envelope = serde_json::from_slice(&signed).unwrap();
    HandedIn { v: V1, document: Some(StoredDocument { head, body: text }), labels: None }
}

/// The digest of the document that is handed in.
fn digest_of(handed_in: &HandedIn) -> Digest {
    Digest::of(handed_in.document.as_ref().unwrap().body.as_bytes())
}

#[tokio::test]
async fn lost_store_is_rebuilt_from_what_hosts_hand_in() {
    let fixture = fixture().await;
    let host = able(&fixture, "one").await;
    // What the host has is made here, and then forgotten.
    apply(&fixture, document("shop/till", "label.role=till", till("1"))).await;
    apply(&fixture, document("shop/till", "label.role=till", till("2"))).await;
    let body = body(&fixture, host.id).await;
    let artifact = body.deployments[0].version.units[0].spec.artifact().unwrap().sha256.clone();
    let may_fetch = async || fixture.console.may_fetch(host.id, GivenPart::Content(&artifact)).await.unwrap();
    assert!(may_fetch().await);
    let tables =
        ["given", "unit_removal", "assignment", "host_document", "issued_document", "deployment_version", "deployment"];
    for table in tables {
        sqlx::query(sqlx::AssertSqlSafe(format!("DELETE FROM {table}")))
            .execute(fixture.shared().store.write())
            .await
            .unwrap();
    }
    *fixture.shared().hosts.desired.table() = super::table::DesiredTable::load(&fixture.shared().store).await.unwrap();
    let mark = DesiredMark { epoch: 1, generation: 7 };
    let document = foreign(&fixture, host.id, mark, &body).await;
    let digest = digest_of(&document);
    heard(&fixture, host.id, DesiredReport { mark, digest: Some(digest), ..DesiredReport::default() }).await;
    // It is sent nothing until that is confirmed.
    apply(
        &fixture,
        super::tests::document("shop/other", "label.role=till", json!([{"name": "other", "artifact": "till@1"}])),
    )
    .await;
    assert_eq!(row(&fixture, host.id), None);
    fixture.console.sync().await;
    let counts = fixture.console.deployment_sync().last.unwrap().counts;
    assert_eq!(counts.get(&SyncFindingKind::Unconfirmed), Some(&1), "{counts:?}");
    let confirm = async |dry_run| {
        let wanted = ConfirmDocuments { target: NewTarget::All, dry_run, replace: false };
        fixture.console.confirm_documents(&admin(), wanted).await
    };
    assert_eq!(confirm(false).await.unwrap().waiting.len(), 1);
    let put = async |document: &HandedIn| {
        let client = fixture.client(host.identity());
        client.put(fixture.hosts_url("/v1/desired")).json(document).send().await.unwrap()
    };
    let mut forged = document.clone();
    forged.document.as_mut().unwrap().body = "{\"v\":1}".to_owned();
    assert_eq!(problem(put(&forged).await).await, (400, "bad_document".to_owned()));
    let another = foreign(&fixture, HostId::random(), mark, &body).await;
    assert_eq!(problem(put(&another).await).await, (400, "bad_document".to_owned()));
    assert!(!may_fetch().await, "what it reports and what is not signed gives it nothing");
    // Nor does a document from before those that the console remembers: it may have been replaced.
    let mut db = fixture.shared().store.begin().await.unwrap();
    let later = DesiredMark { epoch: 1, generation: 8 };
    store::desired::note_issued(&mut db, host.id, later, &Digest::of(b"later")).await.unwrap();
    db.commit().await.unwrap();
    assert_eq!(put(&document).await.status(), 204);
    assert!(!may_fetch().await);
    sqlx::query("DELETE FROM issued_document").execute(fixture.shared().store.write()).await.unwrap();
    assert_eq!(put(&document).await.status(), 204);
    assert!(may_fetch().await, "the console has signed that");
    let shown = confirm(true).await.unwrap();
    let actions: Vec<_> =
        shown.hosts[0].deployments.iter().map(|one| (one.deployment.to_string(), one.action)).collect();
    assert_eq!(
        actions,
        [("shop/other".to_owned(), ConfirmAction::Add), ("shop/till".to_owned(), ConfirmAction::Rebuild)]
    );
    assert_eq!((row(&fixture, host.id), fixture.console.deployments().await.unwrap().len()), (None, 1));
    confirm(false).await.unwrap();
    let after = row(&fixture, host.id).unwrap();
    assert_eq!(after.mark, DesiredMark { epoch: 2, generation: 8 });
    let now = super::tests::body(&fixture, host.id).await;
    assert_eq!(numbers(&now), [("shop/other".to_owned(), 1), ("shop/till".to_owned(), 2)]);
    assert_eq!((&now.deployments[1].version, now.remove.len()), (&body.deployments[0].version, 0));
    // That the host still reports the one of before is no doubt.
    fixture.shared().hosts.desired.table().hosts.get_mut(&host.id).unwrap().own_mark = None;
    heard(&fixture, host.id, DesiredReport { mark, digest: Some(digest_of(&document)), ..DesiredReport::default() })
        .await;
    assert!(!fixture.shared().hosts.desired.table().hosts[&host.id].is_unconfirmed());
    fixture.running.stop().await;
}

/// Labels that a console whose store was lost had given a host.
async fn foreign_labels(fixture: &Fixture, host: HostId, generation: u64, labels: &[(&str, &str)]) -> HandedIn {
    let labels = labels.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
    let content = NumberedContent::HostLabels(labels);
    let labels = NumberedDocument { v: V1, host, issued_ms: 1, number: generation, content };
    let signed = fixture.shared().authority.keys().signer.sign(host.slot(), &labels).await.unwrap();
    HandedIn { v: V1, document: None, labels: Some(serde_json::from_slice(&signed).unwrap()) }
}

async fn console_labels(fixture: &Fixture, host: HostId) -> Vec<String> {
    let given = store::label::given(fixture.shared().store.read(), Some(&[host])).await.unwrap();
    let labels = given.get(&host).into_iter().flatten();
    labels.map(|(name, given)| format!("{name}={} {}", given.value, given.operator)).collect()
}

async fn confirm(fixture: &Fixture, dry_run: bool, replace: bool) -> ConfirmedDocuments {
    let wanted = ConfirmDocuments { target: NewTarget::All, dry_run, replace };
    fixture.console.confirm_documents(&admin(), wanted).await.unwrap()
}

#[tokio::test]
async fn labels_of_a_lost_store_are_taken_from_what_the_console_had_signed() {
    let fixture = fixture().await;
    let host = fixture.member("one").await;
    let labels = || &fixture.shared().hosts.labels;
    let generation = u64::try_from(now_ms()).unwrap() + 1_000_000;
    labels().confirm(host.id, Some(generation), now_ms());
    heard(&fixture, host.id, DesiredReport::default()).await;
    // What it should have is not decided by labels that the console lacks: this one picks it without them.
    let applied = apply(&fixture, document("shop/till", "not label.frozen", till("1"))).await;
    assert_eq!((applied.hosts, row(&fixture, host.id)), (0, None));
    fixture.console.sync().await;
    let counts = fixture.console.deployment_sync().last.unwrap().counts;
    assert_eq!(counts.get(&SyncFindingKind::Unconfirmed), Some(&1), "{counts:?}");
    // What it says of itself is nothing.
    assert_eq!(confirm(&fixture, false, false).await.waiting.len(), 1);
    let put = async |handed_in: &HandedIn| {
        let client = fixture.client(host.identity());
        client.put(fixture.hosts_url("/v1/desired")).json(handed_in).send().await.unwrap()
    };
    let good = foreign_labels(&fixture, host.id, generation, &[("role", "till"), ("frozen", "yes")]).await;
    let mut forged = serde_json::to_value(&good).unwrap();
    let text = forged["labels"]["body"].as_str().unwrap().replace("till", "bank");
    forged["labels"]["body"] = text.into();
    assert_eq!(problem(put(&serde_json::from_value(forged).unwrap()).await).await, (400, "bad_document".to_owned()));
    let foreign = foreign_labels(&fixture, HostId::random(), generation, &[("role", "till")]).await;
    assert_eq!(problem(put(&foreign).await).await, (400, "bad_document".to_owned()));
    // One from before, of which it says that it has a later one.
    let earlier = foreign_labels(&fixture, host.id, generation - 1, &[("role", "till")]).await;
    assert_eq!(problem(put(&earlier).await).await, (409, "not_asked".to_owned()));
    assert_eq!(put(&good).await.status(), 204);

    let shown = confirm(&fixture, true, false).await.hosts.remove(0);
    let taken = shown.labels.unwrap();
    assert_eq!((taken.action, taken.host.unwrap().len(), taken.console.len()), (ConfirmAction::Rebuild, 2, 0));
    assert_eq!(shown.deployments, [], "it is frozen by its labels");
    assert_eq!(console_labels(&fixture, host.id).await, [""; 0]);
    confirm(&fixture, false, false).await;
    assert_eq!(console_labels(&fixture, host.id).await, ["frozen=yes admin", "role=till admin"]);
    assert!(labels().tellings.of(host.id) > generation && labels().newer(host.id).is_none());
    fixture.console.catch_up().await.unwrap();
    assert_eq!(row(&fixture, host.id), None);
    label(&fixture, host.id, &[], &["frozen"]).await;
    assert_eq!(numbers(&body(&fixture, host.id).await), [("shop/till".to_owned(), 1)]);
    fixture.running.stop().await;
}

#[tokio::test]
async fn older_labels_of_a_restored_console_change_nothing_until_they_replace() {
    let fixture = fixture().await;
    let host = able(&fixture, "one").await;
    apply(&fixture, document("shop/till", "label.role=till", till("1"))).await;
    store_document(&fixture, host.id).await;
    // Since the backup it was given another one, and lost this one.
    let generation = fixture.shared().hosts.labels.tellings.of(host.id) + 5;
    fixture.shared().hosts.labels.confirm(host.id, Some(generation), now_ms());
    store_document(&fixture, host.id).await;
    let handed_in = foreign_labels(&fixture, host.id, generation, &[("site", "north")]).await;
    fixture.console.hand_in(host.id, &handed_in).await.unwrap();
    apply(&fixture, document("shop/till", "label.role=till", till("2"))).await;
    assert_eq!(generation_of_document(&fixture, host.id), 1, "it is sent nothing");
    let actions = |shown: &ConfirmedDocuments| {
        let host = &shown.hosts[0];
        (host.labels.as_ref().unwrap().action, host.deployments.iter().map(|one| one.action).collect::<Vec<_>>())
    };
    // By the labels that it has it loses the deployment.
    let shown = confirm(&fixture, true, false).await;
    assert_eq!(actions(&shown), (ConfirmAction::Rebuild, vec![ConfirmAction::Remove]));
    let shown = confirm(&fixture, false, true).await;
    assert_eq!(actions(&shown), (ConfirmAction::Replace, vec![ConfirmAction::Same]));
    assert_eq!(console_labels(&fixture, host.id).await, ["role=till admin"]);
    assert!(fixture.shared().hosts.labels.tellings.of(host.id) > generation);
    assert_eq!(numbers(&body(&fixture, host.id).await), [("shop/till".to_owned(), 2)]);
    fixture.running.stop().await;
}

#[tokio::test]
async fn version_of_two_contents_is_a_conflict() {
    let fixture = fixture().await;
    let host = able(&fixture, "one").await;
    apply(&fixture, document("shop/till", "label.role=till", till("1"))).await;
    let mut body = body(&fixture, host.id).await;
    // The console was restored, and another version 1 was made since.
    body.deployments[0].version.units[0].run = Run::Stopped;
    let mark = DesiredMark { epoch: 1, generation: 5 };
    let document = foreign(&fixture, host.id, mark, &body).await;
    let digest = Some(digest_of(&document));
    heard(&fixture, host.id, DesiredReport { mark, digest, ..DesiredReport::default() }).await;
    fixture.console.hand_in(host.id, &document).await.unwrap();
    let confirm = async |dry_run, replace| {
        let wanted = ConfirmDocuments { target: NewTarget::All, dry_run, replace };
        fixture.console.confirm_documents(&admin(), wanted).await
    };
    let shown = confirm(true, false).await.unwrap();
    assert_eq!(shown.hosts[0].deployments[0].action, ConfirmAction::Conflict);
    assert_eq!(confirm(false, false).await.unwrap_err().problem.code, "document_conflict");
    assert_eq!(confirm(false, true).await.unwrap().hosts[0].deployments[0].action, ConfirmAction::Replace);
    assert_eq!(row(&fixture, host.id).unwrap().mark, DesiredMark { epoch: 2, generation: 6 });
    fixture.running.stop().await;
}

#[tokio::test]
async fn confirmation_shows_the_version_that_the_console_has_now() {
    let fixture = fixture().await;
    let host = able(&fixture, "one").await;
    apply(&fixture, document("shop/till", "label.role=till", till("1"))).await;
    let mut body = body(&fixture, host.id).await;
    // The console was restored from a backup of before version 2.
    body.deployments[0].version.number = 2;
    body.deployments[0].version.units[0].run = Run::Stopped;
    let mark = DesiredMark { epoch: 1, generation: 5 };
    let document = foreign(&fixture, host.id, mark, &body).await;
    let digest = Some(Digest::of(document.document.as_ref().unwrap().body.as_bytes()));
    heard(&fixture, host.id, DesiredReport { mark, digest, ..DesiredReport::default() }).await;
    fixture.console.hand_in(host.id, &document).await.unwrap();
    let shown = async |replace| {
        let wanted = ConfirmDocuments { target: NewTarget::All, dry_run: true, replace };
        let mut shown = fixture.console.confirm_documents(&admin(), wanted).await.unwrap();
        let one = shown.hosts.remove(0).deployments.remove(0);
        (one.host_version, one.console_version, one.action)
    };
    assert_eq!(shown(false).await, (Some(2), Some(1), ConfirmAction::Rebuild));
    assert_eq!(shown(true).await, (Some(2), Some(1), ConfirmAction::Replace));
    fixture.running.stop().await;
}

#[tokio::test]
async fn old_versions_are_trimmed_unless_a_host_has_them() {
    let fixture = fixture().await;
    let host = able(&fixture, "one").await;
    let version = |number: u32| {
        document(
            "shop/till",
            "label.role=till",
            json!([{"name": "till", "artifact": "till@1", "args": [number.to_string()]}]),
        )
    };
    let kept = super::apply::VERSIONS_KEPT;
    for number in 1..=kept {
        apply(&fixture, version(number)).await;
        if number == 2 {
            report_unit(&fixture, host.id, "shop/till", Some(("shop/till", 2))).await;
        }
    }
    let numbers = async || {
        let history = fixture.console.deployment_history(&name("shop/till")).await.unwrap();
        history.into_iter().map(|info| info.number).collect::<Vec<_>>()
    };
    assert_eq!(numbers().await.len() as u32, kept);
    apply(&fixture, version(kept + 1)).await;
    apply(&fixture, version(kept + 2)).await;
    apply(&fixture, version(kept + 3)).await;
    // The host has a unit of version 2.
    let after = numbers().await;
    assert_eq!((after.len() as u32, after[0], after[after.len() - 2..].to_vec()), (kept + 1, kept + 3, vec![4, 2]));
    // What is before the last one kept is found without it.
    let compared = muster_api::CompareVersions { from: None, to: Some(4) };
    let found = fixture.console.deployment_differences(&name("shop/till"), &compared).await.unwrap();
    assert_eq!((found.from, found.units[0].differences.len()), (2, 1));
    let first = muster_api::CompareVersions { from: None, to: Some(2) };
    assert_eq!(fixture.console.deployment_differences(&name("shop/till"), &first).await.unwrap().from, 0);
    report_unit(&fixture, host.id, "shop/till", Some(("shop/till", kept + 3))).await;
    apply(&fixture, version(kept + 4)).await;
    assert_eq!(numbers().await.last(), Some(&5));
    let back = RollBack { to: Some(1), dry_run: true };
    let error = fixture.console.roll_back_deployment(&admin(), &name("shop/till"), back).await.unwrap_err();
    assert_eq!(error.problem.code, "unknown_version");
    // The numbers go on after a removal.
    fixture.console.remove_deployment(&admin(), &name("shop/till"), RemoveDeployment::default()).await.unwrap();
    assert_eq!(apply(&fixture, version(1)).await.version, kept + 5);
    fixture.running.stop().await;
}

#[tokio::test]
async fn changed_realm_is_another_document() {
    let fixture = fixture().await;
    let (one, two) = (able(&fixture, "one").await, able(&fixture, "two").await);
    label(&fixture, two.id, &[("role", "other")], &[]).await;
    apply(&fixture, document("shop/till", "label.role=till", till("1"))).await;
    apply(&fixture, document("default/x", "label.role=other", till("1"))).await;
    assert_eq!((generation_of_document(&fixture, one.id), generation_of_document(&fixture, two.id)), (1, 1));
    let fields = |first: u16| serde_json::from_value(json!({"ports": {"first": first, "last": 7010}})).unwrap();
    let shop = "shop".parse().unwrap();
    fixture.console.update_realm(&admin(), &shop, fields(7000)).await.unwrap();
    fixture.console.catch_up().await.unwrap();
    // A host without units of it has the same as before.
    assert_eq!((generation_of_document(&fixture, one.id), generation_of_document(&fixture, two.id)), (2, 1));
    let realms = body(&fixture, one.id).await.realms;
    assert_eq!(realms[0].ports.map(|ports| ports.first), Some(7000));
    // The same again is no change.
    fixture.console.update_realm(&admin(), &shop, fields(7000)).await.unwrap();
    fixture.console.catch_up().await.unwrap();
    assert_eq!(generation_of_document(&fixture, one.id), 2);
    // A realm that a deployment has units in stays, also while no host has reported any.
    let error = fixture.console.remove_realm(&admin(), &shop).await.unwrap_err();
    assert!(error.problem.diagnostic.cause.contains("shop/till"), "{error}");
    fixture.console.remove_deployment(&admin(), &name("shop/till"), RemoveDeployment::default()).await.unwrap();
    fixture.console.remove_realm(&admin(), &shop).await.unwrap();
    fixture.running.stop().await;
}

#[tokio::test]
async fn port_of_two_units_is_a_fault() {
    let fixture = fixture().await;
    let units = |first: Value, second: Value| {
        let unit = |name: &str, provides: Value| json!({"name": name, "artifact": "till@1", "provides": [provides]});
        document("shop/till", "label.role=till", json!([unit("till", first), unit("web", second)]))
    };
    let tried = async |first, second| try_apply(&fixture, &[units(first, second)], true, false).await;
    let port = |port: u16, protocol: &str| json!({"name": "main", "port": port, "protocol": protocol});
    let error = tried(port(8080, "tcp"), port(8080, "tcp")).await.unwrap_err().problem.diagnostic.cause;
    assert!(error.contains("shop/web") && error.contains("tcp port 8080 is that of shop/till"), "{error}");
    tried(port(8080, "tcp"), port(8080, "udp")).await.unwrap();
    tried(port(8080, "tcp"), port(8081, "tcp")).await.unwrap();
    tried(port(8080, "tcp"), json!({"name": "main"})).await.unwrap();
    fixture.running.stop().await;
}

#[tokio::test]
async fn changes_are_noted_with_who_made_them() {
    use muster_api::{ChangeKind, ChangeListing, VarName};
    let fixture = fixture().await;
    able(&fixture, "one").await;
    let deployment = document("shop/till", "label.role=till", till("1"));
    try_apply(&fixture, std::slice::from_ref(&deployment), true, false).await.unwrap();
    apply(&fixture, deployment.clone()).await;
    apply(&fixture, deployment).await;
    apply(&fixture, document("shop/till", "label.role=till", till("2"))).await;
    fixture.console.roll_back_deployment(&admin(), &name("shop/till"), RollBack::default()).await.unwrap();
    let of = UnitOnHosts { unit: unit("shop/till"), target: NewTarget::Hosts(vec!["one".to_owned()]) };
    fixture.console.set_unit_attached(&admin(), &name("shop/till"), of, false).await.unwrap();
    let cordon = CordonHosts { target: NewTarget::All, cordon: Cordon::Cordoned };
    fixture.console.cordon_hosts(&admin(), cordon).await.unwrap();
    let (layer, var) = (VarLayer::Host("one".to_owned()), "limit".parse::<Name>().unwrap());
    let new = NewVar { layer: layer.clone(), name: var.clone(), value: json!("x".repeat(500)) };
    fixture.console.set_var(&admin(), new).await.unwrap();
    fixture.console.remove_var(&admin(), VarName { layer: layer.clone(), name: var.clone() }).await.unwrap();
    assert!(fixture.console.remove_var(&admin(), VarName { layer, name: var }).await.is_err());
    fixture.console.remove_deployment(&admin(), &name("shop/till"), RemoveDeployment::default()).await.unwrap();
    let changes = async |wanted| fixture.console.recent_changes(&wanted).await.unwrap();
    let all = changes(ChangeListing::default()).await;
    assert!(all.iter().all(|change| change.operator == admin()));
    let shown: Vec<_> = all.iter().rev().map(|one| (one.kind, one.subject.as_str(), one.detail.as_str())).collect();
    // A dry run, and what is so already, are no changes.
    let value = format!("\"{}", "x".repeat(199));
    assert_eq!(
        shown,
        [
            (ChangeKind::DeploymentApplied, "shop/till", "version 1; 1 host, 1 new"),
            (ChangeKind::DeploymentApplied, "shop/till", "version 2; 1 host"),
            (ChangeKind::DeploymentRolledBack, "shop/till", "version 3, as version 1; 1 host"),
            (ChangeKind::UnitDetached, "shop/till", "shop/till on one"),
            (ChangeKind::HostsCordoned, "one", "1 host"),
            (ChangeKind::VarSet, "limit (host:one)", value.as_str()),
            (ChangeKind::VarRemoved, "limit (host:one)", ""),
            (ChangeKind::DeploymentRemoved, "shop/till", "its units go; 1 host"),
        ]
    );
    let one = changes(ChangeListing { subject: Some("shop/till".to_owned()), limit: Some(1) }).await;
    assert_eq!(one.iter().map(|one| one.kind).collect::<Vec<_>>(), [ChangeKind::DeploymentRemoved]);
    fixture.running.stop().await;
}

#[tokio::test]
async fn restart_goes_on_where_it_was() {
    let fixture = fixture().await;
    let host = able(&fixture, "one").await;
    apply(&fixture, document("shop/till", "label.role=till", till("1"))).await;
    let before = row(&fixture, host.id).unwrap();
    assert!(!before.is_sent, "there is no broker");
    let table = super::table::DesiredTable::load(&fixture.shared().store).await.unwrap();
    assert!(table.to_send.contains(&host.id), "what was not sent is sent");
    assert_eq!(table.hosts[&host.id].document.as_ref(), Some(&before));
    fixture.running.stop().await;
}

#[tokio::test]
async fn cordoned_host_gets_nothing_new_and_a_drained_one_nothing() {
    let fixture = fixture().await;
    let host = able(&fixture, "one").await;
    let cordon = async |cordon| {
        let target = NewTarget::Hosts(vec!["one".to_owned()]);
        fixture.console.cordon_hosts(&admin(), CordonHosts { target, cordon }).await.unwrap().remove(0)
    };
    let web = json!([{"name": "web", "artifact": "till@1"}]);
    apply(&fixture, document("shop/till", "label.role=till", till("1"))).await;
    cordon(Cordon::Cordoned).await;
    let applied = apply(&fixture, document("shop/web", "label.role=till", web)).await;
    assert_eq!(applied.hosts, 0);
    assert!(applied.notes.iter().any(|note| note.contains("cordoned")), "{:?}", applied.notes);
    // What it has it keeps, in each new version.
    apply(&fixture, document("shop/till", "label.role=till", till("2"))).await;
    assert_eq!(numbers(&body(&fixture, host.id).await), [("shop/till".to_owned(), 2)]);
    let shown = cordon(Cordon::Drained).await;
    assert_eq!((shown.cordon, shown.deployments), (Cordon::Drained, 0));
    assert!(matches!(&body(&fixture, host.id).await.remove[..], [removal] if removal.at_once));
    cordon(Cordon::Open).await;
    assert_eq!(numbers(&body(&fixture, host.id).await).len(), 2);
    assert_eq!(fixture.console.host_cordons().await.unwrap(), []);
    fixture.running.stop().await;
}

#[tokio::test]
async fn unit_is_detached_on_one_host() {
    let fixture = fixture().await;
    let (one, two) = (able(&fixture, "one").await, able(&fixture, "two").await);
    apply(&fixture, document("shop/till", "label.role=till", till("1"))).await;
    let of = || UnitOnHosts { unit: unit("shop/till"), target: NewTarget::Hosts(vec!["one".to_owned()]) };
    let detached = async |host: &Member| body(&fixture, host.id).await.deployments[0].detached.clone();
    fixture.console.set_unit_attached(&admin(), &name("shop/till"), of(), false).await.unwrap();
    assert_eq!((detached(&one).await, detached(&two).await), (vec![unit("shop/till")], vec![]));
    fixture.console.set_unit_attached(&admin(), &name("shop/till"), of(), true).await.unwrap();
    assert_eq!(detached(&one).await, []);
    assert_eq!(body(&fixture, one.id).await.deployments[0].adopt, [unit("shop/till")]);
    fixture.running.stop().await;
}

async fn set_orphan(fixture: &Fixture, host: HostId, is_orphan: bool) {
    let report = "json_set(report, '$.owner.orphan', json($2))";
    sqlx::query(sqlx::AssertSqlSafe(format!("UPDATE unit SET report = {report} WHERE host = $1")))
        .bind(host.to_string())
        .bind(is_orphan.to_string())
        .execute(fixture.shared().store.write())
        .await
        .unwrap();
}

#[tokio::test]
async fn orphan_of_a_deployment_that_is_gone_is_left_to_verbs() {
    let fixture = fixture().await;
    let (one, two) = (able(&fixture, "one").await, able(&fixture, "two").await);
    apply(&fixture, document("shop/till", "label.role=till", till("1"))).await;
    let keep = RemoveDeployment { keep: true, ..RemoveDeployment::default() };
    fixture.console.remove_deployment(&admin(), &name("shop/till"), keep).await.unwrap();
    let of = |host: &str| UnitOnHosts { unit: unit("shop/till"), target: NewTarget::Hosts(vec![host.to_owned()]) };
    let detach = async |host| fixture.console.set_unit_attached(&admin(), &name("shop/till"), of(host), false).await;
    assert!(detach("one").await.is_err(), "the host does not report the unit");
    report_unit(&fixture, one.id, "shop/till", Some(("shop/till", 1))).await;
    assert!(detach("two").await.is_err());
    // The host says that nobody wants it; the comparison does so, too, until it is detached.
    let orphans = async || {
        fixture.console.sync().await;
        let last = fixture.console.deployment_sync().last.unwrap();
        let of_kind = last.findings.into_iter().filter(|one| one.kind == SyncFindingKind::Orphans);
        (last.alike, of_kind.map(|one| (one.hostname, one.detail)).collect::<Vec<_>>())
    };
    store_document(&fixture, one.id).await;
    store_document(&fixture, two.id).await;
    assert_eq!(orphans().await, (2, vec![]));
    set_orphan(&fixture, one.id, true).await;
    let detail = "shop/till keep running without being desired".to_owned();
    assert_eq!(orphans().await, (1, vec![("one".to_owned(), detail)]));
    set_orphan(&fixture, one.id, false).await;
    assert_eq!(orphans().await, (2, vec![]));
    let changed = detach("one").await.unwrap();
    assert_eq!(changed.iter().map(|host| host.hostname.as_str()).collect::<Vec<_>>(), ["one"]);
    fixture.running.stop().await;
}

#[tokio::test]
async fn later_layers_of_variables_win() {
    let fixture = fixture().await;
    let host = able(&fixture, "one").await;
    apply(&fixture, document("shop/till", "label.role=till", till("1"))).await;
    let set = async |layer: &str, value: u32| {
        let layer: VarLayer = layer.parse().unwrap();
        let new = NewVar { layer, name: "limit".parse().unwrap(), value: json!(value) };
        fixture.console.set_var(&admin(), new).await.unwrap();
        body(&fixture, host.id).await.vars[&"limit".parse::<Name>().unwrap()].clone()
    };
    assert_eq!(set("host:one", 4).await, json!(4));
    assert_eq!(set("fleet", 1).await, json!(4));
    assert_eq!(set("label:role=till", 3).await, json!(4));
    let layer: VarLayer = "host:one".parse().unwrap();
    let gone = muster_api::VarName { layer, name: "limit".parse().unwrap() };
    fixture.console.remove_var(&admin(), gone).await.unwrap();
    assert_eq!(body(&fixture, host.id).await.vars.into_values().collect::<Vec<_>>(), [json!(3)]);
    fixture.running.stop().await;
}

#[tokio::test]
async fn value_that_hosts_would_refuse_is_refused_and_stops_no_other() {
    let fixture = fixture().await;
    let host = able(&fixture, "one").await;
    let set = async |name: &str, value: Value| {
        let new = NewVar { layer: VarLayer::Fleet, name: name.parse().unwrap(), value };
        fixture.console.set_var(&admin(), new).await.map_err(|error| error.problem.code)
    };
    let nested = |levels| (0..levels).fold(json!(1), |value, _| json!([value]));
    for bad in [json!(u64::MAX), json!(1.8446744073709552e19), nested(40), nested(100)] {
        assert_eq!(set("bad", bad.clone()).await.unwrap_err(), "bad_var", "{bad}");
    }
    set("deep", nested(31)).await.unwrap();
    // One that is damaged where it is stored is not sent, and the others are.
    let damage = "INSERT INTO var (layer, name, value, digest, operator, set_ms)
                  VALUES ('fleet', 'bad', '18446744073709551616', '', 'admin', 1)";
    sqlx::query(damage).execute(fixture.shared().store.write()).await.unwrap();
    set("good", json!(2)).await.unwrap();
    let vars = body(&fixture, host.id).await.vars;
    assert_eq!(vars.keys().map(Name::as_str).collect::<Vec<_>>(), ["deep", "good"]);
    assert_eq!(fixture.console.vars().await.unwrap().len(), 2);
    fixture.running.stop().await;
}

#[tokio::test]
async fn look_that_did_not_read_everything_names_nothing_for_removal() {
    let fixture = fixture().await;
    let host = able(&fixture, "one").await;
    apply(&fixture, document("shop/till", "label.role=till", till("1"))).await;
    store_document(&fixture, host.id).await;
    let changing = fixture.shared().hosts.desired.changing.lock().await;
    sqlx::query("DELETE FROM host_label").execute(fixture.shared().store.write()).await.unwrap();
    let look = async |may_remove| {
        let wish = super::plan::PlanWish { may_remove, now: now_ms(), ..Default::default() };
        fixture.console.reconcile(Some(&[host.id]), wish).await.unwrap();
        let body = body(&fixture, host.id).await;
        (body.deployments.len(), body.remove.len())
    };
    assert_eq!(look(false).await, (1, 0));
    assert_eq!(look(true).await, (0, 1));
    drop(changing);
    fixture.running.stop().await;
}

#[tokio::test]
async fn unit_that_a_rolled_out_version_drops_goes_once_the_host_has_begun() {
    let fixture = fixture().await;
    let host = fixture.member("one").await.id;
    let asks = DesiredReport::default();
    heard(&fixture, host, asks.clone()).await;
    label(&fixture, host, &[("role", "till")], &[]).await;
    let unit = |name: &str| json!({"name": name, "artifact": "till@1"});
    apply(&fixture, document("shop/till", "label.role=till", json!([unit("till"), unit("web")]))).await;
    for unit in ["shop/till", "shop/web"] {
        report_unit(&fixture, host, unit, Some(("shop/till", 1))).await;
    }
    // A host has stored its document, and made this version its own.
    let stored = async |version| {
        let row = row(&fixture, host).unwrap();
        let deployments = [(name("shop/till"), DeploymentReport { version, refused: None, waits: None })].into();
        let report = DesiredReport { mark: row.mark, digest: Some(row.digest), deployments, ..asks.clone() };
        heard(&fixture, host, report).await;
    };
    stored(1).await;
    let mut next = document("shop/till", "label.role=till", json!([unit("till")]));
    next["rollout"] = json!({});
    apply(&fixture, next).await;
    stored(1).await;
    assert_eq!(numbers(&body(&fixture, host).await), [("shop/till".to_owned(), 2)]);
    assert!(body(&fixture, host).await.remove.is_empty(), "it has the earlier version yet");
    stored(2).await;
    let remove = body(&fixture, host).await.remove;
    assert_eq!(remove.iter().map(|removal| removal.unit.as_str()).collect::<Vec<_>>(), ["shop/web"]);
    fixture.running.stop().await;
}

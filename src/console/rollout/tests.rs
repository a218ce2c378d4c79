//! Tests of rollouts, with hosts that are played here: their answers are read from what is stored.

use std::time::Duration;

use muster_api::{
    AppliedDeployment, ApplyDeployments, ApplyDocument, CancelRollout, HostOutcome, LabelHosts, Labels, NewTarget,
    ReleaseHost, Rollout, RolloutDetail, RolloutHostQuery, RolloutPhase, RolloutVersion, RolloutWaitKind,
};
use muster_topics::{
    V1,
    ack::Numbered,
    admission::{AdmissionReport, AdmissionStage, ChangeOutcome},
    desired::{Admission, DeploymentName, DesiredBody, DesiredReport},
    diagnostic::Diagnostic,
    name::{Digest, HostId},
    presence::Capability,
};
use serde_json::{Value, json};

use super::HostAdmission;
use crate::{
    store,
    testing::{Fixture, Member, admin},
};

fn name() -> DeploymentName {
    "shop/till".parse().unwrap()
}

/// A console, and hosts that are selected by the label `role=till`.
struct Bench {
    fixture: Fixture,
    hosts: Vec<Member>,
    seq: u64,
}

impl Bench {
    async fn start(hosts: usize) -> Self {
        let fixture = Fixture::new().await;
        let realm = json!({"name": "shop"});
        fixture.console.create_realm(&admin(), serde_json::from_value(realm).unwrap()).await.unwrap();
        for version in ["1", "2", "3"] {
            let labels = Labels { role: "till".parse().unwrap(), version: version.parse().unwrap(), manifest: None };
            let body = futures_util::stream::iter([Ok::<_, std::io::Error>(version.to_owned().into_bytes())]);
            fixture.console.add_artifact(&admin(), labels, body).await.unwrap();
        }
        let mut bench = Self { fixture, hosts: Vec::new(), seq: 0 };
        for index in 0..hosts {
            bench.add(&format!("till-{index}"), &[Capability::Yuno]).await;
        }
        bench
    }

    /// Adds a host that can do this.
    async fn add(&mut self, hostname: &str, can: &[Capability]) -> HostId {
        let member = self.fixture.member(hostname).await;
        let host = member.id;
        self.report(host, DesiredReport::default()).await;
        self.can(host, can).await;
        self.presence(host, true);
        let wanted = LabelHosts {
            target: NewTarget::Hosts(vec![host.to_string()]),
            set: [("role".parse().unwrap(), "till".parse().unwrap())].into(),
            remove: Default::default(),
            replace: true,
        };
        self.fixture.console.label_hosts(&admin(), wanted).await.unwrap();
        self.fixture.console.catch_up().await.unwrap();
        self.hosts.push(member);
        host
    }

    /// A host says what it can do.
    async fn can(&self, host: HostId, capabilities: &[Capability]) {
        self.fixture.shared().hosts.desired.set_capabilities(host, capabilities.to_vec());
        self.fixture.console.catch_up().await.unwrap();
    }

    async fn report(&self, host: HostId, report: DesiredReport) {
        self.fixture.shared().hosts.desired.heard(host, report, None, muster_base::clock::now_ms());
        self.fixture.console.catch_up().await.unwrap();
    }

    fn presence(&self, host: HostId, is_online: bool) {
        self.fixture.shared().hosts.rollouts.presence(host, is_online);
    }

    fn host(&self, index: usize) -> HostId {
        self.hosts[index].id
    }

    async fn try_apply(&self, version: &str, rollout: Value) -> Result<AppliedDeployment, crate::error::Error> {
        let mut content = json!({
            "deployment": "shop/till", "target": {"select": "label.role=till"},
            "units": [{"name": "till", "artifact": format!("till@{version}")}],
        });
        if !rollout.is_null() {
            content["rollout"] = rollout;
        }
        let documents = vec![ApplyDocument { source: "till.yaml".to_owned(), content }];
        let apply = ApplyDeployments { documents, dry_run: false, adopt: false, plan: None };
        Ok(self.fixture.console.apply_deployments(&admin(), apply).await?.deployments.remove(0))
    }

    async fn apply(&self, version: &str, rollout: Value) -> AppliedDeployment {
        self.try_apply(version, rollout).await.unwrap()
    }

    async fn body(&self, host: HostId) -> DesiredBody {
        let documents = store::desired::documents(self.fixture.shared().store.read()).await.unwrap();
        let text = store::desired::body(self.fixture.shared().store.read(), &documents[&host].digest).await.unwrap();
        serde_json::from_str(&text.unwrap()).unwrap()
    }

    /// The version that a host's document has, and whether the host asks.
    async fn given(&self, host: HostId) -> (u32, Admission) {
        let body = self.body(host).await;
        (body.deployments[0].version.number, body.deployments[0].admission)
    }

    async fn says(&mut self, host: HostId, version: u32, stage: AdmissionStage) {
        self.seq += 1;
        let stored = store::deployment::version(self.fixture.shared().store.read(), &name(), version).await.unwrap();
        let report = AdmissionReport {
            v: V1,
            number: Numbered { epoch: 1, seq: self.seq },
            at_ms: 1,
            deployment: name(),
            version,
            digest: stored.map_or_else(|| Digest::of(b"none"), |row| row.info.digest),
            stage,
        };
        assert!(self.fixture.shared().hosts.rollouts.heard(host, report));
    }

    async fn ends(&mut self, host: HostId, version: u32, outcome: ChangeOutcome) {
        let permit = self.permit(host, version).await;
        let stage = AdmissionStage::Ended {
            permit: Some(permit),
            outcome,
            changed: true,
            diagnostic: Some(Diagnostic::new("why")),
        };
        self.says(host, version, stage).await;
    }

    /// Waits for a permit of a host, until it is stored.
    async fn permit(&self, host: HostId, version: u32) -> u64 {
        let permit = self
            .until("a permit", || {
                let table = self.fixture.shared().hosts.rollouts.table();
                let permit = table.rollouts.get(&name())?.state.hosts.get(&host)?.permit?;
                (permit.version == version).then_some(permit.number)
            })
            .await;
        drop(self.fixture.shared().hosts.desired.lock_changes().await);
        permit
    }

    async fn until<T>(&self, what: &str, found: impl Fn() -> Option<T>) -> T {
        for _ in 0..400 {
            if let Some(found) = found() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("no {what} within 10 s: {:#?}", self.detail().await);
    }

    async fn detail(&self) -> RolloutDetail {
        self.fixture.console.rollout(&name(), None).await.unwrap()
    }

    async fn reaches(&self, what: &str, is_there: impl Fn(&Rollout) -> bool) -> RolloutDetail {
        for _ in 0..400 {
            let detail = self.detail().await;
            if is_there(&detail.rollout) {
                return detail;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("not {what} within 10 s: {:#?}", self.detail().await);
    }

    /// A host asks, is admitted, and ends.
    async fn changes(&mut self, host: HostId, version: u32, outcome: ChangeOutcome) {
        self.says(host, version, AdmissionStage::Asks).await;
        self.ends(host, version, outcome).await;
    }
}

fn of(detail: &RolloutDetail, outcome: HostOutcome) -> u64 {
    detail.rollout.outcomes.get(&outcome).copied().unwrap_or(0)
}

fn is_done(rollout: &Rollout) -> bool {
    rollout.phase == RolloutPhase::Completed
}

fn is_paused(rollout: &Rollout) -> bool {
    matches!(rollout.phase, RolloutPhase::Paused { .. })
}

#[tokio::test]
async fn version_goes_through_its_waves_and_completes() {
    let mut bench = Bench::start(3).await;
    let applied = bench.apply("1", json!({"waves": [1], "soak": 0, "max_in_flight": 3})).await;
    assert!(applied.is_rolled_out && applied.hosts == 3);
    assert_eq!(bench.given(bench.host(0)).await, (1, Admission::Ask));
    let (a, b, c) = (bench.host(0), bench.host(1), bench.host(2));
    bench.says(a, 1, AdmissionStage::Asks).await;
    bench.permit(a, 1).await;
    bench.says(b, 1, AdmissionStage::Asks).await;
    let detail = bench.reaches("one that waits", |rollout| rollout.in_flight == 1).await;
    assert_eq!((detail.rollout.waves, detail.on_waves[0].admitted), (2, 1));
    bench
        .until("a wait", || {
            let found = bench.fixture.shared().hosts.rollouts.admissions(&name());
            let is_told =
                |found: &HostAdmission| matches!(found, HostAdmission::Waits(why) if why.cause.contains("wave 1"));
            found.get(&b).filter(|found| is_told(found)).map(|_| ())
        })
        .await;
    bench.ends(a, 1, ChangeOutcome::Verified).await;
    bench.ends(b, 1, ChangeOutcome::Verified).await;
    bench.changes(c, 1, ChangeOutcome::Verified).await;
    let detail = bench.reaches("completed", is_done).await;
    assert_eq!((of(&detail, HostOutcome::Verified), detail.rollout.in_flight, detail.rollout.unavailable), (3, 0, 0));
    assert!(detail.rollout.ended_ms.is_some() && detail.waits.is_empty() && detail.steps.len() >= 3, "{detail:#?}");
    let query = RolloutHostQuery { limit: Some(2), ..Default::default() };
    let hosts = bench.fixture.console.rollout_hosts(&name(), &query).await.unwrap();
    assert_eq!((hosts.total, hosts.hosts.len(), hosts.hosts[0].hostname.as_str()), (3, 2, "till-0"));
}

#[tokio::test]
async fn bad_version_goes_back_by_itself() {
    let mut bench = Bench::start(2).await;
    let policy = json!({"waves": [1], "soak": 0, "max_failures": 0, "on_failure": "rollback"});
    bench.apply("1", policy.clone()).await;
    for index in 0..2 {
        bench.changes(bench.host(index), 1, ChangeOutcome::Verified).await;
    }
    bench.reaches("completed", is_done).await;
    bench.apply("2", policy).await;
    bench.changes(bench.host(0), 2, ChangeOutcome::Failed).await;
    let detail = bench.reaches("version 3", |rollout| rollout.version == 3).await;
    assert!(detail.rollout.is_rollback && detail.rollout.waves == 1, "{detail:#?}");
    // What failed is unavailable until it is back, and goes first.
    assert_eq!(detail.rollout.unavailable, 1);
    let before = bench.fixture.console.rollout(&name(), Some(2)).await.unwrap();
    assert_eq!(before.rollout.phase, RolloutPhase::RolledBack { by: 3 });
    assert_eq!((of(&before, HostOutcome::Failed), of(&before, HostOutcome::Superseded)), (1, 1));
    for index in 0..2 {
        bench.changes(bench.host(index), 3, ChangeOutcome::Verified).await;
    }
    let detail = bench.reaches("completed", is_done).await;
    assert_eq!((of(&detail, HostOutcome::Verified), detail.rollout.unavailable), (2, 0));
    let history = bench.fixture.console.rollout_history(&name()).await.unwrap();
    assert_eq!(history.iter().map(|one| one.version).collect::<Vec<_>>(), [3, 2, 1]);
}

#[tokio::test]
async fn first_version_that_fails_is_paused_for_there_is_none_to_go_back_to() {
    let mut bench = Bench::start(2).await;
    bench.apply("1", json!({"waves": [1], "max_failures": 0, "on_failure": "rollback"})).await;
    bench.changes(bench.host(0), 1, ChangeOutcome::Failed).await;
    let detail = bench.reaches("paused", is_paused).await;
    let RolloutPhase::Paused { reason, .. } = &detail.rollout.phase else { panic!() };
    assert!(reason.contains("shop/till has no version before 1"), "{reason}");
    assert_eq!(detail.goes_back_to, None);
    // Nobody further begins until an operator resumes.
    bench.says(bench.host(1), 1, AdmissionStage::Asks).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(bench.detail().await.rollout.in_flight, 0);
    bench.fixture.console.resume_rollout(&admin(), &name(), RolloutVersion::default()).await.unwrap();
    bench.permit(bench.host(1), 1).await;
}

#[tokio::test]
async fn verbs_are_refused_in_wrong_phases_and_for_other_versions() {
    let mut bench = Bench::start(1).await;
    let console = bench.fixture.console.clone();
    let error = console.pause_rollout(&admin(), &name(), RolloutVersion::default()).await.unwrap_err();
    assert_eq!(error.problem.code, "unknown_rollout");
    bench.apply("1", json!({"waves": [], "soak": 0})).await;
    let other = console.pause_rollout(&admin(), &name(), RolloutVersion { version: Some(7) }).await.unwrap_err();
    assert_eq!(other.problem.code, "not_present");
    for error in [
        console.resume_rollout(&admin(), &name(), RolloutVersion::default()).await.unwrap_err(),
        console.promote_rollout(&admin(), &name(), RolloutVersion::default()).await.unwrap_err(),
        console.retry_rollout(&admin(), &name(), RolloutVersion::default()).await.unwrap_err(),
    ] {
        assert_eq!(error.problem.code, "rollout_phase");
    }
    let release = ReleaseHost { host: "till-0".to_owned() };
    let error = console.release_host(&admin(), &name(), release.clone()).await.unwrap_err();
    assert_eq!(error.problem.code, "not_unavailable");
    bench.changes(bench.host(0), 1, ChangeOutcome::Failed).await;
    bench.reaches("an outcome", |rollout| rollout.ended() == 1).await;
    let released = console.release_host(&admin(), &name(), release).await.unwrap();
    assert!(!released.is_unavailable && released.outcome == Some(HostOutcome::Failed));
    let cancelled = console.cancel_rollout(&admin(), &name(), CancelRollout::default()).await;
    assert!(cancelled.is_ok() || cancelled.unwrap_err().problem.code == "rollout_phase");
    let error = console.pause_rollout(&admin(), &name(), RolloutVersion::default()).await.unwrap_err();
    assert_eq!(error.problem.code, "rollout_phase");
}

#[tokio::test]
async fn refused_verb_changes_nothing() {
    let bench = Bench::start(1).await;
    bench.apply("1", json!({"waves": [], "soak": 0})).await;
    let console = bench.fixture.console.clone();
    let rollouts = &bench.fixture.shared().hosts.rollouts;
    // What is only in memory, such as which question was answered, is lost if anything is taken back.
    let host = bench.host(0);
    let answered = Numbered { epoch: 1, seq: 7 };
    bench.until("hosts that are known", || rollouts.table().is_ready.then_some(())).await;
    rollouts.table().rollouts.get_mut(&name()).unwrap().answered.insert(host, answered);
    for _ in 0..2 {
        console.resume_rollout(&admin(), &name(), RolloutVersion::default()).await.unwrap_err();
        console.promote_rollout(&admin(), &name(), RolloutVersion { version: Some(7) }).await.unwrap_err();
    }
    console.rollout_round().await.unwrap();
    let table = rollouts.table();
    assert!(table.is_ready, "the next round does not have to ask who is there");
    assert_eq!(table.rollouts[&name()].answered.get(&host), Some(&answered));
}

#[tokio::test]
async fn cancellation_needs_no_host_and_records_what_is_in_the_middle() {
    let mut bench = Bench::start(2).await;
    bench.apply("1", json!({"waves": [1]})).await;
    let (a, b) = (bench.host(0), bench.host(1));
    bench.says(a, 1, AdmissionStage::Asks).await;
    let permit = bench.permit(a, 1).await;
    bench.says(a, 1, AdmissionStage::Begun { permit }).await;
    bench.says(b, 1, AdmissionStage::Asks).await;
    bench.presence(a, false);
    let cancelled = bench.fixture.console.cancel_rollout(&admin(), &name(), CancelRollout::default()).await.unwrap();
    assert_eq!((cancelled.phase, cancelled.in_flight), (RolloutPhase::Cancelled, 1));
    let detail = bench.detail().await;
    assert_eq!(of(&detail, HostOutcome::Skipped), 1);
    bench.presence(a, true);
    bench.ends(a, 1, ChangeOutcome::Verified).await;
    let detail = bench.reaches("both ended", |rollout| rollout.ended() == 2).await;
    assert_eq!((of(&detail, HostOutcome::Verified), detail.rollout.phase), (1, RolloutPhase::Cancelled));
}

#[tokio::test]
async fn host_that_lacks_what_a_version_needs_keeps_what_it_has() {
    let mut bench = Bench::start(1).await;
    let bare = bench.add("bare", &[Capability::Yuno]).await;
    bench.apply("1", Value::Null).await;
    assert_eq!(bench.given(bare).await, (1, Admission::Free));
    bench.can(bare, &[]).await;
    bench.apply("2", json!({"waves": [], "soak": 0})).await;
    assert_eq!(
        (bench.given(bare).await, bench.given(bench.host(0)).await),
        ((1, Admission::Free), (2, Admission::Ask))
    );
    let newcomer = bench.add("newcomer", &[Capability::Files]).await;
    let documents = store::desired::documents(bench.fixture.shared().store.read()).await.unwrap();
    assert!(!documents.contains_key(&newcomer), "it is sent nothing of it");
    bench.changes(bench.host(0), 2, ChangeOutcome::Verified).await;
    let detail = bench.reaches("completed", is_done).await;
    assert_eq!((of(&detail, HostOutcome::Cannot), of(&detail, HostOutcome::Verified)), (2, 1), "{detail:#?}");
    // Now it has that.
    bench.can(bare, &[Capability::Yuno]).await;
    assert_eq!(bench.given(bare).await, (2, Admission::Ask));
    bench.changes(bare, 2, ChangeOutcome::Verified).await;
    bench.reaches("verified, too", |rollout| rollout.outcomes.get(&HostOutcome::Verified) == Some(&2)).await;
}

#[tokio::test]
async fn newcomer_gets_the_completed_version_until_the_last_wave_has_begun() {
    let mut bench = Bench::start(2).await;
    bench.apply("1", json!({"waves": [], "soak": 0, "max_in_flight": 9})).await;
    for index in 0..2 {
        bench.changes(bench.host(index), 1, ChangeOutcome::Verified).await;
    }
    bench.reaches("completed", is_done).await;
    bench.apply("2", json!({"waves": [1], "soak": 0, "approve": "each", "max_in_flight": 9})).await;
    let late = bench.add("late", &[Capability::Yuno]).await;
    assert_eq!(bench.given(late).await, (1, Admission::Ask));
    // It is admitted to that one meanwhile.
    bench.changes(late, 1, ChangeOutcome::Verified).await;
    bench.changes(bench.host(0), 2, ChangeOutcome::Verified).await;
    let detail = bench.reaches("approval", |rollout| rollout.phase == RolloutPhase::Approval).await;
    assert!(detail.waits.iter().any(|wait| wait.hosts > 0), "{detail:#?}");
    bench.fixture.console.promote_rollout(&admin(), &name(), RolloutVersion::default()).await.unwrap();
    bench.reaches("the last wave", |rollout| rollout.wave == 2).await;
    for _ in 0..100 {
        bench.fixture.console.catch_up().await.unwrap();
        if bench.given(late).await.0 == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    assert_eq!(bench.given(late).await, (2, Admission::Ask));
    bench.changes(bench.host(1), 2, ChangeOutcome::Verified).await;
    bench.changes(late, 2, ChangeOutcome::Verified).await;
    let detail = bench.reaches("completed", is_done).await;
    assert_eq!(of(&detail, HostOutcome::Verified), 3);
}

#[tokio::test]
async fn restarted_console_goes_on_and_adopts_what_it_has_forgotten() {
    let mut bench = Bench::start(2).await;
    bench.apply("1", json!({"waves": [], "soak": 0, "max_in_flight": 9})).await;
    let (a, b) = (bench.host(0), bench.host(1));
    bench.says(a, 1, AdmissionStage::Asks).await;
    let permit = bench.permit(a, 1).await;
    let rows = store::rollout::hosts(bench.fixture.shared().store.read(), &name(), 1).await.unwrap();
    let row = rows.iter().find(|row| row.host == a).unwrap();
    assert!(row.progress.contains(&format!("\"number\":{permit}")), "{}", row.progress);
    // What is in the store is what is in memory.
    let entry = {
        let table = bench.fixture.shared().hosts.rollouts.table();
        table.rollouts[&name()].state.clone()
    };
    let all = store::rollout::all(bench.fixture.shared().store.read(), Some(&name())).await.unwrap();
    let read = super::table::RolloutEntry::read(Digest::of(b"a"), Default::default(), &all[0], &rows, 0).unwrap();
    assert_eq!(read.state.hosts[&a].permit, entry.hosts[&a].permit);
    // A host has begun with a permit that the console does not know, as after a restore: it is in mid-change.
    bench.says(b, 1, AdmissionStage::Begun { permit: 77 }).await;
    bench.reaches("both in mid-change", |rollout| rollout.in_flight == 2).await;
    let end =
        AdmissionStage::Ended { permit: Some(77), outcome: ChangeOutcome::Verified, changed: true, diagnostic: None };
    bench.says(b, 1, end).await;
    bench.ends(a, 1, ChangeOutcome::Verified).await;
    bench.reaches("completed", is_done).await;
}

#[tokio::test]
async fn host_that_is_removed_or_selected_no_more_ends_as_removed() {
    let mut bench = Bench::start(3).await;
    bench.apply("1", json!({"waves": [], "soak": 0, "max_in_flight": 9})).await;
    let gone = bench.host(0);
    bench.fixture.console.remove_host(&admin(), &gone.to_string()).await.unwrap();
    let other = LabelHosts {
        target: NewTarget::Hosts(vec![bench.host(1).to_string()]),
        set: Default::default(),
        remove: ["role".parse().unwrap()].into(),
        replace: true,
    };
    bench.fixture.console.label_hosts(&admin(), other).await.unwrap();
    bench.fixture.console.catch_up().await.unwrap();
    bench.changes(bench.host(2), 1, ChangeOutcome::Verified).await;
    let detail = bench.reaches("completed", is_done).await;
    assert_eq!((of(&detail, HostOutcome::Removed), of(&detail, HostOutcome::Verified)), (2, 1), "{detail:#?}");
}

#[tokio::test]
async fn repeated_end_counts_once_and_host_that_failed_is_told_to_retry() {
    let mut bench = Bench::start(1).await;
    bench.apply("1", json!({"waves": [], "retries": {"attempts": 1, "after": 0}, "soak": 0})).await;
    let host = bench.host(0);
    bench.says(host, 1, AdmissionStage::Asks).await;
    let permit = bench.permit(host, 1).await;
    let end =
        AdmissionStage::Ended { permit: Some(permit), outcome: ChangeOutcome::Failed, changed: true, diagnostic: None };
    for _ in 0..3 {
        bench.says(host, 1, end.clone()).await;
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    let progress = bench.fixture.shared().hosts.rollouts.table().rollouts[&name()].state.hosts[&host].clone();
    assert_eq!((progress.failures, progress.terminal()), (1, None), "{progress:?}");
    let detail = bench.detail().await;
    assert!(detail.waits.iter().any(|wait| matches!(wait.kind, RolloutWaitKind::Retry | RolloutWaitKind::Pending)));
    bench.changes(host, 1, ChangeOutcome::Verified).await;
    bench.reaches("completed", is_done).await;
}

#[tokio::test]
async fn what_this_console_cannot_ask_or_measure_is_said_when_it_is_applied() {
    let bench = Bench::start(0).await;
    for (rollout, wanted) in [
        (json!({"authority": {"url": "https://orly.example/admit"}}), "authority_file"),
        (json!({"check": {"query": "avg(x{$hosts}", "worse_than_rest_by": "20%"}}), "rollout.check.query"),
        (json!({"budget": {"group_by": "label.site", "max_unavailable": 0}}), "never admit"),
    ] {
        let error = bench.try_apply("1", rollout).await.unwrap_err();
        let text = format!("{:?}", error.problem);
        assert!(text.contains(wanted), "{text}");
    }
    // A target that selects nobody is one that all have reached.
    let applied = bench.apply("1", json!({})).await;
    assert_eq!(applied.hosts, 0);
    bench.reaches("completed", is_done).await;
}

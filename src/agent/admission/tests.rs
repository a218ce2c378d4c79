//! Versions that are rolled out, over a real broker and a server of artifacts, with real processes.

use std::{sync::Mutex, time::Duration};

use muster_rules::host_plan::{DeploymentPlan, UnitAction, UnitPlan};
use muster_topics::{
    V1,
    admission::{AdmissionAnswer, AdmissionReport, AdmissionVerdict},
    desired::{DesiredHead, DesiredMark},
    heartbeat::{Content as Beat, Heartbeat},
    topic::HostTopic,
    unit::{Phase, UnitReport},
};
use serde_json::{Value, json};

use super::*;
use crate::{
    RunningAgent,
    config::Config,
    join,
    testing::{Console, Fleet, a_moment, server},
};

/// Runs for a long time.
const GOOD: &str = "#!/bin/sh\nexec sleep 1000\n";
/// Ends at once.
const BAD: &str = "#!/bin/sh\nexit 3\n";

/// A fleet of one host, with a server of artifacts.
struct Bench {
    fleet: Fleet,
    console: Console,
    url: String,
    /// What the server does not give, for a while.
    missing: Arc<Mutex<bool>>,
    generation: u64,
    /// The last end that was noted.
    last_end: Option<AdmissionReport>,
}

fn deployment() -> DeploymentName {
    "default/x".parse().unwrap()
}

fn listed(unit: &str, program: &str) -> Value {
    let artifact = json!({
        "sha256": Digest::of(program.as_bytes()), "size_bytes": program.len(), "role": "a", "version": "1"
    });
    json!({"unit": unit, "run": "running", "spec": {
        "kind": "yuno", "artifact": artifact, "verify_after_ms": 300, "started_after_ms": 100, "grace_ms": 1_000
    }})
}

/// A deployment that the host asks for.
fn asks(number: u32, units: &[Value]) -> Value {
    let target = json!({"select": "host=*"});
    let version = json!({"deployment": "default/x", "number": number, "target": target, "units": units});
    json!({"admission": "ask", "version": version, "asked_by": {"operator": "admin", "role": "admin"}})
}

fn granted(permit: u64) -> AdmissionVerdict {
    AdmissionVerdict::Granted { permit, begin_within_ms: 60_000 }
}

impl Bench {
    async fn new() -> Self {
        let fleet = Fleet::new();
        let missing = Arc::new(Mutex::new(false));
        let is_missing = Arc::clone(&missing);
        let programs = [GOOD, BAD].map(|program| (Digest::of(program.as_bytes()), program));
        let (url, _) = server(fleet.console_tls(), move |path, _| {
            let found = programs.iter().find(|(digest, _)| path == format!("/v1/artifacts/{digest}"));
            match found.filter(|_| !*is_missing.lock().unwrap()) {
                Some((_, program)) => (200, program.as_bytes().to_vec()),
                None => (503, b"{}".to_vec()),
            }
        })
        .await;
        let console = fleet.console().await;
        Self { fleet, console, url, missing, generation: 0, last_end: None }
    }

    fn config(&self) -> Config {
        let config = self.fleet.config("agent");
        let mut identity = join::load(&config.data_dir).unwrap().unwrap();
        identity.membership.console_url = self.url.clone();
        join::save(&config.data_dir, &identity).unwrap();
        config
    }

    async fn agent(&self) -> RunningAgent {
        working(self.config()).await
    }

    async fn document(&mut self, deployments: &[Value], remove: &[&str]) {
        self.generation += 1;
        let removal = |unit: &&str| json!({"unit": unit, "deployment": "default/x", "version": 1});
        let remove: Vec<Value> = remove.iter().map(removal).collect();
        let body = json!({"v": 1, "deployments": deployments, "remove": remove}).to_string();
        let head = DesiredHead {
            v: V1,
            host: self.fleet.host,
            mark: DesiredMark { epoch: 1, generation: self.generation },
            issued_ms: clock::now_ms(),
            digest: Digest::of(body.as_bytes()),
            size_bytes: body.len() as u64,
        };
        self.console.publish(HostTopic::Desired, true, self.fleet.sign(&head)).await;
        self.console.publish(HostTopic::Desired, false, body.into_bytes()).await;
    }

    /// The next message about the deployment that is as wanted.
    async fn says(&mut self, wanted: impl Fn(&AdmissionReport) -> bool) -> AdmissionReport {
        self.console.next(HostTopic::Admission, wanted).await
    }

    async fn question(&mut self, version: u32) -> AdmissionReport {
        self.says(|report| report.version == version && report.stage == AdmissionStage::Asks).await
    }

    async fn answer(&self, to: &AdmissionReport, verdict: AdmissionVerdict) {
        let answer = AdmissionAnswer {
            v: V1,
            host: self.fleet.host,
            issued_ms: clock::now_ms(),
            deployment: to.deployment.clone(),
            version: to.version,
            to: to.number,
            verdict,
        };
        self.console.publish(HostTopic::AdmissionAnswer, false, self.fleet.sign(&answer)).await;
    }

    /// Grants a permit for a version that the host asks for, and notes that it has begun.
    async fn admit(&mut self, version: u32, permit: u64) {
        let question = self.question(version).await;
        self.answer(&question, granted(permit)).await;
        let begun = self.says(|report| report.stage == AdmissionStage::Begun { permit }).await;
        assert_eq!((begun.version, begun.digest.clone()), (version, question.digest));
        self.answer(&begun, AdmissionVerdict::Noted).await;
    }

    async fn ended(&mut self, version: u32) -> (AdmissionReport, Option<u64>, ChangeOutcome, bool) {
        let is_end = |report: &AdmissionReport| {
            report.version == version && matches!(report.stage, AdmissionStage::Ended { .. })
        };
        let report = self.says(is_end).await;
        let AdmissionStage::Ended { permit, outcome, changed, .. } = report.stage.clone() else { unreachable!() };
        (report, permit, outcome, changed)
    }

    async fn end(&mut self, version: u32) -> (Option<u64>, ChangeOutcome, bool) {
        let (report, permit, outcome, changed) = self.ended(version).await;
        self.answer(&report, AdmissionVerdict::Noted).await;
        self.last_end = Some(report);
        (permit, outcome, changed)
    }

    /// Waits until the host reports this of the deployment.
    async fn reports(&mut self, wanted: impl Fn(&DeploymentReport) -> bool) -> DeploymentReport {
        let of = |beat: &Heartbeat| match &beat.content {
            Beat::Full { state } => state.desired.deployments.get(&deployment()).cloned(),
            _ => None,
        };
        let beat = self.console.next(HostTopic::Heartbeat, |beat: &Heartbeat| of(beat).is_some_and(|of| wanted(&of)));
        of(&beat.await).unwrap()
    }

    async fn waits(&mut self, version: u32, kind: AdmissionWaitKind) -> AdmissionWait {
        let waits = |report: &DeploymentReport| {
            report.waits.as_ref().is_some_and(|waits| waits.version == version && waits.kind == kind)
        };
        self.reports(waits).await.waits.unwrap()
    }

    /// Waits until the host has stored that the console knows the end of the version, of which it sends nothing.
    async fn until_noted(&self) {
        let file = self.fleet.data("agent").join("agent.db");
        let store = sqlx::SqlitePool::connect(file.to_str().unwrap()).await.unwrap();
        let noted = "SELECT count(*) FROM admission WHERE noted IS NOT NULL";
        while sqlx::query_scalar::<_, i64>(noted).fetch_one(&store).await.unwrap() == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn desired_generation(&mut self, generation: u64) {
        let is_there = |beat: &Heartbeat| match &beat.content {
            Beat::Full { state } => state.desired.mark.generation == generation,
            _ => false,
        };
        self.console.next(HostTopic::Heartbeat, is_there).await;
    }

    async fn unit(&mut self, unit: &str, wanted: impl Fn(&UnitReport) -> bool) -> UnitReport {
        self.console.next(HostTopic::Unit(unit.parse().unwrap()), wanted).await
    }

    /// Brings the first version, of one good unit.
    async fn first(&mut self) -> UnitReport {
        self.document(&[asks(1, &[listed("default/a", GOOD)])], &[]).await;
        self.admit(1, 1).await;
        let running = self.unit("default/a", |unit| unit.observed.phase() == Phase::Running).await;
        assert_eq!(self.end(1).await, (Some(1), ChangeOutcome::Verified, true));
        running
    }
}

/// An agent that works: it misses no document.
async fn working(config: Config) -> RunningAgent {
    let agent = crate::start(config).await.unwrap();
    agent.connected().wait_for(|connected| *connected).await.unwrap();
    agent
}

fn is_there(agent: &RunningAgent, unit: &str) -> bool {
    agent.units().borrow().contains_key(&unit.parse().unwrap())
}

#[tokio::test]
async fn version_begins_with_a_permit_once_everything_is_there() {
    let mut bench = Bench::new().await;
    *bench.missing.lock().unwrap() = true;
    let agent = bench.agent().await;
    bench.document(&[asks(1, &[listed("default/a", GOOD)])], &[]).await;
    let says_why = |report: &DeploymentReport| report.waits.as_ref().is_some_and(|waits| waits.diagnostic.is_some());
    let waits = bench.reports(says_why).await.waits.unwrap();
    assert!(waits.kind == AdmissionWaitKind::Preparing && waits.since_ms > 0, "{waits:?}");
    assert!(waits.diagnostic.unwrap().cause.contains("artifact"), "it says what is missing");
    assert!(!is_there(&agent, "default/a"));
    *bench.missing.lock().unwrap() = false;
    let question = bench.question(1).await;
    // Asking changes nothing, nor do answers that count no more.
    let old = AdmissionReport { number: Numbered { seq: 99, ..question.number }, ..question.clone() };
    bench.answer(&old, granted(9)).await;
    bench.answer(&question, AdmissionVerdict::Wait { reason: "not yet".to_owned(), again_ms: 1_000 }).await;
    let waits = |report: &DeploymentReport| {
        report
            .waits
            .as_ref()
            .is_some_and(|waits| waits.diagnostic.as_ref().map(|told| told.cause.as_str()) == Some("not yet"))
    };
    let report = bench.reports(waits).await;
    assert_eq!((report.version, report.waits.unwrap().kind), (0, AdmissionWaitKind::Admission));
    assert!(!is_there(&agent, "default/a"));
    bench.first_again().await;
    let report = bench.reports(|report| report.version == 1).await;
    assert_eq!((report.waits, report.refused), (None, None));
    // What is noted is not said again.
    bench.until_noted().await;
    agent.stop().await;
    let agent = bench.agent().await;
    bench.unit("default/a", |unit| unit.observed.phase() == Phase::Running).await;
    a_moment().await;
    assert!(bench.console.is_silent_on(&HostTopic::Admission));
    agent.stop().await;
}

impl Bench {
    /// Grants the first version, which was asked for already.
    async fn first_again(&mut self) {
        self.admit(1, 1).await;
        assert_eq!(self.end(1).await, (Some(1), ChangeOutcome::Verified, true));
    }
}

#[tokio::test]
async fn version_whose_plan_is_another_waits_for_one_that_is_the_same() {
    let mut bench = Bench::new().await;
    let agent = bench.agent().await;
    let planned = |digest: Digest| {
        let mut deployment = asks(1, &[listed("default/a", GOOD)]);
        deployment["plan"] = json!(digest);
        deployment
    };
    bench.document(&[planned(Digest::of(b"another"))], &[]).await;
    let waits = bench.waits(1, AdmissionWaitKind::PlanChanged).await;
    assert!(waits.diagnostic.unwrap().hint.unwrap().contains("muster plan"), "it says what to do");
    a_moment().await;
    assert!(bench.console.is_silent_on(&HostTopic::Admission) && !is_there(&agent, "default/a"));
    // The same version with the plan that the host makes: its only unit is new.
    let new = UnitPlan::new("default/a".parse().unwrap(), UnitAction::Create);
    bench.document(&[planned(DeploymentPlan::of(deployment(), vec![new]).digest)], &[]).await;
    bench.first_again().await;
    agent.stop().await;
}

#[tokio::test]
async fn units_stay_exactly_as_they_are_until_a_version_begins() {
    let mut bench = Bench::new().await;
    let agent = bench.agent().await;
    let two = [listed("default/a", GOOD), listed("default/b", GOOD)];
    bench.document(&[asks(1, &two)], &[]).await;
    bench.first_again().await;
    let before = agent.units().borrow().clone();
    // The next one changes the first, and gives up the second.
    let mut next = listed("default/a", GOOD);
    next["spec"]["args"] = json!(["other"]);
    bench.document(&[asks(2, &[next])], &["default/b"]).await;
    let question = bench.question(2).await;
    a_moment().await;
    let desired = |units: &UnitStates| {
        units.iter().map(|(name, unit)| (name.clone(), unit.desired.clone(), unit.owner.clone())).collect::<Vec<_>>()
    };
    assert_eq!(desired(&agent.units().borrow()), desired(&before));
    bench.answer(&question, granted(2)).await;
    agent.units().wait_for(|units| units.len() == 1).await.unwrap();
    assert_eq!(bench.end(2).await, (Some(2), ChangeOutcome::Verified, true));
    agent.stop().await;
}

#[tokio::test]
async fn version_that_changes_nothing_needs_no_permit() {
    let mut bench = Bench::new().await;
    let agent = bench.agent().await;
    let running = bench.first().await;
    bench.document(&[asks(2, &[listed("default/a", GOOD)])], &[]).await;
    assert_eq!(bench.end(2).await, (None, ChangeOutcome::Verified, false));
    let after = bench.reports(|report| report.version == 2).await;
    assert_eq!(after.waits, None);
    let states = agent.units().borrow().clone();
    assert_eq!(states[&"default/a".parse().unwrap()].desired.generation, running.desired.generation);
    agent.stop().await;
}

#[tokio::test]
async fn version_that_fails_is_rolled_back_and_can_be_tried_again() {
    let mut bench = Bench::new().await;
    let agent = bench.agent().await;
    bench.first().await;
    bench.document(&[asks(2, &[listed("default/a", BAD)])], &[]).await;
    bench.admit(2, 2).await;
    assert_eq!(bench.end(2).await, (Some(2), ChangeOutcome::RolledBack, false));
    // Noted, and over a restart: an operator has it tried again.
    a_moment().await;
    agent.stop().await;
    let agent = bench.agent().await;
    bench.unit("default/a", |unit| unit.observed.phase() == Phase::Running).await;
    a_moment().await;
    let last = bench.last_end.clone().unwrap();
    bench.answer(&last, AdmissionVerdict::Retry).await;
    bench.admit(2, 3).await;
    assert_eq!(bench.end(2).await, (Some(3), ChangeOutcome::RolledBack, false));
    // A later version replaces what this one has broken.
    bench.document(&[asks(3, &[listed("default/a", GOOD)])], &[]).await;
    bench.admit(3, 4).await;
    assert_eq!(bench.end(3).await, (Some(4), ChangeOutcome::Verified, true));
    agent.stop().await;
}

#[tokio::test]
async fn begun_version_is_said_and_ended_after_a_restart() {
    let mut bench = Bench::new().await;
    let agent = bench.agent().await;
    bench.document(&[asks(1, &[listed("default/a", GOOD)])], &[]).await;
    let question = bench.question(1).await;
    bench.answer(&question, granted(1)).await;
    bench.says(|report| report.stage == AdmissionStage::Begun { permit: 1 }).await;
    agent.stop().await;
    let agent = bench.agent().await;
    let (report, permit, outcome, _) = bench.ended(1).await;
    assert_eq!((permit, outcome), (Some(1), ChangeOutcome::Verified));
    // It is repeated until it is noted, over restarts.
    agent.stop().await;
    let agent = bench.agent().await;
    let (again, ..) = bench.ended(1).await;
    assert!(again.number > report.number && again.stage == report.stage);
    // An answer to an earlier message is none.
    bench.answer(&question, granted(2)).await;
    bench.answer(&again, AdmissionVerdict::Noted).await;
    a_moment().await;
    assert_eq!(agent.units().borrow()[&"default/a".parse().unwrap()].desired.generation, 1);
    agent.stop().await;
}

#[tokio::test]
async fn refused_version_ends_without_a_permit_and_asks_once_it_may() {
    let mut bench = Bench::new().await;
    let agent = bench.agent().await;
    let mut forbidden = listed("default/a", GOOD);
    forbidden["unit"] = json!("elsewhere/a");
    bench.document(&[asks(1, &[forbidden])], &[]).await;
    let (report, permit, outcome, changed) = bench.ended(1).await;
    assert_eq!((permit, outcome, changed), (None, ChangeOutcome::Refused, false));
    let AdmissionStage::Ended { diagnostic: Some(why), .. } = &report.stage else { panic!("{report:?}") };
    assert!(why.cause.contains("elsewhere"), "{why}");
    bench.answer(&report, AdmissionVerdict::Noted).await;
    // A newer one is asked for at once, and one newer still in its place.
    bench.document(&[asks(2, &[listed("default/a", GOOD)])], &[]).await;
    let second = bench.question(2).await;
    bench.document(&[asks(3, &[listed("default/a", BAD)])], &[]).await;
    let third = bench.question(3).await;
    bench.answer(&second, granted(1)).await;
    a_moment().await;
    assert!(!is_there(&agent, "default/a"));
    // While the third is under way, the fourth replaces it.
    bench.answer(&third, granted(2)).await;
    bench.says(|report| report.stage == AdmissionStage::Begun { permit: 2 }).await;
    bench.document(&[asks(4, &[listed("default/a", GOOD)])], &[]).await;
    bench.admit(4, 3).await;
    assert_eq!(bench.end(4).await, (Some(3), ChangeOutcome::Verified, true));
    agent.stop().await;
}

#[tokio::test]
async fn own_policy_keeps_a_host_from_asking() {
    let mut bench = Bench::new().await;
    let file = bench.fleet.folder.path().join("in-use");
    std::fs::write(&file, "").unwrap();
    let mut config = bench.config();
    config.admission.unless_file = Some(file.clone());
    let agent = working(config.clone()).await;
    bench.document(&[asks(1, &[listed("default/a", GOOD)])], &[]).await;
    let waits = bench.waits(1, AdmissionWaitKind::Policy).await;
    assert!(waits.diagnostic.unwrap().cause.contains("in-use"));
    a_moment().await;
    assert!(bench.console.is_silent_on(&HostTopic::Admission));
    agent.stop().await;
    std::fs::remove_file(&file).unwrap();
    let agent = working(config).await;
    let question = bench.question(1).await;
    // It may have come back since.
    std::fs::write(&file, "").unwrap();
    bench.answer(&question, granted(1)).await;
    a_moment().await;
    assert!(!is_there(&agent, "default/a"));
    std::fs::remove_file(&file).unwrap();
    bench.first_again().await;
    agent.stop().await;
}

#[tokio::test]
async fn removed_deployment_is_asked_for_no_more() {
    let mut bench = Bench::new().await;
    let agent = bench.agent().await;
    bench.document(&[asks(1, &[listed("default/a", GOOD)])], &[]).await;
    let question = bench.question(1).await;
    bench.document(&[], &[]).await;
    bench.desired_generation(2).await;
    bench.answer(&question, granted(1)).await;
    a_moment().await;
    assert!(!is_there(&agent, "default/a"));
    // One that has begun goes as the document says, and its end is nobody's.
    bench.document(&[asks(2, &[listed("default/a", GOOD)])], &[]).await;
    let question = bench.question(2).await;
    bench.answer(&question, granted(2)).await;
    bench.says(|report| report.stage == AdmissionStage::Begun { permit: 2 }).await;
    bench.document(&[], &["default/a"]).await;
    agent.units().wait_for(|units| units.is_empty()).await.unwrap();
    a_moment().await;
    bench.console.drain();
    agent.stop().await;
    let agent = bench.agent().await;
    bench.desired_generation(4).await;
    a_moment().await;
    assert!(bench.console.is_silent_on(&HostTopic::Admission));
    agent.stop().await;
}

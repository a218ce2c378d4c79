//! Documents that come over a real broker, and from an HTTPS server that requires the host's certificate.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use muster_topics::{
    command::{Command, Target},
    desired::{DesiredHead, DesiredMark, DesiredReport, DocumentRequest},
    envelope::Body,
    heartbeat::{Content as Beat, Heartbeat},
    name::Digest,
    outcome::Status,
    topic::HostTopic,
    unit::UnitReport,
};
use serde_json::{Value, json};

use super::*;
use crate::{
    config::Config,
    testing::{Console, Fleet, a_moment, server},
};

fn head(fleet: &Fleet, generation: u64, body: &str) -> DesiredHead {
    DesiredHead {
        v: V1,
        host: fleet.host,
        mark: DesiredMark { epoch: 1, generation },
        issued_ms: clock::now_ms(),
        digest: Digest::of(body.as_bytes()),
        size_bytes: body.len() as u64,
    }
}

/// A body with a deployment of these units, which do not run, and with those that are to go.
fn body(units: &[&str], remove: &[&str]) -> String {
    let artifact = json!({"sha256": Digest::of(b"a"), "size_bytes": 1, "role": "a", "version": "1"});
    let listed = |unit: &&str| json!({"unit": unit, "spec": {"kind": "yuno", "artifact": artifact}, "run": "stopped"});
    let units: Vec<Value> = units.iter().map(listed).collect();
    let removal = |unit: &&str| json!({"unit": unit, "deployment": "default/x", "version": 1});
    let remove: Vec<Value> = remove.iter().map(removal).collect();
    let version = json!({"deployment": "default/x", "number": 1, "target": {"select": "label.a=b"}, "units": units});
    json!({"v": 1, "deployments": [{"version": version, "asked_by": {"operator": "admin", "role": "admin"}}], "remove": remove}).to_string()
}

impl Console {
    async fn publish_head(&self, fleet: &Fleet, generation: u64, body: &str) {
        self.publish(HostTopic::Desired, true, fleet.sign(&head(fleet, generation, body))).await;
    }

    async fn publish_document(&self, fleet: &Fleet, generation: u64, body: &str) {
        self.publish_head(fleet, generation, body).await;
        self.publish(HostTopic::Desired, false, body.as_bytes().to_vec()).await;
    }

    /// Waits until the host reports this of its document. Nobody acknowledges heartbeats, so each is whole.
    async fn desired(&mut self, wanted: impl Fn(&DesiredReport) -> bool) -> DesiredReport {
        let of = |beat: &Heartbeat| match &beat.content {
            Beat::Full { state } => Some(state.desired.clone()),
            _ => None,
        };
        let beat = self.next(HostTopic::Heartbeat, |beat: &Heartbeat| of(beat).is_some_and(|report| wanted(&report)));
        of(&beat.await).unwrap()
    }

    async fn generation(&mut self, generation: u64) -> DesiredReport {
        self.desired(|report| report.mark.generation == generation).await
    }

    async fn unit(&mut self, unit: &str, wanted: impl Fn(&UnitReport) -> bool) -> UnitReport {
        self.next(HostTopic::Unit(unit.parse().unwrap()), wanted).await
    }
}

/// A configuration of an agent that finds the console at this URL.
fn config(fleet: &Fleet, console_url: &str) -> Config {
    let config = fleet.config("agent");
    let mut identity = join::load(&config.data_dir).unwrap().unwrap();
    identity.membership.console_url = console_url.to_owned();
    join::save(&config.data_dir, &identity).unwrap();
    config
}

#[tokio::test]
async fn document_on_the_topic_is_applied_and_survives_a_restart() {
    let fleet = Fleet::new();
    let mut console = fleet.console().await;
    let agent = fleet.working("agent").await;
    assert_eq!(console.generation(0).await, DesiredReport::default());
    let text = body(&["default/a"], &[]);
    console.publish_document(&fleet, 2, &text).await;
    let report = console.generation(2).await;
    assert_eq!(report.digest, Some(Digest::of(text.as_bytes())));
    assert_eq!(report.deployments[&"default/x".parse().unwrap()].version, 1);
    let first = console.unit("default/a", |unit| unit.owner.is_some()).await;
    assert_eq!(first.owner.unwrap().deployment.as_str(), "default/x");

    // An older one, a forged one, and a cleared topic stop nothing.
    console.publish_document(&fleet, 1, &body(&[], &["default/a"])).await;
    let stranger = Fleet::unknown_signer().sign(fleet.host.slot(), &head(&fleet, 3, "{}")).unwrap();
    console.publish(HostTopic::Desired, true, stranger).await;
    console.publish(HostTopic::Desired, true, Vec::new()).await;
    a_moment().await;
    agent.stop().await;

    console.publish_document(&fleet, 2, &text).await;
    let agent = fleet.working("agent").await;
    let again = console.unit("default/a", |unit| unit.epoch > first.epoch).await;
    assert_eq!(again.desired, first.desired);
    assert_eq!(console.generation(2).await.refused, None);

    // A verb does not change it, until it is detached.
    let verb = |name: &str| -> Command {
        let verb = serde_json::from_value(json!({ name: {"unit": "default/a"} })).unwrap();
        Command { target: Target::Hosts(vec![fleet.host]), verb, ..fleet.exec(&[]) }
    };
    let (run, detach) = (verb("unit_run"), verb("unit_detach"));
    console.publish(HostTopic::Command, false, fleet.sign(&run)).await;
    let (_, outcome) = console.outcome(run.id).await;
    assert!(matches!(outcome.status, Status::Refused { diagnostic, .. } if diagnostic.cause.contains("default/x")));
    console.publish(HostTopic::Command, false, fleet.sign(&detach)).await;
    console.unit("default/a", |unit| unit.owner.is_none()).await;
    let deployment = "default/x".parse().unwrap();
    console.desired(|report| report.deployments.get(&deployment).is_some_and(|of| of.refused.is_some())).await;
    agent.stop().await;
}

#[tokio::test]
async fn host_of_a_lost_console_is_detached_while_no_agent_runs() {
    let fleet = Fleet::new();
    let mut console = fleet.console().await;
    let agent = fleet.working("agent").await;
    let text = body(&["default/a", "default/b"], &[]);
    console.publish_document(&fleet, 1, &text).await;
    let first = console.unit("default/a", |unit| unit.owner.is_some()).await;
    let folder = fleet.config("agent").data_dir;
    assert!(matches!(crate::detach(&folder).await, Err(crate::AgentError::Busy { .. })));
    agent.stop().await;
    assert_eq!(crate::detach(&folder).await.unwrap(), 2);
    assert_eq!(crate::detach(&folder).await.unwrap(), 0);
    // The same document again does not take them back.
    let agent = fleet.working("agent").await;
    let local = console.unit("default/a", |unit| unit.epoch > first.epoch).await;
    assert_eq!((local.owner, local.desired), (None, first.desired));
    console.publish_document(&fleet, 1, &text).await;
    a_moment().await;
    assert!(agent.units().borrow().values().all(|unit| unit.owner.is_none()));
    agent.stop().await;
}

#[tokio::test]
async fn refused_document_is_reported_and_raises_an_alert() {
    let fleet = Fleet::new();
    let mut console = fleet.console().await;
    let agent = fleet.working("agent").await;
    console.publish_document(&fleet, 1, &body(&["default/a"], &[])).await;
    console.generation(1).await;
    console.publish_document(&fleet, 2, r#"{"v":1,"surprise":1}"#).await;
    let report = console.desired(|report| report.refused.is_some()).await;
    assert_eq!((report.mark.generation, report.refused.unwrap().mark.generation), (1, 2));
    let is_raised = |beat: &Heartbeat, is_raised| match &beat.content {
        Beat::Full { state } => state.alerts.contains_key(&"document-refused".parse().unwrap()) == is_raised,
        _ => false,
    };
    console.next(HostTopic::Heartbeat, |beat: &Heartbeat| is_raised(beat, true)).await;
    console.publish_document(&fleet, 3, &body(&["default/a"], &[])).await;
    console.next(HostTopic::Heartbeat, |beat: &Heartbeat| is_raised(beat, false)).await;
    assert_eq!(console.generation(3).await.refused, None);
    agent.stop().await;
}

#[tokio::test]
async fn missed_body_is_fetched_and_the_document_is_handed_in() {
    let fleet = Fleet::new();
    let (text, asked) = (body(&["default/a"], &[]), AtomicUsize::new(0));
    let (content, handed) = (text.clone(), Arc::new(std::sync::Mutex::new(Vec::new())));
    let kept = handed.clone();
    let (url, requests) = server(fleet.console_tls(), move |path, body| match path {
        "/v1/desired" => {
            kept.lock().unwrap().push(body.to_vec());
            (204, Vec::new())
        }
        path if path.starts_with("/v1/desired/") => match asked.fetch_add(1, Ordering::Relaxed) {
            0 => (404, b"{}".to_vec()),
            1 => (200, b"something else".to_vec()),
            _ => (200, content.clone().into_bytes()),
        },
        _ => (404, b"{}".to_vec()),
    })
    .await;
    let mut console = fleet.console().await;
    console.publish_head(&fleet, 1, &text).await;
    let agent = crate::start(config(&fleet, &url)).await.unwrap();
    console.generation(1).await;
    let path = format!("/v1/desired/{}", Digest::of(text.as_bytes()));
    assert_eq!(requests.lock().unwrap().iter().filter(|asked| **asked == path).count(), 3);

    let request = DocumentRequest { v: V1, host: fleet.host, issued_ms: clock::now_ms() };
    console.publish(HostTopic::Command, false, fleet.sign(&request)).await;
    let handed_in: HandedIn = tokio::time::timeout(Duration::from_secs(30), async {
        loop {
            if let Some(body) = handed.lock().unwrap().pop() {
                return serde_json::from_slice(&body).unwrap();
            }
            a_moment().await;
        }
    })
    .await
    .unwrap();
    let document = handed_in.document.unwrap();
    assert_eq!(document.body, text);
    let signed = serde_json::to_vec(&document.head).unwrap();
    let opened = muster_topics::envelope::open(&signed, &fleet.command_keys()).unwrap();
    assert_eq!(
        (opened.kind(), opened.body::<DesiredHead>().unwrap().digest),
        (DesiredHead::KIND, Digest::of(text.as_bytes()))
    );
    agent.stop().await;
}

#[tokio::test]
async fn data_of_a_removed_unit_stays_unless_it_is_purged() {
    for purge in [false, true] {
        let fleet = Fleet::new();
        let mut console = fleet.console().await;
        let agent = fleet.working("agent").await;
        let data = fleet.data("agent");
        let (work, kept) = (data.join("units/default/a/work"), data.join("kept/default/a"));
        console.publish_document(&fleet, 1, &body(&["default/a"], &[])).await;
        console.generation(1).await;
        std::fs::create_dir_all(&work).unwrap();
        std::fs::write(work.join("sales"), "1").unwrap();
        let removal =
            body(&[], &["default/a"]).replace(r#""version":1}]"#, &format!(r#""version":1,"purge":{purge}}}]"#));
        console.publish_document(&fleet, 2, &removal).await;
        agent.units().wait_for(|units| units.is_empty()).await.unwrap();
        // The unit may not have been there yet when the list was looked at.
        while work.exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let sales = std::fs::read_to_string(kept.join("sales")).ok();
        assert_eq!(sales.as_deref(), Some("1").filter(|_| !purge));
        agent.stop().await;
    }
}

#[tokio::test]
async fn units_go_one_at_a_time_and_no_more_in_a_day_than_the_policy_allows() {
    let fleet = Fleet::new();
    let mut console = fleet.console().await;
    let agent = fleet.working("agent").await;
    console.publish_document(&fleet, 1, &body(&["default/a", "default/b", "default/c"], &[])).await;
    console.generation(1).await;
    console.publish_document(&fleet, 2, &body(&[], &["default/a", "default/b"])).await;
    let waits = |report: &DesiredReport| report.mark.generation == 2 && report.removals.len() == 1;
    let report = console.desired(waits).await;
    let (unit, time) = report.removals.into_iter().next().unwrap();
    assert_eq!(unit.as_str(), "default/b");
    assert!(time.from_ms.unwrap() > clock::now_ms() + 23 * 3_600_000, "{time:?}");
    let is_there =
        |agent: &crate::RunningAgent, unit: &str| agent.units().borrow().contains_key(&unit.parse().unwrap());
    agent.units().wait_for(|units| !units.contains_key(&"default/a".parse().unwrap())).await.unwrap();
    // The pace survives a restart, and what is not named stays.
    agent.stop().await;
    let agent = fleet.working("agent").await;
    console.desired(waits).await;
    assert!(is_there(&agent, "default/b") && is_there(&agent, "default/c"));
    let orphan = console.unit("default/c", |unit| unit.owner.is_some()).await;
    assert!(orphan.owner.unwrap().orphan);
    // An operator's word goes before it.
    for unit in ["default/b", "default/c"] {
        let verb = Verb::UnitRm { unit: unit.parse().unwrap() };
        let command = Command { verb, ..fleet.exec(&[]) };
        console.publish(HostTopic::Command, false, fleet.sign(&command)).await;
        assert_eq!(console.outcome(command.id).await.1.status, Status::Completed);
    }
    agent.units().wait_for(|units| units.is_empty()).await.unwrap();
    console.desired(|report| report.removals.is_empty()).await;
    agent.stop().await;
}

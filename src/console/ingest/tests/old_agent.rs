//! A host whose agent is of before documents of desired state.

use muster_rules::deployment_state::DeploymentState;

use super::*;
use crate::{ingest::effects::RefreshRequests, store::desired};

/// The state that such an agent has reported.
const STATE: &str = include_str!("before_documents.json");

#[tokio::test]
async fn host_with_an_agent_of_before_documents_cannot_and_is_sent_none() {
    let fixture = Fixture::new().await;
    let shared = fixture.shared();
    let host = fixture.member("old").await.id;
    let beat = |seq: u64, change: &dyn Fn(&mut Value)| {
        let mut state: Value = serde_json::from_str(STATE).unwrap();
        change(&mut state);
        json!({"v": 1, "epoch": 1, "seq": seq, "at_ms": 1_000 * seq, "kind": "full", "state": state})
    };
    let hear = async |beat: &Value| {
        let effects = stored(&fixture, &[message(host, HostTopic::Heartbeat, beat)]).await;
        effects.perform(shared, &mut RefreshRequests::default(), now_ms()).await;
    };
    hear(&beat(1, &|_| {})).await;
    // It has labels of a store that was lost, and cannot hand them in: it is confirmed with what the console has.
    assert_eq!(shared.hosts.labels.newer(host), Some(1));
    let confirm = muster_api::ConfirmDocuments { target: NewTarget::All, dry_run: false, replace: true };
    let waiting = muster_api::ConfirmDocuments { replace: false, ..confirm.clone() };
    let waiting = fixture.console.confirm_documents(&admin(), waiting).await.unwrap();
    assert_eq!((waiting.hosts.len(), waiting.waiting.len()), (0, 1));
    assert_eq!(fixture.console.confirm_documents(&admin(), confirm).await.unwrap().hosts.len(), 1);
    let generation = shared.hosts.labels.tellings.of(host);
    hear(&beat(2, &|state| state["numbers"]["host_labels"] = generation.into())).await;

    let applied = fixture.deploy_container("default/till", "host=*").await;
    assert_eq!(applied.hosts, 1);
    assert!(applied.notes.iter().any(|note| note.contains("agents that know no deployments")), "{:?}", applied.notes);
    let states = async || {
        let hosts = fixture.console.deployment_hosts(&"default/till".parse().unwrap()).await.unwrap();
        hosts.into_iter().map(|host| host.state).collect::<Vec<_>>()
    };
    assert_eq!(states().await, [DeploymentState::Cannot]);
    assert!(desired::documents(shared.store.read()).await.unwrap().is_empty());
    // With the next agent it can, and gets one.
    let report = json!({"mark": {"epoch": 0, "generation": 0}});
    hear(&beat(3, &|state| {
        state["numbers"]["host_labels"] = generation.into();
        state["desired"] = report.clone();
    }))
    .await;
    for _ in 0..100 {
        if !desired::documents(shared.store.read()).await.unwrap().is_empty() {
            return fixture.running.stop().await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("it has no document");
}

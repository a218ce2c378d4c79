//! What is watched of deployments: alerts, events, and reports of before a restoration.

use muster_api::DeploymentEvent;
use muster_topics::Millis;

use super::*;
use crate::{
    desired::{
        follow::DeploymentFollower,
        table::{DesiredTable, DocumentStanding},
    },
    page_change::PageChange,
};

const MINUTE_MS: Millis = 60_000;

/// The message of the alert about hosts without their documents, after another comparison.
async fn behind(fixture: &Fixture) -> Option<String> {
    fixture.console.sync().await;
    let alerts = fixture.shared().notices.alerts(now_ms());
    let found = alerts.into_iter().find(|alert| alert.alert.rule.as_str() == "console-hosts-behind");
    found.map(|alert| alert.alert.diagnostic.cause)
}

#[tokio::test]
async fn connected_host_that_lacks_its_document_for_long_is_an_alert() {
    let fixture = fixture().await;
    let (one, two) = (able(&fixture, "one").await, able(&fixture, "two").await);
    apply(&fixture, document("shop/till", "label.role=till", till("1"))).await;
    set_online(&fixture, one.id, true).await;
    let wait = |host: HostId, minutes: Millis| {
        let mut table = fixture.shared().hosts.desired.table();
        let entry = table.hosts.get_mut(&host).unwrap();
        assert!(entry.behind_since_ms().is_some(), "since it has a document");
        entry.standing = DocumentStanding::Behind { since_ms: now_ms() - minutes * MINUTE_MS };
    };
    wait(one.id, 9);
    // One that is away lacks it for another reason.
    wait(two.id, 60);
    assert_eq!(behind(&fixture).await, None);
    wait(one.id, 11);
    let message = behind(&fixture).await.unwrap();
    assert!(message.starts_with("1 connected hosts have refused their document"), "{message}");
    set_online(&fixture, two.id, true).await;
    assert!(behind(&fixture).await.unwrap().starts_with("2 connected"));
    set_online(&fixture, two.id, false).await;
    store_document(&fixture, one.id).await;
    assert_eq!(behind(&fixture).await, None);
    // The next version is another wait.
    apply(&fixture, document("shop/till", "label.role=till", till("2"))).await;
    assert_eq!(behind(&fixture).await, None);
    fixture.running.stop().await;
}

#[tokio::test]
async fn events_tell_each_change_once_until_nobody_is_waited_for() {
    let fixture = fixture().await;
    let (one, two) = (able(&fixture, "one").await, able(&fixture, "two").await);
    apply(&fixture, document("shop/till", "label.role=till", till("1"))).await;
    for host in [one.id, two.id] {
        set_online(&fixture, host, true).await;
    }
    let mut follower = DeploymentFollower::new(fixture.console.clone(), name("shop/till"));
    let mut next = async || match follower.next().await {
        Some(DeploymentEvent::Host(host)) => format!("{} {}", host.hostname, host.state.word()),
        Some(DeploymentEvent::Gone(host)) => format!("{} gone", host.hostname),
        Some(DeploymentEvent::End) => "end".to_owned(),
        None => "nothing".to_owned(),
    };
    assert_eq!([next().await, next().await], ["one pending", "two pending"]);
    store_document(&fixture, one.id).await;
    fixture.shared().changed(PageChange::Host(one.id));
    assert_eq!(next().await, "one changing", "the other one is not repeated");
    report_unit(&fixture, one.id, "shop/till", Some(("shop/till", 1))).await;
    fixture.shared().changed(PageChange::Unit(one.id, unit("shop/till")));
    assert_eq!(next().await, "one verified");
    // The other one is removed while it is away: nobody is left to wait for.
    set_online(&fixture, two.id, false).await;
    fixture.console.remove_host(&admin(), "two").await.unwrap();
    fixture.shared().changed(PageChange::Host(two.id));
    assert_eq!([next().await, next().await, next().await], ["two gone", "end", "nothing"]);
    fixture.running.stop().await;
}

#[tokio::test]
async fn what_hosts_reported_before_a_restoration_says_nothing() {
    let fixture = fixture().await;
    let host = able(&fixture, "one").await;
    apply(&fixture, document("shop/till", "label.role=till", till("1"))).await;
    let row = row(&fixture, host.id).unwrap();
    let report = DesiredReport { mark: row.mark, digest: Some(row.digest), ..DesiredReport::default() };
    let store = &fixture.shared().store;
    sqlx::query("INSERT INTO heartbeat (host, epoch, seq, state, at_ms) VALUES ($1, 1, 1, $2, 8)")
        .bind(host.id.to_string())
        .bind(json!({"desired": report}).to_string())
        .execute(store.write())
        .await
        .unwrap();
    let entry = async || DesiredTable::load(store).await.unwrap().hosts.remove(&host.id).unwrap();
    let known = entry().await;
    assert!(known.is_current() && known.may_have_document());
    for (name, value) in [("restored_from_ms", 5), ("restored_ms", 9)] {
        let set = "INSERT INTO meta (key, value) VALUES ($1, $2)";
        sqlx::query(set).bind(name).bind(value).execute(store.write()).await.unwrap();
    }
    let unheard = entry().await;
    assert_eq!(unheard.report, None);
    assert!(!unheard.may_have_document(), "what it has now, nobody knows");
    sqlx::query("UPDATE heartbeat SET at_ms = 9").execute(store.write()).await.unwrap();
    assert!(entry().await.may_have_document());
    fixture.running.stop().await;
}

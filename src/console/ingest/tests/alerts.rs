//! Tests of alerts that hosts report.

use std::sync::LazyLock;

use muster_api::AlertStanding;
use muster_topics::alert::{AlertAck, AlertState};

use super::*;
use crate::{store::alert::Which, testing::admin};

/// From when these tests count: not so long ago that a console takes what is over for old, and sweeps it away.
static BEGAN_MS: LazyLock<i64> = LazyLock::new(|| muster_base::clock::now_ms() - 3_600_000);

fn topic(id: &str) -> HostTopic {
    HostTopic::Alert(id.parse().unwrap())
}

/// What a host says of an alert of the rule `disk`.
fn told(host: HostId, (epoch, seq): (u64, u64), since_ms: i64, at_ms: i64, state: &str) -> Inbound {
    let payload = json!({
        "v": 1, "epoch": epoch, "seq": seq, "id": "disk-1", "rule": "disk", "severity": "warning", "mount": "/",
        "metric": "disk_used", "value": 0.93, "threshold": 0.9, "clear": 0.85, "since_ms": *BEGAN_MS + since_ms,
        "at_ms": *BEGAN_MS + at_ms, "state": state, "message": format!("{state} {seq}"), "added": "by a newer host",
    });
    message(host, topic("disk-1"), &payload)
}

/// A heartbeat of a host that holds this.
fn beat(host: HostId, (epoch, seq): (u64, u64), at_ms: i64, holding: &Value) -> Inbound {
    let mut payload = heartbeat(epoch, seq, &json!({}));
    payload["at_ms"] = json!(*BEGAN_MS + at_ms);
    payload["state"]["alerts"] = holding.clone();
    message(host, HostTopic::Heartbeat, &payload)
}

/// Beginning, standing and end of all alerts, those that began last first.
async fn all(fixture: &Fixture) -> Vec<(i64, AlertStanding, Option<i64>)> {
    let which = Which { history: true, limit: 100, ..Which::default() };
    let alerts = fixture.console.alerts(which).await.unwrap();
    let since = |at_ms: i64| at_ms - *BEGAN_MS;
    alerts.iter().map(|one| (since(one.alert.since_ms), one.standing, one.ended_ms.map(since))).collect()
}

async fn raised(fixture: &Fixture) -> Vec<muster_api::Alert> {
    fixture.console.alerts(Which { limit: 100, ..Which::default() }).await.unwrap()
}

#[tokio::test]
async fn alert_is_stored_from_raise_to_end() {
    use AlertStanding::{Cleared, Raised};
    let fixture = Fixture::new().await;
    let host = fixture.member("h").await.id;
    let mut effects = stored(&fixture, &[told(host, (1, 1), 100, 150, "raised")]).await;
    let key = |state| AlertAck { id: "disk-1".parse().unwrap(), since_ms: *BEGAN_MS + 100, state };
    assert_eq!(effects.acks(host).alerts, [key(AlertState::Raised)].into());
    assert_eq!(effects.changes, [PageChange::Alert(Some(host))]);
    // It says so again; what comes late says nothing new, and is acknowledged all the same.
    stored(&fixture, &[told(host, (1, 3), 100, 180, "raised")]).await;
    let mut effects = stored(&fixture, &[told(host, (1, 2), 100, 170, "raised")]).await;
    assert_eq!((effects.changes.len(), effects.acks(host).alerts.len()), (0, 1));
    let shown = raised(&fixture).await.remove(0);
    assert_eq!((shown.alert.diagnostic.cause.as_str(), shown.hostname.as_str()), ("raised 3", "h"));
    assert_eq!(fixture.console.alert_count(Some(host)).await.unwrap(), 1);

    let mut effects = stored(&fixture, &[told(host, (1, 4), 100, 200, "cleared")]).await;
    assert_eq!(effects.acks(host).alerts, [key(AlertState::Cleared)].into());
    // The topic is cleared, and an old message comes from somewhere.
    let cleared = message(host, topic("disk-1"), &Value::Null);
    stored(&fixture, &[cleared, told(host, (9, 9), 100, 900, "raised")]).await;
    assert_eq!(all(&fixture).await, [(100, Cleared, Some(200))]);
    // The next occurrence, and one of which only the end is heard.
    stored(&fixture, &[told(host, (2, 1), 300, 310, "raised"), told(host, (2, 2), 250, 260, "cleared")]).await;
    let wanted = [(300, Raised, None), (250, Cleared, Some(260)), (100, Cleared, Some(200))];
    assert_eq!(all(&fixture).await, wanted);
    assert_eq!(raised(&fixture).await.len(), 1);
}

#[tokio::test]
async fn heartbeats_list_active_alerts() {
    use AlertStanding::{Cleared, Gone, Raised};
    let fixture = Fixture::new().await;
    let host = fixture.member("h").await.id;
    let holds = json!({ "disk-1": { "severity": "warning", "since_ms": *BEGAN_MS + 100 } });
    stored(&fixture, &[told(host, (1, 1), 100, 150, "raised"), beat(host, (1, 1), 160, &holds)]).await;
    assert_eq!(all(&fixture).await, [(100, Raised, None)]);
    // Made before the host found it.
    stored(&fixture, &[beat(host, (1, 2), 140, &json!({}))]).await;
    assert_eq!(all(&fixture).await, [(100, Raised, None)]);
    let effects = stored(&fixture, &[beat(host, (1, 3), 170, &json!({}))]).await;
    assert!(effects.changes.contains(&PageChange::Alert(Some(host))));
    assert_eq!(all(&fixture).await, [(100, Gone, Some(170))]);
    // That was a mistake, and then it is not.
    stored(&fixture, &[beat(host, (1, 4), 180, &holds)]).await;
    assert_eq!(all(&fixture).await, [(100, Raised, None)]);
    stored(&fixture, &[beat(host, (2, 1), 190, &json!({})), told(host, (2, 1), 100, 185, "cleared")]).await;
    assert_eq!(all(&fixture).await, [(100, Cleared, Some(185))]);
    stored(&fixture, &[beat(host, (2, 2), 195, &holds)]).await;
    assert_eq!(all(&fixture).await, [(100, Cleared, Some(185))]);
}

#[tokio::test]
async fn active_alerts_of_a_host_are_unique_and_limited() {
    use AlertStanding::{Gone, Raised};
    let fixture = Fixture::new().await;
    let host = fixture.member("h").await.id;
    stored(&fixture, &[told(host, (1, 1), 100, 150, "raised"), told(host, (1, 2), 300, 310, "raised")]).await;
    assert_eq!(all(&fixture).await, [(300, Raised, None), (100, Gone, Some(300))]);
    let many: Vec<Inbound> = (0..100u64)
        .map(|seq| {
            let mut one = told(host, (1, 10 + seq), 400, 410, "raised");
            let text = String::from_utf8(one.payload).unwrap();
            one.payload = text.replace("disk-1", &format!("disk-x{seq}")).into_bytes();
            one.topic = Topic::Host(host, topic(&format!("disk-x{seq}")));
            one
        })
        .collect();
    let mut effects = stored(&fixture, &many).await;
    assert_eq!(raised(&fixture).await.len(), muster_topics::alert::ALERTS_MAX);
    assert_eq!(
        effects.acks(host).alerts.len(),
        muster_topics::alert::ALERTS_MAX - 1,
        "what is dropped is not acknowledged"
    );
}

#[tokio::test]
async fn faulty_alerts_are_dropped() {
    let fixture = Fixture::new().await;
    let host = fixture.member("h").await.id;
    let mut other = told(host, (1, 1), 100, 150, "raised");
    other.topic = Topic::Host(host, topic("another"));
    let stranger = told(HostId::random(), (1, 1), 100, 150, "raised");
    let garbage = message(host, topic("disk-1"), &json!({"v": 1, "id": "disk-1"}));
    let newer = message(host, topic("disk-1"), &json!({"v": 2}));
    let mut effects = stored(&fixture, &[other, stranger, garbage, newer]).await;
    assert_eq!((all(&fixture).await.len(), effects.acks(host).alerts.len()), (0, 0));
}

#[tokio::test]
async fn silence_suppresses_until_its_end() {
    let fixture = Fixture::new().await;
    let (one, two) = (fixture.member("one").await.id, fixture.member("two").await.id);
    let both = [told(one, (1, 1), 100, 150, "raised"), told(two, (1, 1), 100, 150, "raised")];
    stored(&fixture, &both).await;
    let silence = |host: Option<&str>, rule: Option<&str>, reason: &str, for_s| {
        let (host, rule) = (host.map(str::to_owned), rule.map(|rule| rule.parse().unwrap()));
        let new = muster_api::NewAlertSilence { host, rule, reason: reason.to_owned(), for_s };
        let console = fixture.console.clone();
        async move { console.silence_alerts(&admin(), new).await }
    };
    for (host, reason, for_s) in
        [(None, " ", 60), (None, "why", 0), (None, "why", u64::MAX), (Some("nobody"), "why", 60)]
    {
        assert!(silence(host, None, reason, for_s).await.is_err(), "{reason} {for_s}");
    }
    silence(Some("one"), Some("other"), "of another rule", 60).await.unwrap();
    let count = || fixture.console.alert_count(None);
    assert_eq!(count().await.unwrap(), 2);
    let made = silence(Some("one"), Some("disk"), "a larger disk comes", 60).await.unwrap();
    assert_eq!(count().await.unwrap(), 1);
    let quiet: Vec<_> =
        raised(&fixture).await.into_iter().filter_map(|alert| Some((alert.host, alert.silence?.reason))).collect();
    assert_eq!(quiet, [(one, "a larger disk comes".to_owned())]);
    fixture.console.end_alert_silence(&admin(), made.id.as_str()).await.unwrap();
    assert!(fixture.console.end_alert_silence(&admin(), made.id.as_str()).await.is_err());
    assert_eq!(count().await.unwrap(), 2);
    silence(None, None, "all of it", 60).await.unwrap();
    assert_eq!(count().await.unwrap(), 0);
}

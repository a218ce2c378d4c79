//! Tracks which alerts have to be published, and which of them the console has acknowledged.
//!
//! An active alert is retained on its topic. An alert that has ended is published as ended, also retained, until the console
//! acknowledges it; then an empty message clears the topic. So the topic is correct for a reader at any time, and a reader that was
//! away misses nothing. If a later occurrence of the same id is active, the end of an earlier one is published without retain.

use std::collections::{BTreeMap, BTreeSet};

use muster_rules::outbox_retry::REPEAT;
use muster_topics::{
    Millis,
    alert::{Alert, AlertAck, AlertState, AlertSummary},
    name::Name,
};

/// The alerts to publish on their retained topics, until acknowledged.
#[derive(Debug)]
pub struct AlertTopics {
    epoch: u64,
    seq: u64,
    items: BTreeMap<AlertAck, UnackedAlert>,
    /// Topics to clear.
    empty: BTreeSet<Name>,
}

#[derive(Debug)]
struct UnackedAlert {
    alert: Alert,
    attempts: u32,
    /// `None` if the console has acknowledged it.
    due_ms: Option<Millis>,
}

/// A message to publish.
#[derive(Debug, PartialEq)]
pub(crate) struct AlertMessage {
    pub(crate) id: Name,
    pub(crate) retain: bool,
    pub(crate) payload: Vec<u8>,
    key: Option<AlertAck>,
}

impl AlertTopics {
    pub(crate) fn new(epoch: u64) -> Self {
        Self { epoch, seq: 0, items: BTreeMap::new(), empty: BTreeSet::new() }
    }

    /// Adds a change of an alert.
    pub fn enqueue(&mut self, alert: Alert, now_ms: Millis) {
        let raised = AlertAck { state: AlertState::Raised, ..alert.key() };
        self.items.remove(&raised);
        self.empty.remove(&alert.id);
        self.items.insert(alert.key(), UnackedAlert { alert, attempts: 0, due_ms: Some(now_ms) });
    }

    /// Makes everything due again, because the broker may have lost it.
    pub(crate) fn all(&mut self, now_ms: Millis) {
        for item in self.items.values_mut() {
            (item.attempts, item.due_ms) = (0, Some(now_ms));
        }
    }

    /// Handles an acknowledgement.
    pub(crate) fn acknowledged(&mut self, key: &AlertAck) {
        match key.state {
            AlertState::Raised => {
                if let Some(item) = self.items.get_mut(key) {
                    item.due_ms = None;
                }
            }
            // Also for an alert that is unknown here: its console found the retained message when it came back.
            AlertState::Cleared => {
                self.items.remove(key);
                if self.last(&key.id).is_none() {
                    self.empty.insert(key.id.clone());
                }
            }
        }
    }

    /// When the next message is due.
    pub(crate) fn next_ms(&self, now_ms: Millis) -> Option<Millis> {
        let clear = (!self.empty.is_empty()).then_some(now_ms);
        self.items.values().filter_map(|item| item.due_ms).chain(clear).min()
    }

    /// Returns the next message, if one is due.
    pub(crate) fn next(&self, now_ms: Millis) -> Option<AlertMessage> {
        if let Some(id) = self.empty.first() {
            return Some(AlertMessage { id: id.clone(), retain: true, payload: Vec::new(), key: None });
        }
        let is_due = |item: &UnackedAlert| item.due_ms.is_some_and(|due_ms| due_ms <= now_ms);
        let (key, item) = self.items.iter().find(|(_, item)| is_due(item))?;
        let alert = Alert { epoch: self.epoch, seq: self.seq + 1, ..item.alert.clone() };
        // Strings and finite numbers always serialise.
        let payload = serde_json::to_vec(&alert).unwrap_or_default();
        Some(AlertMessage {
            id: key.id.clone(),
            retain: self.last(&key.id) == Some(key),
            payload,
            key: Some(key.clone()),
        })
    }

    /// Handles that a message was published.
    pub(crate) fn record_sent(&mut self, saying: &AlertMessage, now_ms: Millis, random: f64) {
        let Some(key) = &saying.key else {
            self.empty.remove(&saying.id);
            return;
        };
        self.seq += 1;
        if let Some(item) = self.items.get_mut(key) {
            item.due_ms = Some(now_ms + REPEAT.jittered_ms(item.attempts, random));
            item.attempts = item.attempts.saturating_add(1);
        }
    }

    /// The number of unacknowledged alerts.
    pub fn waiting(&self) -> usize {
        self.items.values().filter(|item| item.due_ms.is_some()).count()
    }

    /// The summaries of active alerts.
    pub fn active(&self) -> BTreeMap<Name, AlertSummary> {
        let holds = self.items.values().filter(|item| item.alert.state == AlertState::Raised);
        holds.map(|item| (item.alert.id.clone(), item.alert.summary())).collect()
    }

    /// The state to publish for an id: the active alert, or else the last one to begin.
    fn last(&self, id: &Name) -> Option<&AlertAck> {
        let of_id = self.items.keys().filter(|key| key.id == *id);
        of_id.max_by_key(|key| (key.state == AlertState::Raised, key.since_ms))
    }
}

#[cfg(test)]
mod tests {
    use muster_topics::{
        V1,
        alert::{Metric, Severity},
    };

    use super::*;
    use AlertState::{Cleared, Raised};

    fn alert(id: &str, since_ms: Millis, state: AlertState) -> Alert {
        Alert {
            v: V1,
            epoch: 0,
            seq: 0,
            id: id.parse().unwrap(),
            rule: id.parse().unwrap(),
            severity: Severity::Critical,
            unit: None,
            mount: None,
            metric: Metric::CpuBusy,
            value: 1.0,
            threshold: 0.9,
            clear: 0.8,
            since_ms,
            at_ms: since_ms,
            state,
            diagnostic: muster_topics::diagnostic::Diagnostic::default(),
        }
    }

    type PublishedAlerts = (String, Option<(Millis, AlertState)>, bool);

    /// Returns everything that is due: id, beginning, state, whether it is retained.
    fn drain(topics: &mut AlertTopics, now_ms: Millis) -> Vec<PublishedAlerts> {
        let mut said = vec![];
        while let Some(saying) = topics.next(now_ms) {
            topics.record_sent(&saying, now_ms, 0.5);
            let alert: Option<Alert> = serde_json::from_slice(&saying.payload).ok();
            said.push((saying.id.to_string(), alert.map(|alert| (alert.since_ms, alert.state)), saying.retain));
        }
        said
    }

    fn one(id: &str, what: Option<(Millis, AlertState)>, retain: bool) -> PublishedAlerts {
        (id.to_owned(), what, retain)
    }

    #[test]
    fn active_alert_is_published_until_acknowledged_and_on_connect() {
        let mut topics = AlertTopics::new(7);
        topics.enqueue(alert("a", 1, Raised), 0);
        assert_eq!(topics.next_ms(0), Some(0));
        assert_eq!(drain(&mut topics, 0), [one("a", Some((1, Raised)), true)]);
        assert_eq!((topics.next_ms(0), drain(&mut topics, 4_999)), (Some(5_000), vec![]));
        assert_eq!(drain(&mut topics, 5_000).len(), 1);
        topics.acknowledged(&alert("a", 1, Raised).key());
        assert_eq!((topics.next_ms(0), drain(&mut topics, 900_000)), (None, vec![]));
        topics.all(900_000);
        let saying = topics.next(900_000).unwrap();
        let told: Alert = serde_json::from_slice(&saying.payload).unwrap();
        assert_eq!((told.epoch, told.seq), (7, 3));
        assert_eq!(topics.active().keys().map(Name::as_str).collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn ended_alert_is_published_until_acknowledged_then_cleared() {
        let mut topics = AlertTopics::new(1);
        topics.enqueue(alert("a", 1, Raised), 0);
        topics.enqueue(alert("a", 1, Cleared), 0);
        assert!(topics.active().is_empty());
        assert_eq!(drain(&mut topics, 0), [one("a", Some((1, Cleared)), true)]);
        // A late acknowledgement of an earlier state is not the end.
        topics.acknowledged(&alert("a", 1, Raised).key());
        assert_eq!(drain(&mut topics, 5_000), [one("a", Some((1, Cleared)), true)]);
        topics.acknowledged(&alert("a", 1, Cleared).key());
        assert_eq!(drain(&mut topics, 5_000), [one("a", None, true)]);
        topics.all(6_000);
        assert_eq!(drain(&mut topics, 6_000), []);
        // A console that found the retained message acknowledges it again.
        topics.acknowledged(&alert("a", 1, Cleared).key());
        assert_eq!(drain(&mut topics, 6_000), [one("a", None, true)]);
    }

    #[test]
    fn earlier_occurrence_never_replaces_later_one() {
        let mut topics = AlertTopics::new(1);
        topics.enqueue(alert("a", 1, Cleared), 0);
        topics.enqueue(alert("a", 5, Cleared), 0);
        assert_eq!(drain(&mut topics, 0), [one("a", Some((1, Cleared)), false), one("a", Some((5, Cleared)), true)]);
        topics.enqueue(alert("a", 9, Raised), 10);
        topics.all(10);
        let all = [(1, Cleared, false), (5, Cleared, false), (9, Raised, true)];
        assert_eq!(drain(&mut topics, 10), all.map(|(since, state, retain)| one("a", Some((since, state)), retain)));
        for since_ms in [5, 1] {
            topics.acknowledged(&alert("a", since_ms, Cleared).key());
        }
        // The alert is active: nothing is cleared.
        assert_eq!(drain(&mut topics, 11), []);
        // An alert that begins on a topic that was about to be cleared is kept.
        topics.enqueue(alert("a", 9, Cleared), 20);
        topics.acknowledged(&alert("a", 9, Cleared).key());
        topics.enqueue(alert("a", 30, Raised), 30);
        assert_eq!(drain(&mut topics, 30), [one("a", Some((30, Raised)), true)]);
    }
}

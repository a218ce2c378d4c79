//! `$SYS`: metrics of the broker in MQTT.
//!
//! Names and formats are those that Mosquitto's users and tools know, where the broker counts the same thing;
//! the others follow their style. Averages (`$SYS/broker/load/…`) are left to readers of the
//! counters. Nobody can publish here, only [`SYSTEM_READERS`](muster_topics::role::SYSTEM_READERS) may read, and nothing
//! is retained: messages are made when somebody subscribes, and every [`EVERY`] while somebody does.

use std::{borrow::Cow, time::Duration};

use crate::{
    codec::Publication,
    message::{BrokerMessage, QoS},
    stats::BrokerStats,
};

/// How often it is published while a client reads it: Mosquitto's default.
pub(crate) const EVERY: Duration = Duration::from_secs(10);

/// Returns topics with their present values.
fn snapshot(stats: &BrokerStats) -> Vec<(&'static str, String)> {
    let mut told = vec![
        ("$SYS/broker/version", concat!("muster version ", env!("CARGO_PKG_VERSION")).to_owned()),
        ("$SYS/broker/uptime", format!("{} seconds", stats.uptime_ms / 1000)),
    ];
    let numbers = [
        ("$SYS/broker/clients/connected", stats.connections),
        ("$SYS/broker/clients/disconnected", stats.sessions_asleep),
        ("$SYS/broker/clients/total", stats.connections + stats.sessions_asleep),
        ("$SYS/broker/clients/refused", stats.refused_total),
        ("$SYS/broker/clients/taken over", stats.takeovers_total),
        ("$SYS/broker/clients/too slow", stats.slow_total),
        ("$SYS/broker/messages/received", stats.received_total),
        ("$SYS/broker/messages/sent", stats.sent_total),
        ("$SYS/broker/messages/stored", stats.retained),
        ("$SYS/broker/publish/messages/received", stats.received_total),
        ("$SYS/broker/publish/messages/sent", stats.sent_total),
        ("$SYS/broker/publish/messages/dropped", stats.dropped_total),
        ("$SYS/broker/publish/messages/expired", stats.expired_total),
        ("$SYS/broker/publish/messages/too large", stats.too_large_total),
        ("$SYS/broker/refusals", stats.denied_total),
        ("$SYS/broker/bytes/received", stats.bytes_received_total),
        ("$SYS/broker/bytes/sent", stats.bytes_sent_total),
        ("$SYS/broker/subscriptions/count", stats.subscriptions),
        ("$SYS/broker/retained messages/count", stats.retained),
        ("$SYS/broker/retained messages/bytes", stats.retained_bytes),
        ("$SYS/broker/retained messages/most bytes", stats.retained_most_bytes),
        ("$SYS/broker/retained messages/refused", stats.retained_refused_total),
        ("$SYS/broker/retained messages/revoked", stats.retained_revoked_total),
        ("$SYS/broker/retained messages/expired", stats.retained_expired_total),
        ("$SYS/broker/store/messages/count", stats.retained),
        ("$SYS/broker/store/messages/bytes", stats.retained_bytes),
        ("$SYS/broker/queued/bytes", stats.mailbox_bytes),
        ("$SYS/broker/queued/most bytes", stats.mailbox_most_bytes),
        ("$SYS/broker/router/deaths", stats.router_deaths_total),
    ];
    told.extend(numbers.map(|(topic, number)| (topic, number.to_string())));
    if let Some(journal) = &stats.journal {
        let numbers = [
            ("$SYS/broker/journal/bytes", journal.bytes),
            ("$SYS/broker/journal/errors", journal.errors_total),
            ("$SYS/broker/journal/missed", journal.missed_total),
            ("$SYS/broker/journal/rewrites", journal.rewrites_total),
            ("$SYS/broker/journal/whole", journal.is_whole.into()),
        ];
        told.extend(numbers.map(|(topic, number)| (topic, number.to_string())));
    }
    told
}

/// Returns the same as messages.
pub(crate) fn messages(stats: &BrokerStats) -> Vec<BrokerMessage> {
    let message = |(topic, payload): (&str, String)| {
        let publication = Publication {
            topic,
            payload: payload.as_bytes(),
            qos: QoS::AtMostOnce,
            // A new subscriber gets it as a retained message.
            retain: true,
            properties: Cow::Borrowed(&[]),
            expiry_s: None,
            alias: None,
        };
        BrokerMessage::new(&publication, 0, 0)
    };
    snapshot(stats).into_iter().map(message).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::JournalStats;
    use std::collections::BTreeMap;

    #[test]
    fn system_topics_are_complete() {
        let journal = JournalStats { is_whole: true, bytes: 77, ..JournalStats::default() };
        let stats = BrokerStats {
            uptime_ms: 61_999,
            connections: 5,
            sessions_asleep: 2,
            received_total: 10,
            retained: 3,
            journal: Some(journal),
            ..BrokerStats::default()
        };
        let messages = messages(&stats);
        let text = |payload: &[u8]| String::from_utf8(payload.to_vec()).unwrap();
        let told: BTreeMap<_, _> = messages.iter().map(|message| (message.topic(), text(message.payload()))).collect();
        assert_eq!(told.len(), messages.len(), "each topic once");
        for (topic, expected) in [
            ("uptime", "61 seconds"),
            ("clients/connected", "5"),
            ("clients/total", "7"),
            ("publish/messages/received", "10"),
            ("retained messages/count", "3"),
            ("journal/bytes", "77"),
            ("journal/whole", "1"),
        ] {
            assert_eq!(told[format!("$SYS/broker/{topic}").as_str()], expected, "{topic}");
        }
        assert!(told["$SYS/broker/version"].starts_with("muster version "));
        assert!(messages.iter().all(|message| message.retain() && message.from() == 0));
    }

    #[test]
    fn readme_lists_every_topic() {
        let stats = BrokerStats { journal: Some(JournalStats::default()), ..BrokerStats::default() };
        for (topic, _) in snapshot(&stats) {
            let below = topic.strip_prefix("$SYS/broker/").unwrap();
            assert!(include_str!("../README.md").contains(&format!("`{below}`")), "{topic}");
        }
    }

    #[test]
    fn without_journal_its_topics_are_missing() {
        assert!(!snapshot(&BrokerStats::default()).iter().any(|(topic, _)| topic.contains("journal")));
    }
}

//! Metrics in Prometheus' text format.

use std::fmt::Write;

use crate::stats::{BrokerStats, CountedKind, KindCounts};

/// Prometheus's name of the format.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Writes a metric.
struct MetricWriter(String);

impl MetricWriter {
    fn begin(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.begin(name, "gauge", help);
        let _ = writeln!(self.0, "{name} {value}");
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.begin(name, "counter", help);
        let _ = writeln!(self.0, "{name} {value}");
    }

    /// Writes one sample for each kind, including zeros: a rate needs a first value.
    fn counts<K: CountedKind>(&mut self, name: &str, help: &str, label: &str, counts: &KindCounts<K>) {
        self.begin(name, "counter", help);
        for kind in K::ALL {
            let _ = writeln!(self.0, "{name}{{{label}=\"{}\"}} {}", kind.name(), counts.get(*kind));
        }
    }
}

/// Returns all metrics.
pub(super) fn page(stats: &BrokerStats) -> String {
    let mut page = MetricWriter(String::with_capacity(8 * 1024));
    clients(&mut page, stats);
    messages(&mut page, stats);
    retained(&mut page, stats);
    page.0
}

fn clients(page: &mut MetricWriter, stats: &BrokerStats) {
    let info = "muster_broker_build_info";
    page.begin(info, "gauge", "Which version runs; always 1.");
    let _ = writeln!(page.0, "{info}{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"));
    let uptime = "muster_broker_uptime_seconds";
    page.begin(uptime, "gauge", "How long the broker has run.");
    let _ = writeln!(page.0, "{uptime} {}.{:03}", stats.uptime_ms / 1000, stats.uptime_ms % 1000);

    let connections = "muster_broker_connections";
    page.begin(connections, "gauge", "Clients that are connected, by version of MQTT.");
    let v5 = stats.connections_v5.min(stats.connections);
    let _ = writeln!(page.0, "{connections}{{version=\"3.1.1\"}} {}", stats.connections - v5);
    let _ = writeln!(page.0, "{connections}{{version=\"5\"}} {v5}");
    page.gauge("muster_broker_sessions_asleep", "Sessions that wait for their clients.", stats.sessions_asleep);
    page.gauge("muster_broker_subscriptions", "Subscriptions of all sessions.", stats.subscriptions);
    page.counts(
        "muster_broker_connections_begun_total",
        "Connections, by how their beginning ended: accepted, or why not.",
        "outcome",
        &stats.begun,
    );
    page.counter(
        "muster_broker_takeovers_total",
        "Sessions that a newer connection of the same client ended.",
        stats.takeovers_total,
    );
    page.counter(
        "muster_broker_slow_clients_total",
        "Clients that were disconnected because they did not keep up.",
        stats.slow_total,
    );
    page.counts(
        "muster_broker_refusals_total",
        "What connected clients were refused, by what it was.",
        "kind",
        &stats.refusals,
    );
}

fn messages(page: &mut MetricWriter, stats: &BrokerStats) {
    let counters = [
        ("messages_received_total", "Messages that clients published, last wills included.", stats.received_total),
        ("messages_sent_total", "Messages that were sent to clients.", stats.sent_total),
        (
            "messages_dropped_total",
            "Messages of QoS 0 that were dropped because their reader did not keep up.",
            stats.dropped_total,
        ),
        ("messages_expired_total", "Messages that expired before they were sent.", stats.expired_total),
        (
            "messages_too_large_total",
            "Messages that were not sent because they are larger than their reader takes.",
            stats.too_large_total,
        ),
        ("received_bytes_total", "Bytes from clients, below TLS.", stats.bytes_received_total),
        ("sent_bytes_total", "Bytes to clients, below TLS.", stats.bytes_sent_total),
        ("router_deaths_total", "Times that the router died and was replaced.", stats.router_deaths_total),
    ];
    for (name, help, value) in counters {
        page.counter(&format!("muster_broker_{name}"), help, value);
    }
    page.gauge(
        "muster_broker_mailbox_bytes",
        "Bytes of messages that wait for clients, each message counted once.",
        stats.mailbox_bytes,
    );
    page.gauge(
        "muster_broker_mailbox_most_bytes",
        "The most bytes that wait for one identity: of `memory_max_bytes` a host may have a 128th, others a 16th.",
        stats.mailbox_most_bytes,
    );
}

fn retained(page: &mut MetricWriter, stats: &BrokerStats) {
    page.gauge("muster_broker_retained_messages", "Retained messages.", stats.retained);
    page.gauge("muster_broker_retained_bytes", "Bytes of retained messages.", stats.retained_bytes);
    page.gauge(
        "muster_broker_retained_most_bytes",
        "The most bytes of retained messages that one host has: it may have a 256th of `memory_max_bytes`.",
        stats.retained_most_bytes,
    );
    page.counter(
        "muster_broker_retained_refused_total",
        "Messages to retain that were refused because a limit was reached.",
        stats.retained_refused_total,
    );
    page.counter(
        "muster_broker_retained_revoked_total",
        "Retained messages that were removed because their publisher's certificate was revoked.",
        stats.retained_revoked_total,
    );
    page.counter(
        "muster_broker_retained_expired_total",
        "Retained messages that were removed because they had expired.",
        stats.retained_expired_total,
    );
    let Some(journal) = &stats.journal else { return };
    page.gauge("muster_broker_journal_bytes", "Length of the file of retained messages.", journal.bytes);
    page.gauge("muster_broker_journal_queued_bytes", "Changes that wait to be written to it.", journal.queued_bytes);
    page.gauge(
        "muster_broker_journal_whole",
        "Whether the file has all retained messages: 0 while the disk is full or too slow.",
        journal.is_whole.into(),
    );
    page.counter("muster_broker_journal_errors_total", "Times that it could not be written.", journal.errors_total);
    page.counter(
        "muster_broker_journal_missed_total",
        "Changes that were not written when they came.",
        journal.missed_total,
    );
    page.counter("muster_broker_journal_rewrites_total", "Times that it was rewritten.", journal.rewrites_total);
}

#[cfg(test)]
mod tests;

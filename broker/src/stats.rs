//! Counters of the broker.
//!
//! **Invariant: counting never waits.** Counters are atomic numbers that order nothing else.

use std::{
    marker::PhantomData,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::retained::JournalFigures;

/// A closed set of kinds that are counted, each with the name that operators see.
pub trait CountedKind: Copy + PartialEq + 'static {
    /// All kinds.
    const ALL: &'static [Self];

    /// The label of a metric.
    fn name(self) -> &'static str;
}

macro_rules! kinds {
    ($(#[$of_all:meta])* $kinds:ident { $($(#[$of_one:meta])* $kind:ident = $name:literal,)+ }) => {
        $(#[$of_all])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum $kinds { $($(#[$of_one])* $kind,)+ }

        impl CountedKind for $kinds {
            const ALL: &'static [Self] = &[$(Self::$kind,)+];

            fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)+ }
            }
        }
    };
}

kinds! {
    /// How the beginning of a connection ended.
    Beginning {
        /// It became a client.
        Accepted = "accepted",
        /// It ended, or broke, before its CONNECT.
        Closed = "closed",
        /// The TLS handshake, or CONNECT, timed out.
        Timeout = "timeout",
        /// The TLS handshake failed: usually no certificate, or one of another authority.
        Tls = "tls",
        /// The WebSocket handshake failed.
        WebSocket = "websocket",
        /// An invalid CONNECT, or one of an unsupported version.
        Malformed = "malformed",
        /// A certificate without an identity, a wrong password, or an unsupported authentication method.
        Identity = "identity",
        /// A revoked certificate.
        Revoked = "revoked",
        /// A client id that this identity may not use.
        ClientId = "client_id",
        /// A last will that this identity may not have.
        Will = "will",
        /// A limit on connections is reached.
        Full = "full",
        /// All places of unauthenticated connections were taken, and it was closed for another.
        GaveWay = "gave_way",
        /// An earlier connection of the same client did not end in time, or a newer one came meanwhile.
        Overtaken = "overtaken",
        /// The broker stops.
        Stopping = "stopping",
    }
}

kinds! {
    /// What a client was refused.
    Refused {
        /// A publish that the table of topics does not permit.
        Publish = "publish",
        /// A filter that the table of topics does not permit.
        Subscribe = "subscribe",
        /// A publish to an invalid topic.
        Topic = "topic",
        /// An invalid filter.
        Filter = "filter",
        /// A shared subscription.
        Shared = "shared",
        /// Too many subscriptions of a session, or an identity.
        Subscriptions = "subscriptions",
        /// A retained message for which there is no room.
        Retained = "retained",
    }
}

/// Counts by kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindCounts<K>(Vec<u64>, PhantomData<K>);

impl<K> Default for KindCounts<K> {
    fn default() -> Self {
        Self(Vec::new(), PhantomData)
    }
}

impl<K: CountedKind> KindCounts<K> {
    /// Returns the count of this kind.
    #[must_use]
    pub fn get(&self, kind: K) -> u64 {
        place(kind).and_then(|place| self.0.get(place)).copied().unwrap_or_default()
    }

    /// Returns the total.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

fn place<K: CountedKind>(kind: K) -> Option<usize> {
    K::ALL.iter().position(|other| *other == kind)
}

/// The broker's state and its counters since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BrokerStats {
    /// The time since the start, in milliseconds.
    pub uptime_ms: u64,
    /// Connected clients.
    pub connections: u64,
    /// Those of them with MQTT 5; the others use 3.1.1.
    pub connections_v5: u64,
    /// Stored sessions of disconnected clients.
    pub sessions_asleep: u64,
    /// Subscriptions, those of stored sessions included.
    pub subscriptions: u64,
    /// Bytes of messages that wait for clients, each message counted once.
    pub mailbox_bytes: u64,
    /// The most bytes that wait for one identity.
    pub mailbox_most_bytes: u64,
    /// How the beginnings of connections ended.
    pub begun: KindCounts<Beginning>,
    /// Clients that were ever connected.
    pub connected_total: u64,
    /// Connections that ended before they became clients: no valid certificate, no CONNECT in time, or a refusal.
    pub refused_total: u64,
    /// Sessions that were taken over by a newer connection with the same client id.
    pub takeovers_total: u64,
    /// Messages that clients published, last wills included.
    pub received_total: u64,
    /// Messages that were sent to clients.
    pub sent_total: u64,
    /// Bytes received from clients, below TLS and WebSocket.
    pub bytes_received_total: u64,
    /// Bytes sent to clients, likewise.
    pub bytes_sent_total: u64,
    /// Messages of QoS 0 that were dropped for slow readers.
    pub dropped_total: u64,
    /// Messages that expired before they were sent.
    pub expired_total: u64,
    /// Messages that were not sent because they exceed the reader's maximum.
    pub too_large_total: u64,
    /// Refusals by kind.
    pub refusals: KindCounts<Refused>,
    /// Refused publishes, wills and subscriptions.
    pub denied_total: u64,
    /// Clients that were disconnected because they did not read, or did not acknowledge.
    pub slow_total: u64,
    /// Retained messages.
    pub retained: u64,
    /// Their bytes.
    pub retained_bytes: u64,
    /// The most bytes of retained messages of one host.
    pub retained_most_bytes: u64,
    /// Retained messages that were refused for lack of room.
    pub retained_refused_total: u64,
    /// Retained messages that were cleared because their publisher's certificate was revoked.
    pub retained_revoked_total: u64,
    /// Retained messages that have expired.
    pub retained_expired_total: u64,
    /// The file of retained messages, if there is one.
    pub journal: Option<JournalStats>,
    /// How often the router died and was replaced.
    pub router_deaths_total: u64,
}

/// Figures of the file of retained messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct JournalStats {
    /// Its length.
    pub bytes: u64,
    /// Bytes that wait to be written.
    pub queued_bytes: u64,
    /// Failed writes.
    pub errors_total: u64,
    /// Changes that were not written when they came, because the disk was full or too slow.
    pub missed_total: u64,
    /// Rewrites.
    pub rewrites_total: u64,
    /// Whether it is complete. If not, it is going to be rewritten.
    pub is_whole: bool,
}

impl From<JournalFigures> for JournalStats {
    fn from(figures: JournalFigures) -> Self {
        let JournalFigures { file_bytes, queued_bytes, errors, missed, rewrites, is_whole } = figures;
        Self {
            bytes: file_bytes,
            queued_bytes,
            errors_total: errors,
            missed_total: missed,
            rewrites_total: rewrites,
            is_whole,
        }
    }
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Counters order nothing else, so relaxed ordering suffices.
    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that grows and shrinks.
#[derive(Debug, Default)]
pub(crate) struct Gauge(AtomicU64);

impl Gauge {
    pub(crate) fn grow(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// To be called once for each [`Self::grow`].
    pub(crate) fn shrink(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A counter for each kind.
#[derive(Debug)]
pub(crate) struct ByKind<K>(Box<[Counter]>, PhantomData<K>);

impl<K: CountedKind> Default for ByKind<K> {
    fn default() -> Self {
        Self(K::ALL.iter().map(|_| Counter::default()).collect(), PhantomData)
    }
}

impl<K: CountedKind> ByKind<K> {
    pub(crate) fn count(&self, kind: K) {
        self.add(kind, 1);
    }

    pub(crate) fn add(&self, kind: K, amount: u64) {
        if let Some(counter) = place(kind).and_then(|place| self.0.get(place)) {
            counter.add(amount);
        }
    }

    fn get(&self) -> KindCounts<K> {
        KindCounts(self.0.iter().map(Counter::get).collect(), PhantomData)
    }
}

/// The broker's counters.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Counted once for each connection, when it becomes a client, or is known not to.
    pub(crate) begun: ByKind<Beginning>,
    /// Present connections.
    pub(crate) connections_v5: Gauge,
    pub(crate) takeovers: Counter,
    pub(crate) received: Counter,
    pub(crate) sent: Counter,
    pub(crate) bytes_received: Counter,
    pub(crate) bytes_sent: Counter,
    pub(crate) dropped: Counter,
    pub(crate) expired: Counter,
    pub(crate) too_large: Counter,
    pub(crate) refusals: ByKind<Refused>,
    pub(crate) slow: Counter,
    pub(crate) retained_refused: Counter,
    pub(crate) retained_revoked: Counter,
    pub(crate) router_deaths: Counter,
}

impl Counters {
    /// Returns the counters. Others fill the rest of [`BrokerStats`].
    pub(crate) fn stats(&self) -> BrokerStats {
        let (begun, refusals) = (self.begun.get(), self.refusals.get());
        let connected_total = begun.get(Beginning::Accepted);
        BrokerStats {
            connected_total,
            refused_total: begun.total() - connected_total,
            begun,
            takeovers_total: self.takeovers.get(),
            received_total: self.received.get(),
            sent_total: self.sent.get(),
            bytes_received_total: self.bytes_received.get(),
            bytes_sent_total: self.bytes_sent.get(),
            dropped_total: self.dropped.get(),
            expired_total: self.expired.get(),
            too_large_total: self.too_large.get(),
            denied_total: refusals.total(),
            refusals,
            slow_total: self.slow.get(),
            retained_refused_total: self.retained_refused.get(),
            retained_revoked_total: self.retained_revoked.get(),
            router_deaths_total: self.router_deaths.get(),
            ..BrokerStats::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn kinds_are_counted_apart() {
        let counters = Counters::default();
        for _ in 0..3 {
            counters.begun.count(Beginning::Accepted);
        }
        counters.begun.count(Beginning::Tls);
        counters.begun.count(Beginning::Stopping);
        counters.refusals.count(Refused::Publish);
        let stats = counters.stats();
        assert_eq!((stats.connected_total, stats.refused_total, stats.denied_total), (3, 2, 1));
        assert_eq!((stats.begun.get(Beginning::Tls), stats.begun.get(Beginning::Full)), (1, 0));
        assert_eq!((stats.refusals.get(Refused::Publish), stats.refusals.get(Refused::Subscribe)), (1, 0));
        assert_eq!(BrokerStats::default().begun.get(Beginning::Tls), 0);
    }

    #[test]
    fn every_kind_has_a_name_of_its_own() {
        fn check<K: CountedKind>() {
            let names: HashSet<_> = K::ALL.iter().map(|kind| kind.name()).collect();
            assert_eq!(names.len(), K::ALL.len());
            assert!(names.iter().all(|name| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')));
        }
        check::<Beginning>();
        check::<Refused>();
    }
}

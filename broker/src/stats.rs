//! Counters of the broker.
//!
//! **Invariant: counting never waits.** Counters are atomic numbers that order nothing else.

use std::{
    marker::PhantomData,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::retained::JournalFigures;

/// A closed set of kinds by which something is counted, each with the name under which operators see it.
pub trait CountedKind: Copy + PartialEq + 'static {
    /// All of them.
    const ALL: &'static [Self];

    /// As a label of a metric.
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
        /// It became a client's.
        Accepted = "accepted",
        /// It ended, or broke, before there was a CONNECT.
        Closed = "closed",
        /// The TLS handshake, or CONNECT, did not come in time.
        Timeout = "timeout",
        /// The TLS handshake failed: mostly no certificate, or none of the fleet's authority.
        Tls = "tls",
        /// The WebSocket handshake failed.
        WebSocket = "websocket",
        /// No CONNECT that the standard allows, or of a version that is not spoken.
        Malformed = "malformed",
        /// A certificate that names nobody, a wrong password, a method of authentication that there is not.
        Identity = "identity",
        /// A certificate that was revoked.
        Revoked = "revoked",
        /// A client id that is not one of this identity's.
        ClientId = "client_id",
        /// A last will that this identity may not have.
        Will = "will",
        /// A limit on connections is reached.
        Full = "full",
        /// All places for those who are no clients yet were taken, and it was waited for longest.
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
        /// A publish that the role table does not have.
        Publish = "publish",
        /// A filter that the role table does not have.
        Subscribe = "subscribe",
        /// A publish to something that is no topic.
        Topic = "topic",
        /// A subscribe to something that is no filter.
        Filter = "filter",
        /// A shared subscription.
        Shared = "shared",
        /// More subscriptions than a session, or an identity, may have.
        Subscriptions = "subscriptions",
        /// A message that was to be kept, for which there is no room.
        Retained = "retained",
    }
}

/// How often each kind was counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindCounts<K>(Vec<u64>, PhantomData<K>);

impl<K> Default for KindCounts<K> {
    fn default() -> Self {
        Self(Vec::new(), PhantomData)
    }
}

impl<K: CountedKind> KindCounts<K> {
    /// How often this kind was counted.
    #[must_use]
    pub fn get(&self, kind: K) -> u64 {
        place(kind).and_then(|place| self.0.get(place)).copied().unwrap_or_default()
    }

    /// All together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

fn place<K: CountedKind>(kind: K) -> Option<usize> {
    K::ALL.iter().position(|other| *other == kind)
}

/// What the broker is like now, and what it has seen since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BrokerStats {
    /// How long it has run, in milliseconds.
    pub uptime_ms: u64,
    /// Clients that are connected now.
    pub connections: u64,
    /// Those of them that speak MQTT 5; the others speak 3.1.1.
    pub connections_v5: u64,
    /// Sessions that wait for their clients.
    pub sessions_asleep: u64,
    /// Subscriptions, those of sessions that wait included.
    pub subscriptions: u64,
    /// Bytes of messages that wait for clients, each message counted once.
    pub mailbox_bytes: u64,
    /// The most bytes that wait for one identity.
    pub mailbox_most_bytes: u64,
    /// How the beginnings of connections ended.
    pub begun: KindCounts<Beginning>,
    /// Clients that were connected, the present ones included.
    pub connected_total: u64,
    /// Connections that ended before they were clients: no valid certificate, no CONNECT in time, or one that was
    /// refused.
    pub refused_total: u64,
    /// Sessions that a newer one with the same client id replaced.
    pub takeovers_total: u64,
    /// Messages that clients published, last wills included.
    pub received_total: u64,
    /// Messages that were sent to clients.
    pub sent_total: u64,
    /// Bytes that came from clients, below TLS and WebSocket.
    pub bytes_received_total: u64,
    /// Bytes that were sent to clients, likewise.
    pub bytes_sent_total: u64,
    /// Messages of QoS 0 that were dropped because their reader did not keep up.
    pub dropped_total: u64,
    /// Messages that expired before they were sent.
    pub expired_total: u64,
    /// Messages that were not sent because they are larger than their reader said it takes.
    pub too_large_total: u64,
    /// What was refused, by kind.
    pub refusals: KindCounts<Refused>,
    /// Publishes, wills and subscriptions that were refused.
    pub denied_total: u64,
    /// Clients that were disconnected because they did not take, or not acknowledge, what was for them.
    pub slow_total: u64,
    /// Retained messages that are kept.
    pub retained: u64,
    /// Bytes of them.
    pub retained_bytes: u64,
    /// The most bytes of retained messages that one host has.
    pub retained_most_bytes: u64,
    /// Messages that were to be kept and were refused, for want of room.
    pub retained_refused_total: u64,
    /// Retained messages that were taken out because their publisher's certificate was revoked.
    pub retained_revoked_total: u64,
    /// Retained messages that were taken out because they had expired.
    pub retained_expired_total: u64,
    /// The file of retained messages, if there is one.
    pub journal: Option<JournalStats>,
    /// Times that the router died and was replaced.
    pub router_deaths_total: u64,
}

/// About the file of retained messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct JournalStats {
    /// How long it is.
    pub bytes: u64,
    /// Bytes of changes that wait to be written.
    pub queued_bytes: u64,
    /// Times that it could not be written.
    pub errors_total: u64,
    /// Changes that were not written when they came, because the disk was full, or too slow.
    pub missed_total: u64,
    /// Times that it was written anew.
    pub rewrites_total: u64,
    /// Whether it has everything that is kept. If not, it is going to be written anew.
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

/// One number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Counters order nothing else, so the weakest ordering will do.
    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One number that grows and shrinks.
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

/// What is counted as it happens.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Once for each connection, when it is a client's, or when it is sure that it will not be.
    pub(crate) begun: ByKind<Beginning>,
    /// Connections now.
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
    /// What was counted. The rest of [`BrokerStats`], what there is now, is for others to say.
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

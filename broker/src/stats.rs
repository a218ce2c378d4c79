//! What the broker counts.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::retained::Figures;

/// A snapshot of what the broker has seen since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Clients that are connected now.
    pub connections: u64,
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
    /// Publishes, wills and subscriptions that the role table does not have.
    pub denied_total: u64,
    /// Clients that were disconnected because they did not take, or not acknowledge, what was for them.
    pub slow_total: u64,
    /// Retained messages that are kept.
    pub retained: u64,
    /// Bytes of them.
    pub retained_bytes: u64,
    /// Retained messages that were delivered but not kept, for want of room.
    pub retained_refused_total: u64,
    /// Retained messages that were taken out because they had expired.
    pub retained_expired_total: u64,
    /// The file of retained messages, if there is one.
    pub journal: Option<Journal>,
    /// Times that the router died and was replaced.
    pub router_deaths_total: u64,
}

/// About the file of retained messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Journal {
    /// How long it is.
    pub bytes: u64,
    /// Times that it could not be written.
    pub errors_total: u64,
    /// Changes that were not written when they came, because the disk was full, or too slow.
    pub missed_total: u64,
    /// Times that it was written anew.
    pub rewrites_total: u64,
    /// Whether it has everything that is kept. If not, it is going to be written anew.
    pub is_whole: bool,
}

impl From<Figures> for Journal {
    fn from(figures: Figures) -> Self {
        let Figures { file_bytes, errors, missed, rewrites, is_whole } = figures;
        Self { bytes: file_bytes, errors_total: errors, missed_total: missed, rewrites_total: rewrites, is_whole }
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

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) connected: Counter,
    pub(crate) refused: Counter,
    pub(crate) takeovers: Counter,
    pub(crate) received: Counter,
    pub(crate) sent: Counter,
    pub(crate) denied: Counter,
    pub(crate) slow: Counter,
    pub(crate) retained_refused: Counter,
    pub(crate) router_deaths: Counter,
}

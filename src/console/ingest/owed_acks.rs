//! Acknowledgements that hosts have not been sent yet.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    sync::{Mutex, PoisonError},
};

use muster_topics::{
    ack::{HostLives, LIVES_MAX, Numbered, ReportAck},
    alert::AlertAck,
    event::TaskAck,
    name::HostId,
};
use tokio::sync::Notify;

/// The acknowledgements for one host.
#[derive(Debug, Default)]
pub struct HostAcks {
    /// Messages about commands.
    pub reports: BTreeSet<ReportAck>,
    /// The latest heartbeat.
    pub heartbeat: Option<Numbered>,
    /// The lives of the host, by the life that has asked: the answer to one is none to another, of which a late copy
    /// of a heartbeat or a clone may ask at the same time.
    pub lives: BTreeMap<u64, HostLives>,
    /// Batches of measurements.
    pub metrics: BTreeSet<Numbered>,
    /// Alerts.
    pub alerts: BTreeSet<AlertAck>,
    /// Ends of tasks.
    pub tasks: BTreeSet<TaskAck>,
}

impl HostAcks {
    /// Adds later acknowledgements.
    pub fn extend(&mut self, later: Self) {
        self.reports.extend(later.reports);
        self.metrics.extend(later.metrics);
        self.alerts.extend(later.alerts);
        self.tasks.extend(later.tasks);
        self.heartbeat = later.heartbeat.or(self.heartbeat);
        for lives in later.lives.into_values() {
            self.answer_lives(lives);
        }
    }

    /// Adds the answer to a life that has asked for the lives of its host, in place of an earlier one. Of too many the
    /// latest lives are answered.
    pub fn answer_lives(&mut self, lives: HostLives) {
        self.lives.insert(lives.asked_by, lives);
        if self.lives.len() > LIVES_MAX {
            self.lives.pop_first();
        }
    }
}

/// The acknowledgements that hosts are owed. Those of a host are bounded by its unacknowledged messages: it sends
/// nothing new until some are acknowledged.
#[derive(Debug, Default)]
pub struct OwedAcks {
    pub(super) waiting: Mutex<AckQueue>,
    pub(super) more: Notify,
}

/// What waits, and in which order.
#[derive(Debug, Default)]
pub(super) struct AckQueue {
    pub(super) hosts: HashMap<HostId, HostAcks>,
    pub(super) order: Vec<HostId>,
}

impl OwedAcks {
    /// Adds acknowledgements.
    pub fn add(&self, acks: BTreeMap<HostId, HostAcks>) {
        if acks.is_empty() {
            return;
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let AckQueue { hosts, order } = &mut *waiting;
        for (host, acks) in acks {
            match hosts.entry(host) {
                Entry::Occupied(mut before) => before.get_mut().extend(acks),
                Entry::Vacant(place) => {
                    place.insert(acks);
                    order.push(host);
                }
            }
        }
        self.more.notify_one();
    }

    /// Takes all of them, those that have waited longest first.
    pub fn take(&self) -> Vec<(HostId, HostAcks)> {
        let AckQueue { mut hosts, order } =
            std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        order.into_iter().filter_map(|host| hosts.remove_entry(&host)).collect()
    }
}

//! Retained messages in memory: their limits, and their expiry.

use std::{
    collections::{BTreeSet, HashMap},
    ops::ControlFlow,
};

use bytes::Bytes;
use muster_topics::{
    role::{self, Identity},
    topic::Prefix,
};

use super::{
    journal::JournalRecord,
    outcome::RetainOutcome,
    tree::{LEVELS_MAX, RetainedTree},
};
use crate::{
    codec::Publication,
    identity::Serial,
    limits::BrokerLimits,
    message::{BrokerMessage, QoS},
};

/// What every host may have, whatever others have: its presence and a few dozen units, as most have.
const SURE: RetainedSize = RetainedSize { messages: 32, bytes: 16 * 1024 };

/// Retained messages in memory.
#[derive(Debug)]
pub(super) struct RetainedMemory {
    prefix: Prefix,
    tree: RetainedTree,
    bytes: usize,
    /// What each owner has. Topics where any console may publish have no owner.
    shares: HashMap<Option<Identity>, RetainedSize>,
    /// The last certificate of each identity that can retain messages.
    shown: HashMap<Identity, Serial>,
    /// Expiry times with their topics, earliest first.
    expiries: BTreeSet<(u64, Bytes)>,
    expired: u64,
    max: RetainedSize,
    host_max: RetainedSize,
    console_max: RetainedSize,
}

/// The number of messages, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RetainedSize {
    messages: usize,
    bytes: usize,
}

impl RetainedSize {
    fn is_within(self, max: Self) -> bool {
        self.messages <= max.messages && self.bytes <= max.bytes
    }

    fn at_most(self, max: Self) -> Self {
        Self { messages: self.messages.min(max.messages), bytes: self.bytes.min(max.bytes) }
    }

    /// Returns the size after `old` was replaced by `new`.
    fn with(self, new: Self, old: Self) -> Self {
        Self { messages: self.messages + new.messages - old.messages, bytes: self.bytes + new.bytes - old.bytes }
    }
}

impl From<Option<&BrokerMessage>> for RetainedSize {
    fn from(message: Option<&BrokerMessage>) -> Self {
        Self { messages: usize::from(message.is_some()), bytes: message.map_or(0, BrokerMessage::len) }
    }
}

/// The effect of a message on its topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RetainEffect {
    pub(super) kept: RetainOutcome,
    /// Whether later subscribers get another message than before.
    pub(super) is_new: bool,
}

impl RetainedMemory {
    pub(super) fn new(prefix: Prefix, limits: &BrokerLimits) -> Self {
        let quota = |messages, bytes| RetainedSize { messages, bytes };
        Self {
            prefix,
            tree: RetainedTree::default(),
            bytes: 0,
            shares: HashMap::new(),
            shown: HashMap::new(),
            expiries: BTreeSet::new(),
            expired: 0,
            max: quota(limits.retained_max, limits.retained_max_bytes),
            host_max: quota(limits.retained_host_max, limits.retained_host_max_bytes),
            console_max: quota(limits.retained_console_max, limits.retained_console_max_bytes),
        }
    }

    /// Retains a message, or clears its topic if it is empty. One that does not fit changes nothing.
    pub(super) fn keep(&mut self, message: &BrokerMessage) -> RetainEffect {
        let topic = message.topic();
        if message.payload().is_empty() {
            return RetainEffect { kept: RetainOutcome::Cleared, is_new: self.remove(topic).is_some() };
        }
        let (old, new) = (RetainedSize::from(self.tree.get(topic)), RetainedSize::from(Some(message)));
        let owner = self.owner(topic);
        let share = self.shares.get(&owner).copied().unwrap_or_default();
        if !self.permits(&owner, share.with(new, old), self.used().with(new, old))
            || topic.split('/').nth(LEVELS_MAX).is_some()
        {
            return RetainEffect { kept: RetainOutcome::Full, is_new: false };
        }
        let old = self.insert(message.clone());
        RetainEffect { kept: RetainOutcome::Yes, is_new: old.is_none_or(|old| !is_same(&old, message)) }
    }

    /// Returns the owner of a topic: the only identity that may publish there.
    fn owner(&self, topic: &str) -> Option<Identity> {
        self.prefix.strip(topic).and_then(role::owner)
    }

    /// Whether an owner may have `share` if all have `all`.
    fn permits(&self, owner: &Option<Identity>, share: RetainedSize, all: RetainedSize) -> bool {
        share.is_within(self.max_of(owner)) && (all.is_within(self.max) || (is_host(owner) && share.is_within(SURE)))
    }

    fn max_of(&self, owner: &Option<Identity>) -> RetainedSize {
        if is_host(owner) { self.host_max } else { self.console_max }
    }

    fn used(&self) -> RetainedSize {
        RetainedSize { messages: self.tree.len(), bytes: self.bytes }
    }

    /// Records a certificate. Returns whether it is another than before.
    pub(super) fn shown(&mut self, identity: Identity, serial: Serial) -> bool {
        self.shown.insert(identity, serial) != Some(serial)
    }

    /// Returns an empty message for each topic of identities whose certificate is revoked.
    pub(super) fn removals(&self, is_revoked: impl Fn(&Identity, &Serial) -> bool) -> Vec<BrokerMessage> {
        let (mut removals, prefix) = (Vec::new(), String::from(self.prefix.clone()));
        for (identity, serial) in &self.shown {
            let owner = Some(identity.clone());
            if self.shares.contains_key(&owner) && is_revoked(identity, serial) {
                for filter in identity.owned() {
                    self.tree.visit(&format!("{prefix}/{filter}"), &mut |message| {
                        removals.push(removal(message.topic()));
                    });
                }
            }
        }
        removals
    }

    /// Returns the most bytes of one host.
    pub(super) fn most(&self) -> usize {
        let hosts = self.shares.iter().filter(|(owner, _)| is_host(owner));
        hosts.map(|(_, share)| share.bytes).max().unwrap_or_default()
    }

    /// Adds a stored record. Limits do not apply before [`Self::trim`]: messages that have expired by then, or were
    /// cleared, had made room for others when those were written.
    pub(super) fn replay(&mut self, record: JournalRecord) {
        match record {
            JournalRecord::Kept(message) => drop(self.insert(message)),
            JournalRecord::Cleared(topic) => {
                drop(std::str::from_utf8(&topic).ok().and_then(|topic| self.remove(topic)));
            }
            JournalRecord::Shown(identity, serial) => drop(self.shown.insert(identity, serial)),
        }
    }

    /// Drops messages beyond the limits, which may have changed; returns their number.
    pub(super) fn trim(&mut self) -> usize {
        let before = self.tree.len();
        // What hosts have in any case does not count towards the limit of all.
        let sure = |owner: &Option<Identity>, share: RetainedSize| {
            if is_host(owner) { share.at_most(SURE) } else { RetainedSize::default() }
        };
        let none = RetainedSize::default();
        let mut others = self.used();
        for (owner, share) in &self.shares {
            others = others.with(none, sure(owner, *share));
        }
        if others.is_within(self.max) && self.shares.iter().all(|(owner, share)| share.is_within(self.max_of(owner))) {
            return 0;
        }
        for message in self.tree.all() {
            let owner = self.owner(message.topic());
            let share = self.shares.get(&owner).copied().unwrap_or_default();
            let has_more = !(is_host(&owner) && share.is_within(SURE));
            if !share.is_within(self.max_of(&owner)) || (!others.is_within(self.max) && has_more) {
                self.remove(message.topic());
                let left = self.shares.get(&owner).copied().unwrap_or_default();
                let (was, is) = (share.with(none, sure(&owner, share)), left.with(none, sure(&owner, left)));
                others = others.with(is, was);
            }
        }
        before - self.tree.len()
    }

    fn insert(&mut self, message: BrokerMessage) -> Option<BrokerMessage> {
        let (new, expiry, owner) = (RetainedSize::from(Some(&message)), expiry(&message), self.owner(message.topic()));
        let old = self.tree.insert(message);
        if let Some(old) = &old {
            self.forget(old);
        }
        self.bytes += new.bytes;
        let share = self.shares.entry(owner).or_default();
        *share = share.with(new, RetainedSize::default());
        self.expiries.extend(expiry);
        old
    }

    fn remove(&mut self, topic: &str) -> Option<BrokerMessage> {
        let old = self.tree.remove(topic)?;
        self.forget(&old);
        Some(old)
    }

    /// Removes a message that is not in the tree any more from the counts.
    fn forget(&mut self, old: &BrokerMessage) {
        self.bytes -= old.len();
        let owner = self.owner(old.topic());
        if let Some(share) = self.shares.get_mut(&owner) {
            *share = share.with(RetainedSize::default(), Some(old).into());
            if share.messages == 0 {
                self.shares.remove(&owner);
            }
        }
        if let Some(expiry) = expiry(old) {
            self.expiries.remove(&expiry);
        }
    }

    /// Removes expired messages.
    pub(super) fn sweep(&mut self, now_ms: u64) {
        while self.expiries.first().is_some_and(|(expires_ms, _)| *expires_ms <= now_ms) {
            if let Some((_, topic)) = self.expiries.pop_first()
                && std::str::from_utf8(&topic).is_ok_and(|topic| self.remove(topic).is_some())
            {
                self.expired += 1;
            }
        }
    }

    /// See [`super::RetainedStore::some`].
    pub(super) fn some(
        &self,
        filter: &str,
        after: Option<&str>,
        steps: &mut usize,
        max_bytes: usize,
        now_ms: u64,
    ) -> (Vec<BrokerMessage>, Option<String>) {
        let (mut found, mut bytes) = (Vec::new(), 0);
        // Usually nothing expires, and then no message need be examined.
        let some_expired = self.expiries.first().is_some_and(|(expires_ms, _)| *expires_ms <= now_ms);
        let after = self.tree.walk(filter, after, steps, |message| {
            if !(some_expired && message.is_expired(now_ms)) {
                bytes += message.len();
                found.push(message.clone());
            }
            if bytes >= max_bytes { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        (found, after)
    }

    /// Returns all records for a new journal.
    pub(super) fn records(&self) -> Vec<JournalRecord> {
        // Identities without messages are left out.
        let shown = self.shown.iter().filter(|(identity, _)| self.shares.contains_key(&Some((*identity).clone())));
        let shown = shown.map(|(identity, serial)| JournalRecord::Shown(identity.clone(), *serial));
        self.tree.all().into_iter().map(JournalRecord::Kept).chain(shown).collect()
    }

    pub(super) fn size(&self) -> (usize, usize) {
        (self.tree.len(), self.bytes)
    }

    pub(super) fn expired(&self) -> u64 {
        self.expired
    }
}

fn is_host(owner: &Option<Identity>) -> bool {
    matches!(owner, Some(Identity::Host(_)))
}

/// Returns the message that clears a topic, from the broker itself.
fn removal(topic: &str) -> BrokerMessage {
    let publication = Publication {
        topic,
        payload: &[],
        qos: QoS::AtLeastOnce,
        retain: true,
        properties: Default::default(),
        expiry_s: None,
        alias: None,
    };
    BrokerMessage::new(&publication, 0, 0)
}

/// Returns when a message expires, and its topic, which shares the message's bytes.
fn expiry(message: &BrokerMessage) -> Option<(u64, Bytes)> {
    message.expires_ms().map(|expires_ms| (expires_ms, message.as_bytes().slice_ref(message.topic().as_bytes())))
}

/// Whether two messages of one topic are the same. Parties publish retained messages again whenever they connect: those
/// need not be written again.
fn is_same(old: &BrokerMessage, new: &BrokerMessage) -> bool {
    (old.payload(), old.properties(), old.qos(), old.expires_ms())
        == (new.payload(), new.properties(), new.qos(), new.expires_ms())
}

//! What is kept: the messages, their limits, and their end.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::{
    Kept,
    journal::Record,
    tree::{LEVELS_MAX, Tree},
};
use crate::{limits::Limits, message::Message};

/// Retained messages, without a disk.
#[derive(Debug)]
pub(super) struct Memory {
    tree: Tree,
    bytes: usize,
    /// When those that expire do so, the first first, and their topics.
    expiries: BTreeSet<(u64, Bytes)>,
    expired: u64,
    max: usize,
    max_bytes: usize,
}

/// What a message did to its topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) kept: Kept,
    /// Whether what later subscribers get is another than before.
    pub(super) is_new: bool,
}

impl Memory {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            tree: Tree::default(),
            bytes: 0,
            expiries: BTreeSet::new(),
            expired: 0,
            max: limits.retained_max,
            max_bytes: limits.retained_max_bytes,
        }
    }

    /// Keeps a message, or clears its topic if it is empty, or does not fit.
    pub(super) fn keep(&mut self, message: &Message) -> Change {
        let topic = message.topic();
        let old = self.tree.get(topic);
        let (is_other, old_len) = (old.is_none(), old.map_or(0, Message::len));
        if message.payload().is_empty() {
            return Change { kept: Kept::Cleared, is_new: self.remove(topic).is_some() };
        }
        let fits = self.tree.len() + usize::from(is_other) <= self.max
            && self.bytes - old_len + message.len() <= self.max_bytes
            && topic.split('/').nth(LEVELS_MAX).is_none();
        if !fits {
            return Change { kept: Kept::Full, is_new: self.remove(topic).is_some() };
        }
        let old = self.insert(message.clone());
        Change { kept: Kept::Yes, is_new: old.is_none_or(|old| !is_same(&old, message)) }
    }

    /// Takes what was written earlier. Limits do not hold before [`Self::trim`]: what has expired by then, or has been
    /// cleared, made room for others when it was written.
    pub(super) fn replay(&mut self, record: Record) {
        match record {
            Record::Kept(message) => drop(self.insert(message)),
            Record::Cleared(topic) => drop(std::str::from_utf8(&topic).ok().and_then(|topic| self.remove(topic))),
        }
    }

    /// Drops what is beyond the limits, which may have been others when it was kept, and says how many that were.
    pub(super) fn trim(&mut self) -> usize {
        let before = self.tree.len();
        if before > self.max || self.bytes > self.max_bytes {
            for message in self.all() {
                if self.tree.len() <= self.max && self.bytes <= self.max_bytes {
                    break;
                }
                self.remove(message.topic());
            }
        }
        before - self.tree.len()
    }

    fn insert(&mut self, message: Message) -> Option<Message> {
        let (length, expiry) = (message.len(), expiry(&message));
        let old = self.tree.insert(message);
        if let Some(old) = &old {
            self.forget(old);
        }
        self.bytes += length;
        self.expiries.extend(expiry);
        old
    }

    fn remove(&mut self, topic: &str) -> Option<Message> {
        let old = self.tree.remove(topic)?;
        self.forget(&old);
        Some(old)
    }

    /// Takes a message that is no longer in the tree out of the books.
    fn forget(&mut self, old: &Message) {
        self.bytes -= old.len();
        if let Some(expiry) = expiry(old) {
            self.expiries.remove(&expiry);
        }
    }

    /// Takes out what has expired.
    pub(super) fn sweep(&mut self, now_ms: u64) {
        while self.expiries.first().is_some_and(|(expires_ms, _)| *expires_ms <= now_ms) {
            if let Some((_, topic)) = self.expiries.pop_first()
                && std::str::from_utf8(&topic).is_ok_and(|topic| self.remove(topic).is_some())
            {
                self.expired += 1;
            }
        }
    }

    pub(super) fn matching(&self, filter: &str, now_ms: u64) -> Vec<Message> {
        let mut found = Vec::new();
        // Mostly nothing expires, and then no message need be looked into.
        let some_expired = self.expiries.first().is_some_and(|(expires_ms, _)| *expires_ms <= now_ms);
        self.tree.visit(filter, &mut |message| {
            if !(some_expired && message.is_expired(now_ms)) {
                found.push(message.clone());
            }
        });
        found
    }

    pub(super) fn all(&self) -> Vec<Message> {
        self.tree.all()
    }

    pub(super) fn size(&self) -> (usize, usize) {
        (self.tree.len(), self.bytes)
    }

    pub(super) fn expired(&self) -> u64 {
        self.expired
    }
}

/// When a message expires, and its topic, which shares the message's bytes.
fn expiry(message: &Message) -> Option<(u64, Bytes)> {
    message.expires_ms().map(|expires_ms| (expires_ms, message.as_bytes().slice_ref(message.topic().as_bytes())))
}

/// Whether two messages of one topic say the same. Parties publish what is retained again whenever they connect: the
/// disk need not hear of it.
fn is_same(old: &Message, new: &Message) -> bool {
    (old.payload(), old.properties(), old.qos(), old.expires_ms())
        == (new.payload(), new.properties(), new.qos(), new.expires_ms())
}

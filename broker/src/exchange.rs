//! Distributes messages: each message from the router is retained if it is flagged, and put into the mailbox of
//! every subscriber of its topic.
//!
//! **Invariant: a subscriber's retained messages and its live ones are one sequence.** Both are put into its mailbox
//! under the lock under which messages are distributed, retained ones as they are at that moment, so that no older value
//! follows a newer one.
//!
//! **Invariant: retained messages are sent at the reader's pace**, a few at a time ([`Exchange::bring`]), and
//! the lock is held no longer than that takes.
//!
//! **Invariant: permission is checked again on delivery.**

use std::{
    num::NonZeroU32,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use muster_topics::role::Identity;
use tokio::sync::Notify;

use crate::{
    access::{CheckedFilter, ClientAccess},
    clock::unix_ms,
    codec::SubscribeOptions,
    identity::Serial,
    mailbox::{Mailbox, MessagePool, Parcel, PooledMessage, PutOutcome},
    message::BrokerMessage,
    retained::{self, RetainOutcome, RetainedStore},
    router::RefusedMessage,
    session::{ClientSession, Subscription},
    stats::Counters,
    subscription_tree::SubscriberTree,
    topic_text,
};

/// How much of retained messages is delivered at a time, in bytes: half of a full output buffer. A larger message is
/// delivered alone.
const BROUGHT_BYTES: usize = 32 * 1024;

/// The nodes of the tree that are visited for that: some hundred microseconds.
const BROUGHT_STEPS: usize = 1024;

/// Subscriptions and retained messages.
pub(crate) struct Exchange {
    state: Mutex<ExchangeState>,
    pool: Arc<MessagePool>,
    counters: Arc<Counters>,
}

struct ExchangeState {
    tree: SubscriberTree<Subscriber>,
    retained: RetainedStore,
    /// The number of subscriptions to the broker's own topics.
    system: usize,
}

/// Figures of an exchange.
pub(crate) struct ExchangeFigures {
    pub(crate) subscriptions: usize,
    /// The number of retained messages, and their bytes.
    pub(crate) retained: (usize, usize),
    /// The most bytes of retained messages of one host.
    pub(crate) retained_most: usize,
    /// Retained messages that have expired.
    pub(crate) expired: u64,
    pub(crate) journal: Option<retained::JournalFigures>,
}

/// One subscription, with its client's mailbox.
#[derive(Debug)]
struct Subscriber {
    /// The session's number.
    session: u64,
    mailbox: Arc<Mailbox>,
    access: Arc<ClientAccess>,
    options: SubscribeOptions,
    id: Option<NonZeroU32>,
}

impl Subscriber {
    fn parcel(&self, message: Arc<PooledMessage>, retain: bool) -> Parcel {
        parcel(message, self.options, self.id, retain)
    }
}

fn parcel(
    message: Arc<PooledMessage>,
    options: SubscribeOptions,
    subscription_id: Option<NonZeroU32>,
    retain: bool,
) -> Parcel {
    let qos = message.qos().min(options.qos);
    Parcel { message, qos, retain, subscription_id }
}

impl Exchange {
    pub(crate) fn new(retained: RetainedStore, pool: Arc<MessagePool>, counters: Arc<Counters>) -> Arc<Self> {
        let state = ExchangeState { tree: SubscriberTree::default(), retained, system: 0 };
        Arc::new(Self { state: Mutex::new(state), pool, counters })
    }

    fn state(&self) -> MutexGuard<'_, ExchangeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Distributes messages in order. Returns retained ones for which there is no room: they are not distributed
    /// either, so that all subscribers see what is retained.
    pub(crate) fn distribute(&self, messages: &[BrokerMessage]) -> Vec<RefusedMessage> {
        let now_ms = unix_ms();
        let mut refused = Vec::new();
        let mut state = self.state();
        for (index, message) in messages.iter().enumerate() {
            // A will may have waited beyond its expiry; messages of a batch hardly do.
            if message.is_expired(now_ms) {
                self.counters.expired.add(1);
                continue;
            }
            if message.retain() && state.retained.keep(message, now_ms) == RetainOutcome::Full {
                self.counters.retained_refused.add(1);
                refused.push(RefusedMessage { index, message: message.clone() });
                continue;
            }
            self.distribute_one(&state.tree, message);
        }
        refused
    }

    /// Distributes a message about the broker itself, which no client publishes and which is not retained.
    pub(crate) fn distribute_system(&self, message: &BrokerMessage) {
        self.distribute_one(&self.state().tree, message);
    }

    fn distribute_one(&self, tree: &SubscriberTree<Subscriber>, message: &BrokerMessage) {
        let mut lot = None;
        tree.visit(message.topic(), &mut |subscriber| self.deliver(subscriber, message, &mut lot));
    }

    fn deliver(&self, subscriber: &Subscriber, message: &BrokerMessage, lot: &mut Option<Arc<PooledMessage>>) {
        if subscriber.options.no_local && subscriber.session == message.from() {
            return;
        }
        if let Err(refusal) = subscriber.access.receive(message.topic()) {
            tracing::error!(
                client.identity = %subscriber.access.identity(),
                topic = message.topic(),
                "a message was not delivered: {refusal}"
            );
            return;
        }
        let retain = subscriber.options.as_published && message.retain();
        let lot = lot.get_or_insert_with(|| PooledMessage::new(message.clone(), &self.pool));
        match subscriber.mailbox.put(subscriber.parcel(Arc::clone(lot), retain)) {
            PutOutcome::Taken | PutOutcome::Over | PutOutcome::Overflow => (),
            PutOutcome::Instead(count) => self.counters.dropped.add(count),
            PutOutcome::Dropped => self.counters.dropped.add(1),
        }
    }

    /// Adds a subscription of a session, or replaces the one of the same filter.
    pub(crate) fn subscribe(&self, session: &ClientSession, access: &Arc<ClientAccess>, subscription: &Subscription) {
        let Subscription { filter, options, id, .. } = subscription;
        let (number, mailbox) = (session.number, Arc::clone(&session.mailbox));
        let subscriber =
            Subscriber { session: number, mailbox, access: Arc::clone(access), options: *options, id: *id };
        let mut state = self.state();
        let existed = state.tree.insert(filter.shared(), subscriber, |old| old.session == number);
        if topic_text::is_system(filter.as_str()) && !existed {
            state.system += 1;
        }
    }

    /// Puts some more retained messages into the mailbox of a session that waits for them. `system` are the messages
    /// about the broker itself. Returns how many nodes of the tree were visited, as its cost.
    pub(crate) fn bring(
        &self,
        session: &mut ClientSession,
        access: &ClientAccess,
        system: impl FnOnce() -> Vec<BrokerMessage>,
    ) -> usize {
        let Some(cursor) = session.cursors.next() else { return 0 };
        let Some(subscription) = session.subscriptions.get(cursor.filter.as_str()) else {
            session.cursors.finish();
            return 0;
        };
        let Subscription { filter, options, id, .. } = subscription;
        let is_permitted = |message: &BrokerMessage| {
            topic_text::matches(filter.as_str(), message.topic()) && access.receive(message.topic()).is_ok()
        };
        let parcel = |message| parcel(PooledMessage::new(message, &self.pool), *options, *id, true);
        if topic_text::is_system(filter.as_str()) {
            // There are a few dozen; counting them takes the lock as well.
            let messages = system();
            let steps = messages.len();
            let _state = self.state();
            session.mailbox.put_retained(messages.into_iter().filter(is_permitted).map(parcel));
            session.cursors.finish();
            return steps;
        }
        let mut steps = BROUGHT_STEPS;
        let state = self.state();
        let after = cursor.after.as_deref();
        let (messages, after) = state.retained.some(filter.as_str(), after, &mut steps, BROUGHT_BYTES, unix_ms());
        session.mailbox.put_retained(messages.into_iter().filter(is_permitted).map(parcel));
        drop(state);
        match after {
            Some(after) => cursor.after = Some(after),
            None => session.cursors.finish(),
        }
        BROUGHT_STEPS - steps
    }

    /// Puts the retained message of a topic into the mailbox of a session that is about to replace it, if it has
    /// subscribed to the topic and did not get it yet: a client that first subscribes and then publishes gets what was
    /// there. (By this agents notice a twin, and a restored disk.) If much waits for the session already it gets the
    /// message by its cursor, as it is then.
    pub(crate) fn deliver_retained_first(&self, session: &mut ClientSession, access: &ClientAccess, topic: &str) {
        let Some(filter) = session.cursors.covering(topic) else { return };
        let Some(subscription) = session.subscriptions.get(filter.as_str()) else { return };
        if session.mailbox.waiting_bytes() >= BROUGHT_BYTES || access.receive(topic).is_err() {
            return;
        }
        let (options, id) = (subscription.options, subscription.id);
        let mut steps = BROUGHT_STEPS;
        let state = self.state();
        let (messages, _) = state.retained.some(topic, None, &mut steps, BROUGHT_BYTES, unix_ms());
        let parcel = |message| parcel(PooledMessage::new(message, &self.pool), options, id, true);
        session.mailbox.put_retained(messages.into_iter().map(parcel));
        drop(state);
        if filter.as_str() == topic {
            session.cursors.end(topic);
        }
    }

    /// Records the certificate of a client.
    pub(crate) fn shown(&self, identity: &Identity, serial: Serial) {
        self.state().retained.shown(identity, serial);
    }

    /// Returns messages that clear retained messages of identities whose last certificate is revoked.
    pub(crate) fn removals(&self, is_revoked: impl Fn(&Identity, &Serial) -> bool) -> Vec<BrokerMessage> {
        self.state().retained.removals(is_revoked)
    }

    /// Removes a subscription of a session.
    pub(crate) fn unsubscribe(&self, session: u64, filter: &CheckedFilter) {
        let mut state = self.state();
        let before = state.tree.len();
        state.tree.remove(filter.as_str(), |old| old.session == session);
        if topic_text::is_system(filter.as_str()) && state.tree.len() < before {
            state.system -= 1;
        }
    }

    /// Removes all subscriptions of a session.
    pub(crate) fn forget(&self, session: &ClientSession) {
        for subscription in session.subscriptions.iter() {
            self.unsubscribe(session.number, &subscription.filter);
        }
    }

    /// Whether any client reads the broker's own topics.
    pub(crate) fn is_watched(&self) -> bool {
        self.state().system > 0
    }

    /// Returns the present figures.
    pub(crate) fn figures(&self) -> ExchangeFigures {
        let state = self.state();
        ExchangeFigures {
            subscriptions: state.tree.len(),
            retained: state.retained.size(),
            retained_most: state.retained.most(),
            expired: state.retained.expired(),
            journal: state.retained.figures(),
        }
    }

    /// Notified when [`Self::tend`] has something to do.
    pub(crate) fn alarm(&self) -> Arc<Notify> {
        self.state().retained.alarm()
    }

    /// Maintains the retained messages and their file.
    pub(crate) fn tend(&self) {
        self.state().retained.tend(unix_ms());
    }

    /// Returns when the retained messages are on the disk. Blocks as long as that takes.
    pub(crate) fn close(&self) {
        self.state().retained.close();
    }
}

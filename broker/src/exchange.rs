//! Where messages meet subscriptions: what comes out of the router is kept if it is to be, and put into the mailbox of
//! everybody who subscribed to its topic.
//!
//! **Invariant: a subscriber's retained messages and its live ones are one sequence.** Both are put into its mailbox
//! under the lock under which messages are dealt out, so that no older value comes after a newer one.
//!
//! **Invariant: permission is asked again on delivery.**

use std::{
    num::NonZeroU32,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

use crate::{
    access::{Access, Filter},
    clock::unix_ms,
    codec::{Options, RetainHandling},
    mailbox::{Mailbox, Parcel, Put},
    message::Message,
    retained::{self, Kept, Retained},
    session::{Session, Subscription},
    stats::Counters,
    text,
    tree::Tree,
};

/// Subscriptions and retained messages.
pub(crate) struct Exchange {
    state: Mutex<State>,
    counters: Arc<Counters>,
}

struct State {
    tree: Tree<Subscriber>,
    retained: Retained,
    /// Subscriptions to the broker's own topics.
    system: usize,
}

/// What there is in an exchange.
pub(crate) struct Figures {
    pub(crate) subscriptions: usize,
    /// Messages, and their bytes.
    pub(crate) retained: (usize, usize),
    /// Retained messages that had to go.
    pub(crate) expired: u64,
    pub(crate) journal: Option<retained::Figures>,
}

/// One subscription, with the way to its client.
#[derive(Debug)]
struct Subscriber {
    /// The session's number.
    session: u64,
    mailbox: Arc<Mailbox>,
    access: Arc<Access>,
    options: Options,
    id: Option<NonZeroU32>,
}

impl Subscriber {
    fn parcel(&self, message: &Message, retain: bool) -> Parcel {
        let qos = message.qos().min(self.options.qos);
        Parcel { message: message.clone(), qos, retain, subscription_id: self.id }
    }
}

impl Exchange {
    pub(crate) fn new(retained: Retained, counters: Arc<Counters>) -> Arc<Self> {
        let state = State { tree: Tree::default(), retained, system: 0 };
        Arc::new(Self { state: Mutex::new(state), counters })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Deals messages out, in order.
    pub(crate) fn deal(&self, messages: &[Message]) {
        let now_ms = unix_ms();
        let mut state = self.state();
        for message in messages {
            // A will may have waited longer than it was to live, a batch hardly.
            if message.is_expired(now_ms) {
                self.counters.expired.add(1);
                continue;
            }
            if message.retain() {
                self.keep(&mut state.retained, message, now_ms);
            }
            state.tree.visit(message.topic(), &mut |subscriber| self.deliver(subscriber, message));
        }
    }

    /// Deals out a message about the broker itself, which nobody publishes and nothing keeps.
    pub(crate) fn deal_system(&self, message: &Message) {
        self.state().tree.visit(message.topic(), &mut |subscriber| self.deliver(subscriber, message));
    }

    fn keep(&self, retained: &mut Retained, message: &Message, now_ms: u64) {
        if retained.keep(message, now_ms) == Kept::Full {
            self.counters.retained_refused.add(1);
            tracing::warn!(
                topic = message.topic(),
                "a retained message is delivered but not kept; hint: raise retained_max or retained_max_bytes"
            );
        }
    }

    fn deliver(&self, subscriber: &Subscriber, message: &Message) {
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
        match subscriber.mailbox.put(subscriber.parcel(message, retain)) {
            Put::Taken | Put::Over | Put::Overflow => (),
            Put::Instead(count) => self.counters.dropped.add(count),
            Put::Dropped => self.counters.dropped.add(1),
        }
    }

    /// Adds a subscription of a session, or changes the one of the same filter, and puts the retained messages that it
    /// brings into the mailbox. `system` are those about the broker itself.
    pub(crate) fn subscribe(
        &self,
        session: &Session,
        access: &Arc<Access>,
        subscription: &Subscription,
        system: impl FnOnce() -> Vec<Message>,
    ) {
        let Subscription { filter, options, id } = subscription;
        let (number, mailbox) = (session.number, Arc::clone(&session.mailbox));
        let subscriber =
            Subscriber { session: number, mailbox, access: Arc::clone(access), options: *options, id: *id };
        let is_system = text::is_system(filter.as_str());
        // Asked for before the lock is taken: who counts what the broker has takes it as well.
        let system = if is_system { system() } else { Vec::new() };
        let mut state = self.state();
        let mut kept = Vec::new();
        let is_new = !session.subscriptions.contains(filter.as_str());
        if options.handling == RetainHandling::Always || (options.handling == RetainHandling::IfNew && is_new) {
            kept = if is_system { system } else { state.retained.matching(filter.as_str(), unix_ms()) };
            kept.retain(|message| {
                text::matches(filter.as_str(), message.topic()) && access.receive(message.topic()).is_ok()
            });
        }
        session.mailbox.put_retained(kept.iter().map(|message| subscriber.parcel(message, true)));
        let existed = state.tree.insert(filter.shared(), subscriber, |old| old.session == number);
        if is_system && !existed {
            state.system += 1;
        }
    }

    /// Ends a subscription of a session.
    pub(crate) fn unsubscribe(&self, session: u64, filter: &Filter) {
        let mut state = self.state();
        let before = state.tree.len();
        state.tree.remove(filter.as_str(), |old| old.session == session);
        if text::is_system(filter.as_str()) && state.tree.len() < before {
            state.system -= 1;
        }
    }

    /// Ends everything that a session subscribed to.
    pub(crate) fn forget(&self, session: &Session) {
        for subscription in session.subscriptions.iter() {
            self.unsubscribe(session.number, &subscription.filter);
        }
    }

    /// Whether anybody reads the broker's own topics.
    pub(crate) fn is_watched(&self) -> bool {
        self.state().system > 0
    }

    /// What there is now.
    pub(crate) fn figures(&self) -> Figures {
        let state = self.state();
        Figures {
            subscriptions: state.tree.len(),
            retained: state.retained.size(),
            expired: state.retained.expired(),
            journal: state.retained.figures(),
        }
    }

    /// Sounds when [`Self::tend`] has something to do.
    pub(crate) fn alarm(&self) -> Arc<Notify> {
        self.state().retained.alarm()
    }

    /// Sees to the retained messages and their file.
    pub(crate) fn tend(&self) {
        self.state().retained.tend(unix_ms());
    }

    /// Returns when the retained messages are on the disk. Blocks as long as that takes.
    pub(crate) fn close(&self) {
        self.state().retained.close();
    }
}

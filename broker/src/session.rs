//! What a connected client's session knows: subscriptions, what waits for the client, what it owes an acknowledgement
//! for.
//!
//! **Invariant: this module does no IO**, and knows no clock.
//!
//! **Invariant: what waits is bounded.** Live messages are taken from the router only when nothing waits, and retained
//! ones are looked up only then: until that, a subscription's filter stands for them.

use std::collections::{HashMap, VecDeque};

use bytes::BytesMut;

use crate::{
    access::{Access, Filter, lesser},
    codec::{Answer, Version},
    message::{Message, QoS},
};

/// Bytes in the output buffer above which no message is added: what TLS takes in at once.
pub(crate) const OUTPUT_HIGH_BYTES: usize = 64 * 1024;

/// A message of a subscription did not follow the one before: the client fell further behind than the log reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{lost} messages were dropped before it took them")]
pub(crate) struct Gap {
    lost: u64,
}

/// A client's subscriptions.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    numbers: HashMap<Filter, u32>,
    by_number: HashMap<u32, Subscription>,
    last: u32,
}

#[derive(Debug)]
struct Subscription {
    granted: QoS,
    /// Where the next message should stand in the filter's log; unknown before the first.
    next: Option<u64>,
}

impl Subscriptions {
    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    pub(crate) fn contains(&self, filter: &Filter) -> bool {
        self.numbers.contains_key(filter)
    }

    /// Adds a subscription and gives its number, or changes what is granted to the one that there is.
    pub(crate) fn add(&mut self, filter: &Filter, granted: QoS) -> Option<u32> {
        if let Some(subscription) = self.numbers.get(filter).and_then(|number| self.by_number.get_mut(number)) {
            subscription.granted = granted;
            return None;
        }
        // A number is never used twice in a session, so that what was still under way for an ended one is known by it.
        self.last = self.last.checked_add(1)?;
        self.numbers.insert(filter.clone(), self.last);
        self.by_number.insert(self.last, Subscription { granted, next: None });
        Some(self.last)
    }

    /// Ends a subscription, if there is one.
    pub(crate) fn remove(&mut self, filter: &Filter) -> bool {
        self.numbers.remove(filter).and_then(|number| self.by_number.remove(&number)).is_some()
    }

    /// What is granted to a filter.
    fn granted(&self, filter: &Filter) -> Option<QoS> {
        self.numbers.get(filter).and_then(|number| self.by_number.get(number)).map(|subscription| subscription.granted)
    }

    /// Takes note of a message and says what is granted to it; nothing if the subscription has ended.
    fn take(&mut self, number: u32, place: u64) -> Result<Option<QoS>, Gap> {
        let Some(subscription) = self.by_number.get_mut(&number) else { return Ok(None) };
        let expected = subscription.next.replace(place + 1).unwrap_or(place);
        if expected == place {
            Ok(Some(subscription.granted))
        } else {
            Err(Gap { lost: place.saturating_sub(expected) })
        }
    }
}

/// Packet ids of messages that the client has not acknowledged.
#[derive(Debug)]
pub(crate) struct Window {
    owed: VecDeque<u16>,
    last: u16,
    max: usize,
}

impl Window {
    pub(crate) fn new(max: u16) -> Self {
        Self { owed: VecDeque::new(), last: 0, max: max.into() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.owed.is_empty()
    }

    /// An id for one more message; nothing if the client owes too many.
    fn open(&mut self) -> Option<u16> {
        if self.owed.len() >= self.max {
            return None;
        }
        loop {
            self.last = self.last.checked_add(1).unwrap_or(1);
            // There are 65,535 ids. If all are owed, `max` says so: it is one of them at most.
            if !self.owed.contains(&self.last) {
                self.owed.push_back(self.last);
                return Some(self.last);
            }
            if self.owed.len() >= usize::from(u16::MAX) {
                return None;
            }
        }
    }

    /// Takes an acknowledgement, in whatever order; says whether it was owed.
    pub(crate) fn acknowledge(&mut self, packet_id: u16) -> bool {
        // Clients mostly keep the order, so this mostly looks at the first.
        let position = self.owed.iter().position(|owed| *owed == packet_id);
        position.and_then(|position| self.owed.remove(position)).is_some()
    }
}

/// A message on its way to the client.
#[derive(Debug)]
struct Delivery {
    message: Message,
    qos: QoS,
    retained: bool,
}

/// A client's session.
#[derive(Debug)]
pub(crate) struct Session {
    version: Version,
    pub(crate) access: Access,
    pub(crate) subscriptions: Subscriptions,
    pub(crate) window: Window,
    waiting: VecDeque<Delivery>,
    /// New subscriptions whose retained messages are still to be looked up.
    due: VecDeque<Filter>,
}

impl Session {
    pub(crate) fn new(version: Version, access: Access, window: Window) -> Self {
        Self {
            version,
            access,
            subscriptions: Subscriptions::default(),
            window,
            waiting: VecDeque::new(),
            due: VecDeque::new(),
        }
    }

    /// Whether messages may be taken from the router.
    pub(crate) fn wants_more(&self) -> bool {
        self.waiting.is_empty() && self.due.is_empty()
    }

    /// A message from the router.
    pub(crate) fn deliver(&mut self, number: u32, place: u64, message: Message) -> Result<(), Gap> {
        let Some(granted) = self.subscriptions.take(number, place)? else { return Ok(()) };
        self.wait(message, granted, false);
        Ok(())
    }

    /// A subscription was made, anew or again: its retained messages are due.
    pub(crate) fn subscribed(&mut self, filter: Filter) {
        if !self.due.contains(&filter) {
            self.due.push_back(filter);
        }
    }

    fn wait(&mut self, message: Message, granted: QoS, retained: bool) {
        match self.access.receive(&message) {
            Ok(()) => {
                let qos = lesser(&message, granted);
                self.waiting.push_back(Delivery { message, qos, retained });
            }
            Err(refusal) => {
                tracing::error!(
                    client.identity = %self.access.identity(),
                    topic = message.topic(),
                    "a message was not delivered: {refusal}"
                );
            }
        }
    }

    /// Moves what waits to `out`, as far as the window and the buffer reach, and says how many messages that was.
    /// `retained` looks retained messages up.
    pub(crate) fn fill(&mut self, out: &mut BytesMut, retained: impl Fn(&Filter) -> Vec<Message>) -> u64 {
        let mut moved = 0;
        while out.len() < OUTPUT_HIGH_BYTES {
            let Some(delivery) = self.waiting.front() else {
                let Some(filter) = self.due.pop_front() else { break };
                // It may have been unsubscribed meanwhile.
                if let Some(granted) = self.subscriptions.granted(&filter) {
                    for message in retained(&filter) {
                        self.wait(message, granted, true);
                    }
                }
                continue;
            };
            let packet_id = match delivery.qos {
                QoS::AtMostOnce => None,
                QoS::AtLeastOnce => match self.window.open() {
                    Some(packet_id) => Some(packet_id),
                    None => break,
                },
            };
            let answer = Answer::Publish { packet_id, message: &delivery.message, retained: delivery.retained };
            self.version.encode(&answer, out);
            self.waiting.pop_front();
            moved += 1;
        }
        if self.waiting.is_empty() && self.waiting.capacity() > 64 {
            // A large set of retained messages went through; a quiet client is not to keep its room.
            self.waiting = VecDeque::new();
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn session(window: u16) -> Session {
        let access = Access::new("console-main".parse().unwrap(), "muster".parse().unwrap());
        Session::new(Version::V311, access, Window::new(window))
    }

    fn filter(session: &Session, text: &str) -> Filter {
        session.access.subscribe(text).unwrap()
    }

    fn message(payload: &str) -> Message {
        Message::plain("muster/a", payload, false)
    }

    fn nothing(_: &Filter) -> Vec<Message> {
        Vec::new()
    }

    #[test]
    fn a_gap_is_noticed_from_the_first_message_on() {
        let mut session = session(9);
        let filter = filter(&session, "muster/#");
        let number = session.subscriptions.add(&filter, QoS::AtMostOnce).unwrap();
        assert_eq!(session.deliver(number, 41, message("1")), Ok(()));
        assert_eq!(session.deliver(number, 42, message("2")), Ok(()));
        assert_eq!(session.deliver(number, 45, message("3")), Err(Gap { lost: 2 }));
    }

    #[test]
    fn an_ended_subscription_is_quiet_and_a_new_one_starts_anew() {
        let mut session = session(9);
        let filter = filter(&session, "muster/#");
        let old = session.subscriptions.add(&filter, QoS::AtMostOnce).unwrap();
        session.deliver(old, 0, message("1")).unwrap();
        let mut out = BytesMut::new();
        assert_eq!(session.fill(&mut out, nothing), 1);
        assert!(session.subscriptions.remove(&filter) && !session.subscriptions.remove(&filter));
        let new = session.subscriptions.add(&filter, QoS::AtMostOnce).unwrap();
        assert_ne!(old, new);
        session.deliver(old, 1, message("2")).unwrap();
        assert_eq!(session.fill(&mut out, nothing), 0);
        session.deliver(new, 7, message("3")).unwrap();
        assert_eq!(session.fill(&mut out, nothing), 1);
    }

    #[test]
    fn the_window_holds_back_and_acknowledgements_open_it() {
        let mut session = session(2);
        let filter = filter(&session, "muster/#");
        let number = session.subscriptions.add(&filter, QoS::AtLeastOnce).unwrap();
        for place in 0..3 {
            session.deliver(number, place, message("x")).unwrap();
        }
        let mut out = BytesMut::new();
        assert_eq!(session.fill(&mut out, nothing), 2);
        assert!(!session.wants_more());
        assert!(!session.window.acknowledge(9));
        assert!(session.window.acknowledge(2) && !session.window.acknowledge(2));
        assert_eq!(session.fill(&mut out, nothing), 1);
        assert!(session.wants_more());
        assert!(session.window.acknowledge(1) && session.window.acknowledge(3) && session.window.is_empty());
    }

    #[test]
    fn retained_messages_come_before_what_is_live_and_once_per_subscription() {
        let mut session = session(9);
        let filter = filter(&session, "muster/a");
        let number = session.subscriptions.add(&filter, QoS::AtMostOnce).unwrap();
        session.subscribed(filter.clone());
        session.subscribed(filter.clone());
        assert!(!session.wants_more());
        let mut out = BytesMut::new();
        assert_eq!(session.fill(&mut out, |_| vec![message("kept")]), 1);
        // Retain flag set, QoS 0 for that is what was granted.
        assert_eq!(out.first(), Some(&0x31));
        assert!(session.wants_more());
        out.clear();
        session.deliver(number, 0, message("live")).unwrap();
        session.fill(&mut out, nothing);
        assert_eq!(out.first(), Some(&0x30));
        // Subscribed again with another quality of service: the same subscription.
        assert_eq!(session.subscriptions.add(&filter, QoS::AtLeastOnce), None);
        session.subscribed(filter.clone());
        out.clear();
        assert_eq!(session.fill(&mut out, |_| vec![message("kept")]), 1);
        assert_eq!(out.first(), Some(&0x33));
    }

    #[test]
    fn a_full_buffer_holds_back() {
        let mut session = session(9);
        let filter = filter(&session, "muster/#");
        let number = session.subscriptions.add(&filter, QoS::AtMostOnce).unwrap();
        for place in 0..3 {
            session.deliver(number, place, message(&"x".repeat(OUTPUT_HIGH_BYTES))).unwrap();
        }
        let mut out = BytesMut::new();
        assert_eq!(session.fill(&mut out, nothing), 1);
        assert!(!session.wants_more());
        out.clear();
        assert_eq!(session.fill(&mut out, nothing), 1);
    }

    proptest! {
        /// Whatever is acknowledged in whatever order, an id is never given out while it is owed.
        #[test]
        fn ids_in_the_window_differ(steps in proptest::collection::vec(proptest::option::of(0_usize..8), 0..400)) {
            let mut window = Window::new(5);
            window.last = u16::MAX - 3;
            let mut owed: Vec<u16> = Vec::new();
            for step in steps {
                match step {
                    None => match window.open() {
                        Some(id) => {
                            prop_assert!(id != 0 && !owed.contains(&id));
                            owed.push(id);
                        }
                        None => prop_assert_eq!(owed.len(), 5),
                    },
                    Some(index) if index < owed.len() => prop_assert!(window.acknowledge(owed.swap_remove(index))),
                    Some(_) => (),
                }
            }
        }
    }
}

//! A client's session: its subscriptions, its queue, and its unacknowledged messages. It
//! outlives the connection if the client asked for that.
//!
//! **Invariant: this module does no IO**, and reads no clock.
//!
//! **Invariant: the queue is bounded.** The mailbox is emptied into `waiting` only when that is empty.

use std::{collections::VecDeque, num::NonZeroU32, sync::Arc};

use bytes::BytesMut;

use crate::{
    access::CheckedFilter,
    codec::{Delivery, ProtocolVersion, ServerPacket, SubscribeOptions},
    mailbox::{Mailbox, Parcel, SubscriptionPlace},
    message::QoS,
    topic_text,
};

/// The size of the output buffer above which no message is added: what TLS encrypts at once.
pub(crate) const OUTPUT_HIGH_BYTES: usize = 64 * 1024;

/// An emptied queue with more slots than this releases its memory: a quiet client should not keep what a burst took.
const QUEUE_KEPT: usize = 16;

/// One subscription.
#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) filter: CheckedFilter,
    pub(crate) options: SubscribeOptions,
    pub(crate) id: Option<NonZeroU32>,
    /// The place in its identity's limit. `None` for one that replaces another.
    pub(crate) place: Option<SubscriptionPlace>,
}

/// A client's subscriptions. An agent has eight and a console five, so a list is as fast as a map, and smaller.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions(Vec<Subscription>);

impl Subscriptions {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn contains(&self, filter: &str) -> bool {
        self.0.iter().any(|subscription| subscription.filter.as_str() == filter)
    }

    pub(crate) fn get(&self, filter: &str) -> Option<&Subscription> {
        self.0.iter().find(|subscription| subscription.filter.as_str() == filter)
    }

    /// Adds a subscription, or replaces the one of the same filter.
    pub(crate) fn add(&mut self, mut subscription: Subscription) {
        match self.0.iter_mut().find(|old| old.filter == subscription.filter) {
            Some(old) => {
                subscription.place = subscription.place.or(old.place.take());
                *old = subscription;
            }
            None => self.0.push(subscription),
        }
    }

    fn remove(&mut self, filter: &str) -> Option<Subscription> {
        let position = self.0.iter().position(|subscription| subscription.filter.as_str() == filter)?;
        Some(self.0.remove(position))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Subscription> {
        self.0.iter()
    }
}

/// How far the retained messages of a subscription have been put into the mailbox.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RetainedCursor {
    /// The subscription's.
    pub(crate) filter: CheckedFilter,
    /// The topic after which it continues; `None` at the beginning.
    pub(crate) after: Option<String>,
}

/// Retained messages that are still to be delivered: one cursor per filter, one after the other.
///
/// Cursors hold a position in the store and no message: what is not read costs nothing.
#[derive(Debug, Default)]
pub(crate) struct RetainedCursors(VecDeque<RetainedCursor>);

impl RetainedCursors {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Starts delivering what a filter matches, from the beginning, even if it is being delivered.
    pub(crate) fn begin(&mut self, filter: CheckedFilter) {
        match self.0.iter_mut().find(|cursor| cursor.filter == filter) {
            Some(cursor) => cursor.after = None,
            None => self.0.push_back(RetainedCursor { filter, after: None }),
        }
    }

    /// Returns the cursor to continue.
    pub(crate) fn next(&mut self) -> Option<&mut RetainedCursor> {
        self.0.front_mut()
    }

    /// Ends the cursor to continue.
    pub(crate) fn finish(&mut self) {
        self.0.pop_front();
        if self.0.is_empty() {
            self.0 = VecDeque::new();
        }
    }

    /// Returns a filter that matches a topic.
    pub(crate) fn covering(&self, topic: &str) -> Option<CheckedFilter> {
        self.0.iter().map(|cursor| &cursor.filter).find(|filter| topic_text::matches(filter.as_str(), topic)).cloned()
    }

    /// Removes the cursor of a filter.
    pub(crate) fn end(&mut self, filter: &str) {
        self.0.retain(|cursor| cursor.filter.as_str() != filter);
    }
}

/// An unacknowledged message of QoS 1.
#[derive(Debug)]
struct UnackedDelivery {
    packet_id: u16,
    /// The message, to be sent again when the client comes back; `None` if its session ends with the connection.
    parcel: Option<Parcel>,
}

impl UnackedDelivery {
    /// Returns the bytes that it counts.
    fn cost(&self) -> usize {
        self.parcel.as_ref().map_or(0, Parcel::cost)
    }
}

/// Unacknowledged messages, in the order in which they were sent.
#[derive(Debug, Default)]
pub(crate) struct InflightWindow {
    owed: VecDeque<UnackedDelivery>,
    /// Bytes of those that are kept to be sent again.
    bytes: usize,
    last: u16,
}

impl InflightWindow {
    /// Returns a free id; `None` if `max` are unacknowledged.
    fn free_id(&mut self, max: u16) -> Option<u16> {
        if self.owed.len() >= usize::from(max) {
            return None;
        }
        // Ids are used in a circle, so those in use lie between the oldest and the last: the next one is free unless
        // it is the oldest, whose acknowledgement is then awaited.
        let next = self.last.checked_add(1).unwrap_or(1);
        if self.owed.front().is_some_and(|oldest| oldest.packet_id == next) {
            return None;
        }
        self.last = next;
        Some(next)
    }

    fn push(&mut self, owed: UnackedDelivery) {
        self.bytes += owed.cost();
        self.owed.push_back(owed);
    }

    fn remove(&mut self, position: usize) {
        if let Some(owed) = self.owed.remove(position) {
            self.bytes -= owed.cost();
        }
    }

    /// Handles an acknowledgement, in any order; returns the index of its message.
    fn acknowledge(&mut self, packet_id: u16) -> Option<usize> {
        // Clients mostly keep the order, so the first is usually the right one.
        let position = self.owed.iter().position(|owed| owed.packet_id == packet_id)?;
        self.remove(position);
        if self.owed.is_empty() && self.owed.capacity() > QUEUE_KEPT {
            self.owed = VecDeque::new();
        }
        Some(position)
    }
}

/// What a connection's client accepts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientLimits {
    pub(crate) version: ProtocolVersion,
    /// Unacknowledged messages of QoS 1.
    pub(crate) window: u16,
    /// The largest packet.
    pub(crate) packet_max_bytes: usize,
    /// Whether the session may outlive the connection.
    pub(crate) stays: bool,
}

/// The result of sending waiting messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FillResult {
    pub(crate) sent: u64,
    pub(crate) expired: u64,
    /// Messages larger than the client accepts: by the standard they count as delivered.
    pub(crate) too_large: u64,
}

/// A client's session.
#[derive(Debug)]
pub(crate) struct ClientSession {
    /// It is never reused.
    pub(crate) number: u64,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) subscriptions: Subscriptions,
    pub(crate) cursors: RetainedCursors,
    window: InflightWindow,
    /// Messages taken from the mailbox.
    waiting: VecDeque<Parcel>,
    /// How many unacknowledged messages are to be sent again, from the first on.
    again: usize,
}

impl ClientSession {
    pub(crate) fn new(number: u64, mailbox: Arc<Mailbox>) -> Self {
        Self {
            number,
            mailbox,
            subscriptions: Subscriptions::default(),
            cursors: RetainedCursors::default(),
            window: InflightWindow::default(),
            waiting: VecDeque::new(),
            again: 0,
        }
    }

    /// Removes a subscription, if there is one.
    pub(crate) fn unsubscribe(&mut self, filter: &str) -> Option<Subscription> {
        self.cursors.end(filter);
        self.subscriptions.remove(filter)
    }

    /// Handles an acknowledgement; returns whether it was expected.
    pub(crate) fn acknowledge(&mut self, packet_id: u16) -> bool {
        let (sent, before) = (self.window.owed.len() - self.again, self.window.bytes);
        let position = self.window.acknowledge(packet_id);
        self.settle(before);
        // It was to be sent again, but the client has it already.
        if position.is_some_and(|position| position >= sent) {
            self.again -= 1;
        }
        position.is_some()
    }

    /// Updates the bytes that are kept to be sent again, if they are not `before` any more: zero, for most clients.
    fn settle(&self, before: usize) {
        if self.window.bytes != before {
            self.mailbox.owe(self.window.bytes);
        }
    }

    /// Whether the client owes acknowledgements.
    pub(crate) fn is_owed(&self) -> bool {
        !self.window.owed.is_empty()
    }

    /// Whether more should be taken from the mailbox.
    pub(crate) fn wants_more(&self) -> bool {
        self.waiting.is_empty() && self.again == 0
    }

    /// Handles the end of a connection that the session outlives: unsent messages wait again.
    pub(crate) fn sleep(&mut self) {
        self.mailbox.detach(std::mem::take(&mut self.waiting));
        self.again = 0;
    }

    /// Handles a new connection of the client: unacknowledged messages are sent again.
    pub(crate) fn wake(&mut self) {
        self.mailbox.attach();
        // Messages that were sent without being kept cannot be sent again.
        self.window.owed.retain(|owed| owed.parcel.is_some());
        self.again = self.window.owed.len();
    }

    /// Moves waiting messages to `out`, as far as the client's window and the buffer allow. When all taken messages are
    /// sent, `bring` adds more retained ones after later messages, once.
    pub(crate) fn fill(
        &mut self,
        reach: ClientLimits,
        now_ms: u64,
        out: &mut BytesMut,
        bring: impl FnOnce(&mut Self),
    ) -> FillResult {
        let (mut filled, mut bring, owed_before) = (FillResult::default(), Some(bring), self.window.bytes);
        self.send_again(reach, now_ms, out, &mut filled);
        while out.len() < OUTPUT_HIGH_BYTES && self.again == 0 {
            if self.waiting.is_empty() {
                if !self.cursors.is_empty()
                    && let Some(bring) = bring.take()
                {
                    bring(self);
                }
                self.mailbox.take(&mut self.waiting);
            }
            let Some(parcel) = self.waiting.front() else { break };
            if parcel.message.is_expired(now_ms) {
                filled.expired += 1;
                self.waiting.pop_front();
                continue;
            }
            // The packet id's presence, not its value, changes the length.
            let packet_id = (parcel.qos == QoS::AtLeastOnce).then_some(1);
            if reach.version.publish_len(&delivery(parcel, packet_id, false, now_ms)) > reach.packet_max_bytes {
                filled.too_large += 1;
                self.waiting.pop_front();
                continue;
            }
            // A client that reads and acknowledges nothing has no more kept for it than one that does not read. One
            // message always fits.
            let kept = if reach.stays { self.window.bytes } else { 0 };
            let packet_id = match parcel.qos {
                QoS::AtMostOnce => None,
                QoS::AtLeastOnce if kept > 0 && kept + parcel.cost() > self.mailbox.max_bytes() => break,
                QoS::AtLeastOnce => match self.window.free_id(reach.window) {
                    Some(packet_id) => Some(packet_id),
                    None => break,
                },
            };
            reach.version.encode(&ServerPacket::Publish(delivery(parcel, packet_id, false, now_ms)), out);
            let parcel = self.waiting.pop_front().filter(|_| reach.stays);
            if let Some(packet_id) = packet_id {
                self.window.push(UnackedDelivery { packet_id, parcel });
            }
            filled.sent += 1;
        }
        if self.waiting.is_empty() && self.waiting.capacity() > QUEUE_KEPT {
            self.waiting = VecDeque::new();
        }
        self.settle(owed_before);
        filled
    }

    /// Sends what was unacknowledged when the last connection ended, in its order and under its ids.
    fn send_again(&mut self, reach: ClientLimits, now_ms: u64, out: &mut BytesMut, filled: &mut FillResult) {
        while self.again > 0 && out.len() < OUTPUT_HIGH_BYTES {
            // Acknowledgements of repeated messages remove from the front, so these are the last ones.
            let index = self.window.owed.len().saturating_sub(self.again);
            if index >= usize::from(reach.window) {
                break;
            }
            self.again -= 1;
            let Some(UnackedDelivery { packet_id, parcel: Some(parcel) }) = self.window.owed.get(index) else {
                continue;
            };
            let delivery = delivery(parcel, Some(*packet_id), true, now_ms);
            if reach.version.publish_len(&delivery) > reach.packet_max_bytes {
                filled.too_large += 1;
                self.window.remove(index);
                continue;
            }
            reach.version.encode(&ServerPacket::Publish(delivery), out);
            filled.sent += 1;
        }
    }
}

fn delivery(parcel: &Parcel, packet_id: Option<u16>, dup: bool, now_ms: u64) -> Delivery<'_> {
    let Parcel { message, retain, subscription_id, .. } = parcel;
    // The remaining time, rounded up: a delivered message has some.
    let left_s = |expires_ms: u64| expires_ms.saturating_sub(now_ms).div_ceil(1000);
    Delivery {
        packet_id,
        dup,
        retain: *retain,
        topic: message.topic(),
        payload: message.payload(),
        properties: message.properties(),
        expiry_s: message.expires_ms().map(|expires_ms| u32::try_from(left_s(expires_ms)).unwrap_or(u32::MAX)),
        subscription_id: subscription_id.map(NonZeroU32::get),
    }
}

#[cfg(test)]
mod tests;

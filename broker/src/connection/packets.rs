//! Handles a client's packets.

use std::mem;

use bytes::{Buf, BytesMut};
use miette::Diagnostic as _;
use muster_guard::{LineKind, LineLimiter, log_peer};
use tokio::time::Instant;

use super::{ClientConnection, OUTPUT_MAX_BYTES, end::ConnectionEnd};
use crate::{
    access::AccessRefusal,
    clock::unix_ms,
    codec::{self, ClientPacket, ProtocolVersion, Publication, Reason, RetainHandling, ServerPacket, SubscribeOptions},
    message::{BrokerMessage, QoS},
    router::{BatchReply, RefusedMessage},
    session::Subscription,
};

/// A batch of publishes is submitted at this size.
const BATCH_MAX_BYTES: usize = 32 * 1024;

/// And at this number, for small ones.
const BATCH_MAX: usize = 256;

/// Log lines about refusals of an identity, by reason: a client usually repeats its mistake every few seconds.
const REFUSED: LineKind = LineKind::new("refusals", 600);

/// Publishes on their way to the exchange.
#[derive(Default)]
struct PublishBatch {
    messages: Vec<BrokerMessage>,
    bytes: usize,
    /// To be sent when they have been distributed, in the order of arrival.
    acks: Vec<PendingAck>,
}

/// A pending acknowledgement.
struct PendingAck {
    packet_id: u16,
    reason: Reason,
    /// The index of its message in the batch; `None` if it was refused before.
    index: Option<usize>,
}

impl PublishBatch {
    fn has_room(&self) -> bool {
        self.bytes < BATCH_MAX_BYTES && self.messages.len() < BATCH_MAX && self.acks.len() < BATCH_MAX
    }

    fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.acks.is_empty()
    }
}

/// A batch that has not been distributed.
pub(super) struct BatchUnderWay {
    pub(super) taken: BatchReply,
    acks: Vec<PendingAck>,
}

/// The topic aliases of a client.
#[derive(Debug, Default)]
pub(super) struct Aliases(Vec<Option<Box<str>>>);

impl Aliases {
    /// Returns the topic of a publication, by its alias if it has no topic.
    fn resolve<'a>(&'a mut self, publication: &Publication<'a>, max: u16) -> Result<&'a str, ConnectionEnd> {
        let Some(alias) = publication.alias else { return Ok(publication.topic) };
        let Some(index) = usize::from(alias).checked_sub(1).filter(|index| *index < usize::from(max)) else {
            return Err(ConnectionEnd::Alias(alias));
        };
        if publication.topic.is_empty() {
            return self.0.get(index).and_then(Option::as_deref).ok_or(ConnectionEnd::Alias(alias));
        }
        if self.0.len() <= index {
            self.0.resize(index + 1, None);
        }
        if let Some(place) = self.0.get_mut(index)
            && place.as_deref() != Some(publication.topic)
        {
            *place = Some(publication.topic.into());
        }
        Ok(publication.topic)
    }
}

impl ClientConnection {
    /// Handles complete packets in the read buffer, up to a batch of publishes.
    pub(super) async fn read_packets(&mut self) -> Result<(), ConnectionEnd> {
        if self.buffers.input.is_empty() || !self.listens() {
            return Ok(());
        }
        let mut input = mem::take(&mut self.buffers.input);
        let outcome = loop {
            let mut batch = PublishBatch::default();
            let before = input.len();
            let outcome = self.read_batch(&mut input, &mut batch);
            if input.len() < before {
                self.clock.record_activity(Instant::now());
            }
            // What came before an end counts, for example before a DISCONNECT.
            self.submit(batch).await;
            match outcome {
                Ok(true) if self.listens() => (),
                outcome => break outcome,
            }
        };
        let begun = if input.is_empty() { 0 } else { input.len() + codec::missing(&input) };
        self.clock.expect(begun);
        self.buffers.put_back(input);
        outcome.map(drop)
    }

    /// Handles packets for one batch of publishes; returns whether more may follow.
    fn read_batch(&mut self, input: &mut BytesMut, batch: &mut PublishBatch) -> Result<bool, ConnectionEnd> {
        while batch.has_room() && self.buffers.output.len() < OUTPUT_MAX_BYTES {
            let Some((frame, used)) = codec::frame(input, self.shared.limits.packet_max_bytes)? else {
                return Ok(false);
            };
            let request = self.reach.version.decode(&frame)?;
            // A subscription comes after earlier publishes, retained messages included.
            if !batch.is_empty() && matches!(request, ClientPacket::Subscribe { .. } | ClientPacket::Unsubscribe { .. })
            {
                break;
            }
            self.handle(request, batch)?;
            input.advance(used);
        }
        Ok(true)
    }

    fn handle(&mut self, request: ClientPacket<'_>, batch: &mut PublishBatch) -> Result<(), ConnectionEnd> {
        match request {
            ClientPacket::Publish { packet_id, publication } => self.publish(packet_id, &publication, batch)?,
            ClientPacket::PubAck(packet_id) => {
                // An unexpected acknowledgement harms nobody.
                if self.session.acknowledge(packet_id) {
                    self.clock.acknowledged();
                }
            }
            ClientPacket::Subscribe { packet_id, id, filters } => {
                let reasons = self.subscribe_all(&filters, id);
                self.answer(&ServerPacket::SubAck { packet_id, reasons: &reasons });
            }
            ClientPacket::Unsubscribe { packet_id, filters } => {
                let reasons: Vec<_> = filters.iter().map(|filter| self.unsubscribe(filter)).collect();
                self.answer(&ServerPacket::UnsubAck { packet_id, reasons: &reasons });
            }
            ClientPacket::Ping => self.answer(&ServerPacket::Pong),
            ClientPacket::Disconnect { keep_will, session_expiry_s } => {
                return Err(self.disconnect(keep_will, session_expiry_s));
            }
        }
        Ok(())
    }

    fn answer(&mut self, answer: &ServerPacket<'_>) {
        self.reach.version.encode(answer, &mut self.buffers.output);
    }

    fn disconnect(&mut self, keep_will: bool, session_expiry_s: Option<u32>) -> ConnectionEnd {
        if let Some(asked_s) = session_expiry_s {
            // A session that was to end with its connection cannot get a longer life at its end.
            if self.session_expiry_s == 0 && asked_s != 0 {
                return ConnectionEnd::SessionExpiry;
            }
            self.session_expiry_s = asked_s.min(self.shared.limits.session_expiry_max_s);
        }
        ConnectionEnd::Disconnect { keep_will }
    }

    fn publish(
        &mut self,
        packet_id: Option<u16>,
        publication: &Publication<'_>,
        batch: &mut PublishBatch,
    ) -> Result<(), ConnectionEnd> {
        let topic = self.aliases.resolve(publication, self.shared.limits.topic_aliases_max)?;
        if let Err(refusal) = self.access.publish(topic) {
            self.shared.counters.refusals.count(refusal.publish_kind());
            // MQTT 3.1.1 can only acknowledge what it drops, or close the connection; and a refusal of QoS 0 can
            // only be shown by closing.
            return match packet_id.filter(|_| self.reach.version == ProtocolVersion::V5) {
                Some(packet_id) => {
                    let topic = topic.to_owned();
                    self.log_refusal(refusal, &topic);
                    batch.acks.push(PendingAck { packet_id, reason: refusal.reason(), index: None });
                    Ok(())
                }
                None => Err(ConnectionEnd::Publish { topic: LineLimiter::shorten(topic).to_owned(), refusal }),
            };
        }
        if publication.retain {
            self.shared.exchange.deliver_retained_first(&mut self.session, &self.access, topic);
        }
        let publication = Publication { topic, properties: publication.properties.clone(), ..*publication };
        let message = BrokerMessage::new(&publication, self.session.number, unix_ms());
        let index = Some(batch.messages.len());
        batch.bytes += message.len();
        batch.messages.push(message);
        batch.acks.extend(packet_id.map(|packet_id| PendingAck { packet_id, reason: Reason::Success, index }));
        Ok(())
    }

    pub(super) fn log_refusal(&self, refusal: AccessRefusal, topic: &str) {
        let identity = self.access.identity();
        let hint = refusal.help().map(|hint| hint.to_string());
        log_peer!(
            WARN,
            (identity, refusal),
            REFUSED,
            client.id = LineLimiter::shorten(self.ticket.client_id()),
            client.identity = %identity,
            topic = LineLimiter::shorten(topic),
            hint,
            "refused: {refusal}"
        );
    }

    async fn submit(&mut self, batch: PublishBatch) {
        if batch.messages.is_empty() {
            self.acknowledge(&batch.acks);
            return;
        }
        self.shared.counters.received.add(batch.messages.len() as u64);
        let taken = self.shared.hub.publish(batch.messages).await;
        self.under_way = Some(BatchUnderWay { taken, acks: batch.acks });
    }

    fn acknowledge(&mut self, acks: &[PendingAck]) {
        for &PendingAck { packet_id, reason, .. } in acks {
            self.answer(&ServerPacket::PubAck { packet_id, reason });
        }
    }

    /// Handles that the batch was distributed except for refused messages, or (`None`) that the broker stops.
    pub(super) fn taken(&mut self, refused: Option<Vec<RefusedMessage>>) -> Result<(), ConnectionEnd> {
        let under_way = self.under_way.take();
        let refused = refused.ok_or(ConnectionEnd::Stopping)?;
        let Some(BatchUnderWay { mut acks, .. }) = under_way else { return Ok(()) };
        // Without an acknowledgement the refusal is shown by closing the connection, as with every refusal.
        let mut end = None;
        for RefusedMessage { index, message } in refused {
            let refusal = AccessRefusal::Retained;
            self.shared.counters.refusals.count(refusal.publish_kind());
            let place = acks.iter().position(|ack| ack.index == Some(index));
            match place.and_then(|place| acks.get_mut(place)).filter(|_| self.reach.version == ProtocolVersion::V5) {
                Some(ack) => {
                    ack.reason = refusal.reason();
                    self.log_refusal(refusal, message.topic());
                }
                None => {
                    place.map(|place| acks.remove(place));
                    end.get_or_insert_with(|| ConnectionEnd::Publish {
                        topic: LineLimiter::shorten(message.topic()).to_owned(),
                        refusal,
                    });
                }
            }
        }
        self.acknowledge(&acks);
        end.map_or(Ok(()), Err)
    }

    /// Subscribes to filters in order. A session has at most `subscriptions_max`, so later filters of a packet are not
    /// processed.
    fn subscribe_all(&mut self, filters: &[(&str, SubscribeOptions)], id: Option<u32>) -> Vec<Reason> {
        let (first, beyond) = filters.split_at(filters.len().min(self.shared.limits.subscriptions_max));
        let mut reasons: Vec<_> = first.iter().map(|(filter, options)| self.subscribe(filter, *options, id)).collect();
        if let Some((filter, _)) = beyond.first() {
            let refusal = AccessRefusal::Subscriptions;
            self.shared.counters.refusals.add(refusal.subscribe_kind(), beyond.len() as u64);
            self.log_refusal(refusal, filter);
            reasons.resize(filters.len(), refusal.reason());
        }
        reasons
    }

    fn subscribe(&mut self, text: &str, options: SubscribeOptions, id: Option<u32>) -> Reason {
        let is_new = !self.session.subscriptions.contains(text);
        let has_room = !is_new || self.session.subscriptions.len() < self.shared.limits.subscriptions_max;
        let place = if is_new && has_room { self.session.mailbox.account().subscribe() } else { None };
        let refused = if is_new && place.is_none() { Err(AccessRefusal::Subscriptions) } else { Ok(()) };
        let filter = match self.access.subscribe(text).and_then(|filter| refused.map(|()| filter)) {
            Ok(filter) => filter,
            Err(refusal) => {
                self.shared.counters.refusals.count(refusal.subscribe_kind());
                self.log_refusal(refusal, text);
                return refusal.reason();
            }
        };
        if options.handling == RetainHandling::Always || (options.handling == RetainHandling::IfNew && is_new) {
            self.session.cursors.begin(filter.clone());
        }
        let subscription = Subscription { filter, options, id: id.and_then(std::num::NonZeroU32::new), place };
        self.shared.exchange.subscribe(&self.session, &self.access, &subscription);
        self.session.subscriptions.add(subscription);
        match options.qos {
            QoS::AtMostOnce => Reason::Success,
            QoS::AtLeastOnce => Reason::GrantedQoS1,
        }
    }

    fn unsubscribe(&mut self, text: &str) -> Reason {
        match self.session.unsubscribe(text) {
            Some(subscription) => {
                self.shared.exchange.unsubscribe(self.session.number, &subscription.filter);
                Reason::Success
            }
            None => Reason::NoSubscriptionExisted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::publication;

    #[test]
    fn alias_resolves_to_its_latest_topic() {
        let mut aliases = Aliases::default();
        for (topic, alias, expected) in [
            ("a", None, Some("a")),
            ("", Some(1), None),
            ("a", Some(2), Some("a")),
            ("", Some(2), Some("a")),
            ("b", Some(2), Some("b")),
            ("", Some(2), Some("b")),
            ("", Some(1), None),
            ("c", Some(0), None),
            ("c", Some(3), None),
        ] {
            let publication = Publication { alias, ..publication(topic, b"") };
            assert_eq!(aliases.resolve(&publication, 2).ok(), expected, "{topic:?} {alias:?}");
        }
    }
}

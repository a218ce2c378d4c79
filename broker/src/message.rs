//! Messages and quality of service, as the front passes them about.

use bytes::{BufMut, Bytes, BytesMut};

/// How hard delivery is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum QoS {
    /// Sent once.
    AtMostOnce = 0,
    /// Sent, and acknowledged.
    AtLeastOnce = 1,
}

/// A message that was let in.
///
/// Topic and payload share one allocation of exactly their size: a message that is kept (in a log, retained) pins no
/// read buffer. The router sets the quality of service of what it delivers to the subscription's, so what the publisher
/// asked for travels in a byte before the payload. That byte is also why the router never sees an empty payload, which
/// it would take for an order to forget a retained message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    topic: Bytes,
    /// The quality of service, then the payload.
    body: Bytes,
    /// Whether it is to be kept for later subscribers, or was.
    pub(crate) retain: bool,
}

impl Message {
    /// Only [`crate::access::Access`] makes messages of what clients send.
    pub(crate) fn new(topic: &str, payload: &[u8], qos: QoS, retain: bool) -> Self {
        let mut all = BytesMut::with_capacity(topic.len() + 1 + payload.len());
        all.put_slice(topic.as_bytes());
        all.put_u8(qos as u8);
        all.put_slice(payload);
        let mut topic_bytes = all.freeze();
        let body = topic_bytes.split_off(topic.len());
        Self { topic: topic_bytes, body, retain }
    }

    /// What [`Self::into_parts`] took apart.
    pub(crate) fn from_parts(topic: Bytes, body: Bytes, retain: bool) -> Option<Self> {
        let valid = std::str::from_utf8(&topic).is_ok() && !body.is_empty();
        valid.then_some(Self { topic, body, retain })
    }

    /// Topic and body, for the router and the retained store.
    pub(crate) fn into_parts(self) -> (Bytes, Bytes) {
        (self.topic, self.body)
    }

    pub(crate) fn topic(&self) -> &str {
        // It was text when it came in; if it were not, nobody could be permitted to read the topic "".
        std::str::from_utf8(&self.topic).unwrap_or_default()
    }

    pub(crate) fn payload(&self) -> &[u8] {
        self.body.get(1..).unwrap_or_default()
    }

    pub(crate) fn qos(&self) -> QoS {
        if self.body.first() == Some(&(QoS::AtMostOnce as u8)) { QoS::AtMostOnce } else { QoS::AtLeastOnce }
    }

    /// Bytes that it holds on to.
    pub(crate) fn len(&self) -> usize {
        self.topic.len() + self.body.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_survives_its_way_through_the_router() {
        for (payload, qos) in [(&b""[..], QoS::AtMostOnce), (b"x", QoS::AtLeastOnce)] {
            let message = Message::new("a/é", payload, qos, false);
            let (topic, body) = message.clone().into_parts();
            assert!(!body.is_empty());
            let back = Message::from_parts(topic, body, false).unwrap();
            assert_eq!((back.topic(), back.payload(), back.qos()), ("a/é", payload, qos));
            assert_eq!(back, message);
        }
        assert_eq!(Message::from_parts(Bytes::from_static(b"\xff"), Bytes::from_static(b"\0"), false), None);
        assert_eq!(Message::from_parts(Bytes::from_static(b"a"), Bytes::new(), false), None);
    }
}

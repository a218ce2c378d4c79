//! Messages and quality of service, as the front passes them on.

use bytes::{BufMut, Bytes, BytesMut};

use crate::codec::Publication;

/// The quality of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum QoS {
    /// Sent once.
    AtMostOnce = 0,
    /// Sent, and acknowledged.
    AtLeastOnce = 1,
}

/// The header: flags, publisher, expiry, and the lengths of topic and properties.
const HEADER_BYTES: usize = 1 + 8 + 8 + 2 + 4;
const FLAG_QOS_1: u8 = 1;
const FLAG_RETAIN: u8 = 2;

/// An accepted message.
///
/// It is one allocation of exactly its size, so that a stored message (for a slow client, or as retained) does not keep
/// a read buffer alive, and the same bytes go through the router's log and into the journal of retained messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BrokerMessage(Bytes);

impl BrokerMessage {
    /// Creates a message from a publication. `from` is the number of the publisher's session, or 0 for the broker
    /// itself.
    ///
    /// The caller has checked permission with [`crate::access::ClientAccess`], and resolved a topic alias.
    pub(crate) fn new(publication: &Publication<'_>, from: u64, now_ms: u64) -> Self {
        let Publication { topic, payload, properties, .. } = publication;
        let mut flags = 0;
        if publication.qos == QoS::AtLeastOnce {
            flags |= FLAG_QOS_1;
        }
        if publication.retain {
            flags |= FLAG_RETAIN;
        }
        // 0 means "never", so an immediate expiry becomes the first millisecond.
        let expires_ms = publication.expiry_s.map_or(0, |s| now_ms.saturating_add(u64::from(s) * 1000).max(1));
        let mut all = BytesMut::with_capacity(HEADER_BYTES + topic.len() + properties.len() + payload.len());
        all.put_u8(flags);
        all.put_u64(from);
        all.put_u64(expires_ms);
        // Both arrived with lengths that fit.
        all.put_u16(u16::try_from(topic.len()).unwrap_or_default());
        all.put_u32(u32::try_from(properties.len()).unwrap_or_default());
        all.put_slice(topic.as_bytes());
        all.put_slice(properties);
        all.put_slice(payload);
        Self(all.freeze())
    }

    /// Returns the same message with another publisher.
    pub(crate) fn published_by(&self, from: u64) -> Self {
        self.with(1, from)
    }

    /// Returns the same message with an expiry, in Unix time.
    pub(crate) fn expiring(&self, expires_ms: u64) -> Self {
        self.with(9, expires_ms.max(1))
    }

    /// Returns the same message without the retain flag.
    pub(crate) fn passing(&self) -> Self {
        let mut all = BytesMut::from(&self.0[..]);
        if let Some(flags) = all.first_mut() {
            *flags &= !FLAG_RETAIN;
        }
        Self(all.freeze())
    }

    fn with(&self, at: usize, number: u64) -> Self {
        let mut all = BytesMut::from(&self.0[..]);
        if let Some(place) = all.get_mut(at..at + 8) {
            place.copy_from_slice(&number.to_be_bytes());
        }
        Self(all.freeze())
    }

    /// Parses and checks what [`Self::as_bytes`] returned.
    pub(crate) fn from_bytes(bytes: Bytes) -> Option<Self> {
        let message = Self(bytes);
        let topic = message.part(0, message.topic_len()?)?;
        message.part(topic.len(), message.properties_len()?)?;
        std::str::from_utf8(topic).is_ok().then_some(message)
    }

    /// Returns all bytes, for the router's log and the journal.
    pub(crate) fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    fn array<const N: usize>(&self, from: usize) -> Option<[u8; N]> {
        self.0.get(from..from + N)?.try_into().ok()
    }

    fn topic_len(&self) -> Option<usize> {
        self.array(17).map(u16::from_be_bytes).map(usize::from)
    }

    fn properties_len(&self) -> Option<usize> {
        usize::try_from(u32::from_be_bytes(self.array(19)?)).ok()
    }

    /// Returns `length` bytes from `from` bytes after the header.
    fn part(&self, from: usize, length: usize) -> Option<&[u8]> {
        let start = HEADER_BYTES.checked_add(from)?;
        self.0.get(start..start.checked_add(length)?)
    }

    pub(crate) fn topic(&self) -> &str {
        let topic = self.topic_len().and_then(|length| self.part(0, length)).unwrap_or_default();
        // It was valid UTF-8 when it arrived; if it were not, no client could be permitted to read the topic "".
        std::str::from_utf8(topic).unwrap_or_default()
    }

    /// Returns the encoded properties that are forwarded: all but topic alias, expiry and subscription identifiers.
    pub(crate) fn properties(&self) -> &[u8] {
        let range = self.topic_len().zip(self.properties_len());
        range.and_then(|(from, length)| self.part(from, length)).unwrap_or_default()
    }

    pub(crate) fn payload(&self) -> &[u8] {
        let lengths = self.topic_len().zip(self.properties_len());
        lengths.and_then(|(topic, properties)| self.0.get(HEADER_BYTES + topic + properties..)).unwrap_or_default()
    }

    fn flag(&self, flag: u8) -> bool {
        self.0.first().is_some_and(|flags| flags & flag != 0)
    }

    pub(crate) fn qos(&self) -> QoS {
        if self.flag(FLAG_QOS_1) { QoS::AtLeastOnce } else { QoS::AtMostOnce }
    }

    /// Whether it is to be retained, or was.
    pub(crate) fn retain(&self) -> bool {
        self.flag(FLAG_RETAIN)
    }

    /// Returns the number of the publisher's session; 0 for the broker itself.
    pub(crate) fn from(&self) -> u64 {
        self.array(1).map(u64::from_be_bytes).unwrap_or_default()
    }

    /// Returns its expiry, in milliseconds of Unix time.
    pub(crate) fn expires_ms(&self) -> Option<u64> {
        self.array(9).map(u64::from_be_bytes).filter(|expires_ms| *expires_ms != 0)
    }

    /// Whether it has expired.
    pub(crate) fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_ms().is_some_and(|expires_ms| expires_ms <= now_ms)
    }

    /// Returns its size in memory.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
impl BrokerMessage {
    /// Returns a message of QoS 1 from the broker itself.
    pub(crate) fn plain(topic: &str, payload: &str, retain: bool) -> Self {
        let publication = Publication { retain, ..publication(topic, payload.as_bytes()) };
        Self::new(&publication, 0, 0)
    }
}

#[cfg(test)]
pub(crate) fn publication<'a>(topic: &'a str, payload: &'a [u8]) -> Publication<'a> {
    let (qos, retain, properties) = (QoS::AtLeastOnce, false, Default::default());
    Publication { topic, payload, qos, retain, properties, expiry_s: None, alias: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_message_survives_its_way_through_the_router(
            topic in "[a-zé/]{0,9}", payload: Vec<u8>, properties: Vec<u8>, qos_1: bool, retain: bool,
            expiry_s in proptest::option::of(0_u32..), from: u64, now_ms in 0_u64..4_000_000_000_000,
        ) {
            let qos = if qos_1 { QoS::AtLeastOnce } else { QoS::AtMostOnce };
            let sent = Publication { qos, retain, properties: properties.clone().into(), expiry_s, ..publication(&topic, &payload) };
            let message = BrokerMessage::new(&sent, from, now_ms);
            let back = BrokerMessage::from_bytes(Bytes::copy_from_slice(message.as_bytes())).unwrap();
            prop_assert_eq!(&back, &message);
            prop_assert_eq!((back.topic(), back.payload(), back.properties()), (&*topic, &payload[..], &properties[..]));
            prop_assert_eq!((back.qos(), back.retain(), back.from()), (qos, retain, from));
            prop_assert_eq!(back.expires_ms(), expiry_s.map(|s| (now_ms + u64::from(s) * 1000).max(1)));
            prop_assert_eq!(back.len(), HEADER_BYTES + topic.len() + payload.len() + properties.len());
        }

        #[test]
        fn invalid_bytes_are_not_a_message(bytes: Vec<u8>) {
            if let Some(message) = BrokerMessage::from_bytes(bytes.into()) {
                prop_assert_eq!(message.len(), HEADER_BYTES + message.topic().len() + message.properties().len() + message.payload().len());
            }
        }
    }

    #[test]
    fn expired_message_is_dropped() {
        let publication = Publication { expiry_s: Some(2), ..publication("a", b"") };
        let message = BrokerMessage::new(&publication, 0, 1000);
        assert!(!message.is_expired(2999) && message.is_expired(3000));
        assert!(!BrokerMessage::plain("a", "", false).is_expired(u64::MAX));
        assert_eq!(BrokerMessage::from_bytes(Bytes::from_static(b"too short")), None);
        let later = BrokerMessage::plain("a", "b", true).expiring(7);
        assert_eq!(
            (later.topic(), later.payload(), later.retain(), later.expires_ms()),
            ("a", &b"b"[..], true, Some(7))
        );
        let passing = later.passing();
        assert_eq!((passing.topic(), passing.payload(), passing.retain()), ("a", &b"b"[..], false));
    }
}

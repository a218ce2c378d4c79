//! MQTT 5's properties (its section 2.2.2).
//!
//! **Invariant: [`PropertyReader`] passes on only what it has checked.** Properties of a publication are
//! therefore forwarded to subscribers byte by byte.

use std::borrow::Cow;

use super::{malformed::Malformed, reader::BodyReader};

/// Identifiers (table 2-4).
pub(super) mod id {
    pub(in crate::codec) const PAYLOAD_FORMAT: u8 = 0x01;
    pub(in crate::codec) const MESSAGE_EXPIRY: u8 = 0x02;
    pub(in crate::codec) const CONTENT_TYPE: u8 = 0x03;
    pub(in crate::codec) const RESPONSE_TOPIC: u8 = 0x08;
    pub(in crate::codec) const CORRELATION_DATA: u8 = 0x09;
    pub(in crate::codec) const SUBSCRIPTION_ID: u8 = 0x0b;
    pub(in crate::codec) const SESSION_EXPIRY: u8 = 0x11;
    pub(in crate::codec) const ASSIGNED_CLIENT_ID: u8 = 0x12;
    pub(in crate::codec) const SERVER_KEEP_ALIVE: u8 = 0x13;
    pub(in crate::codec) const AUTH_METHOD: u8 = 0x15;
    pub(in crate::codec) const AUTH_DATA: u8 = 0x16;
    pub(in crate::codec) const REQUEST_PROBLEM: u8 = 0x17;
    pub(in crate::codec) const WILL_DELAY: u8 = 0x18;
    pub(in crate::codec) const REQUEST_RESPONSE: u8 = 0x19;
    pub(in crate::codec) const SERVER_REFERENCE: u8 = 0x1c;
    pub(in crate::codec) const REASON_STRING: u8 = 0x1f;
    pub(in crate::codec) const RECEIVE_MAX: u8 = 0x21;
    pub(in crate::codec) const TOPIC_ALIAS_MAX: u8 = 0x22;
    pub(in crate::codec) const TOPIC_ALIAS: u8 = 0x23;
    pub(in crate::codec) const QOS_MAX: u8 = 0x24;
    pub(in crate::codec) const RETAIN_AVAILABLE: u8 = 0x25;
    pub(in crate::codec) const USER: u8 = 0x26;
    pub(in crate::codec) const PACKET_MAX: u8 = 0x27;
    pub(in crate::codec) const WILDCARD_AVAILABLE: u8 = 0x28;
    pub(in crate::codec) const SUBSCRIPTION_ID_AVAILABLE: u8 = 0x29;
    pub(in crate::codec) const SHARED_AVAILABLE: u8 = 0x2a;
}

/// The properties that a packet may have: one bit for each identifier, of which the highest is 0x2a.
#[derive(Clone, Copy, Debug)]
pub(super) struct AllowedProperties(u64);

impl AllowedProperties {
    const fn new(identifiers: &[u8]) -> Self {
        let mut bits = 0;
        let mut rest = identifiers;
        while let [first, others @ ..] = rest {
            bits |= 1 << *first;
            rest = others;
        }
        Self(bits)
    }
}

pub(super) const CONNECT: AllowedProperties = AllowedProperties::new(&[
    id::SESSION_EXPIRY,
    id::AUTH_METHOD,
    id::AUTH_DATA,
    id::REQUEST_PROBLEM,
    id::REQUEST_RESPONSE,
    id::RECEIVE_MAX,
    id::TOPIC_ALIAS_MAX,
    id::USER,
    id::PACKET_MAX,
]);
pub(super) const WILL: AllowedProperties = AllowedProperties::new(&[
    id::PAYLOAD_FORMAT,
    id::MESSAGE_EXPIRY,
    id::CONTENT_TYPE,
    id::RESPONSE_TOPIC,
    id::CORRELATION_DATA,
    id::WILL_DELAY,
    id::USER,
]);
pub(super) const PUBLISH: AllowedProperties = AllowedProperties::new(&[
    id::PAYLOAD_FORMAT,
    id::MESSAGE_EXPIRY,
    id::CONTENT_TYPE,
    id::RESPONSE_TOPIC,
    id::CORRELATION_DATA,
    id::SUBSCRIPTION_ID,
    id::TOPIC_ALIAS,
    id::USER,
]);
pub(super) const PUBACK: AllowedProperties = AllowedProperties::new(&[id::REASON_STRING, id::USER]);
pub(super) const SUBSCRIBE: AllowedProperties = AllowedProperties::new(&[id::SUBSCRIPTION_ID, id::USER]);
pub(super) const UNSUBSCRIBE: AllowedProperties = AllowedProperties::new(&[id::USER]);
pub(super) const DISCONNECT: AllowedProperties =
    AllowedProperties::new(&[id::SESSION_EXPIRY, id::SERVER_REFERENCE, id::REASON_STRING, id::USER]);

/// The value of a property, as far as the broker uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Property {
    /// It is forwarded with the message: payload format, content type, response topic, correlation data, user property.
    PassedOn,
    /// It is valid, and ignored.
    Ignored,
    MessageExpiry(u32),
    SubscriptionId(u32),
    SessionExpiry(u32),
    AuthMethod,
    AuthData,
    RequestProblem(bool),
    WillDelay(u32),
    ReceiveMax(u16),
    TopicAlias(u16),
    PacketMax(u32),
}

impl Property {
    /// Parses and checks the value of `identifier`.
    fn read(identifier: u8, reader: &mut BodyReader<'_>) -> Result<Self, Malformed> {
        let invalid = Err(Malformed::PropertyValue(identifier));
        Ok(match identifier {
            id::PAYLOAD_FORMAT if reader.u8()? > 1 => return invalid,
            id::PAYLOAD_FORMAT => Self::PassedOn,
            id::CONTENT_TYPE => reader.text().map(|_| Self::PassedOn)?,
            id::RESPONSE_TOPIC => match reader.text()? {
                // [MQTT-3.3.2-14], [MQTT-4.7.3-1]
                topic if topic.is_empty() || topic.contains(['+', '#']) => return invalid,
                _ => Self::PassedOn,
            },
            id::CORRELATION_DATA => reader.bytes().map(|_| Self::PassedOn)?,
            id::USER => reader.text().and(reader.text()).map(|_| Self::PassedOn)?,
            id::MESSAGE_EXPIRY => Self::MessageExpiry(reader.u32()?),
            id::SUBSCRIPTION_ID => match reader.varint()? {
                0 => return invalid,
                number => Self::SubscriptionId(number),
            },
            id::SESSION_EXPIRY => Self::SessionExpiry(reader.u32()?),
            id::AUTH_METHOD => reader.text().map(|_| Self::AuthMethod)?,
            id::AUTH_DATA => reader.bytes().map(|_| Self::AuthData)?,
            id::REQUEST_PROBLEM => match reader.u8()? {
                flag @ 0..=1 => Self::RequestProblem(flag == 1),
                _ => return invalid,
            },
            id::REQUEST_RESPONSE if reader.u8()? > 1 => return invalid,
            id::REQUEST_RESPONSE => Self::Ignored,
            id::WILL_DELAY => Self::WillDelay(reader.u32()?),
            id::REASON_STRING => reader.text().map(|_| Self::Ignored)?,
            id::RECEIVE_MAX => match reader.u16()? {
                0 => return invalid,
                max => Self::ReceiveMax(max),
            },
            id::TOPIC_ALIAS_MAX => reader.u16().map(|_| Self::Ignored)?,
            id::TOPIC_ALIAS => match reader.u16()? {
                // [MQTT-3.3.2-8]
                0 => return Err(Malformed::TopicAlias),
                alias => Self::TopicAlias(alias),
            },
            id::PACKET_MAX => match reader.u32()? {
                0 => return invalid,
                max => Self::PacketMax(max),
            },
            id::SERVER_REFERENCE => return Err(Malformed::ServerProperty(identifier)),
            other => return Err(Malformed::Property(other.into())),
        })
    }
}

/// Reads the properties of one packet.
#[derive(Debug)]
pub(super) struct PropertyReader<'a> {
    all: &'a [u8],
    rest: BodyReader<'a>,
    allowed: AllowedProperties,
    seen: u64,
    passed_on: Cow<'a, [u8]>,
    /// Where the forwarded ones are in `all`, as long as they are one piece.
    piece: Option<(usize, usize)>,
}

impl<'a> PropertyReader<'a> {
    /// Takes the properties with their length.
    pub(super) fn take(reader: &mut BodyReader<'a>, allowed: AllowedProperties) -> Result<Self, Malformed> {
        let length = reader.varint()?;
        let all = reader.take(usize::try_from(length).map_err(|_| Malformed::Short)?)?;
        let passed_on = Cow::Borrowed(&[][..]);
        Ok(Self { all, rest: BodyReader::new(all), allowed, seen: 0, passed_on, piece: Some((0, 0)) })
    }

    /// Returns the next property, after checking that it is allowed and its value is valid.
    pub(super) fn next(&mut self) -> Result<Option<Property>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let from = self.all.len() - self.rest.len();
        let number = self.rest.varint()?;
        let identifier = u8::try_from(number).map_err(|_| Malformed::Property(number))?;
        let bit = 1_u64.checked_shl(number).unwrap_or_default();
        if self.allowed.0 & bit == 0 {
            return Err(Malformed::Property(number));
        }
        // A client's packets have a subscription identifier once at most, too.
        if self.seen & bit != 0 && identifier != id::USER {
            return Err(Malformed::PropertyTwice(identifier));
        }
        self.seen |= bit;
        let property = Property::read(identifier, &mut self.rest)?;
        if property == Property::PassedOn {
            self.pass_on(from);
        }
        Ok(Some(property))
    }

    /// Marks what was just read as forwarded. Usually that is everything, or all but the first or the last, and then
    /// nothing is copied.
    fn pass_on(&mut self, from: usize) {
        let to = self.all.len() - self.rest.len();
        let part = |from, to| self.all.get(from..to).unwrap_or_default();
        match self.piece {
            Some((start, end)) if start == end => {
                self.piece = Some((from, to));
                self.passed_on = Cow::Borrowed(part(from, to));
            }
            Some((start, end)) if end == from => {
                self.piece = Some((start, to));
                self.passed_on = Cow::Borrowed(part(start, to));
            }
            _ => {
                self.piece = None;
                let part = part(from, to);
                self.passed_on.to_mut().extend_from_slice(part);
            }
        }
    }

    /// Returns the forwarded properties.
    pub(super) fn passed_on(self) -> Cow<'a, [u8]> {
        self.passed_on
    }

    /// Reads properties that only have to be valid.
    pub(super) fn skip(mut self) -> Result<(), Malformed> {
        while self.next()?.is_some() {}
        Ok(())
    }
}

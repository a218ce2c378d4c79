//! The edge's codec: bytes to packets and back.
//!
//! What packets mean is the same for every version of MQTT ([`Request`], [`Answer`]); how they are written is the
//! business of one module per version, chosen by the CONNECT. Modules, in reading order:
//!
//! - this one: frames, and what packets mean
//! - `connect`, `reason`, `malformed`: what a client says first; how something went; what is wrong with bytes
//! - `reader`, `writer`: what packets consist of
//! - `v311`; `property` and `v5`: the versions
//! - for tests: `client`, the other direction; `fuzzing`, what must hold for any bytes; `peers`, another codec's view
//!
//! **Invariant: nothing here trusts a byte.** Every read is checked against what is there, lengths against limits
//! before anything is kept, and there is no indexing.
//!
//! Numbers such as [MQTT-3.1.2-4] are the standard's: OASIS, MQTT 3.1.1 of 29 October 2014, or MQTT 5.0 of 7 March 2019.

#[cfg(any(test, feature = "fuzzing"))]
mod client;
mod connect;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod malformed;
#[cfg(test)]
mod peers;
mod property;
mod reader;
mod reason;
mod v311;
mod v5;
mod writer;

use std::borrow::Cow;

use bytes::BytesMut;

use self::reader::Reader;
pub(crate) use self::{
    connect::{Connect, Will},
    malformed::Malformed,
    reason::Reason,
};
use crate::message::QoS;

/// MQTT's own limit of what follows the fixed header.
pub(crate) const PACKET_MAX_BYTES: usize = 268_435_455;

/// Packet types.
mod kind {
    pub(super) const CONNECT: u8 = 1;
    pub(super) const CONNACK: u8 = 2;
    pub(super) const PUBLISH: u8 = 3;
    pub(super) const PUBACK: u8 = 4;
    pub(super) const SUBSCRIBE: u8 = 8;
    pub(super) const SUBACK: u8 = 9;
    pub(super) const UNSUBSCRIBE: u8 = 10;
    pub(super) const UNSUBACK: u8 = 11;
    pub(super) const PINGREQ: u8 = 12;
    pub(super) const PINGRESP: u8 = 13;
    pub(super) const DISCONNECT: u8 = 14;
}

/// A version of the protocol that the broker speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// MQTT 3.1.1.
    V311,
    /// MQTT 5.
    V5,
}

/// One packet as it lies in the read buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    /// Packet type, in the upper half.
    kind: u8,
    /// Flags, in the lower half.
    flags: u8,
    /// Whether its length takes more bytes than it needs, which only MQTT 5 forbids.
    overlong: bool,
    body: &'a [u8],
}

/// A message as a client sent it: nothing about it was checked but its form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Publication<'a> {
    /// Empty: what `alias` stands for.
    pub(crate) topic: &'a str,
    pub(crate) payload: &'a [u8],
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    /// What MQTT 5 hands on with a message, encoded, without a length in front.
    pub(crate) properties: Cow<'a, [u8]>,
    pub(crate) expiry_s: Option<u32>,
    pub(crate) alias: Option<u16>,
}

/// What a connected client may send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request<'a> {
    Publish {
        /// To be acknowledged, for [`QoS::AtLeastOnce`].
        packet_id: Option<u16>,
        publication: Publication<'a>,
    },
    /// It has the message of this id, or wants it no more.
    PubAck(u16),
    Subscribe {
        packet_id: u16,
        /// The subscription identifier of all filters.
        id: Option<u32>,
        filters: Vec<(&'a str, Options)>,
    },
    Unsubscribe {
        packet_id: u16,
        filters: Vec<&'a str>,
    },
    Ping,
    Disconnect {
        /// Whether the last will is published all the same.
        keep_will: bool,
        /// Another one than CONNECT had.
        session_expiry_s: Option<u32>,
    },
}

/// How a client wants the messages of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// To be granted: what was asked for, at most [`QoS::AtLeastOnce`].
    pub(crate) qos: QoS,
    /// Without its own.
    pub(crate) no_local: bool,
    /// With the retain flag that they were published with.
    pub(crate) as_published: bool,
    pub(crate) handling: RetainHandling,
}

impl Options {
    /// What 3.1.1 has.
    fn plain(qos: QoS) -> Self {
        Self { qos, no_local: false, as_published: false, handling: RetainHandling::Always }
    }
}

/// When a SUBSCRIBE brings retained messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetainHandling {
    Always,
    /// If the subscription did not exist.
    IfNew,
    Never,
}

/// What the broker sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer<'a> {
    ConnAck(ConnAck<'a>),
    Publish(Delivery<'a>),
    PubAck {
        packet_id: u16,
        reason: Reason,
    },
    SubAck {
        packet_id: u16,
        /// One for each filter, in order.
        reasons: &'a [Reason],
    },
    UnsubAck {
        packet_id: u16,
        /// One for each filter, in order.
        reasons: &'a [Reason],
    },
    Pong,
    /// 3.1.1 has no such packet from a server: nothing is written.
    Disconnect(Reason),
}

/// The answer to a CONNECT. Of one that is refused only the reason is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnAck<'a> {
    pub(crate) reason: Reason,
    pub(crate) session_present: bool,
    /// The client id, if the broker chose it.
    pub(crate) assigned_client_id: Option<&'a str>,
    /// The keep-alive, if it is not the client's.
    pub(crate) server_keep_alive_s: Option<u16>,
    /// The session expiry, if it is not the client's.
    pub(crate) session_expiry_s: Option<u32>,
    pub(crate) receive_max: u16,
    pub(crate) packet_max_bytes: u32,
    pub(crate) alias_max: u16,
}

impl ConnAck<'_> {
    /// A refusal.
    pub(crate) fn refused(reason: Reason) -> Self {
        Self {
            reason,
            session_present: false,
            assigned_client_id: None,
            server_keep_alive_s: None,
            session_expiry_s: None,
            receive_max: 0,
            packet_max_bytes: 0,
            alias_max: 0,
        }
    }
}

/// A message for a client. Its packet must not be larger than [`PACKET_MAX_BYTES`], which [`Version::publish_len`]
/// tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delivery<'a> {
    /// Present for [`QoS::AtLeastOnce`].
    pub(crate) packet_id: Option<u16>,
    /// Whether it was sent before under the same id.
    pub(crate) dup: bool,
    pub(crate) retain: bool,
    pub(crate) topic: &'a str,
    pub(crate) payload: &'a [u8],
    /// As [`Publication`] has them. 3.1.1 has none.
    pub(crate) properties: &'a [u8],
    /// What is left of it.
    pub(crate) expiry_s: Option<u32>,
    pub(crate) subscription_id: Option<u32>,
}

impl Delivery<'_> {
    /// The first byte of its packet.
    fn header(&self) -> u8 {
        let qos = u8::from(self.packet_id.is_some());
        // [MQTT-3.3.1-2]
        let dup = qos & u8::from(self.dup);
        kind::PUBLISH << 4 | dup << 3 | qos << 1 | u8::from(self.retain)
    }
}

/// The first whole packet in `input` and how many bytes it takes; nothing if more must come first.
pub(crate) fn frame(input: &[u8], max: usize) -> Result<Option<(Frame<'_>, usize)>, Malformed> {
    let Some((&first, rest)) = input.split_first() else { return Ok(None) };
    let mut length = 0_usize;
    let mut length_bytes = 0_usize;
    let last = loop {
        let Some(&byte) = rest.get(length_bytes) else { return Ok(None) };
        length |= usize::from(byte & 0x7f) << (7 * length_bytes);
        length_bytes += 1;
        if byte & 0x80 == 0 {
            break byte;
        }
        if length_bytes == 4 {
            return Err(Malformed::Length);
        }
    };
    let header = 1 + length_bytes;
    if header + length > max {
        return Err(Malformed::TooLarge);
    }
    let Some(body) = input.get(header..header + length) else { return Ok(None) };
    let overlong = last == 0 && length_bytes > 1;
    Ok(Some((Frame { kind: first >> 4, flags: first & 0x0f, overlong, body }, header + length)))
}

/// How many more bytes the packet at the start of `input` needs at least, for a client whose CONNECT or large message
/// comes in pieces.
pub(crate) fn missing(input: &[u8]) -> usize {
    let mut length = 0_usize;
    for (index, &byte) in input.iter().skip(1).take(4).enumerate() {
        length |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return (index + 2 + length).saturating_sub(input.len());
        }
    }
    0
}

impl Frame<'_> {
    /// The packet type, if a connected client may send it and its flags are that type's. PUBLISH has flags of its own.
    fn request_kind(&self) -> Result<u8, Malformed> {
        let flags = match self.kind {
            kind::PUBLISH => self.flags,
            kind::SUBSCRIBE | kind::UNSUBSCRIBE => 0b0010,
            kind::PUBACK | kind::PINGREQ | kind::DISCONNECT => 0,
            other => return Err(Malformed::Type(other)),
        };
        if self.flags == flags { Ok(self.kind) } else { Err(Malformed::Flags) }
    }

    /// What the flags of a PUBLISH say: quality of service and retain. That it was sent before is of no use: it may or
    /// may not have been taken then.
    fn publish_flags(&self) -> Result<(QoS, bool), Malformed> {
        let dup = self.flags & 0b1000 != 0;
        let qos = match (self.flags >> 1) & 3 {
            // [MQTT-3.3.1-2]
            0 if dup => return Err(Malformed::Flags),
            0 => QoS::AtMostOnce,
            1 => QoS::AtLeastOnce,
            2 => return Err(Malformed::QoS2),
            // [MQTT-3.3.1-4]
            _ => return Err(Malformed::QoS),
        };
        Ok((qos, self.flags & 0b0001 != 0))
    }
}

/// What the start of a CONNECT says of its version, and what follows it.
fn level<'a>(frame: &Frame<'a>) -> Result<(Version, Reader<'a>), Malformed> {
    if frame.kind != kind::CONNECT {
        return Err(Malformed::NotConnect);
    }
    if frame.flags != 0 {
        return Err(Malformed::Flags);
    }
    let mut reader = Reader::new(frame.body);
    match (reader.text()?, reader.u8()?) {
        ("MQTT", 4) => Ok((Version::V311, reader)),
        ("MQTT", 5) => Ok((Version::V5, reader)),
        ("MQTT" | "MQIsdp", level) => Err(Malformed::Level(level)),
        _ => Err(Malformed::NotMqtt),
    }
}

/// Reads the first packet of a connection.
pub(crate) fn connect<'a>(frame: &Frame<'a>) -> Result<Connect<'a>, Malformed> {
    match level(frame)? {
        (Version::V311, reader) => v311::connect(reader),
        (Version::V5, _) if frame.overlong => Err(Malformed::Overlong),
        (Version::V5, reader) => v5::connect(reader),
    }
}

/// Writes the CONNACK for a CONNECT that [`connect`] finds `malformed`, in the words of its own version; nothing if that
/// has no words for it.
pub(crate) fn refuse(frame: &Frame<'_>, malformed: Malformed, out: &mut BytesMut) {
    match malformed {
        Malformed::Level(level) => refuse_level(level, out),
        _ => {
            if let Ok((Version::V5, _)) = level(frame) {
                Version::V5.encode(&Answer::ConnAck(ConnAck::refused(malformed.reason())), out);
            }
        }
    }
}

/// The CONNACK for a client whose protocol level is not spoken here: since MQTT 5 there are reason codes and properties,
/// every earlier one has a return code. Mosquitto's bridges set the highest bit of theirs at first.
pub(crate) fn refuse_level(level: u8, out: &mut BytesMut) {
    out.extend_from_slice(if level & 0x7f >= 5 { &[0x20, 3, 0, 0x84, 0] } else { &[0x20, 2, 0, 1] });
}

impl Version {
    /// Reads a packet of a connected client.
    pub(crate) fn decode<'a>(self, frame: &Frame<'a>) -> Result<Request<'a>, Malformed> {
        match self {
            Self::V311 => v311::decode(frame),
            Self::V5 => v5::decode(frame),
        }
    }

    /// Appends `answer` to `out`.
    pub(crate) fn encode(self, answer: &Answer<'_>, out: &mut BytesMut) {
        match self {
            Self::V311 => v311::encode(answer, out),
            Self::V5 => v5::encode(answer, out),
        }
    }

    /// How large the packet of a message is, with its header.
    pub(crate) fn publish_len(self, delivery: &Delivery<'_>) -> usize {
        let rest = match self {
            Self::V311 => v311::delivery_len(delivery),
            Self::V5 => v5::delivery_len(delivery),
        };
        1 + writer::length_len(rest) + rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], expected: Result<Option<(u8, usize)>, Malformed>) {
        assert_eq!(
            frame(bytes, 1000).map(|found| found.map(|(frame, used)| (frame.kind, used))),
            expected,
            "{bytes:?}"
        );
    }

    #[test]
    fn frames() {
        check(&[], Ok(None));
        check(&[0xc0], Ok(None));
        check(&[0xc0, 0], Ok(Some((12, 2))));
        check(&[0xc0, 0, 0xc0, 0], Ok(Some((12, 2))));
        check(&[0x30, 3, 0, 1], Ok(None));
        check(&[0x30, 0x80], Ok(None));
        check(&[0x30, 0xff, 0xff, 0xff], Ok(None));
        check(&[0x30, 0xff, 0xff, 0xff, 0xff], Err(Malformed::Length));
        check(&[0x30, 0xff, 0xff, 0xff, 0x7f], Err(Malformed::TooLarge));
        // A thousand bytes with the header is the limit here, one more is not.
        check(&[0x30, 0xe5, 0x07], Ok(None));
        check(&[0x30, 0xe6, 0x07], Err(Malformed::TooLarge));
    }

    #[test]
    fn what_is_missing() {
        for (bytes, expected) in
            [(&[][..], 0), (&[0x30], 0), (&[0x30, 5], 5), (&[0x30, 0x80, 1, 9], 127), (&[0xc0, 0], 0)]
        {
            assert_eq!(missing(bytes), expected, "{bytes:?}");
        }
    }

    fn greeting(name: &str, level: u8) -> Vec<u8> {
        let length = u8::try_from(name.len()).unwrap();
        let rest: &[u8] = if level == 5 { b"\x02\0\x3c\0\0\x01a" } else { b"\x02\0\x3c\0\x01a" };
        [&[0, length], name.as_bytes(), &[level], rest].concat()
    }

    #[test]
    fn levels() {
        for (name, level, expected, said) in [
            ("MQTT", 4, Ok(Version::V311), &[][..]),
            ("MQTT", 5, Ok(Version::V5), &[]),
            ("MQTT", 3, Err(Malformed::Level(3)), &[0x20, 2, 0, 1]),
            ("MQTT", 6, Err(Malformed::Level(6)), &[0x20, 3, 0, 0x84, 0]),
            ("MQTT", 0x84, Err(Malformed::Level(0x84)), &[0x20, 2, 0, 1]),
            ("MQIsdp", 3, Err(Malformed::Level(3)), &[0x20, 2, 0, 1]),
            ("WEB", 4, Err(Malformed::NotMqtt), &[]),
        ] {
            let body = greeting(name, level);
            let frame = Frame { kind: 1, flags: 0, overlong: false, body: &body };
            let connected = connect(&frame);
            assert_eq!(connected.as_ref().map(|connect| connect.version).map_err(|malformed| *malformed), expected);
            let mut out = BytesMut::new();
            if let Err(malformed) = connected {
                refuse(&frame, malformed, &mut out);
            }
            assert_eq!(&out[..], said, "{name} {level}");
        }
    }

    #[test]
    fn broken_connects_are_refused_where_there_are_words() {
        for (level, flags, expected) in
            [(5, 1, &[0x20, 3, 0, 0x81, 0][..]), (5, 0x16, &[0x20, 3, 0, 0x9b, 0]), (4, 1, &[])]
        {
            let mut body = greeting("MQTT", level);
            body[7] = flags;
            let frame = Frame { kind: 1, flags: 0, overlong: false, body: &body };
            let mut out = BytesMut::new();
            refuse(&frame, connect(&frame).unwrap_err(), &mut out);
            assert_eq!(&out[..], expected, "{level} {flags}");
        }
    }
}

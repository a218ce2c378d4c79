//! The edge's codec: bytes to packets and back.
//!
//! What packets mean is the same for every version of MQTT ([`Request`], [`Answer`]); how they are written is the
//! business of one module per version. There is [`v311`]; MQTT 5 comes in as a second variant of [`Version`] with a
//! module of its own, chosen by the CONNECT, and nothing behind this module changes for it.
//!
//! **Invariant: nothing here trusts a byte.** Every read is checked against what is there, lengths against limits
//! before anything is kept, and there is no indexing.

mod reader;
pub(crate) mod v311;

use bytes::BytesMut;

use self::reader::Reader;
use crate::message::{Message, QoS};

/// MQTT's own limit of what follows the fixed header.
pub(crate) const PACKET_MAX_BYTES: usize = 268_435_455;

/// Why bytes are not what a client may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("a packet ends before its content does")]
    Short,
    #[error("a packet goes on after its content")]
    Long,
    #[error("a length of more than four bytes")]
    Length,
    #[error("a packet larger than the limit")]
    TooLarge,
    #[error("a text that is not UTF-8, or has a NUL in it")]
    Text,
    #[error("packet type {0}, which a client may not send here")]
    Type(u8),
    #[error("flags of the fixed header that its packet type does not have")]
    Flags,
    #[error("a quality of service that there is not")]
    QoS,
    #[error("quality of service 2, which this broker does not take")]
    QoS2,
    #[error("packet identifier 0")]
    PacketId,
    #[error("no topic filter in a subscribe or unsubscribe")]
    NoFilters,
    #[error("connect flags that contradict each other")]
    ConnectFlags,
    #[error("a first packet that is no CONNECT")]
    NotConnect,
    #[error("a protocol name that is not MQTT's")]
    NotMqtt,
    #[error("protocol level {0}, which this broker does not speak")]
    Level(u8),
}

/// A version of the protocol that the broker speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// MQTT 3.1.1.
    V311,
}

/// One packet as it lies in the read buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    /// Packet type, in the upper half.
    kind: u8,
    /// Flags, in the lower half.
    flags: u8,
    body: &'a [u8],
}

/// What a client says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Connect<'a> {
    pub(crate) version: Version,
    /// Empty: the broker is to choose.
    pub(crate) client_id: &'a str,
    /// Whether an earlier session is to be forgotten.
    pub(crate) clean: bool,
    pub(crate) keep_alive_s: u16,
    pub(crate) will: Option<Publication<'a>>,
    pub(crate) user: Option<&'a str>,
    pub(crate) password: Option<&'a [u8]>,
}

/// A message as a client sent it: nothing about it was checked but its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Publication<'a> {
    pub(crate) topic: &'a str,
    pub(crate) payload: &'a [u8],
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
}

/// What a connected client may send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request<'a> {
    Publish {
        /// To be acknowledged, for [`QoS::AtLeastOnce`].
        packet_id: Option<u16>,
        publication: Publication<'a>,
    },
    /// It has the message of this id.
    PubAck(u16),
    Subscribe {
        packet_id: u16,
        /// With the quality of service to grant: what was asked for, at most [`QoS::AtLeastOnce`].
        filters: Vec<(&'a str, QoS)>,
    },
    Unsubscribe {
        packet_id: u16,
        filters: Vec<&'a str>,
    },
    Ping,
    Disconnect,
}

/// What a CONNECT is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Welcome {
    Accepted,
    ClientIdRefused,
    /// A limit is reached, or the broker is not ready.
    Unavailable,
    /// User name or password are wrong.
    BadCredentials,
    NotAuthorized,
}

/// What the broker sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer<'a> {
    ConnAck(Welcome),
    Publish {
        /// Present for [`QoS::AtLeastOnce`].
        packet_id: Option<u16>,
        message: &'a Message,
        /// Whether it is sent because it was retained.
        retained: bool,
    },
    PubAck(u16),
    SubAck {
        packet_id: u16,
        /// For each filter the quality of service that is granted, or nothing if it is refused.
        granted: &'a [Option<QoS>],
    },
    UnsubAck(u16),
    Pong,
}

/// The first whole packet in `buffer` and how many bytes it takes; nothing if more must come first.
pub(crate) fn frame(buffer: &[u8], max_bytes: usize) -> Result<Option<(Frame<'_>, usize)>, Malformed> {
    let Some((&first, rest)) = buffer.split_first() else { return Ok(None) };
    let mut length = 0_usize;
    let mut length_bytes = 0_usize;
    loop {
        let Some(&byte) = rest.get(length_bytes) else { return Ok(None) };
        length |= usize::from(byte & 0x7f) << (7 * length_bytes);
        length_bytes += 1;
        if byte & 0x80 == 0 {
            break;
        }
        if length_bytes == 4 {
            return Err(Malformed::Length);
        }
    }
    let header = 1 + length_bytes;
    if header + length > max_bytes {
        return Err(Malformed::TooLarge);
    }
    let Some(body) = buffer.get(header..header + length) else { return Ok(None) };
    Ok(Some((Frame { kind: first >> 4, flags: first & 0x0f, body }, header + length)))
}

/// How many more bytes the packet at the start of `buffer` needs at least, for a client whose CONNECT or large message
/// comes in pieces.
pub(crate) fn missing(buffer: &[u8]) -> usize {
    let mut length = 0_usize;
    for (index, &byte) in buffer.iter().skip(1).take(4).enumerate() {
        length |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return (index + 2 + length).saturating_sub(buffer.len());
        }
    }
    0
}

/// Reads the first packet of a connection.
pub(crate) fn connect<'a>(frame: &Frame<'a>) -> Result<Connect<'a>, Malformed> {
    if frame.kind != 1 {
        return Err(Malformed::NotConnect);
    }
    if frame.flags != 0 {
        return Err(Malformed::Flags);
    }
    let mut reader = Reader::new(frame.body);
    let name = reader.text()?;
    let level = reader.u8()?;
    match (name, level) {
        ("MQTT", 4) => v311::connect(reader),
        ("MQTT" | "MQIsdp", level) => Err(Malformed::Level(level)),
        _ => Err(Malformed::NotMqtt),
    }
}

/// The CONNACK for a client whose protocol level is not spoken here, in the words of its own version: MQTT 5 has reason
/// codes and properties, every earlier one a return code.
pub(crate) fn refuse_level(level: u8, out: &mut BytesMut) {
    out.extend_from_slice(if level >= 5 { &[0x20, 3, 0, 0x84, 0] } else { &[0x20, 2, 0, 1] });
}

impl Version {
    /// Reads a packet of a connected client.
    pub(crate) fn decode<'a>(self, frame: &Frame<'a>) -> Result<Request<'a>, Malformed> {
        match self {
            Self::V311 => v311::decode(frame),
        }
    }

    /// Appends `answer` to `out`.
    pub(crate) fn encode(self, answer: &Answer<'_>, out: &mut BytesMut) {
        match self {
            Self::V311 => v311::encode(answer, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    #[test]
    fn levels() {
        let body = |level: u8| [&[0, 4][..], b"MQTT", &[level, 2, 0, 60, 0, 1, b'a']].concat();
        for (level, expected) in [(4, None), (3, Some(Malformed::Level(3))), (5, Some(Malformed::Level(5)))] {
            let body = body(level);
            assert_eq!(connect(&Frame { kind: 1, flags: 0, body: &body }).err(), expected);
        }
        let old = [&[0, 6][..], b"MQIsdp", &[3, 2, 0, 60, 0, 1, b'a']].concat();
        assert_eq!(connect(&Frame { kind: 1, flags: 0, body: &old }), Err(Malformed::Level(3)));
        let web = [&[0, 3][..], b"WEB", &[4]].concat();
        assert_eq!(connect(&Frame { kind: 1, flags: 0, body: &web }), Err(Malformed::NotMqtt));
        let mut out = BytesMut::new();
        refuse_level(5, &mut out);
        assert_eq!(&out[..], [0x20, 3, 0, 0x84, 0]);
    }

    proptest! {
        /// Whatever comes, it is a packet or an error.
        #[test]
        fn hostile_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = missing(&bytes);
            if let Ok(Some((frame, used))) = frame(&bytes, 1000) {
                prop_assert!(used <= bytes.len());
                let _ = connect(&frame);
                let _ = Version::V311.decode(&frame);
            }
        }

        /// The same, with bytes that get past the first checks.
        #[test]
        fn hostile_bodies(kind in 1_u8..15, flags in 0_u8..16, body in proptest::collection::vec(prop_oneof![0_u8..4, any::<u8>()], 0..60)) {
            let frame = Frame { kind, flags, body: &body };
            let _ = Version::V311.decode(&frame);
            let start = [&[0, 4][..], b"MQTT", &[4], &body].concat();
            let _ = connect(&Frame { kind: 1, flags: 0, body: &start });
        }
    }
}

//! MQTT 3.1.1 (OASIS standard of 29 October 2014).

use bytes::{BufMut, BytesMut};

use super::{Answer, Connect, Frame, Malformed, Publication, Reader, Request, Version, Welcome};
use crate::message::QoS;

/// Packet types.
mod kind {
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

/// What a SUBACK says of a refused filter.
const SUBSCRIBE_REFUSED: u8 = 0x80;

/// The connect flags, from the lowest bit.
#[derive(Clone, Copy)]
struct ConnectFlags(u8);

impl ConnectFlags {
    fn bit(self, index: u8) -> bool {
        self.0 & (1 << index) != 0
    }

    fn will_qos(self) -> u8 {
        (self.0 >> 3) & 3
    }

    /// Section 3.1.2: the reserved bit is 0; what belongs to a will is 0 without one; a password needs a user name.
    fn check(self) -> Result<(), Malformed> {
        let (will, will_retain, password, user) = (self.bit(2), self.bit(5), self.bit(6), self.bit(7));
        let stray_will = !will && (self.will_qos() != 0 || will_retain);
        if self.bit(0) || stray_will || self.will_qos() == 3 || (password && !user) {
            return Err(Malformed::ConnectFlags);
        }
        Ok(())
    }
}

/// Reads what follows the protocol level in a CONNECT.
pub(super) fn connect(mut reader: Reader<'_>) -> Result<Connect<'_>, Malformed> {
    let flags = ConnectFlags(reader.u8()?);
    flags.check()?;
    let keep_alive_s = reader.u16()?;
    let client_id = reader.text()?;
    let will = if flags.bit(2) {
        let (topic, payload) = (reader.text()?, reader.bytes()?);
        // Subscriptions are granted 1 at most, so a will of 2 is one that is delivered with 1.
        let qos = if flags.will_qos() == 0 { QoS::AtMostOnce } else { QoS::AtLeastOnce };
        Some(Publication { topic, payload, qos, retain: flags.bit(5) })
    } else {
        None
    };
    let user = if flags.bit(7) { Some(reader.text()?) } else { None };
    let password = if flags.bit(6) { Some(reader.bytes()?) } else { None };
    reader.end()?;
    Ok(Connect { version: Version::V311, client_id, clean: flags.bit(1), keep_alive_s, will, user, password })
}

pub(super) fn decode<'a>(frame: &Frame<'a>) -> Result<Request<'a>, Malformed> {
    let mut reader = Reader::new(frame.body);
    if frame.kind == kind::PUBLISH {
        return publish(frame.flags, reader);
    }
    let expected_flags = match frame.kind {
        kind::SUBSCRIBE | kind::UNSUBSCRIBE => 0b0010,
        kind::PUBACK | kind::PINGREQ | kind::DISCONNECT => 0,
        other => return Err(Malformed::Type(other)),
    };
    if frame.flags != expected_flags {
        return Err(Malformed::Flags);
    }
    match frame.kind {
        kind::SUBSCRIBE => {
            let packet_id = reader.packet_id()?;
            let mut filters = Vec::new();
            while !reader.is_empty() {
                let filter = reader.text()?;
                let qos = match reader.u8()? {
                    0 => QoS::AtMostOnce,
                    1 | 2 => QoS::AtLeastOnce,
                    _ => return Err(Malformed::QoS),
                };
                filters.push((filter, qos));
            }
            if filters.is_empty() { Err(Malformed::NoFilters) } else { Ok(Request::Subscribe { packet_id, filters }) }
        }
        kind::UNSUBSCRIBE => {
            let packet_id = reader.packet_id()?;
            let mut filters = Vec::new();
            while !reader.is_empty() {
                filters.push(reader.text()?);
            }
            if filters.is_empty() { Err(Malformed::NoFilters) } else { Ok(Request::Unsubscribe { packet_id, filters }) }
        }
        kind::PUBACK => {
            let packet_id = reader.packet_id()?;
            reader.end()?;
            Ok(Request::PubAck(packet_id))
        }
        kind::PINGREQ => reader.end().map(|()| Request::Ping),
        _ => reader.end().map(|()| Request::Disconnect),
    }
}

fn publish(flags: u8, mut reader: Reader<'_>) -> Result<Request<'_>, Malformed> {
    let (dup, retain) = (flags & 0b1000 != 0, flags & 0b0001 != 0);
    let qos = match (flags >> 1) & 3 {
        0 if dup => return Err(Malformed::Flags),
        0 => QoS::AtMostOnce,
        1 => QoS::AtLeastOnce,
        2 => return Err(Malformed::QoS2),
        _ => return Err(Malformed::QoS),
    };
    let topic = reader.text()?;
    let packet_id = match qos {
        QoS::AtMostOnce => None,
        QoS::AtLeastOnce => Some(reader.packet_id()?),
    };
    Ok(Request::Publish { packet_id, publication: Publication { topic, payload: reader.rest(), qos, retain } })
}

pub(super) fn encode(answer: &Answer<'_>, out: &mut BytesMut) {
    match *answer {
        Answer::ConnAck(welcome) => {
            let code = match welcome {
                Welcome::Accepted => 0,
                Welcome::ClientIdRefused => 2,
                Welcome::Unavailable => 3,
                Welcome::BadCredentials => 4,
                Welcome::NotAuthorized => 5,
            };
            // No session outlives its connection, so none is ever present.
            out.extend_from_slice(&[kind::CONNACK << 4, 2, 0, code]);
        }
        Answer::Publish { packet_id, message, retained } => {
            let qos = u8::from(packet_id.is_some());
            out.put_u8(kind::PUBLISH << 4 | qos << 1 | u8::from(retained));
            let (topic, payload) = (message.topic(), message.payload());
            put_length(2 + topic.len() + packet_id.map_or(0, |_| 2) + payload.len(), out);
            // A topic came in behind a length of two bytes, and is limited to far less.
            out.put_u16(u16::try_from(topic.len()).unwrap_or_default());
            out.put_slice(topic.as_bytes());
            if let Some(packet_id) = packet_id {
                out.put_u16(packet_id);
            }
            out.put_slice(payload);
        }
        Answer::PubAck(packet_id) => {
            out.extend_from_slice(&[kind::PUBACK << 4, 2]);
            out.put_u16(packet_id);
        }
        Answer::SubAck { packet_id, granted } => {
            out.put_u8(kind::SUBACK << 4);
            put_length(2 + granted.len(), out);
            out.put_u16(packet_id);
            out.extend(granted.iter().map(|granted| granted.map_or(SUBSCRIBE_REFUSED, |qos| qos as u8)));
        }
        Answer::UnsubAck(packet_id) => {
            out.extend_from_slice(&[kind::UNSUBACK << 4, 2]);
            out.put_u16(packet_id);
        }
        Answer::Pong => out.extend_from_slice(&[kind::PINGRESP << 4, 0]),
    }
}

fn put_length(mut length: usize, out: &mut BytesMut) {
    loop {
        let low = (length & 0x7f) as u8;
        length >>= 7;
        if length == 0 {
            out.put_u8(low);
            return;
        }
        out.put_u8(low | 0x80);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{codec, message::Message};
    use proptest::prelude::*;

    fn connect_body(flags: u8, fields: &[&[u8]]) -> Vec<u8> {
        let mut body = [&[0, 4][..], b"MQTT", &[4, flags, 0, 60]].concat();
        for field in fields {
            body.extend_from_slice(&u16::try_from(field.len()).unwrap().to_be_bytes());
            body.extend_from_slice(field);
        }
        body
    }

    #[track_caller]
    fn check_connect(flags: u8, fields: &[&[u8]], expected: Result<Connect<'_>, Malformed>) {
        let body = connect_body(flags, fields);
        assert_eq!(codec::connect(&Frame { kind: 1, flags: 0, body: &body }), expected);
    }

    #[test]
    fn connects() {
        let plain = Connect {
            version: Version::V311,
            client_id: "id",
            clean: true,
            keep_alive_s: 60,
            will: None,
            user: None,
            password: None,
        };
        let will = Publication { topic: "t", payload: b"w", qos: QoS::AtLeastOnce, retain: true };
        check_connect(0b10, &[b"id"], Ok(plain.clone()));
        check_connect(0, &[b"id"], Ok(Connect { clean: false, ..plain.clone() }));
        check_connect(0b10, &[b""], Ok(Connect { client_id: "", ..plain.clone() }));
        check_connect(0b0010_1110, &[b"id", b"t", b"w"], Ok(Connect { will: Some(will), ..plain.clone() }));
        check_connect(
            0b1100_0010,
            &[b"id", b"user", b"\xff"],
            Ok(Connect { user: Some("user"), password: Some(b"\xff"), ..plain }),
        );
        check_connect(0b11, &[b"id"], Err(Malformed::ConnectFlags));
        check_connect(0b0001_1110, &[b"id", b"t", b"w"], Err(Malformed::ConnectFlags));
        check_connect(0b0000_1010, &[b"id"], Err(Malformed::ConnectFlags));
        check_connect(0b0100_0010, &[b"id", b"p"], Err(Malformed::ConnectFlags));
        check_connect(0b110, &[b"id", b"t"], Err(Malformed::Short));
        check_connect(0b10, &[b"id", b"more"], Err(Malformed::Long));
        check_connect(0b10, &[b"\xff"], Err(Malformed::Text));
        check_connect(0b10, &[b"a\0"], Err(Malformed::Text));
    }

    #[track_caller]
    fn check(first: u8, body: &[u8], expected: Result<Request<'_>, Malformed>) {
        assert_eq!(decode(&Frame { kind: first >> 4, flags: first & 0xf, body }), expected, "{first:#x} {body:?}");
    }

    #[test]
    fn requests() {
        let publication = Publication { topic: "t", payload: b"p", qos: QoS::AtMostOnce, retain: false };
        check(0x30, b"\0\x01tp", Ok(Request::Publish { packet_id: None, publication }));
        let publication = Publication { payload: b"", qos: QoS::AtLeastOnce, retain: true, ..publication };
        check(0x33, b"\0\x01t\0\x07", Ok(Request::Publish { packet_id: Some(7), publication }));
        check(0x3b, b"\0\x01t\0\x07", Ok(Request::Publish { packet_id: Some(7), publication }));
        check(0x38, b"\0\x01tp", Err(Malformed::Flags));
        check(0x34, b"\0\x01t\0\x07", Err(Malformed::QoS2));
        check(0x36, b"\0\x01t\0\x07", Err(Malformed::QoS));
        check(0x32, b"\0\x01t\0\0", Err(Malformed::PacketId));
        check(0x32, b"\0\x01t\0", Err(Malformed::Short));
        check(0x30, b"\0\x09t", Err(Malformed::Short));
        check(0x40, b"\0\x07", Ok(Request::PubAck(7)));
        check(0x41, b"\0\x07", Err(Malformed::Flags));
        check(0x40, b"\0\x07\0", Err(Malformed::Long));
        let filters = vec![("a", QoS::AtMostOnce), ("b", QoS::AtLeastOnce), ("c", QoS::AtLeastOnce)];
        check(0x82, b"\0\x01\0\x01a\0\0\x01b\x01\0\x01c\x02", Ok(Request::Subscribe { packet_id: 1, filters }));
        check(0x82, b"\0\x01\0\x01a\x03", Err(Malformed::QoS));
        check(0x82, b"\0\x01\0\x01a", Err(Malformed::Short));
        check(0x82, b"\0\x01", Err(Malformed::NoFilters));
        check(0x80, b"\0\x01\0\x01a\0", Err(Malformed::Flags));
        check(0xa2, b"\0\x01\0\x01a\0\x01b", Ok(Request::Unsubscribe { packet_id: 1, filters: vec!["a", "b"] }));
        check(0xa2, b"\0\x01", Err(Malformed::NoFilters));
        check(0xc0, b"", Ok(Request::Ping));
        check(0xc0, b"x", Err(Malformed::Long));
        check(0xe0, b"", Ok(Request::Disconnect));
        for kind in [0_u8, 1, 2, 5, 6, 7, 9, 11, 13, 15] {
            check(kind << 4, b"\0\x01", Err(Malformed::Type(kind)));
        }
    }

    #[test]
    fn answers() {
        for (answer, expected) in [
            (Answer::ConnAck(Welcome::Accepted), &[0x20, 2, 0, 0][..]),
            (Answer::ConnAck(Welcome::NotAuthorized), &[0x20, 2, 0, 5]),
            (Answer::PubAck(258), &[0x40, 2, 1, 2]),
            (Answer::SubAck { packet_id: 3, granted: &[Some(QoS::AtLeastOnce), None] }, &[0x90, 4, 0, 3, 1, 0x80]),
            (Answer::UnsubAck(4), &[0xb0, 2, 0, 4]),
            (Answer::Pong, &[0xd0, 0]),
        ] {
            let mut out = BytesMut::new();
            encode(&answer, &mut out);
            assert_eq!(&out[..], expected, "{answer:?}");
        }
    }

    proptest! {
        /// What is sent to a client reads back as what was meant.
        #[test]
        fn deliveries(length in 0_usize..70_000, packet_id in proptest::option::of(1_u16..), retained: bool) {
            let message = Message::new("a/b", &vec![7; length], QoS::AtMostOnce, false);
            let mut out = BytesMut::new();
            encode(&Answer::Publish { packet_id, message: &message, retained }, &mut out);
            let (frame, used) = codec::frame(&out, codec::PACKET_MAX_BYTES).unwrap().unwrap();
            prop_assert_eq!(used, out.len());
            let Ok(Request::Publish { packet_id: read, publication }) = decode(&frame) else { panic!("no publish") };
            prop_assert_eq!(read, packet_id);
            prop_assert_eq!((publication.topic, publication.payload, publication.retain), ("a/b", message.payload(), retained));
        }
    }
}

//! MQTT 3.1.1 (OASIS standard of 29 October 2014).

use std::borrow::Cow;

use bytes::{BufMut, BytesMut};

use super::{
    connect::{ConnectFlags, ConnectPacket, WillMessage},
    kind,
    malformed::Malformed,
    packet::{ClientPacket, Delivery, PacketFrame, ProtocolVersion, Publication, ServerPacket, SubscribeOptions},
    reader::BodyReader,
    writer::{bytes_len, put_bytes, put_length},
};
use crate::message::QoS;

/// Parses what follows the protocol level in a CONNECT.
pub(super) fn connect(mut reader: BodyReader<'_>) -> Result<ConnectPacket<'_>, Malformed> {
    let flags = ConnectFlags::new(reader.u8()?)?;
    // [MQTT-3.1.2-22]
    if flags.password() && !flags.user() {
        return Err(Malformed::ConnectFlags);
    }
    let keep_alive_s = reader.u16()?;
    let client_id = reader.text()?;
    let will = if flags.will() { Some(will(flags, &mut reader)?) } else { None };
    let user = if flags.user() { Some(reader.text()?) } else { None };
    let password = if flags.password() { Some(reader.bytes()?) } else { None };
    reader.end()?;
    Ok(ConnectPacket {
        version: ProtocolVersion::V311,
        client_id,
        clean: flags.clean(),
        keep_alive_s,
        will,
        user,
        password,
        session_expiry_s: if flags.clean() { 0 } else { u32::MAX },
        receive_max: u16::MAX,
        packet_max_bytes: None,
        request_problem: true,
        extended_auth: false,
    })
}

fn will<'a>(flags: ConnectFlags, reader: &mut BodyReader<'a>) -> Result<WillMessage<'a>, Malformed> {
    let (topic, payload) = (reader.text()?, reader.bytes()?);
    // Subscriptions are granted 1 at most, so a will of 2 is delivered with 1.
    let qos = flags.will_at().unwrap_or(QoS::AtLeastOnce);
    Ok(WillMessage { publication: plain(topic, payload, qos, flags.will_retain()), delay_s: 0 })
}

fn plain<'a>(topic: &'a str, payload: &'a [u8], qos: QoS, retain: bool) -> Publication<'a> {
    Publication { topic, payload, qos, retain, properties: Cow::Borrowed(&[]), expiry_s: None, alias: None }
}

pub(super) fn decode<'a>(frame: &PacketFrame<'a>) -> Result<ClientPacket<'a>, Malformed> {
    let mut reader = BodyReader::new(frame.body);
    match frame.request_kind()? {
        kind::PUBLISH => publish(frame, reader),
        kind::PUBACK => {
            let packet_id = reader.packet_id()?;
            reader.end()?;
            Ok(ClientPacket::PubAck(packet_id))
        }
        kind::SUBSCRIBE => {
            let packet_id = reader.packet_id()?;
            let mut filters = Vec::new();
            while !reader.is_empty() {
                let filter = reader.text()?;
                let qos = match reader.u8()? {
                    0 => QoS::AtMostOnce,
                    1 | 2 => QoS::AtLeastOnce,
                    // [MQTT-3.8.3-4]
                    _ => return Err(Malformed::QoS),
                };
                filters.push((filter, SubscribeOptions::plain(qos)));
            }
            if filters.is_empty() {
                return Err(Malformed::NoFilters);
            }
            Ok(ClientPacket::Subscribe { packet_id, id: None, filters })
        }
        kind::UNSUBSCRIBE => {
            let packet_id = reader.packet_id()?;
            let filters = reader.texts()?;
            Ok(ClientPacket::Unsubscribe { packet_id, filters })
        }
        kind::PINGREQ => reader.end().map(|()| ClientPacket::Ping),
        _ => reader.end().map(|()| ClientPacket::Disconnect { keep_will: false, session_expiry_s: None }),
    }
}

fn publish<'a>(frame: &PacketFrame<'a>, mut reader: BodyReader<'a>) -> Result<ClientPacket<'a>, Malformed> {
    let (qos, retain) = frame.publish_flags()?;
    let topic = reader.text()?;
    let packet_id = match qos {
        QoS::AtMostOnce => None,
        QoS::AtLeastOnce => Some(reader.packet_id()?),
    };
    Ok(ClientPacket::Publish { packet_id, publication: plain(topic, reader.rest(), qos, retain) })
}

pub(super) fn encode(answer: &ServerPacket<'_>, out: &mut BytesMut) {
    match answer {
        ServerPacket::ConnAck(ack) => {
            let code = ack.reason.return_code();
            // [MQTT-3.2.2-4]
            let session_present = code == 0 && ack.session_present;
            out.extend_from_slice(&[kind::CONNACK << 4, 2, session_present.into(), code]);
        }
        ServerPacket::Publish(delivery) => publish_to(delivery, out),
        ServerPacket::PubAck { packet_id, .. } => {
            out.extend_from_slice(&[kind::PUBACK << 4, 2]);
            out.put_u16(*packet_id);
        }
        ServerPacket::SubAck { packet_id, reasons } => {
            out.put_u8(kind::SUBACK << 4);
            put_length(2 + reasons.len(), out);
            out.put_u16(*packet_id);
            out.extend(reasons.iter().map(|reason| reason.subscribe_code()));
        }
        ServerPacket::UnsubAck { packet_id, .. } => {
            out.extend_from_slice(&[kind::UNSUBACK << 4, 2]);
            out.put_u16(*packet_id);
        }
        ServerPacket::Pong => out.extend_from_slice(&[kind::PINGRESP << 4, 0]),
        ServerPacket::Disconnect(_) => (),
    }
}

fn publish_to(delivery: &Delivery<'_>, out: &mut BytesMut) {
    out.reserve(ProtocolVersion::V311.publish_len(delivery));
    out.put_u8(delivery.header());
    put_length(delivery_len(delivery), out);
    put_bytes(delivery.topic.as_bytes(), out);
    if let Some(packet_id) = delivery.packet_id {
        out.put_u16(packet_id);
    }
    out.put_slice(delivery.payload);
}

/// Returns the length of a message's packet without its fixed header.
pub(super) fn delivery_len(delivery: &Delivery<'_>) -> usize {
    bytes_len(delivery.topic.as_bytes()) + delivery.packet_id.map_or(0, |_| 2) + delivery.payload.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{self, ConnAck, Reason};

    fn connect_body(flags: u8, fields: &[&[u8]]) -> Vec<u8> {
        let mut body = [&[0, 4][..], b"MQTT", &[4, flags, 0, 60]].concat();
        for field in fields {
            body.extend_from_slice(&u16::try_from(field.len()).unwrap().to_be_bytes());
            body.extend_from_slice(field);
        }
        body
    }

    #[track_caller]
    fn check_connect(flags: u8, fields: &[&[u8]], expected: Result<ConnectPacket<'_>, Malformed>) {
        let body = connect_body(flags, fields);
        assert_eq!(codec::connect(&PacketFrame { kind: 1, flags: 0, overlong: false, body: &body }), expected);
    }

    #[test]
    fn connect_packets_are_decoded() {
        let plain = ConnectPacket {
            version: ProtocolVersion::V311,
            client_id: "id",
            clean: true,
            keep_alive_s: 60,
            will: None,
            user: None,
            password: None,
            session_expiry_s: 0,
            receive_max: 65_535,
            packet_max_bytes: None,
            request_problem: true,
            extended_auth: false,
        };
        let will = |qos| Some(WillMessage { publication: super::plain("t", b"w", qos, true), delay_s: 0 });
        check_connect(0b10, &[b"id"], Ok(plain.clone()));
        check_connect(0, &[b"id"], Ok(ConnectPacket { clean: false, session_expiry_s: u32::MAX, ..plain.clone() }));
        check_connect(0b10, &[b""], Ok(ConnectPacket { client_id: "", ..plain.clone() }));
        for (flags, qos) in
            [(0b0010_0110, QoS::AtMostOnce), (0b0010_1110, QoS::AtLeastOnce), (0b0011_0110, QoS::AtLeastOnce)]
        {
            check_connect(flags, &[b"id", b"t", b"w"], Ok(ConnectPacket { will: will(qos), ..plain.clone() }));
        }
        let with_user = ConnectPacket { user: Some("user"), ..plain };
        check_connect(0b1000_0010, &[b"id", b"user"], Ok(with_user.clone()));
        check_connect(
            0b1100_0010,
            &[b"id", b"user", b"\xff"],
            Ok(ConnectPacket { password: Some(b"\xff"), ..with_user }),
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
    fn check(first: u8, body: &[u8], expected: Result<ClientPacket<'_>, Malformed>) {
        assert_eq!(
            decode(&PacketFrame { kind: first >> 4, flags: first & 0xf, overlong: false, body }),
            expected,
            "{first:#x} {body:?}"
        );
    }

    #[test]
    fn client_packets_are_decoded() {
        let publication = plain("t", b"p", QoS::AtMostOnce, false);
        check(0x30, b"\0\x01tp", Ok(ClientPacket::Publish { packet_id: None, publication }));
        let publication = plain("t", b"", QoS::AtLeastOnce, true);
        check(
            0x33,
            b"\0\x01t\0\x07",
            Ok(ClientPacket::Publish { packet_id: Some(7), publication: publication.clone() }),
        );
        check(0x3b, b"\0\x01t\0\x07", Ok(ClientPacket::Publish { packet_id: Some(7), publication }));
        check(0x38, b"\0\x01tp", Err(Malformed::Flags));
        check(0x34, b"\0\x01t\0\x07", Err(Malformed::QoS2));
        check(0x36, b"\0\x01t\0\x07", Err(Malformed::QoS));
        check(0x32, b"\0\x01t\0\0", Err(Malformed::PacketId));
        check(0x32, b"\0\x01t\0", Err(Malformed::Short));
        check(0x30, b"\0\x09t", Err(Malformed::Short));
        check(0x40, b"\0\x07", Ok(ClientPacket::PubAck(7)));
        check(0x41, b"\0\x07", Err(Malformed::Flags));
        check(0x40, b"\0\x07\0", Err(Malformed::Long));
        let filters = [("a", QoS::AtMostOnce), ("b", QoS::AtLeastOnce), ("c", QoS::AtLeastOnce)];
        let filters = filters.map(|(filter, qos)| (filter, SubscribeOptions::plain(qos))).to_vec();
        check(
            0x82,
            b"\0\x01\0\x01a\0\0\x01b\x01\0\x01c\x02",
            Ok(ClientPacket::Subscribe { packet_id: 1, id: None, filters }),
        );
        check(0x82, b"\0\x01\0\x01a\x03", Err(Malformed::QoS));
        check(0x82, b"\0\x01\0\x01a", Err(Malformed::Short));
        check(0x82, b"\0\x01", Err(Malformed::NoFilters));
        check(0x80, b"\0\x01\0\x01a\0", Err(Malformed::Flags));
        check(0xa2, b"\0\x01\0\x01a\0\x01b", Ok(ClientPacket::Unsubscribe { packet_id: 1, filters: vec!["a", "b"] }));
        check(0xa2, b"\0\x01", Err(Malformed::NoFilters));
        check(0xc0, b"", Ok(ClientPacket::Ping));
        check(0xc0, b"x", Err(Malformed::Long));
        check(0xe0, b"", Ok(ClientPacket::Disconnect { keep_will: false, session_expiry_s: None }));
        for kind in [0_u8, 1, 2, 5, 6, 7, 9, 11, 13, 15] {
            check(kind << 4, b"\0\x01", Err(Malformed::Type(kind)));
        }
    }

    fn welcome(reason: Reason) -> ServerPacket<'static> {
        ServerPacket::ConnAck(ConnAck { session_present: true, ..ConnAck::refused(reason) })
    }

    #[test]
    fn server_packets_are_encoded() {
        use Reason::{GrantedQoS1, NotAuthorized, Success};
        for (answer, expected) in [
            (ServerPacket::ConnAck(ConnAck::refused(Success)), &[0x20, 2, 0, 0][..]),
            (welcome(Success), &[0x20, 2, 1, 0]),
            (welcome(Reason::UnsupportedProtocolVersion), &[0x20, 2, 0, 1]),
            (welcome(Reason::ClientIdentifierNotValid), &[0x20, 2, 0, 2]),
            (welcome(Reason::ServerBusy), &[0x20, 2, 0, 3]),
            (welcome(Reason::BadUserNameOrPassword), &[0x20, 2, 0, 4]),
            (welcome(NotAuthorized), &[0x20, 2, 0, 5]),
            (ServerPacket::PubAck { packet_id: 258, reason: Reason::NotAuthorized }, &[0x40, 2, 1, 2]),
            (
                ServerPacket::SubAck { packet_id: 3, reasons: &[GrantedQoS1, Success, NotAuthorized] },
                &[0x90, 5, 0, 3, 1, 0, 0x80],
            ),
            (ServerPacket::UnsubAck { packet_id: 4, reasons: &[Reason::NoSubscriptionExisted] }, &[0xb0, 2, 0, 4]),
            (ServerPacket::Pong, &[0xd0, 0]),
            (ServerPacket::Disconnect(NotAuthorized), &[]),
        ] {
            let mut out = BytesMut::new();
            encode(&answer, &mut out);
            assert_eq!(&out[..], expected, "{answer:?}");
        }
    }
}

//! MQTT 5 (OASIS standard of 7 March 2019).

use bytes::{BufMut, BytesMut};

use super::{
    connect::{ConnectFlags, ConnectPacket, WillMessage},
    kind,
    malformed::Malformed,
    packet::{
        ClientPacket, ConnAck, Delivery, PacketFrame, ProtocolVersion, Publication, RetainHandling, ServerPacket,
        SubscribeOptions,
    },
    property::{self, Property, PropertyReader, id},
    reader::BodyReader,
    reason::Reason,
    writer::{bytes_len, length_len, put_bytes, put_length},
};
use crate::message::QoS;

/// The prefix of a shared subscription.
const SHARE: &str = "$share/";

/// The reason codes that a client's DISCONNECT may have (table 3-10 of the standard).
const CLIENT_DISCONNECT: [u8; 14] =
    [0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99];

/// Those of a PUBACK, in both directions (table 3-4).
const PUBACK: [u8; 9] = [0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99];

/// Those of a CONNACK (table 3-1).
const CONNACK: [u8; 22] = [
    0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x8c, 0x90, 0x95, 0x97, 0x99, 0x9a, 0x9b,
    0x9c, 0x9d, 0x9f,
];

/// Those of a SUBACK (table 3-8).
const SUBACK: [u8; 12] = [0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8f, 0x91, 0x97, 0x9e, 0xa1, 0xa2];

/// Those of an UNSUBACK (table 3-9).
const UNSUBACK: [u8; 7] = [0x00, 0x11, 0x80, 0x83, 0x87, 0x8f, 0x91];

/// Those of a server's DISCONNECT (table 3-10).
const DISCONNECT: [u8; 28] = [
    0x00, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8b, 0x8d, 0x8e, 0x8f, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99,
    0x9a, 0x9b, 0x9c, 0x9d, 0x9e, 0x9f, 0xa0, 0xa1, 0xa2,
];

/// Parses what follows the protocol level in a CONNECT.
pub(super) fn connect(mut reader: BodyReader<'_>) -> Result<ConnectPacket<'_>, Malformed> {
    let flags = ConnectFlags::new(reader.u8()?)?;
    let mut connect = ConnectPacket {
        version: ProtocolVersion::V5,
        client_id: "",
        clean: flags.clean(),
        keep_alive_s: reader.u16()?,
        will: None,
        user: None,
        password: None,
        session_expiry_s: 0,
        receive_max: u16::MAX,
        packet_max_bytes: None,
        request_problem: true,
        extended_auth: false,
    };
    let mut properties = PropertyReader::take(&mut reader, property::CONNECT)?;
    let mut has_auth_data = false;
    while let Some(property) = properties.next()? {
        match property {
            Property::SessionExpiry(seconds) => connect.session_expiry_s = seconds,
            Property::ReceiveMax(max) => connect.receive_max = max,
            Property::PacketMax(max) => connect.packet_max_bytes = Some(max),
            Property::RequestProblem(requested) => connect.request_problem = requested,
            Property::AuthMethod => connect.extended_auth = true,
            Property::AuthData => has_auth_data = true,
            // Aliases are only used towards the broker, and it has no response information.
            _ => (),
        }
    }
    if has_auth_data && !connect.extended_auth {
        return Err(Malformed::AuthData);
    }
    connect.client_id = reader.text()?;
    if flags.will() {
        connect.will = Some(will(flags, &mut reader)?);
    }
    if flags.user() {
        connect.user = Some(reader.text()?);
    }
    if flags.password() {
        connect.password = Some(reader.bytes()?);
    }
    reader.end()?;
    Ok(connect)
}

fn will<'a>(flags: ConnectFlags, reader: &mut BodyReader<'a>) -> Result<WillMessage<'a>, Malformed> {
    // [MQTT-3.2.2-12]
    let qos = flags.will_at().ok_or(Malformed::QoS2)?;
    let mut properties = PropertyReader::take(reader, property::WILL)?;
    let (mut delay_s, mut expiry_s) = (0, None);
    while let Some(property) = properties.next()? {
        match property {
            Property::WillDelay(seconds) => delay_s = seconds,
            Property::MessageExpiry(seconds) => expiry_s = Some(seconds),
            _ => (),
        }
    }
    let (topic, payload) = (reader.text()?, reader.bytes()?);
    let properties = properties.passed_on();
    let retain = flags.will_retain();
    Ok(WillMessage {
        publication: Publication { topic, payload, qos, retain, properties, expiry_s, alias: None },
        delay_s,
    })
}

pub(super) fn decode<'a>(frame: &PacketFrame<'a>) -> Result<ClientPacket<'a>, Malformed> {
    let kind = frame.request_kind()?;
    if frame.overlong {
        return Err(Malformed::Overlong);
    }
    let mut reader = BodyReader::new(frame.body);
    match kind {
        kind::PUBLISH => publish(frame, reader),
        kind::PUBACK => puback(reader),
        kind::SUBSCRIBE => subscribe(reader),
        kind::UNSUBSCRIBE => {
            let packet_id = reader.packet_id()?;
            PropertyReader::take(&mut reader, property::UNSUBSCRIBE)?.skip()?;
            let filters = reader.texts()?;
            Ok(ClientPacket::Unsubscribe { packet_id, filters })
        }
        kind::PINGREQ => reader.end().map(|()| ClientPacket::Ping),
        _ => disconnect(reader),
    }
}

fn publish<'a>(frame: &PacketFrame<'a>, mut reader: BodyReader<'a>) -> Result<ClientPacket<'a>, Malformed> {
    let (qos, retain) = frame.publish_flags()?;
    let topic = reader.text()?;
    let packet_id = match qos {
        QoS::AtMostOnce => None,
        QoS::AtLeastOnce => Some(reader.packet_id()?),
    };
    let mut properties = PropertyReader::take(&mut reader, property::PUBLISH)?;
    let (mut expiry_s, mut alias) = (None, None);
    while let Some(property) = properties.next()? {
        match property {
            Property::MessageExpiry(seconds) => expiry_s = Some(seconds),
            Property::TopicAlias(number) => alias = Some(number),
            // [MQTT-3.3.4-6]
            Property::SubscriptionId(_) => return Err(Malformed::ServerProperty(id::SUBSCRIPTION_ID)),
            _ => (),
        }
    }
    if topic.is_empty() && alias.is_none() {
        return Err(Malformed::NoTopic);
    }
    let (properties, payload) = (properties.passed_on(), reader.rest());
    let publication = Publication { topic, payload, qos, retain, properties, expiry_s, alias };
    Ok(ClientPacket::Publish { packet_id, publication })
}

/// Parses by section 3.4: an end after the packet identifier is success, one after the reason code no properties.
fn puback(mut reader: BodyReader<'_>) -> Result<ClientPacket<'_>, Malformed> {
    let packet_id = reader.packet_id()?;
    if !reader.is_empty() {
        reason(&mut reader, &PUBACK)?;
    }
    if !reader.is_empty() {
        PropertyReader::take(&mut reader, property::PUBACK)?.skip()?;
    }
    reader.end()?;
    Ok(ClientPacket::PubAck(packet_id))
}

fn subscribe(mut reader: BodyReader<'_>) -> Result<ClientPacket<'_>, Malformed> {
    let packet_id = reader.packet_id()?;
    let mut properties = PropertyReader::take(&mut reader, property::SUBSCRIBE)?;
    let mut number = None;
    while let Some(property) = properties.next()? {
        if let Property::SubscriptionId(id) = property {
            number = Some(id);
        }
    }
    let mut filters = Vec::new();
    while !reader.is_empty() {
        let filter = reader.text()?;
        let options = options(reader.u8()?)?;
        // [MQTT-3.8.3-4]
        if options.no_local && filter.starts_with(SHARE) {
            return Err(Malformed::LocalShare);
        }
        filters.push((filter, options));
    }
    if filters.is_empty() {
        Err(Malformed::NoFilters)
    } else {
        Ok(ClientPacket::Subscribe { packet_id, id: number, filters })
    }
}

/// Section 3.8.3.1.
fn options(bits: u8) -> Result<SubscribeOptions, Malformed> {
    // [MQTT-3.8.3-5]
    if bits & 0b1100_0000 != 0 {
        return Err(Malformed::ReservedOptions);
    }
    let qos = match bits & 3 {
        0 => QoS::AtMostOnce,
        1 | 2 => QoS::AtLeastOnce,
        _ => return Err(Malformed::Options),
    };
    let handling = match (bits >> 4) & 3 {
        0 => RetainHandling::Always,
        1 => RetainHandling::IfNew,
        2 => RetainHandling::Never,
        _ => return Err(Malformed::Options),
    };
    Ok(SubscribeOptions { qos, no_local: bits & 0b0100 != 0, as_published: bits & 0b1000 != 0, handling })
}

/// Parses by section 3.14: an end before the reason code is a normal disconnection, one after it no properties.
fn disconnect(mut reader: BodyReader<'_>) -> Result<ClientPacket<'_>, Malformed> {
    let code = if reader.is_empty() { 0 } else { reason(&mut reader, &CLIENT_DISCONNECT)? };
    let mut session_expiry_s = None;
    if !reader.is_empty() {
        let mut properties = PropertyReader::take(&mut reader, property::DISCONNECT)?;
        while let Some(property) = properties.next()? {
            if let Property::SessionExpiry(seconds) = property {
                session_expiry_s = Some(seconds);
            }
        }
    }
    reader.end()?;
    // Only a normal disconnection drops the will [MQTT-3.14.4-3].
    Ok(ClientPacket::Disconnect { keep_will: code != 0, session_expiry_s })
}

fn reason(reader: &mut BodyReader<'_>, valid: &[u8]) -> Result<u8, Malformed> {
    let code = reader.u8()?;
    if valid.contains(&code) { Ok(code) } else { Err(Malformed::ReasonCode(code)) }
}

pub(super) fn encode(answer: &ServerPacket<'_>, out: &mut BytesMut) {
    match answer {
        ServerPacket::ConnAck(ack) => connack(ack, out),
        ServerPacket::Publish(delivery) => publish_to(delivery, out),
        // No reason code is success.
        ServerPacket::PubAck { packet_id, reason: Reason::Success } => {
            out.extend_from_slice(&[kind::PUBACK << 4, 2]);
            out.put_u16(*packet_id);
        }
        ServerPacket::PubAck { packet_id, reason } => {
            out.extend_from_slice(&[kind::PUBACK << 4, 3]);
            out.put_u16(*packet_id);
            out.put_u8(reason.within(&PUBACK, Reason::UnspecifiedError));
        }
        ServerPacket::SubAck { packet_id, reasons } => acknowledge(kind::SUBACK, *packet_id, reasons, &SUBACK, out),
        ServerPacket::UnsubAck { packet_id, reasons } => {
            acknowledge(kind::UNSUBACK, *packet_id, reasons, &UNSUBACK, out);
        }
        ServerPacket::Pong => out.extend_from_slice(&[kind::PINGRESP << 4, 0]),
        // The length of no properties may be omitted, but not every client knows that.
        ServerPacket::Disconnect(reason) => {
            let code = reason.within(&DISCONNECT, Reason::UnspecifiedError);
            out.extend_from_slice(&[kind::DISCONNECT << 4, 2, code, 0]);
        }
    }
}

fn connack(ack: &ConnAck<'_>, out: &mut BytesMut) {
    if ack.reason.is_failure() {
        // [MQTT-3.2.2-6], [MQTT-3.2.2-8]
        let code = ack.reason.within(&CONNACK, Reason::ServerUnavailable);
        out.extend_from_slice(&[kind::CONNACK << 4, 3, 0, code, 0]);
        return;
    }
    let mut properties = BytesMut::new();
    if let Some(seconds) = ack.session_expiry_s {
        properties.put_u8(id::SESSION_EXPIRY);
        properties.put_u32(seconds);
    }
    properties.put_u8(id::RECEIVE_MAX);
    properties.put_u16(ack.receive_max);
    properties.put_u8(id::PACKET_MAX);
    properties.put_u32(ack.packet_max_bytes);
    if let Some(client_id) = ack.assigned_client_id {
        properties.put_u8(id::ASSIGNED_CLIENT_ID);
        put_bytes(client_id.as_bytes(), &mut properties);
    }
    properties.put_u8(id::TOPIC_ALIAS_MAX);
    properties.put_u16(ack.alias_max);
    if let Some(seconds) = ack.server_keep_alive_s {
        properties.put_u8(id::SERVER_KEEP_ALIVE);
        properties.put_u16(seconds);
    }
    for (identifier, value) in [
        (id::QOS_MAX, 1),
        (id::RETAIN_AVAILABLE, 1),
        (id::WILDCARD_AVAILABLE, 1),
        (id::SUBSCRIPTION_ID_AVAILABLE, 1),
        (id::SHARED_AVAILABLE, 0),
    ] {
        properties.extend_from_slice(&[identifier, value]);
    }
    out.put_u8(kind::CONNACK << 4);
    put_length(2 + length_len(properties.len()) + properties.len(), out);
    out.extend_from_slice(&[ack.session_present.into(), Reason::Success.code()]);
    put_length(properties.len(), out);
    out.put_slice(&properties);
}

/// Writes a SUBACK or UNSUBACK, without properties.
fn acknowledge(kind: u8, packet_id: u16, reasons: &[Reason], codes: &[u8], out: &mut BytesMut) {
    out.put_u8(kind << 4);
    put_length(3 + reasons.len(), out);
    out.put_u16(packet_id);
    out.put_u8(0);
    out.extend(reasons.iter().map(|reason| reason.within(codes, Reason::UnspecifiedError)));
}

fn publish_to(delivery: &Delivery<'_>, out: &mut BytesMut) {
    out.reserve(ProtocolVersion::V5.publish_len(delivery));
    out.put_u8(delivery.header());
    put_length(delivery_len(delivery), out);
    put_bytes(delivery.topic.as_bytes(), out);
    if let Some(packet_id) = delivery.packet_id {
        out.put_u16(packet_id);
    }
    put_length(properties_len(delivery), out);
    if let Some(seconds) = delivery.expiry_s {
        out.put_u8(id::MESSAGE_EXPIRY);
        out.put_u32(seconds);
    }
    if let Some(number) = delivery.subscription_id {
        out.put_u8(id::SUBSCRIPTION_ID);
        put_length(number as usize, out);
    }
    out.put_slice(delivery.properties);
    out.put_slice(delivery.payload);
}

fn properties_len(delivery: &Delivery<'_>) -> usize {
    let expiry = delivery.expiry_s.map_or(0, |_| 5);
    let subscription_id = delivery.subscription_id.map_or(0, |number| 1 + length_len(number as usize));
    expiry + subscription_id + delivery.properties.len()
}

/// Returns the length of a message's packet without its fixed header.
pub(super) fn delivery_len(delivery: &Delivery<'_>) -> usize {
    let properties = properties_len(delivery);
    let packet_id = delivery.packet_id.map_or(0, |_| 2);
    bytes_len(delivery.topic.as_bytes()) + packet_id + length_len(properties) + properties + delivery.payload.len()
}

#[cfg(test)]
mod tests;

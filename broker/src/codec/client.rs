//! The client's direction for tests: writes bytes that are read as a [`ConnectPacket`] or [`ClientPacket`].

use bytes::{BufMut, BytesMut};

use super::{
    ClientPacket, ConnectPacket, ProtocolVersion, Publication, RetainHandling, SubscribeOptions, WillMessage, kind,
    property::id,
    writer::{put_bytes, put_length},
};
use crate::message::QoS;

/// Encodes a packet.
pub(super) fn packet(first: u8, body: &[u8]) -> BytesMut {
    let mut out = BytesMut::new();
    out.put_u8(first);
    put_length(body.len(), &mut out);
    out.put_slice(body);
    out
}

/// Encodes a CONNECT.
pub(super) fn connect(connect: &ConnectPacket<'_>) -> BytesMut {
    let mut body = BytesMut::new();
    put_bytes(b"MQTT", &mut body);
    body.put_u8(if connect.version == ProtocolVersion::V311 { 4 } else { 5 });
    body.put_u8(flags(connect));
    body.put_u16(connect.keep_alive_s);
    if connect.version == ProtocolVersion::V5 {
        put_properties(&connect_properties(connect), &mut body);
    }
    put_bytes(connect.client_id.as_bytes(), &mut body);
    if let Some(WillMessage { publication, delay_s }) = &connect.will {
        if connect.version == ProtocolVersion::V5 {
            let mut properties = publication_properties(publication);
            properties.put_u8(id::WILL_DELAY);
            properties.put_u32(*delay_s);
            put_properties(&properties, &mut body);
        }
        put_bytes(publication.topic.as_bytes(), &mut body);
        put_bytes(publication.payload, &mut body);
    }
    if let Some(user) = connect.user {
        put_bytes(user.as_bytes(), &mut body);
    }
    if let Some(password) = connect.password {
        put_bytes(password, &mut body);
    }
    packet(kind::CONNECT << 4, &body)
}

fn flags(connect: &ConnectPacket<'_>) -> u8 {
    let will = connect.will.as_ref().map_or(0, |will| {
        let publication = &will.publication;
        1 << 2 | (publication.qos as u8) << 3 | u8::from(publication.retain) << 5
    });
    u8::from(connect.clean) << 1
        | will
        | u8::from(connect.password.is_some()) << 6
        | u8::from(connect.user.is_some()) << 7
}

fn connect_properties(connect: &ConnectPacket<'_>) -> BytesMut {
    let mut properties = BytesMut::new();
    properties.put_u8(id::SESSION_EXPIRY);
    properties.put_u32(connect.session_expiry_s);
    properties.put_u8(id::RECEIVE_MAX);
    properties.put_u16(connect.receive_max);
    if let Some(max) = connect.packet_max_bytes {
        properties.put_u8(id::PACKET_MAX);
        properties.put_u32(max);
    }
    properties.extend_from_slice(&[id::REQUEST_PROBLEM, connect.request_problem.into()]);
    if connect.extended_auth {
        properties.put_u8(id::AUTH_METHOD);
        put_bytes(b"method", &mut properties);
    }
    properties
}

fn put_properties(properties: &[u8], out: &mut BytesMut) {
    put_length(properties.len(), out);
    out.put_slice(properties);
}

/// Properties that are not passed on are in the middle, which is the hardest case.
fn publication_properties(publication: &Publication<'_>) -> BytesMut {
    let mut properties = BytesMut::new();
    if let Some(seconds) = publication.expiry_s {
        properties.put_u8(id::MESSAGE_EXPIRY);
        properties.put_u32(seconds);
    }
    properties.put_slice(&publication.properties);
    if let Some(alias) = publication.alias {
        properties.put_u8(id::TOPIC_ALIAS);
        properties.put_u16(alias);
    }
    properties
}

/// Encodes a packet of a connected client.
pub(super) fn request(version: ProtocolVersion, request: &ClientPacket<'_>) -> BytesMut {
    let mut body = BytesMut::new();
    let is_v5 = version == ProtocolVersion::V5;
    let first = match request {
        ClientPacket::Publish { packet_id, publication } => {
            put_bytes(publication.topic.as_bytes(), &mut body);
            if let Some(packet_id) = packet_id {
                body.put_u16(*packet_id);
            }
            if is_v5 {
                put_properties(&publication_properties(publication), &mut body);
            }
            body.put_slice(publication.payload);
            kind::PUBLISH << 4 | (publication.qos as u8) << 1 | u8::from(publication.retain)
        }
        ClientPacket::PubAck(packet_id) => {
            body.put_u16(*packet_id);
            kind::PUBACK << 4
        }
        ClientPacket::Subscribe { packet_id, id: number, filters } => {
            body.put_u16(*packet_id);
            if is_v5 {
                let mut properties = BytesMut::new();
                if let Some(number) = number {
                    properties.put_u8(id::SUBSCRIPTION_ID);
                    put_length(*number as usize, &mut properties);
                }
                put_properties(&properties, &mut body);
            }
            for (filter, options) in filters {
                put_bytes(filter.as_bytes(), &mut body);
                body.put_u8(bits(*options));
            }
            kind::SUBSCRIBE << 4 | 0b0010
        }
        ClientPacket::Unsubscribe { packet_id, filters } => {
            body.put_u16(*packet_id);
            if is_v5 {
                body.put_u8(0);
            }
            for filter in filters {
                put_bytes(filter.as_bytes(), &mut body);
            }
            kind::UNSUBSCRIBE << 4 | 0b0010
        }
        ClientPacket::Ping => kind::PINGREQ << 4,
        ClientPacket::Disconnect { keep_will, session_expiry_s } => {
            if is_v5 {
                body.put_u8(if *keep_will { 4 } else { 0 });
                let mut properties = BytesMut::new();
                if let Some(seconds) = session_expiry_s {
                    properties.put_u8(id::SESSION_EXPIRY);
                    properties.put_u32(*seconds);
                }
                put_properties(&properties, &mut body);
            }
            kind::DISCONNECT << 4
        }
    };
    packet(first, &body)
}

fn bits(options: SubscribeOptions) -> u8 {
    let qos = if options.qos == QoS::AtMostOnce { 0 } else { 1 };
    let handling = match options.handling {
        RetainHandling::Always => 0,
        RetainHandling::IfNew => 1,
        RetainHandling::Never => 2,
    };
    qos | u8::from(options.no_local) << 2 | u8::from(options.as_published) << 3 | handling << 4
}

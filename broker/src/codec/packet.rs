//! Packets of MQTT, whatever its version.

use std::borrow::Cow;

use bytes::BytesMut;

use super::{malformed::Malformed, reason::Reason};
use crate::message::QoS;

/// A version of the protocol that the broker speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProtocolVersion {
    /// MQTT 3.1.1.
    V311,
    /// MQTT 5.
    V5,
}

/// A packet in the read buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PacketFrame<'a> {
    /// Packet type, in the upper half.
    pub(super) kind: u8,
    /// Flags, in the lower half.
    pub(super) flags: u8,
    /// Whether its length is encoded in more bytes than necessary, which only MQTT 5 forbids.
    pub(super) overlong: bool,
    pub(super) body: &'a [u8],
}

/// A message as a client sent it: only its form was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Publication<'a> {
    /// Empty if `alias` is used.
    pub(crate) topic: &'a str,
    pub(crate) payload: &'a [u8],
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    /// The properties that are forwarded with a message, encoded, without their length.
    pub(crate) properties: Cow<'a, [u8]>,
    pub(crate) expiry_s: Option<u32>,
    pub(crate) alias: Option<u16>,
}

/// A packet of a connected client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClientPacket<'a> {
    Publish {
        /// Present for [`QoS::AtLeastOnce`].
        packet_id: Option<u16>,
        publication: Publication<'a>,
    },
    /// It has the message of this id, or does not want it any more.
    PubAck(u16),
    Subscribe {
        packet_id: u16,
        /// The subscription identifier of all filters.
        id: Option<u32>,
        filters: Vec<(&'a str, SubscribeOptions)>,
    },
    Unsubscribe {
        packet_id: u16,
        filters: Vec<&'a str>,
    },
    Ping,
    Disconnect {
        /// Whether the last will is published all the same.
        keep_will: bool,
        /// Present if it differs from the CONNECT's.
        session_expiry_s: Option<u32>,
    },
}

/// The options of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SubscribeOptions {
    /// The granted quality of service: the requested one, at most [`QoS::AtLeastOnce`].
    pub(crate) qos: QoS,
    /// Whether its own messages are excluded.
    pub(crate) no_local: bool,
    /// Whether messages keep the retain flag with which they were published.
    pub(crate) as_published: bool,
    pub(crate) handling: RetainHandling,
}

impl SubscribeOptions {
    /// Returns the options of 3.1.1.
    pub(super) fn plain(qos: QoS) -> Self {
        Self { qos, no_local: false, as_published: false, handling: RetainHandling::Always }
    }
}

/// When a SUBSCRIBE is followed by retained messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetainHandling {
    Always,
    /// If the subscription did not exist.
    IfNew,
    Never,
}

/// A packet of the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServerPacket<'a> {
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

/// The answer to a CONNECT. Of a refusal only the reason is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnAck<'a> {
    pub(crate) reason: Reason,
    pub(crate) session_present: bool,
    /// The client id, if the broker chose it.
    pub(crate) assigned_client_id: Option<&'a str>,
    /// The keep-alive, if it differs from the client's.
    pub(crate) server_keep_alive_s: Option<u16>,
    /// The session expiry, if it differs from the client's.
    pub(crate) session_expiry_s: Option<u32>,
    pub(crate) receive_max: u16,
    pub(crate) packet_max_bytes: u32,
    pub(crate) alias_max: u16,
}

impl ConnAck<'_> {
    /// Returns a refusal.
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

/// A message for a client. Its packet must not exceed MQTT's own limit, 268,435,455 bytes; [`ProtocolVersion::publish_len`]
/// returns its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delivery<'a> {
    /// Present for [`QoS::AtLeastOnce`].
    pub(crate) packet_id: Option<u16>,
    /// Whether it was sent before under the same id.
    pub(crate) dup: bool,
    pub(crate) retain: bool,
    pub(crate) topic: &'a str,
    pub(crate) payload: &'a [u8],
    /// As in [`Publication`]; empty in 3.1.1.
    pub(crate) properties: &'a [u8],
    /// The remaining expiry.
    pub(crate) expiry_s: Option<u32>,
    pub(crate) subscription_id: Option<u32>,
}

impl Delivery<'_> {
    /// Returns the first byte of its packet.
    pub(super) fn header(&self) -> u8 {
        let qos = u8::from(self.packet_id.is_some());
        // [MQTT-3.3.1-2]
        let dup = qos & u8::from(self.dup);
        super::kind::PUBLISH << 4 | dup << 3 | qos << 1 | u8::from(self.retain)
    }
}

impl PacketFrame<'_> {
    /// Returns the packet type, if a connected client may send it and its flags are valid. PUBLISH has flags of its
    /// own.
    pub(super) fn request_kind(&self) -> Result<u8, Malformed> {
        let flags = match self.kind {
            super::kind::PUBLISH => self.flags,
            super::kind::SUBSCRIBE | super::kind::UNSUBSCRIBE => 0b0010,
            super::kind::PUBACK | super::kind::PINGREQ | super::kind::DISCONNECT => 0,
            other => return Err(Malformed::Type(other)),
        };
        if self.flags == flags { Ok(self.kind) } else { Err(Malformed::Flags) }
    }

    /// Returns quality of service and retain from the flags of a PUBLISH. The duplicate flag is useless: the earlier
    /// one may or may not have been accepted.
    pub(super) fn publish_flags(&self) -> Result<(QoS, bool), Malformed> {
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

impl ProtocolVersion {
    /// Parses a packet of a connected client.
    pub(crate) fn decode<'a>(self, frame: &PacketFrame<'a>) -> Result<ClientPacket<'a>, Malformed> {
        match self {
            Self::V311 => super::v311::decode(frame),
            Self::V5 => super::v5::decode(frame),
        }
    }

    /// Appends `answer` to `out`.
    pub(crate) fn encode(self, answer: &ServerPacket<'_>, out: &mut BytesMut) {
        match self {
            Self::V311 => super::v311::encode(answer, out),
            Self::V5 => super::v5::encode(answer, out),
        }
    }

    /// Returns the length of a message's packet, with its header.
    pub(crate) fn publish_len(self, delivery: &Delivery<'_>) -> usize {
        let rest = match self {
            Self::V311 => super::v311::delivery_len(delivery),
            Self::V5 => super::v5::delivery_len(delivery),
        };
        1 + super::writer::length_len(rest) + rest
    }
}

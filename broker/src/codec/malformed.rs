//! Faults of a client's bytes.

use super::reason::Reason;

/// Why bytes are not a valid packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("a packet ends before its content does")]
    Short,
    #[error("a packet is longer than its content")]
    Long,
    #[error("a length of more than four bytes")]
    Length,
    #[error("a number in more bytes than it needs")]
    Overlong,
    #[error("a packet larger than the limit")]
    TooLarge,
    #[error("a text that is not UTF-8, or has a NUL in it")]
    Text,
    #[error("packet type {0}, which a client may not send here")]
    Type(u8),
    #[error("flags of the fixed header that its packet type does not have")]
    Flags,
    #[error("an invalid quality of service")]
    QoS,
    #[error("quality of service 2, which this broker does not support")]
    QoS2,
    #[error("packet identifier 0")]
    PacketId,
    #[error("no topic filter in a subscribe or unsubscribe")]
    NoFilters,
    #[error("connect flags that contradict each other")]
    ConnectFlags,
    #[error("a first packet other than CONNECT")]
    NotConnect,
    #[error("a protocol name other than MQTT")]
    NotMqtt,
    #[error("protocol level {0}, which this broker does not support")]
    Level(u8),
    #[error("property {0:#04x}, which its packet does not have")]
    Property(u32),
    #[error("property {0:#04x} twice")]
    PropertyTwice(u8),
    #[error("property {0:#04x} with an invalid value")]
    PropertyValue(u8),
    #[error("property {0:#04x}, which only a server sends")]
    ServerProperty(u8),
    #[error("topic alias 0")]
    TopicAlias,
    #[error("a publish with neither topic nor topic alias")]
    NoTopic,
    #[error("authentication data without an authentication method")]
    AuthData,
    #[error("reserved bits of subscription options that are set")]
    ReservedOptions,
    #[error("invalid subscription options")]
    Options,
    #[error("a shared subscription with the option `no local`")]
    LocalShare,
    #[error("reason code {0:#04x}, which its packet does not have")]
    ReasonCode(u8),
}

impl Malformed {
    /// Returns the reason code of MQTT 5.
    ///
    /// Section 1.2 distinguishes a malformed packet, which cannot be parsed, from a protocol error, which is forbidden;
    /// where the standard does not say which, this is what a parser would have to call it.
    pub(crate) fn reason(self) -> Reason {
        match self {
            Self::Short
            | Self::Long
            | Self::Length
            | Self::Overlong
            | Self::Text
            | Self::Type(0)
            | Self::Flags
            | Self::QoS
            | Self::ConnectFlags
            | Self::Property(_)
            | Self::ReservedOptions => Reason::MalformedPacket,
            Self::Type(_)
            | Self::PacketId
            | Self::NoFilters
            | Self::NotConnect
            | Self::PropertyTwice(_)
            | Self::PropertyValue(_)
            | Self::ServerProperty(_)
            | Self::NoTopic
            | Self::AuthData
            | Self::Options
            | Self::LocalShare
            | Self::ReasonCode(_) => Reason::ProtocolError,
            Self::TooLarge => Reason::PacketTooLarge,
            Self::QoS2 => Reason::QoSNotSupported,
            Self::NotMqtt | Self::Level(_) => Reason::UnsupportedProtocolVersion,
            Self::TopicAlias => Reason::TopicAliasInvalid,
        }
    }
}

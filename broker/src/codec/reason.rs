//! MQTT 5's reason codes, which the broker uses internally, and their equivalents in 3.1.1.

/// A reason code (section 2.4 of MQTT 5). These are the ones that this broker uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Reason {
    /// Also: normal disconnection, granted QoS 0.
    Success = 0x00,
    GrantedQoS1 = 0x01,
    NoSubscriptionExisted = 0x11,
    UnspecifiedError = 0x80,
    MalformedPacket = 0x81,
    ProtocolError = 0x82,
    UnsupportedProtocolVersion = 0x84,
    ClientIdentifierNotValid = 0x85,
    BadUserNameOrPassword = 0x86,
    NotAuthorized = 0x87,
    ServerUnavailable = 0x88,
    ServerBusy = 0x89,
    ServerShuttingDown = 0x8b,
    BadAuthenticationMethod = 0x8c,
    KeepAliveTimeout = 0x8d,
    SessionTakenOver = 0x8e,
    TopicFilterInvalid = 0x8f,
    TopicNameInvalid = 0x90,
    TopicAliasInvalid = 0x94,
    PacketTooLarge = 0x95,
    QuotaExceeded = 0x97,
    QoSNotSupported = 0x9b,
    SharedSubscriptionsNotSupported = 0x9e,
}

impl Reason {
    /// Returns the code on the wire.
    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    /// Whether it is a failure.
    pub(crate) fn is_failure(self) -> bool {
        self.code() >= 0x80
    }

    /// Returns the code for a packet that may only have some `codes`; that of `otherwise` if this is none of them.
    pub(super) fn within(self, codes: &[u8], otherwise: Self) -> u8 {
        if codes.contains(&self.code()) { self.code() } else { otherwise.code() }
    }

    /// Returns the return code of a 3.1.1 CONNACK (its table 3.1).
    pub(super) fn return_code(self) -> u8 {
        match self {
            reason if !reason.is_failure() => 0,
            Self::UnsupportedProtocolVersion => 1,
            Self::ClientIdentifierNotValid => 2,
            Self::BadUserNameOrPassword => 4,
            Self::NotAuthorized | Self::BadAuthenticationMethod | Self::TopicNameInvalid => 5,
            // "Server unavailable" says nothing about the client.
            _ => 3,
        }
    }

    /// Returns the return code of a filter in a 3.1.1 SUBACK.
    pub(super) fn subscribe_code(self) -> u8 {
        if self.is_failure() { 0x80 } else { self.code() }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    use Reason::*;

    /// Every reason, its code, and the return code in a 3.1.1 CONNACK.
    pub(in crate::codec) const ALL: [(Reason, u8, u8); 23] = [
        (Success, 0x00, 0),
        (GrantedQoS1, 0x01, 0),
        (NoSubscriptionExisted, 0x11, 0),
        (UnspecifiedError, 0x80, 3),
        (MalformedPacket, 0x81, 3),
        (ProtocolError, 0x82, 3),
        (UnsupportedProtocolVersion, 0x84, 1),
        (ClientIdentifierNotValid, 0x85, 2),
        (BadUserNameOrPassword, 0x86, 4),
        (NotAuthorized, 0x87, 5),
        (ServerUnavailable, 0x88, 3),
        (ServerBusy, 0x89, 3),
        (ServerShuttingDown, 0x8b, 3),
        (BadAuthenticationMethod, 0x8c, 5),
        (KeepAliveTimeout, 0x8d, 3),
        (SessionTakenOver, 0x8e, 3),
        (TopicFilterInvalid, 0x8f, 3),
        (TopicNameInvalid, 0x90, 5),
        (TopicAliasInvalid, 0x94, 3),
        (PacketTooLarge, 0x95, 3),
        (QuotaExceeded, 0x97, 3),
        (QoSNotSupported, 0x9b, 3),
        (SharedSubscriptionsNotSupported, 0x9e, 3),
    ];

    #[test]
    fn reason_codes_map_to_3_1_1() {
        for (reason, code, return_code) in ALL {
            assert_eq!((reason.code(), reason.return_code()), (code, return_code), "{reason:?}");
            assert_eq!(reason.is_failure(), code >= 0x80, "{reason:?}");
            assert_eq!(reason.subscribe_code(), code.min(0x80), "{reason:?}");
        }
    }
}

//! The CONNECT packet.

use super::{
    malformed::Malformed,
    packet::{ProtocolVersion, Publication},
};
use crate::message::QoS;

/// What a client says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectPacket<'a> {
    pub(crate) version: ProtocolVersion,
    /// Empty: the broker is to choose.
    pub(crate) client_id: &'a str,
    /// Whether an earlier session is to be forgotten.
    pub(crate) clean: bool,
    pub(crate) keep_alive_s: u16,
    pub(crate) will: Option<WillMessage<'a>>,
    pub(crate) user: Option<&'a str>,
    pub(crate) password: Option<&'a [u8]>,
    /// How long its session outlives its connection; [`u32::MAX`] is for ever. 3.1.1 only knows that and not at all.
    pub(crate) session_expiry_s: u32,
    /// How many messages it takes without having acknowledged them.
    pub(crate) receive_max: u16,
    /// The largest packet that it takes.
    pub(crate) packet_max_bytes: Option<u32>,
    /// Whether reason texts may be sent with any packet.
    pub(crate) request_problem: bool,
    /// Whether it names an authentication method.
    pub(crate) extended_auth: bool,
}

/// What to publish when a client is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WillMessage<'a> {
    pub(crate) publication: Publication<'a>,
    /// How long after its end.
    pub(crate) delay_s: u32,
}

/// The connect flags, from the lowest bit.
#[derive(Clone, Copy)]
pub(super) struct ConnectFlags(u8);

impl ConnectFlags {
    /// Section 3.1.2 of both standards: the reserved bit is 0; what belongs to a will is 0 without one.
    pub(super) fn new(bits: u8) -> Result<Self, Malformed> {
        let flags = Self(bits);
        let stray_will = !flags.will() && (flags.will_qos() != 0 || flags.will_retain());
        if flags.bit(0) || stray_will || flags.will_qos() == 3 { Err(Malformed::ConnectFlags) } else { Ok(flags) }
    }

    fn bit(self, index: u8) -> bool {
        self.0 & (1 << index) != 0
    }

    pub(super) fn clean(self) -> bool {
        self.bit(1)
    }

    pub(super) fn will(self) -> bool {
        self.bit(2)
    }

    fn will_qos(self) -> u8 {
        (self.0 >> 3) & 3
    }

    /// Nothing: quality of service 2.
    pub(super) fn will_at(self) -> Option<QoS> {
        match self.will_qos() {
            0 => Some(QoS::AtMostOnce),
            1 => Some(QoS::AtLeastOnce),
            _ => None,
        }
    }

    pub(super) fn will_retain(self) -> bool {
        self.bit(5)
    }

    pub(super) fn password(self) -> bool {
        self.bit(6)
    }

    pub(super) fn user(self) -> bool {
        self.bit(7)
    }
}

//! The CONNECT packet.

use super::{
    malformed::Malformed,
    packet::{ProtocolVersion, Publication},
};
use crate::message::QoS;

/// A CONNECT packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectPacket<'a> {
    pub(crate) version: ProtocolVersion,
    /// Empty if the broker is to choose one.
    pub(crate) client_id: &'a str,
    /// Whether an earlier session is to be dropped.
    pub(crate) clean: bool,
    pub(crate) keep_alive_s: u16,
    pub(crate) will: Option<WillMessage<'a>>,
    pub(crate) user: Option<&'a str>,
    pub(crate) password: Option<&'a [u8]>,
    /// How long its session outlives its connection; [`u32::MAX`] is forever. In 3.1.1 it is forever or not at all.
    pub(crate) session_expiry_s: u32,
    /// How many unacknowledged messages it accepts.
    pub(crate) receive_max: u16,
    /// The largest packet that it accepts.
    pub(crate) packet_max_bytes: Option<u32>,
    /// Whether reason texts may be sent with any packet.
    pub(crate) request_problem: bool,
    /// Whether it names an authentication method.
    pub(crate) extended_auth: bool,
}

/// The message to publish when a client is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WillMessage<'a> {
    pub(crate) publication: Publication<'a>,
    /// The delay after the connection's end.
    pub(crate) delay_s: u32,
}

/// The connect flags, from the lowest bit.
#[derive(Clone, Copy)]
pub(super) struct ConnectFlags(u8);

impl ConnectFlags {
    /// Parses the flags, by section 3.1.2 of both standards: the reserved bit is 0, and so are the will's bits without
    /// a will.
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

    /// Returns the will's quality of service; `None` for 2.
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

//! The codec: bytes to packets and back.
//!
//! The meaning of packets is the same for every version of MQTT ([`ClientPacket`], [`ServerPacket`]); a module per version,
//! chosen by the CONNECT, reads and writes them. Modules, in reading order:
//!
//! - this one: frames; `packet`: packets
//! - `connect`, `reason`, `malformed`: the CONNECT packet; reason codes; faults
//! - `reader`, `writer`: primitive types
//! - `v311`; `property` and `v5`: the versions
//! - for tests: `client`, the other direction; `fuzzing`, properties for any bytes; `peers`, comparison with another codec
//!
//! **Invariant: no byte is trusted.** Every read is checked against the available bytes, lengths against limits
//! before anything is allocated, and there is no indexing.
//!
//! Numbers such as [MQTT-3.1.2-4] are the standard's: OASIS, MQTT 3.1.1 of 29 October 2014, or MQTT 5.0 of 7 March 2019.

#[cfg(any(test, feature = "fuzzing"))]
mod client;
mod connect;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod malformed;
mod packet;
#[cfg(test)]
mod peers;
mod property;
mod reader;
mod reason;
mod v311;
mod v5;
mod writer;

pub(crate) use packet::{
    ClientPacket, ConnAck, Delivery, PacketFrame, ProtocolVersion, Publication, RetainHandling, ServerPacket,
    SubscribeOptions,
};

use bytes::BytesMut;

use self::reader::BodyReader;
pub(crate) use self::{
    connect::{ConnectPacket, WillMessage},
    malformed::Malformed,
    reason::Reason,
};

/// Packet types.
mod kind {
    pub(super) const CONNECT: u8 = 1;
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

/// Returns the first complete packet in `input` and its length; `None` if it is incomplete.
pub(crate) fn frame(input: &[u8], max: usize) -> Result<Option<(PacketFrame<'_>, usize)>, Malformed> {
    let Some((&first, rest)) = input.split_first() else { return Ok(None) };
    let mut length = 0_usize;
    let mut length_bytes = 0_usize;
    let last = loop {
        let Some(&byte) = rest.get(length_bytes) else { return Ok(None) };
        length |= usize::from(byte & 0x7f) << (7 * length_bytes);
        length_bytes += 1;
        if byte & 0x80 == 0 {
            break byte;
        }
        if length_bytes == 4 {
            return Err(Malformed::Length);
        }
    };
    let header = 1 + length_bytes;
    if header + length > max {
        return Err(Malformed::TooLarge);
    }
    let Some(body) = input.get(header..header + length) else { return Ok(None) };
    let overlong = last == 0 && length_bytes > 1;
    Ok(Some((PacketFrame { kind: first >> 4, flags: first & 0x0f, overlong, body }, header + length)))
}

/// Returns how many more bytes the packet at the start of `input` needs at least, for a client whose CONNECT or large
/// message arrives in pieces.
pub(crate) fn missing(input: &[u8]) -> usize {
    let mut length = 0_usize;
    for (index, &byte) in input.iter().skip(1).take(4).enumerate() {
        length |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return (index + 2 + length).saturating_sub(input.len());
        }
    }
    0
}

/// Returns the version in the start of a CONNECT, and what follows it.
fn level<'a>(frame: &PacketFrame<'a>) -> Result<(ProtocolVersion, BodyReader<'a>), Malformed> {
    if frame.kind != kind::CONNECT {
        return Err(Malformed::NotConnect);
    }
    if frame.flags != 0 {
        return Err(Malformed::Flags);
    }
    let mut reader = BodyReader::new(frame.body);
    match (reader.text()?, reader.u8()?) {
        ("MQTT", 4) => Ok((ProtocolVersion::V311, reader)),
        ("MQTT", 5) => Ok((ProtocolVersion::V5, reader)),
        ("MQTT" | "MQIsdp", level) => Err(Malformed::Level(level)),
        _ => Err(Malformed::NotMqtt),
    }
}

/// Parses the first packet of a connection.
pub(crate) fn connect<'a>(frame: &PacketFrame<'a>) -> Result<ConnectPacket<'a>, Malformed> {
    match level(frame)? {
        (ProtocolVersion::V311, reader) => v311::connect(reader),
        (ProtocolVersion::V5, _) if frame.overlong => Err(Malformed::Overlong),
        (ProtocolVersion::V5, reader) => v5::connect(reader),
    }
}

/// Writes the CONNACK for a CONNECT that [`connect()`] finds `malformed`, in its own version; nothing if that has no code
/// for it.
pub(crate) fn refuse(frame: &PacketFrame<'_>, malformed: Malformed, out: &mut BytesMut) {
    match malformed {
        Malformed::Level(level) => refuse_level(level, out),
        _ => {
            if let Ok((ProtocolVersion::V5, _)) = level(frame) {
                ProtocolVersion::V5.encode(&ServerPacket::ConnAck(ConnAck::refused(malformed.reason())), out);
            }
        }
    }
}

/// Writes the CONNACK for a client with an unknown protocol level: later than MQTT 5 with a reason code and properties,
/// earlier with a return code. Mosquitto's bridges set the highest bit of their level at first.
pub(crate) fn refuse_level(level: u8, out: &mut BytesMut) {
    out.extend_from_slice(if level & 0x7f >= 5 { &[0x20, 3, 0, 0x84, 0] } else { &[0x20, 2, 0, 1] });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], expected: Result<Option<(u8, usize)>, Malformed>) {
        assert_eq!(
            frame(bytes, 1000).map(|found| found.map(|(frame, used)| (frame.kind, used))),
            expected,
            "{bytes:?}"
        );
    }

    #[test]
    fn frame_lengths_are_decoded() {
        check(&[], Ok(None));
        check(&[0xc0], Ok(None));
        check(&[0xc0, 0], Ok(Some((12, 2))));
        check(&[0xc0, 0, 0xc0, 0], Ok(Some((12, 2))));
        check(&[0x30, 3, 0, 1], Ok(None));
        check(&[0x30, 0x80], Ok(None));
        check(&[0x30, 0xff, 0xff, 0xff], Ok(None));
        check(&[0x30, 0xff, 0xff, 0xff, 0xff], Err(Malformed::Length));
        check(&[0x30, 0xff, 0xff, 0xff, 0x7f], Err(Malformed::TooLarge));
        // A thousand bytes with the header is the limit here.
        check(&[0x30, 0xe5, 0x07], Ok(None));
        check(&[0x30, 0xe6, 0x07], Err(Malformed::TooLarge));
    }

    #[test]
    fn missing_bytes_are_counted() {
        for (bytes, expected) in
            [(&[][..], 0), (&[0x30], 0), (&[0x30, 5], 5), (&[0x30, 0x80, 1, 9], 127), (&[0xc0, 0], 0)]
        {
            assert_eq!(missing(bytes), expected, "{bytes:?}");
        }
    }

    fn greeting(name: &str, level: u8) -> Vec<u8> {
        let length = u8::try_from(name.len()).unwrap();
        let rest: &[u8] = if level == 5 { b"\x02\0\x3c\0\0\x01a" } else { b"\x02\0\x3c\0\x01a" };
        [&[0, length], name.as_bytes(), &[level], rest].concat()
    }

    #[test]
    fn protocol_levels_are_recognised() {
        for (name, level, expected, said) in [
            ("MQTT", 4, Ok(ProtocolVersion::V311), &[][..]),
            ("MQTT", 5, Ok(ProtocolVersion::V5), &[]),
            ("MQTT", 3, Err(Malformed::Level(3)), &[0x20, 2, 0, 1]),
            ("MQTT", 6, Err(Malformed::Level(6)), &[0x20, 3, 0, 0x84, 0]),
            ("MQTT", 0x84, Err(Malformed::Level(0x84)), &[0x20, 2, 0, 1]),
            ("MQIsdp", 3, Err(Malformed::Level(3)), &[0x20, 2, 0, 1]),
            ("WEB", 4, Err(Malformed::NotMqtt), &[]),
        ] {
            let body = greeting(name, level);
            let frame = PacketFrame { kind: 1, flags: 0, overlong: false, body: &body };
            let connected = connect(&frame);
            assert_eq!(connected.as_ref().map(|connect| connect.version).map_err(|malformed| *malformed), expected);
            let mut out = BytesMut::new();
            if let Err(malformed) = connected {
                refuse(&frame, malformed, &mut out);
            }
            assert_eq!(&out[..], said, "{name} {level}");
        }
    }

    #[test]
    fn malformed_connect_is_refused_in_its_version() {
        for (level, flags, expected) in
            [(5, 1, &[0x20, 3, 0, 0x81, 0][..]), (5, 0x16, &[0x20, 3, 0, 0x9b, 0]), (4, 1, &[])]
        {
            let mut body = greeting("MQTT", level);
            body[7] = flags;
            let frame = PacketFrame { kind: 1, flags: 0, overlong: false, body: &body };
            let mut out = BytesMut::new();
            refuse(&frame, connect(&frame).unwrap_err(), &mut out);
            assert_eq!(&out[..], expected, "{level} {flags}");
        }
    }
}

//! Properties that hold for any bytes from a client. The fuzz targets in `broker/fuzz` and the tests check the same.
//!
//! Each function panics if a property is violated, and returns whether the bytes are valid.

use std::borrow::Cow;

use super::{
    ClientPacket, Delivery, Malformed, PacketFrame, ProtocolVersion, Publication, ServerPacket, client,
    connect as decode_connect, frame, missing,
};
use crate::message::QoS;

/// MQTT's own limit of a packet's remaining length.
const PACKET_MAX_BYTES: usize = 268_435_455;

const VERSIONS: [ProtocolVersion; 2] = [ProtocolVersion::V311, ProtocolVersion::V5];

/// Parses bytes as from the network: any number of packets, the last one incomplete. Returns whether each is valid in
/// some version.
#[must_use]
pub fn stream(mut bytes: &[u8]) -> bool {
    let mut valid = true;
    loop {
        match frame(bytes, PACKET_MAX_BYTES) {
            Ok(Some((found, used))) => {
                check_length(bytes, used);
                // Not `||`, which would skip the rest.
                valid &= connect_frame(&found) | requests(&found);
                bytes = bytes.get(used..).unwrap_or_default();
            }
            Ok(None) => {
                let missing = missing(bytes);
                assert!(missing <= PACKET_MAX_BYTES);
                return valid && bytes.is_empty();
            }
            Err(malformed) => {
                assert!(malformed.reason().is_failure());
                return false;
            }
        }
    }
}

/// Checks that a packet of `used` bytes is complete only with its last byte, and if it is within the limit.
fn check_length(bytes: &[u8], used: usize) {
    let part = bytes.get(..used - 1).unwrap_or_default();
    assert_eq!(frame(part, PACKET_MAX_BYTES), Ok(None));
    assert!(missing(part) <= 1);
    assert_eq!(frame(bytes, used - 1), Err(Malformed::TooLarge));
}

/// Parses what follows the fixed header of a CONNECT.
#[must_use]
pub fn connect(body: &[u8]) -> bool {
    connect_frame(&PacketFrame { kind: 1, flags: 0, overlong: false, body })
}

/// Parses the first byte of a packet, and what follows its length: any packet of a connected client, in both versions.
#[must_use]
pub fn packet(bytes: &[u8]) -> bool {
    let Some((first, body)) = bytes.split_first() else { return false };
    requests(&PacketFrame { kind: first >> 4, flags: first & 0x0f, overlong: false, body })
}

fn connect_frame(found: &PacketFrame<'_>) -> bool {
    match decode_connect(found) {
        Ok(connect) => {
            let again = client::connect(&connect);
            assert_eq!(whole(&again).map(|frame| decode_connect(&frame)), Some(Ok(connect.clone())));
            if let Some(will) = &connect.will {
                deliver(&will.publication);
            }
            true
        }
        Err(malformed) => {
            assert!(malformed.reason().is_failure());
            false
        }
    }
}

fn requests(found: &PacketFrame<'_>) -> bool {
    let mut valid = false;
    for version in VERSIONS {
        match version.decode(found) {
            Ok(request) => {
                let again = client::request(version, &request);
                assert_eq!(whole(&again).map(|frame| version.decode(&frame)), Some(Ok(request.clone())));
                if let ClientPacket::Publish { publication, .. } = &request {
                    deliver(publication);
                }
                valid = true;
            }
            Err(malformed) => assert!(malformed.reason().is_failure()),
        }
    }
    valid
}

/// Returns the one packet in `bytes`.
fn whole(bytes: &[u8]) -> Option<PacketFrame<'_>> {
    match frame(bytes, PACKET_MAX_BYTES) {
        Ok(Some((frame, used))) if used == bytes.len() => Some(frame),
        _ => None,
    }
}

/// Checks that a message arrives unchanged, in the versions of both sides.
fn deliver(publication: &Publication<'_>) {
    let topic = if publication.topic.is_empty() { "a" } else { publication.topic };
    let packet_id = (publication.qos == QoS::AtLeastOnce).then_some(7);
    let delivery = Delivery {
        packet_id,
        dup: false,
        retain: publication.retain,
        topic,
        payload: publication.payload,
        properties: &publication.properties,
        expiry_s: publication.expiry_s,
        subscription_id: None,
    };
    let expected = Publication { topic, alias: None, ..publication.clone() };
    for version in VERSIONS {
        let publication = match version {
            ProtocolVersion::V5 => expected.clone(),
            ProtocolVersion::V311 => Publication { properties: Cow::Borrowed(&[]), expiry_s: None, ..expected.clone() },
        };
        let written = write(version, delivery);
        let read = whole(&written).map(|frame| version.decode(&frame));
        assert_eq!(read, Some(Ok(ClientPacket::Publish { packet_id, publication })));
    }
    // Packets that only a server may send are not parsed here, but their length is known.
    for number in [1, 127, 128, 268_435_455] {
        let numbered = Delivery { subscription_id: Some(number), ..delivery };
        assert!(whole(&write(ProtocolVersion::V5, numbered)).is_some());
    }
}

fn write(version: ProtocolVersion, delivery: Delivery<'_>) -> Vec<u8> {
    let mut out = bytes::BytesMut::new();
    version.encode(&ServerPacket::Publish(delivery), &mut out);
    assert_eq!(out.len(), version.publish_len(&delivery));
    out.into()
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use proptest::prelude::*;

    /// Runs the initial corpus of the fuzz targets, so that each build does. Files whose names begin with `bad-` are
    /// invalid packets.
    #[test]
    fn corpus() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
        for (name, target) in [("stream", stream as fn(&[u8]) -> bool), ("connect", connect), ("packet", packet)] {
            let mut valid = 0;
            for entry in fs::read_dir(folder.join(name)).unwrap() {
                let path = entry.unwrap().path();
                let expected = !path.file_name().unwrap().to_str().unwrap().starts_with("bad-");
                assert_eq!(target(&fs::read(&path).unwrap()), expected, "{}", path.display());
                valid += usize::from(expected);
            }
            assert!(valid >= 4, "{name} has {valid} packets");
        }
    }

    /// Bytes, more often ones with which something else begins.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(prop_oneof![0_u8..4, any::<u8>()], 0..80)
    }

    proptest! {
        #[test]
        fn any_stream(bytes in bytes()) {
            let _ = stream(&bytes);
        }

        #[test]
        fn any_connect(version in 4_u8..6, bytes in bytes()) {
            let _ = connect(&[b"\0\x04MQTT", &[version][..], &bytes].concat());
        }

        #[test]
        fn any_packet(kind in 1_u8..15, flags in prop_oneof![Just(0_u8), Just(2), 0_u8..16], bytes in bytes()) {
            let _ = packet(&[&[kind << 4 | flags], &bytes[..]].concat());
        }
    }
}

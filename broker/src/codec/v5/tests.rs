//! Tests of MQTT 5, as tables of cases.

use std::borrow::Cow;

use super::*;
use crate::codec;

fn connect_body(flags: u8, properties: &[u8], rest: &[&[u8]]) -> Vec<u8> {
    let length = u8::try_from(properties.len()).unwrap();
    let start = [&[0, 4][..], b"MQTT", &[5, flags, 0, 60, length], properties].concat();
    [start, rest.concat()].concat()
}

#[track_caller]
fn check_connect(flags: u8, properties: &[u8], rest: &[&[u8]], expected: Result<ConnectPacket<'_>, Malformed>) {
    let body = connect_body(flags, properties, rest);
    let frame = PacketFrame { kind: 1, flags: 0, overlong: false, body: &body };
    assert_eq!(codec::connect(&frame), expected, "{flags:#b} {properties:x?} {rest:x?}");
}

const PLAIN: ConnectPacket<'_> = ConnectPacket {
    version: ProtocolVersion::V5,
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

fn publication<'a>(topic: &'a str, payload: &'a [u8], qos: QoS, retain: bool) -> Publication<'a> {
    Publication { topic, payload, qos, retain, properties: Cow::Borrowed(b""), expiry_s: None, alias: None }
}

#[test]
fn connect_packets_are_decoded() {
    const ID: &[u8] = b"\0\x02id";
    check_connect(2, b"", &[ID], Ok(PLAIN));
    check_connect(0, b"", &[ID], Ok(ConnectPacket { clean: false, ..PLAIN }));
    check_connect(2, b"", &[b"\0\0"], Ok(ConnectPacket { client_id: "", ..PLAIN }));
    // A password needs no user name, unlike in 3.1.1.
    check_connect(0x42, b"", &[ID, b"\0\x01\xff"], Ok(ConnectPacket { password: Some(b"\xff"), ..PLAIN }));
    let both = ConnectPacket { user: Some("u"), password: Some(b""), ..PLAIN };
    check_connect(0xc2, b"", &[ID, b"\0\x01u", b"\0\0"], Ok(both));
    for (properties, expected) in [
        (&b"\x11\0\0\x01\0"[..], ConnectPacket { session_expiry_s: 256, ..PLAIN }),
        (b"\x11\xff\xff\xff\xff", ConnectPacket { session_expiry_s: u32::MAX, ..PLAIN }),
        (b"\x21\0\x01", ConnectPacket { receive_max: 1, ..PLAIN }),
        (b"\x27\0\0\0\x01", ConnectPacket { packet_max_bytes: Some(1), ..PLAIN }),
        (b"\x22\0\0", PLAIN),
        (b"\x22\xff\xff", PLAIN),
        (b"\x19\0", PLAIN),
        (b"\x19\x01", PLAIN),
        (b"\x17\0", ConnectPacket { request_problem: false, ..PLAIN }),
        (b"\x17\x01", PLAIN),
        (b"\x26\0\x01a\0\x01b\x26\0\x01a\0\0", PLAIN),
        (b"\x15\0\x01m", ConnectPacket { extended_auth: true, ..PLAIN }),
        (b"\x16\0\x01\0\x15\0\x01m", ConnectPacket { extended_auth: true, ..PLAIN }),
    ] {
        check_connect(2, properties, &[ID], Ok(expected));
    }
    for (flags, properties, rest, expected) in [
        (3, &b""[..], &[ID][..], Malformed::ConnectFlags),
        (0x0a, b"", &[ID], Malformed::ConnectFlags),
        (0x22, b"", &[ID], Malformed::ConnectFlags),
        (0x1e, b"", &[ID, b"\0\0\x01t\0\0"], Malformed::ConnectFlags),
        (0x16, b"", &[ID, b"\0\0\x01t\0\0"], Malformed::QoS2),
        (2, b"\x16\0\0", &[ID], Malformed::AuthData),
        (2, b"\x21\0\0", &[ID], Malformed::PropertyValue(0x21)),
        (2, b"\x27\0\0\0\0", &[ID], Malformed::PropertyValue(0x27)),
        (2, b"\x17\x02", &[ID], Malformed::PropertyValue(0x17)),
        (2, b"\x19\x02", &[ID], Malformed::PropertyValue(0x19)),
        (2, b"", &[], Malformed::Short),
        (0x82, b"", &[ID], Malformed::Short),
        (0x82, b"", &[ID, b"\0\x01\0"], Malformed::Text),
        (2, b"", &[ID, b"x"], Malformed::Long),
        (2, b"", &[b"\0\x02\xc3\x28"], Malformed::Text),
        // A surrogate, as some encode it.
        (2, b"", &[b"\0\x03\xed\xa0\x80"], Malformed::Text),
    ] {
        check_connect(flags, properties, rest, Err(expected));
    }
}

#[test]
fn wills_are_decoded() {
    let connect = |will| Ok(ConnectPacket { will: Some(will), ..PLAIN });
    let plain = publication("t", b"w", QoS::AtLeastOnce, true);
    let fields = |properties: &[u8]| {
        [&b"\0\x02id"[..], &[u8::try_from(properties.len()).unwrap()], properties, b"\0\x01t\0\x01w"].concat()
    };
    check_connect(0x2e, b"", &[&fields(b"")], connect(WillMessage { publication: plain.clone(), delay_s: 0 }));
    let lowest = Publication { qos: QoS::AtMostOnce, retain: false, ..plain.clone() };
    check_connect(6, b"", &[&fields(b"")], connect(WillMessage { publication: lowest, delay_s: 0 }));
    check_connect(
        0x2e,
        b"",
        &[&fields(b"\x01\x01\x18\0\0\0\x05\x03\0\x01c\x02\0\0\0\x07\x26\0\0\0\0")],
        connect(WillMessage {
            publication: Publication {
                properties: Cow::Borrowed(b"\x01\x01\x03\0\x01c\x26\0\0\0\0"),
                expiry_s: Some(7),
                ..plain
            },
            delay_s: 5,
        }),
    );
    check_connect(0x2e, b"", &[&fields(b"\x23\0\x01")], Err(Malformed::Property(0x23)));
    // Without its properties the rest is another will, that ends too soon.
    check_connect(0x2e, b"", &[b"\0\x02id", b"\0\x01t\0\x01w"], Err(Malformed::Short));
}

/// A packet in which properties can stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Connect,
    Will,
    Publish,
    PubAck,
    Subscribe,
    Unsubscribe,
    Disconnect,
}

impl Place {
    const ALL: [Self; 7] =
        [Self::Connect, Self::Will, Self::Publish, Self::PubAck, Self::Subscribe, Self::Unsubscribe, Self::Disconnect];

    /// Reads a packet that has these properties and is otherwise as it should be.
    fn read(self, properties: &[u8]) -> Result<(), Malformed> {
        let with = |before: &[u8], after: &[u8]| {
            [before, &[u8::try_from(properties.len()).unwrap()], properties, after].concat()
        };
        let (first, body) = match self {
            Self::Connect => (0x10, connect_body(2, properties, &[b"\0\0"])),
            Self::Will => (0x10, connect_body(6, b"", &[&with(b"\0\0", b"\0\x01t\0\0")])),
            Self::Publish => (0x30, with(b"\0\x01t", b"")),
            Self::PubAck => (0x40, with(b"\0\x01\0", b"")),
            Self::Subscribe => (0x82, with(b"\0\x01", b"\0\x01t\0")),
            Self::Unsubscribe => (0xa2, with(b"\0\x01", b"\0\x01t")),
            Self::Disconnect => (0xe0, with(b"\0", b"")),
        };
        let frame = PacketFrame { kind: first >> 4, flags: first & 0xf, overlong: false, body: &body };
        if first == 0x10 { codec::connect(&frame).map(drop) } else { decode(&frame).map(drop) }
    }
}

/// Table 2-4, for what clients send: every property, an example, and where it may stand.
const PROPERTIES: [(&[u8], &[Place]); 27] = [
    (b"\x01\x01", &[Place::Publish, Place::Will]),
    (b"\x02\0\0\0\x01", &[Place::Publish, Place::Will]),
    (b"\x03\0\x01c", &[Place::Publish, Place::Will]),
    (b"\x08\0\x01r", &[Place::Publish, Place::Will]),
    (b"\x09\0\x01\xff", &[Place::Publish, Place::Will]),
    (b"\x0b\x80\x01", &[Place::Subscribe]),
    (b"\x11\0\0\0\x01", &[Place::Connect, Place::Disconnect]),
    (b"\x12\0\x01a", &[]),
    (b"\x13\0\x01", &[]),
    (b"\x15\0\x01m", &[Place::Connect]),
    (b"\x16\0\x01\xff", &[]),
    (b"\x17\x01", &[Place::Connect]),
    (b"\x18\0\0\0\x01", &[Place::Will]),
    (b"\x19\x01", &[Place::Connect]),
    (b"\x1a\0\x01i", &[]),
    (b"\x1c\0\x01s", &[]),
    (b"\x1f\0\x01r", &[Place::PubAck, Place::Disconnect]),
    (b"\x21\0\x01", &[Place::Connect]),
    (b"\x22\0\x01", &[Place::Connect]),
    (b"\x23\0\x01", &[Place::Publish]),
    (b"\x24\x01", &[]),
    (b"\x25\x01", &[]),
    (b"\x26\0\x01k\0\x01v", &Place::ALL),
    (b"\x27\0\0\0\x01", &[Place::Connect]),
    (b"\x28\x01", &[]),
    (b"\x29\x01", &[]),
    (b"\x2a\x01", &[]),
];

#[test]
fn every_property_in_every_packet() {
    for (property, places) in PROPERTIES {
        for place in Place::ALL {
            let number = property[0];
            let expected = match (place, number) {
                _ if places.contains(&place) => Ok(()),
                // Those are that packet's, but the server's.
                (Place::Publish, 0x0b) | (Place::Disconnect, 0x1c) => Err(Malformed::ServerProperty(number)),
                (Place::Connect, 0x16) => Err(Malformed::AuthData),
                _ => Err(Malformed::Property(number.into())),
            };
            assert_eq!(place.read(property), expected, "{place:?} {number:#x}");
            if expected.is_err() {
                continue;
            }
            let twice = [property, property].concat();
            let expected = if number == 0x26 { Ok(()) } else { Err(Malformed::PropertyTwice(number)) };
            assert_eq!(place.read(&twice), expected, "{place:?} {number:#x}");
            for length in 1..property.len() {
                assert_eq!(place.read(&property[..length]), Err(Malformed::Short), "{place:?} {number:#x}");
            }
        }
    }
    // Identifiers that there are not, the last two in more than a byte.
    for unknown in [&b"\0\0"[..], b"\x04\0", b"\x2b\0", b"\x3f\0", b"\x40\0", b"\x7f\0", b"\x80\x01\0", b"\x81\x02\0"] {
        for place in Place::ALL {
            assert!(matches!(place.read(unknown), Err(Malformed::Property(_))), "{place:?} {unknown:x?}");
        }
    }
}

#[test]
fn invalid_property_values_are_refused() {
    for (properties, expected) in [
        (&b"\x01\x02"[..], Malformed::PropertyValue(1)),
        (b"\x03\0\x01\xff", Malformed::Text),
        (b"\x08\0\0", Malformed::PropertyValue(8)),
        (b"\x08\0\x03a/+", Malformed::PropertyValue(8)),
        (b"\x08\0\x01#", Malformed::PropertyValue(8)),
        (b"\x08\0\x01\0", Malformed::Text),
        (b"\x23\0\0", Malformed::TopicAlias),
        (b"\x26\0\x01\0\0\0", Malformed::Text),
        (b"\x26\0\0\0\x01\xff", Malformed::Text),
        // Identifiers in more bytes than they need.
        (b"\x81\0\x01", Malformed::Overlong),
        (b"\xa6\x80\0\0\0\0\0", Malformed::Overlong),
        (b"\xff\xff\xff\xff\x01", Malformed::Length),
    ] {
        assert_eq!(Place::Publish.read(properties), Err(expected), "{properties:x?}");
    }
    for (properties, expected) in [
        (&b"\x0b\0"[..], Err(Malformed::PropertyValue(0x0b))),
        (b"\x0b\x80\0", Err(Malformed::Overlong)),
        (b"\x0b\xff\xff\xff\x7f", Ok(())),
        (b"\x0b\xff\xff\xff\xff\x01", Err(Malformed::Length)),
    ] {
        assert_eq!(Place::Subscribe.read(properties), expected, "{properties:x?}");
    }
}

#[track_caller]
fn check(first: u8, body: &[u8], expected: Result<ClientPacket<'_>, Malformed>) {
    let frame = PacketFrame { kind: first >> 4, flags: first & 0xf, overlong: false, body };
    assert_eq!(decode(&frame), expected, "{first:#x} {body:x?}");
}

#[test]
fn publish_packets_are_decoded() {
    let publish = |packet_id, publication| Ok(ClientPacket::Publish { packet_id, publication });
    let plain = publication("t", b"p", QoS::AtMostOnce, false);
    check(0x30, b"\0\x01t\0p", publish(None, plain.clone()));
    for first in [0x33, 0x3b] {
        let publication = Publication { qos: QoS::AtLeastOnce, retain: true, ..plain.clone() };
        check(first, b"\0\x01t\0\x07\0p", publish(Some(7), publication));
    }
    check(0x30, b"\0\x01t\x05\x02\0\0\0\0p", publish(None, Publication { expiry_s: Some(0), ..plain.clone() }));
    let aliased = Publication { alias: Some(9), ..plain.clone() };
    check(0x30, b"\0\x01t\x03\x23\0\x09p", publish(None, aliased.clone()));
    check(0x30, b"\0\0\x03\x23\0\x09p", publish(None, Publication { topic: "", ..aliased }));
    for (first, body, expected) in [
        (0x30, &b"\0\0\0"[..], Malformed::NoTopic),
        (0x38, b"\0\x01t\0", Malformed::Flags),
        (0x34, b"\0\x01t\0\x07\0", Malformed::QoS2),
        (0x36, b"\0\x01t\0\x07\0", Malformed::QoS),
        (0x32, b"\0\x01t\0\0\0", Malformed::PacketId),
        (0x32, b"\0\x01t\0\x07", Malformed::Short),
        (0x30, b"\0\x01t", Malformed::Short),
        (0x30, b"\0\x01t\x01", Malformed::Short),
        (0x30, b"\0\x01t\x80\0", Malformed::Overlong),
        (0x30, b"\0\x01t\xff\xff\xff\xff\x01", Malformed::Length),
        (0x30, b"\0\x02t", Malformed::Short),
        (0x30, b"\0\x01\xff\0", Malformed::Text),
    ] {
        check(first, body, Err(expected));
    }
}

#[test]
fn forwarded_properties_are_copied_only_if_split() {
    for (properties, expected, copied) in [
        (&b""[..], &b""[..], false),
        (b"\x23\0\x01", b"", false),
        (b"\x01\x01\x26\0\0\0\0", b"\x01\x01\x26\0\0\0\0", false),
        (b"\x23\0\x01\x01\x01\x03\0\0", b"\x01\x01\x03\0\0", false),
        (b"\x01\x01\x03\0\0\x23\0\x01", b"\x01\x01\x03\0\0", false),
        (b"\x01\x01\x23\0\x01\x03\0\0", b"\x01\x01\x03\0\0", true),
        (b"\x01\x01\x23\0\x01\x03\0\0\x02\0\0\0\x01\x09\0\0", b"\x01\x01\x03\0\0\x09\0\0", true),
    ] {
        let length = u8::try_from(properties.len()).unwrap();
        let body = [b"\0\x01t", &[length][..], properties].concat();
        let frame = PacketFrame { kind: 3, flags: 0, overlong: false, body: &body };
        let Ok(ClientPacket::Publish { publication, .. }) = decode(&frame) else { panic!("{properties:x?}") };
        assert_eq!(publication.properties, expected, "{properties:x?}");
        assert_eq!(matches!(publication.properties, Cow::Owned(_)), copied, "{properties:x?}");
    }
}

#[test]
fn subscribe_packets_are_decoded() {
    let plain = SubscribeOptions::plain;
    let one = |options| Ok(ClientPacket::Subscribe { packet_id: 1, id: None, filters: vec![("a", options)] });
    for (bits, expected) in [
        (0x00, SubscribeOptions::plain(QoS::AtMostOnce)),
        (0x01, plain(QoS::AtLeastOnce)),
        (0x02, plain(QoS::AtLeastOnce)),
        (0x04, SubscribeOptions { no_local: true, ..plain(QoS::AtMostOnce) }),
        (0x08, SubscribeOptions { as_published: true, ..plain(QoS::AtMostOnce) }),
        (0x10, SubscribeOptions { handling: RetainHandling::IfNew, ..plain(QoS::AtMostOnce) }),
        (0x20, SubscribeOptions { handling: RetainHandling::Never, ..plain(QoS::AtMostOnce) }),
    ] {
        check(0x82, &[0, 1, 0, 0, 1, b'a', bits], one(expected));
    }
    for (bits, expected) in [
        (0x03, Malformed::Options),
        (0x30, Malformed::Options),
        (0x40, Malformed::ReservedOptions),
        (0x80, Malformed::ReservedOptions),
    ] {
        check(0x82, &[0, 1, 0, 0, 1, b'a', bits], Err(expected));
    }
    let filters = vec![("$share/g/a", plain(QoS::AtMostOnce)), ("", plain(QoS::AtLeastOnce))];
    let both = ClientPacket::Subscribe { packet_id: 0x102, id: Some(268_435_455), filters };
    check(0x82, b"\x01\x02\x05\x0b\xff\xff\xff\x7f\0\x0a$share/g/a\0\0\0\x01", Ok(both));
    for (first, body, expected) in [
        (0x82, &b"\0\x01\0\0\x0a$share/g/a\x04"[..], Malformed::LocalShare),
        (0x82, b"\0\x01\0", Malformed::NoFilters),
        (0x82, b"\0\x01", Malformed::Short),
        (0x82, b"\0\x01\0\0\x01a", Malformed::Short),
        (0x82, b"\0\0\0\0\x01a\0", Malformed::PacketId),
        (0x80, b"\0\x01\0\0\x01a\0", Malformed::Flags),
        (0x8a, b"\0\x01\0\0\x01a\0", Malformed::Flags),
        (0xa2, b"\0\x01\0", Malformed::NoFilters),
        (0xa2, b"\0\x01", Malformed::Short),
        (0xa0, b"\0\x01\0\0\x01a", Malformed::Flags),
        (0xa2, b"\0\x01\0\0\x01\xff", Malformed::Text),
    ] {
        check(first, body, Err(expected));
    }
    check(0xa2, b"\0\x01\0\0\x01a\0\x01b", Ok(ClientPacket::Unsubscribe { packet_id: 1, filters: vec!["a", "b"] }));
}

#[test]
fn short_packets_are_decoded() {
    let disconnect = |keep_will, session_expiry_s| Ok(ClientPacket::Disconnect { keep_will, session_expiry_s });
    for (first, body, expected) in [
        (0x40, &b"\0\x07"[..], Ok(ClientPacket::PubAck(7))),
        (0x40, b"\0\x07\0", Ok(ClientPacket::PubAck(7))),
        (0x40, b"\0\x07\x97", Ok(ClientPacket::PubAck(7))),
        (0x40, b"\0\x07\x80\0", Ok(ClientPacket::PubAck(7))),
        (0x40, b"\0\x07\0\x04\x1f\0\x01r", Ok(ClientPacket::PubAck(7))),
        (0x40, b"\0\x07\x01", Err(Malformed::ReasonCode(1))),
        (0x40, b"\0\x07\x92", Err(Malformed::ReasonCode(0x92))),
        (0x40, b"\0\x07\0\0\0", Err(Malformed::Long)),
        (0x40, b"\0\x07\0\x01", Err(Malformed::Short)),
        (0x40, b"\0\0", Err(Malformed::PacketId)),
        (0x42, b"\0\x07", Err(Malformed::Flags)),
        (0xc0, b"", Ok(ClientPacket::Ping)),
        (0xc0, b"\0", Err(Malformed::Long)),
        (0xc1, b"", Err(Malformed::Flags)),
        (0xe0, b"", disconnect(false, None)),
        (0xe0, b"\0", disconnect(false, None)),
        (0xe0, b"\0\0", disconnect(false, None)),
        (0xe0, b"\x04", disconnect(true, None)),
        // Every other reason than a normal disconnection leaves the will, too.
        (0xe0, b"\x80\0", disconnect(true, None)),
        (0xe0, b"\0\x05\x11\0\0\0\x09", disconnect(false, Some(9))),
        (0xe0, b"\x01", Err(Malformed::ReasonCode(1))),
        // Only servers take sessions over.
        (0xe0, b"\x8e", Err(Malformed::ReasonCode(0x8e))),
        (0xe0, b"\0\0\0", Err(Malformed::Long)),
        (0xe1, b"", Err(Malformed::Flags)),
    ] {
        check(first, body, expected);
    }
    for kind in [0_u8, 1, 2, 5, 6, 7, 9, 11, 13, 15] {
        check(kind << 4, b"\0\x01", Err(Malformed::Type(kind)));
    }
    for (kind, body) in [(0xc, &b""[..]), (3, b"\0\x01t\0")] {
        let frame = PacketFrame { kind, flags: 0, overlong: true, body };
        assert_eq!(decode(&frame), Err(Malformed::Overlong));
        assert!(ProtocolVersion::V311.decode(&frame).is_ok());
    }
}

#[test]
fn server_packets_are_encoded() {
    let welcome = ConnAck {
        reason: Reason::Success,
        session_present: true,
        assigned_client_id: Some("id"),
        server_keep_alive_s: Some(60),
        session_expiry_s: Some(256),
        receive_max: 20,
        packet_max_bytes: 65_536,
        alias_max: 8,
    };
    let short =
        ConnAck { assigned_client_id: None, server_keep_alive_s: None, session_expiry_s: None, ..welcome.clone() };
    let refused = ConnAck { reason: Reason::NotAuthorized, ..welcome.clone() };
    for (answer, expected) in [
        (
            ServerPacket::ConnAck(welcome),
            &b"\x20\x25\x01\0\x22\x11\0\0\x01\0\x21\0\x14\x27\0\x01\0\0\x12\0\x02id\x22\0\x08\x13\0\x3c\x24\x01\x25\x01\x28\x01\x29\x01\x2a\0"
                [..],
        ),
        (
            ServerPacket::ConnAck(ConnAck { session_present: false, ..short }),
            b"\x20\x18\0\0\x15\x21\0\x14\x27\0\x01\0\0\x22\0\x08\x24\x01\x25\x01\x28\x01\x29\x01\x2a\0",
        ),
        (ServerPacket::ConnAck(refused), b"\x20\x03\0\x87\0"),
        (ServerPacket::PubAck { packet_id: 258, reason: Reason::Success }, b"\x40\x02\x01\x02"),
        (ServerPacket::PubAck { packet_id: 258, reason: Reason::NotAuthorized }, b"\x40\x03\x01\x02\x87"),
        (
            ServerPacket::SubAck { packet_id: 3, reasons: &[Reason::Success, Reason::GrantedQoS1, Reason::NotAuthorized] },
            b"\x90\x06\0\x03\0\0\x01\x87",
        ),
        (
            ServerPacket::UnsubAck { packet_id: 4, reasons: &[Reason::Success, Reason::NoSubscriptionExisted] },
            b"\xb0\x05\0\x04\0\0\x11",
        ),
        // What a packet has no code for is said less exactly.
        (ServerPacket::ConnAck(ConnAck::refused(Reason::ServerShuttingDown)), b"\x20\x03\0\x88\0"),
        (
            ServerPacket::UnsubAck { packet_id: 4, reasons: &[Reason::SharedSubscriptionsNotSupported] },
            b"\xb0\x04\0\x04\0\x80",
        ),
        (ServerPacket::Pong, b"\xd0\0"),
        (ServerPacket::Disconnect(Reason::SessionTakenOver), b"\xe0\x02\x8e\0"),
    ] {
        let mut out = BytesMut::new();
        encode(&answer, &mut out);
        assert_eq!(&out[..], expected, "{answer:?}");
    }
}

#[test]
fn deliveries_are_encoded() {
    let plain = Delivery {
        packet_id: None,
        dup: true,
        retain: false,
        topic: "t",
        payload: b"p",
        properties: b"",
        expiry_s: None,
        subscription_id: None,
    };
    for (delivery, expected) in [
        // There is no second time for what is not acknowledged.
        (plain, &b"\x30\x05\0\x01t\0p"[..]),
        (Delivery { packet_id: Some(9), retain: true, ..plain }, b"\x3b\x07\0\x01t\0\x09\0p"),
        (Delivery { packet_id: Some(9), dup: false, ..plain }, b"\x32\x07\0\x01t\0\x09\0p"),
        (
            Delivery { properties: b"\x01\x01", expiry_s: Some(7), subscription_id: Some(128), ..plain },
            b"\x30\x0f\0\x01t\x0a\x02\0\0\0\x07\x0b\x80\x01\x01\x01p",
        ),
    ] {
        let mut out = BytesMut::new();
        encode(&ServerPacket::Publish(delivery), &mut out);
        assert_eq!(&out[..], expected, "{delivery:?}");
        assert_eq!(ProtocolVersion::V5.publish_len(&delivery), expected.len());
    }
}

//! MQTT 3.1.1 and 5 in bytes, written from the standard and not with the broker's own codec, so that a mistake in that one
//! is not made twice.

/// Which MQTT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Version {
    V4,
    V5,
}

pub(crate) const BOTH: [Version; 2] = [Version::V4, Version::V5];

/// Properties of MQTT 5, encoded one after the other.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Properties(pub(crate) Vec<u8>);

impl Properties {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn byte(mut self, id: u8, value: u8) -> Self {
        self.0.extend([id, value]);
        self
    }

    pub(crate) fn two(mut self, id: u8, value: u16) -> Self {
        self.0.push(id);
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(crate) fn four(mut self, id: u8, value: u32) -> Self {
        self.0.push(id);
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(crate) fn text(mut self, id: u8, value: &str) -> Self {
        self.0.push(id);
        self.0.extend(text(value));
        self
    }

    pub(crate) fn pair(self, name: &str, value: &str) -> Self {
        let mut with = self.text(USER_PROPERTY, name);
        with.0.extend(text(value));
        with
    }

    pub(crate) fn number(mut self, id: u8, value: usize) -> Self {
        self.0.push(id);
        self.0.extend(length(value));
        self
    }

    /// The number that one of these properties has: those of one, two or four bytes, and of variable length.
    pub(crate) fn get(&self, wanted: u8) -> Option<usize> {
        let mut rest = &self.0[..];
        while let Some((id, behind)) = rest.split_first() {
            let (value, size) = match id {
                0x01 | 0x17 | 0x19 | 0x24 | 0x25 | 0x28..=0x2a => (usize::from(behind[0]), 1),
                0x13 | 0x21 | 0x22 | 0x23 => (usize::from(u16::from_be_bytes([behind[0], behind[1]])), 2),
                0x02 | 0x11 | 0x18 | 0x27 => (u32::from_be_bytes(*behind.first_chunk()?) as usize, 4),
                0x0b => split_length(behind)?,
                // A pair, and everything else is one text or bytes.
                0x26 => (0, 4 + text_length(behind) + text_length(&behind[2 + text_length(behind)..])),
                _ => (0, 2 + text_length(behind)),
            };
            if *id == wanted {
                return Some(value);
            }
            rest = &behind[size..];
        }
        None
    }

    fn encoded(&self) -> Vec<u8> {
        [length(self.0.len()), self.0.clone()].concat()
    }
}

pub(crate) const EXPIRY: u8 = 0x02;
pub(crate) const CONTENT_TYPE: u8 = 0x03;
pub(crate) const RESPONSE_TOPIC: u8 = 0x08;
pub(crate) const SUBSCRIPTION_ID: u8 = 0x0b;
pub(crate) const SESSION_EXPIRY: u8 = 0x11;
pub(crate) const ASSIGNED_CLIENT_ID: u8 = 0x12;
pub(crate) const SERVER_KEEP_ALIVE: u8 = 0x13;
pub(crate) const WILL_DELAY: u8 = 0x18;
pub(crate) const RECEIVE_MAX: u8 = 0x21;
pub(crate) const ALIAS_MAX: u8 = 0x22;
pub(crate) const ALIAS: u8 = 0x23;
pub(crate) const USER_PROPERTY: u8 = 0x26;
pub(crate) const PACKET_MAX: u8 = 0x27;

/// What a CONNECT says.
#[derive(Clone, Debug)]
pub(crate) struct Connect {
    pub(crate) client_id: String,
    pub(crate) clean: bool,
    pub(crate) keep_alive_s: u16,
    pub(crate) will: Option<Will>,
    pub(crate) properties: Properties,
}

/// Its last will, of QoS 1.
#[derive(Clone, Debug)]
pub(crate) struct Will {
    pub(crate) topic: String,
    pub(crate) payload: String,
    pub(crate) retain: bool,
    pub(crate) properties: Properties,
}

impl Connect {
    pub(crate) fn new(client_id: &str) -> Self {
        let properties = Properties::new();
        Self { client_id: client_id.to_owned(), clean: true, keep_alive_s: 600, will: None, properties }
    }

    /// One that asks for a session that stays: with MQTT 5 for an hour.
    pub(crate) fn persistent(client_id: &str) -> Self {
        let properties = Properties::new().four(SESSION_EXPIRY, 3600);
        Self { clean: false, properties, ..Self::new(client_id) }
    }

    pub(crate) fn will(mut self, topic: &str, payload: &str) -> Self {
        let (topic, payload) = (topic.to_owned(), payload.to_owned());
        self.will = Some(Will { topic, payload, retain: false, properties: Properties::new() });
        self
    }

    pub(crate) fn keep_alive(self, keep_alive_s: u16) -> Self {
        Self { keep_alive_s, ..self }
    }

    pub(crate) fn properties(self, properties: Properties) -> Self {
        Self { properties, ..self }
    }

    pub(crate) fn encode(&self, version: Version) -> Vec<u8> {
        let will = self.will.as_ref();
        let flags = u8::from(self.clean) << 1 | will.map_or(0, |will| 0b0_1100 | u8::from(will.retain) << 5);
        let level = if version == Version::V5 { 5 } else { 4 };
        let mut body = [&text("MQTT")[..], &[level, flags], &self.keep_alive_s.to_be_bytes()].concat();
        if version == Version::V5 {
            body.extend(self.properties.encoded());
        }
        body.extend(text(&self.client_id));
        if let Some(will) = will {
            if version == Version::V5 {
                body.extend(will.properties.encoded());
            }
            body.extend(text(&will.topic));
            body.extend(text(&will.payload));
        }
        packet(0x10, &body)
    }
}

/// A message to publish, or one that came.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Publish {
    pub(crate) topic: String,
    pub(crate) payload: Vec<u8>,
    pub(crate) qos: u8,
    pub(crate) retain: bool,
    pub(crate) dup: bool,
    pub(crate) packet_id: u16,
    pub(crate) properties: Properties,
}

impl Publish {
    pub(crate) fn new(topic: &str, qos: u8, payload: impl AsRef<[u8]>) -> Self {
        let (topic, payload) = (topic.to_owned(), payload.as_ref().to_vec());
        Self { topic, payload, qos, packet_id: u16::from(qos > 0), ..Self::default() }
    }

    pub(crate) fn retained(self) -> Self {
        Self { retain: true, ..self }
    }

    pub(crate) fn id(self, packet_id: u16) -> Self {
        Self { packet_id, ..self }
    }

    pub(crate) fn properties(self, properties: Properties) -> Self {
        Self { properties, ..self }
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.payload).unwrap()
    }

    pub(crate) fn encode(&self, version: Version) -> Vec<u8> {
        let mut body = text(&self.topic);
        if self.qos > 0 {
            body.extend(self.packet_id.to_be_bytes());
        }
        if version == Version::V5 {
            body.extend(self.properties.encoded());
        }
        body.extend(&self.payload);
        packet(0x30 | u8::from(self.dup) << 3 | self.qos << 1 | u8::from(self.retain), &body)
    }

    fn decode(version: Version, first: u8, body: &[u8]) -> Option<Self> {
        let (topic, mut rest) = split_text(body)?;
        let qos = first >> 1 & 3;
        let mut packet_id = 0;
        if qos > 0 {
            let (id, behind) = rest.split_first_chunk()?;
            (packet_id, rest) = (u16::from_be_bytes(*id), behind);
        }
        let mut properties = Properties::new();
        if version == Version::V5 {
            let (found, behind) = split_properties(rest)?;
            (properties, rest) = (found, behind);
        }
        let (retain, dup) = (first & 1 == 1, first & 8 == 8);
        Some(Self { topic: topic.to_owned(), payload: rest.to_vec(), qos, retain, dup, packet_id, properties })
    }
}

/// A SUBSCRIBE; each filter with its options, of which MQTT 3.1.1 knows the QoS alone.
pub(crate) fn subscribe(version: Version, packet_id: u16, properties: &Properties, filters: &[(&str, u8)]) -> Vec<u8> {
    let mut body = packet_id.to_be_bytes().to_vec();
    if version == Version::V5 {
        body.extend(properties.encoded());
    }
    for (filter, options) in filters {
        body.extend(text(filter));
        body.push(*options);
    }
    packet(0x82, &body)
}

pub(crate) fn unsubscribe(version: Version, packet_id: u16, filters: &[&str]) -> Vec<u8> {
    let mut body = packet_id.to_be_bytes().to_vec();
    if version == Version::V5 {
        body.push(0);
    }
    for filter in filters {
        body.extend(text(filter));
    }
    packet(0xa2, &body)
}

pub(crate) fn puback(packet_id: u16) -> Vec<u8> {
    packet(0x40, &packet_id.to_be_bytes())
}

pub(crate) const PING: [u8; 2] = [0xc0, 0];
pub(crate) const DISCONNECT: [u8; 2] = [0xe0, 0];

/// What a broker sends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Packet {
    ConnAck {
        session_present: bool,
        code: u8,
        properties: Properties,
    },
    Publish(Publish),
    PubAck {
        packet_id: u16,
        reason: u8,
    },
    SubAck {
        packet_id: u16,
        reasons: Vec<u8>,
    },
    UnsubAck {
        packet_id: u16,
        reasons: Vec<u8>,
    },
    Pong,
    Disconnect {
        reason: u8,
    },
    /// One that no test here asks for.
    Other(u8, Vec<u8>),
}

/// The first packet of what came, if it is there whole, and its length.
pub(crate) fn decode(version: Version, input: &[u8]) -> Option<(Packet, usize)> {
    let (first, rest) = input.split_first()?;
    let (length, head) = split_length(rest)?;
    let body = rest.get(head..head + length)?;
    let packet = decode_body(version, *first, body).unwrap_or_else(|| Packet::Other(*first, body.to_vec()));
    Some((packet, 1 + head + length))
}

fn decode_body(version: Version, first: u8, body: &[u8]) -> Option<Packet> {
    let five = version == Version::V5;
    let id = || body.first_chunk().map(|id| u16::from_be_bytes(*id));
    // Identifier, properties, and one reason for each filter.
    let reasons = |with_properties: bool| {
        let rest = body.get(2..)?;
        let rest = if with_properties { split_properties(rest)?.1 } else { rest };
        Some(rest.to_vec())
    };
    Some(match first >> 4 {
        2 => {
            let properties = if five { split_properties(body.get(2..)?)?.0 } else { Properties::new() };
            Packet::ConnAck { session_present: body.first()? & 1 == 1, code: *body.get(1)?, properties }
        }
        3 => Packet::Publish(Publish::decode(version, first, body)?),
        4 => Packet::PubAck { packet_id: id()?, reason: body.get(2).copied().unwrap_or_default() },
        9 => Packet::SubAck { packet_id: id()?, reasons: reasons(five)? },
        11 => Packet::UnsubAck { packet_id: id()?, reasons: reasons(five)? },
        13 => Packet::Pong,
        14 => Packet::Disconnect { reason: body.first().copied().unwrap_or_default() },
        _ => return None,
    })
}

pub(crate) fn text(text: &str) -> Vec<u8> {
    let length = u16::try_from(text.len()).unwrap();
    [&length.to_be_bytes(), text.as_bytes()].concat()
}

pub(crate) fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    [&[first][..], &length(body.len()), body].concat()
}

/// MQTT's variable length.
fn length(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = u8::try_from(value % 128).unwrap();
        value /= 128;
        bytes.push(if value > 0 { low | 0x80 } else { low });
        if value == 0 {
            return bytes;
        }
    }
}

fn text_length(input: &[u8]) -> usize {
    usize::from(u16::from_be_bytes([input[0], input[1]]))
}

fn split_length(input: &[u8]) -> Option<(usize, usize)> {
    let mut value = 0;
    for index in 0..4 {
        let byte = *input.get(index)?;
        value |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((value, index + 1));
        }
    }
    panic!("a broker sent a length that is none: {:?}", &input[..4]);
}

fn split_text(input: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = input.split_first_chunk()?;
    let (text, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
    Some((std::str::from_utf8(text).ok()?, rest))
}

fn split_properties(input: &[u8]) -> Option<(Properties, &[u8])> {
    let (length, head) = split_length(input)?;
    let (properties, rest) = input.get(head..)?.split_at_checked(length)?;
    Some((Properties(properties.to_vec()), rest))
}

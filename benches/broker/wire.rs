//! MQTT 3.1.1, as much of it as a load needs: packets to send, and the cutting of what comes into packets.

/// A CONNECT packet with a clean session; `login` is a user and a password.
pub(crate) fn connect(client_id: &str, login: Option<(&str, &str)>) -> Vec<u8> {
    // Longer than any row takes, so that no pings are needed.
    const KEEP_ALIVE_S: u16 = 3_000;
    let flags = if login.is_some() { 0b1100_0010 } else { 0b10 };
    let mut body = [&text("MQTT")[..], &[4, flags], &KEEP_ALIVE_S.to_be_bytes(), &text(client_id)].concat();
    if let Some((user, password)) = login {
        body.extend(text(user));
        body.extend(text(password));
    }
    packet(0x10, &body)
}

/// The same, with a retained last will with QoS 1.
pub(crate) fn connect_with_will(client_id: &str, topic: &str, payload: &str) -> Vec<u8> {
    let head = [&text("MQTT")[..], &[4, 0b10_1110], &3_000_u16.to_be_bytes()].concat();
    packet(0x10, &[head, text(client_id), text(topic), text(payload)].concat())
}

/// A SUBSCRIBE packet with the same QoS for all filters.
pub(crate) fn subscribe<'a>(filters: impl IntoIterator<Item = &'a str>, qos: u8) -> Vec<u8> {
    let mut body = 1_u16.to_be_bytes().to_vec();
    for filter in filters {
        body.extend(text(filter));
        body.push(qos);
    }
    packet(0x82, &body)
}

/// A PUBLISH packet; with QoS 1 it has a packet id.
pub(crate) fn publish(topic: &str, packet_id: Option<u16>, retain: bool, payload: &[u8]) -> Vec<u8> {
    let mut body = text(topic);
    let mut first = 0x30 | u8::from(retain);
    if let Some(packet_id) = packet_id {
        first |= 0x02;
        body.extend(packet_id.to_be_bytes());
    }
    body.extend(payload);
    packet(first, &body)
}

/// A PUBACK.
pub(crate) fn puback(packet_id: [u8; 2]) -> [u8; 4] {
    [0x40, 2, packet_id[0], packet_id[1]]
}

/// A received PUBLISH: its topic, its packet id with QoS 1, and its payload.
pub(crate) type Arrived<'a> = (&'a [u8], Option<[u8; 2]>, &'a [u8]);

/// Parses a PUBLISH packet.
pub(crate) fn read_publish(first: u8, body: &[u8]) -> Option<Arrived<'_>> {
    let (length, rest) = body.split_first_chunk::<2>()?;
    let (topic, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
    if first & 0x06 == 0 {
        return Some((topic, None, rest));
    }
    let (packet_id, payload) = rest.split_first_chunk::<2>()?;
    Some((topic, Some(*packet_id), payload))
}

/// A packet: its first byte, its body, and its total length.
pub(crate) type Frame<'a> = (u8, &'a [u8], usize);

/// The first packet of the input, if it is complete.
pub(crate) fn frame(input: &[u8]) -> Result<Option<Frame<'_>>, &'static str> {
    let Some((first, rest)) = input.split_first() else { return Ok(None) };
    let mut length = 0;
    for index in 0..4 {
        let Some(byte) = rest.get(index) else { return Ok(None) };
        length |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            let head = index + 1;
            let body = rest.get(head..head + length);
            return Ok(body.map(|body| (*first, body, 1 + head + length)));
        }
    }
    Err("a packet's length is not MQTT's")
}

fn text(text: &str) -> Vec<u8> {
    let length = u16::try_from(text.len()).expect("a short text");
    [&length.to_be_bytes(), text.as_bytes()].concat()
}

fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![first];
    let mut length = body.len();
    loop {
        let low = u8::try_from(length % 128).expect("below 128");
        length /= 128;
        packet.push(if length > 0 { low | 0x80 } else { low });
        if length == 0 {
            break;
        }
    }
    packet.extend(body);
    packet
}

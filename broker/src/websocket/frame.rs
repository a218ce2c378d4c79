//! WebSocket's frames (RFC 6455, section 5), the server's side: bytes in, bytes out, no IO.
//!
//! MQTT uses a connection's binary messages as one stream of bytes, so neither frames nor messages have to be complete:
//! the bytes of a frame are unmasked in place and passed on.

/// The longest payload of a control frame.
pub(super) const CONTROL_MAX_BYTES: usize = 125;

/// The longest header that a server writes.
pub(super) const HEADER_MAX_BYTES: usize = 10;

/// A violation of the protocol that ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameViolation {
    #[error("a WebSocket frame that is not masked")]
    Unmasked,
    #[error("a WebSocket frame with reserved bits or of a reserved kind")]
    Reserved,
    #[error("a WebSocket frame with a length in more bytes than it needs")]
    Length,
    #[error("a WebSocket control frame in parts or of more than 125 bytes")]
    Control,
    #[error("a WebSocket frame that does not follow from the one before")]
    Order,
    #[error("an invalid WebSocket close frame")]
    Close,
    #[error("a WebSocket text frame, where MQTT needs a binary frame")]
    Text,
    #[error("a WebSocket frame larger than the limit")]
    TooLarge,
}

impl FrameViolation {
    /// Returns the code of the close frame.
    pub(super) fn code(self) -> u16 {
        match self {
            Self::Text => 1003,
            Self::TooLarge => 1009,
            _ => 1002,
        }
    }
}

/// The kind of a server's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameKind {
    Binary = 2,
    Close = 8,
    Pong = 10,
}

/// The next event in the input.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FrameEvent<'a> {
    /// The next bytes of MQTT, possibly none.
    Data(&'a [u8]),
    /// To be answered with the same payload.
    Ping(&'a [u8]),
    /// Nothing to do.
    Pong,
    /// The client sends no more; with its reason, if it gave one.
    Close(Option<u16>),
}

/// The state of reading a client's frames.
#[derive(Debug)]
pub(super) struct FrameReader {
    frame_max_bytes: u64,
    /// The remaining length of a data frame.
    rest: u64,
    /// Its mask, beginning with the next byte.
    mask: [u8; 4],
    /// Whether a message continues after the present frame.
    unfinished: bool,
}

/// A frame's header.
struct FrameHeader {
    last: bool,
    opcode: u8,
    length: u64,
    mask: [u8; 4],
    /// The header's own length.
    size: usize,
}

impl FrameReader {
    pub(super) fn new(frame_max_bytes: usize) -> Self {
        let frame_max_bytes = u64::try_from(frame_max_bytes).unwrap_or(u64::MAX);
        Self { frame_max_bytes, rest: 0, mask: [0; 4], unfinished: false }
    }

    /// Returns the next event in `input`, with at most `room` bytes of data, and how much of the input was used. `None`
    /// if more input is needed first.
    pub(super) fn read<'a>(
        &mut self,
        input: &'a mut [u8],
        room: usize,
    ) -> Result<Option<(FrameEvent<'a>, usize)>, FrameViolation> {
        if self.rest > 0 {
            let length = usize::try_from(self.rest).unwrap_or(usize::MAX).min(input.len()).min(room);
            return Ok(input.get_mut(..length).filter(|data| !data.is_empty()).map(|data| {
                unmask(data, &mut self.mask);
                self.rest -= u64::try_from(length).unwrap_or(self.rest);
                (FrameEvent::Data(data), length)
            }));
        }
        let Some(header) = header(input)? else { return Ok(None) };
        if header.opcode >= 8 {
            return control(header, input);
        }
        match (header.opcode, self.unfinished) {
            (0, true) | (2, false) => (),
            (0, false) | (1 | 2, true) => return Err(FrameViolation::Order),
            (1, false) => return Err(FrameViolation::Text),
            _ => return Err(FrameViolation::Reserved),
        }
        if header.length > self.frame_max_bytes {
            return Err(FrameViolation::TooLarge);
        }
        self.unfinished = !header.last;
        (self.rest, self.mask) = (header.length, header.mask);
        Ok(Some((FrameEvent::Data(&[]), header.size)))
    }
}

/// Parses a header, if it is complete.
fn header(input: &[u8]) -> Result<Option<FrameHeader>, FrameViolation> {
    let &[first, second, ref more @ ..] = input else { return Ok(None) };
    if first & 0x70 != 0 {
        return Err(FrameViolation::Reserved);
    }
    if second & 0x80 == 0 {
        return Err(FrameViolation::Unmasked);
    }
    let (length, least, more) = match (second & 0x7f, more) {
        (126, &[a, b, ref more @ ..]) => (u64::from(u16::from_be_bytes([a, b])), 126, more),
        (127, &[a, b, c, d, e, f, g, h, ref more @ ..]) => {
            (u64::from_be_bytes([a, b, c, d, e, f, g, h]), 1 << 16, more)
        }
        (126 | 127, _) => return Ok(None),
        (length, more) => (u64::from(length), 0, more),
    };
    if length < least || length > u64::MAX >> 1 {
        return Err(FrameViolation::Length);
    }
    let &[a, b, c, d, ref more @ ..] = more else { return Ok(None) };
    let size = input.len() - more.len();
    Ok(Some(FrameHeader { last: first & 0x80 != 0, opcode: first & 0x0f, length, mask: [a, b, c, d], size }))
}

/// Parses the rest of a control frame, if it is complete: it is short.
fn control(header: FrameHeader, input: &mut [u8]) -> Result<Option<(FrameEvent<'_>, usize)>, FrameViolation> {
    let FrameHeader { last, opcode, length, mut mask, size } = header;
    let length = usize::try_from(length).ok().filter(|length| last && *length <= CONTROL_MAX_BYTES);
    let used = size + length.ok_or(FrameViolation::Control)?;
    let Some(content) = input.get_mut(size..used) else { return Ok(None) };
    unmask(content, &mut mask);
    let step = match opcode {
        8 => FrameEvent::Close(reason(content)?),
        9 => FrameEvent::Ping(content),
        10 => FrameEvent::Pong,
        _ => return Err(FrameViolation::Reserved),
    };
    Ok(Some((step, used)))
}

/// Parses the code in a close frame.
fn reason(content: &[u8]) -> Result<Option<u16>, FrameViolation> {
    let &[high, low, ref text @ ..] = content else {
        return if content.is_empty() { Ok(None) } else { Err(FrameViolation::Close) };
    };
    let code = u16::from_be_bytes([high, low]);
    let may_be_sent = matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999);
    if may_be_sent && std::str::from_utf8(text).is_ok() { Ok(Some(code)) } else { Err(FrameViolation::Close) }
}

/// Removes the mask, and rotates it for the following bytes.
fn unmask(data: &mut [u8], mask: &mut [u8; 4]) {
    // In words, which the compiler vectorises.
    let (words, rest) = data.as_chunks_mut::<4>();
    for word in words {
        *word = (u32::from_ne_bytes(*word) ^ u32::from_ne_bytes(*mask)).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask.iter()) {
        *byte ^= mask;
    }
    mask.rotate_left(rest.len());
}

/// Writes the header of a whole message of `length` bytes; returns its length.
pub(super) fn write_header(kind: FrameKind, length: usize, out: &mut [u8; HEADER_MAX_BYTES]) -> usize {
    let first = 0x80 | kind as u8;
    let [a, b, c, d, e, f, g, h] = u64::try_from(length).unwrap_or(u64::MAX).to_be_bytes();
    let (bytes, size) = match length {
        0..126 => ([first, h, 0, 0, 0, 0, 0, 0, 0, 0], 2),
        126..0x1_0000 => ([first, 126, g, h, 0, 0, 0, 0, 0, 0], 4),
        _ => ([first, 127, a, b, c, d, e, f, g, h], HEADER_MAX_BYTES),
    };
    *out = bytes;
    size
}

#[cfg(test)]
mod tests {
    use super::{
        super::fuzzing::{Found, read},
        *,
    };
    use crate::choppy::fewer;
    use proptest::prelude::*;

    /// A frame as a client sends it.
    fn frame(first: u8, mask: [u8; 4], content: &[u8]) -> Vec<u8> {
        let mut header = [0; HEADER_MAX_BYTES];
        let size = write_header(FrameKind::Binary, content.len(), &mut header);
        let masked = content.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask);
        let mut frame = vec![first, header[1] | 0x80];
        frame.extend(&header[2..size]);
        frame.extend(mask);
        frame.extend(masked);
        frame
    }

    #[test]
    fn rfc_6455_examples_are_decoded() {
        // Section 5.7: "Hello" as a masked text message, and a masked pong of it; here as bytes.
        let hello = [0x82, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
        assert_eq!(read(&hello, 3, 100), Found { data: b"Hello".to_vec(), others: vec![], end: Ok(()) });
        let pong = [0x8a, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
        assert_eq!(read(&pong, 20, 100), Found { data: vec![], others: vec!["Pong".to_owned()], end: Ok(()) });
        let mut header = [0; HEADER_MAX_BYTES];
        for (length, expected) in
            [(5, &[0x82, 5][..]), (256, &[0x82, 0x7e, 1, 0]), (65536, &[0x82, 0x7f, 0, 0, 0, 0, 0, 1, 0, 0])]
        {
            let size = write_header(FrameKind::Binary, length, &mut header);
            assert_eq!(&header[..size], expected);
        }
    }

    #[test]
    fn invalid_frames_are_refused() {
        let mask = [1, 2, 3, 4];
        let huge = [&[0x82, 0xff][..], &u64::MAX.to_be_bytes(), &mask].concat();
        let large = [&[0x82, 0xff][..], &100_001_u64.to_be_bytes(), &mask].concat();
        for (input, violation) in [
            (vec![0x82, 0x05, b'H', b'e', b'l', b'l', b'o'], FrameViolation::Unmasked),
            (frame(0x81, mask, b"text"), FrameViolation::Text),
            (frame(0xc2, mask, b"compressed"), FrameViolation::Reserved),
            (frame(0x83, mask, b""), FrameViolation::Reserved),
            (frame(0x8b, mask, b""), FrameViolation::Reserved),
            (frame(0x80, mask, b"goes on from nothing"), FrameViolation::Order),
            ([frame(0x02, mask, b"a"), frame(0x82, mask, b"b")].concat(), FrameViolation::Order),
            ([frame(0x02, mask, b"a"), frame(0x81, mask, b"b")].concat(), FrameViolation::Order),
            (frame(0x09, mask, b"in parts"), FrameViolation::Control),
            (frame(0x89, mask, &[0; 126]), FrameViolation::Control),
            (vec![0x82, 0xfe, 0, 125, 0, 0, 0, 0], FrameViolation::Length),
            ([&[0x82, 0xff][..], &65_535_u64.to_be_bytes(), &mask].concat(), FrameViolation::Length),
            (huge, FrameViolation::Length),
            (large, FrameViolation::TooLarge),
            (frame(0x88, mask, &[3]), FrameViolation::Close),
            (frame(0x88, mask, &999_u16.to_be_bytes()), FrameViolation::Close),
            (frame(0x88, mask, &1005_u16.to_be_bytes()), FrameViolation::Close),
            (frame(0x88, mask, &[3, 232, 0xff]), FrameViolation::Close),
        ] {
            assert_eq!(read(&input, 1, 10).end, Err(violation), "{input:?}");
        }
        for (content, step) in
            [(&[][..], "Close(None)"), (&[3, 232], "Close(Some(1000))"), (b"\x0f\xa0why", "Close(Some(4000))")]
        {
            assert_eq!(read(&frame(0x88, mask, content), 1, 10).others, [step]);
        }
    }

    #[derive(Clone, Debug)]
    enum Sent {
        Message(Vec<Vec<u8>>),
        Ping(Vec<u8>),
    }

    fn sent() -> impl Strategy<Value = Sent> {
        let part =
            prop_oneof![prop::collection::vec(any::<u8>(), 0..20), (0_usize..70_000).prop_map(|size| vec![7; size])];
        prop_oneof![
            prop::collection::vec(part, 1..4).prop_map(Sent::Message),
            prop::collection::vec(any::<u8>(), 0..=CONTROL_MAX_BYTES).prop_map(Sent::Ping),
        ]
    }

    proptest! {
        #![proptest_config(fewer(4))]

        /// However messages are divided into frames, and frames into pieces, with pings in between, the data is the
        /// same.
        #[test]
        fn frames_and_pieces_make_no_difference(
            all in prop::collection::vec(sent(), 0..6),
            mask: [u8; 4],
            piece in prop_oneof![1_usize..40, Just(100_000)],
            room in prop_oneof![1_usize..40, Just(100_000)],
        ) {
            let (mut input, mut data, mut pings) = (Vec::new(), Vec::<u8>::new(), Vec::new());
            for sent in &all {
                match sent {
                    Sent::Ping(content) => {
                        input.extend(frame(0x89, mask, content));
                        pings.push(format!("{:?}", FrameEvent::Ping(content)));
                    }
                    Sent::Message(parts) => for (index, part) in parts.iter().enumerate() {
                        let first = if index == 0 { 2 } else { 0 } | if index + 1 == parts.len() { 0x80 } else { 0 };
                        input.extend(frame(first, mask, part));
                        // Control frames may come between a message's parts.
                        input.extend(frame(0x8a, mask, b"pong"));
                        pings.push("Pong".to_owned());
                        data.extend(part);
                    },
                }
            }
            let found = read(&input, piece, room);
            prop_assert!(found.data == data);
            prop_assert_eq!(found.others, pings);
            prop_assert_eq!(found.end, Ok(()));
        }
    }
}

//! Checked reading of a packet's body.

use super::malformed::Malformed;

/// The rest of a packet's body.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyReader<'a>(&'a [u8]);

impl<'a> BodyReader<'a> {
    pub(super) fn new(body: &'a [u8]) -> Self {
        Self(body)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        let (&byte, rest) = self.0.split_first().ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Malformed> {
        let (&bytes, rest) = self.0.split_first_chunk::<2>().ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(u16::from_be_bytes(bytes))
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        let (&bytes, rest) = self.0.split_first_chunk::<4>().ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(u32::from_be_bytes(bytes))
    }

    /// Reads a variable byte integer, in as few bytes as possible [MQTT-1.5.5-1].
    pub(super) fn varint(&mut self) -> Result<u32, Malformed> {
        let mut value = 0;
        for index in 0..4 {
            let byte = self.u8()?;
            value |= u32::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                return if byte == 0 && index > 0 { Err(Malformed::Overlong) } else { Ok(value) };
            }
        }
        Err(Malformed::Length)
    }

    /// Reads a packet identifier, which is never 0.
    pub(super) fn packet_id(&mut self) -> Result<u16, Malformed> {
        match self.u16()? {
            0 => Err(Malformed::PacketId),
            id => Ok(id),
        }
    }

    /// Reads bytes with their length.
    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u16()?;
        self.take(length.into())
    }

    /// Reads a string with its length [MQTT-1.5.4-1] [MQTT-1.5.4-2].
    pub(super) fn text(&mut self) -> Result<&'a str, Malformed> {
        let text = std::str::from_utf8(self.bytes()?).map_err(|_| Malformed::Text)?;
        if text.contains('\0') { Err(Malformed::Text) } else { Ok(text) }
    }

    /// Reads strings to the end, at least one.
    pub(super) fn texts(mut self) -> Result<Vec<&'a str>, Malformed> {
        let mut texts = Vec::new();
        while !self.is_empty() {
            texts.push(self.text()?);
        }
        if texts.is_empty() { Err(Malformed::NoFilters) } else { Ok(texts) }
    }

    /// Returns the rest.
    pub(super) fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Checks that nothing is left.
    pub(super) fn end(self) -> Result<(), Malformed> {
        if self.is_empty() { Ok(()) } else { Err(Malformed::Long) }
    }
}

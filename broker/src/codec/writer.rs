//! Writes primitive types.

use bytes::{BufMut, BytesMut};

/// Writes a variable byte integer.
pub(super) fn put_length(mut length: usize, out: &mut BytesMut) {
    loop {
        let low = (length & 0x7f) as u8;
        length >>= 7;
        if length == 0 {
            out.put_u8(low);
            return;
        }
        out.put_u8(low | 0x80);
    }
}

/// Returns how many bytes [`put_length`] writes.
pub(super) fn length_len(length: usize) -> usize {
    match length {
        0..=0x7f => 1,
        0x80..=0x3fff => 2,
        0x4000..=0x1f_ffff => 3,
        _ => 4,
    }
}

/// Cuts what does not fit into a length of two bytes. Topics and client ids arrived with one and are limited to far
/// less, so nothing is ever cut; but packets must be valid whatever the input.
fn fitting(bytes: &[u8]) -> (&[u8], u16) {
    match u16::try_from(bytes.len()) {
        Ok(length) => (bytes, length),
        Err(_) => (bytes.get(..u16::MAX.into()).unwrap_or_default(), u16::MAX),
    }
}

/// Writes bytes with their length.
pub(super) fn put_bytes(bytes: &[u8], out: &mut BytesMut) {
    let (bytes, length) = fitting(bytes);
    out.put_u16(length);
    out.put_slice(bytes);
}

/// Returns how many bytes [`put_bytes`] writes.
pub(super) fn bytes_len(bytes: &[u8]) -> usize {
    2 + fitting(bytes).0.len()
}

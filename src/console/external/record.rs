//! A record of a queue: lines packed with gzip, behind a header with their sizes. Pure.
//!
//! The header has five little-endian numbers of four bytes: the length of the body, the number of lines, their unpacked length, a
//! magic number, and a checksum over all of that and the body.

use std::io::{Read, Write};

use flate2::{Compression, read::GzDecoder, write::GzEncoder};

use super::lines::LinePiece;

/// The length of a header.
pub(super) const HEAD_BYTES: usize = 20;
/// The magic number `mst1`, which distinguishes records from other data.
const MARK: u32 = u32::from_le_bytes(*b"mst1");

/// A record, ready to be appended.
#[derive(Clone, Debug)]
pub(super) struct QueueRecord {
    /// Header and lines.
    pub(super) bytes: Vec<u8>,
    /// The number of lines.
    pub(super) lines: u64,
}

/// The content of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHead {
    /// The length of the compressed lines.
    pub(super) packed_bytes: u32,
    /// The number of lines.
    pub(super) lines: u32,
    /// The length of the lines.
    pub(super) plain_bytes: u32,
    checksum: u32,
}

impl RecordHead {
    /// Parses a header; `None` if it is invalid.
    pub(super) fn read(bytes: &[u8; HEAD_BYTES]) -> Option<Self> {
        let (words, _) = bytes.as_chunks::<4>();
        let [packed_bytes, lines, plain_bytes, mark, checksum] =
            words.iter().map(|word| u32::from_le_bytes(*word)).collect::<Vec<_>>()[..]
        else {
            return None;
        };
        (mark == MARK).then_some(Self { packed_bytes, lines, plain_bytes, checksum })
    }

    /// The length of the whole record.
    pub(super) fn record_bytes(self) -> u64 {
        HEAD_BYTES as u64 + u64::from(self.packed_bytes)
    }

    /// Whether these are the bytes written with this header.
    pub(super) fn fits(self, packed: &[u8]) -> bool {
        self.packed_bytes as usize == packed.len() && checksum(self, packed) == self.checksum
    }

    /// Decompresses the lines of this header; `None` if they are damaged.
    pub(super) fn unpack(self, packed: &[u8]) -> Option<String> {
        if !self.fits(packed) {
            return None;
        }
        let mut text = String::with_capacity(self.plain_bytes as usize);
        let limit = u64::from(self.plain_bytes) + 1;
        GzDecoder::new(packed).take(limit).read_to_string(&mut text).ok()?;
        (text.len() == self.plain_bytes as usize).then_some(text)
    }

    fn words(self) -> [[u8; 4]; 4] {
        [self.packed_bytes, self.lines, self.plain_bytes, MARK].map(u32::to_le_bytes)
    }
}

fn checksum(head: RecordHead, packed: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head.words().as_flattened());
    hasher.update(packed);
    hasher.finalize()
}

impl QueueRecord {
    /// Compresses lines. `None` if there are more than a header can count, which pieces never have.
    pub(super) fn of(piece: &LinePiece) -> Option<Self> {
        // Fast, because this delays an acknowledgement. Lines are similar, so it still reaches a tenth.
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        // Writing to a Vec cannot fail.
        encoder.write_all(piece.text.as_bytes()).ok()?;
        let packed = encoder.finish().ok()?;
        let mut head = RecordHead {
            packed_bytes: u32::try_from(packed.len()).ok()?,
            lines: u32::try_from(piece.lines).ok()?,
            plain_bytes: u32::try_from(piece.text.len()).ok()?,
            checksum: 0,
        };
        head.checksum = checksum(head, &packed);
        let mut bytes = head.words().as_flattened().to_vec();
        bytes.extend(head.checksum.to_le_bytes());
        bytes.extend(packed);
        Some(Self { bytes, lines: piece.lines })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(record: &QueueRecord) -> (RecordHead, &[u8]) {
        let (head, packed) = record.bytes.split_first_chunk().unwrap();
        (RecordHead::read(head).unwrap(), packed)
    }

    #[test]
    fn packed_record_unpacks_and_damage_is_detected() {
        let piece = LinePiece { text: "m f=1 1800000000000\n".repeat(50), lines: 50 };
        let record = QueueRecord::of(&piece).unwrap();
        let (head, packed) = split(&record);
        assert_eq!((head.lines, head.record_bytes()), (50, record.bytes.len() as u64));
        assert!(record.bytes.len() * 5 < piece.text.len(), "{} bytes", record.bytes.len());
        assert_eq!(head.unpack(packed), Some(piece.text));
        for place in 0..record.bytes.len() {
            let mut damaged = record.clone();
            damaged.bytes[place] ^= 0x10;
            let (head, packed) = damaged.bytes.split_first_chunk().unwrap();
            assert_eq!(RecordHead::read(head).and_then(|head| head.unpack(packed)), None, "byte {place}");
        }
        assert_eq!(head.unpack(&packed[..packed.len() - 1]), None);
    }
}

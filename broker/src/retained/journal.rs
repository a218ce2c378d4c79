//! The file format of retained messages. No thread, no policy.
//!
//! ```text
//! header:  "muster-retained\n" | version u32 | salt u64 | checksum u32 of all before
//! record:  length u32 | kind u32 | checksum u32 of the body | checksum u32 of these three | body
//! ```
//!
//! Integers are little-endian. Kind 1: the body is a message as [`BrokerMessage::as_bytes`] gives it, which is the topic's
//! retained message from now on. Kind 2: the body is a topic that has none any more. Kind 3: the body is the serial number, in
//! 20 bytes, of the certificate that an identity showed last, and its common name. A change of either layout needs another
//! [`VERSION`]; an earlier program skips records of an unknown kind.
//!
//! The head of a record has a checksum of its own, so that a damaged length is detected before it is used, and
//! reading can resume at the next valid record. The salt, chosen at random for each file, goes into every checksum: a
//! payload cannot imitate a record.
//!
//! **Invariant: what is read is what was written.** A torn end is what a crash leaves, and is truncated. Any other
//! checksum error is damage, which is reported, and the records before and behind it are kept.

use std::{
    fs::File,
    hash::{BuildHasher, RandomState},
    io::{self, BufReader, ErrorKind, Read, Seek},
};

use bytes::Bytes;
use muster_topics::role::Identity;

use crate::{
    identity::{SERIAL_MAX_BYTES, Serial},
    message::BrokerMessage,
};

const MAGIC: &[u8; 16] = b"muster-retained\n";

/// The version of this layout, and of the wire whose messages are kept.
pub(super) const VERSION: u32 = 2;

pub(super) const HEADER_BYTES: usize = MAGIC.len() + 4 + 8 + 4;

/// The length of a record's header.
pub(super) const HEAD_BYTES: usize = 16;

const KEPT: u32 = 1;
const CLEARED: u32 = 2;
const SHOWN: u32 = 3;

/// A record of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum JournalRecord {
    /// A topic's retained message.
    Kept(BrokerMessage),
    /// This topic has none any more.
    Cleared(Bytes),
    /// An identity with its certificate, whose messages are cleared when that is revoked.
    Shown(Identity, Serial),
}

impl JournalRecord {
    fn kind(&self) -> u32 {
        match self {
            Self::Kept(_) => KEPT,
            Self::Cleared(_) => CLEARED,
            Self::Shown(..) => SHOWN,
        }
    }

    fn body(&self) -> Bytes {
        match self {
            Self::Kept(message) => message.as_bytes().clone(),
            Self::Cleared(topic) => topic.clone(),
            Self::Shown(identity, serial) => [serial.as_bytes(), identity.to_string().as_bytes()].concat().into(),
        }
    }

    /// Returns the approximate length of its body.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Kept(message) => message.len(),
            Self::Cleared(topic) => topic.len(),
            Self::Shown(..) => SERIAL_MAX_BYTES + 64,
        }
    }

    fn parse(kind: u32, body: Bytes) -> Option<Self> {
        match kind {
            KEPT => BrokerMessage::from_bytes(body).map(Self::Kept),
            CLEARED => std::str::from_utf8(&body).is_ok().then_some(Self::Cleared(body)),
            SHOWN => {
                let (serial, common_name) = body.split_at_checked(SERIAL_MAX_BYTES)?;
                let identity = std::str::from_utf8(common_name).ok()?.parse().ok()?;
                Some(Self::Shown(identity, Serial::new(serial)?))
            }
            _ => None,
        }
    }

    /// Appends the record to `out`. A body has at most MQTT's 256 MiB, so its length fits.
    pub(super) fn write(&self, salt: u64, out: &mut Vec<u8>) {
        let body = self.body();
        let start = out.len();
        out.extend(u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend(self.kind().to_le_bytes());
        out.extend(checksum(salt, &body).to_le_bytes());
        let head = checksum(salt, out.get(start..).unwrap_or_default());
        out.extend(head.to_le_bytes());
        out.extend_from_slice(&body);
    }
}

fn checksum(salt: u64, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&salt.to_le_bytes());
    hasher.update(bytes);
    hasher.finalize()
}

/// Returns a salt for a new file: the standard library seeds its hash tables at random.
pub(super) fn new_salt() -> u64 {
    RandomState::new().hash_one(VERSION)
}

/// Returns the header of a file with this salt.
pub(super) fn header(salt: u64) -> [u8; HEADER_BYTES] {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.extend_from_slice(MAGIC);
    header.extend(VERSION.to_le_bytes());
    header.extend(salt.to_le_bytes());
    header.extend(crc32fast::hash(&header).to_le_bytes());
    header.try_into().unwrap_or([0; HEADER_BYTES])
}

/// What a file turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum JournalFile {
    /// One to continue: its salt, and its valid length.
    Sound {
        salt: u64,
        end: u64,
        /// Bytes after that, to be truncated.
        torn: u64,
    },
    /// An incomplete header: the file was never finished.
    Unfinished,
    /// Parts of it are unreadable.
    Damaged {
        /// Where the first of them begins.
        at: u64,
        /// Their total length.
        lost: u64,
    },
    /// It was written by another version.
    Version(u32),
}

/// Reads a file from its beginning and passes each valid record to `take`.
pub(super) fn read(file: &File, mut take: impl FnMut(JournalRecord)) -> io::Result<JournalFile> {
    let end = file.metadata()?.len();
    let mut reader = JournalReader { file: BufReader::with_capacity(1 << 16, file), end, salt: 0 };
    match reader.header()? {
        Ok(salt) => reader.salt = salt,
        Err(found) => return Ok(found),
    }
    let mut at = HEADER_BYTES as u64;
    let (mut sound, mut bad_since, mut damage) = (at, None, None);
    let mut add = |from: u64, to: u64| damage.get_or_insert((from, 0)).1 += to - from;
    reader.seek(at)?;
    loop {
        match reader.record(at)? {
            JournalItem::Record(record, next) => {
                if let Some(since) = bad_since.take() {
                    add(since, at);
                }
                match record {
                    Some(record) => take(record),
                    // It is intact, but was not written by this program.
                    None => add(at, next),
                }
                (at, sound) = (next, next);
            }
            JournalItem::End => break,
            JournalItem::Bad => {
                bad_since.get_or_insert(at);
                match reader.next_head(at + 1)? {
                    Some(next) => at = next,
                    None => break,
                }
            }
        }
    }
    Ok(match (damage, bad_since) {
        (None, _) => JournalFile::Sound { salt: reader.salt, end: sound, torn: end - sound },
        (Some((at, lost)), None) => JournalFile::Damaged { at, lost },
        (Some((at, lost)), Some(since)) => JournalFile::Damaged { at, lost: lost + (end - since) },
    })
}

/// What is at one position of the file.
enum JournalItem {
    /// A valid record (if its kind is known) and where the next begins.
    Record(Option<JournalRecord>, u64),
    End,
    Bad,
}

/// A record's header with a valid checksum.
struct JournalRecordHead {
    length: u32,
    kind: u32,
    body: u32,
}

impl JournalRecordHead {
    fn parse(salt: u64, bytes: &[u8; HEAD_BYTES]) -> Option<Self> {
        let [l0, l1, l2, l3, k0, k1, k2, k3, b0, b1, b2, b3, h0, h1, h2, h3] = *bytes;
        let sound = checksum(salt, bytes.get(..HEAD_BYTES - 4)?) == u32::from_le_bytes([h0, h1, h2, h3]);
        sound.then_some(Self {
            length: u32::from_le_bytes([l0, l1, l2, l3]),
            kind: u32::from_le_bytes([k0, k1, k2, k3]),
            body: u32::from_le_bytes([b0, b1, b2, b3]),
        })
    }
}

struct JournalReader<'a> {
    file: BufReader<&'a File>,
    end: u64,
    salt: u64,
}

impl JournalReader<'_> {
    fn seek(&mut self, to: u64) -> io::Result<()> {
        let by =
            i64::try_from(to).unwrap_or(i64::MAX) - i64::try_from(self.file.stream_position()?).unwrap_or(i64::MAX);
        // Relative, because that keeps the buffer.
        self.file.seek_relative(by)
    }

    /// Returns the salt, or what the file is instead.
    fn header(&mut self) -> io::Result<Result<u64, JournalFile>> {
        let mut start = Vec::with_capacity(HEADER_BYTES);
        (&mut self.file).take(HEADER_BYTES as u64).read_to_end(&mut start)?;
        let number =
            |from: usize| start.get(from..from + 4).and_then(|four| four.try_into().ok()).map(u32::from_le_bytes);
        let salt = start.get(20..28).and_then(|eight| eight.try_into().ok()).map(u64::from_le_bytes);
        let (Some(version), Some(salt), Some(_)) = (number(16), salt, number(28)) else {
            let known = start.iter().zip(MAGIC.iter().chain(&VERSION.to_le_bytes())).all(|(is, ours)| is == ours);
            return Ok(Err(if known {
                JournalFile::Unfinished
            } else {
                JournalFile::Damaged { at: 0, lost: self.end }
            }));
        };
        Ok(if !start.starts_with(MAGIC) {
            Err(JournalFile::Damaged { at: 0, lost: self.end })
        } else if version != VERSION && start.get(..28).map(crc32fast::hash) == number(28) {
            // Another version wrote it, and it is intact.
            Err(JournalFile::Version(version))
        } else if start != header(salt) {
            Err(JournalFile::Damaged { at: 0, lost: self.end })
        } else {
            Ok(salt)
        })
    }

    /// Reads the record at the reader's position, which is `at`. If it is invalid, the reader is somewhere behind.
    fn record(&mut self, at: u64) -> io::Result<JournalItem> {
        let left = self.end.saturating_sub(at);
        if left == 0 {
            return Ok(JournalItem::End);
        }
        let mut head = [0; HEAD_BYTES];
        if left < HEAD_BYTES as u64 || !self.read(&mut head)? {
            return Ok(JournalItem::Bad);
        }
        let Some(head) = JournalRecordHead::parse(self.salt, &head) else { return Ok(JournalItem::Bad) };
        let length = u64::from(head.length);
        if length > left - HEAD_BYTES as u64 {
            return Ok(JournalItem::Bad);
        }
        let mut body = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
        if !self.read(&mut body)? || checksum(self.salt, &body) != head.body {
            return Ok(JournalItem::Bad);
        }
        Ok(JournalItem::Record(JournalRecord::parse(head.kind, body.into()), at + HEAD_BYTES as u64 + length))
    }

    /// Returns the position of the next header with a valid checksum, from `from` on. The reader is there then.
    fn next_head(&mut self, from: u64) -> io::Result<Option<u64>> {
        self.seek(from)?;
        let mut window = [0; HEAD_BYTES];
        if !self.read(&mut window)? {
            return Ok(None);
        }
        let mut at = from;
        loop {
            if JournalRecordHead::parse(self.salt, &window).is_some() {
                self.seek(at)?;
                return Ok(Some(at));
            }
            window.rotate_left(1);
            let [.., last] = &mut window;
            if !self.read(std::slice::from_mut(last))? {
                return Ok(None);
            }
            at += 1;
        }
    }

    /// Fills `bytes`; returns false if the file ended before.
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<bool> {
        match self.file.read_exact(bytes) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;

//! The times at which a log was written. The log's own bytes stay as the program wrote them: the times of `log` are in
//! `times`, those of `log.1` in `times.1`, and so on.
//!
//! Such a file is a sequence of records, each of which gives the time at which the bytes from one position of the log on were
//! written. A *mark* is absolute: two bytes `00 54`, then in 8 little-endian bytes each the inode of the log, the
//! position, and the time in milliseconds since 1970. A *step* is relative to the record before it: the number of bytes (never zero)
//! and of milliseconds, signed; both as LEB128, the latter in zigzag order. So a line takes a few bytes,
//! and everything written within a millisecond one record.
//!
//! The inode tells which log a file of times belongs to, whatever both are called by now: they are renamed one after the
//! other. A file of times may end within a record, or have zeros after a power cut.

/// First bytes of a mark. The first byte of a step is never 0.
const MARK: [u8; 2] = [0, b'T'];

/// Length of a mark.
pub const MARK_BYTES: usize = 26;

/// Longest step: each byte holds seven bits.
pub const STEP_MAX_BYTES: usize = 20;

/// Appends a mark.
pub fn mark(into: &mut Vec<u8>, inode: u64, at_bytes: u64, at_ms: i64) {
    into.extend(MARK);
    into.extend(inode.to_le_bytes());
    into.extend(at_bytes.to_le_bytes());
    into.extend(at_ms.to_le_bytes());
}

/// Appends a step of at least one byte.
pub fn step(into: &mut Vec<u8>, bytes: u64, ms: i64) {
    leb128(into, bytes.max(1));
    leb128(into, (ms.cast_unsigned() << 1) ^ (ms >> 63).cast_unsigned());
}

/// The inode of the log to which a file of times belongs, from the beginning of that file.
#[must_use]
pub fn inode_of(beginning: &[u8]) -> Option<u64> {
    read_mark(beginning).map(|(inode, ..)| inode)
}

/// The recorded times of one log file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogTimes {
    /// Positions in bytes and the times at which they were written, sorted by position.
    records: Vec<(u64, i64)>,
}

impl LogTimes {
    /// Parses recorded times; `None` if they belong to another log. Unreadable parts are skipped.
    #[must_use]
    pub fn of(inode: u64, mut bytes: &[u8]) -> Option<Self> {
        if inode_of(bytes) != Some(inode) {
            return None;
        }
        let mut records: Vec<(u64, i64)> = Vec::new();
        while let Some(first) = bytes.first() {
            let rest = if *first == 0 {
                let Some((of, at_bytes, at_ms)) = read_mark(bytes) else {
                    // A power failure can leave zeros.
                    bytes = &bytes[1..];
                    continue;
                };
                if of == inode {
                    // The writer of a mark knew the length of the log, so later positions before it are wrong.
                    while records.last().is_some_and(|(before, _)| *before >= at_bytes) {
                        records.pop();
                    }
                    records.push((at_bytes, at_ms));
                }
                bytes.get(MARK_BYTES..)
            } else {
                read_step(bytes).and_then(|(step_bytes, step_ms, rest)| {
                    let (before_bytes, before_ms) = records.last().copied()?;
                    records.push((before_bytes.checked_add(step_bytes)?, before_ms.checked_add(step_ms)?));
                    Some(rest)
                })
            };
            let Some(rest) = rest else { break };
            bytes = rest;
        }
        Some(Self { records })
    }

    /// The first position with a known time, and that time.
    #[must_use]
    pub fn begin(&self) -> Option<(u64, i64)> {
        self.records.first().copied()
    }

    /// The time at which the byte at this position was written, if known.
    #[must_use]
    pub fn at(&self, at_bytes: u64) -> Option<i64> {
        let after = self.records.partition_point(|(from_bytes, _)| *from_bytes <= at_bytes);
        self.records.get(after.checked_sub(1)?).map(|(_, at_ms)| *at_ms)
    }

    /// The range of positions that contains everything written from `since_ms` to `until_ms`: its start, and its end if
    /// that is not the end of the log. Bytes without a time count as before the first record. The range may contain
    /// other lines as well, because clocks can be set back.
    #[must_use]
    pub fn range(&self, since_ms: Option<i64>, until_ms: Option<i64>) -> (u64, Option<u64>) {
        let is_meant =
            |at_ms: i64| since_ms.is_none_or(|since| at_ms >= since) && until_ms.is_none_or(|until| at_ms <= until);
        let first = self.records.iter().find(|(_, at_ms)| is_meant(*at_ms));
        let last = self.records.iter().rposition(|(_, at_ms)| is_meant(*at_ms));
        let from = match since_ms {
            None => 0,
            Some(_) => first.map_or(u64::MAX, |(at_bytes, _)| *at_bytes),
        };
        let to = match (until_ms, last) {
            (None, _) => None,
            (Some(_), Some(last)) => self.records.get(last + 1).map(|(at_bytes, _)| *at_bytes),
            // Everything with a time is later; only bytes without a time can be earlier.
            (Some(_), None) => self.records.first().map(|(at_bytes, _)| *at_bytes),
        };
        (from, to)
    }
}

fn read_mark(bytes: &[u8]) -> Option<(u64, u64, i64)> {
    let mark = bytes.get(..MARK_BYTES)?.strip_prefix(&MARK)?;
    let number = |at: usize| Some(u64::from_le_bytes(mark.get(at..at + 8)?.try_into().ok()?));
    Some((number(0)?, number(8)?, number(16)?.cast_signed()))
}

fn read_step(bytes: &[u8]) -> Option<(u64, i64, &[u8])> {
    let (step_bytes, rest) = read_leb128(bytes)?;
    let (zigzag, rest) = read_leb128(rest)?;
    Some((step_bytes, (zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed(), rest))
}

fn leb128(into: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        into.push(value as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

fn read_leb128(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (index, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f).checked_shl(7 * index as u32)?;
        if byte & 0x80 == 0 {
            return Some((value, &bytes[index + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(records: &[(u64, i64)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut last = None;
        for (at_bytes, at_ms) in records {
            match last.replace((*at_bytes, *at_ms)) {
                None => mark(&mut bytes, 7, *at_bytes, *at_ms),
                Some((before_bytes, before_ms)) => step(&mut bytes, at_bytes - before_bytes, at_ms - before_ms),
            }
        }
        bytes
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        let records = [(0, 1_795_000_000_000), (1, 1_795_000_000_001), (200, 1_794_000_000_000), (9_000_000, 1)];
        let bytes = written(&records);
        let times = LogTimes::of(7, &bytes).unwrap();
        assert_eq!(times.records, records);
        assert_eq!(LogTimes::of(8, &bytes), None);
        // A truncated file keeps its whole records.
        for cut in MARK_BYTES..bytes.len() {
            let times = LogTimes::of(7, &bytes[..cut]).unwrap();
            assert_eq!(times.records, records[..times.records.len()], "{cut}");
        }
        assert!(bytes.len() < MARK_BYTES + 3 * STEP_MAX_BYTES);
    }

    #[test]
    fn time_of_a_byte_is_that_of_the_record_before_it() {
        let times = LogTimes::of(7, &written(&[(10, 100), (20, 200)])).unwrap();
        let at: Vec<Option<i64>> = [0, 9, 10, 19, 20, 1_000].map(|at| times.at(at)).into();
        assert_eq!(at, [None, None, Some(100), Some(100), Some(200), Some(200)]);
    }

    #[test]
    fn mark_after_a_power_cut_replaces_what_it_contradicts() {
        let mut bytes = written(&[(0, 100), (50, 110), (90, 120)]);
        bytes.extend([0; 11]);
        mark(&mut bytes, 7, 60, 500);
        step(&mut bytes, 5, 1);
        assert_eq!(LogTimes::of(7, &bytes).unwrap().records, [(0, 100), (50, 110), (60, 500), (65, 501)]);
    }

    #[test]
    fn range_has_all_that_was_written_within() {
        let times = LogTimes::of(7, &written(&[(10, 100), (20, 200), (30, 300), (40, 150)])).unwrap();
        for (since, until, wanted) in [
            (None, None, (0, None)),
            (Some(100), None, (10, None)),
            (Some(101), None, (20, None)),
            (Some(301), None, (u64::MAX, None)),
            (None, Some(99), (0, Some(10))),
            (None, Some(100), (0, Some(20))),
            // The clock was set back.
            (None, Some(250), (0, None)),
            (Some(250), Some(350), (30, Some(40))),
        ] {
            assert_eq!(times.range(since, until), wanted, "{since:?} {until:?}");
        }
    }

    #[test]
    fn invalid_record_ends_reading_without_error() {
        for bytes in [&b""[..], b"\0T", b"no times at all, but a text", &[0; 100], &[0xff; 100]] {
            assert_eq!(LogTimes::of(7, bytes), None);
        }
        let mut bytes = written(&[(0, 100)]);
        bytes.extend([0xff; 30]);
        assert_eq!(LogTimes::of(7, &bytes).unwrap().records, [(0, 100)]);
    }
}

//! The backlog of an external store: records in files, oldest first, bounded in bytes.
//!
//! A folder with numbered segments, of which the last is appended to, and the file `sent`, the position up to which everything was
//! sent. Each start of the console begins a new segment, so nothing is appended behind a torn write.
//!
//! **Invariant: a record that [`DiskQueue::append`] took survives a power cut**, until it was sent or dropped for room.
//!
//! **Invariant: the queue never exceeds its limit.** When it is full the oldest segment is deleted, and counted.
//!
//! `sent` is not synced: after a power cut some lines may be sent again, which is harmless because points are idempotent.

use std::{
    collections::VecDeque,
    fs::{self, File, OpenOptions},
    io::{self, BufReader, ErrorKind, Read, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use muster_base::files;

use super::{
    lines::LinePiece,
    record::{HEAD_BYTES, QueueRecord, RecordHead},
};

/// The share of the limit that is dropped at once when the queue is full, and that stays on disk although it was sent.
const SEGMENT_SHARE: u64 = 16;
/// Larger segments would only keep more data that was sent.
const SEGMENT_MAX_BYTES: u64 = 8 * 1024 * 1024;
/// The file with the position up to which everything was sent.
const SENT: &str = "sent";
/// The suffix of segments, after their numbers.
const SUFFIX: &str = ".queue";

/// A position between two records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct QueuePosition {
    segment: u64,
    offset: u64,
}

/// One file.
#[derive(Debug)]
struct QueueSegment {
    number: u64,
    /// The length of its complete records.
    bytes: u64,
    /// Unsent lines in it.
    lines: u64,
}

/// The queue.
#[derive(Debug)]
pub(super) struct DiskQueue {
    folder: PathBuf,
    max_bytes: u64,
    /// Oldest first; never empty. Everything before `head` was sent.
    segments: VecDeque<QueueSegment>,
    /// The last segment, open for appending.
    tail: File,
    /// Whether the last segment has bytes after its complete records.
    torn: bool,
    /// The position of the first unsent record.
    head: QueuePosition,
    /// Lines that were dropped, or became unreadable, since the console started.
    dropped: u64,
}

/// The next piece to send.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct QueuedPiece {
    /// The lines.
    pub(super) piece: LinePiece,
    /// The position where it ends.
    to: QueuePosition,
    /// The number of its lines in each segment.
    of: Vec<(u64, u64)>,
}

/// The size of the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct QueueSize {
    /// Unsent lines.
    pub(super) lines: u64,
    /// Their bytes on disk.
    pub(super) bytes: u64,
    /// Lines lost since the console started.
    pub(super) dropped: u64,
}

impl DiskQueue {
    /// Opens the queue in a folder, and creates it if needed.
    pub(super) fn open(folder: &Path, max_bytes: u64) -> io::Result<Self> {
        files::make_folder(folder, files::PRIVATE_FOLDER)?;
        let mut numbers: Vec<u64> = Vec::new();
        for entry in fs::read_dir(folder)? {
            let name = entry?.file_name();
            numbers.extend(name.to_str().and_then(|name| name.strip_suffix(SUFFIX)?.parse::<u64>().ok()));
        }
        numbers.sort_unstable();
        let mut head = sent(folder);
        let mut segments = VecDeque::new();
        for &number in &numbers {
            if number < head.segment {
                fs::remove_file(segment_path(folder, number))?;
                continue;
            }
            let from = if number == head.segment { head.offset } else { 0 };
            segments.push_back(scan(folder, number, from)?);
        }
        let next = numbers.last().map_or(0, |last| last + 1).max(head.segment);
        let tail = new_segment(folder, next)?;
        segments.push_back(QueueSegment { number: next, bytes: 0, lines: 0 });
        if let Some(first) = segments.front()
            && (first.number != head.segment || head.offset > first.bytes)
        {
            head = QueuePosition { segment: first.number, offset: 0 };
        }
        let mut queue = Self { folder: folder.to_owned(), max_bytes, segments, tail, torn: false, head, dropped: 0 };
        queue.pass_what_was_sent();
        queue.make_room(0)?;
        Ok(queue)
    }

    /// Returns the size of what waits.
    pub(super) fn waiting(&self) -> QueueSize {
        let lines = self.segments.iter().map(|segment| segment.lines).sum();
        QueueSize { lines, bytes: self.bytes().saturating_sub(self.head.offset), dropped: self.dropped }
    }

    /// Appends records. When this returns they survive a power failure.
    ///
    /// # Errors
    /// If they cannot be written. Some of them may be there all the same, and be sent.
    pub(super) fn append(&mut self, records: &[QueueRecord]) -> io::Result<()> {
        for record in records {
            let bytes = record.bytes.len() as u64;
            if self.torn || self.tail_bytes() > 0 && self.tail_bytes() + bytes > self.segment_max() {
                self.rotate()?;
            }
            self.make_room(bytes)?;
            if let Err(error) = self.tail.write_all(&record.bytes) {
                // A full disk may have taken a part; it is removed if possible.
                self.torn = self.tail.set_len(self.tail_bytes()).is_err();
                return Err(error);
            }
            if let Some(tail) = self.segments.back_mut() {
                tail.bytes += bytes;
                tail.lines += record.lines;
            }
        }
        self.tail.sync_data()
    }

    /// Returns the next piece to send, as large as one request allows; `None` if the queue is empty.
    ///
    /// # Errors
    /// If a file cannot be read. Damaged records are skipped instead, and counted.
    pub(super) fn take(&mut self) -> io::Result<Option<QueuedPiece>> {
        loop {
            let (taken, damaged) = self.read_on()?;
            if taken.piece.lines > 0 {
                return Ok(Some(taken));
            }
            let Some(segment) = damaged else { return Ok(None) };
            self.pass_over(segment)?;
        }
    }

    /// Reads from the head until a piece is full. Returns also the damaged segment, if that ended it.
    fn read_on(&self) -> io::Result<(QueuedPiece, Option<u64>)> {
        let mut taken = QueuedPiece { to: self.head, ..QueuedPiece::default() };
        for segment in &self.segments {
            let mut offset = if segment.number == self.head.segment { self.head.offset } else { 0 };
            if offset >= segment.bytes {
                continue;
            }
            let file = File::open(segment_path(&self.folder, segment.number))?;
            let mut lines = 0;
            while offset < segment.bytes {
                let Some((head, packed)) = record_at(&file, offset)? else {
                    taken.of.push((segment.number, lines));
                    return Ok((taken, Some(segment.number)));
                };
                if taken.piece.is_full_with(head.lines.into(), head.plain_bytes.into()) {
                    taken.of.push((segment.number, lines));
                    return Ok((taken, None));
                }
                let Some(text) = head.unpack(&packed) else {
                    taken.of.push((segment.number, lines));
                    return Ok((taken, Some(segment.number)));
                };
                taken.piece.text.push_str(&text);
                taken.piece.lines += u64::from(head.lines);
                lines += u64::from(head.lines);
                offset += head.record_bytes();
                taken.to = QueuePosition { segment: segment.number, offset };
            }
            taken.of.push((segment.number, lines));
        }
        Ok((taken, None))
    }

    /// Skips the rest of a damaged segment.
    fn pass_over(&mut self, number: u64) -> io::Result<()> {
        if self.segments.back().is_some_and(|tail| tail.number == number) {
            self.rotate()?;
        }
        if let Some(segment) = self.segments.iter_mut().find(|segment| segment.number == number) {
            tracing::error!(
                file = %segment_path(&self.folder, number).display(), lines = segment.lines,
                "a damaged part of an external store's queue is skipped"
            );
            self.dropped += segment.lines;
            segment.lines = 0;
            self.head = QueuePosition { segment: number, offset: segment.bytes };
        }
        self.pass_what_was_sent();
        Ok(())
    }

    /// Removes a piece that was sent, or set aside.
    pub(super) fn sent(&mut self, taken: &QueuedPiece) {
        // It may have been dropped meanwhile.
        if taken.to <= self.head {
            return;
        }
        for (number, lines) in &taken.of {
            if let Some(segment) = self.segments.iter_mut().find(|segment| segment.number == *number) {
                segment.lines = segment.lines.saturating_sub(*lines);
            }
        }
        self.head = taken.to;
        self.pass_what_was_sent();
    }

    /// Removes files that were sent, and stores the position. If that fails, more is sent again after a restart.
    fn pass_what_was_sent(&mut self) {
        while self.segments.len() > 1
            && let Some(first) = self.segments.front()
            && (first.number < self.head.segment || self.head.offset >= first.bytes)
        {
            self.remove_first();
        }
        let position = format!("{} {}\n", self.head.segment, self.head.offset);
        let written = files::replace(&self.folder.join(SENT), position.as_bytes(), files::SECRET_MODE);
        if let Err(error) = written {
            tracing::warn!(%error, folder = %self.folder.display(), "the position in an external store's queue cannot be stored");
        }
    }

    fn remove_first(&mut self) {
        let Some(first) = self.segments.pop_front() else { return };
        if let Some(next) = self.segments.front()
            && self.head.segment <= first.number
        {
            self.head = QueuePosition { segment: next.number, offset: 0 };
        }
        if let Err(error) = fs::remove_file(segment_path(&self.folder, first.number)) {
            tracing::warn!(%error, folder = %self.folder.display(), "a file of a queue cannot be removed");
        }
    }

    /// Removes the oldest segments until this many more bytes are within the limit.
    fn make_room(&mut self, bytes: u64) -> io::Result<()> {
        let full = |queue: &Self| queue.bytes() + bytes > queue.max_bytes;
        if !full(self) {
            return Ok(());
        }
        while full(self) && self.segments.len() > 1 {
            self.dropped += self.segments.front().map_or(0, |first| first.lines);
            self.remove_first();
        }
        if full(self) && self.tail_bytes() > 0 {
            self.rotate()?;
            self.dropped += self.segments.front().map_or(0, |first| first.lines);
            self.remove_first();
        }
        self.pass_what_was_sent();
        Ok(())
    }

    /// Begins a new segment.
    fn rotate(&mut self) -> io::Result<()> {
        // Accepted records of a torn segment are synced already.
        if !self.torn {
            self.tail.sync_data()?;
        }
        let number = self.segments.back().map_or(0, |tail| tail.number + 1);
        self.tail = new_segment(&self.folder, number)?;
        self.segments.push_back(QueueSegment { number, bytes: 0, lines: 0 });
        self.torn = false;
        self.pass_what_was_sent();
        Ok(())
    }

    /// Makes the next write fail as on a full disk.
    #[cfg(test)]
    pub(super) fn break_disk(&mut self) {
        self.tail = OpenOptions::new().append(true).open("/dev/full").unwrap();
    }

    fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    fn tail_bytes(&self) -> u64 {
        self.segments.back().map_or(0, |tail| tail.bytes)
    }

    fn segment_max(&self) -> u64 {
        (self.max_bytes / SEGMENT_SHARE).min(SEGMENT_MAX_BYTES)
    }
}

fn segment_path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:0>10}{SUFFIX}"))
}

/// Creates an empty segment that survives a power failure.
fn new_segment(folder: &Path, number: u64) -> io::Result<File> {
    let path = segment_path(folder, number);
    // A failed attempt may have left one of this number.
    match fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = OpenOptions::new().append(true).create_new(true).mode(files::SECRET_MODE).open(&path)?;
    files::sync_folder(folder)?;
    Ok(file)
}

/// Returns the position up to which a queue was sent; its beginning if unknown.
fn sent(folder: &Path) -> QueuePosition {
    let read = || {
        let text = fs::read_to_string(folder.join(SENT)).ok()?;
        let (segment, offset) = text.trim_end().split_once(' ')?;
        Some(QueuePosition { segment: segment.parse().ok()?, offset: offset.parse().ok()? })
    };
    read().unwrap_or_default()
}

/// Returns the length of complete records of a segment, and the number of lines after `from`.
fn scan(folder: &Path, number: u64, from: u64) -> io::Result<QueueSegment> {
    let file = File::open(segment_path(folder, number))?;
    let length = file.metadata()?.len();
    let mut reader = BufReader::new(file);
    let mut segment = QueueSegment { number, bytes: 0, lines: 0 };
    let mut head = [0; HEAD_BYTES];
    while length - segment.bytes >= HEAD_BYTES as u64 {
        reader.read_exact(&mut head)?;
        let Some(head) = RecordHead::read(&head).filter(|head| head.record_bytes() <= length - segment.bytes) else {
            break;
        };
        if segment.bytes >= from {
            segment.lines += u64::from(head.lines);
        }
        segment.bytes += head.record_bytes();
        reader.seek_relative(head.packed_bytes.into())?;
    }
    Ok(segment)
}

/// Returns the record at a position; `None` if there is none.
fn record_at(file: &File, offset: u64) -> io::Result<Option<(RecordHead, Vec<u8>)>> {
    let mut head = [0; HEAD_BYTES];
    let read = |bytes: &mut [u8], offset: u64| match file.read_exact_at(bytes, offset) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| true),
    };
    if !read(&mut head, offset)? {
        return Ok(None);
    }
    let Some(head) = RecordHead::read(&head).filter(|head| u64::from(head.packed_bytes) <= SEGMENT_MAX_BYTES) else {
        return Ok(None);
    };
    let mut packed = vec![0; head.packed_bytes as usize];
    Ok(read(&mut packed, offset + HEAD_BYTES as u64)?.then_some((head, packed)))
}

#[cfg(test)]
mod tests;

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

/// What goes at once when the queue is full, and how much stays on disk although it was sent.
const SEGMENT_SHARE: u64 = 16;
/// Larger segments would only waste more of what stays although it was sent.
const SEGMENT_MAX_BYTES: u64 = 8 * 1024 * 1024;
/// How far everything was sent.
const SENT: &str = "sent";
/// What segments are called, behind their numbers.
const SUFFIX: &str = ".queue";

/// A place between two records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct QueuePosition {
    segment: u64,
    offset: u64,
}

/// One file.
#[derive(Debug)]
struct QueueSegment {
    number: u64,
    /// As far as whole records go.
    bytes: u64,
    /// Lines in it that have not been sent.
    lines: u64,
}

/// The queue.
#[derive(Debug)]
pub(super) struct DiskQueue {
    folder: PathBuf,
    max_bytes: u64,
    /// Oldest first; never empty. Nothing in the first is before `head`.
    segments: VecDeque<QueueSegment>,
    /// The last segment, open at its end.
    tail: File,
    /// Something stands behind the whole records of the last segment.
    torn: bool,
    /// What has not been sent begins here.
    head: QueuePosition,
    /// Lines that made place for others, or that could not be read any more, since the console started.
    dropped: u64,
}

/// What is to be sent next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct QueuedPiece {
    /// The lines.
    pub(super) piece: LinePiece,
    /// Where they end.
    to: QueuePosition,
    /// How many are of which segment.
    of: Vec<(u64, u64)>,
}

/// What waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct QueueSize {
    /// Lines that have not been sent.
    pub(super) lines: u64,
    /// What they take on disk.
    pub(super) bytes: u64,
    /// Lines that are lost, since the console started.
    pub(super) dropped: u64,
}

impl DiskQueue {
    /// Opens the queue in a folder, and makes it if there is none.
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

    /// What waits.
    pub(super) fn waiting(&self) -> QueueSize {
        let lines = self.segments.iter().map(|segment| segment.lines).sum();
        QueueSize { lines, bytes: self.bytes().saturating_sub(self.head.offset), dropped: self.dropped }
    }

    /// Appends records. When this returns they outlive a power cut.
    ///
    /// # Errors
    /// If they cannot be written. Some of them may be there all the same, and may be sent.
    pub(super) fn append(&mut self, records: &[QueueRecord]) -> io::Result<()> {
        for record in records {
            let bytes = record.bytes.len() as u64;
            if self.torn || self.tail_bytes() > 0 && self.tail_bytes() + bytes > self.segment_max() {
                self.rotate()?;
            }
            self.make_room(bytes)?;
            if let Err(error) = self.tail.write_all(&record.bytes) {
                // A disk that is full has some of it; it is given back if that is possible.
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

    /// What is to be sent next, as much as one request may have; nothing if nothing waits.
    ///
    /// # Errors
    /// If a file cannot be read. What is damaged is passed over instead, and counted.
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

    /// Reads from the head on, until it is enough. Says which segment is damaged, if that is why it ended.
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

    /// Gives up what is left of a damaged segment.
    fn pass_over(&mut self, number: u64) -> io::Result<()> {
        if self.segments.back().is_some_and(|tail| tail.number == number) {
            self.rotate()?;
        }
        if let Some(segment) = self.segments.iter_mut().find(|segment| segment.number == number) {
            tracing::error!(
                file = %segment_path(&self.folder, number).display(), lines = segment.lines,
                "what waited for a store elsewhere is damaged, and passed over"
            );
            self.dropped += segment.lines;
            segment.lines = 0;
            self.head = QueuePosition { segment: number, offset: segment.bytes };
        }
        self.pass_what_was_sent();
        Ok(())
    }

    /// What was taken has been sent, or set aside: it waits no more.
    pub(super) fn sent(&mut self, taken: &QueuedPiece) {
        // It may have made place meanwhile.
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

    /// Removes files that were sent, and writes down how far that is. If it fails, more is sent again after a restart.
    fn pass_what_was_sent(&mut self) {
        while self.segments.len() > 1
            && let Some(first) = self.segments.front()
            && (first.number < self.head.segment || self.head.offset >= first.bytes)
        {
            self.remove_first();
        }
        let told = self.folder.join(".sent.new");
        let written = fs::write(&told, format!("{} {}\n", self.head.segment, self.head.offset))
            .and_then(|()| fs::rename(&told, self.folder.join(SENT)));
        if let Err(error) = written {
            tracing::warn!(%error, folder = %self.folder.display(), "how far a queue was sent cannot be written down");
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

    /// Removes the oldest segments until so many more bytes are within the limit.
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
        // Of a torn one all that was taken is synced already.
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

    /// Has the next write find a full disk.
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

/// Makes an empty segment that outlives a power cut.
fn new_segment(folder: &Path, number: u64) -> io::Result<File> {
    let path = segment_path(folder, number);
    // One of this number may have been left behind by an attempt that failed.
    match fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = OpenOptions::new().append(true).create_new(true).mode(files::SECRET_MODE).open(&path)?;
    files::sync_folder(folder)?;
    Ok(file)
}

/// How far a queue was sent; from its beginning on, if nobody knows.
fn sent(folder: &Path) -> QueuePosition {
    let read = || {
        let text = fs::read_to_string(folder.join(SENT)).ok()?;
        let (segment, offset) = text.trim_end().split_once(' ')?;
        Some(QueuePosition { segment: segment.parse().ok()?, offset: offset.parse().ok()? })
    };
    read().unwrap_or_default()
}

/// Finds how far whole records go in a segment, and how many lines there are behind `from`.
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

/// The record at a place; nothing if there is none.
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

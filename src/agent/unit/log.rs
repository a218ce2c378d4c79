//! Reads the end of a rotated log: `log` is written, `log.1` is the one before, `log.2` the one before that. The times of
//! its lines are recorded beside each ([`muster_shim::log_times`]).
//!
//! A unit may have two logs, one for each instance. Their files are ordered by the time of the last write: an
//! instance that starts beside another begins a new file.
//!
//! **Invariant: nothing is omitted silently.** What a limit cuts off, and what was lost, is reported
//! in notes.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use muster_base::clock;
use muster_shim::{files, log_times::LogTimes};
use muster_topics::{
    Millis,
    command::{LOG_LINES_MAX, LogView},
};

/// The most that is read: as much as people read, and as the agent can hold in memory for a moment.
pub(super) const TAIL_MAX_BYTES: u64 = 1024 * 1024;

/// A part of a log, as it is reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogPart {
    /// The lines, with times before them if requested.
    pub(crate) text: Vec<u8>,
    /// Notes for people: what was left out, and how to get it.
    pub(crate) notes: Vec<String>,
    /// The position where it ends.
    pub(crate) place: LogPosition,
}

impl LogPart {
    /// Returns the notes, a line each.
    pub(crate) fn words(&self) -> Vec<u8> {
        self.notes.iter().flat_map(|note| format!("{note}\n").into_bytes()).collect()
    }
}

/// Returns the last `lines` lines of the logs in `folders` (two at most), oldest first, within `max_bytes` from the
/// end. `None` if there is no log.
///
/// During a rotation lines may be missing or repeated: this is for people, and costs the writer nothing.
pub(super) fn tail(folders: &[impl AsRef<Path>], lines: u32, max_bytes: u64) -> io::Result<Vec<u8>> {
    tail_to(folders, lines, &LogView::default(), max_bytes).map(|part| part.text)
}

/// How far a follower of a unit's logs has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogPosition {
    spots: [FilePosition; 2],
    /// Which of the two it read last.
    last: usize,
}

impl LogPosition {
    /// A position in a log without files, as a number of its runtime; `open` if it is within a line.
    pub(super) fn of(number: u64, open: bool) -> Self {
        Self { spots: [FilePosition { inode: 0, at_bytes: number, open }, FilePosition::default()], last: 0 }
    }

    /// Returns that number.
    pub(super) fn at(self) -> u64 {
        self.spots[0].at_bytes
    }

    /// Whether the last line that was reported is incomplete.
    pub(super) fn is_open(self) -> bool {
        self.spots.get(self.last).is_some_and(|spot| spot.open)
    }
}

/// How far a follower has read one log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FilePosition {
    /// The file that it reads, under whatever name by now; 0 before there is one.
    inode: u64,
    at_bytes: u64,
    /// Whether it is within a line.
    open: bool,
}

/// The most files that are searched for the one being read. A follower further behind continues at the newest.
const FOLLOWED_BACK: u32 = 100;

/// Returns the same in a view, with the position where it ended, from which [`since`] continues.
pub(super) fn tail_to(folders: &[impl AsRef<Path>], lines: u32, view: &LogView, max_bytes: u64) -> io::Result<LogPart> {
    let mut place = LogPosition::default();
    let wanted = usize::try_from(lines).unwrap_or(usize::MAX);
    let (mut text, mut cut, mut undated) = (JoinedSegments::default(), false, false);
    let mut logs: Vec<_> =
        folders.iter().zip(&mut place.spots).map(|(folder, spot)| BackwardReader::new(folder, spot)).collect();
    for log in &mut logs {
        log.look()?;
    }
    let mut newest_log = None;
    loop {
        let left = max_bytes.saturating_sub(text.bytes.len() as u64);
        let newest = logs.iter().enumerate().filter_map(|(index, log)| Some((log.written?, index))).max();
        let Some((_, index)) = newest.filter(|_| lines_in(&text.bytes) <= wanted) else { break };
        if left == 0 {
            cut = true;
            break;
        }
        newest_log.get_or_insert(index);
        let older = logs[index].read(left, view)?;
        cut |= older.cut;
        undated |= older.undated;
        text.prepend(index, older);
    }
    place.last = newest_log.unwrap_or(0);
    let file = folders.get(place.last).map(|folder| self::file(folder.as_ref(), 0));
    let mut part =
        last_lines(text.bytes, (wanted, cut), view, max_bytes, &file.unwrap_or_default().display().to_string());
    if undated {
        part.notes.push("lines from before times were recorded are left out".to_owned());
    }
    if view.times && part.text.split(|byte| *byte == b'\n').any(|line| line.starts_with(prefix(None).as_bytes())) {
        part.notes.push("lines with - instead of a time are from before times were recorded".to_owned());
    }
    Ok(LogPart { place, ..part })
}

/// Returns the last lines of what was read; `cut` if there is more before. Notes what is missing, and that `whole` has
/// all of it.
pub(super) fn last_lines(
    mut text: Vec<u8>,
    (wanted, mut cut): (usize, bool),
    view: &LogView,
    max_bytes: u64,
    whole: &str,
) -> LogPart {
    let over = text.len().saturating_sub(usize::try_from(max_bytes).unwrap_or(usize::MAX));
    cut |= over > 0;
    text.drain(..over);
    let mut start = start_of_last(&text, wanted);
    let mut notes = Vec::new();
    let max = max_bytes;
    if cut && start == 0 && wanted > 0 {
        // The limit cut the first line: its rest is dropped, unless there is nothing else.
        let next = text.iter().position(|byte| *byte == b'\n').map_or(text.len(), |at| at + 1);
        if next < text.len() {
            start = next;
            let shown = count_lines(&text[start..]);
            let before = if view.until_ms.is_some() { "an earlier time for --until" } else { "`--until TIME`" };
            notes.push(format!(
                "{shown} lines are shown, and there are more: at most {max} bytes of a log are read at once. {before} shows what \
                 was written before; the whole of it is in {whole} on its host"
            ));
        } else {
            notes.push(format!(
                "only the end of the last line is shown: at most {max} bytes of a log are read at once. The whole of it is in \
                 {whole} on its host"
            ));
        }
    } else if start > 0 && wanted == usize::try_from(LOG_LINES_MAX).unwrap_or(usize::MAX) && view.since_ms.is_some() {
        notes.push(format!(
            "the last {wanted} lines are shown, the maximum of one request, and there are more since then. `--until TIME` \
             shows what was written before; the whole of it is in {whole} on its host"
        ));
    }
    text.drain(..start);
    LogPart { text, notes, place: LogPosition::default() }
}

/// What was read of several files, newest first.
#[derive(Default)]
struct JoinedSegments {
    bytes: Vec<u8>,
    /// The length of the time before its first line.
    first_prefix: usize,
    /// Which log that line is of.
    first: Option<usize>,
}

impl JoinedSegments {
    fn prepend(&mut self, index: usize, mut older: LogSegment) {
        if older.text.is_empty() {
            return;
        }
        if !older.text.ends_with(b"\n") && !self.bytes.is_empty() {
            if self.first == Some(index) {
                self.bytes.drain(..self.first_prefix);
            } else {
                // An incomplete line of one instance is not continued by another's.
                older.text.push(b'\n');
            }
        }
        older.text.append(&mut self.bytes);
        *self = Self { bytes: older.text, first_prefix: older.first_prefix, first: Some(index) };
    }
}

/// What was read of one file.
#[derive(Debug, Default)]
struct LogSegment {
    text: Vec<u8>,
    first_prefix: usize,
    /// Whether the file has more before that.
    cut: bool,
    /// Whether lines without a known time were left out that may belong to the view.
    undated: bool,
}

impl LogSegment {
    /// Selects the lines of a view; they begin at `at_bytes`, within a line if `open`.
    fn of(bytes: Vec<u8>, at_bytes: u64, times: Option<&LogTimes>, view: &LogView, open: bool) -> Self {
        if view.is_plain() {
            return Self { text: bytes, ..Self::default() };
        }
        let (mut segment, mut at_bytes, mut open) = (Self::default(), at_bytes, open);
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let at_ms = times.and_then(|times| times.at(at_bytes));
            at_bytes += line.len() as u64;
            segment.undated |= at_ms.is_none() && !view.has(at_ms);
            if open || view.has(at_ms) {
                let prefix = if view.times && !open { prefix(at_ms) } else { String::new() };
                if segment.text.is_empty() {
                    segment.first_prefix = prefix.len();
                }
                segment.text.extend_from_slice(prefix.as_bytes());
                segment.text.extend_from_slice(line);
            }
            open = false;
        }
        segment
    }
}

/// Returns the time before a line.
pub(super) fn prefix(at_ms: Option<Millis>) -> String {
    at_ms.map_or_else(|| "- ".to_owned(), |at_ms| format!("{} ", clock::rfc3339_ms(at_ms)))
}

/// Reads the files of one log, newest first.
struct BackwardReader<'a> {
    folder: &'a Path,
    number: u32,
    /// When the current file was last written; `None` if there are no more.
    written: Option<SystemTime>,
    /// Where the newest file ended.
    spot: &'a mut FilePosition,
}

impl<'a> BackwardReader<'a> {
    fn new(folder: &'a impl AsRef<Path>, spot: &'a mut FilePosition) -> Self {
        Self { folder: folder.as_ref(), number: 0, written: None, spot }
    }

    /// Opens the next file. A follower continues at the end of the first.
    fn look(&mut self) -> io::Result<()> {
        self.written = None;
        // During a rotation one number is missing for a moment.
        for number in [self.number, self.number + 1] {
            let metadata = match fs::metadata(file(self.folder, number)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                metadata => metadata?,
            };
            if number == 0 {
                *self.spot = FilePosition { inode: metadata.ino(), at_bytes: metadata.len(), open: false };
            }
            (self.number, self.written) = (number, Some(metadata.modified()?));
            break;
        }
        Ok(())
    }

    /// Reads the end of the view's part of that file.
    fn read(&mut self, max_bytes: u64, view: &LogView) -> io::Result<LogSegment> {
        let segment = match File::open(file(self.folder, self.number)) {
            Ok(file) => self.read_file(&file, max_bytes, view)?,
            // It was the oldest, and has been removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => LogSegment::default(),
            Err(error) => return Err(error),
        };
        self.number += 1;
        self.look()?;
        Ok(segment)
    }

    fn read_file(&mut self, file: &File, max_bytes: u64, view: &LogView) -> io::Result<LogSegment> {
        let metadata = file.metadata()?;
        // It may grow meanwhile; the times are written before the lines.
        let (inode, len_bytes) = (metadata.ino(), metadata.len());
        let times = if view.is_plain() { None } else { times_of(self.folder, self.number, inode) };
        let is_bounded = view.since_ms.is_some() || view.until_ms.is_some();
        let (from, to) = match (&times, is_bounded) {
            (_, false) => (0, len_bytes),
            (Some(times), true) => {
                let (from, to) = times.range(view.since_ms, view.until_ms);
                (from, to.unwrap_or(len_bytes).min(len_bytes))
            }
            // None of its lines is later than this.
            (None, true) if view.since_ms.is_some() => (u64::MAX, len_bytes),
            (None, true) => (0, len_bytes),
        };
        let written_ms = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let written_ms = Millis::try_from(written_ms).unwrap_or(Millis::MAX);
        // Lines without a time may belong to the view, if later lines do.
        let undated = view.since_ms.is_some_and(|since_ms| match &times {
            Some(times) => times.begin().is_some_and(|(at_bytes, at_ms)| at_bytes > 0 && at_ms > since_ms),
            None => len_bytes > 0 && written_ms >= since_ms,
        });
        let start = from.max(to.saturating_sub(max_bytes)).min(to);
        let (content, _) = read_from(file, FilePosition { inode, at_bytes: start, open: false }, to - start)?;
        if self.number == 0 {
            let open = content.last().is_some_and(|byte| *byte != b'\n');
            *self.spot = FilePosition { inode, at_bytes: to.max(start + content.len() as u64), open };
            if to < len_bytes {
                *self.spot = FilePosition { inode, at_bytes: len_bytes, open: false };
            }
        }
        let segment = LogSegment::of(content, start, times.as_ref(), view, false);
        Ok(LogSegment { cut: start > from.min(to), undated: segment.undated || undated, ..segment })
    }
}

/// The times of a log file, if there are any. During a rotation they have the number before or after.
fn times_of(folder: &Path, number: u32, inode: u64) -> Option<LogTimes> {
    let numbers = [Some(number), number.checked_sub(1), number.checked_add(1)];
    numbers.into_iter().flatten().find_map(|number| LogTimes::of(inode, &fs::read(times_file(folder, number)).ok()?))
}

/// Starts a new file for the next instance in a folder in which none runs, keeping at most `keep` old ones.
pub(super) fn begin_anew(folder: &Path, keep: u32) -> io::Result<()> {
    let rename = |from: u32| {
        // The times file names its log file, so that a stale one does no harm.
        let _ = fs::rename(times_file(folder, from), times_file(folder, from + 1));
        match fs::rename(file(folder, from), file(folder, from + 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    };
    match fs::metadata(file(folder, 0)) {
        Ok(metadata) if metadata.len() == 0 => Ok(()),
        Ok(_) if keep == 0 => {
            let _ = fs::remove_file(times_file(folder, 0));
            fs::remove_file(file(folder, 0))
        }
        Ok(_) => (0..keep).rev().try_for_each(rename),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns what was written after `place`, at most `max_bytes` and nothing from two files of one log at once, and where
/// that ended.
pub(super) fn since(
    folders: &[impl AsRef<Path>],
    place: LogPosition,
    times: bool,
    max_bytes: u64,
) -> io::Result<LogPart> {
    let view = LogView { times, ..LogView::default() };
    let mut part = LogPart { place, ..LogPart::default() };
    for (index, folder) in folders.iter().enumerate().take(place.spots.len()) {
        let left = max_bytes.saturating_sub(part.text.len() as u64);
        let before = part.place.spots[index];
        let found = since_spot(folder.as_ref(), before, left)?;
        part.notes.extend(found.note);
        let is_within_a_line = if part.text.is_empty() { part.place.is_open() } else { !part.text.ends_with(b"\n") };
        let goes_on = before.open && part.place.last == index && found.goes_on;
        let is_broken_off = before.open && part.place.last == index && !found.goes_on;
        part.place.spots[index] = found.end;
        if is_within_a_line && (is_broken_off || !found.content.is_empty() && !goes_on) {
            part.text.push(b'\n');
        }
        if found.content.is_empty() {
            continue;
        }
        let at_bytes = found.end.at_bytes - found.content.len() as u64;
        let open = found.content.last().is_some_and(|byte| *byte != b'\n');
        let stamps = if times { times_of_any(folder.as_ref(), found.end.inode) } else { None };
        part.text.append(&mut LogSegment::of(found.content, at_bytes, stamps.as_ref(), &view, goes_on).text);
        part.place.spots[index].open = open;
        part.place.last = index;
    }
    Ok(part)
}

/// What was written after a position.
struct LogTail {
    content: Vec<u8>,
    end: FilePosition,
    /// Whether it continues at that position.
    goes_on: bool,
    note: Option<String>,
}

fn since_spot(folder: &Path, place: FilePosition, max_bytes: u64) -> io::Result<LogTail> {
    let found = |(content, end): (Vec<u8>, FilePosition)| LogTail { content, end, goes_on: true, note: None };
    let mut newer = None;
    for number in 0..FOLLOWED_BACK {
        let file = match File::open(self::file(folder, number)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            opened => opened?,
        };
        let metadata = file.metadata()?;
        let inode = metadata.ino();
        if inode != place.inode {
            newer = Some((file, inode));
            continue;
        }
        if metadata.len() < place.at_bytes {
            let note = format!(
                "the log was truncated from {} to {} bytes: it continues from its start",
                place.at_bytes,
                metadata.len()
            );
            let (content, end) = read_from(&file, FilePosition { at_bytes: 0, open: false, ..place }, max_bytes)?;
            return Ok(LogTail { content, end, goes_on: false, note: Some(note) });
        }
        let (content, end) = read_from(&file, place, max_bytes)?;
        return Ok(found(match newer {
            // It was read to the end, and there is a later file.
            Some((file, inode)) if content.is_empty() => {
                read_from(&file, FilePosition { inode, at_bytes: 0, ..place }, max_bytes)?
            }
            _ => (content, end),
        }));
    }
    // The file is gone, or there was none: continue at the beginning of the newest.
    match File::open(file(folder, 0)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(found((Vec::new(), place))),
        opened => {
            let file = opened?;
            let inode = file.metadata()?.ino();
            let (content, end) = read_from(&file, FilePosition { inode, at_bytes: 0, open: false }, max_bytes)?;
            let note = "the log file was removed: the log continues from the start of another \
                        file, and lines in between may be missing";
            Ok(LogTail { content, end, goes_on: false, note: (place.inode != 0).then(|| note.to_owned()) })
        }
    }
}

/// The times of a log file that may have any number by now.
fn times_of_any(folder: &Path, inode: u64) -> Option<LogTimes> {
    let mut all = (0..FOLLOWED_BACK).filter_map(|number| fs::read(times_file(folder, number)).ok());
    all.find_map(|bytes| LogTimes::of(inode, &bytes))
}

fn read_from(mut file: &File, place: FilePosition, max_bytes: u64) -> io::Result<(Vec<u8>, FilePosition)> {
    file.seek(SeekFrom::Start(place.at_bytes))?;
    let mut content = Vec::new();
    file.take(max_bytes).read_to_end(&mut content)?;
    let at_bytes = place.at_bytes + content.len() as u64;
    Ok((content, FilePosition { at_bytes, ..place }))
}

fn file(folder: &Path, number: u32) -> PathBuf {
    numbered(folder, files::LOG, number)
}

/// The path of the times of a log file.
fn times_file(folder: &Path, number: u32) -> PathBuf {
    numbered(folder, files::TIMES, number)
}

fn numbered(folder: &Path, name: &str, number: u32) -> PathBuf {
    folder.join(if number == 0 { name.to_owned() } else { format!("{name}.{number}") })
}

fn lines_in(content: &[u8]) -> usize {
    content.iter().filter(|byte| **byte == b'\n').count()
}

/// Counts lines, including an incomplete last one.
fn count_lines(content: &[u8]) -> usize {
    lines_in(content) + usize::from(content.last().is_some_and(|byte| *byte != b'\n'))
}

/// Returns where the last `lines` lines begin. An incomplete last line counts.
fn start_of_last(content: &[u8], lines: usize) -> usize {
    if lines == 0 {
        return content.len();
    }
    let body = content.strip_suffix(b"\n").unwrap_or(content);
    let ends = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    ends.take(lines).nth(lines - 1).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: LogView = LogView { since_ms: None, until_ms: None, times: false };

    #[track_caller]
    fn check(files: &[&str], lines: u32, max_bytes: u64, expected: &str) {
        let folder = tempfile::tempdir().unwrap();
        for (number, content) in files.iter().enumerate() {
            std::fs::write(file(folder.path(), number as u32), content).unwrap();
        }
        let content = tail(&[folder.path()], lines, max_bytes).unwrap();
        assert_eq!(String::from_utf8(content).unwrap(), expected);
    }

    #[test]
    fn last_lines_span_rotated_files() {
        check(&[], 10, 100, "");
        check(&[""], 10, 100, "");
        check(&["a\nb\nc\n"], 2, 100, "b\nc\n");
        check(&["a\nb\nc\n"], 3, 100, "a\nb\nc\n");
        check(&["a\nb\nc\n"], 0, 100, "");
        check(&["a\nb\nc"], 2, 100, "b\nc");
        check(&["c\nd\n", "a\nb\n"], 3, 100, "b\nc\nd\n");
        check(&["c\nd\n", "a\nb\n"], u32::MAX, 100, "a\nb\nc\nd\n");
        check(&["c\nd\n", "a\nb\n"], 2, 100, "c\nd\n");
        check(&["", "a\nb\n"], 1, 100, "b\n");
        // A line that was written across a rotation is one line.
        check(&["b\nc\n", "a"], 2, 100, "ab\nc\n");
    }

    #[test]
    fn log_during_rotation_is_not_empty() {
        for missing in 0..3 {
            let folder = tempfile::tempdir().unwrap();
            for number in (0..4).filter(|number| *number != missing) {
                std::fs::write(file(folder.path(), number), format!("{number}\n")).unwrap();
            }
            let all: String =
                (0..4).rev().filter(|number| *number != missing).map(|number| format!("{number}\n")).collect();
            let content = tail(&[folder.path()], 10, 100).unwrap();
            assert_eq!(String::from_utf8(content).unwrap(), all, "without {missing}");
        }
    }

    #[test]
    fn follower_reads_each_line_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = |number| file(folder.path(), number);
        let add = |text: &str| {
            use std::io::Write;
            File::options().append(true).create(true).open(path(0)).unwrap().write_all(text.as_bytes()).unwrap();
        };
        let none = tail_to(&[folder.path()], 2, &PLAIN, 100).unwrap();
        assert_eq!(none, LogPart::default());
        let mut place = none.place;
        let notes = std::cell::Cell::new(0);
        let mut read = |max_bytes| {
            let part = since(&[folder.path()], place, false, max_bytes).unwrap();
            place = part.place;
            notes.set(notes.get() + part.notes.len());
            String::from_utf8(part.text).unwrap()
        };
        assert_eq!(read(100), "");
        add("a\nb\n");
        assert_eq!((read(2), read(100), read(100)), ("a\n".to_owned(), "b\n".to_owned(), String::new()));
        add("c\n");
        // Two rotations between two reads.
        std::fs::rename(path(0), path(1)).unwrap();
        add("d\n");
        std::fs::rename(path(1), path(2)).unwrap();
        std::fs::rename(path(0), path(1)).unwrap();
        add("e\n");
        assert_eq!([read(100), read(100), read(100), read(100)], ["c\n", "d\n", "e\n", ""]);
        // The file being read is gone. The next one is there before, or it might get the inode of that, by which the follower
        // tells them apart.
        std::fs::write(path(3), "f\n").unwrap();
        std::fs::remove_file(path(1)).unwrap();
        std::fs::remove_file(path(2)).unwrap();
        std::fs::rename(path(3), path(0)).unwrap();
        assert_eq!([read(100), read(100)], ["f\n", ""]);
        assert_eq!(notes.get(), 1, "one file was gone");
        // The file was truncated, and has grown since.
        std::fs::write(path(0), "").unwrap();
        assert_eq!(read(100), "");
        add("new\n");
        assert_eq!([read(100), read(100)], ["new\n", ""]);
        assert_eq!(notes.get(), 2, "it was cut once");

        add("g\nh\n");
        let last = tail_to(&[folder.path()], 1, &PLAIN, 100).unwrap();
        add("i\n");
        let next = since(&[folder.path()], last.place, false, 100).unwrap();
        assert_eq!((last.text, next.text), (b"h\n".to_vec(), b"i\n".to_vec()));
    }

    /// A log whose lines were written at these times, in files with the newest first; 0 is an unknown time.
    fn written(folder: &Path, files: &[&[(i64, &str)]]) {
        for (number, lines) in files.iter().enumerate() {
            let number = number as u32;
            let content: String = lines.iter().map(|(_, text)| *text).collect();
            std::fs::write(file(folder, number), content).unwrap();
            let inode = std::fs::metadata(file(folder, number)).unwrap().ino();
            let (mut records, mut at_bytes) = (Vec::new(), 0);
            for (at_ms, text) in lines.iter() {
                if *at_ms > 0 {
                    muster_shim::log_times::mark(&mut records, inode, at_bytes, *at_ms);
                }
                at_bytes += text.len() as u64;
            }
            if !records.is_empty() {
                std::fs::write(times_file(folder, number), records).unwrap();
            }
        }
    }

    #[test]
    fn lines_have_their_write_times() {
        let folder = tempfile::tempdir().unwrap();
        written(folder.path(), &[&[(3_000, "ed\n"), (4_500, "d\n")], &[(0, "a\n"), (1_000, "b\n"), (2_000, "c")]]);
        let timed = LogView { times: true, ..PLAIN };
        let part = tail_to(&[folder.path()], 10, &timed, 1_000).unwrap();
        let text = "- a\n1970-01-01T00:00:01.000Z b\n1970-01-01T00:00:02.000Z ced\n1970-01-01T00:00:04.500Z d\n";
        assert_eq!(String::from_utf8(part.text).unwrap(), text);
        assert!(part.notes.len() == 1 && part.notes[0].contains("before times were recorded"), "{:?}", part.notes);
        let of = |since_ms, until_ms| {
            let part = tail_to(&[folder.path()], 10, &LogView { since_ms, until_ms, times: false }, 1_000).unwrap();
            (String::from_utf8(part.text).unwrap(), part.notes.len())
        };
        assert_eq!(of(Some(1_000), None), ("b\nced\nd\n".to_owned(), 0));
        assert_eq!(of(Some(3_500), None), ("d\n".to_owned(), 0));
        assert_eq!(of(Some(1_500), Some(2_500)), ("c".to_owned(), 0));
        assert_eq!(of(None, Some(1_500)), ("a\nb\n".to_owned(), 0));
        // A line without a time may belong to the view.
        assert_eq!(of(Some(500), Some(1_500)), ("b\n".to_owned(), 1));
        assert_eq!(of(Some(9_000), None), (String::new(), 0));
    }

    #[test]
    fn follower_gets_one_time_per_line() {
        let folder = tempfile::tempdir().unwrap();
        let timed = LogView { times: true, ..PLAIN };
        written(folder.path(), &[&[(1_000, "a\n")]]);
        let mut part = tail_to(&[folder.path()], 10, &timed, 1_000).unwrap();
        let mut all = part.text.clone();
        let mut now: Vec<(i64, &str)> = vec![(1_000, "a\n")];
        for next in [(2_000, "b"), (3_000, "b\n"), (4_000, "c\n")] {
            now.push(next);
            written(folder.path(), &[&now]);
            part = since(&[folder.path()], part.place, true, 1_000).unwrap();
            all.append(&mut part.text);
        }
        let text = "1970-01-01T00:00:01.000Z a\n1970-01-01T00:00:02.000Z bb\n1970-01-01T00:00:04.000Z c\n";
        assert_eq!(String::from_utf8(all).unwrap(), text);
    }

    #[test]
    fn truncated_lines_are_noted() {
        let folder = tempfile::tempdir().unwrap();
        let of = |content: &str, lines: u32, view: &LogView| {
            std::fs::write(file(folder.path(), 0), content).unwrap();
            let part = tail_to(&[folder.path()], lines, view, 1_000).unwrap();
            (String::from_utf8(part.text).unwrap(), part.notes.concat())
        };
        // A line that is longer than the limit: its end, and a note.
        let long = format!("{}end\n", "x".repeat(3_000));
        let (text, note) = of(&long, 10, &PLAIN);
        assert_eq!((text.len(), text.ends_with("xend\n")), (1_000, true));
        assert!(
            note.contains("only the end of the last line") && note.contains(folder.path().to_str().unwrap()),
            "{note}"
        );
        // Fewer lines can be read than were requested.
        let many = format!("{}\n", "y".repeat(299)).repeat(10);
        let (text, note) = of(&many, 5, &PLAIN);
        assert_eq!(text, format!("{}\n", "y".repeat(299)).repeat(3));
        assert!(note.starts_with("3 lines are shown, and there are more"), "{note}");
        // As many as requested.
        assert_eq!(of(&many, 2, &PLAIN).1, "");
        assert_eq!(of("a\nb\n", 1, &PLAIN), ("b\n".to_owned(), String::new()));
        // Times take space, too.
        let (text, _) = of(&"z\n".repeat(400), 10_000, &LogView { times: true, ..PLAIN });
        assert!(text.len() <= 1_000 && text.starts_with("- z\n"), "{text}");
    }

    #[test]
    fn logs_of_two_instances_are_ordered_by_file() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folders = [one.path(), two.path()];
        let write = |folder: &Path, number: u32, content: &str, at_s: u64| {
            let path = file(folder, number);
            std::fs::write(&path, content).unwrap();
            let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(at_s);
            File::options().write(true).open(path).unwrap().set_modified(at).unwrap();
        };
        let tail = |lines| String::from_utf8(tail(&folders, lines, 100).unwrap()).unwrap();
        assert_eq!(tail(10), "");
        write(one.path(), 0, "1\n", 1);
        assert_eq!(tail(10), "1\n");
        // The second takes the first one's place, without an end to its last line, and is itself replaced.
        write(two.path(), 0, "2\n2", 2);
        begin_anew(one.path(), 3).unwrap();
        write(one.path(), 0, "3\n", 3);
        assert_eq!((tail(10), tail(2)), ("1\n2\n2\n3\n".to_owned(), "2\n3\n".to_owned()));
        assert_eq!(tail(1), "3\n");
        // A follower reads only what is new of both.
        let place = tail_to(&folders, 1, &PLAIN, 100).unwrap().place;
        write(two.path(), 0, "2\n2!\n", 4);
        write(one.path(), 0, "3\n3\n", 4);
        let part = since(&folders, place, false, 100).unwrap();
        assert_eq!(String::from_utf8(part.text).unwrap(), "3\n!\n");
        assert_eq!(since(&folders, part.place, false, 100).unwrap().text, b"");
        // As many old files are kept as configured.
        begin_anew(one.path(), 1).unwrap();
        assert_eq!(std::fs::read(file(one.path(), 1)).unwrap(), b"3\n3\n");
        begin_anew(two.path(), 0).unwrap();
        assert!(!file(two.path(), 0).exists() && !file(one.path(), 0).exists());
        begin_anew(one.path(), 1).unwrap();
        assert!(file(one.path(), 1).exists());
    }

    #[test]
    fn reading_stops_at_the_limit() {
        check(&["aaaa\nbbbb\ncccc\n"], 10, 12, "bbbb\ncccc\n");
        check(&["cccc\n", "aaaa\nbbbb\n"], 10, 12, "bbbb\ncccc\n");
        check(&["a line that is longer than all that may be read"], 10, 4, "read");
    }
}

//! A rotated log: it grows up to a size or an age and is then begun anew, with a number of old ones kept; and beside each of its
//! files the times at which its content was written ([`muster_shim::times`]).
//!
//! If somebody else truncates, moves or removes its file, it continues in a file of that name.
//!
//! **Invariant: no file of a log is ever longer than its limit**, and none of times longer than that or 4 KiB.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use muster_shim::{files, log_times};

use crate::program::now_ms;

/// Smallest limit of a file of times: a file takes that much space in any case.
const TIMES_MIN_BYTES: u64 = 4 * 1024;

/// Largest number of old files, whatever is configured: each rotation renames all of them.
const KEEP_MAX: u32 = 100;

/// The log `path`; older files are `path.1`, `path.2`, and so on.
#[derive(Debug)]
pub(crate) struct ProgramLog {
    path: PathBuf,
    file: File,
    /// The inode of the current file.
    inode: u64,
    times: LogTimesWriter,
    len_bytes: u64,
    /// When its first line was written.
    begun_ms: i64,
    /// Whether the last write ended a line.
    line_ended: bool,
    max_bytes: u64,
    keep: u32,
    max_age_ms: Option<i64>,
}

impl ProgramLog {
    /// Opens the log for appending.
    pub(crate) fn open(path: &Path, max_bytes: u64, keep: u32, max_age_ms: Option<u64>) -> io::Result<Self> {
        let file = open(path)?;
        let metadata = file.metadata()?;
        // On a file system without creation times, the log is rotated later, but it is rotated.
        let begun = metadata.created().or_else(|_| metadata.modified())?.duration_since(UNIX_EPOCH).unwrap_or_default();
        let inode = metadata.ino();
        Ok(Self {
            path: path.to_owned(),
            file,
            inode,
            times: LogTimesWriter::open(path, inode),
            len_bytes: metadata.len(),
            begun_ms: i64::try_from(begun.as_millis()).unwrap_or(i64::MAX),
            line_ended: true,
            max_bytes: max_bytes.max(1),
            keep: keep.min(KEEP_MAX),
            max_age_ms: max_age_ms.map(|ms| i64::try_from(ms).unwrap_or(i64::MAX)),
        })
    }

    /// Appends `bytes`; begins a new file between two lines when the current one is full or old. The error is the
    /// number of bytes that could not be written.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), u64> {
        self.write_at(bytes, now_ms())
    }

    fn write_at(&mut self, mut bytes: &[u8], now_ms: i64) -> Result<(), u64> {
        self.look_again().map_err(|_| bytes.len() as u64)?;
        let is_old = self.max_age_ms.is_some_and(|max_ms| now_ms.saturating_sub(self.begun_ms) >= max_ms);
        let is_full = self.times.len_bytes + log_times::MARK_BYTES as u64 > self.max_bytes.max(TIMES_MIN_BYTES);
        if (is_old && self.line_ended || is_full) && self.len_bytes > 0 {
            self.rotate().map_err(|_| bytes.len() as u64)?;
        }
        while !bytes.is_empty() {
            if self.len_bytes == 0 {
                self.begun_ms = now_ms;
            }
            let now = self.fitting(bytes);
            if now == 0 {
                self.rotate().map_err(|_| bytes.len() as u64)?;
                continue;
            }
            // Written before the bytes that it is about, so that a reader finds it.
            self.times.add(self.inode, self.len_bytes, now_ms);
            self.file.write_all(&bytes[..now]).map_err(|_| bytes.len() as u64)?;
            self.len_bytes += now as u64;
            self.line_ended = bytes[..now].ends_with(b"\n");
            bytes = &bytes[now..];
        }
        Ok(())
    }

    /// Switches to the file that now has the log's name, and continues at its end.
    fn look_again(&mut self) -> io::Result<()> {
        let metadata = match fs::metadata(&self.path) {
            Ok(metadata) if metadata.ino() == self.inode => metadata,
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Ok(()),
            // It was renamed or removed.
            _ => return self.begin(),
        };
        if metadata.len() != self.len_bytes {
            if metadata.len() < self.len_bytes {
                self.times = LogTimesWriter::anew(&self.path);
            }
            (self.len_bytes, self.line_ended, self.times.last) = (metadata.len(), true, None);
        }
        Ok(())
    }

    /// How many of `bytes` go into this file: complete lines, unless one line is longer than a file.
    fn fitting(&self, bytes: &[u8]) -> usize {
        let room = usize::try_from(self.max_bytes.saturating_sub(self.len_bytes)).unwrap_or(usize::MAX);
        if bytes.len() <= room {
            return bytes.len();
        }
        match bytes[..room].iter().rposition(|byte| *byte == b'\n') {
            Some(newline) => newline + 1,
            None if self.len_bytes == 0 => room,
            None => 0,
        }
    }

    fn rotate(&mut self) -> io::Result<()> {
        if self.keep == 0 {
            // Not truncated: the next shim reads the creation time of the file.
            fs::remove_file(&self.path)?;
            let _ = fs::remove_file(times_of(&self.path, 0));
        } else {
            for number in (0..self.keep).rev() {
                rename_if_there(&numbered(&self.path, number), &numbered(&self.path, number + 1))?;
                // A file of times contains the inode of its log, so one that is not renamed is not misread.
                let _ = rename_if_there(&times_of(&self.path, number), &times_of(&self.path, number + 1));
            }
        }
        self.begin()
    }

    /// Opens the new file of the log's name.
    fn begin(&mut self) -> io::Result<()> {
        self.file = open(&self.path)?;
        let metadata = self.file.metadata()?;
        (self.inode, self.len_bytes, self.line_ended) = (metadata.ino(), metadata.len(), true);
        self.times = LogTimesWriter::open(&self.path, self.inode);
        Ok(())
    }
}

/// The writer of a log's times. Errors are ignored, so that output is never lost because of them.
#[derive(Debug)]
struct LogTimesWriter {
    file: Option<File>,
    len_bytes: u64,
    /// Position and time of the last record; `None` if the next one must be a mark.
    last: Option<(u64, i64)>,
}

impl LogTimesWriter {
    /// Opens the times of a log, if there are any.
    fn open(log: &Path, inode: u64) -> Self {
        let path = times_of(log, 0);
        let mut beginning = [0; log_times::MARK_BYTES];
        let is_its = File::open(&path).and_then(|mut file| file.read_exact(&mut beginning)).is_ok()
            && log_times::inode_of(&beginning) == Some(inode);
        if !is_its {
            return Self::anew(log);
        }
        let file = open(&path).ok();
        let len_bytes = file.as_ref().and_then(|file| file.metadata().ok()).map_or(0, |metadata| metadata.len());
        Self { file, len_bytes, last: None }
    }

    fn anew(log: &Path) -> Self {
        let path = times_of(log, 0);
        // A new file: readers of the old one are not disturbed.
        let _ = fs::remove_file(&path);
        Self { file: open(&path).ok(), len_bytes: 0, last: None }
    }

    /// Records that bytes from this position on are written now.
    fn add(&mut self, inode: u64, at_bytes: u64, now_ms: i64) {
        let Some(file) = &mut self.file else { return };
        let mut record = Vec::with_capacity(log_times::MARK_BYTES);
        match self.last {
            Some((_, at_ms)) if at_ms == now_ms => return,
            Some((before_bytes, before_ms)) if at_bytes > before_bytes => {
                log_times::step(&mut record, at_bytes - before_bytes, now_ms.saturating_sub(before_ms));
            }
            _ => log_times::mark(&mut record, inode, at_bytes, now_ms),
        }
        if file.write_all(&record).is_err() {
            // A partial record would be misread.
            let _ = file.set_len(self.len_bytes);
            self.file = None;
            return;
        }
        self.len_bytes += record.len() as u64;
        self.last = Some((at_bytes, now_ms));
    }
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.to_owned().into_os_string();
    if number > 0 {
        name.push(format!(".{number}"));
    }
    name.into()
}

/// The path of the times of a log file.
fn times_of(log: &Path, number: u32) -> PathBuf {
    numbered(&log.with_file_name(files::TIMES), number)
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

fn rename_if_there(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        renamed => renamed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes pieces into a log of at most 10 bytes, and compares the files, the newest first.
    #[track_caller]
    fn check(keep: u32, pieces: &[&str], files: &[&str]) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        for piece in pieces {
            // Opened anew each time, as by one shim after another.
            ProgramLog::open(&path, 10, keep, None).unwrap().write(piece.as_bytes()).unwrap();
        }
        let read = |number: usize| {
            let name = if number == 0 { "log".to_owned() } else { format!("log.{number}") };
            fs::read_to_string(folder.path().join(name)).unwrap()
        };
        let found: Vec<String> = (0..count(folder.path())).map(read).collect();
        assert_eq!(found, files);
    }

    /// How many files a log has; the times of each lie beside it.
    fn count(folder: &Path) -> usize {
        let names = |begin: &str| {
            let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            entries.filter(|name| name.starts_with(begin)).count()
        };
        assert_eq!(names("log"), names("times"));
        names("log")
    }

    #[test]
    fn log_is_rotated_by_size() {
        check(2, &["one\n", "two\n"], &["one\ntwo\n"]);
        check(2, &["123456789\n"], &["123456789\n"]);
        check(2, &["123456789\n", "x\n"], &["x\n", "123456789\n"]);
        check(2, &["one\ntwo\nthree\n"], &["three\n", "one\ntwo\n"]);
        check(1, &["one\ntwo\nthree\nfour\nfive\n"], &["four\nfive\n", "three\n"]);
    }

    #[test]
    fn old_logs_are_limited() {
        check(
            2,
            &["1\n3456789\n", "2\n3456789\n", "3\n3456789\n", "4\n3456789\n"],
            &["4\n3456789\n", "3\n3456789\n", "2\n3456789\n"],
        );
        check(0, &["1\n3456789\n", "2\n"], &["2\n"]);
    }

    #[test]
    fn a_line_longer_than_a_file_is_cut() {
        check(3, &["abcdefghijklmnopqrstuvwxyz"], &["uvwxyz", "klmnopqrst", "abcdefghij"]);
        check(3, &["ab", "cdefghijklmn\n"], &["mn\n", "cdefghijkl", "ab"]);
    }

    /// Writes pieces at given times after the log was opened, into a log of at most an hour.
    #[track_caller]
    fn check_age(pieces: &[(i64, &str)], files: &[&str]) {
        const MINUTE_MS: i64 = 60_000;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let began_ms = now_ms();
        let mut log = ProgramLog::open(&path, 1_000, 3, Some(60 * 60_000)).unwrap();
        for (minute, piece) in pieces {
            log.write_at(piece.as_bytes(), began_ms + minute * MINUTE_MS).unwrap();
        }
        let read = |number: usize| {
            let name = if number == 0 { "log".to_owned() } else { format!("log.{number}") };
            fs::read_to_string(folder.path().join(name)).unwrap()
        };
        let found: Vec<String> = (0..count(folder.path())).map(read).collect();
        assert_eq!(found, files);
    }

    /// The times of a file of a log.
    fn read_times(path: &Path, number: u32) -> log_times::LogTimes {
        let inode = fs::metadata(numbered(path, number)).unwrap().ino();
        log_times::LogTimes::of(inode, &fs::read(times_of(path, number)).unwrap()).unwrap()
    }

    #[test]
    fn times_go_along_with_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut log = ProgramLog::open(&path, 10, 2, None).unwrap();
        log.write_at(b"one\n", 1_000).unwrap();
        log.write_at(b"two\n", 1_000).unwrap();
        log.write_at(b"three\n", 2_000).unwrap();
        // Another shim goes on, after the clock was set back.
        let mut log = ProgramLog::open(&path, 10, 2, None).unwrap();
        log.write_at(b"4\n", 500).unwrap();
        let (old, new) = (read_times(&path, 1), read_times(&path, 0));
        assert_eq!([old.at(0), old.at(4)], [Some(1_000), Some(1_000)]);
        assert_eq!([new.at(0), new.at(5), new.at(6)], [Some(2_000), Some(2_000), Some(500)]);
        // Its times are lost.
        fs::remove_file(folder.path().join("times")).unwrap();
        ProgramLog::open(&path, 10, 2, None).unwrap().write_at(b"5\n", 3_000).unwrap();
        let new = read_times(&path, 0);
        assert_eq!([new.at(0), new.at(7), new.at(8)], [None, None, Some(3_000)]);
    }

    #[test]
    fn times_are_bounded_however_short_the_lines_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut log = ProgramLog::open(&path, 6 * 1_024, 100, None).unwrap();
        for at_ms in 0..10_000 {
            log.write_at(b"\n", at_ms * 100_000).unwrap();
        }
        for entry in fs::read_dir(folder.path()).unwrap() {
            let entry = entry.unwrap();
            assert!(entry.metadata().unwrap().len() <= 6 * 1_024, "{entry:?}");
        }
        assert!(count(folder.path()) > 2);
    }

    #[test]
    fn log_that_was_cut_or_moved_away_goes_on_in_a_file_of_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut log = ProgramLog::open(&path, 100, 1, None).unwrap();
        let mut write = |text: &str, at_ms| log.write_at(text.as_bytes(), at_ms).unwrap();
        write("one\n", 1_000);
        File::create(&path).unwrap();
        write("two\n", 2_000);
        assert_eq!(fs::read_to_string(&path).unwrap(), "two\n");
        assert_eq!(read_times(&path, 0).at(0), Some(2_000));
        fs::rename(&path, folder.path().join("elsewhere")).unwrap();
        write("three\n", 3_000);
        assert_eq!(fs::read_to_string(&path).unwrap(), "three\n");
        fs::remove_file(&path).unwrap();
        write("four\n", 4_000);
        assert_eq!(fs::read_to_string(&path).unwrap(), "four\n");
        assert_eq!(read_times(&path, 0).at(0), Some(4_000));
        // Somebody has added something.
        File::options().append(true).open(&path).unwrap().write_all(b"else\n").unwrap();
        write("five\n", 5_000);
        assert_eq!([0, 5, 10].map(|at| read_times(&path, 0).at(at)), [Some(4_000), Some(4_000), Some(5_000)]);
    }

    #[test]
    fn rotation_by_age() {
        check_age(&[(0, "a\n"), (59, "b\n")], &["a\nb\n"]);
        check_age(&[(0, "a\n"), (60, "b\n")], &["b\n", "a\n"]);
        // The age is that of the first line, not of the file.
        check_age(&[(90, "a\n"), (149, "b\n"), (150, "c\n")], &["c\n", "a\nb\n"]);
        // Not within a line.
        check_age(&[(0, "a"), (70, "b\n"), (71, "c\n")], &["c\n", "ab\n"]);
        // A clock that was set back makes nothing old.
        check_age(&[(0, "a\n"), (-900, "b\n")], &["a\nb\n"]);
    }

    #[test]
    fn adopting_shim_keeps_the_log_age() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        for keep in [0, 1] {
            ProgramLog::open(&path, 100, keep, Some(1_000)).unwrap().write(b"a\n").unwrap();
            let mut log = ProgramLog::open(&path, 100, keep, Some(1_000)).unwrap();
            log.write_at(b"b\n", now_ms() + 2_000).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "b\n");
            assert_eq!(path.with_extension("1").exists(), keep > 0);
        }
    }

    #[test]
    fn failed_writes_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut log = ProgramLog::open(&path, 10, 1, None).unwrap();
        log.write(b"1\n3456789\n").unwrap();
        // Something in the way of the old file's new name.
        fs::create_dir(folder.path().join("log.1")).unwrap();
        assert_eq!(log.write(b"abc"), Err(3));
        fs::remove_dir(folder.path().join("log.1")).unwrap();
        log.write(b"def").unwrap();
        assert_eq!(fs::read_to_string(path).unwrap(), "def");
    }
}

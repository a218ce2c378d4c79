//! A log that grows up to a size or an age and is then begun anew, with a number of old ones kept.
//!
//! **Invariant: no file of a log is ever longer than its limit.**

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use crate::program::now_ms;

/// The most old files that are kept, whatever was asked for: each rotation renames all of them.
const KEEP_MAX: u32 = 100;

/// The log `path`; older ones are `path.1`, `path.2`, and so on.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    file: File,
    len_bytes: u64,
    /// When its first line came.
    begun_ms: i64,
    /// What was written last ended a line.
    line_ended: bool,
    max_bytes: u64,
    keep: u32,
    max_age_ms: Option<i64>,
}

impl Log {
    /// Opens the log to append to it.
    pub(crate) fn open(path: &Path, max_bytes: u64, keep: u32, max_age_ms: Option<u64>) -> io::Result<Self> {
        let file = open(path)?;
        let metadata = file.metadata()?;
        // A file system that does not know when a file was made has its log rotated later, not never.
        let begun = metadata.created().or_else(|_| metadata.modified())?.duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Self {
            path: path.to_owned(),
            file,
            len_bytes: metadata.len(),
            begun_ms: i64::try_from(begun.as_millis()).unwrap_or(i64::MAX),
            line_ended: true,
            max_bytes: max_bytes.max(1),
            keep: keep.min(KEEP_MAX),
            max_age_ms: max_age_ms.map(|ms| i64::try_from(ms).unwrap_or(i64::MAX)),
        })
    }

    /// Appends `bytes`, and begins a new file between two lines when this one is full or old. What could
    /// not be written is the error's business; how much of it that was is told.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), u64> {
        self.write_at(bytes, now_ms())
    }

    fn write_at(&mut self, mut bytes: &[u8], now_ms: i64) -> Result<(), u64> {
        let is_old = self.max_age_ms.is_some_and(|max_ms| now_ms.saturating_sub(self.begun_ms) >= max_ms);
        if is_old && self.line_ended && self.len_bytes > 0 {
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
            self.file.write_all(&bytes[..now]).map_err(|_| bytes.len() as u64)?;
            self.len_bytes += now as u64;
            self.line_ended = bytes[..now].ends_with(b"\n");
            bytes = &bytes[now..];
        }
        Ok(())
    }

    /// How much of `bytes` goes into this file: whole lines, unless one line is a file's worth.
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
            // Not cut: the next shim reads from the file when it was begun.
            fs::remove_file(&self.path)?;
        } else {
            for number in (1..self.keep).rev() {
                rename_if_there(&self.numbered(number), &self.numbered(number + 1))?;
            }
            rename_if_there(&self.path, &self.numbered(1))?;
        }
        self.file = open(&self.path)?;
        (self.len_bytes, self.line_ended) = (0, true);
        Ok(())
    }

    fn numbered(&self, number: u32) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }
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
            Log::open(&path, 10, keep, None).unwrap().write(piece.as_bytes()).unwrap();
        }
        let read = |number: usize| {
            let name = if number == 0 { "log".to_owned() } else { format!("log.{number}") };
            fs::read_to_string(folder.path().join(name)).unwrap()
        };
        let found: Vec<String> = (0..fs::read_dir(folder.path()).unwrap().count()).map(read).collect();
        assert_eq!(found, files);
    }

    #[test]
    fn rotation() {
        check(2, &["one\n", "two\n"], &["one\ntwo\n"]);
        check(2, &["123456789\n"], &["123456789\n"]);
        check(2, &["123456789\n", "x\n"], &["x\n", "123456789\n"]);
        check(2, &["one\ntwo\nthree\n"], &["three\n", "one\ntwo\n"]);
        check(1, &["one\ntwo\nthree\nfour\nfive\n"], &["four\nfive\n", "three\n"]);
    }

    #[test]
    fn only_so_many_are_kept() {
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
        let mut log = Log::open(&path, 1_000, 3, Some(60 * 60_000)).unwrap();
        for (minute, piece) in pieces {
            log.write_at(piece.as_bytes(), began_ms + minute * MINUTE_MS).unwrap();
        }
        let read = |number: usize| {
            let name = if number == 0 { "log".to_owned() } else { format!("log.{number}") };
            fs::read_to_string(folder.path().join(name)).unwrap()
        };
        let found: Vec<String> = (0..fs::read_dir(folder.path()).unwrap().count()).map(read).collect();
        assert_eq!(found, files);
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
    fn another_shim_knows_the_age() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        for keep in [0, 1] {
            Log::open(&path, 100, keep, Some(1_000)).unwrap().write(b"a\n").unwrap();
            let mut log = Log::open(&path, 100, keep, Some(1_000)).unwrap();
            log.write_at(b"b\n", now_ms() + 2_000).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "b\n");
            assert_eq!(path.with_extension("1").exists(), keep > 0);
        }
    }

    #[test]
    fn what_cannot_be_written_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut log = Log::open(&path, 10, 1, None).unwrap();
        log.write(b"1\n3456789\n").unwrap();
        // Something in the way of the old file's new name.
        fs::create_dir(folder.path().join("log.1")).unwrap();
        assert_eq!(log.write(b"abc"), Err(3));
        fs::remove_dir(folder.path().join("log.1")).unwrap();
        log.write(b"def").unwrap();
        assert_eq!(fs::read_to_string(path).unwrap(), "def");
    }
}

//! A log that grows up to a size and is then begun anew, with a number of old ones kept.
//!
//! **Invariant: no file of a log is ever longer than its limit.**

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// The most old files that are kept, whatever was asked for: each rotation renames all of them.
const KEEP_MAX: u32 = 100;

/// The log `path`; older ones are `path.1`, `path.2`, and so on.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    file: File,
    len_bytes: u64,
    max_bytes: u64,
    keep: u32,
}

impl Log {
    /// Opens the log to append to it.
    pub(crate) fn open(path: &Path, max_bytes: u64, keep: u32) -> io::Result<Self> {
        let file = open(path)?;
        let len_bytes = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, len_bytes, max_bytes: max_bytes.max(1), keep: keep.min(KEEP_MAX) })
    }

    /// Appends `bytes`, and begins a new file between two lines when this one is full. What could not
    /// be written is the error's business; how much of it that was is told.
    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> Result<(), u64> {
        while !bytes.is_empty() {
            let now = self.fitting(bytes);
            if now == 0 {
                self.rotate().map_err(|_| bytes.len() as u64)?;
                continue;
            }
            self.file.write_all(&bytes[..now]).map_err(|_| bytes.len() as u64)?;
            self.len_bytes += now as u64;
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
            self.file.set_len(0)?;
        } else {
            for number in (1..self.keep).rev() {
                rename_if_there(&self.numbered(number), &self.numbered(number + 1))?;
            }
            rename_if_there(&self.path, &self.numbered(1))?;
            self.file = open(&self.path)?;
        }
        self.len_bytes = 0;
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
            Log::open(&path, 10, keep).unwrap().write(piece.as_bytes()).unwrap();
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

    #[test]
    fn what_cannot_be_written_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut log = Log::open(&path, 10, 1).unwrap();
        log.write(b"1\n3456789\n").unwrap();
        // Something in the way of the old file's new name.
        fs::create_dir(folder.path().join("log.1")).unwrap();
        assert_eq!(log.write(b"abc"), Err(3));
        fs::remove_dir(folder.path().join("log.1")).unwrap();
        log.write(b"def").unwrap();
        assert_eq!(fs::read_to_string(path).unwrap(), "def");
    }
}

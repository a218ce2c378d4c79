//! Lines that an external store has refused: files for people to inspect, bounded in bytes, the oldest deleted first.
//!
//! Each holds the lines as they were sent, behind comments that say when, why, and what to do about it. Comments are part of the
//! format, so a file can be sent again as it is.

use std::{
    collections::VecDeque,
    fs, io,
    path::{Path, PathBuf},
};

use muster_base::files;
use muster_topics::Millis;

use super::{lines::LinePiece, remote_error::SendError};

/// The suffix of file names, after the time, a number and the number of lines.
const SUFFIX: &str = ".lines";

/// Rejected lines that were set aside.
#[derive(Debug)]
pub(super) struct Quarantine {
    folder: PathBuf,
    max_bytes: u64,
    /// Oldest first.
    files: VecDeque<QuarantinedFile>,
    number: u64,
}

/// A file.
#[derive(Debug)]
struct QuarantinedFile {
    path: PathBuf,
    bytes: u64,
    lines: u64,
}

/// The size of the quarantine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct QuarantineSize {
    /// Files.
    pub(super) files: u64,
    /// Their bytes.
    pub(super) bytes: u64,
    /// The lines in them.
    pub(super) lines: u64,
}

impl Quarantine {
    /// Opens the quarantine in a folder, and creates it if needed.
    pub(super) fn open(folder: &Path, max_bytes: u64) -> io::Result<Self> {
        files::make_folder(folder, files::PRIVATE_FOLDER)?;
        let mut found = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if let Some(lines) = name.to_str().and_then(lines_in) {
                found.push((name, QuarantinedFile { path: entry.path(), bytes: entry.metadata()?.len(), lines }));
            }
        }
        found.sort_by(|one, other| one.0.cmp(&other.0));
        let files = found.into_iter().map(|(_, kept)| kept).collect();
        let mut quarantine = Self { folder: folder.to_owned(), max_bytes, files, number: 0 };
        quarantine.make_room(0);
        Ok(quarantine)
    }

    /// Returns its size.
    pub(super) fn held(&self) -> QuarantineSize {
        let sum = |of: fn(&QuarantinedFile) -> u64| self.files.iter().map(of).sum();
        QuarantineSize { files: self.files.len() as u64, bytes: sum(|kept| kept.bytes), lines: sum(|kept| kept.lines) }
    }

    /// Sets lines aside. When this returns they survive a power failure.
    ///
    /// # Errors
    /// If they cannot be written.
    pub(super) fn add(&mut self, piece: &LinePiece, why: &SendError, at: Millis) -> io::Result<PathBuf> {
        // A message of several lines must not end the comment.
        let why = why.to_string().replace(['\n', '\r'], " ");
        let text = format!(
            "# muster: {} lines, refused at {at} (ms since 1970)\n# {why}\n# This file is line protocol with times in \
             milliseconds; once the reason is fixed it can be sent unchanged.\n{}",
            piece.lines, piece.text
        );
        let bytes = text.len() as u64;
        self.make_room(bytes);
        self.number += 1;
        let path = self.folder.join(format!("{at:0>13}-{:0>6}-{}{SUFFIX}", self.number, piece.lines));
        files::write_atomically(&path, text.as_bytes(), files::SECRET_MODE)?;
        self.files.push_back(QuarantinedFile { path: path.clone(), bytes, lines: piece.lines });
        Ok(path)
    }

    /// Removes the oldest files until this many more bytes are within the limit, or nothing is left.
    fn make_room(&mut self, bytes: u64) {
        while self.held().bytes + bytes > self.max_bytes
            && let Some(oldest) = self.files.pop_front()
        {
            if let Err(error) = fs::remove_file(&oldest.path) {
                tracing::warn!(%error, path = %oldest.path.display(), "a file of a quarantine cannot be removed");
            }
        }
    }
}

/// Returns the number of lines of a file from its name; `None` for other files.
fn lines_in(name: &str) -> Option<u64> {
    name.strip_suffix(SUFFIX).filter(|name| !name.starts_with('.'))?.rsplit_once('-')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> SendError {
        SendError::Answer { status: 400, text: "no\nsuch thing".to_owned() }
    }

    #[test]
    fn refused_lines_are_kept_with_reason() {
        let dir = tempfile::tempdir().unwrap();
        let mut quarantine = Quarantine::open(dir.path(), 1 << 20).unwrap();
        let piece = LinePiece { text: "m f=1 1800000000000\nm f=2 1800000000001\n".to_owned(), lines: 2 };
        let path = quarantine.add(&piece, &refused(), 1_800_000_000_002).unwrap();
        let text = fs::read_to_string(path).unwrap();
        assert!(text.contains("400") && text.contains("no such thing") && text.ends_with(&piece.text), "{text}");
        assert!(text.lines().all(|line| line.starts_with('#') || line.starts_with("m f=")));
        let held = quarantine.held();
        assert_eq!((held.files, held.lines, held.bytes), (1, 2, text.len() as u64));
        assert_eq!(Quarantine::open(dir.path(), 1 << 20).unwrap().held(), held);
    }

    #[test]
    fn quarantine_is_bounded_and_drops_oldest() {
        let dir = tempfile::tempdir().unwrap();
        let mut quarantine = Quarantine::open(dir.path(), 10_000).unwrap();
        let piece = LinePiece { text: "m f=1 1800000000000\n".repeat(100), lines: 100 };
        for at in 0..20 {
            quarantine.add(&piece, &refused(), at).unwrap();
            assert!(quarantine.held().bytes <= 10_000);
        }
        let held = Quarantine::open(dir.path(), 10_000).unwrap().held();
        assert_eq!((held, held.files), (quarantine.held(), 4));
        let oldest = &quarantine.files.front().unwrap().path;
        assert!(oldest.file_name().unwrap().to_str().unwrap().starts_with("0000000000016-"), "{oldest:?}");
        // A piece that is larger than the limit is kept, alone.
        let piece = LinePiece { text: "m f=1 1800000000000\n".repeat(1_000), lines: 1_000 };
        quarantine.add(&piece, &refused(), 30).unwrap();
        assert_eq!(quarantine.held().files, 1);
    }
}

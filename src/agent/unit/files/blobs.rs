//! Contents by hash, in the agent's own folder: what units write, and what was there before them.
//!
//! **Invariant: a file named after a hash has that content**: it is written beside and renamed, and whoever names it in the journal or
//! in a revision has called [`Blobs::sync`] before.

use std::{
    collections::{BTreeSet, HashMap},
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use muster_base::files::{PRIVATE_FOLDER, make_folder};
use muster_topics::name::Digest;
use serde::{Deserialize, Serialize};

use super::examine::PIECE_BYTES;

/// How long a content is kept after the last unit that needs it.
const UNUSED_KEPT: Duration = Duration::from_secs(24 * 3_600);

/// Where a small content lies, of which a tree has thousands: in a blob that has all of them. A file for each would double the time that
/// a tree takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PackedContent {
    pub(super) pack: Digest,
    pub(super) offset_bytes: u64,
    pub(super) size_bytes: u64,
}

/// A blob of many contents, while it is written.
pub(super) struct Packing<'a> {
    blobs: &'a Blobs,
    beside: io::BufWriter<tempfile::NamedTempFile>,
    hash: ring::digest::Context,
    size_bytes: u64,
    places: HashMap<Digest, (u64, u64)>,
}

impl Packing<'_> {
    /// Adds a content, once; returns its hash.
    pub(super) fn add(&mut self, content: &[u8]) -> io::Result<Digest> {
        let (sha256, size_bytes) = (Digest::of(content), content.len() as u64);
        if !self.places.contains_key(&sha256) {
            self.hash.update(content);
            self.beside.write_all(content)?;
            self.places.insert(sha256.clone(), (self.size_bytes, size_bytes));
            self.size_bytes += size_bytes;
        }
        Ok(sha256)
    }

    /// Keeps it; returns where each content lies.
    pub(super) fn finish(self) -> io::Result<HashMap<Digest, PackedContent>> {
        if self.places.is_empty() {
            return Ok(HashMap::new());
        }
        let pack = Digest::from_ring(self.hash.finish());
        let beside = self.beside.into_inner().map_err(io::IntoInnerError::into_error)?;
        self.blobs.persist(beside, &pack)?;
        let placed = |(sha256, (offset_bytes, size_bytes))| {
            (sha256, PackedContent { pack: pack.clone(), offset_bytes, size_bytes })
        };
        Ok(self.places.into_iter().map(placed).collect())
    }
}

/// The contents.
#[derive(Clone, Debug)]
pub(super) struct Blobs {
    folder: PathBuf,
}

impl Blobs {
    pub(super) fn open(folder: PathBuf) -> io::Result<Self> {
        make_folder(&folder, PRIVATE_FOLDER)?;
        Ok(Self { folder })
    }

    pub(super) fn path(&self, sha256: &Digest) -> PathBuf {
        self.folder.join(sha256.as_str())
    }

    pub(super) fn has(&self, sha256: &Digest) -> bool {
        self.path(sha256).is_file()
    }

    /// Keeps a content; returns its hash and size.
    pub(super) fn put(&self, mut from: impl Read, max_bytes: u64) -> io::Result<(Digest, u64)> {
        let mut beside = self.beside()?;
        let (mut hash, mut piece, mut size_bytes) =
            (ring::digest::Context::new(&ring::digest::SHA256), vec![0; PIECE_BYTES], 0);
        loop {
            let length = match from.read(&mut piece) {
                Ok(0) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            let read = piece.get(..length).unwrap_or_default();
            size_bytes += length as u64;
            if size_bytes > max_bytes {
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {max_bytes} bytes")));
            }
            hash.update(read);
            beside.write_all(read)?;
        }
        let sha256 = Digest::from_ring(hash.finish());
        self.persist(beside, &sha256)?;
        Ok((sha256, size_bytes))
    }

    /// Begins a blob of many contents.
    pub(super) fn pack(&self) -> io::Result<Packing<'_>> {
        let (beside, hash) = (io::BufWriter::new(self.beside()?), ring::digest::Context::new(&ring::digest::SHA256));
        Ok(Packing { blobs: self, beside, hash, size_bytes: 0, places: HashMap::new() })
    }

    fn beside(&self) -> io::Result<tempfile::NamedTempFile> {
        tempfile::Builder::new().prefix(".new-").tempfile_in(&self.folder)
    }

    fn persist(&self, beside: tempfile::NamedTempFile, sha256: &Digest) -> io::Result<()> {
        if self.has(sha256) {
            // Somebody may need it for another day.
            return File::open(self.path(sha256))?.set_modified(SystemTime::now());
        }
        beside.persist(self.path(sha256)).map(drop).map_err(|error| error.error)
    }

    /// Syncs what was kept: all at once, because a tree has thousands.
    pub(super) fn sync(&self) -> io::Result<()> {
        Ok(nix::unistd::syncfs(File::open(&self.folder)?)?)
    }

    /// Removes what no unit has needed for a day.
    pub(super) fn sweep(&self, needed: &BTreeSet<Digest>, now: SystemTime) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let is_needed = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
                .is_some_and(|sha256| needed.contains(&sha256));
            if is_needed {
                File::open(entry.path())?.set_modified(now)?;
            } else if now.duration_since(entry.metadata()?.modified()?).unwrap_or_default() > UNUSED_KEPT {
                remove(&entry.path())?;
            }
        }
        Ok(())
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

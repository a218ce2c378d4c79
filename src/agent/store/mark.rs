//! The mark beside the store, in a file of its own: see [`muster_rules::mark`].
//!
//! The file has two slots, written alternately, so that a torn write leaves the one before intact. It is
//! overwritten in place, which needs no free space, and synced: the mark knows of every effect
//! even after a power cut.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use muster_base::files;
use muster_rules::mark::HighWaterMark;

/// The distance of the two copies: no torn write covers both.
const PLACE_BYTES: u64 = 4096;
/// The longest line: five numbers of twenty digits, and a title.
const LINE_MAX_BYTES: usize = 160;

/// The file of a mark.
#[derive(Debug)]
pub(super) struct MarkFile {
    path: PathBuf,
    written: Mutex<MarkState>,
}

#[derive(Debug)]
struct MarkState {
    mark: Option<HighWaterMark>,
    file: Option<File>,
    is_second_next: bool,
}

impl MarkFile {
    /// Opens the mark beside the store in `path`.
    ///
    /// # Errors
    /// If it exists and cannot be read.
    pub(super) fn open(store: &Path) -> io::Result<Arc<Self>> {
        let path = store.with_extension("mark");
        let bytes = match std::fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            read => read?,
        };
        let at = |place: usize| {
            let place = bytes.get(place..)?;
            let line = place.split_inclusive(|byte| *byte == b'\n').next()?;
            HighWaterMark::parse(std::str::from_utf8(line).ok()?)
        };
        let mark = [at(0), at(PLACE_BYTES as usize)].into_iter().flatten().max_by_key(|mark| (mark.steps, mark.epoch));
        let is_second_next = mark.is_some() && at(0) == mark;
        Ok(Arc::new(Self { path, written: Mutex::new(MarkState { mark, file: None, is_second_next }) }))
    }

    /// Returns the mark; `None` if there is none that is readable.
    pub(super) fn get(&self) -> Option<HighWaterMark> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).mark
    }

    /// Advances the mark. An earlier one changes nothing.
    ///
    /// # Errors
    /// If it cannot be written. In memory it is advanced all the same, and written with the next.
    pub(super) async fn follow(self: &Arc<Self>, later: HighWaterMark) -> io::Result<()> {
        if self.get().is_some_and(|mark| mark.followed_by(later) == mark) {
            return Ok(());
        }
        let file = self.clone();
        tokio::task::spawn_blocking(move || file.write(later)).await.map_err(io::Error::other)?
    }

    fn write(&self, later: HighWaterMark) -> io::Result<()> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let mark = written.mark.map_or(later, |mark| mark.followed_by(later));
        written.mark = Some(mark);
        if written.file.is_none() {
            written.file = Some(self.make(mark)?);
        }
        let at = if written.is_second_next { PLACE_BYTES } else { 0 };
        written.is_second_next = !written.is_second_next;
        let Some(file) = &written.file else { return Ok(()) };
        file.write_all_at(&padded(mark), at)?;
        file.sync_data()
    }

    /// Opens the file for overwriting; a missing one is created with its final length.
    fn make(&self, mark: HighWaterMark) -> io::Result<File> {
        let size = PLACE_BYTES as usize + LINE_MAX_BYTES;
        if !std::fs::metadata(&self.path).is_ok_and(|found| found.len() == size as u64) {
            let mut content = padded(mark);
            content.resize(size, b'\n');
            files::write_atomically(&self.path, &content, files::SECRET_MODE)?;
        }
        OpenOptions::new().write(true).open(&self.path)
    }
}

/// Formats the line of a mark, padded to a constant length.
fn padded(mark: HighWaterMark) -> Vec<u8> {
    let mut line = mark.line().into_bytes();
    line.resize(LINE_MAX_BYTES, b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(steps: i64) -> HighWaterMark {
        HighWaterMark { store: 7, steps, issued_ms: 100 * steps, epoch: 1 }
    }

    #[tokio::test]
    async fn written_mark_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("agent.db");
        assert_eq!(MarkFile::open(&store).unwrap().get(), None);
        for steps in [1, 2, 3, 2, 4] {
            let file = MarkFile::open(&store).unwrap();
            file.follow(mark(steps)).await.unwrap();
        }
        assert_eq!(MarkFile::open(&store).unwrap().get(), Some(mark(4)));
    }

    #[tokio::test]
    async fn torn_write_leaves_the_earlier_mark() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("agent.db");
        let file = MarkFile::open(&store).unwrap();
        for steps in 1..=4 {
            file.follow(mark(steps)).await.unwrap();
            let path = folder.path().join("agent.mark");
            let whole = std::fs::read(&path).unwrap();
            let newest = mark(steps).line().into_bytes();
            let at = whole.windows(newest.len()).rposition(|window| window == newest).unwrap();
            let mut torn = whole.clone();
            torn[at + 5..at + 20].fill(0);
            std::fs::write(&path, &torn).unwrap();
            let before = MarkFile::open(&store).unwrap().get();
            assert_eq!(before, (steps > 1).then(|| mark(steps - 1)));
            std::fs::write(&path, &whole).unwrap();
        }
    }
}

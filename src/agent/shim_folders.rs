//! Where shims have their files: in the folders of their units, or in memory if nothing could be written there when they
//! were started.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use muster_base::mount::remove_folder;

/// The folder in memory that stands for a data folder. See [`crate::state_folder`].
#[derive(Clone, Debug)]
pub struct ShimFolders {
    data: Arc<Path>,
    memory: Option<Arc<Path>>,
    is_unwritable: bool,
}

impl ShimFolders {
    /// Those of a data folder. If it is unwritable, what is started has its files in memory.
    #[must_use]
    pub fn new(data: &Path, memory: Option<&Path>, is_unwritable: bool) -> Self {
        Self { data: data.into(), memory: memory.map(Into::into), is_unwritable }
    }

    /// Those of a data folder that has none in memory.
    #[must_use]
    pub fn on_disk(data: &Path) -> Self {
        Self::new(data, None, false)
    }

    /// Whether what is started has its files in memory.
    #[must_use]
    pub fn is_in_memory(&self) -> bool {
        self.is_unwritable && self.memory.is_some()
    }

    fn twin(&self, folder: &Path) -> Option<PathBuf> {
        Some(self.memory.as_ref()?.join(folder.strip_prefix(&self.data).ok()?))
    }

    /// The folder with the files of the last start in `folder`.
    #[must_use]
    pub fn present(&self, folder: &Path) -> PathBuf {
        self.twin(folder).filter(|twin| twin.is_dir()).unwrap_or_else(|| folder.to_owned())
    }

    /// The folder for the next start in `folder`; nothing may run in [`Self::present`] any more.
    ///
    /// # Errors
    /// If what an earlier start has left in memory cannot be removed.
    pub fn next(&self, folder: &Path) -> io::Result<PathBuf> {
        match self.twin(folder) {
            Some(twin) if self.is_unwritable => Ok(twin),
            Some(twin) if twin.is_dir() => remove_folder(&twin).map(|()| folder.to_owned()),
            _ => Ok(folder.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn start_in_memory_holds_until_the_next_start() {
        let (data, memory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let run = data.path().join("units/default/a/run");
        let twin = memory.path().join("units/default/a/run");
        let of = |is_unwritable| ShimFolders::new(data.path(), Some(memory.path()), is_unwritable);
        assert_eq!((of(false).next(&run).unwrap(), of(false).present(&run)), (run.clone(), run.clone()));
        // What runs on the disk goes on there.
        assert_eq!((of(true).present(&run), of(true).next(&run).unwrap()), (run.clone(), twin.clone()));
        fs::create_dir_all(&twin).unwrap();
        // What was started in memory is found there, also once the disk can be written.
        assert_eq!((of(true).present(&run), of(false).present(&run)), (twin.clone(), twin.clone()));
        assert_eq!((of(false).next(&run).unwrap(), of(false).present(&run)), (run.clone(), run.clone()));
        assert!(!twin.exists());
        let outside = Path::new("/elsewhere/run");
        assert_eq!(of(true).next(outside).unwrap(), outside);
    }
}

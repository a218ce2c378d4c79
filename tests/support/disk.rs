//! A small disk, which root can fill.

use std::{fs, io::Write, path::Path, process::Command};

/// A file system in memory; it goes when this does.
pub struct Disk(tempfile::TempDir);

impl Disk {
    /// One of so many MiB.
    #[must_use]
    pub fn new(mib: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = format!("size={mib}m,mode=700");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "muster-test"]).arg(folder.path());
        assert!(mount.status().unwrap().success(), "only root can make a small disk");
        Self(folder)
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Takes all that is free.
    pub fn fill(&self) {
        let mut file = fs::OpenOptions::new().append(true).create(true).open(self.path().join("filler")).unwrap();
        while file.write(&[0x55; 4096]).is_ok_and(|written| written > 0) {}
    }

    /// Gives it back.
    pub fn empty(&self) {
        fs::remove_file(self.path().join("filler")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: what still has a file open there keeps it until then.
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

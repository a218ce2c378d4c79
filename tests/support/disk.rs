//! A small disk, which root can fill.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

/// A small file system; it goes when this does.
pub struct Disk {
    folder: tempfile::TempDir,
    path: PathBuf,
}

impl Disk {
    /// One in memory of so many MiB.
    #[must_use]
    pub fn new(mib: u32) -> Self {
        let disk = Self::unmounted();
        let options = format!("size={mib}m,mode=700");
        run("mount", &["-t", "tmpfs", "-o", &options, "muster-test"], disk.path());
        disk
    }

    /// An ext4 of so many MiB with these options of `mkfs.ext4`, of which nothing is kept for root.
    #[must_use]
    pub fn ext4(mib: u64, options: &[&str]) -> Self {
        let disk = Self::unmounted();
        let image = disk.folder.path().join("image");
        fs::File::create(&image).unwrap().set_len(mib << 20).unwrap();
        run("mkfs.ext4", &[&["-q", "-m", "0"], options].concat(), &image);
        run("mount", &["-o", "loop", image.to_str().unwrap()], disk.path());
        disk
    }

    fn unmounted() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mounted");
        fs::create_dir(&path).unwrap();
        Self { folder, path }
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes all that is free.
    pub fn fill(&self) {
        let mut filler = OpenOptions::new().append(true).create(true).open(self.filler()).unwrap();
        // What the last write leaves is less than a block.
        for piece_bytes in [64 << 10, 4096, 512] {
            while filler.write(&vec![0x55; piece_bytes]).is_ok_and(|written| written > 0) {}
        }
        let _ = filler.sync_all();
    }

    /// Takes all that is free but so many bytes.
    pub fn fill_but(&self, left_bytes: u64) {
        self.fill();
        let filler = OpenOptions::new().write(true).open(self.filler()).unwrap();
        filler.set_len(filler.metadata().unwrap().len() - left_bytes).unwrap();
        // A journaling file system only uses released blocks again after its journal is committed.
        nix::unistd::sync();
    }

    /// Takes all files that there may be, and leaves bytes.
    pub fn fill_files(&self) {
        let folder = self.path().join("files");
        fs::create_dir(&folder).unwrap();
        for number in 0.. {
            if fs::File::create(folder.join(number.to_string())).is_err() {
                return;
            }
        }
    }

    /// Has an ext4 become read-only, as after an error of the disk, whatever is open on it.
    pub fn abort(&self) {
        run("mount", &["-o", "remount,abort"], self.path());
    }

    /// Mounts it for reading alone, or for writing again, while nothing is open on it for writing.
    pub fn set_read_only(&self, is_read_only: bool) {
        let option = if is_read_only { "remount,ro" } else { "remount,rw" };
        run("mount", &["-o", option], self.path());
    }

    /// Gives back what was taken.
    pub fn empty(&self) {
        let _ = fs::remove_file(self.filler());
        let _ = fs::remove_dir_all(self.path().join("files"));
        nix::unistd::sync();
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }
}

fn run(program: &str, args: &[&str], path: &Path) {
    let status = Command::new(program).args(args).arg(path).status().unwrap();
    assert!(status.success(), "{program} needs root");
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: what still has a file open there keeps it until then.
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

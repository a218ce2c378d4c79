//! What the host should have, and whether it has it.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{Options, common::family::start_ticks};

/// Files in each folder: all texts of a unit have at most 32 KiB.
pub(crate) const FILES_EACH: usize = 25;

/// How long a host may take until it has everything.
const PATIENCE: Duration = Duration::from_secs(600);

/// What each process runs, with the path of its pid file.
const SCRIPT: &str = "#!/bin/sh\necho $$ > \"$1.new\" && mv \"$1.new\" \"$1\"\nexec sleep 1000000\n";

/// Mode of all files.
pub(crate) const MODE: &str = "0640";

/// A file.
pub(crate) struct File {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

/// What the host should have.
pub(crate) struct Content {
    /// A folder for everything else.
    pub(crate) place: PathBuf,
    /// Folders, each with its files.
    pub(crate) folders: Vec<(PathBuf, Vec<File>)>,
    /// The pid files of processes.
    pub(crate) pid_files: Vec<PathBuf>,
    /// What they run.
    pub(crate) script: PathBuf,
}

impl Content {
    pub(crate) fn new(place: &Path, options: &Options) -> Result<Self> {
        for name in ["etc", "pids"] {
            fs::create_dir(place.join(name))?;
        }
        let script = place.join("sleeper");
        fs::write(&script, SCRIPT)?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
        let file = |number: usize, folder: &Path| {
            let path = folder.join(format!("{number}.conf"));
            let line = format!("setting-{number} = {}\n", "x".repeat(40));
            let mut text = line.repeat(1_024 / line.len() + 1);
            text.truncate(1_023);
            File { path, text: text + "\n" }
        };
        let numbers: Vec<usize> = (0..options.files).collect();
        let folders = numbers.chunks(FILES_EACH).map(|numbers| {
            let folder = place.join("etc").join(format!("part{}.d", numbers[0] / FILES_EACH));
            let files = numbers.iter().map(|number| file(*number, &folder)).collect();
            (folder, files)
        });
        Ok(Self {
            place: place.to_owned(),
            folders: folders.collect(),
            pid_files: (0..options.processes).map(|number| place.join("pids").join(number.to_string())).collect(),
            script,
        })
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = &File> {
        self.folders.iter().flat_map(|(_, files)| files)
    }

    /// Waits until everything is there.
    pub(crate) fn wait(&self) -> Result<()> {
        let began = Instant::now();
        let is_there = |file: &File| {
            let mode = fs::metadata(&file.path).map(|found| found.permissions().mode() & 0o777);
            mode.is_ok_and(|mode| format!("{mode:04o}") == MODE)
                && fs::read_to_string(&file.path).is_ok_and(|text| text == file.text)
        };
        while !(self.pids().len() == self.pid_files.len() && self.files().all(is_there)) {
            ensure!(began.elapsed() < PATIENCE, "not everything is there within {PATIENCE:?}");
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// The processes that are alive.
    fn pids(&self) -> Vec<i32> {
        let pid = |path: &PathBuf| fs::read_to_string(path).ok()?.trim().parse::<i32>().ok();
        self.pid_files.iter().filter_map(pid).filter(|pid| start_ticks(*pid).is_some()).collect()
    }

    /// Ends the processes that are left.
    pub(crate) fn end_processes(&self) {
        for pid in self.pids() {
            let is_ours =
                fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"sleep\x001000000"));
            if is_ours {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }
}

//! Files of packages, kept while a rollback may need them: those that were downloaded, and those of versions that are replaced.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use muster_base::files::make_folder;
use muster_rules::{packages::change::PackageChange, plan::Failure};

use super::{ARCHIVES, host::Host, program};
use crate::unit::{failure::may_heal, kind::UnitTrace, task_log::RunningTask, turns::ResourceClass};

/// The package manager's own archive.
const OWN_ARCHIVE: &str = "/var/cache/apt/archives";

/// A package is some megabytes.
const FETCH_MAX: Duration = Duration::from_secs(300);

const FOLDER_MODE: u32 = 0o755;

impl Host {
    /// Creates the archive.
    pub(super) fn make_archive(&self) -> Result<(), Failure> {
        let folder = self.root.path(ARCHIVES).join("partial");
        make_folder(&folder, FOLDER_MODE)
            .map_err(|error| may_heal(format!("cannot create {}: {error}", folder.display())))
    }

    /// Returns the file of a version of a package as the root knows it, if it is kept.
    pub(super) fn kept_file(&self, name: &str, version: &str) -> Option<String> {
        let found = find(&self.root.path(ARCHIVES), &self.adapter.file_prefix(name, version))?;
        Some(format!("{ARCHIVES}/{}", found.file_name()?.to_string_lossy()))
    }

    /// Keeps the files of versions that are about to be replaced. What cannot be had is said in the task.
    pub(super) async fn keep_files(&self, changes: &[PackageChange], task: &RunningTask) -> Result<(), Failure> {
        self.make_archive()?;
        for change in changes {
            let Some(before) = change.before.as_ref().filter(|before| change.after.as_ref() != Some(*before)) else {
                continue;
            };
            if self.kept_file(&change.name, before).is_some() {
                continue;
            }
            if let Some(own) = find(&self.root.path(OWN_ARCHIVE), &self.adapter.file_prefix(&change.name, before)) {
                let to = self.root.path(ARCHIVES).join(own.file_name().unwrap_or_default());
                fs::copy(&own, &to)
                    .map_err(|error| may_heal(format!("{} cannot be copied: {error}", own.display())))?;
                continue;
            }
            let download = self.adapter.download_version(&change.name, before);
            let said = program::run(&self.root, &*self.adapter, &download, Some(ARCHIVES), FETCH_MAX, &|_| ()).await;
            let is_kept = said.is_ok_and(|said| said.is_ok) && self.kept_file(&change.name, before).is_some();
            if !is_kept {
                task.line(&format!(
                    "warning: {} {before} is no longer in any repository, so a rollback cannot install it again",
                    change.name
                ));
            }
        }
        Ok(())
    }

    /// Removes files that no unit may go back to.
    pub(super) async fn sweep_archive(&self, units: io::Result<Vec<UnitTrace>>) -> io::Result<()> {
        let folder = self.root.path(ARCHIVES);
        let Some(_turn) = self.turns.try_take(ResourceClass::Packages) else { return Ok(()) };
        let mut needed = BTreeSet::new();
        for trace in units? {
            for run in self.store.package_runs(&trace.unit).await.map_err(io::Error::other)? {
                for change in &run.changes {
                    let versions = change.before.iter().chain(&change.after);
                    needed.extend(versions.map(|version| self.adapter.file_prefix(&change.name, version)));
                }
            }
        }
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_file = entry.file_type()?.is_file() && name.ends_with(".deb");
            if is_file && !needed.iter().any(|prefix| name.starts_with(prefix)) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

fn find(folder: &Path, prefix: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let is_it = |name: &str| name.starts_with(prefix) && name.ends_with(".deb");
    entries.map(|entry| entry.path()).find(|path| path.file_name().is_some_and(|name| is_it(&name.to_string_lossy())))
}

//! The folder of an LXC container.
//!
//! | name | what |
//! |---|---|
//! | `made.json` | what it was created from; its presence tells our containers from others |
//! | `config`, `limits` | LXC's configuration |
//! | `delta`, `work` | what the container has written, over the image (overlayfs) |
//! | `disk`, `room` | the same in a file system of its own, if its size is limited (`disk`) |
//! | `rootfs` | a copy of the image, where there is no overlayfs |
//! | `run/` | its shim's folder, with its log |
//! | `cgroups`, `counted` | the cgroups of its last run, and their counters at its end |
//! | `lxc.log` | what `lxc-start` logged of its last start and end |
//!
//! **Invariant: a container's folder is complete.** It is created under another name, and renamed.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use muster_base::{
    files::{PRIVATE_FOLDER, SECRET_MODE, make_folder, write_atomically},
    mount::remove_folder,
};
use muster_rules::plan::Failure;
use muster_shim::files::{self, StateFile as Recorded};
use muster_topics::{name::Digest, process::Limits, unit::Exit};
use nix::sys::statfs;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::{
    config, disk, ended, image, oom,
    tool::{self, WORK_MAX},
    users,
};
use crate::{
    cgroup::{Hierarchies, limit_files},
    unit::{
        container::runtime::{ContainerPhase, Recipe},
        failure::{blocking, may_heal, never},
        folders,
    },
};

const MADE: &str = "made.json";
const CONFIG: &str = "config";
const LIMITS: &str = "limits";
const DELTA: &str = "delta";
const ROOTFS: &str = "rootfs";
const RUN: &str = "run";
const LXC_LOG: &str = "lxc.log";

/// Names that begin with this are not containers.
const HIDDEN: char = '.';
/// The prefix of folders that are being created or removed.
const NEW_PREFIX: &str = ".new-";

/// The record of a container's creation, in `made.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CreationRecord {
    pub(super) labels: BTreeMap<String, String>,
    /// The root file system that it was created from.
    pub(super) image: Digest,
    /// The program that it runs.
    pub(super) argv: Vec<String>,
}

/// What exists under a name.
pub(super) enum FolderState {
    Nothing,
    /// A folder that no agent has created.
    Others,
    Ours(CreationRecord),
}

/// The folder of one container.
#[derive(Clone, Debug)]
pub(super) struct ContainerFolder(PathBuf);

impl ContainerFolder {
    pub(super) fn new(path: &Path, name: &str) -> Self {
        Self(path.join(name))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// The shim's folder.
    pub(super) fn run(&self) -> PathBuf {
        self.0.join(RUN)
    }

    pub(super) fn lxc_log(&self) -> PathBuf {
        self.0.join(LXC_LOG)
    }

    pub(super) fn look(&self) -> Result<FolderState, Failure> {
        match fs::read(self.0.join(MADE)) {
            Ok(content) => match serde_json::from_slice(&content) {
                Ok(made) => Ok(FolderState::Ours(made)),
                Err(error) => Err(self.failure("understood", &error)),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(if self.0.exists() { FolderState::Others } else { FolderState::Nothing })
            }
            Err(error) => Err(self.failure("read", &error)),
        }
    }

    /// What its shim has recorded, if it was started in this boot.
    pub(super) fn recorded(&self) -> Option<muster_shim::ProgramState> {
        match files::read_state(&self.run()) {
            Ok(Recorded::State(state)) => {
                let this_boot = muster_shim::process_identity::boot_id().is_ok_and(|boot_id| boot_id == state.boot_id);
                Some(muster_shim::ProgramState { over: state.over || !this_boot, ..state })
            }
            _ => None,
        }
    }

    /// Creates it, if it does not exist.
    pub(super) async fn create(self, path: &Path, recipe: Recipe) -> Result<(), Failure> {
        let Some(sha256) = recipe.image.artifact().map(|artifact| artifact.sha256.clone()) else {
            return Err(never("LXC creates containers only from root file systems"));
        };
        let image = image::root(path, &sha256);
        make_folder(path, PRIVATE_FOLDER).map_err(|error| self.failure("made", &error))?;
        let beside = tempfile::Builder::new().prefix(NEW_PREFIX).tempdir_in(path);
        let beside = beside.map_err(|error| self.failure("made", &error))?;
        let upper = |folder: &Path| match recipe.disk_bytes {
            Some(_) => disk::upper(folder, DELTA),
            None => folder.join(DELTA),
        };
        let overlay = overlay(&image, &upper(&self.0));
        match (&overlay, recipe.disk_bytes) {
            (None, None) => copy(&image, &beside.path().join(ROOTFS)).await?,
            (None, Some(_)) => return Err(never("unsupported by lxc: disk_bytes: the kernel has no overlayfs")),
            (Some(_), limit) => {
                delta(&image, &upper(beside.path())).map_err(|error| self.failure("made", &error))?;
                if let Some(bytes) = limit {
                    disk::make(beside.path(), bytes).await?;
                }
            }
        }
        blocking(move || self.fill(beside, &recipe, sha256, &image, overlay)).await
    }

    fn fill(
        &self,
        beside: TempDir,
        recipe: &Recipe,
        image: Digest,
        root: &Path,
        overlay: Option<String>,
    ) -> Result<(), Failure> {
        let user = users::find(root, recipe.user.as_deref()).map_err(never)?;
        let rootfs = overlay.unwrap_or_else(|| format!("dir:{}", self.0.join(ROOTFS).display()));
        let limits = self.0.join(LIMITS).display().to_string();
        let mount = recipe.disk_bytes.map(|_| disk::mount(&self.0)).transpose()?;
        let name = self.0.file_name().unwrap_or_default().to_string_lossy();
        let hooks = oom::hooks(&self.0, &Hierarchies::detect());
        let frame = config::ConfigContext {
            name: &name,
            rootfs: &rootfs,
            user: &user,
            limits: &limits,
            mount: mount.as_deref(),
            hooks: &hooks,
        };
        let is_folder = |host: &str| fs::metadata(host).is_ok_and(|metadata| metadata.is_dir());
        let config = config::text(&frame, recipe, is_folder).map_err(never)?;
        let argv = recipe.entry.iter().flatten().chain(&recipe.args).cloned().collect();
        let made = CreationRecord { labels: recipe.labels.clone(), image, argv };
        let at = |name: &str| beside.path().join(name);
        let write = || {
            // Environments may contain secrets.
            write_atomically(&at(CONFIG), config.as_bytes(), SECRET_MODE)?;
            write_atomically(&at(LIMITS), limits_text(&recipe.limits).as_bytes(), SECRET_MODE)?;
            write_atomically(&at(MADE), &serde_json::to_vec(&made)?, SECRET_MODE)?;
            fs::rename(beside.path(), &self.0)
        };
        write().map_err(|error: io::Error| self.failure("made", &error))?;
        // It was renamed, so there is nothing to remove.
        drop(beside.keep());
        Ok(())
    }

    /// Writes its limits, for its next start.
    pub(super) fn write_limits(&self, limits: &Limits) -> Result<(), Failure> {
        let written = write_atomically(&self.0.join(LIMITS), limits_text(limits).as_bytes(), SECRET_MODE);
        written.map_err(|error| self.failure("written", &error))
    }

    /// Removes what was logged and counted in the last run.
    pub(super) fn begin(&self) -> Result<(), Failure> {
        oom::forget(&self.0).map_err(|error| self.failure("cleared", &error))?;
        match fs::remove_file(self.lxc_log()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.failure("cleared", &error)),
            _ => Ok(()),
        }
    }

    /// Returns its end, given how `lxc-start` ended.
    pub(super) fn ended(&self, last: &muster_shim::ProgramEnd) -> ContainerPhase {
        let exit = ended::exit(&self.runtime_log(), last.exit);
        // A container that survived the kill of a process did not end because of it.
        let oom_killed = exit != Exit::Code(0) && oom::has_killed(&self.0);
        ContainerPhase::Ended { exit, oom_killed, started_ms: last.started_ms, at_ms: Some(last.at_ms) }
    }

    /// Why it did not start.
    pub(super) fn why_not(&self) -> String {
        ended::why_not(&self.runtime_log())
    }

    fn runtime_log(&self) -> String {
        fs::read(self.lxc_log()).map(|said| String::from_utf8_lossy(&said).into_owned()).unwrap_or_default()
    }

    /// Removes it with all that it has written. It must not run. It is renamed first, so that an incomplete removal
    /// leaves no container.
    pub(super) fn remove(&self) -> Result<(), Failure> {
        let parent = self.0.parent().unwrap_or(Path::new("/"));
        let remove = || {
            let beside = tempfile::Builder::new().prefix(NEW_PREFIX).tempdir_in(parent)?;
            fs::rename(&self.0, beside.path().join("gone"))?;
            beside.close()
        };
        remove().map_err(|error: io::Error| self.failure("removed", &error))
    }

    fn failure(&self, what: &str, error: &dyn std::fmt::Display) -> Failure {
        may_heal(format!("the container's folder {} cannot be {what}: {error}", self.0.display()))
    }
}

fn limits_text(limits: &Limits) -> String {
    let mut files = limit_files(limits);
    // In LXC's configuration nothing is optional.
    files.retain(|file| !file.optional || file.is_there());
    config::limits(&files)
}

/// Creates the writable layer over an image, with the root folder's owner and mode.
fn delta(root: &Path, at: &Path) -> io::Result<()> {
    let of_root = fs::metadata(root)?;
    fs::create_dir_all(at)?;
    chown(at, Some(of_root.uid()), Some(of_root.gid()))?;
    fs::set_permissions(at, fs::Permissions::from_mode(of_root.mode() & 0o7777))
}

/// Returns its root file system as an overlay of the image, if that is possible here; changes are written to `upper`.
fn overlay(image: &Path, upper: &Path) -> Option<String> {
    let (lower, upper) = (image.to_str()?, upper.to_str()?);
    // These characters separate or escape the list of folders.
    if [lower, upper].iter().any(|path| path.contains([':', ',', '\\', '"', '\n'])) {
        return None;
    }
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let is_known = known.lines().any(|line| line.split_ascii_whitespace().last() == Some("overlay"));
    // An overlay on an overlay does not work.
    let is_one = statfs::statfs(image).map_or(true, |found| found.filesystem_type() == statfs::OVERLAYFS_SUPER_MAGIC);
    (is_known && !is_one).then(|| format!("overlay:{lower}:{upper}"))
}

/// Copies an image, as a reflink where the file system supports it.
async fn copy(image: &Path, to: &Path) -> Result<(), Failure> {
    let args = [OsStr::new("--archive"), OsStr::new("--reflink=auto"), image.as_os_str(), to.as_os_str()];
    let ran = tool::run("cp", &args, WORK_MAX).await?;
    if ran.ok { Ok(()) } else { Err(may_heal(format!("the image cannot be copied: {}", ran.why()))) }
}

/// Returns the names in a folder that may be containers'; empty if there is no such folder, or it is unreadable.
pub(super) fn names(path: &Path) -> Vec<String> {
    let mut names = folders::names(path).unwrap_or_default();
    names.retain(|name| !name.starts_with(HIDDEN));
    names
}

/// Removes containers whose creation or removal was interrupted more than `age` ago.
pub(super) fn sweep(path: &Path, age: Duration) -> io::Result<()> {
    for name in folders::names(path)?.into_iter().filter(|name| name.starts_with(NEW_PREFIX)) {
        let at = path.join(name);
        if SystemTime::now().duration_since(fs::metadata(&at)?.modified()?).unwrap_or_default() > age {
            remove_folder(&at)?;
        }
    }
    Ok(())
}

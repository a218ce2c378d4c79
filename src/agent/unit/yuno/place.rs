//! The folder of a unit: its layout, and what is created and removed.
//!
//! Files of an instance exist once per slot; the work folder and the revisions are shared by both.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use muster_base::{
    files::{self, PASSABLE_FOLDER, PRIVATE_FOLDER, SECRET_MODE, make_folder, write_atomically},
    mount::remove_folder,
};
use muster_rules::{
    checked,
    plan::{Failure, Slot},
    port_lease::EndpointWiring,
    render,
};
use muster_shim::cgroup::Cgroup;
use muster_sqlite::room;
use muster_topics::{
    diagnostic::Diagnostic,
    name::Digest,
    process::Limits,
    unit::{ConfigRef, YunoSpec},
};
use nix::{
    errno::Errno,
    unistd::{self, Gid, Uid},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::{failure::may_heal, folders};
use super::{materials::Materials, reload::WatchedFiles};
use crate::{kept_data, shim_folders::ShimFolders};

/// The configs of a revision with their secrets, and the secrets of what is rendered when it is started, by name.
pub(super) type RevealedConfigs<'a> = (&'a [(ConfigRef, Value)], &'a BTreeMap<String, String>);

/// The second copy of `started.json`, in the shim's folder.
const STARTED_AGAIN: &str = "started.json";

/// The content of `started.json`.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StartRecord {
    pub(super) revision: Digest,
    /// The bare [`Spec::revision`](muster_topics::unit::Spec::revision); `revision` may be keyed.
    pub(super) bare: Option<Digest>,
    pub(super) artifact: Digest,
    /// Features that it runs without, as in the unit's report.
    pub(super) missing: Vec<Diagnostic>,
    /// [`Spec::frame`](muster_topics::unit::Spec::frame).
    pub(super) frame: Option<Digest>,
    /// Its limits.
    pub(super) limits: Limits,
    /// The revision whose folder its configs are in, if that has changed since it was started.
    pub(super) reads: Option<Digest>,
    /// The state of the watched files that it may have read.
    pub(super) watched: WatchedFiles,
    /// The ports and connections that it was started with.
    pub(super) wiring: EndpointWiring,
}

/// The files of a unit's instance in a slot.
pub(super) struct InstanceFolder {
    pub(super) folder: PathBuf,
    pub(super) slot: Slot,
    /// Where its shims have their files.
    pub(super) shims: ShimFolders,
}

impl InstanceFolder {
    fn own(&self, first: &str, second: &str) -> PathBuf {
        self.folder.join(match self.slot {
            Slot::First => first,
            Slot::Second => second,
        })
    }

    /// The shim's folder.
    pub(super) fn run(&self) -> PathBuf {
        self.shims.present(&self.own_run())
    }

    fn own_run(&self) -> PathBuf {
        self.own("run", "run.2")
    }

    /// Whether its shim has its files in memory.
    fn is_in_memory(&self) -> bool {
        self.run() != self.own_run()
    }

    /// The link to the configs of the running revision.
    pub(super) fn link(&self) -> PathBuf {
        self.own("config", "config.2")
    }

    /// The folders of its probes' shims.
    pub(super) fn probes(&self) -> PathBuf {
        let own = self.own("probe", "probe.2");
        if self.shims.is_in_memory() { self.shims.next(&own).unwrap_or(own) } else { own }
    }

    /// Creates the shim's folder for a start. No shim may be in the one before.
    pub(super) fn make_run(&self) -> Result<(), Failure> {
        // The log in it may be private; the shim opens its files before it switches to another user.
        let made = self.shims.next(&self.own_run()).and_then(|run| make_folder(&run, PRIVATE_FOLDER));
        made.map_err(|error| self.failure("prepared", &error))
    }

    /// How often a shim that has ended had restarted its program.
    pub(super) fn restarts(&self) -> u32 {
        match muster_shim::files::read_state(&self.run()) {
            Ok(muster_shim::files::StateFile::State(state)) => state.restarts,
            _ => 0,
        }
    }

    /// Whether a shim has recorded that it restarts nothing any more.
    pub(super) fn is_over(&self) -> bool {
        matches!(muster_shim::files::read_state(&self.run()), Ok(muster_shim::files::StateFile::State(state)) if state.over)
    }

    /// Whether a shim's record is of an earlier boot.
    pub(super) fn is_of_earlier_boot(&self) -> bool {
        let boot_id = muster_shim::process_identity::boot_id().ok();
        match muster_shim::files::read_state(&self.run()) {
            Ok(muster_shim::files::StateFile::State(state)) => Some(&state.boot_id) != boot_id.as_ref(),
            // Damaged by a power failure.
            Ok(muster_shim::files::StateFile::Damaged) => true,
            _ => false,
        }
    }

    /// The cgroup of its last launch.
    pub(super) fn cgroup(&self) -> Cgroup {
        muster_shim::files::read_launch(&self.run()).map(|launch| launch.cgroup).unwrap_or_default()
    }

    pub(super) fn work(&self) -> PathBuf {
        self.folder.join(kept_data::WORK)
    }

    pub(super) fn revision(&self, revision: &Digest) -> PathBuf {
        self.folder.join("rev").join(revision.short())
    }

    /// The configs of a revision.
    pub(super) fn materials(&self, revision: &Digest) -> Materials {
        Materials::new(self.revision(revision))
    }

    /// Creates the folders, writes the configs unless they are there, and removes those of old revisions: all but this
    /// one, the running one, and the one to `keep`.
    pub(super) fn prepare(
        &self,
        revision: &Digest,
        keep: Option<&Digest>,
        configs: Option<RevealedConfigs<'_>>,
    ) -> Result<(), Failure> {
        let prepare = || {
            make_folder(&self.folder.join("rev"), PASSABLE_FOLDER)?;
            make_folder(&self.work(), PASSABLE_FOLDER)?;
            if let Some((configs, in_environment)) = configs {
                self.materials(revision).write(revision, configs, in_environment.clone())?;
            }
            let of = |slot| Self { folder: self.folder.clone(), slot, shims: self.shims.clone() };
            let running = Slot::ALL.map(|slot| of(slot).started().ok());
            let running = running.iter().flatten().flat_map(|started| started.reads.iter().chain([&started.revision]));
            let needed: Vec<&Digest> = running.chain(keep).chain([revision]).collect();
            for name in folders::names(&self.folder.join("rev"))? {
                if !needed.iter().any(|needed| name == needed.short())
                    && let Err(error) = remove_folder(&self.folder.join("rev").join(&name))
                    && !room::is_missing_for(&error)
                {
                    return Err(error);
                }
            }
            Ok(())
        };
        prepare().map_err(|error: io::Error| self.failure("prepared", &error))
    }

    /// Returns the values of secrets that are kept for all revisions.
    pub(super) fn kept_secrets(&self) -> Vec<String> {
        let revisions = self.folder.join("rev");
        let names = folders::names(&revisions).unwrap_or_default();
        names.into_iter().flat_map(|name| Materials::new(revisions.join(name)).values()).collect()
    }

    pub(super) fn wired(&self, revision: &Digest) -> PathBuf {
        self.revision(revision).join("wired").join("config.json")
    }

    /// Every file that holds the configs of an instance that reads this revision.
    pub(super) fn content_paths(&self, revision: &Digest, spec: &YunoSpec, started: &StartRecord) -> Vec<PathBuf> {
        let wired = (!started.wiring.is_empty()).then(|| self.wired(revision));
        self.materials(revision).paths(&spec.configs).into_iter().chain(wired).collect()
    }

    /// Returns the configuration that a unit with endpoints is started with: the installed one, with its endpoints, and with what
    /// is rendered of templates that name these.
    pub(super) fn wired_text(
        &self,
        revision: &Digest,
        spec: &YunoSpec,
        wiring: &EndpointWiring,
    ) -> Result<Option<String>, Failure> {
        if wiring.is_empty() {
            return Ok(None);
        }
        let materials = self.materials(revision);
        let installed = (!spec.configs.is_empty()).then(|| materials.merged());
        let never = |error: Diagnostic| Failure { error, may_heal: false };
        let content = installed.map_or(Ok(b"{}".to_vec()), fs::read).map_err(|error| self.failure("read", &error))?;
        let mut config =
            serde_json::from_slice(&content).map_err(|error| never(format!("the unit's config: {error}").into()))?;
        wiring.put_into(&mut config).map_err(|error| never(error.into()))?;
        let secrets = materials.secrets_at_start();
        let texts = render::config::at_start(spec, wiring, &|name| secrets.get(name).cloned());
        for (at, text) in texts.map_err(|fault| never(Diagnostic::of(&fault)))? {
            config.pointer_mut(&at).into_iter().for_each(|place| *place = text.as_str().into());
        }
        Ok(Some(config.to_string()))
    }

    /// Writes the configuration that a unit is started with, if it has one, and returns its path.
    pub(super) fn wire(
        &self,
        revision: &Digest,
        spec: &YunoSpec,
        wiring: &EndpointWiring,
    ) -> Result<Option<PathBuf>, Failure> {
        let Some(text) = self.wired_text(revision, spec, wiring)? else {
            return Ok((!spec.configs.is_empty()).then(|| self.materials(revision).merged()));
        };
        let wired = self.wired(revision);
        if fs::read(&wired).is_ok_and(|present| present == text.as_bytes()) {
            return Ok(Some(wired));
        }
        let write = || {
            make_folder(wired.parent().unwrap_or(&self.folder), PASSABLE_FOLDER)?;
            write_atomically(&wired, text.as_bytes(), SECRET_MODE)
        };
        write().map_err(|error: io::Error| self.failure("written", &error))?;
        Ok(Some(wired))
    }

    /// Returns the same file of a revision through the link to the running revision.
    pub(super) fn behind_link(&self, revision: &Digest, path: &Path) -> PathBuf {
        let below = path.strip_prefix(self.revision(revision)).unwrap_or(path);
        self.link().join(below)
    }

    /// Lets a user read its configs, and write to its working directory.
    pub(super) fn give_to(&self, revision: &Digest, user: &muster_shim::ResolvedUser) -> Result<(), Failure> {
        let give = |path: &Path| {
            if fs::metadata(path).is_ok_and(|found| (found.uid(), found.gid()) == (user.uid, user.gid)) {
                return Ok(());
            }
            match unistd::chown(path, Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid))) {
                Err(Errno::ENOENT) | Ok(()) => Ok(()),
                Err(errno) => Err(self.failure("given to its user", &errno.into())),
            }
        };
        give(&self.work())?;
        give(&self.wired(revision))?;
        self.materials(revision).readable().iter().try_for_each(|file| give(file))
    }

    pub(super) fn started_file(&self) -> PathBuf {
        self.own("started.json", "started.2.json")
    }

    pub(super) fn started(&self) -> io::Result<StartRecord> {
        let read = |path: &Path| {
            let wrong = |problem: String| io::Error::new(io::ErrorKind::InvalidData, problem);
            fs::read(path).and_then(|bytes| checked::from_bytes(&bytes).map_err(wrong))
        };
        if self.is_in_memory() {
            // What is on the disk is of an earlier start.
            return read(&self.run().join(STARTED_AGAIN));
        }
        // What a program was started as is recorded nowhere else; a program of an unknown revision is replaced.
        read(&self.started_file()).or_else(|error| read(&self.run().join(STARTED_AGAIN)).map_err(|_| error))
    }

    pub(super) fn write_started(&self, started: &StartRecord) -> Result<(), Failure> {
        let file = self.started_file();
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let write = |text: String| {
            // The second copy first: the copy that is read first is written last.
            if self.run().is_dir() {
                files::clear_places(&self.run(), files::RoleFile::File, &[STARTED_AGAIN])?;
                write_atomically(&self.run().join(STARTED_AGAIN), text.as_bytes(), SECRET_MODE)?;
            }
            if self.is_in_memory() {
                return Ok(());
            }
            files::clear_places(&self.folder, files::RoleFile::File, &[&name])?;
            // It contains a hash of the environment, so only the agent may read it.
            write_atomically(&file, text.as_bytes(), SECRET_MODE)
        };
        checked::to_text(started)
            .map_err(io::Error::from)
            .and_then(write)
            .map_err(|error| self.failure("written", &error))
    }

    /// Writes both copies again if they differ, and sets the mode of the agent's own.
    pub(super) fn heal_started(&self, started: &StartRecord) -> Result<(), Failure> {
        if self.is_in_memory() {
            return Ok(());
        }
        let [one, other] = [self.started_file(), self.run().join(STARTED_AGAIN)].map(|path| fs::read(path).ok());
        let is_private = |file: fs::Metadata| file.permissions().mode() & 0o077 == 0;
        let is_well = one == other && fs::metadata(self.started_file()).is_ok_and(is_private);
        if is_well { Ok(()) } else { self.write_started(started) }
    }

    /// Removes what shims have in memory.
    pub(super) fn remove_from_memory(&self) -> Result<(), Failure> {
        let removed = if self.is_in_memory() { remove_folder(&self.run()) } else { Ok(()) };
        removed.map_err(|error| self.failure("removed", &error))
    }

    pub(super) fn remove(&self) -> Result<(), Failure> {
        folders::remove(&self.folder).map_err(|error| self.failure("removed", &error))
    }

    pub(super) fn failure(&self, what: &str, error: &io::Error) -> Failure {
        let told = Diagnostic::of_error(error).or_hint(room::hint(error));
        may_heal(told.within(format_args!("the unit's folder {} cannot be {what}", self.folder.display())))
    }
}

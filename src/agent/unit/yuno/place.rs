//! The folder of a unit: its layout, and what is created and removed.
//!
//! Files of an instance exist once per slot; the work folder and the revisions are shared by both.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use muster_base::files::{self, PASSABLE_FOLDER, PRIVATE_FOLDER, SECRET_MODE, make_folder, write_atomically};
use muster_rules::{
    checked,
    plan::{Failure, Slot},
    port_lease::EndpointWiring,
};
use muster_shim::cgroup::Cgroup;
use muster_sqlite::room;
use muster_topics::{name::Digest, process::Limits, unit::ConfigRef};
use nix::{
    errno::Errno,
    unistd::{self, Gid, Uid},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::{failure::may_heal, folders};
use super::{materials::Materials, reload::WatchedFiles};

/// The same as `started.json`, in the shim's folder.
const STARTED_AGAIN: &str = "started.json";

/// `started.json`.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StartRecord {
    pub(super) revision: Digest,
    /// [`Spec::revision`](muster_topics::unit::Spec::revision), which a keyed `revision` is not. Agents of before had none of those.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) bare: Option<Digest>,
    pub(super) artifact: Digest,
    /// What it has to do without, as the unit's report has it.
    #[serde(default)]
    pub(super) missing: Vec<String>,
    /// [`Spec::frame`](muster_topics::unit::Spec::frame). Agents of before wrote it down only of what finds its configs
    /// behind the link.
    #[serde(default)]
    pub(super) frame: Option<Digest>,
    /// What it may use. Agents of before did not write it down.
    #[serde(default)]
    pub(super) limits: Option<Limits>,
    /// The revision in whose folder it finds its configs, if it has become another since it was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reads: Option<Digest>,
    /// What the files outside were that it may have read.
    #[serde(default)]
    pub(super) watched: WatchedFiles,
    /// Where it was told to listen, and how to reach what it needs.
    #[serde(default)]
    pub(super) wiring: EndpointWiring,
}

/// Where a unit has its files, as the instance in a slot.
pub(super) struct InstanceFolder {
    pub(super) folder: PathBuf,
    pub(super) slot: Slot,
}

impl InstanceFolder {
    fn own(&self, first: &str, second: &str) -> PathBuf {
        self.folder.join(match self.slot {
            Slot::First => first,
            Slot::Second => second,
        })
    }

    pub(super) fn run(&self) -> PathBuf {
        self.own("run", "run.2")
    }

    /// The link to the configs of what runs.
    pub(super) fn link(&self) -> PathBuf {
        self.own("config", "config.2")
    }

    /// The folders of its probes' shims.
    pub(super) fn probes(&self) -> PathBuf {
        self.own("probe", "probe.2")
    }

    /// Makes the shim's folder.
    pub(super) fn make_run(&self) -> Result<(), Failure> {
        // The log in it may be for the agent's eyes only; the shim has its files open before it
        // becomes another user.
        make_folder(&self.run(), PRIVATE_FOLDER).map_err(|error| self.failure("prepared", &error))
    }

    /// How often a shim that is gone had started its program again.
    pub(super) fn restarts(&self) -> u32 {
        match muster_shim::files::read_state(&self.run()) {
            Ok(muster_shim::files::StateFile::State(state)) => state.restarts,
            _ => 0,
        }
    }

    /// Whether a shim has said that it starts nothing any more.
    pub(super) fn is_over(&self) -> bool {
        matches!(muster_shim::files::read_state(&self.run()), Ok(muster_shim::files::StateFile::State(state)) if state.over)
    }

    /// Whether what a shim has recorded there is about an earlier boot.
    pub(super) fn is_of_earlier_boot(&self) -> bool {
        let boot_id = muster_shim::proc::boot_id().ok();
        match muster_shim::files::read_state(&self.run()) {
            Ok(muster_shim::files::StateFile::State(state)) => Some(&state.boot_id) != boot_id.as_ref(),
            // What a power cut has damaged.
            Ok(muster_shim::files::StateFile::Damaged) => true,
            _ => false,
        }
    }

    /// The cgroup of its last launch.
    pub(super) fn cgroup(&self) -> Cgroup {
        muster_shim::files::read_launch(&self.run()).map(|launch| launch.cgroup).unwrap_or_default()
    }

    pub(super) fn work(&self) -> PathBuf {
        self.folder.join("work")
    }

    pub(super) fn revision(&self, revision: &Digest) -> PathBuf {
        self.folder.join("rev").join(revision.short())
    }

    /// The configs of a revision.
    pub(super) fn materials(&self, revision: &Digest) -> Materials {
        Materials::new(self.revision(revision))
    }

    /// Makes the folders, writes the configs unless they are there, and removes those of revisions that are past: all but
    /// this one, what runs, and what to `keep`.
    pub(super) fn prepare(
        &self,
        revision: &Digest,
        keep: Option<&Digest>,
        configs: Option<&[(ConfigRef, Value)]>,
    ) -> Result<(), Failure> {
        let prepare = || {
            make_folder(&self.folder.join("rev"), PASSABLE_FOLDER)?;
            make_folder(&self.work(), PASSABLE_FOLDER)?;
            if let Some(configs) = configs {
                self.materials(revision).write(revision, configs)?;
            }
            let running = Slot::ALL.map(|slot| Self { folder: self.folder.clone(), slot }.started().ok());
            let running = running.iter().flatten().flat_map(|started| started.reads.iter().chain([&started.revision]));
            let needed: Vec<&Digest> = running.chain(keep).chain([revision]).collect();
            for name in folders::names(&self.folder.join("rev"))? {
                if !needed.iter().any(|needed| name == needed.short()) {
                    fs::remove_dir_all(self.folder.join("rev").join(name))?;
                }
            }
            Ok(())
        };
        prepare().map_err(|error: io::Error| self.failure("prepared", &error))
    }

    fn wired(&self, revision: &Digest) -> PathBuf {
        self.revision(revision).join("wired").join("config.json")
    }

    /// The configuration that a unit is started with, if it has one: what is installed, with its endpoints put in.
    pub(super) fn wire(
        &self,
        revision: &Digest,
        has_configs: bool,
        wiring: &EndpointWiring,
    ) -> Result<Option<PathBuf>, Failure> {
        let installed = has_configs.then(|| self.materials(revision).merged());
        if wiring.is_empty() {
            return Ok(installed);
        }
        let never = |error: String| Failure { error, may_heal: false };
        let content = installed.map_or(Ok(b"{}".to_vec()), fs::read).map_err(|error| self.failure("read", &error))?;
        let mut config =
            serde_json::from_slice(&content).map_err(|error| never(format!("the unit's config: {error}")))?;
        wiring.put_into(&mut config).map_err(never)?;
        let wired = self.wired(revision);
        let write = || {
            make_folder(wired.parent().unwrap_or(&self.folder), PASSABLE_FOLDER)?;
            write_atomically(&wired, config.to_string().as_bytes(), SECRET_MODE)
        };
        write().map_err(|error: io::Error| self.failure("written", &error))?;
        Ok(Some(wired))
    }

    /// The same file of a revision as it is found behind the link that leads to what runs.
    pub(super) fn behind_link(&self, revision: &Digest, path: &Path) -> PathBuf {
        let below = path.strip_prefix(self.revision(revision)).unwrap_or(path);
        self.link().join(below)
    }

    /// Lets a user read its configs, and write where it works.
    pub(super) fn give_to(&self, revision: &Digest, user: &muster_shim::ResolvedUser) -> Result<(), Failure> {
        let give = |path: &Path| match unistd::chown(path, Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)))
        {
            Err(Errno::ENOENT) | Ok(()) => Ok(()),
            Err(errno) => Err(self.failure("given to its user", &errno.into())),
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
        // What a program was started as nobody else knows; one that was started as something else is replaced.
        read(&self.started_file()).or_else(|error| read(&self.run().join(STARTED_AGAIN)).map_err(|_| error))
    }

    pub(super) fn write_started(&self, started: &StartRecord) -> Result<(), Failure> {
        let file = self.started_file();
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let write = |text: String| {
            // The second first: what is read first is the last that is written.
            if self.run().is_dir() {
                files::clear_places(&self.run(), files::RoleFile::File, &[STARTED_AGAIN])?;
                write_atomically(&self.run().join(STARTED_AGAIN), text.as_bytes(), SECRET_MODE)?;
            }
            files::clear_places(&self.folder, files::RoleFile::File, &[&name])?;
            // As a hash of the environment it is for nobody else's eyes.
            write_atomically(&file, text.as_bytes(), SECRET_MODE)
        };
        checked::to_text(started)
            .map_err(io::Error::from)
            .and_then(write)
            .map_err(|error| self.failure("written", &error))
    }

    /// Writes both copies again, unless they are alike, and the agent's own as it should be.
    pub(super) fn heal_started(&self, started: &StartRecord) -> Result<(), Failure> {
        let [one, other] = [self.started_file(), self.run().join(STARTED_AGAIN)].map(|path| fs::read(path).ok());
        let is_private = |file: fs::Metadata| file.permissions().mode() & 0o077 == 0;
        let is_well = one == other && fs::metadata(self.started_file()).is_ok_and(is_private);
        if is_well { Ok(()) } else { self.write_started(started) }
    }

    pub(super) fn remove(&self) -> Result<(), Failure> {
        folders::remove(&self.folder).map_err(|error| self.failure("removed", &error))
    }

    pub(super) fn failure(&self, what: &str, error: &io::Error) -> Failure {
        may_heal(format!(
            "the unit's folder {} cannot be {what}: {error}{}",
            self.folder.display(),
            room::advice(error)
        ))
    }
}

//! Yunos: processes, each under a shim.
//!
//! The folder of a unit is `<data>/units/<realm>/<name>/`, and in it:
//!
//! - `run/`: the shim's own folder, with its state and the log
//! - `started.json`: which revision was started there, written before it is
//! - `rev/<revision>/config.json`: the configuration of a revision, in its canonical form
//! - `work/`: the working directory and home; it stays across revisions and restarts
//!
//! A process finds its own name in `MUSTER_UNIT` and `MUSTER_REALM`, and its configuration's path in
//! `MUSTER_CONFIG`; where an argument says `{config}`, that path is put in.

use std::{
    collections::BTreeSet,
    ffi::CString,
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use futures_util::{FutureExt, future::BoxFuture};
use muster_shim::{Launch, Output, RestartOn};
use muster_topics::{
    Millis,
    name::{Digest, UnitName},
    unit::{ConfigRef, Desired, Exit, Restart, Spec, StopSignal, YunoSpec},
};
use nix::{
    errno::Errno,
    sys::signal::Signal,
    unistd::{self, Gid, Uid},
};
use serde::{Deserialize, Serialize};

use super::{
    kind::{Adopted, Instance, Kind, News, NotStarted, Trace},
    log,
};
use crate::{
    agent::{
        artifact::{ArtifactError, Artifacts},
        execute::SEARCH_PATH,
        shim::{self, Shim, ShimError, Shims},
    },
    clock::now_ms,
    files::{PASSABLE_FOLDER, PRIVATE_FOLDER, PUBLIC_MODE, SECRET_MODE, make_folder, write_atomically},
    rules::{
        backoff::{GOOD_AFTER_MS, IMMEDIATE_RESTARTS},
        plan::{Ended, Failure, Over, Process, Told},
    },
};

#[cfg(test)]
mod tests;

/// A log is rotated at this size, and three old ones are kept: 16 MiB per unit are days of an
/// ordinary service, and 256 units of them 4 GiB.
const LOG_MAX_BYTES: u64 = 4 * 1024 * 1024;
const LOGS_KEPT: u32 = 3;

/// Everything about yunos on this host.
pub(super) struct Yunos {
    folder: PathBuf,
    artifacts: Artifacts,
    shims: Shims,
}

/// `started.json`.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Started {
    revision: Digest,
    artifact: Digest,
}

impl Yunos {
    pub(super) fn new(data_dir: &Path, artifacts: Artifacts, shims: Shims) -> io::Result<Self> {
        let folder = data_dir.join("units");
        // A yuno that runs as another user has its configuration and its working directory below.
        make_folder(&folder, PASSABLE_FOLDER)?;
        Ok(Self { folder, artifacts, shims })
    }

    fn place(&self, unit: &UnitName) -> Place {
        Place { folder: self.folder.join(unit.realm().as_str()).join(unit.name().as_str()) }
    }

    async fn install(&self, unit: &UnitName, desired: &Desired) -> Result<(), Failure> {
        let Spec::Yuno(spec) = &desired.spec;
        let place = self.place(unit);
        self.artifacts.fetch(&spec.artifact).await.map_err(from_artifact)?;
        let config = match &spec.config {
            Some(config) if !place.has_config(&desired.revision, config) => {
                Some(self.artifacts.config(config).await.map_err(from_artifact)?)
            }
            _ => None,
        };
        place.prepare(&desired.revision, config.as_deref())
    }

    async fn start(&self, unit: &UnitName, desired: &Desired, attempts: u32) -> Result<Yuno, NotStarted> {
        let Spec::Yuno(spec) = &desired.spec;
        let place = self.place(unit);
        // Almost always all is there; but somebody may have tidied up by hand.
        self.install(unit, desired).await?;
        if let shim::Adopted::Alive(_) = self.shims.adopt(&place.run()).await.map_err(from_shim)? {
            return Err(NotStarted::Unknown);
        }
        let user = spec.user.as_deref().map(find_user).transpose()?;
        if let Some(user) = &user {
            place.give_to(&desired.revision, user)?;
        }
        let program = self.artifacts.path(&spec.artifact.sha256);
        let launch = launch(unit, desired, spec, &place, &program, user, attempts);
        place.write_started(&Started { revision: desired.revision.clone(), artifact: spec.artifact.sha256.clone() })?;
        match self.shims.launch(&place.run(), &launch).await {
            Ok(shim) => Ok(Yuno { shim }),
            Err(error @ ShimError::Start { .. }) => Err(from_shim(error).into()),
            // Whether anything came to run is not certain then; if not, waiting is right.
            Err(error) => match self.shims.adopt(&place.run()).await {
                Ok(shim::Adopted::Alive(shim)) => Ok(Yuno { shim }),
                Ok(shim::Adopted::Nothing | shim::Adopted::Ended(_)) => Err(from_shim(error).into()),
                Err(_) => Err(NotStarted::Unknown),
            },
        }
    }

    async fn adopt(&self, unit: &UnitName) -> Result<Adopted, Failure> {
        let place = self.place(unit);
        if !place.run().exists() {
            return Ok(Adopted::Nothing);
        }
        match self.shims.adopt(&place.run()).await.map_err(from_shim)? {
            shim::Adopted::Nothing => Ok(Adopted::Nothing),
            shim::Adopted::Ended(ended) => {
                Ok(Adopted::Ended(Over { restarts: place.restarts(), last: from_ended(&ended) }))
            }
            shim::Adopted::Alive(shim) => {
                let mut yuno = Yuno { shim };
                // What cannot be told is no revision that anybody desires, and will be replaced.
                let revision = place.started().map_or_else(|_| Digest::of(b""), |started| started.revision);
                match yuno.hear().await {
                    Some(News::Told(told)) => Ok(Adopted::Alive { revision, told, instance: Box::new(yuno) }),
                    Some(News::Ended(over)) => Ok(Adopted::Ended(over)),
                    None => Err(may_heal("its shim was there, and is gone")),
                }
            }
        }
    }

    /// What is installed for units, or was started and may be started again by its shim.
    fn sweep(&self, desired: &[Desired]) -> io::Result<()> {
        let mut needed: BTreeSet<Digest> = BTreeSet::new();
        for Desired { spec, .. } in desired {
            let Spec::Yuno(spec) = spec;
            needed.insert(spec.artifact.sha256.clone());
        }
        for Trace { unit, .. } in self.traces()? {
            if let Ok(started) = self.place(&unit).started() {
                needed.insert(started.artifact);
            }
        }
        self.artifacts.sweep(&needed, SystemTime::now())
    }
}

impl Kind for Yunos {
    fn name(&self) -> &'static str {
        "yuno"
    }

    fn traces(&self) -> io::Result<Vec<Trace>> {
        let mut traces = Vec::new();
        for realm in names(&self.folder)? {
            for unit in names(&self.folder.join(&realm))? {
                // Whatever else lies there was not put there by an agent.
                let Ok(unit) = format!("{realm}/{unit}").parse::<UnitName>() else { continue };
                // Each start writes `started.json` anew, which changes the folder.
                let changed = fs::metadata(self.place(&unit).folder)?.modified()?;
                let since_epoch = changed.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                traces.push(Trace { unit, at_ms: Millis::try_from(since_epoch.as_millis()).unwrap_or(Millis::MAX) });
            }
        }
        Ok(traces)
    }

    fn adopt<'a>(&'a self, unit: &'a UnitName) -> BoxFuture<'a, Result<Adopted, Failure>> {
        self.adopt(unit).boxed()
    }

    fn install<'a>(&'a self, unit: &'a UnitName, desired: &'a Desired) -> BoxFuture<'a, Result<(), Failure>> {
        self.install(unit, desired).boxed()
    }

    fn start<'a>(
        &'a self,
        unit: &'a UnitName,
        desired: &'a Desired,
        attempts: u32,
    ) -> BoxFuture<'a, Result<Box<dyn Instance>, NotStarted>> {
        let start = self.start(unit, desired, attempts);
        async { start.await.map(|yuno| Box::new(yuno) as Box<dyn Instance>) }.boxed()
    }

    fn remove<'a>(&'a self, unit: &'a UnitName) -> BoxFuture<'a, Result<(), Failure>> {
        let place = self.place(unit);
        blocking(move || place.remove()).boxed()
    }

    fn logs<'a>(&'a self, unit: &'a UnitName, lines: u32) -> BoxFuture<'a, io::Result<Vec<u8>>> {
        let folder = self.place(unit).run();
        async move {
            tokio::task::spawn_blocking(move || log::tail(&folder, lines, log::TAIL_MAX_BYTES))
                .await
                .map_err(io::Error::other)?
        }
        .boxed()
    }

    fn sweep(&self, desired: Vec<Desired>) -> BoxFuture<'_, io::Result<()>> {
        // A few hundred names at most, once an hour: not worth a thread.
        async move { self.sweep(&desired) }.boxed()
    }
}

/// A yuno's shim.
struct Yuno {
    shim: Shim,
}

impl Yuno {
    async fn hear(&mut self) -> Option<News> {
        loop {
            match self.shim.next().await? {
                muster_shim::Event::State(state) => return Some(from_state(&state)),
                // Of captured programs only.
                muster_shim::Event::Output { .. } => {}
            }
        }
    }
}

impl Instance for Yuno {
    fn next(&mut self) -> BoxFuture<'_, Option<News>> {
        self.hear().boxed()
    }

    fn stop(&mut self, signal: StopSignal, grace_ms: u64) -> BoxFuture<'_, Result<(), Failure>> {
        let request = muster_shim::Request::Stop { signal: number(signal), grace_ms };
        async move { self.shim.send(&request).await.map_err(from_shim) }.boxed()
    }
}

/// Where a unit has its files.
struct Place {
    folder: PathBuf,
}

impl Place {
    fn run(&self) -> PathBuf {
        self.folder.join("run")
    }

    /// How often a shim that is gone had started its program again.
    fn restarts(&self) -> u32 {
        match muster_shim::files::read_state(&self.run()) {
            Ok(muster_shim::files::Found::State(state)) => state.restarts,
            _ => 0,
        }
    }

    fn work(&self) -> PathBuf {
        self.folder.join("work")
    }

    fn revision(&self, revision: &Digest) -> PathBuf {
        self.folder.join("rev").join(revision.short())
    }

    fn config(&self, revision: &Digest) -> PathBuf {
        self.revision(revision).join("config.json")
    }

    fn has_config(&self, revision: &Digest, config: &ConfigRef) -> bool {
        fs::read(self.config(revision)).is_ok_and(|content| Digest::of(&content) == config.sha256)
    }

    /// Makes the folders, writes the configuration, and removes those of revisions that are past.
    fn prepare(&self, revision: &Digest, config: Option<&[u8]>) -> Result<(), Failure> {
        let prepare = || {
            make_folder(&self.revision(revision), PASSABLE_FOLDER)?;
            make_folder(&self.work(), PASSABLE_FOLDER)?;
            // The log in it may be for the agent's eyes only; the shim has its files open before it
            // becomes another user.
            make_folder(&self.run(), PRIVATE_FOLDER)?;
            if let Some(config) = config {
                write_atomically(&self.config(revision), config, SECRET_MODE)?;
            }
            let running = self.started().ok().map(|started| started.revision);
            for name in names(&self.folder.join("rev"))? {
                if name != revision.short() && running.as_ref().is_none_or(|running| name != running.short()) {
                    fs::remove_dir_all(self.folder.join("rev").join(name))?;
                }
            }
            Ok(())
        };
        prepare().map_err(|error: io::Error| self.failure("prepared", &error))
    }

    /// Lets a user read its configuration, and write where it works.
    fn give_to(&self, revision: &Digest, user: &muster_shim::User) -> Result<(), Failure> {
        let give = |path: &Path| match unistd::chown(path, Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)))
        {
            Err(Errno::ENOENT) | Ok(()) => Ok(()),
            Err(errno) => Err(self.failure("given to its user", &errno.into())),
        };
        give(&self.work())?;
        give(&self.config(revision))
    }

    fn started_file(&self) -> PathBuf {
        self.folder.join("started.json")
    }

    fn started(&self) -> io::Result<Started> {
        Ok(serde_json::from_slice(&fs::read(self.started_file())?)?)
    }

    fn write_started(&self, started: &Started) -> Result<(), Failure> {
        serde_json::to_vec(started)
            .map_err(io::Error::from)
            .and_then(|content| write_atomically(&self.started_file(), &content, PUBLIC_MODE))
            .map_err(|error| self.failure("written", &error))
    }

    fn remove(&self) -> Result<(), Failure> {
        match fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(self.failure("removed", &error)),
            _ => {}
        }
        // The realm's folder, if this was the last unit in it.
        if let Some(realm) = self.folder.parent() {
            let _ = fs::remove_dir(realm);
        }
        Ok(())
    }

    fn failure(&self, what: &str, error: &io::Error) -> Failure {
        may_heal(format!("the unit's folder {} cannot be {what}: {error}", self.folder.display()))
    }
}

fn launch(
    unit: &UnitName,
    desired: &Desired,
    spec: &YunoSpec,
    place: &Place,
    program: &Path,
    user: Option<muster_shim::User>,
    attempts: u32,
) -> Launch {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let config = spec.config.as_ref().map(|_| text(&place.config(&desired.revision)));
    let mut env: std::collections::BTreeMap<_, _> = [("HOME", text(&place.work())), ("PATH", SEARCH_PATH.to_owned())]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
    env.extend(spec.env.clone());
    env.insert("MUSTER_UNIT".to_owned(), unit.to_string());
    env.insert("MUSTER_REALM".to_owned(), unit.realm().to_string());
    let mut argv = vec![text(program)];
    argv.extend(spec.args.iter().map(|arg| arg.replace("{config}", config.as_deref().unwrap_or_default())));
    env.extend(config.map(|config| ("MUSTER_CONFIG".to_owned(), config)));
    Launch {
        v: muster_shim::VERSION,
        argv,
        env: env.into_iter().collect(),
        cwd: text(&place.work()),
        user,
        attributes: muster_shim::Attributes::default(),
        output: Output::Log { max_bytes: LOG_MAX_BYTES, keep: LOGS_KEPT, max_age_ms: None },
        restart: muster_shim::Restart {
            on: match spec.restart {
                Restart::Always => RestartOn::Always,
                Restart::OnFailure => RestartOn::Failure,
                Restart::Never => RestartOn::Never,
            },
            // What is beyond the immediate restarts the agent decides.
            budget: IMMEDIATE_RESTARTS.saturating_sub(attempts),
            reset_after_ms: GOOD_AFTER_MS.unsigned_abs(),
        },
        timeout_ms: None,
        stop_signal: number(spec.stop_signal),
        grace_ms: spec.grace_ms,
    }
}

fn number(signal: StopSignal) -> i32 {
    let signal = match signal {
        StopSignal::Term => Signal::SIGTERM,
        StopSignal::Int => Signal::SIGINT,
        StopSignal::Quit => Signal::SIGQUIT,
        StopSignal::Hup => Signal::SIGHUP,
        StopSignal::Usr1 => Signal::SIGUSR1,
        StopSignal::Usr2 => Signal::SIGUSR2,
        StopSignal::Kill => Signal::SIGKILL,
    };
    signal as i32
}

fn find_user(name: &str) -> Result<muster_shim::User, Failure> {
    let failure = |error: String| Failure { error, may_heal: false };
    let user = unistd::User::from_name(name)
        .map_err(|errno| failure(format!("user {name:?} cannot be looked up: {errno}")))?
        .ok_or_else(|| {
            failure(format!("there is no user {name:?} on this host. hint: create it, and run the unit again"))
        })?;
    let groups = CString::new(name)
        .map_err(|error| failure(error.to_string()))
        .and_then(|name| unistd::getgrouplist(&name, user.gid).map_err(|errno| failure(errno.to_string())))?;
    Ok(muster_shim::User {
        uid: user.uid.as_raw(),
        gid: user.gid.as_raw(),
        groups: groups.into_iter().map(Gid::as_raw).collect(),
    })
}

fn from_state(state: &muster_shim::State) -> News {
    let last = state.last.as_ref().map(from_ended);
    if state.over {
        let unknown = Ended { exit: Exit::Unknown, started_ms: None, at_ms: now_ms() };
        return News::Ended(Over { restarts: state.restarts, last: last.unwrap_or(unknown) });
    }
    let process = state.main.as_ref().map(|main| Process {
        pid: main.pid,
        start_ticks: main.start_ticks,
        started_ms: main.started_ms,
    });
    News::Told(Told { process, restarts: state.restarts, last })
}

fn from_ended(ended: &muster_shim::Ended) -> Ended {
    let exit = match ended.exit {
        muster_shim::Exit::Code(code) => Exit::Code(code),
        muster_shim::Exit::Signal(signal) => Exit::Signal(signal),
        muster_shim::Exit::Unknown => Exit::Unknown,
    };
    Ended { exit, started_ms: ended.started_ms, at_ms: ended.at_ms }
}

fn may_heal(error: impl Into<String>) -> Failure {
    Failure { error: error.into(), may_heal: true }
}

fn from_artifact(error: ArtifactError) -> Failure {
    Failure { may_heal: error.may_heal(), error: error.to_string() }
}

fn from_shim(error: ShimError) -> Failure {
    let ShimError::Start { source, .. } = &error else { return may_heal(error.to_string()) };
    let (hint, may_heal) = match source.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOEXEC) => {
            (". hint: it is no program for this machine; a script needs a first line such as #!/bin/sh", false)
        }
        Some(Errno::ENOENT) => (". hint: what its first line names, or its loader, is not on this host", false),
        // The system is short of something, for now.
        Some(Errno::EAGAIN | Errno::ENOMEM | Errno::ENFILE | Errno::EMFILE) => ("", true),
        _ if source.kind() != io::ErrorKind::PermissionDenied => ("", false),
        _ if unistd::geteuid().is_root() => {
            (". hint: can the unit's user pass through every folder above the agent's (`data_dir`)?", false)
        }
        // Becoming the user; the number of the system's error is not told with it.
        None => (". hint: to run units as other users, the agent must run as root", false),
        _ => ("", false),
    };
    Failure { error: format!("{error}{hint}"), may_heal }
}

/// The names in a folder that are folders themselves; none if there is no such folder.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.extend(entry.file_name().into_string());
        }
    }
    Ok(names)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Failure> + Send + 'static) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(may_heal(error.to_string())))
}

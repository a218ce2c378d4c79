//! Yunos: processes, each under a shim.
//!
//! The folder of a unit is `<data>/units/<realm>/<name>/`, and in it:
//!
//! - `run/`: the shim's own folder, with its state and the log
//! - `started.json`: which revision was started there, written before it is
//! - `rev/<revision>/`: the configs of a revision, merged into `config.json`, and each as `<id>.json`
//! - `rev/<revision>/wired/config.json`: the former with endpoints and connectors, for a unit that has any
//! - `config`: a link to the revision's folder, for a unit that may be reloaded
//! - `probe/<which>/`: the folder of the shim of a probe's command
//! - `work/`: the working directory and home; it stays across revisions and restarts
//!
//! A process finds its own name in `MUSTER_UNIT` and `MUSTER_REALM`, and the path of its merged config in
//! `MUSTER_CONFIG`; where an argument says `{config}`, that path is put in. With a channel of JSON lines there are
//! `MUSTER_SOCKET`, `MUSTER_TOKEN` and, if it has a watchdog, `MUSTER_WATCHDOG_MS` as well. Its ports and what it connects
//! to are in variables, in that config and in arguments, too ([`Wiring`]).

mod channel;
mod launch;
mod materials;
mod place;
mod probe;
mod reload;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use futures_util::{FutureExt, future::BoxFuture};
use muster_shim::{Step, cgroup::Cgroup};
use muster_topics::{
    Millis, canonical,
    channel::{Complaint, ToldStats},
    effective::Effective,
    manifest::Manifest,
    name::{Digest, HostId, UnitName},
    reload::Reload,
    signal::Signal,
    unit::{ArtifactRef, ConfigRef, Desired, Exit, Progress, Spec, StopSignal, YunoSpec},
};
use nix::{errno::Errno, unistd};
use serde_json::Value;

use self::{
    channel::{Call, Line, Switchboard},
    launch::{Wanted, find_user, number, signal_number},
    materials::Materials,
    place::{Place, Started, names},
};
use super::{
    kind::{Adopted, Ask, Instance, Kind, LogFrom, News, NotStarted, Signaller, Tell, Trace},
    log,
};
use crate::{
    agent::{
        artifact::{ArtifactError, Artifacts},
        cgroup::{Made, Tree},
        crash,
        shim::{self, Shim, ShimError, Shims},
    },
    clock::now_ms,
    files::{PASSABLE_FOLDER, make_folder},
    rules::{
        config,
        lease::Wiring,
        plan::{Ended, Failure, Over, Probing, Process, Told},
        schema,
    },
};

#[cfg(test)]
mod tests;

/// How much of its log a unit that has ended tells of: what fits a screen beside the rest, and is nothing
/// against the largest message.
const LAST_LINES: u32 = 10;
const LAST_LINES_MAX_BYTES: u64 = 2 * 1024;

/// How often it is told how far a download is: each time is a message, and a person looks no more often.
const PROGRESS: Duration = Duration::from_secs(2);

/// Everything about yunos on this host.
pub(super) struct Yunos {
    folder: PathBuf,
    artifacts: Artifacts,
    shims: Shims,
    tree: Tree,
    switchboard: Switchboard,
    /// Whose name yunos find in their welcome.
    host: String,
}

impl Yunos {
    pub(super) fn new(data_dir: &Path, host: HostId, artifacts: Artifacts, shims: Shims) -> io::Result<Self> {
        let folder = data_dir.join("units");
        // A yuno that runs as another user has its configuration and its working directory below.
        make_folder(&folder, PASSABLE_FOLDER)?;
        let (tree, switchboard) = (Tree::detect(data_dir), Switchboard::default());
        Ok(Self { folder, artifacts, shims, tree, switchboard, host: host.to_string() })
    }

    fn place(&self, unit: &UnitName) -> Place {
        Place { folder: self.folder.join(unit.realm().as_str()).join(unit.name().as_str()) }
    }

    async fn install(
        &self,
        unit: &UnitName,
        desired: &Desired,
        keep: Option<&Digest>,
        tell: &Tell<'_>,
    ) -> Result<(), Failure> {
        let Spec::Yuno(spec) = &desired.spec;
        let place = self.place(unit);
        self.fetch(&spec.artifact, tell).await.map_err(from_artifact)?;
        let materials = place.materials(&desired.revision);
        if materials.are_there(&spec.configs) {
            return place.prepare(&desired.revision, keep, None);
        }
        let configs = self.configs(spec, &materials).await?;
        self.check(spec, &configs).await?;
        place.prepare(&desired.revision, keep, Some(&configs))
    }

    /// Whether the merged config is what the artifact's manifest wants. (The console has checked that, too; but
    /// perhaps it was an older one.)
    async fn check(&self, spec: &YunoSpec, configs: &[(ConfigRef, Value)]) -> Result<(), Failure> {
        let Some(manifest) = self.artifacts.manifest(&spec.artifact).await.map_err(from_artifact)? else {
            return Ok(());
        };
        let never = |error: String| Failure { error, may_heal: false };
        let ArtifactRef { role, version, .. } = &spec.artifact;
        let manifest: Manifest = serde_json::from_slice(&manifest)
            .map_err(|error| never(format!("the manifest of artifact {role}@{version} is not understood: {error}")))?;
        let Some(schema) = manifest.config_schema else { return Ok(()) };
        let merged = config::merge(configs.iter().map(|(_, document)| document.clone()));
        let complaints = schema::check(&schema, &merged);
        if complaints.is_empty() {
            return Ok(());
        }
        Err(never(format!("the merged config is not what {role}@{version} wants: {}", complaints.join("; "))))
    }

    /// Fetches an artifact, and tells now and then how far that is.
    async fn fetch(&self, artifact: &ArtifactRef, tell: &Tell<'_>) -> Result<(), ArtifactError> {
        let fetched = self.artifacts.fetch(artifact);
        tokio::pin!(fetched);
        loop {
            match tokio::time::timeout(PROGRESS, &mut fetched).await {
                Ok(fetched) => return fetched.map(drop),
                Err(_) => {
                    if let Some(done_bytes) = self.artifacts.done_bytes(&artifact.sha256) {
                        tell(Progress { done_bytes, total_bytes: artifact.size_bytes });
                    }
                }
            }
        }
    }

    /// The documents of all configs.
    async fn configs(&self, spec: &YunoSpec, materials: &Materials) -> Result<Vec<(ConfigRef, Value)>, Failure> {
        let mut configs = Vec::new();
        for config in &spec.configs {
            let content = match materials.of_before(config) {
                Some(content) => content,
                None => self.artifacts.config(config).await.map_err(from_artifact)?,
            };
            let document = canonical::parse(&content).map_err(|error| Failure {
                error: format!("config {}@{}: {error}", config.id, config.version),
                may_heal: false,
            })?;
            configs.push((config.clone(), document));
        }
        Ok(configs)
    }

    async fn start(
        &self,
        unit: &UnitName,
        desired: &Desired,
        keep: Option<&Digest>,
        wiring: &Wiring,
        attempts: u32,
    ) -> Result<Yuno, NotStarted> {
        let Spec::Yuno(spec) = &desired.spec;
        let place = self.place(unit);
        // Almost always all is there; but somebody may have tidied up by hand.
        self.install(unit, desired, keep, &|_| ()).await?;
        if let shim::Adopted::Alive(_) = self.shims.adopt(&place.run()).await.map_err(from_shim)? {
            return Err(NotStarted::Unknown);
        }
        self.end_probes(unit).await;
        let config = place.wire(&desired.revision, !spec.configs.is_empty(), wiring)?;
        let user = find_user(spec)?;
        if let Some(user) = &user {
            place.give_to(&desired.revision, user)?;
        }
        if !spec.reload.is_restart() {
            place.lead_to(&desired.revision)?;
        }
        let program = self.artifacts.path(&spec.artifact.sha256);
        let made = self.tree.prepare(unit, &spec.limits).map_err(|error| may_heal(error.to_string()))?;
        let found = |path: PathBuf| match spec.reload {
            Reload::Restart => path,
            Reload::Signal | Reload::Channel => place.behind_link(&desired.revision, &path),
        };
        let config = config.map(found);
        let (host, config) = (self.host.as_str(), config.as_deref());
        let wanted =
            Wanted { unit, host, desired, spec, place: &place, config, wiring, program: &program, user, attempts };
        let launched = self.launch(wanted.clone(), made).await;
        let Err(NotLaunched::Cgroup(error)) = launched else { return launched.map_err(NotLaunched::into_not_started) };
        // Made, and then closed to what runs in it: it is better off without than not at all.
        self.tree.remove(unit);
        let missing = vec![format!("a cgroup, and with it all limits: {error}")];
        self.launch(wanted, Made { cgroup: Cgroup::default(), missing }).await.map_err(NotLaunched::into_not_started)
    }

    /// Launches a unit of which nothing runs.
    async fn launch(&self, wanted: Wanted<'_>, Made { cgroup, missing }: Made) -> Result<Yuno, NotLaunched> {
        let Wanted { unit, desired, spec, place, wiring, .. } = wanted;
        let started = Started {
            revision: desired.revision.clone(),
            artifact: spec.artifact.sha256.clone(),
            missing: missing.clone(),
            frame: reload::frame(&desired.spec),
            watched: reload::watched(spec),
            wiring: wiring.clone(),
        };
        crash::point("start", "before its revision is noted");
        place.write_started(&started)?;
        let run = place.run();
        let launch = launch::launch(wanted, cgroup);
        let line = || self.switchboard.open(unit);
        let alive = |shim| Yuno {
            shim,
            run: run.clone(),
            missing: missing.clone(),
            wiring: wiring.clone(),
            line: line(),
            news: VecDeque::new(),
        };
        match self.shims.launch(&run, &launch).await {
            Ok(shim) => Ok(alive(shim)),
            Err(ShimError::Cgroup { source, .. }) => Err(NotLaunched::Cgroup(source)),
            Err(error @ ShimError::Start { .. }) => Err(from_shim(error).into()),
            // Whether anything came to run is not certain then; if not, waiting is right.
            Err(error) => match self.shims.adopt(&run).await {
                Ok(shim::Adopted::Alive(shim)) => Ok(alive(shim)),
                Ok(shim::Adopted::Nothing | shim::Adopted::Ended(_)) => Err(from_shim(error).into()),
                Err(_) => Err(NotLaunched::Other(NotStarted::Unknown)),
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
                let mut last = from_ended(&ended, &place.run());
                last.with_host = place.is_of_earlier_boot() && ends_with_host(last.exit);
                Ok(Adopted::Ended(Over { restarts: place.restarts(), last }))
            }
            shim::Adopted::Alive(shim) => {
                // What cannot be told is no revision that anybody desires, and will be replaced.
                let unknown = |_| Started {
                    revision: Digest::of(b""),
                    artifact: Digest::of(b""),
                    missing: Vec::new(),
                    frame: None,
                    watched: reload::Watched::default(),
                    wiring: Wiring::default(),
                };
                let Started { revision, missing, wiring, .. } = place.started().unwrap_or_else(unknown);
                let line = self.switchboard.open(unit);
                let mut yuno = Yuno { shim, run: place.run(), missing, wiring, line, news: VecDeque::new() };
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

    fn install<'a>(
        &'a self,
        unit: &'a UnitName,
        desired: &'a Desired,
        keep: Option<&'a Digest>,
        tell: &'a Tell<'a>,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        self.install(unit, desired, keep, tell).boxed()
    }

    fn start<'a>(
        &'a self,
        unit: &'a UnitName,
        desired: &'a Desired,
        keep: Option<&'a Digest>,
        wiring: &'a Wiring,
        attempts: u32,
    ) -> BoxFuture<'a, Result<Box<dyn Instance>, NotStarted>> {
        let start = self.start(unit, desired, keep, wiring, attempts);
        async { start.await.map(|yuno| Box::new(yuno) as Box<dyn Instance>) }.boxed()
    }

    fn reload<'a>(
        &'a self,
        unit: &'a UnitName,
        desired: &'a Desired,
        keep: Option<&'a Digest>,
        signal: &'a Signaller<'a>,
    ) -> BoxFuture<'a, Result<bool, Failure>> {
        self.reload_unit(unit, desired, keep, signal).boxed()
    }

    fn looks_outside(&self, desired: &Desired) -> bool {
        let Spec::Yuno(spec) = &desired.spec;
        !spec.on_change.is_empty()
    }

    fn look_outside<'a>(
        &'a self,
        unit: &'a UnitName,
        desired: &'a Desired,
        signal: &'a Signaller<'a>,
    ) -> BoxFuture<'a, Result<bool, Failure>> {
        self.look_at_files(unit, desired, signal).boxed()
    }

    fn remove<'a>(&'a self, unit: &'a UnitName) -> BoxFuture<'a, Result<(), Failure>> {
        self.switchboard.close(unit);
        async move {
            self.end_probes(unit).await;
            let (place, tree, unit) = (self.place(unit), self.tree.clone(), unit.clone());
            let remove = move || {
                // Where it was started, which need not be where it would be now.
                place.cgroup().remove();
                tree.remove(&unit);
                place.remove()
            };
            blocking(remove).await
        }
        .boxed()
    }

    fn ask<'a>(&'a self, unit: &'a UnitName, ask: Ask, limit: Duration) -> BoxFuture<'a, Result<Value, Complaint>> {
        self.switchboard.ask(unit, ask, limit).boxed()
    }

    fn stats(&self) -> BTreeMap<UnitName, ToldStats> {
        self.switchboard.stats()
    }

    fn probe<'a>(&'a self, unit: &'a UnitName, probing: &'a Probing) -> BoxFuture<'a, Result<(), String>> {
        self.try_probe(unit, probing).boxed()
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

    fn effective<'a>(&'a self, unit: &'a UnitName, revision: &'a Digest) -> BoxFuture<'a, io::Result<Effective>> {
        let (place, unit, desired) = (self.place(unit), unit.clone(), revision.clone());
        async move {
            let read = move || {
                let revision = place.started().map_or(desired, |started| started.revision);
                place.materials(&revision).effective(&unit)
            };
            tokio::task::spawn_blocking(read).await.map_err(io::Error::other)?
        }
        .boxed()
    }

    fn follow<'a>(&'a self, unit: &'a UnitName, from: LogFrom) -> BoxFuture<'a, io::Result<(Vec<u8>, log::Place)>> {
        let folder = self.place(unit).run();
        let read = move || match from {
            LogFrom::Last(lines) => log::tail_to(&folder, lines, log::TAIL_MAX_BYTES),
            LogFrom::Place(place) => log::since(&folder, place, log::TAIL_MAX_BYTES),
        };
        async move { tokio::task::spawn_blocking(read).await.map_err(io::Error::other)? }.boxed()
    }

    fn sweep(&self, desired: Vec<Desired>) -> BoxFuture<'_, io::Result<()>> {
        // A few hundred names at most, once an hour: not worth a thread.
        async move { self.sweep(&desired) }.boxed()
    }
}

/// Why a unit that was launched does not run.
enum NotLaunched {
    /// It could not enter its cgroup.
    Cgroup(io::Error),
    /// Anything else.
    Other(NotStarted),
}

impl NotLaunched {
    fn into_not_started(self) -> NotStarted {
        match self {
            Self::Cgroup(error) => may_heal(error.to_string()).into(),
            Self::Other(other) => other,
        }
    }
}

impl From<Failure> for NotLaunched {
    fn from(failure: Failure) -> Self {
        Self::Other(failure.into())
    }
}

/// A yuno's shim.
struct Yuno {
    shim: Shim,
    /// The shim's folder, where the log is.
    run: PathBuf,
    missing: Vec<String>,
    line: Line,
    wiring: Wiring,
    /// What was heard while something else was waited for.
    news: VecDeque<News>,
}

impl Yuno {
    /// Cancel-safe: what is taken is dealt with without a wait.
    async fn hear(&mut self) -> Option<News> {
        if let Some(news) = self.news.pop_front() {
            return Some(news);
        }
        loop {
            let event = tokio::select! {
                event = self.shim.next() => event?,
                call = self.line.next() => {
                    self.pass_on(call);
                    continue;
                }
            };
            if let Some(news) = self.heard(event) {
                return Some(news);
            }
        }
    }

    /// Sends a signal, and waits until the shim says what has become of it.
    async fn signal(&mut self, signal: Signal) -> Result<bool, Failure> {
        let signal = signal_number(signal);
        self.shim.send(&muster_shim::Request::Signal { signal }).await.map_err(from_shim)?;
        loop {
            match self.shim.next().await {
                Some(muster_shim::Event::Signalled { signal: of, delivered }) if of == signal => return Ok(delivered),
                Some(event) => {
                    let news = self.heard(event);
                    self.news.extend(news);
                }
                None => return Err(may_heal("its shim is gone")),
            }
        }
    }

    fn pass_on(&mut self, call: Call) {
        for request in self.line.requests(call) {
            let Err(error) = self.shim.queue(&request) else { continue };
            tracing::debug!(folder = %self.run.display(), %error, "a question could not be passed on");
            if let muster_shim::Request::Say { id, .. } = request {
                self.line.unreachable(&id);
            }
        }
    }

    fn heard(&mut self, event: muster_shim::Event) -> Option<News> {
        match event {
            muster_shim::Event::State(state) => {
                self.line.state(&state);
                return Some(self.news(&state));
            }
            muster_shim::Event::Said { line } => {
                if let Err(error) = self.line.said(&line) {
                    tracing::debug!(folder = %self.run.display(), %error, "a yuno has said something unknown");
                }
            }
            muster_shim::Event::Unreachable { id } => self.line.unreachable(&id),
            // Of captured programs, and the late answer to somebody who has gone.
            muster_shim::Event::Output { .. } | muster_shim::Event::Signalled { .. } => {}
        }
        None
    }
}

impl Yuno {
    fn news(&self, state: &muster_shim::State) -> News {
        let last = state.last.as_ref().map(|last| from_ended(last, &self.run));
        if state.over {
            let last = last.unwrap_or_else(|| Ended::new(Exit::Unknown, None, now_ms()));
            return News::Ended(Over { restarts: state.restarts, last });
        }
        let process = state.main.as_ref().map(|main| Process {
            pid: main.pid,
            start_ticks: main.start_ticks,
            started_ms: main.started_ms,
        });
        News::Told(Told {
            process,
            restarts: state.restarts,
            last,
            ready: state.notified.ready,
            status: state.notified.status.clone(),
            frozen: state.frozen,
            connection: self.line.connection().cloned(),
            missing: self.missing.clone(),
            wiring: self.wiring.clone(),
        })
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

    fn freeze(&mut self, frozen: bool) -> BoxFuture<'_, Result<(), Failure>> {
        let request = if frozen { muster_shim::Request::Freeze } else { muster_shim::Request::Thaw };
        async move { self.shim.send(&request).await.map_err(from_shim) }.boxed()
    }

    fn signal(&mut self, signal: Signal) -> BoxFuture<'_, Result<bool, Failure>> {
        self.signal(signal).boxed()
    }
}

/// Whether a host that goes down ends programs like this: without a word, or by the signals of an orderly shutdown.
fn ends_with_host(exit: Exit) -> bool {
    const SIGKILL: i32 = 9;
    const SIGTERM: i32 = 15;
    matches!(exit, Exit::Unknown | Exit::Signal(SIGKILL | SIGTERM))
}

/// How it ended; its last lines are read at once, for a next start may add to them.
fn from_ended(ended: &muster_shim::Ended, run: &Path) -> Ended {
    let exit = match ended.exit {
        muster_shim::Exit::Code(code) => Exit::Code(code),
        muster_shim::Exit::Signal(signal) => Exit::Signal(signal),
        muster_shim::Exit::Unknown => Exit::Unknown,
    };
    let lines = log::tail(run, LAST_LINES, LAST_LINES_MAX_BYTES).unwrap_or_default();
    Ended {
        core_dumped: ended.core_dumped,
        oom_killed: ended.oom_killed,
        silent: ended.silent,
        last_lines: (!lines.is_empty()).then(|| String::from_utf8_lossy(&lines).into_owned()),
        ..Ended::new(exit, ended.started_ms, ended.at_ms)
    }
}

fn may_heal(error: impl Into<String>) -> Failure {
    Failure { error: error.into(), may_heal: true }
}

fn from_artifact(error: ArtifactError) -> Failure {
    Failure { may_heal: error.may_heal(), error: error.to_string() }
}

fn from_shim(error: ShimError) -> Failure {
    let ShimError::Start { source, step, .. } = &error else { return may_heal(error.to_string()) };
    let refused = source.kind() == io::ErrorKind::PermissionDenied;
    let (hint, may_heal) = match (step, source.raw_os_error().map(Errno::from_raw)) {
        (_, Some(Errno::ENOEXEC)) => {
            (". hint: it is no program for this machine; a script needs a first line such as #!/bin/sh", false)
        }
        (_, Some(Errno::ENOENT)) => (". hint: what its first line names, or its loader, is not on this host", false),
        // The system is short of something, for now.
        (_, Some(Errno::EAGAIN | Errno::ENOMEM | Errno::ENFILE | Errno::EMFILE)) => ("", true),
        (Step::Cwd | Step::Exec, _) if refused && unistd::geteuid().is_root() => {
            (". hint: can the unit's user pass through every folder above the agent's (`data_dir`)?", false)
        }
        (Step::User, _) if refused => (". hint: to run units as other users, the agent must run as root", false),
        (Step::Nice | Step::Rlimit | Step::Capabilities, _) if refused => {
            (". hint: only what the agent itself has can be given to a unit", false)
        }
        _ => ("", false),
    };
    Failure { error: format!("{error}{hint}"), may_heal }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Failure> + Send + 'static) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(may_heal(error.to_string())))
}

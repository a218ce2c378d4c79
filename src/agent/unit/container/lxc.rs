//! Runtime for LXC, through its own programs (`lxc-start`, `lxc-stop`, `lxc-freeze`, `lxc-unfreeze`, `lxc-cgroup`, `lxc-ls`).
//!
//! A container is a folder below one that belongs to this agent alone. It runs under `lxc-start` in the foreground, which runs
//! under a shim: so its output is in a log that is rotated as a yuno's, and its end is recorded on disk even while the agent
//! is away. LXC itself reports an exit status only in the log of `lxc-start` (`ended`).
//!
//! **Invariant: a container has its own network namespace unless its spec says otherwise**, and `lxc.net.0.type = none` is
//! never used.
//!
//! Modules, in reading order: `config` (the configuration for LXC), `users` (users inside),
//! `folder` (layout), `disk` (limits what it writes), `image` (root file systems), `process` (finds the
//! first process), `ended` (how it ended), `oom` (killed for lack of
//! memory), `tool` (runs programs).

mod config;
mod disk;
mod ended;
mod folder;
mod image;
mod oom;
mod process;
mod tool;
mod users;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    path::{Path, PathBuf},
    time::Duration,
};

use futures_util::FutureExt;
use muster_rules::plan::Failure;
use muster_shim::{
    Launch, MainProcessId, OutputMode, ProcessAttributes, RestartLimits, RestartOn, ShimEvent, ShimRequest,
    cgroup::Cgroup,
};
use muster_topics::{
    command::LogView,
    container::{self, ContainerSpec, ContainerState, Image, Network},
    diagnostic::Diagnostic,
    name::Digest,
    process::{Limits, Log},
    signal::Signal,
};
use nix::unistd;
use tokio::{
    sync::OnceCell,
    time::{Instant, sleep, timeout},
};

use self::folder::{ContainerFolder, CreationRecord, FolderState};
use self::tool::WORK_MAX;
use super::super::failure::never;
use super::runtime::{
    ContainerPhase, ContainerRuntime, ContainersById, ListedContainer, Recipe, RuntimeFuture, RuntimeLogFrom,
    RuntimeState,
};
use crate::{
    cgroup::{Hierarchies, limit_files},
    execute::program_path::SEARCH_PATH,
    shim::{AdoptedShim, ShimHandle, Shims},
    unit::{
        failure::{blocking, from_shim, may_heal},
        log::{self, LogPart},
        yuno::signal_number,
    },
};

/// Lookups take milliseconds, or more on a busy host.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// How often to check whether an operation has finished. Each check reads a few files of `/proc`.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The LXC runtime.
pub(super) struct Lxc {
    /// The folder of this agent's containers.
    path: PathBuf,
    shims: Shims,
    hierarchies: Hierarchies,
    /// The folder of other LXC containers, once LXC has reported it.
    others: OnceCell<PathBuf>,
}

/// The state of a container.
struct ContainerStatus {
    made: CreationRecord,
    phase: ContainerPhase,
    /// The shim's process, while it exists.
    monitor: Option<MainProcessId>,
}

impl Lxc {
    pub(super) fn new(path: PathBuf, shims: Shims) -> Self {
        Self { path, shims, hierarchies: Hierarchies::detect(), others: OnceCell::new() }
    }

    fn folder(&self, name: &str) -> ContainerFolder {
        ContainerFolder::new(&self.path, name)
    }

    /// Examines one of our containers. A shim that was killed is replaced.
    async fn see(&self, folder: &ContainerFolder, made: CreationRecord) -> Result<ContainerStatus, Failure> {
        let run = folder.run();
        let mut shim = match self.shims.adopt(&run).await.map_err(from_shim)? {
            AdoptedShim::Nothing => return Ok(ContainerStatus { made, phase: ContainerPhase::Made, monitor: None }),
            AdoptedShim::Ended(last) => {
                return Ok(ContainerStatus { made, phase: folder.ended(&last), monitor: None });
            }
            AdoptedShim::Alive(shim) => shim,
        };
        let state = timeout(LOOK_MAX, first_state(&mut shim)).await.ok().flatten();
        let (phase, monitor) = match state {
            Some(state) if state.over => {
                (state.last.as_ref().map_or(ContainerPhase::Busy, |last| folder.ended(last)), None)
            }
            Some(state) => {
                let runs = state.main.as_ref().and_then(|main| self.runs(main));
                (runs.unwrap_or(ContainerPhase::Busy), state.main)
            }
            None => (ContainerPhase::Busy, None),
        };
        Ok(ContainerStatus { made, phase, monitor })
    }

    /// Returns the running phase, if it runs.
    fn runs(&self, monitor: &MainProcessId) -> Option<ContainerPhase> {
        let pid = process::first_of(monitor)?;
        let frozen = process::is_frozen(&self.hierarchies, pid);
        Some(ContainerPhase::Runs { pid, started_ms: Some(monitor.started_ms), frozen })
    }

    /// Examines one of our containers by name.
    async fn ours(&self, name: &str) -> Result<Option<ContainerStatus>, Failure> {
        let folder = self.folder(name);
        match folder.look()? {
            FolderState::Ours(made) => self.see(&folder, made).await.map(Some),
            FolderState::Nothing | FolderState::Others => Ok(None),
        }
    }

    async fn inspect(&self, name: &str) -> Result<Option<RuntimeState>, Failure> {
        let folder = self.folder(name);
        let made = match folder.look()? {
            FolderState::Nothing => return Ok(None),
            FolderState::Others => return Ok(Some(state(name, <_>::default(), ContainerPhase::Made))),
            FolderState::Ours(made) => made,
        };
        let ContainerStatus { made, phase, .. } = self.see(&folder, made).await?;
        Ok(Some(state(name, made.labels, phase)))
    }

    /// Runs one of LXC's programs on a container.
    async fn tool(&self, program: &str, name: &str, more: &[&str]) -> Result<tool::ToolOutput, Failure> {
        let mut args = [OsStr::new("-P"), self.path.as_os_str(), OsStr::new("-n"), OsStr::new(name)].to_vec();
        args.extend(more.iter().map(OsStr::new));
        tool::run(program, &args, WORK_MAX).await
    }

    async fn start(&self, name: &str) -> Result<(), Failure> {
        let folder = self.folder(name);
        let FolderState::Ours(made) = folder.look()? else {
            return Err(may_heal(format!("the container {name} no longer exists")));
        };
        let launch = launch(&self.path, name, &folder, made)?;
        folder.begin()?;
        let mut shim = self.shims.launch(&folder.run(), &launch).await.map_err(from_shim)?;
        match timeout(WORK_MAX, up(&mut shim)).await {
            Ok(StartResult::Runs) => Ok(()),
            // It has finished its work already.
            Ok(StartResult::Ended(muster_shim::ProcessExit::Code(0))) => Ok(()),
            Ok(StartResult::Ended(_)) => Err(may_heal(format!("LXC cannot start it: {}", folder.why_not()))),
            Ok(StartResult::Gone) => Err(may_heal("its shim is gone")),
            Err(_) => {
                end(&mut shim).await;
                Err(may_heal(format!("LXC did not start it within {} s and was ended", WORK_MAX.as_secs())))
            }
        }
    }

    async fn signal(&self, name: &str, signal: Signal) -> Result<bool, Failure> {
        let Some(ContainerStatus { phase: ContainerPhase::Runs { pid, frozen, .. }, monitor: Some(monitor), .. }) =
            self.ours(name).await?
        else {
            return Ok(false);
        };
        let sent = process::send(&monitor, pid, signal_number(signal));
        let sent =
            sent.map_err(|error| may_heal(format!("a signal cannot be sent to the container {name}: {error}")))?;
        if sent && frozen && signal == Signal::Kill {
            // In v1 cgroups frozen processes do not even die.
            let _ = self.freeze(name, false).await;
        }
        Ok(sent)
    }

    async fn freeze(&self, name: &str, frozen: bool) -> Result<(), Failure> {
        let (program, words) = if frozen { ("lxc-freeze", "suspend") } else { ("lxc-unfreeze", "let go on") };
        let ran = self.tool(program, name, &[]).await?;
        let is_so = |seen: Option<ContainerStatus>| {
            seen.is_some_and(|seen| matches!(seen.phase, ContainerPhase::Runs { frozen: is, .. } if is == frozen))
        };
        // Being in the wanted state already is no failure.
        if ran.ok || is_so(self.ours(name).await?) {
            return Ok(());
        }
        Err(may_heal(format!("LXC could not {words} the container {name}: {}", ran.why())))
    }

    async fn limit(&self, name: &str, limits: Limits) -> Result<bool, Failure> {
        let folder = self.folder(name);
        folder.write_limits(&limits)?;
        if !self.ours(name).await?.is_some_and(|seen| matches!(seen.phase, ContainerPhase::Runs { .. })) {
            return Ok(true);
        }
        let files = limit_files(&limits);
        let mut why = String::new();
        // The limit of memory with swap is never below that of memory: the order depends on the direction.
        for order in [files.iter().collect::<Vec<_>>(), files.iter().rev().collect()] {
            why.clear();
            for file in order {
                let ran = self.tool("lxc-cgroup", name, &[file.name, &file.value]).await?;
                if !ran.ok && !file.optional {
                    why = ran.why();
                }
            }
            if why.is_empty() {
                return Ok(true);
            }
        }
        tracing::info!(container = name, %why, "its limits cannot change while it runs");
        Ok(false)
    }

    async fn remove(&self, name: &str) -> Result<(), Failure> {
        let until = Instant::now() + WORK_MAX;
        let folder = self.folder(name);
        let mut asked = false;
        while let Some(seen) = self.ours(name).await? {
            if !matches!(seen.phase, ContainerPhase::Runs { .. } | ContainerPhase::Busy) {
                return blocking(move || folder.remove()).await;
            }
            if Instant::now() >= until {
                return Err(may_heal(format!("the container {name} cannot be ended")));
            }
            if !asked {
                asked = true;
                // This also thaws frozen processes.
                let ran = self.tool("lxc-stop", name, &["-k"]).await?;
                if !ran.ok {
                    tracing::info!(container = name, why = %ran.why(), "LXC cannot end a container");
                    self.end_monitor(&folder).await?;
                }
            }
            sleep(LOOK_AGAIN).await;
        }
        Ok(())
    }

    /// Ends the process that starts a container, and so the container.
    async fn end_monitor(&self, folder: &ContainerFolder) -> Result<(), Failure> {
        if let AdoptedShim::Alive(mut shim) = self.shims.adopt(&folder.run()).await.map_err(from_shim)? {
            end(&mut shim).await;
        }
        Ok(())
    }

    /// Lists our own folder, without asking LXC.
    fn list_ours(&self) -> ContainersById {
        let mut all = ContainersById::new();
        for name in folder::names(&self.path) {
            let folder = self.folder(&name);
            let Ok(FolderState::Ours(made)) = folder.look() else { continue };
            let state = match folder.recorded() {
                None => ContainerState::Made,
                Some(state) => match state.main.as_ref().filter(|_| !state.over).map(|main| self.runs(main)) {
                    None => ContainerState::Ended,
                    Some(Some(ContainerPhase::Runs { frozen: true, .. })) => ContainerState::Frozen,
                    Some(Some(_)) => ContainerState::Running,
                    Some(None) => ContainerState::Busy,
                },
            };
            let image = format!("rootfs:{}", made.image);
            let listed =
                ListedContainer { name, labels: made.labels, state, image, limits: Limits::default(), process: None };
            all.insert(folder.path().display().to_string(), listed);
        }
        all
    }

    /// Lists other containers in LXC's default folder.
    async fn list_others(&self) -> Result<ContainersById, Failure> {
        let path = self.others.get_or_try_init(|| async {
            let ran = tool::run("lxc-config", &[OsStr::new("lxc.lxcpath")], LOOK_MAX).await?;
            Ok::<_, Failure>(PathBuf::from(ran.stdout.trim()))
        });
        let path = path.await?;
        // There are usually none.
        if path.as_os_str().is_empty() || folder::names(path).is_empty() {
            return Ok(ContainersById::new());
        }
        let options = ["-f", "-F", "NAME,STATE,PID", "-P"].map(OsStr::new);
        let args: Vec<&OsStr> = options.into_iter().chain([path.as_os_str()]).collect();
        let ran = tool::run("lxc-ls", &args, LOOK_MAX).await?;
        if !ran.ok {
            return Err(may_heal(format!("LXC cannot list containers: {}", ran.why())));
        }
        let all = config::listed(&ran.stdout);
        Ok(all.map(|(name, state, pid)| (path.join(&name).display().to_string(), other(name, state, pid))).collect())
    }
}

fn state(name: &str, labels: BTreeMap<String, String>, phase: ContainerPhase) -> RuntimeState {
    RuntimeState { id: name.to_owned(), name: name.to_owned(), labels, phase, stop_signal: None, obstacle: None }
}

/// A container of another owner.
fn other(name: String, state: ContainerState, pid: Option<i32>) -> ListedContainer {
    let process = pid.and_then(muster_shim::process_identity::identity);
    ListedContainer { name, labels: <_>::default(), state, image: String::new(), limits: Limits::default(), process }
}

/// Returns the launch of `lxc-start`, in the foreground. It passes what follows `--` unchanged.
fn launch(path: &Path, name: &str, folder: &ContainerFolder, made: CreationRecord) -> Result<Launch, Failure> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let log = text(&folder.lxc_log());
    let options = ["-F", "-q", "-P", &text(path), "-n", name, "-o", &log, "-l", "INFO", "--"].map(str::to_owned);
    let mut argv = vec![text(&tool::find("lxc-start").ok_or_else(|| tool::missing("lxc-start"))?)];
    argv.extend(options);
    argv.extend(made.argv);
    let Log { max_bytes, keep, max_age_ms } = Log::default();
    Ok(Launch {
        protocol: muster_shim::PROTOCOL,
        argv,
        env: vec![("PATH".to_owned(), SEARCH_PATH.to_owned()), ("LC_ALL".to_owned(), "C".to_owned())],
        cwd: text(folder.path()),
        user: None,
        attributes: ProcessAttributes::default(),
        // LXC creates the cgroups that it needs.
        cgroup: Cgroup::default(),
        output: OutputMode::Log { max_bytes, keep, max_age_ms },
        notify: None,
        forking: None,
        inside: None,
        restart: RestartLimits { on: RestartOn::Never, budget: 0, reset_after_ms: 0 },
        timeout_ms: None,
        stop_signal: signal_number(Signal::Kill),
        grace_ms: 0,
    })
}

/// The result of a start.
enum StartResult {
    /// It runs.
    Runs,
    /// `lxc-start` has ended.
    Ended(muster_shim::ProcessExit),
    /// Unknown: the shim has ended.
    Gone,
}

/// Waits until it executes its own program, or has ended.
async fn up(shim: &mut ShimHandle) -> StartResult {
    let mut monitor = None;
    loop {
        tokio::select! {
            event = shim.next() => match event {
                Some(ShimEvent::State(state)) if state.over => {
                    return StartResult::Ended(state.last.map_or(muster_shim::ProcessExit::Unknown, |last| last.exit));
                }
                Some(ShimEvent::State(state)) => monitor = state.main,
                Some(_) => {}
                None => return StartResult::Gone,
            },
            () = sleep(LOOK_AGAIN) => {
                if monitor.as_ref().is_some_and(|monitor| process::first_of(monitor).is_some()) {
                    return StartResult::Runs;
                }
            }
        }
    }
}

/// Has a shim end its program, and waits until it has.
async fn end(shim: &mut ShimHandle) {
    let stop = ShimRequest::Stop { signal: signal_number(Signal::Kill), grace_ms: 0 };
    if shim.send(&stop).await.is_ok() {
        let over = async {
            while let Some(event) = shim.next().await {
                if matches!(event, ShimEvent::State(state) if state.over) {
                    break;
                }
            }
        };
        let _ = timeout(LOOK_MAX, over).await;
    }
}

async fn first_state(shim: &mut ShimHandle) -> Option<muster_shim::ProgramState> {
    loop {
        if let ShimEvent::State(state) = shim.next().await? {
            return Some(state);
        }
    }
}

impl ContainerRuntime for Lxc {
    fn which(&self) -> container::Runtime {
        container::Runtime::Lxc
    }

    fn cannot(&self, spec: &ContainerSpec) -> Option<Diagnostic> {
        let (what, hint) = match (&spec.image, spec.network) {
            (Image::Archive(_), _) => {
                ("image.archive: LXC creates containers from root file systems", Some("image.rootfs"))
            }
            (Image::Existing(_), _) => (
                "image.existing: LXC cannot follow containers that it has not started",
                Some("create it again, from image.rootfs"),
            ),
            (Image::Name(_), _) => ("image.name: LXC does not pull images", Some("an artifact, as image.rootfs")),
            (_, Network::Bridge) => (
                "network bridge: ports in a network of its own cannot be published",
                Some("\"network\": \"none\" or \"host\""),
            ),
            _ if !unistd::geteuid().is_root() => ("the agent does not run as root", None),
            _ => {
                if let Some(what) = spec.disk_bytes.and_then(|_| disk::cannot(&self.path)) {
                    return Some(what);
                }
                let broken = spec.program.env.iter().find(|(name, value)| name.contains('\n') || value.contains('\n'));
                return broken.map(|(name, _)| format!("env.{}: it has a line break", name.escape_debug()).into());
            }
        };
        Some(Diagnostic::new(what).or_hint(hint))
    }

    fn has_image<'a>(&'a self, image: &'a Image) -> RuntimeFuture<'a, bool> {
        async move {
            // A host without LXC fails before anything is downloaded.
            tool::find("lxc-start").ok_or_else(|| tool::missing("lxc-start"))?;
            Ok(image.artifact().is_some_and(|artifact| image::is_there(&self.path, &artifact.sha256)))
        }
        .boxed()
    }

    fn bring_image<'a>(&'a self, image: &'a Image, file: Option<&'a Path>) -> RuntimeFuture<'a, ()> {
        async move {
            match (image, file) {
                (Image::Rootfs(artifact), Some(file)) => image::bring(&self.path, &artifact.sha256, file).await,
                _ => Err(never("LXC creates containers only from root file systems")),
            }
        }
        .boxed()
    }

    fn inspect<'a>(&'a self, name: &'a str) -> RuntimeFuture<'a, Option<RuntimeState>> {
        self.inspect(name).boxed()
    }

    fn create<'a>(&'a self, name: &'a str, recipe: &'a Recipe) -> RuntimeFuture<'a, ()> {
        let (folder, path, recipe) = (self.folder(name), self.path.clone(), recipe.clone());
        async move { folder.create(&path, recipe).await }.boxed()
    }

    fn start<'a>(&'a self, name: &'a str) -> RuntimeFuture<'a, ()> {
        self.start(name).boxed()
    }

    fn signal<'a>(&'a self, name: &'a str, signal: Signal) -> RuntimeFuture<'a, bool> {
        self.signal(name, signal).boxed()
    }

    fn freeze<'a>(&'a self, name: &'a str, frozen: bool) -> RuntimeFuture<'a, ()> {
        self.freeze(name, frozen).boxed()
    }

    fn limit<'a>(&'a self, name: &'a str, limits: Limits) -> RuntimeFuture<'a, bool> {
        self.limit(name, limits).boxed()
    }

    fn remove<'a>(&'a self, name: &'a str) -> RuntimeFuture<'a, ()> {
        self.remove(name).boxed()
    }

    fn is_there(&self) -> bool {
        tool::find("lxc-start").is_some()
    }

    fn list<'a>(&'a self, known: &'a ContainersById) -> RuntimeFuture<'a, ContainersById> {
        async move {
            let mut all = self.list_others().await.unwrap_or_else(|failure| {
                tracing::debug!(
                    error = failure.error.cause,
                    hint = failure.error.hint,
                    "unmanaged containers cannot be listed"
                );
                // If LXC does not answer, they have not disappeared.
                let is_ours = |id: &String| Path::new(id).starts_with(&self.path);
                known.iter().filter(|(id, _)| !is_ours(id)).map(|(id, listed)| (id.clone(), listed.clone())).collect()
            });
            // If LXC's folder is ours as well, our own records are better.
            all.extend(self.list_ours());
            Ok(all)
        }
        .boxed()
    }

    fn log<'a>(&'a self, name: &'a str, from: RuntimeLogFrom, view: LogView) -> RuntimeFuture<'a, LogPart> {
        let folders = [self.folder(name).run()];
        let read = move || {
            let read = match from {
                RuntimeLogFrom::Last(lines) => log::tail_to(&folders, lines, &view, log::TAIL_MAX_BYTES),
                RuntimeLogFrom::After(place) => log::since(&folders, place, view.times, log::TAIL_MAX_BYTES),
            };
            read.map_err(|error| may_heal(format!("its log cannot be read: {error}")))
        };
        blocking(read).boxed()
    }

    fn sweep<'a>(&'a self, needed: &'a BTreeSet<Digest>) -> RuntimeFuture<'a, ()> {
        let (path, mut needed) = (self.path.clone(), needed.clone());
        blocking(move || {
            needed.extend(folder::names(&path).into_iter().filter_map(|name| {
                let Ok(FolderState::Ours(made)) = ContainerFolder::new(&path, &name).look() else { return None };
                Some(made.image)
            }));
            let swept = image::sweep(&path, &needed).and_then(|()| folder::sweep(&path, image::UNUSED_KEPT));
            swept.map_err(|error| may_heal(format!("cannot clean up {}: {error}", path.display())))
        })
        .boxed()
    }
}

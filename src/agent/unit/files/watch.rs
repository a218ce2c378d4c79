//! The instance of a unit of files: it watches that they stay as they are, and puts right what somebody else has changed.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    os::fd::AsRawFd,
    path::Path,
    sync::Arc,
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use muster_base::{chance::random, clock::now_ms};
use muster_rules::{
    corrections::Corrections,
    plan::{Failure, InstanceEnd, InstanceExit, ShimReport},
};
use muster_topics::{Millis, diagnostic::Diagnostic, files::Drift, name::UnitName, signal::Signal, unit::Exit};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::{
    net::unix::pipe,
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{confine::Place, staged::StagedRevision, state::FilesState, survey::SurveyedPath};
use crate::{
    store::files_journal,
    unit::{
        drift::shortened,
        failure::{may_heal, never},
        kind::{Instance, InstanceEvent},
    },
};

/// How often everything is looked at, watched or not. A tenth of it is random, so that units do not look together.
const TICK: Duration = Duration::from_secs(30);

/// How long it waits after a change for further ones.
const SETTLE: Duration = Duration::from_millis(150);

/// The most folders that are watched of a unit; files in others are looked at by the tick alone.
const WATCHES_MAX: usize = 256;

/// Events that wait; the reader is as fast as the units' task.
const EVENTS_MAX: usize = 8;

/// The corrections within [`CORRECTIONS_WITHIN_MS`] after which a unit gives up for a while: one by hand and its repetition
/// are no fight.
const CORRECTIONS_MAX: usize = 5;

/// The time in which corrections count together.
const CORRECTIONS_WITHIN_MS: Millis = 60_000;

/// Files that are kept as they are.
pub(super) struct FilesInstance {
    state: Arc<FilesState>,
    unit: UnitName,
    events: mpsc::Receiver<InstanceEvent>,
    own: mpsc::Sender<InstanceEvent>,
    started_ms: Millis,
    watching: Option<DropGuard>,
}

impl FilesInstance {
    /// Begins to watch what was applied.
    pub(super) fn begin(
        state: Arc<FilesState>,
        unit: UnitName,
        staged: Arc<StagedRevision>,
        started_ms: Millis,
    ) -> Self {
        let (own, events) = mpsc::channel(EVENTS_MAX);
        let stop = CancellationToken::new();
        let watch = Watch {
            state: state.clone(),
            unit: unit.clone(),
            staged,
            started_ms,
            events: own.clone(),
            corrections: Corrections::new(CORRECTIONS_MAX, CORRECTIONS_WITHIN_MS),
            reported: Vec::new(),
        };
        tokio::spawn(stop.clone().run_until_cancelled_owned(watch.run()));
        Self { state, unit, events, own, started_ms, watching: Some(stop.drop_guard()) }
    }
}

/// What an instance reports: these paths differ.
pub(super) fn report(differing: Vec<Diagnostic>) -> ShimReport {
    ShimReport { ready: true, drift: Some(differing), ..ShimReport::default() }
}

fn ended(started_ms: Millis, exit: Exit, why: Option<Diagnostic>) -> InstanceEvent {
    let last = InstanceExit { why, ..InstanceExit::new(exit, Some(started_ms), now_ms()) };
    InstanceEvent::Ended(InstanceEnd { restarts: 0, last })
}

impl Instance for FilesInstance {
    fn next(&mut self) -> BoxFuture<'_, Option<InstanceEvent>> {
        self.events.recv().boxed()
    }

    fn stop(&mut self, _: Option<Signal>, _: u64) -> BoxFuture<'_, Result<(), Failure>> {
        async {
            self.watching = None;
            // A correction that is under way ends first.
            let _lock = self.state.lock(&self.unit).await;
            files_journal::stop(&self.state.store, &self.unit)
                .await
                .map_err(|error| may_heal(Diagnostic::of(&error)))?;
            // The queue may be full of events that do not matter any more.
            while self.own.capacity() == 0 && self.events.try_recv().is_ok() {}
            let _ = self.own.try_send(ended(self.started_ms, Exit::Code(0), None));
            Ok(())
        }
        .boxed()
    }

    fn freeze(&mut self, _: bool) -> BoxFuture<'_, Result<(), Failure>> {
        async {
            Err(never(Diagnostic::new("files cannot be frozen").with_hint("stop the unit to leave them unchanged")))
        }
        .boxed()
    }

    fn signal(&mut self, _: Signal) -> BoxFuture<'_, Result<bool, Failure>> {
        async { Ok(false) }.boxed()
    }
}

/// The task that watches.
struct Watch {
    state: Arc<FilesState>,
    unit: UnitName,
    staged: Arc<StagedRevision>,
    started_ms: Millis,
    events: mpsc::Sender<InstanceEvent>,
    corrections: Corrections,
    /// What was reported as different.
    reported: Vec<Diagnostic>,
}

impl Watch {
    async fn run(mut self) {
        if self.events.send(InstanceEvent::Told(report(Vec::new()))).await.is_err() {
            return;
        }
        let mut watched = self.folders();
        loop {
            if let Err(why) = self.look().await {
                let _ = self.events.send(ended(self.started_ms, Exit::Unknown, Some(why))).await;
                return;
            }
            let tick = Instant::now() + TICK.mul_f64(0.95 + 0.1 * random());
            let is_changed = match &watched {
                Some(folders) => tokio::select! {
                    changed = folders.changed() => changed,
                    () = sleep_until(tick) => false,
                },
                None => {
                    sleep_until(tick).await;
                    false
                }
            };
            if is_changed {
                tokio::time::sleep(SETTLE).await;
            }
            // Folders may have been replaced.
            watched = self.folders();
        }
    }

    /// Looks at everything; the error is why it cannot be kept any more.
    async fn look(&mut self) -> Result<(), Diagnostic> {
        let found = self.differing().await;
        if self.staged.drift == Drift::Report {
            let told = |differing| shortened(differing).into_iter().map(Diagnostic::from).collect();
            return self.tell(found.map_or_else(|failure| vec![failure.error], told)).await;
        }
        let differing = found.map_err(|failure| failure.error)?;
        if differing.is_empty() {
            return Ok(());
        }
        if !self.corrections.may_correct(now_ms()) {
            return Err(Diagnostic::new(format_args!(
                "another program keeps changing it: it was corrected {CORRECTIONS_MAX} \
                 times within a minute, and now {}",
                shortened(differing).join("; ")
            ))
            .with_hint("find the other program that writes it, or set `drift: report`"));
        }
        tracing::info!(unit = %self.unit, "files were changed outside of muster and are corrected: {}", shortened(differing).join("; "));
        self.state.apply_alone(&self.unit, &self.staged).await.map(drop).map_err(|failure| failure.error)
    }

    async fn differing(&self) -> Result<Vec<String>, Failure> {
        let _lock = self.state.lock(&self.unit).await;
        let began = Instant::now();
        let journal = self.state.journal(&self.unit).await?;
        let paths = self.state.survey(&self.unit, Some(self.staged.clone()), journal).await?;
        let duration_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        tracing::debug!(unit = %self.unit, paths = paths.len(), duration_us, "files were checked");
        Ok(paths.iter().filter(|one| one.is_change()).map(SurveyedPath::difference).collect())
    }

    async fn tell(&mut self, differing: Vec<Diagnostic>) -> Result<(), Diagnostic> {
        if differing != self.reported {
            let told = InstanceEvent::Told(report(differing.clone()));
            let _ = self.events.send(told).await;
            self.reported = differing;
        }
        Ok(())
    }

    /// Watches the folders of all paths; `None` if that is impossible.
    fn folders(&self) -> Option<Folders> {
        // The names that count in each folder; `None` for all.
        let mut folders: BTreeMap<&Path, Option<BTreeSet<&str>>> = BTreeMap::new();
        for (path, entry) in &self.staged.entries {
            if let Some((folder, name)) = path.rsplit_once('/') {
                let folder = if folder.is_empty() { "/" } else { folder };
                if let Some(names) = folders.entry(Path::new(folder)).or_insert_with(|| Some(BTreeSet::new())) {
                    names.insert(name);
                }
            }
            if entry.directory.as_ref().is_some_and(|directory| directory.purge || directory.recurse) {
                folders.insert(Path::new(path), None);
            }
        }
        let opened = Folders::open().and_then(|mut watched| {
            for (folder, names) in folders.into_iter().take(WATCHES_MAX) {
                // The way to it is the same as for a change.
                let Ok(place) = self.state.confinement.open(&folder.join("x")) else { continue };
                let names = names.map(|names| names.into_iter().map(str::to_owned).collect());
                watched.add(&place, names)?;
            }
            Ok(watched)
        });
        opened.map_err(|error| tracing::debug!(%error, "file changes are found only by periodic checks")).ok()
    }
}

/// Folders that are watched, with the names that count in each; `None` for all.
struct Folders {
    /// Inotify. It is no pipe, and is read in the same way.
    events: pipe::Receiver,
    names: HashMap<i32, Option<BTreeSet<String>>>,
}

/// What is read of events at once; one has at most 16 bytes and a name.
const EVENTS_BYTES: usize = 16 * 1024;

impl Folders {
    fn open() -> io::Result<Self> {
        let opened = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        Ok(Self { events: pipe::Receiver::from_owned_fd_unchecked(opened)?, names: HashMap::new() })
    }

    fn add(&mut self, place: &Place, names: Option<BTreeSet<String>>) -> io::Result<()> {
        let flags = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        let opened = format!("/proc/self/fd/{}", place.folder.as_raw_fd());
        let watch = inotify::add_watch(&self.events, opened, flags)?;
        self.names.insert(watch, names);
        Ok(())
    }

    /// Waits for a change. Cancel-safe.
    async fn changed(&self) -> bool {
        let mut bytes = vec![0; EVENTS_BYTES];
        loop {
            if let Err(error) = self.events.readable().await {
                return self.fail(&error).await;
            }
            match self.events.try_read(&mut bytes) {
                Ok(length) if self.counts(bytes.get(..length).unwrap_or_default()) => return true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return self.fail(&error).await,
            }
        }
    }

    /// Leaves it to the tick.
    async fn fail(&self, error: &io::Error) -> bool {
        tracing::warn!(%error, "file changes are found only by periodic checks");
        std::future::pending().await
    }

    /// Whether one of these events is about a name that counts.
    fn counts(&self, mut bytes: &[u8]) -> bool {
        while let Some((head, rest)) = bytes.split_first_chunk::<16>() {
            let number = |at: usize| {
                let four = head.get(at..at + 4).and_then(|four| four.try_into().ok());
                four.map(i32::from_ne_bytes).unwrap_or_default()
            };
            let (watch, length) = (number(0), usize::try_from(number(12)).unwrap_or_default());
            let (name, next) = rest.split_at(length.min(rest.len()));
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            let counts = match self.names.get(&watch) {
                Some(Some(names)) if !name.is_empty() => str::from_utf8(name).is_ok_and(|name| names.contains(name)),
                // The folder itself, all names in it, or more events than the kernel keeps.
                _ => true,
            };
            if counts {
                return true;
            }
            bytes = next;
        }
        false
    }
}

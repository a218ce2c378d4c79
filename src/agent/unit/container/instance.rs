//! A running container. A handle of its first process tells when it ends, which costs nothing while it runs and needs
//! no runtime; the runtime is then asked how it ended.

use std::{collections::VecDeque, io, os::fd::OwnedFd, sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use muster_base::clock::now_ms;
use muster_rules::{
    plan::{Failure, InstanceEnd, InstanceExit, ProcessId, ShimReport},
    port_lease::EndpointWiring,
};
use muster_topics::{command::LogView, diagnostic::Diagnostic, signal::Signal, unit::Exit};
use tokio::{net::unix::pipe, time::Instant};

use super::runtime::{ContainerPhase, ContainerRuntime, RuntimeLogFrom};
use crate::unit::kind::{Instance, InstanceEvent};

/// How often to check whether it was frozen or thawed by somebody else. Each check is a request to the runtime.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// How long a runtime may take to notice the end of a container, and how often it is asked meanwhile. It is shorter
/// than the timeout of a lookup (10 s), because after a crash of the host a runtime may never notice.
const NOTICE_MAX: Duration = Duration::from_secs(8);
const NOTICE_EVERY: Duration = Duration::from_millis(50);

/// When to kill again a container that was killed and still exists.
const KILL_AGAIN: Duration = Duration::from_secs(5);

/// The number of last lines that are reported when it has ended, as for a yuno.
const LAST_LINES: u32 = 10;
const LAST_LINES_MAX_BYTES: usize = 2 * 1024;

/// A container of a unit.
pub(super) struct ContainerInstance {
    runtime: Arc<dyn ContainerRuntime>,
    name: String,
    wiring: EndpointWiring,
    /// Features of its spec that it runs without.
    missing: Vec<Diagnostic>,
    runs: Option<RunningProcess>,
    /// When it is killed, if it was asked to end.
    kill_at: Option<Instant>,
    news: VecDeque<InstanceEvent>,
}

/// Its first process.
struct RunningProcess {
    process: ProcessId,
    frozen: bool,
    ends: pipe::Receiver,
}

impl ContainerInstance {
    /// Creates it for the container of this name, with its present state as the first event.
    pub(super) async fn of(
        runtime: Arc<dyn ContainerRuntime>,
        name: String,
        wiring: EndpointWiring,
    ) -> Result<Self, Failure> {
        let mut container =
            Self { runtime, name, wiring, missing: Vec::new(), runs: None, kill_at: None, news: VecDeque::new() };
        let news = container.check_runtime().await?.unwrap_or_else(|| ended_unseen(None));
        container.news.push_back(news);
        Ok(container)
    }

    /// Adds a feature that it runs without.
    pub(super) fn without(mut self, missing: Option<Diagnostic>) -> Self {
        self.missing.extend(missing);
        for news in &mut self.news {
            if let InstanceEvent::Told(told) = news {
                told.unsupported.clone_from(&self.missing);
            }
        }
        self
    }

    /// Returns the first event, without waiting.
    pub(super) fn first(&mut self) -> Option<InstanceEvent> {
        self.news.pop_front()
    }

    /// Checks its state; `None` if there is no container of this name any more. If the runtime still reports it as
    /// running and its process has ended, it is about to end.
    async fn check_runtime(&mut self) -> Result<Option<InstanceEvent>, Failure> {
        let until = Instant::now() + NOTICE_MAX;
        loop {
            let Some(state) = self.runtime.inspect(&self.name).await? else { return Ok(None) };
            match state.phase {
                ContainerPhase::Runs { pid, started_ms, frozen } => {
                    if let Some(runs) = RunningProcess::of(pid, started_ms, frozen) {
                        let told = self.told(&runs);
                        self.runs = Some(runs);
                        return Ok(Some(told));
                    }
                }
                ContainerPhase::Ended { exit, oom_killed, started_ms, at_ms } => {
                    let ended = InstanceExit {
                        oom_killed,
                        last_lines: self.last_lines().await,
                        ..InstanceExit::new(exit, started_ms, at_ms.unwrap_or_else(now_ms))
                    };
                    self.runs = None;
                    return Ok(Some(InstanceEvent::Ended(InstanceEnd { restarts: 0, last: ended })));
                }
                ContainerPhase::Made => return Ok(Some(ended_unseen(None))),
                ContainerPhase::Busy => {}
            }
            if Instant::now() >= until {
                // Its runtime does not know yet, but its process has certainly ended.
                let started_ms = self.runs.take().map(|runs| runs.process.started_ms);
                return Ok(Some(ended_unseen(started_ms)));
            }
            tokio::time::sleep(NOTICE_EVERY).await;
        }
    }

    fn told(&self, runs: &RunningProcess) -> InstanceEvent {
        let (process, frozen, wiring) = (Some(runs.process), runs.frozen, self.wiring.clone());
        InstanceEvent::Told(ShimReport {
            process,
            frozen,
            wiring,
            unsupported: self.missing.clone(),
            ..ShimReport::default()
        })
    }

    async fn last_lines(&self) -> Option<String> {
        let text = self.runtime.log(&self.name, RuntimeLogFrom::Last(LAST_LINES), LogView::default()).await.ok()?.text;
        let from = text.len().saturating_sub(LAST_LINES_MAX_BYTES);
        (!text.is_empty()).then(|| String::from_utf8_lossy(&text[from..]).into_owned())
    }

    /// Waits for the next event. Cancel-safe: requests to the runtime change nothing, or are repeated.
    async fn next_event(&mut self) -> Option<InstanceEvent> {
        loop {
            if let Some(news) = self.news.pop_front() {
                return Some(news);
            }
            let Some(runs) = &self.runs else { return None };
            let never = Instant::now() + Duration::from_secs(u64::from(u32::MAX));
            tokio::select! {
                ended = runs.ends.readable() => {
                    if let Err(error) = ended {
                        tracing::warn!(container = %self.name, %error, "cannot wait for the end of a container");
                    }
                    // While the runtime does not answer, it is asked again.
                    return self.check_runtime().await.ok().map(|news| news.unwrap_or_else(|| ended_unseen(None)));
                }
                () = tokio::time::sleep_until(self.kill_at.unwrap_or(never)) => {
                    self.kill_at = Some(Instant::now() + KILL_AGAIN);
                    if let Err(failure) = self.runtime.signal(&self.name, Signal::Kill).await {
                        tracing::warn!(container = %self.name, error = failure.error.cause, hint = failure.error.hint, "a container cannot be killed yet");
                    }
                }
                () = tokio::time::sleep(LOOK_EVERY) => {
                    let before = (runs.process, runs.frozen);
                    // Until its process ends it runs, whatever the runtime reports.
                    let Ok(Some(news)) = self.check_runtime().await else { continue };
                    let now = self.runs.as_ref().map(|runs| (runs.process, runs.frozen));
                    if now != Some(before) {
                        return Some(news);
                    }
                }
            }
        }
    }

    async fn end(&mut self, signal: Option<Signal>, grace_ms: u64) -> Result<(), Failure> {
        self.kill_at = Some(Instant::now() + Duration::from_millis(grace_ms));
        // A frozen container handles no signal.
        if self.runs.as_ref().is_some_and(|runs| runs.frozen) {
            self.suspend(false).await?;
        }
        if grace_ms > 0 {
            let signal = match signal {
                Some(signal) => signal,
                None => self.own_stop_signal().await?,
            };
            self.runtime.signal(&self.name, signal).await?;
        }
        Ok(())
    }

    /// Returns its own stop signal, read now, because it may have been recreated since it was started.
    async fn own_stop_signal(&self) -> Result<Signal, Failure> {
        let state = self.runtime.inspect(&self.name).await?;
        Ok(state.and_then(|state| state.stop_signal).unwrap_or(Signal::Term))
    }

    async fn suspend(&mut self, frozen: bool) -> Result<(), Failure> {
        self.runtime.freeze(&self.name, frozen).await?;
        let news = self.check_runtime().await?;
        self.news.extend(news);
        Ok(())
    }
}

impl Instance for ContainerInstance {
    fn next(&mut self) -> BoxFuture<'_, Option<InstanceEvent>> {
        self.next_event().boxed()
    }

    fn stop(&mut self, signal: Option<Signal>, grace_ms: u64) -> BoxFuture<'_, Result<(), Failure>> {
        self.end(signal, grace_ms).boxed()
    }

    fn freeze(&mut self, frozen: bool) -> BoxFuture<'_, Result<(), Failure>> {
        self.suspend(frozen).boxed()
    }

    fn signal(&mut self, signal: Signal) -> BoxFuture<'_, Result<bool, Failure>> {
        async move { self.runtime.signal(&self.name, signal).await }.boxed()
    }
}

impl RunningProcess {
    /// Opens a process that its runtime has reported, if it still exists. The handle is opened before the process is
    /// examined, so that both are of the same process.
    fn of(pid: i32, started_ms: Option<i64>, frozen: bool) -> Option<Self> {
        let handle = open(pid).ok()?;
        let stat = muster_shim::process_identity::stat(pid).filter(|stat| !stat.is_dead())?;
        let started_ms = started_ms.unwrap_or_else(now_ms);
        let process = ProcessId { pid, start_ticks: stat.start_ticks, started_ms };
        // It is no pipe, and nothing is read from it; but it becomes readable in the same way.
        let ends = pipe::Receiver::from_owned_fd_unchecked(handle).ok()?;
        Some(Self { process, frozen, ends })
    }
}

fn open(pid: i32) -> io::Result<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(pid).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok(rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::NONBLOCK)
        // Kernels before 5.10 know no flags.
        .or_else(|_| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()))?)
}

fn ended_unseen(started_ms: Option<i64>) -> InstanceEvent {
    InstanceEvent::Ended(InstanceEnd { restarts: 0, last: InstanceExit::new(Exit::Unknown, started_ms, now_ms()) })
}

/// An end that was not observed.
pub(super) fn unseen() -> InstanceEnd {
    InstanceEnd { restarts: 0, last: InstanceExit::new(Exit::Unknown, None, now_ms()) }
}

//! A running yuno, as its shim reports it.

use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
};

use futures_util::{FutureExt, future::BoxFuture};
use muster_base::clock::now_ms;
use muster_rules::{
    plan::{Failure, InstanceEnd, InstanceExit, ProcessId, ShimReport},
    port_lease::EndpointWiring,
};
use muster_topics::{diagnostic::Diagnostic, signal::Signal, unit::Exit};

use super::super::{
    failure::{from_shim, may_heal},
    log,
};
use super::{
    channel::{ChannelPeer, PendingQuestion},
    signal_number::signal_number,
};
use crate::{
    shim::{ShimHandle, process_end},
    unit::kind::{Instance, InstanceEvent},
};

/// How much of an ended unit's log is reported: what fits a screen beside the rest, and is small in the largest
/// message.
const LAST_LINES: u32 = 10;
const LAST_LINES_MAX_BYTES: u64 = 2 * 1024;

/// A yuno's shim.
pub(super) struct YunoInstance {
    pub(super) shim: ShimHandle,
    /// The shim's folder, with the log.
    pub(super) run: PathBuf,
    pub(super) missing: Vec<Diagnostic>,
    pub(super) line: ChannelPeer,
    pub(super) wiring: EndpointWiring,
    /// Events that were received while another was awaited.
    pub(super) news: VecDeque<InstanceEvent>,
}

impl YunoInstance {
    /// Waits for the next event. Cancel-safe: what is received is handled without a wait.
    pub(super) async fn next_event(&mut self) -> Option<InstanceEvent> {
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
            if let Some(news) = self.handle_event(event) {
                return Some(news);
            }
        }
    }

    /// Sends a signal, and waits for the shim's report of it.
    async fn signal(&mut self, signal: Signal) -> Result<bool, Failure> {
        let signal = signal_number(signal);
        self.shim.send(&muster_shim::ShimRequest::Signal { signal }).await.map_err(from_shim)?;
        loop {
            match self.shim.next().await {
                Some(muster_shim::ShimEvent::Signalled { signal: of, delivered }) if of == signal => {
                    return Ok(delivered);
                }
                Some(event) => {
                    let news = self.handle_event(event);
                    self.news.extend(news);
                }
                None => return Err(may_heal("its shim is gone")),
            }
        }
    }

    fn pass_on(&mut self, call: PendingQuestion) {
        for request in self.line.requests(call) {
            let Err(error) = self.shim.queue(&request) else { continue };
            tracing::debug!(folder = %self.run.display(), %error, hint = Diagnostic::of(&error).hint, "a command could not be sent");
            if let muster_shim::ShimRequest::Say { id, .. } = request {
                self.line.unreachable(&id);
            }
        }
    }

    fn handle_event(&mut self, event: muster_shim::ShimEvent) -> Option<InstanceEvent> {
        match event {
            muster_shim::ShimEvent::State(state) => {
                self.line.state(&state);
                return Some(self.news(&state));
            }
            muster_shim::ShimEvent::Said { line } => {
                if let Err(error) = self.line.handle_line(&line) {
                    tracing::debug!(folder = %self.run.display(), %error, "a yuno sent an unknown message");
                }
            }
            muster_shim::ShimEvent::Unreachable { id } => self.line.unreachable(&id),
            // Of captured programs, and late answers to senders that have ended.
            muster_shim::ShimEvent::Output { .. } | muster_shim::ShimEvent::Signalled { .. } => {}
        }
        None
    }
}

impl YunoInstance {
    fn news(&self, state: &muster_shim::ProgramState) -> InstanceEvent {
        let last = state.last.as_ref().map(|last| from_ended(last, &self.run));
        if state.over {
            let last = last.unwrap_or_else(|| InstanceExit::new(Exit::Unknown, None, now_ms()));
            return InstanceEvent::Ended(InstanceEnd { restarts: state.restarts, last });
        }
        let process = state.main.as_ref().map(|main| ProcessId {
            pid: main.pid,
            start_ticks: main.start_ticks,
            started_ms: main.started_ms,
        });
        InstanceEvent::Told(ShimReport {
            process,
            restarts: state.restarts,
            last,
            ready: state.notified.ready,
            status: state.notified.status.clone(),
            frozen: state.frozen,
            connection: self.line.connection().cloned(),
            unsupported: self.missing.clone(),
            // That is found out by who looks at the disk.
            drift: None,
            wiring: self.wiring.clone(),
        })
    }
}

impl Instance for YunoInstance {
    fn next(&mut self) -> BoxFuture<'_, Option<InstanceEvent>> {
        self.next_event().boxed()
    }

    fn stop(&mut self, signal: Option<Signal>, grace_ms: u64) -> BoxFuture<'_, Result<(), Failure>> {
        let request =
            muster_shim::ShimRequest::Stop { signal: signal_number(signal.unwrap_or(Signal::Term)), grace_ms };
        async move { self.shim.send(&request).await.map_err(from_shim) }.boxed()
    }

    fn freeze(&mut self, frozen: bool) -> BoxFuture<'_, Result<(), Failure>> {
        let request = if frozen { muster_shim::ShimRequest::Freeze } else { muster_shim::ShimRequest::Thaw };
        async move { self.shim.send(&request).await.map_err(from_shim) }.boxed()
    }

    fn signal(&mut self, signal: Signal) -> BoxFuture<'_, Result<bool, Failure>> {
        self.signal(signal).boxed()
    }
}

/// Whether a host that goes down ends programs like this: without a trace, or by the signals of an orderly shutdown.
pub(super) fn ends_with_host(exit: Exit) -> bool {
    const SIGKILL: i32 = 9;
    const SIGTERM: i32 = 15;
    matches!(exit, Exit::Unknown | Exit::Signal(SIGKILL | SIGTERM))
}

/// Returns how it ended; its last lines are read at once, because a next start may add to them.
pub(super) fn from_ended(ended: &muster_shim::ProgramEnd, run: &Path) -> InstanceExit {
    let end = process_end(ended);
    let lines = log::tail(&[run], LAST_LINES, LAST_LINES_MAX_BYTES).unwrap_or_default();
    InstanceExit {
        core_dumped: end.core_dumped,
        oom_killed: end.oom_killed,
        silent: ended.silent,
        start_timed_out: ended.start_timed_out,
        left_some: ended.left_some,
        last_lines: (!lines.is_empty()).then(|| String::from_utf8_lossy(&lines).into_owned()),
        ..InstanceExit::new(end.exit, ended.started_ms, ended.at_ms)
    }
}

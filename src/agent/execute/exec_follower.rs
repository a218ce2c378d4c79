//! Follows one command: reports its output and how it ends.
//!
//! The shim writes output to files. If the command streams its output, pieces are sent as it grows, but none
//! before the command has run for a second or printed more than one piece: the output of a
//! short command then travels with its outcome, in one message.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::Duration,
};

use muster_shim::{
    ProcessExit, ProgramEnd, ShimEvent, ShimRequest,
    files::{self, StateFile},
};
use muster_topics::{
    command::{Exec, Keep},
    name::CommandId,
    outcome::{CHUNK_MAX_BYTES, Status, Stream},
};
use nix::sys::signal::Signal;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    event::{ExecEvent, SentBytes},
    piece::whole_characters,
};
use crate::shim::{AdoptedShim, ShimHandle, Shims, process_end};

/// How long a command runs before its output is told as it comes.
pub(super) const STREAM_AFTER: Duration = Duration::from_secs(1);
/// How long output that fills no piece may wait for more: each piece is a message and a row in the
/// outbox. Somebody who watches hardly sees the difference.
const GATHER: Duration = Duration::from_millis(250);

/// How a cancelled command is asked to end: as `timeout` does it, and killed five seconds later.
const CANCEL: ShimRequest = ShimRequest::Stop { signal: Signal::SIGTERM as i32, grace_ms: 5_000 };

/// Waits between tries to find out what became of a command. What is in the way (no file handle to be had, a
/// disk that sleeps) mostly passes, and `lost` is for good.
const FIND_OUT: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(30)];

/// One stream of a command.
#[derive(Debug)]
struct StreamCursor {
    stream: Stream,
    sent_bytes: u64,
    /// How long its file is, as far as is known.
    len_bytes: u64,
    /// It is told as it comes, and not only at the end.
    streamed: bool,
}

impl StreamCursor {
    fn file_name(&self) -> &'static str {
        match self.stream {
            Stream::Stdout => files::STDOUT,
            Stream::Stderr => files::STDERR,
        }
    }

    fn unsent_bytes(&self) -> u64 {
        self.len_bytes.saturating_sub(self.sent_bytes)
    }

    /// What comes next, at most a piece. It is read from the page cache, where the shim has just put
    /// it, and so not worth another thread.
    fn next_piece(&self, folder: &Path) -> io::Result<Vec<u8>> {
        let mut piece = vec![0; CHUNK_MAX_BYTES];
        let mut filled = 0;
        match File::open(folder.join(self.file_name())) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
            Ok(file) => {
                while filled < piece.len() {
                    match file.read_at(&mut piece[filled..], self.sent_bytes + filled as u64) {
                        Ok(0) => break,
                        Ok(len) => filled += len,
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        piece.truncate(filled);
        Ok(piece)
    }
}

/// Nobody listens any more: the agent is about to end.
struct ReceiverGone;

/// Follows one command.
#[derive(Debug)]
pub(super) struct ExecFollower {
    id: CommandId,
    folder: PathBuf,
    cursors: [StreamCursor; 2],
    /// From when on output is told as it comes.
    stream_from: Instant,
    /// When what there is will be told, even if it fills no piece.
    tell_at: Option<Instant>,
    /// Somebody wants it to end.
    cancelled: CancellationToken,
}

impl ExecFollower {
    pub(super) fn new(id: CommandId, folder: PathBuf, exec: &Exec, sent: SentBytes) -> Self {
        let cursor = |stream, sent_bytes| {
            let streamed = exec.keep(stream) == Keep::Stream;
            StreamCursor { stream, sent_bytes, len_bytes: sent_bytes, streamed }
        };
        let cursors = [cursor(Stream::Stdout, sent.stdout_bytes), cursor(Stream::Stderr, sent.stderr_bytes)];
        let delay = if sent == SentBytes::default() { STREAM_AFTER } else { Duration::ZERO };
        let cancelled = CancellationToken::new();
        Self { id, folder, cursors, stream_from: Instant::now() + delay, tell_at: None, cancelled }
    }

    /// Follows until the end, of what was `found`, or of what is there.
    pub(super) async fn run(
        mut self,
        shims: &Shims,
        found: Option<AdoptedShim>,
        events: &mpsc::Sender<ExecEvent>,
        cancelled: CancellationToken,
    ) {
        self.cancelled = cancelled;
        let ended = match found {
            Some(found) => self.follow(shims, found, events).await,
            None => match self.adopt(shims).await {
                Some(found) => self.follow(shims, found, events).await,
                None => Ok(None),
            },
        };
        if let Ok(ended) = ended {
            let _ = self.tell_end(ended, events).await;
        }
    }

    /// Follows what was found, until it is known how it ended, or that it cannot be known.
    async fn follow(
        &mut self,
        shims: &Shims,
        mut found: AdoptedShim,
        events: &mpsc::Sender<ExecEvent>,
    ) -> Result<Option<ProgramEnd>, ReceiverGone> {
        loop {
            match found {
                AdoptedShim::Nothing => return Ok(None),
                AdoptedShim::Ended(ended) => return Ok(Some(ended)),
                AdoptedShim::Alive(shim) => {
                    if let Some(ended) = self.follow_shim(shim, events).await? {
                        return Ok(Some(ended));
                    }
                }
            }
            // The shim went away before it told the end. What runs, runs on.
            match self.adopt(shims).await {
                Some(next) => found = next,
                None => return Ok(None),
            }
        }
    }

    async fn adopt(&self, shims: &Shims) -> Option<AdoptedShim> {
        for wait in FIND_OUT {
            match shims.adopt(&self.folder).await {
                Ok(found) => return Some(found),
                Err(error) => tracing::warn!(command.id = %self.id, %error, "a command cannot be found again, yet"),
            }
            sleep(wait).await;
        }
        shims
            .adopt(&self.folder)
            .await
            .inspect_err(|error| {
                tracing::error!(command.id = %self.id, %error, "what became of the command cannot be found out");
            })
            .ok()
    }

    /// Follows what a shim tells; nothing if the shim is gone.
    async fn follow_shim(
        &mut self,
        mut shim: ShimHandle,
        events: &mpsc::Sender<ExecEvent>,
    ) -> Result<Option<ProgramEnd>, ReceiverGone> {
        // Each shim has to hear it: the one before may have gone before it did.
        let mut asked = false;
        loop {
            let event = tokio::select! {
                // Cancel-safe: it says so.
                event = shim.next() => event,
                // Cancel-safe: it stays cancelled.
                () = self.cancelled.cancelled(), if !asked => {
                    asked = true;
                    // A shim that is gone is found out about next.
                    let _ = shim.send(&CANCEL).await;
                    continue;
                }
                // Cancel-safe: a moment in time.
                () = sleep_until(self.tell_at.unwrap_or_else(Instant::now)), if self.tell_at.is_some() => {
                    self.tell_at = None;
                    self.tell_pieces(0, events).await?;
                    continue;
                }
            };
            match event {
                None => return Ok(None),
                Some(ShimEvent::State(state)) if state.over => return Ok(state.last),
                // What a program says on a channel a command has no channel for.
                Some(
                    ShimEvent::State(_)
                    | ShimEvent::Signalled { .. }
                    | ShimEvent::Said { .. }
                    | ShimEvent::Unreachable { .. },
                ) => {}
                Some(ShimEvent::Output { stderr, len_bytes }) => {
                    let cursor = &mut self.cursors[usize::from(stderr)];
                    cursor.len_bytes = cursor.len_bytes.max(len_bytes);
                    self.grown(events).await?;
                }
            }
        }
    }

    /// There is more output: whole pieces of what is streamed are told at once, the rest in a moment.
    async fn grown(&mut self, events: &mpsc::Sender<ExecEvent>) -> Result<(), ReceiverGone> {
        self.tell_pieces(CHUNK_MAX_BYTES as u64, events).await?;
        if self.tell_at.is_none() && self.cursors.iter().any(|cursor| cursor.streamed && cursor.unsent_bytes() > 0) {
            self.tell_at = Some((Instant::now() + GATHER).max(self.stream_from));
        }
        Ok(())
    }

    /// Tells pieces for as long as there is more than `keep_bytes` untold.
    async fn tell_pieces(&mut self, keep_bytes: u64, events: &mpsc::Sender<ExecEvent>) -> Result<(), ReceiverGone> {
        for cursor in self.cursors.iter_mut().filter(|cursor| cursor.streamed) {
            while cursor.unsent_bytes() > keep_bytes {
                let mut bytes = cursor.next_piece(&self.folder).unwrap_or_default();
                bytes.truncate(whole_characters(&bytes));
                if bytes.is_empty() {
                    // The beginning of a character, or a file that cannot be read, or not any more.
                    break;
                }
                let (stream, offset_bytes) = (cursor.stream, cursor.sent_bytes);
                cursor.sent_bytes += bytes.len() as u64;
                // Bounded: while nobody takes this, nothing more is read.
                events
                    .send(ExecEvent::Output { id: self.id, stream, offset_bytes, bytes })
                    .await
                    .map_err(|_| ReceiverGone)?;
            }
        }
        Ok(())
    }

    /// Tells how it ended, and all output that was not told yet.
    async fn tell_end(
        mut self,
        ended: Option<ProgramEnd>,
        events: &mpsc::Sender<ExecEvent>,
    ) -> Result<(), ReceiverGone> {
        for cursor in &mut self.cursors {
            let path = self.folder.join(cursor.file_name());
            cursor.len_bytes = path.metadata().map_or(0, |metadata| metadata.len());
            // All of it is there now.
            cursor.streamed = true;
        }
        self.tell_pieces(CHUNK_MAX_BYTES as u64, events).await?;
        let [stdout, stderr] =
            self.cursors.each_ref().map(|cursor| cursor.next_piece(&self.folder).unwrap_or_default());
        let dropped_bytes = match files::read_state(&self.folder) {
            Ok(StateFile::State(state)) => state.dropped_bytes,
            Ok(StateFile::Nothing | StateFile::Damaged) | Err(_) => (0, 0),
        };
        let event = ExecEvent::Ended {
            id: self.id,
            status: ended.as_ref().map_or(Status::Lost, status),
            started_ms: ended.and_then(|ended| ended.started_ms),
            rest: (stdout, stderr),
            dropped_bytes,
        };
        events.send(event).await.map_err(|_| ReceiverGone)
    }
}

/// How a command ended, in the words of its outcome.
fn status(ended: &ProgramEnd) -> Status {
    match ended.exit {
        _ if ended.timed_out => Status::TimedOut,
        ProcessExit::Unknown => Status::Lost,
        // However it took that.
        _ if ended.stopped => Status::Cancelled,
        ProcessExit::Code(_) | ProcessExit::Signal(_) => Status::Exited(process_end(ended)),
    }
}

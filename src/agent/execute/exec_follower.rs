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
    diagnostic::Diagnostic,
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

/// How long a command runs before its output is streamed.
pub(super) const STREAM_AFTER: Duration = Duration::from_secs(1);
/// How long output that fills no piece may wait for more: each piece is a message and a row in the outbox, and a person
/// hardly notices the delay.
const GATHER: Duration = Duration::from_millis(250);

/// How a cancelled command is stopped: with SIGTERM, and SIGKILL five seconds later.
const CANCEL: ShimRequest = ShimRequest::Stop { signal: Signal::SIGTERM as i32, grace_ms: 5_000 };

/// Delays between attempts to find out what became of a command. Obstacles (no free file descriptor, a slow disk)
/// mostly pass, and `lost` is final.
const FIND_OUT: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(30)];

/// One stream of a command.
#[derive(Debug)]
struct StreamCursor {
    stream: Stream,
    sent_bytes: u64,
    /// The length of its file, as far as known.
    len_bytes: u64,
    /// Whether it is streamed, rather than reported at the end.
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

    /// Reads the next piece. It is in the page cache, where the shim has just put it, so this needs no other thread.
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

/// The receiver has ended: the agent is about to end.
struct ReceiverGone;

/// Follows one command.
#[derive(Debug)]
pub(super) struct ExecFollower {
    id: CommandId,
    folder: PathBuf,
    cursors: [StreamCursor; 2],
    /// When output starts to be streamed.
    stream_from: Instant,
    /// When output that fills no piece will be sent.
    tell_at: Option<Instant>,
    /// Cancelled when the command is to end.
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

    /// Follows the command to its end, from what was `found`, or from its folder.
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
            let _ = self.send_end(ended, events).await;
        }
    }

    /// Follows what was found, until it is known how the command ended, or that it cannot be known.
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
            // The shim ended before it reported the program's end. The program continues.
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
                Err(error) => {
                    tracing::warn!(command.id = %self.id, %error, hint = Diagnostic::of(&error).hint, "a running command cannot be found yet");
                }
            }
            sleep(wait).await;
        }
        shims
            .adopt(&self.folder)
            .await
            .inspect_err(|error| {
                tracing::error!(command.id = %self.id, %error, hint = Diagnostic::of(error).hint, "the outcome of the command is unknown");
            })
            .ok()
    }

    /// Follows the events of a shim; returns `None` if it has ended.
    async fn follow_shim(
        &mut self,
        mut shim: ShimHandle,
        events: &mpsc::Sender<ExecEvent>,
    ) -> Result<Option<ProgramEnd>, ReceiverGone> {
        // Each shim must get the request: the one before may have ended without it.
        let mut asked = false;
        loop {
            let event = tokio::select! {
                // Cancel-safe by its contract.
                event = shim.next() => event,
                // Cancel-safe: the token stays cancelled.
                () = self.cancelled.cancelled(), if !asked => {
                    asked = true;
                    // A shim that has ended is found out next.
                    let _ = shim.send(&CANCEL).await;
                    continue;
                }
                // Cancel-safe: a point in time.
                () = sleep_until(self.tell_at.unwrap_or_else(Instant::now)), if self.tell_at.is_some() => {
                    self.tell_at = None;
                    self.send_pieces(0, events).await?;
                    continue;
                }
            };
            match event {
                None => return Ok(None),
                Some(ShimEvent::State(state)) if state.over => return Ok(state.last),
                // Events of a channel, which commands do not have.
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

    /// Handles new output: whole pieces of a stream are sent at once, the rest a moment later.
    async fn grown(&mut self, events: &mpsc::Sender<ExecEvent>) -> Result<(), ReceiverGone> {
        self.send_pieces(CHUNK_MAX_BYTES as u64, events).await?;
        if self.tell_at.is_none() && self.cursors.iter().any(|cursor| cursor.streamed && cursor.unsent_bytes() > 0) {
            self.tell_at = Some((Instant::now() + GATHER).max(self.stream_from));
        }
        Ok(())
    }

    /// Sends pieces as long as more than `keep_bytes` are unsent.
    async fn send_pieces(&mut self, keep_bytes: u64, events: &mpsc::Sender<ExecEvent>) -> Result<(), ReceiverGone> {
        for cursor in self.cursors.iter_mut().filter(|cursor| cursor.streamed) {
            while cursor.unsent_bytes() > keep_bytes {
                let mut bytes = cursor.next_piece(&self.folder).unwrap_or_default();
                bytes.truncate(whole_characters(&bytes));
                if bytes.is_empty() {
                    // The beginning of a character, or the file is unreadable.
                    break;
                }
                let (stream, offset_bytes) = (cursor.stream, cursor.sent_bytes);
                cursor.sent_bytes += bytes.len() as u64;
                // Bounded: while the receiver is busy, nothing more is read.
                events
                    .send(ExecEvent::Output { id: self.id, stream, offset_bytes, bytes })
                    .await
                    .map_err(|_| ReceiverGone)?;
            }
        }
        Ok(())
    }

    /// Reports how it ended, with all unsent output.
    async fn send_end(
        mut self,
        ended: Option<ProgramEnd>,
        events: &mpsc::Sender<ExecEvent>,
    ) -> Result<(), ReceiverGone> {
        for cursor in &mut self.cursors {
            let path = self.folder.join(cursor.file_name());
            cursor.len_bytes = path.metadata().map_or(0, |metadata| metadata.len());
            // The output is complete now.
            cursor.streamed = true;
        }
        self.send_pieces(CHUNK_MAX_BYTES as u64, events).await?;
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

/// Returns the status of an outcome for the end of a program.
fn status(ended: &ProgramEnd) -> Status {
    match ended.exit {
        _ if ended.timed_out => Status::TimedOut,
        ProcessExit::Unknown => Status::Lost,
        // Whatever signal that took.
        _ if ended.stopped => Status::Cancelled,
        ProcessExit::Code(_) | ProcessExit::Signal(_) => Status::Exited(process_end(ended)),
    }
}

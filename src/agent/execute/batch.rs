//! Runs several programs of one command, one after the other.
//!
//! Each step has a folder, as a command has, below that of the command. The folder records how the step
//! ended, or a file beside it does if the step never ran. So after a restart the agent reports the batch again
//! from its beginning (the console ignores what it has), and continues where it stopped.
//!
//! **Invariant: a step is launched at most once**: only in a folder that was just created for it and, after a restart
//! of the agent, only if the host has not rebooted meanwhile. After a reboot a missing folder proves nothing.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use muster_base::{
    clock::now_ms,
    files::{PRIVATE_FOLDER, SECRET_MODE, make_folder, write_atomically},
};
use muster_rules::CommandRefusal;
use muster_shim::process_identity;
use muster_topics::{
    Millis,
    command::{Batch, Exec},
    name::CommandId,
    outcome::{CHUNK_MAX_BYTES, Status, StepOutcome, Stream},
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    event::{ExecEvent, SentBytes},
    exec_follower::{ExecFollower, STREAM_AFTER},
    launch::{LaunchResult, Launcher},
    piece::whole_characters,
};

/// The file that names the boot in which a batch began.
const BOOT: &str = "boot";
/// The capacity for output of a step that is not handled yet: it is handled at once, unless the outbox is full.
const EVENTS: usize = 4;
/// The longest text of a refusal in an outcome whose steps all have to fit into one message.
const MESSAGE_MAX_CHARS: usize = 200;

/// Runs one batch.
pub(super) struct BatchRunner {
    pub(super) id: CommandId,
    pub(super) folder: PathBuf,
    pub(super) launcher: Launcher,
    pub(super) cancelled: CancellationToken,
    pub(super) told: BatchOutput,
}

impl BatchRunner {
    /// Runs it to its end, or to the end of the agent. `again` if an earlier run of the agent began it.
    pub(super) async fn run(mut self, batch: &Batch, again: bool) {
        let began = if again { self.continues() } else { self.begin() };
        let goes_on = match began {
            Ok(goes_on) => goes_on,
            Err(error) => {
                let reason = format!("{}: {error}", self.folder.display());
                let status = if again { Status::Lost } else { Status::Failed(reason.into()) };
                return self.told.end(status, None, (0, 0)).await;
            }
        };
        let (mut steps, mut started_ms, mut dropped) = (Vec::new(), None, (0, 0));
        for (index, exec) in batch.steps.iter().enumerate() {
            if self.told.is_deaf {
                return;
            }
            let step = self.step(index, exec, goes_on).await;
            started_ms = started_ms.or(step.started_ms);
            (dropped.0, dropped.1) = (dropped.0 + step.stdout_dropped_bytes, dropped.1 + step.stderr_dropped_bytes);
            let success = step.status.is_success();
            // After a step whose result is unknown, or a cancellation, nothing may follow.
            let is_over = matches!(step.status, Status::Lost | Status::Cancelled);
            steps.push(step);
            if is_over || !success && !batch.keep_going {
                break;
            }
        }
        self.told.end(Status::Batch { steps }, started_ms, dropped).await;
    }

    /// Creates the folder of the batch.
    fn begin(&self) -> io::Result<bool> {
        make_folder(&self.folder, PRIVATE_FOLDER)?;
        write_atomically(&self.folder.join(BOOT), process_identity::boot_id()?.as_bytes(), SECRET_MODE)?;
        Ok(true)
    }

    /// Whether further steps may begin.
    fn continues(&self) -> io::Result<bool> {
        Ok(fs::read_to_string(self.folder.join(BOOT))? == process_identity::boot_id()?)
    }

    /// Runs a step to its end, or reports one that has ended.
    async fn step(&mut self, index: usize, exec: &Exec, goes_on: bool) -> StepOutcome {
        let folder = self.folder.join(index.to_string());
        let result = self.folder.join(format!("{index}.json"));
        if let Some(step) = fs::read(&result).ok().and_then(|json| serde_json::from_slice(&json).ok()) {
            return step;
        }
        let found = match folder.try_exists() {
            Ok(true) => None,
            Ok(false) if self.cancelled.is_cancelled() => return StepOutcome::of(Status::Cancelled, now_ms()),
            Ok(false) if goes_on => {
                let name = format!("{}-{index}", self.id);
                match self.launcher.begin(&folder, &name, exec).await {
                    Ok(LaunchResult::Runs(found)) => Some(found),
                    Ok(LaunchResult::Over(status)) => return self.keep(&result, status),
                    Err(refusal) => return self.keep(&result, shortened(refusal).into()),
                }
            }
            Ok(false) | Err(_) => return StepOutcome::of(Status::Lost, now_ms()),
        };
        let (sender, mut events) = mpsc::channel(EVENTS);
        let follower = ExecFollower::new(self.id, folder, exec, SentBytes::default());
        let (shims, cancelled) = (self.launcher.shims.clone(), self.cancelled.clone());
        let follow = async move { follower.run(&shims, found, &sender, cancelled).await };
        let ((), step) = tokio::join!(follow, self.told.step(&mut events));
        step
    }

    /// Stores the result of a step that has no folder of its own.
    fn keep(&self, result: &Path, status: Status) -> StepOutcome {
        let step = StepOutcome::of(status, now_ms());
        // If it cannot be stored, a later run of the agent tries this step again, of which nothing had begun.
        let _ = serde_json::to_vec(&step).map(|json| write_atomically(result, &json, SECRET_MODE));
        step
    }
}

fn shortened(refusal: CommandRefusal) -> CommandRefusal {
    let cut = |text: String| match text.char_indices().nth(MESSAGE_MAX_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    };
    CommandRefusal { diagnostic: refusal.diagnostic.map(cut), ..refusal }
}

/// The output of a batch: that of all steps as one, from the offset that was reported before.
pub(super) struct BatchOutput {
    id: CommandId,
    events: mpsc::Sender<ExecEvent>,
    streams: [StreamOutput; 2],
    /// When output that fills no piece is reported.
    tell_at: Instant,
    is_deaf: bool,
}

/// One stream of a batch.
#[derive(Debug, Default)]
struct StreamOutput {
    /// The offset at which the step begins.
    step_at_bytes: u64,
    /// The length of the step's output.
    step_bytes: u64,
    /// The offset up to which output was reported.
    sent_bytes: u64,
    /// The output after that.
    rest: Vec<u8>,
}

const STREAMS: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

impl StreamOutput {
    /// Adds output of a step, from an offset within the step; what was reported before is skipped.
    fn take(&mut self, offset_bytes: u64, bytes: &[u8]) {
        self.step_bytes = self.step_bytes.max(offset_bytes + bytes.len() as u64);
        let at_bytes = self.step_at_bytes + offset_bytes;
        let known_bytes = self.sent_bytes + self.rest.len() as u64;
        let known = usize::try_from(known_bytes.saturating_sub(at_bytes)).unwrap_or(usize::MAX);
        self.rest.extend(bytes.get(known..).unwrap_or_default());
    }

    /// The length of the next piece.
    fn whole(&self) -> usize {
        whole_characters(&self.rest[..self.rest.len().min(CHUNK_MAX_BYTES)])
    }

    /// Whether there is a piece, possibly a short one.
    fn waits(&self) -> bool {
        self.whole() > 0
    }

    /// Returns the next piece: a whole one, or anything at all if it may be short.
    fn piece(&mut self, may_be_short: bool) -> Option<(u64, Vec<u8>)> {
        if self.rest.len() <= CHUNK_MAX_BYTES && !may_be_short || !self.waits() {
            return None;
        }
        let whole = self.whole();
        let bytes: Vec<u8> = self.rest.drain(..whole).collect();
        let offset_bytes = self.sent_bytes;
        self.sent_bytes += bytes.len() as u64;
        Some((offset_bytes, bytes))
    }
}

impl BatchOutput {
    pub(super) fn new(id: CommandId, events: mpsc::Sender<ExecEvent>, sent: SentBytes) -> Self {
        let stream = |sent_bytes| StreamOutput { sent_bytes, ..StreamOutput::default() };
        let streams = [stream(sent.stdout_bytes), stream(sent.stderr_bytes)];
        Self { id, events, streams, tell_at: Instant::now() + STREAM_AFTER, is_deaf: false }
    }

    /// Reports the output of one step, and returns how it ended.
    async fn step(&mut self, events: &mut mpsc::Receiver<ExecEvent>) -> StepOutcome {
        for stream in &mut self.streams {
            stream.step_at_bytes += std::mem::take(&mut stream.step_bytes);
        }
        loop {
            let waits = self.streams.iter().any(StreamOutput::waits);
            let event = tokio::select! {
                // Cancel-safe: an event is received or stays in the channel.
                event = events.recv() => event,
                // Cancel-safe: a point in time.
                () = sleep_until(self.tell_at), if waits => {
                    self.tell(true).await;
                    continue;
                }
            };
            match event {
                Some(ExecEvent::Output { stream, offset_bytes, bytes, .. }) => {
                    // A step reports at once what is worth it.
                    self.streams[usize::from(stream == Stream::Stderr)].take(offset_bytes, &bytes);
                    self.tell(true).await;
                }
                Some(ExecEvent::Ended { status, started_ms, rest, dropped_bytes, .. }) => {
                    return self.step_ended(status, started_ms, [rest.0, rest.1], dropped_bytes).await;
                }
                None => {
                    self.is_deaf = true;
                    return StepOutcome::of(Status::Lost, now_ms());
                }
            }
        }
    }

    async fn step_ended(
        &mut self,
        status: Status,
        started_ms: Option<Millis>,
        rest: [Vec<u8>; 2],
        dropped_bytes: (u64, u64),
    ) -> StepOutcome {
        for (stream, rest) in self.streams.iter_mut().zip(rest) {
            stream.take(stream.step_bytes, &rest);
        }
        self.tell(false).await;
        StepOutcome {
            started_ms,
            stdout_bytes: self.streams[0].step_bytes,
            stderr_bytes: self.streams[1].step_bytes,
            stdout_dropped_bytes: dropped_bytes.0,
            stderr_dropped_bytes: dropped_bytes.1,
            ..StepOutcome::of(status, now_ms())
        }
    }

    /// Sends pieces.
    async fn tell(&mut self, may_be_short: bool) {
        for (of, stream) in STREAMS.into_iter().zip(&mut self.streams) {
            while let Some((offset_bytes, bytes)) = stream.piece(may_be_short) {
                let event = ExecEvent::Output { id: self.id, stream: of, offset_bytes, bytes };
                // Bounded: while the receiver is busy, nothing more is read.
                self.is_deaf |= self.events.send(event).await.is_err();
            }
        }
    }

    /// Reports the end.
    async fn end(mut self, status: Status, started_ms: Option<Millis>, dropped_bytes: (u64, u64)) {
        self.tell(false).await;
        let [stdout, stderr] = self.streams.map(|stream| stream.rest);
        let event = ExecEvent::Ended { id: self.id, status, started_ms, rest: (stdout, stderr), dropped_bytes };
        // The receiver has ended only if the agent is about to end.
        let _ = self.events.send(event).await;
    }
}

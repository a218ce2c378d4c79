//! Following the log of a unit for whoever looks: its last lines, and then what comes, as a command's output.
//!
//! It takes the road of every output: into the outbox, and with that to the console, whatever becomes of the line
//! between them. So it has a bound in time and in bytes, and what waits in the outbox holds it back.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use muster_topics::{
    command::LogView,
    name::{CommandId, UnitName},
    outcome::{CHUNK_MAX_BYTES, Status, Stream},
};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    execute::ExecEvent,
    unit::{LogFrom, Part, Units},
};
use crate::{clock::now_ms, rules::Refusal};

/// How often is looked whether there is more: somebody who watches hardly sees it.
const LOOK: Duration = Duration::from_millis(250);

/// The most that one command tells: as much as the console keeps of one.
const TOLD_MAX_BYTES: u64 = 16 * 1024 * 1024;

/// The most logs that are followed at once: each is looked at four times a second.
const FOLLOWED_MAX: usize = 32;

/// Commands that can be cancelled while they work.
#[derive(Clone, Debug, Default)]
pub(super) struct Cancels(Arc<Mutex<BTreeMap<CommandId, CancellationToken>>>);

impl Cancels {
    /// Says that a command can be cancelled from now on; nothing if there are `max` such commands already.
    pub(super) fn enter(&self, id: CommandId, max: usize) -> Option<CancellationToken> {
        let mut tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if tokens.len() >= max {
            return None;
        }
        let token = CancellationToken::new();
        tokens.insert(id, token.clone());
        Some(token)
    }

    /// It is over.
    pub(super) fn leave(&self, id: CommandId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// Cancels a command, if it works.
    pub(super) fn cancel(&self, id: CommandId) {
        let tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.get(&id).into_iter().for_each(CancellationToken::cancel);
    }
}

/// What is to be followed, for whom.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) id: CommandId,
    pub(super) unit: UnitName,
    pub(super) lines: u32,
    pub(super) view: LogView,
    pub(super) for_ms: u64,
}

/// Follows until it is cancelled, the time is over, or enough was told. Events follow, the last of them `Ended`.
///
/// # Errors
/// If there is no such log, or too many are followed already; no event came then.
pub(super) async fn run(
    wanted: Wanted,
    units: Units,
    cancels: Cancels,
    events: mpsc::Sender<ExecEvent>,
) -> Result<(), Refusal> {
    let Some(token) = cancels.enter(wanted.id, FOLLOWED_MAX) else {
        let message = format!("{FOLLOWED_MAX} logs are followed already, as many as may be at once");
        return Err(Refusal::new(muster_topics::outcome::RefusalCode::Busy, message));
    };
    let result = follow(&wanted, &units, &token, &events).await;
    cancels.leave(wanted.id);
    result
}

async fn follow(
    wanted: &Wanted,
    units: &Units,
    token: &CancellationToken,
    events: &mpsc::Sender<ExecEvent>,
) -> Result<(), Refusal> {
    let (id, started_ms) = (wanted.id, Some(now_ms()));
    let until = Instant::now() + Duration::from_millis(wanted.for_ms);
    let mut told_bytes = [0, 0];
    let mut part = units.log(&wanted.unit, LogFrom::Last(wanted.lines), wanted.view).await?;
    let mut last_words = Vec::new();
    loop {
        tell(id, &part, &mut told_bytes, events).await;
        if told_bytes[0] >= TOLD_MAX_BYTES {
            last_words = format!(
                "the log goes on; {TOLD_MAX_BYTES} bytes of it were told, as many as one command may. Follow it again for more\n"
            )
            .into();
            break;
        }
        if part.text.is_empty() {
            tokio::select! {
                () = token.cancelled() => break,
                () = tokio::time::sleep_until(until) => break,
                () = tokio::time::sleep(LOOK) => {}
            }
        } else if token.is_cancelled() || Instant::now() >= until {
            break;
        }
        match units.log(&wanted.unit, LogFrom::Place(part.place), wanted.view).await {
            Ok(next) => part = next,
            Err(refusal) => {
                last_words = format!("{}\n", refusal.message).into();
                break;
            }
        }
    }
    let rest = (Vec::new(), last_words);
    let ended = ExecEvent::Ended { id, status: Status::Completed, started_ms, rest, dropped_bytes: (0, 0) };
    let _ = events.send(ended).await;
    Ok(())
}

/// Tells a part of the log, and before it what there is to know of that.
async fn tell(id: CommandId, part: &Part, told_bytes: &mut [u64; 2], events: &mpsc::Sender<ExecEvent>) {
    let words = part.words();
    for (index, stream, bytes) in [(1, Stream::Stderr, &words), (0, Stream::Stdout, &part.text)] {
        for piece in bytes.chunks(CHUNK_MAX_BYTES) {
            let event = ExecEvent::Output { id, stream, offset_bytes: told_bytes[index], bytes: piece.to_vec() };
            told_bytes[index] += piece.len() as u64;
            // Nobody listens any more only if the agent is about to end.
            let _ = events.send(event).await;
        }
    }
}

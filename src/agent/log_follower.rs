//! Follows the log of a unit: sends its last lines, and then new ones, as the output of a command.
//!
//! It goes through the outbox as all output does, and so reaches the console however often the connection
//! breaks. It is limited in time and in bytes, and pauses while the outbox is full.

use std::time::Duration;

use muster_base::clock::now_ms;
use muster_rules::CommandRefusal;
use muster_topics::{
    command::LogView,
    name::{CommandId, UnitName},
    outcome::{CHUNK_MAX_BYTES, Status, Stream},
};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    execute::event::ExecEvent,
    unit::{Units, kind::FollowFrom, log::LogPart},
};

pub(super) use super::cancel_tokens::CancelTokens;

/// How often the log is polled: a person hardly notices the delay.
const LOOK: Duration = Duration::from_millis(250);

/// The most bytes that one command reports: as much as the console keeps of one.
const TOLD_MAX_BYTES: u64 = 16 * 1024 * 1024;

/// The most logs that are followed at once: each is polled four times a second.
const FOLLOWED_MAX: usize = 32;

/// Which log to follow, and for which command.
#[derive(Clone, Debug)]
pub(super) struct FollowRequest {
    pub(super) id: CommandId,
    pub(super) unit: UnitName,
    pub(super) lines: u32,
    pub(super) view: LogView,
    pub(super) for_ms: u64,
}

/// Follows the log until it is cancelled, the time is over, or the limit is reached. Events follow, the last of them
/// `Ended`.
///
/// # Errors
/// If there is no such log, or too many are followed already; no event was sent then.
pub(super) async fn run(
    wanted: FollowRequest,
    units: Units,
    cancels: CancelTokens,
    events: mpsc::Sender<ExecEvent>,
) -> Result<(), CommandRefusal> {
    let Some(token) = cancels.enter(wanted.id, FOLLOWED_MAX) else {
        let message = format!("{FOLLOWED_MAX} logs are being followed, the maximum");
        return Err(CommandRefusal::new(muster_topics::outcome::RefusalCode::Busy, message));
    };
    let result = follow(&wanted, &units, &token, &events).await;
    cancels.leave(wanted.id);
    result
}

async fn follow(
    wanted: &FollowRequest,
    units: &Units,
    token: &CancellationToken,
    events: &mpsc::Sender<ExecEvent>,
) -> Result<(), CommandRefusal> {
    let (id, started_ms) = (wanted.id, Some(now_ms()));
    let until = Instant::now() + Duration::from_millis(wanted.for_ms);
    let mut told_bytes = [0, 0];
    let mut part = units.log(&wanted.unit, FollowFrom::Last(wanted.lines), wanted.view).await?;
    let mut last_words = Vec::new();
    loop {
        tell(id, &part, &mut told_bytes, events).await;
        if told_bytes[0] >= TOLD_MAX_BYTES {
            last_words = format!(
                "the log continues; {TOLD_MAX_BYTES} bytes were sent, the maximum of one command. Follow it again for more\n"
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
        match units.log(&wanted.unit, FollowFrom::Place(part.place), wanted.view).await {
            Ok(next) => part = next,
            Err(refusal) => {
                last_words = format!("{:#}\n", refusal.diagnostic).into();
                break;
            }
        }
    }
    let rest = (Vec::new(), last_words);
    let ended = ExecEvent::Ended { id, status: Status::Completed, started_ms, rest, dropped_bytes: (0, 0) };
    let _ = events.send(ended).await;
    Ok(())
}

/// Sends a part of the log, after a note about it if there is one.
async fn tell(id: CommandId, part: &LogPart, told_bytes: &mut [u64; 2], events: &mpsc::Sender<ExecEvent>) {
    let words = part.words();
    for (index, stream, bytes) in [(1, Stream::Stderr, &words), (0, Stream::Stdout, &part.text)] {
        for piece in bytes.chunks(CHUNK_MAX_BYTES) {
            let event = ExecEvent::Output { id, stream, offset_bytes: told_bytes[index], bytes: piece.to_vec() };
            told_bytes[index] += piece.len() as u64;
            // The receiver has ended only if the agent is about to end.
            let _ = events.send(event).await;
        }
    }
}

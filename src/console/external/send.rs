//! The task that sends the backlog of one external store.
//!
//! It reads as much as one request may have, sends it, and removes it from the queue. After a temporary failure it stays in the queue,
//! and the server is probed with growing delays before it is sent again. Refused lines go to
//! the quarantine.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use muster_base::{chance, clock::now_ms};
use muster_rules::backoff::ExponentialGrowth;
use tokio_util::sync::CancellationToken;

use super::{
    ExternalStore,
    lines::LINES_MAX,
    locked,
    queue::QueuedPiece,
    remote_error::{SendError, SendFate},
};

/// Delays between failed attempts. At most a minute: lines should not wait much longer than the outage.
const RETRY: ExponentialGrowth = ExponentialGrowth { first_ms: 1_000, max_ms: 60_000 };
/// How long to collect lines, so that a store gets one request a second and not one for every batch.
const GATHER: Duration = Duration::from_secs(1);
/// The pause after a failure of the queue itself.
const DISK_PAUSE: Duration = Duration::from_secs(5);

/// Sends the queue of a store until the console stops. An interrupted request is repeated by the next console.
pub(crate) async fn run(store: Arc<ExternalStore>, shutdown: CancellationToken) {
    tokio::select! {
        () = feed(&store) => (),
        () = shutdown.cancelled() => (),
    }
}

async fn feed(store: &Arc<ExternalStore>) {
    if let Err(failed) = store.remote.probe().await
        && is_away(&failed)
    {
        store.note(&failed);
        tracing::warn!(store = %store.name, reason = %failed, "an external store cannot be reached; its queue waits");
    }
    let mut attempts = 0;
    loop {
        let waiting = store.waiting();
        if waiting.lines == 0 {
            store.more.notified().await;
            tokio::time::sleep(GATHER).await;
            continue;
        }
        match store.send_some().await {
            Ok(Ok(())) => {
                attempts = 0;
                // Less than a full request waits for more.
                if waiting.lines < LINES_MAX {
                    tokio::time::sleep(GATHER).await;
                }
            }
            Ok(Err(failed)) => until_it_is_back(store, failed, &mut attempts).await,
            Err(error) => {
                tracing::error!(store = %store.name, %error, "the queue of an external store cannot be read or written");
                locked(&store.told).error = Some((now_ms(), format!("its queue: {error}")));
                tokio::time::sleep(DISK_PAUSE).await;
            }
        }
    }
}

/// Waits, ever longer, until a server that has failed responds to a probe. One that responds and stores nothing is
/// asked no more often than one that is down.
async fn until_it_is_back(store: &ExternalStore, mut failed: SendError, attempts: &mut u32) {
    loop {
        let wait_ms = RETRY.jittered_ms(*attempts, chance::random());
        if store.note(&failed) {
            tracing::warn!(store = %store.name, reason = %failed, "an external store does not accept a request, which is repeated");
        } else {
            tracing::debug!(store = %store.name, reason = %failed, attempts, wait_ms, "an external store still cannot be reached");
        }
        *attempts = attempts.saturating_add(1);
        tokio::time::sleep(Duration::from_millis(wait_ms.unsigned_abs())).await;
        match store.remote.probe().await {
            Err(again) if is_away(&again) => failed = again,
            _ => return,
        }
    }
}

/// Whether a server with this response to a probe would not accept lines. Not every kind has the path of the probe.
fn is_away(failed: &SendError) -> bool {
    match failed {
        SendError::Unreachable(_) => true,
        SendError::Answer { status, .. } => matches!(status, 408 | 429 | 500..=599),
    }
}

impl ExternalStore {
    /// Sends one request. The outer error is the disk's, the inner one the server's.
    async fn send_some(self: &Arc<Self>) -> io::Result<Result<(), SendError>> {
        let own = Arc::clone(self);
        let taken =
            tokio::task::spawn_blocking(move || locked(&own.queue).take()).await.map_err(io::Error::other)??;
        let Some(taken) = taken else { return Ok(Ok(())) };
        match self.remote.write(Bytes::copy_from_slice(taken.piece.text.as_bytes())).await {
            Ok(()) => {
                locked(&self.queue).sent(&taken);
                let mut told = locked(&self.told);
                told.sent_lines += taken.piece.lines;
                told.sent_ms = Some(now_ms());
                if std::mem::take(&mut told.failing) {
                    tracing::info!(store = %self.name, "an external store accepts requests again");
                }
                Ok(Ok(()))
            }
            Err(failed) if failed.fate() == SendFate::Aside => self.set_aside(taken, failed).await.map(Ok),
            Err(failed) => {
                locked(&self.told).retries += 1;
                Ok(Err(failed))
            }
        }
    }

    /// Moves rejected lines to the quarantine, so that later lines are sent.
    async fn set_aside(self: &Arc<Self>, taken: QueuedPiece, failed: SendError) -> io::Result<()> {
        let own = Arc::clone(self);
        let set_aside = move || {
            let path = locked(&own.quarantine).add(&taken.piece, &failed, now_ms())?;
            locked(&own.queue).sent(&taken);
            locked(&own.told).refused_lines += taken.piece.lines;
            if own.note(&failed) {
                tracing::error!(
                    store = %own.name, reason = %failed, lines = taken.piece.lines, file = %path.display(),
                    "an external store refuses measurements, which are set aside and not sent again"
                );
            }
            Ok(())
        };
        tokio::task::spawn_blocking(set_aside).await.map_err(io::Error::other)?
    }
}

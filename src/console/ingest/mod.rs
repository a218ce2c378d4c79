//! Ingest: stores what hosts report, and then acknowledges it.
//!
//! Modules, in reading order: [`decide`] (what a message changes, as plain functions), [`store_batch`] (a batch in one
//! transaction; [`tables`]: what it needs of a database), [`effects`] (performed after the commit:
//! requests for a refresh, changes for pages and dispatch), [`acks`] (acknowledgements to hosts), [`output`] (assembles
//! output), [`measurement_recorder`] (measurements, with a queue and a task of their own, so that
//! neither waits for the other's store).
//!
//! Ingest takes all queued messages, up to [`BATCH_MAX`], stores them in one transaction, and only then
//! acknowledges: to the broker message by message, to the hosts a little later, with one signed message for all that
//! was stored of each meanwhile.
//!
//! **Invariant: effects happen after the commit.** If it fails, nobody has been told anything.
//!
//! **Invariant: a faulty message is counted, logged and acknowledged.** Otherwise it would be delivered
//! forever, and block those behind it.

pub mod acks;
mod decide;
pub mod effects;
mod error;
mod measurement_recorder;
mod newer_hosts;
pub mod output;
pub mod owed_acks;
pub mod store_batch;
pub mod tables;

use std::{sync::Arc, time::Duration};

use muster_base::clock::now_ms;
use muster_guard::{LineKind, LineLimiter, log_peer};
use muster_topics::{diagnostic::Diagnostic, topic::Topic};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use self::owed_acks::OwedAcks;
pub(crate) use self::{
    acks::run as acknowledge,
    measurement_recorder::{commit, run as record},
};
use self::{
    effects::{Effects, RefreshRequests},
    newer_hosts::NewerHosts,
    store_batch::IngestBatch,
};
use super::{
    host_share::UNIT_SHARES,
    inbound::{Inbound, MessageReceipt},
    state::ConsoleState,
    store::{StoreError, command},
};

/// The most messages of one transaction. One costs about 10 µs and a sync of the disk some milliseconds, so larger
/// batches would gain nothing.
pub const BATCH_MAX: usize = 2_048;
/// The pause after a failure of the store that may pass (a full disk).
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// Stores messages of the link until its queue is closed or the console stops.
pub(crate) async fn run(shared: Arc<ConsoleState>, mut queue: mpsc::Receiver<Inbound>, shutdown: CancellationToken) {
    let mut batch = Vec::with_capacity(BATCH_MAX);
    let (mut refreshes, mut newer) = (RefreshRequests::default(), NewerHosts::default());
    loop {
        tokio::select! {
            // Cancel-safe: nothing is taken unless this branch completes.
            taken = queue.recv_many(&mut batch, BATCH_MAX) => if taken == 0 { return },
            () = shutdown.cancelled() => return,
        }
        let mut pending = std::mem::take(&mut batch);
        pending.retain_mut(|message| match newer.check(&message.topic, &message.payload) {
            Ok(()) => true,
            Err(fault) => {
                dropped(&message.topic, &fault);
                std::mem::replace(&mut message.receipt, MessageReceipt::none()).acknowledge();
                false
            }
        });
        loop {
            match store(&shared, &pending).await {
                Ok(effects) => {
                    for message in pending.drain(..) {
                        message.receipt.acknowledge();
                    }
                    effects.perform(&shared, &mut refreshes, now_ms()).await;
                    break;
                }
                Err(error) => {
                    tracing::error!(%error, hint = error.hint(), messages = pending.len(), "messages of hosts cannot be stored; retrying");
                    tokio::select! {
                        () = shutdown.cancelled() => return,
                        () = tokio::time::sleep(STORE_PAUSE) => (),
                    }
                }
            }
        }
        batch = pending;
    }
}

/// Stores a batch in one transaction. A message that violates a constraint would fail the batch forever: it is found by
/// storing one message at a time, and then skipped.
///
/// # Errors
/// If the store fails in a way that may pass. Nothing of the batch has taken effect then, or applying it again changes
/// nothing.
async fn store(shared: &ConsoleState, batch: &[Inbound]) -> Result<Effects, StoreError> {
    match store_together(shared, batch).await {
        Err(error) if !error.is_passing() => (),
        result => return result,
    }
    let mut effects = Effects::default();
    for message in batch {
        match store_together(shared, std::slice::from_ref(message)).await {
            Ok(more) => effects.extend(more),
            Err(error) if error.is_passing() => return Err(error),
            Err(error) => dropped(&message.topic, &error),
        }
    }
    Ok(effects)
}

async fn store_together(shared: &ConsoleState, batch: &[Inbound]) -> Result<Effects, StoreError> {
    let mut transaction = shared.store.begin().await?;
    let topics = batch.iter().map(|message| &message.topic);
    let unit_shares = UNIT_SHARES;
    let mut together = IngestBatch::begin(&mut *transaction, topics, unit_shares, now_ms()).await?;
    for message in batch {
        match together.apply(&mut *transaction, &message.topic, &message.payload, message.retained).await {
            Ok(()) => (),
            Err(ApplyError::Faulty(fault)) => dropped(&message.topic, &fault),
            Err(ApplyError::Store(error)) => return Err(error),
        }
    }
    let effects = together.finish(&mut *transaction).await?;
    if !effects.printed.is_empty() {
        let limits = shared.settings.started_with.output_limits();
        let gone = command::trim_output(&mut transaction, &effects.printed, limits).await?;
        if gone > 0 {
            tracing::info!(bytes = gone, "old output of commands was deleted for newer (command_output_max_bytes)");
        }
    }
    transaction.commit().await?;
    Ok(effects)
}

/// Log lines about messages of hosts that cannot be used.
const DROPPED: LineKind = LineKind::new("messages that are dropped", 60).burst(3);

fn dropped(topic: &Topic, why: &dyn miette::Diagnostic) {
    let Diagnostic { cause, hint, .. } = Diagnostic::of(why);
    let reason = LineLimiter::shorten(&cause);
    match topic.host() {
        Some(host) => log_peer!(WARN, host, DROPPED, host.id = %host, %topic, reason, hint, "a message is dropped"),
        None => log_peer!(WARN, "no host", DROPPED, %topic, reason, hint, "a message is dropped"),
    }
}

#[cfg(test)]
mod tests;

pub use error::{ApplyError, FaultyMessage};

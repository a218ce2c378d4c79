//! Limits on the commands, outcomes and measurements that the agent keeps, and what is dropped first.
//!
//! | what | limit | when it is reached |
//! |---|---|---|
//! | finished commands | until `journal.kept_after_expiry_s` after their expiry, by signed time | the oldest are deleted |
//! | commands in all | `journal.commands_max` | commands long expired are deleted; then no command is accepted: the console sends it again, and it counts as missing if there is no room until it expires |
//! | output that the console has not acknowledged | `journal.output_max_bytes` | it stays in the programs' own files, and programs block at the limit of those |
//! | outcomes | as many as commands | none is deleted |
//! | measurements | `metrics.buffer_max_bytes`, `metrics.buffer_max_age_s` | the oldest are deleted |
//!
//! **Invariant: a command that is not accepted leaves no trace**, so that it can be accepted later.

use muster_topics::{Millis, name::CommandId};

use super::{
    config::JournalConfig,
    main_loop::AgentLoop,
    store::{StoreError, journal, outbox},
};

/// How full the store is.
#[derive(Debug)]
pub(super) struct StoreBounds {
    config: JournalConfig,
    /// An upper bound of the number of commands in the journal.
    commands: u64,
    /// Whether more output of programs may be stored.
    pub(super) has_output_room: bool,
}

impl StoreBounds {
    pub(super) fn new(config: JournalConfig) -> Self {
        // The number is counted before the first command.
        Self { config, commands: u64::MAX, has_output_room: true }
    }

    /// How long a command is remembered after its expiry.
    pub(super) fn kept_ms(&self) -> Millis {
        Millis::from(self.config.kept_after_expiry_s) * 1000
    }
}

impl AgentLoop {
    /// Whether a command may be journalled: there is room, or it is there already.
    pub(super) async fn has_room_for(&mut self, id: CommandId, signed_ms: Millis) -> Result<bool, StoreError> {
        // Each command counts as new; when the bound is reached, the journal is counted again. A cancellation may
        // make two rows.
        self.bounds.commands = self.bounds.commands.saturating_add(2);
        if self.bounds.commands <= self.bounds.config.commands_max {
            return Ok(true);
        }
        journal::prune(&self.store, signed_ms, self.bounds.kept_ms()).await?;
        self.bounds.commands = journal::count(&self.store).await?;
        if self.bounds.commands < self.bounds.config.commands_max {
            self.bounds.commands += 2;
            return Ok(true);
        }
        journal::knows(&self.store, id).await
    }

    /// Checks how much output waits for the console.
    pub(super) async fn weigh_output(&mut self) -> Result<(), StoreError> {
        let waiting = outbox::bytes(&self.store).await?;
        let has_room = waiting < self.bounds.config.output_max_bytes;
        if has_room != self.bounds.has_output_room {
            tracing::info!(waiting_bytes = waiting, has_room, "output that the console has not acknowledged");
        }
        self.bounds.has_output_room = has_room;
        Ok(())
    }
}

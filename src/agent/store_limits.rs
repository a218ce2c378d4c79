//! Limits on the commands, outcomes and measurements that the agent keeps, and what is dropped first.
//!
//! | what | limit | when it is reached |
//! |---|---|---|
//! | finished commands | until a day after their expiry, by signed time | the oldest are deleted |
//! | commands in all | one for each thousand bytes of three quarters of `journal_max_bytes` | commands long expired are deleted; then no command is accepted: the console sends it again, and it counts as missing if there is no room until it expires |
//! | output that the console has not acknowledged | a quarter of `journal_max_bytes` | it stays in the programs' own files, and programs block at the limit of those |
//! | outcomes | as many as commands | none is deleted |
//! | measurements | `metrics.buffer_max_bytes`, a week | the oldest are deleted |
//!
//! **Invariant: a command that is not accepted leaves no trace**, so that it can be accepted later.

use muster_topics::{Millis, name::CommandId};

use super::{
    main_loop::AgentLoop,
    store::{StoreError, journal, outbox},
};

/// What a command takes in the journal, in bytes: measured, with its outcome.
const COMMAND_BYTES: u64 = 1_000;

/// Limits of the journal of commands, and of their unsent output. Outcomes wait until the console has them, however long that
/// takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JournalLimits {
    /// How many commands are remembered.
    pub(super) commands_max: u64,
    /// How many bytes of output may wait for the console.
    pub(super) output_max_bytes: u64,
}

impl JournalLimits {
    /// The least bytes of a journal: a few commands.
    pub(super) const LEAST_BYTES: u64 = 4_096;

    /// The limits of a journal that may take so many bytes.
    pub(super) fn of_bytes(max_bytes: u64) -> Self {
        let output_max_bytes = (max_bytes / 4).max(1);
        // A command and its cancellation.
        let commands_max = (max_bytes.saturating_sub(output_max_bytes) / COMMAND_BYTES).max(2);
        Self { commands_max, output_max_bytes }
    }
}

/// How full the store is.
#[derive(Debug)]
pub(super) struct StoreBounds {
    limits: JournalLimits,
    /// An upper bound of the number of commands in the journal.
    commands: u64,
    /// Whether more output of programs may be stored.
    pub(super) has_output_room: bool,
}

impl StoreBounds {
    pub(super) fn new(limits: JournalLimits) -> Self {
        // The number is counted before the first command.
        Self { limits, commands: u64::MAX, has_output_room: true }
    }
}

impl AgentLoop {
    /// Whether a command may be journalled: there is room, or it is there already.
    pub(super) async fn has_room_for(&mut self, id: CommandId, signed_ms: Millis) -> Result<bool, StoreError> {
        // Each command counts as new; when the bound is reached, the journal is counted again. A cancellation may
        // make two rows.
        self.bounds.commands = self.bounds.commands.saturating_add(2);
        if self.bounds.commands <= self.bounds.limits.commands_max {
            return Ok(true);
        }
        journal::prune(&self.store, signed_ms, journal::KEPT_AFTER_EXPIRY_MS).await?;
        self.bounds.commands = journal::count(&self.store).await?;
        if self.bounds.commands < self.bounds.limits.commands_max {
            self.bounds.commands += 2;
            return Ok(true);
        }
        journal::knows(&self.store, id).await
    }

    /// Checks how much output waits for the console.
    pub(super) async fn weigh_output(&mut self) -> Result<(), StoreError> {
        let waiting = outbox::bytes(&self.store).await?;
        let has_room = waiting < self.bounds.limits.output_max_bytes;
        if has_room != self.bounds.has_output_room {
            tracing::info!(waiting_bytes = waiting, has_room, "output that the console has not acknowledged");
        }
        self.bounds.has_output_room = has_room;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journal_is_divided_among_commands_and_output() {
        let usual = JournalLimits::of_bytes(128 * 1024 * 1024);
        assert_eq!(usual, JournalLimits { commands_max: 100_663, output_max_bytes: 32 * 1024 * 1024 });
        let least = JournalLimits::of_bytes(JournalLimits::LEAST_BYTES);
        assert_eq!(least, JournalLimits { commands_max: 3, output_max_bytes: 1_024 });
        let most = JournalLimits::of_bytes(u64::MAX);
        assert!(most.commands_max > usual.commands_max && most.output_max_bytes > usual.output_max_bytes);
    }
}

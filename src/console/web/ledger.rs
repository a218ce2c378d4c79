//! Summaries of commands: the progress of each over all its hosts. What was read of a command is cached until the command
//! changes, so that a list of commands for ten thousand hosts, or a page of one, does not read every outcome again.
//!
//! **Invariant: the cache equals the store.** A change of a command invalidates its entry, and a read that was under way
//! meanwhile is not cached.

use std::sync::Arc;

use muster_api::Command;
use muster_topics::name::CommandId;

use super::view::elements::{self};
use crate::{
    error::Error,
    state::Console,
    store::command_status::{self},
};

pub(crate) use super::command_progress::{CommandProgress, HostCounts};

/// A command in a list: without its hosts, but with their counts.
#[derive(Clone, Debug)]
pub(in crate::web) struct ListedCommand {
    /// The command.
    pub(in crate::web) command: Command,
    /// The counts of its hosts.
    pub(in crate::web) tally: Arc<HostCounts>,
}

impl ListedCommand {
    /// Creates it from a command with all its hosts.
    pub(in crate::web) fn of(command: Command) -> Self {
        let tally = Arc::new(HostCounts::of(&command.hosts));
        Self { command, tally }
    }
}

/// Returns the newest commands.
pub(in crate::web) async fn newest(console: &Console, limit: u32) -> Result<Vec<ListedCommand>, Error> {
    let memory = &console.shared.pages.tallies.short;
    let mut entries = Vec::new();
    for command in console.commands_alone(limit).await? {
        let tally = match memory.find(command.id) {
            Ok(tally) => tally,
            Err(changes) => {
                let tally = Arc::new(tally(console, command.id).await?);
                memory.keep(command.id, changes, &tally);
                tally
            }
        };
        entries.push(ListedCommand { command, tally });
    }
    Ok(entries)
}

async fn tally(console: &Console, id: CommandId) -> Result<HostCounts, Error> {
    let db = console.shared.store.read();
    let kinds = command_status::kinds(db, id).await?;
    let kinds = kinds.iter().map(|(state, status, count)| (elements::progress_of(*state, status.as_ref()), *count));
    let counts = HostCounts::counted(kinds);
    let only = if counts.hosts == 1 { command_status::hostname(db, id).await? } else { None };
    Ok(HostCounts { only, ..counts })
}

/// Returns the progress of a command, host by host.
pub(in crate::web) async fn course(console: &Console, id: CommandId) -> Result<Arc<CommandProgress>, Error> {
    let memory = &console.shared.pages.tallies.whole;
    match memory.find(id) {
        Ok(course) => Ok(course),
        Err(changes) => {
            let standings = command_status::standings(console.shared.store.read(), id).await?;
            let course = Arc::new(CommandProgress::of(&standings));
            memory.keep(id, changes, &course);
            Ok(course)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tallies::LedgerCache;

    use super::*;

    #[test]
    fn changed_command_is_read_again() {
        let (memory, id, other) = (LedgerCache::new(9), CommandId::new(), CommandId::new());
        assert_eq!(memory.find(id), Err(0));
        memory.keep(id, 0, &Arc::new(1));
        assert_eq!(memory.find(id), Ok(Arc::new(1)));
        memory.changed(other);
        assert_eq!(memory.find(id), Ok(Arc::new(1)), "another command is no matter");
        memory.changed(id);
        assert_eq!(memory.find(id), Err(1));
        // It changes while it is read.
        memory.changed(id);
        memory.keep(id, 1, &Arc::new(2));
        assert_eq!(memory.find(id), Err(2));
        memory.keep(id, 2, &Arc::new(3));
        assert_eq!(memory.find(id), Ok(Arc::new(3)));
    }

    #[test]
    fn memory_is_bounded() {
        let memory = LedgerCache::new(9);
        for _ in 0..30 {
            let id = CommandId::new();
            assert_eq!(memory.find(id), Err(0));
            memory.keep(id, 0, &Arc::new(1));
            assert!(memory.all().len() <= 9);
        }
        // What was removed meanwhile is not cached.
        let id = CommandId::new();
        memory.keep(id, 0, &Arc::new(1));
        assert_eq!(memory.find(id), Err(0));
    }
}

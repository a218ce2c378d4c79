//! Commands in short: how far each has come on all its hosts together. What was read of a command is kept in memory until the command
//! changes, so that a list of commands for ten thousand hosts does not read every outcome of each of them again.
//!
//! **Invariant: what is kept is what the store says.** A change of a command forgets what is kept of it, and what was being read
//! meanwhile is not kept.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use muster_topics::name::CommandId;

use super::view::bits::{self, Tone};
use crate::{
    api::{Command, CommandHost},
    console::{Change, Console, Error},
};

/// Commands that are kept: several lists of the newest ones. Each takes some hundred bytes.
const KEPT_MAX: usize = 500;

/// A command's hosts in short.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::console) struct Tally {
    /// How many there are.
    pub(in crate::console::web) hosts: u64,
    /// The name of the first one.
    pub(in crate::console::web) first: Option<String>,
    /// How many have come how far; what needs an eye is first.
    pub(in crate::console::web) kinds: BTreeMap<(Tone, String), u64>,
}

impl Tally {
    /// Of a command's hosts.
    pub(in crate::console::web) fn of(lines: &[CommandHost]) -> Self {
        let mut kinds = BTreeMap::new();
        for line in lines {
            *kinds.entry(bits::progress(line)).or_default() += 1;
        }
        Self { hosts: lines.len() as u64, first: lines.first().map(|line| line.hostname.clone()), kinds }
    }
}

/// A command in a list: what it is, without its hosts, and these in short.
#[derive(Clone, Debug)]
pub(in crate::console::web) struct Entry {
    /// The command.
    pub(in crate::console::web) command: Command,
    /// Its hosts.
    pub(in crate::console::web) tally: Arc<Tally>,
}

impl Entry {
    /// Of a command that was read whole.
    pub(in crate::console::web) fn of(command: Command) -> Self {
        let tally = Arc::new(Tally::of(&command.hosts));
        Self { command, tally }
    }
}

/// What is kept.
#[derive(Debug, Default)]
pub(in crate::console) struct Tallies(Mutex<HashMap<CommandId, Kept>>);

/// Of one command: how often it has changed since somebody first read it, and what was read, if that is still so.
#[derive(Debug, Default)]
struct Kept {
    changes: u64,
    tally: Option<Arc<Tally>>,
}

impl Tallies {
    fn all(&self) -> MutexGuard<'_, HashMap<CommandId, Kept>> {
        // Whoever panicked while it was held left at worst a command that has to be read again.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what was read of a command that has changed.
    pub(in crate::console) fn changed(&self, change: &Change) {
        if let Change::Command(id) = change
            && let Some(kept) = self.all().get_mut(id)
        {
            kept.changes += 1;
            kept.tally = None;
        }
    }

    /// What is kept of a command; or, for whoever reads it now, how often it has changed.
    fn find(&self, id: CommandId) -> Result<Arc<Tally>, u64> {
        let mut all = self.all();
        if all.len() >= KEPT_MAX && !all.contains_key(&id) {
            all.clear();
        }
        let kept = all.entry(id).or_default();
        kept.tally.clone().ok_or(kept.changes)
    }

    /// Keeps what was read, unless it has changed since.
    fn keep(&self, id: CommandId, changes: u64, tally: &Arc<Tally>) {
        if let Some(kept) = self.all().get_mut(&id).filter(|kept| kept.changes == changes) {
            kept.tally = Some(Arc::clone(tally));
        }
    }
}

/// The newest commands.
pub(in crate::console::web) async fn newest(console: &Console, limit: u32) -> Result<Vec<Entry>, Error> {
    let mut entries = Vec::new();
    for command in console.commands_alone(limit).await? {
        let tally = match console.shared.tallies.find(command.id) {
            Ok(tally) => tally,
            Err(changes) => {
                let tally = Arc::new(Tally::of(&console.command(command.id).await?.hosts));
                console.shared.tallies.keep(command.id, changes, &tally);
                tally
            }
        };
        entries.push(Entry { command, tally });
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(hosts: u64) -> Arc<Tally> {
        Arc::new(Tally { hosts, ..Tally::default() })
    }

    #[test]
    fn what_changes_is_read_again() {
        let (tallies, id, other) = (Tallies::default(), CommandId::new(), CommandId::new());
        assert_eq!(tallies.find(id), Err(0));
        tallies.keep(id, 0, &tally(1));
        assert_eq!(tallies.find(id), Ok(tally(1)));
        tallies.changed(&Change::Command(other));
        assert_eq!(tallies.find(id), Ok(tally(1)), "another command is no matter");
        tallies.changed(&Change::Command(id));
        assert_eq!(tallies.find(id), Err(1));
        // It changes while it is read.
        tallies.changed(&Change::Command(id));
        tallies.keep(id, 1, &tally(2));
        assert_eq!(tallies.find(id), Err(2));
        tallies.keep(id, 2, &tally(3));
        assert_eq!(tallies.find(id), Ok(tally(3)));
    }

    #[test]
    fn memory_is_bounded() {
        let tallies = Tallies::default();
        for _ in 0..3 * KEPT_MAX {
            let id = CommandId::new();
            assert_eq!(tallies.find(id), Err(0));
            tallies.keep(id, 0, &tally(1));
            assert!(tallies.all().len() <= KEPT_MAX);
        }
        // What was forgotten meanwhile is not kept.
        let id = CommandId::new();
        tallies.keep(id, 0, &tally(1));
        assert_eq!(tallies.find(id), Err(0));
    }
}

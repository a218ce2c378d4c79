//! Commands in short: how far each has come on all its hosts together. What was read of a command is kept in memory until the command
//! changes, so that a list of commands for ten thousand hosts, or a page of one, does not look at every outcome again.
//!
//! **Invariant: what is kept is what the store says.** A change of a command forgets what is kept of it, and what was being read
//! meanwhile is not kept.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use muster_topics::name::{CommandId, HostId};

use super::view::bits::{self, Tone};
use crate::{
    api::{Command, CommandHost, CommandState},
    console::{
        Change, Console, Error,
        store::course::{self, Standing},
    },
    summary::{Class, Summary},
};

/// Commands that are kept in short: several lists of the newest ones. Each takes some hundred bytes.
const TALLIES_MAX: usize = 500;
/// Commands that are kept host by host: those that somebody looks at. Each takes 16 bytes for each host, and the names of hosts
/// that did not do it.
const COURSES_MAX: usize = 16;

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
        let first = lines.first().map(|line| line.hostname.clone());
        Self::counted(first, lines.iter().map(|line| (bits::progress(line), 1)))
    }

    fn counted(first: Option<String>, counts: impl Iterator<Item = ((Tone, String), u64)>) -> Self {
        let mut tally = Self { first, ..Self::default() };
        for (kind, count) in counts {
            tally.hosts += count;
            *tally.kinds.entry(kind).or_default() += count;
        }
        tally
    }
}

/// How far a command has come, host by host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::console) struct Course {
    /// In short.
    pub(in crate::console::web) tally: Tally,
    /// Whether something may still come.
    pub(in crate::console::web) open: bool,
    /// Once nothing is waited for any more: how many hosts there are of each class, and which did not do it.
    pub(in crate::console::web) summary: Summary,
    /// All hosts: what needs an eye comes first, and within that they are sorted by name.
    pub(in crate::console::web) hosts: Vec<HostId>,
}

impl Course {
    /// Of hosts that are sorted by name.
    pub(in crate::console::web) fn of(standings: &[Standing]) -> Self {
        let progress: Vec<(Tone, String)> =
            standings.iter().map(|one| bits::progress_of(one.state, one.status.as_deref())).collect();
        let mut order: Vec<usize> = (0..standings.len()).collect();
        order.sort_by_key(|index| progress[*index].0);
        let first = standings.first().map(|one| one.hostname.clone());
        let class = |one: &Standing| Class::of_state(one.state, one.status.as_deref());
        Self {
            open: standings.iter().any(|one| !matches!(one.state, CommandState::Done | CommandState::Missing)),
            summary: Summary::of_each(standings.iter().map(|one| (one.host, one.hostname.as_str(), class(one)))),
            hosts: order.into_iter().map(|index| standings[index].host).collect(),
            tally: Tally::counted(first, progress.into_iter().map(|kind| (kind, 1))),
        }
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
#[derive(Debug)]
pub(in crate::console) struct Tallies {
    short: Memory<Tally>,
    whole: Memory<Course>,
}

impl Default for Tallies {
    fn default() -> Self {
        Self { short: Memory::new(TALLIES_MAX), whole: Memory::new(COURSES_MAX) }
    }
}

impl Tallies {
    /// Forgets what was read of a command that has changed.
    pub(in crate::console) fn changed(&self, change: &Change) {
        if let Change::Command(id) = change {
            self.short.changed(*id);
            self.whole.changed(*id);
        }
    }
}

/// What was read of some commands.
#[derive(Debug)]
struct Memory<T> {
    max: usize,
    kept: Mutex<HashMap<CommandId, Kept<T>>>,
}

/// Of one command: how often it has changed since somebody first read it, and what was read, if that is still so.
#[derive(Debug)]
struct Kept<T> {
    changes: u64,
    found: Option<Arc<T>>,
}

impl<T> Memory<T> {
    fn new(max: usize) -> Self {
        Self { max, kept: Mutex::default() }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<CommandId, Kept<T>>> {
        // Whoever panicked while it was held left at worst a command that has to be read again.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self, id: CommandId) {
        if let Some(kept) = self.all().get_mut(&id) {
            kept.changes += 1;
            kept.found = None;
        }
    }

    /// What is kept of a command; or, for whoever reads it now, how often it has changed.
    fn find(&self, id: CommandId) -> Result<Arc<T>, u64> {
        let mut all = self.all();
        if all.len() >= self.max && !all.contains_key(&id) {
            all.clear();
        }
        let kept = all.entry(id).or_insert(Kept { changes: 0, found: None });
        kept.found.clone().ok_or(kept.changes)
    }

    /// Keeps what was read, unless it has changed since.
    fn keep(&self, id: CommandId, changes: u64, found: &Arc<T>) {
        if let Some(kept) = self.all().get_mut(&id).filter(|kept| kept.changes == changes) {
            kept.found = Some(Arc::clone(found));
        }
    }
}

/// The newest commands.
pub(in crate::console::web) async fn newest(console: &Console, limit: u32) -> Result<Vec<Entry>, Error> {
    let memory = &console.shared.tallies.short;
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
        entries.push(Entry { command, tally });
    }
    Ok(entries)
}

async fn tally(console: &Console, id: CommandId) -> Result<Tally, Error> {
    let db = console.shared.store.read();
    let kinds = course::kinds(db, id).await?;
    let kinds = kinds.iter().map(|(state, status, count)| (bits::progress_of(*state, status.as_ref()), *count));
    Ok(Tally::counted(course::first(db, id).await?, kinds))
}

/// How far a command has come, host by host.
pub(in crate::console::web) async fn course(console: &Console, id: CommandId) -> Result<Arc<Course>, Error> {
    let memory = &console.shared.tallies.whole;
    match memory.find(id) {
        Ok(course) => Ok(course),
        Err(changes) => {
            let standings = course::standings(console.shared.store.read(), id).await?;
            let course = Arc::new(Course::of(&standings));
            memory.keep(id, changes, &course);
            Ok(course)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_is_read_again() {
        let (memory, id, other) = (Memory::new(9), CommandId::new(), CommandId::new());
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
        let memory = Memory::new(9);
        for _ in 0..30 {
            let id = CommandId::new();
            assert_eq!(memory.find(id), Err(0));
            memory.keep(id, 0, &Arc::new(1));
            assert!(memory.all().len() <= 9);
        }
        // What was forgotten meanwhile is not kept.
        let id = CommandId::new();
        memory.keep(id, 0, &Arc::new(1));
        assert_eq!(memory.find(id), Err(0));
    }
}

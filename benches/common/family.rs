//! Who has started whom.

use std::collections::HashMap;

use muster_shim::process_identity;

/// A process and its descendants, parents before children.
pub(crate) fn family(pid: i32) -> Vec<i32> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for child in process_identity::pids().unwrap_or_default() {
        if let Some(stat) = process_identity::stat(child) {
            children.entry(stat.ppid).or_default().push(child);
        }
    }
    let mut family = vec![pid];
    let mut at = 0;
    while let Some(parent) = family.get(at).copied() {
        family.extend(children.remove(&parent).unwrap_or_default());
        at += 1;
    }
    family
}

/// The start time of a process, in ticks since boot, if it is alive; process ids are reused.
pub(crate) fn start_ticks(pid: i32) -> Option<u64> {
    process_identity::stat(pid).filter(|stat| !stat.is_dead()).map(|stat| stat.start_ticks)
}

//! Identifies boots and processes by `/proc`.
//!
//! Process ids are reused. Only together with the process's start time and
//! the boot an id is unique.

use std::{fs, io};

use crate::MainProcessId;

/// The fields of `/proc/<pid>/stat` that are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Its state, as a letter.
    pub state: u8,
    /// Its parent.
    pub ppid: i32,
    /// Its session.
    pub session: i32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
}

impl Stat {
    /// Whether it is a zombie.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// The id of this boot.
///
/// # Errors
/// If `/proc` is not available.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim_end().to_owned())
}

/// The state of a process; `None` if there is none with that number.
#[must_use]
pub fn stat(pid: i32) -> Option<Stat> {
    parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// The identity of a process: its number and start time, which are unique within a boot.
#[must_use]
pub fn identity(pid: i32) -> Option<(i32, u64)> {
    Some((pid, stat(pid)?.start_ticks))
}

/// Whether a number still refers to the same process.
#[must_use]
pub fn is_still((pid, start_ticks): (i32, u64)) -> bool {
    stat(pid).is_some_and(|stat| stat.start_ticks == start_ticks)
}

/// Whether a process that was recorded in this boot is alive.
#[must_use]
pub fn is_alive(main: &MainProcessId) -> bool {
    stat(main.pid).is_some_and(|stat| stat.start_ticks == main.start_ticks && !stat.is_dead())
}

/// The name of a process: the beginning of its program's name, or one that it has set itself.
#[must_use]
pub fn name(pid: i32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|name| name.trim_end().to_owned())
}

/// The children of this (single-threaded) process; `None` if this kernel does not list them.
#[must_use]
pub fn children() -> Option<Vec<i32>> {
    let text = fs::read_to_string(format!("/proc/self/task/{}/children", std::process::id())).ok()?;
    Some(text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}

/// All current process ids.
///
/// # Errors
/// If `/proc` is not available.
pub fn pids() -> io::Result<Vec<i32>> {
    let entries = fs::read_dir("/proc")?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// Parses a stat line. Its second field, the name in parentheses, may contain any character, also parentheses and
/// spaces, so the last parenthesis ends it.
fn parse(text: &[u8]) -> Option<Stat> {
    let close = text.iter().rposition(|byte| *byte == b')')?;
    let text = std::str::from_utf8(&text[close + 1..]).ok()?;
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    Some(Stat {
        state: *fields.first()?.as_bytes().first()?,
        ppid: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        start_ticks: fields.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_lines_are_parsed() {
        let rest = "4 5 6 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 777 1 2";
        let wanted = Stat { state: b'S', ppid: 4, session: 6, start_ticks: 777 };
        for name in ["(sh)", "(a b)", "(a) Z 1 2 3)", "(\u{fffd})", "()"] {
            assert_eq!(parse(format!("9 {name} S {rest}").as_bytes()), Some(wanted), "{name}");
        }
        for bad in ["", "9", "9 (sh)", "9 (sh) S", "9 (sh) S 4 5 6", "9 (sh) S x 5 6 0 -1 0 0"] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn this_process_is_alive_and_its_predecessor_is_not() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let stat = stat(pid).unwrap();
        let main = MainProcessId { pid, start_ticks: stat.start_ticks, started_ms: 0 };
        assert!(is_alive(&main));
        assert!(!is_alive(&MainProcessId { start_ticks: stat.start_ticks.wrapping_sub(1), ..main }));
        assert!(pids().unwrap().contains(&pid));
        assert_eq!(boot_id().unwrap().len(), 36);
    }
}

//! What a process takes, with those that it has started.

use std::{collections::HashMap, fs, time::Duration};

use anyhow::{Context, Result, ensure};
use nix::unistd::{SysconfVar, sysconf};

/// A process: its id, and when it began, in ticks since the host did. Nobody else is both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    begun: u64,
}

/// What a process and its descendants have taken so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Processor time, of those too that are over and were waited for.
    pub(crate) busy: Duration,
    pub(crate) pss_mb: f64,
    pub(crate) rss_mb: f64,
    pub(crate) processes: usize,
}

/// The fields of `/proc/PID/stat` behind the name, from the state on.
fn stat(pid: i32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect())
}

fn number(stat: &[String], place: usize) -> u64 {
    stat.get(place).and_then(|text| text.parse().ok()).unwrap_or_default()
}

impl Process {
    pub(crate) fn of(pid: i32) -> Option<Self> {
        Some(Self { pid, begun: number(&stat(pid)?, 19) })
    }

    /// Whether it is there still, and not only its name.
    pub(crate) fn is_there(self) -> bool {
        Self::of(self.pid) == Some(self) && stat(self.pid).is_some_and(|stat| stat[0] != "Z")
    }
}

/// A process and its descendants.
pub(crate) fn family(pid: i32) -> Vec<Process> {
    let pids =
        fs::read_dir("/proc").into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for child in pids {
        let parent = stat(child).and_then(|stat| stat.get(1)?.parse().ok());
        children.entry(parent.unwrap_or_default()).or_default().push(child);
    }
    let (mut family, mut next) = (Vec::new(), vec![pid]);
    while let Some(pid) = next.pop() {
        family.extend(Process::of(pid));
        next.extend(children.remove(&pid).unwrap_or_default());
    }
    family
}

/// What they take.
pub(crate) fn of_family(pid: i32) -> Result<Usage> {
    let ticks_per_second = sysconf(SysconfVar::CLK_TCK)?.context("no ticks")?;
    let family = family(pid);
    ensure!(!family.is_empty(), "process {pid} is gone");
    let mut usage = Usage { processes: family.len(), ..Usage::default() };
    for process in family {
        let stat = stat(process.pid).unwrap_or_default();
        // Its own user and system time, and that of its children.
        let ticks: u64 = (11..15).map(|place| number(&stat, place)).sum();
        usage.busy += Duration::from_secs_f64(ticks as f64 / ticks_per_second as f64);
        let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", process.pid)).unwrap_or_default();
        let megabytes = |field: &str| {
            let line = rollup.lines().find_map(|line| line.strip_prefix(field));
            line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or_default() / 1000.0
        };
        usage.pss_mb += megabytes("Pss:");
        usage.rss_mb += megabytes("Rss:");
    }
    Ok(usage)
}

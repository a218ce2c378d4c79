//! What processes take of this machine, as `/proc` tells it.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs, io, thread,
    time::{Duration, Instant},
};

/// The proportional set size of a process.
pub(crate) fn pss_bytes(pid: i32) -> io::Result<u64> {
    field_bytes(pid, "smaps_rollup", "Pss:")
}

/// The resident set size of a process.
pub(crate) fn rss_bytes(pid: i32) -> io::Result<u64> {
    field_bytes(pid, "smaps_rollup", "Rss:")
}

/// The same from the kernel's counters: slightly inexact, but fast.
pub(crate) fn counted_rss_bytes(pid: i32) -> io::Result<u64> {
    field_bytes(pid, "status", "VmRSS:")
}

/// Its highest value since it was [reset](forget_peak).
pub(crate) fn peak_rss_bytes(pid: i32) -> io::Result<u64> {
    field_bytes(pid, "status", "VmHWM:")
}

/// Resets the peak to the current value.
pub(crate) fn forget_peak(pid: i32) -> io::Result<()> {
    fs::write(format!("/proc/{pid}/clear_refs"), "5")
}

/// In millions of bytes, the unit of memory budgets.
pub(crate) fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// A field in kB of a file in `/proc`.
fn field_bytes(pid: i32, file: &str, field: &str) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(kilobytes.ok_or_else(|| missing(field))? * 1024)
}

fn missing(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("/proc does not tell {what}"))
}

/// Processor time, in nanoseconds: for a process that is almost idle.
#[derive(Clone, Copy, Default)]
pub(crate) struct Turns {
    pub(crate) busy: Duration,
    /// How often a thread was scheduled.
    pub(crate) wakes: u64,
}

/// The threads of a process, with what each has taken so far.
#[derive(Clone, Default)]
pub(crate) struct Threads(BTreeMap<OsString, Turns>);

impl Threads {
    /// What they have taken since `before`. What a thread has taken that has ended meanwhile is not known.
    pub(crate) fn since(&self, before: &Self) -> Turns {
        let mut all = Turns::default();
        for (thread, now) in &self.0 {
            let then = before.0.get(thread).copied().unwrap_or_default();
            all.busy += now.busy.saturating_sub(then.busy);
            all.wakes += now.wakes.saturating_sub(then.wakes);
        }
        all
    }
}

pub(crate) fn threads(pid: i32) -> io::Result<Threads> {
    let mut threads = Threads::default();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let Ok(task) = task else { continue };
        // A thread may end meanwhile.
        let told = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        // Nanoseconds running, nanoseconds waiting, number of times scheduled.
        let told: Vec<u64> = told.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        if let [busy_ns, _, wakes] = *told {
            threads.0.insert(task.file_name(), Turns { busy: Duration::from_nanos(busy_ns), wakes });
        }
    }
    Ok(threads)
}

/// Processor time of a process, including threads that have ended, in hundredths of a second.
pub(crate) struct Ticks {
    pub(crate) own: Duration,
    /// Processor time of its children that have ended.
    pub(crate) children: Duration,
}

pub(crate) fn ticks(pid: i32) -> io::Result<Ticks> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').ok_or_else(|| missing("ticks"))?;
    // User and system time of the process and of its children: fields 14 to 17, of which the third field is the first
    // here.
    let told: Vec<u64> = fields.split_whitespace().skip(11).take(4).filter_map(|number| number.parse().ok()).collect();
    let [user, system, children_user, children_system] = *told else { return Err(missing("ticks")) };
    // Linux reports a tick of a hundredth of a second to all programs.
    let time = |ticks: u64| Duration::from_millis(ticks * 10);
    Ok(Ticks { own: time(user + system), children: time(children_user + children_system) })
}

/// Waits until the processors were idle for nine tenths of a second, at most five minutes.
pub(crate) fn wait_for_quiet() -> io::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(300);
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        let (idle, all) = processors()?;
        thread::sleep(Duration::from_secs(1));
        let (idle_then, all_then) = processors()?;
        if (idle_then - idle) * 10 >= (all_then - all) * 9 {
            return Ok(());
        }
    }
    eprintln!("the machine was busy for {PATIENCE:?}: measuring anyway");
    Ok(())
}

/// Ticks of all processors so far: idle ones, and all.
fn processors() -> io::Result<(u64, u64)> {
    let stat = fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = line.split_whitespace().skip(1).filter_map(|number| number.parse().ok()).collect();
    // user, nice, system, idle, iowait, …
    Ok((ticks.iter().skip(3).take(2).sum(), ticks.iter().sum()))
}

/// Number of processors.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(0, usize::from)
}

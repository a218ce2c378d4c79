//! The program that is supervised, and what its `main`s tell.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{File, OpenOptions},
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::Command,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use nix::{
    sys::{
        signal::{Signal, kill},
        stat::Mode,
    },
    time::{ClockId, clock_gettime},
    unistd::{Pid, mkfifo},
};

use crate::common::family::start_ticks;

/// A program has started.
#[derive(Clone, Debug)]
pub(crate) struct Main {
    pub(crate) name: String,
    pub(crate) pid: i32,
    /// The time, by the monotonic clock.
    pub(crate) at_ns: i64,
    /// The start time of its process, in ticks since boot; `None` if it has ended already.
    start_ticks: Option<u64>,
}

impl Main {
    fn is_alive(&self) -> bool {
        self.start_ticks.is_some() && start_ticks(self.pid) == self.start_ticks
    }
}

/// All reported starts.
pub(crate) struct Mains {
    program: PathBuf,
    told: mpsc::Receiver<Main>,
    /// All started processes, by program.
    begun: BTreeMap<String, Vec<Main>>,
    // Keeps the FIFO open, so that readers never reach its end.
    _fifo: File,
}

impl Mains {
    /// Builds the program, and listens for its reports.
    pub(crate) fn listen(folder: &Path) -> Result<Self> {
        let path = folder.join("fifo");
        mkfifo(&path, Mode::from_bits_truncate(0o600))?;
        let program = folder.join("program");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/supervision/program.c");
        let built = Command::new("cc")
            .args(["-O2", "-o"])
            .arg(&program)
            .arg(format!("-DFIFO=\"{}\"", path.display()))
            .arg(source)
            .status()
            .context("a C compiler is needed (Debian: gcc)")?;
        ensure!(built.success(), "the program does not build");
        let fifo = OpenOptions::new().read(true).write(true).open(&path)?;
        let reader = BufReader::new(fifo.try_clone()?);
        let (sender, told) = mpsc::channel();
        thread::spawn(move || {
            for line in reader.lines().map_while(Result::ok) {
                if let Some(main) = parse(&line)
                    && sender.send(main).is_err()
                {
                    return;
                }
            }
        });
        Ok(Self { program, told, begun: BTreeMap::new(), _fifo: fifo })
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// The next program that starts.
    pub(crate) fn next(&mut self, patience: Duration) -> Result<Main> {
        let main = self.told.recv_timeout(patience).context("no program began in time")?;
        self.begun.entry(main.name.clone()).or_default().push(main.clone());
        Ok(main)
    }

    /// Waits until all of these have started; returns the time of the last start.
    pub(crate) fn all(&mut self, names: &[String], patience: Duration) -> Result<i64> {
        let mut missing: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        let (started, mut last_ns) = (Instant::now(), 0);
        while !missing.is_empty() {
            let Ok(main) = self.next(patience.saturating_sub(started.elapsed())) else {
                bail!("{} of {} programs did not begin within {} s", missing.len(), names.len(), patience.as_secs());
            };
            missing.remove(main.name.as_str());
            last_ns = last_ns.max(main.at_ns);
        }
        Ok(last_ns)
    }

    /// Reads pending reports.
    pub(crate) fn catch_up(&mut self) {
        while let Ok(main) = self.told.try_recv() {
            self.begun.entry(main.name.clone()).or_default().push(main);
        }
    }

    /// The living processes of a program.
    pub(crate) fn alive(&self, name: &str) -> Vec<i32> {
        let begun = self.begun.get(name).into_iter().flatten();
        begun.filter(|main| main.is_alive()).map(|main| main.pid).collect()
    }

    /// Ends all remaining programs.
    pub(crate) fn end_all(&mut self) {
        self.catch_up();
        for main in self.begun.values().flatten().filter(|main| main.is_alive()) {
            let _ = kill(Pid::from_raw(main.pid), Signal::SIGKILL);
        }
    }
}

/// Parses `PID NANOSECONDS FOLDER`; the program's name is that of the folder, or of the folder above `work`.
fn parse(line: &str) -> Option<Main> {
    let mut words = line.splitn(3, ' ');
    let (pid, at_ns): (i32, i64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let name = words.next()?.trim_end_matches("/work").rsplit('/').next()?.to_owned();
    Some(Main { name, pid, at_ns, start_ticks: start_ticks(pid) })
}

/// The current time, by the clock that programs report.
pub(crate) fn now_ns() -> Result<i64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(now.tv_sec() * 1_000_000_000 + now.tv_nsec())
}

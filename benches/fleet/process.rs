//! Processes that take part: started, read, measured, and ended by this bench.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::common::usage;

/// Longest time for anything to start or to end.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

/// A process, and the lines that it prints.
pub(crate) struct Process {
    name: &'static str,
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    readers: Vec<thread::JoinHandle<()>>,
}

impl Process {
    pub(crate) fn start(name: &'static str, command: &mut Command) -> Result<Self> {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("{name} cannot be started"))?;
        let lines = Arc::new(Mutex::new(Vec::new()));
        let readers = vec![
            collect(child.stdout.take().context("no output")?, Arc::clone(&lines)),
            collect(child.stderr.take().context("no output")?, Arc::clone(&lines)),
        ];
        Ok(Self { name, child, lines, readers })
    }

    /// Everything that it has printed.
    pub(crate) fn printed(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// Waits for a line for which `pick` returns something.
    pub(crate) fn wait_for<T>(&mut self, what: &str, pick: impl Fn(&str) -> Option<T>) -> Result<T> {
        let started = Instant::now();
        loop {
            // Asked first: what it printed last is read once the readers have ended.
            let is_read = self.readers.iter().all(thread::JoinHandle::is_finished);
            if let Some(found) = self.printed().iter().find_map(|line| pick(line)) {
                return Ok(found);
            }
            let ended = self.child.try_wait()?;
            if (ended.is_some() && is_read) || started.elapsed() > PATIENCE {
                bail!("{}: no {what} ({ended:?}); it printed: {}", self.name, self.printed().join("\n"));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Processor time so far.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        Ok(usage::ticks(self.child.id().cast_signed())?.own)
    }

    /// Its proportional set size.
    pub(crate) fn pss_bytes(&self) -> Result<u64> {
        Ok(usage::pss_bytes(self.child.id().cast_signed())?)
    }

    /// Returns an error if it has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            ended => bail!("{} ended ({ended:?}); it printed: {}", self.name, self.printed().join("\n")),
        }
    }

    /// Asks it to end, and waits; returns what it printed.
    pub(crate) fn stop(mut self) -> Result<Vec<String>> {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGINT)?;
        let started = Instant::now();
        while self.child.try_wait()?.is_none() {
            if started.elapsed() > PATIENCE {
                bail!("{} does not end", self.name);
            }
            thread::sleep(Duration::from_millis(20));
        }
        for reader in std::mem::take(&mut self.readers) {
            reader.join().map_err(|_| anyhow::anyhow!("what {} printed cannot be read", self.name))?;
        }
        Ok(self.printed())
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) -> Result<()> {
        if self.child.try_wait()?.is_none() {
            self.child.kill()?;
            self.child.wait()?;
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

fn collect(from: impl std::io::Read + Send + 'static, into: Arc<Mutex<Vec<String>>>) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            into.lock().unwrap().push(line);
        }
    })
}

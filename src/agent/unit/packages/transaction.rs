//! Runs a program that changes packages under a shim, so that it goes on when the agent ends: the agent's own package may be among
//! those that it changes.
//!
//! There is one at a time on a host, in the folder `run`; `run.json` beside it says what it is for. After a restart the agent
//! follows it to its end.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use muster_base::{
    files::{PRIVATE_FOLDER, SECRET_MODE, make_folder, write_atomically},
    mount::remove_folder,
};
use muster_rules::plan::Failure;
use muster_shim::{
    CaptureResult, Launch, OutputMode, PROTOCOL, ProcessExit, ProgramEnd, RestartLimits, RestartOn, ShimEvent, files,
};
use muster_topics::{
    name::{Digest, UnitName},
    task::TaskAction,
};
use serde::{Deserialize, Serialize};

use super::{
    manager::{PackageAdapter, Program},
    program::Root,
};
use crate::{
    execute::prepare::find_program,
    shim::{AdoptedShim, ShimHandle, Shims},
    unit::failure::{from_shim, may_heal},
};

/// The most output of a run that is kept: apt says a few hundred bytes about each package.
const OUTPUT_MAX_BYTES: u64 = 16 * 1024 * 1024;

/// The last part of the output, by which a failure is explained.
const TAIL_MAX_BYTES: usize = 64 * 1024;

/// After this time a run is ended: a maintainer script hangs. A distribution's upgrade on a slow disk takes an hour.
const RUN_MAX_MS: u64 = 3 * 3_600_000;

/// How long it may then take to end: dpkg finishes the package at hand.
const GRACE_MS: u64 = 60_000;

/// What a run is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RunNote {
    pub(super) unit: UnitName,
    pub(super) revision: Digest,
    pub(super) action: TaskAction,
    pub(super) about: String,
}

/// How a run has ended.
#[derive(Clone, Debug)]
pub(super) struct RunEnd {
    pub(super) exit: ProcessExit,
    /// The last part of what it has said.
    pub(super) tail: String,
}

impl RunEnd {
    pub(super) fn is_ok(&self) -> bool {
        self.exit == ProcessExit::Code(0)
    }
}

/// The runs of a host.
pub(super) struct Transactions {
    shims: Shims,
    folder: PathBuf,
}

impl Transactions {
    /// Uses a folder.
    pub(super) fn new(shims: Shims, folder: &Path) -> Self {
        Self { shims, folder: folder.to_owned() }
    }

    fn run_folder(&self) -> PathBuf {
        self.folder.join("run")
    }

    fn note_file(&self) -> PathBuf {
        self.folder.join("run.json")
    }

    /// Runs a program to its end. There must be no other.
    pub(super) async fn run(
        &self,
        root: &Root,
        adapter: &dyn PackageAdapter,
        program: &Program,
        note: &RunNote,
        tell: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<RunEnd, Failure> {
        let prepared = || {
            make_folder(&self.folder, PRIVATE_FOLDER)?;
            write_atomically(&self.note_file(), &serde_json::to_vec(note)?, SECRET_MODE)
        };
        prepared().map_err(|error: io::Error| self.failure("written", &error))?;
        let launched = self.shims.launch(&self.run_folder(), &launch(root, adapter, program)?).await;
        let shim = launched.map_err(from_shim)?;
        let end = self.follow(Some(shim), tell).await?;
        self.forget()?;
        Ok(end)
    }

    /// What an earlier run is for, if there is one that has not been seen to its end.
    pub(super) fn left(&self) -> Option<RunNote> {
        serde_json::from_slice(&fs::read(self.note_file()).ok()?).ok()
    }

    /// Follows an earlier run to its end; `None` if nothing of it began.
    pub(super) async fn follow_left(&self, tell: &(dyn Fn(&str) + Send + Sync)) -> Result<Option<RunEnd>, Failure> {
        let found = self.shims.adopt(&self.run_folder()).await.map_err(from_shim)?;
        let end = match found {
            AdoptedShim::Nothing => None,
            AdoptedShim::Alive(shim) => Some(self.follow(Some(shim), tell).await?),
            AdoptedShim::Ended(_) => Some(self.follow(None, tell).await?),
        };
        self.forget()?;
        Ok(end)
    }

    /// Whether a run is under way.
    pub(super) async fn is_under_way(&self) -> bool {
        let found = self.shims.adopt(&self.run_folder()).await;
        // What cannot be told may be.
        matches!(found, Ok(AdoptedShim::Alive(_)) | Err(_))
    }

    /// Follows a run to its end, and tells each line.
    async fn follow(&self, shim: Option<ShimHandle>, tell: &(dyn Fn(&str) + Send + Sync)) -> Result<RunEnd, Failure> {
        let mut output = Output::new(self.run_folder().join(files::STDOUT));
        let mut shim = shim;
        loop {
            let event = match &mut shim {
                Some(shim) => shim.next().await,
                None => None,
            };
            match event {
                Some(ShimEvent::Output { .. }) => output.tell(tell),
                Some(ShimEvent::State(state)) if state.over => {
                    output.finish(tell);
                    return Ok(RunEnd {
                        exit: state.last.map_or(ProcessExit::Unknown, |last| last.exit),
                        tail: output.tail,
                    });
                }
                Some(_) => {}
                None => match self.shims.adopt(&self.run_folder()).await.map_err(from_shim)? {
                    AdoptedShim::Alive(found) => shim = Some(found),
                    AdoptedShim::Ended(ProgramEnd { exit, .. }) => {
                        output.finish(tell);
                        return Ok(RunEnd { exit, tail: output.tail });
                    }
                    AdoptedShim::Nothing => return Err(may_heal("the package manager left no record of its run")),
                },
            }
        }
    }

    fn forget(&self) -> Result<(), Failure> {
        let remove = || match fs::remove_file(self.note_file()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => remove_folder(&self.run_folder()),
        };
        remove().map_err(|error| self.failure("removed", &error))
    }

    fn failure(&self, what: &str, error: &io::Error) -> Failure {
        may_heal(format!("the folder of packages {} cannot be {what}: {error}", self.folder.display()))
    }
}

/// Its two streams are one, in the order in which it writes.
fn launch(root: &Root, adapter: &dyn PackageAdapter, program: &Program) -> Result<Launch, Failure> {
    let mut argv = ["/bin/sh", "-c", "exec \"$0\" \"$@\" 2>&1"].map(ToOwned::to_owned).to_vec();
    let mut words = root.argv(program);
    if let Some(first) = words.first_mut() {
        *first = find_program(first, Path::new("/")).map_err(|refusal| may_heal(refusal.diagnostic))?;
    }
    argv.extend(words);
    Ok(Launch {
        protocol: PROTOCOL,
        argv,
        env: adapter.environment(),
        cwd: "/".to_owned(),
        user: None,
        attributes: muster_shim::ProcessAttributes::default(),
        cgroup: muster_shim::cgroup::Cgroup::default(),
        inside: None,
        notify: None,
        forking: None,
        output: OutputMode::Capture(CaptureResult::of(OUTPUT_MAX_BYTES)),
        restart: RestartLimits { on: RestartOn::Never, budget: 0, reset_after_ms: 0 },
        timeout_ms: Some(RUN_MAX_MS),
        stop_signal: nix::sys::signal::Signal::SIGTERM as i32,
        grace_ms: GRACE_MS,
    })
}

/// The output of a run, as far as it was told.
struct Output {
    path: PathBuf,
    offset: u64,
    /// The beginning of a line.
    rest: Vec<u8>,
    tail: String,
}

impl Output {
    fn new(path: PathBuf) -> Self {
        Self { path, offset: 0, rest: Vec::new(), tail: String::new() }
    }

    /// Tells the lines that are complete.
    fn tell(&mut self, tell: &(dyn Fn(&str) + Send + Sync)) {
        if let Err(error) = self.read() {
            tracing::warn!(path = %self.path.display(), %error, "the output of a package manager cannot be read");
        }
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            self.take(&line, tell);
        }
        if self.rest.len() > TAIL_MAX_BYTES {
            let line = std::mem::take(&mut self.rest);
            self.take(&line, tell);
        }
    }

    /// Tells the rest, too.
    fn finish(&mut self, tell: &(dyn Fn(&str) + Send + Sync)) {
        self.tell(tell);
        let line = std::mem::take(&mut self.rest);
        if !line.is_empty() {
            self.take(&line, tell);
        }
    }

    fn read(&mut self) -> io::Result<()> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        file.seek(SeekFrom::Start(self.offset))?;
        self.offset += file.take(OUTPUT_MAX_BYTES).read_to_end(&mut self.rest)? as u64;
        Ok(())
    }

    fn take(&mut self, line: &[u8], tell: &(dyn Fn(&str) + Send + Sync)) {
        let line = String::from_utf8_lossy(line);
        tell(line.trim_end());
        self.tail.push_str(&line);
        if self.tail.len() > 2 * TAIL_MAX_BYTES {
            let from = self.tail.len() - TAIL_MAX_BYTES;
            let from = (from..).find(|at| self.tail.is_char_boundary(*at)).unwrap_or(from);
            self.tail.drain(..from);
        }
    }
}

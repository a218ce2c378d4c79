//! Launches a program: creates its folder, prepares its input and limits, and starts its shim.
//!
//! **Invariant: a program is launched only in a folder that was just created for it.**

use std::{
    fs::{self, DirBuilder},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, fchown},
    path::Path,
    sync::Arc,
};

use muster_base::mount::remove_folder;
use muster_rules::{CommandRefusal, plan::Slot};
use muster_shim::{Launch, StartStep, cgroup::Cgroup, files};
use muster_sqlite::room;
use muster_topics::{
    command::Exec,
    diagnostic::Diagnostic,
    name::{Name, UnitName},
    outcome::{RefusalCode, Status},
    process::Limits,
};
use tokio::task::spawn_blocking;

use super::{inside::RunningContainer, prepare, prepared_program::PreparedProgram};
use crate::{
    cgroup::CgroupTree,
    shim::{AdoptedShim, ShimError, Shims},
    unit::{Units, first_process::FirstProcess},
};

/// The result of a launch.
#[derive(Debug)]
pub(super) enum LaunchResult {
    /// The program runs, or has run.
    Runs(AdoptedShim),
    /// The host failed, or the result cannot be known.
    Over(Status),
}

/// Starts programs.
#[derive(Clone, Debug)]
pub(super) struct Launcher {
    pub(super) shims: Shims,
    /// The limits of each program, and where its cgroup is created.
    pub(super) limits: Limits,
    pub(super) tree: Arc<CgroupTree>,
    /// The units, whose containers programs can run in.
    pub(super) units: Option<Units>,
}

impl Launcher {
    /// Starts a program in a new folder; its cgroup, if it needs one, has this name.
    ///
    /// # Errors
    /// If it cannot be started as requested. Nothing of it remains then.
    pub(super) async fn begin(&self, folder: &Path, name: &str, exec: &Exec) -> Result<LaunchResult, CommandRefusal> {
        let first = self.first_process(exec).await?;
        self.shims.make_room().await;
        let (launcher, wanted, at, name_of) = (self.clone(), exec.clone(), folder.to_owned(), name.to_owned());
        // Looking up a user may query a remote directory.
        let prepared = spawn_blocking(move || launcher.prepare(&wanted, &at, &name_of, first));
        let launch = match prepared.await {
            Ok(Ok(launch)) => launch,
            Ok(Err(NotLaunched::Refused(refusal))) => return Err(refusal),
            Ok(Err(NotLaunched::Failed(error))) => {
                let told = Diagnostic::of_error(&error).within(folder.display());
                return Ok(LaunchResult::Over(Status::Failed(told.or_hint(room::hint(&error)))));
            }
            Err(error) => return Ok(LaunchResult::Over(Status::Failed(Diagnostic::new(&error)))),
        };
        match self.shims.launch(folder, &launch).await {
            Ok(shim) => Ok(LaunchResult::Runs(AdoptedShim::Alive(shim))),
            Err(ShimError::Start { program, step, source, .. }) => {
                self.remove(folder, name).await;
                Err(refusal(exec, &program, step, &source))
            }
            Err(error @ (ShimError::Cgroup { .. } | ShimError::Io { .. })) => {
                Ok(self.find_out(folder, name, &error).await)
            }
        }
    }

    /// Returns the first process of the container that a command runs in, if it does.
    pub(super) async fn first_process(&self, exec: &Exec) -> Result<Option<FirstProcess>, CommandRefusal> {
        let Some(container) = &exec.container else { return Ok(None) };
        match &self.units {
            Some(units) => units.first_process(container).await.map(Some),
            None => Err(CommandRefusal::new(RefusalCode::Unsupported, "this agent has no container runtime")),
        }
    }

    fn prepare(
        &self,
        exec: &Exec,
        folder: &Path,
        name: &str,
        first: Option<FirstProcess>,
    ) -> Result<Launch, NotLaunched> {
        let inside = exec.container.as_ref().zip(first);
        let inside = inside.map(|(unit, first)| RunningContainer::open(unit, first)).transpose()?;
        let PreparedProgram { mut launch, stdin } = prepare::prepare(exec, inside.as_ref())?;
        if !make_folder(folder)? {
            return Err(CommandRefusal::new(RefusalCode::Conflict, "this command has already begun").into());
        }
        let limits = exec.limits.and(self.limits);
        let made = put_stdin(folder, stdin.as_deref(), &launch).map_err(NotLaunched::from).and_then(|()| {
            match &inside {
                Some(container) => container.place(&mut launch, &format!("exec-{name}"), &limits)?,
                None => launch.cgroup = self.limit(limits, cgroup_name(name).as_ref())?,
            }
            Ok(launch)
        });
        if made.is_err() {
            // Nothing had begun here.
            let _ = remove_folder(folder);
        }
        made
    }

    /// Returns the cgroup that enforces a program's limits. If they cannot be enforced the program is refused, rather
    /// than run without limits.
    fn limit(&self, limits: Limits, cgroup: Option<&UnitName>) -> Result<Cgroup, CommandRefusal> {
        let Some(unit) = cgroup.filter(|_| !limits.is_none()) else { return Ok(Cgroup::default()) };
        let unsupported =
            |why: Diagnostic| CommandRefusal::new(RefusalCode::Unsupported, why.within("it cannot be limited here"));
        let made =
            self.tree.prepare((unit, Slot::First), &limits).map_err(|error| unsupported(Diagnostic::new(error)))?;
        if made.missing.is_empty() {
            return Ok(made.cgroup);
        }
        self.tree.remove((unit, Slot::First));
        Err(unsupported(Diagnostic::all(made.missing).unwrap_or_default()))
    }

    /// Finds out what happened after a launch failed in a way that leaves that open.
    async fn find_out(&self, folder: &Path, name: &str, error: &ShimError) -> LaunchResult {
        match self.shims.adopt(folder).await {
            Ok(AdoptedShim::Nothing) => {
                self.remove(folder, name).await;
                LaunchResult::Over(Status::Failed(Diagnostic::of(error)))
            }
            Ok(found) => LaunchResult::Runs(found),
            Err(_) => LaunchResult::Over(Status::Lost),
        }
    }

    /// Removes the files and the cgroup of a program.
    pub(super) async fn remove(&self, folder: &Path, name: &str) {
        if let Ok(launch) = files::read_launch(folder)
            && launch.inside.is_some()
        {
            launch.cgroup.remove();
        }
        let its_folder = folder.to_owned();
        let removed = spawn_blocking(move || remove_folder(&its_folder)).await.map_err(io::Error::other);
        if let Err(error) = removed.and_then(|removed| removed) {
            tracing::warn!(%error, "cannot delete {}", folder.display());
        }
        if let Some(unit) = cgroup_name(name) {
            // The shim has usually removed it, or there was none. A remaining process keeps it.
            self.tree.remove((&unit, Slot::First));
        }
    }
}

/// Why nothing was launched.
enum NotLaunched {
    Refused(CommandRefusal),
    Failed(io::Error),
}

impl From<CommandRefusal> for NotLaunched {
    fn from(refusal: CommandRefusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<io::Error> for NotLaunched {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

fn cgroup_name(name: &str) -> Option<UnitName> {
    format!("{}/{name}", Name::default_realm()).parse().ok()
}

/// Creates the folder of a program; returns whether it is new.
fn make_folder(folder: &Path) -> io::Result<bool> {
    let mut builder = DirBuilder::new();
    builder.mode(0o700);
    if let Some(parent) = folder.parent() {
        builder.recursive(true).create(parent)?;
    }
    match builder.recursive(false).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        made => made.map(|()| true),
    }
}

/// Writes the program's standard input to a file that its user may reopen.
fn put_stdin(folder: &Path, stdin: Option<&[u8]>, launch: &Launch) -> io::Result<()> {
    let Some(bytes) = stdin else { return Ok(()) };
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(folder.join(files::STDIN))?;
    if let (Some(user), None) = (&launch.user, &launch.inside) {
        // Only root may change the owner, and only root can run the program as another user.
        let _ = fchown(&file, Some(user.uid), None);
    }
    file.write_all(bytes)
}

/// The refusal for a program that was not started.
fn refusal(exec: &Exec, program: &str, step: StartStep, source: &io::Error) -> CommandRefusal {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    let asked = exec.argv.first().map_or(program, String::as_str);
    match (step, source.kind()) {
        (StartStep::Enter, kind) if kind != PermissionDenied => {
            CommandRefusal::new(RefusalCode::Conflict, format!("{asked} cannot be run: {source}"))
        }
        (StartStep::Cwd, _) => {
            CommandRefusal::new(RefusalCode::NoSuchFolder, format!("{asked} cannot be run: {source}"))
        }
        (StartStep::Exec, NotFound | NotADirectory) => {
            CommandRefusal::new(RefusalCode::NoSuchFile, format!("{asked}: {source}"))
        }
        (StartStep::Exec, kind) if kind == PermissionDenied || source.raw_os_error() == Some(nix::libc::ENOEXEC) => {
            CommandRefusal::new(
                RefusalCode::NotExecutable,
                Diagnostic::new(format_args!("{asked} cannot be run: {source}"))
                    .with_hint("is it executable for the user that runs it?"),
            )
        }
        (_, PermissionDenied) => CommandRefusal::new(
            RefusalCode::Denied,
            Diagnostic::new(format_args!("{asked} cannot be run: {source}"))
                .with_hint("only an agent that runs as root can become another user"),
        ),
        _ => CommandRefusal::new(RefusalCode::Invalid, format!("{asked} cannot be run: {source}")),
    }
}

//! The start of a program: its folder, what it reads, its limits, its shim.
//!
//! **Invariant: a program is launched only in a folder that was made for it just now.**

use std::{
    fs::{self, DirBuilder},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, fchown},
    path::Path,
    sync::Arc,
};

use muster_shim::{Launch, Step, cgroup::Cgroup, files};
use muster_topics::{
    command::Exec,
    name::{Name, UnitName},
    outcome::{RefusalCode, Status},
    process::Limits,
};
use tokio::task::spawn_blocking;

use super::{
    inside::Container,
    prepare::{self, Prepared},
};
use crate::{
    agent::{
        cgroup::Tree,
        shim::{Adopted, ShimError, Shims},
        unit::{FirstProcess, Units},
    },
    room,
    rules::{Refusal, plan::Slot},
};

/// What a launch has come to.
#[derive(Debug)]
pub(super) enum Begun {
    /// It runs, or has run.
    Runs(Adopted),
    /// The host itself failed, or nobody can know what became of it.
    Over(Status),
}

/// Starts programs.
#[derive(Clone, Debug)]
pub(super) struct Launcher {
    pub(super) shims: Shims,
    /// What each may use at most, and where that is made.
    pub(super) limits: Limits,
    pub(super) tree: Arc<Tree>,
    /// Which containers there are to run something in.
    pub(super) units: Option<Units>,
}

impl Launcher {
    /// Starts a program in a folder that is made for it; its cgroup, if it needs one, has this name.
    ///
    /// # Errors
    /// If it cannot be started as it was asked for. Nothing is left of it then.
    pub(super) async fn begin(&self, folder: &Path, name: &str, exec: &Exec) -> Result<Begun, Refusal> {
        let first = self.first_process(exec).await?;
        self.shims.make_room().await;
        let (launcher, wanted, at, name_of) = (self.clone(), exec.clone(), folder.to_owned(), name.to_owned());
        // Who a user is may be asked of a directory far away.
        let prepared = spawn_blocking(move || launcher.prepare(&wanted, &at, &name_of, first));
        let launch = match prepared.await {
            Ok(Ok(launch)) => launch,
            Ok(Err(Unprepared::Refused(refusal))) => return Err(refusal),
            Ok(Err(Unprepared::Failed(error))) => {
                return Ok(Begun::Over(failed(&format!("{}: {error}{}", folder.display(), room::advice(&error)))));
            }
            Err(error) => return Ok(Begun::Over(failed(&error))),
        };
        match self.shims.launch(folder, &launch).await {
            Ok(shim) => Ok(Begun::Runs(Adopted::Alive(shim))),
            Err(ShimError::Start { program, step, source, .. }) => {
                self.remove(folder, name).await;
                Err(refusal(exec, &program, step, &source))
            }
            Err(error @ (ShimError::Cgroup { .. } | ShimError::Io { .. })) => {
                Ok(self.find_out(folder, name, &error).await)
            }
        }
    }

    /// The first process of the container that a command is to run in, if it is.
    pub(super) async fn first_process(&self, exec: &Exec) -> Result<Option<FirstProcess>, Refusal> {
        let Some(container) = &exec.container else { return Ok(None) };
        match &self.units {
            Some(units) => units.first_process(container).await.map(Some),
            None => Err(Refusal::new(RefusalCode::Unsupported, "this agent keeps no containers")),
        }
    }

    fn prepare(
        &self,
        exec: &Exec,
        folder: &Path,
        name: &str,
        first: Option<FirstProcess>,
    ) -> Result<Launch, Unprepared> {
        let inside = exec.container.as_ref().zip(first);
        let inside = inside.map(|(unit, first)| Container::open(unit, first)).transpose()?;
        let Prepared { mut launch, stdin } = prepare::prepare(exec, inside.as_ref())?;
        if !make_folder(folder)? {
            return Err(Refusal::new(RefusalCode::Conflict, "this command was begun before").into());
        }
        let limits = exec.limits.and(self.limits);
        let made = put_stdin(folder, stdin.as_deref(), &launch).map_err(Unprepared::from).and_then(|()| {
            match &inside {
                Some(container) => container.place(&mut launch, &format!("exec-{name}"), &limits)?,
                None => launch.cgroup = self.limit(limits, cgroup_name(name).as_ref())?,
            }
            Ok(launch)
        });
        if made.is_err() {
            // Nothing was begun here.
            let _ = fs::remove_dir_all(folder);
        }
        made
    }

    /// The cgroup that holds a program to its limits. One that cannot be held to them is refused: whoever set them did
    /// not mean it to run without.
    fn limit(&self, limits: Limits, cgroup: Option<&UnitName>) -> Result<Cgroup, Refusal> {
        let Some(unit) = cgroup.filter(|_| !limits.is_none()) else { return Ok(Cgroup::default()) };
        let unsupported =
            |why: String| Refusal::new(RefusalCode::Unsupported, format!("it cannot be limited here: {why}"));
        let made = self.tree.prepare((unit, Slot::First), &limits).map_err(|error| unsupported(error.to_string()))?;
        if made.missing.is_empty() {
            return Ok(made.cgroup);
        }
        self.tree.remove((unit, Slot::First));
        Err(unsupported(made.missing.join("; ")))
    }

    /// A launch went wrong so that it is not certain that nothing was started.
    async fn find_out(&self, folder: &Path, name: &str, error: &ShimError) -> Begun {
        match self.shims.adopt(folder).await {
            Ok(Adopted::Nothing) => {
                self.remove(folder, name).await;
                Begun::Over(failed(error))
            }
            Ok(found) => Begun::Runs(found),
            Err(_) => Begun::Over(Status::Lost),
        }
    }

    /// Removes what there was for a program.
    pub(super) async fn remove(&self, folder: &Path, name: &str) {
        if let Ok(launch) = files::read_launch(folder)
            && launch.inside.is_some()
        {
            launch.cgroup.remove();
        }
        match tokio::fs::remove_dir_all(folder).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, "cannot delete {}", folder.display());
            }
            _ => {}
        }
        if let Some(unit) = cgroup_name(name) {
            // Mostly the shim has removed it, or there was none. What still runs in it keeps it.
            self.tree.remove((&unit, Slot::First));
        }
    }
}

/// Why nothing was launched.
enum Unprepared {
    Refused(Refusal),
    Failed(io::Error),
}

impl From<Refusal> for Unprepared {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<io::Error> for Unprepared {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

fn cgroup_name(name: &str) -> Option<UnitName> {
    format!("{}/{name}", Name::default_realm()).parse().ok()
}

/// Makes the folder of a program, and tells whether it is new.
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

/// Puts what a program reads beside what it will print, for its user to open again if it likes.
fn put_stdin(folder: &Path, stdin: Option<&[u8]>, launch: &Launch) -> io::Result<()> {
    let Some(bytes) = stdin else { return Ok(()) };
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(folder.join(files::STDIN))?;
    if let (Some(user), None) = (&launch.user, &launch.inside) {
        // Only root may give a file away, and who is not will not become that user either.
        let _ = fchown(&file, Some(user.uid), None);
    }
    file.write_all(bytes)
}

fn failed(why: &dyn std::fmt::Display) -> Status {
    Status::Failed { message: why.to_string() }
}

/// Why a program was not started, in words of the command.
fn refusal(exec: &Exec, program: &str, step: Step, source: &io::Error) -> Refusal {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    let asked = exec.argv.first().map_or(program, String::as_str);
    match (step, source.kind()) {
        (Step::Enter, kind) if kind != PermissionDenied => {
            Refusal::new(RefusalCode::Conflict, format!("{asked} cannot be run: {source}"))
        }
        (Step::Cwd, _) => Refusal::new(RefusalCode::NoSuchFolder, format!("{asked} cannot be run: {source}")),
        (Step::Exec, NotFound | NotADirectory) => Refusal::new(RefusalCode::NoSuchFile, format!("{asked}: {source}")),
        (Step::Exec, kind) if kind == PermissionDenied || source.raw_os_error() == Some(nix::libc::ENOEXEC) => {
            Refusal::new(
                RefusalCode::NotExecutable,
                format!("{asked} cannot be run: {source}\nhint: is it executable, for the user that is to run it?"),
            )
        }
        (_, PermissionDenied) => Refusal::new(
            RefusalCode::Denied,
            format!("{asked} cannot be run: {source}\nhint: only an agent that runs as root can become another user"),
        ),
        _ => Refusal::new(RefusalCode::Invalid, format!("{asked} cannot be run: {source}")),
    }
}

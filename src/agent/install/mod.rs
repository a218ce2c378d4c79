//! Installs the agent as a service of this host: `muster agent install` and `uninstall`.
//!
//! Modules, in reading order: this one (reads the state, prints the steps), [`plan`] (chooses the steps,
//! pure), [`perform`] (executes them).
//!
//! The unit file is `muster-agent.service`, which the Debian package installs as well; `package/` has the
//! rest of the package: a first configuration, and the maintainer scripts.
//!
//! **Invariant: nothing here ends a yuno.** Stopping the service ends only the agent's process.

mod args;
mod perform;
mod plan;

pub use args::{InstallArgs, InstallPaths, UninstallArgs};

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use muster_base::{
    config,
    failure::{Failure, FailureContext as _},
};
use muster_shim::{
    files::{self, StateFile},
    process_identity,
};

use self::plan::{InstallHost, InstallStep};
use crate::{config::Config, join};

/// Installs the agent as a service, or updates it.
///
/// # Errors
/// If that is not possible here, before anything was changed, or with the step that failed.
pub fn install(wanted: &InstallArgs) -> Result<(), Failure> {
    let wanted = &InstallArgs { join: wanted.given.token()?, ..wanted.clone() };
    let host = look(&wanted.place)?;
    let steps = plan::install(wanted, &host)?;
    if wanted.place.dry_run {
        return preview(&steps);
    }
    carry_out(&steps)?;
    next_after_install(wanted, &host);
    Ok(())
}

/// Removes the service.
///
/// # Errors
/// As [`install`].
pub fn uninstall(wanted: &UninstallArgs) -> Result<(), Failure> {
    let host = look(&wanted.place)?;
    let steps = plan::uninstall(wanted, &host)?;
    if wanted.place.dry_run {
        return preview(&steps);
    }
    if steps.is_empty() {
        say("no agent is installed here");
        return Ok(());
    }
    carry_out(&steps)?;
    for (unit, pid) in running_yunos(&host.data_dir()) {
        say(&format!("  {unit} keeps running (process {pid})"));
    }
    say(&format!("configuration and data are kept: {}, {}", host.config_path().display(), host.data_dir().display()));
    Ok(())
}

/// Examines this host.
fn look(place: &InstallPaths) -> Result<InstallHost, Failure> {
    let program = env::current_exe().trying("this program's own path")?;
    let mut host = InstallHost {
        root: place.root.clone(),
        prefix: place.prefix.clone(),
        is_root: nix::unistd::geteuid().is_root(),
        has_systemd: Path::new("/run/systemd/system").is_dir(),
        program: program.canonicalize().unwrap_or(program),
        ..InstallHost::default()
    };
    let read = |path: &Path| match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).trying(path.display()),
    };
    host.config = read(&host.config_path())?;
    host.unit = read(&host.unit_path())?;
    host.is_packaged = plan::PACKAGE_UNITS.iter().any(|path| host.below(path).exists());
    host.has_program = host.program_path().exists();
    host.is_enabled = fs::symlink_metadata(host.link_path()).is_ok();
    host.is_joined = join::load(&host.data_dir()).is_ok_and(|identity| identity.is_some());
    Ok(host)
}

fn preview(steps: &[InstallStep]) -> Result<(), Failure> {
    if steps.is_empty() {
        say("nothing to do");
    }
    for step in steps {
        say(&format!("would {step}"));
        if let InstallStep::Write { text, is_secret: false, .. } = step {
            muster_base::terminal::out(text.as_bytes())?;
        }
    }
    Ok(())
}

fn carry_out(steps: &[InstallStep]) -> Result<(), Failure> {
    for step in steps {
        perform::perform(step)?;
        say(&format!("{step}: done"));
    }
    Ok(())
}

fn next_after_install(wanted: &InstallArgs, host: &InstallHost) {
    let config = host.config_path();
    let has_token = wanted.join.is_some() || host.config.as_deref().is_some_and(plan::has_token);
    if !host.is_joined && !has_token {
        say("next: `muster token create` on the console's side, and here `muster agent install --now --join TOKEN`");
    } else if host.is_image() {
        say("next: start the image; the agent starts with it");
    } else if wanted.now {
        say(
            "the agent is running: `systemctl status muster-agent` shows its state, `journalctl -u muster-agent` its log",
        );
    } else {
        say("next: `systemctl restart muster-agent`; otherwise it starts with the host");
    }
    say(&format!("its configuration: {}", config.display()));
}

impl InstallHost {
    /// The agent's data folder, below the root.
    fn data_dir(&self) -> PathBuf {
        let config = self.config.as_ref().and_then(|_| {
            // The agent itself reports an unreadable one.
            config::load::<Config>("agent", Some(&self.config_path()), std::iter::empty()).ok()
        });
        self.below(&config.unwrap_or_default().data_dir.to_string_lossy())
    }
}

/// Returns the yunos that run under shims of an agent with this folder.
fn running_yunos(data_dir: &Path) -> Vec<(String, i32)> {
    let folders = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut running = Vec::new();
    for realm in folders(data_dir.join("units")) {
        for unit in folders(realm) {
            // One that is being replaced has two instances.
            for run in ["run", "run.2"] {
                let Ok(StateFile::State(state)) = files::read_state(&unit.join(run)) else { continue };
                let this_boot = process_identity::boot_id().is_ok_and(|boot_id| boot_id == state.boot_id);
                if let Some(main) = state.main.filter(|main| this_boot && process_identity::is_alive(main)) {
                    let name = unit.strip_prefix(data_dir.join("units")).unwrap_or(&unit);
                    running.push((name.display().to_string(), main.pid));
                }
            }
        }
    }
    running.sort();
    running
}

/// Prints a message for the user.
fn say(words: &str) {
    muster_base::terminal::err(&format!("{words}\n"));
}

//! The agent as a service of this host: `muster agent install` and `uninstall`.
//!
//! Modules, in reading order: this one (what is asked for, and what is said), [`plan`] (which steps that takes,
//! pure), [`perform`] (the steps).
//!
//! The unit file stands in `muster-agent.service`, which the Debian package brings as well; `package/` has the
//! rest of that: a first configuration, and the scripts that run when it is installed, upgraded or removed.
//!
//! **Invariant: nothing here ends a yuno.** The service is stopped by ending the agent's process alone.

mod perform;
mod plan;

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use clap::Args;
use muster_shim::{
    files::{self, Found},
    proc,
};
use muster_topics::join::JoinToken;

use self::plan::{Host, Step};
use crate::{
    agent::{config::Config, join},
    config,
    failure::{Context as _, Failure, Kind},
    join_args::JoinArgs,
};

/// Where things are put.
#[derive(Args, Clone, Debug)]
pub struct Where {
    /// The program goes into DIR/bin
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    prefix: PathBuf,
    /// Below this folder rather than in the running system: for making images
    #[arg(long, value_name = "DIR", default_value = "/", hide_default_value = true)]
    root: PathBuf,
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

/// Arguments of `muster agent install`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  muster agent install --now --join TOKEN    join with a token of `muster token create`, and stay\n  \
                        muster agent install --now                 bring program and service up to date; yunos go on\n  \
                        muster agent install --dry-run             say what would be done"
)]
pub struct Install {
    #[command(flatten)]
    place: Where,
    #[command(flatten)]
    given: JoinArgs,
    /// The token that is given; it is written to the configuration.
    #[arg(skip)]
    join: Option<JoinToken>,
    /// Start the agent now, or restart one that runs, rather than at the next boot
    #[arg(long)]
    now: bool,
}

/// Arguments of `muster agent uninstall`.
#[derive(Args, Clone, Debug)]
pub struct Uninstall {
    #[command(flatten)]
    place: Where,
}

/// Makes the agent a service, or brings it up to date.
///
/// # Errors
/// If that is not possible here; nothing has been done then, or the step that failed is named.
pub fn install(wanted: &Install) -> Result<(), Failure> {
    let wanted = &Install { join: wanted.given.token()?, ..wanted.clone() };
    let host = look(&wanted.place)?;
    let steps = plan::install(wanted, &host)?;
    if wanted.place.dry_run {
        return preview(&steps);
    }
    carry_out(&steps)?;
    next_after_install(wanted, &host);
    Ok(())
}

/// Takes the service away.
///
/// # Errors
/// As [`install`].
pub fn uninstall(wanted: &Uninstall) -> Result<(), Failure> {
    let host = look(&wanted.place)?;
    let steps = plan::uninstall(wanted, &host)?;
    if wanted.place.dry_run {
        return preview(&steps);
    }
    if steps.is_empty() {
        say("there is no agent to take away here");
        return Ok(());
    }
    carry_out(&steps)?;
    for (unit, pid) in running_yunos(&host.data_dir()) {
        say(&format!("  {unit} goes on (process {pid})"));
    }
    say(&format!("configuration and data stay: {}, {}", host.config_path().display(), host.data_dir().display()));
    Ok(())
}

/// What there is on this host.
fn look(place: &Where) -> Result<Host, Failure> {
    let program = env::current_exe().trying("this program's own path")?;
    let mut host = Host {
        root: place.root.clone(),
        prefix: place.prefix.clone(),
        is_root: nix::unistd::geteuid().is_root(),
        has_systemd: Path::new("/run/systemd/system").is_dir(),
        program: program.canonicalize().unwrap_or(program),
        ..Host::default()
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

fn preview(steps: &[Step]) -> Result<(), Failure> {
    if steps.is_empty() {
        say("there is nothing to do");
    }
    for step in steps {
        say(&format!("would {step}"));
        if let Step::Write { text, is_secret: false, .. } = step {
            crate::terminal::out(text.as_bytes())?;
        }
    }
    Ok(())
}

fn carry_out(steps: &[Step]) -> Result<(), Failure> {
    for step in steps {
        perform::perform(step)?;
        say(&format!("{step}: done"));
    }
    Ok(())
}

fn next_after_install(wanted: &Install, host: &Host) {
    let config = host.config_path();
    let has_token = wanted.join.is_some() || host.config.as_deref().is_some_and(plan::has_token);
    if !host.is_joined && !has_token {
        say("next: `muster token create` on the console's side, and here `muster agent install --now --join TOKEN`");
    } else if host.is_image() {
        say("next: start the image; the agent starts with it");
    } else if wanted.now {
        say(
            "the agent runs. `systemctl status muster-agent` tells what it does, `journalctl -u muster-agent` what it did",
        );
    } else {
        say("next: `systemctl restart muster-agent`; otherwise it starts with the host");
    }
    say(&format!("its configuration: {}", config.display()));
}

impl Host {
    /// The agent's data folder, below the root.
    fn data_dir(&self) -> PathBuf {
        let config = self.config.as_ref().and_then(|_| {
            // One that cannot be read is the agent's to complain about.
            config::load::<Config>("agent", Some(&self.config_path()), std::iter::empty()).ok()
        });
        self.below(&config.unwrap_or_default().data_dir.to_string_lossy())
    }
}

/// Yunos that run under shims of an agent with this folder.
fn running_yunos(data_dir: &Path) -> Vec<(String, i32)> {
    let folders = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut running = Vec::new();
    for realm in folders(data_dir.join("units")) {
        for unit in folders(realm) {
            // One that is being replaced has two.
            for run in ["run", "run.2"] {
                let Ok(Found::State(state)) = files::read_state(&unit.join(run)) else { continue };
                let this_boot = proc::boot_id().is_ok_and(|boot_id| boot_id == state.boot_id);
                if let Some(main) = state.main.filter(|main| this_boot && proc::is_alive(main)) {
                    let name = unit.strip_prefix(data_dir.join("units")).unwrap_or(&unit);
                    running.push((name.display().to_string(), main.pid));
                }
            }
        }
    }
    running.sort();
    running
}

/// Says something to the person who asked.
fn say(words: &str) {
    crate::terminal::err(&format!("{words}\n"));
}

/// A folder that is asked for has to be one that the unit file can name.
fn usage(message: String, hint: &str) -> Failure {
    Failure::new(Kind::Usage, message).hint(hint)
}

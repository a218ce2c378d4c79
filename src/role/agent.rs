//! `muster agent`: a host's agent as a process of its own, and its installation.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use clap::{Args, Subcommand};
use muster_agent::{
    AgentError, RunningAgent,
    config::{Config, Secret},
    install::{self, InstallArgs, UninstallArgs},
    join::{self, JoinError},
    join_args::JoinArgs,
    service_status,
};
use muster_base::{
    failure::{Failure, FailureKind},
    folders::UserFolders,
    reload::{self, HangUpSignals},
    role_args::RoleArgs,
    service_manager::ServiceManager,
};
use muster_doctor::config_files::{FileUse, NamedFile};
use muster_topics::{count::counted, diagnostic::Diagnostic};
use nix::unistd::geteuid;
use tokio_util::sync::CancellationToken;

use super::check_config::{self, ConfigReport, RoleRules};

/// The wait before an agent that did not start with a changed configuration is started again.
const START_PAUSE: Duration = Duration::from_secs(5);

/// Run, install or uninstall the agent of this host
#[derive(Args, Clone, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_long_help = "Yunos and commands keep running when the agent stops. On its host it answers at agent.sock in its \
                    folder:\n\
                    \x20 curl --unix-socket /var/lib/muster/agent/agent.sock http://agent/ping"
)]
pub(crate) struct AgentArgs {
    #[command(flatten)]
    role: RoleArgs,
    /// Data folder
    ///
    /// It has the agent's key, store and units.
    ///
    /// [default: without --config $XDG_DATA_HOME/muster-agent if that is set, else /var/lib/muster/agent for root and
    /// ~/.local/share/muster-agent for others]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    join: JoinArgs,
    #[command(subcommand)]
    verb: Option<AgentVerb>,
}

/// Operations on this host's agent.
#[derive(Subcommand, Clone, Debug)]
enum AgentVerb {
    /// Install the agent as a systemd service, or upgrade it
    Install(InstallArgs),
    /// Remove the systemd service; data and yunos stay
    Uninstall(UninstallArgs),
    /// Take all units out of their deployments, without a console
    Detach(DetachArgs),
}

/// Arguments of `muster agent detach`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "For a host whose console is lost for good. Stop the agent first: systemctl stop \
                       muster-agent. Units keep running; from then on verbs change them, and documents do not.")]
struct DetachArgs {
    /// Data folder
    ///
    /// [default: that of an agent without options]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

impl AgentArgs {
    /// What is to be said of the configuration, if that is asked for.
    pub(crate) fn config_report(&self) -> Option<ConfigReport> {
        let adjust = |config: &mut Config| match &self.data_dir {
            Some(folder) => {
                config.data_dir.clone_from(folder);
                vec![("data_dir", "--data-dir")]
            }
            None => {
                if self.role.config.is_none() && config.data_dir == default_folder() {
                    config.data_dir = own_folder();
                }
                Vec::new()
            }
        };
        self.role.check_config.then(|| check_config::examine("agent", &self.role, adjust, rules))
    }
}

/// What is known of a configuration beside its type.
fn rules(config: &Config) -> RoleRules {
    let file = NamedFile::new;
    let mut problems = config.problems();
    if let Err((path, error)) = config.clone().anchored() {
        problems.push(Diagnostic::new(format!("the path {:?} cannot be used: {error}", path.display().to_string())));
    }
    problems.extend(config.whole_policy().err().map(|error| Diagnostic::of(&error)));
    let mut files = vec![
        file("data_dir", &config.data_dir, FileUse::OwnFolder, ""),
        file(
            "packages.root_dir",
            &config.packages.root_dir,
            FileUse::Folder,
            "name the root of a tree with its packages",
        ),
    ];
    let lxc = config.containers.lxc_dir.as_deref();
    files.extend(lxc.map(|path| file("containers.lxc_dir", path, FileUse::OwnFolder, "")));
    let allowed = config.files.dirs.iter().flatten();
    files.extend(allowed.map(|path| file("files.dirs", path, FileUse::Folder, "make it, or leave it out")));
    let program = config.admission.command.first().filter(|program| !program.is_empty()).map(Path::new);
    files.extend(program.map(|path| file("admission.command", path, FileUse::Program, "name a program with its path")));
    RoleRules { problems, files, listeners: Vec::new() }
}

/// Runs an agent until `shutdown`, or performs an operation that needs no agent.
///
/// # Errors
/// If it cannot start.
pub(crate) async fn agent(args: AgentArgs, shutdown: CancellationToken) -> Result<(), Failure> {
    match args.verb {
        Some(AgentVerb::Install(wanted)) => return install::install(&wanted),
        Some(AgentVerb::Uninstall(wanted)) => return install::uninstall(&wanted),
        Some(AgentVerb::Detach(wanted)) => return detach(wanted).await,
        None => {}
    }
    // It may come from standard input, which can only be read once.
    let token = args.join.token()?;
    let is_named = AtomicBool::new(true);
    let load = || {
        args.role.load("agent", |config: &mut Config| {
            let default = default_folder();
            let named = args.data_dir.is_some() || args.role.config.is_some() || config.data_dir != default;
            is_named.store(named, Ordering::Relaxed);
            if let Some(data_dir) = &args.data_dir {
                config.data_dir.clone_from(data_dir);
            } else if !named {
                config.data_dir = folder_of_user(&UserFolders::from_environment(), geteuid().is_root());
            }
            if let Some(token) = &token {
                config.join = Some(Secret::new(token.clone()));
            }
            Ok(())
        })
    };
    let Some(mut config) = load()? else { return Ok(()) };
    if config.join.is_some() && !is_named.load(Ordering::Relaxed) {
        ask_for_folder(&config)?;
    }
    tracing::info!(folder = %config.data_dir.display(), "the agent's key, store and units (`--data-dir`)");
    let mut hang_ups = HangUpSignals::listen()?;
    let manager = ServiceManager::of_this_process()?;
    let mut running = tokio::select! {
        running = muster_agent::start_managed(config.clone(), &manager) => running.map_err(|error| start_failure(&error))?,
        () = shutdown.cancelled() => return Ok(()),
    };
    loop {
        let must_restart = tokio::select! {
            () = service_status::follow(&manager, &running, &shutdown) => break,
            () = hang_ups.next() => false,
            () = running.must_restart() => true,
        };
        if must_restart {
            running.stop().await;
            match start_until_it_works(&config, &manager, &shutdown).await {
                Some(again) => running = again,
                None => return Ok(()),
            }
            continue;
        }
        match load() {
            Ok(Some(new)) => {
                running.stop().await;
                match start_again(new, &mut config, &manager, &shutdown).await {
                    Some(again) => running = again,
                    None => return Ok(()),
                }
            }
            Ok(None) => {}
            Err(failure) => reload::log("agent", Err(failure)),
        }
    }
    running.stop().await;
    Ok(())
}

async fn detach(wanted: DetachArgs) -> Result<(), Failure> {
    let folder = wanted.data_dir.unwrap_or_else(own_folder);
    std::fs::metadata(&folder).map_err(|error| Failure::of_file(&folder, &error))?;
    let count = muster_agent::detach(&folder).await.map_err(|error| start_failure(&error))?;
    muster_base::terminal::err(&format!("detached {} from deployments\n", counted(count, "unit")));
    Ok(())
}

/// Starts the agent with a changed configuration; yunos and commands continue meanwhile. If the agent does not start,
/// it is started with the configuration `before`. Returns `None` on shutdown.
async fn start_again(
    new: Config,
    before: &mut Config,
    manager: &ServiceManager,
    shutdown: &CancellationToken,
) -> Option<RunningAgent> {
    match try_start(&new, manager, shutdown).await? {
        Ok(running) => {
            *before = new;
            reload::log("agent", Ok(Vec::new()));
            return Some(running);
        }
        Err(failure) => reload::log("agent", Err(failure)),
    }
    start_until_it_works(before, manager, shutdown).await
}

/// Starts the agent, again and again until it has started. Returns `None` on shutdown.
async fn start_until_it_works(
    config: &Config,
    manager: &ServiceManager,
    shutdown: &CancellationToken,
) -> Option<RunningAgent> {
    loop {
        match try_start(config, manager, shutdown).await? {
            Ok(running) => return Some(running),
            Err(failure) => reload::log("agent", Err(failure)),
        }
        shutdown.run_until_cancelled(tokio::time::sleep(START_PAUSE)).await?;
    }
}

async fn try_start(
    config: &Config,
    manager: &ServiceManager,
    shutdown: &CancellationToken,
) -> Option<Result<RunningAgent, Failure>> {
    let started = shutdown.run_until_cancelled(muster_agent::start_managed(config.clone(), manager)).await?;
    Some(started.map_err(|error| start_failure(&error)))
}

/// The default data folder of an agent.
fn default_folder() -> PathBuf {
    Config::default().data_dir
}

/// The folder of an agent that this user starts by hand, without options.
pub(crate) fn own_folder() -> PathBuf {
    folder_of_user(&UserFolders::from_environment(), geteuid().is_root())
}

/// The default data folder of an agent that is started by hand: this user's data folder, or for root the host's agent
/// folder.
fn folder_of_user(folders: &UserFolders, is_root: bool) -> PathBuf {
    let data = if is_root { folders.named_data().map(Path::to_owned) } else { folders.data() };
    data.map_or_else(default_folder, |data| data.join("muster-agent"))
}

/// Refuses to join as a new host in the default folder if it contains another identity. The same token means the same
/// agent.
fn ask_for_folder(config: &Config) -> Result<(), Failure> {
    let (folder, token) = (&config.data_dir, config.join.as_ref().map(Secret::reveal));
    let there = join::load(folder).map_err(|error| Failure::of(FailureKind::Failed, &error))?;
    if there.is_none() || token.is_some_and(|token| !join::is_another_token(folder, token)) {
        return Ok(());
    }
    let path = folder.display();
    Err(Failure::new(FailureKind::Usage, format!("{path} has an agent that is a member of a fleet already")).hint(
        format!(
            "to join that agent again with this token, pass --data-dir {path}; for another host, use another folder"
        ),
    ))
}

fn start_failure(error: &AgentError) -> Failure {
    let kind = match error {
        AgentError::Config(_) | AgentError::NotJoined => FailureKind::Usage,
        AgentError::Join(JoinError::Refused { .. }) => FailureKind::Refused,
        _ => FailureKind::Failed,
    };
    Failure::of(kind, error)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn the_folder_is_that_of_the_user() {
        for (data, home, is_root, wanted) in [
            (None, Some("/home/anna"), false, "/home/anna/.local/share/muster-agent"),
            (Some("/data"), Some("/home/anna"), false, "/data/muster-agent"),
            (Some("/data"), Some("/root"), true, "/data/muster-agent"),
            (None, Some("/root"), true, "/var/lib/muster/agent"),
            (Some(""), Some(""), false, "/var/lib/muster/agent"),
            (Some("dat"), Some("/home/anna"), false, "/home/anna/.local/share/muster-agent"),
            (Some("dat"), Some("/root"), true, "/var/lib/muster/agent"),
            (Some("dat"), Some("anna"), false, "/var/lib/muster/agent"),
            (None, None, false, "/var/lib/muster/agent"),
        ] {
            let variable = |name: &str| match name {
                "XDG_DATA_HOME" => data.map(OsString::from),
                _ => home.map(OsString::from),
            };
            assert_eq!(
                folder_of_user(&UserFolders::read(variable), is_root),
                PathBuf::from(wanted),
                "{data:?} {home:?} {is_root}"
            );
        }
    }
}

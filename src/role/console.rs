//! `muster console`: a fleet's console as a process of its own, and tools that work on its data folder.

use std::{
    io::{self, IsTerminal as _},
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use futures_util::future::BoxFuture;
use muster_base::{
    failure::{Failure, FailureKind},
    reload::{self, HangUpSignals},
    role_args::RoleArgs,
    service_manager::ServiceManager,
};
use muster_console::{
    ConsoleError,
    config::Config,
    issue::{self, CertificatesArgs, InitArgs, IssueArgs, RevokeArgs},
};
use muster_doctor::config_files::{FileUse, NamedFile};
use tokio_util::sync::CancellationToken;

use super::check_config::{self, ConfigReport, RoleRules};

/// Run a fleet's console, or make certificates
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ConsoleArgs {
    #[command(flatten)]
    role: RoleArgs,
    #[command(subcommand)]
    verb: Option<ConsoleVerb>,
}

/// Operations on a console's data folder.
#[derive(Subcommand, Clone, Debug)]
enum ConsoleVerb {
    /// Create the authority of a new fleet
    ///
    /// For certificates that are needed before the console first starts.
    Init(InitArgs),
    /// Issue a certificate for a broker, an operator or an observer
    Issue(IssueArgs),
    /// List certificates that were issued by hand and are valid
    Certificates(CertificatesArgs),
    /// Revoke a certificate
    ///
    /// A console that runs notices it within five seconds.
    Revoke(RevokeArgs),
}

impl ConsoleArgs {
    /// What is to be said of the configuration, if that is asked for.
    pub(crate) fn config_report(&self) -> Option<ConfigReport> {
        self.role.check_config.then(|| check_config::examine("console", &self.role, |_| Vec::new(), rules))
    }
}

/// What is known of a configuration beside its type.
fn rules(config: &Config) -> RoleRules {
    let file = NamedFile::new;
    let program = config.revocation_command.first().map(Path::new);
    let program =
        program.map(|path| file("revocation_command", path, FileUse::Program, "name a program with its path"));
    let roots = config.rollouts.authority_file.as_deref();
    let roots =
        roots.map(|path| file("rollouts.authority_file", path, FileUse::Text, "a PEM file of authorities to trust"));
    let backups = config.backup.dir.as_deref().map(|path| file("backup.dir", path, FileUse::OwnFolder, ""));
    let outlets = config.alert_outlets.iter().filter_map(|one| Some(("alert_outlets", one.secret_file.as_deref()?)));
    let stores = config.metric_stores.iter().filter_map(|one| Some(("metric_stores", one.secret_file.as_deref()?)));
    // Of those that cannot be read the console's own check says more.
    let secrets = outlets.chain(stores).filter(|(_, path)| path.exists());
    let secrets = secrets.map(|(key, path)| file(&format!("{key}.secret_file"), path, FileUse::Secret, ""));
    let data = file("data_dir", &config.data_dir, FileUse::OwnFolder, "");
    RoleRules {
        problems: muster_console::problems(config),
        files: [data].into_iter().chain(program).chain(roots).chain(backups).chain(secrets).collect(),
        listeners: vec![("web_listen", config.web_listen), ("hosts_listen", config.hosts_listen)],
    }
}

/// Runs a console until `shutdown`, or performs an operation that needs none.
///
/// # Errors
/// If it cannot start.
pub(crate) async fn console(args: ConsoleArgs, shutdown: CancellationToken) -> Result<(), Failure> {
    match args.verb {
        Some(ConsoleVerb::Init(wanted)) => return issue::init(wanted),
        Some(ConsoleVerb::Issue(wanted)) => return issue::issue(wanted).await,
        Some(ConsoleVerb::Certificates(wanted)) => return issue::list(wanted).await,
        Some(ConsoleVerb::Revoke(wanted)) => return issue::revoke(wanted).await,
        None => {}
    }
    let load = || args.role.load("console", |_: &mut Config| Ok(()));
    let Some(config) = load()? else { return Ok(()) };
    let (mut hang_ups, manager) = (HangUpSignals::listen()?, ServiceManager::of_this_process()?);
    let running = muster_console::start(config).await.map_err(|error| failed(&error))?;
    let url = running.console().web_url().to_owned();
    // Output that is not a terminal may be logged, and a log must not contain secrets.
    let link = match io::stderr().is_terminal() {
        true => {
            let link = running.console().new_sign_in_link().await;
            Some(link.map_err(|error| Failure::told(FailureKind::Failed, error.problem.diagnostic))?)
        }
        false => None,
    };
    tell(&url, link.as_deref());
    manager.ready(&format!("pages and API at {url}"));
    tokio::spawn(muster_base::memory_release::trim_heaps_each_minute(shutdown.clone()));
    while shutdown.run_until_cancelled(hang_ups.next()).await.is_some() {
        let taken = load().and_then(|config| match config {
            Some(config) => running.reload(config).map_err(|error| failed(&error)),
            None => Ok(Vec::new()),
        });
        reload::log("console", taken);
    }
    manager.stopping("the console has ended");
    running.stop().await;
    Ok(())
}

fn failed(error: &ConsoleError) -> Failure {
    Failure::told(FailureKind::Failed, error.diagnostic())
}

/// Tells a person at a terminal how to sign in; a log must not contain the secret.
fn tell(url: &str, link: Option<&str>) {
    let words = match link {
        Some(link) => {
            format!("sign in once, within 15 minutes: {link}\n(in the command line: muster login LINK)\n")
        }
        None => {
            format!("the console is at {url}; `muster login --new-link`, on this machine, prints a sign-in link\n")
        }
    };
    muster_base::terminal::err(&words);
}

/// Creates a sign-in link for a console on this machine: the one in `data_dir` (the folder of a console or of `muster
/// up`), or the one in a default folder.
#[cfg(feature = "cli")]
pub(crate) fn new_sign_in_link(data_dir: Option<PathBuf>) -> BoxFuture<'static, Result<String, Failure>> {
    let folders = match data_dir {
        Some(folder) => vec![folder.join("console"), folder],
        None => {
            let mut folders = Vec::new();
            #[cfg(all(feature = "agent", feature = "broker"))]
            folders.extend(crate::up::default_data().ok().map(|folder| folder.join("console")));
            folders.push(Config::default().data_dir);
            folders
        }
    };
    Box::pin(async move { issue::new_sign_in_link(&folders).await })
}

//! The long-lived roles as processes of their own: `muster agent`, `muster console`, `muster broker`,
//! each from a file of its own.

use std::{env, path::PathBuf, time::Duration};

use clap::Args;
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{self, ConfigError},
    failure::{Failure, Kind},
};

/// What every role understands.
#[derive(Args, Clone, Debug)]
pub struct RoleArgs {
    /// The role's configuration (TOML); `MUSTER_<ROLE>_<KEY>` variables override its keys
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print the effective configuration with every key, what it is for and its default, with secrets as ***, and end
    #[arg(long)]
    pub print_config: bool,
}

impl RoleArgs {
    /// The role's configuration; nothing if it was only to be printed. `overrides` come last.
    pub(crate) fn load<T>(
        &self,
        role: &str,
        overrides: impl FnOnce(&mut T) -> Result<(), Failure>,
    ) -> Result<Option<T>, Failure>
    where
        T: DeserializeOwned + Serialize + JsonSchema + Default,
    {
        let environment =
            env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let mut config: T = config::load(role, self.config.as_deref(), environment).map_err(failure)?;
        overrides(&mut config)?;
        if !self.print_config {
            return Ok(Some(config));
        }
        let text = config::print(&config).map_err(|error| Failure::new(Kind::Failed, error))?;
        crate::terminal::out(text.as_bytes())?;
        Ok(None)
    }
}

fn failure(error: ConfigError) -> Failure {
    Failure::told(Kind::Usage, error.to_string())
}

#[cfg(feature = "agent")]
pub use self::agent::{AgentArgs, agent};

#[cfg(feature = "agent")]
mod agent {
    use std::{
        path::Path,
        sync::atomic::{AtomicBool, Ordering},
    };

    use clap::Subcommand;
    use nix::unistd::geteuid;

    use super::*;
    use crate::{
        agent::{
            self, AgentError, RunningAgent,
            config::{Config, Secret},
            join::{self, JoinError},
            manager::Manager,
        },
        folders::UserFolders,
        install::{self, Install, Uninstall},
        join_args::JoinArgs,
        reload::{self, HangUps},
    };

    /// The pause before an agent is started again that did not start with what it had.
    const START_PAUSE: Duration = Duration::from_secs(5);

    /// Run this host's agent
    #[derive(Args, Clone, Debug)]
    #[command(
        args_conflicts_with_subcommands = true,
        after_help = "Examples:\n  muster agent install --now --join TOKEN    as a service of systemd, from now on\n  \
                            muster agent --join TOKEN              join with a token of `muster token create`, and stay\n  \
                            muster agent --config /etc/muster/agent.toml\n  muster agent --print-config            every key, with its default\n\n\
                            Yunos and commands go on when the agent stops. On its host it answers at agent.sock in its folder:\n  \
                            curl --unix-socket /var/lib/muster/agent/agent.sock http://agent/ping"
    )]
    pub struct AgentArgs {
        #[command(flatten)]
        role: RoleArgs,
        /// Where the agent keeps its key, its store and its units [default: without --config $XDG_DATA_HOME/muster-agent if
        /// that is set, else /var/lib/muster/agent for root and ~/.local/share/muster-agent for others]
        #[arg(long, value_name = "DIR")]
        data_dir: Option<PathBuf>,
        #[command(flatten)]
        join: JoinArgs,
        #[command(subcommand)]
        verb: Option<Verb>,
    }

    /// What can be done about an agent of this host.
    #[derive(Subcommand, Clone, Debug)]
    enum Verb {
        /// Make the agent a service of systemd, or bring one up to date
        Install(Install),
        /// Take the service away again; configuration, data and yunos stay
        Uninstall(Uninstall),
    }

    /// Runs an agent until `shutdown`, or does what can be done without one.
    ///
    /// # Errors
    /// If it cannot start.
    pub async fn agent(args: AgentArgs, shutdown: CancellationToken) -> Result<(), Failure> {
        match args.verb {
            Some(Verb::Install(wanted)) => return install::install(&wanted),
            Some(Verb::Uninstall(wanted)) => return install::uninstall(&wanted),
            None => {}
        }
        // It may come from standard input, which is read once.
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
        let mut hang_ups = HangUps::listen()?;
        let manager = Manager::from_environment(|name| env::var_os(name), std::process::id())
            .map_err(|error| Failure::new(Kind::Usage, error))?;
        let mut running = tokio::select! {
            running = agent::start_managed(config.clone(), &manager) => running.map_err(|error| start_failure(&error))?,
            () = shutdown.cancelled() => return Ok(()),
        };
        loop {
            let life = shutdown.child_token();
            tokio::spawn(crate::lean::stay_lean(running.measured(), life.clone()));
            tokio::select! {
                () = manager.follow(&running, &shutdown) => break,
                () = hang_ups.next() => (),
            }
            match load() {
                Ok(Some(new)) => {
                    life.cancel();
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

    /// Starts the agent with a configuration that was read anew, which is all that an agent has to do to take it: yunos and
    /// commands go on meanwhile. If it does not start with that, it does with the one `before`. Nothing, if it is to end.
    async fn start_again(
        new: Config,
        before: &mut Config,
        manager: &Manager,
        shutdown: &CancellationToken,
    ) -> Option<RunningAgent> {
        let start = async |config: &Config| {
            let started = shutdown.run_until_cancelled(agent::start_managed(config.clone(), manager)).await?;
            Some(started.map_err(|error| start_failure(&error)))
        };
        match start(&new).await? {
            Ok(running) => {
                *before = new;
                reload::log("agent", Ok(Vec::new()));
                return Some(running);
            }
            Err(failure) => reload::log("agent", Err(failure)),
        }
        loop {
            match start(before).await? {
                Ok(running) => return Some(running),
                Err(failure) => reload::log("agent", Err(failure)),
            }
            shutdown.run_until_cancelled(tokio::time::sleep(START_PAUSE)).await?;
        }
    }

    /// Where an agent keeps things that nobody has told.
    fn default_folder() -> PathBuf {
        Config::default().data_dir
    }

    /// Where an agent keeps things that is started by hand: where this user's programs do, if that is said; root's is the
    /// one of the whole host.
    fn folder_of_user(folders: &UserFolders, is_root: bool) -> PathBuf {
        let data = if is_root { folders.named_data().map(Path::to_owned) } else { folders.data() };
        data.map_or_else(default_folder, |data| data.join("muster-agent"))
    }

    /// Who joins as somebody new does not want to be who is there already. The same token again means the same agent.
    fn ask_for_folder(config: &Config) -> Result<(), Failure> {
        let (folder, token) = (&config.data_dir, config.join.as_ref().map(Secret::reveal));
        let there =
            join::load(folder).map_err(|error| Failure::told(Kind::Failed, crate::failure::with_causes(&error)))?;
        if there.is_none() || token.is_some_and(|token| !join::is_another_token(folder, token)) {
            return Ok(());
        }
        let path = folder.display();
        Err(Failure::new(Kind::Usage, format!("there is an agent in {path}, which is a member of a fleet already"))
            .hint(format!(
                "to have that one join with this token, say --data-dir {path}; for another host, name another folder"
            )))
    }

    fn start_failure(error: &AgentError) -> Failure {
        let kind = match error {
            AgentError::Config(_) | AgentError::NotJoined => Kind::Usage,
            AgentError::Join(JoinError::Refused { .. }) => Kind::Refused,
            _ => Kind::Failed,
        };
        Failure::told(kind, crate::failure::with_causes(error))
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
}

#[cfg(feature = "console")]
pub use self::console::{ConsoleArgs, console};

#[cfg(feature = "console")]
mod console {
    use std::io::{self, IsTerminal as _};

    use clap::Subcommand;

    use super::*;
    use crate::{
        console::{self, config::Config},
        issue::{self, Init, Issue, Issued, Revoke},
        reload::{self, HangUps},
    };

    /// Run the console of a fleet
    #[derive(Args, Clone, Debug)]
    #[command(
        args_conflicts_with_subcommands = true,
        after_help = "Examples:\n  muster console --config /etc/muster/console.toml\n  \
                            muster console --print-config           every key, with its default\n  \
                            muster console init                     before the broker of a new fleet gets its certificate\n  \
                            muster console issue --role broker --name broker --san 192.0.2.5 --out /etc/muster/broker"
    )]
    pub struct ConsoleArgs {
        #[command(flatten)]
        role: RoleArgs,
        #[command(subcommand)]
        verb: Option<Verb>,
    }

    /// What can be done with a console's data folder alone.
    #[derive(Subcommand, Clone, Debug)]
    enum Verb {
        /// Make the authority of a new fleet, for certificates that are needed before the console first starts
        Init(Init),
        /// Make a certificate with the fleet's authority: for a broker, or for somebody who reads the bus
        Issue(Issue),
        /// List the certificates that were made so and have not expired
        Issued(Issued),
        /// Revoke a certificate; a console that runs hears of it within five seconds
        Revoke(Revoke),
    }

    /// Runs a console until `shutdown`, or does what can be done without one.
    ///
    /// # Errors
    /// If it cannot start.
    pub async fn console(args: ConsoleArgs, shutdown: CancellationToken) -> Result<(), Failure> {
        match args.verb {
            Some(Verb::Init(wanted)) => return issue::init(wanted),
            Some(Verb::Issue(wanted)) => return issue::issue(wanted).await,
            Some(Verb::Issued(wanted)) => return issue::list(wanted).await,
            Some(Verb::Revoke(wanted)) => return issue::revoke(wanted).await,
            None => {}
        }
        let load = || args.role.load("console", |_: &mut Config| Ok(()));
        let Some(config) = load()? else { return Ok(()) };
        let mut hang_ups = HangUps::listen()?;
        let running = console::start(config).await.map_err(|error| Failure::told(Kind::Failed, error.to_string()))?;
        let url = running.console().web_url().to_owned();
        // What is no terminal may be a log, and that is no place for a secret.
        let link = match io::stderr().is_terminal() {
            true => {
                Some(running.console().new_sign_in_link().await.map_err(|error| Failure::new(Kind::Failed, error))?)
            }
            false => None,
        };
        tell(&url, link.as_deref());
        tokio::spawn(crate::lean::stay_small(shutdown.clone()));
        while shutdown.run_until_cancelled(hang_ups.next()).await.is_some() {
            let taken = load().and_then(|config| match config {
                Some(config) => running.reload(config).map_err(|error| Failure::told(Kind::Failed, error.to_string())),
                None => Ok(Vec::new()),
            });
            reload::log("console", taken);
        }
        running.stop().await;
        Ok(())
    }

    /// A person who started it is told how to get in; a log is no place for a secret.
    fn tell(url: &str, link: Option<&str>) {
        let words = match link {
            Some(link) => {
                format!("sign in, once and within 15 minutes: {link}\n(in the command line: muster login LINK)\n")
            }
            None => {
                format!("the console is at {url}; `muster login --new-link`, on this machine, prints a sign-in link\n")
            }
        };
        crate::terminal::err(&words);
    }
}

#[cfg(feature = "broker")]
pub use self::broker::{BrokerArgs, broker};

#[cfg(feature = "broker")]
mod broker {
    use clap::Subcommand;

    use super::*;
    use crate::{
        broker, password,
        reload::{self, HangUps},
        render::{self, Render},
    };

    /// Run the embedded broker by itself
    #[derive(Args, Clone, Debug)]
    #[command(
        args_conflicts_with_subcommands = true,
        after_help = "Examples:\n  muster console init\n  muster console issue --role broker --name broker --san 192.0.2.5 --out /etc/muster/broker\n  \
                            muster broker --config /etc/muster/broker.toml\n  muster broker --print-config            every key, with its default\n  muster broker password operator-anna >> /etc/muster/broker/users"
    )]
    pub struct BrokerArgs {
        #[command(flatten)]
        role: RoleArgs,
        #[command(subcommand)]
        verb: Option<Verb>,
    }

    /// What can be done without a broker.
    #[derive(Subcommand, Clone, Debug)]
    enum Verb {
        /// Write another broker's configuration with the same rules
        Render(Render),
        /// Print a line of a users file, for somebody who connects with a password
        ///
        /// The password is asked for, or read from standard input if that is no terminal.
        Password {
            /// Whom it is for: a host's id, console-NAME, operator-NAME or observer-NAME
            name: String,
        },
    }

    /// Runs a broker until `shutdown`, or does what can be done without one.
    ///
    /// # Errors
    /// If it cannot start.
    pub async fn broker(args: BrokerArgs, shutdown: CancellationToken) -> Result<(), Failure> {
        match args.verb {
            Some(Verb::Render(wanted)) => return render::run(&wanted),
            Some(Verb::Password { name }) => return password::print_line(&name, &shutdown).await,
            None => {}
        }
        let load = || args.role.load("broker", |_: &mut broker::Config| Ok(()));
        let Some(config) = load()? else { return Ok(()) };
        let mut hang_ups = HangUps::listen()?;
        let mut running = broker::start(config).await?;
        let broker = running.broker();
        tell("mqtts", broker.local_addr());
        broker.websocket_addr().into_iter().for_each(|address| tell("wss", address));
        broker.plain_addr().into_iter().for_each(|address| tell("mqtt", address));
        while shutdown.run_until_cancelled(hang_ups.next()).await.is_some() {
            let taken = load().and_then(|config| config.map_or(Ok(Vec::new()), |config| running.reload(config)));
            reload::log("broker", taken);
        }
        running.stop().await;
        Ok(())
    }

    fn tell(scheme: &str, address: std::net::SocketAddr) {
        crate::terminal::err(&format!("the broker listens on {scheme}://{address}\n"));
    }
}

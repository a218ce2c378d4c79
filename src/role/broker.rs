//! `muster broker`: the embedded broker as a process of its own, and tools for other brokers.

use clap::{Args, Subcommand};
use muster_base::{
    failure::Failure,
    reload::{self, HangUpSignals},
    role_args::RoleArgs,
    service_manager::ServiceManager,
};
use tokio_util::sync::CancellationToken;

use super::{
    check_config::{self, ConfigReport},
    embedded_broker, password,
    render::{self, RenderArgs},
};

/// Run the embedded broker by itself
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BrokerArgs {
    #[command(flatten)]
    role: RoleArgs,
    #[command(subcommand)]
    verb: Option<BrokerVerb>,
}

/// Operations that need no running broker.
#[derive(Subcommand, Clone, Debug)]
enum BrokerVerb {
    /// Write the configuration of another broker
    Render(RenderArgs),
    /// Print a line of a users file for a name and a password
    ///
    /// The password is asked for, or read from standard input if that is not a terminal.
    Password {
        /// Host's id, console-NAME, operator-NAME or observer-NAME
        name: String,
    },
}

impl BrokerArgs {
    /// What is to be said of the configuration, if that is asked for.
    pub(crate) fn config_report(&self) -> Option<ConfigReport> {
        self.role
            .check_config
            .then(|| check_config::examine("broker", &self.role, |_| Vec::new(), embedded_broker::Config::rules))
    }
}

/// Runs a broker until `shutdown`, or performs an operation that needs none.
///
/// # Errors
/// If it cannot start.
pub(crate) async fn broker(args: BrokerArgs, shutdown: CancellationToken) -> Result<(), Failure> {
    match args.verb {
        Some(BrokerVerb::Render(wanted)) => return render::run(&wanted),
        Some(BrokerVerb::Password { name }) => return password::print_line(&name, &shutdown).await,
        None => {}
    }
    let load = || args.role.load("broker", |_: &mut embedded_broker::Config| Ok(()));
    let Some(config) = load()? else { return Ok(()) };
    let (mut hang_ups, manager) = (HangUpSignals::listen()?, ServiceManager::of_this_process()?);
    let mut running = embedded_broker::start(config).await?;
    let broker = running.broker();
    tell("mqtts", broker.local_addr());
    broker.websocket_addr().into_iter().for_each(|address| tell("wss", address));
    broker.plain_addr().into_iter().for_each(|address| tell("mqtt", address));
    manager.ready(&format!("listens on {}", broker.local_addr()));
    while shutdown.run_until_cancelled(hang_ups.next()).await.is_some() {
        let taken = load().and_then(|config| config.map_or(Ok(Vec::new()), |config| running.reload(config)));
        reload::log("broker", taken);
    }
    manager.stopping("the broker has ended");
    running.stop().await;
    Ok(())
}

fn tell(scheme: &str, address: std::net::SocketAddr) {
    muster_base::terminal::err(&format!("the broker listens on {scheme}://{address}\n"));
}

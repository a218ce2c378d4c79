//! `muster broker`: the embedded broker as a process of its own, and tools for other brokers.

use clap::{Args, Subcommand};
use muster_base::{
    failure::Failure,
    reload::{self, HangUpSignals},
    role_args::RoleArgs,
};
use tokio_util::sync::CancellationToken;

use super::{
    embedded_broker, password,
    render::{self, RenderArgs},
};

/// Run the embedded broker by itself
#[derive(Args, Clone, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  muster console init\n  muster console issue --role broker --name broker --san 192.0.2.5 --out /etc/muster/broker\n  \
                        muster broker --config /etc/muster/broker.toml\n  muster broker --print-config            every key, with its default\n  muster broker password operator-anna >> /etc/muster/broker/users"
)]
pub(crate) struct BrokerArgs {
    #[command(flatten)]
    role: RoleArgs,
    #[command(subcommand)]
    verb: Option<BrokerVerb>,
}

/// Operations that need no running broker.
#[derive(Subcommand, Clone, Debug)]
enum BrokerVerb {
    /// Write another broker's configuration with the same rules
    Render(RenderArgs),
    /// Print a line of a users file, for somebody who connects with a password
    ///
    /// The password is asked for, or read from standard input if that is no terminal.
    Password {
        /// Whom it is for: a host's id, console-NAME, operator-NAME or observer-NAME
        name: String,
    },
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
    let mut hang_ups = HangUpSignals::listen()?;
    let mut running = embedded_broker::start(config).await?;
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
    muster_base::terminal::err(&format!("the broker listens on {scheme}://{address}\n"));
}

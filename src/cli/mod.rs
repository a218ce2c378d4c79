//! The operator's verbs: one grammar, `muster <noun> <verb>`, each verb a client of the console's API.
//!
//! Modules, in reading order:
//!
//! - [`context`]: which console, and as whom; [`client`]: its API
//! - [`print`]: tables, JSON, YAML, ages, and words for people; [`moment`]: times that people type
//! - [`target`]: which hosts and units are meant; [`change`]: doing something to them; [`wait`]: until a unit is what
//!   it should be
//! - one module for each noun: [`host`] (with its [`label`]s), [`token`], [`exec`], [`command`], [`artifact`], [`config`],
//!   [`realm`], [`unit`] (with [`apply`] and [`export`] of documents, `yuno`, its [`upgrade`], [`logs`] and [`effective`] config, what is [`ask`]ed of yunos themselves,
//!   and its options in [`process`] and [`endpoint`]), [`container`], [`snapshot`],
//!   [`alert`], [`metric`] and [`top`], [`dashboards`], [`login`]
//!
//! **Invariant: data goes to standard output and nothing else does**; words for people, errors among them, go to standard
//! error (`topics/decisions/0070`).

pub mod alert;
pub mod apply;
pub mod artifact;
pub mod ask;
pub mod change;
pub mod client;
pub mod command;
pub mod config;
pub mod container;
pub mod context;
pub mod dashboards;
pub mod effective;
pub mod endpoint;
pub mod exec;
pub mod export;
pub mod host;
pub mod label;
pub mod login;
pub mod logs;
pub mod metric;
pub mod moment;
pub mod policy;
pub mod print;
pub mod probe;
pub mod process;
pub mod realm;
pub mod rollback;
pub mod snapshot;
pub mod target;
pub mod token;
pub mod top;
pub mod unit;
pub mod upgrade;
pub mod wait;
pub mod yaml;
pub mod ycommand;

use clap::{Args, Subcommand};
use tokio_util::sync::CancellationToken;

use self::{
    client::Client,
    context::{Context, Contexts},
    print::{Format, Printer},
};
use crate::{
    failure::{Failure, Kind},
    host_names as hostname,
};

/// What every verb understands.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Form of what is printed: table, json or yaml. In the latter two standard output has one document and nothing else,
    /// or one for each item of what goes on; what people are told, errors included, goes to standard error as text
    #[arg(short, long, value_enum, default_value_t, global = true, value_name = "FORM")]
    #[arg(hide_possible_values = true, help_heading = "Everywhere")]
    pub output: Format,
    /// The console to speak with, by its name in the context file
    #[arg(long, global = true, env = "MUSTER_CONTEXT", value_name = "NAME", help_heading = "Everywhere")]
    pub context: Option<String>,
    /// A proxy to reach the console through, in place of the context's; http_proxy and the like are not looked at
    #[arg(long, global = true, env = "MUSTER_PROXY", value_name = "URL", help_heading = "Everywhere")]
    #[arg(hide_env_values = true)]
    pub proxy: Option<String>,
}

impl Options {
    /// The context that is asked for, with what is said here in place of what it says.
    ///
    /// # Errors
    /// If there is none.
    pub fn pick_context(&self) -> Result<Context, Failure> {
        let context = Contexts::load(&context::path()?)?.pick(self.context.as_deref())?;
        Ok(Context { proxy: self.proxy.clone().or(context.proxy), ..context })
    }
}

/// The verbs of an operator.
#[derive(Subcommand, Clone, Debug)]
pub enum Verb {
    /// Hosts: list, show, ask for fresh news
    #[command(subcommand)]
    Host(host::Verb),
    /// One-time tokens, with which hosts join
    #[command(subcommand)]
    Token(token::Verb),
    /// Run a program on hosts, and see what it prints
    Exec(exec::Exec),
    /// The ledger of commands: what was asked, and what became of it
    #[command(subcommand)]
    Command(command::Verb),
    /// Artifacts: immutable files that yunos run, known by their SHA-256
    #[command(subcommand)]
    Artifact(artifact::Verb),
    /// Configs: immutable documents for yunos
    #[command(subcommand)]
    Config(config::Verb),
    /// Realms: namespaces of units, with the address and the ports of their endpoints
    #[command(subcommand)]
    Realm(realm::Verb),
    /// Units of any kind: list, show, hold, retire, remove
    #[command(subcommand)]
    Unit(unit::Verb),
    /// Yunos: native processes that an agent keeps
    #[command(subcommand)]
    Yuno(unit::YunoVerb),
    /// Containers that an agent keeps, by Podman, Docker or LXC
    #[command(subcommand)]
    Container(container::Verb),
    /// Snapshots: what the units of a host should be, to go back to
    #[command(subcommand)]
    Snapshot(snapshot::Verb),
    /// Alerts: what somebody should look at, and when
    #[command(subcommand)]
    Alert(alert::Verb),
    /// Measurements
    #[command(subcommand)]
    Metric(metric::Verb),
    /// Show what hosts or units do now, the busiest first
    Top(top::Top),
    /// Dashboards for Grafana, and rules for Prometheus
    #[command(subcommand)]
    Dashboards(dashboards::Verb),
    /// Do what a line in Yuneta's manner says
    Ycommand(ycommand::YCommand),
    /// Sign the command line in to a console
    Login(login::Login),
}

/// A verb's surroundings: the console, and how to print.
#[derive(Clone, Debug)]
pub struct Session {
    /// The console's API.
    pub client: Client,
    /// Which console, and as whom.
    pub context: Context,
    /// How to print.
    pub printer: Printer,
    /// Somebody has seen enough.
    pub interrupt: CancellationToken,
}

/// Does what an operator asks for.
///
/// # Errors
/// If it cannot be done, or `interrupt` is cancelled before it is.
pub async fn run(verb: Verb, options: &Options, interrupt: CancellationToken) -> Result<(), Failure> {
    // What goes on until it is interrupted has something to say to others then.
    let ends_itself = matches!(
        verb,
        Verb::Yuno(unit::YunoVerb::Logs(logs::Logs { follow: true, .. }))
            | Verb::Container(container::Verb::Logs(logs::Logs { follow: true, .. }))
    );
    tokio::select! {
        done = perform(verb, options, interrupt.clone()) => done,
        // As a shell has it: 128 + SIGINT.
        () = interrupt.cancelled(), if !ends_itself => Err(Failure::silent(Kind::Code(130))),
    }
}

async fn perform(verb: Verb, options: &Options, interrupt: CancellationToken) -> Result<(), Failure> {
    let printer = Printer::new(options.output);
    if let Verb::Login(login) = &verb
        && login.verb.is_none()
    {
        return login::run(login, options).await;
    }
    if let Verb::Dashboards(verb) = &verb {
        return dashboards::run(verb, options);
    }
    let context = options.pick_context()?;
    let session = Session { client: Client::new(&context)?, context, printer, interrupt };
    match verb {
        Verb::Ycommand(lines) => ycommand::run(lines, &session).await,
        verb => perform_one(verb, &session).await,
    }
}

/// Does one verb with a session that there is.
async fn perform_one(verb: Verb, session: &Session) -> Result<(), Failure> {
    match verb {
        Verb::Host(verb) => host::run(verb, session).await,
        Verb::Token(verb) => token::run(verb, session).await,
        Verb::Exec(exec) => exec::run(exec, session).await,
        Verb::Command(verb) => command::run(verb, session).await,
        Verb::Artifact(verb) => artifact::run(verb, session).await,
        Verb::Config(verb) => config::run(verb, session).await,
        Verb::Realm(verb) => realm::run(verb, session).await,
        Verb::Snapshot(verb) => snapshot::run(verb, session).await,
        Verb::Unit(verb) => unit::run(verb, session).await,
        Verb::Yuno(verb) => unit::run_yuno(verb, session).await,
        Verb::Container(verb) => container::run(verb, session).await,
        Verb::Alert(verb) => alert::run(verb, session).await,
        Verb::Metric(verb) => metric::run(verb, session).await,
        Verb::Top(top) => top::run(top, session).await,
        Verb::Login(login::Login { verb: Some(verb), .. }) => login::manage(verb, session).await,
        // They are done where the session is made.
        Verb::Login(_) | Verb::Ycommand(_) | Verb::Dashboards(_) => Ok(()),
    }
}

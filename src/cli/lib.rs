//! The operator's verbs: one grammar, `muster <noun> <verb>`, each verb a client of the console's API.
//!
//! Modules, in reading order:
//!
//! - [`session`]: what each verb works with; [`context`]: the console and the token; [`client`]: its API
//! - [`mod@print`]: tables (laid out by [`table`]), JSON, YAML, ages, times, and messages; [`moment`]: times that
//!   people type; [`watch`]: lists that are shown again and again; [`completion`]: names that shells complete
//! - [`target`]: resolves hosts and units; `host_lookup`, `unit_lookup`: fetch them; [`unit_targets`]: the units that a
//!   verb is for; [`change`]: changes units; [`wait`]: waits for a unit's state; `command_follower`: waits for a command's outcomes; `command_output`, `command_verdict`, `command_report`:
//!   print them
//! - the verbs of every day: [`status`], [`ps`], [`apply_any`] (`muster apply`), [`logs`]; [`context_verb`]
//! - one module for each noun: [`host`] (with its [`label`]s), [`token`], [`authority`], [`exec`], [`command`], [`artifact`], [`config`],
//!   [`secret`],
//!   [`realm`], [`mod@unit`] (with [`apply`] and [`export`] of documents, whose files [`document_file`] reads, [`upgrade`], [`logs`] and [`effective`] config, questions to yunos in [`ask`],
//!   options in [`process`] and [`endpoint`], and those of containers in [`container`]), [`mod@deployment`] and its [`rollout`], [`var`], [`cordon`] of hosts (options in
//!   [`host_target`]), [`snapshot`],
//!   [`alert`] with [`rule`] and [`silence`], [`metric`] and [`top`], [`dashboard`], [`backup`], [`login`]
//!
//! **Invariant: standard output has data only**; messages, errors among them, go to standard
//! error (`topics/decisions/0070`).

pub mod alert;
pub mod apply;
pub mod apply_any;
pub mod artifact;
pub mod ask;
pub mod authority;
pub mod backup;
pub mod change;
pub mod client;
pub mod clock;
pub mod command;
pub mod command_cancel;
pub mod command_follower;
pub mod command_output;
pub mod command_report;
pub mod command_verdict;
pub mod completion;
pub mod config;
pub mod container;
pub mod container_text;
pub mod context;
pub mod context_verb;
pub mod cordon;
pub mod dashboard;
pub mod deployment;
pub mod document_file;
pub mod effective;
pub mod endpoint;
pub mod environment;
pub mod exec;
pub mod export;
mod export_files;
pub mod host;
pub mod host_lookup;
pub mod host_target;
mod interruption;
pub mod label;
pub mod limit_value;
pub mod login;
pub mod logs;
pub mod metric;
pub mod moment;
pub mod options;
pub mod plan;
pub mod policy;
pub mod print;
pub mod probe;
pub mod process;
pub mod ps;
pub mod realm;
pub mod render;
pub mod rollback;
pub mod rollout;
pub mod rule;
pub mod secret;
mod session;
pub mod silence;
pub mod snapshot;
pub mod status;
pub mod table;
pub mod target;
pub mod tasks;
pub mod token;
pub mod top;
pub mod top_subject;
pub mod unit;
pub mod unit_lookup;
pub mod unit_targets;
pub mod upgrade;
pub mod var;
pub mod wait;
pub mod watch;
pub mod yaml;
pub mod ycommand;

pub use session::{CliSession, GlobalOptions};

use clap::Subcommand;
use muster_base::failure::{Failure, FailureKind};
use tokio_util::sync::CancellationToken;

use self::{client::ConsoleClient, print::Printer};

/// The verbs of an operator.
#[derive(Subcommand, Clone, Debug)]
pub enum Verb {
    /// Show all at a glance: faults, hosts away, addresses
    Status(status::StatusArgs),
    /// Show what runs where, failures first, with CPU and memory
    Ps(ps::PsArgs),
    /// Create and change units and deployments as files say
    Apply(Box<apply_any::ApplyAnyArgs>),
    /// Print or follow the log of a unit; see why it ended
    Logs(logs::Logs),
    /// List the consoles that are known here, and choose one
    #[command(subcommand)]
    Context(context_verb::ContextVerb),
    /// List hosts and which are away; label, drain, throw out
    #[command(subcommand)]
    Host(host::HostVerb),
    /// Add a host: make the one-time token with which it joins
    #[command(subcommand)]
    Token(token::TokenVerb),
    /// Show the fleet's keys and certificates, and replace them
    #[command(subcommand)]
    Authority(authority::AuthorityVerb),
    /// Run a command on one, several or all hosts
    Exec(exec::ExecArgs),
    /// List what was ordered of hosts and by whom; show, cancel
    #[command(subcommand)]
    Command(command::CommandVerb),
    /// Store programs in versions, which units run on any host
    #[command(subcommand)]
    Artifact(artifact::ArtifactVerb),
    /// Store configs in versions, which units read on any host
    #[command(subcommand)]
    Config(config::ConfigVerb),
    /// Set and change secrets: passwords, keys
    #[command(subcommand)]
    Secret(secret::SecretVerb),
    /// Manage realms: namespaces of units with a range of ports
    #[command(subcommand)]
    Realm(realm::RealmVerb),
    /// Manage what runs: list, stop, restart, upgrade, remove
    #[command(subcommand)]
    Unit(unit::UnitVerb),
    /// Manage yunos, with what only they have: play, stats
    ///
    /// The verbs of `muster unit` for yunos alone, and `play`, `pause`, `command` and `stats`. `muster yuno create` is
    /// `muster unit create yuno`.
    #[command(subcommand, mut_subcommands(unit::of_yunos))]
    Yuno(unit::YunoVerb),
    /// Manage containers, with what only they have: adopt, clone
    ///
    /// The verbs of `muster unit` for containers alone, and `clone` and `adopt`. `muster container create` is
    /// `muster unit create container`.
    #[command(subcommand, mut_subcommands(unit::of_containers))]
    Container(unit::ContainerVerb),
    /// Run units on many hosts; go back; see who changed what
    #[command(subcommand)]
    Deployment(deployment::DeploymentVerb),
    /// Show what a deployment would change on each host
    Plan(plan::PlanArgs),
    /// Follow, pause, resume or stop the rollout of a version
    #[command(subcommand)]
    Rollout(rollout::RolloutVerb),
    /// Set values that differ from host to host
    #[command(subcommand)]
    Var(var::VarVerb),
    /// Show what a host renders of a template, and apply nothing
    Render(render::RenderArgs),
    /// Save what a host is to run, and go back to it later
    #[command(subcommand)]
    Snapshot(snapshot::SnapshotVerb),
    /// Show what is wrong now, and what was
    #[command(subcommand)]
    Alert(alert::AlertVerb),
    /// Manage the rules by which alerts are raised
    #[command(subcommand)]
    Rule(rule::RuleVerb),
    /// Manage silences: alerts that are sent to nobody
    #[command(subcommand)]
    Silence(silence::SilenceVerb),
    /// Query CPU, memory, disk and network use over time
    #[command(subcommand)]
    Metric(metric::MetricVerb),
    /// Show what hosts or units use now, the busiest first
    Top(top::TopArgs),
    /// Write dashboards for Grafana and rules for Prometheus
    #[command(subcommand)]
    Dashboard(dashboard::DashboardVerb),
    /// Back up the console, and restore it
    #[command(subcommand)]
    Backup(backup::BackupVerb),
    /// Show the console's clock, and confirm that it is right
    #[command(subcommand)]
    Clock(clock::ClockVerb),
    /// Run commands that are written in Yuneta's syntax
    Ycommand(ycommand::YCommand),
    /// Sign in to a console; see who is signed in
    Login(login::LoginArgs),
}

/// Runs a verb of an operator. `new_link` creates a sign-in link of a console on this machine, if the program contains
/// a console.
///
/// # Errors
/// If it fails, or if `interrupt` is cancelled first.
pub async fn run(
    verb: Verb,
    options: &GlobalOptions,
    new_link: Option<login::NewSignInLink>,
    interrupt: CancellationToken,
) -> Result<(), Failure> {
    // Verbs that run until they are interrupted must then inform hosts.
    let ends_itself = match &verb {
        Verb::Logs(logs) => logs.follow,
        Verb::Unit(unit::UnitVerb::Shared(shared))
        | Verb::Yuno(unit::YunoVerb::Shared(shared))
        | Verb::Container(unit::ContainerVerb::Shared(shared)) => shared.ends_itself(),
        _ => false,
    };
    let done = async {
        if !options.watch {
            return perform(verb, options, new_link, interrupt.clone()).await;
        }
        let list = async || perform(verb.clone(), options, new_link, interrupt.clone()).await;
        watch::run(list, Printer::for_terminal(options.output, options.utc)).await
    };
    tokio::select! {
        done = done => done,
        // As in a shell: 128 + SIGINT.
        () = interrupt.cancelled(), if !ends_itself => Err(Failure::silent(FailureKind::Code(130))),
    }
}

async fn perform(
    verb: Verb,
    options: &GlobalOptions,
    new_link: Option<login::NewSignInLink>,
    interrupt: CancellationToken,
) -> Result<(), Failure> {
    let printer = Printer::for_terminal(options.output, options.utc);
    let printer = if options.watch { printer.in_lines() } else { printer };
    if let Verb::Login(login) = &verb
        && login.verb.is_none()
    {
        return login::run(login, options, new_link).await;
    }
    let verb = match verb {
        Verb::Dashboard(verb) => return dashboard::run(&verb, options),
        Verb::Context(verb) => return context_verb::run(verb, options),
        verb => verb,
    };
    if matches!(verb, Verb::Deployment(deployment::DeploymentVerb::Schema)) {
        return deployment::schema(options.output);
    }
    let verb = match verb {
        Verb::Backup(verb) => match backup::run_alone(verb, printer).await? {
            Some(verb) => Verb::Backup(verb),
            None => return Ok(()),
        },
        verb => verb,
    };
    let (context_name, context) = options.pick_named()?;
    let session = CliSession { client: ConsoleClient::new(&context)?, context, context_name, printer, interrupt };
    match verb {
        Verb::Ycommand(lines) => ycommand::run(lines, &session).await,
        verb => perform_one(verb, &session).await,
    }
}

/// Runs a verb with a session.
async fn perform_one(verb: Verb, session: &CliSession) -> Result<(), Failure> {
    match verb {
        Verb::Status(wanted) => status::run(wanted, session).await,
        Verb::Apply(wanted) => apply_any::run(*wanted, session).await,
        Verb::Ps(wanted) => ps::run(wanted, session).await,
        Verb::Logs(wanted) => logs::run(wanted, target::Noun::Unit, session).await,
        Verb::Host(verb) => host::run(verb, session).await,
        Verb::Token(verb) => token::run(verb, session).await,
        Verb::Authority(verb) => authority::run(verb, session).await,
        Verb::Exec(exec) => exec::run(exec, session).await,
        Verb::Command(verb) => command::run(verb, session).await,
        Verb::Artifact(verb) => artifact::run(verb, session).await,
        Verb::Config(verb) => config::run(verb, session).await,
        Verb::Render(wanted) => render::run(wanted, session).await,
        Verb::Secret(verb) => secret::run(verb, session).await,
        Verb::Realm(verb) => realm::run(verb, session).await,
        Verb::Snapshot(verb) => snapshot::run(verb, session).await,
        Verb::Deployment(verb) => deployment::run(verb, session).await,
        Verb::Plan(wanted) => plan::run(wanted, session).await,
        Verb::Rollout(verb) => rollout::run(verb, session).await,
        Verb::Var(verb) => var::run(verb, session).await,
        Verb::Unit(verb) => unit::run(verb, session).await,
        Verb::Yuno(verb) => unit::run_yuno(verb, session).await,
        Verb::Container(verb) => unit::run_container(verb, session).await,
        Verb::Alert(verb) => alert::run(verb, session).await,
        Verb::Rule(verb) => rule::run(verb, session).await,
        Verb::Silence(verb) => silence::run(verb, session).await,
        Verb::Metric(verb) => metric::run(verb, session).await,
        Verb::Top(top) => top::run(top, session).await,
        Verb::Backup(verb) => backup::run(verb, session).await,
        Verb::Clock(verb) => clock::run(verb, session).await,
        Verb::Login(login::LoginArgs { verb: Some(verb), .. }) => login::manage(verb, session).await,
        // These are handled where the session is created.
        Verb::Login(_) | Verb::Ycommand(_) | Verb::Dashboard(_) | Verb::Context(_) => Ok(()),
    }
}

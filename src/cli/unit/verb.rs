//! The verbs of units, and what each does.

use clap::{Args, Subcommand};
use muster_api::Unit;
use muster_base::failure::{Failure, FailureKind};
use muster_topics::{
    command::Verb as Asked,
    name::{LabelValue, Name, UnitName},
    process::Cores,
    select::Select,
    signal::Signal,
    verb_table::KindName,
};

use super::{
    create_yuno::{self, CreateYuno},
    list::{self, UnitListArgs},
    show::{self, OneUnit},
};
use crate::{
    apply, ask,
    change::{LimitOptions, UnitAction, UnitChange, change},
    container::{self, AdoptContainer, CloneContainer, CreateContainer},
    deployment, effective, exec, export,
    limit_value::{LimitValue, or_none},
    logs,
    policy::parse_label,
    session::CliSession,
    target::{Noun, UnitRef},
    tasks,
    unit_targets::{UnitTargets, candidates, pick},
    upgrade,
};

/// Verbs on units of any kind.
#[derive(Subcommand, Clone, Debug)]
pub enum UnitVerb {
    /// Create a unit of a kind, or with --replace change one
    #[command(subcommand)]
    Create(CreateKind),
    /// Create and change units as documents say
    ///
    /// Units that the documents do not name stay as they are.
    Apply(Box<apply::ApplyArgs>),
    /// Those that each noun has.
    #[command(flatten)]
    Shared(Box<SharedVerb>),
}

/// What is created.
#[derive(Subcommand, Clone, Debug)]
pub enum CreateKind {
    /// Create a yuno: a process
    Yuno(Box<CreateYuno>),
    /// Create a container
    Container(Box<CreateContainer>),
    /// Show how units of files are made: of documents
    Files(FromDocument),
    /// Show how units of packages are made: of documents
    Packages(FromDocument),
}

/// A unit that has no options, because a document describes it.
#[derive(Args, Clone, Debug)]
pub struct FromDocument {
    #[arg(hide = true, allow_hyphen_values = true, trailing_var_arg = true)]
    words: Vec<String>,
}

/// Verbs on yunos.
#[derive(Subcommand, Clone, Debug)]
pub enum YunoVerb {
    /// Create a yuno, or with --replace change one
    Create(Box<CreateYuno>),
    /// Let yunos play, and wait until they confirm that
    Play(UnitChange),
    /// Pause yunos that play; their processes go on
    Pause(UnitChange),
    /// Send a command of their own to yunos
    Command(ask::AskArgs),
    /// Ask yunos for numbers about themselves
    Stats(ask::StatsArgs),
    /// Those that each noun has.
    #[command(flatten)]
    Shared(Box<SharedVerb>),
}

/// Verbs on containers.
#[derive(Subcommand, Clone, Debug)]
pub enum ContainerVerb {
    /// Create a container, or with --replace change one
    Create(Box<CreateContainer>),
    /// Create another container from the image of one
    Clone(Box<CloneContainer>),
    /// Adopt a container that somebody else has made
    Adopt(Box<AdoptContainer>),
    /// Those that each noun has.
    #[command(flatten)]
    Shared(Box<SharedVerb>),
}

/// Verbs on units that each noun has: `muster unit` for all kinds, the others for one.
#[derive(Subcommand, Clone, Debug)]
pub enum SharedVerb {
    /// List units
    #[command(alias = "list")]
    Ls(UnitListArgs),
    /// Show a unit: desired and observed state
    Show(OneUnit),
    /// Print units as documents for `muster unit apply`
    Export(export::ExportUnits),
    /// Show the tasks by which a unit's host changes it
    Tasks(tasks::TaskArgs),
    /// Start units
    Run {
        /// Which
        #[command(flatten)]
        which: UnitChange,
        /// Let a yuno play as well
        #[arg(long)]
        play: bool,
    },
    /// Stop units
    ///
    /// A program gets its stop signal, and after its grace all that it started is killed. Files and packages stay as they
    /// are, and nobody looks after them.
    Stop {
        /// Which
        #[command(flatten)]
        which: UnitChange,
        /// Send this signal as well: KILL for one that hangs
        #[arg(long)]
        signal: Option<Signal>,
    },
    /// Restart units
    ///
    /// One that waits for its next try is tried at once. A container is made anew, files are written anew, and upgrades of
    /// packages without a version are looked for.
    Restart(UnitChange),
    /// Send a signal to the main process of units
    ///
    /// Their desired state does not change.
    #[command(
        after_long_help = "The command succeeds if the process was there and got the signal. A process that ends by it \
                    is started again."
    )]
    Signal {
        /// Name or number, such as HUP, SIGUSR1, RTMIN+3 or 15
        signal: Signal,
        /// Which
        #[command(flatten)]
        which: UnitChange,
    },
    /// Freeze units: suspend all their processes
    ///
    /// They keep their memory and can be stopped; a restart thaws them.
    Freeze(UnitChange),
    /// Thaw units that were frozen
    Thaw(UnitChange),
    /// Change the limits of units
    ///
    /// Those of a yuno change while it runs if its host's cgroups can do that; otherwise, or if it uses more than the new
    /// limit, it is restarted. Those of a container change while it runs if its runtime can do that; it is made anew to take a
    /// limit away, to set one that it did not have, and for another disk limit.
    Quota {
        /// Memory for it and its children, such as 64M, or `none`
        #[arg(long, value_name = "BYTES", value_parser = or_none(muster_topics::size::parse))]
        memory: Option<LimitValue<u64>>,
        /// Processors, such as 0.5, or `none`
        #[arg(long, value_name = "CORES", value_parser = or_none(str::parse::<Cores>))]
        cpu: Option<LimitValue<Cores>>,
        /// Processes and threads, or `none`
        #[arg(long, value_name = "COUNT", value_parser = or_none(str::parse::<u32>))]
        pids: Option<LimitValue<u32>>,
        /// Disk space of a container beside its image, or `none`
        #[arg(long, value_name = "BYTES", value_parser = or_none(muster_topics::size::parse))]
        disk: Option<LimitValue<u64>>,
        /// Which
        #[command(flatten)]
        which: UnitChange,
    },
    /// Print the last lines of the log of units
    Logs(logs::Logs),
    /// Run a program in the container of units
    Exec(Box<exec::UnitExecArgs>),
    /// Show the configuration of a yuno; secrets print as ***
    Config(effective::Config),
    /// Upgrade units to newer artifacts, configs and secrets
    Upgrade(Box<upgrade::UpgradeArgs>),
    /// Hold units: pause reconciliation until `unhold`
    ///
    /// What runs goes on, and what does not run is not started.
    Hold {
        /// Which
        #[command(flatten)]
        which: UnitChange,
        /// Reason, for other operators
        #[arg(long)]
        reason: Option<String>,
    },
    /// Unhold units: resume reconciliation
    ///
    /// This ends a hold by an operator, and that of a unit that is broken; what should run is tried again.
    Unhold(UnitChange),
    /// Retire units: stop and hold them, so that they can be removed
    Retire {
        /// Which
        #[command(flatten)]
        which: UnitChange,
        /// Reason, for other operators
        #[arg(long)]
        reason: Option<String>,
    },
    /// Change labels of units, without a restart
    Label {
        /// Which
        #[command(flatten)]
        which: UnitChange,
        /// Label and its value; repeatable
        #[arg(long, value_name = "NAME=VALUE", value_parser = parse_label, required_unless_present = "unset")]
        set: Vec<(Name, LabelValue)>,
        /// Label to remove; repeatable
        #[arg(long, value_name = "NAME")]
        unset: Vec<Name>,
    },
    /// Leave units of deployments to verbs
    ///
    /// The deployment changes them no more on these hosts. What runs goes on.
    Detach(DetachUnits),
    /// Remove units that are retired
    ///
    /// What a container wrote is deleted; an adopted one is only released. Files and packages become what they were before.
    Rm(UnitChange),
}

impl SharedVerb {
    /// Whether it goes on until it is interrupted, and then has to tell hosts.
    pub(crate) fn ends_itself(&self) -> bool {
        matches!(self, Self::Logs(logs::Logs { follow: true, .. }))
    }
}

/// Units that are detached from their deployments.
#[derive(Args, Clone, Debug)]
pub struct DetachUnits {
    /// Units: REALM/NAME or HOST:REALM/NAME
    #[arg(required_unless_present = "select", value_name = "UNIT")]
    units: Vec<UnitRef>,
    /// Units that this selects, such as 'realm=prod and host=till-7'
    #[arg(long, value_name = "EXPRESSION", conflicts_with = "units")]
    select: Option<Select>,
    /// Host, by id or hostname; repeatable
    #[arg(long = "host", value_name = "HOST")]
    hosts: Vec<String>,
    /// Every host that has such a unit
    #[arg(long)]
    all: bool,
}

/// Runs a verb on units of any kind.
///
/// # Errors
/// If it fails.
pub(crate) async fn run(verb: UnitVerb, session: &CliSession) -> Result<(), Failure> {
    match verb {
        UnitVerb::Create(CreateKind::Yuno(wanted)) => create_yuno::create(*wanted, session).await,
        UnitVerb::Create(CreateKind::Container(wanted)) => container::create(*wanted, session).await,
        UnitVerb::Create(CreateKind::Files(_)) => Err(needs_document(KindName::Files)),
        UnitVerb::Create(CreateKind::Packages(_)) => Err(needs_document(KindName::Packages)),
        UnitVerb::Apply(wanted) => apply::run(*wanted, session).await,
        UnitVerb::Shared(verb) => run_shared(*verb, Noun::Unit, session).await,
    }
}

/// Runs a verb on yunos.
///
/// # Errors
/// If it fails.
pub(crate) async fn run_yuno(verb: YunoVerb, session: &CliSession) -> Result<(), Failure> {
    let play = |play: bool| UnitAction::Plain(if play { to_play } else { |unit| Asked::UnitPause { unit } });
    match verb {
        YunoVerb::Create(wanted) => create_yuno::create(*wanted, session).await,
        YunoVerb::Play(which) => change(session, Noun::Yuno.verb("play"), which, play(true)).await,
        YunoVerb::Pause(which) => change(session, Noun::Yuno.verb("pause"), which, play(false)).await,
        YunoVerb::Command(ask) => ask::command(session, ask).await,
        YunoVerb::Stats(stats) => ask::stats(session, stats).await,
        YunoVerb::Shared(verb) => run_shared(*verb, Noun::Yuno, session).await,
    }
}

fn to_play(unit: UnitName) -> Asked {
    Asked::UnitPlay { unit, run: false }
}

/// Runs a verb on containers.
///
/// # Errors
/// If it fails.
pub(crate) async fn run_container(verb: ContainerVerb, session: &CliSession) -> Result<(), Failure> {
    match verb {
        ContainerVerb::Create(wanted) => container::create(*wanted, session).await,
        ContainerVerb::Clone(wanted) => container::clone(*wanted, session).await,
        ContainerVerb::Adopt(wanted) => container::adopt(*wanted, session).await,
        ContainerVerb::Shared(verb) => run_shared(*verb, Noun::Container, session).await,
    }
}

fn needs_document(kind: KindName) -> Failure {
    Failure::new(FailureKind::Usage, format!("a {} is made of a document, not of options", kind.noun())).hint(format!(
        "write one with `kind: {kind}`; `muster unit apply FILE` makes it on a host, `muster deployment apply FILE` on many"
    ))
}

async fn run_shared(verb: SharedVerb, noun: Noun, session: &CliSession) -> Result<(), Failure> {
    let plain = |word, which, verb: fn(UnitName) -> Asked| {
        Box::pin(change(session, noun.verb(word), which, UnitAction::Plain(verb)))
    };
    match verb {
        SharedVerb::Ls(wanted) => list::list(session, wanted, noun).await,
        SharedVerb::Show(wanted) => show::show(session, wanted, noun).await,
        SharedVerb::Export(wanted) => export::run(wanted, noun, session).await,
        SharedVerb::Tasks(wanted) => tasks::run(wanted, noun, session).await,
        SharedVerb::Run { which, play: false } => plain("run", which, |unit| Asked::UnitRun { unit }).await,
        SharedVerb::Run { which, play: true } => plain("play", which, |unit| Asked::UnitPlay { unit, run: true }).await,
        SharedVerb::Stop { which, signal } => change(session, noun.verb("stop"), which, UnitAction::Stop(signal)).await,
        SharedVerb::Restart(which) => plain("restart", which, |unit| Asked::UnitRestart { unit }).await,
        SharedVerb::Signal { signal, which } => {
            change(session, noun.verb("signal"), which, UnitAction::Signal(signal)).await
        }
        SharedVerb::Freeze(which) => plain("freeze", which, |unit| Asked::UnitFreeze { unit }).await,
        SharedVerb::Thaw(which) => plain("thaw", which, |unit| Asked::UnitThaw { unit }).await,
        SharedVerb::Quota { memory: None, cpu: None, pids: None, disk: None, .. } => {
            let nothing = Failure::new(FailureKind::Usage, "there is no limit to change");
            Err(nothing.hint("name one: --memory, --cpu, --pids or --disk"))
        }
        SharedVerb::Quota { memory, cpu, pids, disk, which } => {
            let quota = LimitOptions {
                memory_bytes: memory.map(|given| given.0),
                cpu: cpu.map(|given| given.0),
                pids: pids.map(|given| given.0),
                disk_bytes: disk.map(|given| given.0),
            };
            change(session, noun.verb("quota"), which, UnitAction::Quota(quota)).await
        }
        SharedVerb::Logs(wanted) => logs::run(wanted, noun, session).await,
        SharedVerb::Exec(wanted) => exec::run_inside(*wanted, noun, session).await,
        SharedVerb::Config(wanted) => effective::run(wanted, noun, session).await,
        SharedVerb::Upgrade(wanted) => upgrade::run(*wanted, noun, session).await,
        SharedVerb::Hold { which, reason } => change(session, noun.verb("hold"), which, UnitAction::Hold(reason)).await,
        SharedVerb::Unhold(which) => plain("unhold", which, |unit| Asked::UnitUnhold { unit }).await,
        SharedVerb::Retire { which, reason } => {
            change(session, noun.verb("retire"), which, UnitAction::Retire(reason)).await
        }
        SharedVerb::Label { which, set, unset } => {
            let unset = unset.into_iter().map(|name| (name, None));
            let labels = unset.chain(set.into_iter().map(|(name, value)| (name, Some(value)))).collect();
            change(session, noun.verb("label"), which, UnitAction::Label(labels)).await
        }
        SharedVerb::Detach(which) => detach(session, noun, which).await,
        SharedVerb::Rm(which) => plain("rm", which, |unit| Asked::UnitRm { unit }).await,
    }
}

async fn detach(session: &CliSession, noun: Noun, which: DetachUnits) -> Result<(), Failure> {
    let DetachUnits { units, select, hosts, all } = which;
    let which = UnitTargets { units, select, hosts, all };
    let all: Vec<Unit> = candidates(session, &which).await?;
    deployment::detach(session, &pick(&all, &which, noun.verb("detach"))?).await
}

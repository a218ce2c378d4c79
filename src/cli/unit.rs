//! `muster unit` and `muster yuno`: the units that agents keep.

use std::time::Duration;

use clap::{Args, Subcommand};
use muster_api::{Config, Unit, UnitSort};
use muster_base::{
    clock,
    failure::{Failure, FailureKind},
};
use muster_topics::{
    channel::ToldStats,
    common::ProgramSpec,
    diagnostic::Diagnostic,
    files::Drift,
    name::{LabelValue, Name, UnitName},
    probe::Which,
    process::Cores,
    reload::{OnChange, Reload},
    select::Select,
    signal::Signal,
    unit::{ArtifactRef, ConfigRef, Hold, Observed, Phase, Run, Spec, YunoSpec},
};

use super::{
    apply, artifact, ask,
    change::{LimitOptions, UnitAction, UnitChange, WaitOptions, candidates, change, make, pick},
    config, container_text, deployment, effective, endpoint,
    environment::EnvironmentArgs,
    export, host_lookup,
    limit_value::{LimitValue, or_none},
    logs,
    policy::{self, parse_label, parse_word},
    print, probe, process, rollback,
    session::CliSession,
    target::{Noun, UnitRef},
    tasks, upgrade, wait,
};
use muster_api::host_names::HostNames;

pub(super) use super::unit_lookup::one;

/// Verbs on units of any kind.
#[derive(Subcommand, Clone, Debug)]
pub enum UnitVerb {
    /// List units
    #[command(alias = "list")]
    Ls(UnitListArgs),
    /// Show a unit: desired and observed state
    Show(ShowUnit),
    /// Create and change units as documents say
    ///
    /// Units that the documents do not name stay as they are.
    Apply(Box<apply::ApplyArgs>),
    /// Print units as documents for `muster unit apply`
    Export(export::ExportUnits),
    /// Show the tasks by which a unit's host changes it
    Tasks(tasks::TaskArgs),
    /// Hold units: pause reconciliation until `unhold`
    ///
    /// What runs goes on, and what does not run is not started.
    Hold {
        /// Which
        #[command(flatten)]
        which: UnitChange,
        /// Reason, for other operators
        #[arg(long)]
        note: Option<String>,
    },
    /// Unhold units: resume reconciliation
    ///
    /// This ends a hold by an operator, and that of a unit that is broken; what should run is tried again.
    Unhold(UnitChange),
    /// Restart units
    ///
    /// One that waits for its next try is tried at once.
    Restart(UnitChange),
    /// Retire units: stop and hold them, so that they can be removed
    Retire {
        /// Which
        #[command(flatten)]
        which: UnitChange,
        /// Reason, for other operators
        #[arg(long)]
        note: Option<String>,
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
    Rm(UnitChange),
}

/// Units that are detached from their deployments.
#[derive(Args, Clone, Debug)]
pub struct DetachUnits {
    /// Units: REALM/NAME or HOST:REALM/NAME
    #[arg(required_unless_present = "select")]
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

/// Verbs on yunos.
#[derive(Subcommand, Clone, Debug)]
pub enum YunoVerb {
    /// Create a yuno, or with --overwrite change one
    Create(Box<CreateYuno>),
    /// Start a yuno
    Run {
        /// Which
        #[command(flatten)]
        which: UnitChange,
        /// Let it play as well
        #[arg(long)]
        play: bool,
    },
    /// Let a yuno play, and wait until it confirms that
    Play(UnitChange),
    /// Pause a yuno that plays; its process goes on
    Pause(UnitChange),
    /// Send a command of their own to yunos
    Command(ask::AskArgs),
    /// Ask yunos for numbers about themselves
    Stats(ask::StatsArgs),
    /// Stop a yuno
    ///
    /// It gets its stop signal, and after its grace all that it started is killed.
    #[command(visible_alias = "kill")]
    Stop(StopUnits),
    /// Restart a yuno
    Restart(UnitChange),
    /// Upgrade yunos to newer artifacts and configs
    Upgrade(Box<upgrade::UpgradeArgs>),
    /// Send a signal to a yuno's main process
    ///
    /// Its desired state does not change.
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
    /// Change the limits of a yuno
    ///
    /// They change while it runs if its host's cgroups can do that. Otherwise, or if it uses more than the new limit,
    /// it is restarted.
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
        /// Which
        #[command(flatten)]
        which: UnitChange,
    },
    /// Freeze a yuno: suspend all its processes
    ///
    /// It keeps its memory and can be stopped; a restart thaws it.
    Freeze(UnitChange),
    /// Thaw a yuno that was frozen
    Thaw(UnitChange),
    /// List yunos
    #[command(alias = "list")]
    Ls(UnitListArgs),
    /// Show a yuno: desired and observed state
    Show(ShowUnit),
    /// Print the last lines of the log of yunos
    Logs(logs::Logs),
    /// Show the configuration of a yuno; secrets print as ***
    Config(effective::Config),
    /// Remove yunos that are retired
    ///
    /// `muster unit retire` stops and holds them first.
    Rm(UnitChange),
}

/// Units that are stopped.
#[derive(Args, Clone, Debug)]
pub struct StopUnits {
    /// Which
    #[command(flatten)]
    pub which: UnitChange,
    /// Send this signal as well: KILL for one that hangs
    #[arg(long)]
    pub signal: Option<Signal>,
}

/// Units that are listed.
#[derive(Args, Clone, Debug)]
pub struct UnitListArgs {
    /// Show those of this host only
    #[arg(long)]
    host: Option<String>,
    /// Show units that this selects, such as 'realm=prod'
    ///
    /// `muster --help` has the fields.
    #[arg(long, value_name = "EXPRESSION")]
    select: Option<Select>,
    /// Order: host, unit, phase or since
    ///
    /// `phase` shows failures first, `since` the last change.
    #[arg(long, value_name = "ORDER", default_value = "host", value_parser = UnitSort::WORDS, hide_possible_values = true)]
    sort: String,
    /// Show so many at most
    #[arg(short = 'n', long, value_name = "N")]
    limit: Option<u32>,
}

impl UnitListArgs {
    /// The query of the list.
    fn query(self, noun: Noun) -> Vec<(&'static str, String)> {
        let kind = (noun != Noun::Unit).then(|| ("kind", noun.word().to_owned()));
        [
            self.host.map(|host| ("host", host)),
            kind,
            self.select.map(|select| ("select", select.to_string())),
            Some(("sort", self.sort)),
            self.limit.map(|limit| ("limit", limit.to_string())),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// The unit that is shown.
#[derive(Args, Clone, Debug)]
pub struct ShowUnit {
    /// REALM/NAME or HOST:REALM/NAME
    unit: UnitRef,
    /// Host, by id or hostname
    #[arg(long)]
    host: Option<String>,
}

/// Make a yuno; with --overwrite, have the one of this name be another.
#[derive(Args, Clone, Debug)]
pub struct CreateYuno {
    /// REALM/NAME or HOST:REALM/NAME
    pub unit: UnitRef,
    /// Host, by id or hostname
    #[arg(long)]
    pub host: Option<String>,
    /// Artifact: ROLE@VERSION, ROLE for the newest, or a SHA-256
    ///
    /// Of a SHA-256, the beginning is enough.
    #[arg(long)]
    pub artifact: String,
    /// Config: ID@VERSION, or ID for the newest; repeatable
    ///
    /// Later ones are merged over earlier ones (RFC 7386). MUSTER_CONFIG has the path of the merged file.
    #[arg(long = "config", value_name = "CONFIG")]
    pub configs: Vec<String>,
    /// Argument; repeatable [default: those of the manifest]
    ///
    /// {config} stands for the path of the merged configuration, and {{word}} for the text {word}.
    #[arg(long = "arg", value_name = "ARG", allow_hyphen_values = true)]
    pub args: Vec<String>,
    /// Its environment
    #[command(flatten)]
    pub environment: EnvironmentArgs,
    /// On a new config: restart, signal or channel
    ///
    /// `signal` is for a program that reads its configs again at a signal, `channel` for one that does so when it is
    /// asked to there.
    #[arg(long, default_value = "restart", value_parser = parse_word::<Reload>)]
    pub reload: Reload,
    /// Signal at which it reads its files again
    #[arg(long, default_value = "hup", value_name = "SIGNAL")]
    pub reload_signal: Signal,
    /// File to watch, and restart, signal or channel; repeatable
    ///
    /// A file such as a certificate, and what is done when its content changes.
    #[arg(long, value_name = "PATH=ACTION", value_parser = parse_on_change)]
    pub on_change: Vec<OnChange>,
    /// If others change its artifact or configs: correct or report
    ///
    /// With `correct` they are fetched again, and a process that may run from what was changed is restarted.
    #[arg(long, default_value = "correct", value_parser = parse_word::<Drift>)]
    pub drift: Drift,
    /// User that it runs as
    #[arg(long)]
    pub user: Option<String>,
    /// When it is started, and how it ends
    #[command(flatten)]
    pub policy: policy::PolicyOptions,
    /// What it may use and what it is given
    #[command(flatten)]
    pub process: process::ProcessOptions,
    /// Where it listens, and what it connects to
    #[command(flatten)]
    pub endpoints: endpoint::EndpointOptions,
    /// How it is found out whether it is well
    #[command(flatten)]
    pub probes: probe::ProbeOptions,
    /// What becomes of a change that does not work
    #[command(flatten)]
    pub rollback: rollback::RollbackOptions,
    /// Start it
    #[arg(long)]
    pub run: bool,
    /// Replace a yuno of this name
    ///
    /// What is not given gets its default.
    #[arg(long)]
    pub overwrite: bool,
    #[command(flatten)]
    wait: WaitOptions,
}

fn parse_on_change(text: &str) -> Result<OnChange, String> {
    let (path, action) = text.rsplit_once('=').ok_or("use PATH=restart, PATH=signal or PATH=channel")?;
    Ok(OnChange { path: path.to_owned(), action: parse_word(action)? })
}

/// Runs a verb on units of any kind.
///
/// # Errors
/// If it fails.
pub async fn run(verb: UnitVerb, session: &CliSession) -> Result<(), Failure> {
    match verb {
        UnitVerb::Ls(wanted) => list(session, wanted, Noun::Unit).await,
        UnitVerb::Show(wanted) => show(session, wanted, Noun::Unit).await,
        UnitVerb::Apply(wanted) => apply::run(*wanted, session).await,
        UnitVerb::Export(wanted) => export::run(wanted, session).await,
        UnitVerb::Tasks(wanted) => tasks::run(wanted, session).await,
        UnitVerb::Hold { which, note } => change(session, Noun::Unit, which, UnitAction::Hold(note)).await,
        UnitVerb::Unhold(which) => change(session, Noun::Unit, which, UnitAction::Unhold).await,
        UnitVerb::Restart(which) => change(session, Noun::Unit, which, UnitAction::Restart).await,
        UnitVerb::Retire { which, note } => change(session, Noun::Unit, which, UnitAction::Retire(note)).await,
        UnitVerb::Label { which, set, unset } => {
            let unset = unset.into_iter().map(|name| (name, None));
            let labels = unset.chain(set.into_iter().map(|(name, value)| (name, Some(value)))).collect();
            change(session, Noun::Unit, which, UnitAction::Label(labels)).await
        }
        UnitVerb::Detach(which) => detach(session, which).await,
        UnitVerb::Rm(which) => change(session, Noun::Unit, which, UnitAction::Remove).await,
    }
}

async fn detach(session: &CliSession, which: DetachUnits) -> Result<(), Failure> {
    let DetachUnits { units, select, hosts, all } = which;
    let wait = WaitOptions { no_wait: true, timeout: Duration::ZERO.into(), wait_offline: false, expires: None };
    let which = UnitChange { units, select, hosts, all, yes: true, wait };
    let all = candidates(session, &which).await?;
    deployment::detach(session, &pick(session, &all, &which, Noun::Unit)?).await
}

/// Runs a verb on yunos.
///
/// # Errors
/// If it fails.
pub async fn run_yuno(verb: YunoVerb, session: &CliSession) -> Result<(), Failure> {
    match verb {
        YunoVerb::Create(create) => self::create(session, *create).await,
        YunoVerb::Run { which, play } => {
            change(session, Noun::Yuno, which, if play { UnitAction::RunAndPlay } else { UnitAction::Run }).await
        }
        YunoVerb::Play(which) => change(session, Noun::Yuno, which, UnitAction::Play).await,
        YunoVerb::Pause(which) => change(session, Noun::Yuno, which, UnitAction::Pause).await,
        YunoVerb::Command(ask) => ask::command(session, ask).await,
        YunoVerb::Stats(stats) => ask::stats(session, stats).await,
        YunoVerb::Stop(StopUnits { which, signal }) => {
            change(session, Noun::Yuno, which, UnitAction::Stop(signal)).await
        }
        YunoVerb::Restart(which) => change(session, Noun::Yuno, which, UnitAction::Restart).await,
        YunoVerb::Upgrade(upgrade) => upgrade::run(*upgrade, session).await,
        YunoVerb::Signal { signal, which } => change(session, Noun::Yuno, which, UnitAction::Signal(signal)).await,
        YunoVerb::Quota { memory: None, cpu: None, pids: None, .. } => {
            let nothing = Failure::new(FailureKind::Usage, "there is no limit to change");
            Err(nothing.hint("name one: --memory, --cpu or --pids"))
        }
        YunoVerb::Quota { memory, cpu, pids, which } => {
            let quota = LimitOptions {
                memory_bytes: memory.map(|given| given.0),
                cpu: cpu.map(|given| given.0),
                pids: pids.map(|given| given.0),
                disk_bytes: None,
            };
            change(session, Noun::Yuno, which, UnitAction::Quota(quota)).await
        }
        YunoVerb::Freeze(which) => change(session, Noun::Yuno, which, UnitAction::Freeze).await,
        YunoVerb::Thaw(which) => change(session, Noun::Yuno, which, UnitAction::Thaw).await,
        YunoVerb::Ls(wanted) => list(session, wanted, Noun::Yuno).await,
        YunoVerb::Show(wanted) => show(session, wanted, Noun::Yuno).await,
        YunoVerb::Logs(wanted) => logs::run(wanted, Noun::Yuno, session).await,
        YunoVerb::Config(wanted) => effective::run(wanted, session).await,
        YunoVerb::Rm(which) => change(session, Noun::Yuno, which, UnitAction::Remove).await,
    }
}

/// Lists units: all, or those of one kind.
pub(super) async fn list(session: &CliSession, wanted: UnitListArgs, noun: Noun) -> Result<(), Failure> {
    let limit = wanted.limit;
    let units: Vec<Unit> = session.client.get("units", &wanted.query(noun)).await?;
    let names = HostNames::new(units.iter().map(|unit| (unit.host, unit.hostname.as_str())));
    let now_ms = clock::now_ms();
    let row = |unit: &Unit| {
        let observed = &unit.observed;
        vec![
            names.show(unit.host, &unit.hostname),
            unit.unit.to_string(),
            unit.desired.spec.kind().to_owned(),
            unit.version(),
            unit.owner.as_ref().map(|owner| owner.deployment.to_string()).unwrap_or_default(),
            doing(unit),
            print::age(observed.since_ms, now_ms),
            observed.instance().pid.map(|pid| pid.to_string()).unwrap_or_default(),
            trouble(unit),
        ]
    };
    let header = ["HOST", "UNIT", "KIND", "VERSION", "DEPLOYMENT", "PHASE", "SINCE", "PID", "LAST EXIT OR ERROR"];
    let empty = match noun {
        Noun::Container => "no containers that agents keep; `muster unit apply --help` describes one",
        Noun::Yuno => "no yunos; `muster yuno create --help` describes one",
        Noun::Unit => "no units; `muster yuno create --help` describes one",
    };
    session.printer.list(&units, &header, row, empty)?;
    if let Some(limit) = limit {
        print::say_if_limited(units.len(), limit);
    }
    Ok(())
}

/// Its last error, or why it is in its state.
fn trouble(unit: &Unit) -> String {
    let observed = &unit.observed;
    // The exit of a retired unit is not a problem.
    if let Some(hold) = unit.retired() {
        return hold.note.clone().unwrap_or_default();
    }
    observed
        .error
        .clone()
        .or(observed.instance().unready.clone())
        .or(observed.rolled_back().map(|back| back.diagnostic("it ")))
        .map(|told| format!("{told:#}"))
        .or(unit.hold.as_ref().map(|hold| format!("held: {hold}")))
        .or(observed.last_end.map(|end| end.to_string()))
        .unwrap_or_default()
}

/// The phase, and other states that must not be overlooked.
fn doing(unit: &Unit) -> String {
    if unit.retired().is_some() {
        return "retired".to_owned();
    }
    let frozen = if unit.observed.instance().frozen { ", frozen" } else { "" };
    let held = unit.hold.as_ref().map(|hold| format!(", held: {}", hold.reason.as_str())).unwrap_or_default();
    let unready = if is_unready(unit) { ", unready" } else { "" };
    format!("{}{}{frozen}{unready}{held}", wait::phase(unit.observed.phase()), rollback::mark(unit))
}

/// Whether it runs, but its probes report that it is not ready.
fn is_unready(unit: &Unit) -> bool {
    let observed = &unit.observed;
    matches!(observed.phase(), Phase::Running | Phase::Playing) && observed.instance().unready.is_some()
}

pub(super) async fn show(session: &CliSession, wanted: ShowUnit, noun: Noun) -> Result<(), Failure> {
    let unit = one(session, &wanted.unit, wanted.host).await?;
    noun.check([&unit])?;
    let now_ms = clock::now_ms();
    let [verified, rolled_back, its_lines, hint] = rollback::facts(&unit, now_ms);
    let [replaced, beside] = rollback::replacement(&unit, now_ms);
    session.printer.one(&unit, || {
        let (desired, observed) = (&unit.desired, &unit.observed);
        let instance = observed.instance();
        let error = observed.error.clone().unwrap_or_default();
        let listed = |all: &[Diagnostic]| all.iter().map(|one| format!("{one:#}")).collect::<Vec<_>>().join("; ");
        let spec = desired.spec.as_ref();
        let probed = |which| spec.probes().get(which).map(|probe| probe::shown(which, probe)).unwrap_or_default();
        let [image, inside, mounts, network, may_use] = container_text::facts(spec);
        let artifact =
            |artifact: &ArtifactRef| format!("{}@{} ({})", artifact.role, artifact.version, artifact.sha256.short());
        let configs = spec.configs().iter().map(|config| format!("{}@{}", config.id, config.version));
        let revision = observed.revision.as_ref().map(|revision| revision.short().to_owned());
        vec![
            ("unit", unit.unit.to_string()),
            ("host", format!("{} ({})", unit.hostname, unit.host)),
            ("kind", desired.spec.kind().to_owned()),
            ("deployment", unit.owner.as_ref().map(deployment::owner).unwrap_or_default()),
            ("differs", unit.deviation().map(|what| format!("{what}; the desired state follows")).unwrap_or_default()),
            ("artifact", spec.artifact().map(artifact).unwrap_or_default()),
            ("files", files(spec)),
            image,
            network,
            mounts,
            ("configs", configs.collect::<Vec<_>>().join(", ")),
            ("secrets", spec.common().secrets.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
            ("arguments", spec.args().join(" ")),
            ("user", spec.host_user().unwrap_or_default().to_owned()),
            inside,
            may_use,
            ("starts after", names(&spec.common().after)),
            ("requires", names(&spec.common().requires)),
            ("snapshots need", unit.pins.words().join(", ")),
            (
                "labels",
                spec.common()
                    .labels
                    .iter()
                    .map(|(name, value)| format!("{name}={value}"))
                    .collect::<Vec<_>>()
                    .join(" "),
            ),
            (
                "desired",
                format!(
                    "{}{}, generation {}, revision {}",
                    run_word(desired.run),
                    if desired.frozen { ", frozen" } else { "" },
                    desired.generation,
                    desired.revision.short()
                ),
            ),
            (
                "observed",
                format!(
                    "{} since {}, generation {}, revision {}",
                    wait::phase(observed.phase()),
                    print::age(observed.since_ms, now_ms),
                    observed.generation,
                    revision.unwrap_or_else(|| "none".to_owned()),
                ),
            ),
            replaced,
            beside,
            verified,
            rolled_back,
            its_lines,
            hint,
            ("start probe", probed(Which::Start)),
            ("ready probe", probed(Which::Ready)),
            ("live probe", probed(Which::Live)),
            ("unready", instance.unready.as_ref().map(|why| format!("{why:#}")).unwrap_or_default()),
            ("hold", unit.hold.as_ref().map(|hold| held(hold, now_ms)).unwrap_or_default()),
            ("listens at", endpoint::listens(observed)),
            ("connects to", endpoint::connects(observed)),
            ("pid", instance.pid.map(|pid| pid.to_string()).unwrap_or_default()),
            ("restarts", observed.attempts.to_string()),
            ("last exit", last_exit(observed)),
            ("progress", observed.progress.map(print::progress).unwrap_or_default()),
            ("says", instance.status.clone().unwrap_or_default()),
            ("owes", observed.owed.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")),
            ("stats", unit.stats.as_ref().map(|stats| told(stats, now_ms)).unwrap_or_default()),
            ("can", instance.can.iter().map(|ability| ability.name()).collect::<Vec<_>>().join(", ")),
            ("frozen", if instance.frozen { "yes".to_owned() } else { String::new() }),
            ("does without", listed(&instance.unsupported)),
            ("others changed", listed(&instance.drift)),
            ("last lines", observed.last_lines.clone().unwrap_or_default().trim_end().to_owned()),
            ("next start", observed.retry_ms().map(|at_ms| print::age(at_ms, now_ms)).unwrap_or_default()),
            ("error", error.cause),
            ("consequence", error.consequence.unwrap_or_default()),
            ("hint", error.hint.unwrap_or_default()),
            ("told", print::age(unit.at_ms, now_ms)),
        ]
    })
}

fn names(units: &[UnitName]) -> String {
    units.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn held(hold: &Hold, now_ms: muster_topics::Millis) -> String {
    format!("{hold} (since {})", print::age(hold.since_ms, now_ms))
}

fn last_exit(observed: &Observed) -> String {
    observed.last_end.map(|end| end.to_string()).unwrap_or_default()
}

/// The statistics of a yuno, with their age.
fn told(stats: &ToldStats, now_ms: muster_topics::Millis) -> String {
    let values: Vec<String> = stats.values.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let more = if stats.and_more { " …" } else { "" };
    format!("{}{more} ({})", values.join(" "), print::age(stats.at_ms, now_ms))
}

fn run_word(run: Run) -> &'static str {
    match run {
        Run::Stopped => "stopped",
        Run::Running => "running",
        Run::Playing => "playing",
    }
}

async fn create(session: &CliSession, create: CreateYuno) -> Result<(), Failure> {
    let named = create.unit.host.clone().or(create.host.clone());
    let host = host_lookup::one(session, named).await?;
    let artifact = artifact::find(session, &create.artifact).await?;
    let mut configs = Vec::new();
    for wanted in &create.configs {
        let Config { id, version, sha256, .. } = config::find(session, wanted).await?;
        configs.push(ConfigRef { id, version, sha256 });
    }
    let says = artifact::manifest(session, &artifact).await?.unwrap_or_default();
    let policy = create.policy;
    let process::ProcessFields { cwd, limits, process, log, channel, start_timeout_ms, watchdog_ms } =
        create.process.into_fields();
    let (provides, needs) = create.endpoints.into_fields();
    let mut spec = YunoSpec {
        configs,
        reload: create.reload,
        reload_signal: create.reload_signal,
        on_change: create.on_change,
        drift: create.drift,
        process,
        log,
        channel: if channel.is_none() { says.channel } else { channel },
        watchdog_ms,
        program: ProgramSpec {
            args: if create.args.is_empty() { says.args } else { create.args },
            env: create.environment.variables()?,
            user: create.user,
            cwd,
            limits,
            start_timeout_ms,
            provides,
            needs,
            probes: create.probes.into_field(),
            ..ProgramSpec::default()
        },
        ..YunoSpec::new(artifact.into())
    };
    policy.put_into(&mut spec.common, &mut spec.program);
    create.rollback.put_into(&mut spec);
    let made = (Spec::Yuno(spec), create.run.then_some(Run::Running));
    make(session, (host, create.unit.unit), made, create.overwrite, create.wait, None).await
}
/// The files of a unit, one in a line.
fn files(spec: &Spec) -> String {
    let Spec::Files(spec) = spec else { return String::new() };
    let lines = spec.files.iter().map(|(path, entry)| format!("{path}: {}", muster_rules::files::words(entry)));
    lines.collect::<Vec<_>>().join("\n")
}

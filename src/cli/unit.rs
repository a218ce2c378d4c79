//! `muster unit` and `muster yuno`: what agents keep.

use std::time::Duration;

use clap::{Args, Subcommand};
use muster_topics::{
    command::Verb as Asked,
    name::HostId,
    outcome::Status,
    unit::{ArtifactRef, ConfigRef, Observed, Restart, Run, Spec, StopSignal, YunoSpec, grace_ms},
};

use super::{
    Session, artifact, config, endpoint, exec, host, print, process,
    target::{self, UnitRef},
    wait,
};
use crate::{
    api::{Command, NewCommand, NewTarget, Unit},
    clock,
    failure::{Failure, Kind},
};

/// Verbs on units of any kind.
#[derive(Subcommand, Clone, Debug)]
pub enum Verb {
    /// List units
    #[command(alias = "list")]
    Ls {
        /// Only those of one host, by id or hostname
        #[arg(long)]
        host: Option<String>,
    },
    /// Show what a unit should be and what it is
    Show {
        /// REALM/NAME or HOST:REALM/NAME
        unit: UnitRef,
        /// The host, by id or hostname
        #[arg(long)]
        host: Option<String>,
    },
    /// Make a host forget a unit that is stopped
    Rm(Change),
}

/// Verbs on yunos.
#[derive(Subcommand, Clone, Debug)]
pub enum YunoVerb {
    /// Make a yuno, or change the one of this name
    Create(Box<Create>),
    /// Start a yuno
    Run(Change),
    /// Stop a yuno: its stop signal, its grace, then SIGKILL for all that it started
    #[command(visible_alias = "kill")]
    Stop(Change),
    /// End a yuno's process and start it anew
    Restart(Change),
    /// List yunos
    #[command(alias = "list")]
    Ls {
        /// Only those of one host, by id or hostname
        #[arg(long)]
        host: Option<String>,
    },
    /// Show what a yuno should be and what it is
    Show {
        /// REALM/NAME or HOST:REALM/NAME
        unit: UnitRef,
        /// The host, by id or hostname
        #[arg(long)]
        host: Option<String>,
    },
    /// Print the last lines of a yuno's log
    Logs {
        /// REALM/NAME or HOST:REALM/NAME
        unit: UnitRef,
        /// The host, by id or hostname
        #[arg(long)]
        host: Option<String>,
        /// How many lines
        #[arg(short = 'n', long, default_value_t = 100)]
        lines: u32,
    },
    /// Make a host forget a yuno that is stopped
    Rm(Change),
}

/// Which units a verb changes, and how long to wait for it.
#[derive(Args, Clone, Debug)]
pub struct Change {
    /// REALM/NAME or HOST:REALM/NAME; with --all alone, every unit there is
    #[arg(required_unless_present = "all")]
    pub units: Vec<UnitRef>,
    /// The host, by id or hostname; may be given several times
    #[arg(long = "host", value_name = "HOST")]
    pub hosts: Vec<String>,
    /// On every host that has such a unit
    #[arg(long)]
    pub all: bool,
    /// Do not ask before more than one unit is stopped or removed
    #[arg(short, long)]
    pub yes: bool,
    #[command(flatten)]
    wait: Waiting,
}

/// How long to wait.
#[derive(Args, Clone, Copy, Debug)]
pub struct Waiting {
    /// Do not wait until it is done
    #[arg(long)]
    pub no_wait: bool,
    /// How long to wait until it is done
    #[arg(long, default_value = "2m", value_name = "TIME")]
    pub timeout: humantime::Duration,
}

/// Make a yuno, or change the one of this name.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:\n  muster artifact add ./server --role server --version 1.0.0\n  \
                        muster config add server.main 1 server.json\n  \
                        muster yuno create default/server --artifact server@1.0.0 --config server.main@1 --run")]
pub struct Create {
    /// REALM/NAME or HOST:REALM/NAME
    pub unit: UnitRef,
    /// The host, by id or hostname
    #[arg(long)]
    pub host: Option<String>,
    /// What runs: ROLE@VERSION, ROLE for the one added last, or a SHA-256
    #[arg(long)]
    pub artifact: String,
    /// Its configuration: ID@VERSION, or ID for the one added last; its path is in MUSTER_CONFIG
    #[arg(long)]
    pub config: Option<String>,
    /// An argument; may be given several times; {config} stands for the configuration's path
    #[arg(long = "arg", value_name = "ARG", allow_hyphen_values = true)]
    pub args: Vec<String>,
    /// A variable of its environment; may be given several times
    #[arg(long = "env", value_name = "K=V", value_parser = exec::parse_variable)]
    pub env: Vec<(String, String)>,
    /// The user that it runs as
    #[arg(long)]
    pub user: Option<String>,
    /// When it is started again by itself: always, on-failure or never
    #[arg(long, default_value = "always", value_parser = parse_restart)]
    pub restart: Restart,
    /// The signal that asks it to end
    #[arg(long, default_value = "term", value_parser = parse_signal)]
    pub stop_signal: StopSignal,
    /// How long it may take to end before it is killed
    #[arg(long, default_value = "30s", value_name = "TIME")]
    pub grace: humantime::Duration,
    /// What it may use and what it is given
    #[command(flatten)]
    pub process: process::Options,
    /// Where it listens, and what it connects to
    #[command(flatten)]
    pub endpoints: endpoint::Options,
    /// Start it as well
    #[arg(long)]
    pub run: bool,
    #[command(flatten)]
    wait: Waiting,
}

fn parse_restart(text: &str) -> Result<Restart, String> {
    parse_word(&text.replace('-', "_"))
}

fn parse_signal(text: &str) -> Result<StopSignal, String> {
    parse_word(text.to_lowercase().trim_start_matches("sig"))
}

fn parse_word<T: serde::de::DeserializeOwned>(word: &str) -> Result<T, String> {
    serde_json::from_value(word.into()).map_err(|error| error.to_string())
}

/// Does a verb on units of any kind.
///
/// # Errors
/// If it cannot be done.
pub async fn run(verb: Verb, session: &Session) -> Result<(), Failure> {
    match verb {
        Verb::Ls { host } => list(session, host).await,
        Verb::Show { unit, host } => show(session, &unit, host).await,
        Verb::Rm(which) => change(session, which, Action::Remove).await,
    }
}

/// Does a verb on yunos.
///
/// # Errors
/// If it cannot be done.
pub async fn run_yuno(verb: YunoVerb, session: &Session) -> Result<(), Failure> {
    match verb {
        YunoVerb::Create(create) => self::create(session, *create).await,
        YunoVerb::Run(which) => change(session, which, Action::Run).await,
        YunoVerb::Stop(which) => change(session, which, Action::Stop).await,
        YunoVerb::Restart(which) => change(session, which, Action::Restart).await,
        YunoVerb::Ls { host } => list(session, host).await,
        YunoVerb::Show { unit, host } => show(session, &unit, host).await,
        YunoVerb::Logs { unit, host, lines } => logs(session, &unit, host, lines).await,
        YunoVerb::Rm(which) => change(session, which, Action::Remove).await,
    }
}

async fn units(session: &Session, host: Option<String>) -> Result<Vec<Unit>, Failure> {
    let query: Vec<_> = host.into_iter().map(|host| ("host", host)).collect();
    session.client.get("units", &query).await
}

async fn list(session: &Session, host: Option<String>) -> Result<(), Failure> {
    let units = units(session, host).await?;
    let now_ms = clock::now_ms();
    let row = |unit: &Unit| {
        let observed = &unit.observed;
        vec![
            unit.hostname.clone(),
            unit.unit.to_string(),
            unit.desired.spec.kind().to_owned(),
            wait::phase(observed.phase).to_owned(),
            print::age(observed.since_ms, now_ms),
            observed.pid.map(|pid| pid.to_string()).unwrap_or_default(),
            observed
                .error
                .clone()
                .or(unit.hold.as_ref().map(|hold| format!("held: {hold}")))
                .or(observed.exit.map(|exit| exit.to_string()))
                .unwrap_or_default(),
        ]
    };
    let header = ["HOST", "UNIT", "KIND", "PHASE", "SINCE", "PID", "LAST EXIT OR ERROR"];
    let empty = "no units; `muster yuno create --help` tells how to make one";
    session.printer.list(&units, &header, row, empty)
}

async fn one(session: &Session, wanted: &UnitRef, host: Option<String>) -> Result<Unit, Failure> {
    let all = units(session, None).await?;
    let hosts: Vec<String> = host.into_iter().collect();
    let picked = target::pick(&all, wanted, &hosts, false, session.context.host)?;
    picked
        .first()
        .map(|unit| (*unit).clone())
        .ok_or_else(|| Failure::new(Kind::Failed, format!("there is no unit {}", wanted.unit)))
}

async fn show(session: &Session, wanted: &UnitRef, host: Option<String>) -> Result<(), Failure> {
    let unit = one(session, wanted, host).await?;
    let now_ms = clock::now_ms();
    session.printer.one(&unit, || {
        let (desired, observed) = (&unit.desired, &unit.observed);
        let Spec::Yuno(spec) = &desired.spec;
        let config = spec.config.as_ref().map(|config| format!("{}@{}", config.id, config.version));
        let revision = observed.revision.as_ref().map(|revision| revision.short().to_owned());
        vec![
            ("unit", unit.unit.to_string()),
            ("host", format!("{} ({})", unit.hostname, unit.host)),
            ("kind", desired.spec.kind().to_owned()),
            (
                "artifact",
                format!("{}@{} ({})", spec.artifact.role, spec.artifact.version, spec.artifact.sha256.short()),
            ),
            ("config", config.unwrap_or_default()),
            ("arguments", spec.args.join(" ")),
            ("user", spec.user.clone().unwrap_or_default()),
            (
                "desired",
                format!(
                    "{}, generation {}, revision {}",
                    run_word(desired.run),
                    desired.generation,
                    desired.revision.short()
                ),
            ),
            (
                "observed",
                format!(
                    "{} since {}, generation {}, revision {}",
                    wait::phase(observed.phase),
                    print::age(observed.since_ms, now_ms),
                    observed.generation,
                    revision.unwrap_or_else(|| "none".to_owned()),
                ),
            ),
            ("hold", unit.hold.as_ref().map(ToString::to_string).unwrap_or_default()),
            ("listens at", endpoint::listens(observed)),
            ("connects to", endpoint::connects(observed)),
            ("pid", observed.pid.map(|pid| pid.to_string()).unwrap_or_default()),
            ("restarts", observed.attempts.to_string()),
            ("last exit", last_exit(observed)),
            ("says", observed.status.clone().unwrap_or_default()),
            ("frozen", if observed.frozen { "yes".to_owned() } else { String::new() }),
            ("does without", observed.missing.join("; ")),
            ("last lines", observed.last_lines.clone().unwrap_or_default().trim_end().to_owned()),
            ("next start", observed.retry_ms.map(|at_ms| print::age(at_ms, now_ms)).unwrap_or_default()),
            ("error", observed.error.clone().unwrap_or_default()),
            ("told", print::age(unit.at_ms, now_ms)),
        ]
    })
}

fn last_exit(observed: &Observed) -> String {
    let memory = if observed.oom_killed { ", out of memory" } else { "" };
    let core = if observed.core_dumped { ", core dumped" } else { "" };
    observed.exit.map(|exit| format!("{exit}{memory}{core}")).unwrap_or_default()
}

fn run_word(run: Run) -> &'static str {
    match run {
        Run::Stopped => "stopped",
        Run::Running => "running",
    }
}

async fn logs(session: &Session, wanted: &UnitRef, host: Option<String>, lines: u32) -> Result<(), Failure> {
    let unit = one(session, wanted, host).await?;
    let asked = Asked::UnitLogs { unit: unit.unit.clone(), lines };
    let command = submit(session, vec![unit.host], asked).await?;
    let hosts = exec::follow(session, &command).await?;
    report(&command, &hosts)
}

async fn create(session: &Session, create: Create) -> Result<(), Failure> {
    let named = create.unit.host.clone().or(create.host.clone());
    let host = host::one(session, named).await?;
    let artifact = artifact::find(session, &create.artifact).await?;
    let config = match &create.config {
        Some(config) => Some(config::find(session, config).await?),
        None => None,
    };
    let grace: Duration = create.grace.into();
    let artifact = ArtifactRef {
        sha256: artifact.sha256,
        size_bytes: artifact.size_bytes,
        role: artifact.role,
        version: artifact.version,
    };
    let process::Fields { cwd, limits, process, log, channel, start_timeout_ms, watchdog_ms } =
        create.process.into_fields();
    let (provides, needs) = create.endpoints.into_fields();
    let spec = Spec::Yuno(YunoSpec {
        config: config.map(|config| ConfigRef { id: config.id, version: config.version, sha256: config.sha256 }),
        args: create.args,
        env: create.env.into_iter().collect(),
        user: create.user,
        cwd,
        limits,
        process,
        log,
        channel,
        start_timeout_ms,
        watchdog_ms,
        provides,
        needs,
        restart: create.restart,
        stop_signal: create.stop_signal,
        grace_ms: u64::try_from(grace.as_millis()).unwrap_or_else(|_| grace_ms()),
        ..YunoSpec::new(artifact)
    });
    let run = create.run.then_some(Run::Running);
    let asked = Asked::UnitApply { unit: create.unit.unit.clone(), spec: Box::new(spec), run };
    let wanted = NewCommand { target: NewTarget::Hosts(vec![host]), expires_in_ms: None, verb: asked };
    let command: Command = session.client.post("commands", &wanted).await?;
    settle(session, &command, create.wait).await
}

/// What a verb does to units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Run,
    Stop,
    Restart,
    Remove,
}

impl Action {
    fn word(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Stop => "stop",
            Self::Restart => "restart",
            Self::Remove => "remove",
        }
    }

    fn asks(self, unit: &Unit) -> Asked {
        let unit = unit.unit.clone();
        match self {
            Self::Run => Asked::UnitRun { unit },
            Self::Stop => Asked::UnitStop { unit },
            Self::Restart => Asked::UnitRestart { unit },
            Self::Remove => Asked::UnitRm { unit },
        }
    }
}

async fn change(session: &Session, which: Change, action: Action) -> Result<(), Failure> {
    let all = units(session, None).await?;
    let mut picked: Vec<&Unit> = Vec::new();
    for wanted in &which.units {
        picked.extend(target::pick(&all, wanted, &which.hosts, which.all, session.context.host)?);
    }
    if which.units.is_empty() {
        picked = all
            .iter()
            .filter(|unit| which.hosts.is_empty() || which.hosts.iter().any(|host| target::is_host(unit, host)))
            .collect();
    }
    if let (true, Some(host)) = (picked.is_empty(), which.hosts.first()) {
        return Err(Failure::new(Kind::Failed, format!("there is no unit on {host}"))
            .hint("`muster unit ls` lists what there is"));
    }
    if picked.len() > 1 && action != Action::Run && !which.yes {
        let names: String = picked.iter().map(|unit| format!("\n  {} on {}", unit.unit, unit.hostname)).collect();
        if !print::confirm(&format!("{} {} units?{names}\n", action.word(), picked.len())) {
            return Err(Failure::new(
                Kind::Usage,
                format!("to {} {} units needs a yes:{names}", action.word(), picked.len()),
            )
            .hint("say --yes"));
        }
    }
    let mut first_failure = Ok(());
    for unit in picked {
        let done = match submit(session, vec![unit.host], action.asks(unit)).await {
            Ok(command) => settle(session, &command, which.wait).await,
            Err(failure) => Err(failure),
        };
        if let Err(failure) = done {
            // The others are done all the same; each failure is told, and the first one decides.
            if first_failure.is_ok() {
                first_failure = Err(failure);
            } else if let Some(message) = failure.message {
                print::say(format_args!("error: {message}"));
            }
        }
    }
    first_failure
}

async fn submit(session: &Session, hosts: Vec<HostId>, verb: Asked) -> Result<Command, Failure> {
    let hosts = hosts.iter().map(ToString::to_string).collect();
    let wanted = NewCommand { target: NewTarget::Hosts(hosts), expires_in_ms: None, verb };
    session.client.post("commands", &wanted).await
}

/// Waits for a command's outcomes and then until each unit is as desired.
async fn settle(session: &Session, command: &Command, waiting: Waiting) -> Result<(), Failure> {
    let limit: Duration = waiting.timeout.into();
    // The command itself lives longer: for a host that is away it waits until it expires.
    let Ok(hosts) = tokio::time::timeout(limit, exec::follow(session, command)).await else {
        let away = format!("there is no answer after {}", humantime::format_duration(limit));
        return Err(Failure::new(Kind::Failed, away).hint(format!(
            "is the host online (`muster host ls`)? The command still waits for it; `muster command show {}` tells what became of it",
            command.id
        )));
    };
    let hosts = hosts?;
    report(command, &hosts)?;
    if waiting.no_wait {
        return Ok(());
    }
    for host in &hosts {
        let status = host.outcome.as_ref().map(|outcome| &outcome.value.status);
        match (&command.verb, status) {
            (Asked::UnitRm { unit }, Some(Status::Completed)) => {
                wait::until_gone(session, host.host, unit, limit).await?;
                print::say(format_args!("{unit} on {}: forgotten", host.hostname));
            }
            (
                Asked::UnitApply { unit, .. }
                | Asked::UnitRun { unit }
                | Asked::UnitStop { unit }
                | Asked::UnitRestart { unit },
                Some(Status::Applied { generation, .. }),
            ) => wait::until_reached(session, host.host, unit, *generation, limit).await?,
            _ => {}
        }
    }
    Ok(())
}

/// Fails with the first host's complaint, if there is one.
///
/// # Errors
/// With that.
pub fn report(command: &Command, hosts: &[crate::api::CommandHost]) -> Result<(), Failure> {
    let verdict = exec::verdict(hosts, false);
    let complaint = hosts.iter().find_map(|host| Some((host, exec::complaint(host)?)));
    match (verdict, complaint) {
        (Err(failure), Some((host, words))) => {
            let (message, hint) = match words.split_once("hint:") {
                Some((message, hint)) => (message.trim_end_matches([' ', ';', '.', '(']), hint.trim()),
                None => (words.as_str(), "`muster command show` tells more"),
            };
            let hint = hint.replace("command show`", &format!("command show {}`", command.id));
            Err(Failure::new(failure.kind, format!("{}: {message}", host.hostname)).hint(hint))
        }
        (verdict, _) => verdict,
    }
}

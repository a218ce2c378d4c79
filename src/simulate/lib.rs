//! `muster simulate`: many hosts in one process, to load-test an installation before its fleet exists, and to
//! measure.
//!
//! Real are: each host's certificate and connection, MQTT, TLS, the signature check of every message, the rules (permission,
//! presence, heartbeats, repetition), a journal and an outbox on disk. They are an agent's own code ([`host`]
//! says where), over one store with commits that many hosts share ([`store`]). Not real are programs, units and
//! measurements. A command `exec` takes as long as configured, and exits 0 or 1; verbs about units are refused by name. With `--metrics`
//! hosts send batches of synthetic values ([`measure`]), which stay in memory until the console has acknowledged them.
//!
//! Modules, in reading order: [`enrol`] (joins hosts), [`fleet`] (runs hosts), [`host`] (one life), [`command_handler`] (handles its messages), [`admission`] (versions that are rolled out),
//! [`measure`] (its measurements), [`store`] and its [`writer`], [`tally`] (statistics).
//!
//! # Tasks
//!
//! One for each host and one for its link; the store's writer; one that prints progress.
//!
//! **Invariant: a simulated host is recognisable**: its hostname begins with `sim-`, and it has the label `simulated`.

mod admission;
mod command_handler;
mod enrol;
mod fleet;
mod fleet_keys;
mod host;
mod hostname;
mod measure;
mod store;
mod tally;
mod writer;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use clap::Args;
use muster_agent::facts;
use muster_api::Status;
use muster_base::{
    failure::{Failure, FailureContext as _, FailureKind},
    files,
    folders::{self, UserFolders},
};
use muster_cli::{
    client::ConsoleClient,
    print::{self, PrintFormat, Printer},
    token,
};
use muster_rules::authorise::LocalPolicy;
use muster_topics::count::counted;
use muster_topics::{
    command_keys::KnownKeys, desired::DesiredReport, heartbeat::HostState, join::JoinToken, name::Name,
    numbered::Numbers,
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio_util::sync::CancellationToken;

use self::{
    enrol::JoinInputs,
    fleet::{FleetContext, FleetPlan, SimulatedFleet},
    fleet_keys::FleetKeys,
    host::Behaviour,
    store::{SimulatedHostRow, Store},
    tally::{FleetCounters, FleetSummary},
};

/// The label of simulated hosts.
const SIMULATED: &str = "simulated";

/// Number of open files in addition to one connection for each host.
const FILES: u64 = 100;

/// Largest number of hosts of one process: each uses a local port, of which there are about 28,000.
const HOSTS_MAX: u32 = 25_000;

/// Number of other hosts in a fleet that do not need a confirmation: the one of `muster up`.
const OTHERS_MAX: u64 = 1;

/// Interval at which it is checked whether all hosts are online.
const LOOK: Duration = Duration::from_millis(20);

/// Simulate many hosts, to load-test an installation
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "Each host has its own certificate and connection, checks every signature, and keeps its \
                    journal on disk, with an agent's own code. Programs are pretended: every host answers \
                    `muster exec --all -- true`, and nothing runs. Hosts are named sim-00000 and so on, have the \
                    label `simulated`, and stay in the fleet's lists when this ends.\n\n\
                    For a console elsewhere, make tokens there with `muster token create --count N > tokens`, \
                    and give the file with --tokens. With `-o json` each report is a document in a line, and the \
                    last one is the summary.")]
pub struct Simulate {
    /// Number of hosts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(HOSTS_MAX)))]
    hosts: u32,
    /// Data folder
    ///
    /// It has the certificates and journals of the hosts.
    ///
    /// [default: ~/.local/share/muster-simulation]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// File of tokens to join with, one in each line; `-` is stdin
    ///
    /// Without it, the console is asked for tokens.
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Share of hosts that go offline in a minute, such as 5%/min
    ///
    /// They come back within 30 s.
    #[arg(long, help_heading = "Load", value_name = "SHARE", default_value = "0%/min", value_parser = share)]
    churn: f64,
    /// Share of commands that fail, such as 1%
    #[arg(long, help_heading = "Load", value_name = "SHARE", default_value = "0%", value_parser = share)]
    fail: f64,
    /// Time that each program takes
    #[arg(long, help_heading = "Load", value_name = "TIME", default_value = "0s")]
    takes: humantime::Duration,
    /// Time that a host takes for a version that is rolled out
    #[arg(long, help_heading = "Load", value_name = "TIME", default_value = "2s")]
    change_takes: humantime::Duration,
    /// Share of hosts on which such a version fails, such as 1%
    #[arg(long, help_heading = "Load", value_name = "SHARE", default_value = "0%", value_parser = share)]
    change_fail: f64,
    /// Send so many series for each host; 20 without a number
    ///
    /// The values are made up, measured every 10 s, and sent in batches of 30 s.
    #[arg(
        long,
        help_heading = "Load",
        value_name = "SERIES",
        num_args = 0..=1,
        require_equals = true,
        default_value_t = 0,
        hide_default_value = true,
        default_missing_value = "20",
        value_parser = clap::value_parser!(u32).range(..=i64::from(measure::SERIES_MAX))
    )]
    metrics: u32,
    /// Time over which first connections are spread
    ///
    /// [default: 2 ms for each host]
    #[arg(long, help_heading = "Load", value_name = "TIME")]
    ramp: Option<humantime::Duration>,
    /// How long it lasts [default: until Ctrl-C]
    #[arg(long = "for", value_name = "TIME")]
    lasts: Option<humantime::Duration>,
    /// Time between updates
    #[arg(long, value_name = "TIME", default_value = "5s")]
    every: humantime::Duration,
    /// Do not ask first
    ///
    /// It is asked for in a fleet that has real hosts, too.
    #[arg(long)]
    yes: bool,
}

/// Parses a share as people write it: `5%`, `0.5%`, with or without `/min`.
fn share(text: &str) -> Result<f64, String> {
    let wrong = || "expected a share such as 5%".to_owned();
    let number = text.strip_suffix("/min").unwrap_or(text).strip_suffix('%').ok_or_else(wrong)?;
    let percent: f64 = number.parse().map_err(|_| wrong())?;
    if (0.0..=100.0).contains(&percent) {
        Ok(percent / 100.0)
    } else {
        Err("expected a share from 0% to 100%".to_owned())
    }
}

/// Simulates until `shutdown`, or for the given time.
///
/// # Errors
/// If hosts cannot join, if the folder cannot be used, or if a command took effect twice.
pub async fn run(
    wanted: Simulate,
    options: &muster_cli::GlobalOptions,
    shutdown: CancellationToken,
) -> Result<(), Failure> {
    files_for(wanted.hosts)?;
    let data = match &wanted.data_dir {
        Some(folder) => folder.clone(),
        None => default_data()?,
    };
    let path = data.join("simulation.db");
    store::check_form(&path).map_err(|other| Failure::of(FailureKind::Failed, &other))?;
    let _lock = hold(&data)?;
    let store = Store::open(&path).await.trying("the simulation's store")?;
    let ran = simulate(&wanted, options, &store, &shutdown).await;
    store.close().await;
    let Some(summary) = ran? else { return Ok(()) };
    match options.output {
        PrintFormat::Json => json_line(&summary)?,
        format => Printer::new(format).one(&summary, || summary.lines())?,
    }
    match summary.twice {
        0 => Ok(()),
        twice => {
            Err(Failure::new(FailureKind::Failed, format!("{twice} commands took effect on a host more than once"))
                .hint("this must not happen: please report it"))
        }
    }
}

/// `None` if it was ended before all hosts had joined.
async fn simulate(
    wanted: &Simulate,
    options: &muster_cli::GlobalOptions,
    store: &Store,
    shutdown: &CancellationToken,
) -> Result<Option<FleetSummary>, Failure> {
    let client = match &wanted.tokens {
        Some(_) => None,
        None => Some(ConsoleClient::new(&options.pick_context()?)?),
    };
    if !enrolled(wanted, client.as_ref(), store, shutdown).await? {
        return Ok(None);
    }
    let trying = "the simulation's store";
    let mut rows = store.hosts(wanted.hosts).await.trying(trying)?;
    let Some(mut membership) = store.membership().await.trying(trying)? else { return Ok(None) };
    // The console now knows the address of its broker.
    if let Some(client) = client
        && let Ok(status) = client.get::<Status>("status", &[]).await
    {
        (membership.broker_url, membership.console_url) = (status.broker_url, status.console_url);
    }
    let left = store.left().await.trying(trying)?;
    store.begin_lives(&mut rows).await.trying(trying)?;
    let tally = Arc::new(FleetCounters::default());
    let inherited = left.count();
    tally.inherited.store(inherited, Ordering::Relaxed);
    if inherited > 0 {
        print::say(format_args!("{inherited} answers of the last run wait for the console"));
    }
    let keys = FleetKeys::new(store.clone(), membership.clone());
    let (journal, writer) = store.start_writer();
    let began = Instant::now();
    let fleet = SimulatedFleet::start(
        FleetContext {
            membership,
            keys: Arc::new(keys),
            journal,
            manner: Arc::new(manner(wanted)),
            tally: Arc::clone(&tally),
            course: course(wanted),
        },
        rows,
        left,
    );
    let watched = watch(wanted, options.output, &tally, began, shutdown).await;
    // The online hosts are counted before they leave; everything else is counted up to the end.
    let online = tally.online();
    print::say("stopping …");
    fleet.stop().await;
    // The hosts are gone, and with them the last handles of the journal.
    let _ = writer.await;
    let summary = tally.summary(u64::from(wanted.hosts), began, *watched.as_ref().unwrap_or(&None));
    let twice = store.twice().await.trying(trying)?;
    watched.map(|_| Some(FleetSummary { online, twice, ..summary }))
}

fn takes_ms(time: humantime::Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX / 4).min(i64::MAX / 4)
}

fn manner(wanted: &Simulate) -> Behaviour {
    let realms: BTreeSet<Name> = "default".parse().into_iter().collect();
    Behaviour {
        takes_ms: takes_ms(wanted.takes),
        fail: wanted.fail,
        change_takes_ms: takes_ms(wanted.change_takes),
        change_fail: wanted.change_fail,
        series: wanted.metrics,
        policy: LocalPolicy::default(),
        user: facts::own_user(),
        state: state(&realms),
        realms,
    }
}

/// The state that all hosts report, except their names: facts of this machine, and the label of simulated hosts.
fn state(realms: &BTreeSet<Name>) -> HostState {
    let simulated = SIMULATED.parse().map(|name| (name, "true".to_owned()));
    HostState {
        hostname: String::new(),
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        facts: facts::facts(),
        interfaces: BTreeMap::new(),
        labels: simulated.into_iter().collect(),
        realms: realms.iter().cloned().collect(),
        units: BTreeMap::new(),
        alerts: BTreeMap::new(),
        containers: Default::default(),
        numbers: Numbers::new(),
        own_labels: None,
        command_keys: KnownKeys::default(),
        desired: DesiredReport::default(),
    }
}

fn course(wanted: &Simulate) -> FleetPlan {
    let usual = Duration::from_millis(2) * wanted.hosts;
    FleetPlan { ramp: wanted.ramp.map_or(usual, Into::into), churn: wanted.churn }
}

/// Writes a line of JSON: the progress, and at the end the summary.
fn json_line(summary: &FleetSummary) -> Result<(), Failure> {
    Printer::new(PrintFormat::Json).item(summary)
}

/// Reports the progress until the end; returns when all hosts were online.
async fn watch(
    wanted: &Simulate,
    format: PrintFormat,
    tally: &FleetCounters,
    began: Instant,
    shutdown: &CancellationToken,
) -> Result<Option<Duration>, Failure> {
    let hosts = u64::from(wanted.hosts);
    let every = Duration::from(wanted.every).max(Duration::from_millis(100));
    let until = wanted.lasts.map(Duration::from);
    let (mut all_online, mut before, mut tell_at) = (None, None::<FleetSummary>, every);
    while until.is_none_or(|until| began.elapsed() < until) {
        tokio::select! {
            () = shutdown.cancelled() => break,
            () = tokio::time::sleep(LOOK) => (),
        }
        if all_online.is_none() && tally.online() >= hosts {
            all_online = Some(began.elapsed());
            print::say(format_args!("{} online after {:.1} s", counted(hosts, "host"), began.elapsed().as_secs_f64()));
        }
        if began.elapsed() >= tell_at {
            let summary = tally.summary(hosts, began, all_online);
            match format {
                PrintFormat::Json => json_line(&summary)?,
                _ => print::say(summary.line(before.as_ref())),
            }
            before = Some(summary);
            tell_at = began.elapsed() + every;
        }
    }
    Ok(all_online)
}

/// Makes sure that all hosts are members. Returns `false` if it was ended meanwhile.
async fn enrolled(
    wanted: &Simulate,
    client: Option<&ConsoleClient>,
    store: &Store,
    shutdown: &CancellationToken,
) -> Result<bool, Failure> {
    let rows = store.hosts(wanted.hosts).await.trying("the simulation's store")?;
    let membership = store.membership().await.trying("the simulation's store")?;
    let missing = enrol::missing(wanted.hosts, &rows, membership.as_ref());
    if missing.is_empty() {
        return Ok(true);
    }
    let count = missing.len();
    let tokens = match (&wanted.tokens, client) {
        (Some(path), _) => enrol::read_tokens(path)?,
        (None, Some(client)) => ask_for_tokens(wanted, client, &rows, count).await?,
        (None, None) => Vec::new(),
    };
    if tokens.len() < count {
        let message = format!("{} must join, with {}", counted(count, "host"), counted(tokens.len(), "token"));
        return Err(Failure::new(FailureKind::Usage, message).hint(format!("`muster token create --count {count}`")));
    }
    let began = Instant::now();
    print::say(format_args!("joining {}; they are kept, so this is needed once", counted(count, "host")));
    let joining = JoinInputs { store, rows: &rows, membership, facts: facts::facts(), shutdown };
    let told = |done| {
        print::say(format_args!("{:>6} s  {done} of {} joined", began.elapsed().as_secs(), counted(count, "host")));
    };
    joining.join(&missing, tokens, told).await?;
    Ok(!shutdown.is_cancelled())
}

/// Asks the console for tokens, if it is confirmed that these hosts may join it.
async fn ask_for_tokens(
    wanted: &Simulate,
    client: &ConsoleClient,
    rows: &[SimulatedHostRow],
    count: usize,
) -> Result<Vec<JoinToken>, Failure> {
    let status: Status = client.get("status", &[]).await?;
    let others = status.hosts.saturating_sub(rows.len() as u64);
    if others > OTHERS_MAX && !wanted.yes {
        let message = format!("the fleet has {others} other hosts, and {count} simulated ones would join it for good");
        return Err(
            Failure::new(FailureKind::Refused, message).hint("choose a test fleet (`--context`), or pass --yes")
        );
    }
    let made = token::make(client, u32::try_from(count).unwrap_or(u32::MAX), None).await?;
    made.iter().map(|made| made.token.parse().trying("the console's token")).collect()
}

fn default_data() -> Result<PathBuf, Failure> {
    let data = UserFolders::from_environment().data().map(|data| data.join("muster-simulation"));
    data.ok_or_else(folders::nowhere)
}

/// Locks the folder for this process.
fn hold(data: &Path) -> Result<File, Failure> {
    let what = || format!("the folder {}", data.display());
    files::make_folder(data, files::PRIVATE_FOLDER).map_err(|error| Failure::of_file(data, &error))?;
    files::take_lock(&data.join("lock")).trying(what())?.ok_or_else(|| {
        Failure::new(FailureKind::Failed, format!("another simulation runs in {}", what()))
            .hint("stop it, or choose another folder with --data-dir DIR")
    })
}

/// Makes sure that this many connections can be open.
fn files_for(hosts: u32) -> Result<(), Failure> {
    let wanted = u64::from(hosts) + FILES;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).trying("the limit of open files")?;
    if soft >= wanted {
        return Ok(());
    }
    if hard < wanted {
        let message = format!(
            "{} need {wanted} open files; this process may have at most {hard}",
            counted(hosts, "simulated host")
        );
        return Err(
            Failure::new(FailureKind::Failed, message).hint("raise the limit (`ulimit -Hn`), or simulate fewer hosts")
        );
    }
    setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).trying("the limit of open files")
}

#[cfg(test)]
mod tests {
    use super::{hostname::hostname, *};

    #[test]
    fn shares() {
        for (text, wanted) in [("0%", 0.0), ("5%", 0.05), ("5%/min", 0.05), ("0.5%", 0.005), ("100%", 1.0)] {
            assert_eq!(share(text), Ok(wanted), "{text}");
        }
        for wrong in ["", "5", "%", "-1%", "101%", "5%/h", "nan%", "inf%", "0.05"] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn hostnames_sort_as_their_numbers_do() {
        assert!(hostname(9) < hostname(10) && hostname(9_999) < hostname(10_000));
    }
}

//! `muster up`: broker, console and this host's agent in one process, with everything in one data folder,
//! secured from the first moment. Started again, it continues where it was.
//!
//! **Invariant: nothing is created before the folder is locked and every port is known to be free.**

use std::{
    env,
    fmt::Display,
    fs::{self, File},
    io::{self, IsTerminal as _},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use muster_agent::{
    RunningAgent,
    config::{FleetUrls, Secret},
    join,
};
use muster_api::{Labels, NewCommand, NewConfig, NewTarget, NewToken};
use muster_base::{
    failure::{Failure, FailureContext as _, FailureKind},
    files,
    folders::{self, UserFolders},
    form::OtherForm,
    reload::{self, HangUpSignals},
    unwritable,
};
use muster_broker::{Broker, Tls};
use muster_cli::{
    context::{self, Contexts},
    print::{self, PrintFormat, Printer},
    wait,
};
use muster_console::{
    Console, ConsoleError, PreparedConsole, RunningConsole, StartedBy,
    config::{BackupConfig, Config, PublicKey},
    roots::RootSet,
};
use muster_topics::{
    command::Verb,
    common::ProgramSpec,
    diagnostic::Diagnostic,
    name::{HostId, Name, UnitName},
    unit::{ArtifactRef, ConfigRef, Phase, Run, Spec, YunoSpec},
};
use nix::unistd::geteuid;
use serde::Serialize;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::role::{embedded_broker, revoked};

/// The pause before an agent that could not be started again is tried again.
const AGENT_PAUSE: Duration = Duration::from_secs(5);
/// How long to wait for the agent's connection before the delay is reported.
const CONNECT_PATIENCE: Duration = Duration::from_secs(30);
/// The default folder for root.
const ROOT_DATA: &str = "/var/lib/muster-up";
/// The file that marks a folder of `muster up`, and locks it.
const LOCK: &str = "lock";
/// The file with the address at which other hosts have reached this fleet.
const REACHED_AT: &str = "reached-at";

/// Start all on this host: broker, console and agent
///
/// They run in one process.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "Everything is in one folder, and secured by mutual TLS and signed commands. Ctrl-C \
                    stops it and leaves yunos running; the next start continues with them.")]
pub(crate) struct UpArgs {
    /// Data folder
    ///
    /// [default: $XDG_DATA_HOME/muster if that is set, else /var/lib/muster-up for root and ~/.local/share/muster for
    /// others]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Address of this machine for other hosts
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    listen: IpAddr,
    /// Address of the web page and the API
    ///
    /// HTTP on loopback, HTTPS elsewhere.
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    web_listen: IpAddr,
    /// Port of the web page and the API; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 7080)]
    web_port: u16,
    /// Port on which hosts join; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 7443)]
    hosts_port: u16,
    /// Port of the broker; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 8883)]
    mqtt_port: u16,
    /// Socket of Podman's or Docker's API, for containers
    ///
    /// [default: /run/podman/podman.sock]
    #[arg(long, value_name = "PATH")]
    podman_socket: Option<PathBuf>,
    /// Public key (`muster backup create-key`) for daily backups
    ///
    /// Backups are in console/backups in the data folder; copy them to another machine.
    #[arg(long, value_name = "KEY", value_parser = |text: &str| PublicKey::try_from(text.to_owned()))]
    backup_recipient: Vec<PublicKey>,
    /// Do not make the sample yuno, default/hello
    #[arg(long)]
    no_sample: bool,
}

/// Runs all roles until `shutdown`.
///
/// # Errors
/// If a role cannot start; those that had started are stopped again.
pub(crate) async fn run(up: UpArgs, format: PrintFormat, shutdown: CancellationToken) -> Result<(), Failure> {
    let data = match &up.data_dir {
        Some(folder) => folders::absolute(folder).trying(format_args!("the folder {}", folder.display()))?,
        None => default_data()?,
    };
    check_form(&data)?;
    let mut steps = ProgressPrinter::new();
    let mut hang_ups = HangUpSignals::listen()?;
    let _held = hold(&data, &up)?;

    let prepared = prepare(&up, &data).await?;
    steps.done("authority, stores and ports");
    let broker = start_broker(&up, &data, &prepared).await?;
    let _revoked = revoked::follow(prepared.revocations(), broker.revocations());
    steps.done("broker");
    let urls = broker_urls(up.listen, broker.local_addr().port());
    let console = prepared
        .started_by(StartedBy::Up)
        .with_broker(urls.0.clone(), Some(urls.1.clone()))
        .start()
        .await
        .map_err(|error| start_failure(&error))?;
    steps.done("console");
    // Joining is repeated as long as the console cannot be reached, so it must be possible to interrupt it.
    let folder = data.join("agent");
    let started = tokio::select! {
        started = start_agent(&up, &folder, &console, &urls.1) => started.map(Some),
        () = shutdown.cancelled() => Ok(None),
    };
    let agent = match started {
        Ok(Some(agent)) => agent,
        ended => {
            console.stop().await;
            broker.stop().await;
            return ended.map(drop);
        }
    };
    let _roots = follow_roots(&up, &console, &broker);
    let mut parts = RunningParts { broker, console, agent };
    let ready = tokio::select! {
        ready = make_ready(&up, &data, &parts, &mut steps) => ready,
        () = shutdown.cancelled() => Ok(None),
    };
    if let (Ok(sample), false) = (&ready, shutdown.is_cancelled()) {
        let mut summary = UpSummary::of(&up, &data, &parts, &urls.1, format).await?;
        // The unit may not have been reported yet.
        summary.unit = sample.clone().map(|unit| ("unit logs", unit)).or(summary.unit);
        match format {
            PrintFormat::Table => print::write_out(&summary.text(&up))?,
            format => Printer::new(format).one(&summary, Vec::new)?,
        }
        warn_of_stranded_hosts(&up, &data, &parts).await?;
        loop {
            let must_restart = tokio::select! {
                () = shutdown.cancelled() => break,
                () = hang_ups.next() => false,
                () = parts.agent.must_restart() => true,
            };
            if must_restart {
                let restarted = parts.restart_agent(&up, &folder, &urls.1);
                if shutdown.run_until_cancelled(restarted).await.is_none() {
                    break;
                }
            } else {
                reload::log("up", parts.renew(&up).map(|()| Vec::new()));
            }
        }
    }
    parts.stop().await;
    ready.map(drop)
}

/// Checks, before anything is changed, that no other build has written what is in the folder, or the context file.
fn check_form(data: &Path) -> Result<(), Failure> {
    let refused = |other: OtherForm| Failure::of(FailureKind::Failed, &other);
    muster_console::check_form(&data.join("console")).map_err(refused)?;
    muster_agent::check_form(&data.join("agent")).map_err(refused)?;
    Contexts::load(&context::path()?).map(drop)
}

/// The running roles.
struct RunningParts {
    broker: Broker,
    console: RunningConsole,
    agent: RunningAgent,
}

impl RunningParts {
    /// Renews the certificates of broker and console. There is no configuration to reload.
    fn renew(&self, up: &UpArgs) -> Result<(), Failure> {
        let tls = broker_tls(up, &self.console.authority().roots())?;
        self.broker.credentials().replace_tls(&tls).map_err(|error| embedded_broker::failure(&error, "--mqtt-port"))?;
        self.console.renew().map_err(|error| start_failure(&error))
    }

    /// Starts the agent again, whose folder can be written now, or cannot any more; yunos continue meanwhile.
    async fn restart_agent(&mut self, up: &UpArgs, folder: &Path, broker_url: &str) {
        self.agent.end().await;
        loop {
            match start_agent(up, folder, &self.console, broker_url).await {
                Ok(agent) => {
                    self.agent = agent;
                    return;
                }
                Err(failure) => tracing::error!(error = failure.cause(), "the agent cannot be restarted"),
            }
            tokio::time::sleep(AGENT_PAUSE).await;
        }
    }

    /// Stops the roles in an order that lets each send its last messages; yunos continue to run, and are named.
    async fn stop(self) {
        let left = running_yunos(&self.console.console(), self.agent.host()).await;
        print::say("\nstopping …");
        self.agent.stop().await;
        self.console.stop().await;
        self.broker.stop().await;
        if left.is_empty() {
            print::say("stopped");
        } else {
            print::say(format_args!(
                "stopped; still running: {}\n(to stop these too, start again, run `muster unit stop --all --yes`, and press Ctrl-C)",
                left.join(", ")
            ));
        }
    }
}

async fn running_yunos(console: &Console, host: HostId) -> Vec<String> {
    let units = console.units(Some(host)).await.unwrap_or_default();
    let alive = units
        .into_iter()
        .filter(|unit| matches!(unit.observed.phase(), Phase::Starting | Phase::Running | Phase::Playing));
    alive
        .map(|unit| {
            unit.observed.instance().pid.map_or(unit.unit.to_string(), |pid| format!("{} (pid {pid})", unit.unit))
        })
        .collect()
}

/// Prints progress: one line for each step, with its duration.
struct ProgressPrinter(Instant);

impl ProgressPrinter {
    fn new() -> Self {
        Self(Instant::now())
    }

    fn done(&mut self, what: impl Display) {
        print::say(format_args!("  {:>5} ms  {what}", self.0.elapsed().as_millis()));
        self.0 = Instant::now();
    }
}

pub(crate) fn default_data() -> Result<PathBuf, Failure> {
    usual_data(&UserFolders::from_environment(), geteuid().is_root())
}

/// The default folder: the user's data folder. Other users cannot pass through root's home, and units may run as other
/// users, so root's default is a folder of the host.
fn usual_data(folders: &UserFolders, is_root: bool) -> Result<PathBuf, Failure> {
    if is_root && folders.named_data().is_none() {
        return Ok(PathBuf::from(ROOT_DATA));
    }
    folders.data().map(|data| data.join("muster")).ok_or_else(folders::nowhere)
}

/// Creates the folder. As root, other users may pass through it to files of their units, but not list it; a folder of
/// another mode gets this one. A folder that somebody else created is not changed.
fn make_data(data: &Path) -> io::Result<()> {
    let is_ours = !data.exists() || data.join(LOCK).exists();
    files::make_folder(data, files::workloads_folder())?;
    let mode = fs::metadata(data)?.permissions().mode();
    let wanted = mode | files::workloads_folder();
    if is_ours && mode != wanted { fs::set_permissions(data, fs::Permissions::from_mode(wanted)) } else { Ok(()) }
}

/// Locks the data folder, and checks that all ports are free. If one is not, a newly created folder is removed.
fn hold(data: &Path, up: &UpArgs) -> Result<File, Failure> {
    let folder = |error: io::Error| {
        Failure::new(FailureKind::Failed, format!("cannot use the data folder {}: {error}", data.display()))
            .hint(unwritable::hint_or(&error, "choose a writable folder with --data-dir DIR"))
    };
    let is_new = !data.exists();
    make_data(data).map_err(folder)?;
    let path = data.join(LOCK);
    let lock = files::take_lock(&path).map_err(folder)?.ok_or_else(|| {
        let message = format!("another `muster up` runs with the data folder {}", data.display());
        Failure::new(FailureKind::Failed, message)
            .hint("use that one (`muster status`), stop it first, or choose another folder with --data-dir DIR")
    })?;
    let free = [
        ("the web page", "--web-port", SocketAddr::new(up.web_listen, up.web_port)),
        ("hosts that join", "--hosts-port", SocketAddr::new(up.listen, up.hosts_port)),
        ("the broker", "--mqtt-port", SocketAddr::new(up.listen, up.mqtt_port)),
    ]
    .into_iter()
    .try_for_each(|(what, flag, address)| is_free(what, flag, address));
    if free.is_err() && is_new {
        let _ = fs::remove_file(&path).and_then(|()| fs::remove_dir(data));
    }
    free.map(|()| lock)
}

fn is_free(what: &str, flag: &str, address: SocketAddr) -> Result<(), Failure> {
    TcpListener::bind(address).map(drop).map_err(|error| {
        let failure = Failure::new(FailureKind::Failed, format!("cannot listen on {address} for {what}: {error}"));
        let other = format!("choose another port with {flag} PORT (0 takes a free one)");
        match error.kind() {
            io::ErrorKind::AddrNotAvailable => {
                let flag = if flag == "--web-port" { "--web-listen" } else { "--listen" };
                failure.hint(format!("this machine has no such address; choose another with {flag} ADDRESS"))
            }
            io::ErrorKind::AddrInUse => failure.hint(format!("another program listens there; {other}")),
            io::ErrorKind::PermissionDenied => failure.hint(format!("ports below 1024 need a privilege; {other}")),
            _ => failure.hint(other),
        }
    })
}

async fn prepare(up: &UpArgs, data: &Path) -> Result<PreparedConsole, Failure> {
    let config = Config {
        data_dir: data.join("console"),
        web_listen: SocketAddr::new(up.web_listen, up.web_port),
        hosts_listen: SocketAddr::new(up.listen, up.hosts_port),
        backup: BackupConfig { recipients: up.backup_recipient.clone(), ..BackupConfig::default() },
        ..Config::default()
    };
    muster_console::prepare(config).await.map_err(|error| start_failure(&error))
}

fn start_failure(error: &ConsoleError) -> Failure {
    let failure = Failure::told(FailureKind::Failed, error.diagnostic());
    match error {
        // Its own hint says what is missing.
        ConsoleError::Folder { source, .. } if unwritable::is_missing_for(source) => failure,
        ConsoleError::Listen { setting, .. } => {
            let flag = if *setting == "web_listen" { "--web-port" } else { "--hosts-port" };
            failure.hint(format!("choose another port with {flag} PORT (0 takes a free one)"))
        }
        ConsoleError::Folder { .. } | ConsoleError::InUse { .. } => {
            failure.hint("choose another folder with --data-dir DIR")
        }
        _ => failure,
    }
}

/// Has the broker trust the console's root certificates, and show a certificate under the present one, whenever they
/// change, until the handle is dropped.
fn follow_roots(up: &UpArgs, console: &RunningConsole, broker: &Broker) -> AbortOnDropHandle<()> {
    let (up, console, credentials) = (up.clone(), console.console(), broker.credentials());
    let mut roots = console.follow_roots();
    let mut used = Arc::clone(&roots.borrow_and_update().roots);
    AbortOnDropHandle::new(tokio::spawn(async move {
        while roots.changed().await.is_ok() {
            let present = Arc::clone(&roots.borrow_and_update().roots);
            if present.is_same(&used) {
                continue;
            }
            let replaced = broker_tls(&up, &present).and_then(|tls| {
                credentials.replace_tls(&tls).map_err(|error| embedded_broker::failure(&error, "--mqtt-port"))
            });
            if let Err(Failure { diagnostic, .. }) = replaced {
                tracing::error!(
                    error = diagnostic.map(|diagnostic| diagnostic.cause),
                    consequence = "the broker keeps the earlier root certificates",
                    hint = "stop and start `muster up`",
                    "the broker cannot use the fleet's root certificates",
                );
            }
            used = present;
        }
    }))
}

/// A new certificate of the broker.
fn broker_tls(up: &UpArgs, roots: &RootSet) -> Result<Tls, Failure> {
    let mut names = Config::default().certificate_names();
    names.push(up.listen.to_string());
    names.sort();
    names.dedup();
    let (certificate, key) =
        roots.serving().issue_server(&names).map_err(Failure::trying("the broker's certificate"))?;
    Ok(Tls { authority: roots.pem(), certificate, key })
}

async fn start_broker(up: &UpArgs, data: &Path, prepared: &PreparedConsole) -> Result<Broker, Failure> {
    let tls = broker_tls(up, &prepared.authority().roots())?;
    let config = muster_broker::Config {
        store: Some(data.join("broker")),
        ..muster_broker::Config::new(SocketAddr::new(up.listen, up.mqtt_port), tls)
    };
    Broker::start(config).await.map_err(|error| embedded_broker::failure(&error, "--mqtt-port"))
}

/// The broker's address for this process, and for hosts.
fn broker_urls(listen: IpAddr, port: u16) -> (String, String) {
    let own = if listen.is_unspecified() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { listen };
    let public = match listen.is_unspecified() {
        true => Config::default().host_in_urls(listen),
        false => bracketed(listen),
    };
    (format!("mqtts://{}:{port}", bracketed(own)), format!("mqtts://{public}:{port}"))
}

fn bracketed(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}

/// Starts this host's agent. At the first start it joins with its own token; later it gets the current addresses of
/// broker and console.
async fn start_agent(
    up: &UpArgs,
    folder: &Path,
    running: &RunningConsole,
    broker_url: &str,
) -> Result<RunningAgent, Failure> {
    let console = running.console();
    let known = join::load(folder).map_err(|error| Failure::of(FailureKind::Failed, &error))?;
    let mut config =
        muster_agent::config::Config { data_dir: folder.to_owned(), ..muster_agent::config::Config::default() };
    if let Some(socket) = &up.podman_socket {
        config.containers.podman_socket.clone_from(socket);
    }
    if known.is_some() {
        let console_url = console.status().await.map_err(tried("the console"))?.console_url;
        config.own_fleet = Some(FleetUrls { broker: broker_url.to_owned(), console: console_url });
    } else {
        // The agent has joined before and has lost its key: it may replace itself, because this is its own machine.
        let replaces = match join::known_host_id(folder).map_err(|error| Failure::of(FailureKind::Failed, &error))? {
            Some(host) if console.host(&host.to_string()).await.is_ok() => Some(host.to_string()),
            _ => None,
        };
        let token = console
            .create_token(&admin()?, NewToken { for_s: Some(600), replace: replaces })
            .await
            .map_err(tried("the agent's token"))?;
        let token = token.token.parse().trying("the agent's token")?;
        config.join = Some(Secret::new(token));
    }
    muster_agent::start(config).await.map_err(|error| Failure::of(FailureKind::Failed, &error))
}

/// Says what was being tried when the console refused.
fn tried(what: &str) -> impl FnOnce(muster_console::Error) -> Failure {
    move |error| Failure::told(FailureKind::Failed, error.problem.diagnostic.within(what))
}

fn admin() -> Result<Name, Failure> {
    "admin".parse().trying("the operator's name")
}

/// Waits for the agent, writes the context, and creates the sample; returns the sample if it is new.
async fn make_ready(
    up: &UpArgs,
    data: &Path,
    parts: &RunningParts,
    steps: &mut ProgressPrinter,
) -> Result<Option<UnitName>, Failure> {
    let mut connected = parts.agent.connected();
    match tokio::time::timeout(CONNECT_PATIENCE, connected.wait_for(|connected| *connected)).await {
        Ok(_) => steps.done("agent"),
        Err(_) => print::say("the agent has not connected yet and keeps trying (--log info shows more)"),
    }
    let console = parts.console.console();
    write_context(up, data, &parts.console, parts.agent.host()).await?;
    let mark = data.join("sample");
    if !up.no_sample && !mark.exists() {
        let sample = make_sample(&console, parts.agent.host()).await?;
        files::write_atomically(&mark, b"default/hello was created\n", files::PUBLIC_MODE).trying("the data folder")?;
        steps.done(format_args!("sample yuno {sample}"));
        return Ok(Some(sample));
    }
    Ok(None)
}

/// Writes the operator's context; a token that is still valid is kept.
async fn write_context(up: &UpArgs, data: &Path, running: &RunningConsole, host: HostId) -> Result<(), Failure> {
    let console = running.console();
    let path = context::path()?;
    let mut contexts = Contexts::load(&path)?;
    let name = context_name(up, data);
    let known = contexts.contexts.get(&name).map(|known| known.token.clone()).unwrap_or_default();
    let operator = admin()?;
    let token = match console.bearer(&known).await {
        Ok(Some(_)) => known,
        _ => console.new_api_token(&operator).await.map_err(tried("the operator's token"))?,
    };
    let url = running.web_url();
    let authority = match url.starts_with("https:") {
        true => Some(running.authority().certificate_pem()),
        false => None,
    };
    contexts.add(&name, context::ConsoleContext { url, operator, token, authority, proxy: None, host: Some(host) });
    contexts.save(&path)
}

/// `local` for the default folder; another installation has its own context, named after its folder (also if that was
/// given as `.` or `..`).
fn context_name(up: &UpArgs, data: &Path) -> String {
    let whole = data.canonicalize().unwrap_or_else(|_| data.to_owned());
    match (&up.data_dir, whole.file_name()) {
        (Some(_), Some(name)) => name.to_string_lossy().into_owned(),
        _ => "local".to_owned(),
    }
}

/// Creates the sample yuno as an operator would: an artifact, a config, and a command.
async fn make_sample(console: &Console, host: HostId) -> Result<UnitName, Failure> {
    let what = "the sample yuno";
    let operator = admin()?;
    let program: &'static [u8] = include_bytes!("hello.sh");
    let (role, version) = ("hello".parse().trying(what)?, "1".parse().trying(what)?);
    let labels = Labels { role, version, manifest: None };
    let body = futures_util::stream::iter([Ok::<_, io::Error>(program)]);
    let artifact = console.add_artifact(&operator, labels, body).await.map_err(tried(what))?;
    let config = NewConfig {
        id: "hello.main".parse().trying(what)?,
        version: "1".parse().trying(what)?,
        content: r#"{"greeting": "hello"}"#.to_owned(),
    };
    let config = console.add_config(&operator, config).await.map_err(tried(what))?;
    let artifact = ArtifactRef::from(artifact);
    let spec = Spec::Yuno(YunoSpec {
        configs: vec![ConfigRef { id: config.id, version: config.version, sha256: config.sha256 }],
        program: ProgramSpec { grace_ms: 5_000, ..ProgramSpec::default() },
        ..YunoSpec::new(artifact)
    });
    let unit: UnitName = "default/hello".parse().trying(what)?;
    let verb = Verb::UnitApply { unit: unit.clone(), spec: Box::new(spec), run: Some(Run::Running) };
    let command =
        NewCommand { target: NewTarget::Hosts(vec![host.to_string()]), expires_in_ms: None, verb, copied_from: None };
    console.submit(&operator, command).await.map_err(tried(what)).map(|_| unit)
}

/// What runs, and how to reach it.
#[derive(Serialize)]
struct UpSummary {
    web: String,
    /// A sign-in link, if the output is a terminal.
    #[serde(skip_serializing_if = "Option::is_none")]
    sign_in: Option<String>,
    broker: String,
    join: String,
    data: PathBuf,
    host: HostId,
    context: String,
    /// The context that was current, and is not changed.
    #[serde(skip)]
    other_context: Option<String>,
    /// What to look at first: the noun, and the unit.
    #[serde(skip)]
    unit: Option<(&'static str, UnitName)>,
}

impl UpSummary {
    async fn of(
        up: &UpArgs,
        data: &Path,
        parts: &RunningParts,
        broker_url: &str,
        format: PrintFormat,
    ) -> Result<Self, Failure> {
        let (console, host) = (parts.console.console(), parts.agent.host());
        // Output that is not a terminal may be logged, and a log must not contain secrets.
        let sign_in = match io::stdout().is_terminal() && format == PrintFormat::Table {
            true => Some(console.new_sign_in_link().await.map_err(tried("a sign-in link"))?),
            false => None,
        };
        let status = console.status().await.map_err(tried("the console"))?;
        let (name, contexts) = (context_name(up, data), Contexts::load(&context::path()?)?);
        let units = console.units(Some(host)).await.unwrap_or_default();
        Ok(Self {
            web: parts.console.web_url(),
            sign_in,
            broker: broker_url.to_owned(),
            join: status.console_url,
            data: data.to_owned(),
            host,
            // If the user works with another console, that context stays current.
            other_context: contexts.current.filter(|current| *current != name),
            context: name,
            unit: units.into_iter().next().map(|unit| (wait::log_verb(&unit.desired.spec), unit.unit)),
        })
    }

    fn text(&self, up: &UpArgs) -> String {
        let program = program();
        let sign_in = match &self.sign_in {
            Some(link) => format!("sign in once, within 15 minutes: {link}"),
            None if up.data_dir.is_some() => {
                format!("`{program} login --new-link --data-dir {}` prints a link to sign in", self.data.display())
            }
            None => format!("`{program} login --new-link` prints a link to sign in"),
        };
        let (program, other) = match &self.other_context {
            Some(current) => (
                format!("{program} --context {}", self.context),
                format!("\nThe current context stays {current:?}; this one is {:?}.\n", self.context),
            ),
            None => (program, String::new()),
        };
        let logs = match &self.unit {
            Some((verb, unit)) => format!("{verb} {unit}"),
            None => "unit create --help".to_owned(),
        };
        format!(
            "
muster is up.

  web       {}
            {sign_in}
  broker    {}
  join      {}   ({})
  data      {}
  this host {}
{other}
Try, in another terminal:

  {program} exec -- uname -a
  {program} {logs}
  {program} host show

Ctrl-C ends muster and leaves yunos running; to stop those too, `{program} unit stop --all --yes` first.
",
            self.web,
            self.broker,
            self.join,
            match up.listen.is_loopback() {
                true => "this machine alone; `--listen ADDRESS` lets other hosts join",
                false => "another host: `muster token create` prints its command",
            },
            self.data.display(),
            self.host,
        )
    }
}

/// Remembers where other hosts reach this fleet, and warns if those that have joined cannot any more: a start without the
/// `--listen` of an earlier one leaves them offline, and nothing else would say why.
async fn warn_of_stranded_hosts(up: &UpArgs, data: &Path, parts: &RunningParts) -> Result<(), Failure> {
    let (path, own) = (data.join(REACHED_AT), parts.agent.host());
    let before = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
    if let Some(before) = before.filter(|before| is_left(*before, up.listen)) {
        let hosts = parts.console.console().hosts().await.map_err(tried("the fleet's hosts"))?;
        let others = hosts.iter().filter(|host| host.id != own).count();
        if others > 0 {
            let cause = format!("{others} of the fleet's hosts connect to {before}, where it no longer listens");
            let hint = format!(
                "stop it and start it with `--listen {before}`; if this machine's address has changed, each host must join again (`muster token create --replace HOST`)"
            );
            print::say(format_args!("warning: {}", Diagnostic::new(cause).with_hint(hint)));
        }
    }
    if up.listen.is_loopback() || before == Some(up.listen) {
        return Ok(());
    }
    match files::write_atomically(&path, format!("{}\n", up.listen).as_bytes(), files::PUBLIC_MODE) {
        // The next start warns again.
        Err(error) if unwritable::is_missing_for(&error) => Ok(()),
        written => written.trying("the data folder"),
    }
}

/// Whether hosts that know a fleet by the address `before` do not reach one that listens on `now`.
fn is_left(before: IpAddr, now: IpAddr) -> bool {
    before != now && !now.is_unspecified()
}

/// The program as it was called, so that printed commands can be copied.
fn program() -> String {
    env::args_os().next().map_or_else(|| "muster".to_owned(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_folder_is_one_that_units_of_other_users_are_reached_in() {
        for (home, data, is_root, wanted) in [
            ("/home/anna", "", false, "/home/anna/.local/share/muster"),
            ("/home/anna", "/data", false, "/data/muster"),
            ("/root", "", true, "/var/lib/muster-up"),
            ("/root", "dat", true, "/var/lib/muster-up"),
            ("/root", "/data", true, "/data/muster"),
            ("", "", true, "/var/lib/muster-up"),
        ] {
            let folders = UserFolders::read(|name| match name {
                "HOME" => Some(home.into()),
                "XDG_DATA_HOME" => Some(data.into()),
                _ => None,
            });
            let found = usual_data(&folders, is_root).unwrap();
            assert_eq!(found, Path::new(wanted), "{home} {data} {is_root}");
        }
        assert!(usual_data(&UserFolders::default(), false).is_err());
    }

    #[test]
    fn hosts_are_left_by_a_start_at_another_address() {
        for (before, now, wanted) in [
            ("192.0.2.5", "192.0.2.5", false),
            ("192.0.2.5", "127.0.0.1", true),
            ("192.0.2.5", "192.0.2.6", true),
            ("192.0.2.5", "0.0.0.0", false),
            ("192.0.2.5", "::", false),
            ("0.0.0.0", "192.0.2.5", true),
        ] {
            assert_eq!(is_left(before.parse().unwrap(), now.parse().unwrap()), wanted, "{before} {now}");
        }
    }

    #[test]
    fn the_folder_is_passable_for_units_of_other_users() {
        let parent = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let data = parent.path().join("new");
        make_data(&data).unwrap();
        assert_eq!(mode(&data), files::workloads_folder());
        // With another mode.
        fs::write(data.join(LOCK), "").unwrap();
        fs::set_permissions(&data, fs::Permissions::from_mode(0o700)).unwrap();
        make_data(&data).unwrap();
        assert_eq!(mode(&data), files::workloads_folder());
        // The mode of somebody else's folder is not changed.
        let other = parent.path().join("other");
        fs::create_dir(&other).unwrap();
        fs::set_permissions(&other, fs::Permissions::from_mode(0o700)).unwrap();
        make_data(&other).unwrap();
        assert_eq!(mode(&other), 0o700);
    }
}

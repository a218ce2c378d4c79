//! The parties: a broker, a console, and hosts that joined it.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use muster_base::clock::now_ms;
use muster_cli::{client::ConsoleClient, context::Contexts};
use muster_topics::command::{Exec, Verb};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    CHANGE_TAKES,
    ledger::Ledger,
    process::{PATIENCE, Process},
};

/// Interval at which a condition is checked.
const LOOK: Duration = Duration::from_millis(10);

/// The broker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Kind {
    /// As Debian installs it, over plain TCP
    Mosquitto,
    /// The embedded one, over TLS
    Muster,
}

impl Kind {
    pub(crate) const ALL: [Self; 2] = [Self::Mosquitto, Self::Muster];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Mosquitto => "mosquitto",
            Self::Muster => "muster",
        }
    }
}

/// Everything of one run, in its own folder.
pub(crate) struct Place {
    folder: TempDir,
}

impl Place {
    pub(crate) fn new() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("muster-bench-").tempdir()?;
        // Mosquitto changes to its own user before it opens its files.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        let place = Self { folder };
        let (console, out) = (place.path("console"), place.path("certificate"));
        let made = place.muster().args(["console", "init", "--data-dir"]).arg(&console).output()?;
        ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let issued = place
            .muster()
            .args(["console", "issue", "--role", "broker", "--name", "bench", "--san", "127.0.0.1", "--data-dir"])
            .arg(console)
            .arg("--out")
            .arg(out)
            .output()?;
        ensure!(issued.status.success(), "{}", String::from_utf8_lossy(&issued.stderr));
        Ok(place)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The program, with no environment except the search path.
    fn muster(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_muster"));
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.folder.path())
            .env("XDG_CONFIG_HOME", self.path("config"))
            .current_dir(self.folder.path());
        command
    }

    /// Starts a broker.
    pub(crate) fn broker(&self, kind: Kind) -> Result<Broker> {
        Broker::start(self, kind, free_address()?)
    }

    /// Makes hosts join until there are this many.
    pub(crate) fn enrol(&self, hosts: u32) -> Result<()> {
        // The address of the broker that they are told does not matter.
        let broker = self.broker(Kind::Muster)?;
        let _console = self.console(&broker)?;
        let mut fleet = self.simulate(hosts, &["--for", "1ms"])?;
        let ended = fleet.wait_for("end of joining", |line| line.starts_with('{').then_some(()));
        ended.map(drop)
    }

    /// Gives the console the program that [`Console::change_all`] names.
    pub(crate) fn add_artifact(&self) -> Result<()> {
        let program = self.path("load");
        fs::write(&program, "#!/bin/sh\nexec sleep 100000\n")?;
        let added =
            self.muster().args(["artifact", "create", "--role", "load", "--version", "1"]).arg(program).output()?;
        ensure!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
        Ok(())
    }

    fn simulate(&self, hosts: u32, more: &[&str]) -> Result<Process> {
        let mut command = self.muster();
        command
            .args([
                "-o",
                "json",
                "simulate",
                "--yes",
                "--every",
                "1s",
                "--ramp",
                "0s",
                "--hosts",
                &hosts.to_string(),
                "--data-dir",
            ])
            .arg(self.path("simulation"))
            .args(more);
        Process::start("simulate", &mut command)
    }

    /// Starts all hosts at once.
    pub(crate) fn fleet(&self, hosts: u32) -> Result<Fleet> {
        let started = (Instant::now(), now_ms());
        let takes = format!("{}s", CHANGE_TAKES.as_secs());
        Ok(Fleet { process: self.simulate(hosts, &["--change-takes", &takes])?, started })
    }

    /// Starts the console with a broker.
    pub(crate) fn console(&self, broker: &Broker) -> Result<Console> {
        let data = self.path("console");
        let config = self.path("console.toml");
        let text = format!(
            "data_dir = {}\nbroker_url = \"{}\"\nweb_listen = \"127.0.0.1:0\"\nhosts_listen = \"127.0.0.1:0\"\n",
            toml::Value::from(data.to_string_lossy().into_owned()),
            broker.url(),
        );
        fs::write(&config, text)?;
        let mut process =
            Process::start("console", self.muster().args(["--log", "warn", "console", "--config"]).arg(&config))?;
        process.wait_for("a console", |line| line.contains("login --new-link").then_some(()))?;
        let made = self.muster().args(["login", "--new-link", "--data-dir"]).arg(&data).output()?;
        ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let link = String::from_utf8_lossy(&made.stdout).trim().to_owned();
        let signed_in = self.muster().args(["login", &link]).output()?;
        ensure!(signed_in.status.success(), "{}", String::from_utf8_lossy(&signed_in.stderr));
        let context = Contexts::load(&self.path("config/muster/context.toml"))
            .and_then(|contexts| contexts.pick(None))
            .and_then(|context| ConsoleClient::new(&context))
            .map_err(|failure| anyhow::anyhow!("{failure:?}"))?;
        Ok(Console { process, client: context, ledger: Ledger::open(&data)? })
    }
}

/// A running broker.
pub(crate) struct Broker {
    kind: Kind,
    address: SocketAddr,
    process: Process,
    pub(crate) started_ms: i64,
}

impl Broker {
    fn start(place: &Place, kind: Kind, address: SocketAddr) -> Result<Self> {
        let started_ms = now_ms();
        let mut command = match kind {
            Kind::Mosquitto => mosquitto(place, address)?,
            Kind::Muster => muster(place, address)?,
        };
        let mut process = Process::start(kind.name(), &mut command)?;
        let started = Instant::now();
        while TcpStream::connect(address).is_err() {
            process.check()?;
            ensure!(started.elapsed() < PATIENCE, "{} does not listen", kind.name());
            thread::sleep(LOOK);
        }
        Ok(Self { kind, address, process, started_ms })
    }

    /// Kills it, and starts another one at the same address.
    pub(crate) fn restart(mut self, place: &Place) -> Result<Self> {
        self.process.kill()?;
        Self::start(place, self.kind, self.address)
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.kind == Kind::Muster { "mqtts" } else { "mqtt" };
        format!("{scheme}://{}", self.address)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn cpu(&self) -> Result<Duration> {
        self.process.cpu()
    }
}

/// A running console.
pub(crate) struct Console {
    process: Process,
    client: ConsoleClient,
    ledger: Ledger,
}

impl Console {
    pub(crate) fn cpu(&self) -> Result<Duration> {
        self.process.cpu()
    }

    pub(crate) fn pss_bytes(&self) -> Result<u64> {
        self.process.pss_bytes()
    }

    /// Waits until this many hosts have come online since the given time.
    pub(crate) fn until_online(&self, hosts: u32, (began, began_ms): (Instant, i64)) -> Result<Duration> {
        until("every host to be online", u64::from(hosts), || self.ledger.online(began_ms))?;
        Ok(began.elapsed())
    }

    /// Waits until every host is in sync again.
    pub(crate) fn until_in_sync(&self, hosts: u32, since_ms: i64) -> Result<Duration> {
        until("every host to be in sync", u64::from(hosts), || self.ledger.in_sync(since_ms))?;
        Ok(Duration::from_millis(u64::try_from(now_ms() - since_ms)?))
    }

    /// Runs a program on all hosts; returns when every outcome is stored.
    pub(crate) fn command_to_all(&self, hosts: u32) -> Result<Duration> {
        let before = self.ledger.commands()?;
        let exec = Exec {
            argv: vec!["true".to_owned()],
            timeout_ms: 60_000,
            ..serde_json::from_str(r#"{"argv": ["true"], "timeout_ms": 60000, "output_max_bytes": 1048576}"#)?
        };
        let wanted = muster_api::NewCommand {
            target: muster_api::NewTarget::All,
            expires_in_ms: None,
            verb: Verb::Exec(exec),
            copied_from: None,
        };
        let client = self.client.clone();
        let began = Instant::now();
        // The response lists every host; it is not waited for here.
        let asked = thread::spawn(move || -> Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let done = runtime.block_on(client.post::<_, Value>("commands", &wanted));
            done.map(drop).map_err(|failure| anyhow::anyhow!("{failure:?}"))
        });
        while self.ledger.commands()? == before {
            ensure!(began.elapsed() < PATIENCE, "the command was not issued");
            if asked.is_finished() {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        while self.ledger.is_any_open()? {
            ensure!(began.elapsed() < PATIENCE, "{} outcomes are missing", self.ledger.open_outcomes()?);
            thread::sleep(LOOK);
        }
        let time = began.elapsed();
        asked.join().map_err(|_| anyhow::anyhow!("the request panicked"))??;
        let outcomes = self.ledger.outcomes()?;
        ensure!(outcomes == u64::from(hosts), "{outcomes} of {hosts} outcomes are stored");
        Ok(time)
    }

    /// Applies another version of a deployment of all hosts, with a body of 2 KiB; returns when the console's store says of
    /// every host that it has stored it. (Simulated hosts run nothing.)
    pub(crate) fn change_all(&self, hosts: u32) -> Result<Duration> {
        let (began, began_ms) = (Instant::now(), now_ms());
        let asked = self.apply(document("load"));
        let hosts = u64::from(hosts);
        // To count reports is cheap; to read them is not, and is left for the end.
        while !asked.is_finished() || self.ledger.heard_since(began_ms)? < hosts {
            ensure!(began.elapsed() < PATIENCE, "{} hosts have reported", self.ledger.heard_since(began_ms)?);
            thread::sleep(LOOK);
        }
        asked.join().map_err(|_| anyhow::anyhow!("the request panicked"))??;
        until("every host to report its document", hosts, || self.ledger.documents_since(began_ms))?;
        Ok(began.elapsed())
    }

    /// Rolls out another version of a deployment of all hosts, with a body of 2 KiB; returns when the console's store says that
    /// the rollout has ended, and that every host is verified.
    pub(crate) fn roll_out(&self, hosts: u32) -> Result<Duration> {
        let mut document = document("rolled-out");
        document["rollout"] = serde_json::json!({"waves": [1, "10%"], "max_in_flight": "10%", "soak": "0s"});
        let (began, began_ms) = (Instant::now(), now_ms());
        let asked = self.apply(document);
        while self.ledger.ended_rollouts(began_ms)? == 0 {
            let verified = || self.ledger.verified(began_ms);
            ensure!(began.elapsed() < PATIENCE, "{} hosts are verified", verified()?);
            if asked.is_finished() && self.ledger.rollouts(began_ms)? == 0 {
                break;
            }
            thread::sleep(LOOK);
        }
        let time = began.elapsed();
        asked.join().map_err(|_| anyhow::anyhow!("the request panicked"))??;
        let verified = self.ledger.verified(began_ms)?;
        ensure!(verified == u64::from(hosts), "{verified} of {hosts} hosts are verified");
        Ok(time)
    }

    /// Has every host plan another version of a deployment, with a body of 2 KiB; returns when the whole plan was fetched.
    pub(crate) fn plan_all(&self, hosts: u32) -> Result<Duration> {
        let wanted = documents(document("load"));
        let began = Instant::now();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let plan = runtime.block_on(async {
            let mut plan: muster_api::Plan = self.client.post("plans", &wanted).await?;
            while !plan.done && began.elapsed() < PATIENCE {
                tokio::time::sleep(LOOK).await;
                plan = self.client.get(&format!("plans/{}", plan.id), &[]).await?;
            }
            Ok::<_, muster_base::failure::Failure>(plan)
        });
        let plan = plan.map_err(|failure| anyhow::anyhow!("{failure:?}"))?;
        let time = began.elapsed();
        let planned: usize = plan.deployments.iter().flat_map(|one| &one.groups).map(|group| group.hosts.len()).sum();
        ensure!(planned == usize::try_from(hosts)?, "{planned} of {hosts} hosts have planned: {:?}", plan.error);
        Ok(time)
    }

    /// Applies a document.
    fn apply(&self, document: Value) -> thread::JoinHandle<Result<Value>> {
        let wanted = documents(document);
        let client = self.client.clone();
        thread::spawn(move || -> Result<Value> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let done = runtime.block_on(client.post::<_, Value>("deployments", &wanted));
            done.map_err(|failure| anyhow::anyhow!("{failure:?}"))
        })
    }
}

/// What a request of the API carries a document in.
fn documents(document: Value) -> Value {
    serde_json::json!({ "documents": [{"source": "the benchmark", "content": document}] })
}

/// A deployment of all hosts, with a body of 2 KiB, and other than all before: the console's folder stays from one broker to
/// the next, and what it has already is no change.
fn document(name: &str) -> Value {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let filler = ["0123456789abcdef"; 100].concat();
    serde_json::json!({
        "deployment": format!("default/{name}"),
        "target": {"select": "host=*"},
        "units": [{"name": name, "artifact": "load@1", "args": [filler, number.to_string()]}],
    })
}

/// Running hosts.
pub(crate) struct Fleet {
    process: Process,
    pub(crate) started: (Instant, i64),
}

impl Fleet {
    pub(crate) fn cpu(&self) -> Result<Duration> {
        self.process.cpu()
    }

    pub(crate) fn pss_bytes(&self) -> Result<u64> {
        self.process.pss_bytes()
    }

    pub(crate) fn check(&mut self) -> Result<()> {
        self.process.check()
    }

    fn told(lines: &[String]) -> Result<Value> {
        let line = lines.iter().rfind(|line| line.starts_with('{')).context("it told nothing")?;
        Ok(serde_json::from_str(line)?)
    }

    /// Bytes of MQTT on the connections so far, as of the last second.
    pub(crate) fn bytes(&self) -> Result<u64> {
        let told = Self::told(&self.process.printed())?;
        let count = |name: &str| told[name].as_u64().with_context(|| format!("no {name}"));
        Ok(count("in_bytes")? + count("out_bytes")?)
    }

    /// Waits until all hosts accept commands. If a host's first connection broke, as happens in a storm, that is later
    /// than it is online: it first claims its host, for a minute.
    pub(crate) fn until_at_work(&self, hosts: u32) -> Result<()> {
        until("hosts at work", u64::from(hosts), || {
            // In the first second nothing is printed.
            Ok(Self::told(&self.process.printed()).ok().and_then(|told| told["online"].as_u64()).unwrap_or(0))
        })
    }

    /// Waits until the console has acknowledged this many answers.
    pub(crate) fn until_acknowledged(&self, answers: u64) -> Result<()> {
        until("acknowledgements", answers, || {
            Self::told(&self.process.printed())?["acknowledged"].as_u64().context("no acknowledged")
        })
    }

    /// Stops them; returns their summary, or an error if a promise was broken.
    pub(crate) fn stop(self) -> Result<String> {
        let told = Self::told(&self.process.stop()?)?;
        ensure!(told["twice"] == 0, "a command took effect twice: {told}");
        ensure!(told["rejected"] == 0, "signatures were rejected: {told}");
        Ok(format!(
            "commands {}, came again {}, outcomes {}, connections {}",
            told["commands"], told["repeated"], told["outcomes"], told["connects"]
        ))
    }
}

fn until(what: &str, wanted: u64, now: impl Fn() -> Result<u64>) -> Result<()> {
    let began = Instant::now();
    loop {
        let there = now()?;
        if there >= wanted {
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            bail!("waited in vain for {what}: {there} of {wanted}");
        }
        thread::sleep(LOOK);
    }
}

/// An address that was free a moment ago.
fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// Debian's configuration, except for folders and port. Version 2.0 requires an explicit permission for anonymous
/// clients if a listener is configured.
fn mosquitto(place: &Place, address: SocketAddr) -> Result<Command> {
    let folder = place.path("mosquitto");
    fs::create_dir_all(&folder)?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777))?;
    let text = format!(
        "listener {} {}\nallow_anonymous true\npersistence true\npersistence_location {}/\nlog_dest file {}\n",
        address.port(),
        address.ip(),
        folder.display(),
        folder.join("mosquitto.log").display()
    );
    let config = place.path("mosquitto.conf");
    fs::write(&config, text)?;
    // It is in a folder that is only in root's search path.
    let program = ["/usr/sbin/mosquitto", "/usr/local/sbin/mosquitto", "/opt/homebrew/sbin/mosquitto"];
    let program = program.into_iter().find(|path| Path::new(path).exists()).unwrap_or("mosquitto");
    let mut command = Command::new(program);
    command.arg("-c").arg(config);
    Ok(command)
}

fn muster(place: &Place, address: SocketAddr) -> Result<Command> {
    let folder = place.path("certificate");
    let toml = |path: PathBuf| toml::Value::from(path.to_string_lossy().into_owned());
    let text = format!(
        "listen = \"{address}\"\ncertificate_file = {}\nkey_file = {}\nauthority_file = {}\ndata_dir = {}\nclients_max = 12000\n",
        toml(folder.join("certificate.pem")),
        toml(folder.join("key.pem")),
        toml(folder.join("authority.pem")),
        toml(place.path("broker")),
    );
    let config = place.path("broker.toml");
    fs::write(&config, text)?;
    let mut command = place.muster();
    command.args(["--log", "warn,rumqttd=off", "broker", "--config"]).arg(config);
    Ok(command)
}

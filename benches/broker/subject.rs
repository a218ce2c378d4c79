//! What is measured: brokers, each a process of its own, and the bare TLS server beside them.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    num::NonZeroU32,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use muster_console::{authority::Authority, key_ring::KeySources};
use muster_net::pki;
use ring::pbkdf2::{self, PBKDF2_HMAC_SHA256};
use rustls::{ClientConfig, client::Resumption};
use tempfile::TempDir;

use crate::{bare, common::usage, swarm::Hello, wire};

/// Longest time to start a broker.
const START_MAX: Duration = Duration::from_secs(30);

/// Identities that muster's roles allow to publish and subscribe. `operator-bench` may read everything.
pub(crate) const READER: &str = "operator-bench";
pub(crate) const CONSOLE: &str = "console-bench";
pub(crate) const HOST: &str = "00000000-0000-4000-8000-000000000000";

/// The password of all clients, for the listener without TLS.
const PASSWORD: &str = "open for a bench";

/// The common name of a host.
pub(crate) fn host(number: usize) -> String {
    format!("{number:08x}-0000-4000-8000-000000000000")
}

/// Which server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Kind {
    /// The embedded broker
    Muster,
    /// Its peer
    Mosquitto,
    /// A server that does TLS handshakes and answers CONNECT, and nothing else
    #[value(name = "handshakes")]
    Bare,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Muster, Self::Mosquitto, Self::Bare];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Muster => "muster",
            Self::Mosquitto => "mosquitto",
            Self::Bare => "handshakes",
        }
    }
}

/// The listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Door {
    /// TCP.
    Plain,
    /// TLS, with certificates on both sides.
    Tls,
}

/// The authority of this run, and the certificates of its clients.
pub(crate) struct Pki {
    folder: TempDir,
    authority: Authority,
    hosts: Vec<Arc<ClientConfig>>,
    reader: Arc<ClientConfig>,
    console: Arc<ClientConfig>,
}

impl Pki {
    pub(crate) fn new() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("muster-bench-").tempdir()?;
        let authority = Authority::open_or_create(&folder.path().join("authority"), KeySources::default())?;
        let (certificate, key) = authority.issue_server(&["localhost".to_owned(), "127.0.0.1".to_owned()])?;
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text);
        write("authority.pem", &authority.certificate_pem())?;
        write("certificate.pem", &certificate)?;
        write("key.pem", &key)?;
        let reader = client(&authority, READER)?;
        let console = client(&authority, CONSOLE)?;
        Ok(Self { folder, authority, hosts: Vec::new(), reader, console })
    }

    /// Makes sure that this many hosts have certificates, so that creating them is not measured.
    pub(crate) fn make_hosts(&mut self, count: usize) -> Result<()> {
        while self.hosts.len() < count {
            let config = client(&self.authority, &host(self.hosts.len()))?;
            self.hosts.push(config);
        }
        Ok(())
    }

    pub(crate) fn host(&self, number: usize) -> Arc<ClientConfig> {
        Arc::clone(&self.hosts[number])
    }

    pub(crate) fn reader(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.reader)
    }

    pub(crate) fn console(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.console)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// Without session resumption: after a restart a broker has lost all tickets anyway.
fn client(authority: &Authority, common_name: &str) -> Result<Arc<ClientConfig>> {
    let (certificate, key) = authority.issue_client(&common_name.parse()?, Duration::from_secs(86_400))?;
    let mut config = pki::client(&authority.certificate_pem(), &certificate, &key)?;
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// A running server.
pub(crate) struct Subject {
    pub(crate) kind: Kind,
    pub(crate) door: Door,
    pub(crate) address: SocketAddr,
    child: Child,
    folder: TempDir,
}

impl Subject {
    /// Starts a server, and waits until it accepts clients.
    pub(crate) fn start(kind: Kind, door: Door, pki: &Pki) -> Result<Self> {
        Self::start_at(kind, door, pki, free_address()?)
    }

    /// As [`Self::start`], at a given address, which must be free.
    pub(crate) fn start_at(kind: Kind, door: Door, pki: &Pki, address: SocketAddr) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("muster-bench-").tempdir()?;
        let mut command = match kind {
            Kind::Muster => muster(folder.path(), door, pki, address)?,
            Kind::Mosquitto => mosquitto(folder.path(), door, pki, address)?,
            Kind::Bare => bare::command(address, &pki.file("."))?,
        };
        let printed = fs::File::create(folder.path().join("printed"))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(printed.try_clone()?)
            .stderr(printed)
            .spawn()
            .with_context(|| format!("{} cannot be started", kind.name()))?;
        let mut subject = Self { kind, door, address, child, folder };
        subject.wait()?;
        Ok(subject)
    }

    fn wait(&mut self) -> Result<()> {
        let started = Instant::now();
        while TcpStream::connect(self.address).is_err() {
            let ended = self.child.try_wait()?;
            if ended.is_some() || started.elapsed() > START_MAX {
                let printed = fs::read_to_string(self.folder.path().join("printed")).unwrap_or_default();
                bail!("{} does not take clients ({ended:?}); it printed: {printed}", self.kind.name());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// A client for the listener without TLS, with a role that may publish or subscribe; `number` makes it unique.
    pub(crate) fn hello(&self, user: &str, number: usize) -> Hello {
        let login = (self.kind == Kind::Muster).then_some((user, PASSWORD));
        Hello { connect: wire::connect(&format!("{user}-{number}"), login), tls: None }
    }

    /// A client for the listener with TLS, which is identified by its certificate.
    pub(crate) fn hello_tls(&self, client_id: &str, tls: Arc<ClientConfig>) -> Hello {
        Hello { connect: wire::connect(client_id, None), tls: Some(tls) }
    }

    /// Its proportional set size, in bytes.
    pub(crate) fn pss_bytes(&self) -> Result<u64> {
        Ok(usage::pss_bytes(self.child.id().cast_signed())?)
    }

    /// The same, after it has been stable for a second (or after ten seconds).
    pub(crate) fn settled_pss_bytes(&self) -> Result<u64> {
        let started = Instant::now();
        let (mut last, mut since) = (self.pss_bytes()?, Instant::now());
        while since.elapsed() < Duration::from_secs(1) && started.elapsed() < Duration::from_secs(10) {
            thread::sleep(Duration::from_millis(100));
            let now = self.pss_bytes()?;
            // Within a page or two per thousand clients.
            if now.abs_diff(last) > 32 * 1024 {
                (last, since) = (now, Instant::now());
            }
        }
        self.pss_bytes()
    }

    /// Processor time so far, including threads that have ended.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        Ok(usage::ticks(self.child.id().cast_signed())?.own)
    }

    /// Kills it, and starts another one at the same address.
    pub(crate) fn restart(mut self, pki: &Pki) -> Result<Self> {
        self.end()?;
        Self::start_at(self.kind, self.door, pki, self.address)
    }

    fn end(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Returns an error if it has ended by itself.
    pub(crate) fn check(&mut self) -> Result<()> {
        let ended = self.child.try_wait()?;
        let printed = fs::read_to_string(self.folder.path().join("printed")).unwrap_or_default();
        ensure!(ended.is_none(), "{} ended ({ended:?}); it printed: {printed}", self.kind.name());
        Ok(())
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// An address that was free a moment ago.
fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

fn muster(folder: &Path, door: Door, pki: &Pki, address: SocketAddr) -> Result<Command> {
    let users = folder.join("users");
    let config = folder.join("broker.toml");
    let toml = |path: &Path| toml::Value::from(path.to_string_lossy().into_owned()).to_string();
    let (tls_address, plain) = match door {
        Door::Tls => (address, String::new()),
        Door::Plain => (free_address()?, format!("plain_listen = \"{address}\"\nusers_file = {}\n", toml(&users))),
    };
    fs::write(
        &config,
        format!(
            "listen = \"{tls_address}\"\ncertificate_file = {}\nkey_file = {}\nauthority_file = {}\ndata_dir = {}\n{plain}\n\
             clients_max = 15000\nidentity_clients_max = 15000\nmemory_max_bytes = 68719476736\n",
            toml(&pki.file("certificate.pem")),
            toml(&pki.file("key.pem")),
            toml(&pki.file("authority.pem")),
            toml(&folder.join("data")),
        ),
    )?;
    fs::write(&users, users_file())?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_muster"));
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with("MUSTER_") {
            command.env_remove(variable);
        }
    }
    command.args(["--log", "warn,rumqttd=off", "broker", "--config"]).arg(config);
    Ok(command)
}

/// The users of the listener without TLS. Passwords are hashed once, and not 600,000 times, which is slow on purpose:
/// Mosquitto asks for no password at all.
fn users_file() -> String {
    let base64 = |bytes: &[u8]| base64::engine::general_purpose::STANDARD_NO_PAD.encode(bytes);
    let salt = b"salt of a bench!";
    let mut hash = [0; 32];
    pbkdf2::derive(PBKDF2_HMAC_SHA256, NonZeroU32::MIN, salt, PASSWORD.as_bytes(), &mut hash);
    let line = |user: &str| format!("{user}:$pbkdf2-sha256$i=1${}${}\n", base64(salt), base64(&hash));
    [READER, CONSOLE, HOST].map(line).concat()
}

/// Mosquitto with Debian's configuration, except for settings that would make it lose messages under load or delay
/// them. It asks for no password and checks no permissions.
fn mosquitto(folder: &Path, door: Door, pki: &Pki, address: SocketAddr) -> Result<Command> {
    let mut text = format!(
        "user root\nlistener {} {}\nallow_anonymous true\npersistence false\nset_tcp_nodelay true\n\
         max_queued_messages 0\nmax_inflight_messages 0\nlog_dest stderr\nlog_type error\nlog_type warning\n\
         connection_messages false\n",
        address.port(),
        address.ip()
    );
    if door == Door::Tls {
        let path = |name| pki.file(name).display().to_string();
        text += &format!(
            "cafile {}\ncertfile {}\nkeyfile {}\nrequire_certificate true\nuse_identity_as_username true\n",
            path("authority.pem"),
            path("certificate.pem"),
            path("key.pem")
        );
    }
    let config = folder.join("mosquitto.conf");
    fs::write(&config, text)?;
    // It is in a folder that is only in root's search path.
    let program = ["/usr/sbin/mosquitto", "/usr/local/sbin/mosquitto", "/opt/homebrew/sbin/mosquitto"];
    let program = program.into_iter().find(|path| Path::new(path).exists()).unwrap_or("mosquitto");
    let mut command = Command::new(program);
    command.arg("-c").arg(config);
    Ok(command)
}

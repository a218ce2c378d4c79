//! Brokers, each with an authority of its own and with the files that `render` makes: ours in this process, the
//! others as processes on free ports, with folders of their own, ended by their pids.

use std::{
    collections::HashMap,
    fs,
    io::{self, Read},
    net::{SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use muster_broker::{
    Broker, Config, Tls,
    render::{BrokerKind, RenderInputs, render},
};
use muster_topics::topic::Prefix;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tempfile::TempDir;

use crate::{
    HOST, OTHER,
    client::{Client, More},
};

/// How long a broker may take to start. Erlang takes its time.
const START: Duration = Duration::from_secs(120);

/// A certificate and its key, as PEM.
struct Pair {
    certificate: String,
    key: String,
    serial: SerialNumber,
}

/// An authority, as muster's is.
struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, "muster authority");
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    fn issue(&self, common_name: &str, purpose: ExtendedKeyUsagePurpose) -> Pair {
        let names = match purpose {
            ExtendedKeyUsagePurpose::ServerAuth => vec!["localhost".to_owned(), "127.0.0.1".to_owned()],
            _ => Vec::new(),
        };
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![purpose];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().unwrap();
        let serial =
            SerialNumber::from_slice(&key.public_key_raw()[1..17].iter().map(|b| b & 0x3f | 0x40).collect::<Vec<_>>());
        params.serial_number = Some(serial.clone());
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Pair { certificate, key: key.serialize_pem(), serial }
    }

    /// A list of one certificate that is good no more.
    fn revoke(&self, pair: &Pair) -> String {
        let revoked = RevokedCertParams {
            serial_number: pair.serial.clone(),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(4096, 1, 1),
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).unwrap().pem().unwrap()
    }
}

/// A process that goes on, with what it prints.
struct Process {
    child: Child,
    printed: Arc<Mutex<String>>,
}

impl Process {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let printed = Arc::new(Mutex::new(String::new()));
        for mut pipe in
            [Box::new(child.stdout.take().unwrap()) as Box<dyn Read + Send>, Box::new(child.stderr.take().unwrap())]
        {
            let printed = Arc::clone(&printed);
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = pipe.read(&mut buffer) {
                    printed.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..count]));
                }
            });
        }
        Self { child, printed }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What serves.
enum Inside {
    /// Ends when its sender goes.
    Own { _stop: tokio::sync::oneshot::Sender<()>, _thread: thread::JoinHandle<()> },
    /// Ended in this order.
    Processes(Vec<Process>),
}

/// A broker that is ready.
pub(crate) struct Server {
    name: &'static str,
    address: SocketAddr,
    other_address: Option<SocketAddr>,
    authority: Authority,
    pairs: HashMap<&'static str, Pair>,
    _inside: Inside,
    _folder: TempDir,
}

/// Everybody who is named in the files.
const EVERYBODY: [&str; 6] = [HOST, OTHER, "console-main", "console-spare", "operator-anna", "observer-bridge"];

/// A folder with the rendered files and the certificates, and what is to become a server.
struct Setup {
    authority: Authority,
    pairs: HashMap<&'static str, Pair>,
    folder: TempDir,
    address: SocketAddr,
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

impl Setup {
    fn new() -> Self {
        let authority = Authority::new();
        let issue = |who| (who, authority.issue(who, ExtendedKeyUsagePurpose::ClientAuth));
        let pairs = EVERYBODY.into_iter().map(issue).collect();
        let folder = tempfile::Builder::new().prefix("muster-broker-").tempdir().unwrap();
        open_to_all(folder.path());
        Self { pairs, folder, address: free_address(), authority }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A folder that whoever a broker becomes may write.
    fn subfolder(&self, name: &str) -> String {
        let path = self.path(name);
        fs::create_dir(&path).unwrap();
        open_to_all(&path);
        path.to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        path
    }

    /// Writes what a broker of this kind needs, each of `changes` made in its files: what a machine's own
    /// folders and ports would be.
    fn write_files(&self, kind: BrokerKind, changes: &[(&str, &str)]) {
        let names = |all: &[&str]| all.iter().map(|name| name.parse().unwrap()).collect();
        let fleet = RenderInputs {
            prefix: Prefix::default(),
            listen: self.address,
            certificates: Some(self.folder.path().to_owned()),
            hosts: vec![HOST.parse().unwrap(), OTHER.parse().unwrap()],
            consoles: names(&["main", "spare"]),
            operators: names(&["anna"]),
            observers: names(&["bridge"]),
        };
        let mut files = render(kind, &fleet).unwrap();
        for (from, to) in changes {
            assert!(files.iter().any(|file| file.text.contains(from)), "{from}");
            files.iter_mut().for_each(|file| file.text = file.text.replace(from, to));
        }
        for file in files {
            self.write(file.name, &file.text);
        }
        let own = self.authority.issue("localhost", ExtendedKeyUsagePurpose::ServerAuth);
        self.write("authority.pem", &self.authority.certificate);
        self.write("certificate.pem", &own.certificate);
        self.write("key.pem", &own.key);
    }

    /// Waits until a console can connect.
    fn ready(self, name: &'static str, processes: Vec<Process>) -> Server {
        let Self { authority, pairs, folder, address } = self;
        let inside = Inside::Processes(processes);
        let mut server =
            Server { name, address, other_address: None, authority, pairs, _inside: inside, _folder: folder };
        let started = Instant::now();
        loop {
            let Err(error) = server.client("console-main", "console-main") else { return server };
            let Inside::Processes(processes) = &mut server._inside else { return server };
            let ended = processes.iter_mut().any(|process| process.child.try_wait().unwrap().is_some());
            if ended || started.elapsed() > START {
                let printed: Vec<String> =
                    processes.iter().map(|process| process.printed.lock().unwrap().clone()).collect();
                panic!("{name} does not start ({error}): {}", printed.join("\n"));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
}

impl Server {
    /// muster's own.
    pub(crate) fn own() -> Self {
        let setup = Setup::new();
        let own = setup.authority.issue("localhost", ExtendedKeyUsagePurpose::ServerAuth);
        let authority = setup.authority.certificate.clone();
        let tls = Tls { authority, certificate: own.certificate, key: own.key };
        let config = Config::new(setup.address, tls);
        let (started, ready) = mpsc::channel();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let broker = Broker::start(config).await.unwrap();
                started.send(()).unwrap();
                let _ = stopped.await;
                broker.stop().await;
            });
        });
        ready.recv().unwrap();
        let Setup { authority, pairs, folder, address } = setup;
        let inside = Inside::Own { _stop: stop, _thread: thread };
        Self { name: "muster", address, other_address: None, authority, pairs, _inside: inside, _folder: folder }
    }

    /// Mosquitto.
    pub(crate) fn mosquitto() -> Self {
        Self::start_mosquitto(Setup::new(), &[])
    }

    /// Mosquitto with a revocation list that has the certificate of `who`.
    pub(crate) fn mosquitto_with_revoked(who: &str) -> Self {
        let setup = Setup::new();
        setup.write("revoked.pem", &setup.authority.revoke(&setup.pairs[who]));
        Self::start_mosquitto(setup, &[("#crlfile ", "crlfile ")])
    }

    fn start_mosquitto(setup: Setup, changes: &[(&str, &str)]) -> Self {
        let data = setup.subfolder("data") + "/";
        setup.write_files(BrokerKind::Mosquitto, &[&[("/var/lib/mosquitto/", data.as_str())], changes].concat());
        let process = Process::start(Command::new("/usr/sbin/mosquitto").arg("-c").arg(setup.path("mosquitto.conf")));
        setup.ready("Mosquitto", vec![process])
    }

    /// NATS.
    pub(crate) fn nats() -> Self {
        let setup = Setup::new();
        let (data, own) = (setup.subfolder("data"), free_address());
        setup.write_files(BrokerKind::Nats, &[("/var/lib/nats", &data), ("127.0.0.1:4222", &own.to_string())]);
        let process = Process::start(Command::new("nats-server").arg("-c").arg(setup.path("nats-server.conf")));
        Self { other_address: Some(own), ..setup.ready("NATS", vec![process]) }
    }

    /// RabbitMQ, with an epmd (Erlang's directory of nodes) of its own.
    pub(crate) fn rabbitmq() -> Self {
        let setup = Setup::new();
        let data = setup.subfolder("data");
        setup.write_files(BrokerKind::RabbitMq, &[]);
        let epmd_port = free_address().port().to_string();
        let epmd = Process::start(Command::new("epmd").args(["-port", &epmd_port, "-address", "127.0.0.1"]));
        let file = |name: &str| setup.path(name).to_str().unwrap().to_owned();
        // The program itself: the wrapper in /usr/sbin takes root's rights away, and with them this environment.
        let mut command = Command::new("/usr/lib/rabbitmq/bin/rabbitmq-server");
        command
            .env("HOME", &data)
            .env("ERL_EPMD_PORT", &epmd_port)
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODENAME", format!("muster{}@localhost", setup.address.port()))
            .env("RABBITMQ_DIST_PORT", free_address().port().to_string())
            .env("RABBITMQ_CONFIG_FILE", file("rabbitmq.conf"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", file("enabled_plugins"))
            .env("RABBITMQ_MNESIA_BASE", &data)
            .env("RABBITMQ_LOG_BASE", &data)
            .env("RABBITMQ_LOGS", "-")
            .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2")
            .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
            // Erlang takes the shell's place, so that it is the process that is ended.
            .env("RUNNING_UNDER_SYSTEMD", "true")
            .current_dir(&data);
        let rabbitmq = Process::start(&mut command);
        setup.ready("RabbitMQ", vec![rabbitmq, epmd])
    }

    /// Its name, for messages.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Where it listens for another protocol.
    pub(crate) fn other_address(&self) -> SocketAddr {
        self.other_address.unwrap()
    }

    /// A connected client of the identity `who`.
    pub(crate) fn client(&self, who: &str, client_id: &str) -> io::Result<Client> {
        self.client_with(who, client_id, More::default())
    }

    /// The same, with a last will, or with a user name.
    pub(crate) fn client_with(&self, who: &str, client_id: &str, more: More<'_>) -> io::Result<Client> {
        Client::connect(self.address, self.tls(self.pairs.get(who)), client_id, more)
    }

    /// A client with a certificate of another authority.
    pub(crate) fn foreigner(&self, who: &str, client_id: &str) -> io::Result<Client> {
        let pair = Authority::new().issue(who, ExtendedKeyUsagePurpose::ClientAuth);
        Client::connect(self.address, self.tls(Some(&pair)), client_id, More::default())
    }

    fn tls(&self, pair: Option<&Pair>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.authority.certificate.as_bytes()).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let Some(pair) = pair else { return Arc::new(builder.with_no_client_auth()) };
        let chain = vec![CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
        Arc::new(builder.with_client_auth_cert(chain, key).unwrap())
    }
}

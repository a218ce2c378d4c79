//! Fixtures: an authority, Mosquitto with mutual TLS as the broker, and a client that plays the console.

use std::{
    collections::BTreeSet,
    io,
    path::PathBuf,
    process::{Child, Command as Process, Stdio},
    sync::Arc,
    time::Duration,
};

use muster_base::clock;
use muster_bus::address;
use muster_net::pki;
use muster_topics::{
    Millis, PROTOCOL, V1,
    ack::{Ack, HostLives, Numbered, ReportAck},
    asker::Asker,
    command::{Command, Exec, Target, Verb},
    envelope::{Body, PublicKey, Signer, UnsignedMessage},
    heartbeat::{self, Heartbeat},
    join::Membership,
    metric::{self, Point},
    name::{CommandId, HostId},
    outcome::{Content, Outcome, Report},
    presence::{Presence, PresenceState},
    revision::RevisionKey,
    topic::{HostTopic, Prefix, Topic},
};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    PKCS_ECDSA_P256_SHA256,
};
use rumqttc::{AsyncClient, Event, Incoming, MqttOptions, NetworkOptions, QoS, TlsConfiguration, Transport};
use rustls::server::WebPkiClientVerifier;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use super::{
    RunningAgent,
    config::Config,
    join::{self, MemberIdentity},
};

/// The longest wait for anything: far beyond what is needed, for machines that are busy.
const PATIENCE: Duration = Duration::from_secs(30);

/// How many messages the broker gives to anybody who acknowledges none.
const OWED_MAX: usize = 10;

pub(super) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority");
        Self(CertifiedIssuer::self_signed(params, key()).unwrap())
    }

    pub(super) fn pem(&self) -> String {
        self.0.pem()
    }

    /// Certificate and key of a party.
    pub(super) fn issue(&self, name: &str) -> (String, String) {
        let key = key();
        (self.certify(name, &key), key.serialize_pem())
    }

    /// As a console, which requires a certificate of a host.
    pub(super) fn console_tls(&self) -> rustls::ServerConfig {
        let (certificate, key) = self.issue("console");
        let mut roots = rustls::RootCertStore::empty();
        for root in pki::certificates("test", &self.pem()).unwrap() {
            roots.add(root).unwrap();
        }
        let provider = pki::provider();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
        rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(pki::certificates("test", &certificate).unwrap(), pki::private_key("test", &key).unwrap())
            .unwrap()
    }

    pub(super) fn certify(&self, name: &str, key: &impl rcgen::PublicKeyData) -> String {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.signed_by(key, &self.0).unwrap().pem()
    }
}

fn key() -> KeyPair {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap()
}

/// See the module. Dropping it ends the broker.
pub(super) struct Fleet {
    pub(super) folder: tempfile::TempDir,
    pub(super) host: HostId,
    authority: Authority,
    signer: Arc<Signer>,
    port: u16,
    broker: Option<Child>,
}

impl Fleet {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        let (certificate, key) = authority.issue("broker");
        for (name, content) in [("ca.pem", authority.pem()), ("broker.pem", certificate), ("broker.key", key)] {
            std::fs::write(folder.path().join(name), content).unwrap();
        }
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let signer = Arc::new(Signer::from_pkcs8(&Signer::generate().unwrap()).unwrap());
        let mut fleet = Self { folder, host: HostId::random(), authority, signer, port, broker: None };
        fleet.start_broker();
        fleet
    }

    /// The keys that this host's console signs with.
    pub(super) fn command_keys(&self) -> Vec<PublicKey> {
        vec![self.signer.public_key().unwrap()]
    }

    /// As a console, which requires a certificate of a host.
    pub(super) fn console_tls(&self) -> rustls::ServerConfig {
        self.authority.console_tls()
    }

    pub(super) fn start_broker(&mut self) {
        let folder = self.folder.path().display();
        let config = format!(
            "listener {} 127.0.0.1\ncafile {folder}/ca.pem\ncertfile {folder}/broker.pem\nkeyfile {folder}/broker.key\n\
             require_certificate true\nuse_identity_as_username true\nallow_anonymous false\nuser root\n\
             max_inflight_messages {OWED_MAX}\n",
            self.port
        );
        let path = self.folder.path().join("mosquitto.conf");
        std::fs::write(&path, config).unwrap();
        let program =
            ["/usr/sbin/mosquitto", "/usr/bin/mosquitto"].into_iter().find(|path| PathBuf::from(path).exists());
        let program = program.expect("these tests need mosquitto: apt-get install mosquitto");
        let log = std::fs::File::create(self.folder.path().join("mosquitto.log")).unwrap();
        let child = Process::new(program).arg("-c").arg(&path).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        self.broker = Some(child);
        let begun = std::time::Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(begun.elapsed() < PATIENCE, "mosquitto does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(super) fn kill_broker(&mut self) {
        if let Some(mut child) = self.broker.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// A configuration for this host, which has joined.
    pub(super) fn config(&self, name: &str) -> Config {
        let data_dir = self.folder.path().join(name);
        if !data_dir.exists() {
            std::fs::create_dir(&data_dir).unwrap();
            std::fs::write(data_dir.join("host"), self.host.to_string()).unwrap();
            let (certificate, key) = self.authority.issue(&self.host.to_string());
            let membership = Membership {
                v: V1,
                host: self.host,
                certificate,
                authority: self.authority.pem(),
                command_keys: vec![self.signer.public_key().unwrap()],
                broker_url: format!("mqtts://127.0.0.1:{}", self.port),
                console_url: "https://127.0.0.1:1".to_owned(),
                prefix: Prefix::default(),
                revision_key: RevisionKey::from_bytes([1; 32]),
                numbers: Default::default(),
                addresses: None,
            };
            join::save(&data_dir, &MemberIdentity { membership, key }).unwrap();
        }
        Config { data_dir, heartbeat_ms: 600, ..Config::default() }
    }

    pub(super) async fn agent(&self, name: &str) -> RunningAgent {
        super::start(self.config(name)).await.unwrap()
    }

    /// As a console that has stored this batch.
    pub(super) async fn acknowledge_batch(&self, console: &Console, id: Numbered) {
        console.publish(HostTopic::Ack, false, self.sign(&Ack { metrics: vec![id], ..self.ack() })).await;
    }

    /// Until an agent works.
    pub(super) async fn working(&self, name: &str) -> RunningAgent {
        let agent = self.agent(name).await;
        let mut connected = agent.connected();
        tokio::time::timeout(PATIENCE, connected.wait_for(|connected| *connected)).await.unwrap().unwrap();
        agent
    }

    /// The folder of an agent.
    pub(super) fn data(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// A console, subscribed to everything of this host.
    pub(super) async fn console(&self) -> Console {
        let (certificate, key) = self.authority.issue("console-main");
        let tls = pki::client(&self.authority.pem(), &certificate, &key).unwrap();
        let mut options = MqttOptions::new(format!("console-{}", uuid::Uuid::new_v4()), "127.0.0.1", self.port);
        options.set_max_packet_size(100_000, 100_000);
        options.set_transport(Transport::tls_with_config(TlsConfiguration::Rustls(Arc::new(tls))));
        let (client, mut eventloop) = AsyncClient::new(options, 100);
        let mut network = NetworkOptions::new();
        network.set_tcp_nodelay(true);
        eventloop.set_network_options(network);
        client.subscribe(format!("muster/s/{}/h/{}/#", self.host.slot(), self.host), QoS::AtLeastOnce).await.unwrap();
        let (sender, messages) = mpsc::unbounded_channel();
        let (signer, host, answers) = (Arc::clone(&self.signer), self.host, client.clone());
        let (subscribed, until_subscribed) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let mut subscribed = Some(subscribed);
            while let Ok(event) = eventloop.poll().await {
                match event {
                    Event::Incoming(Incoming::Publish(publish)) => {
                        let Ok(Topic::Host(_, topic)) = Prefix::default().parse(&publish.topic) else { continue };
                        if let (HostTopic::Heartbeat, Ok(beat)) = (&topic, serde_json::from_slice(&publish.payload)) {
                            answer_lives(&answers, &signer, host, &beat);
                        }
                        let _ = sender.send((topic, publish.payload.to_vec()));
                    }
                    Event::Incoming(Incoming::SubAck(_)) => drop(subscribed.take().map(|sender| sender.send(()))),
                    _ => {}
                }
            }
        });
        until_subscribed.await.unwrap();
        Console { host: self.host, client, messages }
    }

    pub(super) fn sign<B: Body>(&self, body: &B) -> Vec<u8> {
        self.signer.sign(self.host.slot(), body).unwrap()
    }

    /// Signs a command that no type of ours makes.
    pub(super) fn sign_text(&self, body: &str) -> Vec<u8> {
        let envelope = self.signer.sign_text(self.host.slot(), muster_topics::envelope::Kind::Command, body.to_owned());
        serde_json::to_vec(&envelope).unwrap()
    }

    /// The same as a console of a later protocol would send it.
    pub(super) fn sign_later<B: Body>(&self, body: &B) -> Vec<u8> {
        let message = UnsignedMessage::of(self.host.slot(), body).unwrap().in_protocol(PROTOCOL + 1);
        self.signer.sign_message(message).unwrap()
    }

    /// Somebody whose key no host has pinned.
    pub(super) fn unknown_signer() -> Signer {
        Signer::from_pkcs8(&Signer::generate().unwrap()).unwrap()
    }

    pub(super) fn exec(&self, argv: &[&str]) -> Command {
        let exec = Exec::new(argv.iter().map(|arg| (*arg).to_owned()).collect(), 60_000);
        let issued_ms = clock::now_ms();
        Command {
            v: V1,
            id: CommandId::new(),
            target: Target::Hosts(vec![self.host]),
            issued_ms,
            expires_ms: issued_ms + 600_000,
            asked_by: Asker::admin("anna".parse().unwrap()),
            realms: Vec::new(),
            verb: Verb::Exec(exec),
            sealed: None,
        }
    }

    /// Orders more than the broker lets anybody owe it.
    pub(super) async fn more_than_is_owed(&self, console: &Console) -> Vec<Command> {
        let commands: Vec<Command> = (0..3 * OWED_MAX).map(|_| self.exec(&["/bin/true"])).collect();
        for command in &commands {
            console.publish(HostTopic::Command, false, self.sign(command)).await;
        }
        commands
    }

    fn ack(&self) -> Ack {
        ack(self.host)
    }

    pub(super) async fn acknowledge_report(&self, console: &Console, report: &Report) {
        let key = ReportAck { command: report.command, seq: report.seq };
        console.publish(HostTopic::Ack, false, self.sign(&Ack { reports: vec![key], ..self.ack() })).await;
    }

    pub(super) async fn acknowledge_heartbeat(&self, console: &Console, heartbeat: &Heartbeat) {
        let id = Numbered { epoch: heartbeat.epoch, seq: heartbeat.seq };
        console.publish(HostTopic::Ack, false, self.sign(&Ack { heartbeat: Some(id), ..self.ack() })).await;
    }
}

/// As a console that has heard of no other life of the host.
fn answer_lives(client: &AsyncClient, signer: &Signer, host: HostId, heartbeat: &Heartbeat) {
    if !matches!(heartbeat.content, heartbeat::Content::Full { .. }) {
        return;
    }
    let lives = HostLives { asked_by: heartbeat.epoch, heard: vec![heartbeat.epoch] };
    let payload = signer.sign(host.slot(), &Ack { lives: Some(lives), ..ack(host) }).unwrap();
    let topic = Topic::Host(host, HostTopic::Ack);
    // The connection goes on only when this has returned.
    client.try_publish(Prefix::default().topic(&topic), address::qos(&topic), false, payload).unwrap();
}

fn ack(host: HostId) -> Ack {
    let issued_ms = clock::now_ms();
    Ack {
        v: V1,
        host,
        issued_ms,
        reports: vec![],
        heartbeat: None,
        metrics: vec![],
        alerts: vec![],
        tasks: vec![],
        lives: None,
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.kill_broker();
    }
}

/// See [`Fleet::console`].
pub(super) struct Console {
    host: HostId,
    client: AsyncClient,
    messages: mpsc::UnboundedReceiver<(HostTopic, Vec<u8>)>,
}

impl Console {
    pub(super) async fn publish(&self, topic: HostTopic, retain: bool, payload: Vec<u8>) {
        let topic = Topic::Host(self.host, topic);
        self.client.publish(Prefix::default().topic(&topic), address::qos(&topic), retain, payload).await.unwrap();
    }

    pub(super) async fn broadcast(&self, payload: Vec<u8>) {
        let topic = Topic::CommandAll(self.host.slot());
        self.client.publish(Prefix::default().topic(&topic), address::qos(&topic), false, payload).await.unwrap();
    }

    /// The next message on a topic that is as wanted; what comes before it is passed over.
    pub(super) async fn next<T: DeserializeOwned>(&mut self, topic: HostTopic, wanted: impl Fn(&T) -> bool) -> T {
        let next = async {
            loop {
                let (on, payload) = self.messages.recv().await.expect("the console's connection");
                if on == topic
                    && let Ok(message) = serde_json::from_slice(&payload)
                    && wanted(&message)
                {
                    return message;
                }
            }
        };
        let what = format!("{topic:?} of {}", std::any::type_name::<T>());
        tokio::time::timeout(PATIENCE, next).await.unwrap_or_else(|_| panic!("nothing came on {what}"))
    }

    /// The next batch of measurements.
    pub(super) async fn batch(&mut self) -> (Numbered, Vec<Point>) {
        let next = async {
            loop {
                let (on, payload) = self.messages.recv().await.expect("the console's connection");
                if on == HostTopic::Metric {
                    return metric::decode(&payload).unwrap();
                }
            }
        };
        tokio::time::timeout(PATIENCE, next).await.expect("a batch of measurements")
    }

    pub(super) async fn presence(&mut self, state: PresenceState) -> Presence {
        self.next(HostTopic::Presence, |presence: &Presence| presence.state == state).await
    }

    pub(super) async fn heartbeat(&mut self) -> Heartbeat {
        self.next(HostTopic::Heartbeat, |_: &Heartbeat| true).await
    }

    pub(super) async fn report(&mut self, command: CommandId) -> Report {
        self.next(HostTopic::Outcome, |report: &Report| report.command == command).await
    }

    /// The terminal answer of a command, and its message.
    pub(super) async fn outcome(&mut self, command: CommandId) -> (Report, Outcome) {
        loop {
            let report = self.report(command).await;
            if let Content::Done { outcome } = report.content.clone() {
                return (report, outcome);
            }
        }
    }

    /// Waits for the terminal answers of commands.
    pub(super) async fn outcomes(&mut self, commands: &[Command]) {
        let mut open: BTreeSet<CommandId> = commands.iter().map(|command| command.id).collect();
        while !open.is_empty() {
            let done = |report: &Report| matches!(report.content, Content::Done { .. });
            open.remove(&self.next(HostTopic::Outcome, done).await.command);
        }
    }

    /// Passes over what has come so far.
    pub(super) fn drain(&mut self) {
        while self.messages.try_recv().is_ok() {}
    }

    /// Whether nothing has come so far on a topic; passes over the rest.
    pub(super) fn is_silent_on(&mut self, topic: &HostTopic) -> bool {
        std::iter::from_fn(|| self.messages.try_recv().ok()).all(|(on, _)| on != *topic)
    }

    /// What has come so far on a topic of commands' answers.
    pub(super) fn reports_so_far(&mut self) -> Vec<Report> {
        let all = std::iter::from_fn(|| self.messages.try_recv().ok());
        all.filter(|(topic, _)| *topic == HostTopic::Outcome)
            .filter_map(|(_, payload)| serde_json::from_slice(&payload).ok())
            .collect()
    }
}

/// A moment long enough for a message to go there and back, used only where something must *not* come.
pub(super) async fn a_moment() {
    tokio::time::sleep(Duration::from_millis(300)).await;
}

/// A time long gone.
pub(super) fn ago(ms: Millis) -> Millis {
    clock::now_ms() - ms
}

/// An HTTPS server that takes one request after the other and gives each the next answer; the last
/// again and again. Gives its address, and what it was sent.
pub(super) async fn server(
    tls: rustls::ServerConfig,
    answer: impl Fn(&str, &[u8]) -> (u16, Vec<u8>) + Send + Sync + 'static,
) -> (String, Arc<std::sync::Mutex<Vec<String>>>) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
    let requests = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = requests.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let served: io::Result<()> = async {
                let mut text = Vec::new();
                let body_at = loop {
                    if let Some(at) = text.windows(4).position(|four| four == b"\r\n\r\n") {
                        break at + 4;
                    }
                    if stream.read_buf(&mut text).await? == 0 {
                        return Ok(());
                    }
                };
                let head = String::from_utf8_lossy(&text[..body_at]).to_ascii_lowercase();
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
                let length: usize = length.parse().unwrap_or(0);
                while text.len() < body_at + length {
                    stream.read_buf(&mut text).await?;
                }
                let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                let (status, body) = answer(&path, &text[body_at..]);
                seen.lock().unwrap().push(path);
                let head =
                    format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
                stream.write_all(head.as_bytes()).await?;
                stream.write_all(&body).await?;
                stream.shutdown().await
            }
            .await;
            drop(served);
        }
    });
    (url, requests)
}

/// A membership that is of no use but for what a test changes of it.
pub(super) fn empty_membership(host: HostId) -> Membership {
    Membership {
        v: V1,
        host,
        certificate: String::new(),
        authority: String::new(),
        command_keys: Vec::new(),
        broker_url: String::new(),
        console_url: "https://127.0.0.1:1".to_owned(),
        prefix: Prefix::default(),
        revision_key: RevisionKey::from_bytes([1; 32]),
        numbers: Default::default(),
        addresses: None,
    }
}

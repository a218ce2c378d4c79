//! A broker with an authority of its own, and clients for it.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use muster_broker::{Broker, BrokerLimits, Config, Tls};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CrlDistributionPoint,
    CrlIssuingDistributionPoint, DnType, IsCa, Issuer, KeyIdMethod, KeyPair, RevokedCertParams, date_time_ymd,
};
use rumqttc::{AsyncClient, Event, LastWill, MqttOptions, Packet, Publish, QoS, TlsConfiguration, Transport};
use rustls::{
    ClientConfig, DEFAULT_VERSIONS, RootCertStore, SupportedProtocolVersion,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

pub(crate) const HOST: &str = "0e2c1a4e-6a61-4a1c-9d0f-0d6d5a8f1f52";
pub(crate) const OTHER: &str = "11111111-6a61-4a1c-9d0f-0d6d5a8f1f52";

/// Nothing here takes a second. A test that would wait longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn patiently<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

/// The next certificate's number.
static SERIAL: AtomicU64 = AtomicU64::new(1);

pub(crate) struct Authority {
    pub(crate) certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, as PEM.
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
    pub(crate) serial: u64,
}

/// When there should be a newer revocation list.
#[derive(Clone, Copy)]
pub(crate) enum Day {
    Yesterday,
    Tomorrow,
}

impl Authority {
    pub(crate) fn new() -> Self {
        Self::named("an authority")
    }

    pub(crate) fn named(common_name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, common_name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    pub(crate) fn issue(&self, common_name: &str) -> Pair {
        self.issue_for(common_name, 1975, 4096)
    }

    /// One that is valid from the beginning of a year to that of another.
    pub(crate) fn issue_for(&self, common_name: &str, from_year: i32, to_year: i32) -> Pair {
        let mut params = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(from_year, 1, 1), date_time_ymd(to_year, 1, 1));
        params.distinguished_name.push(DnType::CommonName, common_name);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        params.serial_number = Some(serial.into());
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Pair { certificate, key: key.serialize_pem(), serial }
    }

    pub(crate) fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap()
    }

    pub(crate) fn revocation_list(&self, serials: &[u64], next: Day) -> String {
        self.revocation_list_of(serials, next, None)
    }

    /// One that says of itself that it does not cover everything.
    pub(crate) fn partial_revocation_list(&self, serials: &[u64]) -> String {
        let distribution_point = CrlDistributionPoint { uris: vec!["http://localhost/some".to_owned()] };
        let part = CrlIssuingDistributionPoint { distribution_point, scope: None };
        self.revocation_list_of(serials, Day::Tomorrow, Some(part))
    }

    fn revocation_list_of(&self, serials: &[u64], next: Day, part: Option<CrlIssuingDistributionPoint>) -> String {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: (*serial).into(),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(if matches!(next, Day::Tomorrow) { 4096 } else { 2025 }, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: part,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().pem().unwrap()
    }

    pub(crate) fn tls(&self) -> Tls {
        let own = self.issue("broker");
        Tls { authority: self.certificate.clone(), certificate: own.certificate, key: own.key }
    }

    /// A client's side of TLS, with a certificate or without.
    pub(crate) fn client(&self, pair: Option<&Pair>) -> Arc<ClientConfig> {
        self.client_of(DEFAULT_VERSIONS, pair)
    }

    /// The same for some versions of TLS.
    pub(crate) fn client_of(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        pair: Option<&Pair>,
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        Arc::new(match pair {
            None => builder.with_no_client_auth(),
            Some(pair) => builder
                .with_client_auth_cert(
                    vec![CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap()],
                    PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap(),
                )
                .unwrap(),
        })
    }
}

pub(crate) struct Fixture {
    pub(crate) authority: Authority,
    pub(crate) broker: Broker,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        Self::with(BrokerLimits::default()).await
    }

    pub(crate) async fn with(limits: BrokerLimits) -> Self {
        Self::configured(|config| Config { limits, ..config }).await
    }

    /// One that is configured otherwise than usual.
    pub(crate) async fn configured(configure: impl FnOnce(Config) -> Config) -> Self {
        let authority = Authority::new();
        let config = Config::new("127.0.0.1:0".parse().unwrap(), authority.tls());
        Self { broker: Broker::start(configure(config)).await.unwrap(), authority }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.broker.local_addr()
    }

    /// Options of a rumqttc client with the certificate of `common_name`.
    pub(crate) fn options(&self, common_name: &str, client_id: &str) -> MqttOptions {
        let mut options = MqttOptions::new(client_id, "localhost", self.address().port());
        let tls = self.authority.client(Some(&self.authority.issue(common_name)));
        options.set_transport(Transport::tls_with_config(TlsConfiguration::Rustls(tls)));
        options.set_keep_alive(Duration::from_secs(30));
        options.set_max_packet_size(1 << 20, 1 << 20);
        options
    }

    /// A connected rumqttc client.
    pub(crate) async fn client(&self, common_name: &str, client_id: &str) -> Client {
        Client::start(self.options(common_name, client_id)).await.unwrap()
    }

    /// The same, with a last will.
    pub(crate) async fn mortal(&self, common_name: &str, client_id: &str, will: LastWill) -> Client {
        let mut options = self.options(common_name, client_id);
        options.set_last_will(will);
        Client::start(options).await.unwrap()
    }

    pub(crate) async fn console(&self) -> Client {
        self.console_named("console-main").await
    }

    pub(crate) async fn console_named(&self, name: &str) -> Client {
        self.client(name, name).await
    }

    /// A TLS connection that speaks for itself.
    pub(crate) async fn raw(&self, common_name: &str) -> Raw {
        self.raw_with(self.authority.client(Some(&self.authority.issue(common_name)))).await.unwrap()
    }

    pub(crate) async fn raw_with(&self, config: Arc<ClientConfig>) -> std::io::Result<Raw> {
        Ok(Raw(tls_to(self.address(), config).await?))
    }

    /// Waits until the broker has noticed something.
    pub(crate) async fn until(&self, what: &str, condition: impl Fn(&muster_broker::BrokerStats) -> bool) {
        patiently(what, async {
            while !condition(&self.broker.stats()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

/// The client's side of a TLS connection.
pub(crate) async fn tls_to(address: SocketAddr, config: Arc<ClientConfig>) -> std::io::Result<TlsStream<TcpStream>> {
    let socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(config).connect(name, socket).await
}

/// A rumqttc client whose incoming packets come in order. It does not reconnect.
pub(crate) struct Client {
    pub(crate) mqtt: AsyncClient,
    incoming: mpsc::UnboundedReceiver<Packet>,
    task: tokio::task::JoinHandle<()>,
}

impl Client {
    pub(crate) async fn start(options: MqttOptions) -> Result<Self, rumqttc::ConnectionError> {
        let (mqtt, mut events) = AsyncClient::new(options, 1000);
        // Without it each round trip takes 44 ms.
        events.network_options.set_tcp_nodelay(true);
        let (tell, incoming) = mpsc::unbounded_channel();
        patiently("CONNACK", async {
            loop {
                if matches!(events.poll().await?, Event::Incoming(Packet::ConnAck(_))) {
                    return Ok::<_, rumqttc::ConnectionError>(());
                }
            }
        })
        .await?;
        let task = tokio::spawn(async move {
            while let Ok(event) = events.poll().await {
                if let Event::Incoming(packet) = event {
                    tell.send(packet).ok();
                }
            }
        });
        Ok(Self { mqtt, incoming, task })
    }

    /// The next packet that `pick` takes, or nothing if the connection ends first.
    async fn next<T>(&mut self, what: &str, mut pick: impl FnMut(Packet) -> Option<T>) -> Option<T> {
        patiently(what, async {
            while let Some(packet) = self.incoming.recv().await {
                if let Some(found) = pick(packet) {
                    return Some(found);
                }
            }
            None
        })
        .await
    }

    /// Subscribes and gives what was granted.
    pub(crate) async fn subscribe(&mut self, filter: &str, qos: QoS) -> Vec<rumqttc::SubscribeReasonCode> {
        self.mqtt.subscribe(filter, qos).await.unwrap();
        self.next("SUBACK", |packet| if let Packet::SubAck(ack) = packet { Some(ack.return_codes) } else { None })
            .await
            .expect("the connection ended before SUBACK")
    }

    /// Publishes with QoS 1 and waits for the acknowledgement.
    pub(crate) async fn publish(&mut self, topic: &str, retain: bool, payload: &str) {
        self.mqtt.publish(topic, QoS::AtLeastOnce, retain, payload).await.unwrap();
        self.acknowledged(1).await;
    }

    pub(crate) async fn acknowledged(&mut self, count: usize) {
        for _ in 0..count {
            self.next("PUBACK", |packet| matches!(packet, Packet::PubAck(_)).then_some(()))
                .await
                .expect("the connection ended before PUBACK");
        }
    }

    pub(crate) async fn message(&mut self) -> Publish {
        self.next("PUBLISH", |packet| if let Packet::Publish(publish) = packet { Some(publish) } else { None })
            .await
            .expect("the connection ended before PUBLISH")
    }

    /// The next message as topic, payload and retain flag.
    pub(crate) async fn text(&mut self) -> (String, String, bool) {
        let message = self.message().await;
        (message.topic, String::from_utf8(message.payload.to_vec()).unwrap(), message.retain)
    }

    /// Waits until the broker has ended the connection.
    pub(crate) async fn ended(&mut self) {
        self.next::<()>("the end of the connection", |_| None).await;
    }

    /// Says DISCONNECT.
    pub(crate) async fn disconnect(mut self) {
        self.mqtt.disconnect().await.unwrap();
        self.ended().await;
    }

    /// Goes without a word.
    pub(crate) fn cut(self) {
        self.task.abort();
    }
}

/// A TLS connection of which a test sees every byte.
pub(crate) struct Raw(TlsStream<TcpStream>);

impl Raw {
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
        self.0.flush().await.unwrap();
    }

    /// Sends what may already be refused.
    pub(crate) async fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.write_all(bytes).await?;
        self.0.flush().await
    }

    /// Everything until the broker closes the connection.
    pub(crate) async fn rest(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        // Whether it ends in order or by a reset, it ends.
        patiently("the end of the connection", self.0.read_to_end(&mut all)).await.ok();
        all
    }

    /// How the broker ends the connection, if not in order.
    pub(crate) async fn error(&mut self) -> std::io::Error {
        patiently("the end of the connection", self.0.read_to_end(&mut Vec::new())).await.expect_err("a disorderly end")
    }

    /// Exactly this comes next.
    pub(crate) async fn expect(&mut self, expected: &[u8]) {
        let mut found = vec![0; expected.len()];
        patiently("bytes", self.0.read_exact(&mut found)).await.unwrap();
        assert_eq!(found, expected);
    }

    pub(crate) async fn byte(&mut self) -> u8 {
        self.0.read_u8().await.unwrap()
    }

    pub(crate) async fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.read_exact(&mut bytes).await.unwrap();
        bytes
    }

    /// Connects, and is accepted.
    pub(crate) async fn connect(&mut self, client_id: &str, keep_alive_s: u16) {
        self.send(&connect(client_id, keep_alive_s)).await;
        self.expect(&[0x20, 2, 0, 0]).await;
    }
}

/// A packet with a body of at most 127 bytes.
pub(crate) fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let length = u8::try_from(body.len()).ok().filter(|length| *length < 128).expect("a short packet");
    [&[first, length], body].concat()
}

fn text(text: &str) -> Vec<u8> {
    [&u16::try_from(text.len()).unwrap().to_be_bytes(), text.as_bytes()].concat()
}

pub(crate) fn connect(client_id: &str, keep_alive_s: u16) -> Vec<u8> {
    connect_level(4, client_id, keep_alive_s)
}

/// A connect that comes back to its session.
pub(crate) fn connect_staying(client_id: &str) -> Vec<u8> {
    packet(0x10, &[&text("MQTT")[..], &[4, 0, 0, 60], &text(client_id)].concat())
}

pub(crate) fn connect_level(level: u8, client_id: &str, keep_alive_s: u16) -> Vec<u8> {
    let properties: &[u8] = if level >= 5 { &[0] } else { &[] };
    let keep_alive = keep_alive_s.to_be_bytes();
    packet(0x10, &[&text("MQTT")[..], &[level, 2], &keep_alive, properties, &text(client_id)].concat())
}

/// A connect with a will of QoS 1.
pub(crate) fn connect_will(client_id: &str, keep_alive_s: u16, topic: &str, payload: &str) -> Vec<u8> {
    let fields = [text(client_id), text(topic), text(payload)].concat();
    let body = [&text("MQTT")[..], &[4, 0b1110], &keep_alive_s.to_be_bytes(), &fields].concat();
    [&[0x10, u8::try_from(body.len() % 128).unwrap() | 0x80, u8::try_from(body.len() / 128).unwrap()], &body[..]]
        .concat()
}

/// A publish of QoS 0.
pub(crate) fn publish(topic: &str, payload: &[u8]) -> Vec<u8> {
    packet(0x30, &[&text(topic)[..], payload].concat())
}

pub(crate) fn subscribe(packet_id: u16, filter: &[u8], qos: u8) -> Vec<u8> {
    let length = u16::try_from(filter.len()).unwrap().to_be_bytes();
    packet(0x82, &[&packet_id.to_be_bytes()[..], &length, filter, &[qos]].concat())
}

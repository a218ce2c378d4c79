//! The connection to the broker: MQTT 3.1.1 over mutual TLS, clean sessions, one event loop per
//! connection, so that nothing of an old connection can reach a new one.
//!
//! Within a connection there are two loops in one task: one polls rumqttc and hands incoming messages to
//! the queues of ingest and recorder; the other hands acknowledgements and messages to rumqttc.
//! Neither waits for the other through a queue that the other has to empty:
//! - the poller waits when ingest is full, which slows the broker down, but for no longer than
//!   [`FULL`], because of the keep-alive; after that the connection is closed, and unacknowledged messages
//!   are delivered again; it never waits for the recorder ([`queue`]);
//! - ingest never waits for the link: its acknowledgements have room by construction ([`ACKS`]), and
//!   other messages that find no room are dropped, because a layer above repeats each.
//!
//! What hosts repeat until the console acknowledges it (outcomes, heartbeats, alerts, measurements) is subscribed to at QoS 0, and so are
//! acknowledgements and broadcasts published: the broker's acknowledgements would double the cost and promise nothing that counts
//! (decisions 0023 and 0048).
//!
//! **Invariant: an MQTT message of QoS 1 is acknowledged once its [`MessageReceipt`] says so**, and not otherwise.
//!
//! **Invariant: losing the link loses nothing but time.** Messages in flight are repeated: by
//! dispatch (commands), by hosts (everything else), which are asked to on each connect.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use muster_base::{chance, clock::now_ms};
use muster_bus::address::{self, BrokerAddress};
use muster_net::pki;
use muster_rules::backoff::ExponentialGrowth;
use muster_topics::{
    PROTOCOL, V1,
    name::Name,
    presence::{ConsolePresence, PresenceState},
    topic::{Filter, HostTopic, Prefix, Topic},
};
use rumqttc::{
    AsyncClient, Event, EventLoop, LastWill, MqttOptions, Packet, Publish, QoS, SubscribeFilter, SubscribeReasonCode,
    Transport,
};
use tokio::{
    io::AsyncReadExt,
    net::TcpStream,
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

mod queue;

use super::dispatch;

pub(super) use super::link_handle::LinkHandle;
use super::link_handle::Outbound;
use queue::{INBOUND, LinkQueue, MeasurementQueue};

pub(super) use super::inbound::{Inbound, MessageReceipt};
pub(super) use queue::{QueueRoom, ShareUses};

/// Acknowledgements that wait for the link: as many as there can be messages in the two queues and in the batches taken
/// from them.
const ACKS: usize = 2 * (INBOUND + super::ingest::BATCH_MAX);
/// Messages that wait for the link: commands and acknowledgements of one batch.
const OUTBOUND: usize = 1_024;
/// rumqttc's own queue; the queue before it is the relevant one.
const REQUESTS: usize = 64;
/// Unacknowledged messages to the broker.
const INFLIGHT: u16 = 100;
/// The largest packet that does not end the connection. Messages beyond the contract are dropped by ingest; a retained
/// one must not make us disconnect forever.
const PACKET_MAX_BYTES: usize = 4 * 1024 * 1024;
/// How long a full queue may block the connection: half of what the broker allows.
const FULL: Duration = Duration::from_secs(15);
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// How long the orderly exit may take.
const FAREWELL: Duration = Duration::from_secs(2);
/// Delays between connections. A fleet has few consoles, so they may reconnect faster than hosts.
const BACKOFF: ExponentialGrowth = ExponentialGrowth { first_ms: 250, max_ms: 30_000 };
/// A connection that lasted this long was good: the next attempt comes soon.
const GOOD: Duration = Duration::from_secs(30);

/// What is needed to connect.
pub(super) struct LinkConfig {
    pub(super) id: Name,
    pub(super) address: BrokerAddress,
    pub(super) prefix: Prefix,
    /// TLS of the next connection.
    pub(super) tls: watch::Receiver<Arc<rustls::ClientConfig>>,
    /// The epoch of this run of the console.
    pub(super) epoch: u64,
}

/// Why a broker's URL cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{url:?} is not a broker's address: expected mqtts://HOST:PORT (mqtt:// only on this machine)")]
pub struct BrokerUrlError {
    url: String,
}

/// Parses a broker's URL.
pub(super) fn parse_broker_url(url: &str) -> Result<BrokerAddress, BrokerUrlError> {
    BrokerAddress::parse(url).ok_or_else(|| BrokerUrlError { url: url.chars().take(200).collect() })
}

/// Returns the quality of service of a subscription: 0 where hosts repeat messages until they are acknowledged.
fn qos_of(filter: &Filter) -> QoS {
    match filter {
        Filter::EveryHost(kind) if kind.row().acknowledged => QoS::AtMostOnce,
        _ => QoS::AtLeastOnce,
    }
}

/// The queues that the link fills.
pub(super) struct LinkQueues {
    pub(super) ingest: mpsc::Receiver<Inbound>,
    pub(super) recorder: mpsc::Receiver<Inbound>,
}

/// The link, before it runs.
pub(super) struct ConsoleLink {
    outbound: mpsc::Receiver<Outbound>,
    ingest: LinkQueue,
    recorder: MeasurementQueue,
    connected: watch::Sender<bool>,
    lost_ms: Arc<AtomicI64>,
    refused: Arc<AtomicBool>,
    dispatch: mpsc::Sender<dispatch::DispatchEvent>,
}

impl ConsoleLink {
    /// Creates a link, the handle for publishing, and the queues that it fills. `host_bytes_s` are what one host may send of
    /// measurements.
    pub(super) fn new(
        dispatch: mpsc::Sender<dispatch::DispatchEvent>,
        host_bytes_s: u64,
    ) -> (Self, LinkHandle, LinkQueues) {
        let (outbound_tx, outbound) = mpsc::channel(OUTBOUND);
        let (ingest, ingest_rx) = LinkQueue::new();
        let (dropped, shares) = (Arc::new(AtomicU64::default()), ShareUses::default());
        let (recorder, recorder_rx) = MeasurementQueue::new(host_bytes_s, Arc::clone(&dropped), shares.clone());
        let (connected, connected_rx) = watch::channel(false);
        let lost_ms = Arc::new(AtomicI64::new(now_ms()));
        let refused = Arc::new(AtomicBool::new(false));
        let handle = LinkHandle {
            outbound: outbound_tx,
            connected: connected_rx,
            lost_ms: Arc::clone(&lost_ms),
            refused: Arc::clone(&refused),
            dropped,
            shares,
        };
        let queues = LinkQueues { ingest: ingest_rx, recorder: recorder_rx };
        (Self { outbound, ingest, recorder, connected, lost_ms, refused, dispatch }, handle, queues)
    }

    /// Connects and reconnects until `shutdown`.
    pub(super) async fn run(mut self, config: LinkConfig, shutdown: CancellationToken) {
        let mut attempt = 0;
        while !shutdown.is_cancelled() {
            let began = tokio::time::Instant::now();
            let end = self.session(&config, &shutdown).await;
            let refused = matches!(&end, ConsoleLinkEnd::Connection(error) if pki::is_about_time(&error.to_string()));
            self.refused.store(refused, Ordering::Relaxed);
            if *self.connected.borrow() {
                self.lost_ms.store(now_ms(), Ordering::Relaxed);
                self.connected.send_replace(false);
            }
            if shutdown.is_cancelled() {
                break;
            }
            attempt = if began.elapsed() > GOOD { 0 } else { attempt + 1 };
            let retry_ms = BACKOFF.full_jitter_ms(attempt, chance::random()).unsigned_abs();
            let text = end.to_string();
            tracing::warn!(error = text, hint = pki::clock_hint(&text), retry_ms, "no connection to the broker");
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = tokio::time::sleep(Duration::from_millis(retry_ms)) => (),
            }
        }
    }

    /// Runs one connection, from its beginning to its end.
    async fn session(&mut self, config: &LinkConfig, shutdown: &CancellationToken) -> ConsoleLinkEnd {
        let (client, mut events) = AsyncClient::new(options(config), REQUESTS);
        let mut network = events.network_options();
        network.set_tcp_nodelay(true);
        network.set_connection_timeout(10);
        events.set_network_options(network);
        tokio::select! {
            () = shutdown.cancelled() => return ConsoleLinkEnd::Shutdown,
            connected = events.poll() => match connected {
                Ok(_connack) => (),
                Err(error) => return ConsoleLinkEnd::Connection(Box::new(error)),
            },
        }
        if let Err(end) = self.greet(config, &client).await {
            return end;
        }
        let (acks, acks_rx) = mpsc::channel(ACKS);
        let prefix = &config.prefix;
        let poller = poll(&mut events, prefix, &self.ingest, &mut self.recorder, &acks);
        let publisher = publish(&client, prefix, &mut self.outbound, acks_rx);
        let end = tokio::select! {
            end = poller => end,
            end = publisher => end,
            () = shutdown.cancelled() => ConsoleLinkEnd::Shutdown,
        };
        if matches!(end, ConsoleLinkEnd::Shutdown) {
            farewell(config, &client, &mut events).await;
        }
        end
    }

    /// Subscribes, and publishes the console's presence, at the beginning of each connection. rumqttc's queue is empty
    /// then and has room for all of it.
    async fn greet(&mut self, config: &LinkConfig, client: &AsyncClient) -> Result<(), ConsoleLinkEnd> {
        // Messages for an earlier connection are dropped; they are repeated anyway.
        while self.outbound.try_recv().is_ok() {}
        let filters = Filter::of_console();
        let filters = filters.iter().map(|filter| SubscribeFilter::new(config.prefix.filter(filter), qos_of(filter)));
        client.try_subscribe_many(filters)?;
        let (topic, qos, retain, payload) = presence(config, PresenceState::Online);
        client.try_publish(topic, qos, retain, payload)?;
        tracing::info!(broker.host = %config.address.host, broker.port = config.address.port, "connected to the broker");
        self.connected.send_replace(true);
        let _ = self.dispatch.send(dispatch::DispatchEvent::Connected).await;
        Ok(())
    }
}

/// Why a connection ended.
#[derive(Debug)]
enum ConsoleLinkEnd {
    Shutdown,
    Connection(Box<rumqttc::ConnectionError>),
    /// An error of rumqttc, whose message would print the whole packet.
    Client,
    Refused(String),
    Full,
    Closed,
}

impl From<rumqttc::ClientError> for ConsoleLinkEnd {
    fn from(_: rumqttc::ClientError) -> Self {
        Self::Client
    }
}

impl fmt::Display for ConsoleLinkEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shutdown => f.write_str("the console is stopping"),
            Self::Connection(error) => error.fmt(f),
            Self::Client => f.write_str("the client's queue is full"),
            Self::Refused(what) => write!(f, "the broker refuses the subscription to {what}"),
            Self::Full => write!(f, "the store has not accepted anything for {} s", FULL.as_secs()),
            Self::Closed => f.write_str("the console's queues are closed"),
        }
    }
}

/// How long a broker may take to answer a trial.
const TRIAL: Duration = Duration::from_secs(10);
/// How long a broker that takes a certificate is silent, because it waits for a message. With TLS 1.3 it refuses one only after the
/// handshake.
const TRIAL_SILENCE: Duration = Duration::from_secs(2);

/// Connects to the broker without a message, to see whether both sides accept the other's certificate. Returns why not.
pub(super) async fn try_tls(address: &BrokerAddress, tls: rustls::ClientConfig) -> Result<(), String> {
    if !address.tls {
        return Ok(());
    }
    let name = rustls::pki_types::ServerName::try_from(address.host.clone()).map_err(|error| error.to_string())?;
    let connected = timeout(TRIAL, async {
        let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
        TlsConnector::from(Arc::new(tls)).connect(name, stream).await
    });
    let mut stream = connected
        .await
        .map_err(|_| format!("it does not answer within {} s", TRIAL.as_secs()))?
        .map_err(|error| error.to_string())?;
    match timeout(TRIAL_SILENCE, stream.read_u8()).await {
        Err(_) | Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
    }
}

/// Handles events of rumqttc until the connection ends.
async fn poll(
    events: &mut EventLoop,
    prefix: &Prefix,
    ingest: &LinkQueue,
    recorder: &mut MeasurementQueue,
    acks: &mpsc::Sender<Publish>,
) -> ConsoleLinkEnd {
    loop {
        let publish = match events.poll().await {
            Ok(Event::Incoming(Packet::Publish(publish))) => publish,
            Ok(Event::Incoming(Packet::SubAck(suback))) => {
                match suback.return_codes.iter().position(|code| *code == SubscribeReasonCode::Failure) {
                    Some(index) => {
                        let filter = Filter::of_console().get(index).map(|filter| prefix.filter(filter));
                        return ConsoleLinkEnd::Refused(filter.unwrap_or_default());
                    }
                    None => continue,
                }
            }
            Ok(_) => continue,
            Err(error) => return ConsoleLinkEnd::Connection(Box::new(error)),
        };
        let topic = prefix.parse(&publish.topic);
        let (payload, retained) = (publish.payload.to_vec(), publish.retain);
        let receipt = match publish.qos {
            QoS::AtMostOnce => MessageReceipt::none(),
            _ => MessageReceipt(Some((acks.clone(), publish))),
        };
        let topic = match topic {
            Ok(topic) => topic,
            Err(error) => {
                tracing::debug!(%error, "a message on a topic of another application is dropped");
                receipt.acknowledge();
                continue;
            }
        };
        let measured_by = match &topic {
            Topic::Host(host, HostTopic::Metric) => Some(*host),
            _ => None,
        };
        let message = Inbound { topic, payload, retained, receipt, room: None };
        let entered = match measured_by {
            Some(host) => Ok(recorder.offer(host, message)),
            None => timeout(FULL, ingest.add(message)).await,
        };
        match entered {
            Ok(Some(())) => (),
            Ok(None) => return ConsoleLinkEnd::Closed,
            Err(_) => return ConsoleLinkEnd::Full,
        }
    }
}

/// Publishes that this console stops, in order, so that the last will is not needed.
async fn farewell(config: &LinkConfig, client: &AsyncClient, events: &mut EventLoop) {
    let (topic, qos, retain, payload) = presence(config, PresenceState::Stopped);
    let said = client.try_publish(topic, qos, retain, payload).and_then(|()| client.try_disconnect());
    if said.is_err() {
        return;
    }
    let gone = async {
        loop {
            match events.poll().await {
                Ok(Event::Outgoing(rumqttc::Outgoing::Disconnect)) | Err(_) => break,
                Ok(_) => (),
            }
        }
    };
    let _ = timeout(FAREWELL, gone).await;
}

fn options(config: &LinkConfig) -> MqttOptions {
    let client_id = format!("console-{}", config.id);
    let mut options = MqttOptions::new(client_id, config.address.host.clone(), config.address.port);
    options.set_transport(match config.address.tls {
        true => Transport::tls_with_config(rumqttc::TlsConfiguration::Rustls(Arc::clone(&config.tls.borrow()))),
        false => Transport::Tcp,
    });
    options.set_clean_session(true);
    options.set_manual_acks(true);
    options.set_keep_alive(KEEP_ALIVE);
    options.set_inflight(INFLIGHT);
    options.set_max_packet_size(PACKET_MAX_BYTES, PACKET_MAX_BYTES);
    let (topic, qos, retain, payload) = presence(config, PresenceState::Offline);
    options.set_last_will(LastWill::new(topic, payload, qos, retain));
    options
}

/// Returns topic, quality of service, retention and payload of this console's presence.
fn presence(config: &LinkConfig, state: PresenceState) -> (String, QoS, bool, Vec<u8>) {
    let topic = Topic::ConsolePresence(config.id.clone());
    let presence = ConsolePresence { v: V1, state, protocol: PROTOCOL, epoch: config.epoch, since_ms: now_ms() };
    // A struct of numbers and strings always serialises.
    let payload = serde_json::to_vec(&presence).unwrap_or_default();
    (config.prefix.topic(&topic), address::qos(&topic), topic.row().retained, payload)
}

/// Passes acknowledgements and messages to rumqttc until the connection ends. Both branches take from queues, which is
/// cancel-safe; what is taken is then passed on outside of the `select!`.
async fn publish(
    client: &AsyncClient,
    prefix: &Prefix,
    outbound: &mut mpsc::Receiver<Outbound>,
    mut acks: mpsc::Receiver<Publish>,
) -> ConsoleLinkEnd {
    loop {
        let done = tokio::select! {
            biased;
            Some(publish) = acks.recv() => client.ack(&publish).await,
            message = outbound.recv() => match message {
                Some(Outbound { topic, payload, retain }) => {
                    client.publish(prefix.topic(&topic), address::qos(&topic), retain, payload).await
                }
                None => return ConsoleLinkEnd::Closed,
            },
        };
        if let Err(error) = done {
            return error.into();
        }
    }
}

#[cfg(test)]
mod tests;

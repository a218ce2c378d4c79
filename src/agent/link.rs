//! The connection to the broker: one task that connects, reads, and reconnects.
//!
//! Each connection is a client of its own, with a clean session and a last will of its own. Messages that an
//! old one had not sent are lost with it: the session ([`muster_session`]) knows what is not
//! acknowledged, and publishes it again. rumqttc's queue is a buffer and never a promise.
//!
//! Two bounded queues lie between this task and the agent's loop. The loop never waits for the one
//! to the broker ([`ConnectionHandle::publish`] answers "full" instead), so that the two cannot deadlock.
//!
//! **Invariant: this task acknowledges nothing to the broker by itself.** The loop does, after the journal has the command; or before, while a
//! claim makes it wait.

pub mod outgoing;

use std::{
    future::pending,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use muster_base::{chance, clock};
use muster_bus::address::{self, BrokerAddress};
use muster_net::pki;
use muster_session::{
    identity::ClientIdentity,
    interface::{Input, command_source, desired_input},
    reconnect::{ConnectionEnd, ReconnectSchedule},
    signed::IncomingMessage,
};
use muster_topics::{
    Millis, PAYLOAD_MAX_BYTES,
    diagnostic::Diagnostic,
    envelope::PublicKey,
    name::Name,
    slot::Slot,
    topic::{Filter, HostTopic, Prefix, Topic},
};
use rumqttc::{
    AsyncClient, ConnectionError, Event, EventLoop, Incoming, LastWill, MqttOptions, NetworkOptions, Outgoing, Publish,
    QoS, SubscribeFilter, SubscribeReasonCode, TlsConfiguration, Transport,
};
use tokio::{
    sync::{Notify, mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::join::{EXPIRED_HINT, MemberIdentity, causes};

/// Unacknowledged publishes. Each keeps its payload in memory; with a round trip of 1 ms, 32 are more than an agent
/// ever needs.
const INFLIGHT: u16 = 32;

/// Publishes that wait to be sent.
const OUTGOING: usize = 64;

/// Messages that the loop has not handled. Beyond that they wait in the socket.
const INCOMING: usize = 64;

/// The largest packet, either way: a payload, and a topic with its header.
const PACKET_MAX_BYTES: usize = PAYLOAD_MAX_BYTES + 4 * 1024;

/// How long connecting may take, including TLS and MQTT's CONNECT.
const CONNECT_S: u64 = 15;

/// How long to wait when the queue to the broker has no room for a change of groups: some round trips.
const REGROUP: Duration = Duration::from_millis(100);

/// An event of the link.
#[derive(Debug)]
pub enum LinkEvent {
    /// A new connection, with everything subscribed and the presence published.
    Up(ConnectionHandle),
    /// A message arrived.
    Message(InboundMessage),
    /// The connection has ended.
    Down,
}

/// A message, to be acknowledged once it has been handled.
#[derive(Debug)]
pub struct InboundMessage {
    /// Its topic.
    pub topic: Topic,
    payload: Bytes,
    receipt: Option<AckToken>,
}

/// The acknowledgement that the broker is owed for a message: the publish without its payload.
#[derive(Debug)]
pub struct AckToken(Publish);

impl InboundMessage {
    fn new(topic: Topic, mut publish: Publish) -> Self {
        let payload = std::mem::take(&mut publish.payload);
        Self { topic, payload, receipt: Some(AckToken(publish)) }
    }

    /// The payload.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The message as the session takes it; `keys` are those that the console may sign with.
    fn into_input<W>(mut self, keys: &[PublicKey]) -> Input<AckToken, W> {
        let receipt = self.receipt.take();
        if matches!(&self.topic, Topic::Host(_, HostTopic::Presence)) {
            return Input::Presence(serde_json::from_slice(&self.payload).ok(), receipt);
        }
        if matches!(&self.topic, Topic::Host(_, HostTopic::Desired)) {
            return desired_input(&self.payload, keys, receipt);
        }
        Input::Message(command_source(&self.topic), IncomingMessage::open(&self.payload, keys), receipt)
    }
}

/// The traffic of one or several links: MQTT's own bytes, without TLS and TCP.
#[derive(Debug, Default)]
pub struct TrafficMeter {
    /// Bytes of received packets.
    pub in_bytes: AtomicU64,
    /// Bytes of packets handed over to be sent.
    pub out_bytes: AtomicU64,
    /// Connections that were established.
    pub connects: AtomicU64,
}

impl TrafficMeter {
    fn count_received(&self, packet: &Incoming) {
        let bytes = match packet {
            Incoming::Publish(publish) => {
                if publish.qos != QoS::AtMostOnce {
                    self.out_bytes.fetch_add(SHORT_BYTES, Ordering::Relaxed);
                }
                publish.size() as u64
            }
            // CONNACK, PUBACK, PINGRESP (the last without a packet id), and the SUBACK for an agent's few filters.
            _ => SHORT_BYTES,
        };
        self.in_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// A packet that has only a packet id.
const SHORT_BYTES: u64 = 4;

/// The sending end of one connection. None of its methods waits; each returns false, and does nothing, if the queue is
/// full or the connection has ended.
#[derive(Clone, Debug)]
pub struct ConnectionHandle {
    client: AsyncClient,
    prefix: Prefix,
    meter: Arc<TrafficMeter>,
    /// The number of this connection in this run of the agent, from 1.
    pub session: u64,
    /// When it began.
    pub since_ms: Millis,
}

impl ConnectionHandle {
    /// Publishes, at the topic's quality of service.
    #[must_use]
    pub fn publish(&self, topic: &Topic, retain: bool, payload: Vec<u8>) -> bool {
        if payload.len() > PAYLOAD_MAX_BYTES {
            // No message should be this long. It could never be sent, so it is dropped.
            tracing::error!(%topic, bytes = payload.len(), "a message is too long and is not sent");
            return true;
        }
        let (qos, topic) = (address::qos(topic), self.prefix.topic(topic));
        // The rest of the packet: header and lengths, and a packet id if it is to be acknowledged.
        let beside = if qos == QoS::AtMostOnce { 5 } else { 7 };
        let bytes = (topic.len() + payload.len()) as u64 + beside;
        let taken = self.client.try_publish(topic, qos, retain, payload).is_ok();
        if taken {
            self.meter.out_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        taken
    }

    /// Acknowledges a message to the broker.
    #[must_use]
    pub fn acknowledge(&self, receipt: &AckToken) -> bool {
        self.client.try_ack(&receipt.0).is_ok()
    }

    /// Ends the connection in order: the last will is not published.
    #[must_use]
    pub fn disconnect(&self) -> bool {
        self.client.try_disconnect().is_ok()
    }
}

/// The task of the link; dropping this does not end it.
#[derive(Debug)]
pub struct LinkTask {
    /// Its events.
    pub events: mpsc::Receiver<LinkEvent>,
    withdraw: mpsc::Sender<()>,
}

impl LinkTask {
    /// Starts to connect, until `shutdown`. A new identity makes a new connection. The host is a member of `groups`,
    /// the names of its labels; if they change, the connection follows.
    #[must_use]
    pub fn start(
        me: ClientIdentity,
        groups: watch::Receiver<Vec<Name>>,
        identity: watch::Receiver<Arc<MemberIdentity>>,
        shutdown: CancellationToken,
    ) -> Self {
        Self::start_metered(me, groups, identity, Arc::default(), Arc::default(), shutdown)
    }

    /// The same, with a meter of its traffic, and a notice that the broker's certificate is under no root that is trusted.
    #[must_use]
    pub fn start_metered(
        me: ClientIdentity,
        groups: watch::Receiver<Vec<Name>>,
        identity: watch::Receiver<Arc<MemberIdentity>>,
        meter: Arc<TrafficMeter>,
        unknown_root: Arc<Notify>,
        shutdown: CancellationToken,
    ) -> Self {
        let (sender, events) = mpsc::channel(INCOMING);
        let (withdraw, withdrawals) = mpsc::channel(1);
        let session = AtomicU64::new(0);
        let task = LinkLoop {
            me,
            groups,
            identity,
            meter,
            unknown_root,
            shutdown,
            events: sender,
            withdrawals,
            session,
            turn: 0,
        };
        tokio::spawn(task.run());
        Self { events, withdraw }
    }

    /// Ends the connection in order, and stays away for some minutes.
    pub fn withdraw(&self) {
        // A full queue means that it was requested already.
        let _ = self.withdraw.try_send(());
    }
}

struct LinkLoop {
    me: ClientIdentity,
    groups: watch::Receiver<Vec<Name>>,
    identity: watch::Receiver<Arc<MemberIdentity>>,
    meter: Arc<TrafficMeter>,
    /// Notified if the broker's certificate is under no root that is trusted.
    unknown_root: Arc<Notify>,
    shutdown: CancellationToken,
    events: mpsc::Sender<LinkEvent>,
    withdrawals: mpsc::Receiver<()>,
    session: AtomicU64,
    /// Which of the broker's addresses is tried next, modulo their number.
    turn: usize,
}

/// Why a connection ended.
enum LinkEnd {
    /// The agent ends.
    Shutdown,
    /// The agent ended it.
    Disconnected,
    /// There is a new certificate.
    NewIdentity,
    /// Another agent of this host works.
    Withdrawn,
    /// It broke, or was never established.
    Broken(Diagnostic),
}

impl LinkLoop {
    async fn run(mut self) {
        let mut schedule = ReconnectSchedule::default();
        loop {
            let began = Instant::now();
            let (end, was_up) = self.connection().await;
            if was_up && self.events.send(LinkEvent::Down).await.is_err() {
                return;
            }
            let up_ms = was_up.then(|| Millis::try_from(began.elapsed().as_millis()).unwrap_or(Millis::MAX));
            let attempts = schedule.attempts();
            let mut wait = |end| schedule.wait_ms(end, up_ms, chance::random());
            let wait_ms = match end {
                LinkEnd::Shutdown => return,
                LinkEnd::NewIdentity => continue,
                LinkEnd::Withdrawn => wait(ConnectionEnd::Withdrawn),
                LinkEnd::Disconnected => wait(ConnectionEnd::Disconnected),
                LinkEnd::Broken(reason) => {
                    let wait_ms = wait(ConnectionEnd::Broken);
                    let broker = self.broker_url(&self.identity.borrow()).to_owned();
                    // The next address, unless this one was good until now.
                    self.turn = self.turn.wrapping_add(usize::from(!was_up));
                    if pki::is_of_unknown_root(&reason.cause) {
                        self.unknown_root.notify_one();
                    }
                    tracing::warn!(
                        broker,
                        reason = reason.cause,
                        hint = reason.hint,
                        attempts,
                        retry_ms = wait_ms,
                        "no connection to the broker"
                    );
                    wait_ms
                }
            };
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(wait_ms.unsigned_abs())) => {}
                Ok(()) = self.identity.changed() => schedule.reset(),
                () = self.shutdown.cancelled() => return,
            }
        }
    }

    /// Runs one connection from the first packet to the last; returns also whether it was established.
    async fn connection(&mut self) -> (LinkEnd, bool) {
        let identity = self.identity.borrow_and_update().clone();
        let session = self.session.fetch_add(1, Ordering::Relaxed) + 1;
        let since_ms = clock::now_ms();
        let has_expired = identity.has_expired(since_ms);
        let options = match self.options(&identity, session, since_ms) {
            Ok(options) => options,
            Err(reason) => return (LinkEnd::Broken(reason.into()), false),
        };
        let (client, mut eventloop) = AsyncClient::new(options, OUTGOING);
        let mut network = NetworkOptions::new();
        network.set_tcp_nodelay(true);
        network.set_connection_timeout(CONNECT_S);
        eventloop.set_network_options(network);
        let (prefix, meter) = (identity.membership.prefix.clone(), Arc::clone(&self.meter));
        let connection = ConnectionHandle { client, prefix, meter, session, since_ms };

        let used = identity;
        let Self { me, groups, identity, meter, shutdown, events, withdrawals, .. } = self;
        // One future for the whole connection: creating three for each packet takes longer than the packet.
        let mut ended = pin!(async {
            tokio::select! {
                () = replaced(identity, &used) => LinkEnd::NewIdentity,
                Some(()) = withdrawals.recv() => LinkEnd::Withdrawn,
                () = shutdown.cancelled() => LinkEnd::Shutdown,
            }
        });
        let mut was_up = false;
        let (mut joined, slot) = (Vec::new(), me.host.slot());
        // Created once and not with each packet, as above.
        let mut regrouped = pin!(news(groups.clone(), false));
        loop {
            // Dropping a poll loses only a connection attempt: what was read stays in the event loop. One arm keeps
            // its work for the next turn, and the other ends the connection anyway.
            let polled = tokio::select! {
                polled = eventloop.poll() => polled,
                groups = &mut regrouped => {
                    let wanted = groups.borrow().clone();
                    // Before the connection is up there is nothing to change: it will start with the present groups.
                    let is_done = !was_up || regroup(&connection, slot, &joined, &wanted);
                    if was_up && is_done {
                        joined = wanted;
                    }
                    regrouped.set(news(groups, !is_done));
                    continue;
                }
                end = &mut ended => return (close(&connection, eventloop, end).await, was_up),
            };
            if let Ok(Event::Incoming(packet)) = &polled {
                meter.count_received(packet);
            }
            let event = match polled {
                Ok(Event::Incoming(Incoming::ConnAck(_))) => {
                    was_up = true;
                    meter.connects.fetch_add(1, Ordering::Relaxed);
                    joined.clone_from(&groups.borrow());
                    greet(me, &joined, &connection);
                    Some(LinkEvent::Up(connection.clone()))
                }
                Ok(Event::Incoming(Incoming::Publish(publish))) => message(&connection, publish),
                Ok(Event::Incoming(Incoming::SubAck(ack))) => {
                    if ack.return_codes.contains(&SubscribeReasonCode::Failure) {
                        tracing::error!(
                            hint = "compare its permissions with the role table",
                            "the broker refuses a subscription",
                        );
                    }
                    None
                }
                Ok(Event::Outgoing(Outgoing::Disconnect)) => return (LinkEnd::Disconnected, was_up),
                Ok(_) => None,
                Err(error) => {
                    return (LinkEnd::Broken(explain(&error, has_expired)), was_up);
                }
            };
            if let Some(event) = event {
                tokio::select! {
                    // There is room, unless the loop does not keep up.
                    biased;
                    sent = events.send(event) => if sent.is_err() { return (LinkEnd::Shutdown, was_up) },
                    () = shutdown.cancelled() => return (LinkEnd::Shutdown, was_up),
                }
            }
        }
    }

    /// The broker's address whose turn it is: first the one from when the host joined.
    fn broker_url<'a>(&self, identity: &'a MemberIdentity) -> &'a str {
        let urls = identity.broker_urls();
        urls.get(self.turn % urls.len().max(1)).copied().unwrap_or_default()
    }

    fn options(&self, identity: &MemberIdentity, session: u64, since_ms: Millis) -> Result<MqttOptions, String> {
        let membership = &identity.membership;
        let url = self.broker_url(identity);
        let address = BrokerAddress::parse(url)
            .ok_or_else(|| format!("the broker's address {url:?} is not mqtts://HOST[:PORT]"))?;
        let transport = match address.tls {
            true => {
                let tls = identity.tls().map_err(|error| error.to_string())?;
                Transport::tls_with_config(TlsConfiguration::Rustls(Arc::new(tls)))
            }
            false => Transport::Tcp,
        };
        let will = self.me.last_will(session, since_ms);
        let topic = self.me.topic(HostTopic::Presence);
        let (qos, retain) = (address::qos(&topic), topic.row().retained);
        let will = LastWill::new(membership.prefix.topic(&topic), will, qos, retain);
        let mut options =
            MqttOptions::new(format!("{}-{}", self.me.host, self.me.instance), address.host, address.port);
        options
            .set_clean_session(true)
            .set_keep_alive(Duration::from_secs(self.me.keep_alive_s.max(1).into()))
            .set_inflight(INFLIGHT)
            .set_manual_acks(true)
            .set_max_packet_size(PACKET_MAX_BYTES, PACKET_MAX_BYTES)
            .set_last_will(will)
            .set_transport(transport);
        Ok(options)
    }
}

/// Waits until there is an identity with which a connection would be another one: only the console's keys do not make a
/// difference, and ten thousand hosts must not connect anew because these are replaced.
async fn replaced(identity: &mut watch::Receiver<Arc<MemberIdentity>>, used: &MemberIdentity) {
    let is_other = |new: &Arc<MemberIdentity>| !new.connects_like(used);
    if identity.wait_for(is_other).await.is_err() {
        // The sender has ended: it will not change any more.
        pending::<()>().await;
    }
}

/// Waits until the groups change, or only for a while if a change has to be tried again.
async fn news(mut groups: watch::Receiver<Vec<Name>>, retry: bool) -> watch::Receiver<Vec<Name>> {
    let changed = async {
        if groups.changed().await.is_err() {
            // The sender has ended: the groups cannot change any more.
            pending::<()>().await;
        }
    };
    if retry {
        let _ = tokio::time::timeout(REGROUP, changed).await;
    } else {
        changed.await;
    }
    groups
}

/// Subscribes to the topics of new groups, and unsubscribes from those of former ones. Returns false if the queue has
/// no room; doing it twice is harmless.
fn regroup(connection: &ConnectionHandle, slot: Slot, joined: &[Name], wanted: &[Name]) -> bool {
    let filter = |group: &Name| connection.prefix.filter(&Filter::Topic(Topic::CommandGroup(slot, group.clone())));
    let (come, gone) = difference(joined, wanted);
    let come: Vec<_> = come.into_iter().map(|group| SubscribeFilter::new(filter(group), QoS::AtLeastOnce)).collect();
    (come.is_empty() || connection.client.try_subscribe_many(come).is_ok())
        && gone.into_iter().all(|group| connection.client.try_unsubscribe(filter(group)).is_ok())
}

/// Returns what is in `after` alone, and what in `before` alone.
fn difference<'a>(before: &'a [Name], after: &'a [Name]) -> (Vec<&'a Name>, Vec<&'a Name>) {
    let without = |all: &'a [Name], others: &[Name]| all.iter().filter(|name| !others.contains(name)).collect();
    (without(after, before), without(before, after))
}

/// Subscribes, and then publishes its presence: in this order, so that retained messages come before its own.
fn greet(me: &ClientIdentity, groups: &[Name], connection: &ConnectionHandle) {
    let filter = |filter| SubscribeFilter::new(connection.prefix.filter(&filter), QoS::AtLeastOnce);
    let (filters, presence) = me.greeting(connection.session, connection.since_ms, groups);
    let subscribed = connection.client.try_subscribe_many(filters.into_iter().map(filter));
    let topic = me.topic(HostTopic::Presence);
    let shown = connection.publish(&topic, topic.row().retained, presence);
    // The queue is empty: there is room for both.
    debug_assert!(subscribed.is_ok() && shown);
}

fn message(connection: &ConnectionHandle, publish: Publish) -> Option<LinkEvent> {
    match connection.prefix.parse(&publish.topic) {
        Ok(topic) => Some(LinkEvent::Message(InboundMessage::new(topic, publish))),
        Err(error) => {
            tracing::debug!(%error, "a message on a topic without a subscription");
            let _ = connection.client.try_ack(&publish);
            None
        }
    }
}

/// Ends a connection, in order if another one will follow; a broker that does not answer has a second.
async fn close(connection: &ConnectionHandle, mut eventloop: EventLoop, end: LinkEnd) -> LinkEnd {
    let goodbye =
        async { while !matches!(eventloop.poll().await, Ok(Event::Outgoing(Outgoing::Disconnect)) | Err(_)) {} };
    if !matches!(end, LinkEnd::Shutdown) && connection.disconnect() {
        let _ = tokio::time::timeout(Duration::from_secs(1), goodbye).await;
    }
    end
}

fn explain(error: &ConnectionError, has_expired: bool) -> Diagnostic {
    match error {
        ConnectionError::NetworkTimeout => format!("nothing answered within {CONNECT_S} s").into(),
        ConnectionError::ConnectionRefused(code) => {
            Diagnostic::new(format_args!("the broker refuses this host: {code:?}"))
                .with_hint("check that the host's certificate is valid and belongs to this broker's fleet")
        }
        error => with_remedy(causes(error), has_expired),
    }
}

/// Adds what helps if a certificate's time is the reason: whose that is shows this host's own one.
fn with_remedy(said: String, has_expired: bool) -> Diagnostic {
    match has_expired && pki::is_about_time(&said) {
        true => Diagnostic::new(format_args!("{said}: this host's certificate has expired")).with_hint(EXPIRED_HINT),
        false => Diagnostic::new(&said).or_hint(pki::clock_hint(&said)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_whose_certificate_has_expired_is_told_of_a_token() {
        let refused = "received fatal alert: CertificateExpired";
        for (said, has_expired, wanted, unwanted) in [
            (refused, true, "token create --replace", "compare"),
            // Then it is the broker's, or a clock.
            (refused, false, "compare `date -u`", "--replace"),
            ("connection refused", true, "connection refused", "hint"),
        ] {
            let told = with_remedy(said.to_owned(), has_expired);
            let told = told.to_string();
            assert!(told.contains(wanted) && !told.contains(unwanted), "{told}");
        }
    }
}

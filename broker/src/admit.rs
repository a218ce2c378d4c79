//! Admits a client: reads its CONNECT, and answers it.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use bytes::BytesMut;
use miette::Diagnostic as _;
use muster_guard::{ConnectionPlace, LineKind, LineLimiter, Origin, log_peer};
use muster_topics::role::Identity;
use tokio::{io::AsyncReadExt, time::timeout};

use crate::{
    access::{AccessRefusal, ClientAccess, owns},
    codec::{self, ConnAck, ConnectPacket, Malformed, ProtocolVersion, Reason, ServerPacket, WillMessage},
    connection::{self, AdmittedClient, ClientConnection, LastWill},
    identity::{NobodyError, Serial},
    mailbox::Mailbox,
    message::BrokerMessage,
    pending::{PendingClient, TURNED_AWAY, TransportProof},
    registry::{ConnectionTicket, FormerSession, RegistryFull},
    session::{ClientLimits, ClientSession},
    state::BrokerState,
    stats::Beginning,
    stream::{ClientStream, farewell},
    users::{TooManyChecks, Users},
};

/// How long the end of an earlier connection may take: its last will is distributed, and the router may be replaced.
const PREDECESSOR_TIMEOUT: Duration = Duration::from_secs(30);

/// Log lines about client ids whose earlier connection ends for a newer one.
const TAKES_OVER: LineKind = LineKind::new("takeovers", 60).burst(5);

/// Why a connection does not become a client.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
enum ConnectRefusal {
    #[error("the socket failed: {0}")]
    Socket(#[from] io::Error),
    #[error("no CONNECT came in time")]
    ConnectTimeout,
    #[error("the connection ended before a CONNECT")]
    Ended,
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error(transparent)]
    Nobody(#[from] NobodyError),
    #[error("the certificate {0} is revoked")]
    Revoked(Serial),
    #[error("CONNECT names no user")]
    #[diagnostic(help("without TLS a client needs a user name and a password"))]
    NoUser,
    #[error("there is no user {user:?} with this password")]
    Password { user: String },
    #[error("the password could not be checked in time")]
    PasswordTimeout,
    #[error("too many passwords wait to be checked, and this one has waited longest")]
    PasswordsBusy,
    #[error("CONNECT names an authentication method, and none is supported")]
    Method,
    #[error("client id {client_id:?} is not one of {identity}")]
    #[diagnostic(help("a host's is <host>-<instance>, any other's begins with the common name"))]
    ClientId { identity: Identity, client_id: String },
    #[error("{identity} cannot have a last will on {topic:?}: {refusal}")]
    Will {
        identity: Identity,
        topic: String,
        #[diagnostic_source]
        refusal: AccessRefusal,
    },
    #[error("no room for another session of {identity}: {full}")]
    Full { identity: Identity, full: RegistryFull },
    #[error("the earlier connection of {client_id:?} does not end")]
    Predecessor { client_id: String },
    #[error("a newer connection of {client_id:?} has replaced this one")]
    TakenOver { client_id: String },
    #[error("the broker is stopping")]
    Stopping,
}

impl ConnectRefusal {
    /// Returns the kind that it is counted as.
    fn beginning(&self) -> Beginning {
        match self {
            Self::Socket(_) | Self::Ended => Beginning::Closed,
            Self::ConnectTimeout | Self::PasswordTimeout | Self::PasswordsBusy => Beginning::Timeout,
            Self::Malformed(_) => Beginning::Malformed,
            Self::Nobody(_) | Self::NoUser | Self::Password { .. } | Self::Method => Beginning::Identity,
            Self::Revoked(_) => Beginning::Revoked,
            Self::ClientId { .. } => Beginning::ClientId,
            Self::Will { .. } => Beginning::Will,
            Self::Full { .. } => Beginning::Full,
            Self::Predecessor { .. } | Self::TakenOver { .. } => Beginning::Overtaken,
            Self::Stopping => Beginning::Stopping,
        }
    }

    /// Returns the reason for the CONNACK, if a client can read it.
    fn reason(&self) -> Option<Reason> {
        match self {
            Self::Nobody(_) | Self::NoUser | Self::Revoked(_) => Some(Reason::NotAuthorized),
            Self::Password { .. } => Some(Reason::BadUserNameOrPassword),
            Self::Will { refusal, .. } => Some(refusal.reason()),
            Self::ClientId { .. } => Some(Reason::ClientIdentifierNotValid),
            Self::Method => Some(Reason::BadAuthenticationMethod),
            Self::Full { full: RegistryFull::Broker, .. } => Some(Reason::ServerBusy),
            Self::Full { full: RegistryFull::Identity, .. } => Some(Reason::QuotaExceeded),
            Self::Predecessor { .. } | Self::PasswordTimeout | Self::PasswordsBusy => Some(Reason::ServerUnavailable),
            Self::TakenOver { .. } => Some(Reason::SessionTakenOver),
            Self::Stopping => Some(Reason::ServerShuttingDown),
            Self::Socket(_) | Self::ConnectTimeout | Self::Ended | Self::Malformed(_) => None,
        }
    }
}

/// Handles a CONNECT and answers it; returns `None` if it is refused. `place` is its place among unauthenticated
/// connections.
pub(crate) async fn admit(
    guest: PendingClient,
    shared: &Arc<BrokerState>,
    place: ConnectionPlace,
) -> Option<Box<ClientConnection>> {
    let (peer, origin) = (guest.peer, place.origin());
    match greet(guest, shared, place).await {
        Ok(connection) => Some(connection),
        Err(turned) => {
            shared.counters.begun.count(turned.beginning());
            let hint = turned.help().map(|hint| hint.to_string());
            log_peer!(INFO, origin, TURNED_AWAY, %peer, hint, "the client is refused: {turned}");
            None
        }
    }
}

async fn greet(
    guest: PendingClient,
    shared: &Arc<BrokerState>,
    place: ConnectionPlace,
) -> Result<Box<ClientConnection>, ConnectRefusal> {
    let PendingClient { mut stream, peer, proof } = guest;
    let mut input = BytesMut::new();
    let frame = timeout(shared.limits.connect_timeout(), first_packet(&mut stream, &mut input, shared));
    let used = match shared.stop.run_until_cancelled(place.expect(frame)).await {
        Some(used) => used.map_err(|_| ConnectRefusal::ConnectTimeout)??,
        None => return Err(ConnectRefusal::Stopping),
    };
    let first = input.split_to(used);
    let connect = match connect(&first, shared) {
        Ok(connect) => connect,
        Err(malformed) => {
            let mut output = BytesMut::new();
            refuse(&first, malformed, shared, &mut output);
            farewell(&mut stream, &output).await;
            return Err(malformed.into());
        }
    };
    // Usually nothing follows yet, and an empty buffer need not share memory with the CONNECT.
    let input = if input.is_empty() { BytesMut::new() } else { input };
    match welcome(&connect, proof, peer, place, shared).await {
        Ok((admitted, answer)) => {
            Ok(ClientConnection::new(stream, input, admitted, answer.connack(&connect, shared), Arc::clone(shared)))
        }
        Err(turned) => {
            if let Some(reason) = turned.reason() {
                let mut output = BytesMut::new();
                connect.version.encode(&ServerPacket::ConnAck(ConnAck::refused(reason)), &mut output);
                farewell(&mut stream, &output).await;
            }
            Err(turned)
        }
    }
}

/// Reads the first packet; returns also its length.
async fn first_packet(
    stream: &mut ClientStream,
    input: &mut BytesMut,
    shared: &BrokerState,
) -> Result<usize, ConnectRefusal> {
    loop {
        if let Some((_, used)) = codec::frame(input, shared.limits.packet_max_bytes)? {
            return Ok(used);
        }
        input.reserve(codec::missing(input).clamp(256, 64 * 1024));
        if stream.read_buf(input).await? == 0 {
            return Err(ConnectRefusal::Ended);
        }
    }
}

fn connect<'a>(first: &'a [u8], shared: &BrokerState) -> Result<ConnectPacket<'a>, Malformed> {
    match codec::frame(first, shared.limits.packet_max_bytes)? {
        Some((frame, _)) => codec::connect(&frame),
        None => Err(Malformed::Short),
    }
}

/// Returns the answer to a malformed CONNECT.
fn refuse(first: &[u8], malformed: Malformed, shared: &BrokerState, output: &mut BytesMut) {
    if let Ok(Some((frame, _))) = codec::frame(first, shared.limits.packet_max_bytes) {
        codec::refuse(&frame, malformed, output);
    }
}

/// What the CONNACK contains beyond the limits.
struct ConnAckDetails {
    session_present: bool,
    assigned_client_id: Option<String>,
    session_expiry_s: u32,
}

impl ConnAckDetails {
    fn connack<'a>(&'a self, connect: &ConnectPacket<'_>, shared: &BrokerState) -> ConnAck<'a> {
        let limits = &shared.limits;
        let asked_s = connect.keep_alive_s;
        ConnAck {
            reason: Reason::Success,
            session_present: self.session_present,
            assigned_client_id: self.assigned_client_id.as_deref(),
            server_keep_alive_s: (asked_s == 0 || asked_s > limits.keep_alive_max_s).then_some(limits.keep_alive_max_s),
            session_expiry_s: (self.session_expiry_s != connect.session_expiry_s).then_some(self.session_expiry_s),
            receive_max: limits.inflight_max,
            packet_max_bytes: u32::try_from(limits.packet_max_bytes).unwrap_or(u32::MAX),
            alias_max: limits.topic_aliases_max,
        }
    }
}

async fn welcome(
    connect: &ConnectPacket<'_>,
    proof: TransportProof,
    peer: SocketAddr,
    place: ConnectionPlace,
    shared: &Arc<BrokerState>,
) -> Result<(AdmittedClient, ConnAckDetails), ConnectRefusal> {
    if connect.extended_auth {
        return Err(ConnectRefusal::Method);
    }
    let (identity, serial) = who(connect, proof, place.origin(), shared).await?;
    // It is authenticated; what follows does not depend on a stranger.
    place.record_login();
    drop(place);
    let access = Arc::new(ClientAccess::new(identity.clone(), Arc::clone(&shared.rules)));
    let client_id = client_id(connect, &identity, shared)?;
    let will = connect.will.as_ref().map(|will| last_will(will, &access, shared)).transpose()?;
    let full = |full| ConnectRefusal::Full { identity: identity.clone(), full };
    let ticket = shared.registry.enter(identity.clone(), client_id, serial).map_err(full)?;
    // A client in the registry is found there when it is revoked; an earlier revocation is found here.
    if let Some(serial) = serial.filter(|serial| shared.revoked.contains(serial)) {
        return Err(ConnectRefusal::Revoked(serial));
    }
    let is_removed = |users: &RwLock<Users>| !users.read().unwrap_or_else(PoisonError::into_inner).contains(&identity);
    if serial.is_none() && shared.users.as_ref().is_some_and(is_removed) {
        return Err(ConnectRefusal::NoUser);
    }
    if ticket.replaces() {
        shared.counters.takeovers.add(1);
        let client_id = LineLimiter::shorten(ticket.client_id());
        log_peer!(INFO, &identity, TAKES_OVER, %peer, client.id = client_id, client.identity = %identity, "takes over");
        wait_for_turn(&ticket).await?;
    }
    let session_expiry_s = connect.session_expiry_s.min(shared.limits.session_expiry_max_s);
    let (session, session_present) = session(connect, &ticket, shared).await;
    let reach = ClientLimits {
        version: connect.version,
        window: connect.receive_max.min(shared.limits.inflight_max),
        packet_max_bytes: connect.packet_max_bytes.map_or(usize::MAX, |max| usize::try_from(max).unwrap_or(usize::MAX)),
        stays: session_expiry_s > 0,
    };
    let assigned = connect.client_id.is_empty().then(|| ticket.client_id().to_owned());
    let silence = shared.limits.silence(connect.keep_alive_s);
    // A will belongs to the session, and carries its number.
    let will = will.map(|will| LastWill { message: will.message.published_by(session.number), ..will });
    Ok((
        AdmittedClient { ticket, access, reach, will, session, session_expiry_s, silence },
        ConnAckDetails { session_present, assigned_client_id: assigned, session_expiry_s },
    ))
}

/// Identifies a client by its certificate or its password.
async fn who(
    connect: &ConnectPacket<'_>,
    proof: TransportProof,
    origin: Origin,
    shared: &BrokerState,
) -> Result<(Identity, Option<Serial>), ConnectRefusal> {
    match proof {
        TransportProof::Certificate { identity, serial } => Ok((identity, Some(serial))),
        TransportProof::Nobody(nobody) => Err(nobody.into()),
        TransportProof::Password => {
            let (Some(users), Some(user)) = (&shared.users, connect.user) else { return Err(ConnectRefusal::NoUser) };
            let users = users.read().unwrap_or_else(PoisonError::into_inner).clone();
            let password = connect.password.unwrap_or_default();
            let check = timeout(shared.limits.connect_timeout(), users.admit(origin, user, password));
            let identity = check
                .await
                .map_err(|_| ConnectRefusal::PasswordTimeout)?
                .map_err(|TooManyChecks| ConnectRefusal::PasswordsBusy)?;
            Ok((
                identity.ok_or_else(|| ConnectRefusal::Password { user: LineLimiter::shorten(user).to_owned() })?,
                None,
            ))
        }
    }
}

/// Returns the requested client id, or one that the broker chooses.
fn client_id(connect: &ConnectPacket<'_>, identity: &Identity, shared: &BrokerState) -> Result<String, ConnectRefusal> {
    let refused = || ConnectRefusal::ClientId {
        identity: identity.clone(),
        client_id: LineLimiter::shorten(connect.client_id).to_owned(),
    };
    if !connect.client_id.is_empty() {
        return if owns(identity, connect.client_id) { Ok(connect.client_id.to_owned()) } else { Err(refused()) };
    }
    // A host's client id has its instance; and in 3.1.1 a client without an id cannot resume a session.
    if matches!(identity, Identity::Host(_)) || (connect.version == ProtocolVersion::V311 && !connect.clean) {
        return Err(refused());
    }
    Ok(format!("{identity}-{:x}-{:x}", shared.started_ms, shared.registry.number()))
}

fn last_will(will: &WillMessage<'_>, access: &ClientAccess, shared: &BrokerState) -> Result<LastWill, ConnectRefusal> {
    let publication = &will.publication;
    if let Err(refusal) = access.publish(publication.topic) {
        shared.counters.refusals.count(refusal.publish_kind());
        let (identity, topic) = (access.identity().clone(), LineLimiter::shorten(publication.topic).to_owned());
        return Err(ConnectRefusal::Will { identity, topic, refusal });
    }
    let expiry_s = publication.expiry_s;
    let message = BrokerMessage::new(&codec::Publication { expiry_s: None, ..publication.clone() }, 0, 0);
    Ok(LastWill { message, expiry_s, delay_s: will.delay_s })
}

/// Waits until the earlier connection of the same client has ended.
async fn wait_for_turn(ticket: &ConnectionTicket) -> Result<(), ConnectRefusal> {
    let client_id = || ticket.client_id().to_owned();
    tokio::select! {
        turn = timeout(PREDECESSOR_TIMEOUT, ticket.turn()) => turn.map_err(|_| ConnectRefusal::Predecessor { client_id: client_id() }),
        cause = ticket.ending().wait() => Err(match cause {
            crate::registry::EndCause::Stopping => ConnectRefusal::Stopping,
            _ => ConnectRefusal::TakenOver { client_id: client_id() },
        }),
    }
}

/// Returns the stored session of this client, or a new one; and whether it was stored.
async fn session(
    connect: &ConnectPacket<'_>,
    ticket: &ConnectionTicket,
    shared: &Arc<BrokerState>,
) -> (ClientSession, bool) {
    match shared.registry.wake(ticket) {
        // A session that has lost a message is dropped: its client has to know.
        Some(former) if connect.clean || former.session.mailbox.is_over() => {
            // Rare, and large.
            Box::pin(connection::end_session(shared, former)).await;
        }
        Some(FormerSession { mut session, .. }) => {
            session.wake();
            return (session, true);
        }
        None => (),
    }
    let max_bytes = match &ticket.key().0 {
        Identity::Host(_) => shared.limits.queue_host_max_bytes,
        Identity::Console(_) | Identity::Operator(_) | Identity::Observer(_) => shared.limits.queue_max_bytes,
    };
    (ClientSession::new(shared.registry.number(), Mailbox::new(max_bytes, Arc::clone(ticket.account()))), false)
}

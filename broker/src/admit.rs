//! From a guest to a client: CONNECT, and the answer to it.

use std::{io, sync::Arc};

use bytes::BytesMut;
use muster_topics::role::Identity;
use tokio::{io::AsyncReadExt, sync::OwnedSemaphorePermit, time::timeout};

use crate::{
    Shared,
    accept::{Guest, Proof},
    access::{Access, Refusal, owns},
    codec::{self, Answer, Connect, Malformed, Version, Welcome},
    connection::{Admitted, Connection},
    registry::Full,
    router::ROUTER_TIMEOUT,
    stream::{Stream, farewell},
    who::{NobodyError, Serial},
};

/// Why a guest does not become a client.
#[derive(Debug, thiserror::Error)]
enum Turned {
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
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
    #[error("it names no user; hint: without TLS a client needs a user name and a password")]
    NoUser,
    #[error("there is no user {user:?} with this password")]
    Password { user: String },
    #[error("its password could not be checked in time")]
    PasswordTimeout,
    #[error(
        "client id {client_id:?} is not one of {identity}; hint: a host's is <host>-<instance>, any other's begins with the common name"
    )]
    ClientId { identity: Identity, client_id: String },
    #[error("{identity} cannot have a last will on {topic:?}: {refusal}")]
    Will { identity: Identity, topic: String, refusal: Refusal },
    #[error("{identity} finds no place: {full}")]
    Full { identity: Identity, full: Full },
    #[error("the router is being replaced")]
    NoRouter,
    #[error("the earlier session of {client_id:?} does not end")]
    Predecessor { client_id: String },
    #[error("a newer connection of {client_id:?} has come meanwhile")]
    TakenOver { client_id: String },
    #[error("the broker stops")]
    Stopping,
}

impl Turned {
    /// The CONNACK that says so, if a client is there to read it.
    fn welcome(&self) -> Option<Welcome> {
        match self {
            Self::Nobody(_) | Self::NoUser | Self::Revoked(_) | Self::Will { .. } => Some(Welcome::NotAuthorized),
            Self::Password { .. } => Some(Welcome::BadCredentials),
            Self::ClientId { .. } => Some(Welcome::ClientIdRefused),
            Self::Full { .. } | Self::NoRouter | Self::Predecessor { .. } | Self::PasswordTimeout => {
                Some(Welcome::Unavailable)
            }
            _ => None,
        }
    }
}

/// A guest, until it is refused or its session has ended. `place` is one among those who are not clients yet.
pub(crate) async fn serve(guest: Guest, shared: Arc<Shared>, place: OwnedSemaphorePermit) {
    let peer = guest.peer;
    // In memory of its own, which a session does not need.
    let greeting = Box::pin(greet(guest, &shared));
    let greeted = match shared.stop.run_until_cancelled(greeting).await {
        Some(greeted) => greeted,
        None => Err(Turned::Stopping),
    };
    match greeted {
        Ok(connection) => {
            drop(place);
            connection.run(peer).await;
        }
        Err(turned) => {
            shared.counters.refused.add(1);
            tracing::info!(%peer, "refused a connection: {turned}");
        }
    }
}

async fn greet(guest: Guest, shared: &Arc<Shared>) -> Result<Connection, Turned> {
    let Guest { mut stream, peer: _, proof } = guest;
    let limits = &shared.limits;
    let mut input = BytesMut::new();
    let reading = read_connect(&mut stream, &mut input, limits.packet_max_bytes);
    let length = timeout(limits.connect_timeout(), reading).await.map_err(|_| Turned::ConnectTimeout)??;
    let packet = input.split_to(length);
    let connect = match parse_connect(&packet, limits.packet_max_bytes) {
        Ok(connect) => connect,
        Err(malformed) => {
            if let Malformed::Level(level) = malformed {
                let mut out = BytesMut::new();
                codec::refuse_level(level, &mut out);
                farewell(&mut stream, &out).await;
            }
            return Err(malformed.into());
        }
    };
    match admit(proof, &connect, shared).await {
        Ok(admitted) => Ok(Connection::new(stream, input, admitted, Arc::clone(shared))),
        Err(turned) => {
            if let Some(welcome) = turned.welcome() {
                refuse(stream, connect.version, welcome).await;
            }
            Err(turned)
        }
    }
}

/// Reads until a whole packet is there, and gives its length.
async fn read_connect(stream: &mut Stream, input: &mut BytesMut, max_bytes: usize) -> Result<usize, Turned> {
    loop {
        if let Some((_, length)) = codec::frame(input, max_bytes)? {
            return Ok(length);
        }
        input.reserve(codec::missing(input).clamp(1024, max_bytes));
        if stream.read_buf(input).await? == 0 {
            return Err(Turned::Ended);
        }
    }
}

fn parse_connect(packet: &[u8], max_bytes: usize) -> Result<Connect<'_>, Malformed> {
    let (frame, _) = codec::frame(packet, max_bytes)?.ok_or(Malformed::Short)?;
    codec::connect(&frame)
}

/// Who a guest is: what its transport has shown of that, or what it knows.
async fn who(proof: Proof, connect: &Connect<'_>, shared: &Shared) -> Result<(Identity, Option<Serial>), Turned> {
    match proof {
        Proof::Certificate { identity, serial } => Ok((identity, Some(serial))),
        Proof::Nobody(nobody) => Err(nobody.into()),
        Proof::Password => {
            let (Some(users), Some(user)) = (&shared.users, connect.user) else { return Err(Turned::NoUser) };
            let found =
                timeout(shared.limits.connect_timeout(), users.admit(user, connect.password.unwrap_or_default()));
            let identity = found.await.map_err(|_| Turned::PasswordTimeout)?;
            Ok((identity.ok_or_else(|| Turned::Password { user: user.chars().take(200).collect() })?, None))
        }
    }
}

/// Decides whether a CONNECT makes a client, and ends the session that its client id had.
async fn admit(proof: Proof, connect: &Connect<'_>, shared: &Shared) -> Result<Admitted, Turned> {
    let (identity, serial) = who(proof, connect, shared).await?;
    // A client may leave it to the broker to name it, if it wants no session kept. A host's instance means something.
    let unnamed = connect.client_id.is_empty() && connect.clean && !matches!(identity, Identity::Host(_));
    if !unnamed && !owns(&identity, connect.client_id) {
        return Err(Turned::ClientId { identity, client_id: connect.client_id.chars().take(200).collect() });
    }
    let access = Access::new(identity.clone(), shared.prefix.clone());
    let will = match &connect.will {
        None => None,
        Some(will) => match access.publish(will) {
            Ok(message) => Some(message),
            Err(refusal) => {
                shared.counters.denied.add(1);
                return Err(Turned::Will { identity, topic: will.topic.chars().take(200).collect(), refusal });
            }
        },
    };
    if !shared.hub.is_ready() {
        return Err(Turned::NoRouter);
    }
    let ticket = shared
        .registry
        .enter(identity.clone(), connect.client_id, serial)
        .map_err(|full| Turned::Full { identity, full })?;
    // Who is in the registry is found there if it is revoked from now on, and who was before is found here.
    if let Some(serial) = serial.filter(|serial| shared.revoked.contains(serial)) {
        return Err(Turned::Revoked(serial));
    }
    if ticket.replaces() {
        shared.counters.takeovers.add(1);
        // A chain of takeovers moves one session at a time, each of which may have a will for the router.
        if timeout(2 * ROUTER_TIMEOUT, ticket.turn()).await.is_err() {
            return Err(Turned::Predecessor { client_id: ticket.client_id().to_owned() });
        }
        if ticket.ended().is_cancelled() {
            return Err(Turned::TakenOver { client_id: ticket.client_id().to_owned() });
        }
    }
    let silence = shared.limits.silence(connect.keep_alive_s);
    Ok(Admitted { version: connect.version, access, ticket, will, silence })
}

async fn refuse(mut stream: Stream, version: Version, welcome: Welcome) {
    let mut out = BytesMut::new();
    version.encode(&Answer::ConnAck(welcome), &mut out);
    farewell(&mut stream, &out).await;
}

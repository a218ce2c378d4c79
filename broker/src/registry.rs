//! Connected clients, and sessions that wait for theirs: limits, takeover, and resumption.
//!
//! **Invariant: a client's new connection begins when its old one has ended**, last will included: a late will
//! would declare the new one dead. Connections of one client id therefore form a chain, each waiting for the one before.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll},
    time::Instant,
};

use futures_util::task::AtomicWaker;
use muster_topics::role::Identity;
use tokio_util::sync::CancellationToken;

use crate::{
    connection::LastWill,
    identity::Serial,
    limits::BrokerLimits,
    mailbox::{IdentityBacklog, MessagePool},
    rate_limit::BytePace,
    session::ClientSession,
};

/// The key of a session. The identity is part of it, so that no client id reaches another identity's session.
pub(crate) type SessionKey = Arc<(Identity, String)>;

/// Connected clients, and stored sessions of disconnected ones.
#[derive(Debug)]
pub(crate) struct Registry {
    max: usize,
    max_per_identity: usize,
    asleep_max: usize,
    shares: IdentityShares,
    present: Mutex<ClientPresence>,
}

/// The limits of each identity.
#[derive(Debug)]
struct IdentityShares {
    bytes_per_second: u64,
    queues_host_max_bytes: usize,
    queues_identity_max_bytes: usize,
    subscriptions_max: usize,
    pool: Arc<MessagePool>,
}

impl IdentityShares {
    fn of(&self, identity: &Identity) -> IdentityShare {
        let max_bytes = match identity {
            Identity::Host(_) => self.queues_host_max_bytes,
            Identity::Console(_) | Identity::Operator(_) | Identity::Observer(_) => self.queues_identity_max_bytes,
        };
        let pace = Arc::new(BytePace::new(self.bytes_per_second, Instant::now()));
        IdentityShare {
            tickets: 0,
            asleep: 0,
            pace,
            account: IdentityBacklog::new(max_bytes, self.subscriptions_max, Arc::clone(&self.pool)),
        }
    }
}

#[derive(Debug, Default)]
struct ClientPresence {
    tickets: usize,
    next: u64,
    live: HashMap<SessionKey, LiveClient>,
    asleep: HashMap<SessionKey, SleepingSession>,
    per_identity: HashMap<Identity, IdentityShare>,
}

/// What the connections of one identity share.
#[derive(Debug)]
struct IdentityShare {
    tickets: usize,
    asleep: usize,
    pace: Arc<BytePace>,
    account: Arc<IdentityBacklog>,
}

#[derive(Debug)]
struct LiveClient {
    number: u64,
    ending: Arc<EndSignal>,
    /// Of its certificate, if it has one.
    serial: Option<Serial>,
    gone: CancellationToken,
}

/// A session without a client.
#[derive(Debug)]
struct SleepingSession {
    session: ClientSession,
    /// Of its client's last certificate.
    serial: Option<Serial>,
    /// To be published after its delay.
    will: Option<LastWill>,
    /// Cancels the task that would end the session.
    woken: CancellationToken,
}

/// Why a connection is ended by another task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum EndCause {
    /// A newer connection has the same client id.
    TakenOver = 1,
    /// The broker stops.
    Stopping = 2,
    /// Its certificate was revoked.
    Revoked = 3,
    /// An authority is not trusted any more, maybe that of its certificate.
    Untrusted = 4,
}

/// Signals one connection to end. The first cause counts.
#[derive(Debug, Default)]
pub(crate) struct EndSignal {
    cause: AtomicU8,
    waker: AtomicWaker,
}

impl EndSignal {
    fn set(&self, cause: EndCause) {
        // A later cause is ignored.
        let _ = self.cause.compare_exchange(0, cause as u8, Ordering::AcqRel, Ordering::Acquire);
        self.waker.wake();
    }

    pub(crate) fn cause(&self) -> Option<EndCause> {
        match self.cause.load(Ordering::Acquire) {
            0 => None,
            1 => Some(EndCause::TakenOver),
            2 => Some(EndCause::Stopping),
            3 => Some(EndCause::Revoked),
            _ => Some(EndCause::Untrusted),
        }
    }

    /// Ready when the connection is to end.
    pub(crate) fn poll_told(&self, context: &mut Context<'_>) -> Poll<EndCause> {
        self.waker.register(context.waker());
        self.cause().map_or(Poll::Pending, Poll::Ready)
    }

    pub(crate) async fn wait(&self) -> EndCause {
        std::future::poll_fn(|context| self.poll_told(context)).await
    }
}

/// The registration of a connected client, removed on drop.
#[derive(Debug)]
pub(crate) struct ConnectionTicket {
    registry: Arc<Registry>,
    key: SessionKey,
    number: u64,
    serial: Option<Serial>,
    ending: Arc<EndSignal>,
    gone: CancellationToken,
    before: Option<CancellationToken>,
    pace: Arc<BytePace>,
    account: Arc<IdentityBacklog>,
}

/// A limit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RegistryFull {
    #[error("`clients_max` is reached")]
    Broker,
    #[error("`identity_clients_max` is reached")]
    Identity,
}

/// A dropped session: its subscriptions have to be removed, and its will does not wait any more.
#[must_use]
pub(crate) struct FormerSession {
    pub(crate) session: ClientSession,
    pub(crate) will: Option<LastWill>,
}

/// The clients whose certificates are revoked.
#[must_use]
#[derive(Default)]
pub(crate) struct RevokedClients {
    /// For each connection that was signalled to end: cancelled when it has ended, last will included.
    pub(crate) ending: Vec<CancellationToken>,
    /// Stored sessions of disconnected clients.
    pub(crate) asleep: Vec<FormerSession>,
}

impl Registry {
    pub(crate) fn new(limits: &BrokerLimits, pool: Arc<MessagePool>) -> Arc<Self> {
        Arc::new(Self {
            max: limits.connections_max,
            max_per_identity: limits.connections_per_identity_max,
            asleep_max: limits.sessions_asleep_max,
            shares: IdentityShares {
                bytes_per_second: limits.bytes_per_second_per_identity,
                queues_host_max_bytes: limits.queues_host_max_bytes,
                queues_identity_max_bytes: limits.queues_identity_max_bytes,
                subscriptions_max: limits.subscriptions_per_identity_max,
                pool,
            },
            present: Mutex::default(),
        })
    }

    fn present(&self) -> MutexGuard<'_, ClientPresence> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of connections, including those that are about to begin or end.
    pub(crate) fn connections(&self) -> usize {
        self.present().tickets
    }

    /// Returns the number of stored sessions.
    pub(crate) fn asleep(&self) -> usize {
        self.present().asleep.len()
    }

    /// Returns a number that no session had before.
    pub(crate) fn number(&self) -> u64 {
        self.present().number()
    }

    /// Registers a client, and ends the connection that this client id had.
    pub(crate) fn enter(
        self: &Arc<Self>,
        identity: Identity,
        client_id: String,
        serial: Option<Serial>,
    ) -> Result<ConnectionTicket, RegistryFull> {
        let key = Arc::new((identity, client_id));
        let mut present = self.present();
        // A takeover frees a place; there are two only until the old connection has ended.
        let replaces = usize::from(present.live.contains_key(&key));
        if present.tickets >= self.max + replaces {
            return Err(RegistryFull::Broker);
        }
        if present.per_identity.get(&key.0).is_some_and(|share| share.tickets >= self.max_per_identity + replaces) {
            return Err(RegistryFull::Identity);
        }
        let number = present.number();
        present.tickets += 1;
        let share = present.share(&key.0, &self.shares);
        share.tickets += 1;
        let (pace, account) = (Arc::clone(&share.pace), Arc::clone(&share.account));
        let (ending, gone) = (Arc::new(EndSignal::default()), CancellationToken::new());
        let live = LiveClient { number, ending: Arc::clone(&ending), serial, gone: gone.clone() };
        let before = present.live.insert(Arc::clone(&key), live).map(|old| {
            old.ending.set(EndCause::TakenOver);
            old.gone
        });
        Ok(ConnectionTicket { registry: Arc::clone(self), key, number, serial, ending, gone, before, pace, account })
    }

    /// Takes the stored session of this client, if there is one, with a will that was not published yet. Its scheduled
    /// end is cancelled.
    pub(crate) fn wake(&self, ticket: &ConnectionTicket) -> Option<FormerSession> {
        let mut present = self.present();
        let asleep = present.asleep.remove(&ticket.key)?;
        present.leave(&ticket.key.0, |share| &mut share.asleep);
        asleep.woken.cancel();
        Some(FormerSession { session: asleep.session, will: asleep.will })
    }

    /// Stores the session of a connection that ends, for its client to come back. The token is cancelled when it does.
    /// Without room the session is returned.
    pub(crate) fn sleep(
        &self,
        ticket: &ConnectionTicket,
        session: ClientSession,
        will: Option<LastWill>,
    ) -> Result<CancellationToken, Box<FormerSession>> {
        let mut present = self.present();
        let per_identity = present.per_identity.get(&ticket.key.0).map_or(0, |share| share.asleep);
        if present.asleep.len() >= self.asleep_max || per_identity >= self.max_per_identity {
            return Err(Box::new(FormerSession { session, will }));
        }
        present.share(&ticket.key.0, &self.shares).asleep += 1;
        let woken = CancellationToken::new();
        // The previous connection has taken its session along, so nothing is replaced.
        present.asleep.insert(
            Arc::clone(&ticket.key),
            SleepingSession { session, serial: ticket.serial, will, woken: woken.clone() },
        );
        Ok(woken)
    }

    /// Removes the session `number`, whose time is over, if its client has not come back.
    pub(crate) fn forget(&self, key: &SessionKey, number: u64) -> Option<FormerSession> {
        let mut present = self.present();
        if present.asleep.get(key).is_none_or(|asleep| asleep.session.number != number) {
            return None;
        }
        let asleep = present.asleep.remove(key)?;
        present.leave(&key.0, |share| &mut share.asleep);
        Some(FormerSession { session: asleep.session, will: asleep.will })
    }

    /// Takes the will of a session whose client has not come back, once.
    pub(crate) fn take_will(&self, key: &SessionKey, number: u64) -> Option<LastWill> {
        let mut present = self.present();
        present.asleep.get_mut(key).filter(|asleep| asleep.session.number == number)?.will.take()
    }

    /// Signals every connection that the broker stops.
    pub(crate) fn end_all(&self) {
        for live in self.present().live.values() {
            live.ending.set(EndCause::Stopping);
        }
    }

    /// Ends all connections of clients with certificates: those whose certificates are still accepted come back.
    pub(crate) fn end_certified(&self) {
        let present = self.present();
        present
            .live
            .values()
            .filter(|live| live.serial.is_some())
            .for_each(|live| live.ending.set(EndCause::Untrusted));
    }

    /// Ends the connections with revoked certificates, and takes the stored sessions of such clients.
    pub(crate) fn end_revoked(&self, is_revoked: impl Fn(&Serial) -> bool) -> RevokedClients {
        let mut present = self.present();
        let is_revoked = |serial: &Option<Serial>| serial.as_ref().is_some_and(&is_revoked);
        let ending = present.live.values().filter(|live| is_revoked(&live.serial)).map(|live| {
            live.ending.set(EndCause::Revoked);
            live.gone.clone()
        });
        let ending = ending.collect();
        let asleep: Vec<_> = present.asleep.extract_if(|_, asleep| is_revoked(&asleep.serial)).collect();
        let asleep = asleep.into_iter().map(|(key, asleep)| {
            present.leave(&key.0, |share| &mut share.asleep);
            asleep.woken.cancel();
            FormerSession { session: asleep.session, will: asleep.will }
        });
        let asleep = asleep.collect();
        RevokedClients { ending, asleep }
    }

    /// Whether a client of this identity is connected.
    pub(crate) fn is_connected(&self, identity: &Identity) -> bool {
        self.present().per_identity.get(identity).is_some_and(|share| share.tickets > 0)
    }

    /// Returns the most bytes that wait for one identity.
    pub(crate) fn most_queued(&self) -> usize {
        self.present().per_identity.values().map(|share| share.account.used()).max().unwrap_or_default()
    }

    /// Ends the connections of users that were removed.
    pub(crate) fn end_removed_users(&self, is_user: impl Fn(&Identity) -> bool) {
        let present = self.present();
        let removed = present.live.iter().filter(|(key, live)| live.serial.is_none() && !is_user(&key.0));
        removed.for_each(|(_, live)| live.ending.set(EndCause::Revoked));
    }

    fn leave(&self, key: &SessionKey, number: u64) {
        let mut present = self.present();
        present.tickets = present.tickets.saturating_sub(1);
        if present.live.get(key).is_some_and(|live| live.number == number) {
            present.live.remove(key);
        }
        present.leave(&key.0, |share| &mut share.tickets);
    }
}

impl ClientPresence {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn share(&mut self, identity: &Identity, shares: &IdentityShares) -> &mut IdentityShare {
        self.per_identity.entry(identity.clone()).or_insert_with(|| shares.of(identity))
    }

    /// Decrements a count of an identity, and removes the identity with its last.
    fn leave(&mut self, identity: &Identity, count: impl Fn(&mut IdentityShare) -> &mut usize) {
        if let Some(share) = self.per_identity.get_mut(identity) {
            let count = count(share);
            *count = count.saturating_sub(1);
            if share.tickets == 0 && share.asleep == 0 {
                self.per_identity.remove(identity);
            }
        }
    }
}

impl ConnectionTicket {
    /// Whether this client id had a connection when this one was registered.
    pub(crate) fn replaces(&self) -> bool {
        self.before.is_some()
    }

    /// Waits until the previous connection has ended.
    pub(crate) async fn turn(&self) {
        if let Some(before) = &self.before {
            before.cancelled().await;
        }
    }

    /// Returns the signal that ends this connection.
    pub(crate) fn ending(&self) -> &EndSignal {
        &self.ending
    }

    pub(crate) fn key(&self) -> &SessionKey {
        &self.key
    }

    pub(crate) fn client_id(&self) -> &str {
        &self.key.1
    }

    /// Returns the serial number of its certificate, if it has one.
    pub(crate) fn serial(&self) -> Option<Serial> {
        self.serial
    }

    /// Returns the backlog that it shares with its identity's other connections.
    pub(crate) fn account(&self) -> &Arc<IdentityBacklog> {
        &self.account
    }

    /// Returns the rate limit that it shares with its identity's other connections.
    pub(crate) fn pace(&self) -> &BytePace {
        &self.pace
    }
}

impl Drop for ConnectionTicket {
    fn drop(&mut self) {
        self.registry.leave(&self.key, self.number);
        self.gone.cancel();
    }
}

#[cfg(test)]
mod tests;

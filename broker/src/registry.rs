//! Who is connected: limits on that, and takeover.
//!
//! **Invariant: a client's new session begins when its old one has ended**, last will included: a will that came late
//! would declare the new session dead. Sessions of one client id therefore form a chain, each waiting for the one before.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use muster_topics::role::Identity;
use tokio_util::sync::CancellationToken;

use crate::{limits::Limits, who::Serial};

/// Whose session it is. The identity belongs to it, so that no client id reaches another identity's session.
type Key = (Identity, String);

/// Everybody who is connected.
#[derive(Debug)]
pub(crate) struct Registry {
    max: usize,
    max_per_identity: usize,
    present: Mutex<Present>,
}

#[derive(Debug, Default)]
struct Present {
    tickets: usize,
    next: u64,
    sessions: HashMap<Key, Entry>,
    per_identity: HashMap<Identity, usize>,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    serial: Option<Serial>,
    ended: CancellationToken,
    gone: CancellationToken,
}

/// A place among the connected, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    registry: Arc<Registry>,
    key: Key,
    number: u64,
    ended: CancellationToken,
    gone: CancellationToken,
    before: Option<CancellationToken>,
}

/// No room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Full {
    #[error("connections_max is reached")]
    Broker,
    #[error("connections_per_identity_max is reached")]
    Identity,
}

impl Registry {
    pub(crate) fn new(limits: &Limits) -> Arc<Self> {
        Arc::new(Self {
            max: limits.connections_max,
            max_per_identity: limits.connections_per_identity_max,
            present: Mutex::default(),
        })
    }

    fn present(&self) -> MutexGuard<'_, Present> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many are connected, those included that are about to begin or end.
    pub(crate) fn connections(&self) -> usize {
        self.present().tickets
    }

    /// Takes a place, and ends the session that this client id had. An empty client id stands for a new one.
    pub(crate) fn enter(
        self: &Arc<Self>,
        identity: Identity,
        client_id: &str,
        serial: Option<Serial>,
    ) -> Result<Ticket, Full> {
        let mut present = self.present();
        let number = present.next;
        // No client can choose an id with this sign in it.
        let client_id = if client_id.is_empty() { format!("{identity}-#{number}") } else { client_id.to_owned() };
        let key = (identity, client_id);
        // Who takes over frees a place; only until the old session has ended are there two.
        let replaces = usize::from(present.sessions.contains_key(&key));
        if present.tickets >= self.max + replaces {
            return Err(Full::Broker);
        }
        if present.per_identity.get(&key.0).is_some_and(|count| *count >= self.max_per_identity + replaces) {
            return Err(Full::Identity);
        }
        present.next += 1;
        present.tickets += 1;
        *present.per_identity.entry(key.0.clone()).or_default() += 1;
        let (ended, gone) = (CancellationToken::new(), CancellationToken::new());
        let entry = Entry { number, serial, ended: ended.clone(), gone: gone.clone() };
        let before = present.sessions.insert(key.clone(), entry).map(|old| {
            old.ended.cancel();
            old.gone
        });
        Ok(Ticket { registry: Arc::clone(self), key, number, ended, gone, before })
    }

    /// Tells every session to end.
    pub(crate) fn end_all(&self) {
        for entry in self.present().sessions.values() {
            entry.ended.cancel();
        }
    }

    /// Ends the connections of certificates that are revoked, and says how many these are.
    pub(crate) fn end_revoked(&self, is_revoked: impl Fn(&Serial) -> bool) -> usize {
        let present = self.present();
        let revoked = present.sessions.values().filter(|entry| entry.serial.as_ref().is_some_and(&is_revoked));
        revoked.map(|entry| entry.ended.cancel()).count()
    }

    fn leave(&self, key: &Key, number: u64) {
        let mut present = self.present();
        present.tickets = present.tickets.saturating_sub(1);
        if present.sessions.get(key).is_some_and(|entry| entry.number == number) {
            present.sessions.remove(key);
        }
        if let Some(count) = present.per_identity.get_mut(&key.0) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                present.per_identity.remove(&key.0);
            }
        }
    }
}

impl Ticket {
    /// Whether this client id had a session when this one entered.
    pub(crate) fn replaces(&self) -> bool {
        self.before.is_some()
    }

    /// Waits until the session before this one has ended.
    pub(crate) async fn turn(&self) {
        if let Some(before) = &self.before {
            before.cancelled().await;
        }
    }

    /// Cancelled when a newer session wants to begin, or by [`Registry::end_all`]. It is this session's own, so that
    /// waiting for it costs no lock that others wait for too.
    pub(crate) fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    pub(crate) fn client_id(&self) -> &str {
        &self.key.1
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.registry.leave(&self.key, self.number);
        self.gone.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn registry(max: usize, max_per_identity: usize) -> Arc<Registry> {
        Registry::new(&Limits {
            connections_max: max,
            connections_per_identity_max: max_per_identity,
            ..Limits::default()
        })
    }

    fn console(name: &str) -> Identity {
        format!("console-{name}").parse().unwrap()
    }

    #[test]
    fn sessions_of_one_client_follow_each_other() {
        let registry = registry(10, 10);
        let first = registry.enter(console("a"), "x", None).unwrap();
        assert!(first.turn().now_or_never().is_some() && !first.replaces());
        let second = registry.enter(console("a"), "x", None).unwrap();
        assert!(first.ended().is_cancelled() && second.replaces());
        let third = registry.enter(console("a"), "x", None).unwrap();
        assert!(second.ended().is_cancelled() && !third.ended().is_cancelled());
        // The third waits for the second, which waits for the first.
        assert!(second.turn().now_or_never().is_none() && third.turn().now_or_never().is_none());
        drop(first);
        assert!(second.turn().now_or_never().is_some() && third.turn().now_or_never().is_none());
        drop(second);
        assert!(third.turn().now_or_never().is_some());
        drop(third);
        assert_eq!(registry.connections(), 0);
        assert!(!registry.enter(console("a"), "x", None).unwrap().replaces());
    }

    #[test]
    fn all_can_be_told_to_end() {
        let registry = registry(10, 10);
        let tickets: Vec<_> = (0..3).map(|_| registry.enter(console("a"), "", None).unwrap()).collect();
        registry.end_all();
        assert!(tickets.iter().all(|ticket| ticket.ended().is_cancelled()));
    }

    #[test]
    fn another_identity_is_another_client() {
        let registry = registry(10, 10);
        let first = registry.enter(console("a-b"), "console-a-b", None).unwrap();
        let second = registry.enter(console("a"), "console-a-b", None).unwrap();
        assert!(!first.ended().is_cancelled() && !second.replaces());
        let (third, fourth) =
            (registry.enter(console("a"), "", None).unwrap(), registry.enter(console("a"), "", None).unwrap());
        assert_ne!(third.client_id(), fourth.client_id());
    }

    #[test]
    fn limits_hold_and_a_takeover_needs_no_place_of_its_own() {
        let registry = registry(3, 2);
        let first = registry.enter(console("a"), "1", None).unwrap();
        let _second = registry.enter(console("a"), "2", None).unwrap();
        assert_eq!(registry.enter(console("a"), "3", None).unwrap_err(), Full::Identity);
        let third = registry.enter(console("b"), "1", None).unwrap();
        assert_eq!(registry.enter(console("c"), "1", None).unwrap_err(), Full::Broker);
        let newer = registry.enter(console("a"), "1", None).unwrap();
        assert!(first.ended().is_cancelled());
        drop((first, third));
        assert_eq!(registry.enter(console("a"), "3", None).unwrap_err(), Full::Identity);
        drop(newer);
        registry.enter(console("a"), "3", None).unwrap();
    }
}

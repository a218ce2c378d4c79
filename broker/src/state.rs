//! State that all connections share.

use std::{
    sync::{Arc, RwLock},
    time::Instant,
};

use tokio::time::interval;
use tokio_util::sync::CancellationToken;

use super::{
    REMOVALS_AT_A_TIME,
    access::AccessRules,
    exchange::Exchange,
    limits::BrokerLimits,
    mailbox::MessagePool,
    registry::{Registry, RevokedClients},
    revoked::RevokedSerials,
    router::RouterHandle,
    stats::{BrokerStats, Counters},
    tls::CurrentTls,
    users::Users,
};

/// The state that all connections share.
pub(super) struct BrokerState {
    pub(super) rules: Arc<AccessRules>,
    pub(super) limits: BrokerLimits,
    pub(super) started: Instant,
    pub(super) started_ms: u64,
    pub(super) counters: Arc<Counters>,
    /// The TLS configuration of handshakes.
    pub(super) handshakes: CurrentTls,
    pub(super) revoked: Arc<RevokedSerials>,
    /// The users with passwords, if there is a listener for them.
    pub(super) users: Option<RwLock<Users>>,
    pub(super) registry: Arc<Registry>,
    pub(super) hub: Arc<RouterHandle>,
    pub(super) exchange: Arc<Exchange>,
    /// What waits for all sessions together.
    pub(super) pool: Arc<MessagePool>,
    pub(super) stop: CancellationToken,
}

impl BrokerState {
    /// Signals everything to end.
    pub(super) fn end(&self) {
        self.stop.cancel();
        self.registry.end_all();
    }

    pub(super) fn stats(&self) -> BrokerStats {
        let exchange = self.exchange.figures();
        let (retained, retained_bytes) = exchange.retained;
        BrokerStats {
            uptime_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            connections: self.registry.connections() as u64,
            connections_v5: self.counters.connections_v5.get(),
            sessions_asleep: self.registry.asleep() as u64,
            subscriptions: exchange.subscriptions as u64,
            mailbox_bytes: self.pool.used() as u64,
            mailbox_most_bytes: self.registry.most_queued() as u64,
            retained: retained as u64,
            retained_bytes: retained_bytes as u64,
            retained_most_bytes: exchange.retained_most as u64,
            retained_expired_total: exchange.expired,
            journal: exchange.journal.map(Into::into),
            ..self.counters.stats()
        }
    }

    /// Publishes the broker's own topics while a client reads them.
    pub(super) async fn tell(self: Arc<Self>) {
        let mut every = interval(super::sys_topics::EVERY);
        let tell = async {
            loop {
                every.tick().await;
                if self.exchange.is_watched() {
                    super::sys_topics::messages(&self.stats())
                        .iter()
                        .for_each(|message| self.exchange.distribute_system(message));
                }
            }
        };
        self.stop.run_until_cancelled(tell).await;
    }

    /// Clears retained messages of revoked identities, once their last wills are published. Subscribers get an empty
    /// message for each.
    pub(super) async fn forget_revoked(self: Arc<Self>, clients: RevokedClients) {
        let forget = async {
            for former in clients.asleep {
                super::connection::end_session(&self, former).await;
            }
            for gone in clients.ending {
                gone.cancelled().await;
            }
            // An identity with another certificate by now publishes its state itself.
            let removals = self
                .exchange
                .removals(|identity, serial| self.revoked.contains(serial) && !self.registry.is_connected(identity));
            self.counters.retained_revoked.add(removals.len() as u64);
            for removals in removals.chunks(REMOVALS_AT_A_TIME) {
                // An error means that the broker stops; the list applies again when it starts.
                let _ = self.hub.publish(removals.to_vec()).await.await;
            }
        };
        self.stop.run_until_cancelled(forget).await;
    }

    /// Maintains the file of the retained messages.
    pub(super) async fn tend(self: Arc<Self>) {
        let alarm = self.exchange.alarm();
        while self.stop.run_until_cancelled(alarm.notified()).await.is_some() {
            self.exchange.tend();
        }
    }
}

impl std::fmt::Debug for BrokerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("rules", &self.rules).field("limits", &self.limits).finish_non_exhaustive()
    }
}

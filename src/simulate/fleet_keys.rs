//! The keys that the console may sign with. They are the same for all hosts, so the simulated ones share them.

use std::sync::{Arc, PoisonError, RwLock};

use muster_topics::{
    command_keys::{CommandKeys, KnownKeys},
    join::Membership,
    numbered::NumberedKind,
};

use muster_agent::{join::MemberIdentity, store::StoreError};

use super::store::Store;

/// The keys of the fleet, in memory and in the simulation's store.
#[derive(Debug)]
pub(super) struct FleetKeys {
    store: Store,
    membership: RwLock<Arc<Membership>>,
    /// Held while new keys are stored.
    storing: tokio::sync::Mutex<()>,
}

impl FleetKeys {
    /// Creates it with what the store has of the fleet.
    pub(super) fn new(store: Store, membership: Membership) -> Self {
        Self { store, membership: RwLock::new(Arc::new(membership)), storing: tokio::sync::Mutex::default() }
    }

    /// What all hosts share, with the keys to verify with.
    pub(super) fn membership(&self) -> Arc<Membership> {
        Arc::clone(&self.membership.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The keys as a host reports them, with the roots that it has joined with: it takes no others.
    pub(super) fn known_by(&self, identity: &MemberIdentity) -> KnownKeys {
        KnownKeys { ids: self.membership().known_keys().ids, ..identity.known_keys() }
    }

    /// Stores newer keys, which one of the hosts was sent, for all of them.
    pub(super) async fn set(&self, number: u64, told: &CommandKeys) -> Result<(), StoreError> {
        let _storing = self.storing.lock().await;
        let mut new = Membership::clone(&self.membership());
        if new.number(NumberedKind::CommandKeys) >= number {
            return Ok(());
        }
        new.command_keys.clone_from(&told.keys);
        new.numbers.insert(NumberedKind::CommandKeys, number);
        self.store.set_membership(&new).await?;
        *self.membership.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
        Ok(())
    }
}

//! Keeps the host's identity, which its renewal changes, and the console when it replaces its keys or has other
//! addresses.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use muster_base::crash;
use muster_topics::{address::Addresses, command_keys::CommandKeys, join::Membership, numbered::NumberedKind};
use tokio::sync::watch;

use super::{
    address,
    join::{self, JoinError, MemberIdentity},
};

/// The host's identity: its file, and a watch that everybody follows.
#[derive(Clone, Debug)]
pub(super) struct IdentityKeeper(Arc<KeeperState>);

#[derive(Debug)]
struct KeeperState {
    folder: PathBuf,
    identity: watch::Sender<Arc<MemberIdentity>>,
    /// Held while a change is stored, so that none overwrites another.
    changing: Mutex<()>,
}

impl IdentityKeeper {
    /// Creates it for the identity that is stored in `folder`.
    pub(super) fn new(folder: PathBuf, identity: MemberIdentity) -> Self {
        let identity = watch::Sender::new(Arc::new(identity));
        Self(Arc::new(KeeperState { folder, identity, changing: Mutex::default() }))
    }

    /// Follows the identity.
    pub(super) fn watch(&self) -> watch::Receiver<Arc<MemberIdentity>> {
        self.0.identity.subscribe()
    }

    /// The present identity.
    pub(super) fn present(&self) -> Arc<MemberIdentity> {
        self.0.identity.borrow().clone()
    }

    /// Stores a renewed identity, and uses it. Its keys of the console are taken as they are: they came from the console
    /// just now, over a connection that nobody else could answer.
    pub(super) fn renewed(&self, mut new: MemberIdentity) -> Result<(), JoinError> {
        self.change(|present| {
            // Addresses may have come by the bus meanwhile, or the console may be an older one.
            let number = present.membership.number(NumberedKind::HostAddresses);
            address::take_newer(&mut new.membership, number, present.membership.addresses.as_ref());
            new
        })
    }

    /// Stores further addresses of the fleet, unless newer ones are known, and uses them.
    pub(super) fn set_addresses(&self, number: u64, told: &Addresses) -> Result<(), JoinError> {
        self.change(|present| {
            let mut new = present.clone();
            address::take_newer(&mut new.membership, number, Some(told));
            new
        })
    }

    /// Stores the keys that the console's document says, and uses them.
    pub(super) fn set_keys(&self, number: u64, told: &CommandKeys) -> Result<(), JoinError> {
        self.change(|present| present.with_keys_of(number, told))
    }

    /// Stores only the keys and the root certificates of a renewal, and uses them.
    pub(super) fn take_keys(&self, new: &Membership) -> Result<(), JoinError> {
        self.change(|present| present.with_keys_of_renewal(new))
    }

    fn change(&self, change: impl FnOnce(&MemberIdentity) -> MemberIdentity) -> Result<(), JoinError> {
        let _changing = self.0.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let new = change(&self.present());
        crash::point("keep identity", "before");
        join::save(&self.0.folder, &new)?;
        crash::point("keep identity", "after");
        self.0.identity.send_replace(Arc::new(new));
        Ok(())
    }
}

//! Cancellation tokens of running commands, by command id.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use muster_topics::name::CommandId;
use tokio_util::sync::CancellationToken;

/// Running commands that can be cancelled.
#[derive(Clone, Debug, Default)]
pub(super) struct CancelTokens(pub(super) Arc<Mutex<BTreeMap<CommandId, CancellationToken>>>);

impl CancelTokens {
    /// Registers a command as cancellable; returns `None` if there are `max` already.
    pub(super) fn enter(&self, id: CommandId, max: usize) -> Option<CancellationToken> {
        let mut tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if tokens.len() >= max {
            return None;
        }
        let token = CancellationToken::new();
        tokens.insert(id, token.clone());
        Some(token)
    }

    /// Removes a command that has ended.
    pub(super) fn leave(&self, id: CommandId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// Cancels a command, if it is running.
    pub(super) fn cancel(&self, id: CommandId) {
        let tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.get(&id).into_iter().for_each(CancellationToken::cancel);
    }
}

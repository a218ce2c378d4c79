//! The console's numbered documents: where each kind of them is stored and followed.

use muster_session::signed::SignedText;
use muster_topics::numbered::{NumberedContent, NumberedDocument};

use super::{join::JoinError, main_loop::AgentLoop, store::StoreError};

/// A numbered document could not be stored.
#[derive(Debug)]
pub(super) enum NumberedError {
    /// The store failed.
    Store(StoreError),
    /// The files of the membership, where it is stored, failed.
    Identity(JoinError),
}

impl From<StoreError> for NumberedError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<JoinError> for NumberedError {
    fn from(error: JoinError) -> Self {
        Self::Identity(error)
    }
}

impl AgentLoop {
    /// Stores a document whose number is newer than the present one, and follows it.
    pub(super) async fn set_numbered(
        &mut self,
        document: &NumberedDocument,
        signed: &SignedText,
    ) -> Result<(), NumberedError> {
        let number = document.number;
        match &document.content {
            NumberedContent::AlertRules(rules) => self.set_alert_rules(number, rules).await?,
            NumberedContent::HostLabels(labels) => self.set_host_labels(number, labels, signed).await?,
            NumberedContent::CommandKeys(keys) => self.set_command_keys(number, keys)?,
            NumberedContent::HostAddresses(addresses) => self.set_addresses(number, addresses)?,
        }
        Ok(())
    }
}

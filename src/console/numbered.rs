//! Numbered documents (rules for alerts, labels, keys, addresses): which number hosts should have of each kind, and the one way
//! to send them ([`super::document_sync`] says when).

use std::sync::Arc;

use muster_base::clock::now_ms;
use muster_topics::{
    Millis, V1,
    command_keys::KnownKeys,
    name::HostId,
    numbered::{NumberedContent, NumberedDocument, NumberedKind, Numbers},
    topic::{HostTopic, Topic},
};

use super::{
    address, alert,
    error::Error,
    label,
    owed_documents::DocumentSync,
    rotation,
    state::{ConsoleState, HostMessages},
};

impl HostMessages {
    /// Which hosts have which number of this kind.
    pub(super) fn sync(&self, kind: NumberedKind) -> &DocumentSync {
        match kind {
            NumberedKind::AlertRules => &self.rules,
            NumberedKind::HostLabels => &self.labels.tellings,
            NumberedKind::CommandKeys => &self.keys,
            NumberedKind::HostAddresses => &self.addresses.tellings,
        }
    }

    /// Handles that a host came online: it may not have received earlier documents.
    pub(super) fn host_connected(&self, host: HostId) {
        for kind in NumberedKind::ALL {
            self.sync(kind).host_connected(host);
        }
    }

    /// Handles the removal of a host.
    pub(super) fn forget_documents(&self, host: HostId) {
        self.labels.forget(host);
        for kind in NumberedKind::ALL {
            self.sync(kind).forget(host);
        }
    }
}

/// Handles what a host has reported of its numbered documents, and of its keys.
pub(super) fn confirm(shared: &ConsoleState, host: HostId, numbers: &Numbers, keys: &KnownKeys, now: Millis) {
    for kind in NumberedKind::ALL {
        let has = numbers.get(&kind).copied();
        match kind {
            NumberedKind::HostLabels => shared.hosts.labels.confirm(host, has, now),
            NumberedKind::CommandKeys => rotation::confirm(shared, host, keys, has.unwrap_or_default(), now),
            NumberedKind::AlertRules | NumberedKind::HostAddresses => shared.hosts.sync(kind).confirm(host, has, now),
        }
    }
}

/// Returns what a host should have now, with its number; `None` if nothing is sent to it. `ahead` is the number that the host
/// has, if that is newer, from a store that was lost since.
async fn present(
    shared: &ConsoleState,
    kind: NumberedKind,
    host: HostId,
    ahead: u64,
) -> Result<Option<(u64, NumberedContent)>, Error> {
    match kind {
        NumberedKind::AlertRules => alert::present(shared, host, ahead).await.map(Some),
        NumberedKind::HostLabels => label::present(shared, host).await,
        NumberedKind::CommandKeys => rotation::present(shared, ahead).await.map(Some),
        NumberedKind::HostAddresses => address::present(shared, host, ahead).await,
    }
}

/// Sends one host what it should have. Returns the number that was sent, if there is a connection.
pub(super) async fn tell(
    shared: &Arc<ConsoleState>,
    kind: NumberedKind,
    host: HostId,
    ahead: u64,
) -> Result<Option<u64>, Error> {
    let Some((number, content)) = present(shared, kind, host, ahead).await? else { return Ok(None) };
    let issued_ms = shared.hosts.signing_time.careful_ms(now_ms());
    let body = NumberedDocument { v: V1, host, issued_ms, number, content };
    let signed = shared.authority.keys().signer.sign(host.slot(), &body).await;
    let bytes = signed.map_err(|error| rotation::unsigned("signing a numbered document", error))?;
    let is_sent = shared.hosts.link.publish_in_turn(Topic::Host(host, HostTopic::Command), bytes).await;
    Ok(is_sent.then_some(number))
}

//! Sends documents: the signed head, retained, and behind it the body, unless that is long or holds values that observers of the broker
//! must not read. Hosts fetch what they miss.
//!
//! When the console is connected again, the broker may have lost retained messages: then all heads are sent again, in batches.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use muster_base::clock::now_ms;
use muster_topics::{
    V1,
    desired::{BODY_ON_TOPIC_MAX_BYTES, DesiredHead, DocumentRequest},
    name::{Digest, HostId},
    topic::{HostTopic, Topic},
};
use tokio_util::sync::CancellationToken;

use super::table::DesiredTable;
use crate::{
    error::Error,
    rotation,
    state::ConsoleState,
    store::desired::{self, DocumentRow},
};

/// The most hosts in a batch.
const BATCH: usize = 500;
/// The most bodies of a batch that are in memory, with [`BODY_ON_TOPIC_MAX_BYTES`] each: 12 MiB. Hosts of further ones fetch
/// theirs.
const BODIES_MAX: usize = 256;
/// How long to wait after a failure.
const PAUSE: Duration = Duration::from_secs(5);

/// Sends documents until the console stops.
pub(crate) async fn run(shared: Arc<ConsoleState>, shutdown: CancellationToken) {
    let mut connected = shared.hosts.link.connected.clone();
    let all = async {
        let mut was_connected = false;
        loop {
            let is_connected = *connected.borrow_and_update();
            if is_connected && !was_connected {
                send_all_again(&mut shared.hosts.desired.table());
            }
            was_connected = is_connected;
            if is_connected && let Err(error) = send_due(&shared).await {
                tracing::error!(%error, "documents of hosts cannot be sent; trying again");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            tokio::select! {
                () = shared.hosts.desired.due.notified() => (),
                changed = connected.changed() => if changed.is_err() { return },
            }
        }
    };
    tokio::select! {
        () = all => (),
        () = shutdown.cancelled() => (),
    }
}

/// Marks all documents as to be sent.
fn send_all_again(table: &mut DesiredTable) {
    let DesiredTable { hosts, to_send, .. } = table;
    to_send.extend(hosts.iter().filter(|(_, entry)| entry.document.is_some()).map(|(host, _)| *host));
}

/// A document to send.
struct DueDocument {
    host: HostId,
    document: DocumentRow,
    /// Whether the host has it already, so that only the broker lacks it.
    is_known: bool,
}

/// Sends all documents that are due, batch by batch.
async fn send_due(shared: &ConsoleState) -> Result<(), Error> {
    loop {
        let due = take(&mut shared.hosts.desired.table());
        if due.is_empty() {
            return Ok(());
        }
        let hosts: Vec<HostId> = due.iter().map(|one| one.host).collect();
        match send(shared, due).await {
            Ok(true) => {}
            Ok(false) => {
                // The next connection sends all again.
                return Ok(());
            }
            Err(error) => {
                shared.hosts.desired.table().to_send.extend(hosts);
                return Err(error);
            }
        }
    }
}

/// Takes a batch of what is due. Hosts that may not have a document are sent it once they may.
fn take(table: &mut DesiredTable) -> Vec<DueDocument> {
    let mut due = Vec::new();
    while let Some(host) = table.to_send.pop_first() {
        let Some(entry) = table.hosts.get(&host).filter(|entry| entry.may_have_document()) else { continue };
        let Some(document) = &entry.document else { continue };
        due.push(DueDocument { host, document: document.clone(), is_known: entry.is_current() });
        if due.len() == BATCH {
            break;
        }
    }
    due
}

/// Sends a batch. Returns false if there is no connection any more.
async fn send(shared: &ConsoleState, due: Vec<DueDocument>) -> Result<bool, Error> {
    let bodies = bodies(shared, &due).await?;
    let now = now_ms();
    let mut sent = Vec::new();
    for DueDocument { host, document, is_known } in due {
        let head = DesiredHead {
            v: V1,
            host,
            mark: document.mark,
            issued_ms: shared.hosts.signing_time.careful_ms(now),
            digest: document.digest.clone(),
            size_bytes: document.size_bytes,
        };
        let signed = shared.authority.keys().signer.sign(&head).await;
        let bytes = signed.map_err(|error| rotation::unsigned("signing a host's document", error))?;
        let topic = || Topic::Host(host, HostTopic::Desired);
        if !shared.hosts.link.publish_in_turn(topic(), bytes).await {
            return Ok(false);
        }
        if let Some(body) = bodies.get(&document.digest).filter(|_| !is_known)
            && !shared.hosts.link.publish_unretained(topic(), body.as_bytes().to_vec()).await
        {
            return Ok(false);
        }
        sent.push((host, document));
    }
    let unsent: Vec<(HostId, u64)> = sent
        .iter()
        .filter(|(_, document)| !document.is_sent)
        .map(|(host, document)| (*host, document.mark.generation))
        .collect();
    if !unsent.is_empty() {
        desired::set_sent(shared.store.write(), &unsent).await?;
    }
    let mut table = shared.hosts.desired.table();
    for (host, document) in sent {
        let Some(entry) = table.hosts.get_mut(&host) else { continue };
        entry.sent = Some((document.mark, now));
        if let Some(present) = entry.document.as_mut().filter(|present| present.mark == document.mark) {
            present.is_sent = true;
        }
    }
    Ok(true)
}

/// Returns those bodies of a batch that go over the broker.
async fn bodies(shared: &ConsoleState, due: &[DueDocument]) -> Result<HashMap<Digest, String>, Error> {
    let is_on_topic = |document: &DocumentRow| {
        !document.is_secret && usize::try_from(document.size_bytes).is_ok_and(|size| size <= BODY_ON_TOPIC_MAX_BYTES)
    };
    let wanted = due.iter().filter(|one| !one.is_known).map(|one| &one.document);
    let wanted: HashSet<&Digest> = wanted.filter(|one| is_on_topic(one)).map(|one| &one.digest).collect();
    let mut bodies = HashMap::new();
    for digest in wanted.into_iter().take(BODIES_MAX) {
        if let Some(body) = desired::body(shared.store.read(), digest).await? {
            bodies.insert(digest.clone(), body);
        }
    }
    Ok(bodies)
}

/// Asks a host to hand in the document that it has.
pub(super) async fn ask_for_document(shared: &ConsoleState, host: HostId) -> Result<(), Error> {
    let now = now_ms();
    let request = DocumentRequest { v: V1, host, issued_ms: shared.hosts.signing_time.careful_ms(now) };
    let signed = shared.authority.keys().signer.sign(&request).await;
    let bytes = signed.map_err(|error| rotation::unsigned("signing a request for a document", error))?;
    if shared.hosts.link.publish_in_turn(Topic::Host(host, HostTopic::Command), bytes).await
        && let Some(entry) = shared.hosts.desired.table().hosts.get_mut(&host)
    {
        entry.asked_ms = Some(now);
    }
    Ok(())
}

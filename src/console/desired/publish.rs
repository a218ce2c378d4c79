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
                tracing::error!(%error, "documents of hosts cannot be sent; retrying");
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
        let signed = shared.authority.keys().signer.sign(host.slot(), &head).await;
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

/// Asks a host to hand in what it has of the console: document and labels.
pub(super) async fn ask_for_document(shared: &ConsoleState, host: HostId) -> Result<(), Error> {
    let now = now_ms();
    let request = DocumentRequest { v: V1, host, issued_ms: shared.hosts.signing_time.careful_ms(now) };
    let signed = shared.authority.keys().signer.sign(host.slot(), &request).await;
    let bytes = signed.map_err(|error| rotation::unsigned("signing a request for a document", error))?;
    if shared.hosts.link.publish_in_turn(Topic::Host(host, HostTopic::Command), bytes).await
        && let Some(entry) = shared.hosts.desired.table().hosts.get_mut(&host)
    {
        entry.asked_ms = Some(now);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use muster_topics::desired::{DesiredMark, DesiredReport};

    use super::*;
    use crate::{
        desired::table::{HostEntry, NewerLabels},
        store,
        testing::Fixture,
    };

    /// A host with a document whose body is this.
    fn entry(body: &str) -> HostEntry {
        let document = DocumentRow {
            mark: DesiredMark { epoch: 1, generation: 1 },
            digest: Digest::of(body.as_bytes()),
            size_bytes: body.len() as u64,
            is_secret: false,
            made_ms: 1,
            is_sent: false,
        };
        let report = Some(DesiredReport::default());
        HostEntry { document: Some(document), report, ..HostEntry::default() }
    }

    #[test]
    fn all_that_is_due_is_taken_in_batches_once() {
        let mut table = DesiredTable::default();
        for _ in 0..2 * BATCH + 200 {
            table.hosts.insert(HostId::random(), entry("body"));
        }
        let (open, unheard) = (HostId::random(), HostId::random());
        table.hosts.insert(open, HostEntry { newer_labels: Some(NewerLabels::new(7)), ..entry("body") });
        table.hosts.insert(unheard, HostEntry { report: None, ..entry("body") });
        send_all_again(&mut table);
        let mut all = HashSet::new();
        for count in [BATCH, BATCH, 200, 0] {
            let batch = take(&mut table);
            assert_eq!(batch.len(), count);
            all.extend(batch.iter().map(|due| due.host));
        }
        assert_eq!(all.len(), 2 * BATCH + 200, "each host once");
        assert!(!all.contains(&open) && !all.contains(&unheard));
        // Another connection sends all again.
        send_all_again(&mut table);
        assert_eq!(take(&mut table).len(), BATCH);
    }

    #[tokio::test]
    async fn bodies_of_a_batch_are_limited_and_those_that_hosts_have_are_not_read() {
        let fixture = Fixture::new().await;
        let shared = fixture.shared();
        // No comparison sweeps what no host has.
        let changing = shared.hosts.desired.changing.lock().await;
        let due = |place: usize, is_known| {
            let body = format!("body {place}");
            DueDocument { host: HostId::random(), document: entry(&body).document.unwrap(), is_known }
        };
        let mut all: Vec<DueDocument> = (0..BODIES_MAX + 50).map(|place| due(place, false)).collect();
        let mut transaction = shared.store.begin().await.unwrap();
        for (place, one) in all.iter().enumerate() {
            let body = format!("body {place}");
            store::desired::put_body(&mut transaction, &one.document.digest, &body, false).await.unwrap();
        }
        transaction.commit().await.unwrap();
        assert_eq!(bodies(shared, &all).await.unwrap().len(), BODIES_MAX);
        // Many hosts share one; secrets and what is known already do not go over the broker.
        all.truncate(3);
        all.push(due(0, false));
        assert_eq!(bodies(shared, &all).await.unwrap().len(), 3);
        (all[1].is_known, all[2].document.is_secret) = (true, true);
        assert_eq!(bodies(shared, &all).await.unwrap().into_values().collect::<Vec<_>>(), ["body 0"]);
        all[0].document.size_bytes = BODY_ON_TOPIC_MAX_BYTES as u64 + 1;
        all.pop();
        assert_eq!(bodies(shared, &all).await.unwrap().len(), 0);
        drop(changing);
        fixture.running.stop().await;
    }

    #[tokio::test]
    async fn batch_that_could_not_be_sent_is_sent_with_the_next_connection() {
        let fixture = Fixture::new().await;
        let shared = fixture.shared();
        let host = HostId::random();
        {
            let mut table = shared.hosts.desired.table();
            table.hosts.insert(host, entry("body"));
            table.to_send.insert(host);
        }
        // There is no broker.
        send_due(shared).await.unwrap();
        let mut table = shared.hosts.desired.table();
        let sent = table.hosts.get(&host).unwrap();
        assert!(sent.sent.is_none() && !sent.document.as_ref().unwrap().is_sent);
        send_all_again(&mut table);
        assert_eq!(take(&mut table).len(), 1);
    }
}

//! Measurements: batches of hosts are unpacked and parsed where that keeps nobody waiting, committed
//! to the time-series store and to the queues of the stores elsewhere, and then acknowledged.
//!
//! **Invariant: a batch is acknowledged to its host after it is committed to all of these**, and not if one of them failed.
//!
//! The tag `host` of a point is what its topic says, whatever the batch says.

use std::{
    collections::{BTreeSet, HashSet},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use muster_series::SeriesError;
use muster_topics::{
    PAYLOAD_MAX_BYTES,
    ack::Numbered,
    metric::{self, BatchError, Point},
    name::HostId,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::effects::{Effects, Refreshes};
use crate::{
    clock::now_ms,
    console::{
        Change, Shared,
        external::QueueError,
        link::Inbound,
        store::{self, StoreError},
    },
};

/// The most batches that are committed together. One has about 60 values.
const BATCHES_MAX: usize = 128;
/// What waits after the store failed, so that a full disk does not fill the log too.
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// A batch as it came: who sent it, and the bytes.
type Raw = (HostId, Vec<u8>);

/// A batch that could not be read: who sent it, its number if that could be, and why not.
type Unread = (HostId, Option<Numbered>, BatchError);

/// A batch that could be read.
#[derive(Debug)]
struct Batch {
    host: HostId,
    id: Numbered,
    points: Vec<Point>,
}

/// Takes batches from the link until its queue is closed or the console stops.
pub(in crate::console) async fn run(
    shared: Arc<Shared>,
    mut queue: mpsc::Receiver<Inbound>,
    shutdown: CancellationToken,
) {
    let mut messages = Vec::with_capacity(BATCHES_MAX);
    loop {
        tokio::select! {
            taken = queue.recv_many(&mut messages, BATCHES_MAX) => if taken == 0 { return },
            () = shutdown.cancelled() => return,
        }
        let mut receipts = Vec::with_capacity(messages.len());
        let mut raw: Vec<Raw> = Vec::with_capacity(messages.len());
        for message in messages.drain(..) {
            receipts.push(message.receipt);
            raw.extend(message.topic.host().map(|host| (host, message.payload)));
        }
        let batches = tokio::task::spawn_blocking(move || raw.into_iter().map(read).collect::<Vec<_>>()).await;
        let batches = match batches {
            Ok(batches) => members(&shared, batches).await,
            Err(error) => {
                // A fault in our own code: the batches come again on the next connection.
                tracing::error!(%error, "measurements could not be read");
                continue;
            }
        };
        // Not cut short by a shutdown: what was taken is stored before the store is closed.
        let points = points(&batches);
        let values: usize = points.iter().map(|point| point.fields.len()).sum();
        shared.received.fetch_add(values as u64, Ordering::Relaxed);
        let stored = commit(&shared, points).await;
        for receipt in receipts {
            receipt.acknowledge();
        }
        if let Err(error) = stored {
            // It is never the batches' fault (`SeriesStore::append`, or a queue's disk). Only the broker is told that they came:
            // their hosts keep them, and send them again, ever more seldom, until they are acknowledged.
            tracing::error!(%error, batches = batches.len(), "measurements cannot be stored; they have to come again");
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(STORE_PAUSE) => continue,
            }
        }
        let mut effects = Effects::default();
        for batch in batches {
            effects.acks(batch.host).metrics.insert(batch.id);
            shared.fleet.note(batch.host, &batch.points);
            effects.changes.push(Change::Metrics(batch.host));
        }
        effects.perform(&shared, &mut Refreshes::default(), now_ms()).await;
    }
}

/// Points were not committed everywhere.
#[derive(Debug, thiserror::Error)]
pub(in crate::console) enum RecordError {
    #[error(transparent)]
    Series(#[from] SeriesError),
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// Commits points to the embedded store and to the queue of each store elsewhere. Where one of them fails others may have the points,
/// which changes nothing when they come again.
pub(in crate::console) async fn commit(shared: &Shared, points: Vec<Point>) -> Result<(), RecordError> {
    let points: Arc<[Point]> = points.into();
    let (stored, queued) = tokio::join!(shared.series.append(&points), shared.external.append(&points));
    stored?;
    Ok(queued?)
}

/// Unpacks and parses one batch. Of a faulty one, what can be known is its number: that is
/// acknowledged too, or it would come for ever.
fn read((host, bytes): Raw) -> Result<Batch, Unread> {
    let too_long = || BatchError::Unpack(std::io::Error::other(format!("{} bytes are too many", bytes.len())));
    let read = if bytes.len() > PAYLOAD_MAX_BYTES { Err(too_long()) } else { metric::decode(&bytes) };
    match read {
        Ok((id, points)) => Ok(Batch { host, id, points: attributed(host, points) }),
        Err(error) => Err((host, metric::batch_id(&bytes), error)),
    }
}

/// Puts the true host into every point.
fn attributed(host: HostId, mut points: Vec<Point>) -> Vec<Point> {
    for point in &mut points {
        point.tags.retain(|(name, _)| name != "host");
        point.tags.push(("host".to_owned(), host.to_string()));
        point.tags.sort();
    }
    points
}

/// Leaves out what cannot be read, and who has not joined. Faulty batches stay as empty ones, if
/// they have a number that can be acknowledged.
async fn members(shared: &Shared, read: Vec<Result<Batch, Unread>>) -> Vec<Batch> {
    let mut batches = Vec::with_capacity(read.len());
    for one in read {
        match one {
            Ok(batch) => batches.push(batch),
            Err((host, id, error)) => {
                tracing::warn!(host.id = %host, %error, "a faulty batch of measurements is dropped");
                batches.extend(id.map(|id| Batch { host, id, points: Vec::new() }));
            }
        }
    }
    match known(shared, batches.iter().map(|batch| batch.host).collect()).await {
        Ok(known) => batches.retain(|batch| known.contains(&batch.host)),
        // Not acknowledged to their hosts, they come again.
        Err(error) => {
            tracing::error!(%error, "members cannot be read; measurements have to come again");
            batches.clear();
        }
    }
    batches
}

/// Those of some hosts that have joined.
async fn known(shared: &Shared, hosts: BTreeSet<HostId>) -> Result<HashSet<HostId>, StoreError> {
    let mut connection = shared.store.read().acquire().await?;
    let hosts: Vec<HostId> = hosts.into_iter().collect();
    store::host::members(&mut connection, &hosts).await
}

fn points(batches: &[Batch]) -> Vec<Point> {
    batches.iter().flat_map(|batch| batch.points.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_the_topics() {
        let host = HostId::random();
        let text = "# v=1 epoch=1 seq=7\ncpu,host=somebody-else,unit=u busy=1 5\ncpu busy=2 6\n";
        for bytes in [text.as_bytes().to_vec(), metric::pack(text)] {
            let batch = read((host, bytes)).unwrap();
            assert_eq!(batch.id, Numbered { epoch: 1, seq: 7 });
            for point in &batch.points {
                let hosts: Vec<_> = point.tags.iter().filter(|(name, _)| name == "host").collect();
                assert_eq!(hosts, [&("host".to_owned(), host.to_string())]);
                assert!(point.tags.is_sorted());
            }
        }
    }

    #[test]
    fn a_faulty_batch_keeps_its_number() {
        let host = HostId::random();
        let numbered = |text: &str| read((host, text.as_bytes().to_vec())).unwrap_err().1;
        assert_eq!(numbered("# v=1 epoch=1 seq=7\nnonsense\n"), Some(Numbered { epoch: 1, seq: 7 }));
        assert_eq!(numbered("nonsense"), None);
        let long = format!("# v=1 epoch=1 seq=7\n{}", "m f=1 1\n".repeat(PAYLOAD_MAX_BYTES / 8));
        assert!(matches!(read((host, long.into_bytes())), Err((_, _, BatchError::Unpack(_)))));
    }
}

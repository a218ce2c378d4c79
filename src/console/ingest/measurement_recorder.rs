//! Records measurements: unpacks and parses batches of hosts on a blocking thread, commits them
//! to the time-series store and to the queues of the external stores, and then acknowledges them.
//!
//! Batches that arrive within [`GATHER`] are committed together: a commit costs a sync of the disk, a few wake-ups between two threads, and
//! a read of the list of members, whether it is of one batch or of ten. Hosts are in no hurry: acknowledgements are gathered for longer.
//!
//! **Invariant: a batch is acknowledged to its host after it is committed to all of these**, and not if one of them failed.
//! (The broker gets its acknowledgement either way: the host repeats what was not acknowledged to it.)
//!
//! The tag `host` of a point is taken from its topic, whatever the batch says.

use std::{
    collections::{BTreeSet, HashSet},
    ops::Range,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use muster_base::clock::now_ms;
use muster_guard::{LineKind, LineLimiter, log_peer};
use muster_rules::time;
use muster_series::{GATHER, GATHERED_MAX, SeriesError};
use muster_topics::{
    Millis, PAYLOAD_MAX_BYTES,
    ack::Numbered,
    diagnostic::Diagnostic,
    metric::{self, BatchError, Point},
    name::HostId,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::effects::{Effects, RefreshRequests};
use crate::{
    external::QueueError,
    host_share::{self, ShareKind, ShareUse},
    inbound::Inbound,
    page_change::PageChange,
    state::ConsoleState,
    store::{self, Store, StoreError},
};

/// The pause after a failure of the store, so that a full disk does not fill the log, too.
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// Log lines about unreadable batches of a host.
const FAULTY: LineKind = LineKind::new("faulty batches of measurements", 600);

/// A received batch: its sender, and the bytes.
type RawBatch = (HostId, Vec<u8>);

/// An unreadable batch: its sender, its number if known, and the reason.
type UnreadableBatch = (HostId, Option<Numbered>, BatchError);

/// The sender of a batch, its number, and the range of its points among those committed together.
type BatchSender = (HostId, Numbered, Range<usize>);

/// A parsed batch.
#[derive(Debug)]
struct ReadableBatch {
    host: HostId,
    id: Numbered,
    points: Vec<Point>,
}

/// Stores batches of the link until its queue is closed or the console stops.
pub(crate) async fn run(shared: Arc<ConsoleState>, mut queue: mpsc::Receiver<Inbound>, shutdown: CancellationToken) {
    let mut messages = Vec::with_capacity(GATHERED_MAX);
    loop {
        tokio::select! {
            taken = queue.recv_many(&mut messages, GATHERED_MAX) => if taken == 0 { return },
            () = shutdown.cancelled() => return,
        }
        // Cancel-safe: untaken messages stay in the queue, and taken ones are stored even during a shutdown.
        tokio::select! {
            () = gather(&mut queue, &mut messages) => (),
            () = shutdown.cancelled() => (),
        }
        let mut receipts = Vec::with_capacity(messages.len());
        let mut raw: Vec<RawBatch> = Vec::with_capacity(messages.len());
        for message in messages.drain(..) {
            receipts.push(message.receipt);
            raw.extend(message.topic.host().map(|host| (host, message.payload)));
        }
        let batches = tokio::task::spawn_blocking(move || raw.into_iter().map(read).collect::<Vec<_>>()).await;
        let batches = match batches {
            Ok(batches) => members(&shared, batches).await,
            Err(error) => {
                // An error in our own code: the batches arrive again on the next connection.
                tracing::error!(%error, "measurements could not be read");
                continue;
            }
        };
        // Not cut short by a shutdown: what was taken is stored before the store is closed.
        let (senders, points) = together(batches);
        let values: usize = points.iter().map(|point| point.fields.len()).sum();
        shared.measurements.received.fetch_add(values as u64, Ordering::Relaxed);
        let stored = commit(&shared, Arc::clone(&points)).await;
        for receipt in receipts {
            receipt.acknowledge();
        }
        if let Err(error) = stored {
            // This is never the batches' fault (`SeriesStore::append`, or a queue's disk). Only the broker gets an
            // acknowledgement: hosts keep the batches, and repeat them ever more rarely until they are acknowledged.
            tracing::error!(
                %error, hint = Diagnostic::of(&error).hint, batches = senders.len(),
                "measurements cannot be stored; hosts must send them again"
            );
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(STORE_PAUSE) => continue,
            }
        }
        let mut effects = Effects::default();
        for (host, id, of_it) in senders {
            effects.acks(host).metrics.insert(id);
            shared.measurements.latest.note(host, points.get(of_it).unwrap_or_default());
            effects.changes.push(PageChange::Metrics(host));
        }
        effects.perform(&shared, &mut RefreshRequests::default(), now_ms()).await;
        tell_shares(&shared).await;
    }
}

/// Says which hosts have nearly all series or bytes that they may have, or want more.
async fn tell_shares(shared: &ConsoleState) {
    for notice in shared.measurements.series.take_share_notices() {
        let Ok(host) = notice.value.parse::<HostId>() else { continue };
        // The one that did not find room is the first beyond them.
        let used = notice.series as u64 + u64::from(notice.is_full());
        let share = ShareUse { kind: ShareKind::Series, used, most: notice.series_max as u64 };
        // The store itself counts what it refuses.
        host_share::tell(shared, host, &share, 0, now_ms()).await;
    }
    for (host, (share, exceeded)) in shared.hosts.link.shares.take() {
        host_share::tell(shared, host, &share, exceeded, now_ms()).await;
    }
}

/// Takes further messages within [`GATHER`], as many as may be committed together; it does not wait if that many are
/// there.
async fn gather(queue: &mut mpsc::Receiver<Inbound>, messages: &mut Vec<Inbound>) {
    if messages.len() + queue.len() < GATHERED_MAX {
        tokio::time::sleep(GATHER).await;
    }
    while messages.len() < GATHERED_MAX
        && let Ok(message) = queue.try_recv()
    {
        messages.push(message);
    }
}

/// Points were not committed everywhere.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub(crate) enum RecordError {
    #[error(transparent)]
    #[diagnostic(transparent)]
    Series(#[from] SeriesError),
    #[error(transparent)]
    Queue(#[from] QueueError),
    #[error("the console's disk is full, and its reserve is not for measurements")]
    Full,
}

/// Commits points to the embedded store and to the queue of each external store. If one fails others may have the
/// points, which is harmless when they arrive again.
pub(crate) async fn commit(shared: &ConsoleState, points: impl Into<Arc<[Point]>>) -> Result<(), RecordError> {
    let points: Arc<[Point]> = points.into();
    if shared.store.is_short_of_room() {
        return Err(RecordError::Full);
    }
    let (stored, queued) =
        tokio::join!(shared.measurements.series.append(&points), shared.measurements.external.append(&points));
    stored?;
    Ok(queued?)
}

/// Decompresses and parses one batch. For an unreadable one the number is returned if known: it is acknowledged, too,
/// or it would arrive forever.
fn read((host, bytes): RawBatch) -> Result<ReadableBatch, UnreadableBatch> {
    let too_long = || BatchError::Unpack(std::io::Error::other(format!("{} bytes are too many", bytes.len())));
    let read = if bytes.len() > PAYLOAD_MAX_BYTES { Err(too_long()) } else { metric::decode(&bytes) };
    match read {
        Ok((id, points)) => Ok(ReadableBatch { host, id, points: dated(attributed(host, points), now_ms()) }),
        Err(error) => Err((host, metric::batch_id(&bytes), error)),
    }
}

/// Sets the true host in every point.
fn attributed(host: HostId, mut points: Vec<Point>) -> Vec<Point> {
    for point in &mut points {
        point.tags.retain(|(name, _)| name != "host");
        point.tags.push(("host".to_owned(), host.to_string()));
        point.tags.sort();
    }
    points
}

/// Dates measurements of a host whose clock cannot be right by their arrival: the newest is of now, and the others keep
/// their distances. They get the label `dated="receipt"`.
fn dated(mut points: Vec<Point>, now: Millis) -> Vec<Point> {
    let Some(newest_ms) = points.iter().map(|point| point.at_ms).max() else { return points };
    if points.iter().all(|point| time::can_be_true(point.at_ms, now)) {
        return points;
    }
    for point in &mut points {
        point.at_ms = now.saturating_sub(newest_ms.saturating_sub(point.at_ms));
        point.tags.push(("dated".to_owned(), "receipt".to_owned()));
        point.tags.sort();
    }
    points
}

/// Removes unreadable batches, and those of hosts that are not members. Unreadable ones with a number stay as empty
/// ones, to be acknowledged.
async fn members(shared: &ConsoleState, read: Vec<Result<ReadableBatch, UnreadableBatch>>) -> Vec<ReadableBatch> {
    let mut batches = Vec::with_capacity(read.len());
    for one in read {
        match one {
            Ok(batch) => batches.push(batch),
            Err((host, id, error)) => {
                let Diagnostic { cause, hint, .. } = Diagnostic::of(&error);
                let error = LineLimiter::shorten(&cause);
                log_peer!(WARN, host, FAULTY, host.id = %host, error, hint, "a faulty batch of measurements is dropped");
                batches.extend(id.map(|id| ReadableBatch { host, id, points: Vec::new() }));
            }
        }
    }
    match known(&shared.store, batches.iter().map(|batch| batch.host).collect()).await {
        Ok(known) => batches.retain(|batch| known.contains(&batch.host)),
        // They are not acknowledged, so they arrive again.
        Err(error) => {
            tracing::error!(%error, hint = error.hint(), "members cannot be read; hosts must send their measurements again");
            batches.clear();
        }
    }
    batches
}

/// Returns which of these hosts have joined.
async fn known(store: &Store, hosts: BTreeSet<HostId>) -> Result<HashSet<HostId>, StoreError> {
    let mut connection = store.read().acquire().await?;
    let hosts: Vec<HostId> = hosts.into_iter().collect();
    store::host::members(&mut connection, &hosts).await
}

/// Joins the points of all batches, with the range of each.
fn together(batches: Vec<ReadableBatch>) -> (Vec<BatchSender>, Arc<[Point]>) {
    let (mut senders, mut points) = (Vec::with_capacity(batches.len()), Vec::new());
    for batch in batches {
        let first = points.len();
        points.extend(batch.points);
        senders.push((batch.host, batch.id, first..points.len()));
    }
    (senders, points.into())
}

#[cfg(test)]
mod tests {
    use muster_topics::topic::{HostTopic, Topic};
    use tokio::time::Instant;

    use super::*;
    use crate::link::MessageReceipt;

    #[test]
    fn host_tag_comes_from_the_topic() {
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
    fn measurements_of_a_wrong_clock_are_dated_by_their_receipt() {
        let now = 1_800_000_000_000;
        let points = |times: [Millis; 2]| dated(times.map(|at_ms| Point::new("m", &[("a", "b")], at_ms)).to_vec(), now);
        for (times, wanted, marked) in [
            ([now - 10_000, now], [now - 10_000, now], false),
            ([5_000, 15_000], [now - 10_000, now], true),
            ([now + 400 * 86_400_000, now + 400 * 86_400_000 + 3], [now - 3, now], true),
        ] {
            let points = points(times);
            assert_eq!(points.iter().map(|point| point.at_ms).collect::<Vec<_>>(), wanted);
            let is_marked = |point: &Point| point.tags.contains(&("dated".to_owned(), "receipt".to_owned()));
            assert!(points.iter().all(|point| is_marked(point) == marked), "{points:?}");
        }
    }

    #[test]
    fn points_of_senders_are_separate() {
        let (one, other, none) = (HostId::random(), HostId::random(), HostId::random());
        let id = |seq| Numbered { epoch: 1, seq };
        let points = |values: &[f64]| values.iter().map(|value| Point::new("m", &[], 0).field("f", *value)).collect();
        let batches = vec![
            ReadableBatch { host: one, id: id(1), points: points(&[1.0, 2.0]) },
            ReadableBatch { host: none, id: id(2), points: points(&[]) },
            ReadableBatch { host: other, id: id(3), points: points(&[3.0]) },
        ];
        let (senders, all) = together(batches);
        assert_eq!(senders, [(one, id(1), 0..2), (none, id(2), 2..2), (other, id(3), 2..3)]);
        assert_eq!(all[..], points(&[1.0, 2.0, 3.0])[..]);
    }

    #[tokio::test]
    async fn batches_are_committed_together() {
        let (sender, mut queue) = mpsc::channel(2 * GATHERED_MAX);
        let one = || Inbound {
            topic: Topic::Host(HostId::random(), HostTopic::Metric),
            payload: Vec::new(),
            retained: false,
            receipt: MessageReceipt::none(),
            room: None,
        };
        for (waiting, soon, wanted) in [(0, 0, 1), (3, 2, 6), (2 * GATHERED_MAX - 2, 1, GATHERED_MAX)] {
            let (mut messages, began) = (vec![one()], Instant::now());
            for _ in 0..waiting {
                sender.send(one()).await.unwrap();
            }
            let send = async {
                for _ in 0..soon {
                    tokio::task::yield_now().await;
                    sender.send(one()).await.unwrap();
                }
            };
            let gathered = async {
                gather(&mut queue, &mut messages).await;
                (messages.len(), began.elapsed())
            };
            let ((), (count, took)) = tokio::join!(send, gathered);
            assert_eq!(count, wanted, "{waiting} {soon}");
            assert!(took >= GATHER || count == GATHERED_MAX, "{waiting} {soon}: {took:?}");
            while queue.try_recv().is_ok() {}
        }
    }

    #[test]
    fn faulty_batch_is_acknowledged() {
        let host = HostId::random();
        let numbered = |text: &str| read((host, text.as_bytes().to_vec())).unwrap_err().1;
        assert_eq!(numbered("# v=1 epoch=1 seq=7\nnonsense\n"), Some(Numbered { epoch: 1, seq: 7 }));
        assert_eq!(numbered("nonsense"), None);
        let long = format!("# v=1 epoch=1 seq=7\n{}", "m f=1 1\n".repeat(PAYLOAD_MAX_BYTES / 8));
        assert!(matches!(read((host, long.into_bytes())), Err((_, _, BatchError::Unpack(_)))));
    }
}

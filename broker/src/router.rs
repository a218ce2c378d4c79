//! rumqttd's router, contained so that no client can stop it and its death loses nothing.
//!
//! The router is a thread with a log. All publications go into that log under one topic, and come out of
//! it in the same order at one link, whose reader (`exchange`) distributes them. What rumqttd's router gets wrong
//! (retained messages, wills, filters, quality of service, slow readers) is not used.
//!
//! So it routes nothing: it is a queue in a thread of its own. A channel would be one, too, without canaries and
//! replacement; rumqttd is here because muster was asked to be built with it. `cargo bench -p muster-broker --bench router`
//! measures both (1,000,000 messages of 200 bytes, 5 rounds, two cores): through the router 2.3 million messages a second with
//! 0.53 µs of processor time for each, a lone one in 38 µs (at most 4.3 ms), and 20 MB of log stay resident; through a channel
//! 4.3 million, 0.33 µs, 0.6 µs (at most 52 µs), and half a megabyte stays.
//!
//! - [`RouterHandle::publish`] is the way in. The messages inside are bounded, which slows publishers down to the pace of
//!   distribution; and [`RouterHandle`] keeps them until they have come out, in order.
//! - [`RouterHandle::run`] reads the way out, passes each batch on, and notifies its publisher.
//! - A canary is published from time to time. If it does not come out, or the link breaks, the router is replaced, and the
//!   messages inside go into the new one: publishers and subscribers notice only a pause.
//!
//! **Invariant: the log never overflows.** It has four times the room of the messages that may be inside.

mod generation;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::{Instant, MissedTickBehavior, interval_at, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use self::generation::{RouterGeneration, RouterOutput};
use crate::{
    codec::Publication,
    limits::BrokerLimits,
    message::{BrokerMessage, QoS},
    stats::Counters,
};

/// The size of the log for each byte that may be in transit. rumqttd drops the oldest of [`SEGMENTS`] segments as a
/// whole, and counts neither a message's own overhead nor what is in a segment that was just begun.
const LOG_FACTOR: usize = 4;

/// The number of segments of the log.
const SEGMENTS: usize = 4;

/// How often a canary is sent, and how long it may take. A message takes microseconds, and under a storm some
/// milliseconds; a broker that hangs is noticed before most clients' keep-alive of half a minute.
const CANARY_EVERY: Duration = Duration::from_secs(5);
const CANARY_TIMEOUT: Duration = Duration::from_secs(10);

/// The pause before a dead router is replaced, so that repeated deaths do not make a busy loop.
const REPLACE_PAUSE: Duration = Duration::from_millis(200);

/// The router does not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the router cannot start")]
pub(crate) struct RouterError;

/// The reply when a batch has been distributed, with its refused messages. An error means that the broker stops.
pub(crate) type BatchReply = oneshot::Receiver<Vec<RefusedMessage>>;

/// A retained message that was neither retained nor distributed, because a limit is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefusedMessage {
    /// Its index in its batch.
    pub(crate) index: usize,
    pub(crate) message: BrokerMessage,
}

/// The handle of the router.
pub(crate) struct RouterHandle {
    /// The limit of messages in transit, in bytes.
    room: Arc<Semaphore>,
    room_bytes: usize,
    way: Mutex<RouterState>,
    counters: Arc<Counters>,
    canaries: AtomicU64,
    /// Distributed messages, canaries included.
    dealt_out: AtomicU64,
    stop: CancellationToken,
}

/// The state between input and output.
#[derive(Default)]
struct RouterState {
    /// The input of the present router; `None` while it is being replaced.
    intake: Option<generation::RouterInput>,
    /// In the order of submission.
    batches: VecDeque<PendingBatch>,
}

/// A batch that has not been distributed completely.
struct PendingBatch {
    messages: VecDeque<BrokerMessage>,
    /// How many of its messages were distributed.
    done: usize,
    refused: Vec<RefusedMessage>,
    told: Option<oneshot::Sender<Vec<RefusedMessage>>>,
    /// Released with it.
    _share: OwnedSemaphorePermit,
}

impl RouterState {
    /// Returns how many of these are the expected next ones, from the first on.
    fn count_expected(&self, messages: &[BrokerMessage]) -> usize {
        let expected = self.batches.iter().flat_map(|batch| &batch.messages);
        expected.zip(messages).take_while(|(expected, message)| expected == message).count()
    }

    /// Removes distributed messages, and answers the publishers of finished batches. `refused` has the refused ones by
    /// their index among the `count`, in order.
    fn take_off(&mut self, count: usize, refused: Vec<RefusedMessage>) {
        let (mut off, mut refused) = (0, refused.into_iter().peekable());
        while off < count {
            let Some(batch) = self.batches.front_mut() else { return };
            let part = (count - off).min(batch.messages.len());
            batch.messages.drain(..part);
            while let Some(RefusedMessage { index, message }) = refused.next_if(|refused| refused.index < off + part) {
                batch.refused.push(RefusedMessage { index: batch.done + (index - off), message });
            }
            batch.done += part;
            off += part;
            if batch.messages.is_empty()
                && let Some(PendingBatch { told: Some(told), refused, .. }) = self.batches.pop_front()
            {
                // The publisher may have ended meanwhile.
                let _ = told.send(refused);
            }
        }
    }
}

impl RouterHandle {
    /// Creates a hub without a router; [`Self::run`] starts one.
    pub(crate) fn new(limits: &BrokerLimits, counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Self {
            room: Arc::new(Semaphore::new(limits.intake_max_bytes)),
            room_bytes: limits.intake_max_bytes,
            way: Mutex::default(),
            counters,
            canaries: AtomicU64::new(0),
            dealt_out: AtomicU64::new(0),
            stop: CancellationToken::new(),
        })
    }

    /// Ends [`Self::run`]. A router's thread cannot be ended from outside (it holds a sender of its own queue), so it
    /// stays asleep on an empty queue until the process ends.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// Submits messages in order. It waits for room; nothing is published if it is dropped before it is done.
    pub(crate) async fn publish(&self, messages: Vec<BrokerMessage>) -> BatchReply {
        let bytes = messages.iter().map(BrokerMessage::len).sum::<usize>().min(self.room_bytes);
        // Even an impossible batch of 2³² bytes is limited to the whole room above.
        let share = u32::try_from(bytes).unwrap_or(u32::MAX);
        let (told, taken) = oneshot::channel();
        // The semaphore is never closed.
        if let Ok(share) = Arc::clone(&self.room).acquire_many_owned(share).await {
            let mut way = self.way();
            if let Some(intake) = &mut way.intake {
                intake.send(&messages);
            }
            let (messages, refused) = (messages.into(), Vec::new());
            way.batches.push_back(PendingBatch { messages, done: 0, refused, told: Some(told), _share: share });
        }
        taken
    }

    fn way(&self) -> std::sync::MutexGuard<'_, RouterState> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a router. The first is started before clients connect, so that a broker without threads does not start.
    pub(crate) async fn start(&self) -> Result<RouterOutput, RouterError> {
        let log_bytes = self.room_bytes.saturating_mul(LOG_FACTOR);
        let (mut intake, outlet) = RouterGeneration::start(log_bytes, SEGMENTS).await?;
        let mut way = self.way();
        // Messages that the previous router did not deliver come first.
        for batch in &way.batches {
            intake.send(&batch.messages);
        }
        way.intake = Some(intake);
        Ok(outlet)
    }

    /// Passes the router's output to `distribute`, batch by batch, until [`Self::stop`]. A router that dies is replaced.
    /// `distribute` returns the messages that it refused.
    pub(crate) async fn run(
        self: Arc<Self>,
        first: RouterOutput,
        distribute: impl Fn(&[BrokerMessage]) -> Vec<RefusedMessage> + Send,
    ) {
        let mut running = Some(first);
        while !self.stop.is_cancelled() {
            if let Some(outlet) = running.take() {
                let served = async {
                    tokio::select! {
                        () = self.serve(outlet, &distribute) => (),
                        () = self.watch() => (),
                    }
                };
                if self.stop.run_until_cancelled(served).await.is_none() {
                    break;
                }
                tracing::error!("the broker's router failed and is replaced");
                self.counters.router_deaths.add(1);
                self.way().intake = None;
            }
            if self.stop.run_until_cancelled(sleep(REPLACE_PAUSE)).await.is_none() {
                break;
            }
            match self.start().await {
                Ok(outlet) => running = Some(outlet),
                Err(error) => tracing::error!("{error}"),
            }
        }
        // Publishers that wait get an error.
        *self.way() = RouterState::default();
    }

    /// Distributes until the router has died.
    async fn serve(
        &self,
        mut outlet: RouterOutput,
        distribute: &(impl Fn(&[BrokerMessage]) -> Vec<RefusedMessage> + Send),
    ) {
        let mut messages = Vec::new();
        while outlet.next(&mut messages).await.is_ok() {
            let expected = self.way().count_expected(&messages);
            let (good, bad) = messages.split_at(expected);
            let refused = distribute(good);
            self.way().take_off(good.len(), refused);
            self.dealt_out.fetch_add(good.len() as u64, Ordering::Relaxed);
            if !bad.is_empty() {
                tracing::error!("the router skipped or changed a message");
                return;
            }
            messages.clear();
        }
    }

    /// Sends canaries until one does not come out.
    async fn watch(&self) {
        let mut every = interval_at(Instant::now() + CANARY_EVERY, CANARY_EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            every.tick().await;
            let before = self.dealt_out.load(Ordering::Relaxed);
            let flight = async { self.publish(vec![self.canary()]).await.await };
            // Under a flood it may wait for longer; but then other messages come out.
            if timeout(CANARY_TIMEOUT, flight).await.is_err() && self.dealt_out.load(Ordering::Relaxed) == before {
                tracing::error!("the router does not answer");
                return;
            }
        }
    }

    /// A message for nobody: no filter matches the topic "".
    fn canary(&self) -> BrokerMessage {
        let number = self.canaries.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let (qos, properties) = (QoS::AtMostOnce, Default::default());
        let publication =
            Publication { topic: "", payload: &number, qos, retain: false, properties, expiry_s: None, alias: None };
        BrokerMessage::new(&publication, 0, 0)
    }
}

#[cfg(test)]
impl RouterHandle {
    /// Kills the present router, or the next one.
    pub(crate) async fn kill_router(&self) {
        while self.way().intake.as_mut().map(generation::RouterInput::kill_router).is_none() {
            sleep(Duration::from_millis(5)).await;
        }
    }
}

#[cfg(test)]
mod tests;

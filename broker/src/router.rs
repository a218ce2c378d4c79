//! rumqttd's router, held so that no client can stop it and its death loses nothing.
//!
//! The router is a thread with a log. Everything that is published goes into that log under one topic, and comes out of
//! it in the same order at one link, whose reader (`exchange`) knows who wants what. What rumqttd's router gets wrong
//! (retained messages, wills, filters, quality of service, slow readers) is not asked of it.
//!
//! - [`Hub::publish`] is the way in. What is on its way is bounded, which is what slows publishers down to the pace at
//!   which messages are dealt out; and it is kept in [`Hub`] until it has come out, in order.
//! - [`Hub::run`] reads the way out, hands each batch on, and says so to whoever published it.
//! - A canary is published now and then. If it does not come out, or the link breaks, the router is replaced, and what
//!   had not come out goes into the new one: neither publishers nor subscribers notice more than a pause.
//!
//! **Invariant: the log never overflows.** It has four times the room of what may be on its way.

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

use self::generation::{Generation, Outlet};
use crate::{
    codec::Publication,
    limits::Limits,
    message::{Message, QoS},
    stats::Counters,
};

/// The room of the log for each byte that may be on its way. rumqttd drops a log's oldest of [`SEGMENTS`] parts whole,
/// and counts neither the message's own record nor what is in a part that is just begun.
const LOG_FACTOR: usize = 4;

/// How many parts the log is divided in.
const SEGMENTS: usize = 4;

/// How often a canary is sent, and how long it may take. A message takes microseconds, and under a storm some
/// milliseconds; a broker that hangs is noticed before most clients' keep-alive of half a minute.
const CANARY_EVERY: Duration = Duration::from_secs(5);
const CANARY_TIMEOUT: Duration = Duration::from_secs(10);

/// The pause before a dead router is replaced, so that something that kills each of them does not spin.
const REPLACE_PAUSE: Duration = Duration::from_millis(200);

/// The router does not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the router does not start")]
pub(crate) struct Unstartable;

/// Answers when a batch has been dealt out, with what of it was refused. An error means that the broker stops.
pub(crate) type Taken = oneshot::Receiver<Vec<Refused>>;

/// A message that was to be kept, and was neither kept nor dealt out: a limit is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// Its place in its batch, from 0 on.
    pub(crate) index: usize,
    pub(crate) message: Message,
}

/// The way into the router and out of it.
pub(crate) struct Hub {
    /// Room for messages on their way, in bytes.
    room: Arc<Semaphore>,
    room_bytes: usize,
    way: Mutex<Way>,
    counters: Arc<Counters>,
    canaries: AtomicU64,
    /// Messages, canaries included.
    dealt_out: AtomicU64,
    stop: CancellationToken,
}

/// What is between the two ends.
#[derive(Default)]
struct Way {
    /// Into the router that runs now; none while it is being replaced.
    intake: Option<generation::Intake>,
    /// In the order in which they went in.
    batches: VecDeque<Batch>,
}

/// A batch that has not come out whole.
struct Batch {
    messages: VecDeque<Message>,
    /// How many have come out.
    done: usize,
    refused: Vec<Refused>,
    told: Option<oneshot::Sender<Vec<Refused>>>,
    /// Given back with it.
    _share: OwnedSemaphorePermit,
}

impl Way {
    /// How many of these are the ones that were to come out next, from the first on.
    fn count_expected(&self, messages: &[Message]) -> usize {
        let expected = self.batches.iter().flat_map(|batch| &batch.messages);
        expected.zip(messages).take_while(|(expected, message)| expected == message).count()
    }

    /// Takes messages that have been dealt out off the way, and tells the publishers of those batches that are done.
    /// `refused` are those that were not, by their place among the `count`, in order.
    fn take_off(&mut self, count: usize, refused: Vec<Refused>) {
        let (mut off, mut refused) = (0, refused.into_iter().peekable());
        while off < count {
            let Some(batch) = self.batches.front_mut() else { return };
            let part = (count - off).min(batch.messages.len());
            batch.messages.drain(..part);
            while let Some(Refused { index, message }) = refused.next_if(|refused| refused.index < off + part) {
                batch.refused.push(Refused { index: batch.done + (index - off), message });
            }
            batch.done += part;
            off += part;
            if batch.messages.is_empty()
                && let Some(Batch { told: Some(told), refused, .. }) = self.batches.pop_front()
            {
                // Who published may be gone meanwhile.
                let _ = told.send(refused);
            }
        }
    }
}

impl Hub {
    /// A hub without a router; [`Self::run`] starts one.
    pub(crate) fn new(limits: &Limits, counters: Arc<Counters>) -> Arc<Self> {
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

    /// Ends [`Self::run`]. A router's thread cannot be ended from outside (it holds a sender of its own queue), so it stays
    /// asleep on an empty queue until the process ends.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// Sends messages on their way, in order. Waits for room; nothing was published if this is dropped before it is done.
    pub(crate) async fn publish(&self, messages: Vec<Message>) -> Taken {
        let bytes = messages.iter().map(Message::len).sum::<usize>().min(self.room_bytes);
        // Even an unreal batch of 2³² bytes would be cut to the whole room above.
        let share = u32::try_from(bytes).unwrap_or(u32::MAX);
        let (told, taken) = oneshot::channel();
        // The semaphore is never closed.
        if let Ok(share) = Arc::clone(&self.room).acquire_many_owned(share).await {
            let mut way = self.way();
            if let Some(intake) = &mut way.intake {
                intake.send(&messages);
            }
            let (messages, refused) = (messages.into(), Vec::new());
            way.batches.push_back(Batch { messages, done: 0, refused, told: Some(told), _share: share });
        }
        taken
    }

    fn way(&self) -> std::sync::MutexGuard<'_, Way> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a router. The first is started before anybody connects, so that a broker without threads does not start.
    pub(crate) async fn start(&self) -> Result<Outlet, Unstartable> {
        let log_bytes = self.room_bytes.saturating_mul(LOG_FACTOR);
        let (mut intake, outlet) = Generation::start(log_bytes, SEGMENTS).await?;
        let mut way = self.way();
        // What the last one did not deliver comes first.
        for batch in &way.batches {
            intake.send(&batch.messages);
        }
        way.intake = Some(intake);
        Ok(outlet)
    }

    /// Hands what comes out of the router to `deal`, batch by batch, until [`Self::stop`]. A router that dies is replaced.
    /// `deal` says which messages it refused.
    pub(crate) async fn run(self: Arc<Self>, first: Outlet, deal: impl Fn(&[Message]) -> Vec<Refused> + Send) {
        let mut running = Some(first);
        while !self.stop.is_cancelled() {
            if let Some(outlet) = running.take() {
                let served = async {
                    tokio::select! {
                        () = self.serve(outlet, &deal) => (),
                        () = self.watch() => (),
                    }
                };
                if self.stop.run_until_cancelled(served).await.is_none() {
                    break;
                }
                tracing::error!("the broker's router died and is replaced");
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
        // Whoever waits is told that nothing more will come.
        *self.way() = Way::default();
    }

    /// Deals out until the router is gone.
    async fn serve(&self, mut outlet: Outlet, deal: &(impl Fn(&[Message]) -> Vec<Refused> + Send)) {
        let mut messages = Vec::new();
        while outlet.next(&mut messages).await.is_ok() {
            let expected = self.way().count_expected(&messages);
            let (good, bad) = messages.split_at(expected);
            let refused = deal(good);
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
            // Under a flood it may wait its turn for longer; but then others come out.
            if timeout(CANARY_TIMEOUT, flight).await.is_err() && self.dealt_out.load(Ordering::Relaxed) == before {
                tracing::error!("the router does not answer");
                return;
            }
        }
    }

    /// A message for nobody: no filter matches the topic "".
    fn canary(&self) -> Message {
        let number = self.canaries.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let (qos, properties) = (QoS::AtMostOnce, Default::default());
        let publication =
            Publication { topic: "", payload: &number, qos, retain: false, properties, expiry_s: None, alias: None };
        Message::new(&publication, 0, 0)
    }
}

#[cfg(test)]
impl Hub {
    /// Kills the router that runs, or the next one.
    pub(crate) async fn kill_router(&self) {
        while self.way().intake.as_mut().map(generation::Intake::kill_router).is_none() {
            sleep(Duration::from_millis(5)).await;
        }
    }
}

#[cfg(test)]
mod tests;

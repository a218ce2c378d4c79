//! rumqttd's router, held so that no client can stop it and nothing it does wrong goes unnoticed.
//!
//! The router is a thread that fans messages out: one log per filter, from which each subscriber's link reads at its own
//! pace. What it does not do right is not asked of it (BROKER.md has the list): retained messages, wills, takeover,
//! quality of service and acknowledgements are the front's, and it sees each subscription as one of QoS 0.
//!
//! - [`Hub`] is what the rest sees. It holds the router that runs now; a task of its own replaces one that died.
//! - All publishes go through one link, the intake, in the order in which they update the retained store, so that a
//!   subscriber's last message and the retained one agree. The router answers a marker behind each batch; a publisher
//!   is not read further until then, which is what slows publishers down to what the router can take.
//! - Each client that subscribes has a [`Link`]. Links are made by a thread, for rumqttd's way to make one blocks.
//!
//! **Invariant: the router is never told of a link that it has forgotten**: each is taken out by [`Link::close`], alone,
//! and nothing is sent for it afterwards. (A `Ready` for a forgotten link is what makes rumqttd's router panic.) Before
//! that it unsubscribes and waits until the router has caught up: a link that goes while it is scheduled leaves its id in
//! the router's queue, where the next owner of the id inherits it.
//!
//! **Invariant: nothing is skipped silently.** A log is bounded, and the router jumps over what a slow reader missed; each
//! message therefore carries its place in its filter's log, and the session ends at a gap.
//!
//! **Invariant: names in the router are reused.** It keeps a record of each client id for ever, so links are named by
//! slot numbers, never by client ids.

mod generation;
mod link;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::{Duration, SystemTime},
};

use muster_topics::{
    role::{Action, Role, TABLE},
    topic::Prefix,
};
use rumqttd::{RouterConfig, SegmentConfig};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use self::generation::Generation;
pub(crate) use self::link::{Event, Link};
use crate::{
    access::Filter,
    limits::Limits,
    message::Message,
    retained::{Figures, Kept, Retained},
    stats::Counters,
};

/// How many segments a log is divided in: the oldest is dropped whole, so four means that three quarters of the bound
/// are always there.
pub(crate) const SEGMENTS: usize = 4;

/// How long the router may take to answer before it counts as hung. It answers within microseconds, and within a
/// second under a storm.
pub(crate) const ROUTER_TIMEOUT: Duration = Duration::from_secs(20);

/// The pause before a dead router is replaced, so that something that kills each of them does not spin.
const REPLACE_PAUSE: Duration = Duration::from_millis(200);

/// Publishes that the router has not taken yet, in bytes, over all clients: this part of `log_wide_bytes`. The router
/// reads everything that waits before it serves subscribers, so that much may be appended to a log between two reads of a
/// prompt subscriber, who is not to lose by it.
const INTAKE_PART: usize = 4;

/// Messages that the router hands to a link at a time; it pauses a link once some 200 wait for it.
const HANDED_OVER_MAX: u64 = 100;

/// The router is gone, or so late that it counts as gone: the client has to come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the router is gone")]
pub(crate) struct Gone;

/// The door to the router and the retained messages.
pub(crate) struct Hub {
    config: RouterConfig,
    intake_max_bytes: usize,
    filters_max: usize,
    counters: Arc<Counters>,
    retained: Mutex<Retained>,
    /// The router that runs now; none while it is being replaced.
    current: RwLock<Option<Arc<Generation>>>,
    /// Ends the hub.
    stop: CancellationToken,
}

/// Answers when the router has taken a batch.
pub(crate) type Taken = oneshot::Receiver<()>;

impl Hub {
    /// Starts the router, and the task that replaces it when it dies.
    pub(crate) async fn start(
        limits: &Limits,
        prefix: &Prefix,
        counters: Arc<Counters>,
        retained: Retained,
    ) -> Result<Arc<Self>, Gone> {
        let config = router_config(limits, prefix);
        let intake_max_bytes = limits.log_wide_bytes / INTAKE_PART;
        let (first, intake) = Generation::start(config.clone(), intake_max_bytes).await?;
        let hub = Arc::new(Self {
            config,
            intake_max_bytes,
            filters_max: limits.filters_max,
            counters,
            retained: Mutex::new(retained),
            current: RwLock::new(Some(Arc::clone(&first))),
            stop: CancellationToken::new(),
        });
        tokio::spawn(Arc::clone(&hub).keep_alive(first, intake));
        tokio::spawn(Arc::clone(&hub).tend());
        Ok(hub)
    }

    /// Lets the router go. Its thread cannot be ended from outside (it holds a sender of its own queue), so it stays
    /// asleep on an empty queue until the process ends.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
        self.set_current(None);
    }

    /// Sees to the disk of the retained messages.
    async fn tend(self: Arc<Self>) {
        let alarm = self.lock_retained().alarm();
        while self.stop.run_until_cancelled(alarm.notified()).await.is_some() {
            self.lock_retained().tend(unix_ms());
        }
    }

    fn lock_retained(&self) -> MutexGuard<'_, Retained> {
        self.retained.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the retained messages are on the disk.
    pub(crate) fn close_retained(&self) {
        self.lock_retained().close();
    }

    /// Serves the intake's acknowledgements of one router after the other.
    async fn keep_alive(self: Arc<Self>, first: Arc<Generation>, intake: rumqttd::local::LinkRx) {
        let mut running = Some((first, intake));
        loop {
            if let Some((generation, intake)) = running.take() {
                if self.stop.run_until_cancelled(generation.acknowledge(intake)).await.is_none() {
                    return;
                }
                tracing::error!("the broker's router died; clients reconnect to a new one");
                self.counters.router_deaths.add(1);
                self.set_current(None);
            }
            if self.stop.run_until_cancelled(tokio::time::sleep(REPLACE_PAUSE)).await.is_none() {
                return;
            }
            match Generation::start(self.config.clone(), self.intake_max_bytes).await {
                Ok((generation, intake)) => {
                    // Told to stop meanwhile: then nobody may find this one.
                    if self.stop.is_cancelled() {
                        return;
                    }
                    self.set_current(Some(Arc::clone(&generation)));
                    running = Some((generation, intake));
                }
                Err(Gone) => tracing::error!("the broker's router does not start"),
            }
        }
    }

    fn set_current(&self, generation: Option<Arc<Generation>>) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = generation;
    }

    fn current(&self) -> Result<Arc<Generation>, Gone> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone().ok_or(Gone)
    }

    /// Whether there is a router to serve a new client.
    pub(crate) fn is_ready(&self) -> bool {
        self.current().is_ok()
    }

    /// Hands messages to the router, in order; what is to be kept is kept. The answer comes when the router has them.
    pub(crate) async fn publish(&self, messages: Vec<Message>) -> Result<Taken, Gone> {
        self.current()?.publish(messages, |message| self.keep(message)).await
    }

    /// Publishes a last will, if need be through the next router: whoever reads it has come back by then.
    pub(crate) async fn publish_surely(&self, will: Message) {
        let publish = async {
            loop {
                if let Ok(taken) = self.publish(vec![will.clone()]).await
                    && taken.await.is_ok()
                {
                    return;
                }
                tokio::time::sleep(REPLACE_PAUSE).await;
            }
        };
        if tokio::time::timeout(ROUTER_TIMEOUT, publish).await.is_err() {
            tracing::error!(topic = will.topic(), "a last will could not be published");
        }
    }

    fn keep(&self, message: &Message) {
        if !message.retain() {
            return;
        }
        let kept = self.lock_retained().keep(message, unix_ms());
        if kept == Kept::Full {
            self.counters.retained_refused.add(1);
            tracing::warn!(
                topic = message.topic(),
                "a retained message is delivered but not kept; hint: raise retained_max or retained_max_bytes"
            );
        }
    }

    /// The retained messages that a new subscription to `filter` is to be sent.
    pub(crate) fn retained(&self, filter: &Filter) -> Vec<Message> {
        self.lock_retained().matching(filter.as_str(), unix_ms())
    }

    /// How many retained messages there are, and their bytes.
    pub(crate) fn retained_size(&self) -> (usize, usize) {
        self.lock_retained().size()
    }

    /// How many retained messages expired, and what can be said about their file.
    pub(crate) fn retained_figures(&self) -> (u64, Option<Figures>) {
        let retained = self.lock_retained();
        (retained.expired(), retained.figures())
    }

    /// A new subscriber's link.
    pub(crate) async fn link(&self) -> Result<Link, Gone> {
        Link::open(self.current()?, self.filters_max).await
    }

    /// The router takes longer than [`ROUTER_TIMEOUT`]: it is to be replaced.
    pub(crate) fn is_hung(&self) {
        if let Ok(generation) = self.current() {
            generation.declare_dead();
        }
    }
}

/// The time, for what expires.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Filters that some router was ever given; each has a log in it.
type Filters = Mutex<HashSet<String>>;

fn router_config(limits: &Limits, prefix: &Prefix) -> RouterConfig {
    let segment = |bytes: usize| SegmentConfig { max_segment_size: bytes / SEGMENTS, max_segment_count: SEGMENTS };
    let host = segment(limits.log_host_bytes);
    let wide = segment(limits.log_wide_bytes);
    let custom: HashMap<_, _> =
        patterns_of_one_host().map(|pattern| (format!("{}/{pattern}", prefix.as_str()), host.clone())).collect();
    RouterConfig {
        // A link per subscriber, the intake, and room for those whose end the router has not seen yet.
        max_connections: 2 * limits.connections_max + 16,
        max_outgoing_packet_count: HANDED_OVER_MAX,
        max_segment_size: wide.max_segment_size,
        max_segment_count: wide.max_segment_count,
        custom_segment: Some(custom),
        initialized_filters: None,
        shared_subscriptions_strategy: rumqttd::Strategy::default(),
    }
}

/// Patterns of the topics that one host reads and does not write. (Its presence, which it does both, is what consoles
/// read from all of them at once: as a pattern that is the console's filter.)
fn patterns_of_one_host() -> impl Iterator<Item = String> {
    let of_host = |action: Action| TABLE.iter().filter(move |rule| rule.role == Role::Host && rule.action == action);
    of_host(Action::Subscribe)
        .filter(|rule| rule.pattern.contains("%u"))
        .filter(move |rule| !of_host(Action::Publish).any(|written| written.pattern == rule.pattern))
        .map(|rule| rule.pattern.replace("%u", "+"))
}

#[cfg(test)]
mod tests;

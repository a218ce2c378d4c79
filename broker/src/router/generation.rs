//! One router from its start to its death.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use futures_util::FutureExt;
use rumqttd::{
    Notification, Router, RouterConfig,
    local::{LinkBuilder, LinkRx, LinkTx},
    protocol::{Disconnect, DisconnectReasonCode, Packet, PingReq, Publish},
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{Filters, Gone, ROUTER_TIMEOUT, Taken};
use crate::message::Message;

/// Requests for a link that wait for the thread that makes them; those who ask wait for room.
const REQUESTS_MAX: usize = 64;

/// A link's two ends.
pub(super) type Ends = (LinkTx, LinkRx);

struct Request {
    name: String,
    reply: oneshot::Sender<Ends>,
}

/// A batch that the router has not acknowledged. Its share of the intake is given back with it.
struct Pending {
    told: oneshot::Sender<()>,
    _share: OwnedSemaphorePermit,
}

/// A running router.
pub(super) struct Generation {
    requests: mpsc::Sender<Request>,
    intake: tokio::sync::Mutex<LinkTx>,
    intake_max_bytes: usize,
    intake_room: Arc<Semaphore>,
    pending: Mutex<VecDeque<Pending>>,
    slots: Mutex<Slots>,
    pub(super) filters: Filters,
    dead: CancellationToken,
}

/// Numbers that stand for links, each used again once its link is gone.
#[derive(Debug, Default)]
struct Slots {
    free: Vec<u32>,
    next: u32,
}

impl Slots {
    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next
        })
    }
}

impl Generation {
    /// Starts a router; the other end of its intake is for [`Self::acknowledge`].
    pub(super) async fn start(config: RouterConfig, intake_max_bytes: usize) -> Result<(Arc<Self>, LinkRx), Gone> {
        let (requests, received) = mpsc::channel(REQUESTS_MAX);
        thread::Builder::new().name("broker-links".to_owned()).spawn(move || make_links(config, received)).map_err(
            |error| {
                tracing::error!(%error, "cannot start the thread for the router's links");
                Gone
            },
        )?;
        let (reply, ends) = oneshot::channel();
        requests.send(Request { name: "intake".to_owned(), reply }).await.map_err(|_| Gone)?;
        let (intake, acknowledgements) = timeout(ROUTER_TIMEOUT, ends).await.map_err(|_| Gone)?.map_err(|_| Gone)?;
        let generation = Self {
            requests,
            intake: tokio::sync::Mutex::new(intake),
            intake_max_bytes,
            intake_room: Arc::new(Semaphore::new(intake_max_bytes)),
            pending: Mutex::default(),
            slots: Mutex::default(),
            filters: Mutex::new(HashSet::new()),
            dead: CancellationToken::new(),
        };
        Ok((Arc::new(generation), acknowledgements))
    }

    pub(super) fn declare_dead(&self) {
        self.dead.cancel();
    }

    /// A token of one's own that is cancelled when the router dies.
    pub(super) fn death(&self) -> CancellationToken {
        self.dead.child_token()
    }

    /// `work`, unless the router dies before it is done.
    pub(super) async fn while_alive<T>(&self, work: impl Future<Output = T>) -> Result<T, Gone> {
        self.dead.run_until_cancelled(work).await.ok_or(Gone)
    }

    /// Makes a link. Its slot is to be given back once the router has forgotten it.
    pub(super) async fn connect(&self) -> Result<(u32, Ends), Gone> {
        let slot = self.slots.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (reply, ends) = oneshot::channel();
        let made = self.while_alive(timeout(ROUTER_TIMEOUT, async {
            self.requests.send(Request { name: slot.to_string(), reply }).await.map_err(|_| Gone)?;
            ends.await.map_err(|_| Gone)
        }));
        let Ok(made) = made.await? else {
            tracing::error!("the router makes no links any more");
            self.declare_dead();
            return Err(Gone);
        };
        Ok((slot, made?))
    }

    pub(super) fn free(&self, slot: u32) {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).free.push(slot);
    }

    /// Appends messages to the intake, each after `before` has seen it: the order of the one is the order of the other.
    pub(super) async fn publish(&self, messages: Vec<Message>, before: impl Fn(&Message)) -> Result<Taken, Gone> {
        let bytes = messages.iter().map(Message::len).sum::<usize>().min(self.intake_max_bytes);
        // Even an unreal batch of 2³² bytes would be cut to the whole intake above.
        let share = u32::try_from(bytes).map_err(|_| Gone)?;
        let room = Arc::clone(&self.intake_room).acquire_many_owned(share);
        let share = self.while_alive(room).await?.map_err(|_| Gone)?;
        let (told, taken) = oneshot::channel();
        let mut intake = self.while_alive(self.intake.lock()).await?;
        messages.iter().for_each(before);
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).push_back(Pending { told, _share: share });
        let must_wake = {
            let mut buffer = intake.buffer();
            // The router empties the buffer at each wake-up. If something is in it, one is still to come.
            let must_wake = buffer.is_empty();
            buffer.extend(messages.into_iter().map(|message| {
                let (topic, body) = message.into_parts();
                Packet::Publish(Publish::new(topic, body, false), None)
            }));
            if !must_wake {
                buffer.push_back(Packet::PingReq(PingReq));
            }
            must_wake
        };
        if must_wake {
            intake.send(Packet::PingReq(PingReq)).await.map_err(|_| Gone)?;
        }
        Ok(taken)
    }

    /// Passes the router's acknowledgements on until it is dead.
    pub(super) async fn acknowledge(&self, mut intake: LinkRx) {
        loop {
            match self.while_alive(intake.next()).await {
                Ok(Ok(Some(Notification::DeviceAck(ack)))) => {
                    if matches!(Packet::from(ack), Packet::PingResp(_)) {
                        let next = self.pending.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                        // Who published may be gone meanwhile.
                        next.map(|pending| pending.told.send(()));
                    }
                }
                // The intake subscribes to nothing.
                Ok(Ok(_)) => (),
                // When the router's thread ends, however it does, so does its end of every link.
                Ok(Err(_)) | Err(Gone) => break,
            }
        }
        self.declare_dead();
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// The thread that starts the router and then makes links; it ends with the last sender of requests. A router that dies
/// with a request in its queue never answers it: then this thread stays behind, asleep.
fn make_links(config: RouterConfig, mut requests: mpsc::Receiver<Request>) {
    let router = Router::new(0, config).spawn();
    while let Some(Request { name, reply }) = requests.blocking_recv() {
        let Ok((tx, rx, _)) = LinkBuilder::new(&name, router.clone()).build() else { continue };
        if let Err((mut tx, _rx)) = reply.send((tx, rx)) {
            // Nobody waits any more. It never blocks but on the router's queue.
            let _ = tx.send(disconnect()).now_or_never();
        }
    }
}

/// The packet at which the router forgets a link.
pub(super) fn disconnect() -> Packet {
    Packet::Disconnect(Disconnect { reason_code: DisconnectReasonCode::NormalDisconnection }, None)
}

//! A subscriber's link to the router.

use std::sync::{Arc, PoisonError};

use futures_util::FutureExt;
use rumqttd::{
    Forward, Notification,
    local::{LinkRx, LinkTx},
    protocol::{self, Packet, PingReq, RetainForwardRule, Subscribe, SubscribeProperties, Unsubscribe},
};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{
    Gone, ROUTER_TIMEOUT,
    generation::{Generation, disconnect},
};
use crate::{access::Filter, message::Message};

/// What comes from the router.
#[derive(Debug)]
pub(crate) enum Event {
    /// A message for a subscription.
    Message {
        /// The number that the subscription was made with.
        subscription: u32,
        /// The message's place in the log of the subscription's filter.
        place: u64,
        message: Message,
    },
    /// Subscriptions made with this packet id are in effect.
    Subscribed(u16),
}

/// A subscriber's link. It has to be closed; a dropped one stays in the router.
pub(crate) struct Link {
    generation: Arc<Generation>,
    slot: u32,
    tx: LinkTx,
    rx: LinkRx,
    filters: Vec<String>,
    filters_max: usize,
    /// The router's death, of which waiting costs no lock that other links wait for too.
    dead: CancellationToken,
}

impl Link {
    pub(super) async fn open(generation: Arc<Generation>, filters_max: usize) -> Result<Self, Gone> {
        let (slot, (tx, rx)) = generation.connect().await?;
        let dead = generation.death();
        Ok(Self { generation, slot, tx, rx, filters: Vec::new(), filters_max, dead })
    }

    /// Whether the router may have one more filter, if it does not know this one.
    pub(crate) fn has_room_for(&self, filter: &Filter) -> bool {
        let mut known = self.generation.filters.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.contains(filter.as_str()) {
            if known.len() >= self.filters_max {
                return false;
            }
            known.insert(filter.as_str().to_owned());
        }
        true
    }

    /// Subscribes to filters that this link is not subscribed to, each with a number that comes with its messages.
    /// [`Event::Subscribed`] follows.
    pub(crate) async fn subscribe(&mut self, packet_id: u16, filters: &[(u32, &Filter)]) -> Result<(), Gone> {
        let Some((&last, before)) = filters.split_last() else { return Ok(()) };
        // A subscription's number belongs to the packet, so each filter has a packet of its own. The last one's
        // acknowledgement stands for all.
        for &filter in before {
            self.tx.buffer().push_back(subscribe(0, filter));
        }
        self.filters.extend(filters.iter().map(|(_, filter)| filter.as_str().to_owned()));
        self.tx.send(subscribe(packet_id, last)).await.map_err(|_| Gone)?;
        Ok(())
    }

    /// Ends subscriptions. What the router handed over before it noticed still comes, with their old numbers.
    pub(crate) async fn unsubscribe(&mut self, filters: Vec<String>) -> Result<(), Gone> {
        if filters.is_empty() {
            return Ok(());
        }
        self.filters.retain(|filter| !filters.contains(filter));
        self.tx.send(Packet::Unsubscribe(Unsubscribe { pkid: 0, filters }, None)).await.map_err(|_| Gone)?;
        Ok(())
    }

    /// The next event. Nothing is lost if this is dropped before it is done.
    pub(crate) async fn next(&mut self) -> Result<Event, Gone> {
        loop {
            let notification = self.dead.run_until_cancelled(self.rx.next()).await.ok_or(Gone)?.map_err(|_| Gone)?;
            if let Some(event) = self.sort(notification)? {
                return Ok(event);
            }
        }
    }

    /// An event that is there already.
    pub(crate) fn try_next(&mut self) -> Option<Result<Event, Gone>> {
        loop {
            let notification = match self.rx.next().now_or_never()? {
                Ok(notification) => notification,
                Err(_) => return Some(Err(Gone)),
            };
            if let Some(event) = self.sort(notification).transpose() {
                return Some(event);
            }
        }
    }

    fn sort(&self, notification: Option<Notification>) -> Result<Option<Event>, Gone> {
        match notification {
            Some(Notification::Forward(forward)) => Ok(message(forward)),
            Some(Notification::Unschedule) => {
                // Everything handed over before this was taken. It waits only if the router's queue is full, and the
                // router waits for nobody.
                self.rx.ready().map_err(|_| Gone)?;
                Ok(None)
            }
            Some(Notification::DeviceAck(ack)) => match Packet::from(ack) {
                Packet::SubAck(ack, _) if ack.pkid != 0 => Ok(Some(Event::Subscribed(ack.pkid))),
                _ => Ok(None),
            },
            // It disconnects a link that does what the front never lets happen.
            Some(Notification::Disconnect(..)) => Err(Gone),
            _ => Ok(None),
        }
    }

    /// Takes the link out of the router, which may be dead.
    pub(crate) async fn close(mut self) {
        let farewell = timeout(ROUTER_TIMEOUT, self.farewell());
        match farewell.await {
            Ok(Ok(())) => self.generation.free(self.slot),
            Ok(Err(Gone)) => (),
            Err(_) => {
                tracing::error!("the router does not let go of a link");
                self.generation.declare_dead();
            }
        }
    }

    async fn farewell(&mut self) -> Result<(), Gone> {
        let filters = std::mem::take(&mut self.filters);
        self.tx.buffer().push_back(Packet::Unsubscribe(Unsubscribe { pkid: 0, filters }, None));
        self.tx.send(Packet::PingReq(PingReq)).await.map_err(|_| Gone)?;
        // Once this is answered nothing is left that could schedule the link.
        loop {
            match self.generation.while_alive(self.rx.next()).await?.map_err(|_| Gone)? {
                Some(Notification::DeviceAck(ack)) if matches!(Packet::from(ack.clone()), Packet::PingResp(_)) => break,
                other => {
                    self.sort(other)?;
                }
            }
        }
        self.tx.send(disconnect()).await.map_err(|_| Gone)?;
        // The router's end closes when it has forgotten the link, and not before.
        while self.generation.while_alive(self.rx.next()).await?.is_ok() {}
        Ok(())
    }
}

fn subscribe(packet_id: u16, (number, filter): (u32, &Filter)) -> Packet {
    let filter = protocol::Filter {
        path: filter.as_str().to_owned(),
        // The front sends with the right one and keeps track of acknowledgements itself.
        qos: protocol::QoS::AtMostOnce,
        nolocal: false,
        preserve_retain: false,
        retain_forward_rule: RetainForwardRule::Never,
    };
    // The number comes with each message (numbers of 3.1.1's successor, which the router knows): it says which filter
    // brought it, and so in which log its place is.
    let properties = SubscribeProperties { id: usize::try_from(number).ok(), user_properties: Vec::new() };
    Packet::Subscribe(Subscribe { pkid: packet_id, filters: vec![filter] }, Some(properties))
}

/// A message without number or place is one that no subscription asked for.
fn message(forward: Forward) -> Option<Event> {
    let number = *forward.properties?.subscription_identifiers.first()?;
    let (_, place) = forward.cursor?;
    let message = Message::from_parts(forward.publish.payload)?;
    Some(Event::Message { subscription: u32::try_from(number).ok()?, place, message })
}

#[cfg(test)]
impl Link {
    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    /// Kills the router, in the way in which its own listener does: a `Ready` for a link that it has forgotten.
    pub(crate) async fn kill_router(mut self) {
        self.farewell().await.unwrap();
        self.rx.ready().unwrap();
    }
}

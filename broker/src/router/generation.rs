//! One life of rumqttd's router: a thread, and one link to it that both publishes and reads.

use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use rumqttd::{
    Forward, Notification, Router, RouterConfig,
    local::{LinkBuilder, LinkRx, LinkTx},
    protocol::{Packet, PingReq, Publish},
};
use tokio::time::timeout;

use super::RouterError;
use crate::message::BrokerMessage;

/// Everything is published to this one topic; the real one is inside the message.
const TOPIC: &str = "m";

/// How long a router may take to start. It takes a millisecond.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Messages that the router passes on at a time. It pauses a link with more waiting ones, until it is told to continue.
const HANDED_OVER_MAX: u64 = 1000;

/// Messages that are distributed at a time: the exchange holds its lock for that long.
const BATCH_MAX: usize = 256;

/// The router has died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RouterGone;

/// Starts a router.
pub(super) struct RouterGeneration;

/// The input.
pub(super) struct RouterInput(LinkTx);

/// The output.
pub(crate) struct RouterOutput(LinkRx);

impl RouterGeneration {
    pub(super) async fn start(log_bytes: usize, segments: usize) -> Result<(RouterInput, RouterOutput), RouterError> {
        let config = RouterConfig {
            max_connections: 4,
            max_outgoing_packet_count: HANDED_OVER_MAX,
            // rumqttd panics on segments below 1 KiB.
            max_segment_size: (log_bytes / segments).max(1024),
            max_segment_count: segments,
            custom_segment: None,
            initialized_filters: None,
            shared_subscriptions_strategy: rumqttd::Strategy::default(),
        };
        // Creating a link blocks until the router's thread has answered.
        let link = tokio::task::spawn_blocking(move || {
            let router = Router::new(0, config).spawn();
            let (mut tx, rx, _) = LinkBuilder::new("muster", router).build().ok()?;
            tx.subscribe(TOPIC).ok()?;
            Some((tx, rx))
        });
        let Ok(Ok(Some((tx, mut rx)))) = timeout(START_TIMEOUT, link).await else { return Err(RouterError) };
        // Nothing is published before the subscription exists.
        let subscribed = async {
            loop {
                match rx.next().await {
                    Ok(Some(Notification::DeviceAck(ack)))
                        if matches!(Packet::from(ack.clone()), Packet::SubAck(..)) =>
                    {
                        return Ok(());
                    }
                    Ok(_) => (),
                    Err(_) => return Err(RouterError),
                }
            }
        };
        timeout(START_TIMEOUT, subscribed).await.map_err(|_| RouterError)??;
        Ok((RouterInput(tx), RouterOutput(rx)))
    }
}

impl RouterInput {
    /// Appends messages to the log. If the router has died nothing happens: the reader of the output notices.
    pub(super) fn send<'a>(&mut self, messages: impl IntoIterator<Item = &'a BrokerMessage>) {
        let must_wake = {
            let mut buffer = self.0.buffer();
            // The router empties the buffer at each wake-up. If it is not empty, a wake-up is still to come.
            let must_wake = buffer.is_empty();
            buffer.extend(messages.into_iter().map(|message| {
                let publish = Publish::new(Bytes::from_static(TOPIC.as_bytes()), message.as_bytes().clone(), false);
                Packet::Publish(publish, None)
            }));
            must_wake
        };
        if must_wake {
            // It has a future's form, but waits at most for a slot in the router's queue.
            let _ = self.0.send(Packet::PingReq(PingReq)).now_or_never();
        }
    }
}

impl RouterOutput {
    /// Waits for messages, and adds those that are there to `messages`, up to a batch. Nothing is lost if it is dropped
    /// before it is done.
    pub(super) async fn next(&mut self, messages: &mut Vec<BrokerMessage>) -> Result<(), RouterGone> {
        while messages.is_empty() {
            let notification = self.0.next().await.map_err(|_| RouterGone)?;
            self.sort(notification, messages)?;
        }
        while messages.len() < BATCH_MAX {
            let Some(notification) = self.0.next().now_or_never() else { break };
            self.sort(notification.map_err(|_| RouterGone)?, messages)?;
        }
        Ok(())
    }

    fn sort(
        &mut self,
        notification: Option<Notification>,
        messages: &mut Vec<BrokerMessage>,
    ) -> Result<(), RouterGone> {
        match notification {
            Some(Notification::Forward(Forward { publish, .. })) => {
                messages.push(BrokerMessage::from_bytes(publish.payload).ok_or(RouterGone)?);
            }
            // Everything passed on before was taken. This waits only if the router's queue is full, and the router
            // waits for nobody.
            Some(Notification::Unschedule) => self.0.ready().map_err(|_| RouterGone)?,
            Some(Notification::Disconnect(..)) => return Err(RouterGone),
            _ => (),
        }
        Ok(())
    }
}

#[cfg(test)]
impl RouterInput {
    /// Kills the router, in the way in which ordinary clients kill it behind its own listener: a publish to a topic
    /// whose first character is not ASCII.
    pub(super) fn kill_router(&mut self) {
        self.0.publish(Bytes::from_static("é/x".as_bytes()), Bytes::from_static(b"x")).unwrap();
    }
}

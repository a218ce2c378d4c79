//! A client of raw MQTT.

use std::{collections::VecDeque, time::Duration};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    PATIENCE,
    place::{Bytes, Place},
    wire::{self, Connect, DISCONNECT, PING, Packet, Properties, Publish, Version},
};

/// A connection on which MQTT is spoken.
pub(crate) struct Mqtt {
    pub(crate) version: Version,
    stream: Box<dyn Bytes>,
    input: Vec<u8>,
    /// Messages that came while something else was waited for.
    messages: VecDeque<Publish>,
    last_id: u16,
}

/// How a broker answered CONNECT.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Accepted {
    pub(crate) session_present: bool,
    pub(crate) properties: Properties,
}

/// Why something did not happen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Failed {
    /// The broker said no.
    Refused(u8),
    /// The broker ended the connection.
    Ended,
    /// Nothing came for as long as was waited.
    Silence,
}

impl Mqtt {
    /// Opens a connection, and says nothing.
    pub(crate) async fn open(place: &Place, version: Version, common_name: &str) -> Result<Self, Failed> {
        let opening = tokio::time::timeout(PATIENCE, place.dial(version, common_name));
        let stream = opening.await.map_err(|_| Failed::Silence)?.map_err(|_| Failed::Ended)?;
        Ok(Self { version, stream, input: Vec::new(), messages: VecDeque::new(), last_id: 0 })
    }

    /// Connects, and waits as long as `patience` for the answer.
    pub(crate) async fn try_connect(
        place: &Place,
        version: Version,
        common_name: &str,
        connect: &Connect,
        patience: Duration,
    ) -> Result<(Self, Accepted), Failed> {
        let mut client = Self::open(place, version, common_name).await?;
        client.try_send(&connect.encode(version)).await?;
        match client.packet_within(patience).await? {
            Packet::ConnAck { session_present, code: 0, properties } => {
                Ok((client, Accepted { session_present, properties }))
            }
            Packet::ConnAck { code, .. } => Err(Failed::Refused(code)),
            other => panic!("CONNECT was answered {other:?}"),
        }
    }

    /// Connects, and is accepted.
    pub(crate) async fn connect(place: &Place, version: Version, common_name: &str, connect: &Connect) -> Self {
        Self::connect_to(place, version, common_name, connect).await.0
    }

    /// The same, with the broker's answer.
    pub(crate) async fn connect_to(
        place: &Place,
        version: Version,
        common_name: &str,
        connect: &Connect,
    ) -> (Self, Accepted) {
        let connected = Self::try_connect(place, version, common_name, connect, PATIENCE).await;
        connected.unwrap_or_else(|failed| panic!("{} did not connect: {failed:?}", connect.client_id))
    }

    pub(crate) async fn try_send(&mut self, bytes: &[u8]) -> Result<(), Failed> {
        let sending = async {
            self.stream.write_all(bytes).await?;
            self.stream.flush().await
        };
        let sent = tokio::time::timeout(PATIENCE, sending).await.map_err(|_| Failed::Silence)?;
        sent.map_err(|_| Failed::Ended)
    }

    #[track_caller]
    pub(crate) fn send(&mut self, bytes: &[u8]) -> impl Future<Output = ()> {
        let place = std::panic::Location::caller();
        async move { self.try_send(bytes).await.unwrap_or_else(|failed| panic!("{place}: {failed:?}")) }
    }

    /// The next packet, whatever it is.
    pub(crate) async fn packet_within(&mut self, patience: Duration) -> Result<Packet, Failed> {
        // What comes without end is no reason to wait without end.
        if patience.is_zero() {
            return Err(Failed::Silence);
        }
        tokio::time::timeout(patience, self.next_packet()).await.map_err(|_| Failed::Silence)?
    }

    /// The next packet. May be given up while it waits: nothing is lost by that.
    async fn next_packet(&mut self) -> Result<Packet, Failed> {
        loop {
            if let Some((packet, length)) = wire::decode(self.version, &self.input) {
                self.input.drain(..length);
                return Ok(packet);
            }
            match self.stream.read_buf(&mut self.input).await {
                Ok(0) | Err(_) => return Err(Failed::Ended),
                Ok(_) => {}
            }
        }
    }

    /// Waits for the packet that `pick` takes. Messages that come before it are kept, and acknowledged.
    pub(crate) async fn answer<T>(&mut self, pick: impl Fn(&Packet) -> Option<T>) -> Result<T, Failed> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(tokio::time::Instant::now());
            let packet = self.packet_within(left).await?;
            if let Some(found) = pick(&packet) {
                return Ok(found);
            }
            match packet {
                Packet::Publish(publish) => self.take(publish).await?,
                Packet::Disconnect { reason } => return Err(Failed::Refused(reason)),
                _ => {}
            }
        }
    }

    async fn take(&mut self, publish: Publish) -> Result<(), Failed> {
        if publish.qos == 1 {
            self.try_send(&wire::puback(publish.packet_id)).await?;
        }
        self.messages.push_back(publish);
        Ok(())
    }

    /// The next message, acknowledged.
    pub(crate) async fn message_within(&mut self, patience: Duration) -> Result<Publish, Failed> {
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            if let Some(publish) = self.messages.pop_front() {
                return Ok(publish);
            }
            let left = deadline.saturating_duration_since(tokio::time::Instant::now());
            match self.packet_within(left).await? {
                Packet::Publish(publish) => self.take(publish).await?,
                Packet::Disconnect { reason } => return Err(Failed::Refused(reason)),
                _ => {}
            }
        }
    }

    /// The next message, which must come.
    #[track_caller]
    pub(crate) fn message(&mut self) -> impl Future<Output = Publish> {
        let place = std::panic::Location::caller();
        async move {
            let came = self.message_within(PATIENCE).await;
            came.unwrap_or_else(|failed| panic!("{place}: no message: {failed:?}"))
        }
    }

    /// Every message that comes until a PING is answered, which a broker does in its turn.
    pub(crate) async fn messages_until_pong(&mut self) -> Result<Vec<Publish>, Failed> {
        self.ping().await?;
        Ok(std::mem::take(&mut self.messages).into())
    }

    /// Every message that comes until none has come for `quiet`.
    pub(crate) async fn messages_until_quiet(&mut self, quiet: Duration) -> Vec<Publish> {
        let mut all = Vec::new();
        while let Ok(message) = self.message_within(quiet).await {
            all.push(message);
        }
        all
    }

    pub(crate) async fn ping(&mut self) -> Result<(), Failed> {
        self.try_send(&PING).await?;
        self.answer(|packet| (*packet == Packet::Pong).then_some(())).await
    }

    fn next_id(&mut self) -> u16 {
        self.last_id = self.last_id % 60_000 + 1;
        self.last_id
    }

    /// Publishes; with QoS 1 until it is acknowledged, whose reason it gives.
    pub(crate) async fn try_publish(&mut self, mut publish: Publish) -> Result<u8, Failed> {
        if publish.qos == 0 {
            return self.try_send(&publish.encode(self.version)).await.map(|()| 0);
        }
        publish.packet_id = self.next_id();
        self.try_send(&publish.encode(self.version)).await?;
        self.answer(|packet| match packet {
            Packet::PubAck { packet_id, reason } if *packet_id == publish.packet_id => Some(*reason),
            _ => None,
        })
        .await
    }

    /// Publishes what must be taken.
    #[track_caller]
    pub(crate) fn publish(&mut self, publish: Publish) -> impl Future<Output = ()> {
        let place = std::panic::Location::caller();
        async move {
            let topic = publish.topic.clone();
            match self.try_publish(publish).await {
                // 0x10: nobody has subscribed to it.
                Ok(0 | 0x10) => {}
                other => panic!("{place}: {topic} was answered {other:?}"),
            }
        }
    }

    /// Subscribes, with the options of MQTT 5 in the byte of the QoS; gives the reasons.
    pub(crate) async fn try_subscribe(
        &mut self,
        properties: &Properties,
        filters: &[(&str, u8)],
    ) -> Result<Vec<u8>, Failed> {
        let id = self.next_id();
        self.try_send(&wire::subscribe(self.version, id, properties, filters)).await?;
        self.answer(|packet| match packet {
            Packet::SubAck { packet_id, reasons } if *packet_id == id => Some(reasons.clone()),
            _ => None,
        })
        .await
    }

    /// Subscribes to what must be granted.
    #[track_caller]
    pub(crate) fn subscribe(&mut self, filter: &str, options: u8) -> impl Future<Output = ()> {
        let place = std::panic::Location::caller();
        async move {
            let granted = self.try_subscribe(&Properties::new(), &[(filter, options)]).await;
            assert_eq!(granted, Ok(vec![options & 3]), "{place}: {filter}");
        }
    }

    pub(crate) async fn unsubscribe(&mut self, filter: &str) -> Result<Vec<u8>, Failed> {
        let id = self.next_id();
        self.try_send(&wire::unsubscribe(self.version, id, &[filter])).await?;
        self.answer(|packet| match packet {
            Packet::UnsubAck { packet_id, reasons } if *packet_id == id => Some(reasons.clone()),
            _ => None,
        })
        .await
    }

    /// Says DISCONNECT, and waits until the broker has closed the connection.
    pub(crate) async fn disconnect(mut self) {
        self.try_send(&DISCONNECT).await.ok();
        self.end().await;
    }

    /// Waits until the broker ends the connection; gives the reason that a DISCONNECT names.
    pub(crate) async fn end(&mut self) -> Option<u8> {
        let mut named = None;
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(tokio::time::Instant::now());
            match self.packet_within(left).await {
                Ok(Packet::Disconnect { reason }) => named = Some(reason),
                Ok(_) => {}
                Err(Failed::Ended) => return named,
                Err(failed) => panic!("the connection did not end: {failed:?}"),
            }
        }
    }
}

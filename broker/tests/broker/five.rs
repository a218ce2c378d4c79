//! A client that speaks MQTT 5 byte by byte, for what no library lets one say, or hides.

use crate::fixture::{Fixture, Raw, patiently};

/// Properties, as the standard numbers them.
pub(crate) mod property {
    pub(crate) const EXPIRY: u8 = 0x02;
    pub(crate) const CONTENT_TYPE: u8 = 0x03;
    pub(crate) const SUBSCRIPTION_ID: u8 = 0x0b;
    pub(crate) const SESSION_EXPIRY: u8 = 0x11;
    pub(crate) const ASSIGNED_CLIENT_ID: u8 = 0x12;
    pub(crate) const SERVER_KEEP_ALIVE: u8 = 0x13;
    pub(crate) const AUTH_METHOD: u8 = 0x15;
    pub(crate) const WILL_DELAY: u8 = 0x18;
    pub(crate) const RECEIVE_MAX: u8 = 0x21;
    pub(crate) const ALIAS_MAX: u8 = 0x22;
    pub(crate) const ALIAS: u8 = 0x23;
    pub(crate) const MAX_QOS: u8 = 0x24;
    pub(crate) const USER: u8 = 0x26;
    pub(crate) const PACKET_MAX: u8 = 0x27;
    pub(crate) const SHARED_AVAILABLE: u8 = 0x2a;
}

use property::*;

/// Encoded properties, to be put together.
#[derive(Clone, Default)]
pub(crate) struct Properties(Vec<u8>);

impl Properties {
    pub(crate) fn byte(self, id: u8, value: u8) -> Self {
        self.add(id, &[value])
    }

    pub(crate) fn short(self, id: u8, value: u16) -> Self {
        self.add(id, &value.to_be_bytes())
    }

    pub(crate) fn long(self, id: u8, value: u32) -> Self {
        self.add(id, &value.to_be_bytes())
    }

    pub(crate) fn text(self, id: u8, value: &str) -> Self {
        self.add(id, &text(value))
    }

    pub(crate) fn user(self, name: &str, value: &str) -> Self {
        self.add(USER, &[text(name), text(value)].concat())
    }

    /// Of three bytes, as they stand.
    pub(crate) fn three(self, id: u8, value: [u8; 3]) -> Self {
        self.add(id, &value)
    }

    /// Without their length.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn add(mut self, id: u8, value: &[u8]) -> Self {
        self.0.push(id);
        self.0.extend_from_slice(value);
        self
    }

    fn encoded(&self) -> Vec<u8> {
        [length(self.0.len()), self.0.clone()].concat()
    }
}

fn text(text: &str) -> Vec<u8> {
    [&u16::try_from(text.len()).unwrap().to_be_bytes(), text.as_bytes()].concat()
}

fn length(mut length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = (length & 0x7f) as u8;
        length >>= 7;
        bytes.push(if length > 0 { low | 0x80 } else { low });
        if length == 0 {
            return bytes;
        }
    }
}

fn packet(first: u8, body: &[&[u8]]) -> Vec<u8> {
    let body = body.concat();
    [vec![first], length(body.len()), body].concat()
}

/// A CONNECT to be put together.
#[derive(Clone)]
pub(crate) struct Connect {
    client_id: String,
    clean: bool,
    keep_alive_s: u16,
    properties: Properties,
    will: Option<(Properties, String, String, bool)>,
}

impl Connect {
    pub(crate) fn new(client_id: &str) -> Self {
        let client_id = client_id.to_owned();
        Self { client_id, clean: true, keep_alive_s: 60, properties: Properties::default(), will: None }
    }

    /// Comes back to a session, and has one for so long.
    pub(crate) fn staying(client_id: &str, session_expiry_s: u32) -> Self {
        Self { clean: false, ..Self::new(client_id).with(Properties::default().long(SESSION_EXPIRY, session_expiry_s)) }
    }

    pub(crate) fn with(mut self, properties: Properties) -> Self {
        self.properties.0.extend(properties.0);
        self
    }

    pub(crate) fn keep_alive(self, keep_alive_s: u16) -> Self {
        Self { keep_alive_s, ..self }
    }

    pub(crate) fn clean(self) -> Self {
        Self { clean: true, ..self }
    }

    /// A will of QoS 1.
    pub(crate) fn will(self, properties: Properties, topic: &str, payload: &str) -> Self {
        Self { will: Some((properties, topic.to_owned(), payload.to_owned(), false)), ..self }
    }

    fn encoded(&self) -> Vec<u8> {
        let mut flags = u8::from(self.clean) << 1;
        let mut fields = text(&self.client_id);
        if let Some((properties, topic, payload, retain)) = &self.will {
            flags |= 0b1100 | u8::from(*retain) << 5;
            fields.extend([properties.encoded(), text(topic), text(payload)].concat());
        }
        let keep_alive = self.keep_alive_s.to_be_bytes();
        packet(0x10, &[&text("MQTT"), &[5, flags], &keep_alive, &self.properties.encoded(), &fields])
    }
}

/// What the broker sends.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    ConnAck { present: bool, reason: u8, properties: Vec<u8> },
    Publish(Message),
    PubAck { packet_id: u16, reason: u8 },
    SubAck { packet_id: u16, reasons: Vec<u8> },
    UnsubAck { packet_id: u16, reasons: Vec<u8> },
    Pong,
    Disconnect(u8),
}

/// A message that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) packet_id: Option<u16>,
    pub(crate) dup: bool,
    pub(crate) retain: bool,
    pub(crate) topic: String,
    pub(crate) properties: Vec<u8>,
    pub(crate) payload: String,
}

/// Takes bytes off the front.
struct Cut<'a>(&'a [u8]);

impl<'a> Cut<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }

    fn short(&mut self) -> u16 {
        u16::from_be_bytes(self.take(2).try_into().unwrap())
    }

    fn properties(&mut self) -> Vec<u8> {
        let mut length = 0;
        for index in 0..4 {
            let byte = self.take(1)[0];
            length |= usize::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                break;
            }
        }
        self.take(length).to_vec()
    }
}

fn understand(first: u8, body: &[u8]) -> Answer {
    let mut cut = Cut(body);
    match first >> 4 {
        2 => {
            let [present, reason] = cut.take(2).try_into().unwrap();
            Answer::ConnAck { present: present == 1, reason, properties: cut.properties() }
        }
        3 => {
            let length = cut.short();
            let topic = String::from_utf8(cut.take(length.into()).to_vec()).unwrap();
            let packet_id = (first & 6 != 0).then(|| cut.short());
            let properties = cut.properties();
            let payload = String::from_utf8(cut.0.to_vec()).unwrap();
            let (dup, retain) = (first & 8 != 0, first & 1 != 0);
            Answer::Publish(Message { packet_id, dup, retain, topic, properties, payload })
        }
        4 => Answer::PubAck { packet_id: cut.short(), reason: cut.0.first().copied().unwrap_or_default() },
        9 | 11 => {
            let packet_id = cut.short();
            cut.properties();
            let reasons = cut.0.to_vec();
            if first >> 4 == 9 {
                Answer::SubAck { packet_id, reasons }
            } else {
                Answer::UnsubAck { packet_id, reasons }
            }
        }
        13 => Answer::Pong,
        14 => Answer::Disconnect(cut.0.first().copied().unwrap_or_default()),
        other => panic!("packet type {other}"),
    }
}

/// Options of a subscription.
pub(crate) const QOS_1: u8 = 1;
pub(crate) const NO_LOCAL: u8 = 4;
pub(crate) const AS_PUBLISHED: u8 = 8;
pub(crate) const RETAINED_IF_NEW: u8 = 0x10;
pub(crate) const RETAINED_NEVER: u8 = 0x20;

/// A client that speaks MQTT 5.
pub(crate) struct Five(Raw);

impl Five {
    /// Says CONNECT, and gives the answer.
    pub(crate) async fn try_connect(fixture: &Fixture, common_name: &str, connect: &Connect) -> (Self, Answer) {
        let mut five = Self(fixture.raw(common_name).await);
        five.0.send(&connect.encoded()).await;
        let answer = five.answer().await;
        (five, answer)
    }

    /// Connects, and says whether its session was there.
    pub(crate) async fn connect(fixture: &Fixture, common_name: &str, connect: &Connect) -> (Self, bool) {
        match Self::try_connect(fixture, common_name, connect).await {
            (five, Answer::ConnAck { present, reason: 0, .. }) => (five, present),
            (_, other) => panic!("{other:?}"),
        }
    }

    /// A console that is connected anew.
    pub(crate) async fn console(fixture: &Fixture, name: &str) -> Self {
        Self::connect(fixture, name, &Connect::new(name)).await.0
    }

    pub(crate) async fn answer(&mut self) -> Answer {
        patiently("a packet", async {
            let first = self.0.byte().await;
            let mut length = 0;
            for index in 0..4 {
                let byte = self.0.byte().await;
                length |= usize::from(byte & 0x7f) << (7 * index);
                if byte < 0x80 {
                    break;
                }
            }
            understand(first, &self.0.bytes(length).await)
        })
        .await
    }

    pub(crate) async fn message(&mut self) -> Message {
        match self.answer().await {
            Answer::Publish(message) => message,
            other => panic!("{other:?}"),
        }
    }

    /// The next message's payload, which is acknowledged if it wants that.
    pub(crate) async fn take(&mut self) -> String {
        let message = self.message().await;
        if let Some(packet_id) = message.packet_id {
            self.acknowledge(packet_id).await;
        }
        message.payload
    }

    pub(crate) async fn acknowledge(&mut self, packet_id: u16) {
        self.0.send(&packet(0x40, &[&packet_id.to_be_bytes()])).await;
    }

    /// Subscribes, and gives the reason code.
    pub(crate) async fn subscribe(&mut self, filter: &str, options: u8) -> u8 {
        self.subscribe_with(filter, options, &Properties::default()).await
    }

    pub(crate) async fn subscribe_with(&mut self, filter: &str, options: u8, properties: &Properties) -> u8 {
        self.0.send(&packet(0x82, &[&[0, 7], &properties.encoded(), &text(filter), &[options]])).await;
        match self.answer().await {
            Answer::SubAck { packet_id: 7, reasons } if reasons.len() == 1 => reasons[0],
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn unsubscribe(&mut self, filter: &str) -> u8 {
        self.0.send(&packet(0xa2, &[&[0, 8], &[0], &text(filter)])).await;
        match self.answer().await {
            Answer::UnsubAck { packet_id: 8, reasons } if reasons.len() == 1 => reasons[0],
            other => panic!("{other:?}"),
        }
    }

    /// Publishes with QoS 0.
    pub(crate) async fn tell(&mut self, topic: &str, retain: bool, properties: &Properties, payload: &str) {
        let first = 0x30 | u8::from(retain);
        self.0.send(&packet(first, &[&text(topic), &properties.encoded(), payload.as_bytes()])).await;
    }

    /// Publishes with QoS 1, and gives the reason code.
    pub(crate) async fn publish(&mut self, topic: &str, retain: bool, properties: &Properties, payload: &str) -> u8 {
        let first = 0x32 | u8::from(retain);
        self.0.send(&packet(first, &[&text(topic), &[0, 9], &properties.encoded(), payload.as_bytes()])).await;
        match self.answer().await {
            Answer::PubAck { packet_id: 9, reason } => reason,
            other => panic!("{other:?}"),
        }
    }

    /// Sends a packet as it stands.
    pub(crate) async fn send(&mut self, first: u8, body: &[u8]) {
        self.0.send(&packet(first, &[body])).await;
    }

    /// Says DISCONNECT, and waits until the broker has closed the connection.
    pub(crate) async fn disconnect(self) {
        self.disconnect_with(0, &Properties::default()).await;
    }

    pub(crate) async fn disconnect_with(mut self, reason: u8, properties: &Properties) {
        self.0.send(&packet(0xe0, &[&[reason], &properties.encoded()])).await;
        assert_eq!(self.0.rest().await, b"");
    }

    /// Everything until the end, of which the last packet is a DISCONNECT with this reason.
    pub(crate) async fn refused(mut self, reason: u8) {
        assert_eq!(self.answer().await, Answer::Disconnect(reason));
        assert_eq!(self.0.rest().await, b"");
    }
}

//! What goes over the simulated network.

use std::rc::Rc;

use muster_topics::{
    ack::Ack,
    admission::AdmissionAnswer,
    command::{Command, Refresh},
    desired::DesiredHead,
    envelope::{self, Kind, PublicKey, Signer},
    slot::Slot,
    topic::{Filter, Topic},
};

/// One connection, from the first packet to the last.
pub(super) type ConnId = u64;

/// What a console orders.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "few exist at a time")]
pub(super) enum Order {
    Command(Command),
    Ack(Ack),
    Refresh(Refresh),
    Head(DesiredHead),
    Answer(AdmissionAnswer),
}

/// A payload. What hosts say are the product's own bytes. What the console signs is kept as what it says, which saves most of
/// a simulation's time; in some seeds it is signed and opened for real beside that (see [`Seal`]).
#[derive(Clone, Debug)]
pub(super) enum Body {
    Bytes(Rc<Vec<u8>>),
    Signed(Rc<Signed>),
}

#[derive(Debug)]
pub(super) struct Signed {
    pub(super) order: Order,
    /// By somebody who has not the console's key.
    pub(super) forged: bool,
    envelope: Option<Vec<u8>>,
}

/// Signatures: for real, or only noted.
#[derive(Debug, Default)]
pub(super) struct Seal(Option<Keys>);

#[derive(Debug)]
struct Keys {
    console: Signer,
    stranger: Signer,
    pinned: Vec<PublicKey>,
}

impl Seal {
    /// Signs for real, which takes a thousand times as long.
    pub(super) fn real() -> Self {
        let signer = || Signer::from_pkcs8(&Signer::generate().unwrap()).unwrap();
        let console = signer();
        let pinned = vec![console.public_key().unwrap()];
        Self(Some(Keys { console, stranger: signer(), pinned }))
    }

    pub(super) fn sign(&self, order: Order, forged: bool) -> Body {
        let envelope = self.0.as_ref().map(|keys| {
            let signer = if forged { &keys.stranger } else { &keys.console };
            // It is the simulated agent that opens it, and it does not compare slots: they are not what is tried here.
            let slot = Slot::default();
            match &order {
                Order::Command(body) => signer.sign(slot, body),
                Order::Ack(body) => signer.sign(slot, body),
                Order::Refresh(body) => signer.sign(slot, body),
                Order::Head(body) => signer.sign(slot, body),
                Order::Answer(body) => signer.sign(slot, body),
            }
            .unwrap()
        });
        Body::Signed(Rc::new(Signed { order, forged, envelope }))
    }

    /// What was signed with the console's key.
    pub(super) fn open(&self, signed: &Signed) -> Option<Order> {
        let (Some(keys), Some(envelope)) = (&self.0, &signed.envelope) else {
            return (!signed.forged).then(|| signed.order.clone());
        };
        let verified = envelope::open(envelope, &keys.pinned).ok()?;
        Some(match verified.kind() {
            Kind::Command => Order::Command(verified.body().unwrap()),
            Kind::Ack => Order::Ack(verified.body().unwrap()),
            Kind::Refresh => Order::Refresh(verified.body().unwrap()),
            Kind::DesiredHead => Order::Head(verified.body().unwrap()),
            Kind::AdmissionAnswer => Order::Answer(verified.body().unwrap()),
            // The simulated console tells no rules and no addresses, gives no labels, keeps its key, and loses no documents.
            Kind::NumberedDocument | Kind::DocumentRequest => {
                return None;
            }
        })
    }
}

impl Body {
    pub(super) fn bytes(bytes: Vec<u8>) -> Self {
        Self::Bytes(Rc::new(bytes))
    }

    /// An empty retained message clears its topic.
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::Bytes(bytes) if bytes.is_empty())
    }
}

/// A message on a topic.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) topic: Topic,
    pub(super) body: Body,
    /// The broker had kept it.
    pub(super) retained: bool,
}

impl Message {
    pub(super) fn new(topic: Topic, body: Body) -> Self {
        Self { topic, body, retained: false }
    }
}

/// What a client sends to the broker.
#[derive(Clone, Debug)]
pub(super) enum Packet {
    Connect { client: uuid::Uuid, will: Option<Message> },
    Subscribe(Vec<Filter>),
    Publish { message: Message, retain: bool },
    Disconnect,
}

/// What comes back.
#[derive(Clone, Debug)]
pub(super) enum Incoming {
    ConnAck,
    Message(Message),
    /// The connection is gone.
    Closed,
}

/// Whether a filter lets a topic through.
pub(super) fn matches(filter: &Filter, topic: &Topic) -> bool {
    match (filter, topic) {
        (Filter::Topic(wanted), topic) => wanted == topic,
        (Filter::EveryHost(kind), topic) => *kind == topic.kind(),
    }
}

/// The most that waits in a connection's queue, as `OUTGOING` of the agent's link.
pub(super) const ROOM: usize = 64;

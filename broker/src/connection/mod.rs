//! A connected client's task: bytes in, bytes out, messages from the router, one timer.
//!
//! Reading and writing go on side by side, for a client may not read before it has written all it wants to. What stops
//! what:
//! - while a batch of publishes is under way to the router, nothing more is read: the publisher goes at the router's pace;
//! - while the output buffer is full or the client's window closed, nothing is taken from the router: its log, which is
//!   bounded, is what fills up then;
//! - while far too much output waits, nothing is read: a client that only asks and never takes ends by the write limit.
//!
//! **Invariant: a publish is acknowledged when the router has it**, and in the order of publishing.
//!
//! **Invariant: the last will is published unless the client said DISCONNECT** or the broker stops, and before the
//! ticket is given back, so before a session that takes over begins.

mod bytes;
mod clock;
mod end;

use std::{fmt, io, mem, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use ::bytes::{Buf, BytesMut};
use tokio::{
    io::{AsyncWriteExt, ReadHalf, WriteHalf},
    net::TcpStream,
    select,
    sync::oneshot,
    time::{Instant, Sleep, sleep_until, timeout},
};
use tokio_rustls::server::TlsStream;

use self::{
    bytes::{READ_MIN_BYTES, read, write},
    clock::{Clock, Overdue, State},
    end::End,
};
use crate::{
    Shared,
    access::{Access, Filter, Refusal},
    codec::{self, Answer, Publication, Request, Version, Welcome},
    message::{Message, QoS},
    registry::Ticket,
    router::{Event, Gone, Link, Taken},
    session::{OUTPUT_HIGH_BYTES, Session, Window},
    stats::{Beginning, Refused},
};

/// Output above which the client is not read: a full buffer of messages, and as much again of acknowledgements.
const OUTPUT_MAX_BYTES: usize = 2 * OUTPUT_HIGH_BYTES;

/// A batch of publishes is handed over at this size. A log of one host's topics has to hold one.
const BATCH_MAX_BYTES: usize = 32 * 1024;

/// And at this number, for small ones.
const BATCH_MAX: usize = 256;

/// Subscribes that wait for the router. It answers at once; only a client that takes nothing can have more.
const SUBSCRIBING_MAX: usize = 64;

/// How long the end of a connection may take: TLS wants to say goodbye.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Publishes on their way to the router.
#[derive(Default)]
struct Batch {
    messages: Vec<Message>,
    bytes: usize,
    /// To acknowledge when the router has them.
    acks: Vec<u16>,
}

impl Batch {
    fn has_room(&self) -> bool {
        self.bytes < BATCH_MAX_BYTES && self.messages.len() < BATCH_MAX
    }
}

/// A batch that the router has not acknowledged.
struct UnderWay {
    taken: Taken,
    since: Instant,
    acks: Vec<u16>,
}

/// A SUBSCRIBE that the router has not acknowledged.
struct Subscribing {
    packet_id: u16,
    granted: Vec<Option<QoS>>,
    filters: Vec<Filter>,
}

/// A connected client.
pub(crate) struct Connection {
    shared: Arc<Shared>,
    version: Version,
    ticket: Ticket,
    will: Option<Message>,
    session: Session,
    reader: ReadHalf<TlsStream<TcpStream>>,
    writer: WriteHalf<TlsStream<TcpStream>>,
    input: BytesMut,
    /// Whether the last read filled all the room that it had.
    reads_much: bool,
    output: BytesMut,
    /// Whether TLS may hold bytes that are not on their way.
    unflushed: bool,
    link: Option<Link>,
    under_way: Option<UnderWay>,
    subscribing: Vec<Subscribing>,
    clock: Clock,
    timer: Pin<Box<Sleep>>,
}

/// What the answer to a CONNECT found out about a client.
pub(crate) struct Admitted {
    pub(crate) version: Version,
    pub(crate) access: Access,
    pub(crate) ticket: Ticket,
    pub(crate) will: Option<Message>,
    /// How long it may be silent.
    pub(crate) silence: Duration,
}

/// What woke the task.
enum Wake {
    Ended,
    Read(io::Result<usize>),
    Written(io::Result<()>),
    Taken(Result<(), oneshot::error::RecvError>),
    Event(Result<Event, Gone>),
    Timer,
}

impl Connection {
    /// A client whose CONNECT was accepted; it is told so first thing. `input` is what followed the CONNECT.
    pub(crate) fn new(stream: TlsStream<TcpStream>, input: BytesMut, admitted: Admitted, shared: Arc<Shared>) -> Self {
        let Admitted { version, access, ticket, will, silence } = admitted;
        let (reader, writer) = tokio::io::split(stream);
        let limits = &shared.limits;
        let clock = Clock::new(Instant::now(), silence, limits);
        let mut output = BytesMut::new();
        version.encode(&Answer::ConnAck(Welcome::Accepted), &mut output);
        Self {
            version,
            ticket,
            will,
            session: Session::new(version, access, Window::new(limits.inflight_max)),
            reader,
            writer,
            input,
            reads_much: false,
            output,
            unflushed: false,
            link: None,
            under_way: None,
            subscribing: Vec::new(),
            timer: Box::pin(sleep_until(clock.deadline().0)),
            clock,
            shared,
        }
    }

    /// Serves the client until one of the two has had enough.
    pub(crate) async fn run(mut self, peer: SocketAddr) {
        self.shared.counters.begun.count(Beginning::Accepted);
        tracing::info!(%peer, client.id = self.ticket.client_id(), client.identity = %self.session.access.identity(), "connected");
        let end = loop {
            // Whoever entered while all were told to end was not told.
            if self.shared.stop.is_cancelled() {
                break End::Stopping;
            }
            if let Err(end) = self.turn().await {
                break end;
            }
        };
        self.log(&end, peer);
        if end.is_slow() {
            self.shared.counters.slow.add(1);
        }
        self.finish(&end).await;
    }

    fn log(&self, end: &End, peer: SocketAddr) {
        let (client, identity) = (self.ticket.client_id(), self.session.access.identity());
        if end.is_expected() {
            tracing::info!(%peer, client.id = client, client.identity = %identity, "disconnected: {end}");
        } else {
            tracing::warn!(%peer, client.id = client, client.identity = %identity, "disconnected: {end}");
        }
    }

    async fn finish(self, end: &End) {
        let Self { shared, ticket, will, reader, mut writer, output, link, .. } = self;
        if end.leaves_will()
            && let Some(will) = will
        {
            shared.counters.received.add(1);
            shared.hub.publish_surely(will).await;
        }
        // Who takes over waits for no more than this.
        drop(ticket);
        // What TLS still has, such as acknowledgements of the last batch, has a moment to go out.
        let close = async {
            if matches!(end, End::Disconnect | End::Closed | End::TakenOver | End::Stopping) {
                writer.write_all(&output).await?;
            }
            writer.shutdown().await
        };
        // The client is gone or about to be told so: there is nobody to tell of a failure.
        let _ = timeout(CLOSE_TIMEOUT, close).await;
        drop((reader, writer));
        if let Some(link) = link {
            link.close().await;
        }
    }

    /// Does what can be done now, then waits for one thing to happen.
    async fn turn(&mut self) -> Result<(), End> {
        self.read_packets().await?;
        let hub = &self.shared.hub;
        let sent = self.session.fill(&mut self.output, |filter| hub.retained(filter));
        self.shared.counters.sent.add(sent);
        self.arm();
        match self.wait().await {
            Wake::Ended if self.shared.stop.is_cancelled() => Err(End::Stopping),
            Wake::Ended => Err(End::TakenOver),
            Wake::Read(Ok(0)) => Err(End::Closed),
            Wake::Read(Ok(_)) => {
                self.clock.heard(Instant::now());
                Ok(())
            }
            Wake::Read(Err(error)) | Wake::Written(Err(error)) => Err(End::Broken(error)),
            Wake::Written(Ok(())) => {
                self.clock.taken();
                Ok(())
            }
            Wake::Taken(taken) => {
                self.taken(taken)?;
                Ok(())
            }
            Wake::Event(event) => self.events(event?),
            Wake::Timer => self.check_deadlines(),
        }
    }

    /// Whether bytes from the client are read now.
    fn listens(&self) -> bool {
        self.under_way.is_none() && self.output.len() < OUTPUT_MAX_BYTES
    }

    /// Waits for the next thing to happen. Each branch loses nothing if another one comes first: reads and writes move
    /// bytes or do nothing, the rest are notifications that stay.
    async fn wait(&mut self) -> Wake {
        let listens = self.listens();
        let takes = self.session.wants_more();
        let Self { reader, writer, input, output, unflushed, reads_much, link, under_way, .. } = self;
        let writes = !output.is_empty() || *unflushed;
        select! {
            () = self.ticket.ended().cancelled() => Wake::Ended,
            read = read(reader, input, reads_much), if listens => Wake::Read(read),
            written = write(writer, output, unflushed), if writes => Wake::Written(written),
            taken = taken(under_way) => Wake::Taken(taken),
            event = next_event(link), if takes => Wake::Event(event),
            () = &mut self.timer => Wake::Timer,
        }
    }

    /// Brings the clock up to date. The timer is only ever brought forward here: one that goes off too early costs less
    /// than moving it with each packet.
    fn arm(&mut self) {
        let state = State {
            listens: self.listens(),
            has_output: !self.output.is_empty() || self.unflushed,
            is_owed: !self.session.window.is_empty(),
            submitted: self.under_way.as_ref().map(|under_way| under_way.since),
        };
        self.clock.update(Instant::now(), state);
        let (deadline, _) = self.clock.deadline();
        if deadline < self.timer.deadline() {
            self.timer.as_mut().reset(deadline);
        }
    }

    fn check_deadlines(&mut self) -> Result<(), End> {
        let (deadline, overdue) = self.clock.deadline();
        if deadline > Instant::now() {
            self.timer.as_mut().reset(deadline);
            return Ok(());
        }
        if overdue == Overdue::Router {
            self.shared.hub.is_hung();
        }
        Err(overdue.into())
    }

    /// Handles the whole packets in the read buffer, up to a batch of publishes.
    async fn read_packets(&mut self) -> Result<(), End> {
        if self.input.is_empty() || !self.listens() {
            return Ok(());
        }
        let mut input = mem::take(&mut self.input);
        let mut batch = Batch::default();
        let mut outcome = Ok(());
        while outcome.is_ok() && batch.has_room() && self.output.len() < OUTPUT_MAX_BYTES {
            match codec::frame(&input, self.shared.limits.packet_max_bytes) {
                Ok(None) => break,
                Ok(Some((frame, used))) => {
                    outcome = match self.version.decode(&frame) {
                        Ok(request) => self.handle(request, &mut batch).await,
                        Err(malformed) => Err(malformed.into()),
                    };
                    input.advance(used);
                }
                Err(malformed) => outcome = Err(malformed.into()),
            }
        }
        if input.is_empty() && input.capacity() > READ_MIN_BYTES && !self.reads_much {
            // A quiet client is not to keep the room that a large message took.
            input = BytesMut::new();
        }
        self.input = input;
        // What came before an end counts, a DISCONNECT right behind a publish above all.
        self.submit(batch).await?;
        outcome
    }

    async fn handle(&mut self, request: Request<'_>, batch: &mut Batch) -> Result<(), End> {
        match request {
            Request::Publish { packet_id, publication } => self.publish(packet_id, &publication, batch)?,
            Request::PubAck(packet_id) => {
                // One that is not owed is a client's mistake that harms nobody.
                if self.session.window.acknowledge(packet_id) {
                    self.clock.acknowledged();
                }
            }
            Request::Subscribe { packet_id, filters } => self.subscribe(packet_id, &filters).await?,
            Request::Unsubscribe { packet_id, filters } => self.unsubscribe(packet_id, &filters).await?,
            Request::Ping => self.answer(&Answer::Pong),
            Request::Disconnect => return Err(End::Disconnect),
        }
        Ok(())
    }

    fn answer(&mut self, answer: &Answer<'_>) {
        self.version.encode(answer, &mut self.output);
    }

    fn publish(&mut self, packet_id: Option<u16>, publication: &Publication<'_>, batch: &mut Batch) -> Result<(), End> {
        let message = self.session.access.publish(publication).map_err(|refusal| {
            self.shared.counters.refusals.count(match refusal {
                Refusal::Invalid => Refused::Topic,
                Refusal::Denied => Refused::Publish,
            });
            // 3.1.1 can only acknowledge what it throws away, or close the connection.
            End::Publish { topic: publication.topic.chars().take(200).collect(), refusal }
        })?;
        batch.bytes += message.len();
        batch.messages.push(message);
        batch.acks.extend(packet_id);
        Ok(())
    }

    async fn submit(&mut self, batch: Batch) -> Result<(), End> {
        if batch.messages.is_empty() {
            return Ok(());
        }
        self.shared.counters.received.add(batch.messages.len() as u64);
        let since = Instant::now();
        let taken = self.shared.hub.publish(batch.messages).await?;
        self.under_way = Some(UnderWay { taken, since, acks: batch.acks });
        Ok(())
    }

    fn taken(&mut self, taken: Result<(), oneshot::error::RecvError>) -> Result<(), Gone> {
        let under_way = self.under_way.take();
        taken.map_err(|_| Gone)?;
        for packet_id in under_way.into_iter().flat_map(|under_way| under_way.acks) {
            self.answer(&Answer::PubAck(packet_id));
        }
        Ok(())
    }

    async fn subscribe(&mut self, packet_id: u16, asked: &[(&str, QoS)]) -> Result<(), End> {
        let mut granted = Vec::with_capacity(asked.len());
        let mut filters = Vec::new();
        let mut fresh = Vec::new();
        for &(text, qos) in asked {
            let filter = self.permitted(text).await?;
            granted.push(filter.as_ref().map(|_| qos));
            if let Some(filter) = filter {
                fresh.extend(self.session.subscriptions.add(&filter, qos).map(|number| (number, filter.clone())));
                filters.push(filter);
            }
        }
        let subscribing = Subscribing { packet_id, granted, filters };
        match &mut self.link {
            Some(link) if !fresh.is_empty() => {
                if self.subscribing.len() >= SUBSCRIBING_MAX {
                    return Err(End::Subscribing);
                }
                let fresh: Vec<_> = fresh.iter().map(|(number, filter)| (*number, filter)).collect();
                link.subscribe(packet_id, &fresh).await?;
                self.subscribing.push(subscribing);
            }
            _ => self.subscribed(subscribing),
        }
        Ok(())
    }

    /// The filter, if this client may subscribe to it.
    async fn permitted(&mut self, text: &str) -> Result<Option<Filter>, Gone> {
        let refuse = |why: &dyn fmt::Display| {
            tracing::warn!(
                client.id = self.ticket.client_id(),
                client.identity = %self.session.access.identity(),
                filter = text.chars().take(200).collect::<String>(),
                "a subscription is refused: {why}"
            );
        };
        let filter = match self.session.access.subscribe(text) {
            Ok(filter) => filter,
            Err(refusal) => {
                self.shared.counters.refusals.count(match refusal {
                    Refusal::Invalid => Refused::Filter,
                    Refusal::Denied => Refused::Subscribe,
                });
                refuse(&refusal);
                return Ok(None);
            }
        };
        if self.session.subscriptions.contains(&filter) {
            return Ok(Some(filter));
        }
        if self.session.subscriptions.len() >= self.shared.limits.subscriptions_max {
            refuse(&"subscriptions_max is reached");
            return Ok(None);
        }
        let link = match &mut self.link {
            Some(link) => link,
            None => self.link.insert(self.shared.hub.link().await?),
        };
        if !link.has_room_for(&filter) {
            refuse(&"filters_max is reached");
            return Ok(None);
        }
        Ok(Some(filter))
    }

    fn subscribed(&mut self, subscribing: Subscribing) {
        let Subscribing { packet_id, granted, filters } = subscribing;
        self.answer(&Answer::SubAck { packet_id, granted: &granted });
        for filter in filters {
            self.session.subscribed(filter);
        }
    }

    async fn unsubscribe(&mut self, packet_id: u16, asked: &[&str]) -> Result<(), End> {
        let mut ended = Vec::new();
        for text in asked {
            // What cannot be subscribed to is not subscribed to.
            if let Ok(filter) = self.session.access.subscribe(text)
                && self.session.subscriptions.remove(&filter)
            {
                ended.push(filter.as_str().to_owned());
            }
        }
        if let Some(link) = &mut self.link {
            link.unsubscribe(ended).await?;
        }
        self.answer(&Answer::UnsubAck(packet_id));
        Ok(())
    }

    /// Takes an event from the router, and what is there behind it, as far as there is room.
    fn events(&mut self, first: Event) -> Result<(), End> {
        let mut next = Some(first);
        while let Some(event) = next {
            match event {
                Event::Message { subscription, place, message } => {
                    self.session.deliver(subscription, place, message)?;
                }
                Event::Subscribed(packet_id) => {
                    // A client that uses an id twice gets its answers in order, as the router gives them.
                    let position = self.subscribing.iter().position(|waiting| waiting.packet_id == packet_id);
                    if let Some(position) = position {
                        let subscribing = self.subscribing.remove(position);
                        self.subscribed(subscribing);
                    }
                }
            }
            let hub = &self.shared.hub;
            let sent = self.session.fill(&mut self.output, |filter| hub.retained(filter));
            self.shared.counters.sent.add(sent);
            next = match &mut self.link {
                Some(link) if self.session.wants_more() => link.try_next().transpose()?,
                _ => None,
            };
        }
        Ok(())
    }
}

/// The router's answer to the batch that is under way, if one is.
async fn taken(under_way: &mut Option<UnderWay>) -> Result<(), oneshot::error::RecvError> {
    match under_way {
        Some(under_way) => (&mut under_way.taken).await,
        None => std::future::pending().await,
    }
}

/// The next event from the router, if the client has subscribed to anything.
async fn next_event(link: &mut Option<Link>) -> Result<Event, Gone> {
    match link {
        Some(link) => link.next().await,
        None => std::future::pending().await,
    }
}

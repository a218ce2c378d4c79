//! A connected client's task: bytes in, bytes out, messages from its mailbox, one timer.
//!
//! It reads and writes concurrently, because a client may not read before it has written everything. Back-pressure:
//! - while a batch of publishes is on its way, nothing more is read: the publisher goes at the pace of the exchange;
//! - while the client exceeds its identity's rate, nothing is read;
//! - while the output buffer is full or the client's window closed, nothing is taken from the mailbox, which is bounded;
//! - while the identity has used up its time for searching the store, nothing is read and no further retained
//!   message is sent;
//! - while too much output is buffered, nothing is read: a client that only asks and never reads ends by the write limit.
//!
//! **Invariant: a publish is acknowledged after it was distributed**, and in the order of publishing.
//!
//! **Invariant: the last will is published unless the client sent DISCONNECT** or the broker stops; if it has no delay,
//! before the ticket is returned, so before a connection that takes over begins.

mod admitted;
mod afterlife;
mod bytes;
mod clock;
mod end;
mod last_will;
mod packets;

pub(crate) use admitted::AdmittedClient;

use std::{
    future::{Future, poll_fn},
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use ::bytes::BytesMut;
use muster_guard::{LineKind, LineLimiter, log_peer};
use tokio::{
    io::AsyncWriteExt,
    time::{Instant, Sleep, sleep_until, timeout},
};

pub(crate) use self::{afterlife::end_session, last_will::LastWill};
use self::{
    bytes::Buffers,
    clock::{DeadlineClock, DeadlineKind, Deadlines},
    end::ConnectionEnd,
    packets::{Aliases, BatchUnderWay},
};
use crate::{
    access::ClientAccess,
    clock::unix_ms,
    codec::{ConnAck, ProtocolVersion, ServerPacket},
    registry::{ConnectionTicket, EndCause},
    router::RefusedMessage,
    session::{ClientLimits, ClientSession, FillResult, OUTPUT_HIGH_BYTES},
    state::BrokerState,
    stats::Beginning,
    stream::ClientStream,
    sys_topics,
};

/// Output above which the client is not read: a full buffer of messages, and as much again of acknowledgements.
const OUTPUT_MAX_BYTES: usize = 2 * OUTPUT_HIGH_BYTES;

/// How long the end of a connection may take, for TLS's close alert.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// What visiting one node of the store counts for its identity's rate, in bytes: with the default of 16 MiB a second it
/// may visit a quarter of a million, which takes a processor some 50 ms.
const STEP_BYTES: usize = 64;

/// Log lines about ordinary connects and disconnects: enough to see an agent come back after a bad night.
const CONNECTED: LineKind = LineKind::new("connections", 60).burst(5);
const DISCONNECTED: LineKind = LineKind::new("ends of connections", 60).burst(5);

/// Log lines about abnormal disconnects.
const FAILED: LineKind = LineKind::new("failed connections", 60).burst(5);

/// A connected client.
pub(crate) struct ClientConnection {
    shared: Arc<BrokerState>,
    ticket: ConnectionTicket,
    access: Arc<ClientAccess>,
    reach: ClientLimits,
    will: Option<LastWill>,
    session_expiry_s: u32,
    session: ClientSession,
    stream: ClientStream,
    buffers: Buffers,
    aliases: Aliases,
    under_way: Option<BatchUnderWay>,
    clock: DeadlineClock,
    timer: Pin<Box<Sleep>>,
}

/// What woke the task.
enum WakeReason {
    Ended(EndCause),
    Behind,
    Read(io::Result<usize>),
    Written(io::Result<()>),
    /// `None` if the broker stops.
    Taken(Option<Vec<RefusedMessage>>),
    Mail,
    Timer,
}

impl ClientConnection {
    /// Creates a client whose CONNECT was accepted; `welcome` is the first answer. `input` is what followed the
    /// CONNECT.
    pub(crate) fn new(
        stream: ClientStream,
        input: BytesMut,
        admitted: AdmittedClient,
        welcome: ConnAck<'_>,
        shared: Arc<BrokerState>,
    ) -> Box<Self> {
        let AdmittedClient { ticket, access, reach, will, session, session_expiry_s, silence } = admitted;
        let clock = DeadlineClock::new(Instant::now(), silence, &shared.limits);
        let mut buffers = Buffers::default();
        reach.version.encode(&ServerPacket::ConnAck(welcome), &mut buffers.output);
        buffers.put_back(input);
        let timer = Box::pin(sleep_until(clock.deadline().0));
        Box::new(Self {
            shared,
            ticket,
            access,
            reach,
            will,
            session_expiry_s,
            session,
            stream,
            buffers,
            aliases: Aliases::default(),
            under_way: None,
            clock,
            timer,
        })
    }

    /// Serves the client until one side ends the connection.
    pub(crate) async fn run(mut self: Box<Self>, peer: SocketAddr) {
        let shared = Arc::clone(&self.shared);
        shared.counters.begun.count(Beginning::Accepted);
        if let Some(serial) = self.ticket.serial() {
            shared.exchange.shown(self.access.identity(), serial);
        }
        let is_v5 = self.reach.version == ProtocolVersion::V5;
        if is_v5 {
            shared.counters.connections_v5.grow();
        }
        let (client, identity) = (LineLimiter::shorten(self.ticket.client_id()), self.access.identity());
        log_peer!(INFO, identity, CONNECTED, %peer, client.id = client, client.identity = %identity, "connected");
        let end = loop {
            // A client that entered while all were ended was not notified.
            if self.shared.stop.is_cancelled() {
                break ConnectionEnd::Stopping;
            }
            if let Err(end) = self.turn().await {
                break end;
            }
        };
        self.log(&end, peer);
        if end.is_slow() {
            shared.counters.slow.add(1);
        }
        // The future of the end is not part of a running client's memory.
        Box::pin(self.finish(end)).await;
        if is_v5 {
            shared.counters.connections_v5.shrink();
        }
    }

    fn log(&self, end: &ConnectionEnd, peer: SocketAddr) {
        let (client, identity) = (LineLimiter::shorten(self.ticket.client_id()), self.access.identity());
        if let ConnectionEnd::Publish { topic, refusal } = end {
            // A client that reconnects to publish the same is not worth a log line.
            self.log_refusal(*refusal, topic);
        }
        if end.is_expected() {
            log_peer!(INFO, identity, DISCONNECTED, %peer, client.id = client, client.identity = %identity, "disconnected: {end}");
        } else {
            log_peer!(WARN, identity, FAILED, %peer, client.id = client, client.identity = %identity, "disconnected: {end}");
        }
    }

    async fn finish(self: Box<Self>, end: ConnectionEnd) {
        let Self { shared, ticket, reach, will, session_expiry_s, session, mut stream, mut buffers, .. } = *self;
        let will = will.filter(|_| end.leaves_will());
        let expiry_s = if end.keeps_session() { session_expiry_s } else { 0 };
        // A connection that takes over waits only for this.
        afterlife::begin(&shared, ticket, session, will, expiry_s).await;
        if let Some(reason) = end.reason() {
            reach.version.encode(&ServerPacket::Disconnect(reason), &mut buffers.output);
        }
        // Pending output, such as acknowledgements of the last batch, has a moment to be sent.
        let close = async {
            if !matches!(end, ConnectionEnd::Broken(_)) {
                stream.write_all(&buffers.output).await?;
            }
            stream.shutdown().await
        };
        // The client has gone or is about to be told so: a failure need not be reported.
        let _ = timeout(CLOSE_TIMEOUT, close).await;
    }

    /// Does what can be done now, then waits for one event.
    async fn turn(&mut self) -> Result<(), ConnectionEnd> {
        self.read_packets().await?;
        if self.fill() {
            // It may be ready for long; other tasks get their turn in between.
            tokio::task::consume_budget().await;
        }
        self.arm();
        match self.wait().await {
            WakeReason::Ended(cause) => Err(cause.into()),
            WakeReason::Behind => Err(ConnectionEnd::Behind),
            WakeReason::Read(Ok(0)) => Err(ConnectionEnd::Closed),
            WakeReason::Read(Ok(count)) => {
                self.shared.counters.bytes_received.add(count as u64);
                let now = Instant::now();
                self.clock.received(now, self.ticket.pace().pause(count, now.into_std()));
                Ok(())
            }
            WakeReason::Read(Err(error)) | WakeReason::Written(Err(error)) => Err(ConnectionEnd::Broken(error)),
            WakeReason::Written(Ok(())) => {
                self.clock.taken();
                Ok(())
            }
            WakeReason::Taken(refused) => self.taken(refused),
            WakeReason::Mail => Ok(()),
            WakeReason::Timer => self.check_deadlines(),
        }
    }

    /// Writes waiting messages to the output. Returns whether the store was read for it.
    fn fill(&mut self) -> bool {
        let (shared, access, is_paused) = (&self.shared, &self.access, self.clock.is_paused());
        let mut steps = 0;
        let bring = |session: &mut ClientSession| {
            if !is_paused {
                steps = shared.exchange.bring(session, access, || sys_topics::messages(&shared.stats()));
            }
        };
        let filled = self.session.fill(self.reach, unix_ms(), &mut self.buffers.output, bring);
        if steps > 0 {
            let now = Instant::now();
            if let Some(pause) = self.ticket.pace().pause(steps * STEP_BYTES, now.into_std()) {
                self.clock.pause(now + pause);
            }
        }
        if filled != FillResult::default() {
            let counters = &self.shared.counters;
            counters.sent.add(filled.sent);
            counters.expired.add(filled.expired);
            counters.too_large.add(filled.too_large);
        }
        steps > 0
    }

    /// Whether bytes from the client are read now.
    fn listens(&self) -> bool {
        self.under_way.is_none() && !self.clock.is_paused() && self.buffers.output.len() < OUTPUT_MAX_BYTES
    }

    /// Waits for the next event.
    async fn wait(&mut self) -> WakeReason {
        let listens = self.listens();
        poll_fn(|context| self.poll_wake(listens, context)).await
    }

    /// Each of these moves bytes or does nothing, or is a notification that persists: whichever comes first, nothing is
    /// lost.
    fn poll_wake(&mut self, listens: bool, context: &mut Context<'_>) -> Poll<WakeReason> {
        if let Poll::Ready(cause) = self.ticket.ending().poll_told(context) {
            return Poll::Ready(WakeReason::Ended(cause));
        }
        let waiting = self.buffers.output.len();
        if self.buffers.has_output()
            && let Poll::Ready(written) = self.buffers.poll_write(&mut self.stream, context)
        {
            self.shared.counters.bytes_sent.add(waiting.saturating_sub(self.buffers.output.len()) as u64);
            return Poll::Ready(WakeReason::Written(written));
        }
        if listens && let Poll::Ready(read) = self.buffers.poll_read(&mut self.stream, context) {
            return Poll::Ready(WakeReason::Read(read));
        }
        if let Some(under_way) = &mut self.under_way
            && let Poll::Ready(taken) = Pin::new(&mut under_way.taken).poll(context)
        {
            return Poll::Ready(WakeReason::Taken(taken.ok()));
        }
        // Polled even while nothing is taken, because the end of a session is signalled in the same way.
        match self.session.mailbox.poll_something(context) {
            Poll::Ready(true) => return Poll::Ready(WakeReason::Behind),
            Poll::Ready(false) if self.takes() => return Poll::Ready(WakeReason::Mail),
            _ if self.takes() && !self.session.cursors.is_empty() && !self.clock.is_paused() => {
                return Poll::Ready(WakeReason::Mail);
            }
            _ => (),
        }
        self.timer.as_mut().poll(context).map(|()| WakeReason::Timer)
    }

    /// Whether messages are taken from the mailbox now.
    fn takes(&self) -> bool {
        self.session.wants_more() && self.buffers.output.len() < OUTPUT_HIGH_BYTES
    }

    /// Updates the clock. The timer is only moved to an earlier time: a timer that fires too early costs less than
    /// moving it with each packet.
    fn arm(&mut self) {
        let state = Deadlines {
            listens: self.listens(),
            has_output: self.buffers.has_output(),
            is_owed: self.session.is_owed(),
        };
        self.clock.update(Instant::now(), state);
        let (deadline, _) = self.clock.deadline();
        if deadline < self.timer.deadline() {
            self.timer.as_mut().reset(deadline);
        }
    }

    fn check_deadlines(&mut self) -> Result<(), ConnectionEnd> {
        let (deadline, due) = self.clock.deadline();
        if deadline > Instant::now() {
            self.timer.as_mut().reset(deadline);
            return Ok(());
        }
        match due {
            DeadlineKind::End(overdue) => Err(overdue.into()),
            DeadlineKind::Resume => {
                self.clock.resume();
                self.timer.as_mut().reset(self.clock.deadline().0);
                Ok(())
            }
        }
    }
}

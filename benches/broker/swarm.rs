//! Many MQTT clients in one thread: the load, the same for every broker.
//!
//! A [`Swarm`] owns sockets and moves bytes; a [`Load`] says what each client sends, and counts what it gets. Reading and
//! writing take turns of bounded size, so that a client that floods does not keep the others from being read.

use std::{
    collections::VecDeque,
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    os::fd::AsRawFd,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use mio::{Events, Interest, Poll, Token, net::TcpStream};
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrIn, sockopt};
use rustls::{ClientConfig, ClientConnection, pki_types::ServerName};

use crate::wire;

/// Largest amount that one client reads or writes before the next one gets a turn.
const TURN_BYTES: usize = 256 * 1024;

/// Number of connections of one source address, which has about 28,000 ports. Ports of the last round may still be
/// closing.
const PER_SOURCE: usize = 4_000;

/// The behaviour of a swarm's clients. `who` is the number of a client; bytes in `out` are sent.
pub(crate) trait Load {
    /// A complete packet has arrived.
    fn packet(&mut self, who: usize, first: u8, body: &[u8], out: &mut Vec<u8>);

    /// Everything that this client had to send has been written: it may send more.
    fn room(&mut self, _who: usize, _out: &mut Vec<u8>) {}

    /// Number of finished clients among those that are being opened, so that more may start.
    fn through(&self) -> usize {
        0
    }

    /// Whether this load is finished.
    fn done(&self) -> bool;
}

/// How a client connects.
pub(crate) struct Hello {
    /// Its CONNECT packet.
    pub(crate) connect: Vec<u8>,
    /// Its TLS configuration, if it uses TLS.
    pub(crate) tls: Option<Arc<ClientConfig>>,
}

struct Client {
    socket: TcpStream,
    tls: Option<Box<ClientConnection>>,
    /// An incomplete packet.
    input: Vec<u8>,
    output: Vec<u8>,
    /// How much of `output` has been written.
    written: usize,
    up: bool,
    readable: bool,
    writable: bool,
    queued: bool,
}

/// Clients and their sockets.
pub(crate) struct Swarm {
    poll: Poll,
    events: Events,
    clients: Vec<Client>,
    /// Clients that have work to do without an event.
    turns: VecDeque<usize>,
    buffer: Vec<u8>,
    address: SocketAddrV4,
    sources: Sources,
}

/// Alternates between loopback addresses, so that none runs out of ports.
pub(crate) struct Sources {
    used: usize,
    base: u8,
}

impl Sources {
    /// `base` distinguishes swarms of one program that run at the same time.
    pub(crate) fn new(base: u8) -> Self {
        Self { used: 0, base }
    }

    fn next(&mut self) -> Ipv4Addr {
        let number = (self.used / PER_SOURCE) % 250;
        self.used += 1;
        Ipv4Addr::new(127, self.base, 0, u8::try_from(number).expect("below 250") + 2)
    }
}

impl Swarm {
    /// An empty swarm for the broker at `address`.
    pub(crate) fn new(address: SocketAddr, sources: Sources) -> Result<Self> {
        let SocketAddr::V4(address) = address else { bail!("{address} is not IPv4") };
        Ok(Self {
            poll: Poll::new()?,
            events: Events::with_capacity(1024),
            clients: Vec::new(),
            turns: VecDeque::new(),
            buffer: vec![0; 64 * 1024],
            address,
            sources,
        })
    }

    /// Number of clients.
    pub(crate) fn len(&self) -> usize {
        self.clients.len()
    }

    /// Connects `count` more clients, at most `window` at a time, until each has its CONNACK.
    pub(crate) fn open(
        &mut self,
        count: usize,
        window: usize,
        limit: Duration,
        hello: impl Fn(usize) -> Hello,
    ) -> Result<()> {
        let mut opening = Opening { accepted: 0, refused: None, count };
        self.open_for(&mut opening, count, window, limit, hello)?;
        match opening.refused {
            Some((who, code)) => bail!("client {who} was refused: {code:?}"),
            None => Ok(()),
        }
    }

    /// The same, until a given load is finished, which reports when a client is ready.
    pub(crate) fn open_for(
        &mut self,
        load: &mut impl Load,
        count: usize,
        window: usize,
        limit: Duration,
        hello: impl Fn(usize) -> Hello,
    ) -> Result<()> {
        let (first, end) = (self.len(), self.len() + count);
        let started = Instant::now();
        while !load.done() {
            while self.len() < end && self.len() - first - load.through() < window {
                let who = self.len();
                self.launch(hello(who)).with_context(|| format!("client {who} cannot connect"))?;
            }
            self.turn(load)?;
            ensure!(started.elapsed() < limit, "{} of {count} clients are through after {limit:?}", load.through());
        }
        Ok(())
    }

    /// Sends the same kind of packet from all clients, and waits for one packet of type `answer` for each.
    pub(crate) fn ask(&mut self, answer: u8, limit: Duration, say: impl Fn(usize) -> Vec<u8>) -> Result<()> {
        for who in 0..self.len() {
            self.say(who, &say(who));
        }
        self.run(&mut Asking { answer, left: self.len() }, limit)
    }

    /// Appends bytes to a client's output.
    pub(crate) fn say(&mut self, who: usize, bytes: &[u8]) {
        self.clients[who].output.extend_from_slice(bytes);
        self.queue(who);
    }

    /// Gives a client a turn, so that its load can start to send.
    pub(crate) fn wake(&mut self, who: usize) {
        self.queue(who);
    }

    /// Runs a load until it is finished; an error if that takes longer than `limit`.
    pub(crate) fn run(&mut self, load: &mut impl Load, limit: Duration) -> Result<()> {
        let started = Instant::now();
        while !load.done() {
            self.turn(load)?;
            ensure!(started.elapsed() < limit, "not done within {limit:?}");
        }
        Ok(())
    }

    fn launch(&mut self, hello: Hello) -> Result<()> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let fd = socket::socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
        socket::setsockopt(&fd, sockopt::TcpNoDelay, &true)?;
        // Closed by a reset, so that no port waits for late packets, which loopback does not have.
        socket::setsockopt(&fd, sockopt::Linger, &nix::libc::linger { l_onoff: 1, l_linger: 0 })?;
        // The port is chosen when the destination is known, so that it can be used for several.
        socket::setsockopt(&fd, sockopt::IpBindAddressNoPort, &true)?;
        let source = SocketAddrV4::new(self.sources.next(), 0);
        socket::bind(fd.as_raw_fd(), &SockaddrIn::from(source))?;
        match socket::connect(fd.as_raw_fd(), &SockaddrIn::from(self.address)) {
            Ok(()) | Err(nix::errno::Errno::EINPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let mut socket = TcpStream::from_std(fd.into());
        let who = self.clients.len();
        self.poll.registry().register(&mut socket, Token(who), Interest::READABLE | Interest::WRITABLE)?;
        let tls = match hello.tls {
            Some(config) => Some(Box::new(ClientConnection::new(config, ServerName::try_from("localhost")?)?)),
            None => None,
        };
        self.clients.push(Client {
            socket,
            tls,
            input: Vec::new(),
            output: hello.connect,
            written: 0,
            up: false,
            readable: false,
            writable: false,
            queued: false,
        });
        Ok(())
    }

    fn queue(&mut self, who: usize) {
        if !std::mem::replace(&mut self.clients[who].queued, true) {
            self.turns.push_back(who);
        }
    }

    /// Waits for work, and does it.
    fn turn(&mut self, load: &mut impl Load) -> Result<()> {
        let wait = if self.turns.is_empty() { Duration::from_millis(50) } else { Duration::ZERO };
        match self.poll.poll(&mut self.events, Some(wait)) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            polled => polled?,
        }
        for event in &self.events {
            let Token(who) = event.token();
            let client = &mut self.clients[who];
            client.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
            client.writable |= event.is_writable();
            if !std::mem::replace(&mut client.queued, true) {
                self.turns.push_back(who);
            }
        }
        for _ in 0..self.turns.len() {
            let Some(who) = self.turns.pop_front() else { break };
            self.clients[who].queued = false;
            let more = self.clients[who]
                .turn(who, load, &mut self.buffer)
                .with_context(|| format!("the connection of client {who} ended"))?;
            if more {
                self.queue(who);
            }
        }
        Ok(())
    }
}

impl Client {
    /// Reads and writes for one turn; returns whether there is more to do at once.
    fn turn(&mut self, who: usize, load: &mut impl Load, buffer: &mut [u8]) -> Result<bool> {
        if !self.up {
            if !self.writable && !self.readable {
                return Ok(false);
            }
            if let Some(error) = self.socket.take_error()? {
                return Err(error.into());
            }
            self.up = true;
        }
        if self.readable {
            self.read(who, load, buffer)?;
        }
        let mut budget = TURN_BYTES;
        while self.writable && budget > 0 {
            let flushing = self.tls.as_ref().is_some_and(|tls| tls.wants_write());
            if !flushing {
                if self.tls.as_ref().is_some_and(|tls| tls.is_handshaking()) {
                    break;
                }
                if self.written == self.output.len() {
                    self.output.clear();
                    self.written = 0;
                    load.room(who, &mut self.output);
                }
                if self.output.is_empty() {
                    break;
                }
            }
            budget = budget.saturating_sub(self.write()?);
        }
        Ok(self.readable || (self.writable && budget == 0))
    }

    fn read(&mut self, who: usize, load: &mut impl Load, buffer: &mut [u8]) -> Result<()> {
        let mut budget = TURN_BYTES;
        while budget > 0 {
            let read = match &mut self.tls {
                None => self.socket.read(buffer),
                Some(tls) => read_tls(tls, &mut self.socket, buffer),
            };
            match read {
                Ok(0) => bail!("the broker closed it"),
                Ok(count) => {
                    budget = budget.saturating_sub(count);
                    self.take(who, &buffer[..count], load)?;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.readable = false;
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Splits received bytes into packets.
    fn take(&mut self, who: usize, bytes: &[u8], load: &mut impl Load) -> Result<()> {
        let joined;
        let mut rest = if self.input.is_empty() {
            bytes
        } else {
            let mut input = std::mem::take(&mut self.input);
            input.extend_from_slice(bytes);
            joined = input;
            &joined[..]
        };
        while let Some((first, body, length)) = wire::frame(rest).map_err(anyhow::Error::msg)? {
            load.packet(who, first, body, &mut self.output);
            rest = &rest[length..];
        }
        self.input.extend_from_slice(rest);
        Ok(())
    }

    /// Writes once; returns how much was written.
    fn write(&mut self) -> Result<usize> {
        let pending = &self.output[self.written..];
        let written = match &mut self.tls {
            None => self.socket.write(pending).inspect(|count| self.written += count),
            Some(tls) => {
                if !tls.is_handshaking() {
                    self.written += tls.writer().write(pending)?;
                }
                tls.write_tls(&mut self.socket)
            }
        };
        match written {
            Ok(count) => Ok(count),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.writable = false;
                Ok(0)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}

/// Reads decrypted bytes; `WouldBlock` if there are none yet.
fn read_tls(tls: &mut ClientConnection, socket: &mut TcpStream, buffer: &mut [u8]) -> std::io::Result<usize> {
    loop {
        match tls.reader().read(buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            read => return read,
        }
        // A close without `close_notify` is a close as well.
        if tls.read_tls(socket)? == 0 {
            return Ok(0);
        }
        if let Err(error) = tls.process_new_packets() {
            // Sends the alert with the reason.
            let _ = tls.write_tls(socket);
            return Err(std::io::Error::new(ErrorKind::InvalidData, error));
        }
    }
}

/// Waits for CONNACK packets.
struct Opening {
    count: usize,
    accepted: usize,
    refused: Option<(usize, Vec<u8>)>,
}

impl Load for Opening {
    fn packet(&mut self, who: usize, first: u8, body: &[u8], _out: &mut Vec<u8>) {
        if first == 0x20 && body == [0, 0] {
            self.accepted += 1;
        } else {
            self.refused = Some((who, [&[first], body].concat()));
        }
    }

    fn through(&self) -> usize {
        self.accepted
    }

    fn done(&self) -> bool {
        self.accepted == self.count || self.refused.is_some()
    }
}

/// Waits for one packet of each client.
struct Asking {
    answer: u8,
    left: usize,
}

impl Load for Asking {
    fn packet(&mut self, _who: usize, first: u8, body: &[u8], out: &mut Vec<u8>) {
        if first == self.answer {
            self.left = self.left.saturating_sub(1);
        }
        if let (true, Some((_, Some(packet_id), _))) = (first >> 4 == 3, wire::read_publish(first, body)) {
            out.extend_from_slice(&wire::puback(packet_id));
        }
    }

    fn done(&self) -> bool {
        self.left == 0
    }
}

//! The channel of a program that speaks JSON lines: a stream socket under an abstract name, for the reasons that
//! [`crate::notify`] gives. `topics/CHANNEL.md` specifies it.
//!
//! Anybody on this host may connect. A process that is not part of the program is refused at once, and one that
//! is has to prove with its token that it belongs to this start. One connection is the program's; a newer one replaces
//! it once it has authenticated.
//!
//! **Invariant: the shim never waits for a program.** What the program does not read is buffered up to a limit; beyond
//! that the program is unreachable.
//!
//! **Invariant: the buffers of a connection are bounded**, whatever the program sends, and however fast.

use std::{
    io::{self, Read, Write},
    os::{
        fd::AsFd,
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
};

use muster_shim::{CHANNEL_PROTOCOL, ChannelToken, SAID_MAX_BYTES};
use nix::{
    poll::{PollFd, PollFlags},
    sys::socket::{getsockopt, sockopt::PeerCredentials},
};

use crate::line::{self, ChannelHello, ChannelLine};

/// Size of one read, into a buffer on the stack.
const PIECE_BYTES: usize = 4 * 1024;
/// Longest amount that is read from a connection before other work gets a turn.
const TURN_BYTES: usize = SAID_MAX_BYTES;
/// Longest unread output to the program: two lines of maximum length.
const UNREAD_MAX_BYTES: usize = 2 * SAID_MAX_BYTES;
/// Largest number of connections that are accepted before other work gets a turn. Others wait in the kernel's queue.
const ACCEPTS_MAX: u32 = 8;

/// The socket of a program's channel, and its connections.
#[derive(Debug)]
pub(crate) struct ChannelListener {
    listener: UnixListener,
    /// A connection that has not sent a valid hello yet.
    newcomer: Option<ChannelConnection>,
    /// The connection of the program.
    speaker: Option<ChannelConnection>,
}

/// One connection.
#[derive(Debug)]
struct ChannelConnection {
    stream: UnixStream,
    received: Vec<u8>,
    unsent: Vec<u8>,
}

/// An event of the channel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ChannelEvent {
    /// A new connection has sent a valid hello, and replaces the program's connection.
    Hello(ChannelHello),
    /// A line for the shim.
    Line(ChannelLine),
    /// A line for the agent.
    Said(String),
    /// The program's connection is closed.
    Gone,
}

impl ChannelListener {
    /// Listens on an abstract socket.
    pub(crate) fn open(name: &str) -> io::Result<Self> {
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, newcomer: None, speaker: None })
    }

    /// The descriptors to poll.
    pub(crate) fn watched(&self) -> impl Iterator<Item = PollFd<'_>> {
        let connections = [&self.newcomer, &self.speaker].into_iter().flatten();
        let listener = PollFd::new(self.listener.as_fd(), PollFlags::POLLIN);
        std::iter::once(listener).chain(connections.map(ChannelConnection::watched))
    }

    /// Accepts connections. Of those without a hello only the newest is kept: a real program sends its hello at once.
    pub(crate) fn accept(&mut self, is_part: impl Fn(i32) -> bool) {
        for _ in 0..ACCEPTS_MAX {
            let Ok((stream, _)) = self.listener.accept() else { return };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            let peer = getsockopt(&stream, PeerCredentials).map(|peer| peer.pid());
            let speaker = ChannelConnection { stream, received: Vec::new(), unsent: Vec::new() };
            match peer {
                Ok(pid) if is_part(pid) => self.newcomer = Some(speaker),
                _ => speaker.refuse("this process does not belong to the unit"),
            }
        }
    }

    /// Reads the connections; empty if there is nothing more for now.
    pub(crate) fn hear(&mut self, token: &ChannelToken) -> Vec<ChannelEvent> {
        let mut heard = Vec::new();
        self.read_new_connection(token, &mut heard);
        self.read_program_connection(&mut heard);
        heard
    }

    fn read_new_connection(&mut self, token: &ChannelToken, heard: &mut Vec<ChannelEvent>) {
        let Some(mut newcomer) = self.newcomer.take() else { return };
        let end = newcomer.receive();
        match (newcomer.take_line(), end) {
            (Ok(Some(line)), _) => match prove(&line, token) {
                Ok(hello) => {
                    heard.push(ChannelEvent::Hello(hello));
                    self.speaker = Some(newcomer);
                }
                Err(why) => newcomer.refuse(&why),
            },
            (Err(why), _) => newcomer.refuse(&why),
            (Ok(None), Ok(())) => self.newcomer = Some(newcomer),
            (Ok(None), Err(())) => {}
        }
    }

    fn read_program_connection(&mut self, heard: &mut Vec<ChannelEvent>) {
        let Some(mut speaker) = self.speaker.take() else { return };
        let received = speaker.flush().and_then(|()| speaker.receive());
        let understood = speaker.take_lines().and_then(|lines| {
            let Some(lines) = lines.strip_suffix(b"\n") else { return Ok(()) };
            for line in lines.split(|byte| *byte == b'\n') {
                heard.push(understand(line)?);
            }
            Ok(())
        });
        match (understood, received) {
            (Ok(()), Ok(())) => return self.speaker = Some(speaker),
            (Ok(()), Err(())) => {}
            (Err(why), _) => speaker.refuse(&why),
        }
        heard.push(ChannelEvent::Gone);
    }

    /// Sends a line to the program; returns `false` if that fails.
    pub(crate) fn say(&mut self, line: &str) -> bool {
        let Some(speaker) = &mut self.speaker else { return false };
        let fits = line.len() <= SAID_MAX_BYTES && speaker.unsent.len() + line.len() <= UNREAD_MAX_BYTES;
        if !fits || line.contains('\n') {
            return false;
        }
        speaker.unsent.extend_from_slice(line.as_bytes());
        speaker.unsent.push(b'\n');
        // A closed connection is detected by the next read.
        speaker.flush().is_ok()
    }

    /// Closes all connections, because their process is gone. Returns whether the program's was among them.
    pub(crate) fn hang_up(&mut self) -> bool {
        self.newcomer = None;
        self.speaker.take().is_some()
    }
}

impl ChannelConnection {
    fn watched(&self) -> PollFd<'_> {
        let writable = if self.unsent.is_empty() { PollFlags::empty() } else { PollFlags::POLLOUT };
        PollFd::new(self.stream.as_fd(), PollFlags::POLLIN | writable)
    }

    /// Reads what is available, up to the limit of a turn; an error at the end.
    fn receive(&mut self) -> Result<(), ()> {
        let mut piece = [0; PIECE_BYTES];
        let mut read_bytes = 0;
        while read_bytes < TURN_BYTES && self.received.len() <= SAID_MAX_BYTES {
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(()),
                Ok(len) => {
                    self.received.extend_from_slice(&piece[..len]);
                    read_bytes += len;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(()),
            }
        }
        Ok(())
    }

    /// Takes the first line from what was received; an error if it is too long.
    fn take_line(&mut self) -> Result<Option<Vec<u8>>, String> {
        match self.received.iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                let rest = self.received.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.received, rest);
                line.pop();
                Ok(Some(line))
            }
            None => self.check_rest().map(|()| None),
        }
    }

    /// Takes all complete lines, with their line endings; an error if the rest is too long.
    fn take_lines(&mut self) -> Result<Vec<u8>, String> {
        let len = self.received.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let rest = self.received.split_off(len);
        let lines = std::mem::replace(&mut self.received, rest);
        self.check_rest().map(|()| lines)
    }

    fn check_rest(&self) -> Result<(), String> {
        if self.received.len() > SAID_MAX_BYTES { Err(too_long()) } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), ()> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(()),
            }
        }
        // Frees the memory that a long line needed.
        self.unsent = Vec::new();
        Ok(())
    }

    /// Sends the reason, if there is space, and closes the connection.
    fn refuse(mut self, why: &str) {
        let why = serde_json::to_string(why).unwrap_or_default();
        let _ = self.stream.write_all(format!("{{\"refused\":{{\"why\":{why}}}}}\n").as_bytes());
    }
}

/// Whether a first line is a valid hello of the current process.
fn prove(line: &[u8], token: &ChannelToken) -> Result<ChannelHello, String> {
    let ChannelLine::Hello(hello) = line::parse(line)? else {
        return Err("the first line must be a hello".to_owned());
    };
    if hello.token != token.0 {
        return Err("the token is not the one that this process was started with".to_owned());
    }
    if hello.protocol != CHANNEL_PROTOCOL {
        return Err(format!("protocol {} is not supported, only {CHANNEL_PROTOCOL}", hello.protocol));
    }
    Ok(hello)
}

fn too_long() -> String {
    format!("a line is longer than {SAID_MAX_BYTES} bytes")
}

fn understand(line: &[u8]) -> Result<ChannelEvent, String> {
    if line.len() > SAID_MAX_BYTES {
        return Err(too_long());
    }
    match line::parse(line)? {
        ChannelLine::Hello(_) => Err("hello was sent already".to_owned()),
        ChannelLine::Other => match std::str::from_utf8(line) {
            Ok(text) => Ok(ChannelEvent::Said(text.to_owned())),
            Err(_) => Err("a line is not UTF-8".to_owned()),
        },
        known => Ok(ChannelEvent::Line(known)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    struct Bench {
        name: String,
        lines: ChannelListener,
        token: ChannelToken,
    }

    impl Bench {
        fn new(test: &str) -> Self {
            let name = format!("muster-test-{test}-{}", std::process::id());
            Self { lines: ChannelListener::open(&name).unwrap(), name, token: ChannelToken("secret".to_owned()) }
        }

        fn connect(&mut self, is_part: bool) -> BufReader<UnixStream> {
            let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(&self.name).unwrap()).unwrap();
            self.lines.accept(|_| is_part);
            BufReader::new(stream)
        }

        fn hear(&mut self) -> Vec<ChannelEvent> {
            self.lines.hear(&self.token)
        }

        /// A connection that has sent a valid hello.
        fn program(&mut self) -> BufReader<UnixStream> {
            let mut program = self.connect(true);
            say(&mut program, HELLO);
            assert!(matches!(&self.hear()[..], [ChannelEvent::Hello(_)]));
            program
        }
    }

    const HELLO: &str = "{\"hello\":{\"token\":\"secret\",\"protocol\":1}}\n";

    fn say(program: &mut BufReader<UnixStream>, text: &str) {
        program.get_mut().write_all(text.as_bytes()).unwrap();
    }

    fn answer(program: &mut BufReader<UnixStream>) -> String {
        let mut line = String::new();
        program.read_line(&mut line).unwrap();
        line
    }

    #[test]
    fn strangers_are_refused() {
        let mut bench = Bench::new("refused");
        let mut stranger = bench.connect(false);
        assert!(answer(&mut stranger).contains("not belong to the unit"));
        for (first, why) in [
            ("{\"hello\":{\"token\":\"guess\",\"protocol\":1}}\n", "token"),
            ("{\"hello\":{\"token\":\"secret\",\"protocol\":2}}\n", "protocol 2"),
            ("{\"ready\":{}}\n", "first line"),
            ("{\n", "not valid"),
            (&"x".repeat(SAID_MAX_BYTES + 1), "longer"),
        ] {
            let mut program = bench.connect(true);
            say(&mut program, first);
            while bench.lines.newcomer.is_some() {
                assert_eq!(bench.hear(), []);
            }
            let answer = answer(&mut program);
            assert!(answer.starts_with("{\"refused\":{\"why\":\"") && answer.contains(why), "{answer}");
            assert!(bench.lines.speaker.is_none());
        }
    }

    #[test]
    fn newer_connection_takes_over_once_authenticated() {
        let mut bench = Bench::new("newer");
        let mut first = bench.program();
        let mut second = bench.connect(true);
        say(&mut first, "{\"status\":\"one\"}\n");
        assert_eq!(bench.hear(), [ChannelEvent::Line(ChannelLine::Status("one".to_owned()))]);
        say(&mut second, HELLO);
        assert!(matches!(&bench.hear()[..], [ChannelEvent::Hello(_)]));
        assert_eq!(answer(&mut first), "", "it is closed");
        assert!(bench.lines.say("{\"pause\":{\"id\":\"1\"}}"));
        assert_eq!(answer(&mut second), "{\"pause\":{\"id\":\"1\"}}\n");
        drop(second);
        assert_eq!(bench.hear(), [ChannelEvent::Gone]);
        assert!(!bench.lines.say("{}"));
    }

    #[test]
    fn last_lines_before_close_are_read() {
        let mut bench = Bench::new("last");
        let mut program = bench.program();
        say(&mut program, "{\"ready\":{}}\n{\"answer\":{\"id\":\"1\"}}\n{\"alive\"");
        drop(program);
        let said = ChannelEvent::Said("{\"answer\":{\"id\":\"1\"}}".to_owned());
        assert_eq!(bench.hear(), [ChannelEvent::Line(ChannelLine::Ready), said, ChannelEvent::Gone]);
    }

    #[test]
    fn invalid_line_closes_the_connection() {
        let mut bench = Bench::new("none");
        for bad in ["ready\n".to_owned(), HELLO.to_owned(), "{}\n".to_owned(), " ".repeat(SAID_MAX_BYTES + 1)] {
            let mut program = bench.program();
            say(&mut program, &bad);
            while bench.hear() != [ChannelEvent::Gone] {}
            assert!(answer(&mut program).contains("refused"), "{bad}");
        }
    }

    #[test]
    fn a_program_that_does_not_read_becomes_unreachable() {
        let mut bench = Bench::new("unread");
        let _program = bench.program();
        let line = "x".repeat(SAID_MAX_BYTES);
        // No socket buffer holds a hundred megabytes, and the shim must not either.
        assert!((0..2_000).any(|_| !bench.lines.say(&line)));
        assert!(bench.lines.speaker.as_ref().unwrap().unsent.len() <= UNREAD_MAX_BYTES + 1);
        assert!(!bench.lines.say(&"x".repeat(SAID_MAX_BYTES + 1)));
    }

    #[test]
    fn bytes_read_per_turn_are_bounded() {
        let mut bench = Bench::new("turn");
        let program = bench.program();
        let writer = std::thread::spawn(move || {
            let mut program = program;
            (0..100_000).for_each(|_| say(&mut program, "{\"alive\":{}}\n"));
        });
        let mut alive = 0;
        loop {
            let heard = bench.hear();
            alive += heard.iter().filter(|heard| **heard == ChannelEvent::Line(ChannelLine::Alive)).count();
            assert!(heard.len() <= (TURN_BYTES + PIECE_BYTES) / 13 + 1, "{}", heard.len());
            if heard.last() == Some(&ChannelEvent::Gone) {
                break;
            }
        }
        writer.join().unwrap();
        assert_eq!(alive, 100_000);
    }
}

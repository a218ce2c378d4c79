//! The agent's connection.
//!
//! **Invariant: the shim never waits for an agent.** What an agent does not read is buffered up to a
//! limit; then it is disconnected, and gets the whole state when it connects again.

use std::{
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
};

use muster_shim::{LINE_MAX_BYTES, ProgramState, ShimEvent, ShimRequest, StartReport};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use serde::Serialize;

/// Longest unread output to an agent: several states. Of growing output only the latest length is sent.
const UNREAD_MAX_BYTES: usize = 8 * 1024;
/// Limit of the program's lines in the unread output to an agent, after which more of them are dropped: one line of
/// maximum length, and many ordinary ones.
const RELAYED_MAX_BYTES: usize = 2 * LINE_MAX_BYTES;

/// The connection is closed or broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerGone;

/// The connection to an agent.
#[derive(Debug)]
pub(crate) struct AgentPeer {
    stream: UnixStream,
    received: Vec<u8>,
    unsent: Vec<u8>,
    /// How much of the unsent output are lines of the program.
    relayed_bytes: usize,
    told_lens_bytes: [u64; 2],
}

impl AgentPeer {
    /// Accepts the connection of an agent, if it belongs to our own user or root.
    pub(crate) fn accept(stream: UnixStream) -> Option<Self> {
        let uid = getsockopt(&stream, PeerCredentials).ok()?.uid();
        if uid != 0 && uid != nix::unistd::geteuid().as_raw() {
            return None;
        }
        Self::new(stream).ok()
    }

    /// The connection of the agent that started this shim.
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, received: Vec::new(), unsent: Vec::new(), relayed_bytes: 0, told_lens_bytes: [0; 2] })
    }

    /// The descriptor to poll.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Whether output is waiting to be sent.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Sends the result of the start.
    pub(crate) fn report(&mut self, report: &StartReport) -> Result<(), PeerGone> {
        self.push(report)
    }

    /// Sends the state of the program.
    pub(crate) fn state(&mut self, state: &ProgramState) -> Result<(), PeerGone> {
        self.push(&ShimEvent::State(state.clone()))
    }

    /// Sends the length of captured output, unless other messages are still unsent.
    pub(crate) fn lens_bytes(&mut self, lens_bytes: [u64; 2]) -> Result<(), PeerGone> {
        if self.has_unsent() {
            return Ok(());
        }
        for (stderr, len_bytes) in [false, true].into_iter().zip(lens_bytes) {
            if self.told_lens_bytes[usize::from(stderr)] != len_bytes {
                self.told_lens_bytes[usize::from(stderr)] = len_bytes;
                self.push(&ShimEvent::Output { stderr, len_bytes })?;
            }
        }
        Ok(())
    }

    /// Sends the result of a signal.
    pub(crate) fn signalled(&mut self, signal: i32, delivered: bool) -> Result<(), PeerGone> {
        self.push(&ShimEvent::Signalled { signal, delivered })
    }

    /// Relays a line of the program, or drops it if too many are unsent: a program that floods the channel loses its
    /// own lines and affects nobody else.
    pub(crate) fn relay(&mut self, line: String) -> Result<(), PeerGone> {
        let before = self.unsent.len();
        if before + line.len() > RELAYED_MAX_BYTES {
            return Ok(());
        }
        serde_json::to_writer(&mut self.unsent, &ShimEvent::Said { line }).map_err(|_| PeerGone)?;
        self.unsent.push(b'\n');
        self.relayed_bytes += self.unsent.len() - before;
        self.flush()
    }

    /// Reports that a line could not be sent to the program.
    pub(crate) fn unreachable(&mut self, id: &str) -> Result<(), PeerGone> {
        self.push(&ShimEvent::Unreachable { id: id.to_owned() })
    }

    /// Sends pending output.
    pub(crate) fn flush(&mut self) -> Result<(), PeerGone> {
        while self.has_unsent() {
            match self.stream.write(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(PeerGone),
            }
        }
        if !self.has_unsent() {
            // Frees the memory that a long line needed.
            self.unsent = Vec::new();
            self.relayed_bytes = 0;
        }
        Ok(())
    }

    /// Reads the requests of the agent.
    pub(crate) fn receive(&mut self) -> Result<Vec<ShimRequest>, PeerGone> {
        let mut piece = [0; 512];
        match self.stream.read(&mut piece) {
            Ok(0) => return Err(PeerGone),
            Ok(len) => self.received.extend_from_slice(&piece[..len]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => return Err(PeerGone),
        }
        let requests = take_lines(&mut self.received)?;
        if self.received.is_empty() {
            self.received = Vec::new();
        }
        if self.received.len() > LINE_MAX_BYTES { Err(PeerGone) } else { Ok(requests) }
    }

    fn push<T: Serialize>(&mut self, message: &T) -> Result<(), PeerGone> {
        serde_json::to_writer(&mut self.unsent, message).map_err(|_| PeerGone)?;
        self.unsent.push(b'\n');
        self.flush()?;
        if self.unsent.len() > UNREAD_MAX_BYTES + self.relayed_bytes { Err(PeerGone) } else { Ok(()) }
    }
}

/// Takes the complete lines from what was received. An unknown request comes from a newer agent and is ignored; a line
/// that is not JSON does not come from an agent.
fn take_lines(received: &mut Vec<u8>) -> Result<Vec<ShimRequest>, PeerGone> {
    let Some(end) = received.iter().rposition(|byte| *byte == b'\n') else { return Ok(Vec::new()) };
    let lines: Vec<u8> = received.drain(..=end).collect();
    let request = |line: &[u8]| match serde_json::from_slice(line) {
        Ok(request) => Ok(Some(request)),
        Err(error) if error.is_data() => Ok(None),
        Err(_) => Err(PeerGone),
    };
    lines[..end].split(|byte| *byte == b'\n').filter_map(|line| request(line).transpose()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_lines_are_read_and_written() {
        let signal = |signal| ShimRequest::Signal { signal };
        let cases = [
            ("", Ok(vec![]), ""),
            ("{\"sig", Ok(vec![]), "{\"sig"),
            ("{\"signal\":{\"signal\":1}}\n", Ok(vec![signal(1)]), ""),
            ("{\"signal\":{\"signal\":1}}\n{\"signal\":{\"signal\":2}}\n{", Ok(vec![signal(1), signal(2)]), "{"),
            ("{\"frighten\":{}}\n{\"signal\":{\"signal\":3}}\n", Ok(vec![signal(3)]), ""),
            ("\n", Err(PeerGone), ""),
        ];
        for (text, wanted, rest) in cases {
            let mut received = text.as_bytes().to_vec();
            assert_eq!(take_lines(&mut received), wanted, "{text:?}");
            assert_eq!(received, rest.as_bytes(), "{text:?}");
        }
    }

    fn state() -> ProgramState {
        ProgramState::new(String::new())
    }

    #[test]
    fn an_agent_that_does_not_read_is_disconnected() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut peer = AgentPeer::new(ours).unwrap();
        // No socket buffer holds a hundred thousand states, and the shim must not either.
        let gone = (0..100_000).any(|_| peer.state(&state()).is_err());
        assert!(gone && peer.unsent.len() < UNREAD_MAX_BYTES + LINE_MAX_BYTES);
        drop(theirs);
    }

    #[test]
    fn growing_output_is_told_once_the_rest_is_taken() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut peer = AgentPeer::new(ours).unwrap();
        while !peer.has_unsent() {
            peer.state(&state()).unwrap();
        }
        let unsent = peer.unsent.len();
        peer.lens_bytes([5, 0]).unwrap();
        assert_eq!(peer.unsent.len(), unsent);

        let mut taken = vec![0; 1024 * 1024];
        while peer.has_unsent() {
            assert!(theirs.read(&mut taken).unwrap() > 0);
            peer.flush().unwrap();
        }
        peer.lens_bytes([7, 0]).unwrap();
        drop(peer);
        let mut text = String::new();
        theirs.read_to_string(&mut text).unwrap();
        assert_eq!(text.lines().last(), Some("{\"output\":{\"stderr\":false,\"len_bytes\":7}}"));
    }

    #[test]
    fn of_a_flood_of_lines_some_are_not_told_and_news_are() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut peer = AgentPeer::new(ours).unwrap();
        for number in 0..100_000 {
            peer.relay(format!("{number} {}", "x".repeat(100))).unwrap();
        }
        assert!(peer.unsent.len() <= RELAYED_MAX_BYTES + 200);
        peer.unreachable("1").unwrap();
        peer.state(&state()).unwrap();
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            theirs.read_to_string(&mut text).unwrap();
            text
        });
        while peer.has_unsent() {
            peer.flush().unwrap();
        }
        drop(peer);
        let text = reader.join().unwrap();
        assert!(text.lines().count() < 100_000 && text.lines().any(|line| line.contains("unreachable")));
        assert!(text.lines().last().unwrap().starts_with("{\"state\""));
    }

    #[test]
    fn endless_line_is_dropped() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut peer = AgentPeer::new(ours).unwrap();
        let writer = std::thread::spawn(move || theirs.write_all(&vec![b' '; 4 * LINE_MAX_BYTES]));
        while peer.receive().is_ok() {}
        assert!(peer.received.len() <= LINE_MAX_BYTES + 512);
        drop(peer);
        assert!(writer.join().unwrap().is_err(), "nobody reads the rest");
    }
}

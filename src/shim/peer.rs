//! The agent's connection.
//!
//! **Invariant: the shim never waits for an agent.** What an agent does not take is kept up to a
//! limit; then it is disconnected, and finds everything out when it connects again.

use std::{
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
};

use muster_shim::{Event, LINE_MAX_BYTES, Report, Request, State};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use serde::Serialize;

/// How much an agent may leave unread. Several states; of growing output only the latest is told.
const UNREAD_MAX_BYTES: usize = 8 * 1024;

/// It cannot be spoken with any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone;

/// An agent.
#[derive(Debug)]
pub(crate) struct Peer {
    stream: UnixStream,
    received: Vec<u8>,
    unsent: Vec<u8>,
    told_lens_bytes: [u64; 2],
}

impl Peer {
    /// An agent that has connected, if it is one: of our own user or root.
    pub(crate) fn accept(stream: UnixStream) -> Option<Self> {
        let uid = getsockopt(&stream, PeerCredentials).ok()?.uid();
        if uid != 0 && uid != nix::unistd::geteuid().as_raw() {
            return None;
        }
        Self::new(stream).ok()
    }

    /// The agent that started this shim.
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, received: Vec::new(), unsent: Vec::new(), told_lens_bytes: [0; 2] })
    }

    /// What to watch for requests.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Whether there is something to send that could not be sent yet.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Tells how the start went.
    pub(crate) fn report(&mut self, report: &Report) -> Result<(), Gone> {
        self.push(report)
    }

    /// Tells what has become of the program.
    pub(crate) fn state(&mut self, state: &State) -> Result<(), Gone> {
        self.push(&Event::State(state.clone()))
    }

    /// Tells how long captured output is now, unless there is other news that the agent has not taken yet.
    pub(crate) fn lens_bytes(&mut self, lens_bytes: [u64; 2]) -> Result<(), Gone> {
        if self.has_unsent() {
            return Ok(());
        }
        for (stderr, len_bytes) in [false, true].into_iter().zip(lens_bytes) {
            if self.told_lens_bytes[usize::from(stderr)] != len_bytes {
                self.told_lens_bytes[usize::from(stderr)] = len_bytes;
                self.push(&Event::Output { stderr, len_bytes })?;
            }
        }
        Ok(())
    }

    /// Tells what has become of a signal.
    pub(crate) fn signalled(&mut self, signal: i32, delivered: bool) -> Result<(), Gone> {
        self.push(&Event::Signalled { signal, delivered })
    }

    /// Sends what could not be sent before.
    pub(crate) fn flush(&mut self) -> Result<(), Gone> {
        while self.has_unsent() {
            match self.stream.write(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(Gone),
            }
        }
        Ok(())
    }

    /// Takes what the agent has sent.
    pub(crate) fn receive(&mut self) -> Result<Vec<Request>, Gone> {
        let mut piece = [0; 512];
        match self.stream.read(&mut piece) {
            Ok(0) => return Err(Gone),
            Ok(len) => self.received.extend_from_slice(&piece[..len]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => return Err(Gone),
        }
        let requests = take_lines(&mut self.received)?;
        if self.received.len() > LINE_MAX_BYTES { Err(Gone) } else { Ok(requests) }
    }

    fn push<T: Serialize>(&mut self, message: &T) -> Result<(), Gone> {
        serde_json::to_writer(&mut self.unsent, message).map_err(|_| Gone)?;
        self.unsent.push(b'\n');
        self.flush()?;
        if self.unsent.len() > UNREAD_MAX_BYTES { Err(Gone) } else { Ok(()) }
    }
}

/// Takes the whole lines out of what was received. A request that is not known comes from a newer
/// agent, which will see that nothing happens; what is not JSON comes from no agent.
fn take_lines(received: &mut Vec<u8>) -> Result<Vec<Request>, Gone> {
    let Some(end) = received.iter().rposition(|byte| *byte == b'\n') else { return Ok(Vec::new()) };
    let lines: Vec<u8> = received.drain(..=end).collect();
    let request = |line: &[u8]| match serde_json::from_slice(line) {
        Ok(request) => Ok(Some(request)),
        Err(error) if error.is_data() => Ok(None),
        Err(_) => Err(Gone),
    };
    lines[..end].split(|byte| *byte == b'\n').filter_map(|line| request(line).transpose()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let signal = |signal| Request::Signal { signal };
        let cases = [
            ("", Ok(vec![]), ""),
            ("{\"sig", Ok(vec![]), "{\"sig"),
            ("{\"signal\":{\"signal\":1}}\n", Ok(vec![signal(1)]), ""),
            ("{\"signal\":{\"signal\":1}}\n{\"signal\":{\"signal\":2}}\n{", Ok(vec![signal(1), signal(2)]), "{"),
            ("{\"frighten\":{}}\n{\"signal\":{\"signal\":3}}\n", Ok(vec![signal(3)]), ""),
            ("\n", Err(Gone), ""),
        ];
        for (text, wanted, rest) in cases {
            let mut received = text.as_bytes().to_vec();
            assert_eq!(take_lines(&mut received), wanted, "{text:?}");
            assert_eq!(received, rest.as_bytes(), "{text:?}");
        }
    }

    fn state() -> State {
        State::new(String::new())
    }

    #[test]
    fn an_agent_that_does_not_read_is_disconnected() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut peer = Peer::new(ours).unwrap();
        // No socket buffer holds a hundred thousand states, and neither does the shim.
        let gone = (0..100_000).any(|_| peer.state(&state()).is_err());
        assert!(gone && peer.unsent.len() < UNREAD_MAX_BYTES + LINE_MAX_BYTES);
        drop(theirs);
    }

    #[test]
    fn growing_output_is_told_once_the_rest_is_taken() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut peer = Peer::new(ours).unwrap();
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
    fn an_endless_line_is_not_kept() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut peer = Peer::new(ours).unwrap();
        theirs.write_all(&[b' '; 2 * LINE_MAX_BYTES]).unwrap();
        let gone = (0..100).any(|_| peer.receive().is_err());
        assert!(gone && peer.received.len() <= LINE_MAX_BYTES + 512);
    }
}

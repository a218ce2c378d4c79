//! A connection that sends and receives lines.

use std::{
    io::{self, Read, Write},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixStream},
    },
    time::Instant,
};

/// Longest line in either direction, in bytes.
pub(crate) const LINE_MAX_BYTES: usize = 64 * 1024;

#[derive(Debug)]
pub(crate) struct ChannelStream {
    stream: UnixStream,
    received: Vec<u8>,
}

impl ChannelStream {
    /// Connects to `@name` (an abstract socket) or to the path of a socket file.
    pub(crate) fn connect(socket: &str) -> io::Result<Self> {
        let address = match socket.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(socket)?,
        };
        Ok(Self { stream: UnixStream::connect_addr(&address)?, received: Vec::new() })
    }

    /// Sends a line.
    pub(crate) fn say(&mut self, line: &str) -> io::Result<()> {
        self.stream.write_all(format!("{line}\n").as_bytes())
    }

    /// The next line; `None` if the deadline passes first. A closed connection is an error.
    pub(crate) fn line(&mut self, until: Option<Instant>) -> io::Result<Option<Vec<u8>>> {
        let mut piece = [0; 4096];
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let rest = self.received.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.received, rest);
                line.pop();
                return Ok(Some(line));
            }
            if self.received.len() > LINE_MAX_BYTES {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let limit = until.map(|until| until.saturating_duration_since(Instant::now()));
            if limit.is_some_and(|limit| limit.is_zero()) {
                return Ok(None);
            }
            self.stream.set_read_timeout(limit)?;
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => self.received.extend_from_slice(&piece[..len]),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

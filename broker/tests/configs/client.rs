//! An MQTT 3.1.1 client that waits for each answer, and tells a refusal from a broken connection.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use rustls::{ClientConfig, ClientConnection, StreamOwned, pki_types::ServerName};

/// Nothing here takes a second on a machine with nothing else to do.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a broker may take to refuse with words, if it has any for it.
const SILENCE: Duration = Duration::from_secs(3);

/// A message that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) topic: String,
    pub(crate) payload: String,
    pub(crate) retained: bool,
}

/// A connected client.
pub(crate) struct Client {
    stream: StreamOwned<ClientConnection, TcpStream>,
    inbox: VecDeque<Message>,
    packet_id: u16,
    /// Whether silence is an error rather than the end of the test.
    lenient: bool,
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// What a CONNECT may bring besides a client id.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct More<'a> {
    /// A last will, retained: topic and payload.
    pub(crate) will: Option<(&'a str, &'a str)>,
    /// User name and password.
    pub(crate) login: Option<(&'a str, &'a str)>,
}

fn text(text: &str, out: &mut Vec<u8>) {
    out.extend(u16::try_from(text.len()).unwrap().to_be_bytes());
    out.extend(text.as_bytes());
}

fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    let mut length = body.len();
    loop {
        let digit = u8::try_from(length % 128).unwrap();
        length /= 128;
        bytes.push(if length > 0 { digit | 0x80 } else { digit });
        if length == 0 {
            break;
        }
    }
    bytes.extend(body);
    bytes
}

impl Client {
    /// Connects with a clean session.
    pub(crate) fn connect(
        address: SocketAddr,
        tls: Arc<ClientConfig>,
        client_id: &str,
        more: More<'_>,
    ) -> io::Result<Self> {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(tls, name).map_err(io::Error::other)?;
        let stream = StreamOwned::new(connection, socket);
        let mut client = Self { stream, inbox: VecDeque::new(), packet_id: 0, lenient: false };
        let mut body = Vec::new();
        text("MQTT", &mut body);
        // Clean session; a will at least once, retained; user name and password.
        let will = more.will.map_or(0, |_| 0x04 | 0x08 | 0x20);
        body.extend([4, 0x02 | will | more.login.map_or(0, |_| 0xc0)]);
        body.extend(60_u16.to_be_bytes());
        text(client_id, &mut body);
        for (first, second) in more.will.into_iter().chain(more.login) {
            text(first, &mut body);
            text(second, &mut body);
        }
        client.send(&packet(0x10, &body))?;
        match client.read()? {
            (0x20, answer) if answer.get(1) == Some(&0) => Ok(client),
            (kind, answer) => Err(io::Error::other(format!("CONNECT is answered with {kind:#x} {answer:?}"))),
        }
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)?;
        self.stream.flush()
    }

    /// The next packet: its first byte and its body.
    fn read(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut byte = || -> io::Result<u8> {
            let mut byte = [0];
            match self.stream.read_exact(&mut byte) {
                Err(error) if is_late(&error) && !self.lenient => panic!("the broker says nothing for {PATIENCE:?}"),
                read => read.map(|()| byte[0]),
            }
        };
        let first = byte()?;
        let (mut length, mut shift) = (0_usize, 0);
        loop {
            let digit = byte()?;
            length |= usize::from(digit & 0x7f) << shift;
            shift += 7;
            if digit & 0x80 == 0 {
                break;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok((first, body))
    }

    /// The next packet that is no PUBLISH; those are acknowledged and kept.
    fn answer(&mut self) -> io::Result<(u8, Vec<u8>)> {
        loop {
            let (first, body) = self.read()?;
            if first & 0xf0 != 0x30 {
                return Ok((first, body));
            }
            self.take(first, &body)?;
        }
    }

    fn take(&mut self, first: u8, body: &[u8]) -> io::Result<()> {
        let (length, rest) = body.split_first_chunk::<2>().unwrap();
        let (topic, mut rest) = rest.split_at(usize::from(u16::from_be_bytes(*length)));
        if first & 0x06 != 0 {
            let (id, payload) = rest.split_first_chunk::<2>().unwrap();
            self.send(&packet(0x40, id))?;
            rest = payload;
        }
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        self.inbox.push_back(Message { topic: text(topic), payload: text(rest), retained: first & 1 == 1 });
        Ok(())
    }

    fn next_id(&mut self) -> u16 {
        self.packet_id += 1;
        self.packet_id
    }

    /// Subscribes at least once. Whether that was granted; an error if the connection was ended for it.
    pub(crate) fn subscribe(&mut self, filter: &str) -> io::Result<bool> {
        let mut body = self.next_id().to_be_bytes().to_vec();
        text(filter, &mut body);
        body.push(1);
        self.send(&packet(0x82, &body))?;
        match self.answer()? {
            (0x90, answer) => Ok(answer.get(2).is_some_and(|code| *code < 0x80)),
            (kind, _) => panic!("SUBSCRIBE is answered with {kind:#x}"),
        }
    }

    /// Publishes at least once, and waits until it is acknowledged; an error if the connection was ended for it.
    pub(crate) fn publish(&mut self, topic: &str, payload: &str, retained: bool) -> io::Result<()> {
        let mut body = Vec::new();
        text(topic, &mut body);
        body.extend(self.next_id().to_be_bytes());
        body.extend(payload.as_bytes());
        self.send(&packet(if retained { 0x33 } else { 0x32 }, &body))?;
        match self.answer()? {
            (0x40, _) => Ok(()),
            (kind, _) => panic!("PUBLISH is answered with {kind:#x}"),
        }
    }

    /// Publishes to a broker that may refuse by silence, which is waited for in vain for a while.
    pub(crate) fn publish_in_vain(mut self, topic: &str, payload: &str) {
        self.lenient = true;
        self.stream.sock.set_read_timeout(Some(SILENCE)).unwrap();
        let _ = self.publish(topic, payload, false);
    }

    /// The next message.
    pub(crate) fn next(&mut self) -> Message {
        loop {
            if let Some(message) = self.inbox.pop_front() {
                return message;
            }
            let (first, body) = self.read().unwrap();
            if first & 0xf0 == 0x30 {
                self.take(first, &body).unwrap();
            }
        }
    }

    /// Waits for a message with this payload; gives all before it, and it.
    pub(crate) fn until(&mut self, payload: &str) -> Vec<Message> {
        let mut messages = Vec::new();
        loop {
            messages.push(self.next());
            if messages.last().is_some_and(|message| message.payload == payload) {
                return messages;
            }
        }
    }

    /// Cuts the connection without a farewell, so that the last will goes out.
    pub(crate) fn die(self) {
        let _ = self.stream.sock.shutdown(std::net::Shutdown::Both);
    }
}

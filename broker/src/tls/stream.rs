//! The server's side of a TLS connection, on rustls's unbuffered API: records are decrypted and encrypted in buffers of the
//! thread ([`ScratchBuffer`]), and the rest is kept in a [`LazyQueue`].
//!
//! **Invariant: an idle stream holds no buffer.** An idle client costs rustls's own state and its
//! certificate.
//!
//! **Invariant: the state of a cancelled call is in the stream**, so that no byte is lost or sent twice.
//!
//! Reading and writing must happen in one task: answers to a client's alerts and the end of a failed connection are
//! written while reading, and the socket wakes only one writer.

use std::{
    future::poll_fn,
    io, mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Buf;
use rustls::{
    Error, ServerConfig,
    pki_types::CertificateDer,
    server::UnbufferedServerConnection,
    unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{
    scratch::{LazyQueue, SCRATCH_BYTES, ScratchBuffer},
    stream::farewell,
};

/// The largest rest of a read: part of a record (16,640 bytes at most), or of a handshake message in several. The
/// longest of these has the client's certificates; one of the fleet's takes a kilobyte.
const LEFT_OVER_MAX_BYTES: usize = 17 * 1024;

/// The least read size: a few small records at once.
const READ_MIN_BYTES: usize = 4 * 1024;

/// The overhead of the largest record, and of what else may be sent with one.
const OVERHEAD_BYTES: usize = 512;

/// How much is encrypted at once: two records.
const WRITE_MAX_BYTES: usize = 32 * 1024;

const _: () = assert!(LEFT_OVER_MAX_BYTES + 16 * 1024 + OVERHEAD_BYTES <= SCRATCH_BYTES);
const _: () = assert!(WRITE_MAX_BYTES + 2 * OVERHEAD_BYTES <= SCRATCH_BYTES);

/// A TLS connection over `S`.
pub(crate) struct TlsStream<S> {
    io: S,
    tls: UnbufferedServerConnection,
    /// Received bytes that are not decrypted: part of a record, or whole ones for which there was no room.
    incoming: LazyQueue,
    /// Decrypted bytes that are not read.
    plain: LazyQueue,
    /// Encrypted bytes that are not written.
    outgoing: LazyQueue,
    /// Whether the client has sent its close alert.
    peer_closed: bool,
    /// Whether we have sent ours.
    closed: bool,
    failed: Option<Error>,
}

/// Where rustls stops and waits for us.
enum HandshakeStop {
    /// It needs more input.
    Blocked,
    /// It needs more input, or something to encrypt.
    Traffic,
    /// There is no room for more plaintext.
    Full,
    /// The client sends no more.
    PeerClosed,
    /// Neither side sends more.
    Closed,
}

/// Runs rustls on `input`. Plaintext goes to `take`, which returns whether it has room for more; what is to be sent
/// goes to `outgoing`. Returns how much of the input was used.
fn pump(
    tls: &mut UnbufferedServerConnection,
    input: &mut [u8],
    outgoing: &mut LazyQueue,
    mut take: impl FnMut(&[u8]) -> bool,
) -> (usize, Result<HandshakeStop, Error>) {
    let mut used = 0;
    loop {
        let UnbufferedStatus { mut discard, state } =
            tls.process_tls_records(input.get_mut(used..).unwrap_or_default());
        let stop = match state {
            Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                let mut has_room = true;
                loop {
                    match traffic.next_record() {
                        None => break Ok((!has_room).then_some(HandshakeStop::Full)),
                        Some(Err(error)) => break Err(error),
                        Some(Ok(record)) => {
                            discard += record.discard;
                            has_room &= take(record.payload);
                        }
                    }
                }
            }
            Ok(ConnectionState::EncodeTlsData(data)) => encode(data, outgoing).map(|()| None),
            Ok(ConnectionState::TransmitTlsData(sent)) => {
                // It is in `outgoing`, which is written before anything else.
                sent.done();
                Ok(None)
            }
            Ok(ConnectionState::PeerClosed) => Ok(Some(HandshakeStop::PeerClosed)),
            Ok(ConnectionState::Closed) => Ok(Some(HandshakeStop::Closed)),
            Ok(ConnectionState::BlockedHandshake) => Ok(Some(HandshakeStop::Blocked)),
            Ok(ConnectionState::WriteTraffic(_)) => Ok(Some(HandshakeStop::Traffic)),
            Ok(_) => Err(Error::General("an unknown state of TLS".to_owned())),
            Err(error) => Err(error),
        };
        used += discard;
        match stop {
            Ok(None) => (),
            Ok(Some(stop)) => return (used, Ok(stop)),
            Err(error) => return (used, Err(error)),
        }
    }
}

/// Appends a message of TLS itself to `outgoing`.
fn encode<D>(mut data: EncodeTlsData<'_, D>, outgoing: &mut LazyQueue) -> Result<(), Error> {
    // Its length is known only from the error of an empty buffer.
    let length = match data.encode(&mut []) {
        Err(EncodeError::InsufficientSize(size)) => size.required_size,
        Ok(_) | Err(EncodeError::AlreadyEncoded) => return Ok(()),
    };
    data.encode(outgoing.grow(length)).map(drop).map_err(|error| Error::General(error.to_string()))
}

fn broken(error: &Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.clone())
}

fn truncated() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the other side closed the connection without a TLS close alert")
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream<S> {
    /// Performs the handshake. It may take as long as the client likes: a limit is the caller's.
    pub(crate) async fn accept(io: S, config: Arc<ServerConfig>) -> io::Result<Box<Self>> {
        let tls = UnbufferedServerConnection::new(config).map_err(|error| broken(&error))?;
        let mut stream = Box::new(Self {
            io,
            tls,
            incoming: LazyQueue::default(),
            plain: LazyQueue::default(),
            outgoing: LazyQueue::default(),
            peer_closed: false,
            closed: false,
            failed: None,
        });
        match poll_fn(|cx| stream.poll_handshake(cx)).await {
            Ok(()) => Ok(stream),
            Err(error) => {
                if stream.failed.is_some() {
                    // A client of TLS 1.3 considers the handshake done, and continues to send.
                    farewell(&mut stream.io, &[]).await;
                }
                Err(error)
            }
        }
    }

    /// Returns the client's certificate with intermediates.
    pub(crate) fn peer_certificates(&self) -> Option<&[CertificateDer<'static>]> {
        self.tls.peer_certificates()
    }

    fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.failed.is_none() {
                self.settle();
            }
            let sent = ready!(self.poll_send(cx));
            if let Some(error) = &self.failed {
                // Whether or not the alert could be sent.
                return Poll::Ready(Err(broken(error)));
            }
            sent?;
            if !self.tls.is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            if self.peer_closed {
                return Poll::Ready(Err(truncated()));
            }
            let mut scratch = ScratchBuffer::new();
            let filled = ready!(self.poll_fill(cx, &mut scratch, READ_MIN_BYTES))?;
            self.incoming.push(scratch.get(..filled).unwrap_or_default());
        }
    }

    /// Reads after the rest of the previous read, into `scratch`, and returns the total length.
    fn poll_fill(&mut self, cx: &mut Context<'_>, scratch: &mut [u8], wanted: usize) -> Poll<io::Result<usize>> {
        let left_over = self.incoming.len();
        if left_over > LEFT_OVER_MAX_BYTES {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "a TLS handshake message is too long")));
        }
        let (front, room) = scratch.split_at_mut(left_over);
        let end = wanted.min(room.len());
        let mut read = ReadBuf::new(room.get_mut(..end).unwrap_or_default());
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut read))?;
        let count = read.filled().len();
        if count == 0 {
            return Poll::Ready(Err(truncated()));
        }
        front.copy_from_slice(self.incoming.as_slice());
        self.incoming.clear();
        Poll::Ready(Ok(left_over + count))
    }

    /// Keeps the rest of the input, if it is useful.
    fn left(&mut self, input: LazyQueue) {
        if !self.peer_closed && self.failed.is_none() {
            self.incoming = input;
        }
    }

    /// Runs rustls on all received bytes, and keeps the plaintext: it only encrypts when it has nothing to decrypt.
    /// Returns whether it can encrypt now.
    fn settle(&mut self) -> bool {
        loop {
            let Self { tls, incoming, outgoing, plain, .. } = self;
            let (used, stop) = pump(tls, incoming.as_mut_slice(), outgoing, |text| {
                plain.push(text);
                true
            });
            self.incoming.advance(used);
            match self.stopped(stop) {
                Some(HandshakeStop::Traffic) => return true,
                // It reports this once, and then continues.
                Some(HandshakeStop::PeerClosed) => (),
                Some(HandshakeStop::Blocked | HandshakeStop::Full | HandshakeStop::Closed) | None => return false,
            }
        }
    }

    /// Records where rustls stopped. Returns `None` if it has failed.
    fn stopped(&mut self, stop: Result<HandshakeStop, Error>) -> Option<HandshakeStop> {
        match stop {
            Ok(stop) => {
                if matches!(stop, HandshakeStop::PeerClosed | HandshakeStop::Closed) {
                    self.peer_closed = true;
                    self.incoming.clear();
                }
                Some(stop)
            }
            Err(error) => {
                self.last_words();
                self.failed = Some(error);
                None
            }
        }
    }

    /// Encodes the alert for the client after an error.
    fn last_words(&mut self) {
        while self.tls.wants_write() {
            let UnbufferedStatus { discard, state } = self.tls.process_tls_records(self.incoming.as_mut_slice());
            match state {
                Ok(ConnectionState::EncodeTlsData(data)) => {
                    if encode(data, &mut self.outgoing).is_err() {
                        break;
                    }
                }
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(Ok(record)) = traffic.next_record() {
                        self.plain.push(record.payload);
                    }
                }
                _ => break,
            }
            self.incoming.advance(discard);
        }
        self.incoming.clear();
    }

    /// Writes encrypted bytes.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.outgoing.is_empty() {
            let count = ready!(Pin::new(&mut self.io).poll_write(cx, self.outgoing.as_slice()))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.outgoing.advance(count);
        }
        Poll::Ready(Ok(()))
    }

    /// Decrypts `input` into `buf`, as long as that has room, and keeps the rest.
    fn decrypt(&mut self, input: &mut [u8], buf: &mut ReadBuf<'_>) -> usize {
        let Self { tls, outgoing, plain, .. } = self;
        let (used, stop) = pump(tls, input, outgoing, |text| {
            let (fits, rest) = text.split_at(text.len().min(buf.remaining()));
            buf.put_slice(fits);
            if !rest.is_empty() {
                plain.push(rest);
            }
            buf.remaining() > 0
        });
        self.stopped(stop);
        used
    }

    /// Encrypts data into `out` and returns the length. Received bytes are decrypted first, because rustls encrypts
    /// only then.
    fn encrypt(&mut self, what: &PlainText<'_>, out: &mut [u8]) -> io::Result<usize> {
        let ready = self.settle();
        if let Some(error) = &self.failed {
            return Err(broken(error));
        }
        let state = self.tls.process_tls_records(self.incoming.as_mut_slice()).state;
        let (true, Ok(ConnectionState::WriteTraffic(mut traffic))) = (ready, state) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let encrypted = match what {
            PlainText::Text(text) => traffic.encrypt(text, out),
            PlainText::Goodbye => traffic.queue_close_notify(out),
        };
        encrypted.map_err(|error| {
            let error = Error::General(error.to_string());
            let told = broken(&error);
            self.stopped(Err(error));
            told
        })
    }
}

/// What is to be encrypted.
enum PlainText<'a> {
    Text(&'a [u8]),
    Goodbye,
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for TlsStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if !this.plain.is_empty() {
            let count = this.plain.len().min(buf.remaining());
            buf.put_slice(this.plain.as_slice().get(..count).unwrap_or_default());
            this.plain.advance(count);
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        if !this.incoming.is_empty() && !this.peer_closed {
            let mut input = mem::take(&mut this.incoming);
            let used = this.decrypt(input.as_mut_slice(), buf);
            input.advance(used);
            this.left(input);
        }
        loop {
            if buf.filled().len() > before || this.peer_closed && this.failed.is_none() {
                return Poll::Ready(Ok(()));
            }
            if let Some(error) = &this.failed {
                let error = broken(error);
                // This is the last opportunity to send it; if it fails, the connection has ended anyway.
                let _ = this.poll_send(cx);
                return Poll::Ready(Err(error));
            }
            let wanted = (buf.remaining() + OVERHEAD_BYTES).max(READ_MIN_BYTES);
            let mut scratch = ScratchBuffer::new();
            let filled = ready!(this.poll_fill(cx, &mut scratch, wanted))?;
            let used = this.decrypt(scratch.get_mut(..filled).unwrap_or_default(), buf);
            let mut rest = LazyQueue::default();
            rest.push(scratch.get(used..filled).unwrap_or_default());
            this.left(rest);
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TlsStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        // Nothing new is taken while something waits, or it would accumulate.
        ready!(this.poll_send(cx))?;
        let count = buf.len().min(WRITE_MAX_BYTES);
        let text = buf.get(..count).unwrap_or_default();
        if text.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let mut scratch = ScratchBuffer::new();
        let length = this.encrypt(&PlainText::Text(text), &mut scratch)?;
        let sealed = scratch.get(..length).unwrap_or_default();
        // What rustls itself has to send goes first.
        let sent = if this.outgoing.is_empty() {
            match Pin::new(&mut this.io).poll_write(cx, sealed) {
                Poll::Ready(sent) => sent?,
                Poll::Pending => 0,
            }
        } else {
            0
        };
        this.outgoing.push(sealed.get(sent..).unwrap_or_default());
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.failed.is_none() && this.tls.wants_write() {
            this.settle();
        }
        ready!(this.poll_send(cx))?;
        Pin::new(&mut this.io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.closed {
            this.closed = true;
            let mut scratch = ScratchBuffer::new();
            // A connection that has failed has ended already.
            if let Ok(length) = this.encrypt(&PlainText::Goodbye, &mut scratch) {
                this.outgoing.push(scratch.get(..length).unwrap_or_default());
            }
        }
        ready!(this.poll_send(cx))?;
        Pin::new(&mut this.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;

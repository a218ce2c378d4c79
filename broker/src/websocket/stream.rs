//! A WebSocket as the stream of bytes that MQTT needs.
//!
//! **Invariant: an idle stream holds no buffer.**
//!
//! Pongs, and the answer to a close frame, are written while reading: reading and writing belong to one task.

use std::{
    io, mem,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Buf;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    time::timeout,
};

use super::{
    frame::{self, FrameEvent, FrameKind, FrameReader, FrameViolation, HEADER_MAX_BYTES},
    upgrade::{self, HEAD_MAX_BYTES, UpgradeRefusal},
};
use crate::{
    scratch::{LazyQueue, ScratchBuffer},
    stream::farewell,
};

/// The largest message written: with its header it is what TLS encrypts at once.
const WRITE_MAX_BYTES: usize = 32 * 1024 - HEADER_MAX_BYTES;

/// The least read size: a few small frames at once.
const READ_MIN_BYTES: usize = 4 * 1024;

/// What may wait to be written when a ping is answered: a message, and pongs of the same length. A client that sends
/// more pings than it reads answers does not get all; the standard requires only the last.
const PONG_BACKLOG_MAX_BYTES: usize = 2 * WRITE_MAX_BYTES;

/// The code of a normal close frame.
const NORMAL: u16 = 1000;

/// Why a connection does not become a WebSocket.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WebSocketError {
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    #[error("the connection ended before a request")]
    Ended,
    #[error(transparent)]
    Refused(#[from] UpgradeRefusal),
}

/// A WebSocket over `S`.
pub(crate) struct WebSocketStream<S> {
    io: S,
    reader: FrameReader,
    /// Received bytes that are not read: part of a frame, or what there was no room for.
    incoming: LazyQueue,
    /// Frames that are not written.
    outgoing: LazyQueue,
    /// Whether the client has sent its close frame.
    peer_closed: bool,
    /// Whether we have sent ours.
    closed: bool,
    failed: Option<FrameViolation>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocketStream<S> {
    /// Reads a request and answers it. An invalid or late request gets an error.
    pub(crate) async fn accept(
        mut io: S,
        frame_max_bytes: usize,
        patience: Duration,
    ) -> Result<Box<Self>, WebSocketError> {
        let answered = match timeout(patience, request(&mut io)).await {
            Ok(request) => request,
            Err(_) => Err(UpgradeRefusal::Timeout.into()),
        };
        match answered {
            Ok((answer, incoming)) => {
                let mut outgoing = LazyQueue::default();
                // It is sent with the first write or read.
                outgoing.push(answer.as_bytes());
                let reader = FrameReader::new(frame_max_bytes);
                Ok(Box::new(Self { io, reader, incoming, outgoing, peer_closed: false, closed: false, failed: None }))
            }
            Err(error) => {
                if let WebSocketError::Refused(refusal) = &error {
                    farewell(&mut io, refusal.answer().as_bytes()).await;
                }
                Err(error)
            }
        }
    }

    /// Handles `input` as far as `buf` has room, and returns how much of it was used.
    fn take(&mut self, input: &mut [u8], buf: &mut ReadBuf<'_>) -> usize {
        let mut used = 0;
        while !self.peer_closed && self.failed.is_none() && buf.remaining() > 0 {
            match self.reader.read(input.get_mut(used..).unwrap_or_default(), buf.remaining()) {
                Ok(None) => break,
                Ok(Some((step, count))) => {
                    used += count;
                    match step {
                        FrameEvent::Data(data) => buf.put_slice(data),
                        FrameEvent::Ping(content) if self.outgoing.len() < PONG_BACKLOG_MAX_BYTES && !self.closed => {
                            push(&mut self.outgoing, FrameKind::Pong, content);
                        }
                        FrameEvent::Ping(_) | FrameEvent::Pong => (),
                        FrameEvent::Close(code) => {
                            self.peer_closed = true;
                            self.close(code);
                        }
                    }
                }
                Err(violation) => {
                    self.failed = Some(violation);
                    self.close(Some(violation.code()));
                }
            }
        }
        used
    }

    /// Sends the close frame.
    fn close(&mut self, code: Option<u16>) {
        if !self.closed {
            self.closed = true;
            let code = code.map(u16::to_be_bytes);
            push(&mut self.outgoing, FrameKind::Close, code.as_ref().map_or(&[], |code| &code[..]));
        }
    }

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

    /// Sends what reading has caused, as far as possible now.
    fn send_some(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.outgoing.is_empty() {
            return Ok(());
        }
        match self.poll_send(cx) {
            Poll::Ready(Ok(())) => match Pin::new(&mut self.io).poll_flush(cx) {
                Poll::Ready(flushed) => flushed,
                Poll::Pending => Ok(()),
            },
            Poll::Ready(Err(error)) => Err(error),
            Poll::Pending => Ok(()),
        }
    }

    /// Returns how reading has ended, if it has.
    fn end(&self) -> Option<io::Result<()>> {
        match self.failed {
            Some(violation) => Some(Err(io::Error::new(io::ErrorKind::InvalidData, violation))),
            None => self.peer_closed.then_some(Ok(())),
        }
    }
}

/// Reads a request; returns the answer, and what followed the request.
async fn request(io: &mut (impl AsyncRead + Unpin)) -> Result<(String, LazyQueue), WebSocketError> {
    let mut input = Vec::with_capacity(1024);
    loop {
        if io.read_buf(&mut input).await? == 0 {
            return Err(WebSocketError::Ended);
        }
        if let Some((answer, length)) = upgrade::read(&input)? {
            let mut rest = LazyQueue::default();
            rest.push(input.get(length..).unwrap_or_default());
            return Ok((answer, rest));
        }
        input.reserve(HEAD_MAX_BYTES.saturating_sub(input.len()).max(1));
    }
}

fn push(outgoing: &mut LazyQueue, kind: FrameKind, content: &[u8]) {
    let mut header = [0; HEADER_MAX_BYTES];
    let size = frame::write_header(kind, content.len(), &mut header);
    outgoing.push(header.get(..size).unwrap_or_default());
    outgoing.push(content);
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for WebSocketStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        if !this.incoming.is_empty() {
            let mut input = mem::take(&mut this.incoming);
            let used = this.take(input.as_mut_slice(), buf);
            input.advance(used);
            this.incoming = input;
        }
        loop {
            let sent = this.send_some(cx);
            if buf.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
            if let Some(end) = this.end() {
                this.incoming.clear();
                return Poll::Ready(end);
            }
            sent?;
            let mut scratch = ScratchBuffer::new();
            // Part of a header or of a control frame, no more.
            let left_over = this.incoming.len();
            let (front, room) = scratch.split_at_mut(left_over);
            let wanted = buf.remaining().max(READ_MIN_BYTES).min(room.len());
            let mut read = ReadBuf::new(room.get_mut(..wanted).unwrap_or_default());
            ready!(Pin::new(&mut this.io).poll_read(cx, &mut read))?;
            let filled = left_over + read.filled().len();
            if filled == left_over {
                let text = "the other side closed the connection without a WebSocket close frame";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::UnexpectedEof, text)));
            }
            front.copy_from_slice(this.incoming.as_slice());
            this.incoming.clear();
            let used = this.take(scratch.get_mut(..filled).unwrap_or_default(), buf);
            this.incoming.push(scratch.get(used..filled).unwrap_or_default());
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WebSocketStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        // Nothing new is taken while something waits, or it would accumulate.
        ready!(this.poll_send(cx))?;
        let count = buf.len().min(WRITE_MAX_BYTES);
        let content = buf.get(..count).unwrap_or_default();
        if content.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let mut scratch = ScratchBuffer::new();
        let mut header = [0; HEADER_MAX_BYTES];
        let size = frame::write_header(FrameKind::Binary, count, &mut header);
        let (front, behind) = scratch.split_at_mut(size);
        front.copy_from_slice(header.get(..size).unwrap_or_default());
        behind.get_mut(..count).unwrap_or_default().copy_from_slice(content);
        let message = scratch.get(..size + count).unwrap_or_default();
        let sent = match Pin::new(&mut this.io).poll_write(cx, message) {
            Poll::Ready(sent) => sent?,
            Poll::Pending => 0,
        };
        this.outgoing.push(message.get(sent..).unwrap_or_default());
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_send(cx))?;
        Pin::new(&mut this.io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.close(Some(NORMAL));
        ready!(this.poll_send(cx))?;
        Pin::new(&mut this.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;

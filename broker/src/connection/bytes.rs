//! Moves bytes between a client and its buffers. A call that is not ready has moved nothing, so it can be
//! cancelled.

use std::{
    io,
    mem::MaybeUninit,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::io::poll_read_buf;

use crate::codec;

/// The read size for a client that sends little. Bytes are read onto the stack, so that a quiet client has no buffer.
const READ_MIN_BYTES: usize = 8 * 1024;

/// The read buffer of a client that fills it.
const READ_MAX_BYTES: usize = 64 * 1024;

/// A larger buffer is released when it is empty.
const KEPT_BYTES: usize = 256;

/// The read and write buffers.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    /// Bytes that were read and not parsed yet.
    pub(super) input: BytesMut,
    /// Bytes to be written.
    pub(super) output: BytesMut,
    /// Whether the last read filled the buffer.
    reads_much: bool,
    /// Whether the stream may have bytes that are not flushed.
    unflushed: bool,
}

impl Buffers {
    /// Reads into `input`; returns the number of bytes, 0 at the end.
    pub(super) fn poll_read(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if !self.reads_much && self.input.is_empty() {
            let mut room = [MaybeUninit::uninit(); READ_MIN_BYTES];
            let mut buffer = ReadBuf::uninit(&mut room);
            ready!(Pin::new(stream).poll_read(context, &mut buffer))?;
            self.input.extend_from_slice(buffer.filled());
            self.reads_much = buffer.remaining() == 0;
            return Poll::Ready(Ok(buffer.filled().len()));
        }
        self.input.reserve(codec::missing(&self.input).clamp(READ_MIN_BYTES, READ_MAX_BYTES));
        let room = self.input.capacity() - self.input.len();
        let count = ready!(poll_read_buf(Pin::new(stream), context, &mut self.input))?;
        self.reads_much = count == room;
        Poll::Ready(Ok(count))
    }

    /// Whether there is anything to write.
    pub(super) fn has_output(&self) -> bool {
        !self.output.is_empty() || self.unflushed
    }

    /// Writes some of `output`, or flushes the stream if there is nothing more.
    pub(super) fn poll_write(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin),
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if self.output.is_empty() {
            ready!(Pin::new(stream).poll_flush(context))?;
            self.unflushed = false;
            return Poll::Ready(Ok(()));
        }
        let count = ready!(Pin::new(stream).poll_write(context, &self.output))?;
        if count == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.unflushed = true;
        self.output.advance(count);
        if self.output.is_empty() {
            give_back(&mut self.output);
        }
        Poll::Ready(Ok(()))
    }

    /// Puts the input back after packets were taken from it; a large buffer is released.
    pub(super) fn put_back(&mut self, input: BytesMut) {
        self.input = input;
        if self.input.is_empty() && !self.reads_much {
            give_back(&mut self.input);
        }
    }
}

fn give_back(buffer: &mut BytesMut) {
    if buffer.capacity() > KEPT_BYTES {
        *buffer = BytesMut::new();
    } else {
        buffer.clear();
    }
}

//! Moving bytes between a client and its buffers. Each call moves some or none, so that one which is dropped half-way lost
//! nothing.

use std::io;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};

use crate::{codec, stream::Stream};

/// Room for reading from a client that sends little.
pub(super) const READ_MIN_BYTES: usize = 1024;

/// Room for reading from a client that fills what it is given.
const READ_MAX_BYTES: usize = 64 * 1024;

/// Reads into `input`, giving it room for what a packet that has begun still needs.
pub(super) async fn read(
    reader: &mut ReadHalf<Stream>,
    input: &mut BytesMut,
    reads_much: &mut bool,
) -> io::Result<usize> {
    let least = if *reads_much { READ_MAX_BYTES } else { READ_MIN_BYTES };
    input.reserve(codec::missing(input).clamp(least, READ_MAX_BYTES));
    let room = input.capacity() - input.len();
    let count = reader.read_buf(input).await?;
    *reads_much = count == room;
    Ok(count)
}

/// Writes some of `output`, or flushes what TLS holds if there is nothing more.
pub(super) async fn write(
    writer: &mut WriteHalf<Stream>,
    output: &mut BytesMut,
    unflushed: &mut bool,
) -> io::Result<()> {
    if output.is_empty() {
        writer.flush().await?;
        *unflushed = false;
        return Ok(());
    }
    let count = writer.write(output).await?;
    if count == 0 {
        return Err(io::ErrorKind::WriteZero.into());
    }
    *unflushed = true;
    output.advance(count);
    if output.is_empty() {
        // A quiet client is not to keep the room that a large message took.
        if output.capacity() > READ_MIN_BYTES { *output = BytesMut::new() } else { output.clear() }
    }
    Ok(())
}

//! One type for every transport, so that the rest of the broker does not depend on it.
//!
//! **Invariant: an idle stream holds no buffers**, whatever its transport.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::TcpStream,
    time::timeout,
};

use crate::{tls::TlsStream, websocket::WebSocketStream};

/// How long a refused client may take to read the reason.
const LINGER: Duration = Duration::from_secs(2);

/// A connection, whatever its transport. Both directions belong to one task.
pub(crate) enum ClientStream {
    /// TCP as it is.
    Plain(TcpStream),
    /// TLS over it.
    Tls(Box<TlsStream<TcpStream>>),
    /// WebSocket over that.
    WebSocket(Box<WebSocketStream<Box<TlsStream<TcpStream>>>>),
}

/// Sends `last` and ends the connection, but not before the other side had time to read it: closing a socket with
/// unread data discards what was sent.
pub(crate) async fn farewell(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), last: &[u8]) {
    let farewell = async {
        stream.write_all(last).await?;
        stream.shutdown().await?;
        let mut ignored = [0; 256];
        while stream.read(&mut ignored).await? != 0 {}
        io::Result::Ok(())
    };
    // A client that does not wait gets no reason.
    let _ = timeout(LINGER, farewell).await;
}

/// Calls the same method on any variant.
macro_rules! each {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream.get_mut() {
            ClientStream::Plain(inner) => {
                let $inner = Pin::new(inner);
                $call
            }
            ClientStream::Tls(inner) => {
                let $inner = Pin::new(inner);
                $call
            }
            ClientStream::WebSocket(inner) => {
                let $inner = Pin::new(inner);
                $call
            }
        }
    };
}

impl AsyncRead for ClientStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        each!(self, inner => inner.poll_read(cx, buf))
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        each!(self, inner => inner.poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, inner => inner.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, inner => inner.poll_shutdown(cx))
    }
}

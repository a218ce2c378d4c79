//! For tests of streams: a pipe that moves arbitrary numbers of bytes, and both directions at once.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use proptest::test_runner::Config as ProptestConfig;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf, duplex};

/// One end of a pipe that moves few bytes at a time, and sometimes none.
pub(crate) struct Choppy {
    inner: DuplexStream,
    dice: u64,
    max: usize,
}

impl Choppy {
    pub(crate) fn pair(seed: u64, max: usize, buffer: usize) -> (Self, Self) {
        let (a, b) = duplex(buffer);
        (Self { inner: a, dice: seed | 1, max }, Self { inner: b, dice: !seed | 1, max })
    }

    /// Returns how many bytes may be moved now: by xorshift, so that a failure can be reproduced.
    fn throw(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        if self.dice.is_multiple_of(4) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(1 + usize::try_from(self.dice >> 33).unwrap() % self.max)
    }
}

impl AsyncRead for Choppy {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let count = ready!(this.throw(cx)).min(buf.remaining());
        let mut some = vec![0; count];
        let mut some = ReadBuf::new(&mut some);
        ready!(Pin::new(&mut this.inner).poll_read(cx, &mut some))?;
        buf.put_slice(some.filled());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Choppy {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let count = ready!(this.throw(cx)).min(buf.len());
        Pin::new(&mut this.inner).poll_write(cx, &buf[..count])
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

/// Returns a fraction of the usual number of cases, for slow tests; long tests have more of both.
pub(crate) fn fewer(times: u32) -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: usual.cases.div_ceil(times), ..usual }
}

pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let patient = async { tokio::time::timeout(Duration::from_secs(60), test).await.expect("it hangs") };
    runtime.block_on(patient)
}

/// Returns text of which no two parts are alike.
pub(crate) fn text(length: usize) -> Vec<u8> {
    (0..length).map(|index| u8::try_from((index ^ (index >> 8) ^ (index >> 15)) % 251).unwrap()).collect()
}

/// Reads everything and writes `down` at the same time, with a new future for each call: what one leaves behind must be
/// in the stream. Then ends the stream, before the other side does or after it.
pub(crate) async fn exchange_bytes<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    down: &[u8],
    read_size: usize,
    ends_first: bool,
) -> io::Result<Vec<u8>> {
    let (mut got, mut sent, mut ended, mut closed) = (Vec::new(), 0, false, false);
    let mut space = vec![0; read_size];
    poll_fn(|cx| {
        loop {
            let mut moved = false;
            if !ended {
                let mut buf = ReadBuf::new(&mut space);
                if let Poll::Ready(read) = Pin::new(&mut *stream).poll_read(cx, &mut buf) {
                    read?;
                    (ended, moved) = (buf.filled().is_empty(), true);
                    got.extend_from_slice(buf.filled());
                }
            }
            if sent < down.len() {
                if let Poll::Ready(written) = Pin::new(&mut *stream).poll_write(cx, &down[sent..]) {
                    (sent, moved) = (sent + written?, true);
                }
            } else if ends_first || ended {
                if !closed && let Poll::Ready(shut) = Pin::new(&mut *stream).poll_shutdown(cx) {
                    shut?;
                    (closed, moved) = (true, true);
                }
            } else if let Poll::Ready(Err(error)) = Pin::new(&mut *stream).poll_flush(cx) {
                return Poll::Ready(Err(error));
            }
            match (ended && closed, moved) {
                (true, _) => return Poll::Ready(io::Result::Ok(())),
                (false, true) => (),
                (false, false) => return Poll::Pending,
            }
        }
    })
    .await?;
    Ok(got)
}

//! A stream whose peer has to read: a peer that reads nothing for a time is disconnected.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// A stream with a time limit on each write.
#[derive(Debug)]
pub struct TimedWriter<S> {
    io: S,
    limit: Duration,
    /// Fires when a write has waited for too long.
    stuck: Option<Pin<Box<Sleep>>>,
}

impl<S> TimedWriter<S> {
    /// Creates one in which a write that moves no byte for `limit` fails.
    pub fn new(io: S, limit: Duration) -> Self {
        Self { io, limit, stuck: None }
    }

    /// Checks the result of a write.
    fn limited<T>(&mut self, context: &mut Context<'_>, wrote: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if wrote.is_ready() {
            self.stuck = None;
            return wrote;
        }
        let limit = self.limit;
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(sleep(limit)));
        match stuck.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the other side does not read what is sent to it",
            ))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedWriter<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedWriter<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.io).poll_write(context, bytes);
        self.limited(context, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.io).poll_write_vectored(context, slices);
        self.limited(context, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Having nothing to flush does not mean that anything was written.
        match Pin::new(&mut self.io).poll_flush(context) {
            Poll::Pending => self.limited(context, Poll::Pending),
            done => done,
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wrote = Pin::new(&mut self.io).poll_shutdown(context);
        self.limited(context, wrote)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn write_that_nobody_takes_fails_after_its_time() {
        let (ours, _theirs) = duplex(4);
        let mut ours = TimedWriter::new(ours, Duration::from_secs(30));
        let began = tokio::time::Instant::now();
        let error = ours.write_all(b"more than four").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(began.elapsed().as_secs(), 30);
    }

    #[tokio::test(start_paused = true)]
    async fn write_that_is_taken_slowly_goes_on() {
        let (ours, mut theirs) = duplex(4);
        let mut ours = TimedWriter::new(ours, Duration::from_secs(30));
        let reader = async {
            let mut byte = [0];
            for _ in 0..14 {
                sleep(Duration::from_secs(20)).await;
                theirs.read_exact(&mut byte).await.unwrap();
            }
        };
        let (wrote, ()) = tokio::join!(ours.write_all(b"more than four"), reader);
        wrote.unwrap();
    }
}

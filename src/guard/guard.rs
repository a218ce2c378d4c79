//! A guard for tasks: a listener asks it for a [`ConnectionPlace`] for each connection.

use std::{
    collections::HashMap,
    future::{Future, poll_fn},
    io,
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use tokio::{net::TcpStream, sync::Notify, time::sleep_until};
use tokio_util::sync::CancellationToken;

use crate::{
    listen::has_spoken,
    origin::{Origin, RecentLogins},
    places::{Admission, ConnectionActivity, ConnectionPlaces, PlaceLimits},
};

/// The guard of one listener.
#[derive(Clone, Debug)]
pub struct Guard(Arc<GuardShared>);

#[derive(Debug)]
struct GuardShared {
    state: Mutex<GuardState>,
    /// Shared by all listeners of a server.
    logins: Arc<Mutex<RecentLogins>>,
    /// Notified when a place was released.
    freed: Notify,
}

#[derive(Debug)]
struct GuardState {
    places: ConnectionPlaces,
    /// The tokens that end connections, by their places.
    evictions: HashMap<u64, CancellationToken>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Guard {
    /// Creates the guard of a listener. `logins` is shared by all listeners of a server.
    #[must_use]
    pub fn new(limits: PlaceLimits, logins: &Arc<Mutex<RecentLogins>>) -> Self {
        let state = GuardState { places: ConnectionPlaces::new(limits), evictions: HashMap::new() };
        Self(Arc::new(GuardShared { state: Mutex::new(state), logins: Arc::clone(logins), freed: Notify::new() }))
    }

    /// Returns how many places are taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        lock(&self.0.state).places.len()
    }

    /// Returns a place for an accepted connection; `None` if it is to be closed at once.
    pub async fn admit(&self, stream: &TcpStream, peer: SocketAddr) -> Option<ConnectionPlace> {
        let origin = Origin::of(peer.ip());
        // A client that has already sent something waits for us from now on.
        let activity = if has_spoken(stream) { ConnectionActivity::Working } else { ConnectionActivity::Silent };
        loop {
            let mut freed = pin!(self.0.freed.notified());
            // A release after this is not missed.
            freed.as_mut().enable();
            match self.offer(origin, activity) {
                Ok(place) => return place,
                Err(until) => tokio::select! {
                    () = freed => (),
                    () = sleep_until(until.into()) => (),
                },
            }
        }
    }

    /// Returns a place, or none; or until when to wait.
    fn offer(&self, origin: Origin, activity: ConnectionActivity) -> Result<Option<ConnectionPlace>, Instant> {
        let now = Instant::now();
        let mut state = lock(&self.0.state);
        let logins = lock(&self.0.logins);
        let number = match state.places.offer(now, origin, activity, |origin| logins.contains(origin, now)) {
            Admission::Admit(number) => number,
            Admission::Evict { admitted, evicted } => {
                if let Some(eviction) = state.evictions.remove(&evicted) {
                    eviction.cancel();
                }
                admitted
            }
            Admission::Refuse => return Ok(None),
            Admission::Wait(until) => return Err(until),
        };
        let eviction = CancellationToken::new();
        state.evictions.insert(number, eviction.clone());
        Ok(Some(ConnectionPlace {
            inner: Arc::clone(&self.0),
            number,
            origin,
            eviction,
            has_spoken: activity != ConnectionActivity::Silent,
            has_logged_in: AtomicBool::new(false),
        }))
    }
}

/// A connection's place, released on drop.
#[derive(Debug)]
pub struct ConnectionPlace {
    inner: Arc<GuardShared>,
    number: u64,
    origin: Origin,
    eviction: CancellationToken,
    has_spoken: bool,
    has_logged_in: AtomicBool,
}

impl ConnectionPlace {
    /// Returns the origin of the connection.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Returns the token that is cancelled when the connection has to end for another.
    #[must_use]
    pub fn eviction(&self) -> CancellationToken {
        self.eviction.clone()
    }

    /// Sets what the connection does, from now on.
    pub fn set(&self, activity: ConnectionActivity) {
        self.set_since(activity, Instant::now());
    }

    /// Sets what the connection does, and since when.
    pub fn set_since(&self, activity: ConnectionActivity, since: Instant) {
        lock(&self.inner.state).places.set(self.number, activity, since);
    }

    /// Waits until the connection sends something. (`TcpStream::readable` does not help: a stream that was just
    /// accepted counts as readable until it was tried.)
    ///
    /// # Errors
    /// If the connection broke.
    pub async fn hear(&self, stream: &TcpStream) -> io::Result<()> {
        if !self.has_spoken {
            stream.peek(&mut [0]).await?;
        }
        Ok(())
    }

    /// Whether the connection is authenticated.
    #[must_use]
    pub fn has_logged_in(&self) -> bool {
        self.has_logged_in.load(Ordering::Relaxed)
    }

    /// Records that the connection is authenticated.
    pub fn record_login(&self) {
        self.has_logged_in.store(true, Ordering::Relaxed);
        lock(&self.inner.logins).record(self.origin, Instant::now());
    }

    /// Runs a future that reads one unit, such as a handshake: while the future waits, the connection counts as waiting
    /// for the client, since the beginning; while it computes, it does not.
    pub async fn expect<F: Future>(&self, whole: F) -> F::Output {
        let began = Instant::now();
        let mut whole = pin!(whole);
        let mut waits = false;
        poll_fn(|context| {
            if waits {
                self.set_since(ConnectionActivity::Working, began);
            }
            let polled = whole.as_mut().poll(context);
            waits = polled.is_pending();
            self.set_since(if waits { ConnectionActivity::Opening } else { ConnectionActivity::Working }, began);
            polled
        })
        .await
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut state = lock(&self.inner.state);
        state.places.leave(self.number);
        state.evictions.remove(&self.number);
        drop(state);
        self.inner.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, time::Duration};

    use tokio::{
        io::AsyncWriteExt,
        net::TcpListener,
        time::{sleep, timeout},
    };

    use super::*;

    /// The timeout of tests. Nothing here takes a second.
    const PATIENCE: Duration = Duration::from_secs(60);

    struct Case {
        guard: Guard,
        listener: TcpListener,
        clients: Vec<TcpStream>,
    }

    impl Case {
        async fn new(places: usize, grace: Duration) -> Self {
            let limits = PlaceLimits { places, share: places, origin_max: usize::MAX, grace };
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            Self { guard: Guard::new(limits, &Arc::default()), listener, clients: Vec::new() }
        }

        /// Returns the place of another connection, which has sent something or nothing.
        async fn admit(&mut self, speaks: bool) -> ConnectionPlace {
            let mut client = TcpStream::connect(self.listener.local_addr().unwrap()).await.unwrap();
            let (server, peer) = self.listener.accept().await.unwrap();
            if speaks {
                client.write_all(b"x").await.unwrap();
                server.readable().await.unwrap();
            }
            self.clients.push(client);
            timeout(PATIENCE, self.guard.admit(&server, peer)).await.unwrap().unwrap()
        }
    }

    #[tokio::test]
    async fn silent_connection_is_told_to_end_when_somebody_comes() {
        let mut case = Case::new(2, PATIENCE).await;
        let (speaking, silent) = (case.admit(true).await, case.admit(false).await);
        let next = case.admit(true).await;
        assert!(silent.eviction().is_cancelled());
        assert!(!speaking.eviction().is_cancelled() && !next.eviction().is_cancelled());
        // Its place is released once, although it is dropped only now.
        drop(silent);
        assert_eq!(case.guard.taken(), 2);
        drop((speaking, next));
        assert_eq!(case.guard.taken(), 0);
    }

    #[tokio::test]
    async fn connection_that_was_just_accepted_is_not_heard_before_it_speaks() {
        let listener = crate::listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let limits = PlaceLimits { places: 1, share: 1, origin_max: usize::MAX, grace: PATIENCE };
        let guard = Guard::new(limits, &Arc::default());
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, peer) = listener.accept().await.unwrap();
        let place = guard.admit(&server, peer).await.unwrap();
        assert!(timeout(Duration::from_millis(50), place.hear(&server)).await.is_err());
        client.write_all(b"x").await.unwrap();
        timeout(PATIENCE, place.hear(&server)).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn connection_waits_for_a_place_while_all_are_at_work() {
        let mut case = Case::new(1, PATIENCE).await;
        let first = case.admit(true).await;
        let (given_back, second) = tokio::join!(
            async {
                sleep(Duration::from_millis(50)).await;
                assert!(!first.eviction().is_cancelled());
                drop(first);
                Instant::now()
            },
            async {
                let place = case.admit(true).await;
                (Instant::now(), place)
            }
        );
        assert!(second.0 >= given_back);
    }

    #[tokio::test]
    async fn whoever_is_expected_to_go_on_can_be_told_to_end() {
        let mut case = Case::new(1, Duration::ZERO).await;
        let slow = case.admit(true).await;
        let told = async {
            let eviction = slow.eviction();
            tokio::select! {
                () = slow.expect(std::future::pending()) => false,
                () = eviction.cancelled() => true,
            }
        };
        let (told, next) = tokio::join!(timeout(PATIENCE, told), case.admit(true));
        assert!(told.unwrap());
        assert_eq!(next.expect(async { 7 }).await, 7);
    }
}

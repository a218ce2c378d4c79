//! Server-sent events that name what changed, so that a page fetches the regions that show it.
//!
//! An event has a name (`host`, `unit`, `command`, `deployment`, `metrics`, `alert`) and no data; the
//! content comes from the page itself. Each connection begins with `sync`, on which every region is
//! fetched, so that changes between the page and the connection, or during an interruption, are
//! shown too. (It costs one fetch; a command that seems to run forever would cost more.)
//!
//! **Invariant: a change is sent within [`Pacer`]'s period**, and never more often than that: many
//! changes become one event, and the last of them is never left out.

use std::{collections::BTreeSet, convert::Infallible, time::Duration};

use axum::{
    extract::State,
    http::StatusCode,
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::stream;
use muster_topics::name::{CommandId, HostId};
use serde::Deserialize;
use tokio::{
    sync::{
        OwnedSemaphorePermit,
        broadcast::{Receiver, error::RecvError},
    },
    time::{Instant, sleep_until},
};

use super::{extract::PageParams, session::WebSession, state::Web, view::PageWatch};
use crate::{error::Error, page_change::PageChange, state::Console};

/// The most connections that follow changes: each is an open page. A quarter of the listener's limit, so that these
/// never block requests.
pub(super) const FOLLOWERS_MAX: usize = 512;
/// The least time between two events for a page of one host or one command.
const PERIOD: Duration = Duration::from_millis(500);
/// The same for a page of the whole fleet: its regions cost more, and nobody follows ten thousand hosts by eye.
const FLEET_PERIOD: Duration = Duration::from_secs(2);
/// How often a comment is sent, so that both ends notice when the other has gone.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// How often the session is checked: a page of an ended session gets no more events.
const SESSION_CHECK: Duration = Duration::from_secs(30);

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LiveEventKind {
    Sync,
    Host,
    Unit,
    Command,
    Deployment,
    Metrics,
    Alert,
}

impl LiveEventKind {
    fn name(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::Host => "host",
            Self::Unit => "unit",
            Self::Command => "command",
            Self::Deployment => "deployment",
            Self::Metrics => "metrics",
            Self::Alert => "alert",
        }
    }

    /// Returns the event of a change for a page, if it concerns it.
    fn of(change: &PageChange, watch: PageWatch) -> Option<Self> {
        let this_host = |host: &HostId| watch.host.is_none_or(|watched| watched == *host) && watch.command.is_none();
        match change {
            PageChange::Host(host) => this_host(host).then_some(Self::Host),
            PageChange::Deployment(_) | PageChange::Rollout(_) => {
                (watch == PageWatch::default()).then_some(Self::Deployment)
            }
            // A page that shows tasks asks its host again.
            PageChange::Tasks(_) => None,
            PageChange::Unit(host, _) => this_host(host).then_some(Self::Unit),
            // No page shows the measurements of a whole fleet.
            PageChange::Metrics(host) => (watch.host == Some(*host)).then_some(Self::Metrics),
            PageChange::Alert(host) => {
                let concerns = watch.host.is_none_or(|watched| host.is_none_or(|host| host == watched));
                (concerns && watch.command.is_none()).then_some(Self::Alert)
            }
            PageChange::Command(id) => watch.command.is_none_or(|watched| watched == *id).then_some(Self::Command),
        }
    }
}

/// Combines many changes into few events. Time is a parameter.
#[derive(Debug)]
struct Pacer {
    period: Duration,
    waiting: BTreeSet<LiveEventKind>,
    told: Option<Instant>,
}

impl Pacer {
    fn new(period: Duration) -> Self {
        Self { period, waiting: BTreeSet::new(), told: None }
    }

    fn note(&mut self, kind: LiveEventKind) {
        self.waiting.insert(kind);
    }

    /// Returns when the next event may be sent, if one waits.
    fn due(&self, now: Instant) -> Option<Instant> {
        let earliest = self.told.map_or(now, |told| told + self.period);
        (!self.waiting.is_empty()).then(|| earliest.max(now))
    }

    /// Returns the next event, if one may be sent now. Waiting ones are combined.
    fn take(&mut self, now: Instant) -> Option<LiveEventKind> {
        if self.due(now)? > now {
            return None;
        }
        let kind = self.waiting.pop_first()?;
        if self.waiting.is_empty() {
            self.told = Some(now);
        }
        Some(kind)
    }
}

/// What a connection follows.
#[derive(Debug, Deserialize)]
pub(super) struct LiveQuery {
    host: Option<HostId>,
    command: Option<CommandId>,
}

/// Streams events, until the session ends or the console stops.
pub(super) async fn follow(
    State(web): State<Web>,
    session: WebSession,
    PageParams(asked): PageParams<LiveQuery>,
) -> Response {
    let Ok(place) = web.followers.try_acquire_owned() else {
        let error = Error::new(StatusCode::SERVICE_UNAVAILABLE, "too_many", "too many open pages receive live updates")
            .hint("close some pages; this page still works, and shows the state at the time it was loaded");
        return error.into_response();
    };
    let watch = PageWatch { host: asked.host, command: asked.command };
    let follower = LiveFollower::new(web.console, session, watch, place);
    let events = stream::unfold(follower, |mut follower| async move {
        let kind = follower.next().await?;
        // Browsers ignore an event without data.
        Some((Ok::<_, Infallible>(Event::default().event(kind.name()).data("-")), follower))
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(HEARTBEAT)).into_response()
}

struct LiveFollower {
    console: Console,
    session: WebSession,
    watch: PageWatch,
    changes: Receiver<PageChange>,
    pacer: Pacer,
    check: Instant,
    _place: OwnedSemaphorePermit,
}

impl LiveFollower {
    fn new(console: Console, session: WebSession, watch: PageWatch, place: OwnedSemaphorePermit) -> Self {
        // The subscription begins before the first event, which makes the page reload: nothing is missed in between.
        let changes = console.changes();
        let mut pacer = Pacer::new(if watch == PageWatch::default() { FLEET_PERIOD } else { PERIOD });
        pacer.note(LiveEventKind::Sync);
        Self { console, session, watch, changes, pacer, check: Instant::now() + SESSION_CHECK, _place: place }
    }

    /// Waits for the next event. Everything it waits for may be awaited again: dropping it loses nothing.
    async fn next(&mut self) -> Option<LiveEventKind> {
        loop {
            let now = Instant::now();
            if let Some(kind) = self.pacer.take(now) {
                return Some(kind);
            }
            let due = self.pacer.due(now);
            tokio::select! {
                () = self.console.stopping() => return None,
                change = self.changes.recv() => match change {
                    Ok(change) => LiveEventKind::of(&change, self.watch).into_iter().for_each(|kind| self.pacer.note(kind)),
                    // So much changed that some changes were lost.
                    Err(RecvError::Lagged(_)) => self.pacer.note(LiveEventKind::Sync),
                    Err(RecvError::Closed) => return None,
                },
                () = sleep_until(due.unwrap_or(self.check)), if due.is_some() => (),
                () = sleep_until(self.check) => {
                    self.check = Instant::now() + SESSION_CHECK;
                    // While the store cannot be read, sessions stay.
                    if matches!(self.console.session(self.session.secret()).await, Ok(None)) {
                        return None;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_merged_into_few_events() {
        let period = Duration::from_secs(1);
        let (mut pacer, start) = (Pacer::new(period), Instant::now());
        assert_eq!((pacer.take(start), pacer.due(start)), (None, None), "nothing waits");
        pacer.note(LiveEventKind::Host);
        assert_eq!(pacer.take(start), Some(LiveEventKind::Host), "the first goes out at once");
        let soon = start + period / 10;
        for kind in [LiveEventKind::Command, LiveEventKind::Host, LiveEventKind::Command] {
            pacer.note(kind);
            assert_eq!(pacer.take(soon), None);
        }
        assert_eq!(pacer.due(soon), Some(start + period));
        let later = start + period;
        let told = [pacer.take(later), pacer.take(later), pacer.take(later)];
        assert_eq!(told, [Some(LiveEventKind::Host), Some(LiveEventKind::Command), None], "each once, and together");
        pacer.note(LiveEventKind::Unit);
        assert_eq!(pacer.due(later), Some(later + period));
    }

    #[test]
    fn page_gets_only_its_events() {
        let (host, other) = (HostId::random(), HostId::random());
        let (command, another) = (CommandId::new(), CommandId::new());
        let fleet = PageWatch::default();
        let of_host = PageWatch { host: Some(host), command: None };
        let of_command = PageWatch { host: None, command: Some(command) };
        let unit = "default/hello".parse().unwrap();
        let cases = [
            (PageChange::Host(host), [Some(LiveEventKind::Host), Some(LiveEventKind::Host), None]),
            (PageChange::Host(other), [Some(LiveEventKind::Host), None, None]),
            (PageChange::Unit(host, unit), [Some(LiveEventKind::Unit), Some(LiveEventKind::Unit), None]),
            (PageChange::Deployment("shop/till".parse().unwrap()), [Some(LiveEventKind::Deployment), None, None]),
            (PageChange::Metrics(host), [None, Some(LiveEventKind::Metrics), None]),
            (PageChange::Metrics(other), [None, None, None]),
            (PageChange::Alert(Some(host)), [Some(LiveEventKind::Alert), Some(LiveEventKind::Alert), None]),
            (PageChange::Alert(Some(other)), [Some(LiveEventKind::Alert), None, None]),
            (PageChange::Alert(None), [Some(LiveEventKind::Alert), Some(LiveEventKind::Alert), None]),
            (
                PageChange::Command(command),
                [Some(LiveEventKind::Command), Some(LiveEventKind::Command), Some(LiveEventKind::Command)],
            ),
            (PageChange::Command(another), [Some(LiveEventKind::Command), Some(LiveEventKind::Command), None]),
        ];
        for (change, wanted) in cases {
            assert_eq!(
                [fleet, of_host, of_command].map(|watch| LiveEventKind::of(&change, watch)),
                wanted,
                "{change:?}"
            );
        }
    }
}

//! Server-sent events: what changed, so that a page fetches the regions that show it.
//!
//! An event has a name (`host`, `unit`, `command`, `metrics`, `alert`) and says nothing more; what is to be
//! seen comes from the page itself. Each connection begins with `sync`, on which every region is
//! fetched: what changed between the page and the connection, or while it was interrupted, is then
//! there too. (It costs one fetch; a command that seems to run for ever would cost more.)
//!
//! **Invariant: a change is told within [`Pacer`]'s period**, and never more often than that: many
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

use super::{Web, extract::Params, guard::Session, view::Watch};
use crate::console::{Change, Console, Error};

/// The most connections that follow changes at a time: each is a page that somebody looks at. A quarter
/// of what the listener takes, so that these never keep requests out.
pub(super) const FOLLOWERS_MAX: usize = 512;
/// What a page of one host or one command waits between two events.
const PERIOD: Duration = Duration::from_millis(500);
/// What a page of the whole fleet waits: its regions cost more, and no eye follows ten thousand hosts.
const FLEET_PERIOD: Duration = Duration::from_secs(2);
/// A comment is sent so often, so that both ends notice when the other is gone.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// The session is looked up so often: a page of one that has ended hears nothing more.
const SESSION_CHECK: Duration = Duration::from_secs(30);

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Sync,
    Host,
    Unit,
    Command,
    Metrics,
    Alert,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::Host => "host",
            Self::Unit => "unit",
            Self::Command => "command",
            Self::Metrics => "metrics",
            Self::Alert => "alert",
        }
    }

    /// What a page that watches hears of a change.
    fn of(change: &Change, watch: Watch) -> Option<Self> {
        let this_host = |host: &HostId| watch.host.is_none_or(|watched| watched == *host) && watch.command.is_none();
        match change {
            Change::Host(host) => this_host(host).then_some(Self::Host),
            Change::Unit(host, _) => this_host(host).then_some(Self::Unit),
            // Nobody shows the measurements of a whole fleet.
            Change::Metrics(host) => (watch.host == Some(*host)).then_some(Self::Metrics),
            Change::Alert(host) => {
                let concerns = watch.host.is_none_or(|watched| host.is_none_or(|host| host == watched));
                (concerns && watch.command.is_none()).then_some(Self::Alert)
            }
            Change::Command(id) => watch.command.is_none_or(|watched| watched == *id).then_some(Self::Command),
        }
    }
}

/// Makes few events of many changes. Time comes in as a parameter.
#[derive(Debug)]
struct Pacer {
    period: Duration,
    waiting: BTreeSet<Kind>,
    told: Option<Instant>,
}

impl Pacer {
    fn new(period: Duration) -> Self {
        Self { period, waiting: BTreeSet::new(), told: None }
    }

    fn note(&mut self, kind: Kind) {
        self.waiting.insert(kind);
    }

    /// When the next event may go out, if one waits.
    fn due(&self, now: Instant) -> Option<Instant> {
        let earliest = self.told.map_or(now, |told| told + self.period);
        (!self.waiting.is_empty()).then(|| earliest.max(now))
    }

    /// The next event, if one may go out now. Those that wait together go out together.
    fn take(&mut self, now: Instant) -> Option<Kind> {
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
pub(super) struct Asked {
    host: Option<HostId>,
    command: Option<CommandId>,
}

/// Tells what changes, until the session ends or the console stops.
pub(super) async fn follow(State(web): State<Web>, session: Session, Params(asked): Params<Asked>) -> Response {
    let Ok(place) = web.followers.try_acquire_owned() else {
        let error = Error::new(StatusCode::SERVICE_UNAVAILABLE, "too_many", "too many pages follow changes already")
            .hint("close some; this page works without, and shows what was so when it was loaded");
        return error.into_response();
    };
    let watch = Watch { host: asked.host, command: asked.command };
    let follower = Follower::new(web.console, session, watch, place);
    let events = stream::unfold(follower, |mut follower| async move {
        let kind = follower.next().await?;
        // Without data a browser would not tell of the event at all.
        Some((Ok::<_, Infallible>(Event::default().event(kind.name()).data("-")), follower))
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(HEARTBEAT)).into_response()
}

struct Follower {
    console: Console,
    session: Session,
    watch: Watch,
    changes: Receiver<Change>,
    pacer: Pacer,
    check: Instant,
    _place: OwnedSemaphorePermit,
}

impl Follower {
    fn new(console: Console, session: Session, watch: Watch, place: OwnedSemaphorePermit) -> Self {
        // Listening begins before the first event, which makes the page look: nothing falls between.
        let changes = console.changes();
        let mut pacer = Pacer::new(if watch == Watch::default() { FLEET_PERIOD } else { PERIOD });
        pacer.note(Kind::Sync);
        Self { console, session, watch, changes, pacer, check: Instant::now() + SESSION_CHECK, _place: place }
    }

    /// The next event. All that it waits for may be waited for again: nothing is lost if this is dropped.
    async fn next(&mut self) -> Option<Kind> {
        loop {
            let now = Instant::now();
            if let Some(kind) = self.pacer.take(now) {
                return Some(kind);
            }
            let due = self.pacer.due(now);
            tokio::select! {
                () = self.console.stopping() => return None,
                change = self.changes.recv() => match change {
                    Ok(change) => Kind::of(&change, self.watch).into_iter().for_each(|kind| self.pacer.note(kind)),
                    // So much changed that some of it was not heard of.
                    Err(RecvError::Lagged(_)) => self.pacer.note(Kind::Sync),
                    Err(RecvError::Closed) => return None,
                },
                () = sleep_until(due.unwrap_or(self.check)), if due.is_some() => (),
                () = sleep_until(self.check) => {
                    self.check = Instant::now() + SESSION_CHECK;
                    // While the store cannot be read, nobody is sent away.
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
    fn many_changes_become_few_events_and_the_last_is_told() {
        let period = Duration::from_secs(1);
        let (mut pacer, start) = (Pacer::new(period), Instant::now());
        assert_eq!((pacer.take(start), pacer.due(start)), (None, None), "nothing waits");
        pacer.note(Kind::Host);
        assert_eq!(pacer.take(start), Some(Kind::Host), "the first goes out at once");
        let soon = start + period / 10;
        for kind in [Kind::Command, Kind::Host, Kind::Command] {
            pacer.note(kind);
            assert_eq!(pacer.take(soon), None);
        }
        assert_eq!(pacer.due(soon), Some(start + period));
        let later = start + period;
        let told = [pacer.take(later), pacer.take(later), pacer.take(later)];
        assert_eq!(told, [Some(Kind::Host), Some(Kind::Command), None], "each once, and together");
        pacer.note(Kind::Unit);
        assert_eq!(pacer.due(later), Some(later + period));
    }

    #[test]
    fn a_page_hears_of_what_it_shows() {
        let (host, other) = (HostId::random(), HostId::random());
        let (command, another) = (CommandId::new(), CommandId::new());
        let fleet = Watch::default();
        let of_host = Watch { host: Some(host), command: None };
        let of_command = Watch { host: None, command: Some(command) };
        let unit = "default/hello".parse().unwrap();
        let cases = [
            (Change::Host(host), [Some(Kind::Host), Some(Kind::Host), None]),
            (Change::Host(other), [Some(Kind::Host), None, None]),
            (Change::Unit(host, unit), [Some(Kind::Unit), Some(Kind::Unit), None]),
            (Change::Metrics(host), [None, Some(Kind::Metrics), None]),
            (Change::Metrics(other), [None, None, None]),
            (Change::Alert(Some(host)), [Some(Kind::Alert), Some(Kind::Alert), None]),
            (Change::Alert(Some(other)), [Some(Kind::Alert), None, None]),
            (Change::Alert(None), [Some(Kind::Alert), Some(Kind::Alert), None]),
            (Change::Command(command), [Some(Kind::Command), Some(Kind::Command), Some(Kind::Command)]),
            (Change::Command(another), [Some(Kind::Command), Some(Kind::Command), None]),
        ];
        for (change, wanted) in cases {
            assert_eq!([fleet, of_host, of_command].map(|watch| Kind::of(&change, watch)), wanted, "{change:?}");
        }
    }
}

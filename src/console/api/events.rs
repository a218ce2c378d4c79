//! Progress of a command as server-sent events: first the known state, then changes, both read from the
//! store. A [`PageChange`] only triggers the next read, so no change is missed or sent
//! twice.

use std::{
    collections::{HashMap, VecDeque},
    convert::Infallible,
    time::Duration,
};

use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::{Stream, stream};
use muster_api::{Command, CommandEvent, CommandHost, CommandState};
use muster_topics::{
    name::{CommandId, HostId},
    outcome::{Data, Stream as Output},
};
use tokio::{
    sync::broadcast::{self, error::RecvError},
    time::{Instant, timeout_at},
};

use crate::{
    error::Error,
    page_change::PageChange,
    state::Console,
    store::command::{Chunk, output_after, output_bytes},
};

/// Pieces of output that are read at a time: at most 4 MiB.
const PIECES: u32 = 256;
/// Without notifications, the store is checked this often: notifications are dropped if there are too many.
const LOOK: Duration = Duration::from_secs(10);
/// How long the end waits for pieces of output that an outcome counts and that have not arrived.
const STRAGGLERS: Duration = Duration::from_secs(10);
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Streams the events of one command.
pub(super) fn stream(console: Console, id: CommandId) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let follower = CommandFollower::new(console, id);
    let events = stream::unfold(follower, |mut follower| async move {
        let event = follower.next().await?;
        Some((Ok(sse(&event)), follower))
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
}

fn sse(event: &CommandEvent) -> Event {
    let name = match event {
        CommandEvent::Host(_) => "host",
        CommandEvent::Output { .. } => "output",
        CommandEvent::End => "end",
    };
    // The types of the API always serialise.
    Event::default().event(name).data(serde_json::to_string(event).unwrap_or_default())
}

/// Follows one command.
pub(super) struct CommandFollower {
    console: Console,
    id: CommandId,
    news: broadcast::Receiver<PageChange>,
    /// What was reported of each host.
    told: HashMap<HostId, CommandState>,
    /// The last piece of output that was reported.
    piece: i64,
    waiting: VecDeque<CommandEvent>,
    /// Since when every host has finished, or is missing.
    done_since: Option<Instant>,
    ended: bool,
}

impl CommandFollower {
    pub(super) fn new(console: Console, id: CommandId) -> Self {
        // The subscription begins before the first check, so nothing is missed in between.
        let news = console.changes();
        let (told, waiting) = (HashMap::new(), VecDeque::new());
        Self { console, id, news, told, piece: 0, waiting, done_since: None, ended: false }
    }

    /// Returns the next event; `None` after the end, or once the console stops.
    pub(super) async fn next(&mut self) -> Option<CommandEvent> {
        let mut first = true;
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            if !first || !self.told.is_empty() {
                self.news_or_time().await?;
            }
            first = false;
            if let Err(error) = self.look().await {
                tracing::debug!(command.id = %self.id, %error, "following a command failed");
                return None;
            }
        }
    }

    /// Waits until there may be an event.
    async fn news_or_time(&mut self) -> Option<()> {
        let pause = if self.done_since.is_some() { STRAGGLERS / 10 } else { LOOK };
        let until = Instant::now() + pause;
        loop {
            let news = tokio::select! {
                () = self.console.stopping() => return None,
                news = timeout_at(until, self.news.recv()) => news,
            };
            match news {
                Ok(Ok(PageChange::Command(id))) if id == self.id => return Some(()),
                Ok(Ok(_)) => (),
                Ok(Err(RecvError::Lagged(_))) | Err(_) => return Some(()),
                Ok(Err(RecvError::Closed)) => return None,
            }
        }
    }

    /// Reads what was not reported yet: output before the states that follow it.
    async fn look(&mut self) -> Result<(), Error> {
        let command = self.console.command(self.id).await?;
        loop {
            let store = self.console.shared.store.read();
            let pieces = output_after(store, self.id, None, self.piece, PIECES).await?;
            let more = pieces.len() == PIECES as usize;
            for Chunk { n, host, stream, offset_bytes, data } in pieces {
                self.piece = n;
                let data = Data::new(&data);
                self.waiting.push_back(CommandEvent::Output { host, stream, offset_bytes, data });
            }
            if !more {
                break;
            }
        }
        for host in &command.hosts {
            if self.told.insert(host.host, host.state()) != Some(host.state()) {
                self.waiting.push_back(CommandEvent::Host(host.clone()));
            }
        }
        let over = command.hosts.iter().all(CommandHost::is_over);
        if !over {
            self.done_since = None;
            return Ok(());
        }
        let since = *self.done_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= STRAGGLERS || self.is_whole(&command).await? {
            self.waiting.push_back(CommandEvent::End);
            self.ended = true;
        }
        Ok(())
    }

    /// Whether all output that the outcomes count has arrived.
    async fn is_whole(&self, command: &Command) -> Result<bool, Error> {
        let came = output_bytes(self.console.shared.store.read(), self.id).await?;
        let came = |host: HostId, stream: Output| came.get(&(host, stream)).copied().unwrap_or(0);
        Ok(command.hosts.iter().all(|line| {
            line.outcome().is_none_or(|outcome| {
                let outcome = &outcome.value;
                came(line.host, Output::Stdout) >= outcome.stdout.sent_bytes
                    && came(line.host, Output::Stderr) >= outcome.stderr.sent_bytes
            })
        }))
    }
}

//! The claim of a connection: whether this agent is the only one of its host; what is held back until then; and the goodbye.

use std::fmt::Debug;

use muster_rules::{
    authorise::CommandSource,
    presence::{self, ClaimState, PresenceVerdict, StoreLife},
};
use muster_topics::{
    Millis, PROTOCOL,
    ack::HostLives,
    presence::{Presence, PresenceState},
    topic::HostTopic,
};

use super::{HeldWork, Session, Waiting};
use crate::{
    identity::json,
    interface::{Effect, HostView, Input, Moment, Notice},
    publisher::Publication,
    signed::{IncomingMessage, SignedMessage},
    store::StoreRequest,
};

/// The most messages that are held back while it is undecided whether this agent may work, or while the store fails.
/// The console sends dropped ones again.
const HELD_MAX: usize = 64;
/// The least time between two publications of the own presence, so that two parties that overwrite each other do so
/// slowly; less than the shortest wait of a claim, two keep-alives.
const ASSERT_GAP_MS: Millis = 1_000;

/// A connection, and the state of this agent's claim.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) session: u64,
    pub(super) since_ms: Millis,
    pub(super) claim: ClaimState,
    pub(super) asserted_ms: Millis,
    pub(super) assert_ms: Option<Millis>,
}

impl Connection {
    /// Schedules another publication of the own presence.
    pub(super) fn assert(&mut self, now_ms: Millis) {
        self.assert_ms = Some(now_ms.max(self.asserted_ms + ASSERT_GAP_MS));
    }
}

impl<R: Debug, W: Debug> Session<R, W> {
    pub(super) fn connected(&mut self, session: u64, since_ms: Millis, now: Moment) {
        let me = &self.local.me;
        // A broker drops a working agent that is silent for one and a half keep-alives; the agent notices by then.
        let wait_ms = Millis::from(me.keep_alive_s) * 2_000;
        let own = StoreLife { instance: me.instance, is_newcomer: !self.has_worked };
        let claim = ClaimState::new(own, (me.epoch, session), self.local.former.clone(), wait_ms);
        self.blocked_until_ms = None;
        self.connection =
            Some(Connection { session, since_ms, claim, asserted_ms: now.life_ms - ASSERT_GAP_MS, assert_ms: None });
    }

    pub(super) fn disconnected(&mut self) {
        self.connection = None;
        self.publisher.disconnected();
        // Messages were not answered, so the console sends them again.
        self.held.clear();
        self.held_ms = None;
    }

    pub(super) fn presence(&mut self, presence: Option<&Presence>, receipt: Option<R>, now: Moment) {
        self.acknowledge(receipt);
        if let Some(newer) = presence.filter(|presence| presence.protocol > PROTOCOL) {
            let spoken = newer.protocol;
            self.reject("presence", format!("an agent of this host uses protocol {spoken}, and this one {PROTOCOL}"));
        }
        let Some(connection) = &mut self.connection else { return };
        let is_twin = presence.is_some_and(|presence| connection.claim.is_twin(presence));
        let last_epoch = self.local.last_epoch;
        let later = presence.filter(|presence| connection.claim.is_unknown_later_life(presence, last_epoch));
        let verdict = connection.claim.observe(presence, last_epoch, now.life_ms);
        if let Some(later) = later {
            self.note_older_disk(later.epoch, now);
        }
        if is_twin {
            self.effects.push(Effect::TwinSeen);
        }
        self.apply_verdict(verdict, now);
    }

    /// Handles evidence of a later instance of this host that its own disk does not know: the whole disk was restored
    /// from a copy, mark included.
    pub(super) fn note_older_disk(&mut self, epoch: u64, now: Moment) {
        let lost_ms = self.local.time.now_ms(now.clock_ms);
        self.local.last_epoch = epoch;
        self.local.lives = presence::with_life(&self.local.lives, epoch);
        self.local.lost_ms = self.local.lost_ms.max(Some(lost_ms));
        self.notice(Notice::OlderDisk(epoch));
        let request = StoreRequest::NoteOlderDisk { epoch, lost_ms, clock_ms: now.clock_ms };
        self.requests.push_back((request, Waiting::Nothing));
    }

    pub(super) fn apply_verdict(&mut self, verdict: PresenceVerdict, now: Moment) {
        match verdict {
            PresenceVerdict::Ignore => {}
            PresenceVerdict::Assert => {
                if let Some(connection) = &mut self.connection {
                    connection.assert(now.life_ms);
                }
                self.notice(Notice::Asserting);
            }
            PresenceVerdict::Claim => {
                self.notice(Notice::Claiming);
                let receipts = self.held.iter_mut().filter_map(|held| match held {
                    HeldWork::Message(_, _, receipt) => receipt.take(),
                    HeldWork::Request(..) => None,
                });
                self.effects.extend(receipts.map(Effect::Acknowledge));
            }
            PresenceVerdict::Withdraw => {
                self.notice(Notice::Withdrawn);
                self.effects.push(Effect::Withdraw);
                self.disconnected();
            }
            PresenceVerdict::Settled => {
                self.notice(Notice::Working);
                let works = StoreRequest::Works { is_first: !self.has_worked };
                self.requests.push_back((works, Waiting::Works));
            }
        }
    }

    /// Holds a message back. While this agent claims its host, which takes as long as a broker may wait for an
    /// acknowledgement before it disconnects the client, the broker may forget it: the connection has to last, and the
    /// sender repeats the message until it is answered.
    pub(super) fn hold(&mut self, source: CommandSource, message: IncomingMessage, mut receipt: Option<R>) {
        if self.held.len() >= HELD_MAX {
            return;
        }
        if self.connection.as_ref().is_some_and(|connection| connection.claim.is_claiming()) {
            self.acknowledge(receipt.take());
        }
        self.held.push_back(HeldWork::Message(source, message, receipt));
    }

    pub(super) fn may_take_held(&self, now: Moment) -> bool {
        let is_ready = self.held.front().is_some_and(|first| match first {
            HeldWork::Message(_, message, _) => self.may_take(&message.message),
            HeldWork::Request(..) => true,
        });
        self.is_sole() && is_ready && self.held_ms.is_none_or(|held_ms| now.life_ms >= held_ms)
    }

    /// Whether nothing has to be known first. A command waits until the console has said of which lives of this host it has
    /// heard: what this disk does not know of would be done twice.
    pub(super) fn may_take(&self, message: &SignedMessage) -> bool {
        self.is_told || message.command().is_none()
    }

    /// Handles which lives of this host the console has heard of.
    pub(super) fn take_lives(&mut self, lives: &HostLives, now: Moment) {
        if lives.asked_by != self.local.me.epoch || self.is_told {
            return;
        }
        self.is_told = true;
        if let Some(epoch) = presence::unknown_life(&lives.heard, &self.local.lives) {
            self.note_older_disk(epoch, now);
        }
    }

    pub(super) fn take_held(&mut self, now: Moment, host: &impl HostView) {
        self.held_ms = None;
        match self.held.pop_front() {
            Some(HeldWork::Message(source, message, receipt)) => {
                self.take_message(source, message, receipt, now, host);
            }
            Some(HeldWork::Request(request, waiting)) => self.ask(request, waiting),
            None => {}
        }
    }

    /// Publishes the last messages. When their presence comes back, the broker has received all of them.
    ///
    /// An agent that is still claiming its host does so, too, because it was visible as online; an agent that works
    /// will publish its presence again.
    pub(super) fn farewell(&mut self, now: Moment) {
        self.stopping = true;
        let Some(connection) = &self.connection else { return self.effects.push(Effect::Stopped) };
        let is_sole = connection.claim.is_sole();
        if !is_sole && !connection.claim.is_claiming() {
            return self.effects.extend([Effect::Disconnect, Effect::Stopped]);
        }
        let stopped = self.local.me.presence(connection.session, PresenceState::Stopped, now.clock_ms);
        if is_sole {
            let last = self.publisher.beats.last(now.clock_ms);
            self.publish(Publication::new(HostTopic::Heartbeat, json(&last)));
        }
        self.publish(Publication::new(HostTopic::Presence, json(&stopped)));
    }

    pub(super) fn take_farewell(&mut self, input: &Input<R, W>) {
        match input {
            // The last message has come back.
            Input::Presence(Some(presence), _)
                if presence.instance == self.local.me.instance && presence.state == PresenceState::Stopped =>
            {
                self.effects.push(Effect::Disconnect);
            }
            Input::Disconnected => {
                self.connection = None;
                self.effects.push(Effect::Stopped);
            }
            _ => {}
        }
    }
}

//! The inputs and effects of a session.

use std::collections::{BTreeMap, BTreeSet};

use muster_rules::{
    authorise::{Authorised, CommandSource, LocalPolicy},
    desired::head::KnownDocument,
    heartbeat::HeartbeatSchedule,
    presence::StoreLife,
    time::KnownTime,
};
use muster_topics::{
    Millis,
    ack::Numbered,
    admission::AdmissionStage,
    command::Command,
    desired::{DeploymentName, DesiredMark, DocumentRefusal},
    diagnostic::Diagnostic,
    envelope::{self, EnvelopeError, PublicKey},
    name::{CommandId, Digest, Name},
    numbered::Numbers,
    presence::Presence,
    select,
    topic::Topic,
};

use super::{
    identity::ClientIdentity,
    publisher::Publication,
    running::CommandStage,
    signed::IncomingMessage,
    store::{StoreReply, StoreRequest, TimeBack},
};

/// How long a driver waits after [`Input::Stop`] for [`Effect::Stopped`].
pub const FAREWELL_MS: Millis = 2_000;
/// The present: both clocks of the driver, and its source of randomness.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Milliseconds since the agent started, by a clock that is never set.
    pub life_ms: Millis,
    /// The wall clock.
    pub clock_ms: Millis,
    /// Returns a random number in `0..1`, for jitter.
    pub random: fn() -> f64,
}

/// The host as selectors see it.
pub trait HostView {
    /// Calls `look` with the host as it is now.
    fn see<T>(&self, look: impl FnOnce(&select::Host<'_>) -> T) -> T;
}

/// An event for the session. `R` is the token with which a message is acknowledged to the broker, `W` a write of the
/// driver, such as the output of a program.
#[derive(Debug)]
pub enum Input<R, W> {
    /// A connection is up, and its greeting is sent (see [`ClientIdentity::greeting`]).
    Connected {
        /// The number of the connection in this run of the agent, from 1.
        session: u64,
        /// When it began, by the wall clock.
        since_ms: Millis,
    },
    /// The connection has ended.
    Disconnected,
    /// A message on the host's presence topic; nothing if it cannot be parsed.
    Presence(Option<Presence>, Option<R>),
    /// A message on a topic of signed messages.
    Message(CommandSource, IncomingMessage, Option<R>),
    /// A message on the topic of the host's document that is not signed: perhaps a body.
    DesiredBody(Vec<u8>, Option<R>),
    /// The answer to [`Effect::FetchDesired`]; nothing if it could not be fetched.
    DesiredFetched(Digest, Option<Vec<u8>>),
    /// The host's document was handed in, or could not be.
    DocumentHandedIn,
    /// The answer to [`Effect::Store`].
    Stored(StoreReply<W>),
    /// The store has room again: what failed is tried at once.
    StoreRetry,
    /// Writes of the driver, which wait for the store.
    Writes(Vec<W>),
    /// A command runs now. One that has ended meanwhile stays ended.
    Begun(CommandId),
    /// A command that an earlier run of the agent left is under way again.
    Resumed(CommandId, CommandStage),
    /// Something may be due, or there is something new to publish.
    Time,
    /// The agent is to end: it says goodbye.
    Stop,
}

/// What the driver has to do. See [`Input`] for the parameters.
#[derive(Debug)]
pub enum Effect<R, W> {
    /// Publish a message on one of the host's topics.
    Publish(Publication),
    /// Acknowledge a message to the broker.
    Acknowledge(R),
    /// Ask the store; the answer is an input.
    Store(StoreRequest<W>),
    /// Begin a command, which is journalled.
    Start(Authorised<Command>),
    /// Cancel a command, if it is under way.
    Cancel(CommandId),
    /// Fetch the body with this digest over HTTPS; the answer is [`Input::DesiredFetched`].
    FetchDesired(Digest),
    /// Hand the stored document and labels in to the console, which has lost them; the answer is [`Input::DocumentHandedIn`].
    HandInDocument,
    /// The console has said that a version of a deployment has to wait, and why.
    AdmissionWaits(DeploymentName, u32, Diagnostic),
    /// End the connection in order, and stay away for a while: another agent of this host works.
    Withdraw,
    /// End the connection in order.
    Disconnect,
    /// The goodbye is over.
    Stopped,
    /// Another agent with this host's identity was heard.
    TwinSeen,
    /// A new signed message was issued at this time, by the console's clock.
    ConsoleTime {
        /// What the console has dated.
        issued_ms: Millis,
        /// Whether it did so just now.
        is_fresh: bool,
    },
    /// Something to log or count.
    Notice(Notice),
}

/// Something to log or count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Another presence of this host was seen; the own one is published again.
    Asserting,
    /// Another agent of this host is online, or was lately; this one works if it does not object.
    Claiming,
    /// Another agent of this host works; this one withdraws.
    Withdrawn,
    /// This agent works.
    Working,
    /// A message gets no answer: what it is, and why.
    Rejected(String, String),
    /// A command was refused.
    Refused(CommandId, Diagnostic),
    /// A command was answered before.
    Repeated(CommandId),
    /// A command is left unanswered until the console has said what time it is.
    Later(CommandId),
    /// There is no place for a command.
    Busy(CommandId),
    /// An instance of this host with this epoch is unknown here: the disk is an older copy, or was cloned.
    OlderDisk(u64),
    /// A command waits until the console has said which lives of this host it knows.
    Unheard(CommandId),
    /// The console has confirmed an earlier time.
    WentBack(TimeBack),
    /// A message is signed with a key that is not pinned here: the keys may have been replaced while this host was away.
    UnknownKey,
    /// The console speaks this protocol, which is later than this build's, so that nothing of it is taken; or, without a number,
    /// one that this build knows again.
    ConsoleProtocol(Option<u32>),
    /// The first message of this epoch of the console was accepted.
    ConsoleEpoch(u64),
    /// A document is older than the stored one, and ignored.
    OlderDocument(DesiredMark),
    /// A document was refused.
    DocumentRefused(DocumentRefusal),
    /// A request for a full report, issued at this time, is accepted.
    Refresh(Millis),
}

/// What the host says of a deployment that it asks for: see [`muster_topics::admission`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionStatement {
    /// The version.
    pub version: u32,
    /// Its digest.
    pub digest: Digest,
    /// How far the host is with it.
    pub stage: AdmissionStage,
    /// The message with which the console has heard it, if it is an end that the console has stored.
    pub noted: Option<Numbered>,
}

/// What the host says of all deployments that it asks for.
pub type AdmissionStatements = BTreeMap<DeploymentName, AdmissionStatement>;

/// What a session begins with.
#[derive(Debug)]
pub struct SessionParts {
    /// The agent.
    pub me: ClientIdentity,
    /// Earlier instances of the agent in this place, newest first.
    pub former: Vec<StoreLife>,
    /// The time as far as it is known.
    pub time: KnownTime,
    /// When the store was created.
    pub created_ms: Millis,
    /// Until when commands may be missing from the journal.
    pub lost_ms: Option<Millis>,
    /// The epoch of the last known instance of this host's agent.
    pub last_epoch: u64,
    /// The epochs of its last lives, this one among them.
    pub lives: Vec<u64>,
    /// The latest epoch of the console that was accepted; 0 if none was.
    pub console_epoch: u64,
    /// How long a command is remembered after its expiry.
    pub kept_ms: Millis,
    /// What may be done here.
    pub policy: LocalPolicy,
    /// The user that the agent runs as.
    pub user: String,
    /// The realms of the host.
    pub realms: BTreeSet<Name>,
    /// Heartbeats.
    pub beats: HeartbeatSchedule,
    /// The time between two batches of measurements that have waited.
    pub backlog_gap_ms: Millis,
    /// Which of the console's numbered documents the host has.
    pub numbers: Numbers,
    /// The host's document.
    pub document: KnownDocument,
    /// What the host says of deployments.
    pub admissions: AdmissionStatements,
}

/// The source of a message on this topic, as far as signed messages come on it.
#[must_use]
pub fn command_source(topic: &Topic) -> CommandSource {
    match topic {
        Topic::CommandAll(_) | Topic::CommandGroup(..) => CommandSource::Broadcast,
        _ => CommandSource::Own,
    }
}

/// A message on the topic of the host's document, on which bodies come, too: they are not signed.
#[must_use]
pub fn desired_input<R, W>(payload: &[u8], keys: &[PublicKey], receipt: Option<R>) -> Input<R, W> {
    match envelope::open(payload, keys) {
        // Not an envelope.
        Err(EnvelopeError::Malformed(_)) => Input::DesiredBody(payload.to_vec(), receipt),
        opened => Input::Message(CommandSource::Own, IncomingMessage::of(opened, payload), receipt),
    }
}

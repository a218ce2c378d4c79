//! What the session asks of a store, and the store's answers. Each request is one transaction.

use muster_rules::{authorise::Authorised, desired::host_body::HostBody};
use muster_topics::{
    Millis,
    ack::{Ack, Numbered, ReportAck},
    command::Command,
    desired::{DeploymentName, DesiredHead, DocumentRefusal},
    name::{CommandId, Digest},
    numbered::NumberedDocument,
    outcome::Status,
    task::TaskRecord,
};

use super::{interface::AdmissionStatement, signed::SignedText};

/// A request to the store. `W` is a write of the program around the session, such as the output of a program.
///
/// `signed_ms` is the latest signed time, which the store remembers in the same transaction.
#[derive(Debug)]
pub enum StoreRequest<W> {
    /// Journal a command. Unless it goes on afterwards, its effect and its outcome are part of the transaction.
    Take {
        /// The command.
        command: Authorised<Command>,
        /// See the type.
        signed_ms: Millis,
    },
    /// Journal the end of a command that is not executed, for example because it is refused.
    Answer {
        /// The command.
        id: CommandId,
        /// When it expires.
        expires_ms: Millis,
        /// How it ended.
        status: Status,
        /// See the type.
        signed_ms: Millis,
    },
    /// Journal a cancellation, with its outcome; and if the cancelled command is unknown, the refusal of that command.
    Cancel {
        /// The cancellation.
        command: Authorised<Command>,
        /// The command to cancel.
        which: CommandId,
        /// Until when that one is remembered if it is unknown.
        which_expires_ms: Millis,
        /// See the type.
        signed_ms: Millis,
    },
    /// Remove what the console has stored.
    Acknowledge(Acknowledgement),
    /// Store writes.
    Record(Vec<W>),
    /// Store a numbered document, which has a newer number than the present one, with the message that has it, and follow
    /// it.
    Numbered(NumberedDocument, SignedText),
    /// Store the host's document, and make what it says the desired state.
    Document(Box<NewDocument>),
    /// Remember that a document was refused; the one before it holds.
    DocumentRefused(DocumentRefusal, Digest),
    /// Store what the console has answered to what the host says of a deployment, and follow it.
    Admission(AdmissionChange),
    /// Remember that a message of this epoch of the console was accepted, later than all before.
    ConsoleEpoch(u64),
    /// Remember that this agent works: it is the only one of its host. `is_first` is false on later connections.
    Works {
        /// Whether it did not work before in this run.
        is_first: bool,
    },
    /// Remember that the store was found to be an older copy, at this time.
    NoteOlderDisk {
        /// The epoch of the life that it does not know, and knows from now on.
        epoch: u64,
        /// Commands issued until then that the journal does not have are refused.
        lost_ms: Millis,
        /// The wall clock.
        clock_ms: Millis,
    },
    /// Remove commands that expired long ago.
    Prune {
        /// See the type.
        signed_ms: Millis,
    },
    /// Read what is published next.
    Read(OutboxRead),
}

/// A document that was verified, and read.
#[derive(Debug)]
pub struct NewDocument {
    /// Its head.
    pub head: DesiredHead,
    /// The head as it was signed.
    pub signed: SignedText,
    /// The body's bytes, whose digest is the head's.
    pub bytes: Vec<u8>,
    /// The body.
    pub body: HostBody,
}

/// What the console has answered to what the host says of a deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionChange {
    /// The deployment.
    pub deployment: DeploymentName,
    /// The version.
    pub version: u32,
    /// What follows.
    pub step: AdmissionStep,
}

/// What follows from an answer of the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionStep {
    /// Begin: the version becomes the desired state, and is begun with this permit, in one transaction.
    Begin {
        /// The permit.
        permit: u64,
    },
    /// The console has stored the end, which it has heard with this message.
    Noted(Numbered),
    /// As `Noted`; and the version is tried again.
    Retry(Numbered),
}

/// What is read of the messages that the console has not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutboxRead {
    /// The keys of the first rows of the outbox, in the order of their commands; at most so many.
    FirstReports(usize),
    /// The payload of a row.
    Report(ReportAck),
    /// The first batches of measurements, newest first; at most so many.
    FirstBatches(usize),
    /// The first ends of tasks; at most so many.
    TaskEnds(usize),
}

/// An acknowledgement of the console, to be stored.
#[derive(Debug)]
pub struct Acknowledgement {
    /// What the console has stored.
    pub ack: Ack,
    /// The signed time to store, if the store has to learn it now.
    pub signed_ms: Option<Millis>,
    /// The time to go back to, if the console confirmed an earlier one.
    pub time_back: Option<TimeBack>,
}

/// An earlier time, which the console has confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeBack {
    /// The latest signed time.
    pub signed_ms: Millis,
    /// When the store was created.
    pub created_ms: Millis,
    /// By how much the signed time was ahead; `None` if only the store's creation was.
    pub ahead_ms: Option<Millis>,
}

/// The answer to a [`StoreRequest`].
#[derive(Debug)]
pub enum StoreReply<W> {
    /// What became of a command: the answer to `Take`, `Answer` and `Cancel`.
    Command(CommandTaken),
    /// It is stored: the answer to `Acknowledge`.
    Acknowledged(Acknowledgement),
    /// It is stored: the answer to `Record`.
    Recorded {
        /// Rows that are now in the outbox.
        keys: Vec<ReportAck>,
        /// Commands that have ended.
        ended: Vec<CommandId>,
    },
    /// It is stored, or done.
    Done,
    /// What the host says of the deployment now, nothing if there is nothing to say: the answer to `Admission`.
    Admission(Option<AdmissionStatement>),
    /// The first rows of the outbox.
    Reports(Vec<ReportAck>),
    /// A row of the outbox, if it still waits.
    Report(Option<Vec<u8>>),
    /// The first batches of measurements.
    Batches(Vec<(Numbered, Vec<u8>)>),
    /// The first ends of tasks.
    TaskEnds(Vec<TaskRecord>),
    /// Nothing that has to last can be stored for now, and nothing is changed: the answer to `Document` and `Admission`. What was
    /// asked comes again with the next connection.
    Deferred,
    /// The store failed, and nothing is changed. The request comes back.
    Failed(StoreRequest<W>),
}

/// What became of a command.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one exists at a time")]
pub enum CommandTaken {
    /// It is journalled; now it may begin.
    Entered(Authorised<Command>),
    /// It has its outcome: these rows are now in the outbox.
    Answered {
        /// The rows.
        keys: Vec<ReportAck>,
        /// Whether the host's state is different now.
        is_change: bool,
    },
    /// It was in the journal already; nothing if it is not any more.
    Repeated(CommandId, Option<RepeatedCommand>),
    /// Nothing of it was kept, because as many wait as may: the console sends it again.
    Busy(CommandId),
    /// Nothing of it was kept, because the journal is full.
    NoRoom,
}

/// A command that the journal has already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepeatedCommand {
    /// It has its outcome, which is in the outbox again.
    Answered(ReportAck),
    /// It has none yet.
    Unfinished,
}

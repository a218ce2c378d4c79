//! Messages of the console, once their signature has been verified.

use std::fmt;

use muster_rules::authorise::CommandHead;
use muster_topics::{
    ack::Ack,
    admission::AdmissionAnswer,
    command::{Command, Refresh},
    desired::{DesiredHead, DocumentRequest},
    envelope::{self, EnvelopeError, Kind, PublicKey, Verified},
    name::CommandId,
    numbered::NumberedDocument,
    slot::Slot,
};

/// A message on a topic of signed messages.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "few exist at a time")]
pub enum SignedMessage {
    /// A command.
    Command(Command),
    /// A command that cannot be parsed, perhaps of a newer build of this protocol: as much of it as is understood, and the error.
    UnknownCommand(CommandHead, String),
    /// What the console has stored.
    Ack(Ack),
    /// A request for a full report.
    Refresh(Refresh),
    /// A numbered document, with the message as it came.
    Numbered(NumberedDocument, SignedText),
    /// A message that is signed with a key that is not pinned here: its id.
    UnknownKey(String),
    /// A message of a protocol that this build does not know: its number.
    LaterProtocol(u32),
    /// The head of the host's document, with the message as it came.
    DesiredHead(DesiredHead, SignedText),
    /// A request for the host's document.
    DocumentRequest(DocumentRequest),
    /// An answer to what the host has said of a deployment that is rolled out.
    AdmissionAnswer(AdmissionAnswer),
    /// A message that gets no answer: what it is, and why.
    Rejected(&'static str, String),
}

/// A message on a topic of signed messages, with what its signature says of sender and receivers.
#[derive(Clone, Debug)]
pub struct IncomingMessage {
    /// The message.
    pub message: SignedMessage,
    /// Nothing if that was checked before, or if no signature could be verified.
    pub scope: Option<MessageScope>,
}

/// Who signed a message, and for which hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageScope {
    /// The epoch of the console that signed it.
    pub epoch: u64,
    /// The slot of the hosts that it is for.
    pub slot: Slot,
}

impl From<SignedMessage> for IncomingMessage {
    fn from(message: SignedMessage) -> Self {
        Self { message, scope: None }
    }
}

impl IncomingMessage {
    /// Verifies and parses a payload; `keys` are those that the console may sign with.
    #[must_use]
    pub fn open(payload: &[u8], keys: &[PublicKey]) -> Self {
        Self::of(envelope::open(payload, keys), payload)
    }

    /// Parses a payload that was verified, or could not be.
    #[must_use]
    pub fn of(opened: Result<Verified, EnvelopeError>, payload: &[u8]) -> Self {
        match opened {
            Ok(verified) => {
                let scope = Some(MessageScope { epoch: verified.epoch(), slot: verified.slot() });
                Self { message: SignedMessage::parse(&verified, payload), scope }
            }
            Err(EnvelopeError::UnknownKey(id)) => SignedMessage::UnknownKey(id).into(),
            Err(EnvelopeError::LaterProtocol(protocol)) => SignedMessage::LaterProtocol(protocol).into(),
            Err(error) => SignedMessage::Rejected("message", error.to_string()).into(),
        }
    }
}

/// A signed message as it came, to be handed on: never parsed and serialised again.
#[derive(Clone, PartialEq, Eq)]
pub struct SignedText(pub String);

impl fmt::Debug for SignedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SignedText({} bytes)", self.0.len())
    }
}

impl SignedMessage {
    /// Returns the id of a command.
    #[must_use]
    pub fn command(&self) -> Option<CommandId> {
        match self {
            Self::Command(command) => Some(command.id),
            Self::UnknownCommand(head, _) => Some(head.id),
            _ => None,
        }
    }

    fn parse(verified: &Verified, payload: &[u8]) -> Self {
        let rejected = |what, error: EnvelopeError| Self::Rejected(what, error.to_string());
        match verified.kind() {
            Kind::Command => match verified.body::<Command>() {
                Ok(mut command) => {
                    if let Some(sealed) = &mut command.sealed {
                        // The key goes into the journal, too, so that it can be opened again after a restart.
                        sealed.key = verified.key().map(str::to_owned);
                    }
                    Self::Command(command)
                }
                Err(error) => match verified.body::<CommandHead>() {
                    Ok(head) => Self::UnknownCommand(head, error.to_string()),
                    Err(_) => rejected("command", error),
                },
            },
            Kind::Ack => verified.body().map_or_else(|error| rejected("ack", error), Self::Ack),
            Kind::Refresh => verified.body().map_or_else(|error| rejected("refresh", error), Self::Refresh),
            Kind::NumberedDocument => match (verified.body(), String::from_utf8(payload.to_vec())) {
                (Ok(document), Ok(text)) => Self::Numbered(document, SignedText(text)),
                (Err(error), _) => rejected("numbered_document", error),
                (Ok(_), Err(error)) => Self::Rejected("numbered_document", error.to_string()),
            },
            Kind::DesiredHead => match (verified.body(), String::from_utf8(payload.to_vec())) {
                (Ok(head), Ok(text)) => Self::DesiredHead(head, SignedText(text)),
                (Err(error), _) => rejected("desired_head", error),
                (Ok(_), Err(error)) => Self::Rejected("desired_head", error.to_string()),
            },
            Kind::DocumentRequest => {
                verified.body().map_or_else(|error| rejected("document_request", error), Self::DocumentRequest)
            }
            Kind::AdmissionAnswer => {
                verified.body().map_or_else(|error| rejected("admission_answer", error), Self::AdmissionAnswer)
            }
        }
    }
}

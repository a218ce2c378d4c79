//! Signed messages. The console signs commands with Ed25519, and the agent verifies them with the
//! key that it pinned when it joined: whoever owns the broker can delay and drop, but not command.
//!
//! The signature covers type, protocol, epoch and slot, each followed by a NUL, and the literal `body` string: so a body of one
//! type is never accepted as another, nor one of an earlier protocol or console as one of its successor, nor one for other hosts.
//! It is verified before the body is parsed, and signed text is never serialised again, so its form cannot be ambiguous.
//!
//! **Invariant: the form of the envelope is the same in every protocol**, with any text for a type. So whoever has the key
//! can tell a message of a later protocol ([`EnvelopeError::LaterProtocol`]) from one that is forged.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{PAYLOAD_MAX_BYTES, PROTOCOL, canonical, name::Digest, slot::Slot};

/// The epoch in which consoles sign, as long as one console has all slots. A console that takes slots over from another one
/// begins a later epoch, and hosts then refuse what is signed in earlier ones.
pub const CONSOLE_EPOCH: u64 = 1;

/// A signed message as on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Envelope {
    /// The protocol that the console speaks: see [`PROTOCOL`]. A host takes nothing of a later one than its own.
    pub protocol: u32,
    /// The id of the signing key: the first 16 hexadecimal digits of the SHA-256 of the public key.
    pub kid: String,
    /// The type of the body.
    #[serde(rename = "type")]
    pub kind: Kind,
    /// The epoch of the console that signed it. A host refuses a message of an earlier epoch than it has accepted before.
    pub epoch: u64,
    /// The slot of the hosts that it is for. A host refuses a message of another slot than its own.
    pub slot: Slot,
    /// A JSON document, as text.
    pub body: String,
    /// The Ed25519 signature over type, protocol, epoch and slot (in decimal digits), each followed by a NUL byte, and the
    /// body; base64.
    pub sig: String,
    /// The key of the body's sealed content, sealed to the host that this message goes to; base64. It is not under the
    /// signature, because it differs between hosts; an exchanged key opens nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// How much longer a message becomes with a key: 108 bytes, and the JSON around them.
pub const KEY_ROOM_BYTES: usize = 128;

/// The longest [`Envelope::key`]: 80 bytes in base64 are 108.
const KEY_MAX_BYTES: usize = 128;

/// Adds the key for one host to a stored signed message. The body is unchanged.
///
/// # Errors
/// If it is no signed message, or becomes too long.
pub fn with_key(signed: &[u8], key: String) -> Result<Vec<u8>, EnvelopeError> {
    let envelope: Envelope = serde_json::from_slice(signed).map_err(EnvelopeError::Malformed)?;
    let bytes = serde_json::to_vec(&Envelope { key: Some(key), ..envelope }).map_err(EnvelopeError::Malformed)?;
    if bytes.len() > PAYLOAD_MAX_BYTES { Err(EnvelopeError::TooLong(bytes.len())) } else { Ok(bytes) }
}

/// The type of a signed body. It is under the signature, so a body of one type is never accepted as another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A [`crate::command::Command`].
    Command,
    /// A [`crate::command::Refresh`].
    Refresh,
    /// An [`crate::ack::Ack`].
    Ack,
    /// A [`crate::numbered::NumberedDocument`].
    NumberedDocument,
    /// A [`crate::desired::DesiredHead`].
    DesiredHead,
    /// A [`crate::desired::DocumentRequest`].
    DocumentRequest,
    /// An [`crate::admission::AdmissionAnswer`].
    AdmissionAnswer,
}

/// A signed message of any protocol.
#[derive(Deserialize)]
struct AnyEnvelope {
    protocol: u32,
    kid: String,
    #[serde(rename = "type")]
    kind: String,
    epoch: u64,
    slot: Slot,
    body: String,
    sig: String,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Refresh => "refresh",
            Self::Ack => "ack",
            Self::NumberedDocument => "numbered_document",
            Self::DesiredHead => "desired_head",
            Self::DocumentRequest => "document_request",
            Self::AdmissionAnswer => "admission_answer",
        }
    }
}

/// A type that is sent as a signed body.
pub trait Body: Serialize + DeserializeOwned {
    /// Its type on the wire.
    const KIND: Kind;
}

/// Why a signed message is refused.
#[derive(Debug, thiserror::Error)]
pub enum EnvelopeError {
    /// It is longer than any party may send.
    #[error("message of {0} bytes is longer than {PAYLOAD_MAX_BYTES}")]
    TooLong(usize),
    /// It is not an envelope.
    #[error("not a signed message: {0}")]
    Malformed(#[source] serde_json::Error),
    /// It is signed with a key that is not pinned here.
    #[error("signed with the key {0:?}, which this host does not pin")]
    UnknownKey(String),
    /// The signature is invalid.
    #[error("the signature is not valid")]
    BadSignature,
    /// The signature is valid, and the message is of a protocol that this build does not know.
    #[error("signed in protocol {0} of the console, and this build uses protocol {PROTOCOL}")]
    LaterProtocol(u32),
    /// It has another type than expected.
    #[error("expected a {wanted:?}, found a {found:?}")]
    WrongKind {
        /// The expected type.
        wanted: Kind,
        /// The actual type.
        found: Kind,
    },
    /// The signature is valid, but the body is not of its type.
    #[error("the signed body is not valid: {0}")]
    Body(#[source] serde_json::Error),
    /// The signature is valid, but the body is not strict JSON.
    #[error("the signed body is not valid: {0}")]
    NotStrict(#[from] canonical::CanonicalError),
}

/// A body that is text already, and is to be signed: by a [`Signer`], or by whoever else has the key.
#[derive(Clone, Debug)]
pub struct UnsignedMessage {
    kind: Kind,
    protocol: u32,
    epoch: u64,
    slot: Slot,
    body: String,
}

impl UnsignedMessage {
    /// Serialises a body for hosts of this slot.
    ///
    /// # Errors
    /// If it does not serialise, or whoever receives it would refuse it: bodies are parsed strictly.
    pub fn of<B: Body>(slot: Slot, body: &B) -> Result<Self, EnvelopeError> {
        let body = serde_json::to_string(body).map_err(EnvelopeError::Body)?;
        canonical::parse(body.as_bytes())?;
        Ok(Self { kind: B::KIND, protocol: PROTOCOL, epoch: CONSOLE_EPOCH, slot, body })
    }

    /// Takes the body out of a stored signed message, to sign it with another key, or for another slot. The body is
    /// unchanged, so hosts take both for the same command.
    ///
    /// # Errors
    /// If it is no signed message.
    pub fn of_signed(signed: &[u8]) -> Result<Self, EnvelopeError> {
        let envelope: Envelope = serde_json::from_slice(signed).map_err(EnvelopeError::Malformed)?;
        let Envelope { kind, protocol, epoch, slot, body, .. } = envelope;
        Ok(Self { kind, protocol, epoch, slot, body })
    }

    /// Returns the slot of the hosts that it is for.
    #[must_use]
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// Returns the same message for hosts of another slot.
    #[must_use]
    pub fn for_slot(self, slot: Slot) -> Self {
        Self { slot, ..self }
    }

    /// Returns the same message in another epoch of the console.
    #[must_use]
    pub fn in_epoch(self, epoch: u64) -> Self {
        Self { epoch, ..self }
    }

    /// Returns the same message as a console of another protocol would send it.
    #[must_use]
    pub fn in_protocol(self, protocol: u32) -> Self {
        Self { protocol, ..self }
    }

    /// Returns the bytes that the signature covers.
    #[must_use]
    pub fn signed_bytes(&self) -> Vec<u8> {
        signed_bytes(self.kind.as_str(), self.protocol, self.epoch, self.slot, &self.body)
    }

    /// Returns the bytes to publish, with the signature of the key with this id.
    ///
    /// # Errors
    /// If they become longer than [`PAYLOAD_MAX_BYTES`].
    pub fn with_signature(self, kid: &str, signature: &[u8]) -> Result<Vec<u8>, EnvelopeError> {
        let Self { kind, protocol, epoch, slot, body } = self;
        let (kid, sig) = (kid.to_owned(), BASE64.encode(signature));
        let envelope = Envelope { protocol, kid, kind, epoch, slot, body, sig, key: None };
        let bytes = serde_json::to_vec(&envelope).map_err(EnvelopeError::Body)?;
        if bytes.len() > PAYLOAD_MAX_BYTES { Err(EnvelopeError::TooLong(bytes.len())) } else { Ok(bytes) }
    }
}

/// The console's signing key.
pub struct Signer {
    key: Ed25519KeyPair,
    kid: String,
}

/// A key could not be generated or parsed.
#[derive(Debug, thiserror::Error)]
#[error("signing key is not valid PKCS#8 with an Ed25519 key")]
pub struct KeyError;

impl Signer {
    /// Generates a key; returns it as a PKCS#8 document, to be kept secret.
    ///
    /// # Errors
    /// If the system provides no randomness.
    pub fn generate() -> Result<Vec<u8>, KeyError> {
        let random = ring::rand::SystemRandom::new();
        let document = Ed25519KeyPair::generate_pkcs8(&random).map_err(|_| KeyError)?;
        Ok(document.as_ref().to_vec())
    }

    /// Parses a key that [`Signer::generate`] made, or one without its public half, as other programs make them.
    ///
    /// # Errors
    /// If the bytes are invalid.
    pub fn from_pkcs8(bytes: &[u8]) -> Result<Self, KeyError> {
        let key = Ed25519KeyPair::from_pkcs8_maybe_unchecked(bytes).map_err(|_| KeyError)?;
        let kid = PublicKey::from_bytes(key.public_key().as_ref())?.kid;
        Ok(Self { key, kid })
    }

    /// The public half, for agents to pin.
    ///
    /// # Errors
    /// Never, for a key that [`Signer::from_pkcs8`] accepted.
    pub fn public_key(&self) -> Result<PublicKey, KeyError> {
        PublicKey::from_bytes(self.key.public_key().as_ref())
    }

    /// Signs a body that is already text.
    #[must_use]
    pub fn sign_text(&self, slot: Slot, kind: Kind, body: String) -> Envelope {
        let epoch = CONSOLE_EPOCH;
        let sig = BASE64.encode(self.key.sign(&signed_bytes(kind.as_str(), PROTOCOL, epoch, slot, &body)).as_ref());
        Envelope { protocol: PROTOCOL, kid: self.kid.clone(), kind, epoch, slot, body, sig, key: None }
    }

    /// Serialises and signs a body for hosts of this slot; returns the bytes to publish.
    ///
    /// # Errors
    /// If it does not serialise, or becomes longer than [`PAYLOAD_MAX_BYTES`].
    pub fn sign<B: Body>(&self, slot: Slot, body: &B) -> Result<Vec<u8>, EnvelopeError> {
        self.sign_message(UnsignedMessage::of(slot, body)?)
    }

    /// Signs a message; returns the bytes to publish.
    ///
    /// # Errors
    /// If they become longer than [`PAYLOAD_MAX_BYTES`].
    pub fn sign_message(&self, message: UnsignedMessage) -> Result<Vec<u8>, EnvelopeError> {
        let sig = self.sign_bytes(&message.signed_bytes());
        message.with_signature(&self.kid, &sig)
    }

    /// Returns the signature over bytes.
    #[must_use]
    pub fn sign_bytes(&self, bytes: &[u8]) -> Vec<u8> {
        self.key.sign(bytes).as_ref().to_vec()
    }
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signer").field("kid", &self.kid).finish_non_exhaustive()
    }
}

/// A pinned public key: 32 bytes, written as base64.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct PublicKey {
    bytes: [u8; 32],
    /// The key's id: the first 16 hexadecimal digits of its SHA-256.
    kid: String,
}

impl PublicKey {
    /// Creates it from 32 bytes.
    ///
    /// # Errors
    /// If they are not 32.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        let bytes = bytes.try_into().map_err(|_| KeyError)?;
        Ok(Self { bytes, kid: Digest::of(&bytes).as_str()[..16].to_owned() })
    }

    /// Returns the key's id: the first 16 hexadecimal digits of its SHA-256.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.kid
    }

    /// Whether a signature over these bytes is this key's.
    #[must_use]
    pub fn verifies(&self, signed: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.bytes).verify(signed, signature).is_ok()
    }
}

impl TryFrom<String> for PublicKey {
    type Error = KeyError;

    fn try_from(text: String) -> Result<Self, KeyError> {
        Self::from_bytes(&BASE64.decode(text).map_err(|_| KeyError)?)
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> Self {
        BASE64.encode(key.bytes)
    }
}

/// A message with a verified signature; only [`open`] makes one.
#[derive(Debug)]
pub struct Verified {
    kind: Kind,
    epoch: u64,
    slot: Slot,
    body: String,
    key: Option<String>,
}

impl Verified {
    /// Returns the type of the body.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the epoch of the console that signed it.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the slot of the hosts that it is for.
    #[must_use]
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// Returns the key of the body's sealed content, which no signature covers.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// Parses the body strictly.
    ///
    /// # Errors
    /// If it is of another type, or invalid.
    pub fn body<B: Body>(&self) -> Result<B, EnvelopeError> {
        if self.kind != B::KIND {
            return Err(EnvelopeError::WrongKind { wanted: B::KIND, found: self.kind });
        }
        let value = canonical::parse(self.body.as_bytes())?;
        serde_json::from_value(value).map_err(EnvelopeError::Body)
    }
}

/// Parses a signed message and verifies its signature with the pinned keys.
///
/// # Errors
/// If it is too long, no envelope, of an unknown key or a later protocol, or the signature is invalid.
pub fn open(bytes: &[u8], pinned: &[PublicKey]) -> Result<Verified, EnvelopeError> {
    if bytes.len() > PAYLOAD_MAX_BYTES {
        return Err(EnvelopeError::TooLong(bytes.len()));
    }
    let envelope: Envelope = serde_json::from_slice(bytes).map_err(|error| not_ours(bytes, pinned, error))?;
    let Envelope { protocol, kid, kind, epoch, slot, body, sig, key } = envelope;
    check(pinned, (&kid, &sig), &signed_bytes(kind.as_str(), protocol, epoch, slot, &body))?;
    if protocol > PROTOCOL {
        return Err(EnvelopeError::LaterProtocol(protocol));
    }
    Ok(Verified { kind, epoch, slot, body, key: key.filter(|key| key.len() <= KEY_MAX_BYTES) })
}

/// Returns why a message is refused that is no envelope of this protocol: it may be one of a later protocol.
fn not_ours(bytes: &[u8], pinned: &[PublicKey], error: serde_json::Error) -> EnvelopeError {
    match serde_json::from_slice(bytes) {
        Ok(AnyEnvelope { protocol, kid, kind, epoch, slot, body, sig })
            if protocol > PROTOCOL && !kind.contains('\0') =>
        {
            let checked = check(pinned, (&kid, &sig), &signed_bytes(&kind, protocol, epoch, slot, &body));
            checked.err().unwrap_or(EnvelopeError::LaterProtocol(protocol))
        }
        _ => EnvelopeError::Malformed(error),
    }
}

/// Checks a signature with the pinned key that it names.
fn check(pinned: &[PublicKey], (kid, sig): (&str, &str), signed: &[u8]) -> Result<(), EnvelopeError> {
    let key = pinned.iter().find(|key| key.kid == kid);
    let key = key.ok_or_else(|| EnvelopeError::UnknownKey(kid.chars().take(32).collect()))?;
    let sig = BASE64.decode(sig).map_err(|_| EnvelopeError::BadSignature)?;
    if key.verifies(signed, &sig) { Ok(()) } else { Err(EnvelopeError::BadSignature) }
}

/// Returns what a signature covers. No part but the last can have a NUL in it, so no two messages have the same bytes.
fn signed_bytes(kind: &str, protocol: u32, epoch: u64, slot: Slot, body: &str) -> Vec<u8> {
    format!("{kind}\0{protocol}\0{epoch}\0{}\0{body}", slot.0).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{V1, command::Refresh};

    const SLOT: Slot = Slot(7);

    fn signer() -> Signer {
        Signer::from_pkcs8(&Signer::generate().unwrap()).unwrap()
    }

    #[test]
    fn signed_body_opens() {
        let signer = signer();
        let body = Refresh { v: V1, issued_ms: 7, within_ms: 1000 };
        let bytes = signer.sign(SLOT, &body).unwrap();
        let verified = open(&bytes, &[signer.public_key().unwrap()]).unwrap();
        assert_eq!(verified.body::<Refresh>().unwrap(), body);
        assert!(matches!(verified.body::<crate::ack::Ack>(), Err(EnvelopeError::WrongKind { .. })));
    }

    #[test]
    fn key_of_a_host_leaves_the_signed_body_as_it_is() {
        let signer = signer();
        let keys = [signer.public_key().unwrap()];
        let plain = signer.sign(SLOT, &Refresh { v: V1, issued_ms: 7, within_ms: 1000 }).unwrap();
        assert_eq!(open(&plain, &keys).unwrap().key(), None);
        let keyed = with_key(&plain, "a2V5".to_owned()).unwrap();
        let verified = open(&keyed, &keys).unwrap();
        assert_eq!((verified.key(), verified.body::<Refresh>().unwrap().issued_ms), (Some("a2V5"), 7));
        let long = with_key(&plain, "k".repeat(KEY_MAX_BYTES + 1)).unwrap();
        assert_eq!(open(&long, &keys).unwrap().key(), None);
        assert!(with_key(&plain, "k".repeat(PAYLOAD_MAX_BYTES)).is_err() && with_key(b"{}", String::new()).is_err());
    }

    #[test]
    fn signed_body_opens_with_its_new_key_alone_once_it_is_signed_again() {
        let (old, new) = (signer(), signer());
        let body = Refresh { v: V1, issued_ms: 7, within_ms: 1000 };
        let first = old.sign(SLOT, &body).unwrap();
        let second = new.sign_message(UnsignedMessage::of_signed(&first).unwrap()).unwrap();
        assert_eq!(first.len(), second.len());
        let both = [old.public_key().unwrap(), new.public_key().unwrap()];
        for bytes in [&first, &second] {
            assert_eq!(open(bytes, &both).unwrap().body::<Refresh>().unwrap(), body);
        }
        assert!(matches!(open(&first, &both[1..]), Err(EnvelopeError::UnknownKey(_))));
        assert!(open(&second, &both[1..]).is_ok());
        assert!(UnsignedMessage::of_signed(b"{}").is_err());
    }

    #[test]
    fn epoch_and_slot_are_under_the_signature() {
        let signer = signer();
        let keys = [signer.public_key().unwrap()];
        let message = UnsignedMessage::of(SLOT, &Refresh { v: V1, issued_ms: 7, within_ms: 0 }).unwrap();
        let wanted = "refresh\x001\x001\x007\x00{\"v\":1,\"issued_ms\":7,\"within_ms\":0}";
        assert_eq!(String::from_utf8(message.signed_bytes()).unwrap(), wanted);
        let other = signer.sign_message(message.for_slot(Slot(255)).in_epoch(9)).unwrap();
        let verified = open(&other, &keys).unwrap();
        assert_eq!((verified.epoch(), verified.slot()), (9, Slot(255)));
        let again = UnsignedMessage::of_signed(&other).unwrap();
        assert_eq!((again.slot(), signer.sign_message(again).unwrap()), (Slot(255), other));
    }

    /// A message of another protocol, with this type and what else a later envelope may have.
    fn in_protocol(signer: &Signer, protocol: u32, kind: &str, more: &str) -> Vec<u8> {
        let body = r#"{"v":1,"issued_ms":7,"within_ms":0}"#;
        let sig = BASE64.encode(signer.sign_bytes(&signed_bytes(kind, protocol, 1, SLOT, body)));
        let text = serde_json::to_string(body).unwrap();
        let kid = &signer.kid;
        format!(r#"{{"protocol":{protocol},"kid":"{kid}","type":"{kind}","epoch":1,"slot":7,"body":{text},"sig":"{sig}"{more}}}"#)
            .into_bytes()
    }

    #[test]
    fn message_of_a_later_protocol_is_refused_by_name_if_it_is_signed() {
        let signer = signer();
        let keys = [signer.public_key().unwrap()];
        open(&in_protocol(&signer, PROTOCOL, "refresh", ""), &keys).unwrap().body::<Refresh>().unwrap();
        for (kind, more) in [("refresh", ""), ("levitation", ""), ("refresh", r#","altitude":7"#)] {
            let later = in_protocol(&signer, PROTOCOL + 1, kind, more);
            let refused = open(&later, &keys).unwrap_err();
            assert!(matches!(refused, EnvelopeError::LaterProtocol(found) if found == PROTOCOL + 1), "{refused}");
            let refused = open(&later, &[self::signer().public_key().unwrap()]).unwrap_err();
            assert!(matches!(refused, EnvelopeError::UnknownKey(_)), "{refused}");
            let forged = String::from_utf8(later).unwrap().replace(r#""protocol":2"#, r#""protocol":3"#);
            let refused = open(forged.as_bytes(), &keys).unwrap_err();
            assert!(matches!(refused, EnvelopeError::BadSignature), "{refused}");
        }
        // In this protocol both are faults.
        for (kind, more) in [("levitation", ""), ("refresh", r#","altitude":7"#)] {
            let refused = open(&in_protocol(&signer, PROTOCOL, kind, more), &keys).unwrap_err();
            assert!(matches!(refused, EnvelopeError::Malformed(_)), "{refused}");
        }
    }

    #[test]
    fn altered_envelope_is_refused() {
        let signer = signer();
        let keys = [signer.public_key().unwrap()];
        let envelope = signer.sign_text(SLOT, Kind::Refresh, r#"{"v":1,"issued_ms":7,"within_ms":0}"#.to_owned());
        let open_changed = |change: &dyn Fn(&mut Envelope)| {
            let mut changed = envelope.clone();
            change(&mut changed);
            open(&serde_json::to_vec(&changed).unwrap(), &keys)
        };
        assert!(open_changed(&|_| ()).is_ok());
        assert!(matches!(open_changed(&|e| e.body.push(' ')), Err(EnvelopeError::BadSignature)));
        assert!(matches!(open_changed(&|e| e.kind = Kind::Command), Err(EnvelopeError::BadSignature)));
        assert!(matches!(open_changed(&|e| e.protocol += 1), Err(EnvelopeError::BadSignature)));
        assert!(matches!(open_changed(&|e| e.epoch += 1), Err(EnvelopeError::BadSignature)));
        assert!(matches!(open_changed(&|e| e.slot = Slot(8)), Err(EnvelopeError::BadSignature)));
        assert!(matches!(open_changed(&|e| e.sig = String::new()), Err(EnvelopeError::BadSignature)));
        assert!(matches!(open_changed(&|e| e.sig.insert(0, '!')), Err(EnvelopeError::BadSignature)));
        assert!(matches!(open_changed(&|e| e.kid = "0".repeat(16)), Err(EnvelopeError::UnknownKey(_))));
        let other = [self::signer().public_key().unwrap()];
        let bytes = serde_json::to_vec(&envelope).unwrap();
        assert!(matches!(open(&bytes, &other), Err(EnvelopeError::UnknownKey(_))));
        assert!(matches!(open(&vec![b' '; PAYLOAD_MAX_BYTES + 1], &keys), Err(EnvelopeError::TooLong(_))));
    }

    #[test]
    fn body_that_nobody_could_read_is_not_signed() {
        let body = |issued_ms| Refresh { v: V1, issued_ms, within_ms: 0 };
        let refused = signer().sign(SLOT, &body(canonical::INTEGER_MAX + 1)).unwrap_err();
        assert!(matches!(refused, EnvelopeError::NotStrict(_)), "{refused}");
        signer().sign(SLOT, &body(canonical::INTEGER_MAX)).unwrap();
    }

    #[test]
    fn a_signed_body_is_parsed_strictly() {
        let signer = signer();
        let keys = [signer.public_key().unwrap()];
        for body in [
            r#"{"v":1,"v":1,"issued_ms":7,"within_ms":0}"#,
            r#"{"v":2,"issued_ms":7,"within_ms":0}"#,
            r#"{"v":1,"issued_ms":7,"within_ms":0,"more":1}"#,
            "",
        ] {
            let bytes = serde_json::to_vec(&signer.sign_text(SLOT, Kind::Refresh, body.to_owned())).unwrap();
            assert!(open(&bytes, &keys).unwrap().body::<Refresh>().is_err(), "{body}");
        }
    }
}

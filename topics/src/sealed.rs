//! Secrets of a command: values of environments, standard input, forwarded arguments. They are sealed to a key of
//! the host's own, so that readers of the bus see [`MASK`] in their place.
//!
//! The signed body of such a command has a mask for each secret value, and [`Sealed::content`] holds the values,
//! encrypted with a key that is used once. That key is sealed to each host (HPKE, RFC 9180, base mode, X25519 with HKDF-SHA256
//! and ChaCha20-Poly1305) and travels as [`Envelope::key`](crate::envelope::Envelope::key), beside the signed body and not in it, because
//! it differs from host to host. A key that is exchanged for another opens nothing. Decision 0063 specifies the bytes.
//!
//! This module lists the places of the values, in the order that both sides use; the cryptography is in `muster-bus`.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    V1,
    command::Verb,
    exec::Exec,
    outcome::Data,
    unit::{MASK, Spec},
};

/// A host's public key for sealed content: X25519, 32 bytes, written as base64.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct SealingKey([u8; 32]);

/// A text that is no such key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a sealing key: it is the base64 of 32 bytes")]
pub struct SealingKeyError;

impl SealingKey {
    /// Creates it from 32 bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns its 32 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl TryFrom<String> for SealingKey {
    type Error = SealingKeyError;

    fn try_from(text: String) -> Result<Self, SealingKeyError> {
        text.parse()
    }
}

impl std::str::FromStr for SealingKey {
    type Err = SealingKeyError;

    fn from_str(text: &str) -> Result<Self, SealingKeyError> {
        let bytes = BASE64.decode(text).map_err(|_| SealingKeyError)?;
        bytes.try_into().map(Self).map_err(|_| SealingKeyError)
    }
}

impl From<SealingKey> for String {
    fn from(key: SealingKey) -> Self {
        key.to_string()
    }
}

impl std::fmt::Display for SealingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&BASE64.encode(self.0))
    }
}

/// A host sends its sealing key: `POST /v1/sealing-key`, with its certificate. The response is the same document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SealingKeyNotice {
    /// Version of this payload.
    pub v: V1,
    /// The key.
    pub key: SealingKey,
}

/// The values of a command that only its hosts may read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sealed {
    /// All of them, encrypted; base64.
    pub content: String,
    /// The key of the content, sealed to the host that the command is for; base64. In a signed body it is left out; a
    /// host that stores the command adds the envelope's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// The place of one value.
enum Place<'a> {
    Text(&'a mut String),
    Bytes(&'a mut Data),
    Json(&'a mut Value),
}

/// The values do not fit the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the values that were sealed are not those of this command")]
pub struct Misfit;

impl Place<'_> {
    fn take(self) -> Vec<u8> {
        match self {
            Self::Text(text) => std::mem::replace(text, MASK.to_owned()).into_bytes(),
            Self::Bytes(data) => {
                let taken = std::mem::replace(data, Data::Text(MASK.to_owned()));
                // Invalid base64 has no bytes to lose: the console refuses it before.
                taken.to_bytes().unwrap_or_default()
            }
            Self::Json(value) => std::mem::replace(value, Value::String(MASK.to_owned())).to_string().into_bytes(),
        }
    }

    fn put(self, bytes: Vec<u8>) -> Result<(), Misfit> {
        match self {
            Self::Text(text) => *text = String::from_utf8(bytes).map_err(|_| Misfit)?,
            Self::Bytes(data) => *data = Data::new(&bytes),
            Self::Json(value) => *value = serde_json::from_slice(&bytes).map_err(|_| Misfit)?,
        }
        Ok(())
    }
}

fn of_exec(exec: &mut Exec) -> impl Iterator<Item = Place<'_>> {
    exec.env.values_mut().map(Place::Text).chain(exec.stdin.as_mut().map(Place::Bytes))
}

fn of_spec(spec: &mut Spec) -> impl Iterator<Item = Place<'_>> {
    spec.program_mut().into_iter().flat_map(|program| program.env.values_mut()).map(Place::Text)
}

impl Verb {
    /// Returns all places of values that only its hosts may read. A new field of that kind must be added here; it is
    /// then masked, sealed and opened.
    fn places(&mut self) -> Vec<Place<'_>> {
        match self {
            Self::Exec(exec) => of_exec(exec).collect(),
            Self::Batch(batch) => batch.steps.iter_mut().flat_map(of_exec).collect(),
            Self::UnitApply { spec, .. } => of_spec(spec).collect(),
            Self::UnitsApply(set) => set.units.iter_mut().flat_map(|wish| of_spec(&mut wish.spec)).collect(),
            Self::UnitCommand(forward) => forward.args.values_mut().map(Place::Json).collect(),
            Self::Plan(_) => self.specs_mut().flat_map(|(_, spec)| of_spec(spec)).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the same with secret values masked, for lists.
    #[must_use]
    pub fn masked(&self) -> Self {
        let mut masked = self.clone();
        masked.take_values();
        masked
    }

    /// Describes what it has that only its hosts may read, if anything.
    #[must_use]
    pub fn secret(&self) -> Option<&'static str> {
        match self {
            Self::Exec(_) | Self::Batch(_) => self.execs().iter().find_map(Exec::secret),
            Self::UnitApply { .. } | Self::UnitsApply(_) | Self::Plan(_) => {
                self.specs().any(|(_, spec)| !spec.env().is_empty()).then_some("environment")
            }
            Self::UnitCommand(forward) => (!forward.args.is_empty()).then_some("arguments of a unit's own command"),
            _ => None,
        }
    }

    /// Takes the values that only its hosts may read; masks remain in their place.
    pub fn take_values(&mut self) -> Vec<Vec<u8>> {
        self.places().into_iter().map(Place::take).collect()
    }

    /// Puts values back that [`take_values`](Self::take_values) has taken out of the same verb.
    ///
    /// # Errors
    /// If their number or kind does not match.
    pub fn put_values(&mut self, values: Vec<Vec<u8>>) -> Result<(), Misfit> {
        let places = self.places();
        if places.len() != values.len() {
            return Err(Misfit);
        }
        places.into_iter().zip(values).try_for_each(|(place, value)| place.put(value))
    }
}

/// Packed values are padded to a multiple of this, so that the length reveals less.
const PADDED_BYTES: usize = 64;

/// Writes values one after the other: their number, and each after its length, as numbers of four bytes, the highest
/// first; then zeros.
#[must_use]
pub fn pack(values: &[Vec<u8>]) -> Vec<u8> {
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes();
    let mut packed = number(values.len()).to_vec();
    for value in values {
        packed.extend(number(value.len()));
        packed.extend_from_slice(value);
    }
    packed.resize(packed.len().next_multiple_of(PADDED_BYTES), 0);
    packed
}

/// Parses what [`pack`] has written.
///
/// # Errors
/// If it is invalid.
pub fn unpack(mut packed: &[u8]) -> Result<Vec<Vec<u8>>, Misfit> {
    let mut take = |count: usize| {
        let (piece, rest) = packed.split_at_checked(count).ok_or(Misfit)?;
        packed = rest;
        Ok(piece)
    };
    let number = |bytes: &[u8]| bytes.try_into().map(u32::from_be_bytes).map_err(|_| Misfit);
    let size = |number: u32| usize::try_from(number).map_err(|_| Misfit);
    let count = number(take(4)?)?;
    let mut values = Vec::new();
    for _ in 0..count {
        let length = size(number(take(4)?)?)?;
        values.push(take(length)?.to_vec());
    }
    if packed.len() < PADDED_BYTES && packed.iter().all(|byte| *byte == 0) { Ok(values) } else { Err(Misfit) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verbs() -> Vec<Verb> {
        let env = r#""env":{"A":"s3cret","B":""}"#;
        [
            format!(r#"{{"exec":{{"argv":["a"],{env},"stdin":{{"text":"s3cret\n"}},"timeout_ms":1}}}}"#),
            r#"{"exec":{"argv":["a"],"stdin":{"base64":"AAH/"},"timeout_ms":1}}"#.to_owned(),
            format!(r#"{{"batch":{{"steps":[{{"argv":["a"],"timeout_ms":1}},{{"shell":"b",{env},"timeout_ms":1}}]}}}}"#),
            format!(
                r#"{{"unit_apply":{{"unit":"a/b","spec":{{"kind":"container","image":{{"name":"x"}},{env}}}}}}}"#
            ),
            format!(
                r#"{{"plan":{{"request":{{"deployments":[{{"version":{{"deployment":"a/d","number":1,"target":{{"select":"host=*"}},"units":[{{
                "unit":"a/b","run":"running","spec":{{"kind":"container","image":{{"name":"x"}},{env}}}}}]}},"asked_by":{{"operator":"a","role":"admin"}}}}]}}}}}}"#
            ),
            r#"{"unit_command":{"units":["a/b"],"name":"c","args":{"p":"s3cret","q":{"r":[1,null,"s3cret"]}},"timeout_ms":1}}"#
                .to_owned(),
        ]
        .iter()
        .map(|json| serde_json::from_str(json).unwrap_or_else(|error| panic!("{json}: {error}")))
        .collect()
    }

    #[test]
    fn secret_values_are_extracted_and_restored() {
        for verb in verbs() {
            assert!(verb.secret().is_some());
            let mut taken = verb.clone();
            let values = taken.take_values();
            let text = serde_json::to_string(&taken).unwrap();
            assert!(!text.contains("s3cret") && !text.contains("AAH/") && text.contains(MASK), "{text}");
            assert_eq!(taken, verb.masked());
            let packed = pack(&values);
            assert_eq!((packed.len() % PADDED_BYTES, unpack(&packed).as_ref()), (0, Ok(&values)));
            assert_eq!(taken.clone().put_values(values[1..].to_vec()), Err(Misfit));
            taken.put_values(values).unwrap();
            assert_eq!(taken, verb);
        }
    }

    #[test]
    fn verb_without_secrets_is_unchanged() {
        let verb: Verb = serde_json::from_str(r#"{"exec":{"argv":["a"],"timeout_ms":1}}"#).unwrap();
        assert_eq!((verb.masked(), verb.secret(), verb.clone().take_values()), (verb, None, Vec::new()));
    }

    #[test]
    fn altered_values_are_refused() {
        let packed = pack(&[b"ab".to_vec(), Vec::new()]);
        for cut in 0..packed.len() {
            // Zeros at the end are padding.
            if cut < 14 {
                assert_eq!(unpack(&packed[..cut]), Err(Misfit), "{cut}");
            }
        }
        let mut longer = packed.clone();
        longer.extend([0; PADDED_BYTES]);
        assert_eq!(unpack(&longer), Err(Misfit));
        let mut other = packed;
        if let Some(last) = other.last_mut() {
            *last = 1;
        }
        assert_eq!(unpack(&other), Err(Misfit));
        assert_eq!(unpack(&[0xff; 64]), Err(Misfit));
    }

    #[test]
    fn key_is_32_bytes() {
        let key = SealingKey::from_bytes([7; 32]);
        assert_eq!(key.to_string().parse(), Ok(key));
        for wrong in ["", "AAAA", "?"] {
            assert_eq!(wrong.parse::<SealingKey>(), Err(SealingKeyError));
        }
    }
}

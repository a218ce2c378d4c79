//! Revisions that reveal no secret.
//!
//! A unit's revision is shown in reports, answers and pages, and is a hash of its spec, including the values of its environment. A bare
//! hash would confirm a guess of a short value to anybody who knows the rest. So the revision of a spec with an environment is
//! keyed ([`RevisionKey`]): the console makes a key for each host and gives it out with the membership, to nobody else. Code
//! that only compares revisions sees no difference. Decision 0078 has the reasons.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use ring::hmac;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    canonical::CanonicalError,
    name::{Digest, UnitName},
    unit::Spec,
};

/// The purpose of the key, which is part of what it signs, so that it may serve for other purposes later.
const REVISIONS: &str = "muster revision 1";

/// The key of a host's revisions, which the host and its console know: 32 bytes, written as base64.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct RevisionKey([u8; 32]);

/// A text that is no such key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a key of revisions: it is the base64 of 32 bytes")]
pub struct RevisionKeyError;

impl RevisionKey {
    /// Creates it from 32 bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the revision of a unit's spec on this key's host: HMAC-SHA256 over [`Spec::revision`], or just that if
    /// the spec has no environment.
    ///
    /// # Errors
    /// As [`Spec::revision`].
    pub fn revision(&self, unit: &UnitName, spec: &Spec) -> Result<Digest, CanonicalError> {
        let bare = spec.revision()?;
        if spec.env().is_empty() {
            return Ok(bare);
        }
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        Ok(Digest::from_tag(&hmac::sign(&key, format!("{REVISIONS}\n{unit}\n{bare}").as_bytes())))
    }

    /// Whether this is the revision of a unit's spec on the host that has this key.
    #[must_use]
    pub fn is_of(&self, unit: &UnitName, spec: &Spec, revision: &Digest) -> bool {
        self.revision(unit, spec).is_ok_and(|found| found == *revision)
    }
}

impl std::fmt::Debug for RevisionKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RevisionKey(***)")
    }
}

impl TryFrom<String> for RevisionKey {
    type Error = RevisionKeyError;

    fn try_from(text: String) -> Result<Self, RevisionKeyError> {
        let bytes = BASE64.decode(text).map_err(|_| RevisionKeyError)?;
        bytes.try_into().map(Self).map_err(|_| RevisionKeyError)
    }
}

impl From<RevisionKey> for String {
    fn from(key: RevisionKey) -> Self {
        BASE64.encode(key.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> RevisionKey {
        RevisionKey::from_bytes([byte; 32])
    }

    fn unit(name: &str) -> UnitName {
        name.parse().unwrap()
    }

    fn spec(pin: Option<&str>) -> Spec {
        let mut spec: Spec = serde_json::from_str(&format!(
            r#"{{"kind":"yuno","artifact":{{"sha256":"{}","size_bytes":7,"role":"shop","version":"1"}}}}"#,
            Digest::of(b"")
        ))
        .unwrap();
        spec.program_mut().unwrap().env.extend(pin.map(|pin| ("PIN".to_owned(), pin.to_owned())));
        spec
    }

    #[test]
    fn one_spec_has_one_revision_on_each_host_and_for_each_unit() {
        let (till, shop) = (unit("a/till"), unit("a/shop"));
        let revision = |key: RevisionKey, unit: &UnitName, pin| key.revision(unit, &spec(Some(pin))).unwrap();
        let one = revision(key(1), &till, "4711");
        assert_eq!(one, revision(key(1), &till, "4711"));
        for other in [revision(key(2), &till, "4711"), revision(key(1), &shop, "4711"), revision(key(1), &till, "4712")]
        {
            assert_ne!(one, other);
        }
        // A spec without secrets has the same revision everywhere.
        assert_eq!(key(1).revision(&till, &spec(None)).unwrap(), spec(None).revision().unwrap());
    }

    #[test]
    fn keyed_revision_confirms_no_guess() {
        let (till, told) = (unit("a/till"), key(1).revision(&unit("a/till"), &spec(Some("4711"))).unwrap());
        let guesses = || (0..10_000).map(|pin| spec(Some(&format!("{pin:04}"))));
        assert!(guesses().all(|guess| guess.revision().unwrap() != told));
        assert!(guesses().all(|guess| key(2).revision(&till, &guess).unwrap() != told));
        // The console, with the key, can.
        let found: Vec<Spec> = guesses().filter(|guess| key(1).is_of(&till, guess, &told)).collect();
        assert_eq!(found, [spec(Some("4711"))]);
        assert!(!key(1).is_of(&till, &spec(Some("4711")), &spec(Some("4711")).revision().unwrap()));
    }

    #[test]
    fn key_is_32_bytes_and_is_not_printed() {
        let text = serde_json::to_string(&key(7)).unwrap();
        assert_eq!(serde_json::from_str::<RevisionKey>(&text).unwrap(), key(7));
        assert_eq!(format!("{:?}", key(7)), "RevisionKey(***)");
        for wrong in ["\"\"", "\"AAAA\"", "\"?\"", "7"] {
            assert!(serde_json::from_str::<RevisionKey>(wrong).is_err(), "{wrong}");
        }
    }
}

//! Secrets: values that the console keeps encrypted under a name in a realm, each change of one a new version.
//!
//! A config names one as `{"$secret": {"name": NAME}}`. The console notes in a unit's spec which version of each it has
//! ([`YunoSpec::secrets`](crate::unit::YunoSpec::secrets)), so that a changed secret is a change of the unit. The value
//! goes to the unit's host alone, sealed to its key ([`SealedSecret`]), and never over the broker.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{V1, name::Name};

/// The longest value, in bytes: keys and certificates with their chains are a tenth of it.
pub const SECRET_MAX_BYTES: usize = 64 * 1024;

/// The most secrets of one unit: each is fetched by itself, and together they remain a small part of a command.
pub const SECRETS_MAX: usize = 64;

/// The shortest value that is masked wherever it is in what a unit says, in bytes: shorter ones are parts of ordinary words.
pub const MASKED_MIN_BYTES: usize = 6;

/// One version of a secret of the unit's realm.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretRef {
    /// Its name.
    pub name: Name,
    /// Its version, from 1.
    pub version: u32,
}

impl std::fmt::Display for SecretRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.name, self.version)
    }
}

/// The response to a host's `GET /v1/secrets/REALM/NAME/VERSION`: a value, sealed to the host's key.
///
/// HPKE as for commands ([`sealed`](crate::sealed)), with `info` = `muster secret 1`, and as associated data
/// `REALM/NAME@VERSION`, a space and the host's id. What is sealed is the length of the value (32 bits, big endian), the
/// value, and zeros up to a multiple of 64 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SealedSecret {
    /// Version of this payload.
    pub v: V1,
    /// Encapsulated key and ciphertext; base64.
    pub sealed: String,
}

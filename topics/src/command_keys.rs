//! The keys that the console's signatures are verified with, and how they are replaced.
//!
//! A new key is given to all hosts beside the present one, in a document that the present one signs. Once they have it,
//! the console signs with the new one, and a second document, signed by it, takes the old one from them.
//!
//! The same document can have hosts trust other root certificates. A host drops none that its own certificate is under, and
//! renews a certificate that is not under the first of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Millis, V1,
    envelope::{Body, Kind, PublicKey},
};

/// The most keys that a host verifies with: the present one and its successor, and room for more to come.
pub const COMMAND_KEYS_MAX: usize = 4;

/// The most root certificates that a host trusts: the present one and its successor, and room for more to come.
pub const AUTHORITIES_MAX: usize = 4;

/// The longest root certificate, in PEM; one for a P-256 key has about 700 bytes.
pub const AUTHORITY_MAX_BYTES: usize = 8 * 1024;

/// A signed body on `h/<host>/cmd`: all keys that signatures of the console are verified with. It has no outcome: the
/// host reports in heartbeats which keys it has, and is sent them until they are these. They are the same for all hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandKeys {
    /// Version of this payload.
    pub v: V1,
    /// When the console made this.
    pub issued_ms: Millis,
    /// The generation: a host ignores keys that are not newer than those that it has.
    pub generation: u64,
    /// The keys, at least one and at most [`COMMAND_KEYS_MAX`]. They replace all that the host had.
    pub keys: Vec<PublicKey>,
    /// The root certificates that broker and console may be verified with, each in PEM, at most [`AUTHORITIES_MAX`]. They
    /// replace all that the host had; if there are none, these stay. Certificates are issued under the first: a host whose
    /// own certificate is under another one renews it soon.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authorities: Vec<String>,
}

impl Body for CommandKeys {
    const KIND: Kind = Kind::CommandKeys;
}

/// The keys that a host verifies with, as it reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KnownKeys {
    /// The generation of these keys; 0 if they were never replaced.
    pub generation: u64,
    /// The ids of the keys.
    pub ids: Vec<String>,
    /// The root certificates that the host trusts: the first 16 hexadecimal digits of the SHA-256 of each (DER).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authorities: Vec<String>,
    /// Which of them its own certificate is under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
}

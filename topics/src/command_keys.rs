//! The keys that the console's signatures are verified with, and how they are replaced.
//!
//! A new key is given to all hosts beside the present one, in a document that the present one signs. Once they have it,
//! the console signs with the new one, and a second document, signed by it, takes the old one from them.
//!
//! The same document can have hosts trust other root certificates. A host drops none that its own certificate is under, and
//! renews a certificate that is not under the first of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::envelope::PublicKey;

/// The most keys that a host verifies with: the present one and its successor, and room for more to come.
pub const COMMAND_KEYS_MAX: usize = 4;

/// The most root certificates that a host trusts: the present one and its successor, and room for more to come.
pub const AUTHORITIES_MAX: usize = 4;

/// The longest root certificate, in PEM; one for a P-256 key has about 700 bytes.
pub const AUTHORITY_MAX_BYTES: usize = 8 * 1024;

/// All keys that signatures of the console are verified with. They are the same for all hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandKeys {
    /// The keys, at least one and at most [`COMMAND_KEYS_MAX`]. They replace all that the host had.
    pub keys: Vec<PublicKey>,
    /// The root certificates that broker and console may be verified with, each in PEM, at most [`AUTHORITIES_MAX`]. They
    /// replace all that the host had; if there are none, these stay. Certificates are issued under the first: a host whose
    /// own certificate is under another one renews it soon.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authorities: Vec<String>,
}

impl CommandKeys {
    /// Checks what no host may follow.
    ///
    /// # Errors
    /// If there is no key, or too many keys or root certificates, or one of these is too long.
    pub fn check(&self) -> Result<(), String> {
        let is_long = |pem: &String| pem.len() > AUTHORITY_MAX_BYTES;
        if !(1..=COMMAND_KEYS_MAX).contains(&self.keys.len()) {
            Err("they are empty, or more than a host may have".to_owned())
        } else if self.authorities.len() > AUTHORITIES_MAX || self.authorities.iter().any(is_long) {
            Err("their root certificates are more, or longer, than a host may have".to_owned())
        } else {
            Ok(())
        }
    }
}

/// The keys that a host verifies with, as it reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KnownKeys {
    /// The ids of the keys.
    pub ids: Vec<String>,
    /// The root certificates that the host trusts: the first 16 hexadecimal digits of the SHA-256 of each (DER).
    pub authorities: Vec<String>,
    /// Which of them its own certificate is under; left out if it is under none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
}

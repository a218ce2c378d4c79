//! Joining: one HTTPS exchange in which a one-time token and a certificate request become
//! a certificate. The token pins the authority, so the very first connection is already safe; the
//! certificate is short-lived, and the agent renews it over the same interface with itself.
//!
//! `POST /v1/join` takes a [`JoinRequest`], `POST /v1/renew` (with the present certificate) a
//! [`RenewRequest`]; both answer with a [`Membership`], or with a [`Problem`].
//! `POST /v1/sealing-key` (with the certificate) takes a [`SealingKeyNotice`](crate::sealed::SealingKeyNotice).
//! `GET /v1/artifacts/<sha256>` and `GET /v1/configs/<sha256>` (with the certificate) return content.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    V1,
    address::Addresses,
    command_keys::KnownKeys,
    diagnostic::Diagnostic,
    envelope::PublicKey,
    heartbeat::Facts,
    name::{Digest, HostId},
    numbered::{self, NumberedKind, Numbers},
    revision::RevisionKey,
    sealed::SealingKey,
    topic::Prefix,
};

/// A join token, which an operator gives to a new host: where to join, which authority to trust, and a secret for one
/// use. Written as `muster1.` and the base64 of its JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinToken {
    /// The base URL of the console's interface for hosts, such as `https://203.0.113.5:7443`.
    pub url: String,
    /// SHA-256 of the authority's certificate (DER).
    pub authority: Digest,
    /// 32 random bytes, as hexadecimal digits.
    pub secret: String,
}

const TOKEN_PREFIX: &str = "muster1.";

/// A text that is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a join token: it begins with {TOKEN_PREFIX:?} and must be complete")]
pub struct TokenError;

impl std::fmt::Display for JoinToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let json = serde_json::to_vec(self).map_err(|_| std::fmt::Error)?;
        write!(f, "{TOKEN_PREFIX}{}", BASE64.encode(json))
    }
}

impl std::str::FromStr for JoinToken {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let encoded = text.trim().strip_prefix(TOKEN_PREFIX).ok_or(TokenError)?;
        let json = BASE64.decode(encoded).map_err(|_| TokenError)?;
        serde_json::from_slice(&json).map_err(|_| TokenError)
    }
}

/// A request of a host to join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// Version of this payload.
    pub v: V1,
    /// The token's secret.
    pub secret: String,
    /// The id that the host has generated.
    pub host: HostId,
    /// A PKCS#10 certificate request in PEM. Only its key is used; the name in the certificate is `host`.
    pub csr: String,
    /// The hostname.
    pub hostname: String,
    /// The machine's facts.
    pub facts: Facts,
    /// The host's public key for sealed content.
    pub sealing_key: SealingKey,
}

/// A request to renew a host's certificate; the present certificate identifies the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewRequest {
    /// Version of this payload.
    pub v: V1,
    /// As [`JoinRequest::csr`].
    pub csr: String,
}

/// What a member of the fleet needs to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Membership {
    /// Version of this payload.
    pub v: V1,
    /// The host.
    pub host: HostId,
    /// The host's certificate, in PEM.
    pub certificate: String,
    /// The authority's certificate, in PEM, to verify broker and console; several, while one replaces the other. The host's
    /// own certificate is under the first.
    pub authority: String,
    /// The keys that sign commands; two, while one replaces the other.
    pub command_keys: Vec<PublicKey>,
    /// The broker's URL, such as `mqtts://203.0.113.5:8883`.
    pub broker_url: String,
    /// The base URL of the console's interface for hosts.
    pub console_url: String,
    /// The prefix of all topics.
    pub prefix: Prefix,
    /// The key of the host's revisions.
    pub revision_key: RevisionKey,
    /// Further addresses of broker and console, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<Addresses>,
    /// The numbers of `command_keys`, once they were replaced, and of `addresses`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "numbered::known")]
    pub numbers: Numbers,
}

impl Membership {
    /// Returns the number of a document that came with the membership; 0 if there was none.
    #[must_use]
    pub fn number(&self, kind: NumberedKind) -> u64 {
        self.numbers.get(&kind).copied().unwrap_or_default()
    }

    /// Returns the keys that the host verifies with, as it reports them, without the roots that it trusts.
    #[must_use]
    pub fn known_keys(&self) -> KnownKeys {
        let ids = self.command_keys.iter().map(|key| key.id().to_owned()).collect();
        KnownKeys { ids, ..KnownKeys::default() }
    }
}

/// Why an HTTP request was refused: the body of every error response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// The reason, for programs, such as `token_used`.
    pub code: String,
    /// The reason, for people: `message`, `consequence` and `hint`.
    #[serde(flatten)]
    pub diagnostic: Diagnostic,
}

impl Problem {
    /// Creates a problem with a cause alone.
    #[must_use]
    pub fn new(code: &str, cause: impl std::fmt::Display) -> Self {
        Self { code: code.to_owned(), diagnostic: Diagnostic::new(cause) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_parses_whole_or_is_refused() {
        let token = JoinToken {
            url: "https://127.0.0.1:7443".to_owned(),
            authority: Digest::of(b"certificate"),
            secret: "00".repeat(32),
        };
        let text = token.to_string();
        assert_eq!(text.parse(), Ok(token));
        for cut in 0..text.len() {
            assert_eq!(text[..cut].parse::<JoinToken>(), Err(TokenError));
        }
    }
}

//! Secrets by name: what the console tells of them, which is never a value.

use muster_topics::{
    Millis,
    name::{ConfigId, HostId, Name, UnitName, Version},
    secret::SecretRef,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `POST /api/v1/secrets`: sets a secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSecret {
    /// The realm whose units may use it.
    pub realm: Name,
    /// Its name.
    pub name: Name,
    /// Its value: text, from 1 byte to 64 KiB.
    pub value: String,
}

impl std::fmt::Debug for NewSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewSecret").field("realm", &self.realm).field("name", &self.name).finish_non_exhaustive()
    }
}

/// The result of [`NewSecret`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretSet {
    /// The secret.
    pub secret: Secret,
    /// Whether this is a new version. The value that it has already makes none.
    pub changed: bool,
}

/// An item of `GET /api/v1/secrets`: a secret that has a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Secret {
    /// The realm whose units may use it.
    pub realm: Name,
    /// Its name.
    pub name: Name,
    /// Its newest version.
    pub version: u32,
    /// When that was set.
    pub set_ms: Millis,
    /// Who set it.
    pub operator: Name,
    /// Whether the console can read its value, which takes the key that it was encrypted with.
    pub readable: bool,
    /// The number of units that use it, on all hosts.
    pub units: u64,
    /// How many of them have an earlier version.
    pub behind: u64,
}

impl Secret {
    /// Returns its newest version, with its realm.
    #[must_use]
    pub fn newest(&self) -> (Name, SecretRef) {
        (self.realm.clone(), SecretRef { name: self.name.clone(), version: self.version })
    }
}

/// `GET /api/v1/secrets/{realm}/{name}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretDetail {
    /// The secret; `None` if it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
    /// All its versions, the newest first.
    pub versions: Vec<SecretVersion>,
    /// The units that use it.
    pub users: Vec<SecretUser>,
    /// The configs that name it. Which realm they mean depends on the units that use them.
    pub configs: Vec<SecretConfig>,
}

/// A config that names a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretConfig {
    /// Its id.
    pub id: ConfigId,
    /// Its version.
    pub version: Version,
}

/// One version of a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretVersion {
    /// Its number.
    pub version: u32,
    /// When it was set.
    pub set_ms: Millis,
    /// Who set it.
    pub operator: Name,
    /// Whether its value is there.
    pub state: SecretVersionState,
}

/// Whether the value of a version is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SecretVersionState {
    /// It is, encrypted.
    Stored,
    /// It is, but the key that it was encrypted with is lost.
    Unreadable,
    /// It was erased: the secret was removed, or has had many versions since.
    Erased,
}

impl SecretVersionState {
    /// Returns it in words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::Unreadable => "unreadable",
            Self::Erased => "erased",
        }
    }
}

/// A unit that uses a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretUser {
    /// Its host.
    pub host: HostId,
    /// The host's name.
    pub hostname: String,
    /// The unit.
    pub unit: UnitName,
    /// The version that it should have.
    pub version: u32,
}

/// The result of `POST /api/v1/secrets/rotate-key`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeyRotation {
    /// The number of the key that all secrets are encrypted with now.
    pub key: u32,
    /// How many values were encrypted again.
    pub encrypted: u64,
    /// How many cannot be, because the key that they were encrypted with is lost.
    pub unreadable: u64,
}

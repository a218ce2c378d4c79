//! The fleet's authority: its keys and root certificates, and how they are replaced.

use muster_topics::{
    Millis,
    name::{Digest, HostId, Name},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The authority, and the rotation that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuthorityStatus {
    /// SHA-256 of the root certificate, which join tokens have.
    pub fingerprint: Digest,
    /// The root certificates that are trusted, in PEM: two while one replaces the other.
    pub certificates: String,
    /// The id of the key that the console signs with.
    pub signing_key: String,
    /// Where its private half is.
    pub signing_key_place: SigningKeyPlace,
    /// The rotation that is under way.
    pub rotation: Option<RotationStatus>,
    /// The last rotation that was finished.
    pub last_rotation: Option<PastRotation>,
}

/// Where the private half of a key is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SigningKeyPlace {
    /// In a file of the console.
    File,
    /// In a credential of systemd, at this path.
    Credential(String),
    /// With an external signer, at this address.
    Signer(String),
    /// Nowhere that the console knows: it cannot sign.
    Absent,
}

/// A rotation that is under way: hosts are told of the new key or root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RotationStatus {
    /// What is rotated.
    pub what: RotatedKey,
    /// The id of the new key, or of the new root.
    pub new_key: String,
    /// How far the rotation of a root is; null for a key.
    pub stage: Option<RootStage>,
    /// When it began.
    pub begun_ms: Millis,
    /// Who began it.
    pub operator: Name,
    /// How many members have the new key, trust the new root, or have a certificate under it, by stage.
    pub having: u64,
    /// Members that do not, by hostname.
    pub lacking: Vec<LackingHost>,
    /// Whether no host keeps it from going on.
    pub ready: bool,
    /// The broker's address, if it runs by itself and needs the root certificates.
    pub broker: Option<String>,
    /// Owners of certificates that were made by hand under the old root, and end with it.
    pub by_hand: Vec<String>,
}

/// How far the rotation of a root is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RootStage {
    /// Hosts are told to trust the new root beside the present one.
    Trust,
    /// Certificates of hosts and other clients are made under the new root, and hosts renew theirs.
    Certificates,
}

/// A rotation that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PastRotation {
    /// What was rotated.
    pub what: RotatedKey,
    /// The id of the key, or of the root, that was replaced.
    pub old_key: String,
    /// When it was.
    pub finished_ms: Millis,
    /// Who finished it.
    pub operator: Name,
    /// How many members have the present key or root alone.
    pub having: u64,
    /// Members that do not have the present one, or still accept others beside it, by hostname.
    pub lacking: Vec<LackingHost>,
}

/// A member that does not have the keys that it should.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LackingHost {
    /// Its id.
    pub host: HostId,
    /// Its hostname.
    pub hostname: String,
    /// Why it does not have them.
    pub why: LackingReason,
    /// Since when it is away; null if it is not.
    pub away_since_ms: Option<Millis>,
}

/// Why a member does not have the keys that it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LackingReason {
    /// It has not confirmed them yet.
    Unconfirmed,
    /// It has joined, and reported nothing yet.
    Unheard,
    /// Its certificate has expired: it must join again, and gets the keys then. It keeps no rotation from being finished.
    CertificateExpired,
    /// It has the present key, and still accepts an old one: it was not there yet to be told.
    HasOldKey,
    /// Its certificate is under the old root.
    OldCertificate,
    /// It has a certificate under the present root, and still trusts an old one: it was not there yet to be told.
    HasOldRoot,
}

impl LackingReason {
    /// Returns it in words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Unconfirmed => "has not confirmed it",
            Self::Unheard => "has joined and has not reported yet",
            Self::CertificateExpired => "its certificate has expired: it must join again",
            Self::HasOldKey => "still accepts an old key",
            Self::OldCertificate => "its certificate is under the old root",
            Self::HasOldRoot => "still trusts an old root",
        }
    }
}

/// What is rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RotatedKey {
    /// The key that signs commands.
    Signing,
    /// The root certificate.
    Root,
}

/// A request to begin a rotation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BeginRotation {
    /// What is rotated.
    pub what: RotatedKey,
}

/// A request to finish the rotation that is under way. For a root it is given twice: the first has certificates made under
/// the new root, the second ends all trust in the old one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FinishRotation {
    /// Hosts, by id or hostname, that need not have the new key, or trust the new root, or have a certificate under it.
    #[serde(default)]
    pub without: Vec<String>,
}

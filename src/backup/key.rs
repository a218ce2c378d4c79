//! The keys of backups, in the form of age: `age1…` encrypts, `AGE-SECRET-KEY-1…` decrypts.

use std::{fmt, str::FromStr};

use bech32::{Bech32, Hrp, primitives::decode::CheckedHrpstring};
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use x25519_dalek::{PublicKey as X25519Public, StaticSecret};

use crate::BackupError;

const PUBLIC_PREFIX: &str = "age";
const PRIVATE_PREFIX: &str = "age-secret-key-";
/// The most lines of a file of private keys that are read.
const LINES_MAX: usize = 1_000;

/// A public key: whoever has it can make backups, and open none.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey(X25519Public);

impl PublicKey {
    pub(crate) fn x25519(&self) -> &X25519Public {
        &self.0
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = Hrp::parse(PUBLIC_PREFIX).map_err(|_| fmt::Error)?;
        f.write_str(&bech32::encode_lower::<Bech32>(prefix, self.0.as_bytes()).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl FromStr for PublicKey {
    type Err = BackupError;

    fn from_str(text: &str) -> Result<Self, BackupError> {
        let what = "the public key";
        let text = text.trim();
        if text.to_ascii_lowercase().starts_with(PRIVATE_PREFIX) {
            let problem = "it is a private key, which must not be on the console's machine".to_owned();
            return Err(BackupError::Key { what, problem });
        }
        decoded(what, PUBLIC_PREFIX, text).map(|bytes| Self(bytes.into()))
    }
}

impl TryFrom<String> for PublicKey {
    type Error = String;

    /// The error of a configuration is a text alone, so it has the hint as a clause.
    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map_err(|error: BackupError| match error.diagnostic().hint {
            Some(hint) => format!("{error}; {hint}"),
            None => error.to_string(),
        })
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> Self {
        key.to_string()
    }
}

/// A private key, which opens backups.
#[derive(Clone)]
pub struct PrivateKey(StaticSecret);

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(***)")
    }
}

impl PrivateKey {
    /// Generates a key.
    ///
    /// # Errors
    /// If the system provides no randomness.
    pub fn generate() -> Result<Self, BackupError> {
        random().map(|bytes: [u8; 32]| Self(bytes.into()))
    }

    /// The public part.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey(X25519Public::from(&self.0))
    }

    /// The key as text, which must be kept secret.
    #[must_use]
    pub fn to_text(&self) -> String {
        let prefix = Hrp::parse(PRIVATE_PREFIX);
        let text = prefix.ok().and_then(|prefix| bech32::encode_upper::<Bech32>(prefix, self.0.as_bytes()).ok());
        text.unwrap_or_default()
    }

    pub(crate) fn x25519(&self) -> &StaticSecret {
        &self.0
    }

    /// Reads the private keys of a text: one in each line, with empty lines and comments (`#`) between them.
    ///
    /// # Errors
    /// If there is none, or a line is none.
    pub fn all_of(text: &str) -> Result<Vec<Self>, BackupError> {
        let lines =
            text.lines().take(LINES_MAX).map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let keys = lines.map(str::parse).collect::<Result<Vec<Self>, _>>()?;
        if keys.is_empty() {
            let problem = "it has no line that begins with AGE-SECRET-KEY-1".to_owned();
            return Err(BackupError::Key { what: "the file of the private key", problem });
        }
        Ok(keys)
    }
}

impl FromStr for PrivateKey {
    type Err = BackupError;

    fn from_str(text: &str) -> Result<Self, BackupError> {
        let what = "the private key";
        let text = text.trim();
        if text.to_ascii_lowercase().starts_with("age1") {
            let problem = "it is a public key, which cannot decrypt".to_owned();
            return Err(BackupError::Key { what, problem });
        }
        decoded(what, PRIVATE_PREFIX, text).map(|bytes| Self(bytes.into()))
    }
}

/// The 32 bytes of a key.
fn decoded(what: &'static str, prefix: &str, text: &str) -> Result<[u8; 32], BackupError> {
    // Its text may be a secret: errors do not quote it.
    let wrong = |problem: &str| BackupError::Key { what, problem: problem.to_owned() };
    let parsed = CheckedHrpstring::new::<Bech32>(text)
        .map_err(|_| wrong("a part of it is missing or mistyped (its checksum is wrong)"))?;
    if !parsed.hrp().as_str().eq_ignore_ascii_case(prefix) {
        return Err(wrong("it is another kind of key"));
    }
    let bytes: Vec<u8> = parsed.byte_iter().collect();
    bytes.try_into().map_err(|_| wrong("it does not have 32 bytes"))
}

/// Random bytes.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], BackupError> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| BackupError::Randomness)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pair that `age-keygen` made.
    const PRIVATE: &str = "AGE-SECRET-KEY-1S4R25LFNRMCCUCQA6WZC40CAWCMATKQKADPVRZFQZLYNSFHS6G9QT3AMJ2";
    const PUBLIC: &str = "age1jhxlczdy6d87c8f5rvr0p79avw3uv2pj56f5937h26gv87jz4agq7gq9rk";

    #[test]
    fn keys_are_those_of_age() {
        let key: PrivateKey = PRIVATE.parse().unwrap();
        assert_eq!((key.public().to_string().as_str(), key.to_text().as_str()), (PUBLIC, PRIVATE));
        assert_eq!(PUBLIC.parse::<PublicKey>().unwrap(), key.public());
        assert_eq!(format!("{key:?}"), "PrivateKey(***)");
    }

    #[test]
    fn mistyped_and_swapped_keys_are_refused() {
        let said = |result: Result<PrivateKey, BackupError>| result.unwrap_err().to_string();
        assert!(said(PUBLIC.parse()).contains("it is a public key"));
        assert!(said(PRIVATE.replace('Q', "P").parse()).contains("checksum"));
        for end in 0..PRIVATE.len() {
            let error = said(PRIVATE[..end].parse());
            assert!(end < 20 || !error.contains(&PRIVATE[16..end]), "{error}");
        }
        assert!(PRIVATE.parse::<PublicKey>().unwrap_err().to_string().contains("it is a private key"));
        assert!("npub1qqqsyqcyq5rqwzqf".parse::<PublicKey>().is_err());
    }

    #[test]
    fn file_of_keys_has_comments() {
        let text = format!("# created: today\n# public key: {PUBLIC}\n\n{PRIVATE}\n");
        assert_eq!(PrivateKey::all_of(&text).unwrap().len(), 1);
        assert!(PrivateKey::all_of("# nothing\n").is_err());
        assert!(PrivateKey::all_of(&format!("{PRIVATE}\nnonsense\n")).is_err());
    }
}

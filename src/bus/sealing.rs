//! Sealing: encrypts the secrets of a command to each host's own key. The console seals, agents open.
//!
//! - The secret values of a command are encrypted once, with a key made for it (ChaCha20-Poly1305, the command's id as associated data).
//! - That key is sealed to each host (HPKE, RFC 9180: base mode, X25519, HKDF-SHA256, ChaCha20-Poly1305), with the ids of command and host
//!   as associated data: what was sealed for one host or one command opens nothing of another.
//!
//! A secret that a unit uses is sealed to its host directly ([`seal_secret`]).
//!
//! HPKE names its purpose in `info`, so that a host's key serves both without mixing them.
//!
//! **Invariant: a content key encrypts one content**, which is why its nonce may be zero.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use hpke::{
    Deserializable, Kem as _, OpModeR, OpModeS, Serializable, aead::ChaCha20Poly1305, kdf::HkdfSha256,
    kem::X25519HkdfSha256,
};
use muster_topics::{
    V1,
    command::{Command, Verb},
    name::{CommandId, HostId, Name},
    sealed::{Misfit, Sealed, SealingKey, pack, unpack},
    secret::{SealedSecret, SecretRef},
};
use ring::{
    aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey},
    rand::{SecureRandom, SystemRandom},
};
use zeroize::Zeroizing;

type Kem = X25519HkdfSha256;

/// The `info` parameter of HPKE for keys of commands.
const COMMANDS: &[u8] = b"muster command 1";

/// The same for secrets that units use.
const SECRETS: &[u8] = b"muster secret 1";

/// Sealed secrets are padded to a multiple of this, so that their length says little.
const SECRET_BLOCK_BYTES: usize = 64;

/// Length of the sender's public key, which precedes a sealed key.
const ENCAPSULATED_BYTES: usize = 32;

/// The system provides no randomness, or a key is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot seal: {0}")]
pub struct SealError(&'static str);

/// Why the sealed part of a command cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, miette::Diagnostic)]
pub enum OpenError {
    /// The command carries no key.
    #[error("the command has sealed content without its key")]
    NoKey,
    /// It was sealed to another key, or for another host, command or secret.
    #[error("the content of the command is not sealed to this host's present key")]
    #[diagnostic(help(
        "send the command again; the console has the present key as soon as this agent has reported it"
    ))]
    WrongKey,
    /// It was changed after it was sealed.
    #[error("the sealed content of the command is damaged")]
    Damaged,
}

impl From<Misfit> for OpenError {
    fn from(_: Misfit) -> Self {
        Self::Damaged
    }
}

/// A host's private key, for data that only this host may read.
#[derive(Clone)]
pub struct HostKey(<Kem as hpke::Kem>::PrivateKey);

impl std::fmt::Debug for HostKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HostKey(***)")
    }
}

/// The text is not a private key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not a private key: expected the base64 of 32 bytes")]
pub struct HostKeyError;

impl std::str::FromStr for HostKey {
    type Err = HostKeyError;

    fn from_str(text: &str) -> Result<Self, HostKeyError> {
        let bytes = BASE64.decode(text.trim()).map_err(|_| HostKeyError)?;
        <Kem as hpke::Kem>::PrivateKey::from_bytes(&bytes).map(Self).map_err(|_| HostKeyError)
    }
}

impl HostKey {
    /// Generates a new key.
    ///
    /// # Errors
    /// If the system provides no randomness.
    pub fn generate() -> Result<Self, SealError> {
        Ok(Self::derived_from(&random()?))
    }

    /// The key that is derived from a secret of sufficient entropy.
    #[must_use]
    pub fn derived_from(secret: &[u8]) -> Self {
        Self(Kem::derive_keypair(secret).0)
    }

    /// The key as text, which must be kept secret.
    #[must_use]
    pub fn to_text(&self) -> String {
        BASE64.encode(self.0.to_bytes())
    }

    /// The public key.
    #[must_use]
    pub fn public(&self) -> SealingKey {
        SealingKey::from_bytes(Kem::sk_to_pk(&self.0).to_bytes().into())
    }

    /// The complete verb of a command, with what was sealed to this key for `host`.
    ///
    /// # Errors
    /// If this key does not open the sealed part.
    pub fn open(&self, command: &Command, host: HostId) -> Result<Verb, OpenError> {
        let mut verb = command.verb.clone();
        if let Some(sealed) = &command.sealed {
            let key = self.content_key(sealed, command.id, host)?;
            let mut content = BASE64.decode(&sealed.content).map_err(|_| OpenError::Damaged)?;
            let packed = key
                .aead()?
                .open_in_place(nonce(), Aad::from(command.id.to_string()), &mut content)
                .map_err(|_| OpenError::Damaged)?;
            verb.put_values(unpack(packed)?)?;
        }
        Ok(verb)
    }

    /// The value of a version of a secret that was sealed to this key for `host`.
    ///
    /// # Errors
    /// If this key does not open it, or it was sealed for another secret or host.
    pub fn open_secret(
        &self,
        sealed: &SealedSecret,
        (realm, secret): (&Name, &SecretRef),
        host: HostId,
    ) -> Result<Zeroizing<String>, OpenError> {
        let bytes = BASE64.decode(&sealed.sealed).map_err(|_| OpenError::Damaged)?;
        let padded = Zeroizing::new(self.open_bytes(&bytes, SECRETS, &secret_place(realm, secret, host))?);
        let (length, rest) = padded.split_first_chunk().ok_or(OpenError::Damaged)?;
        let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| OpenError::Damaged)?;
        let value = rest.get(..length).and_then(|value| std::str::from_utf8(value).ok()).ok_or(OpenError::Damaged)?;
        Ok(Zeroizing::new(value.to_owned()))
    }

    /// Opens what was sealed for a purpose (`info`) with this associated data.
    fn open_bytes(&self, bytes: &[u8], info: &[u8], associated: &[u8]) -> Result<Vec<u8>, OpenError> {
        let (encapsulated, sealed) = bytes.split_at_checked(ENCAPSULATED_BYTES).ok_or(OpenError::WrongKey)?;
        let encapsulated =
            <Kem as hpke::Kem>::EncappedKey::from_bytes(encapsulated).map_err(|_| OpenError::WrongKey)?;
        hpke::single_shot_open::<ChaCha20Poly1305, HkdfSha256, Kem>(
            &OpModeR::Base,
            &self.0,
            &encapsulated,
            info,
            sealed,
            associated,
        )
        .map_err(|_| OpenError::WrongKey)
    }

    fn content_key(&self, sealed: &Sealed, command: CommandId, host: HostId) -> Result<ContentKey, OpenError> {
        let text = sealed.key.as_deref().ok_or(OpenError::NoKey)?;
        let bytes = BASE64.decode(text).map_err(|_| OpenError::WrongKey)?;
        let key = self.open_bytes(&bytes, COMMANDS, &meant_for(command, host))?;
        key.try_into().map(ContentKey).map_err(|_| OpenError::WrongKey)
    }
}

/// The key that encrypts the content of one command.
pub struct ContentKey([u8; 32]);

impl std::fmt::Debug for ContentKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ContentKey(***)")
    }
}

impl ContentKey {
    fn aead(&self) -> Result<LessSafeKey, OpenError> {
        UnboundKey::new(&CHACHA20_POLY1305, &self.0).map(LessSafeKey::new).map_err(|_| OpenError::Damaged)
    }

    /// Seals the key to a host; the result is sent beside the signed body.
    ///
    /// # Errors
    /// If the host's key is invalid.
    pub fn seal_to(&self, key: &SealingKey, command: CommandId, host: HostId) -> Result<String, SealError> {
        Ok(BASE64.encode(seal_bytes(key, &self.0, COMMANDS, &meant_for(command, host))?))
    }
}

/// Seals bytes to a host's key for a purpose (`info`), with associated data.
fn seal_bytes(key: &SealingKey, bytes: &[u8], info: &[u8], associated: &[u8]) -> Result<Vec<u8>, SealError> {
    let none = |_| SealError("the host's key is not valid");
    let key = <Kem as hpke::Kem>::PublicKey::from_bytes(key.as_bytes()).map_err(none)?;
    let (encapsulated, sealed) =
        hpke::single_shot_seal::<ChaCha20Poly1305, HkdfSha256, Kem>(&OpModeS::Base, &key, info, bytes, associated)
            .map_err(none)?;
    Ok([&encapsulated.to_bytes()[..], &sealed].concat())
}

/// Seals the value of a version of a secret to its host.
///
/// # Errors
/// If the host's key is invalid.
pub fn seal_secret(
    key: &SealingKey,
    (realm, secret): (&Name, &SecretRef),
    host: HostId,
    value: &str,
) -> Result<SealedSecret, SealError> {
    let length = u32::try_from(value.len()).map_err(|_| SealError("it is too long"))?;
    let mut padded = Zeroizing::new(length.to_be_bytes().to_vec());
    padded.reserve_exact(value.len() + SECRET_BLOCK_BYTES);
    padded.extend_from_slice(value.as_bytes());
    let whole = padded.len().next_multiple_of(SECRET_BLOCK_BYTES);
    padded.resize(whole, 0);
    let sealed = seal_bytes(key, &padded, SECRETS, &secret_place(realm, secret, host))?;
    Ok(SealedSecret { v: V1, sealed: BASE64.encode(sealed) })
}

/// The associated data of a sealed secret.
fn secret_place(realm: &Name, secret: &SecretRef, host: HostId) -> Vec<u8> {
    format!("{realm}/{secret} {host}").into_bytes()
}

/// Removes from a verb what only its hosts may read, and encrypts it; `None` if there is no such part. The remaining
/// verb may be signed, stored and shown.
///
/// # Errors
/// If the system provides no randomness.
pub fn seal(verb: &mut Verb, command: CommandId) -> Result<Option<(Sealed, ContentKey)>, SealError> {
    // A verb that only contains masks (which keep the values that a unit has) has nothing to hide.
    if *verb == verb.masked() {
        return Ok(None);
    }
    let key = ContentKey(random()?);
    let mut content = pack(&verb.take_values());
    let aead = key.aead().map_err(|_| SealError("its content cannot be encrypted"))?;
    aead.seal_in_place_append_tag(nonce(), Aad::from(command.to_string()), &mut content)
        .map_err(|_| SealError("its content cannot be encrypted"))?;
    Ok(Some((Sealed { content: BASE64.encode(content), key: None }, key)))
}

/// The associated data of a sealed key.
fn meant_for(command: CommandId, host: HostId) -> Vec<u8> {
    format!("{command} {host}").into_bytes()
}

/// The only nonce that is used: each key encrypts once.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

fn random() -> Result<[u8; 32], SealError> {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).map_err(|_| SealError("the system provides no randomness"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use muster_topics::{
        V1,
        asker::Asker,
        command::{Exec, Target},
        outcome::Data,
    };

    use super::*;

    fn verb() -> Verb {
        Verb::Exec(Exec {
            env: [("TOKEN".to_owned(), "s3cret-of-env".to_owned())].into(),
            stdin: Some(Data::Text("s3cret-of-stdin".to_owned())),
            ..Exec::new(vec!["true".to_owned()], 5)
        })
    }

    fn command(host: HostId, key: &SealingKey) -> Command {
        let (id, mut verb) = (CommandId::new(), verb());
        let (mut sealed, content) = seal(&mut verb, id).unwrap().unwrap();
        sealed.key = Some(content.seal_to(key, id, host).unwrap());
        let target = Target::Hosts(vec![host]);
        let asked_by = Asker::admin(Name::admin());
        Command {
            v: V1,
            id,
            target,
            issued_ms: 0,
            expires_ms: 1,
            asked_by,
            realms: Vec::new(),
            verb,
            sealed: Some(sealed),
        }
    }

    #[test]
    fn sealed_values_are_opened_by_their_host_alone() {
        let (key, other, host) = (HostKey::generate().unwrap(), HostKey::generate().unwrap(), HostId::random());
        let command = command(host, &key.public());
        assert!(!serde_json::to_string(&command).unwrap().contains("s3cret"));
        assert_eq!(key.open(&command, host), Ok(verb()));
        assert_eq!(other.open(&command, host), Err(OpenError::WrongKey));
        assert_eq!(key.open(&command, HostId::random()), Err(OpenError::WrongKey));
        let moved = Command { id: CommandId::new(), ..command.clone() };
        assert_eq!(key.open(&moved, host), Err(OpenError::WrongKey));
        let with = |sealed| Command { sealed: Some(sealed), ..command.clone() };
        let sealed = command.sealed.clone().unwrap();
        assert_eq!(key.open(&with(Sealed { key: None, ..sealed.clone() }), host), Err(OpenError::NoKey));
        for wrong in ["", "AAAA", "?", &"A".repeat(108)] {
            let wrong = Sealed { key: Some(wrong.to_owned()), ..sealed.clone() };
            assert_eq!(key.open(&with(wrong), host), Err(OpenError::WrongKey));
        }
        let mut content = sealed.content.clone().into_bytes();
        content[8] = if content[8] == b'A' { b'B' } else { b'A' };
        let content = String::from_utf8(content).unwrap();
        assert_eq!(key.open(&with(Sealed { content, ..sealed }), host), Err(OpenError::Damaged));
        let fewer = Command { verb: Verb::Exec(Exec::new(vec!["true".to_owned()], 5)), ..command };
        assert_eq!(key.open(&fewer, host), Err(OpenError::Damaged));
    }

    #[test]
    fn verb_without_secrets_is_unchanged() {
        let mut plain = Verb::Exec(Exec::new(vec!["true".to_owned()], 5));
        assert!(seal(&mut plain, CommandId::new()).unwrap().is_none());
        // A mask keeps the value that a unit has.
        let mut masked = verb().masked();
        assert!(seal(&mut masked, CommandId::new()).unwrap().is_none());
        assert_eq!(masked, verb().masked());
    }

    #[test]
    fn same_values_are_never_sealed_alike() {
        let (key, host) = (HostKey::generate().unwrap().public(), HostId::random());
        let (one, other) = (command(host, &key).sealed.unwrap(), command(host, &key).sealed.unwrap());
        assert!(one.content != other.content && one.key != other.key);
        assert_eq!(one.content.len(), other.content.len());
    }

    #[test]
    fn host_key_comes_back_from_its_text() {
        let key = HostKey::generate().unwrap();
        assert_eq!(key.to_text().parse::<HostKey>().unwrap().public(), key.public());
        assert!("nonsense".parse::<HostKey>().is_err());
        assert_eq!(HostKey::derived_from(b"a").public(), HostKey::derived_from(b"a").public());
        assert!(!format!("{key:?}").contains(&key.to_text()));
    }

    #[test]
    fn secret_is_opened_by_its_host_alone() {
        let (host, key) = (HostId::random(), HostKey::generate().unwrap());
        let realm: Name = "prod".parse().unwrap();
        let secret = |name: &str, version| SecretRef { name: name.parse().unwrap(), version };
        let db = secret("db", 3);
        for value in ["", "hunter2", "ключ\n", &"x".repeat(64 * 1024)] {
            let sealed = seal_secret(&key.public(), (&realm, &db), host, value).unwrap();
            assert_eq!(&**key.open_secret(&sealed, (&realm, &db), host).unwrap(), value);
            let refused = |key: &HostKey, place, host| key.open_secret(&sealed, place, host).unwrap_err();
            let default = Name::default_realm();
            for (key, place, host) in [
                (&HostKey::generate().unwrap(), (&realm, &db), host),
                (&key, (&realm, &db), HostId::random()),
                (&key, (&realm, &secret("db", 2)), host),
                (&key, (&realm, &secret("api", 3)), host),
                (&key, (&default, &db), host),
            ] {
                assert_eq!(refused(key, place, host), OpenError::WrongKey);
            }
        }
        let lengths = ["a", "twenty characters ok"]
            .map(|value| seal_secret(&key.public(), (&realm, &db), host, value).unwrap().sealed.len());
        assert_eq!(lengths[0], lengths[1]);
        for bad in ["", "!", "AAAA"] {
            let sealed = SealedSecret { v: V1, sealed: bad.to_owned() };
            assert!(key.open_secret(&sealed, (&realm, &db), host).is_err());
        }
    }
}

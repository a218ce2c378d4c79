//! The keys that secrets are encrypted with at rest, in a file beside the authority's keys: a line for each key, with its
//! number and its bytes in base64. The last one encrypts; earlier ones are there while a rotation is under way.
//!
//! A value is encrypted with ChaCha20-Poly1305 under a random nonce of 96 bits, which precedes it. With at most a few
//! thousand values for each key no nonce repeats (NIST SP 800-38D allows 2³² of them). Its realm, name and version are
//! associated data, so that a row of the database cannot be put in the place of another.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use muster_base::{
    chance::{self, NoRandomness},
    files::{RoleFile, SECRET_MODE, clear_places, set_aside, write_atomically},
};
use muster_sqlite::room;
use muster_topics::{name::Name, secret::SecretRef};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use zeroize::Zeroizing;

use crate::store::secret::EncryptedValue;

/// The file in the console's folder.
pub(crate) const FILE: &str = "authority/secrets.key";

const KEY_BYTES: usize = 32;

/// One key.
struct NumberedKey {
    id: u32,
    bytes: Zeroizing<[u8; KEY_BYTES]>,
}

/// The keys of a console's secrets.
pub(crate) struct Keyring {
    path: PathBuf,
    /// At least one; the last one encrypts.
    keys: Vec<NumberedKey>,
}

impl std::fmt::Debug for Keyring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ids: Vec<u32> = self.keys.iter().map(|key| key.id).collect();
        f.debug_struct("Keyring").field("ids", &ids).finish_non_exhaustive()
    }
}

/// The file of the keys cannot be read or written.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[error("the file of the keys for secrets {path} cannot be used: {source}")]
#[diagnostic(help("{}", room::hint_or(source, "it must be a file that the console's user may read and write")))]
pub struct KeyringError {
    path: PathBuf,
    source: io::Error,
}

impl Keyring {
    /// Opens the keys in a console's folder. If there are none, or the file is damaged, one is made; `last_used` is the
    /// highest number of a key that a value is encrypted with, which is not given to another one.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub(crate) fn open(folder: &Path, last_used: Option<u32>) -> Result<Self, KeyringError> {
        let path = folder.join(FILE);
        let failed = |source| KeyringError { path: path.clone(), source };
        clear_places(folder, RoleFile::RenewedFile, &[FILE]).map_err(failed)?;
        match fs::read(&path) {
            Ok(content) => {
                if let Some(keys) = parse(&Zeroizing::new(content)) {
                    return Ok(Self { path, keys });
                }
                let aside = set_aside(&path).map_err(failed)?;
                tracing::error!(
                    aside = %aside.display(),
                    consequence = LOST, hint = LOST_HINT,
                    "the authority's secrets.key is damaged",
                );
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if last_used.is_some() {
                    tracing::error!(
                        file = %path.display(), consequence = LOST, hint = LOST_HINT,
                        "the authority's secrets.key is missing",
                    );
                }
            }
            Err(error) => return Err(failed(error)),
        }
        let id = last_used.unwrap_or_default().saturating_add(1);
        let made = Self { keys: vec![new_key(id).map_err(|error| failed(io::Error::other(error)))?], path };
        made.write()?;
        Ok(made)
    }

    /// The number of the key that encrypts.
    pub(crate) fn current(&self) -> u32 {
        self.keys.last().map_or(0, |key| key.id)
    }

    /// Whether there are earlier keys beside the one that encrypts: a rotation is under way.
    pub(crate) fn is_rotating(&self) -> bool {
        self.keys.len() > 1
    }

    /// Makes a new key, which encrypts from now on. The file has it before this returns.
    ///
    /// # Errors
    /// If it cannot be written. Nothing is changed then.
    pub(crate) fn add(&mut self, above: u32) -> Result<(), KeyringError> {
        let id = self.current().max(above).saturating_add(1);
        let key =
            new_key(id).map_err(|error| KeyringError { path: self.path.clone(), source: io::Error::other(error) })?;
        self.keys.push(key);
        self.write().inspect_err(|_| drop(self.keys.pop()))
    }

    /// Forgets all keys but the one that encrypts.
    ///
    /// # Errors
    /// If the file cannot be written. Nothing is changed then.
    pub(crate) fn drop_earlier(&mut self) -> Result<(), KeyringError> {
        let Some(last) = self.keys.pop() else { return Ok(()) };
        let earlier = std::mem::replace(&mut self.keys, vec![last]);
        self.write().inspect_err(|_| {
            self.keys.splice(0..0, earlier);
        })
    }

    /// Encrypts the value of a version of a secret.
    ///
    /// # Errors
    /// If the system provides no randomness.
    pub(crate) fn encrypt(
        &self,
        realm: &Name,
        secret: &SecretRef,
        value: &str,
    ) -> Result<EncryptedValue, NoRandomness> {
        let (id, key) = self.keys.last().and_then(|key| Some((key.id, aead(key)?))).ok_or(NoRandomness)?;
        let nonce: [u8; NONCE_LEN] = chance::bytes()?;
        let mut content = value.as_bytes().to_vec();
        // Grown in place, it would leave copies of the value behind.
        content.reserve_exact(CHACHA20_POLY1305.tag_len());
        let nonced = Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(nonced, place(realm, secret), &mut content).map_err(|_| NoRandomness)?;
        Ok(EncryptedValue { key_id: id, bytes: [&nonce[..], &content].concat() })
    }

    /// Decrypts the value of a version of a secret; `None` if its key is not here, or the row was changed.
    pub(crate) fn decrypt(
        &self,
        realm: &Name,
        secret: &SecretRef,
        value: &EncryptedValue,
    ) -> Option<Zeroizing<String>> {
        let key = aead(self.keys.iter().find(|key| key.id == value.key_id)?)?;
        let (nonce, content) = value.bytes.split_first_chunk::<NONCE_LEN>()?;
        let mut content = Zeroizing::new(content.to_vec());
        let plain = key.open_in_place(Nonce::assume_unique_for_key(*nonce), place(realm, secret), &mut content).ok()?;
        std::str::from_utf8(plain).ok().map(|text| Zeroizing::new(text.to_owned()))
    }

    fn write(&self) -> Result<(), KeyringError> {
        let mut text = Zeroizing::new(String::with_capacity(self.keys.len() * 64));
        for key in &self.keys {
            let line = Zeroizing::new(format!("{} {}\n", key.id, *Zeroizing::new(BASE64.encode(*key.bytes))));
            text.push_str(&line);
        }
        write_atomically(&self.path, text.as_bytes(), SECRET_MODE)
            .map_err(|source| KeyringError { path: self.path.clone(), source })
    }
}

const LOST: &str = "a new key was created; secrets that were encrypted with the old one cannot be read: hosts keep \
     their values, and are not sent these again";
const LOST_HINT: &str =
    "stop the console and restore the file from a backup, or set each secret again (`muster secret ls`)";

fn new_key(id: u32) -> Result<NumberedKey, NoRandomness> {
    Ok(NumberedKey { id, bytes: Zeroizing::new(chance::bytes()?) })
}

fn aead(key: &NumberedKey) -> Option<LessSafeKey> {
    UnboundKey::new(&CHACHA20_POLY1305, &*key.bytes).map(LessSafeKey::new).ok()
}

fn place(realm: &Name, secret: &SecretRef) -> Aad<String> {
    Aad::from(format!("muster secret at rest 1 {realm}/{secret}"))
}

/// Parses the file; `None` if anything in it is wrong.
fn parse(content: &[u8]) -> Option<Vec<NumberedKey>> {
    let keys: Vec<NumberedKey> = std::str::from_utf8(content)
        .ok()?
        .lines()
        .map(|line| {
            let (id, key) = line.split_once(' ')?;
            let bytes = Zeroizing::new(BASE64.decode(key).ok()?);
            Some(NumberedKey { id: id.parse().ok()?, bytes: Zeroizing::new(bytes.as_slice().try_into().ok()?) })
        })
        .collect::<Option<_>>()?;
    let is_ascending = keys.windows(2).all(|pair| matches!(pair, [one, next] if one.id < next.id));
    (is_ascending && !keys.is_empty()).then_some(keys)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn secret(text: &str, version: u32) -> SecretRef {
        SecretRef { name: name(text), version }
    }

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("authority")).unwrap();
        folder
    }

    #[test]
    fn value_opens_in_its_own_place_alone() {
        let folder = folder();
        let keys = Keyring::open(folder.path(), None).unwrap();
        let (realm, db) = (name("prod"), secret("db", 1));
        let stored = keys.encrypt(&realm, &db, "hunter2").unwrap();
        assert!(!stored.bytes.windows(7).any(|window| window == b"hunter2"));
        assert_ne!(keys.encrypt(&realm, &db, "hunter2").unwrap().bytes, stored.bytes);
        assert_eq!(&**keys.decrypt(&realm, &db, &stored).unwrap(), "hunter2");
        let changed = |at: usize| {
            let mut other = stored.clone();
            other.bytes[at] ^= 1;
            other
        };
        for (realm, secret, value) in [
            (&name("default"), &db, stored.clone()),
            (&realm, &secret("db", 2), stored.clone()),
            (&realm, &secret("api", 1), stored.clone()),
            (&realm, &db, changed(0)),
            (&realm, &db, changed(NONCE_LEN)),
            (&realm, &db, EncryptedValue { key_id: 2, ..stored.clone() }),
            (&realm, &db, EncryptedValue { bytes: vec![1; 5], ..stored.clone() }),
        ] {
            assert!(keys.decrypt(realm, secret, &value).is_none(), "{realm}/{secret}");
        }
    }

    #[test]
    fn keys_are_kept_private_and_rotated() {
        let folder = folder();
        let mut keys = Keyring::open(folder.path(), None).unwrap();
        let path = folder.path().join(FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let (realm, db) = (name("prod"), secret("db", 1));
        let stored = keys.encrypt(&realm, &db, "hunter2").unwrap();
        keys.add(0).unwrap();
        assert_eq!((keys.current(), keys.is_rotating()), (2, true));
        let mut keys = Keyring::open(folder.path(), Some(1)).unwrap();
        assert_eq!((keys.current(), keys.is_rotating()), (2, true));
        assert_eq!(&**keys.decrypt(&realm, &db, &stored).unwrap(), "hunter2");
        assert_eq!(keys.encrypt(&realm, &db, "x").unwrap().key_id, 2);
        keys.drop_earlier().unwrap();
        let keys = Keyring::open(folder.path(), Some(2)).unwrap();
        assert_eq!((keys.current(), keys.is_rotating()), (2, false));
        assert!(keys.decrypt(&realm, &db, &stored).is_none());
    }

    #[test]
    fn lost_or_damaged_keys_give_their_numbers_to_no_other() {
        let folder = folder();
        let path = folder.path().join(FILE);
        let damages = [None, Some(&b""[..]), Some(b"1 short\n"), Some(b"\xff"), Some(b"2 AAAA\n1 AAAA\n")];
        for (last, damage) in (0..).zip(damages) {
            match damage {
                Some(damage) => fs::write(&path, damage).unwrap(),
                None => drop(fs::remove_file(&path)),
            }
            let keys = Keyring::open(folder.path(), Some(last)).unwrap();
            assert_eq!(keys.current(), last + 1, "{damage:?}");
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(Keyring::open(folder.path(), Some(7)).unwrap().current(), 8, "a folder in its place");
        let aside = fs::read_dir(folder.path().join("authority")).unwrap().count();
        assert!(aside > 1, "damaged files are kept");
    }
}

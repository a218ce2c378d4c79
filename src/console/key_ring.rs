//! The keys that the console signs with: where they lie, and which of them is in use.
//!
//! A key lies in a file of the authority's folder, in a credential of systemd (`$CREDENTIALS_DIRECTORY`), or with an external
//! signer. `keys.json` says which one is in use, and which one will replace it; as long as nothing was ever replaced, a file
//! `signing.key` is in use and `keys.json` is missing.
//!
//! **Invariant: `keys.json` changes before any key's file is removed.** So a console that is killed at any point finds the key
//! that hosts know.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};

use muster_base::{
    clock::now_ms,
    files::{self, SECRET_MODE, set_aside, write_atomically},
};
use muster_rules::{
    checked,
    rotation::{KeyState, OfferedKey},
};
use muster_topics::envelope::{PublicKey, Signer};
use rustls::pki_types::{PrivatePkcs8KeyDer, pem::PemObject};

use super::{
    authority::AuthorityError,
    command_signer::{CommandSigner, ExternalSigner, SignerAddress},
    roots,
};

/// The key's file, in the authority's folder or among credentials.
pub const SIGNING_KEY: &str = "signing.key";
/// The file of the key that will replace it.
pub const NEXT_KEY: &str = "signing.next.key";
/// Which key is in use.
const STATE: &str = "keys.json";

/// Where private keys are looked for beside the authority's folder.
#[derive(Clone, Debug, Default)]
pub struct KeySources {
    /// The folder of systemd's credentials, which are only read.
    pub credentials: Option<PathBuf>,
    /// The external signer.
    pub signer: Option<SignerAddress>,
}

impl KeySources {
    /// Returns the sources of this process.
    #[must_use]
    pub fn new(signer: Option<SignerAddress>) -> Self {
        Self { credentials: muster_base::folders::credentials(), signer }
    }

    /// Returns the path of a credential, if there is one of this name.
    #[must_use]
    pub fn credential(&self, name: &str) -> Option<PathBuf> {
        self.credentials.as_ref().map(|folder| folder.join(name)).filter(|path| path.exists())
    }
}

/// Where the private half of a key is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPlace {
    /// In a file of the authority's folder.
    File(PathBuf),
    /// In a credential, which cannot be written.
    Credential(PathBuf),
    /// With the external signer.
    Signer(SignerAddress),
    /// Nowhere that is known here.
    Absent,
}

/// The key in use.
#[derive(Debug)]
pub struct ActiveKeys {
    /// The keys of this console and its hosts.
    pub state: KeyState,
    /// Where the key in use is.
    pub place: KeyPlace,
    /// Signs with it.
    pub signer: CommandSigner,
}

/// Why a new key could not be made.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum NewKeyError {
    /// The keys are credentials.
    #[error("the signing key is a credential, {0}, which cannot be written")]
    Credential(PathBuf),
    /// The root's key is a credential.
    #[error("the root's key is a credential, {0}, which cannot be written")]
    RootCredential(PathBuf),
    /// The signer has no other key.
    #[error("the signer at {0} has no other key than the present one")]
    SignerHasOne(String),
    /// The signer does not answer.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Signer(#[from] super::command_signer::SignerError),
    /// A file failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    File(#[from] AuthorityError),
}

/// All keys for signatures of a console.
#[derive(Debug)]
pub struct KeyRing {
    folder: PathBuf,
    sources: KeySources,
    external: Option<Arc<ExternalSigner>>,
    active: RwLock<Arc<ActiveKeys>>,
}

impl KeyRing {
    /// Whether there is a key in `folder` or elsewhere, so that none need be made.
    #[must_use]
    pub fn exists(folder: &Path, sources: &KeySources) -> bool {
        [SIGNING_KEY, STATE].iter().any(|name| folder.join(name).exists())
            || sources.credential(SIGNING_KEY).is_some()
            || sources.signer.is_some()
    }

    /// Opens the keys of a console in `folder`; makes one if there is none.
    ///
    /// # Errors
    /// If a file cannot be read or written, or is damaged, or the external signer has the first key and is away.
    pub fn open(folder: &Path, sources: KeySources) -> Result<Self, AuthorityError> {
        let external = sources.signer.clone().map(|address| Arc::new(ExternalSigner::new(address)));
        let mut own = local_keys(folder, &sources)?;
        let state = match read_state(folder, &own)? {
            Some(state) => state,
            None => {
                let key = match own.iter().find(|(place, _)| is_named(place, SIGNING_KEY)) {
                    Some((_, signer)) => public(signer)?,
                    None => first_key(folder, &mut own, external.as_deref())?,
                };
                let root = roots::left_behind(folder);
                // Hosts may have been told of keys and roots before the state was lost.
                let generation = if root.is_some() { now_ms().unsigned_abs() } else { 0 };
                let state = KeyState { generation, root, ..KeyState::new(key) };
                // A key that others keep may be another one tomorrow; hosts know this one.
                if state.root.is_some()
                    || !own.iter().any(|(place, signer)| {
                        matches!(place, KeyPlace::File(_)) && signer.public_key().is_ok_and(|key| key == state.signing)
                    })
                {
                    write_state(folder, &state)?;
                }
                state
            }
        };
        let active = RwLock::new(Arc::new(activate(state, own, external.as_ref())?));
        Ok(Self { folder: folder.to_owned(), sources, external, active })
    }

    /// The keys in use.
    #[must_use]
    pub fn active(&self) -> Arc<ActiveKeys> {
        Arc::clone(&self.active.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The external signer, if there is one.
    #[must_use]
    pub fn external(&self) -> Option<Arc<ExternalSigner>> {
        self.external.clone()
    }

    /// Completes what a console that was killed had begun, and checks that the key in use is there. Only the console
    /// itself may do so: a rotation of a running one would lose its key.
    ///
    /// # Errors
    /// If a file cannot be written, or the key in use is nowhere.
    pub fn complete(&self) -> Result<(), AuthorityError> {
        let active = self.active();
        if active.place == KeyPlace::Absent {
            let id = active.state.signing.id().to_owned();
            return Err(AuthorityError::NoSigningKey { folder: self.folder.clone(), id });
        }
        self.clean_up(&active.state)
    }

    /// Moves the key in use to its file, and removes files of keys that are not in use any more.
    fn clean_up(&self, state: &KeyState) -> Result<(), AuthorityError> {
        let (present, next) = (self.folder.join(SIGNING_KEY), self.folder.join(NEXT_KEY));
        let is_of = |path: &Path, key: &PublicKey| -> Result<bool, AuthorityError> {
            Ok(read_key(path)?.is_some_and(|signer| signer.public_key().is_ok_and(|public| public == *key)))
        };
        if state.next.is_some() {
            return Ok(());
        }
        if is_of(&next, &state.signing)? {
            fs::rename(&next, &present).map_err(at(&next))?;
        }
        for path in [next, present] {
            if path.exists() && !is_of(&path, &state.signing)? {
                fs::remove_file(&path).map_err(at(&path))?;
            }
        }
        files::sync_folder(&self.folder).map_err(at(&self.folder))
    }

    /// Returns the key for a rotation: a new one in a file, or one that whoever keeps the present one has beside it.
    ///
    /// # Errors
    /// If none can be made, or whoever keeps the present one has no other.
    pub async fn new_key(&self) -> Result<PublicKey, NewKeyError> {
        let active = self.active();
        let other = |key: &PublicKey| *key != active.state.signing;
        if let Some(external) = &self.external {
            let key = external.keys().await?.into_iter().find(other);
            return key.ok_or_else(|| NewKeyError::SignerHasOne(external.address().to_string()));
        }
        if let Some(path) = self.sources.credential(NEXT_KEY) {
            let key = read_key(&path)?.map(|signer| public(&signer)).transpose()?;
            if let Some(key) = key.filter(other) {
                return Ok(key);
            }
        }
        if let KeyPlace::Credential(path) = &active.place {
            return Err(NewKeyError::Credential(path.clone()));
        }
        Ok(public(&make(&self.folder, NEXT_KEY)?.1)?)
    }

    /// Returns what will sign with the offered key.
    ///
    /// # Errors
    /// If a file cannot be read, or the key is nowhere.
    pub fn next_signer(&self) -> Result<Option<ActiveKeys>, AuthorityError> {
        let Some(OfferedKey { key, .. }) = self.active().state.next.clone() else { return Ok(None) };
        let keys =
            activate(KeyState::new(key.clone()), local_keys(&self.folder, &self.sources)?, self.external.as_ref())?;
        match keys.place {
            KeyPlace::Absent => {
                Err(AuthorityError::NoSigningKey { folder: self.folder.clone(), id: key.id().to_owned() })
            }
            _ => Ok(Some(keys)),
        }
    }

    /// Stores the keys' next state, and uses it.
    ///
    /// # Errors
    /// If it cannot be stored; nothing is changed then.
    pub fn set(&self, state: KeyState) -> Result<(), AuthorityError> {
        let own = local_keys(&self.folder, &self.sources)?;
        let active = activate(state.clone(), own, self.external.as_ref())?;
        write_state(&self.folder, &state)?;
        *self.active.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(active);
        if let Err(error) = self.clean_up(&state) {
            tracing::error!(
                %error,
                consequence = "the file of an unused key cannot be removed",
                hint = "it is removed at the console's next start",
                "a key's file cannot be removed",
            );
        }
        Ok(())
    }
}

pub(super) fn at(path: &Path) -> impl Fn(io::Error) -> AuthorityError + use<> {
    let path = path.to_owned();
    move |source| AuthorityError::File { path: path.clone(), source }
}

fn public(signer: &Signer) -> Result<PublicKey, AuthorityError> {
    signer.public_key().map_err(|_| AuthorityError::Randomness(muster_base::chance::NoRandomness))
}

/// Returns the first key of a new console: the external signer's, or one that is made.
fn first_key(
    folder: &Path,
    own: &mut Vec<(KeyPlace, Signer)>,
    external: Option<&ExternalSigner>,
) -> Result<PublicKey, AuthorityError> {
    match external {
        Some(external) => {
            let key = external.keys_at_start()?.into_iter().next();
            key.ok_or_else(|| AuthorityError::Missing { path: folder.join(SIGNING_KEY) })
        }
        None => {
            let (place, signer) = make(folder, SIGNING_KEY)?;
            let key = public(&signer)?;
            own.push((place, signer));
            Ok(key)
        }
    }
}

fn is_named(place: &KeyPlace, name: &str) -> bool {
    matches!(place, KeyPlace::File(path) | KeyPlace::Credential(path) if path.ends_with(name))
}

/// Finds the key in use among the console's own, or else leaves it to the external signer.
fn activate(
    state: KeyState,
    own: Vec<(KeyPlace, Signer)>,
    external: Option<&Arc<ExternalSigner>>,
) -> Result<ActiveKeys, AuthorityError> {
    for (place, signer) in own {
        if public(&signer)? == state.signing {
            return Ok(ActiveKeys { state, place, signer: CommandSigner::Own(signer) });
        }
    }
    Ok(match external {
        Some(external) => ActiveKeys {
            place: KeyPlace::Signer(external.address().clone()),
            signer: CommandSigner::External(state.signing.clone(), Arc::clone(external)),
            state,
        },
        None => {
            let reason = format!("the console does not have the key {}", state.signing.id());
            ActiveKeys { state, place: KeyPlace::Absent, signer: CommandSigner::Absent(reason) }
        }
    })
}

/// Reads all keys in credentials and files, credentials first.
fn local_keys(folder: &Path, sources: &KeySources) -> Result<Vec<(KeyPlace, Signer)>, AuthorityError> {
    let mut keys = Vec::new();
    for name in [SIGNING_KEY, NEXT_KEY] {
        if let Some(path) = sources.credential(name)
            && let Some(signer) = read_key(&path)?
        {
            keys.push((KeyPlace::Credential(path), signer));
        }
    }
    for name in [SIGNING_KEY, NEXT_KEY] {
        let path = folder.join(name);
        if let Some(signer) = read_key(&path)? {
            keys.push((KeyPlace::File(path), signer));
        }
    }
    Ok(keys)
}

/// Reads a key: PKCS#8, in DER or PEM.
fn read_key(path: &Path) -> Result<Option<Signer>, AuthorityError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(at(path)(error)),
    };
    let der = PrivatePkcs8KeyDer::from_pem_slice(&bytes).ok();
    let der = der.as_ref().map_or(bytes.as_slice(), |der| der.secret_pkcs8_der());
    let damaged = |problem: String| AuthorityError::Damaged { path: path.to_owned(), problem };
    Signer::from_pkcs8(der).map(Some).map_err(|error| damaged(error.to_string()))
}

fn make(folder: &Path, name: &str) -> Result<(KeyPlace, Signer), AuthorityError> {
    let path = folder.join(name);
    let pkcs8 = Signer::generate().map_err(|_| AuthorityError::Randomness(muster_base::chance::NoRandomness))?;
    write_atomically(&path, &pkcs8, SECRET_MODE).map_err(at(&path))?;
    let damaged = |problem: String| AuthorityError::Damaged { path: path.clone(), problem };
    let signer = Signer::from_pkcs8(&pkcs8).map_err(|error| damaged(error.to_string()))?;
    Ok((KeyPlace::File(path), signer))
}

fn write_state(folder: &Path, state: &KeyState) -> Result<(), AuthorityError> {
    let path = folder.join(STATE);
    let text = checked::to_text(state).map_err(|error| at(&path)(error.into()))?;
    write_atomically(&path, text.as_bytes(), SECRET_MODE).map_err(at(&path))
}

/// Reads which key is in use; `None` if that was never written. A damaged file is made anew from the keys beside it: with one
/// key, that one is in use; with two, a rotation was under way, and hosts are told of both.
fn read_state(folder: &Path, own: &[(KeyPlace, Signer)]) -> Result<Option<KeyState>, AuthorityError> {
    let path = folder.join(STATE);
    let problem = match files::read_own(&path) {
        Ok(bytes) => match checked::from_bytes(&bytes) {
            Ok(state) => return Ok(Some(state)),
            Err(problem) => problem,
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::IsADirectory || files::is_unreadable(&error) => error.to_string(),
        Err(error) => return Err(at(&path)(error)),
    };
    let mut keys = [SIGNING_KEY, NEXT_KEY].into_iter().filter_map(|name| {
        let (_, signer) = own.iter().find(|(place, _)| is_named(place, name))?;
        signer.public_key().ok()
    });
    let Some(signing) = keys.next() else { return Err(AuthorityError::Damaged { path, problem }) };
    let now = now_ms();
    let operator =
        "unknown".parse().map_err(|_| AuthorityError::Damaged { path: path.clone(), problem: problem.clone() })?;
    let next = keys.next().map(|key| OfferedKey { key, begun_ms: now, operator });
    let root = roots::left_behind(folder);
    let state = KeyState { generation: now.unsigned_abs(), signing, next, last: None, root };
    let aside = set_aside(&path).map_err(at(&path))?;
    tracing::error!(
        problem, aside = %aside.display(), key = state.signing.id(), is_rotating = state.next.is_some(),
        consequence = "it is set aside and written again from the keys beside it",
        hint = "`muster authority show` shows which key hosts have; check this machine's disk",
        "the authority's keys.json is damaged",
    );
    write_state(folder, &state)?;
    Ok(Some(state))
}

#[cfg(test)]
mod tests;

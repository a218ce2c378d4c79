//! The fleet's root certificates: one, or two while one replaces the other.
//!
//! A root lies in the authority's folder as `authority.key` and `authority.pem`, and the one that will replace it as
//! `authority.next.key` and `authority.next.pem`. The key can be a credential of systemd. Which is which is said by `keys.json`, which
//! names roots by their keys: a certificate that is lost is made anew from its key.
//!
//! **Invariant: `keys.json` changes before any root's file is removed or renamed.** So a console that is killed at any point
//! finds the root that hosts trust.
//!
//! **Invariant: no two roots of a fleet have the same name**, because some brokers find a root by its name alone.

use std::{
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use muster_base::{
    clock::now_ms,
    files::{self, PUBLIC_MODE, SECRET_MODE, write_atomically},
};
use muster_rules::rotation::{OfferedRoot, RootState};
use muster_topics::{name::Digest, role::Identity};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PublicKeyData,
};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{
    authority::{
        AuthorityError, ROOT_LIFETIME, SERVER_LIFETIME, client_params, fill, is_signed_by, params, read_or_make,
    },
    key_ring::{KeySources, NewKeyError, at},
};

/// The files in the authority's folder: the root's key, and the root.
pub(super) const ROOT_KEY: &str = "authority.key";
pub(super) const ROOT_CERTIFICATE: &str = "authority.pem";
/// The same of the root that will replace it.
pub(super) const NEXT_ROOT_KEY: &str = "authority.next.key";
pub(super) const NEXT_ROOT_CERTIFICATE: &str = "authority.next.pem";
/// The name of the first root of a fleet; others have their keys' ids behind it.
const ROOT_NAME: &str = "muster authority";

/// A root certificate with its key.
pub struct Root {
    pem: String,
    fingerprint: Digest,
    key: Digest,
    pub(super) name: String,
    pub(super) issuer: Issuer<'static, KeyPair>,
}

impl std::fmt::Debug for Root {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Root").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

impl Root {
    /// The certificate, in PEM.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The SHA-256 of the certificate (DER).
    #[must_use]
    pub fn fingerprint(&self) -> &Digest {
        &self.fingerprint
    }

    /// The id of the certificate, as hosts report it.
    #[must_use]
    pub fn id(&self) -> String {
        self.fingerprint.as_str().get(..16).unwrap_or_default().to_owned()
    }

    /// The SHA-256 of its public key.
    pub(super) fn key(&self) -> &Digest {
        &self.key
    }

    /// Returns a new certificate with the root behind it, and its key, both in PEM: valid for a year, for a server with
    /// these names and addresses.
    ///
    /// # Errors
    /// If a name is not valid in a certificate.
    pub fn issue_server(&self, names: &[String]) -> Result<(String, String), AuthorityError> {
        let common_name = names.iter().find(|name| name.parse::<IpAddr>().is_err());
        let mut params = CertificateParams::new(names)?;
        fill(common_name.map_or("muster", String::as_str), SERVER_LIFETIME, now_ms(), &mut params)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let leaf = params.signed_by(&key, &self.issuer)?;
        Ok((format!("{}{}", leaf.pem(), self.pem), key.serialize_pem()))
    }

    /// Returns a new certificate and its key for a client, both in PEM.
    ///
    /// # Errors
    /// If the system provides no randomness.
    pub fn issue_client(&self, identity: &Identity, lifetime: Duration) -> Result<(String, String), AuthorityError> {
        let key = KeyPair::generate()?;
        let params = client_params(identity, lifetime, now_ms())?;
        Ok((params.signed_by(&key, &self.issuer)?.pem(), key.serialize_pem()))
    }
}

/// The roots that are trusted.
#[derive(Clone, Debug)]
pub struct RootSet {
    /// The one that certificates of clients are made under, and then the others.
    all: Vec<Arc<Root>>,
    serving: Arc<Root>,
}

impl RootSet {
    /// The root that certificates of clients, and of brokers that run by themselves, are made under.
    #[must_use]
    pub fn issuing(&self) -> &Root {
        // There always is one.
        self.all.first().unwrap_or(&self.serving)
    }

    /// The root that the certificates of the console's listeners are under, and what join tokens name. It is the old one
    /// until it is dropped, so that hosts which were away find the console.
    #[must_use]
    pub fn serving(&self) -> &Root {
        &self.serving
    }

    /// All of them; the one that issues is the first.
    pub fn all(&self) -> impl Iterator<Item = &Root> {
        self.all.iter().map(AsRef::as_ref)
    }

    /// All certificates, in PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        self.all().map(Root::pem).collect()
    }

    /// The ids of all of them.
    #[must_use]
    pub fn ids(&self) -> Vec<String> {
        self.all().map(Root::id).collect()
    }

    /// Whether this is the name of one of them.
    pub(super) fn has_name(&self, name: &str) -> bool {
        self.all().any(|root| root.name == name)
    }

    /// Whether both are the same roots in the same roles.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.ids() == other.ids() && self.serving.fingerprint == other.serving.fingerprint
    }

    /// The root with this key.
    pub(super) fn with_key(&self, key: &Digest) -> Option<&Root> {
        self.all().find(|root| root.key == *key)
    }
}

/// Loads the roots of a fleet; makes the first one if there is none.
pub(super) fn load(folder: &Path, sources: &KeySources, state: Option<&RootState>) -> Result<RootSet, AuthorityError> {
    let path = |name: &str| sources.credential(name).unwrap_or_else(|| folder.join(name));
    let Some(state) = state else {
        let path = path(ROOT_KEY);
        let made = || Ok(KeyPair::generate()?.serialize_pem().into_bytes());
        let key = parse_key(&path, read_or_make(&path, SECRET_MODE, made)?)?;
        let first = Arc::new(with_certificate(folder, key, &folder.join(ROOT_CERTIFICATE), true)?);
        return Ok(RootSet { all: vec![Arc::clone(&first)], serving: first });
    };
    let is_first = state.last.is_none();
    let serving = Arc::new(find(folder, sources, &state.present, is_first)?);
    let Some(OfferedRoot { key, issues, .. }) = &state.next else {
        return Ok(RootSet { all: vec![Arc::clone(&serving)], serving });
    };
    let next = Arc::new(find(folder, sources, key, false)?);
    let mut all = vec![Arc::clone(&serving), next];
    if issues.is_some() {
        all.reverse();
    }
    Ok(RootSet { all, serving })
}

/// Finds the root with this key among credentials and files.
fn find(folder: &Path, sources: &KeySources, wanted: &Digest, is_first: bool) -> Result<Root, AuthorityError> {
    let names = [(ROOT_KEY, ROOT_CERTIFICATE), (NEXT_ROOT_KEY, NEXT_ROOT_CERTIFICATE)];
    let credentials = names.iter().filter_map(|(key, pem)| Some((sources.credential(key)?, *pem)));
    let files = names.iter().map(|(key, pem)| (folder.join(key), *pem));
    for (path, certificate) in credentials.chain(files) {
        let Some(key) = read_key(&path)? else { continue };
        if key_of(&key) == *wanted {
            return with_certificate(folder, key, &folder.join(certificate), is_first);
        }
    }
    let path = folder.join(if is_first { ROOT_KEY } else { NEXT_ROOT_KEY });
    Err(AuthorityError::Missing { path })
}

fn read_key(path: &Path) -> Result<Option<KeyPair>, AuthorityError> {
    match fs::read(path) {
        Ok(pem) => parse_key(path, pem).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(at(path)(error)),
    }
}

fn parse_key(path: &Path, pem: Vec<u8>) -> Result<KeyPair, AuthorityError> {
    let damaged = |problem: String| AuthorityError::Damaged { path: path.to_owned(), problem };
    let pem = String::from_utf8(pem).map_err(|error| damaged(error.to_string()))?;
    KeyPair::from_pem(&pem).map_err(|error| damaged(error.to_string()))
}

fn key_of(key: &KeyPair) -> Digest {
    Digest::of(key.der_bytes())
}

/// Returns a key's root. Its certificate can be in either file, because a console may have been killed while it renamed
/// them; a missing one is made anew in its place.
fn with_certificate(folder: &Path, key: KeyPair, place: &Path, is_first: bool) -> Result<Root, AuthorityError> {
    let others = [ROOT_CERTIFICATE, NEXT_ROOT_CERTIFICATE].map(|name| folder.join(name));
    for path in others.iter().filter(|path| *path != place) {
        if let Ok(pem) = fs::read(path)
            && let Ok((pem, der)) = parse_certificate(path, pem, &key)
        {
            let is_here = fs::read(place).is_ok_and(|pem| parse_certificate(place, pem, &key).is_ok());
            if !is_here {
                return root(pem, &der, key);
            }
        }
    }
    let pem = read_or_make(place, PUBLIC_MODE, || {
        let name = match is_first {
            true => ROOT_NAME.to_owned(),
            false => format!("{ROOT_NAME} {}", key_of(&key).as_str().get(..16).unwrap_or_default()),
        };
        let mut params = params(&name, ROOT_LIFETIME, now_ms())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Ok(params.self_signed(&key)?.pem().into_bytes())
    })?;
    let (pem, der) = parse_certificate(place, pem, &key)?;
    root(pem, &der, key)
}

fn root(pem: String, der: &CertificateDer<'static>, key: KeyPair) -> Result<Root, AuthorityError> {
    let name = X509Certificate::from_der(der)
        .ok()
        .and_then(|(_, certificate)| certificate.subject().iter_common_name().next()?.as_str().ok().map(str::to_owned));
    let (fingerprint, key_id) = (Digest::of(der), key_of(&key));
    Ok(Root {
        pem,
        fingerprint,
        key: key_id,
        name: name.unwrap_or_default(),
        issuer: Issuer::from_ca_cert_der(der, key)?,
    })
}

fn parse_certificate(
    path: &Path,
    pem: Vec<u8>,
    key: &KeyPair,
) -> Result<(String, CertificateDer<'static>), AuthorityError> {
    let damaged = |problem: String| AuthorityError::Damaged { path: path.to_owned(), problem };
    let pem = String::from_utf8(pem).map_err(|error| damaged(error.to_string()))?;
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| damaged(error.to_string()))?;
    let (_, parsed) = X509Certificate::from_der(&der).map_err(|error| damaged(error.to_string()))?;
    if parsed.public_key().subject_public_key.data != key.der_bytes() {
        return Err(damaged("it does not belong to the key beside it".to_owned()));
    }
    let (signed, signature) = (parsed.tbs_certificate.as_ref(), &parsed.signature_value.data);
    if key.algorithm() == &PKCS_ECDSA_P256_SHA256 && !is_signed_by(key.der_bytes(), signed, signature) {
        return Err(damaged("its signature is not that of the key beside it".to_owned()));
    }
    Ok((pem, der))
}

/// Makes the root that will replace the present one, and returns its key's SHA-256. If keys are credentials, its key has to
/// be one.
pub(super) fn make_next(folder: &Path, sources: &KeySources, present: &Digest) -> Result<Digest, NewKeyError> {
    let certificate = folder.join(NEXT_ROOT_CERTIFICATE);
    // One that an interrupted attempt has left was never told to anybody.
    remove(&certificate)?;
    if let Some(path) = sources.credential(NEXT_ROOT_KEY) {
        let key = read_key(&path)?.filter(|key| key_of(key) != *present);
        let key = key.ok_or(NewKeyError::RootCredential(path))?;
        return Ok(with_certificate(folder, key, &certificate, false)?.key);
    }
    if let Some(path) = sources.credential(ROOT_KEY) {
        return Err(NewKeyError::RootCredential(path));
    }
    let (path, key) = (folder.join(NEXT_ROOT_KEY), KeyPair::generate().map_err(AuthorityError::from)?);
    write_atomically(&path, key.serialize_pem().as_bytes(), SECRET_MODE).map_err(at(&path))?;
    muster_base::crash::point("rotate root", "after its key is made");
    Ok(with_certificate(folder, key, &certificate, false)?.key)
}

/// Returns the state of a fleet whose `keys.json` is lost, if there are two roots: which of them issues is not known, so both are
/// trusted, and the rotation goes on from there.
pub(super) fn left_behind(folder: &Path) -> Option<RootState> {
    let present = key_of(&read_key(&folder.join(ROOT_KEY)).ok()??);
    let key = read_key(&folder.join(NEXT_ROOT_KEY)).ok()??;
    let pem = fs::read(folder.join(NEXT_ROOT_CERTIFICATE)).ok()?;
    parse_certificate(&folder.join(NEXT_ROOT_CERTIFICATE), pem, &key).ok()?;
    let (key, operator) = (key_of(&key), "unknown".parse().ok()?);
    let next = Some(OfferedRoot { key, begun_ms: now_ms(), operator, issues: None });
    Some(RootState { present, next, last: None })
}

/// Moves the root that has replaced another one to its files, and removes those of roots that are not in use any more.
pub(super) fn clean_up(folder: &Path, state: Option<&RootState>) -> Result<(), AuthorityError> {
    if state.is_some_and(|state| state.next.is_some()) {
        return Ok(());
    }
    let [key, next_key, certificate, next_certificate] =
        [ROOT_KEY, NEXT_ROOT_KEY, ROOT_CERTIFICATE, NEXT_ROOT_CERTIFICATE].map(|name| folder.join(name));
    if let Some(state) = state {
        let is_of = |path: &Path| -> Result<Option<bool>, AuthorityError> {
            Ok(read_key(path)?.map(|key| key_of(&key) == state.present))
        };
        if is_of(&next_key)? == Some(true) {
            fs::rename(&next_key, &key).map_err(at(&next_key))?;
            muster_base::crash::point("rotate root", "after its key is renamed");
        } else if is_of(&key)? == Some(false) {
            // The present one is a credential.
            remove(&key)?;
        }
        if certificate_is_of(&next_certificate, &state.present) {
            fs::rename(&next_certificate, &certificate).map_err(at(&next_certificate))?;
        }
    }
    remove(&next_key)?;
    remove(&next_certificate)?;
    files::sync_folder(folder).map_err(at(folder))
}

fn certificate_is_of(path: &Path, key: &Digest) -> bool {
    let der = fs::read(path).ok().and_then(|pem| CertificateDer::from_pem_slice(&pem).ok());
    let parsed = der.as_ref().and_then(|der| X509Certificate::from_der(der).ok());
    parsed.is_some_and(|(_, parsed)| Digest::of(&parsed.public_key().subject_public_key.data) == *key)
}

fn remove(path: &PathBuf) -> Result<(), AuthorityError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;

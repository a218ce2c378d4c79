//! The fleet's authority: the root certificate that issues all others, and the key that signs
//! commands.
//!
//! **Invariant: a private key is written once, at mode 0600, and never leaves its folder.** One that is handed in as a
//! credential of systemd is only read, and none is made in its place. Keys for signatures are kept by [`KeyRing`].
//!
//! **Invariant: a certificate takes nothing from a certificate request but the key.**
//! The authority sets name, lifetime and purpose.

use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use muster_base::{
    chance::{self, NoRandomness},
    crash,
    files::{
        PRIVATE_FOLDER, RoleFile, SECRET_MODE, clear_places, make_folder, set_aside, wait_for_lock, write_atomically,
    },
};
use muster_rules::rotation::KeyState;
use muster_sqlite::room;
use muster_topics::{
    Millis,
    name::{Digest, HostId, hex},
    revision::RevisionKey,
    role::Identity,
};
use rcgen::{
    CertificateParams, CertificateRevocationListParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, KeyIdMethod, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PublicKeyData,
    RevokedCertParams, SanType, SerialNumber, SubjectPublicKeyInfo,
};
use ring::{
    hmac,
    signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey},
};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, CertificateSigningRequestDer, pem::PemObject};
use time::OffsetDateTime;
use tokio::sync::watch;
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate, X509CertificationRequest};

use super::{
    command_signer::SignerError,
    key_ring::{ActiveKeys, KeyRing, KeySources, NewKeyError, SIGNING_KEY},
    roots::{self, NEXT_ROOT_KEY, ROOT_CERTIFICATE, ROOT_KEY, Root, RootSet},
    store::issued::RevokedCertificate,
};

/// The key for salts of public hashes of secret content.
const SALT_KEY: &str = "salt.key";
/// Its length.
const SALT_BYTES: usize = 32;
/// The longest certificate request that is parsed; one for a P-256 key has about 400 bytes.
const CSR_MAX_BYTES: usize = 16 * 1024;
/// The lifetime of the root certificate.
pub(super) const ROOT_LIFETIME: Duration = Duration::from_secs(20 * 365 * 24 * 3600);
/// The lifetime of a server's certificate; a new one is made at each start.
pub(super) const SERVER_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);
/// Certificates that hosts verify begin this much in the past, because hosts' clocks may be behind.
const BACKDATED: Duration = Duration::from_secs(24 * 3600);
/// Certificates of hosts begin only this much in the past: they are verified on machines like this one.
const CLIENT_BACKDATED: Duration = Duration::from_secs(3600);
/// What the region of a host follows in its certificate.
const REGION_URN: &str = "urn:muster:region:";
/// The region of every host, as long as there is one.
const REGION: &str = "default";

/// An error with the authority's files or keys.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum AuthorityError {
    /// A file cannot be read or written.
    #[error("the authority's file {path} cannot be used: {source}")]
    #[diagnostic(help(
        "{}",
        room::hint_or(
            source,
            "it must be a file that the console's user may read; otherwise restore the folder from a backup"
        )
    ))]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file is invalid.
    #[error("the authority's file {path} is damaged: {problem}")]
    #[diagnostic(help(
        "restore the folder from a backup, and check this machine's disk. authority.pem alone can be \
         removed: it is created again from its key, and join tokens must then be created again, too"
    ))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// There is no authority, or a part of it is missing.
    #[error("the authority's file {path} is missing")]
    #[diagnostic(help(
        "restore the folder from a backup, or use the folder that has it; with another authority \
         every host would have to join again"
    ))]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The key in use is nowhere.
    #[error(
        "messages of this fleet are signed with the key {id}, which is not in {folder}, not a \
         credential and not with a signer"
    )]
    #[diagnostic(help(
        "restore the key from a backup or as a credential, or configure its signer \
         (`signer` below [authority])"
    ))]
    NoSigningKey {
        /// The authority's folder.
        folder: PathBuf,
        /// The key's id.
        id: String,
    },
    /// The external signer cannot be used.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Signer(#[from] SignerError),
    /// An invalid serial number in the store.
    #[error("{0:?} is not the serial number of a certificate")]
    Serial(String),
    /// A certificate could not be made.
    #[error("a certificate could not be made: {0}")]
    Certificate(#[from] rcgen::Error),
    /// The system provides no randomness.
    #[error("no key could be made: {0}")]
    Randomness(#[from] NoRandomness),
}

/// A certificate request that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the certificate request is not valid: {0}")]
pub struct CsrError(String);

/// A client's certificate, with what the store keeps of it.
#[derive(Clone, Debug)]
pub struct IssuedPem {
    /// The certificate.
    pub pem: String,
    /// The serial number, in hexadecimal digits.
    pub serial: String,
    /// The SHA-256 of its public key.
    pub key: Digest,
    /// When it expires.
    pub expires_ms: Millis,
}

/// A certificate request with a verified signature; only [`CheckedCsr::parse`] makes one.
#[derive(Clone, Debug)]
pub struct CheckedCsr {
    key: SubjectPublicKeyInfo,
}

impl CheckedCsr {
    /// Parses a request in PEM and verifies that its sender has the private key.
    ///
    /// # Errors
    /// If it is invalid, not signed by its own key, or for a kind of key that agents do not use.
    pub fn parse(pem: &str) -> Result<Self, CsrError> {
        let refused = |problem: &dyn std::fmt::Display| CsrError(problem.to_string());
        if pem.len() > CSR_MAX_BYTES {
            return Err(CsrError(format!("longer than {CSR_MAX_BYTES} bytes")));
        }
        let der = CertificateSigningRequestDer::from_pem_slice(pem.as_bytes()).map_err(|error| refused(&error))?;
        // This verifies the signature. The other parsed fields are not used.
        CertificateSigningRequestParams::from_der(&der).map_err(|error| refused(&error))?;
        let (rest, request) = X509CertificationRequest::from_der(&der).map_err(|error| refused(&error))?;
        if !rest.is_empty() {
            return Err(CsrError("it has bytes after its end".to_owned()));
        }
        let key = SubjectPublicKeyInfo::from_der(request.certification_request_info.subject_pki.raw)
            .map_err(|error| refused(&error))?;
        if key.algorithm() != &PKCS_ECDSA_P256_SHA256 && key.algorithm() != &PKCS_ED25519 {
            return Err(CsrError("its key must be P-256 or Ed25519".to_owned()));
        }
        Ok(Self { key })
    }

    /// The SHA-256 of the public key.
    #[must_use]
    pub fn key(&self) -> Digest {
        Digest::of(self.key.der_bytes())
    }
}

/// The content of a client's certificate, after TLS has verified that it is ours and valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCertificate {
    /// The identity.
    pub identity: Identity,
    /// The serial number, in hexadecimal digits.
    pub serial: String,
    /// The SHA-256 of its public key.
    pub key: Digest,
    /// When it begins and ends.
    pub validity_ms: (Millis, Millis),
    /// The name of the root that it is under.
    pub issuer: String,
}

impl PeerCertificate {
    /// When it was issued: it begins somewhat earlier.
    #[must_use]
    pub fn issued_ms(&self) -> Millis {
        self.validity_ms.0.saturating_add(Millis::try_from(CLIENT_BACKDATED.as_millis()).unwrap_or_default())
    }
}

impl PeerCertificate {
    /// Reads identity and serial number; `None` if it is not one of the fleet's.
    #[must_use]
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let mut names = certificate.subject().iter_common_name();
        let (name, None) = (names.next()?, names.next()) else { return None };
        let identity = name.as_str().ok()?.parse().ok()?;
        let key = Digest::of(&certificate.public_key().subject_public_key.data);
        let validity = certificate.validity();
        let validity_ms = (validity.not_before.timestamp() * 1000, validity.not_after.timestamp() * 1000);
        let issuer = certificate.issuer().iter_common_name().next()?.as_str().ok()?.to_owned();
        Some(Self { identity, serial: hex(certificate.raw_serial()), key, validity_ms, issuer })
    }
}

/// Returns serial number (hexadecimal digits) and expiry of a certificate in PEM; `None` if it is invalid.
#[must_use]
pub fn serial_and_end(certificate_pem: &str) -> Option<(String, Millis)> {
    let der = CertificateDer::from_pem_slice(certificate_pem.as_bytes()).ok()?;
    let (_, certificate) = X509Certificate::from_der(&der).ok()?;
    let end_ms = certificate.validity().not_after.timestamp().saturating_mul(1000);
    Some((hex(certificate.raw_serial()), end_ms))
}

/// All keys of an authority that are in use.
#[derive(Debug)]
pub struct AuthorityKeys {
    /// Those for signatures.
    pub signing: Arc<ActiveKeys>,
    /// The root certificates.
    pub roots: Arc<RootSet>,
}

/// The authority of a fleet. Opening it twice gives the same one.
pub struct Authority {
    folder: PathBuf,
    sources: KeySources,
    keys: KeyRing,
    current: watch::Sender<Arc<AuthorityKeys>>,
    salt: hmac::Key,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("fingerprint", &self.fingerprint()).finish_non_exhaustive()
    }
}

impl Authority {
    /// Opens the authority in `dir`. Only a missing root certificate is recreated, since it contains nothing that its
    /// key does not determine.
    ///
    /// # Errors
    /// If there is none, or its files are unreadable or damaged. Nothing is created then.
    pub fn open(dir: &Path, sources: KeySources) -> Result<Self, AuthorityError> {
        let is_credential = |name| sources.credential(name).is_some();
        let has_root = dir.join(ROOT_KEY).exists() || is_credential(ROOT_KEY) || is_credential(NEXT_ROOT_KEY);
        let missing = match (has_root, KeyRing::exists(dir, &sources)) {
            (false, _) => ROOT_KEY,
            (true, false) => SIGNING_KEY,
            (true, true) => return Self::open_or_create(dir, sources),
        };
        Err(AuthorityError::Missing { path: dir.join(missing) })
    }

    /// Whether there is an authority in `dir`, or a part of one.
    #[must_use]
    pub fn exists(dir: &Path) -> bool {
        [ROOT_KEY, SIGNING_KEY, ROOT_CERTIFICATE].iter().any(|name| dir.join(name).exists())
    }

    /// Opens the authority in `dir`, or creates one: for a folder that has never served a fleet.
    ///
    /// # Errors
    /// If its files cannot be read or written, or are damaged.
    pub fn open_or_create(dir: &Path, sources: KeySources) -> Result<Self, AuthorityError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| AuthorityError::File { path, source }
        };
        make_folder(dir, PRIVATE_FOLDER).map_err(at(dir))?;
        clear_places(dir, RoleFile::File, &["lock"]).map_err(at(dir))?;
        clear_places(dir, RoleFile::RenewedFile, &[SALT_KEY]).map_err(at(dir))?;
        // Two processes that start at once must not create two authorities. The lock ends with the file handle.
        let lock = dir.join("lock");
        wait_for_lock(&lock).map_err(at(&lock)).and_then(|_held| {
            let salt = hmac::Key::new(hmac::HMAC_SHA256, &Self::salt_key(dir, &sources)?);
            let keys = KeyRing::open(dir, sources.clone())?;
            let signing = keys.active();
            let roots = Arc::new(roots::load(dir, &sources, signing.state.root.as_ref())?);
            let current = watch::Sender::new(Arc::new(AuthorityKeys { signing, roots }));
            Ok(Self { folder: dir.to_owned(), sources, keys, current, salt })
        })
    }

    /// Completes what a console that was killed had begun, and checks that the key in use is there. Only the console itself
    /// may do so.
    ///
    /// # Errors
    /// If a file cannot be written, or the key in use is nowhere.
    pub fn complete(&self) -> Result<(), AuthorityError> {
        self.keys.complete()?;
        roots::clean_up(&self.folder, self.keys().state.root.as_ref())
    }

    /// Stores the keys' next state, and uses it.
    ///
    /// # Errors
    /// If it cannot be stored, or a root of it is nowhere; nothing is changed then.
    pub fn set(&self, state: KeyState) -> Result<(), AuthorityError> {
        let root_state = state.root.clone();
        let roots = Arc::new(roots::load(&self.folder, &self.sources, root_state.as_ref())?);
        crash::point("set keys", "before");
        self.keys.set(state)?;
        self.current.send_replace(Arc::new(AuthorityKeys { signing: self.keys.active(), roots }));
        crash::point("set keys", "before roots are moved");
        if let Err(error) = roots::clean_up(&self.folder, root_state.as_ref()) {
            tracing::error!(
                %error,
                consequence = "the file of an unused root certificate cannot be removed",
                hint = "it is removed at the console's next start",
                "a root's file cannot be moved or removed",
            );
        }
        Ok(())
    }

    /// Makes the root that will replace the present one, and returns its key's SHA-256.
    ///
    /// # Errors
    /// If it cannot be made, or keys are credentials and there is none for it.
    pub fn make_next_root(&self) -> Result<Digest, NewKeyError> {
        roots::make_next(&self.folder, &self.sources, self.roots().serving().key())
    }

    /// The keys in use, now and on each change.
    #[must_use]
    pub fn follow(&self) -> watch::Receiver<Arc<AuthorityKeys>> {
        self.current.subscribe()
    }

    /// The keys in use.
    #[must_use]
    pub fn current(&self) -> Arc<AuthorityKeys> {
        Arc::clone(&self.current.borrow())
    }

    /// The root certificates in use.
    #[must_use]
    pub fn roots(&self) -> Arc<RootSet> {
        Arc::clone(&self.current().roots)
    }

    /// Returns the key for salts. A lost one is recreated: then the same content gets another hash from then on. A key
    /// that is too short could be guessed, and is replaced, too.
    fn salt_key(dir: &Path, sources: &KeySources) -> Result<Vec<u8>, AuthorityError> {
        if let Some(path) = sources.credential(SALT_KEY) {
            let salt = fs::read(&path).map_err(|source| AuthorityError::File { path: path.clone(), source })?;
            let problem = || format!("it has {} bytes, and a key for salts has {SALT_BYTES}", salt.len());
            return match salt.len() {
                SALT_BYTES => Ok(salt),
                _ => Err(AuthorityError::Damaged { path, problem: problem() }),
            };
        }
        let path = &dir.join(SALT_KEY);
        let make = || -> Result<Vec<u8>, AuthorityError> { Ok(chance::bytes::<SALT_BYTES>()?.to_vec()) };
        let salt = read_or_make(path, SECRET_MODE, make)?;
        if salt.len() == SALT_BYTES {
            return Ok(salt);
        }
        let at = |source| AuthorityError::File { path: path.to_owned(), source };
        let aside = set_aside(path).map_err(at)?;
        tracing::error!(
            aside = %aside.display(), bytes = salt.len(),
            consequence = "it is created again: configs with secrets that are created again get another hash, and applying an unchanged unit with an environment counts as a change once",
            hint = "check this machine's disk",
            "the authority's salt.key is damaged",
        );
        read_or_make(path, SECRET_MODE, make)
    }

    /// The root certificates that are trusted, in PEM.
    #[must_use]
    pub fn certificate_pem(&self) -> String {
        self.roots().pem()
    }

    /// The SHA-256 of the root certificate (DER) that the console's listeners are under: what join tokens pin.
    #[must_use]
    pub fn fingerprint(&self) -> Digest {
        self.roots().serving().fingerprint().clone()
    }

    /// Returns a salt for content under a label, which only this authority can compute: always the same, and 128 bits
    /// long.
    #[must_use]
    pub fn salt(&self, label: &str, content: &[u8]) -> String {
        let tag = hmac::sign(&self.salt, &[label.as_bytes(), b"\0", content].concat());
        hex(tag.as_ref().get(..16).unwrap_or_default())
    }

    /// Returns the key of a host's revisions: always the same with this authority.
    #[must_use]
    pub fn revision_key(&self, host: HostId) -> RevisionKey {
        // No config's label contains a space, so this is never the salt of one.
        let tag = hmac::sign(&self.salt, format!("revisions of host\0{host}").as_bytes());
        let mut bytes = [0; 32];
        bytes.iter_mut().zip(tag.as_ref()).for_each(|(byte, of_tag)| *byte = *of_tag);
        RevisionKey::from_bytes(bytes)
    }

    /// The keys for signatures.
    #[must_use]
    pub fn key_ring(&self) -> &KeyRing {
        &self.keys
    }

    /// The keys for signatures that are in use now.
    #[must_use]
    pub fn keys(&self) -> Arc<ActiveKeys> {
        Arc::clone(&self.current().signing)
    }

    /// Returns a new certificate for a listener of the console or of `muster up`: see [`Root::issue_server`](roots::Root::issue_server).
    ///
    /// # Errors
    /// If a name is not valid in a certificate.
    pub fn issue_server(&self, names: &[String]) -> Result<(String, String), AuthorityError> {
        self.roots().serving().issue_server(names)
    }

    /// Returns a new certificate and its key for a client, both in PEM.
    ///
    /// # Errors
    /// If the system provides no randomness.
    pub fn issue_client(&self, identity: &Identity, lifetime: Duration) -> Result<(String, String), AuthorityError> {
        self.roots().issuing().issue_client(identity, lifetime)
    }

    /// Returns a certificate for the key of a request.
    ///
    /// # Errors
    /// If the system provides no randomness.
    pub fn grant(
        &self,
        csr: &CheckedCsr,
        identity: &Identity,
        lifetime: Duration,
        now: Millis,
    ) -> Result<IssuedPem, AuthorityError> {
        let params = client_params(identity, lifetime, now)?;
        let serial = params.serial_number.as_ref().map(|serial| hex(serial.as_ref())).unwrap_or_default();
        let expires_ms = params.not_after.unix_timestamp().saturating_mul(1000);
        let pem = params.signed_by(&csr.key, &self.roots().issuing().issuer)?.pem();
        Ok(IssuedPem { pem, serial, key: csr.key(), expires_ms })
    }

    /// Whether a certificate in PEM is under the root that issues certificates now.
    #[must_use]
    pub fn is_issued_by_present_root(&self, certificate_pem: &str) -> bool {
        let der = CertificateDer::from_pem_slice(certificate_pem.as_bytes());
        let peer = der.ok().and_then(|der| PeerCertificate::of(&der));
        peer.is_some_and(|peer| peer.issuer == self.roots().issuing().name)
    }

    /// Parses the revocation lists of this authority (PEM): the serial numbers that are on all of them, and the time of issue
    /// of the oldest. `None` if one is invalid, or there is not one of each root.
    #[must_use]
    pub fn read_revocation_list(&self, pem: &[u8]) -> Option<(Vec<String>, Millis)> {
        let lists = CertificateRevocationListDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().ok()?;
        let read = |root: &Root| {
            let authority = CertificateDer::from_pem_slice(root.pem().as_bytes()).ok()?;
            let (_, authority) = X509Certificate::from_der(&authority).ok()?;
            let key = &authority.public_key().subject_public_key.data;
            lists.iter().find_map(|der| {
                let (_, list) = CertificateRevocationList::from_der(der).ok()?;
                let serials: HashSet<String> =
                    list.iter_revoked_certificates().map(|one| hex(one.raw_serial())).collect();
                let made_ms = list.last_update().timestamp() * 1_000
                    + Millis::try_from(BACKDATED.as_millis()).unwrap_or_default();
                let is_ours = is_signed_by(key, list.tbs_cert_list.as_ref(), &list.signature_value.data);
                is_ours.then_some((serials, made_ms))
            })
        };
        let of_roots = self.roots().all().map(read).collect::<Option<Vec<_>>>()?;
        let both = |one: (HashSet<String>, Millis), other: (HashSet<String>, Millis)| {
            (one.0.intersection(&other.0).cloned().collect(), one.1.min(other.1))
        };
        of_roots.into_iter().reduce(both).map(|(serials, made_ms)| (serials.into_iter().collect(), made_ms))
    }

    /// Returns a signed list (X.509, in PEM) of revoked certificates, valid for `lifetime`; one of each root, in one
    /// document. Each has all of them: serial numbers are random, so it does not matter which root a certificate is under.
    ///
    /// # Errors
    /// If a serial number is invalid.
    pub fn revocation_list(
        &self,
        revoked: &[RevokedCertificate],
        lifetime: Duration,
        now: Millis,
    ) -> Result<String, AuthorityError> {
        let time = |at: Millis| OffsetDateTime::from_unix_timestamp(at / 1000).map_err(|_| rcgen::Error::Time);
        let entry = |one: &RevokedCertificate| {
            let serial = unhex(&one.serial).ok_or_else(|| AuthorityError::Serial(one.serial.clone()))?;
            Ok(RevokedCertParams {
                serial_number: serial.into(),
                revocation_time: time(one.revoked_ms)?,
                reason_code: None,
                invalidity_date: None,
            })
        };
        let params = CertificateRevocationListParams {
            this_update: time(now)? - BACKDATED,
            next_update: time(now)? + lifetime,
            // It must grow from list to list, and time does.
            crl_number: now.unsigned_abs().into(),
            issuing_distribution_point: None,
            revoked_certs: revoked.iter().map(entry).collect::<Result<_, AuthorityError>>()?,
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let roots = self.roots();
        roots.all().map(|root| Ok(params.signed_by(&root.issuer)?.pem()?)).collect()
    }
}

/// Verifies a signature (ECDSA over P-256 with SHA-256).
pub(super) fn is_signed_by(key: &[u8], signed: &[u8], signature: &[u8]) -> bool {
    UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, key).verify(signed, signature).is_ok()
}

pub(super) fn client_params(
    identity: &Identity,
    lifetime: Duration,
    now: Millis,
) -> Result<CertificateParams, AuthorityError> {
    let mut params = params(&identity.to_string(), lifetime, now)?;
    params.not_before += BACKDATED - CLIENT_BACKDATED;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    if matches!(identity, Identity::Host(_)) {
        // Not in the subject: some brokers take the whole of it for the name of a client.
        params.subject_alt_names = vec![SanType::URI(format!("{REGION_URN}{REGION}").try_into()?)];
    }
    Ok(params)
}

pub(super) fn params(common_name: &str, lifetime: Duration, now: Millis) -> Result<CertificateParams, AuthorityError> {
    let mut params = CertificateParams::default();
    fill(common_name, lifetime, now, &mut params)?;
    Ok(params)
}

/// Sets the fields that all certificates have.
pub(super) fn fill(
    common_name: &str,
    lifetime: Duration,
    now: Millis,
    params: &mut CertificateParams,
) -> Result<(), AuthorityError> {
    let now = OffsetDateTime::from_unix_timestamp(now / 1000).map_err(|_| rcgen::Error::Time)?;
    params.not_before = now - BACKDATED;
    params.not_after = now + lifetime;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    let mut serial: [u8; 16] = chance::bytes()?;
    // Positive, and of constant length: DER would drop or add bytes otherwise.
    serial[0] = serial[0] & 0x7f | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    Ok(())
}

/// Decodes hexadecimal digits of [`hex`].
fn unhex(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.map(|pair| (pair.len() == 2).then(|| byte(pair))?).collect()
}

pub(super) fn read_or_make(
    path: &Path,
    mode: u32,
    make: impl FnOnce() -> Result<Vec<u8>, AuthorityError>,
) -> Result<Vec<u8>, AuthorityError> {
    let at = |source| AuthorityError::File { path: path.to_owned(), source };
    match fs::read(path) {
        Ok(content) => Ok(content),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let content = make()?;
            write_atomically(path, &content, mode).map_err(at)?;
            Ok(content)
        }
        Err(error) => Err(at(error)),
    }
}

#[cfg(test)]
mod verifier_tests;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use muster_base::clock::now_ms;
    use rcgen::{BasicConstraints, IsCa, KeyPair};
    use x509_parser::extensions::GeneralName;

    use muster_topics::diagnostic::Diagnostic;

    use super::*;

    fn csr(key: &KeyPair) -> String {
        CertificateParams::default().serialize_request(key).unwrap().pem().unwrap()
    }

    #[test]
    fn authority_is_created_once_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("authority");
        let first = Authority::open_or_create(&dir, KeySources::default()).unwrap();
        let second = Authority::open_or_create(&dir, KeySources::default()).unwrap();
        assert_eq!(first.fingerprint(), second.fingerprint());
        assert_eq!(first.keys().state, second.keys().state);
        for (file, mode) in [("authority.key", 0o600), ("signing.key", 0o600), ("authority.pem", 0o644), ("", 0o700)] {
            assert_eq!(fs::metadata(dir.join(file)).unwrap().permissions().mode() & 0o777, mode, "{file}");
        }
    }

    #[test]
    fn lost_certificate_is_reissued_and_foreign_one_refused() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (certificate, _) = {
            Authority::open_or_create(other.path(), KeySources::default()).unwrap();
            let authority = Authority::open_or_create(dir.path(), KeySources::default()).unwrap();
            authority.issue_server(&["localhost".to_owned()]).unwrap()
        };
        fs::remove_file(dir.path().join("authority.pem")).unwrap();
        let again = Authority::open_or_create(dir.path(), KeySources::default()).unwrap();
        assert!(!certificate.contains(&again.certificate_pem()), "its serial number is another");
        fs::copy(other.path().join("authority.pem"), dir.path().join("authority.pem")).unwrap();
        assert!(matches!(
            Authority::open_or_create(dir.path(), KeySources::default()),
            Err(AuthorityError::Damaged { .. })
        ));
        fs::write(dir.path().join("authority.key"), "nonsense").unwrap();
        assert!(matches!(
            Authority::open_or_create(dir.path(), KeySources::default()),
            Err(AuthorityError::Damaged { .. })
        ));
    }

    #[test]
    fn guessable_salt_key_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let salt = || Authority::open_or_create(dir.path(), KeySources::default()).unwrap().salt("id 1", b"{}");
        let mut former = vec![salt()];
        for damage in [&b""[..], b"short", &[7; 64]] {
            fs::write(dir.path().join(SALT_KEY), damage).unwrap();
            let anew = salt();
            assert!(!former.contains(&anew));
            assert_eq!(salt(), anew);
            former.push(anew);
        }
        assert_eq!(fs::read(dir.path().join(SALT_KEY)).unwrap().len(), SALT_BYTES);
    }

    #[test]
    fn revision_key_of_a_host_is_stable_and_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::open_or_create(dir.path(), KeySources::default()).unwrap();
        let (one, other) = (HostId::random(), HostId::random());
        assert_ne!(authority.revision_key(one), authority.revision_key(other));
        assert_eq!(
            Authority::open(dir.path(), KeySources::default()).unwrap().revision_key(one),
            authority.revision_key(one)
        );
        let elsewhere = tempfile::tempdir().unwrap();
        assert_ne!(
            Authority::open_or_create(elsewhere.path(), KeySources::default()).unwrap().revision_key(one),
            authority.revision_key(one)
        );
    }

    #[test]
    fn damaged_files_are_refused_with_hint() {
        let dir = tempfile::tempdir().unwrap();
        Authority::open_or_create(dir.path(), KeySources::default()).unwrap();
        for name in [ROOT_KEY, SIGNING_KEY, ROOT_CERTIFICATE] {
            let path = dir.path().join(name);
            let whole = fs::read(&path).unwrap();
            let check = |damage: &str| {
                let told = Diagnostic::of(&Authority::open(dir.path(), KeySources::default()).unwrap_err());
                assert!(told.cause.contains(name) && told.hint.is_some(), "{damage}: {told}");
            };
            for (damage, bytes) in
                [("empty", &b""[..]), ("half", &whole[..whole.len() / 2]), ("garbage", &[0x55; 99][..])]
            {
                fs::write(&path, bytes).unwrap();
                check(damage);
            }
            fs::remove_file(&path).unwrap();
            fs::create_dir(&path).unwrap();
            check("a folder");
            fs::remove_dir(&path).unwrap();
            fs::write(&path, whole).unwrap();
        }
        // One bit of the certificate's signature: its key and names are intact, but it would not verify.
        let path = dir.path().join(ROOT_CERTIFICATE);
        let der = CertificateDer::from_pem_slice(&fs::read(&path).unwrap()).unwrap();
        let mut bytes = der.to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, pem_of(&bytes).replace("CERTIFICATE REQUEST", "CERTIFICATE")).unwrap();
        assert!(matches!(Authority::open(dir.path(), KeySources::default()), Err(AuthorityError::Damaged { .. })));
    }

    #[test]
    fn missing_key_is_named_and_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("authority");
        assert!(matches!(Authority::open(&dir, KeySources::default()), Err(AuthorityError::Missing { .. })));
        assert!(!dir.exists(), "nothing is made");
        let first = Authority::open_or_create(&dir, KeySources::default()).unwrap();
        assert_eq!(Authority::open(&dir, KeySources::default()).unwrap().fingerprint(), first.fingerprint());
        for name in [ROOT_KEY, SIGNING_KEY] {
            let (path, aside) = (dir.join(name), dir.join("aside"));
            fs::rename(&path, &aside).unwrap();
            let told = Diagnostic::of(&Authority::open(&dir, KeySources::default()).unwrap_err());
            assert!(told.cause.contains(name) && told.hint.is_some(), "{told}");
            assert!(!path.exists());
            fs::rename(&aside, &path).unwrap();
        }
    }

    #[test]
    fn issued_certificate_has_name_and_expiry() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::open_or_create(dir.path(), KeySources::default()).unwrap();
        let identity = Identity::Host(HostId::random());
        let request = CheckedCsr::parse(&csr(&KeyPair::generate().unwrap())).unwrap();
        let now = now_ms();
        let granted = authority.grant(&request, &identity, Duration::from_secs(3600), now).unwrap();
        assert_eq!(granted.expires_ms / 1000, now / 1000 + 3600);
        assert_eq!(granted.key, request.key());
        let der = CertificateDer::from_pem_slice(granted.pem.as_bytes()).unwrap();
        let shown = PeerCertificate::of(&der).unwrap();
        assert_eq!((shown.identity, shown.serial, shown.key), (identity, granted.serial, granted.key));
        assert_eq!(shown.validity_ms.1, granted.expires_ms);
    }

    #[test]
    fn invalid_certificate_requests_are_refused() {
        let key = KeyPair::generate().unwrap();
        let good = csr(&key);
        assert!(CheckedCsr::parse(&good).is_ok());
        let ed25519 = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        assert!(CheckedCsr::parse(&csr(&ed25519)).is_ok());
        let p384 = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
        let mut der = CertificateParams::default().serialize_request(&key).unwrap().der().to_vec();
        // The last bytes are the signature's.
        *der.last_mut().unwrap() ^= 1;
        let forged = pem_of(&der);
        let certificate = CertificateParams::default().self_signed(&key).unwrap().pem();
        for bad in ["", "nonsense", &good[..good.len() / 2], &csr(&p384), &forged, &certificate, &"x".repeat(1 << 20)] {
            assert!(CheckedCsr::parse(bad).is_err(), "{}", &bad[..bad.len().min(80)]);
        }
    }

    fn pem_of(der: &[u8]) -> String {
        use base64::{Engine, engine::general_purpose::STANDARD};
        format!("-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----\n", STANDARD.encode(der))
    }

    #[test]
    fn certificate_takes_only_the_key_of_its_request() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::open_or_create(dir.path(), KeySources::default()).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut wishes = CertificateParams::new(["evil.example".to_owned()]).unwrap();
        wishes.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        wishes.distinguished_name.push(DnType::CommonName, "console-main");
        wishes.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let request = CheckedCsr::parse(&wishes.serialize_request(&key).unwrap().pem().unwrap()).unwrap();
        let host = Identity::Host(HostId::random());
        let granted = authority.grant(&request, &host, Duration::from_secs(60), now_ms()).unwrap();
        let der = CertificateDer::from_pem_slice(granted.pem.as_bytes()).unwrap();
        let (_, certificate) = X509Certificate::from_der(&der).unwrap();
        assert!(!certificate.is_ca());
        let names = &certificate.subject_alternative_name().unwrap().unwrap().value.general_names;
        assert!(matches!(names[..], [GeneralName::URI("urn:muster:region:default")]), "{names:?}");
        let usage = certificate.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.client_auth && !usage.server_auth);
        assert_eq!(PeerCertificate::of(&der).unwrap().identity, host);
    }
}

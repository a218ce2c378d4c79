//! Joins a fleet and keeps the host's identity: its key, its certificate, and their renewal.
//!
//! The host generates its id at the first start and keeps it. It joins with one HTTPS exchange: the join token
//! contains the address and the authority's fingerprint ([`super::pin`]); the key never leaves the host. [`super::renew`]
//! renews the certificate before it expires.
//!
//! **Invariant: key and membership are one file**, written atomically, so neither exists without the other.

use std::{
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use muster_base::{
    chance, files, folders,
    form::{self, FORM, OtherForm},
};
use muster_bus::sealing::HostKey;
use muster_net::{
    http,
    pki::{self, PkiError},
};
use muster_rules::backoff::RECONNECT;
use muster_topics::{
    Millis, V1,
    command_keys::{CommandKeys, KnownKeys},
    diagnostic::DiagnosticError,
    heartbeat::Facts,
    join::{JoinRequest, JoinToken, Membership, Problem, RenewRequest},
    name::{Digest, HostId},
    numbered::NumberedKind,
    sealed::{SealingKey, SealingKeyNotice},
};
use rcgen::{CertificateParams, DnType, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, UnixTime},
    server::WebPkiClientVerifier,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{address, pin::PinnedVerifier, store::other_form};

const HOST_FILE: &str = "host";
const IDENTITY_FILE: &str = "identity.json";
/// The credential with the host's private key, in PEM. It takes the place of keys that the agent makes.
const KEY_CREDENTIAL: &str = "host.key";
/// The file with the hash of the token that this host joined with.
const TOKEN_FILE: &str = "token.sha256";

/// The timeout of one request to the console.
const EXCHANGE: Duration = Duration::from_secs(30);

/// The largest response that is read; a membership takes a few KiB.
const ANSWER_MAX_BYTES: usize = 64 * 1024;

/// This host's membership of its fleet, with its key.
#[derive(Clone)]
pub struct MemberIdentity {
    /// What the console issued.
    pub membership: Membership,
    /// The host's private key, in PEM; it never leaves the host. In the file it is empty if it is a credential.
    pub key: String,
}

impl std::fmt::Debug for MemberIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("membership", &self.membership).finish_non_exhaustive()
    }
}

/// What helps a host whose certificate has expired.
pub(super) const EXPIRED_HINT: &str = "`muster token create --replace HOST` makes a token: start the agent with it, and the host keeps \
     its id and its units. If this machine's clock is wrong, set it";

impl MemberIdentity {
    /// Returns the TLS configuration for the broker and the console.
    ///
    /// # Errors
    /// If certificate or key cannot be used.
    pub fn tls(&self) -> Result<rustls::ClientConfig, PkiError> {
        pki::client(&self.membership.authority, &self.membership.certificate, &self.key)
    }

    /// Whether its certificate had expired at a time.
    pub(super) fn has_expired(&self, now_ms: Millis) -> bool {
        self.validity_ms().is_ok_and(|(_, ends_ms)| ends_ms <= now_ms)
    }

    /// Checks that certificate, key and authority are valid and belong together.
    fn check(&self) -> Result<(), PkiError> {
        // Fails if the key is not the certificate's.
        self.tls()?;
        self.check_under(pki::roots(&self.membership.authority)?)
    }

    /// Checks that the certificate is under one of these roots.
    fn check_under(&self, roots: RootCertStore) -> Result<(), PkiError> {
        let what = "this host's certificate";
        let chain = pki::certificates(what, &self.membership.certificate)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), pki::provider()).build();
        let verifier =
            verifier.map_err(|error| PkiError::Tls { what, source: rustls::Error::General(error.to_string()) })?;
        // Whether it has expired is checked elsewhere.
        let begins_s = self.validity_ms().map_or(0, |(begins_ms, _)| begins_ms.unsigned_abs() / 1_000);
        let begins = UnixTime::since_unix_epoch(Duration::from_secs(begins_s));
        let (leaf, others) =
            chain.split_first().ok_or(PkiError::Tls { what, source: rustls::Error::NoCertificatesPresented })?;
        verifier.verify_client_cert(leaf, others, begins).map(drop).map_err(|source| PkiError::Tls { what, source })
    }

    /// Returns the root certificates that this host trusts, each with whether its own certificate is under it.
    fn roots(&self) -> Vec<(Digest, bool)> {
        let roots = pki::certificates("the authority's certificate", &self.membership.authority).unwrap_or_default();
        let is_above = |root: CertificateDer<'static>| {
            let mut only = RootCertStore::empty();
            only.add(root).is_ok() && self.check_under(only).is_ok()
        };
        roots.into_iter().map(|root| (Digest::of(&root), is_above(root))).collect()
    }

    /// Whether its certificate is under another root than the one that certificates are issued under now.
    pub(super) fn is_under_former_root(&self) -> bool {
        matches!(&self.roots()[..], [(_, false), _, ..])
    }

    /// Returns what this host verifies the console with, as it reports it.
    #[must_use]
    pub fn known_keys(&self) -> KnownKeys {
        let roots = self.roots();
        let id = |root: &Digest| root.as_str().get(..16).unwrap_or_default().to_owned();
        let authorities = roots.iter().map(|(root, _)| id(root)).collect();
        let issuer = roots.iter().find(|(_, is_above)| *is_above).map(|(root, _)| id(root));
        KnownKeys { authorities, issuer, ..self.membership.known_keys() }
    }

    /// Returns this identity with the keys that the console's document says, and its root certificates if it has any.
    ///
    /// Root certificates that cannot be used, or that the own certificate is under none of, change nothing: the host could
    /// not be reached any more, and reports those that it has.
    pub(super) fn with_keys_of(&self, number: u64, told: &CommandKeys) -> Self {
        let mut new = self.clone();
        new.membership.command_keys.clone_from(&told.keys);
        new.membership.numbers.insert(NumberedKind::CommandKeys, number);
        if told.authorities.is_empty() {
            return new;
        }
        new.with_roots(told.authorities.join("\n"))
    }

    /// Returns this identity with the keys and the root certificates of a renewal, and with its own certificate.
    pub(super) fn with_keys_of_renewal(&self, renewed: &Membership) -> Self {
        let mut new = self.clone();
        new.membership.command_keys.clone_from(&renewed.command_keys);
        match renewed.numbers.get(&NumberedKind::CommandKeys) {
            Some(number) => drop(new.membership.numbers.insert(NumberedKind::CommandKeys, *number)),
            None => drop(new.membership.numbers.remove(&NumberedKind::CommandKeys)),
        }
        new.with_roots(renewed.authority.clone())
    }

    fn with_roots(self, authority: String) -> Self {
        let mut new = self;
        let kept = std::mem::replace(&mut new.membership.authority, authority);
        if let Err(error) = new.check() {
            tracing::error!(
                %error,
                consequence = "this host keeps the root certificates that it has",
                hint = "renew this host's certificate before its root is retired",
                "this host's certificate is not under the console's root certificates",
            );
            new.membership.authority = kept;
        }
        new
    }

    /// Whether connections with another identity are the same as with this one.
    pub(super) fn connects_like(&self, other: &Self) -> bool {
        let (one, other) = (&self.membership, &other.membership);
        // Other roots are used with the next connection.
        one.certificate == other.certificate && one.broker_url == other.broker_url && one.prefix == other.prefix
    }

    /// Returns when the certificate begins and ends.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn validity_ms(&self) -> Result<(Millis, Millis), JoinError> {
        let unreadable = || JoinError::Answer("the certificate cannot be read".to_owned());
        let chain = pki::certificates("this host's certificate", &self.membership.certificate)?;
        let (_, certificate) =
            chain.first().and_then(|der| x509_parser::parse_x509_certificate(der).ok()).ok_or_else(unreadable)?;
        let validity = certificate.validity();
        Ok((validity.not_before.timestamp() * 1000, validity.not_after.timestamp() * 1000))
    }
}

/// Why this host could not join, or renew its certificate.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum JoinError {
    /// The console refused.
    #[error("the console at {url} refuses: {reason}")]
    Refused {
        /// The console's address.
        url: String,
        /// Its reason, for programs.
        code: String,
        /// Its reason, for people.
        #[diagnostic_source]
        reason: DiagnosticError,
    },
    /// The server is not of the fleet that the token names.
    #[error("the server at {url} is not of the fleet that the token was made for")]
    #[diagnostic(help(
        "check the console's address and make a new token (`muster token create`); \
                 if neither the console nor the fleet's root certificate has changed, do not continue"
    ))]
    Stranger {
        /// The console's address, from the token.
        url: String,
    },
    /// There was no usable answer. A retry may help.
    #[error("cannot reach the console at {url}: {reason}")]
    Unreachable {
        /// The console's address.
        url: String,
        /// The reason, with all causes.
        reason: String,
    },
    /// The answer is invalid.
    #[error("the console's answer cannot be used: {0}")]
    Answer(String),
    /// A key or certificate request could not be generated.
    #[error("cannot create a key: {0}")]
    Key(#[from] rcgen::Error),
    /// A certificate or key cannot be used.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// A file failed.
    #[error("{path}: {source}")]
    #[diagnostic(help("{}", super::error::folder_hint(source)))]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file has invalid content.
    #[error("{path} cannot be read: {reason}")]
    #[diagnostic(help(
        "restore it from a backup; without one, remove it and join again, with a token of `muster token create --replace HOST`"
    ))]
    Content {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// Another build has written it.
    #[error(transparent)]
    #[diagnostic(transparent)]
    OtherForm(#[from] OtherForm),
    /// The key is a credential, and cannot be used.
    #[error("the key of this host is a credential of systemd ({KEY_CREDENTIAL}), and {reason}")]
    #[diagnostic(help("provide it as before (`LoadCredential=`); with another key remove {} and join again, with a token of `muster token create --replace HOST`",
        path.display()
    ))]
    Credential {
        /// The file with its certificate.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The file is missing, although this host had one.
    #[error("{path}, with the certificate and the key of this host, is missing")]
    #[diagnostic(help(
        "restore it from a backup; without one, join again, with a token of `muster token create --replace {host}`"
    ))]
    Lost {
        /// The file.
        path: PathBuf,
        /// The host.
        host: HostId,
    },
}

impl JoinError {
    /// Whether the console refuses this host's existing key, because it was revoked.
    #[must_use]
    pub fn is_of_revoked_key(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == "key_revoked")
    }
}

/// The content of the file with an identity.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct IdentityFile {
    /// [`FORM`].
    form: u16,
    membership: Membership,
    key: String,
}

/// Checks that no other build has written the identity in `folder`. What cannot be read is left to who reads it.
///
/// # Errors
/// If one has.
pub(crate) fn check_form(folder: &Path) -> Result<(), OtherForm> {
    let path = folder.join(IDENTITY_FILE);
    let is_other = fs::read(&path).is_ok_and(|json| form::is_other_json(&json));
    if is_other { Err(other_form(&path)) } else { Ok(()) }
}

/// Returns the host's id: generated at the first start, and kept in `folder`.
///
/// # Errors
/// If the file cannot be read or written.
pub fn host_id(folder: &Path) -> Result<HostId, JoinError> {
    let known = known_host_id(folder);
    // Its signed certificate has it, too.
    let certified = load(folder).ok().flatten().map(|identity| identity.membership.host);
    let host = match (known, certified) {
        (Ok(Some(host)), None) => return Ok(host),
        (Ok(Some(host)), Some(certified)) if host == certified => return Ok(host),
        (Ok(None), None) => HostId::random(),
        (Err(error), None) => return Err(error),
        (_, Some(certified)) => {
            tracing::error!(
                host.id = %certified, file = %folder.join(HOST_FILE).display(),
                consequence = "the file is written again from the host's certificate",
                hint = "check this host's disk",
                "the file with this host's id is gone or damaged",
            );
            certified
        }
    };
    let path = folder.join(HOST_FILE);
    files::write_atomically(&path, format!("{host}\n").as_bytes(), files::SECRET_MODE)
        .map_err(|source| JoinError::Io { path, source })?;
    Ok(host)
}

/// Returns the host's id, if it has one already.
///
/// # Errors
/// If the file cannot be read.
pub fn known_host_id(folder: &Path) -> Result<Option<HostId>, JoinError> {
    let path = folder.join(HOST_FILE);
    match fs::read_to_string(&path) {
        Ok(text) => text
            .trim()
            .parse()
            .map(Some)
            .map_err(|error: muster_topics::name::NameError| JoinError::Content { path, reason: error.to_string() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(JoinError::Io { path, source }),
    }
}

/// Returns the identity in `folder`, if this host has joined.
///
/// # Errors
/// If the file cannot be read, or its content cannot be used.
pub fn load(folder: &Path) -> Result<Option<MemberIdentity>, JoinError> {
    load_with(folder, folders::credentials().as_deref())
}

/// Whether the host's key is handed in as a credential, so that no other one can be made.
#[must_use]
pub(super) fn has_key_credential() -> bool {
    folders::credentials().is_some_and(|folder| folder.join(KEY_CREDENTIAL).exists())
}

/// Returns the private key among credentials, if there is one.
fn handed_in(credentials: Option<&Path>) -> Result<Option<String>, JoinError> {
    let Some(path) = credentials.map(|folder| folder.join(KEY_CREDENTIAL)) else { return Ok(None) };
    match fs::read_to_string(&path) {
        Ok(pem) => Ok(Some(pem)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(JoinError::Io { path, source }),
    }
}

/// Returns the key for a certificate: the credential, or a new one.
fn key_for_certificate(credentials: Option<&Path>) -> Result<KeyPair, JoinError> {
    match handed_in(credentials)? {
        Some(pem) => Ok(KeyPair::from_pem(&pem)?),
        None => Ok(KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?),
    }
}

fn load_with(folder: &Path, credentials: Option<&Path>) -> Result<Option<MemberIdentity>, JoinError> {
    let path = folder.join(IDENTITY_FILE);
    match files::read_own(&path) {
        Ok(json) => {
            if form::is_other_json(&json) {
                return Err(other_form(&path).into());
            }
            let damaged = |reason: String| JoinError::Content { path: path.clone(), reason };
            let IdentityFile { membership, key, .. } =
                serde_json::from_slice(&json).map_err(|error| damaged(error.to_string()))?;
            let mut identity = MemberIdentity { membership, key };
            if identity.key.is_empty() {
                let unusable = |reason: &str| JoinError::Credential { path: path.clone(), reason: reason.to_owned() };
                identity.key = handed_in(credentials)?.ok_or_else(|| unusable("it is not provided"))?;
                identity.check().map_err(|_| unusable("it is not the one that the certificate is for"))?;
            }
            identity.check().map_err(|error| damaged(muster_base::failure::with_causes(&error)))?;
            Ok(Some(identity))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if files::is_unreadable(&error) => Err(JoinError::Content { path, reason: error.to_string() }),
        Err(source) => Err(JoinError::Io { path, source }),
    }
}

/// Returns the error of a host that has lost its identity in `folder`, if it had one.
#[must_use]
pub fn lost(folder: &Path, host: HostId) -> Option<JoinError> {
    let path = folder.join(IDENTITY_FILE);
    folder.join(TOKEN_FILE).exists().then_some(JoinError::Lost { path, host })
}

/// Saves an identity in `folder`.
///
/// # Errors
/// If the file cannot be written; the previous one is unchanged then.
pub fn save(folder: &Path, identity: &MemberIdentity) -> Result<(), JoinError> {
    save_with(folder, identity, folders::credentials().as_deref())
}

fn save_with(folder: &Path, identity: &MemberIdentity, credentials: Option<&Path>) -> Result<(), JoinError> {
    let path = folder.join(IDENTITY_FILE);
    let key = match handed_in(credentials)? {
        Some(pem) if pem == identity.key => String::new(),
        _ => identity.key.clone(),
    };
    let file = IdentityFile { form: FORM, membership: identity.membership.clone(), key };
    let json = serde_json::to_vec_pretty(&file).map_err(|error| JoinError::Answer(error.to_string()))?;
    files::write_atomically(&path, &json, files::SECRET_MODE).map_err(|source| JoinError::Io { path, source })
}

/// Saves an identity that a token was used for, and the token's hash.
///
/// # Errors
/// If a file cannot be written.
pub fn save_joined(folder: &Path, identity: &MemberIdentity, token: &JoinToken) -> Result<(), JoinError> {
    save(folder, identity)?;
    let path = folder.join(TOKEN_FILE);
    let hash = format!("{}\n", Digest::of(token.secret.as_bytes()));
    files::write_atomically(&path, hash.as_bytes(), files::SECRET_MODE).map_err(|source| JoinError::Io { path, source })
}

/// Whether a token is another one than the host joined with.
#[must_use]
pub fn is_another_token(folder: &Path, token: &JoinToken) -> bool {
    let used = fs::read_to_string(folder.join(TOKEN_FILE)).ok();
    used.is_some_and(|hash| hash.trim() != Digest::of(token.secret.as_bytes()).as_str())
}

/// Joins with a token: with the host's existing key, which proves that it is the same host, or with a new one. While
/// the console cannot be reached it tries again, because a host may be set up before its network is. Dropping the
/// future ends that.
///
/// # Errors
/// If the console refuses; [`JoinError::is_of_revoked_key`] if the key was revoked, or is not the one that the token
/// names. Nothing is saved then.
pub async fn join(
    token: &JoinToken,
    me: &Joiner<'_>,
    present: Option<&MemberIdentity>,
) -> Result<MemberIdentity, JoinError> {
    let door = JoinClient::new(token)?;
    match present.and_then(|identity| KeyPair::from_pem(&identity.key).ok()) {
        Some(key) => door.join_with(key, &token.secret, me).await,
        None => door.join_with(key_for_certificate(folders::credentials().as_deref())?, &token.secret, me).await,
    }
}

/// A host that joins.
#[derive(Clone, Debug)]
pub struct Joiner<'a> {
    /// Its id.
    pub host: HostId,
    /// Its hostname.
    pub hostname: &'a str,
    /// The machine's properties.
    pub facts: &'a Facts,
    /// Its public key for sealed content.
    pub sealing_key: JoinerSealingKey,
}

/// A host's public key for sealed content.
#[derive(Clone, Debug)]
pub enum JoinerSealingKey {
    /// The host stores its key.
    Stored(SealingKey),
    /// It is derived from the certificate's key: see [`derived_sealing_key`].
    Derived,
}

/// The sealing key of a host that stores none, such as a simulated one: it is derived from the certificate's key, and
/// changes with it.
#[must_use]
pub fn derived_sealing_key(key_pem: &str) -> HostKey {
    HostKey::derived_from(key_pem.as_bytes())
}

/// Sends a host's sealing key to its console.
///
/// # Errors
/// If the console does not accept it.
pub async fn hand_over(identity: &MemberIdentity, key: &SealingKey) -> Result<(), JoinError> {
    let notice = &SealingKeyNotice { v: V1, key: key.clone() };
    let ask = async |url| {
        let client = https(identity.tls()?, url)?;
        post::<_, SealingKeyNotice>(&client, url, "/v1/sealing-key", notice).await
    };
    let taken = address::ask(identity.console_urls(), ask).await?;
    if taken == *notice { Ok(()) } else { Err(JoinError::Answer("it has another sealing key".to_owned())) }
}

/// A client for joining, with the trust that a token defines: for one host, or for many.
pub struct JoinClient {
    url: String,
    authority: Digest,
    pinned: Arc<PinnedVerifier>,
    client: reqwest::Client,
}

impl std::fmt::Debug for JoinClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door").field("url", &self.url).finish_non_exhaustive()
    }
}

impl JoinClient {
    /// Creates it from a token.
    ///
    /// # Errors
    /// If no TLS configuration can be made from what the token pins.
    pub fn new(token: &JoinToken) -> Result<Self, JoinError> {
        let pinned = PinnedVerifier::new(token.authority.clone());
        let tls = pinned.client().map_err(|source| PkiError::Tls { what: "the token's authority", source })?;
        let client = https(tls, &token.url)?;
        Ok(Self { url: token.url.clone(), authority: token.authority.clone(), pinned, client })
    }

    /// As [`join`], with the secret of one of the fleet's tokens.
    ///
    /// # Errors
    /// As [`join`].
    pub async fn join(&self, secret: &str, me: &Joiner<'_>) -> Result<MemberIdentity, JoinError> {
        // All attempts use one key, so that a console that granted an earlier one, whose answer was lost, recognises
        // it.
        self.join_with(KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?, secret, me).await
    }

    async fn join_with(&self, key: KeyPair, secret: &str, me: &Joiner<'_>) -> Result<MemberIdentity, JoinError> {
        let Joiner { host, hostname, facts, .. } = *me;
        let csr = request(host, &key)?;
        let (secret, hostname) = (secret.to_owned(), hostname.to_owned());
        let sealing_key = match &me.sealing_key {
            JoinerSealingKey::Stored(key) => key.clone(),
            JoinerSealingKey::Derived => derived_sealing_key(&key.serialize_pem()).public(),
        };
        let request = JoinRequest { v: V1, secret, host, csr, hostname, facts: facts.clone(), sealing_key };
        let mut attempts = 0;
        loop {
            match post::<_, Membership>(&self.client, &self.url, "/v1/join", &request).await {
                Ok(membership) => return accept(membership, key, host, std::slice::from_ref(&self.authority)),
                Err(JoinError::Unreachable { url, .. }) if self.pinned.met_a_stranger() => {
                    return Err(JoinError::Stranger { url });
                }
                Err(error @ JoinError::Unreachable { .. }) => {
                    let wait_ms = RECONNECT.full_jitter_ms(attempts, chance::random());
                    let hint = unreached_hint(&self.url);
                    tracing::warn!(%error, retry_ms = wait_ms, hint, "this host has not joined yet");
                    tokio::time::sleep(Duration::from_millis(wait_ms.unsigned_abs())).await;
                    attempts += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Gets a new certificate, for a new key unless the key is a credential, with the present one.
///
/// # Errors
/// If there is none; the present identity remains valid.
pub async fn renew(identity: &MemberIdentity) -> Result<MemberIdentity, JoinError> {
    let old = &identity.membership;
    let key = key_for_certificate(folders::credentials().as_deref())?;
    let csr = request(old.host, &key)?;
    let request = &RenewRequest { v: V1, csr };
    let ask = async |url| {
        let client = https(identity.tls()?, url)?;
        post(&client, url, "/v1/renew", request).await
    };
    let membership = address::ask(identity.console_urls(), ask).await?;
    accept(membership, key, old.host, &fingerprints(&old.authority)?)
}

/// Creates a certificate request for a key.
fn request(host: HostId, key: &KeyPair) -> Result<String, JoinError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, host.to_string());
    Ok(params.serialize_request(key)?.pem()?)
}

/// Accepts a membership only if all its parts belong together and match what the token pins.
fn accept(
    membership: Membership,
    key: KeyPair,
    host: HostId,
    authorities: &[Digest],
) -> Result<MemberIdentity, JoinError> {
    let wrong = |text: &str| Err(JoinError::Answer(text.to_owned()));
    if membership.host != host {
        return wrong("it is for another host");
    }
    if !fingerprints(&membership.authority)?.iter().any(|one| authorities.contains(one)) {
        return wrong("it names another authority than the one that is pinned");
    }
    if membership.command_keys.is_empty() {
        return wrong("it names no key that commands are signed with");
    }
    let identity = MemberIdentity { membership, key: key.serialize_pem() };
    // This also checks that the certificate belongs to the key.
    identity.tls()?;
    identity.validity_ms()?;
    Ok(identity)
}

/// Returns the SHA-256 of each certificate in a PEM document.
///
/// # Errors
/// If there is no certificate.
pub fn fingerprints(pem: &str) -> Result<Vec<Digest>, JoinError> {
    let chain = pki::certificates("the authority's certificate", pem)?;
    Ok(chain.iter().map(|der| Digest::of(der)).collect())
}

/// What helps a host that does not reach the console of its token.
fn unreached_hint(url: &str) -> &'static str {
    let url = reqwest::Url::parse(url).ok();
    let host = url.as_ref().and_then(reqwest::Url::host_str).map(|host| host.trim_matches(['[', ']']));
    match host.is_some_and(|host| host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())) {
        true => {
            "the token's address is this machine; if the console is on another machine, start it with \
             its address (`muster up --listen ADDRESS`) and make a new token there"
        }
        false => "the console must run, and let this host through its firewall to the port for hosts",
    }
}

pub(super) fn https(tls: rustls::ClientConfig, url: &str) -> Result<reqwest::Client, JoinError> {
    http::direct(tls).https_only(true).timeout(EXCHANGE).build().map_err(|error| unreachable(url, &error))
}

fn unreachable(url: &str, error: &(dyn std::error::Error + 'static)) -> JoinError {
    JoinError::Unreachable { url: url.to_owned(), reason: http::cause(error) }
}

/// Formats an error with all its causes, since an HTTP client's own message says little.
pub(super) fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |error| error.source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

async fn post<B: Serialize, A: DeserializeOwned>(
    client: &reqwest::Client,
    url: &str,
    path: &str,
    body: &B,
) -> Result<A, JoinError> {
    let answer = exchange(url, client.post(whole(url, path)).json(body), ANSWER_MAX_BYTES).await?;
    serde_json::from_slice(&answer).map_err(|error| JoinError::Answer(error.to_string()))
}

/// The URL of a path of the console.
pub(super) fn whole(url: &str, path: &str) -> String {
    format!("{}{path}", url.trim_end_matches('/'))
}

/// Sends a request to the console at `url`, and returns its answer of at most `max_bytes`.
pub(super) async fn exchange(
    url: &str,
    request: reqwest::RequestBuilder,
    max_bytes: usize,
) -> Result<Vec<u8>, JoinError> {
    let mut response = request.send().await.map_err(|error| unreachable(url, &error))?;
    let status = response.status();
    let mut answer = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| unreachable(url, &error))? {
        if answer.len() + chunk.len() > max_bytes {
            return Err(JoinError::Answer(format!("the answer is longer than {max_bytes} bytes")));
        }
        answer.extend_from_slice(&chunk);
    }
    if status.is_success() {
        return Ok(answer);
    }
    // Overload and server errors may pass; other statuses are final.
    let passing = status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429);
    match serde_json::from_slice(&answer) {
        Ok(Problem { code, diagnostic }) if !passing => {
            Err(JoinError::Refused { url: url.to_owned(), code, reason: diagnostic.into_error() })
        }
        _ => Err(JoinError::Unreachable { url: url.to_owned(), reason: format!("it answers {status}") }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use muster_topics::{envelope::Signer, revision::RevisionKey, topic::Prefix};

    use muster_topics::diagnostic::Diagnostic;

    use super::*;
    use crate::testing::{Authority, server};

    fn tls(authority: &Authority, shown: &Authority) -> rustls::ServerConfig {
        let (certificate, key) = authority.issue("console");
        let mut chain = pki::certificates("test", &certificate).unwrap();
        chain.extend(pki::certificates("test", &shown.pem()).unwrap());
        rustls::ServerConfig::builder_with_provider(pki::provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, pki::private_key("test", &key).unwrap())
            .unwrap()
    }

    fn membership(authority: &Authority, request: &JoinRequest) -> Membership {
        let csr = rcgen::CertificateSigningRequestParams::from_pem(&request.csr).unwrap();
        let signer = Signer::from_pkcs8(&Signer::generate().unwrap()).unwrap();
        Membership {
            v: V1,
            host: request.host,
            certificate: authority.certify(&request.host.to_string(), &csr.public_key),
            authority: authority.pem(),
            command_keys: vec![signer.public_key().unwrap()],
            broker_url: "mqtts://127.0.0.1:1".to_owned(),
            console_url: "https://127.0.0.1:1".to_owned(),
            prefix: Prefix::default(),
            revision_key: RevisionKey::from_bytes([1; 32]),
            numbers: Default::default(),
            addresses: None,
        }
    }

    fn token(url: &str, authority: &Authority) -> JoinToken {
        let authority = fingerprints(&authority.pem()).unwrap().remove(0);
        JoinToken { url: url.to_owned(), authority, secret: "s".to_owned() }
    }

    async fn try_join(token: &JoinToken, host: HostId) -> Result<MemberIdentity, JoinError> {
        let facts = super::super::facts::facts();
        let sealing_key = JoinerSealingKey::Stored(SealingKey::from_bytes([7; 32]));
        let joiner = Joiner { host, hostname: "till-7", facts: &facts, sealing_key };
        tokio::time::timeout(Duration::from_secs(60), join(token, &joiner, None)).await.expect("an end")
    }

    #[tokio::test]
    async fn join_is_retried_until_the_console_answers() {
        let authority = Arc::new(Authority::new());
        let (host, count, issuer) = (HostId::random(), AtomicUsize::new(0), authority.clone());
        let (url, requests) = server(tls(&authority, &authority), move |_, body| {
            let request: JoinRequest = serde_json::from_slice(body).unwrap();
            assert_eq!((request.secret.as_str(), request.hostname.as_str()), ("s", "till-7"));
            assert_eq!(request.sealing_key, SealingKey::from_bytes([7; 32]));
            match count.fetch_add(1, Ordering::Relaxed) {
                0 => (503, b"starting".to_vec()),
                _ => (200, serde_json::to_vec(&membership(&issuer, &request)).unwrap()),
            }
        })
        .await;
        let identity = try_join(&token(&url, &authority), host).await.unwrap();
        assert_eq!(*requests.lock().unwrap(), ["/v1/join", "/v1/join"]);
        let (begins_ms, ends_ms) = identity.validity_ms().unwrap();
        assert!(begins_ms < ends_ms);

        let folder = tempfile::tempdir().unwrap();
        assert!(load(folder.path()).unwrap().is_none());
        save(folder.path(), &identity).unwrap();
        let loaded = load(folder.path()).unwrap().unwrap();
        assert_eq!((loaded.membership, loaded.key), (identity.membership, identity.key));
        let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(folder.path().join(IDENTITY_FILE)).unwrap());
        assert_eq!(mode & 0o777, 0o600);

        // Its id has a file of its own, too; if that is damaged or missing, the id comes from here.
        let other = HostId::random().to_string();
        for damage in [None, Some(""), Some("nonsense"), Some(other.as_str())] {
            let file = folder.path().join(HOST_FILE);
            let _ = fs::remove_file(&file);
            damage.into_iter().for_each(|text| fs::write(&file, text).unwrap());
            assert_eq!(host_id(folder.path()).unwrap(), host, "{damage:?}");
            assert_eq!(fs::read_to_string(&file).unwrap().trim(), host.to_string());
        }
        let damage = |change: &dyn Fn(&mut MemberIdentity)| {
            let mut damaged = load(folder.path()).unwrap().unwrap();
            change(&mut damaged);
            let folder = tempfile::tempdir().unwrap();
            save(folder.path(), &damaged).unwrap();
            Diagnostic::of(&load(folder.path()).unwrap_err())
        };
        let another = Authority::new();
        for error in [
            damage(&|identity| identity.key = KeyPair::generate().unwrap().serialize_pem()),
            damage(&|identity| identity.membership.authority = another.pem()),
            damage(&|identity| identity.membership.certificate.clear()),
        ] {
            assert!(
                error.cause.contains(IDENTITY_FILE) && error.hint.unwrap().contains("--replace"),
                "{}",
                error.cause
            );
        }
    }

    #[tokio::test]
    async fn refused_join_ends_with_reason() {
        let authority = Authority::new();
        let problem = r#"{"code":"token_used","message":"the token was used","hint":"make a new one"}"#;
        let (url, requests) = server(tls(&authority, &authority), move |_, _| (403, problem.into())).await;
        let error = try_join(&token(&url, &authority), HostId::random()).await.unwrap_err();
        assert!(matches!(&error, JoinError::Refused { code, .. } if code == "token_used"), "{error}");
        assert!(error.to_string().ends_with("the token was used"), "{error}");
        assert_eq!(Diagnostic::of(&error).hint.as_deref(), Some("make a new one"));
        assert_eq!(requests.lock().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn token_is_not_sent_to_a_stranger() {
        let (ours, theirs) = (Authority::new(), Authority::new());
        for shown in [&theirs, &ours] {
            // The second server presents the authority's public certificate beside a leaf of its own.
            let (url, requests) = server(tls(&theirs, shown), |_, _| (200, vec![])).await;
            let error = try_join(&token(&url, &ours), HostId::random()).await.unwrap_err();
            assert!(matches!(error, JoinError::Stranger { .. }), "{error}");
            assert!(requests.lock().unwrap().is_empty(), "no request was written");
        }
    }

    #[tokio::test]
    async fn membership_for_other_key_is_refused() {
        type Change = fn(&mut Membership);
        let changes: [Change; 4] = [
            |membership| membership.host = HostId::random(),
            |membership| membership.authority = Authority::new().pem(),
            |membership| membership.command_keys.clear(),
            |membership| membership.certificate = Authority::new().issue("x").0,
        ];
        for change in changes {
            let authority = Arc::new(Authority::new());
            let issuer = authority.clone();
            let (url, _) = server(tls(&authority, &authority), move |_, body| {
                let mut membership = membership(&issuer, &serde_json::from_slice(body).unwrap());
                change(&mut membership);
                (200, serde_json::to_vec(&membership).unwrap())
            })
            .await;
            assert!(try_join(&token(&url, &authority), HostId::random()).await.is_err());
        }
    }

    #[test]
    fn key_that_is_a_credential_is_in_no_file() {
        let (folder, credentials) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (authority, handed_in) = (Authority::new(), Some(credentials.path()));
        assert_ne!(
            key_for_certificate(handed_in).unwrap().serialize_pem(),
            key_for_certificate(handed_in).unwrap().serialize_pem()
        );
        let path = credentials.path().join(KEY_CREDENTIAL);
        fs::write(&path, KeyPair::generate().unwrap().serialize_pem()).unwrap();
        let key = key_for_certificate(handed_in).unwrap();
        assert_eq!(key.serialize_pem(), fs::read_to_string(&path).unwrap());
        let host = HostId::random();
        let request = join_request(host, &key);
        let identity = MemberIdentity { membership: membership(&authority, &request), key: key.serialize_pem() };
        save_with(folder.path(), &identity, handed_in).unwrap();
        let text = fs::read_to_string(folder.path().join(IDENTITY_FILE)).unwrap();
        assert!(!text.contains("PRIVATE KEY"), "{text}");
        assert_eq!(load_with(folder.path(), handed_in).unwrap().unwrap().key, identity.key);
        for (damage, reason) in
            [(None, "not provided"), (Some(KeyPair::generate().unwrap().serialize_pem()), "not the one")]
        {
            fs::remove_file(&path).unwrap();
            fs::write(&path, damage.clone().unwrap_or_default()).unwrap();
            if damage.is_none() {
                fs::remove_file(&path).unwrap();
            }
            let error = Diagnostic::of(&load_with(folder.path(), handed_in).unwrap_err());
            assert!(error.cause.contains(reason) && error.hint.unwrap().contains("--replace"), "{}", error.cause);
            fs::write(&path, &identity.key).unwrap();
        }
        // Without credentials, keys are in the file as ever.
        save_with(folder.path(), &identity, None).unwrap();
        assert_eq!(load_with(folder.path(), None).unwrap().unwrap().key, identity.key);
    }

    fn join_request(host: HostId, key: &KeyPair) -> JoinRequest {
        JoinRequest {
            v: V1,
            secret: String::new(),
            host,
            csr: request(host, key).unwrap(),
            hostname: String::new(),
            facts: crate::facts::facts(),
            sealing_key: SealingKey::from_bytes([7; 32]),
        }
    }

    #[test]
    fn host_trusts_more_roots_and_drops_none_that_its_certificate_is_under() {
        let (old, new, other) = (Authority::new(), Authority::new(), Authority::new());
        let key = KeyPair::generate().unwrap();
        let host = HostId::random();
        let request = join_request(host, &key);
        let under = |authority: &Authority| membership(authority, &request);
        let identity = MemberIdentity { membership: under(&old), key: key.serialize_pem() };
        let with = |identity: &MemberIdentity, number, authorities: &[String]| {
            let keys = CommandKeys { keys: under(&old).command_keys, authorities: authorities.to_vec() };
            identity.with_keys_of(number, &keys)
        };
        let number = |identity: &MemberIdentity| identity.membership.number(NumberedKind::CommandKeys);
        let roots = |identity: &MemberIdentity| fingerprints(&identity.membership.authority).unwrap();
        let of = |authorities: &[&Authority]| {
            authorities.iter().map(|one| fingerprints(&one.pem()).unwrap().remove(0)).collect::<Vec<_>>()
        };
        assert_eq!(roots(&with(&identity, 1, &[])), of(&[&old]), "as they were");
        let both = with(&identity, 2, &[old.pem(), new.pem().trim_end().to_owned()]);
        assert_eq!((roots(&both), number(&both)), (of(&[&old, &new]), 2));
        let ids = |of: Vec<Digest>| of.iter().map(|one| one.as_str()[..16].to_owned()).collect::<Vec<_>>();
        assert_eq!(both.known_keys().authorities, ids(of(&[&old, &new])));
        assert_eq!(both.known_keys().issuer, ids(of(&[&old])).pop());
        // Its certificate is renewed once another root is the first.
        let reordered = with(&both, 2, &[new.pem(), old.pem()]);
        assert!(!both.is_under_former_root() && reordered.is_under_former_root());
        assert_eq!(reordered.known_keys().issuer, both.known_keys().issuer);
        assert!(both.connects_like(&identity), "nobody connects anew for it");
        for unusable in [vec![new.pem()], vec!["nonsense".to_owned()], vec![other.pem(), new.pem()]] {
            let kept = with(&both, 3, &unusable);
            assert_eq!((roots(&kept), number(&kept)), (of(&[&old, &new]), 3), "{unusable:?}");
        }
        // A renewal under the new root is accepted by who trusts it; then the old one can be dropped.
        let renewed = |trusted: &MemberIdentity, authority: &Authority| {
            let key = KeyPair::from_pem(&identity.key).unwrap();
            accept(under(authority), key, host, &roots(trusted))
        };
        assert!(renewed(&both, &other).is_err() && renewed(&identity, &new).is_err());
        let moved = MemberIdentity { membership: both.membership.clone(), ..renewed(&both, &new).unwrap() };
        let moved = MemberIdentity {
            membership: Membership { certificate: under(&new).certificate, ..moved.membership },
            ..moved
        };
        assert_eq!(roots(&with(&moved, 4, &[new.pem()])), of(&[&new]));
        assert_eq!(moved.known_keys().issuer, ids(of(&[&new])).pop());
        // A renewal for the keys alone brings roots, too, unless the present certificate is under none of them.
        let membership = |authority: String| Membership { authority, ..under(&new) };
        let healed = identity.with_keys_of_renewal(&membership(new.pem() + &old.pem()));
        assert_eq!((roots(&healed), healed.is_under_former_root()), (of(&[&new, &old]), true));
        assert_eq!(roots(&identity.with_keys_of_renewal(&membership(new.pem()))), of(&[&old]));
    }

    #[test]
    fn host_id_is_generated_once() {
        let folder = tempfile::tempdir().unwrap();
        let host = host_id(folder.path()).unwrap();
        assert_eq!(host_id(folder.path()).unwrap(), host);
        fs::write(folder.path().join(HOST_FILE), "nonsense").unwrap();
        assert!(Diagnostic::of(&host_id(folder.path()).unwrap_err()).hint.is_some());
    }
}

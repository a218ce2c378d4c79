//! The revocation list: the revoked certificates, signed by the authority, for
//! everybody who authenticates clients by certificates.
//!
//! It is the file `revoked.pem` in the console's folder, the interface for hosts serves it to everybody (it holds
//! serial numbers only), and [`watch::Receiver`]s follow each change: that is how a broker in the
//! same process is told. It is rebuilt whenever this process revokes something and also every
//! few seconds, because `muster console revoke` is another process.
//!
//! A broker elsewhere is updated by `revocation_command`, a program that runs whenever the list has changed. Until it has succeeded for all
//! revoked certificates, the broker may still admit them, and `dispatch` sends nothing that a revoked host could read.
//!
//! **Invariant: the list follows the store alone.** A missed change is picked up by the next look.

use std::{
    collections::HashSet,
    io,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, PoisonError},
    time::Duration,
};

use muster_base::{
    clock::now_ms,
    files::{self, RoleFile},
};
use muster_sqlite::room;
use muster_topics::{Millis, diagnostic::Diagnostic, name::HostId};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::state::SharedPem;
use super::{
    authority::{Authority, AuthorityError},
    certain_time,
    register::{self, RegisterError},
    state::ConsoleState,
    store::{
        Store, StoreError, host,
        issued::{self, RevokedCertificate},
    },
};

/// The list's file in the console's folder.
pub const FILE: &str = "revoked.pem";
/// How long a list is valid. A broker that rejects outdated lists (as OpenSSL does) works this long without a console.
pub const LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);
/// After this time a new list is made even without a change, so that one that is fetched daily is never outdated.
const RENEWAL_MS: Millis = 24 * 3600 * 1000;
/// How often the store is checked: a change by another process takes effect within 5 s.
const LOOK: Duration = Duration::from_secs(3);

/// The list could not be made.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum ListError {
    /// The store cannot be read.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Store(#[from] StoreError),
    /// The register could not be written.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Register(#[from] RegisterError),
    /// The list could not be signed.
    #[error("the revocation list: {0}")]
    Sign(
        #[from]
        #[diagnostic_source]
        AuthorityError,
    ),
    /// The list could not be written.
    #[error("the revocation list {path} cannot be written: {source}")]
    File {
        /// Its path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
        /// What to do about it.
        #[help]
        hint: Option<String>,
    },
}

impl ListError {
    /// Whether the disk is full.
    fn is_full(&self) -> bool {
        match self {
            Self::Store(error) => error.is_full(),
            Self::Register(error) => error.is_full(),
            Self::File { source, .. } => room::is_missing_for(source),
            Self::Sign(_) => false,
        }
    }
}

/// The present list.
#[derive(Debug)]
pub(super) struct ListKeeper {
    path: PathBuf,
    made_ms: Millis,
    of: Vec<RevokedCertificate>,
    /// The roots that it is of.
    roots: Vec<String>,
    list: watch::Sender<Arc<str>>,
    register: register::RegisterWriter,
}

impl ListKeeper {
    /// Makes the list and its file in `folder`, and the register.
    pub(super) async fn open(folder: &Path, authority: &Authority, store: &Store) -> Result<Self, ListError> {
        let now = now_ms();
        let certain = certain_time::open(store, now).await?.now();
        let mut register = register::RegisterWriter::new(folder);
        // On a full disk the console still starts, and tries again every few seconds.
        let kept = register.refresh(store).await.map_err(ListError::from);
        let is_kept = passed_over_if_full(kept)?;
        let of = issued::revoked(store.read(), certain).await?;
        let roots = authority.roots().ids();
        let pem = authority.revocation_list(&of, LIFETIME, now)?;
        let list = watch::Sender::new(pem.into());
        let mut keeper = Self { path: folder.join(FILE), made_ms: now, of, roots, list, register };
        if !passed_over_if_full(keeper.write())? || !is_kept {
            // So the next check makes it again.
            keeper.made_ms = 0;
        }
        Ok(keeper)
    }

    /// The list, now and on each change.
    pub(super) fn list(&self) -> SharedPem {
        self.list.subscribe()
    }

    fn write(&self) -> Result<(), ListError> {
        let pem = Arc::clone(&self.list.borrow());
        let folder = self.path.parent().unwrap_or(Path::new("."));
        files::clear_places(folder, RoleFile::File, &[FILE])
            .and_then(|()| files::write_atomically(&self.path, pem.as_bytes(), files::PUBLIC_MODE))
            .map_err(|source| ListError::File { path: self.path.clone(), hint: room::hint(&source), source })
    }

    /// Whether the file is what was written, or a newer list of another process. A list of ten thousand certificates
    /// has half a megabyte.
    fn is_whole(&self, authority: &Authority) -> bool {
        let Ok(found) = std::fs::read(&self.path) else { return false };
        if found == self.list.borrow().as_bytes() {
            return true;
        }
        authority.read_revocation_list(&found).is_some_and(|(serials, made_ms)| {
            // Lists are dated in whole seconds.
            made_ms >= self.made_ms - 1_000 && self.of.iter().all(|revoked| serials.contains(&revoked.serial))
        })
    }

    /// Makes a new list if the store has changed, or the list is old. Returns whether it did. A certificate leaves the list once
    /// it has certainly expired.
    async fn refresh(
        &mut self,
        authority: &Authority,
        store: &Store,
        now: Millis,
        certain: Millis,
    ) -> Result<bool, ListError> {
        self.register.refresh(store).await?;
        let of = issued::revoked(store.read(), certain).await?;
        let roots = authority.roots().ids();
        // After a clock was set back, too: the list may be dated in the future.
        if of == self.of && roots == self.roots && (0..RENEWAL_MS).contains(&(now - self.made_ms)) {
            if !self.is_whole(authority) {
                // A broker that reads an older list would accept revoked certificates again.
                tracing::error!(path = %self.path.display(), "the revocation list was modified and is written again");
                self.write()?;
            }
            return Ok(false);
        }
        let pem = authority.revocation_list(&of, LIFETIME, now)?;
        // Watchers get it even if the disk is full; the next check tries the file again.
        self.list.send_replace(pem.into());
        self.write()?;
        (self.of, self.roots, self.made_ms) = (of, roots, now);
        Ok(true)
    }
}

/// Returns whether the file was written; false (and logged) if the disk was full.
fn passed_over_if_full(written: Result<(), ListError>) -> Result<bool, ListError> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.is_full() => {
            let hint = Diagnostic::of(&error).hint;
            tracing::error!(%error, hint, "the register or the revocation list is not up to date; retrying");
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Makes the list and its file in `folder` once, without a console. Returns the list.
///
/// # Errors
/// If the store cannot be read, or the file cannot be written.
pub async fn write(folder: &Path, authority: &Authority, store: &Store) -> Result<String, ListError> {
    Ok(ListKeeper::open(folder, authority, store).await?.list.borrow().to_string())
}

/// The timeout of `revocation_command`: as long as service managers give a broker to restart.
const COMMAND: Duration = Duration::from_secs(90);
/// When it is tried again after a failure.
const COMMAND_RETRY: Duration = Duration::from_secs(30);

/// Passes the list to an external broker.
struct BrokerFeed {
    program: Vec<String>,
    path: PathBuf,
    /// When the list was made that the broker got last.
    fed_ms: Millis,
    failed: Option<tokio::time::Instant>,
}

impl BrokerFeed {
    /// Whether the broker is to get the list now.
    fn is_due(&self, keeper: &ListKeeper) -> bool {
        !self.program.is_empty()
            && self.fed_ms != keeper.made_ms
            && self.failed.is_none_or(|at| at.elapsed() >= COMMAND_RETRY)
    }

    /// Runs the program, with the list's path in its environment. Returns whether it succeeded.
    async fn give(&mut self, made_ms: Millis) -> bool {
        let Some((program, arguments)) = self.program.split_first() else { return false };
        let mut command = tokio::process::Command::new(program);
        command.args(arguments).env("MUSTER_REVOKED_PEM", &self.path).stdin(Stdio::null()).kill_on_drop(true);
        let failure = match tokio::time::timeout(COMMAND, command.output()).await {
            Ok(Ok(output)) if output.status.success() => None,
            Ok(Ok(output)) => Some(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())),
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("it did not end within {} s", COMMAND.as_secs())),
        };
        match failure {
            None => {
                tracing::info!("the broker was given the revocation list");
                (self.fed_ms, self.failed) = (made_ms, None);
                true
            }
            Some(failure) => {
                let failure: String = failure.chars().take(1_000).collect();
                tracing::error!(%failure, "revocation_command failed; retrying in {} s", COMMAND_RETRY.as_secs());
                self.failed = Some(tokio::time::Instant::now());
                false
            }
        }
    }
}

/// Notifies all parts about hosts that another process has revoked since the last check.
async fn notice(shared: &ConsoleState, known: &mut HashSet<HostId>) -> Result<(), StoreError> {
    let revoked = host::revoked(shared.store.read()).await?;
    for host in revoked.difference(known) {
        shared.left(*host, &[]).await;
    }
    *known = revoked;
    Ok(())
}

/// Keeps the list up to date until `shutdown`.
pub(super) async fn run(shared: Arc<ConsoleState>, mut keeper: ListKeeper, shutdown: CancellationToken) {
    let mut trouble = None;
    let mut known = HashSet::new();
    let mut feed = BrokerFeed {
        program: shared.settings.started_with.revocation_command.clone(),
        path: keeper.path.clone(),
        fed_ms: Millis::MIN,
        failed: None,
    };
    let mut is_noticed = false;
    loop {
        // Checking every host takes ten milliseconds for ten thousand, so it is done only after a revocation.
        if !is_noticed {
            match notice(&shared, &mut known).await {
                Ok(()) => is_noticed = true,
                Err(error) => {
                    tracing::error!(%error, hint = error.hint(), "revocations cannot be read; retrying");
                }
            }
        }
        if feed.is_due(&keeper) {
            tokio::select! {
                () = shutdown.cancelled() => return,
                given = feed.give(keeper.made_ms) => if given {
                    let serials = keeper.of.iter().map(|one| one.serial.clone()).collect();
                    *shared.revocation.told_broker.lock().unwrap_or_else(PoisonError::into_inner) = serials;
                },
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = shared.revocation.requested.notified() => {}
            () = tokio::time::sleep(LOOK) => {}
        }
        match keeper.refresh(&shared.authority, &shared.store, now_ms(), shared.time.now()).await {
            Ok(false) => trouble = None,
            Ok(true) => {
                (trouble, is_noticed) = (None, false);
                tracing::info!(revoked = keeper.of.len(), "made a new revocation list");
            }
            // Logged once, not every few seconds.
            Err(error) => {
                let text = error.to_string();
                if trouble.as_ref() != Some(&text) {
                    let hint = Diagnostic::of(&error).hint;
                    tracing::error!(%error, hint, "the revocation list is not up to date; retrying");
                    trouble = Some(text);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_net::pki;
    use muster_topics::name::hex;
    use rcgen::KeyPair;
    use rustls::{
        RootCertStore,
        pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime, pem::PemObject},
        server::WebPkiClientVerifier,
    };
    use x509_parser::prelude::{CertificateRevocationList, FromDer};

    use super::*;
    use crate::{
        store::issued::{IssuedCertificate, IssuedRole},
        testing::{Fixture, admin, join_request},
    };

    fn serials(pem: &str) -> Vec<String> {
        let der = CertificateRevocationListDer::from_pem_slice(pem.as_bytes()).unwrap();
        let (_, list) = CertificateRevocationList::from_der(&der).unwrap();
        list.iter_revoked_certificates().map(|one| hex(one.raw_serial())).collect()
    }

    /// Whether TLS accepts a certificate, as every server in Rust would check it.
    fn is_let_in(authority: &str, list: &str, certificate: &str) -> bool {
        let roots: RootCertStore = pki::roots(authority).unwrap();
        let list = CertificateRevocationListDer::from_pem_slice(list.as_bytes()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), pki::provider())
            .with_crls([list])
            .enforce_revocation_expiration()
            .build()
            .unwrap();
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
        verifier.verify_client_cert(&certificate, &[], UnixTime::now()).is_ok()
    }

    #[tokio::test]
    async fn only_revoked_host_is_listed() {
        let fixture = Fixture::new().await;
        let (bad, good) = (fixture.member("bad").await, fixture.member("good").await);
        let mut list = fixture.running.revocations();
        let authority = fixture.shared().authority.certificate_pem();
        let before = list.borrow_and_update().clone();
        assert!(is_let_in(&authority, &before, &bad.certificate) && is_let_in(&authority, &before, &good.certificate));

        fixture.console.revoke_host(&admin(), "bad").await.unwrap();
        list.changed().await.unwrap();
        let after = list.borrow_and_update().clone();
        assert!(!is_let_in(&authority, &after, &bad.certificate));
        assert!(is_let_in(&authority, &after, &good.certificate));
        let url = fixture.hosts_url("/v1/revoked.pem");
        let fetched = fixture.client(None).get(url).send().await.unwrap().text().await.unwrap();
        assert_eq!(*fetched, *after);
        // The file is written a moment after the list.
        let path = fixture.dir.path().join("console").join(FILE);
        while std::fs::read_to_string(&path).unwrap() != *after {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(fixture.console.host("bad").await.unwrap().certificate_expires_ms, 0);
    }

    #[tokio::test]
    async fn rejoined_hosts_old_certificate_is_listed() {
        let fixture = Fixture::new().await;
        let member = fixture.member("h").await;
        let mut list = fixture.running.revocations();
        assert_eq!(serials(&list.borrow_and_update()), [""; 0]);
        let request = join_request(
            &fixture.token_for(Some(member.id)).await.secret,
            member.id,
            "h",
            &KeyPair::generate().unwrap(),
        );
        let joined = fixture.client(None).post(fixture.hosts_url("/v1/join")).json(&request).send().await.unwrap();
        assert!(joined.status().is_success());
        list.changed().await.unwrap();
        assert_eq!(serials(&list.borrow_and_update()).len(), 1);
        let authority = fixture.shared().authority.certificate_pem();
        assert!(!is_let_in(&authority, &list.borrow(), &member.certificate));
    }

    fn revoked_observer() -> IssuedCertificate {
        IssuedCertificate {
            serial: "4100".to_owned(),
            role: IssuedRole::Observer,
            name: "bridge".parse().unwrap(),
            issued_ms: 0,
            expires_ms: Millis::MAX,
            revoked_ms: Some(1_000),
        }
    }

    #[tokio::test]
    async fn change_by_another_process_is_noticed() {
        let fixture = Fixture::new().await;
        let mut list = fixture.running.revocations();
        list.borrow_and_update();
        let other = Store::open(&fixture.dir.path().join("console/console.db")).await.unwrap();
        issued::add(other.write(), &revoked_observer()).await.unwrap();
        list.changed().await.unwrap();
        assert_eq!(serials(&list.borrow()), ["4100"]);
    }

    #[tokio::test]
    async fn damaged_or_older_list_is_rewritten() {
        let dir = tempfile::tempdir().unwrap();
        let authority =
            Authority::open_or_create(&dir.path().join("authority"), crate::key_ring::KeySources::default()).unwrap();
        let store = Store::open(&dir.path().join("console.db")).await.unwrap();
        let path = dir.path().join(FILE);
        write(dir.path(), &authority, &store).await.unwrap();
        let older = std::fs::read(&path).unwrap();
        issued::add(store.write(), &revoked_observer()).await.unwrap();
        let mut keeper = ListKeeper::open(dir.path(), &authority, &store).await.unwrap();
        let mut flipped = std::fs::read(&path).unwrap();
        let middle = flipped.len() / 2;
        flipped[middle] ^= 1;
        for damage in [Some(&older[..]), Some(&flipped), Some(b""), None] {
            std::fs::remove_file(&path).unwrap();
            match damage {
                Some(bytes) => std::fs::write(&path, bytes).unwrap(),
                None => std::fs::create_dir(&path).unwrap(),
            }
            let now = keeper.made_ms;
            assert!(!keeper.refresh(&authority, &store, now, now).await.unwrap(), "the list is the same");
            assert_eq!(serials(&std::fs::read_to_string(&path).unwrap()), ["4100"]);
        }
        // A newer list of another process is valid.
        let other = authority.revocation_list(&keeper.of, LIFETIME, keeper.made_ms + 5_000).unwrap();
        std::fs::write(&path, &other).unwrap();
        let now = keeper.made_ms;
        assert!(!keeper.refresh(&authority, &store, now, now).await.unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), other);
    }

    #[tokio::test]
    async fn old_list_is_renewed() {
        let dir = tempfile::tempdir().unwrap();
        let authority =
            Authority::open_or_create(&dir.path().join("authority"), crate::key_ring::KeySources::default()).unwrap();
        let store = Store::open(&dir.path().join("console.db")).await.unwrap();
        let mut keeper = ListKeeper::open(dir.path(), &authority, &store).await.unwrap();
        let (first, made) = (keeper.list().borrow().clone(), keeper.made_ms);
        for (later_ms, is_new) in [(0, false), (1_000, false), (RENEWAL_MS, true), (RENEWAL_MS + 5, false), (-1, true)]
        {
            let looked = keeper.refresh(&authority, &store, made + later_ms, made + later_ms).await.unwrap();
            assert_eq!(looked, is_new, "{later_ms}");
        }
        assert_ne!(*first, **keeper.list().borrow());
        assert_eq!(std::fs::read_to_string(dir.path().join(FILE)).unwrap(), **keeper.list().borrow());
    }
}

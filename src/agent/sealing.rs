//! The host's sealing key, to which secrets for it are encrypted: a file beside its identity, created at the first start. The agent hands the
//! public part to the console with the host's certificate, at each start until the console has confirmed it.
//!
//! **Invariant: the key stays the same** across renewals, because commands that wait in the journal are sealed to it. Only
//! a host whose certificate was revoked joins with a new key.

use std::{fs, io, path::Path, sync::Arc, time::Duration};

use muster_base::{chance, files, folders};
use muster_bus::sealing::HostKey;
use muster_rules::backoff::ExponentialGrowth;
use muster_topics::{diagnostic::Diagnostic, sealed::SealingKey};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::join::{self, JoinError, MemberIdentity};

const FILE: &str = "sealing.key";

/// Delays between attempts to send the key.
const RETRY: ExponentialGrowth = ExponentialGrowth { first_ms: 2_000, max_ms: 3_600_000 };

/// How long to wait for an answer on the bus before the key is sent again.
const AGAIN: Duration = Duration::from_secs(3600);

/// Returns the host's sealing key, generated if there is none.
///
/// # Errors
/// If the file cannot be read or written, or randomness is not available.
pub(super) fn load_or_make(folder: &Path) -> Result<HostKey, JoinError> {
    load_or_make_with(folder, folders::credentials().as_deref())
}

/// The same, with a key among credentials, which is only read.
fn load_or_make_with(folder: &Path, credentials: Option<&Path>) -> Result<HostKey, JoinError> {
    if let Some(path) = credentials.map(|folder| folder.join(FILE)).filter(|path| path.exists()) {
        let bytes = fs::read(&path).map_err(|source| JoinError::Io { path: path.clone(), source })?;
        return String::from_utf8_lossy(&bytes).parse().map_err(|error: muster_bus::sealing::HostKeyError| {
            JoinError::Io { path, source: io::Error::new(io::ErrorKind::InvalidData, error.to_string()) }
        });
    }
    let path = folder.join(FILE);
    let failed = |source| JoinError::Io { path: path.clone(), source };
    match fs::read(&path).map(|bytes| String::from_utf8_lossy(&bytes).parse::<HostKey>()) {
        Ok(Ok(key)) => return Ok(key),
        Ok(Err(error)) => {
            // Replacing the key costs only what is sealed to it and not opened yet, which is refused.
            let aside = files::set_aside(&path).map_err(failed)?;
            tracing::error!(
                %error, file = %path.display(), aside = %aside.display(),
                consequence = "it is set aside and a new one is created; waiting \
                    commands with sealed content cannot be run",
                hint = "send these commands again; check this host's disk",
                "the host's sealing key is damaged",
            );
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(failed(source)),
    }
    make(folder)
}

/// Generates a new key in place of an existing one.
///
/// # Errors
/// If the file cannot be written, or randomness is not available.
pub(super) fn make(folder: &Path) -> Result<HostKey, JoinError> {
    let path = folder.join(FILE);
    let failed = |source| JoinError::Io { path: path.clone(), source };
    let key = HostKey::generate().map_err(|error| failed(io::Error::other(error)))?;
    files::write_atomically(&path, format!("{}\n", key.to_text()).as_bytes(), files::SECRET_MODE).map_err(failed)?;
    Ok(key)
}

/// Sends the key until the console has accepted it, and again when the console answers nothing on the bus: a console that
/// was restored from a backup may not know this host, and learns of it by the certificate that is shown here. Ends on
/// `shutdown`.
pub(super) async fn hand_over(
    identity: watch::Receiver<Arc<MemberIdentity>>,
    key: SealingKey,
    mut is_unanswered: watch::Receiver<bool>,
    shutdown: CancellationToken,
) {
    let all = async {
        hand_over_once(&identity, &key).await;
        while is_unanswered.wait_for(|unanswered| *unanswered).await.is_ok() {
            let answer = is_unanswered.clone();
            tokio::select! {
                () = hand_over_once(&identity, &key) => {}
                () = answered(answer) => {}
            }
            // The console that took it may need a while to answer, or be another one than the one on the bus.
            let _ = tokio::time::timeout(AGAIN, answered(is_unanswered.clone())).await;
        }
    };
    tokio::select! {
        () = all => {}
        () = shutdown.cancelled() => {}
    }
}

/// Waits until the console answers; for ever if the agent ends.
async fn answered(mut is_unanswered: watch::Receiver<bool>) {
    if is_unanswered.wait_for(|unanswered| !unanswered).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Sends the key until the console has accepted it.
async fn hand_over_once(identity: &watch::Receiver<Arc<MemberIdentity>>, key: &SealingKey) {
    let mut attempts = 0;
    loop {
        let present = identity.borrow().clone();
        let Err(error) = join::hand_over(&present, key).await else { return };
        let wait_ms = RETRY.jittered_ms(attempts, chance::random());
        tracing::debug!(%error, hint = Diagnostic::of(&error).hint, retry_ms = wait_ms, "the host's sealing key could not be sent to the console");
        tokio::time::sleep(Duration::from_millis(wait_ms.unsigned_abs())).await;
        attempts += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn credential_is_read_and_nothing_is_made_in_its_place() {
        let (folder, credentials) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let load = || load_or_make_with(folder.path(), Some(credentials.path()));
        let own = load().unwrap().public();
        let path = credentials.path().join(FILE);
        let handed_in = make(credentials.path()).unwrap().public();
        assert_ne!(load().unwrap().public(), own);
        assert_eq!(load().unwrap().public(), handed_in);
        fs::write(&path, "nonsense").unwrap();
        assert!(load().unwrap_err().to_string().contains(path.to_str().unwrap()));
        assert_eq!(fs::read(&path).unwrap(), b"nonsense");
    }

    #[test]
    fn key_is_generated_once_and_private() {
        let folder = tempfile::tempdir().unwrap();
        let made = load_or_make(folder.path()).unwrap();
        assert_eq!(load_or_make(folder.path()).unwrap().public(), made.public());
        let path = folder.path().join(FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        for damage in [&b"nonsense"[..], b"", b"\xff\xfe"] {
            fs::write(&path, damage).unwrap();
            let anew = load_or_make(folder.path()).unwrap().public();
            assert_ne!(anew, made.public());
            assert_eq!(load_or_make(folder.path()).unwrap().public(), anew);
            let entries = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
            assert!(
                entries
                    .filter(|path| path.display().to_string().contains(".damaged-"))
                    .any(|path| fs::read(path).unwrap() == damage)
            );
        }
    }
}

//! The host's key for what only it may read: a file beside its identity, made at the first start, and handed over to the console with the
//! host's certificate, at each start until the console has taken it.
//!
//! **Invariant: the key stays** while certificates are renewed: what is sealed in a command that waits in the journal is opened with it.

use std::{fs, io, path::Path, sync::Arc, time::Duration};

use muster_topics::sealed::SealingKey;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::join::{self, Identity, JoinError};
use crate::{chance, files, rules::backoff::Growth, sealing::HostKey};

const FILE: &str = "sealing.key";

/// Between attempts to hand it over. An older console has no place for it until it is a newer one.
const RETRY: Growth = Growth { first_ms: 2_000, max_ms: 3_600_000 };

/// The host's key, which is made if there is none.
///
/// # Errors
/// If the file cannot be read or written, or there is no randomness.
pub(super) fn load_or_make(folder: &Path) -> Result<HostKey, JoinError> {
    let path = folder.join(FILE);
    match fs::read_to_string(&path) {
        Ok(text) => text
            .parse()
            .map_err(|error: crate::sealing::HostKeyError| JoinError::Content { path, reason: error.to_string() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let failed = |source| JoinError::Io { path: path.clone(), source };
            let key = HostKey::generate().map_err(|error| failed(io::Error::other(error)))?;
            files::write_atomically(&path, format!("{}\n", key.to_text()).as_bytes(), files::SECRET_MODE)
                .map_err(failed)?;
            Ok(key)
        }
        Err(source) => Err(JoinError::Io { path, source }),
    }
}

/// Hands the key over until the console has taken it, or `shutdown`.
pub(super) async fn hand_over(identity: watch::Receiver<Arc<Identity>>, key: SealingKey, shutdown: CancellationToken) {
    let mut attempts = 0;
    loop {
        let present = identity.borrow().clone();
        let handed = tokio::select! {
            handed = join::hand_over(&present, &key) => handed,
            () = shutdown.cancelled() => return,
        };
        let Err(error) = handed else { return };
        let wait_ms = RETRY.jittered_ms(attempts, chance::random());
        tracing::debug!(%error, retry_ms = wait_ms, "the host's sealing key could not be handed over");
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(wait_ms.unsigned_abs())) => {}
            () = shutdown.cancelled() => return,
        }
        attempts += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn key_is_made_once_and_private() {
        let folder = tempfile::tempdir().unwrap();
        let made = load_or_make(folder.path()).unwrap();
        assert_eq!(load_or_make(folder.path()).unwrap().public(), made.public());
        let path = folder.path().join(FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&path, "nonsense").unwrap();
        let error = load_or_make(folder.path()).unwrap_err().to_string();
        assert!(error.contains(FILE), "{error}");
    }
}

//! Keeps a running broker's revocation list up to date: from a file, or from the console in the same process.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use muster_base::failure::{Failure, FailureContext, FailureKind, with_causes};
use muster_broker::Revocations;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    time::{MissedTickBehavior, interval},
};
use tokio_util::task::AbortOnDropHandle;

/// Interval at which the file of the revocation list is read.
const LOOK: Duration = Duration::from_secs(2);

/// Largest accepted revocation list; it holds half a million certificates.
const LIST_MAX_BYTES: u64 = 32 * 1024 * 1024;

const HINT: &str = "the console keeps its authority's list as revoked.pem in its data folder; copy it from there whole";

/// Applies the revocation list of a console in the same process, and each new version, until the handle is dropped.
pub(crate) fn follow(mut lists: watch::Receiver<Arc<str>>, revocations: Revocations) -> AbortOnDropHandle<()> {
    let replace = move |list: &Arc<str>| {
        // The console made the list for this authority, so an error is a bug of the console.
        if let Err(error) = revocations.replace(list) {
            tracing::error!("the console's revocation list is not used: {}", with_causes(&error));
        }
    };
    replace(&Arc::clone(&lists.borrow_and_update()));
    AbortOnDropHandle::new(tokio::spawn(async move {
        while lists.changed().await.is_ok() {
            replace(&Arc::clone(&lists.borrow_and_update()));
        }
    }))
}

/// Applies the revocation list in a file, and each new version, until the handle is dropped. The file is read every two
/// seconds, and on SIGHUP.
///
/// # Errors
/// If the list at the start is not a valid one of the broker's authority: a broker that should use a list does not
/// start without it. One that is out of date is used until the console brings another one.
pub(crate) async fn watch(path: PathBuf, revocations: Revocations) -> Result<AbortOnDropHandle<()>, Failure> {
    let mut list = RevocationFile { path, revocations, seen: None };
    list.look().await.map_err(|why| {
        Failure::new(FailureKind::Failed, format!("the revocation list {}: {why}", list.path.display())).hint(HINT)
    })?;
    let hang_up = signal(SignalKind::hangup()).trying("handling SIGHUP")?;
    Ok(AbortOnDropHandle::new(tokio::spawn(list.follow(hang_up))))
}

/// The file of a revocation list.
struct RevocationFile {
    path: PathBuf,
    revocations: Revocations,
    /// The last content, or the last error.
    seen: Option<Result<Vec<u8>, String>>,
}

impl RevocationFile {
    /// Reads the file regularly, and on SIGHUP, until its task ends.
    async fn follow(mut self, mut hang_up: Signal) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // Both are safe to cancel.
            tokio::select! {
                _ = looks.tick() => (),
                Some(()) = hang_up.recv() => (),
            }
            if let Err(why) = self.look().await {
                let path = self.path.display();
                tracing::warn!(
                    %path,
                    consequence = "the previous one stays in force",
                    hint = HINT,
                    "the revocation list cannot be used: {why}",
                );
            }
        }
    }

    /// Applies the list if the file has changed. Reports each error once.
    async fn look(&mut self) -> Result<(), String> {
        let content = read_list(&self.path).await;
        if self.seen.as_ref() == Some(&content) {
            return Ok(());
        }
        let taken = match &content {
            Err(why) => Err(why.clone()),
            Ok(bytes) => match std::str::from_utf8(bytes) {
                Err(_) => Err("it is not text".to_owned()),
                Ok(text) => self.revocations.replace(text).map(drop).map_err(|error| with_causes(&error)),
            },
        };
        self.seen = Some(content);
        taken
    }
}

async fn read_list(path: &Path) -> Result<Vec<u8>, String> {
    let length = tokio::fs::metadata(path).await.map_err(|error| error.to_string())?.len();
    if length > LIST_MAX_BYTES {
        return Err(format!("it has {length} bytes; at most {LIST_MAX_BYTES} are allowed"));
    }
    tokio::fs::read(path).await.map_err(|error| error.to_string())
}

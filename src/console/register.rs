//! The authority's register: who is a member and with which certificates, in a file beside the authority's keys.
//!
//! The rest of the store is the ledger of commands, and what hosts tell again when they are asked. So a console that has
//! lost its store, and still has its authority, comes back with the same members, and with the same ones locked out.
//!
//! **Invariant: a store that knows anybody is right, and the register follows it.** It is read only into one that knows
//! nobody, and written within seconds of each change.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::store::{
    Store, StoreError,
    register::{self, Marks, Register},
};
use crate::files;

/// The file, in the console's folder.
pub(super) const FILE: &str = "authority/register.json";
/// The least time between two writes, for each host in it: of ten thousand that join one after the other it is written
/// every five seconds, with 3 MB each time. Who is revoked is written at once.
const PAUSE_FOR_EACH: Duration = Duration::from_micros(500);

/// The register cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The store refuses.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The file cannot be read or written.
    #[error("the register {path} cannot be used: {source}")]
    File {
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file is no register.
    #[error(
        "the store is new, and the register {path}, which says who its members are, is damaged: {problem}\nhint: bring \
         either back from a backup; without the register, all hosts have to join anew, and revoked certificates are good again"
    )]
    Damaged {
        /// Where.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

/// Tells a store that knows nobody who its members are. Nothing is done if it knows somebody, or there is no register.
///
/// # Errors
/// If the register or the store cannot be used.
pub async fn restore(folder: &Path, store: &Store) -> Result<(), RegisterError> {
    if !register::marks(store.read()).await?.is_empty() {
        return Ok(());
    }
    let path = folder.join(FILE);
    let bytes = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(RegisterError::File { path, source }),
        Ok(bytes) => bytes,
    };
    let damaged =
        |problem: &dyn std::fmt::Display| RegisterError::Damaged { path: path.clone(), problem: problem.to_string() };
    let register: Register = serde_json::from_slice(&bytes).map_err(|error| damaged(&error))?;
    let mut transaction = store.begin().await?;
    register::fill(&mut transaction, &register).await.map_err(|error| damaged(&error))?;
    transaction.commit().await.map_err(StoreError::from)?;
    tracing::warn!(
        hosts = register.hosts.len(),
        certificates = register.certificates.len() + register.issued.len(),
        "the store is new: its members come from the authority's register, and their state from themselves. The ledger \
         of commands, artifacts' labels, configs and API tokens are gone. hint: if there is a backup of console.db, stop and \
         bring it back"
    );
    Ok(())
}

/// Writes the register once, without a console.
///
/// # Errors
/// If the register or the store cannot be used.
pub async fn keep(folder: &Path, store: &Store) -> Result<(), RegisterError> {
    Keeper::new(folder).look(store).await
}

/// Writes the register whenever it has changed.
#[derive(Debug)]
pub(super) struct Keeper {
    path: PathBuf,
    written: Option<(Marks, Instant)>,
}

impl Keeper {
    /// Of the console in this folder.
    pub(super) fn new(folder: &Path) -> Self {
        Self { path: folder.join(FILE), written: None }
    }

    /// Writes it if it may have changed, unless that was just now; then a later look does.
    pub(super) async fn look(&mut self, store: &Store) -> Result<(), RegisterError> {
        let marks = register::marks(store.read()).await?;
        let is_early =
            |of: &Marks, at: &Instant| !marks.revokes_more_than(of) && at.elapsed() < marks.pause(PAUSE_FOR_EACH);
        if self.written.as_ref().is_some_and(|(of, at)| *of == marks || is_early(of, at)) {
            return Ok(());
        }
        let register = register::read(store.read()).await?;
        let file = |source| RegisterError::File { path: self.path.clone(), source };
        let bytes = serde_json::to_vec(&register).map_err(|error| file(error.into()))?;
        files::write_atomically(&self.path, &bytes, files::SECRET_MODE).map_err(file)?;
        self.written = Some((marks, Instant::now()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use muster_topics::name::HostId;

    use super::*;
    use crate::console::{
        store::{host, tests::temporary},
        testing::Fixture,
    };

    #[tokio::test]
    async fn a_new_store_has_the_same_members_and_the_same_ones_locked_out() {
        let fixture = Fixture::new().await;
        let (one, two) = (fixture.member("one").await.id, fixture.member("two").await.id);
        let store = &fixture.shared().store;
        host::revoke(store.write(), two, 77).await.unwrap();
        let (folder, lost) = temporary().await;
        fs::create_dir(folder.path().join("authority")).unwrap();
        restore(folder.path(), &lost).await.unwrap();
        assert!(register::marks(lost.read()).await.unwrap().is_empty(), "there is no register yet");

        Keeper::new(folder.path()).look(store).await.unwrap();
        restore(folder.path(), &lost).await.unwrap();
        assert_eq!(register::read(lost.read()).await.unwrap(), register::read(store.read()).await.unwrap());
        let listed = host::list(lost.read(), None).await.unwrap();
        let ends = |id: HostId| listed.iter().find(|host| host.id == id).unwrap().certificate_expires_ms;
        assert!(ends(one) > 0);
        assert_eq!(ends(two), 0);
        // It knows somebody now, and so knows best.
        host::revoke(lost.write(), one, 78).await.unwrap();
        restore(folder.path(), &lost).await.unwrap();
        assert_eq!(host::list(lost.read(), Some(one)).await.unwrap()[0].certificate_expires_ms, 0);
    }

    #[tokio::test]
    async fn a_damaged_register_is_not_passed_over() {
        let (folder, store) = temporary().await;
        fs::create_dir(folder.path().join("authority")).unwrap();
        for text in [
            "",
            "{}",
            r#"{"hosts": [{"id": "x", "hostname": "h", "facts": "{}", "joined_ms": 1}], "certificates": [], "issued": []}"#,
        ] {
            fs::write(folder.path().join(FILE), text).unwrap();
            let error = restore(folder.path(), &store).await.unwrap_err();
            assert!(matches!(error, RegisterError::Damaged { .. }) && error.to_string().contains("hint:"), "{error}");
            assert!(register::marks(store.read()).await.unwrap().is_empty());
        }
    }
}

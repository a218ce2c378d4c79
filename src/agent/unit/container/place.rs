//! The agent's record of a container that it has started: `<data>/containers/<realm>/<name>/started.json`, and beside it the
//! secrets of its environment.

use std::{collections::BTreeMap, fs, io, path::PathBuf};

use muster_base::files::{PRIVATE_FOLDER, SECRET_MODE, make_folder, write_atomically};
use muster_rules::{plan::Failure, port_lease::EndpointWiring};
use muster_topics::{container::Runtime, diagnostic::Diagnostic, name::Digest, process::Limits};
use serde::{Deserialize, Serialize};

use crate::unit::{failure::may_heal, folders};

/// `started.json`, written before a container is started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ContainerStartRecord {
    pub(super) revision: Digest,
    pub(super) runtime: Runtime,
    /// The frame: what cannot change while it runs.
    pub(super) frame: Digest,
    pub(super) limits: Limits,
    pub(super) wiring: EndpointWiring,
    /// Features of its spec that it runs without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) missing: Option<Diagnostic>,
    /// The boot in which it was started.
    pub(super) boot_id: String,
}

/// Values of secrets by name, for each revision.
pub(super) type KeptSecrets = BTreeMap<Digest, BTreeMap<String, String>>;

/// The folder of a unit.
pub(super) struct UnitFolder(pub(super) PathBuf);

impl UnitFolder {
    fn file(&self) -> PathBuf {
        self.0.join("started.json")
    }

    /// The folders of its probes' shims.
    pub(super) fn probes(&self) -> PathBuf {
        self.0.join("probe")
    }

    /// What was started last, if anything. An unreadable record counts as something else.
    pub(super) fn started(&self) -> Result<Option<ContainerStartRecord>, Failure> {
        match fs::read(self.file()) {
            Ok(content) => Ok(serde_json::from_slice(&content).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failure("read", &error)),
        }
    }

    pub(super) fn write(&self, started: &ContainerStartRecord) -> Result<(), Failure> {
        let write = || {
            make_folder(&self.0, PRIVATE_FOLDER)?;
            write_atomically(&self.file(), &serde_json::to_vec(started)?, SECRET_MODE)
        };
        write().map_err(|error: io::Error| self.failure("written", &error))
    }

    fn secrets_file(&self) -> PathBuf {
        self.0.join("secrets.json")
    }

    /// The secrets that are kept for the environment of revisions, so that a container starts without a network.
    pub(super) fn secrets(&self) -> Result<KeptSecrets, Failure> {
        match fs::read(self.secrets_file()) {
            // What is unreadable is fetched again.
            Ok(content) => Ok(serde_json::from_slice(&content).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(KeptSecrets::new()),
            Err(error) => Err(self.failure("read", &error)),
        }
    }

    /// Keeps the secrets of these revisions, and no others.
    pub(super) fn keep_secrets(&self, secrets: &KeptSecrets) -> Result<(), Failure> {
        let write = || {
            make_folder(&self.0, PRIVATE_FOLDER)?;
            write_atomically(&self.secrets_file(), &serde_json::to_vec(secrets)?, SECRET_MODE)
        };
        write().map_err(|error: io::Error| self.failure("written", &error))
    }

    pub(super) fn remove(&self) -> Result<(), Failure> {
        folders::remove(&self.0).map_err(|error| self.failure("removed", &error))
    }

    pub(super) fn failure(&self, what: &str, error: &io::Error) -> Failure {
        may_heal(format!("the unit's folder {} cannot be {what}: {error}", self.0.display()))
    }
}

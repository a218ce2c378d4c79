//! What the agent keeps of a container that it has started: `<data>/containers/<realm>/<name>/started.json`.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use muster_topics::{
    Millis,
    container::Runtime,
    name::{Digest, UnitName},
    process::Limits,
};
use serde::{Deserialize, Serialize};

use super::may_heal;
use crate::{
    agent::unit::kind::Trace,
    files::{PRIVATE_FOLDER, PUBLIC_MODE, make_folder, write_atomically},
    rules::{lease::Wiring, plan::Failure},
};

/// `started.json`, written before a container is started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Started {
    pub(super) revision: Digest,
    pub(super) runtime: Runtime,
    /// What cannot change while it runs.
    pub(super) frame: Digest,
    #[serde(default)]
    pub(super) limits: Limits,
    #[serde(default)]
    pub(super) wiring: Wiring,
    /// In which boot of the host.
    pub(super) boot_id: String,
}

/// The folder of a unit.
pub(super) struct Place(pub(super) PathBuf);

impl Place {
    fn file(&self) -> PathBuf {
        self.0.join("started.json")
    }

    /// What was started last, if anything was. What cannot be read any more counts as something else.
    pub(super) fn started(&self) -> Result<Option<Started>, Failure> {
        match fs::read(self.file()) {
            Ok(content) => Ok(serde_json::from_slice(&content).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failure("read", &error)),
        }
    }

    pub(super) fn write(&self, started: &Started) -> Result<(), Failure> {
        let write = || {
            make_folder(&self.0, PRIVATE_FOLDER)?;
            write_atomically(&self.file(), &serde_json::to_vec(started)?, PUBLIC_MODE)
        };
        write().map_err(|error: io::Error| self.failure("written", &error))
    }

    pub(super) fn remove(&self) -> Result<(), Failure> {
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(self.failure("removed", &error)),
            _ => {}
        }
        // The realm's folder, if this was the last unit in it.
        if let Some(realm) = self.0.parent() {
            let _ = fs::remove_dir(realm);
        }
        Ok(())
    }

    fn failure(&self, what: &str, error: &io::Error) -> Failure {
        may_heal(format!("the unit's folder {} cannot be {what}: {error}", self.0.display()))
    }
}

/// All units that were ever started, and not removed since.
pub(super) fn traces(folder: &Path) -> io::Result<Vec<Trace>> {
    let mut traces = Vec::new();
    for realm in names(folder)? {
        for unit in names(&folder.join(&realm))? {
            // Whatever else lies there was not put there by an agent.
            let Ok(name) = format!("{realm}/{unit}").parse::<UnitName>() else { continue };
            let changed = fs::metadata(folder.join(&realm).join(&unit))?.modified()?;
            let since_epoch = changed.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let at_ms = Millis::try_from(since_epoch.as_millis()).unwrap_or(Millis::MAX);
            traces.push(Trace { unit: name, at_ms });
        }
    }
    Ok(traces)
}

/// The names in a folder that are folders themselves; none if there is no such folder.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.extend(entry.file_name().into_string());
        }
    }
    Ok(names)
}

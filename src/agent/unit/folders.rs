//! The folders in which a kind keeps its units on this host: `<folder>/<realm>/<name>/`.

use std::{fs, io, path::Path, time::SystemTime};

use muster_base::mount::remove_folder;
use muster_topics::{Millis, name::UnitName};

use super::kind::UnitTrace;

/// Returns all units that were ever started and not removed since.
pub(super) fn traces(folder: &Path) -> io::Result<Vec<UnitTrace>> {
    let mut traces = Vec::new();
    for realm in names(folder)? {
        for unit in names(&folder.join(&realm))? {
            // Anything else there was not created by an agent.
            let Ok(name) = format!("{realm}/{unit}").parse::<UnitName>() else { continue };
            // Each start rewrites `started.json`, which changes the folder.
            let changed = fs::metadata(folder.join(&realm).join(&unit))?.modified()?;
            let since_epoch = changed.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            traces.push(UnitTrace {
                unit: name,
                at_ms: Millis::try_from(since_epoch.as_millis()).unwrap_or(Millis::MAX),
            });
        }
    }
    Ok(traces)
}

/// Returns the names of folders in a folder; none if it does not exist.
pub(super) fn names(folder: &Path) -> io::Result<Vec<String>> {
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

/// Removes a unit's folder with its content, and the realm's if it was the last one there.
pub(super) fn remove(unit: &Path) -> io::Result<()> {
    remove_folder(unit)?;
    if let Some(realm) = unit.parent() {
        let _ = fs::remove_dir(realm);
    }
    Ok(())
}

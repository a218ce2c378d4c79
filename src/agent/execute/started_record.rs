//! Records each started command in a file beside its folder: `exec/<id>.json`.
//!
//! An agent that lost its store needs it: the shim knows how its program ended, and the file says which command
//! that was. Nothing is synced, because no program survives a crash of the machine.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use muster_base::files;
use muster_rules::mark::{sealed, unsealed};
use muster_topics::{command::Command, name::CommandId};
use tokio::task::spawn_blocking;

fn path(folder: &Path, id: CommandId) -> PathBuf {
    folder.join(format!("{id}.json"))
}

/// Writes a command's note. Failing to do so does not stop the command: the note protects against a second fault.
pub(super) async fn write(folder: PathBuf, id: CommandId, body: String) {
    let write = move || {
        files::make_folder(&folder, files::PRIVATE_FOLDER)?;
        files::replace(&path(&folder, id), sealed(&body).as_bytes(), files::SECRET_MODE)
    };
    let written = spawn_blocking(write).await.map_err(io::Error::other).and_then(|written| written);
    if let Err(error) = written {
        tracing::warn!(command.id = %id, %error, "a running command cannot be recorded");
    }
}

/// Returns all readable notes, each with its text.
pub(super) async fn all(folder: PathBuf) -> Vec<(Command, String)> {
    let read = move || {
        let Ok(entries) = fs::read_dir(&folder) else { return Vec::new() };
        let read = |path: PathBuf| {
            let bytes = fs::read(&path).ok()?;
            let text = unsealed(&bytes)?;
            let command = serde_json::from_str::<Command>(text).ok()?;
            Some((command, text.to_owned()))
        };
        let files = entries.flatten().map(|entry| entry.path());
        files.filter(|path| path.extension().is_some_and(|extension| extension == "json")).filter_map(read).collect()
    };
    spawn_blocking(read).await.unwrap_or_default()
}

/// Removes a command's note.
pub(super) async fn remove(folder: &Path, id: CommandId) {
    match tokio::fs::remove_file(path(folder, id)).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(command.id = %id, %error, "the record of a finished command cannot be deleted");
        }
        _ => {}
    }
}

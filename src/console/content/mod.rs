//! Artifacts, their manifests, and configs: the content that hosts download.
//!
//! Modules, in reading order: [`upload`] (adds artifacts), [`config`] (adds and shows configs and manifests), [`download`] (serves
//! them to hosts), [`damaged`] (what is not what was stored),
//! [`reference_check`] (validates a unit's references), [`holder`] (who needs what), [`removal`] (removes unused content).
//!
//! **Invariant: a file in the folder `artifacts` whose name is a hash is complete and has that hash.** It
//! is written under another name, synced, and renamed.
//!
//! **Invariant: the content behind a label never changes**, for artifacts and configs, not even after a
//! removal.
//!
//! **Invariant: a config leaves the console with its secrets masked**, except for the host that installs it.
//!
//! **Invariant: content that a unit needs is not removed.** Labelling, ordering and removing hold the lock `ContentFolder::lock`.

mod config;
mod damaged;
pub(super) mod download;
mod holder;
mod reference_check;
mod removal;
mod upload;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use axum::http::StatusCode;
use muster_topics::name::Digest;

pub(super) use self::{
    damaged::DamagedContent,
    holder::{ContentHolder, holders, refuse_held},
    reference_check::{check_parts, check_unit, unit_faults},
};
use muster_base::files::{PRIVATE_FOLDER, make_folder};

use super::{error::Error, state::ContentFolder, store::Store};

/// The prefix of unfinished uploads.
const UPLOAD_PREFIX: &str = ".upload-";

/// Creates the folder for artifacts, and removes interrupted uploads.
pub(super) fn prepare_folder(folder: &Path) -> io::Result<()> {
    make_folder(folder, PRIVATE_FOLDER)?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(UPLOAD_PREFIX) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// The path of the blob with this hash, if it exists.
pub(super) fn artifact_path(content: &ContentFolder, sha256: &Digest) -> PathBuf {
    content.folder.join(sha256.as_str())
}

/// Refuses uploads on a nearly full disk, whose reserve is for what must be written.
pub(super) fn check_room(store: &Store) -> Result<(), Error> {
    if !store.is_short_of_room() {
        return Ok(());
    }
    Err(Error::new(
        StatusCode::INSUFFICIENT_STORAGE,
        "disk_full",
        "the console's disk is full: nothing of this upload was stored",
    )
    .hint(format!("of the console's folder (data_dir): {}; then try again", muster_sqlite::room::HINT)))
}

pub(super) fn disk(what: &'static str, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::new(
            StatusCode::INSUFFICIENT_STORAGE,
            "disk_full",
            format!("{what} failed: the console's disk is full"),
        )
        .hint("free space, and try again"),
        _ => Error::internal(what, error),
    }
}

/// Returns the next free version: the last number is incremented.
fn next_version(version: &str, taken: &[String]) -> String {
    let digits = version.len() - version.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (stem, number) = version.split_at(digits);
    // A version without a number at its end, or with too large a one, gets one.
    let (stem, number) = match number.parse::<u64>() {
        Ok(number) => (stem.to_owned(), number),
        Err(_) => (format!("{version}-"), 1),
    };
    let free = (1..=taken.len() as u64 + 1)
        .map(|step| format!("{stem}{}", number.saturating_add(step)))
        .find(|candidate| !taken.contains(candidate));
    free.unwrap_or_else(|| format!("{version}-2"))
}

#[cfg(test)]
mod tests;

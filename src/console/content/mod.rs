//! Artifacts, their manifests, and configs: what hosts fetch.
//!
//! Modules, in reading order: [`upload`] (artifacts come in), [`config`] (configs and manifests do, and are shown),
//! [`check`] (whether all that a unit's spec names is here, and fits together), [`removal`] (what nobody needs goes).
//!
//! **Invariant: a file in the folder `artifacts` whose name is a hash is whole and has that hash.** It
//! is written beside, synced, and renamed.
//!
//! **Invariant: neither an artifact's nor a config's content ever changes under its labels**, not even after it was
//! removed.
//!
//! **Invariant: a config leaves the console with its secrets masked**, but for the host that installs it.
//!
//! **Invariant: what a unit needs is not removed.** Whoever labels, orders or removes holds `Shared::content` meanwhile.

mod check;
mod config;
mod removal;
mod upload;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use axum::http::StatusCode;
use muster_topics::name::Digest;

pub(super) use self::check::{check_parts, check_unit, unit_faults};
use self::upload::UPLOAD_PREFIX;
use super::{Error, Shared};
use crate::files::{PRIVATE_FOLDER, make_folder};

/// Makes the folder for artifacts, and removes what an interrupted upload left.
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

/// Where the blob of this hash lies, if it is there.
pub(super) fn artifact_path(shared: &Shared, sha256: &Digest) -> PathBuf {
    shared.artifacts.join(sha256.as_str())
}

/// What is uploaded leaves a full disk's reserve to what must be written.
fn check_room(shared: &Shared) -> Result<(), Error> {
    if !shared.store.is_short_of_room() {
        return Ok(());
    }
    Err(Error::new(
        StatusCode::INSUFFICIENT_STORAGE,
        "disk_full",
        "the console's disk is full, and what is kept in reserve on it is not for uploads: nothing of this was stored",
    )
    .hint(format!("of the console's folder (data_dir): {}; then try again", crate::room::HINT)))
}

fn disk(what: &'static str, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::new(
            StatusCode::INSUFFICIENT_STORAGE,
            "disk_full",
            format!("{what} failed: the console's disk is full"),
        )
        .hint("make room, and try again"),
        _ => Error::internal(what, error),
    }
}

/// A version that is not taken, after one that is: its last number is counted up.
fn next_version(version: &str, taken: &[String]) -> String {
    let digits = version.len() - version.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (stem, number) = version.split_at(digits);
    // Without a number at its end, or with one beyond all measure, it gets one.
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

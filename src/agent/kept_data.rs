//! What yunos have written, after a document has removed them: their work folders, in `kept/<realm>/<name>`, until a unit
//! of that name is there again, or is removed with its data.
//!
//! Nothing is deleted here, where the agent's loop would wait for it: what is not kept any more goes with the unit's folder.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use muster_base::{
    clock::now_ms,
    files::{PASSABLE_FOLDER, PRIVATE_FOLDER, make_folder},
};
use muster_topics::name::UnitName;

/// The folder of units in the agent's folder, and that of what they left.
pub(super) const UNITS: &str = "units";
const KEPT: &str = "kept";
/// The work folder in a unit's.
pub(super) const WORK: &str = "work";

/// Keeps the work folder of a unit that has stopped and is about to be removed; one that is empty is not kept.
///
/// # Errors
/// If it cannot be moved.
pub(super) fn keep(data_dir: &Path, unit: &UnitName) -> io::Result<()> {
    let work = folder(data_dir, unit).join(WORK);
    let is_empty = match fs::read_dir(&work) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => return Err(error),
    };
    if is_empty {
        return Ok(());
    }
    discard(data_dir, unit)?;
    let kept = kept(data_dir, unit);
    make_folder(kept.parent().unwrap_or(data_dir), PRIVATE_FOLDER)?;
    fs::rename(work, kept)
}

/// Gives a unit that is about to start what one of its name has left, unless it has a work folder already.
///
/// # Errors
/// If it cannot be moved.
pub(super) fn restore(data_dir: &Path, unit: &UnitName) -> io::Result<()> {
    let work = folder(data_dir, unit).join(WORK);
    let kept = kept(data_dir, unit);
    if fs::symlink_metadata(&work).is_ok() || !kept.is_dir() {
        return Ok(());
    }
    make_folder(work.parent().unwrap_or(data_dir), PASSABLE_FOLDER)?;
    fs::rename(kept, work)
}

/// Moves what a unit of this name has left into the folder of the one that is about to be removed.
///
/// # Errors
/// If it cannot be moved.
pub(super) fn discard(data_dir: &Path, unit: &UnitName) -> io::Result<()> {
    let kept = kept(data_dir, unit);
    if !kept.is_dir() {
        return Ok(());
    }
    let folder = folder(data_dir, unit);
    make_folder(&folder, PASSABLE_FOLDER)?;
    fs::rename(kept, folder.join(format!("discarded-{}", now_ms())))
}

fn folder(data_dir: &Path, unit: &UnitName) -> PathBuf {
    data_dir.join(UNITS).join(unit.as_str())
}

fn kept(data_dir: &Path, unit: &UnitName) -> PathBuf {
    data_dir.join(KEPT).join(unit.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_kept_and_given_back_once() {
        let data = tempfile::tempdir().unwrap();
        let (unit, other): (UnitName, UnitName) = ("shop/till".parse().unwrap(), "shop/scale".parse().unwrap());
        let work = data.path().join("units/shop/till/work");
        // There is nothing to keep, or to give back.
        keep(data.path(), &unit).unwrap();
        restore(data.path(), &unit).unwrap();
        discard(data.path(), &unit).unwrap();
        fs::create_dir_all(&work).unwrap();
        keep(data.path(), &unit).unwrap();
        assert!(work.exists() && !data.path().join("kept/shop/till").exists());
        fs::write(work.join("sales"), "1").unwrap();
        keep(data.path(), &unit).unwrap();
        // A removal that is tried again keeps it as well.
        keep(data.path(), &unit).unwrap();
        assert!(!work.exists());
        restore(data.path(), &other).unwrap();
        restore(data.path(), &unit).unwrap();
        assert_eq!(fs::read_to_string(work.join("sales")).unwrap(), "1");
        // A unit that has a work folder keeps that one.
        keep(data.path(), &unit).unwrap();
        fs::create_dir_all(&work).unwrap();
        restore(data.path(), &unit).unwrap();
        assert!(!work.join("sales").exists());
        discard(data.path(), &unit).unwrap();
        assert!(!data.path().join("kept/shop/till").exists());
    }
}

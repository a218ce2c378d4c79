//! The form of what is stored: a number by which a build refuses what another build has stored in a form that it does not read.
//!
//! Until the first release, stores, files and wire change in place; each such change counts [`FORM`] up. From then on it stays,
//! and stores are migrated (`topics/decisions/0119-stores-and-wire-change-in-place-until-the-first-release.md`).
//!
//! The number is in the header of each store, and the member `form` of each document that is read without a store.
//!
//! **Invariant: a folder is refused before anything in it is changed, and what is damaged is not taken for another form.** In the header of a
//! store the number stands with its complement, and only a header that has neither number is of a build that knew none.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use serde_json::Value;

/// The form that this build writes and reads.
pub const FORM: u16 = 2;

/// SQLite's `application_id` of each store: the letters `must`.
pub const APPLICATION_ID: u32 = 0x6d75_7374;
/// SQLite's `user_version` of each store: the form and its complement.
pub const USER_VERSION: u32 = (FORM as u32) << 16 | !FORM as u32 & 0xffff;

/// The header of SQLite's files, of which only this is read here: how it begins, and both numbers.
const HEADER_BYTES: usize = 100;
const MAGIC: &[u8; 16] = b"SQLite format 3\0";
const USER_VERSION_AT: usize = 60;
const APPLICATION_ID_AT: usize = 68;

/// What was stored by another build, in another form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, miette::Diagnostic)]
#[error(
    "{} was written by a build of muster from before its first release, whose stores and files are no \
     longer supported",
    path.display()
)]
pub struct OtherForm {
    /// The file.
    pub path: PathBuf,
    /// What an operator can do.
    #[help]
    pub hint: String,
}

impl OtherForm {
    /// Of a file in a role's folder. `again` is what is to be done after the folder was moved away.
    #[must_use]
    pub fn in_folder(path: &Path, folder: &Path, again: &str) -> Self {
        let folder = folder.display();
        let hint = format!(
            "nothing was changed: use the build that wrote it, or stop with that build all that it runs, move {folder} away, and {again}"
        );
        Self { path: path.to_owned(), hint }
    }
}

/// Which form a store has, by its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreForm {
    /// There is no file, or an empty one.
    New,
    /// That of this build.
    Present,
    /// That of another build.
    Other,
    /// The header is damaged, or is none.
    Damaged,
}

/// Returns which form a store has. Only its header is read, so that nothing is changed.
///
/// # Errors
/// If it cannot be read.
pub fn of_store(path: &Path) -> io::Result<StoreForm> {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(StoreForm::New),
        opened => opened?.take(HEADER_BYTES as u64).read_to_end(&mut header)?,
    };
    Ok(of_header(&header))
}

fn of_header(header: &[u8]) -> StoreForm {
    let number = |at: usize| header.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
    if header.is_empty() {
        return StoreForm::New;
    }
    if header.len() < HEADER_BYTES || !header.starts_with(MAGIC) {
        return StoreForm::Damaged;
    }
    match (number(APPLICATION_ID_AT), number(USER_VERSION_AT)) {
        (_, Some(USER_VERSION)) => StoreForm::Present,
        (Some(0), Some(0)) => StoreForm::Other,
        (_, Some(version)) if version >> 16 == !version & 0xffff => StoreForm::Other,
        _ => StoreForm::Damaged,
    }
}

/// Checks that a store is not of another form. What cannot be read is left to who opens it.
///
/// # Errors
/// If it is. `refusal` makes the error of its path.
pub fn check_store(path: &Path, refusal: impl FnOnce(&Path) -> OtherForm) -> Result<(), OtherForm> {
    if matches!(of_store(path), Ok(StoreForm::Other)) { Err(refusal(path)) } else { Ok(()) }
}

/// Whether this is a whole JSON document of another form: one without a number, or with another.
#[must_use]
pub fn is_other_json(json: &[u8]) -> bool {
    match serde_json::from_slice(json) {
        Ok(Value::Object(members)) => match members.get("form") {
            None => true,
            Some(form) => form.is_u64() && *form != FORM,
        },
        Ok(Value::Array(_)) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(application_id: u32, user_version: u32) -> Vec<u8> {
        let mut header = vec![0; HEADER_BYTES];
        header[..16].copy_from_slice(MAGIC);
        header[USER_VERSION_AT..][..4].copy_from_slice(&user_version.to_be_bytes());
        header[APPLICATION_ID_AT..][..4].copy_from_slice(&application_id.to_be_bytes());
        header
    }

    #[test]
    fn header_tells_forms_apart() {
        let version = |form: u16| u32::from(form) << 16 | u32::from(!form);
        for (header, form) in [
            (Vec::new(), StoreForm::New),
            (header(APPLICATION_ID, USER_VERSION), StoreForm::Present),
            (header(0, 0), StoreForm::Other),
            (header(APPLICATION_ID, version(FORM + 1)), StoreForm::Other),
            (header(APPLICATION_ID, version(0)), StoreForm::Other),
            (header(APPLICATION_ID, 0), StoreForm::Damaged),
            (header(0, 7), StoreForm::Damaged),
            (header(0, 0)[..99].to_vec(), StoreForm::Damaged),
            (vec![0; HEADER_BYTES], StoreForm::Damaged),
        ] {
            assert_eq!(of_header(&header), form, "{header:?}");
        }
    }

    #[test]
    fn flipped_bit_makes_no_other_form() {
        let whole = header(APPLICATION_ID, USER_VERSION);
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(of_header(&bytes), StoreForm::Other, "bit {bit}");
        }
    }

    #[test]
    fn json_without_the_number_is_of_another_form() {
        for (json, is_other) in [
            (format!("{{\"form\":{FORM},\"a\":1}}"), false),
            ("{\"a\":1}".to_owned(), true),
            (format!("{{\"form\":{}}}", FORM + 1), true),
            ("{\"a\":".to_owned(), false),
            ("{\"form\":\"x\"}".to_owned(), false),
            ("[]".to_owned(), true),
            (String::new(), false),
        ] {
            assert_eq!(is_other_json(json.as_bytes()), is_other, "{json}");
        }
    }
}

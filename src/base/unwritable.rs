//! Errors of a file system on which nothing can be written: it is full, or read-only.

use std::io;

/// The hint of all errors about a full disk.
pub const HINT: &str = "make room on that disk (`df -h` shows how full it is, `df -i` how many files it has)";
/// The hint of all errors about a file system that is mounted read-only.
pub const READ_ONLY_HINT: &str =
    "it is mounted read-only, as after an error of the disk (`dmesg` shows it): mount it writable";

/// Whether writing a file failed because nothing can be written on its file system: it is full, or read-only.
#[must_use]
pub fn is_missing_for(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::ReadOnlyFilesystem
    )
}

/// The hint that is appended to an error of a file if nothing can be written; otherwise empty.
#[must_use]
pub fn advice(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::ReadOnlyFilesystem {
        return format!(". hint: {READ_ONLY_HINT}");
    }
    if is_missing_for(error) { format!(". hint: this machine's disk is full: {HINT}") } else { String::new() }
}

/// What an operator can do about a file that cannot be written: make room, if that is missing, or `otherwise`.
#[must_use]
pub fn hint_or(error: &io::Error, otherwise: &'static str) -> String {
    match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => READ_ONLY_HINT.to_owned(),
        _ if is_missing_for(error) => format!("this machine's disk is full: {HINT}"),
        _ => otherwise.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hint_says_what_is_missing() {
        for (kind, words) in [
            (io::ErrorKind::StorageFull, "make room"),
            (io::ErrorKind::QuotaExceeded, "make room"),
            (io::ErrorKind::ReadOnlyFilesystem, "mounted read-only"),
            (io::ErrorKind::PermissionDenied, "may write"),
        ] {
            let error = io::Error::from(kind);
            let hint = hint_or(&error, "see that the user may write there");
            assert!(hint.contains(words), "{kind}: {hint}");
            assert_eq!(advice(&error).is_empty(), kind == io::ErrorKind::PermissionDenied);
            assert!(advice(&error).is_empty() || advice(&error).contains(words), "{kind}");
        }
    }
}

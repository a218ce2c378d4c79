//! Errors of a file system on which nothing can be written: it is full, or read-only.

use std::io;

/// The hint of all errors about a full disk.
pub const HINT: &str = "free space on that disk (`df -h` shows how full it is, `df -i` how many files it has)";
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

/// What an operator can do about a file that cannot be written, if nothing can be written on its file system.
#[must_use]
pub fn hint(error: &io::Error) -> Option<String> {
    match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => Some(READ_ONLY_HINT.to_owned()),
        _ if is_missing_for(error) => Some(format!("this machine's disk is full: {HINT}")),
        _ => None,
    }
}

/// What an operator can do about a file that cannot be written: make room, if that is missing, or `otherwise`.
#[must_use]
pub fn hint_or(error: &io::Error, otherwise: &'static str) -> String {
    hint(error).unwrap_or_else(|| otherwise.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hint_says_what_is_missing() {
        for (kind, words) in [
            (io::ErrorKind::StorageFull, "free space"),
            (io::ErrorKind::QuotaExceeded, "free space"),
            (io::ErrorKind::ReadOnlyFilesystem, "mounted read-only"),
            (io::ErrorKind::PermissionDenied, "may write"),
        ] {
            let error = io::Error::from(kind);
            let told = hint_or(&error, "see that the user may write there");
            assert!(told.contains(words), "{kind}: {told}");
            assert_eq!(hint(&error).is_none(), kind == io::ErrorKind::PermissionDenied);
            assert!(hint(&error).is_none_or(|hint| hint.contains(words)), "{kind}");
        }
    }
}

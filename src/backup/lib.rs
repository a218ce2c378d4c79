//! Backups of a console: one encrypted file, which the console writes while it runs, and which is checked and restored
//! without a console.
//!
//! A backup is a tar archive ([`archive`]) inside an age file ([`age`]): encrypted to public keys ([`key`]), so that the
//! console keeps no key that opens it. The programs `age` and `tar` open one, too. [`restore`] puts one into a folder;
//! [`restored_mark`] tells the console at its next start.
//!
//! **Invariant: a backup that was cut or changed anywhere is refused**: each 64 KiB are authenticated, with their number
//! and whether they are the last.
//!
//! **Invariant: memory is bounded**: content is streamed, and what is read whole has a limit.

pub mod age;
pub mod archive;
mod error;
pub mod key;
pub mod restore;
pub mod restored_mark;

pub use error::BackupError;

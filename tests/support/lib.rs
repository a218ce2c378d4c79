//! What the tests of several crates share.
//!
//! [`committed`] compares generated files with the committed ones, and writes them anew on request; [`markdown`] makes
//! pages; [`disk`] is a disk that fails.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

pub mod committed;
pub mod disk;
pub mod markdown;

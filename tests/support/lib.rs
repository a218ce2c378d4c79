//! What the tests of several crates share.
//!
//! [`committed`] compares generated files with the committed ones, and writes them anew on request; [`markdown`] makes
//! pages; [`snapshots`] are texts that people read, each held by a file; [`disk`] is a disk that fails; [`slot`] tells test
//! processes that run at the same time apart.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

pub mod committed;
pub mod disk;
pub mod markdown;
pub mod slot;
pub mod snapshots;

//! What unit tests of several crates share.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

pub mod disk;

//! When a file that was installed is compared with its digest again, and what follows if it was changed.
//!
//! Whoever writes, replaces or touches a file changes its identity. So a file whose identity is as it was when its content
//! was compared last is taken for unchanged, and costs no more than a look. A disk may lose what nobody has written, hence
//! the digest once a day.
//!
//! **Invariant: times are of the machine's run, not of the wall clock**: no setting of the clock has all files read at once,
//! nor none any more.

use muster_topics::{Millis, diagnostic::Diagnostic, name::Digest};

/// After how long the content is compared although the identity is the same.
pub const DIGEST_AGAIN_MS: Millis = 24 * 3_600_000;

/// How much is read for that in a second, of all files together: about a hundredth of a processor while it goes on (SHA-256
/// does 400 MB/s on a small one), and with 20 GB a day 50 s, below the thousandth that an agent may use at rest.
pub const DIGEST_BYTES_PER_S: u64 = 4 * 1024 * 1024;

/// How often a unit is put right within [`CORRECTIONS_WITHIN_MS`]: each time may fetch an artifact.
pub const CORRECTIONS_MAX: usize = 3;

/// The time in which corrections of a unit count together.
pub const CORRECTIONS_WITHIN_MS: Millis = 3_600_000;

/// What changes when a file is written, replaced or touched. Times are in seconds and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    /// Its file system.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
    /// Its length.
    pub size_bytes: u64,
    /// When its content was changed.
    pub modified: (i64, i64),
    /// When its content, or anything else of it, was changed.
    pub changed: (i64, i64),
}

/// A file whose content was compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComparedFile {
    /// Its identity.
    pub identity: FileIdentity,
    /// When its content was compared.
    pub digested_ms: Millis,
    /// Whether that was as it should be.
    pub is_whole: bool,
    /// When it was last seen as it should be, by its identity.
    pub whole_ms: Option<Millis>,
}

/// What to do about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileCheck {
    /// Nothing.
    Unchanged,
    /// Compare its content.
    Digest,
    /// Put it right: it is gone, or its content is known to be another.
    Changed,
}

/// Returns what to do about a file, by what is known of it and what is seen of it now.
#[must_use]
pub fn next_check(known: Option<&ComparedFile>, seen: Option<&FileIdentity>, now_ms: Millis) -> FileCheck {
    let Some(seen) = seen else { return FileCheck::Changed };
    let is_fresh = |known: &ComparedFile| (0..DIGEST_AGAIN_MS).contains(&now_ms.saturating_sub(known.digested_ms));
    match known {
        Some(known) if known.identity == *seen && is_fresh(known) => {
            if known.is_whole {
                FileCheck::Unchanged
            } else {
                FileCheck::Changed
            }
        }
        _ => FileCheck::Digest,
    }
}

/// What was found of the content that an instance was started from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContentReport {
    /// The revision that it was started as.
    pub revision: Option<Digest>,
    /// What differs, each with what was done about it if that failed.
    pub changed: Vec<Diagnostic>,
    /// Whether it was put right.
    pub is_corrected: bool,
    /// Until when all of it was seen as it should be, in clock ticks since the machine's start; `None` if this agent has not
    /// seen it so.
    pub whole_ticks: Option<u64>,
}

impl ContentReport {
    /// Whether a process that its shim has started again may run from what was changed: it began after that was last seen
    /// as it should be. Of what this agent has not seen before nothing is known, and nothing is restarted for that.
    #[must_use]
    pub fn may_be_run(&self, start_ticks: u64, restarts: u32) -> bool {
        restarts > 0 && !self.changed.is_empty() && self.whole_ticks.is_some_and(|whole| start_ticks > whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: FileIdentity =
        FileIdentity { device: 1, inode: 2, size_bytes: 3, modified: (4, 5), changed: (6, 7) };
    const NOW_MS: Millis = 400 * 86_400_000;

    fn known(digested_ms: Millis) -> ComparedFile {
        ComparedFile { identity: IDENTITY, digested_ms, is_whole: true, whole_ms: Some(NOW_MS) }
    }

    #[test]
    fn content_is_compared_after_a_change_and_once_a_day() {
        let check = |digested_ms, seen: Option<&FileIdentity>| next_check(Some(&known(digested_ms)), seen, NOW_MS);
        assert_eq!(check(NOW_MS, Some(&IDENTITY)), FileCheck::Unchanged);
        assert_eq!(check(NOW_MS - DIGEST_AGAIN_MS + 1, Some(&IDENTITY)), FileCheck::Unchanged);
        assert_eq!(check(NOW_MS - DIGEST_AGAIN_MS, Some(&IDENTITY)), FileCheck::Digest);
        // What was noted in another run of the machine says nothing.
        assert_eq!(check(NOW_MS + 1, Some(&IDENTITY)), FileCheck::Digest);
        assert_eq!(check(NOW_MS, None), FileCheck::Changed);
        assert_eq!(next_check(None, Some(&IDENTITY), NOW_MS), FileCheck::Digest);
        assert_eq!(next_check(None, None, NOW_MS), FileCheck::Changed);
        // What was found to be another is not read again and again.
        let damaged = |digested_ms| ComparedFile { is_whole: false, ..known(digested_ms) };
        assert_eq!(next_check(Some(&damaged(NOW_MS)), Some(&IDENTITY), NOW_MS), FileCheck::Changed);
        let old = damaged(NOW_MS - DIGEST_AGAIN_MS);
        assert_eq!(next_check(Some(&old), Some(&IDENTITY), NOW_MS), FileCheck::Digest);
        let others = [
            FileIdentity { device: 9, ..IDENTITY },
            FileIdentity { inode: 9, ..IDENTITY },
            FileIdentity { size_bytes: 9, ..IDENTITY },
            FileIdentity { modified: (4, 9), ..IDENTITY },
            FileIdentity { changed: (9, 7), ..IDENTITY },
        ];
        for other in &others {
            assert_eq!(check(NOW_MS, Some(other)), FileCheck::Digest, "{other:?}");
        }
    }

    #[test]
    fn only_a_process_that_began_after_the_content_was_whole_may_run_it() {
        let seen = |whole_ticks, changed: &[&str]| ContentReport {
            whole_ticks,
            changed: changed.iter().map(|one| Diagnostic::from(*one)).collect(),
            ..ContentReport::default()
        };
        assert!(seen(Some(100), &["config.json"]).may_be_run(101, 1));
        assert!(!seen(Some(100), &["config.json"]).may_be_run(100, 1), "it began before");
        assert!(
            !seen(Some(100), &["config.json"]).may_be_run(101, 0),
            "the agent has started it, from what it compared"
        );
        assert!(!seen(None, &["config.json"]).may_be_run(101, 1), "nothing is known of before");
        assert!(!seen(Some(100), &[]).may_be_run(101, 1), "nothing was changed");
    }
}

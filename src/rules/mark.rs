//! Notices that a store was lost or went back, by a mark that is kept outside of it.
//!
//! The store counts its *steps*: each command that it accepts, and each whose work is about to begin. The mark is updated
//! at each step before the step takes effect. So a store with fewer steps than its mark has lost some, whatever the
//! cause: a deleted write-ahead log, a restored backup, a replaced file.

use muster_topics::Millis;
use muster_topics::count::counted;

/// How far a store has advanced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HighWaterMark {
    /// The store's random id, drawn when it was created; 0 if it has none yet.
    pub store: i64,
    /// The number of its steps.
    pub steps: i64,
    /// The latest issue time of a command that it has journalled.
    pub issued_ms: Millis,
    /// The last epoch of the agent that was started with it.
    pub epoch: i64,
}

/// What a store has lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreLoss {
    /// Everything: it was damaged and set aside, and a new one was created.
    Damaged,
    /// Everything: it is missing or empty.
    Gone,
    /// It was replaced by another store.
    Swapped,
    /// Its last steps: an older copy was restored.
    SetBack {
        /// How many steps.
        steps: i64,
    },
    /// The mark itself, so that a loss cannot be detected.
    Unmarked,
    /// Some rows with wrong checksums.
    Rows {
        /// How many rows.
        rows: usize,
    },
}

impl std::fmt::Display for StoreLoss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Damaged => write!(f, "it was damaged, and a new one was made"),
            Self::Gone => write!(f, "it was deleted or emptied, and a new one was made"),
            Self::Swapped => write!(f, "it was replaced by another store"),
            Self::SetBack { steps } => {
                write!(
                    f,
                    "it was set back by {}: it is an older copy, or lacks its last writes",
                    counted(steps, "step")
                )
            }
            Self::Unmarked => write!(f, "its mark was deleted or damaged, so nothing shows whether it was set back"),
            Self::Rows { rows } => write!(f, "{rows} damaged rows in it were set aside"),
        }
    }
}

/// What was found in place of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundStore {
    /// A store, and how far it has advanced.
    Store(HighWaterMark),
    /// No store, or an empty one.
    Nothing,
    /// A damaged store.
    Damaged,
}

/// Returns what a store has lost. `mark` is `None` if it is unreadable or missing; `is_member` is whether this agent
/// has worked here before.
#[must_use]
pub fn loss(mark: Option<HighWaterMark>, found: FoundStore, is_member: bool) -> Option<StoreLoss> {
    match (mark, found) {
        (_, FoundStore::Damaged) => Some(StoreLoss::Damaged),
        (Some(_), FoundStore::Nothing) => Some(StoreLoss::Gone),
        (None, FoundStore::Nothing) => is_member.then_some(StoreLoss::Gone),
        // It has no name yet: the agent was killed at its first start.
        (None, FoundStore::Store(HighWaterMark { store: 0, .. })) => None,
        (None, FoundStore::Store(_)) => Some(StoreLoss::Unmarked),
        (Some(mark), FoundStore::Store(store)) if mark.store != store.store => Some(StoreLoss::Swapped),
        // A store that is ahead of its mark was written just before the agent was killed.
        (Some(mark), FoundStore::Store(store)) => {
            let steps = mark.steps - store.steps;
            (steps > 0).then_some(StoreLoss::SetBack { steps })
        }
    }
}

/// Returns the time of the loss: whether a command issued up to then is new cannot be known.
#[must_use]
pub fn lost_ms(loss: StoreLoss, mark: Option<HighWaterMark>, found: FoundStore, now_ms: Millis) -> Millis {
    let of_store = match found {
        FoundStore::Store(store) => store.issued_ms,
        FoundStore::Nothing | FoundStore::Damaged => 0,
    };
    match (loss, mark) {
        // What the lost store had journalled is unknown.
        (StoreLoss::Unmarked, _) | (_, None) => now_ms.max(of_store),
        (_, Some(mark)) => mark.issued_ms.max(of_store),
    }
}

/// What to do with the second copy of a unit's desired state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyFate {
    /// Keep it: the store has at least this state.
    Keep,
    /// Restore it: the store has an earlier state, or none.
    Restore,
    /// Remove it: the unit was removed, and the agent killed before it removed the copy.
    Forget,
}

/// Whether after this loss the store may be older, and contain units that were removed since.
#[must_use]
pub fn is_of_another_time(loss: Option<StoreLoss>) -> bool {
    matches!(loss, Some(StoreLoss::SetBack { .. } | StoreLoss::Swapped | StoreLoss::Unmarked))
}

/// Returns what to do with a copy of this generation. `stored` is the generation in the store, if the unit is there; 0
/// if it is unreadable.
#[must_use]
pub fn fate(stored: Option<u64>, copy: u64, loss: Option<StoreLoss>) -> CopyFate {
    match (stored, loss) {
        (Some(stored), _) if stored >= copy => CopyFate::Keep,
        (Some(_), _) => CopyFate::Restore,
        // Damaged rows of units are left in place.
        (None, None | Some(StoreLoss::Rows { .. })) => CopyFate::Forget,
        (None, Some(_)) => CopyFate::Restore,
    }
}

/// The prefix of a mark's line.
const TITLE: &str = "muster-mark";

/// A checksum of a text, which detects flipped bits.
#[must_use]
pub fn checksum(text: &[u8]) -> i64 {
    let digest = muster_topics::name::Digest::of(text);
    // 60 bits: a positive integer in SQLite.
    i64::from_str_radix(&digest.as_str()[..15], 16).unwrap_or_default()
}

/// Prepends the checksum as a line of its own.
#[must_use]
pub fn sealed(text: &str) -> String {
    format!("{}\n{text}\n", checksum(text.as_bytes()))
}

/// Returns the text that was [`sealed`], or nothing if the checksum does not match.
#[must_use]
pub fn unsealed(bytes: &[u8]) -> Option<&str> {
    let (sum, text) = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?.split_once('\n')?;
    (sum.parse() == Ok(checksum(text.as_bytes()))).then_some(text)
}

impl HighWaterMark {
    /// Formats the mark as a line with a checksum.
    #[must_use]
    pub fn line(&self) -> String {
        let Self { store, steps, issued_ms, epoch } = self;
        let text = format!("{TITLE} {store} {steps} {issued_ms} {epoch}");
        let sum = checksum(text.as_bytes());
        format!("{text} {sum}\n")
    }

    /// Parses what [`HighWaterMark::line`] wrote; `None` if any of it is changed.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let (text, sum) = line.trim_end().rsplit_once(' ')?;
        if sum.parse() != Ok(checksum(text.as_bytes())) {
            return None;
        }
        let mut numbers = text.strip_prefix(TITLE)?.split_whitespace().map(|number| number.parse::<i64>().ok());
        let mark = Self {
            store: numbers.next()??,
            steps: numbers.next()??,
            issued_ms: numbers.next()??,
            epoch: numbers.next()??,
        };
        numbers.next().is_none().then_some(mark)
    }

    /// Returns the higher of the two, number by number: a mark never goes back, whichever store it is about.
    #[must_use]
    pub fn followed_by(self, later: Self) -> Self {
        Self {
            store: later.store,
            steps: self.steps.max(later.steps),
            issued_ms: self.issued_ms.max(later.issued_ms),
            epoch: self.epoch.max(later.epoch),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: HighWaterMark = HighWaterMark { store: 7, steps: 10, issued_ms: 5_000, epoch: 3 };

    #[test]
    fn store_behind_its_mark_is_a_loss() {
        let store = |store, steps| FoundStore::Store(HighWaterMark { store, steps, ..MARK });
        for (mark, found, is_member, wanted) in [
            (None, FoundStore::Nothing, false, None),
            (None, FoundStore::Nothing, true, Some(StoreLoss::Gone)),
            (None, store(0, 0), true, None),
            (None, store(7, 10), true, Some(StoreLoss::Unmarked)),
            (None, FoundStore::Damaged, true, Some(StoreLoss::Damaged)),
            (Some(MARK), FoundStore::Nothing, false, Some(StoreLoss::Gone)),
            (Some(MARK), FoundStore::Damaged, true, Some(StoreLoss::Damaged)),
            (Some(MARK), store(8, 10), true, Some(StoreLoss::Swapped)),
            (Some(MARK), store(0, 0), true, Some(StoreLoss::Swapped)),
            (Some(MARK), store(7, 9), true, Some(StoreLoss::SetBack { steps: 1 })),
            (Some(MARK), store(7, 10), true, None),
            (Some(MARK), store(7, 11), true, None),
        ] {
            assert_eq!(loss(mark, found, is_member), wanted, "{mark:?} {found:?} {is_member}");
        }
    }

    #[test]
    fn newer_copy_is_restored() {
        let set_back = Some(StoreLoss::SetBack { steps: 1 });
        for (stored, copy, loss, wanted) in [
            (Some(5), 5, None, CopyFate::Keep),
            (Some(6), 5, set_back, CopyFate::Keep),
            (Some(4), 5, set_back, CopyFate::Restore),
            (Some(0), 5, None, CopyFate::Restore),
            (None, 5, Some(StoreLoss::Gone), CopyFate::Restore),
            (None, 5, None, CopyFate::Forget),
            (None, 5, Some(StoreLoss::Rows { rows: 3 }), CopyFate::Forget),
        ] {
            assert_eq!(fate(stored, copy, loss), wanted, "{stored:?} {copy} {loss:?}");
        }
    }

    #[test]
    fn commands_before_a_loss_are_refused() {
        let store = FoundStore::Store(HighWaterMark { issued_ms: 4_000, ..MARK });
        for (loss, mark, found, wanted) in [
            (StoreLoss::SetBack { steps: 1 }, Some(MARK), store, 5_000),
            (StoreLoss::Gone, Some(MARK), FoundStore::Nothing, 5_000),
            (StoreLoss::Gone, None, FoundStore::Nothing, 9_000),
            (StoreLoss::Unmarked, None, store, 9_000),
            (StoreLoss::Rows { rows: 1 }, None, store, 9_000),
        ] {
            assert_eq!(lost_ms(loss, mark, found, 9_000), wanted, "{loss:?}");
        }
    }

    #[test]
    fn mark_line_parses_and_flipped_bits_are_refused() {
        let line = MARK.line();
        assert_eq!(HighWaterMark::parse(&line), Some(MARK));
        let bytes = line.trim_end().as_bytes();
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let read = std::str::from_utf8(&bytes).ok().and_then(HighWaterMark::parse);
            assert_eq!(read, None, "bit {bit}");
        }
        for cut in 0..bytes.len() {
            assert_eq!(HighWaterMark::parse(&line[..cut]), None);
        }
    }

    #[test]
    fn sealed_text_parses_and_others_are_refused() {
        let text = "{\"a\":\n1}";
        assert_eq!(unsealed(sealed(text).as_bytes()), Some(text));
        for bit in 0..sealed(text).len() * 8 {
            let mut bytes = sealed(text).into_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(unsealed(&bytes), None, "bit {bit}");
        }
    }

    #[test]
    fn a_mark_never_goes_back() {
        let older = HighWaterMark { steps: 9, issued_ms: 4_000, epoch: 2, ..MARK };
        assert_eq!(MARK.followed_by(older), MARK);
        let other = HighWaterMark { store: 8, steps: 1, issued_ms: 0, epoch: 4 };
        assert_eq!(MARK.followed_by(other), HighWaterMark { store: 8, steps: 10, issued_ms: 5_000, epoch: 4 });
    }
}

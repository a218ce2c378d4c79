//! Compares versions.
//!
//! Versions are labels without a prescribed form. Semantic versions are ordered as such;
//! in others (`7`, `2026-11-22`, `1.2.3.4`, `v2b`) numbers count as numbers and the rest as text.
//!
//! Whether that order is also their age is another question: for hashes it is not, and there the
//! time at which each was added decides ([`age`]).

use std::cmp::Ordering;

use crate::name::Version;

impl Version {
    /// Compares two versions by age: `Less` is older. A total order: only the same text is `Equal`.
    #[must_use]
    pub fn age_order(&self, other: &Self) -> Ordering {
        let (left, right) = (Parts::of(self.as_str()), Parts::of(other.as_str()));
        let core = compare(left.core, right.core);
        let pre = || match (left.pre, right.pre) {
            (None, None) => Ordering::Equal,
            // A pre-release is older than its release.
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(left), Some(right)) => compare(left, right),
        };
        core.then_with(pre).then_with(|| self.cmp(other))
    }
}

/// A number with this many digits may be a hash without letters: as many as people use of a commit.
const HASH_DIGITS: usize = 7;

impl Version {
    /// Whether its text shows its age: numbers with dots or dashes between them, and suffixes of semantic versioning.
    #[must_use]
    pub fn tells_age(&self) -> bool {
        let core = Parts::of(self.as_str()).core;
        let core = core.strip_prefix(['v', 'V']).unwrap_or(core);
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let is_one = !core.contains(['.', '-']);
        core.split(['.', '-']).all(is_number) && !(is_one && core.len() >= HASH_DIGITS)
    }

    /// Whether it is a pre-release, as `1.2.0-rc.1` by semantic versioning, or `1.2.0rc1` in Python's form.
    #[must_use]
    pub fn is_pre_release(&self) -> bool {
        let Parts { core, pre } = Parts::of(self.as_str());
        let begins_with_word = |pre: &str| pre.starts_with(|first: char| first.is_ascii_alphabetic());
        if pre.is_some_and(begins_with_word) {
            return self.tells_age();
        }
        let number = core.trim_end_matches(|end: char| end.is_ascii_digit() || end == '.');
        let word = number.trim_start_matches(|begin: char| begin.is_ascii_digit() || begin == '.');
        word.len() < number.len()
            && ["a", "alpha", "b", "beta", "c", "dev", "pre", "rc"].contains(&word.trim_start_matches('.'))
    }
}

/// Compares two versions, each with the time at which it was added: by their texts, if both show their age; otherwise
/// by the times.
#[must_use]
pub fn age(left: (&Version, i64), right: (&Version, i64)) -> Ordering {
    let by_text = left.0.age_order(right.0);
    if left.0.tells_age() && right.0.tells_age() {
        return by_text.then(left.1.cmp(&right.1));
    }
    left.1.cmp(&right.1).then(by_text)
}

/// Returns the newest version, each with the time at which it was added. Pre-releases count only if there is no
/// release; and if the text of one does not show its age, the times decide.
pub fn newest<'a, T>(all: impl IntoIterator<Item = &'a T>, label: impl Fn(&T) -> (&Version, i64)) -> Option<&'a T> {
    let all: Vec<&T> = all.into_iter().collect();
    let is_release = |one: &&&T| !label(one).0.is_pre_release();
    let releases: Vec<&T> = all.iter().filter(is_release).copied().collect();
    let candidates = if releases.is_empty() { all } else { releases };
    let told = candidates.iter().all(|one| label(one).0.tells_age());
    candidates.into_iter().max_by(|left, right| {
        let (left, right) = (label(left), label(right));
        if told { age(left, right) } else { left.1.cmp(&right.1).then_with(|| left.0.age_order(right.0)) }
    })
}

struct Parts<'a> {
    core: &'a str,
    pre: Option<&'a str>,
}

impl<'a> Parts<'a> {
    fn of(text: &'a str) -> Self {
        let without_build = text.split_once('+').map_or(text, |(version, _)| version);
        let is_date = without_build.split('-').all(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
        match without_build.split_once('-') {
            // All numbers: a date, or a packager's revision, and no pre-release.
            Some(_) if is_date => Self { core: without_build, pre: None },
            Some((core, pre)) => Self { core, pre: Some(pre) },
            None => Self { core: without_build, pre: None },
        }
    }
}

/// Compares piece by piece; the one that ends first is older.
fn compare(left: &str, right: &str) -> Ordering {
    let (mut left, mut right) = (pieces(left), pieces(right));
    loop {
        let order = match (left.next(), right.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => Ordering::Less,
            (Some(_), None) => Ordering::Greater,
            (Some(left), Some(right)) => compare_pieces(left, right),
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

/// Splits into runs of digits and runs of letters, at the other characters.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let kind = |byte: u8| (byte.is_ascii_digit(), byte.is_ascii_alphabetic());
    text.as_bytes()
        .chunk_by(move |left, right| kind(*left) == kind(*right))
        .filter(|piece| piece[0].is_ascii_alphanumeric())
        // Versions are ASCII, and so are their parts.
        .map(|piece| std::str::from_utf8(piece).unwrap_or_default())
}

fn compare_pieces(left: &str, right: &str) -> Ordering {
    let is_number = |piece: &str| piece.starts_with(|first: char| first.is_ascii_digit());
    match (is_number(left), is_number(right)) {
        (true, true) => {
            let (left, right) = (left.trim_start_matches('0'), right.trim_start_matches('0'));
            left.len().cmp(&right.len()).then_with(|| left.cmp(right))
        }
        // As in semantic versioning: numbers before names.
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
        (false, false) => left.cmp(right),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    #[test]
    fn versions_sort_from_old_to_new() {
        for row in [
            vec!["1", "2", "10"],
            vec!["1.2.3", "1.2.10", "1.10.0", "2.0.0"],
            vec!["1.0", "1.0.0", "1.0.1"],
            // The examples of semantic versioning.
            vec![
                "1.0.0-alpha",
                "1.0.0-alpha.1",
                "1.0.0-alpha.beta",
                "1.0.0-beta",
                "1.0.0-beta.2",
                "1.0.0-beta.11",
                "1.0.0-rc.1",
                "1.0.0",
            ],
            vec!["1.0.0", "1.0.0+build5", "1.0.1"],
            vec!["2025-12-31", "2026-01-01", "2026-11-22"],
            vec!["1.0-1", "1.0-2", "1.0-10", "1.1-1"],
            vec!["v1.9", "v1.10"],
            vec!["007", "8"],
            vec!["99999999999999999999998", "99999999999999999999999"],
        ] {
            for (older, newer) in row.iter().zip(&row[1..]) {
                assert_eq!(version(older).age_order(&version(newer)), Ordering::Less, "{older}, {newer}");
                assert_eq!(version(newer).age_order(&version(older)), Ordering::Greater, "{newer}, {older}");
            }
        }
    }

    #[test]
    fn numbers_have_an_age_and_hashes_none() {
        for told in ["1", "1.2.0", "v1.2", "2026-11-22", "1.2.3.4", "1.0.0-rc.1", "1.0-2", "1.0.0+build5", "123456"] {
            assert!(version(told).tells_age(), "{told}");
        }
        for not in ["a1b2c3d", "4163245", "12e4567", "main", "v2b", "20261125", "1.0rc1", "deadbeef"] {
            assert!(!version(not).tells_age(), "{not}");
        }
        for pre in ["1.2.0-rc.1", "1.2.0-alpha", "2.0-SNAPSHOT", "1.0rc1", "1.0b2", "1.0.dev3"] {
            assert!(version(pre).is_pre_release(), "{pre}");
        }
        for release in ["1.2.0", "1.2.0-1", "2026-11-22", "1.0.0+rc1", "deadbeef-rc", "beta", "7b", "12e4567"] {
            assert!(version(release).is_pre_release() == (release == "7b"), "{release}");
        }
    }

    #[test]
    fn newest_prefers_release_then_number_then_time() {
        for (added, wanted) in [
            (&["1.0", "1.10", "1.9"][..], "1.10"),
            (&["2", "1"], "2"),
            // A text that is no number has only its time.
            (&["f00d", "a1b2c3d", "0badcafe"], "0badcafe"),
            (&["9.0", "a1b2c3d"], "a1b2c3d"),
            (&["1.0.0", "1.1.0-rc.1", "1.1.0-rc.2"], "1.0.0"),
            (&["1.1.0-rc.1", "1.1.0-rc.2"], "1.1.0-rc.2"),
            (&["1.1.0-rc.2", "1.1.0", "1.1.0-rc.3"], "1.1.0"),
        ] {
            let all: Vec<(Version, i64)> = added.iter().map(|text| version(text)).zip(1..).collect();
            let found = newest(&all, |(version, created_ms)| (version, *created_ms)).unwrap();
            assert_eq!(found.0.as_str(), wanted, "{added:?}");
        }
        assert!(newest(&[] as &[(Version, i64)], |(version, created_ms)| (version, *created_ms)).is_none());
    }

    fn any_version() -> impl Strategy<Value = Version> {
        "[01a][01ab.+_-]{0,5}".prop_map(|text| version(&text))
    }

    proptest! {
        #[test]
        fn comparison_is_a_total_order(a in any_version(), b in any_version(), c in any_version()) {
            prop_assert_eq!(a.age_order(&b), b.age_order(&a).reverse());
            prop_assert_eq!(a.age_order(&b) == Ordering::Equal, a == b);
            if a.age_order(&b).is_le() && b.age_order(&c).is_le() {
                prop_assert!(a.age_order(&c).is_le(), "{} {} {}", a, b, c);
            }
        }
    }
}

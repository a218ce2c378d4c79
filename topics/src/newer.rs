//! Which of two versions is the newer one.
//!
//! Versions are labels, and no rule says how they are made. What is made by semantic versioning is ordered by it;
//! for the rest (`7`, `2026-11-22`, `1.2.3.4`, `v2b`) numbers count as numbers and the rest as text.

use std::cmp::Ordering;

use crate::name::Version;

impl Version {
    /// How it compares with another in age: `Less` is older. A total order: only the same text is `Equal`.
    #[must_use]
    pub fn age_order(&self, other: &Self) -> Ordering {
        let (left, right) = (Parts::of(self.as_str()), Parts::of(other.as_str()));
        let core = compare(left.core, right.core);
        let pre = || match (left.pre, right.pre) {
            (None, None) => Ordering::Equal,
            // What comes before a release is older than it.
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(left), Some(right)) => compare(left, right),
        };
        core.then_with(pre).then_with(|| self.cmp(other))
    }
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
            // All of it numbers: a date, or a packager's revision, and nothing that comes before a release.
            Some(_) if is_date => Self { core: without_build, pre: None },
            Some((core, pre)) => Self { core, pre: Some(pre) },
            None => Self { core: without_build, pre: None },
        }
    }
}

/// Piece by piece; the one that ends first is the older one.
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

/// Runs of digits and runs of letters; the signs between them only part them.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let kind = |byte: u8| (byte.is_ascii_digit(), byte.is_ascii_alphabetic());
    text.as_bytes()
        .chunk_by(move |left, right| kind(*left) == kind(*right))
        .filter(|piece| piece[0].is_ascii_alphanumeric())
        // Versions are ASCII, and a part of that is text.
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
    fn from_old_to_new() {
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

    fn any_version() -> impl Strategy<Value = Version> {
        "[01a][01ab.+_-]{0,5}".prop_map(|text| version(&text))
    }

    proptest! {
        #[test]
        fn it_is_an_order(a in any_version(), b in any_version(), c in any_version()) {
            prop_assert_eq!(a.age_order(&b), b.age_order(&a).reverse());
            prop_assert_eq!(a.age_order(&b) == Ordering::Equal, a == b);
            if a.age_order(&b).is_le() && b.age_order(&c).is_le() {
                prop_assert!(a.age_order(&c).is_le(), "{} {} {}", a, b, c);
            }
        }
    }
}

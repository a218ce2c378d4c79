//! Compares versions of Debian packages, as `dpkg --compare-versions` does.

use std::cmp::Ordering;

/// Compares two versions: epoch, upstream version, Debian revision.
#[must_use]
pub fn compare(one: &str, other: &str) -> Ordering {
    let (one, other) = (parts(one), parts(other));
    number(one.0).cmp(&number(other.0)).then_with(|| part(one.1, other.1)).then_with(|| part(one.2, other.2))
}

/// Splits a version into epoch, upstream version and revision.
fn parts(version: &str) -> (&str, &str, &str) {
    let (epoch, rest) = version.split_once(':').unwrap_or(("0", version));
    let (upstream, revision) = rest.rsplit_once('-').unwrap_or((rest, ""));
    (epoch, upstream, revision)
}

/// An epoch as digits without leading zeros, which compares by length first.
fn number(digits: &str) -> (usize, &str) {
    let digits = digits.trim_start_matches('0');
    (digits.len(), digits)
}

/// Compares upstream versions or revisions: by turns what is no number, and what is one.
fn part(mut one: &str, mut other: &str) -> Ordering {
    while !one.is_empty() || !other.is_empty() {
        let (one_word, other_word) = (word(&mut one), word(&mut other));
        let words = letters(one_word, other_word);
        let (one_digits, other_digits) = (digits(&mut one), digits(&mut other));
        let decided = words.then_with(|| number(one_digits).cmp(&number(other_digits)));
        if decided.is_ne() {
            return decided;
        }
    }
    Ordering::Equal
}

fn word<'a>(of: &mut &'a str) -> &'a str {
    take(of, |byte| !byte.is_ascii_digit())
}

fn digits<'a>(of: &mut &'a str) -> &'a str {
    take(of, |byte| byte.is_ascii_digit())
}

fn take<'a>(of: &mut &'a str, is_part: impl Fn(&u8) -> bool) -> &'a str {
    let len = of.bytes().take_while(is_part).count();
    // All or nothing of a character that is longer than a byte is taken.
    let (taken, rest) = of.split_at(len);
    *of = rest;
    taken
}

/// Compares what is no number: a tilde is less than the end, letters are less than other characters.
fn letters(one: &str, other: &str) -> Ordering {
    let order = |byte: Option<u8>| match byte {
        Some(b'~') => -1,
        None => 0,
        Some(byte) if byte.is_ascii_alphabetic() => i32::from(byte),
        Some(byte) => i32::from(byte) + 256,
    };
    for index in 0..one.len().max(other.len()) {
        let at = |of: &str| order(of.as_bytes().get(index).copied());
        let decided = at(one).cmp(&at(other));
        if decided.is_ne() {
            return decided;
        }
    }
    Ordering::Equal
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs with what `dpkg --compare-versions` of Debian 12 says of them.
    const KNOWN: &[(&str, Ordering, &str)] = &[
        ("1.0", Ordering::Equal, "1.0"),
        ("1.0", Ordering::Less, "2.0"),
        ("1.10", Ordering::Greater, "1.9"),
        ("1.0~rc1", Ordering::Less, "1.0"),
        ("1.0~rc1", Ordering::Greater, "1.0~beta2"),
        ("1.0~~", Ordering::Less, "1.0~"),
        ("1:1.0", Ordering::Greater, "2.0"),
        ("0:1.0", Ordering::Equal, "1.0"),
        ("1.0-1", Ordering::Greater, "1.0"),
        ("1.0-0", Ordering::Equal, "1.0"),
        ("1.0-1", Ordering::Less, "1.0-1+deb12u1"),
        ("1.0-1.1", Ordering::Greater, "1.0-1"),
        ("1.0a", Ordering::Less, "1.0+"),
        ("1.0a", Ordering::Greater, "1.0"),
        ("1.007", Ordering::Equal, "1.7"),
        ("2.36-9+deb12u10", Ordering::Greater, "2.36-9+deb12u9"),
        ("1.2-3-4", Ordering::Greater, "1.2-2-5"),
        ("20230311", Ordering::Less, "20230311+deb12u1"),
        ("99999999999999999999999", Ordering::Greater, "99999999999999999999998"),
        ("1.0.", Ordering::Greater, "1.0"),
        ("1.0-a", Ordering::Less, "1.0-+"),
    ];

    #[test]
    fn versions_compare_as_by_dpkg() {
        for (one, expected, other) in KNOWN {
            assert_eq!(compare(one, other), *expected, "{one} {other}");
            assert_eq!(compare(other, one), expected.reverse(), "{other} {one}");
        }
    }

    #[test]
    fn any_text_compares() {
        for text in ["", "ü", ":", "-", "1ü2", "~ü~"] {
            assert_eq!(compare(text, text), Ordering::Equal);
            assert_eq!(compare(text, "1.0"), compare("1.0", text).reverse());
        }
    }

    /// The same pairs, asked of the host's own `dpkg`, where there is one: it changes nothing.
    #[test]
    fn known_pairs_are_what_dpkg_says() {
        for (one, expected, other) in KNOWN {
            let relation = match expected {
                Ordering::Less => "lt",
                Ordering::Equal => "eq",
                Ordering::Greater => "gt",
            };
            let asked = std::process::Command::new("dpkg").args(["--compare-versions", one, relation, other]).output();
            let Ok(asked) = asked else { return };
            assert!(asked.status.success(), "{one} {relation} {other}");
        }
    }
}

//! Compares values: texts by patterns, numbers, versions.

use std::cmp::Ordering;

use super::{Fact, Field, Order};

/// The type of a field's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    /// Texts.
    Text,
    /// Texts that may be numbers.
    Label,
    /// Numbers.
    Number,
    /// Versions.
    Version,
}

impl Sort {
    pub(super) fn of(field: &Field) -> Self {
        match field {
            Field::Label(_) => Self::Label,
            Field::Fact(Fact::Cpus | Fact::MemoryBytes) => Self::Number,
            Field::Version | Field::WantedVersion | Field::Fact(Fact::Kernel | Fact::AgentVersion) => Self::Version,
            Field::Host | Field::Id | Field::Realm | Field::Name | Field::Role | Field::Kind | Field::Phase => {
                Self::Text
            }
            Field::Fact(Fact::Os | Fact::Arch | Fact::CpuModel) => Self::Text,
        }
    }
}

/// Whether the value `found` matches `wanted`.
pub(super) fn is(field: &Field, wanted: &str, found: &str) -> bool {
    match Sort::of(field) {
        Sort::Number => number(wanted).is_some_and(|wanted| number(found) == Some(wanted)),
        Sort::Text | Sort::Label | Sort::Version => is_like(wanted, found),
    }
}

/// Whether the value `found` compares so to `wanted`.
pub(super) fn compares(field: &Field, order: Order, wanted: &str, found: &str) -> bool {
    let ordering = match Sort::of(field) {
        Sort::Text => None,
        Sort::Label | Sort::Number => {
            number(found).zip(number(wanted)).and_then(|(found, wanted)| found.partial_cmp(&wanted))
        }
        Sort::Version => version(found).zip(version(wanted)).map(|(found, wanted)| found.cmp(&wanted)),
    };
    match (ordering, order) {
        (None, _) => false,
        (Some(ordering), Order::Less) => ordering == Ordering::Less,
        (Some(ordering), Order::AtMost) => ordering != Ordering::Greater,
        (Some(ordering), Order::More) => ordering == Ordering::Greater,
        (Some(ordering), Order::AtLeast) => ordering != Ordering::Less,
    }
}

/// Parses a number as people write it: digits, optionally a minus, a fraction, and K, M, G or T for powers of 1024.
/// Beyond 2⁵³ the last digits may be lost.
pub(super) fn number(text: &str) -> Option<f64> {
    let (digits, power) = match text.char_indices().last()? {
        (at, 'K' | 'k') => (&text[..at], 1),
        (at, 'M' | 'm') => (&text[..at], 2),
        (at, 'G' | 'g') => (&text[..at], 3),
        (at, 'T' | 't') => (&text[..at], 4),
        _ => (text, 0),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !are_digits(whole.strip_prefix('-').unwrap_or(whole)) || !are_digits(fraction) {
        return None;
    }
    digits.parse::<f64>().ok().map(|number| number * 1024_f64.powi(power)).filter(|number| number.is_finite())
}

/// Returns a version's numbers, without trailing zeros: `6.1.0-18-amd64` is 6, 1. `None` if it does not begin with a
/// number.
pub(super) fn version(text: &str) -> Option<Vec<u64>> {
    let mut numbers = Vec::new();
    let mut rest = text;
    loop {
        let end = rest.bytes().take_while(u8::is_ascii_digit).count();
        if end == 0 {
            break;
        }
        numbers.push(rest[..end].parse().unwrap_or(u64::MAX));
        match rest[end..].strip_prefix('.') {
            Some(next) => rest = next,
            None => break,
        }
    }
    if numbers.is_empty() {
        return None;
    }
    while numbers.last() == Some(&0) {
        numbers.pop();
    }
    Some(numbers)
}

/// Whether a text matches a pattern, in which `*` stands for anything and `?` for one character.
pub(super) fn is_like(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut at, mut of) = (0, 0);
    // The last `*`, and how much of the text it matches.
    let mut star = None;
    while at < text.len() {
        match pattern.get(of) {
            Some('*') => {
                star = Some((of, at));
                of += 1;
            }
            Some(wanted) if *wanted == '?' || *wanted == text[at] => (at, of) = (at + 1, of + 1),
            _ => {
                let Some((stands, given)) = star else { return false };
                star = Some((stands, given + 1));
                (at, of) = (given + 1, stands + 1);
            }
        }
    }
    pattern[of..].iter().all(|rest| *rest == '*')
}

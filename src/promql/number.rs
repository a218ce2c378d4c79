//! Numbers and times in Prometheus's format.

use crate::query_range::Millis;

/// Formats a number without an exponent; `NaN`, `+Inf`, `-Inf`.
#[must_use]
pub fn value(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned()
    } else {
        value.to_string()
    }
}

/// Formats a time in seconds, with three decimals unless all are zero.
#[must_use]
pub fn seconds(at_ms: Millis) -> String {
    let sign = if at_ms < 0 { "-" } else { "" };
    let (whole, part) = (at_ms.unsigned_abs() / 1000, at_ms.unsigned_abs() % 1000);
    if part == 0 { format!("{sign}{whole}") } else { format!("{sign}{whole}.{part:03}") }
}

/// Parses a duration such as `5m` or `1h30m` into milliseconds; larger units come first, each at most once.
#[must_use]
pub fn duration(text: &str) -> Option<Millis> {
    const UNITS: [(&str, Millis); 7] = [
        ("ms", 1),
        ("y", 365 * 86_400_000),
        ("w", 7 * 86_400_000),
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1_000),
    ];
    let (mut rest, mut total, mut last) = (text, 0, Millis::MAX);
    while !rest.is_empty() {
        let (digits, behind) = rest.split_at_checked(rest.find(|c: char| !c.is_ascii_digit())?)?;
        let (unit, unit_ms) = UNITS.into_iter().find(|(unit, _)| behind.starts_with(unit))?;
        if unit_ms >= last {
            return None;
        }
        total = digits.parse::<Millis>().ok()?.checked_mul(unit_ms)?.checked_add(total)?;
        (rest, last) = (behind.strip_prefix(unit)?, unit_ms);
    }
    (last != Millis::MAX).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read() {
        for (text, ms) in [
            ("5m", Some(300_000)),
            ("1h30m", Some(5_400_000)),
            ("1d12h", Some(129_600_000)),
            ("1s500ms", Some(1_500)),
            ("0s", Some(0)),
            ("", None),
            ("5", None),
            ("m", None),
            ("5x", None),
            ("5m5m", None),
            ("5m1h", None),
            ("-5m", None),
            ("99999999999999999y", None),
        ] {
            assert_eq!(duration(text), ms, "{text:?}");
        }
    }

    #[test]
    fn numbers_have_no_exponent() {
        for (number, text) in [
            (1.0, "1"),
            (-0.0, "-0"),
            (0.1, "0.1"),
            (1e21, "1000000000000000000000"),
            (1e-7, "0.0000001"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
        ] {
            assert_eq!(value(number), text);
        }
        for (at_ms, text) in [(0, "0"), (1_500, "1.500"), (1_000, "1"), (1_007, "1.007"), (-1_500, "-1.500")] {
            assert_eq!(seconds(at_ms), text);
        }
    }
}

//! Durations as people write them: `90s`, `2m`, `1h30m`, `24h`, `7d`.

use muster_topics::Millis;

const UNITS: [(&str, Millis); 6] =
    [("w", 7 * 86_400_000), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// The longest duration, a year: nobody waits for longer, and sums with times stay in their type.
const DURATION_MAX_MS: Millis = 366 * 86_400_000;

/// Reads a duration: numbers with units, each once, the greatest first. `0` needs no unit.
pub(crate) fn read(text: &str) -> Option<Millis> {
    let mut rest = text.trim();
    if rest == "0" {
        return Some(0);
    }
    let (mut sum_ms, mut unit_before_ms): (Millis, Millis) = (0, Millis::MAX);
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, after) = rest.split_at(digits);
        let letters = after.len() - after.trim_start_matches(|c: char| c.is_ascii_alphabetic()).len();
        let (unit, after) = after.split_at(letters);
        let unit_ms = UNITS.iter().find(|(name, _)| *name == unit)?.1;
        if unit_ms >= unit_before_ms {
            return None;
        }
        sum_ms = sum_ms.checked_add(number.parse::<Millis>().ok()?.checked_mul(unit_ms)?)?;
        (rest, unit_before_ms) = (after, unit_ms);
    }
    (unit_before_ms != Millis::MAX && sum_ms <= DURATION_MAX_MS).then_some(sum_ms)
}

/// Writes a duration so that [`read`] reads the same.
pub(crate) fn write(duration_ms: Millis) -> String {
    let mut rest_ms = duration_ms.max(0);
    let mut text = String::new();
    for (unit, unit_ms) in UNITS.iter().skip(1) {
        if rest_ms >= *unit_ms {
            // A day is better read in hours; so is `24h`, as most write it.
            if *unit == "d" && rest_ms < 2 * unit_ms {
                continue;
            }
            text += &format!("{}{unit}", rest_ms / unit_ms);
            rest_ms %= unit_ms;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_read() {
        let cases = [
            ("0", Some(0)),
            ("0s", Some(0)),
            ("500ms", Some(500)),
            ("2m", Some(120_000)),
            ("1h30m", Some(5_400_000)),
            ("24h", Some(86_400_000)),
            ("2w", Some(14 * 86_400_000)),
            ("", None),
            ("2", None),
            ("m", None),
            ("30m1h", None),
            ("1h1h", None),
            ("-1h", None),
            ("1.5h", None),
            ("2 m", None),
            ("99999999999999999999s", None),
            ("9000000000000000h", None),
            ("100000d", None),
        ];
        for (text, wanted) in cases {
            assert_eq!(read(text), wanted, "{text}");
        }
        assert_eq!(write(86_400_000), "24h");
        assert_eq!(write(90_000), "1m30s");
    }

    proptest! {
        #[test]
        fn written_durations_are_read(duration_ms in 0..=DURATION_MAX_MS) {
            prop_assert_eq!(read(&write(duration_ms)), Some(duration_ms));
        }
    }
}

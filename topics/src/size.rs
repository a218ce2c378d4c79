//! Sizes in bytes, as people read and write them. The whole program uses this: units are powers of 1024, and printed
//! sizes can be typed again.

/// Units by their first letter, with the power of two.
const UNITS: [(char, u32); 6] = [('K', 10), ('M', 20), ('G', 30), ('T', 40), ('P', 50), ('E', 60)];

/// Formats a number of bytes with one unit, such as `1.5 GiB`.
#[must_use]
pub fn print(count: u64) -> String {
    if count < 1024 {
        return format!("{count} B");
    }
    let (mut value, mut unit) = (count as f64 / 1024.0, 0);
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(value < 9.95);
    format!("{value:.digits$} {}iB", UNITS[unit].0)
}

/// Formats it without rounding, as one word: `512MiB`, or `5000` if no unit fits.
#[must_use]
pub fn print_exact(count: u64) -> String {
    let fitting = UNITS.iter().rev().find(|(_, power)| count != 0 && count.is_multiple_of(1 << power));
    fitting.map_or_else(|| count.to_string(), |(unit, power)| format!("{}{unit}iB", count >> power))
}

/// Returns the bytes of a unit: `K`, `KB` and `KiB` are 1024, in upper or lower case, and so on to `EiB`; `B` or
/// nothing is one.
#[must_use]
pub fn unit(text: &str) -> Option<u64> {
    let text = text.to_ascii_uppercase();
    let mut letters = text.chars();
    match (letters.next(), letters.as_str()) {
        (None | Some('B'), "") => Some(1),
        (Some(first), "" | "B" | "IB") => UNITS.iter().find(|(unit, _)| *unit == first).map(|(_, power)| 1 << power),
        _ => None,
    }
}

/// Parses a number of bytes: `5000`, `64M`, `64MiB`, `1.5 GiB`.
///
/// # Errors
/// If it is invalid.
pub fn parse(text: &str) -> Result<u64, String> {
    let number = text.trim_end_matches(|last: char| last.is_ascii_alphabetic());
    let bytes = unit(&text[number.len()..]).and_then(|unit| times(number.trim_end(), unit));
    bytes.ok_or_else(|| "use a number of bytes, or one such as 64M, 1.5GiB or 2G (units are powers of 1024)".to_owned())
}

/// Multiplies a number with or without a fraction by a unit; a fraction of a byte is dropped.
fn times(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(whole)
        || !is_digits(fraction)
        || fraction.len() > FRACTION_MAX_DIGITS
        || (unit == 1 && whole != number)
    {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let part = fraction.parse::<u128>().ok()? * u128::from(unit) / scale;
    whole.checked_add(u64::try_from(part).ok()?)
}

/// Further digits after the point have no effect: they are below a byte of a TiB.
const FRACTION_MAX_DIGITS: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_parse() {
        for (text, bytes) in [
            ("0", Some(0)),
            ("512", Some(512)),
            ("512B", Some(512)),
            ("64M", Some(67_108_864)),
            ("64 MiB", Some(67_108_864)),
            ("1kib", Some(1_024)),
            ("2GB", Some(2_147_483_648)),
            ("1.5G", Some(1_610_612_736)),
            ("0.5K", Some(512)),
            ("1T", Some(1_099_511_627_776)),
            ("15EiB", Some(15 << 60)),
            ("", None),
            ("M", None),
            (".5M", None),
            ("1.M", None),
            ("1.5", None),
            ("1.5B", None),
            ("-1", None),
            ("+1", None),
            ("1e3", None),
            ("5X", None),
            ("5Ki", None),
            ("16E", None),
            ("99999999999T", None),
            ("7é", None),
        ] {
            assert_eq!(parse(text).ok(), bytes, "{text}");
        }
    }

    #[test]
    fn sizes_are_printed_with_one_unit() {
        for (size, wanted) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (10_239, "10 KiB"),
            (1_048_000, "1.0 MiB"),
            (123 * 1024 * 1024, "123 MiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(print(size), wanted, "{size}");
        }
        assert_eq!([0, 5_000, 1 << 20, 3 << 30, 1536 << 10].map(print_exact), ["0", "5000", "1MiB", "3GiB", "1536KiB"]);
    }

    proptest! {
        #[test]
        fn printed_size_parses_to_the_same(size: u64) {
            prop_assert_eq!(parse(&print_exact(size)), Ok(size));
            // Rounding may exceed the range of a number.
            if let Ok(read) = parse(&print(size)) {
                prop_assert!(read.abs_diff(size) <= size / 15, "{} {}", read, print(size));
            }
        }
    }
}

//! Times that people type.

use muster_topics::Millis;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// A time, or a duration before now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Milliseconds since the Unix epoch.
    At(Millis),
    /// Milliseconds before now.
    Ago(Millis),
}

impl Moment {
    /// The time, given the current time.
    #[must_use]
    pub fn ms(self, now_ms: Millis) -> Millis {
        match self {
            Self::At(at_ms) => at_ms,
            Self::Ago(ago_ms) => now_ms.saturating_sub(ago_ms).max(0),
        }
    }
}

/// Parses a time: `2026-01-31`, `2026-01-31 12:00:00` (both UTC), `2026-01-31T12:00:00+01:00`, or a duration before
/// now: `7d`, `1h 30m ago`.
///
/// # Errors
/// If it is neither.
pub fn parse(text: &str) -> Result<Moment, String> {
    let (text, now) = (text.trim(), text.trim() == "now");
    let ago = text.strip_suffix("ago").or_else(|| text.strip_prefix('-')).unwrap_or(text).trim();
    if let Ok(ago) = humantime::parse_duration(if now { "0s" } else { ago }) {
        return Ok(Moment::Ago(Millis::try_from(ago.as_millis()).unwrap_or(Millis::MAX)));
    }
    if let Ok(time) = OffsetDateTime::parse(text, &Rfc3339) {
        let ms = Millis::try_from(time.unix_timestamp_nanos() / 1_000_000).unwrap_or(Millis::MAX);
        return if ms < 0 { Err("it is before 1970".to_owned()) } else { Ok(Moment::At(ms)) };
    }
    let whole = if text.len() == "2026-01-31".len() { format!("{text} 00:00:00") } else { text.to_owned() };
    let time = humantime::parse_rfc3339_weak(&whole).map_err(|_| {
        "expected a time such as 7d, 2026-01-31, '2026-01-31 12:00:00' or 2026-01-31T12:00:00+01:00".to_owned()
    })?;
    let since = time.duration_since(std::time::UNIX_EPOCH).map_err(|_| "it is before 1970".to_owned())?;
    Ok(Moment::At(Millis::try_from(since.as_millis()).unwrap_or(Millis::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_times_parse() {
        let noon = 1_769_860_800_000;
        for (text, wanted) in [
            ("2026-01-31", Moment::At(noon - 12 * 3_600_000)),
            ("2026-01-31 12:00:00", Moment::At(noon)),
            ("2026-01-31T12:00:00", Moment::At(noon)),
            ("2026-01-31T12:00:00Z", Moment::At(noon)),
            ("2026-01-31T12:00:00.250Z", Moment::At(noon + 250)),
            ("2026-01-31T13:30:00+01:30", Moment::At(noon)),
            ("7d", Moment::Ago(7 * 86_400_000)),
            ("1h 30m ago", Moment::Ago(5_400_000)),
            ("-10m", Moment::Ago(600_000)),
            ("now", Moment::Ago(0)),
        ] {
            assert_eq!(parse(text), Ok(wanted), "{text}");
        }
        for text in ["", "soon", "2026-13-01", "1969-12-31T23:00:00Z", "31.1.2026", "ago"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!((Moment::Ago(5).ms(7), Moment::Ago(9).ms(7), Moment::At(3).ms(7)), (2, 0, 3));
    }
}

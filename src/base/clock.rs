//! The wall clock, read in one place.

use std::time::{SystemTime, UNIX_EPOCH};

use muster_topics::Millis;

/// The current time in milliseconds since the Unix epoch; 0 if the clock is set before it.
#[must_use]
pub fn now_ms() -> Millis {
    #[cfg(feature = "pretended")]
    if let Some(now_ms) = pretended::now_ms() {
        return now_ms;
    }
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Millis::try_from(since_epoch.as_millis()).unwrap_or(Millis::MAX)
}

/// A time to the millisecond (RFC 3339, UTC); all years of four digits give the same length.
#[must_use]
pub fn rfc3339_ms(at_ms: Millis) -> String {
    let Ok(at) = time::OffsetDateTime::from_unix_timestamp(at_ms.div_euclid(1_000)) else { return at_ms.to_string() };
    let (date, clock, ms) = (at.date(), at.time(), at_ms.rem_euclid(1_000));
    let (year, month, day) = (date.year(), u8::from(date.month()), date.day());
    let (hour, minute, second) = (clock.hour(), clock.minute(), clock.second());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// A replacement for the clock in simulations.
#[cfg(feature = "pretended")]
pub mod pretended {
    use std::cell::Cell;

    use muster_topics::Millis;

    thread_local! {
        static NOW_MS: Cell<Option<Millis>> = const { Cell::new(None) };
    }

    /// Sets the time that this thread reads; `None` restores the real clock.
    pub fn set(now_ms: Option<Millis>) {
        NOW_MS.set(now_ms);
    }

    pub(super) fn now_ms() -> Option<Millis> {
        NOW_MS.get()
    }
}

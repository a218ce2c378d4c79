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
    let now_ms = Millis::try_from(since_epoch.as_millis()).unwrap_or(Millis::MAX);
    #[cfg(feature = "pretended")]
    let now_ms = now_ms.saturating_add(pretended::ahead_ms());
    now_ms
}

/// How long a machine has run since a start of its, sleep included, as the kernel counts it whatever the wall clock shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uptime {
    /// Which start of which machine.
    pub boot: i64,
    /// How long ago that was.
    pub ms: Millis,
}

impl Uptime {
    /// Reads it; `None` where the kernel does not tell.
    #[must_use]
    pub fn now() -> Option<Self> {
        let seconds = std::fs::read_to_string("/proc/uptime").ok()?;
        let seconds: f64 = seconds.split_whitespace().next()?.parse().ok()?;
        Some(Self { boot: boot()?, ms: (seconds * 1_000.0) as Millis })
    }

    /// Returns what has passed since an earlier one, if the machine was not started in between.
    #[must_use]
    pub fn since(self, earlier: Self) -> Option<Millis> {
        (self.boot == earlier.boot && self.ms >= earlier.ms).then(|| self.ms - earlier.ms)
    }
}

/// The kernel's id of this start of the machine.
#[must_use]
pub fn boot_id() -> Option<String> {
    Some(std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned())
}

/// A number made of the kernel's id of this start of the machine.
fn boot() -> Option<i64> {
    let digits: String = boot_id()?.chars().filter(char::is_ascii_hexdigit).take(15).collect();
    i64::from_str_radix(&digits, 16).ok()
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
        static AHEAD_MS: Cell<Millis> = const { Cell::new(0) };
    }

    /// Sets the clock that this thread reads ahead of the real one; it goes on from there.
    pub fn set_ahead(by_ms: Millis) {
        AHEAD_MS.set(by_ms);
    }

    pub(super) fn ahead_ms() -> Millis {
        AHEAD_MS.get()
    }

    /// Sets the time that this thread reads; `None` restores the real clock.
    pub fn set(now_ms: Option<Millis>) {
        NOW_MS.set(now_ms);
    }

    pub(super) fn now_ms() -> Option<Millis> {
        NOW_MS.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uptime_counts_within_one_start_of_the_machine() {
        let now = Uptime::now().unwrap();
        assert!(now.ms > 0 && Uptime::now().unwrap().since(now).is_some_and(|ms| ms >= 0));
        assert_eq!(Uptime { ms: now.ms + 5, ..now }.since(now), Some(5));
        assert_eq!(now.since(Uptime { boot: now.boot ^ 1, ..now }), None);
        assert_eq!(now.since(Uptime { ms: now.ms + 5, ..now }), None);
    }
}

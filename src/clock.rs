//! The wall clock, read in one place.

use std::time::{SystemTime, UNIX_EPOCH};

use muster_topics::Millis;

/// Now, in milliseconds since the Unix epoch; 0 for a clock that stands before it.
#[must_use]
pub fn now_ms() -> Millis {
    #[cfg(test)]
    if let Some(now_ms) = pretended::now_ms() {
        return now_ms;
    }
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Millis::try_from(since_epoch.as_millis()).unwrap_or(Millis::MAX)
}

/// The clock that a simulated party reads.
#[cfg(test)]
pub(crate) mod pretended {
    use std::cell::Cell;

    use muster_topics::Millis;

    thread_local! {
        static NOW_MS: Cell<Option<Millis>> = const { Cell::new(None) };
    }

    /// What the clock shows on this thread; nothing: the real time.
    pub(crate) fn set(now_ms: Option<Millis>) {
        NOW_MS.set(now_ms);
    }

    pub(super) fn now_ms() -> Option<Millis> {
        NOW_MS.get()
    }
}

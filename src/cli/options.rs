//! Options that several nouns have, each with its name, its value's name and its help in one place.

use clap::{Args, ValueEnum};
use muster_topics::Millis;

use super::moment::{self, Moment};

/// A range of time.
#[derive(Args, Clone, Copy, Debug)]
pub struct TimeRange {
    /// Begin at this time
    ///
    /// A time (UTC), such as 2026-01-31 or '2026-01-31 12:00:00', or so long ago, such as 7d.
    #[arg(long, value_name = "TIME", value_parser = moment::parse)]
    since: Option<Moment>,
    /// End at this time [default: now]
    ///
    /// A time (UTC), or so long ago.
    #[arg(long, value_name = "TIME", value_parser = moment::parse)]
    until: Option<Moment>,
}

impl TimeRange {
    /// When it begins, if it says so.
    #[must_use]
    pub fn since_ms(self, now_ms: Millis) -> Option<Millis> {
        self.since.map(|since| since.ms(now_ms))
    }

    /// When it ends.
    #[must_use]
    pub fn until_ms(self, now_ms: Millis) -> Millis {
        self.until.map_or(now_ms, |until| until.ms(now_ms))
    }
}

/// A value of an option that is on or off.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum YesOrNo {
    /// It is
    Yes,
    /// It is not
    No,
}

impl YesOrNo {
    /// Whether it is `yes`.
    #[must_use]
    pub fn is_yes(self) -> bool {
        self == Self::Yes
    }
}

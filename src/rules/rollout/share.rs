//! Shares of hosts.

use std::{fmt, str::FromStr};

use serde_json::Value;

use super::policy::Share;

impl Share {
    /// So many of a number of hosts, but at least one: for what has to admit somebody.
    #[must_use]
    pub fn at_least_one_of(self, hosts: usize) -> usize {
        self.of(hosts).max(1)
    }

    /// So many of a number of hosts, rounded down.
    #[must_use]
    pub fn of(self, hosts: usize) -> usize {
        match self {
            Self::Count(count) => count as usize,
            // A tenth of ten hosts is one, whatever is lost in a float.
            Self::Percent(percent) => (percent * hosts as f64 / 100.0 + 1e-9) as usize,
        }
    }

    /// Whether it is of nobody.
    #[must_use]
    pub fn is_zero(self) -> bool {
        match self {
            Self::Count(count) => count == 0,
            Self::Percent(percent) => percent <= 0.0,
        }
    }

    pub(super) fn read(value: &Value) -> Result<Self, String> {
        const WANTED: &str = "expected a number of hosts, such as 3, or a share, such as 10%";
        match value {
            Value::Number(number) => match number.as_u64().and_then(|number| u32::try_from(number).ok()) {
                Some(count) => Ok(Self::Count(count)),
                None => Err(format!("{number}: {WANTED}")),
            },
            Value::String(text) => text.parse().map_err(|()| format!("{text:?}: {WANTED}")),
            _ => Err(WANTED.to_owned()),
        }
    }

    pub(super) fn write(self) -> Value {
        match self {
            Self::Count(count) => count.into(),
            Self::Percent(_) => self.to_string().into(),
        }
    }
}

impl FromStr for Share {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let text = text.trim();
        match text.strip_suffix('%') {
            Some(percent) => percent_of(percent).filter(|percent| *percent <= 100.0).map(Self::Percent).ok_or(()),
            None => text.parse().map(Self::Count).map_err(|_| ()),
        }
    }
}

/// A number of percent, as people write it: digits, and a point.
pub(super) fn percent_of(text: &str) -> Option<f64> {
    let text = text.trim();
    let is_plain = text.len() <= 16 && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|_| is_plain)
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

//! Realms: namespaces of units and of permission, each with the address and the ports of its units' endpoints.

use core::net::{IpAddr, Ipv4Addr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::name::Name;

/// How deep realms may be nested: deeper ones could not be understood, and each parent is sent with a command.
pub const PARENTS_MAX: usize = 8;

/// The most ports of one realm. To find that all are in use each may have to be tried, and ten thousand attempts take a
/// twentieth of a second.
pub const PORTS_MAX: usize = 10_000;

/// The definition of a realm; what it leaves out it inherits from its parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Realm {
    /// Its name.
    pub name: Name,
    /// The generation: hosts ignore definitions that are older than what they have.
    pub generation: u64,
    /// The realm from which it inherits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Name>,
    /// The address of its global endpoints; 127.0.0.1 if no parent has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bind: Option<IpAddr>,
    /// The ports of its endpoints; 11100 to 11199 if no parent has a range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<PortRange>,
    /// Whether its units, and those of realms below it, are not started.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
}

impl Realm {
    /// Creates an empty definition.
    #[must_use]
    pub fn new(name: Name) -> Self {
        Self { name, generation: 0, parent: None, bind: None, ports: None, disabled: false }
    }
}

/// The default address of global endpoints.
pub const BIND: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A range of ports, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PortRange {
    /// The first port.
    pub first: u16,
    /// The last port.
    pub last: u16,
}

impl Default for PortRange {
    fn default() -> Self {
        Self { first: 11_100, last: 11_199 }
    }
}

impl PortRange {
    /// Returns the number of ports.
    #[must_use]
    pub fn count(self) -> usize {
        usize::from(self.last).saturating_sub(usize::from(self.first)) + usize::from(self.first <= self.last)
    }
}

impl std::fmt::Display for PortRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl std::str::FromStr for PortRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a range of ports: expected FIRST-LAST, such as 11100-11199");
        let (first, last) = text.split_once('-').ok_or_else(wrong)?;
        let range =
            Self { first: first.trim().parse().map_err(|_| wrong())?, last: last.trim().parse().map_err(|_| wrong())? };
        if range.first == 0 || range.count() == 0 { Err(wrong()) } else { Ok(range) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_ranges_parse() {
        for (text, count) in [("11100-11199", Some(100)), ("7-7", Some(1)), ("1-65535", Some(65_535))] {
            let range: Option<PortRange> = text.parse().ok();
            assert_eq!(range.map(PortRange::count), count, "{text}");
            assert_eq!(range.map(|range| range.to_string()).as_deref(), Some(text));
        }
        for text in ["", "7", "8-7", "0-7", "1-65536", "a-b", "-", "1-2-3"] {
            assert!(text.parse::<PortRange>().is_err(), "{text}");
        }
    }
}

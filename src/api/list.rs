//! What of a list is asked for, and in which order: behind the question mark.

use muster_topics::{
    name::Name,
    select::{HostSelect, Select},
};
use serde::{Deserialize, Serialize};

/// `GET /api/v1/hosts?select=…&sort=…&limit=…`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostListing {
    /// Those that this picks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select: Option<HostSelect>,
    /// In which order.
    #[serde(default)]
    pub sort: HostSort,
    /// How many at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// The order of hosts in a list. Those of one place are sorted by hostname.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostSort {
    /// By the names that they give themselves.
    #[default]
    Hostname,
    /// Those that are away first, and of these who has left last.
    Presence,
    /// Those first from which something came last.
    Heard,
    /// Those with the most units first.
    Units,
    /// Those first that joined last.
    Joined,
}

impl HostSort {
    /// The words for it.
    pub const WORDS: [&'static str; 5] = ["hostname", "presence", "heard", "units", "joined"];
}

/// `GET /api/v1/units?host=…&kind=…&select=…&sort=…&limit=…`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnitListing {
    /// Those of this host, by id or hostname.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Those of this kind: `yuno` or `container`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Name>,
    /// Those that this picks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select: Option<Select>,
    /// In which order.
    #[serde(default)]
    pub sort: UnitSort,
    /// How many at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// The order of units in a list. Those of one place are sorted by hostname and name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnitSort {
    /// By the names of their hosts.
    #[default]
    Host,
    /// By their own names.
    Unit,
    /// By what they do, those that fail first.
    Phase,
    /// Those first that came to it last.
    Since,
}

impl UnitSort {
    /// The words for it.
    pub const WORDS: [&'static str; 4] = ["host", "unit", "phase", "since"];
}

/// The order of alerts in a list. Those of one place are sorted by their beginning, the last first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlertSort {
    /// Those that began last first.
    #[default]
    Since,
    /// The worst first.
    Severity,
    /// By the names of their hosts.
    Host,
}

impl AlertSort {
    /// The words for it.
    pub const WORDS: [&'static str; 3] = ["since", "severity", "host"];
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;

    #[test]
    fn every_sort_key_is_valid() {
        fn check<T: DeserializeOwned + Serialize>(words: &[&str]) {
            for word in words {
                let order: T = serde_json::from_value((*word).into()).unwrap();
                assert_eq!(serde_json::to_value(order).unwrap(), *word);
            }
        }
        check::<HostSort>(&HostSort::WORDS);
        check::<UnitSort>(&UnitSort::WORDS);
        check::<AlertSort>(&AlertSort::WORDS);
    }
}

//! What of a list is asked for, and in which order: behind the question mark.

use muster_topics::{
    name::{Name, UnitName},
    select::{HostSelect, Select},
};
use serde::{Deserialize, Serialize};

/// `GET /api/v1/hosts?select=…&sort=…&limit=…`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostListing {
    /// Only hosts that this expression selects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select: Option<HostSelect>,
    /// The order.
    #[serde(default)]
    pub sort: HostSort,
    /// Largest number of hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// The order of hosts in a list. Equal hosts are sorted by hostname.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostSort {
    /// By hostname.
    #[default]
    Hostname,
    /// Offline hosts first, and of these the most recent first.
    Presence,
    /// Hosts with the most recent message first.
    Heard,
    /// Hosts with the most units first.
    Units,
    /// Hosts that joined last first.
    Joined,
}

impl HostSort {
    /// The words of the orders.
    pub const WORDS: [&'static str; 5] = ["hostname", "presence", "heard", "units", "joined"];
}

/// `GET /api/v1/units?host=…&unit=…&kind=…&select=…&sort=…&limit=…`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnitListing {
    /// Only units of this host, given by id or hostname.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Only units of this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<UnitName>,
    /// Only units of this kind: `yuno` or `container`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Name>,
    /// Only units that this expression selects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select: Option<Select>,
    /// The order.
    #[serde(default)]
    pub sort: UnitSort,
    /// Largest number of units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// The order of units in a list. Equal units are sorted by hostname and name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnitSort {
    /// By hostname.
    #[default]
    Host,
    /// By the units' names.
    Unit,
    /// By phase, failed units first.
    Phase,
    /// By the time of the last change of phase, most recent first.
    Since,
}

impl UnitSort {
    /// The words of the orders.
    pub const WORDS: [&'static str; 4] = ["host", "unit", "phase", "since"];
}

/// The order of alerts in a list. Equal alerts are sorted by their start, most recent first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlertSort {
    /// Most recent first.
    #[default]
    Since,
    /// Most severe first.
    Severity,
    /// By hostname.
    Host,
}

impl AlertSort {
    /// The words of the orders.
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

//! Labels that the console gives a host, beside those of the host's own configuration.

use std::collections::BTreeMap;

use crate::name::{LabelValue, Name};

/// The most labels that the console gives one host: as many as a host may have of its own, so that both fit into a
/// heartbeat.
pub const HOST_LABELS_MAX: usize = 32;

/// Returns the labels of a host: its own, and the console's, which win.
#[must_use]
pub fn merge(own: &BTreeMap<Name, String>, given: &BTreeMap<Name, LabelValue>) -> BTreeMap<Name, String> {
    let given = given.iter().map(|(name, value)| (name.clone(), value.as_str().to_owned()));
    own.clone().into_iter().chain(given).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn console_label_overrides_hosts_own() {
        let own: BTreeMap<Name, String> = [("site", "north pole"), ("tier", "gold")]
            .map(|(name, value)| (name.parse().unwrap(), value.into()))
            .into();
        let given: BTreeMap<Name, LabelValue> = [("tier", "iron"), ("canary", "yes")]
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .into();
        let merged = merge(&own, &given);
        let shown: Vec<String> = merged.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(shown, ["canary=yes", "site=north pole", "tier=iron"]);
        assert_eq!(merge(&own, &BTreeMap::new()), own);
    }
}

//! Documents with a number, which the console keeps up to date on each host: rules for alerts, labels, keys, addresses.
//!
//! They have no outcome: a host reports in heartbeats which number of each kind it has ([`Numbers`]), and is sent a
//! document until that is the present one. A host ignores one whose number is not above the one that it has.
//!
//! A further kind is a variant of [`NumberedContent`], with what the compiler asks for.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::{
    Millis, V1,
    address::Addresses,
    alert::Rule,
    command_keys::CommandKeys,
    envelope::{Body, Kind},
    label::HOST_LABELS_MAX,
    name::{HostId, LabelValue, Name},
};

/// A signed body on a host's own command topic: the whole of what the console gives the host of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NumberedDocument {
    /// Version of this payload.
    pub v: V1,
    /// The host; under the signature, so that the document cannot be replayed to another host.
    pub host: HostId,
    /// When the console made this.
    pub issued_ms: Millis,
    /// The number, which grows with each change of this kind of document.
    pub number: u64,
    /// What it says. It replaces all that the host had of this kind.
    pub content: NumberedContent,
}

impl Body for NumberedDocument {
    const KIND: Kind = Kind::NumberedDocument;
}

/// What a numbered document says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NumberedContent {
    /// The console's rules for alerts. They replace the host's own rules of the same name.
    AlertRules(BTreeMap<Name, Rule>),
    /// The labels that the console gives the host, at most [`HOST_LABELS_MAX`]. They replace the host's own labels of the
    /// same name.
    HostLabels(BTreeMap<Name, LabelValue>),
    /// The keys that the console may sign with, the same for all hosts.
    CommandKeys(CommandKeys),
    /// The addresses of the fleet, the same for all hosts.
    HostAddresses(Addresses),
}

/// The kinds of numbered documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NumberedKind {
    /// [`NumberedContent::AlertRules`].
    AlertRules,
    /// [`NumberedContent::HostLabels`].
    HostLabels,
    /// [`NumberedContent::CommandKeys`].
    CommandKeys,
    /// [`NumberedContent::HostAddresses`].
    HostAddresses,
}

/// Which number a host has of each kind; none of a kind that it was never given.
pub type Numbers = BTreeMap<NumberedKind, u64>;

/// Reads numbers, but for those of kinds that this build does not know: a newer party may have them.
///
/// # Errors
/// If they are no map of numbers.
pub fn known<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Numbers, D::Error> {
    let all = BTreeMap::<String, u64>::deserialize(deserializer)?;
    let kind = |name: &str| NumberedKind::ALL.into_iter().find(|kind| kind.as_str() == name);
    Ok(all.iter().filter_map(|(name, number)| Some((kind(name)?, *number))).collect())
}

impl NumberedKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::AlertRules, Self::HostLabels, Self::CommandKeys, Self::HostAddresses];

    /// Returns its name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AlertRules => "alert_rules",
            Self::HostLabels => "host_labels",
            Self::CommandKeys => "command_keys",
            Self::HostAddresses => "host_addresses",
        }
    }
}

impl NumberedContent {
    /// Returns its kind.
    #[must_use]
    pub fn kind(&self) -> NumberedKind {
        match self {
            Self::AlertRules(_) => NumberedKind::AlertRules,
            Self::HostLabels(_) => NumberedKind::HostLabels,
            Self::CommandKeys(_) => NumberedKind::CommandKeys,
            Self::HostAddresses(_) => NumberedKind::HostAddresses,
        }
    }

    /// Checks what no host may follow.
    ///
    /// # Errors
    /// What is wrong, if anything is.
    pub fn check(&self) -> Result<(), String> {
        match self {
            // Rules are checked one by one where they are followed.
            Self::AlertRules(_) => Ok(()),
            Self::HostLabels(labels) if labels.len() > HOST_LABELS_MAX => {
                Err("they are more than a host may have".to_owned())
            }
            Self::HostLabels(_) => Ok(()),
            Self::CommandKeys(keys) => keys.check(),
            Self::HostAddresses(addresses) => addresses.check(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_is_named_as_its_content() {
        let contents = [
            NumberedContent::AlertRules(BTreeMap::new()),
            NumberedContent::HostLabels(BTreeMap::new()),
            NumberedContent::CommandKeys(CommandKeys::default()),
            NumberedContent::HostAddresses(Addresses::default()),
        ];
        assert_eq!(contents.each_ref().map(NumberedContent::kind), NumberedKind::ALL);
        for content in contents {
            let kind = content.kind();
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
            let json = serde_json::to_value(&content).unwrap();
            assert!(json.get(kind.as_str()).is_some(), "{json}");
        }
    }

    #[test]
    fn number_of_an_unknown_kind_is_ignored() {
        let numbers = known(serde_json::json!({ "host_labels": 7, "of_a_newer_build": 9 })).unwrap();
        assert_eq!(numbers, [(NumberedKind::HostLabels, 7)].into());
        assert!(known(serde_json::json!({ "host_labels": "x" })).is_err());
    }

    #[test]
    fn content_that_no_host_may_follow_is_named() {
        let labels = |count: usize| {
            let label = |n| (format!("l{n}").parse().unwrap(), "x".parse().unwrap());
            NumberedContent::HostLabels((0..count).map(label).collect())
        };
        assert_eq!(labels(HOST_LABELS_MAX).check(), Ok(()));
        assert!(labels(HOST_LABELS_MAX + 1).check().unwrap_err().contains("more than a host may have"));
        let no_keys = NumberedContent::CommandKeys(CommandKeys::default());
        assert!(no_keys.check().unwrap_err().contains("they are empty"));
        let urls = vec!["http://h".to_owned()];
        let addresses = Addresses { console_urls: urls, ..Addresses::default() };
        assert!(
            NumberedContent::HostAddresses(addresses).check().unwrap_err().contains("not an address of the console")
        );
    }
}

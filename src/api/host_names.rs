//! Names of hosts in lists. Nothing keeps two hosts from having one name, so where they do an id tells which is meant.

use std::collections::{BTreeMap, BTreeSet};

use muster_topics::name::HostId;

use crate::CommandHost;

/// How much of an id is shown: of ids that are random, four billion differ here.
pub const SHORT_ID_CHARS: usize = 8;

/// The hosts of one list, by their names.
#[derive(Debug, Default)]
pub struct HostNames<'a>(BTreeMap<&'a str, BTreeSet<HostId>>);

impl<'a> HostNames<'a> {
    /// Of all hosts that a list shows; each may come many times.
    pub fn new(hosts: impl IntoIterator<Item = (HostId, &'a str)>) -> Self {
        let mut names: BTreeMap<&str, BTreeSet<HostId>> = BTreeMap::new();
        for (host, name) in hosts {
            names.entry(name).or_default().insert(host);
        }
        Self(names)
    }

    /// Whether no other host of the list has this name.
    pub fn is_unique(&self, name: &str) -> bool {
        self.0.get(name).is_none_or(|hosts| hosts.len() < 2)
    }

    /// A host's name, with the beginning of its id if another one has the same.
    pub fn show(&self, host: HostId, name: &str) -> String {
        if self.is_unique(name) {
            return name.to_owned();
        }
        format!("{name} ({})", short_id(host))
    }
}

/// The hosts of a command with names that tell them apart: for words, not for documents, in which a name is what it is.
pub fn tell_apart(mut hosts: Vec<CommandHost>) -> Vec<CommandHost> {
    let all: Vec<(HostId, String)> = hosts.iter().map(|host| (host.host, host.hostname.clone())).collect();
    let names = HostNames::new(all.iter().map(|(host, name)| (*host, name.as_str())));
    for (host, (id, name)) in hosts.iter_mut().zip(&all) {
        host.hostname = names.show(*id, name);
    }
    hosts
}

/// The beginning of an id, which is enough to type it.
pub fn short_id(host: HostId) -> String {
    host.to_string().chars().take(SHORT_ID_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_one_name_show_their_ids() {
        let id = |digit: &str| format!("{0}{0}{0}{0}{0}{0}{0}{0}-37a1-4a54-9b3e-0d1f6a7f8c21", digit).parse().unwrap();
        let (one, twin, other): (HostId, HostId, HostId) = (id("1"), id("2"), id("3"));
        let names = HostNames::new([(one, "till"), (twin, "till"), (one, "till"), (other, "desk"), (other, "desk")]);
        assert_eq!(names.show(one, "till"), "till (11111111)");
        assert_eq!(names.show(twin, "till"), "till (22222222)");
        assert_eq!(names.show(other, "desk"), "desk");
    }
}

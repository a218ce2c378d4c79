//! Names of hosts in lists. Nothing keeps two hosts from having one name, so where they do an id tells which is meant.

use std::collections::{BTreeMap, BTreeSet};

use muster_topics::name::HostId;

use crate::CommandHost;

/// Number of characters of a host id that are shown: enough for four billion random ids.
pub const SHORT_ID_CHARS: usize = 8;

/// The hosts of one list, by name.
#[derive(Debug, Default)]
pub struct HostNames<'a>(BTreeMap<&'a str, BTreeSet<HostId>>);

impl<'a> HostNames<'a> {
    /// From all hosts of a list; each may occur several times.
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

    /// The name of a host, with the beginning of its id if another host has the same name.
    pub fn show(&self, host: HostId, name: &str) -> String {
        if self.is_unique(name) {
            return name.to_owned();
        }
        format!("{name} ({})", short_id(host))
    }
}

/// Makes the hostnames of a command's hosts unique: for text, not for data, where a name stays unchanged.
pub fn tell_apart(mut hosts: Vec<CommandHost>) -> Vec<CommandHost> {
    let all: Vec<(HostId, String)> = hosts.iter().map(|host| (host.host, host.hostname.clone())).collect();
    let names = HostNames::new(all.iter().map(|(host, name)| (*host, name.as_str())));
    for (host, (id, name)) in hosts.iter_mut().zip(&all) {
        host.hostname = names.show(*id, name);
    }
    hosts
}

/// The beginning of an id, which is enough to identify it on the command line.
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

//! Resolves realms: a realm's own settings, and those inherited from its parents.
//!
//! The console and each host resolve realms by the same functions. An unknown name counts as a
//! realm without settings: whether a realm exists is checked elsewhere.
//!
//! **Invariant: realms have no cycles.** [`Realms::check`] refuses an edge that would close one, and a walk upwards ends
//! after [`PARENTS_MAX`] steps in any case.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use muster_topics::{
    diagnostic::Diagnostic,
    name::Name,
    realm::{BIND, PARENTS_MAX, PORTS_MAX, PortRange, Realm},
};

/// Realms, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Realms(BTreeMap<Name, Realm>);

/// A realm with what it inherits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedRealm {
    /// The address of its global endpoints.
    pub bind: IpAddr,
    /// Its port range.
    pub ports: PortRange,
    /// The disabled realm that disables it: itself or a parent.
    pub disabled: Option<Name>,
    /// Itself and its parents, nearest first.
    pub lineage: Vec<Name>,
}

impl ResolvedRealm {
    /// The address on which an endpoint listens.
    #[must_use]
    pub fn address(&self, global: bool) -> IpAddr {
        match self.bind {
            bind if global => bind,
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        }
    }

    /// The address at which it is reached from the same host: the loopback for one that listens everywhere.
    #[must_use]
    pub fn reached_at(&self, global: bool) -> IpAddr {
        let address = self.address(global);
        if address.is_unspecified() { self.address(false) } else { address }
    }
}

impl FromIterator<Realm> for Realms {
    fn from_iter<T: IntoIterator<Item = Realm>>(realms: T) -> Self {
        Self(realms.into_iter().map(|realm| (realm.name.clone(), realm)).collect())
    }
}

impl Realms {
    /// Returns the definition of a realm.
    #[must_use]
    pub fn get(&self, name: &Name) -> Option<&Realm> {
        self.0.get(name)
    }

    /// Iterates over all defined realms.
    pub fn iter(&self) -> impl Iterator<Item = &Realm> {
        self.0.values()
    }

    /// Adds or replaces a realm.
    pub fn insert(&mut self, realm: Realm) {
        self.0.insert(realm.name.clone(), realm);
    }

    /// Returns a realm and its parents, nearest first.
    #[must_use]
    pub fn lineage(&self, name: &Name) -> Vec<Name> {
        let mut lineage = vec![name.clone()];
        while let Some(parent) = lineage.last().and_then(|name| self.get(name)).and_then(|realm| realm.parent.clone()) {
            if lineage.len() > PARENTS_MAX || lineage.contains(&parent) {
                break;
            }
            lineage.push(parent);
        }
        lineage
    }

    /// Resolves what a realm inherits.
    #[must_use]
    pub fn resolve(&self, name: &Name) -> ResolvedRealm {
        let lineage = self.lineage(name);
        let known = || lineage.iter().filter_map(|name| self.get(name));
        ResolvedRealm {
            bind: known().find_map(|realm| realm.bind).unwrap_or(BIND),
            ports: known().find_map(|realm| realm.ports).unwrap_or_default(),
            disabled: known().find(|realm| realm.disabled).map(|realm| realm.name.clone()),
            lineage,
        }
    }

    /// Returns the definitions of a realm and its parents, parents first.
    #[must_use]
    pub fn chain(&self, name: &Name) -> Vec<Realm> {
        self.lineage(name).iter().rev().filter_map(|name| self.get(name)).cloned().collect()
    }

    /// Returns the realms whose parent this is.
    #[must_use]
    pub fn children(&self, name: &Name) -> Vec<&Name> {
        self.iter().filter(|realm| realm.parent.as_ref() == Some(name)).map(|realm| &realm.name).collect()
    }

    /// Returns everything that would be wrong with a realm among these.
    #[must_use]
    pub fn check(&self, realm: &Realm) -> Vec<Diagnostic> {
        let mut wrong = Vec::new();
        if let Some(ports) = realm.ports {
            if ports.first == 0 || ports.count() == 0 {
                wrong.push(format!("the ports {ports} are not a range: the last port is below the first").into());
            } else if ports.count() > PORTS_MAX {
                wrong.push(
                    format!("the ports {ports} are {} ports; a realm may have at most {PORTS_MAX}", ports.count())
                        .into(),
                );
            }
        }
        if realm.bind.is_some_and(|bind| bind.is_multicast()) {
            wrong.push("a program cannot listen at a multicast address".into());
        }
        let Some(parent) = &realm.parent else { return wrong };
        if *parent != Name::default_realm() && self.get(parent).is_none() && *parent != realm.name {
            wrong.push(
                Diagnostic::new(format_args!("there is no realm {parent} to be its parent"))
                    .with_hint(format_args!("`muster realm create {parent}`")),
            );
        }
        let above = self.lineage(parent);
        if above.contains(&realm.name) {
            let way: Vec<&str> = above.iter().take_while(|name| **name != realm.name).map(Name::as_str).collect();
            let way = if way.is_empty() { String::new() } else { format!(" (through {})", way.join(", ")) };
            wrong.push(format!("{} would be its own parent{way}", realm.name).into());
        } else if above.len() > PARENTS_MAX {
            wrong.push(format!("{parent} is {} realms deep, the maximum", PARENTS_MAX).into());
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> Name {
        name.parse().unwrap()
    }

    /// Parses `NAME<PARENT`, and applies `change`.
    fn realm(text: &str, change: impl FnOnce(&mut Realm)) -> Realm {
        let (own, parent) = text.split_once('<').map_or((text, None), |(own, parent)| (own, Some(name(parent))));
        let mut realm = Realm { parent, ..Realm::new(name(own)) };
        change(&mut realm);
        realm
    }

    fn realms() -> Realms {
        [
            realm("land", |realm| {
                realm.bind = Some("10.1.2.3".parse().unwrap());
                realm.ports = Some("500-509".parse().unwrap());
            }),
            realm("town<land", |realm| realm.disabled = true),
            realm("shop<town", |realm| realm.ports = Some("600-600".parse().unwrap())),
            realm("six", |realm| realm.bind = Some("::".parse().unwrap())),
        ]
        .into_iter()
        .collect()
    }

    #[track_caller]
    fn check(realm: &str, bind: &str, ports: &str, disabled: Option<&str>, lineage: &str) {
        let resolved = realms().resolve(&name(realm));
        let names: Vec<&str> = resolved.lineage.iter().map(Name::as_str).collect();
        assert_eq!(
            (resolved.bind.to_string().as_str(), resolved.ports.to_string().as_str(), names.join(" ").as_str()),
            (bind, ports, lineage)
        );
        assert_eq!(resolved.disabled, disabled.map(name));
    }

    #[test]
    fn settings_are_inherited_from_nearest_parent() {
        check("default", "127.0.0.1", "11100-11199", None, "default");
        check("land", "10.1.2.3", "500-509", None, "land");
        check("town", "10.1.2.3", "500-509", Some("town"), "town land");
        check("shop", "10.1.2.3", "600-600", Some("town"), "shop town land");
    }

    #[test]
    fn realm_address_is_resolved() {
        for (realm, global, address, reached_at) in [
            ("default", false, "127.0.0.1", "127.0.0.1"),
            ("land", false, "127.0.0.1", "127.0.0.1"),
            ("land", true, "10.1.2.3", "10.1.2.3"),
            ("six", false, "::1", "::1"),
            ("six", true, "::", "::1"),
        ] {
            let resolved = realms().resolve(&name(realm));
            let seen = (resolved.address(global).to_string(), resolved.reached_at(global).to_string());
            assert_eq!(seen, (address.to_owned(), reached_at.to_owned()), "{realm} {global}");
        }
    }

    #[track_caller]
    fn check_wrong(new: &Realm, words: &[&str]) {
        let wrong = realms().check(new);
        assert_eq!(wrong.len(), words.len(), "{wrong:?}");
        for (wrong, word) in wrong.iter().zip(words) {
            assert!(wrong.cause.contains(word), "{wrong:?} has no {word:?}");
        }
    }

    #[test]
    fn all_faults_are_reported_at_once() {
        check_wrong(&realm("new<shop", |_| ()), &[]);
        check_wrong(&realm("new<default", |_| ()), &[]);
        check_wrong(&realm("new<none", |_| ()), &["no realm none"]);
        check_wrong(&realm("new<new", |_| ()), &["its own parent"]);
        check_wrong(&realm("land<shop", |_| ()), &["its own parent (through shop, town)"]);
        check_wrong(
            &realm("new<none", |realm| {
                realm.ports = Some(PortRange { first: 1, last: 60_000 });
                realm.bind = Some("224.0.0.1".parse().unwrap());
            }),
            &["60000 ports", "multicast", "no realm none"],
        );
        check_wrong(&realm("new", |realm| realm.ports = Some(PortRange { first: 9, last: 8 })), &["not a range"]);
    }

    #[test]
    fn walk_over_cycle_ends() {
        let ring: Realms = [realm("a<b", |_| ()), realm("b<a", |_| ())].into_iter().collect();
        assert_eq!(ring.lineage(&name("a")), [name("a"), name("b")]);
        let mut deep = Realms::default();
        deep.insert(realm("r0", |_| ()));
        for level in 1..=PARENTS_MAX {
            let next = realm(&format!("r{level}<r{}", level - 1), |_| ());
            assert_eq!(deep.check(&next), [], "{level}");
            deep.insert(next);
        }
        assert_eq!(deep.check(&realm(&format!("r<r{PARENTS_MAX}"), |_| ())).len(), 1);
    }

    #[test]
    fn parents_come_before_children() {
        let chain = realms().chain(&name("shop"));
        assert_eq!(chain.iter().map(|realm| realm.name.as_str()).collect::<Vec<_>>(), ["land", "town", "shop"]);
        assert_eq!(realms().children(&name("town")), [&name("shop")]);
    }
}

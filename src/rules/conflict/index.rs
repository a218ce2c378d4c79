//! An index over the resources of units.

use std::collections::BTreeMap;

use muster_topics::{container::Runtime, endpoint::Protocol, task::Resource, unit::Spec};

use super::Claimant;

/// A conflict between two units about one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clash {
    /// The claimants by their place in the list, each with whether it is about what that was before.
    pub sides: [(usize, bool); 2],
    /// What each of them wants.
    pub wants: [Resource; 2],
}

/// What can be wanted once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Package(String),
    Repository(String, String),
    Login(String),
    Path(String),
    Port(Protocol, u16),
    Container(Runtime, String),
}

impl Key {
    fn of(resource: &Resource) -> Self {
        match resource {
            Resource::Package { name, .. } => Self::Package(name.clone()),
            Resource::Repository { url, suite, .. } => Self::Repository(url.clone(), suite.clone()),
            Resource::Login { url, .. } => Self::Login(url.clone()),
            Resource::Path(path) => Self::Path(path.clone()),
            Resource::Port { protocol, port } => Self::Port(*protocol, *port),
            Resource::Container { runtime, name } => Self::Container(*runtime, name.clone()),
        }
    }
}

/// A resource that a spec wants.
#[derive(Clone, Debug)]
struct Claim {
    side: (usize, bool),
    resource: Resource,
    /// Whether it is everything below a path, too.
    is_whole: bool,
}

/// Returns all conflicts between two units, for what each is to be and what it was before.
pub(super) fn clashes(units: &[Claimant<'_>]) -> Vec<Clash> {
    let mut index: BTreeMap<Key, Vec<Claim>> = BTreeMap::new();
    for (at, unit) in units.iter().enumerate() {
        for (spec, is_earlier) in [(Some(unit.spec), false), (unit.earlier, true)] {
            let Some(spec) = spec else { continue };
            for resource in spec.resources() {
                let claim = Claim { side: (at, is_earlier), is_whole: is_whole(spec, &resource), resource };
                index.entry(Key::of(&claim.resource)).or_default().push(claim);
            }
        }
    }
    let mut clashes = Vec::new();
    let mut add = |one: &Claim, other: &Claim| {
        if one.side.0 != other.side.0 {
            let wants = [one.resource.clone(), other.resource.clone()];
            clashes.push(Clash { sides: [one.side, other.side], wants });
        }
    };
    for (key, claims) in &index {
        for (at, one) in claims.iter().enumerate() {
            let is_of_realm = |other: &Claim| units[one.side.0].unit.realm() == units[other.side.0].unit.realm();
            for other in &claims[..at] {
                // A secret of another realm is another one.
                let are_alike = are_alike(&one.resource, &other.resource);
                if !are_alike || matches!(key, Key::Login(_)) && !is_of_realm(other) {
                    add(one, other);
                }
            }
            let Key::Path(path) = key else { continue };
            for above in above(path).filter_map(|above| index.get(&Key::Path(above.to_owned()))) {
                above.iter().filter(|claim| claim.is_whole).for_each(|other| add(one, other));
            }
        }
    }
    clashes
}

/// Whether two units may want both.
fn are_alike(one: &Resource, other: &Resource) -> bool {
    let (one, other) = match (one, other) {
        (Resource::Package { version: one, .. }, Resource::Package { version: other, .. }) => (one, other),
        (Resource::Repository { key: one, .. }, Resource::Repository { key: other, .. }) => return one == other,
        (Resource::Login { .. }, Resource::Login { .. }) => return one == other,
        _ => return false,
    };
    let is_absent = |version: &Option<String>| version.as_deref() == Some("");
    one == other || (one.is_none() || other.is_none()) && is_absent(one) == is_absent(other)
}

/// Whether a spec wants everything below a path: a folder that it purges, or something that is no folder.
fn is_whole(spec: &Spec, resource: &Resource) -> bool {
    let (Spec::Files(spec), Resource::Path(path)) = (spec, resource) else { return false };
    let entry = spec.files.get(path);
    entry.is_some_and(|entry| entry.directory.as_ref().is_none_or(|directory| directory.purge))
}

/// The folders above a path, the nearest first.
fn above(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| path.rsplit_once('/').map(|(above, _)| above)).skip(1)
}

/// Whether a resource belongs to a spec: itself, or because it is below what that wants as a whole.
#[must_use]
pub fn owns(spec: &Spec, resource: &Resource) -> bool {
    let key = Key::of(resource);
    spec.resources().iter().any(|own| match (own, resource) {
        (Resource::Package { version, .. }, _) if version.as_deref() == Some("") => false,
        (Resource::Path(own_path), Resource::Path(path)) => {
            own_path == path
                || is_whole(spec, own) && above(path).any(|above| above == own_path)
                || is_below(own_path, path)
        }
        _ => Key::of(own) == key,
    })
}

/// Whether a path is below a folder: then the folder is needed, too.
fn is_below(path: &str, folder: &str) -> bool {
    above(path).any(|above| above == folder)
}

//! Which unit has which resources, as far as kinds need to know it: what is removed must not be another unit's.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, PoisonError, RwLock},
};

use muster_rules::conflict::index;
use muster_topics::{name::UnitName, task::Resource, unit::Spec};

/// The units of the host that have resources, each with its spec. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Owners {
    specs: Arc<RwLock<BTreeMap<UnitName, Vec<Arc<Spec>>>>>,
}

impl Owners {
    /// Whether another unit owns a resource: then it stays when this unit goes, or does not want it any more.
    pub(super) fn is_owned_by_other(&self, unit: &UnitName, resource: &Resource) -> bool {
        let specs = self.specs.read().unwrap_or_else(PoisonError::into_inner);
        let others = specs.iter().filter(|(owner, _)| *owner != unit);
        others.flat_map(|(_, specs)| specs).any(|spec| index::owns(spec, resource))
    }

    /// The packages that other units want to be there.
    pub(super) fn packages_of_others(&self, unit: &UnitName) -> BTreeSet<String> {
        let specs = self.specs.read().unwrap_or_else(PoisonError::into_inner);
        let others = specs.iter().filter(|(owner, _)| *owner != unit).flat_map(|(_, specs)| specs);
        let owned = others.flat_map(|spec| spec.resources()).filter_map(|resource| match resource {
            Resource::Package { name, version } if version.as_deref() != Some("") => Some(name),
            _ => None,
        });
        owned.collect()
    }

    /// Replaces all.
    pub(super) fn set(&self, specs: BTreeMap<UnitName, Vec<Arc<Spec>>>) {
        *self.specs.write().unwrap_or_else(PoisonError::into_inner) = specs;
    }
}

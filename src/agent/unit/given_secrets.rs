//! The secrets that units of this host were given: where values come in, and what masks them in everything that goes out.
//!
//! **Invariant: a value is known here before anything that was given it can speak.** Values come in by [`SecretSource::fetch`] and
//! [`GivenSecrets::add`] alone; after a restart of the agent, from what its kinds have kept ([`super::masked`]).
//!
//! Earlier versions stay known as long as their unit is there: a process goes on with what it was started with.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, PoisonError, RwLock},
};

use muster_bus::sealing::HostKey;
use muster_rules::{mask::SecretMask, plan::Failure};
use muster_topics::{
    name::{HostId, Name, UnitName},
    secret::{SECRETS_MAX, SecretRef},
};
use serde_json::Value;
use zeroize::Zeroizing;

use super::failure::{from_artifact, may_heal};
use crate::artifact::Artifacts;

/// The most values of a unit that are known: some versions of each of its secrets.
const VALUES_MAX: usize = 8 * SECRETS_MAX;

/// The values that units were given. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct GivenSecrets(Arc<RwLock<BTreeMap<UnitName, UnitSecrets>>>);

/// The values of a unit, the newest last.
#[derive(Default)]
struct UnitSecrets {
    values: VecDeque<Zeroizing<String>>,
    mask: Arc<SecretMask>,
}

impl std::fmt::Debug for UnitSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UnitSecrets({} values)", self.values.len())
    }
}

impl GivenSecrets {
    /// Adds values that a unit is given, or was.
    pub(super) fn add(&self, unit: &UnitName, values: impl IntoIterator<Item = impl AsRef<str>>) {
        let mut given = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let mut added = Vec::new();
        for value in values {
            let value = value.as_ref();
            let is_known = given.get(unit).is_some_and(|of| of.values.iter().any(|known| **known == *value));
            if !is_known && !value.is_empty() {
                added.push(Zeroizing::new(value.to_owned()));
            }
        }
        if added.is_empty() {
            return;
        }
        let of = given.entry(unit.clone()).or_default();
        of.values.extend(added);
        let over = of.values.len().saturating_sub(VALUES_MAX);
        of.values.drain(..over);
        of.mask = Arc::new(SecretMask::of(of.values.iter().map(|value| value.as_str())));
    }

    /// Returns what masks the values of a unit.
    pub(super) fn mask(&self, unit: &UnitName) -> Arc<SecretMask> {
        let given = self.0.read().unwrap_or_else(PoisonError::into_inner);
        given.get(unit).map(|of| of.mask.clone()).unwrap_or_default()
    }

    /// Forgets a unit that is gone.
    pub(super) fn forget(&self, unit: &UnitName) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(unit);
    }
}

/// Returns the texts of a secret in a config, which may be any document.
pub(super) fn texts_of(secret: &Value) -> Vec<String> {
    match secret {
        Value::String(text) => vec![text.clone()],
        Value::Number(number) => vec![number.to_string()],
        Value::Array(items) => items.iter().flat_map(texts_of).collect(),
        Value::Object(object) => object.values().flat_map(texts_of).collect(),
        Value::Bool(_) | Value::Null => Vec::new(),
    }
}

/// Fetches secrets for units of this host.
#[derive(Clone)]
pub(super) struct SecretSource {
    host: HostId,
    /// The host's key, to which they are sealed.
    key: HostKey,
    artifacts: Artifacts,
    given: GivenSecrets,
}

impl SecretSource {
    pub(super) fn new((host, key): (HostId, HostKey), artifacts: Artifacts, given: GivenSecrets) -> Self {
        Self { host, key, artifacts, given }
    }

    /// The host.
    pub(super) fn host(&self) -> HostId {
        self.host
    }

    /// The values that units were given.
    pub(super) fn given(&self) -> &GivenSecrets {
        &self.given
    }

    /// Fetches the secrets of a unit, by name.
    pub(super) async fn fetch(
        &self,
        unit: &UnitName,
        secrets: &[SecretRef],
    ) -> Result<BTreeMap<Name, Zeroizing<String>>, Failure> {
        let realm = unit.realm();
        let mut values = BTreeMap::new();
        for secret in secrets {
            let sealed = self.artifacts.secret(&realm, secret).await.map_err(from_artifact)?;
            let value = self.key.open_secret(&sealed, (&realm, secret), self.host).map_err(|_| {
                // The console seals it to another key if this host has made a new one, which it hands over.
                may_heal(format!("secret {realm}/{secret} cannot be read: it is not sealed to this host's present key"))
            })?;
            values.insert(secret.name.clone(), value);
        }
        self.given.add(unit, values.values().map(|value| value.as_str()));
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use muster_rules::mask::Cut;

    use super::*;

    #[test]
    fn earlier_versions_stay_until_the_unit_is_gone() {
        let (given, unit): (_, UnitName) = (GivenSecrets::default(), "default/till".parse().unwrap());
        let said = "first-value second-value";
        assert_eq!(given.mask(&unit).text(said, Cut::NONE), said);
        given.add(&unit, ["first-value"]);
        given.add(&unit, ["second-value", ""]);
        assert_eq!(given.mask(&unit).text(said, Cut::NONE), "*** ***");
        assert_eq!(given.mask(&"default/other".parse().unwrap()).text(said, Cut::NONE), said);
        given.add(&unit, (0..VALUES_MAX).map(|number| format!("value-number-{number}")));
        assert_eq!(given.mask(&unit).text("first-value value-number-9", Cut::NONE), "first-value ***");
        assert!(!format!("{given:?}").contains("value-number"), "they are not in logs either");
        given.forget(&unit);
        assert_eq!(given.mask(&unit).text("value-number-9", Cut::NONE), "value-number-9");
    }
}

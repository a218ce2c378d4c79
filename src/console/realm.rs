//! Realms: the console defines them, and sends them to hosts.
//!
//! A realm is fleet-wide. A command tells each host of a change and waits for offline hosts as long as a
//! command may; and the realms of a unit are sent along with the unit ([`chain`]), so that no host depends on an
//! earlier command.
//!
//! **Invariant: a realm is stored before it is sent to any host**, and can be removed only if no unit is known to be in it.

use std::collections::BTreeSet;

use axum::http::StatusCode;
use muster_api::{NewCommand, NewTarget, RealmFields};
use muster_base::clock::now_ms;
use muster_rules::realm::Realms;
use muster_topics::count::counted;
use muster_topics::{
    command::{LIFETIME_MAX_MS, Verb},
    diagnostic::Diagnostic,
    name::{CommandId, Name},
    realm::Realm,
};

use super::{
    dispatch,
    error::Error,
    state::Console,
    store::{Store, StoreError, host, realm},
};

/// The most realms of a fleet. An agent may have as many as its heartbeats have room for.
const REALMS_MAX: usize = 60;

impl Console {
    /// Returns all realms, `default` included.
    pub async fn realms(&self) -> Result<Vec<muster_api::Realm>, Error> {
        let db = self.shared.store.read();
        let (realms, counts) = (all(&self.shared.store).await?, realm::unit_counts(db).await?);
        let units = |name: &Name| counts.get(name).copied().unwrap_or_default();
        Ok(realms.iter().map(|realm| shown(&realms, realm, units(&realm.name))).collect())
    }

    /// Returns one realm.
    pub async fn realm(&self, name: &Name) -> Result<muster_api::Realm, Error> {
        let found = self.realms().await?.into_iter().find(|realm| realm.realm.name == *name);
        found.ok_or_else(|| unknown(name))
    }

    /// Creates a realm, and sends it to all hosts. Repeating it changes nothing.
    pub async fn create_realm(
        &self,
        operator: &Name,
        new: muster_api::NewRealm,
    ) -> Result<muster_api::RealmChanged, Error> {
        let muster_api::NewRealm { name, parent, bind, ports, disabled } = new;
        let fields = RealmFields { parent, bind, ports, disabled, if_generation: None };
        self.change_realm(operator, &name, fields, true).await
    }

    /// Changes a realm, and sends it to all hosts.
    pub async fn update_realm(
        &self,
        operator: &Name,
        name: &Name,
        fields: RealmFields,
    ) -> Result<muster_api::RealmChanged, Error> {
        self.change_realm(operator, name, fields, false).await
    }

    async fn change_realm(
        &self,
        operator: &Name,
        name: &Name,
        fields: RealmFields,
        create: bool,
    ) -> Result<muster_api::RealmChanged, Error> {
        self.shared.check_operator(operator).await?;
        let mut transaction = self.shared.store.begin().await?;
        let realms = with_default(realm::all(&mut *transaction).await?);
        let before = realms.get(name);
        let RealmFields { parent, bind, ports, disabled, if_generation } = fields;
        let generation = before.map_or(0, |before| before.generation);
        let mut after = Realm { name: name.clone(), generation, parent, bind, ports, disabled };
        match before {
            None if !create => return Err(unknown(name)),
            None if realms.iter().count() >= REALMS_MAX => {
                return Err(Error::conflict("too_many_realms", format!("there are {REALMS_MAX} realms, the maximum")));
            }
            Some(before) if *before == after => {
                let realm = self.realm(name).await?;
                return Ok(muster_api::RealmChanged { realm, command: None });
            }
            Some(_) if create => {
                return Err(Error::conflict("realm_exists", format!("realm {name} exists with other fields"))
                    .hint(format!("`muster realm set {name}` changes it")));
            }
            Some(before) if if_generation.is_some_and(|wanted| wanted != before.generation) => {
                return Err(Error::conflict("changed_meanwhile", format!("realm {name} has changed since"))
                    .hint("read it again, then change it"));
            }
            _ => {}
        }
        let wrong = realms.check(&after);
        if let Some(wrong) = Diagnostic::all(wrong) {
            return Err(Error::told(StatusCode::BAD_REQUEST, "bad_realm", wrong));
        }
        realm::set(&mut transaction, &mut after, now_ms()).await?;
        transaction.commit().await.map_err(StoreError::from)?;
        tracing::info!(realm = %name, %operator, "a realm was changed");
        self.shared.hosts.desired.realm_changed(&all(&self.shared.store).await?, name);
        let command = self.tell_all(operator, Verb::RealmSet { realm: name.clone() }).await?;
        Ok(muster_api::RealmChanged { realm: self.realm(name).await?, command })
    }

    /// Removes a realm that has no units, here and on all hosts.
    pub async fn remove_realm(&self, operator: &Name, name: &Name) -> Result<muster_api::RealmRemoved, Error> {
        self.shared.check_operator(operator).await?;
        let shown = self.realm(name).await?;
        if *name == Name::default_realm() {
            return Err(Error::conflict("default_realm", "the realm default cannot be removed")
                .hint("remove its units, or use another realm (`muster realm create`)"));
        }
        if shown.units > 0 {
            return Err(Error::conflict("realm_in_use", format!("realm {name} has {}", counted(shown.units, "unit")))
                .hint("remove them first; `muster unit ls` lists them"));
        }
        if let Some(deployment) = self.shared.hosts.desired.deployment_in(name) {
            return Err(Error::conflict(
                "realm_in_use",
                format!("the deployment {deployment} has units in realm {name}"),
            )
            .hint(format!("`muster deployment rm {deployment}` removes it, or give its units another realm")));
        }
        let realms = all(&self.shared.store).await?;
        let children: Vec<&str> = realms.children(name).into_iter().map(Name::as_str).collect();
        if !children.is_empty() {
            return Err(Error::conflict(
                "realm_in_use",
                format!("realm {name} is the parent of {}", children.join(", ")),
            )
            .hint("give these another parent first, or remove them"));
        }
        let mut transaction = self.shared.store.begin().await?;
        realm::remove(&mut transaction, name).await?;
        transaction.commit().await.map_err(StoreError::from)?;
        tracing::info!(realm = %name, %operator, "a realm was removed");
        let command = self.tell_all(operator, Verb::RealmRm { realm: name.clone() }).await?;
        Ok(muster_api::RealmRemoved { command })
    }

    /// Sends a command to all hosts; returns `None` if there are none.
    async fn tell_all(&self, operator: &Name, verb: Verb) -> Result<Option<CommandId>, Error> {
        if host::count(self.shared.store.read()).await?.0 == 0 {
            return Ok(None);
        }
        let expires_in_ms = u64::try_from(LIFETIME_MAX_MS).ok();
        let command = NewCommand { target: NewTarget::All, expires_in_ms, verb, copied_from: None };
        Ok(Some(dispatch::announce(self, operator, command).await?.id))
    }
}

/// Returns the definitions of realms that hosts need for a verb; see [`muster_topics::command::Command::realms`].
pub(super) async fn chain(store: &Store, verb: &Verb) -> Result<Vec<Realm>, StoreError> {
    let names: BTreeSet<Name> = match verb {
        Verb::RealmSet { realm } => [realm.clone()].into(),
        other => other.specs().map(|(unit, _)| unit.realm()).collect(),
    };
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let known = realm::all(store.read()).await?;
    let mut chain: Vec<Realm> = Vec::new();
    for realm in names.iter().flat_map(|name| known.chain(name)) {
        if chain.iter().all(|told| told.name != realm.name) {
            chain.push(realm);
        }
    }
    Ok(chain)
}

async fn all(store: &Store) -> Result<Realms, StoreError> {
    Ok(with_default(realm::all(store.read()).await?))
}

/// Adds the realm `default`, which always exists.
fn with_default(mut realms: Realms) -> Realms {
    if realms.get(&Name::default_realm()).is_none() {
        realms.insert(Realm::new(Name::default_realm()));
    }
    realms
}

fn shown(realms: &Realms, realm: &Realm, units: u64) -> muster_api::Realm {
    let resolved = realms.resolve(&realm.name);
    muster_api::Realm {
        realm: realm.clone(),
        comes_to: muster_api::RealmComesTo {
            bind: resolved.bind,
            ports: resolved.ports,
            disabled_by: resolved.disabled,
        },
        units,
    }
}

fn unknown(name: &Name) -> Error {
    Error::not_found("unknown_realm", format!("there is no realm {name}")).hint(format!(
        "`muster realm ls`, or GET /api/v1/realms, lists them, and `muster realm create {name}` makes it"
    ))
}

#[cfg(test)]
mod tests;

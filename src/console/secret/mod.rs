//! Secrets that units use by name: set and removed by operators, encrypted at rest, and given to the hosts of the units
//! that use them.
//!
//! Modules: [`keyring`] (encryption at rest), [`resolve`] (which version a unit gets).
//!
//! A secret belongs to a realm. Each value is a version, and a unit's spec names the version that it has, so that a changed
//! secret is a change of the unit as any other: a command, a new revision, and the way back to the former value.
//!
//! **Invariant: a value leaves the console only sealed to a host that was told to use it**; there is no other way to read
//! one. Who was told is what the console has given ([`crate::given`]), not what a host says.

mod keyring;
mod resolve;
#[cfg(test)]
mod tests;

use std::sync::{PoisonError, RwLockReadGuard, RwLockWriteGuard};

use axum::http::StatusCode;
use muster_api::{
    KeyRotation, NewSecret, Secret, SecretConfig, SecretDetail, SecretSet, SecretUser, SecretVersion,
    SecretVersionState, Unit,
};
use muster_base::clock::now_ms;
use muster_bus::sealing;
use muster_rules::{config, render};
use muster_topics::{
    name::{HostId, Name},
    secret::{SECRET_MAX_BYTES, SealedSecret, SecretRef},
};
use zeroize::Zeroizing;

pub(crate) use self::{
    keyring::{Keyring, KeyringError},
    resolve::{fill_in, resolve, secrets_of},
};
use crate::{
    content,
    error::Error,
    state::{Console, ConsoleState},
    store::{
        StoreError,
        given::GivenPart,
        host,
        secret::{self, SecretRow},
    },
};

/// The most secrets of a fleet: with 64 KiB each they remain a small part of the store.
const STORED_MAX: usize = 4096;

/// How many versions of a secret keep their value, beside those that something needs: enough to go back by hand.
const VERSIONS_KEPT: usize = 10;

/// How many values are encrypted anew in one transaction.
const BATCH: u32 = 100;

impl ConsoleState {
    fn keys(&self) -> RwLockReadGuard<'_, Keyring> {
        // No panic leaves it inconsistent.
        self.secret_keys.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn keys_mut(&self) -> RwLockWriteGuard<'_, Keyring> {
        self.secret_keys.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the value of a version; `None` if it was erased, or its key is lost.
    fn value(&self, row: &SecretRow) -> Option<Zeroizing<String>> {
        self.keys().decrypt(&row.realm, &row.secret, row.value.as_ref()?)
    }
}

impl Console {
    /// Sets a secret. The value that it has already changes nothing.
    pub async fn set_secret(&self, operator: &Name, new: NewSecret) -> Result<SecretSet, Error> {
        let shared = &self.shared;
        let NewSecret { realm, name, value } = new;
        let value = Zeroizing::new(value);
        check_value(&value)?;
        content::check_room(&shared.store)?;
        self.realm(&realm).await?;
        let _content = shared.content.lock.lock().await;
        let before = secret::versions(shared.store.read(), &realm, &name).await?;
        let newest = before.first().filter(|row| row.value.is_some());
        if let Some(row) = newest.filter(|row| shared.value(row).is_some_and(|known| *known == *value)) {
            let units = host::units(shared.store.read(), None, None).await?;
            return Ok(SecretSet { secret: self.shown(row, &units), changed: false });
        }
        if newest.is_none() && secret::newest_versions(shared.store.read()).await?.len() >= STORED_MAX {
            return Err(Error::conflict("too_many_secrets", format!("there are {STORED_MAX} secrets, the maximum"))
                .hint(
                    "`muster secret ls` lists them with the units that use them, and `muster secret rm` removes one",
                ));
        }
        let version = before.first().map_or(0, |row| row.secret.version).saturating_add(1);
        let secret = SecretRef { name: name.clone(), version };
        let encrypted = shared.keys().encrypt(&realm, &secret, &value);
        let encrypted = encrypted.map_err(|error| Error::internal("encrypting the secret", &error))?;
        let (operator, set_ms) = (operator.clone(), now_ms());
        let row = SecretRow { realm: realm.clone(), secret, value: Some(encrypted), operator, set_ms };
        secret::add(shared.store.write(), &row).await?;
        self.erase_old(&realm, &name, &before).await?;
        tracing::info!(%realm, secret = %row.secret, operator = %row.operator, "a secret was set");
        shared.hosts.desired.content_changed();
        let units = host::units(shared.store.read(), None, None).await?;
        Ok(SecretSet { secret: self.shown(&row, &units), changed: true })
    }

    /// Erases old values that nothing needs; `before` are the versions before the one that was just set.
    async fn erase_old(&self, realm: &Name, name: &Name, before: &[SecretRow]) -> Result<(), Error> {
        let shared = &self.shared;
        let stored = before.iter().filter(|row| row.value.is_some());
        let old: Vec<u32> = stored.skip(VERSIONS_KEPT - 1).map(|row| row.secret.version).collect();
        if old.is_empty() {
            return Ok(());
        }
        let holders = content::holders(shared).await?;
        // A snapshot that does not list all that it needs may need any of them.
        if holders.iter().any(|holder| holder.and_more) {
            return Ok(());
        }
        let needed = |version: &u32| {
            let is_it = |one: &SecretRef| one.name == *name && one.version == *version;
            holders.iter().any(|holder| holder.secrets.0 == *realm && holder.secrets.1.iter().any(is_it))
        };
        let unneeded: Vec<u32> = old.into_iter().filter(|version| !needed(version)).collect();
        self.erase(realm, name, &unneeded).await
    }

    async fn erase(&self, realm: &Name, name: &Name, versions: &[u32]) -> Result<(), Error> {
        let mut transaction = self.shared.store.begin().await?;
        secret::erase(&mut transaction, realm, name, versions).await?;
        transaction.commit().await.map_err(StoreError::from)?;
        Ok(())
    }

    /// Returns all secrets that have a value, without it.
    pub async fn secrets(&self) -> Result<Vec<Secret>, Error> {
        let units = host::units(self.shared.store.read(), None, None).await?;
        let rows = secret::newest(self.shared.store.read()).await?;
        Ok(rows.iter().map(|row| self.shown(row, &units)).collect())
    }

    /// Returns the newest version of each secret, with its realm.
    pub(crate) async fn secret_versions(&self) -> Result<Vec<(Name, SecretRef)>, Error> {
        Ok(secret::newest_versions(self.shared.store.read()).await?)
    }

    fn shown(&self, row: &SecretRow, units: &[Unit]) -> Secret {
        let users = users(units, &row.realm, &row.secret.name);
        let behind = users.iter().filter(|user| user.version < row.secret.version).count();
        Secret {
            readable: self.shared.value(row).is_some(),
            realm: row.realm.clone(),
            name: row.secret.name.clone(),
            version: row.secret.version,
            set_ms: row.set_ms,
            operator: row.operator.clone(),
            units: users.len() as u64,
            behind: behind as u64,
        }
    }

    /// Returns a secret with its history and its users.
    pub async fn secret(&self, realm: &Name, name: &Name) -> Result<SecretDetail, Error> {
        let db = self.shared.store.read();
        let rows = secret::versions(db, realm, name).await?;
        if rows.is_empty() {
            return Err(unknown(realm, name));
        }
        let units = host::units(db, None, None).await?;
        let versions = rows.iter().map(|row| SecretVersion {
            version: row.secret.version,
            set_ms: row.set_ms,
            operator: row.operator.clone(),
            state: match &row.value {
                None => SecretVersionState::Erased,
                Some(_) if self.shared.value(row).is_none() => SecretVersionState::Unreadable,
                Some(_) => SecretVersionState::Stored,
            },
        });
        let versions = versions.collect();
        let mut configs = Vec::new();
        for one in self.configs().await? {
            let whole = self.config(&one.id, &one.version).await?;
            if whole.content.is_some_and(|content| names_secret(&content, name)) {
                configs.push(SecretConfig { id: one.id, version: one.version });
            }
        }
        let newest = rows.first().filter(|row| row.value.is_some());
        let secret = newest.map(|row| self.shown(row, &units));
        Ok(SecretDetail { secret, versions, users: users(&units, realm, name), configs })
    }

    /// Removes a secret that nothing needs: its values are erased, and its history stays.
    pub async fn remove_secret(&self, operator: &Name, realm: &Name, name: &Name) -> Result<(), Error> {
        let shared = &self.shared;
        let _content = shared.content.lock.lock().await;
        let rows = secret::versions(shared.store.read(), realm, name).await?;
        let stored: Vec<u32> = rows.iter().filter(|row| row.value.is_some()).map(|row| row.secret.version).collect();
        if stored.is_empty() {
            return Err(unknown(realm, name));
        }
        let needs = |holder: &content::ContentHolder| {
            holder.and_more || holder.secrets.0 == *realm && holder.secrets.1.iter().any(|one| one.name == *name)
        };
        let held: Vec<String> =
            content::holders(shared).await?.into_iter().filter(needs).map(|holder| holder.who).collect();
        content::refuse_held(&format!("secret {realm}/{name}"), &held)?;
        self.erase(realm, name, &stored).await?;
        tracing::info!(%realm, secret = %name, %operator, "a secret was removed");
        Ok(())
    }

    /// Makes a new key for encryption at rest, and encrypts all values with it. If it is interrupted, the console goes on
    /// when it starts again.
    pub async fn rotate_secret_key(&self, operator: &Name) -> Result<KeyRotation, Error> {
        let shared = &self.shared;
        let _content = shared.content.lock.lock().await;
        if !shared.keys().is_rotating() {
            let above = secret::last_key(shared.store.read()).await?.unwrap_or_default();
            shared.keys_mut().add(above).map_err(|error| Error::internal_of("writing the new key", &error))?;
        }
        let rotation = self.encrypt_again().await?;
        tracing::info!(%operator, key = rotation.key, encrypted = rotation.encrypted, "the key of the secrets was rotated");
        Ok(rotation)
    }

    /// Ends a rotation that was interrupted.
    pub(crate) async fn finish_secret_key_rotation(&self) {
        let _content = self.shared.content.lock.lock().await;
        if !self.shared.keys().is_rotating() {
            return;
        }
        match self.encrypt_again().await {
            Ok(rotation) => tracing::info!(
                key = rotation.key,
                encrypted = rotation.encrypted,
                "an interrupted rotation of the secrets' key was finished",
            ),
            Err(error) => tracing::error!(
                %error, hint = "`muster secret rotate-key` tries again",
                consequence = "some secrets are still encrypted with an earlier key, which is kept",
                "an interrupted rotation of the secrets' key cannot be finished",
            ),
        }
    }

    /// Encrypts with the newest key what is encrypted with another one, and drops the earlier keys.
    async fn encrypt_again(&self) -> Result<KeyRotation, Error> {
        let shared = &self.shared;
        let key = shared.keys().current();
        let mut rotation = KeyRotation { key, encrypted: 0, unreadable: 0 };
        let mut after = None;
        loop {
            let rows = secret::not_encrypted_with(shared.store.read(), key, after.as_ref(), BATCH).await?;
            let Some(last) = rows.last().cloned() else { break };
            let mut again = Vec::new();
            for row in rows {
                let Some(value) = shared.value(&row) else {
                    rotation.unreadable += 1;
                    continue;
                };
                let encrypted = shared.keys().encrypt(&row.realm, &row.secret, &value);
                again.push((row, encrypted.map_err(|error| Error::internal("encrypting a secret", &error))?));
            }
            let mut transaction = shared.store.begin().await?;
            secret::encrypt_again(&mut transaction, &again).await?;
            transaction.commit().await.map_err(StoreError::from)?;
            rotation.encrypted += again.len() as u64;
            after = Some(last);
        }
        shared.keys_mut().drop_earlier().map_err(|error| Error::internal_of("dropping the earlier key", &error))?;
        Ok(rotation)
    }

    /// Returns the value of a version, sealed to a host that was told to use it.
    pub(crate) async fn secret_for(
        &self,
        host: HostId,
        realm: &Name,
        wanted: &SecretRef,
    ) -> Result<SealedSecret, Error> {
        let shared = &self.shared;
        let db = shared.store.read();
        // The error is the same whether there is such a secret: a host learns of no other than its own.
        if !self.may_fetch(host, GivenPart::Secret(realm, wanted)).await? {
            let message = format!("no unit of host {host} uses secret {realm}/{wanted}");
            return Err(Error::new(StatusCode::FORBIDDEN, "not_assigned", message)
                .hint("apply the unit for this host by name (`muster unit apply`)"));
        }
        let row = secret::version(db, realm, wanted).await?.filter(|row| row.value.is_some());
        let row = row.ok_or_else(|| {
            Error::not_found("secret_erased", format!("the value of secret {realm}/{wanted} was erased"))
                .hint("give the unit the newest version (`muster unit upgrade`)")
        })?;
        let value = shared.value(&row).ok_or_else(|| unreadable(realm, wanted))?;
        let key = host::sealing_keys(db, &[host]).await?.remove(&host).ok_or_else(|| {
            Error::conflict("no_sealing_key", format!("host {host} has not sent its sealing key"))
                .hint("its agent sends it when it starts and reaches the console")
        })?;
        sealing::seal_secret(&key, (realm, wanted), host, &value)
            .map_err(|error| Error::internal("sealing the secret", &error))
    }
}

fn check_value(value: &str) -> Result<(), Error> {
    if value.is_empty() {
        return Err(
            Error::invalid("bad_secret", "the value is empty").hint("`muster secret rm` removes an unused secret")
        );
    }
    if value.len() > SECRET_MAX_BYTES {
        let message = format!("the value has {} bytes, and {SECRET_MAX_BYTES} are allowed", value.len());
        return Err(Error::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
            .hint("keep the key to a large file here, and the encrypted file as an artifact"));
    }
    Ok(())
}

fn unknown(realm: &Name, name: &Name) -> Error {
    Error::not_found("unknown_secret", format!("there is no secret {name} in realm {realm}"))
        .hint(format!("`muster secret set {name} --realm {realm}` sets it; `muster secret ls` lists them"))
}

fn unreadable(realm: &Name, wanted: &SecretRef) -> Error {
    let message = format!("secret {realm}/{wanted} cannot be read: the key that it was encrypted with is lost");
    Error::new(StatusCode::INTERNAL_SERVER_ERROR, "secret_unreadable", message)
        .hint(format!("`muster secret set {} --realm {realm}` sets it again", wanted.name))
}

/// Whether a config names a secret, or a template in it does.
fn names_secret(content: &serde_json::Value, name: &Name) -> bool {
    config::references([content]).contains(name) || render::config::secrets(content).contains(name)
}

/// Returns the units that use a secret.
fn users(units: &[Unit], realm: &Name, name: &Name) -> Vec<SecretUser> {
    let of_realm = units.iter().filter(|unit| unit.unit.realm() == *realm);
    of_realm
        .filter_map(|unit| {
            let secret = unit.desired.spec.common().secrets.iter().find(|secret| secret.name == *name)?;
            let (hostname, unit_name) = (unit.hostname.clone(), unit.unit.clone());
            Some(SecretUser { host: unit.host, hostname, unit: unit_name, version: secret.version })
        })
        .collect()
}

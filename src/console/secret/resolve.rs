//! Fills in what the console alone knows of a unit's configs: their templates, and which version of each secret that they name
//! the unit gets, the newest.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_rules::{config, render};
use muster_topics::{
    command::Verb,
    name::{Digest, HostId, Name, UnitName},
    secret::{SECRETS_MAX, SecretRef},
    unit::{CONFIG_TEMPLATES_MAX, CONFIG_TEMPLATES_MAX_BYTES, ConfigRef, ConfigTemplate, ConfigTemplates, Spec},
};
use serde_json::Value;

use super::{unknown, unreadable};
use crate::{
    error::Error,
    state::Console,
    store::{host, secret},
};

/// Puts into a spec what the console alone knows of its configs: their templates, and the secrets that these and others name.
///
/// # Errors
/// If a config or a secret is not here, or if there are too many.
pub(crate) async fn fill_in(console: &Console, realm: &Name, spec: &mut Spec) -> Result<(), Error> {
    let documents = console.documents(spec.configs()).await?;
    spec.set_config_templates(templates_of(spec.configs(), &documents)?);
    spec.set_secrets(secrets_named(console, realm, &documents, Some(spec)).await?);
    Ok(())
}

/// Returns the secrets of a spec of a realm, as [`fill_in`] finds them now.
///
/// # Errors
/// If a config or a secret is not here.
pub(crate) async fn secrets_of(console: &Console, realm: &Name, spec: &Spec) -> Result<Vec<SecretRef>, Error> {
    let documents = console.documents(spec.configs()).await?;
    secrets_named(console, realm, &documents, Some(spec)).await
}

/// Returns the templates in a unit's configs that count.
fn templates_of(configs: &[ConfigRef], documents: &[Value]) -> Result<Vec<ConfigTemplate>, Error> {
    let found = render::config::counting(configs, documents);
    let bytes: usize = found.iter().map(|one| one.at.len() + one.text.len()).sum();
    if found.len() > CONFIG_TEMPLATES_MAX || bytes > CONFIG_TEMPLATES_MAX_BYTES {
        let message = format!(
            "the unit's configs have {} templates with {bytes} bytes; {CONFIG_TEMPLATES_MAX}, with \
             {CONFIG_TEMPLATES_MAX_BYTES} bytes, are allowed",
            found.len()
        );
        return Err(Error::invalid("too_many_templates", message)
            .hint("name a variable that is an object in one of them, with `|tojson`, or use a file of a template"));
    }
    Ok(found)
}

/// Returns the newest version of each secret that configs and templates name for units of a realm, by name. `spec` has the
/// templates; those that are none are refused elsewhere.
async fn secrets_named(
    console: &Console,
    realm: &Name,
    documents: &[Value],
    spec: Option<&Spec>,
) -> Result<Vec<SecretRef>, Error> {
    let mut names = config::references(documents);
    let of_templates = spec.and_then(|spec| render::unit::names_of(spec).ok()).unwrap_or_default();
    names.extend(of_templates.secrets.iter().filter_map(|name| name.parse().ok()));
    if names.is_empty() {
        return Ok(Vec::new());
    }
    if names.len() > SECRETS_MAX {
        let message = format!("the configs name {} secrets, and {SECRETS_MAX} are allowed", names.len());
        return Err(Error::invalid("too_many_secrets", message).hint("put several values into one secret"));
    }
    newest(console, realm, names).await
}

async fn newest(console: &Console, realm: &Name, names: BTreeSet<Name>) -> Result<Vec<SecretRef>, Error> {
    let stored = secret::newest_of(console.shared.store.read(), realm, &names).await?;
    let mut known: BTreeMap<_, _> = stored.into_iter().map(|row| (row.secret.name.clone(), row)).collect();
    names
        .into_iter()
        .map(|name| {
            let row = known.remove(&name).ok_or_else(|| unknown(realm, &name))?;
            match console.shared.value(&row) {
                Some(_) => Ok(row.secret),
                None => Err(unreadable(realm, &row.secret)),
            }
        })
        .collect()
}

/// Fills in the templates and secrets of all units of a verb, whatever it says of them, and returns the secrets.
///
/// # Errors
/// If a config or a secret is not here.
pub(crate) async fn resolve(
    console: &Console,
    verb: &mut Verb,
    hosts: impl Iterator<Item = HostId>,
) -> Result<Vec<(Name, SecretRef)>, Error> {
    let mut all = Vec::new();
    if let Verb::UnitUpgrade { unit, from, configs, secrets, config_templates, .. } = verb {
        let desired = desired_of(console, unit, hosts, from).await?;
        let all_configs = match &desired {
            Some(spec) => with_configs(spec, configs),
            // Its host refuses the command, or has not reported the unit yet.
            None => configs.clone(),
        };
        let documents = console.documents(&all_configs).await?;
        let templates = templates_of(&all_configs, &documents)?;
        let mut after = desired.as_deref().cloned();
        after.iter_mut().for_each(|spec| spec.set_config_templates(templates.clone()));
        let realm = unit.realm();
        let found = secrets_named(console, &realm, &documents, after.as_ref()).await?;
        all.extend(found.iter().map(|secret| (realm.clone(), secret.clone())));
        // An older agent would not understand the fields: a unit that has no secrets or templates gets none of them.
        let has_any = desired.as_ref().is_some_and(|spec| !spec.secrets().is_empty());
        *secrets = Some(found).filter(|found| has_any || !found.is_empty());
        let had_any = desired.is_some_and(|spec| !spec.config_templates().is_empty());
        let is_told = had_any || !templates.is_empty();
        *config_templates = is_told.then(|| ConfigTemplates { templates, values: BTreeMap::new() });
        return Ok(all);
    }
    for (unit, spec) in verb.specs_mut() {
        let realm = unit.realm();
        fill_in(console, &realm, spec).await?;
        all.extend(spec.secrets().iter().map(|secret| (realm.clone(), secret.clone())));
    }
    Ok(all)
}

/// Returns the spec of a unit on the first host that reports it in the right revision.
async fn desired_of(
    console: &Console,
    unit: &UnitName,
    hosts: impl Iterator<Item = HostId>,
    revision: &Digest,
) -> Result<Option<Arc<Spec>>, Error> {
    for host in hosts {
        let found = host::units(console.shared.store.read(), Some(host), Some(unit)).await?.into_iter().next();
        if let Some(found) = found.filter(|found| found.desired.revision == *revision) {
            return Ok(Some(found.desired.spec));
        }
    }
    Ok(None)
}

/// Returns the configs of a spec after an upgrade.
fn with_configs(spec: &Spec, configs: &[ConfigRef]) -> Vec<ConfigRef> {
    let upgraded = |has: &ConfigRef| configs.iter().find(|config| config.id == has.id).unwrap_or(has).clone();
    spec.configs().iter().map(upgraded).collect()
}

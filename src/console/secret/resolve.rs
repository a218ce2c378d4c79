//! Fills in what the console alone knows of a unit's configs: their templates, and which version of each secret that they name
//! the unit gets, the newest.

use std::collections::{BTreeMap, BTreeSet};

use muster_api::HostUnit;
use muster_rules::{config, render};
use muster_topics::{
    command::Verb,
    desired::DeploymentName,
    name::{HostId, Name, UnitName},
    secret::{SECRETS_MAX, SecretRef},
    unit::{CONFIG_TEMPLATES_MAX, CONFIG_TEMPLATES_MAX_BYTES, ConfigRef, ConfigTemplate, ConfigTemplates, Spec},
};
use serde_json::{Value, json};

use super::{unknown, unreadable};
use crate::{
    error::Error,
    given::CommandGifts,
    state::Console,
    store::{given::GivenUnit, secret},
};

/// Puts into a spec what the console alone knows of its configs: their templates, and the secrets that these and others name.
/// `masked` are those of templates that the spec has masked.
///
/// # Errors
/// If a config or a secret is not here, or if there are too many.
pub(crate) async fn fill_in(
    console: &Console,
    realm: &Name,
    spec: &mut Spec,
    masked: &BTreeSet<Name>,
) -> Result<(), Error> {
    let documents = console.documents(spec.configs()).await?;
    spec.set_config_templates(templates_of(spec.configs(), &documents)?);
    let mut names = names_in(spec);
    names.extend(masked.iter().cloned());
    spec.common_mut().secrets = secrets_named(console, realm, &documents, names).await?;
    Ok(())
}

/// Returns the secrets of a spec of a realm, as [`fill_in`] finds them now.
///
/// # Errors
/// If a config or a secret is not here.
pub(crate) async fn secrets_of(console: &Console, realm: &Name, spec: &Spec) -> Result<Vec<SecretRef>, Error> {
    let documents = console.documents(spec.configs()).await?;
    secrets_named(console, realm, &documents, names_in(spec)).await
}

/// Returns the secrets that the templates of a spec and of its configs name. Those that are none are refused elsewhere.
fn names_in(spec: &Spec) -> BTreeSet<Name> {
    let names = render::unit::names_of(spec).unwrap_or_default();
    names.secrets.iter().filter_map(|name| name.parse().ok()).collect()
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

/// Returns the newest version of each secret that configs and templates name for units of a realm, by name.
async fn secrets_named(
    console: &Console,
    realm: &Name,
    documents: &[Value],
    of_templates: BTreeSet<Name>,
) -> Result<Vec<SecretRef>, Error> {
    let mut names = config::references(documents);
    names.extend(of_templates);
    if names.is_empty() {
        return Ok(Vec::new());
    }
    if names.len() > SECRETS_MAX {
        let message = format!("the configs name {} secrets; at most {SECRETS_MAX} are allowed", names.len());
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

/// Fills in the templates and secrets of all units of a verb, whatever it says of them. Returns what the command gives to its hosts.
///
/// # Errors
/// If a config or a secret is not here, or if nothing is left of an upgrade to send.
pub(crate) async fn resolve(console: &Console, verb: &mut Verb, hosts: &[HostId]) -> Result<CommandGifts, Error> {
    match verb {
        Verb::UnitUpgrade { .. } => return upgrade(console, verb, hosts).await,
        Verb::Render { unit, deployment, templates } => {
            let realm = unit.as_ref().map(UnitName::realm).or(deployment.as_ref().map(DeploymentName::realm));
            check_rendered(console, &realm.unwrap_or_else(Name::default_realm), templates).await?;
        }
        _ => {}
    }
    let mut masked = Vec::new();
    for (unit, spec) in verb.specs_mut() {
        let names = console.masked_names(hosts, unit, spec).await?;
        fill_in(console, &unit.realm(), spec, &names).await?;
        masked.push(names);
    }
    let mut gifts = CommandGifts::of_specs(verb, hosts);
    for ((_, unit), names) in gifts.units.iter_mut().zip(masked) {
        unit.named.extend(names);
    }
    Ok(gifts)
}

/// Checks that there are the secrets that templates name: their host, which renders them without values, cannot know. Templates
/// that are none are refused by it.
async fn check_rendered(console: &Console, realm: &Name, templates: &BTreeMap<String, String>) -> Result<(), Error> {
    let found = templates.iter().filter_map(|(name, text)| render::names(name, text).ok());
    let names: BTreeSet<Name> = found.flat_map(|names| names.secrets).filter_map(|name| name.parse().ok()).collect();
    if names.is_empty() {
        return Ok(());
    }
    newest(console, realm, names).await.map(drop)
}

/// The same for an upgrade. Units that their hosts were not given are upgraded without configs and secrets.
async fn upgrade(console: &Console, verb: &mut Verb, hosts: &[HostId]) -> Result<CommandGifts, Error> {
    let Verb::UnitUpgrade { unit, from, artifact, configs, secrets, config_templates } = verb else {
        return Ok(CommandGifts::default());
    };
    let mut given: Vec<(HostId, GivenUnit)> = Vec::new();
    let mut gifts = CommandGifts::default();
    for host in hosts {
        let found = console.given_unit(*host, unit, from).await?;
        let found = found.filter(|found| configs.iter().all(|config| found.has_config(config)));
        // One command says the same to all of its hosts.
        let is_same = |one: &GivenUnit| {
            let first = given.first().map_or(one, |(_, first)| first);
            (&first.configs, &first.named) == (&one.configs, &one.named)
        };
        match found.filter(is_same) {
            Some(found) => given.push((*host, found)),
            None => gifts.withheld.push(HostUnit { host: *host, unit: unit.clone() }),
        }
    }
    let put_artifact = |unit: &mut GivenUnit| {
        if let Some(artifact) = &*artifact {
            unit.artifacts = vec![artifact.clone()];
        }
    };
    if let Some(first) = gifts.withheld.first() {
        if artifact.is_none() {
            return Err(console.not_given(first).await?);
        }
        configs.clear();
        (*secrets, *config_templates) = (None, None);
        given.extend(gifts.withheld.iter().map(|one| (one.host, GivenUnit::nothing(unit))));
        for (host, mut unit) in given {
            put_artifact(&mut unit);
            gifts.units.push((vec![host], unit));
        }
        return Ok(gifts);
    }
    let Some((_, before)) = given.first() else { return Ok(gifts) };
    let after = with_configs(&before.configs, configs);
    let documents = console.documents(&after).await?;
    let templates = templates_of(&after, &documents)?;
    let realm = unit.realm();
    let mut names = before.named.clone();
    names.extend(templates.iter().flat_map(|one| render::config::secrets(&json!({ "$template": one.text }))));
    let found = secrets_named(console, &realm, &documents, names).await?;
    // A unit that has no secrets or templates, and had none, gets none of them.
    let had_any = given.iter().any(|(_, unit)| !unit.secrets.is_empty());
    let had_templates = !templates_of(&before.configs, &console.documents(&before.configs).await?)?.is_empty();
    for (host, unit) in given {
        let mut unit = GivenUnit { configs: after.clone(), secrets: found.clone(), ..unit };
        put_artifact(&mut unit);
        gifts.units.push((vec![host], unit));
    }
    *secrets = Some(found).filter(|found| had_any || !found.is_empty());
    let is_told = had_templates || !templates.is_empty();
    *config_templates = is_told.then(|| ConfigTemplates { templates, values: BTreeMap::new() });
    Ok(gifts)
}

/// Returns configs after an upgrade.
fn with_configs(before: &[ConfigRef], configs: &[ConfigRef]) -> Vec<ConfigRef> {
    let upgraded = |has: &ConfigRef| configs.iter().find(|config| config.id == has.id).unwrap_or(has).clone();
    before.iter().map(upgraded).collect()
}

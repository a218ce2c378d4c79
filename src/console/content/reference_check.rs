//! Checks that everything a unit's spec refers to exists and fits together, as far as the console can know before a host is
//! asked. All faults are reported at once.

use muster_api::Artifact;
use muster_rules::{config, schema};
use muster_topics::{
    diagnostic::Diagnostic,
    unit::{ArtifactRef, ConfigRef, Spec, YunoSpec},
};

use crate::{
    error::Error,
    state::Console,
    store::content::{self, ArtifactFilter},
};

/// Checks that the console has all content of a unit.
pub(crate) async fn check_unit(console: &Console, spec: &Spec) -> Result<(), Error> {
    all(unit_faults(console, spec).await?)
}

/// Returns why a unit's content is not usable, if it is not.
pub(crate) async fn unit_faults(console: &Console, spec: &Spec) -> Result<Vec<Error>, Error> {
    let mut faults = Vec::new();
    let mut known = None;
    for wanted in spec.artifacts() {
        match artifact(console, wanted).await {
            Ok(found) => known = Some(found),
            Err(error) => take::<()>(&mut faults, error).map(drop)?,
        }
    }
    let mut all_here = true;
    for wanted in spec.configs() {
        if let Err(error) = self::config(console, wanted).await {
            all_here = false;
            take::<()>(&mut faults, error)?;
        }
    }
    if let (Some(known), Some(yuno), true) = (known, spec.yuno(), all_here) {
        faults.extend(against_schema(console, &known, yuno).await?);
    }
    Ok(faults)
}

/// Checks that the console has these parts of a unit. Whether they fit the rest is checked where the rest is known.
pub(crate) async fn check_parts(
    console: &Console,
    artifact: Option<&ArtifactRef>,
    configs: &[ConfigRef],
) -> Result<(), Error> {
    let mut faults = Vec::new();
    if let Some(wanted) = artifact
        && let Err(error) = self::artifact(console, wanted).await
    {
        take::<()>(&mut faults, error)?;
    }
    for wanted in configs {
        if let Err(error) = config(console, wanted).await {
            take::<()>(&mut faults, error)?;
        }
    }
    all(faults)
}

/// Collects a fault of the request, of which there may be several; any other error is returned.
fn take<T>(faults: &mut Vec<Error>, error: Error) -> Result<Option<T>, Error> {
    if error.status >= 500 {
        return Err(error);
    }
    faults.push(error);
    Ok(None)
}

/// Returns one fault unchanged, or several as one.
fn all(mut faults: Vec<Error>) -> Result<(), Error> {
    match faults.len() {
        0 => Ok(()),
        1 => faults.pop().map_or(Ok(()), Err),
        count => {
            let line = |fault: &Error| {
                let Diagnostic { cause, hint, .. } = &fault.problem.diagnostic;
                let hint = hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
                format!("\n- {}{hint}", cause.replace('\n', "\n  "))
            };
            let lines: String = faults.iter().map(line).collect();
            Err(Error::conflict("several_faults", format!("{count} errors:{lines}")))
        }
    }
}

/// Returns the artifact, if it is stored as the unit's spec describes it.
async fn artifact(console: &Console, wanted: &ArtifactRef) -> Result<Artifact, Error> {
    let filter = ArtifactFilter { sha256: Some(wanted.sha256.clone()), ..ArtifactFilter::default() };
    let known = content::artifacts(console.shared.store.read(), &filter).await?;
    let what = format!("artifact {} {} ({})", wanted.role, wanted.version, wanted.sha256.short());
    if known.is_empty() {
        return Err(Error::not_found("unknown_artifact", format!("the console does not have {what}"))
            .hint("`muster artifact create`, or POST /api/v1/artifacts, adds it"));
    }
    // A spec from before manifests existed names none.
    let same_manifest = |one: &Artifact| wanted.manifest.is_none() || wanted.manifest == one.manifest;
    let same = |one: &Artifact| {
        one.role == wanted.role
            && one.version == wanted.version
            && one.size_bytes == wanted.size_bytes
            && same_manifest(one)
    };
    known.into_iter().find(same).ok_or_else(|| {
        Error::conflict("wrong_artifact", format!("{what} exists with another role, version, size or manifest"))
            .hint("`muster artifact ls` shows the existing one")
    })
}

/// Checks that a config is stored as the unit's spec describes it.
async fn config(console: &Console, wanted: &ConfigRef) -> Result<(), Error> {
    let what = format!("config {}@{}", wanted.id, wanted.version);
    match content::config(console.shared.store.read(), &wanted.id, &wanted.version).await? {
        None => Err(Error::not_found("unknown_config", format!("the console does not have {what}"))
            .hint("`muster config create`, or POST /api/v1/configs, adds it")),
        Some(config) if config.sha256 != wanted.sha256 => {
            Err(Error::conflict("wrong_config", format!("{what} exists with other content"))
                .hint("`muster config ls` shows the existing one"))
        }
        Some(_) => Ok(()),
    }
}

/// Checks the merged config against the artifact's manifest.
async fn against_schema(console: &Console, artifact: &Artifact, spec: &YunoSpec) -> Result<Option<Error>, Error> {
    let Some(manifest) = &artifact.manifest else { return Ok(None) };
    let Some(wanted) = console.manifest(manifest).await?.config_schema else { return Ok(None) };
    let merged = config::merge(console.documents(&spec.configs).await?);
    let complaints = schema::check(&wanted, &merged);
    if complaints.is_empty() {
        return Ok(None);
    }
    let lines: String = complaints.iter().map(|complaint| format!("\n- {complaint:#}")).collect();
    let Artifact { role, version, .. } = artifact;
    let message = format!("the merged config does not match the schema of {role} {version}:{lines}");
    Ok(Some(
        Error::invalid("config_not_wanted", message)
            .hint(format!("`muster artifact show {role}@{version}` has the schema")),
    ))
}

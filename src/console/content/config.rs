//! Adds and shows configs and manifests.

use axum::http::StatusCode;
use muster_api::{Config, ConfigDifference, NewConfig, StoredManifest};
use muster_base::clock::now_ms;
use muster_rules::{config, render, schema};
use muster_topics::{
    canonical,
    diagnostic::Diagnostic,
    manifest::{MANIFEST_MAX_BYTES, Manifest},
    name::{ConfigId, Digest, Name, Version},
    unit::ConfigRef,
};
use serde_json::Value;

use super::{check_room, next_version};
use crate::{
    error::Error,
    state::Console,
    store::content::{self, LabelKind},
};

/// The largest config. Hosts read it whole, and it is in the store.
const CONFIG_MAX_BYTES: usize = 512 * 1024;

/// Returns canonical JSON and its hash.
fn canonical_text(document: &impl serde::Serialize) -> Result<(Digest, String), canonical::CanonicalError> {
    let bytes = canonical::to_bytes(document)?;
    // This rejects numbers that cannot be represented exactly.
    canonical::parse(&bytes)?;
    Ok((Digest::of(&bytes), String::from_utf8_lossy(&bytes).into_owned()))
}

impl Console {
    /// Creates a config. Creating the same one again changes nothing.
    pub async fn add_config(&self, operator: &Name, new: NewConfig) -> Result<Config, Error> {
        let shared = &self.shared;
        check_room(&shared.store)?;
        if new.content.len() > CONFIG_MAX_BYTES {
            let message = format!("the config has {} bytes; at most {CONFIG_MAX_BYTES} are allowed", new.content.len());
            return Err(
                Error::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message).hint("an artifact can be larger")
            );
        }
        let bad = |error: canonical::CanonicalError| Error::invalid("bad_config", error.to_string());
        let text = muster_base::files::text(new.content.clone().into_bytes())
            .map_err(|error| Error::told(StatusCode::BAD_REQUEST, "bad_config", Diagnostic::of_error(&error)))?;
        let document = canonical::parse(text.as_bytes()).map_err(bad)?;
        let mut mistakes = config::check_secrets(&document);
        mistakes.extend(render::config::check(&new.id, new.version.as_str(), &document));
        if let Some(told) = in_lines(mistakes) {
            return Err(Error::told(StatusCode::BAD_REQUEST, "bad_config", told));
        }
        let (mut sha256, mut content) = canonical_text(&document).map_err(bad)?;
        let NewConfig { id, version, .. } = new;
        // The hash is public. For a short secret in known content it would reveal the secret.
        let salt = shared.authority.salt(&format!("{id}@{version}"), content.as_bytes());
        if let Some(salted) = config::salted(&document, &salt) {
            (sha256, content) = canonical_text(&salted).map_err(bad)?;
        }
        let config = content::NewConfig { id, version, sha256, content };
        let _content = shared.content.lock.lock().await;
        let removed =
            content::removed_label(shared.store.read(), LabelKind::Config, config.id.as_str(), &config.version).await?;
        let was_other = removed.is_some_and(|removed| removed != config.sha256);
        if !was_other {
            content::add_config(shared.store.write(), &config, operator, now_ms()).await?;
            let stored = self.config(&config.id, &config.version).await?;
            if stored.sha256 == config.sha256 {
                shared.note_whole(&stored.sha256);
                // Deployments may have waited for it.
                shared.hosts.desired.content_changed();
                return Ok(stored);
            }
        }
        let versions = content::versions(shared.store.read(), LabelKind::Config, config.id.as_str()).await?;
        let next = next_version(config.version.as_str(), &versions);
        let other = if was_other { "had other content, which was removed" } else { "exists with other content" };
        Err(Error::conflict("version_taken", format!("config {}@{} {other}", config.id, config.version))
            .hint(format!("add it as {}@{next}", config.id)))
    }

    /// Returns all configs, without their content.
    pub async fn configs(&self) -> Result<Vec<Config>, Error> {
        Ok(content::configs(self.shared.store.read()).await?)
    }

    /// Returns one config, with its content, secrets masked.
    pub async fn config(&self, id: &ConfigId, version: &Version) -> Result<Config, Error> {
        let mut config = self.bare_config(id, version).await?;
        config.content = config.content.as_ref().map(config::masked);
        Ok(config)
    }

    async fn bare_config(&self, id: &ConfigId, version: &Version) -> Result<Config, Error> {
        let found = self.shared.note_altered(content::config(self.shared.store.read(), id, version).await)?;
        let mut found =
            found.ok_or_else(|| Error::not_found("unknown_config", format!("there is no config {id}@{version}")))?;
        found.content = found.content.as_ref().map(config::unsalted);
        Ok(found)
    }

    /// Returns how one config differs from another. Secrets are masked, but whether they differ is shown.
    pub async fn config_differences(
        &self,
        from: (&ConfigId, &Version),
        to: (&ConfigId, &Version),
    ) -> Result<Vec<ConfigDifference>, Error> {
        let from = self.bare_config(from.0, from.1).await?.content.unwrap_or_default();
        let to = self.bare_config(to.0, to.1).await?.content.unwrap_or_default();
        let told = |config::DocumentDifference { pointer, from, to }| ConfigDifference { pointer, from, to };
        Ok(config::differences(&from, &to).into_iter().map(told).collect())
    }

    /// Adds a manifest. Adding the same one again changes nothing.
    pub async fn add_manifest(&self, operator: &Name, manifest: &Manifest) -> Result<StoredManifest, Error> {
        check_room(&self.shared.store)?;
        let bad = |message: String| Error::invalid("bad_manifest", message);
        let (sha256, text) = canonical_text(manifest).map_err(|error| bad(error.to_string()))?;
        if text.len() > MANIFEST_MAX_BYTES {
            let message = format!("the manifest has {} bytes; at most {MANIFEST_MAX_BYTES} are allowed", text.len());
            return Err(Error::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message));
        }
        if let Some(wanted) = &manifest.config_schema {
            let wrong =
                |told: Diagnostic| Error::told(StatusCode::BAD_REQUEST, "bad_manifest", told.within("config_schema"));
            schema::check_schema(wanted).map_err(wrong)?;
        }
        let _content = self.shared.content.lock.lock().await;
        content::add_manifest(self.shared.store.write(), &sha256, &text, operator, now_ms()).await?;
        self.shared.note_whole(&sha256);
        Ok(StoredManifest { sha256 })
    }

    /// Returns one manifest.
    pub async fn manifest(&self, sha256: &Digest) -> Result<Manifest, Error> {
        let text = self.shared.note_altered(content::manifest(self.shared.store.read(), sha256).await)?;
        let text =
            text.ok_or_else(|| Error::not_found("unknown_manifest", format!("there is no manifest {sha256}")))?;
        serde_json::from_str(&text).map_err(|error| Error::internal("reading the manifest", &error))
    }

    /// Returns the content of configs unmasked: for checking, never to be shown.
    pub(crate) async fn documents(&self, configs: &[ConfigRef]) -> Result<Vec<Value>, Error> {
        let mut documents = Vec::new();
        for config in configs {
            documents.push(self.bare_config(&config.id, &config.version).await?.content.unwrap_or_default());
        }
        Ok(documents)
    }
}
/// Makes one of all mistakes of a document: the only one with its hint, or several in lines, each with its hint behind it.
fn in_lines(mut mistakes: Vec<Diagnostic>) -> Option<Diagnostic> {
    if mistakes.len() <= 1 {
        return mistakes.pop();
    }
    let line = |told: Diagnostic| match told.hint {
        Some(hint) => format!("{} ({hint})", told.cause),
        None => told.cause,
    };
    Some(Diagnostic::new(mistakes.into_iter().map(line).collect::<Vec<_>>().join("\n")))
}

//! Routes for artifacts, manifests and configs.

use axum::{Extension, Json, body::Body, extract::State, http::StatusCode};
use muster_topics::{
    manifest::Manifest,
    name::{ConfigId, Digest, Name, Version},
};
use serde::Deserialize;

use super::{
    AskedBy, Asker,
    extract::{Document, Params, Segments},
};
use crate::{
    api,
    console::{Console, Error},
};

type Answer<T> = Result<Json<T>, Error>;

/// Which artifacts.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Labelled {
    role: Option<Name>,
    version: Option<Version>,
}

pub(super) async fn artifacts(
    State(console): State<Console>,
    Params(labels): Params<Labelled>,
) -> Answer<Vec<api::Artifact>> {
    Ok(Json(console.artifacts(labels.role, labels.version).await?))
}

pub(super) async fn add_artifact(
    State(console): State<Console>,
    Extension(Asker(operator)): AskedBy,
    Params(labels): Params<api::Labels>,
    body: Body,
) -> Answer<api::Artifact> {
    Ok(Json(console.add_artifact(&operator, labels, body.into_data_stream()).await?))
}

pub(super) async fn artifact(
    State(console): State<Console>,
    Segments(sha256): Segments<String>,
) -> Answer<api::Artifact> {
    Ok(Json(console.artifact(&console.artifact_id(&sha256).await?).await?))
}

pub(super) async fn remove_artifact(
    State(console): State<Console>,
    Extension(Asker(operator)): AskedBy,
    Segments((role, version)): Segments<(Name, Version)>,
) -> Result<StatusCode, Error> {
    console.remove_artifact(&operator, &role, &version).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn collect(
    State(console): State<Console>,
    Extension(Asker(operator)): AskedBy,
    Document(wanted): Document<api::Collect>,
) -> Answer<api::Collected> {
    Ok(Json(console.collect_artifacts(&operator, wanted.dry_run).await?))
}

pub(super) async fn add_manifest(
    State(console): State<Console>,
    Extension(Asker(operator)): AskedBy,
    Document(manifest): Document<Manifest>,
) -> Answer<api::StoredManifest> {
    Ok(Json(console.add_manifest(&operator, &manifest).await?))
}

pub(super) async fn manifest(State(console): State<Console>, Segments(sha256): Segments<Digest>) -> Answer<Manifest> {
    Ok(Json(console.manifest(&sha256).await?))
}

pub(super) async fn configs(State(console): State<Console>) -> Answer<Vec<api::Config>> {
    Ok(Json(console.configs().await?))
}

pub(super) async fn add_config(
    State(console): State<Console>,
    Extension(Asker(operator)): AskedBy,
    Document(config): Document<api::NewConfig>,
) -> Answer<api::Config> {
    Ok(Json(console.add_config(&operator, config).await?))
}

pub(super) async fn config(
    State(console): State<Console>,
    Segments((id, version)): Segments<(ConfigId, Version)>,
) -> Answer<api::Config> {
    Ok(Json(console.config(&id, &version).await?))
}

pub(super) async fn remove_config(
    State(console): State<Console>,
    Extension(Asker(operator)): AskedBy,
    Segments((id, version)): Segments<(ConfigId, Version)>,
) -> Result<StatusCode, Error> {
    console.remove_config(&operator, &id, &version).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What a config is compared with.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Other {
    to: String,
}

pub(super) async fn config_differences(
    State(console): State<Console>,
    Segments((id, version)): Segments<(ConfigId, Version)>,
    Params(other): Params<Other>,
) -> Answer<Vec<api::ConfigDifference>> {
    let bad = |message: String| Error::invalid("bad_query", message).hint("`to` is ID@VERSION");
    let (other_id, other_version) =
        other.to.split_once('@').ok_or_else(|| bad(format!("{:?} is no ID@VERSION", other.to)))?;
    let other_id: ConfigId = other_id.parse().map_err(|error| bad(format!("{error}")))?;
    let other_version: Version = other_version.parse().map_err(|error| bad(format!("{error}")))?;
    Ok(Json(console.config_differences((&id, &version), (&other_id, &other_version)).await?))
}

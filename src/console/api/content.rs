//! Routes for artifacts, manifests, configs and secrets.

use axum::{Extension, Json, body::Body, extract::State, http::StatusCode};
use muster_topics::{
    manifest::Manifest,
    name::{ConfigId, Digest, Name, Version},
};
use serde::Deserialize;

use super::{
    AskedBy, Requester,
    extract::{JsonBody, PathSegments, QueryParams},
};
use crate::{error::Error, state::Console};

type JsonResult<T> = Result<Json<T>, Error>;

/// The filter of artifacts.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ArtifactQuery {
    role: Option<Name>,
    version: Option<Version>,
}

pub(super) async fn artifacts(
    State(console): State<Console>,
    QueryParams(labels): QueryParams<ArtifactQuery>,
) -> JsonResult<Vec<muster_api::Artifact>> {
    Ok(Json(console.artifacts(labels.role, labels.version).await?))
}

pub(super) async fn add_artifact(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    QueryParams(labels): QueryParams<muster_api::Labels>,
    body: Body,
) -> JsonResult<muster_api::Artifact> {
    Ok(Json(console.add_artifact(&operator, labels, body.into_data_stream()).await?))
}

pub(super) async fn artifact(
    State(console): State<Console>,
    PathSegments(sha256): PathSegments<String>,
) -> JsonResult<muster_api::Artifact> {
    Ok(Json(console.artifact(&console.artifact_id(&sha256).await?).await?))
}

pub(super) async fn remove_artifact(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    PathSegments((role, version)): PathSegments<(Name, Version)>,
) -> Result<StatusCode, Error> {
    console.remove_artifact(&operator, &role, &version).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn collect(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    JsonBody(wanted): JsonBody<muster_api::Collect>,
) -> JsonResult<muster_api::Collected> {
    Ok(Json(console.collect_artifacts(&operator, wanted.dry_run).await?))
}

pub(super) async fn add_manifest(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    JsonBody(manifest): JsonBody<Manifest>,
) -> JsonResult<muster_api::StoredManifest> {
    Ok(Json(console.add_manifest(&operator, &manifest).await?))
}

pub(super) async fn manifest(
    State(console): State<Console>,
    PathSegments(sha256): PathSegments<Digest>,
) -> JsonResult<Manifest> {
    Ok(Json(console.manifest(&sha256).await?))
}

pub(super) async fn configs(State(console): State<Console>) -> JsonResult<Vec<muster_api::Config>> {
    Ok(Json(console.configs().await?))
}

pub(super) async fn add_config(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    JsonBody(config): JsonBody<muster_api::NewConfig>,
) -> JsonResult<muster_api::Config> {
    Ok(Json(console.add_config(&operator, config).await?))
}

pub(super) async fn config(
    State(console): State<Console>,
    PathSegments((id, version)): PathSegments<(ConfigId, Version)>,
) -> JsonResult<muster_api::Config> {
    Ok(Json(console.config(&id, &version).await?))
}

pub(super) async fn remove_config(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    PathSegments((id, version)): PathSegments<(ConfigId, Version)>,
) -> Result<StatusCode, Error> {
    console.remove_config(&operator, &id, &version).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The version to compare with.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CompareQuery {
    to: String,
}

pub(super) async fn config_differences(
    State(console): State<Console>,
    PathSegments((id, version)): PathSegments<(ConfigId, Version)>,
    QueryParams(other): QueryParams<CompareQuery>,
) -> JsonResult<Vec<muster_api::ConfigDifference>> {
    let bad = |message: String| Error::invalid("bad_query", message).hint("`to` is ID@VERSION");
    let (other_id, other_version) =
        other.to.split_once('@').ok_or_else(|| bad(format!("{:?} is not ID@VERSION", other.to)))?;
    let other_id: ConfigId = other_id.parse().map_err(|error| bad(format!("{error}")))?;
    let other_version: Version = other_version.parse().map_err(|error| bad(format!("{error}")))?;
    Ok(Json(console.config_differences((&id, &version), (&other_id, &other_version)).await?))
}

pub(super) async fn secrets(State(console): State<Console>) -> JsonResult<Vec<muster_api::Secret>> {
    Ok(Json(console.secrets().await?))
}

pub(super) async fn set_secret(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    JsonBody(new): JsonBody<muster_api::NewSecret>,
) -> JsonResult<muster_api::SecretSet> {
    Ok(Json(console.set_secret(&operator, new).await?))
}

pub(super) async fn secret(
    State(console): State<Console>,
    PathSegments((realm, name)): PathSegments<(Name, Name)>,
) -> JsonResult<muster_api::SecretDetail> {
    Ok(Json(console.secret(&realm, &name).await?))
}

pub(super) async fn remove_secret(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    PathSegments((realm, name)): PathSegments<(Name, Name)>,
) -> Result<StatusCode, Error> {
    console.remove_secret(&operator, &realm, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn rotate_secret_key(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
) -> JsonResult<muster_api::KeyRotation> {
    Ok(Json(console.rotate_secret_key(&operator).await?))
}

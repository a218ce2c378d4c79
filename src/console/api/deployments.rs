//! Routes for deployments, variables, and hosts that get no deployments.

use std::{convert::Infallible, time::Duration};

use axum::{
    Extension, Json,
    extract::State,
    http::StatusCode,
    response::sse::{Event, KeepAlive, Sse},
};
use futures_util::{Stream, stream};
use muster_api::DeploymentEvent;
use muster_topics::desired::DeploymentName;

use super::{
    AskedBy, Requester,
    extract::{JsonBody, PathSegments, QueryParams},
};
use crate::{desired::follow::DeploymentFollower, error::Error, state::Console};

type JsonResult<T> = Result<Json<T>, Error>;

const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(super) fn name(realm: &str, name: &str) -> Result<DeploymentName, Error> {
    format!("{realm}/{name}")
        .parse()
        .map_err(|error: muster_topics::name::NameError| Error::invalid("bad_path", error.to_string()))
}

pub(super) async fn deployments(State(console): State<Console>) -> JsonResult<Vec<muster_api::Deployment>> {
    Ok(Json(console.deployments().await?))
}

pub(super) async fn apply(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    JsonBody(apply): JsonBody<muster_api::ApplyDeployments>,
) -> JsonResult<muster_api::AppliedDeployments> {
    Ok(Json(console.apply_deployments(&operator, apply).await?))
}

pub(super) async fn plan(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    JsonBody(wanted): JsonBody<muster_api::NewPlan>,
) -> JsonResult<muster_api::Plan> {
    Ok(Json(console.plan_documents(&operator, wanted).await?))
}

pub(super) async fn one_plan(
    State(console): State<Console>,
    PathSegments(id): PathSegments<String>,
) -> JsonResult<muster_api::Plan> {
    Ok(Json(console.plan(&id)?))
}

pub(super) async fn confirm(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    JsonBody(wanted): JsonBody<muster_api::ConfirmDocuments>,
) -> JsonResult<muster_api::ConfirmedDocuments> {
    Ok(Json(console.confirm_documents(&operator, wanted).await?))
}

pub(super) async fn sync(State(console): State<Console>) -> Json<muster_api::SyncReport> {
    Json(console.deployment_sync())
}

pub(super) async fn deployment(
    State(console): State<Console>,
    PathSegments((realm, one)): PathSegments<(String, String)>,
) -> JsonResult<muster_api::DeploymentDetail> {
    Ok(Json(console.deployment(&name(&realm, &one)?).await?))
}

pub(super) async fn remove(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    PathSegments((realm, one)): PathSegments<(String, String)>,
    QueryParams(wanted): QueryParams<muster_api::RemoveDeployment>,
) -> JsonResult<muster_api::RemovedDeployment> {
    Ok(Json(console.remove_deployment(&operator, &name(&realm, &one)?, wanted).await?))
}

pub(super) async fn history(
    State(console): State<Console>,
    PathSegments((realm, one)): PathSegments<(String, String)>,
) -> JsonResult<Vec<muster_api::DeploymentVersionInfo>> {
    Ok(Json(console.deployment_history(&name(&realm, &one)?).await?))
}

pub(super) async fn version(
    State(console): State<Console>,
    PathSegments((realm, one, number)): PathSegments<(String, String, u32)>,
) -> JsonResult<muster_api::DeploymentVersionDetail> {
    Ok(Json(console.deployment_version(&name(&realm, &one)?, number).await?))
}

pub(super) async fn differences(
    State(console): State<Console>,
    PathSegments((realm, one)): PathSegments<(String, String)>,
    QueryParams(wanted): QueryParams<muster_api::CompareVersions>,
) -> JsonResult<muster_api::DeploymentDifferences> {
    Ok(Json(console.deployment_differences(&name(&realm, &one)?, &wanted).await?))
}

pub(super) async fn roll_back(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    PathSegments((realm, one)): PathSegments<(String, String)>,
    JsonBody(wanted): JsonBody<muster_api::RollBack>,
) -> JsonResult<muster_api::AppliedDeployment> {
    Ok(Json(console.roll_back_deployment(&operator, &name(&realm, &one)?, wanted).await?))
}

pub(super) async fn adopt(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    PathSegments((realm, one)): PathSegments<(String, String)>,
    JsonBody(wanted): JsonBody<muster_api::UnitOnHosts>,
) -> JsonResult<Vec<muster_api::NamedHost>> {
    Ok(Json(console.set_unit_attached(&operator, &name(&realm, &one)?, wanted, true).await?))
}

pub(super) async fn detach(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    PathSegments((realm, one)): PathSegments<(String, String)>,
    JsonBody(wanted): JsonBody<muster_api::UnitOnHosts>,
) -> JsonResult<Vec<muster_api::NamedHost>> {
    Ok(Json(console.set_unit_attached(&operator, &name(&realm, &one)?, wanted, false).await?))
}

pub(super) async fn events(
    State(console): State<Console>,
    PathSegments((realm, one)): PathSegments<(String, String)>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Error> {
    let name = name(&realm, &one)?;
    console.deployment_hosts(&name).await?;
    let events = stream::unfold(DeploymentFollower::new(console, name), |mut follower| async move {
        let event = follower.next().await?;
        Some((Ok(sse(&event)), follower))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

fn sse(event: &DeploymentEvent) -> Event {
    let name = match event {
        DeploymentEvent::Host(_) => "host",
        DeploymentEvent::Gone(_) => "gone",
        DeploymentEvent::End => "end",
    };
    // The types of the API always serialise.
    Event::default().event(name).data(serde_json::to_string(event).unwrap_or_default())
}

pub(super) async fn cordons(State(console): State<Console>) -> JsonResult<Vec<muster_api::HostCordon>> {
    Ok(Json(console.host_cordons().await?))
}

pub(super) async fn cordon(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    JsonBody(wanted): JsonBody<muster_api::CordonHosts>,
) -> JsonResult<Vec<muster_api::HostCordon>> {
    Ok(Json(console.cordon_hosts(&operator, wanted).await?))
}

pub(super) async fn changes(
    State(console): State<Console>,
    QueryParams(wanted): QueryParams<muster_api::ChangeListing>,
) -> JsonResult<Vec<muster_api::Change>> {
    Ok(Json(console.recent_changes(&wanted).await?))
}

pub(super) async fn vars(State(console): State<Console>) -> JsonResult<Vec<muster_api::Var>> {
    Ok(Json(console.vars().await?))
}

pub(super) async fn set_var(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    JsonBody(new): JsonBody<muster_api::NewVar>,
) -> JsonResult<muster_api::Var> {
    Ok(Json(console.set_var(&operator, new).await?))
}

pub(super) async fn remove_var(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    QueryParams(var): QueryParams<muster_api::VarName>,
) -> Result<StatusCode, Error> {
    console.remove_var(&operator, var).await?;
    Ok(StatusCode::NO_CONTENT)
}

//! Routes for rollouts.

use std::{convert::Infallible, time::Duration};

use axum::{
    Extension, Json,
    extract::State,
    response::sse::{Event, KeepAlive, Sse},
};
use futures_util::{Stream, stream};
use muster_api::{
    CancelRollout, ReleaseHost, Rollout, RolloutDetail, RolloutEvent, RolloutHost, RolloutHostQuery, RolloutHosts,
    RolloutVersion,
};

use super::{
    AskedBy, Requester,
    deployments::name,
    extract::{JsonBody, PathSegments, QueryParams},
};
use crate::{error::Error, rollout::follow::RolloutFollower, state::Console};

type JsonResult<T> = Result<Json<T>, Error>;
type Named = PathSegments<(String, String)>;

const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(super) async fn rollouts(State(console): State<Console>) -> JsonResult<Vec<Rollout>> {
    Ok(Json(console.rollouts().await?))
}

pub(super) async fn rollout(
    State(console): State<Console>,
    PathSegments((realm, one)): Named,
    QueryParams(wanted): QueryParams<RolloutVersion>,
) -> JsonResult<RolloutDetail> {
    Ok(Json(console.rollout(&name(&realm, &one)?, wanted.version).await?))
}

pub(super) async fn history(
    State(console): State<Console>,
    PathSegments((realm, one)): Named,
) -> JsonResult<Vec<Rollout>> {
    Ok(Json(console.rollout_history(&name(&realm, &one)?).await?))
}

pub(super) async fn hosts(
    State(console): State<Console>,
    PathSegments((realm, one)): Named,
    QueryParams(wanted): QueryParams<RolloutHostQuery>,
) -> JsonResult<RolloutHosts> {
    Ok(Json(console.rollout_hosts(&name(&realm, &one)?, &wanted).await?))
}

pub(super) async fn pause(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    PathSegments((realm, one)): Named,
    JsonBody(wanted): JsonBody<RolloutVersion>,
) -> JsonResult<Rollout> {
    Ok(Json(console.pause_rollout(&operator, &name(&realm, &one)?, wanted).await?))
}

pub(super) async fn resume(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    PathSegments((realm, one)): Named,
    JsonBody(wanted): JsonBody<RolloutVersion>,
) -> JsonResult<Rollout> {
    Ok(Json(console.resume_rollout(&operator, &name(&realm, &one)?, wanted).await?))
}

pub(super) async fn promote(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    PathSegments((realm, one)): Named,
    JsonBody(wanted): JsonBody<RolloutVersion>,
) -> JsonResult<Rollout> {
    Ok(Json(console.promote_rollout(&operator, &name(&realm, &one)?, wanted).await?))
}

pub(super) async fn retry(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    PathSegments((realm, one)): Named,
    JsonBody(wanted): JsonBody<RolloutVersion>,
) -> JsonResult<Rollout> {
    Ok(Json(console.retry_rollout(&operator, &name(&realm, &one)?, wanted).await?))
}

pub(super) async fn cancel(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    PathSegments((realm, one)): Named,
    JsonBody(wanted): JsonBody<CancelRollout>,
) -> JsonResult<Rollout> {
    Ok(Json(console.cancel_rollout(&operator, &name(&realm, &one)?, wanted).await?))
}

pub(super) async fn release(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    PathSegments((realm, one)): Named,
    JsonBody(wanted): JsonBody<ReleaseHost>,
) -> JsonResult<RolloutHost> {
    Ok(Json(console.release_host(&operator, &name(&realm, &one)?, wanted).await?))
}

pub(super) async fn events(
    State(console): State<Console>,
    PathSegments((realm, one)): Named,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Error> {
    let name = name(&realm, &one)?;
    console.rollout(&name, None).await?;
    let events = stream::unfold(RolloutFollower::new(console, name), |mut follower| async move {
        let event = follower.next().await?;
        Some((Ok(sse(&event)), follower))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

fn sse(event: &RolloutEvent) -> Event {
    let name = match event {
        RolloutEvent::Rollout(_) => "rollout",
        RolloutEvent::End => "end",
    };
    // The types of the API always serialise.
    Event::default().event(name).data(serde_json::to_string(event).unwrap_or_default())
}

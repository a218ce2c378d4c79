//! Alerts, rules and silences: one function for each route, each a thin layer over [`Console`].

use axum::{Extension, Json, extract::State, http::StatusCode};
use muster_topics::{name::Name, select::HostSelect};
use serde::Deserialize;

use super::{
    AskedBy, Requester,
    extract::{JsonBody, PathSegments, QueryParams},
};
use crate::{error::Error, state::Console, store::alert::Which};

type JsonResult<T> = Result<Json<T>, Error>;

/// The default number of alerts in a list.
const LIMIT: u32 = 500;

/// The filter of alerts.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AlertsQuery {
    host: Option<String>,
    select: Option<HostSelect>,
    rule: Option<Name>,
    #[serde(default)]
    sort: muster_api::AlertSort,
    limit: Option<u32>,
}

async fn listed(console: &Console, asked: &AlertsQuery, history: bool) -> JsonResult<Vec<muster_api::Alert>> {
    let host = match &asked.host {
        Some(host) => Some(console.resolve_host(host).await?),
        None => None,
    };
    let hosts = console.picked(asked.select.as_ref()).await?;
    let which = Which {
        history,
        host,
        hosts: hosts.as_deref(),
        rule: asked.rule.as_ref(),
        sort: asked.sort,
        limit: asked.limit.unwrap_or(LIMIT),
    };
    Ok(Json(console.alerts(which).await?))
}

pub(super) async fn alerts(
    State(console): State<Console>,
    QueryParams(asked): QueryParams<AlertsQuery>,
) -> JsonResult<Vec<muster_api::Alert>> {
    listed(&console, &asked, false).await
}

pub(super) async fn history(
    State(console): State<Console>,
    QueryParams(asked): QueryParams<AlertsQuery>,
) -> JsonResult<Vec<muster_api::Alert>> {
    listed(&console, &asked, true).await
}

pub(super) async fn rules(State(console): State<Console>) -> JsonResult<Vec<muster_api::AlertRule>> {
    Ok(Json(console.alert_rules().await?))
}

pub(super) async fn set_rule(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    JsonBody(rule): JsonBody<muster_api::NewAlertRule>,
) -> JsonResult<muster_api::AlertRule> {
    Ok(Json(console.set_alert_rule(&operator, rule).await?))
}

/// The host.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostQuery {
    host: Option<String>,
}

pub(super) async fn remove_rule(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    PathSegments(name): PathSegments<Name>,
    QueryParams(of): QueryParams<HostQuery>,
) -> Result<StatusCode, Error> {
    console.remove_alert_rule(&operator, &name, of.host.as_deref()).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn silences(State(console): State<Console>) -> JsonResult<Vec<muster_api::AlertSilence>> {
    Ok(Json(console.alert_silences().await?))
}

pub(super) async fn create_silence(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    JsonBody(silence): JsonBody<muster_api::NewAlertSilence>,
) -> JsonResult<muster_api::AlertSilence> {
    Ok(Json(console.silence_alerts(&operator, silence).await?))
}

pub(super) async fn remove_silence(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    PathSegments(id): PathSegments<String>,
) -> Result<StatusCode, Error> {
    console.end_alert_silence(&operator, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

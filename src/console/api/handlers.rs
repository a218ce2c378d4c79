//! One function for each route, each a thin layer over [`Console`].

use axum::{
    Extension, Json,
    body::Body,
    extract::State,
    http::{StatusCode, header},
    response::{AppendHeaders, IntoResponse, Response},
};
use futures_util::stream;
use muster_api::authority::{AuthorityStatus, BeginRotation, FinishRotation};
use muster_base::clock::now_ms;
use muster_series::LineFormat;
use muster_topics::{
    Millis,
    name::{HostId, Name, UnitName},
};
use serde::Deserialize;
use serde_json::Value;

use super::{
    AskedBy, Requester, events,
    extract::{JsonBody, PathSegments, QueryParams},
    openapi,
};
use crate::{
    backup::{BackupChoice, BackupStream},
    error::Error,
    state::Console,
};

type JsonResult<T> = Result<Json<T>, Error>;

pub(super) async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], openapi::DOCUMENT).into_response()
}

pub(super) async fn login(
    State(console): State<Console>,
    JsonBody(login): JsonBody<muster_api::Login>,
) -> JsonResult<muster_api::LoggedIn> {
    let (operator, token) = console.login(&login.code).await?;
    Ok(Json(muster_api::LoggedIn { operator, token }))
}

pub(super) async fn sign_ins(State(console): State<Console>) -> JsonResult<Vec<muster_api::SignIn>> {
    Ok(Json(console.sign_ins().await?))
}

pub(super) async fn revoke_sign_in(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    PathSegments(id): PathSegments<String>,
) -> Result<StatusCode, Error> {
    console.revoke_sign_in(&operator, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn status(State(console): State<Console>) -> JsonResult<muster_api::Status> {
    Ok(Json(console.status().await?))
}

pub(super) async fn installation(State(console): State<Console>) -> JsonResult<muster_api::Installation> {
    Ok(Json(console.installation().await?))
}

pub(super) async fn hosts(
    State(console): State<Console>,
    QueryParams(wanted): QueryParams<muster_api::HostListing>,
) -> JsonResult<Vec<muster_api::Host>> {
    Ok(Json(console.hosts_listed(&wanted).await?))
}

pub(super) async fn host(
    State(console): State<Console>,
    PathSegments(host): PathSegments<String>,
) -> JsonResult<muster_api::Host> {
    Ok(Json(console.host(&host).await?))
}

pub(super) async fn host_labels(
    State(console): State<Console>,
    PathSegments(host): PathSegments<String>,
) -> JsonResult<muster_api::LabelledHost> {
    Ok(Json(console.host_labels(&host).await?))
}

pub(super) async fn label_hosts(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    JsonBody(wanted): JsonBody<muster_api::LabelHosts>,
) -> JsonResult<Vec<muster_api::LabelledHost>> {
    Ok(Json(console.label_hosts(&operator, wanted).await?))
}

pub(super) async fn authority(State(console): State<Console>) -> JsonResult<AuthorityStatus> {
    Ok(Json(console.authority_status().await?))
}

pub(super) async fn begin_rotation(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    JsonBody(wanted): JsonBody<BeginRotation>,
) -> JsonResult<AuthorityStatus> {
    Ok(Json(console.begin_rotation(&operator, wanted).await?))
}

pub(super) async fn finish_rotation(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    JsonBody(wanted): JsonBody<FinishRotation>,
) -> JsonResult<AuthorityStatus> {
    Ok(Json(console.finish_rotation(&operator, wanted).await?))
}

pub(super) async fn cancel_rotation(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
) -> JsonResult<AuthorityStatus> {
    Ok(Json(console.cancel_rotation(&operator).await?))
}

pub(super) async fn refresh(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    PathSegments(host): PathSegments<String>,
) -> Result<StatusCode, Error> {
    console.refresh(&operator, &host).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn revoke_host(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    PathSegments(host): PathSegments<String>,
) -> Result<StatusCode, Error> {
    console.revoke_host(&operator, &host).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn remove_host(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    PathSegments(host): PathSegments<String>,
) -> Result<StatusCode, Error> {
    console.remove_host(&operator, &host).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn unit(
    State(console): State<Console>,
    PathSegments((host, realm, name)): PathSegments<(String, Name, Name)>,
) -> JsonResult<muster_api::Unit> {
    let host = console.resolve_host(&host).await?;
    Ok(Json(console.unit(host, &UnitName::new(&realm, &name)).await?))
}

pub(super) async fn unit_document(
    State(console): State<Console>,
    PathSegments((host, realm, name)): PathSegments<(String, Name, Name)>,
) -> JsonResult<Value> {
    let host = console.resolve_host(&host).await?;
    Ok(Json(console.unit_document(host, &UnitName::new(&realm, &name)).await?))
}

/// Which log of a unit's tasks is wanted.
#[derive(Debug, Deserialize)]
pub(super) struct TasksWanted {
    log: Option<u64>,
    #[serde(default)]
    from: u64,
}

pub(super) async fn unit_tasks(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    PathSegments((host, realm, name)): PathSegments<(String, Name, Name)>,
    QueryParams(wanted): QueryParams<TasksWanted>,
) -> JsonResult<muster_topics::task::UnitTasks> {
    let host = console.resolve_host(&host).await?;
    let unit = (host, UnitName::new(&realm, &name));
    Ok(Json(console.unit_tasks(&operator, unit, wanted.log, wanted.from).await?))
}

pub(super) async fn unit_differences(
    State(console): State<Console>,
    PathSegments((host, realm, name)): PathSegments<(String, Name, Name)>,
    JsonBody(wanted): JsonBody<muster_api::CompareUnit>,
) -> JsonResult<Vec<muster_api::FieldDifference>> {
    let host = console.resolve_host(&host).await?;
    Ok(Json(console.unit_differences(host, &UnitName::new(&realm, &name), &wanted).await?))
}

pub(super) async fn apply(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    JsonBody(wanted): JsonBody<muster_api::Apply>,
) -> JsonResult<muster_api::Applied> {
    Ok(Json(console.apply(&operator, wanted).await?))
}

/// The filter of hosts.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostsQuery {
    host: Option<String>,
    limit: Option<u32>,
}

async fn only(console: &Console, host: Option<&String>) -> Result<Option<HostId>, Error> {
    match host {
        Some(host) => console.resolve_host(host).await.map(Some),
        None => Ok(None),
    }
}

pub(super) async fn units(
    State(console): State<Console>,
    QueryParams(wanted): QueryParams<muster_api::UnitListing>,
) -> JsonResult<Vec<muster_api::Unit>> {
    Ok(Json(console.units_listed(&wanted).await?))
}

pub(super) async fn tokens(State(console): State<Console>) -> JsonResult<Vec<muster_api::Token>> {
    Ok(Json(console.tokens().await?))
}

pub(super) async fn create_token(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    JsonBody(token): JsonBody<muster_api::NewToken>,
) -> JsonResult<muster_api::CreatedToken> {
    Ok(Json(console.create_token(&operator, token).await?))
}

pub(super) async fn create_tokens(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    JsonBody(wanted): JsonBody<muster_api::NewTokens>,
) -> JsonResult<Vec<muster_api::CreatedToken>> {
    Ok(Json(console.create_tokens(&operator, wanted).await?))
}

pub(super) async fn revoke_token(
    State(console): State<Console>,
    PathSegments(id): PathSegments<String>,
) -> Result<StatusCode, Error> {
    console.revoke_token(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn commands(
    State(console): State<Console>,
    QueryParams(which): QueryParams<HostsQuery>,
) -> JsonResult<Vec<muster_api::Command>> {
    let host = only(&console, which.host.as_ref()).await?;
    Ok(Json(console.commands(host, which.limit.unwrap_or(50)).await?))
}

pub(super) async fn submit(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    JsonBody(command): JsonBody<muster_api::NewCommand>,
) -> JsonResult<muster_api::Command> {
    Ok(Json(console.submit(&operator, command).await?))
}

pub(super) async fn command(
    State(console): State<Console>,
    PathSegments(id): PathSegments<String>,
) -> JsonResult<muster_api::Command> {
    Ok(Json(console.command(console.command_id(&id).await?).await?))
}

pub(super) async fn command_events(
    State(console): State<Console>,
    PathSegments(id): PathSegments<String>,
) -> Result<Response, Error> {
    // An unknown command is an error response, rather than an event.
    let id = console.command_id(&id).await?;
    Ok(events::stream(console, id).into_response())
}

pub(super) async fn realms(State(console): State<Console>) -> JsonResult<Vec<muster_api::Realm>> {
    Ok(Json(console.realms().await?))
}

pub(super) async fn realm(
    State(console): State<Console>,
    PathSegments(realm): PathSegments<Name>,
) -> JsonResult<muster_api::Realm> {
    Ok(Json(console.realm(&realm).await?))
}

pub(super) async fn create_realm(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    JsonBody(realm): JsonBody<muster_api::NewRealm>,
) -> JsonResult<muster_api::RealmChanged> {
    Ok(Json(console.create_realm(&operator, realm).await?))
}

pub(super) async fn update_realm(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    PathSegments(realm): PathSegments<Name>,
    JsonBody(fields): JsonBody<muster_api::RealmFields>,
) -> JsonResult<muster_api::RealmChanged> {
    Ok(Json(console.update_realm(&operator, &realm, fields).await?))
}

pub(super) async fn remove_realm(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    PathSegments(realm): PathSegments<Name>,
) -> JsonResult<muster_api::RealmRemoved> {
    Ok(Json(console.remove_realm(&operator, &realm).await?))
}

/// The measurements to return.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MeasurementsQuery {
    selector: String,
    start_ms: Option<Millis>,
    end_ms: Option<Millis>,
    points: Option<usize>,
}

/// The length of a range without a start.
const RANGE_MS: Millis = 3_600_000;

pub(super) async fn series(
    State(console): State<Console>,
    QueryParams(wanted): QueryParams<MeasurementsQuery>,
) -> JsonResult<muster_api::SeriesAnswer> {
    let range = match (wanted.start_ms, wanted.end_ms) {
        (None, None) => None,
        (start, end) => {
            let end = end.unwrap_or_else(now_ms);
            Some((start.unwrap_or(end.saturating_sub(RANGE_MS)), end))
        }
    };
    Ok(Json(console.series(&wanted.selector, range, wanted.points.unwrap_or(500)).await?))
}

/// The measurements to export.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExportQuery {
    selector: String,
    start_ms: Option<Millis>,
    end_ms: Option<Millis>,
    #[serde(default)]
    format: ExportFormat,
}

/// The format of an export.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ExportFormat {
    #[default]
    Lines,
    Csv,
}

pub(super) async fn export_series(
    State(console): State<Console>,
    QueryParams(wanted): QueryParams<ExportQuery>,
) -> Result<Response, Error> {
    let (format, kind) = match wanted.format {
        ExportFormat::Lines => (LineFormat::Lines, "text/plain; charset=utf-8"),
        ExportFormat::Csv => (LineFormat::Csv, "text/csv; charset=utf-8; header=present"),
    };
    let range = (wanted.start_ms.unwrap_or(0), wanted.end_ms.unwrap_or_else(now_ms));
    let pieces = console.export_series(&wanted.selector, range, format).await?;
    // An error on the way can only be shown by closing the connection.
    let pieces = stream::unfold(pieces, |mut pieces| async move {
        let piece = pieces.recv().await?;
        if let Err(error) = &piece {
            tracing::error!(%error, "an export of measurements broke off");
        }
        Some((piece, pieces))
    });
    Ok(([(header::CONTENT_TYPE, kind)], Body::from_stream(pieces)).into_response())
}

pub(super) async fn clock(State(console): State<Console>) -> JsonResult<muster_api::ConsoleClock> {
    Ok(Json(console.clock()))
}

pub(super) async fn confirm_clock(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    JsonBody(seen): JsonBody<muster_api::ConfirmClock>,
) -> JsonResult<muster_api::ConsoleClock> {
    Ok(Json(console.confirm_clock(&operator, seen).await?))
}

pub(super) async fn backups(State(console): State<Console>) -> JsonResult<muster_api::Backups> {
    Ok(Json(console.backups().await?))
}

/// What is to be in a backup.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
pub(super) struct BackupQuery {
    artifacts: bool,
    series: bool,
}

pub(super) async fn new_backup(
    State(console): State<Console>,
    Extension(Requester(operator)): AskedBy,
    QueryParams(wanted): QueryParams<BackupQuery>,
) -> Result<Response, Error> {
    let BackupQuery { artifacts, series } = wanted;
    let BackupStream { name, bytes, pieces } =
        console.stream_backup(&operator, BackupChoice { artifacts, series }).await?;
    let pieces = stream::unfold(pieces, |mut pieces| async move { Some((pieces.recv().await?, pieces)) });
    let headers = [
        (header::CONTENT_TYPE.as_str(), "application/octet-stream".to_owned()),
        (header::CONTENT_DISPOSITION.as_str(), format!("attachment; filename=\"{name}\"")),
        (muster_api::BACKUP_BYTES_HEADER, bytes.to_string()),
    ];
    Ok((AppendHeaders(headers), Body::from_stream(pieces)).into_response())
}

pub(super) async fn metric_stores(State(console): State<Console>) -> Json<Vec<muster_api::MetricStore>> {
    Json(console.metric_stores())
}

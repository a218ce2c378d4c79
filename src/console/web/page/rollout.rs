//! The pages of rollouts.

use axum::{extract::State, response::Response};
use muster_api::{
    CancelRollout, HostOutcome, ReleaseHost, RolloutHostQuery, RolloutVerb, RolloutVersion, RolloutWaitKind,
};
use muster_topics::{
    desired::DeploymentName,
    name::{HostId, Name},
};
use serde::Deserialize;
use serde_json::Value;

use super::{RegionQuery, deployment::named};
use crate::{
    error::Error,
    state::Console,
    web::{
        answer,
        extract::{PageParams, PageSegments},
        guard::FormFields,
        session::WebSession,
        view::{
            rollout::{PAGE_HOSTS, ReleaseView, RolloutVerbView, RolloutView, ShownRollout, VERBS, url, verb_path},
            rollouts::RolloutsView,
        },
    },
};

/// The last rollout of each deployment.
pub(in crate::web) async fn list(
    State(console): State<Console>,
    session: WebSession,
    PageParams(asked): PageParams<RegionQuery>,
) -> Response {
    let view = console.rollouts().await.map(|rollouts| RolloutsView { rollouts });
    answer::or_problem(&session, view.map(|view| answer::page(&session, &view, asked.part.as_deref())))
}

/// Which rollout, and which of its hosts.
#[derive(Debug, Deserialize)]
pub(in crate::web) struct RolloutPageQuery {
    version: Option<String>,
    outcome: Option<String>,
    waits: Option<String>,
    wave: Option<String>,
    page: Option<String>,
    part: Option<String>,
}

impl RolloutPageQuery {
    /// Returns the valid parts of a query.
    fn shown(&self) -> ShownRollout {
        let number = |text: &Option<String>| text.as_deref().and_then(|text| text.parse().ok());
        let outcome = self.outcome.as_deref();
        let kind = |text: &str| serde_json::from_value::<RolloutWaitKind>(Value::from(text)).ok();
        ShownRollout {
            version: number(&self.version),
            outcome: HostOutcome::ALL.into_iter().find(|known| Some(known.word()) == outcome),
            waits: self.waits.as_deref().and_then(kind),
            wave: number(&self.wave),
            page: number(&self.page).unwrap_or(1).max(1),
        }
    }
}

/// One rollout.
pub(in crate::web) async fn show(
    State(console): State<Console>,
    session: WebSession,
    PageSegments((realm, name)): PageSegments<(Name, Name)>,
    PageParams(asked): PageParams<RolloutPageQuery>,
) -> Response {
    let view = view(&console, &realm, &name, asked.shown(), asked.part.is_none());
    answer::or_problem(&session, view.await.map(|view| answer::page(&session, &view, asked.part.as_deref())))
}

async fn view(
    console: &Console,
    realm: &Name,
    name: &Name,
    shown: ShownRollout,
    is_whole: bool,
) -> Result<RolloutView, Error> {
    let name = named(realm, name)?;
    let detail = console.rollout(&name, shown.version).await?;
    let newest = match shown.version {
        None => detail.rollout.version,
        Some(_) => console.rollout(&name, None).await?.rollout.version,
    };
    let query = RolloutHostQuery {
        version: Some(detail.rollout.version),
        outcome: shown.outcome,
        waits: shown.waits,
        wave: shown.wave,
        after: Some((shown.page - 1).saturating_mul(PAGE_HOSTS)),
        limit: Some(PAGE_HOSTS),
    };
    let hosts = console.rollout_hosts(&name, &query).await?;
    // No region shows it, and earlier rollouts are read from the store.
    let history = if is_whole { console.rollout_history(&name).await? } else { Vec::new() };
    Ok(RolloutView { detail, newest, hosts, history, shown })
}

/// The verb of a path.
fn verb(path: &str) -> Result<RolloutVerb, Error> {
    let found = VERBS.into_iter().find(|verb| verb_path(*verb) == path);
    found.ok_or_else(|| Error::not_found("unknown_page", format!("a rollout has no action {path:?}")))
}

/// Shows what a verb would do.
pub(in crate::web) async fn ask(
    State(console): State<Console>,
    session: WebSession,
    PageSegments((realm, name, path)): PageSegments<(Name, Name, String)>,
) -> Response {
    let view = async {
        let (verb, name) = (verb(&path)?, named(&realm, &name)?);
        Ok(RolloutVerbView { detail: console.rollout(&name, None).await?, verb })
    };
    answer::or_problem(&session, view.await.map(|view| answer::page(&session, &view, None)))
}

/// Does what a verb says, if the version is still the present one.
pub(in crate::web) async fn act(
    State(console): State<Console>,
    session: WebSession,
    PageSegments((realm, name, path)): PageSegments<(Name, Name, String)>,
    fields: FormFields,
) -> Response {
    let answer = async {
        let (verb, name) = (verb(&path)?, named(&realm, &name)?);
        let version = fields.one("version").parse().map_err(|_| {
            Error::invalid("bad_query", "the version of the rollout is not a number").hint("load the page again")
        })?;
        change(&console, &session.operator, &name, verb, version).await?;
        Ok(answer::see(&url(&name)))
    };
    answer::or_problem(&session, answer.await)
}

async fn change(
    console: &Console,
    operator: &Name,
    name: &DeploymentName,
    verb: RolloutVerb,
    version: u32,
) -> Result<(), Error> {
    let wanted = RolloutVersion { version: Some(version) };
    let cancel = |rollback| CancelRollout { version: Some(version), rollback };
    match verb {
        RolloutVerb::Pause => console.pause_rollout(operator, name, wanted).await,
        RolloutVerb::Resume => console.resume_rollout(operator, name, wanted).await,
        RolloutVerb::Promote => console.promote_rollout(operator, name, wanted).await,
        RolloutVerb::Retry => console.retry_rollout(operator, name, wanted).await,
        RolloutVerb::Cancel => console.cancel_rollout(operator, name, cancel(false)).await,
        RolloutVerb::CancelWithRollback => console.cancel_rollout(operator, name, cancel(true)).await,
    }
    .map(drop)
}

/// The host that is released.
#[derive(Debug, Deserialize)]
pub(in crate::web) struct ReleaseQuery {
    host: HostId,
}

/// Shows what releasing a host does.
pub(in crate::web) async fn ask_release(
    State(console): State<Console>,
    session: WebSession,
    PageSegments((realm, name)): PageSegments<(Name, Name)>,
    PageParams(asked): PageParams<ReleaseQuery>,
) -> Response {
    let view = async {
        let deployment = named(&realm, &name)?;
        let host = console.rollout_host(&deployment, asked.host).await?;
        Ok(ReleaseView { deployment, host })
    };
    answer::or_problem(&session, view.await.map(|view| answer::page(&session, &view, None)))
}

/// Releases a host.
pub(in crate::web) async fn release(
    State(console): State<Console>,
    session: WebSession,
    PageSegments((realm, name)): PageSegments<(Name, Name)>,
    fields: FormFields,
) -> Response {
    let answer = async {
        let name = named(&realm, &name)?;
        let wanted = ReleaseHost { host: fields.one("host").to_owned() };
        console.release_host(&session.operator, &name, wanted).await?;
        Ok(answer::see(&url(&name)))
    };
    answer::or_problem(&session, answer.await)
}

//! The page of alerts.

use axum::{extract::State, http::StatusCode, response::Response};
use muster_api::{AlertStanding, NewAlertSilence, Problem};
use muster_topics::name::Name;
use serde::Deserialize;

use crate::{
    error::Error,
    state::Console,
    store::alert::Which,
    web::{
        answer,
        extract::{PageParams, PageSegments},
        guard::FormFields,
        session::WebSession,
        view::alerts::{AlertsView, SilenceForm},
    },
};

/// The most active alerts in the list: more than anybody reads, and what a browser renders at once.
const RAISED_MAX: u32 = 500;
/// The most alerts, cleared and active together, in the second list: a screen or two.
const OVER_MAX: u32 = 100;

/// The initial values of the form.
#[derive(Debug, Deserialize)]
pub(in crate::web) struct AlertsPageQuery {
    #[serde(default)]
    host: String,
    #[serde(default)]
    rule: String,
    part: Option<String>,
}

async fn view(console: &Console, form: SilenceForm, problem: Option<Problem>) -> Result<AlertsView, Error> {
    let raised = console.alerts(Which { limit: RAISED_MAX, ..Which::default() }).await?;
    let mut over = console.alerts(Which { history: true, limit: OVER_MAX, ..Which::default() }).await?;
    over.retain(|alert| alert.standing != AlertStanding::Raised);
    let (silences, rules) = (console.alert_silences().await?, console.alert_rules().await?);
    let hosts = silences.iter().filter_map(|silence| silence.host).chain(rules.iter().filter_map(|rule| rule.host));
    let names = console.hostnames(&hosts.collect::<Vec<_>>()).await?;
    Ok(AlertsView { raised, over, silences, rules, names, form, problem })
}

/// The page.
pub(in crate::web) async fn show(
    State(console): State<Console>,
    session: WebSession,
    PageParams(asked): PageParams<AlertsPageQuery>,
) -> Response {
    let form = SilenceForm { host: asked.host, rule: asked.rule, reason: String::new() };
    let view = view(&console, form, None).await;
    answer::or_problem(&session, view.map(|view| answer::page(&session, &view, asked.part.as_deref())))
}

/// Creates a silence; problems are shown with the form as it was.
pub(in crate::web) async fn silence(
    State(console): State<Console>,
    session: WebSession,
    fields: FormFields,
) -> Response {
    let form = SilenceForm {
        host: fields.one("host").trim().to_owned(),
        rule: fields.one("rule").trim().to_owned(),
        reason: fields.one("reason").to_owned(),
    };
    let answer = async {
        match wanted(&form, fields.one("for_s")) {
            Ok(wanted) => match console.silence_alerts(&session.operator, wanted).await {
                Ok(_) => Ok(answer::see("/alerts")),
                Err(error) => refused(&console, &session, form, error).await,
            },
            Err(error) => refused(&console, &session, form, error).await,
        }
    };
    answer::or_problem(&session, answer.await)
}

fn wanted(form: &SilenceForm, for_s: &str) -> Result<NewAlertSilence, Error> {
    let named = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let rule: Option<Name> = named(&form.rule)
        .map(|rule| rule.parse())
        .transpose()
        .map_err(|error: muster_topics::name::NameError| Error::invalid("bad_rule", error.to_string()))?;
    let for_s =
        for_s.parse().map_err(|_| Error::invalid("bad_time", format!("{for_s:?} is not a number of seconds")))?;
    Ok(NewAlertSilence { host: named(&form.host), rule, reason: form.reason.clone(), for_s })
}

async fn refused(console: &Console, session: &WebSession, form: SilenceForm, error: Error) -> Result<Response, Error> {
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let view = view(console, form, Some(error.problem)).await?;
    Ok(answer::html(status, session.frame().page(&view)))
}

/// Ends a silence.
pub(in crate::web) async fn remove(
    State(console): State<Console>,
    session: WebSession,
    PageSegments(id): PageSegments<Name>,
) -> Response {
    let answer = async {
        console.end_alert_silence(&session.operator, id.as_str()).await?;
        Ok(answer::see("/alerts"))
    };
    answer::or_problem(&session, answer.await)
}

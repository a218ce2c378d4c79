//! The page of one host.

use std::collections::{BTreeMap, BTreeSet};

use axum::{extract::State, response::Response};
use muster_api::{Cordon, CordonHosts, LabelHosts, NewTarget};
use muster_topics::name::{LabelValue, Name, NameError};
use serde::Deserialize;

use super::super::chart::range::TimeRange;
use crate::{
    error::Error,
    state::Console,
    store::alert::Which,
    web::{
        answer, chart,
        extract::{PageParams, PageSegments},
        guard::FormFields,
        ledger::ListedCommand,
        session::WebSession,
        view::{
            elements,
            host::{DrainView, HostView, RECENT},
        },
    },
};

/// The most alerts of a host.
const ALERTS: u32 = muster_topics::alert::ALERTS_MAX as u32;

/// The requested part.
#[derive(Debug, Deserialize)]
pub(in crate::web) struct HostPageQuery {
    #[serde(default)]
    range: TimeRange,
    part: Option<String>,
}

/// Shows the page; a hostname redirects to its host's page.
pub(in crate::web) async fn show(
    State(console): State<Console>,
    session: WebSession,
    PageSegments(name): PageSegments<String>,
    PageParams(asked): PageParams<HostPageQuery>,
) -> Response {
    let answer = async {
        let view = view(&console, &name, asked.range).await?;
        if view.host.id.to_string() != name {
            return Ok(answer::see(&elements::host_url(view.host.id)));
        }
        Ok(answer::page(&session, &view, asked.part.as_deref()))
    };
    answer::or_problem(&session, answer.await)
}

/// Sets a label, or removes one.
pub(in crate::web) async fn label(
    State(console): State<Console>,
    session: WebSession,
    PageSegments(host): PageSegments<String>,
    fields: FormFields,
) -> Response {
    let answer = async {
        let host = console.resolve_host(&host).await?;
        let wrong = |error: NameError| Error::invalid("bad_label", error.to_string());
        let name = |field: &str| fields.one(field).trim().parse::<Name>().map_err(wrong);
        let (mut set, mut remove) = (BTreeMap::new(), BTreeSet::new());
        if fields.one("remove").is_empty() {
            set.insert(name("name")?, fields.one("value").trim().parse::<LabelValue>().map_err(wrong)?);
        } else {
            remove.insert(name("remove")?);
        }
        let target = NewTarget::Hosts(vec![host.to_string()]);
        let wanted = LabelHosts { target, set, remove, replace: fields.one("replace") == "yes" };
        console.label_hosts(&session.operator, wanted).await?;
        Ok(answer::see(&elements::host_url(host)))
    };
    answer::or_problem(&session, answer.await)
}

/// Cordons, drains or opens the host.
pub(in crate::web) async fn cordon(
    State(console): State<Console>,
    session: WebSession,
    PageSegments(host): PageSegments<String>,
    fields: FormFields,
) -> Response {
    let answer = async {
        let host = console.resolve_host(&host).await?;
        let cordon = [Cordon::Open, Cordon::Cordoned, Cordon::Drained];
        let cordon = cordon.into_iter().find(|one| one.word() == fields.one("cordon")).ok_or_else(|| {
            Error::invalid("bad_query", "a host is open, cordoned or drained").hint("load the page again")
        })?;
        let wanted = CordonHosts { target: NewTarget::Hosts(vec![host.to_string()]), cordon };
        console.cordon_hosts(&session.operator, wanted).await?;
        Ok(answer::see(&elements::host_url(host)))
    };
    answer::or_problem(&session, answer.await)
}

/// Shows what draining the host would remove.
pub(in crate::web) async fn ask_drain(
    State(console): State<Console>,
    session: WebSession,
    PageSegments(host): PageSegments<String>,
) -> Response {
    let view = async {
        let host = console.host(&host).await?;
        Ok(DrainView { carried: console.carried(host.id), host })
    };
    answer::or_problem(&session, view.await.map(|view| answer::page(&session, &view, None)))
}

/// Removes the host.
pub(in crate::web) async fn remove(
    State(console): State<Console>,
    session: WebSession,
    PageSegments(host): PageSegments<String>,
) -> Response {
    let answer = async {
        console.remove_host(&session.operator, &host).await?;
        Ok(answer::see("/"))
    };
    answer::or_problem(&session, answer.await)
}

async fn view(console: &Console, name: &str, range: TimeRange) -> Result<HostView, Error> {
    let host = console.host(name).await?;
    let alerts = console.alerts(Which { host: Some(host.id), limit: ALERTS, ..Which::default() }).await?;
    let units = console.units(Some(host.id)).await?;
    let commands = console.commands(Some(host.id), RECENT).await?.into_iter().map(ListedCommand::of).collect();
    let latest = chart::latest(console, host.id, None).await?;
    let rollouts = console.rollouts_of_host(host.id);
    Ok(HostView { host, alerts, units, commands, latest, rollouts, range })
}

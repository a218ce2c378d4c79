//! The page of all hosts.

use axum::{extract::State, response::Response};
use muster_topics::alert::Severity;
use serde::Deserialize;

use super::super::chart::range::TimeRange;
use crate::{
    error::Error,
    state::Console,
    store::{alert::Which, host::Search},
    web::{
        answer,
        extract::PageParams,
        session::WebSession,
        view::{
            glance::{FleetGlance, Severities},
            hosts::{HostsView, PAGE_HOSTS, ShownHosts},
        },
    },
};

/// The most units with problems in the list: a screen of a telephone.
const TROUBLED_MAX: u32 = 10;
/// The most alerts that are counted by severity; beyond it, the page says that there are more.
const ALERTS_MAX: u32 = 1_000;
/// The longest search text: longer than any hostname.
const TEXT_MAX_CHARS: usize = 255;

/// The filter of hosts.
#[derive(Debug, Deserialize)]
pub(in crate::web) struct HostsPageQuery {
    #[serde(default)]
    q: String,
    show: Option<String>,
    page: Option<String>,
    /// The range of the fleet's charts.
    range: Option<TimeRange>,
    part: Option<String>,
}

impl HostsPageQuery {
    /// Returns the valid parts of a query.
    fn shown(&self) -> ShownHosts {
        let online = match self.show.as_deref() {
            Some("online") => Some(true),
            Some("away") => Some(false),
            _ => None,
        };
        let page = self.page.as_deref().and_then(|page| page.parse().ok()).unwrap_or(1).max(1);
        ShownHosts { text: self.q.trim().chars().take(TEXT_MAX_CHARS).collect(), online, page }
    }
}

/// The page.
pub(in crate::web) async fn show(
    State(console): State<Console>,
    session: WebSession,
    PageParams(asked): PageParams<HostsPageQuery>,
) -> Response {
    let range = asked.range.unwrap_or_default();
    let view = view(&console, asked.shown(), range).await;
    answer::or_problem(&session, view.map(|view| answer::page(&session, &view, asked.part.as_deref())))
}

async fn view(console: &Console, shown: ShownHosts, range: TimeRange) -> Result<HostsView, Error> {
    let search = Search { text: shown.text.clone(), online: shown.online };
    let offset = (shown.page - 1).saturating_mul(u64::from(PAGE_HOSTS));
    let (hosts, found) = console.hosts_page(&search, offset, PAGE_HOSTS).await?;
    let (troubled, troubled_count) = console.troubled_units(TROUBLED_MAX).await?;
    let glance = glance(console, range).await?;
    Ok(HostsView { status: console.status().await?, shown, hosts, found, troubled, troubled_count, glance })
}

async fn glance(console: &Console, range: TimeRange) -> Result<FleetGlance, Error> {
    let mut alerts = Severities::default();
    let raised = console.alerts(Which { limit: ALERTS_MAX, ..Which::default() }).await?;
    let more = raised.len() >= ALERTS_MAX as usize;
    for alert in raised.iter().filter(|alert| alert.silence.is_none()) {
        *match alert.alert.severity {
            Severity::Critical => &mut alerts.critical,
            Severity::Warning => &mut alerts.warning,
            Severity::Info => &mut alerts.info,
        } += 1;
    }
    let alerts = Severities { more, ..alerts };
    Ok(FleetGlance { presences: console.presences().await?, alerts, overview: console.overview(), range })
}

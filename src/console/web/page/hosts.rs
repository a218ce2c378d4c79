//! All hosts.

use axum::{extract::State, response::Response};
use serde::Deserialize;

use crate::console::{
    Console, Error,
    store::host::Search,
    web::{
        answer,
        extract::Params,
        guard::Session,
        view::hosts::{HostsView, PAGE_HOSTS, Shown},
    },
};

/// Units in trouble that are listed: a screen of a telephone.
const TROUBLED_MAX: u32 = 10;
/// What is searched for is cut off here: longer than any hostname.
const TEXT_MAX_CHARS: usize = 255;

/// Which hosts.
#[derive(Debug, Deserialize)]
pub(in crate::console::web) struct Asked {
    #[serde(default)]
    q: String,
    show: Option<String>,
    page: Option<String>,
    part: Option<String>,
}

impl Asked {
    /// What an address says, as far as it makes sense.
    fn shown(&self) -> Shown {
        let online = match self.show.as_deref() {
            Some("online") => Some(true),
            Some("away") => Some(false),
            _ => None,
        };
        let page = self.page.as_deref().and_then(|page| page.parse().ok()).unwrap_or(1).max(1);
        Shown { text: self.q.trim().chars().take(TEXT_MAX_CHARS).collect(), online, page }
    }
}

/// The page.
pub(in crate::console::web) async fn show(
    State(console): State<Console>,
    session: Session,
    Params(asked): Params<Asked>,
) -> Response {
    let view = view(&console, asked.shown()).await;
    answer::or_problem(&session, view.map(|view| answer::page(&session, &view, asked.part.as_deref())))
}

async fn view(console: &Console, shown: Shown) -> Result<HostsView, Error> {
    let search = Search { text: shown.text.clone(), online: shown.online };
    let offset = (shown.page - 1).saturating_mul(u64::from(PAGE_HOSTS));
    let (hosts, found) = console.hosts_page(&search, offset, PAGE_HOSTS).await?;
    let (troubled, troubled_count) = console.troubled_units(TROUBLED_MAX).await?;
    Ok(HostsView { status: console.status().await?, shown, hosts, found, troubled, troubled_count })
}

//! The page of the ledger.

use axum::{extract::State, response::Response};

use super::RegionQuery;
use crate::{
    state::Console,
    web::{
        answer,
        extract::PageParams,
        ledger,
        session::WebSession,
        view::commands::{CommandsView, LISTED},
    },
};

/// The page.
pub(in crate::web) async fn show(
    State(console): State<Console>,
    session: WebSession,
    PageParams(asked): PageParams<RegionQuery>,
) -> Response {
    let view = ledger::newest(&console, LISTED).await.map(|commands| CommandsView { commands });
    answer::or_problem(&session, view.map(|view| answer::page(&session, &view, asked.part.as_deref())))
}

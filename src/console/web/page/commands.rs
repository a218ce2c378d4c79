//! The ledger.

use axum::{extract::State, response::Response};

use super::Part;
use crate::console::{
    Console,
    web::{
        answer,
        extract::Params,
        guard::Session,
        ledger,
        view::commands::{CommandsView, LISTED},
    },
};

/// The page.
pub(in crate::console::web) async fn show(
    State(console): State<Console>,
    session: Session,
    Params(asked): Params<Part>,
) -> Response {
    let view = ledger::newest(&console, LISTED).await.map(|commands| CommandsView { commands });
    answer::or_problem(&session, view.map(|view| answer::page(&session, &view, asked.part.as_deref())))
}

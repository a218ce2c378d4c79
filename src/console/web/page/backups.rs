//! The page of backups.

use axum::{extract::State, response::Response};

use crate::{
    state::Console,
    web::{answer, session::WebSession, view::backups::BackupsView},
};

/// The last backups, and how they are made.
pub(in crate::web) async fn show(State(console): State<Console>, session: WebSession) -> Response {
    let view = console.backups().await.map(|backups| BackupsView { backups });
    answer::or_problem(&session, view.map(|view| answer::page(&session, &view, None)))
}

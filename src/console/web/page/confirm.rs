//! The page that confirms hosts whose documents the console did not make.

use axum::{extract::State, response::Response};
use muster_api::{ConfirmDocuments, ConfirmedDocuments, NewTarget};
use muster_topics::name::{Digest, Name};
use serde::Deserialize;

use crate::{
    error::Error,
    state::Console,
    web::{answer, extract::PageParams, guard::FormFields, session::WebSession, view::confirm::ConfirmView},
};

/// Whose versions hold.
#[derive(Debug, Deserialize)]
pub(in crate::web) struct ConfirmQuery {
    #[serde(default)]
    replace: String,
}

fn wanted(replace: bool, dry_run: bool) -> ConfirmDocuments {
    ConfirmDocuments { target: NewTarget::All, dry_run, replace }
}

async fn planned(console: &Console, operator: &Name, replace: bool) -> Result<(ConfirmedDocuments, Digest), Error> {
    let planned = console.confirm_documents(operator, wanted(replace, true)).await?;
    let text = serde_json::to_vec(&planned.hosts).map_err(|error| Error::internal("writing hosts", &error))?;
    Ok((planned, Digest::of(&text)))
}

/// Shows what a confirmation would do.
pub(in crate::web) async fn ask(
    State(console): State<Console>,
    session: WebSession,
    PageParams(asked): PageParams<ConfirmQuery>,
) -> Response {
    let replace = asked.replace == "yes";
    let view = planned(&console, &session.operator, replace).await;
    let view = view.map(|(planned, digest)| ConfirmView { planned, replace, digest });
    answer::or_problem(&session, view.map(|view| answer::page(&session, &view, None)))
}

/// Confirms all hosts that were shown, if nothing has changed since.
pub(in crate::web) async fn confirm(
    State(console): State<Console>,
    session: WebSession,
    fields: FormFields,
) -> Response {
    let replace = fields.one("replace") == "yes";
    let answer = async {
        let (_, digest) = planned(&console, &session.operator, replace).await?;
        if digest.as_str() != fields.one("shown") {
            let message = "the hosts to confirm have changed since the page was loaded";
            return Err(Error::conflict("changed_meanwhile", message).hint("load the page again"));
        }
        console.confirm_documents(&session.operator, wanted(replace, false)).await?;
        Ok(answer::see("/deployments"))
    };
    answer::or_problem(&session, answer.await)
}

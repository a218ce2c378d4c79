//! The pages of artifacts and configs.

use axum::{extract::State, response::Response};
use muster_topics::name::{ConfigId, Digest, Version};

use crate::{
    state::Console,
    web::{
        answer,
        extract::PageSegments,
        session::WebSession,
        view::content::{ArtifactsView, ConfigView, ConfigsView, ManifestView},
    },
};

/// All artifacts.
pub(in crate::web) async fn artifacts(State(console): State<Console>, session: WebSession) -> Response {
    let view = console.artifacts(None, None).await.map(|artifacts| ArtifactsView { artifacts });
    answer::or_problem(&session, view.map(|view| answer::page(&session, &view, None)))
}

/// All configs.
pub(in crate::web) async fn configs(State(console): State<Console>, session: WebSession) -> Response {
    let view = console.configs().await.map(|configs| ConfigsView { configs });
    answer::or_problem(&session, view.map(|view| answer::page(&session, &view, None)))
}

/// One config.
pub(in crate::web) async fn config(
    State(console): State<Console>,
    session: WebSession,
    PageSegments((id, version)): PageSegments<(ConfigId, Version)>,
) -> Response {
    let view = console.config(&id, &version).await.map(|config| ConfigView { config });
    answer::or_problem(&session, view.map(|view| answer::page(&session, &view, None)))
}

/// One manifest.
pub(in crate::web) async fn manifest(
    State(console): State<Console>,
    session: WebSession,
    PageSegments(sha256): PageSegments<Digest>,
) -> Response {
    let view = console.manifest(&sha256).await.map(|manifest| ManifestView { sha256, manifest });
    answer::or_problem(&session, view.map(|view| answer::page(&session, &view, None)))
}

//! Artifacts and configs.

use axum::{extract::State, response::Response};
use muster_topics::name::{ConfigId, Digest, Version};

use crate::console::{
    Console,
    web::{
        answer,
        extract::Segments,
        guard::Session,
        view::content::{ArtifactsView, ConfigView, ConfigsView, ManifestView},
    },
};

/// All artifacts.
pub(in crate::console::web) async fn artifacts(State(console): State<Console>, session: Session) -> Response {
    let view = console.artifacts(None, None).await.map(|artifacts| ArtifactsView { artifacts });
    answer::or_problem(&session, view.map(|view| answer::page(&session, &view, None)))
}

/// All configs.
pub(in crate::console::web) async fn configs(State(console): State<Console>, session: Session) -> Response {
    let view = console.configs().await.map(|configs| ConfigsView { configs });
    answer::or_problem(&session, view.map(|view| answer::page(&session, &view, None)))
}

/// One config.
pub(in crate::console::web) async fn config(
    State(console): State<Console>,
    session: Session,
    Segments((id, version)): Segments<(ConfigId, Version)>,
) -> Response {
    let view = console.config(&id, &version).await.map(|config| ConfigView { config });
    answer::or_problem(&session, view.map(|view| answer::page(&session, &view, None)))
}

/// One manifest.
pub(in crate::console::web) async fn manifest(
    State(console): State<Console>,
    session: Session,
    Segments(sha256): Segments<Digest>,
) -> Response {
    let view = console.manifest(&sha256).await.map(|manifest| ManifestView { sha256, manifest });
    answer::or_problem(&session, view.map(|view| answer::page(&session, &view, None)))
}

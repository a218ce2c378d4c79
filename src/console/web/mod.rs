//! The web pages. (Being written.)

/// The pages, to be merged at `/`.
pub fn router(_console: super::Console) -> axum::Router {
    axum::Router::new()
}

//! Serves the files that pages load.

use axum::{
    extract::Path,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use muster_base::clock::now_ms;

use super::{answer, assets::ALL};
use crate::{error::Error, web::view::PageFrame};

/// Serves an asset, publicly.
pub(super) async fn serve(Path((hash, name)): Path<(String, String)>) -> Response {
    let Some(asset) = ALL.iter().find(|asset| asset.name == name && *asset.hash == hash) else {
        let error = Error::not_found("unknown_asset", "unknown file").hint("load the page again");
        return answer::problem(&PageFrame::stranger(now_ms()), &error);
    };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(asset.kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable")),
    ];
    (headers, asset.content).into_response()
}

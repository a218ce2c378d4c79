//! What pages load: styles and scripts, embedded, and named by what they contain, so that a browser
//! keeps each for ever and never has an old one.

use std::sync::LazyLock;

use axum::{
    extract::Path,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use muster_topics::name::Digest;

use super::answer;
use crate::{
    clock::now_ms,
    console::{Error, web::view::Frame},
};

/// One file.
#[derive(Debug)]
pub(super) struct Asset {
    name: &'static str,
    kind: &'static str,
    content: &'static [u8],
    hash: LazyLock<String>,
}

macro_rules! asset {
    ($constant:ident, $name:literal, $kind:literal, $hash:ident) => {
        fn $hash() -> String {
            Digest::of($constant.content).short().to_owned()
        }

        #[doc = $name]
        pub(super) static $constant: Asset = Asset {
            name: $name,
            kind: $kind,
            content: include_bytes!(concat!("assets/", $name)),
            hash: LazyLock::new($hash),
        };
    };
}

asset!(STYLE, "style.css", "text/css; charset=utf-8", style_hash);
asset!(APP, "app.js", "text/javascript; charset=utf-8", app_hash);
asset!(CHARTS, "charts.js", "text/javascript; charset=utf-8", charts_hash);
asset!(ICON, "icon.svg", "image/svg+xml", icon_hash);
asset!(HTMX, "htmx.min.js", "text/javascript; charset=utf-8", htmx_hash);
asset!(HTMX_SSE, "htmx-ext-sse.min.js", "text/javascript; charset=utf-8", htmx_sse_hash);
asset!(UPLOT, "uplot.min.js", "text/javascript; charset=utf-8", uplot_hash);
asset!(UPLOT_STYLE, "uplot.min.css", "text/css; charset=utf-8", uplot_style_hash);

static ALL: [&Asset; 8] = [&STYLE, &APP, &CHARTS, &ICON, &HTMX, &HTMX_SSE, &UPLOT, &UPLOT_STYLE];

impl Asset {
    /// Where a page finds it.
    pub(super) fn url(&self) -> String {
        format!("/assets/{}/{}", *self.hash, self.name)
    }
}

/// Gives one away, to anybody.
pub(super) async fn serve(Path((hash, name)): Path<(String, String)>) -> Response {
    let Some(asset) = ALL.iter().find(|asset| asset.name == name && *asset.hash == hash) else {
        let error = Error::not_found("unknown_asset", "there is no such file").hint("load the page again");
        return answer::problem(&Frame::stranger(now_ms()), &error);
    };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(asset.kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable")),
    ];
    (headers, asset.content).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the table of the folder's README says must be what the files are.
    #[test]
    fn the_readme_names_what_is_there() {
        let readme = include_str!("assets/README.md");
        let text = |asset: &Asset| std::str::from_utf8(asset.content).unwrap();
        assert!(text(&HTMX).contains("version:\"2.0.11\"") && readme.contains("| 2.0.11 | 0BSD"));
        assert!(text(&UPLOT).contains("uPlot (v1.6.32)") && readme.contains("| 1.6.32 | MIT"));
        for asset in ALL {
            assert!(readme.contains(&format!("`{}`", asset.name)), "{}", asset.name);
        }
    }

    #[test]
    fn an_address_changes_with_the_content() {
        assert_eq!(STYLE.url(), format!("/assets/{}/style.css", Digest::of(STYLE.content).short()));
    }
}

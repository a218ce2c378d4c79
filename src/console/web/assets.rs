//! Styles and scripts of the pages: embedded, and named by their hash, so that a browser
//! caches each forever and never uses an old one.

use std::sync::LazyLock;

use muster_topics::name::Digest;

pub(super) use super::asset_server::serve;

/// An asset.
#[derive(Debug)]
pub(super) struct Asset {
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    pub(super) content: &'static [u8],
    pub(super) hash: LazyLock<String>,
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

pub(super) static ALL: [&Asset; 8] = [&STYLE, &APP, &CHARTS, &ICON, &HTMX, &HTMX_SSE, &UPLOT, &UPLOT_STYLE];

impl Asset {
    /// Returns its URL.
    pub(super) fn url(&self) -> String {
        format!("/assets/{}/{}", *self.hash, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table in the folder's README must match the files.
    #[test]
    fn readme_lists_every_asset() {
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

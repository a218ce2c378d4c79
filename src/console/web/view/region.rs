//! Regions of a page, which are fetched again after a change.

use maud::{Markup, html};

/// Renders a region that is fetched again on these events: `url` is the page's own address. During one fetch another
/// one waits: if it were aborted instead, many changes and a slow connection would show nothing.
pub(in super::super::super) fn region(url: &str, name: &str, events: &[&str], content: Markup) -> Markup {
    triggered(url, name, events, None, content)
}

/// The same for what changes without an event: it is also fetched again at this interval.
pub(in super::super::super) fn region_every(
    seconds: u32,
    url: &str,
    name: &str,
    events: &[&str],
    content: Markup,
) -> Markup {
    triggered(url, name, events, Some(format!("every {seconds}s")), content)
}

pub(super) fn triggered(url: &str, name: &str, events: &[&str], every: Option<String>, content: Markup) -> Markup {
    let joint = if url.contains('?') { '&' } else { '?' };
    let events = events.iter().chain(&["sync"]).map(|event| format!("sse:{event}"));
    let triggers: Vec<String> = events.chain(every).collect();
    html! {
        div.region id=(name) hx-get={ (url) (joint) "part=" (name) } hx-trigger={ (triggers.join(", ")) ", again" }
            hx-swap="innerHTML" hx-sync="this:queue last" { (content) }
    }
}

/// Encodes text for a query.
pub(in super::super::super) fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

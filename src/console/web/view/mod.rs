//! Views: what pages show, and their markup.
//!
//! A page is a struct with everything it shows, and a function from it to markup. Around it lies a
//! [`Frame`]: menu, operator, time. Regions that change are parts with a name ([`region`]): the page
//! contains them, and gives each alone when it is asked for `?part=`.
//!
//! Modules: [`bits`] (ages, states, sizes: what all pages share), then one for each page; `samples`
//! has values of each view, which a test draws and checks.
//!
//! **Invariant: forms lie outside of regions**, so that what somebody types is never replaced.

pub(super) mod alerts;
pub(super) mod bits;
pub(super) mod command;
pub(super) mod commands;
pub(super) mod content;
pub(super) mod glance;
pub(super) mod host;
pub(super) mod hosts;
pub(super) mod join;
pub(super) mod manage;
pub(super) mod problem;
pub(super) mod rule;
pub(super) mod run;
#[cfg(test)]
pub(super) mod samples;
pub(super) mod sign_in;
pub(super) mod unit;

use maud::{DOCTYPE, Markup, html};
use muster_topics::{
    Millis,
    name::{CommandId, HostId, Name},
};

use super::assets;

/// How htmx is to behave: nothing evaluated, nothing inline, no pages kept in the browser's storage,
/// no requests to anywhere else.
const HTMX_CONFIG: &str = r#"{"allowEval":false,"allowScriptTags":false,"includeIndicatorStyles":false,"historyCacheSize":0,"historyEnabled":false,"selfRequestsOnly":true,"timeout":15000}"#;

/// A page.
pub(super) trait View {
    /// What the browser's tab says.
    fn title(&self) -> String;

    /// The item of the menu that it belongs to.
    fn section(&self) -> Option<Section> {
        None
    }

    /// The changes that concern it.
    fn watch(&self) -> Option<Watch> {
        None
    }

    /// Everything below the menu, with the one `h1`.
    fn body(&self, frame: &Frame) -> Markup;

    /// The content of a region.
    fn part(&self, _frame: &Frame, _name: &str) -> Option<Markup> {
        None
    }
}

/// Which changes a page wants to hear of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Watch {
    /// Of this host alone.
    pub(super) host: Option<HostId>,
    /// Of this command alone.
    pub(super) command: Option<CommandId>,
}

impl Watch {
    /// Where they are told.
    pub(super) fn url(self) -> String {
        let host = self.host.map(|host| format!("host={host}"));
        let command = self.command.map(|command| format!("command={command}"));
        let query: Vec<_> = host.into_iter().chain(command).collect();
        format!("/live?{}", query.join("&"))
    }
}

/// Items of the menu.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    /// Hosts, and everything on one.
    Hosts,
    /// What somebody should look at.
    Alerts,
    /// The ledger.
    Commands,
    /// A new command.
    Run,
    /// New hosts.
    Join,
    /// Artifacts.
    Artifacts,
    /// Configs.
    Configs,
}

impl Section {
    const ALL: [Self; 7] =
        [Self::Hosts, Self::Alerts, Self::Commands, Self::Run, Self::Join, Self::Artifacts, Self::Configs];

    fn word_and_path(self) -> (&'static str, &'static str) {
        match self {
            Self::Hosts => ("Hosts", "/"),
            Self::Alerts => ("Alerts", "/alerts"),
            Self::Commands => ("Commands", "/commands"),
            Self::Run => ("Run", "/run"),
            Self::Join => ("Join", "/join"),
            Self::Artifacts => ("Artifacts", "/artifacts"),
            Self::Configs => ("Configs", "/configs"),
        }
    }
}

/// What lies around every page.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    /// Who is signed in.
    pub(super) operator: Option<Name>,
    /// What forms have to carry.
    pub(super) token: String,
    /// How many alerts hold that nobody has silenced.
    pub(super) alerts: u64,
    /// What is wrong with the console itself.
    pub(super) notices: Vec<String>,
    /// The time that ages are told by.
    pub(super) now_ms: Millis,
}

impl Frame {
    /// The frame of a page for somebody who is not signed in.
    pub(super) fn stranger(now_ms: Millis) -> Self {
        Self { operator: None, token: String::new(), alerts: 0, notices: Vec::new(), now_ms }
    }

    /// A whole document.
    pub(super) fn page(&self, view: &impl View) -> Markup {
        let watch = view.watch().filter(|_| self.operator.is_some());
        html! {
            (DOCTYPE)
            html lang="en" data-now-ms=(self.now_ms) {
                (head(&view.title()))
                body hx-ext="sse" {
                    a.skip href="#main" { "Skip to content" }
                    header.top {
                        a.brand href="/" { "muster" }
                        @if let Some(operator) = &self.operator {
                            (menu(view.section(), self.alerts))
                            div.who {
                                @if watch.is_some() {
                                    span #live .live hidden { "live" }
                                }
                                (self.form("/sign-out", html! {
                                    span.operator { (operator) }
                                    button.quiet type="submit" { "Sign out" }
                                }))
                            }
                        }
                    }
                    @for notice in &self.notices {
                        div.notice.bad role="alert" { (notice) }
                    }
                    main #main tabindex="-1" sse-connect=[watch.map(Watch::url)] { (view.body(self)) }
                }
            }
        }
    }

    /// A form that changes something, with the token that it has to carry.
    pub(super) fn form(&self, action: &str, content: Markup) -> Markup {
        html! {
            form method="post" action=(action) {
                input type="hidden" name="csrf" value=(self.token);
                (content)
            }
        }
    }
}

fn head(title: &str) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            meta name="htmx-config" content=(HTMX_CONFIG);
            title { (title) " · muster" }
            link rel="icon" type="image/svg+xml" href=(assets::ICON.url());
            link rel="stylesheet" href=(assets::UPLOT_STYLE.url());
            link rel="stylesheet" href=(assets::STYLE.url());
            @for script in [&assets::HTMX, &assets::HTMX_SSE, &assets::UPLOT, &assets::APP, &assets::CHARTS] {
                script src=(script.url()) defer {}
            }
        }
    }
}

fn menu(here: Option<Section>, alerts: u64) -> Markup {
    html! {
        nav aria-label="Pages" {
            ul {
                @for section in Section::ALL {
                    @let (word, path) = section.word_and_path();
                    li { a href=(path) aria-current=[(here == Some(section)).then_some("page")] {
                        (word)
                        @if section == Section::Alerts && alerts > 0 {
                            " " span.count { (bits::grouped(alerts)) span.visually-hidden { " active" } }
                        }
                    } }
                }
            }
        }
    }
}

/// A region that is fetched again on these events: `url` is the page's own address. While one fetch is
/// under way another one waits: were it aborted instead, many changes and a slow line would show nothing.
pub(super) fn region(url: &str, name: &str, events: &[&str], content: Markup) -> Markup {
    triggered(url, name, events, None, content)
}

/// The same for what changes without an event: it is fetched again every so many seconds, too.
pub(super) fn region_every(seconds: u32, url: &str, name: &str, events: &[&str], content: Markup) -> Markup {
    triggered(url, name, events, Some(format!("every {seconds}s")), content)
}

fn triggered(url: &str, name: &str, events: &[&str], every: Option<String>, content: Markup) -> Markup {
    let joint = if url.contains('?') { '&' } else { '?' };
    let events = events.iter().chain(&["sync"]).map(|event| format!("sse:{event}"));
    let triggers: Vec<String> = events.chain(every).collect();
    html! {
        div.region id=(name) hx-get={ (url) (joint) "part=" (name) } hx-trigger={ (triggers.join(", ")) ", again" }
            hx-swap="innerHTML" hx-sync="this:queue last" { (content) }
    }
}

/// Text in a query, percent-encoded.
pub(super) fn encoded(text: &str) -> String {
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

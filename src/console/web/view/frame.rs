//! The frame around each page: head, menu and notices.

use maud::{DOCTYPE, Markup, html};
use muster_topics::{
    Millis,
    name::{CommandId, HostId, Name},
};

use super::super::assets;

/// The configuration of htmx: nothing evaluated, nothing inline, no pages kept in the browser's storage, no requests to
/// other origins.
pub(super) const HTMX_CONFIG: &str = r#"{"allowEval":false,"allowScriptTags":false,"includeIndicatorStyles":false,"historyCacheSize":0,"historyEnabled":false,"selfRequestsOnly":true,"timeout":15000}"#;

/// A page.
pub(in super::super::super) trait PageView {
    /// The title of the browser's tab.
    fn title(&self) -> String;

    /// Its item of the menu.
    fn section(&self) -> Option<Section> {
        None
    }

    /// The changes that concern it.
    fn watch(&self) -> Option<PageWatch> {
        None
    }

    /// Renders everything below the menu, with the one `h1`.
    fn body(&self, frame: &PageFrame) -> Markup;

    /// Renders the content of a region.
    fn part(&self, _frame: &PageFrame, _name: &str) -> Option<Markup> {
        None
    }
}

/// The changes that a page follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super::super) struct PageWatch {
    /// Of this host alone.
    pub(in super::super::super) host: Option<HostId>,
    /// Of this command alone.
    pub(in super::super::super) command: Option<CommandId>,
}

impl PageWatch {
    /// The URL of its events.
    pub(in super::super::super) fn url(self) -> String {
        let host = self.host.map(|host| format!("host={host}"));
        let command = self.command.map(|command| format!("command={command}"));
        let query: Vec<_> = host.into_iter().chain(command).collect();
        format!("/live?{}", query.join("&"))
    }
}

/// Items of the menu.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super::super) enum Section {
    /// Hosts, and everything on one.
    Hosts,
    /// Units of all hosts.
    Units,
    /// Deployments.
    Deployments,
    /// Rollouts.
    Rollouts,
    /// Alerts.
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
    /// Variables.
    Vars,
    /// Secrets.
    Secrets,
}

impl Section {
    pub(super) const ALL: [Self; 12] = [
        Self::Hosts,
        Self::Units,
        Self::Deployments,
        Self::Rollouts,
        Self::Alerts,
        Self::Commands,
        Self::Run,
        Self::Join,
        Self::Artifacts,
        Self::Configs,
        Self::Vars,
        Self::Secrets,
    ];

    pub(super) fn word_and_path(self) -> (&'static str, &'static str) {
        match self {
            Self::Hosts => ("Hosts", "/"),
            Self::Units => ("Units", "/units"),
            Self::Deployments => ("Deployments", "/deployments"),
            Self::Rollouts => ("Rollouts", "/rollouts"),
            Self::Alerts => ("Alerts", "/alerts"),
            Self::Commands => ("Commands", "/commands"),
            Self::Run => ("Run", "/run"),
            Self::Join => ("Join", "/join"),
            Self::Artifacts => ("Artifacts", "/artifacts"),
            Self::Configs => ("Configs", "/configs"),
            Self::Vars => ("Variables", "/vars"),
            Self::Secrets => ("Secrets", "/secrets"),
        }
    }
}

/// The frame of every page.
#[derive(Clone, Debug)]
pub(in super::super::super) struct PageFrame {
    /// The signed-in operator.
    pub(in super::super::super) operator: Option<Name>,
    /// The token of forms.
    pub(in super::super::super) token: String,
    /// The number of active, unsilenced alerts.
    pub(in super::super::super) alerts: u64,
    /// The problems of the console.
    pub(in super::super::super) notices: Vec<String>,
    /// The time from which ages are computed.
    pub(in super::super::super) now_ms: Millis,
}

impl PageFrame {
    /// Returns the frame of a page without a session.
    pub(in super::super::super) fn stranger(now_ms: Millis) -> Self {
        Self { operator: None, token: String::new(), alerts: 0, notices: Vec::new(), now_ms }
    }

    /// Renders a whole document.
    pub(in super::super::super) fn page(&self, view: &impl PageView) -> Markup {
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
                    main #main tabindex="-1" sse-connect=[watch.map(PageWatch::url)] { (view.body(self)) }
                }
            }
        }
    }

    /// Renders a form that changes something, with its token.
    pub(in super::super::super) fn form(&self, action: &str, content: Markup) -> Markup {
        html! {
            form method="post" action=(action) {
                input type="hidden" name="csrf" value=(self.token);
                (content)
            }
        }
    }
}

pub(super) fn head(title: &str) -> Markup {
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

pub(super) fn menu(here: Option<Section>, alerts: u64) -> Markup {
    html! {
        nav aria-label="Pages" {
            ul {
                @for section in Section::ALL {
                    @let (word, path) = section.word_and_path();
                    li { a href=(path) aria-current=[(here == Some(section)).then_some("page")] {
                        (word)
                        @if section == Section::Alerts && alerts > 0 {
                            " " span.count { (super::elements::grouped(alerts)) span.visually-hidden { " active" } }
                        }
                    } }
                }
            }
        }
    }
}

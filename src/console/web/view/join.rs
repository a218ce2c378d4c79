//! Joining: a one-time token for a new host, the list of tokens, and the keys that hosts trust.

use std::collections::HashMap;

use maud::{Markup, html};
use muster_api::{CreatedToken, Problem, Token, authority::AuthorityStatus, host_names::HostNames};
use muster_topics::name::HostId;

use super::{
    authority,
    elements::{self, Tone, ago, state},
    frame::{PageFrame, PageView, Section},
    problem::notice,
};

/// The choices of a token's lifetime, in seconds.
pub(in crate::web) const TTLS: [(u64, &str); 4] =
    [(900, "15 minutes"), (3_600, "1 hour"), (86_400, "1 day"), (604_800, "7 days")];

/// The page.
#[derive(Clone, Debug)]
pub(in crate::web) struct JoinView {
    /// All tokens, newest first.
    pub(in crate::web) tokens: Vec<Token>,
    /// Names of the hosts that have used them, or that they are for.
    pub(in crate::web) names: HashMap<HostId, String>,
    /// The token that was just created: it can be shown only now.
    pub(in crate::web) created: Option<CreatedToken>,
    /// Why none was created.
    pub(in crate::web) problem: Option<Problem>,
    /// The authority's keys.
    pub(in crate::web) authority: AuthorityStatus,
}

impl PageView for JoinView {
    fn title(&self) -> String {
        "Join a host".to_owned()
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Join)
    }

    fn body(&self, frame: &PageFrame) -> Markup {
        html! {
            h1 { "Join a host" }
            @if let Some(problem) = &self.problem { (notice(problem)) }
            @if let Some(created) = &self.created { (once(created, frame)) }
            p { "A host joins with a one-time token, which also tells it which console to trust. Create a token, and run the command "
                "shown with it on the new host." }
            (frame.form("/join", html! {
                div.row {
                    label for="lifetime" { "Valid for" }
                    select #lifetime name="for_s" {
                        @for (seconds, words) in TTLS { option value=(seconds) selected[seconds == 3_600] { (words) } }
                    }
                    button.primary type="submit" { "Create a token" }
                }
            }))
            section {
                h2 { "Tokens" }
                @if self.tokens.is_empty() {
                    (elements::empty("There are no tokens.", "Make one above, or on the command line:", "muster token create"))
                } @else { (self.table(frame)) }
            }
            (authority::section(&self.authority, frame))
        }
    }
}

/// Renders how to use a new token.
fn once(created: &CreatedToken, frame: &PageFrame) -> Markup {
    html! {
        section.notice.good role="status" {
            h2 { "Run this on the new host" }
            (elements::cli(&created.command))
            @if let Some(warning) = &created.warning { p { strong { "Only this machine can use the token: " } (format!("{warning:#}")) } }
            p { "The token is shown only once, is valid for one host, and expires " (elements::due(created.expires_ms, frame.now_ms))
                ". The host then appears under " a href="/" { "Hosts" } "." }
        }
    }
}

impl JoinView {
    fn table(&self, frame: &PageFrame) -> Markup {
        html! {
            table.cards {
                caption.visually-hidden { "Tokens" }
                thead {
                    tr { th scope="col" { "Token" } th scope="col" { "State" } th scope="col" { "Made" } th scope="col" { "Revoke" } }
                }
                tbody {
                    @for token in &self.tokens {
                        tr {
                            th scope="row" { code { (token.id) } }
                            td data-label="State" { (self.token_state(token, frame)) }
                            td data-label="Made" { (ago(token.created_ms, frame.now_ms)) " by " (token.operator) }
                            td data-label="Revoke" {
                                @if token.used.is_none() && token.expires_ms > frame.now_ms {
                                    (frame.form(&format!("/join/{}/revoke", token.id), html! {
                                        button type="submit" aria-label={ "Revoke " (token.id) } { "Revoke" }
                                    }))
                                } @else { "–" }
                            }
                        }
                    }
                }
            }
        }
    }

    /// Renders a host's name; the id of a removed one.
    fn hostname(&self, host: HostId) -> Markup {
        let names = HostNames::new(self.names.iter().map(|(host, name)| (*host, name.as_str())));
        html! {
            a href=(elements::host_url(host)) {
                @match self.names.get(&host) {
                    Some(name) => { (names.show(host, name)) }
                    None => { code { (host) } }
                }
            }
        }
    }

    fn token_state(&self, token: &Token, frame: &PageFrame) -> Markup {
        html! {
            @match token.used {
                Some((at_ms, host)) => {
                    (state(Tone::Idle, "used")) " " (ago(at_ms, frame.now_ms)) " by " (self.hostname(host))
                }
                None if token.expires_ms <= frame.now_ms => { (state(Tone::Idle, "ended")) " " (elements::due(token.expires_ms, frame.now_ms)) }
                None => { (state(Tone::Good, "unused")) " ends " (elements::due(token.expires_ms, frame.now_ms)) }
            }
            @if let (None, Some(host)) = (token.used, token.replaces) { ", for " (self.hostname(host)) }
        }
    }
}

//! Secrets: names, versions and users. No page has a value.

use maud::{Markup, html};
use muster_api::{Problem, Realm, Secret, SecretDetail, host_names::HostNames};
use muster_topics::name::{NAME_MAX_BYTES, Name};

use super::{
    elements::{Tone, ago, empty, state},
    frame::{PageFrame, PageView, Section},
    problem::notice,
    unit,
};

/// The list of secrets.
#[derive(Clone, Debug)]
pub(in crate::web) struct SecretsView {
    /// By realm and name.
    pub(in crate::web) secrets: Vec<Secret>,
    /// The realms that a secret may belong to.
    pub(in crate::web) realms: Vec<Realm>,
    /// Why none was set.
    pub(in crate::web) problem: Option<Problem>,
}

impl PageView for SecretsView {
    fn title(&self) -> String {
        "Secrets".to_owned()
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Secrets)
    }

    fn body(&self, frame: &PageFrame) -> Markup {
        html! {
            h1 { "Secrets" }
            @if let Some(problem) = &self.problem { (notice(problem)) }
            p { "A config names a secret as " code { r#"{"$secret": {"name": "NAME"}}"# } ", and the processes of units that have that config "
                "find its value in their file. Values are stored encrypted, and cannot be read back." }
            @if self.secrets.is_empty() {
                (empty("There are no secrets.", "Set one below, or on the command line:", "muster secret set NAME"))
            } @else {
                table.cards {
                    caption.visually-hidden { "Secrets" }
                    thead { tr { th scope="col" { "Secret" } th scope="col" { "Version" } th scope="col" { "Units" } th scope="col" { "Set" } } }
                    tbody {
                        @for secret in &self.secrets {
                            tr {
                                th scope="row" { a href=(url(&secret.realm, &secret.name)) { (secret.realm) "/" (secret.name) } }
                                td.number data-label="Version" { (secret.version) }
                                td data-label="Units" {
                                    (secret.units)
                                    @if secret.behind > 0 { " " (state(Tone::Busy, &format!("{} with an earlier version", secret.behind))) }
                                    @if !secret.readable { " " (state(Tone::Bad, "unreadable: set it again")) }
                                }
                                td data-label="Set" { (ago(secret.set_ms, frame.now_ms)) " by " (secret.operator) }
                            }
                        }
                    }
                }
            }
            section {
                h2 { "Set a secret" }
                (frame.form("/secrets", html! {
                    div.row {
                        div.field {
                            label for="realm" { "Realm" }
                            select #realm name="realm" { @for realm in &self.realms { option value=(realm.realm.name) { (realm.realm.name) } } }
                        }
                        div.field {
                            label for="name" { "Name" }
                            input #name type="text" name="name" maxlength=(NAME_MAX_BYTES) required autocapitalize="none" spellcheck="false";
                        }
                    }
                    (value_field())
                }))
            }
        }
    }
}

fn value_field() -> Markup {
    html! {
        div.field {
            label for="value" { "Value" }
            textarea #value name="value" rows="3" required autocomplete="off" autocapitalize="none" spellcheck="false" {}
        }
        button.primary type="submit" { "Set" }
    }
}

/// One secret.
#[derive(Clone, Debug)]
pub(in crate::web) struct SecretView {
    /// Its realm.
    pub(in crate::web) realm: Name,
    /// Its name.
    pub(in crate::web) name: Name,
    /// What is known of it.
    pub(in crate::web) detail: SecretDetail,
    /// Why it was not changed.
    pub(in crate::web) problem: Option<Problem>,
}

impl PageView for SecretView {
    fn title(&self) -> String {
        format!("Secret {}/{}", self.realm, self.name)
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Secrets)
    }

    fn body(&self, frame: &PageFrame) -> Markup {
        let SecretDetail { secret, versions, users, configs } = &self.detail;
        let url = url(&self.realm, &self.name);
        let names = HostNames::new(users.iter().map(|user| (user.host, user.hostname.as_str())));
        let newest = secret.as_ref().map(|secret| secret.version);
        html! {
            h1 { "Secret " (self.realm) "/" (self.name) }
            @if let Some(problem) = &self.problem { (notice(problem)) }
            @if secret.is_none() { p { "It was removed. A new value gets the next version." } }
            @if secret.as_ref().is_some_and(|secret| !secret.readable) {
                p { (state(Tone::Bad, "unreadable")) " The key that its value was encrypted with is lost. Set it again." }
            }
            section {
                h2 { "Units" }
                @if users.is_empty() {
                    p.note { "No unit uses it." }
                } @else {
                    table.cards {
                        caption.visually-hidden { "Units that use it" }
                        thead { tr { th scope="col" { "Unit" } th scope="col" { "Host" } th scope="col" { "Version" } } }
                        tbody {
                            @for user in users {
                                tr {
                                    th scope="row" { a href=(unit::url(user.host, &user.unit)) { (user.unit) } }
                                    td data-label="Host" { a href={ "/host/" (user.host) } { (names.show(user.host, &user.hostname)) } }
                                    td data-label="Version" {
                                        (user.version)
                                        @if newest.is_some_and(|newest| user.version < newest) { " " (state(Tone::Busy, "earlier")) }
                                    }
                                }
                            }
                        }
                    }
                    @if let Some(secret) = secret.as_ref().filter(|secret| secret.behind > 0) {
                        (frame.form(&format!("{url}/upgrade"), html! {
                            input type="hidden" name="version" value=(secret.version);
                            button type="submit" { "Give version " (secret.version) " to " (secret.behind) @if secret.behind == 1 { " unit" } @else { " units" } }
                            p.note { "They are reloaded or restarted, as each of them says." }
                        }))
                    }
                }
            }
            section {
                h2 { "Versions" }
                table.cards {
                    caption.visually-hidden { "Versions" }
                    thead { tr { th scope="col" { "Version" } th scope="col" { "Set" } th scope="col" { "Value" } } }
                    tbody {
                        @for version in versions {
                            tr {
                                th scope="row" { (version.version) }
                                td data-label="Set" { (ago(version.set_ms, frame.now_ms)) " by " (version.operator) }
                                td data-label="Value" { (version.state.words()) }
                            }
                        }
                    }
                }
            }
            @if !configs.is_empty() {
                section {
                    h2 { "Configs that name it" }
                    p { @for config in configs { a href={ "/config/" (config.id) "/" (config.version) } { (config.id) "@" (config.version) } " " } }
                }
            }
            section {
                h2 { "Change" }
                div.forms {
                    fieldset {
                        legend { "New value" }
                        (frame.form("/secrets", html! {
                            input type="hidden" name="realm" value=(self.realm);
                            input type="hidden" name="name" value=(self.name);
                            (value_field())
                        }))
                    }
                    @if secret.is_some() {
                        fieldset {
                            legend { "Remove" }
                            (frame.form(&format!("{url}/remove"), html! {
                                p.note { "Its values are erased. It must not be in use." }
                                button.danger type="submit" { "Remove" }
                            }))
                        }
                    }
                }
            }
        }
    }
}

/// The path of a secret's page.
pub(in crate::web) fn url(realm: &Name, name: &Name) -> String {
    format!("/secret/{realm}/{name}")
}

//! Artifacts and configs.

use maud::{Markup, html};
use muster_api::{Artifact, Config};
use muster_topics::{manifest::Manifest, name::Digest};

use super::{
    elements::{ago, bytes, empty},
    frame::{PageFrame, PageView, Section},
};

/// The list of artifacts.
#[derive(Clone, Debug)]
pub(in crate::web) struct ArtifactsView {
    /// By role, newest first.
    pub(in crate::web) artifacts: Vec<Artifact>,
}

impl PageView for ArtifactsView {
    fn title(&self) -> String {
        "Artifacts".to_owned()
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Artifacts)
    }

    fn body(&self, frame: &PageFrame) -> Markup {
        html! {
            h1 { "Artifacts" }
            @if self.artifacts.is_empty() {
                (empty("There are no artifacts.", "An artifact is a program that yunos run, known by its SHA-256. Create one:",
                       "muster artifact create ./server --role server --version 1"))
            } @else {
                table.cards {
                    caption.visually-hidden { "Artifacts" }
                    thead { tr { th scope="col" { "Artifact" } th scope="col" { "Size" } th scope="col" { "SHA-256" } th scope="col" { "Manifest" } th scope="col" { "Created" } } }
                    tbody {
                        @for artifact in &self.artifacts {
                            tr {
                                th scope="row" { (artifact.role) "@" (artifact.version) }
                                td.number data-label="Size" { (bytes(artifact.size_bytes)) }
                                td data-label="SHA-256" { code title=(artifact.sha256) { (artifact.sha256.short()) } }
                                td data-label="Manifest" {
                                    @if let Some(manifest) = &artifact.manifest { a href={ "/manifest/" (manifest) } { (manifest.short()) } } @else { "none" }
                                }
                                td data-label="Created" { (ago(artifact.created_ms, frame.now_ms)) }
                            }
                        }
                    }
                }
                p.note { "To run one: " code { "muster unit create yuno HOST:default/NAME --artifact ROLE@VERSION --run" } }
            }
        }
    }
}

/// The list of configs.
#[derive(Clone, Debug)]
pub(in crate::web) struct ConfigsView {
    /// All of them, without their content.
    pub(in crate::web) configs: Vec<Config>,
}

impl PageView for ConfigsView {
    fn title(&self) -> String {
        "Configs".to_owned()
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Configs)
    }

    fn body(&self, frame: &PageFrame) -> Markup {
        html! {
            h1 { "Configs" }
            @if self.configs.is_empty() {
                (empty("There are no configs.", "A config is a JSON document for a yuno; a version of it never changes. Create one:",
                       "muster config create server.main 1 server.json"))
            } @else {
                table.cards {
                    caption.visually-hidden { "Configs" }
                    thead { tr { th scope="col" { "Config" } th scope="col" { "SHA-256" } th scope="col" { "Created" } } }
                    tbody {
                        @for config in &self.configs {
                            tr {
                                th scope="row" { a href={ "/config/" (config.id) "/" (config.version) } { (config.id) "@" (config.version) } }
                                td data-label="SHA-256" { code title=(config.sha256) { (config.sha256.short()) } }
                                td data-label="Created" { (ago(config.created_ms, frame.now_ms)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// One config.
#[derive(Clone, Debug)]
pub(in crate::web) struct ConfigView {
    /// With its content.
    pub(in crate::web) config: Config,
}

impl PageView for ConfigView {
    fn title(&self) -> String {
        format!("{}@{}", self.config.id, self.config.version)
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Configs)
    }

    fn body(&self, frame: &PageFrame) -> Markup {
        let content = self.config.content.as_ref().and_then(|content| serde_json::to_string_pretty(content).ok());
        html! {
            h1 { (self.config.id) "@" (self.config.version) }
            dl.facts {
                div { dt { "Created" } dd { (ago(self.config.created_ms, frame.now_ms)) } }
                div { dt { "SHA-256" } dd { code { (self.config.sha256) } } }
            }
            pre.terminal role="region" tabindex="0" aria-label="Content" { (content.unwrap_or_default()) }
        }
    }
}

/// An artifact's manifest.
#[derive(Clone, Debug)]
pub(in crate::web) struct ManifestView {
    /// Its hash.
    pub(in crate::web) sha256: Digest,
    /// The manifest.
    pub(in crate::web) manifest: Manifest,
}

impl PageView for ManifestView {
    fn title(&self) -> String {
        format!("Manifest {}", self.sha256.short())
    }

    fn section(&self) -> Option<Section> {
        Some(Section::Artifacts)
    }

    fn body(&self, _: &PageFrame) -> Markup {
        let Manifest { role, version, description, channel, args, provides, requires, config_schema } = &self.manifest;
        let schema = config_schema.as_ref().and_then(|schema| serde_json::to_string_pretty(schema).ok());
        html! {
            h1 { "Manifest " code { (self.sha256.short()) } }
            @if let Some(description) = description { p { (description) } }
            dl.facts {
                @if let Some(role) = role { div { dt { "Role" } dd { (role) } } }
                @if let Some(version) = version { div { dt { "Version" } dd { (version) } } }
                @if !channel.is_none() { div { dt { "Channel" } dd { (format!("{channel:?}").to_lowercase()) } } }
                @if !args.is_empty() { div { dt { "Arguments" } dd { code { (muster_topics::argv::join(args)) } } } }
                @if !provides.is_empty() {
                    div { dt { "Provides" } dd { @for (name, port) in provides {
                        (name) @if let Some(port) = port.port { " on " (port) } @if let Some(protocol) = &port.protocol { " (" (protocol) ")" } " "
                    } } }
                }
                @if !requires.is_empty() {
                    div { dt { "Requires" } dd { @for (name, need) in requires { (name) @if need.optional { " (optional)" } " " } } }
                }
                div { dt { "SHA-256" } dd { code { (self.sha256) } } }
            }
            @if let Some(schema) = schema {
                h2 { "Config schema" }
                pre.terminal role="region" tabindex="0" aria-label="JSON Schema" { (schema) }
            }
        }
    }
}

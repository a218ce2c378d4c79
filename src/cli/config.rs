//! `muster config`: immutable documents for yunos.

use std::path::PathBuf;

use clap::Subcommand;
use muster_api::{Config, ConfigDifference, NewConfig};
use muster_base::{
    clock,
    failure::{Failure, FailureKind},
};
use muster_topics::{
    name::{ConfigId, Version},
    version_order,
};

use super::{print, session::CliSession};

/// Verbs on configs.
#[derive(Subcommand, Clone, Debug)]
pub enum ConfigVerb {
    /// Create a config of a JSON document, under an id and a version
    ///
    /// Creating the same one again changes nothing.
    #[command(after_long_help = "The content of ID@VERSION never changes: other content needs another version.\n\n\
                    Write a secret as {\"$secret\": VALUE}, such as\n\n\
                    \x20 {\"db\": {\"user\": \"till\", \"password\": {\"$secret\": \"…\"}}}\n\n\
                    The unit's process finds the bare value in its file; everywhere else it is shown as ***. The console \
                    keeps it as part of the config. To keep a secret encrypted, and to change it without another config, \
                    name it as {\"$secret\": {\"name\": NAME}}, and set it with `muster secret set NAME`.\n\n\
                    Write a text that each host renders as {\"$template\": TEXT}, such as\n\n\
                    \x20 {\"url\": {\"$template\": \"http://{{ host.hostname }}:{{ vars.port }}/\"}}\n\n\
                    `muster render FILE --host HOST` shows what becomes of the configs of a unit.")]
    Create {
        /// Id: NAME or ROLE.NAME
        id: ConfigId,
        /// Version
        version: Version,
        /// File with the document
        file: PathBuf,
    },
    /// List configs
    Ls,
    /// Show a config; secrets print as ***
    Show {
        /// ID@VERSION, or ID for the newest
        config: String,
    },
    /// Show how two configs differ; secrets print as ***
    Diff {
        /// ID@VERSION, or ID for the newest
        from: String,
        /// Config to compare it with
        to: String,
    },
    /// Remove a config that no unit uses
    ///
    /// Its id and version cannot be used for anything else afterwards.
    Rm {
        /// ID@VERSION
        config: String,
    },
}

/// Runs the verb.
///
/// # Errors
/// If it fails.
pub async fn run(verb: ConfigVerb, session: &CliSession) -> Result<(), Failure> {
    match verb {
        ConfigVerb::Create { id, version, file } => {
            let content = muster_base::files::read_text(&file).map_err(|error| Failure::of_file(&file, &error))?;
            // What does not parse is told with the name of its file, and not sent.
            let parsed = muster_topics::canonical::parse(content.as_bytes());
            parsed.map_err(|error| Failure::new(FailureKind::Usage, format!("{}: {error}", file.display())))?;
            let config: Config = session.client.post("configs", &NewConfig { id, version, content }).await?;
            show(session, &config)
        }
        ConfigVerb::Ls => {
            let configs: Vec<Config> = session.client.get("configs", &[]).await?;
            let now_ms = clock::now_ms();
            let row = |config: &Config| {
                vec![
                    config.id.to_string(),
                    config.version.to_string(),
                    config.sha256.short().to_owned(),
                    print::age(config.created_ms, now_ms),
                ]
            };
            let empty = "no configs; `muster config create ID VERSION FILE` creates one";
            session.printer.list(&configs, &["ID", "VERSION", "SHA-256", "CREATED"], row, empty)
        }
        ConfigVerb::Show { config } => {
            let found = find(session, &config).await?;
            let whole: Config = session.client.get(&format!("configs/{}/{}", found.id, found.version), &[]).await?;
            show(session, &whole)
        }
        ConfigVerb::Diff { from, to } => {
            let (from, to) = (find(session, &from).await?, find(session, &to).await?);
            let query = [("to", format!("{}@{}", to.id, to.version))];
            let path = format!("configs/{}/{}/diff", from.id, from.version);
            let differences: Vec<ConfigDifference> = session.client.get(&path, &query).await?;
            let value = |value: &Option<serde_json::Value>| value.as_ref().map(ToString::to_string).unwrap_or_default();
            let row = |one: &ConfigDifference| vec![one.pointer.clone(), value(&one.from), value(&one.to)];
            let header = [format!("{}@{}", from.id, from.version), format!("{}@{}", to.id, to.version)];
            session.printer.list(&differences, &["WHERE", &header[0], &header[1]], row, "they are the same")
        }
        ConfigVerb::Rm { config } => {
            if !config.contains('@') {
                return Err(Failure::new(FailureKind::Usage, format!("{config:?} is not ID@VERSION"))
                    .hint("to remove something, say which version"));
            }
            let found = find(session, &config).await?;
            let path = format!("configs/{}/{}", found.id, found.version);
            session.client.order(reqwest::Method::DELETE, &path).await?;
            print::say(format_args!("{config} is removed"));
            Ok(())
        }
    }
}

fn show(session: &CliSession, config: &Config) -> Result<(), Failure> {
    session.printer.one(config, || {
        let content = config.content.as_ref().and_then(|content| serde_json::to_string_pretty(content).ok());
        vec![
            ("id", config.id.to_string()),
            ("version", config.version.to_string()),
            ("sha-256", config.sha256.to_string()),
            ("created", print::age(config.created_ms, clock::now_ms())),
            ("content", content.unwrap_or_default()),
        ]
    })
}

/// Finds a config by `ID@VERSION`, or by `ID` (the newest).
///
/// # Errors
/// If there is none.
pub async fn find(session: &CliSession, text: &str) -> Result<Config, Failure> {
    let usage = |error: muster_topics::name::NameError| Failure::new(FailureKind::Usage, error);
    let (id, version) = text.split_once('@').map_or((text, None), |(id, version)| (id, Some(version)));
    let id: ConfigId = id.parse().map_err(usage)?;
    let version: Option<Version> = version.map(str::parse).transpose().map_err(usage)?;
    let configs: Vec<Config> = session.client.get("configs", &[]).await?;
    let matches =
        |config: &Config| config.id == id && version.as_ref().is_none_or(|version| config.version == *version);
    let found = configs.iter().filter(|config| matches(config));
    version_order::newest(found, |config| (&config.version, config.created_ms)).cloned().ok_or_else(|| {
        Failure::not_found(format_args!("there is no config {text}"))
            .hint("`muster config ls` lists them; `muster config create` creates one")
    })
}

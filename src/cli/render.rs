//! `muster render`: shows what a host makes of templates.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use clap::Args;
use muster_api::{Config, Host, HostConnection};
use muster_base::failure::{Failure, FailureKind};
use muster_rules::{
    port_lease::{self, SpecEndpoints},
    render,
};
use muster_topics::{
    command::Verb,
    desired::DeploymentName,
    effective::RenderedTexts,
    endpoint::{Needed, Provided},
    name::{Name, UnitName},
    unit::ConfigRef,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    change::submit, command_follower, command_report::report, config, document_file, print, session::CliSession,
};

/// Show what a host renders of a template, and apply nothing.
#[derive(Args, Clone, Debug)]
#[command(
    after_long_help = "FILE is a document of units or of a deployment, or a template of its own. The host renders it \
                       with its facts, labels and variables; of a secret, it shows ***. Ports are those that the unit has \
                       now. A placeholder that the unit has not is an error.\n\n\
                       Without FILE, it is what the host has rendered for the unit --unit, as that runs now.\n\n\
                       A template has expressions in {{ }}: host.hostname, fact.cpus, label.NAME, vars.NAME, realm, \
                       instance.name, deployment.name, endpoint('NAME').port, secret('NAME')."
)]
pub struct RenderArgs {
    /// File of a template or of documents; `-` is standard input
    #[arg(required_unless_present = "unit")]
    file: Option<PathBuf>,
    /// Host, by id or hostname
    #[arg(long)]
    host: String,
    /// Unit, REALM/NAME
    ///
    /// It is what FILE is for, or what is shown without one.
    #[arg(long)]
    unit: Option<UnitName>,
}

/// The templates of one unit.
#[derive(Default)]
struct UnitTemplates {
    unit: Option<UnitName>,
    deployment: Option<DeploymentName>,
    templates: BTreeMap<String, String>,
    /// The configs that it names.
    configs: Vec<String>,
    /// Its arguments with placeholders as the document has them, by what faults call them.
    arguments: BTreeMap<String, String>,
    provides: Vec<Provided>,
    needs: Vec<Needed>,
    /// Whether it may have a config.
    configured: bool,
}

impl UnitTemplates {
    /// Returns what is wrong with the placeholders of its arguments, of which `texts` are rendered.
    fn wrong_placeholders(&self, texts: &BTreeMap<String, String>) -> Vec<String> {
        let endpoints = SpecEndpoints::new(&self.provides, &self.needs, self.configured);
        let of_argument = |(name, text): (&String, &String)| {
            let text = texts.get(name).unwrap_or(text).clone();
            let wrong = port_lease::wrong_placeholders(&[text], endpoints);
            wrong.into_iter().map(|(_, wrong)| format!("{name}: it says {wrong:#}")).collect::<Vec<_>>()
        };
        self.arguments.iter().flat_map(of_argument).collect()
    }
}

/// Reads the templates of a file.
fn read(file: &Path, wanted: &RenderArgs) -> Result<Vec<UnitTemplates>, Failure> {
    let usage = |message: String| Failure::new(FailureKind::Usage, format!("{}: {message}", file.display()));
    let text = match file.as_os_str() == "-" {
        true => std::io::read_to_string(std::io::stdin()),
        false => fs::read_to_string(file),
    };
    let text = text.map_err(|error| usage(error.to_string()))?;
    templates_of(&text, wanted).map_err(usage)
}

/// Adds the templates that count in the configs of a unit.
async fn add_configs(session: &CliSession, unit: &mut UnitTemplates) -> Result<(), Failure> {
    let (mut configs, mut documents) = (Vec::new(), Vec::new());
    for name in &unit.configs {
        let Config { id, version, .. } = config::find(session, name).await?;
        let whole: Config = session.client.get(&format!("configs/{id}/{version}"), &[]).await?;
        configs.push(ConfigRef { id, version, sha256: whole.sha256 });
        documents.push(whole.content.unwrap_or_default());
    }
    for one in render::config::counting(&configs, &documents) {
        let version = configs.iter().find(|config| config.id == one.config).map(|config| config.version.as_str());
        unit.templates.insert(render::config::template_name(&one.config, version, &one.at), one.text);
    }
    Ok(())
}

/// Returns the id of a host that can be asked.
async fn online(session: &CliSession, host: &str) -> Result<String, Failure> {
    let host: Host = session
        .client
        .get(&format!("hosts/{host}"), &[])
        .await
        .map_err(|failure: Failure| failure.hint("`muster host ls` lists the hosts"))?;
    match &host.presence {
        Some(presence) if presence.state == HostConnection::Online => Ok(host.id.to_string()),
        presence => {
            let state = presence.as_ref().map_or("never connected", |presence| presence.state.word());
            let message = format!("{} is {state}, and only the host itself can render its templates", host.hostname);
            Err(Failure::new(FailureKind::Unreachable, message)
                .hint("ask again once `muster host ls` shows it online, or another host"))
        }
    }
}

/// Has a host render the templates of a unit, or without any those of the unit as it runs.
async fn ask(session: &CliSession, host: &str, asked: &UnitTemplates) -> Result<BTreeMap<String, String>, Failure> {
    let UnitTemplates { unit, deployment, templates, .. } = asked;
    let asked = Verb::Render { unit: unit.clone(), deployment: deployment.clone(), templates: templates.clone() };
    // It is online; if its connection breaks now, it is not waited for.
    let command = submit(session, vec![host.to_owned()], asked, Some(ANSWER_MAX_MS)).await?;
    let (hosts, output) = command_follower::collect(session, &command).await?;
    report(&command, &hosts)?;
    let found: RenderedTexts = serde_json::from_slice(&output)
        .map_err(|error| Failure::new(FailureKind::Failed, format!("the answer of {host} is not valid: {error}")))?;
    Ok(found.texts)
}

/// How long a host may take to answer.
const ANSWER_MAX_MS: u64 = 60_000;

/// Runs the verb.
///
/// # Errors
/// If it fails.
pub async fn run(wanted: RenderArgs, session: &CliSession) -> Result<(), Failure> {
    let mut units = match &wanted.file {
        Some(file) => read(file, &wanted)?,
        None => vec![UnitTemplates { unit: wanted.unit.clone(), ..UnitTemplates::default() }],
    };
    for unit in &mut units {
        add_configs(session, unit).await?;
    }
    let host = online(session, &wanted.host).await?;
    let (mut all, mut wrong) = (BTreeMap::new(), Vec::new());
    for asked in units {
        let of = asked.unit.as_ref().map(|unit| format!("{unit} ")).unwrap_or_default();
        let is_known = wanted.file.is_none();
        let texts = match asked.templates.is_empty() && !is_known {
            true => BTreeMap::new(),
            false => ask(session, &host, &asked).await?,
        };
        wrong.extend(asked.wrong_placeholders(&texts).into_iter().map(|wrong| format!("{of}{wrong}")));
        all.extend(texts.into_iter().map(|(name, text)| (format!("{of}{name}"), text)));
    }
    if !wrong.is_empty() {
        return Err(Failure::new(FailureKind::Failed, wrong.join("\n")));
    }
    if let ([text], true) = (&all.values().collect::<Vec<_>>()[..], all.keys().all(|name| name == BARE)) {
        let shown = RenderedTexts { texts: [(BARE.to_owned(), (*text).clone())].into() };
        return session.printer.line(&shown, text.strip_suffix('\n').unwrap_or(text));
    }
    if all.is_empty() {
        print::say(format_args!(
            "there is no template in it; `render: true` has a unit's env and args rendered, and `$template` in a config marks one"
        ));
    }
    session.printer.list(
        &all.into_iter().collect::<Vec<_>>(),
        &["TEMPLATE", "RESULT"],
        |(name, text)| vec![name.clone(), text.clone()],
        "no templates",
    )
}

/// The name of a template of its own.
const BARE: &str = "template";

/// Returns the templates of a file, by unit.
fn templates_of(text: &str, wanted: &RenderArgs) -> Result<Vec<UnitTemplates>, String> {
    let documents = document_file::parse(text).unwrap_or_default();
    let is_document = |one: &Value| ["unit", "units", "deployment"].iter().any(|key| one.get(key).is_some());
    if documents.is_empty() || !documents.iter().all(is_document) {
        let templates = [(BARE.to_owned(), text.to_owned())].into();
        return Ok(vec![UnitTemplates { unit: wanted.unit.clone(), templates, ..UnitTemplates::default() }]);
    }
    let mut found = Vec::new();
    for document in &documents {
        let deployment: Option<DeploymentName> = document["deployment"]
            .as_str()
            .map(str::parse)
            .transpose()
            .map_err(|error: muster_topics::name::NameError| error.to_string())?;
        let realm = deployment.as_ref().map_or_else(Name::default_realm, DeploymentName::realm);
        let several = document["units"].as_array().cloned().unwrap_or_default();
        let one = [document, &document["unit"]].into_iter().filter(|one| one.is_object() && one.get("units").is_none());
        for unit in several.iter().chain(one) {
            let Some(name) = unit["unit"].as_str().or(unit["name"].as_str()) else { continue };
            let name = if name.contains('/') { name.to_owned() } else { format!("{realm}/{name}") };
            let name: UnitName = name.parse().map_err(|error: muster_topics::name::NameError| error.to_string())?;
            found.push(templates_of_unit(unit, name, deployment.clone())?);
        }
    }
    Ok(found)
}

fn templates_of_unit(
    unit: &Value,
    name: UnitName,
    deployment: Option<DeploymentName>,
) -> Result<UnitTemplates, String> {
    let kind = unit["kind"].as_str().unwrap_or("yuno");
    let mut found = UnitTemplates { unit: Some(name), deployment, configured: kind == "yuno", ..<_>::default() };
    for (part, key) in [("entry", "entry"), ("argument", "args")] {
        for (n, value) in (1..).zip(unit[key].as_array().into_iter().flatten()) {
            found.arguments.extend(value.as_str().map(|text| (format!("{part} {n}"), text.to_owned())));
        }
    }
    if unit["render"] == true {
        for (name, value) in unit["env"].as_object().into_iter().flatten() {
            found.templates.extend(value.as_str().map(|text| (format!("env.{name}"), text.to_owned())));
        }
        found.templates.extend(found.arguments.clone());
    }
    for (path, entry) in unit["files"].as_object().into_iter().flatten() {
        found.templates.extend(entry["template"].as_str().map(|text| (format!("files.{path}"), text.to_owned())));
    }
    let configs = unit["configs"].as_array().into_iter().flatten();
    found.configs = configs.filter_map(|name| name.as_str().map(str::to_owned)).collect();
    // A container's own program gets its arguments as they are.
    if unit["container"].is_string() {
        found.arguments.clear();
    }
    (found.provides, found.needs) = (listed(unit, "provides")?, listed(unit, "needs")?);
    Ok(found)
}

fn listed<T: DeserializeOwned>(unit: &Value, key: &str) -> Result<Vec<T>, String> {
    match &unit[key] {
        Value::Null => Ok(Vec::new()),
        list => serde_json::from_value(list.clone()).map_err(|error| format!("{key}: {error}")),
    }
}

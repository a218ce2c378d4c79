//! From one of Yuneta's verbs to lines of muster's own.
//!
//! What is meant by a selector is found here, among all units that there are; so the lines name units. A verb that
//! would do nothing to a unit, because it is so already, names it all the same: it is a success.
//!
//! | theirs | here |
//! |---|---|
//! | `yuno_id` (`id`) | a unit's `REALM/NAME`, or its `NAME` |
//! | `realm_id`, `yuno_role` | its realm, the role of its artifact |
//! | `yuno_name`, `yuno_tag` | its labels `yuno_name` and `tag`, which `create-yuno` and `set-tag` give it |
//! | `yuno_release` | the version of its artifact |
//! | a binary that is updated | another artifact of the role, taken up by the yunos that do not run |
//! | a config that is updated | its next version, taken up by `run-yuno` |

use muster_topics::{
    newer,
    unit::{Phase, Run, YunoSpec},
};

use super::line::{Line, Value};
use crate::{
    api::{Config, Unit},
    failure::{Failure, Kind},
    rules::upgrade::is_newer,
};

/// What there is to know for a translation.
#[derive(Clone, Debug, Default)]
pub(super) struct World {
    /// All units.
    pub(super) units: Vec<Unit>,
    /// All configs, those that were added last first.
    pub(super) configs: Vec<Config>,
    /// The file that the line names, if it names one.
    pub(super) file: Option<FileFacts>,
}

/// What is known of a file without running it.
#[derive(Clone, Debug, Default)]
pub(super) struct FileFacts {
    /// The last part of its path.
    pub(super) name: String,
    /// The beginning of its SHA-256.
    pub(super) hash: String,
    /// Role and version, as a manifest beside it has them.
    pub(super) manifest: (Option<String>, Option<String>),
}

/// A line of muster's own, without the program's name.
pub(super) type Words = Vec<String>;

/// Which parameters select yunos.
const SELECTORS: [&str; 6] = ["id", "realm_id", "yuno_role", "yuno_name", "yuno_release", "yuno_tag"];

/// All verbs that are understood, each with the parameters that it takes beside selectors.
pub(super) const VERBS: [(&str, &[&str], bool); 27] = [
    ("command-yuno", &["service", "command"], true),
    ("create-config", &["id", "version", "zcontent", "content64", "content"], false),
    (
        "create-yuno",
        &["id", "realm_id", "yuno_role", "yuno_name", "role_version", "name_version", "yuno_tag", "host"],
        false,
    ),
    ("delete-binary", &["id", "version"], false),
    ("delete-config", &["id", "version"], false),
    ("delete-yuno", &[], true),
    ("disable-yuno", &[], true),
    ("enable-yuno", &[], true),
    ("find-new-yunos", &["create"], true),
    ("install-binary", &["id", "version", "content64"], false),
    ("kill-yuno", &[], true),
    ("list-binaries", &[], false),
    ("list-binaries-instances", &[], false),
    ("list-configs", &[], false),
    ("list-configs-instances", &[], false),
    ("list-yunos", &[], true),
    ("list-yunos-instances", &[], true),
    ("pause-yuno", &[], true),
    ("ping", &[], false),
    ("play-yuno", &[], true),
    ("run-yuno", &["play"], true),
    ("set-tag", &["tag"], true),
    ("stats-yuno", &[], true),
    ("top", &[], true),
    ("update-binary", &["id", "version", "content64"], false),
    ("update-config", &["id", "version", "zcontent", "content64", "content"], false),
    ("view-config", &["id", "version"], false),
];

/// What muster does for a line.
pub(super) fn translate(line: &Line, world: &World) -> Result<Vec<Words>, Failure> {
    check(line)?;
    let usage = |why: String| Failure::new(Kind::Usage, format!("{}: {why}", line.verb));
    let one = |words: &[&str]| Ok(vec![words.iter().map(|word| (*word).to_owned()).collect()]);
    let on = |words: &[&str], more: &[&str]| -> Result<Vec<Words>, Failure> {
        let units = units(line, world)?;
        let references = units.iter().map(|unit| reference(unit));
        let head = words.iter().map(|word| (*word).to_owned());
        Ok(vec![head.chain(references).chain(more.iter().map(|word| (*word).to_owned())).collect()])
    };
    match line.verb.as_str() {
        "install-binary" => Ok(vec![add_binary(line, world).map_err(usage)?.0]),
        "update-binary" => update_binary(line, world).map_err(usage),
        "delete-binary" => one(&["artifact", "rm", &versioned(line).map_err(usage)?]),
        "list-binaries" | "list-binaries-instances" => one(&["artifact", "ls"]),
        "create-config" | "update-config" => {
            let file = line.file(&["zcontent", "content64", "content"]).map_err(usage)?;
            let (id, version) = (wanted(line, "id").map_err(usage)?, wanted(line, "version").map_err(usage)?);
            one(&["config", "add", id, version, file])
        }
        "delete-config" => one(&["config", "rm", &versioned(line).map_err(usage)?]),
        "view-config" => one(&["config", "show", &versioned(line).map_err(usage)?]),
        "list-configs" | "list-configs-instances" => one(&["config", "ls"]),
        "create-yuno" => Ok(vec![create(line, world).map_err(usage)?]),
        "delete-yuno" => on(&["yuno", "rm"], &["--yes"]),
        "enable-yuno" => on(&["unit", "unhold"], &[]),
        "disable-yuno" => on(&["unit", "hold"], &[]),
        "run-yuno" => run(line, world),
        "kill-yuno" => on(&["yuno", "stop"], &["--yes"]),
        "play-yuno" => on(&["yuno", "play"], &[]),
        "pause-yuno" => on(&["yuno", "pause"], &["--yes"]),
        "stats-yuno" => on(&["yuno", "stats"], &[]),
        "command-yuno" => command(line, world),
        "set-tag" => {
            let label = format!("tag={}", wanted(line, "tag").map_err(usage)?);
            on(&["unit", "label"], &["--set", &label])
        }
        "find-new-yunos" if is_on(line, "create") => on(&["yuno", "upgrade"], &["--yes"]),
        "find-new-yunos" => on(&["yuno", "upgrade"], &["--plan"]),
        "ping" => one(&["host", "ls"]),
        _ => Ok(vec![list(line)?]),
    }
}

/// Refuses what is not understood, with what it may have been meant to be.
fn check(line: &Line) -> Result<(), Failure> {
    let Some((_, own, selects)) = VERBS.iter().find(|(verb, ..)| *verb == line.verb) else {
        let names = VERBS.iter().map(|(verb, ..)| *verb);
        let nearest = names.max_by(|a, b| strsim::jaro(a, &line.verb).total_cmp(&strsim::jaro(b, &line.verb)));
        return Err(Failure::new(Kind::Usage, format!("there is no verb {:?} here", line.verb))
            .hint(format!("did you mean {}? `muster ycommand --help` lists them", nearest.unwrap_or_default())));
    };
    let takes = |key: &&String| own.contains(&key.as_str()) || (*selects && SELECTORS.contains(&key.as_str()));
    // Whatever a yuno's command takes is the yuno's business.
    match line.parameters.keys().find(|key| line.verb != "command-yuno" && !takes(key)) {
        None => Ok(()),
        Some(key) => {
            let all: Vec<&str> = own.iter().chain(SELECTORS.iter().filter(|_| *selects)).copied().collect();
            Err(Failure::new(Kind::Usage, format!("{}: {key} is not understood", line.verb))
                .hint(format!("it takes {}", if all.is_empty() { "nothing".to_owned() } else { all.join(", ") })))
        }
    }
}

/// The units that a line selects; without a selector, all of them.
fn units<'a>(line: &Line, world: &'a World) -> Result<Vec<&'a Unit>, Failure> {
    // Yuneta knows nothing else.
    let mut picked: Vec<&Unit> = world.units.iter().filter(|unit| unit.desired.spec.yuno().is_some()).collect();
    for key in SELECTORS {
        let wrong = |why| Failure::new(Kind::Usage, why);
        if let Some(value) = line.text(key).map_err(wrong)? {
            picked.retain(|unit| is(unit, key, value));
        }
    }
    if picked.is_empty() {
        let asked: Vec<String> =
            SELECTORS.iter().filter_map(|key| Some(format!("{key}={}", line.text(key).ok()??))).collect();
        return Err(Failure::new(Kind::Failed, format!("there is no yuno with {}", asked.join(" ")))
            .hint("`list-yunos` shows what there is; an id is REALM/NAME"));
    }
    Ok(picked)
}

fn is(unit: &Unit, key: &str, value: &str) -> bool {
    let Some(spec) = unit.desired.spec.yuno() else { return false };
    let label = |name: &str| spec.labels.iter().any(|(key, label)| key.as_str() == name && label.as_str() == value);
    match key {
        "id" => unit.unit.as_str() == value || unit.unit.name().as_str() == value,
        "realm_id" => unit.unit.realm().as_str() == value,
        "yuno_role" => spec.artifact.role.as_str() == value,
        "yuno_name" => label("yuno_name") || unit.unit.name().as_str() == value,
        "yuno_release" => spec.artifact.version.as_str() == value,
        _ => label("tag"),
    }
}

fn reference(unit: &Unit) -> String {
    format!("{}:{}", unit.host, unit.unit)
}

/// `artifact add …`, and under which role and version that is: as the line says, or its manifest, or else by its name
/// and its content.
fn add_binary(line: &Line, world: &World) -> Result<(Words, String, String), String> {
    let path = line.file(&["content64"])?;
    let facts = world.file.as_ref().ok_or_else(|| format!("{path} was not looked at"))?;
    let (role, version) = &facts.manifest;
    let role = match line.text("id")? {
        Some(role) => role.to_owned(),
        None => role.clone().unwrap_or_else(|| as_name(&facts.name)),
    };
    let version = match line.text("version")? {
        Some(version) => version.to_owned(),
        None => version.clone().unwrap_or_else(|| facts.hash.clone()),
    };
    let words = ["artifact", "add", path, "--role", &role, "--version", &version].map(str::to_owned).into();
    Ok((words, role, version))
}

/// A binary is never overwritten: what does not run takes the new one, and what runs keeps its own.
fn update_binary(line: &Line, world: &World) -> Result<Vec<Words>, String> {
    let (add, role, version) = add_binary(line, world)?;
    let mut lines = vec![add];
    let rests = |unit: &&Unit| {
        let is_of_role = unit.desired.spec.yuno().is_some_and(|spec| spec.artifact.role.as_str() == role);
        let is_still = matches!(unit.observed.phase, Phase::Absent | Phase::Stopped | Phase::Failed);
        is_of_role && unit.desired.run == Run::Stopped && is_still
    };
    let resting: Vec<String> = world.units.iter().filter(rests).map(reference).collect();
    if !resting.is_empty() {
        lines.push(upgrade(resting, &format!("{role}@{version}"), &[]));
    }
    Ok(lines)
}

fn upgrade(units: Vec<String>, artifact: &str, configs: &[String]) -> Words {
    let mut words: Words = ["yuno", "upgrade"].map(str::to_owned).into();
    words.extend(units);
    words.extend(["--artifact", artifact, "--force", "--yes"].map(str::to_owned));
    words.extend(configs.iter().flat_map(|config| ["--config".to_owned(), config.clone()]));
    words
}

/// What is about to run reads the newest configs.
fn run(line: &Line, world: &World) -> Result<Vec<Words>, Failure> {
    let units = units(line, world)?;
    let mut lines = Vec::new();
    for unit in &units {
        let Some(spec) = unit.desired.spec.yuno() else { continue };
        let newest = newer_configs(spec, world);
        if unit.desired.run == Run::Stopped && !newest.is_empty() {
            let artifact = format!("{}@{}", spec.artifact.role, spec.artifact.version);
            lines.push(upgrade(vec![reference(unit)], &artifact, &newest));
        }
    }
    let mut words: Words = ["yuno", "run"].map(str::to_owned).into();
    // What is disabled is left out, unless it is asked for by its id.
    let by_id = line.parameters.contains_key("id");
    words.extend(units.iter().filter(|unit| by_id || unit.hold.is_none()).map(|unit| reference(unit)));
    if words.len() == 2 {
        return Err(Failure::new(Kind::Failed, "every one of them is disabled").hint("`enable-yuno` first"));
    }
    if is_on(line, "play") {
        words.push("--play".to_owned());
    }
    lines.push(words);
    Ok(lines)
}

/// Those of a unit's configs of which there is one that was added later.
fn newer_configs(spec: &YunoSpec, world: &World) -> Vec<String> {
    let newer = spec.configs.iter().filter_map(|has| {
        let same = || world.configs.iter().filter(|config| config.id == has.id);
        let last = newer::newest(same(), |config| (&config.version, config.added_ms))?;
        let added_ms = same().find(|config| config.version == has.version).map(|config| config.added_ms);
        let goes = last.sha256 != has.sha256 && is_newer((&last.version, last.added_ms), (&has.version, added_ms));
        goes.then(|| format!("{}@{}", last.id, last.version))
    });
    newer.collect()
}

fn create(line: &Line, world: &World) -> Result<Words, String> {
    let (role, name) = (wanted(line, "yuno_role")?, wanted(line, "yuno_name")?);
    let realm = line.text("realm_id")?.unwrap_or("default");
    let unit = line.text("id")?.map_or_else(|| format!("{role}-{name}"), str::to_owned);
    let unit = if unit.contains('/') { unit } else { format!("{realm}/{unit}") };
    let artifact = line.text("role_version")?.map_or_else(|| role.to_owned(), |version| format!("{role}@{version}"));
    let mut words: Words = ["yuno", "create", &unit, "--artifact", &artifact].map(str::to_owned).into();
    let id = format!("{role}.{name}");
    match line.text("name_version")? {
        Some(version) => words.extend(["--config".to_owned(), format!("{id}@{version}")]),
        None if world.configs.iter().any(|config| config.id.as_str() == id) => {
            words.extend(["--config".to_owned(), id]);
        }
        None => {}
    }
    words.extend(["--label".to_owned(), format!("yuno_name={name}")]);
    if let Some(tag) = line.text("yuno_tag")? {
        words.extend(["--label".to_owned(), format!("tag={tag}")]);
    }
    if let Some(host) = line.text("host")? {
        words.extend(["--host".to_owned(), host.to_owned()]);
    }
    Ok(words)
}

/// A yuno's own command; of the service `__yuno__` muster answers what it knows itself.
fn command(line: &Line, world: &World) -> Result<Vec<Words>, Failure> {
    let usage = |why: String| Failure::new(Kind::Usage, format!("{}: {why}", line.verb));
    let (name, service) = (wanted(line, "command").map_err(usage)?, line.text("service").map_err(usage)?);
    let units = units(line, world)?;
    if service == Some("__yuno__") && name == "view-config" {
        let show =
            |unit: &&Unit| -> Words { ["yuno", "config", &reference(unit), "--effective"].map(str::to_owned).into() };
        return Ok(units.iter().map(show).collect());
    }
    let mut words: Words = ["yuno", "command"].map(str::to_owned).into();
    words.extend(units.iter().map(|unit| reference(unit)));
    words.push(name.to_owned());
    for (key, value) in &line.parameters {
        let is_ours =
            key == "command" || SELECTORS.contains(&key.as_str()) || (key == "service" && service == Some("__yuno__"));
        match value {
            _ if is_ours => {}
            Value::Text(text) => words.push(format!("{key}={text}")),
            Value::File(_) => return Err(usage(format!("{key} cannot come from a file"))),
        }
    }
    Ok(vec![words])
}

fn list(line: &Line) -> Result<Words, Failure> {
    let fields = [("id", "id"), ("realm_id", "realm"), ("yuno_role", "role"), ("yuno_release", "version")];
    let labels = [("yuno_name", "label.yuno_name"), ("yuno_tag", "label.tag")];
    let mut tests = Vec::new();
    for (key, field) in fields.into_iter().chain(labels) {
        if let Some(value) = line.text(key).map_err(|why| Failure::new(Kind::Usage, why))? {
            // An id may be a name alone.
            let pattern = if key == "id" && !value.contains('/') { format!("*/{value}") } else { value.to_owned() };
            tests.push(format!("{field}=\"{}\"", pattern.replace('\\', "\\\\").replace('"', "\\\"")));
        }
    }
    let mut words: Words = ["yuno", "ls"].map(str::to_owned).into();
    if !tests.is_empty() {
        words.extend(["--select".to_owned(), tests.join(" and ")]);
    }
    Ok(words)
}

fn wanted<'a>(line: &'a Line, key: &str) -> Result<&'a str, String> {
    line.text(key)?.ok_or_else(|| format!("{key}=… is wanted"))
}

/// `ID@VERSION`, or `ID` for the last.
fn versioned(line: &Line) -> Result<String, String> {
    let id = wanted(line, "id")?;
    Ok(line.text("version")?.map_or_else(|| id.to_owned(), |version| format!("{id}@{version}")))
}

fn is_on(line: &Line, key: &str) -> bool {
    matches!(line.text(key), Ok(Some(text)) if !["", "0", "false"].contains(&text))
}

/// A file's name as the name of a role.
fn as_name(file: &str) -> String {
    let stem = file.split('.').next().unwrap_or(file);
    let plain =
        |letter: char| if letter.is_ascii_alphanumeric() || letter == '_' { letter.to_ascii_lowercase() } else { '-' };
    stem.chars().map(plain).collect()
}

#[cfg(test)]
#[path = "translate_tests.rs"]
mod tests;

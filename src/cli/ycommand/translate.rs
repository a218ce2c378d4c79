//! Translates one of Yuneta's verbs to lines of muster's own.
//!
//! Selectors are resolved here, among all existing units; so the lines name units. A verb that
//! would change nothing still names the unit, and succeeds.
//!
//! | theirs | here |
//! |---|---|
//! | `yuno_id` (`id`) | a unit's `REALM/NAME`, or its `NAME` |
//! | `realm_id`, `yuno_role` | its realm, the role of its artifact |
//! | `yuno_name`, `yuno_tag` | its labels `yuno_name` and `tag`, which `create-yuno` and `set-tag` give it |
//! | `yuno_release` | the version of its artifact |
//! | a binary that is updated | another artifact of the role, taken up by the yunos that do not run |
//! | a config that is updated | its next version, taken up by `run-yuno` |
//! | a realm `name.role.env` | `name-role-env` |
//! | `app=1` | all yunos except those tagged `util` |

use muster_api::{Config, Unit, upgrade::is_newer};
use muster_base::failure::{Failure, FailureKind};
use muster_topics::{
    signal::Signal,
    unit::{Phase, Run, YunoSpec},
    version_order,
};

use super::{
    line::YunetaLine,
    verbs::{Translation, VERBS, YunetaVerb},
};

/// The data that a translation needs.
#[derive(Clone, Debug, Default)]
pub(super) struct TranslationContext {
    /// All units.
    pub(super) units: Vec<Unit>,
    /// All configs, the most recently created first.
    pub(super) configs: Vec<Config>,
    /// The file of the line, if it names one.
    pub(super) file: Option<FileFacts>,
    /// The names of all realms, for a line that creates a yuno.
    pub(super) realms: Vec<String>,
    /// All artifacts, as `ROLE@VERSION`, for a line that creates a yuno.
    pub(super) artifacts: Vec<String>,
    /// Active snapshots, each with its host, for a line that deactivates one without naming it.
    pub(super) active: Vec<(String, String)>,
}

impl TranslationContext {
    fn config_versions(&self) -> Vec<String> {
        self.configs.iter().map(|config| format!("{}@{}", config.id, config.version)).collect()
    }
}

/// Properties of a file.
#[derive(Clone, Debug, Default)]
pub(super) struct FileFacts {
    /// The last part of its path.
    pub(super) name: String,
    /// The beginning of its SHA-256.
    pub(super) hash: String,
    /// Role and version according to a manifest beside it.
    pub(super) manifest: (Option<String>, Option<String>),
}

/// A line of muster's own, without the program's name.
pub(super) type MusterLine = Vec<String>;

/// The parameters that select yunos.
pub(super) const SELECTORS: [&str; 7] = ["id", "realm_id", "yuno_role", "yuno_name", "yuno_release", "yuno_tag", "app"];

/// The tag of yunos that serve other yunos; `app=1` does not select them.
const UTIL: &str = "util";

/// The lines of muster's own that a line is translated to.
pub(super) fn translate(line: &YunetaLine, world: &TranslationContext) -> Result<Vec<MusterLine>, Failure> {
    match check(line)?.does {
        Translation::Lines(lines) => lines(line, world),
        // Both have been handled before.
        Translation::Help | Translation::Other => Ok(Vec::new()),
        Translation::Nothing => Err(usage(line)(format!("not here: {}", check(line)?.says))),
    }
}

/// The line itself, or the one that `command-agent` contains.
pub(super) fn unwrap(line: YunetaLine) -> Result<YunetaLine, Failure> {
    if !matches!(check(&line)?.does, Translation::Other) {
        return Ok(line);
    }
    let verb = wanted(&line, "command").map_err(usage(&line))?.to_owned();
    let mut inner = YunetaLine { verb, ..line };
    inner.parameters.retain(|key, _| !["command", "service"].contains(&key.as_str()));
    if matches!(check(&inner)?.does, Translation::Other) {
        return Err(usage(&inner)("it does not do itself".to_owned()));
    }
    Ok(inner)
}

/// Parameters of a line that have no effect, each with the reason.
pub(super) fn ignored(line: &YunetaLine) -> impl Iterator<Item = (&'static str, &'static str)> + '_ {
    let ignores = YunetaVerb::find(&line.verb).map_or(&[][..], |verb| verb.ignores);
    ignores.iter().copied().filter(|(key, _)| line.parameters.contains_key(*key))
}

/// The verb of a line. An unknown verb is refused with the most similar one.
pub(super) fn check(line: &YunetaLine) -> Result<&'static YunetaVerb, Failure> {
    let Some(verb) = YunetaVerb::find(&line.verb) else {
        let names = VERBS.iter().map(|verb| verb.name);
        let nearest = names.max_by(|a, b| strsim::jaro(a, &line.verb).total_cmp(&strsim::jaro(b, &line.verb)));
        return Err(Failure::new(FailureKind::Usage, format!("there is no verb {:?} here", line.verb))
            .hint(format!("did you mean {}? `muster ycommand -c help` lists them", nearest.unwrap_or_default())));
    };
    if verb.passes_on() || matches!(verb.does, Translation::Nothing) {
        return Ok(verb);
    }
    let takes = verb.parameters();
    let is_known = |key: &str| takes.contains(&key) || verb.ignores.iter().any(|(ignored, _)| *ignored == key);
    match line.parameters.keys().find(|key| !is_known(key)) {
        None => Ok(verb),
        Some(key) => Err(Failure::new(FailureKind::Usage, format!("{}: unknown key {key}", line.verb))
            .hint(format!("it takes {}", if takes.is_empty() { "nothing".to_owned() } else { takes.join(", ") }))),
    }
}

/// A usage failure for a line.
fn usage(line: &YunetaLine) -> impl Fn(String) -> Failure + use<'_> {
    |why| Failure::new(FailureKind::Usage, format!("{}: {why}", line.verb))
}

/// One line of these words.
pub(super) fn words(words: &[&str]) -> Result<Vec<MusterLine>, Failure> {
    Ok(vec![owned(words)])
}

fn owned(words: &[&str]) -> MusterLine {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// One line with the selected units.
pub(super) fn on(
    line: &YunetaLine,
    world: &TranslationContext,
    head: &[&str],
    more: &[&str],
) -> Result<Vec<MusterLine>, Failure> {
    let units = units(line, world)?;
    let references = units.iter().map(|unit| reference(unit));
    Ok(vec![owned(head).into_iter().chain(references).chain(owned(more)).collect()])
}

pub(super) fn install_binary(line: &YunetaLine, world: &TranslationContext) -> Result<Vec<MusterLine>, Failure> {
    Ok(vec![add_binary(line, world).map_err(usage(line))?.0])
}

pub(super) fn delete_binary(line: &YunetaLine, _: &TranslationContext) -> Result<Vec<MusterLine>, Failure> {
    words(&["artifact", "rm", &versioned(line).map_err(usage(line))?])
}

pub(super) fn create_config(line: &YunetaLine, _: &TranslationContext) -> Result<Vec<MusterLine>, Failure> {
    let [id, version] = all_wanted(line, ["id", "version"]).map_err(usage(line))?;
    let file = line.file(&["zcontent", "content64", "content"]).map_err(usage(line))?;
    words(&["config", "create", id, version, file])
}

pub(super) fn delete_config(line: &YunetaLine, _: &TranslationContext) -> Result<Vec<MusterLine>, Failure> {
    words(&["config", "rm", &versioned(line).map_err(usage(line))?])
}

pub(super) fn view_config(line: &YunetaLine, _: &TranslationContext) -> Result<Vec<MusterLine>, Failure> {
    words(&["config", "show", &versioned(line).map_err(usage(line))?])
}

/// The configs of all selected units, without duplicates.
pub(super) fn view_yuno_config(line: &YunetaLine, world: &TranslationContext) -> Result<Vec<MusterLine>, Failure> {
    let mut shown: Vec<String> = Vec::new();
    for unit in units(line, world)? {
        let configs = unit.desired.spec.configs().iter().map(|config| format!("{}@{}", config.id, config.version));
        shown.extend(configs);
    }
    shown.sort();
    shown.dedup();
    if shown.is_empty() {
        return Err(Failure::not_found("none of them has a config"));
    }
    Ok(shown.iter().map(|config| owned(&["config", "show", config])).collect())
}

/// For verbs about a single yuno.
pub(super) fn show_one(line: &YunetaLine, world: &TranslationContext) -> Result<Vec<MusterLine>, Failure> {
    match &units(line, world)?[..] {
        [unit] => words(&["unit", "show", &reference(unit)]),
        several => {
            let names: Vec<String> = several.iter().map(|unit| unit.unit.to_string()).collect();
            Err(usage(line)(format!("{} yunos are selected: {}", several.len(), names.join(", ")))
                .hint("select one, such as by id=REALM/NAME"))
        }
    }
}

pub(super) fn kill(line: &YunetaLine, world: &TranslationContext) -> Result<Vec<MusterLine>, Failure> {
    let signal = match line.text("signal2kill").map_err(usage(line))? {
        Some(signal) => Some(signal_word(signal).map_err(usage(line))?),
        None => is_on(line, "force").then(|| Signal::Kill.to_string()),
    };
    match signal {
        None => on(line, world, &["unit", "stop"], &["--yes"]),
        Some(signal) => on(line, world, &["unit", "stop"], &["--yes", "--signal", &signal]),
    }
}

/// A signal, by name or number, as muster's verbs accept it.
fn signal_word(text: &str) -> Result<String, String> {
    text.parse::<Signal>().map(|signal| signal.to_string()).map_err(|error| format!("signal2kill: {error}"))
}

/// A tag protects a yuno from being removed by mistake.
pub(super) fn delete(line: &YunetaLine, world: &TranslationContext) -> Result<Vec<MusterLine>, Failure> {
    let tagged: Vec<String> =
        units(line, world)?.iter().filter_map(|unit| Some(format!("{} ({})", unit.unit, tag(unit)?))).collect();
    if !tagged.is_empty() && !is_on(line, "force") {
        return Err(Failure::new(FailureKind::Refused, format!("tagged yunos are not deleted: {}", tagged.join(", ")))
            .hint("with force=1 they are; `set-tag` gives them another tag"));
    }
    on(line, world, &["unit", "rm"], &["--yes"])
}

pub(super) fn find_new(line: &YunetaLine, world: &TranslationContext) -> Result<Vec<MusterLine>, Failure> {
    let mut more = vec![if is_on(line, "create") { "--yes" } else { "--dry-run" }];
    more.extend(is_on(line, "force").then_some("--force"));
    on(line, world, &["unit", "upgrade"], &more)
}

pub(super) fn set_tag(line: &YunetaLine, world: &TranslationContext) -> Result<Vec<MusterLine>, Failure> {
    let label = format!("tag={}", wanted(line, "tag").map_err(usage(line))?);
    on(line, world, &["unit", "label"], &["--set", &label])
}

pub(super) fn stats(line: &YunetaLine, world: &TranslationContext) -> Result<Vec<MusterLine>, Failure> {
    never_reset(line)?;
    on(line, world, &["yuno", "stats"], &[])
}

pub(super) fn stats_agent(line: &YunetaLine, _: &TranslationContext) -> Result<Vec<MusterLine>, Failure> {
    never_reset(line)?;
    let of = match line.text("host").map_err(usage(line))? {
        Some(host) => format!(",hostname=\"{}\"", quoted(host)),
        None => String::new(),
    };
    words(&["metric", "query", &format!("{{__name__=~\"muster_agent_.+\"{of}}}")])
}

fn never_reset(line: &YunetaLine) -> Result<(), Failure> {
    match line.text("stats").map_err(usage(line))? {
        None | Some("") => Ok(()),
        Some("__reset__") => Err(usage(line)("counters are never set back: ask for their rate".to_owned())),
        Some(name) => Err(usage(line)(format!("stats={name}: all numbers are told, and none alone"))),
    }
}

/// A command of the yuno with this name.
pub(super) fn trace(line: &YunetaLine, world: &TranslationContext) -> Result<Vec<MusterLine>, Failure> {
    let name = line.verb.trim_end_matches("-yuno");
    forward(line, world, name, SELECTORS.as_slice())
}

pub(super) fn shoot_snap(line: &YunetaLine, _: &TranslationContext) -> Result<Vec<MusterLine>, Failure> {
    snap(line, &["snapshot", "create", wanted(line, "name").map_err(usage(line))?])
}

pub(super) fn list_snaps(line: &YunetaLine, _: &TranslationContext) -> Result<Vec<MusterLine>, Failure> {
    snap(line, &["snapshot", "ls"])
}

pub(super) fn activate_snap(line: &YunetaLine, _: &TranslationContext) -> Result<Vec<MusterLine>, Failure> {
    snap(line, &["snapshot", "activate", wanted(line, "name").map_err(usage(line))?])
}

/// The named snapshot, or all active ones.
pub(super) fn deactivate_snap(line: &YunetaLine, world: &TranslationContext) -> Result<Vec<MusterLine>, Failure> {
    if let Some(name) = line.text("name").map_err(usage(line))? {
        return snap(line, &["snapshot", "deactivate", name]);
    }
    if world.active.is_empty() {
        return Err(Failure::not_found("no snapshot is active").hint("`list-snaps` lists them"));
    }
    let line = |(host, name): &(String, String)| owned(&["snapshot", "deactivate", name, "--host", host]);
    Ok(world.active.iter().map(line).collect())
}

fn snap(line: &YunetaLine, head: &[&str]) -> Result<Vec<MusterLine>, Failure> {
    let mut words = owned(head);
    match line.text("host").map_err(usage(line))? {
        Some("*") => words.push("--all".to_owned()),
        Some(host) => words.extend(owned(&["--host", host])),
        None => {}
    }
    Ok(vec![words])
}

/// The name of a realm, with dashes in place of Yuneta's dots.
fn realm(line: &YunetaLine) -> Result<String, Failure> {
    if let Some(id) = line.text("id").map_err(usage(line))? {
        return Ok(dashed(id));
    }
    let mut parts = Vec::new();
    for key in ["realm_owner", "realm_name", "realm_role", "realm_env"] {
        parts.extend(line.text(key).map_err(usage(line))?);
    }
    if parts.is_empty() {
        return Err(usage(line)("expected id=…, or realm_name=… and the other parts of its name".to_owned()));
    }
    Ok(dashed(&parts.join(".")))
}

fn dashed(realm: &str) -> String {
    realm.replace('.', "-")
}

pub(super) fn check_realm(line: &YunetaLine, _: &TranslationContext) -> Result<Vec<MusterLine>, Failure> {
    words(&["realm", "show", &realm(line)?])
}

pub(super) fn delete_realm(line: &YunetaLine, _: &TranslationContext) -> Result<Vec<MusterLine>, Failure> {
    words(&["realm", "rm", &realm(line)?])
}

pub(super) fn create_realm(line: &YunetaLine, _: &TranslationContext) -> Result<Vec<MusterLine>, Failure> {
    let mut words = realm_fields(line, "create")?;
    if is_on(line, "realm_disabled") {
        words.extend(owned(&["--enabled", "no"]));
    }
    Ok(vec![words])
}

pub(super) fn update_realm(line: &YunetaLine, _: &TranslationContext) -> Result<Vec<MusterLine>, Failure> {
    let mut words = realm_fields(line, "set")?;
    if line.parameters.contains_key("realm_disabled") {
        words.extend(owned(&["--enabled", if is_on(line, "realm_disabled") { "no" } else { "yes" }]));
    }
    if words.len() == 3 {
        return Err(usage(line)("expected bind_ip, parent_realm_id or realm_disabled".to_owned()));
    }
    Ok(vec![words])
}

fn realm_fields(line: &YunetaLine, verb: &str) -> Result<MusterLine, Failure> {
    let mut words = owned(&["realm", verb, &realm(line)?]);
    if let Some(address) = line.text("bind_ip").map_err(usage(line))? {
        words.extend(owned(&["--bind", address]));
    }
    if let Some(parent) = line.text("parent_realm_id").map_err(usage(line))? {
        words.extend(owned(&["--parent", &dashed(parent)]));
    }
    Ok(words)
}

pub(super) fn list_services(line: &YunetaLine, _: &TranslationContext) -> Result<Vec<MusterLine>, Failure> {
    let mut words = owned(&["realm", "endpoints"]);
    words.extend(line.text("realm_id").map_err(usage(line))?.map(dashed));
    Ok(vec![words])
}

/// The selected units; without a selector, all of them.
fn units<'a>(line: &YunetaLine, world: &'a TranslationContext) -> Result<Vec<&'a Unit>, Failure> {
    // Yuneta only knows yunos.
    let mut picked: Vec<&Unit> = world.units.iter().filter(|unit| unit.desired.spec.yuno().is_some()).collect();
    for key in SELECTORS {
        if let Some(value) = line.text(key).map_err(usage(line))? {
            picked.retain(|unit| is(unit, key, value));
        }
    }
    if picked.is_empty() {
        let asked: Vec<String> =
            SELECTORS.iter().filter_map(|key| Some(format!("{key}={}", line.text(key).ok()??))).collect();
        return Err(Failure::not_found(format_args!("there is no yuno with {}", asked.join(" ")))
            .hint("`list-yunos` shows what there is; an id is REALM/NAME"));
    }
    Ok(picked)
}

fn is(unit: &Unit, key: &str, value: &str) -> bool {
    let Some(spec) = unit.desired.spec.yuno() else { return false };
    let label =
        |name: &str| spec.common.labels.iter().any(|(key, label)| key.as_str() == name && label.as_str() == value);
    match key {
        "id" => unit.unit.as_str() == value || unit.unit.name().as_str() == value,
        "realm_id" => unit.unit.realm().as_str() == dashed(value),
        "yuno_role" => spec.artifact.role.as_str() == value,
        "yuno_name" => label("yuno_name") || unit.unit.name().as_str() == value,
        "yuno_release" => spec.artifact.version.as_str() == value,
        "app" => is_off(value) || tag(unit) != Some(UTIL),
        _ => label("tag"),
    }
}

/// The tag of a yuno, if it has one.
fn tag(unit: &Unit) -> Option<&str> {
    let labels = &unit.desired.spec.common().labels;
    labels.iter().find(|(name, _)| name.as_str() == "tag").map(|(_, tag)| tag.as_str())
}

fn reference(unit: &Unit) -> String {
    format!("{}:{}", unit.host, unit.unit)
}

/// `artifact create …`, and its role and version: from the line, from the manifest, or from the file's name and content.
fn add_binary(line: &YunetaLine, world: &TranslationContext) -> Result<(MusterLine, String, String), String> {
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
    let words = ["artifact", "create", path, "--role", &role, "--version", &version].map(str::to_owned).into();
    Ok((words, role, version))
}

/// A binary is never replaced: yunos that are stopped get the new one, and running ones keep theirs.
pub(super) fn update_binary(line: &YunetaLine, world: &TranslationContext) -> Result<Vec<MusterLine>, Failure> {
    let (add, role, version) = add_binary(line, world).map_err(usage(line))?;
    let mut lines = vec![add];
    let rests = |unit: &&Unit| {
        let is_of_role = unit.desired.spec.yuno().is_some_and(|spec| spec.artifact.role.as_str() == role);
        let is_still = matches!(unit.observed.phase(), Phase::Absent | Phase::Stopped | Phase::Failed);
        is_of_role && unit.desired.run == Run::Stopped && is_still
    };
    let resting: Vec<String> = world.units.iter().filter(rests).map(reference).collect();
    if !resting.is_empty() {
        lines.push(upgrade(resting, &format!("{role}@{version}"), &[]));
    }
    Ok(lines)
}

fn upgrade(units: Vec<String>, artifact: &str, configs: &[String]) -> MusterLine {
    let mut words: MusterLine = ["unit", "upgrade"].map(str::to_owned).into();
    words.extend(units);
    words.extend(["--artifact", artifact, "--force", "--yes"].map(str::to_owned));
    words.extend(configs.iter().flat_map(|config| ["--config".to_owned(), config.clone()]));
    words
}

/// A yuno that is about to run gets the newest configs.
pub(super) fn run(line: &YunetaLine, world: &TranslationContext) -> Result<Vec<MusterLine>, Failure> {
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
    let mut words: MusterLine = ["unit", "run"].map(str::to_owned).into();
    // Disabled yunos are only included if they are selected by id.
    let by_id = line.parameters.contains_key("id");
    words.extend(units.iter().filter(|unit| by_id || unit.hold.is_none()).map(|unit| reference(unit)));
    if words.len() == 2 {
        return Err(Failure::new(FailureKind::Failed, "every one of them is disabled").hint("`enable-yuno` first"));
    }
    if is_on(line, "play") {
        words.push("--play".to_owned());
    }
    lines.push(words);
    Ok(lines)
}

/// The configs of a unit for which a later version was created.
fn newer_configs(spec: &YunoSpec, world: &TranslationContext) -> Vec<String> {
    let newer = spec.configs.iter().filter_map(|has| {
        let same = || world.configs.iter().filter(|config| config.id == has.id);
        let last = version_order::newest(same(), |config| (&config.version, config.created_ms))?;
        let created_ms = same().find(|config| config.version == has.version).map(|config| config.created_ms);
        let goes = last.sha256 != has.sha256 && is_newer((&last.version, last.created_ms), (&has.version, created_ms));
        goes.then(|| format!("{}@{}", last.id, last.version))
    });
    newer.collect()
}

/// The parts of a yuno must exist; all missing ones are reported at once.
pub(super) fn create(line: &YunetaLine, world: &TranslationContext) -> Result<Vec<MusterLine>, Failure> {
    let [role, name] = all_wanted(line, ["yuno_role", "yuno_name"]).map_err(usage(line))?;
    let text = |key| line.text(key).map_err(usage(line));
    let realm = text("realm_id")?.map_or_else(|| "default".to_owned(), dashed);
    let unit = text("id")?.map_or_else(|| format!("{role}-{name}"), str::to_owned);
    let unit = if unit.contains('/') { unit } else { format!("{realm}/{unit}") };
    let (artifact, config) = (versions(role, text("role_version")?), format!("{role}.{name}"));
    let config = versions(&config, text("name_version")?);
    let realm = unit.split('/').next().unwrap_or_default();
    let missing = [
        (!world.realms.iter().any(|there| there == realm)).then(|| format!("realm {realm} (`create-realm`)")),
        (!is_there(&world.artifacts, &artifact)).then(|| format!("binary {artifact} (`install-binary`)")),
        (!is_there(&world.config_versions(), &config)).then(|| format!("config {config} (`update-config`)")),
    ];
    let missing: Vec<String> = missing.into_iter().flatten().collect();
    if !missing.is_empty() {
        return Err(Failure::new(
            FailureKind::Failed,
            format!("cannot create {unit}: there is no {}", missing.join(", no ")),
        ));
    }
    let mut words = owned(&["unit", "create", "yuno", &unit, "--artifact", &artifact, "--config", &config]);
    words.extend(owned(&["--label", &format!("yuno_name={name}")]));
    if let Some(tag) = text("yuno_tag")? {
        words.extend(owned(&["--label", &format!("tag={tag}")]));
    }
    if let Some(host) = text("host")? {
        words.extend(owned(&["--host", host]));
    }
    Ok(vec![words])
}

/// `NAME@VERSION`, or `NAME` for the newest.
fn versions(name: &str, version: Option<&str>) -> String {
    version.map_or_else(|| name.to_owned(), |version| format!("{name}@{version}"))
}

/// Whether `NAME@VERSION`, or any version of `NAME`, exists.
fn is_there(all: &[String], wanted: &str) -> bool {
    all.iter().any(|one| one == wanted || one.rsplit_once('@').is_some_and(|(name, _)| name == wanted))
}

/// A command of the yuno; commands to the service `__yuno__` are answered by muster, as far as it can.
pub(super) fn command(line: &YunetaLine, world: &TranslationContext) -> Result<Vec<MusterLine>, Failure> {
    let name = wanted(line, "command").map_err(usage(line))?;
    let is_own = line.text("service").map_err(usage(line))? == Some("__yuno__");
    if is_own && name == "view-config" {
        let show = |unit: &&Unit| owned(&["unit", "config", &reference(unit), "--effective"]);
        return Ok(units(line, world)?.iter().map(show).collect());
    }
    let ours: Vec<&str> = SELECTORS.into_iter().chain(["command"]).chain(is_own.then_some("service")).collect();
    forward(line, world, name, &ours)
}

/// Sends a command to yunos, with all parameters that are not selectors.
fn forward(
    line: &YunetaLine,
    world: &TranslationContext,
    name: &str,
    ours: &[&str],
) -> Result<Vec<MusterLine>, Failure> {
    let mut words = owned(&["yuno", "command"]);
    words.extend(units(line, world)?.iter().map(|unit| reference(unit)));
    words.push(name.to_owned());
    for key in line.parameters.keys().filter(|key| !ours.contains(&key.as_str())) {
        let value = line.text(key).map_err(usage(line))?.unwrap_or_default();
        words.push(format!("{key}={value}"));
    }
    Ok(vec![words])
}

pub(super) fn list(line: &YunetaLine, _: &TranslationContext) -> Result<Vec<MusterLine>, Failure> {
    let fields = [("id", "id"), ("realm_id", "realm"), ("yuno_role", "role"), ("yuno_release", "version")];
    let labels = [("yuno_name", "label.yuno_name"), ("yuno_tag", "label.tag")];
    let mut tests = Vec::new();
    for (key, field) in fields.into_iter().chain(labels) {
        if let Some(value) = line.text(key).map_err(usage(line))? {
            let pattern = match key {
                // An id may be a name without a realm.
                "id" if !value.contains('/') => format!("*/{value}"),
                "realm_id" => dashed(value),
                _ => value.to_owned(),
            };
            tests.push(format!("{field}=\"{}\"", quoted(&pattern)));
        }
    }
    if is_on(line, "app") {
        tests.push(format!("not label.tag=\"{UTIL}\""));
    }
    let mut words = owned(&["unit", "ls", "--kind", "yuno"]);
    if !tests.is_empty() {
        words.extend(["--select".to_owned(), tests.join(" and ")]);
    }
    Ok(vec![words])
}

/// The text between double quotes.
fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

/// Several required parameters; all missing ones are reported.
fn all_wanted<'a, const N: usize>(line: &'a YunetaLine, keys: [&str; N]) -> Result<[&'a str; N], String> {
    let mut values = [""; N];
    let mut missing = Vec::new();
    for (place, key) in values.iter_mut().zip(keys) {
        match line.text(key)? {
            Some(value) => *place = value,
            None => missing.push(format!("{key}=…")),
        }
    }
    match &missing[..] {
        [] => Ok(values),
        [one] => Err(format!("expected {one}")),
        several => Err(format!("expected {}", several.join(" and "))),
    }
}

fn wanted<'a>(line: &'a YunetaLine, key: &str) -> Result<&'a str, String> {
    line.text(key)?.ok_or_else(|| format!("expected {key}=…"))
}

/// `ID@VERSION`, or `ID` for the newest.
fn versioned(line: &YunetaLine) -> Result<String, String> {
    let id = wanted(line, "id")?;
    Ok(line.text("version")?.map_or_else(|| id.to_owned(), |version| format!("{id}@{version}")))
}

fn is_on(line: &YunetaLine, key: &str) -> bool {
    matches!(line.text(key), Ok(Some(text)) if !is_off(text))
}

fn is_off(value: &str) -> bool {
    ["", "0", "false"].contains(&value)
}

/// The name of a file as the name of a role.
fn as_name(file: &str) -> String {
    let stem = file.split('.').next().unwrap_or(file);
    let plain =
        |letter: char| if letter.is_ascii_alphanumeric() || letter == '_' { letter.to_ascii_lowercase() } else { '-' };
    stem.chars().map(plain).collect()
}

#[cfg(test)]
#[path = "translate_tests.rs"]
mod tests;

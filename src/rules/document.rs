//! Documents of units: a unit's name, its hosts, and its whole spec, as people write them.
//!
//! The keys are those of a spec, with three differences: artifact and configs are written as
//! `role@version` and `id@version` (for a container `image: {rootfs: role@version}`), `unit`, `hosts` and `run` surround the spec, and
//! restarts on demand are not included. A key that is left out has its default, or the manifest's value; `run` left out keeps
//! the present value.
//!
//! **Invariant: all faults are reported at once**, each with its place.
//!
//! **Invariant: [`read`] accepts what [`write()`] produces**, and yields the same spec.

use std::collections::BTreeMap;

use muster_topics::{
    container::ContainerSpec,
    diagnostic::Diagnostic,
    files::FilesSpec,
    manifest::Manifest,
    name::{Digest, UnitName, Version},
    packages::PackagesSpec,
    secret::SecretRef,
    unit::{ArtifactRef, ConfigRef, Run, Spec, YunoSpec},
    version_order,
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::unknown_keys::{self, take_unknown};

/// Something that is wrong in a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentFault {
    /// Where, as far as known: `default/web: limits.memory_bytes`.
    pub at: String,
    /// What is wrong, for people.
    pub diagnostic: Diagnostic,
}

/// A unit as a document describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct WantedUnit {
    /// The unit's name.
    pub unit: UnitName,
    /// The hosts that it belongs on, by id or hostname; empty if the document has none.
    pub hosts: Vec<String>,
    /// Whether it should run; `None` leaves that as it is.
    pub run: Option<Run>,
    /// The reference to its artifact, if it has one.
    pub artifact: Option<String>,
    /// The references to the artifacts of its files, by path.
    pub file_artifacts: BTreeMap<String, String>,
    /// The references to its configs.
    pub configs: Vec<String>,
    kind: DocumentKind,
    /// The remaining fields of the spec.
    fields: Map<String, Value>,
    /// Whether the document was read without faults; otherwise these are only the valid parts.
    pub is_whole: bool,
}

/// Reads the unit or units that one document describes; a list stands under `units`, and `hosts` beside it applies to
/// units without hosts.
#[must_use]
pub fn read(document: &Value) -> (Vec<WantedUnit>, Vec<DocumentFault>) {
    let (mut wanted, mut faults) = (Vec::new(), Vec::new());
    let Value::Object(whole) = document else {
        let message = "expected a unit, or a list of units under `units`".to_owned();
        return (wanted, vec![DocumentFault { at: String::new(), diagnostic: message.into() }]);
    };
    if whole.contains_key("deployment") {
        let message = "this is the document of a deployment, which `muster deployment apply` applies".to_owned();
        return (wanted, vec![DocumentFault { at: "deployment".to_owned(), diagnostic: message.into() }]);
    }
    let Some(listed) = whole.get("units") else {
        let (unit, wrong) = read_unit(whole, None);
        return (unit.into_iter().collect(), wrong);
    };
    let known = ["hosts", "units"];
    for key in whole.keys().filter(|key| !known.contains(&key.as_str())) {
        let hint = unknown_keys::nearest(key, known.into_iter());
        faults.push(DocumentFault { at: key.clone(), diagnostic: unknown(&hint) });
    }
    let hosts = match whole.get("hosts").map(from_value::<Vec<String>>) {
        None => None,
        Some(Ok(hosts)) => Some(hosts),
        Some(Err(message)) => {
            faults.push(DocumentFault { at: "hosts".to_owned(), diagnostic: message.into() });
            None
        }
    };
    match listed {
        Value::Array(units) => {
            for (index, unit) in units.iter().enumerate() {
                let Value::Object(unit) = unit else {
                    let message = "expected a unit".to_owned();
                    faults.push(DocumentFault { at: format!("units.{index}"), diagnostic: message.into() });
                    continue;
                };
                let (found, wrong) = read_unit(unit, hosts.as_deref());
                let place = |fault: DocumentFault| match unit.get("unit").and_then(Value::as_str) {
                    Some(_) => fault,
                    None => DocumentFault { at: format!("units.{index}: {}", fault.at), ..fault },
                };
                wanted.extend(found);
                faults.extend(wrong.into_iter().map(place));
            }
        }
        _ => faults.push(DocumentFault { at: "units".to_owned(), diagnostic: "expected a list of units".into() }),
    }
    (wanted, faults)
}

pub(super) fn unknown(hint: &str) -> Diagnostic {
    format!("unknown key; {hint}").into()
}

pub(super) fn from_value<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    serde_json::from_value(value.clone()).map_err(|error| error.to_string())
}

/// Reads one unit as far as possible, with its faults.
pub(super) fn read_unit(
    document: &Map<String, Value>,
    hosts: Option<&[String]>,
) -> (Option<WantedUnit>, Vec<DocumentFault>) {
    let name = document.get("unit").and_then(Value::as_str).map(str::to_owned);
    let mut faults = FaultList { unit: name, list: Vec::new() };
    let mut whole = Value::Object(document.clone());
    let said = document.get("kind").and_then(Value::as_str);
    let kind = said.and_then(DocumentKind::named).unwrap_or(DocumentKind::Yuno);
    for key in take_unknown(&mut whole, &schema(kind)) {
        faults.add(&key.at, unknown(&key.hint));
    }
    let Value::Object(mut fields) = whole else { return (None, faults.list) };
    let unit: Option<UnitName> = required(&mut fields, "unit", &mut faults);
    let (artifact, is_made): (Option<String>, bool) = match kind {
        DocumentKind::Yuno => {
            let artifact: Option<String> = required(&mut fields, "artifact", &mut faults);
            let is_made = artifact.is_some();
            (artifact, is_made)
        }
        DocumentKind::Container => (image_artifact(&mut fields, &mut faults), fields.contains_key("image")),
        DocumentKind::Files | DocumentKind::Packages => (None, true),
    };
    let file_artifacts = if kind == DocumentKind::Files { file_artifacts(&mut fields) } else { BTreeMap::new() };
    let configs = optional(&mut fields, "configs", &mut faults).unwrap_or_default();
    let named = optional(&mut fields, "hosts", &mut faults);
    let run = optional(&mut fields, "run", &mut faults);
    if let Some(kind) = optional::<String>(&mut fields, "kind", &mut faults)
        && DocumentKind::named(&kind).is_none()
    {
        let known = DocumentKind::ALL.map(|kind| format!("`{}`", kind.as_str())).join(", ");
        faults.add("kind", format!("unknown kind {kind:?}; use one of {known}"));
    }
    for (key, value) in &fields {
        probe(kind, key, value, &|value| Value::Object(Map::from_iter([(key.clone(), value)])), &mut faults);
    }
    let wanted = unit.filter(|_| is_made).map(|unit| {
        let hosts = named.unwrap_or_else(|| hosts.unwrap_or_default().to_vec());
        WantedUnit {
            unit,
            hosts,
            run,
            artifact,
            file_artifacts,
            configs,
            kind,
            fields,
            is_whole: faults.list.is_empty(),
        }
    });
    (wanted, faults.list)
}

/// The kind of unit that a document describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DocumentKind {
    /// A yuno, the default.
    Yuno,
    /// A container.
    Container,
    /// Files.
    Files,
    /// Packages.
    Packages,
}

impl DocumentKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Yuno, Self::Container, Self::Files, Self::Packages];

    /// Returns its name, as in [`Spec::kind`].
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Yuno => "yuno",
            Self::Container => "container",
            Self::Files => "files",
            Self::Packages => "packages",
        }
    }

    /// Returns the kind of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// Replaces the artifact reference in a container's image, if it has one, by a placeholder, and returns it.
fn image_artifact(fields: &mut Map<String, Value>, faults: &mut FaultList) -> Option<String> {
    let Some(image) = fields.get_mut("image") else {
        faults.add(
            "image",
            "it is required: {rootfs: ROLE@VERSION}, {archive: ROLE@VERSION}, {name: …} or {existing: …}".to_owned(),
        );
        return None;
    };
    IMAGE_FORMS.iter().find_map(|form| {
        let place = image.get_mut(form)?;
        let name = place.as_str()?.to_owned();
        *place = any_artifact();
        Some(name)
    })
}

/// Replaces the artifact references of files by placeholders, and returns them by path.
fn file_artifacts(fields: &mut Map<String, Value>) -> BTreeMap<String, String> {
    let files = fields.get_mut("files").and_then(Value::as_object_mut);
    let named = files.into_iter().flatten().filter_map(|(path, entry)| {
        let place = entry.get_mut("artifact")?;
        let name = place.as_str()?.to_owned();
        *place = any_artifact();
        Some((path.clone(), name))
    });
    named.collect()
}

/// The forms of an image that are artifacts.
const IMAGE_FORMS: [&str; 2] = ["rootfs", "archive"];

fn any_artifact() -> Value {
    json!({ "sha256": Digest::of(b""), "size_bytes": 0, "role": "any", "version": "0" })
}

struct FaultList {
    unit: Option<String>,
    list: Vec<DocumentFault>,
}

impl FaultList {
    fn add(&mut self, field: &str, diagnostic: impl Into<Diagnostic>) {
        let at = self.unit.as_ref().map_or_else(|| field.to_owned(), |unit| format!("{unit}: {field}"));
        self.list.push(DocumentFault { at, diagnostic: diagnostic.into() });
    }
}

fn required<T: DeserializeOwned>(fields: &mut Map<String, Value>, key: &str, faults: &mut FaultList) -> Option<T> {
    if !fields.contains_key(key) {
        faults.add(key, "it is required");
    }
    optional(fields, key, faults)
}

fn optional<T: DeserializeOwned>(fields: &mut Map<String, Value>, key: &str, faults: &mut FaultList) -> Option<T> {
    match from_value(&fields.remove(key)?) {
        Ok(value) => Some(value),
        Err(message) => {
            faults.add(key, message);
            None
        }
    }
}

/// Reports what is wrong with a value of a spec and where. Each part is checked by itself, because deserialising the
/// whole stops at the first fault.
fn probe(kind: DocumentKind, at: &str, value: &Value, wrap: &dyn Fn(Value) -> Value, faults: &mut FaultList) {
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                probe(kind, &format!("{at}.{index}"), item, &|item| wrap(Value::Array(vec![item])), faults);
            }
            // An empty list may be of the wrong type, too.
            if items.is_empty() {
                complain(kind, at, wrap(json!([])), faults);
            }
        }
        // If all parts are optional, each can be checked alone.
        Value::Object(parts) if spec_of(kind, wrap(json!({}))).is_ok() => {
            for (key, part) in parts {
                let alone = |part: Value| wrap(Value::Object(Map::from_iter([(key.clone(), part)])));
                probe(kind, &format!("{at}.{key}"), part, &alone, faults);
            }
        }
        _ => complain(kind, at, wrap(value.clone()), faults),
    }
}

fn complain(kind: DocumentKind, at: &str, fields: Value, faults: &mut FaultList) {
    if let Err(message) = spec_of(kind, fields) {
        faults.add(at, message);
    }
}

/// Deserialises a spec from some fields, with a placeholder for the artifact or image.
fn spec_of(kind: DocumentKind, fields: Value) -> Result<Spec, String> {
    let mut spec = match kind {
        DocumentKind::Yuno => json!({ "artifact": any_artifact() }),
        DocumentKind::Container => json!({ "image": { "name": "any" } }),
        DocumentKind::Files | DocumentKind::Packages => json!({}),
    };
    if let (Value::Object(spec), Value::Object(fields)) = (&mut spec, fields) {
        spec.extend(fields);
    }
    match kind {
        DocumentKind::Yuno => from_value(&spec).map(Spec::Yuno),
        DocumentKind::Container => from_value(&spec).map(Spec::Container),
        DocumentKind::Files => from_value(&spec).map(Spec::Files),
        DocumentKind::Packages => from_value(&spec).map(Spec::Packages),
    }
}

impl WantedUnit {
    /// The key under which a document of this kind names its artifact.
    #[must_use]
    pub fn artifact_key(&self) -> &'static str {
        match self.kind {
            DocumentKind::Yuno | DocumentKind::Files | DocumentKind::Packages => "artifact",
            DocumentKind::Container => "image",
        }
    }

    /// Returns the spec, given its artifact and configs; values of the artifact's manifest apply where the document has
    /// none.
    ///
    /// # Errors
    /// If a field contradicts another.
    pub fn spec(
        &self,
        artifact: Option<ArtifactRef>,
        configs: Vec<ConfigRef>,
        says: &Manifest,
    ) -> Result<Spec, DocumentFault> {
        let spec = spec_of(self.kind, Value::Object(self.fields.clone()));
        let mut spec =
            spec.map_err(|message| DocumentFault { at: self.unit.to_string(), diagnostic: message.into() })?;
        if let (Some(place), Some(artifact)) = (spec.artifact_mut(), artifact) {
            *place = artifact;
        }
        let Spec::Yuno(mut spec) = spec else { return Ok(spec) };
        spec.configs = configs;
        if !self.fields.contains_key("args") {
            spec.program.args.clone_from(&says.args);
        }
        if !self.fields.contains_key("channel") {
            spec.channel = says.channel;
        }
        Ok(Spec::Yuno(spec))
    }
}

/// Sets the artifacts of files, by path.
pub fn set_file_artifacts(spec: &mut Spec, artifacts: BTreeMap<String, ArtifactRef>) {
    let Spec::Files(spec) = spec else { return };
    for (path, artifact) in artifacts {
        if let Some(entry) = spec.files.get_mut(&path) {
            entry.artifact = Some(artifact);
        }
    }
}

/// Writes the document of an existing unit. Secrets are masked; a mask stands for the existing value.
#[must_use]
pub fn write(unit: &UnitName, host: &str, spec: &Spec, run: Run) -> Value {
    let mut fields = fields_to_write(unit, spec, run);
    fields.insert("hosts".to_owned(), json!([host]));
    Value::Object(fields)
}

/// The fields of a document of an existing unit, all but its hosts.
pub(super) fn fields_to_write(unit: &UnitName, spec: &Spec, run: Run) -> Map<String, Value> {
    let mut fields = all_fields(spec, run);
    let bare = match spec {
        Spec::Yuno(yuno) => Spec::Yuno(YunoSpec::new(yuno.artifact.clone())),
        Spec::Container(container) => Spec::Container(ContainerSpec::new(container.image.clone())),
        Spec::Files(_) => Spec::Files(FilesSpec::new()),
        Spec::Packages(_) => Spec::Packages(PackagesSpec::new()),
    };
    let bare = all_fields(&bare, run);
    let is_said = |key: &str| matches!(key, "artifact" | "image" | "kind" | "run");
    fields.retain(|key, value| is_said(key) || bare.get(key) != Some(value));
    // The console finds them by the configs.
    fields.remove("secrets");
    // Its host does.
    fields.remove("values");
    fields.remove("config_values");
    // Values that come from the manifest are left out.
    if let Some(yuno) = spec.yuno().filter(|yuno| yuno.artifact.manifest.is_some()) {
        fields.entry("args").or_insert_with(|| json!(yuno.program.args));
        fields.entry("channel").or_insert_with(|| json!(yuno.channel));
    }
    fields.insert("unit".to_owned(), json!(unit));
    fields
}

/// Returns every field of a unit as documents name it, including defaults, with secrets masked.
#[must_use]
pub fn all_fields(spec: &Spec, run: Run) -> Map<String, Value> {
    let spec = spec.masked();
    let configs: Vec<String> =
        spec.configs().iter().map(|config| format!("{}@{}", config.id, config.version)).collect();
    let artifact = spec.artifact().map(|artifact| format!("{}@{}", artifact.role, artifact.version));
    let fields = match &spec {
        Spec::Yuno(yuno) => serde_json::to_value(yuno),
        Spec::Container(_) | Spec::Files(_) | Spec::Packages(_) => serde_json::to_value(&spec),
    };
    let Ok(Value::Object(mut fields)) = fields else { return Map::new() };
    fields.remove("restart_epoch");
    match (&spec, artifact) {
        (Spec::Yuno(_), Some(artifact)) => drop(fields.insert("artifact".to_owned(), artifact.into())),
        (Spec::Container(_), Some(artifact)) => {
            let image = fields.get_mut("image");
            let place = image.and_then(|image| {
                IMAGE_FORMS.iter().find(|form| image.get(form).is_some()).map(|form| &mut image[form])
            });
            if let Some(place) = place {
                *place = artifact.into();
            }
        }
        (Spec::Files(_) | Spec::Packages(_), Some(_)) | (_, None) => {}
    }
    if let (Spec::Files(spec), Some(files)) = (&spec, fields.get_mut("files")) {
        for (path, entry) in &spec.files {
            if let (Some(artifact), Some(written)) = (&entry.artifact, files.get_mut(path)) {
                written["artifact"] = format!("{}@{}", artifact.role, artifact.version).into();
            }
        }
    }
    if configs.is_empty() {
        fields.remove("configs");
    } else {
        fields.insert("configs".to_owned(), json!(configs));
    }
    if !spec.common().secrets.is_empty() {
        let secrets: Vec<String> = spec.common().secrets.iter().map(SecretRef::to_string).collect();
        fields.insert("secrets".to_owned(), json!(secrets));
    }
    // The templates are in the configs.
    fields.remove("config_templates");
    if let Some(values) = spec.config_values().filter(|values| !values.is_empty()) {
        fields.insert("config_values".to_owned(), json!(values));
    }
    fields.insert("run".to_owned(), json!(run));
    fields
}

/// Returns the JSON Schema of a document for one unit.
#[must_use]
pub fn schema(kind: DocumentKind) -> Value {
    let mut schema = match kind {
        DocumentKind::Yuno => schemars::schema_for!(YunoSpec).to_value(),
        DocumentKind::Container => schemars::schema_for!(ContainerSpec).to_value(),
        DocumentKind::Files => schemars::schema_for!(FilesSpec).to_value(),
        DocumentKind::Packages => schemars::schema_for!(PackagesSpec).to_value(),
    };
    let run = schemars::schema_for!(Run).to_value();
    let name = schemars::schema_for!(UnitName).to_value();
    let artifact = json!({ "description": "ROLE@VERSION, ROLE or a SHA-256.", "type": "string" });
    let forms = image_forms(&schema, &artifact);
    let in_entries = schema.pointer_mut("/$defs/FileEntry/properties/artifact");
    if let Some(place) = in_entries {
        *place = artifact.clone();
    }
    if let Some(properties) = schema["properties"].as_object_mut() {
        properties.remove("restart_epoch");
        properties.remove("secrets");
        properties.remove("values");
        properties.remove("config_templates");
        let texts = |about: &str| json!({ "description": about, "type": "array", "items": { "type": "string" } });
        properties.extend([
            ("unit".to_owned(), name),
            ("hosts".to_owned(), texts("The hosts that it belongs on, by id or hostname.")),
            ("run".to_owned(), run),
        ]);
        properties.extend(match kind {
            DocumentKind::Yuno => vec![
                ("kind".to_owned(), json!({ "const": "yuno" })),
                ("artifact".to_owned(), artifact),
                ("configs".to_owned(), texts("Each as ID@VERSION or ID.")),
            ],
            DocumentKind::Container => vec![
                ("kind".to_owned(), json!({ "const": "container" })),
                ("image".to_owned(), json!({ "type": "object", "properties": forms, "additionalProperties": false })),
            ],
            DocumentKind::Files | DocumentKind::Packages => {
                vec![("kind".to_owned(), json!({ "const": kind.as_str() }))]
            }
        });
    }
    schema["required"] = match kind {
        DocumentKind::Yuno => json!(["unit", "artifact"]),
        DocumentKind::Container => json!(["unit", "kind", "image"]),
        DocumentKind::Files | DocumentKind::Packages => json!(["unit", "kind"]),
    };
    schema
}

/// The forms of a container's image as in its spec, except that a document names an artifact by its reference.
fn image_forms(schema: &Value, artifact: &Value) -> Map<String, Value> {
    let forms = schema["$defs"]["Image"]["oneOf"].as_array().into_iter().flatten();
    let properties = forms.filter_map(|form| {
        let (name, value) = form["properties"].as_object()?.iter().next()?;
        let mut value = if IMAGE_FORMS.contains(&name.as_str()) { artifact.clone() } else { value.clone() };
        let about =
            [&form["description"], &value["description"]].into_iter().filter_map(Value::as_str).collect::<Vec<_>>();
        value["description"] = about.join(" ").into();
        Some((name.clone(), value))
    });
    properties.collect()
}

/// Resolves `NAME@VERSION`, or `NAME` alone to its newest version ([`newer::newest`]).
///
/// # Errors
/// If there is none; the message lists similar ones.
pub fn named<'a, T>(
    what: &str,
    text: &str,
    known: &'a [T],
    label: impl for<'b> Fn(&'b T) -> (&'b str, &'b Version),
    created_ms: impl Fn(&T) -> i64,
) -> Result<&'a T, String> {
    let (name, version) = text.split_once('@').map_or((text, None), |(name, version)| (name, Some(version)));
    let is_meant = |one: &&T| {
        let (its_name, its_version) = label(one);
        its_name == name && version.is_none_or(|version| its_version.as_str() == version)
    };
    version_order::newest(known.iter().filter(is_meant), |one| (label(one).1, created_ms(one))).ok_or_else(|| {
        let same_name: Vec<String> = known
            .iter()
            .map(&label)
            .filter(|(its_name, _)| *its_name == name)
            .map(|(_, its)| its.to_string())
            .collect();
        let mut names: Vec<&str> = known.iter().map(|one| label(one).0).collect();
        names.sort();
        names.dedup();
        let shown = text.chars().take(100).collect::<String>();
        match (names.is_empty(), same_name.is_empty()) {
            (true, _) => {
                format!("there is no {what} {shown:?}, and there are none; `muster {what} create` creates one")
            }
            (false, true) => {
                let hint = unknown_keys::nearest(name, names.iter().copied());
                format!("there is no {what} {shown:?}; {hint}")
            }
            (false, false) => {
                let versions: Vec<String> =
                    same_name.iter().take(10).map(|version| format!("{name}@{version}")).collect();
                format!("there is no {what} {shown:?}; there are {}", versions.join(", "))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use muster_topics::{
        common::ProgramSpec,
        unit::{Channel, MASK, Restart},
    };
    use proptest::prelude::*;

    use super::*;

    fn artifact(manifest: bool) -> ArtifactRef {
        ArtifactRef {
            sha256: Digest::of(b"web"),
            size_bytes: 3,
            role: "web".parse().unwrap(),
            version: "1.0".parse().unwrap(),
            manifest: manifest.then(|| Digest::of(b"manifest")),
        }
    }

    #[track_caller]
    fn check_faults(document: &Value, wanted: &[(&str, &str)]) {
        let (_, faults) = read(document);
        assert_eq!(faults.len(), wanted.len(), "{faults:#?}");
        for (fault, (at, message)) in faults.iter().zip(wanted) {
            assert!(
                fault.at == *at && fault.diagnostic.cause.contains(message),
                "{fault:?} instead of {at}: {message}"
            );
        }
    }

    #[test]
    fn all_faults_are_reported_at_once() {
        check_faults(&json!([]), &[("", "expected a unit")]);
        check_faults(&json!({"unit": "default/a", "artifact": "web"}), &[]);
        check_faults(&json!({"unit": "default/a"}), &[("default/a: artifact", "is required")]);
        check_faults(
            &json!({
                "unit": "default/a", "artifact": 5, "artefact": "web", "grace_ms": "long", "restart": "sometimes",
                "limits": {"memroy_bytes": 1, "pids": "many"}, "env": {"A": 1, "B": "b", "C": true},
                "provides": [{"name": "x"}, {"name": "Y Z"}, {"nam": "x"}], "restart_epoch": 4, "run": "now",
                "kind": "pod"
            }),
            &[
                ("default/a: artefact", "`artifact`"),
                ("default/a: restart_epoch", "unknown key"),
                ("default/a: limits.memroy_bytes", "`memory_bytes`"),
                ("default/a: provides.2.nam", "`name`"),
                ("default/a: artifact", "expected a string"),
                ("default/a: run", "`stopped`, `running`"),
                ("default/a: kind", "`container`"),
                ("default/a: env.A", "expected a string"),
                ("default/a: env.C", "expected a string"),
                ("default/a: grace_ms", "expected u64"),
                ("default/a: limits.pids", "expected u32"),
                ("default/a: provides.1", "not valid"),
                ("default/a: provides.2", "missing field"),
                ("default/a: restart", "`on_failure`"),
            ],
        );
        check_faults(
            &json!({"unit": "A", "artifact": "web", "configs": "one"}),
            &[("A: unit", "not valid"), ("A: configs", "expected a sequence")],
        );
        check_faults(
            &json!({"unitz": 1, "hosts": "here", "units": [{"artifact": "web"}, 5, {"unit": "a/b", "artifact": "c"}]}),
            &[
                ("unitz", "`units`"),
                ("hosts", "expected a sequence"),
                ("units.0: unit", "is required"),
                ("units.1", "expected a unit"),
            ],
        );
        check_faults(&json!({"units": {}}), &[("units", "a list")]);
        let deployment = json!({"deployment": "a/b", "target": {"select": "host=*"}, "units": []});
        check_faults(&deployment, &[("deployment", "`muster deployment apply`")]);
    }

    #[test]
    fn container_document_is_read() {
        let document = json!({
            "unit": "default/a", "kind": "container", "image": {"rootfs": "web@1.0"}, "args": ["/bin/true"],
            "mounts": [{"host": "/srv", "inside": "/data", "read_only": true}], "network": "none", "env": {"A": "b"},
        });
        check_faults(&document, &[]);
        let (wanted, _) = read(&document);
        assert_eq!((wanted[0].artifact.as_deref(), wanted[0].artifact_key()), (Some("web@1.0"), "image"));
        let spec = wanted[0].spec(Some(artifact(false)), Vec::new(), &Manifest::default()).unwrap();
        assert_eq!(spec.artifact(), Some(&artifact(false)));
        let written = write(&"default/a".parse().unwrap(), "anna", &spec, Run::Running);
        let mut wanted = document;
        for (key, value) in [("run", json!("running")), ("hosts", json!(["anna"])), ("env", json!({"A": MASK}))] {
            wanted[key] = value;
        }
        assert_eq!(written, wanted);
        check_faults(&json!({"unit": "a/b", "kind": "container", "image": {"existing": "old-web"}}), &[]);
        check_faults(&json!({"unit": "a/b", "kind": "container"}), &[("a/b: image", "is required")]);
        check_faults(
            &json!({
                "unit": "a/b", "kind": "container", "image": {"name": "x"}, "artifact": "web", "configs": ["a"],
                "mounts": [{"host": "/a", "inside": "/b"}, {"hots": "/a", "inside": 5}], "network": "empty",
            }),
            &[
                ("a/b: artifact", "unknown key"),
                ("a/b: configs", "unknown key"),
                ("a/b: mounts.1.hots", "`host`"),
                ("a/b: mounts.1", "invalid type"),
                ("a/b: network", "`bridge`"),
            ],
        );
    }

    #[test]
    fn files_document_is_read() {
        let document = json!({
            "unit": "default/a", "kind": "files", "run": "running",
            "files": {
                "/etc/a": {"text": "x", "mode": "0600"},
                "/srv/b": {"directory": {"purge": true}, "artifact": "web@1.0"},
            },
        });
        check_faults(&document, &[]);
        let (wanted, _) = read(&document);
        assert_eq!(wanted[0].file_artifacts, BTreeMap::from([("/srv/b".to_owned(), "web@1.0".to_owned())]));
        let mut spec = wanted[0].spec(None, Vec::new(), &Manifest::default()).unwrap();
        set_file_artifacts(&mut spec, BTreeMap::from([("/srv/b".to_owned(), artifact(false))]));
        assert_eq!(spec.artifacts(), [&artifact(false)]);
        let mut written = write(&"default/a".parse().unwrap(), "anna", &spec, Run::Running);
        assert_eq!(written.as_object_mut().unwrap().remove("hosts"), Some(json!(["anna"])));
        assert_eq!(written, document);
        check_faults(
            &json!({"unit": "a/b", "kind": "files", "files": {"/a": {"txt": "x"}, "/b": {"mode": 5}}}),
            &[("a/b: files./a.txt", "`text`"), ("a/b: files./b.mode", "expected a string")],
        );
    }

    #[test]
    fn list_hosts_are_the_default_of_its_units() {
        let document = json!({
            "hosts": ["anna"],
            "units": [{"unit": "a/b", "artifact": "c"}, {"unit": "a/c", "artifact": "c", "hosts": ["bert"]}]
        });
        let (wanted, faults) = read(&document);
        assert_eq!(faults, []);
        assert_eq!([&wanted[0].hosts[..], &wanted[1].hosts[..]], [["anna"], ["bert"]]);
    }

    #[test]
    fn manifest_fills_missing_keys() {
        let says = Manifest { args: vec!["-v".to_owned()], channel: Channel::Lines, ..Manifest::default() };
        let spec = |document: Value| {
            let (wanted, faults) = read(&document);
            assert_eq!(faults, []);
            let Spec::Yuno(spec) = wanted[0].spec(Some(artifact(true)), Vec::new(), &says).unwrap() else {
                panic!("a yuno")
            };
            (spec.program.args, spec.channel)
        };
        let silent = json!({"unit": "a/b", "artifact": "web"});
        assert_eq!(spec(silent), (vec!["-v".to_owned()], Channel::Lines));
        let speaks = json!({"unit": "a/b", "artifact": "web", "args": [], "channel": "none"});
        assert_eq!(spec(speaks), (vec![], Channel::None));
    }

    #[test]
    fn unknown_name_is_refused_with_similar_ones() {
        let known = [("web", "1", 1), ("web", "2", 3), ("web", "3-rc.1", 4), ("till", "1", 2)]
            .map(|(name, version, created_ms)| (name, version.parse::<Version>().unwrap(), created_ms));
        let find = |text: &str| {
            named("artifact", text, &known, |one| (one.0, &one.1), |one| one.2).map(|one| (one.0, one.1.as_str()))
        };
        assert_eq!(find("web"), Ok(("web", "2")));
        assert_eq!(find("web@3-rc.1"), Ok(("web", "3-rc.1")));
        assert_eq!(find("web@1"), Ok(("web", "1")));
        assert!(find("tilll@1").unwrap_err().contains("did you mean `till`?"));
        assert!(find("web@3").unwrap_err().contains("web@1, web@2"));
    }

    proptest! {
        #[test]
        fn written_document_reads_as_the_same_spec(
            manifest: bool,
            args in prop::collection::vec("[a-z{}:]{0,4}", 0..3),
            env in prop::collection::btree_map("[A-Z]{1,3}", Just(MASK.to_owned()), 0..3),
            grace_ms in prop::sample::select(vec![0, 1, 30_000, 60_000]),
            restart in prop::sample::select(vec![Restart::Always, Restart::OnFailure, Restart::Never]),
            channel in prop::sample::select(vec![Channel::None, Channel::Notify, Channel::Lines]),
            memory_bytes in prop::option::of(1u64..1 << 40),
            cpu in prop::option::of(prop::sample::select(vec!["0.5", "2"])),
            priority in 0u8..10,
            run in prop::sample::select(vec![Run::Stopped, Run::Running, Run::Playing]),
        ) {
            let mut yuno = YunoSpec { channel, ..YunoSpec::new(artifact(manifest)) };
            yuno.program = ProgramSpec { args, env, grace_ms, restart, ..ProgramSpec::default() };
            yuno.common.priority = priority;
            yuno.program.limits.memory_bytes = memory_bytes;
            yuno.program.limits.cpu = cpu.map(|cpu| cpu.parse().unwrap());
            let sha256 = Digest::of(b"config");
            yuno.configs = vec![ConfigRef { id: "a.b".parse().unwrap(), version: "3".parse().unwrap(), sha256 }];
            let (configs, spec) = (yuno.configs.clone(), Spec::Yuno(yuno));
            let document = write(&"default/a".parse().unwrap(), "anna", &spec, run);
            let (wanted, faults) = read(&document);
            prop_assert_eq!(faults, []);
            prop_assert_eq!(&wanted[0].hosts[..], ["anna"]);
            prop_assert_eq!((wanted[0].run, wanted[0].artifact.as_deref()), (Some(run), Some("web@1.0")));
            prop_assert_eq!(&wanted[0].configs[..], ["a.b@3"]);
            let says = Manifest { args: vec!["-v".to_owned()], channel: Channel::Notify, ..Manifest::default() };
            let says = if manifest { says } else { Manifest::default() };
            prop_assert_eq!(wanted[0].spec(Some(artifact(manifest)), configs, &says).unwrap(), spec);
        }
    }
}

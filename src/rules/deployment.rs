//! Documents of deployments: a deployment's name, its target and its units, as people write them.
//!
//! ```yaml
//! deployment: shop/till
//! target: {select: label.role=till}
//! units:
//! - {name: till, artifact: till@2.4.0, configs: [till@7]}
//! ```
//!
//! A unit has the keys of a unit's own document ([`document`](super::document)) without `hosts`: the target says which these are. Its name
//! stands under `name` or `unit`, and may leave out the realm, which is then the deployment's. `run` left out is
//! `running`. `unit` in place of `units` is short for one.
//!
//! **Invariant: all faults are reported at once**, each with its place.
//!
//! **Invariant: [`read`] accepts what [`write()`] produces**, and yields the same version.

use std::collections::BTreeSet;

use jiff::tz::TimeZoneDatabase;
use muster_topics::{
    desired::{DeploymentName, DeploymentVersion},
    name::{Name, UnitName},
    select::HostSelect,
    unit::{Run, UNITS_MAX},
};
use serde_json::{Map, Value, json};

use super::{
    document::{self, DocumentFault, DocumentKind, WantedUnit, from_value, unknown},
    rollout::policy,
    unknown_keys,
};

/// A deployment as a document describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct WantedDeployment {
    /// Its name.
    pub deployment: DeploymentName,
    /// The hosts.
    pub select: HostSelect,
    /// The units, each once, without hosts, and each with what it should do.
    pub units: Vec<WantedUnit>,
    /// The whole policy of its rollout, as a version stores it; empty: all hosts at once.
    pub rollout: Map<String, Value>,
}

const KEYS: [&str; 5] = ["deployment", "target", "units", "unit", "rollout"];

/// Reads the deployment that a document describes, as far as possible: one that has a fault is not to be applied.
/// `zones` are the time zones that its windows may name.
#[must_use]
pub fn read(document: &Value, zones: &TimeZoneDatabase) -> (Option<WantedDeployment>, Vec<DocumentFault>) {
    let mut faults = FaultList::default();
    let Value::Object(whole) = document else {
        faults.add("", "a deployment is wanted, with `deployment`, `target` and `units`");
        return (None, faults.0);
    };
    if is_unit(whole) {
        faults.add(
            if whole.contains_key("unit") { "unit" } else { "units" },
            "this is the document of a unit, which `muster unit apply` applies; that of a deployment begins with \
             `deployment: REALM/NAME` and has a `target`",
        );
        return (None, faults.0);
    }
    for key in whole.keys().filter(|key| !KEYS.contains(&key.as_str())) {
        match key.as_str() {
            "hosts" => faults.add(key, HOSTS),
            _ => faults.add(key, unknown(&unknown_keys::nearest(key, KEYS.into_iter()))),
        }
    }
    let deployment = name(whole, &mut faults);
    let select = target(whole, &mut faults);
    let rollout = rollout(whole, zones, &mut faults);
    let units = units(whole, &mut faults);
    let wanted =
        deployment.zip(select).map(|(deployment, select)| WantedDeployment { deployment, select, units, rollout });
    (wanted, faults.0)
}

const HOSTS: &str = "the hosts of a deployment are those of its target: write `target: {select: 'host=NAME'}`, or select \
                     them by a label";

/// Whether a document without a deployment's keys describes a unit, or a list of them.
fn is_unit(document: &Map<String, Value>) -> bool {
    let has = |key: &str| document.contains_key(key);
    !has("deployment") && !has("target") && (has("units") || document.get("unit").is_some_and(Value::is_string))
}

fn name(document: &Map<String, Value>, faults: &mut FaultList) -> Option<DeploymentName> {
    let Some(name) = document.get("deployment") else {
        faults.add("deployment", "it has to be there: the deployment's name, REALM/NAME");
        return None;
    };
    // As text first: the type of a name says of which kind it is only when it is parsed.
    let name = from_value::<String>(name).and_then(|name| name.parse().map_err(|error| format!("{error}")));
    faults.keep("deployment", name)
}

fn target(document: &Map<String, Value>, faults: &mut FaultList) -> Option<HostSelect> {
    const WANTED: &str = "the hosts are wanted, such as `target: {select: 'label.role=till'}`; `all` selects all";
    let Some(target) = document.get("target") else {
        faults.add("target", format!("it has to be there: {WANTED}"));
        return None;
    };
    let Value::Object(target) = target else {
        faults.add("target", WANTED);
        return None;
    };
    for key in target.keys().filter(|key| *key != "select") {
        faults.add(&format!("target.{key}"), unknown(&unknown_keys::nearest(key, ["select"].into_iter())));
    }
    let Some(select) = target.get("select") else {
        faults.add("target.select", format!("it has to be there: {WANTED}"));
        return None;
    };
    let select = if select == "all" { json!("host=*") } else { select.clone() };
    let select: HostSelect = faults.keep("target.select", from_value(&select))?;
    if select.asks_units() {
        faults.add(
            "target.select",
            "a target cannot depend on units, which the deployment itself changes; select hosts by labels, facts, realms \
             or names",
        );
        return None;
    }
    Some(select)
}

fn rollout(document: &Map<String, Value>, zones: &TimeZoneDatabase, faults: &mut FaultList) -> Map<String, Value> {
    let Some(given) = document.get("rollout").filter(|given| !given.is_null()) else { return Map::new() };
    let (policy, wrong) = policy::read(given, zones);
    faults.0.extend(wrong);
    policy.map(|policy| policy::write(&policy)).unwrap_or_default()
}

fn units(document: &Map<String, Value>, faults: &mut FaultList) -> Vec<WantedUnit> {
    // Without a valid name no realm is known; that has been reported, and shall not be repeated for each unit.
    let realm =
        document.get("deployment").and_then(Value::as_str).and_then(|name| name.split_once('/')?.0.parse().ok());
    let realm: Name = realm.unwrap_or_else(Name::default_realm);
    let listed: Vec<(String, &Value)> = match (document.get("units"), document.get("unit")) {
        (Some(_), Some(_)) => {
            faults.add("unit", "it is short for `units` with one: a document has one of both");
            return Vec::new();
        }
        (None, None) => {
            faults.add("units", "it has to be there: a list of units");
            return Vec::new();
        }
        (None, Some(unit)) => vec![("unit".to_owned(), unit)],
        (Some(Value::Array(units)), None) => {
            units.iter().enumerate().map(|(index, unit)| (format!("units.{index}"), unit)).collect()
        }
        (Some(_), None) => {
            faults.add("units", "a list of units is wanted");
            return Vec::new();
        }
    };
    if listed.is_empty() {
        faults.add("units", "at least one is wanted; `muster deployment rm` removes a deployment with its units");
    }
    if listed.len() > UNITS_MAX {
        faults.add("units", format!("there are {}, and a host can have {UNITS_MAX}", listed.len()));
        return Vec::new();
    }
    let (mut found, mut names) = (Vec::new(), BTreeSet::new());
    for (place, unit) in listed {
        if let Some(unit) = self::unit(&place, unit, &realm, faults) {
            if !names.insert(unit.unit.clone()) {
                faults.add(unit.unit.as_str(), "it is listed twice");
                continue;
            }
            found.push(unit);
        }
    }
    found
}

/// Reads one unit; `place` is where it stands.
fn unit(place: &str, unit: &Value, realm: &Name, faults: &mut FaultList) -> Option<WantedUnit> {
    let Value::Object(given) = unit else {
        faults.add(place, "a unit is wanted, such as {name: till, artifact: till@2.4.0}");
        return None;
    };
    let mut fields = given.clone();
    let short = fields.remove("name");
    if short.is_some() && fields.contains_key("unit") {
        faults.add(&format!("{place}.name"), "it is the same as `unit`: a unit has one of both");
    } else if let Some(short) = short {
        fields.insert("unit".to_owned(), short);
    }
    if let Some(Value::String(name)) = fields.get_mut("unit")
        && !name.contains('/')
    {
        *name = format!("{realm}/{name}");
    }
    let at = match fields.get("unit") {
        Some(Value::String(name)) => name.clone(),
        _ => place.to_owned(),
    };
    if fields.remove("hosts").is_some() {
        faults.add(&format!("{at}: hosts"), HOSTS);
    }
    if fields.get("transient") == Some(&Value::Bool(true)) {
        faults.add(&format!("{at}: transient"), "a unit for one run is nothing that a deployment could keep running");
    }
    let (wanted, wrong) = document::read_unit(&fields, None);
    let is_named = fields.get("unit").is_some_and(Value::is_string);
    faults.0.extend(wrong.into_iter().map(|fault| match is_named {
        true => fault,
        false => DocumentFault { at: format!("{place}: {}", fault.at), ..fault },
    }));
    let mut wanted = wanted?;
    wanted.run.get_or_insert(Run::Running);
    Some(wanted)
}

#[derive(Default)]
struct FaultList(Vec<DocumentFault>);

impl FaultList {
    fn add(&mut self, at: &str, message: impl Into<String>) {
        self.0.push(DocumentFault { at: at.to_owned(), message: message.into() });
    }

    fn keep<T>(&mut self, at: &str, result: Result<T, String>) -> Option<T> {
        result.map_err(|message| self.add(at, message)).ok()
    }
}

/// Writes the document of an existing version. Secrets are masked; a mask stands for the existing value.
#[must_use]
pub fn write(version: &DeploymentVersion) -> Value {
    let units = version.units.iter().map(|unit| document::fields_to_write(&unit.unit, &unit.spec, unit.run));
    let units: Vec<Map<String, Value>> = units.collect();
    let mut document = json!({ "deployment": version.deployment, "target": version.target, "units": units });
    if !version.rollout.is_empty() {
        document["rollout"] = Value::Object(version.rollout.clone());
    }
    document
}

/// Returns the JSON Schema of a deployment's document.
#[must_use]
pub fn schema() -> Value {
    let mut definitions = Map::new();
    let kinds = [(DocumentKind::Yuno, "A yuno."), (DocumentKind::Container, "A container.")];
    let kinds = kinds.map(|(kind, about)| unit_schema(kind, about, &mut definitions));
    definitions.insert("DeploymentUnit".to_owned(), json!({ "anyOf": kinds }));
    let of = |schema: schemars::Schema| without(schema.to_value(), &["$schema"]);
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Deployment",
        "description": "Units, and the hosts that carry them.",
        "type": "object",
        "properties": {
            "deployment": of(schemars::schema_for!(UnitName)),
            "target": {
                "description": "The hosts.",
                "type": "object",
                "properties": { "select": of(schemars::schema_for!(HostSelect)) },
                "required": ["select"],
                "additionalProperties": false,
            },
            "units": {
                "description": "The units, each once.",
                "type": "array",
                "items": { "$ref": "#/$defs/DeploymentUnit" },
                "minItems": 1,
                "maxItems": UNITS_MAX,
            },
            "unit": { "description": "Short for one in `units`.", "$ref": "#/$defs/DeploymentUnit" },
            "rollout": policy::schema(),
        },
        "required": ["deployment", "target"],
        "oneOf": [{ "required": ["units"] }, { "required": ["unit"] }],
        "additionalProperties": false,
        "$defs": definitions,
    })
}

/// The schema of a unit within a deployment; what it refers to is moved to the definitions of the whole.
fn unit_schema(kind: DocumentKind, about: &str, definitions: &mut Map<String, Value>) -> Value {
    let mut schema = document::schema(kind);
    if let Value::Object(own) = schema["$defs"].take() {
        definitions.extend(own);
    }
    if let Some(properties) = schema["properties"].as_object_mut() {
        properties.remove("hosts");
        let name = |about: &str| json!({ "description": about, "type": "string" });
        let own = "Its name, REALM/NAME; without a realm it is of the deployment's.";
        properties.extend([("name".to_owned(), name(own)), ("unit".to_owned(), name("The same as `name`."))]);
    }
    if let Some(required) = schema["required"].as_array_mut() {
        required.retain(|key| key != "unit");
    }
    schema["oneOf"] = json!([{ "required": ["name"] }, { "required": ["unit"] }]);
    schema["description"] = about.into();
    without(schema, &["$schema", "$defs", "title"])
}

fn without(mut schema: Value, keys: &[&str]) -> Value {
    if let Some(schema) = schema.as_object_mut() {
        schema.retain(|key, _| !keys.contains(&key.as_str()));
    }
    schema
}

#[cfg(test)]
mod tests {
    use muster_topics::{
        desired::{DeploymentTarget, DeploymentUnit},
        manifest::Manifest,
        name::Digest,
        unit::{ArtifactRef, Spec, YunoSpec},
    };
    use proptest::prelude::*;

    use super::*;
    use crate::schema as validator;

    fn read(document: &Value) -> (Option<WantedDeployment>, Vec<DocumentFault>) {
        super::read(document, &TimeZoneDatabase::bundled())
    }

    #[track_caller]
    fn check_faults(document: &Value, wanted: &[(&str, &str)]) {
        let (_, faults) = read(document);
        assert_eq!(faults.len(), wanted.len(), "{faults:#?}");
        for (fault, (at, message)) in faults.iter().zip(wanted) {
            assert!(fault.at == *at && fault.message.contains(message), "{fault:?} instead of {at}: {message}");
        }
    }

    fn till() -> Value {
        json!({
            "deployment": "shop/till", "target": {"select": "label.role=till and not label.frozen=yes"},
            "units": [
                {"name": "till", "kind": "yuno", "artifact": "till@2.4.0", "configs": ["till@7"]},
                {"unit": "tools/printer", "kind": "container", "image": {"rootfs": "printer"}, "run": "stopped"},
            ],
        })
    }

    #[test]
    fn deployment_is_read() {
        check_faults(&till(), &[]);
        let wanted = read(&till()).0.unwrap();
        assert_eq!(wanted.deployment.as_str(), "shop/till");
        assert_eq!(wanted.select.to_string(), "label.role=till and not label.frozen=yes");
        let units: Vec<_> = wanted.units.iter().map(|unit| (unit.unit.as_str(), unit.run, unit.is_whole)).collect();
        assert_eq!(units, [("shop/till", Some(Run::Running), true), ("tools/printer", Some(Run::Stopped), true)]);
        let mut all = till();
        all["target"]["select"] = json!("all");
        assert_eq!(read(&all).0.unwrap().select.to_string(), "host=*");
        let mut one = till();
        let fields = one.as_object_mut().unwrap();
        fields.insert("unit".to_owned(), fields["units"][0].clone());
        fields.remove("units");
        fields.insert("rollout".to_owned(), json!({}));
        check_faults(&one, &[]);
        let one = read(&one).0.unwrap();
        assert_eq!(one.units[..], wanted.units[..1]);
        assert_eq!(one.rollout["max_in_flight"], "10%", "a policy is stored whole");
        assert_eq!(wanted.rollout, Map::new(), "without one, all change at once");
    }

    #[test]
    fn all_faults_are_reported_at_once() {
        check_faults(&json!([]), &[("", "a deployment is wanted")]);
        check_faults(
            &json!({}),
            &[("deployment", "has to be there"), ("target", "label.role=till"), ("units", "has to be there")],
        );
        check_faults(
            &json!({
                "deployment": "till", "taget": 1, "hosts": ["anna"], "target": {"selekt": "host=*", "count": 3},
                "rollout": {"wave": [1], "soak": "2"}, "unit": {}, "units": [],
            }),
            &[
                ("hosts", "`target: {select"),
                ("taget", "`target`"),
                ("deployment", "REALM/NAME is wanted"),
                ("target.count", "known are `select`"),
                ("target.selekt", "`select`"),
                ("target.select", "has to be there"),
                ("rollout.wave", "`waves`"),
                ("rollout.soak", "a duration"),
                ("unit", "one of both"),
            ],
        );
        check_faults(
            &json!({
                "deployment": "shop/till", "target": {"select": "label.role="},
                "units": [
                    {"name": "a", "artefact": "web", "hosts": ["anna"], "grace_ms": "long"}, {"artifact": "web"}, 5,
                    {"unit": "a", "name": "b", "artifact": "web"}, {"name": "B", "artifact": "web"},
                    {"name": "c", "artifact": "web"}, {"unit": "shop/c", "artifact": "web"},
                    {"name": "d", "artifact": "web", "transient": true},
                ],
            }),
            &[
                ("target.select", "a value"),
                ("shop/a: hosts", "`target: {select"),
                ("shop/a: artefact", "`artifact`"),
                ("shop/a: artifact", "has to be there"),
                ("shop/a: grace_ms", "expected u64"),
                ("units.1: unit", "has to be there"),
                ("units.2", "a unit is wanted"),
                ("units.3.name", "one of both"),
                ("shop/B: unit", "not valid"),
                ("shop/c", "twice"),
                ("shop/d: transient", "one run"),
            ],
        );
        let with = |key: &str, value: Value| {
            let mut document = till();
            document[key] = value;
            document
        };
        check_faults(&with("deployment", json!(5)), &[("deployment", "expected a string")]);
        check_faults(&with("target", json!("label.role=till")), &[("target", "such as")]);
        check_faults(&with("target", json!({"select": "unit.phase=failed"})), &[("target.select", "depend on units")]);
        check_faults(&with("rollout", json!("slow")), &[("rollout", "a policy is wanted")]);
        check_faults(&with("units", json!({})), &[("units", "a list")]);
        check_faults(&with("units", json!([])), &[("units", "`muster deployment rm`")]);
        let many: Vec<Value> =
            (0..257).map(|number| json!({"name": format!("u{number}"), "artifact": "web"})).collect();
        check_faults(&with("units", json!(many)), &[("units", "257")]);
        check_faults(&with("units", json!(many[..256])), &[]);
    }

    #[test]
    fn document_of_a_unit_gets_a_hint() {
        for document in [json!({"unit": "a/b", "artifact": "web"}), json!({"hosts": ["a"], "units": [{"unit": "a/b"}]})]
        {
            let (wanted, faults) = read(&document);
            assert!(wanted.is_none() && faults.len() == 1, "{faults:?}");
            assert!(faults[0].message.contains("`muster unit apply`"), "{faults:?}");
        }
    }

    #[test]
    fn schema_accepts_what_is_read_and_refuses_what_is_not() {
        let schema = schema();
        validator::check_schema(&schema).unwrap();
        assert_eq!(validator::check(&schema, &till()), [""; 0]);
        let mut wrong = till();
        wrong["units"][0]["hosts"] = json!(["anna"]);
        assert_ne!(validator::check(&schema, &wrong), [""; 0]);
        let mut wrong = till();
        wrong["target"]["count"] = json!(3);
        assert_ne!(validator::check(&schema, &wrong), [""; 0]);
    }

    proptest! {
        #[test]
        fn written_document_reads_as_the_same_version(
            units in prop::collection::btree_map("[a-z]{1,3}/[a-z]{1,3}", (0u8..10, any::<bool>(), prop::collection::vec("[a-z{}:]{0,4}", 0..3)), 1..5),
            site in "[a-z]{1,5}",
            rolls_out in any::<bool>(),
        ) {
            let artifact = ArtifactRef {
                sha256: Digest::of(b"web"),
                size_bytes: 3,
                role: "web".parse().unwrap(),
                version: "1.0".parse().unwrap(),
                manifest: None,
            };
            let units = units.into_iter().map(|(name, (priority, runs, args))| DeploymentUnit {
                unit: name.parse().unwrap(),
                spec: Box::new(Spec::Yuno(YunoSpec { priority, args, ..YunoSpec::new(artifact.clone()) })),
                run: if runs { Run::Running } else { Run::Stopped },
            });
            let version = DeploymentVersion {
                deployment: "shop/till".parse().unwrap(),
                number: 3,
                parent: Some(Digest::of(b"2")),
                target: DeploymentTarget { select: format!("label.site={site}").parse().unwrap() },
                units: units.collect(),
                rollout: if rolls_out { policy::write(&policy::RolloutPolicy::default()) } else { Map::new() },
            };
            let document = write(&version);
            prop_assert_eq!(validator::check(&schema(), &document), [""; 0]);
            let (wanted, faults) = read(&document);
            prop_assert_eq!(faults, []);
            let wanted = wanted.unwrap();
            prop_assert_eq!((&wanted.deployment, &wanted.select), (&version.deployment, &version.target.select));
            prop_assert_eq!(&wanted.rollout, &version.rollout);
            let read = wanted.units.iter().map(|unit| DeploymentUnit {
                unit: unit.unit.clone(),
                spec: Box::new(unit.spec(Some(artifact.clone()), Vec::new(), &Manifest::default()).unwrap()),
                run: unit.run.unwrap(),
            });
            prop_assert_eq!(read.collect::<Vec<_>>(), version.units);
        }
    }
}

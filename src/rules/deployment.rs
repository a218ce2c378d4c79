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
//! A unit with `count: N` has N instances, which the console places on the hosts of the target; `placement` says on which:
//! `{select: …, spread: LABEL, max_per_host: N, reschedule: 30m}`.
//!
//! **Invariant: all faults are reported at once**, each with its place.
//!
//! **Invariant: [`read`] accepts what [`write()`] produces**, and yields the same version.

use std::collections::{BTreeMap, BTreeSet};

use jiff::tz::TimeZoneDatabase;
use muster_topics::{
    Millis,
    desired::{DeploymentName, DeploymentUnit, DeploymentVersion, INSTANCES_MAX, Placement},
    diagnostic::Diagnostic,
    name::{Name, UnitName},
    select::HostSelect,
    unit::{Run, UNITS_MAX},
};
use serde_json::{Map, Value, json};

use super::{
    document::{self, DocumentFault, DocumentKind, WantedUnit, from_value, unknown},
    rollout::{duration, policy},
    unknown_keys,
};

/// The least time after which instances of a host that is away move: shorter absences are common.
const RESCHEDULE_MIN_MS: Millis = 10_000;

/// A deployment as a document describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct WantedDeployment {
    /// Its name.
    pub deployment: DeploymentName,
    /// The hosts.
    pub select: HostSelect,
    /// The units, each once, without hosts, and each with what it should do.
    pub units: Vec<WantedUnit>,
    /// Of units with a number of instances, where these are placed.
    pub placements: BTreeMap<UnitName, Placement>,
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
        faults.add("", "expected a deployment, with `deployment`, `target` and `units`");
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
    let (units, placements) = units(whole, &mut faults);
    let wanted = deployment.zip(select).map(|(deployment, select)| WantedDeployment {
        deployment,
        select,
        units,
        placements,
        rollout,
    });
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
        faults.add("deployment", "it is required: the deployment's name, REALM/NAME");
        return None;
    };
    // As text first: the type of a name says of which kind it is only when it is parsed.
    let name = from_value::<String>(name).and_then(|name| name.parse().map_err(|error| format!("{error}")));
    faults.keep("deployment", name)
}

fn target(document: &Map<String, Value>, faults: &mut FaultList) -> Option<HostSelect> {
    const WANTED: &str = "expected the hosts, such as `target: {select: 'label.role=till'}`; `all` selects all";
    let Some(target) = document.get("target") else {
        faults.add("target", format!("it is required: {WANTED}"));
        return None;
    };
    let Value::Object(target) = target else {
        faults.add("target", WANTED);
        return None;
    };
    for key in target.keys().filter(|key| *key != "select") {
        if PLACED.contains(&key.as_str()) {
            faults.add(&format!("target.{key}"), "it belongs to a unit: `count: 3`, `placement: {spread: LABEL}`");
            continue;
        }
        faults.add(&format!("target.{key}"), unknown(&unknown_keys::nearest(key, ["select"].into_iter())));
    }
    let Some(select) = target.get("select") else {
        faults.add("target.select", format!("it is required: {WANTED}"));
        return None;
    };
    let select = if select == "all" { json!("host=*") } else { select.clone() };
    let select: HostSelect = faults.keep("target.select", from_value(&select))?;
    if select.asks_units() {
        faults.add(
            "target.select",
            "a target cannot depend on units, because the deployment changes them; select hosts by labels, facts, realms \
             or names",
        );
        return None;
    }
    Some(select)
}

const PLACED: [&str; 6] = ["count", "placement", "spread", "max_per_host", "reschedule", "instances"];

fn rollout(document: &Map<String, Value>, zones: &TimeZoneDatabase, faults: &mut FaultList) -> Map<String, Value> {
    let Some(given) = document.get("rollout").filter(|given| !given.is_null()) else { return Map::new() };
    let (policy, wrong) = policy::read(given, zones);
    faults.0.extend(wrong);
    policy.map(|policy| policy::write(&policy)).unwrap_or_default()
}

type UnitsRead = (Vec<WantedUnit>, BTreeMap<UnitName, Placement>);

fn units(document: &Map<String, Value>, faults: &mut FaultList) -> UnitsRead {
    // Without a valid name no realm is known; that has been reported, and shall not be repeated for each unit.
    let realm =
        document.get("deployment").and_then(Value::as_str).and_then(|name| name.split_once('/')?.0.parse().ok());
    let realm: Name = realm.unwrap_or_else(Name::default_realm);
    let listed: Vec<(String, &Value)> = match (document.get("units"), document.get("unit")) {
        (Some(_), Some(_)) => {
            faults.add("unit", "it replaces `units` with a single unit: use only one of both");
            return UnitsRead::default();
        }
        (None, None) => {
            faults.add("units", "it is required: a list of units");
            return UnitsRead::default();
        }
        (None, Some(unit)) => vec![("unit".to_owned(), unit)],
        (Some(Value::Array(units)), None) => {
            units.iter().enumerate().map(|(index, unit)| (format!("units.{index}"), unit)).collect()
        }
        (Some(_), None) => {
            faults.add("units", "expected a list of units");
            return UnitsRead::default();
        }
    };
    if listed.is_empty() {
        faults.add("units", "expected at least one; `muster deployment rm` removes a deployment with its units");
    }
    if listed.len() > UNITS_MAX {
        faults.add("units", format!("there are {}; a host can have at most {UNITS_MAX}", listed.len()));
        return UnitsRead::default();
    }
    let (mut found, mut names, mut placements) = (Vec::new(), BTreeSet::new(), BTreeMap::new());
    for (place, unit) in listed {
        if let Some((unit, placement)) = self::unit(&place, unit, &realm, faults) {
            if !names.insert(unit.unit.clone()) {
                faults.add(unit.unit.as_str(), "it is listed twice");
                continue;
            }
            placements.extend(placement.map(|placement| (unit.unit.clone(), placement)));
            found.push(unit);
        }
    }
    for (unit, placement) in &placements {
        if let Some(name) = names.iter().find(|name| is_instance(name, unit, placement.count)) {
            faults.add(name.as_str(), format!("an instance of {unit} has this name"));
        }
    }
    (found, placements)
}

/// Whether this is the name of an instance of a unit of which there are so many.
#[must_use]
pub fn is_instance(name: &UnitName, unit: &UnitName, count: u32) -> bool {
    let number = name.as_str().strip_prefix(unit.as_str()).and_then(|rest| rest.strip_prefix('-'));
    let number = number.and_then(|number| number.parse().ok());
    number.is_some_and(|number: u32| (1..=count).contains(&number) && unit.instance(number) == *name)
}

/// Takes out of a unit how many instances the console places, and where; `at` is the unit.
fn placement(unit: &mut Map<String, Value>, at: &str, faults: &mut FaultList) -> Option<Placement> {
    let (count, rules) = (unit.remove("count"), unit.remove("placement"));
    let none = Map::new();
    let rules = match &rules {
        None | Some(Value::Null) => &none,
        Some(Value::Object(rules)) => rules,
        Some(_) => {
            faults.add(&format!("{at}: placement"), "expected rules, such as {spread: site, max_per_host: 1}");
            &none
        }
    };
    if count.is_none() {
        if !rules.is_empty() {
            faults.add(&format!("{at}: placement"), "it needs `count`, the number of instances that are placed");
        }
        return None;
    }
    let known = ["select", "spread", "max_per_host", "reschedule"];
    for key in rules.keys().filter(|key| !known.contains(&key.as_str())) {
        faults.add(&format!("{at}: placement.{key}"), unknown(&unknown_keys::nearest(key, known.into_iter())));
    }
    let number = |value: &Value, least: u64| {
        let found = value.as_u64().filter(|number| (least..=u64::from(INSTANCES_MAX)).contains(number));
        let found = found.and_then(|number| u32::try_from(number).ok());
        found.ok_or_else(|| format!("expected a number from {least} to {INSTANCES_MAX}"))
    };
    let count = faults.keep(&format!("{at}: count"), number(count.as_ref()?, 0));
    let rule = |key: &str| {
        let value = rules.get(key).filter(|value| !value.is_null());
        value.map(|value| (format!("{at}: placement.{key}"), value))
    };
    let (select, spread, max, reschedule) = (rule("select"), rule("spread"), rule("max_per_host"), rule("reschedule"));
    let select: Option<HostSelect> = select.and_then(|(at, value)| {
        let select: HostSelect = faults.keep(&at, from_value(value))?;
        if select.asks_units() {
            faults.add(&at, "a placement cannot depend on units; select hosts by labels, facts, realms or names");
        }
        Some(select)
    });
    let spread = spread.and_then(|(at, value)| faults.keep(&at, from_value(value)));
    let max_per_host = max.and_then(|(at, value)| faults.keep(&at, number(value, 1)));
    let reschedule_ms: Option<Millis> = reschedule.and_then(|(at, value)| {
        let read = value.as_str().and_then(duration::read).filter(|time_ms| *time_ms >= RESCHEDULE_MIN_MS);
        let least = duration::write(RESCHEDULE_MIN_MS);
        faults.keep(&at, read.ok_or_else(|| format!("expected a duration of at least {least}, such as 30m")))
    });
    Some(Placement { count: count?, select, spread, max_per_host, reschedule_ms })
}

/// Reads one unit; `place` is where it stands.
fn unit(place: &str, unit: &Value, realm: &Name, faults: &mut FaultList) -> Option<(WantedUnit, Option<Placement>)> {
    let Value::Object(given) = unit else {
        faults.add(place, "expected a unit, such as {name: till, artifact: till@2.4.0}");
        return None;
    };
    let mut fields = given.clone();
    let short = fields.remove("name");
    if short.is_some() && fields.contains_key("unit") {
        faults.add(&format!("{place}.name"), "it is the same as `unit`: use only one of both");
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
        faults.add(&format!("{at}: transient"), "a unit for one run cannot be part of a deployment");
    }
    let kind = fields.get("kind").and_then(Value::as_str).unwrap_or("yuno").to_owned();
    let placement = placement(&mut fields, &at, faults);
    let (wanted, wrong) = document::read_unit(&fields, None);
    let is_named = fields.get("unit").is_some_and(Value::is_string);
    faults.0.extend(wrong.into_iter().map(|fault| match is_named {
        true => fault,
        false => DocumentFault { at: format!("{place}: {}", fault.at), ..fault },
    }));
    let mut wanted = wanted?;
    wanted.run.get_or_insert(Run::Running);
    if let Some(placement) = &placement {
        if !["yuno", "container"].contains(&kind.as_str()) {
            faults.add(
                &format!("{at}: count"),
                "only yunos and containers can be placed: a host has files and packages only once",
            );
        }
        let last = wanted.unit.instance(placement.count);
        if last.as_str().parse::<UnitName>().is_err() {
            faults.add(&format!("{at}: count"), format!("{last} would be too long for a unit's name"));
        }
    }
    Some((wanted, placement))
}

#[derive(Default)]
struct FaultList(Vec<DocumentFault>);

impl FaultList {
    fn add(&mut self, at: &str, diagnostic: impl Into<Diagnostic>) {
        self.0.push(DocumentFault { at: at.to_owned(), diagnostic: diagnostic.into() });
    }

    fn keep<T>(&mut self, at: &str, result: Result<T, impl Into<Diagnostic>>) -> Option<T> {
        result.map_err(|message| self.add(at, message)).ok()
    }
}

/// Writes the document of an existing version. Secrets are masked; a mask stands for the existing value.
#[must_use]
pub fn write(version: &DeploymentVersion) -> Value {
    let fields = |unit: &DeploymentUnit| {
        let mut fields = document::fields_to_write(&unit.unit, &unit.spec, unit.run);
        if let Some(placement) = &unit.placement {
            fields.extend(placement_fields(placement));
        }
        fields
    };
    let units: Vec<Map<String, Value>> = version.units.iter().map(fields).collect();
    let mut document = json!({ "deployment": version.deployment, "target": version.target, "units": units });
    if !version.rollout.is_empty() {
        document["rollout"] = Value::Object(version.rollout.clone());
    }
    document
}

/// Returns the keys of a unit that say how its instances are placed.
#[must_use]
pub fn placement_fields(placement: &Placement) -> Map<String, Value> {
    let Placement { count, select, spread, max_per_host, reschedule_ms } = placement;
    let rules: [(&str, Option<Value>); 4] = [
        ("select", select.as_ref().map(|select| select.to_string().into())),
        ("spread", spread.as_ref().map(|label| label.as_str().into())),
        ("max_per_host", max_per_host.map(Into::into)),
        ("reschedule", reschedule_ms.map(|time_ms| duration::write(time_ms).into())),
    ];
    let rules: Map<String, Value> =
        rules.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
    let mut fields = Map::from_iter([("count".to_owned(), (*count).into())]);
    if !rules.is_empty() {
        fields.insert("placement".to_owned(), rules.into());
    }
    fields
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
        if matches!(kind, DocumentKind::Yuno | DocumentKind::Container) {
            properties.extend(placement_schema());
        }
    }
    if let Some(required) = schema["required"].as_array_mut() {
        required.retain(|key| key != "unit");
    }
    schema["oneOf"] = json!([{ "required": ["name"] }, { "required": ["unit"] }]);
    schema["description"] = about.into();
    without(schema, &["$schema", "$defs", "title"])
}

fn placement_schema() -> [(String, Value); 2] {
    let of = |schema: schemars::Schema| without(schema.to_value(), &["$schema"]);
    let count = json!({
        "description": "How many instances the console places on hosts of the target; without it each host has the unit.",
        "type": "integer", "minimum": 0, "maximum": INSTANCES_MAX,
    });
    let placement = json!({
        "description": "Where the instances are placed.",
        "type": ["object", "null"],
        "properties": {
            "select": of(schemars::schema_for!(HostSelect)),
            "spread": of(schemars::schema_for!(Name)),
            "max_per_host": { "description": "The most on one host.", "type": "integer", "minimum": 1, "maximum": INSTANCES_MAX },
            "reschedule": {
                "description": "How long a host may be away before its instances move, such as 30m; without it they never move.",
                "type": "string",
            },
        },
        "additionalProperties": false,
    });
    [("count".to_owned(), count), ("placement".to_owned(), placement)]
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
        desired::DeploymentTarget,
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
            assert!(
                fault.at == *at && fault.diagnostic.cause.contains(message),
                "{fault:?} instead of {at}: {message}"
            );
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
        check_faults(&json!([]), &[("", "expected a deployment")]);
        check_faults(
            &json!({}),
            &[("deployment", "is required"), ("target", "label.role=till"), ("units", "is required")],
        );
        check_faults(
            &json!({
                "deployment": "till", "taget": 1, "hosts": ["anna"], "target": {"selekt": "host=*", "count": 3},
                "rollout": {"wave": [1], "soak": "2"}, "unit": {}, "units": [],
            }),
            &[
                ("hosts", "`target: {select"),
                ("taget", "`target`"),
                ("deployment", "expected REALM/NAME"),
                ("target.count", "belongs to a unit"),
                ("target.selekt", "`select`"),
                ("target.select", "is required"),
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
                ("shop/a: artifact", "is required"),
                ("shop/a: grace_ms", "expected u64"),
                ("units.1: unit", "is required"),
                ("units.2", "expected a unit"),
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
        check_faults(&with("rollout", json!("slow")), &[("rollout", "expected a policy")]);
        check_faults(&with("units", json!({})), &[("units", "a list")]);
        check_faults(&with("units", json!([])), &[("units", "`muster deployment rm`")]);
        let many: Vec<Value> =
            (0..257).map(|number| json!({"name": format!("u{number}"), "artifact": "web"})).collect();
        check_faults(&with("units", json!(many)), &[("units", "257")]);
        check_faults(&with("units", json!(many[..256])), &[]);
    }

    #[test]
    fn placement_is_read_with_its_faults() {
        let with = |units: Value| json!({"deployment": "shop/web", "target": {"select": "host=*"}, "units": units});
        let placement = json!({"select": "label.a=b", "spread": "site", "max_per_host": 2, "reschedule": "30m"});
        let document = with(json!([{"name": "web", "artifact": "web", "count": 3, "placement": placement}]));
        check_faults(&document, &[]);
        assert_eq!(validator::check(&schema(), &document), []);
        let placements = read(&document).0.unwrap().placements;
        let of = &placements[&"shop/web".parse().unwrap()];
        assert_eq!((of.count, of.max_per_host, of.reschedule_ms), (3, Some(2), Some(1_800_000)));
        assert_eq!(Value::Object(placement_fields(of)), json!({"count": 3, "placement": placement}));
        let rules = json!({"select": "unit.phase=failed", "spred": "site", "max_per_host": 0, "reschedule": "1s"});
        let long = "w".repeat(62);
        check_faults(
            &with(json!([
                {"name": "a", "artifact": "web", "count": 10_001, "placement": rules},
                {"name": "b", "artifact": "web", "placement": {"spread": "site"}},
                {"name": "c", "artifact": "web", "count": 3}, {"name": "c-3", "artifact": "web"},
                {"name": "c-4", "artifact": "web"}, {"name": "c-03", "artifact": "web"},
                {"name": "d", "kind": "packages", "count": 2, "present": ["jq"]},
                {"name": long, "artifact": "web", "count": 2},
            ])),
            &[
                ("shop/a: placement.spred", "`spread`"),
                ("shop/a: count", "from 0 to 10000"),
                ("shop/a: placement.select", "cannot depend on units"),
                ("shop/a: placement.max_per_host", "from 1"),
                ("shop/a: placement.reschedule", "at least 10s"),
                ("shop/b: placement", "needs `count`"),
                ("shop/d: count", "only yunos and containers"),
                (&format!("shop/{long}: count"), "too long"),
                ("shop/c-3", "an instance of shop/c"),
            ],
        );
    }

    #[test]
    fn document_of_a_unit_gets_a_hint() {
        for document in [json!({"unit": "a/b", "artifact": "web"}), json!({"hosts": ["a"], "units": [{"unit": "a/b"}]})]
        {
            let (wanted, faults) = read(&document);
            assert!(wanted.is_none() && faults.len() == 1, "{faults:?}");
            assert!(faults[0].diagnostic.cause.contains("`muster unit apply`"), "{faults:?}");
        }
    }

    #[test]
    fn schema_accepts_what_is_read_and_refuses_what_is_not() {
        let schema = schema();
        validator::check_schema(&schema).unwrap();
        assert_eq!(validator::check(&schema, &till()), []);
        let mut wrong = till();
        wrong["units"][0]["hosts"] = json!(["anna"]);
        assert_ne!(validator::check(&schema, &wrong), []);
        let mut wrong = till();
        wrong["target"]["count"] = json!(3);
        assert_ne!(validator::check(&schema, &wrong), []);
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
            let spec = |priority, args| {
                let mut yuno = YunoSpec::new(artifact.clone());
                (yuno.common.priority, yuno.program.args) = (priority, args);
                Box::new(Spec::Yuno(yuno))
            };
            let units = units.into_iter().map(|(name, (priority, runs, args))| DeploymentUnit {
                unit: name.parse().unwrap(),
                spec: spec(priority, args),
                run: if runs { Run::Running } else { Run::Stopped },
                placement: runs.then(|| Placement {
                    count: u32::from(priority),
                    select: None,
                    spread: (priority > 3).then(|| "site".parse().unwrap()),
                    max_per_host: (priority > 5).then_some(2),
                    reschedule_ms: (priority > 7).then_some(90_000),
                }),
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
            prop_assert_eq!(validator::check(&schema(), &document), []);
            let (wanted, faults) = read(&document);
            prop_assert_eq!(faults, []);
            let wanted = wanted.unwrap();
            prop_assert_eq!((&wanted.deployment, &wanted.select), (&version.deployment, &version.target.select));
            prop_assert_eq!(&wanted.rollout, &version.rollout);
            let read = wanted.units.iter().map(|unit| DeploymentUnit {
                unit: unit.unit.clone(),
                spec: Box::new(unit.spec(Some(artifact.clone()), Vec::new(), &Manifest::default()).unwrap()),
                run: unit.run.unwrap(),
                placement: wanted.placements.get(&unit.unit).cloned(),
            });
            prop_assert_eq!(read.collect::<Vec<_>>(), version.units);
        }
    }
}

//! Reads the body of a document, as a host does and the console before it sends one.

use std::collections::{BTreeMap, BTreeSet};

use muster_topics::{
    canonical::{self, Part},
    desired::{DEPLOYMENTS_MAX, DeploymentName, DesiredBody, DesiredDeployment, VARS_MAX},
    name::{Name, UnitName},
    outcome::RefusalCode,
    unit::UNITS_MAX,
};
use serde::Deserialize;
use serde_json::Value;

use super::body::{DeploymentObstacle, HeldBack, shortened};
use crate::CommandRefusal;

/// A body as a host has read it.
///
/// **Invariant: a value that cannot be read stops nothing but what it is part of**: a deployment is refused, and its units
/// stay as they are; a variable is missing, as if nobody had set it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostBody {
    /// What can be read.
    pub body: DesiredBody,
    /// The deployments that cannot be read.
    pub unreadable: Vec<UnreadableDeployment>,
    /// The variables that cannot be read, each with the reason.
    pub unreadable_vars: BTreeMap<String, String>,
}

/// A deployment of a body that this host cannot read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableDeployment {
    /// The deployment.
    pub deployment: DeploymentName,
    /// The number of its version.
    pub number: u32,
    /// Why.
    pub reason: String,
}

impl UnreadableDeployment {
    /// Why none of its units is applied.
    #[must_use]
    pub fn obstacle(&self) -> DeploymentObstacle {
        CommandRefusal::new(RefusalCode::Invalid, self.reason.clone()).into()
    }
}

impl From<DesiredBody> for HostBody {
    fn from(body: DesiredBody) -> Self {
        Self { body, ..Self::default() }
    }
}

impl HostBody {
    /// Returns why some part of it cannot be read, if any cannot.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let deployment = self.unreadable.first().map(|one| format!("{}: {}", one.deployment, one.reason));
        deployment
            .or_else(|| self.unreadable_vars.first_key_value().map(|(name, why)| format!("the variable {name}: {why}")))
    }

    /// The deployments that stay as they are whatever the body says: those that wait, and those that cannot be read.
    pub(super) fn unchanged(&self, held_back: &HeldBack) -> HeldBack {
        held_back.iter().chain(self.unreadable.iter().map(|one| &one.deployment)).cloned().collect()
    }
}

/// Reads a body whose digest was verified.
///
/// # Errors
/// If it is no body that this host can take, as a whole; with the reason.
pub fn read(bytes: &[u8]) -> Result<HostBody, String> {
    let unreadable = |error: String| format!("the document cannot be read by this version of the agent: {error}");
    let (mut value, mut faults) = canonical::parse_parts(bytes).map_err(|error| unreadable(error.to_string()))?;
    let mut host = HostBody::default();
    let mut fault = |key: &str, item: &str| faults.remove(&Part { key: key.to_owned(), item: Some(item.to_owned()) });
    let (mut deployments, mut vars) = (Vec::new(), BTreeMap::new());
    for (place, one) in taken(&mut value, "deployments", Value::as_array_mut).into_iter().flatten().enumerate() {
        match readable(&one, fault("deployments", &place.to_string())) {
            Ok(deployment) => deployments.push(deployment),
            Err(reason) => host.unreadable.push(unreadable_deployment(&one, reason).map_err(unreadable)?),
        }
    }
    for (name, one) in taken(&mut value, "vars", Value::as_object_mut).into_iter().flatten() {
        match (name.parse::<Name>(), fault("vars", &name)) {
            (Ok(name), None) => drop(vars.insert(name, one)),
            (Err(error), _) => drop(host.unreadable_vars.insert(name, error.to_string())),
            (_, Some(reason)) => drop(host.unreadable_vars.insert(name, reason)),
        }
    }
    if let Some((part, reason)) = faults.first_key_value() {
        return Err(unreadable(format!("{}: {reason}", part.key)));
    }
    let rest: DesiredBody = serde_json::from_value(value).map_err(|error| unreadable(error.to_string()))?;
    host.body = DesiredBody { deployments, vars, ..rest };
    check(&host)?;
    Ok(host)
}

/// Takes a list or map out of a body, if it is one; otherwise it stays, for its type to be refused.
fn taken<T: Default>(body: &mut Value, key: &str, of: fn(&mut Value) -> Option<&mut T>) -> Option<T> {
    body.get_mut(key).and_then(of).map(std::mem::take)
}

fn readable(one: &Value, fault: Option<String>) -> Result<DesiredDeployment, String> {
    match fault {
        Some(reason) => Err(reason),
        None => DesiredDeployment::deserialize(one).map_err(|error| error.to_string()),
    }
}

/// Names a deployment that cannot be read.
fn unreadable_deployment(one: &Value, reason: String) -> Result<UnreadableDeployment, String> {
    let version = one.get("version");
    let name = version.and_then(|version| version.get("deployment")?.as_str()?.parse().ok());
    let number = version.and_then(|version| u32::try_from(version.get("number")?.as_u64()?).ok());
    match name.zip(number) {
        Some((deployment, number)) => {
            let reason = shortened(format!("this version of the agent cannot read it: {reason}")).cause;
            Ok(UnreadableDeployment { deployment, number, reason })
        }
        None => Err(format!("a deployment without a name: {reason}")),
    }
}

fn check(host: &HostBody) -> Result<(), String> {
    let body = &host.body;
    let count = |what: &str, count: usize, max: usize| match count > max {
        true => Err(format!("the document has {count} {what}; a host takes at most {max}")),
        false => Ok(()),
    };
    count("deployments", body.deployments.len() + host.unreadable.len(), DEPLOYMENTS_MAX)?;
    count("variables", body.vars.len() + host.unreadable_vars.len(), VARS_MAX)?;
    let units: Vec<UnitName> =
        body.deployments.iter().flat_map(DesiredDeployment::units).map(|(unit, _)| unit).collect();
    count("units", units.len(), UNITS_MAX)?;
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    if let Some(twice) = host.unreadable.iter().find(|one| !seen.insert(one.deployment.as_str())) {
        return Err(format!("the document has the deployment {} twice", twice.deployment));
    }
    for DesiredDeployment { version, secrets, instances, .. } in &body.deployments {
        let deployment = &version.deployment;
        if !seen.insert(deployment.as_str()) {
            return Err(format!("the document has the deployment {deployment} twice"));
        }
        let is_listed = |unit: &&UnitName| !version.units.iter().any(|listed| listed.unit == **unit);
        if let Some(unit) = secrets.keys().find(is_listed) {
            return Err(format!("the document has secrets for {unit}, which {deployment} does not list"));
        }
        for (unit, numbers) in instances {
            let listed = version.units.iter().find(|listed| listed.unit == *unit);
            let count = listed.and_then(|listed| listed.placement.as_ref()).map_or(0, |placement| placement.count);
            if let Some(number) = numbers.iter().find(|number| !(1..=count).contains(*number)) {
                return Err(format!("the document has instance {number} of {unit}, of which {deployment} has {count}"));
            }
        }
    }
    let mut seen = BTreeSet::new();
    if let Some(twice) = units.iter().find(|unit| !seen.insert(*unit)) {
        return Err(format!("the document has the unit {twice} twice"));
    }
    let mut seen = BTreeSet::new();
    if let Some(twice) = body.remove.iter().find(|removal| !seen.insert(&removal.unit)) {
        return Err(format!("the document removes the unit {} twice", twice.unit));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use muster_topics::name::Digest;
    use serde_json::json;

    use super::*;

    fn listed(name: &str) -> Value {
        let artifact = json!({"sha256": Digest::of(b"a"), "size_bytes": 1, "role": "a", "version": "1"});
        json!({"unit": name, "spec": {"kind": "yuno", "artifact": artifact}, "run": "running"})
    }

    fn deployment(name: &str, units: &[&str]) -> Value {
        let units: Vec<Value> = units.iter().map(|unit| listed(unit)).collect();
        json!({"version": {
            "deployment": name, "number": 1, "target": {"select": "label.a=b"}, "units": units
        }, "asked_by": {"operator": "admin", "role": "admin"}})
    }

    fn body(deployments: &[Value], remove: &[(&str, &str)]) -> Value {
        let remove: Vec<Value> =
            remove.iter().map(|(unit, of)| json!({"unit": unit, "deployment": of, "version": 1})).collect();
        json!({"v": 1, "deployments": deployments, "remove": remove})
    }

    #[track_caller]
    fn refused(body: &[u8], words: &str) {
        let why = read(body).unwrap_err();
        assert!(why.contains(words), "{why}");
    }

    #[test]
    fn body_that_is_not_understood_wholly_is_refused() {
        refused(b"", "cannot be read");
        refused(b"\xff", "cannot be read");
        refused(br#"{"v":1,"deployments":[]"#, "cannot be read");
        refused(br#"{"v":1,"v":1}"#, "cannot be read");
        refused(br#"{"v":1,"surprise":1}"#, "surprise");
        let check = |body: &Value, words| refused(&serde_json::to_vec(body).unwrap(), words);
        check(&body(&[deployment("d/x", &["d/a"]), deployment("d/x", &["d/b"])], &[]), "deployment d/x twice");
        check(&body(&[deployment("d/x", &["d/a"]), deployment("d/y", &["d/a"])], &[]), "unit d/a twice");
        check(&body(&[], &[("d/a", "d/x"), ("d/a", "d/y")]), "removes the unit d/a twice");
        let mut secrets = deployment("d/x", &["d/a"]);
        secrets["secrets"] = json!({"d/b": []});
        check(&body(&[secrets], &[]), "secrets for d/b");
        let names: Vec<String> = (0..=UNITS_MAX).map(|n| format!("d/u{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        check(&body(&[deployment("d/x", &names)], &[]), "257 units");
        let many: Vec<Value> = (0..=DEPLOYMENTS_MAX).map(|n| deployment(&format!("d/u{n}"), &[])).collect();
        check(&body(&many, &[]), "257 deployments");
        let vars: serde_json::Map<String, Value> = (0..=VARS_MAX).map(|n| (format!("v{n}"), json!(n))).collect();
        check(&json!({"v": 1, "vars": vars}), "257 variables");
    }

    #[test]
    fn unreadable_value_stops_only_what_it_is_part_of() {
        let deep = ["[".repeat(100), "]".repeat(100)].concat();
        for bad in ["18446744073709551616", "1e300", r#"{"a": 1, "a": 2}"#, &deep] {
            let mut broken = deployment("d/x", &["d/a"]).to_string();
            broken = broken.replacen("\"select\"", &format!("\"more\":{bad},\"select\""), 1);
            let good = deployment("d/y", &["d/b"]);
            let text = format!(r#"{{"v":1,"deployments":[{broken},{good}],"vars":{{"bad":{bad},"good":1}}}}"#);
            let host = read(text.as_bytes()).unwrap();
            let names: Vec<&str> = host.body.deployments.iter().map(|one| one.version.deployment.as_str()).collect();
            assert_eq!((names, host.body.vars.len()), (vec!["d/y"], 1), "{bad}");
            let unreadable = host.unreadable.iter().map(|one| (one.deployment.as_str(), one.number));
            assert_eq!(unreadable.collect::<Vec<_>>(), [("d/x", 1)], "{bad}");
            assert_eq!(host.unreadable_vars.keys().collect::<Vec<_>>(), ["bad"], "{bad}");
            assert!(host.fault().is_some_and(|fault| fault.starts_with("d/x: ")), "{:?}", host.fault());
            // What a document says of itself, or of what is to go, has no part that could be left out.
            refused(format!(r#"{{"v":1,"remove":[{bad}]}}"#).as_bytes(), "cannot be read");
        }
        let mut nameless = deployment("d/x", &["d/a"]);
        nameless["version"]["deployment"] = json!(7);
        refused(body(&[nameless], &[]).to_string().as_bytes(), "without a name");
        let twice = body(
            &[
                json!({"version": {"deployment": "d/x", "number": 1}, "asked_by": {"operator": "admin", "role": "admin"}}),
                deployment("d/x", &[]),
            ],
            &[],
        );
        refused(twice.to_string().as_bytes(), "deployment d/x twice");
    }
}

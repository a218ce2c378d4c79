//! Endpoints: leases ports to units, and wires their connectors.
//!
//! A lease is given in the same transaction as the edit that needs it, so there is no unit without its ports, and
//! nothing half done if none is free. It lasts as long as the unit has an endpoint of that name, also when
//! its realm gets other ports.
//!
//! **Invariant: a port of a protocol is leased once on a host**, whatever the realm, because two addresses may be the same.
//!
//! The wiring of a unit follows from leases, realms and specs alone ([`wire`]), and is computed again after
//! each change of these. A unit that lacks something is held until it is there. A unit provides an endpoint whether it
//! runs or not, because two units may need each other.

use std::collections::{BTreeMap, BTreeSet};

use muster_topics::{
    common::ProgramSpec,
    container::ContainerSpec,
    diagnostic::Diagnostic,
    endpoint::{Connector, ENDPOINTS_MAX, Endpoint, Needed, Protocol, Provided},
    name::{Name, UnitName},
    outcome::RefusalCode,
    realm::PortRange,
    unit::{Spec, YunoSpec},
};
use serde::{Deserialize, Serialize};

use super::{
    CommandRefusal,
    placeholder::{self, Placeholder},
    realm::Realms,
};

/// A port that a unit was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortLease {
    /// The unit.
    pub unit: UnitName,
    /// The name of its endpoint.
    pub name: Name,
    /// The endpoint's protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
}

impl PortLease {
    /// Whether this lease fits what a unit provides.
    #[must_use]
    pub fn is_for(&self, provided: &Provided) -> bool {
        let has_port = provided.port.is_none_or(|port| port == self.port);
        self.name == provided.name && self.protocol == provided.protocol && has_port
    }
}

/// Where a unit listens, and how it reaches the endpoints that it requires.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointWiring {
    /// Where it listens.
    #[serde(default)]
    pub endpoints: Vec<Endpoint>,
    /// How it reaches the endpoints that it requires.
    #[serde(default)]
    pub connectors: Vec<Connector>,
}

impl EndpointWiring {
    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty() && self.connectors.is_empty()
    }

    /// Returns the environment variables for the process.
    #[must_use]
    pub fn variables(&self) -> Vec<(String, String)> {
        let mut variables = Vec::new();
        for endpoint in &self.endpoints {
            let name = variable(&endpoint.name);
            variables.push((format!("MUSTER_PORT_{name}"), endpoint.port.to_string()));
            variables.push((format!("MUSTER_ADDRESS_{name}"), endpoint.address.to_string()));
        }
        for connector in &self.connectors {
            variables.push((format!("MUSTER_ENDPOINT_{}", variable(&connector.name)), socket(connector)));
        }
        variables
    }

    /// Fills the placeholders of an argument ([`placeholder`]). An optional endpoint that does not exist becomes an
    /// empty text, and so does a missing config.
    #[must_use]
    pub fn fill(&self, arg: &str, config: Option<&str>) -> String {
        placeholder::fill(arg, |Placeholder { what, name }| {
            let endpoint = |name: &str| self.endpoints.iter().find(|endpoint| endpoint.name.as_str() == name);
            let connector = |name: &str| self.connectors.iter().find(|connector| connector.name.as_str() == name);
            let value = match (*what, *name) {
                ("config", None) => config.map(str::to_owned),
                ("port", Some(name)) => endpoint(name).map(|endpoint| endpoint.port.to_string()),
                ("address", Some(name)) => endpoint(name).map(|endpoint| endpoint.address.to_string()),
                ("endpoint", Some(name)) => connector(name).map(socket),
                // The check of the spec refuses others.
                _ => return None,
            };
            Some(value.unwrap_or_default())
        })
    }

    /// Adds it to a unit's configuration, under `endpoints` and `connectors`.
    ///
    /// # Errors
    /// If the configuration is not an object.
    pub fn put_into(&self, config: &mut serde_json::Value) -> Result<(), String> {
        let Some(config) = config.as_object_mut() else {
            return Err("the unit's endpoints cannot be added to its config, because that is not an object".to_owned());
        };
        let by_name = |name: &Name, value: serde_json::Result<serde_json::Value>| Some((name.to_string(), value.ok()?));
        let endpoints: serde_json::Map<_, _> =
            self.endpoints.iter().filter_map(|end| by_name(&end.name, serde_json::to_value(end))).collect();
        let connectors: serde_json::Map<_, _> =
            self.connectors.iter().filter_map(|end| by_name(&end.name, serde_json::to_value(end))).collect();
        for (key, entries) in [("endpoints", endpoints), ("connectors", connectors)] {
            if entries.is_empty() {
                continue;
            }
            match config.get_mut(key).and_then(serde_json::Value::as_object_mut) {
                Some(there) => there.extend(entries),
                None => drop(config.insert(key.to_owned(), entries.into())),
            }
        }
        Ok(())
    }
}

/// Formats an endpoint's name as part of a variable's name.
fn variable(name: &Name) -> String {
    name.as_str().to_uppercase().replace('-', "_")
}

fn socket(connector: &Connector) -> String {
    core::net::SocketAddr::new(connector.address, connector.port).to_string()
}

/// The parts of a spec that concern endpoints.
#[derive(Clone, Copy, Debug)]
pub struct SpecEndpoints<'a> {
    provides: &'a [Provided],
    needs: &'a [Needed],
    args: &'a [String],
    env: &'a BTreeMap<String, String>,
    /// Whether it may have a config.
    configured: bool,
}

impl<'a> SpecEndpoints<'a> {
    /// Creates those of a unit of which no more is known; a `configured` one may have a config.
    #[must_use]
    pub fn new(provides: &'a [Provided], needs: &'a [Needed], configured: bool) -> Self {
        Self { provides, needs, args: &[], env: &NO_ENV, configured }
    }
}

impl<'a> From<&'a Spec> for SpecEndpoints<'a> {
    fn from(spec: &'a Spec) -> Self {
        match spec {
            Spec::Yuno(spec) => spec.into(),
            Spec::Container(spec) => spec.into(),
            Spec::Files(_) | Spec::Packages(_) => {
                Self { provides: &[], needs: &[], args: &[], env: spec.env(), configured: false }
            }
        }
    }
}

static NO_ENV: BTreeMap<String, String> = BTreeMap::new();

impl<'a> From<&'a YunoSpec> for SpecEndpoints<'a> {
    fn from(spec: &'a YunoSpec) -> Self {
        let ProgramSpec { provides, needs, args, env, render, .. } = &spec.program;
        // Arguments of a program in an existing container are passed unchanged. What templates say is known when they are
        // rendered.
        let args = if spec.container.is_some() || *render { &[][..] } else { args };
        let env = if *render { &NO_ENV } else { env };
        Self { provides, needs, args, env, configured: true }
    }
}

impl<'a> From<&'a ContainerSpec> for SpecEndpoints<'a> {
    fn from(spec: &'a ContainerSpec) -> Self {
        let ProgramSpec { provides, needs, args, env, render, .. } = &spec.program;
        let (args, env) = if *render { (&[][..], &NO_ENV) } else { (&args[..], env) };
        Self { provides, needs, args, env, configured: false }
    }
}

/// Returns everything that is wrong with the endpoints that a unit provides and requires.
#[must_use]
pub fn check<'a>(spec: impl Into<SpecEndpoints<'a>>) -> Vec<Diagnostic> {
    let spec = spec.into();
    let mut wrong = Vec::new();
    let provided: Vec<&Name> = spec.provides.iter().map(|provided| &provided.name).collect();
    let needed: Vec<&Name> = spec.needs.iter().map(|needed| &needed.name).collect();
    for (what, names) in [("provides", &provided), ("needs", &needed)] {
        if names.len() > ENDPOINTS_MAX {
            wrong.push(format!("{what} has {} endpoints; at most {ENDPOINTS_MAX} are allowed", names.len()).into());
        }
        let mut seen: BTreeMap<String, &Name> = BTreeMap::new();
        for name in names {
            match seen.insert(variable(name), name) {
                Some(other) if other == *name => wrong.push(format!("{what} has {name} twice").into()),
                Some(other) => {
                    wrong.push(format!("{what}: {other} and {name} would be one variable of the environment").into());
                }
                None => {}
            }
        }
    }
    let mut ports = BTreeSet::new();
    for Provided { name, port, protocol, .. } in spec.provides {
        match port {
            Some(0) => wrong.push(
                Diagnostic::new(format_args!("provides: {name} has port 0, which is not a port"))
                    .with_hint("leave the port out"),
            ),
            Some(port) if !ports.insert((*protocol, *port)) => {
                wrong.push(format!("provides: two endpoints have {protocol} port {port}").into());
            }
            _ => {}
        }
    }
    for (place, wrong_one) in wrong_placeholders(spec.args, spec) {
        wrong.push(Diagnostic { cause: format!("argument {place} has {}", wrong_one.cause), ..wrong_one });
    }
    for (name, value) in spec.env {
        let known = |one: &Placeholder<'_>| one.name.is_some() == (one.what != "config") && WHATS.contains(&one.what);
        if let Some(one) = placeholder::all(value).into_iter().find(known) {
            wrong.push(
                Diagnostic::new(format_args!("env.{name} has {one}, and only arguments may have placeholders"))
                    .with_hint(format_args!(
                        "its process finds {} in its environment",
                        match one.name {
                            None => "MUSTER_CONFIG".to_owned(),
                            Some(of) =>
                                format!("MUSTER_{}_{}", one.what.to_uppercase(), of.to_uppercase().replace('-', "_")),
                        }
                    )),
            );
        }
    }
    wrong
}

/// The kinds of placeholders.
const WHATS: [&str; 4] = ["config", "port", "address", "endpoint"];

/// Returns placeholders that are unknown or name no endpoint of the unit: the number of the word (from 1), and what is
/// wrong.
#[must_use]
pub fn wrong_placeholders<'b>(words: &[String], spec: impl Into<SpecEndpoints<'b>>) -> Vec<(usize, Diagnostic)> {
    let spec = spec.into();
    let provided = |name: &str| spec.provides.iter().any(|provided| provided.name.as_str() == name);
    let needed = |name: &str| spec.needs.iter().any(|needed| needed.name.as_str() == name);
    let why = |one: &Placeholder<'_>| match (one.what, one.name) {
        ("config", None) if spec.configured => None,
        ("port" | "address", Some(name)) if provided(name) => None,
        ("endpoint", Some(name)) if needed(name) => None,
        ("port" | "address", Some(name)) => Some(format!("{one}, and provides has no {name}").into()),
        ("endpoint", Some(name)) => Some(format!("{one}, and needs has no {name}").into()),
        _ => {
            let config = if spec.configured { "{config}, " } else { "" };
            Some(Diagnostic::new(format_args!("{one}, which is an unknown placeholder")).with_hint(format_args!(
                "there are {config}{{port:NAME}}, {{address:NAME}} and {{endpoint:NAME}}; {{{one}}} is \
                 the text {one} itself"
            )))
        }
    };
    let of_word = |(place, word): (usize, &String)| {
        let wrong: Vec<Diagnostic> = placeholder::all(word).iter().filter_map(why).collect();
        wrong.into_iter().map(move |wrong| (place, wrong))
    };
    (1..).zip(words).flat_map(of_word).collect()
}

/// Returns the leases of a unit: existing ones, and new ones for endpoints without one. `leases` are all leases of the
/// host. `is_free` is asked before a port is leased for the first time, unless the spec chose the port: then the unit's
/// running instance may well be using it.
///
/// # Errors
/// If a port belongs to another unit, or the range has no free port left.
pub fn assign(
    unit: &UnitName,
    provides: &[Provided],
    leases: &[PortLease],
    range: PortRange,
    mut is_free: impl FnMut(&Provided, u16) -> bool,
) -> Result<Vec<PortLease>, CommandRefusal> {
    let (own, others): (Vec<&PortLease>, Vec<&PortLease>) = leases.iter().partition(|lease| lease.unit == *unit);
    let mut taken: BTreeMap<(Protocol, u16), &UnitName> =
        others.iter().map(|lease| ((lease.protocol, lease.port), &lease.unit)).collect();
    for Provided { protocol, port, .. } in provides {
        let Some(port) = port else { continue };
        if let Some(other) = taken.insert((*protocol, *port), unit).filter(|other| *other != unit) {
            let message = Diagnostic::new(format_args!("{protocol} port {port} is leased to {other}"))
                .with_hint("leave the port out, to be leased a free one");
            return Err(CommandRefusal::new(RefusalCode::Conflict, message));
        }
    }
    let mut given: Vec<PortLease> = Vec::new();
    let lease = |provided: &Provided, port| PortLease {
        unit: unit.clone(),
        name: provided.name.clone(),
        protocol: provided.protocol,
        port,
    };
    // Existing leases go first, so that no new endpoint takes their ports.
    let kept = |provided: &Provided| {
        let same = |lease: &&&PortLease| lease.name == provided.name && lease.protocol == provided.protocol;
        own.iter().find(same).map(|lease| lease.port)
    };
    for provided in provides {
        let port =
            provided.port.or_else(|| kept(provided).filter(|port| !taken.contains_key(&(provided.protocol, *port))));
        if let Some(port) = port {
            taken.insert((provided.protocol, port), unit);
            given.push(lease(provided, port));
        }
    }
    for provided in provides {
        if given.iter().any(|lease| lease.name == provided.name) {
            continue;
        }
        let free = |port: &u16| !taken.contains_key(&(provided.protocol, *port)) && is_free(provided, *port);
        let Some(port) = (range.first..=range.last).find(free) else {
            return Err(exhausted(unit, provided, range));
        };
        taken.insert((provided.protocol, port), unit);
        given.push(lease(provided, port));
    }
    Ok(given)
}

fn exhausted(unit: &UnitName, provided: &Provided, range: PortRange) -> CommandRefusal {
    let Provided { name, protocol, .. } = provided;
    let realm = unit.realm();
    let message = Diagnostic::new(format_args!(
        "no {protocol} port of {range} is free for the endpoint {name} of \
                 {unit}: each is leased or used by another program"
    ))
    .with_hint(format_args!("`muster realm set {realm} --ports FIRST-LAST`, or remove a unit"));
    CommandRefusal::new(RefusalCode::PortsExhausted, message)
}

/// The endpoints that units of a host provide.
#[derive(Clone, Debug, Default)]
pub struct PortProvision<'a> {
    /// What each unit provides.
    units: BTreeMap<&'a UnitName, SpecEndpoints<'a>>,
    ports: BTreeMap<(&'a UnitName, &'a Name), u16>,
}

impl<'a> PortProvision<'a> {
    /// Creates it from the specs of all units, and all leases.
    #[must_use]
    pub fn new(
        units: impl IntoIterator<Item = (&'a UnitName, impl Into<SpecEndpoints<'a>>)>,
        leases: &'a [PortLease],
    ) -> Self {
        let ports = leases.iter().map(|lease| ((&lease.unit, &lease.name), lease.port)).collect();
        Self { units: units.into_iter().map(|(unit, spec)| (unit, spec.into())).collect(), ports }
    }

    fn port(&self, unit: &UnitName, name: &Name) -> Option<u16> {
        self.ports.get(&(unit, name)).copied()
    }

    /// Returns the connector to an endpoint of `unit`, if it provides that.
    fn connector(&self, unit: &UnitName, name: &Name, realms: &Realms) -> Option<Connector> {
        let provided = self.units.get(unit)?.provides.iter().find(|provided| provided.name == *name)?;
        let port = self.port(unit, name)?;
        let address = realms.resolve(&unit.realm()).reached_at(provided.global);
        Some(Connector { name: name.clone(), address, port, protocol: provided.protocol, unit: unit.clone() })
    }

    fn providers(&self, realm: &Name, name: &Name) -> Vec<&'a UnitName> {
        let provides = |spec: &SpecEndpoints<'_>| spec.provides.iter().any(|provided| provided.name == *name);
        let all = self.units.iter().filter(|(unit, spec)| unit.realm() == *realm && provides(spec));
        all.map(|(unit, _)| *unit).collect()
    }

    fn resolve(&self, unit: &UnitName, needed: &Needed, realms: &Realms) -> Result<Connector, String> {
        let Needed { name, from, .. } = needed;
        if let Some(from) = from {
            return self.connector(from, name, realms).ok_or_else(|| format!("{from} does not provide {name} here"));
        }
        let lineage = realms.lineage(&unit.realm());
        for realm in &lineage {
            match self.providers(realm, name)[..] {
                [] => {}
                [one] => {
                    return self
                        .connector(one, name, realms)
                        .ok_or_else(|| format!("{one} has no port for {name} yet"));
                }
                ref several => {
                    let names: Vec<&str> = several.iter().map(|unit| unit.as_str()).collect();
                    return Err(format!("{} all provide {name}; choose one with `from`", names.join(", ")));
                }
            }
        }
        let realms: Vec<&str> = lineage.iter().map(Name::as_str).collect();
        Err(format!("no unit of realm {} provides {name}", realms.join(" or ")))
    }
}

/// Returns where a unit listens and what it connects to, and why it has to wait, if it has to.
#[must_use]
pub fn wire<'a>(
    unit: &UnitName,
    spec: impl Into<SpecEndpoints<'a>>,
    provision: &PortProvision<'_>,
    realms: &Realms,
) -> (EndpointWiring, Option<String>) {
    let spec = spec.into();
    let realm = realms.resolve(&unit.realm());
    let mut lacks = Vec::new();
    if let Some(disabled) = &realm.disabled {
        lacks.push(format!("the realm {disabled} is disabled"));
    }
    let endpoint = |provided: &Provided| {
        let Provided { name, protocol, global, .. } = provided;
        let port = provision.port(unit, name)?;
        Some(Endpoint { name: name.clone(), address: realm.address(*global), port, protocol: *protocol })
    };
    let endpoints: Vec<Endpoint> = spec.provides.iter().filter_map(endpoint).collect();
    let mut connectors = Vec::new();
    for needed in spec.needs {
        match provision.resolve(unit, needed, realms) {
            Ok(connector) => connectors.push(connector),
            Err(_) if needed.optional => {}
            Err(why) => lacks.push(why),
        }
    }
    (EndpointWiring { endpoints, connectors }, (!lacks.is_empty()).then(|| lacks.join("; ")))
}

#[cfg(test)]
mod tests;

//! What a template can name on a host.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use minijinja::value::{Object, ObjectRepr, Tuple, Value};
use muster_topics::{heartbeat::Facts, name::UnitName};
use serde_json::{Map, Value as Json, json};

use crate::port_lease::EndpointWiring;

/// The name of a group of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ValueRoot {
    /// The host: `id`, `hostname`.
    Host,
    /// What the host reports of its machine.
    Fact,
    /// The host's labels.
    Label,
    /// The unit's realm, a text.
    Realm,
    /// The unit's deployment, if it has one: `name`, `version`.
    Deployment,
    /// The unit: `unit` (`realm/name`), `name`.
    Instance,
    /// The host's variables.
    Vars,
}

impl ValueRoot {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Host, Self::Fact, Self::Label, Self::Realm, Self::Deployment, Self::Instance, Self::Vars];

    /// The name in templates.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Fact => "fact",
            Self::Label => "label",
            Self::Realm => "realm",
            Self::Deployment => "deployment",
            Self::Instance => "instance",
            Self::Vars => "vars",
        }
    }

    /// Returns the group with a name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|root| root.name() == name)
    }

    /// The values of a group that has the same ones on each host; `None` for one that has not.
    #[must_use]
    pub fn fixed(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Host => Some(&["hostname", "id"]),
            Self::Fact => Some(&["arch", "cpu_model", "cpus", "kernel", "memory_bytes", "os"]),
            Self::Realm => Some(&[]),
            Self::Deployment => Some(&["name", "version"]),
            Self::Instance => Some(&["name", "unit"]),
            Self::Label | Self::Vars => None,
        }
    }
}

/// What a template can name on a host, beside secrets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RenderValues {
    /// The groups that there are; one that is absent has no value.
    groups: BTreeMap<ValueRoot, Json>,
    /// The endpoints of the unit by name: what it needs, and what it provides.
    pub(super) endpoints: BTreeMap<String, EndpointValue>,
}

/// An endpoint, as text `ADDRESS:PORT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EndpointValue {
    address: IpAddr,
    port: u16,
}

impl Object for EndpointValue {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match key.as_str()? {
            "address" => Some(self.address.to_string().into()),
            "port" => Some(self.port.into()),
            _ => None,
        }
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", SocketAddr::new(self.address, self.port))
    }
}

impl RenderValues {
    /// Creates the values of a host that are not a unit's.
    #[must_use]
    pub fn of_host(
        (id, hostname): (impl fmt::Display, &str),
        facts: &Facts,
        labels: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        let Facts { os, kernel, arch, cpus, cpu_model, memory_bytes, boot_id: _, boot_ms: _ } = facts;
        let fact = json!({
            "os": os, "kernel": kernel, "arch": arch, "cpus": cpus, "cpu_model": cpu_model,
            "memory_bytes": memory_bytes,
        });
        let labels: Map<String, Json> = labels.into_iter().map(|(name, value)| (name, value.into())).collect();
        let groups = [
            (ValueRoot::Host, json!({"id": id.to_string(), "hostname": hostname})),
            (ValueRoot::Fact, fact),
            (ValueRoot::Label, labels.into()),
            (ValueRoot::Vars, json!({})),
        ];
        Self { groups: groups.into(), endpoints: BTreeMap::new() }
    }

    /// Sets the host's variables.
    #[must_use]
    pub fn with_vars(mut self, vars: impl IntoIterator<Item = (String, Json)>) -> Self {
        self.groups.insert(ValueRoot::Vars, vars.into_iter().collect::<Map<_, _>>().into());
        self
    }

    /// Adds the deployment of a unit, with its version.
    #[must_use]
    pub fn with_deployment(mut self, name: &str, version: u32) -> Self {
        self.groups.insert(ValueRoot::Deployment, json!({"name": name, "version": version}));
        self
    }

    /// Adds what a unit has of its own: its name and its realm.
    #[must_use]
    pub fn with_unit(mut self, unit: &UnitName) -> Self {
        self.groups.insert(ValueRoot::Realm, unit.realm().to_string().into());
        self.groups.insert(ValueRoot::Instance, json!({"unit": unit.to_string(), "name": unit.name().to_string()}));
        self
    }

    /// Adds the endpoints of a unit. One that it needs goes before one of the same name that it provides.
    #[must_use]
    pub fn with_endpoints(mut self, wiring: &EndpointWiring) -> Self {
        let provided = wiring.endpoints.iter().map(|one| (&one.name, one.address, one.port));
        let needed = wiring.connectors.iter().map(|one| (&one.name, one.address, one.port));
        let all = provided.chain(needed);
        self.endpoints = all.map(|(name, address, port)| (name.to_string(), EndpointValue { address, port })).collect();
        self
    }

    /// Returns the values with these names, as [`super::TemplateNames::values`] has them: `vars.colour` for one, `vars` for
    /// all of a group. A name without a value is left out.
    #[must_use]
    pub fn chosen(&self, names: &BTreeSet<String>) -> BTreeMap<String, Json> {
        let value = |name: &String| {
            let (root, key) = name.split_once('.').map_or((name.as_str(), None), |(root, key)| (root, Some(key)));
            let group = self.groups.get(&ValueRoot::of_name(root)?)?;
            let value = key.map_or(Some(group), |key| group.get(key))?;
            Some((name.clone(), value.clone()))
        };
        names.iter().filter_map(value).collect()
    }

    /// Creates the values that were [chosen](Self::chosen).
    #[must_use]
    pub fn of_chosen(chosen: &BTreeMap<String, Json>) -> Self {
        // A group without a value is there, so that a template may ask for one of it.
        let always = [ValueRoot::Host, ValueRoot::Fact, ValueRoot::Label, ValueRoot::Instance, ValueRoot::Vars];
        let mut groups: BTreeMap<ValueRoot, Json> = always.map(|root| (root, json!({}))).into();
        for (name, value) in chosen {
            match name.split_once('.') {
                None => {
                    if let Some(root) = ValueRoot::of_name(name) {
                        groups.insert(root, value.clone());
                    }
                }
                Some((root, key)) => {
                    let group = ValueRoot::of_name(root).map(|root| groups.entry(root).or_insert_with(|| json!({})));
                    if let Some(group) = group.and_then(Json::as_object_mut) {
                        // All of the group, if it is there, has the value, too.
                        group.entry(key).or_insert_with(|| value.clone());
                    }
                }
            }
        }
        Self { groups, endpoints: BTreeMap::new() }
    }

    /// Returns the groups as the engine has them.
    pub(super) fn roots(&self) -> impl Iterator<Item = (ValueRoot, Value)> {
        self.groups.iter().map(|(root, value)| (*root, of_json(value)))
    }

    /// Returns the names of the values of a group; `None` if there is no such group.
    pub(super) fn keys(&self, root: ValueRoot) -> Option<impl Iterator<Item = &str> + Clone> {
        let group = self.groups.get(&root)?;
        Some(group.as_object().into_iter().flat_map(Map::keys).map(String::as_str))
    }
}

/// Converts a value to the engine's. (With serde it would do so itself, and take any type.)
fn of_json(value: &Json) -> Value {
    match value {
        Json::Null => Value::from(()),
        Json::Bool(value) => (*value).into(),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => number.into(),
            (None, Some(number)) => number.into(),
            (None, None) => number.as_f64().unwrap_or_default().into(),
        },
        Json::String(text) => text.as_str().into(),
        // The engine charges for tuples that grow, and not for lists.
        Json::Array(items) => Tuple::from(items.iter().map(of_json).collect::<Vec<Value>>()).into(),
        Json::Object(object) => {
            object.iter().map(|(key, value)| (key.clone(), of_json(value))).collect::<BTreeMap<String, Value>>().into()
        }
    }
}

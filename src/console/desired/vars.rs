//! Variables of hosts, in layers: fleet, realm, label, host; those of a later one win.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use muster_api::{ChangeKind, NewVar, Var, VarLayer, VarName};
use muster_base::clock::now_ms;
use muster_topics::{canonical, desired::VARS_MAX, name::Name, select::Host};
use serde_json::Value;

use super::plan::PlanWish;
use crate::{
    error::Error,
    state::Console,
    store::{
        StoreError,
        change::{self, NewChange},
        var,
    },
};

/// The longest value: a document has many, and is fetched by every host.
const VALUE_MAX_BYTES: usize = 4 * 1024;
/// The most variables in all layers.
const ALL_MAX: usize = 10_000;

/// The variables of hosts, each set once.
pub(super) struct VarSets<'a> {
    layers: &'a [Var],
    made: HashMap<Vec<usize>, Arc<BTreeMap<Name, Value>>>,
}

impl<'a> VarSets<'a> {
    pub(super) fn new(layers: &'a [Var]) -> Self {
        Self { layers, made: HashMap::new() }
    }

    /// Returns the variables of a host: at most [`VARS_MAX`], the first by name.
    pub(super) fn of(&mut self, host: &Host<'_>) -> Arc<BTreeMap<Name, Value>> {
        if self.layers.is_empty() {
            return Arc::clone(self.made.entry(Vec::new()).or_default());
        }
        let holds = |layer: &VarLayer| match layer {
            VarLayer::Fleet => true,
            VarLayer::Realm(realm) => host.realms.contains(realm),
            VarLayer::Label(name, value) => host.labels.get(name).is_some_and(|has| has == value.as_str()),
            VarLayer::Host(id) => *id == host.host.to_string(),
        };
        // Their order in the enum is that of the layers.
        let mut places: Vec<usize> =
            self.layers.iter().enumerate().filter(|(_, var)| holds(&var.layer)).map(|(place, _)| place).collect();
        places.sort_by(|one, other| {
            self.layers.get(*one).map(|var| &var.layer).cmp(&self.layers.get(*other).map(|var| &var.layer))
        });
        let layers = self.layers;
        let made = self.made.entry(places).or_insert_with_key(|places| {
            let vars = places.iter().filter_map(|place| layers.get(*place));
            let all: BTreeMap<Name, Value> = vars.map(|var| (var.name.clone(), var.value.clone())).collect();
            Arc::new(all.into_iter().take(VARS_MAX).collect())
        });
        Arc::clone(made)
    }
}

/// The longest part of a value that is noted of a change.
const SHOWN_MAX_CHARS: usize = 200;

/// Names a variable with its layer.
fn subject(layer: &VarLayer, hostname: Option<&str>, name: &Name) -> String {
    match (layer, hostname) {
        (VarLayer::Host(_), Some(hostname)) => format!("{name} (host:{hostname})"),
        (layer, _) => format!("{name} ({layer})"),
    }
}

impl Console {
    /// Returns all variables, by layer and name.
    pub async fn vars(&self) -> Result<Vec<Var>, Error> {
        Ok(var::vars(self.shared.store.read()).await?.vars)
    }

    /// Sets a variable.
    pub async fn set_var(&self, operator: &Name, new: NewVar) -> Result<Var, Error> {
        self.shared.check_operator(operator).await?;
        let NewVar { layer, name, value } = new;
        if value.to_string().len() > VALUE_MAX_BYTES {
            return Err(Error::invalid("bad_var", format!("a variable has at most {VALUE_MAX_BYTES} bytes of JSON")));
        }
        canonical::check_value(&value).map_err(|error| Error::invalid("bad_var", format!("the value: {error}")))?;
        let layer = self.whole_layer(layer).await?;
        let hostname = self.layer_hostname(&layer).await?;
        let var = Var { layer, hostname, name, value, operator: operator.clone(), set_ms: now_ms() };
        let all = var::vars(self.shared.store.read()).await?.vars;
        let is_same_place = |one: &Var| one.layer == var.layer && one.name == var.name;
        if !all.iter().any(is_same_place) {
            let in_layer = all.iter().filter(|one| one.layer == var.layer).count();
            if all.len() >= ALL_MAX || in_layer >= VARS_MAX {
                let message = format!("a layer has at most {VARS_MAX} variables, and all layers {ALL_MAX}");
                return Err(Error::conflict("too_many_vars", message));
            }
        }
        let _changing = self.shared.hosts.desired.changing.lock().await;
        let mut transaction = self.shared.store.begin().await?;
        var::set_var(&mut transaction, &var).await?;
        let change = NewChange {
            operator,
            kind: ChangeKind::VarSet,
            subject: subject(&var.layer, var.hostname.as_deref(), &var.name),
            detail: var.value.to_string().chars().take(SHOWN_MAX_CHARS).collect(),
        };
        change::note(&mut transaction, &change, var.set_ms).await?;
        transaction.commit().await.map_err(StoreError::from)?;
        tracing::info!(%operator, layer = %var.layer, var = %var.name, "a variable is set");
        self.vars_changed().await?;
        Ok(var)
    }

    /// Removes a variable.
    pub async fn remove_var(&self, operator: &Name, var: VarName) -> Result<(), Error> {
        self.shared.check_operator(operator).await?;
        let layer = self.whole_layer(var.layer).await?;
        let _changing = self.shared.hosts.desired.changing.lock().await;
        let mut transaction = self.shared.store.begin().await?;
        let is_gone = var::remove_var(&mut transaction, &layer, &var.name).await?;
        let hostname = self.layer_hostname(&layer).await?;
        let subject = subject(&layer, hostname.as_deref(), &var.name);
        let change = NewChange { operator, kind: ChangeKind::VarRemoved, subject, detail: String::new() };
        if is_gone {
            change::note(&mut transaction, &change, now_ms()).await?;
        }
        transaction.commit().await.map_err(StoreError::from)?;
        if !is_gone {
            return Err(Error::not_found("unknown_var", format!("layer {layer} has no variable {}", var.name))
                .hint(format!("`muster var ls {}` lists the layers that have it", var.name)));
        }
        tracing::info!(%operator, %layer, var = %var.name, "a variable is removed");
        self.vars_changed().await
    }

    /// A layer of a host names it by id.
    async fn whole_layer(&self, layer: VarLayer) -> Result<VarLayer, Error> {
        Ok(match layer {
            VarLayer::Host(host) => VarLayer::Host(self.resolve_host(&host).await?.to_string()),
            layer => layer,
        })
    }

    async fn layer_hostname(&self, layer: &VarLayer) -> Result<Option<String>, Error> {
        let VarLayer::Host(id) = layer else { return Ok(None) };
        let Ok(host) = id.parse() else { return Ok(None) };
        Ok(self.hostnames(&[host]).await?.remove(&host))
    }

    /// Makes the documents of hosts anew. The caller holds the lock for changes.
    async fn vars_changed(&self) -> Result<(), Error> {
        let vars = var::vars(self.shared.store.read()).await?.vars;
        self.shared.hosts.desired.table().vars = std::sync::Arc::new(vars);
        self.reconcile(None, PlanWish { may_remove: true, now: now_ms(), ..PlanWish::default() }).await?;
        Ok(())
    }
}

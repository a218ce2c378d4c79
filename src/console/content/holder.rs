//! Who needs content: units on all hosts with their snapshots, units of open commands, and units of deployments.

use muster_api::Unit;
use muster_topics::{
    command::Verb,
    name::{Name, UnitName},
    secret::SecretRef,
    snapshot::Pins,
    unit::{ArtifactRef, ConfigRef, Spec},
};

use crate::{
    error::Error,
    list::first_names,
    state::ConsoleState,
    store::{command, host},
};

/// The most holders that a refusal names.
const NAMED_MAX: usize = 5;

/// A holder that needs artifacts, configs and secrets.
pub(crate) struct ContentHolder {
    pub(crate) who: String,
    pub(crate) artifacts: Vec<ArtifactRef>,
    pub(crate) configs: Vec<ConfigRef>,
    /// Secrets of this realm.
    pub(crate) secrets: (Name, Vec<SecretRef>),
    /// Whether it may need further content that is not listed.
    pub(crate) and_more: bool,
}

impl ContentHolder {
    fn of(who: String, unit: &UnitName, spec: &Spec) -> Self {
        let artifacts = spec.artifacts().into_iter().cloned().collect();
        let secrets = (unit.realm(), spec.common().secrets.to_vec());
        Self { who, artifacts, configs: spec.configs().to_vec(), secrets, and_more: false }
    }

    /// The snapshots of a unit.
    fn of_snapshots(unit: &Unit) -> Option<Self> {
        let Pins { artifacts, configs, secrets, and_more } = unit.pins.clone();
        let who = format!("a snapshot of {} on {}", unit.unit, unit.hostname);
        let secrets = (unit.unit.realm(), secrets);
        Some(Self { who, artifacts, configs, secrets, and_more }).filter(|_| !unit.pins.is_empty())
    }
}

/// Returns all holders that the console knows. A unit's report has both its desired state and what snapshots need beyond
/// that, so neither is known without the other.
pub(crate) async fn holders(shared: &ConsoleState) -> Result<Vec<ContentHolder>, Error> {
    let db = shared.store.read();
    let units = host::units(db, None, None).await?;
    let snapshots: Vec<ContentHolder> = units.iter().filter_map(ContentHolder::of_snapshots).collect();
    let units = units
        .iter()
        .map(|unit| ContentHolder::of(format!("{} on {}", unit.unit, unit.hostname), &unit.unit, &unit.desired.spec));
    let ordered = command::open_verbs(db).await?.into_iter().flat_map(|(id, verb)| match verb {
        Verb::UnitApply { .. } | Verb::UnitsApply(_) => verb
            .specs()
            .map(|(unit, spec)| ContentHolder::of(format!("{unit}, which command {id} makes"), unit, spec))
            .collect::<Vec<_>>(),
        Verb::UnitUpgrade { unit, artifact, configs, secrets, .. } => vec![ContentHolder {
            who: format!("{unit}, which command {id} upgrades"),
            artifacts: artifact.into_iter().collect(),
            configs,
            secrets: (unit.realm(), secrets.unwrap_or_default()),
            and_more: false,
        }],
        _ => Vec::new(),
    });
    let deployed = shared.hosts.desired.needs().into_iter().map(|need| {
        let who = format!("{} of deployment {}", need.unit, need.deployment);
        let mut holder = ContentHolder::of(who, &need.unit, &need.spec);
        holder.secrets.1 = need.secrets;
        holder
    });
    Ok(units.chain(snapshots).chain(ordered).chain(deployed).collect())
}

/// Refuses a removal because of holders.
pub(crate) fn refuse_held(what: &str, holders: &[String]) -> Result<(), Error> {
    if holders.is_empty() {
        return Ok(());
    }
    let named = first_names(holders, NAMED_MAX);
    Err(Error::conflict("in_use", format!("{what} is used by {named}")).hint("change or remove these units first"))
}

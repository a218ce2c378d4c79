//! What the console gives to hosts, by commands and by documents: who may fetch what, and what a change of a unit may send.
//!
//! A host reports its units, and an operator changes them by what is reported. So a host that claims a unit would be sent what that unit
//! names. **Invariant: what a host may fetch or be sent is what [`store::given::units`] says**, which knows what the console itself has
//! given. A report only chooses among several of these. What the console has not given is changed without secrets and configs, and the
//! answer says so ([`muster_api::Command::withheld`]).

use std::collections::{BTreeSet, HashMap};

use muster_api::HostUnit;
use muster_rules::config;
use muster_topics::{
    command::{Command, Target, Verb},
    desired::DesiredDeployment,
    name::{Digest, HostId, Name, UnitName},
    select::HostSelect,
    unit::{ConfigRef, MASK, Spec},
};
use sqlx::SqliteConnection;

use super::{
    error::Error,
    state::Console,
    store::{
        self, StoreError,
        deployment::TargetHost,
        given::{GivenFilter, GivenPart, GivenUnit},
        host,
    },
};

/// What a command gives to its hosts.
#[derive(Debug, Default)]
pub(crate) struct CommandGifts {
    /// Units, with the hosts that each is given to.
    pub(crate) units: Vec<(Vec<HostId>, GivenUnit)>,
    /// Hosts whose unit is changed without its configs and secrets.
    pub(crate) withheld: Vec<HostUnit>,
}

impl CommandGifts {
    /// Returns what a command gives that applies specs; one that only checks or plans gives nothing.
    pub(crate) fn of_specs(verb: &Verb, hosts: &[HostId]) -> Self {
        let units = match verb {
            Verb::UnitsApply(set) if set.check => Vec::new(),
            Verb::UnitApply { .. } | Verb::UnitsApply(_) => {
                verb.specs().map(|(unit, spec)| (hosts.to_vec(), GivenUnit::of(unit, spec))).collect()
            }
            _ => Vec::new(),
        };
        Self { units, withheld: Vec::new() }
    }

    /// Whether any of its units has secrets by name.
    pub(crate) fn has_secrets(&self) -> bool {
        self.units.iter().any(|(_, unit)| !unit.secrets.is_empty())
    }
}

/// Records what a command gives to its hosts, or takes from them.
pub(crate) async fn record(
    db: &mut SqliteConnection,
    command: &Command,
    hosts: &[HostId],
    gifts: &CommandGifts,
) -> Result<(), StoreError> {
    match &command.verb {
        Verb::UnitRm { unit } => store::given::take_back(db, hosts, unit, Some(command.id)).await?,
        Verb::SnapshotActivate { .. } | Verb::SnapshotDeactivate { .. } => {
            store::given::bring_back(db, hosts, command.id).await?;
        }
        _ => {}
    }
    for (hosts, unit) in &gifts.units {
        store::given::give(db, hosts, unit, Some(command.id)).await?;
    }
    Ok(())
}

/// Returns what a deployment gives to a host whose document has it.
pub(crate) fn of_deployment(deployment: &DesiredDeployment) -> Vec<GivenUnit> {
    // A detached unit is changed by verbs alone.
    let listed = deployment.units().filter(|(unit, _)| !deployment.detached.contains(unit));
    listed
        .map(|(unit, listed)| {
            let mut spec = Spec::clone(&listed.spec);
            spec.common_mut().secrets = deployment.secrets.get(&listed.unit).cloned().unwrap_or_default();
            GivenUnit::of(&unit, &spec)
        })
        .collect()
}

impl Console {
    /// Whether a host may fetch something.
    pub(crate) async fn may_fetch(&self, host: HostId, part: GivenPart<'_>) -> Result<bool, StoreError> {
        Ok(!store::given::units(self.shared.store.read(), host, GivenFilter::With(part)).await?.is_empty())
    }

    /// Returns a unit as the host was given it: if there are several, the one with the configs that the host reports in this revision.
    pub(crate) async fn given_unit(
        &self,
        host: HostId,
        unit: &UnitName,
        revision: &Digest,
    ) -> Result<Option<GivenUnit>, Error> {
        let db = self.shared.store.read();
        let given = store::given::units(db, host, GivenFilter::Present(unit)).await?;
        let reported = host::units(db, Some(host), Some(unit)).await?.pop();
        let reported = reported.filter(|there| there.desired.revision == *revision);
        Ok(match reported {
            // Its host refuses the command, or has not reported the unit yet.
            None => given.into_iter().next(),
            Some(there) => given.into_iter().find(|given| given.configs == there.desired.spec.configs()),
        })
    }

    /// Returns the secrets that templates of a spec name whose values it has masked: those that its hosts were given.
    pub(crate) async fn masked_names(
        &self,
        hosts: &[HostId],
        unit: &UnitName,
        spec: &Spec,
    ) -> Result<BTreeSet<Name>, StoreError> {
        let mut names = BTreeSet::new();
        if spec.env().values().any(|value| value == MASK) {
            for host in hosts {
                let given = store::given::units(self.shared.store.read(), *host, GivenFilter::Present(unit)).await?;
                names.extend(given.into_iter().next().into_iter().flat_map(|given| given.named));
            }
        }
        Ok(names)
    }

    /// Refuses to send the configs and secrets of specs that were copied from a host's report, unless the host was given them.
    pub(crate) async fn check_copy(&self, from: &HostUnit, verb: &Verb) -> Result<(), Error> {
        let given = store::given::units(self.shared.store.read(), from.host, GivenFilter::Present(&from.unit)).await?;
        let is_given = |spec: &Spec| given.iter().any(|given| given.covers(spec.configs(), &spec.common().secrets));
        let has_any = |spec: &Spec| !spec.configs().is_empty() || !spec.common().secrets.is_empty();
        match verb.specs().any(|(_, spec)| has_any(spec) && !is_given(spec)) {
            true => Err(self.not_given(from).await?),
            false => Ok(()),
        }
    }

    /// The refusal to send configs and secrets that a host was not given.
    pub(crate) async fn not_given(&self, there: &HostUnit) -> Result<Error, Error> {
        let HostUnit { host, unit } = there;
        let name = self.hostnames(&[*host]).await?.remove(host).unwrap_or_else(|| host.to_string());
        let message =
            format!("{unit} on {name} was not created through this console, which sends it no configs and secrets");
        Ok(Error::conflict("not_given", message)
            .hint("apply a document that names the host (`muster unit apply`): the console then sends them"))
    }

    /// Refuses to give secrets to hosts that say themselves whether they are meant.
    pub(crate) async fn check_chosen(&self, target: &Target, gifts: &CommandGifts) -> Result<(), Error> {
        if !matches!(target, Target::Group(_) | Target::Select(_)) {
            return Ok(());
        }
        for (_, unit) in &gifts.units {
            if !unit.secrets.is_empty() || self.have_secret_values(&unit.configs).await? {
                let message = format!(
                    "{} has secrets, and whether a group or an expression selects a host depends on what the host says of itself",
                    unit.unit
                );
                return Err(Error::invalid("secrets_in_broadcast", message)
                    .hint("name the hosts, or use a deployment, which labels of the console select"));
            }
        }
        Ok(())
    }

    /// Returns the hosts that an expression picks whatever they say of themselves: by labels of the console.
    pub(crate) async fn chosen_hosts(&self, select: &HostSelect) -> Result<BTreeSet<HostId>, Error> {
        let mut chosen = BTreeSet::new();
        let mut each = |host: HostId, _: &str, seen: Result<&TargetHost<'_>, StoreError>| {
            if seen.is_ok_and(|seen| select.picks(&seen.earned)) {
                chosen.insert(host);
            }
        };
        if select.requires_label() {
            store::deployment::each_target_host(self.shared.store.read(), None, &HashMap::new(), &mut each).await?;
        }
        Ok(chosen)
    }

    /// Whether configs have secret values in them.
    pub(crate) async fn have_secret_values(&self, configs: &[ConfigRef]) -> Result<bool, Error> {
        let documents = self.documents(configs).await?;
        Ok(documents.iter().any(config::has_secret_value))
    }
}

#[cfg(test)]
mod tests;

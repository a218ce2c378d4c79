//! Labels that operators give hosts. They override labels of the same name in a host's own configuration.
//!
//! They reach a host as one signed document with all of them ([`super::document_sync`]). The host then subscribes to their groups,
//! and matches commands against them, as with its own labels.
//!
//! **Invariant: a host that has newer labels than the console is sent none**, until an operator has confirmed it: the console's store
//! was lost, or is older. Its labels are not changed meanwhile.
//!
//! **Invariant: labels are stored before they are sent to any host**, and a command is sent on a host's own topic only after labels that
//! the host has not confirmed ([`send_labels_first`]): so the host matches it against the labels that held when it was issued.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use muster_api::{HostLabel, LabelOrigin, LabelledHost};
use muster_base::clock::now_ms;
use muster_topics::{
    label::HOST_LABELS_MAX,
    name::{HostId, Name},
    numbered::{NumberedContent, NumberedKind},
};

use super::{
    dispatch,
    error::Error,
    numbered,
    page_change::PageChange,
    state::{Console, ConsoleState},
    store::{
        StoreError, host,
        label::{self, HostLabelRow, OperatorLabels},
    },
};

pub(super) use super::confirmed_labels::Labels;

/// The most hosts that an error names.
const NAMED_MAX: usize = 10;

impl Console {
    /// Returns the labels of one host, by id or unique hostname.
    pub async fn host_labels(&self, name: &str) -> Result<LabelledHost, Error> {
        let id = self.resolve_host(name).await?;
        self.labelled(&[id]).await?.pop().ok_or_else(|| dispatch::unknown_host(name))
    }

    /// Adds labels to hosts and removes some. Returns the labels of those hosts, by hostname.
    pub async fn label_hosts(
        &self,
        operator: &Name,
        wanted: muster_api::LabelHosts,
    ) -> Result<Vec<LabelledHost>, Error> {
        let shared = &self.shared;
        shared.check_operator(operator).await?;
        if let Some(name) = wanted.set.keys().find(|name| wanted.remove.contains(*name)) {
            return Err(Error::invalid("bad_label", format!("label {name} is both set and removed")));
        }
        let meant = dispatch::target_hosts(shared, &wanted.target).await?;
        let ids: Vec<HostId> = meant.into_iter().map(|(host, _)| host).collect();
        if wanted.set.is_empty() && wanted.remove.is_empty() {
            return self.labelled(&ids).await;
        }
        // The decision must still hold when it is stored.
        let _one_at_a_time = shared.hosts.labelling.lock().await;
        let before = self.labelled(&ids).await?;
        check(&before, &wanted)?;
        let newer = before.iter().filter(|host| shared.hosts.labels.newer(host.host).is_some());
        let newer: Vec<String> = newer.map(|host| host.hostname.clone()).collect();
        if !newer.is_empty() {
            let message = format!("hosts have newer labels than this console: {}", some(&newer));
            return Err(Error::conflict("labels_unconfirmed", message).consequence("nothing was changed").hint(
                "the console's store was lost, or restored; `muster deployment confirm --dry-run` shows what hosts have",
            ));
        }
        let now = now_ms();
        let mut transaction = shared.store.begin().await?;
        let mut changed = Vec::new();
        for host in &before {
            let edits = edits(&host.labels, &wanted);
            for edit in &edits {
                match edit {
                    LabelEdit::Set(name, value) => {
                        let given = HostLabelRow { value: (*value).clone(), operator: operator.clone(), set_ms: now };
                        label::set(&mut transaction, host.host, name, &given).await?;
                    }
                    LabelEdit::Remove(name) => label::remove(&mut transaction, host.host, name).await?,
                }
            }
            if !edits.is_empty() {
                let generation = label::next_generation(&mut transaction, host.host, 0, now).await?;
                changed.push((host.host, generation));
            }
        }
        transaction.commit().await.map_err(StoreError::from)?;
        for (host, generation) in &changed {
            shared.hosts.labels.tellings.set_generation(Some(*host), *generation);
            shared.changed(PageChange::Host(*host));
        }
        let set: Vec<String> = wanted.set.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let removed: Vec<String> = wanted.remove.iter().map(|name| format!("{name}-")).collect();
        let labels = [set, removed].concat().join(" ");
        tracing::info!(%operator, labels, hosts = changed.len(), "labels of hosts are changed");
        shared.hosts.desired.labels_changed(changed.iter().map(|(host, _)| *host));
        shared.hosts.labels.tellings.mark_owed(changed.into_iter().map(|(host, _)| host).collect());
        self.labelled(&ids).await
    }

    /// Returns the labels of these hosts, by hostname.
    async fn labelled(&self, ids: &[HostId]) -> Result<Vec<LabelledHost>, Error> {
        let db = self.shared.store.read();
        let (own, given) = (host::own_labels(db, ids).await?, label::given(db, Some(ids)).await?);
        let away = host::away(db, Some(ids)).await?;
        let none = OperatorLabels::new();
        let of = |(host, (hostname, own)): (HostId, (String, BTreeMap<Name, String>))| LabelledHost {
            host,
            hostname,
            labels: shown(&own, given.get(&host).unwrap_or(&none)),
            confirmed: self.shared.hosts.labels.is_confirmed(host),
            away_since_ms: away.get(&host).copied(),
        };
        let mut hosts: Vec<LabelledHost> = own.into_iter().map(of).collect();
        hosts.sort_by(|one, other| (&one.hostname, one.host).cmp(&(&other.hostname, other.host)));
        Ok(hosts)
    }

    /// Adds operators' labels to hosts.
    pub(super) async fn with_labels(&self, mut hosts: Vec<muster_api::Host>) -> Result<Vec<muster_api::Host>, Error> {
        let ids: Vec<HostId> = hosts.iter().map(|host| host.id).collect();
        let given = label::given(self.shared.store.read(), Some(&ids)).await?;
        let (no_own, none) = (BTreeMap::new(), OperatorLabels::new());
        for host in &mut hosts {
            let own = host.state.as_ref().map_or(&no_own, |state| state.value.own_labels());
            host.labels = shown(own, given.get(&host.id).unwrap_or(&none));
        }
        Ok(hosts)
    }
}

/// A change of one label of one host.
#[derive(Debug, PartialEq, Eq)]
enum LabelEdit<'a> {
    Set(&'a Name, &'a muster_topics::name::LabelValue),
    Remove(&'a Name),
}

/// Returns all labels of a host, each with its origin.
fn shown(own: &BTreeMap<Name, String>, given: &OperatorLabels) -> Vec<HostLabel> {
    let of_console = given.iter().map(|(name, label)| HostLabel {
        name: name.clone(),
        value: label.value.to_string(),
        origin: LabelOrigin::Console,
        hides: own.get(name).cloned(),
        operator: Some(label.operator.clone()),
        set_ms: Some(label.set_ms),
    });
    let of_agent = own.iter().filter(|(name, _)| !given.contains_key(*name)).map(|(name, value)| HostLabel {
        name: name.clone(),
        value: value.clone(),
        origin: LabelOrigin::Agent,
        hides: None,
        operator: None,
        set_ms: None,
    });
    let mut labels: Vec<HostLabel> = of_console.chain(of_agent).collect();
    labels.sort_by(|one, other| one.name.cmp(&other.name));
    labels
}

/// Returns the changes of one host's labels; unchanged ones are left out.
fn edits<'a>(labels: &[HostLabel], wanted: &'a muster_api::LabelHosts) -> Vec<LabelEdit<'a>> {
    let is_given = |name: &Name| {
        labels
            .iter()
            .find(|label| label.name == *name && label.origin == LabelOrigin::Console)
            .map(|label| &label.value)
    };
    let set = wanted.set.iter().filter(|(name, value)| is_given(name).is_none_or(|given| given != value.as_str()));
    let removed = wanted.remove.iter().filter(|name| is_given(name).is_some());
    set.map(|(name, value)| LabelEdit::Set(name, value)).chain(removed.map(LabelEdit::Remove)).collect()
}

/// Refuses changes of existing labels without an explicit request, and too many labels.
fn check(hosts: &[LabelledHost], wanted: &muster_api::LabelHosts) -> Result<(), Error> {
    let differs = |host: &LabelledHost| {
        let other = host
            .labels
            .iter()
            .find(|label| wanted.set.get(&label.name).is_some_and(|value| value.as_str() != label.value))?;
        Some(format!("{} has {}={}", host.hostname, other.name, other.value))
    };
    let others: Vec<String> = hosts.iter().filter_map(differs).collect();
    if !wanted.replace && !others.is_empty() {
        return Err(Error::conflict("label_exists", format!("another value exists: {}", some(&others)))
            .consequence("nothing was changed")
            .hint("`--replace` (`replace` in the API) changes it"));
    }
    let count = |host: &LabelledHost| {
        let given = host.labels.iter().filter(|label| label.origin == LabelOrigin::Console).map(|label| &label.name);
        let after: HashSet<&Name> =
            given.filter(|name| !wanted.remove.contains(*name)).chain(wanted.set.keys()).collect();
        after.len()
    };
    if let Some(host) = hosts.iter().find(|host| count(host) > HOST_LABELS_MAX) {
        let message = format!("{} would have {} labels of the console", host.hostname, count(host));
        return Err(Error::conflict("too_many_labels", message)
            .hint(format!("a host has {HOST_LABELS_MAX} at most; remove some with `muster host label HOST NAME-`")));
    }
    Ok(())
}

/// Formats the first few, and the number of the others.
fn some(all: &[String]) -> String {
    let named = all.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(NAMED_MAX) {
        0 => named,
        more => format!("{named}, and {more} more"),
    }
}

/// Sends a host its labels, unless it has confirmed them or has newer ones, before anything that depends on them. Returns
/// false if that was not sent.
pub(super) async fn send_labels_first(shared: &Arc<ConsoleState>, host: HostId) -> bool {
    if shared.hosts.labels.is_confirmed(host) || shared.hosts.labels.newer(host).is_some() {
        return true;
    }
    match numbered::tell(shared, NumberedKind::HostLabels, host, 0).await {
        Ok(sent) => sent.is_some(),
        Err(error) => {
            tracing::error!(host.id = %host, %error, "a host's labels cannot be sent before a command, which waits");
            false
        }
    }
}

/// Returns the labels of a host, and their number, unless it has newer ones.
pub(super) async fn present(shared: &ConsoleState, host: HostId) -> Result<Option<(u64, NumberedContent)>, Error> {
    if shared.hosts.labels.newer(host).is_some() {
        return Ok(None);
    }
    // In this order: labels that change meanwhile are sent again, as newer ones.
    let number = shared.hosts.labels.tellings.of(host);
    let given = label::given(shared.store.read(), Some(&[host])).await?;
    let labels = given.get(&host).map(label::values).unwrap_or_default();
    Ok(Some((number, NumberedContent::HostLabels(labels))))
}

#[cfg(test)]
mod tests;

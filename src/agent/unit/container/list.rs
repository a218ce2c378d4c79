//! Lists all containers of the host, also those that are no units, for its heartbeats.

use muster_session::unit_state::{UnitState, UnitStates};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

use muster_topics::{
    container::{self, ContainerSummary, LISTED_MAX, LISTED_NAME_MAX_BYTES},
    name::UnitName,
    process::Limits,
    unit::Spec,
};
use tokio::{sync::watch, time::Instant};

use super::{
    Containers, HOST_LABEL, UNIT_LABEL,
    runtime::{self, ContainersById},
};

/// All containers of a host, by name.
pub type UnitContainers = Arc<BTreeMap<String, ContainerSummary>>;

/// Running containers that are not units, by name.
pub type OtherContainers = Arc<BTreeMap<String, OtherContainer>>;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherContainer {
    /// Its runtime.
    pub runtime: container::Runtime,
    /// Its first process: the number and when it was started.
    pub process: (i32, u64),
}

/// How often they are listed. Each time is a request to the runtime, which may have to be started for it.
const LIST_EVERY: Duration = Duration::from_secs(60);

/// The delay after a change of a unit: changes of one container come in a row.
const LIST_SOON: Duration = Duration::from_secs(2);

/// After this many lists all details are read again, because limits may have been changed by somebody else.
const ANEW: u32 = 10;

impl Containers {
    /// Lists them repeatedly, until it is dropped.
    pub(in crate::unit) async fn keep_list(
        self: Arc<Self>,
        list: watch::Sender<UnitContainers>,
        list_others: watch::Sender<OtherContainers>,
        mut states: watch::Receiver<UnitStates>,
    ) {
        let mut known: Vec<ContainersById> = vec![ContainersById::new(); self.runtimes.len()];
        for round in 0_u32.. {
            let (mut all, mut processes) = (BTreeMap::new(), BTreeMap::new());
            let adopted = self.adopted().unwrap_or_else(|failure| {
                tracing::debug!(
                    error = failure.error.cause,
                    hint = failure.error.hint,
                    "the adopted containers cannot be listed"
                );
                Vec::new()
            });
            let unit_of =
                |id: &str| adopted.iter().find_map(|(unit, adopted)| (adopted.id == id).then(|| unit.clone()));
            for (runtime, known) in self.runtimes.iter().zip(&mut known) {
                if round.is_multiple_of(ANEW) || !runtime.is_there() {
                    known.clear();
                }
                if !runtime.is_there() {
                    continue;
                }
                match runtime.list(known).await {
                    Ok(now) => *known = now,
                    // If the runtime does not answer, they have not disappeared.
                    Err(failure) => tracing::debug!(
                        error = failure.error.cause,
                        hint = failure.error.hint,
                        "containers cannot be listed"
                    ),
                }
                for (id, listed) in known.iter() {
                    let summary = self.summary(&**runtime, listed, unit_of(id));
                    if let (None, Some(process)) = (&summary.unit, listed.process) {
                        processes.insert(listed.name.clone(), OtherContainer { runtime: runtime.which(), process });
                    }
                    all.insert(listed.name.clone(), summary);
                }
            }
            let all = Arc::new(fitted(all));
            // Limited to those listed, so that the number of series is bounded.
            processes.retain(|name, _| all.contains_key(name));
            list_others.send_replace(Arc::new(processes));
            list.send_if_modified(|before| {
                *before != all && {
                    *before = all;
                    true
                }
            });
            wait(&mut states).await;
        }
    }

    fn summary(
        &self,
        runtime: &dyn runtime::ContainerRuntime,
        listed: &runtime::ListedContainer,
        adopted_as: Option<UnitName>,
    ) -> ContainerSummary {
        let runtime::ListedContainer { labels, state, image, limits, .. } = listed;
        let unit = labels.get(UNIT_LABEL).and_then(|unit| unit.parse::<UnitName>().ok());
        let unit = unit.filter(|_| labels.get(HOST_LABEL) == Some(&self.secrets.host().to_string())).or(adopted_as);
        let image = image.chars().take(LISTED_NAME_MAX_BYTES).collect();
        // Limits that were changed at run time may be unknown to the runtime.
        let given = unit.as_ref().and_then(|unit| self.place(unit).started().ok()?).map(|started| started.limits);
        let limits = given.map_or(*limits, |given| Limits {
            memory_bytes: given.memory_bytes.or(limits.memory_bytes),
            cpu: given.cpu.or(limits.cpu),
            pids: given.pids.or(limits.pids),
        });
        ContainerSummary { runtime: runtime.which(), state: *state, unit, image, limits }
    }
}

/// Waits until the next list is due.
async fn wait(states: &mut watch::Receiver<UnitStates>) {
    let next = Instant::now() + LIST_EVERY;
    let is_container = |state: &Arc<UnitState>| matches!(*state.desired.spec, Spec::Container(_));
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(next) => return,
            // The sender ends only with the agent.
            Ok(()) = states.changed() => {
                if states.borrow_and_update().values().any(is_container) {
                    return tokio::time::sleep(LIST_SOON).await;
                }
            }
        }
    }
}

/// Limits the list to what a heartbeat can hold: containers of units first.
fn fitted(all: BTreeMap<String, ContainerSummary>) -> BTreeMap<String, ContainerSummary> {
    let named = all.into_iter().filter(|(name, _)| name.len() <= LISTED_NAME_MAX_BYTES);
    let (units, others): (Vec<_>, Vec<_>) = named.partition(|(_, summary)| summary.unit.is_some());
    units.into_iter().chain(others).take(LISTED_MAX).collect()
}

#[cfg(test)]
mod tests {
    use muster_topics::container::{ContainerState, Runtime};

    use super::*;

    #[test]
    fn containers_of_units_are_listed_first() {
        let summary = |unit: Option<&str>| ContainerSummary {
            runtime: Runtime::Podman,
            state: ContainerState::Running,
            unit: unit.map(|unit| unit.parse().unwrap()),
            image: String::new(),
            limits: Limits::default(),
        };
        let mut all: BTreeMap<_, _> = (0..LISTED_MAX).map(|n| (format!("a{n}"), summary(None))).collect();
        all.insert("z".to_owned(), summary(Some("default/shop")));
        all.insert("y".repeat(LISTED_NAME_MAX_BYTES + 1), summary(Some("default/long")));
        let fitted = fitted(all);
        assert_eq!(fitted.len(), LISTED_MAX);
        assert!(fitted.contains_key("z") && fitted.keys().all(|name| name.len() <= LISTED_NAME_MAX_BYTES));
    }
}

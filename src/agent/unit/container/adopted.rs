//! Containers that somebody else has created and that a unit has adopted (`topics/decisions/0041`).
//!
//! An existing container cannot be given a label, so the agent keeps the record: `adopted.json` in the unit's folder, with
//! the id of the container. **Invariant: an adopted container is identified by its id alone**, whatever
//! its name, and is neither recreated nor removed.

use std::{fs, io, sync::Arc};

use muster_base::files::{PRIVATE_FOLDER, PUBLIC_MODE, make_folder, write_atomically};
use muster_rules::plan::Failure;
use muster_topics::{container::ContainerSpec, diagnostic::Diagnostic, name::UnitName, unit::Desired};
use serde::{Deserialize, Serialize};

use super::{
    Containers, HOST_LABEL, UNIT_LABEL, container, frame,
    instance::ContainerInstance,
    is_alive, name,
    place::{ContainerStartRecord, UnitFolder},
    runtime::{ContainerRuntime, RuntimeState},
};
use crate::unit::{
    failure::never,
    folders,
    kind::{StartError, StartOrder},
};

/// `adopted.json`, written when a container is adopted, before it is changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AdoptedContainer {
    pub(super) runtime: container::Runtime,
    /// Its name, for people.
    pub(super) name: String,
    pub(super) id: String,
}

impl UnitFolder {
    /// The container that this unit has adopted, if any. If that is unknown, nothing may be done.
    pub(super) fn adopted(&self) -> Result<Option<AdoptedContainer>, Failure> {
        let read = || match fs::read(self.0.join("adopted.json")) {
            Ok(content) => Ok(Some(serde_json::from_slice(&content)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        read().map_err(|error| self.failure("read", &error))
    }

    fn write_adopted(&self, adopted: &AdoptedContainer) -> Result<(), Failure> {
        let write = || {
            make_folder(&self.0, PRIVATE_FOLDER)?;
            write_atomically(&self.0.join("adopted.json"), &serde_json::to_vec(adopted)?, PUBLIC_MODE)
        };
        write().map_err(|error: io::Error| self.failure("written", &error))
    }
}

impl Containers {
    /// Returns the name and state of a unit's container at its runtime; `None` if it does not exist, or is another
    /// unit's.
    pub(super) async fn find(
        &self,
        unit: &UnitName,
        runtime: &dyn ContainerRuntime,
    ) -> Result<(String, Option<RuntimeState>), Failure> {
        if let Some(AdoptedContainer { id, .. }) = self.place(unit).adopted()? {
            let state = runtime.inspect(&id).await?;
            return Ok((id, state));
        }
        let name = name(unit);
        let state = runtime.inspect(&name).await?;
        Ok((name, state.filter(|state| self.is_ours(unit, state))))
    }

    /// Adopts an existing container for a unit, without changing it.
    pub(super) async fn take(
        &self,
        unit: &UnitName,
        desired: &Desired,
        wanted: &str,
        runtime: &dyn ContainerRuntime,
    ) -> Result<(), Failure> {
        let place = self.place(unit);
        if place.adopted()?.is_some() {
            return Ok(());
        }
        // Not for two units at once.
        let _taking = self.taking.lock().await;
        let which = runtime.which();
        // Some runtimes accept the beginning of an id in place of a name.
        let state = runtime.inspect(wanted).await?.filter(|state| state.name == wanted).ok_or_else(|| {
            never(
                Diagnostic::new(format_args!("{which} has no container {wanted} to adopt"))
                    .with_hint("`muster host show` lists the host's containers"),
            )
        })?;
        if state.labels.contains_key(HOST_LABEL) || state.labels.contains_key(UNIT_LABEL) {
            return Err(never(
                Diagnostic::new(format_args!("{wanted} was created by an agent for one of its units"))
                    .with_hint("adopt a container that was created otherwise"),
            ));
        }
        if let Some(keeper) = self.keeper(&state.id)? {
            return Err(never(format!("{wanted} was adopted already, as {keeper}")));
        }
        if let Some(why) = state.obstacle {
            return Err(never(why.within(format_args!("unsupported: {wanted} cannot be adopted"))));
        }
        if !desired.run.is_running() && is_alive(state.phase) {
            return Err(never(
                Diagnostic::new(format_args!("{wanted} is running, and `run` is stopped"))
                    .with_hint("adopt it with `run: running`, then stop it"),
            ));
        }
        place.write_adopted(&AdoptedContainer { runtime: which, name: wanted.to_owned(), id: state.id })
    }

    /// Starts an adopted container, unless it runs.
    pub(super) async fn start_adopted(
        &self,
        unit: &UnitName,
        start: &StartOrder,
        wanted: &str,
        runtime: Arc<dyn ContainerRuntime>,
    ) -> Result<ContainerInstance, StartError> {
        let StartOrder { desired, wiring, .. } = start;
        let (id, state) = self.find(unit, &*runtime).await?;
        let state = state.ok_or_else(|| gone(wanted, runtime.which()))?;
        self.note(unit, desired, wiring, frame(&desired.spec)?)?;
        if !is_alive(state.phase) {
            runtime.start(&id).await?;
        }
        let missing = limit(container(&desired.spec)?, &id, &*runtime).await;
        if let (Some(_), Some(started)) = (&missing, self.place(unit).started()?) {
            self.place(unit).write(&ContainerStartRecord { missing: missing.clone(), ..started })?;
        }
        let container = ContainerInstance::of(runtime, id, wiring.clone()).await.map_err(|_| StartError::Unknown)?;
        Ok(container.without(missing))
    }

    /// Returns the unit that has adopted a container, if any.
    fn keeper(&self, id: &str) -> Result<Option<UnitName>, Failure> {
        Ok(self.adopted()?.into_iter().find_map(|(unit, adopted)| (adopted.id == id).then_some(unit)))
    }

    /// Returns all adopted containers, by unit.
    pub(super) fn adopted(&self) -> Result<Vec<(UnitName, AdoptedContainer)>, Failure> {
        let traces =
            folders::traces(&self.folder).map_err(|error| UnitFolder(self.folder.clone()).failure("read", &error))?;
        let adopted = |unit: UnitName| Ok(self.place(&unit).adopted()?.map(|adopted| (unit, adopted)));
        traces.into_iter().filter_map(|trace| adopted(trace.unit).transpose()).collect()
    }
}

/// Sets the limits of its spec; returns those that it cannot have.
async fn limit(spec: &ContainerSpec, id: &str, runtime: &dyn ContainerRuntime) -> Option<Diagnostic> {
    if spec.program.limits.is_none() {
        return None;
    }
    match runtime.limit(id, spec.program.limits).await {
        Ok(true) => None,
        Ok(false) => Some(
            "limits: its runtime cannot change them while it runs, and an adopted container is not created again"
                .into(),
        ),
        Err(failure) => Some(failure.error.within("limits")),
    }
}

fn gone(wanted: &str, runtime: container::Runtime) -> Failure {
    never(
        Diagnostic::new(format_args!(
            "{runtime} no longer has the container {wanted} that was adopted, and an agent does not create it again"
        ))
        .with_hint("remove the unit (`muster unit retire`, `muster unit rm`), and adopt the container that exists now"),
    )
}

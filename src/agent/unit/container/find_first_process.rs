//! Asks the runtime for a container's first process, before something is run inside.

use muster_rules::plan::Failure;
use muster_topics::{Millis, diagnostic::Diagnostic, name::UnitName};

use super::{Containers, runtime::ContainerPhase};
use crate::unit::{
    failure::{may_heal, never},
    first_process::FirstProcess,
};

/// A container's first process, as its runtime reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::unit) struct FirstProcessId {
    pub(in crate::unit) pid: i32,
    pub(in crate::unit) frozen: bool,
    started_ms: Option<Millis>,
}

impl Containers {
    /// Returns the first process of a unit's container; `None` if it does not run, or is another unit's.
    pub(in crate::unit) async fn first(&self, unit: &UnitName) -> Result<Option<FirstProcessId>, Failure> {
        let Some(started) = self.place(unit).started()? else { return Ok(None) };
        let (_, state) = self.find(unit, &*self.runtime(started.runtime)?).await?;
        Ok(state.and_then(|state| match state.phase {
            ContainerPhase::Runs { pid, frozen, started_ms } => Some(FirstProcessId { pid, frozen, started_ms }),
            ContainerPhase::Made | ContainerPhase::Ended { .. } | ContainerPhase::Busy => None,
        }))
    }

    /// Returns the same for a process that was not seen starting: the runtime is asked twice, so that the process with
    /// this number in between is certainly the right one.
    pub(in crate::unit) async fn first_process(&self, unit: &UnitName) -> Result<FirstProcess, Failure> {
        let Some(first) = self.first(unit).await? else { return Err(never(format!("{unit} is not running"))) };
        if first.frozen {
            return Err(never(
                Diagnostic::new(format_args!("{unit} is frozen")).with_hint(format_args!("`muster unit thaw {unit}`")),
            ));
        }
        let stat = muster_shim::process_identity::stat(first.pid).filter(|stat| !stat.is_dead());
        match (stat, self.first(unit).await?) {
            (Some(stat), Some(again)) if again == first => {
                Ok(FirstProcess { pid: first.pid, start_ticks: stat.start_ticks })
            }
            _ => Err(may_heal(format!("{unit} is about to end or to restart"))),
        }
    }
}

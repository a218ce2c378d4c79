//! Measures the file systems of containers whose disk is limited.

use muster_session::unit_state::{UnitState, UnitStates};
use std::{collections::BTreeMap, path::Path, sync::Arc};

use muster_shim::process_identity;
use muster_topics::name::UnitName;

use super::filesystem::FileSystemSpace;

/// A running container with a disk limit.
#[derive(Clone, Debug)]
pub(super) struct LimitedContainer {
    pub(super) unit: UnitName,
    /// Its first process: the number, and when it was started.
    process: (i32, u64),
    most_bytes: u64,
}

/// The file system of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ContainerSpace {
    pub(super) unit: UnitName,
    pub(super) total_bytes: u64,
    /// The used part.
    pub(super) used_bytes: u64,
}

/// Returns the first process of each unit whose disk has no limit.
pub(super) fn unlimited(states: &UnitStates) -> BTreeMap<String, (i32, u64)> {
    let one = |(unit, state): (&UnitName, &Arc<UnitState>)| {
        let is_open = state.desired.spec.container()?.disk_bytes.is_none();
        Some((unit.to_string(), state.process.filter(|_| is_open)?))
    };
    states.iter().filter_map(one).collect()
}

/// Returns the units of this host with a disk limit.
pub(super) fn limited(states: &UnitStates) -> Vec<LimitedContainer> {
    let one = |(unit, state): (&UnitName, &Arc<UnitState>)| {
        let most_bytes = state.desired.spec.container()?.disk_bytes?;
        Some(LimitedContainer { unit: unit.clone(), process: state.process?, most_bytes })
    };
    states.iter().filter_map(one).collect()
}

/// Measures its file system. The limit applies to a file system of its own, no larger than the limit; a larger one is
/// the host's, of a revision without a limit.
pub(super) fn measure(LimitedContainer { unit, process, most_bytes }: LimitedContainer) -> Option<ContainerSpace> {
    let root = process_identity::is_still(process).then(|| format!("/proc/{}/root", process.0))?;
    let FileSystemSpace { total_bytes, used_bytes, .. } = FileSystemSpace::of(Path::new(&root))?;
    (1..=most_bytes).contains(&total_bytes).then_some(ContainerSpace { unit, total_bytes, used_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_file_systems_are_measured() {
        let (pid, start_ticks) = process_identity::identity(std::process::id().cast_signed()).unwrap();
        let unit: UnitName = "default/shop".parse().unwrap();
        let of =
            |start_ticks, most_bytes| LimitedContainer { unit: unit.clone(), process: (pid, start_ticks), most_bytes };
        let containers = [of(start_ticks, u64::MAX), of(start_ticks, 4096), of(start_ticks + 1, u64::MAX)];
        let rooms: Vec<_> = containers.into_iter().filter_map(measure).collect();
        let [root] = &rooms[..] else { panic!("{rooms:?}") };
        assert!(0 < root.used_bytes && root.used_bytes <= root.total_bytes, "{root:?}");
    }
}

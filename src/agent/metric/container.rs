//! Measures containers that are not units of this agent, by their cgroups.

use std::{collections::BTreeMap, sync::Arc};

use muster_topics::{Millis, catalogue::MetricGroup, metric::Point};

use super::{
    cgroup_counters::CgroupReader,
    group::DueGroups,
    point_writer::{PointWriter, bytes, ratio},
    process_figures::{CGROUP_MAX_BYTES, network_point, same_process},
    procfs::{ProcReader, own_network},
};
use crate::{
    cgroup::{CgroupFolders, Hierarchies},
    unit::{OtherContainer, OtherContainers},
};

/// Samples containers, and remembers the last sample for ratios.
#[derive(Debug)]
pub(super) struct ContainerSampler {
    hierarchies: Arc<Hierarchies>,
    all: BTreeMap<String, KnownContainer>,
}

/// A running container.
#[derive(Debug)]
struct KnownContainer {
    of: OtherContainer,
    places: CgroupFolders,
    /// Processor time since some beginning.
    busy_us: Option<u64>,
}

impl ContainerSampler {
    pub(super) fn new(hierarchies: Arc<Hierarchies>) -> Self {
        Self { hierarchies, all: BTreeMap::new() }
    }

    /// Processor time is a share of that of all processors, as for units: `host_us` since the last sample. `written` is
    /// known for some.
    pub(super) fn sample(
        &mut self,
        labelled: &PointWriter,
        reader: &mut ProcReader,
        (others, written): (&OtherContainers, &BTreeMap<String, u64>),
        host_us: Option<u64>,
        due: DueGroups,
        at_ms: Millis,
    ) -> Vec<Point> {
        let mut earlier = std::mem::take(&mut self.all);
        let mut points = Vec::new();
        for (name, other) in others.iter() {
            if same_process(reader, other.process).is_none() {
                continue;
            }
            let known = earlier.remove(name).filter(|known| known.of == *other);
            let mut known = known.unwrap_or_else(|| {
                let cgroups =
                    reader.read(format!("/proc/{}/cgroup", other.process.0), CGROUP_MAX_BYTES).unwrap_or_default();
                KnownContainer { of: *other, places: self.hierarchies.places(None, cgroups), busy_us: None }
            });
            let tags = [("container", name.as_str()), ("runtime", other.runtime.as_str())];
            let point = |measurement| labelled.point(measurement, &tags, at_ms);
            let mut account = CgroupReader { places: &known.places, reader };
            let resident = account.resident_bytes();
            points.extend(resident.map(|most| bytes(point("muster_container_memory"), &[("resident_bytes", most)])));
            let count = account.processes();
            points.extend(count.map(|count| bytes(point("muster_container_processes"), &[("count", count)])));
            let busy_us = account.busy_us();
            let before = std::mem::replace(&mut known.busy_us, busy_us);
            if let (Some(now), Some(before), Some(host_us)) = (busy_us, before, host_us) {
                let share = ratio(now.saturating_sub(before), host_us);
                points.push(point("muster_container_cpu").field("busy_ratio", share));
            }
            if due.has(MetricGroup::UnitDetails) {
                let network = own_network(reader, other.process.0);
                points.extend(network.map(|carried| network_point(point("muster_container_network"), carried)));
            }
            let used = written.get(name);
            points.extend(used.map(|used| bytes(point("muster_container_disk"), &[("used_bytes", *used)])));
            self.all.insert(name.clone(), known);
        }
        points
    }
}

#[cfg(test)]
mod tests {
    use muster_topics::container::Runtime;

    use super::{super::sample::tests::labelled, *};

    #[test]
    fn ended_container_is_not_measured() {
        let (pid, start_ticks) = muster_shim::process_identity::identity(std::process::id().cast_signed()).unwrap();
        let other = |start_ticks| OtherContainer { runtime: Runtime::Podman, process: (pid, start_ticks) };
        let (mut reader, mut sampler) = (ProcReader::default(), ContainerSampler::new(Arc::new(Hierarchies::detect())));
        let gone: OtherContainers = Arc::new([("gone".to_owned(), other(start_ticks + 1))].into());
        let written = BTreeMap::from([("gone".to_owned(), 7)]);
        assert_eq!(sampler.sample(&labelled(), &mut reader, (&gone, &written), None, DueGroups::ALL, 1), []);
        // This process is only in the agent's cgroup, which is no container's.
        let own: OtherContainers = Arc::new([("own".to_owned(), other(start_ticks))].into());
        assert_eq!(sampler.sample(&labelled(), &mut reader, (&own, &written), None, DueGroups::ALL, 1), []);
        assert_eq!(sampler.all.len(), 1);
    }
}

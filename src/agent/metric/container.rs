//! Containers that are no units of this host's agent: what all that is in them uses, as their cgroups tell.

use std::collections::BTreeMap;

use muster_topics::{Millis, metric::Point};

use super::{
    account::Account,
    procfs::{CpuTicks, Reader},
    sample::{Labelled, bytes, ratio},
    unit::{CGROUP_MAX_BYTES, process, tick_us},
};
use crate::agent::{
    cgroup::{Hierarchies, Places},
    unit::{Other, Others},
};

/// Takes samples of them, and remembers of the last one what ratios need.
#[derive(Debug)]
pub(super) struct ContainerSampler {
    hierarchies: Hierarchies,
    tick_us: u64,
    /// What all processors had done at the last sample.
    host: Option<CpuTicks>,
    all: BTreeMap<String, Known>,
}

/// One that runs.
#[derive(Debug)]
struct Known {
    of: Other,
    places: Places,
    /// Processor time since some beginning.
    busy_us: Option<u64>,
}

impl ContainerSampler {
    pub(super) fn new() -> Self {
        Self { hierarchies: Hierarchies::detect(), tick_us: tick_us(), host: None, all: BTreeMap::new() }
    }

    /// Their processor time is in shares of all processors, as that of units is. `host` is what all have done until now.
    pub(super) fn sample(
        &mut self,
        labelled: &Labelled,
        reader: &mut Reader,
        others: &Others,
        host: Option<CpuTicks>,
        at_ms: Millis,
    ) -> Vec<Point> {
        let since = host.zip(self.host).map(|(now, earlier)| now.since(earlier).total()).filter(|ticks| *ticks > 0);
        self.host = host;
        let mut earlier = std::mem::take(&mut self.all);
        let mut points = Vec::new();
        for (name, other) in others.iter() {
            let (pid, start_ticks) = other.process;
            // A number of a process is used again.
            if process(reader, &pid.to_string()).is_none_or(|process| process.start_ticks != start_ticks) {
                continue;
            }
            let known = earlier.remove(name).filter(|known| known.of == *other);
            let mut known = known.unwrap_or_else(|| {
                let cgroups = reader.read(format!("/proc/{pid}/cgroup"), CGROUP_MAX_BYTES).unwrap_or_default();
                Known { of: *other, places: self.hierarchies.places(None, cgroups), busy_us: None }
            });
            let tags = [("container", name.as_str()), ("runtime", other.runtime.as_str())];
            let point = |measurement| labelled.point(measurement, &tags, at_ms);
            let mut account = Account { places: &known.places, reader };
            let resident = account.resident_bytes();
            points.extend(resident.map(|most| bytes(point("muster_container_memory"), &[("resident_bytes", most)])));
            let count = account.processes();
            points.extend(count.map(|count| bytes(point("muster_container_processes"), &[("count", count)])));
            let busy_us = account.busy_us();
            let before = std::mem::replace(&mut known.busy_us, busy_us);
            if let (Some(now), Some(before), Some(ticks)) = (busy_us, before, since) {
                let share = ratio(now.saturating_sub(before), ticks.saturating_mul(self.tick_us));
                points.push(point("muster_container_cpu").field("busy_ratio", share));
            }
            self.all.insert(name.clone(), known);
        }
        points
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_topics::container::Runtime;

    use super::{super::sample::tests::labelled, *};

    #[test]
    fn one_that_has_ended_is_not_measured() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let start_ticks = muster_shim::proc::stat(pid).unwrap().start_ticks;
        let other = |start_ticks| Other { runtime: Runtime::Podman, process: (pid, start_ticks) };
        let (mut reader, mut sampler) = (Reader::default(), ContainerSampler::new());
        let gone: Others = Arc::new([("gone".to_owned(), other(start_ticks + 1))].into());
        assert_eq!(sampler.sample(&labelled(), &mut reader, &gone, None, 1), []);
        // This process is in no cgroup but the agent's, which is nobody's container.
        let own: Others = Arc::new([("own".to_owned(), other(start_ticks))].into());
        assert_eq!(sampler.sample(&labelled(), &mut reader, &own, None, 1), []);
        assert_eq!(sampler.all.len(), 1);
    }
}

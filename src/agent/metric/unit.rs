//! Measures the processes of units.
//!
//! A unit with a cgroup of its own is measured by it, including every process that it forked. For a unit without one only
//! the main process is measured; the same holds for what a v1 hierarchy does not count, because the agent creates cgroups there for limits only.

use muster_session::unit_state::{UnitState, UnitStates};
use std::{collections::BTreeMap, sync::Arc};

use muster_topics::{Millis, catalogue::MetricGroup, channel::ToldStats, metric::Point, name::UnitName};
use nix::unistd::{SysconfVar, sysconf};

use super::{
    cgroup_counters::{CgroupReader, process_io},
    group::DueGroups,
    point_writer::{PointWriter, bytes, ratio, seconds},
    procfs::{ProcReader, ProcessStat, own_network},
};
use crate::cgroup::{CgroupFolders, Hierarchies};

pub(super) use super::process_figures::{CGROUP_MAX_BYTES, network_point, same_process};

/// `/proc/<pid>/stat` has 52 numbers and a name of at most 64 bytes.
const PROCESS_MAX_BYTES: usize = 2048;

/// The size of a page, if the kernel does not tell.
const PAGE_BYTES: u64 = 4096;
/// The number of ticks in a second, if the kernel does not tell.
const TICKS: u64 = 100;

/// Samples units, and remembers the last sample for ratios.
#[derive(Debug)]
pub(super) struct UnitSampler {
    hierarchies: Arc<Hierarchies>,
    pub(super) page_bytes: u64,
    tick_us: u64,
    units: BTreeMap<UnitName, KnownUnit>,
}

/// A running unit.
#[derive(Debug)]
struct KnownUnit {
    /// Process id and start time: together they are unique.
    identity: (i32, u64),
    places: CgroupFolders,
    busy: Option<BusyTime>,
}

/// Processor time since some beginning.
#[derive(Clone, Copy, Debug)]
struct BusyTime {
    us: u64,
    /// Whether it is the whole cgroup's, rather than the main process's.
    is_whole: bool,
}

impl UnitSampler {
    pub(super) fn new(hierarchies: Arc<Hierarchies>) -> Self {
        Self {
            hierarchies,
            page_bytes: conf(SysconfVar::PAGE_SIZE).unwrap_or(PAGE_BYTES),
            tick_us: tick_us(),
            units: BTreeMap::new(),
        }
    }

    /// Processor time is a share of that of all processors, as the host's is, so that shares add up: `host_us` since
    /// the last sample of usage.
    pub(super) fn sample(
        &mut self,
        labelled: &PointWriter,
        reader: &mut ProcReader,
        units: &UnitStates,
        host_us: Option<u64>,
        due: DueGroups,
        at_ms: Millis,
    ) -> Vec<Point> {
        let (usage, details) = (due.has(MetricGroup::Units), due.has(MetricGroup::UnitDetails));
        let mut earlier = std::mem::take(&mut self.units);
        let mut points = Vec::new();
        for (name, state) in units.iter() {
            let kind = state.desired.spec.kind();
            let point = |measurement| labelled.unit_point(measurement, name, kind, at_ms);
            if usage {
                let attempts = u64::from(state.observed.attempts);
                points.push(bytes(point("muster_unit_restart"), &[("attempts", attempts)]));
            }
            let Some((identity, process)) = unit_process(reader, state) else { continue };
            let known = earlier.remove(name).filter(|known| known.identity == identity);
            let mut known = known.unwrap_or_else(|| self.meet(reader, name, state, identity));
            let mut account = CgroupReader { places: &known.places, reader };
            let (mut cpu, mut memory) = (point("muster_unit_cpu"), point("muster_unit_memory"));
            if usage {
                let whole = account.resident_bytes();
                let resident = whole.unwrap_or_else(|| process.resident_pages.saturating_mul(self.page_bytes));
                memory = bytes(memory, &[("resident_bytes", resident)]);
                let busy = match account.busy_us() {
                    Some(us) => BusyTime { us, is_whole: true },
                    None => BusyTime { us: process.busy_ticks.saturating_mul(self.tick_us), is_whole: false },
                };
                let before = known.busy.replace(busy).filter(|before| before.is_whole == busy.is_whole);
                if let Some((before, host_us)) = before.zip(host_us) {
                    cpu = cpu.field("busy_ratio", ratio(busy.us.saturating_sub(before.us), host_us));
                }
            }
            if details {
                if let Some(us) = account.throttled_us() {
                    cpu = cpu.field("throttled_seconds_total", seconds(us));
                }
                if let Some(limit) = account.limit_bytes() {
                    memory = bytes(memory, &[("limit_bytes", limit)]);
                }
                let count = account.processes();
                points.extend(count.map(|count| bytes(point("muster_unit_processes"), &[("count", count)])));
                let io = account
                    .io()
                    .or_else(|| process_io(reader.read(format!("/proc/{}/io", identity.0), PROCESS_MAX_BYTES)?));
                points.extend(io.map(|io| {
                    let fields = [("read_bytes_total", io.read_bytes), ("written_bytes_total", io.written_bytes)];
                    bytes(point("muster_unit_io"), &fields)
                }));
                let network = state.desired.spec.container().and_then(|_| own_network(reader, identity.0));
                points.extend(network.map(|carried| network_point(point("muster_unit_network"), carried)));
            }
            points.extend([cpu, memory].into_iter().filter(|point| !point.fields.is_empty()));
            self.units.insert(name.clone(), known);
        }
        points
    }

    /// Starts to follow a process that did not exist at the last sample.
    fn meet(&self, reader: &mut ProcReader, name: &UnitName, state: &UnitState, identity: (i32, u64)) -> KnownUnit {
        let cgroups = reader.read(format!("/proc/{}/cgroup", identity.0), CGROUP_MAX_BYTES).unwrap_or_default();
        let places = self.hierarchies.places(state.desired.spec.yuno().map(|_| name), cgroups);
        KnownUnit { identity, places, busy: None }
    }
}

fn conf(var: SysconfVar) -> Option<u64> {
    sysconf(var).ok().flatten().and_then(|value| u64::try_from(value).ok()).filter(|value| *value > 0)
}

/// Returns the length of a tick in microseconds.
pub(super) fn tick_us() -> u64 {
    1_000_000 / conf(SysconfVar::CLK_TCK).unwrap_or(TICKS)
}

/// Returns a unit's main process, if it is still the one that was started: process ids are reused.
fn unit_process(reader: &mut ProcReader, state: &UnitState) -> Option<((i32, u64), ProcessStat)> {
    let identity = state.process.filter(|(pid, _)| *pid > 0)?;
    Some((identity, same_process(reader, identity)?))
}

/// Reads one process, by its number or as `self`.
pub(super) fn process(reader: &mut ProcReader, pid: &str) -> Option<ProcessStat> {
    reader.read(format!("/proc/{pid}/stat"), PROCESS_MAX_BYTES).and_then(ProcessStat::parse)
}

/// Returns the statistics of yunos: `muster_yuno_<name>`, for names that can be part of a series' name. The last values
/// are repeated as long as the yuno runs.
pub(super) fn stats(
    labelled: &PointWriter,
    units: &UnitStates,
    told: &BTreeMap<UnitName, ToldStats>,
    at_ms: Millis,
) -> Vec<Point> {
    let runs = |name: &UnitName| units.get(name).filter(|state| state.process.is_some());
    let point = |(name, told): (&UnitName, &ToldStats)| {
        let state = runs(name)?;
        let empty = labelled.unit_point("muster_yuno", name, state.desired.spec.kind(), at_ms);
        let numbers = told.values.iter().filter_map(|(name, value)| Some((series_name(name)?, value.as_f64()?)));
        let point = numbers.fold(empty, |point, (name, value)| point.field(&name, value));
        (!point.fields.is_empty()).then_some(point)
    };
    told.iter().filter_map(point).collect()
}

/// Converts a name to one that Prometheus accepts: other characters become `_`. `None` for a name without letters and
/// digits.
fn series_name(name: &str) -> Option<String> {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    name.contains(|c: char| c.is_ascii_alphanumeric()).then(|| name.chars().map(plain).collect())
}

#[cfg(test)]
mod tests {
    use super::super::process_figures::HostTime;
    use std::{
        fs,
        process::{Child, Command, Stdio},
        time::{Duration, Instant},
    };

    use muster_rules::plan::Slot;
    use serde_json::json;

    use super::super::procfs::CpuTicks;
    use super::{
        super::sample::tests::{labelled, unit},
        *,
    };
    use crate::cgroup::CgroupTree;

    /// A shell that is idle itself and forks short-lived busy processes.
    struct Forking(Child);

    impl Forking {
        fn new() -> Self {
            let script = "while :; do (i=0; while [ $i -lt 2000 ]; do i=$((i + 1)); done); done";
            let child = Command::new("sh").args(["-c", script]).stdin(Stdio::null()).spawn().unwrap();
            Self(child)
        }

        fn process(&self) -> (i32, u64) {
            let pid = self.0.id();
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            (pid.cast_signed(), ProcessStat::parse(&stat).unwrap().start_ticks)
        }
    }

    impl Drop for Forking {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn value(points: &[Point], measurement: &str, field: &str) -> Option<f64> {
        let point = points.iter().find(|point| point.measurement == measurement)?;
        point.fields.iter().find(|(name, _)| name == field).map(|(_, value)| *value)
    }

    #[test]
    fn forked_processes_are_measured_with_a_cgroup() {
        let data_dir = tempfile::tempdir().unwrap();
        let tree = CgroupTree::detect(data_dir.path());
        let name: UnitName = "default/hello".parse().unwrap();
        let limits = serde_json::from_value(json!({"memory_bytes": 64 * 1024 * 1024, "pids": 50})).unwrap();
        let made = tree.prepare((&name, Slot::First), &limits).unwrap();
        let forking = Forking::new();
        let (pid, start_ticks) = forking.process();
        for folder in made.cgroup.folders() {
            fs::write(folder.join("cgroup.procs"), pid.to_string()).unwrap();
        }
        let (units, mut reader, mut host) = (unit(Some((pid, start_ticks))), ProcReader::default(), HostTime::new());
        let mut sampler = UnitSampler::new(Arc::new(Hierarchies::detect()));
        let began = Instant::now();
        let points = loop {
            let host_us = host.passed_us(reader.read("/proc/stat", 512).and_then(CpuTicks::parse));
            let points = sampler.sample(&labelled(), &mut reader, &units, host_us, DueGroups::ALL, 1);
            if value(&points, "muster_unit_cpu", "busy_ratio").is_some_and(|ratio| ratio > 0.05) {
                break points;
            }
            assert!(began.elapsed() < Duration::from_secs(60) || made.cgroup.is_none(), "{points:?}");
            if made.cgroup.is_none() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        assert!(value(&points, "muster_unit_processes", "count").is_some_and(|count| count >= 1.0), "{points:?}");
        // Not all its memory: what it allocated before it moved here is counted in its former cgroup.
        assert!(value(&points, "muster_unit_memory", "resident_bytes").is_some_and(|bytes| bytes > 0.0), "{points:?}");
        let is_limited = !made.missing.iter().any(|missing| missing.cause.contains("memory"));
        let limit = value(&points, "muster_unit_memory", "limit_bytes");
        assert_eq!(limit, is_limited.then_some(64.0 * 1024.0 * 1024.0), "{:?}", made.missing);
        drop(forking);
        // Its forked processes end by themselves.
        let began = Instant::now();
        while !made.cgroup.is_empty() && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(10));
        }
        tree.remove((&name, Slot::First));
    }

    #[test]
    fn reported_stats_become_series() {
        let units = unit(Some((1, 1)));
        let values = json!({"requests": 7, "queue.length": 2.5, "name": "x", "ok": true, "!": 1, "none": null});
        let values: BTreeMap<String, serde_json::Value> = serde_json::from_value(values).unwrap();
        let of = |name: &str| (name.parse::<UnitName>().unwrap(), ToldStats::new(5, values.clone()));
        let told = BTreeMap::from([of("default/hello"), of("default/gone")]);
        let points = stats(&labelled(), &units, &told, 1);
        let [point] = &points[..] else { panic!("{points:?}") };
        assert_eq!(point.measurement, "muster_yuno");
        assert_eq!(point.fields, [("queue_length".to_owned(), 2.5), ("requests".to_owned(), 7.0)]);
        assert!(point.tags.contains(&("unit".to_owned(), "hello".to_owned())));
        assert_eq!(stats(&labelled(), &unit(None), &told, 1), [], "what is not running tells nothing");
        assert_eq!(stats(&labelled(), &Arc::default(), &told, 1), []);
    }
}

//! Units: what their processes use.
//!
//! A unit with a cgroup of its own is counted by that, with whatever it has forked, however short that lived. Of one without, it
//! is the main process alone; so also what a hierarchy of v1 does not count, for the agent makes cgroups there for limits only.

use std::{collections::BTreeMap, sync::Arc};

use muster_topics::{Millis, channel::ToldStats, metric::Point, name::UnitName};
use nix::unistd::{SysconfVar, sysconf};

use super::{
    account::{Account, process_io},
    group::{Due, Group},
    procfs::{CpuTicks, ProcessStat, Reader, own_network},
    sample::{Labelled, bytes, ratio, seconds},
};
use crate::agent::{
    cgroup::{Hierarchies, Places},
    unit::{UnitState, UnitStates},
};

/// `/proc/<pid>/stat` has 52 numbers and a name of at most 64 bytes.
const PROCESS_MAX_BYTES: usize = 2048;
/// `/proc/<pid>/cgroup` has a path for each of at most 14 hierarchies.
pub(super) const CGROUP_MAX_BYTES: usize = 16 * 1024;
/// What the kernel takes for the size of a page, should it not say.
const PAGE_BYTES: u64 = 4096;
/// How many ticks there are in a second, should the kernel not say.
const TICKS: u64 = 100;

/// Takes samples of units, and remembers of the last one what ratios need.
#[derive(Debug)]
pub(super) struct UnitSampler {
    hierarchies: Arc<Hierarchies>,
    pub(super) page_bytes: u64,
    tick_us: u64,
    units: BTreeMap<UnitName, Known>,
}

/// A unit that runs.
#[derive(Debug)]
struct Known {
    /// Process id and start time: together they are used once.
    identity: (i32, u64),
    places: Places,
    busy: Option<Busy>,
}

/// Processor time since some beginning.
#[derive(Clone, Copy, Debug)]
struct Busy {
    us: u64,
    /// Of the whole cgroup, rather than of the main process.
    is_whole: bool,
}

/// The time of all processors, of which what units use is a share.
#[derive(Debug)]
pub(super) struct HostTime {
    tick_us: u64,
    last: Option<CpuTicks>,
}

impl HostTime {
    pub(super) fn new() -> Self {
        Self { tick_us: tick_us(), last: None }
    }

    /// How much has passed since the last time, in microseconds; nothing the first time. `now` is what all have done until now.
    pub(super) fn passed_us(&mut self, now: Option<CpuTicks>) -> Option<u64> {
        let last = std::mem::replace(&mut self.last, now);
        let ticks = now.zip(last).map(|(now, last)| now.since(last).total()).filter(|ticks| *ticks > 0)?;
        Some(ticks.saturating_mul(self.tick_us))
    }
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

    /// Units' processor time is in shares of that of all processors, as the host's is, so that it adds up to it: `host_us` since
    /// usage was last due.
    pub(super) fn sample(
        &mut self,
        labelled: &Labelled,
        reader: &mut Reader,
        units: &UnitStates,
        host_us: Option<u64>,
        due: Due,
        at_ms: Millis,
    ) -> Vec<Point> {
        let (usage, details) = (due.has(Group::Units), due.has(Group::UnitDetails));
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
            let mut account = Account { places: &known.places, reader };
            let (mut cpu, mut memory) = (point("muster_unit_cpu"), point("muster_unit_memory"));
            if usage {
                let whole = account.resident_bytes();
                let resident = whole.unwrap_or_else(|| process.resident_pages.saturating_mul(self.page_bytes));
                memory = bytes(memory, &[("resident_bytes", resident)]);
                let busy = match account.busy_us() {
                    Some(us) => Busy { us, is_whole: true },
                    None => Busy { us: process.busy_ticks.saturating_mul(self.tick_us), is_whole: false },
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

    /// A process that was not there at the last sample.
    fn meet(&self, reader: &mut Reader, name: &UnitName, state: &UnitState, identity: (i32, u64)) -> Known {
        let cgroups = reader.read(format!("/proc/{}/cgroup", identity.0), CGROUP_MAX_BYTES).unwrap_or_default();
        let places = self.hierarchies.places(state.desired.spec.yuno().map(|_| name), cgroups);
        Known { identity, places, busy: None }
    }
}

/// Bytes that a network has carried, in and out.
pub(super) fn network_point(point: Point, [received, sent]: [u64; 2]) -> Point {
    bytes(point, &[("receive_bytes_total", received), ("transmit_bytes_total", sent)])
}

fn conf(var: SysconfVar) -> Option<u64> {
    sysconf(var).ok().flatten().and_then(|value| u64::try_from(value).ok()).filter(|value| *value > 0)
}

/// How long a tick of the processors is, in microseconds.
fn tick_us() -> u64 {
    1_000_000 / conf(SysconfVar::CLK_TCK).unwrap_or(TICKS)
}

/// A unit's main process, if it is still the one that the unit started: process ids are used again.
fn unit_process(reader: &mut Reader, state: &UnitState) -> Option<((i32, u64), ProcessStat)> {
    let identity = state.process.filter(|(pid, _)| *pid > 0)?;
    Some((identity, same_process(reader, identity)?))
}

/// A process, if its number still means it.
pub(super) fn same_process(reader: &mut Reader, (pid, start_ticks): (i32, u64)) -> Option<ProcessStat> {
    process(reader, &pid.to_string()).filter(|process| process.start_ticks == start_ticks)
}

/// One process, by its number or as `self`.
pub(super) fn process(reader: &mut Reader, pid: &str) -> Option<ProcessStat> {
    reader.read(format!("/proc/{pid}/stat"), PROCESS_MAX_BYTES).and_then(ProcessStat::parse)
}

/// What yunos have told of themselves: `muster_yuno_<name>`, of those numbers whose names can be part of a
/// series' name. Who stops telling has its last numbers repeated for as long as it runs.
pub(super) fn stats(
    labelled: &Labelled,
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

/// A name that Prometheus takes: what it does not becomes `_`. Nothing of a name with no letter or digit.
fn series_name(name: &str) -> Option<String> {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    name.contains(|c: char| c.is_ascii_alphanumeric()).then(|| name.chars().map(plain).collect())
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        process::{Child, Command, Stdio},
        time::{Duration, Instant},
    };

    use serde_json::json;

    use super::{
        super::sample::tests::{labelled, unit},
        *,
    };
    use crate::{agent::cgroup::Tree, rules::plan::Slot};

    /// A shell that does nothing itself: what it forks does, each for a moment.
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
    fn what_a_unit_forks_is_counted_where_it_has_a_cgroup() {
        let data_dir = tempfile::tempdir().unwrap();
        let tree = Tree::detect(data_dir.path());
        let name: UnitName = "default/hello".parse().unwrap();
        let limits = serde_json::from_value(json!({"memory_bytes": 64 * 1024 * 1024, "pids": 50})).unwrap();
        let made = tree.prepare((&name, Slot::First), &limits).unwrap();
        let forking = Forking::new();
        let (pid, start_ticks) = forking.process();
        for folder in made.cgroup.folders() {
            fs::write(folder.join("cgroup.procs"), pid.to_string()).unwrap();
        }
        let (units, mut reader, mut host) = (unit(Some((pid, start_ticks))), Reader::default(), HostTime::new());
        let mut sampler = UnitSampler::new(Arc::new(Hierarchies::detect()));
        let began = Instant::now();
        let points = loop {
            let host_us = host.passed_us(reader.read("/proc/stat", 512).and_then(CpuTicks::parse));
            let points = sampler.sample(&labelled(), &mut reader, &units, host_us, Due::ALL, 1);
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
        // Not all that it has: what it took before it came here is counted where it was.
        assert!(value(&points, "muster_unit_memory", "resident_bytes").is_some_and(|bytes| bytes > 0.0), "{points:?}");
        let is_limited = !made.missing.iter().any(|missing| missing.contains("memory"));
        let limit = value(&points, "muster_unit_memory", "limit_bytes");
        assert_eq!(limit, is_limited.then_some(64.0 * 1024.0 * 1024.0), "{:?}", made.missing);
        drop(forking);
        // What it had forked ends by itself.
        let began = Instant::now();
        while !made.cgroup.is_empty() && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(10));
        }
        tree.remove((&name, Slot::First));
    }

    #[test]
    fn what_yunos_tell_becomes_series() {
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
        assert_eq!(stats(&labelled(), &unit(None), &told, 1), [], "what does not run tells nothing");
        assert_eq!(stats(&labelled(), &Arc::default(), &told, 1), []);
    }
}

//! Takes one sample: the host, its units, and the agent itself, as points.
//!
//! **Invariant: a sample reads a fixed number of files, and at most nine for each running unit.** It scans neither all processes nor
//! `/sys`: the agent's budget is a thousandth of a processor. (Disk usage of containers is counted
//! separately, in [`super::container_disk_usage`].)
//!
//! **Invariant: a sample has nothing that is not in the catalogue of metrics.**
//!
//! Values are rounded to their precision, because each digit costs bytes: ratios to a ten-thousandth (a sample of ten
//! seconds has a few thousand ticks), bytes to whole ones, seconds of waiting to a hundredth.

use std::{collections::BTreeMap, sync::Arc};

use muster_topics::{
    Millis,
    catalogue::{self, MetricGroup},
    channel::ToldStats,
    metric::Point,
    name::UnitName,
};
use sysinfo::{MemoryRefreshKind, System};

use super::{
    agent_metrics::OwnSampler,
    container::ContainerSampler,
    container_filesystem::ContainerSpace,
    disk::DiskUsage,
    figures::MetricSources,
    group::DueGroups,
    io_pressure::{DiskIo, PressureStall},
    process_figures::HostTime,
    procfs::{CpuTicks, InterfaceTraffic, ProcReader, TrafficCount},
    resource::ResourceUsage,
    tags::HostTags,
    time,
    unit::{self, UnitSampler},
};
use crate::{cgroup::Hierarchies, store::metric::StoreFigures};

pub(super) use super::point_writer::{PointWriter, bytes, ratio, seconds};

/// The first line of `/proc/stat` has ten numbers.
const STAT_MAX_BYTES: usize = 512;
/// The lines of processors come next, each of at most 120 bytes.
const STAT_CORES_MAX_BYTES: usize = 32 * 1024;
/// The most processors that are reported individually; hosts with more are rare, and their batches are long enough.
const CORES_MAX: usize = 256;
/// `/proc/net/dev` has 120 bytes for each interface.
const NET_MAX_BYTES: usize = 64 * 1024;
/// The most interfaces that are reported.
const INTERFACES_MAX: usize = 32;
/// `/proc/diskstats` has 150 bytes for each disk and partition.
const DISKSTATS_MAX_BYTES: usize = 64 * 1024;
/// The most disks that are reported.
const DISKS_MAX: usize = 32;
/// A file of `/proc/pressure` has two lines.
const PRESSURE_MAX_BYTES: usize = 512;

/// Inputs that are collected before a sample is taken.
#[derive(Debug, Default)]
pub(super) struct CollectedInputs {
    /// File systems.
    pub(super) disks: Vec<DiskUsage>,
    /// The warmest sensor, if there is any.
    pub(super) celsius: Option<f64>,
    /// Open files, processes and the like.
    pub(super) resources: Vec<ResourceUsage>,
    /// File systems of containers.
    pub(super) rooms: Vec<ContainerSpace>,
    /// Bytes written by containers whose disk has no limit, by unit.
    pub(super) written: BTreeMap<String, u64>,
    /// The same for containers that are not units, by name.
    pub(super) written_by_others: BTreeMap<String, u64>,
    /// The store's figures.
    pub(super) stored: Option<StoreFigures>,
    /// Statistics that yunos reported.
    pub(super) stats: BTreeMap<UnitName, ToldStats>,
}

fn tags(labels: &HostTags) -> [(&'static str, String); 2] {
    [("host", labels.host.to_string()), ("hostname", labels.hostname.clone())]
}

/// Takes samples, and remembers the last one for ratios.
#[derive(Debug)]
pub(super) struct Sampler {
    labelled: PointWriter,
    system: Option<System>,
    reader: ProcReader,
    cpu: Option<CpuTicks>,
    cores: BTreeMap<u32, CpuTicks>,
    host: HostTime,
    units: UnitSampler,
    containers: ContainerSampler,
    own: OwnSampler,
    processors: u64,
}

impl Sampler {
    /// Creates it before the first sample.
    pub(super) fn new(labels: &HostTags) -> Self {
        let hierarchies = Arc::new(Hierarchies::detect());
        let units = UnitSampler::new(Arc::clone(&hierarchies));
        Self {
            labelled: PointWriter { labels: tags(labels), page_bytes: units.page_bytes },
            system: System::new().ok(),
            reader: ProcReader::default(),
            cpu: None,
            cores: BTreeMap::new(),
            host: HostTime::new(),
            units,
            containers: ContainerSampler::new(hierarchies),
            own: OwnSampler::default(),
            processors: std::thread::available_parallelism().map_or(1, |count| count.get() as u64),
        }
    }

    /// Gives later points other tags.
    pub(super) fn set_labels(&mut self, labels: &HostTags) {
        self.labelled.labels = tags(labels);
    }

    /// Samples the groups that are due. Ratios are over the time since the last sample of their group; the first has
    /// none.
    pub(super) fn sample(
        &mut self,
        due: DueGroups,
        sources: &MetricSources,
        asked: &CollectedInputs,
        at_ms: Millis,
    ) -> Vec<Point> {
        let mut points = Vec::with_capacity(32);
        let host = self.processors(due, &mut points, at_ms);
        self.load_and_memory(due, &mut points, at_ms);
        for (resource, path) in
            [("cpu", "/proc/pressure/cpu"), ("memory", "/proc/pressure/memory"), ("io", "/proc/pressure/io")]
        {
            let read = due.has(MetricGroup::Pressure).then(|| self.reader.read(path, PRESSURE_MAX_BYTES)).flatten();
            points.extend(read.and_then(PressureStall::parse).map(|pressure| self.pressure(resource, pressure, at_ms)));
        }
        self.disks(due, asked, &mut points, at_ms);
        self.network(due, &mut points, at_ms);
        points.extend(asked.resources.iter().map(|resource| self.resource(*resource, at_ms)));
        if due.has(MetricGroup::Uptime)
            && let Ok(seconds) = System::uptime()
        {
            points.push(bytes(self.point("muster_host_uptime", &[], at_ms), &[("seconds", seconds)]));
        }
        let offset = due.has(MetricGroup::Clock).then(time::offset_seconds).flatten();
        points.extend(offset.map(|offset| self.point("muster_host_clock", &[], at_ms).field("offset_seconds", offset)));
        let states = sources.units.borrow().clone();
        let host_us = due.has(MetricGroup::Units).then(|| self.host.passed_us(host)).flatten();
        if due.has(MetricGroup::Units) || due.has(MetricGroup::UnitDetails) {
            points.extend(self.units.sample(&self.labelled, &mut self.reader, &states, host_us, due, at_ms));
        }
        if due.has(MetricGroup::Units)
            && let Some(keeper) = &sources.keeper
        {
            let others = keeper.other_containers();
            let others = (&others, &asked.written_by_others);
            points.extend(self.containers.sample(&self.labelled, &mut self.reader, others, host_us, due, at_ms));
        }
        points.extend(asked.rooms.iter().map(|ContainerSpace { unit, total_bytes, used_bytes }| {
            let point = self.labelled.unit_point("muster_unit_disk", unit, "container", at_ms);
            bytes(point, &[("total_bytes", *total_bytes), ("used_bytes", *used_bytes)])
        }));
        points.extend(states.keys().filter_map(|unit| {
            let point = self.labelled.unit_point("muster_unit_disk", unit, "container", at_ms);
            Some(bytes(point, &[("used_bytes", *asked.written.get(unit.as_str())?)]))
        }));
        points.extend(unit::stats(&self.labelled, &states, &asked.stats, at_ms));
        if due.has(MetricGroup::Agent) {
            let (labelled, reader) = (&self.labelled, &mut self.reader);
            points.extend(self.own.sample(labelled, reader, sources, asked.stored, self.processors, at_ms));
        }
        debug_assert_eq!(points.iter().find_map(catalogue::unlisted), None, "not in the catalogue of metrics");
        points
    }

    /// Samples the processors, together and each; returns the total so far.
    fn processors(&mut self, due: DueGroups, points: &mut Vec<Point>, at_ms: Millis) -> Option<CpuTicks> {
        let cores = due.has(MetricGroup::Cores);
        if !(cores || due.has(MetricGroup::Cpu) || due.has(MetricGroup::Units)) {
            return None;
        }
        let text = self.reader.read("/proc/stat", if cores { STAT_CORES_MAX_BYTES } else { STAT_MAX_BYTES })?;
        let now = CpuTicks::parse(text);
        if cores {
            let each: BTreeMap<u32, CpuTicks> = CpuTicks::parse_cores(text).take(CORES_MAX).collect();
            for (core, now) in &each {
                let since = self.cores.get(core).map(|earlier| now.since(*earlier));
                if let Some(since) = since.filter(|since| since.total() > 0) {
                    let point = self.point("muster_host_cpu_core", &[("core", &core.to_string())], at_ms);
                    points.push(point.field("busy_ratio", ratio(since.busy(), since.total())));
                }
            }
            self.cores = each;
        }
        if due.has(MetricGroup::Cpu) {
            let since = now.zip(self.cpu).map(|(now, earlier)| now.since(earlier)).filter(|since| since.total() > 0);
            points.extend(since.map(|since| self.cpu(since, at_ms)));
            self.cpu = now;
        }
        now
    }

    fn cpu(&self, since: CpuTicks, at_ms: Millis) -> Point {
        self.point("muster_host_cpu", &[], at_ms)
            .field("busy_ratio", ratio(since.busy(), since.total()))
            .field("user_ratio", ratio(since.user, since.total()))
            .field("system_ratio", ratio(since.system, since.total()))
            .field("iowait_ratio", ratio(since.iowait, since.total()))
            .field("steal_ratio", ratio(since.steal, since.total()))
    }

    fn load_and_memory(&mut self, due: DueGroups, points: &mut Vec<Point>, at_ms: Millis) {
        if due.has(MetricGroup::Load)
            && let Ok(load) = System::load_average()
        {
            let point = self.point("muster_host_load", &[], at_ms);
            points.push(point.field("1m", load.one).field("5m", load.five).field("15m", load.fifteen));
        }
        let Some(system) = self.system.as_mut().filter(|_| due.has(MetricGroup::Memory)) else { return };
        system.refresh_memory_specifics(MemoryRefreshKind::everything());
        let (total, available) = (system.total_memory(), system.available_memory());
        let (swap_total, swap_free) = (system.total_swap(), system.free_swap());
        if total > 0 {
            let used = total.saturating_sub(available);
            let fields = [("total_bytes", total), ("used_bytes", used), ("available_bytes", available)];
            points.push(bytes(self.point("muster_host_memory", &[], at_ms), &fields));
            let fields = [("total_bytes", swap_total), ("used_bytes", swap_total.saturating_sub(swap_free))];
            points.push(bytes(self.point("muster_host_swap", &[], at_ms), &fields));
        }
    }

    fn pressure(&self, resource: &str, pressure: PressureStall, at_ms: Millis) -> Point {
        let point = self.point("muster_host_pressure", &[("resource", resource)], at_ms);
        let point = point.field("some_seconds_total", seconds(pressure.some_us));
        match pressure.full_us {
            Some(full_us) => point.field("full_seconds_total", seconds(full_us)),
            None => point,
        }
    }

    fn resource(&self, ResourceUsage { name, used, limit }: ResourceUsage, at_ms: Millis) -> Point {
        let point = bytes(self.point("muster_host_resource", &[("resource", name)], at_ms), &[("used", used)]);
        limit.into_iter().fold(point, |point, limit| bytes(point, &[("limit", limit)]))
    }

    fn disks(&mut self, due: DueGroups, asked: &CollectedInputs, points: &mut Vec<Point>, at_ms: Millis) {
        for DiskUsage { mount, space } in asked.disks.iter().filter(|_| due.has(MetricGroup::Disks)) {
            let point = self.point("muster_host_disk", &[("mount", mount)], at_ms);
            let point = bytes(point, &[("unresponsive", u64::from(space.is_none()))]);
            let Some(space) = space else {
                points.push(point);
                continue;
            };
            let point = bytes(point, &[("total_bytes", space.total_bytes), ("used_bytes", space.used_bytes)]);
            points.push(match space.inodes {
                Some((all, used)) => bytes(point, &[("inodes", all), ("used_inodes", used)]),
                None => point,
            });
        }
        let celsius = asked.celsius.filter(|_| due.has(MetricGroup::Temperature));
        points
            .extend(celsius.map(|celsius| self.point("muster_host_temperature", &[], at_ms).field("celsius", celsius)));
        if !due.has(MetricGroup::DiskIo) {
            return;
        }
        let disks = self.reader.read("/proc/diskstats", DISKSTATS_MAX_BYTES).map(DiskIo::parse).unwrap_or_default();
        for disk in disks.iter().take(DISKS_MAX) {
            let point = self.point("muster_host_disk_io", &[("device", &disk.device)], at_ms);
            let fields = [
                ("read_bytes_total", disk.read_bytes),
                ("written_bytes_total", disk.written_bytes),
                ("reads_total", disk.reads),
                ("writes_total", disk.writes),
            ];
            points.push(bytes(point, &fields).field("busy_seconds_total", seconds(disk.busy_ms.saturating_mul(1_000))));
        }
    }

    fn network(&mut self, due: DueGroups, points: &mut Vec<Point>, at_ms: Millis) {
        let (carried, packets) = (due.has(MetricGroup::Network), due.has(MetricGroup::Packets));
        if !(carried || packets) {
            return;
        }
        let interfaces =
            self.reader.read("/proc/net/dev", NET_MAX_BYTES).map(InterfaceTraffic::parse).unwrap_or_default();
        for InterfaceTraffic { name, receive, transmit } in interfaces.iter().take(INTERFACES_MAX) {
            let mut point = self.point("muster_host_network", &[("interface", name)], at_ms);
            if carried {
                let fields = [("receive_bytes_total", receive.bytes), ("transmit_bytes_total", transmit.bytes)];
                point = bytes(point, &fields);
            }
            if packets {
                point = bytes(
                    point,
                    &counts(["receive_packets_total", "receive_errors_total", "receive_drops_total"], receive),
                );
                point = bytes(
                    point,
                    &counts(["transmit_packets_total", "transmit_errors_total", "transmit_drops_total"], transmit),
                );
            }
            points.push(point);
        }
    }

    fn point(&self, measurement: &str, tags: &[(&str, &str)], at_ms: Millis) -> Point {
        self.labelled.point(measurement, tags, at_ms)
    }
}

fn counts<'a>([packets, errors, drops]: [&'a str; 3], carried: &TrafficCount) -> [(&'a str, u64); 3] {
    [(packets, carried.packets), (errors, carried.errors), (drops, carried.drops)]
}

#[cfg(test)]
pub(super) mod tests {
    use std::{
        process::{Child, Command, Stdio},
        sync::Arc,
        time::{Duration, Instant},
    };

    use muster_topics::unit::Observed;
    use nix::{
        sys::resource::{UsageWho, getrusage},
        sys::time::TimeValLike,
    };
    use serde_json::json;
    use tokio::sync::watch;

    use super::{
        super::{filesystem::FileSystemSpace, procfs::ProcessStat},
        *,
    };
    use muster_session::unit_state::{UnitState, UnitStates};

    pub(in super::super) fn labels() -> HostTags {
        let host = "6f9c0a52-37a1-4a54-9b3e-0d1f6a7f8c21".parse().unwrap();
        HostTags { host, hostname: "shop-0042".to_owned() }
    }

    pub(in super::super) fn labelled() -> PointWriter {
        Sampler::new(&labels()).labelled
    }

    /// The sources of an agent without units.
    pub(in super::super) fn sources() -> MetricSources {
        of(UnitStates::default())
    }

    fn of(units: UnitStates) -> MetricSources {
        let (_, units) = watch::channel(units);
        let hostname = tokio::sync::watch::channel(String::new()).1;
        MetricSources { units, keeper: None, meter: Arc::default(), queues: Arc::default(), hostname }
    }

    fn all(sampler: &mut Sampler, units: &UnitStates, asked: &CollectedInputs, at_ms: Millis) -> Vec<Point> {
        sampler.sample(DueGroups::ALL, &of(units.clone()), asked, at_ms)
    }

    pub(in super::super) fn unit(process: Option<(i32, u64)>) -> UnitStates {
        let artifact = json!({"sha256": "ab".repeat(32), "size_bytes": 1, "role": "hello", "version": "1.0.0"});
        let desired = json!({"generation": 1, "revision": "cd".repeat(32), "spec": {"kind": "yuno", "artifact": artifact}, "run": "running"});
        let observed = Observed { attempts: 3, ..Observed::absent(0) };
        let (desired, pins) = (serde_json::from_value(desired).unwrap(), muster_topics::snapshot::Pins::default());
        let state = UnitState {
            desired,
            observed,
            hold: None,
            owner: None,
            pins,
            process,
            spec: None,
            slot: muster_rules::plan::Slot::First,
        };
        Arc::new([("default/hello".parse().unwrap(), Arc::new(state))].into())
    }

    fn value(points: &[Point], name: &str) -> Option<f64> {
        let fields =
            points.iter().flat_map(|p| p.fields.iter().map(move |(f, v)| (format!("{}_{f}", p.measurement), *v)));
        fields.filter(|(field, _)| field == name).map(|(_, value)| value).next()
    }

    struct Busy(Child);

    impl Busy {
        fn new() -> Self {
            let child = Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().unwrap();
            Self(child)
        }

        fn process(&self) -> (i32, u64) {
            let pid = self.0.id();
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            (pid.cast_signed(), ProcessStat::parse(&stat).unwrap().start_ticks)
        }
    }

    impl Drop for Busy {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn two_samples_of_this_machine_are_plausible() {
        let busy = Busy::new();
        let (pid, start_ticks) = busy.process();
        let mut sampler = Sampler::new(&labels());
        let space = FileSystemSpace { total_bytes: 100, used_bytes: 60, inodes: Some((10, 3)), is_exhausted: false };
        let disk = |mount: &str, space| DiskUsage { mount: mount.into(), space };
        let disks = vec![disk("/", Some(space)), disk("/mnt/hung", None)];
        let resources = vec![ResourceUsage { name: "pids", used: 5, limit: Some(10) }];
        let asked = CollectedInputs { disks, celsius: Some(40.5), resources, ..CollectedInputs::default() };
        let first = all(&mut sampler, &unit(Some((pid, start_ticks))), &asked, 1);
        for name in ["muster_host_cpu_busy_ratio", "muster_unit_cpu_busy_ratio"] {
            assert_eq!(value(&first, name), None, "{name}: no interval yet");
        }
        let waiting = Instant::now();
        let second = loop {
            std::thread::sleep(Duration::from_millis(100));
            let points = all(&mut sampler, &unit(Some((pid, start_ticks))), &CollectedInputs::default(), 2);
            if value(&points, "muster_unit_cpu_busy_ratio").is_some_and(|ratio| ratio > 0.0) {
                break points;
            }
            assert!(waiting.elapsed() < Duration::from_secs(60), "a busy process is never seen to be busy");
        };
        // The later sample first: at the very start of a process its memory is not counted yet.
        let both: Vec<_> = second.iter().chain(&first).cloned().collect();
        for (name, least, greatest) in [
            ("muster_host_cpu_busy_ratio", 0.0001, 1.0),
            ("muster_host_cpu_user_ratio", 0.0, 1.0),
            ("muster_host_cpu_system_ratio", 0.0, 1.0),
            ("muster_host_cpu_iowait_ratio", 0.0, 1.0),
            ("muster_host_cpu_steal_ratio", 0.0, 1.0),
            ("muster_host_cpu_core_busy_ratio", 0.0, 1.0),
            ("muster_host_temperature_celsius", 40.5, 40.5),
            ("muster_host_resource_used", 5.0, 5.0),
            ("muster_host_resource_limit", 10.0, 10.0),
            ("muster_host_disk_inodes", 10.0, 10.0),
            ("muster_host_disk_used_inodes", 3.0, 3.0),
            ("muster_agent_cpu_busy_ratio", 0.0, 1.0),
            ("muster_agent_queue_length", 0.0, 0.0),
            ("muster_agent_link_reconnects_total", 0.0, 0.0),
            ("muster_host_load_1m", 0.0, 1e4),
            ("muster_host_load_5m", 0.0, 1e4),
            ("muster_host_load_15m", 0.0, 1e4),
            ("muster_host_memory_total_bytes", 1e7, 1e15),
            ("muster_host_memory_used_bytes", 1e6, 1e15),
            ("muster_host_memory_available_bytes", 1e6, 1e15),
            ("muster_host_swap_total_bytes", 0.0, 1e15),
            ("muster_host_swap_used_bytes", 0.0, 1e15),
            ("muster_host_disk_total_bytes", 100.0, 100.0),
            ("muster_host_disk_used_bytes", 60.0, 60.0),
            ("muster_host_uptime_seconds", 1.0, 1e10),
            ("muster_unit_cpu_busy_ratio", 0.0001, 1.0),
            ("muster_unit_memory_resident_bytes", 1e5, 1e10),
            ("muster_unit_restart_attempts", 3.0, 3.0),
            ("muster_agent_memory_resident_bytes", 1e6, 1e11),
        ] {
            let value = value(&both, name).unwrap_or_else(|| panic!("{name} is missing"));
            assert!((least..=greatest).contains(&value), "{name}={value}");
        }
        for point in &both {
            assert!(point.tags.contains(&("host".into(), labels().host.to_string())), "{point:?}");
            assert!(point.tags.contains(&("hostname".into(), "shop-0042".into())), "{point:?}");
        }
        let tags = &second.iter().find(|point| point.measurement == "muster_unit_cpu").unwrap().tags;
        for (name, value) in [("realm", "default"), ("unit", "hello"), ("kind", "yuno")] {
            assert!(tags.contains(&(name.into(), value.into())), "{tags:?}");
        }
    }

    /// The inputs that are collected when a group is due.
    fn inputs(group: MetricGroup) -> CollectedInputs {
        let mut asked = CollectedInputs::default();
        match group {
            MetricGroup::Disks => {
                let space =
                    FileSystemSpace { total_bytes: 100, used_bytes: 60, inodes: Some((10, 3)), is_exhausted: false };
                asked.disks = vec![DiskUsage { mount: "/".into(), space: Some(space) }];
            }
            MetricGroup::Temperature => asked.celsius = Some(40.5),
            MetricGroup::Resources => {
                asked.resources = vec![ResourceUsage { name: "pids", used: 5, limit: Some(10) }];
            }
            MetricGroup::UnitDetails => {
                let unit = "default/hello".parse().unwrap();
                asked.rooms = vec![ContainerSpace { unit, total_bytes: 2, used_bytes: 1 }];
                asked.written = BTreeMap::from([("default/hello".to_owned(), 1)]);
            }
            MetricGroup::Stats => {
                let values = BTreeMap::from([("requests".to_owned(), json!(7))]);
                asked.stats = BTreeMap::from([("default/hello".parse().unwrap(), ToldStats::new(5, values))]);
            }
            MetricGroup::Agent => asked.stored = Some(StoreFigures { outbox: 1, metrics: 1, size_bytes: 1 }),
            _ => {}
        }
        asked
    }

    #[test]
    fn groups_measure_what_the_catalogue_says() {
        let busy = Busy::new();
        let sources = of(unit(Some(busy.process())));
        for group in MetricGroup::ALL {
            let (mut sampler, due, asked) = (Sampler::new(&labels()), DueGroups::only(&[group]), inputs(group));
            let mut points = sampler.sample(due, &sources, &asked, 1);
            std::thread::sleep(Duration::from_millis(50));
            points.extend(sampler.sample(due, &sources, &asked, 2));
            for point in &points {
                let found = catalogue::measurement(&point.measurement).unwrap();
                for (field, _) in &point.fields {
                    let of = found.writing(field).and_then(catalogue::Writing::group);
                    assert_eq!(of, Some(group), "{field} of {}", point.measurement);
                }
            }
        }
    }

    #[test]
    fn process_id_with_other_start_time_is_ignored() {
        let busy = Busy::new();
        let (pid, start_ticks) = busy.process();
        let mut sampler = Sampler::new(&labels());
        for process in [None, Some((pid, start_ticks + 1)), Some((0, 0)), Some((-1, 0)), Some((i32::MAX, 1))] {
            let points = all(&mut sampler, &unit(process), &CollectedInputs::default(), 1);
            assert_eq!(value(&points, "muster_unit_memory_resident_bytes"), None, "{process:?}");
            assert_eq!(value(&points, "muster_unit_restart_attempts"), Some(3.0), "a unit is reported");
        }
    }

    #[test]
    fn ratios_have_four_digits_and_stay_within_one() {
        for (part, whole, expected) in [(1, 3, 0.3333), (2, 3, 0.6667), (5, 4, 1.0), (0, 4, 0.0), (1, 100_000, 0.0)] {
            assert_eq!(ratio(part, whole), expected, "{part}/{whole}");
        }
    }

    /// Prints the cost of one sample: at ten seconds, a thousandth of a processor is 10,000 µs.
    #[test]
    fn cost() {
        let cpu_us = || {
            let usage = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
            usage.user_time().num_microseconds() + usage.system_time().num_microseconds()
        };
        let mut sampler = Sampler::new(&labels());
        let sources = of(unit(Some((std::process::id().cast_signed(), 0))));
        let each = [MetricGroup::Cpu, MetricGroup::Load, MetricGroup::Memory, MetricGroup::Network, MetricGroup::Units];
        for (what, due) in [("an everyday sample", DueGroups::only(&each)), ("one of everything", DueGroups::ALL)] {
            let (samples, before) = (200, cpu_us());
            let sample = |at_ms| sampler.sample(due, &sources, &CollectedInputs::default(), at_ms).len();
            let points: usize = (0..samples).map(sample).sum();
            let each = (cpu_us() - before) / samples;
            println!("{what}: {each} µs of processor time, {} points", points / samples as usize);
            assert!(each < 10_000, "{each} µs: more than the whole agent's budget, even without optimisation");
        }
    }
}

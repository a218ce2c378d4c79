//! One sample: the host, its units, and the agent itself, as points.
//!
//! **Invariant: a sample reads a fixed number of files, and two for each unit that runs.** No scan of all processes, no
//! walk through `/sys`: the agent's budget is a thousandth of a processor.
//!
//! Values are rounded to what they mean, for each needless digit travels: ratios to a ten-thousandth (a sample of ten
//! seconds has a few thousand ticks), bytes and seconds to whole ones.
//!
//! A unit's processor time is that of its main process. What it forked is counted once units have cgroups.

use std::collections::BTreeMap;

use muster_topics::{Millis, metric::Point, name::UnitName};
use nix::unistd::{SysconfVar, sysconf};
use sysinfo::{MemoryRefreshKind, System};

use super::{
    Labels,
    disk::Disk,
    procfs::{CpuTicks, Interface, ProcessStat, Reader},
};
use crate::agent::unit::{UnitState, UnitStates};

/// The first line of `/proc/stat` has ten numbers.
const STAT_MAX_BYTES: usize = 512;
/// `/proc/net/dev` has 120 bytes for each interface.
const NET_MAX_BYTES: usize = 64 * 1024;
/// The most interfaces that are told of.
const INTERFACES_MAX: usize = 32;
/// `/proc/<pid>/stat` has 52 numbers and a name of at most 64 bytes.
const PROCESS_MAX_BYTES: usize = 2048;
/// What the kernel takes for the size of a page, should it not say.
const PAGE_BYTES: u64 = 4096;

/// Takes samples, and remembers of the last one what ratios need.
#[derive(Debug)]
pub(super) struct Sampler {
    labels: [(&'static str, String); 2],
    system: Option<System>,
    reader: Reader,
    page_bytes: u64,
    cpu: Option<CpuTicks>,
    /// Processor time of units at the last sample, with the identity of their processes.
    units: BTreeMap<UnitName, ((i32, u64), u64)>,
}

impl Sampler {
    /// Before the first sample.
    pub(super) fn new(labels: &Labels) -> Self {
        let page_bytes = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().and_then(|bytes| u64::try_from(bytes).ok());
        Self {
            labels: [("host", labels.host.to_string()), ("hostname", labels.hostname.clone())],
            system: System::new().ok(),
            reader: Reader::default(),
            page_bytes: page_bytes.unwrap_or(PAGE_BYTES),
            cpu: None,
            units: BTreeMap::new(),
        }
    }

    /// What is so now. Ratios are over the time since the last sample; the first has none.
    pub(super) fn sample(&mut self, units: &UnitStates, disks: &[Disk], at_ms: Millis) -> Vec<Point> {
        let mut points = Vec::with_capacity(16);
        let cpu = self.reader.read("/proc/stat", STAT_MAX_BYTES).and_then(CpuTicks::parse);
        let since = cpu.zip(self.cpu).map(|(now, earlier)| now.since(earlier)).filter(|since| since.total() > 0);
        self.cpu = cpu;
        points.extend(since.map(|since| self.cpu(since, at_ms)));
        self.load_and_memory(&mut points, at_ms);
        for disk in disks {
            let point = self.point("muster_host_disk", &[("mount", &disk.mount)], at_ms);
            points.push(bytes(point, &[("total_bytes", disk.total_bytes), ("used_bytes", disk.used_bytes)]));
        }
        let interfaces = self.reader.read("/proc/net/dev", NET_MAX_BYTES).map(Interface::parse).unwrap_or_default();
        for i in interfaces.iter().take(INTERFACES_MAX) {
            let point = self.point("muster_host_network", &[("interface", &i.name)], at_ms);
            let counters = [("receive_bytes_total", i.receive_bytes), ("transmit_bytes_total", i.transmit_bytes)];
            points.push(bytes(point, &counters));
        }
        if let Ok(seconds) = System::uptime() {
            points.push(bytes(self.point("muster_host_uptime", &[], at_ms), &[("seconds", seconds)]));
        }
        self.units(units, since, &mut points, at_ms);
        if let Some(process) = self.process("self") {
            let resident_bytes = process.resident_pages.saturating_mul(self.page_bytes);
            let point = self.point("muster_agent_memory", &[], at_ms);
            points.push(bytes(point, &[("resident_bytes", resident_bytes)]));
        }
        points
    }

    /// The warmest sensor, which is asked for less often.
    pub(super) fn heat(&self, celsius: f64, at_ms: Millis) -> Point {
        self.point("muster_host_temperature", &[], at_ms).field("celsius", celsius)
    }

    /// The size of the agent's store, which is asked for less often.
    pub(super) fn store(&self, size_bytes: u64, at_ms: Millis) -> Point {
        bytes(self.point("muster_agent_store", &[], at_ms), &[("size_bytes", size_bytes)])
    }

    fn cpu(&self, since: CpuTicks, at_ms: Millis) -> Point {
        self.point("muster_host_cpu", &[], at_ms)
            .field("busy_ratio", ratio(since.busy(), since.total()))
            .field("user_ratio", ratio(since.user, since.total()))
            .field("system_ratio", ratio(since.system, since.total()))
            .field("iowait_ratio", ratio(since.iowait, since.total()))
    }

    fn load_and_memory(&mut self, points: &mut Vec<Point>, at_ms: Millis) {
        if let Ok(load) = System::load_average() {
            let point = self.point("muster_host_load", &[], at_ms);
            points.push(point.field("1m", load.one).field("5m", load.five).field("15m", load.fifteen));
        }
        let Some(system) = &mut self.system else { return };
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

    /// Units' processor time is in shares of all processors, as the host's is, so that it adds up to it.
    fn units(&mut self, units: &UnitStates, host: Option<CpuTicks>, points: &mut Vec<Point>, at_ms: Millis) {
        let earlier = std::mem::take(&mut self.units);
        for (name, state) in units.iter() {
            let (realm, unit) = (name.realm(), name.name());
            let tags = [("realm", realm.as_str()), ("unit", unit.as_str()), ("kind", state.desired.spec.kind())];
            let attempts = u64::from(state.observed.attempts);
            points.push(bytes(self.point("muster_unit_restart", &tags, at_ms), &[("attempts", attempts)]));
            let Some((identity, process)) = self.unit_process(state) else { continue };
            let memory = self.point("muster_unit_memory", &tags, at_ms);
            points.push(bytes(memory, &[("resident_bytes", process.resident_pages.saturating_mul(self.page_bytes))]));
            if let (Some((before, ticks)), Some(host)) = (earlier.get(name), host)
                && *before == identity
            {
                let busy = process.busy_ticks.saturating_sub(*ticks);
                let point = self.point("muster_unit_cpu", &tags, at_ms);
                points.push(point.field("busy_ratio", ratio(busy, host.total())));
            }
            self.units.insert(name.clone(), (identity, process.busy_ticks));
        }
    }

    /// A unit's process, if it is still the one that the unit started: process ids are used again.
    fn unit_process(&mut self, state: &UnitState) -> Option<((i32, u64), ProcessStat)> {
        let (pid, start_ticks) = state.process.filter(|(pid, _)| *pid > 0)?;
        let process = self.process(&pid.to_string())?;
        (process.start_ticks == start_ticks).then_some(((pid, start_ticks), process))
    }

    fn process(&mut self, pid: &str) -> Option<ProcessStat> {
        self.reader.read(&format!("/proc/{pid}/stat"), PROCESS_MAX_BYTES).and_then(ProcessStat::parse)
    }

    fn point(&self, measurement: &str, tags: &[(&str, &str)], at_ms: Millis) -> Point {
        let tags: Vec<_> = self.labels.iter().map(|(k, v)| (*k, v.as_str())).chain(tags.iter().copied()).collect();
        Point::new(measurement, &tags, at_ms)
    }
}

/// Counts of bytes and seconds stay far below 2⁵³, up to which a float is exact.
fn bytes(point: Point, fields: &[(&str, u64)]) -> Point {
    fields.iter().fold(point, |point, (name, value)| point.field(name, *value as f64))
}

/// A share, in ten-thousandths. Ticks of two files do not add up exactly, so it is held below 1.
fn ratio(part: u64, whole: u64) -> f64 {
    ((part as f64 / whole as f64).min(1.0) * 1e4).round() / 1e4
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

    use super::*;

    pub(in super::super) fn labels() -> Labels {
        let host = "6f9c0a52-37a1-4a54-9b3e-0d1f6a7f8c21".parse().unwrap();
        Labels { host, hostname: "shop-0042".to_owned() }
    }

    fn unit(process: Option<(i32, u64)>) -> UnitStates {
        let artifact = json!({"sha256": "ab".repeat(32), "size_bytes": 1, "role": "hello", "version": "1.0.0"});
        let desired = json!({"generation": 1, "revision": "cd".repeat(32), "spec": {"kind": "yuno", "artifact": artifact}, "run": "running"});
        let observed = Observed { attempts: 3, ..Observed::absent(0) };
        let (desired, pins) = (serde_json::from_value(desired).unwrap(), muster_topics::snapshot::Pins::default());
        let state = UnitState {
            desired,
            observed,
            hold: None,
            pins,
            process,
            spec: None,
            slot: crate::rules::plan::Slot::First,
        };
        Arc::new([("default/hello".parse().unwrap(), state)].into())
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
        let disk = Disk { mount: "/".into(), total_bytes: 100, used_bytes: 60 };
        let first = sampler.sample(&unit(Some((pid, start_ticks))), std::slice::from_ref(&disk), 1);
        for name in ["muster_host_cpu_busy_ratio", "muster_unit_cpu_busy_ratio"] {
            assert_eq!(value(&first, name), None, "{name}: no interval yet");
        }
        let waiting = Instant::now();
        let second = loop {
            std::thread::sleep(Duration::from_millis(100));
            let points = sampler.sample(&unit(Some((pid, start_ticks))), &[], 2);
            if value(&points, "muster_unit_cpu_busy_ratio").is_some_and(|ratio| ratio > 0.0) {
                break points;
            }
            assert!(waiting.elapsed() < Duration::from_secs(60), "a busy process is never seen to be busy");
        };
        // The later first: at the very start of a process its memory is not counted yet.
        let both: Vec<_> = second.iter().chain(&first).cloned().collect();
        for (name, least, greatest) in [
            ("muster_host_cpu_busy_ratio", 0.0001, 1.0),
            ("muster_host_cpu_user_ratio", 0.0, 1.0),
            ("muster_host_cpu_system_ratio", 0.0, 1.0),
            ("muster_host_cpu_iowait_ratio", 0.0, 1.0),
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

    #[test]
    fn a_process_id_alone_is_not_believed() {
        let busy = Busy::new();
        let (pid, start_ticks) = busy.process();
        let mut sampler = Sampler::new(&labels());
        for process in [None, Some((pid, start_ticks + 1)), Some((0, 0)), Some((-1, 0)), Some((i32::MAX, 1))] {
            let points = sampler.sample(&unit(process), &[], 1);
            assert_eq!(value(&points, "muster_unit_memory_resident_bytes"), None, "{process:?}");
            assert_eq!(value(&points, "muster_unit_restart_attempts"), Some(3.0), "it is told that there is a unit");
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
        let units = unit(Some((std::process::id().cast_signed(), 0)));
        let (samples, before) = (200, cpu_us());
        let points: usize = (0..samples).map(|at_ms| sampler.sample(&units, &[], at_ms).len()).sum();
        let each = (cpu_us() - before) / samples;
        println!("one sample: {each} µs of processor time, {} points", points / samples as usize);
        assert!(each < 10_000, "{each} µs: more than the whole agent's budget, even without optimisation");
    }
}

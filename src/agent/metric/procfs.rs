//! Parsers of `/proc`, where sysinfo lacks a value or reads more than needed: it has no
//! processor time by mode, reads eleven files for one network interface, and a whole thread list for one
//! process. The parsers are pure; disk activity and pressure are in [`super::io_pressure`].

use std::{fs::File, io::Read, path::Path};

/// Reads files of `/proc` into one reused buffer.
#[derive(Debug, Default)]
pub(super) struct ProcReader {
    buffer: Vec<u8>,
}

impl ProcReader {
    /// Reads the first `bytes_max` bytes of a file, if it is readable; text ends before invalid UTF-8.
    pub(super) fn read(&mut self, path: impl AsRef<Path>, bytes_max: usize) -> Option<&str> {
        self.buffer.clear();
        File::open(path).ok()?.take(bytes_max as u64).read_to_end(&mut self.buffer).ok()?;
        match str::from_utf8(&self.buffer) {
            Ok(text) => Some(text),
            Err(error) => str::from_utf8(&self.buffer[..error.valid_up_to()]).ok(),
        }
    }

    /// Reads a file in a folder.
    pub(super) fn read_below(&mut self, folder: &Path, file: &str, bytes_max: usize) -> Option<&str> {
        self.read(folder.join(file), bytes_max)
    }
}

/// The activity of all processors since boot, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CpuTicks {
    /// In programs.
    pub(super) user: u64,
    /// In the kernel, interrupts included.
    pub(super) system: u64,
    /// Idle, while a task waited for a disk.
    pub(super) iowait: u64,
    /// Idle.
    pub(super) idle: u64,
    /// Taken by other virtual machines.
    pub(super) steal: u64,
}

impl CpuTicks {
    /// Parses the first line of `/proc/stat`.
    pub(super) fn parse(stat: &str) -> Option<Self> {
        Self::parse_counts(stat.lines().next()?.strip_prefix("cpu ")?)
    }

    /// Parses the following lines, one for each processor that is online; an incomplete line is skipped.
    pub(super) fn parse_cores(stat: &str) -> impl Iterator<Item = (u32, Self)> {
        let whole = stat.split_inclusive('\n').skip(1).filter_map(|line| line.strip_suffix('\n'));
        whole.map_while(|line| {
            let (number, counts) = line.strip_prefix("cpu")?.split_once(' ')?;
            Some((number.parse().ok()?, Self::parse_counts(counts)?))
        })
    }

    fn parse_counts(counts: &str) -> Option<Self> {
        let mut ticks = counts.split_ascii_whitespace().map_while(|n| n.parse().ok());
        let mut next = || ticks.next();
        let (user, nice, system, idle) = (next()?, next()?, next()?, next()?);
        // Later kernels added one field after the other; guest time is contained in `user` and `nice`.
        let (iowait, irq, softirq, steal): (u64, u64, u64, u64) =
            (next().unwrap_or(0), next().unwrap_or(0), next().unwrap_or(0), next().unwrap_or(0));
        let sum = |ticks: &[u64]| ticks.iter().fold(0, |sum: u64, n| sum.saturating_add(*n));
        Some(Self { user: sum(&[user, nice]), system: sum(&[system, irq, softirq]), iowait, idle, steal })
    }

    /// Returns the difference. The kernel's idle counts may step back; that counts as zero.
    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
            iowait: self.iowait.saturating_sub(earlier.iowait),
            idle: self.idle.saturating_sub(earlier.idle),
            steal: self.steal.saturating_sub(earlier.steal),
        }
    }

    /// Returns everything but idle time; stolen time was not available either.
    pub(super) fn busy(self) -> u64 {
        self.user.saturating_add(self.system).saturating_add(self.steal)
    }

    /// Returns the total: the length of the interval times the number of processors.
    pub(super) fn total(self) -> u64 {
        self.busy().saturating_add(self.iowait).saturating_add(self.idle)
    }
}

/// The traffic of one network interface since it came up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InterfaceTraffic {
    pub(super) name: String,
    pub(super) receive: TrafficCount,
    pub(super) transmit: TrafficCount,
}

/// One direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TrafficCount {
    pub(super) bytes: u64,
    pub(super) packets: u64,
    pub(super) errors: u64,
    pub(super) drops: u64,
}

impl InterfaceTraffic {
    /// Parses `/proc/net/dev`, without the loopback, host ends of containers' links, which come and go under random
    /// names, and interfaces without traffic.
    pub(super) fn parse(dev: &str) -> Vec<Self> {
        let interface = |line: &str| {
            let (name, counters) = line.split_once(':')?;
            let mut counters = counters.split_ascii_whitespace().map_while(|n| n.parse().ok());
            let mut carried = |skip| {
                let (bytes, packets) = (counters.nth(skip)?, counters.next()?);
                Some(TrafficCount { bytes, packets, errors: counters.next()?, drops: counters.next()? })
            };
            // The skipped fields: fifo, frame, compressed, multicast.
            let (receive, transmit) = (carried(0)?, carried(4)?);
            Some(Self { name: name.trim().to_owned(), receive, transmit })
        };
        let mut interfaces: Vec<_> = dev
            .lines()
            .skip(2)
            .filter_map(interface)
            .filter(|i| i.name != "lo" && !i.name.starts_with("veth") && (i.receive.bytes > 0 || i.transmit.bytes > 0))
            .collect();
        interfaces.sort_by(|a, b| a.name.cmp(&b.name));
        interfaces
    }
}

/// `/proc/PID/net/dev` has 120 bytes for each interface, and containers have few.
const NET_MAX_BYTES: usize = 16 * 1024;

/// Returns the bytes received and sent in a process's network namespace, if it is not the host's: all interfaces but
/// the loopback.
pub(super) fn own_network(reader: &mut ProcReader, pid: i32) -> Option<[u64; 2]> {
    let network = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    if network(&pid.to_string())? == network("self")? {
        return None;
    }
    let interfaces = InterfaceTraffic::parse(reader.read(format!("/proc/{pid}/net/dev"), NET_MAX_BYTES)?);
    let sum = |of: fn(&InterfaceTraffic) -> u64| interfaces.iter().map(of).fold(0, u64::saturating_add);
    (!interfaces.is_empty()).then(|| [sum(|one| one.receive.bytes), sum(|one| one.transmit.bytes)])
}

/// One process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessStat {
    /// Its own processor time, in ticks, without its children's.
    pub(super) busy_ticks: u64,
    /// When it started, in ticks since boot: with the process id, its identity.
    pub(super) start_ticks: u64,
    /// Its resident memory.
    pub(super) resident_pages: u64,
}

impl ProcessStat {
    /// Parses `/proc/<pid>/stat`; `None` if the process is a zombie.
    pub(super) fn parse(stat: &str) -> Option<Self> {
        // The name, in parentheses, may contain anything, parentheses too.
        let (_, rest) = stat.rsplit_once(") ")?;
        let mut words = rest.split_ascii_whitespace();
        if matches!(words.next()?, "Z" | "X" | "x") {
            return None;
        }
        // Fields 14, 15, 22 and 24 of proc(5); the state is 3.
        let mut number = |skip: usize| words.nth(skip)?.parse::<u64>().ok();
        let (user, system, start_ticks, resident_pages) = (number(10)?, number(0)?, number(6)?, number(1)?);
        Some(Self { busy_ticks: user.saturating_add(system), start_ticks, resident_pages })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn processor_time_is_parsed_by_mode() {
        let earlier = CpuTicks::parse("cpu  100 10 50 1000 20 3 7 5 60 0\ncpu0 1 2 3 4\n").unwrap();
        assert_eq!(earlier, CpuTicks { user: 110, system: 60, iowait: 20, idle: 1000, steal: 5 });
        let now = CpuTicks::parse("cpu  200 10 60 1050 19 3 7 10 60 0").unwrap();
        let since = now.since(earlier);
        assert_eq!(since, CpuTicks { user: 100, system: 10, iowait: 0, idle: 50, steal: 5 });
        assert_eq!((since.busy(), since.total()), (115, 165));
        assert_eq!(CpuTicks::parse("cpu  1 2 3 4").unwrap().total(), 10, "an old kernel");
        for wrong in ["", "cpu", "cpu  1 2 3", "cpu0 1 2 3 4", "intr 5 6 7 8"] {
            assert_eq!(CpuTicks::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn processors_are_read_one_by_one() {
        // Number 1 is offline; the last line is incomplete.
        let text = "cpu  8144118 940329 946777 2265517 34489 0 38553 309455 0 0\n\
                    cpu0 4090201 464889 469844 1125011 20353 0 15986 151961 0 0\n\
                    cpu2 1 2 3 4\ncpu3 5 6 7 8";
        let cores: Vec<_> = CpuTicks::parse_cores(text).map(|(core, ticks)| (core, ticks.idle, ticks.steal)).collect();
        assert_eq!(cores, [(0, 1_125_011, 151_961), (2, 4, 0)]);
        assert_eq!(CpuTicks::parse_cores("cpu  1 2 3 4\nintr 1 2\ncpu0 1 2 3 4\n").count(), 0);
    }

    #[test]
    fn interfaces_with_traffic_are_parsed() {
        let text = "Inter-|   Receive                            |  Transmit\n \
                    face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets\n\
                    \x20   lo:    3193      29    0    0    0     0          0         0     3193      29 0 0 0 0 0 0\n\
                    \x20 wlan0:5000 1 0 0 0 0 0 0 7000 1 0 0 0 0 0 0\n\
                    \x20 ifb0:       0       0    0    0    0     0          0         0        0       0 0 0 0 0 0 0\n\
                    vethab12: 5 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0\n\
                    \x20 eth0: 284150640    9988    3    4    0     0          0         0   810919    6787 5 6 0 0 0 0\n\
                    broken: 1 2 3\n";
        let found: Vec<_> =
            InterfaceTraffic::parse(text).into_iter().map(|i| (i.name, i.receive.bytes, i.transmit.bytes)).collect();
        assert_eq!(found, [("eth0".into(), 284_150_640, 810_919), ("wlan0".into(), 5000, 7000)]);
        let eth0 = &InterfaceTraffic::parse(text)[0];
        assert_eq!(eth0.receive, TrafficCount { bytes: 284_150_640, packets: 9_988, errors: 3, drops: 4 });
        assert_eq!(eth0.transmit, TrafficCount { bytes: 810_919, packets: 6_787, errors: 5, drops: 6 });
    }

    #[test]
    fn any_process_name_is_parsed() {
        let rest = "30358 30358 15343 0 -1 4194304 103 0 0 0 11 22 33 44 20 0 1 0 384174 2998272 417 1 2 3";
        let stat = ProcessStat { busy_ticks: 33, start_ticks: 384_174, resident_pages: 417 };
        for (name, state, expected) in
            [("head", "R", Some(stat)), ("a) R 1 (b", "S", Some(stat)), (") ", "D", Some(stat)), ("head", "Z", None)]
        {
            assert_eq!(ProcessStat::parse(&format!("30378 ({name}) {state} {rest}")), expected, "{name}");
        }
        assert_eq!(ProcessStat::parse("1 (x) R 1 2 3"), None);
    }

    proptest! {
        #[test]
        fn no_text_panics_the_parsers(text in any::<String>(), numbers in "(cpu |x: ){0,1}[0-9 :)\n]{0,200}") {
            for text in [&text, &numbers] {
                let _ = CpuTicks::parse(text).map(|ticks| (ticks.total(), ticks.since(CpuTicks::default())));
                let _ = (InterfaceTraffic::parse(text), CpuTicks::parse_cores(text).count());
                let _ = ProcessStat::parse(text);
            }
        }
    }
}

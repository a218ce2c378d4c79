//! Resources that a host can exhaust beside memory and disks: open files, processes, local TCP ports, and connections that the
//! firewall tracks. Programs see each as an error that names something else.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{BufRead, BufReader, Read},
    ops::RangeInclusive,
    path::Path,
    time::{Duration, Instant},
};

use super::{blocking_timeout::BlockingProbe, procfs::ProcReader};

/// A file of `/proc/sys` has one line of a few numbers, and `/proc/loadavg` five words.
const LINE_MAX_BYTES: usize = 128;
/// The most that is read of TCP's table: 150 bytes for each of more connections than there are local ports.
const TCP_MAX_BYTES: u64 = 16 * 1024 * 1024;
/// Local ports are counted again after this multiple of the time that it took: a host with very many connections spends
/// a five-thousandth of a processor on it, and counts rarely.
const PORTS_PAUSE: u32 = 5_000;
/// A larger limit counts as none: the kernel's "unlimited" is near 2⁶³.
const LIMIT_MAX: u64 = 1 << 48;
/// The state of a listening socket in TCP's table.
const LISTENING: &str = "0A";

/// The usage of one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResourceUsage {
    /// Its name, as in the label `resource`.
    pub(super) name: &'static str,
    /// How many are in use.
    pub(super) used: u64,
    /// The limit; `None` if there is none.
    pub(super) limit: Option<u64>,
}

impl ResourceUsage {
    fn new(name: &'static str, used: u64, limit: u64) -> Self {
        Self { name, used, limit: (1..LIMIT_MAX).contains(&limit).then_some(limit) }
    }
}

/// Measures resources repeatedly.
#[derive(Debug)]
pub(super) struct ResourceSampler {
    look: BlockingProbe<(Vec<ResourceUsage>, Duration)>,
    /// When local ports are counted next.
    ports_after: Instant,
}

impl ResourceSampler {
    /// Creates it before the first measurement.
    pub(super) fn new() -> Self {
        Self { look: BlockingProbe::at("the table of connections"), ports_after: Instant::now() }
    }

    /// Measures resources; what is unreadable here, as in some containers, is left out.
    pub(super) async fn measure(&mut self) -> Vec<ResourceUsage> {
        let with_ports = Instant::now() >= self.ports_after;
        let seen = self.look.take(move || {
            let mut found = numbers_of_proc();
            let begin = Instant::now();
            found.extend(with_ports.then(ports).flatten());
            (found, begin.elapsed())
        });
        let (found, took) = seen.await.unwrap_or_default();
        if with_ports {
            self.ports_after = Instant::now() + took * PORTS_PAUSE;
        }
        found
    }
}

/// Reads what the kernel counts itself.
fn numbers_of_proc() -> Vec<ResourceUsage> {
    let mut reader = ProcReader::default();
    let mut numbers = |path: &str| reader.read(path, LINE_MAX_BYTES).map(numbers).unwrap_or_default();
    let files = match numbers("/proc/sys/fs/file-nr")[..] {
        [used, free, limit, ..] => Some(ResourceUsage::new("files", used.saturating_sub(free), limit)),
        _ => None,
    };
    let limits = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"];
    let pids_limit = limits.iter().filter_map(|path| numbers(path).first().copied()).min();
    let conntrack = ["count", "max"].map(|name| numbers(&format!("/proc/sys/net/netfilter/nf_conntrack_{name}")));
    let conntrack = match (&conntrack[0][..], &conntrack[1][..]) {
        ([used, ..], [limit, ..]) => Some(ResourceUsage::new("conntrack", *used, *limit)),
        _ => None,
    };
    let tasks = reader.read(Path::new("/proc/loadavg"), LINE_MAX_BYTES).and_then(tasks);
    let pids = tasks.zip(pids_limit).map(|(used, limit)| ResourceUsage::new("pids", used, limit));
    [files, pids, conntrack].into_iter().flatten().collect()
}

/// Counts TCP's local ports, which the kernel does not.
fn ports() -> Option<ResourceUsage> {
    let mut reader = ProcReader::default();
    let range = numbers(reader.read("/proc/sys/net/ipv4/ip_local_port_range", LINE_MAX_BYTES)?);
    let [first, last, ..] = range[..] else { return None };
    let (first, last) = (u16::try_from(first).ok()?, u16::try_from(last).ok()?);
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].into_iter().filter_map(|path| File::open(path).ok());
    let used = ports_used(tables.map(|table| BufReader::new(table.take(TCP_MAX_BYTES))), &(first..=last))?;
    Some(ResourceUsage::new("ports", used, u64::from(last.saturating_sub(first)) + 1))
}

fn numbers(line: &str) -> Vec<u64> {
    line.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect()
}

/// Returns the number of tasks in `/proc/loadavg`, such as `0.05 0.10 0.08 2/345 6789`.
fn tasks(loadavg: &str) -> Option<u64> {
    loadavg.split_ascii_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

/// Returns how many local ports of a range have outgoing connections: those on which no socket listens. `None` if a
/// table cannot be read completely.
fn ports_used<T: BufRead>(tables: impl Iterator<Item = T>, range: &RangeInclusive<u16>) -> Option<u64> {
    let (mut connected, mut listening) = (BTreeSet::new(), BTreeSet::new());
    for mut table in tables {
        let mut line = String::new();
        let mut read_bytes: u64 = 0;
        while table.read_line(&mut line).ok()? > 0 {
            read_bytes += line.len() as u64;
            if let Some((port, state)) = socket(&line) {
                if state == LISTENING {
                    listening.insert(port);
                } else if range.contains(&port) {
                    connected.insert(port);
                }
            }
            line.clear();
        }
        if read_bytes >= TCP_MAX_BYTES {
            return None;
        }
    }
    Some(connected.difference(&listening).count() as u64)
}

/// Parses the local port and the state in a line of `/proc/net/tcp`.
fn socket(line: &str) -> Option<(u16, &str)> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (local, state) = (words.next()?, words.nth(1)?);
    let port = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
    Some((port, state))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn outgoing_connections_use_ports() {
        let tcp = "  sl  local_address rem_address   st tx_queue rx_queue\n\
            \x20  0: 0100007F:9C40 00000000:0000 0A 00000000:00000000\n\
            \x20  1: 0100007F:9C40 0100007F:9C41 01 00000000:00000000\n\
            \x20  2: 0100007F:9C41 0100007F:9C40 01 00000000:00000000\n\
            \x20  3: 0100007F:0016 0100007F:9C42 01 00000000:00000000\n";
        let tcp6 = "  sl  local_address rem_address st\n\
            \x20  0: 00000000000000000000000001000000:9C43 00000000000000000000000001000000:0050 06 0:0\n\
            \x20  1: 00000000000000000000000001000000:9C41 00000000000000000000000001000000:0050 06 0:0\n\
            nonsense\n";
        // 9C41 and 9C43: 9C40 listens, and 0016 is not in the range.
        assert_eq!(ports_used([tcp, tcp6].map(str::as_bytes).into_iter(), &(32_768..=60_999)), Some(2));
        assert_eq!(ports_used([&[0xff_u8, 0xfe][..]].into_iter(), &(1..=2)), None);
    }

    #[test]
    fn limit_near_maximum_is_unlimited() {
        assert_eq!(ResourceUsage::new("files", 5, 9_223_372_036_854_775_807).limit, None);
        assert_eq!(ResourceUsage::new("files", 5, 0).limit, None);
        assert_eq!(ResourceUsage::new("files", 5, 10).limit, Some(10));
        assert_eq!(tasks("0.05 0.10 0.08 2/345 6789\n"), Some(345));
        assert_eq!(tasks("0.05"), None);
    }

    #[tokio::test]
    async fn what_this_machine_uses_is_plausible() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _connection = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let found: Vec<_> = numbers_of_proc().into_iter().chain(ports()).collect();
        let of = |name| found.iter().find(|one| one.name == name).unwrap_or_else(|| panic!("{name}: {found:?}"));
        for name in ["files", "pids", "ports"] {
            let ResourceUsage { used, limit, .. } = *of(name);
            assert!(used > 0 && limit.is_none_or(|limit| used <= limit), "{name}: {used} of {limit:?}");
        }
        let mut resources = ResourceSampler::new();
        assert!(!resources.measure().await.is_empty());
        assert!(resources.ports_after > Instant::now(), "counting has its price");
    }
}

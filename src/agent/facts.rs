//! Reads facts about this machine from `/proc` and the kernel. It reads a few files and uses no library that
//! keeps the whole system in memory.

use std::{collections::BTreeMap, fs};

use muster_rules::hostname::{self, text_cleaned};
use muster_topics::heartbeat::{Facts, Interface};
use nix::{ifaddrs::getifaddrs, net::if_::InterfaceFlags, sys::socket::SockaddrStorage};

/// The most interfaces that are reported: a host with many containers has hundreds, and a heartbeat has to fit into one
/// message.
const INTERFACES_MAX: usize = 64;

/// The most addresses of one interface that are reported.
const ADDRESSES_MAX: usize = 16;

/// Returns the host's name.
pub(super) fn hostname() -> String {
    hostname::cleaned(&nix::unistd::gethostname().unwrap_or_default().to_string_lossy())
}

/// Returns the user that this program runs as.
pub fn own_user() -> String {
    let uid = nix::unistd::geteuid();
    match nix::unistd::User::from_uid(uid) {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    }
}

/// Returns slowly changing properties of the machine. They are read again every few minutes: an upgrade names another system,
/// and processors and memory of a virtual machine can be changed while it runs.
pub fn facts() -> Facts {
    let cpuinfo = read("/proc/cpuinfo");
    Facts {
        os: text_cleaned(&os_name(&read("/etc/os-release")).unwrap_or_else(|| "Linux".to_owned())),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        arch: std::env::consts::ARCH.to_owned(),
        cpus: cpus(&cpuinfo),
        cpu_model: text_cleaned(&value(&cpuinfo, "model name", ':').unwrap_or_default()),
        memory_bytes: memory_bytes(&read("/proc/meminfo")),
        boot_id: boot_id(),
        boot_ms: boot_ms(&read("/proc/stat")),
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Returns the value of the first line `key <separator> value`.
fn value(text: &str, key: &str, separator: char) -> Option<String> {
    text.lines()
        .filter_map(|line| line.split_once(separator))
        .find(|(name, _)| name.trim() == key)
        .map(|(_, value)| value.trim().to_owned())
}

fn os_name(os_release: &str) -> Option<String> {
    value(os_release, "PRETTY_NAME", '=').map(|name| name.trim_matches(['"', '\'']).to_owned())
}

fn cpus(cpuinfo: &str) -> u32 {
    let counted = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    let counted = if counted > 0 { counted } else { std::thread::available_parallelism().map_or(1, usize::from) };
    u32::try_from(counted).unwrap_or(u32::MAX)
}

fn memory_bytes(meminfo: &str) -> u64 {
    let kib = value(meminfo, "MemTotal", ':').and_then(|value| value.split(' ').next()?.parse::<u64>().ok());
    kib.unwrap_or_default() * 1024
}

/// Returns the boot id, which changes with each start of the machine.
pub fn boot_id() -> String {
    read("/proc/sys/kernel/random/boot_id").trim().to_owned()
}

fn boot_ms(stat: &str) -> i64 {
    value(stat, "btime", ' ').and_then(|seconds| seconds.parse::<i64>().ok()).unwrap_or_default() * 1000
}

/// Returns network interfaces and their addresses, without loopback.
pub(super) fn interfaces() -> BTreeMap<String, Interface> {
    let mut interfaces = BTreeMap::<String, Interface>::new();
    let addresses = match getifaddrs() {
        Ok(addresses) => addresses,
        Err(error) => {
            tracing::debug!(%error, "network interfaces cannot be listed");
            return interfaces;
        }
    };
    for entry in addresses.filter(|entry| !entry.flags.contains(InterfaceFlags::IFF_LOOPBACK)) {
        if interfaces.len() == INTERFACES_MAX && !interfaces.contains_key(&entry.interface_name) {
            continue;
        }
        let interface = interfaces
            .entry(entry.interface_name)
            .or_insert_with(|| Interface { mac: String::new(), addresses: Vec::new() });
        if let Some(mac) = entry.address.as_ref().and_then(|address| address.as_link_addr()?.addr()) {
            interface.mac = mac.map(|byte| format!("{byte:02x}")).join(":");
        } else if let Some(address) = entry.address.and_then(|address| with_prefix(&address, entry.netmask.as_ref())) {
            interface.addresses.push(address);
        }
    }
    for interface in interfaces.values_mut() {
        interface.addresses.sort();
        interface.addresses.truncate(ADDRESSES_MAX);
    }
    interfaces
}

fn with_prefix(address: &SockaddrStorage, mask: Option<&SockaddrStorage>) -> Option<String> {
    if let Some(v4) = address.as_sockaddr_in() {
        let mask = mask.and_then(|mask| mask.as_sockaddr_in()).map_or(32, |mask| u32::from(mask.ip()).count_ones());
        return Some(format!("{}/{mask}", v4.ip()));
    }
    let v6 = address.as_sockaddr_in6()?;
    let mask = mask.and_then(|mask| mask.as_sockaddr_in6()).map_or(128, |mask| u128::from(mask.ip()).count_ones());
    Some(format!("{}/{mask}", v6.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_parsed_from_files() {
        let os_release = "NAME=Debian\nPRETTY_NAME=\"Debian GNU/Linux 12\"\n";
        assert_eq!(os_name(os_release).as_deref(), Some("Debian GNU/Linux 12"));
        assert_eq!(os_name(""), None);
        assert_eq!(cpus("processor\t: 0\nmodel name\t: X 1\n\nprocessor\t: 1\n"), 2);
        assert_eq!(value("processor\t: 0\nmodel name\t: X 1: a\n", "model name", ':').as_deref(), Some("X 1: a"));
        assert_eq!(memory_bytes("MemFree: 5 kB\nMemTotal:       24 kB\n"), 24 * 1024);
        assert_eq!(boot_ms("cpu 1 2\nbtime 1700000000\n"), 1_700_000_000_000);
        assert_eq!((memory_bytes("nonsense"), boot_ms("")), (0, 0));
    }

    #[test]
    fn this_machine_has_facts() {
        let facts = facts();
        assert!(facts.cpus > 0 && facts.memory_bytes > 0 && facts.boot_ms > 0 && !facts.kernel.is_empty(), "{facts:?}");
        assert!(!hostname().is_empty() && !own_user().is_empty());
        assert!(!interfaces().contains_key("lo"));
    }
}

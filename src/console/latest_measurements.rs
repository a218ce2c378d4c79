//! The latest measurements of each host, and their totals.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

use muster_topics::{Millis, metric::Point, name::HostId};

/// The age after which values do not describe a host any more, as in Prometheus.
pub(super) const FRESH_MS: Millis = 300_000;

/// The length of the lists of hosts: what fits beside charts.
pub(super) const LISTED: usize = 5;

/// An entry of a list: a host, its values, and a mount point.
type Candidate<'v> = (&'v HostId, &'v Vitals, Option<&'v String>);

/// The latest values of a host.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Vitals {
    pub(super) hostname: String,
    pub(super) at_ms: Millis,
    pub(super) cpu: Option<f64>,
    /// Used and total bytes. Unchanged values are not repeated each time, so each arrives separately.
    pub(super) memory: (Option<f64>, Option<f64>),
    /// By mount point: time of the last value, used, and total bytes.
    pub(super) disks: BTreeMap<String, (Millis, Option<f64>, Option<f64>)>,
    /// Bytes received and sent by all interfaces, and when.
    pub(super) counted: Option<(Millis, f64, f64)>,
    /// Bytes received and sent per second.
    pub(super) traffic: Option<(f64, f64)>,
}

/// The latest values of all hosts.
#[derive(Debug, Default)]
pub(super) struct LatestMeasurements(pub(super) Mutex<HashMap<HostId, Vitals>>);

/// A host in a list, with the value that it is listed for.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedHost {
    /// The host.
    pub host: HostId,
    /// Its hostname.
    pub hostname: String,
    /// The mount point, in a list of file systems.
    pub mount: Option<String>,
    /// The used share.
    pub share: f64,
}

/// Totals of all hosts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overview {
    /// Hosts with measurements of the last minutes.
    pub measured: usize,
    /// The mean share of processor time used.
    pub cpu: Option<f64>,
    /// Used and total memory of all hosts that report it; `None` while a host's is incomplete. Agents repeat unchanged
    /// values every four minutes, so that this lasts for some minutes after the console has started.
    pub memory: Option<(f64, f64)>,
    /// Bytes received and sent per second.
    pub traffic: Option<(f64, f64)>,
    /// The hosts with the busiest processors.
    pub busiest: Vec<ListedHost>,
    /// The hosts with the least memory left.
    pub crammed: Vec<ListedHost>,
    /// The hosts with the fullest file systems.
    pub fullest: Vec<ListedHost>,
}

impl LatestMeasurements {
    pub(super) fn hosts(&self) -> MutexGuard<'_, HashMap<HostId, Vitals>> {
        // A panic while it was locked left at worst one host's values incomplete.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a batch. Late batches, from before a host was offline, change nothing.
    pub(super) fn note(&self, host: HostId, points: &[Point]) {
        let mut hosts = self.hosts();
        let vitals = hosts.entry(host).or_default();
        let mut counted: BTreeMap<Millis, (f64, f64)> = BTreeMap::new();
        let known_ms = vitals.at_ms;
        for point in points.iter().filter(|point| point.at_ms >= known_ms) {
            let field = |name: &str| point.fields.iter().find(|(field, _)| field == name).map(|(_, value)| *value);
            let tag = |name: &str| point.tags.iter().find(|(tag, _)| tag == name).map(|(_, value)| value.clone());
            match point.measurement.as_str() {
                "muster_host_cpu" => vitals.cpu = field("busy_ratio").or(vitals.cpu),
                "muster_host_memory" => {
                    let (used, total) = vitals.memory;
                    vitals.memory = (field("used_bytes").or(used), field("total_bytes").or(total));
                }
                "muster_host_disk" => {
                    let Some(mount) = tag("mount") else { continue };
                    let disk = vitals.disks.entry(mount).or_default();
                    *disk = (point.at_ms, field("used_bytes").or(disk.1), field("total_bytes").or(disk.2));
                }
                "muster_host_network" => {
                    let counts = field("receive_bytes_total").zip(field("transmit_bytes_total"));
                    if let Some((received, sent)) = counts.filter(|_| tag("interface").is_some_and(|name| name != "lo"))
                    {
                        let all = counted.entry(point.at_ms).or_default();
                        *all = (all.0 + received, all.1 + sent);
                    }
                }
                _ => continue,
            }
            if let Some(hostname) = tag("hostname").filter(|hostname| *hostname != vitals.hostname) {
                vitals.hostname = hostname;
            }
        }
        for (at_ms, (received, sent)) in counted {
            vitals.count(at_ms, received, sent);
        }
        vitals.at_ms = points.iter().map(|point| point.at_ms).fold(vitals.at_ms, Millis::max);
        // An unmounted file system is not full any more.
        let since_ms = vitals.at_ms.saturating_sub(FRESH_MS);
        vitals.disks.retain(|_, (at_ms, ..)| *at_ms >= since_ms);
        if vitals.at_ms == 0 {
            hosts.remove(&host);
        }
    }

    /// Handles the removal of a host.
    pub(super) fn remove(&self, host: HostId) {
        self.hosts().remove(&host);
    }

    /// Removes hosts without recent values.
    pub(super) fn forget(&self, now: Millis) {
        self.hosts().retain(|_, vitals| vitals.is_fresh(now));
    }

    /// Returns the totals. It reads each host once: some milliseconds for a hundred thousand.
    pub(super) fn overview(&self, now: Millis) -> Overview {
        let hosts = self.hosts();
        let fresh = || hosts.iter().filter(|(_, vitals)| vitals.is_fresh(now));
        let (mut cpu, mut cpus, mut overview) = (0.0, 0_u32, Overview::default());
        let mut is_memory_whole = true;
        let (mut busiest, mut crammed, mut fullest) = (Greatest::default(), Greatest::default(), Greatest::default());
        let add = |sum: &mut Option<(f64, f64)>, (one, other): (f64, f64)| {
            let (before, beside) = sum.unwrap_or_default();
            *sum = Some((before + one, beside + other));
        };
        for (host, vitals) in fresh() {
            overview.measured += 1;
            if let Some(busy) = vitals.cpu {
                (cpu, cpus) = (cpu + busy, cpus + 1);
                busiest.offer(busy, (host, vitals, None));
            }
            if let Some((used, total)) = whole(vitals.memory) {
                add(&mut overview.memory, (used, total));
                crammed.offer(used / total, (host, vitals, None));
            } else if vitals.memory != (None, None) {
                is_memory_whole = false;
            }
            if let Some(traffic) = vitals.traffic {
                add(&mut overview.traffic, traffic);
            }
            for (mount, (_, used, total)) in &vitals.disks {
                let Some((used, total)) = whole((*used, *total)) else { continue };
                fullest.offer(used / total, (host, vitals, Some(mount)));
            }
        }
        overview.memory = overview.memory.filter(|_| is_memory_whole);
        overview.cpu = (cpus > 0).then(|| cpu / f64::from(cpus));
        (overview.busiest, overview.crammed, overview.fullest) = (busiest.listed(), crammed.listed(), fullest.listed());
        overview
    }
}

/// Returns part and total, if both are known.
pub(super) fn whole((used, total): (Option<f64>, Option<f64>)) -> Option<(f64, f64)> {
    used.zip(total).filter(|(_, total)| *total > 0.0)
}

impl Vitals {
    pub(super) fn is_fresh(&self, now: Millis) -> bool {
        now.saturating_sub(self.at_ms) <= FRESH_MS
    }

    pub(super) fn count(&mut self, at_ms: Millis, received: f64, sent: f64) {
        if let Some((before_ms, before_received, before_sent)) = self.counted
            && at_ms > before_ms
        {
            let rate = |now: f64, before: f64| (now - before) * 1000.0 / (at_ms - before_ms) as f64;
            let traffic = (rate(received, before_received), rate(sent, before_sent));
            // Counters that fell were reset, or an interface was removed: there is no rate.
            self.traffic = Some(traffic).filter(|(received, sent)| *received >= 0.0 && *sent >= 0.0);
        }
        self.counted = Some((at_ms, received, sent));
    }
}

/// Collects the few greatest values.
#[derive(Default)]
pub(super) struct Greatest<'v>(pub(super) Vec<(f64, Candidate<'v>)>);

impl<'v> Greatest<'v> {
    pub(super) fn offer(&mut self, share: f64, offered: Candidate<'v>) {
        if self.0.len() == LISTED && self.0.last().is_some_and(|(least, _)| *least >= share) {
            return;
        }
        let place = self.0.partition_point(|(before, _)| *before >= share);
        self.0.insert(place, (share, offered));
        self.0.truncate(LISTED);
    }

    pub(super) fn listed(self) -> Vec<ListedHost> {
        let listed = |(share, (host, vitals, mount)): (f64, Candidate<'_>)| ListedHost {
            host: *host,
            hostname: vitals.hostname.clone(),
            mount: mount.cloned(),
            share,
        };
        self.0.into_iter().map(listed).collect()
    }
}

//! The fleet at a glance: what each host measured last, kept in memory, and what all of them come to.
//!
//! Ten thousand hosts' newest values lie in ten thousand places of the time-series store; they come by here anyway. So the
//! first page looks through a map and not through the store. It is lost with the process, and is there again half a minute
//! later, when every host has sent its next batch.
//!
//! What the fleet comes to is recorded every half minute as series of its own (`muster_fleet_…`), so that a chart of a
//! year of the fleet costs as much as one of a host.
//!
//! **Invariant: nothing here does IO but [`record`].**

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use muster_topics::{Millis, metric::Point, name::HostId};
use tokio_util::sync::CancellationToken;

use super::{Console, Error, Shared, ingest, store::host};
use crate::clock::now_ms;

/// What is older says nothing of a host any more, as Prometheus has it.
const FRESH_MS: Millis = 300_000;
/// How often the fleet's values are recorded: as often as hosts send theirs.
const RECORD: Duration = Duration::from_secs(30);
/// Hosts that a list shows: what fits beside charts.
const LISTED: usize = 5;

/// What a host measured last.
#[derive(Clone, Debug, Default, PartialEq)]
struct Vitals {
    hostname: String,
    at_ms: Millis,
    cpu: Option<f64>,
    /// Used, and in all. What has not changed is not told again each time, so each comes by itself.
    memory: (Option<f64>, Option<f64>),
    /// By where it is mounted: when something of it came, used, and in all.
    disks: BTreeMap<String, (Millis, Option<f64>, Option<f64>)>,
    /// Bytes received and sent by all interfaces, and when.
    counted: Option<(Millis, f64, f64)>,
    /// Bytes a second, received and sent.
    traffic: Option<(f64, f64)>,
}

/// What hosts measured last; shared by whoever takes batches and whoever shows them.
#[derive(Debug, Default)]
pub(super) struct Fleet(Mutex<HashMap<HostId, Vitals>>);

/// A host in a list, and what it is listed for.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// The host.
    pub host: HostId,
    /// Its name.
    pub hostname: String,
    /// The file system, where that is what is listed.
    pub mount: Option<String>,
    /// The share that is used.
    pub share: f64,
}

/// What all hosts come to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overview {
    /// Hosts with measurements of the last minutes.
    pub measured: usize,
    /// The mean share of their processors' time that is used.
    pub cpu: Option<f64>,
    /// Memory, used and in all, of all hosts that measure it; nothing while one's is known in part only. Agents repeat what has not
    /// changed every four minutes, so that this lasts for some minutes after the console has started.
    pub memory: Option<(f64, f64)>,
    /// Bytes a second, received and sent.
    pub traffic: Option<(f64, f64)>,
    /// Those with the busiest processors.
    pub busiest: Vec<Listed>,
    /// Those with the least memory left.
    pub crammed: Vec<Listed>,
    /// Those with the fullest file systems.
    pub fullest: Vec<Listed>,
}

impl Fleet {
    fn hosts(&self) -> MutexGuard<'_, HashMap<HostId, Vitals>> {
        // Whoever panicked while it was held left at worst the values of one host half new.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in a batch. What comes late, of a time when a host was away, changes nothing.
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
        // What was unmounted is full no more.
        let since_ms = vitals.at_ms.saturating_sub(FRESH_MS);
        vitals.disks.retain(|_, (at_ms, ..)| *at_ms >= since_ms);
        if vitals.at_ms == 0 {
            hosts.remove(&host);
        }
    }

    /// A host is a member no more.
    pub(super) fn remove(&self, host: HostId) {
        self.hosts().remove(&host);
    }

    /// Forgets hosts of which nothing came for long.
    fn forget(&self, now: Millis) {
        self.hosts().retain(|_, vitals| vitals.is_fresh(now));
    }

    /// What all of them come to. It looks at each once: some milliseconds for a hundred thousand.
    pub(super) fn overview(&self, now: Millis) -> Overview {
        let hosts = self.hosts();
        let fresh = || hosts.iter().filter(|(_, vitals)| vitals.is_fresh(now));
        let (mut cpu, mut cpus, mut overview) = (0.0, 0_u32, Overview::default());
        let mut is_memory_whole = true;
        let (mut busiest, mut crammed, mut fullest) = (Top::default(), Top::default(), Top::default());
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

/// A part and its whole, if both are known.
fn whole((used, total): (Option<f64>, Option<f64>)) -> Option<(f64, f64)> {
    used.zip(total).filter(|(_, total)| *total > 0.0)
}

impl Vitals {
    fn is_fresh(&self, now: Millis) -> bool {
        now.saturating_sub(self.at_ms) <= FRESH_MS
    }

    fn count(&mut self, at_ms: Millis, received: f64, sent: f64) {
        if let Some((before_ms, before_received, before_sent)) = self.counted
            && at_ms > before_ms
        {
            let rate = |now: f64, before: f64| (now - before) * 1000.0 / (at_ms - before_ms) as f64;
            let traffic = (rate(received, before_received), rate(sent, before_sent));
            // Counters that fell began anew, or an interface is gone: nothing can be said.
            self.traffic = Some(traffic).filter(|(received, sent)| *received >= 0.0 && *sent >= 0.0);
        }
        self.counted = Some((at_ms, received, sent));
    }
}

/// What is listed: a host, its values, and a mount.
type Offered<'v> = (&'v HostId, &'v Vitals, Option<&'v String>);

/// The few greatest of many.
#[derive(Default)]
struct Top<'v>(Vec<(f64, Offered<'v>)>);

impl<'v> Top<'v> {
    fn offer(&mut self, share: f64, offered: Offered<'v>) {
        if self.0.len() == LISTED && self.0.last().is_some_and(|(least, _)| *least >= share) {
            return;
        }
        let place = self.0.partition_point(|(before, _)| *before >= share);
        self.0.insert(place, (share, offered));
        self.0.truncate(LISTED);
    }

    fn listed(self) -> Vec<Listed> {
        let listed = |(share, (host, vitals, mount)): (f64, Offered<'_>)| Listed {
            host: *host,
            hostname: vitals.hostname.clone(),
            mount: mount.cloned(),
            share,
        };
        self.0.into_iter().map(listed).collect()
    }
}

/// What the fleet comes to, as points.
fn points(overview: &Overview, at_ms: Millis) -> Vec<Point> {
    let point = |measurement: &str| Point::new(measurement, &[("instance", "console")], at_ms);
    if overview.measured == 0 {
        return Vec::new();
    }
    let mut points = vec![point("muster_fleet_hosts").field("measuring", overview.measured as f64)];
    if let Some(cpu) = overview.cpu {
        let busiest = overview.busiest.first().map_or(cpu, |busiest| busiest.share);
        points.push(point("muster_fleet_cpu").field("busy_ratio", cpu).field("busiest_ratio", busiest));
    }
    if let Some((used, total)) = overview.memory {
        points.push(point("muster_fleet_memory").field("used_bytes", used).field("total_bytes", total));
    }
    if let Some((received, sent)) = overview.traffic {
        points.push(point("muster_fleet_network").field("receive_rate", received).field("transmit_rate", sent));
    }
    points
}

/// Records the fleet's values until the console stops.
pub(super) async fn record(shared: Arc<Shared>, shutdown: CancellationToken) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(RECORD) => {}
            () = shutdown.cancelled() => return,
        }
        let now = now_ms();
        shared.fleet.forget(now);
        let points = points(&shared.fleet.overview(now), now);
        if points.is_empty() {
            continue;
        }
        if let Err(error) = ingest::commit(&shared, points).await {
            // The recorder says more, and goes on trying; of these the next half minute has others.
            tracing::warn!(%error, "the fleet's values cannot be recorded");
        }
    }
}

impl Console {
    /// What all hosts come to.
    #[must_use]
    pub fn overview(&self) -> Overview {
        self.shared.fleet.overview(now_ms())
    }

    /// How many hosts there are in each state of presence.
    pub async fn presences(&self) -> Result<host::Presences, Error> {
        Ok(host::presences(self.shared.store.read()).await?.known(self.shared.link.lost_ms()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(hostname: &str, at_ms: Millis, busy: f64, received: f64) -> Vec<Point> {
        let point = |measurement: &str, tags: &[(&str, &str)]| {
            Point::new(measurement, &[&[("hostname", hostname)], tags].concat(), at_ms)
        };
        vec![
            point("muster_host_cpu", &[]).field("busy_ratio", busy),
            point("muster_host_memory", &[]).field("used_bytes", busy * 100.0).field("total_bytes", 200.0),
            point("muster_host_disk", &[("mount", "/")]).field("used_bytes", 10.0).field("total_bytes", 100.0),
            point("muster_host_disk", &[("mount", "/data")]).field("used_bytes", busy).field("total_bytes", 1.0),
            point("muster_host_network", &[("interface", "lo")])
                .field("receive_bytes_total", 1e9 * at_ms as f64)
                .field("transmit_bytes_total", 1e9 * at_ms as f64),
            point("muster_host_network", &[("interface", "eth0")])
                .field("receive_bytes_total", received)
                .field("transmit_bytes_total", 2.0 * received),
            point("muster_host_network", &[("interface", "eth1")])
                .field("receive_bytes_total", received)
                .field("transmit_bytes_total", 0.0),
        ]
    }

    #[test]
    fn the_newest_of_each_host_counts() {
        let (fleet, one, other) = (Fleet::default(), HostId::random(), HostId::random());
        assert_eq!(fleet.overview(0), Overview::default());
        fleet.note(one, &[batch("one", 10_000, 0.9, 0.0), batch("one", 20_000, 0.2, 50_000.0)].concat());
        fleet.note(other, &batch("other", 20_000, 0.6, 7.0));
        // A batch of a time when it was away, and one of nobody.
        fleet.note(one, &batch("old", 5_000, 1.0, 0.0));
        fleet.note(HostId::random(), &[]);
        let overview = fleet.overview(30_000);
        assert_eq!((overview.measured, overview.memory), (2, Some((80.0, 400.0))));
        assert!((overview.cpu.unwrap() - 0.4).abs() < 1e-9);
        assert_eq!(overview.traffic, Some((10_000.0, 10_000.0)), "of both interfaces, without the loopback");
        let of = |listed: &[Listed]| {
            let each = listed
                .iter()
                .map(|one| format!("{} {} {}", one.hostname, one.mount.as_deref().unwrap_or("-"), one.share));
            each.collect::<Vec<_>>()
        };
        assert_eq!(of(&overview.busiest), ["other - 0.6", "one - 0.2"]);
        assert_eq!(of(&overview.crammed), ["other - 0.3", "one - 0.1"]);
        // The other two are as full as each other.
        assert_eq!(of(&overview.fullest)[..2], ["other /data 0.6", "one /data 0.2"]);
        assert_eq!(overview.fullest.len(), 4);
        // What has not changed is not told again.
        let used = Point::new("muster_host_memory", &[], 20_000).field("used_bytes", 30.0);
        fleet.note(one, &[used]);
        assert_eq!(fleet.overview(30_000).memory, Some((90.0, 400.0)));
        // A sum is of all hosts, or is none: of one that has just been heard of, the whole is not known yet.
        let joins = HostId::random();
        fleet.note(joins, &[Point::new("muster_host_memory", &[], 20_000).field("used_bytes", 1.0)]);
        assert_eq!((fleet.overview(30_000).memory, fleet.overview(30_000).measured), (None, 3));
        fleet.note(joins, &[Point::new("muster_host_memory", &[], 20_001).field("total_bytes", 8.0)]);
        assert_eq!(fleet.overview(30_000).memory, Some((91.0, 408.0)));
        fleet.remove(joins);
        // A counter that begins anew says nothing; one that goes on does.
        fleet.note(one, &batch("one", 30_000, 0.2, 1.0));
        assert_eq!(fleet.overview(30_000).traffic, None);
        fleet.note(one, &batch("renamed", 40_000, 0.2, 10_001.0));
        assert_eq!(fleet.overview(40_000).traffic, Some((2_000.0, 2_000.0)));
        assert_eq!(fleet.overview(40_000).busiest[1].hostname, "renamed");
        assert_eq!(fleet.overview(40_000 + FRESH_MS).measured, 1);
        fleet.forget(41_000 + FRESH_MS);
        assert!(fleet.hosts().is_empty());
    }

    #[test]
    fn ten_thousand_hosts_have_few_in_lists() {
        let fleet = Fleet::default();
        for n in 0..10_000 {
            fleet.note(HostId::random(), &batch(&format!("h{n}"), 1_000, f64::from(n * 7919 % 10_000) / 1e4, 0.0));
        }
        let overview = fleet.overview(1_000);
        assert_eq!(overview.measured, 10_000);
        for listed in [&overview.busiest, &overview.crammed, &overview.fullest] {
            assert_eq!(listed.len(), LISTED);
            assert!(listed.is_sorted_by(|a, b| a.share >= b.share));
        }
        assert_eq!((overview.busiest[0].share, overview.busiest[4].share), (0.9999, 0.9995));
        let begin = std::time::Instant::now();
        std::hint::black_box(fleet.overview(1_000));
        println!("an overview of 10,000 hosts: {:?}", begin.elapsed());
    }

    #[test]
    fn what_is_recorded_has_values_alone() {
        assert!(points(&Overview::default(), 5).is_empty());
        let fleet = Fleet::default();
        fleet.note(HostId::random(), &batch("one", 1_000, 0.5, 0.0));
        let recorded = points(&fleet.overview(1_000), 1_000);
        let names: Vec<_> = recorded.iter().map(|point| point.measurement.as_str()).collect();
        assert_eq!(names, ["muster_fleet_hosts", "muster_fleet_cpu", "muster_fleet_memory"]);
        assert!(recorded.iter().all(|point| point.tags == [("instance".to_owned(), "console".to_owned())]));
    }
}

//! The fleet at a glance: the latest measurements of each host, kept in memory, and their totals.
//!
//! The newest values of ten thousand hosts are in ten thousand places of the time-series store, but pass through here anyway. So the
//! first page reads a map and not the store. The map is lost with the process, and filled again within half a minute,
//! when every host has sent its next batch.
//!
//! The totals are recorded every half minute as series of their own (`muster_fleet_…`), so that a chart of a
//! year of the fleet costs as much as one of a host.
//!
//! **Invariant: only [`record`] does IO.**

use std::{sync::Arc, time::Duration};

use muster_base::clock::now_ms;
use muster_topics::{Millis, catalogue, diagnostic::Diagnostic, metric::Point};
use tokio_util::sync::CancellationToken;

use super::{
    error::Error,
    ingest,
    state::{Console, ConsoleState},
    store::host,
};

pub(super) use super::latest_measurements::LatestMeasurements;
pub use super::latest_measurements::{ListedHost, Overview};

/// How often the fleet's values are recorded.
const RECORD: Duration = Duration::from_secs(catalogue::CONSOLE_S as u64);

/// Returns the fleet's totals as points.
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

/// Records the fleet's totals until the console stops.
pub(super) async fn record(shared: Arc<ConsoleState>, shutdown: CancellationToken) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(RECORD) => {}
            () = shutdown.cancelled() => return,
        }
        let now = now_ms();
        shared.measurements.latest.forget(now);
        let points = points(&shared.measurements.latest.overview(now), now);
        if points.is_empty() {
            continue;
        }
        if let Err(error) = ingest::commit(&shared, points).await {
            // The recorder logs more and tries again; the next half minute has new values.
            tracing::warn!(%error, hint = Diagnostic::of(&error).hint, "the fleet's values cannot be recorded");
        }
    }
}

impl Console {
    /// Returns the totals of all hosts.
    #[must_use]
    pub fn overview(&self) -> Overview {
        self.shared.measurements.latest.overview(now_ms())
    }

    /// Counts the hosts in each state of presence.
    pub async fn presences(&self) -> Result<host::Presences, Error> {
        Ok(host::presences(self.shared.store.read()).await?.known(self.shared.hosts.link.lost_ms()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::latest_measurements::{FRESH_MS, LISTED};
    use super::*;
    use muster_topics::name::HostId;

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
    fn latest_measurement_of_each_host_counts() {
        let (fleet, one, other) = (LatestMeasurements::default(), HostId::random(), HostId::random());
        assert_eq!(fleet.overview(0), Overview::default());
        fleet.note(one, &[batch("one", 10_000, 0.9, 0.0), batch("one", 20_000, 0.2, 50_000.0)].concat());
        fleet.note(other, &batch("other", 20_000, 0.6, 7.0));
        // A batch from before it was offline, and one without values.
        fleet.note(one, &batch("old", 5_000, 1.0, 0.0));
        fleet.note(HostId::random(), &[]);
        let overview = fleet.overview(30_000);
        assert_eq!((overview.measured, overview.memory), (2, Some((80.0, 400.0))));
        assert!((overview.cpu.unwrap() - 0.4).abs() < 1e-9);
        assert_eq!(overview.traffic, Some((10_000.0, 10_000.0)), "of both interfaces, without the loopback");
        let of = |listed: &[ListedHost]| {
            let each = listed
                .iter()
                .map(|one| format!("{} {} {}", one.hostname, one.mount.as_deref().unwrap_or("-"), one.share));
            each.collect::<Vec<_>>()
        };
        assert_eq!(of(&overview.busiest), ["other - 0.6", "one - 0.2"]);
        assert_eq!(of(&overview.crammed), ["other - 0.3", "one - 0.1"]);
        // The other two are equally full.
        assert_eq!(of(&overview.fullest)[..2], ["other /data 0.6", "one /data 0.2"]);
        assert_eq!(overview.fullest.len(), 4);
        // An unchanged value is not sent again.
        let used = Point::new("muster_host_memory", &[], 20_000).field("used_bytes", 30.0);
        fleet.note(one, &[used]);
        assert_eq!(fleet.overview(30_000).memory, Some((90.0, 400.0)));
        // A sum covers all hosts or is absent: of a new host, the total is not known yet.
        let joins = HostId::random();
        fleet.note(joins, &[Point::new("muster_host_memory", &[], 20_000).field("used_bytes", 1.0)]);
        assert_eq!((fleet.overview(30_000).memory, fleet.overview(30_000).measured), (None, 3));
        fleet.note(joins, &[Point::new("muster_host_memory", &[], 20_001).field("total_bytes", 8.0)]);
        assert_eq!(fleet.overview(30_000).memory, Some((91.0, 408.0)));
        fleet.remove(joins);
        // A counter that was reset gives no rate; one that continues does.
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
    fn lists_of_ten_thousand_hosts_are_short() {
        let fleet = LatestMeasurements::default();
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
    fn only_known_totals_are_recorded() {
        assert!(points(&Overview::default(), 5).is_empty());
        let fleet = LatestMeasurements::default();
        fleet.note(HostId::random(), &batch("one", 1_000, 0.5, 0.0));
        let recorded = points(&fleet.overview(1_000), 1_000);
        let names: Vec<_> = recorded.iter().map(|point| point.measurement.as_str()).collect();
        assert_eq!(names, ["muster_fleet_hosts", "muster_fleet_cpu", "muster_fleet_memory"]);
        assert!(recorded.iter().all(|point| point.tags == [("instance".to_owned(), "console".to_owned())]));
        fleet.note(HostId::random(), &[batch("two", 1_000, 0.5, 0.0), batch("two", 2_000, 0.5, 9.0)].concat());
        let overview = Overview { traffic: Some((1.0, 2.0)), ..fleet.overview(2_000) };
        assert_eq!(points(&overview, 2_000).iter().find_map(catalogue::unlisted), None);
    }
}

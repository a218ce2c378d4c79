//! Records the console's own metrics beside those of hosts: the number of hosts by state, open commands, deployments and documents,
//! rollouts, active alerts, sizes of its stores, and its use of the machine.
//!
//! Each point has the label `instance="console"`, and none has `host`, because they belong to no host.
//!
//! **Invariant: a value that cannot be read is left out**, and the others are recorded.

use std::{
    fs,
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use muster_api::BackupKind;
use muster_base::clock::now_ms;
use muster_topics::{Millis, alert::Severity, catalogue, metric::Point};
use nix::{
    sys::resource::{UsageWho, getrusage},
    sys::time::TimeValLike,
    unistd::{SysconfVar, sysconf},
};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::{
    host_share::ShareKind,
    ingest,
    rollout::{RolloutTotals, Rollouts},
    state::ConsoleState,
    store::{self, StoreError, alert},
};

/// How often values are recorded.
const PERIOD: Duration = Duration::from_secs(catalogue::CONSOLE_S as u64);
/// The most alerts that are counted: more than anybody reads, and some milliseconds of work.
const ALERTS_MAX: u32 = 10_000;
/// The size of a page, if the kernel does not tell.
const PAGE_BYTES: u64 = 4_096;

/// Measures until the console stops.
pub(super) async fn run(shared: Arc<ConsoleState>, shutdown: CancellationToken) {
    let mut processor = Processor::default();
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = shutdown.cancelled() => return,
        }
        let points = sample(&shared, &mut processor, now_ms()).await;
        // The recorder logs a full store, each time that a host sends something.
        if let Err(error) = ingest::commit(&shared, points).await {
            tracing::debug!(%error, "the console's own measurements cannot be stored");
        }
    }
}

fn point(measurement: &str, tag: Option<(&str, &str)>, at_ms: Millis) -> Point {
    let tags: Vec<_> = [("instance", "console")].into_iter().chain(tag).collect();
    Point::new(measurement, &tags, at_ms)
}

/// Collects the present values.
async fn sample(shared: &ConsoleState, processor: &mut Processor, at_ms: Millis) -> Vec<Point> {
    let mut points = Vec::with_capacity(48);
    match of_stores(shared, at_ms).await {
        Ok(found) => points.extend(found),
        Err(error) => tracing::debug!(%error, "the console cannot count what is in its store"),
    }
    let (deployments, documents) = shared.hosts.desired.counts();
    points.push(point("muster_console_deployments", None, at_ms).field("count", deployments as f64));
    for (state, count) in documents {
        points.push(point("muster_console_documents", Some(("state", state)), at_ms).field("count", count as f64));
    }
    points.extend(of_rollouts(&shared.hosts.rollouts, at_ms));
    if let Ok(count) = shared.measurements.series.count().await {
        points.push(point("muster_console_series", None, at_ms).field("count", count as f64));
    }
    let dropped = shared.hosts.link.dropped.load(Ordering::Relaxed);
    points.push(point("muster_console_batches", None, at_ms).field("dropped_total", dropped as f64));
    let bytes = ["console.db", "series.db"]
        .map(|name| size(&shared.settings.started_with.data_dir.join(name)))
        .iter()
        .sum::<u64>();
    points.push(point("muster_console_store", None, at_ms).field("bytes", bytes as f64));
    let received = shared.measurements.received.load(Ordering::Relaxed);
    points.push(point("muster_console_points", None, at_ms).field("received_total", received as f64));
    for kind in ShareKind::ALL {
        let exceeded = match kind {
            ShareKind::Series => shared.measurements.series.series_refused(),
            _ => shared.hosts.shares.exceeded(kind),
        };
        let tag = Some(("kind", kind.as_str()));
        points.push(point("muster_console_host_shares", tag, at_ms).field("exceeded_total", exceeded as f64));
    }
    points.extend(shared.measurements.external.status().iter().map(|store| external(store, at_ms)));
    if let Some(bytes) = resident_bytes() {
        points.push(point("muster_console_memory", None, at_ms).field("resident_bytes", bytes as f64));
    }
    if let Some(ratio) = processor.busy_ratio(Instant::now()) {
        points.push(point("muster_console_cpu", None, at_ms).field("busy_ratio", ratio));
    }
    points
}

/// The present rollouts; zeros, too.
fn of_rollouts(rollouts: &Rollouts, at_ms: Millis) -> Vec<Point> {
    let RolloutTotals { phases, outcomes, in_flight, unavailable } = rollouts.totals();
    let count = |measurement: &str, label: &str, word: &str, count: u64| {
        point(measurement, Some((label, word)), at_ms).field("count", count as f64)
    };
    let phases = phases.into_iter().map(|(word, number)| count("muster_console_rollouts", "phase", word, number));
    let hosts =
        outcomes.into_iter().map(|(word, number)| count("muster_console_rollout_hosts", "outcome", word, number));
    let now = point("muster_console_rollout", None, at_ms)
        .field("in_flight", in_flight as f64)
        .field("unavailable", unavailable as f64)
        .field("admitted_total", rollouts.admitted() as f64);
    phases.chain(hosts).chain([now]).collect()
}

async fn of_stores(shared: &ConsoleState, at_ms: Millis) -> Result<Vec<Point>, StoreError> {
    let db = shared.store.read();
    let hosts = store::host::presences(db).await?.known(shared.hosts.link.lost_ms());
    let open = store::command::open_count(db).await?;
    let alerts = alert::list(db, alert::Which { limit: ALERTS_MAX, ..Default::default() }, at_ms).await?;
    let mut points = Vec::new();
    if let (Some(last_ms), _) = store::backup::last_taken_ms(db, BackupKind::Scheduled, at_ms).await? {
        let age_s = at_ms.saturating_sub(last_ms).max(0) as f64 / 1000.0;
        points.push(point("muster_console_backup", None, at_ms).field("age_seconds", age_s));
    }
    // Zeros, too: a series that ends would look as if it were constant.
    let store::host::Presences { online, offline, stopped, never, unknown } = hosts;
    let states =
        [("online", online), ("offline", offline), ("stopped", stopped), ("never", never), ("unknown", unknown)];
    for (state, count) in states {
        points.push(point("muster_console_hosts", Some(("state", state)), at_ms).field("count", count as f64));
    }
    points.push(point("muster_console_commands", None, at_ms).field("open", open as f64));
    for (severity, word) in [(Severity::Info, "info"), (Severity::Warning, "warning"), (Severity::Critical, "critical")]
    {
        let count = alerts.iter().filter(|one| one.silence.is_none() && one.alert.severity == severity).count();
        points.push(point("muster_console_alerts", Some(("severity", word)), at_ms).field("active", count as f64));
    }
    Ok(points)
}

fn external(store: &muster_api::MetricStore, at_ms: Millis) -> Point {
    point("muster_console_external", Some(("store", store.name.as_str())), at_ms)
        .field("waiting_bytes", store.waiting_bytes as f64)
        .field("waiting", store.waiting_lines as f64)
        .field("sent_total", store.sent_lines as f64)
        .field("retried_total", store.retries as f64)
        .field("quarantined_total", store.refused_lines as f64)
        .field("dropped_total", store.dropped_lines as f64)
}

/// The size of a database with its write-ahead log.
fn size(path: &Path) -> u64 {
    let beside = path.with_extension("db-wal");
    [path, &beside].iter().filter_map(|path| fs::metadata(path).ok()).map(|metadata| metadata.len()).sum()
}

fn resident_bytes() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    let page_bytes = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().and_then(|bytes| u64::try_from(bytes).ok());
    Some(pages.saturating_mul(page_bytes.unwrap_or(PAGE_BYTES)))
}

/// The processor time of this process as a share of all processors, as for hosts' units.
#[derive(Debug, Default)]
struct Processor {
    before: Option<(Instant, Duration)>,
}

impl Processor {
    /// Returns the share since the last call; `None` the first time.
    fn busy_ratio(&mut self, now: Instant) -> Option<f64> {
        let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
        let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
        let used = Duration::from_micros(u64::try_from(micros).ok()?);
        let (then, before) = self.before.replace((now, used))?;
        let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let passed = now.saturating_duration_since(then).as_secs_f64() * processors;
        (passed > 0.0).then(|| (used.saturating_sub(before).as_secs_f64() / passed).min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Fixture;

    #[tokio::test]
    async fn console_metrics_are_recorded() {
        let fixture = Fixture::new().await;
        let host = fixture.member("till-7").await;
        fixture.command(&[host.id]).await;
        fixture.asking_member("till-8").await;
        fixture.roll_out_container("default/till", "host=till-8", "till", Some(serde_json::json!({}))).await;
        let shared = fixture.shared();
        let mut processor = Processor::default();
        let first = sample(shared, &mut processor, now_ms()).await;
        assert!(first.iter().all(|point| point.measurement != "muster_console_cpu"), "it is over no time");
        assert_eq!(first.iter().find_map(catalogue::unlisted), None);
        ingest::commit(shared, first).await.unwrap();
        let points = sample(shared, &mut processor, now_ms()).await;
        assert_eq!(points.iter().find_map(catalogue::unlisted), None);
        ingest::commit(shared, points).await.unwrap();
        let value = async |selector: &str| {
            let series = shared.measurements.series.query(selector, None, 1).await.unwrap();
            assert_eq!(series.len(), 1, "{selector}");
            assert_eq!(series[0].labels["instance"], "console");
            series[0].points[0].1
        };
        assert_eq!(value("muster_console_hosts_count{state=\"never\"}").await, 2.0);
        assert_eq!(value("muster_console_hosts_count{state=\"online\"}").await, 0.0);
        assert_eq!(value("muster_console_commands_open").await, 1.0);
        assert_eq!(value("muster_console_deployments_count").await, 1.0);
        assert_eq!(value("muster_console_documents_count{state=\"behind\"}").await, 1.0);
        assert_eq!(value("muster_console_rollouts_count{phase=\"running\"}").await, 1.0);
        assert_eq!(value("muster_console_rollouts_count{phase=\"paused\"}").await, 0.0);
        assert_eq!(value("muster_console_rollout_hosts_count{outcome=\"none\"}").await, 1.0);
        assert_eq!(value("muster_console_rollout_hosts_count{outcome=\"verified\"}").await, 0.0);
        assert_eq!(value("muster_console_rollout_in_flight").await, 0.0);
        assert_eq!(value("muster_console_rollout_unavailable").await, 0.0);
        assert_eq!(value("muster_console_rollout_admitted_total").await, 0.0);
        assert_eq!(value("muster_console_alerts_active{severity=\"critical\"}").await, 0.0);
        assert_eq!(value("muster_console_points_received_total").await, 0.0);
        assert!(value("muster_console_series_count").await > 0.0);
        for kind in ShareKind::ALL.map(ShareKind::as_str) {
            assert_eq!(value(&format!("muster_console_host_shares_exceeded_total{{kind=\"{kind}\"}}")).await, 0.0);
        }
        assert_eq!(value("muster_console_batches_dropped_total").await, 0.0);
        assert!(value("muster_console_store_bytes").await > 10_000.0);
        assert!(value("muster_console_memory_resident_bytes").await > 1e6);
        assert!((0.0..=1.0).contains(&value("muster_console_cpu_busy_ratio").await));
        fixture.running.stop().await;
    }
}

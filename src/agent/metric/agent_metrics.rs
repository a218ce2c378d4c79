//! Metrics of the agent itself: its resource use, and its queues.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use muster_topics::{Millis, metric::Point};
use nix::time::ClockId;
use tokio::time::Instant;

use super::{
    point_writer::{PointWriter, bytes, ratio, seconds},
    procfs::ProcReader,
    unit,
};
use crate::store::metric::StoreFigures;

pub(super) use super::figures::MetricSources;

/// The lengths of the loop's queues, when it last reported them.
#[derive(Debug, Default)]
pub struct QueueLengths {
    /// Commands that are being executed, or wait.
    pub commands: AtomicU64,
    /// Alerts that the console has not acknowledged.
    pub alerts: AtomicU64,
}

/// Samples the agent itself, and remembers the last sample for ratios.
#[derive(Debug, Default)]
pub(super) struct OwnSampler {
    /// Processor time, and when it was read.
    busy: Option<(Duration, Instant)>,
}

impl OwnSampler {
    /// Processor time is a share of that of all processors, as for units.
    pub(super) fn sample(
        &mut self,
        labelled: &PointWriter,
        reader: &mut ProcReader,
        sources: &MetricSources,
        stored: Option<StoreFigures>,
        processors: u64,
        at_ms: Millis,
    ) -> Vec<Point> {
        let point = |measurement| labelled.point(measurement, &[], at_ms);
        let mut points = Vec::with_capacity(8);
        if let Some(busy) = busy() {
            let now = Instant::now();
            let before = self.busy.replace((busy, now));
            if let Some((before, since)) = before.filter(|(_, since)| now > *since) {
                let whole = micros(now - since).saturating_mul(processors.max(1));
                points.push(
                    point("muster_agent_cpu").field("busy_ratio", ratio(micros(busy.saturating_sub(before)), whole)),
                );
            }
        }
        if let Some(process) = unit::process(reader, "self") {
            let resident_bytes = process.resident_pages.saturating_mul(labelled.page_bytes);
            points.push(bytes(point("muster_agent_memory"), &[("resident_bytes", resident_bytes)]));
        }
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        for (queue, length) in [
            ("commands", Some(load(&sources.queues.commands))),
            ("alerts", Some(load(&sources.queues.alerts))),
            ("outbox", stored.map(|stored| stored.outbox)),
            ("metrics", stored.map(|stored| stored.metrics)),
        ] {
            let point = labelled.point("muster_agent_queue", &[("queue", queue)], at_ms);
            points.extend(length.map(|length| bytes(point, &[("length", length)])));
        }
        points.extend(stored.map(|stored| bytes(point("muster_agent_store"), &[("size_bytes", stored.size_bytes)])));
        // The first connection is not a reconnect.
        let reconnects = load(&sources.meter.connects).saturating_sub(1);
        points.push(bytes(point("muster_agent_link"), &[("reconnects_total", reconnects)]));
        if let Some(reconciled) = sources.keeper.as_ref().and_then(|units| *units.reconciled().borrow()) {
            let age = micros(reconciled.at.elapsed()) / 1_000_000;
            let point = bytes(point("muster_agent_reconcile"), &[("age_seconds", age)]);
            points.push(point.field("duration_seconds", seconds(micros(reconciled.took))));
        }
        points
    }
}

/// The processor time of this process.
fn busy() -> Option<Duration> {
    Some(ClockId::CLOCK_PROCESS_CPUTIME_ID.now().ok()?.into())
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
